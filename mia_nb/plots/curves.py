"""ROC curves with their uncertainty and their resolution, and a result in words."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mia_nb import metrics
from mia_nb.metrics.curve import MIN_FALSE_POSITIVES
from mia_nb.metrics.uncertainty import interval
from mia_nb.plots.style import DASHES, GREY, LINES, finish, named, targets, translucent
from mia_nb.types import Scores

BANDS = 3  # with more curves than this only the best one shows its band


class Curve(NamedTuple):
    """One attack's ROC averaged over targets at common false-positive rates, with its pointwise band."""

    fpr: np.ndarray
    tpr: np.ndarray
    low: np.ndarray
    high: np.ndarray
    auc: float
    n1: int
    n0: int
    floor: float  # smallest false-positive rate above zero that the scores can realise


def verdict(row: pd.Series) -> str:
    """One row of `metrics.summary` in words, at its smallest measurable false-positive rate.

    "rmia finds 21.3 % of members at 10 % false alarms (95 %: 19.0-23.9), n0 = 898". Without such a rate, or where tied scores
    do not reach it, the AUC.
    """
    rates = sorted(
        float(name[4:]) for name in row.index if name.startswith("tpr@") and "_" not in name
    )
    x = next((x for x in rates if row[f"tpr@{x:g}_measurable"]), None)
    if x is not None and (row[f"tpr@{x:g}"] > 0 or row["fpr_floor"] <= x):
        low, high = 100 * row[f"tpr@{x:g}_low"], 100 * row[f"tpr@{x:g}_high"]
        return f"{_found(row.name, row[f'tpr@{x:g}'], x)} (95 %: {low:.1f}-{high:.1f}), n0 = {row['n0']:.0f}"
    interval = f"{row['auc']:.3f} (95 %: {row['auc_low']:.3f}-{row['auc_high']:.3f})"
    few = f"n0 = {row['n0']:.0f} is too few for a rate at few false alarms"
    tied = f"its tied scores allow no fewer than {100 * row['fpr_floor']:.0f} % false alarms"
    return f"{row.name} has AUC {interval}; {few if x is None else tied}"


def _found(name: str, tpr: float, fpr: float) -> str:
    return f"{name} finds {100 * tpr:.1f} % of members at {100 * fpr:g} % false alarms"


def roc(scores: Scores | dict[str, Scores], *, log: bool = True, level: float = 0.95) -> go.Figure:
    """ROC of one attack or of several, averaged over targets at equal false-positive rates; evaluator-side (oracle) thresholds.

    Log axes: the staircase tpr(x) = max TPR over vertices with FP <= floor(x n0), as in the tables. They start at 1 / n, so
    points at zero are left out, and what lies below 10 / n0 is shaded: fewer than ten false positives resolve nothing.
    Linear axes: straight lines between tie blocks, so that the area is the AUC.

    Band: pointwise at `level`, the wider of Clopper-Pearson at the mean TPR over *one* target's members (targets share
    samples) and Student t over pairs of targets; with more than three attacks only that of the highest AUC is drawn. Tables
    give the narrower intervals of `metrics.intervals`. Scores so tied that no rate between 0 and 10 / n0 exists say so in the
    legend.
    """
    return _rocs(named(scores), [log], level)


def roc_pair(scores: Scores | dict[str, Scores], *, level: float = 0.95) -> go.Figure:
    """`roc` twice, side by side: linear axes (the whole curve) and logarithmic axes (where an attacker lives)."""
    return _rocs(named(scores), [False, True], level)


def _rocs(scores: dict[str, Scores], views: list[bool], level: float) -> go.Figure:
    drawn = [{name: _curve(one, log, level) for name, one in scores.items()} for log in views]
    best = max(drawn[0], key=lambda name: drawn[0][name].auc)
    figure = make_subplots(1, len(views), horizontal_spacing=0.12)
    for column, (log, curves) in enumerate(zip(views, drawn, strict=True), start=1):
        _frame(figure, curves[best], log, column)
        for i, (name, curve) in enumerate(curves.items()):
            banded = name == best or len(curves) <= BANDS
            _add_curve(
                figure,
                name,
                curve,
                LINES[i % len(LINES)],
                DASHES[i % len(DASHES)],
                log,
                column,
                banded,
            )
    count = len(scores[best].targets)
    who = f"mean of {count} targets" if count > 1 else "one target: training randomness not covered"
    who += "; thresholds set with hindsight (oracle)"
    whose = "" if len(scores) <= BANDS else f" of {best}"
    note = f"{who}; band{whose}: {level:.0%}, pointwise, wider of Clopper-Pearson and Student t"
    layout = (
        {"height": 440}
        if len(views) == 1
        else {"height": 500, "legend": {"orientation": "h", "y": -0.18, "yanchor": "top"}}
    )
    return finish(figure, _sentence(best, drawn[-1][best]), note, **layout)


def _sentence(name: str, curve: Curve) -> str:
    x = next(
        (x for x in (0.001, 0.01, 0.1) if math.floor(x * curve.n0 + 1e-9) >= MIN_FALSE_POSITIVES),
        None,
    )
    if x is None:
        return f"{name}: AUC {curve.auc:.3f}; n0 = {curve.n0} is too few for a rate at few false alarms"
    at = np.searchsorted(curve.fpr, x + 1e-9, side="right") - 1
    return f"{_found(name, curve.tpr[at] if at >= 0 else 0.0, x)}, n0 = {curve.n0}"


def _curve(scores: Scores, log: bool, level: float) -> Curve:
    """Average over targets on the false-positive counts that `metrics.thin` keeps of any of them."""
    pairs = targets(scores)
    rocs, n0s = (
        [metrics.roc(*pair) for pair in pairs],
        [int((~member).sum()) for _, member in pairs],
    )
    n0, n1 = min(n0s), min(int(member.sum()) for _, member in pairs)
    counts = np.unique(
        np.concatenate(
            [np.rint(metrics.thin(r, n).fpr * n) for r, n in zip(rocs, n0s, strict=True)]
        )
    )
    fpr = counts[counts <= n0] / n0
    if log:
        last = [
            np.searchsorted(r.fpr * n, np.floor(fpr * n + 1e-9) + 0.5) - 1
            for r, n in zip(rocs, n0s, strict=True)
        ]
        rows = np.array([r.tpr[i] for r, i in zip(rocs, last, strict=True)])
    else:
        rows = np.array(
            [np.interp(fpr, r.fpr, r.tpr) for r in rocs]
        )  # at a vertical rise np.interp gives its upper end
    tpr, (low, high) = rows.mean(0), band(rows, scores.pair, n1, level)
    if log:
        keep = (fpr > 0) & (tpr > 0)
        fpr, tpr, low, high = fpr[keep], tpr[keep], np.maximum(low[keep], 1 / n1), high[keep]
    else:
        fpr, tpr, low, high = (np.concatenate([[0.0], line]) for line in (fpr, tpr, low, high))
    auc = float(np.mean([metrics.auc(*pair) for pair in pairs]))
    return Curve(
        fpr, tpr, low, high, auc, n1, n0, floor=float(np.mean([r.fpr[r.fpr > 0][0] for r in rocs]))
    )


def band(
    rows: np.ndarray, pair: np.ndarray, n1: int, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Interval of the mean of rows (targets, points): the wider of Clopper-Pearson on n1 trials and Student t over pairs."""
    mean = rows.mean(0)
    low = metrics.clopper_pearson(np.floor(mean * n1 + 1e-9), n1, confidence=level)[0]
    high = metrics.clopper_pearson(np.ceil(mean * n1 - 1e-9), n1, confidence=level)[1]
    over_pairs = interval(
        rows, pair, confidence=level
    )  # NaN with one pair, which fmin and fmax pass over
    return np.clip(np.fmin(low, over_pairs[0]), 0, 1), np.clip(np.fmax(high, over_pairs[1]), 0, 1)


def _add_curve(figure, name, curve, colour, dash, log, column, banded) -> None:
    shape = "hv" if log else "linear"
    place = {
        "x": curve.fpr.astype(np.float32),
        "mode": "lines",
        "legendgroup": name,
        "row": 1,
        "col": column,
    }
    if banded:
        edge = {
            "line": {"width": 0, "shape": shape},
            "showlegend": False,
            "hoverinfo": "skip",
        } | place
        figure.add_scatter(y=curve.low.astype(np.float32), **edge)
        figure.add_scatter(
            y=curve.high.astype(np.float32),
            fill="tonexty",
            fillcolor=translucent(colour, 0.18),
            **edge,
        )
    tied = f", ties: no FPR below {curve.floor:.2g}" if curve.floor > 10 / curve.n0 else ""
    figure.add_scatter(
        y=curve.tpr.astype(np.float32), name=f"{name}  AUC {curve.auc:.3f}{tied}", showlegend=column == 1,
        line={"color": colour, "dash": dash, "shape": shape, "width": 2},
        hovertemplate="%{y:.2%} of members at %{x:.3%} false alarms", **place,
    )  # fmt: skip


def _frame(figure: go.Figure, curve: Curve, log: bool, column: int) -> None:
    """Axes, diagonal, and the region that the number of non-members cannot resolve."""
    place = {"row": 1, "col": column}
    start_x, start_y = (1 / curve.n0, 1 / curve.n1) if log else (0.0, 0.0)
    ends = [max(start_x, start_y), 1]
    line = {"color": GREY, "dash": "dot", "width": 1}
    figure.add_scatter(
        x=ends,
        y=ends,
        mode="lines",
        line=line,
        name="chance",
        showlegend=False,
        hoverinfo="skip",
        **place,
    )
    end = min(1.0, 10 / curve.n0)
    figure.add_vrect(
        x0=start_x,
        x1=end,
        fillcolor=GREY,
        opacity=0.14,
        line_width=0,
        name="below resolution",
        **place,
    )
    if log:
        text = {
            "text": "below<br>resolution",
            "font": {"size": 11},
            "showarrow": False,
            "align": "right",
        }
        corner = {
            "x": math.log10(end),
            "xanchor": "right",
            "y": math.log10(start_y),
            "yanchor": "bottom",
        }
        figure.add_annotation(**text, **corner, **place)
    axis = {"type": "log", "dtick": 1, "tickformat": "~%"} if log else {"tickformat": "~%"}
    x_range, y_range = (
        [math.log10(start), 0.01] if log else [0, 1.005] for start in (start_x or 1, start_y or 1)
    )
    figure.update_xaxes(range=x_range, title_text="false alarms (FPR)", **axis, **place)
    figure.update_yaxes(range=y_range, title_text="members found (TPR)", **axis, **place)
