"""Pools trained by the workers of an engine: what a worker does, and how this process looks on.

The unit is a group of rows, one part of the store. A worker reads everything from the pool's
folder, which all must see; it holds the unit's lock while it trains, so no unit is trained twice at
a time, and one that is lost goes on from its part file.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import math
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from mia_nb import __version__, models
from mia_nb.checks import refuse
from mia_nb.store import Folder, no_link, open_file
from mia_nb.training.engines import Engine, own_gpu, run
from mia_nb.training.execution import EXECUTION, choose, device_of, execution, resumed
from mia_nb.training.work import (
    TORCH,
    Progress,
    bare_plan,
    load_images,
    read_execution,
    recipe_of,
    unfinished,
    unit_name,
    work,
)
from mia_nb.types import Images

ATTEMPTS = 3  # times in a row that workers may be lost without anything having got further
REPORTED = 0.5  # seconds between two reports of a worker
PATIENCE = 60.0  # seconds without a report until this process says that nobody has begun
# torch's threads and global generator are the process's: one unit at a time, whoever asks
ALONE = threading.Lock()
LOADED: dict[str, str] = {}  # module of a builder -> hash of the source that this process imported


class Context(NamedTuple):
    """What every worker is told."""

    token: str  # a file in the pool's folder, there as long as the driver wants the work
    driver: str  # the process that wants it: host and number
    places: list[str]  # where that one finds modules
    version: str


class Unwanted(Exception):
    """The process that wanted this work has gone on to other things."""


def decide(engine: Engine, folder: Folder, device: str | None, strategy: str) -> dict:
    """How the pool of this folder is made, as `execution` records it; chosen by a worker, whose
    machine it is about.
    """
    gpu = None if device is None else device_of(device, here=False).type == "cuda"
    task = (begin_there, device, strategy, engine.workers)
    _persist(engine, folder, lambda: [] if folder.intact(EXECUTION) else [task], gpu=gpu)
    return resumed(folder, device, strategy, here=False)


def train_on(
    engine: Engine, folder: Folder, each: list[list[int]], checkpoint: float, progress: Progress
) -> None:
    """Train the units that are missing, wherever; a worker that is lost costs what it did since its
    unit's last part file.

    Raises what a worker complains of, and RuntimeError where workers are lost again and again and
    nothing gets further; what is finished is kept. On an interrupt the workers stop after the epoch
    that they are in.
    """
    gpu = torch.device(read_execution(folder)["device"]).type == "cuda"
    reports = _reports(engine, folder, each, progress)

    def missing() -> list[tuple]:
        left = [(train_there, rows, checkpoint) for rows in each if unfinished(folder, rows)]
        return left[: engine.limit]

    try:
        _persist(engine, folder, missing, gpu=gpu, progress=reports)
    finally:
        for rows in each:
            _report(folder, rows).unlink(missing_ok=True)


def _persist(
    engine: Engine,
    folder: Folder,
    missing: Callable[[], list[tuple]],
    *,
    gpu: bool | None,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Run the tasks that are missing until none is; workers may be lost, as long as something gets
    further.
    """
    driver = f"{platform.node()} {os.getpid()}"
    token = folder.path / f".tmp-wanted-{driver.replace(' ', '-')}-{time.monotonic_ns()}"
    places = [path or os.getcwd() for path in sys.path]
    context = Context(str(token), driver, places, __version__)

    def look() -> None:
        progress()
        # or it would be swept as left behind
        if token.exists() and time.time() - token.stat().st_mtime > 600:
            token.touch()

    token.touch()
    try:
        states, reason = [], ""
        while todo := missing():
            states.append((len(todo), sorted(folder.files())))
            if states.count(states[-1]) > ATTEMPTS:
                raise RuntimeError(
                    f"{engine.name} lost its workers {ATTEMPTS} times in a row ({reason}): what is"
                    " finished is kept; see the engine's log, or make a new executor, then run the"
                    " same again"
                )
            tasks, reason = [(context, *task) for task in todo], "no worker says why"
            if lost := run(engine, work_there, tasks, gpu=gpu, progress=look):
                reason = f"{type(lost[-1]).__name__}: {' '.join(str(lost[-1]).split())[:300]}"
                print(
                    f"{engine.name} lost {len(lost)} of its workers' tasks ({reason}); asking again"
                    " for what is missing",
                    file=sys.stderr,
                )
    finally:
        token.unlink(missing_ok=True)


def work_there(context: Context, task: Callable, *args) -> Exception | None:
    """task(folder, context, *args) in a worker; what it raises is returned, as an exception of a
    kind that every engine can carry.
    """
    context = Context(*context)
    token = Path(context.token)
    try:
        with ALONE, contextlib.suppress(Unwanted):
            # without its token the driver has gone on; without the folder, it is not seen here
            if token.exists() or not token.parent.exists():
                sys.path += [place for place in context.places if place not in sys.path]
                task(_checked(context), context, *args)
    except Exception as error:
        traceback.print_exc()
        token.unlink(missing_ok=True)  # the others need not go on
        text = f"worker on {platform.node()}: {error}"
        if isinstance(error, OSError) and error.errno:
            return OSError(error.errno, text)
        if isinstance(error, ValueError):
            return ValueError(text)
        return RuntimeError(f"{type(error).__name__}: {text}")


def _checked(context: Context) -> Folder:
    """The pool's folder as a worker sees it; ValueError where it sees none, or computes with other
    code.
    """
    folder = Folder(Path(context.token).parent)
    versions = f"mia_nb is {__version__} there and {context.version} here"
    share = "keep results on a file system that all workers share (--results)"
    reasons = {
        f"{versions}: install the same on all workers": context.version != __version__,
        f"it sees no {folder.path}: {share}": not folder.has("recipe.json"),
    }
    refuse(reasons)
    recipe = recipe_of(folder)
    name = models.architecture(recipe.model, recipe.model_args)
    module, _, function = name.partition(":")
    if function:  # a user's own
        wanted = folder.record.get("builder", "")
        if LOADED.get(module, wanted) != wanted:  # edited since this process imported it
            package = module.partition(".")[0]
            for loaded in [m for m in sys.modules if m.partition(".")[0] == package]:
                del sys.modules[loaded]
        importlib.invalidate_caches()
        if models.source(recipe.model, recipe.model_args) != wanted:
            raise ValueError(
                f"the code of {name} is another one there: all workers must see the same files"
            )
        LOADED[module] = wanted
    return folder


def _take_gpu(context: Context, device: str | None) -> None:
    """One GPU for a worker's process that may need one; the driver keeps what it has."""
    if device != "cpu" and context.driver != f"{platform.node()} {os.getpid()}":
        own_gpu()


def begin_there(
    folder: Folder, context: Context, device: str | None, strategy: str, workers: int
) -> None:
    """A worker's part of `decide`."""
    _take_gpu(context, device)
    plan = bare_plan(folder, _images(folder.path))
    root = folder.path.parent
    # one thread: a machine's other cores have workers of their own
    execution(
        folder,
        device,
        strategy,
        lambda: choose(plan, device, strategy, workers, root=root) | {"threads": 1},
    )


def train_there(folder: Folder, context: Context, rows: list[int], checkpoint: float) -> None:
    """A worker's part of `train_on`: one unit.

    ValueError where it cannot go on as the pool was begun.
    """
    begun, written = read_execution(folder), 0.0
    _take_gpu(context, begun["device"])
    with_torch = f"the pool was begun with {begun.get('torch')}: install that"
    blind = begun["device"].startswith("cuda") and not torch.cuda.is_available()
    reasons = {
        f"torch is {TORCH} there, and {with_torch}": begun.get("torch") != TORCH,
        "it has no GPU, and the pool was begun on one": blind,
    }
    refuse(reasons)

    def progress(some: list[int], epoch: int, loss: float) -> None:
        nonlocal written
        if time.monotonic() - written > REPORTED or epoch == epochs:
            with open(_report(folder, rows), "w", opener=no_link) as file:
                json.dump([some, epoch, loss], file)
            written = time.monotonic()
            if not Path(context.token).exists():
                raise Unwanted

    epochs, images = recipe_of(folder).epochs, _images(folder.path)
    work(folder, images=images, each=[rows], checkpoint=checkpoint, progress=progress)


@functools.lru_cache(maxsize=1)
def _images(path: Path) -> Images:
    """A pool's images, once for all units that a worker's process trains."""
    return load_images(Folder(path), shared=True)


def _report(folder: Folder, rows: list[int]) -> Path:
    """Where a worker says how far its rows are; a temporary name, so that what is left behind gets
    swept.
    """
    return folder.path / f".tmp-progress-{unit_name(rows)}"


def _reports(
    engine: Engine, folder: Folder, each: list[list[int]], progress: Progress
) -> Callable[[], None]:
    """Pass on what the workers reported last; say once if nobody reports anything."""
    due = time.monotonic() + PATIENCE

    def look() -> None:
        nonlocal due
        for rows in each:
            # none yet, or half of it
            with contextlib.suppress(OSError, ValueError), open_file(_report(folder, rows)) as file:
                progress(*json.load(file))
                due = math.inf
        if time.monotonic() > due:
            due = math.inf
            print(
                f"no worker of {engine.name} has trained an epoch after {PATIENCE:.0f} s: is there"
                " one, or a queue, or an epoch that long? Waiting on",
                file=sys.stderr,
            )

    return look
