"""Result tables: per attack and target, the long table of results, and a view for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from mia_nb.arguments import Array, Count, Flag, Fraction, Level, Rates
from mia_nb.attacks import NAMES, in_words
from mia_nb.checks import checked, shown
from mia_nb.metrics.curve import (
    PRIORS,
    area,
    auc_null_error,
    clopper_pearson,
    counts,
    null_advantage,
    ppv,
    rates,
    tie_mass,
    tpr_at_counts,
)
from mia_nb.metrics.null import SelfTest
from mia_nb.metrics.pairs import need_membership, refuse_unequal_samples
from mia_nb.metrics.uncertainty import (
    FPR,
    RESAMPLES,
    bootstrap,
    interval,
    metric_interval,
    scored,
)
from mia_nb.types import Scores, Signals

SUMMARY = ("attack", "metric", "fpr", "value", "low", "high", "measurable", "n0", "flags")
FEW = 5  # pairs below which a row says that its intervals are wide for want of pairs


@checked
def per_target(scores: Scores | dict[str, Scores], fpr: Rates = FPR) -> pd.DataFrame:
    """One row per attack and target, exact intervals only: the table behind `summary`.

    Parameters:
        scores: of one attack, or {name: scores}.
        fpr: false positive rates in [0, 1] at which the TPR is read.

    Returns:
        columns attack, target, pair, k, queries, auc, advantage, balanced_accuracy (both at the
        target's own best threshold), advantage_null (what chance alone gives), per x tpr@x with
        _low, _high, _tp, _fewer (the TPR with one false positive fewer), _fp, _realised,
        _measurable, then tie_mass, fpr_floor, n1, n0, train_acc, test_acc, gap, train_loss,
        test_loss, unscored (share of NaN scores, left out of all metrics).

    Raises:
        ValueError: where a target has no score at all.
    """
    fpr = rates(fpr)
    rows = [
        _target_row(name, scores_of_attack, row, fpr)
        for name, scores_of_attack in _named(scores).items()
        for row in range(len(scores_of_attack.targets))
    ]
    return pd.DataFrame(rows)


def _named(scores: Scores | dict[str, Scores]) -> dict[str, Scores]:
    """{attack: scores}, each with a target and every target with a score."""
    if isinstance(scores, Scores):
        scores = {scores.info.get("attack", "attack"): scores}
    for name, scores_of_attack in scores.items():
        value = scores_of_attack.value
        if not len(value):
            raise ValueError(f"{name} has no target: score at least one")
        if np.isnan(value).all(1).any():
            raise ValueError(
                f"{name} scored no sample of a target: it gave NaN for each, as attacks do"
                " that lack references on one side; leave it out, mend it, or train more models"
            )
    return scores


def _target_row(name: str, scores: Scores, row: int, fpr: Sequence[float]) -> dict:
    score, member = scored(scores, row)
    tp, fp, _ = counts(score, member)
    n1 = int(tp[-1])
    n0 = int(fp[-1])
    gap = float((tp / n1 - fp / n0).max())
    (train_acc, test_acc), (train_loss, test_loss) = scores.accuracy[row], scores.loss[row]
    at_rates = [item for x in fpr for item in _at_rate(tp, fp, x).items()]
    return {
        "attack": name,
        "target": int(scores.targets[row]),
        "pair": int(scores.pair[row]),
        "k": scores.info.get("k"),
        "queries": scores.info.get("queries"),
        "auc": area(tp, fp),
        "advantage": gap,
        "balanced_accuracy": (1 + gap) / 2,
        "advantage_null": null_advantage(n1, n0),
        **dict(at_rates),
        "tie_mass": tie_mass(score),
        "fpr_floor": fp[1] / n0,
        "n1": n1,
        "n0": n0,
        "train_acc": train_acc,
        "test_acc": test_acc,
        "gap": train_acc - test_acc,
        "train_loss": train_loss,
        "test_loss": test_loss,
        "unscored": 1 - len(score) / scores.value.shape[1],
    }


def _at_rate(tp: np.ndarray, fp: np.ndarray, x: float) -> dict:
    """The columns of one FPR."""
    at = tpr_at_counts(tp, fp, x)
    fewer = np.searchsorted(fp, np.floor(x * at.n0 + 1e-9) - 1, side="right") - 1
    values = {
        "": at.tpr,
        "_low": at.low,
        "_high": at.high,
        "_tp": at.tp,
        "_fewer": tp[fewer] / at.n1 if fewer >= 0 else 0.0,
        "_fp": at.fp,
        "_realised": at.fpr_realised,
        "_measurable": at.measurable,
    }
    return {f"tpr@{x:g}{end}": value for end, value in values.items()}


@checked
def intervals(
    scores: Scores,
    fpr: Rates = FPR,
    *,
    n_resamples: Count = RESAMPLES,
    seed: Count = 0,
    sampled: dict | None = None,
    confidence: Level = 0.95,
    groups: Array | None = None,
) -> pd.DataFrame:
    """The interval of every metric of one attack, mean over targets.

    Parameters:
        scores: of one attack.
        fpr, n_resamples, seed: as in `metrics.summary`.
        sampled: resamples of `metrics.uncertainty.bootstrap`, if already made.
        confidence: in (0, 1).
        groups: (N,) labels of audited samples that are drawn as a whole, as a patient's images;
            None: each sample by itself.

    Returns:
        index metric (auc, advantage, tpr@x), columns value, low, high, by the rule of
        `metrics.uncertainty`.

    Caveat: targets share their references, which nothing here resamples.
    """
    sampled = sampled or bootstrap(scores, fpr, n_resamples=n_resamples, seed=seed, groups=groups)
    return _intervals(per_target(scores, fpr), sampled, confidence, groups)


def _intervals(
    rows: pd.DataFrame,
    sampled: dict[str, np.ndarray],
    confidence: float = 0.95,
    groups: np.ndarray | None = None,
) -> pd.DataFrame:
    """`intervals` from the rows of `per_target` and resamples."""
    free = None if groups is None else len(np.unique(groups)) - 2
    ends = {
        name: [
            rows[name].mean(),
            *metric_interval(name, rows, drawn, confidence=confidence, free=free),
        ]
        for name, drawn in sampled.items()
    }
    return pd.DataFrame.from_dict(
        ends, orient="index", columns=["value", "low", "high"]
    ).rename_axis("metric")


@checked
def summary(
    scores: Scores | dict[str, Scores],
    fpr: Rates = FPR,
    *,
    n_resamples: Count = RESAMPLES,
    seed: Count = 0,
    self_test: SelfTest | None = None,
    groups: Array | None = None,
) -> pd.DataFrame:
    """The long table of results: one row per attack and metric, averaged over targets.

    Parameters:
        scores: of one attack, or {name: scores}; "max" is no name.
        fpr: false positive rates in [0, 1] at which the TPR is read.
        n_resamples: resamples of the samples' bootstrap.
        seed: of the bootstrap.
        self_test: that of `self_test`; a failed one stamps every row, a passed one those of the
            attacks that it ran.
        groups: (N,) labels of audited samples that are drawn as a whole, as a patient's images.

    Returns:
        columns attack, metric, fpr, prior, value, low, high, chance, smallest, largest, measurable,
        then what holds for all rows of an attack: targets, pairs, n1, n0 (members and non-members
        of the target that has fewest), references (models per side), queries, tie_mass, fpr_floor,
        flags and, with a self-test, self_test.

        metric: auc; tpr, a row per fpr; advantage and balanced_accuracy, both at the target's own
        best threshold; ppv, a row per prior, at the smallest measurable fpr (low: with the upper
        end of the realised FPR's interval); train_acc, test_acc, gap, train_loss, test_loss.
        low, high: 95 % intervals, those of `intervals` and of `accuracies`; NaN where there is
        none. chance: what guessing gives. smallest, largest: over targets. measurable: False for
        a TPR with fewer than 10 allowed false positives, which keeps its number.

        The rows of attack "max" take each metric's largest value, lower and upper end over attacks,
        unadjusted for the choice, and all else from the attack of the highest AUC.

    Raises:
        ValueError: for no scores, the name max, a target without a score, and attacks on different
            samples.

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
    scores = _named(scores)
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
    if self_test is not None:
        ran = ~self_test.table["verdict"].str.startswith("refused")
        tested = set(self_test.table.loc[ran, "attack"])
        auc = by_attack(pd.concat(tables), "auc")["value"]
        if auc.idxmax() in tested:
            tested.add("max")  # whose rows are that attack's but for the maxima
        table["self_test"] = np.where(table["attack"].isin(tested), "passed", "not tested")
        if not self_test.passed:
            table["self_test"] = "failed"
            flags = "design check failed; " + table["flags"]
            table["flags"] = flags.str.removesuffix("; ")
    return table


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
    return f"{metric} at FPR {fpr:g}" if metric == "tpr" else metric


def _need_summary(table: pd.DataFrame) -> None:
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
    ends = _intervals(targets, drawn, groups=groups)
    null = targets["advantage_null"].mean()
    rows = [_mean("auc", targets["auc"], *ends.loc["auc", ["low", "high"]], chance=0.5)]
    for x in fpr:
        name = f"tpr@{x:g}"
        low, high = ends.loc[name, ["low", "high"]]
        row = _mean("tpr", targets[name], low, high, fpr=x, chance=x)
        row["measurable"] = bool(targets[f"{name}_measurable"].all())
        rows.append(row)
    low, high = ends.loc["advantage", ["low", "high"]]
    rows.append(_mean("advantage", targets["advantage"], low, high, chance=null))
    rows.append(
        _mean(
            "balanced_accuracy",
            targets["balanced_accuracy"],
            (1 + low) / 2,
            (1 + high) / 2,
            chance=(1 + null) / 2,
        )
    )
    rows += _ppv_rows(targets, fpr)
    right = accuracies(scores)
    for metric, side in (("train_acc", "train"), ("test_acc", "test"), ("gap", "gap")):
        rows.append(_mean(metric, targets[metric], *right.loc[side, ["low", "high"]]))
    for metric in ("train_loss", "test_loss"):
        rows.append(_mean(metric, targets[metric]))
    return pd.DataFrame(rows).assign(
        targets=len(targets),
        pairs=targets["pair"].nunique(),
        n1=targets["n1"].min(),
        n0=targets["n0"].min(),
        references=_number(scores.info.get("k")),
        queries=_number(scores.info.get("queries")),
        tie_mass=targets["tie_mass"].mean(),
        fpr_floor=targets["fpr_floor"].mean(),
        flags=_flags(scores, targets, fpr),
    )


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _mean(
    metric: str,
    values: pd.Series,
    low: float = np.nan,
    high: float = np.nan,
    *,
    fpr: float = np.nan,
    chance: float = np.nan,
) -> dict:
    """A row: the mean of a metric over targets."""
    return {
        "metric": metric,
        "fpr": fpr,
        "prior": np.nan,
        "value": float(values.mean()),
        "low": float(low),
        "high": float(high),
        "chance": float(chance),
        "smallest": float(values.min()),
        "largest": float(values.max()),
        "measurable": True,
    }


def _ppv_rows(targets: pd.DataFrame, fpr: Sequence[float]) -> list[dict]:
    """PPV at each prior, at the smallest measurable FPR (the largest FPR when none is)."""
    if not fpr:
        return []
    measurable = [x for x in fpr if targets[f"tpr@{x:g}_measurable"].all()]
    x = min(measurable, default=max(fpr))
    upper = clopper_pearson(targets[f"tpr@{x:g}_fp"], targets["n0"])[1].mean()
    tpr = targets[f"tpr@{x:g}"].mean()
    realised = targets[f"tpr@{x:g}_realised"].mean()
    rows = []
    for prior in PRIORS:
        row = _mean("ppv", pd.Series(ppv(tpr, realised, prior)), fpr=x, chance=prior)
        rows.append(
            row
            | {
                "prior": prior,
                "low": float(ppv(tpr, upper, prior)),
                "smallest": np.nan,
                "largest": np.nan,
                "measurable": bool(measurable),
            }
        )
    return rows


def _flags(scores: Scores, rows: pd.DataFrame, fpr: Sequence[float]) -> str:
    """Everything a reader must know before quoting the row."""
    reported = scores.info.get("flags") or []
    pairs = rows["pair"].nunique()
    who = "one target" if len(rows) == 1 else f"{len(rows)} targets"
    # as in the self-test
    error = auc_null_error(rows["n1"].mean(), rows["n0"].mean()) / np.sqrt(max(len(rows) / 2, 1))
    flags = [reported] if isinstance(reported, str) else list(map(str, reported))
    if pairs < 2:
        flags.append(f"{who}: training randomness not covered")
    elif pairs < FEW:
        flags.append(f"few pairs ({pairs}): wide intervals, Student's t over pairs")
    if rows.groupby("pair")["auc"].mean().mean() < 0.5 - 3 * error:
        flags.append("inverted or leaking design: AUC below 0.5 by more than 3 s.e.")
    for x in fpr:
        tied = int(((rows["fpr_floor"] > x) & rows[f"tpr@{x:g}_measurable"]).sum())
        if tied:
            flags.append(f"tpr@{x:g} is 0 by ties in {tied} of {len(rows)} targets")
    return "; ".join(flags)


def _max_rows(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """The unadjusted maximum per metric; all else from the attack with the highest AUC.

    tables: the rows of each attack, all in the same order.
    """
    auc = [table.iloc[0]["value"] for table in tables]
    rows = tables[int(np.argmax(auc))].copy()
    picked = []
    for metric in ("auc", "advantage", "balanced_accuracy", "tpr"):
        for place in rows.index[rows["metric"] == metric]:
            same = pd.DataFrame([table.loc[place] for table in tables])
            best = same["attack"].iloc[int(np.argmax(same["value"].astype(float)))]
            rows.loc[place, ["value", "low", "high"]] = same[["value", "low", "high"]].max()
            if metric != "balanced_accuracy":  # which is (1 + advantage) / 2
                name = f"tpr@{rows.loc[place, 'fpr']:g}" if metric == "tpr" else metric
                picked.append(f"{name} {in_words(best)}")
    return rows.assign(attack="max", flags=f"unadjusted: {', '.join(picked)}")


@checked
def readable(table: pd.DataFrame, *, full: Flag = False, percent: Flag = True) -> pd.DataFrame:
    """A `summary` as text for people.

    Parameters:
        table: of `summary`, or its rows of some attacks.
        full: whether what an attack was measured on is shown too: best TPR - FPR, accuracies,
            references, flags and the self-test.
        percent: whether rates are written in percent with two figures, "0.58 % [0.50, 0.64]";
            False: as shares with three decimals, "0.006 [0.005, 0.006]".

    Returns:
        A row per attack, by its name in words, with its AUC and its TPR at each rate, "0.626
        [0.611, 0.640]"; "n/m (n0 = 900)" for what so few non-members cannot tell, "0: tied scores
        allow no lower FPR" where ties force zero.
    """
    auc = by_attack(table, "auc")
    view = pd.DataFrame({"AUC": _texts(auc, _interval)})
    for x in rates_of(table):
        rows = by_attack(table, "tpr", x)
        if percent:
            view[f"TPR at {100 * x:g} % FPR"] = _texts(rows, _percent_cell)
        else:
            view[f"TPR at FPR {x:g}"] = _texts(rows, _cell)
    if full:
        view = view.join(_conditions(table, auc))
    names = [name for name in view.index if name != "max"]
    # rows may also be families of models, under one attack each
    kind = "attack" if set(names) & set(NAMES) else "of these"
    return view.rename(index=NAMES | {"max": f"strongest {kind} (picked afterwards)"})


def _conditions(table: pd.DataFrame, auc: pd.DataFrame) -> pd.DataFrame:
    """What the attacks of a `summary` were measured on, as text, indexed by attack."""
    gained = by_attack(table, "advantage")
    train, test, gap = (by_attack(table, name) for name in ("train_acc", "test_acc", "gap"))
    accuracies_text = train["value"].map("{:.3f} / ".format) + test["value"].map("{:.3f}".format)
    view = pd.DataFrame(
        {
            "best TPR - FPR (expected by chance)": _texts(
                gained, lambda row: f"{row['value']:.3f} ({row['chance']:.3f})"
            ),
            "train / test accuracy": accuracies_text,
            "gap": gap["value"].map("{:.3f}".format),
            "reference models per side": [
                "" if pd.isna(count) else f"{count:g}" for count in auc["references"]
            ],
            "flags": auc["flags"],
        },
        index=auc.index,
    )
    if "self_test" in table:
        view["self-test"] = auc["self_test"]
    return view


def _texts(rows: pd.DataFrame, text_of: Callable[[pd.Series], str]) -> pd.Series:
    return pd.Series([text_of(row) for _, row in rows.iterrows()], index=rows.index)


def _interval(row: pd.Series) -> str:
    return f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _cell(row: pd.Series) -> str:
    return _why_no_rate(row) or _interval(row)


def _percent_cell(row: pd.Series) -> str:
    return _why_no_rate(row) or percent_interval(*row[["value", "low", "high"]])


def _why_no_rate(row: pd.Series) -> str:
    """Why a TPR is not shown as a number; empty where it is."""
    if not row["measurable"]:
        return f"n/m (n0 = {row['n0']})"
    if row["value"] == 0 and row["fpr_floor"] > row["fpr"]:
        return "0: tied scores allow no lower FPR"
    return ""


def percent_interval(value: float, low: float, high: float) -> str:
    """A rate and its ends in percent with two figures, "0.58 % [0.50, 0.64]"; with a figure more
    where both ends would look alike.
    """
    value, low, high = (100 * float(end) for end in (value, low, high))
    size = value or high
    digits = 1
    if size > 0:
        digits = max(0, 1 - math.floor(math.log10(size)))
    if f"{low:.{digits}f}" == f"{high:.{digits}f}":
        digits += 1
    return f"{value:.{digits}f} % [{low:.{digits}f}, {high:.{digits}f}]"


@checked
def accuracies(scores: Scores) -> pd.DataFrame:
    """Mean accuracy on members (train), on non-members (test), and their gap.

    Parameters:
        scores: of any attack; their targets are what is measured.

    Returns:
        index train, test, gap; columns value, low, high: Student's 95 % interval over pairs, since
        what one model of a pair has seen the other has not; NaN ends with one pair.
    """
    values = np.column_stack([scores.accuracy, scores.accuracy[:, 0] - scores.accuracy[:, 1]])
    means = [values[scores.pair == pair].mean(0) for pair in np.unique(scores.pair)]
    low, high = (np.clip(end, [0, 0, -1], 1) for end in interval(values, scores.pair))
    return pd.DataFrame(
        {"value": np.mean(means, axis=0), "low": low, "high": high}, index=["train", "test", "gap"]
    )


@checked
def class_gaps(signals: Signals) -> pd.DataFrame:
    """Train and test accuracy of every class, over all models and queries.

    Parameters:
        signals: with membership; audited samples alone count.

    Returns:
        index class; columns samples, train_acc, test_acc, gap.

    Raises:
        ValueError: for hidden membership.
    """
    need_membership(signals, "train and test accuracy need it")
    audited, rows = ~signals.population, {}
    correct = signals.correct.mean(1)[:, audited]
    member = signals.member[:, audited]
    for label in np.unique(signals.labels[audited]):
        alike = signals.labels[audited] == label
        right = correct[:, alike]
        inside = member[:, alike]
        train_acc = right[inside].mean()
        test_acc = right[~inside].mean()
        rows[int(label)] = (right.shape[1], train_acc, test_acc, train_acc - test_acc)
    columns = ["samples", "train_acc", "test_acc", "gap"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("class")
