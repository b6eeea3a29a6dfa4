"""Scores: their distributions, one attack against another, and the AUC of every attack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from scipy.special import ndtri

from mia_nb import attacks, metrics
from mia_nb.checks import one_of, shown
from mia_nb.metrics.memorised_samples import rank_correlation
from mia_nb.metrics.tables import by_attack
from mia_nb.plots import marks
from mia_nb.plots.scores import name_of, row_of, targets
from mia_nb.plots.style import DOTTED, LINES, MEMBERS, NON_MEMBERS, THIN, finish
from mia_nb.types import Scores

RATES = [0.99, 0.9, 0.5, 0.1, 0.01, 0.001, 1e-4]  # false positive rates marked on an axis of ranks
POINTS = 5000  # markers that a browser draws without a pause


def histogram(
    scores: Scores, *, target: int | None = None, bins: int = 100, scale: str = "score"
) -> go.Figure:
    """Scores of members and of non-members, each as a share of its own group, in bins counted here
    and not in the browser.

    Bins reach at most 4 interquartile ranges beyond the quartiles (all of a Gaussian); the
    outermost two hold the tails, infinite scores included. Where tails are long, the scale "rank"
    shows more: each score stands at the false positive rate of a threshold there, on an axis that
    makes the non-members normal.

    Parameters:
        scores: of one attack
        target: row number in the target pool; None pools all targets (their scores share a scale
            only if the attack calibrates them)
        bins: number of bins
        scale: scale of the axis, "score" or "rank" (among the non-members)

    Raises:
        ValueError: for a target that was not attacked, and for another scale.
    """
    if not isinstance(scores, Scores):
        raise ValueError(f"scores={shown(scores)}: wanted one Scores, as mia.score gives it")
    pairs = targets(scores)
    whose = f"{len(pairs)} targets pooled"
    if target is not None:
        pairs = [pairs[row_of(scores, target)]]
        whose = f"target {target}"
    value = np.concatenate([score for score, _ in pairs])
    member = np.concatenate([member_of_target for _, member_of_target in pairs])
    axis: dict[str, Any] = {"title": "score (larger = more likely a member)"}
    one_of("scale", scale, ("score", "rank"))
    if scale == "rank":
        order = np.argsort(value)  # searchsorted takes sorted scores ten times faster
        member = member[order]
        value = value[order]
        value = rank_among(value[~member])(value)
        axis = {
            "title": "FPR of a threshold here, % (right: more suspicious)",
            "tickangle": 0,
            "tickvals": (-ndtri(RATES)).tolist(),
            "ticktext": [f"{100 * rate:g}" for rate in RATES],
        }
    edges = _edges(value[np.isfinite(value)], bins)
    pooled = f" of {len(pairs)} targets" if len(pairs) > 1 else ""
    figure = go.Figure()
    for group, mask in ((NON_MEMBERS, ~member), (MEMBERS, member)):
        counts = marks.step_counts(np.clip(value[mask], edges[0], edges[-1]), edges)
        figure.add_scatter(
            x=edges,
            y=counts / mask.sum(),
            customdata=counts,
            mode="lines",
            name=f"{group.name} ({mask.sum():,}{pooled})",
            hovertemplate="%{customdata} samples, %{y:.2%}",
            line={"shape": "hv", "color": group.colour, "dash": group.dash, "width": 1.5},
            **marks.hatched(group.colour, group.pattern, 0.15),
        )
    auc = np.mean([metrics.auc(*pair) for pair in pairs])
    return finish(
        figure,
        f"{name_of(scores)}: a random member outscores a random non-member in {auc:.1%} of cases"
        f" ({whose})",
        "share of each group per bin; the outermost bins hold the tails",
        height=400,
        hovermode="x",
        xaxis=axis,
        yaxis={"title": "share of group", "tickformat": "~%"},
    )


def rank_among(others: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """A function of scores: the normal quantile of the share of `others` (N,) below each.

    NaN stays NaN. Shares end half a sample from 0 and 1.
    """
    others = np.sort(others[~np.isnan(others)])
    edge = 0.5 / len(others)

    def quantile(value: np.ndarray) -> np.ndarray:
        below = np.searchsorted(others, value) / len(others)
        return np.where(np.isnan(value), np.nan, ndtri(np.clip(below, edge, 1 - edge)))

    return quantile


def _edges(value: np.ndarray, bins: int) -> np.ndarray:
    """Edges (bins + 1,) of bins from the smallest to the largest finite score, but no further than
    4 interquartile ranges beyond the quartiles.
    """
    if not len(value):
        return marks.bins(0.0, 0.0, bins)
    low, first_quartile, third_quartile, high = np.quantile(value, [0, 0.25, 0.75, 1])
    reach = 4 * (third_quartile - first_quartile)
    if reach > 0:
        low = max(low, first_quartile - reach)
        high = min(high, third_quartile + reach)
    return marks.bins(low, high, bins)


def thinned(x: np.ndarray, y: np.ndarray, points: int = POINTS) -> tuple[np.ndarray, int]:
    """(indices of the points x, y (N,) that a scatter draws, evenly spaced in data order; number of
    finite points).
    """
    finite = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    drawn = np.linspace(0, len(finite) - 1, min(points, len(finite))).astype(int)
    return finite[drawn], len(finite)


def group_points(
    x: np.ndarray, y: np.ndarray, member: np.ndarray, drawn: np.ndarray, numbers: np.ndarray
) -> list[dict]:
    """The points of a scatter, non-members and members, as traces of plotly's JSON. The customdata
    of a point is its sample's number.

    Parameters:
        x: (N,) of all samples
        y: (N,)
        member: (N,) bool
        drawn: indices of the samples to draw
        numbers: (N,) numbers of the samples
    """
    traces = []
    for group, mask, symbol in (
        (NON_MEMBERS, ~member, "diamond-open"),
        (MEMBERS, member, "circle"),
    ):
        of_group = drawn[mask[drawn]]
        traces.append(
            {
                "type": "scattergl",
                "mode": "markers",
                "name": group.name,
                "marker": {"color": group.colour, "symbol": symbol, "size": 5, "opacity": 0.6},
                "hovertemplate": "sample %{customdata}: %{x:.3g}, %{y:.3g}",
                "x": x[of_group].astype(np.float32),
                "y": y[of_group].astype(np.float32),
                "customdata": numbers[of_group].astype(np.int32),
            }
        )
    return traces


def scatter(
    scores_x: Scores,
    scores_y: Scores,
    *,
    target: int | None = None,
    names: tuple[str, str] | None = None,
) -> go.Figure:
    """Every sample's score under one attack or pool against another, with both marginal
    distributions, for one target.

    The view of Figure 2 (middle) of the SNN study (Guan et al. 2025), with a spiking pool on one
    axis and an ordinary one on the other. Scores built from margins are logarithms already, so axes
    are linear. At most 5,000 samples are drawn, evenly spaced in data order.

    Parameters:
        scores_x: of one attack
        scores_y: of another, or of another pool
        target: row number in both pools, None the first
        names: names of the axes, None those of the attacks

    Raises:
        ValueError: unless the membership of the target agrees in both.
    """
    if target is None:
        target = int(scores_x.targets[0])
    x_row = row_of(scores_x, target)
    y_row = row_of(scores_y, target)
    x = scores_x.value[x_row]
    y = scores_y.value[y_row]
    member = scores_x.member[x_row]
    if not np.array_equal(member, scores_y.member[y_row]):
        raise ValueError(
            f"target {target} has other members in the two scores: compare pools that share their"
            " member masks"
        )
    x_name, y_name = names or (name_of(scores_x), name_of(scores_y))
    drawn, _ = thinned(x, y)
    finite = np.isfinite(x) & np.isfinite(y)
    figure = make_subplots(
        2,
        2,
        column_widths=[0.84, 0.16],
        row_heights=[0.18, 0.82],
        horizontal_spacing=0.02,
        vertical_spacing=0.03,
        shared_xaxes=True,
        shared_yaxes=True,
    )
    points = group_points(x, y, member, drawn, np.arange(len(x)))
    groups = ((NON_MEMBERS, ~member), (MEMBERS, member))
    for trace, (group, mask) in zip(points, groups, strict=True):
        figure.add_trace(trace, row=2, col=1)
        line = {"color": group.colour, "dash": group.dash, "width": 1.5}
        style = {"mode": "lines", "line": line, "showlegend": False, "hoverinfo": "skip"}
        middle, density = _density(x[finite], mask[finite])
        figure.add_scatter(x=middle, y=density, **style, row=1, col=1)
        middle, density = _density(y[finite], mask[finite])
        figure.add_scatter(x=density, y=middle, **style, row=2, col=2)
    bare = {"showticklabels": False, "ticks": ""}
    correlation = rank_correlation(x[finite], y[finite])
    return finish(
        figure,
        f"{x_name} and {y_name} rank the samples of target {target} with correlation"
        f" {correlation:.2f}",
        f"{len(drawn):,} of {len(x):,} samples drawn; the margins hold all",
        height=560,
        # axes 1: above the scatter, 2: the empty corner, 3: the scatter, 4: right of the scatter
        xaxis=bare,
        yaxis=bare,
        xaxis3={"title": {"text": f"score: {x_name}"}},
        yaxis3={"title": {"text": f"score: {y_name}"}},
        xaxis4=bare,
        yaxis4=bare,
    )


def _density(value: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(middles of 60 bins over all values (N,), density of those that the mask (N,) marks)."""
    edges = np.linspace(value.min(), value.max(), 61)
    density, _ = np.histogram(value[mask], edges, density=True)
    return (edges[1:] + edges[:-1]) / 2, density


def summary(table: pd.DataFrame) -> go.Figure:
    """AUC of every attack in a `metrics.summary` table with its interval, best on top; dotted: the
    correctness attack.

    The title names the first of equally good attacks. Open markers are rows that carry flags. An
    attack left of the dotted line finds less than accuracy alone gives away.

    Parameters:
        table: of `metrics.summary`
    """
    rows = by_attack(table, "auc")
    rows = rows[rows.index != "max"]  # the largest value of any attack, which is no attack
    best = rows.loc[rows["value"].idxmax()]
    # reversed, so that of equal attacks the first of the table is drawn on top
    rows = rows[::-1].sort_values("value", kind="stable")
    figure = go.Figure()
    figure.add_scatter(
        x=rows["value"],
        y=[attacks.in_words(attack) for attack in rows.index],
        mode="markers",
        showlegend=False,
        hovertemplate="%{y}: AUC %{x:.3f}",
        marker={
            "color": LINES[0],
            "size": 10,
            "symbol": ["circle-open" if flags else "circle" for flags in rows["flags"]],
        },
        error_x=marks.bars(rows["value"], rows["low"], rows["high"], thickness=1.5, width=4),
    )
    figure.add_vline(x=0.5, line=THIN)
    if "correctness" in rows.index:
        figure.add_vline(x=rows.loc["correctness", "value"], line=DOTTED)
    return finish(
        figure,
        f"{attacks.in_words(best.name)} separates best: AUC {best['value']:.3f} (95 %:"
        f" {best['low']:.3f}-{best['high']:.3f})",
        "bars 95 %; solid line: random guessing; dotted: accuracy alone; open markers carry flags",
        height=170 + 26 * len(rows),
        xaxis_title="AUC",
    )
