"""Leakage against utility along training, and leakage of families compared at equal utility."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb.arguments import Array, Count, Level, Rates
from mia_nb.checks import checked, one_of, whole
from mia_nb.metrics.bootstrap import RESAMPLES, bootstrap
from mia_nb.metrics.curve import rates
from mia_nb.metrics.pairs import numbered, same_masks
from mia_nb.metrics.targets import FPR, names, per_target
from mia_nb.metrics.uncertainty import interval, metric_interval
from mia_nb.types import Scores

UTILITY = {"test_acc": 1, "train_loss": -1, "gap": 1}  # the way each goes while a model learns
LEVELS = 5
FACTS = ("train_acc", "test_acc", "gap", "train_loss", "test_loss")
KEYS = ("family", "epoch", "attack")
MATCHED = [  # before over_samples, by, metric and baseline, which are of the whole table
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


@checked
def frontier(
    runs: dict[str, dict[int, dict[str, Scores]]],
    fpr: Rates = FPR,
    *,
    n_resamples: Count = RESAMPLES,
    seed: Count = 0,
) -> pd.DataFrame:
    """What models can do and what they leak, along training: a row per family, checkpoint, attack
    and target.

    Parameters:
        runs: {family: {epoch: {attack: Scores}}}, the same masks everywhere.
        fpr: false positive rates in [0, 1] at which the TPR is read.
        n_resamples: resamples of the samples' bootstrap; 0: no such columns, and intervals made
            from the table cover the training of models only.
        seed: of the bootstrap.

    Returns:
        columns family, epoch, attack, target, pair (from 0), train_acc, test_acc, gap = train_acc -
        test_acc, train_loss, test_loss, auc, advantage (oracle), per x tpr@x and tpr@x_measurable,
        n1, n0, queries (outputs per sample, where the scores say so), and for each metric
        {metric}_draws: an array (n_resamples,) of it on samples drawn with replacement, the same
        samples in every row, so that differences between families are paired.

    Raises:
        ValueError: when there is nothing, for n_resamples below 0, and when any two scores differ
            in their masks or pairs: families are compared target by target, each trained on the
            same samples.
    """
    fpr = rates(fpr)
    flat = {}
    for family, epochs in runs.items():
        for epoch, attacks in epochs.items():
            whole("epoch", epoch, 0)
            for attack, scores in attacks.items():
                flat[family, epoch, attack] = scores
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
        if n_resamples:
            drawn = bootstrap(scores, fpr, n_resamples=n_resamples, seed=seed)
            table = table.assign(
                **{f"{name}_draws": list(values.T) for name, values in drawn.items()}
            )
        tables.append(pd.DataFrame([key] * len(table), columns=KEYS).join(table))
    return pd.concat(tables, ignore_index=True)


def _named(key: tuple[str, int, str]) -> str:
    family, epoch, attack = key
    return f"{family} at epoch {epoch} ({attack})"


@checked
def frontier_means(table: pd.DataFrame) -> pd.DataFrame:
    """One row per family and epoch of a `frontier`: its strongest attack, and every mean with 95 %
    ends.

    The strongest attack is the one of largest mean AUC over targets, unadjusted. Columns: family,
    epoch, attack, then each measured column with _low, _high (NaN with one pair), tpr@x_measurable,
    pairs, targets, over_samples, n1, n0 (smallest over targets). over_samples: whether the
    intervals of auc, advantage and tpr@x cover the choice of samples
    (`frontier(n_resamples=...)`); they are then those of `summary`. All others cover the training
    of models alone.
    """
    _need(table, ("auc",), "frontier_means")
    flags = [column for column in table if column.endswith("_measurable")]
    drawn = _with_draws(table, "auc")
    rows = []
    best = _of_attack(table, "auc", "max")
    for (family, epoch), group in best.groupby(["family", "epoch"], sort=False):
        record = {"family": family, "epoch": epoch, "attack": group["attack"].iloc[0]}
        for column in _measured(table):
            ends = _of_targets(column, group, drawn)
            record |= _with_ends(column, ends)
        rows.append(
            {
                **record,
                **{flag: bool(group[flag].all()) for flag in flags},
                "pairs": group["pair"].nunique(),
                "targets": len(group),
                "over_samples": drawn,
                **{size: int(group[size].min()) for size in ("n1", "n0") if size in group},
            }
        )
    return pd.DataFrame(rows)


def _with_ends(name: str, values: Sequence[float]) -> dict[str, float]:
    """{name, name_low, name_high} from (value, low, high)."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), map(float, values), strict=True))


def _measured(table: pd.DataFrame) -> list[str]:
    rates = [column for column in table if column.startswith("tpr@") and "_" not in column]
    return [column for column in (*FACTS, "auc", "advantage") if column in table] + rates


def _range(column: str) -> tuple[float, float]:
    """What a column's values can be."""
    if column.endswith("loss"):
        return 0, np.inf
    return (-1, 1) if column == "gap" else (0, 1)


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
    """(pairs, 1 + n_resamples): means over the targets of each pair, pairs ascending; then their
    values on resampled samples.
    """
    values = rows[[column]].to_numpy(float)
    if drawn:
        values = np.hstack([values, np.stack(rows[f"{column}_draws"])])
    pairs, unit = np.unique(rows["pair"], return_inverse=True)
    return np.stack([values[unit == i].mean(0) for i in range(len(pairs))])


def _of_targets(column: str, rows: pd.DataFrame, drawn: bool) -> tuple[float, float, float]:
    """(mean, low, high) of a column, of a metric as in `summary`; NaN ends with one pair, which
    says nothing of training.
    """
    if column in FACTS:
        mean, *ends = _mean_and_ends(_of_pairs(rows, column, False))
        return mean, *np.clip(ends, *_range(column))
    if rows["pair"].nunique() < 2:
        return float(rows[column].mean()), np.nan, np.nan
    resampled = np.stack(rows[f"{column}_draws"], 1) if drawn else None
    return float(rows[column].mean()), *metric_interval(column, rows, resampled)


def _mean_and_ends(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float, float]:
    """(mean, low, high) of (pairs, 1 + n_resamples), see `interval`; NaN ends below two pairs, NaN
    of none.
    """
    if len(values) < 2:
        return float(values[0, 0]) if len(values) else np.nan, np.nan, np.nan
    resampled = values[:, 1:].T if values.shape[1] > 1 else None
    low, high = interval(values[:, 0], np.arange(len(values)), resampled, confidence=confidence)
    return float(values[:, 0].mean()), float(low), float(high)


def _of_attack(table: pd.DataFrame, metric: str, attack: str) -> pd.DataFrame:
    """The rows of one attack at each checkpoint of each family: the one of this name, or for "max"
    that of the largest mean over targets, the first of equals.
    """
    table = table.reset_index(drop=True)
    checkpoint = [table["family"], table["epoch"]]
    if attack == "max":
        means = table.groupby(list(KEYS), sort=False)[metric].transform("mean")
        strongest = means.groupby(checkpoint, sort=False).transform("idxmax")
        return table[table["attack"].to_numpy() == table.loc[strongest, "attack"].to_numpy()]
    measured = (table["attack"] == attack).groupby(checkpoint, sort=False).any()
    if not measured.all():
        family, epoch = measured.idxmin()
        raise ValueError(
            f"{family} has no {attack} at epoch {epoch}: run it there, or say attack='max'"
        )
    return table[table["attack"] == attack]


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
    that is beyond the level at its first checkpoint or never comes there is left out.

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
        columns level, family, value, low, high (mean over the pairs left and its ends; NaN below
        two), difference, difference_low, difference_high (family minus `baseline`, paired, over the
        pairs that both have; NaN for the baseline itself and without one), pairs, difference_pairs,
        attack (used next to the level), queries (fewest of the checkpoints next to the level; NaN
        where not known), last_test_acc (of the last checkpoint: to be stated beside any
        difference), over_samples, by, metric, baseline. Where families share no range the table is
        empty and `table.attrs["reason"]` says why. Ends are those of `interval`: the draws of
        `frontier`, the same samples for all families, are interpolated like the value;
        over_samples=False says that there were none.

    Raises:
        ValueError: for unknown words, an attack or baseline that is not there, targets that differ
            between families, and rows with different numbers of resamples.

    Caveat: all pairs share their samples: what one family gives away of some sample in every
    training and another does not, the spread over pairs cannot show. Where few pairs reach a level,
    those that do are not a random choice; places of the crossings and the choice of the strongest
    attack are not drawn anew; equal accuracy is not all that can be equal.
    """
    _check_matched(table, by, metric, baseline, attack)
    drawn = _with_draws(table, metric)
    curves = {
        family: _curve(rows, by, metric, drawn)
        for family, rows in _of_attack(table, metric, attack).groupby("family", sort=False)
    }
    reason = ""
    if levels is None:
        levels, reason = _common_levels(curves, by)
    rows = []
    for level in np.atleast_1d(levels):
        rows += _at_level(float(level), curves, by, metric, baseline, confidence)
    out = pd.DataFrame(rows, columns=MATCHED).assign(
        over_samples=drawn, by=by, metric=metric, baseline=baseline or ""
    )
    out.attrs = {"reason": reason}
    return out


def _common_levels(curves: dict[str, Curve], by: str) -> tuple[Sequence[float], str]:
    """(levels inside the range that all families' mean curves cover, why there are none)."""
    sign = UTILITY[by]
    covered = {}  # from the first checkpoint to the best
    for family, curve in curves.items():
        mean = curve.utility.mean(1)
        covered[family] = sorted((mean[0], sign * (sign * mean).max()))
    low = max(start for start, _ in covered.values())
    high = min(end for _, end in covered.values())
    if low < high:
        return np.linspace(low, high, LEVELS + 2)[1:-1], ""
    words = ", ".join(f"{name} {a:.4g} to {b:.4g}" for name, (a, b) in covered.items())
    return [], (
        f"no level of {by} is passed by all families: {words}; save earlier or later checkpoints"
    )


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


def _need(table: pd.DataFrame, columns: tuple, who: str) -> None:
    columns = (*KEYS, "target", "pair", *columns)
    lacks = ", ".join(name for name in columns if name not in table.columns)
    if lacks:
        raise ValueError(
            f"{who} got columns {list(table.columns)}; {lacks} missing: pass metrics.frontier(runs)"
        )
    if not len(table):
        raise ValueError(f"{who} got a table without rows: nothing was measured")


def _check_matched(
    table: pd.DataFrame, by: str, metric: str, baseline: str | None, attack: str | None
):
    one_of("by", by, UTILITY)
    _need(table, (by, "test_acc"), "matched")
    one_of("metric", metric, _measured(table))
    families = list(table["family"].unique())
    attacks = sorted(table["attack"].unique())
    held = {
        key: sorted(zip(rows["target"], rows["pair"], strict=True))
        for key, rows in table.groupby(list(KEYS), sort=False)
    }
    first = next(iter(held))
    if baseline is not None and baseline not in families:
        raise ValueError(f"baseline={baseline!r} is not one of the families {families}")
    if attack not in ("max", *attacks):
        raise ValueError(f"attack={attack!r} is not in the table: it holds {attacks}, or say max")
    for key, targets in held.items():
        if targets != held[first]:
            raise ValueError(
                f"{_named(key)} and {_named(first)} have other targets or pairs: score the same in"
                " all"
            )


def _curve(rows: pd.DataFrame, by: str, metric: str, drawn: bool) -> Curve:
    steps = [step for _, step in rows.groupby("epoch")]
    queries = [
        pd.to_numeric(step["queries"]).min() if "queries" in step else np.nan for step in steps
    ]
    return Curve(
        utility=np.array([_of_pairs(step, by, False)[:, 0] for step in steps]),
        leakage=np.array([_of_pairs(step, metric, drawn) for step in steps]),
        attack=[step["attack"].iloc[0] for step in steps],
        queries=np.array(queries, float),
        last_test_acc=_of_pairs(steps[-1], "test_acc", False).mean(),
    )


def _at_level(
    level: float,
    curves: dict[str, Curve],
    by: str,
    metric: str,
    baseline: str | None,
    confidence: float,
) -> list[dict]:
    """One row per family: interpolated over its pairs, and against the baseline's same pairs."""
    at_level = {
        family: _interpolated(curve, level, UTILITY[by]) for family, curve in curves.items()
    }
    rows = []
    for family, (values, used) in at_level.items():
        base = {}
        if baseline not in (None, family):
            base = at_level[baseline][0]
        both = np.array([values[pair] - base[pair] for pair in values if pair in base])
        mean, *ends = _mean_and_ends(np.array([*values.values()]), confidence)
        low, high = np.clip(ends, *_range(metric))
        difference, difference_low, difference_high = _mean_and_ends(both, confidence)
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


def _interpolated(curve: Curve, level: float, sign: int) -> tuple[dict[int, np.ndarray], list[int]]:
    """({pair: leakage at the level and its resamples}, checkpoints used)."""
    values = {}
    checkpoints = set()
    for pair, utility in enumerate(curve.utility.T):
        reached = sign * utility >= sign * level
        after = int(reached.argmax())  # the first checkpoint at or beyond the level
        if not reached.any() or (after == 0 and utility[0] != level):
            continue
        before = max(after - 1, 0)
        share = (level - utility[before]) / (utility[after] - utility[before]) if after else 1.0
        start = curve.leakage[before, pair]
        end = curve.leakage[after, pair]
        values[pair] = end if share == 1 else (1 - share) * start + share * end
        checkpoints |= {before, after}
    return values, sorted(checkpoints)
