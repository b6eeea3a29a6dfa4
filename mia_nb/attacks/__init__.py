"""Membership inference attacks: pure functions of (target, references) Signals; larger score = more likely a member."""

from __future__ import annotations

from .learned import shokri, song_mittal
from .likelihood import lira, nig
from .margins import align, combine_queries
from .reference import attack_r, base, rmia, watson
from .registry import ATTACKS, Attack, suite
from .scoring import score
from .single import attack_p, loss, vote

__all__ = [
    "ATTACKS",
    "Attack",
    "align",
    "attack_p",
    "attack_r",
    "base",
    "combine_queries",
    "lira",
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
