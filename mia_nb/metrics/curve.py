"""The ROC curve of one target and its metrics.

A sample is called a member where its score reaches the threshold: larger scores mean more likely a
member. Samples of equal scores cross the threshold together, so that a curve has one vertex for
each block of ties, and no metric depends on their order.

In names, tp and fp are counts of true and false positives, n1 and n0 of members and non-members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv, erfcx, gammaln

from mia_nb.arguments import Array, Fraction, Level, Mask, Numbers, Positive, Rates
from mia_nb.checks import checked, counted, fraction, mask, reals, shown

# the TPR at an FPR that allows fewer false positives is not measurable
MIN_FALSE_POSITIVES = 10
PRIORS = (0.5, 0.1, 0.01)  # shares of members for which positive predictive values are given


class Roc(NamedTuple):
    """Vertices of a ROC, one per block of equal scores, from (0, 0, +inf) to (1, 1, smallest
    score).
    """

    fpr: np.ndarray
    tpr: np.ndarray
    threshold: np.ndarray


class TprAt(NamedTuple):
    """TPR at one FPR with its exact interval, see `tpr_at`."""

    fpr: float  # that was asked for
    tpr: float
    low: float  # of the 95 % Clopper-Pearson interval, conditional on the threshold
    high: float
    tp: int
    n1: int
    fp: int
    n0: int
    fpr_realised: float  # of the vertex, at most fpr
    fpr_floor: float  # the smallest that a finite threshold gives
    measurable: bool  # whether the FPR allows 10 false positives or more


def roc_counts(score: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ROC curve in whole numbers: members and non-members that reach each threshold.

    Parameters:
        score: (N,) larger = more likely a member; infinite scores are allowed.
        member: (N,) bool.

    Returns:
        (tp, fp, threshold) at each vertex of the curve, (V,) each, from (0, 0, +inf) to (n1, n0,
        smallest score).

    Raises:
        ValueError: on NaN, on shapes that differ, and when members or non-members are absent.
    """
    score, member = _vectors(score, member)
    falling = np.argsort(-score)  # in any order within a block of ties
    score = score[falling]
    member = member[falling]
    block_ends = np.append(np.flatnonzero(score[1:] != score[:-1]), len(score) - 1)
    tp = np.concatenate([[0], np.cumsum(member)[block_ends]])
    positives = np.concatenate([[0], block_ends + 1])
    threshold = np.concatenate([[np.inf], score[block_ends]])
    return tp, positives - tp, threshold


def _vectors(score: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores as float64 and members as bool, (N,) each; ValueError where there is no ROC."""
    score = reals("scores", score)
    member = mask("members", member)
    missing = int(np.isnan(score).sum())
    members = int(member.sum())
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
    if not 0 < members < member.size:
        raise ValueError(
            f"{members} members among {member.size} samples: a ROC needs members and non-members"
        )
    return score, member


def rates(fpr: float | Sequence[float]) -> tuple[float, ...]:
    """False positive rates as a tuple; ValueError for a bare number, and outside [0, 1]."""
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
        Collinear vertices are kept; no threshold splits a block of ties.

    Raises:
        ValueError: on NaN, and when members or non-members are absent.

    Example:
        >>> curve = roc([0.1, 0.4, 0.35, 0.8], [False, False, True, True])
        >>> curve.fpr.tolist(), curve.tpr.tolist()
        ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0])

    Caveat: the thresholds are chosen on the target's own labels.
    """
    tp, fp, threshold = roc_counts(score, member)
    return Roc(fp / fp[-1], tp / tp[-1], threshold)


def auc_of_counts(tp: np.ndarray, fp: np.ndarray) -> float:
    """`auc` from the tp and fp that `roc_counts` gives, by trapezoids: exact up to the division."""
    return float(np.dot(np.diff(fp), tp[1:] + tp[:-1]) / (2 * int(tp[-1]) * int(fp[-1])))


@checked
def auc(score: Numbers, member: Mask) -> float:
    """Area under the ROC curve: the chance that a random member scores above a random non-member,
    ties counted half.

    Parameters:
        score: (N,) larger = more likely a member; infinite scores are allowed.
        member: (N,) bool.

    Raises:
        ValueError: on NaN, and when members or non-members are absent.

    Example:
        >>> auc([0.1, 0.4, 0.35, 0.8], [False, False, True, True])  # 3 of 4 pairs are in order
        0.75

    Source: Mann and Whitney 1947; by sorting, O(N log N).
    """
    tp, fp, _ = roc_counts(score, member)
    return auc_of_counts(tp, fp)


def auc_null_error(n1: int | np.ndarray, n0: int | np.ndarray) -> float | np.ndarray:
    """Standard error of an AUC of uninformative scores: sqrt((n1 + n0 + 1) / (12 n1 n0))."""
    return np.sqrt((n1 + n0 + 1) / (12 * n1 * n0))


@checked
def tpr_at(score: Numbers, member: Mask, fpr: Fraction) -> TprAt:
    """The largest TPR of a vertex with at most floor(fpr n0) false positives, never interpolated.

    Parameters:
        score: (N,) larger = more likely a member.
        member: (N,) bool.
        fpr: false positive rate in [0, 1].

    Returns:
        A `TprAt`: the TPR, its 95 % interval, its counts, and whether there are enough non-members
        to measure it. Where `fpr_floor` lies above `fpr`, a TPR of 0 comes from ties and is no sign
        of safety.

    Raises:
        ValueError: on NaN, and when members or non-members are absent.

    Example:
        >>> at = tpr_at([0.1, 0.4, 0.35, 0.8], [False, False, True, True], fpr=0.5)
        >>> at.tpr, at.tp, at.fp, at.measurable
        (1.0, 2, 1, False)

    Source: Carlini et al. 2022.
    """
    tp, fp, _ = roc_counts(score, member)
    return tpr_at_counts(tp, fp, fpr)


def allowed_false_positives(fpr: float | np.ndarray, n0: int | np.ndarray) -> int | np.ndarray:
    """How many false positives a rate allows among n0 non-members: floor(fpr n0)."""
    return np.floor(fpr * n0 + 1e-9).astype(np.int64)  # 0.29 * 100 is 28.999999999999996


def last_vertex(fp: np.ndarray, most: int) -> int:
    """Index of the last vertex with at most this many false positives; -1 for a negative number."""
    return int(np.searchsorted(fp, most, side="right")) - 1


def vertex_at(tp: np.ndarray, fp: np.ndarray, fpr: float) -> int:
    """Index of the vertex with the largest TPR at this FPR or less; among equals, with the fewest
    false positives.
    """
    last = last_vertex(fp, allowed_false_positives(fpr, fp[-1]))
    return int(np.searchsorted(tp, tp[last], side="left"))


def tpr_at_counts(tp: np.ndarray, fp: np.ndarray, fpr: float) -> TprAt:
    """`tpr_at` from the tp and fp that `roc_counts` gives."""
    fraction("fpr", fpr)
    n1 = int(tp[-1])
    n0 = int(fp[-1])
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
        measurable=bool(allowed_false_positives(fpr, n0) >= MIN_FALSE_POSITIVES),
    )


@checked
def clopper_pearson(
    successes: Array, trials: Array, *, confidence: Level = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Exact two-sided interval (low, high) of a binomial rate.

    Parameters:
        successes: whole numbers from 0 to trials; broadcast with them.
        trials: whole numbers from 1.
        confidence: in (0, 1).

    Raises:
        ValueError: for impossible counts, and for counts with a fraction.

    Example:
        >>> low, high = clopper_pearson(0, 30)
        >>> round(float(low), 3), round(float(high), 3)
        (0.0, 0.116)

    Source: Clopper and Pearson 1934.
    """
    k, n = np.broadcast_arrays(counted("successes", successes), counted("trials", trials))
    if not ((k <= n) & (n >= 1)).all():
        raise ValueError(
            f"{shown(successes)} successes of {shown(trials)} trials: wanted 0 <= successes <="
            " trials and trials >= 1"
        )
    tail = (1 - confidence) / 2
    # the quantile is not used at k = 0, k = n; there np.maximum keeps its arguments valid
    low = np.where(k == 0, 0.0, betaincinv(np.maximum(k, 1), n - k + 1, tail))
    high = np.where(k == n, 1.0, betaincinv(k + 1, np.maximum(n - k, 1), 1 - tail))
    return low, high


def clopper_pearson_of_groups(
    successes: np.ndarray | int,
    trials: np.ndarray | int,
    groups: np.ndarray | int,
    *,
    confidence: float = 0.95,
) -> tuple[np.ndarray, np.ndarray]:
    """`clopper_pearson` of a rate whose trials come from so many independent groups, or fewer.

    Successes in groups, successes * groups / trials, are rounded outwards.
    Source: Korn and Graubard 1998, who take them as they are.
    """
    in_groups = np.asarray(successes) * groups / trials
    low, _ = clopper_pearson(np.floor(in_groups), groups, confidence=confidence)
    _, high = clopper_pearson(np.ceil(in_groups), groups, confidence=confidence)
    return low, high


def advantage_of_counts(tp: np.ndarray, fp: np.ndarray) -> float:
    """`advantage` from the tp and fp that `roc_counts` gives."""
    return float((tp / tp[-1] - fp / fp[-1]).max())


@checked
def advantage(score: Numbers, member: Mask) -> float:
    """The largest TPR - FPR over vertices, chosen with hindsight: chance alone gives
    `null_advantage`.

    (1 + advantage) / 2 is the best balanced accuracy.
    """
    tp, fp, _ = roc_counts(score, member)
    return advantage_of_counts(tp, fp)


@checked
def null_advantage(n1: Positive, n0: Positive) -> float:
    """Expected largest advantage of uninformative scores: the baseline of every maximum chosen with
    hindsight.

    Parameters:
        n1: members.
        n0: non-members.

    For equal numbers n it is exact: (4^n / C(2n, n) - 1) / (2n), by reflection of the random walk.
    Otherwise it is the mean of the one-sided Kolmogorov-Smirnov statistic D by Hodges'
    approximation, with n <= m the numbers in order and S = 1/n + 1/m:

        P(D > d) = exp(-2 z^2 - 2 c z),    z = d / sqrt(S),    c = (m + 2n) / (3 sqrt(mn (m + n)))
        E D = sqrt(pi/8 S) e^(c^2 / 2) erfc(c / sqrt(2)) = sqrt(pi/8 S) - (1/n + 2/m) / 6 + ...

    It is exact to 1.5 %, to 2.5 % for 1 and 3, and to 4.5 % for 1 and 2.

    Source: Hodges 1958, The significance probability of the Smirnov two-sample test.

    Example:
        >>> round(null_advantage(1000, 1000), 4)
        0.0275
    """
    if n1 == n0:
        log_power_over_binomial = 2 * n1 * np.log(2) + 2 * gammaln(n1 + 1) - gammaln(2 * n1 + 1)
        return float((np.exp(log_power_over_binomial) - 1) / (2 * n1))
    fewer, more = sorted((n1, n0))
    spread = 1 / n1 + 1 / n0
    c = (more + 2 * fewer) / (3 * math.sqrt(more * fewer * (more + fewer)))
    return float(np.sqrt(np.pi / 8 * spread) * erfcx(c / math.sqrt(2)))


@checked
def ppv(tpr: Rates, fpr: Rates, prior: Rates) -> float | np.ndarray:
    """Positive predictive value, the share of members among those called members:
    prior TPR / (prior TPR + (1 - prior) FPR).

    Parameters:
        tpr: true positive rate in [0, 1]; all three broadcast.
        fpr: false positive rate in [0, 1].
        prior: share of members among the samples that an attacker has, in [0, 1].

    Returns:
        A number or an array; NaN when no sample is called a member.

    Example:
        >>> round(float(ppv(tpr=0.05, fpr=0.001, prior=0.1)), 3)  # one sample in ten is a member
        0.847
    """
    prior = np.asarray(prior, np.float64)
    true_positives = np.asarray(prior * np.asarray(tpr, np.float64))
    false_positives = np.asarray((1 - prior) * np.asarray(fpr, np.float64))
    with np.errstate(invalid="ignore"):
        return true_positives / (true_positives + false_positives)


def measurable(metric: str, n0: int) -> bool:
    """Whether n0 non-members are enough for a metric: a TPR such as "tpr@0.01" needs 10 allowed
    false positives; every other metric can always be measured.
    """
    if "tpr@" not in metric:
        return True
    return bool(allowed_false_positives(rate_of(metric), n0) >= MIN_FALSE_POSITIVES)


def rate_of(metric: str) -> float:
    """The FPR in a metric's name, such as "tpr@0.01"; 0 where there is none."""
    return float(metric.partition("tpr@")[2] or 0)


@checked
def tie_mass(score: Numbers) -> float:
    """Share of samples whose score equals another's: 0 for continuous scores, 1 when all are
    equal.
    """
    _, sizes = np.unique(reals("scores", score), return_counts=True)
    return float(sizes[sizes > 1].sum() / sizes.sum())


@checked
def thin(curve: Roc, n0: Positive) -> Roc:
    """A drawable subset of vertices: 50,001 points become about 800, and the TPR at FPR k/n0 stays
    exact for every k kept.

    Parameters:
        curve: all vertices.
        n0: number of non-members, so that FPRs become counts.

    It keeps the false positive counts from 0 to 50, those of the FPRs 1e-4, 1e-3, 1e-2 and 1e-1,
    and a geometric and a linear grid beyond 50. A count without a vertex is replaced by the next
    one below it. Compute the AUC from the full curve.
    """
    fp = np.rint(curve.fpr * n0).astype(np.int64)
    if not np.allclose(fp, curve.fpr * n0, atol=1e-6):
        raise ValueError(
            f"n0={n0} does not fit this curve: fpr * n0 is not whole; pass its number of"
            " non-members"
        )
    marks = allowed_false_positives(np.array([1e-4, 1e-3, 1e-2, 1e-1]), n0)
    geometric = np.geomspace(50, max(n0, 50), 200)
    linear = np.linspace(50, max(n0, 50), 200)
    grid = np.concatenate([np.arange(51), marks, geometric, linear])
    grid = np.unique(np.minimum(grid, n0).astype(np.int64))
    kept_counts = np.unique(fp[np.searchsorted(fp, grid, side="right") - 1])
    # Vertices of one count form a vertical stretch of the curve; both of its ends are kept.
    first = np.searchsorted(fp, kept_counts, side="left")
    last = np.searchsorted(fp, kept_counts, side="right") - 1
    keep = np.union1d(first, last)
    return Roc(curve.fpr[keep], curve.tpr[keep], curve.threshold[keep])
