"""Exact Gaussian trade-offs: conversions between mu, epsilon and delta, and trade-off curves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from mia_nb.accounting.ranges import check

HALVINGS = 100


def gaussian_delta(mu: float | np.ndarray, epsilon: float | np.ndarray) -> float | np.ndarray:
    """delta of a mu-GDP mechanism at epsilon: Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 -
    epsilon/mu), from log-cdfs.

    Parameters:
        mu: distance of two unit Gaussians, from 0; a number or an array.
        epsilon: from 0; a number or an array, broadcast.

    Raises:
        ValueError: for a negative one.

    Source: Balle and Wang, arXiv 1805.06530; Dong, Roth and Su, corollary 1: exact for every
    epsilon.
    """
    check(several=("mu", "epsilon"), mu=mu, epsilon=epsilon)
    mu, epsilon = np.broadcast_arrays(np.asarray(mu, float), np.asarray(epsilon, float))
    with np.errstate(all="ignore"):
        delta = np.where(np.isinf(mu), 1.0, np.exp(log_delta(mu, epsilon)))
    return plain(np.where((mu == 0) | np.isinf(epsilon), 0.0, delta))


def gaussian_epsilon(mu: float | np.ndarray, delta: float | np.ndarray) -> float | np.ndarray:
    """epsilon of a mu-GDP mechanism at delta, exact for all mu: `gaussian_delta` inverted by
    bisection, never below the root.

    Parameters:
        mu: sensitivity / standard deviation for one Gaussian release, sqrt(sum of squares) for
            several; a number or an array.
        delta: from 0 to below 1; a number or an array, broadcast.

    Returns:
        0 for mu 0; infinite for mu infinite or delta 0.

    Raises:
        ValueError: for mu < 0 or delta outside [0, 1).

    Caveat: the classical sqrt(2 ln(1.25 / delta)) mu is proved below 1 only: its true delta is
    2.3e-5 at epsilon 10 for 1e-5.
    """
    check(several=("mu", "delta"), mu=mu, delta=delta)
    mu, delta = np.broadcast_arrays(np.asarray(mu, float), np.asarray(delta, float))
    with np.errstate(all="ignore"):
        target = np.log(delta)
        high = np.where(
            log_delta(mu, 0.0) <= target, 0.0, np.maximum(mu * (mu / 2 - ndtri(delta)), 0)
        )
        _, high = bisect(lambda middle: log_delta(mu, middle) <= target, np.zeros(mu.shape), high)
    return plain(np.where(mu == 0, 0.0, np.where(np.isinf(mu) | (delta == 0), np.inf, high)))


def gaussian_mu(epsilon: float | np.ndarray, delta: float | np.ndarray) -> float | np.ndarray:
    """The largest mu whose Gaussian trade-off implies (epsilon, delta): the inverse of
    `gaussian_epsilon` in mu.

    Parameters:
        epsilon: from 0; a number or an array.
        delta: from 0 to below 1; a number or an array, broadcast.

    Returns:
        mu, for the curve of `tradeoff(mu=...)` of equal (epsilon, delta): 1.666 for (8, 1e-5). 0
        for delta 0, infinite for epsilon infinite.

    Raises:
        ValueError: for epsilon < 0 or delta outside [0, 1).
    """
    check(several=("epsilon", "delta"), epsilon=epsilon, delta=delta)
    epsilon, delta = np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(delta, float))
    with np.errstate(all="ignore"):
        finite = np.where(np.isinf(epsilon), 0.0, epsilon)
        target = np.log(delta)
        high = np.ones(epsilon.shape)
        too_small = log_delta(high, finite) < target
        while np.any(too_small):
            high = np.where(too_small, 2 * high, high)
            too_small = log_delta(high, finite) < target
        low, _ = bisect(
            lambda middle: log_delta(middle, finite) > target, np.zeros(epsilon.shape), high
        )
    return plain(np.where(np.isinf(epsilon), np.inf, np.where(delta == 0, 0.0, low)))


def tradeoff(
    fpr: float | np.ndarray,
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    mu: float | None = None,
) -> float | np.ndarray:
    """The largest TPR at `fpr` of any attack on an (epsilon, delta)-DP or on a mu-GDP mechanism: a
    ceiling for a ROC curve.

    Parameters:
        fpr: a number or an array in [0, 1].
        epsilon: from 0; min(e^epsilon fpr + delta, 1 - e^-epsilon (1 - delta - fpr), 1) (Kairouz,
            Oh and Viswanath 2015).
        delta: with epsilon, from 0 to below 1.
        mu: instead of epsilon, from 0; Phi(Phi^-1(fpr) + mu) (Dong, Roth and Su, arXiv 1905.02383).

    Returns:
        TPR of the shape of `fpr`.

    Raises:
        ValueError: unless exactly one of epsilon and mu is given, for delta with mu, and for
            numbers out of range.

    Caveat: a measured curve is above it only where the lower end of its interval is.
    """
    if (epsilon is None) == (mu is None):
        raise ValueError(f"tradeoff got epsilon={epsilon} and mu={mu}: wanted exactly one of them")
    check(several=("fpr",), fpr=fpr, delta=delta)
    if mu is None:
        check(epsilon=epsilon)
    else:
        check(mu=mu)
    fpr = np.asarray(fpr, float)
    if mu is not None:
        if delta:
            raise ValueError(
                f"delta={delta} with mu={mu}: a Gaussian trade-off has no delta; leave it out, or"
                " pass epsilon"
            )
        return plain(ndtr(ndtri(fpr) + mu) if np.isfinite(mu) else np.ones_like(fpr))
    epsilon = float(epsilon)
    if np.isinf(epsilon):
        return plain(np.ones_like(fpr))
    steep = np.exp(min(epsilon, 700.0)) * fpr + delta
    return plain(np.minimum(np.minimum(steep, 1 - np.exp(-epsilon) * (1 - delta - fpr)), 1.0))


def log_delta(mu: float | np.ndarray, epsilon: float | np.ndarray) -> float | np.ndarray:
    """ln of `gaussian_delta` for finite numbers above 0: two log-cdfs, subtracted without leaving
    the logarithm.
    """
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return first + np.log(-np.expm1(np.minimum(second - first, 0)))


def bisect(
    in_upper_part: Callable[[np.ndarray], np.ndarray | bool],
    low: float | np.ndarray,
    high: float | np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """For each entry, the numbers just below and just above the start of the upper part."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        upper = in_upper_part(middle)
        low = np.where(upper, low, middle)
        high = np.where(upper, middle, high)
    return low, high


def plain(values: float | np.ndarray) -> float | np.ndarray:
    """A Python number for a single value, else the array."""
    return values.item() if np.ndim(values) == 0 else values
