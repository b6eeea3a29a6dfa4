"""Accounting, the ladder of epsilons, trade-off curves over a ROC, and what defenses cost, as pictures."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mia_nb.accounting import gaussian_mu, tradeoff
from mia_nb.auditing.claims import room_below
from mia_nb.metrics.curve import MIN_FALSE_POSITIVES
from mia_nb.plots.curves import _add_curve, _curve, _frame
from mia_nb.plots.flow import _bars, _rate, _word
from mia_nb.plots.spiking import BELOW, _listed, _need
from mia_nb.plots.style import DASHES, GREY, LINES, MARKERS, finish, named, targets, translucent
from mia_nb.types import Scores

NOMINAL, PLAIN = "nominal epsilon (paper's accounting)", "epsilon"
RELATION = "add/remove one record"
ACCOUNTANTS = {"prv": "PRV", "rdp": "RDP", "gdp": "GDP (CLT approximation)"}
VARIED = (
    "sampling",
    "batch",
    "samples",
    "noise_multiplier",
    "sigma",
    "label",
)  # of accounting tables, where they vary
VACUOUS = 0.99  # a curve above it allows all that can be found
LOOKED_AT = (
    0.0001,
    0.001,
    0.01,
    0.1,
)  # false-positive rates at which a ROC is held against a curve
SHOWN_TARGETS = 16
REFUTABLE = {
    1: "the nominal value",
    2: "Corollary 1",
    4: "the guarantee of DP-SGD",
}  # rows that an audit can refute
NEAR = 0.95  # share of `at`: accuracy read at less is told with where
SIMILAR = 0.01  # of test accuracy: what counts as the same utility
SMALL = {"size": 11, "color": GREY}


def accounting(
    table: pd.DataFrame, *, printed: float | dict[str, float] | None = None, nominal: bool = True
) -> go.Figure:
    """Epsilon along training, a line per accountant and whatever else varies: Figure 4 (left) of Hong, Wu, Gruber and Lee.

    table: `accounting.over_epochs`, or several in one with a column that tells them apart (batch, sigma, samples, label).
    printed: a value, or {word: value}, drawn as a level. nominal: the numbers are the paper's accounting of a neural SDE; False
    for DP-SGD. Raises ValueError for missing columns, values that are not finite, and an epoch that comes twice in a line.
    """
    _refuse_infinite(table, "accounting")
    _need(
        table,
        ("epoch", "epsilon", "delta", "accountant"),
        "accounting",
        finite=("epoch", "epsilon"),
    )
    figure, lines = go.Figure(), _groups(table, [*VARIED, "delta"])
    for i, (name, rows) in enumerate(lines.items()):
        rows = _once(rows, "epoch", name).sort_values("epoch")
        _add_line(figure, name, rows["epoch"], rows["epsilon"], i, "epoch %{x}: epsilon %{y:.3g}")
    levels = (
        printed
        if isinstance(printed, dict)
        else {}
        if printed is None
        else {f"printed: {printed:g}": printed}
    )
    ends = [0, float(table["epoch"].max())]
    for word, value in levels.items():
        line = {"color": GREY, "dash": "longdash", "width": 1.5}
        figure.add_scatter(
            x=ends,
            y=[value] * 2,
            mode="lines",
            line=line,
            name=word,
            hovertemplate=f"{word}: %{{y:.3g}}",
        )
    last = {name: rows.loc[rows["epoch"].idxmax(), "epsilon"] for name, rows in lines.items()}
    sentence = f"{_kind(nominal)} after {ends[1]:.0f} epochs: {_from_to(last)}"
    axes = {
        "xaxis_title": "epochs",
        "yaxis": {"title": NOMINAL if nominal else PLAIN, "rangemode": "tozero"},
    }
    return finish(figure, sentence, _accounted(table, nominal), height=440, legend=BELOW, **axes)


def delta_sweep(table: pd.DataFrame, *, nominal: bool = True) -> go.Figure:
    """Epsilon against delta on a logarithmic axis, a line per accountant and whatever else varies: Figure 4, second picture.

    table: `accounting.over_epochs` at several deltas; of several epochs the last. The sentence says which way epsilon goes: it
    falls as delta grows, whatever the text beside the figure says. Raises ValueError for missing columns, values that are not
    finite, and delta <= 0.
    """
    _refuse_infinite(table, "delta_sweep")
    _need(
        table,
        ("epoch", "epsilon", "delta", "accountant"),
        "delta_sweep",
        finite=("delta", "epsilon"),
    )
    if (table["delta"] <= 0).any():
        raise ValueError(
            f"delta_sweep got delta {table['delta'].min():g}: a logarithmic axis wants deltas above 0"
        )
    table = table[table["epoch"] == table["epoch"].max()]
    figure, lines = go.Figure(), _groups(table, VARIED)
    for i, (name, rows) in enumerate(lines.items()):
        rows = _once(rows, "delta", name).sort_values("delta")
        _add_line(
            figure, name, rows["delta"], rows["epsilon"], i, "delta %{x:.0e}: epsilon %{y:.3g}"
        )
        lines[name] = rows
    name, rows = next(iter(lines.items()))
    first, last = rows.iloc[0], rows.iloc[-1]
    way = "falls" if last["epsilon"] < first["epsilon"] else "rises"
    sentence = (
        f"{_kind(nominal)} {way} as delta grows: {first['epsilon']:.3g} at {first['delta']:g}, "
    )
    sentence += f"{last['epsilon']:.3g} at {last['delta']:g} ({name})"
    note = _accounted(table, nominal, f"after {table['epoch'].iloc[0]} epochs")
    axes = {"xaxis": {"title": "delta", "type": "log", "exponentformat": "e", "dtick": 1}}
    return finish(
        figure,
        sentence,
        note,
        height=420,
        legend=BELOW,
        yaxis_title=NOMINAL if nominal else PLAIN,
        **axes,
    )


def _refuse_infinite(table: pd.DataFrame, who: str) -> None:
    if "epsilon" in table and np.isinf(table["epsilon"].astype(float)).any():
        raise ValueError(
            f"{who}: epsilon is infinite, as it is for a sigma (noise multiplier) or a delta of 0: raise it, or drop those rows"
        )


def _kind(nominal: bool) -> str:
    return "nominal epsilon" if nominal else "epsilon of DP-SGD's accountant"


def _accounted(table: pd.DataFrame, nominal: bool, *words: str) -> str:
    deltas = (
        f"delta {_listed(f'{delta:g}' for delta in table['delta'].unique())}"
        if table["delta"].nunique() < 3
        else ""
    )
    meaning = (
        "nominal: sigma taken for DP-SGD's noise multiplier, not a guarantee" if nominal else ""
    )
    return "; ".join(filter(None, [deltas, *words, RELATION, meaning]))


def _groups(table: pd.DataFrame, varied) -> dict[str, pd.DataFrame]:
    """Rows by accountant and by every column that varies; GDP says which batches it assumes."""
    columns = [
        name
        for name in varied
        if name in table and table[name].nunique() > 1 and name != "sampling"
    ]
    groups = {}
    for key, rows in table.groupby(
        ["accountant", *(["sampling"] if "sampling" in table else []), *columns], sort=False
    ):
        words = [ACCOUNTANTS.get(key[0], str(key[0]))]
        words += [f"{key[1]} batches"] if "sampling" in table and key[0] == "gdp" else []
        values = zip(columns, key[len(key) - len(columns) :], strict=True)
        words += [
            value if isinstance(value, str) else f"{name.replace('_', ' ')} {value:g}"
            for name, value in values
        ]
        groups[", ".join(words)] = rows
    return groups


def _once(rows: pd.DataFrame, x: str, name: str) -> pd.DataFrame:
    if (twice := rows[x].duplicated()).any():
        raise ValueError(
            f"{x} = {rows.loc[twice, x].iloc[0]:g} comes more than once for {name}: add a column label"
        )
    return rows


def _add_line(figure, name: str, x, y, i: int, hover: str, **place) -> None:
    colour, symbol, dash = LINES[i % len(LINES)], MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)]
    few = len(x) <= 30
    figure.add_scatter(
        x=x, y=y, mode="lines+markers" if few else "lines", name=name, line={"color": colour, "dash": dash, "width": 2},
        marker={"symbol": symbol, "size": 8, "color": colour}, hovertemplate=hover, **place,
    )  # fmt: skip


def _from_to(last: dict[str, float]) -> str:
    least, most = min(last, key=last.get), max(last, key=last.get)
    if least == most:
        return f"{last[least]:.3g} ({least})"
    return f"{last[least]:.3g} ({least}) to {last[most]:.3g} ({most})"


def privacy_utility(table: pd.DataFrame, *, by: str = "accountant", at: float = 2.0) -> go.Figure:
    """Test accuracy against nominal epsilon, and the same points against the epoch: Figure 4 (right two).

    table: a row per model, epoch, accountant and value of `by` (delta, batch) with columns epoch, epsilon, accountant, model,
    test_acc, by and maybe sampling. Epsilon only counts epochs, so that both panels hold the same curve and the right one
    relabels its axis, once per accountant and `by`: thin lines are models, thick ones means. The sentence reads the mean
    accuracy at the last epoch within nominal epsilon `at`, with that epoch's own epsilon where it is not near, or says which
    curves end below it or begin above.
    Source: Figure 4 of Hong, Wu, Gruber and Lee (arXiv 2501.06686). Raises ValueError for missing columns or values, and for
    accuracies of one model and epoch that differ between values of `by`.
    """
    finite = ("epoch", "epsilon", "test_acc")
    _refuse_infinite(table, "privacy_utility")
    _need(table, (*finite, "accountant", "model", by), "privacy_utility", finite=finite)
    if (table.groupby(["model", "epoch"])["test_acc"].nunique() > 1).any():
        raise ValueError(
            f"test_acc of one model and epoch differs between values of {by}: they are the same models, accounted anew"
        )
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.05)
    points = table.drop_duplicates(["model", "epoch"])
    _add_models(figure, points, "epoch", "mean of models", 0, 1)
    reached, others = [], []
    lines = _groups(table, dict.fromkeys([*VARIED, "delta"] + [by] * (by != "accountant")))
    for i, (name, rows) in enumerate(lines.items(), start=1):
        _add_models(figure, rows, "epsilon", name, i, 2)
        passed, words = _reading(rows, name, at)
        (reached if passed else others).append(words)
    figure.add_vline(x=at, line={"color": GREY, "width": 1, "dash": "dot"}, row=1, col=2)
    figure.update_xaxes(title_text="epoch", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title_text=NOMINAL, rangemode="tozero", row=1, col=2)
    figure.update_yaxes(title_text="test accuracy", tickformat="~%", row=1, col=1)
    first = (
        [f"At nominal epsilon {at:g} the mean test accuracy is {', '.join(_first(reached))}"]
        if reached
        else []
    )
    sentence = "; ".join(first + _first(others))
    count = points["model"].nunique()
    note = f"the same accuracies twice: left by epoch, right relabelled; thin: {count} model{'s' * (count > 1)}; {RELATION}"
    if "delta" in table and table["delta"].nunique() == 1:
        note += f"; delta {table['delta'].iloc[0]:g}"
    return finish(figure, sentence, f"{note}; not a guarantee", height=460, legend=BELOW)


def _first(words: list[str]) -> list[str]:
    return words if len(words) <= 3 else [*words[:3], f"and {len(words) - 3} more"]


def _reading(rows: pd.DataFrame, name: str, at: float) -> tuple[bool, str]:
    """(whether the curve passes nominal epsilon `at`, what it shows there or at its end)."""
    curve = rows.groupby("epoch")[["epsilon", "test_acc"]].mean()
    within = curve[curve["epsilon"] <= at]
    if within.empty:
        epoch, epsilon = curve.index[0], curve["epsilon"].iloc[0]
        return (
            False,
            f"{name} begins at nominal epsilon {epsilon:.4g} (epoch {epoch:g}), above {at:g}",
        )
    epoch, (epsilon, accuracy) = within.index[-1], within.iloc[-1]
    if curve["epsilon"].max() < at:
        where = f"{name} ends at nominal epsilon {epsilon:.4g} (epoch {epoch:g}), below {at:g}"
        return False, f"{where}, with a mean test accuracy of {accuracy:.1%}"
    return (
        True,
        f"{accuracy:.1%} ({name}: epoch {epoch:g}{f', at {epsilon:.4g}' if epsilon < NEAR * at else ''})",
    )


def _add_models(figure, rows: pd.DataFrame, x: str, name: str, i: int, column: int) -> None:
    place, colour = {"row": 1, "col": column}, GREY if column == 1 else LINES[(i - 1) % len(LINES)]
    for _, one in rows.sort_values("epoch").groupby("model", sort=False):
        thin = {"color": translucent(colour, 0.3), "width": 1}
        figure.add_scatter(x=one[x], y=one["test_acc"], mode="lines", line=thin, legendgroup=name, showlegend=False,
                           hoverinfo="skip", **place)  # fmt: skip
    mean = rows.groupby("epoch", as_index=False)[list(dict.fromkeys([x, "test_acc"]))].mean() if x != "epoch" else (
        rows.groupby("epoch", as_index=False)["test_acc"].mean())  # fmt: skip
    line = {
        "color": colour,
        "width": 2.5,
        "dash": "solid" if column == 1 else DASHES[(i - 1) % len(DASHES)],
    }
    figure.add_scatter(x=mean[x], y=mean["test_acc"], customdata=mean["epoch"], mode="lines", line=line, name=name,
                       legendgroup=name, hovertemplate="epoch %{customdata}: %{y:.1%} at %{x:.3g}", **place)  # fmt: skip


def ladder(tables: pd.DataFrame | dict[str, pd.DataFrame]) -> go.Figure:
    """The five epsilons of `auditing.ladder` on one logarithmic axis, of one network or of several, {name: ladder}.

    A bar | is a number that somebody states, an arrow |=> a lower bound (row 5, and row 2 at a local L), an arrow to the right
    edge "none (infinite)"; what is not applicable, and 0, stands in words at the left edge. Each row carries its label and its
    note, hovers the method and remarks. Rows speak about different things: none bounds another, and only row 5 says anything
    against rows 1, 2 and 4. Raises ValueError for tables that are no ladder, and for no table.
    """
    tables = {"": tables} if isinstance(tables, pd.DataFrame) else tables
    if not tables:
        raise ValueError(
            "ladder got no table: pass auditing.ladder(...), or {name: ladder} of several"
        )
    for name, table in tables.items():
        _need(
            table,
            ("row", "label", "shown", "epsilon", "delta", "relation", "note"),
            f"ladder{f' of {name}' * bool(name)}",
        )
    values = np.concatenate([table["epsilon"].to_numpy(float) for table in tables.values()])
    values = values[np.isfinite(values) & (values > 0)]
    start, end = (values.min() / 4, values.max() * 12) if len(values) else (0.1, 100.0)
    figure, first = go.Figure(), next(iter(tables.values()))
    for i, (name, table) in enumerate(tables.items()):
        apart = 0.0 if len(tables) == 1 else 0.5 * (i / (len(tables) - 1) - 0.5)
        _add_rungs(figure, name, table, (start, end), apart, i)
    for _, row in first.iterrows():
        below = {
            "xref": "paper",
            "x": 0,
            "xanchor": "left",
            "y": -row["row"] - 0.42,
            "showarrow": False,
            "align": "left",
        }
        figure.add_annotation(text=row["note"], font=SMALL, **below)
    labels = first.drop_duplicates("row")
    figure.update_yaxes(tickvals=-labels["row"], ticktext=labels["label"], range=[-labels["row"].max() - 0.55, -0.5],
                        showgrid=False)  # fmt: skip
    figure.update_xaxes(
        type="log",
        range=[math.log10(start), math.log10(end)],
        title_text="epsilon (logarithmic)",
        dtick="D2",
    )
    several = [
        f"{name}: {_claimed(table)}" if name else _claimed(table).replace("claimed", "Claimed", 1)
        for name, table in tables.items()
    ]
    deltas = pd.concat(list(tables.values()))["delta"].unique()
    note = f"delta {_listed(f'{delta:g}' for delta in deltas)}; {_relations(tables)}; no row bounds another"
    height = 250 + 170 * len(tables)
    return finish(
        figure, "; ".join(several), note, height=height, legend=BELOW, showlegend=len(tables) > 1
    )


def _claimed(table: pd.DataFrame) -> str:
    """Claimed, proved and audited, in the words of the ladder; refuted is what its verdicts call so."""
    rows = table.drop_duplicates("row").set_index("row")
    nominal, proved, audited = (rows.loc[row] for row in (1, 4, 5))
    parts = [
        f"claimed {nominal['shown']} (nominal)"
        if np.isfinite(nominal["epsilon"])
        else "claimed: nothing",
        f"proved: {proved['shown'] if np.isfinite(proved['epsilon']) else 'none'}",
        f"audited: {audited['shown']}" if np.isfinite(audited["epsilon"]) else "not audited",
    ]
    refuted = [
        REFUTABLE[row]
        for row in REFUTABLE
        if str(rows.loc[row].get("verdict", "")).startswith("refuted at")
    ]
    return " - ".join(parts) + (f", which refutes {' and '.join(refuted)}" if refuted else "")


def _relations(tables: dict[str, pd.DataFrame]) -> str:
    """Which neighbouring data sets the rows about records speak of; by network where they differ."""
    said: dict[str, list[str]] = {}
    for name, table in tables.items():
        about = table[table["relation"].str.contains("record")].drop_duplicates("row")
        parts = []
        for relation, rows in about.groupby("relation", sort=False)["row"]:
            *most, last = map(str, rows)
            parts.append(f"{relation} in {f'rows {_listed(most)} and' if most else 'row'} {last}")
        said.setdefault(", ".join(parts), []).append(name)
    return "; ".join(
        words if len(said) == 1 else f"{_listed(names)}: {words}" for words, names in said.items()
    )


def _add_rungs(
    figure, name: str, table: pd.DataFrame, ends: tuple[float, float], apart: float, i: int
) -> None:
    """One network's marks: | for a number, |=> for a lower bound, => for what is infinite, words for the rest."""
    (start, end), colour, dash = ends, LINES[i % len(LINES)], DASHES[i % len(DASHES)]
    shape = {
        "legendgroup": name or "one",
        "hoverlabel": {"align": "left"},
        "cliponaxis": False,
        "showlegend": False,
    }
    key = {
        "line": {"color": colour, "width": 4, "dash": dash},
        "name": name or "epsilon",
        "legendgroup": name or "one",
    }
    figure.add_scatter(x=[None], y=[None], mode="lines", **key)
    for _, row in table.iterrows():
        y, value = -row["row"] - apart, float(row["epsilon"])
        words = [str(row.get(column, "")) for column in ("method", "relation", "remark", "verdict")]
        hover = (
            f"{row['label']}: {row['shown']}<br>"
            + "<br>".join(filter(None, words))
            + f"<extra>{name}</extra>"
        )
        lower = row["row"] == 5 or str(row["shown"]).startswith(">=")
        placed = np.isfinite(value) and value > 0
        x = value if placed else start * 1.05
        runs = (placed and lower) or value == math.inf
        position = "top right" if not placed or runs else "middle right"
        if runs:
            line = {"color": colour, "width": 4 if lower else 2, "dash": dash}
            figure.add_scatter(
                x=[x, end], y=[y, y], mode="lines", line=line, hoverinfo="skip", **shape
            )
            arrow = {"symbol": "triangle-right", "size": 13, "color": colour}
            figure.add_scatter(
                x=[end / 1.04], y=[y], mode="markers", marker=arrow, hoverinfo="skip", **shape
            )
        marker = {
            "symbol": "line-ns",
            "size": 12 if name else 20,
            "line": {"width": 4, "color": colour},
        }
        figure.add_scatter(
            x=[x], y=[y], mode="markers+text" if placed else "text", marker=marker, text=[f" {row['shown']}"],
            textposition=position,
            textfont={"color": colour if name else GREY, "size": 12}, name=name or "epsilon", hovertemplate=hover, **shape,
        )  # fmt: skip


def roc_bounds(
    scores: Scores | dict[str, Scores],
    *,
    bounds=((1.0, 1e-5), (8.0, 1e-5)),
    level: float = 0.95,
    attempts: int = 1,
) -> go.Figure:
    """ROC of attacks on logarithmic axes under the trade-off curves of (epsilon, delta): Figure 5 of Hong, Wu, Gruber and Lee.

    For each bound the line min(e^eps FPR + delta, 1 - e^-eps (1 - delta - FPR), 1) and the Gaussian curve Phi(Phi^-1(FPR) + mu)
    of equal (epsilon, delta), from FPR 1 / (10 n0) to 1, faint where it exceeds 0.99 and so allows everything. Thick: mean over
    targets; thin: each target, up to 16, a spread and not a confidence interval, as targets share records and references.
    Band: pointwise Clopper-Pearson at `level` for one target's members at the mean TPR, or Student t over pairs where wider.

    Above a bound is only said of a target whose exact lower end of TPR is above the curve at the upper end of its FPR, at FPRs
    1e-4, 1e-3, 1e-2, 1e-1 as far as 10 false positives are allowed, jointly at `level` over all that is looked at (Bonferroni);
    attempts: of how many attacks each of the drawn ones was chosen.
    Caveat: one training is one trial, so that being above is no formal statement on a mechanism, and being below is none.
    Raises ValueError for epsilons below 0 and deltas outside [0, 1).
    """
    scores = named(scores)
    figure = make_subplots(1, 1)
    drawn = {name: _curve(one, True, level) for name, one in scores.items()}
    least = min(drawn.values(), key=lambda curve: curve.n0)
    most = max(drawn.values(), key=lambda curve: curve.n0)
    _frame(figure, least, True, 1)
    for i, (epsilon, delta) in enumerate(bounds):
        for name, curve, dash in _bounds(epsilon, delta, i):
            _add_bound(figure, name, curve, dash, 1 / (10 * most.n0))
    for i, (name, one) in enumerate(scores.items()):
        colour, dash = LINES[i % len(LINES)], DASHES[i % len(DASHES)]
        if len(one.targets) > 1:
            _add_targets(figure, name, one, colour, level)
        _add_curve(figure, name, drawn[name], colour, dash, True, 1, True)
    figure.update_xaxes(range=[math.log10(1 / (10 * most.n0)), 0.01])
    figure.update_yaxes(range=[math.log10(min(1 / curve.n1 for curve in drawn.values())), 0.02])
    sentence, rates = _above(scores, bounds, level, attempts)
    count = max(len(one.targets) for one in scores.values())
    note = (
        f"mean of {count} targets; thin: each (a spread, no confidence interval)"
        if count > 1
        else "one target"
    )
    note += f"; band {level:.0%} pointwise; grey: bounds ({RELATION})"
    note += f"; held against them at {_listed(f'{100 * x:g} %' for x in rates)}" if rates else ""
    return finish(figure, sentence, note, height=520, legend=BELOW | {"y": -0.14})


def _bounds(epsilon: float, delta: float, i: int) -> list[tuple]:
    """(name, fpr -> tpr, dash) of the line and of the Gaussian curve of equal (epsilon, delta)."""
    word = f"epsilon {epsilon:g}, delta {delta:g}"
    found = [(word, partial(tradeoff, epsilon=epsilon, delta=delta), ("dash", "longdash")[i % 2])]
    mu = gaussian_mu(epsilon, delta) if delta else 0.0
    return (
        [*found, (f"GDP of {word}", partial(tradeoff, mu=mu), ("dot", "dashdot")[i % 2])]
        if mu
        else found
    )


def _add_bound(figure, name: str, curve, dash: str, start: float) -> None:
    fpr = np.geomspace(start, 1, 400)
    tpr = np.asarray(curve(fpr))
    usable = tpr <= VACUOUS
    split = int(usable.sum())  # curves rise, so that what allows everything is on the right
    for part, colour, shown in (
        (slice(0, split + 1), GREY, True),
        (slice(max(split, 0), None), translucent(GREY, 0.3), False),
    ):
        figure.add_scatter(
            x=fpr[part], y=tpr[part], mode="lines", name=name, legendgroup=name, showlegend=shown,
            line={"color": colour, "dash": dash, "width": 1.8 if shown else 1.2},
            hovertemplate=f"{name}: at most %{{y:.2%}} at %{{x:.3%}}<extra></extra>",
        )  # fmt: skip


def _add_targets(figure, name: str, scores: Scores, colour: str, level: float) -> None:
    for row in range(min(len(scores.targets), SHOWN_TARGETS)):
        part = {
            field: getattr(scores, field)[[row]]
            for field in ("value", "member", "targets", "pair", "accuracy", "loss")
        }
        one = _curve(replace(scores, **part), True, level)
        figure.add_scatter(
            x=one.fpr.astype(np.float32), y=one.tpr.astype(np.float32), mode="lines", legendgroup=name, showlegend=False,
            line={"color": translucent(colour, 0.3), "width": 0.8, "shape": "hv"}, hoverinfo="skip", name=f"{name}, target",
        )  # fmt: skip


def _above(
    scores: dict[str, Scores], bounds, level: float, attempts: int
) -> tuple[str, list[float]]:
    """(which curves are resolved above which bounds, in words, the rates that were looked at)."""
    whole = {name: targets(one) for name, one in scores.items()}
    rates = {name: [x for x in LOOKED_AT if all(math.floor(x * (~m).sum() + 1e-9) >= MIN_FALSE_POSITIVES for _, m in pairs)]
             for name, pairs in whole.items()}  # fmt: skip
    curves = [
        bound for i, (epsilon, delta) in enumerate(bounds) for bound in _bounds(epsilon, delta, i)
    ]
    looks = (
        attempts * len(curves) * sum(len(rates[name]) * len(pairs) for name, pairs in whole.items())
    )
    every = sorted({x for each in rates.values() for x in each})
    if not looks:
        return "too few non-members to hold any curve against a bound", every
    found, confidence = [], 1 - (1 - level) / looks
    for name, pairs in whole.items():
        lines: set[str] = set()
        for word, curve, _ in curves:
            if word.removeprefix("GDP of ") in lines:
                continue  # above the line is above the Gaussian curve, which lies below it
            above = {
                x: sum(room_below(*pair, x, curve, (confidence,))[2] < 0 for pair in pairs)
                for x in rates[name]
            }
            seen = [f"{100 * x:g} % ({count} of {len(pairs)})" if len(pairs) > 1 else f"{100 * x:g} %"
                    for x, count in above.items() if count]  # fmt: skip
            if seen:
                lines.add(word)
                found.append(f"{name} is above {word} at FPR {_listed(seen)}")
    return "; ".join(
        found
    ) if found else f"no curve is above a bound ({level:.0%} over {looks} looks together)", every


def defenses(
    table: pd.DataFrame, *, metric: str = "auc", undefended: str | None = None
) -> go.Figure:
    """What defenses leave to find and what they cost: risk against test accuracy, and against the generalisation gap.

    table: `metrics.defense_table`: a row per network with columns name, test_acc, gap, the metric ("auc", "tpr@x"), each maybe
    with _low, _high, attack, and for a TPR tpr@x_measurable (open markers where False). undefended: the name of the network
    without a defense, by default the first row whose defense and output are empty; dotted lines lead from it to the others.
    Shaded: at most a point less accurate than it, where risks can be compared; a defense to the left of that buys its lower
    risk with accuracy. Right: the line of overfitting alone (AUC 1/2 + gap/2; for a TPR chance).
    Source: Figure 3 of Hong, Wu, Gruber and Lee (arXiv 2501.06686). Raises ValueError for missing columns or values, a name
    that comes twice, another metric, and an undefended network that is not there.
    """
    fpr = _rate(metric)
    _need(
        table,
        ("name", "test_acc", "gap", metric, "attack"),
        "defenses",
        finite=("test_acc", "gap", metric),
    )
    if table["name"].duplicated().any():
        raise ValueError(
            f"{_listed(table['name'][table['name'].duplicated()])} comes twice: one row per network"
        )
    base = _undefended(table, undefended)
    figure = make_subplots(
        1, 2, shared_yaxes=True, horizontal_spacing=0.05, column_widths=[0.6, 0.4]
    )
    gaps = np.array([min(table["gap"].min(), 0.0), max(table["gap"].max(), 0.0) * 1.05 + 0.005])
    overfit = 0.5 + gaps / 2 if fpr is None else np.full(2, fpr)
    figure.add_scatter(x=gaps, y=overfit, mode="lines", line={"color": GREY, "dash": "dot", "width": 1.5}, hoverinfo="skip",
                       name="1/2 + gap/2 (correctness)" if fpr is None else "chance", row=1, col=2)  # fmt: skip
    for i, (_, row) in enumerate(table.reset_index(drop=True).iterrows()):
        for column, x in enumerate(("test_acc", "gap"), start=1):
            _add_defense(figure, row, base, metric, x, i, column)
    figure.add_hline(y=0.5 if fpr is None else fpr, line={"color": GREY, "width": 1}, row=1, col=1)
    if base is not None:
        ends = {"x0": base["test_acc"] - SIMILAR, "x1": table["test_acc"].max() + SIMILAR}
        figure.add_vrect(**ends, fillcolor=GREY, opacity=0.14, line_width=0, row=1, col=1)
    figure.update_xaxes(title_text="test accuracy", tickformat="~%", row=1, col=1)
    figure.update_xaxes(title_text="train accuracy - test accuracy", tickformat="~%", row=1, col=2)
    figure.update_yaxes(title_text=_word(metric), row=1, col=1)
    note = "strongest attack of each; bars 95 %; shaded: at most a point less accurate; dotted: from the undefended"
    unresolved = f"{metric}_measurable" in table and not table[f"{metric}_measurable"].all()
    note += "; open: not measurable" if unresolved else ""
    return finish(figure, _traded(table, base, metric), note, height=480, legend=BELOW)


def _undefended(table: pd.DataFrame, name: str | None) -> pd.Series | None:
    if name is not None:
        if name not in set(table["name"]):
            raise ValueError(
                f"undefended={name!r} is not in the table: wanted one of {_listed(table['name'])}"
            )
        return table[table["name"] == name].iloc[0]
    if not {"defense", "output"} <= set(table.columns):
        return None
    plain = table[(table["defense"] == "") & (table["output"] == "")]
    return plain.iloc[0] if len(plain) else None


def _add_defense(
    figure, row: pd.Series, base: pd.Series | None, metric: str, x: str, i: int, column: int
) -> None:
    place, colour = {"row": 1, "col": column}, LINES[i % len(LINES)]
    plain = base is not None and row["name"] == base["name"]
    if base is not None and not plain:
        line = {"color": translucent(colour, 0.6), "dash": "dot", "width": 1.2}
        figure.add_scatter(x=[base[x], row[x]], y=[base[metric], row[metric]], mode="lines", line=line, showlegend=False,
                           hoverinfo="skip", legendgroup=row["name"], **place)  # fmt: skip
    symbol = "star" if plain else MARKERS[i % (len(MARKERS) - 1)]
    open_ = not row.get(f"{metric}_measurable", True)
    bars, one = {}, row.to_frame().T
    for axis, fact in (("error_x", x), ("error_y", metric)):
        if (drawn := _bars(one, fact)) is not None:
            bars[axis] = drawn | {"thickness": 1.2, "width": 0}
    figure.add_scatter(
        x=[row[x]], y=[row[metric]], mode="markers", name=f"{row['name']}{' (undefended)' if plain else ''}",
        legendgroup=row["name"], showlegend=column == 1,
        marker={"symbol": f"{symbol}-open" if open_ else symbol, "size": 14 if plain else 11, "color": colour},
        hovertemplate=f"{row['name']} ({row['attack']}): {_word(metric)} %{{y:.3f}}, %{{x:.1%}}<extra></extra>",
        **bars, **place,
    )  # fmt: skip


def _traded(table: pd.DataFrame, base: pd.Series | None, metric: str) -> str:
    """The lowest risk there is and its price, and the lowest at equal accuracy; masked answers measure the attacks tried."""
    word, table = (
        _word(metric),
        table[table["output"] == ""]
        if "output" in table and (table["output"] == "").any()
        else table,
    )
    least = table.loc[table[metric].astype(float).idxmin()]
    if base is None:
        return f"{least['name']} leaves least to find: {word} {least[metric]:.3f} at test accuracy {least['test_acc']:.1%}"
    sentence = f"{base['name']} undefended: {word} {base[metric]:.3f} at {base['test_acc']:.1%}"
    if least["name"] != base["name"]:
        points = 100 * (least["test_acc"] - base["test_acc"])
        sentence += (
            f"; least: {least['name']}, {least[metric]:.3f} for {points:+.1f} points of accuracy"
        )
    near = table[
        (table["test_acc"] >= base["test_acc"] - SIMILAR) & (table["name"] != base["name"])
    ]
    if len(near):
        best = near.loc[near[metric].astype(float).idxmin()]
        same = best["name"] == least["name"]
        sentence += (
            ", and no more than a point less accurate"
            if same
            else f"; at most a point less accurate: {best['name']}, {best[metric]:.3f}"
        )
    else:
        sentence += "; every defense costs more than a point of accuracy"
    return sentence
