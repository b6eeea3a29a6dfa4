"""Do two pools expose the same samples? Rank correlations beside the most that their noise would
let one see.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from math import comb

import numpy as np
import pandas as pd

from mia_nb.attacks import score
from mia_nb.checks import checked
from mia_nb.metrics.uncertainty import half_width
from mia_nb.types import Signals

GROUPS = 20  # blocks of samples left out in turn
COLUMNS = [
    "first",
    "second",
    "correlation",
    "ceiling",
    "ratio",
    "low",
    "high",
    "first_reliability",
    "second_reliability",
    "samples",
    "pairs",
    "covers",
]


@checked
def exposure(signals: Signals, attack: str | None = None) -> np.ndarray:
    """(pairs, N audited): what membership did to each sample's margin, or to an attack's score of
    it, by pair of models.

    margin of the models of a pair that trained on the sample, minus that of those that did not;
    averaged over pairs it is the memorisation of Feldman and Zhang (NeurIPS 2020) with the margin
    in place of being right, so that it does not saturate. attack: its score as target in place of
    the margin, with the other pairs as references. Models without a mate (Bernoulli designs) make a
    pair of their own, and have NaN on one side: use designs in pairs. ValueError where there are
    none.
    """
    plain = score("loss" if attack is None else attack, signals)
    audited = ~signals.population
    value = signals.margin.mean(1)[:, audited] if attack is None else plain.value
    pairs = [np.flatnonzero(plain.pair == one) for one in np.unique(plain.pair)]
    if any(
        len(rows) != 2 or (plain.member[rows[0]] == plain.member[rows[1]]).any() for rows in pairs
    ):
        raise ValueError(
            "these models are not complementary pairs: exposure compares a model and its mate;"
            " train split=pairs"
        )
    gain = np.where(plain.member, value, -value)
    return np.stack([gain[rows].sum(0) for rows in pairs])


@checked
def agreement(
    pools: dict[str, Signals],
    attack: str | None = None,
    *,
    splits: int = 10,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """How far pools that share their masks expose the same samples: a row per two of them,
    `COLUMNS`.

    The pairs of models are cut into halves. correlation: Spearman's, between the samples' mean
    `exposure` in one half of the first pool and in the *other* half of the second, so that no
    training noise is shared; reliability: the same between the halves of one pool; ceiling =
    sqrt(product of the two reliabilities), what equal pools would show; ratio = correlation /
    ceiling, 1 where only noise tells them apart (Spearman 1904). All are means over `splits` random
    cuts, the same for all pools. With `attack`, references come from the target's own half. low,
    high: Student's interval of the ratio, from leaving out one pair of models in turn and one of 20
    blocks of samples (jackknife, the variances added). Where a pair less leaves too few references
    in a half, samples only: `covers` says. Raises ValueError for pools of different masks, for
    fewer than 2 pairs (with `attack`: 4), and for one pool alone. Caveats: all is about means over
    half of the pairs; a ratio of noisy reliabilities (under 0.1, say) is noise itself and is NaN
    where one is not positive; the correction is exact for linear correlations, and for ranks where
    they are roughly so.
    """
    if len(pools) < 2:
        raise ValueError(f"agreement got {len(pools)} pool: pass two or more, {{name: signals}}")
    first, *others = pools.values()
    if any(not np.array_equal(one.member, first.member) for one in others):
        raise ValueError(
            "the pools have different membership: compare recipes on the same masks,"
            " training.family_pools makes them"
        )
    least = 1 if attack is None else 2
    units = [
        np.flatnonzero(score("loss", first).pair == one)
        for one in np.unique(score("loss", first).pair)
    ]
    if len(units) < 2 * least:
        raise ValueError(
            f"{len(units)} pairs of models: two halves need {2 * least} or more; train more models"
        )
    halves = _Halves(pools, attack, units)
    whole = range(len(units))
    cuts, samples = _cuts(whole, splits, seed), first.member[:, ~first.population].shape[1]
    blocks = np.random.default_rng([seed, 1]).permutation(samples) % GROUPS
    point = halves.correlations(cuts, np.ones(samples, bool))
    by_block = np.stack([halves.correlations(cuts, blocks != block) for block in range(GROUPS)])
    enough = (len(units) - 1) // 2 >= least and len(units) > 2
    left = [_cuts([u for u in whole if u != out], splits, seed) for out in whole] if enough else []
    by_pair = (
        np.stack([halves.correlations(some, np.ones(samples, bool)) for some in left])
        if enough
        else None
    )
    covers = "samples and pairs" if enough else "samples"
    rows = []
    for (i, a), (j, b) in combinations(enumerate(pools), 2):
        (value, correlation, ceiling), error = (
            _ratio(point, i, j),
            _spread(_ratio(by_block, i, j)[0]),
        )
        error = error if by_pair is None else np.hypot(error, _spread(_ratio(by_pair, i, j)[0]))
        half = half_width(error**2, len(units) if enough else GROUPS, confidence=confidence)
        ends = value - half, value + half
        record = (
            a,
            b,
            correlation,
            ceiling,
            value,
            *ends,
            point[i, i],
            point[j, j],
            samples,
            len(units),
            covers,
        )
        rows.append(dict(zip(COLUMNS, record, strict=True)))
    return pd.DataFrame(rows, columns=COLUMNS)


class _Halves:
    """Mean exposures of the samples in some pairs of every pool, each computed once."""

    def __init__(self, pools: dict[str, Signals], attack: str | None, units: list[np.ndarray]):
        self.pools, self.attack, self.units = list(pools.values()), attack, units
        self.margins = [exposure(one) for one in self.pools] if attack is None else []
        self.known: dict[tuple, np.ndarray] = {}

    def means(self, units: tuple[int, ...]) -> np.ndarray:
        """(pools, N) mean exposure in these pairs."""
        if units not in self.known:
            rows = np.concatenate([self.units[u] for u in units])
            each = (
                [one[list(units)] for one in self.margins]
                if self.margins
                else [exposure(one.select(models=rows), self.attack) for one in self.pools]
            )
            self.known[units] = np.stack([one.mean(0) for one in each])
        return self.known[units]

    def correlations(self, cuts: Iterable[tuple], kept: np.ndarray) -> np.ndarray:
        """(pools, pools) Spearman correlation between opposite halves, on the samples kept, mean
        over cuts and directions.
        """
        found = []
        for one, other in cuts:
            means = (pd.DataFrame(self.means(side)[:, kept]) for side in (one, other))
            ranks = (frame.rank(axis=1).to_numpy() for frame in means)
            x, y = (r - r.mean(1, keepdims=True) for r in ranks)
            size = np.sqrt(np.outer((x**2).sum(1), (y**2).sum(1)))
            across = np.divide(x @ y.T, size, out=np.zeros_like(size), where=size > 0)
            found.append((across + across.T) / 2)
        return np.mean(found, axis=0)


def rank_correlation(x, y) -> float:
    """Spearman's correlation of two vectors; NaN where one of them is constant."""
    with np.errstate(invalid="ignore"):
        return float(np.corrcoef(pd.Series(x).rank(), pd.Series(y).rank())[0, 1])


def _cuts(
    units: Iterable[int], splits: int, seed: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Cuts into two equal halves (an odd pair is left out): all of them where there are no more
    than `splits`, else random.
    """
    units = list(units)
    size, rng = len(units) // 2, np.random.default_rng([seed, 2])
    if comb(len(units), size) * comb(len(units) - size, size) // 2 <= splits:
        every = [
            (a, b)
            for a in combinations(units, size)
            for b in combinations([u for u in units if u not in a], size)
        ]
        return [(a, b) for a, b in every if a < b]
    orders = [rng.permutation(units) for _ in range(splits)]
    return [
        (tuple(sorted(map(int, o[:size]))), tuple(sorted(map(int, o[size : 2 * size]))))
        for o in orders
    ]


def _ratio(found: np.ndarray, i: int, j: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ratio, correlation, ceiling) of pools i and j from (..., pools, pools)."""
    own = found[..., i, i], found[..., j, j]
    ceiling = np.sqrt(np.where((own[0] > 0) & (own[1] > 0), own[0] * own[1], np.nan))
    return found[..., i, j] / ceiling, found[..., i, j][()], ceiling[()]


def _spread(left_out: np.ndarray) -> float:
    """Jackknife standard error from estimates with one of n parts left out each."""
    n = len(left_out)
    return float(np.sqrt((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum()))
