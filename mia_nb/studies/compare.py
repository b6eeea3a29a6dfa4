"""The results of a study's contrasts: differences and ratios with paired intervals, and what
`below_curve` and `equal_accuracy` add.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb.metrics.bootstrap import bootstrap
from mia_nb.metrics.curve import measurable, rate_of
from mia_nb.metrics.pairs import same_masks
from mia_nb.metrics.targets import FPR, metric_names, per_target_metrics, smallest
from mia_nb.metrics.uncertainty import interval, variances
from mia_nb.studies.below_curve import curve_rows
from mia_nb.studies.contrasts import contrasts, one_pair
from mia_nb.studies.equal_accuracy import equal_accuracy_rows
from mia_nb.studies.settings import Setting
from mia_nb.studies.study import Claim, Contrast
from mia_nb.types import Scores

COLUMNS = [
    "claim",
    "part",
    "compared",
    "metric",
    "needed",
    "value",
    "low",
    "high",
    "simultaneous_low",
    "simultaneous_high",
    "margin",
    "outcome",
    "relative",
    "relative_low",
    "relative_high",
    "queried_less",
]


class Measured(NamedTuple):
    """A metric of the targets of one setting."""

    values: np.ndarray  # (targets,)
    draws: np.ndarray | None  # (n_resamples, targets), where samples were drawn


Measure = Callable[[Scores], dict[str, Measured]]


def measuring(n_resamples: int, seed: int) -> Measure:
    """A function from scores to {metric: Measured}. The same scores are resampled once, however
    many comparisons and verdicts ask for them.
    """

    @cache
    def measure(scores: Scores) -> dict[str, Measured]:
        draws = bootstrap(scores, FPR, n_resamples=n_resamples, seed=seed)
        metrics = per_target_metrics(scores, FPR)
        measured = {}
        for column, name in enumerate(metric_names(FPR)):
            measured[name] = Measured(metrics[:, column], draws[name])
        train_accuracy, test_accuracy = scores.accuracy.T
        measured["test_accuracy"] = Measured(test_accuracy, None)
        measured["gap"] = Measured(train_accuracy - test_accuracy, None)
        return measured

    return measure


def compare(
    claims: dict[str, Claim],
    settings: dict[Setting, Scores],
    measure: Measure,
    *,
    frontier: pd.DataFrame | None,
    delta: float,
    level: float,
) -> pd.DataFrame:
    """One row, with `COLUMNS`, for each comparison that the claims rest on and that was run.

    settings: of `usable` that the study decides by; measure: of `measuring`. ValueError when
    targets were trained on different masks.
    """
    _check_same_masks(settings)
    n0 = min((smallest(scores)[1] for scores in settings.values()), default=0)
    # the TPR at the smallest FPR that all settings can measure
    tpr = next((f"tpr@{x:g}" for x in FPR if measurable(f"tpr@{x:g}", n0)), None)
    rows = []
    for name, claim in claims.items():
        compared = contrasts(claim, settings)
        without_curve = list(_with_tpr(compared, tpr))
        claim_rows = _difference_rows(without_curve, settings, measure, level)
        claim_rows += curve_rows(compared, settings, delta, level)
        if frontier is not None and claim.matched:
            claim_rows += equal_accuracy_rows(compared, claim.matched, frontier, level)
        rows += [{"claim": name} | row for row in claim_rows]
    return pd.DataFrame(rows, columns=COLUMNS).astype({"needed": bool})


def _check_same_masks(settings: dict[Setting, Scores]) -> None:
    """ValueError unless row k of every setting is a model trained on the same samples: paired
    intervals need that.
    """
    first = next(iter(settings), None)
    for setting, scores in settings.items():
        if not same_masks(scores, settings[first]):
            raise ValueError(
                f"{setting.where} and {first.where} have different membership: claims need pools"
                " trained on the same masks and the same targets of each"
            )


def _with_tpr(compared: list[Contrast], tpr: str | None) -> Iterator[Contrast]:
    """The contrasts except those with a curve. A contrast of AUCs that decides is followed by the
    same contrast of TPRs, which decides nothing, unless the margin is at least as wide as the FPR.
    """
    for contrast in compared:
        if contrast.minus == "curve":
            continue
        if contrast.metric == "tpr":
            if tpr:
                yield contrast._replace(metric=tpr)
            continue
        yield contrast
        decides = contrast.metric == "auc" and contrast.needed and contrast.tpr
        if tpr and decides and contrast.margin < rate_of(tpr):
            yield contrast._replace(metric=tpr, needed=False)


def _difference_rows(
    compared: list[Contrast],
    settings: dict[Setting, Scores],
    measure: Measure,
    level: float,
) -> list[dict]:
    """A row for each contrast. Its interval is that of `metrics.interval`, or `ratio_interval`, and
    is paired: every setting has the same samples and pairs. Intervals of accuracies and gaps cover
    pairs alone.
    """
    comparisons_of_group = Counter(map(_joint_group, compared))
    rows = []
    for contrast in compared:
        joint_level = 1 - (1 - level) / comparisons_of_group[_joint_group(contrast)]
        scores = settings[contrast.first]
        sides = []
        for side in contrast.sides:
            measured = [measure(settings[setting])[contrast.metric] for setting in side]
            sides.append(_strongest(measured))
        if contrast.ratio:
            row = _ratio_row(contrast, sides, scores.pair, (level, joint_level))
        else:
            row = _difference_row(contrast, sides, scores.pair, (level, joint_level))
        if one_pair(scores):  # the intervals then cover samples only
            row["outcome"] = "open"
        if contrast.margin and contrast.metric == "auc" and len(sides) == 2:
            leaks = [_above_chance(side) for side in sides]
            row |= _relative(leaks, scores.pair, level)
        rows.append(row)
    return rows


def _strongest(measured: list[Measured]) -> Measured:
    """The one with the largest mean over targets."""
    return max(measured, key=lambda candidate: candidate.values.mean())


def _above_chance(auc: Measured) -> Measured:
    """AUCs minus 1/2."""
    return Measured(auc.values - 0.5, auc.draws - 0.5)


def _joint_group(contrast: Contrast) -> str:
    """The name of the group of comparisons whose errors are controlled jointly."""
    return "needed" if contrast.needed else f"{contrast.part}, {contrast.metric}"


def _difference_row(
    contrast: Contrast, sides: list[Measured], pair: np.ndarray, levels: tuple[float, float]
) -> dict[str, object]:
    """The row of the weighted sum of the sides; levels: (given, joint)."""
    values = contrast.weighted([side.values for side in sides])
    draws = None
    if sides[0].draws is not None:
        draws = contrast.weighted([side.draws for side in sides])
    within = contrast.possible
    ends = [interval(values, pair, draws, confidence=level, within=within) for level in levels]
    return contrast.row(values.mean(), *ends)


def _ratio_row(
    contrast: Contrast, sides: list[Measured], pair: np.ndarray, levels: tuple[float, float]
) -> dict[str, object]:
    """The row of the ratio of the first side to the second; levels: (given, joint)."""
    (a, draws_a), (b, draws_b) = sides
    with np.errstate(divide="ignore", invalid="ignore"):
        # a mean below 0 counts as 0, as in the interval
        value = np.divide(np.maximum(a.mean(), 0.0), np.maximum(b.mean(), 0.0))
    ends = [ratio_interval(a, b, pair, draws_a, draws_b, confidence=level) for level in levels]
    return contrast.row(value, *ends)


def ratio_interval(
    a: np.ndarray,
    b: np.ndarray,
    pair: np.ndarray,
    draws_a: np.ndarray | None = None,
    draws_b: np.ndarray | None = None,
    *,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """(low, high) of mean(a) / mean(b): all r >= 0 for which mean(a - r b) may be 0.

    Parameters:
        a, b: (targets,) paired values, of which a mean below 0 counts as 0.
        pair: (targets,) number of each target's pair of models.
        draws_a, draws_b: (n_resamples, targets) the same on samples drawn with replacement.
        confidence: in (0, 1).

    r belongs to the interval if that of a - r b contains 0 (Fieller 1954, with the variances of
    `metrics.interval`). The upper end is inf where the interval of b contains 0 or lies below it,
    and 0 where that of a lies below 0 alone. NaN with one pair.
    Caveat: the covariance is (var(a + b) - var(a) - var(b)) / 2, which is approximate where
    one of these variances is at its lower bound.
    """
    if len(np.unique(pair)) < 2:
        return np.nan, np.nan
    values = np.column_stack([a, b])
    resampled = None
    if draws_a is not None:
        resampled = np.stack([draws_a, draws_b], 2)

    def square(weights: list[int]) -> float:
        """The square of half the interval of the weighted sum of a and b."""
        drawn = None if resampled is None else resampled @ weights
        variance = variances(values @ weights, pair, drawn)
        return variance.half_width(confidence=confidence) ** 2

    square_a = square([1, 0])
    square_b = square([0, 1])
    square_sum = square([1, 1])  # of a + b
    covariance = (square_sum - square_a - square_b) / 2
    # The ends are the roots of quadratic r^2 - 2 linear r + constant.
    mean_a, mean_b = values.mean(0)
    quadratic = mean_b**2 - square_b
    linear = mean_a * mean_b - covariance
    constant = mean_a**2 - square_a
    root = np.sqrt(max(linear**2 - quadratic * constant, 0.0))
    resolved = quadratic > 1e-12 * mean_b**2
    if resolved and mean_b < 0:
        return 0.0, np.inf
    # The lower one is (linear - root) / quadratic, in a form that also holds where quadratic <= 0.
    low = constant / (linear + root) if mean_a > 0 and linear + root > 0 else 0.0
    high = (linear + root) / quadratic if resolved else np.inf
    return max(low, 0.0), max(high, 0.0)


def _relative(leaks: list[Measured], pair: np.ndarray, level: float) -> dict[str, float]:
    """The difference of two leaks, each an AUC - 1/2, as a share of the second, with its interval.
    A first one below 0 counts as 0, as for the interval.

    With a leak of only 0.02 almost any two networks are within a margin of 0.01.
    """
    (a, draws_a), (b, draws_b) = leaks
    low, high = ratio_interval(a, b, pair, draws_a, draws_b, confidence=level)
    share = np.nan
    if b.mean() > 0:
        share = max(a.mean(), 0.0) / b.mean() - 1
    return {"relative": float(share), "relative_low": low - 1, "relative_high": high - 1}
