"""Exact Gaussian trade-offs: conversions between mu, epsilon and delta, and trade-off curves."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from mia_nb.accounting.ranges import check

HALVINGS = 100


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta of a mu-GDP mechanism at epsilon: Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 -
    epsilon/mu), from log-cdfs.

    Parameters:
        mu: distance of two unit Gaussians, from 0.
        epsilon: from 0.

    Raises:
        ValueError: for a negative one.

    Source: Balle and Wang, arXiv 1805.06530; Dong, Roth and Su, corollary 1: exact for every
    epsilon.
    """
    check(mu=mu, epsilon=epsilon)
    if mu == 0 or math.isinf(epsilon):
        return 0.0
    if math.isinf(mu):
        return 1.0
    with np.errstate(all="ignore"):
        return float(np.exp(log_delta(mu, epsilon)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """epsilon of a mu-GDP mechanism at delta, exact for all mu: `gaussian_delta` inverted by
    bisection, never below the root.

    Parameters:
        mu: sensitivity / standard deviation for one Gaussian release, sqrt(sum of squares) for
            several.
        delta: from 0 to below 1.

    Returns:
        0 for mu 0; infinite for mu infinite or delta 0.

    Raises:
        ValueError: for mu < 0 or delta outside [0, 1).

    Caveat: the classical sqrt(2 ln(1.25 / delta)) mu is proved below 1 only: its true delta is
    2.3e-5 at epsilon 10 for 1e-5.
    """
    check(mu=mu, delta=delta)
    if mu == 0:
        return 0.0
    if math.isinf(mu) or delta == 0:
        return math.inf
    target = math.log(delta)

    def is_reached(epsilon: float) -> bool:
        return log_delta(mu, epsilon) <= target

    with np.errstate(all="ignore"):
        if is_reached(0.0):
            return 0.0
        # here the first term of `gaussian_delta` alone is delta
        enough = max(mu * (mu / 2 - float(ndtri(delta))), 0.0)
        _, high = bisect(is_reached, 0.0, enough)
    return high


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose Gaussian trade-off implies (epsilon, delta): the inverse of
    `gaussian_epsilon` in mu.

    Parameters:
        epsilon: from 0.
        delta: from 0 to below 1.

    Returns:
        mu, for the curve of `tradeoff(mu=...)` of equal (epsilon, delta): 1.666 for (8, 1e-5). 0
        for delta 0, infinite for epsilon infinite.

    Raises:
        ValueError: for epsilon < 0 or delta outside [0, 1).
    """
    check(epsilon=epsilon, delta=delta)
    if math.isinf(epsilon):
        return math.inf
    if delta == 0:
        return 0.0
    target = math.log(delta)

    def is_exceeded(mu: float) -> bool:
        return log_delta(mu, epsilon) > target

    with np.errstate(all="ignore"):
        high = 1.0
        while log_delta(high, epsilon) < target:
            high = 2 * high
        low, _ = bisect(is_exceeded, 0.0, high)
    return low


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
    rates = np.asarray(fpr, float)
    if mu is None:
        check(epsilon=epsilon)
        tpr = _tpr_of_epsilon(rates, float(epsilon), delta)
    else:
        check(mu=mu)
        if delta:
            raise ValueError(
                f"delta={delta} with mu={mu}: a Gaussian trade-off has no delta; leave it out, or"
                " pass epsilon"
            )
        tpr = _tpr_of_mu(rates, mu)
    return tpr.item() if tpr.ndim == 0 else tpr


def _tpr_of_epsilon(fpr: np.ndarray, epsilon: float, delta: float) -> np.ndarray:
    """The curve of `tradeoff` for (epsilon, delta)."""
    if math.isinf(epsilon):
        return np.ones_like(fpr)
    steep = np.exp(min(epsilon, 700.0)) * fpr + delta  # exp of a larger number overflows
    flat = 1 - np.exp(-epsilon) * (1 - delta - fpr)
    return np.asarray(np.minimum(np.minimum(steep, flat), 1.0))


def _tpr_of_mu(fpr: np.ndarray, mu: float) -> np.ndarray:
    """The curve of `tradeoff` for mu."""
    if math.isinf(mu):
        return np.ones_like(fpr)
    return np.asarray(ndtr(ndtri(fpr) + mu))


def log_delta(mu: float | np.ndarray, epsilon: float | np.ndarray) -> float | np.ndarray:
    """ln of `gaussian_delta` for finite numbers above 0: two log-cdfs, subtracted without leaving
    the logarithm.
    """
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return first + np.log(-np.expm1(np.minimum(second - first, 0)))


def bisect(in_upper_part: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """The numbers just below and just above the start of the upper part."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if in_upper_part(middle):
            high = middle
        else:
            low = middle
    return low, high
