"""Firing thresholds that make an integrate-and-fire neuron the best T-level copy of a ReLU.

With constant input a, soft reset and u0 = theta / 2 the neuron emits on average
Q_T(a) = (theta / T) clip(floor(T a / theta + 1/2), 0, T), and theta minimises E |a - Q_T(a)|^p over
a site's positive activations. Source: Bojkovic et al. 2024; u0 = theta / 2 follows from optimality.
"""

from __future__ import annotations

from functools import lru_cache
from numbers import Integral
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

DEAD = 1e4  # threshold of a site or channel that was never active, too high to be reached
GRID = 256  # number of thresholds tried between 0 and a histogram's range
COARSE = np.arange(1, GRID + 1) / GRID
FINE = 33  # number of thresholds tried around the best of these


class Histogram(NamedTuple):
    """Positive activations of one site: counts (groups, bins) of equal width between 0 and range
    (groups,).
    """

    counts: Tensor  # int64
    range: Tensor  # float64, a power of two

    @classmethod
    def empty(cls, groups: int, bins: int) -> Histogram:
        """A histogram that has counted nothing, with an even number of bins."""
        return cls(
            torch.zeros(groups, bins, dtype=torch.int64),
            torch.full((groups,), 2.0**-10, dtype=torch.float64),
        )

    def add(self, z: Tensor) -> Histogram:
        """A histogram that counts activations z (groups, n) too.

        Ranges double, which merges bins by twos, until they exceed the largest activation: the
        counts are those of one pass with the final range.
        """
        # bins / range overflows float16
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        bins = self.counts.shape[1]
        counts = self.counts.clone()
        width = self.range.clone()
        largest = z.max(1).values.double().cpu()
        if not torch.isfinite(largest).all():
            raise ValueError("a site's activations are not finite: did the model diverge?")
        while (grow := largest >= width).any():
            merged = counts[grow].unflatten(1, (bins // 2, 2)).sum(2)
            counts[grow] = torch.cat([merged, torch.zeros_like(merged)], 1)
            width[grow] *= 2
        # scale is a power of two times the number of bins, so z * scale is rounded no more than z
        scale = (bins / width).to(z.device, z.dtype)[:, None]
        index = (z * scale).long()
        index += torch.arange(len(z), device=z.device)[:, None] * bins
        counts += torch.bincount(index[z > 0], minlength=counts.numel()).view(counts.shape).cpu()
        return Histogram(counts, width)

    @property
    def centres(self) -> np.ndarray:
        """(groups, bins) centres of the bins."""
        bins = self.counts.shape[1]
        return self.range.numpy()[:, None] * (np.arange(bins) + 0.5) / bins


def quantised(a: np.ndarray, theta: float | np.ndarray, T: int) -> np.ndarray:
    """Q_T(a), the mean output over T steps for constant input a."""
    return theta / T * np.clip(np.floor(T * a / theta + 0.5), 0, T)


def fit_histogram(histogram: Histogram, T: int = 1, p: float = 1) -> np.ndarray:
    """(groups,) thresholds by a scan of 256 values and a finer scan around the best; DEAD where
    nothing was counted.

    ValueError for T < 1 and for p other than 1 and 2.
    """
    check_fit(T, p)
    counts = histogram.counts.numpy().astype(float)
    width = histogram.range.numpy()
    bins = counts.shape[1]
    # in units of the range, so that one table of errors serves all groups and histograms
    coarse_costs = _coarse_errors(bins, T, p) @ counts.T
    coarse = COARSE[coarse_costs.argmin(0)]
    theta = np.empty(len(counts))
    for start in np.unique(coarse):
        groups = coarse == start
        fine = start + np.linspace(-1, 1, FINE) / GRID
        fine = fine[fine > 0]
        fine_costs = _errors(fine, bins, T, p) @ counts[groups].T
        theta[groups] = fine[fine_costs.argmin(0)]
    return np.where(counts.any(1), theta * width, DEAD)


def _errors(thetas: np.ndarray, bins: int, T: int, p: float) -> np.ndarray:
    """(thetas, bins) errors |a - Q_T(a)|^p at the centres of bins between 0 and 1."""
    a = (np.arange(bins) + 0.5) / bins
    return np.abs(a - quantised(a, thetas[:, None], T)) ** p


@lru_cache(maxsize=8)
def _coarse_errors(bins: int, T: int, p: float) -> np.ndarray:
    """The errors of the thresholds that are tried first, the same for every site and model."""
    return _errors(COARSE, bins, T, p)


def check_fit(T: int, p: float) -> None:
    """ValueError unless T is a whole number of steps and p is 1 or 2."""
    if not isinstance(T, Integral) or T < 1 or p not in (1, 2):
        raise ValueError(f"T={T}, p={p}: wanted a whole T >= 1 and p = 1 or 2")


def expected(
    histogram: Histogram, theta: np.ndarray, T: int, p: float = 1
) -> tuple[np.ndarray, np.ndarray]:
    """(mean error |a - Q_T(a)|^p over the positive activations, share of these above theta), each
    (groups,); 0 for dead groups.
    """
    counts = histogram.counts.numpy()
    total = np.maximum(counts.sum(1), 1)
    a = histogram.centres
    thresholds = theta[:, None]
    error = (counts * np.abs(a - quantised(a, thresholds, T)) ** p).sum(1) / total
    clipped = (counts * (a > thresholds)).sum(1) / total
    return error, clipped
