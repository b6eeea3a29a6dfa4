"""Membership inference attacks: pure functions of (target, references) Signals; larger score = more
likely a member.

An attack scores every column. Population columns are there to be compared with: NaN where an attack
needs IN references, and left out of Scores.
"""

from __future__ import annotations

from mia_nb.attacks.fused import fused
from mia_nb.attacks.learned import shokri, song_mittal
from mia_nb.attacks.likelihood import lira, nig
from mia_nb.attacks.margins import align, combine_queries
from mia_nb.attacks.reference import attack_r, base, rmia, watson
from mia_nb.attacks.registry import ATTACKS, Attack, literature, suite
from mia_nb.attacks.scoring import find, score
from mia_nb.attacks.single import attack_p, loss, vote

__all__ = [
    "ATTACKS",
    "Attack",
    "align",
    "attack_p",
    "attack_r",
    "base",
    "combine_queries",
    "find",
    "fused",
    "lira",
    "literature",
    "loss",
    "nig",
    "rmia",
    "score",
    "shokri",
    "song_mittal",
    "suite",
    "vote",
    "watson",
]
