"""Test accuracy against the epoch and against nominal epsilon."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mia_nb.plots.bounds import RELATION
from mia_nb.plots.style import (
    BELOW,
    DOTTED,
    GREY,
    clauses,
    finish,
    look,
    translucent,
)
from mia_nb.plots.tables import need

NOMINAL = "nominal epsilon (paper's accounting)"
ACCOUNTANTS = {"prv": "PRV", "rdp": "RDP", "gdp": "GDP (CLT approximation)"}
READ_AT = 2.0  # nominal epsilon at which accuracy is read
NEAR = 0.95  # share of READ_AT: an accuracy read further below it is shown with its epsilon


def _groups(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Rows by accountant, and by delta where there are several. GDP's names say which batches it
    assumes.
    """
    groups = {}
    for key, rows in table.groupby(["accountant", "sampling", "delta"], sort=False):
        accountant, sampling, delta = key
        parts = [ACCOUNTANTS.get(accountant, accountant)]
        if accountant == "gdp":
            parts.append(f"{sampling} batches")
        if table["delta"].nunique() > 1:
            parts.append(f"delta {delta:g}")
        groups[", ".join(parts)] = rows
    return groups


def privacy_utility(table: pd.DataFrame) -> go.Figure:
    """Test accuracy against the epoch, and against nominal epsilon: the two panels on the right of
    Figure 4.

    Nominal epsilon is a function of the epoch. Both panels therefore hold the same curve, and the
    right one relabels its axis, once per accountant and delta. Thin lines are models, thick ones
    means. The title gives the mean accuracy at the last epoch within nominal epsilon 2, with that
    epoch's epsilon where it is not near 2, or says which curves end below 2 or begin above.

    Parameters:
        table: a row per model, epoch, accountant and delta with columns epoch, epsilon, accountant,
            sampling, delta, model, test_acc

    Raises:
        ValueError: for missing columns or values, and for accuracies of one model and epoch that
            differ.

    Source: Figure 4 of Hong, Wu, Gruber and Lee (arXiv 2501.06686).
    """
    finite = ("epoch", "epsilon", "test_acc")
    if "epsilon" in table and np.isinf(table["epsilon"].astype(float)).any():
        raise ValueError(
            "privacy_utility: epsilon is infinite, as it is for a sigma (noise multiplier) or a"
            " delta of 0: raise it, or drop those rows"
        )
    columns = (*finite, "accountant", "sampling", "delta", "model")
    need(table, columns, "privacy_utility", finite=finite)
    if (table.groupby(["model", "epoch"])["test_acc"].nunique() > 1).any():
        raise ValueError(
            "test_acc of one model and epoch differs between accountants or deltas: they are the"
            " same models, accounted anew"
        )
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.05)
    points = table.drop_duplicates(["model", "epoch"])
    _add_models(figure, points, "epoch", "mean of models", GREY, "solid", column=1)
    reached = []
    others = []
    for i, (name, rows) in enumerate(_groups(table).items()):
        _add_models(figure, rows, "epsilon", name, look(i).colour, look(i).dash, column=2)
        passes, reading = _reading(rows, name)
        if passes:
            reached.append(reading)
        else:
            others.append(reading)
    figure.add_vline(x=READ_AT, line=DOTTED, row=1, col=2)
    readings = ", ".join(_first_three(reached))
    first = f"At nominal epsilon {READ_AT:g} the mean test accuracy is {readings}"
    count = points["model"].nunique()
    deltas = table["delta"].unique()
    return finish(
        figure,
        clauses(reached and first, *_first_three(others)),
        clauses(
            "the same accuracies twice: left by epoch, right relabelled",
            f"thin: {count} model{'s' * (count > 1)}",
            RELATION,
            len(deltas) == 1 and f"delta {deltas[0]:g}",
            "not a guarantee",
        ),
        height=460,
        legend=BELOW,
        xaxis={"title": {"text": "epoch"}, "rangemode": "tozero"},
        xaxis2={"title": {"text": NOMINAL}, "rangemode": "tozero"},
        yaxis={"title": {"text": "test accuracy"}, "tickformat": "~%"},
    )


def _first_three(readings: list[str]) -> list[str]:
    """The first three readings, and how many more there are."""
    if len(readings) <= 3:
        return readings
    return [*readings[:3], f"and {len(readings) - 3} more"]


def _reading(rows: pd.DataFrame, name: str) -> tuple[bool, str]:
    """(whether the curve passes nominal epsilon 2, its accuracy there or at its end in words)."""
    curve = rows.groupby("epoch")[["epsilon", "test_acc"]].mean()
    within = curve[curve["epsilon"] <= READ_AT]
    if within.empty:
        start = f"nominal epsilon {curve['epsilon'].iloc[0]:.4g} (epoch {curve.index[0]:g})"
        return False, f"{name} begins at {start}, above {READ_AT:g}"
    epoch = within.index[-1]
    epsilon, accuracy = within.iloc[-1]
    if curve["epsilon"].max() < READ_AT:
        end = f"nominal epsilon {epsilon:.4g} (epoch {epoch:g}), below {READ_AT:g}"
        return False, f"{name} ends at {end}, with a mean test accuracy of {accuracy:.1%}"
    where = f"{name}: epoch {epoch:g}"
    if epsilon < NEAR * READ_AT:
        where += f", at {epsilon:.4g}"
    return True, f"{accuracy:.1%} ({where})"


def _add_models(
    figure: go.Figure, rows: pd.DataFrame, x: str, name: str, colour: str, dash: str, column: int
) -> None:
    """A thin line per model, a thick one for their mean."""
    place = {"mode": "lines", "legendgroup": name, "row": 1, "col": column}
    for _, rows_of_model in rows.sort_values("epoch").groupby("model", sort=False):
        figure.add_scatter(
            x=rows_of_model[x],
            y=rows_of_model["test_acc"],
            line={"color": translucent(colour, 0.3), "width": 1},
            showlegend=False,
            hoverinfo="skip",
            **place,
        )
    mean = rows.groupby("epoch")[["epsilon", "test_acc"]].mean().reset_index()
    figure.add_scatter(
        x=mean[x],
        y=mean["test_acc"],
        customdata=mean["epoch"],
        line={"color": colour, "width": 2.5, "dash": dash},
        name=name,
        hovertemplate="epoch %{customdata}: %{y:.1%} at %{x:.3g}",
        **place,
    )
