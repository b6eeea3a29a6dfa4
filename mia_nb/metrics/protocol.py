"""Choices made without looking at the target: options on pseudo-targets, thresholds from
references.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb.attacks import score as run_attack
from mia_nb.checks import checked
from mia_nb.metrics.curve import PRIORS, clopper_pearson, counts, ppv
from mia_nb.metrics.pairs import need_membership, same_or_complement, units
from mia_nb.metrics.uncertainty import names, per_target_metrics, scored
from mia_nb.types import Scores, Signals

RATIO = (0.5, 2.0)  # realised over nominal FPR outside this range is flagged


class Choice(NamedTuple):
    """`best`: the candidate to use; `table`: a row per candidate with value, error,
    within_one_error, pseudo_targets.
    """

    best: str
    table: pd.DataFrame


def _without(signals: Signals, masks: np.ndarray) -> Signals:
    """Rows whose audited mask, samples that all saw aside, is neither one of `masks` (rows,
    audited) nor its complement.
    """
    need_membership(signals, "pseudo-targets need it")
    audited = signals.member[:, ~signals.population]
    informative = ~(audited.all(0) & masks.all(0))
    excluded = [same_or_complement(audited[:, informative], mask[informative]) for mask in masks]
    return signals.select(models=np.flatnonzero(~np.any(excluded, axis=0)))


def _pseudo_targets(references: Signals, attack) -> Scores:
    """Scores with every reference as pseudo-target in turn, its mate dropped."""
    audited = references.member[:, ~references.population]
    if len(np.unique(units(audited))) < 2:
        raise ValueError(
            f"{len(audited)} references are left, less than 2 pairs: a pseudo-target would have"
            " none; use the published setting (input dropout 0.01, 30 queries) or an oracle"
            " threshold and say so"
        )
    return run_attack(attack, references)


@checked
def choose(candidates: dict, attack, *, exclude, objective: str = "auc") -> Choice:
    """The first candidate within one standard error of the best, judged on pseudo-targets only
    (Guan et al. 2025).

    candidates: {name: Signals} or {name: (Signals, attack)}, all of one pool, ordered from the
    simplest on (put "p=0" first, so that a refinement must earn its place); a candidate's own
    attack (options bound with functools.partial) replaces `attack`. exclude: row or rows of the
    targets whose attack will be reported; they and their mates are dropped before anything is
    scored. objective: "auc", "advantage" or "tpr@x", averaged over pseudo-targets; its standard
    error is over pairs. Raises ValueError when less than two pairs of references remain.
    """
    _objective_column(objective)
    rows = {}
    first = None
    for name, candidate in candidates.items():
        signals, own = candidate if isinstance(candidate, tuple) else (candidate, attack)
        need_membership(signals, "pseudo-targets need it")
        first = signals if first is None else first
        if not np.array_equal(signals.member, first.member):
            raise ValueError(
                f"candidate {name!r} has another membership mask than the first: compare options on"
                " one pool"
            )
        excluded = signals.member[np.atleast_1d(exclude)][:, ~signals.population]
        values = _objective(_pseudo_targets(_without(signals, excluded), own), objective)
        pairs = values.groupby(level=0).mean()
        rows[name] = {
            "value": pairs.mean(),
            "error": pairs.std(ddof=1) / np.sqrt(len(pairs)),
            "pseudo_targets": len(values),
        }
    if not rows:
        raise ValueError("choose got no candidates: pass {name: Signals}")
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("candidate")
    best = table.loc[table["value"].idxmax()]
    table.insert(2, "within_one_error", table["value"] >= best["value"] - best["error"])
    return Choice(table.index[int(table["within_one_error"].argmax())], table)


def _objective(scores: Scores, objective: str) -> pd.Series:
    """One value per pseudo-target, indexed by pair."""
    fpr, column = _objective_column(objective)
    return pd.Series(per_target_metrics(scores, fpr)[:, column], index=scores.pair)


def _objective_column(objective: str) -> tuple[tuple, int]:
    """(FPRs to measure, column of the objective in `per_target_metrics`)."""
    try:
        fpr = (float(objective.removeprefix("tpr@")),) if objective.startswith("tpr@") else ()
        return fpr, 2 if fpr else names(()).index(objective)
    except ValueError:
        raise ValueError(
            f"objective={objective!r} is not one of auc, advantage, tpr@0.01 (any FPR)"
        ) from None


@checked
def reference_threshold(
    signals: Signals,
    attack,
    references: Signals | None = None,
    *,
    targets=None,
    fpr: float | None = 0.01,
) -> pd.DataFrame:
    """What an attacker gets who sets the threshold on references: one row per target.

    Every reference is a pseudo-target in turn (its mate dropped); their non-member scores are
    pooled and the threshold is put at the wanted FPR, or with fpr=None at the largest balanced
    accuracy; then it is applied to the target. Columns: target, threshold, fpr (nominal),
    fpr_realised, tpr with 95 % Clopper-Pearson ends, balanced_accuracy, ppv@prior, ratio = realised
    / nominal, flag when the ratio leaves [1/2, 2]. Needs two pairs of references.
    """
    pool = signals if references is None else references
    if not np.array_equal(signals.labels, pool.labels):
        raise ValueError(
            "target and references differ in samples or labels: a threshold needs both on the same"
            " images"
        )
    whole = run_attack(attack, signals, references, targets=targets)
    thresholds: dict[int, float] = {}
    rows = []
    for row, pair in enumerate(whole.pair):
        if pair not in thresholds:  # a target and its mate have the same references
            thresholds[pair] = _threshold(
                _pseudo_targets(_without(pool, whole.member[row : row + 1]), attack), fpr
            )
        rows.append(
            {
                "target": int(whole.targets[row]),
                **_applied(*scored(whole, row), thresholds[pair], fpr),
            }
        )
    return pd.DataFrame(rows)


def _threshold(scores: Scores, fpr: float | None) -> float:
    """Smallest threshold with at most the share `fpr` of pooled non-members at or above it; None:
    largest balanced accuracy.
    """
    known = ~np.isnan(scores.value)
    value, member = scores.value[known], scores.member[known]
    if fpr is None:
        tp, fp, threshold = counts(value, member)
        return float(threshold[np.argmax(tp / tp[-1] - fp / fp[-1])])
    out = -np.sort(-value[~member])
    allowed = int(np.floor(fpr * len(out) + 1e-9))
    return float(np.nextafter(out[allowed], np.inf)) if allowed < len(out) else -np.inf


def _applied(score, member, threshold: float, fpr: float | None) -> dict:
    said, n1, n0 = score >= threshold, int(member.sum()), int((~member).sum())
    tp, fp = int((said & member).sum()), int((said & ~member).sum())
    tpr, realised = tp / n1, fp / n0
    record = {
        "threshold": threshold,
        "fpr": np.nan if fpr is None else fpr,
        "fpr_realised": realised,
    }
    record |= dict(
        zip(("fpr_low", "fpr_high"), map(float, clopper_pearson(fp, n0)), strict=True)
    ) | {"tpr": tpr}
    record |= dict(zip(("tpr_low", "tpr_high"), map(float, clopper_pearson(tp, n1)), strict=True))
    record |= {"balanced_accuracy": (1 + tpr - realised) / 2}
    record |= {f"ppv@{prior:g}": float(ppv(tpr, realised, prior)) for prior in PRIORS}
    ratio = realised / fpr if fpr else np.nan
    missed = bool(fpr) and not RATIO[0] <= ratio <= RATIO[1]
    return record | {
        "ratio": ratio,
        "flag": f"realised FPR is {ratio:.2g} x nominal" if missed else "",
    }
