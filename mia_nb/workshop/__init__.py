"""The two-hour workshop: questions, games and exercises on one stored cube of signals. Kept free of torch."""

from mia_nb.workshop.cube import canaries, facts, group, keep, open, stored
from mia_nb.workshop.exercises import check
from mia_nb.workshop.fight import canary_auc, common_accuracy, family, fight, frontier, support
from mia_nb.workshop.game import deal, game
from mia_nb.workshop.gradients import gradients, leak, recovered
from mia_nb.workshop.null import lattice, lattice_scores, null, redrawn
from mia_nb.workshop.questions import predict
from mia_nb.workshop.race import race, race_table, with_references
from mia_nb.workshop.truths import truth

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
    "open",
    "predict",
    "race",
    "race_table",
    "recovered",
    "redrawn",
    "stored",
    "support",
    "truth",
    "with_references",
]
