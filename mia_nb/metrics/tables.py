"""The long table of results, a row per attack and metric, and how to select its rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mia_nb.arguments import Array, Count, Fraction, Rates, Several
from mia_nb.attacks import in_words
from mia_nb.checks import checked, quantity, shown
from mia_nb.metrics.accuracy import accuracies
from mia_nb.metrics.bootstrap import RESAMPLES, bootstrap
from mia_nb.metrics.curve import (
    PRIORS,
    auc_null_error,
    clopper_pearson_of_groups,
    ppv,
    rates,
)
from mia_nb.metrics.null import SIGN_ERRORS, SelfTest, error_of_mean
from mia_nb.metrics.pairs import refuse_unequal_samples, unit_word
from mia_nb.metrics.targets import FPR, per_target, scores_by_attack
from mia_nb.metrics.uncertainty import groups_per_side, intervals_of_rows
from mia_nb.types import Scores

SUMMARY = ("attack", "metric", "fpr", "value", "low", "high", "measurable", "n0", "flags")
FEW = 5  # with fewer pairs a row has a flag that its intervals are wide for want of pairs


@checked
def summary(
    scores: Scores | dict[str, Scores],
    fpr: Rates = FPR,
    *,
    n_resamples: Several = RESAMPLES,
    seed: Count = 0,
    self_test: SelfTest | None = None,
    groups: Array | None = None,
) -> pd.DataFrame:
    """The long table of results: one row per attack and metric, averaged over targets.

    Parameters:
        scores: of one attack, or {name: scores}; the name "max" is reserved.
        fpr: false positive rates in [0, 1] at which the TPR is read.
        n_resamples: resamples of the samples' bootstrap.
        seed: of the bootstrap.
        self_test: result of `self_test`; a failed one marks every row, a passed one those of the
            attacks that it ran.
        groups: (N,) labels of audited samples that are drawn together, such as a patient's images.

    Returns:
        columns attack, metric, fpr, prior, value, low, high, chance, smallest, largest, measurable,
        then columns that are the same in all rows of an attack: targets, pairs, n1, n0 (members and
        non-members of the target that has fewest), references (models per side), queries, tie_mass,
        fpr_floor, flags and, with a self-test, self_test.

        metric: auc; tpr, a row per fpr; advantage and balanced_accuracy, both at the target's own
        best threshold; ppv, a row per prior, at the smallest measurable fpr (low: with the upper
        end of the realised FPR's interval); train_acc, test_acc, gap, train_loss, test_loss.
        low, high: 95 % intervals, those of `intervals` and of `accuracies`; NaN where there is
        none. chance: the value of guessing. smallest, largest: over targets. measurable: False for
        a TPR with fewer than 10 allowed false positives, whose value is given nevertheless.

        The rows of attack "max" have each metric's largest value, lower end and upper end over
        attacks, unadjusted for the choice, and all else from the attack with the highest AUC.

    Raises:
        ValueError: without scores, for the name max, a target without a score, and attacks on
            different samples.

    Example:
        >>> import mia_nb as mia
        >>> signals = mia.load_example("cifar10/resnet14")
        >>> table = mia.summary({"loss": mia.score("loss", signals)}, n_resamples=20)
        >>> list(table.columns[:7])
        ['attack', 'metric', 'fpr', 'prior', 'value', 'low', 'high']
        >>> bool(mia.metrics.by_attack(table, "auc").loc["loss", "low"] > 0.5)
        True
    """
    fpr = rates(fpr)
    scores = scores_by_attack(scores)
    refuse_unequal_samples(scores)
    if not scores or "max" in scores:
        raise ValueError(
            f"summary got {list(scores)}: pass {{name: attacks.score(...)}}; the name max is taken"
            " by its last rows"
        )
    tables = []
    for name, scores_of_attack in scores.items():
        rows = _attack_rows(scores_of_attack, fpr, n_resamples, seed, groups)
        rows.insert(0, "attack", name)
        tables.append(rows)
    table = pd.concat([*tables, _max_rows(tables)], ignore_index=True)
    return table if self_test is None else _stamped(table, self_test)


def _stamped(table: pd.DataFrame, self_test: SelfTest) -> pd.DataFrame:
    """The table with a column that says how the self-test went for each attack."""
    if not self_test.passed:
        flags = "design check failed; " + table["flags"]
        return table.assign(self_test="failed", flags=flags.str.removesuffix("; "))
    ran = ~self_test.table["verdict"].str.startswith("refused")
    tested = set(self_test.table.loc[ran, "attack"])
    auc = by_attack(table, "auc")["value"].drop("max")
    if auc.idxmax() in tested:
        tested.add("max")  # its rows are that attack's, except for the maxima
    outcome = np.where(table["attack"].isin(tested), "passed", "not tested")
    return table.assign(self_test=outcome)


@checked
def by_attack(table: pd.DataFrame, metric: str, fpr: Fraction | None = None) -> pd.DataFrame:
    """The rows of one metric of a `summary`, by attack.

    Parameters:
        table: of `summary`, or some of its rows.
        metric: auc, tpr, advantage, test_acc or another metric that the table has.
        fpr: of a TPR.

    Returns:
        the table's other columns, indexed by attack, in its order.

    Raises:
        ValueError: for a metric, or a rate, that the table does not have.
    """
    _need_summary(table)
    rows = rows_of(table, metric, fpr)
    if rows["attack"].duplicated().any():
        raise ValueError(
            f"the table has several rows of {metric} for an attack: of a TPR say at which fpr, and"
            " take one family at a time"
        )
    return rows.set_index("attack")


def rows_of(table: pd.DataFrame, metric: str, fpr: float | None = None) -> pd.DataFrame:
    """The rows of one metric of a long table, as `by_attack`, with all columns."""
    rows = table[table["metric"] == metric]
    if fpr is not None:
        rows = rows[np.isclose(rows["fpr"].astype(float), fpr, rtol=1e-9, atol=0)]
    if rows.empty:
        at = "" if fpr is None else f" at FPR {fpr:g}"
        available = ", ".join(dict.fromkeys(map(_metric_text, table["metric"], table["fpr"])))
        raise ValueError(f"the table has no {metric}{at}; it has {available}")
    return rows


def rates_of(table: pd.DataFrame) -> list[float]:
    """The false positive rates at which a `summary` has a TPR, in its order."""
    return list(dict.fromkeys(table.loc[table["metric"] == "tpr", "fpr"].astype(float)))


def _metric_text(metric: str, fpr: float) -> str:
    """A metric for an error message, with its rate where it has one."""
    return f"{metric} at FPR {fpr:g}" if metric == "tpr" else metric


def _need_summary(table: pd.DataFrame) -> None:
    """ValueError for a table that `summary` did not make."""
    missing = [name for name in SUMMARY if name not in table]
    if missing:
        raise ValueError(
            f"a table without {', '.join(missing)} is none of metrics.summary; its columns are"
            f" {shown(list(table.columns))}"
        )


def _attack_rows(
    scores: Scores, fpr: Sequence[float], n_resamples: int, seed: int, groups: np.ndarray | None
) -> pd.DataFrame:
    """The rows of one attack, in the order of `summary`, without its name."""
    targets = per_target(scores, fpr)
    drawn = bootstrap(scores, fpr, n_resamples=n_resamples, seed=seed, groups=groups)
    group_counts = None
    if groups is not None:
        group_counts = groups_per_side(scores, groups)
    ends = intervals_of_rows(targets, drawn, group_counts=group_counts)[["low", "high"]]
    accuracy_ends = accuracies(scores)[["low", "high"]]
    advantage_low, advantage_high = ends.loc["advantage"]
    null = targets["advantage_null"].mean()

    rows = [_mean_row("auc", targets["auc"], *ends.loc["auc"], chance=0.5)]
    for x in fpr:
        name = f"tpr@{x:g}"
        measurable = targets[f"{name}_measurable"].all()
        rows.append(
            _mean_row("tpr", targets[name], *ends.loc[name], fpr=x, chance=x, measurable=measurable)
        )
    rows.append(
        _mean_row("advantage", targets["advantage"], advantage_low, advantage_high, chance=null)
    )
    rows.append(
        _mean_row(
            "balanced_accuracy",
            targets["balanced_accuracy"],
            (1 + advantage_low) / 2,
            (1 + advantage_high) / 2,
            chance=(1 + null) / 2,
        )
    )
    rows += _ppv_rows(targets, fpr, group_counts)
    rows.append(_mean_row("train_acc", targets["train_acc"], *accuracy_ends.loc["train"]))
    rows.append(_mean_row("test_acc", targets["test_acc"], *accuracy_ends.loc["test"]))
    rows.append(_mean_row("gap", targets["gap"], *accuracy_ends.loc["gap"]))
    rows.append(_mean_row("train_loss", targets["train_loss"]))
    rows.append(_mean_row("test_loss", targets["test_loss"]))
    return pd.DataFrame(rows).assign(
        targets=len(targets),
        pairs=targets["pair"].nunique(),
        n1=targets["n1"].min(),
        n0=targets["n0"].min(),
        references=_number_or_nan(scores.info.get("k")),
        queries=_number_or_nan(scores.info.get("queries")),
        tie_mass=targets["tie_mass"].mean(),
        fpr_floor=targets["fpr_floor"].mean(),
        flags=_flags(scores, targets, fpr),
    )


def _number_or_nan(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _row(
    metric: str,
    value: float,
    low: float = np.nan,
    high: float = np.nan,
    *,
    fpr: float = np.nan,
    prior: float = np.nan,
    chance: float = np.nan,
    smallest: float = np.nan,
    largest: float = np.nan,
    measurable: bool = True,
) -> dict:
    """A row of one attack, in the order of the table's columns."""
    return {
        "metric": metric,
        "fpr": fpr,
        "prior": prior,
        "value": float(value),
        "low": float(low),
        "high": float(high),
        "chance": float(chance),
        "smallest": float(smallest),
        "largest": float(largest),
        "measurable": bool(measurable),
    }


def _mean_row(
    metric: str, values: pd.Series, low: float = np.nan, high: float = np.nan, **facts: float
) -> dict:
    """A row: the mean of a metric over targets."""
    return _row(
        metric,
        values.mean(),
        low,
        high,
        smallest=values.min(),
        largest=values.max(),
        **facts,
    )


def _ppv_rows(
    targets: pd.DataFrame, fpr: Sequence[float], group_counts: np.ndarray | None
) -> list[dict]:
    """PPV at each prior, at the smallest measurable FPR (the largest FPR when none is).

    group_counts: of `groups_per_side`, or None.
    """
    if not fpr:
        return []
    measurable = [x for x in fpr if targets[f"tpr@{x:g}_measurable"].all()]
    x = min(measurable, default=max(fpr))
    tpr = targets[f"tpr@{x:g}"].mean()
    realised_fpr = targets[f"tpr@{x:g}_realised"].mean()
    n0 = targets["n0"].to_numpy()
    groups = n0
    if group_counts is not None:
        groups = group_counts[:, 1]
    _, upper_ends = clopper_pearson_of_groups(targets[f"tpr@{x:g}_fp"].to_numpy(), n0, groups)
    upper_fpr = upper_ends.mean()
    rows = []
    for prior in PRIORS:
        row = _row(
            "ppv",
            ppv(tpr, realised_fpr, prior),
            low=ppv(tpr, upper_fpr, prior),
            fpr=x,
            prior=prior,
            chance=prior,
            measurable=bool(measurable),
        )
        rows.append(row)
    return rows


def _flags(scores: Scores, rows: pd.DataFrame, fpr: Sequence[float]) -> str:
    """Everything that a reader must know before quoting the attack's rows.

    rows: of `per_target`, of this attack.
    """
    reported = scores.info.get("flags") or []
    flags = [reported] if isinstance(reported, str) else list(map(str, reported))
    pairs = rows["pair"].nunique()
    targets = quantity(len(rows), "target")
    who = "one target" if len(rows) == 1 else targets
    if pairs < 2:
        flags.append(f"{who}: training randomness not covered")
    elif pairs < FEW:
        unit = f"{unit_word(scores)}s"
        flags.append(f"few {unit} ({pairs}): wide intervals, Student's t over {unit}")
    error = error_of_mean(auc_null_error(rows["n1"].mean(), rows["n0"].mean()), len(rows))
    mean_of_pairs = rows.groupby("pair")["auc"].mean().mean()
    if mean_of_pairs < 0.5 - SIGN_ERRORS * error:
        flags.append(f"inverted or leaking design: AUC below 0.5 by more than {SIGN_ERRORS:g} s.e.")
    for x in fpr:
        tied = int(((rows["fpr_floor"] > x) & rows[f"tpr@{x:g}_measurable"]).sum())
        if tied:
            flags.append(f"tpr@{x:g} is 0 by ties in {tied} of {targets}")
    return "; ".join(flags)


def _max_rows(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """The unadjusted maximum of each metric; all else from the attack with the highest AUC.

    tables: the rows of each attack, all in the same order.
    """
    areas = [rows_of(table, "auc")["value"].iloc[0] for table in tables]
    rows = tables[int(np.argmax(areas))].copy()
    names = [table["attack"].iloc[0] for table in tables]
    best = np.argmax([table["value"] for table in tables], axis=0)
    ends = ["value", "low", "high"]
    largest = pd.concat([table[ends] for table in tables]).groupby(level=0).max()
    picked = []
    for metric in ("auc", "advantage", "balanced_accuracy", "tpr"):
        chosen = rows.index[rows["metric"] == metric]
        rows.loc[chosen, ends] = largest.loc[chosen]
        if metric == "balanced_accuracy":  # it is (1 + advantage) / 2
            continue
        for row in chosen:
            name = metric
            if metric == "tpr":
                name = f"tpr@{rows.loc[row, 'fpr']:g}"
            picked.append(f"{name} {in_words(names[best[row]])}")
    return rows.assign(attack="max", flags=f"unadjusted: {', '.join(picked)}")
