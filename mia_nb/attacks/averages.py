"""The references' average confidence in the label, with which `rmia` and `base` compare the target.

p is the probability of the label and q = 1 - p. Both are averaged, and neither is computed as a
difference, so that logarithms are accurate where the average rounds to 1.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from mia_nb.attacks.reading import margin_blocks, numbers_of_sample
from mia_nb.attacks.summaries import LARGEST_MARGIN, Confidences
from mia_nb.types import Signals


def mean_confidences(
    summary: Confidences, weight_in: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    """(R, N) averages of p and of q: the mean over IN references times their weight (N,), plus the
    mean over OUT references times 1 - weight. The mean over no reference is 0.
    """
    n_in, n_out = np.maximum(summary.n, 1)
    weight_out = 1 - weight_in
    p = weight_in * (summary.p[0] / n_in) + weight_out * (summary.p[1] / n_out)
    q = weight_in * (summary.q[0] / n_in) + weight_out * (summary.q[1] / n_out)
    return p, q


def trimmed_means(
    references: Signals, combine: str, out_alone: np.ndarray, trim: float
) -> tuple[np.ndarray, np.ndarray]:
    """(R, N) means of p and of q over all references, or where `out_alone` (N,) over the OUT ones,
    but for the share `trim` of them at each end; NaN over none. Margins beyond LARGEST_MARGIN count
    as that.
    """
    _, queries, samples = references.shape
    p, q = np.empty((2, numbers_of_sample(queries, combine), samples))
    for part, query, phi, member in margin_blocks(references, combine):
        used = ~(member & out_alone[part])
        count = used.sum(0)
        cut = (trim * count).astype(int)
        rank = np.arange(len(phi))[:, None]
        keep = (rank >= cut) & (rank < count - cut)
        rising = np.sort(np.where(used, phi, np.inf), axis=0)  # margins not used come last
        kept = np.clip(np.where(keep, rising, 0), -LARGEST_MARGIN, LARGEST_MARGIN)
        total = np.where(count > 0, count - 2 * cut, np.nan)
        p[query, part] = np.where(keep, expit(kept), 0).sum(0) / total
        q[query, part] = np.where(keep, expit(-kept), 0).sum(0) / total
    return p, q
