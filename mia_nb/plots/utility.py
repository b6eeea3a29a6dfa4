"""The cost of lower risk: risk beside test accuracy and overfitting; time and memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mia_nb import attacks
from mia_nb.metrics.frontier_table import frontier_means
from mia_nb.metrics.table_text import in_digits
from mia_nb.metrics.tables import rows_of
from mia_nb.plots.marks import bars
from mia_nb.plots.overfitting import add_overfitting
from mia_nb.plots.style import (
    BELOW,
    GREY,
    LINES,
    MARKERS,
    THIN,
    clauses,
    finish,
    listed,
    look,
    translucent,
)
from mia_nb.plots.tables import covered, metric_name, need

# places of labels beside their bars: (first epoch, later epochs), alternating over families
CORNERS = (("bottom left", "top left"), ("bottom right", "bottom right"))
MOST_NAMED = 3  # families in a title; of more, only the most and the least exposed are named
SIMILAR = 0.01  # difference of test accuracy that counts as the same utility


def frontier_lines(table: pd.DataFrame) -> go.Figure:
    """AUC against test accuracy along training, a line per family, markers labelled with the epoch.

    Bars in both directions are the table's 95 % intervals; the last checkpoint is large. Families
    can be compared only where their lines stand over the same accuracy.

    Parameters:
        table: a `metrics.frontier`, or its `metrics.frontier_table.frontier_means`; the mean under
            the strongest attack of each checkpoint is drawn

    Raises:
        ValueError: for missing columns and tables without rows.
    """
    if "target" in table:
        table = frontier_means(table)
    ends = ("auc_low", "auc_high", "test_acc_low", "test_acc_high")
    columns = ("family", "epoch", "attack", "test_acc", "auc", *ends, "pairs", "over_samples")
    need(table, columns, "frontier_lines", finite=("test_acc", "auc"))
    figure = go.Figure()
    ends_at = {}
    for i, (family, rows) in enumerate(table.groupby("family", sort=False)):
        rows = rows.sort_values("epoch")
        _add_family(figure, str(family), rows, i)
        ends_at[family] = rows.iloc[-1]
    return finish(
        figure,
        _where_families_end(ends_at),
        clauses(
            "numbers: epochs",
            "large: last checkpoint",
            f"bars 95 % ({covered(table)})",
            "up and left is bad, down and right good",
        ),
        height=480,
        legend=BELOW,
        xaxis={"title": "test accuracy", "tickformat": "~%"},
        yaxis={"title": "AUC"},
    )


def _add_family(figure: go.Figure, name: str, rows: pd.DataFrame, i: int) -> None:
    """The line of family number i through its checkpoints."""
    colour, dash, symbol = look(i)
    first, next_ones = CORNERS[i % 2]
    corners = [first, *[next_ones] * (len(rows) - 2), "top right"]
    about = [rows["epoch"], rows["attack"].map(attacks.in_words), rows["pairs"]]
    faint = {"color": translucent(colour, 0.45), "thickness": 1.2, "width": 0}
    figure.add_scatter(
        x=rows["test_acc"],
        y=rows["auc"],
        customdata=np.column_stack(about),
        mode="lines+markers+text",
        name=name,
        text=rows["epoch"].astype(str),
        textposition=corners[-len(rows) :],
        textfont={"size": 11, "color": colour},
        line={"color": colour, "width": 2, "dash": dash},
        marker={
            "symbol": symbol,
            "color": colour,
            "opacity": 1,
            "size": [7] * (len(rows) - 1) + [15],
        },
        error_x=bars(rows["test_acc"], rows["test_acc_low"], rows["test_acc_high"], **faint),
        error_y=bars(rows["auc"], rows["auc_low"], rows["auc_high"], **faint),
        hovertemplate=(
            "epoch %{customdata[0]}: test accuracy %{x:.1%}, %{y:.3f} (%{customdata[1]},"
            " %{customdata[2]} pairs)"
        ),
    )


def _where_families_end(ends_at: dict[str, pd.Series]) -> str:
    """AUC and accuracy of each family's last checkpoint, or of the most and least exposed only."""
    shown = list(ends_at)
    if len(ends_at) > MOST_NAMED:
        by_risk = sorted(ends_at, key=lambda family: -ends_at[family]["auc"])
        shown = [by_risk[0], by_risk[-1]]
    parts = []
    for family in shown:
        last = ends_at[family]
        parts.append(
            f"{family} ends at AUC {last['auc']:.3f} with test accuracy {last['test_acc']:.1%}"
        )
    if len(ends_at) > MOST_NAMED:
        parts.append(f"{len(ends_at) - 2} others lie between them")
    return clauses(*parts)


def defenses(table: pd.DataFrame, *, undefended: str | None = None) -> go.Figure:
    """The remaining risk of defenses and their cost: AUC against test accuracy, and against the
    generalisation gap.

    Dotted lines lead from the undefended network to the others. The shaded region is at most a
    point less accurate than the undefended network, so risks in it can be compared; a defense to
    its left buys its lower risk with accuracy. Right: the line of overfitting alone, AUC 1/2 +
    gap/2.

    Parameters:
        table: a long table with columns name, attack, metric, fpr, value, low, high, measurable and
            perhaps defense and output. Each name has rows of test_acc, gap and auc, such as those
            of the attack "max" in `metrics.summary`
        undefended: name of the network without a defense, by default the first row whose defense
            and output are empty

    Raises:
        ValueError: for missing columns or values, a name that comes twice, and an undefended
            network that is not in the table.

    Source: Figure 3 of Hong, Wu, Gruber and Lee (arXiv 2501.06686).
    """
    risks = _networks(table, "auc")
    accuracies = _networks(table, "test_acc").loc[risks.index]
    gaps = _networks(table, "gap").loc[risks.index]
    base = _undefended(risks, undefended)
    panels = {"shared_yaxes": True, "horizontal_spacing": 0.05, "column_widths": [0.6, 0.4]}
    figure = make_subplots(1, 2, **panels)
    add_overfitting(figure, gaps["value"], row=1, col=2)
    for i, name in enumerate(risks.index):
        for column, across in enumerate((accuracies, gaps), start=1):
            _add_defense(figure, name, across, risks, base, i, row=1, col=column)
    figure.add_hline(y=0.5, line=THIN, row=1, col=1)
    if base is not None:
        figure.add_vrect(
            x0=accuracies.loc[base, "value"] - SIMILAR,
            x1=accuracies["value"].max() + SIMILAR,
            fillcolor=GREY,
            opacity=0.14,
            line_width=0,
            row=1,
            col=1,
        )
    return finish(
        figure,
        _traded(risks, accuracies["value"], base) + _masked(risks),
        clauses(
            "strongest attack of each",
            "bars 95 %",
            "shaded: at most a point less accurate",
            "dotted: from the undefended",
        ),
        height=480,
        legend=BELOW,
        xaxis={"title": {"text": "test accuracy"}, "tickformat": "~%"},
        xaxis2={"title": {"text": metric_name("gap")}, "tickformat": "~%"},
        yaxis_title_text="AUC",
    )


def _networks(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rows of one metric, by the name of the network."""
    columns = ("name", "attack", "metric", "fpr", "value", "low", "high")
    need(table, columns, "defenses")
    rows = rows_of(table, metric)
    need(rows, columns, "defenses", finite=("value",), once=("name",))
    return rows.set_index("name")


def _undefended(risks: pd.DataFrame, name: str | None) -> str | None:
    """The network of this name, by default the first one without a defense."""
    if name is not None and name not in risks.index:
        raise ValueError(
            f"undefended={name!r} is not in the table: wanted one of {listed(risks.index)}"
        )
    if name is not None:
        return name
    plain = (risks.reindex(columns=["defense", "output"]) == "").all(axis=1)
    return risks.index[plain][0] if plain.any() else None


def _add_defense(
    figure: go.Figure,
    name: str,
    across: pd.DataFrame,
    risks: pd.DataFrame,
    base: str | None,
    i: int,
    **place: Any,
) -> None:
    """One network in one panel, with a dotted line from the undefended one.

    across: values on the x axis, a row per network like the risks
    """
    colour = look(i).colour
    place = place | {"legendgroup": name}
    plain = name == base
    if base is not None and not plain:
        ends = [base, name]
        figure.add_scatter(
            x=across.loc[ends, "value"],
            y=risks.loc[ends, "value"],
            mode="lines",
            line={"color": translucent(colour, 0.6), "dash": "dot", "width": 1.2},
            showlegend=False,
            hoverinfo="skip",
            **place,
        )
    symbol = "star" if plain else MARKERS[i % (len(MARKERS) - 1)]
    x = across.loc[[name]]
    y = risks.loc[[name]]
    figure.add_scatter(
        x=x["value"],
        y=y["value"],
        mode="markers",
        name=f"{name} (undefended)" if plain else name,
        showlegend=place["col"] == 1,
        marker={"symbol": symbol, "size": 14 if plain else 11, "color": colour},
        error_x=bars(x["value"], x["low"], x["high"], thickness=1.2, width=0),
        error_y=bars(y["value"], y["low"], y["high"], thickness=1.2, width=0),
        hovertemplate=(
            f"{name} ({attacks.in_words(risks.loc[name, 'attack'])}): AUC %{{y:.3f}},"
            " %{x:.1%}<extra></extra>"
        ),
        **place,
    )


def _traded(risks: pd.DataFrame, accuracy: pd.Series, base: str | None) -> str:
    """The lowest risk and its price, and the lowest risk at equal accuracy."""
    risk = risks["value"]
    others = risk
    if "output" in risks and (risks["output"] == "").any():
        others = risk[risks["output"] == ""]  # risk behind masks: these attacks only
    least = others.idxmin()
    if base is None:
        at = f"test accuracy {accuracy[least]:.1%}"
        return f"{_shortest(least, risk.index)} leaks least: AUC {risk[least]:.3f} at {at}"
    sentence = f"{base} undefended: AUC {risk[base]:.3f} at {accuracy[base]:.1%}"
    named = {name: _shortest(name, risk.index).removeprefix(f"{base}, ") for name in risk.index}
    if least != base:
        points = 100 * (accuracy[least] - accuracy[base])
        price = f"{abs(points):.1f} points {'less' if points < 0 else 'more'} accurate"
        sentence += f"; {named[least]} leaks least: {risk[least]:.3f}, {price}"
    near = others[accuracy[others.index] >= accuracy[base] - SIMILAR].drop(base, errors="ignore")
    if near.empty:
        return f"{sentence}; every defense in training costs more than a point of accuracy"
    best = near.idxmin()
    if best == least:
        return sentence
    return f"{sentence}; at most a point less accurate: {named[best]}, {risk[best]:.3f}"


def _masked(risks: pd.DataFrame) -> str:
    """The lowest risk behind masked answers, which holds only for the attacks that were tried."""
    if "output" not in risks or (risks["output"] == "").all() or (risks["output"] != "").all():
        return ""
    masked = risks.loc[risks["output"] != "", "value"]
    least = masked.idxmin()
    return f"; answers masked by {least.rpartition(', ')[2]}: {masked[least]:.3f} by these attacks"


def _shortest(name: str, names: Iterable[str]) -> str:
    """The first parts of a name that tell it from the others, without options of a defense."""
    parts = name.split(", ")
    for count in range(1, len(parts)):
        short = ", ".join(parts[:count])
        if sum(f"{other}, ".startswith(f"{short}, ") for other in names) == 1:
            return short
    return name


def costs(table: pd.DataFrame) -> go.Figure:
    """The costs of families: a bar for seconds per epoch and one for MiB of memory, with ratios to
    the first family.

    Parameters:
        table: a row per family with columns family, seconds (per epoch), memory_mib, and parameters
            (shown below the name)

    Raises:
        ValueError: for missing columns or values, values that are not positive, and a family that
            comes twice.

    Caveat: seconds depend on the machine.
    """
    measured = ["seconds", "memory_mib", "parameters"]
    need(table, ("family", *measured), "costs", finite=measured, once=("family",))
    if (table[measured] <= 0).any(axis=None):
        raise ValueError(
            "costs got values that are not positive: measure them, or leave the family out"
        )
    first = table.iloc[0]
    slow = table.loc[table["seconds"].idxmax()]
    large = table.loc[table["memory_mib"].idxmax()]
    table = table[::-1]  # bars are drawn from the bottom
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.06)
    names = table["family"]
    for column, cost, title, colour in (
        (1, "seconds", "seconds per epoch", LINES[3]),
        (2, "memory_mib", "memory (MiB)", LINES[2]),
    ):
        _add_costs(figure, names, table[cost], first[cost], title, colour, row=1, col=column)
    labels = [f"{row.family}<br>{row.parameters:,.0f} parameters" for row in table.itertuples()]
    figure.update_yaxes(tickvals=names, ticktext=labels)
    whose = " and" if slow.family == large.family else f", {large.family}"
    longer = in_digits(slow.seconds / first.seconds)
    larger = in_digits(large.memory_mib / first.memory_mib)
    return finish(
        figure,
        f"{slow.family} takes {longer} times the time of {first.family} per epoch{whose}"
        f" {larger} times its memory",
        f"in brackets: ratio to {first.family}",
        height=170 + 52 * len(table),
    )


def _add_costs(
    figure: go.Figure,
    names: pd.Series,
    values: pd.Series,
    first: float,
    title: str,
    colour: str,
    **place: Any,
) -> None:
    """A bar for each family, with its value and its ratio to the first family in words."""
    words = []
    for value in values:
        number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        words.append(f" {number} ({in_digits(value / first)}×)")
    figure.add_bar(
        x=values,
        y=names,
        orientation="h",
        marker={"color": colour},
        showlegend=False,
        hovertemplate=f"%{{y}}: %{{x:,.4g}} {title}<extra></extra>",
        **place,
    )
    figure.add_scatter(
        x=values.to_numpy(float),
        y=names,
        text=words,
        mode="text",
        textposition="middle right",
        cliponaxis=False,
        showlegend=False,
        hoverinfo="skip",
        **place,
    )
    figure.update_xaxes(title_text=title, range=[0, 1.35 * values.max()], **place)
