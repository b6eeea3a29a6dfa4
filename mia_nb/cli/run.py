"""Run notebooks through papermill: skip those that are done, record the status of each, and report
errors in few lines.
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
# parameters, in groups too, that change how or where a run is done and not its results: they are no
# part of its key
NOT_IN_KEY = ("force", "workers", "backend", "results", "data_root")
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
    """--workers and --backend as parameters of a notebook."""
    if args.workers is not None and not args.workers.isdigit():
        raise ValueError(
            f"--workers {args.workers}: wanted a whole number; where they run is said by"
            " --backend dask or ray"
        )
    options = {"workers": args.workers, "backend": args.backend}
    return [(name, value) for name, value in options.items() if value]


def command(args: Namespace) -> None:
    """`mia-nb run`: run what was named, and print where its notebooks and its report lie."""
    parameters = [*notebooks.given(args.parameter), *_workers(args)]
    folders = notebooks.folders(args.notebooks)
    target, preset = notebooks.resolve(args.notebook, args.preset, folders)
    steps = notebooks.plan(target, preset, parameters, folders)
    if args.estimate:
        from mia_nb.cli import hours  # brings torch

        return hours.estimate(steps)
    name = steps[0].notebook.stem
    about = ""
    if target == "all":
        name = Path(preset).stem
        about = notebooks.about(preset, folders)
    folder = run(name, steps, args.results, force=args.force, about=about)
    executed = [file for file in folder.files() if file.endswith(".ipynb")]
    paths = [f"  {os.path.relpath(folder.path / file)}" for file in [*executed, REPORT]]
    say(*verdict_lines(folder), *paths)
    if lost := lost_figures(folder):
        advice = "all else is there; the same command runs these notebooks again"
        raise Failed("\n  ".join(["figures failed", *lost[:MOST_LINES], advice]))


def run(
    name: str, steps: list[Step], results: str | Path, *, force: bool = False, about: str = ""
) -> store.Folder:
    """Run the steps in order into results/run-NAME-KEY, skipping those done before; return the
    folder.

    The folder's key is a digest of content: parameters, the notebooks' code, the package's code,
    the files that parameters name. The status of each step (running, done, failed, killed) is kept
    in status.json. A step in which only figures failed is done; its `error` says which figures, and
    the next run does it again. The report is there from the first finished notebook on.

    Parameters:
        name: of the run
        steps: the notebooks with their parameters, in order
        results: folder of results
        force: run what is done before again
        about: a sentence on top of the report

    Raises:
        ValueError: for bad input, and where another process is running the same.
        Failed: where a notebook did not finish.
    """
    results = Path(results).absolute()
    for step in steps:
        _refuse_parameters(step, results)
    recipe = _run_recipe(steps, results)
    folder = store.open_folder(
        results, "run", name, store.content_key(recipe), recipe, version=__version__
    )
    files = _file_names(steps)
    if not force and _is_finished(folder, files):
        return folder
    with contextlib.ExitStack() as locks:
        try:
            locks.enter_context(folder.lock("run", timeout=0))
        except filelock.Timeout:
            raise ValueError(
                f"{short(folder.path)} is being run by another process; wait for it to end"
            ) from None
        _run_what_is_missing(folder, dict(zip(files, steps, strict=True)), recipe, force, about)
    return folder


def _run_what_is_missing(
    folder: store.Folder, steps: dict[str, Step], recipe: dict, force: bool, about: str
) -> None:
    """Run the steps {file: step} that are not done or whose file is not intact. The report is
    written after each.
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


def _refuse_parameters(step: Step, results: Path) -> None:
    """Raise ValueError, before a kernel starts, for parameters that the notebook's own checks
    refuse or that name a network, a defense or a data set that does not exist.
    """
    refuse_values(step.notebook, step.parameters | {"results": str(results)})
    differing = changed(read_parameters(step.notebook), step.parameters)
    if differing.get("recipe", {}).keys() & {"model", "model_args", "defense", "optimizer", "loss"}:
        _refuse_unknown_network(Recipe(**step.parameters["recipe"]))
    dataset = differing.get("source", {}).get("dataset")
    if dataset is not None and not Path(dataset).expanduser().exists():
        from mia_nb import data

        if dataset not in data.DATASETS and not dataset.startswith("synthetic"):
            data.load(**step.parameters["source"])  # refuses it


def _refuse_unknown_network(recipe: Recipe) -> None:
    """Raise ValueError for a recipe whose network, defense or training does not exist."""
    from mia_nb import models  # brings torch, which nothing else here waits for
    from mia_nb.training.train import complete

    recipe = complete(recipe)
    # whoever runs the notebook named these builders: they may be imported
    models.allow(*models.builders_of(recipe.model, recipe.model_args))
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
            _injected_parameters(step, folder.path.parent, force),
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


def _injected_parameters(step: Step, results: Path, force: bool) -> dict:
    """The parameters that differ from the notebook's own, with absolute paths."""
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
    """Execute a notebook with papermill, in a kernel of this interpreter, and write it to `out`.

    Parameters:
        notebook: path of the notebook
        out: where the executed notebook is written, cell by cell
        parameters: {name: value}, injected into the notebook
        quiet: show no progress
        overall: the progress of the run that the notebook is a step of

    Returns:
        A line for each figure that failed.

    Raises:
        ValueError: for bad input, and for a full or write-protected disk.
        Failed: for any other error, in a few lines; Killed where the kernel died.
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
    template = str(out).replace("{", "{{").replace("}", "}}")  # papermill formats its paths
    for attempt in range(1, STARTS + 1):
        nbformat.write(node, out)
        try:
            papermill.execute_notebook(
                template,
                template,
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
    """A line for each figure that failed; [] where anything else failed. Where only figures did,
    papermill's marks of a failed run are taken out of the notebook.
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


def _key_parameters(parameters: dict) -> dict:
    """The parameters, those in groups included, that decide the results of a notebook."""
    kept = {name: value for name, value in parameters.items() if name not in NOT_IN_KEY}
    for name, group in kept.items():
        if isinstance(group, dict):
            kept[name] = {key: value for key, value in group.items() if key not in NOT_IN_KEY}
    return kept


def _with_groups(values: dict) -> dict:
    """The parameters and, beside them, those of the groups that may name files or builders."""
    return {**values, **values.get("source", {}), **values.get("recipe", {})}


def _refuse_changed(step: Step, entry: dict, folder: store.Folder, file: str) -> None:
    """Raise ValueError where a file that a parameter names changed while the notebook ran: its
    results would be stored as those of the file before the change.
    """
    for name, value in _with_groups(_key_parameters(step.parameters)).items():
        before = entry["files"].get(name)
        if before and Path(str(value)).is_file() and _fingerprint(value) != before:
            folder.remove(file)
            raise ValueError(f"{name}={value} was changed while {file} ran: run it again")


def _run_recipe(steps: list[Step], results: Path) -> dict:
    """The record that a run's key is a digest of: parameters, notebooks, the package's code and the
    files, builders and pools that parameters name.
    """
    entries = []
    for step in steps:
        values = _key_parameters(step.parameters)
        fingerprints = {}
        for name, value in _with_groups(values).items():
            if fingerprint := _fingerprint(value):
                fingerprints[name] = fingerprint
        if values.get("pool"):
            # a parameter may hold the first letters of a pool's key: the pool they name may change
            with contextlib.suppress(ValueError):
                pool = store.find(str(values["pool"]), results, "pool")
                fingerprints["pool"] = digest(pool.files())
        cells = parse_json(step.notebook.read_text(encoding="utf-8"))["cells"]
        code = [[cell["cell_type"], "".join(cell["source"])] for cell in cells]
        entries.append(
            {
                "notebook": step.notebook.stem,
                "parameters": values,
                "files": fingerprints,
                "source": digest(code),
            }
        )
    sources = {str(path.relative_to(PACKAGE)): path.read_bytes() for path in PACKAGE.rglob("*.py")}
    return {"steps": entries, "package": digest(sources)}


def _fingerprint(value: object) -> str | None:
    """Digest of the file, folder or builder that a parameter names, None if it names none: changed
    data or a changed builder is a new run.

    Read are the content of a file, all code of a builder's package, and of a folder the names,
    sizes and times of its files. Caveat: what a builder outside of any package imports is not read.
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
    files = []
    for folder, _, names in os.walk(path):
        files += [Path(folder, name) for name in names]
    stats = {}
    for file in sorted(files):
        if file.exists():  # a link may lead nowhere
            stat = file.stat()
            stats[str(file.relative_to(path))] = (stat.st_size, stat.st_mtime_ns)
    return digest(stats)


def _file_of_builder(builder: str) -> Path | None:
    """The file of `module:function`, found as a kernel would find it, in the working directory
    first. Its package is not imported: that may be slow, and may fail outside of a kernel.
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
