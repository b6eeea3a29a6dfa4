"""Limits stated beforehand on what attacks may find, and what the evidence says about each: a gate
for a release.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb import escape
from mia_nb.arguments import Array, Count, Delta, Whole
from mia_nb.attacks import in_words
from mia_nb.auditing.one_run import (
    FEWEST_SPLIT,
    audit,
    numbers_tried,
    perfect_epsilon,
)
from mia_nb.auditing.sentences import BELOW, EXCEEDED, OPEN, p_words, percent, tail_words
from mia_nb.checks import checked, shown
from mia_nb.metrics.bootstrap import RESAMPLES
from mia_nb.metrics.curve import MIN_FALSE_POSITIVES, clopper_pearson, counts, measurable
from mia_nb.metrics.pairs import refuse_unequal_samples
from mia_nb.metrics.permutation import LEVEL, membership_test, pure_units
from mia_nb.metrics.targets import FPR, smallest
from mia_nb.metrics.uncertainty import intervals
from mia_nb.types import Scores

BECAUSE = {
    EXCEEDED: "the lower end lies above the limit",
    BELOW: "the upper end does not lie above the limit",
    OPEN: "the interval contains the limit",
}
WANTED = (
    'wanted METRIC>LIMIT with METRIC auc, advantage, tpr@FPR or epsilon, e.g. "tpr@0.01>0.05" or'
    ' "auc>0.6"'
)
FORM = re.compile(
    r"\s*(auc|advantage|epsilon|tpr@([0-9.]+(?:e-?[0-9]+)?))\s*>\s*([0-9.]+(?:e-?[0-9]+)?)\s*",
    re.IGNORECASE,
)
# with 2, Student's t has one degree of freedom, and at 1 - 0.05 / attacks no limit is ever decided
PAIRS = 3
UNDECLARED = (
    " cannot be measured in this design: an audited bound needs a fair coin per image, declared as"
    " split=bernoulli"
)
ENDS = ["value", "low", "high"]
RESULT = {EXCEEDED: "EXCEEDED", BELOW: "PASS", OPEN: "NOT ESTABLISHED"}
COLOURS = {EXCEEDED: "exceeded", BELOW: "not-exceeded"}  # classes in report.css
LOOSE = 4  # pairs up to which intervals miss too often, since targets are each other's references


class Limit(NamedTuple):
    """`metric` (auc, advantage, tpr@x or epsilon) is not to lie above `value`; `fpr` is the x of a
    tpr@x.
    """

    metric: str
    value: float
    fpr: float | None

    def __str__(self) -> str:
        return f"{self.metric}>{float(self.value)}".removesuffix(".0")


class LimitVerdict(NamedTuple):
    """What was found about one limit.

    `low`, `high`: 95 % interval of the largest value over attacks (NaN: no such end). `p`: of the
    permutation test, where that decided (an audit of one finished model); else NaN. `tail`: what
    the largest scores say against a limit that was not exceeded, "" where they do not.
    """

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
    p: float = math.nan
    tail: str = ""

    def __repr__(self) -> str:
        return escape.terminal(self.sentence)

    def _repr_markdown_(self) -> str:
        return escape.markdown(self.sentence)


class LimitsTable:
    """Stated limits beside what was measured, each with its result in a word, for people to read.

    `rows` holds one dictionary a limit: limit, measured, 95 % interval, strongest attack, result.
    A notebook shows them as a table, a terminal as lines; in a report decided ones are coloured,
    but for a limit that is kept while the tail leaks.

    Example:
        >>> from mia_nb.auditing import LimitsTable
        >>> from mia_nb.auditing.gate import LimitVerdict
        >>> measured = ("auc", 0.6, 0.7, 0.65, 0.75, "rmia", 2, 9, 9, 4, "")
        >>> print(LimitsTable([LimitVerdict("auc>0.6", "exceeded", *measured)]))
          limit measured 95 % interval strongest attack   result
        auc>0.6    0.700  0.650, 0.750             RMIA EXCEEDED
    """

    def __init__(self, verdicts: Sequence[LimitVerdict]) -> None:
        """Verdicts as `judge` gives them."""
        self.verdicts = list(verdicts)
        self.rows = [_row(verdict) for verdict in self.verdicts]

    def __repr__(self) -> str:
        if not self.rows:
            return "no limit was stated"
        return escape.lines(pd.DataFrame(self.rows).to_string(index=False))

    def _repr_html_(self) -> str:
        if not self.rows:
            return ""
        heads = "".join(f"<th>{escape.html(name)}</th>" for name in self.rows[0])
        lines = []
        for verdict, row in zip(self.verdicts, self.rows, strict=True):
            cells = [f"<td>{escape.html(cell)}</td>" for cell in row.values()]
            cells[-1] = f"<td><strong>{escape.html(row['result'])}</strong></td>"
            colour = "" if verdict.tail else COLOURS.get(verdict.outcome, "")
            opening = f'<tr class="{colour}">' if colour else "<tr>"
            lines.append(f"{opening}{''.join(cells)}</tr>")
        body = "".join(lines)
        return f'<table class="limits"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'


def _row(verdict: LimitVerdict) -> dict[str, str]:
    """One line of the table; rates are percentages, other measures have three decimals."""

    def shown(value: float) -> str:
        if math.isnan(value):
            return "not measurable"
        if verdict.metric.startswith("tpr"):
            return percent(value)
        return f"{value:.3f}"

    interval = f"{shown(verdict.low)}, {shown(verdict.high)}"
    if math.isnan(verdict.high):
        interval = "not measurable" if math.isnan(verdict.low) else f"{shown(verdict.low)} or more"
    result = RESULT[verdict.outcome]
    if verdict.tail and verdict.outcome == BELOW:
        result += ", but the tail leaks"
    return {
        "limit": verdict.limit,
        "measured": shown(verdict.value),
        "95 % interval": interval,
        "strongest attack": in_words(verdict.attack) if verdict.attack else "",
        "result": result,
    }


@checked
def limits(texts: Array) -> list[Limit]:
    """The limits that texts like "tpr@0.01>0.05" or "auc>0.6" state, each once.

    Parameters:
        texts: METRIC>LIMIT, with METRIC auc, advantage, tpr@FPR or epsilon.

    Returns:
        A list of `Limit`: metric, value, and the fpr of a tpr@FPR.

    Raises:
        ValueError: of one line for whatever is none, and for limits never exceeded.
    """
    if not np.iterable(texts):
        raise ValueError(f"texts={shown(texts)}: wanted a list of them; {WANTED}")
    return list(dict.fromkeys(_limit_of(str(text)) for text in texts))


def _limit_of(text: str) -> Limit:
    """The limit that one text states."""
    start = f'limit "{text}": '
    match = FORM.fullmatch(text)
    try:
        name = match[1].lower()
        fpr = match[2] and float(match[2])
        value = float(match[3])
    except (TypeError, ValueError):
        raise ValueError(f"{start}{WANTED}") from None
    if not math.isfinite(value):
        raise ValueError(f"{start}nothing lies above it; wanted a finite limit")
    if fpr is not None and not 0 < fpr < 1:
        raise ValueError(f"{start}a false positive rate lies between 0 and 1; 1 % is 0.01")
    if fpr is not None and float(f"{fpr:g}") != fpr:
        raise ValueError(f"{start}a false positive rate has six digits at most; wanted tpr@{fpr:g}")
    if name != "epsilon" and value >= 1:
        metric = name.partition("@")[0]
        raise ValueError(f"{start}{metric} is a fraction and never above 1; 5 % is 0.05")
    guessing = 0.5 if name == "auc" else fpr or 0.0
    if value < guessing:
        raise ValueError(
            f"{start}an attacker who guesses reaches {guessing:g}; wanted a limit at or above that"
        )
    return Limit(name if fpr is None else f"tpr@{fpr:g}", value, fpr)


def fewest(audited: int, split: str) -> int:
    """Members, or non-members, that every model has at least: half of the audited samples, in coins
    four s.d. less.
    """
    coins = max(0, math.floor(audited / 2 - 2 * math.sqrt(audited)))
    return audited // 2 if split == "pairs" else coins


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
        stated: those of `limits`.
        models: how many are audited.
        split: of the recipe, or the kind of `design`; an epsilon wants members drawn by fair coins
            ("bernoulli", "coins").
        audited: samples; an epsilon's limit must lie below what a perfect attack on them certifies.
        members: of the model that has fewest; None: what `split` leaves of `audited`.
        non_members: of the model that has fewest; a tpr@x wants ceil(10 / x); None: as for members.
        delta: of an audited epsilon.
        attacks: how many will be tried.
        units: pairs, or training sets that are no complements (None: models / 2, or with coins
            all). Two decide nothing but an epsilon; one leaves the samples' own interval, which
            says nothing on other trainings, and no advantage, since its threshold comes from other
            pairs.

    Raises:
        ValueError: of one line for the first limit of that kind.
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
            raise ValueError(f'limit "{limit}"{reason}')


def _too_few_samples(limit: Limit, n0: int, n1: int, attacks: int) -> str:
    """Why a limit on a rate is refused, "" where it is not."""
    if limit.fpr is None:
        return ""
    if not measurable(limit.metric, n0):
        needed = math.ceil(MIN_FALSE_POSITIVES / limit.fpr - 1e-9)
        least = MIN_FALSE_POSITIVES / max(n0, 1)
        rate = ""
        if least < 1:
            rate = f"state tpr@{math.ceil(1e4 * least) / 1e4:g} or a higher rate, or "
        return (
            f" cannot be measured with n0 = {n0} non-members a model: {needed:,} are needed,"
            f" so that {MIN_FALSE_POSITIVES} false alarms are allowed; {rate}audit more images"
        )
    most = clopper_pearson(max(n1, 1), max(n1, 1), confidence=1 - 0.05 / attacks)[0]
    if limit.value >= most:
        return (
            f" can never be exceeded: with n1 = {n1} members a model and {attacks} attacks even a"
            f" rate of 1 shows only {most:.4g} at 95 % confidence; state a lower limit, or audit"
            " more images"
        )
    return ""


def _too_few_units(limit: Limit, models: int, units: int) -> str:
    """Why a limit on an interval over so few is refused, "" where it is not."""
    if units != 2 and (limit.metric != "advantage" or units >= PAIRS):
        return ""
    paired = models >= 2 * units
    have = f"{units} {'pair' if paired else 'training set'}{'s' if units != 1 else ''}"
    needed = f"{2 * PAIRS} models ({PAIRS} pairs)" if paired else f"{PAIRS} models"
    why = "its threshold is set on other targets"
    if units >= 2:
        why = "its interval over so few is too wide to decide"
    return f" cannot be measured on {models} models ({have}): {why}; train {needed} or more"


def _too_large_epsilon(limit: Limit, models: int, audited: int, delta: float, attacks: int) -> str:
    """Why a limit on epsilon is refused, "" where it is not."""
    coins, tests = audited, models
    if models >= FEWEST_SPLIT:  # half of the models are audited together
        coins, tests = audited * (models // 2), 1
    alpha = 0.05 / (tests * attacks)
    alpha /= len(numbers_tried(coins, alpha, delta))
    most = perfect_epsilon(coins, coins, delta, 1 - alpha)
    if limit.value < most:
        return ""
    return (
        f" can never be exceeded: right guesses about all {coins:,} coins would certify {most:.3g};"
        " state a lower limit, or audit more images"
    )


@checked
def judge(
    stated: Sequence[Limit],
    scores: dict[str, Scores],
    *,
    delta: Delta = 1e-5,
    n_resamples: Count = RESAMPLES,
    seed: Count = 0,
    split_scores: dict[str, Scores] | None = None,
    doubt: str = "",
    groups: Array | None = None,
) -> list[LimitVerdict]:
    """What attacks say about each limit, as a statement about the largest value over all of them.

    Parameters:
        stated: those of `limits`.
        scores: {attack: its scores}, all that were tried.
        delta: of an audited epsilon.
        n_resamples: resamples of the samples' bootstrap.
        seed: of the bootstrap.
        split_scores: {attack: `score_split`} of the same attacks, for epsilon; None: `scores`.
        doubt: the sentence of `comparable` on why members and non-members may differ in more than
            membership: no limit is then exceeded or not exceeded.
        groups: (N,) labels of audited samples that are not independent of each other, as a
            patient's images: they are drawn as a whole. None: each sample by itself.

    Returns:
        A `LimitVerdict` for each limit, with a sentence. Where a limit on the auc, the advantage or
        the TPR at a higher rate than the smallest measurable one is not exceeded and yet the
        largest scores give members away, `tail` says so: of models on one training set by a
        permutation test (`metrics.permutation`), of others by the TPR at the smallest measurable
        rate, whose interval lies above guessing.

    Of A attacks each gets its interval at level 1 - 0.05 / A (Bonferroni, so that choosing the
    strongest with hindsight is paid for), that of `metrics.intervals`. Targets that are each
    other's references move together: in a leaky pool the lower end of lira_global lay above the
    truth in 4 to 6 % of worlds with 4 to 8 pairs, and in 7 % with 3. With 4 pairs or fewer the
    sentence says so. `low` and `high` are the largest lower and the largest upper end: a two-sided
    95 % interval of the maximum.

        exceeded          low > limit
        not exceeded      high <= limit
        not established   the interval contains the limit, or there is a `doubt`

    advantage: TPR - FPR of each target at the threshold that is best on the pooled samples of the
    targets of other pairs, and not the optimistic maximum with hindsight. epsilon: the lower bound
    of `audit` with all attacks as attempts, at 95 % confidence (one-sided). Nothing bounds epsilon
    from above, so that it is never "not exceeded". Every limit holds by itself: several limits are
    several tests. An attack that leaves a target without a scored member or non-member, or for a
    tpr@x without the non-members for 10 false alarms, is left out, named, and counted as tried.

    Raises:
        ValueError: where no attack is left or given, for advantage on one pair, and for attacks on
            different samples.

    Caveat: about these models and these attacks; what no attack here finds the next may.
    """
    if not scores:
        raise ValueError("no attack was given: wanted {attack: scores} with one attack or more")
    refuse_unequal_samples(scores)
    able = _able(scores)
    resampling = {
        "n_resamples": n_resamples,
        "seed": seed,
        "confidence": 1 - 0.05 / len(scores),
        "groups": groups,
    }
    shared = {}
    if any(limit.metric != "epsilon" for limit in stated):
        rates = [limit.fpr for limit in stated if limit.fpr is not None]
        rates = tuple(dict.fromkeys([*rates, *_tail_rates(able)]))
        shared = {name: intervals(able[name], rates, **resampling) for name in able}
    verdicts = []
    for limit in stated:
        fit = _fit(limit, able)
        if limit.metric == "epsilon":
            verdict = _epsilon(limit, split_scores or scores, delta)
        elif limit.metric == "advantage":
            verdict = _compare(limit, _advantages(limit, fit, resampling), scores)
        else:
            ends = {name: shared[name].loc[limit.metric, ENDS] for name in fit}
            verdict = _compare(limit, ends, scores)
        if doubt:
            alone = verdict.sentence.removeprefix(f"{limit}: ")
            sentence = f"{limit}: {OPEN}. {doubt} By the numbers alone: {alone}"
            verdict = verdict._replace(outcome=OPEN, sentence=sentence)
        elif verdict.outcome != EXCEEDED and _beyond_the_limit(limit, able):
            verdict = _with_tail(verdict, _tail(able, shared, groups, seed))
        verdicts.append(verdict)
    return verdicts


def _with_tail(verdict: LimitVerdict, tail: str) -> LimitVerdict:
    if not tail:
        return verdict
    sentence = f"{verdict.sentence}; but the tail gives members away: {tail}"
    return verdict._replace(tail=tail, sentence=sentence)


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


def _beyond_the_limit(limit: Limit, scores: dict[str, Scores]) -> bool:
    """Whether the tail is another question than the limit's: fewer false alarms than it allows."""
    if limit.fpr is None:
        return limit.metric != "epsilon"
    return any(rate < limit.fpr for rate in _tail_rates(scores))


def _tail_rates(scores: dict[str, Scores]) -> list[float]:
    """The smallest false positive rate that all attacks can measure."""
    n0 = min((smallest(attacked)[1] for attacked in scores.values()), default=0)
    return [x for x in FPR if measurable(f"tpr@{x:g}", n0)][:1]


def _tail(scores: dict[str, Scores], shared: dict, groups, seed: int) -> str:
    """What the largest scores say where the limit on the whole is not exceeded; "" if nothing."""
    first = next(iter(scores.values()))
    if len(first.value) == 1:
        member = first.member[0]
        values = {name: attacked.value[0] for name, attacked in scores.items()}
        units = None if groups is None else pure_units(groups, member)
        test = membership_test(values, member, units=units, seed=seed)
        if test.parts["tail"] > LEVEL:
            return ""
        words = tail_words(test, values[test.tail_attack], member)
        return f"{words} ({p_words(test.parts['tail'])}, permutation test)"
    for x in _tail_rates(scores):
        ends = {name: shared[name].loc[f"tpr@{x:g}", ENDS] for name in scores}
        strongest = max(ends, key=lambda name: ends[name]["low"])
        value, low, high = ends[strongest]
        if low > x:
            return (
                f"at {percent(x)} false positives {in_words(strongest)} finds {percent(value)}"
                f" [{percent(low)}, {percent(high)}] of the members"
            )
    return ""


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
        sentence += f"; with {pairs} pairs the interval may miss up to 14 % of the time, not 5 %"
    return _verdict(limit, outcome, (value, low, high), strongest, scores, sentence)


def _epsilon(limit: Limit, scores: dict[str, Scores], delta: float) -> LimitVerdict:
    """The verdict on the largest audited bound."""
    able = _able(scores)
    audits = {name: audit(able[name], delta=delta, attempts=len(scores)) for name in able}
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
