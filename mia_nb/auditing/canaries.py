"""Canaries: samples made to be remembered, each in or out of a model by a coin, and the rates at
which they are found.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mia_nb.arguments import Array, Count, Fraction, Mask, Positive, Rates, Whole
from mia_nb.checks import checked, mask, one_of
from mia_nb.metrics.curve import (
    MIN_FALSE_POSITIVES,
    TprAt,
    clopper_pearson,
    counts,
    rates,
    tpr_at_counts,
)
from mia_nb.types import Scores

KINDS = ("ordinary", "mislabelled", "mislabelled_near_duplicate", "ood")
LARGEST_SHARE = 0.02  # of the training set; more canaries change what is trained
JITTER = 2.0  # standard deviation of a near duplicate's pixels, of 255
SHIFTS = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])  # of a near duplicate, in pixels


@checked
def canary_arrays(
    x: Array,
    y: Array,
    classes: Whole,
    *,
    share: Fraction = 0.02,
    kind: str = "mislabelled",
    population: Array | None = None,
    seed: Count = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x, y, canary): copies of images and labels with some samples turned into canaries.

    Parameters:
        x: (N, C, H, W) images, whole numbers from 0 to 255; come back as uint8.
        y: (N,) labels, whole numbers from 0 to classes - 1.
        classes: how many there are.
        share: round(share N) samples become canaries, N counting those outside `population`. Where
            coins or pairs deal the canaries, a model trains on half of them: share / (2 - share) of
            its training set, 1 % of it at .02.
        kind: what canaries are, see below.
        population: (N,) bool, columns no model trains on, never made canaries; None: there are
            none.
        seed: of the samples and of what they become.

    Kinds:
        ordinary: image and label stay as they are: the average case, to compare the others with.
        mislabelled: the image stays, its label is a wrong one.
        mislabelled_near_duplicate: the image becomes a near copy of a sample that is no canary,
            stays in every model and keeps its right label: moved by one pixel, noise of 2/255; its
            own label is a wrong one for that sample.
        ood: the image's pixels are shuffled, its label is drawn from all classes.

    Returns:
        x uint8 (N, C, H, W), y (N,), canary (N,) bool.

    A defense that is known to treat one kind well must be tested with another: name the kind with
    every result (Aerni, Zhang and Tramèr 2024, arXiv 2404.17399).

    Raises:
        ValueError: for an unknown kind, wrong labels of a single class, pixels that are no whole
            numbers from 0 to 255, labels that are none from 0 to classes - 1, shapes that differ,
            and a share that leaves no canary or fewer others than canaries.

    Caveat: accuracy with and without canaries belongs beside their rates; keep their share at 2 %
    or less.
    """
    one_of("kind", kind, KINDS)
    mislabelled = kind.startswith("mislabelled")
    if mislabelled and classes < 2:
        raise ValueError(f"classes={classes}: wrong labels need 2 classes or more")
    x = _whole("x", x, 255).astype(np.uint8)
    y = _whole("y", y, classes - 1).astype(np.int64)
    able = np.ones(len(y), bool) if population is None else ~np.asarray(population, bool)
    size = round(share * int(able.sum()))
    rng = np.random.default_rng([8, seed])
    if x.ndim != 4 or y.shape != x.shape[:1] or able.shape != y.shape:
        raise ValueError(
            f"x {x.shape}, y {y.shape}: wanted images (N, C, H, W) with a label each (and a"
            " population mask (N,))"
        )
    if not 1 <= size <= able.sum() // 2:
        raise ValueError(
            f"share={share} of {able.sum()} samples makes {size} canaries: wanted at least 1, at"
            " most half of them"
        )
    dealt = rng.permutation(np.flatnonzero(able))
    chosen = np.sort(dealt[:size])
    others = dealt[size : 2 * size]
    canary = np.isin(np.arange(len(y)), chosen)
    if kind == "ood":
        flat = x[chosen].reshape(size, x.shape[1], -1)
        x[chosen] = rng.permuted(flat, axis=2).reshape(x[chosen].shape)
        y[chosen] = rng.integers(classes, size=size)
    elif kind == "mislabelled_near_duplicate":
        x[chosen] = _near_copies(x[others], rng)
        y[chosen] = y[others]
    if mislabelled:
        step = np.random.default_rng([7, seed]).integers(1, classes, size)
        y[chosen] = (y[chosen] + step) % classes
    return x, y, canary


def _whole(name: str, values: object, last: int) -> np.ndarray:
    """The values, where they are whole numbers from 0 to `last`."""
    values = np.asarray(values)
    wanted = f"wanted whole numbers from 0 to {last}"
    ends = (values.min(), values.max()) if values.size else (0, 0)
    if values.dtype.kind not in "iu":
        raise ValueError(f"{name} has dtype {values.dtype}: {wanted}; round and convert them first")
    if not 0 <= ends[0] <= ends[1] <= last:
        raise ValueError(f"{name} runs from {ends[0]} to {ends[1]}: {wanted}")
    return values


def _near_copies(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The images (n, C, H, W), each moved by one pixel up, down, left or right, with noise."""
    shifts = SHIFTS[rng.integers(len(SHIFTS), size=len(images))]
    moved = np.stack([np.roll(x, shift, (1, 2)) for x, shift in zip(images, shifts, strict=True)])
    noisy = np.rint(moved + rng.normal(0, JITTER, moved.shape))
    return np.clip(noisy, 0, 255).astype(np.uint8)


@checked
def canary_member(
    num_models: Positive,
    canary: Mask,
    *,
    population: Array | None = None,
    seed: Count = 0,
) -> np.ndarray:
    """(M, N) bool: canaries by coins, all other samples in every model, the population in none.

    Parameters:
        num_models: M.
        canary: (N,) bool.
        population: (N,) bool, samples no model trains on; None: there are none.
        seed: of the coins.

    Returns:
        The mask to train with, split="given". Coins are independent and fair, as a one-run audit
        needs them; those of row m depend on (seed, m) only. Score on the canaries alone,
        `signals.select(samples=canary | signals.population)`: a sample that all references saw
        tells nothing.

    Raises:
        ValueError: for no models, and canaries that are absent or in the population.
    """
    aside = np.zeros(canary.shape, bool)
    if population is not None:
        aside = mask("population", population, canary.shape)
    size = int(canary.sum())
    inside = int((canary & aside).sum())
    if canary.ndim != 1 or not size or inside:
        raise ValueError(
            f"{size} canaries, {inside} of them in the population: wanted 1 or more, outside it"
        )
    member = np.broadcast_to(~aside, (num_models, len(aside))).copy()
    for m in range(num_models):
        coins = np.random.default_rng([9, m, seed]).integers(2, size=size, dtype=bool)
        member[m, canary] = coins
    return member


@checked
def canary_rates(
    scores: Scores,
    *,
    fpr: Rates = (0.001, 0.01, 0.1),
    share: Fraction | None = None,
    kind: str = "unnamed",
    n_resamples: Positive = 1000,
    seed: Count = 0,
) -> pd.DataFrame:
    """TPR at each FPR over the canaries of all targets pooled: one threshold for all, a row per
    FPR.

    Parameters:
        scores: of the targets on the canaries alone; NaN is left out.
        fpr: false positive rates in [0, 1].
        share: the canaries' part of what a model trains on; None: not known.
        kind: of the canaries, for the table.
        n_resamples: resamples of the bootstrap, 1 or more.
        seed: of the bootstrap.

    Returns:
        columns kind, fpr, tpr, low, high, exact_low, exact_high (95 % Clopper-Pearson on pooled
        trials), canary_low, canary_high (the same with C trials, the C canaries that some target
        scored as members, hits C tpr rounded outwards), cluster_low, cluster_high (bootstrap over
        canaries, all trials of one together, and over pairs of targets where there are two), tp,
        n1, fp, n0, fpr_realised, measurable, canaries (scored ones), targets, share, flag. low and
        high are the widest of the three: trials of one canary are not independent, and where all
        are hits no bootstrap sees that they hang together. measurable: 10 false positives or more
        are allowed, which takes canaries / 2 * targets >= 10 / fpr.

    Raises:
        ValueError: for an FPR outside [0, 1] and n_resamples < 1.

    Caveat: targets are pooled on one scale, which suits calibrated attacks (likelihood ratios,
    RMIA); targets share references, which no interval resamples; one pair of targets is not
    resampled: the interval is about these models.
    """
    share = np.nan if share is None else share
    known = ~np.isnan(scores.value)
    fpr = rates(np.atleast_1d(fpr))
    value = scores.value[known]
    member = scores.member[known]
    row, which = known.nonzero()
    clusters = [np.unique(index, return_inverse=True)[1] for index in (which, scores.pair[row])]
    tp, fp, _ = counts(value, member)
    drawn = _clustered(value, member, clusters, fpr, n_resamples, seed)
    trials = len(np.unique(which[member]))
    rows = []
    for rate, sample in zip(fpr, drawn.T, strict=True):
        at = tpr_at_counts(tp, fp, float(rate))
        exact = clopper_pearson(at.tp, at.n1)
        by_canary = _by_canary(at, trials)
        clustered = np.nanquantile(sample, (0.025, 0.975))
        low, high = max((exact, by_canary, clustered), key=lambda ends: ends[1] - ends[0])
        rows.append(
            {
                "kind": kind,
                "fpr": float(rate),
                "tpr": at.tpr,
                "low": float(low),
                "high": float(high),
                "exact_low": float(exact[0]),
                "exact_high": float(exact[1]),
                "canary_low": float(by_canary[0]),
                "canary_high": float(by_canary[1]),
                "cluster_low": float(clustered[0]),
                "cluster_high": float(clustered[1]),
                "tp": at.tp,
                "n1": at.n1,
                "fp": at.fp,
                "n0": at.n0,
                "fpr_realised": at.fpr_realised,
                "measurable": at.measurable,
                "canaries": len(np.unique(which)),
                "targets": len(scores.value),
                "share": share,
                "flag": _flag(at, share),
            }
        )
    return pd.DataFrame(rows)


def _by_canary(at: TprAt, trials: int) -> tuple[float, float]:
    """Clopper-Pearson as if each canary were one trial; the rate's hits among so many rounded
    outwards.
    """
    hits = at.tp * trials / at.n1
    low = clopper_pearson(np.floor(hits + 1e-9), trials)[0]
    high = clopper_pearson(np.ceil(hits - 1e-9), trials)[1]
    return low, high


def _flag(at: TprAt, share: float) -> str:
    flags = []
    if not at.measurable:
        flags.append(
            f"{at.n0} non-member trials allow less than {MIN_FALSE_POSITIVES} false positives"
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
    """(n_resamples, FPRs) pooled TPRs when the clusters of trials are drawn with replacement;
    clusters: numbers (trials,) from 0, of which a single one is not drawn.
    """
    order = np.argsort(-value, kind="stable")
    falling = value[order]
    member = member[order]
    fpr = np.asarray(fpr)
    # a difference of infinities is none
    ends = np.append(np.flatnonzero(falling[1:] != falling[:-1]), len(order) - 1)
    clusters = [(number[order], number.max() + 1) for number in clusters]
    rng = np.random.default_rng([seed, 11])
    out = np.full((n_resamples, len(fpr)), np.nan)
    for row in out:
        weight = 1
        for number, size in clusters:
            weight = weight * np.bincount(rng.integers(size, size=size), minlength=size)[number]
        tp = np.concatenate([[0], np.cumsum(weight * member)[ends]])
        fp = np.concatenate([[0], np.cumsum(weight * ~member)[ends]])
        if tp[-1] and fp[-1]:
            last = np.searchsorted(fp, np.floor(fpr * fp[-1] + 1e-9), side="right") - 1
            row[:] = tp[last] / tp[-1]
    return out
