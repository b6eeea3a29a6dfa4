"""The references' average confidence in the label, with which `rmia` and `base` compare the target.

p is the probability of the label and q = 1 - p. Both are averaged, and neither is computed as a
difference, so that logarithms are accurate where the average rounds to 1.

There are two ways, which agree but for rounding. With a summary, the averages come from sums of p
and of q, which `score` makes once for all targets. Without one, they are computed in logarithms
from the margin of every reference: `score` asks for that where float64 cannot hold some p, where
`trim` looks at single references, and where queries vote.
"""

from __future__ import annotations

import numpy as np

from mia_nb.attacks.margins import log_mean_p_q, log_p
from mia_nb.attacks.reading import margin_blocks, numbers_of_sample
from mia_nb.attacks.summaries import Confidences
from mia_nb.types import Signals


def log_pbar(
    references: Signals,
    combine: str,
    summary: Confidences | None,
    *,
    offline: bool,
    a: float,
    trim: float,
) -> np.ndarray:
    """(R, N) logarithm of the average confidence of `rmia`, R as in `combined`.

        pbar = (mean_IN p + mean_OUT p) / 2
        pbar = ((1 + a) mean_OUT p + (1 - a)) / 2, offline and for samples without IN reference

    It means nothing for audited samples that lack a side which `rmia` needs; `rmia` leaves those
    out. Population samples are kept.

    Parameters:
        references: signals of the references, membership included.
        combine: how queries are combined.
        summary: `confidences_of` the references; None: their margins are read.
        offline, a, trim: of `rmia`; with a summary nothing is trimmed.
    """
    queries, samples = references.shape[1:]
    log_average = np.empty((numbers_of_sample(queries, combine), samples))
    if summary is None:
        for part, query, phi, member in margin_blocks(references, combine):
            log_average[query, part] = _log_pbar_of_margins(phi, member, offline, a, trim)
    else:
        for query in range(len(log_average)):
            log_average[query] = _log_pbar_of_sums(summary, query, offline, a)
    return log_average


def _log_pbar_of_sums(summary: Confidences, query: int, offline: bool, a: float) -> np.ndarray:
    n_in, _ = summary.n
    with np.errstate(divide="ignore", invalid="ignore"):  # NaN where a side has no reference
        p_in, p_out = summary.p[:, query] / summary.n
        q_in, q_out = summary.q[:, query] / summary.n
        p = (p_in + p_out) / 2
        q = (q_in + q_out) / 2
        out_alone = (n_in == 0) | offline
        if out_alone.any():
            p = np.where(out_alone, ((1 + a) * p_out + 1 - a) / 2, p)
            q = np.where(out_alone, (1 + a) * q_out / 2, q)
        return -np.log1p(q / p)


def _log_pbar_of_margins(
    phi: np.ndarray, member: np.ndarray, offline: bool, a: float, trim: float
) -> np.ndarray:
    """(N,) from margins phi (M, N) and membership (M, N) of the references."""
    n_in = np.count_nonzero(member, axis=0)
    n_out = len(member) - n_in
    out_alone = (n_in == 0) | offline
    weight_in = np.where(out_alone, 0, 0.5) / np.maximum(n_in, 1)
    weight_out = np.where(out_alone, 1, 0.5) / np.maximum(n_out, 1)
    weight = np.where(member, weight_in, weight_out)
    weight[:, out_alone & (n_out == 0)] = np.nan
    if trim:
        phi, weight = _trimmed(phi, weight > 0, trim)
    mean_p, mean_q = log_mean_p_q(phi, weight)
    # pbar = blend mean_p + 1 - blend, and 1 - pbar = blend mean_q
    blend = np.where(out_alone, (1 + a) / 2, 1.0)
    # log 0 = -inf is meant: where blend is 1 nothing is added; NaN where a side has no reference
    with np.errstate(divide="ignore", invalid="ignore"):
        log_average = np.logaddexp(np.log(blend) + mean_p, np.log1p(-blend))
    return log_p(log_average - np.log(blend) - mean_q)


def _trimmed(phi: np.ndarray, used: np.ndarray, trim: float) -> tuple[np.ndarray, np.ndarray]:
    """The margins (M, N) sorted along axis 0, and weights (M, N) that average those used but for
    the share `trim` at each end.
    """
    count = used.sum(0)
    cut = (trim * count).astype(int)
    rank = np.arange(len(phi))[:, None]
    keep = (rank >= cut) & (rank < count - cut)
    rising = np.sort(np.where(used, phi, np.inf), axis=0)  # margins not used come last
    return np.where(keep, rising, 0), keep / np.maximum(count - 2 * cut, 1)


def log_mean_p(references: Signals, combine: str, summary: Confidences | None) -> np.ndarray:
    """(R, N) logarithm of the mean of p over all references, for `base`. Parameters as in
    `log_pbar`.
    """
    queries, samples = references.shape[1:]
    log_average = np.empty((numbers_of_sample(queries, combine), samples))
    if summary is None:
        for part, query, phi, _ in margin_blocks(references, combine):
            mean_p, mean_q = log_mean_p_q(phi, np.full(phi.shape, 1 / len(phi)))
            log_average[query, part] = log_p(mean_p - mean_q)
        return log_average
    for query in range(len(log_average)):
        p = summary.p[:, query].sum(0)
        q = summary.q[:, query].sum(0)
        log_average[query] = -np.log1p(q / p)
    return log_average
