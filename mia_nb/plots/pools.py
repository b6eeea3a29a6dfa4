"""What did a pool learn? Who is in, how accurate its models are, how their losses fell."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import plotly.graph_objects as go

from mia_nb.plots.marks import band, png, rgb
from mia_nb.plots.style import MEMBER, MEMBERS, NON_MEMBERS, TEMPLATE, THIN, finish
from mia_nb.types import Scores

FRAME = 2  # pixels around each picture of a sheet
SHEET = 860  # pixels: as wide as a sheet is shown, about


def accuracy(scores: Scores) -> go.Figure:
    """Accuracy of every model on its members and on its non-members; the stick between them is the
    generalisation gap.

    scores: of any attack, which carry the accuracies of its targets
    """
    train, test = scores.accuracy.T
    rows, figure = np.arange(len(train)), go.Figure()
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
    ticks = {"tickmode": "array", "tickvals": rows, "ticktext": list(map(str, scores.targets))}
    return finish(
        figure,
        f"{len(rows)} models: {train.mean():.1%} right on members, {test.mean():.1%} on"
        f" non-members, gap {(train - test).mean():.1%}",
        "one stick per model",
        height=380,
        xaxis={"title": "model"} | (ticks if len(rows) <= 32 else {}),
        yaxis={"title": "accuracy", "tickformat": "~%"},
    )


def loss_traces(traces: Iterable[np.ndarray]) -> go.Figure:
    """Loss of the training samples over epochs: how a pool memorises.

    Per model and epoch the median member and the hardest member in twenty (95th percentile); lines
    are the median over models, bands their interquartile range. Losses are those of the training
    step, before its update.

    traces: a model's (E, N) log-loss, NaN for non-members; an iterator is read one model at a time

    Raises ValueError when there is no model.
    """
    rows = [np.nanquantile(_trained(trace), [0.5, 0.95], axis=1) for trace in traces]
    if not rows:
        raise ValueError("no loss traces: pass (pool.trace(m) for m in range(num_models))")
    loss = np.exp(np.array(rows, dtype=np.float64))  # (M, 2, E)
    epochs, figure = np.arange(1, loss.shape[2] + 1), go.Figure()
    for i, (name, dash) in enumerate((("median member", "solid"), ("hardest in twenty", "dash"))):
        low, middle, high = np.quantile(loss[:, i], [0.25, 0.5, 0.75], axis=0)
        band(figure, epochs, low, high, MEMBER, opacity=0.2, legendgroup=name)
        figure.add_scatter(
            x=epochs,
            y=middle,
            mode="lines",
            line={"color": MEMBER, "dash": dash, "width": 2},
            name=name,
            legendgroup=name,
            hovertemplate="epoch %{x}: loss %{y:.3g}",
        )
    first, last = np.median(loss[:, 0], axis=0)[[0, -1]]
    return finish(
        figure,
        f"the median training sample's loss goes from {first:.2g} to {last:.2g} in {len(epochs)}"
        " epochs",
        f"lines: median of {len(rows)} models; bands: their interquartile range",
        height=400,
        xaxis_title="epoch",
        yaxis={"title": "loss (nats)", "type": "log", "dtick": 1, "tickformat": "~g"},
    )


def _trained(trace: np.ndarray) -> np.ndarray:
    """(E, members): without the columns a model never trained on."""
    return np.asarray(trace, dtype=np.float32)[:, ~np.isnan(trace).all(0)]


def images(x, captions: list[str], member: np.ndarray, *, columns: int = 10) -> go.Figure:
    """A sheet of images, each in a frame of its membership's colour over a caption with its mark.

    x: (n, C, H, W) uint8
    captions: n of them
    member: (n,) bool
    columns: images in a row
    """
    x, member = np.asarray(x), np.asarray(member, bool)
    height, width = (side + 2 * FRAME for side in x.shape[2:])
    # below each picture half its height for the caption
    pitch, rows = height + -(-height // 2), -(-len(x) // columns)
    sheet = np.zeros((rows * pitch, columns * width, 4), np.uint8)
    figure = go.Figure()
    for i, picture in enumerate(x):
        top, left = (i // columns) * pitch, (i % columns) * width
        cell = sheet[top : top + height, left : left + width]
        group, mark = (MEMBERS, "●") if member[i] else (NON_MEMBERS, "◇")
        cell[1:-1, 1:-1] = (*bytes.fromhex(group.colour[1:]), 255)
        cell[FRAME:-FRAME, FRAME:-FRAME, :3] = rgb(picture)
        figure.add_annotation(
            text=f"{mark} {captions[i]}",
            font={"size": 11},
            x=left + width / 2,
            y=top + height - 0.5,
            yanchor="top",
            showarrow=False,
        )
    figure.add_image(source=png(sheet), hoverinfo="skip")
    hidden, edge = {"visible": False, "fixedrange": True}, TEMPLATE.layout.margin.t
    return finish(
        figure,
        f"● {member.sum()} members (vermillion) and ◇ {(~member).sum()} non-members (blue)",
        height=edge + 10 + rows * pitch * SHEET // (columns * width),
        margin={"l": 10, "r": 10, "t": edge, "b": 10},
        xaxis=hidden,
        yaxis=hidden,
    )
