"""AUC against the generalisation gap, which explains a part of it."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from mia_nb import metrics
from mia_nb.metrics.curve import auc_null_error
from mia_nb.plots.marks import bars
from mia_nb.plots.scores import named, targets
from mia_nb.plots.style import BELOW, DOTTED, clauses, finish, looks
from mia_nb.plots.tables import metric_name
from mia_nb.types import Scores


def gap_against_risk(scores: Scores | dict[str, Scores]) -> go.Figure:
    """Generalisation gap against AUC, a point per target: Figures 1 and 8 of the NSDE study.

    The line is what overfitting alone explains: the correctness attack has AUC exactly 1/2 + gap/2.
    Families of networks apart along the line differ in overfitting, families apart across it in
    what they give away beyond overfitting. Bars: 1.96 standard errors of a null AUC,
    sqrt((n1 + n0 + 1) / (12 n1 n0)).

    Parameters:
        scores: of one attack, or {name: Scores} of several attacks or families
    """
    scores = named(scores)
    gaps = np.concatenate([_gap(of_models) for of_models in scores.values()])
    ends = np.array([min(gaps.min(), 0.0), max(gaps.max(), 0.0) * 1.05 + 0.005])
    figure = go.Figure()
    figure.add_scatter(
        x=ends,
        y=_auc_of_correctness(ends),
        mode="lines",
        line=DOTTED | {"width": 1.5},
        hoverinfo="skip",
        name="1/2 + gap/2 (correctness)",
    )
    style_of = looks(scores)
    above = 0
    for name, of_models in scores.items():
        pairs = targets(of_models)
        auc = np.array([metrics.auc(score, member) for score, member in pairs])
        null_errors = [auc_null_error(member.sum(), (~member).sum()) for _, member in pairs]
        error = 1.96 * np.array(null_errors)
        gap = _gap(of_models)
        above += int((auc > _auc_of_correctness(gap)).sum())
        figure.add_scatter(
            x=gap,
            y=auc,
            mode="markers",
            name=name,
            customdata=of_models.targets,
            marker={
                "color": style_of[name].colour,
                "symbol": style_of[name].symbol,
                "size": 9,
                "opacity": 0.75,
            },
            error_y=bars(auc, auc - error, auc + error, thickness=1, width=0),
            hovertemplate="target %{customdata}: gap %{x:.2%}, %{y:.3f}",
        )
    counted = "targets"
    points = "one point per target"
    if len(scores) > 1:
        counted = "points"
        points = "one point per target and line of the legend"
    return finish(
        figure,
        f"{above} of {len(gaps)} {counted} lie above what accuracy alone gives away",
        clauses(
            f"train-test gaps from {gaps.min():.1%} to {gaps.max():.1%}",
            points,
            "bars: 1.96 s.e. of random guessing",
        ),
        height=470,
        legend=BELOW,
        xaxis={"title": metric_name("gap"), "tickformat": "~%"},
        yaxis_title="AUC",
    )


def _gap(scores: Scores) -> np.ndarray:
    """(targets,) train accuracy minus test accuracy."""
    return scores.accuracy[:, 0] - scores.accuracy[:, 1]


def _auc_of_correctness(gap: np.ndarray) -> np.ndarray:
    return 0.5 + gap / 2
