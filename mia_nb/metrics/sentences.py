"""A result in sentences that need no glossary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb import escape
from mia_nb.arguments import Array, Count, Several
from mia_nb.attacks import NAMES, in_words
from mia_nb.checks import checked
from mia_nb.metrics.bootstrap import RESAMPLES
from mia_nb.metrics.curve import MIN_FALSE_POSITIVES, ppv
from mia_nb.metrics.groups import by_group, largest_contribution
from mia_nb.metrics.null import SelfTest
from mia_nb.metrics.pairs import refuse_unequal_samples
from mia_nb.metrics.tables import by_attack, rates_of, summary
from mia_nb.metrics.targets import FPR
from mia_nb.types import Scores

PRIOR = 0.01  # one image in a hundred is a member
WHAT_LOWERS = (
    "What lowers a leak at equal accuracy depends on how the model was trained; the page Results of"
    " the documentation shows what did in this project's own studies of images, which promise"
    " nothing for yours."
)


class Verdict(NamedTuple):
    """A result in words: print it, or show it in a notebook."""

    title: str
    sentences: tuple[str, ...]
    next: tuple[str, ...]  # what to do
    by_group: pd.DataFrame | None = None  # of the strongest attack; None where no groups were given

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        lines = [self.title, *self.sentences, "Next: " + " ".join(self.next)]
        return "\n".join(map(escape.terminal, lines))

    def _repr_markdown_(self) -> str:
        first_step, *other_steps = self.next
        items = (*self.sentences, f"Next: {first_step}", *other_steps)
        lines = "\n".join(f"* {escape.markdown(item)}" for item in items)
        return f"### {escape.markdown(self.title)}\n\n{lines}\n"


@checked
def verdict(
    scores: Scores | dict[str, Scores],
    *,
    table: pd.DataFrame | None = None,
    self_test: SelfTest | None = None,
    about: str = "",
    groups: Array | None = None,
    n_resamples: Several = RESAMPLES,
    seed: Count = 0,
) -> Verdict:
    """What the attacks found, what it means, what could not be measured, and what to do next.

    Parameters:
        scores: of one attack or of several, {name: Scores}.
        table: `metrics.summary` of these scores, if already computed; None: computed here.
        self_test: the negative control (`metrics.self_test`), or None where it was not run.
        about: which models and data, for the title.
        groups: (N,) label of each audited sample, such as its class. Groups are named if an
            interval adjusted for their number lies above the others (`metrics.by_group`).
        n_resamples: bootstrap resamples behind the intervals.
        seed: of the resamples.

    Returns:
        A `Verdict`. The strongest attack is chosen with hindsight, by its true positive rate at the
        lowest measurable false positive rate; with several attacks the text says so.

    Raises:
        ValueError: for a table of other attacks or rates, and attacks on different samples.

    Example:
        >>> import mia_nb as mia
        >>> signals = mia.load_example("cifar10/resnet14")
        >>> print(verdict({"loss": mia.score("loss", signals)}).title)
        members can be told from non-members
    """
    if isinstance(scores, Scores):
        scores = {"attack": scores}
    refuse_unequal_samples(scores)
    if table is None:
        table = summary(scores, FPR, n_resamples=n_resamples, seed=seed)
    _refuse_another_table(table, scores)
    measurable = [x for x in FPR if by_attack(table, "tpr", x)["measurable"].all()]
    deciding = by_attack(table, "auc")
    if measurable:
        deciding = by_attack(table, "tpr", measurable[0])
    strongest = deciding["value"].drop("max").idxmax()
    rows = table[table["attack"] == strongest]
    auc = by_attack(rows, "auc").loc[strongest]
    groups_table = None
    if groups is not None:
        groups_table = by_group(scores[strongest], groups, n_resamples=n_resamples, seed=seed)
    scored = (~np.isnan(scores[strongest].value)).sum(1).min()

    sentences = _evidence(rows, measurable, len(scores))
    sentences.append(_accuracies(rows))
    if groups_table is not None:
        sentences.append(largest_contribution(groups_table))
    sentences.append(_control(self_test))
    sentences.append(_unmeasured(auc["n0"], measurable))
    sentences.append(_design(auc, int(scored)))

    if self_test is not None and not self_test.passed:
        title = "do not use: the negative control failed"
        steps = ["Find out why attacks succeed where there is nothing to find (see its table)."]
    else:
        leaks = bool(auc["low"] > 0.5)
        if leaks:
            title = "members can be told from non-members"
        else:
            title = "no attack is resolved from guessing"
        steps = _next_steps(rows, leaks, measurable, controlled=self_test is not None)
    if about:
        title = f"{about}: {title}"
    return Verdict(title, tuple(filter(None, sentences)), tuple(steps), groups_table)


def _refuse_another_table(table: pd.DataFrame, scores: dict[str, Scores]) -> None:
    """ValueError unless a table is the `summary` of these scores at the text's rates."""
    attacks = list(dict.fromkeys(table["attack"])) if "attack" in table else list(table.index)
    if attacks != [*scores, "max"] or not set(FPR) <= set(rates_of(table)):
        raise ValueError(
            f"table has the attacks {', '.join(map(str, attacks))}: wanted metrics.summary of the"
            f" same scores at the false positive rates {FPR}"
        )


def _evidence(rows: pd.DataFrame, measurable: Sequence[float], attacks: int) -> list[str]:
    """What the strongest attack finds at the lowest measurable rate.

    Parameters:
        rows: those of the strongest attack.
        measurable: rates, ascending.
        attacks: of how many it is the strongest.
    """
    auc = by_attack(rows, "auc").iloc[0]
    name = in_words(auc.name)
    if attacks > 1:
        who = f"the strongest of {attacks} attacks ({name}, picked afterwards)"
    elif auc.name in ("attack", *NAMES) and name[0].islower():
        who = f"the {name}"
    else:
        who = name  # the key of an attack of your own, or a name with a capital
    share, ends = _percents(auc)
    of_pairs = (
        f"scores a random member above a random non-member {share} of the time, 95 % interval"
        f" {ends}; guessing gives 50 %."
    )
    if not measurable:
        begins_sentence = f"{who[0].upper()}{who[1:]}"
        return [f"{begins_sentence} {of_pairs}"]
    x = measurable[0]
    tpr = by_attack(rows, "tpr", x).iloc[0]
    above_chance = tpr["low"] > x
    times = f"{tpr['value'] / x:.1f} times chance" if above_chance else "not resolved from chance"
    share, ends = _percents(tpr)
    lines = [
        f"At {_percent(x)} false positives {who} finds {share} of the members, 95 %"
        f" interval {ends}: {times}.",
        f"It {of_pairs}",
    ]
    if above_chance:
        share_of_accused = float(ppv(tpr["value"], x, PRIOR))
        least = float(ppv(tpr["low"], x, PRIOR))
        lines.append(
            f"Where one image in a hundred is a member, {_percent(share_of_accused)} of those it"
            f" accuses are members ({_percent(least)} at the interval's lower end)."
        )
    return lines


def _accuracies(rows: pd.DataFrame) -> str:
    """How often the models are right; rows: those of one attack on them."""
    train = by_attack(rows, "train_acc")["value"].iloc[0]
    test = by_attack(rows, "test_acc")["value"].iloc[0]
    return (
        f"The models are right on {_percent(train)} of the images they were trained on"
        f" and on {_percent(test)} of others."
    )


def _control(self_test: SelfTest | None) -> str:
    if self_test is None:
        return "The negative control, attacks rerun with shuffled membership, was not run."
    checks = f"({len(self_test.table)} checks with shuffled membership or constant outputs)"
    return f"The negative control {'passed' if self_test.passed else 'FAILED'} {checks}."


def _design(auc: pd.Series, images: int) -> str:
    """How many models were attacked on how many images, and with how many references.

    images: that were scored, of the target with fewest.
    """
    references = ""
    if pd.notna(auc["references"]):
        references = f", reference models on each side: {auc['references']:g}"
    if auc["targets"] == 1:
        return f"1 model attacked on {images:,} images{references}."
    return f"{auc['targets']} models attacked in turn, {images:,} images each{references}."


def _unmeasured(n0: int, measurable: Sequence[float]) -> str:
    """Which rates need more non-members; "" where there are enough for all."""
    needs = []
    for x in FPR:
        if x not in measurable:
            needs.append(f"{_percent(x)} (needs {math.ceil(MIN_FALSE_POSITIVES / x):,})")
    if not needs:
        return ""
    rates = needs[-1]
    if len(needs) > 1:
        rates = f"{', '.join(needs[:-1])} and {needs[-1]}"
    return f"Not measurable with {n0:,} non-members: false positive rates of {rates}."


def _next_steps(
    rows: pd.DataFrame, leaks: bool, measurable: Sequence[float], *, controlled: bool
) -> list[str]:
    """What would make the result more reliable or the leak smaller, the most pressing first.

    Parameters:
        rows: those of the strongest attack.
        leaks: whether its AUC is resolved from guessing.
        measurable: rates.
        controlled: whether the negative control was run.
    """
    gap = by_attack(rows, "gap")["value"].iloc[0]
    targets = by_attack(rows, "auc")["targets"].iloc[0]
    steps = []
    if leaks:
        compare = "Compare changes of the training at equal accuracy."
        if gap > 0.05:
            fit = f"The models fit their training images better by {100 * gap:.0f} points."
            compare = f"{fit} {compare}"
        steps += [compare, WHAT_LOWERS]
    else:
        steps.append(
            "This is no guarantee: more reference models, queries or images may find what these"
            " attacks missed."
        )
    if targets < 4:
        steps.append("Train at least 4 models, so that the interval covers training randomness.")
    if len(measurable) < 2:
        steps.append("Use 1,000 non-members or more for rates at 1 % false positives.")
    if not controlled:
        steps.append("Run the negative control.")
    return steps


def _percent(share: float, more: int = 0) -> str:
    """A share in percent, with this many digits more than `_number` has. One that would be rounded
    to none or all is "less than 0.01 %" or "more than 99.9 %".
    """
    value = 100 * share
    number = _number(value, more)
    if number == "0" and value > 0:
        return f"less than 0.{more * '0'}01 %"
    if number == "100" and value < 100:
        return f"more than 99.9{more * '9'} %"
    return f"{number} %"


def _number(value: float, more: int = 0) -> str:
    """24, 2.4, 0.24: a number in two digits, or three near 100, and `more` beyond these."""
    if 10 <= value < 99 or value == 100:
        digits = more
    elif value >= 1:
        digits = more + 1
    else:
        digits = more + 2
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def _percents(row: pd.Series) -> tuple[str, str]:
    """A value and its ends, with one more digit where both ends would print the same."""
    value, low, high = row[["value", "low", "high"]]
    more = int(_number(100 * low) == _number(100 * high))
    return _percent(value, more), f"{_percent(low, more)} to {_percent(high, more)}"
