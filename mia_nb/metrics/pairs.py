"""Which rows belong together: equal or complementary masks, and pools on the same masks."""

from __future__ import annotations

import numpy as np

from mia_nb.checks import shown
from mia_nb.types import Scores, Signals, pair_ids


def need_membership(signals: Signals, why: str):
    """Raises ValueError, with the reason `why`, for signals that hide who the members are."""
    if signals.member is None:
        raise ValueError(f"these signals hide membership (member=None): {why}")


def units(audited: np.ndarray) -> np.ndarray:
    """(M,) number of each row's independent unit: rows that are equal or exactly complementary
    share one.

    audited: (M, N) membership of audited samples. Samples that all models saw are left aside:
    canaries in pairs are complements among themselves, the others in every model.
    """
    return pair_ids(audited[:, ~audited.all(0)])


def rows_of_pairs(pair: np.ndarray) -> list[np.ndarray]:
    """The rows of each pair, in the order of their numbers; pair: (rows,)."""
    return [np.flatnonzero(pair == number) for number in np.unique(pair)]


def same_or_complement(masks: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(M,) whether each row of masks (M, N) is the mask (N,) or its exact complement."""
    return (masks == mask).all(1) | (masks != mask).all(1)


def numbered(pair: np.ndarray) -> np.ndarray:
    """(targets,) pairs numbered from 0, ascending."""
    return np.unique(pair, return_inverse=True)[1]


def same_masks(one: Scores, other: Scores) -> bool:
    """Whether target k of both was trained on the same samples, and has its pair in both."""
    return np.array_equal(one.member, other.member) and np.array_equal(
        numbered(one.pair), numbered(other.pair)
    )


def refuse_unequal_samples(scores: dict[str, Scores]) -> None:
    """ValueError unless all attacks were judged on the same samples: as many, and of each target
    that two of them share the same members. The largest over attacks means nothing otherwise.
    """
    first = next(iter(scores), "")
    sizes = {name: scores_of_attack.value.shape[1] for name, scores_of_attack in scores.items()}
    seen: dict[int, tuple[str, np.ndarray]] = {}
    way = "score them on the same signals, or take each by itself"
    for name, scores_of_attack in scores.items():
        if sizes[name] != sizes[first]:
            raise ValueError(
                f"{shown(name)} scored {sizes[name]:,} samples and {shown(first)}"
                f" {sizes[first]:,}: wanted one set of samples; {way}"
            )
        for target, member in zip(
            np.ravel(scores_of_attack.targets).tolist(), scores_of_attack.member, strict=True
        ):
            other, known = seen.setdefault(target, (name, member))
            if not np.array_equal(member, known):
                raise ValueError(
                    f"{shown(name)} and {shown(other)} have different members in target {target}"
                    f" ({(member != known).sum():,} of {member.size:,} samples): wanted one set of"
                    f" samples; {way}"
                )
