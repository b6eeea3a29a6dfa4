"""How far recipes rank the same samples first, and the choice of p and Q."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mia_nb.plots.style import (
    BELOW,
    GREY,
    MEMBER,
    clauses,
    finish,
)
from mia_nb.plots.tables import need

AGREEMENT = ("first", "second", "correlation", "ceiling", "ratio", "low", "high")


def _short(labels: list[str]) -> list[str]:
    """The parts of comma-separated labels that not all have; a single one says nothing."""
    parts = [re.split(r", |: ", text) for text in labels]
    shared = set.intersection(*map(set, parts)) if parts else set()
    return [", ".join(part for part in label if part not in shared) for label in parts]


def rank_agreement(table: pd.DataFrame, of: str = "margin") -> go.Figure:
    """How alike two recipes rank the samples, beside what noise would let equal ones show: a row
    per two recipes.

    Filled: Spearman correlation between opposite halves; open: its ceiling; on the right their
    ratio with its 95 % interval.

    Parameters:
        table: `metrics.agreement`
        of: what was ranked, margin or an attack's score

    Raises:
        ValueError: for what is missing.
    """
    need(table, (*AGREEMENT, "samples", "pairs", "covers"), "rank_agreement", ("correlation",))
    names = list(dict.fromkeys([*table["first"], *table["second"]]))
    short = dict(zip(names, _short(names), strict=True))
    pairs = zip(table["first"], table["second"], strict=True)
    table = table.assign(pair=[f"{short[a] or a} / {short[b] or b}" for a, b in pairs])
    figure = go.Figure()
    beside = {"x": 1.01, "xref": "paper", "xanchor": "left", "showarrow": False}
    for _, row in table.iterrows():
        figure.add_scatter(
            x=[row["correlation"], row["ceiling"]],
            y=[row["pair"]] * 2,
            mode="lines",
            line={"color": GREY, "width": 2},
            showlegend=False,
            hoverinfo="skip",
        )
        figure.add_annotation(y=row["pair"], text=_ratio(row), **beside)
    for column, name, colour, symbol in (
        ("correlation", "between the recipes", MEMBER, "circle"),
        ("ceiling", "the most that noise allows", GREY, "diamond-open"),
    ):
        figure.add_scatter(
            x=table[column],
            y=table["pair"],
            mode="markers",
            name=name,
            marker={"color": colour, "symbol": symbol, "size": 11},
            hovertemplate="%{y}: %{x:.3f}<extra>" + name + "</extra>",
        )
    figure.add_annotation(y=1, yref="paper", yanchor="bottom", text="ratio", **beside)
    least = table.loc[table["ratio"].fillna(np.inf).idxmin()]
    room = 36 * len(table) + 24
    return finish(
        figure,
        f"Least alike: {short[least['first']]} and {short[least['second']]}, correlation"
        f" {least['correlation']:.2f} where noise allows {least['ceiling']:.2f}:"
        f" {_ratio(least)} of it",
        f"{least['samples']:,} samples, {least['pairs']} pairs of models; intervals of the ratio,"
        f" 95 %, over {least['covers']}",
        height=170 + room,
        legend=BELOW,
        xaxis={
            "title": {"text": f"rank correlation of the samples' memorisation ({of})"},
            "rangemode": "tozero",
        },
        yaxis={"autorange": "reversed", "automargin": True},
    ).update_layout(margin_r=140)


def _ratio(row: pd.Series) -> str:
    return f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"


def heatmap(
    table: pd.DataFrame, *, chosen: tuple[float, int] | None = None, name: str = "AUC"
) -> go.Figure:
    """Attack success over input-dropout rate p (rows) and number of queries Q (columns), chosen
    setting outlined and starred.

    Settings that were not tried stay empty. The sentence says by how much the best one beats the
    best of p = 0, and whether that exceeds one standard error of the best: within it, dropout has
    not earned its place.

    Parameters:
        table: columns p, queries, value, error (standard error), as from `metrics.choose`
        chosen: (p, Q), None the best
        name: of the value

    Raises:
        ValueError: for a (p, Q) that comes twice, or a chosen one that is not there.
    """
    columns = ("p", "queries", "value", "error")
    need(table, columns, "heatmap", finite=columns, once=("p", "queries"))
    value = table.pivot(index="p", columns="queries", values="value")
    error = table.pivot(index="p", columns="queries", values="error")
    best = table.loc[table["value"].idxmax()]
    p, queries = chosen or (best.p, best.queries)
    matching = table[np.isclose(table["p"], p) & (table["queries"] == queries)]
    if matching.empty:
        raise ValueError(
            f"chosen=({p}, {queries}) is not in the table: p {value.index.tolist()}, queries"
            f" {value.columns.tolist()}"
        )
    cell = matching.iloc[0]
    row = value.index.get_loc(cell.p)
    column = value.columns.get_loc(cell.queries)
    text = _cell_texts(value.to_numpy(), error.to_numpy())
    text[row][column] = f"★ {text[row][column]}"
    figure = go.Figure(
        go.Heatmap(
            x=[f"{q:g}" for q in value.columns],
            y=[f"{p:g}" for p in value.index],
            z=value.to_numpy(),
            text=text,
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
    _outline(figure, row, column)
    many = "query" if cell.queries == 1 else "queries"
    untried = int(np.isnan(value.to_numpy()).sum())
    axis = {"type": "category", "showgrid": False}
    return finish(
        figure,
        f"p = {cell.p:g} with {cell.queries:g} {many} is chosen:"
        f" {name} {_with_error(cell.value, cell.error)}; {_against_no_dropout(table, best)}",
        clauses(
            "★ and outline: chosen",
            "± one standard error",
            untried and f"{untried} empty cells were not tried",
        ),
        height=150 + 44 * len(value),
        xaxis=axis | {"title": "queries Q"},
        yaxis=axis | {"title": "input dropout p"},
    )


def _cell_texts(value: np.ndarray, error: np.ndarray) -> list[list[str]]:
    """Each value with its error; nothing where it was not tried."""
    texts = []
    for values, errors in zip(value, error, strict=True):
        cells = zip(values, errors, strict=True)
        texts.append(["" if np.isnan(v) else _with_error(v, e) for v, e in cells])
    return texts


def _outline(figure: go.Figure, row: int, column: int) -> None:
    """A frame in white and black, one of which shows on any colour and any page."""
    corners = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
    for colour, width in (("white", 6), ("black", 3)):
        line = {"color": colour, "width": width}
        figure.add_shape(type="rect", **corners, line=line, name="chosen")


def _with_error(value: float, error: float) -> str:
    return f"{value:.3f} ± {f'{error:.3f}'.removeprefix('0')}"


def _against_no_dropout(table: pd.DataFrame, best: pd.Series) -> str:
    """By how much the best setting beats the best one without dropout."""
    plain = table[table["p"] == 0]["value"]
    if plain.empty:
        return "p = 0 was not tried"
    if best.p == 0:
        return "no cell beats p = 0"
    ahead = best.value - plain.max()
    weighed = "within" if ahead <= best.error else "beyond"
    return f"the best cell is {ahead:.3f} above p = 0, {weighed} one standard error"
