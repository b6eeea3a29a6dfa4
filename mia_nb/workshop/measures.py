"""Computations of the workshop on stored signals."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache, wraps
from itertools import chain, product
from typing import Any

import numpy as np
import pandas as pd

from mia_nb import attacks, metrics
from mia_nb.metrics.pairs import redraw, units
from mia_nb.metrics.targets import per_target_metrics
from mia_nb.types import Scores, Signals

DRAWS = 100  # redrawn worlds
BUDGETS = (1, 4, 16, 64)
RACERS = ("loss", "rmia", "nig", "lira_per_sample", "lira_shrunk")
# attacks that run on a single reference model
ONE_REFERENCE = ("loss", "rmia", "attack_r", "attack_r_lattice")
PAIRS = 8  # pairs of targets, enough for an interval and few enough to be quick
RATE = 0.05  # a false positive rate that several hundred non-members can resolve
METRICS = {"AUC": "auc", f"found at {RATE:.0%} false alarms": f"tpr@{RATE:g}"}
NOT_RUN = pd.DataFrame(np.nan, list(METRICS.values()), ["value", "low", "high"])


def remembered(function: Callable) -> Callable:
    """A function of hashable arguments that computes each result once and returns copies, which an
    exercise may change.
    """
    computed = lru_cache(32)(function)

    @wraps(function)
    def copied(*args: Any, **options: Any) -> Any:
        return deepcopy(computed(*args, **options))

    return copied


def mean_auc(scores: Scores) -> float:
    """AUC averaged over targets, without samples that have no score."""
    return float(per_target_metrics(scores, ())[:, 0].mean())


def outcome(low: float, high: float) -> str:
    """more, less or cannot say: the side of zero on which the interval of a difference lies.

    Parameters:
        low, high: ends of the interval; NaN where it could not be measured

    Example:
        >>> outcome(-0.02, -0.003)
        'less'
    """
    if low > 0:
        return "more"
    if high < 0:
        return "less"
    return "cannot say"


def pair_ids(signals: Signals) -> np.ndarray:
    """(M,) number of the pair of complementary models that each model belongs to."""
    return units(signals.member[:, ~signals.population])


@remembered
def redrawn(
    signals: Signals, attack: str, *, keep_complement: bool = False
) -> tuple[float, np.ndarray]:
    """AUC of an attack with the real members, and with membership masks drawn anew.

    Each AUC is the mean over the targets of the first two pairs. If membership changed no signal,
    the real mask would be like a redrawn one.

    Parameters:
        signals: signals of complementary pairs of models
        attack: name of an attack
        keep_complement: whether to keep the target's complementary model among its references,
            which makes a signal out of nothing

    Returns:
        (real AUC, (100,) AUCs of redrawn worlds).

    Raises:
        ValueError: as `attacks.score`, and for too few pairs.
    """
    targets = np.flatnonzero(pair_ids(signals) < 2)
    masks = redraw(signals, DRAWS, np.random.default_rng(0))
    aucs = []
    for member in chain([signals.member], masks):
        world = replace(signals, member=member)
        scores = attacks.score(attack, world, targets=targets, keep_complement=keep_complement)
        aucs.append(mean_auc(scores))
    real, *drawn = aucs
    return real, np.array(drawn)


def with_references(
    signals: Signals, attack: str, references: int, *, pairs: int = PAIRS
) -> Scores | None:
    """Scores of both targets of some pairs, each with the given number of reference models, taken
    from the pairs that follow.

    With a single reference, attacks that need references with and without an image cannot run, and
    RMIA weighs all models equally, which is the attack `base`.

    Parameters:
        signals: signals of complementary pairs of models
        attack: name of an attack
        references: number of reference models of each target
        pairs: largest number of attacked pairs

    Returns:
        `Scores`, or None where the attack refuses so few references.

    Raises:
        ValueError: for more references than there are.
    """
    pair = pair_ids(signals)
    models_of_pair = [np.flatnonzero(pair == number) for number in range(pair.max() + 1)]
    # models outside of a target's own pair
    most = len(pair) - len(models_of_pair[0])
    if not 1 <= references <= most:
        raise ValueError(f"{references} references: this pool leaves 1 to {most}")
    if references == 1 and attack not in ONE_REFERENCE:
        return None
    if references == 1 and attack == "rmia":
        attack = "base"

    parts = []
    for number, targets in enumerate(models_of_pair[:pairs]):
        # the pairs that follow, after the last one from the first on
        other_pairs = models_of_pair[number + 1 :] + models_of_pair[:number]
        reference_models = np.concatenate(other_pairs)[:references]
        selected = signals.select(models=np.concatenate([targets, reference_models]))
        try:
            scores = attacks.score(attack, selected, targets=range(len(targets)))
        except ValueError:
            return None
        if np.isnan(scores.value).all():
            return None
        parts.append(replace(scores, targets=targets, pair=np.full(len(targets), number)))

    arrays = {}
    for name in ("value", "member", "accuracy", "loss", "targets", "pair"):
        arrays[name] = np.concatenate([getattr(part, name) for part in parts])
    return Scores(**arrays, info=parts[0].info | {"k": references // 2})


@remembered
def race_table(signals: Signals) -> pd.DataFrame:
    """AUC and TPR of every attack of the race with 1, 4, 16 and 64 reference models; budgets larger
    than the pool are left out.

    Parameters:
        signals: signals of complementary pairs of models; eight pairs are attacked

    Returns:
        A row per attack, budget and metric with columns attack, references, metric, value, low,
        high, targets, n0; NaN where an attack cannot run on so few references. Intervals are those
        of `metrics.intervals`, 95 %, with 200 bootstrap resamples.
    """
    rows = []
    possible = [budget for budget in BUDGETS if budget <= len(signals.member) - 2]
    for budget, name in product(possible, RACERS):
        scores = with_references(signals, name, budget)
        if scores is None:
            intervals = NOT_RUN
            sizes = {"targets": 0, "n0": 0}
        else:
            intervals = metrics.intervals(scores, (RATE,), n_resamples=200)[NOT_RUN.columns]
            sizes = {"targets": len(scores.targets), "n0": int((~scores.member).sum(1).min())}
        for title, metric in METRICS.items():
            row = {"attack": name, "references": budget, "metric": title}
            rows.append(row | dict(intervals.loc[metric]) | sizes)
    return pd.DataFrame(rows)
