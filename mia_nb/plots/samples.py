"""One sample at a time: its picture, its margins in the two worlds, its losses; sheets of samples and how they are ranked.

Figures are plain dicts of plotly's JSON (`go.Figure(figure)` shows one): explorers redraw them while a hand moves, and building
a go.Figure takes longer than everything else.
"""

from __future__ import annotations

import base64
import io
import json
import textwrap
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from mia_nb.metrics.agreement import rank_correlation
from mia_nb.plots.style import GREY, LINES, MEMBER, NON_MEMBER, finish, translucent
from mia_nb.plots.views import POINTS

WORLDS = (("OUT", NON_MEMBER, "diamond"), ("IN", MEMBER, "circle"))  # from below
LARGE = 256  # pixels of a single picture: enlarged before it is sent, so that no browser smooths it
SMALL = 64
UNIT = 100
HIDDEN = {"visible": False, "fixedrange": True}
NARROW, WIDE = 46, 96  # characters of a title's line
BELOW = {
    "orientation": "h",
    "yref": "container",
    "y": 0,
    "yanchor": "bottom",
    "x": 0,
    "traceorder": "normal",
}


class Curve(NamedTuple):
    """Fitted densities of a margin at x (P,) nats, with the sample and without it."""

    name: str
    dash: str
    x: np.ndarray
    inside: np.ndarray  # (P,) per nat
    outside: np.ndarray


def empty(text: str, *, height: int = 130) -> dict:
    """A figure without axes that says in words why there is nothing to draw."""
    return _figure([], text, height=height, wrap=WIDE, xaxis=HIDDEN, yaxis=HIDDEN)


def thinned(x, y, points: int = POINTS) -> tuple[np.ndarray, int]:
    """(which of the points x, y (N,) `score_points` draws, evenly spaced in data order; of how many that are finite)."""
    finite = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    return finite[np.linspace(0, len(finite) - 1, min(points, len(finite))).astype(int)], len(
        finite
    )


def score_points(
    x,
    y,
    member=None,
    *,
    names: tuple[str, str],
    numbers=None,
    points: int = POINTS,
    height: int = 420,
) -> dict:
    """Every sample's score under one attack (y) against another (x), (N,) each, for one target; customdata: its number.

    member=None draws all alike: what the attacker sees. numbers (N,): what the samples are called, their places if None.
    At most `points` are drawn, evenly spaced in data order.
    """
    x, y = np.asarray(x), np.asarray(y)
    numbers = np.arange(len(x)) if numbers is None else np.asarray(numbers)
    shown, there = thinned(x, y, points)
    finite = np.isfinite(x) & np.isfinite(y)
    groups = [("samples", np.ones(len(x), bool), GREY, "circle")]
    if member is not None:
        groups = [
            ("non-members", ~member, NON_MEMBER, "diamond-open"),
            ("members", member, MEMBER, "circle"),
        ]
    data = []
    for name, mask, colour, symbol in groups:
        mine = shown[mask[shown]]
        marker = {"color": colour, "symbol": symbol, "size": 5, "opacity": 0.6}
        place = {
            "x": _packed(x[mine]),
            "y": _packed(y[mine]),
            "customdata": _packed(numbers[mine], np.int32),
        }
        hover = "sample %{customdata}: %{x:.3g}, %{y:.3g}"
        data.append(
            {
                "type": "scattergl",
                "mode": "markers",
                "name": name,
                "marker": marker,
                "hovertemplate": hover,
            }
            | place
        )
    agree = rank_correlation(x[finite], y[finite]) if there > 2 else np.nan
    sentence = f"{names[1]} against {names[0]}: rank correlation {agree:.2f}, {there:,} samples"
    note = "click a point, or draw a lasso around some" + (
        f"; {len(shown):,} drawn" if len(shown) < there else ""
    )
    axes = {
        "xaxis": {"title": {"text": f"score: {names[0]}"}},
        "yaxis": {"title": {"text": f"score: {names[1]}"}},
    }
    pointer = {"dragmode": "lasso", "hovermode": "closest"}
    return _figure(
        data, sentence, note, height=height, legend=BELOW, margin={"b": 92}, **pointer, **axes
    )


def picture(x, sentence: str, *, height: int = 330) -> dict:
    """One image (C, H, W) uint8, large, every pixel a square."""
    x = np.moveaxis(np.broadcast_to(x, (3, *np.shape(x)[1:])), 0, 2)
    factor = max(1, LARGE // max(x.shape[:2]))
    image = {
        "type": "image",
        "source": _png(np.repeat(np.repeat(x, factor, 0), factor, 1)),
        "hoverinfo": "skip",
    }
    return _figure(
        [image], sentence, height=height, **_plane(x.shape[0] * factor, x.shape[1] * factor)
    )


def two_worlds(
    margin,
    member,
    sentence: str,
    *,
    numbers: Sequence[int] | None = None,
    target: float | None = None,
    trained: bool | None = None,
    curves: Sequence[Curve] = (),
    span: tuple[float, float] | None = None,
    note: str = "",
    height: int = 420,
) -> dict:
    """Margins (M,) of one sample by the models with it (`member`, row IN) and without it (row OUT), and fitted densities.

    target: the margin of the model in question, a line in the colour of its membership `trained`, grey where that is None.
    Densities of both rows share one scale. numbers: of the models, for the hover; span: ends of the axis.
    """
    margin, member = np.asarray(margin, float), np.asarray(member, bool)
    numbers = np.arange(len(margin)) if numbers is None else np.asarray(numbers)
    data, top = [], max((float(np.nanmax(c[3:])) for c in curves), default=1.0)
    for row, (world, colour, symbol) in enumerate(WORLDS):
        for curve in curves:
            density = curve.inside if world == "IN" else curve.outside
            if np.isfinite(density).any():
                place = {"x": curve.x, "y": row + 0.8 * density / top}
                data.append(
                    _line(
                        **place, colour=colour, dash=curve.dash, showlegend=False, hoverinfo="skip"
                    )
                )
        mine = member == (world == "IN")
        marker = {
            "color": colour,
            "symbol": symbol,
            "size": 9,
            "opacity": 0.75,
            "line": {"width": 1, "color": "white"},
        }
        points = {
            "x": _packed(margin[mine]),
            "y": _packed(np.full(mine.sum(), row)),
            "text": [str(n) for n in numbers[mine]],
        }
        hover = f"{world}, model %{{text}}: margin %{{x:.3f}}<extra></extra>"
        style = {"type": "scatter", "mode": "markers", "marker": marker, "hovertemplate": hover}
        data.append(points | style | {"name": f"{world} ({mine.sum()})"})
    for curve in curves:  # what the dashes say, once for both colours
        data.append(_line([np.nan], [np.nan], GREY, dash=curve.dash, name=curve.name))
    if target is not None:
        colour, who = GREY, "target"
        if trained is not None:
            colour, who = (
                (MEMBER, "target: a member") if trained else (NON_MEMBER, "target: no member")
            )
        dash, hover = "dash" if trained is False else "solid", "target: %{x:.3f}<extra></extra>"
        data.append(
            _line(
                [target] * 2,
                [-0.25, 1.95],
                colour,
                width=2.5,
                dash=dash,
                name=who,
                hovertemplate=hover,
            )
        )
    rows = {"tickvals": [0, 1], "ticktext": ["OUT", "IN"], "range": [-0.3, 2.0], "fixedrange": True}
    ends = {"range": [float(end) for end in span]} if span else {}
    axes = {
        "xaxis": {"title": {"text": "margin (nats)"}} | ends,
        "yaxis": rows,
        "legend": BELOW,
        "margin": {"b": 112},
    }
    return _figure(data, sentence, note, height=height, **axes)


def sample_traces(
    lines, everyone, sentence: str, *, own=None, note: str = "", height: int = 330
) -> dict:
    """Training losses of one sample, lines (R, E) in nats, by the models that trained on it, beside those of all members.

    everyone (3, E): lower quartile, median, upper quartile of the losses of all members; own (E,): the target's own line.
    """
    lines, everyone = np.asarray(lines, float), np.asarray(everyone, float)
    epochs = np.arange(1, everyone.shape[1] + 1)
    edge = {"colour": GREY, "width": 0, "showlegend": False, "hoverinfo": "skip"}
    shade = {"fill": "tonexty", "fillcolor": translucent(GREY, 0.2)}
    data = [_line(epochs, everyone[0], **edge), _line(epochs, everyone[2], **edge, **shade)]
    data.append(
        _line(
            epochs,
            everyone[1],
            GREY,
            dash="dash",
            width=2,
            name="all members",
            hovertemplate="%{y:.3g}",
        )
    )
    if len(lines):
        gap = np.full((len(lines), 1), np.nan)  # one trace of many lines
        x, y = (
            np.hstack([part, gap]).ravel() for part in (np.broadcast_to(epochs, lines.shape), lines)
        )
        faint = {"width": 1, "opacity": 0.45, "hoverinfo": "skip"}
        data.append(_line(x, y, MEMBER, name=f"this sample ({len(lines)})", **faint))
        middle = np.nanmedian(lines, axis=0)
        data.append(
            _line(epochs, middle, MEMBER, width=2.5, name="their median", hovertemplate="%{y:.3g}")
        )
    if own is not None:
        data.append(
            _line(
                epochs,
                own,
                LINES[0],
                dash="dot",
                width=2.5,
                name="target",
                hovertemplate="%{y:.3g}",
            )
        )
    scale = {"title": {"text": "loss (nats)"}, "type": "log", "tickformat": "~g", "nticks": 6}
    axes = {"xaxis": {"title": {"text": "epoch"}}, "yaxis": scale, "hovermode": "x"}
    return _figure(data, sentence, note, height=height, legend=BELOW, margin={"b": 112}, **axes)


def sheet(
    x,
    captions: Sequence[str],
    numbers: Sequence[int],
    sentence: str,
    *,
    chosen: int | None = None,
    columns: int = 8,
    note="",
) -> dict:
    """A sheet of images (n, C, H, W) uint8 over their captions, as one picture; a click gives a sample's number.

    chosen: the number that is framed. `plots.images` draws frames of membership, which differ from target to target.
    """
    x, numbers = np.asarray(x), np.asarray(numbers, int)
    factor = max(1, SMALL // max(x.shape[2:]))
    x = np.repeat(np.repeat(x, factor, 2), factor, 3)
    height, width = x.shape[2:]
    gap = max(height, width) // 8 + 2
    pitch, rows = height + height // 2 + gap, -(-len(x) // columns)
    canvas = np.zeros((rows * pitch, columns * (width + gap), 4), np.uint8)
    place = np.arange(len(x))
    tops, lefts = (
        (place // columns) * pitch + gap // 2,
        (place % columns) * (width + gap) + gap // 2,
    )
    for image, top, left in zip(x, tops, lefts, strict=True):
        cell = canvas[top : top + height, left : left + width]
        cell[..., :3], cell[..., 3] = (
            np.moveaxis(np.broadcast_to(image, (3, height, width)), 0, 2),
            255,
        )
    unseen = {"size": 40, "symbol": "square", "opacity": 0}  # what the pointer meets
    data = [
        {"type": "image", "source": _png(canvas), "hoverinfo": "skip"},
        {
            "type": "scatter", "mode": "markers", "marker": unseen, "showlegend": False, "text": list(captions),
            "x": _packed(lefts + width / 2 - 0.5), "y": _packed(tops + height / 2 - 0.5),
            "customdata": _packed(numbers, np.int32), "hovertemplate": "%{text}<extra></extra>",
        },
    ]  # fmt: skip
    below = {"yanchor": "top", "showarrow": False, "font": {"size": 11}}
    words = [
        {"text": caption, "x": float(left + width / 2), "y": float(top + height)} | below
        for caption, top, left in zip(captions, tops, lefts, strict=True)
    ]
    frames = []
    for at in np.flatnonzero(numbers == chosen) if chosen is not None else ():
        corners = zip(
            ("x0", "y0", "x1", "y1"),
            (lefts[at], tops[at], lefts[at] + width, tops[at] + height),
            strict=True,
        )
        ends = {name: float(end + (1.5 if name.endswith("1") else -2.5)) for name, end in corners}
        frames.append({"type": "rect", "line": {"color": LINES[2], "width": 4}} | ends)
    pointer = {"hovermode": "closest", "hoverdistance": 60, "annotations": words, "shapes": frames}
    return _figure(
        data,
        sentence,
        note,
        height=86 + 118 * rows,
        wrap=WIDE,
        **pointer,
        **_plane(*canvas.shape[:2]),
    )


def ranking(value, sentence: str, *, null=None, name="separation", bins: int = 80) -> dict:
    """How a ranking statistic (N,) spreads over samples, beside its values under redrawn masks, each as shares of its own."""
    value = np.asarray(value, float)
    groups = [("samples", value[np.isfinite(value)], LINES[0], "solid")]
    if null is not None:
        null = np.asarray(null, float)
        groups.append(("redrawn masks", null[np.isfinite(null)], GREY, "dash"))
    everything = np.concatenate([numbers for _, numbers, _, _ in groups])
    low, high = (
        (float(everything.min()), float(everything.max())) if len(everything) else (0.0, 1.0)
    )
    edges = (
        np.linspace(low, high, bins + 1)
        if high > low
        else np.linspace(low - 0.5, low + 0.5, bins + 1)
    )
    data = []
    for label, numbers, colour, dash in groups:
        counts = np.histogram(numbers, edges)[0]
        share = np.append(counts, counts[-1]) / max(
            len(numbers), 1
        )  # a step line needs the last level twice
        style = {
            "dash": dash,
            "shape": "hv",
            "fill": "tozeroy",
            "fillcolor": translucent(colour, 0.15),
        }
        data.append(
            _line(edges, share, colour, name=label, hovertemplate="%{x:.2f}: %{y:.2%}", **style)
        )
    axes = {
        "xaxis": {"title": {"text": name}},
        "yaxis": {"title": {"text": "share of samples"}, "tickformat": "~%"},
    }
    return _figure(data, sentence, height=330, legend=BELOW, margin={"b": 92}, **axes)


def marked(figure: dict, x: float) -> dict:
    """The figure with an upright line at x; unchanged where x is not finite."""
    if not np.isfinite(x):
        return figure
    stick = {"type": "line", "x0": float(x), "x1": float(x), "y0": 0, "y1": 1, "yref": "y domain"}
    shapes = [stick | {"line": {"color": LINES[2], "width": 3}}]
    return figure | {"layout": figure["layout"] | {"shapes": shapes}}


def _line(x, y, colour, *, dash="solid", width=1.5, shape="linear", **rest) -> dict:
    line = {"color": colour, "dash": dash, "width": width, "shape": shape}
    return {
        "type": "scatter",
        "mode": "lines",
        "x": _packed(x),
        "y": _packed(y),
        "line": line,
    } | rest


def _packed(values, dtype=np.float32) -> dict:
    """An array as plotly's JSON holds it, NaN included."""
    values = np.ascontiguousarray(values, dtype)
    return {
        "dtype": {"f": "f4", "i": "i4"}[values.dtype.kind],
        "bdata": base64.b64encode(values.tobytes()).decode(),
    }


def _plane(height: int, width: int) -> dict:
    """Axes of a picture: unseen, as large as it is, its first row on top."""
    x = HIDDEN | {"range": [-0.5, width - 0.5], "scaleanchor": "y", "constrain": "domain"}
    y = HIDDEN | {"range": [height - 0.5, -0.5], "constrain": "domain", "constraintoward": "top"}
    return {"xaxis": x, "yaxis": y, "margin": {"l": 8, "r": 8, "b": 8}, "dragmode": False}


def _figure(
    data: list[dict],
    sentence: str,
    note: str = "",
    *,
    height: int,
    wrap=NARROW,
    margin=None,
    **layout,
) -> dict:
    """`style.finish` on plain JSON, the title from the left edge: two of these stand side by side."""
    lines = textwrap.wrap(sentence, wrap) or [""]
    base = _layout(len(lines))
    title = base["title"] | {"text": "<br>".join(lines), "subtitle": {"text": note}}
    edges = base["template"]["layout"]["margin"] | base.get("margin", {}) | (margin or {})
    return {
        "data": data,
        "layout": base
        | {"title": title, "margin": edges, "height": base["height"] - UNIT + height}
        | layout,
    }


@cache
def _layout(lines: int) -> dict:
    figure = finish(go.Figure(), " ".join(["x" * 96] * lines), "note", height=UNIT)
    layout = json.loads(figure.to_json())["layout"]
    layout["template"]["layout"]["title"] |= {"xref": "container", "x": 0.01}
    return layout


def _png(pixels: np.ndarray) -> str:
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels, np.uint8)).save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
