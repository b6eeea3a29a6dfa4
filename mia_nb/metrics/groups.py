"""One attack within each class, or within groups of samples that a user names."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from mia_nb import escape
from mia_nb.arguments import Array, Count, Several
from mia_nb.checks import checked
from mia_nb.metrics.bootstrap import RESAMPLES, bootstrap
from mia_nb.metrics.curve import measurable
from mia_nb.metrics.table_text import NO_LOWER_RATE, percent_interval, share_interval
from mia_nb.metrics.targets import per_target, smallest, tied_floor
from mia_nb.metrics.uncertainty import DIFFERENCE, interval, intervals_of_rows, with_ends
from mia_nb.types import Scores

FEWEST = 5  # with fewer members or non-members a group has no metrics
TIED = "tied"
FEW = 30  # with fewer members or non-members a group is compared with no other
RATE = 0.1  # false positive rate at which groups have a TPR
TPR = f"tpr@{RATE:g}"
METRICS = ("auc", TPR)


@checked
def by_group(
    scores: Scores,
    groups: Array,
    *,
    among: Array | None = None,
    n_resamples: Several = RESAMPLES,
    seed: Count = 0,
) -> pd.DataFrame:
    """One attack within each class, or any groups of samples: a row per group, none left out.

    Parameters:
        scores: of one attack, (targets, N).
        groups: (N,) label of each audited sample, such as the name of its class. Samples whose
            label is NaN are one group.
        among: the groups, in the order of the rows; None: those that occur, sorted.
        n_resamples: resamples of the bootstrap.
        seed: of the bootstrap.

    Returns:
        auc and tpr@0.1 (thresholds within the group), each with _low and _high (95 %, those of
        `metrics.intervals`), n1, n0 (of the target that has fewest), a remark: "n/m" below 5
        members or non-members, "few" below 30, "tpr n/m" where 10 % false positives are fewer than
        10 samples, "tied" where scores tie and no threshold accuses so few, so that the TPR is 0;
        and above, the group's AUC minus the mean of the other groups', with ends of
        `metrics.interval` at level 1 - 0.05 / G over the G groups that are not few (NaN for the
        others). A group stands out where above_low > 0; if all groups leak equally, at
        least one does so in at most 2.5 % of audits.

    Raises:
        ValueError: unless there is one label for each sample.

    Caveat: the ends of auc and tpr are not adjusted for the number of groups: of 20 groups, expect
    one to miss the truth.
    """
    groups = np.asarray(groups)
    if groups.dtype == object and among is None:  # numbers and text do not compare
        groups = groups.astype(str)
    if groups.shape != scores.value.shape[1:]:
        raise ValueError(f"groups have shape {groups.shape}; wanted {scores.value.shape[1:]}")
    if among is None:
        among = np.unique(groups)
    rows = {}
    areas = {}  # of the groups that are compared: AUC of each target, and the same on resamples
    for number, group in enumerate(among):
        # NaN, which equals nothing, is a group too, as for the bootstrap
        inside = pd.isna(groups) if pd.isna(group) else groups == group
        part = replace(scores, value=scores.value[:, inside], member=scores.member[:, inside])
        n1, n0 = smallest(part)
        row = {}
        tied = False
        for metric in METRICS:
            row |= with_ends(metric, math.nan, math.nan, math.nan)
        if min(n1, n0) >= FEWEST:
            # groups share no sample, so each has resamples of its own
            drawn = bootstrap(part, (RATE,), n_resamples=n_resamples, seed=seed + number)
            targets = per_target(part, (RATE,))
            table = intervals_of_rows(targets, drawn)
            for metric in METRICS:
                row |= with_ends(metric, *table.loc[metric])
            tied = row[TPR] == 0 and tied_floor(part) > RATE
            if min(n1, n0) >= FEW:
                areas[group] = (targets["auc"].to_numpy(), drawn["auc"])
        rows[group] = row | {"n1": n1, "n0": n0, "remark": _remark(n1, n0, tied)}
    above = _above_others(areas, scores.pair)
    for group, row in rows.items():
        if group in above:
            row |= above[group]
        else:
            row |= with_ends("above", math.nan, math.nan, math.nan)
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("group")


def _remark(n1: int, n0: int, tied: bool) -> str:
    """What a group of so few members and non-members, or of tied scores, cannot show."""
    if min(n1, n0) < FEWEST:
        return "n/m"
    remarks = []
    if min(n1, n0) < FEW:
        remarks.append("few")
    if not measurable(TPR, n0):
        remarks.append("tpr n/m")
    elif tied:
        remarks.append(TIED)
    return ", ".join(remarks)


def _above_others(
    areas: dict[object, tuple[np.ndarray, np.ndarray]], pair: np.ndarray
) -> dict[object, dict[str, float]]:
    """{group: its AUC minus the mean of the others', with adjusted ends}.

    areas: {group: (AUC of each target, the same on resamples)}.
    """
    count = len(areas)
    if count < 2:
        return {}
    value = _minus_others(np.stack([auc for auc, _ in areas.values()]))
    drawn = _minus_others(np.stack([auc for _, auc in areas.values()]))
    level = 1 - 0.05 / count
    rows = {}
    for i, group in enumerate(areas):
        low, high = interval(value[i], pair, drawn[i], confidence=level, within=DIFFERENCE)
        rows[group] = with_ends("above", value[i].mean(), low, high)
    return rows


def _minus_others(values: np.ndarray) -> np.ndarray:
    """Values (groups, ...), from each of which the mean of the other groups is subtracted."""
    count = len(values)
    # the difference from the mean of all, which holds the value itself, is smaller by this factor
    return (values - values.mean(0)) * count / (count - 1)


def largest_contribution(table: pd.DataFrame, what: str = "classes or groups") -> str:
    """Which groups of a `by_group` table stand out, in a sentence; "" where none can be compared.

    A group is named only if an interval adjusted for the number of groups lies above the others.
    """
    compared = table.dropna(subset="above")
    if len(compared) < 2:
        return ""
    too_small = len(table) - len(compared)
    small = f" ({too_small} were too small)" if too_small else ""
    exposed = compared[compared["above_low"] > 0].sort_values("above", ascending=False)
    if exposed.empty:
        return f"None of the {len(compared)} {what} is clearly more exposed than the others{small}."
    kind = "class" if what == "classes" else "group"
    largest = []
    for name, row in exposed.head(3).iterrows():
        points = f"{100 * row['above_low']:.1f} to {100 * row['above_high']:.1f} points"
        largest.append(f"{_group_name(name, kind)} (AUC {row['auc']:.3f}; {points})")
    more = f" and {len(exposed) - 3} more" if len(exposed) > 3 else ""
    return (
        f"Largest contribution: {', '.join(largest)}{more} above the mean of the others"
        f" (intervals adjusted for comparing {len(compared)} {what}){small}."
    )


def _group_name(name: object, kind: str) -> str:
    """A group's name for a sentence: "class 8" where the name alone would read like a number."""
    text = escape.terminal(name)
    return f"{kind} {text}" if text.isdecimal() else text


def readable_groups(table: pd.DataFrame) -> pd.DataFrame:
    """A `by_group` table as text for people: "0.626 [0.611, 0.640]", a rate "17 % [15, 19]", n/m
    for small groups, and the reason of a rate of 0 where scores tie.
    """
    tpr = _cells(table, TPR, percent_interval)
    tpr = tpr.mask(table["remark"].str.contains(TIED), NO_LOWER_RATE)
    view = {
        "AUC": _cells(table, "auc", share_interval),
        f"TPR at {100 * RATE:g} % FPR": tpr.mask(table["remark"].str.contains("n/m"), "n/m"),
        "above the others": _cells(table, "above", share_interval),
    }
    return pd.DataFrame(view, index=table.index).assign(**table[["n1", "n0"]])


def _cells(
    table: pd.DataFrame, name: str, text_of: Callable[[float, float, float], str]
) -> pd.Series:
    """A value of each group and its ends as text; n/m where it is NaN."""
    texts = []
    for _, row in table.iterrows():
        value, low, high = row[[name, f"{name}_low", f"{name}_high"]]
        texts.append("n/m" if math.isnan(value) else text_of(value, low, high))
    return pd.Series(texts, index=table.index)
