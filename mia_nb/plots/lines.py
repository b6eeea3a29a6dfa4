"""Any measured value against any setting: lines over the long table of results."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mia_nb.plots.marks import bars, level
from mia_nb.plots.style import BELOW, DASHES, DOTTED, GREY, LINES, finish, looks
from mia_nb.plots.tables import metric_name, need, text

# distance of lines that share a place, so that their bars can be told apart
OCTAVES = 0.04  # on a logarithmic axis
DODGE = 0.08  # on other axes, as a share of the distance between neighbours
BEYOND = 1.5  # octaves from the last number to infinity
MANY = 8  # numbers on a logarithmic axis above which only powers of 2 are written
SHARES = ("test accuracy", "train accuracy", "TPR")  # beginnings of the names of shares
SIZES = {"pairs": "pairs", "n1": "members", "n0": "non-members"}


def lines(
    table: pd.DataFrame,
    x: str,
    *,
    line: str = "line",
    variant: str | None = None,
    panel: str | None = None,
    levels: pd.DataFrame | None = None,
    log: bool = False,
    shares: bool = False,
    x_title: str = "",
    y_title: str = "",
    title: str = "",
    caption: str = "",
    height: int = 460,
) -> go.Figure:
    """A measured value against a setting, a line for each family, with intervals.

    Settings that are numbers are joined by lines, words and booleans are not. Points with bars that
    share a setting stand a little apart; hovers give the setting itself. An infinite setting stands
    at the end of a logarithmic axis, apart, with an open marker. Values that are not measurable are
    open too. NaN ends draw no bar. A dotted line is chance, where the table has it.

    Parameters:
        table: the long table: columns x, line and value, and optionally low, high, measurable,
            chance, and for hovers pairs, n1, n0
        x: column of the setting
        line: column that colour and marker tell apart
        variant: column that the dash tells apart
        panel: column whose values each get a panel, with percentages for accuracies and TPRs;
            metrics are named in words
        levels: rows without a setting, drawn as dashed levels: columns line, value, low, high and
            panel
        log: whether the axis is logarithmic
        shares: whether values are shares, written as percentages, where there are no panels
        x_title: title of the x axis; the column's name where empty
        y_title: title of the y axis where there are no panels
        title: a sentence above the figure
        caption: a note below it
        height: pixels

    Raises:
        ValueError: for missing columns, no row, an infinite value, a setting that is NaN or, on a
            logarithmic axis, not above 0, and a line that has a setting twice.

    Example:
        >>> import pandas as pd
        >>> rows = [(1, 0.61, 0.60, 0.62), (2, 0.64, 0.63, 0.65), (4, 0.66, 0.65, 0.67)]
        >>> table = pd.DataFrame(rows, columns=["T", "value", "low", "high"]).assign(family="SNN")
        >>> figure = lines(table, "T", line="family", log=True, y_title="AUC")
        >>> [float(y) for y in figure.data[0].y]
        [0.61, 0.64, 0.66]
    """
    keys = [column for column in (panel, line, variant) if column is not None]
    numeric = x in table and is_number(table[x])
    table = _drawable(table, x, keys, numeric, in_words=panel == "metric")
    if panel == "metric" and levels is not None:
        levels = _in_words(levels)
    axis = _Axis(table[x], numeric, log)
    panels = [""] if panel is None else list(dict.fromkeys(table[panel]))
    series = table[[key for key in keys if key != panel]].drop_duplicates()
    figure = make_subplots(1, len(panels), horizontal_spacing=0.28 / (len(panels) + 1))
    for column, name in enumerate(panels, start=1):
        in_panel = table if panel is None else table[table[panel] == name]
        share = shares if panel is None else str(name).startswith(SHARES)
        place = {"row": 1, "col": column}
        if levels is not None:
            in_levels = levels if panel is None else levels[levels[panel] == name]
            _add_levels(figure, in_levels, line, axis, len(series), share, place)
        _add_series(figure, in_panel, series, x, line, variant, axis, share, place)
        if "chance" in in_panel and in_panel["chance"].notna().any():
            figure.add_hline(y=in_panel["chance"].dropna().iloc[0], line=DOTTED, **place)
        figure.update_yaxes(
            title_text=str(name) if panel is not None else y_title,
            tickformat="~%" if share else None,
            **place,
        )
    _name_once(figure)
    figure.update_xaxes(title_text=x_title or x, **axis.layout())
    return finish(figure, title, caption, height=height, legend=BELOW)


def _drawable(
    table: pd.DataFrame, x: str, keys: list[str], numeric: bool, in_words: bool
) -> pd.DataFrame:
    """The table with words for metrics and for settings that are no numbers, and with ends of
    intervals; ValueError where it cannot be drawn.
    """
    table = table.reset_index(drop=True)
    if in_words and "metric" in table:
        table = _in_words(table)
    if x in table and not numeric:
        table[x] = table[x].map(str)  # None and lists are settings, too
    need(table, (x, *keys, "value"), "lines", once=(*keys, x))
    infinite = table[np.isinf(table["value"].astype(float))]
    if len(infinite):
        setting = text(infinite.iloc[0][x])
        raise ValueError(f"lines: value is infinite where {x} is {setting}: drop the row")
    if not {"low", "high"} <= set(table):
        table = table.assign(low=np.nan, high=np.nan)
    return table


def is_number(values: pd.Series) -> bool:
    """Whether settings are numbers, which lie on an axis; booleans count as words."""
    kinds = pd.api.types
    return kinds.is_numeric_dtype(values) and not kinds.is_bool_dtype(values)


def _in_words(table: pd.DataFrame) -> pd.DataFrame:
    """The table with its metrics in words, a TPR with its false positive rate."""
    fpr = table["fpr"] if "fpr" in table else pd.Series(np.nan, table.index)
    return table.assign(metric=list(map(metric_name, table["metric"], fpr)))


class _Axis:
    """The places of settings: numbers at their value, words in a row, infinity beyond the last."""

    def __init__(self, settings: pd.Series, numeric: bool, log: bool) -> None:
        values = np.sort(settings.unique()) if numeric else settings.unique()
        self.joined = numeric
        self.log = numeric and log
        if not numeric:
            self.values = values
            self.places = np.arange(0.0, len(values))
        else:
            self.values = values.astype(float)
            if np.isnan(self.values).any():
                raise ValueError(
                    f"{settings.name} is nan in a row: drop the row or say the setting"
                )
            finite = np.isfinite(self.values)
            if self.log and (self.values <= 0).any():
                raise ValueError(
                    f"{settings.name} is {self.values.min():g}: wanted numbers above 0 on a"
                    " logarithmic axis; what has no setting goes into levels"
                )
            last = self.values[finite].max() if finite.any() else 1.0
            self.places = np.where(finite, self.values, last * 2**BEYOND)

    def of(self, settings: pd.Series, steps: float = 0.0) -> np.ndarray:
        """The places of these settings, moved by `steps` from the common place of all lines."""
        place = settings.map(dict(zip(self.values, self.places, strict=True))).to_numpy(float)
        if self.log:
            return place * 2 ** (OCTAVES * steps)
        if len(self.places) < 2:
            return place
        return place + DODGE * np.diff(np.sort(self.places)).min() * steps

    def ends(self) -> np.ndarray:
        """Both ends of the axis."""
        first = self.places.min()
        last = self.places.max()
        if self.log:
            return np.array([first / 1.25, last * 1.25])
        reach = max(0.04 * (last - first), 0.05) if self.joined else 0.5
        return np.array([first - reach, last + reach])

    def layout(self) -> dict:
        """Range and ticks for plotly."""
        written = np.ones(len(self.values), bool)
        if self.log and len(self.values) > MANY:
            written = np.isinf(self.values) | (np.log2(self.places) % 1 == 0)
        names = [text(value) for value in self.values]
        return {
            "type": "log" if self.log else "linear",
            "range": np.log10(self.ends()) if self.log else self.ends(),
            "tickmode": "array",
            "tickvals": self.places[written],
            "ticktext": [name for name, shown in zip(names, written, strict=True) if shown],
        }


def _add_series(
    figure: go.Figure,
    table: pd.DataFrame,
    series: pd.DataFrame,
    x: str,
    line: str,
    variant: str | None,
    axis: _Axis,
    share: bool,
    place: dict,
) -> None:
    """The lines of one panel."""
    style_of = looks(dict.fromkeys(series[line]))
    variants = [] if variant is None else list(dict.fromkeys(series[variant]))
    keys = series.merge(table[list(series)].drop_duplicates())
    has_bars = table[["low", "high"]].notna().any(axis=None)
    for i, (_, key) in enumerate(keys.iterrows()):
        rows = table[(table[list(key.index)] == key).all(axis=1)]
        rows = rows.sort_values(x, key=axis.of)
        other = 0 if variant is None else variants.index(key[variant])
        name = ", ".join(str(part) for part in key if str(part))
        colour, _, symbol = style_of[key[line]]
        apart = np.isinf(rows[x]) if axis.joined else np.zeros(len(rows), bool)
        steps = i - (len(keys) - 1) / 2 if has_bars else 0.0
        for part, is_apart in ((rows[~apart], False), (rows[apart], True)):
            if part.empty:
                continue
            joined = axis.joined and not is_apart
            open_markers = np.full(len(part), is_apart or other > 0)
            if "measurable" in part:
                open_markers |= ~part["measurable"].astype(bool).to_numpy()
            figure.add_scatter(
                x=axis.of(part[x], steps),
                y=part["value"],
                error_y=bars(part["value"], part["low"], part["high"]),
                customdata=_settings(part[x]),
                hovertext=facts(part),
                mode="lines+markers" if joined else "markers",
                name=name,
                legendgroup=name,
                line={"color": colour, "width": 2, "dash": DASHES[other % len(DASHES)]},
                marker={
                    "size": 9,
                    "color": colour,
                    "symbol": [f"{symbol}-open" if is_open else symbol for is_open in open_markers],
                },
                hovertemplate=(
                    f"{x} = %{{customdata}}: %{{y:{'.1%' if share else '.3f'}}}"
                    f"<br>%{{hovertext}}<extra>{name}</extra>"
                ),
                **place,
            )


def _settings(settings: pd.Series) -> list:
    """The settings for hovers and clicks, infinity as text, which JSON lacks."""
    return ["∞" if setting == np.inf else setting for setting in settings.tolist()]


def facts(rows: pd.DataFrame) -> list[str]:
    """Sample sizes of each row, for its hover."""
    facts = []
    for _, row in rows.iterrows():
        sizes = [f"{row[column]:,g} {unit}" for column, unit in SIZES.items() if column in rows]
        facts.append(" · ".join(sizes))
    return facts


def _add_levels(
    figure: go.Figure,
    levels: pd.DataFrame,
    line: str,
    axis: _Axis,
    lines_before: int,
    share: bool,
    place: dict,
) -> None:
    """Dashed levels over the whole axis with bands of their intervals, the first level in grey."""
    for i, (_, row) in enumerate(levels.iterrows()):
        name = str(row[line])
        level(
            figure,
            axis.ends(),
            float(row["value"]),
            float(row["low"]),
            float(row["high"]),
            colour=GREY if i == 0 else LINES[(lines_before + i - 1) % len(LINES)],
            dash=DASHES[1:][i % len(DASHES[1:])],
            name=name,
            legendgroup=name,
            legendrank=1001,
            hovertemplate=f"{name}: %{{y:{'.1%' if share else '.3f'}}}<extra></extra>",
            **place,
        )


def _name_once(figure: go.Figure) -> None:
    """Name each line once in the legend, however many panels and parts it has."""
    named = set()
    for trace in figure.data:
        if trace.showlegend is None:  # bands have False
            trace.showlegend = bool(trace.name) and trace.name not in named
            named.add(trace.name)
