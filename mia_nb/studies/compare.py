"""The results of a study's contrasts: differences and ratios with paired intervals, and what
`below_curve` and `equal_accuracy` add.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import pandas as pd

from mia_nb.metrics.bootstrap import bootstrap
from mia_nb.metrics.curve import measurable
from mia_nb.metrics.pairs import same_masks
from mia_nb.metrics.targets import FPR, metric_names, per_target_metrics, smallest
from mia_nb.metrics.uncertainty import half_width, interval, variances
from mia_nb.studies.below_curve import curve_rows
from mia_nb.studies.contrasts import contrasts, one_pair
from mia_nb.studies.equal_accuracy import equal_accuracy_rows
from mia_nb.studies.settings import Setting
from mia_nb.studies.study import Claim, Contrast, rate_of
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


def measuring(n_resamples: int, seed: int) -> Callable[[Scores], dict]:
    """A function of scores that gives {metric: (values of the targets, resampled values or None)}.
    The same scores are resampled once, however many comparisons and verdicts ask for them.
    """

    @cache
    def measured(scores: Scores) -> dict:
        """Each metric of these scores, with its resampled values."""
        drawn = bootstrap(scores, FPR, n_resamples=n_resamples, seed=seed)
        points = dict(zip(metric_names(FPR), per_target_metrics(scores, FPR).T, strict=True))
        results = {name: (values, drawn[name]) for name, values in points.items()}
        results["test_accuracy"] = (scores.accuracy[:, 1], None)
        results["gap"] = (scores.accuracy[:, 0] - scores.accuracy[:, 1], None)
        return results

    return measured


def compare(
    claims: dict[str, Claim],
    settings: dict[Setting, Scores],
    measured: Callable[[Scores], dict],
    *,
    frontier: pd.DataFrame | None,
    delta: float,
    level: float,
) -> pd.DataFrame:
    """One row, with `COLUMNS`, for each comparison that the claims rest on and that was run.

    settings: of `usable` that the study decides by; measured: of `measuring`. ValueError when
    targets were trained on different masks.
    """
    _check_same_masks(settings)
    n0 = min((smallest(scores)[1] for scores in settings.values()), default=0)
    tpr = next((f"tpr@{x:g}" for x in FPR if measurable(f"tpr@{x:g}", n0)), None)
    rows = []
    for name, claim in claims.items():
        compared = contrasts(claim, settings)
        claim_rows = _difference_rows(list(_with_tpr(compared, tpr)), settings, measured, level)
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
    measured: Callable,
    level: float,
) -> list[dict]:
    """A row for each contrast. Its interval is that of `metrics.interval`, or `ratio_interval`, and
    is paired: every setting has the same samples and pairs. Intervals of accuracies and gaps cover
    pairs alone.
    """

    def strongest(contrast: Contrast) -> list[tuple]:
        """(values, resampled values) of each side, by its attack with the largest mean."""
        chosen = []
        for side in contrast.sides:
            candidates = [measured(settings[setting])[contrast.metric] for setting in side]
            chosen.append(max(candidates, key=lambda candidate: candidate[0].mean()))
        return chosen

    joint = Counter(map(_joint_group, compared))
    rows = []
    for contrast in compared:
        levels = (level, 1 - (1 - level) / joint[_joint_group(contrast)])
        scores = settings[contrast.first]
        sides = strongest(contrast)
        estimate = _ratio if contrast.ratio else _difference
        row = contrast.row(*estimate(contrast, sides, scores.pair, levels))
        if one_pair(scores):  # the intervals then cover samples only
            row["outcome"] = "open"
        if contrast.margin and contrast.metric == "auc" and len(sides) == 2:
            leaks = [(values - 0.5, drawn - 0.5) for values, drawn in sides]
            row |= _relative(leaks, scores.pair, level)
        rows.append(row)
    return rows


def _joint_group(contrast: Contrast) -> str:
    """The name of the group of comparisons whose errors are controlled jointly."""
    return "needed" if contrast.needed else f"{contrast.part}, {contrast.metric}"


def _difference(
    contrast: Contrast, sides: list[tuple], pair: np.ndarray, levels: Sequence[float]
) -> tuple:
    """(value, interval for each level) of the weighted sum of the sides."""
    points, draws = zip(*sides, strict=True)
    values = contrast.weighted(points)
    drawn = None if draws[0] is None else contrast.weighted(draws)
    within = contrast.possible
    ends = [interval(values, pair, drawn, confidence=level, within=within) for level in levels]
    return values.mean(), *ends


def _ratio(
    contrast: Contrast, sides: list[tuple], pair: np.ndarray, levels: Sequence[float]
) -> tuple:
    """(value, interval for each level) of the ratio of the first side to the second."""
    (a, draws_a), (b, draws_b) = sides
    with np.errstate(divide="ignore", invalid="ignore"):
        # a mean below 0 counts as 0, as in the interval
        value = np.divide(np.maximum(a.mean(), 0.0), np.maximum(b.mean(), 0.0))
    ends = [ratio_interval(a, b, pair, draws_a, draws_b, confidence=level) for level in levels]
    return value, *ends


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
    squares = []  # of half the intervals of a, b and a + b
    for combination in np.array([[1, 0], [0, 1], [1, 1]]):
        drawn = None if resampled is None else resampled @ combination
        variance = variances(values @ combination, pair, drawn)
        squares.append(half_width(*variance, confidence=confidence) ** 2)
    square_a, square_b, square_sum = squares
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


def _relative(leaks: list[tuple], pair: np.ndarray, level: float) -> dict[str, float]:
    """A difference of AUC as a share of the second side's AUC - 1/2, with its interval. A first
    side's AUC below 1/2 counts as 1/2, as for the interval.

    With a leak of only 0.02 almost any two networks are within a margin of 0.01.
    """
    (a, draws_a), (b, draws_b) = leaks
    low, high = ratio_interval(a, b, pair, draws_a, draws_b, confidence=level)
    share = max(a.mean(), 0.0) / b.mean() - 1 if b.mean() > 0 else np.nan
    return {"relative": float(share), "relative_low": low - 1, "relative_high": high - 1}
