"""The rates at which canaries are found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mia_nb.arguments import Count, Fraction, Rates, Several
from mia_nb.checks import checked
from mia_nb.metrics.curve import (
    MIN_FALSE_POSITIVES,
    TprAt,
    allowed_false_positives,
    clopper_pearson,
    rates,
    roc_counts,
    tpr_at_counts,
)
from mia_nb.metrics.pairs import numbered
from mia_nb.types import Scores

LARGEST_SHARE = 0.02  # of the training set; more canaries change what is trained


@checked
def canary_rates(
    scores: Scores,
    *,
    fpr: Rates = (0.001, 0.01, 0.1),
    share: Fraction | None = None,
    kind: str = "unnamed",
    n_resamples: Several = 1000,
    seed: Count = 0,
) -> pd.DataFrame:
    """TPR at each FPR over the pooled canaries of all targets, with one threshold: a row per FPR.

    Parameters:
        scores: of the targets on the canaries alone; NaN is left out.
        fpr: false positive rates in [0, 1].
        share: the share of canaries in a model's training set; None: not known.
        kind: of the canaries, for the table.
        n_resamples: resamples of the bootstrap, 2 or more.
        seed: of the bootstrap.

    Returns:
        A row per FPR, with the columns
            kind, fpr, share: as given.
            tpr, fpr_realised, tp, n1, fp, n0: as in `metrics.tpr_at`.
            low, high: the widest of three 95 % intervals. One is Clopper-Pearson's on all trials.
                One is Clopper-Pearson's as if each of the C canaries that are members of some
                target were a single trial, with C tpr hits, rounded outwards. One is that of a
                bootstrap over canaries, and over pairs of targets where there are two or more.
                Trials of one canary are dependent, which no bootstrap sees where all are hits.
            measurable: whether 10 false positives or more are allowed, which takes canaries / 2 *
                targets >= 10 / fpr.
            canaries, targets: numbers of canaries with a score, and of targets.
            flag: too few non-member trials, too large a share; "" if neither.

    Raises:
        ValueError: for an FPR outside [0, 1] and n_resamples < 2.

    Caveat: targets are pooled on one scale, which suits calibrated attacks (likelihood ratios,
    RMIA). Targets share references, which no interval resamples. One pair of targets is not
    resampled: the interval is then about these models.
    """
    if share is None:
        share = np.nan
    fpr = rates(np.atleast_1d(fpr))
    # a trial is one canary and one target that scored it
    known = ~np.isnan(scores.value)
    value = scores.value[known]
    member = scores.member[known]
    target, canary = known.nonzero()
    tp, fp, _ = roc_counts(value, member)
    clusters = [numbered(canary), numbered(scores.pair[target])]
    drawn = _clustered(value, member, clusters, fpr, n_resamples, seed)
    member_canaries = len(np.unique(canary[member]))
    rows = []
    for rate, sample in zip(fpr, drawn.T, strict=True):
        at = tpr_at_counts(tp, fp, float(rate))
        exact = clopper_pearson(at.tp, at.n1)
        by_canary = _by_canary(at, member_canaries)
        clustered = np.nanquantile(sample, (0.025, 0.975))
        low, high = max((exact, by_canary, clustered), key=lambda ends: ends[1] - ends[0])
        rows.append(
            {
                "kind": kind,
                "fpr": float(rate),
                "tpr": at.tpr,
                "low": float(low),
                "high": float(high),
                "tp": at.tp,
                "n1": at.n1,
                "fp": at.fp,
                "n0": at.n0,
                "fpr_realised": at.fpr_realised,
                "measurable": at.measurable,
                "canaries": len(np.unique(canary)),
                "targets": len(scores.value),
                "share": share,
                "flag": _flag(at, share),
            }
        )
    return pd.DataFrame(rows)


def _by_canary(at: TprAt, canaries: int) -> tuple[float, float]:
    """Clopper-Pearson's interval as if each canary were one trial, with hits rounded outwards."""
    hits = at.tp * canaries / at.n1  # a whole number may come out as 2.9999999999999996
    low, _ = clopper_pearson(np.floor(hits + 1e-9), canaries)
    _, high = clopper_pearson(np.ceil(hits - 1e-9), canaries)
    return low, high


def _flag(at: TprAt, share: float) -> str:
    """What to mind about a rate; "" if nothing."""
    flags = []
    if not at.measurable:
        flags.append(
            f"{at.n0} non-member trials allow fewer than {MIN_FALSE_POSITIVES} false positives"
        )
    if share > LARGEST_SHARE:
        flags.append(f"canaries are {share:.1%} of the training set, more than {LARGEST_SHARE:.0%}")
    return "; ".join(flags)


def _clustered(
    value: np.ndarray,
    member: np.ndarray,
    clusters: list[np.ndarray],
    fpr: Sequence[float],
    n_resamples: int,
    seed: int,
) -> np.ndarray:
    """(n_resamples, FPRs) pooled TPRs when the clusters of trials are drawn with replacement.

    clusters: for each kind of cluster, the number (trials,) of each trial's cluster, from 0. A kind
    with a single cluster is left as it is.
    """
    order = np.argsort(-value, kind="stable")
    falling = value[order]
    member = member[order]
    fpr = np.asarray(fpr)
    # != rather than np.diff: inf - inf is NaN
    ends = np.append(np.flatnonzero(falling[1:] != falling[:-1]), len(order) - 1)
    clusters = [number[order] for number in clusters]
    rng = np.random.default_rng([seed, 11])
    tprs = np.full((n_resamples, len(fpr)), np.nan)
    for row in tprs:
        weight = np.ones(len(order), int)  # how often each trial is drawn
        for number in clusters:
            size = number.max() + 1
            times_drawn = np.bincount(rng.integers(size, size=size), minlength=size)
            weight *= times_drawn[number]
        tp = np.concatenate([[0], np.cumsum(weight * member)[ends]])
        fp = np.concatenate([[0], np.cumsum(weight * ~member)[ends]])
        if tp[-1] and fp[-1]:
            last = np.searchsorted(fp, allowed_false_positives(fpr, fp[-1]), side="right") - 1
            row[:] = tp[last] / tp[-1]
    return tprs
