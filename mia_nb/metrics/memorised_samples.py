"""Memorisation of samples, and whether two pools memorise the same ones: rank correlations, beside
the largest that noise allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import combinations
from math import comb

import numpy as np
import pandas as pd

from mia_nb.arguments import Positive
from mia_nb.attacks import score
from mia_nb.checks import checked
from mia_nb.metrics.pairs import rows_of_pairs
from mia_nb.metrics.uncertainty import half_width
from mia_nb.types import Signals

GROUPS = 20  # blocks of samples left out in turn


@checked
def memorisation(signals: Signals, attack: str | None = None) -> np.ndarray:
    """Memorisation scores: the effect of membership on each sample's margin, by pair of models.

    Margin of the model of a pair that trained on the sample, minus that of the other.

    Parameters:
        signals: of models in complementary pairs (split=pairs).
        attack: its score as target in place of the margin, with the other pairs as references;
            None: the margin.

    Returns:
        (pairs, N audited); its mean over pairs is the score of a sample.

    Raises:
        ValueError: for models without a complementary model (coins).

    Source: Feldman and Zhang, NeurIPS 2020, with the margin, which does not saturate, in place of
    correctness.
    """
    scores = score("loss" if attack is None else attack, signals)
    value = signals.margin.mean(1)[:, ~signals.population] if attack is None else scores.value
    pairs = rows_of_pairs(scores.pair)
    if any(
        len(rows) != 2 or (scores.member[rows[0]] == scores.member[rows[1]]).any() for rows in pairs
    ):
        raise ValueError(
            "these models are not complementary pairs: memorisation compares a model and its"
            " complementary model; train split=pairs"
        )
    gain = np.where(scores.member, value, -value)
    return np.stack([gain[rows].sum(0) for rows in pairs])


@checked
def agreement(
    pools: dict[str, Signals],
    attack: str | None = None,
    *,
    splits: Positive = 10,
) -> pd.DataFrame:
    """How far pools that share their masks memorise the same samples: a row per two pools.

    Parameters:
        pools: {name: signals}, two or more of complementary pairs on the same masks.
        attack: the attack whose score replaces the margin, with references from the target's own
            half; None: the margin.
        splits: number of random cuts of the pairs into halves, the same for all pools.

    Returns:
        A row per two pools, with the columns
            first, second: their names.
            correlation: Spearman's, between the samples' mean `memorisation` in one half of the
                first pool's pairs and in the *other* half of the second's, so that no training
                noise is shared; a mean over cuts, as the reliabilities are.
            first_reliability, second_reliability: the same between the halves of one pool.
            ceiling: sqrt(product of the two reliabilities), what equal pools would show.
            ratio: correlation / ceiling, 1 where the pools differ only by noise.
            low, high: Student's 95 % interval of the ratio, by jackknife over pairs of models and
                over 20 blocks of samples, the variances added.
            samples, pairs: their numbers.
            covers: "samples and pairs"; "samples" alone where leaving out a pair leaves too few
                references in a half.

    Raises:
        ValueError: for pools of different masks, for fewer than 2 pairs (with `attack`: 4), and for
            one pool alone.

    Source: Spearman 1904.

    Caveat: all numbers are about means over half of the pairs. The ratio is mostly noise where a
    reliability is small (below 0.1, say), and NaN where one is not positive. The correction is
    exact for linear correlations, and approximate for ranks.
    """
    if len(pools) < 2:
        raise ValueError(f"agreement got {len(pools)} pool: pass two or more, {{name: signals}}")
    first, *others = pools.values()
    least = 1 if attack is None else 2
    pairs = rows_of_pairs(score("loss", first).pair)
    if any(not np.array_equal(later_pool.member, first.member) for later_pool in others):
        raise ValueError(
            "the pools have different membership: compare recipes on the same masks,"
            " training.family_pools makes them"
        )
    if len(pairs) < 2 * least:
        raise ValueError(
            f"{len(pairs)} pairs of models: two halves need {2 * least} or more; train more models"
        )
    means = _means(list(pools.values()), attack, pairs)
    numbers = list(range(len(pairs)))
    samples = int((~first.population).sum())
    point = _correlations(means, _cuts(numbers, splits), np.ones(samples, bool))
    jackknives = [_without_a_block(means, numbers, splits, samples)]
    covers = "samples"
    units = GROUPS
    if len(pairs) > 2 and (len(pairs) - 1) // 2 >= least:
        jackknives.append(_without_a_pair(means, numbers, splits, samples))
        covers = "samples and pairs"
        units = len(pairs)

    rows = []
    for (i, one), (j, other) in combinations(enumerate(pools), 2):
        ratio, ceiling = _ratio(point, i, j)
        errors = [_spread(_ratio(estimates, i, j)[0]) for estimates in jackknives]
        # the square of hypot is the sum of the variances
        half = half_width(np.hypot.reduce(errors) ** 2, units)
        rows.append(
            {
                "first": one,
                "second": other,
                "correlation": point[i, j],
                "ceiling": ceiling,
                "ratio": ratio,
                "low": ratio - half,
                "high": ratio + half,
                "first_reliability": point[i, i],
                "second_reliability": point[j, j],
                "samples": samples,
                "pairs": len(pairs),
                "covers": covers,
            }
        )
    return pd.DataFrame(rows)


def _means(pools: list[Signals], attack: str | None, pairs: list[np.ndarray]) -> Callable:
    """A function from pairs of models to the samples' mean memorisation in them, (pools, N), which
    is computed once for the same pairs.
    """
    by_margin = [memorisation(pool) for pool in pools] if attack is None else []

    @cache
    def means(chosen: tuple[int, ...]) -> np.ndarray:
        if attack is None:
            memorised = [values[list(chosen)] for values in by_margin]
        else:
            rows = np.concatenate([pairs[u] for u in chosen])
            memorised = [memorisation(pool.select(models=rows), attack) for pool in pools]
        return np.stack([values.mean(0) for values in memorised])

    return means


def _correlations(means: Callable, cuts: Iterable[tuple], kept: np.ndarray) -> np.ndarray:
    """(pools, pools) Spearman correlation between opposite halves, on the samples kept: the mean
    over cuts and directions.
    """
    correlations = []
    for cut in cuts:
        ranks = (pd.DataFrame(means(side)[:, kept]).rank(axis=1).to_numpy() for side in cut)
        x, y = (r - r.mean(1, keepdims=True) for r in ranks)
        size = np.sqrt(np.outer((x**2).sum(1), (y**2).sum(1)))
        across = np.divide(x @ y.T, size, out=np.zeros_like(size), where=size > 0)
        correlations.append((across + across.T) / 2)
    return np.mean(correlations, axis=0)


def _without_a_block(means: Callable, numbers: list[int], splits: int, samples: int) -> np.ndarray:
    """(GROUPS, pools, pools) correlations without each block of samples in turn."""
    cuts = _cuts(numbers, splits)
    blocks = np.random.default_rng([0, 1]).permutation(samples) % GROUPS
    return np.stack([_correlations(means, cuts, blocks != block) for block in range(GROUPS)])


def _without_a_pair(means: Callable, numbers: list[int], splits: int, samples: int) -> np.ndarray:
    """(pairs, pools, pools) correlations without each pair of models in turn."""
    everyone = np.ones(samples, bool)
    left_out = []
    for out in numbers:
        fewer = [number for number in numbers if number != out]
        left_out.append(_correlations(means, _cuts(fewer, splits), everyone))
    return np.stack(left_out)


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's correlation of two vectors; NaN where one of them is constant."""
    with np.errstate(invalid="ignore"):
        return float(np.corrcoef(pd.Series(x).rank(), pd.Series(y).rank())[0, 1])


def _cuts(units: list[int], splits: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Cuts into two equal halves (an odd pair is left out): all cuts if there are at most `splits`,
    else random ones.
    """
    size = len(units) // 2
    unordered_cuts = comb(len(units), size) * comb(len(units) - size, size) // 2
    if unordered_cuts <= splits:
        every = []
        for half in combinations(units, size):
            rest = [unit for unit in units if unit not in half]
            every += [(half, other) for other in combinations(rest, size) if half < other]
        return every
    rng = np.random.default_rng([0, 2])
    cuts = []
    for _ in range(splits):
        order = rng.permutation(units).tolist()
        cuts.append((tuple(sorted(order[:size])), tuple(sorted(order[size : 2 * size]))))
    return cuts


def _ratio(correlation: np.ndarray, i: int, j: int) -> tuple[np.ndarray, np.ndarray]:
    """(ratio, ceiling) of pools i and j from (..., pools, pools); NaN where a reliability is not
    positive.
    """
    first = correlation[..., i, i]
    second = correlation[..., j, j]
    ceiling = np.sqrt(np.where((first > 0) & (second > 0), first * second, np.nan))
    return correlation[..., i, j] / ceiling, ceiling[()]


def _spread(left_out: np.ndarray) -> float:
    """Jackknife standard error from estimates with one of n parts left out each."""
    n = len(left_out)
    return float(np.sqrt((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum()))
