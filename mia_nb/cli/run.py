"""Run notebooks: skip those that are done, record the status of each, and keep the report up to
date.
"""

from __future__ import annotations

import contextlib
import os
import time
from argparse import Namespace
from datetime import UTC, datetime
from pathlib import Path

import filelock

from mia_nb import __version__, escape, store
from mia_nb.cli import notebooks
from mia_nb.cli.executing import Failed, Killed, execute
from mia_nb.cli.notebooks import Step
from mia_nb.cli.report import PROVENANCE, REPORT, machine_facts, report, verdict_lines
from mia_nb.cli.run_key import fingerprint, run_recipe, values_in_key
from mia_nb.cli.say import say, short
from mia_nb.cli.status import STATUS, is_whole, lost_figures, read_status
from mia_nb.parameters import changed, read_parameters, refuse_values
from mia_nb.types import Recipe

MOST_LINES = 8  # printed about notebooks whose figures failed
# fields of a recipe that name something, which may not exist
NAMING = {"model", "model_args", "defense", "optimizer", "loss"}


def _workers(args: Namespace) -> list[tuple[str, str]]:
    """--workers and --backend as parameters of a notebook."""
    options = {"workers": args.workers, "backend": args.backend}
    return [(name, str(value)) for name, value in options.items() if value is not None]


def command(args: Namespace) -> None:
    """`mia-nb run`: run the named notebook or preset, and print the paths of its notebooks and
    report.
    """
    parameters = [*notebooks.name_value_pairs(args.parameter), *_workers(args)]
    folders = notebooks.folders(args.notebooks)
    target, preset = notebooks.resolve(args.notebook, args.preset, folders)
    steps = notebooks.plan(target, preset, parameters, folders)
    name = steps[0].notebook.stem
    about = ""
    if target == "all":
        name = Path(preset).stem
        about = notebooks.about(preset, folders)
    folder = run(name, steps, args.results, force=args.force, about=about)
    for line in verdict_lines(folder):
        say(line)
    executed = [file for file in folder.files() if file.endswith(".ipynb")]
    for file in [*executed, REPORT]:
        say(f"  {os.path.relpath(folder.path / file)}")
    lost = lost_figures(folder)
    if lost:
        advice = "all else is there; the same command runs these notebooks again"
        raise Failed("\n  ".join(["figures failed", *lost[:MOST_LINES], advice]))


def run(
    name: str, steps: list[Step], results: str | Path, *, force: bool = False, about: str = ""
) -> store.Folder:
    """Run the steps in order into results/run-NAME-KEY, skipping those done before; return the
    folder.

    The folder's key is a digest of content: parameters, the notebooks' code, the package's code,
    the files that parameters name. status.json holds the status of each step (running, done,
    failed, killed). A step in which only figures failed is done; its `error` says which figures,
    and the next run repeats it. The report is written after every finished notebook.

    Parameters:
        name: of the run
        steps: the notebooks with their parameters, in order
        results: folder of results
        force: run steps again that are done
        about: a sentence on top of the report

    Raises:
        ValueError: for bad input, and where another process is running the same steps.
        Failed: where a notebook did not finish.
    """
    results = Path(results).absolute()
    for step in steps:
        _refuse_parameters(step, results)
    recipe = run_recipe(steps, results)
    folder = store.open_folder(
        results, "run", name, store.content_key(recipe), recipe, version=__version__
    )
    files = _file_names(steps)
    if not force and _is_finished(folder, files):
        _say_cached(folder, files)
        return folder
    with contextlib.ExitStack() as locks:  # only the wait for the lock is inside `try`
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
    record = {}
    if not force and _is_intact(folder, STATUS):
        record = _entry_of_each_file(folder)
    done = [file for file in steps if is_whole(record.get(file, {})) and _is_intact(folder, file)]
    todo = [file for file in steps if file not in done]
    facts = machine_facts()
    if about:
        facts["about"] = about
    folder.write_json(PROVENANCE, facts)
    for (file, step), entry in zip(steps.items(), recipe["steps"], strict=True):
        if file in done:
            say(f"{escape.terminal(file):<22} cached")
            continue
        _run_step(step, file, folder, record, force)
        _refuse_changed(step, entry["files"], folder, file)
        page = report(folder)
        if len(todo) > 1 and file == todo[0]:
            say(f"results so far, on a page that grows: {short(page)}")
    if not todo:
        report(folder)


def _is_finished(folder: store.Folder, files: list[str]) -> bool:
    """Whether all of a run is there and intact."""
    if not all(map(folder.intact, [STATUS, REPORT, *files])):
        return False
    record = _entry_of_each_file(folder)
    return all(is_whole(record.get(file, {})) for file in files)


def _entry_of_each_file(folder: store.Folder) -> dict[str, dict]:
    """The entries of status.json by the names of their notebooks."""
    return {entry["file"]: entry for entry in read_status(folder)}


def _say_cached(folder: store.Folder, files: list[str]) -> None:
    record = _entry_of_each_file(folder)
    seconds = sum(record[file]["seconds"] for file in files)
    say(f"cached: {short(folder.path)} ({seconds:.0f} s when it ran); --force runs it again")


def _refuse_parameters(step: Step, results: Path) -> None:
    """Raise ValueError, before a kernel starts, for parameters that the notebook's own checks
    refuse or that name a network, a defense or a data set that does not exist.
    """
    refuse_values(step.notebook, step.parameters | {"results": str(results)})
    differing = changed(read_parameters(step.notebook), step.parameters)
    if NAMING & differing.get("recipe", {}).keys():
        _refuse_unknown_network(Recipe(**step.parameters["recipe"]))
    dataset = differing.get("source", {}).get("dataset")
    if dataset is not None and not Path(dataset).expanduser().exists():
        from mia_nb import data

        if dataset not in data.DATASETS and not dataset.startswith("synthetic"):
            data.load(**step.parameters["source"])  # refuses it


def _refuse_unknown_network(recipe: Recipe) -> None:
    """Raise ValueError for a recipe whose network, defense or training does not exist."""
    from mia_nb import models  # imports torch, which nothing else here needs
    from mia_nb.training.placing import complete

    recipe = complete(recipe)
    # the user named these builders: they may be imported
    models.allow(*models.builders_of(recipe.model, recipe.model_args))
    if ":" not in recipe.model and recipe.model not in models.BASES:
        size = {"in_channels": 3, "num_classes": 2, "size": 32, "seed": 0}
        models.build(recipe.model, recipe.model_args, **size)


def _run_step(step: Step, file: str, folder: store.Folder, record: dict, force: bool) -> None:
    """Execute one notebook, keeping `record` and status.json up to date whatever happens."""
    started = time.monotonic()
    entry = {
        "notebook": step.notebook.stem,
        "file": file,
        "status": "running",
        "error": None,
        "seconds": 0.0,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }

    def write(status: str, error: str | None = None) -> None:
        now = {"status": status, "error": error, "seconds": round(time.monotonic() - started, 2)}
        record[file] = entry | now
        folder.write_json(STATUS, {"steps": list(record.values())})

    write("running")
    folder.remove(file)
    try:
        lost = execute(
            step.notebook,
            folder.path / file,
            _injected_parameters(step, folder.path.parent, force),
        )
        folder.add(file)
        write("done", "; ".join(lost) or None)
    except KeyboardInterrupt:
        write("killed", "interrupted")
        raise
    except (ValueError, Failed, OSError) as error:
        with contextlib.suppress(OSError):  # on a full disk this fails too: show the first error
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


def _refuse_changed(
    step: Step, fingerprints: dict[str, str], folder: store.Folder, file: str
) -> None:
    """Raise ValueError where a file that a parameter names changed while the notebook ran: the
    results would be stored under the key of the old file.
    """
    for name, value in values_in_key(step.parameters).items():
        before = fingerprints.get(name)
        if before and Path(str(value)).is_file() and fingerprint(value) != before:
            folder.remove(file)
            raise ValueError(f"{name}={value} was changed while {file} ran: run it again")


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
    """Whether a file is recorded and matches its checksum; prints a line if it does not match."""
    if file not in folder.files():
        return False
    if not folder.intact(file):
        say(f"{short(folder.path / file)} is missing, truncated or altered: making it again")
        return False
    return True
