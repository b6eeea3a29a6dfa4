"""The records that flow through the program, and their validation.

Axes: M models, Q queries, N samples, K classes.
"""

from mia_nb.types.images import Images
from mia_nb.types.recipes import Query, Recipe, Record
from mia_nb.types.scores import Scores
from mia_nb.types.signals import CUBES, PER_MODEL, QUERY_KINDS, Signals, pair_ids

__all__ = [
    "CUBES",
    "PER_MODEL",
    "QUERY_KINDS",
    "Images",
    "Query",
    "Recipe",
    "Record",
    "Scores",
    "Signals",
    "pair_ids",
]
