"""Units of a pool trained by the processes of a joblib backend: loky, Dask or Ray.

A unit is one model, or one group of stacked models. A worker reads everything from the pool's
folder and writes its results there, so that only row numbers are sent to it. It holds the unit's
lock while it trains: no unit is trained twice at the same time, and one whose worker died is
resumed from its part file. A function whose name ends in _there runs in a worker.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import filelock
import torch
from joblib import Parallel, delayed

from mia_nb import __version__, models
from mia_nb.checks import quantity
from mia_nb.store import Folder
from mia_nb.training.backends import error_of_lost_worker
from mia_nb.training.execution import TORCH, read_execution
from mia_nb.training.machine import device_of, give_freed_memory_back
from mia_nb.training.placing import title
from mia_nb.training.plans import Plan
from mia_nb.training.pool import Pool, open_pool
from mia_nb.training.progress import Progress, training_bar
from mia_nb.training.reports import Reporter, Unwanted, passed_on
from mia_nb.training.saving import REPORTS
from mia_nb.training.work import units, work
from mia_nb.types import Images

ROUNDS = 4  # how often missing units are handed out before the training gives up
# torch's threads and its global generator belong to the process: a worker with several threads
# trains one unit at a time
ONE_AT_A_TIME = threading.Lock()


class Order(NamedTuple):
    """What a worker must know to train units of a pool."""

    folder: str  # the pool's
    reports: str  # the folder of progress reports
    checkpoint: float  # seconds between part files
    version: str  # of this package
    builders: str  # modules that may build networks
    path: tuple[str, ...]  # sys.path of the calling process


def train_rows(
    pool: Pool,
    plan: Plan,
    rows: list[int],
    how: dict,
    *,
    backend: str,
    count: int,
    checkpoint: float,
    progress: bool,
) -> None:
    """Train these rows of a pool, in this process or by workers.

    Parameters:
        pool: its folder has the images and masks.
        plan: the pool's, on the CPU.
        rows: the missing ones.
        how: the execution, which is recorded already.
        backend, count: the backend that is `started`, and how many units it trains at a time.
        checkpoint, progress: as for `train_pool`.

    Raises:
        ValueError, RuntimeError: as `_train_units`.
    """
    all_units = units(list(range(len(pool.member))), how["group"])
    todo = [unit for unit in all_units if set(unit) & set(rows)]
    count = min(count, len(todo))
    rows_todo = [m for unit in todo for m in unit]
    epochs = plan.recipe.epochs
    with training_bar(title(plan.recipe), rows_todo, epochs, how, count, progress) as report:
        if backend == "loky" and count <= 1:
            work(pool, plan, how, todo, checkpoint=checkpoint, progress=report)
        else:
            _train_units(pool, todo, backend, count, checkpoint, report)


def check_workers(pool: Pool, device: str | None, count: int) -> None:
    """ValueError where workers elsewhere cannot train this pool; one of the `count` is asked.

    Parameters:
        pool: its folder has the images and masks.
        device: as for `train_pool`.
    """
    order = _order(pool.folder)
    wanted = {"torch": TORCH, "device": str(device_of(device, here=False))}
    Parallel(n_jobs=count)([delayed(_check_there)(order, wanted)])


def _train_units(
    pool: Pool,
    todo: list[list[int]],
    backend: str,
    workers: int,
    checkpoint: float,
    progress: Progress,
) -> None:
    """Train the missing units by the workers that are `started`.

    A lost worker is replaced, and the units without a result are handed out again. An interrupt
    stops workers of loky at once, others after their present epoch.

    Parameters:
        pool: of the units.
        todo: rows of each unit.
        backend, workers: the backend, and how many of its workers train.
        checkpoint: seconds between part files.
        progress: called with the workers' reports, from another thread.

    Raises:
        RuntimeError: workers were lost again and again; finished models are kept.
        ValueError: the error of a worker.
    """
    folder = pool.folder
    worker_lost = error_of_lost_worker(backend)
    with tempfile.TemporaryDirectory(
        prefix=REPORTS, dir=folder.path, ignore_cleanup_errors=True
    ) as reports:
        order = _order(folder, reports, checkpoint)
        with passed_on(Path(reports), progress):
            for number in range(ROUNDS):
                missing = [rows for rows in todo if pool.unfinished(rows)]
                if not missing:
                    break
                wait = number > 0  # only later rounds wait for units that another run is training
                jobs = [delayed(_train_there)(order, rows, wait) for rows in missing]
                try:
                    Parallel(n_jobs=workers, batch_size=1)(jobs)
                except worker_lost as error:
                    reason = " ".join(str(error).split())[:300]
                    print(
                        f"a worker died ({reason}): training again what is missing",
                        file=sys.stderr,
                    )
    if any(pool.unfinished(rows) for rows in todo):
        raise RuntimeError(
            f"workers were lost in {quantity(ROUNDS, 'round')} of training: take fewer of them if"
            " memory is short. What is finished is kept, and the same call goes on from there"
        )


def _order(folder: Folder, reports: str = "", checkpoint: float = 0.0) -> Order:
    """The order for workers of this pool."""
    return Order(
        folder=str(folder.path.absolute()),
        reports=str(Path(reports).absolute()),
        checkpoint=checkpoint,
        version=__version__,
        builders=os.environ.get(models.ALLOWED, ""),
        path=tuple(place or os.getcwd() for place in sys.path),
    )


def _pool_there(order: Order) -> Pool:
    """The pool as a worker sees it; ValueError if it sees none, or has different code."""
    worker = f"the worker on {platform.node()}"
    folder = Folder(Path(order.folder))
    if order.version != __version__:
        raise ValueError(
            f"mia_nb is {__version__} for {worker}, and {order.version} where it is called: install"
            " the same version on all workers"
        )
    if not folder.has("recipe.json"):
        raise ValueError(
            f"{worker} sees no {folder.path}: keep results on a file system that all workers share"
        )
    sys.path += [place for place in order.path if place not in sys.path]
    models.allow(*order.builders.split(","))
    pool = open_pool(folder)
    recipe = pool.recipe
    if models.source(recipe.model, recipe.model_args) != pool.record.get("builder", ""):
        raise ValueError(
            f"{worker} has other code of {recipe.model}: all workers must see the same files, and"
            " be restarted when they change"
        )
    return pool


def _check_there(order: Order, wanted: dict) -> None:
    """A worker's part of `check_workers`."""
    with ONE_AT_A_TIME:
        _pool_there(order)
        _check_machine(wanted)


def _check_machine(begun: dict) -> None:
    """ValueError for a worker without the torch, or without the GPU, of this execution."""
    worker = f"the worker on {platform.node()}"
    if begun.get("torch") != TORCH:
        raise ValueError(
            f"torch is {TORCH} for {worker}, and the pool was begun with {begun.get('torch')}:"
            " install that"
        )
    if begun["device"].startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"{worker} has no GPU, and the pool was begun on one")


def _train_there(order: Order, rows: list[int], wait: bool) -> None:
    """A worker's part of `_train_units`: train one unit.

    Parameters:
        order: names the pool.
        rows: of the unit.
        wait: whether to wait for a unit that another process is training.
    """
    with ONE_AT_A_TIME, contextlib.suppress(Unwanted):
        pool = _pool_there(order)
        begun = read_execution(pool.folder)
        _check_machine(begun)
        try:
            with _gpu_of_its_own(pool.folder, begun["device"]):
                work(
                    pool,
                    pool.plan(_images_of(order.folder), pool.parent),
                    begun,
                    [rows],
                    checkpoint=order.checkpoint,
                    progress=Reporter(Path(order.reports), pool.recipe.epochs),
                    wait=wait,
                )
        finally:
            give_freed_memory_back()


@lru_cache(maxsize=1)
def _images_of(folder: str) -> Images:
    """A pool's images, read once for all units that a process trains. They never change: the
    folder's name holds their key.
    """
    return open_pool(Folder(Path(folder))).mapped_images()


@contextlib.contextmanager
def _gpu_of_its_own(folder: Folder, device: str) -> Iterator[None]:
    """Compute on a GPU of this machine that no other worker of the pool uses, if there is one.

    Parameters:
        folder: of the pool.
        device: of the pool; nothing is chosen if it is no GPU, or one with a number.
    """
    if device != "cuda" or torch.cuda.device_count() == 1:
        yield
        return
    with contextlib.ExitStack() as stack:
        for number in range(torch.cuda.device_count()):
            lock = folder.lock(f"gpu_{platform.node()}_{number}", timeout=0)
            try:
                stack.enter_context(lock)
            except filelock.Timeout:
                continue
            torch.cuda.set_device(number)
            break
        yield
