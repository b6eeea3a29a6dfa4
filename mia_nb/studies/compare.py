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
from mia_nb.metrics.targets import FPR, names, per_target_metrics, smallest
from mia_nb.metrics.uncertainty import interval, ratio_interval
from mia_nb.studies.below_curve import curve_rows
from mia_nb.studies.contrasts import TPR, Contrast, contrasts, one_pair, rate_of
from mia_nb.studies.equal_accuracy import equal_accuracy_rows
from mia_nb.studies.settings import Setting
from mia_nb.studies.study import Study
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
]


def measuring(n_resamples: int, seed: int) -> Callable[[Scores], dict]:
    """A function of scores: {metric: (values of the targets, their resampled values or None)}. It
    resamples the same scores once, however many comparisons and verdicts ask for them.
    """

    @cache
    def measured(scores: Scores) -> dict:
        """Each metric of these scores, with its resampled values."""
        drawn = bootstrap(scores, FPR, n_resamples=n_resamples, seed=seed)
        points = dict(zip(names(FPR), per_target_metrics(scores, FPR).T, strict=True))
        results = {name: (values, drawn[name]) for name, values in points.items()}
        results["leak"] = (points["auc"] - 0.5, drawn["auc"] - 0.5)
        results["test_accuracy"] = (scores.accuracy[:, 1], None)
        results["gap"] = (scores.accuracy[:, 0] - scores.accuracy[:, 1], None)
        return results

    return measured


def compare(
    study: Study,
    settings: dict[Setting, Scores],
    measured: Callable[[Scores], dict],
    *,
    frontier: pd.DataFrame | None,
    delta: float,
    level: float,
) -> pd.DataFrame:
    """One row per comparison that the study's claims rest on, as far as it was run, with `COLUMNS`.

    settings: of `usable` that the study decides by; measured: of `measuring`. `attrs["fewer"]` says
    by claim how often stochastic families were queried along training, where that is less often
    than in what decides. ValueError when targets were trained on different masks.
    """
    _check_same_masks(settings)
    n0 = min((smallest(scores)[1] for scores in settings.values()), default=0)
    tpr = next((f"tpr@{x:g}" for x in FPR if measurable(f"tpr@{x:g}", n0)), None)
    rows = []
    fewer = {}
    for name, claim in study.claims.items():
        compared = contrasts(study, claim, settings)
        claim_rows = _difference_rows(list(_with_tpr(compared, tpr)), settings, measured, level)
        claim_rows += curve_rows(compared, settings, delta, level)
        if frontier is not None and claim.matched:
            matched_rows, fewer[name] = equal_accuracy_rows(
                compared, claim.matched, frontier, level
            )
            claim_rows += matched_rows
        rows += [{"claim": name} | row for row in claim_rows]
    table = pd.DataFrame(rows, columns=COLUMNS).astype({"needed": bool})
    table.attrs["fewer"] = fewer
    return table


def _check_same_masks(settings: dict[Setting, Scores]) -> None:
    """ValueError unless row k of every setting is a model trained on the same samples, as paired
    intervals need it.
    """
    for setting, scores in settings.items():
        first = next(iter(settings))
        if not same_masks(scores, settings[first]):
            raise ValueError(
                f"{setting.where} and {first.where} have different membership: claims need pools"
                " trained on the same masks and the same targets of each"
            )


def _with_tpr(compared: list[Contrast], tpr: str | None) -> Iterator[Contrast]:
    """The contrasts but those with a curve. An AUC that decides is followed by the same contrast of
    the TPR, which decides nothing, unless the margin is at least as wide as the FPR.
    """
    for contrast in compared:
        if contrast.minus == "curve":
            continue
        if contrast.metric == TPR:
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
    """A row for each contrast. Intervals are those of `metrics.interval` (of a ratio
    `ratio_interval`), paired: the same samples and pairs in every setting. Those of accuracies and
    gaps cover pairs alone.
    """

    def sides(contrast: Contrast, metric: str) -> list[tuple]:
        """(values, resampled values) of each side: of its attack with the largest mean."""
        strongest = []
        for _, attacks in contrast.terms:
            candidates = [measured(settings[setting])[metric] for setting in attacks]
            strongest.append(max(candidates, key=lambda candidate: candidate[0].mean()))
        return strongest

    joint = Counter(map(_joint_group, compared))
    rows = []
    for contrast in compared:
        levels = (level, 1 - (1 - level) / joint[_joint_group(contrast)])
        scores = settings[contrast.first]
        estimate = _ratio if contrast.ratio else _difference
        value, ends, simultaneous = estimate(
            contrast, sides(contrast, contrast.metric), scores.pair, levels
        )
        row = contrast.row(value, ends, simultaneous)
        if one_pair(scores):  # the intervals then cover samples only
            row["outcome"] = "open"
        two_sides = len(contrast.terms) == 2 and not contrast.ratio
        if contrast.margin and contrast.metric == "auc" and two_sides:
            row |= _relative(sides(contrast, "leak"), scores.pair, level)
        rows.append(row)
    return rows


def _joint_group(contrast: Contrast) -> str:
    """The name of the group of comparisons whose errors are controlled jointly."""
    return "needed" if contrast.needed else f"{contrast.part}, {contrast.metric}"


def _difference(
    contrast: Contrast, sides: list[tuple], pair: np.ndarray, levels: Sequence[float]
) -> tuple:
    """(value, interval per level) of the weighted sum of the sides."""
    points, draws = zip(*sides, strict=True)
    values = contrast.weighted(points)
    drawn = None if draws[0] is None else contrast.weighted(draws)
    ends = [interval(values, pair, drawn, confidence=level) for level in levels]
    return values.mean(), *ends


def _ratio(
    contrast: Contrast, sides: list[tuple], pair: np.ndarray, levels: Sequence[float]
) -> tuple:
    """(value, interval per level) of the ratio of the first side to the second."""
    (a, draws_a), (b, draws_b) = sides
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.divide(a.mean(), b.mean())
    if contrast.metric == "leak":
        value = np.maximum(value, 0.0)  # an AUC below 1/2 counts as 1/2
    ends = [ratio_interval(a, b, pair, draws_a, draws_b, confidence=level) for level in levels]
    return value, *ends


def _relative(leaks: list[tuple], pair: np.ndarray, level: float) -> dict[str, float]:
    """A difference of AUC as a share of the second side's AUC - 1/2, with its interval.

    With a leak of only 0.02 almost any two networks are within a margin of 0.01.
    """
    (a, draws_a), (b, draws_b) = leaks
    low, high = ratio_interval(a, b, pair, draws_a, draws_b, confidence=level)
    share = a.mean() / b.mean() - 1 if b.mean() > 0 else np.nan
    return {"relative": float(share), "relative_low": low - 1, "relative_high": high - 1}
