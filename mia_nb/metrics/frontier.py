"""Leakage against utility along training, and leakage of families compared at equal utility."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb.checks import checked
from mia_nb.metrics.curve import rates
from mia_nb.metrics.pairs import numbered, same_masks
from mia_nb.metrics.tables import per_target
from mia_nb.metrics.uncertainty import FPR, RESAMPLES, bootstrap, interval, metric_interval, names
from mia_nb.types import Scores

UTILITY = {"test_acc": 1, "train_loss": -1, "gap": 1}  # the way each goes while a model learns
LEVELS = 5
FACTS = ("train_acc", "test_acc", "gap", "train_loss", "test_loss")
KEYS = ("family", "epoch", "attack")
MATCHED = [
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
    "over_samples",
    "by",
    "metric",
    "baseline",
]


@checked
def frontier(
    runs: dict[str, dict[int, dict[str, Scores]]], fpr=FPR, *, draws: int = RESAMPLES, seed: int = 0
) -> pd.DataFrame:
    """One row per family, checkpoint, attack and target: what the model can do, and what it gives
    away.

    runs: {family: {epoch: {attack: Scores}}}. Columns: family, epoch, attack, target, pair (from
    0), train_acc, test_acc, gap = train_acc - test_acc, train_loss, test_loss, auc, advantage
    (oracle), per x tpr@x and tpr@x_measurable, n1, n0, queries (outputs per sample, where the
    scores say so), and for each metric {metric}_draws: an array (draws,) of it on samples drawn
    with replacement (`bootstrap`), the same samples in every row, so that differences between
    families are paired. draws=0: no such columns, and intervals made from the table cover the
    training of models only. Raises ValueError when there is nothing, for draws below 0, and when
    any two scores differ in their masks or pairs: families are compared target by target, each
    trained on the same samples.
    """
    fpr = rates(fpr)
    flat = {
        (family, epoch, attack): scores
        for family, epochs in runs.items()
        for epoch, attacks in epochs.items()
        for attack, scores in attacks.items()
    }
    if not flat:
        raise ValueError(
            "frontier got no scores: pass {family: {epoch: {attack: attacks.score(...)}}}"
        )
    first = next(iter(flat))
    for key, scores in flat.items():
        if not same_masks(scores, flat[first]):
            raise ValueError(
                f"{_named(key)} and {_named(first)} have different membership: families are matched"
                " target by target, train them on the same masks and score the same targets"
            )
    of_rates = [
        f"{name}_{fact}" for name in names(fpr)[2:] for fact in ("measurable", "tp", "fewer")
    ]
    columns = ["target", *FACTS, *names(fpr), *of_rates, "n1", "n0", "queries"]
    tables = []
    for key, scores in flat.items():
        table = per_target({key[2]: scores}, fpr)[columns]
        table.insert(1, "pair", numbered(scores.pair))
        if draws:
            drawn = bootstrap(scores, fpr, draws=draws, seed=seed)
            table = table.assign(
                **{f"{name}_draws": list(values.T) for name, values in drawn.items()}
            )
        tables.append(pd.DataFrame([key] * len(table), columns=KEYS).join(table))
    return pd.concat(tables, ignore_index=True)


def _named(key) -> str:
    return f"{key[0]} at epoch {key[1]} ({key[2]})"


@checked
def frontier_means(table: pd.DataFrame) -> pd.DataFrame:
    """One row per family and epoch of a `frontier`: its strongest attack, and every mean with 95 %
    ends.

    The strongest attack is the one of largest mean AUC over targets, unadjusted. Columns: family,
    epoch, attack, then each measured column with _low, _high (NaN with one pair), tpr@x_measurable,
    pairs, targets, n1, n0 (smallest over targets), over_samples: whether the intervals of auc,
    advantage and tpr@x cover the choice of samples (`frontier(draws=...)`); they are then those of
    `summary`. All others cover the training of models alone.
    """
    _need(table, ("auc",), "frontier_means")
    flags = [column for column in table if column.endswith("_measurable")]
    strongest, drawn = _strongest(table, "auc"), _with_draws(table, "auc")
    rows = []
    for (family, epoch), group in table.groupby(["family", "epoch"], sort=False):
        best = strongest[family, epoch]
        group = group[group["attack"] == best]
        record = {"family": family, "epoch": epoch, "attack": best}
        for column in _measured(table):
            ends = (
                _of_targets(column, group, drawn)
                if column not in FACTS
                else _mean_and_ends(_of_pairs(group, column, False))
            )
            ends = ends[0], *np.clip(ends[1:], *_range(column))
            record |= dict(zip((column, f"{column}_low", f"{column}_high"), ends, strict=True))
        record |= {flag: bool(group[flag].all()) for flag in flags}
        record |= {"pairs": group["pair"].nunique(), "targets": len(group), "over_samples": drawn}
        rows.append(
            record | {size: int(group[size].min()) for size in ("n1", "n0") if size in group}
        )
    return pd.DataFrame(rows)


def _measured(table: pd.DataFrame) -> list[str]:
    rates = [column for column in table if column.startswith("tpr@") and "_" not in column]
    return [column for column in (*FACTS, "auc", "advantage") if column in table] + rates


def _range(column: str) -> tuple[float, float]:
    """What a column's values can be."""
    return (0, np.inf) if column.endswith("loss") else (-1, 1) if column == "gap" else (0, 1)


def _with_draws(table: pd.DataFrame, metric: str) -> bool:
    """Whether all rows hold draws of a metric over samples; ValueError where they hold different
    numbers of them.
    """
    if f"{metric}_draws" not in table:
        return False
    sizes = {
        len(drawn) if isinstance(drawn, np.ndarray) else 0 for drawn in table[f"{metric}_draws"]
    }
    if len(sizes) > 1:
        raise ValueError(
            f"rows hold {sorted(sizes)} draws over samples: make the frontier of all families in"
            " one call"
        )
    return 0 not in sizes


def _of_pairs(rows: pd.DataFrame, column: str, drawn: bool) -> np.ndarray:
    """(pairs, 1 + draws): means over the targets of each pair, pairs ascending; then their draws
    over samples.
    """
    values = rows[[column]].to_numpy(float)
    if drawn:
        values = np.hstack([values, np.stack(rows[f"{column}_draws"])])
    pairs, unit = np.unique(rows["pair"], return_inverse=True)
    return np.stack([values[unit == i].mean(0) for i in range(len(pairs))])


def _of_targets(column: str, rows: pd.DataFrame, drawn: bool) -> tuple[float, float, float]:
    """(mean, low, high) of a metric, as in `summary`; NaN ends with one pair, which says nothing of
    training.
    """
    if rows["pair"].nunique() < 2:
        return float(rows[column].mean()), np.nan, np.nan
    draws = np.stack(rows[f"{column}_draws"], 1) if drawn else None
    return float(rows[column].mean()), *metric_interval(column, rows, draws)


def _mean_and_ends(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float, float]:
    """(mean, low, high) of (pairs, 1 + draws), see `interval`; NaN ends below two pairs, NaN of
    none.
    """
    if len(values) < 2:
        return float(values[0, 0]) if len(values) else np.nan, np.nan, np.nan
    draws = values[:, 1:].T if values.shape[1] > 1 else None
    low, high = interval(values[:, 0], np.arange(len(values)), draws, confidence=confidence)
    return float(values[:, 0].mean()), float(low), float(high)


def _strongest(table: pd.DataFrame, metric: str) -> dict[tuple, str]:
    """{(family, epoch): the attack of largest mean over targets}, the first of equals."""
    means = table.groupby(list(KEYS), sort=False)[metric].mean().reset_index()
    return {
        key: group.loc[group[metric].idxmax(), "attack"]
        for key, group in means.groupby(["family", "epoch"], sort=False)
    }


class Curve(NamedTuple):
    """One family along training: utility (checkpoints, pairs), leakage (checkpoints, pairs, 1 +
    draws), attacks and queries.
    """

    utility: np.ndarray
    leakage: np.ndarray
    attack: list[str]
    queries: np.ndarray
    pairs: np.ndarray
    last_test_acc: float


@checked
def matched(
    table: pd.DataFrame,
    *,
    by: str = "test_acc",
    metric: str = "auc",
    baseline: str | None = None,
    levels=None,
    attack: str = "max",
    confidence: float = 0.95,
) -> pd.DataFrame:
    """Leakage of families at equal utility: linear interpolation between the checkpoints of a
    `frontier`, no extrapolation.

    by: "test_acc", "gap" (both are crossed upwards) or "train_loss" (downwards). For each pair of
    complementary targets and each level, walk along the epochs to the first checkpoint at or beyond
    the level and interpolate `metric` between it and the one before; a pair that is beyond the
    level at its first checkpoint or never comes there is left out. levels: default 5 evenly spaced
    inside the range that all families' mean curves cover. attack: a name, or "max": the strongest
    at each checkpoint by mean `metric` over targets, unadjusted.

    Columns: level, family, value, low, high (mean over the pairs left and its ends; NaN below two),
    difference, difference_low, difference_high (family minus `baseline`, paired, over the pairs
    that both have; NaN for the baseline itself and without one), pairs, difference_pairs, attack
    (used next to the level), queries (fewest of the checkpoints next to the level; NaN where not
    known), last_test_acc (of the last checkpoint: to be said beside any difference), over_samples,
    by, metric, baseline. Where families share no range the table is empty and
    `table.attrs["reason"]` says why.

    Ends, at `confidence`, are those of `metrics.interval`: the draws of `frontier`, the same
    samples for all families, are interpolated like the value. All pairs share their samples: what
    one family gives away of some sample in every training and another does not, the spread over
    pairs cannot show. over_samples=False says that there were no draws.

    Caveats: where few pairs reach a level, those that do are not a random choice; places of the
    crossings and the choice of the strongest attack are not drawn anew; equal accuracy is not all
    that can be equal. Raises ValueError for unknown words, an attack or baseline that is not there,
    targets that differ between families, and rows with different numbers of draws.
    """
    _check_matched(table, by, metric, baseline, attack)
    drawn = _with_draws(table, metric)
    curves = {
        family: _curve(rows, by, metric, attack, drawn)
        for family, rows in table.groupby("family", sort=False)
    }
    sign = UTILITY[by]
    ranges = {family: _covered(curve.utility.mean(1), sign) for family, curve in curves.items()}
    reason = ""
    if levels is None:
        low, high = (
            max(ends[0] for ends in ranges.values()),
            min(ends[1] for ends in ranges.values()),
        )
        levels = np.linspace(low, high, LEVELS + 2)[1:-1] if low < high else []
        if low >= high:
            covered = ", ".join(
                f"{family} {ends[0]:.4g} to {ends[1]:.4g}" for family, ends in ranges.items()
            )
            reason = (
                f"no level of {by} is passed by all families: {covered}; save earlier or later"
                " checkpoints"
            )
    rows = [
        row
        for level in np.atleast_1d(levels)
        for row in _at_level(float(level), curves, by, metric, baseline, confidence)
    ]
    out = pd.DataFrame(rows, columns=MATCHED[:-4]).assign(
        over_samples=drawn, by=by, metric=metric, baseline=baseline or ""
    )
    out.attrs = {"reason": reason}
    return out


def highest_level(table: pd.DataFrame, a: str, b: str, by: str) -> float | None:
    """The highest default level of `matched` that two pairs of both families reach, None without
    one.
    """
    both = matched(
        table[table["family"].isin([a, b])].drop(columns="auc_draws", errors="ignore"),
        by=by,
        baseline=b,
    )
    reached = both.loc[(both["family"] == a) & (both["difference_pairs"] >= 2), "level"]
    return float(reached.max()) if len(reached) else None


def _need(table: pd.DataFrame, columns: tuple, who: str):
    wanted = (*KEYS, "target", "pair", *columns)
    if lacks := [name for name in wanted if name not in table.columns]:
        raise ValueError(
            f"{who} got columns {list(table.columns)}; {', '.join(lacks)} missing: pass"
            " metrics.frontier(runs)"
        )
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
        raise ValueError(
            f"attack={attack!r} is not in the table: it holds {sorted(table['attack'].unique())},"
            " or say max"
        )
    wanted = None
    for key, rows in table.groupby(list(KEYS), sort=False):
        found = sorted(zip(rows["target"], rows["pair"], strict=True))
        wanted = wanted or (key, found)
        if found != wanted[1]:
            raise ValueError(
                f"{_named(key)} and {_named(wanted[0])} have other targets or pairs: score the same"
                " in all"
            )


def _curve(rows: pd.DataFrame, by: str, metric: str, attack: str, drawn: bool) -> Curve:
    family, epochs = rows["family"].iloc[0], np.sort(rows["epoch"].unique())
    chosen = (
        _strongest(rows, metric)
        if attack == "max"
        else {(family, epoch): attack for epoch in epochs}
    )
    utility, leakage, queries = [], [], []
    for epoch in epochs:
        mine = rows[(rows["epoch"] == epoch) & (rows["attack"] == chosen[family, epoch])]
        if mine.empty:
            raise ValueError(
                f"{family} has no {attack} at epoch {epoch}: run it there, or say attack='max'"
            )
        utility.append(_of_pairs(mine, by, False)[:, 0])
        leakage.append(_of_pairs(mine, metric, drawn))
        queries.append(pd.to_numeric(mine["queries"]).min() if "queries" in mine else np.nan)
    attacks, pairs = [chosen[family, epoch] for epoch in epochs], np.unique(mine["pair"])
    last = _of_pairs(mine, "test_acc", False).mean()
    return Curve(
        np.array(utility), np.array(leakage), attacks, np.array(queries, float), pairs, last
    )


def _covered(utility: np.ndarray, sign: int) -> tuple[float, float]:
    """(low, high) of the levels that a curve passes on its way from the first checkpoint to its
    best.
    """
    start, best = utility[0], (sign * utility).max() * sign
    return (start, best) if sign > 0 else (best, start)


def _crossing(utility: np.ndarray, level: float, sign: int) -> tuple[int, float] | None:
    """(checkpoint before, share of the way to the next) at which the level is first met, or
    None.
    """
    beyond = np.flatnonzero(sign * utility >= sign * level)
    if not len(beyond):
        return None
    after = int(beyond[0])
    if after == 0:
        return (0, 0.0) if utility[0] == level else None
    return after - 1, (level - utility[after - 1]) / (utility[after] - utility[after - 1])


def _at_level(
    level: float, curves: dict[str, Curve], by: str, metric: str, baseline, confidence: float
) -> list[dict]:
    """One row per family: interpolated over its pairs, and against the baseline's same pairs."""
    found = {family: _interpolated(curve, level, UTILITY[by]) for family, curve in curves.items()}
    rows = []
    for family, (values, used) in found.items():
        base = found[baseline][0] if baseline not in (None, family) else {}
        both = np.array([values[pair] - base[pair] for pair in values if pair in base])
        record = {"level": level, "family": family}
        own = _mean_and_ends(np.array([*values.values()]), confidence)
        record |= dict(
            zip(("value", "low", "high"), (own[0], *np.clip(own[1:], *_range(metric))), strict=True)
        )
        apart = _mean_and_ends(both, confidence)
        record |= dict(zip(("difference", "difference_low", "difference_high"), apart, strict=True))
        record |= {"pairs": len(values), "difference_pairs": len(both)}
        record |= {"attack": ", ".join(dict.fromkeys(curves[family].attack[at] for at in used))}
        record |= {"queries": curves[family].queries[used].min() if used else np.nan}
        rows.append(record | {"last_test_acc": curves[family].last_test_acc})
    return rows


def _interpolated(curve: Curve, level: float, sign: int) -> tuple[dict[int, np.ndarray], list[int]]:
    """({pair: leakage at the level and its draws}, checkpoints used)."""
    values, checkpoints = {}, set()
    for column, pair in enumerate(curve.pairs):
        place = _crossing(curve.utility[:, column], level, sign)
        if place is None:
            continue
        before, share = place
        ends = curve.leakage[before : before + 2, column]
        values[int(pair)] = ends[0] if share == 0 else (1 - share) * ends[0] + share * ends[1]
        checkpoints |= {before} if share == 0 else {before, before + 1}
    return values, sorted(checkpoints)
