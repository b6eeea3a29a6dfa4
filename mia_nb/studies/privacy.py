"""Verdicts on what the study of neural SDE classifiers says about noise, accounting and
defenses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from mia_nb.accounting import tradeoff
from mia_nb.checks import checked
from mia_nb.metrics.curve import clopper_pearson, counts
from mia_nb.metrics.uncertainty import FPR, RESAMPLES, scored
from mia_nb.studies.engine import (
    Contrast,
    Study,
    as_table,
    compare,
    contrasts,
    deciding,
    judge,
    load,
    one_pair,
    row_of,
)
from mia_nb.studies.remarks import by_dp_sgd, looked_at, looks, row_of_ladder
from mia_nb.studies.setting import Setting
from mia_nb.types import Scores

CURVE = 1.0  # epsilon of the curve that Figure 5 draws
LADDER = ("row", "shown", "epsilon", "delta", "method", "verdict")
ESTABLISHED = (
    "As the study states, training a neural SDE satisfies (epsilon, delta)-differential privacy"
    " with the nominal epsilon (paper's accounting)."
)
COUNTEREXAMPLES = (
    "with drift 0 the theorem allows every sigma above 0, as h(0) is missing in its proof",
    (
        "with one record per batch the gradients of stem and classifier bias reveal x and y,"
        " whatever sigma is"
    ),
    "in the study hidden states are not clipped and the drift's Lipschitz constant is not bounded",
    "layers before the block are trained on the same records",
)


@checked
def privacy_comparisons(
    settings: dict[Setting, Scores],
    *,
    delta: float = 1e-5,
    draws: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per comparison that D8, D10 and D15 rest on, as far as it was run.

    D8 and D15: as in `comparisons`. D10: a row per attacked SDENet and measurable FPR (10 allowed
    false positives), value = curve at the realised FPR - TPR of the target that has least room
    below the curve, where

        low = curve(fpr_lo) - tpr_hi,  high = curve(fpr_hi) - tpr_lo          curve: `tradeoff`,
                                       epsilon 1 and `delta`

    with Clopper-Pearson ends of that target alone; "for" where low > 0 at `level` for every target,
    "against" where high < 0 for one of them, after Bonferroni over all (target, FPR, attack) of
    networks with noise (those without among themselves). The threshold is set by the non-members
    alone, so that both ends are exact. With one target alone everything is "open".
    settings, draws, level, seed, columns and errors: as in `comparisons`. Settings with a
    `variant`, or with noise off in training or when queried, are left out.
    Caveat: records of one training are no independent trainings (population-level): no verdict on
    a mechanism.
    """
    study = load("privacy")
    return _compared(study, deciding(study, settings), delta, draws, level, seed)


def _compared(
    study: Study, settings: dict, delta: float, draws: int, level: float, seed: int
) -> pd.DataFrame:
    paired = compare(study, settings, draws=draws, level=level, seed=seed)
    below = as_table(_below(study, settings, delta, level))
    return pd.concat(
        [table for table in (paired, below) if len(table)] or [below], ignore_index=True
    )


def _below(study: Study, settings: dict, delta: float, level: float) -> list[dict]:
    """Rows of D10."""
    wanted, rows = contrasts(study, study.claims["D10"], settings), []
    curve = partial(tradeoff, epsilon=CURVE, delta=delta)
    for needed in (True, False):
        own = [contrast for contrast in wanted if contrast.needed == needed]
        levels = (level, 1 - (1 - level) / max(looks(own, settings), 1))
        rows += [
            _least_room(contrast, settings[contrast.first], x, curve, levels)
            for contrast in own
            for x in looked_at(settings[contrast.first])
        ]
    return rows


def _least_room(
    contrast: Contrast, scores: Scores, x: float, curve: Callable, levels: tuple[float, float]
) -> dict:
    """One row: the target with the least room below the curve, and what all of them say."""
    rooms = np.array(
        [room_below(*scored(scores, row), x, curve, levels) for row in range(len(scores.value))]
    )
    row, compared = int(rooms[:, 0].argmin()), f"{contrast.compared}, {contrast.first.attack}"
    if len(rooms) > 1:
        compared += f", least of {len(rooms)} targets ({scores.targets[row]})"
    contrast = contrast._replace(compared=compared, metric=f"tpr@{x:g}")
    value, low, high, sure_low, sure_high = rooms[row]
    above, below = (rooms[:, 4] < 0).any(), (rooms[:, 1] > 0).all()
    outcome = "against" if above else "for" if below else "open"
    record = row_of("D10", contrast, value, (low, high), (sure_low, sure_high))
    return record | {"outcome": "open" if one_pair(scores) else outcome}


def room_below(score, member, x: float, curve: Callable, levels) -> list[float]:
    """[curve - TPR, then its low and high end per level] of one target at the largest FPR that is
    at most x.

    curve(fpr) -> the largest TPR. Ends as in `privacy_comparisons`: above the curve is what has a
    high end below 0.
    """
    tp, fp, _ = counts(score, member)
    # where non-members alone put the threshold
    last = np.searchsorted(fp, np.floor(x * fp[-1] + 1e-9), side="right") - 1
    room = [float(curve(fp[last] / fp[-1])) - tp[last] / tp[-1]]
    for level in levels:
        fpr, tpr = (clopper_pearson(hits[last], hits[-1], confidence=level) for hits in (fp, tp))
        room += [float(curve(fpr[0])) - float(tpr[1]), float(curve(fpr[1])) - float(tpr[0])]
    return room


@checked
def privacy_claims(
    settings: dict[Setting, Scores],
    *,
    ladders: pd.DataFrame | dict[str, pd.DataFrame] | None = None,
    delta: float = 1e-5,
    draws: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """`claims` of Hong, Wu, Gruber and Lee (arXiv 2501.06686): index D8, D10, D14, D15.

    From `privacy_comparisons`; pass DP-SGD trained for epsilon 8 (delta 1e-5) alone. D10 holds only
    "(at FPR 0.1 and above)" where smaller ones are not measurable. D15: an AUC resolved below 0.5
    is a failed design. D14 never holds: it is "not established", or does not hold where the ladder
    says that its audit refutes the nominal value.
    ladders: `auditing.ladder` of a network, or {label: ladder} (`Setting.label`); those whose row 4
    is DP-SGD's go into the evidence of D8, the others with a nominal value (row 1) into that of
    D14.
    Caveat: verdicts are about the attacks that were run; no attack found that exceeds a curve
    establishes none.
    """
    study = load("privacy")
    settings = deciding(study, settings)
    ladders = {"this network": ladders} if isinstance(ladders, pd.DataFrame) else ladders or {}
    for name, ladder in ladders.items():
        if lacks := [column for column in LADDER if column not in ladder]:
            raise ValueError(
                f"the ladder of {name} lacks {', '.join(lacks)}: pass auditing.ladder(...)"
            )
    table = _compared(study, settings, delta, draws, level, seed)
    verdicts = judge(study, settings, table, ladders=ladders, delta=delta, level=level)
    looked = table.loc[(table["claim"] == "D10") & table["needed"], "metric"]
    least = looked.str.removeprefix("tpr@").astype(float).min()
    if verdicts.loc["D10", "verdict"] == "holds" and least > FPR[0]:
        verdicts.loc["D10", "verdict"] = f"holds (at FPR {least:g} and above)"
    verdicts.loc["D14"] = _established(ladders)
    return verdicts.loc[["D8", "D10", "D14", "D15"]]


def _established(ladders: dict[str, pd.DataFrame]) -> dict:
    """The row of D14: what is proved, what is claimed, and whether an audit exceeds it."""
    evidence, refuted = [], False
    claimed = {
        name: ladder
        for name, ladder in ladders.items()
        if np.isfinite(row_of_ladder(ladder, 1)["epsilon"]) and not by_dp_sgd(ladder)
    }
    for name, ladder in claimed.items():
        nominal, proved, audited = (row_of_ladder(ladder, row) for row in (1, 4, 5))
        # evidence is split at "; "
        by = f" ({audited['method'].replace('; ', ', ')})" if audited["method"] else ""
        evidence.append(
            f"{name} at delta {nominal['delta']:g}: {nominal['label']} {nominal['shown']}, training"
            f" guarantee {proved['shown']}, audited {audited['shown']}{by}"
        )
        evidence += [f"nominal value of {name}: {nominal['verdict']}"] if nominal["verdict"] else []
        refuted |= str(nominal["verdict"]).startswith("refuted at")
    if len(claimed) > 1:
        evidence.append("each network's audit at its own confidence")
    if not claimed:
        evidence.append(
            "training guarantee none (infinite); nominal value and audit not given (ladders)"
        )
    return {
        "claim": ESTABLISHED,
        "verdict": "does not hold" if refuted else "not established",
        "evidence": "; ".join([*evidence, *COUNTEREXAMPLES]),
        "compared": "",
        "accuracy_apart": np.nan,
    }
