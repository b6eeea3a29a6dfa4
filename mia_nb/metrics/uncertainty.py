"""The rule by which this package computes intervals.

The mean of a metric over targets varies because other models might have been trained, and because
other samples might have been audited. Half of a 95 % interval is

    h^2 = t^2 s^2 / P + z^2 max(0, V - sum_p V_p / P^2),    and h >= z sqrt(V)

    P    pairs of complementary models
    s^2  the variance of the pairs' means
    V    the variance of the overall mean when samples are drawn with replacement
         (`metrics.bootstrap`) and the models stay
    V_p  the same of one pair's mean
    t    Student's quantile with P - 1 degrees of freedom
    z    the normal quantile

V - sum_p V_p / P^2 is the variance that all pairs share because they are audited on the same
samples; s^2 holds the rest.

Source: two-way clustering of Cameron, Gelbach and Miller (2011), V_pairs + V_samples - V_both;
Student's t and the lower bound are for few pairs. A bootstrap over pairs and samples at once counts
V_both three times (Owen 2007), and with few pairs sees too little of how models differ.
`benchmarks/coverage.py` shows how often the truth is covered. Caveat: targets are each other's
references, so that where there are few, they move together: with 3 pairs t is therefore taken at
half the error. Two pairs give wide intervals, and no rule can do much better: among those that
estimate the variance between pairs and cover 95 % whatever it is, none is more than 5 % narrower
where pairs do not differ (4, 8 and 16 targets; `benchmarks/RESULTS.md`, 26 November 2026).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

from mia_nb.accounting.gaussian import bisect
from mia_nb.arguments import Array, Count, Level, Rates, Several, Whole
from mia_nb.checks import checked
from mia_nb.metrics.bootstrap import RESAMPLES, bootstrap
from mia_nb.metrics.curve import clopper_pearson, clopper_pearson_of_groups
from mia_nb.metrics.pairs import numbered, pair_means, rows_of_pairs, same_masks
from mia_nb.metrics.targets import FPR, metric_names, per_target, per_target_metrics
from mia_nb.types import Scores

STRICTER_PAIRS = 3  # with so many pairs Student's t is taken at half the error
FEW_SAMPLES = 50  # with fewer members or non-members an AUC's interval also covers Newcombe's
# with fewer members found or missed, in all targets, a TPR's interval also covers Clopper-Pearson's
FEW_HITS = 10
DIFFERENCE = (-1, 1)  # smallest and largest difference of two numbers from 0 to 1


def half_width(
    over_pairs: np.ndarray,
    pairs: int,
    shared: np.ndarray | float = 0.0,
    least: np.ndarray | float = 0.0,
    *,
    confidence: float = 0.95,
    free: int | None = None,
) -> np.ndarray | float:
    """Half of the interval of a mean: sqrt(t^2 over_pairs + z^2 shared), and at least
    z sqrt(least).

    Parameters:
        over_pairs: variance of the mean, estimated from `pairs` independent units.
        pairs: number of these units; with one the result is NaN.
        shared: variance that these units have in common.
        least: lower bound of the variance of the mean.
        confidence: in (0, 1).
        free: degrees of freedom of `shared` and `least`, for Student's t in place of z; None: many.

    Returns:
        a number or an array; all but `confidence` and `free` broadcast.
    """
    tail = (1 - confidence) / 2
    degrees_of_freedom = np.where(pairs > 1, pairs - 1, np.nan)
    t = -stdtrit(degrees_of_freedom, np.where(pairs == STRICTER_PAIRS, tail / 2, tail))
    z = -ndtri(tail) if free is None else -stdtrit(free, tail)
    square = t**2 * over_pairs + z**2 * np.maximum(shared, 0)
    return np.sqrt(np.maximum(square, z**2 * least))


class Variances(NamedTuple):
    """The parts of the variance of a mean over targets; symbols as on top of this module."""

    over_pairs: np.ndarray  # s^2 / P
    pairs: int  # P
    shared: np.ndarray | float  # V - sum_p V_p / P^2
    by_samples: np.ndarray | float  # V

    def half_width(self, *, confidence: float, free: int | None = None) -> np.ndarray | float:
        """Half of the interval of that mean, by the function of this name."""
        return half_width(
            self.over_pairs,
            self.pairs,
            self.shared,
            least=self.by_samples,
            confidence=confidence,
            free=free,
        )


def variances(values: np.ndarray, pair: np.ndarray, sampled: np.ndarray | None = None) -> Variances:
    """The variances of a mean over targets.

    Parameters:
        values: (targets, ...).
        pair: (targets,) number of each target's pair.
        sampled: (n_resamples, targets, ...) the values on resamples; None: the choice of samples
            counts for nothing.
    """
    number = numbered(pair)
    means = pair_means(values, number)
    pairs = len(means)
    over_pairs = np.full(means.shape[1:], np.nan)
    if pairs > 1:
        over_pairs = means.var(0, ddof=1) / pairs
    if sampled is None:
        return Variances(over_pairs, pairs, 0.0, 0.0)
    # (pairs, n_resamples, ...)
    resampled_means = np.stack([sampled[:, rows].mean(1) for rows in rows_of_pairs(number)])
    by_samples = np.nanvar(resampled_means.mean(0), axis=0, ddof=1)
    of_pairs = np.nanvar(resampled_means, axis=1, ddof=1)
    shared = by_samples - of_pairs.sum(0) / pairs**2
    return Variances(over_pairs, pairs, shared, by_samples)


@checked
def interval(
    values: Array,
    pair: Array,
    sampled: Array | None = None,
    *,
    confidence: Level = 0.95,
    free: Whole | None = None,
    within: tuple | None = None,
) -> tuple:
    """(low, high) of the mean over targets, by the rule on top of this module.

    Parameters:
        values: (targets, ...) a metric, or a difference of two.
        pair: (targets,) number of each target's pair of models.
        sampled: (n_resamples, targets, ...) the same on samples drawn with replacement
            (`metrics.bootstrap.bootstrap`), to cover the choice of samples too.
        confidence: in (0, 1).
        free: degrees of freedom of the samples' variance, for Student's t where few groups of
            samples were audited; None: many.
        within: (smallest, largest) possible mean, such as (-1, 1) of a difference of AUCs, which
            Student's t over few pairs would leave; the ends are clipped to it. None: any number.

    Returns:
        two numbers, or arrays (...). With one pair the interval is that of the samples alone, and
        NaN without `sampled`.

    Raises:
        ValueError: where there is not one pair's number for each target.

    Example:
        >>> aucs = [0.62, 0.64, 0.58, 0.60, 0.61, 0.61]  # of two targets from each of three pairs
        >>> low, high = interval(aucs, pair=[0, 0, 1, 1, 2, 2])
        >>> round(float(low), 3), round(float(high), 3)  # wide, as three pairs are few
        (0.538, 0.682)

    Source: Cameron, Gelbach and Miller 2011.
    """
    values = np.asarray(values, np.float64)
    pair = np.asarray(pair)
    if values.ndim == 0 or values.shape[:1] != pair.shape:
        raise ValueError(
            f"values {values.shape} and pair {pair.shape}: wanted one pair's number for each target"
        )
    variance = variances(values, pair, sampled)
    if variance.pairs < 2 and sampled is not None:
        # one pair says nothing about other models: the interval is that of other samples
        upper = (1 + confidence) / 2
        quantile = ndtri(upper) if free is None else stdtrit(free, upper)
        half = quantile * np.sqrt(variance.by_samples)
    else:
        half = variance.half_width(confidence=confidence, free=free)
    mean = values.mean(0)
    if within is None:
        return mean - half, mean + half
    return np.clip(mean - half, *within), np.clip(mean + half, *within)


def metric_interval(
    name: str,
    rows: pd.DataFrame,
    sampled: np.ndarray | None = None,
    *,
    confidence: float = 0.95,
    group_counts: np.ndarray | None = None,
) -> tuple[float, float]:
    """(low, high) of the mean of one metric over targets, inside [0, 1]: that of `interval`, or a
    wider one where that is too narrow.

    Parameters:
        name: of the metric.
        rows: those of its targets in `metrics.per_target`.
        sampled: (n_resamples, targets) the metric on samples drawn with replacement, or None.
        confidence: in (0, 1).
        group_counts: (targets, 2) numbers of independent groups of members and of non-members
            (`groups_per_side`); None: each sample is a group.

    With fewer than two groups on a side nothing is known of other samples: the ends are 0 and 1.
    """
    free = None
    if group_counts is not None:
        free = int(group_counts.min()) - 1
        if free < 1:
            return 0.0, 1.0
    ends = interval(
        rows[name].to_numpy(float),
        rows["pair"].to_numpy(),
        sampled,
        confidence=confidence,
        free=free,
    )
    if name.startswith("tpr"):
        ends = _ends_of_tpr(name, rows, ends, confidence, group_counts)
    elif name == "auc":
        ends = _ends_of_auc(rows, ends, confidence, group_counts)
    elif name == "advantage":
        ends = _ends_of_advantage(rows, ends, confidence, group_counts)
    low, high = np.clip(ends, 0, 1)
    return float(low), float(high)


def _sides(rows: pd.DataFrame, group_counts: np.ndarray | None) -> np.ndarray:
    """(targets, 2) numbers of independent members and non-members: groups, or samples."""
    return rows[["n1", "n0"]].to_numpy() if group_counts is None else group_counts


def _ends_of_tpr(
    name: str, rows: pd.DataFrame, ends: tuple, confidence: float, group_counts: np.ndarray | None
) -> tuple[float, float]:
    """The ends of `interval` made wider.

    A TPR counts the members above the first non-member that is one too many, so the threshold's
    expected FPR lies up to 1 / (n0 + 1) above the stated one: the lower end is moved down by what
    one false positive fewer would cost. With one pair, and where fewer than 10 members were found
    or missed in all, the ends also cover Clopper-Pearson's interval of a single target, over
    groups of members where there are groups.
    """
    low, high = ends
    low -= (rows[name] - rows[f"{name}_fewer"]).mean()
    hits = rows[f"{name}_tp"].to_numpy()
    n1 = rows["n1"].to_numpy()
    trials = _sides(rows, group_counts)[:, 0]
    # counted in groups of members where there are groups
    found = (hits * trials / n1).sum()
    missed = ((n1 - hits) * trials / n1).sum()
    few = min(found, missed) < FEW_HITS
    if rows["pair"].nunique() > 1 and not few:
        return low, high
    exact_low, exact_high = clopper_pearson_of_groups(hits, n1, trials, confidence=confidence)
    return np.fmin(low, exact_low.mean()), np.fmax(high, exact_high.mean())


def _ends_of_advantage(
    rows: pd.DataFrame, ends: tuple, confidence: float, group_counts: np.ndarray | None
) -> tuple[float, float]:
    """The ends of `interval`, or others where every target's advantage is 0 or 1, which leaves the
    bootstrap without variance.

    Of n groups that all lie on one side of a threshold that the other sample sets, a share of at
    most 1 - q^(1/n) lies on its other side, with error q (Clopper-Pearson). Half of the error goes
    to members, half to non-members. An advantage of 1 is thus at least 1 minus both shares, one of
    0 at most the larger share. (Twice an AUC less 1 is no bound: it may be larger or smaller.)
    """
    values = rows["advantage"].to_numpy(float)
    all_one = (values == 1).all()
    all_zero = not values.any()
    if not (all_one or all_zero):
        return ends
    with_half_the_error = (1 + confidence) / 2
    fewest = _sides(rows, group_counts).min(0)
    _, shares = clopper_pearson(0, fewest, confidence=with_half_the_error)
    if all_one:
        return 1 - shares.sum(), 1.0
    low, high = ends
    return low, np.fmax(high, shares.max())


def _ends_of_auc(
    rows: pd.DataFrame, ends: tuple, confidence: float, group_counts: np.ndarray | None
) -> tuple[float, float]:
    """The ends of `interval`, or others where samples are too few for its variance.

    An AUC of exactly 0 or 1 has Clopper-Pearson's interval for min(n1, n0) disjoint pairs of a
    member and a non-member, or of groups. With one pair of models and fewer than 50 members or
    non-members, or groups of them, the ends also cover Newcombe's, since the bootstrap's are too
    narrow there.
    """
    values = rows["auc"].to_numpy(float)
    perfect = (values == 0).all() or (values == 1).all()
    if not perfect and rows["pair"].nunique() > 1:
        return ends
    sides = _sides(rows, group_counts)
    fewest = sides.min()
    if perfect:
        return clopper_pearson(fewest * values[0], fewest, confidence=confidence)
    if fewest >= FEW_SAMPLES:
        return ends
    of_targets = []
    for value, (n1, n0) in zip(values, sides, strict=True):
        of_targets.append(newcombe(value, n1, n0, confidence=confidence))
    newcombe_low, newcombe_high = np.mean(of_targets, axis=0)
    low, high = ends
    return np.fmin(low, newcombe_low), np.fmax(high, newcombe_high)


def newcombe(value: float, n1: int, n0: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """(low, high) of the AUC of few samples: all A with |value - A| <= z sd(A).

        sd(A)^2 = A (1 - A) (1 + (N - 1) ((1 - A) / (2 - A) + A / (1 + A))) / (n1 n0)

    with N = (n1 + n0) / 2, the variance that Hanley and McNeil give for exponential scores.
    Source: Newcombe 2006, method 5; the ends by bisection. Caveat: approximate; `benchmarks` and
    tests measure its coverage.
    """
    z = -ndtri((1 - confidence) / 2)
    mean_size = (n1 + n0) / 2

    def too_far(area: float) -> bool:
        """Whether this AUC lies outside the interval."""
        by_pairs = (1 - area) / (2 - area) + area / (1 + area)
        variance = area * (1 - area) * (1 + (mean_size - 1) * by_pairs) / (n1 * n0)
        return abs(value - area) > z * np.sqrt(variance)

    low, _ = bisect(lambda area: not too_far(area), 0.0, float(value))
    _, high = bisect(too_far, float(value), 1.0)
    return low, high


@checked
def difference(
    a: Scores,
    b: Scores,
    fpr: Rates = FPR,
    *,
    n_resamples: Several = RESAMPLES,
    seed: Count = 0,
    confidence: Level = 0.95,
) -> pd.DataFrame:
    """The difference a - b of every metric, with a paired interval: samples and pairs are the same
    on both sides. Each side leaves out what its own attack did not score (NaN).

    Parameters:
        a: scores of one attack, or of one family.
        b: of another attack on the same pool, or of a family trained on the same masks.
        fpr, n_resamples, seed: as in `metrics.summary`.
        confidence: in (0, 1).

    Returns:
        index metric (auc, advantage, tpr@x), columns value, low, high.

    Raises:
        ValueError: where masks or pairs differ.
    """
    if not same_masks(a, b):
        raise ValueError(
            "the two scores have different membership: a paired difference needs the same masks,"
            " row by row"
        )
    value = per_target_metrics(a, fpr) - per_target_metrics(b, fpr)
    drawn_a = bootstrap(a, fpr, n_resamples=n_resamples, seed=seed)
    drawn_b = bootstrap(b, fpr, n_resamples=n_resamples, seed=seed)
    drawn = np.stack([drawn_a[name] - drawn_b[name] for name in drawn_a], 2)
    low, high = interval(value, a.pair, drawn, confidence=confidence, within=DIFFERENCE)
    table = {"value": value.mean(0), "low": low, "high": high}
    return pd.DataFrame(table, index=pd.Index(metric_names(fpr), name="metric"))


@checked
def intervals(
    scores: Scores,
    fpr: Rates = FPR,
    *,
    n_resamples: Several = RESAMPLES,
    seed: Count = 0,
    confidence: Level = 0.95,
    groups: Array | None = None,
) -> pd.DataFrame:
    """Every metric of one attack, as a mean over targets with its interval.

    Parameters:
        scores: of one attack.
        fpr, n_resamples, seed: as in `metrics.summary`.
        confidence: in (0, 1).
        groups: (N,) labels of audited samples; those of one label, such as a patient's images, are
            drawn together. None: each sample by itself.

    Returns:
        index metric (auc, advantage, tpr@x), columns value, low, high, by the rule of
        `metrics.uncertainty`.

    Caveat: targets share their references, which nothing here resamples.
    """
    rows = per_target(scores, fpr)  # first, as it refuses targets without a score
    drawn = bootstrap(scores, fpr, n_resamples=n_resamples, seed=seed, groups=groups)
    group_counts = None
    if groups is not None:
        group_counts = groups_per_side(scores, groups)
    return intervals_of_rows(rows, drawn, confidence, group_counts)


def groups_per_side(scores: Scores, groups: np.ndarray) -> np.ndarray:
    """(targets, 2) how many groups the scored members of each target are from, and the scored
    non-members.
    """
    number = numbered(groups)
    known = ~np.isnan(scores.value)
    sides = []
    for scored, member in zip(known, scores.member, strict=True):
        members = np.unique(number[scored & member])
        non_members = np.unique(number[scored & ~member])
        sides.append([len(members), len(non_members)])
    return np.array(sides)


def intervals_of_rows(
    rows: pd.DataFrame,
    sampled: dict[str, np.ndarray],
    confidence: float = 0.95,
    group_counts: np.ndarray | None = None,
) -> pd.DataFrame:
    """`intervals` from their parts.

    Parameters:
        rows: of `per_target`, of one attack.
        sampled: of `bootstrap`.
        confidence: in (0, 1).
        group_counts: of `groups_per_side`; None: each sample is a group.
    """
    ends = {}
    for name, drawn in sampled.items():
        low, high = metric_interval(
            name, rows, drawn, confidence=confidence, group_counts=group_counts
        )
        ends[name] = (rows[name].mean(), low, high)
    table = pd.DataFrame.from_dict(ends, orient="index", columns=["value", "low", "high"])
    return table.rename_axis("metric")


def with_ends(name: str, value: float, low: float, high: float) -> dict[str, float]:
    """A value and its ends as columns of a table: {name, name_low, name_high}."""
    return {name: float(value), f"{name}_low": float(low), f"{name}_high": float(high)}
