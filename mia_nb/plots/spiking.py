"""Spiking pools as pictures: against time steps, site by site, confidences, p x Q, and a layer while it fires."""

from __future__ import annotations

import base64
import io
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from PIL import Image
from plotly.subplots import make_subplots

from mia_nb import metrics
from mia_nb.plots.style import DASHES, GREY, LINES, MARKERS, MEMBER, NON_MEMBER, finish, translucent
from mia_nb.types import Signals

DODGE = 0.04  # octaves between lines that share a time step, so that their bars stay apart
ROWS = 200  # neurons in a raster
TRACED = 3
BESIDE = 0.82  # where a picture beside a raster begins
BELOW = {
    "orientation": "h",
    "x": 0,
    "y": -0.2,
    "yanchor": "top",
}  # a legend below leaves a notebook's width to the picture


class Level(NamedTuple):
    """A value that does not depend on T, with its interval (NaN: none)."""

    value: float
    low: float
    high: float


def against_timesteps(
    table: pd.DataFrame, *, reference=None, y_title: str = "AUC", y_format: str = ".3f"
) -> go.Figure:
    """A measured value against T, a line per family, over levels that have no T: Figure 2 (right) of Guan et al. 2025.

    table: a row per line and T with columns line, timesteps, value, low, high (NaN ends: no interval, no bar). reference:
    {name: (value, low, high)} or a frame with these columns indexed by name, drawn as dashed levels with bands. The x axis is
    log2 T; lines that share a T stand a little apart, `customdata` holds the exact T. The sentence speaks of the first line.
    y_format: ".3f", or ".1%" for shares. ValueError for missing columns or values, T below 1, a line with the same T twice.
    """
    table, levels = _lines(table), _levels(reference)
    figure = go.Figure()
    _draw_lines(figure, table, levels, _looks([table]), y_format)
    return finish(figure, _change(table, y_title, y_format), _bars(table, levels), height=440, legend=BELOW,
                  yaxis=_y_axis(y_title, y_format))  # fmt: skip


def accuracy_and_risk(
    accuracy: pd.DataFrame,
    risk: pd.DataFrame,
    *,
    accuracy_reference=None,
    reference=None,
    y_title: str = "AUC",
) -> go.Figure:
    """`against_timesteps` twice: test accuracy beside the risk it costs; a line keeps its colour and marker in both panels.

    The sentence takes the first line of `accuracy` that `risk` has too, between the smallest and the largest T of both.
    """
    tables, levels = (
        (_lines(accuracy), _lines(risk)),
        (_levels(accuracy_reference), _levels(reference)),
    )
    titles, formats = ("test accuracy", y_title), (".1%", ".3f")
    looks = _looks(tables[::-1])  # as in `against_timesteps` of the risk alone
    figure = make_subplots(1, 2, horizontal_spacing=0.12)
    shown: set[str] = set()
    for column, (table, level, title, form) in enumerate(
        zip(tables, levels, titles, formats, strict=True), start=1
    ):
        _draw_lines(figure, table, level, looks, form, shown, row=1, col=column)
        figure.update_yaxes(**_y_axis(title, form), row=1, col=column)
        shown |= set(table["line"]) | set(level)
    both = [line for line in tables[0]["line"].unique() if line in set(tables[1]["line"])]
    if not both:
        raise ValueError(
            f"accuracy has lines {_listed(tables[0].line)}, risk has {_listed(tables[1].line)}: name one line alike"
        )
    ends = [table[table["line"] == both[0]].set_index("timesteps")["value"] for table in tables]
    common = ends[0].index.intersection(ends[1].index)
    if not len(common):
        raise ValueError(
            f"{both[0]} has no T in both tables: measure accuracy and risk at the same T"
        )
    first, last = common.min(), common.max()
    gained, cost = (end[last] - end[first] for end in ends)
    sentence = f"{both[0]}: from T = {first} to T = {last} accuracy changes by {100 * gained:+.1f} points, {y_title} by {cost:+.3f}"
    return finish(
        figure, sentence, _bars(pd.concat(tables), levels[0] | levels[1]), height=460, legend=BELOW
    )


def conversion_quality(table: pd.DataFrame, *, ann=None) -> go.Figure:
    """Accuracy after conversion against T, a line per way of fitting thresholds, under the accuracy of the networks converted.

    table: columns timesteps, fit ("refit", "reused", ...), per ("layer", "channel"), value, low, high. ann: a share, or
    (value, low, high). The sentence names the best line at the largest T and the first T at which it is within a point.
    """
    _need(table, ("timesteps", "fit", "per", "value", "low", "high"), "conversion_quality")
    table = _lines(
        table.assign(
            line=[f"{fit}, per {per}" for fit, per in zip(table["fit"], table["per"], strict=True)]
        )
    )
    levels = (
        {} if ann is None else _levels({"ANN": (ann, np.nan, np.nan) if np.isscalar(ann) else ann})
    )
    figure = go.Figure()
    _draw_lines(figure, table, levels, _looks([table]), ".1%")
    last = table[table["timesteps"] == table["timesteps"].max()]
    best = last.loc[last["value"].idxmax()]
    sentence = f"at T = {best.timesteps} {best.line} is best: {best.value:.1%}"
    if levels:
        level = levels["ANN"].value
        own = table[(table["line"] == best.line) & (table["value"] >= level - 0.01)]["timesteps"]
        near = (
            f"it first comes within a point at T = {own.min()}"
            if len(own)
            else "it never comes within a point"
        )
        sentence += f", {100 * abs(best.value - level):.1f} points {'below' if best.value < level else 'above'} the ANN; {near}"
    return finish(figure, sentence, _bars(table, levels), height=440, legend=BELOW,
                  yaxis=_y_axis("accuracy after conversion", ".1%"))  # fmt: skip


def _need(
    table: pd.DataFrame, columns: tuple[str, ...], who: str, finite: tuple[str, ...] = ()
) -> None:
    if lacks := [name for name in columns if name not in table.columns]:
        raise ValueError(
            f"{who} got columns {list(table.columns)}; {', '.join(lacks)} missing: wanted {', '.join(columns)}"
        )
    if not len(table):
        raise ValueError(f"{who} got a table without rows: nothing was measured")
    for name in finite:
        if not np.isfinite(table[name].astype(float)).all():
            row = table[~np.isfinite(table[name].astype(float))].iloc[0]
            raise ValueError(
                f"{who}: {name} is {row[name]} in the row {row.drop(name).to_dict()}: drop the row or measure it"
            )


def _lines(table: pd.DataFrame) -> pd.DataFrame:
    """The five columns, checked: T whole and >= 1 (a log axis would drop others without a word), each line once per T."""
    _need(
        table,
        ("line", "timesteps", "value", "low", "high"),
        "the table against T",
        finite=("timesteps", "value"),
    )
    steps = table["timesteps"].astype(float)
    if ((steps < 1) | (steps % 1 != 0)).any():
        raise ValueError(
            f"timesteps {sorted(steps.unique())}: wanted whole numbers from 1 on; an ANN goes into reference"
        )
    table = table[["line", "timesteps", "value", "low", "high"]].astype(
        {"timesteps": int, "line": str}
    )
    if (twice := table.duplicated(["line", "timesteps"])).any():
        row = table[twice].iloc[0]
        raise ValueError(
            f"{row.line} has T = {row.timesteps} more than once: average over models first, or name the lines apart"
        )
    return table.astype(dict.fromkeys(("value", "low", "high"), float))


def _levels(reference) -> dict[str, Level]:
    if isinstance(reference, pd.DataFrame):
        _need(reference, ("value", "low", "high"), "reference")
        reference = {
            str(name): row
            for name, row in zip(
                reference.index, reference[["value", "low", "high"]].to_numpy(), strict=True
            )
        }
    levels = {}
    for name, level in (reference or {}).items():
        if np.shape(level) != (3,) or not np.isfinite(level[0]):
            raise ValueError(
                f"reference {name!r} is {level}: wanted (value, low, high), NaN ends where there is no interval"
            )
        levels[name] = Level(*map(float, level))
    return levels


def _looks(tables) -> dict[str, int]:
    """A number per line, the same in every panel: it chooses colour and marker."""
    return {
        line: i
        for i, line in enumerate(dict.fromkeys(line for table in tables for line in table["line"]))
    }


def _draw_lines(figure, table, levels, looks, y_format, shown=frozenset(), **place) -> None:
    steps = np.sort(table["timesteps"].unique())
    ends = np.array([steps[0] / 1.25, steps[-1] * 1.25])
    for i, (name, level) in enumerate(levels.items()):
        colour = GREY if i == 0 else LINES[(len(looks) + i - 1) % len(LINES)]
        style = {"x": ends, "mode": "lines", "legendgroup": name, "legendrank": 1001} | place
        if np.isfinite([level.low, level.high]).all():
            edge = {"line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"} | style
            figure.add_scatter(y=[level.low] * 2, **edge)
            figure.add_scatter(
                y=[level.high] * 2, fill="tonexty", fillcolor=translucent(colour, 0.16), **edge
            )
        line = {"color": colour, "dash": DASHES[1:][i % len(DASHES[1:])], "width": 2}
        hover = f"{name}: %{{y:{y_format}}}<extra></extra>"
        figure.add_scatter(
            y=[level.value] * 2,
            name=name,
            line=line,
            hovertemplate=hover,
            showlegend=name not in shown,
            **style,
        )
    for name, rows in table.groupby("line", sort=False):
        i, rows = looks[name], rows.sort_values("timesteps")
        apart = 2.0 ** (DODGE * (i - (len(looks) - 1) / 2))
        figure.add_scatter(
            x=rows["timesteps"] * apart, y=rows["value"], customdata=rows["timesteps"], mode="lines+markers", name=name,
            line={"color": LINES[i % len(LINES)], "width": 2}, legendgroup=name, showlegend=name not in shown,
            marker={"symbol": MARKERS[i % len(MARKERS)], "size": 9},
            error_y={"array": rows["high"] - rows["value"], "arrayminus": rows["value"] - rows["low"], "thickness": 1.2,
                     "width": 3},
            hovertemplate=f"T = %{{customdata}}: %{{y:{y_format}}}", **place,
        )  # fmt: skip
    axis = {
        "type": "log",
        "tickmode": "array",
        "tickvals": steps,
        "ticktext": [str(t) for t in steps],
    }
    figure.update_xaxes(title_text="time steps T", range=np.log10(ends), **axis, **place)


def _y_axis(title: str, form: str) -> dict:
    return {"title": {"text": title}, "tickformat": "~%" if form.endswith("%") else ""}


def _change(table: pd.DataFrame, y_title: str, form: str) -> str:
    rows = table[table["line"] == table["line"].iloc[0]].sort_values("timesteps")
    first, last = rows.iloc[0], rows.iloc[-1]
    if len(rows) == 1:
        return f"{first.line}: {y_title} is {first.value:{form}} at T = {first.timesteps}"
    verb = (
        "stays at"
        if first.value == last.value
        else ("rises" if last.value > first.value else "falls") + " from"
    )
    beyond = first.high < last.low or last.high < first.low
    known = np.isfinite([first.low, first.high, last.low, last.high]).all()
    weighed = (
        f"the intervals {'do not overlap' if beyond else 'overlap'}"
        if known
        else "no intervals to weigh it by"
    )
    start = (
        "" if first.value == last.value else f"{first.value:{form}} at T = {first.timesteps} to "
    )
    return f"{first.line}: {y_title} {verb} {start}{last.value:{form}} at T = {last.timesteps}; {weighed}"


def _bars(table: pd.DataFrame, levels: dict[str, Level]) -> str:
    ends = [
        *table[["low", "high"]].to_numpy(),
        *((level.low, level.high) for level in levels.values()),
    ]
    without = int((~np.isfinite(ends)).any(1).sum())
    if without == len(ends):
        return "no intervals were given"
    return "bars and bands: the intervals of the table" + (
        f"; {without} of {len(ends)} values came without" if without else ""
    )


def _listed(values) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


def sites(report: pd.DataFrame) -> go.Figure:
    """Conversion site by site, in the network's order: threshold, clipped mass P(a > theta), firing rate.

    report: a row per model and site with columns model, site, theta (mean over channels), u0, expected_error, clipped_mass,
    firing_rate. Markers are medians over models, bars reach from the smallest to the largest model. Sites that saw no
    activation have no threshold (NaN) and are named in the note. ValueError when other values are missing or models differ in
    their sites.
    """
    columns = ("theta", "u0", "expected_error", "clipped_mass", "firing_rate")
    _need(report, ("model", "site", *columns), "sites", finite=("clipped_mass", "firing_rate"))
    names, models = list(dict.fromkeys(report["site"])), report["model"].nunique()
    if report.duplicated(["model", "site"]).any() or len(report) != len(names) * models:
        raise ValueError(
            f"{len(report)} rows for {models} models and {len(names)} sites: wanted one row per model and site"
        )
    dead = report["theta"].isna()
    groups = report.groupby("site", sort=False)[list(columns)]
    low, middle, high = groups.min(), groups.median(), groups.max()
    figure = make_subplots(3, 1, shared_xaxes=True, vertical_spacing=0.06)
    panels = (
        ("theta", "threshold θ", ".3g"),
        ("clipped_mass", "clipped mass", ".2%"),
        ("firing_rate", "firing rate", ".1%"),
    )
    for row, (column, title, form) in enumerate(panels, start=1):
        spread = {
            "array": high[column] - middle[column],
            "arrayminus": middle[column] - low[column],
            "thickness": 1.5,
            "width": 4,
        }
        also = (
            "<br>u0 %{customdata[0]:.3g}, expected error %{customdata[1]:.3g}" if row == 1 else ""
        )
        figure.add_scatter(
            x=names, y=middle[column], error_y=spread, mode="markers", showlegend=False, name=title,
            customdata=middle[["u0", "expected_error"]], hovertemplate=f"%{{x}}: %{{y:{form}}}{also}",
            marker={"color": LINES[row - 1], "symbol": MARKERS[row - 1], "size": 9}, row=row, col=1,
        )  # fmt: skip
        ticks = {"tickformat": "~%"} if form.endswith("%") else {}
        figure.update_yaxes(title_text=title, rangemode="tozero", **ticks, row=row, col=1)
    figure.update_xaxes(categoryorder="array", categoryarray=names)
    rate, clipped = middle["firing_rate"], middle["clipped_mass"]
    sentence = f"the {len(names)} sites fire in {rate.min():.1%} ({rate.idxmin()}) to {rate.max():.1%} ({rate.idxmax()}) of steps; "
    sentence += f"at most {clipped.max():.1%} of activations are clipped ({clipped.idxmax()})"
    note = (
        f"markers: median of {models} models; bars: smallest to largest model"
        if models > 1
        else "one model"
    )
    if dead.any():
        note += f"; no activation and so no threshold: {_listed(report['site'][dead])}"
    return finish(figure, sentence, note, height=560)


def confidences(
    signals_by_name: dict, *, target: int = 0, bins: int = 50, log: bool = True
) -> go.Figure:
    """Confidences p_y of members and non-members, a panel per T (and for the ANN): Figure 3 of Guan et al. 2025.

    signals_by_name: {name: (confidences of members, of non-members)} or {name: Signals of one query}, of which row `target`
    is read without its population. Bins are counted here; with `log` the share axis is logarithmic, because confident
    networks put nearly all samples in the last bin, and empty bins lie on its floor at half a sample. Each panel says its
    AUC of the confidence (the loss attack, in float64), and how many confidences are exactly 1 or share their value with
    another sample once rounded to float32: p >= 1 - 2^-25, a margin of 17.3 nats, is 1 there, and rounding ends the ranking.
    """
    if not signals_by_name:
        raise ValueError(
            "confidences got no signals: pass {name: Signals} or {name: (members, non-members)}"
        )
    groups = {name: _confidence(name, one, target) for name, one in signals_by_name.items()}
    columns = 2 if len(groups) in (2, 4) else min(len(groups), 3)
    rows, edges = -(-len(groups) // columns), np.linspace(0, 1, bins + 1)
    floor = 0.5 / max(len(values) for pair in groups.values() for values in pair) if log else 0.0
    aucs = {name: _auc(*pair) for name, pair in groups.items()}
    titles = [
        f"{name}: AUC {aucs[name]:.3f}<br>{_rounding(*pair)}" for name, pair in groups.items()
    ]
    figure = make_subplots(rows, columns, subplot_titles=titles, shared_yaxes="all", shared_xaxes="all",
                           vertical_spacing=0.2 if rows == 2 else 0.3 / rows, horizontal_spacing=0.04)  # fmt: skip
    figure.update_annotations(font={"size": 12, "color": GREY})
    for i, pair in enumerate(groups.values()):
        place = {"row": i // columns + 1, "col": i % columns + 1, "showlegend": i == 0}
        _add_group(figure, "non-members", pair[1], edges, floor, NON_MEMBER, "dash", **place)
        _add_group(figure, "members", pair[0], edges, floor, MEMBER, "solid", **place)
    scale = (
        {"type": "log", "dtick": 1, "range": [np.log10(floor), 0.1]}
        if log
        else {"range": [0, 1.05 * max(y.max() for y in (trace.y for trace in figure.data))]}
    )
    figure.update_yaxes(tickformat="~%", **scale)
    figure.update_yaxes(title_text="share of group", col=1)
    figure.update_xaxes(range=[-0.01, 1.01], showticklabels=True)
    figure.update_xaxes(title_text="confidence", row=rows)
    first, *_, last = [*aucs, *aucs]
    sentence = (
        f"confidence alone tells members from non-members with AUC {aucs[first]:.3f} ({first})"
    )
    sentence += f" and {aucs[last]:.3f} ({last})" if last != first else ""
    note = "share of each group per bin" + (
        "; empty bins lie on the floor, at half a sample" if log else ""
    )
    return finish(
        figure,
        sentence,
        note,
        headroom=34,
        height=130 + 240 * rows,
        legend=BELOW | {"y": -0.3 / rows},
    )


def _confidence(name: str, one, target: int) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(one, Signals):
        if one.member is None or one.margin.shape[1] != 1:
            known = "hidden" if one.member is None else "known"
            raise ValueError(f"{name}: signals of {one.margin.shape[1]} queries, membership {known}; "
                             "wanted signals of one query with membership: signals.select(queries=[0])")  # fmt: skip
        value, member = np.exp(one.log_p[target, 0]), one.member[target]
        one = value[member & ~one.population], value[~member & ~one.population]
    members, others = (np.asarray(values, dtype=np.float64) for values in one)
    for group, values in (("members", members), ("non-members", others)):
        if not values.size or not ((values >= 0) & (values <= 1)).all():
            raise ValueError(
                f"{name}: confidences of {group} must be one or more numbers in [0, 1]; exp(signals.log_p) gives them"
            )
    return members, others


def _auc(members: np.ndarray, others: np.ndarray) -> float:
    return metrics.auc(
        np.concatenate([members, others]), np.arange(len(members) + len(others)) < len(members)
    )


def _rounding(members: np.ndarray, others: np.ndarray) -> str:
    rounded = np.concatenate([members, others]).astype(np.float32)
    return f"in float32 {np.mean(rounded == 1):.1%} are 1, {metrics.tie_mass(rounded):.1%} tie"


def _add_group(figure, name, values, edges, floor, colour, dash, **place) -> None:
    counts = np.histogram(values, edges)[0]
    counts = np.append(counts, counts[-1])  # a step line needs the last level twice
    figure.add_scatter(
        x=edges, y=np.maximum(counts / len(values), floor), customdata=counts, mode="lines", name=name, legendgroup=name,
        line={"shape": "hv", "color": colour, "dash": dash, "width": 1.5}, fill="tozeroy", fillcolor=translucent(colour, 0.15),
        hovertemplate=f"from %{{x:.2f}}: %{{customdata}} of {len(values):,}", **place,
    )  # fmt: skip


def heatmap(
    table: pd.DataFrame, *, chosen: tuple[float, int] | None = None, name: str = "AUC"
) -> go.Figure:
    """Attack success over input-dropout rate p (rows) and number of queries Q (columns), chosen cell outlined and starred.

    table: columns p, queries, value, error (standard error), as from `metrics.choose`. chosen: (p, Q), None the best cell.
    Cells that were not tried stay empty. The sentence says by how much the best cell beats the best of p = 0, and whether
    that exceeds one standard error of the best: within it, dropout has not earned its place. ValueError for a cell that
    comes twice, or a chosen one that is not there.
    """
    _need(
        table,
        ("p", "queries", "value", "error"),
        "heatmap",
        finite=("p", "queries", "value", "error"),
    )
    if table.duplicated(["p", "queries"]).any():
        raise ValueError("heatmap got a (p, queries) twice: one row per cell")
    value, error = (
        table.pivot(index="p", columns="queries", values=column) for column in ("value", "error")
    )
    best = table.loc[table["value"].idxmax()]
    p, queries = chosen or (best.p, best.queries)
    mine = table[np.isclose(table["p"], p) & (table["queries"] == queries)]
    if mine.empty:
        raise ValueError(
            f"chosen=({p}, {queries}) is not in the table: p {value.index.tolist()}, queries {value.columns.tolist()}"
        )
    mine = mine.iloc[0]
    row, column = value.index.get_loc(mine.p), value.columns.get_loc(mine.queries)
    text = [["" if np.isnan(v) else _cell(v, e) for v, e in zip(*pair, strict=True)]
            for pair in zip(value.to_numpy(), error.to_numpy(), strict=True)]  # fmt: skip
    text[row][column] = f"★ {text[row][column]}"
    figure = go.Figure(go.Heatmap(
        x=[f"{q:g}" for q in value.columns], y=[f"{p:g}" for p in value.index], z=value.to_numpy(), text=text,
        texttemplate="%{text}", textfont={"size": 12}, colorscale="Cividis", xgap=1, ygap=1, hoverongaps=False,
        colorbar={"title": {"text": name, "side": "right"}, "thickness": 12},
        hovertemplate=f"p = %{{y}}, Q = %{{x}}: {name} %{{text}}<extra></extra>",
    ))  # fmt: skip
    corners = {
        "type": "rect",
        "x0": column - 0.5,
        "x1": column + 0.5,
        "y0": row - 0.5,
        "y1": row + 0.5,
    }
    for colour, width in (
        ("white", 6),
        ("black", 3),
    ):  # one of the two shows on any cell and any page
        figure.add_shape(**corners, line={"color": colour, "width": width}, name="chosen")
    sentence = f"p = {mine.p:g} with {mine.queries:g} {'query' if mine.queries == 1 else 'queries'} is chosen: {name} "
    sentence += f"{_cell(mine.value, mine.error)}; {_against_plain(table, best)}"
    untried = int(np.isnan(value.to_numpy()).sum())
    note = "★ and outline: chosen; ± one standard error" + (
        f"; {untried} empty cells were not tried" if untried else ""
    )
    axes = {"type": "category", "showgrid": False}
    return finish(figure, sentence, note, height=150 + 44 * len(value), xaxis=axes | {"title": "queries Q"},
                  yaxis=axes | {"title": "input dropout p"})  # fmt: skip


def _cell(value: float, error: float) -> str:
    return f"{value:.3f} ± {f'{error:.3f}'.removeprefix('0')}"


def _against_plain(table: pd.DataFrame, best: pd.Series) -> str:
    plain = table[table["p"] == 0]["value"]
    if plain.empty:
        return "p = 0 was not tried"
    if best.p == 0:
        return "no cell beats p = 0"
    ahead = best.value - plain.max()
    return f"the best cell is {ahead:.3f} above p = 0, {'within' if ahead <= best.error else 'beyond'} one standard error"


def raster(spk, mem, theta, *, image=None, neurons=None, name: str = "one sample") -> go.Figure:
    """A layer while it fires: spikes of all neurons, the busiest on top, and the membrane of a few, against their threshold.

    spk (T, neurons) bool; mem (T, neurons) the potential after charging and before the reset, so that a neuron fires where
    mem >= theta; theta a number or (neurons,); image (C, H, W) uint8 is shown beside. `neurons`: which to trace, at most 3;
    None takes the busiest, the median and the least busy of those that fire. Of more than 200 neurons, evenly spaced ranks
    are drawn. ValueError when shapes or spikes do not agree with mem and theta (then mem was taken after the reset).
    """
    spk, mem = np.asarray(spk, dtype=bool), np.asarray(mem, dtype=np.float64)
    if (
        spk.ndim != 2
        or not spk.size
        or mem.shape != spk.shape
        or np.shape(theta) not in ((), spk.shape[1:])
    ):
        raise ValueError(
            f"spk {spk.shape}, mem {mem.shape}, theta {np.shape(theta)}: wanted (T, neurons) twice and () or (neurons,)"
        )
    levels = np.broadcast_to(np.asarray(theta, dtype=np.float64), spk.shape[1:])
    wrong = (
        np.where(spk, levels - mem, mem - levels) > 1e-4 * np.maximum(levels, 1)
    ).sum()  # ties may go either way
    if wrong:
        raise ValueError(
            f"{wrong} of {spk.size} spikes disagree with mem >= theta: pass mem after charging and before the reset"
        )
    steps, rate = np.arange(1, len(spk) + 1), spk.mean(0)
    order = np.argsort(rate, kind="stable")
    traced = _traced(rate, order, mem) if neurons is None else np.asarray(neurons, dtype=int)
    if len(traced) > TRACED or not ((traced >= 0) & (traced < len(rate))).all():
        raise ValueError(
            f"neurons={traced.tolist()}: wanted at most {TRACED} numbers from 0 to {len(rate) - 1}"
        )
    ranks = np.linspace(0, len(order) - 1, min(ROWS, len(order))).round().astype(int)
    drawn = order[np.union1d(ranks, np.flatnonzero(np.isin(order, traced)))]
    figure = make_subplots(2, 1, shared_xaxes=True, row_heights=[0.55, 0.45], vertical_spacing=0.07)
    _add_spikes(figure, spk[:, drawn], drawn, traced, steps)
    _add_membranes(figure, spk, mem, levels, traced, steps, one=np.ndim(theta) == 0)
    if image is not None:
        _add_image(figure, np.asarray(image))
    ticks = {"dtick": 1} if len(steps) <= 20 else {}
    figure.update_xaxes(
        range=[0.4, 0.5 + 1.06 * len(steps)],
        **ticks,
        domain=[0, 1 if image is None else BESIDE - 0.03],
    )
    figure.update_xaxes(title_text="time step", row=2, col=1)
    figure.update_yaxes(
        title_text="neurons, busiest on top",
        showgrid=False,
        showticklabels=False,
        ticks="",
        row=1,
        col=1,
    )
    figure.update_yaxes(title_text="membrane, before reset", row=2, col=1)
    silent = int((rate == 0).sum())
    sentence = f"{name}: {len(rate):,} neurons fire in {spk.mean():.1%} of {len(steps)} time steps; {silent:,} of them never"
    note = "marks on the right: neurons traced below; filled markers: a spike; dashed: threshold"
    note += f"; {len(drawn)} of {len(rate):,} neurons drawn" if len(drawn) < len(rate) else ""
    return finish(figure, sentence, note, height=520, legend=BELOW | {"y": -0.17})


def _traced(rate: np.ndarray, order: np.ndarray, mem: np.ndarray) -> np.ndarray:
    """Busiest, median and least busy of the neurons that fire; of a silent layer the ones that come closest."""
    active = (
        order[rate[order] > 0] if rate.any() else np.argsort(mem.max(0), kind="stable")[-TRACED:]
    )
    return active[np.unique([len(active) - 1, len(active) // 2, 0])[::-1]]


def _add_spikes(figure, spk, drawn, traced, steps) -> None:
    names = np.broadcast_to(drawn[:, None], spk.T.shape)
    figure.add_heatmap(
        x=steps, z=spk.T.astype(np.uint8), customdata=names, colorscale=[[0, "rgba(0,0,0,0)"], [1, GREY]], zmin=0, zmax=1,
        showscale=False, xgap=3 if len(steps) <= 64 else 0, ygap=1 if len(drawn) <= 64 else 0, row=1, col=1,
        hovertemplate="neuron %{customdata}, step %{x}: %{z}<extra></extra>",
    )  # fmt: skip
    for i, neuron in enumerate(traced):
        marker = {"symbol": MARKERS[i], "color": LINES[i], "size": 9}
        place = {
            "x": [0.5 + 1.03 * len(steps)],
            "y": np.flatnonzero(drawn == neuron),
            "row": 1,
            "col": 1,
        }
        figure.add_scatter(
            mode="markers", marker=marker, showlegend=False, hoverinfo="skip", **place
        )


def _add_membranes(figure, spk, mem, levels, traced, steps, *, one: bool) -> None:
    ends = [0.5, len(steps) + 0.5]
    for i, neuron in enumerate(traced):
        symbols = [MARKERS[i] if fired else f"{MARKERS[i]}-open" for fired in spk[:, neuron]]
        figure.add_scatter(
            x=steps, y=mem[:, neuron], mode="lines+markers", name=f"neuron {neuron}, fires {spk[:, neuron].mean():.0%}",
            line={"color": LINES[i], "width": 1.5}, marker={"symbol": symbols, "size": 9},
            hovertemplate="step %{x}: %{y:.3g}", row=2, col=1,
        )  # fmt: skip
        if not one or i == 0:
            line = {"color": GREY if one else LINES[i], "dash": "dash", "width": 1.5}
            name = f"threshold {levels[neuron]:.3g}" + ("" if one else f" of neuron {neuron}")
            figure.add_scatter(
                x=ends, y=[levels[neuron]] * 2, mode="lines", name=name, line=line, row=2, col=1
            )


def _add_image(figure, image: np.ndarray) -> None:
    if image.ndim != 3 or image.shape[0] not in (1, 3) or image.dtype != np.uint8:
        raise ValueError(f"image {image.shape} {image.dtype}: wanted (1 or 3, H, W) uint8")
    pixels = np.moveaxis(np.broadcast_to(image, (3, *image.shape[1:])), 0, 2)
    times = -(-192 // max(pixels.shape[:2]))  # enlarged here: browsers would blur small pictures
    stream = io.BytesIO()
    Image.fromarray(pixels.repeat(times, 0).repeat(times, 1)).save(stream, "PNG")
    source = "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
    figure.add_layout_image(
        source=source, xref="paper", yref="paper", x=BESIDE, y=1, sizex=1 - BESIDE, sizey=0.5
    )
