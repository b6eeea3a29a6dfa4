"""Figures of single samples: their picture, their margins in the two worlds, their losses; sheets
of samples and their ranking.

Figures are plain dicts of plotly's JSON (`go.Figure(figure)` shows one), as explorers redraw them
while a slider moves, and a go.Figure takes twenty times as long (40 ms).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from mia_nb.metrics.memorised_samples import rank_correlation
from mia_nb.plots import style
from mia_nb.plots.marks import LOSS_AXIS, epoch_axis, mode_over_epochs, step_counts
from mia_nb.plots.marks import bins as equal_bins
from mia_nb.plots.pictures import as_pictures, enlarged, png, rgb, shown_channels
from mia_nb.plots.style import (
    BELOW,
    GREY,
    LINES,
    MEMBER,
    MEMBERS,
    NON_MEMBER,
    NON_MEMBERS,
    Group,
    clauses,
    heading,
    translucent,
)
from mia_nb.plots.views import group_points, thinned

LARGE = 256  # pixels of a single picture, enlarged before it is sent, as browsers would smooth it
SMALL = 64  # pixels of a picture in a sheet
BINS = 80  # bins of a ranking
DOTS = 3000  # points of a scatter, which is sent again whenever another sample is chosen
EDGE = 2  # width of a frame around an image, in pixels
ROW_ON_SCREEN = 118  # pixels of a screen for a row of a sheet
CAPTION = {"yanchor": "top", "showarrow": False, "font": {"size": 11}}  # below an image
CHARACTER = 6  # pixels of a screen for a character of a caption
QUIET = {"showlegend": False, "hoverinfo": "skip"}
HIDDEN = {"visible": False, "fixedrange": True}
IN_ORDER = BELOW | {"traceorder": "normal"}  # a legend in order, also with filled curves
# characters in a line of a title, of a figure that stands beside another one and of a single one
NARROW = 46
WIDE = 96
# titles begin at the left edge, as two figures stand side by side
TITLE_AT_LEFT = {"title": {"xref": "container", "x": 0.01}}
TEMPLATE = go.layout.Template(style.TEMPLATE).update(layout=TITLE_AT_LEFT).to_plotly_json()


class Curve(NamedTuple):
    """Fitted densities of a margin at x (P,) nats, with the sample and without it."""

    name: str
    dash: str
    x: np.ndarray
    inside: np.ndarray  # (P,) per nat
    outside: np.ndarray


def empty(text: str) -> dict:
    """A figure without axes that says in words why there is nothing to draw."""
    return _figure([], text, height=90, wrap=WIDE, xaxis=HIDDEN, yaxis=HIDDEN)


def score_points(
    x: np.ndarray,
    y: np.ndarray,
    member: np.ndarray,
    numbers: np.ndarray,
    *,
    names: tuple[str, str],
) -> dict:
    """Every sample's score under one attack against another, for one target; of many samples those
    that are evenly spaced in data order. The customdata of a point is the sample's number.

    Parameters:
        x: (N,) scores
        y: (N,) scores under another attack
        member: (N,) bool
        numbers: (N,) numbers of the samples
        names: names of the two attacks
    """
    drawn, total = thinned(x, y, DOTS)
    finite = np.isfinite(x) & np.isfinite(y)
    data = []
    for points in group_points(x, y, member, drawn, numbers):
        points["x"] = _packed(points["x"])
        points["y"] = _packed(points["y"])
        points["customdata"] = _packed(points["customdata"], np.int32)
        data.append(points)
    x_name, y_name = names
    correlation = rank_correlation(x[finite], y[finite]) if total > 2 else np.nan
    return _figure(
        data,
        f"{y_name} against {x_name}: rank correlation {correlation:.2f}, {total:,} samples",
        f"{len(drawn):,} drawn" if len(drawn) < total else "",
        height=420,
        legend=IN_ORDER,
        margin={"b": 92},
        dragmode="lasso",
        hovermode="closest",
        xaxis={"title": {"text": f"score: {x_name}"}},
        yaxis={"title": {"text": f"score: {y_name}"}},
    )


def picture(x: np.ndarray, sentence: str) -> dict:
    """One large image (C, H, W) uint8, every pixel a square; of more than three channels the first
    three.
    """
    pixels = enlarged(rgb(x), max(1, LARGE // max(np.shape(x)[1:])))
    return _figure(
        [{"type": "image", "source": png(pixels), "hoverinfo": "skip"}],
        clauses(sentence, shown_channels(len(x))),
        height=330,
        **_plane(*pixels.shape[:2]),
    )


def two_worlds(
    margin: np.ndarray,
    member: np.ndarray,
    sentence: str,
    *,
    numbers: Sequence[int] | None = None,
    target: float | None = None,
    trained: bool = False,
    curves: Sequence[Curve] = (),
    span: tuple[float, float] | None = None,
) -> dict:
    """Margins of one sample by models with it (row IN) and without it (row OUT), and fitted
    densities on one scale.

    Parameters:
        margin: (M,) nats
        member: (M,) bool, whether each model was trained on it
        sentence: the title
        numbers: numbers of the models, for the hover
        target: margin of the target, drawn as a line
        trained: whether the target was trained on it, which colours the line
        curves: densities
        span: ends of the axis
    """
    margin = np.asarray(margin, float)
    member = np.asarray(member, bool)
    numbers = np.arange(len(margin)) if numbers is None else np.asarray(numbers)
    peaks = [float(np.nanmax([curve.inside, curve.outside])) for curve in curves]
    worlds = (  # from below
        ("OUT", NON_MEMBERS, ~member, [curve.outside for curve in curves]),
        ("IN", MEMBERS, member, [curve.inside for curve in curves]),
    )
    data = []
    for row, (name, group, in_world, densities) in enumerate(worlds):
        for curve, density in zip(curves, densities, strict=True):
            if np.isfinite(density).any():
                y = row + 0.8 * density / max(peaks)
                data.append(_line(curve.x, y, group.colour, dash=curve.dash, **QUIET))
        data.append(_world(name, group, row, margin[in_world], numbers[in_world]))
    # legend entries of the dashes, one for both colours
    for curve in curves:
        data.append(_line([np.nan], [np.nan], GREY, dash=curve.dash, name=curve.name))
    if target is not None:
        data.append(_target(target, trained))
    x_axis: dict[str, Any] = {"title": {"text": "margin (nats)"}}
    if span is not None:
        x_axis["range"] = [float(end) for end in span]
    return _figure(
        data,
        sentence,
        height=420,
        legend=IN_ORDER,
        margin={"b": 112},
        xaxis=x_axis,
        yaxis={
            "tickvals": [0, 1],
            "ticktext": ["OUT", "IN"],
            "range": [-0.3, 2.0],
            "fixedrange": True,
        },
    )


def _world(name: str, group: Group, row: int, margin: np.ndarray, numbers: np.ndarray) -> dict:
    """The margins of the models of one world, in its row."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{name} ({len(margin)})",
        "marker": {
            "color": group.colour,
            "symbol": group.symbol,
            "size": 9,
            "opacity": 0.75,
            "line": {"width": 1, "color": "white"},
        },
        "x": _packed(margin),
        "y": _packed(np.full(len(margin), row)),
        "text": [str(n) for n in numbers],
        "hovertemplate": f"{name}, model %{{text}}: margin %{{x:.3f}}<extra></extra>",
    }


def _target(margin: float, trained: bool) -> dict:
    """The line of the target."""
    side = MEMBERS if trained else NON_MEMBERS
    return _line(
        [margin] * 2,
        [-0.25, 1.95],
        side.colour,
        width=2.5,
        dash=side.dash,
        name="target: a member" if trained else "target: no member",
        hovertemplate="target: %{x:.3f}<extra></extra>",
    )


def sample_traces(
    lines: np.ndarray,
    everyone: np.ndarray,
    sentence: str,
    *,
    target: np.ndarray | None = None,
) -> dict:
    """Training losses of one sample by the models that trained on it, beside those of all members.

    Parameters:
        lines: (R, E) nats
        everyone: (3, E) lower quartile, median, upper quartile of the losses of all members
        sentence: the title
        target: (E,) losses of the target
    """
    lines = np.asarray(lines, float)
    low, median_of_all, high = np.asarray(everyone, float)
    epochs = np.arange(1, len(median_of_all) + 1)
    hover = {"hovertemplate": "%{y:.3g}", "mode": mode_over_epochs(len(epochs))}
    edge = QUIET | {"width": 0}
    shade = {"fill": "tonexty", "fillcolor": translucent(GREY, 0.2)}
    data = [
        _line(epochs, low, GREY, **edge),
        _line(epochs, high, GREY, **edge, **shade),
        _line(epochs, median_of_all, GREY, dash="dash", width=2, name="all members", **hover),
    ]
    if len(lines):
        x = _with_gaps(np.broadcast_to(epochs, lines.shape).astype(float))
        y = _with_gaps(lines)
        faint = {"width": 1, "opacity": 0.45, "hoverinfo": "skip"}
        median = np.nanmedian(lines, axis=0)
        data += [
            _line(x, y, MEMBER, name=f"this sample ({len(lines)})", **faint),
            _line(epochs, median, MEMBER, width=2.5, name="their median", **hover),
        ]
    if target is not None:
        data.append(_line(epochs, target, LINES[0], dash="dot", width=2.5, name="target", **hover))
    return _figure(
        data,
        sentence,
        height=330,
        legend=IN_ORDER,
        margin={"b": 112},
        xaxis=epoch_axis(len(epochs)),
        yaxis=LOSS_AXIS,
        hovermode="x",
    )


def _with_gaps(lines: np.ndarray) -> np.ndarray:
    """Many lines (R, E) as a single line, with a gap after each."""
    return np.pad(lines, ((0, 0), (0, 1)), constant_values=np.nan).ravel()


def images(
    x: np.ndarray,
    captions: Sequence[str],
    member: np.ndarray,
    *,
    columns: int = 10,
    frames: int = 1,
) -> go.Figure:
    """A sheet of images, each in a frame of its membership's colour, over a caption that begins
    with the mark of its membership.

    Parameters:
        x: (n, C, H, W) uint8
        captions: n captions
        member: (n,) bool
        columns: images in a row
        frames: number of frames of events in the channels (`Images.frames`), which are shown summed
            over time: ON yellow, OFF blue
    """
    x = as_pictures(x, frames)
    member = np.asarray(member, bool)
    marked_captions = []
    edges = []
    for is_member, caption in zip(member, captions, strict=True):
        marked_captions.append(f"● {caption}" if is_member else f"◇ {caption}")
        edges.append(MEMBER if is_member else NON_MEMBER)
    sentence = f"● {member.sum()} members (vermillion) and ◇ {(~member).sum()} non-members (blue)"
    numbers = np.arange(len(x))
    return go.Figure(sheet(x, marked_captions, numbers, sentence, columns=columns, edges=edges))


def short(name: str) -> str:
    """The name of a class as a caption, cut where captions of neighbours would overlap."""
    return name if len(name) <= 7 else f"{name[:6]}…"


def sheet(
    x: np.ndarray,
    captions: Sequence[str],
    numbers: Sequence[int],
    sentence: str,
    *,
    chosen: int | None = None,
    columns: int = 8,
    edges: Sequence[str] | None = None,
) -> dict:
    """A sheet of images over their captions, as one picture; a click gives a sample's number. Of
    more than three channels the first three are shown, and the title says so.

    Parameters:
        x: (n, C, H, W) uint8
        captions: n captions
        numbers: (n,) numbers of the samples
        sentence: the title
        chosen: number of the sample to frame
        columns: images in a row
        edges: n colours of frames painted around the images
    """
    x = np.asarray(x)
    numbers = np.asarray(numbers, int)
    factor = max(1, SMALL // max(x.shape[2:]))
    height = factor * x.shape[2]
    width = factor * x.shape[3]
    caption_lines = 1 + max((caption.count("<br>") for caption in captions), default=0)
    gap = max(height, width) // 8 + 2
    row_height = height + caption_lines * height // 2 + gap
    longest = max((len(line) for caption in captions for line in caption.split("<br>")), default=0)
    room = math.ceil((longest + 2) * CHARACTER * row_height / ROW_ON_SCREEN)
    column_width = max(width + width // 3, room)  # neighbours' captions do not overlap
    rows = math.ceil(len(x) / columns)
    position = np.arange(len(x))
    tops = (position // columns) * row_height + gap // 2
    lefts = (position % columns) * column_width + (column_width - width) // 2
    canvas = np.zeros((rows * row_height, columns * column_width, 4), np.uint8)
    annotations = []
    outlines = []
    for i, (image, top, left) in enumerate(zip(x, tops.tolist(), lefts.tolist(), strict=True)):
        bottom = top + height
        right = left + width
        if edges is not None:
            framed = canvas[top - EDGE : bottom + EDGE, left - EDGE : right + EDGE]
            framed[:] = (*bytes.fromhex(edges[i][1:]), 255)
        canvas[top:bottom, left:right, :3] = enlarged(rgb(image), factor)
        canvas[top:bottom, left:right, 3] = 255
        centre = left + width / 2
        annotations.append({"text": captions[i], "x": centre, "y": float(bottom), **CAPTION})
        if numbers[i] == chosen:
            ends = {"x0": left - 2.5, "y0": top - 2.5, "x1": right + 1.5, "y1": bottom + 1.5}
            outlines.append({"type": "rect", "line": {"color": LINES[2], "width": 4}, **ends})
    # the picture is one trace: invisible markers tell hovers and clicks which image they are on
    markers = {
        "type": "scatter",
        "mode": "markers",
        "marker": {"size": 40, "symbol": "square", "opacity": 0},
        "showlegend": False,
        "text": list(captions),
        "x": _packed(lefts + width / 2 - 0.5),
        "y": _packed(tops + height / 2 - 0.5),
        "customdata": _packed(numbers, np.int32),
        "hovertemplate": "%{text}<extra></extra>",
    }
    return _figure(
        [{"type": "image", "source": png(canvas), "hoverinfo": "skip"}, markers],
        clauses(sentence, shown_channels(x.shape[1])),
        height=86 + ROW_ON_SCREEN * rows,
        wrap=WIDE,
        hovermode="closest",
        hoverdistance=60,
        annotations=annotations,
        shapes=outlines,
        **_plane(*canvas.shape[:2]),
    )


def ranking(
    value: np.ndarray,
    sentence: str,
    *,
    null: np.ndarray | None = None,
) -> dict:
    """The distribution of the separations of samples, beside their distribution under redrawn
    masks, each in shares.

    Parameters:
        value: (N,) separations
        sentence: the title
        null: (R,) separations under redrawn masks
    """
    value = _finite(value)
    null = _finite([] if null is None else null)
    both = np.concatenate([value, null])
    low = both.min() if len(both) else 0.0
    high = both.max() if len(both) else 1.0
    edges = equal_bins(low, high, BINS)
    data = [_shares("samples", value, edges, LINES[0], "solid")]
    if len(null):
        data.append(_shares("redrawn masks", null, edges, GREY, "dash"))
    return _figure(
        data,
        sentence,
        height=330,
        legend=IN_ORDER,
        margin={"b": 92},
        xaxis={"title": {"text": "separation (sd of scores)"}},
        yaxis={"title": {"text": "share of samples"}, "tickformat": "~%"},
    )


def _finite(values: np.ndarray | Sequence[float]) -> np.ndarray:
    values = np.asarray(values, float)
    return values[np.isfinite(values)]


def _shares(name: str, values: np.ndarray, edges: np.ndarray, colour: str, dash: str) -> dict:
    """A step line with the share of the values in each bin."""
    return _line(
        edges,
        step_counts(values, edges) / max(len(values), 1),
        colour,
        dash=dash,
        shape="hv",
        name=name,
        hovertemplate="%{x:.2f}: %{y:.2%}",
        fill="tozeroy",
        fillcolor=translucent(colour, 0.15),
    )


def _line(
    x: np.ndarray,
    y: np.ndarray,
    colour: str,
    *,
    dash: str = "solid",
    width: float = 1.5,
    shape: str | None = "linear",
    **rest: Any,
) -> dict:
    """A line as a trace of plotly's JSON; `rest` are its further entries."""
    line = {"color": colour, "dash": dash, "width": width, "shape": shape}
    place = {"x": _packed(x), "y": _packed(y)}
    return {"type": "scatter", "mode": "lines", "line": line} | place | rest


def _packed(values: np.ndarray, dtype: type = np.float32) -> dict:
    """An array, float32 or int32, as plotly's JSON holds it, NaN included."""
    values = np.ascontiguousarray(values, dtype)
    return {
        "dtype": {"f": "f4", "i": "i4"}[values.dtype.kind],
        "bdata": base64.b64encode(values.tobytes()).decode(),
    }


def _plane(height: int, width: int) -> dict:
    """Invisible axes of a picture, of its size, with its first row on top."""
    x = HIDDEN | {"range": [-0.5, width - 0.5], "scaleanchor": "y", "constrain": "domain"}
    y = HIDDEN | {"range": [height - 0.5, -0.5], "constrain": "domain", "constraintoward": "top"}
    return {"xaxis": x, "yaxis": y, "margin": {"l": 8, "r": 8, "b": 8}, "dragmode": False}


def _figure(
    data: list[dict],
    sentence: str,
    note: str = "",
    *,
    height: int,
    wrap: int = NARROW,
    margin: dict | None = None,
    **layout: Any,
) -> dict:
    """`style.finish` on plain JSON; `wrap` is the number of characters in a line of the title."""
    title, extra = heading(sentence, note, wrap)
    template_margin = TEMPLATE["layout"]["margin"]
    margin = template_margin | {"t": template_margin["t"] + extra} | (margin or {})
    shared = {"template": TEMPLATE, "title": title, "margin": margin, "height": height + extra}
    return {"data": data, "layout": shared | layout}
