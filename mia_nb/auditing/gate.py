"""Limits stated beforehand on what attacks may find, and what the evidence says about each: a gate for a release."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mia_nb.auditing.one_run import (
    FEWEST_APART,
    audit,
    check_bernoulli,
    numbers_tried,
    one_run_epsilon,
)
from mia_nb.checks import checked
from mia_nb.metrics.curve import MIN_FALSE_POSITIVES, clopper_pearson, counts
from mia_nb.metrics.tables import intervals
from mia_nb.metrics.uncertainty import RESAMPLES, scored
from mia_nb.types import Scores

EXCEEDED, BELOW, OPEN = "exceeded", "not exceeded", "not established"
WANTED = 'wanted METRIC>LIMIT with METRIC auc, advantage, tpr@FPR or epsilon, e.g. "tpr@0.01>0.05" or "auc>0.6"'
FORM = re.compile(
    r"\s*(auc|advantage|epsilon|tpr@([0-9.]+(?:e-?[0-9]+)?))\s*>\s*([0-9.]+(?:e-?[0-9]+)?)\s*",
    re.IGNORECASE,
)
PAIRS = 3  # with 2, Student's t has one degree of freedom, and at 1 - 0.05 / attacks no limit is ever decided
LOOSE = 4  # pairs up to which intervals miss too often, since targets are each other's references


class Limit(NamedTuple):
    """`metric` (auc, advantage, tpr@x or epsilon) is not to lie above `value`; `fpr` is the x of a tpr@x."""

    metric: str
    value: float
    fpr: float | None

    def __str__(self) -> str:
        return f"{self.metric}>{_shortest(self.value)}"


def _shortest(value: float) -> str:
    return repr(float(value)).removesuffix(".0")


class Verdict(NamedTuple):
    """What was found about one limit. `low`, `high`: 95 % interval of the largest value over attacks (NaN: no such end)."""

    limit: str
    outcome: str
    metric: str
    threshold: float
    value: float
    low: float
    high: float
    attack: str
    attacks: int
    n1: int
    n0: int
    targets: int
    sentence: str


@checked
def limits(texts: Sequence[str]) -> list[Limit]:
    """["tpr@0.01>0.05", "auc>0.6"] as `Limit`s. ValueError of one line for whatever is none, and for limits never exceeded."""
    found = []
    for text in texts:
        match = FORM.fullmatch(str(text))
        try:
            name, fpr, value = match[1].lower(), match[2] and float(match[2]), float(match[3])
        except (TypeError, ValueError):
            raise ValueError(f'limit "{text}": {WANTED}') from None
        if not math.isfinite(value):
            raise ValueError(f'limit "{text}": nothing lies above it; wanted a finite limit')
        if fpr is not None and not 0 < fpr < 1:
            raise ValueError(
                f'limit "{text}": a false positive rate lies between 0 and 1; 1 % is 0.01'
            )
        if fpr is not None and float(f"{fpr:g}") != fpr:
            raise ValueError(
                f'limit "{text}": a false positive rate has six digits at most; wanted tpr@{fpr:g}'
            )
        if name != "epsilon" and value >= 1:
            raise ValueError(
                f'limit "{text}": {name.partition("@")[0]} is a fraction and never above 1; 5 % is 0.05'
            )
        chance = {"auc": 0.5}.get(name, fpr or 0.0)
        if value < chance:
            raise ValueError(
                f'limit "{text}": an attacker who guesses reaches {chance:g}; wanted a limit at or above that'
            )
        one = Limit(name if fpr is None else f"tpr@{fpr:g}", value, fpr)
        if one not in found:
            found.append(one)
    return found


@checked
def fewest(audited: int, split: str) -> int:
    """Members, or non-members, that every model has at least: half of the audited samples, in coins four s.d. less."""
    return (
        audited // 2
        if split == "pairs"
        else max(0, math.floor(audited / 2 - 2 * math.sqrt(audited)))
    )


@checked
def refuse_unmeasurable(
    stated: Sequence[Limit], *, non_members: int, members: int, models: int, coins: bool, audited: int = 0, delta: float = 1e-5,
    attacks: int = 6, units: int | None = None,
) -> None:  # fmt: skip
    """ValueError, before anything is trained, for a limit that these data cannot measure or that could never be exceeded.

    non_members, members: of the model that has fewest. A tpr@x wants ceil(10 / x) non-members; epsilon fair coins (`coins`),
    and a limit below what a perfect attack on `audited` samples would certify. `attacks`: how many will be tried. `units`:
    pairs, or training sets that are no complements (default: models / 2, or with coins all). Two decide nothing but an
    epsilon, see PAIRS; one leaves the samples' own interval, which says nothing on other trainings, and no advantage,
    since its threshold comes from other units.
    """
    units = (models if coins else models // 2) if units is None else units
    for one in stated:
        start = f'limit "{one}" cannot be measured'
        if one.fpr is not None and math.floor(one.fpr * non_members + 1e-9) < MIN_FALSE_POSITIVES:
            needed, least = (
                math.ceil(MIN_FALSE_POSITIVES / one.fpr - 1e-9),
                MIN_FALSE_POSITIVES / max(non_members, 1),
            )
            advice = (
                f"state tpr@{math.ceil(1e4 * least) / 1e4:g} or a higher rate, or audit more images"
                if least < 1
                else ""
            )
            raise ValueError(
                f"{start} with n0 = {non_members} non-members a model: {needed:,} are needed, so that "
                f"{MIN_FALSE_POSITIVES} false alarms are allowed; {advice or 'audit more images'}"
            )
        if one.fpr is not None and one.value >= (most := _best(members, attacks)):
            raise ValueError(
                f'limit "{one}" can never be exceeded: with n1 = {members} members a model and {attacks} attacks even a rate '
                f"of 1 shows only {most:.4g} at 95 % confidence; state a lower limit, or audit more images"
            )
        if one.metric != "epsilon" and (
            units == 2 or (one.metric == "advantage" and units < PAIRS)
        ):
            paired = models >= 2 * units
            have = f"{units} {'pair' if paired else 'training set'}{'s' if units != 1 else ''}"
            needed = f"{2 * PAIRS} models ({PAIRS} pairs)" if paired else f"{PAIRS} models"
            why = (
                "its threshold is set on other targets"
                if units < 2
                else "its interval over so few is too wide to decide"
            )
            raise ValueError(f"{start} on {models} models ({have}): {why}; train {needed} or more")
        if one.metric == "epsilon":
            if not coins:
                raise ValueError(
                    f"{start} in this design: an audited bound needs a fair coin per image, declared as split=bernoulli"
                )
            together = models >= FEWEST_APART
            m, tests = (
                (audited * (models // 2), attacks) if together else (audited, models * attacks)
            )
            alpha = 0.05 / tests / len(numbers_tried(m, 0.05 / tests, delta))
            most = one_run_epsilon(
                canaries=m, guesses=m, correct=m, delta=delta, confidence=1 - alpha
            )
            if one.value >= most:
                raise ValueError(
                    f'limit "{one}" can never be exceeded: right guesses about all {m:,} coins would certify {most:.3g}; '
                    "state a lower limit, or audit more images"
                )


@checked
def is_coins(member) -> bool:
    """Whether a mask (M, N) may have been drawn by independent fair coins, see `check_bernoulli`."""
    try:
        check_bernoulli(member)
    except ValueError:
        return False
    return True


def _best(members: int, attacks: int) -> float:
    return float(clopper_pearson(members, members, confidence=1 - 0.05 / attacks)[0])


@checked
def judge(
    stated: Sequence[Limit], scores: dict[str, Scores], *, delta: float = 1e-5, draws: int = RESAMPLES, seed: int = 0,
    apart: dict[str, Scores] | None = None, doubt: str = "",
) -> list[Verdict]:  # fmt: skip
    """What {attack: scores} say about each limit, as a statement about the largest value over all these attacks.

    Of A attacks each gets its interval at level 1 - 0.05 / A (Bonferroni, so that choosing the strongest with hindsight is paid
    for), that of `metrics.intervals`. Targets that are each other's references move together: in a leaky pool the lower
    end of lira_global lay above the truth in 4 to 6 % of worlds with 4 to 8 pairs, and in 7 % with 3. With 4 pairs or fewer the
    sentence says so. `low` and `high` are the largest lower and the largest upper end: a two-sided 95 % interval of the
    maximum.

        exceeded          low > limit
        not exceeded      high <= limit
        not established   the interval contains the limit, or there is a `doubt`

    advantage: TPR - FPR of each target at the threshold that is best on the pooled samples of the targets of other pairs, and
    not the optimistic maximum with hindsight. epsilon: the lower bound of `audit` with all attacks as attempts, at 95 %
    confidence (one-sided), from `apart` where given: {attack: scores} of the same attacks by `auditing.apart`. Nothing bounds
    epsilon from above, so that it is never "not exceeded". Every limit holds by itself: several limits are several tests. An
    attack that leaves a target without a scored member or non-member, or for a tpr@x without the non-members for 10 false
    alarms, is left out, named, and counted as tried; ValueError where that is all of them or there is none, and for advantage
    on one unit. `doubt`: the sentence of `comparable` on why members and non-members may differ in
    more than membership: no limit is then exceeded or not exceeded. Caveat: about these models and
    these attacks; what no attack here finds the next may.
    """
    if not scores:
        raise ValueError("no attack was given: wanted {attack: scores} with one attack or more")
    level, fpr = (
        1 - 0.05 / len(scores),
        tuple(dict.fromkeys(one.fpr for one in stated if one.fpr is not None)),
    )
    able = _able(scores)
    ends, rows = {}, []
    if any(one.metric == "auc" or one.fpr is not None for one in stated):
        ends = {
            name: intervals(one, fpr, draws=draws, seed=seed, confidence=level)
            for name, one in able.items()
        }
    for one in stated:
        if not (
            fit := {name: s for name, s in able.items() if one.fpr is None or _allows(s, one.fpr)}
        ):
            wanted = f"{10 / one.fpr:,.0f} non-members" if one.fpr else "a member and a non-member"
            raise ValueError(
                f'limit "{one}" cannot be measured: no attack scored {wanted} of each model'
            )
        if one.metric == "epsilon":
            rows.append(_epsilon(one, _able(apart) if apart else fit, apart or scores, delta))
            continue
        if one.metric == "advantage":
            if len(np.unique(next(iter(fit.values())).pair)) < 2:
                raise ValueError(
                    f'limit "{one}" cannot be measured on one pair: its threshold is set on other targets'
                )
            fixed = {
                name: intervals(at_others(s), (), draws=draws, seed=seed, confidence=level)
                for name, s in fit.items()
            }
            found = {
                name: 2 * table.loc["auc", ["value", "low", "high"]] - 1
                for name, table in fixed.items()
            }
        else:
            found = {name: ends[name].loc[one.metric, ["value", "low", "high"]] for name in fit}
        rows.append(_compare(one, found, scores))
    return [_doubted(row, doubt) for row in rows] if doubt else rows


def _doubted(row: Verdict, doubt: str) -> Verdict:
    alone = row.sentence.removeprefix(f"{row.limit}: ")
    said = f"{row.limit}: {OPEN}. {doubt} By the numbers alone: {alone}"
    return row._replace(outcome=OPEN, sentence=said)


def _able(scores: dict[str, Scores]) -> dict[str, Scores]:
    return {name: one for name, one in scores.items() if min(_sizes(one)[:2]) > 0}


def _allows(scores: Scores, fpr: float) -> bool:
    others = [(~scored(scores, row)[1]).sum() for row in range(len(scores.value))]
    return math.floor(fpr * min(others) + 1e-9) >= MIN_FALSE_POSITIVES


def at_others(scores: Scores) -> Scores:
    """The scores as 1 or 0: above a target's threshold or not, where TPR - FPR of the other pairs' pooled samples is largest.

    Its AUC is (1 + TPR - FPR) / 2, so that all that holds for an AUC holds for the advantage at this threshold. NaN stays.
    """
    said = np.full(scores.value.shape, np.nan)
    for pair in np.unique(scores.pair):
        rows, others = scores.pair == pair, scores.pair != pair
        known = ~np.isnan(scores.value[others])
        tp, fp, threshold = counts(scores.value[others][known], scores.member[others][known])
        said[rows] = scores.value[rows] >= threshold[np.argmax(tp / tp[-1] - fp / fp[-1])]
    return replace(scores, value=np.where(np.isnan(scores.value), np.nan, said))


def _compare(one: Limit, found: dict, scores: dict[str, Scores]) -> Verdict:
    strongest = max(found, key=lambda name: found[name]["value"])
    value, low, high = (
        float(max(row[end] for row in found.values())) for end in ("value", "low", "high")
    )
    outcome = EXCEEDED if low > one.value else BELOW if high <= one.value else OPEN
    facts = _sizes(scores[strongest])
    reason = {
        EXCEEDED: "the lower end lies above the limit",
        BELOW: "the upper end does not lie above the limit",
        OPEN: "the interval contains the limit",
    }[outcome]
    tried = f"the largest of {len(scores)} attacks" if len(scores) > 1 else "one attack"
    tried += f", {strongest}{_left_out(found, scores)}"
    said = f"{one.metric} {value:.3f} [{low:.3f}, {high:.3f}] ({tried}; {_words(scores[strongest], facts)}): {reason}"
    if 2 <= (pairs := len(np.unique(scores[strongest].pair))) <= LOOSE:
        said += f"; over {pairs} pairs such an interval misses in up to one world of seven, not of twenty"
    about = (one.metric, one.value, value, low, high, strongest, len(scores), *facts)
    return Verdict(str(one), outcome, *about, f"{one}: {outcome}; {said}")


def _left_out(found, scores: dict[str, Scores]) -> str:
    names = [name for name in scores if name not in found]
    return (
        f"; without {', '.join(names)}, which left a model with too few scored samples"
        if names
        else ""
    )


def _epsilon(
    one: Limit, fit: dict[str, Scores], scores: dict[str, Scores], delta: float
) -> Verdict:
    audits = {name: audit(s, delta=delta, attempts=len(scores)) for name, s in fit.items()}
    strongest = max(audits, key=lambda name: audits[name].epsilon)
    low, facts = float(audits[strongest].epsilon), _sizes(scores[strongest])
    outcome = EXCEEDED if low > one.value else OPEN
    who = f"{strongest}{_left_out(fit, scores)}; {_words(scores[strongest], facts)}"
    runs = audits[strongest].runs
    many = f"{runs} runs together" if runs > 1 else "one run"
    said = f"epsilon at least {low:.3g} at delta {delta:g} (95 %, {many}, {who})"
    end = (
        ""
        if outcome == EXCEEDED
        else "; a low bound is no evidence, and nothing here bounds it from above"
    )
    about = (one.metric, one.value, low, low, math.nan, strongest, len(scores), *facts)
    return Verdict(str(one), outcome, *about, f"{one}: {outcome}; {said}{end}")


def _sizes(scores: Scores) -> tuple[int, int, int]:
    sides = [scored(scores, row)[1] for row in range(len(scores.value))]
    return (
        int(min(side.sum() for side in sides)),
        int(min((~side).sum() for side in sides)),
        len(sides),
    )


def _words(scores: Scores, facts: tuple[int, int, int]) -> str:
    alone = (
        "1 model"
        if facts[2] == 1
        else f"{facts[2]} models on one split"
        if len(np.unique(scores.pair)) == 1
        else None
    )
    models = f"{alone}: training randomness not covered" if alone else f"{facts[2]} models"
    return f"{models}, n1 = {facts[0]:,}, n0 = {facts[1]:,}"
