"""Attacks held against the trade-off curve of an epsilon, one target at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from mia_nb.accounting import tradeoff
from mia_nb.metrics.curve import clopper_pearson, counts
from mia_nb.metrics.uncertainty import scored
from mia_nb.studies.engine import Contrast, Study, contrasts, one_pair, row_of
from mia_nb.studies.remarks import number_of_tests, tested_rates
from mia_nb.studies.setting import Setting
from mia_nb.types import Scores

CURVE = 1.0  # epsilon of the curve that Figure 5 draws


def below_curve(
    study: Study, settings: dict[Setting, Scores], delta: float, level: float
) -> list[dict]:
    """Rows of what a study sets against a curve (`minus: curve`)."""
    rows = []
    curve = partial(tradeoff, epsilon=CURVE, delta=delta)
    for name, claim in study.claims.items():
        every = [
            contrast for contrast in contrasts(study, claim, settings) if contrast.minus == "curve"
        ]
        for needed in (True, False):
            comparable = [contrast for contrast in every if contrast.needed == needed]
            levels = (level, 1 - (1 - level) / max(number_of_tests(comparable, settings), 1))
            rows += [
                _least_room(name, contrast, settings[contrast.first], x, curve, levels)
                for contrast in comparable
                for x in tested_rates(settings[contrast.first])
            ]
    return rows


def _least_room(
    name: str, contrast: Contrast, scores: Scores, x: float, curve: Callable, levels: tuple
) -> dict:
    """One row: the target with the least room below the curve, and what all of them say."""
    rooms = np.array(
        [room_below(*scored(scores, row), x, curve, levels) for row in range(len(scores.value))]
    )
    row = int(rooms[:, 0].argmin())
    compared = f"{contrast.compared}, {contrast.first.attack}"
    if len(rooms) > 1:
        compared += f", least of {len(rooms)} targets ({scores.targets[row]})"
    contrast = contrast._replace(compared=compared, metric=f"tpr@{x:g}")
    value, low, high, simultaneous_low, simultaneous_high = rooms[row]
    above = (rooms[:, 4] < 0).any()
    below = (rooms[:, 1] > 0).all()
    outcome = "open"
    if above:
        outcome = "against"
    elif below:
        outcome = "for"
    record = row_of(name, contrast, value, (low, high), (simultaneous_low, simultaneous_high))
    return record | {"outcome": "open" if one_pair(scores) else outcome}


def room_below(
    score: np.ndarray, member: np.ndarray, x: float, curve: Callable, levels: Sequence[float]
) -> list[float]:
    """[curve - TPR, then its low and high end per level] of one target at the largest FPR that is
    at most x.

    curve(fpr) -> the largest TPR. Ends as in `studies.comparisons`: above the curve is what has a
    high end below 0.
    """
    tp, fp, _ = counts(score, member)
    # where non-members alone put the threshold
    last = np.searchsorted(fp, np.floor(x * fp[-1] + 1e-9), side="right") - 1
    room = [float(curve(fp[last] / fp[-1])) - tp[last] / tp[-1]]
    for level in levels:
        fpr, tpr = (clopper_pearson(hits[last], hits[-1], confidence=level) for hits in (fp, tp))
        room += [float(curve(fpr[0])) - float(tpr[1]), float(curve(fpr[1])) - float(tpr[0])]
    return room
