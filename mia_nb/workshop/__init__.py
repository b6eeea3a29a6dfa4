"""The two-hour workshop: questions, games and exercises on one stored cube of signals.

Kept free of torch. A part of a notebook: `cube = open_cube(results)`, then `question(4, cube)`,
`show(4, cube)` and `check(4, answer, cube)`.
"""

from mia_nb.workshop.cube import keep, open_cube, stored
from mia_nb.workshop.game import game
from mia_nb.workshop.measures import equal_accuracy, family, race_table, redrawn
from mia_nb.workshop.parts import check, question, show

__all__ = [
    "check",
    "equal_accuracy",
    "family",
    "game",
    "keep",
    "open_cube",
    "question",
    "race_table",
    "redrawn",
    "show",
    "stored",
]
