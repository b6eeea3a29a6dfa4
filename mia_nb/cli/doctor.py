"""Is the installation sound, can results be written and notebooks run, is every stored file what it
was?
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mia_nb import __version__, store
from mia_nb.cli.say import say

MEASURABLE = 0.01  # seconds that a matrix product should take to be timed
PACKAGES = (
    "torch torchvision numpy pandas scipy scikit-learn plotly papermill nbclient ipykernel"
    " jupyterlab ipywidgets anywidget"
)


def examine(args) -> int:
    """`mia-nb doctor`: print one line per check; 1 if any failed, else 0."""
    checks: dict[str, Callable[[], str]] = {
        "mia_nb": lambda: f"{__version__}, Python {platform.python_version()} at {sys.executable}",
        "packages": lambda: ", ".join(
            f"{name} {importlib.metadata.version(name)}" for name in PACKAGES.split()
        ),
        "torch": _torch,
        "speed": _speed,
        "torchvision": _torchvision,
        "results": lambda: _writable(Path(args.results)),
        "kernel": _kernel,
        "browser": _browser,
        "store": lambda: _store(args.results),
    }
    failed = 0
    for name, check in checks.items():
        try:
            say(f"{name:<12} {check()}")
        except (
            Exception
        ) as error:  # a sick installation may raise anything; the other checks still count
            failed += 1
            say(f"{name:<12} WRONG: {error}")
    return 1 if failed else 0


def _torch() -> str:
    import torch

    if torch.cuda.is_available():
        where = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    else:
        where = f"no CUDA device, {torch.get_num_threads()} CPU threads"
    return f"{torch.__version__} (CUDA build {torch.version.cuda or 'none'}): {where}"


def _speed() -> str:
    """Memory, what may be captured and compiled, and how fast a matrix product is, by dtype."""
    import torch

    cuda = torch.cuda.is_available()
    device, largest = ("cuda", 8192) if cuda else ("cpu", 1024)
    wait = torch.cuda.synchronize if cuda else lambda: None
    compiler = cuda or any(map(shutil.which, ("c++", "g++", "clang++", "cl")))
    words = [
        f"{torch.cuda.mem_get_info()[0] / 2**30:.1f} GiB free" if cuda else "",
        f"compiler {'there' if compiler else 'missing: no compiled steps'}",
    ]
    for dtype in (torch.float32, torch.bfloat16):
        size, seconds = 512, 0.0
        while seconds < MEASURABLE and size < largest:
            size *= 2
            a = torch.randn(size, size, device=device, dtype=dtype)
            product = partial(torch.mm, a, a)
            seconds = min(timeit.repeat(lambda work=product: (work(), wait()), number=1, repeat=3))
        name = str(dtype).removeprefix("torch.")
        words.append(f"{name} product of {size} x {size}: {2e-12 * size**3 / seconds:.3g} TFLOP/s")
    return ", ".join(filter(None, words))


def _torchvision() -> str:
    from mia_nb import _torchvision

    _torchvision.datasets()
    return "data sets load" + (
        " (its compiled operators do not fit this torch; not needed)"
        if _torchvision._declared
        else ""
    )


def _writable(results: Path) -> str:
    there = next(
        path for path in (results.absolute(), *results.absolute().parents) if path.exists()
    )
    with tempfile.TemporaryFile(dir=there):
        free = shutil.disk_usage(there).free / 1e9
    return f"{results.absolute()} can be written, {free:.1f} GB free"


def _kernel() -> str:
    import nbformat

    from mia_nb.cli import run

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder, "probe.ipynb")
        out = Path(folder, "out.ipynb")
        nbformat.write(
            nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import mia_nb")]), probe
        )
        run.execute(probe, out, {}, quiet=True)
    return f"runs a notebook in {time.monotonic() - start:.1f} s"


def _browser() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    return program or "no Chromium (only the browser tests need it)"


def _store(results: str) -> str:
    from mia_nb.cli import stored

    folders = store.folders(results)
    known = {folder.path for folder in folders}
    lost = [
        path.parent
        for path in Path(results).absolute().glob("*-*-*/manifest.jsonl")
        if path.parent not in known
    ]
    problems = [f"{path}: recipe.json is gone, so that nothing finds this result" for path in lost]
    for folder in folders:
        damaged = folder.verify()
        status = stored.status(folder)
        problems += damaged or [f"{folder.path}: {status}"] * status.startswith("damaged")
    if problems:
        shown = [
            *problems[:20],
            *([f"and {len(problems) - 20} more"] if len(problems) > 20 else []),
        ]
        raise ValueError("; ".join(shown) + "; repair with: mia-nb clean")
    return (
        f"{sum(len(folder.files()) for folder in folders)} files in {len(folders)} results, every"
        " checksum right"
    )
