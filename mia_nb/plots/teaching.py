"""Pictures for teaching: a guesser in the ROC plane, attacks against their price, worlds without a leak, tied scores."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mia_nb import metrics
from mia_nb.plots.style import DASHES, GREY, LINES, MARKERS, MEMBER, NON_MEMBER, finish, translucent

BELOW = {"orientation": "h", "y": -0.2, "yanchor": "top"}
RATE = {"tickformat": "~%", "range": [-0.02, 1.02]}


def guesser(
    curves: dict[str, tuple],
    points: dict[str, tuple[int, int]],
    n1: int,
    n0: int,
    *,
    own: str = "you",
) -> go.Figure:
    """Where a guesser stands in the ROC plane, beside attacks.

    curves: {attack: (score (N,), member (N,))}; points: {name: (hits, false alarms)} among n1 members and n0 non-members.

    The box around `own` holds the 95 % Clopper-Pearson intervals of both rates: so little do n1 + n0 guesses say.
    """
    figure = go.Figure()
    line = {"color": GREY, "dash": "dot", "width": 1}
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", line=line, name="coin", hoverinfo="skip")
    for i, (name, pair) in enumerate(curves.items()):
        curve, style = (
            metrics.roc(*pair),
            {"color": LINES[i], "dash": DASHES[i % len(DASHES)], "width": 2},
        )
        words = f"{name}, all images: AUC {metrics.auc(*pair):.3f}"
        figure.add_scatter(
            x=curve.fpr, y=curve.tpr, mode="lines", line=style, name=words, hoverinfo="skip"
        )
    for i, (name, (hits, alarms)) in enumerate(points.items()):
        mine = name == own
        low, high, left, right = (
            float(end) for at in ((hits, n1), (alarms, n0)) for end in metrics.clopper_pearson(*at)
        )
        if mine:
            box = {
                "x0": left,
                "x1": right,
                "y0": low,
                "y1": high,
                "line": {"color": MEMBER, "dash": "dash", "width": 1},
            }
            figure.add_shape(type="rect", fillcolor=translucent(MEMBER, 0.12), layer="below", **box)
        colour = MEMBER if mine else LINES[list(curves).index(name)] if name in curves else GREY
        marker = {
            "size": 17 if mine else 11,
            "color": colour,
            "line": {"width": 1, "color": "white"},
        }
        marker |= {"symbol": "star" if mine else MARKERS[1 + i % (len(MARKERS) - 1)]}
        hover = f"{name}: {hits} of {n1} members at {alarms} of {n0} false alarms<extra></extra>"
        place = {"x": [alarms / n0], "y": [hits / n1], "mode": "markers", "marker": marker}
        figure.add_scatter(**place, name=f"{name}, these {n1 + n0}", hovertemplate=hover)
    sentence = f"Attacks on these {n1 + n0} images, and on all"
    if own in points:
        sentence = (
            f"{own}: {points[own][0]} of {n1} members at {points[own][1]} of {n0} false alarms"
        )
    note = (
        f"box: 95 % of what {n1} members and {n0} non-members can say"
        if own in points
        else "points: ten accused of twenty"
    )
    axes = {
        "xaxis": {"title": "false alarms (FPR)", **RATE},
        "yaxis": {"title": "members found (TPR)", **RATE},
    }
    return finish(figure, sentence, note, height=480, legend=BELOW, **axes)


def budget_race(
    table: pd.DataFrame, *, metric: str = "AUC", chance: float | None = None
) -> go.Figure:
    """Attacks against the number of reference models. Columns of the table: attack, references, value, low, high; NaN values
    (an attack that cannot run with so few) leave a gap. Bands: the table's interval."""
    figure = go.Figure()
    budgets = sorted(table["references"].unique())
    places = {budget: i for i, budget in enumerate(budgets)}
    for i, (name, rows) in enumerate(table.groupby("attack", sort=False)):
        rows = rows.dropna(subset="value").sort_values("references")
        x, colour = [places[b] for b in rows["references"]], LINES[i % len(LINES)]
        edge = {
            "x": x,
            "mode": "lines",
            "line": {"width": 0},
            "showlegend": False,
            "hoverinfo": "skip",
            "legendgroup": name,
        }
        figure.add_scatter(y=rows["low"], **edge)
        figure.add_scatter(
            y=rows["high"], fill="tonexty", fillcolor=translucent(colour, 0.14), **edge
        )
        style = {
            "line": {"color": colour, "dash": DASHES[i % len(DASHES)], "width": 2},
            "name": name,
            "legendgroup": name,
        }
        marker = {"size": 9, "symbol": MARKERS[i % len(MARKERS)]}
        hover = "%{y:.3f} with %{customdata} references"
        figure.add_scatter(
            x=x,
            y=rows["value"],
            customdata=rows["references"],
            mode="lines+markers",
            marker=marker,
            hovertemplate=hover,
            **style,
        )
    if chance is not None:
        figure.add_hline(y=chance, line={"color": GREY, "dash": "dot", "width": 1})
    best = table.dropna(subset="value").loc[lambda t: t.groupby("references")["value"].idxmax()]
    words = ", ".join(
        f"{name} with {budget}"
        for name, budget in zip(best["attack"], best["references"], strict=True)
    )
    ticks = {
        "tickvals": list(places.values()),
        "ticktext": [str(b) for b in budgets],
        "title": "reference models trained",
    }
    note = "bands: 95 % intervals; a curve starts where the attack can run"
    return finish(
        figure, f"Highest: {words}", note, height=460, xaxis=ticks, yaxis_title=metric, legend=BELOW
    )


def null_band(real: float, drawn, *, name: str, design: str) -> go.Figure:
    """AUCs (draws,) in worlds whose membership was dealt anew, their central 95 %, and the real one."""
    drawn = np.asarray(drawn, float)
    ends = np.quantile(drawn, [0.025, 0.975])
    low, high = min(drawn.min(), real, 0.5), max(drawn.max(), real, 0.5)
    edges = np.linspace(low - 0.01, high + 0.01, 61)
    counts = np.histogram(drawn, edges)[0]
    figure = go.Figure()
    hatch = {"shape": "\\", "fgcolor": NON_MEMBER, "fgopacity": 0.35, "size": 6}
    figure.add_scatter(
        x=edges, y=np.append(counts, counts[-1]), mode="lines", fill="tozeroy", name=f"{len(drawn)} redrawn worlds",
        line={"shape": "hv", "color": NON_MEMBER, "width": 1.5}, fillcolor=translucent(NON_MEMBER, 0.2), fillpattern=hatch,
        hovertemplate="%{y} worlds",
    )  # fmt: skip
    figure.add_vrect(x0=ends[0], x1=ends[1], fillcolor=NON_MEMBER, opacity=0.12, line_width=0)
    top = max(counts.max(), 1)
    for x, colour, dash, words in (
        (0.5, GREY, "dot", "a coin"),
        (real, MEMBER, "solid", "the real members"),
    ):
        line = {"color": colour, "dash": dash, "width": 2.5}
        hover = f"{words}: {x:.3f}<extra></extra>"
        figure.add_scatter(
            x=[x, x], y=[0, top], mode="lines", line=line, name=words, hovertemplate=hover
        )
    words = f"{name}: AUC {real:.3f} with the real members; redrawn {drawn.mean():.3f} on average, "
    words += f"95 % in {ends[0]:.3f}-{ends[1]:.3f}"
    axes = {"xaxis_title": "AUC", "yaxis_title": "redrawn worlds", "legend": BELOW}
    return finish(figure, words, f"{design}; band: 95 % of the redrawn worlds", height=400, **axes)


def levels(score, member, *, name: str, most: int = 80) -> go.Figure:
    """How many members and non-members share each value of a tied score (N,); the first `most` values from the highest down."""
    score, member = np.asarray(score, float), np.asarray(member, bool)
    values = np.unique(score)[::-1][:most]
    figure = go.Figure()
    for words, mask, colour, pattern in (
        ("members", member, MEMBER, "/"),
        ("non-members", ~member, NON_MEMBER, "\\"),
    ):
        share = [(score[mask] == value).mean() for value in values]
        style = {
            "color": colour,
            "opacity": 0.75,
            "pattern": {
                "shape": pattern,
                "fgcolor": "white",
                "fgopacity": 0.6,
                "fillmode": "overlay",
            },
        }
        hover = "%{y:.1%} of " + words + " at %{x:.3g}<extra></extra>"
        figure.add_bar(x=values, y=share, name=words, marker=style, hovertemplate=hover)
    shared = (score[~member] == values[0]).mean()
    sentence = f"{name}: {len(np.unique(score)):,} different scores; the highest alone holds {shared:.2%} of all non-members"
    axes = {
        "xaxis": {"title": "score"},
        "yaxis": {"title": "share of group", "tickformat": "~%"},
        "legend": BELOW,
    }
    return finish(
        figure,
        sentence,
        "no threshold can cut through one bar",
        height=360,
        barmode="group",
        **axes,
    )


def found_again(hits: dict[str, np.ndarray], *, name: str) -> go.Figure:
    """By how many repetitions of the training a member is found. hits: {group: (S, trials) bool}, a trial = a target's member.

    Bars: share of the trials found by 0, 1, ..., S repetitions; grey marks: what independent lists of those sizes would give.
    """
    figure, most = go.Figure(), 0
    for i, (words, found) in enumerate(hits.items()):
        seeds, trials = found.shape
        count = np.bincount(found.sum(0), minlength=seeds + 1) / max(trials, 1)
        chance = np.ones(1)
        for p in found.mean(1):
            chance = np.convolve(chance, [1 - p, p])
        place = {"x": np.arange(seeds + 1), "offsetgroup": str(i)}
        style = {
            "color": LINES[(1, 0)[i % 2]],
            "pattern": {
                "shape": ("/", "\\")[i % 2],
                "fgcolor": "white",
                "fgopacity": 0.6,
                "fillmode": "overlay",
            },
        }
        hover = f"found by %{{x}} of {seeds}: %{{y:.1%}} of {words}<extra></extra>"
        figure.add_bar(
            y=count, name=f"{words} ({trials:,} trials)", marker=style, hovertemplate=hover, **place
        )
        mark = {"symbol": "line-ew", "size": 26, "line": {"width": 3, "color": GREY}}
        x = place["x"] + (-0.2 if i == 0 else 0.2) * (len(hits) > 1)
        hover = f"{words}, by chance: %{{y:.1%}}<extra></extra>"
        style = {"showlegend": i == 0, "name": "independent lists", "hovertemplate": hover}
        figure.add_scatter(x=x, y=chance, mode="markers", marker=mark, **style)
        most = max(most, seeds)
    each = ", ".join(f"{found.all(0).mean():.1%} of {words}" for words, found in hits.items())
    ticks = {"tickvals": list(range(most + 1)), "title": "repetitions that find the member"}
    axes = {
        "xaxis": ticks,
        "yaxis": {"title": "share of members", "tickformat": "~%"},
        "legend": BELOW,
        "barmode": "group",
    }
    return finish(
        figure,
        f"{name}: every repetition finds {each}",
        "grey marks: by chance",
        height=420,
        **axes,
    )
