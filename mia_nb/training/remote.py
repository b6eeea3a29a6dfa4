"""Pools trained by the workers of an engine: what a worker does, and how this process looks on.

The unit is a group of rows, one part of the store. A worker reads everything from the pool's folder, which all must see; it
holds the unit's lock while it trains, so no unit is trained twice at a time, and one that is lost goes on from its part file.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from mia_nb import __version__
from mia_nb.store import Folder
from mia_nb.training.engines import Engine, map, own_gpu
from mia_nb.training.execution import choose, execution
from mia_nb.training.work import Progress, bare_plan, load_images, load_plan, share, threads, train_unit, unfinished, unit_name
from mia_nb.types import Images

ATTEMPTS = 3  # times that a unit is given to a worker
TOLD = 0.5  # seconds between two reports of a worker
ALONE = threading.Lock()  # torch's threads and global generator are the process's: one unit at a time, whoever asks
Context = tuple[str, list[str], str]  # what every worker is told: the folder, where modules are found, the version


def decide(engine: Engine, folder: Folder, device: str | None, strategy: str) -> dict:
    """How the pool of this folder is made, as `execution` records it; chosen by a worker, whose machine it is about."""
    gpu = None if device is None else torch.device(device).type == "cuda"
    _persist(engine, begin_there, lambda: [(_context(folder), device, strategy, engine.workers)], gpu=gpu)
    return folder.read_json("execution.json")


def train_on(engine: Engine, folder: Folder, each: list[list[int]], checkpoint: float, progress: Progress) -> None:
    """Train the units that are missing, wherever; a worker that is lost costs what it did since its unit's last part file.

    Raises what a worker complains of, and RuntimeError where units are lost again and again; what is finished is kept.
    """
    gpu = torch.device(folder.read_json("execution.json")["device"]).type == "cuda"

    def missing() -> list[tuple]:
        return [(_context(folder), rows, checkpoint) for rows in each if unfinished(folder, rows)]

    try:
        _persist(engine, train_there, missing, gpu=gpu, progress=_reports(folder, each, progress))
    finally:
        for rows in each:
            _report(folder, rows).unlink(missing_ok=True)


def _persist(engine: Engine, fn: Callable, missing: Callable[[], list[tuple]], **options) -> None:
    """Map fn over what is missing until nothing is, or was lost; a worker may be lost ATTEMPTS - 1 times."""
    for attempt in range(ATTEMPTS):
        if not (lost := map(engine, fn, missing(), **options)):
            return
        reason = f"{type(lost[-1]).__name__}: {' '.join(str(lost[-1]).split())[:300]}"
        last = attempt == ATTEMPTS - 1
        print(
            f"{engine.name} lost {len(lost)} of its workers' tasks ({reason})" + "; starting them again" * (not last),
            file=sys.stderr,
        )
    raise RuntimeError(
        f"{engine.name} lost its workers {ATTEMPTS} times ({reason}): what is finished is kept; see the engine's log, then run "
        "the same again"
    )


def _context(folder: Folder) -> Context:
    return str(folder.path), [path or os.getcwd() for path in sys.path], __version__


def _told(fn: Callable) -> Callable:
    """fn in a worker: it is told where it is, and what it raises comes back in words that every engine can carry."""

    @functools.wraps(fn)
    def told(context: Context, *args) -> str | None:
        path, places, version = context
        try:
            with ALONE:
                sys.path += [place for place in places if place not in sys.path]
                own_gpu()
                folder = Folder(Path(path))
                if version != __version__:
                    raise ValueError(f"mia_nb is {__version__} there and {version} here: install the same on all workers")
                if not folder.has("recipe.json"):
                    raise ValueError(f"it sees no {path}: keep results on a file system that all workers share (--results)")
                fn(folder, *args)
        except Exception as error:
            kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__
            return f"{kind}: worker on {platform.node()}: {error}"
        return None

    return told


@_told
def begin_there(folder: Folder, device: str | None, strategy: str, workers: int) -> None:
    """A worker's part of `decide`."""
    plan = bare_plan(folder, _images(folder.path))
    # one thread: a machine's other cores have workers of their own
    execution(
        folder, device, strategy, lambda: choose(plan, device, strategy, workers, root=folder.path.parent) | {"threads": 1}
    )


@_told
def train_there(folder: Folder, rows: list[int], checkpoint: float) -> None:
    """A worker's part of `train_on`: one unit. ValueError where it cannot go on as the pool was begun."""
    plan, how = load_plan(folder, _images(folder.path))
    if (here := torch.__version__.split("+")[0]) != how["torch"]:
        raise ValueError(f"torch is {here} there, and the pool was begun with {how['torch']}: install that")
    if plan.device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("it has no GPU, and the pool was begun on one")
    report, done, written = _report(folder, rows), 0, 0.0

    def progress(some: list[int], epochs: int, loss: float) -> None:
        nonlocal done, written
        done += len(some) * epochs
        if (now := time.monotonic()) - written > TOLD or done == len(rows) * plan.recipe.epochs:
            report.write_text(f"{done} {loss}")
            written = now

    with threads(how["threads"]):
        share(folder, [rows], unfinished, lambda rows: train_unit(folder, plan, rows, checkpoint, progress))


@functools.lru_cache(maxsize=1)
def _images(path: Path) -> Images:
    """A pool's images, once for all units that a worker's process trains."""
    return load_images(Folder(path), shared=True)


def _report(folder: Folder, rows: list[int]) -> Path:
    """Where a worker says how far it is: "model-epochs loss"; a temporary name, so that what is left behind gets swept."""
    return folder.path / f".tmp-progress-{unit_name(rows)}"


def _reports(folder: Folder, each: list[list[int]], progress: Progress) -> Callable[[], None]:
    """Pass on what the workers said since the last look."""
    seen = dict.fromkeys(range(len(each)), 0)

    def look() -> None:
        for number, rows in enumerate(each):
            with contextlib.suppress(OSError, ValueError):  # not there yet, or half written
                done, loss = _report(folder, rows).read_text().split()
                if int(done) != seen[number]:
                    progress(rows[:1], int(done) - seen[number], float(loss))
                    seen[number] = int(done)

    return look
