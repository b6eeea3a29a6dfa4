"""Comparisons of a study repeated at equal test accuracy or gap, from checkpoints."""

from __future__ import annotations

import pandas as pd

from mia_nb.metrics.frontier import highest_level, matched
from mia_nb.studies.engine import SAME, Contrast, Study, contrasts, row_of
from mia_nb.studies.remarks import AT_EQUAL
from mia_nb.studies.setting import Setting
from mia_nb.types import Scores

LEVEL_OF = {"test_acc": "test accuracy", "gap": "gap"}


def compared_again(
    study: Study, settings: dict[Setting, Scores], frontier: pd.DataFrame, level: float
) -> tuple[list[dict], dict[str, str]]:
    """Rows of the contrasts that decide, as far as checkpoints of both families are there.

    Also by claim the R of stochastic families that were queried less along training than in what
    decides.
    """
    rows, fewer = [], {}
    for name, claim in study.claims.items():
        wanted = contrasts(study, claim, settings) if claim.matched else []
        highest = [
            again for contrast in wanted if (again := _highest(contrast, claim.matched, frontier))
        ]
        jointly = 1 - (1 - level) / max(len(highest), 1)
        less = []
        for contrast, curves, top in highest:
            options = {"by": claim.matched, "baseline": _sides(contrast)[1].label, "levels": [top]}
            at_level, simultaneous = (
                matched(curves, **options, confidence=confidence).set_index("family")
                for confidence in (level, jointly)
            )
            row, queried = _row(name, contrast, claim.matched, at_level, simultaneous)
            rows.append(row)
            less += queried
        fewer[name] = ", ".join(dict.fromkeys(less))
    return rows, fewer


def _sides(contrast: Contrast) -> list[Setting]:
    return [side[0] for _, side in contrast.terms]


def _highest(contrast: Contrast, by: str, frontier: pd.DataFrame) -> tuple | None:
    """The contrast, the checkpoints of its families, and the highest level that both reach; None
    where it decides nothing or there is no such level.
    """
    a, b = (side.label for side in _sides(contrast))
    curves = frontier[frontier["family"].isin([a, b])]
    decides = contrast.needed and contrast.metric == ("gap" if by == "gap" else "auc")
    if not decides or curves["family"].nunique() < 2:
        return None
    top = highest_level(curves, a, b, by)
    return None if top is None else (contrast, curves, top)


def _row(
    name: str, contrast: Contrast, by: str, at_level: pd.DataFrame, simultaneous: pd.DataFrame
) -> tuple[dict, list[str]]:
    sides = _sides(contrast)
    a, b = (side.label for side in sides)
    row = at_level.loc[a]
    over_samples = at_level.loc[a, "over_samples"]
    counts = {side: at_level.loc[side.label, "queries"] for side in sides if side.stochastic}
    queried = {side: f"R = {n:g}" if pd.notna(n) else "R not known" for side, n in counts.items()}
    words = [
        f"{a} - {b} at {LEVEL_OF[by]} {row['level']:.3f} ({row['difference_pairs']} pairs)",
        " against ".join(dict.fromkeys(at_level.loc[[a, b], "attack"])),
        " against ".join(dict.fromkeys(queried.values())),
        "" if over_samples else "samples not drawn: decides nothing",
    ]
    contrast = contrast._replace(
        part=AT_EQUAL[by],
        compared=", ".join(filter(None, words)),
        metric="auc",
        needed=by == "gap",
        margin=SAME if by == "gap" else 0.0,
    )
    ends, simultaneous_ends = (
        tuple(table.loc[a, ["difference_low", "difference_high"]])
        for table in (at_level, simultaneous)
    )
    record = row_of(name, contrast, row["difference"], ends, simultaneous_ends)
    nothing_left = simultaneous_ends[0] > -SAME and simultaneous_ends[1] < SAME
    if not over_samples:
        record["outcome"] = "open"
    elif by == "test_acc" and contrast.above == 0 and nothing_left:
        record["outcome"] = "against"
    return record, [queried[side] for side, n in counts.items() if not n >= side.queries]
