"""Figures of spiking networks: the sites of a conversion, spikes and membranes."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mia_nb.checks import quantity
from mia_nb.plots.marks import bars, level
from mia_nb.plots.pictures import enlarged, png, rgb
from mia_nb.plots.style import BELOW, GREY, LINES, MARKERS, clauses, finish, listed
from mia_nb.plots.tables import need

IMAGE_START = 0.82  # where an image to the right of a raster begins, as a share of the width
IMAGE_SIZE = 192  # pixels of such an image, at least, as browsers blur images that they enlarge
MOST_NEURONS = 200  # in a raster
# parts of a raster: spikes above membranes
ABOVE = {"row": 1, "col": 1}
UNDERNEATH = {"row": 2, "col": 1}


def sites(report: pd.DataFrame) -> go.Figure:
    """Threshold, clipped mass P(a > theta) and firing rate of each site of a conversion, in the
    network's order.

    Markers are medians over models, bars reach from the smallest to the largest model. Sites
    without any activation have no threshold (NaN) and are named in the note.

    Parameters:
        report: a row per model and site with columns model, site, theta (mean over channels), u0,
            expected_error, clipped_mass, firing_rate

    Raises:
        ValueError: when other values are missing or a site of a model comes twice.
    """
    columns = ["theta", "u0", "expected_error", "clipped_mass", "firing_rate"]
    finite = ("clipped_mass", "firing_rate")
    need(report, ("model", "site", *columns), "sites", finite, once=("model", "site"))
    models = report["model"].nunique()
    groups = report.groupby("site", sort=False)[columns]
    low = groups.min()
    middle = groups.median()
    high = groups.max()
    names = middle.index.tolist()
    figure = make_subplots(3, 1, shared_xaxes=True, vertical_spacing=0.06)
    error = "<br>u0 %{customdata[0]:.3g}, expected error %{customdata[1]:.3g}"
    panels = (  # column of the report, title, hover, format of ticks
        ("theta", "threshold θ", "%{y:.3g}" + error, ""),
        ("clipped_mass", "clipped mass", "%{y:.2%}", "~%"),
        ("firing_rate", "firing rate", "%{y:.1%}", "~%"),
    )
    for row, (column, title, hover, ticks) in enumerate(panels, start=1):
        figure.add_scatter(
            x=names,
            y=middle[column],
            error_y=bars(middle[column], low[column], high[column], thickness=1.5, width=4),
            mode="markers",
            showlegend=False,
            name=title,
            customdata=middle[["u0", "expected_error"]],
            hovertemplate=f"%{{x}}: {hover}",
            marker={"color": LINES[row - 1], "symbol": MARKERS[row - 1], "size": 9},
            row=row,
            col=1,
        )
        figure.update_yaxes(
            title_text=title, rangemode="tozero", tickformat=ticks or None, row=row, col=1
        )
    figure.update_xaxes(categoryorder="array", categoryarray=names)
    rate = middle["firing_rate"]
    clipped = middle["clipped_mass"]
    note = "one model"
    if models > 1:
        note = f"markers: median of {models} models; bars: smallest to largest model"
    silent_sites = report["site"][report["theta"].isna()]
    if len(silent_sites):
        note = f"{note}; no activation and so no threshold: {listed(silent_sites)}"
    return finish(
        figure,
        f"the {len(names)} sites fire in {rate.min():.1%} ({rate.idxmin()}) to {rate.max():.1%}"
        f" ({rate.idxmax()}) of steps; at most {clipped.max():.1%} of activations are clipped"
        f" ({clipped.idxmax()})",
        note,
        height=560,
    )


def raster(
    spk: np.ndarray,
    mem: np.ndarray,
    theta: np.ndarray,
    *,
    image: np.ndarray | None = None,
    name: str = "one sample",
) -> go.Figure:
    """Spikes of a layer's neurons, the busiest on top, and the membrane potentials of three neurons
    against their thresholds.

    The three are the busiest, the median and the least busy of the neurons that fire. Of a layer
    with more than 200 neurons, those at evenly spaced ranks are drawn.

    Parameters:
        spk: (T, neurons) bool
        mem: (T, neurons) the potential after charging and before the reset, so that a neuron fires
            where mem >= theta
        theta: (neurons,)
        image: (C, H, W) uint8, shown beside the spikes
        name: name of the sample, for the title

    Raises:
        ValueError: when shapes or spikes do not agree with mem and theta (then mem was taken after
            the reset).
    """
    spk = np.asarray(spk, dtype=bool)
    mem = np.asarray(mem, dtype=np.float64)
    theta = np.asarray(theta, dtype=np.float64)
    _check_layer(spk, mem, theta)
    steps = np.arange(1, len(spk) + 1)
    rate = spk.mean(0)
    order = np.argsort(rate, kind="stable")
    traced = _traced(rate, order, mem)
    drawn = _drawn(order, traced)
    figure = make_subplots(2, 1, shared_xaxes=True, row_heights=[0.55, 0.45], vertical_spacing=0.07)
    _add_spikes(figure, spk[:, drawn], drawn, traced, steps)
    _add_membranes(figure, spk, mem, theta, traced, steps)
    if image is not None:
        _add_image(figure, np.asarray(image))
    time_axis = {
        "range": [0.4, 0.5 + 1.06 * len(steps)],
        "dtick": 1 if len(steps) <= 20 else None,
        "domain": [0, 1 if image is None else IMAGE_START - 0.03],
    }
    return finish(
        figure,
        f"{name}: {len(rate):,} neurons fire in {spk.mean():.1%} of"
        f" {quantity(len(steps), 'time step')}; {int((rate == 0).sum()):,} of them never",
        clauses(
            "marks on the right: neurons traced below",
            "filled markers: a spike",
            "dashed: threshold",
            len(drawn) < len(rate) and f"{len(drawn)} of {len(rate):,} neurons drawn",
        ),
        height=520,
        legend=BELOW,
        xaxis=time_axis,
        xaxis2=time_axis | {"title": {"text": "time step"}},
        yaxis={
            "title": {"text": "neurons, busiest on top"},
            "showgrid": False,
            "showticklabels": False,
            "ticks": "",
        },
        yaxis2={"title": {"text": "membrane, before reset"}},
    )


def _check_layer(spk: np.ndarray, mem: np.ndarray, theta: np.ndarray) -> None:
    """ValueError for shapes that do not fit, and for spikes that mem and theta contradict."""
    fits = mem.shape == spk.shape and theta.shape == spk.shape[1:]
    if spk.ndim != 2 or not spk.size or not fits:
        raise ValueError(
            f"spk {spk.shape}, mem {mem.shape}, theta {theta.shape}: wanted (T, neurons) twice"
            " and (neurons,)"
        )
    # how far the potential lies on the wrong side of the threshold; rounding may break ties
    error = np.where(spk, theta - mem, mem - theta)
    wrong = (error > 1e-4 * np.maximum(theta, 1)).sum()
    if wrong:
        raise ValueError(
            f"{wrong} of {spk.size} spikes disagree with mem >= theta: pass mem after charging and"
            " before the reset"
        )


def _traced(rate: np.ndarray, order: np.ndarray, mem: np.ndarray) -> np.ndarray:
    """Numbers of the busiest, the median and the least busy neuron that fires; in a silent layer,
    of the three neurons with the highest potential.
    """
    active = order[rate[order] > 0]
    if not len(active):
        active = np.argsort(mem.max(0), kind="stable")[-3:]
    # unique, as one or two neurons may be all
    ranks = np.unique([0, len(active) // 2, len(active) - 1])
    return active[ranks[::-1]]


def _drawn(order: np.ndarray, traced: np.ndarray) -> np.ndarray:
    """Numbers of the neurons in the raster, the busiest last: at most 200 at evenly spaced ranks,
    and the traced ones.
    """
    count = min(MOST_NEURONS, len(order))
    ranks = np.linspace(0, len(order) - 1, count).round().astype(int)
    ranks_of_traced = np.flatnonzero(np.isin(order, traced))
    return order[np.union1d(ranks, ranks_of_traced)]


def _add_spikes(
    figure: go.Figure, spk: np.ndarray, drawn: np.ndarray, traced: np.ndarray, steps: np.ndarray
) -> None:
    """The spikes (T, drawn neurons), and beside them the markers of the neurons traced below."""
    figure.add_heatmap(
        x=steps,
        z=spk.T.astype(np.uint8),
        customdata=np.broadcast_to(drawn[:, None], spk.T.shape),
        colorscale=[[0, "rgba(0,0,0,0)"], [1, GREY]],
        zmin=0,
        zmax=1,
        showscale=False,
        xgap=3 if len(steps) <= 64 else 0,
        ygap=1 if len(drawn) <= 64 else 0,
        hovertemplate="neuron %{customdata}, step %{x}: %{z}<extra></extra>",
        **ABOVE,
    )
    for i, neuron in enumerate(traced):
        figure.add_scatter(
            x=[0.5 + 1.03 * len(steps)],
            y=np.flatnonzero(drawn == neuron),
            mode="markers",
            marker={"symbol": MARKERS[i], "color": LINES[i], "size": 9},
            showlegend=False,
            hoverinfo="skip",
            **ABOVE,
        )


def _add_membranes(
    figure: go.Figure,
    spk: np.ndarray,
    mem: np.ndarray,
    theta: np.ndarray,
    traced: np.ndarray,
    steps: np.ndarray,
) -> None:
    """Potentials of the traced neurons, and their thresholds."""
    ends = [0.5, len(steps) + 0.5]
    for i, neuron in enumerate(traced):
        symbols = np.where(spk[:, neuron], MARKERS[i], f"{MARKERS[i]}-open").tolist()
        figure.add_scatter(
            x=steps,
            y=mem[:, neuron],
            mode="lines+markers",
            name=f"neuron {neuron}, fires {spk[:, neuron].mean():.0%}",
            line={"color": LINES[i], "width": 1.5},
            marker={"symbol": symbols, "size": 9},
            hovertemplate="step %{x}: %{y:.3g}",
            **UNDERNEATH,
        )
        name = f"threshold {theta[neuron]:.3g} of neuron {neuron}"
        level(figure, ends, theta[neuron], colour=LINES[i], width=1.5, name=name, **UNDERNEATH)


def _add_image(figure: go.Figure, image: np.ndarray) -> None:
    """The image that the network saw, beside the raster."""
    if image.ndim != 3 or image.dtype != np.uint8:
        raise ValueError(f"image {image.shape} {image.dtype}: wanted (C, H, W) uint8")
    factor = math.ceil(IMAGE_SIZE / max(image.shape[1:]))
    figure.add_layout_image(
        source=png(enlarged(rgb(image), factor)),
        xref="paper",
        yref="paper",
        x=IMAGE_START,
        y=1,
        sizex=1 - IMAGE_START,
        sizey=0.5,
    )
