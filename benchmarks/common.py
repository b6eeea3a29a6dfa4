"""What all benchmarks share: a header that says where and when, interleaved rounds, medians with
their range, a table.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import math
import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("torch", "numpy", "scipy")


def options(doc: str) -> argparse.ArgumentParser:
    """A parser that knows --quick; the first paragraph of the script's docstring is its
    description.
    """
    parser = argparse.ArgumentParser(description=doc.split("\n\n")[0])
    parser.add_argument(
        "--quick",
        "--toy",
        action="store_true",
        help="toy sizes: shows that it runs, says nothing about speed",
    )
    return parser


def gpu() -> str | None:
    """Name of the first NVIDIA GPU; None where there is none."""
    if shutil.which("nvidia-smi") is None:
        return None
    found = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True
    )
    return (
        found.stdout.strip().splitlines()[0]
        if found.returncode == 0 and found.stdout.strip()
        else None
    )


def header() -> str:
    """Date, machine, load and versions, in one line."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        if hasattr(os, "sysconf")
        else math.nan
    )
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)
    machine = (
        f"{names[0] if names else platform.processor() or platform.machine()}, {cores} cores,"
        f" {memory:.0f} GiB"
    )
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return (
        f"{when}; {machine}, {gpu() or 'no GPU'}; Python {platform.python_version()}, {versions};"
        f" {load('before')}"
    )


def load(when: str) -> str:
    return f"load average {when} " + ", ".join(f"{value:.1f}" for value in os.getloadavg())


@contextlib.contextmanager
def report(title: str, quick: bool = False) -> Iterator[None]:
    """The header before, the load and the seconds after what is printed inside."""
    begun = time.perf_counter()
    print(
        f"**{title}**{' (toy sizes: no measurement)' if quick else ''}\n\n{header()}\n", flush=True
    )
    yield
    print(f"\n{load('after')}; {time.perf_counter() - begun:.0f} s in all", flush=True)


def row(cells: Sequence) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def head(columns: Sequence) -> None:
    row(columns)
    print(f"|{'---|' * len(columns)}", flush=True)


def table(columns: Sequence, rows: Sequence[Sequence]) -> None:
    """Print a markdown table with an empty line after it."""
    head(columns)
    for cells in rows:
        row(cells)
    print(flush=True)


def timed(run: Callable[[], object], wait: Callable[[], object] = lambda: None) -> float:
    """Seconds of one call, until `wait` says that a device is done."""
    wait()
    begun = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - begun


def rounds(
    runs: dict, count: int, *, warm: int = 1, wait: Callable[[], object] = lambda: None
) -> dict[object, list[float]]:
    """Seconds of each of `runs`, name -> function, in `count` interleaved rounds after `warm` that
    are not counted.
    """
    taken: dict = {name: [] for name in runs}
    for turn in range(warm + count):
        for name, run in runs.items():
            seconds = timed(run, wait)
            taken[name] += [seconds] if turn >= warm else []
    return taken


def spread(values: Sequence[float], form: str = ".2f", unit: str = "") -> str:
    """Median (lowest to highest)."""
    low, middle, high = (f"{f(values):{form}}" for f in (min, statistics.median, max))
    return f"{middle}{unit}" if low == high else f"{middle}{unit} ({low}-{high})"


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Of each round, over / under."""
    return [a / b for a, b in zip(over, under, strict=True)]


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Slope b of least squares in cost = a size^b."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(x, y).slope


def mean_interval(values: Sequence[float]) -> str:
    """Mean and half-width of its 95 % interval, Student's t with the values taken as independent,
    in per cent.
    """
    from scipy.stats import t

    count = len(values)
    half = (
        float(t.ppf(0.975, count - 1)) * statistics.stdev(values) / math.sqrt(count)
        if count > 1
        else math.nan
    )
    return f"{100 * statistics.mean(values):.2f} ± {100 * half:.2f} %"
