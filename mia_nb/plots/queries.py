"""What do repeated queries give an attacker? Averages of noisy outputs; the choice of p and Q."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mia_nb.plots.marks import band, column_bars, level, offset
from mia_nb.plots.style import (
    BELOW,
    DOTTED,
    GREY,
    LINES,
    MEMBERS,
    NON_MEMBERS,
    clauses,
    finish,
    listed,
    look,
    translucent,
)
from mia_nb.plots.tables import need

ENDS = ("auc", "auc_low", "auc_high")
NORMAL = 1.96  # standard errors of a 95 % interval


def query_curves(curves: dict[str, pd.DataFrame], *, noise_off: dict | None = None) -> go.Figure:
    """AUC against the number R of queries that an attacker averages, on a log2 axis; R = inf is
    extrapolated, apart and open.

    The sentence says what one query hides.

    curves: {family: metrics.query_curve(...)}; a curve of several attacks gives a line each
    noise_off: {family: AUC} or {family: (AUC, low, high)} of the same models with their noise
        switched off, a dashed level in the family's colour

    Raises ValueError for no curve, missing columns and a family of noise_off without curve.
    """
    noise_off, lines = noise_off or {}, {}
    if not curves:
        raise ValueError("query_curves got no curve: pass {family: metrics.query_curve(...)}")
    if strangers := sorted(set(noise_off) - set(curves)):
        raise ValueError(
            f"noise_off names {strangers}, the curves are those of {list(curves)}: name families"
            " alike"
        )
    for family, curve in curves.items():
        need(curve, ("attack", *ENDS, "extrapolated"), f"query_curves of {family}")
        several = curve["attack"].nunique() > 1
        for attack, rows in curve.groupby("attack", sort=False):
            lines[f"{family}, {attack}" if several else family] = (family, rows)
    counts = np.unique(np.concatenate([rows.index for _, rows in lines.values()]))
    counts = counts[np.isfinite(counts)]
    limit, figure = np.log2(counts[-1]) + 1.5, go.Figure()
    for i, (name, (_, rows)) in enumerate(lines.items()):
        _add_curve(figure, name, rows, limit, i, 0.05 * offset(i, len(lines)))
    ends = [np.log2(counts[0]) - 0.3, limit + 0.3]
    families = [family for family, _ in lines.values()]
    for family in curves:
        if family in noise_off:
            value = noise_off[family]
            level(
                figure,
                ends,
                *([value] if np.isscalar(value) else value),
                colour=look(families.index(family)).colour,
                width=1.5,
                name=f"{family}, noise off",
                legendgroup=f"{family}, noise off",
                hovertemplate="AUC %{y:.3f}",
            )
    figure.add_vline(x=limit - 0.75, line=DOTTED)
    sizes = listed(
        f"{rows['pairs'].iloc[0]:g} pairs, {rows['n1'].iloc[0]:,g} members"
        for _, rows in lines.values()
        if {"pairs", "n1"} <= set(rows)
    )
    first, (_, rows) = next(iter(lines.items()))
    return finish(
        figure,
        _averaging(first, rows),
        clauses(
            f"bars 95 % ({sizes})" if sizes else "bars 95 %",
            "open: extrapolated to infinitely many queries",
            bool(noise_off) and "dashed: noise switched off",
        ),
        height=440,
        legend=BELOW,
        xaxis={
            "title": "queries R, averaged by the attacker",
            "range": ends,
            "tickvals": [*np.log2(counts), limit],
            "ticktext": [*(f"{count:g}" for count in counts), "∞"],
        },
        yaxis_title="AUC",
    )


def _add_curve(
    figure: go.Figure, name: str, rows: pd.DataFrame, limit: float, i: int, beside: float
) -> None:
    """Measured points joined by a line, the extrapolated one apart and open."""
    colour, _, symbol = look(i)
    extrapolated = rows["extrapolated"].to_numpy(bool)
    measured, beyond = rows[~extrapolated], rows[extrapolated]
    shared = {"name": name, "legendgroup": name, "line": {"color": colour, "width": 2}}
    shared["hovertemplate"] = "R = %{customdata}: AUC %{y:.3f}"
    figure.add_scatter(
        x=np.log2(measured.index.to_numpy(float)) + beside,
        y=measured["auc"],
        customdata=[f"{count:g}" for count in measured.index],
        mode="lines+markers",
        showlegend=True,
        error_y=column_bars(measured, "auc"),
        marker={"symbol": symbol, "color": colour, "size": 9},
        **shared,
    )
    figure.add_scatter(
        x=np.full(len(beyond), limit) + beside,
        y=beyond["auc"],
        customdata=["∞ (extrapolated)"] * len(beyond),
        mode="markers",
        showlegend=False,
        error_y=column_bars(beyond, "auc"),
        marker={"symbol": f"{symbol}-open", "color": colour, "size": 10, "line": {"width": 2}},
        **shared,
    )


def _averaging(name: str, rows: pd.DataFrame) -> str:
    """What the first line gains from further queries."""
    extrapolated = rows["extrapolated"].astype(bool)
    auc, limit = rows[~extrapolated]["auc"], rows[extrapolated]["auc"]
    queries = "query" if auc.index[0] == 1 else "queries"
    sentence = f"{name}: AUC {auc.iloc[0]:.3f} with {auc.index[0]:g} {queries}"
    if len(auc) > 1:
        sentence += f", {auc.iloc[-1]:.3f} with {auc.index[-1]:g}"
    if len(limit) and np.isfinite(limit.iloc[0]):
        return f"{sentence}, {limit.iloc[0]:.3f} extrapolated to infinitely many"
    return f"{sentence}; no limit could be extrapolated"


def settling(
    answers: dict[bool, np.ndarray],
    *,
    asked: int,
    quiet: dict[bool, float] | None = None,
    spread: dict[bool, float] | None = None,
    title: str = "",
) -> go.Figure:
    """Margins of one sample's outputs, and the mean after 1, 2, ..., Q of them, of a model that was
    trained on it and of one that was not.

    answers: {trained on it: (Q,) margins in nats}; points are outputs, lines their running means
    asked: outputs that the attacker averages, drawn strongly
    quiet: {trained on it: margin in nats with the noise off}, dotted
    spread: {trained on it: s}, standard deviation of one output: a funnel mean +- 1.96 s / sqrt(r),
        the closed form of where the mean of r outputs lies
    title: begins the sentence

    Raises ValueError for no outputs and for `asked` outside 1..Q.
    """
    if not answers:
        raise ValueError("settling got no answers: wanted {True: margins, False: margins}")
    most = min(len(own) for own in answers.values())
    if not 1 <= asked <= most:
        raise ValueError(f"asked={asked}, but there are {most} answers: wanted 1 to {most}")
    figure, counts, axis = go.Figure(), np.arange(1, most + 1), [0.3, most + 0.7]
    for i, (inside, own) in enumerate(answers.items()):
        whose = "trained on it" if inside else "not trained on it"
        _, colour, dash, symbol, _ = MEMBERS if inside else NON_MEMBERS
        mean = np.cumsum(own[:most]) / counts
        if spread is not None:
            half = NORMAL * spread[inside] / np.sqrt(counts)
            ends = (mean[-1] - half, mean[-1] + half)
            band(figure, counts, *ends, colour, legend=i == 0, name="closed form")
        strength = [translucent(colour, 0.75 if r < asked else 0.2) for r in range(most)]
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
            x=counts[:asked],
            y=mean[:asked],
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
    means = [float(own[:asked].mean()) for own in answers.values()]
    what, where = "one output is", f"at {means[0]:.2f} nats"
    if len(means) == 2:
        what, where = "one output of each is", f"{means[0] - means[1]:+.2f} nats apart"
    if asked > 1:
        what = f"the means of {asked} outputs are"
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
        legend=BELOW | {"y": -0.3},
        xaxis={"title": "outputs averaged", "range": axis},
        yaxis_title="margin (nats)",
    )


def auc_against_answers(
    table: pd.DataFrame,
    *,
    quiet: tuple[float, float, float] | None = None,
    closed: pd.DataFrame | None = None,
) -> go.Figure:
    """AUC against the number R of averaged outputs on a log2 axis, with bars.

    table: index R, columns auc, auc_low, auc_high
    quiet: (AUC, low, high) with the noise off, a dashed level with its band
    closed: index R (inf allowed: drawn at the right end), column auc: what Gaussian theory says

    Raises ValueError for missing columns.
    """
    need(table, ENDS, "auc_against_answers", finite=("auc",))
    figure, x = go.Figure(), np.log2(table.index.to_numpy(float))
    right, legend = x.max() + 1, BELOW | {"y": -0.3}
    ends, hover = [x.min() - 0.3, right + 0.3], "AUC %{y:.3f}"
    if quiet is not None:
        level(figure, ends, *quiet, colour=LINES[1], name="noise off", hovertemplate=hover)
    figure.add_scatter(
        x=x,
        y=table["auc"],
        customdata=table.index,
        mode="lines+markers",
        name="queried R times",
        error_y=column_bars(table, "auc", thickness=1.2),
        line={"color": LINES[2], "width": 2},
        marker={"size": 7, "color": LINES[2]},
        hovertemplate="R = %{customdata}: AUC %{y:.3f}",
    )
    ticks = {f"{2**i}": i for i in range(int(x.max()) + 1)}
    if closed is not None:
        ticks["∞"] = right
        figure.add_scatter(
            x=np.minimum(np.log2(closed.index.to_numpy(float)), right),
            y=closed["auc"],
            customdata=["∞" if np.isinf(count) else f"{count:g}" for count in closed.index],
            mode="lines+markers",
            name="closed form",
            line={"color": GREY, "dash": "dot", "width": 2},
            marker={"symbol": "x-thin-open", "size": 7},
            hovertemplate="closed form, R = %{customdata}: AUC %{y:.3f}",
        )
    first, last = table["auc"].iloc[0], table["auc"].iloc[-1]
    return finish(
        figure,
        f"AUC {first:.3f} with {table.index[0]:g} output, {last:.3f} with {table.index[-1]:g}"
        + (f", {quiet[0]:.3f} with the noise off" if quiet is not None else ""),
        clauses("bars 95 %", closed is not None and "closed form fitted at the largest R"),
        height=370,
        legend=legend,
        xaxis={
            "title": "outputs R that the attacker averages",
            "range": ends,
            "tickvals": [*ticks.values()],
            "ticktext": [*ticks],
        },
        yaxis_title="AUC",
    )


def heatmap(
    table: pd.DataFrame, *, chosen: tuple[float, int] | None = None, name: str = "AUC"
) -> go.Figure:
    """Attack success over input-dropout rate p (rows) and number of queries Q (columns), chosen
    setting outlined and starred.

    Settings that were not tried stay empty. The sentence says by how much the best one beats the
    best of p = 0, and whether that exceeds one standard error of the best: within it, dropout has
    not earned its place.

    table: columns p, queries, value, error (standard error), as from `metrics.choose`
    chosen: (p, Q), None the best
    name: of the value

    Raises ValueError for a (p, Q) that comes twice, or a chosen one that is not there.
    """
    columns = ("p", "queries", "value", "error")
    need(table, columns, "heatmap", finite=columns)
    if table.duplicated(["p", "queries"]).any():
        raise ValueError("heatmap got a (p, queries) twice: one row per cell")
    pivots = (table.pivot(index="p", columns="queries", values=part) for part in columns[2:])
    value, error = pivots
    best = table.loc[table["value"].idxmax()]
    p, queries = chosen or (best.p, best.queries)
    mine = table[np.isclose(table["p"], p) & (table["queries"] == queries)]
    if mine.empty:
        raise ValueError(
            f"chosen=({p}, {queries}) is not in the table: p {value.index.tolist()}, queries"
            f" {value.columns.tolist()}"
        )
    mine = mine.iloc[0]
    row, column = value.index.get_loc(mine.p), value.columns.get_loc(mine.queries)
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
