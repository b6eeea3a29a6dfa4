"""Pools trained by the workers of an engine: what a worker does, and how this process looks on.

The unit is a group of rows, one part of the store. A worker reads everything from the pool's folder, which all must see; it
holds the unit's lock while it trains, so no unit is trained twice at a time, and one that is lost goes on from its part file.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
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
from mia_nb.store import Folder, no_link, open_file
from mia_nb.training.engines import Engine, map, own_gpu
from mia_nb.training.execution import choose, device_of, execution
from mia_nb.training.work import (
    Progress,
    bare_plan,
    load_images,
    load_plan,
    read_execution,
    recipe_of,
    share,
    threads,
    train_unit,
    unfinished,
    unit_name,
)
from mia_nb.types import Images

ATTEMPTS = 3  # times in a row that workers may be lost without anything having got further
TOLD = 0.5  # seconds between two reports of a worker
PATIENCE = 60.0  # seconds without a report until this process says that nobody has begun
ALONE = (
    threading.Lock()
)  # torch's threads and global generator are the process's: one unit at a time, whoever asks
LOADED: dict[str, str] = {}  # module of a builder -> hash of the source that this process imported


class Context(NamedTuple):
    """What every worker is told."""

    folder: str
    driver: str  # whose process asks: host and number
    token: str  # a file that is there as long as that process wants the work
    places: list[str]  # where it finds modules
    version: str


class Unwanted(Exception):
    """The process that asked for this work has gone on to other things."""


def decide(engine: Engine, folder: Folder, device: str | None, strategy: str) -> dict:
    """How the pool of this folder is made, as `execution` records it; chosen by a worker, whose machine it is about."""
    if device is None and folder.intact(
        "execution.json"
    ):  # begun before: its jobs want what the pool was begun on
        device = read_execution(folder)["device"]
    gpu = None if device is None else device_of(device, here=False).type == "cuda"

    def missing(context: Context) -> list[tuple]:
        return [] if asked else [(context, device, strategy, engine.workers)]

    asked: list[bool] = []
    _persist(engine, folder, begin_there, missing, gpu=gpu, done=lambda: asked.append(True))
    return read_execution(folder)


def train_on(
    engine: Engine, folder: Folder, each: list[list[int]], checkpoint: float, progress: Progress
) -> None:
    """Train the units that are missing, wherever; a worker that is lost costs what it did since its unit's last part file.

    Raises what a worker complains of, and RuntimeError where workers are lost again and again and nothing gets further; what
    is finished is kept. On an interrupt the workers stop after the epoch that they are in.
    """
    gpu = torch.device(read_execution(folder)["device"]).type == "cuda"

    def missing(context: Context) -> list[tuple]:
        return [(context, rows, checkpoint) for rows in each if unfinished(folder, rows)]

    try:
        _persist(
            engine,
            folder,
            train_there,
            missing,
            gpu=gpu,
            progress=_reports(engine, folder, each, progress),
        )
    finally:
        for rows in each:
            _report(folder, rows).unlink(missing_ok=True)


def _persist(
    engine: Engine,
    folder: Folder,
    fn: Callable,
    missing: Callable,
    *,
    done=lambda: None,
    progress=lambda: None,
    gpu=None,
) -> None:
    """Map fn over what is missing until nothing is; workers may be lost, as long as something gets further."""

    def look() -> None:
        progress()
        if (
            token.exists() and time.time() - token.stat().st_mtime > 600
        ):  # or it would be swept as left behind
            token.touch()

    token = folder.path / f".tmp-wanted-{platform.node()}-{os.getpid()}-{time.monotonic_ns()}"
    driver = f"{platform.node()} {os.getpid()}"
    context = Context(
        str(folder.path),
        driver,
        str(token),
        [path or os.getcwd() for path in sys.path],
        __version__,
    )
    token.touch()
    try:
        attempts, before, reason = 0, None, ""
        while todo := missing(context):
            if (now := (len(todo), sorted(folder.files()))) != before:
                attempts, before = 0, now
            if attempts == ATTEMPTS:
                raise RuntimeError(
                    f"{engine.name} lost its workers {ATTEMPTS} times in a row ({reason}): what is finished is kept; see the "
                    "engine's log, or make a new executor, then run the same again"
                )
            attempts += 1
            if lost := map(engine, fn, todo, gpu=gpu, progress=look):
                reason = f"{type(lost[-1]).__name__}: {' '.join(str(lost[-1]).split())[:300]}"
                print(
                    f"{engine.name} lost {len(lost)} of its workers' tasks ({reason}); asking again for what is missing",
                    file=sys.stderr,
                )
            else:
                reason = "no worker says why"
                done()
    finally:
        token.unlink(missing_ok=True)


def _told(fn: Callable) -> Callable:
    """fn in a worker: it is told where it is, and what it raises comes back in words that every engine can carry."""

    @functools.wraps(fn)
    def told(context: Context, *args) -> str | None:
        context = Context(*context)
        try:
            with ALONE:
                if not Path(context.token).exists() and Path(context.folder).exists():
                    return None  # it was asked for by a process that has gone on
                sys.path += [place for place in context.places if place not in sys.path]
                fn(_checked(context), context, *args)
        except Unwanted:
            return None
        except Exception as error:
            traceback.print_exc()
            Path(context.token).unlink(missing_ok=True)  # the others need not go on
            kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__
            kind = f"OSError {error.errno}" if isinstance(error, OSError) and error.errno else kind
            return f"{kind}: worker on {platform.node()}: {error}"
        return None

    del told.__wrapped__  # Ray would count the arguments of fn
    return told


def _checked(context: Context) -> Folder:
    """The pool's folder as a worker sees it; ValueError where it sees none, or computes with other code."""
    folder = Folder(Path(context.folder))
    if context.version != __version__:
        raise ValueError(
            f"mia_nb is {__version__} there and {context.version} here: install the same on all workers"
        )
    if not folder.has("recipe.json"):
        raise ValueError(
            f"it sees no {context.folder}: keep results on a file system that all workers share (--results)"
        )
    recipe = recipe_of(folder)
    name = models.architecture(recipe.model, recipe.model_args)
    if ":" in name:
        module, wanted = name.partition(":")[0], folder.record.get("builder", "")
        if LOADED.get(module, wanted) != wanted:  # edited since this process imported it
            package = module.partition(".")[0]
            for loaded in [
                one for one in sys.modules if one == package or one.startswith(package + ".")
            ]:
                del sys.modules[loaded]
        importlib.invalidate_caches()
        if models.source(recipe.model, recipe.model_args) != wanted:
            raise ValueError(
                f"the code of {name} is another one there: all workers must see the same files"
            )
        LOADED[module] = wanted
    return folder


def _take_gpu(context: Context, device: torch.device | None) -> None:
    """One GPU for a worker's process that may need one; the process that asked keeps what it has."""
    if (
        device is None or device.type == "cuda"
    ) and context.driver != f"{platform.node()} {os.getpid()}":
        own_gpu()


@_told
def begin_there(
    folder: Folder, context: Context, device: str | None, strategy: str, workers: int
) -> None:
    """A worker's part of `decide`."""
    _take_gpu(context, device and torch.device(device))
    plan = bare_plan(folder, _images(folder.path))
    root = folder.path.parent
    # one thread: a machine's other cores have workers of their own
    execution(
        folder,
        device,
        strategy,
        lambda: choose(plan, device, strategy, workers, root=root) | {"threads": 1},
    )


@_told
def train_there(folder: Folder, context: Context, rows: list[int], checkpoint: float) -> None:
    """A worker's part of `train_on`: one unit. ValueError where it cannot go on as the pool was begun."""
    begun = read_execution(folder)
    _take_gpu(context, torch.device(begun["device"]))
    if (here := torch.__version__.split("+")[0]) != begun.get("torch"):
        raise ValueError(
            f"torch is {here} there, and the pool was begun with {begun['torch']}: install that"
        )
    if begun["device"].startswith("cuda") and not torch.cuda.is_available():
        raise ValueError("it has no GPU, and the pool was begun on one")
    plan, how = load_plan(folder, _images(folder.path))
    at, written = {}, 0.0

    def progress(some: list[int], epoch: int, loss: float) -> None:
        nonlocal written
        at.update(dict.fromkeys(some, epoch))
        if (now := time.monotonic()) - written > TOLD or epoch == plan.recipe.epochs:
            with open(_report(folder, rows), "w", opener=no_link) as file:
                json.dump([loss, list(at.items())], file)
            written = now
            if not Path(context.token).exists():
                raise Unwanted

    with threads(how["threads"]):
        share(
            folder,
            [rows],
            unfinished,
            lambda rows: train_unit(folder, plan, rows, checkpoint, progress),
        )


@functools.lru_cache(maxsize=1)
def _images(path: Path) -> Images:
    """A pool's images, once for all units that a worker's process trains."""
    return load_images(Folder(path), shared=True)


def _report(folder: Folder, rows: list[int]) -> Path:
    """Where a worker says how far its rows are; a temporary name, so that what is left behind gets swept."""
    return folder.path / f".tmp-progress-{unit_name(rows)}"


def _reports(
    engine: Engine, folder: Folder, each: list[list[int]], progress: Progress
) -> Callable[[], None]:
    """Pass on what the workers said since the last look; say once if nobody says anything."""
    seen: dict[int, int] = {}
    begun, silent = time.monotonic(), [True]

    def look() -> None:
        for rows in each:
            with (
                contextlib.suppress(OSError, ValueError),
                open_file(_report(folder, rows)) as file,
            ):  # none yet, or half of it
                loss, at = json.load(file)
                for m, epoch in at:
                    if seen.get(m) != epoch:
                        progress([m], epoch, loss)
                        seen[m] = epoch
        if silent[0] and not seen and time.monotonic() - begun > PATIENCE:
            silent[0] = False
            what = f"no worker of {engine.name} has trained an epoch after {PATIENCE:.0f} s"
            print(
                f"{what}: is there one, or a queue, or an epoch that long? Waiting on",
                file=sys.stderr,
            )

    return look
