"""Memorisation of samples, and whether two pools memorise the same ones: rank correlations, beside
the largest that noise allows.
"""

from __future__ import annotations

from collections.abc import Callable
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

BLOCKS = 20  # blocks of samples left out in turn
Half = tuple[int, ...]  # numbers of pairs of models
Cut = tuple[Half, Half]
Means = Callable[[Half], np.ndarray]


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
    if attack is None:
        scores = score("loss", signals)  # for its masks and pairs
        value = signals.margin.mean(1)[:, ~signals.population]
    else:
        scores = score(attack, signals)
        value = scores.value
    pairs = rows_of_pairs(scores.pair)
    for rows in pairs:
        member = scores.member[rows]
        if len(rows) != 2 or (member[0] == member[1]).any():
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
    first_pool = next(iter(pools.values()))
    for pool in pools.values():
        if not np.array_equal(pool.member, first_pool.member):
            raise ValueError(
                "the pools have different membership: compare recipes on the same masks,"
                " training.family_pools makes them"
            )
    pairs = rows_of_pairs(score("loss", first_pool).pair)
    fewest = 1 if attack is None else 2  # pairs in a half: an attack takes one as references
    if len(pairs) < 2 * fewest:
        raise ValueError(
            f"{len(pairs)} pairs of models: two halves need {2 * fewest} or more; train more models"
        )
    means = _means(list(pools.values()), attack, pairs)
    numbers = list(range(len(pairs)))
    samples = int((~first_pool.population).sum())
    estimate = _correlations(means, _cuts(numbers, splits), np.ones(samples, bool))
    jackknives = [_without_a_block(means, numbers, splits, samples)]
    covers = "samples"
    units = BLOCKS
    if len(pairs) > 2 and (len(pairs) - 1) // 2 >= fewest:
        jackknives.append(_without_a_pair(means, numbers, splits, samples))
        covers = "samples and pairs"
        units = len(pairs)

    rows = []
    names = list(pools)
    for i, j in combinations(range(len(names)), 2):
        ratio, ceiling = _ratio(estimate, i, j)
        errors = [_jackknife_error(_ratio(left_out, i, j)[0]) for left_out in jackknives]
        # the square of hypot is the sum of the variances
        half = half_width(np.hypot.reduce(errors) ** 2, units)
        rows.append(
            {
                "first": names[i],
                "second": names[j],
                "correlation": estimate[i, j],
                "ceiling": ceiling,
                "ratio": ratio,
                "low": ratio - half,
                "high": ratio + half,
                "first_reliability": estimate[i, i],
                "second_reliability": estimate[j, j],
                "samples": samples,
                "pairs": len(pairs),
                "covers": covers,
            }
        )
    return pd.DataFrame(rows)


def _means(pools: list[Signals], attack: str | None, pairs: list[np.ndarray]) -> Means:
    """A function from numbers of pairs to the samples' mean memorisation in them, (pools, N). It
    remembers its results, since the same halves are asked for again and again.
    """
    if attack is None:
        of_pairs = [memorisation(pool) for pool in pools]

        @cache
        def margin_means(chosen: Half) -> np.ndarray:
            return np.stack([values[list(chosen)].mean(0) for values in of_pairs])

        return margin_means

    @cache
    def attack_means(chosen: Half) -> np.ndarray:
        # the attack runs on these models alone, so that their references are among them
        rows = np.concatenate([pairs[number] for number in chosen])
        return np.stack([memorisation(pool.select(models=rows), attack).mean(0) for pool in pools])

    return attack_means


def _correlations(means: Means, cuts: list[Cut], kept: np.ndarray) -> np.ndarray:
    """(pools, pools) Spearman correlation between opposite halves, on the samples kept: the mean
    over cuts and directions.
    """
    correlations = []
    for half, other_half in cuts:
        x = _centred_ranks(means(half)[:, kept])
        y = _centred_ranks(means(other_half)[:, kept])
        size = np.sqrt(np.outer((x**2).sum(1), (y**2).sum(1)))
        across = np.divide(x @ y.T, size, out=np.zeros_like(size), where=size > 0)
        correlations.append((across + across.T) / 2)
    return np.mean(correlations, axis=0)


def _centred_ranks(values: np.ndarray) -> np.ndarray:
    """(rows, N) rank of each value in its row, minus the mean rank; ties share the mean rank."""
    ranks = pd.DataFrame(values).rank(axis=1).to_numpy()
    return ranks - ranks.mean(1, keepdims=True)


def _without_a_block(means: Means, numbers: list[int], splits: int, samples: int) -> np.ndarray:
    """(BLOCKS, pools, pools) correlations without each block of samples in turn."""
    cuts = _cuts(numbers, splits)
    blocks = np.random.default_rng([0, 1]).permutation(samples) % BLOCKS
    return np.stack([_correlations(means, cuts, blocks != block) for block in range(BLOCKS)])


def _without_a_pair(means: Means, numbers: list[int], splits: int, samples: int) -> np.ndarray:
    """(pairs, pools, pools) correlations without each pair of models in turn."""
    all_samples = np.ones(samples, bool)
    correlations = []
    for left_out in numbers:
        others = [number for number in numbers if number != left_out]
        correlations.append(_correlations(means, _cuts(others, splits), all_samples))
    return np.stack(correlations)


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's correlation of two vectors; NaN where one of them is constant."""
    with np.errstate(invalid="ignore"):
        return float(np.corrcoef(pd.Series(x).rank(), pd.Series(y).rank())[0, 1])


def _cuts(numbers: list[int], splits: int) -> list[Cut]:
    """Cuts of the pairs with these numbers into two equal halves (an odd pair is left out): all
    cuts if there are at most `splits`, else random ones.
    """
    size = len(numbers) // 2
    number_of_cuts = comb(len(numbers), size) * comb(len(numbers) - size, size) // 2
    cuts = []
    if number_of_cuts <= splits:
        for half in combinations(numbers, size):
            rest = [number for number in numbers if number not in half]
            for other_half in combinations(rest, size):
                if half < other_half:  # each cut once
                    cuts.append((half, other_half))
        return cuts
    rng = np.random.default_rng([0, 2])
    for _ in range(splits):
        order = rng.permutation(numbers).tolist()
        half = tuple(sorted(order[:size]))
        other_half = tuple(sorted(order[size : 2 * size]))
        cuts.append((half, other_half))
    return cuts


def _ratio(correlation: np.ndarray, i: int, j: int) -> tuple[np.ndarray, np.ndarray]:
    """(ratio, ceiling) of pools i and j from (..., pools, pools); NaN where a reliability is not
    positive.
    """
    first = correlation[..., i, i]
    second = correlation[..., j, j]
    ceiling = np.sqrt(np.where((first > 0) & (second > 0), first * second, np.nan))
    return correlation[..., i, j] / ceiling, ceiling[()]


def _jackknife_error(left_out: np.ndarray) -> float:
    """Jackknife standard error from estimates with one of n parts left out each."""
    n = len(left_out)
    return float(np.sqrt((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum()))
