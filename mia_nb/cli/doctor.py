"""Checks of an installation: versions, devices, whether results can be written and notebooks run,
and whether every stored file is intact.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from mia_nb import __version__, store
from mia_nb.cli.say import say

PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "pandas",
    "scipy",
    "scikit-learn",
    "plotly",
    "papermill",
    "nbclient",
    "nbconvert",
    "ipykernel",
    "jupyterlab",
    "ipywidgets",
    "anywidget",
)
MOST_PROBLEMS = 20  # damaged or lost files that are named


def examine(args: Namespace) -> int:
    """`mia-nb doctor`: print one line per check; 1 if any failed, else 0."""
    checks: dict[str, Callable[[], str]] = {
        "mia_nb": lambda: f"{__version__}, Python {platform.python_version()} at {sys.executable}",
        "packages": _packages,
        "devices": _devices,
        "results": lambda: _writable(Path(args.results)),
        "kernel": _kernel,
        "store": lambda: _store(args.results),
    }
    failed = 0
    for name, check in checks.items():
        try:
            say(f"{name:<12} {check()}")
        except Exception as error:  # a broken installation may raise anything; go on
            failed += 1
            say(f"{name:<12} WRONG: {error}")
    return 1 if failed else 0


def _packages() -> str:
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)


def _devices() -> str:
    import torch

    if not torch.cuda.is_available():
        return f"no CUDA device, {torch.get_num_threads()} CPU threads"
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    free = torch.cuda.mem_get_info()[0] / 2**30
    return f"CUDA {torch.version.cuda}: {', '.join(names)}, {free:.1f} GiB free on the first"


def _writable(results: Path) -> str:
    results = results.absolute()
    existing = next(path for path in (results, *results.parents) if path.exists())
    with tempfile.TemporaryFile(dir=existing):
        free = shutil.disk_usage(existing).free / 1e9
    return f"{results} can be written, {free:.1f} GB free"


def _kernel() -> str:
    """Run a notebook that imports the package."""
    import nbformat

    from mia_nb.cli.executing import execute

    start = time.monotonic()
    cell = nbformat.v4.new_code_cell("import mia_nb")
    with tempfile.TemporaryDirectory() as folder:
        notebook = Path(folder, "probe.ipynb")
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), notebook)
        execute(notebook, Path(folder, "out.ipynb"), {}, quiet=True)
    return f"runs a notebook in {time.monotonic() - start:.1f} s"


def _store(results: str) -> str:
    """Read every stored file; ValueError that names the damaged and lost ones."""
    from mia_nb.cli import stored

    folders = store.folders(results)
    known = {folder.path for folder in folders}
    problems = []
    for manifest in Path(results).absolute().glob("*-*-*/manifest.jsonl"):
        if manifest.parent not in known:
            problems.append(
                f"{manifest.parent}: recipe.json is gone, so that nothing finds this result"
            )
    for folder in folders:
        damaged = folder.verify()
        status = stored.status(folder)
        if not damaged and status.startswith("damaged"):
            damaged = [f"{folder.path}: {status}"]
        problems += damaged
    if problems:
        shown = problems[:MOST_PROBLEMS]
        if len(problems) > MOST_PROBLEMS:
            shown.append(f"and {len(problems) - MOST_PROBLEMS} more")
        raise ValueError("; ".join(shown) + "; repair with: mia-nb clean")
    count = sum(len(folder.files()) for folder in folders)
    return f"{count} files in {len(folders)} results, every checksum right"
