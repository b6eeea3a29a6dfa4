"""Does a model score its members above others? One exact test over all attacks, their areas, their
tails and the mean loss.

Membership is permuted among the samples while the scores stay. A permutation is called a deal. The
hypothesis is that members and non-members are exchangeable: the true deal is then as likely as any
other, so that p = (1 + deals drawn that are at least as extreme) / (1 + deals drawn) is at most
2.5 % in at most 2.5 % of cases, with 12 samples as with 12,000. A difference between the samples
themselves breaks the hypothesis too, so a small p shows a leak only where the two sides come from
one source (`auditing.shift_guard`). Correlated attacks cost nothing: those that rank alike count as
one.

Source: Westfall and Young 1993 (the smallest of several p-values, by permutation); Genovese, Roeder
and Wasserman 2006 (p-values with weights fixed beforehand); Phipson and Smyth 2010 (counting the
true deal).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb.arguments import Array, Count, Whole
from mia_nb.checks import checked
from mia_nb.metrics.pairs import numbered

FRACTIONS = (0.01, 0.02, 0.05, 0.1)  # shares of all samples, whose largest scores a tail counts
FEWEST_TOP = 5  # fewest scores that a tail counts
LEVEL = 0.025  # at this p or less, members are said to be given away
PERMUTATIONS = 1999
MANY_UNITS = 20_000  # with more units, half as many permutations are drawn
CHUNK = 1 << 22  # entries of membership held at once
# The share of the level for each part. The mean loss finds a small leak of an ordinary model more
# often than ranks do; a few wholly exposed members give a tail that needs no large share.
SHARES = {"area": 0.2, "loss": 0.5, "tail": 0.3}


class Evidence(NamedTuple):
    """The result of `membership_test`.

    The part "area" compares ranks, "tail" the largest scores, and "loss" the `means`.
    """

    p: float  # of all parts together
    part: str  # the one with the strongest evidence
    parts: dict[str, float]  # {part: its own p}
    attack: str  # whose area, or tail, is the most extreme: the tail if that is `part`
    mean: str  # the most extreme of `means`, "" without any
    tail_attack: str  # whose tail is the most extreme
    # how many of its largest scores were counted, with all that tie for the last place among them
    # (of which the test itself counts a share), and how many of them belong to members
    top: int
    top_members: int
    # the share of members among the samples that this attack scored; by chance alone the largest
    # scores have the same
    member_share: float
    units: int  # whose sides were permuted
    smallest: float  # the smallest p that these units can give; 0 from 60 units on


class Compared(NamedTuple):
    """A statistic: the mean of a weight over members, minus its mean over others."""

    part: str  # "area", "loss" or "tail"
    name: str  # of the attack, or of the mean
    top: int  # how many of the largest scores a tail counts; 0 for other parts
    weight: np.ndarray  # (N,)


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
        means: {name: (N,)}, values whose means over members and others are compared too, such as
            the log-probability of the true label.
        units: (N,) labels; samples with one label change sides together (a patient's ten images).
            Each must lie on one side (`pure_units`). None: every sample by itself.
        permutations: how many deals are drawn; None: 1,999, or half of that above 20,000 units.
        seed: of the deals.

    Returns:
        An `Evidence`. Each statistic is a difference of means between the sides: of an attack's
        ranks (its AUC minus 1/2), of "is among the k largest scores" for k = 1, 2, 5 and 10 % of
        all samples, and of `means`. The p of a part (area, tail, loss) is that of its largest
        statistic in standard units. Each p is divided by its part's share of the level (`SHARES`),
        and the smallest is compared with the smallest of every other deal.

    Raises:
        ValueError: without an attack, for one that scored no sample, for arrays of different
            lengths, a unit on both sides, and a side without units.

    Source: Westfall and Young 1993.

    Caveat: units must be exchangeable under the hypothesis. They are if members were drawn at
    random; otherwise this is an assumption about where train and test come from.
    """
    member = np.asarray(member, bool)
    means = means or {}
    _check_shapes(scores, means, units, member)
    unit_of_sample, size, is_member = _sides(member, units)
    number_of_units = len(size)
    compared = []
    for name, values in scores.items():
        compared += _attack_statistics(name, values)
    for name, values in means.items():
        compared.append(Compared("loss", name, 0, _centred(values)))
    if permutations is None:
        permutations = PERMUTATIONS if number_of_units <= MANY_UNITS else PERMUTATIONS // 2
    deals = _deals(is_member, permutations, np.random.default_rng(seed))
    statistics = _in_standard_units(compared, unit_of_sample, size, deals)

    part_of_column = np.array([statistic.part for statistic in compared])
    p_of_part = {}  # for each part the p of every deal, the true one's first
    weighted = {}  # the same, divided by the part's share of the level
    most_extreme = {}  # for each part a statistic of the true deal
    for part, share in SHARES.items():
        columns = np.flatnonzero(part_of_column == part)
        if len(columns):
            p_of_part[part] = _p_of_each_deal(statistics[:, columns].max(1))
            weighted[part] = p_of_part[part] / share
            most_extreme[part] = compared[columns[statistics[0, columns].argmax()]]
    smallest_weighted = np.min(list(weighted.values()), axis=0)
    decisive = min(weighted, key=lambda part: weighted[part][0])
    tail = most_extreme["tail"]
    top, top_members, member_share = _counts_of_tail(scores[tail.name], tail.top, member)
    smallest_p = 0.0  # that of many units is far below the level
    if number_of_units < 60:
        smallest_p = 1 / math.comb(number_of_units, int(is_member.sum()))
    return Evidence(
        p=float((smallest_weighted <= smallest_weighted[0] + 1e-12).mean()),
        part=decisive,
        parts={part: float(p[0]) for part, p in p_of_part.items()},
        attack=most_extreme["tail" if decisive == "tail" else "area"].name,
        mean=most_extreme["loss"].name if means else "",
        tail_attack=tail.name,
        top=top,
        top_members=top_members,
        member_share=member_share,
        units=number_of_units,
        smallest=smallest_p,
    )


def _check_shapes(
    scores: dict[str, np.ndarray],
    means: dict[str, np.ndarray],
    units: np.ndarray | None,
    member: np.ndarray,
) -> None:
    """ValueError without an attack, for one that scored no sample, and for other lengths."""
    for name, values in {**scores, **means, "units": units}.items():
        if values is not None and np.shape(values) != member.shape:
            raise ValueError(
                f"{name} has shape {np.shape(values)} and member {member.shape}: wanted one entry"
                " of each per sample"
            )
    if not scores:
        raise ValueError("scores is empty: wanted {attack: scores (N,)} with one attack or more")
    for name, values in scores.items():
        if np.isnan(values).all():
            raise ValueError(f"{name} scored no sample: all its scores are NaN; leave it out")


def _sides(
    member: np.ndarray, units: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(number of each sample's unit, samples of each unit, whether these are members)."""
    unit_of_sample = np.arange(len(member))
    if units is not None:
        unit_of_sample = numbered(units)
    size = np.bincount(unit_of_sample)
    member_share = np.bincount(unit_of_sample, member) / size
    mixed = int(((member_share > 0) & (member_share < 1)).sum())
    if mixed:
        raise ValueError(f"{mixed} units have samples on both sides; wanted each on one")
    is_member = member_share > 0
    if is_member.all() or not is_member.any():
        raise ValueError("all units are on one side: wanted members and non-members")
    return unit_of_sample, size, is_member


def _attack_statistics(name: str, values: np.ndarray) -> list[Compared]:
    """The statistics of one attack: its ranks, and whether a score is among the k largest."""
    values = np.asarray(values, float)
    known = ~np.isnan(values)
    rank = mid_ranks(values[known])
    falling = len(rank) + 1 - rank  # 1 for the largest, ties share their mean
    compared = [Compared("area", name, 0, _weights_of_all(rank, known))]
    for k in _tops(len(rank)):
        weights = _weights_of_all(_among_largest(falling, k), known)
        compared.append(Compared("tail", name, k, weights))
    return compared


def _weights_of_all(weights_of_known: np.ndarray, known: np.ndarray) -> np.ndarray:
    """(N,) centred weights of all samples, 0 where there is no score; known: (N,)."""
    weights = np.zeros(len(known))
    weights[known] = _centred(weights_of_known)
    return weights


def _centred(values: np.ndarray) -> np.ndarray:
    """Values minus their mean, so that they add up to 0."""
    values = np.asarray(values, float)
    return values - values.mean()


def mid_ranks(values: np.ndarray) -> np.ndarray:
    """1 for the smallest; ties share the mean of their ranks."""
    return pd.Series(values).rank().to_numpy()


def _tops(samples: int) -> list[int]:
    """The numbers k of largest scores that are counted."""
    most = max(1, samples // 2)
    tops = set()
    for fraction in FRACTIONS:
        k = max(FEWEST_TOP, round(fraction * samples))
        tops.add(min(k, most))
    return sorted(tops)


def _among_largest(falling: np.ndarray, k: int) -> np.ndarray:
    """1 for the k largest scores, 0 for others; scores tied at the edge share the rest of k."""
    _, block, size = np.unique(falling, return_inverse=True, return_counts=True)
    before = np.cumsum(size) - size
    share = np.clip((k - before) / size, 0, 1)
    return share[block.ravel()]


def _deals(
    is_member: np.ndarray, permutations: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """(deals, units) in blocks: the true deal, then random ones with the same number of members."""
    yield is_member[None]
    units = len(is_member)
    step = max(1, CHUNK // units)
    for start in range(0, permutations, step):
        rows = min(step, permutations - start)
        yield rng.permuted(np.broadcast_to(is_member, (rows, units)), axis=1)


def _in_standard_units(
    compared: list[Compared],
    unit_of_sample: np.ndarray,
    size: np.ndarray,
    deals: Iterable[np.ndarray],
) -> np.ndarray:
    """(deals, S): every statistic in every deal, divided by its standard deviation over all deals,
    0 for one that is the same in all. The true deal is as likely as any other under the hypothesis,
    so it counts too.
    """
    units = len(size)
    sums = [np.bincount(unit_of_sample, statistic.weight, units) for statistic in compared]
    summed = np.stack(sums, axis=1)  # (units, S)
    statistics = np.concatenate([_differences(deal, summed, size) for deal in deals])
    spread = statistics.std(0)
    return np.divide(statistics, spread, out=np.zeros_like(statistics), where=spread > 0)


def _differences(deal: np.ndarray, summed: np.ndarray, size: np.ndarray) -> np.ndarray:
    """(deals, S): mean weight of members minus that of the others, up to a factor that all deals
    share.
    """
    deal = deal.astype(np.float64)
    n1 = deal @ size
    # weights add up to 0 over all samples, so the others' sum is minus the members'
    return (deal @ summed) / (n1 * (size.sum() - n1))[:, None]


def _p_of_each_deal(largest: np.ndarray) -> np.ndarray:
    """For every deal, the share of deals whose statistic is at least as large, itself included."""
    rounded = np.round(largest, 9)
    ordered = np.sort(rounded)
    return 1 - np.searchsorted(ordered, rounded, side="left") / len(ordered)


def _counts_of_tail(scores: np.ndarray, top: int, member: np.ndarray) -> tuple[int, int, float]:
    """(how many scores are among the `top` largest, all that tie for the last place included; how
    many of these belong to members; the members' share of all that were scored).
    """
    known = ~np.isnan(scores)
    values = np.asarray(scores, float)[known]
    is_member = member[known]
    is_largest = values >= np.sort(values)[-top]
    return int(is_largest.sum()), int(is_member[is_largest].sum()), float(is_member.mean())


def pure_units(groups: np.ndarray, member: np.ndarray) -> np.ndarray | None:
    """Labels of groups as units for `membership_test`; None where groups were not split whole.

    If most samples are in groups that lie wholly on one side, groups were split as a whole; a unit
    is then the part of a group on one side. If most are in groups on both sides, samples were split
    one by one.
    """
    number = numbered(groups)
    member_share = np.bincount(number, member) / np.bincount(number)
    is_mixed = (member_share > 0) & (member_share < 1)
    if is_mixed[number].mean() > 0.5:
        return None
    return 2 * number + np.asarray(member, bool)  # the members of a group are a unit of their own
