"""Leakage of families compared at equal utility."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb.arguments import Array, Level
from mia_nb.checks import checked, one_of
from mia_nb.metrics.frontier_table import (
    KEYS,
    checkpoint_name,
    has_draws,
    measured_columns,
    need_columns,
    of_strongest_attack,
    value_range,
)
from mia_nb.metrics.uncertainty import interval

UTILITY = {"test_acc": 1, "train_loss": -1, "gap": 1}  # 1: grows as a model learns, -1: falls
LEVELS = 5
MATCHED = [  # columns; over_samples, by, metric and baseline follow
    "level",
    "family",
    "value",
    "low",
    "high",
    "difference",
    "difference_low",
    "difference_high",
    "pairs",
    "difference_pairs",
    "attack",
    "queries",
    "last_test_acc",
]


class Curve(NamedTuple):
    """One family along training: utility (checkpoints, pairs), leakage (checkpoints, pairs, 1 +
    n_resamples), attacks and queries.
    """

    utility: np.ndarray
    leakage: np.ndarray
    attack: list[str]
    queries: np.ndarray
    last_test_acc: float


@checked
def matched(
    table: pd.DataFrame,
    *,
    by: str = "test_acc",
    metric: str = "auc",
    baseline: str | None = None,
    levels: Array | None = None,
    attack: str = "max",
    confidence: Level = 0.95,
) -> pd.DataFrame:
    """Leakage of families at equal utility: linear interpolation between the checkpoints of a
    `frontier`, no extrapolation.

    For each pair of complementary targets and each level, walk along the epochs to the first
    checkpoint at or beyond the level and interpolate `metric` between it and the one before; a pair
    that is beyond the level at its first checkpoint, or never reaches it, is left out.

    Parameters:
        table: of `frontier`.
        by: "test_acc", "gap" (both are crossed upwards) or "train_loss" (downwards).
        metric: a measured column of the table.
        baseline: a family that the others are compared with; None: no differences.
        levels: of `by`; None: 5 evenly spaced inside the range that all families' mean curves
            cover.
        attack: a name, or "max": the strongest at each checkpoint by mean `metric` over targets,
            unadjusted.
        confidence: of the ends, in (0, 1).

    Returns:
        A row per level and family, with the columns
            level, family, by, metric, baseline.
            value, low, high: mean over the pairs left and its ends; NaN below two.
            difference, difference_low, difference_high: family minus `baseline`, paired, over the
                pairs that both have; NaN for the baseline itself and without one.
            pairs, difference_pairs: numbers of pairs behind value and difference.
            attack: at the checkpoints next to the level.
            queries: fewest at these checkpoints; NaN where not known.
            last_test_acc: of the last checkpoint, to be reported beside any difference.
            over_samples: whether there were resamples of samples.

        Where families share no range the table is empty and `table.attrs["reason"]` says why. Ends
        are those of `interval`: the resamples of `frontier`, the same for all families, are
        interpolated like the value.

    Raises:
        ValueError: for unknown words, a missing attack or baseline, targets that differ between
            families, and rows with different numbers of resamples.

    Caveat: all pairs share their samples, so the spread over pairs does not show differences
    between families that depend on these samples. Where few pairs reach a level, they are no random
    choice of pairs. The places of the crossings and the choice of the strongest attack are not
    resampled. Equal accuracy does not make models equal otherwise.
    """
    _check_matched(table, by, metric, baseline, attack)
    over_samples = has_draws(table, metric)
    curves = {
        family: _curve(rows, by, metric, over_samples)
        for family, rows in _of_attack(table, metric, attack).groupby("family", sort=False)
    }
    reason = ""
    if levels is None:
        levels, reason = _common_levels(curves, by)
    rows = []
    for level in np.atleast_1d(levels):
        rows += _at_level(float(level), curves, by, metric, baseline, confidence)
    out = pd.DataFrame(rows, columns=MATCHED).assign(
        over_samples=over_samples, by=by, metric=metric, baseline=baseline or ""
    )
    out.attrs = {"reason": reason}
    return out


def _of_attack(table: pd.DataFrame, metric: str, attack: str) -> pd.DataFrame:
    """The rows of one attack at each checkpoint of each family: the one named, or the strongest."""
    if attack == "max":
        return of_strongest_attack(table, metric)
    of_it = table["attack"] == attack
    measured = of_it.groupby([table["family"], table["epoch"]], sort=False).any()
    if not measured.all():
        family, epoch = measured.idxmin()
        raise ValueError(
            f"{family} has no {attack} at epoch {epoch}: run it there, or say attack='max'"
        )
    return table[of_it]


def _common_levels(curves: dict[str, Curve], by: str) -> tuple[Sequence[float], str]:
    """(levels inside the range that all families' mean curves cover; why there are none, or "")."""
    sign = UTILITY[by]
    covered = {}  # from the first checkpoint to the best
    for family, curve in curves.items():
        mean = curve.utility.mean(1)
        best = sign * (sign * mean).max()  # max, or min of a falling utility
        covered[family] = sorted((mean[0], best))
    low = max(start for start, _ in covered.values())
    high = min(end for _, end in covered.values())
    if low < high:
        return np.linspace(low, high, LEVELS + 2)[1:-1], ""
    words = ", ".join(f"{name} {a:.4g} to {b:.4g}" for name, (a, b) in covered.items())
    return [], (
        f"no level of {by} is passed by all families: {words}; save earlier or later checkpoints"
    )


def _check_matched(
    table: pd.DataFrame, by: str, metric: str, baseline: str | None, attack: str
) -> None:
    one_of("by", by, UTILITY)
    need_columns(table, (by, "test_acc", "queries"), "matched")
    one_of("metric", metric, measured_columns(table))
    families = list(table["family"].unique())
    attacks = sorted(table["attack"].unique())
    targets_at = {
        key: sorted(zip(rows["target"], rows["pair"], strict=True))
        for key, rows in table.groupby(list(KEYS), sort=False)
    }
    first = next(iter(targets_at))
    if baseline is not None and baseline not in families:
        raise ValueError(f"baseline={baseline!r} is not one of the families {families}")
    if attack not in ("max", *attacks):
        raise ValueError(f"attack={attack!r} is not in the table: it holds {attacks}, or say max")
    for key, targets in targets_at.items():
        if targets != targets_at[first]:
            raise ValueError(
                f"{checkpoint_name(key)} and {checkpoint_name(first)} have other targets or pairs:"
                " score the same in all"
            )


def _curve(rows: pd.DataFrame, by: str, metric: str, over_samples: bool) -> Curve:
    """One family, from its rows of one attack at each checkpoint."""
    steps = [step for _, step in rows.groupby("epoch")]
    queries = [pd.to_numeric(step["queries"]).min() for step in steps]
    return Curve(
        utility=np.array([_of_pairs(step, by)[:, 0] for step in steps]),
        leakage=np.array([_of_pairs(step, metric, with_draws=over_samples) for step in steps]),
        attack=[step["attack"].iloc[0] for step in steps],
        queries=np.array(queries, float),
        last_test_acc=_of_pairs(steps[-1], "test_acc").mean(),
    )


def _of_pairs(rows: pd.DataFrame, column: str, *, with_draws: bool = False) -> np.ndarray:
    """(pairs, 1): means over the targets of each pair, pairs ascending. With draws (pairs, 1 +
    n_resamples), followed by the same on resamples.
    """
    values = rows[[column]].to_numpy(float)
    if with_draws:
        values = np.hstack([values, np.stack(rows[f"{column}_draws"])])
    pairs, unit = np.unique(rows["pair"], return_inverse=True)
    return np.stack([values[unit == i].mean(0) for i in range(len(pairs))])


def _at_level(
    level: float,
    curves: dict[str, Curve],
    by: str,
    metric: str,
    baseline: str | None,
    confidence: float,
) -> list[dict]:
    """One row per family: its mean over pairs, and the difference from the baseline on the same."""
    at_level = {
        family: _interpolated(curve, level, UTILITY[by]) for family, curve in curves.items()
    }
    rows = []
    for family, (values, used) in at_level.items():
        base = {}
        if baseline not in (None, family):
            base = at_level[baseline][0]
        both = np.array([values[pair] - base[pair] for pair in values if pair in base])
        smallest, largest = value_range(metric)
        mean, low, high = _mean_and_ends(
            np.array([*values.values()]), confidence=confidence, within=(smallest, largest)
        )
        span = largest - smallest
        difference, difference_low, difference_high = _mean_and_ends(
            both, confidence=confidence, within=(-span, span)
        )
        curve = curves[family]
        rows.append(
            {
                "level": level,
                "family": family,
                "value": mean,
                "low": low,
                "high": high,
                "difference": difference,
                "difference_low": difference_low,
                "difference_high": difference_high,
                "pairs": len(values),
                "difference_pairs": len(both),
                "attack": ", ".join(dict.fromkeys(curve.attack[at] for at in used)),
                "queries": curve.queries[used].min() if used else np.nan,
                "last_test_acc": curve.last_test_acc,
            }
        )
    return rows


def _mean_and_ends(
    values: np.ndarray, *, confidence: float = 0.95, within: tuple[float, float] | None = None
) -> tuple[float, float, float]:
    """(mean, low, high) by `interval` of values (pairs, 1 + n_resamples); NaN ends below two pairs,
    all NaN without any. within: as there.
    """
    if len(values) < 2:
        return float(values[0, 0]) if len(values) else np.nan, np.nan, np.nan
    resampled = values[:, 1:].T if values.shape[1] > 1 else None
    low, high = interval(
        values[:, 0], np.arange(len(values)), resampled, confidence=confidence, within=within
    )
    return float(values[:, 0].mean()), float(low), float(high)


def _interpolated(curve: Curve, level: float, sign: int) -> tuple[dict[int, np.ndarray], list[int]]:
    """({pair: leakage at the level and its resamples}, checkpoints used)."""
    values = {}
    checkpoints = set()
    for pair, utility in enumerate(curve.utility.T):
        reached = sign * utility >= sign * level
        if not reached.any():
            continue
        after = int(reached.argmax())  # the first checkpoint at or beyond the level
        if after == 0:
            if utility[0] == level:
                values[pair] = curve.leakage[0, pair]
                checkpoints.add(0)
            continue
        before = after - 1
        share = (level - utility[before]) / (utility[after] - utility[before])
        start = curve.leakage[before, pair]
        end = curve.leakage[after, pair]
        # at a checkpoint itself the one before does not count, even if it is NaN
        values[pair] = end if share == 1 else (1 - share) * start + share * end
        checkpoints |= {before, after}
    return values, sorted(checkpoints)
