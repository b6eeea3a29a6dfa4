"""Choosing the options of an attack on pseudo-targets, without looking at the target."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mia_nb.arguments import Anything, Array
from mia_nb.attacks import score as run_attack
from mia_nb.checks import checked
from mia_nb.metrics.pairs import need_membership, same_or_complement, units
from mia_nb.metrics.targets import metric_names, per_target_metrics
from mia_nb.types import Scores, Signals


class Choice(NamedTuple):
    """`best`: the candidate to use; `table`: a row per candidate with value, error,
    within_one_error, pseudo_targets.
    """

    best: str
    table: pd.DataFrame


def _pseudo_target_scores(pool: Signals, targets: np.ndarray, attack: Any) -> Scores:
    """The attack's scores on every reference as pseudo-target in turn.

    References are the rows whose audited mask is neither that of a target nor the complement of
    one. Samples that all models saw do not count: where only canaries are split into pairs, the
    masks of two complementary models are equal in all others.

    Parameters:
        pool: with membership.
        targets: row numbers of the targets.
        attack: as in `choose`.
    """
    audited = pool.member[:, ~pool.population]
    masks = audited[:, ~audited.all(0)]
    excluded = np.zeros(len(masks), bool)
    for mask in masks[targets]:
        excluded |= same_or_complement(masks, mask)
    if len(np.unique(units(audited[~excluded]))) < 2:
        raise ValueError(
            f"{(~excluded).sum()} references are left, less than 2 pairs: a pseudo-target would"
            " have none; use the published setting (input dropout 0.01, 30 queries) or an oracle"
            " threshold and say so"
        )
    return run_attack(attack, pool.select(models=np.flatnonzero(~excluded)))


@checked
def choose(
    candidates: dict[str, Signals], attack: Anything, *, exclude: Array, objective: str = "auc"
) -> Choice:
    """The first candidate within one standard error of the best, judged on pseudo-targets only.

    Parameters:
        candidates: {name: Signals}, all of one pool, the simplest first, such as "p=0", so that a
            refinement is chosen only if it is clearly better.
        attack: a name of `attacks.ATTACKS`, or a function like those.
        exclude: row or rows of the targets whose attack will be reported; they and their
            complementary models are dropped before anything is scored.
        objective: "auc", "advantage" or "tpr@x", averaged over pseudo-targets; its standard error
            is over pairs.

    Returns:
        A `Choice`.

    Raises:
        ValueError: when fewer than two pairs of references remain.

    Source: Guan et al. 2025.
    """
    fpr, column = _objective_column(objective)
    rows = {}
    first = None
    for name, signals in candidates.items():
        need_membership(signals, "pseudo-targets need it")
        if first is None:
            first = signals
        if not np.array_equal(signals.member, first.member):
            raise ValueError(
                f"candidate {name!r} has another membership mask than the first: compare options on"
                " one pool"
            )
        scores = _pseudo_target_scores(signals, np.atleast_1d(exclude), attack)
        values = pd.Series(per_target_metrics(scores, fpr)[:, column], index=scores.pair)
        means = values.groupby(level=0).mean()  # of pairs
        rows[name] = {
            "value": means.mean(),
            "error": means.std(ddof=1) / np.sqrt(len(means)),
            "pseudo_targets": len(values),
        }
    if not rows:
        raise ValueError("choose got no candidates: pass {name: Signals}")
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("candidate")
    best = table.loc[table["value"].idxmax()]
    within_one_error = table["value"] >= best["value"] - best["error"]
    table.insert(2, "within_one_error", within_one_error)
    return Choice(within_one_error.idxmax(), table)


def _objective_column(objective: str) -> tuple[tuple[float, ...], int]:
    """(FPRs to measure, column of the objective in `per_target_metrics`)."""
    try:
        if objective.startswith("tpr@"):
            fpr = (float(objective.removeprefix("tpr@")),)
            return fpr, -1  # TPRs are the last columns
        return (), metric_names(()).index(objective)
    except ValueError:
        raise ValueError(
            f"objective={objective!r} is not one of auc, advantage, tpr@0.01 (any FPR)"
        ) from None
