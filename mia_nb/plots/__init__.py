"""Plotly figures of results: pure functions, one template, no torch. Each returns a
`plotly.graph_objects.Figure` whose title is a sentence computed from the data; `lines` and
`against`, which draw any table, take the sentence from the caller.

Members are vermillion, solid and round; non-members blue, dashed and diamond-shaped: colour is
never the only cue. The background is transparent and text mid-grey, so that a figure reads on light
and on dark pages. No figure has a fixed width.
"""

from mia_nb.plots.against import against
from mia_nb.plots.bounds import roc_bounds
from mia_nb.plots.curves import roc_pair, shipped_roc, verdict
from mia_nb.plots.ladder import ladder
from mia_nb.plots.lines import lines
from mia_nb.plots.overfitting import gap_against_risk
from mia_nb.plots.pools import accuracy, loss_traces
from mia_nb.plots.samples import images
from mia_nb.plots.settings import heatmap
from mia_nb.plots.spiking import raster, sites
from mia_nb.plots.views import histogram, scatter, summary

__all__ = [
    "accuracy",
    "against",
    "gap_against_risk",
    "heatmap",
    "histogram",
    "images",
    "ladder",
    "lines",
    "loss_traces",
    "raster",
    "roc_bounds",
    "roc_pair",
    "scatter",
    "shipped_roc",
    "sites",
    "summary",
    "verdict",
]
