"""Comparing attacks with the trade-off curve of an epsilon, one target at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from mia_nb.accounting import tradeoff
from mia_nb.metrics.curve import allowed_false_positives, clopper_pearson, last_vertex, roc_counts
from mia_nb.metrics.targets import measurable_rates, scored, tied_floor
from mia_nb.studies.contrasts import one_pair
from mia_nb.studies.settings import Setting
from mia_nb.studies.study import Contrast
from mia_nb.types import Scores

EPSILON = 1.0  # of the curve that Figure 5 of Hong, Wu, Gruber and Lee draws


def tested_rates(scores: Scores) -> list[float]:
    """The FPRs at which a ROC is compared with a curve: those that can be measured and that a
    threshold can reach despite ties.
    """
    floor = tied_floor(scores)
    return [x for x in measurable_rates(scores) if floor <= x]


def number_of_tests(with_curve: Iterable[Contrast], settings: dict[Setting, Scores]) -> int:
    """How many comparisons with a curve these contrasts make: one per target and rate."""
    tests = 0
    for contrast in with_curve:
        scores = settings[contrast.first]
        tests += len(tested_rates(scores)) * len(scores.value)
    return tests


def curve_rows(
    compared: list[Contrast], settings: dict[Setting, Scores], delta: float, level: float
) -> list[dict]:
    """A row for each contrast with a curve and each rate."""
    rows = []
    curve = partial(tradeoff, epsilon=EPSILON, delta=delta)
    with_curve = [contrast for contrast in compared if contrast.minus == "curve"]
    # errors are controlled jointly over comparisons that decide, and jointly over the others
    tests = {}
    for needed in {contrast.needed for contrast in with_curve}:
        jointly = [contrast for contrast in with_curve if contrast.needed == needed]
        tests[needed] = max(number_of_tests(jointly, settings), 1)
    for contrast in with_curve:
        joint_level = 1 - (1 - level) / tests[contrast.needed]
        scores = settings[contrast.first]
        for x in tested_rates(scores):
            rows.append(_least_room_row(contrast, scores, x, curve, (level, joint_level)))
    return rows


def _least_room_row(
    contrast: Contrast, scores: Scores, x: float, curve: Callable, levels: tuple[float, float]
) -> dict:
    """The row of one contrast and rate: the numbers of the target with the least room below the
    curve, and the outcome over all targets. levels: (given, joint).
    """
    targets = len(scores.value)
    rooms = []
    for row in range(targets):
        score, member = scored(scores, row)
        rooms.append(room_below(score, member, x, curve, levels))
    room, low, high, simultaneous_low, simultaneous_high = np.array(rooms).T
    least = int(room.argmin())
    compared = f"{contrast.compared}, {contrast.first.attack}"
    if targets > 1:
        compared += f", least of {targets} targets ({scores.targets[least]})"
    at_rate = contrast._replace(compared=compared, metric=f"tpr@{x:g}")
    row = at_rate.row(
        room[least],
        (low[least], high[least]),
        (simultaneous_low[least], simultaneous_high[least]),
    )
    row["outcome"] = "open"
    if not one_pair(scores):
        if (simultaneous_high < 0).any():
            row["outcome"] = "against"
        elif (low > 0).all():
            row["outcome"] = "for"
    return row


def room_below(
    score: np.ndarray, member: np.ndarray, x: float, curve: Callable, levels: Sequence[float]
) -> list[float]:
    """[curve - TPR, then its low and high end for each level] of one target at the largest FPR that
    is at most x.

    curve(fpr) is the largest TPR that the curve allows. levels: of confidence. Ends are those of
    `studies.comparisons`: a target whose high end is below 0 lies above the curve.
    """
    tp, fp, _ = roc_counts(score, member)
    # the lowest threshold with at most this FPR, which only non-members set; that of `vertex_at`,
    # which has the fewest false positives among equal TPRs, depends on members too
    last = last_vertex(fp, allowed_false_positives(x, fp[-1]))
    room = [float(curve(fp[last] / fp[-1])) - tp[last] / tp[-1]]
    for level in levels:
        fpr_low, fpr_high = clopper_pearson(fp[last], fp[-1], confidence=level)
        tpr_low, tpr_high = clopper_pearson(tp[last], tp[-1], confidence=level)
        room.append(float(curve(fpr_low)) - float(tpr_high))
        room.append(float(curve(fpr_high)) - float(tpr_low))
    return room
