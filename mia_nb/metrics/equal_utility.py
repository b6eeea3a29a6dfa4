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
from mia_nb.metrics.pairs import pair_means
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
    """One family along training, by checkpoint."""

    utility: np.ndarray  # (checkpoints, pairs)
    leakage: np.ndarray  # (checkpoints, pairs, 1 + n_resamples): the value, then its resamples
    attack: list[str]
    queries: np.ndarray  # (checkpoints,)
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
    _check_table(table, by, metric)
    _check_names(table, baseline, attack)
    over_samples = has_draws(table, metric)
    curves = {}
    for family, rows in _rows_of_attack(table, metric, attack).groupby("family", sort=False):
        curves[family] = _curve(rows, by, metric, over_samples)
    reason = ""
    if levels is None:
        covered = _covered_ranges(curves, by)
        levels = _common_levels(covered)
        if not len(levels):
            ranges = ", ".join(f"{name} {a:.4g} to {b:.4g}" for name, (a, b) in covered.items())
            reason = (
                f"no level of {by} is passed by all families: {ranges}; save earlier or later"
                " checkpoints"
            )
    rows = []
    for level in np.atleast_1d(levels):
        rows += _rows_at_level(float(level), curves, by, metric, baseline, confidence)
    result = pd.DataFrame(rows, columns=MATCHED).assign(
        over_samples=over_samples, by=by, metric=metric, baseline=baseline or ""
    )
    result.attrs = {"reason": reason}
    return result


def _check_table(table: pd.DataFrame, by: str, metric: str) -> None:
    """ValueError unless the table has these columns, and the same targets and pairs everywhere."""
    one_of("by", by, UTILITY)
    need_columns(table, (by, "test_acc", "queries"), "matched")
    one_of("metric", metric, measured_columns(table))
    targets_at = {}
    for key, rows in table.groupby(list(KEYS), sort=False):
        targets_at[key] = sorted(zip(rows["target"], rows["pair"], strict=True))
    first = next(iter(targets_at))
    for key, targets in targets_at.items():
        if targets != targets_at[first]:
            raise ValueError(
                f"{checkpoint_name(key)} and {checkpoint_name(first)} have other targets or pairs:"
                " score the same in all"
            )


def _check_names(table: pd.DataFrame, baseline: str | None, attack: str) -> None:
    """ValueError for a baseline or an attack that the table does not have."""
    families = list(table["family"].unique())
    if baseline is not None and baseline not in families:
        raise ValueError(f"baseline={baseline!r} is not one of the families {families}")
    attacks = sorted(table["attack"].unique())
    if attack not in ("max", *attacks):
        raise ValueError(f"attack={attack!r} is not in the table: it holds {attacks}, or say max")


def _rows_of_attack(table: pd.DataFrame, metric: str, attack: str) -> pd.DataFrame:
    """The rows of one attack at each checkpoint of each family: the one named, or the strongest."""
    if attack == "max":
        return of_strongest_attack(table, metric)
    has_attack = table["attack"] == attack
    measured = has_attack.groupby([table["family"], table["epoch"]], sort=False).any()
    if not measured.all():
        family, epoch = measured.idxmin()
        raise ValueError(
            f"{family} has no {attack} at epoch {epoch}: run it there, or say attack='max'"
        )
    return table[has_attack]


def _covered_ranges(curves: dict[str, Curve], by: str) -> dict[str, tuple[float, float]]:
    """{family: (smallest, largest) mean utility from the first checkpoint to the best}."""
    covered = {}
    for family, curve in curves.items():
        mean = curve.utility.mean(1)
        best = mean.max() if UTILITY[by] == 1 else mean.min()
        covered[family] = tuple(sorted((mean[0], best)))
    return covered


def _common_levels(covered: dict[str, tuple[float, float]]) -> Sequence[float]:
    """Evenly spaced levels inside the range that all families cover; none where there is none."""
    low = max(smallest for smallest, _ in covered.values())
    high = min(largest for _, largest in covered.values())
    if low < high:
        return np.linspace(low, high, LEVELS + 2)[1:-1]
    return []


def _curve(rows: pd.DataFrame, by: str, metric: str, over_samples: bool) -> Curve:
    """One family, from its rows of one attack at each checkpoint."""
    checkpoints = [checkpoint for _, checkpoint in rows.groupby("epoch")]
    utility = []
    leakage = []
    queries = []
    for checkpoint in checkpoints:
        pair = checkpoint["pair"].to_numpy()
        utility.append(pair_means(checkpoint[by].to_numpy(float), pair))
        values = checkpoint[[metric]].to_numpy(float)
        if over_samples:
            values = np.hstack([values, np.stack(checkpoint[f"{metric}_draws"])])
        leakage.append(pair_means(values, pair))
        queries.append(pd.to_numeric(checkpoint["queries"]).min())
    last_test_acc = checkpoints[-1]["test_acc"].to_numpy(float)
    last_pair = checkpoints[-1]["pair"].to_numpy()
    return Curve(
        utility=np.array(utility),
        leakage=np.array(leakage),
        attack=[checkpoint["attack"].iloc[0] for checkpoint in checkpoints],
        queries=np.array(queries, float),
        last_test_acc=pair_means(last_test_acc, last_pair).mean(),
    )


def _rows_at_level(
    level: float,
    curves: dict[str, Curve],
    by: str,
    metric: str,
    baseline: str | None,
    confidence: float,
) -> list[dict]:
    """One row per family: its mean over pairs, and the difference from the baseline on the same."""
    smallest, largest = value_range(metric)
    largest_difference = largest - smallest
    at_level = {}
    checkpoints = {}
    for family, curve in curves.items():
        at_level[family], checkpoints[family] = _interpolated(curve, level, UTILITY[by])
    rows = []
    for family, leakage in at_level.items():
        other = {}
        if baseline is not None and baseline != family:
            other = at_level[baseline]
        differences = [leakage[pair] - other[pair] for pair in leakage if pair in other]
        value, low, high = _mean_and_ends(list(leakage.values()), confidence, (smallest, largest))
        difference, difference_low, difference_high = _mean_and_ends(
            differences, confidence, (-largest_difference, largest_difference)
        )
        curve = curves[family]
        used = checkpoints[family]
        rows.append(
            {
                "level": level,
                "family": family,
                "value": value,
                "low": low,
                "high": high,
                "difference": difference,
                "difference_low": difference_low,
                "difference_high": difference_high,
                "pairs": len(leakage),
                "difference_pairs": len(differences),
                "attack": ", ".join(dict.fromkeys(curve.attack[at] for at in used)),
                "queries": curve.queries[used].min() if used else np.nan,
                "last_test_acc": curve.last_test_acc,
            }
        )
    return rows


def _mean_and_ends(
    pair_values: list[np.ndarray], confidence: float, within: tuple[float, float]
) -> tuple[float, float, float]:
    """(mean, low, high) over pairs by `interval`; NaN ends below two pairs, all NaN without any.

    Parameters:
        pair_values: for each pair (1 + n_resamples,), the value and its resamples.
        confidence, within: as for `interval`.
    """
    if not pair_values:
        return np.nan, np.nan, np.nan
    table = np.array(pair_values)
    values = table[:, 0]
    mean = float(values.mean())
    if len(values) < 2:
        return mean, np.nan, np.nan
    resampled = None
    if table.shape[1] > 1:
        resampled = table[:, 1:].T
    pair = np.arange(len(values))
    low, high = interval(values, pair, resampled, confidence=confidence, within=within)
    return mean, float(low), float(high)


def _interpolated(curve: Curve, level: float, sign: int) -> tuple[dict[int, np.ndarray], list[int]]:
    """({pair: leakage at the level and its resamples}, checkpoints next to the level).

    sign: 1 for a utility that grows as a model learns, -1 for one that falls.
    """
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
