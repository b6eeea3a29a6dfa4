"""ROC curves of attacks with their uncertainty and their resolution, and a result in words."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mia_nb import attacks, metrics
from mia_nb.checks import checked
from mia_nb.examples import load_example
from mia_nb.metrics.curve import (
    MIN_FALSE_POSITIVES,
    Roc,
    allowed_false_positives,
    auc_of_counts,
    roc_counts,
    thin,
)
from mia_nb.metrics.tables import by_attack
from mia_nb.metrics.uncertainty import interval
from mia_nb.plots import marks
from mia_nb.plots.scores import named, targets
from mia_nb.plots.style import BELOW, DOTTED, GREY, Look, clauses, finish, looks
from mia_nb.types import Scores

LEVEL = 0.95  # confidence of bands, pointwise, and of all comparisons with bounds together
BANDS = 3  # with more curves only the best one shows its band
WIDE_GAP = 0.1  # between two false positive rates; a wider one is named in the legend
RANKED_AT = (0.001, 0.01, 0.1)  # false positive rates
AXES = ("false positive rate", "true positive rate")


class Curve(NamedTuple):
    """One attack's ROC averaged over targets at common false positive rates, with its pointwise
    band.
    """

    fpr: np.ndarray
    tpr: np.ndarray
    low: np.ndarray
    high: np.ndarray
    auc: float
    n1: int
    n0: int
    floor: float  # smallest false positive rate above zero that the scores can realise
    gap: tuple[float, float]  # neighbouring rates with most between them; means over targets


def verdict(table: pd.DataFrame, attack: str) -> str:
    """One attack of a `metrics.summary` in words, at its smallest measurable false positive rate.

    "RMIA finds 21.3 % of members at 10 % FPR (95 %: 19.0-23.9), n0 = 898". Without such a rate, or
    where tied scores do not reach it, the sentence gives the AUC.

    Parameters:
        table: a `metrics.summary`
        attack: name of an attack in the table

    Returns:
        One sentence without a full stop.
    """
    aucs = by_attack(table, "auc")
    if attack not in aucs.index:
        raise ValueError(f"attack={attack!r}: the table has {', '.join(map(str, aucs.index))}")
    name = attacks.in_words(attack)
    rates = table[(table["metric"] == "tpr") & (table["attack"] == attack) & table["measurable"]]
    if len(rates):
        tpr = rates.sort_values("fpr").iloc[0]
        if tpr["value"] > 0 or tpr["fpr_floor"] <= tpr["fpr"]:
            digits = _digits(tpr["value"])
            ends = f"(95 %: {100 * tpr['low']:.{digits}f}-{100 * tpr['high']:.{digits}f})"
            return f"{_finds(name, tpr['value'], tpr['fpr'])} {ends}, n0 = {tpr['n0']:,.0f}"
    auc = aucs.loc[attack]
    sentence = f"{name} has AUC {auc['value']:.3f} (95 %: {auc['low']:.3f}-{auc['high']:.3f})"
    reason = _why_no_rate(auc["n0"], auc["fpr_floor"], enough=len(rates) > 0)
    return f"{sentence}; {reason}"


def _why_no_rate(n0: float, floor: float, *, enough: bool) -> str:
    """Why an attack has no rate at a low FPR: tied scores, where non-members are enough, else too
    few non-members.
    """
    if enough:
        return f"its tied scores allow no FPR below {100 * floor:.0f} %"
    return f"n0 = {n0:,.0f} is too few for a rate at a low FPR"


def _finds(name: str, tpr: float, fpr: float) -> str:
    return f"{name} finds {100 * tpr:.{_digits(tpr)}f} % of members at {100 * fpr:g} % FPR"


def _digits(rate: float) -> int:
    """The number of decimals of a rate in per cent: 21.3 % and 0.58 %."""
    return 1 if rate >= 0.01 else 2


def roc_pair(scores: Scores | dict[str, Scores]) -> go.Figure:
    """ROC of one attack or of several, averaged over targets at equal false positive rates, side by
    side on linear axes (the whole curve) and on logarithmic axes (where an attacker lives);
    evaluator-side (oracle) thresholds.

    Log axes: the staircase tpr(x) = max TPR over vertices with FP <= floor(x n0), as in the tables.
    They start at 1 / n, so points at zero are left out. The region below 10 / n0 is shaded, as
    fewer than ten false positives resolve nothing. Linear axes: straight lines between tie blocks,
    so that the area is the AUC.

    Band: the wider of Clopper-Pearson at the mean TPR over *one* target's members (targets share
    samples) and Student t over pairs of targets, 95 %, pointwise. Tables give the narrower
    intervals of `metrics.intervals`. Scores so tied that no rate between 0 and 10 / n0 exists, or
    none within a tenth of the axis, say so in the legend.

    Parameters:
        scores: scores of one attack, or {name: Scores}. The attack that finds most at the lowest
            rate that the non-members resolve gives the title and stands first in the legend; with
            more than three attacks it alone has a band

    Returns:
        A plotly figure; `.write_image("roc.pdf")` saves it, as SVG or PNG too, with the extra
        `figures` (kaleido) and a Chrome or Chromium.
    """
    scores = named(scores)
    linear = {}
    logarithmic = {}
    for name, attack in scores.items():
        counted = counted_rocs(attack)
        linear[name] = linear_curve(counted)
        logarithmic[name] = log_curve(counted)
    sentence, order = _ranked(logarithmic)
    best = order[0]
    style_of = looks(scores)
    figure = make_subplots(1, 2, horizontal_spacing=0.12)
    for column, log, curves in ((1, False, linear), (2, True, logarithmic)):
        add_plane(figure, curves[best], log, column)
        for name in order:
            banded = name == best or len(order) <= BANDS
            look = style_of[name]
            add_roc(figure, name, curves[name], look, log=log, column=column, banded=banded)
    count = len(scores[best].targets)
    averaged_over = "one target: training randomness not covered"
    method = "Clopper-Pearson"
    if count > 1:
        averaged_over = f"mean of {count} targets"
        method = "wider of Clopper-Pearson and Student t"
    band_of = "band" if len(scores) <= BANDS else f"band of {best}"
    note = clauses(
        averaged_over,
        "thresholds set with hindsight (oracle)",
        f"{band_of}: {LEVEL:.0%}, pointwise, {method}",
    )
    return finish(figure, sentence, note, height=500, legend=BELOW)


@checked
def shipped_roc(pools: list[str], names: list[str] = ("rmia",)) -> go.Figure:
    """`roc_pair` of signals that come with the package: nothing is trained.

    Parameters:
        pools: CIFAR-10 pools of `examples`, such as "resnet14"; of each as many models as the
            smallest has.
        names: attacks; several attacks only for one pool.
    """
    signals_of_pool = {pool: load_example(f"cifar10/{pool}") for pool in pools}
    count = min(len(signals.margin) for signals in signals_of_pool.values())
    scores = {}
    for pool, signals in signals_of_pool.items():
        signals = signals.select(models=slice(count))
        for name in names:
            label = f"{attacks.in_words(name)} on {pool}" if len(pools) > 1 else name
            scores[label] = attacks.score(name, signals)
    return roc_pair(scores).for_each_trace(_shorten)


def _shorten(trace: go.Scatter) -> None:
    """Round a trace to four digits, as a notebook stores every number as text."""
    trace.update({axis: [float(f"{value:.4g}") for value in trace[axis]] for axis in "xy"})


def _ranked(curves: dict[str, Curve]) -> tuple[str, list[str]]:
    """(result of the best attack in words, attacks from best to worst). The order is by TPR at the
    lowest of the RANKED_AT rates that the non-members resolve and ties allow, or else by AUC.
    """
    n0 = min(curve.n0 for curve in curves.values())
    for fpr in RANKED_AT:
        if not is_resolved(fpr, n0):
            continue
        tpr = {name: _reached(curve, fpr) for name, curve in curves.items()}
        order = sorted(curves, key=lambda name: (tpr[name], curves[name].auc), reverse=True)
        best = order[0]
        if tpr[best] > 0 or curves[best].floor <= fpr:
            return f"{_finds(best, tpr[best], fpr)}, n0 = {curves[best].n0:,}", order
    order = sorted(curves, key=lambda name: curves[name].auc, reverse=True)
    best = order[0]
    curve = curves[best]
    reason = _why_no_rate(curve.n0, curve.floor, enough=is_resolved(RANKED_AT[-1], n0))
    return f"{best}: AUC {curve.auc:.3f}; {reason}", order


def is_resolved(fpr: float, n0: int) -> bool:
    """Whether n0 non-members allow enough false positives at this rate."""
    return bool(allowed_false_positives(fpr, n0) >= MIN_FALSE_POSITIVES)


def _reached(curve: Curve, fpr: float) -> float:
    """The TPR of a staircase at this FPR, 0 before its first point."""
    last = np.searchsorted(curve.fpr, fpr + 1e-9, side="right") - 1
    return float(curve.tpr[last]) if last >= 0 else 0.0


class Counted(NamedTuple):
    """The ROC of every target, counted once for all views of it."""

    rocs: list[tuple[Roc, int]]  # (curve, number n0 of non-members) of each target
    n1: int  # smallest number of members
    auc: float  # mean over targets
    pair: np.ndarray  # (targets,)


def counted_rocs(scores: Scores) -> Counted:
    """The ROC curves of some scores."""
    rocs = []
    members = []
    areas = []
    for score, member in targets(scores):
        tp, fp, threshold = roc_counts(score, member)
        rocs.append((Roc(fp / fp[-1], tp / tp[-1], threshold), int(fp[-1])))
        members.append(int(tp[-1]))
        areas.append(auc_of_counts(tp, fp))
    return Counted(rocs, min(members), float(np.mean(areas)), scores.pair)


def linear_curve(counted: Counted) -> Curve:
    """ROC averaged over targets, with straight lines between tie blocks, from zero on."""
    fpr = _common_rates(counted)
    # at a vertical rise np.interp gives the upper end
    rows = np.array([np.interp(fpr, roc.fpr, roc.tpr) for roc, _ in counted.rocs])
    curve = _averaged(counted, fpr, rows)
    return curve._replace(
        fpr=np.pad(curve.fpr, (1, 0)),
        tpr=np.pad(curve.tpr, (1, 0)),
        low=np.pad(curve.low, (1, 0)),
        high=np.pad(curve.high, (1, 0)),
    )


def log_curve(counted: Counted) -> Curve:
    """ROC averaged over targets for logarithmic axes: the staircase of the tables, without its
    points at zero and at rates that the ties of a target do not allow.
    """
    fpr = _common_rates(counted)
    rows = np.array([_staircase(roc, n0, fpr) for roc, n0 in counted.rocs])
    curve = _averaged(counted, fpr, rows)
    drawn = (fpr > 0) & (curve.tpr > 0)
    highest_floor = max(_floor(roc) for roc, _ in counted.rocs)
    if highest_floor > 10 / curve.n0:
        # below it, the mean is no rate that all targets reach
        drawn &= fpr >= highest_floor
    return curve._replace(
        fpr=fpr[drawn],
        tpr=curve.tpr[drawn],
        low=np.maximum(curve.low[drawn], 1 / curve.n1),
        high=curve.high[drawn],
    )


def _common_rates(counted: Counted) -> np.ndarray:
    """False positive rates at all counts that `metrics.curve.thin` keeps of the targets' curves."""
    kept = [np.rint(thin(roc, n0).fpr * n0) for roc, n0 in counted.rocs]
    false_positives = np.unique(np.concatenate(kept))
    fewest = min(n0 for _, n0 in counted.rocs)
    return false_positives[false_positives <= fewest] / fewest


def _averaged(counted: Counted, fpr: np.ndarray, rows: np.ndarray) -> Curve:
    """The mean of the targets' rows (targets, points) of TPR at these FPRs (points,)."""
    low, high = band(rows, counted.pair, counted.n1)
    return Curve(
        fpr=fpr,
        tpr=rows.mean(0),
        low=low,
        high=high,
        auc=counted.auc,
        n1=counted.n1,
        n0=min(n0 for _, n0 in counted.rocs),
        floor=float(np.mean([_floor(roc) for roc, _ in counted.rocs])),
        gap=tuple(np.mean([_widest_gap(roc) for roc, _ in counted.rocs], axis=0).tolist()),
    )


def _floor(roc: Roc) -> float:
    """The smallest false positive rate above zero of a target's curve."""
    return roc.fpr[roc.fpr > 0][0]


def _widest_gap(roc: Roc) -> tuple[float, float]:
    """The two neighbouring false positive rates of a target's curve with the most between them."""
    widest = int(np.diff(roc.fpr).argmax())
    return roc.fpr[widest], roc.fpr[widest + 1]


def _ties_in_words(curve: Curve) -> str:
    """Which false positive rates no threshold gives as scores are tied, or nothing."""
    resolved = 10 / curve.n0
    missing = []
    if curve.floor > resolved:
        missing.append(f"below {curve.floor:.2g}")
    start, end = curve.gap
    if start > 0 and end - start > max(WIDE_GAP, resolved):
        missing.append(f"from {start:.2g} to {end:.2g}")
    return f", ties: no FPR {' or '.join(missing)}" if missing else ""


def _staircase(roc: Roc, n0: int, fpr: np.ndarray) -> np.ndarray:
    """TPR of the best vertex within each false positive rate."""
    last = np.searchsorted(roc.fpr * n0, allowed_false_positives(fpr, n0) + 0.5) - 1
    return roc.tpr[last]


def band(rows: np.ndarray, pair: np.ndarray, n1: int) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of the mean of rows, pointwise: the wider of Clopper-Pearson and Student t over
    pairs.

    Parameters:
        rows: (targets, points), rates of each target
        pair: (targets,), the pair that a target belongs to
        n1: number of members behind a rate
    """
    mean = rows.mean(0)
    low, _ = metrics.clopper_pearson(np.floor(mean * n1 + 1e-9), n1, confidence=LEVEL)
    _, high = metrics.clopper_pearson(np.ceil(mean * n1 - 1e-9), n1, confidence=LEVEL)
    low_over_pairs, high_over_pairs = interval(rows, pair, confidence=LEVEL)
    # fmin and fmax ignore the NaN of a single pair
    low = np.clip(np.fmin(low, low_over_pairs), 0, 1)
    high = np.clip(np.fmax(high, high_over_pairs), 0, 1)
    return low, high


def add_roc(
    figure: go.Figure,
    name: str,
    curve: Curve,
    style: Look,
    *,
    log: bool,
    column: int = 1,
    banded: bool = True,
) -> None:
    """Add one curve with its band to a column of a figure; the first column has the legend."""
    shape = "hv" if log else "linear"
    x = curve.fpr.astype(np.float32)
    place = {"legendgroup": name, "row": 1, "col": column}
    if banded:
        low = curve.low.astype(np.float32)
        high = curve.high.astype(np.float32)
        marks.band(figure, x, low, high, style.colour, opacity=0.18, shape=shape, **place)
    figure.add_scatter(
        x=x,
        y=curve.tpr.astype(np.float32),
        mode="lines",
        name=f"{name}  AUC {curve.auc:.3f}{_ties_in_words(curve)}",
        showlegend=column == 1,
        line={"color": style.colour, "dash": style.dash, "shape": shape, "width": 2},
        hovertemplate="%{y:.2%} of members at %{x:.3%} FPR",
        **place,
    )


def add_plane(figure: go.Figure, curve: Curve, log: bool, column: int = 1) -> None:
    """Add axes, diagonal, and the region that the number of non-members cannot resolve.

    Parameters:
        curve: the curve whose members and non-members set where logarithmic axes start
    """
    place = {"row": 1, "col": column}
    end = min(1.0, 10 / curve.n0)  # of the unresolved region
    x_start = 0.0
    y_start = 0.0
    x_axis = {"range": [0, 1.005], "tickformat": "~%"}
    y_axis = x_axis
    if log:
        x_start = 1 / curve.n0
        y_start = 1 / curve.n1
        decades = {"type": "log", "dtick": 1, "tickformat": "~%"}
        x_axis = decades | {"range": [math.log10(x_start), 0.01]}
        y_axis = decades | {"range": [math.log10(y_start), 0.01]}
    diagonal = [max(x_start, y_start), 1]
    figure.add_scatter(
        x=diagonal,
        y=diagonal,
        mode="lines",
        line=DOTTED,
        name="chance",
        showlegend=False,
        hoverinfo="skip",
        **place,
    )
    figure.add_vrect(
        x0=x_start,
        x1=end,
        fillcolor=GREY,
        opacity=0.14,
        line_width=0,
        name="below resolution",
        **place,
    )
    if log:
        figure.add_annotation(
            text="below<br>resolution",
            font={"size": 11},
            showarrow=False,
            align="right",
            x=math.log10(end),
            xanchor="right",
            y=0,  # the exponent of 100 %, above the curves
            yanchor="top",
            **place,
        )
    figure.update_xaxes(title_text=AXES[0], **x_axis, **place)
    figure.update_yaxes(title_text=AXES[1], **y_axis, **place)
