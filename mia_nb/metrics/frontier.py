"""Leakage against utility along training, and leakage of families compared at equal utility."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb.metrics.tables import per_target
from mia_nb.metrics.uncertainty import FPR, names, t_interval
from mia_nb.types import Scores

UTILITY = {"test_acc": 1, "train_loss": -1, "gap": 1}  # the way each goes while a model learns
LEVELS = 5
FACTS = ("train_acc", "test_acc", "gap", "train_loss", "test_loss")
KEYS = ("family", "epoch", "attack")
MATCHED = [
    "level", "family", "value", "low", "high", "difference", "difference_low", "difference_high", "pairs",
    "difference_pairs", "attack", "last_test_acc", "by", "metric", "baseline",
]  # fmt: skip


def frontier(runs: dict[str, dict[int, dict[str, Scores]]], fpr=FPR) -> pd.DataFrame:
    """One row per family, checkpoint, attack and target: what the model can do, and what it gives away.

    runs: {family: {epoch: {attack: Scores}}}. Columns: family, epoch, attack, target, pair (from 0), train_acc, test_acc,
    gap = train_acc - test_acc, train_loss, test_loss, auc, advantage (oracle), per x tpr@x and tpr@x_measurable, n1, n0.
    Raises ValueError when there is nothing, or when any two scores differ in their masks or pairs: families are compared
    target by target, each trained on the same samples.
    """
    flat = {(family, epoch, attack): scores for family, epochs in runs.items() for epoch, attacks in epochs.items()
            for attack, scores in attacks.items()}  # fmt: skip
    if not flat:
        raise ValueError("frontier got no scores: pass {family: {epoch: {attack: attacks.score(...)}}}")
    first = next(iter(flat))
    units = {key: np.unique(scores.pair, return_inverse=True)[1] for key, scores in flat.items()}
    for key, scores in flat.items():
        if not (np.array_equal(scores.member, flat[first].member) and np.array_equal(units[key], units[first])):
            raise ValueError(
                f"{_named(key)} and {_named(first)} have different membership: families are matched target by target, train "
                "them on the same masks and score the same targets"
            )
    columns = ["target", *FACTS, *names(fpr), *(f"{name}_measurable" for name in names(fpr)[2:]), "n1", "n0"]
    tables = []
    for key, scores in flat.items():
        table = per_target({key[2]: scores}, fpr)[columns]
        table.insert(1, "pair", units[key])
        tables.append(pd.DataFrame([key] * len(table), columns=KEYS).join(table))
    return pd.concat(tables, ignore_index=True)


def _named(key) -> str:
    return f"{key[0]} at epoch {key[1]} ({key[2]})"


def frontier_means(table: pd.DataFrame) -> pd.DataFrame:
    """One row per family and epoch of a `frontier`: its strongest attack, and every mean with 95 % Student ends over pairs.

    The strongest attack is the one of largest mean AUC over targets, unadjusted. Columns: family, epoch, attack, then each
    measured column with _low, _high (NaN with one pair), tpr@x_measurable, pairs, targets, n1, n0 (smallest over targets).
    Caveat: pairs share their samples, so the ends cover the training of models and not the choice of samples.
    """
    _need(table, ("auc",), "frontier_means")
    flags = [column for column in table if column.endswith("_measurable")]
    strongest = _strongest(table, "auc")
    rows = []
    for (family, epoch), group in table.groupby(["family", "epoch"], sort=False):
        best = strongest[family, epoch]
        group = group[group["attack"] == best]
        record = {"family": family, "epoch": epoch, "attack": best}
        for column in _measured(table):
            values = group.groupby("pair")[column].mean().to_numpy()
            ends = _mean_and_ends(values, *_range(column))
            record |= dict(zip((column, f"{column}_low", f"{column}_high"), ends, strict=True))
        record |= {flag: bool(group[flag].all()) for flag in flags}
        record |= {"pairs": group["pair"].nunique(), "targets": len(group)}
        rows.append(record | {size: int(group[size].min()) for size in ("n1", "n0") if size in group})
    return pd.DataFrame(rows)


def _measured(table: pd.DataFrame) -> list[str]:
    rates = [column for column in table if column.startswith("tpr@") and "_" not in column]
    return [column for column in (*FACTS, "auc", "advantage") if column in table] + rates


def _range(column: str) -> tuple[float, float]:
    """What a column's values can be."""
    return (0, np.inf) if column.endswith("loss") else (-1, 1) if column == "gap" else (0, 1)


def _mean_and_ends(values: np.ndarray, least: float = -np.inf, most: float = np.inf) -> tuple[float, float, float]:
    """(mean, low, high) of values that are one per pair, ends cut to what is possible; NaN ends below two, NaN without any."""
    if not len(values):
        return np.nan, np.nan, np.nan
    low, high = np.clip(t_interval(values, np.arange(len(values))), least, most)
    return float(values.mean()), float(low), float(high)


def _strongest(table: pd.DataFrame, metric: str) -> dict[tuple, str]:
    """{(family, epoch): the attack of largest mean over targets}, the first of equals."""
    means = table.groupby(list(KEYS), sort=False)[metric].mean().reset_index()
    return {key: group.loc[group[metric].idxmax(), "attack"] for key, group in means.groupby(["family", "epoch"], sort=False)}


class Curve(NamedTuple):
    """One family along training: utility and leakage (checkpoints, pairs), and the attack at each checkpoint."""

    utility: np.ndarray
    leakage: np.ndarray
    attack: list[str]
    pairs: np.ndarray
    last_test_acc: float


def matched(
    table: pd.DataFrame, *, by: str = "test_acc", metric: str = "auc", baseline: str | None = None, levels=None, attack="max"
) -> pd.DataFrame:
    """Leakage of families at equal utility: linear interpolation between the checkpoints of a `frontier`, no extrapolation.

    by: "test_acc", "gap" (both are crossed upwards) or "train_loss" (downwards). For each pair of complementary targets and
    each level, walk along the epochs to the first checkpoint at or beyond the level and interpolate `metric` between it and
    the one before; a pair that is beyond the level at its first checkpoint or never comes there is left out. levels: default
    5 evenly spaced inside the range that all families' mean curves cover. attack: a name, or "max": the strongest at each
    checkpoint by mean `metric` over targets, unadjusted.

    Columns: level, family, value, low, high (mean over the pairs left, Student's 95 % ends over them; NaN below two),
    difference, difference_low, difference_high (family minus `baseline`, paired, over the pairs that both have; NaN for the
    baseline itself and without one), pairs, difference_pairs, attack (used next to the level), last_test_acc (of the last
    checkpoint: to be said beside any difference), by, metric, baseline. Where families share no range the table is empty and
    `table.attrs["reason"]` says why.

    Caveats: where few pairs reach a level, those that do are not a random choice; ends cover training, not the choice of
    samples; equal accuracy is not all that can be equal.
    Raises ValueError for unknown words, an attack or baseline that is not there, and targets that differ between families.
    """
    _check_matched(table, by, metric, baseline, attack)
    curves = {family: _curve(rows, by, metric, attack) for family, rows in table.groupby("family", sort=False)}
    sign = UTILITY[by]
    ranges = {family: _covered(curve.utility.mean(1), sign) for family, curve in curves.items()}
    reason = ""
    if levels is None:
        low, high = max(ends[0] for ends in ranges.values()), min(ends[1] for ends in ranges.values())
        levels = np.linspace(low, high, LEVELS + 2)[1:-1] if low < high else []
        if low >= high:
            covered = ", ".join(f"{family} {ends[0]:.4g} to {ends[1]:.4g}" for family, ends in ranges.items())
            reason = f"no level of {by} is passed by all families: {covered}; save earlier or later checkpoints"
    rows = [row for level in np.atleast_1d(levels) for row in _at_level(float(level), curves, sign, metric, baseline)]
    out = pd.DataFrame(rows, columns=MATCHED[:-3]).assign(by=by, metric=metric, baseline=baseline or "")
    out.attrs = {"reason": reason}
    return out


def _need(table: pd.DataFrame, columns: tuple, who: str):
    wanted = (*KEYS, "target", "pair", *columns)
    if lacks := [name for name in wanted if name not in table.columns]:
        raise ValueError(f"{who} got columns {list(table.columns)}; {', '.join(lacks)} missing: pass metrics.frontier(runs)")
    if not len(table):
        raise ValueError(f"{who} got a table without rows: nothing was measured")


def _check_matched(table, by, metric, baseline, attack):
    if by not in UTILITY:
        raise ValueError(f"by={by!r} is not one of {', '.join(UTILITY)}")
    _need(table, (by, "test_acc"), "matched")
    if metric not in _measured(table):
        raise ValueError(f"metric={metric!r} is not one of {', '.join(_measured(table))}")
    families = list(table["family"].unique())
    if baseline is not None and baseline not in families:
        raise ValueError(f"baseline={baseline!r} is not one of the families {families}")
    if attack != "max" and attack not in set(table["attack"]):
        raise ValueError(f"attack={attack!r} is not in the table: it holds {sorted(table['attack'].unique())}, or say max")
    wanted = None
    for key, rows in table.groupby(list(KEYS), sort=False):
        found = sorted(zip(rows["target"], rows["pair"], strict=True))
        wanted = wanted or (key, found)
        if found != wanted[1]:
            raise ValueError(f"{_named(key)} and {_named(wanted[0])} have other targets or pairs: score the same in all")


def _curve(rows: pd.DataFrame, by: str, metric: str, attack: str) -> Curve:
    family, epochs = rows["family"].iloc[0], np.sort(rows["epoch"].unique())
    chosen = _strongest(rows, metric) if attack == "max" else {(family, epoch): attack for epoch in epochs}
    utility, leakage = [], []
    for epoch in epochs:
        mine = rows[(rows["epoch"] == epoch) & (rows["attack"] == chosen[family, epoch])]
        if mine.empty:
            raise ValueError(f"{family} has no {attack} at epoch {epoch}: run it there, or say attack='max'")
        means = mine.groupby("pair")[list({by, metric, "test_acc"})].mean()
        utility.append(means[by])
        leakage.append(means[metric])
    attacks, pairs = [chosen[family, epoch] for epoch in epochs], means.index.to_numpy()
    return Curve(np.array(utility), np.array(leakage), attacks, pairs, means["test_acc"].mean())


def _covered(utility: np.ndarray, sign: int) -> tuple[float, float]:
    """(low, high) of the levels that a curve passes on its way from the first checkpoint to its best."""
    start, best = utility[0], (sign * utility).max() * sign
    return (start, best) if sign > 0 else (best, start)


def _crossing(utility: np.ndarray, level: float, sign: int) -> tuple[int, float] | None:
    """(checkpoint before, share of the way to the next) at which the level is first met, or None."""
    beyond = np.flatnonzero(sign * utility >= sign * level)
    if not len(beyond):
        return None
    after = int(beyond[0])
    if after == 0:
        return (0, 0.0) if utility[0] == level else None
    return after - 1, (level - utility[after - 1]) / (utility[after] - utility[after - 1])


def _at_level(level: float, curves: dict[str, Curve], sign: int, metric: str, baseline: str | None) -> list[dict]:
    """One row per family: interpolated over its pairs, and against the baseline's same pairs."""
    found = {family: _interpolated(curve, level, sign) for family, curve in curves.items()}
    rows = []
    for family, (values, used) in found.items():
        record = {"level": level, "family": family}
        record |= dict(
            zip(("value", "low", "high"), _mean_and_ends(np.array([*values.values()]), *_range(metric)), strict=True)
        )
        base = found[baseline][0] if baseline not in (None, family) else {}
        both = np.array([values[pair] - base[pair] for pair in values if pair in base])
        record |= dict(zip(("difference", "difference_low", "difference_high"), _mean_and_ends(both), strict=True))
        record |= {"pairs": len(values), "difference_pairs": len(both)}
        rows.append(record | {"attack": ", ".join(used), "last_test_acc": curves[family].last_test_acc})
    return rows


def _interpolated(curve: Curve, level: float, sign: int) -> tuple[dict[int, float], list[str]]:
    """({pair: leakage at the level}, attacks of the checkpoints used)."""
    values, checkpoints = {}, set()
    for column, pair in enumerate(curve.pairs):
        place = _crossing(curve.utility[:, column], level, sign)
        if place is None:
            continue
        before, share = place
        ends = curve.leakage[before : before + 2, column]
        values[int(pair)] = float(ends[0] if share == 0 else (1 - share) * ends[0] + share * ends[1])
        checkpoints |= {before} if share == 0 else {before, before + 1}
    return values, list(dict.fromkeys(curve.attack[at] for at in sorted(checkpoints)))
