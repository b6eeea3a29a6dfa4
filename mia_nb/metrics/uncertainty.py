"""Intervals: every one that this package prints is computed here, by one rule.

The mean of a metric over targets varies because other models might have been trained, and because
other samples might have been audited. Half of a 95 % interval is

    h^2 = t^2 s^2 / P + z^2 max(0, V - sum_p V_p / P^2),    and h >= z sqrt(V)

P pairs of complementary models, s^2 the variance of the pairs' means, t Student's quantile with P -
1 degrees of freedom, z the normal one. V is the bootstrap variance of the mean when samples are
drawn with replacement and the models stay, V_p that of one pair's mean: what remains of V is what
all pairs share because they are audited on the same samples. s^2 holds the rest.

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
MANY = 10_000  # samples from which resamples are computed to first order
MOST_UNITS = 1 << 16  # samples drawn one by one to first order; of more, groups are drawn
CHUNK = 1 << 17  # weights held at once: the working set stays in the cache
TARGETS = 16  # targets that a thread works on at once
RESAMPLES = 400  # resamples from which a variance is known to 4 %
STRICT = 3  # pairs over which Student's t is taken at half the error
FEW_SAMPLES = (
    50  # members, or non-members, below which an AUC's interval is not the bootstrap's alone
)
FEW_HITS = 10  # below so many members found, or missed, in all targets no variance is trusted alone


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
    sides = [scored(scores, row)[1] for row in range(len(scores.value))]
    return min(int(member.sum()) for member in sides), min(int((~member).sum()) for member in sides)


def measurable_rates(scores: Scores) -> list[float]:
    """The FPRs at which every target has non-members enough for a TPR."""
    return [x for x in FPR if measurable(f"tpr@{x:g}", smallest(scores)[1])]


def tied_floor(scores: Scores) -> float:
    """The largest over targets of the smallest FPR above 0 that the scores can realise; below it a
    TPR is the ties' doing.
    """
    counted = [counts(*scored(scores, row))[1] for row in range(len(scores.value))]
    return float(max(fp[fp > 0][0] / fp[-1] for fp in counted))


def per_target_metrics(scores: Scores, fpr: float | Sequence[float] = FPR) -> np.ndarray:
    """(targets, metrics) in the order of `names`."""
    fpr = rates(fpr)
    return np.stack([_point(*scored(scores, row), fpr) for row in range(len(scores.value))])


def _point(score: np.ndarray, member: np.ndarray, fpr: Sequence[float]) -> list[float]:
    tp, fp, _ = counts(score, member)
    return _metrics(tp, fp, fpr)


def _metrics(tp: np.ndarray, fp: np.ndarray, fpr: Sequence[float]) -> list[float]:
    """Every metric of one target, in the order of `names`, from its `counts`."""
    rates_at = [
        tp[vertex_at(tp, fp, x)] / tp[-1] for x in fpr
    ]  # without intervals, which take time
    return [area(tp, fp), (tp / tp[-1] - fp / fp[-1]).max(), *rates_at]


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

    groups (N,): labels of what is drawn as a whole, where samples are not independent of each other
    (a patient's ten images); None: each sample by itself.

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
    batches = np.array_split(np.arange(targets), -(-targets // TARGETS))
    unit = None
    if groups is not None:
        unit = np.unique(groups, return_inverse=True)[1].ravel()
        if unit.shape != scores.value.shape[1:]:
            raise ValueError(
                f"groups have shape {np.shape(groups)}; wanted {scores.value.shape[1:]}, a label"
                " per sample"
            )
    units = scores.value.shape[1] if unit is None else int(unit.max()) + 1
    if units >= MANY:
        drawn = _drawn_to_first_order(scores, fpr, n_resamples, seed, unit, units)
        return dict(zip(names(fpr), np.moveaxis(drawn, 2, 0), strict=True))
    drawn = partial(_drawn, scores, fpr=fpr, n_resamples=n_resamples, seed=seed, unit=unit)
    with _threads(len(batches)) as executor:
        parts = list(executor.map(drawn, batches))
    return dict(zip(names(fpr), np.moveaxis(np.concatenate(parts, 1), 2, 0), strict=True))


def _threads(tasks: int) -> ThreadPoolExecutor:
    """A thread for each task, up to one a core."""
    # respects containers and affinity; few of those who import this module resample
    from joblib import cpu_count

    return ThreadPoolExecutor(min(tasks, cpu_count()))


def _drawn(
    scores: Scores,
    few: np.ndarray,
    fpr: Sequence[float],
    n_resamples: int,
    seed: int,
    unit: np.ndarray | None = None,
) -> np.ndarray:
    """(n_resamples, few, metrics) of some targets; the samples' weights are drawn anew for them,
    rather than kept for all. unit (N,): numbers of what is drawn as a whole.
    """
    samples = scores.value.shape[1]
    columns = [_sorted(scores.value[row], scores.member[row]) for row in few]
    metrics = np.empty((n_resamples, len(few), 2 + len(fpr)))
    step = max(1, CHUNK // samples)
    rng = np.random.default_rng([seed, 0])
    for start in range(0, n_resamples, step):
        rows = min(step, n_resamples - start)
        if unit is None:
            weights = _weights(rng, rows, samples)
        else:
            weights = _weights(rng, rows, int(unit.max()) + 1)[:, unit]
        weights = weights.astype(np.uint8 if weights.max() < 256 else np.int32)
        for i, column in enumerate(columns):
            metrics[start : start + step, i] = _weighted(weights, column, fpr)
    return metrics


def influence(
    score: np.ndarray, member: np.ndarray, fpr: Sequence[float] = FPR
) -> tuple[list[float], np.ndarray]:
    """The metrics of one target, in the order of `names`, and the influence (metrics, N) of each
    sample on them: the first-order change by one more sample like it.

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
    of_sorted[1] = _called(vertex <= best, is_member, tp[best] / n1, fp[best] / n0, slope=1.0)

    for column, x in enumerate(fpr, start=2):
        allowed = int(np.floor(x * n0 + 1e-9))
        last = int(np.searchsorted(fp, allowed, side="right")) - 1
        error = max(np.sqrt(x * (1 - x) * n0), 1.0)
        ends = np.clip([allowed - error, allowed + error], 0, n0)
        slope = np.diff(np.interp(ends, fp, tp))[0] / np.diff(ends)[0] * n0 / n1
        of_sorted[column] = _called(
            vertex <= last, is_member, tp[last] / n1, fp[last] / n0, slope=slope
        )
    of_samples = np.zeros((len(metrics), len(score)))
    of_samples[:, falling] = of_sorted
    return metrics, of_samples


def _called(
    called: np.ndarray, member: np.ndarray, tpr: float, fpr: float, slope: float
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

    unit (N,): numbers of what is drawn as a whole. Of more than MOST_UNITS, groups of them, dealt
    out at random, are drawn: the variance is the same.
    """
    targets = len(scores.value)
    if units > MOST_UNITS:
        dealt = np.random.default_rng([seed, 1]).permutation(units) % MOST_UNITS
        unit = dealt if unit is None else dealt[unit]
        units = MOST_UNITS
    columns = 2 + len(fpr)
    of_units = np.empty((units, targets, columns), np.float32)
    metrics = np.empty((targets, columns))

    def add(row: int) -> None:
        metrics[row], of_samples = influence(scores.value[row], scores.member[row], fpr)
        for column, values in enumerate(of_samples):
            if unit is not None:
                values = np.bincount(unit, values, minlength=units)
            of_units[:, row, column] = values

    with _threads(targets) as executor:
        list(executor.map(add, range(targets)))
    weights = _kept_weights(seed, n_resamples, units)
    drawn = np.empty((n_resamples, targets * columns))
    step = max(1, 16 * CHUNK // units)
    for start in range(0, n_resamples, step):
        more = weights[start : start + step].astype(np.float32) - 1
        drawn[start : start + step] = more @ of_units.reshape(units, -1)
    return drawn.reshape(n_resamples, targets, columns) + metrics


@lru_cache(maxsize=1)  # all attacks of a table are drawn with the same
def _kept_weights(seed: int, n_resamples: int, units: int) -> np.ndarray:
    """(n_resamples, units) counts of draws with replacement, at most 255 each."""
    rng = np.random.default_rng([seed, 0])
    weights = np.empty((n_resamples, units), np.uint8)
    step = max(1, CHUNK // units)
    for start in range(0, n_resamples, step):
        rows = min(step, n_resamples - start)
        weights[start : start + rows] = np.minimum(_weights(rng, rows, units), 255)
    return weights


def _weights(rng: np.random.Generator, n_resamples: int, size: int) -> np.ndarray:
    """(n_resamples, size) counts of `size` draws with replacement."""
    picks = rng.integers(0, size, (n_resamples, size)) + size * np.arange(n_resamples)[:, None]
    return np.bincount(picks.ravel(), minlength=n_resamples * size).reshape(n_resamples, size)


class Ranked(NamedTuple):
    """One target's samples by falling score, without NaN, and where each level of its non-members
    stands among its members.
    """

    order: np.ndarray  # members, then non-members
    above: np.ndarray  # (V + 1,) members above each level, then all of them
    upto: np.ndarray | None  # (V,) members above the level or on it; None where no member is on one
    ends: np.ndarray | None  # (V,) the last non-member of each level; None where each has its own


def _sorted(score: np.ndarray, member: np.ndarray) -> Ranked:
    falling = np.argsort(-score, kind="stable")[: int((~np.isnan(score)).sum())]
    rows = falling[member[falling]]
    others = falling[~member[falling]]
    level = -score[others]
    ends = np.flatnonzero(np.append(level[1:] != level[:-1], np.ones(min(len(level), 1), bool)))
    above, upto = (
        np.searchsorted(-score[rows], level[ends], side=side) for side in ("left", "right")
    )
    return Ranked(
        order=np.concatenate([rows, others]),
        above=np.append(above, len(rows)),
        upto=None if np.array_equal(above, upto) else upto,
        ends=None if len(ends) == len(others) else ends,
    )


def _weighted(weights: np.ndarray, ranked: Ranked, fpr: Sequence[float]) -> np.ndarray:
    """(n_resamples, metrics) for one target from integer weights (n_resamples, N).

    The curve is read at the levels of non-members, where its corners are. Counts and their products
    are whole numbers below 2^53: nothing is rounded before the last division.
    """
    members = ranked.above[-1]
    own = np.take(weights, ranked.order, axis=1, mode="clip")
    count = np.cumsum(own, axis=1, dtype=np.int32)
    tp = np.zeros((len(weights), members + 1))
    tp[:, 1:] = count[:, :members]
    n1 = tp[:, -1:]
    fp = count[:, members:] - n1.astype(np.int32)
    own = own[:, members:]
    if ranked.ends is not None:
        fp = fp[:, ranked.ends]
        own = np.diff(fp, axis=1, prepend=np.int32(0))
    n0 = count[:, -1:] - n1
    # a draw without members or without non-members says nothing
    size = np.where(n1 * n0 > 0, n1 * n0, np.nan)[:, 0]
    # Each draw is lifted above the one before, so that one search serves all.
    lift = (count[:, -1].max(initial=0) + 1) * np.arange(len(weights))[:, None]
    allowed = np.floor(n0 * np.asarray(fpr, dtype=np.float64) + 1e-9).astype(np.int64)
    passed = (
        np.searchsorted((fp + lift).ravel(), allowed + lift, side="right")
        - fp.shape[1] * np.arange(len(weights))[:, None]
    )
    hits = np.take_along_axis(tp, ranked.above[passed], axis=1)
    beaten = np.take(tp, ranked.above[:-1], axis=1, mode="clip")
    own = own.astype(np.float64)
    double = 2 * np.einsum("bv,bv->b", beaten, own)
    if ranked.upto is not None:
        double = double / 2 + np.einsum("bv,bv->b", np.take(tp, ranked.upto, axis=1), own)
    np.subtract(own, fp, out=own)  # minus the false positives above each level
    own *= n1
    beaten *= n0
    gap = np.add(beaten, own, out=own).max(1, initial=0)
    return np.column_stack(
        [0.5 + (double - size) / (2 * size), gap / size, hits * (n0 / size[:, None])]
    )


def half_width(
    over_pairs: np.ndarray,
    pairs: int,
    shared: np.ndarray | float = 0.0,
    least: np.ndarray | float = 0.0,
    *,
    confidence: float = 0.95,
):
    """Half of the interval of a mean, sqrt(t^2 over_pairs + z^2 shared) and at least z sqrt(least);
    arrays broadcast.

    over_pairs: variance of the mean as `pairs` independent units show it; shared: variance that
    these units have in common; least: variance below which the whole cannot lie. NaN with one unit.
    """
    pairs = np.asarray(pairs)
    tail = (1 - confidence) / 2
    free = np.where(pairs > 1, pairs - 1, np.nan)
    t, z = -stdtrit(free, np.where(pairs == STRICT, tail / 2, tail)), -ndtri(tail)
    return np.sqrt(
        np.maximum(t**2 * over_pairs + z**2 * np.maximum(shared, 0), z**2 * np.asarray(least))
    )


def _variances(
    values: np.ndarray, pair: np.ndarray | None, sampled: np.ndarray | None = None
) -> tuple:
    """(variance over pairs, their number, variance that pairs share, variance by samples alone) of
    the mean over targets.

    values (targets, ...), sampled (n_resamples, targets, ...) or None.
    """
    unit = numbered(pair)
    pairs = unit.max() + 1
    means = np.stack([values[unit == i].mean(0) for i in range(pairs)])
    over = means.var(0, ddof=1) / pairs if pairs > 1 else np.full(means.shape[1:], np.nan)
    if sampled is None:
        return over, pairs, 0.0, 0.0
    drawn = np.stack([sampled[:, unit == i].mean(1) for i in range(pairs)])
    samples = np.nanvar(drawn.mean(0), axis=0, ddof=1)
    return over, pairs, samples - np.nanvar(drawn, axis=1, ddof=1).sum(0) / pairs**2, samples


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
    over, pairs, shared, samples = _variances(values, pair, sampled)
    middle = values.mean(0)
    ends = []
    for level in levels:
        if pairs > 1:
            half = half_width(over, pairs, shared, samples, confidence=level)
        else:
            quantile = (1 + level) / 2
            times = ndtri(quantile) if free is None else stdtrit(max(free, 1), quantile)
            half = np.nan * over if sampled is None else times * np.sqrt(samples)
        ends.append((middle - half, middle + half))
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
    """(low, high) of mean(a) / mean(b) of paired, non-negative values (targets,): all r >= 0 that a
    - r b does not reject.

    r belongs to it where |mean(a - r b)| is at most half of the interval of a - r b (Fieller 1954,
    with the variances of `interval`). The upper end is inf where mean(b) is not resolved from 0.
    NaN with one pair. Caveat: the covariance is half of what the variance of a + b is beyond those
    of a and b: approximate where a bound binds.
    """
    values = np.column_stack([a, b])
    resampled = None if draws_a is None else np.stack([draws_a, draws_b], 2)
    estimates = [
        _variances(values @ w, pair, None if resampled is None else resampled @ w)
        for w in np.array([[1, 0], [0, 1], [1, 1]])
    ]
    if estimates[0][1] < 2:
        return np.nan, np.nan
    half = [half_width(*estimate, confidence=confidence) ** 2 for estimate in estimates]
    # var(a + b) = var a + var b + 2 cov
    saa = half[0]
    sbb = half[1]
    sab = (half[2] - half[0] - half[1]) / 2
    over_a, over_b = values.mean(0)
    square = over_b**2 - sbb
    cross = over_a * over_b - sab
    constant = over_a**2 - saa
    root = np.sqrt(max(cross**2 - square * constant, 0.0))
    # (cross - root) / square, also where square <= 0
    low = constant / (cross + root) if cross + root > 0 else 0.0
    return max(low, 0.0), (cross + root) / square if square > 1e-12 * over_b**2 else np.inf


def metric_interval(
    name: str,
    rows: pd.DataFrame,
    sampled: np.ndarray | None = None,
    *,
    confidence: float = 0.95,
    free: int | None = None,
) -> tuple[float, float]:
    """(low, high) of one metric, inside [0, 1], from the rows of its targets in
    `metrics.per_target`: `interval` and more.

    A TPR counts the members above the first non-member that is one too many, so that the
    threshold's expected FPR lies up to 1 / (n0 + 1) above the stated one: the lower end is moved
    down by what one false positive fewer would cost. With one pair, and where fewer than 10 members
    were found or missed in all, the interval also covers Clopper-Pearson's for a single target.
    That of an AUC of exactly 0 or 1 is Clopper-Pearson's for min(n1, n0) disjoint pairs of a member
    and a non-member. With one pair and fewer than 50 members or non-members, the interval of an AUC
    also covers Newcombe's, since the bootstrap's is too narrow there. free: as for `interval`.
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
        middle = (1 - area) / (2 - area) + area / (1 + area)
        variance = area * (1 - area) * (1 + ((n1 + n0) / 2 - 1) * middle) / (n1 * n0)
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
    first, second = (
        np.stack([*bootstrap(side, fpr, n_resamples=n_resamples, seed=seed).values()], 2)
        for side in (a, b)
    )
    low, high = interval(value, a.pair, first - second, confidence=confidence)
    table = {"value": value.mean(0), "low": low, "high": high}
    return pd.DataFrame(table, index=pd.Index(names(fpr), name="metric"))
