"""The functions that the workshop's notebooks call: a question, the checker of answers, the game,
the explorers and their signals. Texts, answers and exercises are cells of the notebooks.

Kept free of torch. In a notebook: `cube = open_cube(results)`, then
`Prediction("How many?", (0, 20), answer=10, why="...")`, `game(cube["pool"])` and
`check(answer, 15, praise="...", hint="...")`.
"""

from mia_nb.workshop.checker import check
from mia_nb.workshop.cube import keep, open_cube
from mia_nb.workshop.explorers import fight, lattice, null, race
from mia_nb.workshop.game import game
from mia_nb.workshop.gradients import leak
from mia_nb.workshop.measures import (
    facts_of_training,
    frontier,
    mean_auc,
    odd,
    outcome,
    p_value,
    race_table,
    redrawn,
    with_references,
)
from mia_nb.workshop.questions import Prediction

__all__ = [
    "Prediction",
    "check",
    "facts_of_training",
    "fight",
    "frontier",
    "game",
    "keep",
    "lattice",
    "leak",
    "mean_auc",
    "null",
    "odd",
    "open_cube",
    "outcome",
    "p_value",
    "race",
    "race_table",
    "redrawn",
    "with_references",
]
