"""Membership masks, which say on which samples each model of a pool trains."""

from __future__ import annotations

import numpy as np

from mia_nb.arguments import Array, Count, Positive, Whole
from mia_nb.checks import checked

MOST_ENTRIES = 2**31  # of all masks of a pool together


@checked
def paired_membership(
    num_models: Whole,
    num_samples: Positive,
    *,
    labels: Array | None = None,
    num_population: Whole = 0,
    seed: Count = 0,
) -> np.ndarray:
    """Membership masks in complementary pairs: each model trains on exactly those samples that the
    other model of its pair does not see.

    Parameters:
        num_models: M, even.
        num_samples: N.
        labels: class numbers (N,), with which each row holds half of each class. None: not
            stratified.
        num_population: number of columns that are False in every row.
        seed: of the choice. Pair k depends only on (seed, k), so that a larger pool has the rows of
            a smaller one.

    Returns:
        (M, N) bool. Row 2k + 1 is the exact complement of row 2k on all columns except the
        population's. Each row holds half of the audited samples; the halves differ by at most one
        sample, overall and in each class.

    Raises:
        ValueError: for an odd num_models, or fewer than two audited samples.
    """
    if num_models < 2 or num_models % 2:
        raise ValueError(
            f"num_models={num_models}: complementary pairs need an even number; take"
            f" {max(num_models + num_models % 2, 2)}"
        )
    labels, audited = _labels_and_audited(num_models, num_samples, labels, num_population, seed)
    member = np.zeros((num_models, num_samples), bool)
    for k in range(num_models // 2):
        rng = np.random.default_rng([2, k, seed])
        order = audited[_order_by_class(labels[audited], rng)]
        first = rng.integers(2)  # which model of the pair gets the odd sample
        member[2 * k, order[first::2]] = True
        member[2 * k + 1, audited] = ~member[2 * k, audited]
    return member


@checked
def bernoulli_membership(
    num_models: Whole,
    num_samples: Positive,
    *,
    labels: Array | None = None,
    num_population: Whole = 0,
    seed: Count = 0,
) -> np.ndarray:
    """Membership masks by independent fair coins.

    Parameters:
        num_models: M.
        num_samples: N.
        labels: class numbers (N,), by which the population is stratified; None: it is not.
        num_population: number of columns that are False in every row.
        seed: of the coins; row m depends only on (seed, m).

    Returns:
        (M, N) bool.

    Raises:
        ValueError: for no model, or fewer than two audited samples.
    """
    if num_models < 1:
        raise ValueError(f"num_models={num_models}: a pool needs at least 1")
    _, audited = _labels_and_audited(num_models, num_samples, labels, num_population, seed)
    member = np.zeros((num_models, num_samples), bool)
    for m in range(num_models):
        rng = np.random.default_rng([5, m, seed])
        member[m, audited] = rng.integers(2, size=audited.size, dtype=bool)
    return member


def _labels_and_audited(
    num_models: int,
    num_samples: int,
    labels: np.ndarray | None,
    num_population: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Labels (zeros if None), and the numbers of the audited samples: all except the population,
    which is chosen here, stratified by label. ValueError for masks that memory could not hold.
    """
    if num_models * num_samples > MOST_ENTRIES:
        raise ValueError(
            f"{num_models:,} models and {num_samples:,} samples are masks of"
            f" {num_models * num_samples:,} entries; wanted {MOST_ENTRIES:,} at most"
        )
    labels = np.zeros(num_samples, np.int64) if labels is None else np.asarray(labels)
    if labels.shape != (num_samples,):
        raise ValueError(f"labels have shape {labels.shape}; wanted ({num_samples},)")
    if not 0 <= num_population <= num_samples - 2:
        raise ValueError(
            f"num_population={num_population} of num_samples={num_samples}: it must leave two"
            " samples or more to audit"
        )
    population = stratified_choice(labels, num_population, np.random.default_rng([1, seed]))
    return labels, np.flatnonzero(~population)


def _order_by_class(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Numbers of the samples, sorted by class and in random order within each class."""
    order = rng.permutation(labels.size)
    return order[np.argsort(labels[order], kind="stable")]


def stratified_choice(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """(N,) bool, a random choice of exactly `count` samples, stratified by class.

    Each class gets the floor or ceiling of its share, and each sample has the same chance. This is
    systematic sampling: of the samples sorted by class, every (N / count)-th is chosen, from a
    random start.
    """
    order = _order_by_class(labels, rng)
    steps = (np.arange(labels.size + 1) + rng.integers(labels.size)) * count // labels.size
    chosen = np.zeros(labels.size, bool)
    chosen[order] = np.diff(steps) == 1
    return chosen
