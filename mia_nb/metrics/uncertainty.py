"""Intervals: every one that this package prints is computed here, by one rule.

The mean of a metric over targets varies because other models might have been trained, and because
other samples might have been audited. Half of a 95 % interval is

    h^2 = t^2 s^2 / P + z^2 max(0, V - sum_p V_p / P^2),    and h >= z sqrt(V)

    P    pairs of complementary models
    s^2  the variance of the pairs' means
    V    the variance of the overall mean when samples are drawn with replacement (`bootstrap`) and
         the models stay
    V_p  the same of one pair's mean
    t    Student's quantile with P - 1 degrees of freedom
    z    the normal quantile

V - sum_p V_p / P^2 is what all pairs share because they are audited on the same samples; s^2 holds
the rest.

The file has metrics of targets, then intervals (`interval`, and what rests on it), then the
bootstrap: exact up to 10,000 samples, from there on to first order.

Source: two-way clustering of Cameron, Gelbach and Miller (2011), V_pairs + V_samples - V_both;
Student's t and the lower bound are for few pairs. A bootstrap over pairs and samples at once counts
V_both three times (Owen 2007), and with few pairs sees too little of how models differ.
`benchmarks/coverage.py` shows how often the truth is covered. Caveat: targets are each other's
references, which moves them together where there are few: over 3 pairs t is therefore taken at half
the error. Two pairs give wide intervals, and have to: of all rules that see how pairs vary and
cover 95 % however much they differ, none is more than 5 % narrower where they do not differ (4, 8
and 16 targets; `benchmarks/RESULTS.md`, 26 November 2026).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

from mia_nb.arguments import Array, Count, Level, Rates, Whole
from mia_nb.checks import checked, whole
from mia_nb.metrics.curve import (
    area,
    clopper_pearson,
    counts,
    measurable,
    rates,
    vertex_at,
)
from mia_nb.metrics.pairs import numbered, same_masks
from mia_nb.types import Scores

FPR = (0.001, 0.01, 0.1)
RESAMPLES = 400  # from which a variance is known to 4 %
STRICTER_PAIRS = 3  # over which Student's t is taken at half the error
FEW_SAMPLES = 50  # members, or non-members: an AUC's interval of fewer covers Newcombe's too
FEW_HITS = 10  # members found, or missed, in all targets: of fewer no variance is trusted alone
# of the bootstrap
FIRST_ORDER_FROM = 10_000  # samples from which resamples are computed to first order
MOST_UNITS = 1 << 16  # samples drawn one by one to first order; of more, groups are drawn
CHUNK = 1 << 17  # weights held at once: the working set stays in the cache
TARGETS = 16  # that a thread works on at once


def names(fpr: float | Sequence[float]) -> list[str]:
    """Metric names in the order used throughout: auc, advantage, one tpr@x per FPR."""
    return ["auc", "advantage", *(f"tpr@{x:g}" for x in fpr)]


def scored(scores: Scores, row: int) -> tuple[np.ndarray, np.ndarray]:
    """(score, member) of one target without the samples an attack could not score (NaN: a side was
    missing).
    """
    known = ~np.isnan(scores.value[row])
    return scores.value[row, known], scores.member[row, known]


def smallest(scores: Scores) -> tuple[int, int]:
    """(members, non-members) scored, each of the target that has fewest."""
    n1 = []
    n0 = []
    for row in range(len(scores.value)):
        _, member = scored(scores, row)
        n1.append(int(member.sum()))
        n0.append(int((~member).sum()))
    return min(n1), min(n0)


def measurable_rates(scores: Scores) -> list[float]:
    """The FPRs at which every target has non-members enough for a TPR."""
    _, n0 = smallest(scores)
    return [x for x in FPR if measurable(f"tpr@{x:g}", n0)]


def tied_floor(scores: Scores) -> float:
    """The smallest FPR above 0 that thresholds can realise, the largest over targets.

    Below it a TPR is the work of ties.
    """
    floors = []
    for row in range(len(scores.value)):
        _, fp, _ = counts(*scored(scores, row))
        floors.append(fp[fp > 0][0] / fp[-1])
    return float(max(floors))


def per_target_metrics(scores: Scores, fpr: float | Sequence[float] = FPR) -> np.ndarray:
    """(targets, metrics) in the order of `names`."""
    fpr = rates(fpr)
    metrics = []
    for row in range(len(scores.value)):
        tp, fp, _ = counts(*scored(scores, row))
        metrics.append(_metrics(tp, fp, fpr))
    return np.stack(metrics)


def _metrics(tp: np.ndarray, fp: np.ndarray, fpr: Sequence[float]) -> list[float]:
    """Every metric of one target, in the order of `names`, from its `counts`."""
    advantage = (tp / tp[-1] - fp / fp[-1]).max()
    tpr = [tp[vertex_at(tp, fp, x)] / tp[-1] for x in fpr]  # without intervals, which take time
    return [area(tp, fp), advantage, *tpr]


def half_width(
    over_pairs: np.ndarray,
    pairs: int,
    shared: np.ndarray | float = 0.0,
    least: np.ndarray | float = 0.0,
    *,
    confidence: float = 0.95,
):
    """Half of the interval of a mean: sqrt(t^2 over_pairs + z^2 shared), and at least
    z sqrt(least).

    Parameters:
        over_pairs: variance of the mean, as `pairs` independent units show it.
        pairs: their number; with one unit the result is NaN.
        shared: variance that these units have in common.
        least: variance below which that of the mean cannot lie.
        confidence: in (0, 1).

    Returns:
        a number or an array; all but `confidence` broadcast.
    """
    pairs = np.asarray(pairs)
    tail = (1 - confidence) / 2
    degrees_of_freedom = np.where(pairs > 1, pairs - 1, np.nan)
    t = -stdtrit(degrees_of_freedom, np.where(pairs == STRICTER_PAIRS, tail / 2, tail))
    z = -ndtri(tail)
    square = t**2 * over_pairs + z**2 * np.maximum(shared, 0)
    return np.sqrt(np.maximum(square, z**2 * np.asarray(least)))


def _variances(
    values: np.ndarray, pair: np.ndarray | None, sampled: np.ndarray | None = None
) -> tuple:
    """What `half_width` takes: the variance over pairs of the mean over targets, the number of
    pairs, the variance that pairs share, and the variance by the choice of samples alone.

    values (targets, ...), sampled (n_resamples, targets, ...) or None.
    """
    number = numbered(pair)
    pairs = number.max() + 1
    means = np.stack([values[number == i].mean(0) for i in range(pairs)])
    over_pairs = np.full(means.shape[1:], np.nan)
    if pairs > 1:
        over_pairs = means.var(0, ddof=1) / pairs
    if sampled is None:
        return over_pairs, pairs, 0.0, 0.0
    drawn = np.stack([sampled[:, number == i].mean(1) for i in range(pairs)])
    by_samples = np.nanvar(drawn.mean(0), axis=0, ddof=1)
    of_pairs = np.nanvar(drawn, axis=1, ddof=1)
    return over_pairs, pairs, by_samples - of_pairs.sum(0) / pairs**2, by_samples


@checked
def interval(
    values: Array,
    pair: Array,
    sampled: Array | None = None,
    *,
    confidence: Level = 0.95,
    free: Whole | None = None,
) -> tuple:
    """(low, high) of the mean over targets, by the rule on top of this module.

    Parameters:
        values: (targets, ...) a metric, or a difference of two.
        pair: (targets,) number of each target's pair of models.
        sampled: (n_resamples, targets, ...) the same on samples drawn with replacement
            (`metrics.uncertainty.bootstrap`), where the choice of samples is to be covered.
        confidence: in (0, 1).
        free: degrees of freedom of the samples' variance with one pair, where few groups were drawn
            (Student's t); None: many.

    Returns:
        two numbers, or arrays (...). With one pair the interval is that of the samples alone, and
        NaN without `sampled`.

    Source: Cameron, Gelbach and Miller 2011.
    """
    values = np.asarray(values, np.float64)
    pair = np.asarray(pair)
    if values.ndim == 0 or values.shape[:1] != pair.shape:
        raise ValueError(
            f"values {values.shape} and pair {pair.shape}: wanted one pair's number for each target"
        )
    return intervals_at([confidence], values, pair, sampled, free=free)[0]


def intervals_at(
    levels: Sequence[float],
    values: np.ndarray,
    pair: np.ndarray,
    sampled: np.ndarray | None = None,
    *,
    free: int | None = None,
) -> list[tuple]:
    """`interval` at several confidences, for which the variances are computed once."""
    over_pairs, pairs, shared, by_samples = _variances(values, pair, sampled)
    mean = values.mean(0)
    ends = []
    for level in levels:
        upper = (1 + level) / 2
        if pairs > 1:
            half = half_width(over_pairs, pairs, shared, by_samples, confidence=level)
        elif sampled is None:
            half = np.nan * over_pairs
        elif free is None:
            half = ndtri(upper) * np.sqrt(by_samples)
        else:
            half = stdtrit(max(free, 1), upper) * np.sqrt(by_samples)
        ends.append((mean - half, mean + half))
    return ends


def ratio_interval(
    a: np.ndarray,
    b: np.ndarray,
    pair: np.ndarray,
    draws_a: np.ndarray | None = None,
    draws_b: np.ndarray | None = None,
    *,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """(low, high) of mean(a) / mean(b): all ratios r >= 0 that a - r b does not reject.

    Parameters:
        a, b: (targets,) paired values, not negative.
        pair: (targets,) number of each target's pair of models.
        draws_a, draws_b: (n_resamples, targets) the same on samples drawn with replacement.
        confidence: in (0, 1).

    r belongs to the interval where |mean(a - r b)| is at most half of the interval of a - r b
    (Fieller 1954, with the variances of `interval`). The upper end is inf where mean(b) is not
    resolved from 0. NaN with one pair. Caveat: the covariance is half of what the variance of a + b
    is beyond those of a and b: approximate where a bound binds.
    """
    values = np.column_stack([a, b])
    resampled = None if draws_a is None else np.stack([draws_a, draws_b], 2)
    squares = []  # of half the intervals of a, b and a + b
    for combination in np.array([[1, 0], [0, 1], [1, 1]]):
        drawn = None if resampled is None else resampled @ combination
        variances = _variances(values @ combination, pair, drawn)
        if variances[1] < 2:
            return np.nan, np.nan
        squares.append(half_width(*variances, confidence=confidence) ** 2)
    square_a, square_b, square_sum = squares
    covariance = (square_sum - square_a - square_b) / 2
    # The ends are the roots of quadratic r^2 - 2 linear r + constant.
    mean_a, mean_b = values.mean(0)
    quadratic = mean_b**2 - square_b
    linear = mean_a * mean_b - covariance
    constant = mean_a**2 - square_a
    root = np.sqrt(max(linear**2 - quadratic * constant, 0.0))
    # The lower one is (linear - root) / quadratic, in a form that also holds where quadratic <= 0.
    low = constant / (linear + root) if linear + root > 0 else 0.0
    resolved = quadratic > 1e-12 * mean_b**2
    return max(low, 0.0), (linear + root) / quadratic if resolved else np.inf


def metric_interval(
    name: str,
    rows: pd.DataFrame,
    sampled: np.ndarray | None = None,
    *,
    confidence: float = 0.95,
    free: int | None = None,
) -> tuple[float, float]:
    """(low, high) of one metric, inside [0, 1]: `interval`, and where that is too narrow more.

    Parameters:
        name: of the metric.
        rows: those of its targets in `metrics.per_target`.
        sampled: (n_resamples, targets) the metric on samples drawn with replacement, or None.
        confidence, free: as for `interval`.

    A TPR counts the members above the first non-member that is one too many, so that the
    threshold's expected FPR lies up to 1 / (n0 + 1) above the stated one: the lower end is moved
    down by what one false positive fewer would cost. With one pair, and where fewer than 10 members
    were found or missed in all, the interval also covers Clopper-Pearson's for a single target.
    That of an AUC of exactly 0 or 1 is Clopper-Pearson's for min(n1, n0) disjoint pairs of a member
    and a non-member. With one pair and fewer than 50 members or non-members, the interval of an AUC
    also covers Newcombe's, since the bootstrap's is too narrow there.
    """
    values = rows[name].to_numpy(float)
    pair = rows["pair"].to_numpy()
    low, high = interval(values, pair, sampled, confidence=confidence, free=free)
    if name.startswith("tpr"):
        hits = rows[f"{name}_tp"].to_numpy()
        n1 = rows["n1"].to_numpy()
        low -= (values - rows[f"{name}_fewer"]).mean()
        if len(np.unique(pair)) < 2 or min(hits.sum(), (n1 - hits).sum()) < FEW_HITS:
            exact = [end.mean() for end in clopper_pearson(hits, n1, confidence=confidence)]
            low = np.fmin(low, exact[0])
            high = np.fmax(high, exact[1])
    elif name == "auc":
        low, high = _area_ends(rows, low, high, confidence)
    return tuple(float(end) for end in np.clip((low, high), 0, 1))


def _area_ends(
    rows: pd.DataFrame, low: float, high: float, confidence: float
) -> tuple[float, float]:
    """The ends of an AUC's interval where the bootstrap's are too narrow: at 0 and 1, and of few
    samples.
    """
    values = rows["auc"].to_numpy(float)
    extreme = values.min() == values.max() and values[0] in (0, 1)
    single = rows["pair"].nunique() < 2
    if not (extreme or single):
        return low, high
    fewest = int(rows[["n1", "n0"]].to_numpy().min())
    if extreme:
        return clopper_pearson(fewest * values[0], fewest, confidence=confidence)
    if fewest >= FEW_SAMPLES:
        return low, high
    ends = [
        newcombe(value, n1, n0, confidence=confidence)
        for value, n1, n0 in rows[["auc", "n1", "n0"]].itertuples(index=False)
    ]
    exact = np.mean(ends, axis=0)
    return np.fmin(low, exact[0]), np.fmax(high, exact[1])


def newcombe(value: float, n1: int, n0: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """(low, high) of an AUC of few samples: all A for which |value - A| is at most z sd(A).

        sd(A)^2 = A (1 - A) (1 + (N - 1) ((1 - A) / (2 - A) + A / (1 + A))) / (n1 n0)

    with N = (n1 + n0) / 2, the variance that Hanley and McNeil give for exponential scores.
    Source: Newcombe 2006, method 5; the ends by bisection. Caveat: approximate; `benchmarks` and
    tests say how often it covers.
    """
    z = -ndtri((1 - confidence) / 2)

    def too_far(area: float) -> bool:
        by_pairs = (1 - area) / (2 - area) + area / (1 + area)
        variance = area * (1 - area) * (1 + ((n1 + n0) / 2 - 1) * by_pairs) / (n1 * n0)
        return abs(value - area) > z * np.sqrt(variance)

    ends = []
    for end in (0.0, 1.0):
        outside = end
        inside = float(value)
        if value == end or not too_far(min(max(end, 1e-9), 1 - 1e-9)):
            ends.append(end)
            continue
        for _ in range(50):
            middle = (outside + inside) / 2
            if too_far(middle):
                outside = middle
            else:
                inside = middle
        ends.append(outside)
    return ends[0], ends[1]


@checked
def difference(
    a: Scores,
    b: Scores,
    fpr: Rates = FPR,
    *,
    n_resamples: Count = RESAMPLES,
    seed: Count = 0,
    confidence: Level = 0.95,
) -> pd.DataFrame:
    """a - b in every metric: a paired interval, the same samples and pairs on both sides.

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
    low, high = interval(value, a.pair, drawn, confidence=confidence)
    table = {"value": value.mean(0), "low": low, "high": high}
    return pd.DataFrame(table, index=pd.Index(names(fpr), name="metric"))


@checked
def bootstrap(
    scores: Scores,
    fpr: Rates = FPR,
    *,
    n_resamples: Count = RESAMPLES,
    seed: Count = 0,
    groups: Array | None = None,
) -> dict[str, np.ndarray]:
    """Each metric of each target on samples drawn with replacement: {name: (n_resamples, targets)}.

    Parameters:
        scores: of one attack.
        fpr: false positive rates, each a metric "tpr@x".
        n_resamples: how often samples are drawn.
        seed: of the draws.
        groups: (N,) labels of what is drawn as a whole, where samples are not independent of each
            other (a patient's ten images); None: each sample by itself.

    A resample takes the same N samples for all targets; metrics use their integer weights on scores
    that are sorted once. The same seed and N give the same samples, so that differences of attacks
    or of pools, taken resample by resample, are paired.

    From 10,000 samples (or groups) on, a resample's metric is computed to first order: the metric
    plus the mean influence of the samples drawn, see `influence`. On the shipped pools of 50,000
    samples the standard error of an AUC is then that of the bootstrap to three digits, that of a
    TPR within 5 % at 1 % FPR and 12 % at 0.1 %, that of the advantage up to 17 % larger.
    """
    fpr = rates(fpr)
    targets = len(scores.value)
    n_resamples = whole("n_resamples", n_resamples)
    seed = whole("seed", seed, 0)
    unit = None
    units = scores.value.shape[1]
    if groups is not None:
        unit = np.unique(groups, return_inverse=True)[1].ravel()
        if unit.shape != scores.value.shape[1:]:
            raise ValueError(
                f"groups have shape {np.shape(groups)}; wanted {scores.value.shape[1:]}, a label"
                " per sample"
            )
        units = int(unit.max()) + 1
    if units >= FIRST_ORDER_FROM:
        drawn = _drawn_to_first_order(scores, fpr, n_resamples, seed, unit, units)
    else:
        batches = np.array_split(np.arange(targets), math.ceil(targets / TARGETS))
        of_batch = partial(_drawn, scores, fpr=fpr, n_resamples=n_resamples, seed=seed, unit=unit)
        with _threads(len(batches)) as executor:
            parts = list(executor.map(of_batch, batches))
        drawn = np.concatenate(parts, 1)
    return dict(zip(names(fpr), np.moveaxis(drawn, 2, 0), strict=True))


def _threads(tasks: int) -> ThreadPoolExecutor:
    """A thread for each task, up to one a core."""
    # respects containers and affinity; few of those who import this module resample
    from joblib import cpu_count

    return ThreadPoolExecutor(min(tasks, cpu_count()))


def _drawn(
    scores: Scores,
    targets: np.ndarray,
    fpr: Sequence[float],
    n_resamples: int,
    seed: int,
    unit: np.ndarray | None = None,
) -> np.ndarray:
    """(n_resamples, len(targets), metrics) of the targets in these rows.

    Every call draws the same weights anew, rather than keep them. unit (N,): number of what each
    sample is drawn with.
    """
    samples = scores.value.shape[1]
    ranked = [_sorted(scores.value[row], scores.member[row]) for row in targets]
    metrics = np.empty((n_resamples, len(targets), 2 + len(fpr)))
    step = max(1, CHUNK // samples)
    rng = np.random.default_rng([seed, 0])
    for start in range(0, n_resamples, step):
        draws = min(step, n_resamples - start)
        if unit is None:
            weights = _weights(rng, draws, samples)
        else:
            weights = _weights(rng, draws, int(unit.max()) + 1)[:, unit]
        weights = weights.astype(np.uint8 if weights.max() < 256 else np.int32)
        for i, target in enumerate(ranked):
            metrics[start : start + step, i] = _weighted(weights, target, fpr)
    return metrics


def _weights(rng: np.random.Generator, n_resamples: int, size: int) -> np.ndarray:
    """(n_resamples, size) how often each of `size` things is drawn in `size` draws."""
    picks = rng.integers(0, size, (n_resamples, size))
    picks += size * np.arange(n_resamples)[:, None]  # each resample counts in a range of its own
    return np.bincount(picks.ravel(), minlength=n_resamples * size).reshape(n_resamples, size)


class Ranked(NamedTuple):
    """One target's samples by falling score, without NaN, and where each level of its non-members
    stands among its members. A level is a score that one non-member or several have; there are V.
    """

    order: np.ndarray  # sample numbers: members by falling score, then non-members
    above: np.ndarray  # (V + 1,) members above each level, then all of them
    upto: np.ndarray | None  # (V,) members above the level or on it; None where no member is on one
    ends: np.ndarray | None  # (V,) the last non-member of each level; None where each has its own


def _sorted(score: np.ndarray, member: np.ndarray) -> Ranked:
    """A target's scores (N,) and membership (N,), sorted once for all resamples."""
    known = int((~np.isnan(score)).sum())
    falling = np.argsort(-score, kind="stable")[:known]  # NaN comes last
    members = falling[member[falling]]
    others = falling[~member[falling]]
    minus_score = -score[others]  # rising, as searchsorted wants it
    is_end = np.ones(len(others), bool)
    is_end[:-1] = minus_score[1:] != minus_score[:-1]
    ends = np.flatnonzero(is_end)
    levels = minus_score[ends]
    above = np.searchsorted(-score[members], levels, side="left")
    upto = np.searchsorted(-score[members], levels, side="right")
    return Ranked(
        order=np.concatenate([members, others]),
        above=np.append(above, len(members)),
        upto=None if np.array_equal(above, upto) else upto,
        ends=None if len(ends) == len(others) else ends,
    )


def _weighted(weights: np.ndarray, ranked: Ranked, fpr: Sequence[float]) -> np.ndarray:
    """(n_resamples, metrics) for one target from integer weights (n_resamples, N).

    The curve is read at the levels of non-members, where its corners are. Counts and their products
    are whole numbers below 2^53: nothing is rounded before the last division.
    """
    members = ranked.above[-1]
    of_sorted = np.take(weights, ranked.order, axis=1, mode="clip")
    count = np.cumsum(of_sorted, axis=1, dtype=np.int32)
    tp = np.zeros((len(weights), members + 1))  # of the j members with the highest scores
    tp[:, 1:] = count[:, :members]
    n1 = tp[:, -1:]
    n0 = count[:, -1:] - n1
    fp = count[:, members:] - n1.astype(np.int32)  # above each level or on it
    on_level = of_sorted[:, members:]
    if ranked.ends is not None:
        fp = fp[:, ranked.ends]
        on_level = np.diff(fp, axis=1, prepend=np.int32(0))
    on_level = on_level.astype(np.float64)
    tp_above = np.take(tp, ranked.above[:-1], axis=1, mode="clip")
    # a draw without members or without non-members says nothing
    size = np.where(n1 * n0 > 0, n1 * n0, np.nan)[:, 0]

    allowed = np.floor(n0 * np.asarray(fpr, dtype=np.float64) + 1e-9).astype(np.int64)
    hits = np.take_along_axis(tp, ranked.above[_levels_within(fp, allowed)], axis=1)

    # pairs of a member and a non-member in the right order, counted twice; ties count once
    twice_won = 2 * np.einsum("bv,bv->b", tp_above, on_level)
    if ranked.upto is not None:
        tp_upto = np.take(tp, ranked.upto, axis=1)
        twice_won = twice_won / 2 + np.einsum("bv,bv->b", tp_upto, on_level)

    # TP n0 - FP n1 just above each level, computed in place, for memory
    minus_fp_above = np.subtract(on_level, fp, out=on_level)
    minus_fp_above *= n1
    tp_above *= n0
    gap = np.add(tp_above, minus_fp_above, out=minus_fp_above).max(1, initial=0)
    auc = 0.5 + (twice_won - size) / (2 * size)
    return np.column_stack([auc, gap / size, hits * (n0 / size[:, None])])


def _levels_within(fp: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """(n_resamples, rates) how many levels have no more false positives than a rate allows.

    fp (n_resamples, V), rising in each row; allowed (n_resamples, rates). Each row is lifted above
    the one before, so that one search serves all.
    """
    row = np.arange(len(fp))[:, None]
    lift = (fp[:, -1:].max(initial=0) + 1) * row
    found = np.searchsorted((fp + lift).ravel(), (allowed + lift).ravel(), side="right")
    return found.reshape(allowed.shape) - fp.shape[1] * row


def influence(
    score: np.ndarray, member: np.ndarray, fpr: Sequence[float] = FPR
) -> tuple[list[float], np.ndarray]:
    """The metrics of one target, in the order of `names`, and each sample's influence on them.

    Parameters:
        score: (N,), NaN for samples that are left out.
        member: (N,) bool.
        fpr: false positive rates, each a metric.

    Returns:
        the metrics, and influences (metrics, N): by how much one more sample like this changes a
        metric, to first order.

    Influences sum to 0, their squares to the metric's variance by the choice of samples.

    For the AUC it is the placement of a sample among those of the other side, less its mean: the
    variance is that of DeLong et al. 1988. For the advantage the threshold is at its optimum, where
    moving it changes nothing. The TPR at an FPR moves with its threshold too, by the slope of the
    ROC, which is taken between the rates that are one standard error of the FPR below and above
    (Woodruff 1952).
    """
    falling = np.argsort(-score)[: int((~np.isnan(score)).sum())]  # NaN comes last
    is_member = member[falling]
    tp, fp, _ = counts(score[falling], is_member)
    n1 = tp[-1]
    n0 = fp[-1]
    metrics = _metrics(tp, fp, fpr)
    # the vertex that a sample's block of equal scores ends at, from 1
    vertex = np.repeat(np.arange(1, len(tp)), np.diff(tp + fp))
    members_above = (tp[vertex] + tp[vertex - 1]) / 2
    others_below = n0 - (fp[vertex] + fp[vertex - 1]) / 2
    of_sorted = np.empty((len(metrics), len(vertex)))

    placement = np.where(is_member, others_below / n0, members_above / n1)
    of_sorted[0] = (placement - metrics[0]) / np.where(is_member, n1, n0)

    best = int(np.argmax(tp / n1 - fp / n0))
    of_sorted[1] = _influence_at_threshold(
        vertex <= best, is_member, tp[best] / n1, fp[best] / n0, slope=1.0
    )

    for column, x in enumerate(fpr, start=2):
        allowed = int(np.floor(x * n0 + 1e-9))
        last = int(np.searchsorted(fp, allowed, side="right")) - 1
        error = max(np.sqrt(x * (1 - x) * n0), 1.0)
        ends = np.clip([allowed - error, allowed + error], 0, n0)
        slope = np.diff(np.interp(ends, fp, tp))[0] / np.diff(ends)[0] * n0 / n1
        of_sorted[column] = _influence_at_threshold(
            vertex <= last, is_member, tp[last] / n1, fp[last] / n0, slope=slope
        )
    of_samples = np.zeros((len(metrics), len(score)))
    of_samples[:, falling] = of_sorted
    return metrics, of_samples


def _influence_at_threshold(
    called: np.ndarray, member: np.ndarray, tpr: float, fpr: float, *, slope: float
) -> np.ndarray:
    """(N,) influence on TPR - slope * FPR at a threshold above which samples are `called`."""
    members = member.sum()
    of_members = (called - tpr) / members
    of_others = -slope * (called - fpr) / (len(member) - members)
    return np.where(member, of_members, of_others)


def _drawn_to_first_order(
    scores: Scores,
    fpr: Sequence[float],
    n_resamples: int,
    seed: int,
    unit: np.ndarray | None,
    units: int,
) -> np.ndarray:
    """(n_resamples, targets, metrics), each the metric plus the mean influence of what is drawn.

    unit (N,): number of what each sample is drawn with, below `units`; None: each sample by itself.
    Of more units than MOST_UNITS, groups of them, dealt out at random, are drawn: the variance is
    the same.
    """
    targets = len(scores.value)
    if units > MOST_UNITS:
        dealt = np.random.default_rng([seed, 1]).permutation(units) % MOST_UNITS
        unit = dealt if unit is None else dealt[unit]
        units = MOST_UNITS
    number_of_metrics = 2 + len(fpr)
    of_units = np.empty((units, targets, number_of_metrics), np.float32)
    metrics = np.empty((targets, number_of_metrics))

    def fill(row: int) -> None:
        """A target's metrics, and the influence of each unit on them."""
        metrics[row], of_samples = influence(scores.value[row], scores.member[row], fpr)
        for column, values in enumerate(of_samples):
            if unit is not None:
                values = np.bincount(unit, values, minlength=units)
            of_units[:, row, column] = values

    with _threads(targets) as executor:
        list(executor.map(fill, range(targets)))
    weights = _kept_weights(seed, n_resamples, units)
    change = np.empty((n_resamples, targets * number_of_metrics))
    step = max(1, 16 * CHUNK // units)
    for start in range(0, n_resamples, step):
        beyond_one = weights[start : start + step].astype(np.float32) - 1
        change[start : start + step] = beyond_one @ of_units.reshape(units, -1)
    return change.reshape(n_resamples, targets, number_of_metrics) + metrics


@lru_cache(maxsize=1)  # all attacks of a table are drawn with the same weights
def _kept_weights(seed: int, n_resamples: int, units: int) -> np.ndarray:
    """(n_resamples, units) how often each unit is drawn, at most 255 times."""
    rng = np.random.default_rng([seed, 0])
    weights = np.empty((n_resamples, units), np.uint8)
    step = max(1, CHUNK // units)
    for start in range(0, n_resamples, step):
        rows = min(step, n_resamples - start)
        weights[start : start + rows] = np.minimum(_weights(rng, rows, units), 255)
    return weights
