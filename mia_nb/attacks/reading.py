"""The references, read where they lie, a block of samples at a time: nothing of them is copied that
is not read, and no more than a block of it at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mia_nb.attacks.margins import COMBINE, blocks, combine_queries, median
from mia_nb.checks import one_of
from mia_nb.types import PER_MODEL, Signals

JOINT = ("joint", "mean_sd")  # values of lira's `combine` that compare vectors, not numbers

# samples, their R numbers (M, R, n) of every model, and membership (M, n)
Block = tuple[slice, np.ndarray, np.ndarray]


class Rows:
    """Some rows of an array (M, ..., N), which are copied only where they are read: x[:, part]."""

    def __init__(
        self, array: np.ndarray | Rows, rows: np.ndarray, temperature: float | None = None
    ) -> None:
        self.array = array
        self.rows = rows
        self.temperature = temperature  # divides what is read; None: it stays as it is
        self.shape = (len(rows), *array.shape[1:])
        self.dtype = array.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: tuple) -> np.ndarray:
        values = self.array[index][self.rows]
        return values if self.temperature is None else values / self.temperature


def select_lazily(pool: Signals, rows: np.ndarray, temperature: float | None = None) -> Signals:
    """Signals of these models whose arrays are `Rows`, the margins divided by a temperature."""
    names = PER_MODEL if pool.activity is None else (*PER_MODEL, "activity")
    arrays = {name: Rows(getattr(pool, name), rows) for name in names}
    arrays["margin"] = Rows(pool.margin, rows, temperature)
    return replace(pool, **arrays)


def numbers_of_sample(queries: int, combine: str) -> int:
    """R, how many numbers `combined` makes of so many queries."""
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


def margin_blocks(references: Signals, combine: str, *, at_once: int = 1) -> Iterator[Block]:
    """The references' margins, queries `combined`, with their membership.

    Blocks are as wide as suits a caller who works on so many of the R numbers at once.
    """
    models, _, samples = references.shape
    for part in blocks(models * at_once, samples):
        numbers = combined(references.margin[:, :, part], combine)
        yield part, numbers, references.member[:, part]


def vector_blocks(vectors: np.ndarray, member: np.ndarray, *, at_once: int = 1) -> Iterator[Block]:
    """Vectors (M, R, N) of other numbers than margins, with the membership (M, N)."""
    models, _, samples = vectors.shape
    for part in blocks(models * at_once, samples):
        yield part, vectors[:, :, part], member[:, part]


def counts(references: Signals) -> np.ndarray:
    """(2, N) references that were trained on each sample, and that were not."""
    models, _, samples = references.shape
    n_in = np.empty(samples, np.int64)
    for part in blocks(models, samples):
        n_in[part] = np.count_nonzero(references.member[:, part], axis=0)
    return np.stack([n_in, models - n_in])


def medians_of(references: Signals, combine: str) -> np.ndarray:
    """(2, R, N) medians of the references' margins, IN in row 0 and OUT in row 1."""
    _, queries, samples = references.shape
    medians = np.empty((2, numbers_of_sample(queries, combine), samples))
    for part, phi, member in margin_blocks(references, combine):
        for query, of_query in enumerate(phi.swapaxes(0, 1)):
            medians[0, query, part] = median(of_query, member)
            medians[1, query, part] = median(of_query, ~member)
    return medians
