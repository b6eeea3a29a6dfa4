"""Choosing the options of an attack on pseudo-targets, without looking at the target."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb.arguments import Anything, Array
from mia_nb.attacks import score as run_attack
from mia_nb.checks import checked
from mia_nb.metrics.pairs import need_membership, same_or_complement, units
from mia_nb.metrics.targets import names, per_target_metrics
from mia_nb.types import Scores, Signals


class Choice(NamedTuple):
    """`best`: the candidate to use; `table`: a row per candidate with value, error,
    within_one_error, pseudo_targets.
    """

    best: str
    table: pd.DataFrame


def _pseudo_targets(pool: Signals, masks: np.ndarray, attack) -> Scores:
    """Scores with every reference as pseudo-target in turn, without its complementary model.

    References are the rows whose audited mask, without samples that all models saw, is neither one
    of `masks` (rows, audited) nor the complement of one.
    """
    audited = pool.member[:, ~pool.population]
    informative = ~(audited.all(0) & masks.all(0))
    excluded = [same_or_complement(audited[:, informative], mask[informative]) for mask in masks]
    kept = ~np.any(excluded, axis=0)
    if len(np.unique(units(audited[kept]))) < 2:
        raise ValueError(
            f"{kept.sum()} references are left, less than 2 pairs: a pseudo-target would have"
            " none; use the published setting (input dropout 0.01, 30 queries) or an oracle"
            " threshold and say so"
        )
    return run_attack(attack, pool.select(models=np.flatnonzero(kept)))


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
        excluded = signals.member[np.atleast_1d(exclude)][:, ~signals.population]
        scores = _pseudo_targets(signals, excluded, attack)
        values = pd.Series(per_target_metrics(scores, fpr)[:, column], index=scores.pair)
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


def _objective_column(objective: str) -> tuple[tuple, int]:
    """(FPRs to measure, column of the objective in `per_target_metrics`)."""
    try:
        if objective.startswith("tpr@"):
            return (float(objective.removeprefix("tpr@")),), len(names(()))
        return (), names(()).index(objective)
    except ValueError:
        raise ValueError(
            f"objective={objective!r} is not one of auc, advantage, tpr@0.01 (any FPR)"
        ) from None
