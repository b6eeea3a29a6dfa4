"""Leakage against utility along training: a row per checkpoint, attack and target, and means."""

from __future__ import annotations

import numpy as np
import pandas as pd

from mia_nb.arguments import Count, Rates
from mia_nb.checks import checked, whole
from mia_nb.metrics.bootstrap import RESAMPLES, bootstrap
from mia_nb.metrics.curve import rates
from mia_nb.metrics.pairs import numbered, same_masks
from mia_nb.metrics.targets import FPR, metric_names, per_target
from mia_nb.metrics.uncertainty import interval, metric_interval, with_ends
from mia_nb.types import Scores

FACTS = ("train_acc", "test_acc", "gap", "train_loss", "test_loss")
KEYS = ("family", "epoch", "attack")


@checked
def frontier(
    runs: dict[str, dict[int, dict[str, Scores]]],
    fpr: Rates = FPR,
    *,
    n_resamples: Count = RESAMPLES,
    seed: Count = 0,
) -> pd.DataFrame:
    """Accuracy and leakage along training: a row per family, checkpoint, attack and target.

    Parameters:
        runs: {family: {epoch: {attack: Scores}}}, the same masks everywhere.
        fpr: false positive rates in [0, 1] at which the TPR is read.
        n_resamples: resamples of the samples' bootstrap, 2 or more; with 0 there are no such
            columns, and intervals made from the table cover only the training of models.
        seed: of the bootstrap.

    Returns:
        columns family, epoch, attack, target, pair (from 0), train_acc, test_acc, gap = train_acc -
        test_acc, train_loss, test_loss, auc, advantage (oracle), per x tpr@x and tpr@x_measurable,
        n1, n0, queries (outputs per sample, where known), and for each metric {metric}_draws: an
        array (n_resamples,) of its values on samples drawn with replacement, the same samples in
        every row, so that differences between families are paired.

    Raises:
        ValueError: for no runs, for n_resamples of 1 or below 0, and when any two scores differ in
            their masks or pairs: families are compared target by target, each trained on the same
            samples.
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
                f"{checkpoint_name(key)} and {checkpoint_name(first)} have different membership:"
                " families are matched target by target, train them on the same masks and score the"
                " same targets"
            )
    details_of_rates = []
    for x in fpr:
        details_of_rates += [f"tpr@{x:g}_measurable", f"tpr@{x:g}_tp", f"tpr@{x:g}_fewer"]
    columns = ["target", *FACTS, *metric_names(fpr), *details_of_rates, "n1", "n0", "queries"]
    tables = []
    for (family, epoch, attack), scores in flat.items():
        table = per_target({attack: scores}, fpr)[columns]
        table.insert(1, "pair", numbered(scores.pair))
        if n_resamples:
            drawn = bootstrap(scores, fpr, n_resamples=n_resamples, seed=seed)
            for name, values in drawn.items():
                table[f"{name}_draws"] = list(values.T)
        table.insert(0, "family", family)
        table.insert(1, "epoch", epoch)
        table.insert(2, "attack", attack)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def checkpoint_name(key: tuple[str, int, str]) -> str:
    """A family, epoch and attack, for error messages."""
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
    (`frontier(n_resamples=...)`); they are then those of `summary`. All others cover only the
    training of models.
    """
    need_columns(table, ("auc", "n1", "n0"), "frontier_means")
    flags = [column for column in table if column.endswith("_measurable")]
    over_samples = has_draws(table, "auc")
    rows = []
    best = of_strongest_attack(table, "auc")
    for (family, epoch), group in best.groupby(["family", "epoch"], sort=False):
        row = {"family": family, "epoch": epoch, "attack": group["attack"].iloc[0]}
        for column in measured_columns(table):
            row |= with_ends(column, *_mean_of_column(group, column, over_samples))
        for flag in flags:
            row[flag] = bool(group[flag].all())
        row["pairs"] = group["pair"].nunique()
        row["targets"] = len(group)
        row["over_samples"] = over_samples
        row["n1"] = int(group["n1"].min())
        row["n0"] = int(group["n0"].min())
        rows.append(row)
    return pd.DataFrame(rows)


def measured_columns(table: pd.DataFrame) -> list[str]:
    """The columns of a `frontier` that are averaged."""
    rates = [column for column in table if column.startswith("tpr@") and "_" not in column]
    return [column for column in (*FACTS, "auc", "advantage") if column in table] + rates


def value_range(column: str) -> tuple[float, float]:
    """The smallest and the largest value that a column can have."""
    if column.endswith("loss"):
        return 0, np.inf
    if column == "gap":
        return -1, 1
    return 0, 1


def has_draws(table: pd.DataFrame, metric: str) -> bool:
    """Whether all rows hold draws of a metric over samples; ValueError where they hold different
    numbers of them.
    """
    if f"{metric}_draws" not in table:
        return False
    sizes = set()
    for drawn in table[f"{metric}_draws"]:
        # NaN in rows of a frontier without draws that was joined to one with them
        sizes.add(len(drawn) if isinstance(drawn, np.ndarray) else 0)
    if len(sizes) > 1:
        raise ValueError(
            f"rows hold {sorted(sizes)} draws over samples: make the frontier of all families in"
            " one call"
        )
    return sizes != {0}


def _mean_of_column(
    rows: pd.DataFrame, column: str, over_samples: bool
) -> tuple[float, float, float]:
    """(mean, low, high) of a column, for metrics as in `summary`; NaN ends with one pair, which
    says nothing about training.
    """
    # a fact that is not known of one target is not known of their mean
    mean = rows[column].mean(skipna=column not in FACTS)
    pair = rows["pair"]
    if pair.nunique() < 2:
        return mean, np.nan, np.nan
    if column in FACTS:
        return mean, *interval(rows[column], pair, within=value_range(column))
    resampled = np.stack(rows[f"{column}_draws"], 1) if over_samples else None
    return mean, *metric_interval(column, rows, resampled)


def of_strongest_attack(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """At each checkpoint of each family, the rows of the attack with the largest mean of a metric
    over targets; of equals, the first.
    """
    table = table.reset_index(drop=True)
    # each row's mean over the targets of its attack, and the first row of the largest one
    means = table.groupby(list(KEYS), sort=False)[metric].transform("mean")
    by_checkpoint = means.groupby([table["family"], table["epoch"]], sort=False)
    row_of_largest = by_checkpoint.transform("idxmax")
    strongest = table.loc[row_of_largest, "attack"]
    return table[table["attack"].to_numpy() == strongest.to_numpy()]


def need_columns(table: pd.DataFrame, columns: tuple[str, ...], who: str) -> None:
    """ValueError, naming the function `who`, unless a table is a `frontier` with these columns."""
    needed = (*KEYS, "target", "pair", *columns)
    missing = [name for name in needed if name not in table.columns]
    if missing:
        raise ValueError(
            f"{who} got columns {list(table.columns)}; {', '.join(missing)} missing: pass"
            " metrics.frontier(runs)"
        )
    if not len(table):
        raise ValueError(f"{who} got a table without rows: nothing was measured")
