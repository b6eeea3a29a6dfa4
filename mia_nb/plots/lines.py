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
MOST_CHARACTERS = 6  # of a number that somebody chose, as 0.0625
MANY = 8  # numbers on a logarithmic axis above which only powers of 2 are written
SHARES = ("test accuracy", "train accuracy", "TPR")  # beginnings of the names of shares
SIZES = {"pairs": "pair", "n1": "member", "n0": "non-member"}  # columns with sample sizes
LEVEL_DASHES = DASHES[1:]  # lines are solid


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
    columns = [column for column in (panel, line, variant) if column is not None]
    numeric = x in table and is_number(table[x])
    table = table.reset_index(drop=True)
    if panel == "metric" and "metric" in table:
        table = _with_metrics_in_words(table)
    if panel == "metric" and levels is not None:
        levels = _with_metrics_in_words(levels)
    table = _drawable(table, x, columns, numeric)
    axis = _Axis(table[x], numeric, log)
    panels = [""] if panel is None else list(dict.fromkeys(table[panel]))
    series = table[[column for column in columns if column != panel]].drop_duplicates()
    figure = make_subplots(1, len(panels), horizontal_spacing=0.28 / (len(panels) + 1))
    for number, name in enumerate(panels, start=1):
        place = {"row": 1, "col": number}
        rows = table
        rows_of_levels = levels
        if panel is not None:
            rows = table[table[panel] == name]
            if levels is not None:
                rows_of_levels = levels[levels[panel] == name]
            shares = str(name).startswith(SHARES)
            y_title = str(name)
        if rows_of_levels is not None:
            _add_levels(figure, rows_of_levels, line, axis, len(series), shares, place)
        _add_series(figure, rows, series, x, line, variant, axis, shares, place)
        if "chance" in rows and rows["chance"].notna().any():
            figure.add_hline(y=rows["chance"].dropna().iloc[0], line=DOTTED, **place)
        figure.update_yaxes(title_text=y_title, tickformat="~%" if shares else None, **place)
    _name_once(figure)
    figure.update_xaxes(title_text=x_title or x, **axis.layout())
    return finish(figure, title, caption, height=height, legend=BELOW)


def _drawable(table: pd.DataFrame, x: str, columns: list[str], numeric: bool) -> pd.DataFrame:
    """The table with settings that are no numbers as words, and with ends of intervals; ValueError
    where it cannot be drawn.
    """
    if x in table and not numeric:
        table = table.assign(**{x: table[x].map(str)})  # None and lists are settings, too
    need(table, (x, *columns, "value"), "lines", once=(*columns, x))
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


def _with_metrics_in_words(table: pd.DataFrame) -> pd.DataFrame:
    """The table with its metrics in words, a TPR with its false positive rate."""
    fpr = table["fpr"] if "fpr" in table else pd.Series(np.nan, table.index)
    return table.assign(metric=list(map(metric_name, table["metric"], fpr)))


class _Axis:
    """The places of settings: numbers at their value, words in a row, infinity beyond the last."""

    def __init__(self, settings: pd.Series, numeric: bool, log: bool) -> None:
        self.numeric = numeric
        self.log = numeric and log
        self.values = settings.unique()
        self.places = np.arange(0.0, len(self.values))
        if numeric:
            self.values = np.sort(self.values).astype(float)
            self._check_numbers(settings.name)
            finite = np.isfinite(self.values)
            last = self.values[finite].max() if finite.any() else 1.0
            self.places = np.where(finite, self.values, last * 2**BEYOND)

    def _check_numbers(self, name: str) -> None:
        if np.isnan(self.values).any():
            raise ValueError(f"{name} is nan in a row: drop the row or say the setting")
        if self.log and (self.values <= 0).any():
            raise ValueError(
                f"{name} is {self.values.min():g}: wanted numbers above 0 on a logarithmic axis;"
                " what has no setting goes into levels"
            )

    def of(self, settings: pd.Series, steps: float = 0.0) -> np.ndarray:
        """The places of these settings, moved by `steps` from the common place of all lines."""
        place_of = dict(zip(self.values, self.places, strict=True))
        places = settings.map(place_of).to_numpy(float)
        if self.log:
            return places * 2 ** (OCTAVES * steps)
        if len(self.places) < 2:
            return places
        return places + DODGE * np.diff(np.sort(self.places)).min() * steps

    def ends(self) -> np.ndarray:
        """Both ends of the axis."""
        first = self.places.min()
        last = self.places.max()
        if self.log:
            return np.array([first / 1.25, last * 1.25])
        reach = max(0.04 * (last - first), 0.05) if self.numeric else 0.5
        return np.array([first - reach, last + reach])

    def layout(self) -> dict:
        """Range and ticks for plotly."""
        is_written = np.ones(len(self.values), bool)
        if self.log and len(self.values) > MANY:
            is_written = np.isinf(self.values) | (np.log2(self.places) % 1 == 0)
            is_written[[0, -1]] |= not is_written.any()
        return {
            "type": "log" if self.log else "linear",
            "range": np.log10(self.ends()) if self.log else self.ends(),
            "tickmode": "array",
            "tickvals": self.places[is_written],
            "ticktext": self._texts(self.values[is_written]),
        }

    def _texts(self, values: np.ndarray) -> list[str]:
        """Settings in words. Numbers of many digits, which nobody chose, are rounded to as few as
        tell all settings apart.
        """
        texts = [text(value) for value in values]
        if not self.numeric:
            return texts
        for digits in (3, 4, 5):
            rounded = [
                text(float(f"{value:.{digits}g}")) if len(long) > MOST_CHARACTERS else long
                for value, long in zip(values, texts, strict=True)
            ]
            if len(set(rounded)) == len(values):
                return rounded
        return texts


def _add_series(
    figure: go.Figure,
    table: pd.DataFrame,
    series: pd.DataFrame,
    x: str,
    line: str,
    variant: str | None,
    axis: _Axis,
    shares: bool,
    place: dict,
) -> None:
    """The lines of one panel; of `series`, a row each, those that have rows in its table.

    The points of infinite settings are a trace of their own, which no line joins to the others.
    """
    style_of = looks(dict.fromkeys(series[line]))
    variants = [] if variant is None else list(dict.fromkeys(series[variant]))
    in_panel = series.merge(table[list(series)].drop_duplicates())
    has_bars = table[["low", "high"]].notna().any(axis=None)
    for i, (_, key) in enumerate(in_panel.iterrows()):
        rows = table[(table[list(key.index)] == key).all(axis=1)]
        rows = rows.sort_values(x, key=axis.of)
        number_of_variant = 0 if variant is None else variants.index(key[variant])
        name = ", ".join(str(part) for part in key if str(part))
        colour, _, symbol = style_of[key[line]]
        dash = DASHES[number_of_variant % len(DASHES)]
        steps = i - (len(in_panel) - 1) / 2 if has_bars else 0.0
        infinite = np.isinf(rows[x]) if axis.numeric else np.zeros(len(rows), bool)
        for points, at_infinity in ((rows[~infinite], False), (rows[infinite], True)):
            if points.empty:
                continue
            joined = axis.numeric and not at_infinity
            is_open = np.full(len(points), at_infinity or number_of_variant > 0)
            if "measurable" in points:
                is_open |= ~points["measurable"].astype(bool).to_numpy()
            figure.add_scatter(
                x=axis.of(points[x], steps),
                y=points["value"],
                error_y=bars(points["value"], points["low"], points["high"]),
                customdata=_settings(points[x]),
                hovertext=sample_sizes(points),
                mode="lines+markers" if joined else "markers",
                name=name,
                legendgroup=name,
                line={"color": colour, "width": 2, "dash": dash},
                marker={
                    "size": 9,
                    "color": colour,
                    "symbol": np.where(is_open, f"{symbol}-open", symbol).tolist(),
                },
                hovertemplate=(
                    f"{x} = %{{customdata}}: {_hover_of_y(shares)}"
                    f"<br>%{{hovertext}}<extra>{name}</extra>"
                ),
                **place,
            )


def _hover_of_y(shares: bool) -> str:
    return "%{y:.1%}" if shares else "%{y:.3f}"


def _settings(settings: pd.Series) -> list:
    """The settings for hovers and clicks, infinity as text, which JSON lacks."""
    return ["∞" if setting == np.inf else setting for setting in settings.tolist()]


def sample_sizes(rows: pd.DataFrame) -> list[str]:
    """Sample sizes of each row in words, for its hover."""
    words = []
    for _, row in rows.iterrows():
        sizes = []
        for column, unit in SIZES.items():
            if column in rows:
                plural = "" if row[column] == 1 else "s"
                sizes.append(f"{row[column]:,g} {unit}{plural}")
        words.append(" · ".join(sizes))
    return words


def _add_levels(
    figure: go.Figure,
    levels: pd.DataFrame,
    line: str,
    axis: _Axis,
    number_of_lines: int,
    shares: bool,
    place: dict,
) -> None:
    """Dashed levels over the whole axis with bands of their intervals. The first level is grey, the
    others take the colours that follow those of the lines.
    """
    for i, (_, row) in enumerate(levels.iterrows()):
        name = str(row[line])
        colour = GREY
        if i > 0:
            colour = LINES[(number_of_lines + i - 1) % len(LINES)]
        level(
            figure,
            axis.ends(),
            float(row["value"]),
            float(row["low"]),
            float(row["high"]),
            colour=colour,
            dash=LEVEL_DASHES[i % len(LEVEL_DASHES)],
            name=name,
            legendgroup=name,
            legendrank=1001,  # below the lines, whose rank is 1000
            hovertemplate=f"{name}: {_hover_of_y(shares)}<extra></extra>",
            **place,
        )


def _name_once(figure: go.Figure) -> None:
    """Name each line once in the legend, however many panels and traces it has."""
    names = set()
    for trace in figure.data:
        if trace.showlegend is None:  # bands have False
            trace.showlegend = bool(trace.name) and trace.name not in names
            names.add(trace.name)
