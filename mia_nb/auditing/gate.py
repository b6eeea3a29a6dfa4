"""Judging attacks by limits stated beforehand: a gate for a release."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from mia_nb.arguments import Array, Count, Delta, Several
from mia_nb.attacks import in_words
from mia_nb.auditing.limits import Limit
from mia_nb.auditing.one_run import audit
from mia_nb.auditing.sentences import BELOW, EXCEEDED, OPEN, p_words, percent, tail_words
from mia_nb.auditing.verdicts import LimitVerdict
from mia_nb.checks import checked, quantity
from mia_nb.metrics.bootstrap import RESAMPLES
from mia_nb.metrics.curve import allowed_false_positives, measurable, roc_counts
from mia_nb.metrics.pairs import refuse_unequal_samples, unit_word
from mia_nb.metrics.permutation import LEVEL, membership_test, pure_units
from mia_nb.metrics.targets import FPR, scored, smallest
from mia_nb.metrics.uncertainty import intervals
from mia_nb.types import Scores

BECAUSE = {
    EXCEEDED: "the lower end lies above the limit",
    BELOW: "the upper end does not lie above the limit",
    OPEN: "the interval contains the limit",
}
MEASURED = ["value", "low", "high"]  # of a metric: its mean over targets, and the interval's ends
FEW_PAIRS = 4  # up to so many intervals miss too often, as targets are each other's references


@checked
def judge(
    stated: Sequence[Limit],
    scores: dict[str, Scores],
    *,
    delta: Delta = 1e-5,
    n_resamples: Several = RESAMPLES,
    seed: Count = 0,
    split_scores: dict[str, Scores] | None = None,
    doubt: str = "",
    groups: Array | None = None,
) -> list[LimitVerdict]:
    """Whether the largest value over all attacks exceeds each limit.

    Parameters:
        stated: the limits, from `limits`.
        scores: {attack: its scores} of all attacks that were tried.
        delta: of an audited epsilon.
        n_resamples: resamples of the samples' bootstrap.
        seed: of the bootstrap.
        split_scores: {attack: `score_split`} of the same attacks, for epsilon; None: `scores`.
        doubt: the sentence of `comparable` on why members and non-members may differ in more than
            membership; every limit is then "not established".
        groups: (N,) labels of audited samples that depend on each other, such as a patient's
            images, and are drawn together. None: each sample by itself.

    Returns:
        A `LimitVerdict` for each limit, with a sentence. `tail` is a sentence where a limit on the
        auc, the advantage or the TPR at a rate above the smallest measurable one is not exceeded
        and yet the largest scores give members away: by a permutation test
        (`metrics.permutation`) for one model, otherwise by an interval of the TPR at the smallest
        measurable rate that lies above guessing.

    Each of A attacks has an interval of `metrics.intervals` at level 1 - 0.05 / A (Bonferroni, for
    choosing the strongest with hindsight). Targets that are each other's references are correlated:
    in a leaky pool the lower end of lira_global lay above the truth in 4 to 6 % of worlds with 4 to
    8 pairs, and in 7 % with 3. With 4 pairs or fewer the sentence says so. `low` and `high` are the
    largest lower and the largest upper end: a two-sided 95 % interval of the maximum.

        exceeded          low > limit
        not exceeded      high <= limit
        not established   the interval contains the limit, or there is a `doubt`

    Where so many scores tie that no threshold lies near the rate of a tpr@x, the attacker may still
    accuse some of those that tie, at random. If the TPR of that has an interval that does not lie
    below the limit, a limit that would be "not exceeded" is "not established".

    advantage: TPR - FPR of each target at the threshold that is best on the pooled samples of the
    targets of other pairs, not the optimistic maximum with hindsight. epsilon: the lower bound of
    `audit` with all attacks as attempts, at 95 % confidence (one-sided). Nothing bounds epsilon
    from above, so it is never "not exceeded". Several limits are several tests, and are not
    adjusted for each other. An attack is left out, named and counted as tried if it leaves a target
    without a scored member or non-member, or for tpr@x without the non-members for 10 false alarms.

    Raises:
        ValueError: where no attack is given or left, for advantage on one pair, and for attacks on
            different samples.

    Caveat: the verdicts are about these models and these attacks; another attack may find more.
    """
    if not scores:
        raise ValueError("no attack was given: wanted {attack: scores} with one attack or more")
    refuse_unequal_samples(scores)
    if split_scores is None:
        split_scores = scores
    complete = _with_both_sides(scores)
    resampling = _resampling(scores, n_resamples, seed, groups)
    tail_rate = _smallest_rate(complete)
    tables = {}
    if any(limit.metric != "epsilon" for limit in stated):
        rates = [*(limit.fpr for limit in stated), tail_rate]
        rates = tuple(dict.fromkeys(rate for rate in rates if rate is not None))
        tables = {name: intervals(complete[name], rates, **resampling) for name in complete}
    verdicts = []
    for limit in stated:
        able = _able_to_measure(limit, complete)
        if limit.metric == "epsilon":
            verdict = _epsilon(limit, split_scores, delta)
        elif limit.metric == "advantage":
            verdict = _compare(limit, _advantages(limit, able, resampling), scores)
        else:
            measured = {name: tables[name].loc[limit.metric, MEASURED] for name in able}
            verdict = _compare(limit, measured, scores)
            ties = ""
            if limit.fpr is not None and verdict.outcome == BELOW:
                ties = _ties_that_hide(limit, able, resampling)
            if ties:
                verdict = _compare(limit, measured, scores, undecided=ties)
        if doubt:
            verdict = _doubted(verdict, doubt)
        elif verdict.outcome != EXCEEDED and _leaves_the_tail_open(limit, tail_rate):
            verdict = _with_tail(verdict, _tail(complete, tables, tail_rate, groups, seed))
        verdicts.append(verdict)
    return verdicts


def auc_against_guessing(
    scores: dict[str, Scores], *, n_resamples: int, seed: int, groups: np.ndarray | None
) -> LimitVerdict:
    """The verdict of `judge` on "auc>0.5" by the intervals, without the tail."""
    limit = Limit("auc", 0.5, None)
    able = _able_to_measure(limit, _with_both_sides(scores))
    resampling = _resampling(scores, n_resamples, seed, groups)
    measured = {name: intervals(able[name], (), **resampling).loc["auc", MEASURED] for name in able}
    return _compare(limit, measured, scores)


def _resampling(
    scores: dict[str, Scores], n_resamples: int, seed: int, groups: np.ndarray | None
) -> dict:
    """Options of `metrics.intervals` for each attack, adjusted for choosing the strongest."""
    return {
        "n_resamples": n_resamples,
        "seed": seed,
        "confidence": 1 - 0.05 / len(scores),
        "groups": groups,
    }


def _with_both_sides(scores: dict[str, Scores]) -> dict[str, Scores]:
    """The attacks that scored a member and a non-member of every target."""
    return {name: of_attack for name, of_attack in scores.items() if min(smallest(of_attack)) > 0}


def _able_to_measure(limit: Limit, complete: dict[str, Scores]) -> dict[str, Scores]:
    """The attacks that scored enough samples for a limit; ValueError without any."""
    able = {}
    for name, of_attack in complete.items():
        _, n0 = smallest(of_attack)
        if measurable(limit.metric, n0):
            able[name] = of_attack
    if not able:
        sides = "a member and a non-member"
        if limit.fpr:
            sides = f"{10 / limit.fpr:,.0f} non-members"
        raise ValueError(
            f'limit "{limit}" cannot be measured: no attack scored {sides} of each model'
        )
    return able


def _advantages(limit: Limit, able: dict[str, Scores], resampling: dict) -> dict:
    """{attack: value, low, high} of the advantage at thresholds set on other pairs."""
    first = next(iter(able.values()))
    if len(np.unique(first.pair)) < 2:
        raise ValueError(
            f'limit "{limit}" cannot be measured on one pair: its threshold is set on other targets'
        )
    measured = {}
    for name, of_attack in able.items():
        calls = called_at_threshold_of_others(of_attack)
        auc = intervals(calls, (), **resampling).loc["auc", MEASURED]
        measured[name] = 2 * auc - 1
    return measured


def _doubted(verdict: LimitVerdict, doubt: str) -> LimitVerdict:
    """The verdict where members and non-members may differ in more than membership."""
    by_numbers = verdict.sentence.removeprefix(f"{verdict.limit}: ")
    sentence = f"{verdict.limit}: {OPEN}. {doubt} By the numbers alone: {by_numbers}"
    return verdict._replace(outcome=OPEN, sentence=sentence)


def _leaves_the_tail_open(limit: Limit, tail_rate: float | None) -> bool:
    """Whether the tail, with fewer false alarms than the limit allows, is a question of its own."""
    if limit.fpr is None:
        return limit.metric != "epsilon"
    return tail_rate is not None and tail_rate < limit.fpr


def _smallest_rate(scores: dict[str, Scores]) -> float | None:
    """The smallest false positive rate that all attacks can measure; None if there is none."""
    n0 = min((smallest(of_attack)[1] for of_attack in scores.values()), default=0)
    for rate in FPR:
        if measurable(f"tpr@{rate:g}", n0):
            return rate
    return None


def _with_tail(verdict: LimitVerdict, tail: str) -> LimitVerdict:
    """The verdict, with the sentence of `_tail` where there is one."""
    if not tail:
        return verdict
    sentence = f"{verdict.sentence}; but the tail gives members away: {tail}"
    return verdict._replace(tail=tail, sentence=sentence)


def _tail(
    scores: dict[str, Scores],
    tables: dict[str, pd.DataFrame],
    rate: float | None,
    groups: np.ndarray | None,
    seed: int,
) -> str:
    """A sentence where the largest scores give members away though no limit is exceeded; else "".

    tables: `metrics.intervals` of each attack. rate: the smallest that all attacks can measure.
    """
    first = next(iter(scores.values()))
    if len(first.value) == 1:
        return _tail_of_one_model(scores, groups, seed)
    if rate is None:
        return ""
    tpr = {name: tables[name].loc[f"tpr@{rate:g}", MEASURED] for name in scores}
    return _tail_of_several_models(tpr, rate)


def _tail_of_one_model(scores: dict[str, Scores], groups: np.ndarray | None, seed: int) -> str:
    """The sentence of `_tail` by a permutation test."""
    member = next(iter(scores.values())).member[0]
    units = None if groups is None else pure_units(groups, member)
    values = {name: of_attack.value[0] for name, of_attack in scores.items()}
    while values:
        test = membership_test(values, member, units=units, seed=seed)
        p = test.parts["tail"]
        if p > LEVEL:
            return ""
        largest = values.pop(test.tail_attack)
        if test.top <= len(member) / 2:
            return f"{tail_words(test, largest, member)} ({p_words(p)}, permutation test)"
        # what most samples tie for is no tail: the other attacks are tested without this one
    return ""


def _tail_of_several_models(tpr: dict[str, pd.Series], rate: float) -> str:
    """The sentence of `_tail` by intervals of the TPR of each attack at a rate."""
    strongest = max(tpr, key=lambda name: tpr[name]["low"])
    value, low, high = tpr[strongest]
    if not low > rate:  # a NaN says nothing
        return ""
    return (
        f"at {percent(rate)} false positives {in_words(strongest)} finds {percent(value)}"
        f" [{percent(low)}, {percent(high)}] of the members"
    )


def called_at_threshold_of_others(scores: Scores) -> Scores:
    """The scores as 1 or 0: whether they reach the threshold at which TPR - FPR of the other pairs'
    pooled samples is largest.

    Its AUC is (1 + TPR - FPR) / 2, so that all that holds for an AUC holds for the advantage at
    this threshold. NaN stays.
    """
    called = np.full(scores.value.shape, np.nan)
    for pair in np.unique(scores.pair):
        rows = scores.pair == pair
        others = ~rows[:, None] & ~np.isnan(scores.value)
        tp, fp, thresholds = roc_counts(scores.value[others], scores.member[others])
        best = np.argmax(tp / tp[-1] - fp / fp[-1])
        called[rows] = scores.value[rows] >= thresholds[best]
    return replace(scores, value=np.where(np.isnan(scores.value), np.nan, called))


def _compare(
    limit: Limit, measured: dict, scores: dict[str, Scores], *, undecided: str = ""
) -> LimitVerdict:
    """The verdict on the largest of the values, from {attack: value, low, high}.

    undecided: why the limit is "not established" whatever the interval; "" if nothing says so.
    """

    def largest(column: str) -> float:
        return float(max(of_attack[column] for of_attack in measured.values()))

    value = largest("value")
    low = largest("low")
    high = largest("high")
    if undecided:
        outcome = OPEN
    elif low > limit.value:
        outcome = EXCEEDED
    elif high <= limit.value:
        outcome = BELOW
    else:
        outcome = OPEN
    reason = undecided or BECAUSE[outcome]
    strongest = max(measured, key=lambda name: measured[name]["value"])
    tried = f"the largest of {len(scores)} attacks" if len(scores) > 1 else "one attack"
    sizes = _sizes(scores[strongest])
    who = f"{tried}, {in_words(strongest)}{_left_out(measured, scores)}; {sizes}"
    sentence = f"{limit.metric} {value:.3f} [{low:.3f}, {high:.3f}] ({who}): {reason}"
    pairs = len(np.unique(scores[strongest].pair))
    if 2 <= pairs <= FEW_PAIRS:
        units = quantity(pairs, unit_word(scores[strongest]))
        sentence += f"; with {units} the interval may miss up to 14 % of the time, not 5 %"
    return _verdict(
        limit,
        outcome,
        value=value,
        low=low,
        high=high,
        strongest=strongest,
        scores=scores,
        sentence=sentence,
    )


def _ties_that_hide(limit: Limit, able: dict[str, Scores], resampling: dict) -> str:
    """Why a TPR that does not exceed its limit may yet do so, where an attacker accuses some of
    those that tie at random; "" if it does not.
    """
    measured = {}
    for name, of_attack in able.items():
        if _ties_reach_beyond(of_attack, limit.fpr):
            broken = ties_broken(of_attack, resampling["seed"])
            table = intervals(broken, (limit.fpr,), **resampling)
            measured[name] = table.loc[limit.metric, MEASURED]
    if not measured:
        return ""
    strongest = max(measured, key=lambda name: measured[name]["high"])
    value, low, high = measured[strongest]
    if not high > limit.value:
        return ""
    return (
        f"scores tie, so that {in_words(strongest)} has no threshold near {percent(limit.fpr)}"
        f" false positives; accusing at random among those that tie finds {percent(value)}"
        f" [{percent(low)}, {percent(high)}] of the members"
    )


def _ties_reach_beyond(scores: Scores, fpr: float) -> bool:
    """Whether, for some target, the scores that tie at an FPR belong to more non-members than the
    FPR allows in all.
    """
    for row in range(len(scores.value)):
        _, fp, _ = roc_counts(*scored(scores, row))
        most = allowed_false_positives(fpr, fp[-1])
        above = np.searchsorted(fp, most, side="right")
        if above < len(fp) and fp[above] - fp[above - 1] > most:
            return True
    return False


def ties_broken(scores: Scores, seed: int) -> Scores:
    """The scores as ranks, those that tie in random order."""
    rng = np.random.default_rng(seed)
    ranks = np.full(scores.value.shape, np.nan)
    for row, value in enumerate(scores.value):
        known = np.flatnonzero(~np.isnan(value))
        rising = np.lexsort((rng.random(len(known)), value[known]))
        ranks[row, known[rising]] = np.arange(len(known))
    return replace(scores, value=ranks)


def _epsilon(limit: Limit, scores: dict[str, Scores], delta: float) -> LimitVerdict:
    """The verdict on the largest audited bound."""
    able = _able_to_measure(limit, _with_both_sides(scores))
    audits = {name: audit(able[name], delta=delta, attempts=len(scores)) for name in able}
    strongest = max(audits, key=lambda name: audits[name].epsilon)
    bound = float(audits[strongest].epsilon)
    if bound > limit.value:
        outcome = EXCEEDED
        caveat = ""
    else:
        outcome = OPEN
        caveat = "; a low bound is no evidence, and nothing here bounds it from above"
    runs = audits[strongest].runs
    trainings = f"{runs} runs together" if runs > 1 else "one run"
    who = f"{strongest}{_left_out(audits, scores)}; {_sizes(scores[strongest])}"
    sentence = f"epsilon at least {bound:.3g} at delta {delta:g} (95 %, {trainings}, {who}){caveat}"
    return _verdict(
        limit,
        outcome,
        value=bound,
        low=bound,
        high=math.nan,
        strongest=strongest,
        scores=scores,
        sentence=sentence,
    )


def _verdict(
    limit: Limit,
    outcome: str,
    *,
    value: float,
    low: float,
    high: float,
    strongest: str,
    scores: dict[str, Scores],
    sentence: str,
) -> LimitVerdict:
    """The record of a verdict, with the numbers of samples of the strongest attack."""
    n1, n0 = smallest(scores[strongest])
    return LimitVerdict(
        limit=str(limit),
        outcome=outcome,
        metric=limit.metric,
        threshold=limit.value,
        value=value,
        low=low,
        high=high,
        attack=strongest,
        attacks=len(scores),
        n1=n1,
        n0=n0,
        targets=len(scores[strongest].value),
        sentence=f"{limit}: {outcome}; {sentence}",
    )


def _left_out(measured: dict, scores: dict[str, Scores]) -> str:
    """The attacks that were tried and not measured, in words; "" if all were."""
    names = ", ".join(name for name in scores if name not in measured)
    return f"; without {names}, which left a model with too few scored samples" if names else ""


def _sizes(scores: Scores) -> str:
    """The numbers of models, members and non-members, in words."""
    n1, n0 = smallest(scores)
    targets = len(scores.value)
    models = f"{targets} models"
    if len(np.unique(scores.pair)) == 1:
        alone = "1 model" if targets == 1 else f"{models} on one split"
        models = f"{alone}: training randomness not covered"
    return f"{models}, n1 = {n1:,}, n0 = {n0:,}"
