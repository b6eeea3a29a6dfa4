"""Does a model score its members above others? One exact test over all attacks, their areas, their
tails and the mean loss.

Membership is dealt anew among the samples, the scores stay. The hypothesis is that members and
non-members are exchangeable: without a leak the true deal is then one like all others, so that
p = (1 + deals drawn that are at least as extreme) / (1 + deals drawn) lies at or below 2.5 % in at
most 2.5 % of cases, with 12 samples as with 12,000. A difference of the samples themselves breaks
the hypothesis too, so that a small p is a leak only where the two sides come from one source
(`auditing.shift_guard`). What is correlated costs nothing: attacks that rank alike count as one by
themselves.

Source: Westfall and Young 1993 (the smallest p of several, by permutation); Genovese, Roeder and
Wasserman 2006 (p-values with weights that are fixed beforehand); Phipson and Smyth 2010 (the true
deal is counted).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mia_nb.arguments import Array, Count, Whole
from mia_nb.checks import checked

FRACTIONS = (0.01, 0.02, 0.05, 0.1)  # of all samples: how far down the largest scores are counted
FEWEST_TOP = 5  # largest scores that are counted at least
LEVEL = 0.025  # p at or below which members are said to be given away
PERMUTATIONS = 1999
MANY_UNITS = 20_000  # above so many units half of the permutations are drawn
CHUNK = 1 << 22  # entries of membership held at once
# What share of the level each part has. A mean loss finds a small leak of an ordinary model more
# often than ranks do, and few wholly exposed members give a tail that needs no large share.
SHARES = {"area": 0.2, "loss": 0.5, "tail": 0.3}


class Evidence(NamedTuple):
    """What `membership_test` found.

    p: of all parts together. part: "area", "loss" or "tail", where the evidence is strongest.
    parts: {part: its own p}. attack: whose area, or whose tail, is the most extreme in that part.
    mean: which of the values, whose means are compared, is the most extreme; "" without any.
    top, top_members: how many of the largest scores of `tail_attack` were counted, and how many of
    them belong to members. units: how many sides were dealt out; smallest: the smallest p that so
    few can give.
    """

    p: float
    part: str
    parts: dict[str, float]
    attack: str
    mean: str
    tail_attack: str
    top: int
    top_members: int
    units: int
    smallest: float


class Compared(NamedTuple):
    """A statistic: the mean of `weight` (N,) over members, less that over others. part: area, loss
    or tail; name: of the attack, or of the mean; top: of a tail, how many scores it counts.
    """

    part: str
    name: str
    top: int
    weight: np.ndarray


@checked
def membership_test(
    scores: dict[str, np.ndarray],
    member: Array,
    *,
    means: dict[str, np.ndarray] | None = None,
    units: Array | None = None,
    permutations: Whole | None = None,
    seed: Count = 0,
) -> Evidence:
    """Do members of one model have larger scores than others, over all or among the largest?

    Parameters:
        scores: {attack: (N,)}, larger = more likely a member; NaN: not scored.
        member: (N,) bool.
        means: {name: (N,)}, values whose mean over members is compared too, as the log-probability
            of the true label.
        units: (N,) labels; samples with one label change sides together (a patient's ten images).
            Each must lie on one side (`pure_units`). None: every sample by itself.
        permutations: how many deals are drawn; None: 1,999, of more than 20,000 units half of it.
        seed: of the deals.

    Returns:
        An `Evidence`. Each statistic is the difference of means between the sides: of an attack's
        ranks (its AUC less 1/2), of "is among the k largest scores" for k = 1, 2, 5 and 10 % of
        all samples, and of `means`. Each part (area, tail, loss) has the largest of its statistics
        in standard units, and its p. The smallest p over its part's share of the level (`SHARES`)
        is compared with what the same deals give.

    Raises:
        ValueError: for arrays of different lengths, a unit on both sides, and a side without units.

    Source: Westfall and Young 1993.

    Caveat: units are exchangeable under the hypothesis. Chance that drew the members makes them so;
    else it is an assumption about where train and test come from.
    """
    member = np.asarray(member, bool)
    means = means or {}
    for name, values in {**scores, **means, "units": units}.items():
        if values is not None and np.shape(values) != member.shape:
            raise ValueError(
                f"{name} has shape {np.shape(values)} and member {member.shape}: wanted one entry"
                " of each per sample"
            )
    number, size, inside = _sides(member, units)
    compared = []
    for name, values in scores.items():
        compared += _of_scores(name, values)
    for name, values in means.items():
        compared.append(Compared("loss", name, 0, _centred(values)))
    part = np.array([statistic.part for statistic in compared])

    # (units, S) sums of weights, then (1 + permutations, S) statistics, the true deal's first
    summed = np.stack(
        [np.bincount(number, statistic.weight, len(size)) for statistic in compared], axis=1
    )
    if permutations is None:
        permutations = PERMUTATIONS if len(size) <= MANY_UNITS else PERMUTATIONS // 2
    deals = _deals(inside, permutations, np.random.default_rng(seed))
    statistics = np.concatenate([_differences(deal, summed, size) for deal in deals])

    # in standard units; under the hypothesis the true deal is one like the others
    spread = statistics.std(0)
    statistics = np.divide(statistics, spread, out=np.zeros_like(statistics), where=spread > 0)
    p_of_part = {}
    best = {}  # the most extreme of each part in the true deal
    for name in SHARES:
        columns = np.flatnonzero(part == name)
        if len(columns):
            p_of_part[name] = _p_of_each_deal(statistics[:, columns].max(1))
            best[name] = compared[columns[statistics[0, columns].argmax()]]
    weighted = {name: p / SHARES[name] for name, p in p_of_part.items()}
    smallest = np.min(list(weighted.values()), axis=0)

    decisive = min(weighted, key=lambda name: weighted[name][0])
    tail = best["tail"]
    return Evidence(
        p=float((smallest <= smallest[0] + 1e-12).mean()),
        part=decisive,
        parts={name: float(p[0]) for name, p in p_of_part.items()},
        attack=best["area" if decisive == "loss" else decisive].name,
        mean=best["loss"].name if means else "",
        tail_attack=tail.name,
        top=tail.top,
        top_members=int(tail.weight[member].sum() + tail.top * member.mean() + 0.5),
        units=len(size),
        smallest=1 / math.comb(len(size), int(inside.sum())) if len(size) < 60 else 0.0,
    )


def _sides(
    member: np.ndarray, units: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(number of each sample's unit, samples of each unit, whether it is a member's)."""
    number = np.arange(len(member))
    if units is not None:
        number = np.unique(units, return_inverse=True)[1].ravel()
    size = np.bincount(number)
    share = np.bincount(number, member) / size
    mixed = int(((share > 0) & (share < 1)).sum())
    if mixed:
        raise ValueError(f"{mixed} units have samples on both sides; wanted each on one")
    inside = share > 0
    if inside.all() or not inside.any():
        raise ValueError("all units are on one side: wanted members and non-members")
    return number, size, inside


def _of_scores(name: str, values: np.ndarray) -> list[Compared]:
    """What is compared of one attack: its ranks, and who is among its k largest."""
    values = np.asarray(values, float)
    rank = mid_ranks(values[~np.isnan(values)])
    falling = len(rank) + 1 - rank  # 1 for the largest, ties share their mean
    compared = [Compared("area", name, 0, _of_known(values, rank))]
    for k in _tops(len(rank)):
        compared.append(Compared("tail", name, k, _of_known(values, _among_largest(falling, k))))
    return compared


def _of_known(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(N,) centred weights; what is not scored speaks for no side."""
    weights = np.zeros(len(values))
    weights[~np.isnan(values)] = _centred(weight)
    return weights


def _centred(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, float)
    return values - values.mean()


def mid_ranks(values: np.ndarray) -> np.ndarray:
    """1 for the smallest; ties share the mean of their ranks."""
    _, level, size = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(size) - (size - 1) / 2)[level.ravel()]


def _tops(samples: int) -> list[int]:
    """How many of the largest scores are counted."""
    wanted = {max(FEWEST_TOP, round(fraction * samples)) for fraction in FRACTIONS}
    return sorted({min(k, max(1, samples // 2)) for k in wanted})


def _among_largest(falling: np.ndarray, k: int) -> np.ndarray:
    """1 for the k largest scores, 0 for others; those tied at the edge share what is left."""
    _, at, size = np.unique(falling, return_inverse=True, return_counts=True)
    before = np.cumsum(size) - size
    share = np.clip((k - before) / size, 0, 1)
    return share[at.ravel()]


def _deals(inside: np.ndarray, permutations: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """(deals, units) in blocks: the true deal, then as many members dealt out by chance."""
    yield inside[None]
    step = max(1, CHUNK // len(inside))
    for start in range(0, permutations, step):
        rows = min(step, permutations - start)
        yield rng.permuted(np.broadcast_to(inside, (rows, len(inside))), axis=1)


def _differences(deal: np.ndarray, summed: np.ndarray, size: np.ndarray) -> np.ndarray:
    """(deals, S): mean weight of members less that of the others, up to a factor that all deals
    share.
    """
    deal = deal.astype(np.float64)
    n1 = deal @ size
    # weights add up to 0 over all samples: what members lack the others have too much
    return (deal @ summed) / (n1 * (size.sum() - n1))[:, None]


def _p_of_each_deal(largest: np.ndarray) -> np.ndarray:
    """Of every deal the share of deals whose statistic is at least as large, its own included."""
    rounded = np.round(largest, 9)
    ordered = np.sort(rounded)
    return 1 - np.searchsorted(ordered, rounded, side="left") / len(ordered)


def pure_units(groups: np.ndarray, member: np.ndarray) -> np.ndarray | None:
    """Labels of groups as units for `membership_test`; None where groups were not split whole.

    Where most samples lie in groups that are wholly on one side, chance dealt out groups, and the
    part of a group on either side is a unit. Where most lie in groups on both sides, chance dealt
    out samples.
    """
    number = np.unique(groups, return_inverse=True)[1].ravel()
    inside = np.bincount(number, member) / np.bincount(number)
    mixed = ((inside > 0) & (inside < 1))[number].mean()
    if mixed > 0.5:
        return None
    return 2 * number + np.asarray(member, bool)
