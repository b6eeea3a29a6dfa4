"""Limits, stated beforehand, on what attacks may find; those that the data cannot measure are
refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mia_nb.arguments import Array, Delta, Whole
from mia_nb.auditing.one_run import FEWEST_SPLIT, numbers_tried, perfect_epsilon
from mia_nb.checks import checked, quantity, shown
from mia_nb.metrics.curve import MIN_FALSE_POSITIVES, clopper_pearson, measurable

WANTED = (
    'wanted METRIC>LIMIT with METRIC auc, advantage, tpr@FPR or epsilon, e.g. "tpr@0.01>0.05" or'
    ' "auc>0.6"'
)
NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e-?[0-9]+)?"
METRIC = rf"(?P<metric>auc|advantage|epsilon|tpr@(?P<fpr>{NUMBER}))"
FORM = re.compile(rf"\s*{METRIC}\s*>\s*(?P<limit>{NUMBER})\s*", re.IGNORECASE)
# with 2, Student's t has one degree of freedom: at 1 - 0.05 / attacks it decides no limit
FEWEST_PAIRS = 3
UNDECLARED = (
    "cannot be measured in this design: an audited bound needs a fair coin per image, declared as"
    " split=bernoulli, so that about half of the audited images are members"
)


class Limit(NamedTuple):
    """`metric` (auc, advantage, tpr@x or epsilon) must not exceed `value`; `fpr` is tpr@x's x."""

    metric: str
    value: float
    fpr: float | None

    def __str__(self) -> str:
        return f"{self.metric}>{float(self.value)}".removesuffix(".0")


@checked
def limits(texts: Array) -> list[Limit]:
    """The limits stated by texts such as "tpr@0.01>0.05" or "auc>0.6", each once.

    Parameters:
        texts: METRIC>LIMIT, with METRIC auc, advantage, tpr@FPR or epsilon.

    Returns:
        A list of `Limit`: metric, value, and the fpr of a tpr@FPR.

    Raises:
        ValueError: for a text that states no limit, and for limits that are never exceeded.
    """
    if isinstance(texts, str) or not np.iterable(texts):
        raise ValueError(f"texts={shown(texts)}: wanted a list of them; {WANTED}")
    return list(dict.fromkeys(_limit_of(str(text)) for text in texts))


def _limit_of(text: str) -> Limit:
    """The limit that one text states."""
    start = f'limit "{text}": '
    match = FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{start}{WANTED}")
    name = match["metric"].lower()
    fpr = None if match["fpr"] is None else float(match["fpr"])
    value = float(match["limit"])
    if not math.isfinite(value):
        raise ValueError(f"{start}nothing lies above it; wanted a finite limit")
    if fpr is not None and not 0 < fpr < 1:
        raise ValueError(f"{start}a false positive rate lies between 0 and 1; 1 % is 0.01")
    if fpr is not None and float(f"{fpr:g}") != fpr:
        raise ValueError(f"{start}a false positive rate has six digits at most; wanted tpr@{fpr:g}")
    if name != "epsilon" and value >= 1:
        metric = name.partition("@")[0]
        raise ValueError(f"{start}{metric} is a fraction and never above 1; 5 % is 0.05")
    guessing = 0.0
    if name == "auc":
        guessing = 0.5
    elif fpr is not None:
        guessing = fpr
    if value < guessing:
        raise ValueError(
            f"{start}an attacker who guesses reaches {guessing:g}; wanted a limit at or above that"
        )
    return Limit(name if fpr is None else f"tpr@{fpr:g}", value, fpr)


def fewest(audited: int, split: str) -> int:
    """The fewest members, or non-members, of a model: half of the audited samples; with coins, four
    standard deviations less.
    """
    if split == "pairs":
        return audited // 2
    return max(0, math.floor(audited / 2 - 2 * math.sqrt(audited)))


@checked
def refuse_unmeasurable(
    stated: Sequence[Limit],
    *,
    models: Whole,
    split: str,
    audited: Whole = 0,
    members: Whole | None = None,
    non_members: Whole | None = None,
    delta: Delta = 1e-5,
    attacks: Whole = 6,
    units: Whole | None = None,
) -> None:
    """Refuses, before anything is trained, a limit that these data cannot measure or that could
    never be exceeded.

    Parameters:
        stated: the limits, from `limits`.
        models: how many are audited.
        split: of the recipe, or the kind of `design`; an epsilon needs members drawn by fair coins
            ("bernoulli", "coins").
        audited: number of audited samples; a limit on epsilon must lie below what a perfect attack
            on them certifies.
        members: of the model with fewest; None: as `split` divides `audited`.
        non_members: of the model with fewest; a tpr@x needs ceil(10 / x); None: as for members.
        delta: of an audited epsilon.
        attacks: how many will be tried.
        units: number of pairs, or of training sets without complements; None: models / 2, or with
            coins all models. Two units decide no limit but one on epsilon. One unit leaves an
            interval over samples, which says nothing about other trainings, and no limit on the
            advantage, whose threshold comes from other pairs.

    Raises:
        ValueError: for the first such limit.
    """
    coins = split in ("bernoulli", "coins")
    side = fewest(audited, split)
    if units is None:
        units = models if coins else models // 2
    for limit in stated:
        if limit.metric != "epsilon":
            n0 = side if non_members is None else non_members
            n1 = side if members is None else members
            reason = _too_few_samples(limit, n0, n1, attacks)
            reason = reason or _too_few_units(limit, models, units)
        elif coins:
            reason = _too_large_epsilon(limit, models, audited, delta, attacks)
        else:
            reason = UNDECLARED
        if reason:
            raise ValueError(f'limit "{limit}" {reason}')


def _too_few_samples(limit: Limit, n0: int, n1: int, attacks: int) -> str:
    """Why a limit on a rate is refused; "" if it is not."""
    if limit.fpr is None:
        return ""
    if not measurable(limit.metric, n0):
        needed = math.ceil(MIN_FALSE_POSITIVES / limit.fpr - 1e-9)
        least = MIN_FALSE_POSITIVES / max(n0, 1)
        rate = ""
        if least < 1:
            rate = f"state tpr@{math.ceil(1e4 * least) / 1e4:g} or a higher rate, or "
        return (
            f"cannot be measured with n0 = {n0} non-members a model: {needed:,} are needed,"
            f" so that {MIN_FALSE_POSITIVES} false alarms are allowed; {rate}audit more images"
        )
    most = clopper_pearson(max(n1, 1), max(n1, 1), confidence=1 - 0.05 / attacks)[0]
    if limit.value >= most:
        return (
            f"can never be exceeded: with n1 = {n1} members a model and {attacks} attacks even a"
            f" rate of 1 shows only {most:.4g} at 95 % confidence; state a lower limit, or audit"
            " more images"
        )
    return ""


def _too_few_units(limit: Limit, models: int, units: int) -> str:
    """Why a limit on an interval over so few units is refused; "" if it is not."""
    if units == 2:
        why = "its interval over so few is too wide to decide"
    elif units < 2 and limit.metric == "advantage":
        why = "its threshold is set on other targets"
    else:
        return ""
    if models >= 2 * units:
        have = quantity(units, "pair")
        needed = f"{2 * FEWEST_PAIRS} models ({FEWEST_PAIRS} pairs)"
    else:
        have = quantity(units, "training set")
        needed = f"{FEWEST_PAIRS} models"
    trained = quantity(models, "model")
    return f"cannot be measured on {trained} ({have}): {why}; train {needed} or more"


def _too_large_epsilon(limit: Limit, models: int, audited: int, delta: float, attacks: int) -> str:
    """Why a limit on epsilon is refused; "" if it is not."""
    if models >= FEWEST_SPLIT:  # half of the models are audited together
        coins = audited * (models // 2)
        tests = 1
    else:
        coins = audited
        tests = models
    alpha = 0.05 / (tests * attacks)
    alpha /= len(numbers_tried(coins, alpha, delta))
    most = perfect_epsilon(coins, coins, delta, 1 - alpha)
    if limit.value < most:
        return ""
    return (
        f"can never be exceeded: right guesses about all {coins:,} coins would certify {most:.3g};"
        " state a lower limit, or audit more images"
    )
