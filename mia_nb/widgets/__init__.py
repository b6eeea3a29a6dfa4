"""Explorers of stored results, and the first call of every notebook. Kept free of torch.

Each explorer is a function of sources, such as `widgets.scores(widgets.sources("results"))`. It is
live in JupyterLab and Voila, and a static figure with the same sentence and numbers in batch mode.
Explorers train nothing and compute nothing that training could have kept.
"""

from mia_nb.widgets.explorer import Explorer, View
from mia_nb.widgets.setup import folded, interact, setup
from mia_nb.widgets.stored import Source, sources
from mia_nb.widgets.tabs import (
    compare,
    dropout,
    explore,
    exposed,
    latency,
    noise,
    sample,
    scores,
)

__all__ = [
    "Explorer",
    "Source",
    "View",
    "compare",
    "dropout",
    "explore",
    "exposed",
    "folded",
    "interact",
    "latency",
    "noise",
    "sample",
    "scores",
    "setup",
    "sources",
]
