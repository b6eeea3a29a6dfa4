"""Reading the references from memory or disk, a block of samples at a time: only what is read is
copied, and only a block of it at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mia_nb.attacks.margins import COMBINE, blocks, combine_queries, median
from mia_nb.checks import one_of
from mia_nb.types import PER_MODEL, Signals

JOINT = ("joint", "mean_sd")  # values of lira's `combine` that compare vectors, not numbers

# (samples; r, below R; the r-th number of every model and sample (M, n); membership (M, n))
Block = tuple[slice, int, np.ndarray, np.ndarray]
# (samples; all R numbers of every model and sample (M, R, n); membership (M, n))
VectorBlock = tuple[slice, np.ndarray, np.ndarray]


class LazyRows:
    """Some rows of an array (M, ..., N); x[:, part] copies that part of them, nothing else does."""

    def __init__(
        self, array: np.ndarray | LazyRows, rows: np.ndarray, temperature: float | None = None
    ) -> None:
        self.array = array
        self.rows = rows
        self.temperature = temperature  # divides the values read; None: they stay as they are
        self.shape = (len(rows), *array.shape[1:])
        self.dtype = array.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: tuple) -> np.ndarray:
        values = self.array[index][self.rows]
        return values if self.temperature is None else values / self.temperature


def select_lazily(pool: Signals, rows: np.ndarray, temperature: float | None = None) -> Signals:
    """Signals of these models whose arrays are `LazyRows`, the margins divided by a temperature."""
    names = PER_MODEL if pool.activity is None else (*PER_MODEL, "activity")
    arrays = {name: LazyRows(getattr(pool, name), rows) for name in names}
    arrays["margin"] = LazyRows(pool.margin, rows, temperature)
    return replace(pool, **arrays)


def numbers_of_sample(queries: int, combine: str) -> int:
    """R, the number of values for each sample that `combined` makes from its queries."""
    if combine in ("llr", "joint"):
        return queries
    return 2 if combine == "mean_sd" else 1


def combined(margin: np.ndarray, combine: str) -> np.ndarray:
    """(M, Q, N) -> (M, R, N): the numbers of each sample that an attack compares.

    They are the margins of all queries for "llr" and "joint", their mean and log standard deviation
    for "mean_sd", and one margin for a name of `combine_queries`.
    """
    if combine in ("llr", "joint"):
        return margin
    if combine == "mean_sd":
        sd = np.maximum(margin.std(1, ddof=1), 1e-9)
        return np.stack([margin.mean(1), np.log(sd)], axis=1)
    one_of("combine", combine, ("llr", *COMBINE))
    return combine_queries(margin, combine)[:, None]


def margin_blocks(references: Signals, combine: str) -> Iterator[Block]:
    """The references' margins, queries `combined`: blocks of samples, for one of the R numbers at a
    time.
    """
    return number_blocks(references.margin, references.member, combine)


def number_blocks(
    vectors: np.ndarray | LazyRows, member: np.ndarray | LazyRows, combine: str = "llr"
) -> Iterator[Block]:
    """Vectors (M, Q, N), `combined`, and membership (M, N): blocks of samples, for one of the R
    numbers at a time.
    """
    models, _, samples = vectors.shape
    for part in blocks(models, samples):
        numbers = combined(vectors[:, :, part], combine)
        of_samples = member[:, part]
        for number in range(numbers.shape[1]):
            yield part, number, numbers[:, number], of_samples


def vector_blocks(
    vectors: np.ndarray | LazyRows, member: np.ndarray | LazyRows, combine: str = "joint"
) -> Iterator[VectorBlock]:
    """Vectors (M, Q, N), `combined`, and membership (M, N): blocks of samples, all R at once."""
    models, queries, samples = vectors.shape
    for part in blocks(models * numbers_of_sample(queries, combine), samples):
        yield part, combined(vectors[:, :, part], combine), member[:, part]


def counts(references: Signals) -> np.ndarray:
    """(2, N) how many references were trained on each sample, and how many were not."""
    models, _, samples = references.shape
    n_in = np.empty(samples, np.int64)
    for part in blocks(models, samples):
        n_in[part] = np.count_nonzero(references.member[:, part], axis=0)
    return np.stack([n_in, models - n_in])


def medians_of(references: Signals, combine: str) -> np.ndarray:
    """(2, R, N) medians of the references' margins, IN in row 0 and OUT in row 1."""
    _, queries, samples = references.shape
    medians = np.empty((2, numbers_of_sample(queries, combine), samples))
    for part, number, phi, member in margin_blocks(references, combine):
        medians[0, number, part] = median(phi, member)
        medians[1, number, part] = median(phi, ~member)
    return medians
