"""The two-hour workshop: questions, games and exercises on one stored cube of signals.

Kept free of torch.
"""

from mia_nb.workshop.cube import canaries, facts, group, keep, open_cube, stored
from mia_nb.workshop.explorers import fight, lattice, leak, null, race, support
from mia_nb.workshop.game import deal, game
from mia_nb.workshop.measures import (
    canary_auc,
    common_accuracy,
    family,
    frontier,
    gradients,
    lattice_scores,
    race_table,
    recovered,
    redrawn,
    with_references,
)
from mia_nb.workshop.parts import check, question, truth
from mia_nb.workshop.questions import predict

__all__ = [
    "canaries",
    "canary_auc",
    "check",
    "common_accuracy",
    "deal",
    "facts",
    "family",
    "fight",
    "frontier",
    "game",
    "gradients",
    "group",
    "keep",
    "lattice",
    "lattice_scores",
    "leak",
    "null",
    "open_cube",
    "predict",
    "question",
    "race",
    "race_table",
    "recovered",
    "redrawn",
    "stored",
    "support",
    "truth",
    "with_references",
]
