"""Statistics of the references, for each side, which can be merged: means, squares, confidences.

Most attacks need only these, so that the time to score all targets of a pool hardly grows faster
than the number of models (`left_out`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from mia_nb.attacks.reading import (
    Block,
    VectorBlock,
    counts,
    margin_blocks,
    numbers_of_sample,
)
from mia_nb.types import Signals

LARGEST_MARGIN = 700.0  # float64 still holds exp(-700) to full precision


class World(NamedTuple):
    """Margins of the references on one side of every sample, each (N,)."""

    n: np.ndarray
    mean: np.ndarray  # 0 without references
    ss: np.ndarray  # sum of squares around the mean


class Worlds(NamedTuple):
    """Margins of references, IN in row 0 and OUT in row 1.

    It holds sums, not means: sums of margins that were rounded to a grid are exact in any order, so
    that equal samples stay equal however worlds are merged.
    """

    n: np.ndarray  # (2, N) references
    total: np.ndarray  # (2, Q, N)
    ss: np.ndarray  # (2, Q, N) sums of squares around the mean

    def means(self) -> np.ndarray:
        """(2, Q, N) means, 0 without references."""
        return self.total / np.maximum(self.n, 1)[:, None]

    def of(self, query: int) -> tuple[World, World]:
        """The IN and the OUT world of one query."""
        means = self.total[:, query] / np.maximum(self.n, 1)
        world_in = World(self.n[0], means[0], self.ss[0, query])
        world_out = World(self.n[1], means[1], self.ss[1, query])
        return world_in, world_out

    def merged(self, other: Worlds) -> Worlds:
        """The worlds of both sets of references together (Chan, Golub, LeVeque 1983).

        Squares only grow, so nothing cancels.
        """
        n = self.n + other.n
        difference_of_means = other.means() - self.means()
        weight = (self.n * other.n / np.maximum(n, 1))[:, None]
        ss = self.ss + other.ss + difference_of_means**2 * weight
        return Worlds(n, self.total + other.total, ss)


class Confidences(NamedTuple):
    """Sums of the probability p that references give the label, IN in row 0 and OUT in row 1."""

    n: np.ndarray  # (2, N) references
    p: np.ndarray  # (2, Q, N)
    q: np.ndarray  # (2, Q, N) sums of 1 - p

    def merged(self, other: Confidences) -> Confidences:
        """Those of both sets of references together."""
        return Confidences(self.n + other.n, self.p + other.p, self.q + other.q)


Summary = Worlds | Confidences


def worlds_of(references: Signals, combine: str) -> Worlds:
    """The worlds of the references' margins, queries `combined`."""
    numbers = numbers_of_sample(references.shape[1], combine)
    return worlds(margin_blocks(references, combine), counts(references), numbers)


def worlds(parts: Iterable[Block], n: np.ndarray, numbers: int) -> Worlds:
    """The worlds of R = `numbers` values for each sample, from blocks and `counts` n (2, N)."""
    shape = (2, numbers, n.shape[1])
    total = np.empty(shape)
    ss = np.empty(shape)
    at_least_one = np.maximum(n, 1)
    for part, number, x, member in parts:
        for side, on_side in enumerate((member, ~member)):
            weight = on_side.astype(np.float64)
            sum_of_side = np.einsum("mn,mn->n", x, weight)
            residual = (x - sum_of_side / at_least_one[side, part]) * weight
            total[side, number, part] = sum_of_side
            ss[side, number, part] = np.einsum("mn,mn->n", residual, residual)
    return Worlds(n, total, ss)


def scatter_matrix(
    parts: Iterable[VectorBlock],
    mean_in: np.ndarray,
    mean_out: np.ndarray,
    spread: np.ndarray,
    chosen: np.ndarray,
) -> np.ndarray:
    """(R, R) sums of squares and products of the references' numbers, minus the mean of their side
    and in units of the spread, over all models and the chosen samples.

    Parameters:
        parts: the numbers of the references.
        mean_in, mean_out, spread: (R, N).
        chosen: (N,) bool.
    """
    numbers = len(spread)
    total = np.zeros((numbers, numbers))
    for part, values, member in parts:
        mean = np.where(member[:, None], mean_in[:, part], mean_out[:, part])
        residual = (values - mean) / spread[:, part] * chosen[part]
        residual = residual.swapaxes(0, 1).reshape(numbers, -1)
        total += residual @ residual.T
    return total


def confidences_of(references: Signals, combine: str) -> Confidences:
    """The confidences behind the references' margins, queries `combined`.

    Neither p nor 1 - p is computed as a difference, so both are accurate however small. Margins
    beyond LARGEST_MARGIN count as that.
    """
    _, queries, samples = references.shape
    shape = (2, numbers_of_sample(queries, combine), samples)
    sum_p = np.empty(shape)
    sum_q = np.empty(shape)
    for part, number, phi, member in margin_blocks(references, combine):
        odds = np.exp(np.clip(phi, -LARGEST_MARGIN, LARGEST_MARGIN, dtype=np.float64))
        q = 1 / (1 + odds)
        p = odds * q
        for side, on_side in enumerate((member, ~member)):
            weight = on_side.astype(np.float64)
            sum_p[side, number, part] = np.einsum("mn,mn->n", p, weight)
            sum_q[side, number, part] = np.einsum("mn,mn->n", q, weight)
    return Confidences(counts(references), sum_p, sum_q)


def left_out(
    unit: np.ndarray, wanted: set[int], summarise: Callable[[np.ndarray], Summary]
) -> Iterator[tuple[int, Summary | None]]:
    """For every wanted unit, its number and the summary of all models that are not in it.

    Parameters:
        unit: (M,) number of each model's unit, such as its pair; from 0, without gaps.
        wanted: numbers of units; -1 stands for a unit without models.
        summarise: a function from the row numbers of models to their summary.

    Yields:
        Pairs (number, summary), in the order of the numbers; None where no model is left.

    The units are halved again and again, and the summary of each half is merged into that of the
    models outside the other half. So every model is summarised log2(units) times. Subtracting a
    pair from a sum over all models would be faster, but inaccurate where the pair's terms are by
    far the largest. A unit's summary does not depend on which others are wanted.
    """
    if -1 in wanted:
        yield -1, summarise(np.arange(len(unit)))
    if wanted - {-1}:
        yield from _outside(unit, wanted, summarise, 0, int(unit.max()) + 1, None)


def _outside(
    unit: np.ndarray,
    wanted: set[int],
    summarise: Callable[[np.ndarray], Summary],
    first: int,
    stop: int,
    rest: Summary | None,
) -> Iterator[tuple[int, Summary | None]]:
    """`left_out` among the units from `first` to `stop` (not included); `rest` is the summary of
    the models in all other units, None if there are none.
    """
    if stop - first == 1:
        yield first, rest
        return
    middle = (first + stop) // 2
    lower = (unit >= first) & (unit < middle)
    upper = (unit >= middle) & (unit < stop)
    for start, end, other_half in ((first, middle, upper), (middle, stop, lower)):
        if not any(start <= number < end for number in wanted):
            continue
        # no name for the summary of the half, so that its memory is free before the recursion
        outside = _merged(rest, summarise(np.flatnonzero(other_half)))
        yield from _outside(unit, wanted, summarise, start, end, outside)


def _merged(rest: Summary | None, summary: Summary) -> Summary:
    return summary if rest is None else rest.merged(summary)
