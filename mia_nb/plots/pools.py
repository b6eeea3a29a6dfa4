"""Pools as pictures: who is in, how well the models learned, how the losses fell."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from mia_nb.plots.style import GREY, MEMBER, NON_MEMBER, TEMPLATE, finish, translucent
from mia_nb.types import Scores

FRAME = 2  # pixels around each picture of a sheet
SHEET = 860  # pixels: as wide as a sheet is shown, about


def accuracy(scores: Scores) -> go.Figure:
    """Accuracy of every model on its members and on its non-members; the stick between them is the generalisation gap."""
    train, test = scores.accuracy.T
    rows = np.arange(len(train))
    figure = go.Figure()
    sticks = {
        "x": np.repeat(rows, 3),
        "y": np.stack([train, test, np.full(len(train), np.nan)], axis=1).ravel(),
    }
    figure.add_scatter(
        **sticks, mode="lines", line={"color": GREY, "width": 1}, showlegend=False, hoverinfo="skip"
    )
    for name, y, colour, symbol in (
        ("members", train, MEMBER, "circle"),
        ("non-members", test, NON_MEMBER, "diamond-open"),
    ):
        marker = {"color": colour, "symbol": symbol, "size": 9}
        figure.add_scatter(
            x=rows,
            y=y,
            mode="markers",
            name=name,
            marker=marker,
            hovertemplate="model %{x}: %{y:.2%}",
        )
    ticks = (
        {"tickmode": "array", "tickvals": rows, "ticktext": [str(t) for t in scores.targets]}
        if len(rows) <= 32
        else {}
    )
    means = f"{train.mean():.1%} right on members, {test.mean():.1%} on non-members, gap {(train - test).mean():.1%}"
    axes = {
        "xaxis": {"title": "model", **ticks},
        "yaxis": {"title": "accuracy", "tickformat": "~%"},
    }
    return finish(figure, f"{len(rows)} models: {means}", "one stick per model", height=380, **axes)


def loss_traces(traces: Iterable[np.ndarray]) -> go.Figure:
    """Loss of the training samples over epochs: how a pool memorises. traces: a model's (E, N) log-loss, NaN for non-members.

    Per model and epoch the median member and the hardest member in twenty (95th percentile); lines are the median over models,
    bands their interquartile range. Losses are those of the training step, before its update. An iterator is read one model
    at a time. ValueError when there is no model.
    """
    rows = [np.nanquantile(_seen(trace), [0.5, 0.95], axis=1) for trace in traces]
    if not rows:
        raise ValueError("no loss traces: pass (pool.trace(m) for m in range(num_models))")
    loss = np.exp(np.array(rows, dtype=np.float64))  # (M, 2, E)
    epochs = np.arange(1, loss.shape[2] + 1)
    figure = go.Figure()
    for i, (name, dash) in enumerate((("median member", "solid"), ("hardest in twenty", "dash"))):
        low, middle, high = np.quantile(loss[:, i], [0.25, 0.5, 0.75], axis=0)
        place = {"x": epochs, "mode": "lines", "legendgroup": name}
        edge = {"line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"} | place
        figure.add_scatter(y=low, **edge)
        figure.add_scatter(y=high, fill="tonexty", fillcolor=translucent(MEMBER, 0.2), **edge)
        line = {"color": MEMBER, "dash": dash, "width": 2}
        figure.add_scatter(
            y=middle, line=line, name=name, hovertemplate="epoch %{x}: loss %{y:.3g}", **place
        )
    first, last = np.median(loss[:, 0], axis=0)[[0, -1]]
    sentence = f"the median training sample's loss goes from {first:.2g} to {last:.2g} in {len(epochs)} epochs"
    axes = {
        "xaxis_title": "epoch",
        "yaxis": {"title": "loss (nats)", "type": "log", "dtick": 1, "tickformat": "~g"},
    }
    note = f"lines: median of {len(rows)} models; bands: their interquartile range"
    return finish(figure, sentence, note, height=400, **axes)


def _seen(trace: np.ndarray) -> np.ndarray:
    """(E, members): without the columns a model never trained on."""
    return np.asarray(trace, dtype=np.float32)[:, ~np.isnan(trace).all(0)]


def images(x, captions: list[str], member: np.ndarray, *, columns: int = 10) -> go.Figure:
    """A sheet of images x (n, C, H, W) uint8, each in a frame of its membership's colour over a caption with its mark."""
    x, member = np.asarray(x), np.asarray(member, bool)
    height, width = (side + 2 * FRAME for side in x.shape[2:])
    pitch, rows = (
        height + -(-height // 2),
        -(-len(x) // columns),
    )  # below each picture half its height for the caption
    sheet = np.zeros((rows * pitch, columns * width, 4), np.uint8)
    figure = go.Figure()
    for i, picture in enumerate(x):
        top, left = (i // columns) * pitch, (i % columns) * width
        cell = sheet[top : top + height, left : left + width]
        colour = MEMBER if member[i] else NON_MEMBER
        cell[1:-1, 1:-1] = (*bytes.fromhex(colour[1:]), 255)
        cell[FRAME:-FRAME, FRAME:-FRAME, :3] = np.moveaxis(
            np.broadcast_to(picture, (3, *picture.shape[1:])), 0, 2
        )
        place = {
            "x": left + width / 2,
            "y": top + height - 0.5,
            "yanchor": "top",
            "showarrow": False,
        }
        figure.add_annotation(
            text=f"{'●' if member[i] else '◇'} {captions[i]}", font={"size": 11}, **place
        )
    stream = io.BytesIO()
    Image.fromarray(sheet).save(stream, "PNG")
    figure.add_image(
        source="data:image/png;base64," + base64.b64encode(stream.getvalue()).decode(),
        hoverinfo="skip",
    )
    hidden = {"visible": False, "fixedrange": True}
    sentence = f"● {member.sum()} members (vermillion) and ◇ {(~member).sum()} non-members (blue)"
    margin = {"l": 10, "r": 10, "t": TEMPLATE.layout.margin.t, "b": 10}
    height = margin["t"] + margin["b"] + rows * pitch * SHEET // (columns * width)
    return finish(figure, sentence, height=height, margin=margin, xaxis=hidden, yaxis=hidden)
