"""Parts of many figures: bands, levels, error bars, bins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from mia_nb.checks import whole
from mia_nb.plots.style import translucent

MOST_BINS = 10_000  # bins of a histogram, more than a screen has pixels
FEW_EPOCHS = 12  # up to as many each has a tick; of more, plotly's ticks are whole numbers too
# of training losses: with more ticks plotly writes each digit of a decade, on top of each other in
# a low figure, and with a tick for each decade there is none in between
LOSS_AXIS = {"title": {"text": "loss (nats)"}, "type": "log", "tickformat": "~g", "nticks": 3}


def epoch_axis(epochs: int) -> dict[str, Any]:
    """The axis of this number of epochs, which has no tick between two of them."""
    ticks = {"tick0": 1, "dtick": 1} if epochs <= FEW_EPOCHS else {}
    return {"title": {"text": "epoch"}, **ticks}


def mode_over_epochs(epochs: int) -> str:
    """How plotly draws values over epochs: lines, but points for a single epoch."""
    return "lines" if epochs > 1 else "markers"


def band(
    figure: go.Figure,
    x: Sequence[float] | np.ndarray,
    low: Sequence[float] | np.ndarray,
    high: Sequence[float] | np.ndarray,
    colour: str,
    *,
    opacity: float = 0.15,
    shape: str | None = None,
    **place: Any,
) -> None:
    """The area between low and high, (N,) each at x (N,): two invisible lines, filled between.

    Parameters:
        shape: shape of the lines, "hv" for steps
        place: arguments of both traces (row, col, legendgroup)
    """
    edge = {"x": x, "mode": "lines", "line": {"width": 0, "shape": shape}, "hoverinfo": "skip"}
    figure.add_scatter(y=low, showlegend=False, **edge, **place)
    figure.add_scatter(
        y=high,
        showlegend=False,
        fill="tonexty",
        fillcolor=translucent(colour, opacity),
        **edge,
        **place,
    )


def level(
    figure: go.Figure,
    ends: list[float],
    value: float,
    low: float = np.nan,
    high: float = np.nan,
    *,
    colour: str,
    dash: str = "dash",
    width: float = 2,
    **place: Any,
) -> None:
    """A horizontal line from end to end, with the band of its interval where that is finite.

    Parameters:
        place: arguments of the line (name, hovertemplate, showlegend, legendgroup, row, col)
    """
    if np.isfinite([low, high]).all():
        of_band = ("legendgroup", "legendrank", "row", "col")
        place_of_band = {key: place[key] for key in of_band if key in place}
        band(figure, ends, [low] * 2, [high] * 2, colour, **place_of_band)
    figure.add_scatter(
        x=ends,
        y=[value] * 2,
        mode="lines",
        line={"color": colour, "dash": dash, "width": width},
        **place,
    )


def hatched(colour: str, pattern: str, opacity: float) -> dict:
    """How the area below a line is filled: translucent, and hatched, so that colour is not the only
    cue.
    """
    hatching = {"shape": pattern, "fgcolor": colour, "fgopacity": 0.35, "size": 6}
    fill = {"fill": "tozeroy", "fillcolor": translucent(colour, opacity)}
    return fill | {"fillpattern": hatching}


def bars(
    value: Sequence[float] | np.ndarray,
    low: Sequence[float] | np.ndarray,
    high: Sequence[float] | np.ndarray,
    *,
    thickness: float = 1.3,
    width: float = 3,
    **style: Any,
) -> dict:
    """Plotly's error bars from low to high around the values, (N,) each."""
    value = np.asarray(value, float)
    above = np.asarray(high, float) - value
    below = value - np.asarray(low, float)
    return {"array": above, "arrayminus": below, "thickness": thickness, "width": width, **style}


def bins(low: float, high: float, count: int) -> np.ndarray:
    """Edges (count + 1,) of equal bins from low to high; over one unit where low equals high."""
    count = whole("bins", count)
    if count > MOST_BINS:
        raise ValueError(f"bins={count}: wanted {MOST_BINS:,} at most")
    if not high > low:
        high = low + 0.5
        low = low - 0.5
    return np.linspace(low, high, count + 1)


def step_counts(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Values per bin, the last bin twice: a step line needs a level at each edge."""
    counts = np.histogram(values, edges)[0]
    return np.append(counts, counts[-1])
