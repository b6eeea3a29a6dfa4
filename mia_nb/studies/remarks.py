"""What a reader must know beside a verdict: functions that `remarks` in a study's file name.

Each takes the rows of a claim (`engine.compare`) and, by name, what the claim was judged with:
study, settings, wanted (its contrasts), and what `engine.judge` was given besides. It yields
phrases.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from mia_nb.metrics.uncertainty import (
    FPR,
    measurable_rates,
    per_target_metrics,
    tied_floor,
)
from mia_nb.studies.joins import noise_not_run
from mia_nb.studies.setting import Setting
from mia_nb.types import Scores

if TYPE_CHECKING:
    from mia_nb.studies.engine import Contrast, Study

AT_EQUAL = {"test_acc": "at equal accuracy", "gap": "at equal gap"}
HUNDREDFOLD = 100.0


def _alignment(rows: pd.DataFrame, **_: object) -> Iterator[str]:
    """References of another family may be weaker by their scale alone: what remains when both sides
    are aligned.
    """
    needed = rows[rows["needed"]]
    plain, aligned = (
        needed.loc[needed["part"] == f"weaker than own{how}", "outcome"]
        for how in ("", ", aligned")
    )
    if len(plain) and not len(aligned):
        yield "without alignment: part of the difference may be one of scale"
    elif len(plain) and (plain == "for").all() and not (aligned == "for").all():
        yield "weaker without alignment only"


def deciding_aucs(rows: pd.DataFrame) -> int:
    """How many comparisons of AUC decide."""
    return int((rows["needed"] & (rows["metric"] == "auc")).sum())


def _not_matched(
    rows: pd.DataFrame, *, frontier: pd.DataFrame | None = None, **_: object
) -> Iterator[str]:
    wanted = deciding_aucs(rows)
    compared = (rows["part"] == AT_EQUAL["test_acc"]).sum()
    if frontier is not None and compared < wanted:
        yield (
            f"at equal accuracy: {wanted - compared} of {wanted} not compared (no checkpoints, or"
            " no level that both pass)"
        )


def _ratio_out_of_reach(rows: pd.DataFrame, **_: object) -> Iterator[str]:
    for metric in rows.loc[rows["metric"].str.startswith("ratio of tpr"), "metric"].unique():
        most = 1 / float(metric.rpartition("@")[2])
        if most < HUNDREDFOLD:
            yield f"at this FPR a model at chance allows ratios up to {most:.0f} only"


def _noise_not_run(
    rows: pd.DataFrame, *, study: Study, settings: dict[Setting, Scores], **_: object
) -> Iterator[str]:
    networks = list(dict.fromkeys(setting._replace(attack="") for setting in settings))
    if missing := noise_not_run(networks, study.selections):
        yield f"not run at sigma 2: noise in {', '.join(missing)}"


def row_of_ladder(ladder: pd.DataFrame, row: int) -> pd.Series:
    """A row of `auditing.ladder` by its number."""
    return ladder[ladder["row"] == row].iloc[0]


def by_dp_sgd(ladder: pd.DataFrame) -> bool:
    """Whether the guarantee of a ladder is DP-SGD's."""
    return str(row_of_ladder(ladder, 4)["method"]).startswith("DP-SGD")


def _accounted(rows: pd.DataFrame, *, ladders=(), **_) -> Iterator[str]:
    proved = {name: row_of_ladder(one, 4) for name, one in dict(ladders).items() if by_dp_sgd(one)}
    for name, row in proved.items():
        yield (
            f"DP-SGD accounted: {name} epsilon {row['shown']} at delta {row['delta']:g},"
            f" {row['method']}"
        )
    if not proved:
        yield "what DP-SGD was accounted at is not given (ladders)"
    if not any("trainings" in row["method"] for row in proved.values()):
        yield "an untuned DP-SGD is less accurate than it could be"


def tested_rates(scores: Scores) -> list[float]:
    """Rates at which a ROC may lie above a curve: where ties leave only an FPR of 0, the TPR says
    nothing.
    """
    return [x for x in measurable_rates(scores) if tied_floor(scores) <= x]


def number_of_tests(wanted: list, settings: dict) -> int:
    """How often these contrasts look at a curve: once per target and rate."""
    scores_compared = [settings[contrast.first] for contrast in wanted]
    return sum(len(tested_rates(scores)) * len(scores.value) for scores in scores_compared)


def _tests_together(
    rows: pd.DataFrame,
    *,
    settings: dict[Setting, Scores],
    wanted: list[Contrast],
    delta: float,
    level: float,
    **_: object,
):
    needed = [contrast for contrast in wanted if contrast.needed]
    exceeded = (rows.loc[rows["needed"], "outcome"] == "against").any()
    yield f"curve minus TPR at delta {delta:g}, one target at a time (Clopper-Pearson)"
    yield (
        f"a curve {'counts' if exceeded else 'would count'} as exceeded only at {100 * level:g} %"
        f" over {number_of_tests(needed, settings)} looks together"
    )
    least = min(float(metric.removeprefix("tpr@")) for metric in rows["metric"])
    if least > FPR[0]:
        yield (
            f"FPR below {least:g} not measurable, as an FPR of {FPR[0]:g} needs 10,000 non-members"
        )


def _ties(rows: pd.DataFrame, *, settings: dict[Setting, Scores], **_: object) -> Iterator[str]:
    """Which attacks have a TPR of 0 behind MemGuard by ties, and which find members."""
    behind = {
        setting: scores for setting, scores in settings.items() if setting.output == "memguard"
    }
    rates = [x for x in FPR if all(x in measurable_rates(scores) for scores in behind.values())]
    if not rates:
        return
    x = rates[0]
    phrases = []
    for setting, scores in behind.items():
        tpr = per_target_metrics(scores, (x,))[:, 2].mean()
        floor = tied_floor(scores)
        tied = tpr == 0 and floor > x
        why = f" by ties (no FPR below {floor:.2f}): the printed 0, and no measure" if tied else ""
        phrases.append(f"{setting.attack} {tpr:.3f}{why}")
    yield f"TPR at {100 * x:g} % FPR: {', '.join(phrases)}"


REMARKS = {
    "alignment": _alignment,
    "not_matched": _not_matched,
    "ratio_out_of_reach": _ratio_out_of_reach,
    "noise_not_run": _noise_not_run,
    "accounted": _accounted,
    "looks": _tests_together,
    "ties": _ties,
}
