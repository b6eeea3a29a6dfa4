"""AUC against the generalisation gap, which explains a part of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mia_nb import metrics
from mia_nb.metrics.curve import auc_null_error
from mia_nb.metrics.frontier_table import frontier_means
from mia_nb.plots.marks import bars
from mia_nb.plots.scores import name_of, named, targets
from mia_nb.plots.style import BELOW, DOTTED, Look, clauses, finish, listed, look, looks
from mia_nb.plots.tables import covered, metric_name
from mia_nb.types import Scores

GAP_BARS = "bars: 1.96 s.e. of random guessing"


def gap_against_risk(scores: Scores | dict[str, Scores]) -> go.Figure:
    """Generalisation gap against AUC, a point per target: Figure 1 of the NSDE study.

    The line is what overfitting alone explains: the correctness attack has AUC exactly 1/2 + gap/2.
    Bars: 1.96 standard errors of a null AUC, sqrt((n1 + n0 + 1) / (12 n1 n0)).

    Parameters:
        scores: of one attack, or {name: Scores}
    """
    scores = named(scores)
    gaps = np.concatenate([_gap(of_models) for of_models in scores.values()])
    figure = go.Figure()
    add_overfitting(figure, gaps)
    style_of = looks(scores)
    above = 0
    for name, of_models in scores.items():
        aucs = _add_gaps(figure, style_of[name], name, of_models)
        above += int((aucs > _overfitting(_gap(of_models))).sum())
    return finish(
        figure,
        f"{above} of {len(gaps)} {'points' if len(scores) > 1 else 'targets'} lie above"
        " what accuracy alone gives away",
        clauses(
            f"train-test gaps from {gaps.min():.1%} to {gaps.max():.1%}",
            "one point per target and attack",
            GAP_BARS,
        ),
        height=420,
        xaxis={"title": metric_name("gap"), "tickformat": "~%"},
        yaxis_title="AUC",
    )


def families_gap(scores: dict[str, Scores]) -> go.Figure:
    """AUC against the generalisation gap, a point per target, a colour per family.

    Points, bars and the line of overfitting alone are those of `gap_against_risk`. The legend gives
    each family's mean gap and mean AUC with the 95 % ends of
    `metrics.frontier_table.frontier_means`; hovers give the numbers of members and non-members.
    Families apart along the line differ in overfitting, families apart across it in what they give
    away beyond overfitting.

    Parameters:
        scores: {family: Scores of one attack}

    Raises:
        ValueError: for no family.

    Source: Figures 1 and 8 of Hong, Wu, Gruber and Lee (arXiv 2501.06686).
    """
    if not scores:
        raise ValueError("families_gap got no family: pass {family: attacks.score(...)}")
    figure = go.Figure()
    add_overfitting(figure, np.concatenate([_gap(of_models) for of_models in scores.values()]))
    # families are not compared target by target here, so that their masks may differ;
    # {family: {epoch: {attack: scores}}}, of which only the family matters
    means = pd.concat(
        frontier_means(metrics.frontier({name: {0: {"": of_models}}}, ()))
        for name, of_models in scores.items()
    ).set_index("family")
    for i, (name, of_models) in enumerate(scores.items()):
        row = means.loc[name]
        ends = "(no interval)"
        if np.isfinite(row["auc_low"]):
            ends = f"[{row['auc_low']:.3f}, {row['auc_high']:.3f}]"
        legend = f"{name}: gap {row['gap']:.1%}, AUC {row['auc']:.3f} {ends}"
        sizes = f"<br>{row['n1']:,} members, {row['n0']:,} non-members<extra>{name}</extra>"
        _add_gaps(figure, look(i), legend, of_models, sizes, opacity=0.75)
    most = means["auc"].idxmax()
    least = means["auc"].idxmin()
    return finish(
        figure,
        clauses(
            f"{most}: AUC {means.auc[most]:.3f} at a gap of {means.gap[most]:.1%}",
            len(means) > 1 and f"{least}: {means.auc[least]:.3f} at {means.gap[least]:.1%}",
        ),
        clauses(
            listed(map(name_of, scores.values())),
            "one point per target",
            f"legend: mean [95 %, {covered(means)}]",
            GAP_BARS,
        ),
        height=470,
        legend=BELOW,
        xaxis={"title": metric_name("gap"), "tickformat": "~%"},
        yaxis_title="AUC",
    )


def _gap(scores: Scores) -> np.ndarray:
    return scores.accuracy[:, 0] - scores.accuracy[:, 1]


def _add_gaps(
    figure: go.Figure, style: Look, name: str, scores: Scores, hover: str = "", **marker: Any
) -> np.ndarray:
    """Draw a point per target; returns the AUCs (targets,)."""
    aucs = []
    errors = []
    for value, member in targets(scores):
        n1 = int(member.sum())
        aucs.append(metrics.auc(value, member))
        errors.append(1.96 * auc_null_error(n1, len(member) - n1))
    auc = np.array(aucs)
    error = np.array(errors)
    figure.add_scatter(
        x=_gap(scores),
        y=auc,
        mode="markers",
        name=name,
        customdata=scores.targets,
        marker={"color": style.colour, "symbol": style.symbol, "size": 9, **marker},
        error_y=bars(auc, auc - error, auc + error, thickness=1, width=0),
        hovertemplate=f"target %{{customdata}}: gap %{{x:.2%}}, %{{y:.3f}}{hover}",
    )
    return auc


def add_overfitting(figure: go.Figure, gaps: np.ndarray | pd.Series, **place: Any) -> None:
    """Draw the AUC that overfitting alone explains, over all gaps."""
    ends = np.array([min(gaps.min(), 0.0), max(gaps.max(), 0.0) * 1.05 + 0.005])
    figure.add_scatter(
        x=ends,
        y=_overfitting(ends),
        mode="lines",
        line=DOTTED | {"width": 1.5},
        hoverinfo="skip",
        name="1/2 + gap/2 (correctness)",
        **place,
    )


def _overfitting(gap: np.ndarray) -> np.ndarray:
    """AUC of the correctness attack."""
    return 0.5 + gap / 2
