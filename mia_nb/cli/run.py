"""Execute the steps of a run through papermill, keep a status of our own, and say in a line what
went wrong.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import importlib.util
import logging
import os
import re
import sys
import time
from argparse import Namespace
from datetime import UTC, datetime
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

import filelock

from mia_nb import __version__, escape, store
from mia_nb._files import parse_json
from mia_nb.cli import notebooks
from mia_nb.cli.notebooks import PACKAGE, Step
from mia_nb.cli.progress import ANSI, Overall, Progress
from mia_nb.cli.report import PROVENANCE, REPORT, provenance, report, verdict_lines
from mia_nb.cli.say import say, short
from mia_nb.cli.status import STATUS, is_whole, lost_figures, read_status
from mia_nb.digests import digest
from mia_nb.parameters import changed, read_parameters, refuse_values
from mia_nb.types import Recipe

if TYPE_CHECKING:
    from nbformat import NotebookNode

USERS_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
BUILDER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # package.module:function
# parameters and entries of records that say how a run is done and where things lie, and not what
# comes out
ELSEWHERE = ("force", "workers", "backend", "results", "data_root")
STARTS = 3  # attempts to start a kernel
MOST_LINES = 8  # of notebooks whose figures failed
SPEC = {"name": "python3", "language": "python", "display_name": "Python 3 (ipykernel)"}


class Failed(RuntimeError):
    """A notebook did not finish for a reason that is not bad input; the message is at most ten
    lines.
    """


class Killed(Failed):
    """Its kernel died, or never answered."""


def _workers(args: Namespace) -> list[tuple[str, str]]:
    """What --workers and --backend say, as parameters of a notebook."""
    if args.workers is not None and not args.workers.isdigit():
        raise ValueError(
            f"--workers {args.workers}: wanted a whole number; where they run is said by"
            " --backend dask or ray"
        )
    options = {"workers": args.workers, "backend": args.backend}
    return [(name, value) for name, value in options.items() if value]


def command(args: Namespace) -> None:
    """`mia-nb run`: run what was named, and print where its notebooks and its report lie."""
    given = [*notebooks.given(args.parameter), *_workers(args)]
    where = notebooks.folders(args.notebooks)
    target, preset = notebooks.resolve(args.notebook, args.preset, where)
    steps = notebooks.plan(target, preset, given, where)
    if args.estimate:
        from mia_nb.cli import hours  # brings torch

        return hours.estimate(steps)
    whole = target == "all"
    name = Path(preset).stem if whole else steps[0].notebook.stem
    about = notebooks.about(preset, where) if whole else ""
    folder = run(name, steps, args.results, force=args.force, about=about)
    files = [f for f in folder.files() if f.endswith(".ipynb")] + [REPORT]
    paths = [f"  {os.path.relpath(folder.path / file)}" for file in files]
    say(*verdict_lines(folder), *paths)
    if lost := lost_figures(folder):
        last = "all else is there; the same command runs these notebooks again"
        raise Failed("\n  ".join(["figures failed", *lost[:MOST_LINES], last]))


def run(
    name: str, steps: list[Step], results: str | Path, *, force: bool = False, about: str = ""
) -> store.Folder:
    """Run the steps in order into results/run-NAME-KEY, skipping those done before; return the
    folder.

    What the run is `about` is said on top of its report, which is there from the first finished
    notebook on.

    The key is content: parameters, the notebooks' code, the package's code, the files that
    parameters point at. The status of each step (running, done, failed, killed) is kept in
    status.json. A step is done without a figure that failed; its `error` says which, and the next
    run does it again. Raises ValueError for bad input met on the way, or Failed.
    """
    results = Path(results).absolute()
    for step in steps:
        _refuse(step, results)
    recipe = _recipe(steps, results)
    folder = store.open_folder(
        results, "run", name, store.content_key(recipe), recipe, version=__version__
    )
    files = _file_names(steps)
    if not force and _is_finished(folder, files):
        return folder
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(folder.lock("run", timeout=0))
        except filelock.Timeout:
            raise ValueError(
                f"{short(folder.path)} is being run by another process; wait for it to end"
            ) from None
        _run_what_is_missing(folder, dict(zip(files, steps, strict=True)), recipe, force, about)
    return folder


def _run_what_is_missing(
    folder: store.Folder, steps: dict[str, Step], recipe: dict, force: bool, about: str
) -> None:
    """Run the steps, by the files that they leave, that are not done or whose file is not intact;
    the report is written after each.
    """
    files = list(steps)
    record = {}
    if not force and _is_intact(folder, STATUS):
        record = {step["file"]: step for step in read_status(folder)}
    todo = []
    for file in files:
        if not is_whole(record.get(file, {})) or not _is_intact(folder, file):
            todo.append(file)
    if not todo and _is_finished(folder, files):  # by another process meanwhile
        return
    facts = provenance()
    if about:
        facts["about"] = about
    folder.write_json(PROVENANCE, facts)
    overall = Overall({file: step.share for file, step in steps.items()}, todo)
    for number, (file, step) in enumerate(steps.items()):
        if file not in todo:
            say(f"{escape.terminal(file):<22} cached")
            continue
        record[file] = _run_step(step, file, folder, record, force, overall)
        _refuse_changed(step, recipe["steps"][number], folder, file)
        overall.left.remove(file)
        page = report(folder)
        if len(todo) > 1 and file == todo[0]:
            say(f"results so far, on a page that grows: {short(page)}")
    if not todo:
        report(folder)


def _is_finished(folder: store.Folder, files: list[str]) -> bool:
    """Whether all of a run is there and intact, with a line that says so; nothing is written."""
    if not all(map(folder.intact, [STATUS, REPORT, *files])):
        return False
    record = {step["file"]: step for step in read_status(folder)}
    if not all(is_whole(record.get(file, {})) for file in files):
        return False
    seconds = sum(record[file]["seconds"] for file in files)
    say(f"cached: {short(folder.path)} ({seconds:.0f} s when it ran); --force runs it again")
    return True


def _refuse(step: Step, results: Path) -> None:
    """ValueError for what parameters alone can tell, before a kernel starts: by the notebook's own
    checks, and for a network, a defense or a data set that there is not."""
    refuse_values(step.notebook, step.parameters | {"results": str(results)})
    new = changed(read_parameters(step.notebook), step.parameters)
    if new.get("recipe", {}).keys() & {"model", "model_args", "defense", "optimizer", "loss"}:
        _refuse_recipe(Recipe(**step.parameters["recipe"]))
    dataset = new.get("source", {}).get("dataset")
    if dataset is not None and not Path(dataset).expanduser().exists():
        from mia_nb import data

        if dataset not in data.DATASETS and not dataset.startswith("synthetic"):
            data.load(**step.parameters["source"])  # refuses it


def _refuse_recipe(recipe: Recipe) -> None:
    from mia_nb import models  # brings torch, which nothing else here waits for
    from mia_nb.training.train import complete

    recipe = complete(recipe)
    models.allow(*models.builders_of(recipe.model, recipe.model_args))  # named by who runs it
    if ":" not in recipe.model and recipe.model not in models.BASES:
        size = {"in_channels": 3, "num_classes": 2, "size": 32, "seed": 0}
        models.build(recipe.model, recipe.model_args, **size)


def _run_step(
    step: Step, file: str, folder: store.Folder, record: dict, force: bool, overall: Overall
) -> dict:
    """Execute one notebook, keeping status.json up to date whatever happens."""
    started = time.monotonic()
    entry = {
        "notebook": step.notebook.stem,
        "file": file,
        "status": "running",
        "error": None,
        "seconds": 0.0,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }

    def write(status: str, error: str | None = None) -> dict:
        done = {"status": status, "error": error, "seconds": round(time.monotonic() - started, 2)}
        record[file] = entry | done
        folder.write_json(STATUS, {"steps": list(record.values())})
        return record[file]

    write("running")
    folder.remove(file)
    try:
        lost = execute(
            step.notebook,
            folder.path / file,
            _to_inject(step, folder.path.parent, force),
            overall=overall,
        )
        folder.add(file)
        return write("done", "; ".join(lost) or None)
    except KeyboardInterrupt:
        write("killed", "interrupted")
        raise
    except (ValueError, Failed, OSError) as error:
        with contextlib.suppress(OSError):  # on a full disk the first complaint is the one to show
            write("killed" if isinstance(error, Killed) else "failed", str(error))
        raise


def _to_inject(step: Step, results: Path, force: bool) -> dict:
    """The parameters that differ from the notebook's own, with places made absolute."""
    values = dict(step.parameters)
    if "results" in values:
        values["results"] = str(results)
    if "source" in values:
        root = Path(values["source"]["data_root"]).absolute()
        values["source"] = values["source"] | {"data_root": str(root)}
    if force and "run" in values:
        values["run"] = values["run"] | {"force": True}
    elif force and "force" in values:
        values["force"] = True
    return changed(read_parameters(step.notebook), values)


def execute(
    notebook: Path,
    out: Path,
    parameters: dict,
    *,
    quiet: bool = False,
    overall: Overall | None = None,
) -> list[str]:
    """papermill with its traps closed: our interpreter as kernel, no stray warnings, braces in
    paths, errors in few lines; returns a line for each figure that failed.
    """
    import nbformat
    from papermill.exceptions import PapermillExecutionError

    node = nbformat.v4.upgrade(nbformat.read(notebook, as_version=4))
    node.metadata["kernelspec"] = SPEC
    node.metadata.pop("papermill", None)
    # papermill adds a cell
    progress = Progress(out.name, len(node.cells) + bool(parameters), quiet, overall)
    try:
        _execute(node, out, parameters, progress)
    except PapermillExecutionError as error:
        # the run went on after errors in cells tagged `raises-exception`; papermill complains of
        # these too, at its end
        lost = _figures_alone(out)
        progress.end(f"{len(lost)} figure{'s' * (len(lost) > 1)} failed" if lost else "failed")
        if not lost:
            raise _explain(error, out) from error
        return lost
    except RuntimeError as error:  # nbclient's DeadKernelError among them
        progress.end("killed")
        raise Killed(
            f"{out.stem}: the kernel died in cell {progress.cell} of {progress.cells}; out of"
            f" memory, or killed by hand?\n  {_clip(str(error))}\n  done so far: {short(out)}"
        ) from error
    except BaseException:
        progress.end("stopped")
        raise
    progress.end()
    return []


def _execute(node: NotebookNode, out: Path, parameters: dict, progress: Progress) -> None:
    """Execute a notebook with papermill, which writes it to `out`. Two kernels that start at once
    may draw the same port: one that dies before its first cell is started again.
    """
    import nbformat
    import papermill

    from mia_nb.cli.kernels import BatchKernels

    # it calls parameters typed `str | None` unknown
    logging.getLogger("papermill").setLevel(logging.ERROR)
    place = str(out).replace("{", "{{").replace("}", "}}")  # papermill formats its paths
    for attempt in range(1, STARTS + 1):
        nbformat.write(node, out)
        try:
            papermill.execute_notebook(
                place,
                place,
                parameters,
                kernel_name=SPEC["name"],
                kernel_manager_class=BatchKernels,
                progress_bar=False,
                stdout_file=progress,
                stderr_file=progress,
                on_cell_start=progress.next_cell,
            )
            return
        except RuntimeError:
            if progress.cell or attempt == STARTS:
                raise


def _figures_alone(out: Path) -> list[str]:
    """A line for each figure that failed, [] where anything else did; of the former papermill's
    marks of a failed run are taken out of the notebook.
    """
    import nbformat
    from papermill.execute import remove_error_markers

    from mia_nb.report import is_figure, lost_figures

    notebook = remove_error_markers(nbformat.read(out, as_version=4))
    for cell in notebook.cells:
        if cell.metadata.get("papermill", {}).get("exception"):  # the run stopped there
            return []
        failed = any(output.output_type == "error" for output in cell.get("outputs", []))
        if failed and not is_figure(cell):
            return []
    nbformat.write(notebook, out)
    return lost_figures(notebook.cells)


def _explain(error: Exception, out: Path) -> Exception:
    """A papermill error as ValueError of one line (bad input, the user's disk) or as Failed of a
    few lines.
    """
    trace = ANSI.sub("", "\n".join(error.traceback))
    message = error.evalue.strip() or error.ename
    places_in_package = re.findall(r"(mia_nb[/\\][\w/\\]+\.py:\d+)", trace)
    place_in_cell = re.search(r"Cell In\[\d+\], line (\d+)", trace)
    number = int(place_in_cell[1]) if place_in_cell else 1
    line = "".join(error.source.splitlines()[number - 1 : number]).strip()
    is_check = places_in_package or line.startswith("raise ValueError(")  # the notebook's own
    is_refusal = error.ename in ("ValueError", "Corrupt") and is_check
    system = re.match(r"\[Errno (\d+)\]", message)
    if is_refusal or (system and int(system[1]) in USERS_DISK):
        return ValueError(f"{out.stem}: {_clip(message)} (see {short(out)})")
    lines = [
        f"{out.stem} failed in cell In[{error.exec_count}]: {line}",
        f"  {error.ename}: {_clip(message)}",
    ]
    if places_in_package:
        lines.append(f"  raised at {places_in_package[-1]}")
    lines.append(f"  done so far, with the whole trace: {short(out)}")
    return Failed("\n".join(lines))


def _lasting(values: dict) -> dict:
    return {name: value for name, value in values.items() if name not in ELSEWHERE}


def _values(step: Step) -> dict:
    """The parameters that decide what comes out."""
    return {
        name: _lasting(value) if isinstance(value, dict) else value
        for name, value in _lasting(step.parameters).items()
    }


def _pointing(values: dict) -> dict:
    """Parameters, and those in groups, that may name files, builders or results."""
    return {**values, **values.get("source", {}), **values.get("recipe", {})}


def _refuse_changed(step: Step, entry: dict, folder: store.Folder, file: str) -> None:
    """ValueError where a file that a parameter names was written to while the notebook read it:
    what came out would be kept as that of the file before.
    """
    for name, value in _pointing(_values(step)).items():
        before = entry["files"].get(name)
        if before and Path(str(value)).is_file() and _stamp(value) != before:
            folder.remove(file)
            raise ValueError(f"{name}={value} was changed while {file} ran: run it again")


def _recipe(steps: list[Step], results: Path | None = None) -> dict:
    """What a run's key is made of."""
    entries = []
    for step in steps:
        values = _values(step)
        stamps = {}
        for name, value in _pointing(values).items():
            if stamp := _stamp(value):
                stamps[name] = stamp
        if values.get("pool") and results:  # the first letters of a key: which pool that is now
            with contextlib.suppress(ValueError):
                pool = store.find(str(values["pool"]), results, "pool")
                stamps["pool"] = digest(pool.files())
        cells = parse_json(step.notebook.read_text(encoding="utf-8"))["cells"]
        code = [[cell["cell_type"], "".join(cell["source"])] for cell in cells]
        entries.append(
            {
                "notebook": step.notebook.stem,
                "parameters": values,
                "files": stamps,
                "source": digest(code),
            }
        )
    sources = {str(path.relative_to(PACKAGE)): path.read_bytes() for path in PACKAGE.rglob("*.py")}
    return {"steps": entries, "package": digest(sources)}


def _stamp(value: object) -> str | None:
    """sha256 of what a text parameter points at: changed data or a changed builder is a new run.

    Of a file and of a builder the content, with all of the builder's package; of a folder the
    names, sizes and times of its files. Caveat: what a builder outside of any package imports is
    not seen.
    """
    if not isinstance(value, str) or not 0 < len(value) < 1000 or "\0" in value:
        return None
    path = Path(value)
    if BUILDER.fullmatch(value):
        path = _file_of_builder(value) or path
        while (path.parent / "__init__.py").is_file():
            path = path.parent
        if path.is_dir():
            files = path.rglob("*.py")
            return digest({str(file.relative_to(path)): store.sha256_of(file) for file in files})
    if path.is_file():
        return store.sha256_of(path)
    if not path.exists():
        return None
    stats = {}
    for file in sorted(Path(top, name) for top, _, names in os.walk(path) for name in names):
        if file.exists():
            stat = file.stat()
            stats[str(file.relative_to(path))] = (stat.st_size, stat.st_mtime_ns)
    return digest(stats)


def _file_of_builder(builder: str) -> Path | None:
    """The file of `module:function`, looked for as a kernel will look, in the working directory
    first, without importing the package that it is in: that may be slow, and may fail outside of a
    kernel.
    """
    top, *rest = builder.partition(":")[0].split(".")
    sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    finally:
        sys.path.pop(0)
    for name in rest:
        places = spec.submodule_search_locations if spec is not None else None
        spec = PathFinder.find_spec(name, places or [])
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return Path(spec.origin)


def _file_names(steps: list[Step]) -> list[str]:
    """01_train.ipynb, and 01_train-2.ipynb where a notebook runs twice."""
    files = []
    counts: dict[str, int] = {}
    for step in steps:
        stem = step.notebook.stem
        counts[stem] = counts.get(stem, 0) + 1
        suffix = f"-{counts[stem]}" if counts[stem] > 1 else ""
        files.append(f"{stem}{suffix}.ipynb")
    return files


def _is_intact(folder: store.Folder, file: str) -> bool:
    """Finished and unaltered; says so when a recorded file no longer matches its checksum."""
    if file not in folder.files():
        return False
    if not folder.intact(file):
        say(f"{short(folder.path / file)} is missing, truncated or altered: making it again")
        return False
    return True


def _clip(message: str) -> str:
    """On one line, and not longer than a screenful."""
    line = " ".join(message.split())
    return line if len(line) <= 600 else line[:600] + " ..."
