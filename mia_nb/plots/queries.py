"""One question asked again and again of a network that answers at random: how the average of its answers settles."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mia_nb.plots.flow import _bars
from mia_nb.plots.spiking import BELOW, _need
from mia_nb.plots.style import GREY, LINES, MEMBER, NON_MEMBER, finish, translucent

WORLDS = {
    True: ("trained on it", MEMBER, "circle", "solid"),
    False: ("not trained on it", NON_MEMBER, "diamond", "dash"),
}
SURE = 1.96


def settling(
    answers: dict[bool, np.ndarray],
    *,
    asked: int,
    quiet: dict[bool, float] | None = None,
    spread: dict[bool, float] | None = None,
    title: str = "",
) -> go.Figure:
    """Margins of one sample's answers, and the mean after 1, 2, ..., Q of them, of a model that saw it and of one that did not.

    answers: {trained on it: (Q,) margins in nats}; points are answers, lines their running means, strong up to `asked`. quiet:
    {trained on it: margin with the noise off}, dotted. spread: {trained on it: s}, standard deviation of one answer: a funnel
    mean +- 1.96 s / sqrt(r), the closed form of where the mean of r answers lies. Raises ValueError for no answers and for
    `asked` outside 1..Q.
    """
    if not answers:
        raise ValueError("settling got no answers: wanted {True: margins, False: margins}")
    most = min(len(own) for own in answers.values())
    if not 1 <= asked <= most:
        raise ValueError(f"asked={asked}, but there are {most} answers: wanted 1 to {most}")
    figure, counts = go.Figure(), np.arange(1, most + 1)
    for i, (inside, own) in enumerate(answers.items()):
        word, colour, symbol, dash = WORLDS[inside]
        mean = np.cumsum(own[:most]) / counts
        if spread is not None:
            half = SURE * spread[inside] / np.sqrt(counts)
            edge = {
                "mode": "lines",
                "line": {"width": 0},
                "hoverinfo": "skip",
                "name": "closed form",
            }
            figure.add_scatter(x=counts, y=mean[-1] - half, showlegend=False, **edge)
            colours = {"fill": "tonexty", "fillcolor": translucent(colour, 0.15)}
            figure.add_scatter(x=counts, y=mean[-1] + half, showlegend=i == 0, **colours, **edge)
        marker = {
            "symbol": symbol,
            "size": 7,
            "color": [translucent(colour, 0.75 if r < asked else 0.2) for r in range(most)],
        }
        hover = "answer %{x}: margin %{y:.2f}"
        figure.add_scatter(x=counts, y=own[:most], mode="markers", marker=marker, showlegend=False, name=word,
                           hovertemplate=hover)  # fmt: skip
        line, hover = {"color": colour, "width": 3, "dash": dash}, "mean of %{x}: %{y:.2f}"
        figure.add_scatter(x=counts[:asked], y=mean[:asked], mode="lines+markers", line=line, name=f"mean, {word}",
                           marker={"size": 4, "color": colour}, hovertemplate=hover)  # fmt: skip
        if quiet is not None and inside in quiet:
            line = {"color": colour, "width": 1.5, "dash": "dot"}
            level = {
                "x": [0.3, most + 0.7],
                "y": [quiet[inside]] * 2,
                "mode": "lines",
                "line": line,
                "name": "noise off",
            }
            figure.add_scatter(**level, showlegend=i == 0, hovertemplate="noise off: %{y:.2f}")
    ends = [float(own[:asked].mean()) for own in answers.values()]
    apart = f"{ends[0] - ends[1]:+.2f} nats apart" if len(ends) == 2 else f"at {ends[0]:.2f} nats"
    who = (
        f"the means of {asked} answers are"
        if asked > 1
        else "one answer of each is"
        if len(ends) == 2
        else "one answer is"
    )
    sentence = f"{title}: {who} {apart}"
    note = "points: answers; lines: their mean so far" + ("; dotted: noise off" if quiet else "")
    note += "; shaded: closed form" if spread is not None else ""
    axes = {
        "xaxis": {"title": "answers averaged", "range": [0.3, most + 0.7]},
        "yaxis_title": "margin (nats)",
    }
    return finish(figure, sentence, note, height=370, legend=BELOW | {"y": -0.3}, **axes)


def auc_against_answers(
    table: pd.DataFrame,
    *,
    quiet: tuple[float, float, float] | None = None,
    closed: pd.DataFrame | None = None,
) -> go.Figure:
    """AUC against the number R of averaged answers on a log2 axis, with bars.

    table: index R, columns auc, auc_low, auc_high. quiet: (AUC, low, high) with the noise off, a dashed level with its band.
    closed: index R (inf allowed: drawn at the right end), column auc: what Gaussian theory says. Raises ValueError for missing
    columns.
    """
    _need(table, ("auc", "auc_low", "auc_high"), "auc_against_answers", finite=("auc",))
    figure, x = go.Figure(), np.log2(table.index.to_numpy(float))
    right = x.max() + 1
    ends = [x.min() - 0.3, right + 0.3]
    if quiet is not None:
        value, low, high = quiet
        edge = {
            "x": ends,
            "mode": "lines",
            "line": {"width": 0},
            "showlegend": False,
            "hoverinfo": "skip",
        }
        figure.add_scatter(y=[low] * 2, **edge)
        figure.add_scatter(
            y=[high] * 2, fill="tonexty", fillcolor=translucent(LINES[1], 0.15), **edge
        )
        line = {"color": LINES[1], "dash": "dash", "width": 2}
        figure.add_scatter(
            x=ends,
            y=[value] * 2,
            mode="lines",
            line=line,
            name="noise off",
            hovertemplate="AUC %{y:.3f}",
        )
    bars = _bars(table, "auc") | {"thickness": 1.2, "width": 3}
    figure.add_scatter(x=x, y=table["auc"], customdata=table.index, mode="lines+markers", name="asked R times", error_y=bars,
                       line={"color": LINES[2], "width": 2}, marker={"size": 7, "color": LINES[2]},
                       hovertemplate="R = %{customdata}: AUC %{y:.3f}")  # fmt: skip
    if closed is not None:
        place = np.minimum(np.log2(closed.index.to_numpy(float)), right)
        words = ["∞" if np.isinf(count) else f"{count:g}" for count in closed.index]
        figure.add_scatter(x=place, y=closed["auc"], customdata=words, mode="lines+markers", name="closed form",
                           line={"color": GREY, "dash": "dot", "width": 2}, marker={"symbol": "x-thin-open", "size": 7},
                           hovertemplate="closed form, R = %{customdata}: AUC %{y:.3f}")  # fmt: skip
    doublings = 2.0 ** np.arange(int(x.max()) + 1)
    ticks = {"tickvals": [*np.log2(doublings), *([right] if closed is not None else [])]}
    ticks["ticktext"] = [
        *(f"{count:g}" for count in doublings),
        *(["∞"] if closed is not None else []),
    ]
    first, last = table.iloc[0], table.iloc[-1]
    sentence = f"AUC {first['auc']:.3f} with {table.index[0]:g} answer, {last['auc']:.3f} with {table.index[-1]:g}"
    sentence += f", {quiet[0]:.3f} with the noise off" if quiet is not None else ""
    note = "bars 95 %" + ("; closed form fitted at the largest R" if closed is not None else "")
    axes = {
        "xaxis": {"title": "answers R that the attacker averages", "range": ends, **ticks},
        "yaxis_title": "AUC",
    }
    return finish(figure, sentence, note, height=370, legend=BELOW | {"y": -0.3}, **axes)
