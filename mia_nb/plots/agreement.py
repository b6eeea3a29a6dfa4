"""How far recipes agree on the ranking of samples."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mia_nb.plots.style import BELOW, GREY, MEMBER, finish
from mia_nb.plots.tables import need

AGREEMENT = ("first", "second", "correlation", "ceiling", "ratio", "low", "high")


def _short(labels: list[str]) -> list[str]:
    """Comma-separated labels without the parts that all share; empty for a single label."""
    parts = [re.split(r", |: ", text) for text in labels]
    shared = set.intersection(*map(set, parts)) if parts else set()
    return [", ".join(part for part in label if part not in shared) for label in parts]


def rank_agreement(table: pd.DataFrame, of: str = "margin") -> go.Figure:
    """The rank correlation of samples between two recipes, beside the ceiling that noise sets: a
    row per two recipes.

    Filled: Spearman correlation between opposite halves; open: its ceiling, the correlation that
    equal recipes would show; on the right their ratio with its 95 % interval.

    Parameters:
        table: `metrics.agreement`
        of: the ranked quantity, margin or an attack's score

    Raises:
        ValueError: for missing columns or values.
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
    noise = f" where noise allows {least['ceiling']:.2f}: {_ratio(least)} of it"
    if np.isnan(least["ceiling"]):
        noise = ": too few pairs to know what noise allows"
    room = 36 * len(table) + 24
    return finish(
        figure,
        f"Least alike: {short[least['first']]} and {short[least['second']]}, correlation"
        f" {least['correlation']:.2f}{noise}",
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
    """The ratio and its interval; n/m for what could not be estimated."""
    if np.isnan(row["ratio"]):
        return "n/m"
    if np.isnan(row["low"]):
        return f"{row['ratio']:.2f} [n/m]"
    return f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
