"""What a result says, in words that need no glossary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from mia_nb.checks import checked
from mia_nb.metrics.curve import ppv
from mia_nb.metrics.tables import summary
from mia_nb.metrics.uncertainty import RESAMPLES
from mia_nb.types import Scores

RATES = (0.001, 0.01, 0.1)
PRIOR = 0.01  # one image in a hundred is a member
NEEDED = 10  # false positives below which a rate is not measurable
METHODS = {
    "rmia": "RMIA",
    "nig": "Student-t LiRA",
    "base": "BASE (Lassila et al.)",
    "vote": "the label-only vote",
    "watson": "difficulty calibration",
    "loss": "the loss threshold",
    "correctness": "right or wrong alone",
    "attack_p": "Attack-P",
    "attack_r": "Attack-R",
    "fused": "the combination of several",
}


class Verdict(NamedTuple):
    """`title`, `sentences` and what to do `next`; print it, or show it in a notebook."""

    title: str
    sentences: tuple[str, ...]
    next: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([self.title, *self.sentences, "Next: " + " ".join(self.next)])

    def _repr_markdown_(self) -> str:
        lines = "\n".join(f"* {one}" for one in (*self.sentences, "Next: " + " ".join(self.next)))
        return f"### {self.title}\n\n{lines}\n"


@checked
def verdict(
    scores: Scores | dict[str, Scores],
    *,
    self_test=None,
    about: str = "",
    by_group: pd.DataFrame | None = None,
    n_resamples: int = RESAMPLES,
    seed: int = 0,
) -> Verdict:
    """What the attacks found, what it means for a reader, what could not be measured, what to do.

    Parameters:
        scores: of one attack or of several, {name: Scores}.
        self_test: the negative control (`metrics.self_test`), or None where it was not run.
        about: which models and data, for the title.
        by_group: results per class or group, with columns auc, auc_low and auc_high, index the
            group's name; the strongest group is named where its interval lies above the whole's.
        n_resamples: bootstrap resamples behind the intervals.
        seed: of the resamples.

    Returns: a `Verdict`. The strongest attack is picked afterwards, by its true positive rate at
    the lowest measurable false positive rate; the text says so where there are several.

    Example:
        >>> import mia_nb as mia
        >>> signals = mia.load_example("cifar10/resnet14")
        >>> print(verdict({"loss": mia.score("loss", signals)}).title)
        members can be told from non-members
    """
    scores = {"attack": scores} if isinstance(scores, Scores) else scores
    table = summary(scores, RATES, n_resamples=n_resamples, seed=seed, self_test=self_test).drop(
        "max"
    )
    measurable = [x for x in RATES if table[f"tpr@{x:g}_measurable"].astype(bool).all()]
    row = table.loc[table[f"tpr@{measurable[0]:g}" if measurable else "auc"].idxmax()]
    found = _found(row, measurable, len(table))
    failed = self_test is not None and not self_test.passed
    leaks = bool(row["auc_low"] > 0.5)
    title = (
        "do not use: the negative control failed"
        if failed
        else "members can be told from non-members"
        if leaks
        else "no attack is resolved from guessing"
    )
    sentences = [
        *found,
        f"The models are right on {_percent(row['train_acc'])} of the images they were trained on"
        f" and on {_percent(row['test_acc'])} of others.",
        *_group(by_group, row),
        _control(self_test),
        *_unmeasured(row, measurable),
        f"{row['targets']} models attacked in turn, {row['n1'] + row['n0']:,} images each"
        + (f", reference models on each side: {row['k']:g}." if _known(row["k"]) else "."),
    ]
    advice = _advice(row, leaks, failed, self_test, measurable)
    return Verdict(f"{about}: {title}" if about else title, tuple(sentences), tuple(advice))


def _found(row: pd.Series, measurable: Sequence[float], attacks: int) -> list[str]:
    """What the strongest attack finds at the lowest measurable rate."""
    method = METHODS.get(row.name, row.name)
    who = f"the strongest of {attacks} attacks ({method}, picked afterwards)"
    who = who if attacks > 1 else method
    auc = (
        f"{'It' if measurable else who[0].upper() + who[1:]} scores a random member above a random"
        f" non-member {_percent(row['auc'])} of the time, 95 % interval"
        f" {_percents(row, 'auc')}; guessing gives 50 %."
    )
    if not measurable:
        return [auc]
    x = measurable[0]
    tpr, low = row[f"tpr@{x:g}"], row[f"tpr@{x:g}_low"]
    times = f"{tpr / x:.1f} times chance" if low > x else "not resolved from chance"
    lines = [
        f"At {_percent(x)} false positives {who} finds {_percent(tpr)} of the members, 95 %"
        f" interval {_percents(row, f'tpr@{x:g}')}: {times}."
    ]
    if low > x:
        share, least = (float(ppv(rate, x, PRIOR)) for rate in (tpr, low))
        lines.append(
            f"Where one image in a hundred is a member, {_percent(share)} of those it accuses are"
            f" members ({_percent(least)} at the interval's lower end)."
        )
    return [*lines, auc]


def _group(by_group: pd.DataFrame | None, row: pd.Series) -> list[str]:
    if by_group is None or by_group.empty:
        return []
    name = by_group["auc"].astype(float).idxmax()
    one = by_group.loc[name]
    if not one["auc_low"] > row["auc_high"]:
        return ["No class or group is resolved above the others."]
    return [
        f"Most exposed (picked afterwards): {name}, {_percent(one['auc'])} where all images give"
        f" {_percent(row['auc'])}."
    ]


def _control(self_test) -> str:
    if self_test is None:
        return "The negative control, attacks rerun with shuffled membership, was not run."
    checks = f"({len(self_test.table)} checks with shuffled membership or constant outputs)"
    return f"The negative control {'passed' if self_test.passed else 'FAILED'} {checks}."


def _unmeasured(row: pd.Series, measurable: Sequence[float]) -> list[str]:
    missing = [x for x in RATES if x not in measurable]
    if not missing:
        return []
    rates = " and ".join(f"{_percent(x)} (needs {math.ceil(NEEDED / x):,})" for x in missing)
    return [f"Not measurable with {row['n0']:,} non-members: false positive rates of {rates}."]


def _advice(row, leaks: bool, failed: bool, self_test, measurable) -> list[str]:
    """What would make the result safer to use, the most pressing first."""
    if failed:
        return ["Find out why attacks succeed where there is nothing to find (see its table)."]
    advice = []
    if leaks and row["gap"] > 0.05:
        advice.append(
            f"The models fit their training images better by {100 * row['gap']:.0f} points: compare"
            " fewer epochs, augmentation or a defense at equal accuracy (notebook 06)."
        )
    elif leaks:
        advice.append("Compare defenses at equal accuracy (notebook 06).")
    if not leaks:
        advice.append(
            "This is no guarantee: more reference models, queries or images may find what these"
            " attacks missed."
        )
    if row["targets"] < 4:
        advice.append("Train at least 4 models, so that the interval covers training randomness.")
    if len(measurable) < 2:
        advice.append("Use 1,000 non-members or more for rates at 1 % false positives.")
    if self_test is None:
        advice.append("Run the negative control.")
    return advice


def _known(value) -> bool:
    return value is not None and value == value


def _percent(share: float) -> str:
    """24 %, 2.4 %, 0.24 %: two digits, three near the whole."""
    value = 100 * share
    digits = 0 if 10 <= value < 99 or value == 100 else 1 if value >= 1 else 2
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") + " %" if digits else f"{value:.0f} %"


def _percents(row: pd.Series, name: str) -> str:
    return f"{_percent(row[f'{name}_low'])} to {_percent(row[f'{name}_high'])}"
