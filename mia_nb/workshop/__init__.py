"""The functions that the workshop's notebooks call: a question, the checker of answers, the game,
and what is too long for a cell. Texts, answers and exercises are cells of the notebooks.

Kept free of torch. In a notebook: `cube = open_cube(results)`, then
`Prediction("How many?", (0, 20), answer=10, why="...")`, `game(cube["pool"])` and
`check(answer, 15, praise="...", hint="...")`.
"""

from mia_nb.workshop.checker import check
from mia_nb.workshop.cube import keep, open_cube
from mia_nb.workshop.game import game
from mia_nb.workshop.gradients import gradients, recovered
from mia_nb.workshop.measures import (
    mean_auc,
    outcome,
    race_table,
    redrawn,
    with_references,
)
from mia_nb.workshop.questions import Prediction

__all__ = [
    "Prediction",
    "check",
    "game",
    "gradients",
    "keep",
    "mean_auc",
    "open_cube",
    "outcome",
    "race_table",
    "recovered",
    "redrawn",
    "with_references",
]
