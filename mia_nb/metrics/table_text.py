"""The long table of results as text for people."""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd

from mia_nb.arguments import Flag
from mia_nb.attacks import NAMES
from mia_nb.checks import checked
from mia_nb.metrics.tables import by_attack, rates_of

NO_LOWER_RATE = "0: tied scores allow no lower FPR"  # in place of a TPR


@checked
def readable(table: pd.DataFrame, *, full: Flag = False, percent: Flag = True) -> pd.DataFrame:
    """A `summary` as text for people.

    Parameters:
        table: of `summary`, or its rows of some attacks.
        full: whether to show more columns: best TPR - FPR, accuracies, references, flags and the
            self-test.
        percent: whether rates are in percent with two figures, "0.58 % [0.50, 0.64]"; False: as
            shares with three decimals, "0.006 [0.005, 0.006]".

    Returns:
        A row per attack, by its name in words, with its AUC and its TPR at each rate, "0.626
        [0.611, 0.640]"; "n/m (n0 = 900)" where non-members are too few, "0: tied scores allow no
        lower FPR" where ties force zero.
    """
    auc = by_attack(table, "auc")
    view = pd.DataFrame({"AUC": _texts(auc, share_interval)})
    for x in rates_of(table):
        rows = by_attack(table, "tpr", x)
        if percent:
            view[f"TPR at {100 * x:g} % FPR"] = _texts(rows, percent_interval)
        else:
            view[f"TPR at FPR {x:g}"] = _texts(rows, share_interval)
    if full:
        view = view.join(_conditions(table, auc))
    names = [name for name in view.index if name != "max"]
    # rows may also be families of models, each with one attack
    kind = "attack" if set(names) & set(NAMES) else "of these"
    return view.rename(index=NAMES | {"max": f"strongest {kind} (picked afterwards)"})


def _conditions(table: pd.DataFrame, auc: pd.DataFrame) -> pd.DataFrame:
    """The columns that `readable` adds with full=True, as text, indexed by attack."""
    advantage = by_attack(table, "advantage")
    train = by_attack(table, "train_acc")["value"]
    test = by_attack(table, "test_acc")["value"]
    gap = by_attack(table, "gap")["value"]
    references = ["" if pd.isna(count) else f"{count:g}" for count in auc["references"]]
    view = pd.DataFrame(
        {
            "best TPR - FPR (expected by chance)": (
                advantage["value"].map("{:.3f}".format)
                + advantage["chance"].map(" ({:.3f})".format)
            ),
            "train / test accuracy": (train.map("{:.3f}".format) + test.map(" / {:.3f}".format)),
            "gap": gap.map("{:.3f}".format),
            "reference models per side": references,
            "flags": auc["flags"],
        },
        index=auc.index,
    )
    if "self_test" in table:
        view["self-test"] = auc["self_test"]
    return view


def _texts(rows: pd.DataFrame, text_of: Callable[[float, float, float], str]) -> pd.Series:
    """The value and ends of each row as text, or why it has none."""
    texts = []
    for _, row in rows.iterrows():
        texts.append(_why_no_rate(row) or text_of(row["value"], row["low"], row["high"]))
    return pd.Series(texts, index=rows.index)


def _why_no_rate(row: pd.Series) -> str:
    """Why a TPR is not shown as a number; empty where it is."""
    if not row["measurable"]:
        return f"n/m (n0 = {row['n0']})"
    if row["value"] == 0 and row["fpr_floor"] > row["fpr"]:
        return NO_LOWER_RATE
    return ""


def in_digits(number: float, form: str = ".2g") -> str:
    """A number in a format of few digits, and zeros in place of a power of ten: "-110", "1,200"."""
    text = format(number, form)
    return f"{float(text):,.0f}" if "e+" in text else text


def share_interval(value: float, low: float, high: float) -> str:
    """A share and its ends with three decimals, "0.626 [0.611, 0.640]"."""
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def percent_interval(value: float, low: float, high: float) -> str:
    """A rate and its ends in percent with two figures, "0.58 % [0.50, 0.64]"; with one more where
    both ends would look the same, and with as many as a value below 100 % needs to look like that.
    """
    value = 100 * float(value)
    low = 100 * float(low)
    high = 100 * float(high)
    digits = 1
    size = value or high  # of a rate of 0 the upper end says how small it is
    if size > 0:
        digits = max(0, 1 - math.floor(math.log10(size)))
    if f"{low:.{digits}f}" == f"{high:.{digits}f}":
        digits += 1
    while value < 100 and float(f"{value:.{digits}f}") == 100:
        digits += 1
    return f"{value:.{digits}f} % [{low:.{digits}f}, {high:.{digits}f}]"
