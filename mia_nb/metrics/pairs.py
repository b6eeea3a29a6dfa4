"""Membership masks: which rows are equal or complementary, which pools have the same masks, and
masks redrawn from the same design.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mia_nb.checks import shown
from mia_nb.types import Scores, Signals, pair_ids


def need_membership(signals: Signals, why: str) -> None:
    """Raises ValueError, with the reason `why`, for signals that hide who the members are."""
    if signals.member is None:
        raise ValueError(f"these signals hide membership (member=None): {why}")


def units(audited: np.ndarray) -> np.ndarray:
    """(M,) number of each row's independent unit: equal or exactly complementary rows share one.

    audited: (M, N) membership of audited samples. Samples that all models saw are ignored: where
    only canaries are split into pairs, all others are in every model.
    """
    return pair_ids(audited[:, ~audited.all(0)])


def first_rows(pair: np.ndarray) -> np.ndarray:
    """The first row of each pair, in the order of their numbers; pair: (rows,)."""
    return np.unique(pair, return_index=True)[1]


def rows_of_pairs(pair: np.ndarray) -> list[np.ndarray]:
    """The rows of each pair, in the order of their numbers; pair: (rows,)."""
    return [np.flatnonzero(pair == number) for number in np.unique(pair)]


def pair_means(values: np.ndarray, pair: np.ndarray) -> np.ndarray:
    """(pairs, ...) mean of values (rows, ...) over the rows of each pair, in the order of their
    numbers; pair: (rows,).
    """
    return np.stack([values[rows].mean(0) for rows in rows_of_pairs(pair)])


def in_pairs(member: np.ndarray, numbers: np.ndarray) -> bool:
    """Whether the rows of `member` (M, N) that share a number are two, each the other's complement.

    Samples in all rows (all but the canaries, where there are any) are ignored.
    """
    not_in_all = member[:, ~member.all(0)]
    masks_of_pairs = [not_in_all[rows] for rows in rows_of_pairs(numbers)]
    return all(len(masks) == 2 and (masks[0] != masks[1]).all() for masks in masks_of_pairs)


def unit_word(scores: Scores) -> str:
    """What `scores.pair` counts: "pair" of complementary targets, or "training set"."""
    return "pair" if in_pairs(scores.member, scores.pair) else "training set"


def same_or_complement(masks: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(M,) whether each row of masks (M, N) is the mask (N,) or its exact complement."""
    return (masks == mask).all(1) | (masks != mask).all(1)


def numbered(labels: np.ndarray) -> np.ndarray:
    """(N,) number of each label of pairs or groups, from 0, ascending; NaN is a label too."""
    return np.unique(labels, return_inverse=True)[1].ravel()


def same_masks(first: Scores, second: Scores) -> bool:
    """Whether target k was trained on the same samples and has the same pair in both, for all k."""
    same_members = np.array_equal(first.member, second.member)
    return same_members and np.array_equal(numbered(first.pair), numbered(second.pair))


def refuse_unequal_samples(scores: dict[str, Scores]) -> None:
    """ValueError unless all attacks have the same number of samples and, for each target that two
    of them share, the same members: else the largest value over attacks means nothing.
    """
    remedy = "score them on the same signals, or take each by itself"
    sizes = {name: scores_of_attack.value.shape[1] for name, scores_of_attack in scores.items()}
    first = next(iter(scores), "")
    for name, size in sizes.items():
        if size != sizes[first]:
            raise ValueError(
                f"{shown(name)} scored {size:,} samples and {shown(first)} {sizes[first]:,}: wanted"
                f" one set of samples; {remedy}"
            )
    first_seen: dict[int, tuple[str, np.ndarray]] = {}  # {target: (attack, its members)}
    for name, scores_of_attack in scores.items():
        targets = np.ravel(scores_of_attack.targets).tolist()
        for target, member in zip(targets, scores_of_attack.member, strict=True):
            other_name, other_member = first_seen.setdefault(target, (name, member))
            if not np.array_equal(member, other_member):
                different = (member != other_member).sum()
                raise ValueError(
                    f"{shown(name)} and {shown(other_name)} have different members in target"
                    f" {target} ({different:,} of {member.size:,} samples): wanted one set of"
                    f" samples; {remedy}"
                )


def redraw(signals: Signals, n_resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Random masks (M, N) from the design of `signals.member`, as likely as the true one.

    Rows with equal or complementary masks keep that relation; where there are complements, samples
    that all models saw stay in all. A mask that halves every class is redrawn within the classes,
    any other mask is permuted; a balanced design without pairs draws M/2 models for each sample.
    """
    audited = ~signals.population
    pair = units(signals.member[:, audited])
    firsts = first_rows(pair)
    first_of_unit = firsts[pair]  # for each row, the first row of its unit
    has_complements = (signals.member != signals.member[first_of_unit])[:, audited].any()
    in_all = np.zeros(len(audited), bool)
    if has_complements:
        in_all = signals.member.all(0) & audited
    redrawn = np.flatnonzero(audited & ~in_all)
    old = signals.member[:, redrawn]
    labels = signals.labels[redrawn]
    models = len(old)
    no_pairs = len(firsts) == models
    is_balanced = no_pairs and models > 2 and (old.sum(0) == models / 2).all()
    for _ in range(n_resamples):
        member = np.zeros_like(signals.member)
        member[:, in_all] = True
        if is_balanced:
            member[:, redrawn] = rng.random(old.shape).argsort(0) < models // 2
        else:
            fresh = np.stack([_redrawn_mask(old[row], labels, rng) for row in firsts])
            is_complement = old[:, 0] != old[first_of_unit, 0]
            member[:, redrawn] = fresh[pair] ^ is_complement[:, None]
        yield member


def _redrawn_mask(mask: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A mask (N,) redrawn within the classes if it halves each of them, else permuted."""
    surplus = np.bincount(labels, weights=np.where(mask, 1, -1))  # members - others, by class
    if np.abs(surplus).max() > 1 or abs(surplus.sum()) > 1:
        return rng.permutation(mask)
    # every second sample becomes a member, in a random order that keeps classes together
    order_in_class = rng.random(len(mask))
    order_of_class = rng.permutation(len(surplus))[labels]
    order = np.lexsort((order_in_class, order_of_class))
    redrawn = np.zeros_like(mask)
    redrawn[order[rng.integers(2) :: 2]] = True
    return redrawn
