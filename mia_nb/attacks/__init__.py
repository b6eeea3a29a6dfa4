"""Membership inference attacks: pure functions of (target, references) Signals; larger score = more
likely a member.

`score("lira", signals)` runs one by its name in `ATTACKS`, a dictionary of the functions. An attack
scores every sample. Population samples, which no model was trained on, are there to be compared
with: they score NaN where an attack needs IN references, and are left out of Scores.
"""

from __future__ import annotations

from mia_nb.attacks.margins import align
from mia_nb.attacks.registry import (
    ATTACKS,
    NAMES,
    find,
    in_words,
    literature,
    refuse_too_few,
    suite,
)
from mia_nb.attacks.scoring import score

__all__ = [
    "ATTACKS",
    "NAMES",
    "align",
    "find",
    "in_words",
    "literature",
    "refuse_too_few",
    "score",
    "suite",
]
