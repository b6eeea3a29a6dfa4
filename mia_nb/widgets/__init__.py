"""Explorers of stored results, and the first call of every notebook. Kept free of torch.

Each explorer is a function of sources, `widgets.scores(widgets.sources("results"))`: live in
JupyterLab and Voila, a static figure with the same sentence and numbers in batch mode. They train
nothing and compute nothing that training could have kept.
"""

from mia_nb.widgets.compare import compare
from mia_nb.widgets.dropout import dropout
from mia_nb.widgets.explorer import Explorer, View
from mia_nb.widgets.exposed import exposed
from mia_nb.widgets.ladder import ladder
from mia_nb.widgets.latency import latency
from mia_nb.widgets.noise import noise
from mia_nb.widgets.sample import sample
from mia_nb.widgets.scores import scores
from mia_nb.widgets.setup import setup, want
from mia_nb.widgets.stored import Source, sources
from mia_nb.widgets.tabs import explore

__all__ = [
    "Explorer",
    "Source",
    "View",
    "compare",
    "dropout",
    "explore",
    "exposed",
    "ladder",
    "latency",
    "noise",
    "sample",
    "scores",
    "setup",
    "sources",
    "want",
]
