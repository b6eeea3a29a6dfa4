"""Parts of scores for figures: names of attacks, and the scores of single targets."""

from __future__ import annotations

import numpy as np

from mia_nb.attacks import in_words
from mia_nb.checks import shown, whole
from mia_nb.metrics.targets import scored
from mia_nb.types import Scores


def named(scores: Scores | dict[str, Scores]) -> dict[str, Scores]:
    """{name in words: Scores}, from the scores of one attack or of several; ValueError for anything
    else.
    """
    if isinstance(scores, Scores):
        scores = {name_of(scores): scores}
    is_dict = isinstance(scores, dict) and bool(scores)
    if not is_dict or not all(isinstance(value, Scores) for value in scores.values()):
        raise ValueError(
            f"scores={shown(scores)}: wanted {{name: attacks.score(...)}}, or one of these"
        )
    return {in_words(name): scores_of_attack for name, scores_of_attack in scores.items()}


def name_of(scores: Scores) -> str:
    """The name in words of the attack that gave these scores."""
    return in_words(str(scores.info.get("attack", "score")))


def targets(scores: Scores) -> list[tuple[np.ndarray, np.ndarray]]:
    """(score, member) of every target, without samples that have no score."""
    return [scored(scores, row) for row in range(len(scores.value))]


def row_of(scores: Scores, target: int) -> int:
    """The row of a target in these scores, given its row number in the pool."""
    target = whole("target", target, 0)
    rows = np.flatnonzero(scores.targets == target)
    if not len(rows):
        raise ValueError(
            f"target={target} was not attacked; these scores hold targets {scores.targets.tolist()}"
        )
    return int(rows[0])
