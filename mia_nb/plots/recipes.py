"""Recipes as pictures: risk against the number of epochs, and how far recipes rank the same samples first."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mia_nb.plots.flow import _span, _word
from mia_nb.plots.spiking import BELOW, _need
from mia_nb.plots.style import DASHES, GREY, LINES, MARKERS, MEMBER, finish

GROUP = ["schedule", "augment", "rest"]
DODGE = 0.045  # octaves between the attacks at one number of epochs


def risk_against_epochs(table: pd.DataFrame) -> go.Figure:
    """AUC, and the TPR at every FPR that all recipes can measure, against the epochs on a logarithmic axis.

    table: `metrics.recipe_risks`. A colour for each attack, a marker and a dash for recipes that differ in epochs alone; bars:
    95 % intervals, of each recipe by itself (differences are paired, and may be surer than the bars look). Dotted: chance.
    Raises ValueError for missing columns and for a table without a row.
    """
    _need(table, ("label", "epochs", *GROUP, "attack", "metric", "value", "low", "high", "measurable", "pairs", "n1", "n0"),
          "risk_against_epochs", finite=("value", "low", "high"))  # fmt: skip
    sure = table.groupby("metric", sort=False)["measurable"].all()
    shown = [
        "auc",
        *sorted(
            (m for m in sure.index[sure] if m != "auc"), key=lambda m: float(m.removeprefix("tpr@"))
        ),
    ]
    figure = make_subplots(
        1, len(shown), horizontal_spacing=0.09, subplot_titles=[_word(metric) for metric in shown]
    )
    groups, words = _groups(table), list(dict.fromkeys(table["attack"]))
    for column, metric in enumerate(shown, start=1):
        for i, (key, name) in enumerate(groups.items()):
            for j, word in enumerate(words):
                mine = table[(table["metric"] == metric) & (table["attack"] == word)]
                mine = mine[(mine[GROUP] == list(key)).all(axis=1)].sort_values("epochs")
                _add_risk(
                    figure,
                    mine,
                    f"{word}, {name}" if name else word,
                    i,
                    j,
                    (len(groups), len(words)),
                    column,
                )
        chance = 0.5 if metric == "auc" else float(metric.removeprefix("tpr@"))
        figure.add_hline(
            y=chance, line={"color": GREY, "width": 1, "dash": "dot"}, row=1, col=column
        )
    epochs = sorted(table["epochs"].unique())
    figure.update_xaxes(
        title_text="epochs (logarithmic)",
        tickmode="array",
        tickvals=np.log2(epochs),
        ticktext=epochs,
    )
    figure.update_yaxes(tickformat=".2f", col=1)
    figure.update_yaxes(tickformat="~%", col=2)
    figure.update_yaxes(tickformat="~%", col=3)
    figure.update_annotations(font_size=13)
    left = [_word(m) for m in sure.index if not sure[m]]
    note = f"bars 95 %; {_span(table['pairs'])} pairs of targets, {_span(table['n1'])} members, {_span(table['n0'])} non-members"
    note += f"; not measurable with so few: {', '.join(left)}" if left else ""
    return finish(
        figure, _rise(table, groups), note, height=480, headroom=22, legend=BELOW | {"y": -0.2}
    )


def _groups(table: pd.DataFrame) -> dict[tuple, str]:
    """{(schedule, augment, rest): what tells it from the others}; the label's words where schedule and augment do not."""
    keys = list(dict.fromkeys(table[GROUP].itertuples(index=False, name=None)))
    first = {key: table[(table[GROUP] == list(key)).all(axis=1)]["label"].iloc[0] for key in keys}
    words = [re.sub(r"\d+ epochs?, ", "", text.split(": ")[-1]) for text in first.values()]
    return dict(zip(keys, _short(words), strict=True))


def _short(labels: list[str]) -> list[str]:
    """The parts of comma-separated labels that not all have; a single one says nothing."""
    parts = [re.split(r", |: ", text) for text in labels]
    shared = set.intersection(*map(set, parts)) if parts else set()
    return [", ".join(part for part in one if part not in shared) for one in parts]


def _add_risk(
    figure, rows: pd.DataFrame, name: str, i: int, j: int, of: tuple[int, int], column: int
) -> None:
    colour, symbol = LINES[j % len(LINES)], MARKERS[i % len(MARKERS)] + ("-open" if i else "")
    place = i * (of[1] + 1) + j  # groups side by side, their attacks in order
    x = np.log2(rows["epochs"].astype(float)) + DODGE * (place - (of[0] * (of[1] + 1) - 2) / 2)
    bars = {
        "array": rows["high"] - rows["value"],
        "arrayminus": rows["value"] - rows["low"],
        "thickness": 1.3,
        "width": 3,
    }
    figure.add_scatter(
        x=x, y=rows["value"], error_y=bars, mode="lines+markers", name=name, legendgroup=name, showlegend=column == 1,
        line={"color": colour, "width": 2, "dash": DASHES[i % len(DASHES)]}, marker={"symbol": symbol, "size": 9},
        customdata=rows["label"], hovertemplate="%{customdata}: %{y:.3f}<extra>" + name + "</extra>", row=1, col=column,
    )  # fmt: skip


def _rise(table: pd.DataFrame, groups: dict[tuple, str]) -> str:
    """The strongest attack's AUC at the fewest and at the most epochs of the largest group."""
    auc = table[table["metric"] == "auc"]
    best = auc.loc[auc.groupby("label", sort=False)["value"].idxmax()]
    key, rows = max(best.groupby(GROUP, sort=False), key=lambda item: len(item[1]))
    rows = rows.sort_values("epochs")
    parts = [
        f"AUC {row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}] ({row['attack']}) after {row['epochs']} epochs"
        for _, row in rows.iloc[[0, -1] if len(rows) > 1 else [0]].iterrows()
    ]
    return (f"{groups[key]}: " if groups[key] else "") + ", ".join(parts)


def rank_agreement(table: pd.DataFrame, of: str = "margin") -> go.Figure:
    """How alike two recipes rank the samples, beside what noise would let equal ones show: a row per two recipes.

    table: `metrics.agreement`; of: what was ranked, margin or an attack's score. Filled: Spearman correlation between opposite
    halves; open: its ceiling; on the right their ratio with its 95 % interval. Raises ValueError for what is missing.
    """
    _need(table, ("first", "second", "correlation", "ceiling", "ratio", "low", "high", "samples", "pairs", "covers"),
          "rank_agreement", finite=("correlation",))  # fmt: skip
    names = list(dict.fromkeys([*table["first"], *table["second"]]))
    short = dict(zip(names, _short(names), strict=True))
    rows = [
        f"{short[a] or a} / {short[b] or b}"
        for a, b in zip(table["first"], table["second"], strict=True)
    ]
    figure = go.Figure()
    for name, value, ceiling in zip(rows, table["correlation"], table["ceiling"], strict=True):
        figure.add_scatter(x=[value, ceiling], y=[name] * 2, mode="lines", line={"color": GREY, "width": 2}, showlegend=False,
                           hoverinfo="skip")  # fmt: skip
    looks = (
        ("correlation", "between the recipes", MEMBER, "circle"),
        ("ceiling", "the most that noise allows", GREY, "diamond-open"),
    )
    for column, name, colour, symbol in looks:
        figure.add_scatter(
            x=table[column], y=rows, mode="markers", name=name, marker={"color": colour, "symbol": symbol, "size": 11},
            hovertemplate="%{y}: %{x:.3f}<extra>" + name + "</extra>",
        )  # fmt: skip
    for name, (_, row) in zip(rows, table.iterrows(), strict=True):
        figure.add_annotation(x=1.01, xref="paper", xanchor="left", y=name, showarrow=False,
                              text=f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]")  # fmt: skip
    figure.add_annotation(
        x=1.01,
        xref="paper",
        xanchor="left",
        y=1,
        yref="paper",
        yanchor="bottom",
        text="ratio",
        showarrow=False,
    )
    figure.update_xaxes(
        title_text=f"rank correlation of the samples' exposure ({of})", rangemode="tozero"
    )
    figure.update_yaxes(autorange="reversed", automargin=True)
    least = table.loc[table["ratio"].fillna(np.inf).idxmin()]
    sentence = (
        f"Least alike: {short[least['first']]} and {short[least['second']]}, correlation {least['correlation']:.2f} where "
        f"noise allows {least['ceiling']:.2f}: {least['ratio']:.2f} [{least['low']:.2f}, {least['high']:.2f}] of it"
    )
    note = f"{least['samples']:,} samples, {least['pairs']} pairs of models; intervals of the ratio, 95 %, over {least['covers']}"
    room = 36 * len(rows) + 24
    return finish(
        figure, sentence, note, height=170 + room, legend=BELOW | {"y": -62 / room}
    ).update_layout(margin_r=140)
