"""The decision about one finished model, by one permutation test of all attacks' ranks, the mean
loss and the largest scores.
"""

from __future__ import annotations

import numpy as np
from scipy.special import stdtrit

from mia_nb.attacks.margins import log_p as log_p_of
from mia_nb.auditing.gate import auc_against_guessing
from mia_nb.auditing.sentences import (
    BELOW,
    EXCEEDED,
    OPEN,
    conclusion_words,
    decision_words,
    loss_words,
    strongest_words,
    tail_words,
)
from mia_nb.auditing.verdicts import LimitVerdict
from mia_nb.metrics.curve import clopper_pearson_of_groups
from mia_nb.metrics.permutation import LEVEL, Evidence, membership_test
from mia_nb.types import Scores, Signals

# names of the values whose means are compared
LOSS = "loss"
EXCESS = "excess loss"


def decided_by_permutation(
    scores: dict[str, Scores],
    signals: Signals,
    *,
    units: np.ndarray | None,
    doubt: str,
    n_resamples: int,
    seed: int,
) -> tuple[LimitVerdict, str, str]:
    """The verdict of the permutation test on one finished model.

    Parameters:
        scores: {attack: its scores of the model}.
        signals: of models, the audited one first.
        units: (N,) labels of samples that are permuted together; None: each sample by itself.
        doubt: why nothing can be concluded; "" if something can.
        n_resamples: resamples of the bootstrap, for the interval of the AUC.
        seed: of the bootstrap and of the permutations.

    Returns:
        (verdict, with the numbers that decided; what was found, in words; what decided, in words).
    """
    by_interval = auc_against_guessing(scores, n_resamples=n_resamples, seed=seed, groups=units)
    member = next(iter(scores.values())).member[0]
    values = {name: of_attack.value[0] for name, of_attack in scores.items()}
    means = compared_means(signals)
    evidence = membership_test(values, member, means=means, units=units, seed=seed)
    leaks = evidence.p <= LEVEL
    if doubt:
        outcome = OPEN
    elif leaks:
        outcome = EXCEEDED
    elif by_interval.outcome == BELOW:
        outcome = BELOW
    else:
        outcome = OPEN
    verdict = by_interval._replace(outcome=outcome, p=evidence.p)
    conclusion = conclusion_words(verdict, bool(doubt), leaks)
    numbers = strongest_words(verdict)
    if leaks:
        verdict, numbers = _of_decisive_part(verdict, evidence, values, means, member, units)
    finding = f"{conclusion}: {numbers}"
    decided = decision_words(evidence)
    sentence = f"{verdict.limit}: {verdict.outcome}; {finding}. {decided}"
    return verdict._replace(sentence=sentence), finding, decided


def _of_decisive_part(
    verdict: LimitVerdict,
    evidence: Evidence,
    scores: dict[str, np.ndarray],
    means: dict[str, np.ndarray],
    member: np.ndarray,
    units: np.ndarray | None,
) -> tuple[LimitVerdict, str]:
    """The verdict of a model that leaks, with the numbers of the part of the test that decided, and
    these in words.

    Parameters:
        verdict: with the numbers of the AUC.
        evidence: the result of the test.
        scores, means, member, units: what was tested.
    """
    numbers = strongest_words(verdict)
    largest = scores[evidence.tail_attack]
    if evidence.parts["tail"] <= LEVEL:
        verdict = verdict._replace(tail=tail_words(evidence, largest, member))
    if evidence.part == "loss":
        log_p = means[evidence.mean]
        gap = loss_gap(log_p, member, units)
        numbers = f"{loss_words(evidence.mean, log_p, member, gap)}; {numbers}"
        verdict = _of_part(verdict, "loss", 0.0, gap, evidence.mean)
    elif evidence.part == "tail":
        groups = groups_among_largest(largest, units, evidence.top)
        low, high = clopper_pearson_of_groups(evidence.top_members, evidence.top, groups)
        share = np.array([evidence.top_members / evidence.top, low, high])
        numbers = f"{verdict.tail}. Over all samples {numbers}"
        verdict = _of_part(verdict, "tail", evidence.member_share, share, evidence.tail_attack)
    return verdict, numbers


def groups_among_largest(scores: np.ndarray, units: np.ndarray | None, top: int) -> int:
    """How many units the `top` largest scores (N,) are from; those that tie at the edge count."""
    if units is None:
        return top
    known = ~np.isnan(scores)
    edge = np.sort(scores[known])[-top]
    return min(top, len(np.unique(units[known & (scores >= edge)])))


def _of_part(
    verdict: LimitVerdict, metric: str, threshold: float, measured: np.ndarray, attack: str
) -> LimitVerdict:
    """The verdict with the numbers of the part that decided: mean loss, or largest scores.

    measured: value, and the ends of its interval.
    """
    value, low, high = map(float, measured)
    return verdict._replace(
        limit=f"{metric}>{threshold:g}",
        metric=metric,
        threshold=threshold,
        value=value,
        low=low,
        high=high,
        attack=attack,
    )


def compared_means(signals: Signals) -> dict[str, np.ndarray]:
    """Values (N,) of one model whose means over members and non-members are compared: log p of the
    true label, and its excess over the model's own expectation, sum_c p_c log p_c.

    The model's certainty differs between samples and says little about membership, so the excess
    varies less than the loss.
    """
    audited = ~signals.population
    log_p = log_p_of(signals.margin[0].mean(0)[audited])
    expected = -signals.entropy[0].mean(0)[audited]
    if np.isnan(expected).any():
        return {LOSS: log_p}
    return {LOSS: log_p, EXCESS: log_p - expected}


def loss_gap(log_p: np.ndarray, member: np.ndarray, units: np.ndarray | None) -> np.ndarray:
    """Mean loss of non-members minus that of members, and the ends of a 95 % interval over units.

    The interval is normal. Where samples were grouped it is Student's, with one degree of freedom
    fewer than units on the smaller side. The ends are NaN where a side is a single unit.
    """
    labels = np.arange(len(member)) if units is None else units
    variance = 0.0
    means = []
    sizes = []
    for side in (member, ~member):
        loss = -log_p[side]
        _, unit = np.unique(labels[side], return_inverse=True)
        residual = np.bincount(unit, loss - loss.mean())
        small_sample = len(residual) / max(len(residual) - 1, 1)
        variance += small_sample * float(residual @ residual) / len(loss) ** 2
        means.append(loss.mean())
        sizes.append(len(residual))
    gap = means[1] - means[0]
    quantile = 1.96
    if min(sizes) < 2:
        quantile = np.nan
    elif units is not None:
        quantile = stdtrit(min(sizes) - 1, 0.975)
    half = quantile * np.sqrt(variance)
    return np.array([gap, gap - half, gap + half])
