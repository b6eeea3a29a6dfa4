"""Scores as pictures: distributions, one attack against another, risk against overfitting, all attacks at a glance."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mia_nb import metrics
from mia_nb.metrics.agreement import rank_correlation
from mia_nb.plots.style import (
    GREY,
    LINES,
    MARKERS,
    MEMBER,
    NON_MEMBER,
    finish,
    name_of,
    named,
    row_of,
    targets,
    translucent,
)
from mia_nb.types import Scores

POINTS = 5000  # markers that a browser draws without a pause


def histogram(scores: Scores, *, target: int | None = None, bins: int = 100) -> go.Figure:
    """Scores of members and of non-members, each as a share of its own group, in bins counted here and not in the browser.

    `target` is a row number of the target pool; None pools all targets (their scores share a scale only if the attack
    calibrates them). Bins reach 4 interquartile ranges beyond the quartiles at most (all of a Gaussian); the outermost two hold
    the tails, infinite scores included.
    """
    pairs = targets(scores) if target is None else [targets(scores)[row_of(scores, target)]]
    value, member = (np.concatenate(part) for part in zip(*pairs, strict=True))
    edges = _edges(value[np.isfinite(value)], bins)
    figure = go.Figure()
    for name, mask, colour, dash, pattern in (
        ("non-members", ~member, NON_MEMBER, "dash", "\\"),
        ("members", member, MEMBER, "solid", "/"),
    ):
        counts = np.histogram(np.clip(value[mask], edges[0], edges[-1]), edges)[0]
        counts = np.append(counts, counts[-1])  # a step line needs the last level twice
        hatch = {"shape": pattern, "fgcolor": colour, "fgopacity": 0.35, "size": 6}
        figure.add_scatter(
            x=edges, y=counts / mask.sum(), customdata=counts, mode="lines", name=f"{name} ({mask.sum():,})",
            line={"shape": "hv", "color": colour, "dash": dash, "width": 1.5}, fill="tozeroy",
            fillcolor=translucent(colour, 0.15), fillpattern=hatch, hovertemplate="%{customdata} samples, %{y:.2%}",
        )  # fmt: skip
    above = np.mean([metrics.auc(*pair) for pair in pairs])
    who = f"target {target}" if target is not None else f"{len(pairs)} targets pooled"
    sentence = f"{name_of(scores)}: a random member outscores a random non-member in {above:.1%} of cases ({who})"
    axes = {
        "xaxis_title": "score (larger = more likely a member)",
        "yaxis": {"title": "share of group", "tickformat": "~%"},
    }
    return finish(
        figure,
        sentence,
        "share of each group per bin; the outermost bins hold the tails",
        height=400,
        **axes,
    )


def _edges(value: np.ndarray, bins: int) -> np.ndarray:
    low, quarter, three_quarters, high = (
        np.quantile(value, [0, 0.25, 0.75, 1]) if len(value) else np.zeros(4)
    )
    if reach := 4 * (three_quarters - quarter):
        low, high = max(low, quarter - reach), min(high, three_quarters + reach)
    return (
        np.linspace(low, high, bins + 1)
        if high > low
        else np.linspace(low - 0.5, low + 0.5, bins + 1)
    )


def scatter(
    scores_x: Scores,
    scores_y: Scores,
    *,
    target: int | None = None,
    names: tuple[str, str] | None = None,
) -> go.Figure:
    """Every sample's score under one attack or pool against another, with both marginal distributions, for one target.

    The view of Figure 2 (middle) of the SNN study (Guan et al. 2025), with a spiking pool on one axis and an ordinary one on
    the other. Scores built from margins are logarithms already, so axes are linear. `target` is a row number in both, None
    the first; ValueError unless its membership agrees. At most 5,000 samples are drawn, evenly spaced in data order.
    """
    target = int(scores_x.targets[0]) if target is None else target
    x_row, y_row = row_of(scores_x, target), row_of(scores_y, target)
    x, y, member = scores_x.value[x_row], scores_y.value[y_row], scores_x.member[x_row]
    if not np.array_equal(member, scores_y.member[y_row]):
        raise ValueError(
            f"target {target} has other members in the two scores: compare pools that share their member masks"
        )
    names = names or (name_of(scores_x), name_of(scores_y))
    finite = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    shown = finite[np.linspace(0, len(finite) - 1, min(POINTS, len(finite))).astype(int)]
    figure = make_subplots(
        2, 2, column_widths=[0.84, 0.16], row_heights=[0.18, 0.82], horizontal_spacing=0.02, vertical_spacing=0.03,
        shared_xaxes=True, shared_yaxes=True,
    )  # fmt: skip
    for name, mask, colour, symbol, dash in (
        ("non-members", ~member, NON_MEMBER, "diamond-open", "dash"),
        ("members", member, MEMBER, "circle", "solid"),
    ):
        mine = shown[mask[shown]]
        points = go.Scattergl(
            x=x[mine].astype(np.float32), y=y[mine].astype(np.float32), customdata=mine.astype(np.int32), mode="markers",
            name=name, marker={"color": colour, "symbol": symbol, "size": 5, "opacity": 0.6},
            hovertemplate="sample %{customdata}: %{x:.3g}, %{y:.3g}",
        )  # fmt: skip
        figure.add_trace(points, row=2, col=1)
        style = {
            "mode": "lines",
            "line": {"color": colour, "dash": dash, "width": 1.5},
            "showlegend": False,
            "hoverinfo": "skip",
        }
        middle, density = _density(x[finite], mask[finite])
        figure.add_scatter(x=middle, y=density, **style, row=1, col=1)
        middle, density = _density(y[finite], mask[finite])
        figure.add_scatter(x=density, y=middle, **style, row=2, col=2)
    figure.update_xaxes(title_text=f"score: {names[0]}", row=2, col=1)
    figure.update_yaxes(title_text=f"score: {names[1]}", row=2, col=1)
    for row, col in ((1, 1), (2, 2)):
        figure.update_xaxes(showticklabels=False, ticks="", row=row, col=col)
        figure.update_yaxes(showticklabels=False, ticks="", row=row, col=col)
    agree = rank_correlation(x[finite], y[finite])
    sentence = f"{names[0]} and {names[1]} rank the samples of target {target} with correlation {agree:.2f}"
    return finish(
        figure,
        sentence,
        f"{len(shown):,} of {len(x):,} samples drawn; the margins hold all",
        height=560,
    )


def _density(value: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    edges = np.linspace(value.min(), value.max(), 61)
    return (edges[1:] + edges[:-1]) / 2, np.histogram(value[mask], edges, density=True)[0]


def gap_against_risk(scores: Scores | dict[str, Scores], *, fpr: float | None = None) -> go.Figure:
    """Generalisation gap against attack success, a point per target: Figure 1 of the NSDE study.

    Risk is the AUC, or with `fpr` the TPR at that false-positive rate. The line is what overfitting alone explains: the
    correctness attack has AUC exactly 1/2 + gap/2 (for a TPR: chance, TPR = FPR). Bars: for an AUC 1.96 standard errors of a
    null AUC, sqrt((n1 + n0 + 1) / (12 n1 n0)); for a TPR its Clopper-Pearson interval.
    """
    scores = named(scores)
    gaps = {name: one.accuracy[:, 0] - one.accuracy[:, 1] for name, one in scores.items()}
    every = np.concatenate(list(gaps.values()))
    ends = np.array([min(every.min(), 0.0), max(every.max(), 0.0) * 1.05 + 0.005])
    figure = go.Figure()
    figure.add_scatter(
        x=ends, y=_baseline(ends, fpr), mode="lines", line={"color": GREY, "dash": "dot", "width": 1.5}, hoverinfo="skip",
        name="1/2 + gap/2 (correctness)" if fpr is None else f"chance ({100 * fpr:g} %)",
    )  # fmt: skip
    above = 0
    for i, (name, one) in enumerate(scores.items()):
        risk, low, high = np.array([_risk(*pair, fpr) for pair in targets(one)]).T
        above += int((risk > _baseline(gaps[name], fpr)).sum())
        figure.add_scatter(
            x=gaps[name], y=risk, mode="markers", name=name, customdata=one.targets,
            marker={"color": LINES[i % len(LINES)], "symbol": MARKERS[i % len(MARKERS)], "size": 9},
            error_y={"array": high - risk, "arrayminus": risk - low, "thickness": 1, "width": 0},
            hovertemplate="target %{customdata}: gap %{x:.2%}, %{y:.3f}",
        )  # fmt: skip
    words, baseline = (
        ("AUC", "accuracy alone gives away")
        if fpr is None
        else (f"TPR at {100 * fpr:g} % FPR", "chance")
    )
    points = (
        f"{above} of {len(every)} points" if len(scores) > 1 else f"{above} of {len(every)} targets"
    )
    sentence = (
        f"{points} lie above what {baseline}" if fpr is None else f"{points} lie above chance"
    )
    note = f"train-test gaps from {every.min():.1%} to {every.max():.1%}; one point per target and attack; "
    note += "bars: 1.96 s.e. of a coin" if fpr is None else "bars: Clopper-Pearson, 95 %"
    axes = {
        "xaxis": {"title": "train accuracy - test accuracy", "tickformat": "~%"},
        "yaxis_title": words,
    }
    return finish(figure, sentence, note, height=420, **axes)


def _baseline(gap: np.ndarray, fpr: float | None) -> np.ndarray:
    return 0.5 + gap / 2 if fpr is None else np.full(len(gap), fpr)


def _risk(value: np.ndarray, member: np.ndarray, fpr: float | None) -> tuple[float, float, float]:
    if fpr is not None:
        at = metrics.tpr_at(value, member, fpr)
        return at.tpr, at.low, at.high
    auc, n1 = metrics.auc(value, member), int(member.sum())
    half = 1.96 * metrics.auc_null_error(n1, len(member) - n1)
    return auc, auc - half, auc + half


def summary(table: pd.DataFrame) -> go.Figure:
    """AUC of every attack in a `metrics.summary` table with its interval, best on top; dotted: the correctness attack.

    Of equally good attacks the first in the table is named. Open markers are rows that carry flags. An attack left of the
    dotted line finds less than accuracy alone gives away.
    """
    table = table[table.index != "max"]
    best = table.loc[table["auc"].astype(float).idxmax()]
    table = table[::-1].sort_values("auc", kind="stable")
    auc = table["auc"].astype(float)
    figure = go.Figure()
    figure.add_scatter(
        x=auc, y=table.index, mode="markers", showlegend=False, hovertemplate="%{y}: AUC %{x:.3f}",
        marker={"color": LINES[0], "size": 10, "symbol": ["circle-open" if flags else "circle" for flags in table["flags"]]},
        error_x={"array": table["auc_high"] - auc, "arrayminus": auc - table["auc_low"], "thickness": 1.5, "width": 4},
    )  # fmt: skip
    figure.add_vline(x=0.5, line={"color": GREY, "width": 1})
    if "correctness" in table.index:
        figure.add_vline(x=auc["correctness"], line={"color": GREY, "width": 1, "dash": "dot"})
    sentence = f"{best.name} separates best: AUC {best['auc']:.3f} (95 %: {best['auc_low']:.3f}-{best['auc_high']:.3f})"
    note = "bars 95 %; solid line: a coin; dotted: accuracy alone; open markers carry flags"
    return finish(figure, sentence, note, height=170 + 26 * len(table), xaxis_title="AUC")
