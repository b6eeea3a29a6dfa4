"""The choice of p and Q: attack success over input dropout and number of queries."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mia_nb.plots.style import finish
from mia_nb.plots.tables import need


def heatmap(table: pd.DataFrame, *, chosen: tuple[float, int], name: str) -> go.Figure:
    """Attack success over input-dropout rate p (rows) and number of queries Q (columns), with the
    chosen setting outlined and starred.

    Settings that were not tried stay empty. The title says by how much the best setting beats the
    best one of p = 0, and whether that exceeds one standard error of the best; if not, dropout has
    not earned its place.

    Parameters:
        table: columns p, queries, value, error (standard error), as from `metrics.choose`, with a
            row of p = 0
        chosen: (p, Q) of the chosen setting
        name: name of the value

    Raises:
        ValueError: for a (p, Q) that comes twice, for a chosen one that is not in the table, and
            for a table without p = 0.
    """
    columns = ("p", "queries", "value", "error")
    need(table, columns, "heatmap", finite=columns, once=("p", "queries"))
    if not (table["p"] == 0).any():
        raise ValueError("heatmap: no row of p = 0, with which the best setting is compared")
    value = table.pivot(index="p", columns="queries", values="value")
    best = table.loc[table["value"].idxmax()]
    p, queries = chosen
    matching = table[np.isclose(table["p"], p) & (table["queries"] == queries)]  # at most one row
    if matching.empty:
        raise ValueError(
            f"chosen=({p}, {queries}) is not in the table: p {value.index.tolist()}, queries"
            f" {value.columns.tolist()}"
        )
    cell = matching.iloc[0]
    texts = list(map(_with_error, table["value"], table["error"]))
    text = table.assign(text=texts).pivot(index="p", columns="queries", values="text").fillna("")
    text.loc[cell.p, cell.queries] = f"★ {text.loc[cell.p, cell.queries]}"
    figure = go.Figure(
        go.Heatmap(
            x=[f"{q:g}" for q in value.columns],
            y=[f"{p:g}" for p in value.index],
            z=value.to_numpy(),
            text=text.to_numpy(),
            texttemplate="%{text}",
            textfont={"size": 12},
            colorscale="Cividis",
            xgap=1,
            ygap=1,
            hoverongaps=False,
            colorbar={"title": {"text": name, "side": "right"}, "thickness": 12},
            hovertemplate=f"p = %{{y}}, Q = %{{x}}: {name} %{{text}}<extra></extra>",
        )
    )
    _outline(figure, value.index.get_loc(cell.p), value.columns.get_loc(cell.queries))
    noun = "query" if cell.queries == 1 else "queries"
    axis = {"type": "category", "showgrid": False}
    return finish(
        figure,
        f"p = {cell.p:g} with {cell.queries:g} {noun} is chosen:"
        f" {name} {_with_error(cell.value, cell.error)}; {_against_no_dropout(table, best)}",
        "★ and outline: chosen; ± one standard error; empty: not tried",
        height=150 + 44 * len(value),
        xaxis=axis | {"title": "queries Q"},
        yaxis=axis | {"title": "input dropout p"},
    )


def _outline(figure: go.Figure, row: int, column: int) -> None:
    """A frame in white and black, one of which is visible on any colour and any page."""
    corners = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
    for colour, width in (("white", 6), ("black", 3)):
        line = {"color": colour, "width": width}
        figure.add_shape(type="rect", **corners, line=line, name="chosen")


def _with_error(value: float, error: float) -> str:
    """ "0.613 ± .008"."""
    return f"{value:.3f} ± {f'{error:.3f}'.removeprefix('0')}"


def _against_no_dropout(table: pd.DataFrame, best: pd.Series) -> str:
    """By how much the best setting beats the best one without dropout."""
    if best.p == 0:
        return "no cell beats p = 0"
    ahead = best.value - table.loc[table["p"] == 0, "value"].max()
    where = "within" if ahead <= best.error else "beyond"
    return f"the best cell is {ahead:.3f} above p = 0, {where} one standard error"
