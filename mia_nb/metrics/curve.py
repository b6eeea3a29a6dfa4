"""ROC curves with tie blocks and everything read off one curve.

Larger score = more likely a member.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv, gammaln

from mia_nb.arguments import Array, Fraction, Level, Mask, Numbers, Rates, Whole
from mia_nb.checks import checked, counted, fraction, mask, reals, shown, whole

# below this many allowed false positives a TPR at that FPR is not measurable
MIN_FALSE_POSITIVES = 10
PRIORS = (0.5, 0.1, 0.01)  # shares of members at which a positive predictive value is quoted


class Roc(NamedTuple):
    """Vertices of a ROC, one per block of equal scores, from (0, 0, +inf) to (1, 1, smallest
    score).
    """

    fpr: np.ndarray
    tpr: np.ndarray
    threshold: np.ndarray


class TprAt(NamedTuple):
    """TPR at one FPR with its exact interval, see `tpr_at`."""

    fpr: float
    tpr: float
    low: float
    high: float
    tp: int
    n1: int
    fp: int
    n0: int
    fpr_realised: float
    fpr_floor: float
    measurable: bool


def counts(score: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cumulative (tp, fp, threshold) after each block of equal scores, largest first, starting at
    (0, 0, +inf); (V,) each.

    Raises ValueError on NaN scores, on shapes that differ, and when members or non-members are
    absent.
    """
    score, member = _vectors(score, member)
    order = np.argsort(-score)  # in any order within a block
    score = score[order]
    member = member[order]
    ends = np.append(np.flatnonzero(score[1:] != score[:-1]), len(score) - 1)
    tp = np.concatenate([[0], np.cumsum(member)[ends]])
    return tp, np.concatenate([[0], ends + 1]) - tp, np.concatenate([[np.inf], score[ends]])


def _vectors(score: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores as float64 and members as bool, (N,) each; ValueError for what no ROC can be drawn
    from.
    """
    score = reals("scores", score)
    member = mask("members", member)
    missing = int(np.isnan(score).sum())
    positives = int(member.sum())
    if score.ndim != 1 or score.shape != member.shape:
        raise ValueError(
            f"scores {score.shape} and members {member.shape}: wanted two equal vectors, one target"
            " at a time"
        )
    if missing:
        raise ValueError(
            f"{missing} of {score.size} scores are NaN: leave those samples out and report their"
            " share"
        )
    if not 0 < positives < member.size:
        raise ValueError(
            f"{positives} members among {member.size} samples: a ROC needs members and non-members"
        )
    return score, member


def rates(fpr: float | Sequence[float]) -> tuple[float, ...]:
    """False positive rates as a tuple; ValueError for a bare number, and for what is no
    fraction.
    """
    if np.ndim(fpr) != 1:
        raise ValueError(
            f"fpr={shown(fpr)}: wanted several false positive rates, such as (0.001, 0.01); of one,"
            " (0.01,)"
        )
    return tuple(fraction("fpr", fpr, many=True))


@checked
def roc(score: Numbers, member: Mask) -> Roc:
    """ROC curve with one vertex per block of equal scores: "member iff score >= threshold".

    Parameters:
        score: (N,) larger = more likely a member; infinite scores are allowed.
        member: (N,) bool.

    Returns:
        (fpr, tpr, threshold), each (vertices,), from (0, 0, +inf) to (1, 1, smallest score).
        Collinear vertices are kept, a threshold never cuts a block of ties.

    Raises:
        ValueError: on NaN, and when members or non-members are absent.

    Caveat: the thresholds are chosen on the target's own labels.
    """
    tp, fp, threshold = counts(score, member)
    return Roc(fp / fp[-1], tp / tp[-1], threshold)


def area(tp: np.ndarray, fp: np.ndarray) -> float:
    """Trapezoid area under integer counts: exact up to the final division."""
    return float(np.dot(np.diff(fp), tp[1:] + tp[:-1]) / (2 * int(tp[-1]) * int(fp[-1])))


@checked
def auc(score: Numbers, member: Mask) -> float:
    """Area under the ROC curve, (#{s1 > s0} + #{s1 = s0} / 2) / (n1 n0) over members s1 and
    non-members s0.

    Parameters:
        score: (N,) larger = more likely a member; infinite scores are allowed.
        member: (N,) bool.

    Raises:
        ValueError: on NaN, and when members or non-members are absent.

    Source: Mann and Whitney 1947; by ranks, O(N log N).
    """
    tp, fp, _ = counts(score, member)
    return area(tp, fp)


def auc_null_error(n1: int, n0: int):
    """Standard error of an AUC when scores tell nothing: sqrt((n1 + n0 + 1) / (12 n1 n0))."""
    return np.sqrt((n1 + n0 + 1) / (12 * n1 * n0))


@checked
def tpr_at(score: Numbers, member: Mask, fpr: Fraction) -> TprAt:
    """TPR at an FPR: the largest over vertices with at most floor(fpr n0) false positives, never
    interpolated.

    Parameters:
        score: (N,) larger = more likely a member.
        member: (N,) bool.
        fpr: false positive rate in [0, 1].

    Returns:
        fpr, tpr, low, high (95 % Clopper-Pearson, conditional on the threshold), tp, n1, fp, n0,
        fpr_realised (of the chosen vertex), fpr_floor (of the first vertex: above `fpr` ties, not
        safety, make the TPR zero), measurable: 10 false positives or more are allowed.

    Raises:
        ValueError: on NaN, and when members or non-members are absent.

    Source: Carlini et al. 2022.
    """
    return tpr_at_counts(*counts(score, member)[:2], fpr)


def _allowed(fp: np.ndarray, fpr: float) -> int:
    """How many false positives a rate allows."""
    return int(np.floor(fpr * int(fp[-1]) + 1e-9))


def vertex_at(tp: np.ndarray, fp: np.ndarray, fpr: float) -> int:
    """The vertex of the largest TPR at this FPR or less: the first, of fewest false positives."""
    last = int(np.searchsorted(fp, _allowed(fp, fpr), side="right")) - 1
    return int(np.searchsorted(tp, tp[last], side="left"))


def tpr_at_counts(tp: np.ndarray, fp: np.ndarray, fpr: float) -> TprAt:
    """`tpr_at` from the counts of `counts`."""
    fraction("fpr", fpr)
    n1 = int(tp[-1])
    n0 = int(fp[-1])
    allowed = _allowed(fp, fpr)
    best = vertex_at(tp, fp, fpr)
    low, high = clopper_pearson(tp[best], n1)
    return TprAt(
        fpr=float(fpr),
        tpr=float(tp[best] / n1),
        low=float(low),
        high=float(high),
        tp=int(tp[best]),
        n1=n1,
        fp=int(fp[best]),
        n0=n0,
        fpr_realised=float(fp[best] / n0),
        fpr_floor=float(fp[1] / n0),
        measurable=allowed >= MIN_FALSE_POSITIVES,
    )


@checked
def clopper_pearson(successes: Array, trials: Array, *, confidence: Level = 0.95):
    """Exact two-sided interval (low, high) of a binomial rate.

    Parameters:
        successes: whole numbers from 0 to trials; broadcast with them.
        trials: whole numbers from 1.
        confidence: in (0, 1).

    Raises:
        ValueError: for impossible counts, and for counts with a fraction.

    Source: Clopper and Pearson 1934.
    """
    k, n = np.broadcast_arrays(counted("successes", successes), counted("trials", trials))
    if not ((k <= n) & (n >= 1)).all():
        raise ValueError(
            f"{shown(successes)} successes of {shown(trials)} trials: wanted 0 <= successes <="
            " trials and trials >= 1"
        )
    tail = (1 - confidence) / 2
    low = np.where(k == 0, 0.0, betaincinv(np.maximum(k, 1), n - k + 1, tail))
    high = np.where(k == n, 1.0, betaincinv(k + 1, np.maximum(n - k, 1), 1 - tail))
    return low, high


@checked
def advantage(score: Numbers, member: Mask) -> float:
    """The largest TPR - FPR over vertices, an oracle that chance alone lifts to `null_advantage`.

    (1 + advantage) / 2 is the best balanced accuracy.
    """
    tp, fp, _ = counts(score, member)
    return float((tp / tp[-1] - fp / fp[-1]).max())


@checked
def null_advantage(n1: Whole, n0: Whole) -> float:
    """Expected oracle advantage of scores that tell nothing: the baseline beside every oracle
    maximum.

    Equal sizes n: exact, (4^n / C(2n, n) - 1) / (2n), by reflection of the random walk. Else the
    limit sqrt(pi/8 (1/n1 + 1/n0)), the mean of the one-sided Kolmogorov-Smirnov statistic, with the
    same first correction.
    """
    n1 = whole("n1", n1)
    n0 = whole("n0", n0)
    if n1 == n0:
        return float(
            (np.exp(2 * n1 * np.log(2) + 2 * gammaln(n1 + 1) - gammaln(2 * n1 + 1)) - 1) / (2 * n1)
        )
    spread = 1 / n1 + 1 / n0
    return float(np.sqrt(np.pi / 8 * spread) - spread / 4)


@checked
def ppv(tpr: Rates, fpr: Rates, prior: Rates):
    """Share of members among those called members, prior TPR / (prior TPR + (1 - prior) FPR).

    Parameters:
        tpr: true positive rate in [0, 1]; all three broadcast.
        fpr: false positive rate in [0, 1].
        prior: share of members among the samples that an attacker has, in [0, 1].

    Returns:
        A number or an array; NaN when none is called.
    """
    tpr, fpr, prior = (np.asarray(value, np.float64) for value in (tpr, fpr, prior))
    called = np.asarray(prior * tpr)
    with np.errstate(invalid="ignore"):
        return called / (called + (1 - prior) * fpr)


def measurable(metric: str, n0: int) -> bool:
    """Whether so many non-members can tell a TPR: 10 allowed false positives; every other metric
    always.
    """
    x = metric.partition("tpr@")[2]
    return not x or np.floor(float(x) * n0 + 1e-9) >= MIN_FALSE_POSITIVES


@checked
def tie_mass(score: Numbers) -> float:
    """Share of samples whose score equals another's: 0 for continuous scores, 1 when all are
    equal.
    """
    _, sizes = np.unique(reals("scores", score), return_counts=True)
    return float(sizes[sizes > 1].sum() / sizes.sum())


@checked
def thin(curve: Roc, n0: Whole) -> Roc:
    """A drawable subset of vertices: 50,001 points become about 800, and TPR at FPR k/n0 stays
    exact for every k kept.

    Kept false-positive counts: 0..50, every count nearest 1e-4, 1e-3, 1e-2, 1e-1 from below, a
    geometric and a linear grid over 50..n0. Of each kept count the first and the last vertex stay;
    where a grid count has no vertex, its nearest from below. n0: non-members of the curve, so that
    FPRs become integers. Compute the AUC from the full curve.
    """
    fp = np.rint(curve.fpr * whole("n0", n0)).astype(np.int64)
    if not np.allclose(fp, curve.fpr * n0, atol=1e-6):
        raise ValueError(
            f"n0={n0} does not fit this curve: fpr * n0 is not whole; pass its number of"
            " non-members"
        )
    marks = np.floor(np.array([1e-4, 1e-3, 1e-2, 1e-1]) * n0 + 1e-9)
    grid = np.concatenate(
        [
            np.arange(51),
            marks,
            np.geomspace(50, max(n0, 50), 200),
            np.linspace(50, max(n0, 50), 200),
        ]
    )
    grid = np.unique(np.minimum(grid, n0).astype(np.int64))
    wanted = np.unique(fp[np.searchsorted(fp, grid, side="right") - 1])  # counts that have a vertex
    keep = np.union1d(
        np.searchsorted(fp, wanted, side="left"), np.searchsorted(fp, wanted, side="right") - 1
    )
    return Roc(curve.fpr[keep], curve.tpr[keep], curve.threshold[keep])
