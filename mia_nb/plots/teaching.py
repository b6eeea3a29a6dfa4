"""Figures for teaching: a guesser in the ROC plane, redrawn membership, and tied scores."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from mia_nb import metrics
from mia_nb.metrics.curve import thin
from mia_nb.plots.curves import AXES
from mia_nb.plots.marks import hatched, step_counts
from mia_nb.plots.style import (
    BELOW,
    DOTTED,
    GREY,
    MARKERS,
    MEMBER,
    MEMBERS,
    NON_MEMBER,
    NON_MEMBERS,
    finish,
    looks,
    translucent,
)

MOST_VALUES = 80  # number of values of a tied score that are shown
RATE = {"tickformat": "~%", "range": [-0.02, 1.02]}
YOU = "you"
YOUR_STAR = {
    "size": 22,
    "color": MEMBER,
    "line": {"width": 2, "color": MEMBER},
    "symbol": "star-open",
}


def guesser(
    curves: dict[str, tuple[np.ndarray, np.ndarray]],
    points: dict[str, tuple[int, int]],
    n1: int,
    n0: int,
) -> go.Figure:
    """A guesser, called "you", in the ROC plane beside attacks.

    The box around the guesser's point spans the 95 % Clopper-Pearson intervals of both rates.

    Parameters:
        curves: {attack: (score (N,), member (N,))}
        points: {name: (true positives, false positives)} among n1 members and n0 non-members
        n1: number of members
        n0: number of non-members
    """
    figure = go.Figure()
    figure.add_scatter(
        x=[0, 1], y=[0, 1], name="random guessing", mode="lines", line=DOTTED, hoverinfo="skip"
    )
    style_of = looks(curves)
    for name, (score, member) in curves.items():
        curve = thin(metrics.roc(score, member), int((~member).sum()))
        style = style_of[name]
        figure.add_scatter(
            x=curve.fpr,
            y=curve.tpr,
            mode="lines",
            line={"color": style.colour, "dash": style.dash, "width": 2},
            name=f"{name}, all images: AUC {metrics.auc(score, member):.3f}",
            hoverinfo="skip",
        )
    for i, (name, (hits, alarms)) in enumerate(points.items()):
        if name == YOU:
            marker = YOUR_STAR
        else:
            marker = {
                # later points are smaller, so that an equal earlier one stays visible around them
                "size": 15 - 4 * min(i, 2),
                "color": style_of[name].colour if name in curves else GREY,
                "line": {"width": 1, "color": "white"},
                "symbol": MARKERS[1 + i % (len(MARKERS) - 1)],
            }
        rates = f"{hits} of {n1} members at {alarms} of {n0} false positives"
        figure.add_scatter(
            x=[alarms / n0],
            y=[hits / n1],
            mode="markers",
            marker=marker,
            name=f"{name}, these {n1 + n0}",
            hovertemplate=f"{name}: {rates}<extra></extra>",
        )
    sentence = f"Attacks on these {n1 + n0} images, and on all"
    note = "points: ten accused of twenty"
    if YOU in points:
        hits, alarms = points[YOU]
        _add_box(figure, metrics.clopper_pearson(hits, n1), metrics.clopper_pearson(alarms, n0))
        sentence = f"{YOU}: {hits} of {n1} members at {alarms} of {n0} false positives"
        note = f"box: 95 % of what {n1} members and {n0} non-members can say"
    return finish(
        figure,
        sentence,
        note,
        height=480,
        legend=BELOW,
        xaxis={"title": AXES[0], **RATE},
        yaxis={"title": AXES[1], **RATE},
    )


def _add_box(figure: go.Figure, tpr: tuple, fpr: tuple) -> None:
    """A box over two intervals in the ROC plane."""
    low, high = tpr
    left, right = fpr
    figure.add_shape(
        type="rect",
        x0=float(left),
        x1=float(right),
        y0=float(low),
        y1=float(high),
        line={"color": MEMBER, "dash": "dash", "width": 1},
        fillcolor=translucent(MEMBER, 0.12),
        layer="below",
    )


def null_band(real: float, drawn: np.ndarray, *, name: str, design: str) -> go.Figure:
    """AUCs under redrawn membership, their central 95 %, and the real AUC.

    Parameters:
        real: AUC with the real members
        drawn: (n_resamples,) AUCs with redrawn members
        name: name of the attack
        design: how membership was redrawn, in words
    """
    drawn = np.asarray(drawn, float)
    left, right = np.quantile(drawn, [0.025, 0.975])
    start = min(drawn.min(), real, 0.5) - 0.01
    end = max(drawn.max(), real, 0.5) + 0.01
    edges = np.linspace(start, end, 61)
    counts = step_counts(drawn, edges)
    figure = go.Figure()
    figure.add_scatter(
        x=edges,
        y=counts,
        mode="lines",
        name=f"{len(drawn)} redrawn worlds",
        line={"shape": "hv", "color": NON_MEMBER, "width": 1.5},
        hovertemplate="%{y} worlds",
        **hatched(NON_MEMBER, NON_MEMBERS.pattern, 0.2),
    )
    figure.add_vrect(x0=left, x1=right, fillcolor=NON_MEMBER, opacity=0.12, line_width=0)
    for x, colour, dash, label in (
        (0.5, GREY, "dot", "random guessing"),
        (real, MEMBER, "solid", "the real members"),
    ):
        figure.add_scatter(
            x=[x, x],
            y=[0, max(counts.max(), 1)],
            mode="lines",
            line={"color": colour, "dash": dash, "width": 2.5},
            name=label,
            hovertemplate=f"{label}: {x:.3f}<extra></extra>",
        )
    return finish(
        figure,
        f"{name}: AUC {real:.3f} with the real members; redrawn {drawn.mean():.3f} on average, "
        f"95 % in {left:.3f}-{right:.3f}",
        f"{design}; band: 95 % of the redrawn worlds",
        height=400,
        xaxis_title="AUC",
        yaxis_title="redrawn worlds",
        legend=BELOW,
    )


def levels(score: np.ndarray, member: np.ndarray, *, name: str) -> go.Figure:
    """Shares of members and of non-members at each value of a tied score, or at its 80 highest
    values.

    Parameters:
        score: (N,) tied scores
        member: (N,) bool
        name: name of the attack
    """
    score = np.asarray(score, float)
    member = np.asarray(member, bool)
    values = np.unique(score)[::-1]
    drawn = values[:MOST_VALUES]
    figure = go.Figure()
    for group, mask in ((MEMBERS, member), (NON_MEMBERS, ~member)):
        # a pattern, so that colour is not the only cue
        pattern = {
            "shape": group.pattern,
            "fgcolor": "white",
            "fgopacity": 0.6,
            "fillmode": "overlay",
        }
        figure.add_bar(
            x=drawn,
            y=[(score[mask] == value).mean() for value in drawn],
            name=group.name,
            marker={"color": group.colour, "opacity": 0.75, "pattern": pattern},
            hovertemplate="%{y:.1%} of " + group.name + " at %{x:.3g}<extra></extra>",
        )
    share_of_highest = (score[~member] == values[0]).mean()
    return finish(
        figure,
        f"{name}: {len(values):,} different scores; the highest alone holds {share_of_highest:.2%}"
        " of all non-members",
        "no threshold can cut through one bar",
        height=360,
        barmode="group",
        xaxis={"title": "score"},
        yaxis={"title": "share of group", "tickformat": "~%"},
        legend=BELOW,
    )
