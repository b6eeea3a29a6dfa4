"""What a reader must know beside a verdict: functions that `remarks` in a study's file name, which
give phrases of evidence; and those that `decided_by` names, for claims that rest on no comparison
of scores, which give what differs in the claim's row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb.metrics.targets import FPR, measurable_rates, per_target_metrics, tied_floor
from mia_nb.studies.compare import AT_EQUAL, number_of_tests, rate_of
from mia_nb.studies.engine import Contrast, Study
from mia_nb.studies.joins import noise_not_run
from mia_nb.studies.setting import Setting
from mia_nb.types import Scores

HUNDREDFOLD = 100.0
ALIKE = 0.9  # of the ceiling: rank correlations from here on count as those of one ranking
COUNTEREXAMPLES = (
    "with drift 0 the theorem allows every sigma above 0, as h(0) is missing in its proof",
    (
        "with one record per batch the gradients of stem and classifier bias reveal x and y,"
        " whatever sigma is"
    ),
    "in the study hidden states are not clipped and the drift's Lipschitz constant is not bounded",
    "layers before the block are trained on the same records",
)
RANKS = (
    "{first} and {second}: {correlation:.3f} of at most {ceiling:.3f}, ratio {ratio:.2f}"
    " [{low:.2f}, {high:.2f}], {samples:,} samples, {pairs} pairs"
)


class Case(NamedTuple):
    """What a claim is judged with: its rows of `compare`, what it compares, and what was given."""

    ladders: dict[str, pd.DataFrame]
    ranks: pd.DataFrame | None
    delta: float
    level: float
    study: Study | None = None
    settings: dict[Setting, Scores] = {}  # noqa: RUF012 - never changed
    frontier: pd.DataFrame | None = None
    rows: pd.DataFrame | None = None
    contrasts: list[Contrast] = []  # noqa: RUF012


def _alignment(case: Case) -> Iterator[str]:
    """References of another family may be weaker by their scale alone: what remains when both sides
    are aligned.
    """
    needed = case.rows[case.rows["needed"]]
    plain = needed.loc[needed["part"] == "weaker than own", "outcome"]
    aligned = needed.loc[needed["part"] == "weaker than own, aligned", "outcome"]
    if not len(plain):
        return
    if not len(aligned):
        yield "without alignment: part of the difference may be one of scale"
    elif (plain == "for").all() and not (aligned == "for").all():
        yield "weaker without alignment only"


def deciding_aucs(rows: pd.DataFrame) -> int:
    """How many comparisons of AUC decide."""
    return int((rows["needed"] & (rows["metric"] == "auc")).sum())


def _not_matched(case: Case) -> Iterator[str]:
    needed = deciding_aucs(case.rows)
    compared = (case.rows["part"] == AT_EQUAL["test_acc"]).sum()
    if case.frontier is not None and compared < needed:
        yield (
            f"at equal accuracy: {needed - compared} of {needed} not compared (no checkpoints, or"
            " no level that both pass)"
        )


def _ratio_out_of_reach(case: Case) -> Iterator[str]:
    for metric in case.rows["metric"].unique():
        most = 1 / rate_of(metric) if metric.startswith("ratio of tpr") else HUNDREDFOLD
        if most < HUNDREDFOLD:
            yield f"at this FPR a model at chance allows ratios up to {most:.0f} only"


def _noise_not_run(case: Case) -> Iterator[str]:
    networks = list(dict.fromkeys(setting._replace(attack="") for setting in case.settings))
    if missing := noise_not_run(networks, case.study.selections):
        yield f"not run at sigma 2: noise in {', '.join(missing)}"


def _row_of_ladder(ladder: pd.DataFrame, row: int) -> pd.Series:
    """A row of `auditing.ladder` by its number."""
    return ladder[ladder["row"] == row].iloc[0]


def _by_dp_sgd(ladder: pd.DataFrame) -> bool:
    """Whether the guarantee of a ladder is DP-SGD's."""
    return str(_row_of_ladder(ladder, 4)["method"]).startswith("DP-SGD")


def _accounted(case: Case) -> Iterator[str]:
    tuned = False
    proved = {name: ladder for name, ladder in case.ladders.items() if _by_dp_sgd(ladder)}
    for name, ladder in proved.items():
        row = _row_of_ladder(ladder, 4)
        tuned |= "trainings" in row["method"]
        yield (
            f"DP-SGD accounted: {name} epsilon {row['shown']} at delta {row['delta']:g},"
            f" {row['method']}"
        )
    if not proved:
        yield "what DP-SGD was accounted at is not given (ladders)"
    if not tuned:
        yield "an untuned DP-SGD is less accurate than it could be"


def _tests_together(case: Case) -> Iterator[str]:
    needed = [contrast for contrast in case.contrasts if contrast.needed]
    exceeded = (case.rows.loc[case.rows["needed"], "outcome"] == "against").any()
    yield f"curve minus TPR at delta {case.delta:g}, one target at a time (Clopper-Pearson)"
    yield (
        f"a curve {'counts' if exceeded else 'would count'} as exceeded only at"
        f" {100 * case.level:g} % over {number_of_tests(needed, case.settings)} looks together"
    )
    least = min(map(rate_of, case.rows["metric"]))
    if least > FPR[0]:
        yield (
            f"FPR below {least:g} not measurable, as an FPR of {FPR[0]:g} needs 10,000 non-members"
        )


def _ties(case: Case) -> Iterator[str]:
    """Which attacks have a TPR of 0 behind MemGuard by ties, and which find members."""
    behind = {
        setting: scores for setting, scores in case.settings.items() if setting.output == "memguard"
    }
    rates = [x for x in FPR if all(x in measurable_rates(scores) for scores in behind.values())]
    if not rates:
        return
    x = rates[0]
    phrases = []
    for setting, scores in behind.items():
        tpr = per_target_metrics(scores, (x,))[:, 2].mean()
        floor = tied_floor(scores)
        why = ""
        if tpr == 0 and floor > x:
            why = f" by ties (no FPR below {floor:.2f}): the printed 0, and no measure"
        phrases.append(f"{setting.attack} {tpr:.3f}{why}")
    yield f"TPR at {100 * x:g} % FPR: {', '.join(phrases)}"


def _same_samples(case: Case) -> dict[str, str]:
    """Whether recipes expose the same samples, from `metrics.agreement`."""
    ranks = case.ranks
    if ranks is None or not len(ranks):
        return {}
    verdict = "not resolved"
    if (ranks["high"] < ALIKE).any():
        verdict = "does not hold"
    elif (ranks["low"] > ALIKE).all():
        verdict = "holds"
    records = ranks.to_dict("records")
    return {
        "verdict": verdict,
        "evidence": "; ".join(RANKS.format(**record) for record in records),
        "compared": "; ".join("{first} and {second}".format(**record) for record in records),
    }


def _established(case: Case) -> dict[str, str]:
    """What is proved, what is claimed, and whether an audit exceeds it."""
    evidence = []
    claimed = 0
    refuted = False
    for name, ladder in case.ladders.items():
        nominal = _row_of_ladder(ladder, 1)
        if not np.isfinite(nominal["epsilon"]) or _by_dp_sgd(ladder):
            continue
        claimed += 1
        proved, audited = _row_of_ladder(ladder, 4), _row_of_ladder(ladder, 5)
        # evidence is split at "; "
        by = f" ({audited['method'].replace('; ', ', ')})" if audited["method"] else ""
        evidence.append(
            f"{name} at delta {nominal['delta']:g}: {nominal['label']} {nominal['shown']}, training"
            f" guarantee {proved['shown']}, audited {audited['shown']}{by}"
        )
        if nominal["verdict"]:
            evidence.append(f"nominal value of {name}: {nominal['verdict']}")
        refuted |= str(nominal["verdict"]).startswith("refuted at")
    if claimed > 1:
        evidence.append("each network's audit at its own confidence")
    if not claimed:
        evidence.append(
            "training guarantee none (infinite); nominal value and audit not given (ladders)"
        )
    verdict = "does not hold" if refuted else "not established"
    return {"verdict": verdict, "evidence": "; ".join([*evidence, *COUNTEREXAMPLES])}


REMARKS = {
    "alignment": _alignment,
    "not_matched": _not_matched,
    "ratio_out_of_reach": _ratio_out_of_reach,
    "noise_not_run": _noise_not_run,
    "accounted": _accounted,
    "looks": _tests_together,
    "ties": _ties,
}
DECIDED_BY = {"same_samples": _same_samples, "established": _established}
