"""The contrasts that decide, repeated at equal test accuracy or gap, from checkpoints."""

from __future__ import annotations

from functools import partial

import pandas as pd

from mia_nb.metrics.equal_utility import matched
from mia_nb.studies.study import Contrast

SAME = 0.01  # a difference of AUC or of accuracy up to this counts as none
AT_EQUAL = {"test_acc": "at equal accuracy", "gap": "at equal gap"}
IN_WORDS = {"test_acc": "test accuracy", "gap": "gap"}


def equal_accuracy_rows(
    compared: list[Contrast], by: str, frontier: pd.DataFrame, level: float
) -> list[dict]:
    """A row for each contrast of two sides that decides, at the highest level of accuracy or gap
    that checkpoints of both families reach.

    `queried_less`: the numbers of queries of the stochastic families that were queried less often
    along training than in the comparison that decides.
    """
    metric = "gap" if by == "gap" else "auc"
    reached = []
    for contrast in compared:
        if len(contrast.sides) != 2 or not contrast.needed or contrast.metric != metric:
            continue
        a, b = (side[0].label for side in contrast.sides)
        curves = frontier[frontier["family"].isin([a, b])]
        top = _highest_level(curves, a, b, by)
        if top is not None:
            at_top = partial(matched, curves, by=by, baseline=b, levels=[top])
            reached.append((contrast, at_top))
    joint_level = 1 - (1 - level) / max(len(reached), 1)
    rows = []
    for contrast, at_top in reached:
        at_level = at_top(confidence=level).set_index("family")
        simultaneous = at_top(confidence=joint_level).set_index("family")
        queried = []
        queried_less = []
        for setting, *_ in contrast.sides:
            if not setting.stochastic:
                continue
            count = at_level.loc[setting.label, "queries"]
            text = f"R = {count:g}" if pd.notna(count) else "R not known"
            queried.append(text)
            if pd.isna(count) or count < setting.queries:
                queried_less.append(text)
        row = _row_at_level(contrast, by, at_level, simultaneous, queried)
        row["queried_less"] = ", ".join(queried_less)
        rows.append(row)
    return rows


def _highest_level(curves: pd.DataFrame, a: str, b: str, by: str) -> float | None:
    """The highest default level of `metrics.matched` that two pairs of both families reach; None
    without one.
    """
    if curves["family"].nunique() != 2:
        return None
    curves = curves.drop(columns="auc_draws", errors="ignore")  # no interval is needed
    both = matched(curves, by=by, baseline=b)
    reached = both.loc[(both["family"] == a) & (both["difference_pairs"] >= 2), "level"]
    return float(reached.max()) if len(reached) else None


def _row_at_level(
    contrast: Contrast,
    by: str,
    at_level: pd.DataFrame,
    simultaneous: pd.DataFrame,
    queried: list[str],
) -> dict[str, object]:
    """The row of a contrast at a level that both families reach.

    at_level, simultaneous: `metrics.matched` by family, with intervals at the given level and at
    the joint level; queried: how often stochastic sides were queried along training.
    """
    a, b = (side[0].label for side in contrast.sides)
    result = at_level.loc[a]
    pairs = result["difference_pairs"]
    words = [
        f"{a} - {b} at {IN_WORDS[by]} {result['level']:.3f} ({pairs} pairs)",
        " against ".join(dict.fromkeys(at_level.loc[[a, b], "attack"])),
        " against ".join(dict.fromkeys(queried)),
    ]
    if not result["over_samples"]:
        words.append("samples not drawn: decides nothing")
    at_equal = contrast._replace(
        part=AT_EQUAL[by],
        compared=", ".join(filter(None, words)),
        metric="auc",
        needed=by == "gap",
        margin=SAME if by == "gap" else 0.0,
    )
    ends = tuple(result[["difference_low", "difference_high"]])
    joint_ends = tuple(simultaneous.loc[a, ["difference_low", "difference_high"]])
    row = at_equal.row(result["difference"], ends, joint_ends)
    joint_low, joint_high = joint_ends
    nothing_left = joint_low > -SAME and joint_high < SAME
    if not result["over_samples"]:
        row["outcome"] = "open"
    elif by == "test_acc" and contrast.above == 0 and nothing_left:
        row["outcome"] = "against"
    return row
