"""How sure: two-way bootstrap over pairs of targets and samples, paired differences, t-interval over pairs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t as student

from mia_nb.checks import fraction, instance, whole
from mia_nb.metrics.curve import area, clopper_pearson, counts, rates, tpr_at_counts
from mia_nb.types import Scores

FPR = (0.001, 0.01, 0.1)
CHUNK = 1 << 17  # weights held at once: the working set stays in the cache
TARGETS = 16  # targets that a thread works on at once
FEW = 5  # pairs from which on the bootstrap alone speaks for them


def names(fpr) -> list[str]:
    """Metric names in the order used throughout: auc, advantage, one tpr@x per FPR."""
    return ["auc", "advantage", *(f"tpr@{x:g}" for x in fpr)]


def scored(scores: Scores, row: int) -> tuple[np.ndarray, np.ndarray]:
    """(score, member) of one target without the samples an attack could not score (NaN: a side was missing)."""
    known = ~np.isnan(scores.value[row])
    return scores.value[row, known], scores.member[row, known]


def per_target_metrics(scores: Scores, fpr=FPR) -> np.ndarray:
    """(targets, metrics) in the order of `names`."""
    fpr = rates(fpr)
    return np.stack([_point(*scored(scores, row), fpr) for row in range(len(scores.value))])


def _point(score, member, fpr) -> list[float]:
    tp, fp, _ = counts(score, member)
    return [area(tp, fp), (tp / tp[-1] - fp / fp[-1]).max(), *(tpr_at_counts(tp, fp, x).tpr for x in fpr)]


def two_way(scores: Scores) -> bool:
    """Whether targets can be resampled too: at least 4 targets in at least 2 pairs."""
    return len(scores.value) >= 4 and len(np.unique(scores.pair)) >= 2


def bootstrap(scores: Scores, fpr=FPR, *, draws: int = 1000, seed: int = 0) -> dict[str, np.ndarray]:
    """Bootstrap draws of each metric, averaged over targets: {name: (draws,)}.

    Each draw takes N samples and, independently, as many pairs of targets as there are, both with replacement; per-target
    metrics use the samples' integer weights on scores sorted once, then are averaged with the pairs' weights. With one
    pair, or fewer than 4 targets, samples only. Same seed and same shapes give the same draws, so that differences and
    maxima of several attacks taken draw by draw are paired.
    """
    fpr, draws, seed = rates(fpr), whole("draws", draws), whole("seed", seed, 0)
    targets = len(scores.value)
    metrics = np.empty((draws, targets, 2 + len(fpr)))
    batches = np.array_split(np.arange(targets), -(-targets // TARGETS))
    from joblib import cpu_count  # respects containers and affinity; few of those who import this draw

    with ThreadPoolExecutor(min(len(batches), cpu_count())) as executor:
        for few, found in zip(batches, executor.map(lambda few: _drawn(scores, few, fpr, draws, seed), batches), strict=True):
            metrics[:, few] = found
    pair_rng = np.random.default_rng([seed, 1])
    pairs, unit = np.unique(scores.pair, return_inverse=True)
    drawn = _weights(pair_rng, draws, len(pairs)) if two_way(scores) else np.ones((draws, len(pairs)), dtype=np.int64)
    weight = drawn[:, unit] / drawn[:, unit].sum(1, keepdims=True)
    return dict(zip(names(fpr), np.einsum("bt,btm->mb", weight, metrics), strict=True))


def _drawn(scores: Scores, few: np.ndarray, fpr, draws: int, seed: int) -> np.ndarray:
    """(draws, few, metrics) of some targets; the samples' weights are drawn anew for them, rather than kept for all."""
    samples = scores.value.shape[1]
    columns = [_sorted(scores.value[row], scores.member[row]) for row in few]
    metrics, step, rng = np.empty((draws, len(few), 2 + len(fpr))), max(1, CHUNK // samples), np.random.default_rng([seed, 0])
    for start in range(0, draws, step):
        weights = _weights(rng, min(step, draws - start), samples)
        weights = weights.astype(np.uint8 if weights.max() < 256 else np.int32)
        for i, column in enumerate(columns):
            metrics[start : start + step, i] = _weighted(weights, column, fpr)
    return metrics


def sample_weights(samples: int, draws: int, seed: int = 0) -> np.ndarray:
    """(N, draws) float32: how often each sample is in each draw; those of `bootstrap` with the same seed."""
    return np.ascontiguousarray(_weights(np.random.default_rng([seed, 0]), draws, samples).T, dtype=np.float32)


def auc_draws(scores: Scores, weights: np.ndarray) -> np.ndarray:
    """(targets, draws) float32: the AUC of each target in each draw of samples (`sample_weights`), the targets as they are.

    sum over non-members j of w_j (members' weight above j + half of that beside j) / (n1 n0). NaN in a draw without members
    or without non-members. Scores of the same N and the same weights are paired draw by draw.
    """
    each = [_auc_draws(value, member, weights) for value, member in zip(scores.value, scores.member, strict=True)]
    return np.stack(each).astype(np.float32)


def _auc_draws(score, member, weights) -> np.ndarray:
    falling = np.argsort(-score, kind="stable")[: int((~np.isnan(score)).sum())]
    rows, others = falling[member[falling]], falling[~member[falling]]
    above = np.zeros((len(rows) + 1, weights.shape[1]), np.float32)  # whole numbers below 2^24 are exact
    np.cumsum(weights[rows], axis=0, out=above[1:])
    first, last = (np.searchsorted(-score[rows], -score[others], side=side) for side in ("left", "right"))
    beaten, against = above[first], weights[others]
    if (first != last).any():
        beaten = (beaten + above[last]) / 2
    size = above[-1].astype(np.float64) * against.sum(0)
    return np.divide(np.einsum("nd,nd->d", beaten, against), size, out=np.full(len(size), np.nan), where=size > 0)


def over_pairs(drawn: np.ndarray, seed: int = 0) -> np.ndarray:
    """(draws,): mean over pairs drawn anew in each draw, from (pairs, draws); as many pairs, the same for all of that shape."""
    weights = _weights(np.random.default_rng([seed, 1]), drawn.shape[1], len(drawn))
    return np.einsum("dp,pd->d", weights, drawn) / len(drawn)


def _weights(rng, draws: int, size: int) -> np.ndarray:
    """(draws, size) counts of `size` draws with replacement."""
    picks = rng.integers(0, size, (draws, size)) + size * np.arange(draws)[:, None]
    return np.bincount(picks.ravel(), minlength=draws * size).reshape(draws, size)


class Ranked(NamedTuple):
    """One target's samples by falling score, without NaN, and where each level of its non-members stands among its members."""

    order: np.ndarray  # members, then non-members
    above: np.ndarray  # (V + 1,) members above each level, then all of them
    upto: np.ndarray | None  # (V,) members above the level or on it; None where no member is on one
    ends: np.ndarray | None  # (V,) the last non-member of each level; None where each has its own


def _sorted(score, member) -> Ranked:
    falling = np.argsort(-score, kind="stable")[: int((~np.isnan(score)).sum())]
    rows, others = falling[member[falling]], falling[~member[falling]]
    level = -score[others]
    ends = np.flatnonzero(np.append(level[1:] != level[:-1], np.ones(min(len(level), 1), bool)))
    above, upto = (np.searchsorted(-score[rows], level[ends], side=side) for side in ("left", "right"))
    return Ranked(
        order=np.concatenate([rows, others]),
        above=np.append(above, len(rows)),
        upto=None if np.array_equal(above, upto) else upto,
        ends=None if len(ends) == len(others) else ends,
    )


def _weighted(weights, ranked: Ranked, fpr) -> np.ndarray:
    """(draws, metrics) for one target from integer weights (draws, N).

    The curve is read at the levels of non-members, where its corners are. Counts and their products are whole numbers below
    2^53: nothing is rounded before the last division.
    """
    members = ranked.above[-1]
    own = np.take(weights, ranked.order, axis=1, mode="clip")
    count = np.cumsum(own, axis=1, dtype=np.int32)
    tp = np.zeros((len(weights), members + 1))
    tp[:, 1:] = count[:, :members]
    n1 = tp[:, -1:]
    fp, own = count[:, members:] - n1.astype(np.int32), own[:, members:]
    if ranked.ends is not None:
        fp = fp[:, ranked.ends]
        own = np.diff(fp, axis=1, prepend=np.int32(0))
    n0 = count[:, -1:] - n1
    size = np.where(n1 * n0 > 0, n1 * n0, np.nan)[:, 0]  # a draw without members or without non-members says nothing
    # Each draw is lifted above the one before, so that one search serves all.
    apart = (count[:, -1].max(initial=0) + 1) * np.arange(len(weights))[:, None]
    allowed = np.floor(n0 * np.asarray(fpr, dtype=np.float64) + 1e-9).astype(np.int64)
    passed = (
        np.searchsorted((fp + apart).ravel(), allowed + apart, side="right") - fp.shape[1] * np.arange(len(weights))[:, None]
    )
    found = np.take_along_axis(tp, ranked.above[passed], axis=1)
    beaten, own = np.take(tp, ranked.above[:-1], axis=1, mode="clip"), own.astype(np.float64)
    double = 2 * np.einsum("bv,bv->b", beaten, own)
    if ranked.upto is not None:
        double = double / 2 + np.einsum("bv,bv->b", np.take(tp, ranked.upto, axis=1), own)
    np.subtract(own, fp, out=own)  # minus the false positives above each level
    own *= n1
    beaten *= n0
    gap = np.add(beaten, own, out=own).max(1, initial=0)
    return np.column_stack([0.5 + (double - size) / (2 * size), gap / size, found * (n0 / size[:, None])])


def percentile(draws: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Percentile interval of bootstrap draws."""
    fraction("confidence", confidence, "()")
    low, high = np.nanquantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def t_interval(values, pair, *, confidence: float = 0.95) -> tuple:
    """Student interval over means of pairs: values (targets, ...), pair (targets,); NaN with one pair. Assumes independence."""
    fraction("confidence", confidence, "()")
    means = np.array([np.asarray(values)[pair == one].mean(0) for one in np.unique(pair)])
    if len(means) < 2:
        return np.nan, np.nan
    half = student.ppf((1 + confidence) / 2, len(means) - 1) * means.std(0, ddof=1) / np.sqrt(len(means))
    return means.mean(0) - half, means.mean(0) + half


def intervals(
    scores: Scores, fpr=FPR, *, draws: int = 1000, seed: int = 0, sampled: dict | None = None, confidence: float = 0.95
) -> pd.DataFrame:
    """Every interval of one attack, a row per metric; `low`, `high` are the headline: the widest of them, inside [0, 1].

    Columns: value (mean over targets), low, high, bootstrap_low, bootstrap_high, exact_low, exact_high, t_low, t_high.
    `exact` is Clopper-Pearson for a single target, its ends averaged over targets: targets share their samples, so that
    their trials are never pooled. An AUC that is 0 or 1 for every target gives the bootstrap nothing to draw from: its `exact`
    is Clopper-Pearson for min(n1, n0) disjoint pairs of a member and a non-member, all in one order. `t` is over pairs and
    only for 2 to 4 pairs, where the bootstrap has few pairs to draw.
    `sampled`: draws of `bootstrap`, if already made. Caveat: targets share their references, which no interval resamples;
    where models leak very differently all of them stay optimistic.
    """
    instance("scores", scores, Scores), fraction("confidence", confidence, "()")
    metrics = per_target_metrics(scores, fpr)
    sampled = sampled or bootstrap(scores, fpr, draws=draws, seed=seed)
    sides = [np.bincount(scored(scores, row)[1], minlength=2) for row in range(len(metrics))]
    n1 = [int(n) for _, n in sides]
    few = 2 <= len(np.unique(scores.pair)) < FEW
    rows = {}
    for column, name in enumerate(names(fpr)):
        kinds = [percentile(sampled[name], confidence), (np.nan, np.nan), (np.nan, np.nan)]
        if name.startswith("tpr"):
            exact = clopper_pearson(np.rint(metrics[:, column] * n1), n1, confidence=confidence)
            kinds[1] = tuple(end.mean() for end in exact)
        elif name == "auc" and (all(metrics[:, column] == 1) or all(metrics[:, column] == 0)):
            disjoint = min(int(side.min()) for side in sides)
            kinds[1] = tuple(map(float, clopper_pearson(disjoint * metrics[0, column], disjoint, confidence=confidence)))
        if few:
            kinds[2] = t_interval(metrics[:, column], scores.pair, confidence=confidence)
        headline = max(kinds, key=lambda ends: np.nan_to_num(ends[1] - ends[0], nan=-1.0))
        rows[name] = [metrics[:, column].mean(), *np.clip(headline, 0, 1), *(end for ends in kinds for end in ends)]
    ends = [f"{kind}{end}" for kind in ("", "bootstrap_", "exact_", "t_") for end in ("low", "high")]
    return pd.DataFrame.from_dict(rows, orient="index", columns=["value", *ends]).rename_axis("metric")


def difference(a: Scores, b: Scores, fpr=FPR, *, draws: int = 1000, seed: int = 0) -> pd.DataFrame:
    """a - b, a row per metric with value, low, high: paired 95 % bootstrap, the same samples and pairs in each draw.

    For two attacks on one pool, or two families trained on the same masks. ValueError when masks or pairs differ.
    """
    instance("a", a, Scores), instance("b", b, Scores)
    units = [np.unique(scores.pair, return_inverse=True)[1] for scores in (a, b)]
    if not (np.array_equal(a.member, b.member) and np.array_equal(*units)):
        raise ValueError("the two scores have different membership: a paired difference needs the same masks, row by row")
    value = (per_target_metrics(a, fpr) - per_target_metrics(b, fpr)).mean(0)
    first, second = (bootstrap(scores, fpr, draws=draws, seed=seed) for scores in (a, b))
    rows = {name: [value[i], *percentile(first[name] - second[name])] for i, name in enumerate(names(fpr))}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["value", "low", "high"]).rename_axis("metric")
