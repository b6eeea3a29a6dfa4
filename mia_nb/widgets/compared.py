"""Scores beside those of a reference: numbers with intervals, and the words and the table that tell them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

import pandas as pd

from mia_nb import metrics
from mia_nb.metrics.curve import MIN_FALSE_POSITIVES
from mia_nb.metrics.uncertainty import FPR, interval, per_target_metrics
from mia_nb.types import Scores

DRAWS = 200  # of the bootstrap


def bootstrap(one: Scores, fpr=FPR) -> dict:
    """The draws that `measure` rests on."""
    return metrics.bootstrap(one, fpr, draws=DRAWS)


def measure(
    scores: dict[Hashable, Scores],
    reference: Hashable = None,
    *,
    fpr=FPR,
    draws: Callable | None = None,
) -> pd.DataFrame:
    """A row per key: auc and tpr@x, each with _low and _high, gain = AUC minus the reference's with its ends, and facts.

    Facts: tie_mass, fpr_floor, train_acc, test_acc (means over targets), n0, n1 (the smallest), targets. Intervals as
    `metrics.intervals`, the gain's as `metrics.difference`: paired, from the same draws of samples and pairs of targets.
    draws(key): draws of `bootstrap` made before. ValueError where masks or pairs of a row and of the reference differ.
    """
    drawn = {key: draws(key) if draws else bootstrap(one, fpr) for key, one in scores.items()}
    rows = {}
    for key, one in scores.items():
        ends, facts = metrics.intervals(one, fpr, sampled=drawn[key]), metrics.per_target(one, fpr)
        record = {
            f"{name}{end}": ends.loc[name, end[1:] or "value"]
            for name in ends.index
            for end in ("", "_low", "_high")
        }
        record |= facts[["tie_mass", "fpr_floor", "train_acc", "test_acc"]].mean().to_dict()
        record |= {
            "n0": int(facts["n0"].min()),
            "n1": int(facts["n1"].min()),
            "targets": len(facts),
        }
        if reference is not None:
            other = scores[reference]
            apart = per_target_metrics(one, ())[:, 0] - per_target_metrics(other, ())[:, 0]
            low, high = interval(apart, one.pair, drawn[key]["auc"] - drawn[reference]["auc"])
            record |= {"gain": record["auc"], "gain_low": low, "gain_high": high}
        rows[key] = record
    table = pd.DataFrame.from_dict(rows, orient="index")
    if reference is not None:
        table["gain"] -= table.loc[reference, "auc"]
    return table


def rate(rows: pd.DataFrame) -> float | None:
    """The smallest false-alarm rate at which every row has a measurable TPR; None where there is none."""
    usable = (x for x in FPR if math.floor(x * rows["n0"].min() + 1e-9) >= MIN_FALSE_POSITIVES)
    return next(
        (x for x in usable if ((rows["fpr_floor"] <= x) | (rows[f"tpr@{x:g}"] > 0)).all()), None
    )


def told(rows: pd.DataFrame, key: Hashable, attack: str = "") -> str:
    """A row in words: "12.0 % (95 %: 10.1-14.0)", or with the attack "rmia finds 12.0 % of members at ..., n0 = 898".

    Where no rate is measurable in every row, the AUC.
    """
    x = rate(rows)
    name, unit, form, sign = (
        ("auc", 1, ".3f", "") if x is None else (f"tpr@{x:g}", 100, ".1f", " %")
    )
    value, low, high = (
        f"{unit * rows.loc[key, name + end]:{form}}" for end in ("", "_low", "_high")
    )
    interval = f"(95 %: {low}-{high})"
    if not attack:
        return f"{value}{sign} {interval}"
    found = (
        f"has AUC {value}"
        if x is None
        else f"finds {value} % of members at {100 * x:g} % false alarms"
    )
    return f"{attack} {found} {interval}, n0 = {rows['n0'].min():,}"


def numbers(
    rows: pd.DataFrame, names: dict, at: Hashable, *, reference: Hashable = None, word: str = ""
) -> pd.DataFrame:
    """The rows for a reader, called by their names, an arrow at one; word: the reference in a word."""
    x = rate(rows)

    def interval(row, name: str, form: str = ".3f") -> str:
        low, high = (f"{row[name + end]:{form}}".replace("0.", ".") for end in ("_low", "_high"))
        return f"{row[name]:{form}} [{low}, {high}]"

    lines = []
    for key, row in rows.iterrows():
        line = {
            "": "\N{BLACK RIGHT-POINTING TRIANGLE}" if key == at else "",
            "asked": names[key],
            "AUC": interval(row, "auc"),
        }
        line |= {} if x is None else {f"TPR at {100 * x:g} % FPR": interval(row, f"tpr@{x:g}")}
        if reference is not None:
            line[f"minus {word}"] = interval(row, "gain", "+.3f") if key != reference else ""
        line |= {"test acc.": f"{row['test_acc']:.3f}"}
        lines.append(line | ({"tied": f"{row['tie_mass']:.1%}"} if tied(rows) else {}))
    return pd.DataFrame(lines)


def tied(rows: pd.DataFrame) -> bool:
    """Whether scores equal to another's are worth a word."""
    return bool(rows["tie_mass"].max() > 0.01)


def sizes(rows: pd.DataFrame) -> str:
    """Numbers of targets and of samples behind the rows."""
    fewest = rows[["n1", "n0", "targets"]].min()
    targets = f"{fewest['targets']} target{'s' if fewest['targets'] > 1 else ''}"
    return f"{targets} with {fewest['n1']:,} members and {fewest['n0']:,} non-members each"


def sentence(*words: str) -> str:
    """The phrases joined, the first letter large."""
    text = "; ".join(filter(None, words))
    return text[:1].upper() + text[1:]
