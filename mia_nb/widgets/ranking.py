"""The exposure of samples: how much higher their scores are where they are members, and a test of
whether that is more than chance.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb import auditing
from mia_nb.checks import quantity
from mia_nb.metrics.uncertainty import half_width, interval
from mia_nb.types import Scores
from mia_nb.widgets.stored import Source

PAGE = 24  # samples on a page of the list
ALL_TESTED = 5000  # the largest number of samples for all of which masks are redrawn
# above it masks are redrawn for the first samples of the list, and for others drawn at random
FIRST_TESTED = 480
OTHERS_TESTED = 2000


class Ranking(NamedTuple):
    """Audited samples by mean standardised separation of their scores."""

    value: np.ndarray  # (N,) standard deviations of the scores; NaN where a side is missing
    half: np.ndarray  # (N,) half the width of the 95 % interval, NaN where it is unknown
    based_on: str  # what the mean is over, in words, such as "8 pairs of targets"
    order: np.ndarray  # indices of samples, most exposed first, NaN left out


class Tested(NamedTuple):
    """The test of the separations against redrawn masks."""

    table: pd.DataFrame  # the result of auditing.vulnerability
    null: np.ndarray  # separations under redrawn masks
    indices: np.ndarray  # indices of the samples whose masks were redrawn


@lru_cache(16)
def ranking(source: Source, attack: str) -> Ranking:
    """Separation of every sample over all targets."""
    value, half, based_on = separations(source.scores(attack))
    order = np.argsort(-value, kind="stable")
    return Ranking(value, half, based_on, order[~np.isnan(value[order])])


def separations(scores: Scores) -> tuple[np.ndarray, np.ndarray, str]:
    """How much higher a sample's score is in targets that were trained on it, in standard
    deviations of a target's scores over samples.

    With complementary pairs: mean and Student's t over the pairs of targets. In other designs: mean
    of the targets with the sample less mean of those without it, Student's t with one variance.

    Returns:
        (mean separation (N,), half the width of its 95 % interval (N,), what the mean is over, in
        words).
    """
    mean = np.nanmean(scores.value, axis=1)
    spread = np.nanstd(scores.value, axis=1)
    z = (scores.value - mean[:, None]) / np.maximum(spread, 1e-12)[:, None]
    pairs = [np.flatnonzero(scores.pair == number) for number in np.unique(scores.pair)]
    if all(is_complementary(scores.member[rows]) for rows in pairs):
        value, half = separations_in_pairs(z, scores.member, pairs)
        return value, half, f"{quantity(len(pairs), 'pair')} of targets"
    value, half = separations_of_sides(z, scores.member)
    return value, half, f"{quantity(len(z), 'target')} without pairs"


def is_complementary(member: np.ndarray) -> bool:
    """Whether these masks are two, and every sample is in exactly one of them."""
    return len(member) == 2 and bool(np.logical_xor(*member).all())


def separations_in_pairs(
    z: np.ndarray, member: np.ndarray, pairs: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """(mean, half the width of its interval) over pairs of targets {t, t'} of (z_t - z_t') where t
    has the sample.
    """
    gaps = []
    for first, second in pairs:
        sign = np.where(member[first], 1, -1)
        gaps.append(sign * (z[first] - z[second]))
    gap = np.stack(gaps)
    low, high = interval(gap, np.arange(len(gap)))
    return gap.mean(0), (high - low) / 2


def separations_of_sides(z: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean with the sample less mean without it, half the width of its interval) over targets; the
    variance is pooled over both sides.
    """
    inside = ~np.isnan(z) & member
    outside = ~np.isnan(z) & ~member
    n1 = inside.sum(0)
    n0 = outside.sum(0)
    mean_inside = masked_mean(z, inside)
    mean_outside = masked_mean(z, outside)
    squares = np.where(inside, (z - mean_inside) ** 2, 0).sum(0)
    squares += np.where(outside, (z - mean_outside) ** 2, 0).sum(0)
    degrees = n1 + n0 - 2
    with np.errstate(divide="ignore", invalid="ignore"):
        half = half_width(squares / degrees * (1 / n1 + 1 / n0), degrees + 1)
    return mean_inside - mean_outside, half


@lru_cache(4)
def tested(source: Source, attack: str, n_resamples: int) -> Tested:
    """The test of all samples, or of the first in the list and others drawn at random. Samples
    without redrawn masks count with p = 1.
    """
    signals = source.signals
    count_audited = len(source.audited)
    scores = source.scores(attack)
    indices = np.arange(count_audited)
    if count_audited > ALL_TESTED:
        first = ranking(source, attack).order[:FIRST_TESTED]
        others = np.random.default_rng(0).choice(count_audited, OTHERS_TESTED, replace=False)
        indices = np.union1d(first, others)
        population = np.flatnonzero(signals.population)
        signals = signals.select(samples=np.union1d(source.audited[indices], population))
    null: list[np.ndarray] = []

    def null_scores() -> Iterator[Scores]:
        """Scores under redrawn masks, NaN for samples that are left out. `null` gets their
        separations on the way, as each is scored and read only once.
        """
        for redrawn in auditing.null_scores(attack, signals, n_resamples=n_resamples):
            null.append(separations(redrawn)[0].astype(np.float32))
            value = np.full((len(redrawn.value), count_audited), np.nan)
            member = np.zeros(value.shape, bool)
            value[:, indices] = redrawn.value
            member[:, indices] = redrawn.member
            yield replace(redrawn, value=value, member=member)

    table = auditing.vulnerability(scores, null=null_scores())
    return Tested(table, np.concatenate(null), indices)


def masked_mean(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(N,) mean of each column where the mask (M, N) holds, NaN where it holds nowhere."""
    return np.ma.array(values, mask=~mask).mean(0).filled(np.nan)
