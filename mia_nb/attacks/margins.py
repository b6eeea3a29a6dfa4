"""Arithmetic of margins phi = log p_y - log(1 - p_y): stable logs, means over models and queries,
alignment of scales.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.special import ndtri

from mia_nb.arguments import Array
from mia_nb.checks import checked, one_of
from mia_nb.types import Signals

# float64 numbers in a temporary array (256 kB), so that the few in use stay in a core's cache
BLOCK = 1 << 15
COMBINE = ("margin", "logmeanp", "trimmed", "last")


def blocks(rows: int, samples: int) -> Iterator[slice]:
    """Slices over the samples; an array (rows, samples of a slice) has about BLOCK elements."""
    width = max(BLOCK // max(rows, 1), 64)
    return (slice(start, min(start + width, samples)) for start in range(0, samples, width))


def log_p(phi: np.ndarray) -> np.ndarray:
    """log p = -softplus(-phi) = min(phi, 0) - log1p(exp(-|phi|)): finite and accurate for every
    finite phi.
    """
    return np.minimum(phi, 0) - np.log1p(np.exp(-np.abs(phi)))


def log_mean_p(phi: np.ndarray) -> np.ndarray:
    """log of the mean p over axis 0, computed relative to its largest term."""
    logs = log_p(phi)
    top = logs.max(0)
    return top + np.log(np.exp(logs - top).mean(0))


def median(phi: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """(N,) median of phi (M, N) over the rows that keep (M, N) marks; NaN where it marks none."""
    kept = np.ma.array(phi, mask=~keep)
    return np.ma.filled(np.ma.median(kept, axis=0), np.nan)


@checked
def combine_queries(margin: Array, combine: str) -> np.ndarray:
    """One margin per model and sample.

    Parameters:
        margin: (M, Q, N), in nats.
        combine: margin: mean_q phi_q; logmeanp: log mean_q p_q - log mean_q (1 - p_q), the margin
            of the averaged probability (Guan et al. 2025, Eq. 8); trimmed: mean of the central 80 %
            of phi_q; last: the last query.

    Returns:
        (M, N) margins.

    Caveat: these rank samples differently (Jensen): report which was used. With one query all
    agree.
    """
    queries, samples = margin.shape[1:]
    if combine == "last" or queries == 1:
        return margin[:, -1]
    if combine == "margin":
        return margin.mean(1)
    if combine == "trimmed":
        cut = queries // 10
        return np.sort(margin, axis=1)[:, cut : queries - cut].mean(1)
    out = np.empty((len(margin), samples))
    for part in blocks(len(margin) * queries, samples):
        phi = margin[:, :, part].swapaxes(0, 1).reshape(queries, -1)
        combined = log_mean_p(phi) - log_mean_p(-phi)
        out[:, part] = combined.reshape(len(margin), -1)
    return out


def over_queries(values: np.ndarray, query_kind: str) -> np.ndarray:
    """(M, Q, N) -> (M, N): the mean over queries; of time steps or releases, the last."""
    if query_kind in ("steps", "releases"):
        return values[:, -1]
    return values.mean(1)


@checked
def align(signals: Signals, *, how: str = "affine") -> Signals:
    """Signals with the margins of every model on one scale, for references of another architecture
    than the target's.

    Parameters:
        signals: of the target or of the references; align both.
        how: affine: phi' = (phi - median phi) / IQR phi; quantile: the normal score of phi's
            mid-rank, Phi^-1((rank + 1/2) / (P + 1)); none: unchanged.

    A model's median, IQR and ranks are those of its population samples or, without them, of all
    samples: membership is not used. Entropies and votes are unchanged.

    Returns:
        The signals with the new margins; `info` has the entry align.

    Raises:
        ValueError: for a model whose interquartile range is 0.

    Source: Guan et al. 2025, section 5.3 (none). Caveat: quantile has P + 1 levels, so samples
    beyond the population's extremes tie.

    Example:
        scores = score("rmia", align(targets), align(references))
    """
    one_of("how", how, ("none", "affine", "quantile"))
    if how == "none":
        return signals
    compared_with = signals.population if signals.population.any() else slice(None)
    margin = np.empty_like(signals.margin)
    for m, phi in enumerate(signals.margin):
        ordered = np.sort(phi[:, compared_with], axis=None)
        if how == "quantile":
            below = np.searchsorted(ordered, phi, "left")
            up_to = np.searchsorted(ordered, phi, "right")
            rank = (below + up_to) / 2
            margin[m] = ndtri((rank + 0.5) / (len(ordered) + 1))
        else:
            low, middle, high = np.quantile(ordered, (0.25, 0.5, 0.75))
            if not high > low:
                raise ValueError(
                    f"model {m} has margins of interquartile range 0: its outputs are the same"
                    " everywhere, leave it out"
                )
            margin[m] = (phi - middle) / (high - low)
    return replace(signals, margin=margin, info=signals.info | {"align": how})
