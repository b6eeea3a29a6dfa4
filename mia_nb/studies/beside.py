"""Claims that rest on no comparison of scores: functions that `decided_by` in a study's file names.

Each takes, by name, what the claims were judged with, and returns what differs in the claim's row.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from mia_nb.studies.remarks import by_dp_sgd, row_of_ladder

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


def _same_samples(*, ranks: pd.DataFrame | None, **_: object) -> dict:
    """Whether recipes expose the same samples, from `metrics.agreement`."""
    if ranks is None or not len(ranks):
        return {}
    against = (ranks["high"] < ALIKE).any()
    sure = (ranks["low"] > ALIKE).all()
    verdict = "not resolved"
    if against:
        verdict = "does not hold"
    elif sure:
        verdict = "holds"
    records = ranks.to_dict("records")
    return {
        "verdict": verdict,
        "evidence": "; ".join(RANKS.format(**each) for each in records),
        "compared": "; ".join("{first} and {second}".format(**each) for each in records),
    }


def _established(*, ladders: dict[str, pd.DataFrame], **_: object) -> dict:
    """What is proved, what is claimed, and whether an audit exceeds it."""
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
    verdict = "does not hold" if refuted else "not established"
    return {"verdict": verdict, "evidence": "; ".join([*evidence, *COUNTEREXAMPLES])}


DECIDED_BY = {"same_samples": _same_samples, "established": _established}
