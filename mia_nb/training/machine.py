"""The resources of a machine that a computation uses: device, threads and memory."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator

import torch

from mia_nb.checks import shown

# constants of glibc's malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


def device_of(device: str | torch.device | None, *, here: bool = True) -> torch.device:
    """The device of this name; None: a GPU if there is one.

    ValueError for an unknown name and, with `here`, for a GPU that this machine does not have.
    """
    if device is None or device == "":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        chosen = None
    if chosen is None or chosen.type not in ("cpu", "cuda"):
        raise ValueError(
            f"device={shown(device)}: wanted cpu, cuda or cuda:NUMBER; None takes a GPU where"
            " there is one"
        )
    count = torch.cuda.device_count()
    if here and chosen.type == "cuda" and (chosen.index or 0) >= count:
        raise ValueError(
            f"device={shown(device)}: this machine has {count} GPUs that PyTorch can use; take cpu,"
            " or None"
        )
    return chosen


def useful_threads(values: int, most: int | None = None) -> int:
    """Number of threads for querying a network with so many input values at a time: one for few
    values, since on a busy machine the threads of small operations mostly wait for each other
    (measured: ten times slower and more).
    """
    if values < 2**18:
        return 1
    return most or torch.get_num_threads()


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Set torch's number of threads inside the block; the bits of a result depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def enough_memory(advice: str) -> Iterator[None]:
    """ValueError of one line, with this advice, where a GPU has too little memory for the block."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ValueError(f"the GPU has too little memory: take {advice}") from error


def keep_freed_memory() -> None:
    """Make this process keep the memory that it frees for its next training step.

    The C library of Linux returns blocks above 32 MiB to the system at once. Taking them again
    costs the training of a spiking network 30 % of its time, that of others 3 %
    (benchmarks/RESULTS.md, 28 November 2026). On other systems nothing happens.
    """
    mallopt = _of_c_library("mallopt")
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)


def give_freed_memory_back() -> None:
    """Return the memory to the system that `keep_freed_memory` has kept: a waiting worker does not
    need it, and joblib replaces workers that have grown.
    """
    malloc_trim = _of_c_library("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _of_c_library(name: str) -> Callable | None:
    """A function of glibc; None with another C library."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), name, None)
