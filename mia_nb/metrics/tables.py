"""Result tables: one row per attack and target, one row per attack, and a view for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mia_nb.checks import checked, instance
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
from mia_nb.metrics.pairs import need_membership
from mia_nb.metrics.uncertainty import (
    FPR,
    RESAMPLES,
    bootstrap,
    interval,
    metric_interval,
    names,
    scored,
)
from mia_nb.types import Scores, Signals

if TYPE_CHECKING:
    from mia_nb.metrics.null import SelfTest


FEW = 5  # pairs below which a row says that its intervals are wide for want of pairs


@checked
def per_target(scores: Scores | dict[str, Scores], fpr=FPR) -> pd.DataFrame:
    """One row per attack and target, exact intervals only: the table behind `summary`.

    Columns: attack, target, pair, k, queries, auc, advantage, balanced_accuracy (both oracle),
    advantage_null, per x tpr@x with _low, _high, _tp, _fewer (the TPR with one false positive
    fewer), _fp, _realised, _measurable, then tie_mass, fpr_floor, n1, n0, train_acc, test_acc, gap,
    train_loss, test_loss, unscored (share of NaN scores, left out of all metrics).
    """
    fpr = rates(fpr)
    rows = [
        _target_row(name, one, row, fpr)
        for name, one in _named(scores).items()
        for row in range(len(one.targets))
    ]
    return pd.DataFrame(rows)


def _named(scores: Scores | dict[str, Scores]) -> dict[str, Scores]:
    """{attack: scores}, each with a target and every target with a score."""
    scores = {scores.info.get("attack", "attack"): scores} if isinstance(scores, Scores) else scores
    for name, one in instance("scores", scores, dict).items():
        instance(f"scores[{name!r}]", one, Scores)
        if not len(one.value):
            raise ValueError(f"{name} has no target: score at least one")
        if np.isnan(one.value).all(1).any():
            raise ValueError(
                f"{name} scored no sample of a target (no reference on one side?): leave it out, or"
                " train more models"
            )
    return scores


def _target_row(name: str, scores: Scores, row: int, fpr) -> dict:
    score, member = scored(scores, row)
    tp, fp, _ = counts(score, member)
    n1, n0 = int(tp[-1]), int(fp[-1])
    gap = float((tp / n1 - fp / n0).max())
    train_acc, test_acc = scores.accuracy[row]
    info = scores.info
    record = {
        "attack": name,
        "target": int(scores.targets[row]),
        "pair": int(scores.pair[row]),
        "k": info.get("k"),
        "queries": info.get("queries"),
    }
    record |= {
        "auc": area(tp, fp),
        "advantage": gap,
        "balanced_accuracy": (1 + gap) / 2,
        "advantage_null": null_advantage(n1, n0),
    }
    for x in fpr:
        at = tpr_at_counts(tp, fp, x)
        record |= {
            f"tpr@{x:g}": at.tpr,
            f"tpr@{x:g}_low": at.low,
            f"tpr@{x:g}_high": at.high,
            f"tpr@{x:g}_tp": at.tp,
        }
        fewer = np.searchsorted(fp, np.floor(x * n0 + 1e-9) - 1, side="right") - 1
        record[f"tpr@{x:g}_fewer"] = tp[fewer] / n1 if fewer >= 0 else 0.0
        record |= {
            f"tpr@{x:g}_fp": at.fp,
            f"tpr@{x:g}_realised": at.fpr_realised,
            f"tpr@{x:g}_measurable": at.measurable,
        }
    record |= {"tie_mass": tie_mass(score), "fpr_floor": fp[1] / n0, "n1": n1, "n0": n0}
    record |= {"train_acc": train_acc, "test_acc": test_acc, "gap": train_acc - test_acc}
    record |= {"train_loss": scores.loss[row, 0], "test_loss": scores.loss[row, 1]}
    return record | {"unscored": 1 - len(score) / scores.value.shape[1]}


@checked
def intervals(
    scores: Scores,
    fpr=FPR,
    *,
    draws: int = RESAMPLES,
    seed: int = 0,
    sampled: dict | None = None,
    confidence: float = 0.95,
) -> pd.DataFrame:
    """The interval of every metric of one attack: a row per metric with value (mean over targets),
    low and high.

    By the rule of `metrics.uncertainty`. sampled: draws of `bootstrap`, if already made. Caveat:
    targets share their references, which nothing here resamples.
    """
    sampled = sampled or bootstrap(scores, fpr, draws=draws, seed=seed)
    return _intervals(per_target(scores, fpr), sampled, confidence)


def _intervals(rows: pd.DataFrame, sampled: dict, confidence: float = 0.95) -> pd.DataFrame:
    """`intervals` from the rows of `per_target`."""
    ends = {
        name: [rows[name].mean(), *metric_interval(name, rows, draws, confidence=confidence)]
        for name, draws in sampled.items()
    }
    return pd.DataFrame.from_dict(
        ends, orient="index", columns=["value", "low", "high"]
    ).rename_axis("metric")


@checked
def summary(
    scores: Scores | dict[str, Scores],
    fpr=FPR,
    *,
    draws: int = RESAMPLES,
    seed: int = 0,
    self_test: SelfTest | None = None,
) -> pd.DataFrame:
    """One row per attack, metrics averaged over targets, and a last row "max"; index attack.

    Columns: auc, auc_low, auc_high, auc_min, auc_max (over targets); tpr@x, _low, _high,
    _measurable per x; advantage, balanced_accuracy (oracle thresholds; chance alone gives
    advantage_null); ppv@prior, ppv@prior_low at ppv_fpr, the smallest measurable FPR (_low: with
    the upper end of the realised FPR's interval); tie_mass, fpr_floor, train_acc, test_acc, gap,
    train_loss, test_loss, k, queries, n1, n0 (smallest over targets), targets, flags, self_test.

    Intervals are 95 %, those of `intervals`. "max" takes each metric's largest value, lower and
    upper end over attacks, unadjusted for the choice. A TPR with fewer than 10 allowed false
    positives keeps its number and has measurable=False. A failed `self_test` stamps every row.
    """
    fpr, scores = rates(fpr), _named(scores)
    if not scores or "max" in scores:
        raise ValueError(
            f"summary got {list(scores)}: pass {{name: attacks.score(...)}}; the name max is taken"
            " by its last row"
        )
    sampled = {name: bootstrap(one, fpr, draws=draws, seed=seed) for name, one in scores.items()}
    rows = per_target(scores, fpr).groupby("attack", sort=False)
    table = pd.DataFrame(
        {
            name: _attack_row(scores[name], rows.get_group(name), sampled[name], fpr)
            for name in scores
        }
    ).T
    table.loc["max"] = _max_row(table, fpr)
    table = table.infer_objects().rename_axis("attack")
    if self_test is not None:
        table["self_test"] = "passed" if self_test.passed else "failed"
        if not self_test.passed:
            table["flags"] = [
                "; ".join(filter(None, ["design check failed", flags])) for flags in table["flags"]
            ]
    return table


def _attack_row(scores: Scores, rows: pd.DataFrame, sampled: dict, fpr) -> dict:
    """Averages over targets with headline intervals, in the order of `summary`."""
    ends = _intervals(rows, sampled)
    record = dict(
        zip(("auc", "auc_low", "auc_high"), ends.loc["auc", ["value", "low", "high"]], strict=True)
    )
    record |= {"auc_min": rows["auc"].min(), "auc_max": rows["auc"].max()}
    for name in names(fpr)[2:]:
        record |= {
            name: ends.loc[name, "value"],
            f"{name}_low": ends.loc[name, "low"],
            f"{name}_high": ends.loc[name, "high"],
        }
        record[f"{name}_measurable"] = bool(rows[f"{name}_measurable"].all())
    record |= {
        name: rows[name].mean() for name in ("advantage", "balanced_accuracy", "advantage_null")
    }
    record |= _ppv(rows, fpr)
    facts = ("tie_mass", "fpr_floor", "train_acc", "test_acc", "gap", "train_loss", "test_loss")
    record |= {name: rows[name].mean() for name in facts}
    record |= {"k": scores.info.get("k"), "queries": scores.info.get("queries")}
    record |= {"n1": rows["n1"].min(), "n0": rows["n0"].min(), "targets": len(rows)}
    return record | {"flags": "; ".join(_flags(scores, rows, fpr))}


def _ppv(rows: pd.DataFrame, fpr) -> dict:
    """PPV at each prior, at the smallest measurable FPR (the largest FPR when none is)."""
    x = min([x for x in fpr if rows[f"tpr@{x:g}_measurable"].all()], default=max(fpr, default=None))
    if x is None:
        return {}
    tpr, realised = rows[f"tpr@{x:g}"].mean(), rows[f"tpr@{x:g}_realised"].mean()
    upper = clopper_pearson(rows[f"tpr@{x:g}_fp"], rows["n0"])[1].mean()
    record = {f"ppv@{prior:g}": float(ppv(tpr, realised, prior)) for prior in PRIORS}
    return (
        record
        | {f"ppv@{prior:g}_low": float(ppv(tpr, upper, prior)) for prior in PRIORS}
        | {"ppv_fpr": x}
    )


def _flags(scores: Scores, rows: pd.DataFrame, fpr) -> list[str]:
    """Everything a reader must know before quoting the row."""
    given = scores.info.get("flags") or []
    flags = [given] if isinstance(given, str) else [str(flag) for flag in given]
    if (pairs := rows["pair"].nunique()) < 2:
        flags.append(
            f"{'one target' if len(rows) == 1 else f'{len(rows)} targets'}: training randomness not"
            " covered"
        )
    elif pairs < FEW:
        flags.append(f"few pairs ({pairs}): wide intervals, Student's t over pairs")
    units = rows.groupby("pair")["auc"].mean()
    # as in the self-test
    error = auc_null_error(rows["n1"].mean(), rows["n0"].mean()) / np.sqrt(max(len(rows) / 2, 1))
    if units.mean() < 0.5 - 3 * error:
        flags.append("inverted or leaking design: AUC below 0.5 by more than 3 s.e.")
    for x in fpr:
        tied = int(((rows["fpr_floor"] > x) & rows[f"tpr@{x:g}_measurable"]).sum())
        if tied:
            flags.append(f"tpr@{x:g} is 0 by ties in {tied} of {len(rows)} targets")
    return flags


def _max_row(table: pd.DataFrame, fpr) -> dict:
    """The unadjusted maximum per metric; all else from the row with the highest AUC."""
    best = {name: table[name].astype(float).idxmax() for name in names(fpr)}
    record = table.loc[best["auc"]].to_dict()
    for name in names(fpr):
        record[name] = table.loc[best[name], name]
        if name != "advantage":
            record |= {end: table[end].max() for end in (f"{name}_low", f"{name}_high")}
    record["balanced_accuracy"] = (1 + record["advantage"]) / 2
    record["flags"] = "unadjusted: " + ", ".join(
        f"{name} {attack}" for name, attack in best.items()
    )
    return record


@checked
def readable(table: pd.DataFrame) -> pd.DataFrame:
    """A `summary` as text: "0.626 [0.611, 0.640]"; "n/m (n0 = 900)" if not measurable; "0:
    tied scores allow no lower FPR" where ties force zero.
    """
    view = pd.DataFrame(index=table.index)
    view["AUC"] = [_interval(row, "auc") for _, row in table.iterrows()]
    for name in [
        column for column in table if column.startswith("tpr@") and column.count("_") == 0
    ]:
        view[name.replace("tpr@", "TPR at FPR ")] = [
            _cell(row, name) for _, row in table.iterrows()
        ]
    view["best TPR - FPR (expected by chance)"] = [
        f"{a:.3f} ({b:.3f})"
        for a, b in zip(table["advantage"], table["advantage_null"], strict=True)
    ]
    view["train / test accuracy"] = [
        f"{a:.3f} / {b:.3f}" for a, b in zip(table["train_acc"], table["test_acc"], strict=True)
    ]
    view["gap"] = [f"{gap:.3f}" for gap in table["gap"]]
    view["reference models per side"] = [
        "" if k is None or k != k else f"{k:g}" for k in table["k"]
    ]
    view["flags"] = table["flags"]
    if "self_test" in table:
        view["self-test"] = table["self_test"]
    return view.rename(index={"max": "strongest attack (picked afterwards)"})


def _interval(row, name: str) -> str:
    return f"{row[name]:.3f} [{row[name + '_low']:.3f}, {row[name + '_high']:.3f}]"


def _cell(row, name: str) -> str:
    if not row[f"{name}_measurable"]:
        return f"n/m (n0 = {row['n0']})"
    if row[name] == 0 and row["fpr_floor"] > float(name.removeprefix("tpr@")):
        return "0: tied scores allow no lower FPR"
    return _interval(row, name)


@checked
def accuracies(scores: Scores) -> pd.DataFrame:
    """Mean accuracy on members (train), on non-members (test) and their gap: value, low, high.

    Student's 95 % interval over pairs, since what one model of a pair has seen the other has not;
    NaN ends with one pair.
    """
    values = np.column_stack([scores.accuracy, scores.accuracy[:, 0] - scores.accuracy[:, 1]])
    means = [values[scores.pair == pair].mean(0) for pair in np.unique(scores.pair)]
    low, high = (np.clip(end, [0, 0, -1], 1) for end in interval(values, scores.pair))
    return pd.DataFrame(
        {"value": np.mean(means, axis=0), "low": low, "high": high}, index=["train", "test", "gap"]
    )


@checked
def class_gaps(signals: Signals) -> pd.DataFrame:
    """Per class: samples, train_acc, test_acc, gap over all models and queries; audited samples
    only. Needs membership.
    """
    need_membership(signals, "train and test accuracy need it")
    audited = ~signals.population
    correct, member, labels = (
        signals.correct.mean(1)[:, audited],
        signals.member[:, audited],
        signals.labels[audited],
    )
    rows = {}
    for label in np.unique(labels):
        right, inside = correct[:, labels == label], member[:, labels == label]
        train_acc, test_acc = right[inside].mean(), right[~inside].mean()
        rows[int(label)] = {
            "samples": right.shape[1],
            "train_acc": train_acc,
            "test_acc": test_acc,
            "gap": train_acc - test_acc,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("class")
