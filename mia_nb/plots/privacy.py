"""Which epsilon belongs to a training? Its utility beside it, and the ladder of epsilons."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mia_nb.plots.bounds import RELATION
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
READ_AT = 2.0  # nominal epsilon at which accuracy is read
NEAR = 0.95  # share of READ_AT: an accuracy read further below it is shown with its epsilon


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
    """Test accuracy against the epoch, and against nominal epsilon: the two panels on the right of
    Figure 4.

    Nominal epsilon is a function of the epoch, so that both panels hold the same curve and the
    right one relabels its axis, once per accountant and delta. Thin lines are models, thick ones
    means. The title gives the mean accuracy at the last epoch within nominal epsilon 2, with that
    epoch's own epsilon where it is not near 2, or says which curves end below 2 or begin above.

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
    """The first three, and how many more there are."""
    if len(readings) <= 3:
        return readings
    return [*readings[:3], f"and {len(readings) - 3} more"]


def _reading(rows: pd.DataFrame, name: str) -> tuple[bool, str]:
    """(whether the curve passes nominal epsilon 2, what it shows there or at its end)."""
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


def ladder(tables: pd.DataFrame | dict[str, pd.DataFrame]) -> go.Figure:
    """The five epsilons of `auditing.ladder` on one logarithmic axis, of one network or of several.

    A bar | is a number that somebody states, an arrow |=> a lower bound (row 5, and row 2 at a
    local L), an arrow to the right edge "none (infinite)". Rows that do not apply, and an epsilon
    of 0, stand in words at the left edge. Each row has its label and its note; the method and
    remarks appear on hover. Rows are about different things: none is an upper or lower bound of
    another, and only row 5 can refute rows 1, 2 and 4.

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
    all_rows = pd.concat(list(tables.values()))
    first = next(iter(tables.values()))
    epsilons = all_rows["epsilon"]
    drawn = epsilons[epsilons.between(0, math.inf, inclusive="neither")]
    start = 0.1
    end = 100.0
    if len(drawn):
        start = drawn.min() / 4
        end = drawn.max() * 12
    figure = go.Figure()
    for i, (name, table) in enumerate(tables.items()):
        below = 0.0
        if len(tables) > 1:  # networks lie half a row apart at most
            below = 0.5 * (i / (len(tables) - 1) - 0.5)
        _add_rows(figure, name, table, (start, end), below, i)
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
            f"delta {listed(f'{delta:g}' for delta in all_rows['delta'].unique())}",
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
    """The title: of one network the claimed, proved and audited epsilon; of several networks, whose
    numbers stand in the picture, the claims that are refuted.
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
    """The claimed, proved and audited epsilon in the words of the ladder, and the claims that its
    verdicts call refuted.
    """
    rows = table.drop_duplicates("row").set_index("row")
    stated = {row: rows["shown"][row] for row in (1, 4, 5) if np.isfinite(rows["epsilon"][row])}
    parts = [
        f"claimed {stated[1]} (nominal)" if 1 in stated else "claimed: nothing",
        f"proved: {stated.get(4, 'none')}",
        f"audited: {stated[5]}" if 5 in stated else "not audited",
    ]
    sentence = " - ".join(parts)
    refuted = _refuted(table)
    if refuted:
        sentence += f", which refutes {' and '.join(refuted)}"
    return sentence


def _refuted(table: pd.DataFrame) -> list[str]:
    """The claims that the ladder's verdicts call refuted."""
    rows = table.drop_duplicates("row").set_index("row")
    refuted = []
    for row, claim in REFUTABLE.items():
        verdict = str(rows.loc[row].get("verdict", ""))
        if verdict.startswith("refuted at"):
            refuted.append(claim)
    return refuted


def _relations(tables: dict[str, pd.DataFrame]) -> str:
    """The neighbouring relation of the rows about records, by network where networks differ."""
    networks: dict[str, list[str]] = {}
    for name, table in tables.items():
        about = table[table["relation"].str.contains("record")].drop_duplicates("row")
        parts = []
        for relation, rows in about.groupby("relation", sort=False)["row"]:
            *most, last = map(str, rows)
            numbers = f"rows {listed(most)} and {last}" if most else f"row {last}"
            parts.append(f"{relation} in {numbers}")
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
    """One network's marks, and its line of the legend.

    Parameters:
        ends: of the axis
        below: how far the marks lie below the middle of their row
        i: number of the network, for its look
    """
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
    is_lower_bound = row["row"] == 5 or str(row["shown"]).startswith(">=")
    placed = np.isfinite(value) and value > 0
    x = value if placed else start * 1.05
    group = {
        "legendgroup": name or "one",
        "hoverlabel": {"align": "left"},
        "cliponaxis": False,
        "showlegend": False,
    }
    arrow = (placed and is_lower_bound) or value == math.inf
    if arrow:
        line = {"color": colour, "width": 4 if is_lower_bound else 2, "dash": dash}
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
            "opacity": float(placed),  # an invisible mark keeps the words off their arrow
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
