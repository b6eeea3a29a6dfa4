"""The slow twin of the histogram's thresholds: the exact optimum on a sample of activations."""

from __future__ import annotations

import numpy as np

from mia_nb.models.thresholds import quantised


def fit_threshold(activations, T: int = 1, p: float = 1) -> tuple[float, float]:
    """(theta, u0 = theta / 2) that minimise the mean of |a - Q_T(a)|^p over a sample of
    activations; zeros do not count.

    T = 1, p = 1: the exact optimum, which satisfies theta = median{a : a >= theta / 2}. Otherwise
    the 8 best of 256 starts, improved by turns of assigning levels and solving for theta (a
    weighted median, or least squares for p = 2) until nothing changes.
    """
    a = np.sort(np.asarray(activations, dtype=float).ravel())
    a = a[a > 0]
    if T == 1 and p == 1:
        theta = _two_medians(a)
    else:
        starts = a[-1] * np.arange(1, 257) / 256
        order = np.argsort([_cost(a, theta, T, p) for theta in starts])[:8]
        theta = min(
            (_improved(a, starts[i], T, p) for i in order), key=lambda theta: _cost(a, theta, T, p)
        )
    return float(theta), float(theta) / 2


def _cost(a: np.ndarray, theta: float, T: int, p: float) -> float:
    return float((np.abs(a - quantised(a, theta, T)) ** p).mean())


def _two_medians(a: np.ndarray) -> float:
    """One centre at 0 and one free: for every split of the sorted sample the free centre is the
    median of the upper part.
    """
    n, sums = len(a), np.concatenate([[0.0], np.cumsum(a)])
    k = np.arange(n)
    middle = (k + n) // 2  # of a[k:], the upper one of two
    upper = (
        (sums[n] - sums[middle])
        - (n - middle) * a[middle]
        + (middle - k) * a[middle]
        - (sums[middle] - sums[k])
    )
    return a[middle[(sums[k] + upper).argmin()]]


def _improved(a: np.ndarray, theta: float, T: int, p: float) -> float:
    """Levels by theta, theta by levels, in turns while the cost falls."""
    cost = _cost(a, theta, T, p)
    while True:
        level = np.clip(np.floor(T * a / theta + 0.5), 0, T) / T
        on = level > 0
        if not on.any():
            return theta
        if p == 1:
            ratio, weight = a[on] / level[on], level[on]
            order = np.argsort(ratio)
            total = np.cumsum(weight[order])
            new = ratio[order][np.searchsorted(total, total[-1] / 2)]
        else:
            new = (a[on] * level[on]).sum() / (level[on] ** 2).sum()
        new_cost = _cost(a, new, T, p)
        if not new_cost < cost:
            return theta
        theta, cost = new, new_cost
