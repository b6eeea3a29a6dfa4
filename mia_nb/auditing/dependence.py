"""Dependence between samples: which of them must be permuted together.

A permutation test or a bootstrap draws units that are independent of each other. Samples often are
not: ten images of one patient, frames of one video. Where groups are given, they are the units.
Otherwise two signs are checked: whether consecutive samples have similar scores, and whether a
sample's nearest neighbour among the inputs is on its own side (train or test) more often than by
chance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mia_nb.metrics.permutation import mid_ranks, pure_units
from mia_nb.types import Signals

LAGS = 5  # largest distance in the order at which samples are compared
SHUFFLES = 999  # random orders drawn for comparison
ALIKE = 0.01  # at this p or less, neighbours are taken to be alike
FEWEST_BLOCKS = 8  # with fewer blocks on a side, nothing is concluded
NEAREST_P = 0.001  # at this p or less, nearest neighbours share their side too often
QUERIED = 2000  # samples whose nearest neighbour is searched
FEATURES = 48  # most numbers that each input is reduced to
INDEPENDENT = (
    "Assumed: samples are independent of each other. Where several belong together (one person's"
    " images, frames of one video), say so with groups=."
)
ON_BOTH_SIDES = "Most groups have samples on both sides: samples are dealt out anew, not groups."


class Units(NamedTuple):
    """The units in which samples are permuted."""

    labels: np.ndarray | None  # (N,), samples of one label are one unit; None: each by itself
    text: str  # what was taken for a unit, in words
    doubt: str = ""  # why nothing can be concluded from these samples; "" if something can


def resampling_units(
    signals: Signals,
    *,
    groups: np.ndarray | None,
    x: np.ndarray | None,
    seed: int,
) -> Units:
    """The units in which samples are permuted: the groups given, or blocks of similar neighbours.

    Parameters:
        signals: of one model about N audited samples.
        groups: (N,) labels of samples that belong together, or None.
        x: (N, ...) the inputs in the same order, as numbers; None: not compared.
        seed: of the random orders.

    Returns:
        A `Units`.
    """
    member = signals.member[0]
    pure = None
    if groups is not None:
        pure = pure_units(groups, member)
    if pure is not None:
        n1 = len(np.unique(pure[member]))
        n0 = len(np.unique(pure[~member]))
        text = (
            f"Groups were split whole: {n1:,} of members and {n0:,} of non-members are dealt out"
            " anew, not samples."
        )
        return Units(pure, text)
    if x is not None:
        doubt = _doubt_about_neighbours(x, member, seed)
        if doubt:
            return Units(None, "", doubt)
    score = signals.margin[0].mean(0)  # of the loss threshold
    length, correlation = block_length(score, signals.labels, member, seed)
    if length == 1:
        return Units(None, INDEPENDENT if groups is None else ON_BOTH_SIDES)
    blocks = _blocks(member, length)
    blocks_on_a_side = min(len(np.unique(blocks[member])), len(np.unique(blocks[~member])))
    likeness = (
        "Neighbouring samples are alike: in the order given, the losses of samples that follow each"
        f" other correlate by {correlation:.2f} within their class, as those of one person's images"
        " or of frames of one video do."
    )
    way_out = "Say with groups= which samples belong together."
    if blocks_on_a_side < FEWEST_BLOCKS:
        doubt = f"{likeness} Too few are independent to conclude anything. {way_out}"
        return Units(blocks, "", doubt)
    text = f"{likeness} So {length} consecutive samples were taken as one. {way_out}"
    return Units(blocks, text)


def block_length(
    score: np.ndarray, labels: np.ndarray, member: np.ndarray, seed: int
) -> tuple[int, float]:
    """How many consecutive samples make one unit, and the correlation of neighbours; (1, 0) where
    neighbours are not alike.

    Ranks of the score within class and side are compared, so that neither sorted classes nor a leak
    makes neighbours alike. They are alike if at most 1 % of random orders have so large a mean
    correlation over lags 1 to 5. The length is twice the lag from which the mean of five
    correlations is within the noise.
    """
    sequences = _residuals(score, labels, member)
    shorter = min(map(len, sequences))
    variance = sum(float(sequence @ sequence) for sequence in sequences)
    if variance == 0 or shorter <= LAGS + 1:
        return 1, 0.0
    rng = np.random.default_rng(seed)
    observed = sum(map(_likeness, sequences))
    drawn = np.zeros(SHUFFLES)
    for sequence in sequences:
        drawn += [_likeness(rng.permutation(sequence)) for _ in range(SHUFFLES)]
    p = (1 + (drawn >= observed).sum()) / (1 + SHUFFLES)
    if p > ALIKE:
        return 1, 0.0
    longest = max(2, shorter // 2)
    correlations = np.zeros(longest + LAGS)  # at each lag
    for lag in range(1, len(correlations)):
        for sequence in sequences:
            correlations[lag] += sequence[:-lag] @ sequence[lag:]
    correlations /= variance
    noise = 2 / np.sqrt(LAGS * sum(map(len, sequences)))
    means = np.convolve(correlations[1:], np.ones(LAGS) / LAGS, mode="valid")  # from each lag on
    within_noise = np.flatnonzero(means < noise)
    lag = int(within_noise[0]) + 1 if len(within_noise) else longest
    return min(2 * lag, longest), float(correlations[1])


def _residuals(score: np.ndarray, labels: np.ndarray, member: np.ndarray) -> list[np.ndarray]:
    """Ranks minus their mean within class, of members and of non-members, in the given order."""
    known = ~np.isnan(score)
    sequences = []
    for side in (member & known, ~member & known):
        rank = mid_ranks(score[side])
        class_number = np.unique(labels[side], return_inverse=True)[1]
        class_mean = np.bincount(class_number, rank) / np.bincount(class_number)
        sequences.append((rank - class_mean[class_number]) / max(len(rank), 1))
    return sequences


def _likeness(sequence: np.ndarray) -> float:
    """Sum of products of neighbours over lags 1 to LAGS."""
    return sum(np.einsum("n,n->", sequence[:-lag], sequence[lag:]) for lag in range(1, LAGS + 1))


def _blocks(member: np.ndarray, length: int) -> np.ndarray:
    """(N,) number of the block of consecutive samples of one side."""
    block_on_side = np.zeros(len(member), int)
    for side in (member, ~member):
        block_on_side[side] = np.arange(side.sum()) // length
    return 2 * block_on_side + member


def _doubt_about_neighbours(x: np.ndarray, member: np.ndarray, seed: int) -> str:
    """A sentence if nearest neighbours among the inputs are on one side too often; else ""."""
    features = _features(x, seed)
    if features is None:
        return ""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(features))  # ties are then broken by chance
    features = features[order]
    member = member[order]
    nearest = _nearest(features[:QUERIED], features)
    observed = _share_on_one_side(member, nearest)
    drawn = np.zeros(SHUFFLES)
    for i in range(SHUFFLES):
        drawn[i] = _share_on_one_side(rng.permutation(member), nearest)
    p = (1 + (drawn >= observed).sum()) / (1 + SHUFFLES)
    if p > NEAREST_P:
        return ""
    return (
        f"Of {len(nearest):,} samples {observed:.0%} have their nearest neighbour among the inputs"
        f" on their own side, where chance puts {drawn.mean():.0%} there: samples seem to come in"
        " groups that are wholly in train or wholly in test (one person's images, frames of one"
        " video), or the two are not from one source. Say with groups= which samples belong"
        " together."
    )


def _share_on_one_side(member: np.ndarray, nearest: np.ndarray) -> float:
    """The share of queried samples, which come first, whose nearest neighbour is on their side."""
    return float((member[: len(nearest)] == member[nearest]).mean())


def _features(x: np.ndarray, seed: int) -> np.ndarray | None:
    """(N, D) few numbers for each input that keep distances approximately; None without inputs."""
    x = np.asarray(x)
    if x.dtype.kind not in "biuf" or len(x) < 2:
        return None
    flat = x.reshape(len(x), -1).astype(np.float32)
    flat = np.nan_to_num(flat, posinf=0, neginf=0)
    flat = flat - flat.mean(0)
    spread = flat.std(0)
    flat = flat[:, spread > 0] / spread[spread > 0]
    if flat.shape[1] > FEATURES:
        projection = np.random.default_rng(seed).normal(size=(flat.shape[1], FEATURES))
        flat = flat @ projection.astype(np.float32)
    return flat if flat.shape[1] else None


def _nearest(queries: np.ndarray, features: np.ndarray) -> np.ndarray:
    """The row of `features` nearest to each query; query i is row i, which is not its own
    neighbour.
    """
    from sklearn.neighbors import NearestNeighbors  # a second of start-up

    search = NearestNeighbors(n_neighbors=2, algorithm="brute").fit(features)
    first, second = search.kneighbors(queries, return_distance=False).T
    return np.where(first == np.arange(len(queries)), second, first)
