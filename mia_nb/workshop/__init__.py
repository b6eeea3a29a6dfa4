"""The two-hour workshop: questions, games and exercises on signals that travel with the package.

Kept free of torch. A part of a notebook: `cube = open_cube(results)`, then `question(5, cube)`,
`show(5, cube)` and `check(5, answer, cube)`.
"""

from mia_nb.workshop.cube import keep, open_cube, stored
from mia_nb.workshop.game import game
from mia_nb.workshop.measures import equal_accuracy, odd_ones, race_table, redrawn
from mia_nb.workshop.parts import check, question, show

__all__ = [
    "check",
    "equal_accuracy",
    "game",
    "keep",
    "odd_ones",
    "open_cube",
    "question",
    "race_table",
    "redrawn",
    "show",
    "stored",
]
