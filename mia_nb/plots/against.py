"""Two measured values against each other: points with intervals in both directions."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from mia_nb.plots.lines import SHARES, is_number, sample_sizes
from mia_nb.plots.marks import bars
from mia_nb.plots.style import BELOW, Look, finish, looks, translucent
from mia_nb.plots.tables import metric_name, need

# where labels stand beside the first point and beside later ones, of every other line
CORNERS = (("bottom left", "top left"), ("bottom right", "bottom right"))


def against(
    table: pd.DataFrame,
    x: str,
    y: str,
    *,
    line: str = "line",
    label: str | None = None,
    title: str = "",
    caption: str = "",
) -> go.Figure:
    """One measured value against another, such as the AUC against test accuracy: a point a row,
    with bars.

    Axes bear the columns' names, those of metrics in words; accuracies and gaps are percentages.

    Parameters:
        table: columns x, y and line, and optionally the ends {x}_low, {x}_high, {y}_low, {y}_high,
            where NaN draws no bar; for hovers pairs, n1, n0
        x: column of the values to the right
        y: column of the values upwards; where these are words, each is a row of the figure
        line: column that colour and marker tell apart
        label: column written beside the points, such as the epoch. The points of a line are then
            joined in the order of the rows, and the last one is large
        title: a sentence above the figure
        caption: a note below it

    Raises:
        ValueError: for missing columns, no row, and a value that is not finite.

    Example:
        >>> import pandas as pd
        >>> rows = [(2, 0.70, 0.55), (4, 0.75, 0.58), (8, 0.77, 0.64)]
        >>> table = pd.DataFrame(rows, columns=["epoch", "test_acc", "auc"]).assign(line="ResNet14")
        >>> figure = against(table, "test_acc", "auc", label="epoch")
        >>> [float(accuracy) for accuracy in figure.data[0].x]
        [0.7, 0.75, 0.77]
    """
    columns = (x, y, line) if label is None else (x, y, line, label)
    numbers = tuple(name for name in (x, y) if name in table and is_number(table[name]))
    need(table, columns, "against", finite=numbers)
    style_of = looks(table[line].unique())
    hover = f"%{{x{_form(table[x])}}}, %{{y{_form(table[y])}}}<br>%{{hovertext}}"
    if label is not None:
        hover = f"{label} %{{text}}: {hover}"
    figure = go.Figure()
    for i, (name, rows) in enumerate(table.groupby(line, sort=False)):
        style = style_of[name]
        points = {"mode": "markers", "marker": {"size": 11}}
        bar_colour = style.colour
        if label is not None:
            points = _joined(rows[label], style, i)
            bar_colour = translucent(style.colour, 0.45)
        points["marker"] |= {"symbol": style.symbol, "color": style.colour, "opacity": 1}
        figure.add_scatter(
            x=rows[x],
            y=rows[y],
            error_x=_bars(rows, x, bar_colour),
            error_y=_bars(rows, y, bar_colour),
            name=str(name),
            hovertext=sample_sizes(rows),
            hovertemplate=hover,
            **points,
        )
    return finish(
        figure,
        title,
        caption,
        height=480,
        legend=BELOW,
        showlegend=True,
        xaxis={"title": metric_name(x), "tickformat": "~%" if _is_share(x) else None},
        yaxis={"title": metric_name(y), "tickformat": "~%" if _is_share(y) else None},
    )


def _joined(labels: pd.Series, style: Look, i: int) -> dict[str, Any]:
    """How the points of line number i are joined and labelled; the last point is large."""
    first, later = CORNERS[i % 2]
    corners = [later] * len(labels)
    corners[0] = first
    corners[-1] = "top right"
    return {
        "mode": "lines+markers+text",
        "text": labels.astype(str),
        "textposition": corners,
        "textfont": {"size": 11, "color": style.colour},
        "line": {"color": style.colour, "width": 2, "dash": style.dash},
        "marker": {"size": [7] * (len(labels) - 1) + [15]},
    }


def _bars(rows: pd.DataFrame, column: str, colour: str) -> dict[str, Any] | None:
    """The bars of a column; None where the table has no ends."""
    low = f"{column}_low"
    high = f"{column}_high"
    if low not in rows or high not in rows:
        return None
    return bars(rows[column], rows[low], rows[high], color=colour, thickness=1.2, width=0)


def _is_share(column: str) -> bool:
    return metric_name(column).startswith(SHARES)


def _form(values: pd.Series) -> str:
    """The format of a column's values in hovers; words have none."""
    if not is_number(values):
        return ""
    return ":.1%" if _is_share(values.name) else ":.3f"
