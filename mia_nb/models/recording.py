"""A small recording of a spiking network at work, kept beside its outputs: pictures of it need no
torch.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from mia_nb.models import snn

IMAGES, NEURONS = 12, 200
BYTES = 280_000  # of all that is recorded; with many time steps fewer neurons are


def recorded(module: nn.Module, x: Tensor, columns: np.ndarray) -> dict[str, np.ndarray] | None:
    """Spikes and membranes of one site over all T time steps for a few images; None for what is no
    deterministic `SNN`.

    x (n, C, H, W): normalised images; columns (n,): their numbers. The first site, and of its
    neurons at most 200, evenly spaced: `spikes` (n, T, neurons) uint8, `membranes` (n, T, neurons)
    float16, after charging and before the reset, `thresholds` (neurons,) float32, `neurons`
    (neurons,) numbers in the layer of `size` (1,) neurons, `samples` (n,), `site` (1,). Equation:
    spike where membrane >= threshold; where rounding to float16 would cross the threshold the
    membrane is moved back to its side. Caveat: images are shown one at a time, which may round
    otherwise than a batch.
    """
    if (
        not len(x)
        or not isinstance(module, snn.SNN)
        or module.stochastic
        or not (spikes := module.spikes())
    ):
        return None
    site = next(iter(spikes))
    seen = [snn.record(module, one[None], site) for one in x]
    spk, mem = (np.stack([record[i] for record in seen]) for i in (0, 1))
    count = max(1, min(NEURONS, spk.shape[2], BYTES // (3 * len(x) * spk.shape[1])))
    neurons = np.unique(np.linspace(0, spk.shape[2] - 1, count).round().astype(np.int64))
    spk = spk[:, :, neurons]
    theta = seen[0][2][neurons].astype(np.float32)
    return {
        "spikes": spk.astype(np.uint8),
        "membranes": _on_its_side(mem[:, :, neurons], spk, theta),
        "thresholds": theta,
        "neurons": neurons,
        "size": np.array([mem.shape[2]]),
        "samples": np.asarray(columns, dtype=np.int64),
        "site": np.array([site]),
    }


def evenly(columns: np.ndarray) -> np.ndarray:
    """At most 12 of these numbers, evenly spaced in their order."""
    return columns[
        np.unique(np.linspace(0, len(columns) - 1, min(IMAGES, len(columns))).round().astype(int))
    ]


def _on_its_side(mem: np.ndarray, spk: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """float16 potentials that are at or above the threshold exactly where a spike is."""
    largest = np.finfo(np.float16).max
    small = np.clip(mem, -largest, largest).astype(np.float16)
    up = np.nextafter(small, np.float16(np.inf))
    down = np.nextafter(small, np.float16(-np.inf))
    return np.where(spk & (small < theta), up, np.where(~spk & (small >= theta), down, small))
