"""Differential-equation networks as pictures: families, their settings, equal utility, repeated queries, cost."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mia_nb import metrics
from mia_nb.plots.spiking import BELOW, _listed, _need
from mia_nb.plots.style import DASHES, GREY, LINES, MARKERS, TEMPLATE, finish, translucent
from mia_nb.plots.views import gap_against_risk
from mia_nb.types import Scores

LOGARITHMIC = ("T", "s", "steps", "queries")  # settings that studies double from one to the next
DODGE = 0.08  # of the distance between neighbours: how far apart bars at one place stand
WORDS = {
    "test_acc": "test accuracy",
    "train_loss": "training loss",
    "gap": "train accuracy - test accuracy",
    "auc": "AUC",
}
SHARES = ("test_acc", "gap", "train_acc")


def families_gap(scores: dict[str, Scores], metric: str = "auc") -> go.Figure:
    """Risk against the generalisation gap, a point per target, families apart.

    scores: {family: Scores of one attack}; metric: "auc" or "tpr@x". Points, bars and the line of overfitting alone are those
    of `gap_against_risk`; the legend says each family's mean gap and mean risk with the 95 % ends of `metrics.frontier_means`,
    hovers say how many members and non-members a point stands on. Families that lie apart along the line differ in
    overfitting, families that lie apart across it in what they give away beyond it.
    Source: Figures 1 and 8 of Hong, Wu, Gruber and Lee (arXiv 2501.06686). Raises ValueError for no family or another metric.
    """
    if not scores:
        raise ValueError("families_gap got no family: pass {family: attacks.score(...)}")
    fpr = _rate(metric)
    figure = gap_against_risk(scores, fpr=fpr)
    word = _word(metric)
    means = {}
    for name, one in scores.items():
        table = metrics.frontier({name: {0: {"": one}}}, () if fpr is None else (fpr,))
        table = metrics.frontier_means(table)
        means[name] = row = table.iloc[0]
        (drawn,) = (trace for trace in figure.data if trace.name == name)
        drawn.name = f"{name}: gap {row['gap']:.1%}, {word} {_with_ends(row, metric)}"
        drawn.hovertemplate += (
            f"<br>{row['n1']:,} members, {row['n0']:,} non-members<extra>{name}</extra>"
        )
        drawn.marker.opacity = 0.75
    riskiest, safest = (
        choose(means, key=lambda name: means[name][metric]) for choose in (max, min)
    )
    sentence = (
        f"{riskiest}: {word} {means[riskiest][metric]:.3f} at a gap of {means[riskiest]['gap']:.1%}"
    )
    if len(means) > 1:
        sentence += f"; {safest}: {means[safest][metric]:.3f} at {means[safest]['gap']:.1%}"
    attack = _listed(one.info.get("attack", "score") for one in scores.values())
    note = f"{attack}; one point per target; legend: mean [95 %, {_over(table, metric)}]; bars: "
    note += "1.96 s.e. of a coin" if fpr is None else "Clopper-Pearson, 95 %"
    unresolved = fpr is not None and not all(row[f"{metric}_measurable"] for row in means.values())
    note += f"; {word} is not measurable with so few non-members" if unresolved else ""
    return finish(
        figure, sentence, note, height=470, legend=BELOW, margin={"t": TEMPLATE.layout.margin.t}
    )


def _rate(metric: str) -> float | None:
    """The FPR of "tpr@x", None for "auc"."""
    try:
        return (
            None
            if metric == "auc"
            else float(metric.removeprefix("tpr@") if metric.startswith("tpr@") else "none")
        )
    except ValueError:
        raise ValueError(f"metric={metric!r} is neither auc nor tpr@0.01 (any FPR)") from None


def _word(metric: str) -> str:
    return (
        f"TPR at {100 * float(metric.removeprefix('tpr@')):g} % FPR"
        if metric.startswith("tpr@")
        else WORDS.get(metric, metric)
    )


def _over(table: pd.DataFrame, metric: str) -> str:
    """What the ends of a frontier's means or of matched families cover, in words."""
    both = "over_samples" in table and table["over_samples"].all()
    pairs = f"{_span(table['pairs'])} pairs" if "pairs" in table else "pairs"
    return f"over {pairs} and samples" if both else f"over {pairs}"


def _with_ends(row, name: str) -> str:
    ends = (
        f" [{row[f'{name}_low']:.3f}, {row[f'{name}_high']:.3f}]"
        if np.isfinite(row[f"{name}_low"])
        else " (no interval)"
    )
    return f"{row[name]:.3f}{ends}"


def risk_against(
    table: pd.DataFrame, x: str, *, title: str | None = None, log: bool | None = None
) -> go.Figure:
    """Risk and accuracy against one setting, in two panels on one axis.

    table: a row per setting with columns x, auc, auc_low, auc_high, train_acc, test_acc, and where there are any train_acc_low,
    train_acc_high, test_acc_low, test_acc_high (drawn), n1, n0, pairs (hover), `group` (a line each), `label` (hover).
    x may hold numbers (k, T, s, sigma, n), joined by lines, or words (solver, variant), which are not. log: a logarithmic axis
    of x; None takes one for T and s if all are positive. title: of the axis; None the column's name. NaN ends: no bar.
    Source: Figures 2, 6, 10 and 11 of Hong, Wu, Gruber and Lee (arXiv 2501.06686).
    Raises ValueError for missing columns or values, a setting that comes twice in a group, log with x <= 0 or with words.
    """
    _need(table, (x, "auc", "auc_low", "auc_high", "train_acc", "test_acc"), "risk_against")
    numeric = pd.api.types.is_numeric_dtype(table[x])
    _need(
        table,
        (),
        "risk_against",
        finite=("auc", "train_acc", "test_acc", *([x] if numeric else [])),
    )
    table = table.assign(group=table["group"].astype(str) if "group" in table else "").reset_index(
        drop=True
    )
    if (twice := table.duplicated(["group", x])).any():
        row = table[twice].iloc[0]
        raise ValueError(
            f"{x} = {row[x]} comes more than once{f' for {row.group}' if row.group else ''}: add a column group"
        )
    positive = numeric and (table[x] > 0).all()
    if log and not positive:
        raise ValueError(
            f"log=True, but {x} holds {'words' if not numeric else 'values that are not positive'}: leave log out"
        )
    log = (x in LOGARITHMIC and positive) if log is None else log
    figure = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.55, 0.45])
    groups = list(table.groupby("group", sort=False))
    places = _places(table, x, numeric, log)
    for i, (name, rows) in enumerate(groups):
        rows = rows.assign(place=rows[x].map(places)).sort_values("place")
        _add_settings(figure, name, rows, x, i, len(groups), numeric)
    axis = {
        "tickmode": "array",
        "tickvals": list(places.values()),
        "ticktext": [_tick(value) for value in places],
    }
    reach = max(0.5 if not numeric else 0.04 * np.ptp(list(places.values())), 0.05)
    figure.update_xaxes(**axis, range=[min(places.values()) - reach, max(places.values()) + reach])
    figure.update_xaxes(title_text=(title or x) + (" (logarithmic)" if log else ""), row=2, col=1)
    figure.add_hline(y=0.5, line={"color": GREY, "width": 1, "dash": "dot"}, row=1, col=1)
    figure.update_yaxes(title_text="AUC", title_standoff=14, row=1, col=1)
    figure.update_yaxes(title_text="accuracy", title_standoff=14, tickformat="~%", row=2, col=1)
    return finish(
        figure, _extremes(table, x), _settings_note(table), height=560, legend=BELOW | {"y": -0.16}
    )


def _tick(value) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _places(table: pd.DataFrame, x: str, numeric: bool, log: bool) -> dict:
    """Where each value of x stands: octaves, the number itself, or its turn among the words."""
    if not numeric:
        return {word: i for i, word in enumerate(dict.fromkeys(table[x]))}
    return {value: float(np.log2(value) if log else value) for value in np.sort(table[x].unique())}


def _bars(rows: pd.DataFrame, name: str) -> dict | None:
    """Plotly's error bars of a column, None where it has no ends."""
    if f"{name}_low" not in rows:
        return None
    up, down = rows[f"{name}_high"] - rows[name], rows[name] - rows[f"{name}_low"]
    return {
        "array": up.to_numpy(float),
        "arrayminus": down.to_numpy(float),
        "thickness": 1.3,
        "width": 3,
    }


def _add_settings(
    figure, name: str, rows: pd.DataFrame, x: str, i: int, groups: int, numeric: bool
) -> None:
    gaps = np.diff(np.sort(rows["place"].unique()))
    apart = DODGE * (gaps.min() if len(gaps) else 1) * (i - (groups - 1) / 2)
    colour, symbol = LINES[i % len(LINES)], MARKERS[i % len(MARKERS)]
    sizes = [
        " · ".join(_fact(row, fact) for fact in ("label", "pairs", "n1", "n0") if fact in rows)
        for _, row in rows.iterrows()
    ]
    shown = np.column_stack([rows[x].map(_tick), sizes])
    series = (("auc", "AUC", "solid", symbol, 1), ("train_acc", "on members", "dash", symbol, 2),
              ("test_acc", "on non-members", "solid", f"{symbol}-open", 2))  # fmt: skip
    for column, word, dash, marker, row in series:
        label = f"{name}, {word}" if name else word
        figure.add_scatter(
            x=rows["place"] + apart, y=rows[column], customdata=shown, mode="lines+markers" if numeric else "markers",
            name=label, legendgroup=name, line={"color": colour, "width": 2, "dash": dash},
            marker={"symbol": marker, "size": 9, "color": colour}, error_y=_bars(rows, column), row=row, col=1,
            hovertemplate=f"{x} = %{{customdata[0]}}: {word} %{{y:{'.3f' if row == 1 else '.1%'}}}<br>%{{customdata[1]}}"
            f"<extra>{name}</extra>",
        )  # fmt: skip


def _fact(row, name: str) -> str:
    return (
        str(row[name])
        if name == "label"
        else f"{row[name]:,g} {({'n1': 'members', 'n0': 'non-members'}).get(name, name)}"
    )


def _extremes(table: pd.DataFrame, x: str) -> str:
    """The largest and the smallest risk, with the accuracy that each comes with."""
    most, least = table.loc[table["auc"].idxmax()], table.loc[table["auc"].idxmin()]
    parts = []
    for row in (most, least) if len(table) > 1 else (most,):
        where = f"{row.group}, {x} = {_tick(row[x])}" if row.group else f"{x} = {_tick(row[x])}"
        parts.append(f"AUC {row['auc']:.3f} at {where} with test accuracy {row['test_acc']:.1%}")
    ends = [most["auc_low"], least["auc_high"]]
    weighed = (
        ""
        if len(table) < 2 or not np.isfinite(ends).all()
        else f"; their intervals {'are apart' if ends[0] > ends[1] else 'overlap'}"
    )
    return ", ".join(parts) + weighed


def _settings_note(table: pd.DataFrame) -> str:
    without = int((~np.isfinite(table[["auc_low", "auc_high"]].astype(float))).any(axis=1).sum())
    note = "bars: the table's intervals; dotted: a coin; filled: on members; open: on non-members"
    return note + (f"; {without} of {len(table)} AUCs without interval" if without else "")


def frontier_lines(table: pd.DataFrame, *, metric: str = "auc") -> go.Figure:
    """Leakage against test accuracy along training, a line per family, markers labelled with the epoch.

    table: a `metrics.frontier`, or its `metrics.frontier_means`. y is the mean of `metric` under the strongest attack of each
    checkpoint; bars both ways are the table's 95 % ends, the last checkpoint is drawn large. Families can be compared where
    their lines stand over the same accuracy, and nowhere else. Raises ValueError for missing columns and tables without rows.
    """
    if "target" in table:
        table = metrics.frontier_means(table)
    ends = [f"{name}_{end}" for name in (metric, "test_acc") for end in ("low", "high")]
    _need(
        table,
        ("family", "epoch", "attack", "test_acc", metric, *ends),
        "frontier_lines",
        finite=("test_acc", metric),
    )
    figure = go.Figure()
    last = {}
    for i, (family, rows) in enumerate(table.groupby("family", sort=False)):
        rows = rows.sort_values("epoch")
        last[family] = rows.iloc[-1]
        colour, symbol, final = (
            LINES[i % len(LINES)],
            MARKERS[i % len(MARKERS)],
            np.arange(len(rows)) == len(rows) - 1,
        )
        facts = np.column_stack(
            [
                rows["epoch"],
                rows["attack"],
                rows["pairs"] if "pairs" in rows else np.full(len(rows), "?"),
            ]
        )
        faint = {"color": translucent(colour, 0.45), "thickness": 1.2, "width": 0}
        figure.add_scatter(
            x=rows["test_acc"], y=rows[metric], customdata=facts, mode="lines+markers+text", name=str(family),
            text=rows["epoch"].astype(str), textposition=["top center", "bottom center"][i % 2],
            textfont={"size": 11, "color": colour},
            line={"color": colour, "width": 2, "dash": DASHES[i % len(DASHES)]},
            marker={"symbol": symbol, "color": colour, "opacity": 1, "size": np.where(final, 15, 7)},
            error_x=_bars(rows, "test_acc") | faint, error_y=_bars(rows, metric) | faint,
            hovertemplate="epoch %{customdata[0]}: test accuracy %{x:.1%}, %{y:.3f} (%{customdata[1]}, %{customdata[2]} pairs)",
        )  # fmt: skip
    sentence = "; ".join(f"{family} ends at {_word(metric)} {row[metric]:.3f} with test accuracy {row['test_acc']:.1%}"
                         for family, row in last.items())  # fmt: skip
    note = f"numbers: epochs; large: last checkpoint; bars 95 % ({_over(table, metric)}); up and left is bad, down and right good"
    axes = {
        "xaxis": {"title": "test accuracy", "tickformat": "~%"},
        "yaxis": {"title": _word(metric)},
    }
    return finish(figure, sentence, note, height=480, legend=BELOW, **axes)


def matched_differences(table: pd.DataFrame) -> go.Figure:
    """Leakage of every family minus that of the baseline at equal utility, with intervals, against the level.

    table: a `metrics.matched` with a baseline. Rows that no pair of both families reaches have no point. Below the line a
    family gives away less at equal utility; a bar that crosses the line resolves nothing. The sentence counts both, and the
    note says how accurate the last checkpoints are. An empty table whose attrs give a reason gives a picture of that reason.
    Raises ValueError for missing columns, an empty table without a reason, and for a table without a baseline.
    """
    if not len(table) and (reason := table.attrs.get("reason")):
        return finish(
            go.Figure(),
            reason,
            "nothing was compared",
            height=140,
            xaxis={"visible": False},
            yaxis={"visible": False},
        )
    columns = (
        "level",
        "family",
        "difference",
        "difference_low",
        "difference_high",
        "difference_pairs",
        "last_test_acc",
    )
    _need(table, (*columns, "by", "metric", "baseline"), "matched_differences", finite=("level",))
    by, metric, baseline = table[["by", "metric", "baseline"]].iloc[0]
    others = table[table["family"] != baseline]
    if not baseline or others.empty or len(others) == len(table):
        raise ValueError(f"matched_differences got baseline {baseline!r} and families {_listed(table.family)}: wanted "
                         "metrics.matched(..., baseline=FAMILY) with another family")  # fmt: skip
    families, levels = list(others["family"].unique()), np.sort(others["level"].unique())
    step = DODGE * (np.diff(levels).min() if len(levels) > 1 else 0.05 * max(abs(levels[0]), 1e-3))
    figure = go.Figure()
    figure.add_hline(y=0, line={"color": GREY, "width": 1.5})
    for i, family in enumerate(families):
        rows = others[(others["family"] == family) & others["difference"].notna()].sort_values(
            "level"
        )
        figure.add_scatter(
            x=rows["level"] + step * (i - (len(families) - 1) / 2), y=rows["difference"], mode="markers",
            name=f"{family} - {baseline}", customdata=rows[["level", "difference_pairs"]], error_y=_bars(rows, "difference"),
            marker={"symbol": MARKERS[(i + 1) % len(MARKERS)], "color": LINES[(i + 1) % len(LINES)], "size": 10},
            hovertemplate="at %{customdata[0]:.3f}: %{y:+.3f} (%{customdata[1]} pairs)",
        )  # fmt: skip
    note = f"bars 95 %, {_over(others.assign(pairs=others['difference_pairs']), metric)}, each for itself; "
    note += f"below the line: less than {baseline}; in brackets: test accuracy at the end"
    axes = {"xaxis": {"title": f"level of {_word(by)}", "tickformat": ".1~%" if by in SHARES else ".3~f", "tickvals": levels},
            "yaxis": {"title": f"difference in {_word(metric)}", "tickformat": "+.3~f"}}  # fmt: skip
    return finish(
        figure,
        _verdicts(table, families, by, metric, baseline),
        note,
        height=440,
        legend=BELOW,
        **axes,
    )


def _span(values) -> str:
    low, high = int(min(values)), int(max(values))
    return f"{low}" if low == high else f"{low} to {high}"


def _verdicts(table: pd.DataFrame, families: list[str], by: str, metric: str, baseline: str) -> str:
    """How many levels are decided, per family, and in the same breath how accurate each is at the end."""
    last = table.groupby("family")["last_test_acc"].first()
    parts = []
    for family in families:
        rows = table[table["family"] == family]
        less, more = (rows["difference_high"] < 0).sum(), (rows["difference_low"] > 0).sum()
        counts = ((less, "less"), (more, "more"), (len(rows) - less - more, "unresolved"))
        words = ", ".join(f"{word} at {count}" for count, word in counts if count)
        parts.append(f"{family} ({last[family]:.1%}) {words} of {len(rows)}")
    against = f"{_word(metric)} against {baseline} ({last[baseline]:.1%}) at equal {_word(by)}"
    return f"{against}: {'; '.join(parts)} levels"


def query_curves(curves: dict[str, pd.DataFrame], *, noise_off: dict | None = None) -> go.Figure:
    """AUC against the number R of queries that an attacker averages, on a log2 axis; R = inf is extrapolated, apart and open.

    curves: {family: metrics.query_curve(...)}; a curve of several attacks gives a line each. noise_off: {family: AUC} or
    {family: (AUC, low, high)} of the same models with their noise switched off, a dashed level in the family's colour. The
    sentence says what one query hides. Raises ValueError for no curve, missing columns and a family of noise_off without curve.
    """
    if not curves:
        raise ValueError("query_curves got no curve: pass {family: metrics.query_curve(...)}")
    if strangers := sorted(set(noise_off or {}) - set(curves)):
        raise ValueError(
            f"noise_off names {strangers}, the curves are those of {list(curves)}: name families alike"
        )
    lines = {}
    for family, curve in curves.items():
        _need(
            curve,
            ("attack", "auc", "auc_low", "auc_high", "extrapolated"),
            f"query_curves of {family}",
        )
        several = curve["attack"].nunique() > 1
        lines |= {
            f"{family}, {attack}" if several else family: (family, rows)
            for attack, rows in curve.groupby("attack", sort=False)
        }
    counts = np.unique(
        [count for _, rows in lines.values() for count in rows.index if np.isfinite(count)]
    )
    limit = np.log2(counts[-1]) + 1.5
    figure = go.Figure()
    for i, (name, (_, rows)) in enumerate(lines.items()):
        _add_curve(
            figure,
            name,
            rows,
            limit,
            LINES[i % len(LINES)],
            MARKERS[i % len(MARKERS)],
            0.05 * (i - (len(lines) - 1) / 2),
        )
    ends = [np.log2(counts[0]) - 0.3, limit + 0.3]
    families = [family for family, _ in lines.values()]
    for i, family in enumerate(families):
        if family in (noise_off or {}) and family not in families[:i]:
            _add_level(
                figure, f"{family}, noise off", noise_off[family], ends, LINES[i % len(LINES)]
            )
    figure.add_vline(x=limit - 0.75, line={"color": GREY, "width": 1, "dash": "dot"})
    ticks = {
        "tickvals": [*np.log2(counts), limit],
        "ticktext": [*(f"{count:g}" for count in counts), "∞"],
    }
    first = next(iter(lines))
    sizes = _listed(f"{rows['pairs'].iloc[0]:g} pairs, {rows['n1'].iloc[0]:,g} members" for _, rows in lines.values()
                    if {"pairs", "n1"} <= set(rows))  # fmt: skip
    note = (
        f"bars 95 %{f' ({sizes})' if sizes else ''}; open: extrapolated to infinitely many queries"
    )
    note += "; dashed: noise switched off" if noise_off else ""
    axes = {
        "xaxis": {"title": "queries R, averaged by the attacker", "range": ends, **ticks},
        "yaxis_title": "AUC",
    }
    return finish(
        figure, _averaging(first, lines[first][1]), note, height=440, legend=BELOW, **axes
    )


def _add_curve(
    figure, name: str, rows: pd.DataFrame, limit: float, colour: str, symbol: str, apart: float
) -> None:
    extrapolated = rows["extrapolated"].to_numpy(bool)
    hover = "R = %{customdata}: AUC %{y:.3f}"
    for part, mode, marker in (
        (rows[~extrapolated], "lines+markers", symbol),
        (rows[extrapolated], "markers", f"{symbol}-open"),
    ):
        open_ = marker.endswith("open")
        figure.add_scatter(
            x=np.full(len(part), limit) + apart if open_ else np.log2(part.index.to_numpy(float)) + apart, y=part["auc"],
            customdata=["∞ (extrapolated)" if open_ else f"{count:g}" for count in part.index], mode=mode, name=name,
            legendgroup=name, showlegend=not open_, line={"color": colour, "width": 2}, error_y=_bars(part, "auc"),
            marker={"symbol": marker, "color": colour, "size": 10, "line": {"width": 2}} if open_
            else {"symbol": marker, "color": colour, "size": 9}, hovertemplate=hover,
        )  # fmt: skip


def _add_level(figure, name: str, level, ends: list[float], colour: str) -> None:
    value, low, high = (level, np.nan, np.nan) if np.isscalar(level) else level
    if np.isfinite([low, high]).all():
        edge = {
            "x": ends,
            "mode": "lines",
            "line": {"width": 0},
            "showlegend": False,
            "hoverinfo": "skip",
            "legendgroup": name,
        }
        figure.add_scatter(y=[low] * 2, **edge)
        figure.add_scatter(
            y=[high] * 2, fill="tonexty", fillcolor=translucent(colour, 0.13), **edge
        )
    line = {"color": colour, "dash": "dash", "width": 1.5}
    figure.add_scatter(
        x=ends,
        y=[value] * 2,
        mode="lines",
        name=name,
        legendgroup=name,
        line=line,
        hovertemplate="AUC %{y:.3f}",
    )


def _averaging(name: str, rows: pd.DataFrame) -> str:
    """What the first line gains from asking again."""
    asked = rows[~rows["extrapolated"].astype(bool)]
    first, last, limit = (
        asked.iloc[0],
        asked.iloc[-1],
        rows[rows["extrapolated"].astype(bool)]["auc"],
    )
    sentence = f"{name}: AUC {first['auc']:.3f} with {asked.index[0]:g} {'query' if asked.index[0] == 1 else 'queries'}"
    sentence += f", {last['auc']:.3f} with {asked.index[-1]:g}" if len(asked) > 1 else ""
    known = len(limit) and np.isfinite(limit.iloc[0])
    return sentence + (
        f", {limit.iloc[0]:.3f} extrapolated to infinitely many"
        if known
        else "; no limit could be extrapolated"
    )


def costs(table: pd.DataFrame) -> go.Figure:
    """What families cost: seconds per epoch and MiB of memory, a bar each, with their ratio to the first family.

    table: a row per family with columns family, seconds (of an epoch), memory_mib, parameters (under the name), and where
    measured seconds_low, seconds_high, memory_mib_low, memory_mib_high (drawn). Raises ValueError for missing columns or
    values, values that are not positive, and a family that comes twice. Seconds are those of one machine.
    """
    measured = ("seconds", "memory_mib", "parameters")
    _need(table, ("family", *measured), "costs", finite=measured)
    if table["family"].duplicated().any():
        raise ValueError(
            f"families {_listed(table['family'][table['family'].duplicated()])} come twice: one row per family"
        )
    if (table[list(measured)] <= 0).any(axis=None):
        raise ValueError(
            "costs got values that are not positive: measure them, or leave the family out"
        )
    first, table = table.iloc[0], table[::-1]  # bars are drawn from the bottom
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.06)
    for column, (name, title, colour) in enumerate(
        (("seconds", "seconds per epoch", LINES[3]), ("memory_mib", "memory (MiB)", LINES[2])), 1
    ):
        bars, place = _bars(table, name), {"row": 1, "col": column}
        figure.add_bar(
            x=table[name], y=table["family"], orientation="h", marker={"color": colour}, error_x=bars, showlegend=False,
            hovertemplate=f"%{{y}}: %{{x:,.4g}} {title}<extra></extra>", **place,
        )  # fmt: skip
        ends = table[name].to_numpy(float) + (np.nan_to_num(bars["array"]) if bars else 0)
        words = [f" {_number(value)} ({value / first[name]:.2g}×)" for value in table[name]]
        text = {
            "mode": "text",
            "textposition": "middle right",
            "cliponaxis": False,
            "showlegend": False,
            "hoverinfo": "skip",
        }
        figure.add_scatter(x=ends, y=table["family"], text=words, **text, **place)
        figure.update_xaxes(title_text=title, range=[0, 1.35 * ends.max()], **place)
    names = [
        f"{family}<br>{parameters:,.0f} parameters"
        for family, parameters in zip(table["family"], table["parameters"], strict=True)
    ]
    figure.update_yaxes(tickvals=table["family"], ticktext=names)
    slow, large = table.loc[table["seconds"].idxmax()], table.loc[table["memory_mib"].idxmax()]
    sentence = f"{slow.family} takes {slow.seconds / first.seconds:.2g} times the time of {first.family} per epoch"
    whose = " and" if slow.family == large.family else f", {large.family}"
    sentence += f"{whose} {large.memory_mib / first.memory_mib:.2g} times its memory"
    return finish(
        figure, sentence, f"in brackets: ratio to {first.family}", height=170 + 52 * len(table)
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
