"""Metrics of every target of an attack from its own ROC, as arrays and as a table with exact
intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mia_nb.arguments import Rates
from mia_nb.checks import checked
from mia_nb.metrics.curve import (
    advantage_of_counts,
    allowed_false_positives,
    auc_of_counts,
    last_vertex,
    measurable,
    null_advantage,
    rates,
    roc_counts,
    tie_mass,
    tpr_at_counts,
    vertex_at,
)
from mia_nb.types import Scores

FPR = (0.001, 0.01, 0.1)


def metric_names(fpr: float | Sequence[float]) -> list[str]:
    """Metric names in the order used throughout: auc, advantage, one tpr@x per FPR."""
    return ["auc", "advantage", *(f"tpr@{x:g}" for x in fpr)]


def scored(scores: Scores, row: int) -> tuple[np.ndarray, np.ndarray]:
    """(score, member) of one target, without samples that could not be scored (NaN: a side was
    missing).
    """
    known = ~np.isnan(scores.value[row])
    return scores.value[row, known], scores.member[row, known]


def smallest(scores: Scores) -> tuple[int, int]:
    """(members, non-members) that were scored, each for the target that has the fewest."""
    n1 = []
    n0 = []
    for row in range(len(scores.value)):
        _, member = scored(scores, row)
        n1.append(int(member.sum()))
        n0.append(int((~member).sum()))
    return min(n1), min(n0)


def measurable_rates(scores: Scores) -> list[float]:
    """The FPRs at which every target has enough non-members for a TPR."""
    _, n0 = smallest(scores)
    return [x for x in FPR if measurable(f"tpr@{x:g}", n0)]


def tied_floor(scores: Scores) -> float:
    """The smallest FPR above 0 that a threshold can give, the largest over targets. Below it, a TPR
    is decided by ties.
    """
    floors = []
    for row in range(len(scores.value)):
        _, fp, _ = roc_counts(*scored(scores, row))
        smallest_above_0 = fp[fp > 0][0]
        floors.append(smallest_above_0 / fp[-1])
    return float(max(floors))


def per_target_metrics(scores: Scores, fpr: float | Sequence[float] = FPR) -> np.ndarray:
    """(targets, metrics) in the order of `metric_names`."""
    fpr = rates(fpr)
    metrics = []
    for row in range(len(scores.value)):
        tp, fp, _ = roc_counts(*scored(scores, row))
        metrics.append(metrics_of_counts(tp, fp, fpr))
    return np.stack(metrics)


def metrics_of_counts(tp: np.ndarray, fp: np.ndarray, fpr: Sequence[float]) -> list[float]:
    """Every metric of one target, in the order of `metric_names`, from its `roc_counts`."""
    tpr = [tp[vertex_at(tp, fp, x)] / tp[-1] for x in fpr]  # without intervals, which take time
    return [auc_of_counts(tp, fp), advantage_of_counts(tp, fp), *tpr]


@checked
def per_target(scores: Scores | dict[str, Scores], fpr: Rates = FPR) -> pd.DataFrame:
    """One row per attack and target, with exact intervals only: the table behind `summary`.

    Parameters:
        scores: of one attack, or {name: scores}.
        fpr: false positive rates in [0, 1] at which the TPR is read.

    Returns:
        columns attack, target, pair, k, queries, auc, advantage, balanced_accuracy (both at the
        target's own best threshold), advantage_null (what chance alone gives), per x tpr@x with
        _low, _high, _tp, _fewer (the TPR with one false positive fewer), _fp, _realised,
        _measurable, then tie_mass, fpr_floor, n1, n0, train_acc, test_acc, gap, train_loss,
        test_loss, unscored (share of NaN scores, left out of all metrics).

    Raises:
        ValueError: for a target without a score.
    """
    fpr = rates(fpr)
    rows = []
    for name, scores_of_attack in scores_by_attack(scores).items():
        for row in range(len(scores_of_attack.targets)):
            rows.append(_target_row(name, scores_of_attack, row, fpr))
    return pd.DataFrame(rows)


def scores_by_attack(scores: Scores | dict[str, Scores]) -> dict[str, Scores]:
    """{attack: scores}, each with a target and every target with a score."""
    if isinstance(scores, Scores):
        scores = {scores.info.get("attack", "attack"): scores}
    for name, scores_of_attack in scores.items():
        value = scores_of_attack.value
        if not len(value):
            raise ValueError(f"{name} has no target: score at least one")
        if np.isnan(value).all(1).any():
            raise ValueError(
                f"{name} scored no sample of a target: it gave NaN for each, as attacks do"
                " that lack references on one side; leave it out, mend it, or train more models"
            )
    return scores


def _target_row(name: str, scores: Scores, row: int, fpr: Sequence[float]) -> dict:
    """The row of one target in the table of `per_target`."""
    score, member = scored(scores, row)
    tp, fp, _ = roc_counts(score, member)
    n1 = int(tp[-1])
    n0 = int(fp[-1])
    gap = advantage_of_counts(tp, fp)
    train_acc, test_acc = scores.accuracy[row]
    train_loss, test_loss = scores.loss[row]
    tprs = {}
    for x in fpr:
        tprs |= _tpr_columns(tp, fp, x)
    return {
        "attack": name,
        "target": int(scores.targets[row]),
        "pair": int(scores.pair[row]),
        "k": scores.info.get("k"),
        "queries": scores.info.get("queries"),
        "auc": auc_of_counts(tp, fp),
        "advantage": gap,
        "balanced_accuracy": (1 + gap) / 2,
        "advantage_null": null_advantage(n1, n0),
        **tprs,
        "tie_mass": tie_mass(score),
        "fpr_floor": fp[1] / n0,
        "n1": n1,
        "n0": n0,
        "train_acc": train_acc,
        "test_acc": test_acc,
        "gap": train_acc - test_acc,
        "train_loss": train_loss,
        "test_loss": test_loss,
        "unscored": 1 - len(score) / scores.value.shape[1],
    }


def _tpr_columns(tp: np.ndarray, fp: np.ndarray, x: float) -> dict:
    """The columns of the TPR at one FPR x."""
    at = tpr_at_counts(tp, fp, x)
    tpr_with_one_fewer = 0.0
    one_fewer = last_vertex(fp, allowed_false_positives(x, at.n0) - 1)
    if one_fewer >= 0:
        tpr_with_one_fewer = tp[one_fewer] / at.n1
    name = f"tpr@{x:g}"
    return {
        name: at.tpr,
        f"{name}_low": at.low,
        f"{name}_high": at.high,
        f"{name}_tp": at.tp,
        f"{name}_fewer": tpr_with_one_fewer,
        f"{name}_fp": at.fp,
        f"{name}_realised": at.fpr_realised,
        f"{name}_measurable": at.measurable,
    }
