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
from mia_nb.metrics.curve import allowed, counts, measurable
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
ENDS = ["value", "low", "high"]
LOOSE = 4  # up to so many pairs intervals miss too often, as targets are each other's references


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
        (`metrics.permutation`) for models on one training set, otherwise by an interval of the TPR
        at the smallest measurable rate that lies above guessing.

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
    able = _able(scores)
    resampling = _resampling(scores, n_resamples, seed, groups)
    shared = {}
    tail_rate = _smallest_rate(able)
    if any(limit.metric != "epsilon" for limit in stated):
        rates = [*(limit.fpr for limit in stated), tail_rate]
        rates = tuple(dict.fromkeys(rate for rate in rates if rate is not None))
        shared = {name: intervals(able[name], rates, **resampling) for name in able}
    verdicts = []
    for limit in stated:
        fit = _fit(limit, able)
        if limit.metric == "epsilon":
            verdict = _epsilon(limit, scores if split_scores is None else split_scores, delta)
        elif limit.metric == "advantage":
            verdict = _compare(limit, _advantages(limit, fit, resampling), scores)
        else:
            ends = {name: shared[name].loc[limit.metric, ENDS] for name in fit}
            verdict = _compare(limit, ends, scores)
            if limit.fpr is not None and verdict.outcome == BELOW:
                verdict = _open_where_ties_hide(verdict, limit, fit, resampling)
        if doubt:
            alone = verdict.sentence.removeprefix(f"{limit}: ")
            sentence = f"{limit}: {OPEN}. {doubt} By the numbers alone: {alone}"
            verdict = verdict._replace(outcome=OPEN, sentence=sentence)
        elif verdict.outcome != EXCEEDED and _leaves_the_tail_open(limit, tail_rate):
            tail = _tail(able, shared, tail_rate, groups, seed)
            if tail:
                sentence = f"{verdict.sentence}; but the tail gives members away: {tail}"
                verdict = verdict._replace(tail=tail, sentence=sentence)
        verdicts.append(verdict)
    return verdicts


def auc_against_guessing(
    scores: dict[str, Scores], *, n_resamples: int, seed: int, groups: np.ndarray | None
) -> LimitVerdict:
    """The verdict of `judge` on "auc>0.5" by the intervals, without the tail."""
    limit = Limit("auc", 0.5, None)
    fit = _fit(limit, _able(scores))
    resampling = _resampling(scores, n_resamples, seed, groups)
    ends = {name: intervals(fit[name], (), **resampling).loc["auc", ENDS] for name in fit}
    return _compare(limit, ends, scores)


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


def _fit(limit: Limit, able: dict[str, Scores]) -> dict[str, Scores]:
    """The attacks that scored enough samples for a limit; ValueError without any."""
    fit = {
        name: attacked
        for name, attacked in able.items()
        if measurable(limit.metric, smallest(attacked)[1])
    }
    if not fit:
        sides = "a member and a non-member"
        if limit.fpr:
            sides = f"{10 / limit.fpr:,.0f} non-members"
        raise ValueError(
            f'limit "{limit}" cannot be measured: no attack scored {sides} of each model'
        )
    return fit


def _advantages(limit: Limit, fit: dict[str, Scores], resampling: dict) -> dict:
    """{attack: value, low, high} of the advantage at thresholds set on other pairs."""
    if len(np.unique(next(iter(fit.values())).pair)) < 2:
        raise ValueError(
            f'limit "{limit}" cannot be measured on one pair: its threshold is set on other targets'
        )
    ends = {}
    for name, attacked in fit.items():
        area = intervals(at_others(attacked), (), **resampling).loc["auc", ENDS]
        ends[name] = 2 * area - 1
    return ends


def _leaves_the_tail_open(limit: Limit, tail_rate: float | None) -> bool:
    """Whether the tail, with fewer false alarms than the limit allows, is a question of its own."""
    if limit.fpr is None:
        return limit.metric != "epsilon"
    return tail_rate is not None and tail_rate < limit.fpr


def _smallest_rate(scores: dict[str, Scores]) -> float | None:
    """The smallest false positive rate that all attacks can measure; None if there is none."""
    n0 = min((smallest(attacked)[1] for attacked in scores.values()), default=0)
    return next((rate for rate in FPR if measurable(f"tpr@{rate:g}", n0)), None)


def _tail(
    scores: dict[str, Scores],
    shared: dict[str, pd.DataFrame],
    rate: float | None,
    groups: np.ndarray | None,
    seed: int,
) -> str:
    """A sentence where the largest scores give members away though no limit is exceeded; else "".

    rate: the smallest that all attacks can measure.
    """
    first = next(iter(scores.values()))
    if len(first.value) == 1:
        member = first.member[0]
        values = {name: attacked.value[0] for name, attacked in scores.items()}
        units = None if groups is None else pure_units(groups, member)
        while values:
            test = membership_test(values, member, units=units, seed=seed)
            if test.parts["tail"] > LEVEL:
                return ""
            largest = values.pop(test.tail_attack)
            if test.top <= len(member) / 2:  # what most samples tie for is no tail
                words = tail_words(test, largest, member)
                return f"{words} ({p_words(test.parts['tail'])}, permutation test)"
        return ""
    if rate is None:
        return ""
    ends = {name: shared[name].loc[f"tpr@{rate:g}", ENDS] for name in scores}
    strongest = max(ends, key=lambda name: ends[name]["low"])
    value, low, high = ends[strongest]
    if not low > rate:  # a NaN says nothing
        return ""
    return (
        f"at {percent(rate)} false positives {in_words(strongest)} finds {percent(value)}"
        f" [{percent(low)}, {percent(high)}] of the members"
    )


def _able(scores: dict[str, Scores]) -> dict[str, Scores]:
    """The attacks that scored a member and a non-member of every target."""
    return {name: attacked for name, attacked in scores.items() if min(smallest(attacked)) > 0}


def at_others(scores: Scores) -> Scores:
    """The scores as 1 or 0: above a target's threshold or not, where TPR - FPR of the other pairs'
    pooled samples is largest.

    Its AUC is (1 + TPR - FPR) / 2, so that all that holds for an AUC holds for the advantage at
    this threshold. NaN stays.
    """
    called = np.full(scores.value.shape, np.nan)
    for pair in np.unique(scores.pair):
        rows = scores.pair == pair
        others = scores.pair != pair
        known = ~np.isnan(scores.value[others])
        tp, fp, threshold = counts(scores.value[others][known], scores.member[others][known])
        called[rows] = scores.value[rows] >= threshold[np.argmax(tp / tp[-1] - fp / fp[-1])]
    return replace(scores, value=np.where(np.isnan(scores.value), np.nan, called))


def _compare(limit: Limit, ends: dict, scores: dict[str, Scores]) -> LimitVerdict:
    """The verdict on the largest of the values, from {attack: value, low, high}."""
    strongest = max(ends, key=lambda name: ends[name]["value"])
    value, low, high = (float(max(row[end] for row in ends.values())) for end in ENDS)
    if low > limit.value:
        outcome = EXCEEDED
    elif high <= limit.value:
        outcome = BELOW
    else:
        outcome = OPEN
    tried = f"the largest of {len(scores)} attacks" if len(scores) > 1 else "one attack"
    who = f"{tried}, {in_words(strongest)}{_left_out(ends, scores)}; {_words(scores[strongest])}"
    sentence = f"{limit.metric} {value:.3f} [{low:.3f}, {high:.3f}] ({who}): {BECAUSE[outcome]}"
    pairs = len(np.unique(scores[strongest].pair))
    if 2 <= pairs <= LOOSE:
        units = quantity(pairs, unit_word(scores[strongest]))
        sentence += f"; with {units} the interval may miss up to 14 % of the time, not 5 %"
    return _verdict(limit, outcome, (value, low, high), strongest, scores, sentence)


def _open_where_ties_hide(
    verdict: LimitVerdict, limit: Limit, fit: dict[str, Scores], resampling: dict
) -> LimitVerdict:
    """The verdict "not exceeded" on a TPR; "not established" where ties may hide that it is."""
    ends = {}
    for name, attacked in fit.items():
        if _ties_reach_beyond(attacked, limit.fpr):
            broken = ties_broken(attacked, resampling["seed"])
            ends[name] = intervals(broken, (limit.fpr,), **resampling).loc[limit.metric, ENDS]
    if not ends:
        return verdict
    strongest = max(ends, key=lambda name: ends[name]["high"])
    value, low, high = ends[strongest]
    if not high > limit.value:
        return verdict
    ties = (
        f"scores tie, so that {in_words(strongest)} has no threshold near {percent(limit.fpr)}"
        f" false positives; accusing at random among those that tie finds {percent(value)}"
        f" [{percent(low)}, {percent(high)}] of the members"
    )
    sentence = verdict.sentence.replace(f"{limit}: {BELOW}", f"{limit}: {OPEN}", 1)
    sentence = sentence.replace(BECAUSE[BELOW], ties)
    return verdict._replace(outcome=OPEN, sentence=sentence)


def _ties_reach_beyond(scores: Scores, fpr: float) -> bool:
    """Whether, for some target, the scores that tie at an FPR belong to more non-members than the
    FPR allows in all.
    """
    for row in range(len(scores.value)):
        _, fp, _ = counts(*scored(scores, row))
        most = allowed(fpr, fp[-1])
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
    fit = _fit(limit, _able(scores))
    audits = {name: audit(fit[name], delta=delta, attempts=len(scores)) for name in fit}
    strongest = max(audits, key=lambda name: audits[name].epsilon)
    low = float(audits[strongest].epsilon)
    runs = audits[strongest].runs
    outcome, end = EXCEEDED, ""
    if low <= limit.value:
        outcome = OPEN
        end = "; a low bound is no evidence, and nothing here bounds it from above"
    many = f"{runs} runs together" if runs > 1 else "one run"
    who = f"{strongest}{_left_out(audits, scores)}; {_words(scores[strongest])}"
    sentence = f"epsilon at least {low:.3g} at delta {delta:g} (95 %, {many}, {who}){end}"
    return _verdict(limit, outcome, (low, low, math.nan), strongest, scores, sentence)


def _verdict(
    limit: Limit,
    outcome: str,
    ends: tuple[float, float, float],
    strongest: str,
    scores: dict[str, Scores],
    sentence: str,
) -> LimitVerdict:
    value, low, high = ends
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


def _left_out(used, scores: dict[str, Scores]) -> str:
    names = ", ".join(name for name in scores if name not in used)
    return f"; without {names}, which left a model with too few scored samples" if names else ""


def _words(scores: Scores) -> str:
    n1, n0 = smallest(scores)
    targets = len(scores.value)
    models = f"{targets} models"
    if len(np.unique(scores.pair)) == 1:
        alone = "1 model" if targets == 1 else f"{models} on one split"
        models = f"{alone}: training randomness not covered"
    return f"{models}, n1 = {n1:,}, n0 = {n0:,}"
