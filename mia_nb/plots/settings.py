"""How does risk change with a setting, a recipe or repeated queries? Risk and accuracy against a
setting, time steps, epochs or queries; how far recipes rank the same samples first; the choice of p
and Q.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mia_nb.attacks import in_words
from mia_nb.plots.marks import DODGE, band, bars, column_bars, level, offset, triple
from mia_nb.plots.style import (
    BELOW,
    DASHES,
    DOTTED,
    GREY,
    LINES,
    MARKERS,
    MEMBER,
    MEMBERS,
    NON_MEMBERS,
    clauses,
    finish,
    listed,
    look,
    span,
    translucent,
)
from mia_nb.plots.tables import chance, metric_name, need, text

LOGARITHMIC = ("T", "s", "steps", "queries")  # settings that studies double from one to the next
OCTAVES = 0.04  # between lines that share a time step, so that their bars stay apart
COLUMNS = ("line", "timesteps", "value", "low", "high")
Levels = dict[str, tuple[float, float, float]]  # {name: (value, low, high)}
GROUP = ["schedule", "augment", "rest"]
RISKS = ("attack", "metric", "fpr", "value", "low", "high", "measurable", "pairs", "n1", "n0")
AGREEMENT = ("first", "second", "correlation", "ceiling", "ratio", "low", "high")
EPOCH_OCTAVES = 0.045  # between the attacks at one number of epochs
ENDS = ("auc", "auc_low", "auc_high")
NORMAL = 1.96  # standard errors of a 95 % interval


def is_number(values: pd.Series) -> bool:
    """Whether settings are numbers, which lie on an axis; true and false are words."""
    kinds = pd.api.types
    return kinds.is_numeric_dtype(values) and not kinds.is_bool_dtype(values)


def risk_against(table: pd.DataFrame, x: str) -> go.Figure:
    """Risk and accuracy against one setting, in two panels on one axis.

    Settings that are numbers (k, T, s, sigma, n) are joined by lines, words (solver, variant) are
    not; T, s, steps and queries stand on a logarithmic axis. NaN ends: no bar.

    Parameters:
        table: a row per setting with columns x, auc, auc_low, auc_high, train_acc, test_acc, and
            where there are any train_acc_low, train_acc_high, test_acc_low, test_acc_high (drawn),
            n1, n0, pairs (hover), `group` (a line each), `label` (hover)
        x: the column of the setting

    Raises:
        ValueError: for missing columns or values, and a setting that comes twice in a group.

    Source: Figures 2, 6, 10 and 11 of Hong, Wu, Gruber and Lee (arXiv 2501.06686).
    """
    numeric = x in table and is_number(table[x])
    finite = ("auc", "train_acc", "test_acc") + ((x,) if numeric else ())
    if x in table and not numeric:
        table = table.assign(**{x: table[x].map(str)})  # None and lists are settings, too
    table = table.assign(group=table["group"].astype(str) if "group" in table else "")
    columns = (x, "auc", "auc_low", "auc_high", "train_acc", "test_acc")
    need(table.reset_index(drop=True), columns, "risk_against", finite, once=("group", x))
    log = numeric and x in LOGARITHMIC and (table[x] > 0).all()
    values = np.sort(table[x].unique()) if numeric else table[x].unique()
    places = np.arange(0.0, len(values))
    if numeric:
        # as floats: whole numbers have no infinity, from which the smallest step is sought
        places = np.log2(values) if log else values.astype(float)
    step = np.diff(places).min(initial=np.inf)
    count = table["group"].nunique()
    figure = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.55, 0.45])
    for i, (name, rows) in enumerate(table.groupby("group", sort=False)):
        place = rows[x].map(dict(zip(values, places, strict=True)))
        beside = DODGE * step * offset(i, count) if len(values) > 1 else 0.0
        _add_setting(figure, name, rows.assign(place=place + beside), x, i, numeric)
    reach = max(0.04 * np.ptp(places) if numeric else 0.5, 0.05)
    axis = {
        "tickmode": "array",
        "tickvals": list(places),
        "ticktext": list(map(text, values)),
        "range": [places.min() - reach, places.max() + reach],
    }
    figure.add_hline(y=0.5, line=DOTTED, row=1, col=1)
    without = int((~np.isfinite(table[["auc_low", "auc_high"]].astype(float))).any(axis=1).sum())
    return finish(
        figure,
        _extremes(table.reset_index(drop=True), x),
        clauses(
            "bars: the table's intervals",
            "dotted: random guessing",
            "filled: on members",
            "open: on non-members",
            without and f"{without} of {len(table)} AUCs without interval",
        ),
        height=560,
        legend=BELOW,
        xaxis=axis,
        xaxis2=axis | {"title": {"text": f"{x} (logarithmic)" if log else x}},
        yaxis={"title": {"text": "AUC", "standoff": 14}},
        yaxis2={"title": {"text": "accuracy", "standoff": 14}, "tickformat": "~%"},
    )


def _add_setting(
    figure: go.Figure, name: str, rows: pd.DataFrame, x: str, i: int, numeric: bool
) -> None:
    """One group's AUC above its accuracies on members and on non-members."""
    rows, (colour, _, symbol) = rows.sort_values("place"), look(i)
    units = {"label": "", "pairs": " pairs", "n1": " members", "n0": " non-members"}
    facts = [
        " · ".join(
            str(row[fact]) if fact == "label" else f"{row[fact]:,g}{unit}"
            for fact, unit in units.items()
            if fact in rows
        )
        for _, row in rows.iterrows()
    ]
    for column, words, dash, marker, row, form in (
        ("auc", "AUC", "solid", symbol, 1, ".3f"),
        ("train_acc", "on members", "dash", symbol, 2, ".1%"),
        ("test_acc", "on non-members", "solid", f"{symbol}-open", 2, ".1%"),
    ):
        figure.add_scatter(
            x=rows["place"],
            y=rows[column],
            customdata=np.column_stack([rows[x].map(text), facts]),
            mode="lines+markers" if numeric else "markers",
            name=f"{name}, {words}" if name else words,
            legendgroup=name,
            line={"color": colour, "width": 2, "dash": dash},
            marker={"symbol": marker, "size": 9, "color": colour},
            error_y=column_bars(rows, column),
            row=row,
            col=1,
            hovertemplate=(
                f"{x} = %{{customdata[0]}}: {words} %{{y:{form}}}<br>%{{customdata[1]}}"
                f"<extra>{name}</extra>"
            ),
        )


def _extremes(table: pd.DataFrame, x: str) -> str:
    """The largest and the smallest risk, with the accuracy that each comes with."""
    most = table.loc[table["auc"].idxmax()]
    least = table.loc[table["auc"].idxmin()]
    parts = []
    for row in (most, least) if len(table) > 1 else (most,):
        where = f"{row.group}, {x} = {text(row[x])}" if row.group else f"{x} = {text(row[x])}"
        parts.append(f"AUC {row['auc']:.3f} at {where} with test accuracy {row['test_acc']:.1%}")
    low = most["auc_low"]
    high = least["auc_high"]
    if len(table) < 2 or not np.isfinite([low, high]).all():
        return ", ".join(parts)
    return f"{', '.join(parts)}; their intervals {'are apart' if low > high else 'overlap'}"


def against_timesteps(
    table: pd.DataFrame, *, reference=None, y_title: str = "AUC", y_format: str = ".3f"
) -> go.Figure:
    """A measured value against T, a line per family, over levels that have no T: Figure 2 (right)
    of Guan et al. 2025.

    The x axis is log2 T; lines that share a T stand a little apart, `customdata` holds the exact T.
    The sentence speaks of the first line.

    Parameters:
        table: a row per line and T with columns line, timesteps, value, low, high (NaN ends: no
            interval, no bar)
        reference: {name: (value, low, high)} or a frame with these columns indexed by name, drawn
            as dashed levels with bands
        y_title: of the value
        y_format: ".3f", or ".1%" for shares

    Raises:
        ValueError: for missing columns or values, T below 1, a line with the same T twice.
    """
    table = _lines(table)
    levels = _levels(reference)
    figure = go.Figure()
    _add_lines(figure, table, levels, list(table["line"].unique()), y_format)
    return finish(
        figure,
        _change(table, y_title, y_format),
        _intervals(table, levels),
        height=440,
        legend=BELOW,
        yaxis=_y_axis(y_title, y_format),
    )


def accuracy_and_risk(
    accuracy: pd.DataFrame,
    risk: pd.DataFrame,
    *,
    accuracy_reference=None,
    reference=None,
    y_title: str = "AUC",
) -> go.Figure:
    """`against_timesteps` twice: test accuracy beside the risk it costs; a line keeps its colour
    and marker in both panels.

    The sentence takes the first line of `accuracy` that `risk` has too, between the smallest and
    the largest T of both.

    Parameters:
        accuracy: a table as in `against_timesteps`
        risk: another
        accuracy_reference: levels of the accuracy, as there
        reference: levels of the risk
        y_title: of the risk

    Raises:
        ValueError: for tables without a line, or without a T of that line, in common.
    """
    accuracy = _lines(accuracy)
    risk = _lines(risk)
    levels = _levels(accuracy_reference), _levels(reference)
    # those of the risk first, as in `against_timesteps` of the risk alone
    names = list(dict.fromkeys([*risk["line"], *accuracy["line"]]))
    figure = make_subplots(1, 2, horizontal_spacing=0.12)
    shown = set()
    panels = ((accuracy, levels[0], "test accuracy", ".1%"), (risk, levels[1], y_title, ".3f"))
    for column, (table, own, title, form) in enumerate(panels, start=1):
        _add_lines(figure, table, own, names, form, shown, row=1, col=column)
        figure.update_yaxes(**_y_axis(title, form), row=1, col=column)
        shown |= set(table["line"]) | set(own)
    both = [line for line in accuracy["line"].unique() if line in set(risk["line"])]
    if not both:
        raise ValueError(
            f"accuracy has lines {listed(accuracy.line)}, risk has {listed(risk.line)}:"
            " name one line alike"
        )
    ends = [t[t["line"] == both[0]].set_index("timesteps")["value"] for t in (accuracy, risk)]
    common = ends[0].index.intersection(ends[1].index)
    if not len(common):
        raise ValueError(
            f"{both[0]} has no T in both tables: measure accuracy and risk at the same T"
        )
    first = common.min()
    last = common.max()
    gained, cost = (end[last] - end[first] for end in ends)
    return finish(
        figure,
        f"{both[0]}: from T = {first} to T = {last} accuracy changes by {100 * gained:+.1f}"
        f" points, {y_title} by {cost:+.3f}",
        _intervals(pd.concat([accuracy, risk]), levels[0] | levels[1]),
        height=460,
        legend=BELOW,
    )


def conversion_quality(table: pd.DataFrame, *, ann=None) -> go.Figure:
    """Accuracy after conversion against T, a line per way of fitting thresholds, under the accuracy
    of the networks converted.

    The sentence names the best line at the largest T and the first T at which it is within a point.

    Parameters:
        table: columns timesteps, fit ("refit", "reused", ...), per ("layer", "channel"), value,
            low, high
        ann: a share, or (value, low, high)

    Raises:
        ValueError: for missing columns or values.
    """
    need(table, ("timesteps", "fit", "per", "value", "low", "high"), "conversion_quality")
    pairs = zip(table["fit"], table["per"], strict=True)
    table = _lines(table.assign(line=[f"{fit}, per {per}" for fit, per in pairs]))
    levels = _levels(None if ann is None else {"ANN": ann})
    figure = go.Figure()
    _add_lines(figure, table, levels, list(table["line"].unique()), ".1%")
    last = table[table["timesteps"] == table["timesteps"].max()]
    best = last.loc[last["value"].idxmax()]
    sentence = f"at T = {best.timesteps} {best.line} is best: {best.value:.1%}"
    if levels:
        whole = levels["ANN"][0]
        near = table[(table["line"] == best.line) & (table["value"] >= whole - 0.01)]["timesteps"]
        side = "below" if best.value < whole else "above"
        sentence += f", {100 * abs(best.value - whole):.1f} points {side} the ANN; it " + (
            f"first comes within a point at T = {near.min()}"
            if len(near)
            else "never comes within a point"
        )
    return finish(
        figure,
        sentence,
        _intervals(table, levels),
        height=440,
        legend=BELOW,
        yaxis=_y_axis("accuracy after conversion", ".1%"),
    )


def _lines(table: pd.DataFrame) -> pd.DataFrame:
    """The five columns, checked: T whole and >= 1 (a log axis would drop others without a word),
    each line once per T.
    """
    need(table, COLUMNS, "the table against T", finite=("timesteps", "value"))
    steps = table["timesteps"].astype(float)
    if ((steps < 1) | (steps % 1 != 0)).any():
        raise ValueError(
            f"timesteps {sorted(steps.unique())}: wanted whole numbers from 1 on; an ANN goes into"
            " reference"
        )
    need(table, COLUMNS, "the table against T", once=("line", "timesteps"))
    return table[list(COLUMNS)].astype({"line": str, "timesteps": int, "value": float})


def _levels(reference) -> Levels:
    """{name: (value, low, high)} of numbers, triples, or a frame with these columns."""
    if isinstance(reference, pd.DataFrame):
        reference = dict(zip(reference.index, reference[list(COLUMNS[2:])].to_numpy(), strict=True))
    return {str(name): triple(value) for name, value in (reference or {}).items()}


def _add_lines(
    figure: go.Figure,
    table: pd.DataFrame,
    levels: Levels,
    names: list[str],
    form: str,
    shown=frozenset(),
    **place,
) -> None:
    """The table's lines over the levels.

    names: of all lines of the figure: a line's place among them chooses colour and marker
    form: of values in hovers
    shown: names that the legend has already
    """
    steps = np.sort(table["timesteps"].unique())
    ends = np.array([steps[0] / 1.25, steps[-1] * 1.25])
    for i, (name, value) in enumerate(levels.items()):
        level(
            figure,
            ends,
            *value,
            colour=GREY if i == 0 else LINES[(len(names) + i - 1) % len(LINES)],
            dash=DASHES[1:][i % len(DASHES[1:])],
            name=name,
            legendgroup=name,
            legendrank=1001,
            showlegend=name not in shown,
            hovertemplate=f"{name}: %{{y:{form}}}<extra></extra>",
            **place,
        )
    for name, rows in table.groupby("line", sort=False):
        i = names.index(name)
        rows = rows.sort_values("timesteps")
        figure.add_scatter(
            x=rows["timesteps"] * 2.0 ** (OCTAVES * offset(i, len(names))),
            y=rows["value"],
            customdata=rows["timesteps"],
            mode="lines+markers",
            name=name,
            line={"color": look(i).colour, "width": 2},
            legendgroup=name,
            showlegend=name not in shown,
            marker={"symbol": look(i).symbol, "size": 9},
            error_y=bars(rows["value"], rows["low"], rows["high"], thickness=1.2),
            hovertemplate=f"T = %{{customdata}}: %{{y:{form}}}",
            **place,
        )
    figure.update_xaxes(
        title_text="time steps T",
        range=np.log10(ends),
        type="log",
        tickmode="array",
        tickvals=steps,
        ticktext=list(map(str, steps)),
        **place,
    )


def _y_axis(title: str, form: str) -> dict:
    return {"title": {"text": title}, "tickformat": "~%" if form.endswith("%") else ""}


def _change(table: pd.DataFrame, y_title: str, form: str) -> str:
    """How the first line changes from its smallest to its largest T, and whether that is more than
    its intervals allow.
    """
    rows = table[table["line"] == table["line"].iloc[0]].sort_values("timesteps")
    first = rows.iloc[0]
    last = rows.iloc[-1]
    values = [f"{row.value:{form}} at T = {row.timesteps}" for row in (first, last)]
    if len(rows) == 1:
        return f"{first.line}: {y_title} is {values[0]}"
    change = f"{'rises' if last.value > first.value else 'falls'} from {' to '.join(values)}"
    if first.value == last.value:
        change = f"stays at {values[1]}"
    weighed = "no intervals to weigh it by"
    if np.isfinite([first.low, first.high, last.low, last.high]).all():
        beyond = first.high < last.low or last.high < first.low
        weighed = f"the intervals {'do not overlap' if beyond else 'overlap'}"
    return f"{first.line}: {y_title} {change}; {weighed}"


def _intervals(table: pd.DataFrame, levels: Levels) -> str:
    """What bars and bands are, and how many values came without."""
    ends = [*table[["low", "high"]].to_numpy(float), *(value[1:] for value in levels.values())]
    without = int((~np.isfinite(ends)).any(axis=1).sum())
    if without == len(ends):
        return "no intervals were given"
    return clauses(
        "bars and bands: the intervals of the table",
        without and f"{without} of {len(ends)} values came without",
    )


def risk_against_epochs(table: pd.DataFrame) -> go.Figure:
    """AUC, and the TPR at every FPR that all recipes can measure, against the epochs on a
    logarithmic axis.

    A colour for each attack, a marker and a dash for recipes that differ in epochs alone; bars:
    95 % intervals, of each recipe by itself (differences are paired, and may be surer than the bars
    look). Dotted: chance.

    Parameters:
        table: `studies.varied_settings(...)["epochs"]`

    Raises:
        ValueError: for missing columns and for a table without a row.
    """
    need(
        table,
        ("label", "epochs", *GROUP, *RISKS),
        "risk_against_epochs",
        finite=("value", "low", "high"),
    )
    names = [
        f"tpr@{x:g}" if x == x else name
        for name, x in zip(table["metric"], table["fpr"], strict=True)
    ]
    table = table.assign(metric=names)
    measurable = table.groupby("metric", sort=False)["measurable"].all()
    rates = [metric for metric in measurable.index[measurable] if metric != "auc"]
    shown = ["auc", *sorted(rates, key=chance)]
    titles = [metric_name(metric) for metric in shown]
    figure = make_subplots(1, len(shown), horizontal_spacing=0.09, subplot_titles=titles)
    groups = _recipes(table)
    attacks = list(dict.fromkeys(table["attack"]))
    for column, metric in enumerate(shown, start=1):
        for i, (key, name) in enumerate(groups.items()):
            for j, attack in enumerate(attacks):
                mine = table[(table["metric"] == metric) & (table["attack"] == attack)]
                mine = mine[(mine[GROUP] == list(key)).all(axis=1)].sort_values("epochs")
                # groups side by side, their attacks in order, a place free between two groups
                beside = offset(i * (len(attacks) + 1) + j, len(groups) * (len(attacks) + 1) - 1)
                label = f"{in_words(attack)}, {name}" if name else in_words(attack)
                _add_risk(figure, mine, label, i, LINES[j % len(LINES)], beside, column)
        figure.add_hline(y=chance(metric), line=DOTTED, row=1, col=column)
    epochs = sorted(table["epochs"].unique())
    figure.update_xaxes(
        title_text="epochs (logarithmic)",
        tickmode="array",
        tickvals=np.log2(epochs),
        ticktext=epochs,
    )
    for column, form in enumerate((".2f", "~%", "~%"), start=1):
        figure.update_yaxes(tickformat=form, col=column)
    figure.update_annotations(font_size=13)
    left = [metric_name(metric) for metric in measurable.index[~measurable]]
    sizes = ("pairs of targets", "pairs"), ("members", "n1"), ("non-members", "n0")
    return finish(
        figure,
        _rise(table, groups),
        clauses(
            "bars 95 %",
            ", ".join(f"{span(table[column])} {unit}" for unit, column in sizes),
            left and f"not measurable with so few: {', '.join(left)}",
        ),
        height=480,
        headroom=22,
        legend=BELOW,
    )


def _recipes(table: pd.DataFrame) -> dict[tuple, str]:
    """{(schedule, augment, rest): what tells it from the others}; the label's words where schedule
    and augment do not.
    """
    first = table.drop_duplicates(GROUP)
    keys = first[GROUP].itertuples(index=False, name=None)
    words = [re.sub(r"\d+ epochs?, ", "", label.split(": ")[-1]) for label in first["label"]]
    return dict(zip(keys, _short(words), strict=True))


def _short(labels: list[str]) -> list[str]:
    """The parts of comma-separated labels that not all have; a single one says nothing."""
    parts = [re.split(r", |: ", text) for text in labels]
    shared = set.intersection(*map(set, parts)) if parts else set()
    return [", ".join(part for part in label if part not in shared) for label in parts]


def _add_risk(
    figure: go.Figure,
    rows: pd.DataFrame,
    name: str,
    i: int,
    colour: str,
    beside: float,
    column: int,
) -> None:
    figure.add_scatter(
        x=np.log2(rows["epochs"].astype(float)) + EPOCH_OCTAVES * beside,
        y=rows["value"],
        error_y=bars(rows["value"], rows["low"], rows["high"]),
        mode="lines+markers",
        name=name,
        legendgroup=name,
        showlegend=column == 1,
        line={"color": colour, "width": 2, "dash": DASHES[i % len(DASHES)]},
        marker={"symbol": MARKERS[i % len(MARKERS)] + ("-open" if i else ""), "size": 9},
        customdata=rows["label"],
        hovertemplate="%{customdata}: %{y:.3f}<extra>" + name + "</extra>",
        row=1,
        col=column,
    )


def _rise(table: pd.DataFrame, groups: dict[tuple, str]) -> str:
    """The strongest attack's AUC at the fewest and at the most epochs of the largest group."""
    auc = table[table["metric"] == "auc"]
    best = auc.loc[auc.groupby("label", sort=False)["value"].idxmax()]
    key, rows = max(best.groupby(GROUP, sort=False), key=lambda item: len(item[1]))
    rows = rows.sort_values("epochs")
    parts = [
        f"AUC {row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}] ({in_words(row['attack'])})"
        f" after {row['epochs']} epochs"
        for _, row in rows.iloc[[0, -1] if len(rows) > 1 else [0]].iterrows()
    ]
    return (f"{groups[key]}: " if groups[key] else "") + ", ".join(parts)


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


def query_curves(
    curves: dict[str, pd.DataFrame],
    *,
    noise_off: dict | None = None,
    closed: pd.DataFrame | None = None,
) -> go.Figure:
    """AUC against the number R of queries that an attacker averages, on a log2 axis; R = inf is
    extrapolated, apart and open.

    The sentence says what one query hides.

    Parameters:
        curves: {family: metrics.query_curve(...)}: index R, columns auc, auc_low, auc_high, maybe
            attack (a line each), pairs, n1
        noise_off: {family: AUC} or {family: (AUC, low, high)} of the same models with their noise
            switched off, a dashed level in the family's colour
        closed: index R (inf allowed), column auc: what Gaussian theory says, dotted

    Raises:
        ValueError: for no curve, missing columns and a family of noise_off without curve.
    """
    levels = dict(noise_off or {})
    figure = go.Figure()
    strangers = sorted(set(levels) - set(curves))
    if not curves:
        raise ValueError("query_curves got no curve: pass {family: metrics.query_curve(...)}")
    if strangers:
        raise ValueError(
            f"noise_off names {strangers}, the curves are those of {list(curves)}: name families"
            " alike"
        )
    table = pd.concat(curves, names=["family", "R"]).reset_index()
    need(table, ENDS, "query_curves")
    table["line"] = table["family"]
    if "attack" in table:
        several = table.groupby("family")["attack"].transform("nunique") > 1
        table.loc[several, "line"] += ", " + table["attack"].map(in_words)
    counts = np.unique(table["R"].to_numpy(float))
    counts = counts[np.isfinite(counts)]
    limit = np.log2(counts[-1]) + 1.5
    lines = list(table.groupby("line", sort=False))
    ends = [np.log2(counts[0]) - 0.3, limit + 0.3]
    for i, (name, rows) in enumerate(lines):
        _add_curve(figure, name, rows, limit, i, 0.05 * offset(i, len(lines)))
        family = rows["family"].iloc[0]
        if family in levels:
            level(
                figure,
                ends,
                *triple(levels.pop(family)),
                colour=look(i).colour,
                width=1.5,
                name=f"{family}, noise off",
                legendgroup=f"{family}, noise off",
                hovertemplate="AUC %{y:.3f}",
            )
    if closed is not None:
        figure.add_scatter(
            x=np.minimum(np.log2(closed.index.to_numpy(float)), limit),
            y=closed["auc"],
            customdata=["∞" if np.isinf(count) else f"{count:g}" for count in closed.index],
            mode="lines+markers",
            name="closed form",
            line={"color": GREY, "dash": "dot", "width": 2},
            marker={"symbol": "x-thin-open", "size": 7},
            hovertemplate="closed form, R = %{customdata}: AUC %{y:.3f}",
        )
    beyond = closed is not None or bool(np.isinf(table["R"]).any())
    if beyond:
        figure.add_vline(x=limit - 0.75, line=DOTTED)
    known = table.drop_duplicates("line") if {"pairs", "n1"} <= set(table) else table[:0]
    sizes = listed(f"{row.pairs:g} pairs, {row.n1:,g} members" for row in known.itertuples())
    ticks = counts if len(counts) <= 8 else counts[np.log2(counts) % 1 == 0]
    return finish(
        figure,
        _averaging(*lines[0], (noise_off or {}).get(lines[0][1]["family"].iloc[0])),
        clauses(
            f"bars 95 % ({sizes})" if sizes else "bars 95 %",
            np.isinf(table["R"]).any() and "open: extrapolated to infinitely many queries",
            bool(noise_off) and "dashed: noise switched off",
            closed is not None and "closed form fitted at the largest R",
        ),
        height=440,
        legend=BELOW,
        xaxis={
            "title": "queries R, averaged by the attacker",
            "range": ends,
            "tickvals": [*np.log2(ticks), *[limit] * beyond],
            "ticktext": [*map(text, ticks), *["∞"] * beyond],
        },
        yaxis_title="AUC",
    )


def _add_curve(
    figure: go.Figure, name: str, rows: pd.DataFrame, limit: float, i: int, beside: float
) -> None:
    """Measured points joined by a line, the extrapolated one apart and open."""
    colour, _, symbol = look(i)
    beyond = np.isinf(rows["R"])
    for part, mode, marker in (
        (rows[~beyond], "lines+markers", {"symbol": symbol, "size": 9}),
        (rows[beyond], "markers", {"symbol": f"{symbol}-open", "size": 10, "line": {"width": 2}}),
    ):
        figure.add_scatter(
            x=np.minimum(np.log2(part["R"].to_numpy(float)), limit) + beside,
            y=part["auc"],
            customdata=["∞ (extrapolated)" if np.isinf(r) else f"{r:g}" for r in part["R"]],
            mode=mode,
            name=name,
            legendgroup=name,
            showlegend=mode != "markers",
            line={"color": colour, "width": 2},
            marker=marker | {"color": colour},
            error_y=column_bars(part, "auc"),
            hovertemplate="R = %{customdata}: AUC %{y:.3f}",
        )


def _averaging(name: str, rows: pd.DataFrame, noise_off) -> str:
    """What the first line gains from further queries."""
    beyond = np.isinf(rows["R"])
    measured = rows[~beyond]
    limit = rows[beyond]["auc"]
    first = measured.iloc[0]
    last = measured.iloc[-1]
    values = [f"AUC {first['auc']:.3f} with {first['R']:g} quer{'y' if first['R'] == 1 else 'ies'}"]
    if len(measured) > 1:
        values.append(f"{last['auc']:.3f} with {last['R']:g}")
    if limit.notna().any():
        values.append(f"{limit.iloc[0]:.3f} extrapolated to infinitely many")
    if noise_off is not None:
        values.append(f"{triple(noise_off)[0]:.3f} with the noise off")
    unlimited = len(limit) and limit.isna().all()
    return clauses(f"{name}: {', '.join(values)}", unlimited and "no limit could be extrapolated")


def settling(
    outputs: dict[bool, np.ndarray],
    *,
    averaged: int,
    quiet: dict[bool, float] | None = None,
    spread: dict[bool, float] | None = None,
    title: str = "",
) -> go.Figure:
    """Margins of one sample's outputs, and the mean after 1, 2, ..., Q of them, of a model that was
    trained on it and of one that was not.

    Parameters:
        outputs: {trained on it: (Q,) margins in nats}; points are outputs, lines their running
            means
        averaged: outputs that the attacker averages, drawn strongly
        quiet: {trained on it: margin in nats with the noise off}, dotted
        spread: {trained on it: s}, standard deviation of one output: a funnel mean +- 1.96 s /
            sqrt(r), the closed form of where the mean of r outputs lies
        title: begins the sentence

    Raises:
        ValueError: for no outputs and for `averaged` outside 1..Q.
    """
    most = min(map(len, outputs.values()), default=0)
    if not outputs:
        raise ValueError("settling got no outputs: wanted {True: margins, False: margins}")
    if not 1 <= averaged <= most:
        raise ValueError(f"averaged={averaged}, but there are {most} outputs: wanted 1 to {most}")
    figure = go.Figure()
    counts = np.arange(1, most + 1)
    axis = [0.3, most + 0.7]
    for i, (inside, own) in enumerate(outputs.items()):
        whose = "trained on it" if inside else "not trained on it"
        _, colour, dash, symbol, _ = MEMBERS if inside else NON_MEMBERS
        mean = np.cumsum(own[:most]) / counts
        if spread is not None:
            half = NORMAL * spread[inside] / np.sqrt(counts)
            ends = (mean[-1] - half, mean[-1] + half)
            band(figure, counts, *ends, colour, legend=i == 0, name="closed form")
        strength = [translucent(colour, 0.75 if r < averaged else 0.2) for r in range(most)]
        figure.add_scatter(
            x=counts,
            y=own[:most],
            mode="markers",
            marker={"symbol": symbol, "size": 7, "color": strength},
            showlegend=False,
            name=whose,
            hovertemplate="output %{x}: margin %{y:.2f}",
        )
        figure.add_scatter(
            x=counts[:averaged],
            y=mean[:averaged],
            mode="lines+markers",
            line={"color": colour, "width": 3, "dash": dash},
            name=f"mean, {whose}",
            marker={"size": 4, "color": colour},
            hovertemplate="mean of %{x}: %{y:.2f}",
        )
        if quiet is not None and inside in quiet:
            level(
                figure,
                axis,
                quiet[inside],
                showlegend=i == 0,
                hovertemplate="noise off: %{y:.2f}",
                colour=colour,
                dash="dot",
                width=1.5,
                name="noise off",
            )
    means = [float(own[:averaged].mean()) for own in outputs.values()]
    what = "one output is"
    where = f"at {means[0]:.2f} nats"
    if len(means) == 2:
        what = "one output of each is"
        where = f"{means[0] - means[1]:+.2f} nats apart"
    if averaged > 1:
        what = f"the means of {averaged} outputs are"
    return finish(
        figure,
        f"{title}: {what} {where}",
        clauses(
            "points: outputs",
            "lines: their mean so far",
            bool(quiet) and "dotted: noise off",
            spread is not None and "shaded: closed form",
        ),
        height=370,
        legend=BELOW,
        xaxis={"title": "outputs averaged", "range": axis},
        yaxis_title="margin (nats)",
    )


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
    value, error = (
        table.pivot(index="p", columns="queries", values=part) for part in ("value", "error")
    )
    best = table.loc[table["value"].idxmax()]
    p, queries = chosen or (best.p, best.queries)
    mine = table[np.isclose(table["p"], p) & (table["queries"] == queries)]
    if mine.empty:
        raise ValueError(
            f"chosen=({p}, {queries}) is not in the table: p {value.index.tolist()}, queries"
            f" {value.columns.tolist()}"
        )
    mine = mine.iloc[0]
    row = value.index.get_loc(mine.p)
    column = value.columns.get_loc(mine.queries)
    text = [
        ["" if np.isnan(v) else _with_error(v, e) for v, e in zip(*pair, strict=True)]
        for pair in zip(value.to_numpy(), error.to_numpy(), strict=True)
    ]
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
    corners = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
    # one of the two shows on any colour and any page
    for colour, width in (("white", 6), ("black", 3)):
        figure.add_shape(
            type="rect", **corners, line={"color": colour, "width": width}, name="chosen"
        )
    many = "query" if mine.queries == 1 else "queries"
    untried = int(np.isnan(value.to_numpy()).sum())
    axis = {"type": "category", "showgrid": False}
    return finish(
        figure,
        f"p = {mine.p:g} with {mine.queries:g} {many} is chosen:"
        f" {name} {_with_error(mine.value, mine.error)}; {_against_no_dropout(table, best)}",
        clauses(
            "★ and outline: chosen",
            "± one standard error",
            untried and f"{untried} empty cells were not tried",
        ),
        height=150 + 44 * len(value),
        xaxis=axis | {"title": "queries Q"},
        yaxis=axis | {"title": "input dropout p"},
    )


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
