"""Result tables: one row per attack and target, one row per attack, and a view for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mia_nb.attacks import NAMES, in_words
from mia_nb.checks import checked, holding, instance, shown
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
from mia_nb.metrics.pairs import need_membership, refuse_unequal_samples
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
        _target_row(name, one, row, fpr)
        for name, one in _named(scores).items()
        for row in range(len(one.targets))
    ]
    return pd.DataFrame(rows)


def _named(scores: Scores | dict[str, Scores]) -> dict[str, Scores]:
    """{attack: scores}, each with a target and every target with a score."""
    scores = {scores.info.get("attack", "attack"): scores} if isinstance(scores, Scores) else scores
    for name, one in instance("scores", scores, dict).items():
        value = instance(f"scores[{name!r}]", one, Scores).value
        if not len(value):
            raise ValueError(f"{name} has no target: score at least one")
        if np.isnan(value).all(1).any():
            raise ValueError(
                f"{name} scored no sample of a target (no reference on one side?): leave it out, or"
                " train more models"
            )
    return scores


def _target_row(name: str, scores: Scores, row: int, fpr) -> dict:
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
    fpr=FPR,
    *,
    n_resamples: int = RESAMPLES,
    seed: int = 0,
    sampled: dict | None = None,
    confidence: float = 0.95,
    groups: np.ndarray | None = None,
) -> pd.DataFrame:
    """The interval of every metric of one attack, mean over targets.

    Parameters:
        scores: of one attack.
        fpr: false positive rates in [0, 1] at which the TPR is read.
        n_resamples: resamples of the samples' bootstrap.
        seed: of the bootstrap.
        sampled: resamples of `metrics.uncertainty.bootstrap`, if already made.
        confidence: in (0, 1).
        groups: (N,) labels of audited samples that are drawn as a whole, as a patient's images;
            None: each sample by itself.

    Returns:
        index metric (auc, advantage, tpr@x), columns value, low, high, by the rule of
        `metrics.uncertainty`.

    Caveat: targets share their references, which nothing here resamples.
    """
    rows = per_target(scores, fpr)
    sampled = sampled or bootstrap(scores, fpr, n_resamples=n_resamples, seed=seed, groups=groups)
    free = None if groups is None else len(np.unique(groups)) - 2
    ends = {
        name: [
            rows[name].mean(),
            *metric_interval(name, rows, one, confidence=confidence, free=free),
        ]
        for name, one in sampled.items()
    }
    return pd.DataFrame.from_dict(
        ends, orient="index", columns=["value", "low", "high"]
    ).rename_axis("metric")


@checked
def summary(
    scores: Scores | dict[str, Scores],
    fpr=FPR,
    *,
    n_resamples: int = RESAMPLES,
    seed: int = 0,
    self_test: SelfTest | None = None,
    groups: np.ndarray | None = None,
) -> pd.DataFrame:
    """One row per attack, metrics averaged over targets, and a last row "max".

    Parameters:
        scores: of one attack, or {name: scores}; "max" is no name.
        fpr: false positive rates in [0, 1] at which the TPR is read.
        n_resamples: resamples of the samples' bootstrap.
        seed: of the bootstrap.
        self_test: that of `self_test`; a failed one stamps every row.
        groups: (N,) labels of audited samples that are drawn as a whole, as a patient's images.

    Returns:
        index attack; columns auc, auc_low, auc_high, auc_min, auc_max (over targets); tpr@x, _low,
        _high, _measurable per x; advantage, balanced_accuracy (at the best threshold; chance alone
        gives advantage_null); ppv@prior, ppv@prior_low at ppv_fpr, the smallest measurable FPR
        (_low: with the upper end of the realised FPR's interval); tie_mass, fpr_floor, train_acc,
        test_acc, gap, train_loss, test_loss, k, queries, n1, n0 (smallest over targets), targets,
        flags, self_test. Intervals are 95 %, those of `intervals`. "max" takes each metric's
        largest value, lower and upper end over attacks, unadjusted for the choice. A TPR with fewer
        than 10 allowed false positives keeps its number and has measurable=False.

    Raises:
        ValueError: for no scores, the name max, a target without a score, and attacks on different
            samples.
    """
    fpr = rates(fpr)
    scores = _named(scores)
    refuse_unequal_samples(scores)
    if groups is not None:
        shape = np.shape(groups)
        for one in scores.values():
            wanted = one.value.shape[1:]
            if shape != wanted:
                raise ValueError(f"groups have shape {shape}; wanted {wanted}, a label per sample")
    return table_of(
        scores, fpr, n_resamples=n_resamples, seed=seed, self_test=self_test, groups=groups
    )


def table_of(
    scores: dict[str, Scores],
    fpr=FPR,
    *,
    n_resamples: int = RESAMPLES,
    seed: int = 0,
    self_test: SelfTest | None = None,
    groups: np.ndarray | None = None,
) -> pd.DataFrame:
    """`summary` of attacks of which one may be judged on fewer of the samples, as one that is
    calibrated by the others; `groups` serve the attacks that scored as many samples.
    """
    if not scores or "max" in scores:
        raise ValueError(
            f"summary got {list(scores)}: pass {{name: attacks.score(...)}}; the name max is taken"
            " by its last row"
        )
    rows = {name: _attack_row(one, fpr, n_resamples, seed, groups) for name, one in scores.items()}
    table = pd.DataFrame(rows).T
    table.loc["max"] = _max_row(table, fpr)
    table = table.infer_objects().rename_axis("attack")
    if self_test is not None:
        table["self_test"] = "passed" if self_test.passed else "failed"
        if not self_test.passed:
            table["flags"] = [
                "; ".join(filter(None, ["design check failed", flags])) for flags in table["flags"]
            ]
    return table


def _attack_row(
    scores: Scores, fpr, n_resamples: int, seed: int, groups: np.ndarray | None
) -> dict:
    """Averages over targets with headline intervals, in the order of `summary`."""
    if groups is not None and np.shape(groups) != scores.value.shape[1:]:
        groups = None
    rows = per_target(scores, fpr)
    ends = intervals(scores, fpr, n_resamples=n_resamples, seed=seed, groups=groups)
    record = with_ends("auc", ends.loc["auc"]) | {
        "auc_min": rows["auc"].min(),
        "auc_max": rows["auc"].max(),
    }
    for name in names(fpr)[2:]:
        record |= with_ends(name, ends.loc[name])
        record[f"{name}_measurable"] = bool(rows[f"{name}_measurable"].all())
    oracle = ("advantage", "balanced_accuracy", "advantage_null")
    facts = ("tie_mass", "fpr_floor", "train_acc", "test_acc", "gap", "train_loss", "test_loss")
    return {
        **record,
        **rows[[*oracle]].mean(),
        **_ppv(rows, fpr),
        **rows[[*facts]].mean(),
        "k": scores.info.get("k"),
        "queries": scores.info.get("queries"),
        "n1": rows["n1"].min(),
        "n0": rows["n0"].min(),
        "targets": len(rows),
        "flags": _flags(scores, rows, fpr),
    }


def with_ends(name: str, values) -> dict[str, float]:
    """{name, name_low, name_high} from (value, low, high)."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), map(float, values), strict=True))


def _ppv(rows: pd.DataFrame, fpr) -> dict:
    """PPV at each prior, at the smallest measurable FPR (the largest FPR when none is)."""
    if not fpr:
        return {}
    x = min([x for x in fpr if rows[f"tpr@{x:g}_measurable"].all()], default=max(fpr))
    upper = clopper_pearson(rows[f"tpr@{x:g}_fp"], rows["n0"])[1].mean()
    tpr = rows[f"tpr@{x:g}"].mean()
    realised = rows[f"tpr@{x:g}_realised"].mean()
    record = {
        f"ppv@{prior:g}{end}": float(ppv(tpr, rate, prior))
        for end, rate in (("", realised), ("_low", upper))
        for prior in PRIORS
    }
    return record | {"ppv_fpr": x}


def _flags(scores: Scores, rows: pd.DataFrame, fpr) -> str:
    """Everything a reader must know before quoting the row."""
    given = scores.info.get("flags") or []
    pairs = rows["pair"].nunique()
    who = "one target" if len(rows) == 1 else f"{len(rows)} targets"
    # as in the self-test
    error = auc_null_error(rows["n1"].mean(), rows["n0"].mean()) / np.sqrt(max(len(rows) / 2, 1))
    flags = {
        f"{who}: training randomness not covered": pairs < 2,
        f"few pairs ({pairs}): wide intervals, Student's t over pairs": 2 <= pairs < FEW,
        "inverted or leaking design: AUC below 0.5 by more than 3 s.e.": (
            rows.groupby("pair")["auc"].mean().mean() < 0.5 - 3 * error
        ),
    }
    for x in fpr:
        tied = int(((rows["fpr_floor"] > x) & rows[f"tpr@{x:g}_measurable"]).sum())
        flags[f"tpr@{x:g} is 0 by ties in {tied} of {len(rows)} targets"] = tied
    return "; ".join([*([given] if isinstance(given, str) else map(str, given)), *holding(flags)])


def _max_row(table: pd.DataFrame, fpr) -> dict:
    """The unadjusted maximum per metric; all else from the row with the highest AUC."""
    best = {name: table[name].astype(float).idxmax() for name in names(fpr)}
    record = table.loc[best["auc"]].to_dict()
    for name, attack in best.items():
        record[name] = table.loc[attack, name]
        if name != "advantage":
            record |= {end: table[end].max() for end in (f"{name}_low", f"{name}_high")}
    picked = ", ".join(f"{name} {in_words(attack)}" for name, attack in best.items())
    return record | {
        "balanced_accuracy": (1 + record["advantage"]) / 2,
        "flags": f"unadjusted: {picked}",
    }


@checked
def readable(table: pd.DataFrame) -> pd.DataFrame:
    """A `summary` as text for people.

    Parameters:
        table: of `summary`.

    Returns:
        A row per attack, by its name in words: "0.626 [0.611, 0.640]" for what was
        measured, "n/m (n0 = 900)" for what so few non-members cannot tell, "0: tied scores allow
        no lower FPR" where ties force zero.
    """
    missing = [name for name in ("auc", "auc_low", "auc_high", "n0") if name not in table]
    if missing:
        raise ValueError(
            f"a table without {', '.join(missing)} is none of metrics.summary; its columns are"
            f" {shown(list(table.columns))}"
        )
    every = [row for _, row in table.iterrows()]
    rate = [column for column in table if column.startswith("tpr@") and "_" not in column]
    pairs = {
        "best TPR - FPR (expected by chance)": "{advantage:.3f} ({advantage_null:.3f})",
        "train / test accuracy": "{train_acc:.3f} / {test_acc:.3f}",
        "gap": "{gap:.3f}",
    }
    rates = {name.replace("tpr@", "TPR at FPR "): name for name in rate}
    view = {
        "AUC": [_interval(row, "auc") for row in every],
        **{title: [_cell(row, name) for row in every] for title, name in rates.items()},
        **{title: [text.format(**row) for row in every] for title, text in pairs.items()},
        "reference models per side": ["" if k is None or k != k else f"{k:g}" for k in table["k"]],
        "flags": table["flags"],
    }
    if "self_test" in table:
        view["self-test"] = table["self_test"]
    view = pd.DataFrame(view, index=table.index)
    return view.rename(index=NAMES | {"max": "strongest attack (picked afterwards)"})


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
