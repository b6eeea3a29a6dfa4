"""Checks of an installation: versions, devices, and whether every stored file is intact."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from mia_nb import __version__, store
from mia_nb._code_origin import NUMERIC, WITH_TORCH
from mia_nb.cli.say import say

PACKAGES = (
    *WITH_TORCH,
    *NUMERIC,
    "plotly",
    "papermill",
    "nbclient",
    "nbconvert",
    "ipykernel",
    "jupyterlab",
    "ipywidgets",
    "anywidget",
)


def examine(args: Namespace) -> int:
    """`mia-nb doctor`: print one line per check; 1 if any failed, else 0."""
    checks: dict[str, Callable[[], str]] = {
        "mia_nb": lambda: f"{__version__}, Python {platform.python_version()} at {sys.executable}",
        "packages": _packages,
        "devices": _devices,
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


def _store(results: str) -> str:
    """Read every stored file; ValueError that names the damaged and lost ones."""
    folders = store.folders(results)
    damaged = [line for folder in folders for line in folder.verify()]
    known = {folder.path for folder in folders}
    for manifest in Path(results).absolute().glob(f"*-*-*/{store.MANIFEST}"):
        if manifest.parent not in known:
            damaged.append(f"{manifest.parent}: recipe.json is gone, so nothing finds this result")
    if damaged:
        raise ValueError("; ".join(damaged) + "; remove them with: mia-nb clean")
    count = sum(len(folder.files()) for folder in folders)
    return f"{count} files in {len(folders)} results, every checksum right"
