"""The ladder of epsilons: what is claimed, proved and audited of one network or of several."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mia_nb.plots.style import BELOW, GREY, SMALL, Look, clauses, finish, listed, look
from mia_nb.plots.tables import need

COLUMNS = (
    "row",
    "label",
    "shown",
    "epsilon",
    "delta",
    "relation",
    "method",
    "note",
    "verdict",
    "remark",
)
# numbers of rows of `auditing.ladder`
NOMINAL = 1
THEOREM = 2
TRAINING = 4
AUDITED = 5
# rows that an audit can refute
REFUTABLE = {
    NOMINAL: "the nominal value",
    THEOREM: "Corollary 1",
    TRAINING: "the guarantee of DP-SGD",
}


def ladder(tables: pd.DataFrame | dict[str, pd.DataFrame]) -> go.Figure:
    """The five epsilons of `auditing.ladder` on one logarithmic axis, of one network or of several.

    A bar | marks a stated number, |=> a lower bound (row 5, and row 2 at a local L), => "none
    (infinite)". Rows that do not apply, and an epsilon of 0, stand in words at the left edge. Each
    row shows its label and its note, and its method and remarks on hover. The first four are about
    different things and do not bound each other; the fifth is a lower bound, and refutes row 1, 2
    or 4 where it exceeds it.

    Parameters:
        tables: a ladder, or {name: ladder} of several networks

    Raises:
        ValueError: for tables that lack a ladder's columns, and for no table.
    """
    if isinstance(tables, pd.DataFrame):
        tables = {"": tables}
    if not tables:
        raise ValueError(
            "ladder got no table: pass auditing.ladder(...), or {name: ladder} of several"
        )
    for name, table in tables.items():
        need(table, COLUMNS, f"ladder of {name}" if name else "ladder")
    all_rows = pd.concat(list(tables.values()))
    first = next(iter(tables.values()))
    start, end = _ends(all_rows["epsilon"])
    figure = go.Figure()
    for i, (name, table) in enumerate(tables.items()):
        offset = 0.0
        if len(tables) > 1:  # the marks of all networks lie within half a row
            offset = 0.5 * (i / (len(tables) - 1) - 0.5)
        _add_network(figure, name, table, look(i), (start, end), offset)
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
            "rows 1 to 4 do not bound each other",
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


def _ends(epsilons: pd.Series) -> tuple[float, float]:
    """Both ends of the axis, with room for the words left and right of the marks."""
    finite = epsilons[epsilons.between(0, math.inf, inclusive="neither")]
    if finite.empty:
        return 0.1, 100.0
    return finite.min() / 4, finite.max() * 12


def _sentence(tables: dict[str, pd.DataFrame]) -> str:
    """The title: the claimed, proved and audited epsilon of one network, or the refuted claims of
    several networks, whose numbers stand in the picture.
    """
    if len(tables) == 1:
        return _sentence_of_one(next(iter(tables.values())))
    refuted = []
    for name, table in tables.items():
        claims = _refuted(table)
        if claims:
            refuted.append(f"{name}: {listed(claims)}")
    sentence = f"What is claimed, proved and audited of {len(tables)} networks"
    if refuted:
        sentence += f"; refuted by the audit: {', '.join(refuted)}"
    return sentence


def _sentence_of_one(table: pd.DataFrame) -> str:
    """The claimed, proved and audited epsilon in the words of the ladder, and the claims that its
    verdicts call refuted.
    """
    rows = table.drop_duplicates("row").set_index("row")
    stated = rows["shown"][np.isfinite(rows["epsilon"])]
    claimed = "Claimed: nothing"
    if NOMINAL in stated:
        claimed = f"Claimed {stated[NOMINAL]} (nominal)"
    audited = "not audited"
    if AUDITED in stated:
        audited = f"audited: {stated[AUDITED]}"
    sentence = f"{claimed} - proved: {stated.get(TRAINING, 'none')} - {audited}"
    refuted = _refuted(table)
    if refuted:
        sentence += f", which refutes {' and '.join(refuted)}"
    return sentence


def _refuted(table: pd.DataFrame) -> list[str]:
    """The claims that the ladder's verdicts call refuted."""
    verdicts = table.drop_duplicates("row").set_index("row")["verdict"].astype(str)
    return [claim for row, claim in REFUTABLE.items() if verdicts[row].startswith("refuted at")]


def _relations(tables: dict[str, pd.DataFrame]) -> str:
    """The neighbouring relation of the rows about records, by network where networks differ:
    "add/remove one record in rows 1 and 5, replace one record in row 4".
    """
    networks_with: dict[str, list[str]] = {}
    for name, table in tables.items():
        networks_with.setdefault(_relations_of_one(table), []).append(name)
    if len(networks_with) == 1:
        return next(iter(networks_with))
    by_network = [f"{listed(names)}: {relations}" for relations, names in networks_with.items()]
    return clauses(*by_network)


def _relations_of_one(table: pd.DataFrame) -> str:
    about_records = table[table["relation"].str.contains("record")].drop_duplicates("row")
    parts = []
    for relation, rows in about_records.groupby("relation", sort=False)["row"]:
        *others, last = map(str, rows)
        numbers = f"rows {listed(others)} and {last}" if others else f"row {last}"
        parts.append(f"{relation} in {numbers}")
    return ", ".join(parts)


def _add_network(
    figure: go.Figure,
    name: str,
    table: pd.DataFrame,
    style: Look,
    ends: tuple[float, float],
    offset: float,
) -> None:
    """One network's marks, and its line of the legend.

    Parameters:
        ends: ends of the axis
        offset: how far the marks lie below the middle of their row
    """
    figure.add_scatter(
        x=[None],
        y=[None],
        mode="lines",
        line={"color": style.colour, "width": 4, "dash": style.dash},
        name=name or "epsilon",
        legendgroup=name or "one",
    )
    for _, row in table.iterrows():
        _add_mark(figure, name, row, style, ends, -row["row"] - offset)


def _add_mark(
    figure: go.Figure,
    name: str,
    row: pd.Series,
    style: Look,
    ends: tuple[float, float],
    y: float,
) -> None:
    """Draw | for a number, |=> for a lower bound, => for infinity, and write the row's words."""
    start, end = ends
    colour = style.colour
    value = float(row["epsilon"])
    is_lower_bound = row["row"] == AUDITED or str(row["shown"]).startswith(">=")
    has_bar = 0 < value < math.inf
    has_arrow = value == math.inf or (has_bar and is_lower_bound)
    group = {
        "legendgroup": name or "one",
        "hoverlabel": {"align": "left"},
        "cliponaxis": False,
        "showlegend": False,
    }
    x = start * 1.05
    size = 8
    if has_bar:
        x = value
        size = 12 if name else 20
    position = "middle right"
    if has_arrow:
        position = "top center" if has_bar else "top right"
        line = {"color": colour, "width": 4 if is_lower_bound else 2, "dash": style.dash}
        _add_arrow(figure, x, end, y, line, group)
    remarks = [str(row[column]) for column in ("method", "relation", "remark", "verdict")]
    hover = "<br>".join(remark for remark in remarks if remark)
    figure.add_scatter(
        x=[x],
        y=[y],
        mode="markers+text",
        marker={
            "symbol": "line-ns",
            "opacity": float(has_bar),  # an invisible mark keeps the words off their arrow
            "size": size,
            "line": {"width": 4, "color": colour},
        },
        text=[f" {row['shown']}"],
        textposition=position,
        textfont={"color": colour if name else GREY, "size": 12},
        name=name or "epsilon",
        hovertemplate=f"{row['label']}: {row['shown']}<br>{hover}<extra>{name}</extra>",
        **group,
    )


def _add_arrow(figure: go.Figure, x: float, end: float, y: float, line: dict, group: dict) -> None:
    """An arrow from x to the right end of the axis."""
    head = {"symbol": "triangle-right", "size": 13, "color": line["color"]}
    shared = {"hoverinfo": "skip", **group}
    figure.add_scatter(x=[x, end], y=[y, y], mode="lines", line=line, **shared)
    figure.add_scatter(x=[end / 1.04], y=[y], mode="markers", marker=head, **shared)
