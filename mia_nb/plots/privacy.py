"""Which epsilon belongs to a training? Its utility beside it, and the ladder of epsilons."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mia_nb.plots.curves import RELATION
from mia_nb.plots.style import (
    BELOW,
    DOTTED,
    GREY,
    SMALL,
    clauses,
    finish,
    listed,
    look,
    translucent,
)
from mia_nb.plots.tables import need

NOMINAL = "nominal epsilon (paper's accounting)"
ACCOUNTANTS = {"prv": "PRV", "rdp": "RDP", "gdp": "GDP (CLT approximation)"}
LADDER = ("row", "label", "shown", "epsilon", "delta", "relation", "note")
# rows that an audit can refute
REFUTABLE = {1: "the nominal value", 2: "Corollary 1", 4: "the guarantee of DP-SGD"}
AT = 2.0  # nominal epsilon at which accuracy is read
NEAR = 0.95  # share of AT: an accuracy read at less is told with its epsilon


def _groups(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Rows by accountant, and by delta where there are several; GDP says which batches it
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
    """Test accuracy against nominal epsilon, and the same points against the epoch: Figure 4 (right
    two).

    Epsilon only counts epochs, so that both panels hold the same curve and the right one relabels
    its axis, once per accountant and delta: thin lines are models, thick ones means. The sentence
    reads the mean accuracy at the last epoch within nominal epsilon 2, with that epoch's own
    epsilon where it is not near, or says which curves end below it or begin above.

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
        passed, reading = _reading(rows, name)
        (reached if passed else others).append(reading)
    figure.add_vline(x=AT, line=DOTTED, row=1, col=2)
    readings = ", ".join(_first_three(reached))
    first = f"At nominal epsilon {AT:g} the mean test accuracy is {readings}"
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
    if len(readings) <= 3:
        return readings
    return [*readings[:3], f"and {len(readings) - 3} more"]


def _reading(rows: pd.DataFrame, name: str) -> tuple[bool, str]:
    """(whether the curve passes nominal epsilon 2, what it shows there or at its end)."""
    curve = rows.groupby("epoch")[["epsilon", "test_acc"]].mean()
    within = curve[curve["epsilon"] <= AT]
    if within.empty:
        start = f"nominal epsilon {curve['epsilon'].iloc[0]:.4g} (epoch {curve.index[0]:g})"
        return False, f"{name} begins at {start}, above {AT:g}"
    epoch, (epsilon, accuracy) = within.index[-1], within.iloc[-1]
    if curve["epsilon"].max() < AT:
        end = f"nominal epsilon {epsilon:.4g} (epoch {epoch:g}), below {AT:g}"
        return False, f"{name} ends at {end}, with a mean test accuracy of {accuracy:.1%}"
    where = f"{name}: epoch {epoch:g}" + (f", at {epsilon:.4g}" if epsilon < NEAR * AT else "")
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


def ladder(tables: pd.DataFrame | dict[str, pd.DataFrame]) -> go.Figure:
    """The five epsilons of `auditing.ladder` on one logarithmic axis, of one network or of several.

    A bar | is a number that somebody states, an arrow |=> a lower bound (row 5, and row 2 at a
    local L), an arrow to the right edge "none (infinite)"; what is not applicable, and 0, stands in
    words at the left edge. Each row carries its label and its note, hovers the method and remarks.
    Rows speak about different things: none is an upper or lower bound of another, and only row 5
    says anything against rows 1, 2 and 4.

    Parameters:
        tables: a ladder, or {name: ladder} of several networks

    Raises:
        ValueError: for tables that are no ladder, and for no table.
    """
    tables = {"": tables} if isinstance(tables, pd.DataFrame) else tables
    if not tables:
        raise ValueError(
            "ladder got no table: pass auditing.ladder(...), or {name: ladder} of several"
        )
    for name, table in tables.items():
        need(table, LADDER, f"ladder of {name}" if name else "ladder")
    every = pd.concat(list(tables.values()))
    first = next(iter(tables.values()))
    values = every["epsilon"][every["epsilon"].between(0, math.inf, inclusive="neither")]
    start, end = (values.min() / 4, values.max() * 12) if len(values) else (0.1, 100.0)
    figure = go.Figure()
    for i, (name, table) in enumerate(tables.items()):
        below = i / (len(tables) - 1) - 0.5 if len(tables) > 1 else 0.0
        _add_rows(figure, name, table, (start, end), 0.5 * below, i)
    for _, row in first.iterrows():
        figure.add_annotation(
            text=row["note"],
            font=SMALL,
            xref="paper",
            x=0,
            xanchor="left",
            y=-row["row"] - 0.42,
            showarrow=False,
            align="left",
        )
    labels = first.drop_duplicates("row")
    return finish(
        figure,
        _sentence(tables),
        clauses(
            f"delta {listed(f'{delta:g}' for delta in every['delta'].unique())}",
            _relations(tables),
            "none is an upper or lower bound of another",
        ),
        legend=BELOW,
        height=250 + 170 * len(tables),
        showlegend=len(tables) > 1,
        xaxis={
            "type": "log",
            "range": [math.log10(start), math.log10(end)],
            "title": {"text": "epsilon (logarithmic)"},
            "dtick": "D2",
        },
        yaxis={
            "tickvals": -labels["row"],
            "ticktext": labels["label"],
            "range": [-labels["row"].max() - 0.55, -0.5],
            "showgrid": False,
        },
    )


def _sentence(tables: dict[str, pd.DataFrame]) -> str:
    """What was claimed, proved and audited of one network; of several, which claims are refuted:
    their numbers stand in the picture.
    """
    if len(tables) == 1:
        sentence = _claimed(next(iter(tables.values())))
        return sentence.replace("claimed", "Claimed", 1)
    refuted = []
    for name, table in tables.items():
        if claims := _refuted(table):
            refuted.append(f"{name}: {listed(claims)}")
    return clauses(
        f"What is claimed, proved and audited of {len(tables)} networks",
        refuted and f"refuted by the audit: {', '.join(refuted)}",
    )


def _claimed(table: pd.DataFrame) -> str:
    """Claimed, proved and audited, in the words of the ladder; refuted is what its verdicts call
    so.
    """
    rows = table.drop_duplicates("row").set_index("row")
    stated = {row: rows["shown"][row] for row in (1, 4, 5) if np.isfinite(rows["epsilon"][row])}
    parts = [
        f"claimed {stated[1]} (nominal)" if 1 in stated else "claimed: nothing",
        f"proved: {stated.get(4, 'none')}",
        f"audited: {stated[5]}" if 5 in stated else "not audited",
    ]
    refuted = " and ".join(_refuted(table))
    return " - ".join(parts) + (f", which refutes {refuted}" if refuted else "")


def _refuted(table: pd.DataFrame) -> list[str]:
    """The claims that the ladder's verdicts call refuted."""
    rows = table.drop_duplicates("row").set_index("row")
    return [
        claim
        for row, claim in REFUTABLE.items()
        if str(rows.loc[row].get("verdict", "")).startswith("refuted at")
    ]


def _relations(tables: dict[str, pd.DataFrame]) -> str:
    """Which neighbouring data sets the rows about records speak of; by network where they
    differ.
    """
    networks: dict[str, list[str]] = {}
    for name, table in tables.items():
        about = table[table["relation"].str.contains("record")].drop_duplicates("row")
        parts = []
        for relation, rows in about.groupby("relation", sort=False)["row"]:
            *most, last = map(str, rows)
            parts.append(f"{relation} in {f'rows {listed(most)} and' if most else 'row'} {last}")
        networks.setdefault(", ".join(parts), []).append(name)
    if len(networks) == 1:
        return next(iter(networks))
    return clauses(*(f"{listed(names)}: {parts}" for parts, names in networks.items()))


def _add_rows(
    figure: go.Figure,
    name: str,
    table: pd.DataFrame,
    ends: tuple[float, float],
    below: float,
    i: int,
) -> None:
    """One network's marks, and its line of the legend."""
    colour, dash, _ = look(i)
    figure.add_scatter(
        x=[None],
        y=[None],
        mode="lines",
        line={"color": colour, "width": 4, "dash": dash},
        name=name or "epsilon",
        legendgroup=name or "one",
    )
    for _, row in table.iterrows():
        _add_mark(figure, name, row, ends, -row["row"] - below, colour, dash)


def _add_mark(
    figure: go.Figure,
    name: str,
    row: pd.Series,
    ends: tuple[float, float],
    y: float,
    colour: str,
    dash: str,
) -> None:
    """| for a number, |=> for a lower bound, => for what is infinite, words for the rest."""
    start, end = ends
    value = float(row["epsilon"])
    lower = row["row"] == 5 or str(row["shown"]).startswith(">=")
    placed = np.isfinite(value) and value > 0
    x = value if placed else start * 1.05
    group = {
        "legendgroup": name or "one",
        "hoverlabel": {"align": "left"},
        "cliponaxis": False,
        "showlegend": False,
    }
    arrow = (placed and lower) or value == math.inf
    if arrow:
        line = {"color": colour, "width": 4 if lower else 2, "dash": dash}
        head = {"symbol": "triangle-right", "size": 13, "color": colour}
        quiet = {"hoverinfo": "skip", **group}
        figure.add_scatter(x=[x, end], y=[y, y], mode="lines", line=line, **quiet)
        figure.add_scatter(x=[end / 1.04], y=[y], mode="markers", marker=head, **quiet)
    size = 8
    if placed:
        size = 12 if name else 20
    position = "middle right"
    if arrow:
        position = "top center" if placed else "top right"
    remarks = [str(row.get(part, "")) for part in ("method", "relation", "remark", "verdict")]
    hover = f"{row['label']}: {row['shown']}<br>{'<br>'.join(filter(None, remarks))}"
    figure.add_scatter(
        x=[x],
        y=[y],
        mode="markers+text",
        marker={
            "symbol": "line-ns",
            "opacity": float(placed),  # one not seen holds words off their arrow
            "size": size,
            "line": {"width": 4, "color": colour},
        },
        text=[f" {row['shown']}"],
        textposition=position,
        textfont={"color": colour if name else GREY, "size": 12},
        name=name or "epsilon",
        hovertemplate=f"{hover}<extra>{name}</extra>",
        **group,
    )
