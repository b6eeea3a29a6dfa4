"""Scores beside those of a reference: pictures and numbers with intervals, and the words that tell
them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import pandas as pd

from mia_nb import metrics, plots
from mia_nb.metrics.curve import MIN_FALSE_POSITIVES
from mia_nb.metrics.uncertainty import FPR, interval, per_target_metrics
from mia_nb.metrics.uncertainty import bootstrap as resampled
from mia_nb.types import Scores
from mia_nb.widgets.figure import plain, with_layout

DRAWS = 200  # of the bootstrap
BINS = 60  # of a histogram of half the width
HEADING = {"yref": "y domain", "y": 1.02, "yanchor": "bottom", "showarrow": False}
BELOW = {"orientation": "h", "y": -0.3, "yanchor": "top"}


def bootstrap(one: Scores, fpr=FPR) -> dict:
    """The draws that `measure` rests on."""
    return resampled(one, fpr, draws=DRAWS)


def measure(
    scores: dict[Hashable, Scores],
    reference: Hashable = None,
    *,
    fpr=FPR,
    sampled: dict[Hashable, dict] | None = None,
) -> pd.DataFrame:
    """A row per key: auc and tpr@x, each with _low and _high, gain = AUC minus the reference's with
    its ends, and facts.

    Facts: tie_mass, fpr_floor, train_acc, test_acc (means over targets), n0, n1 (the smallest),
    targets. Intervals as `metrics.intervals`, the gain's as `metrics.difference`: paired, from the
    same draws of samples and pairs of targets.

    scores: {key: scores}
    reference: the key that the others are compared with; None: no gain
    fpr: false-positive rates x
    sampled: {key: draws of `bootstrap`}, where they were made before

    Raises ValueError where masks or pairs of a row and of the reference differ.
    """
    sampled = sampled or {key: bootstrap(one, fpr) for key, one in scores.items()}
    auc = {key: per_target_metrics(one, ())[:, 0] for key, one in scores.items()}
    rows = {}
    for key, one in scores.items():
        values = metrics.intervals(one, fpr, sampled=sampled[key])
        facts = metrics.per_target(one, fpr)
        record = {}
        for name, (value, low, high) in values.iterrows():
            record |= {name: value, f"{name}_low": low, f"{name}_high": high}
        record |= facts[["tie_mass", "fpr_floor", "train_acc", "test_acc"]].mean().to_dict()
        record |= facts[["n0", "n1"]].min().astype(int).to_dict() | {"targets": len(facts)}
        if reference is not None:
            drawn = sampled[key]["auc"] - sampled[reference]["auc"]
            low, high = interval(auc[key] - auc[reference], one.pair, drawn)
            record |= {"gain": record["auc"], "gain_low": low, "gain_high": high}
        rows[key] = record
    table = pd.DataFrame.from_dict(rows, orient="index")
    if reference is not None:
        table["gain"] -= table.loc[reference, "auc"]
    return table


def beside(scores: dict[str, Scores], attack: str) -> dict[str, dict]:
    """Named scores beside each other: histograms, a panel each, and ROCs in one picture."""
    names = " beside ".join(scores)
    figure = histograms(
        [(name, plain(plots.histogram(one, bins=BINS))) for name, one in scores.items()]
    )
    title = figure["layout"]["title"] | {"text": f"Scores of {attack}: {names}"}
    roc = plots.roc_pair({f"{attack}, {name}": one for name, one in scores.items()})
    roc.update_layout(height=420, title_text=f"ROC of {attack}: {names}", legend_y=-0.22)
    return {"histogram": with_layout(figure, title=title), "roc": plain(roc)}


def histograms(
    figures: Sequence[tuple[str, dict]], ends: tuple[float, float] | None = None
) -> dict:
    """Histograms (heading, `plots.histogram` as JSON) side by side on one scale of shares.

    ends: of the axis of scores, where all share it
    """
    traces, parts, headings, width = [], {}, [], 1 / len(figures)
    for i, (name, figure) in enumerate(figures):
        axis = f"x{i + 1 if i else ''}"
        for trace in figure["data"]:
            group = trace["name"].split(" (")[0]
            place = {"xaxis": axis, "legendgroup": group, "showlegend": i == 0}
            traces.append(trace | place | {"name": group})
        scale = figure["layout"]["xaxis"] | {"domain": [i * width, (i + 0.96) * width]}
        scale |= {"range": list(ends)} if ends else {}
        parts[axis.replace("x", "xaxis")] = scale | {"anchor": "y"}
        headings.append(HEADING | {"xref": f"{axis} domain", "x": 0.5, "text": name})
    return with_layout(
        figures[0][1] | {"data": traces}, **parts, annotations=headings, legend=BELOW, height=330
    )


def rate(rows: pd.DataFrame) -> float | None:
    """The smallest false-positive rate at which every row has a measurable TPR; None where there is
    none.
    """
    for x in FPR:
        resolved = math.floor(x * rows["n0"].min() + 1e-9) >= MIN_FALSE_POSITIVES
        if resolved and ((rows["fpr_floor"] <= x) | (rows[f"tpr@{x:g}"] > 0)).all():
            return x
    return None


def told(rows: pd.DataFrame, key: Hashable, attack: str = "") -> str:
    """A row in words: "12.0 % (95 %: 10.1-14.0)", or with the attack "rmia finds 12.0 % of members
    at ..., n0 = 898".

    Where no rate is measurable in every row, the AUC.
    """
    x, row = rate(rows), rows.loc[key]
    if x is None:
        low, high = (f"{row[f'auc_{end}']:.3f}" for end in ("low", "high"))
        value, words = f"{row['auc']:.3f}", f"has AUC {row['auc']:.3f}"
    else:
        low, high = (f"{100 * row[f'tpr@{x:g}_{end}']:.1f}" for end in ("low", "high"))
        value = f"{100 * row[f'tpr@{x:g}']:.1f} %"
        words = f"finds {value} of members at {100 * x:g} % false positives"
    interval = f"(95 %: {low}-{high})"
    if not attack:
        return f"{value} {interval}"
    return f"{attack} {words} {interval}, n0 = {rows['n0'].min():,}"


def numbers(
    rows: pd.DataFrame, at: Hashable, *, reference: Hashable = None, word: str = ""
) -> pd.DataFrame:
    """The rows for a reader, an arrow at one; word: the reference in a word."""
    x = rate(rows)

    def interval(row, name: str, form: str = ".3f") -> str:
        low, high = (f"{row[name + end]:{form}}".replace("0.", ".") for end in ("_low", "_high"))
        return f"{row[name]:{form}} [{low}, {high}]"

    lines = []
    for key, row in rows.iterrows():
        arrow = "\N{BLACK RIGHT-POINTING TRIANGLE}" if key == at else ""
        line = {"": arrow, "queried": key, "AUC": interval(row, "auc")}
        if x is not None:
            line[f"TPR at {100 * x:g} % FPR"] = interval(row, f"tpr@{x:g}")
        if reference is not None:
            line[f"minus {word}"] = interval(row, "gain", "+.3f") if key != reference else ""
        line["test acc."] = f"{row['test_acc']:.3f}"
        if tied(rows):
            line["tied"] = f"{row['tie_mass']:.1%}"
        lines.append(line)
    return pd.DataFrame(lines)


def tied(rows: pd.DataFrame) -> bool:
    """Whether scores equal to another's are worth a word."""
    return bool(rows["tie_mass"].max() > 0.01)


def sizes(rows: pd.DataFrame) -> str:
    """Numbers of targets and of samples behind the rows."""
    fewest = rows[["n1", "n0", "targets"]].min()
    targets = f"{fewest['targets']} target{'s' if fewest['targets'] > 1 else ''}"
    return f"{targets} with {fewest['n1']:,} members and {fewest['n0']:,} non-members each"


def sentence(*phrases: str) -> str:
    """The phrases joined, the first letter large."""
    text = "; ".join(filter(None, phrases))
    return text[:1].upper() + text[1:]


def ends(value: float, low: float, high: float, form: str = ".3f") -> str:
    """A value and its interval: "0.617 [0.547, 0.685]"."""
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"
