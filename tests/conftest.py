"""One thread a test process: pytest runs several side by side, and threads that wait for each other
spin.
"""

import os
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["LOKY_MAX_CPU_COUNT"] = "1"

import numpy as np
import pytest

LONG = (
    "presets",
    "browser",
    "rehearsal",
    "training_workers",
    "notebook_workshop",
    "benchmarks",
    "training",
)


def pytest_collection_modifyitems(items) -> None:
    """Files that take longest first, so that no process is left alone with one at the end."""
    files = [f"test_{name}.py" for name in LONG]
    items.sort(key=lambda item: (*files, item.path.name).index(item.path.name))


@pytest.fixture(params=["small", "whole"])
def official(request):
    """The published spiking layer's inputs, outputs and gradients: our small copy, and the whole
    where it lies.
    """
    if request.param == "small":
        return np.load(Path(__file__).parent / "golden" / "snn.npz")
    folder = os.environ.get("MIA_NB_GOLDEN")
    if not folder:
        pytest.skip("MIA_NB_GOLDEN is not set")
    return np.load(Path(folder) / "snn_official.npz")
