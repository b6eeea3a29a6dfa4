"""The training of a pool: accuracies of its models, and their losses over epochs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import plotly.graph_objects as go

from mia_nb.metrics.table_text import in_digits
from mia_nb.plots import marks
from mia_nb.plots.style import MEMBER, MEMBERS, NON_MEMBERS, THIN, finish
from mia_nb.types import Scores

MOST_TICKS = 32  # models of which each has its number on the axis


def accuracy(scores: Scores) -> go.Figure:
    """Accuracy of every model on its members and on its non-members; the stick between them is the
    generalisation gap.

    Parameters:
        scores: scores of any attack, which hold the accuracies of its targets
    """
    train, test = scores.accuracy.T
    rows = np.arange(len(train))
    figure = go.Figure()
    figure.add_scatter(
        x=np.repeat(rows, 3),
        y=np.stack([train, test, np.full(len(train), np.nan)], axis=1).ravel(),
        mode="lines",
        line=THIN,
        showlegend=False,
        hoverinfo="skip",
    )
    for group, y, symbol in ((MEMBERS, train, "circle"), (NON_MEMBERS, test, "diamond-open")):
        figure.add_scatter(
            x=rows,
            y=y,
            mode="markers",
            name=group.name,
            marker={"color": group.colour, "symbol": symbol, "size": 9},
            hovertemplate="model %{x}: %{y:.2%}",
        )
    axis: dict[str, Any] = {"title": "model"}
    if len(rows) <= MOST_TICKS:
        names = [str(target) for target in scores.targets]
        axis |= {"tickmode": "array", "tickvals": rows, "ticktext": names}
    return finish(
        figure,
        f"{len(rows)} models: {train.mean():.1%} right on members, {test.mean():.1%} on"
        f" non-members, gap {(train - test).mean():.1%}",
        "one stick per model",
        height=380,
        xaxis=axis,
        yaxis={"title": "accuracy", "tickformat": "~%"},
    )


def loss_traces(traces: Iterable[np.ndarray]) -> go.Figure:
    """Loss of the training samples over epochs: how a pool memorises.

    Each model gives, per epoch, the median member and the hardest member in twenty (95th
    percentile); lines are medians over models, bands their interquartile ranges. Losses are taken
    in the training step, before its update.

    Parameters:
        traces: the log losses (E, N) of each model, NaN for non-members; an iterator is read one
            model at a time

    Raises:
        ValueError: for no model.
    """
    quantiles = []
    for trace in traces:
        trained_on = ~np.isnan(trace).all(0)
        losses = np.asarray(trace, dtype=np.float32)[:, trained_on]
        quantiles.append(np.nanquantile(losses, [0.5, 0.95], axis=1))
    if not quantiles:
        raise ValueError("no loss traces: pass (pool.trace(m) for m in range(num_models))")
    loss = np.exp(np.array(quantiles, dtype=np.float64))  # (M, 2, E)
    epochs = np.arange(1, loss.shape[2] + 1)
    figure = go.Figure()
    styles = (("median member", "solid", "circle"), ("hardest in twenty", "dash", "circle-open"))
    for i, (name, dash, symbol) in enumerate(styles):
        low, middle, high = np.quantile(loss[:, i], [0.25, 0.5, 0.75], axis=0)
        marks.band(figure, epochs, low, high, MEMBER, opacity=0.2, legendgroup=name)
        figure.add_scatter(
            x=epochs,
            y=middle,
            mode=marks.mode_over_epochs(len(epochs)),
            line={"color": MEMBER, "dash": dash, "width": 2},
            marker={"color": MEMBER, "symbol": symbol},
            name=name,
            legendgroup=name,
            hovertemplate="epoch %{x}: loss %{y:.3g}",
        )
    first, last = np.median(loss[:, 0], axis=0)[[0, -1]]
    course = f"goes from {in_digits(first)} to {in_digits(last)} in {len(epochs)} epochs"
    if len(epochs) == 1:
        course = f"is {in_digits(last)} in the only epoch"
    return finish(
        figure,
        f"the median training sample's loss {course}",
        f"lines: median of {len(quantiles)} models; bands: their interquartile range",
        height=400,
        xaxis=marks.epoch_axis(len(epochs)),
        yaxis=marks.LOSS_AXIS,
    )
