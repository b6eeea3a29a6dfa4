"""The results of a study's contrasts: differences and ratios with paired intervals, attacks
compared with the trade-off curve of an epsilon, and differences at equal accuracy along training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial

import numpy as np
import pandas as pd

from mia_nb.accounting import tradeoff
from mia_nb.metrics.bootstrap import bootstrap
from mia_nb.metrics.curve import clopper_pearson, counts, measurable
from mia_nb.metrics.matched import highest_level, matched
from mia_nb.metrics.pairs import same_masks
from mia_nb.metrics.targets import (
    FPR,
    measurable_rates,
    names,
    per_target_metrics,
    scored,
    smallest,
    tied_floor,
)
from mia_nb.metrics.uncertainty import interval, ratio_interval
from mia_nb.studies.engine import TPR, Claim, Contrast, Study, contrasts
from mia_nb.studies.setting import Setting
from mia_nb.types import Scores

SAME = 0.01  # a difference of AUC or of accuracy up to this counts as none
CURVE = 1.0  # epsilon of the curve that Figure 5 of Hong, Wu, Gruber and Lee draws
AT_EQUAL = {"test_acc": "at equal accuracy", "gap": "at equal gap"}
LEVEL_OF = {"test_acc": "test accuracy", "gap": "gap"}
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

    settings: of `deciding`; measured: of `measuring`. `attrs["fewer"]` says by claim how often
    stochastic families were queried along training, where that is less often than in what decides.
    ValueError when targets were trained on different masks.
    """
    _same_masks(settings)
    n0 = min((smallest(scores)[1] for scores in settings.values()), default=0)
    tpr = next((f"tpr@{x:g}" for x in FPR if measurable(f"tpr@{x:g}", n0)), None)
    rows = []
    fewer = {}
    for name, claim in study.claims.items():
        claim_contrasts = contrasts(study, claim, settings)
        with_tpr = list(_with_tpr(claim, claim_contrasts, tpr))
        claim_rows = _difference_rows(with_tpr, settings, measured, level)
        claim_rows += _curve_rows(claim_contrasts, settings, delta, level)
        if frontier is not None and claim.matched:
            matched_rows, fewer[name] = _matched_rows(
                claim_contrasts, claim.matched, frontier, level
            )
            claim_rows += matched_rows
        rows += [{"claim": name} | row for row in claim_rows]
    table = pd.DataFrame(rows, columns=COLUMNS).astype({"needed": bool})
    table.attrs["fewer"] = fewer
    return table


def _same_masks(settings: dict[Setting, Scores]) -> None:
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


def one_pair(scores: Scores) -> bool:
    """Whether all targets are of one pair, so that intervals do not cover training randomness."""
    return len(np.unique(scores.pair)) < 2


def rate_of(metric: str) -> float:
    """The FPR in a metric's name; 0 where there is none."""
    return float(metric.partition("tpr@")[2] or 0)


def _row(contrast: Contrast, value: float, ends: tuple, simultaneous: tuple) -> dict[str, object]:
    """One row of `compare`, without the claim.

    Parameters:
        contrast: what is compared, and the margin
        value: the difference or ratio
        ends: (low, high) of its interval at the level asked for, which decides "for"
        simultaneous: (low, high) of the interval that holds for all comparisons jointly, which
            decides "against"; NaN decides nothing
    """
    return {
        "part": contrast.part,
        "compared": contrast.compared,
        "metric": f"ratio of {contrast.metric}" if contrast.ratio else contrast.metric,
        "needed": contrast.needed,
        "value": float(value),
        "low": ends[0],
        "high": ends[1],
        "simultaneous_low": simultaneous[0],
        "simultaneous_high": simultaneous[1],
        "margin": contrast.margin,
        "outcome": _outcome(contrast, *ends, *simultaneous),
    }


def _outcome(
    contrast: Contrast, low: float, high: float, simultaneous_low: float, simultaneous_high: float
) -> str:
    """ "for" or "against" the claim, or "open"."""
    margin = contrast.margin
    if margin:
        holds = -margin < low and high < margin
        fails = simultaneous_low > margin or simultaneous_high < -margin
    else:
        holds = low > contrast.above
        fails = simultaneous_high < contrast.above
    if holds:
        return "for"
    # A model at chance has TPR = FPR, and no TPR exceeds 1: a claimed ratio above 1 / FPR is out of
    # reach, so that a smaller one is not evidence against the claim.
    out_of_reach = contrast.ratio and contrast.above * rate_of(contrast.metric) > 1 - 1e-9
    return "against" if fails and not out_of_reach else "open"


# differences and ratios


def _with_tpr(claim: Claim, claim_contrasts: list[Contrast], tpr: str | None) -> Iterator[Contrast]:
    """The contrasts of a claim except those with a curve. An AUC that decides is followed by the
    same contrast of the TPR, unless the margin is at least as wide as the FPR.
    """
    for contrast in claim_contrasts:
        if contrast.minus == "curve":
            continue
        if contrast.metric == TPR:
            if tpr:
                yield contrast._replace(metric=tpr)
            continue
        yield contrast
        decides = contrast.metric == "auc" and contrast.needed and contrast.tpr
        if tpr and decides and (claim.tpr or contrast.margin < rate_of(tpr)):
            yield contrast._replace(metric=tpr, needed=claim.tpr)


def _difference_rows(
    claim_contrasts: list[Contrast],
    settings: dict[Setting, Scores],
    measured: Callable,
    level: float,
) -> list[dict]:
    """A row for each contrast. Intervals are those of `metrics.interval` (of a ratio
    `ratio_interval`), paired: the same samples and pairs in every setting. Those of accuracies and
    gaps cover pairs alone.
    """

    def side(attacks: tuple, metric: str) -> tuple:
        """(values, resampled values) of the attack with the largest mean."""
        candidates = [measured(settings[setting])[metric] for setting in attacks]
        return max(candidates, key=lambda candidate: candidate[0].mean())

    comparisons_in = Counter(map(_family, claim_contrasts))
    rows = []
    for contrast in claim_contrasts:
        levels = (level, 1 - (1 - level) / comparisons_in[_family(contrast)])
        scores = settings[contrast.first]
        sides = [side(attacks, contrast.metric) for _, attacks in contrast.terms]
        estimate = _ratio if contrast.ratio else _difference
        row = _row(contrast, *estimate(contrast, sides, scores.pair, levels))
        if one_pair(scores):  # the intervals then cover samples only
            row["outcome"] = "open"
        two_sides = len(contrast.terms) == 2 and not contrast.ratio
        if contrast.margin and contrast.metric == "auc" and two_sides:
            leaks = [side(attacks, "leak") for _, attacks in contrast.terms]
            row |= _relative(leaks, scores.pair, level)
        rows.append(row)
    return rows


def _family(contrast: Contrast) -> str:
    """The name of the group of comparisons whose errors are controlled jointly."""
    return "needed" if contrast.needed else f"{contrast.part}, {contrast.metric}"


def _difference(
    contrast: Contrast, sides: list[tuple], pair: np.ndarray, levels: Sequence[float]
) -> tuple:
    """(value, interval per level) of the weighted sum of the sides, less the value at chance for a
    contrast with chance.
    """
    chance = 0.0
    if contrast.minus == "chance":
        chance = 0.5 if contrast.metric == "auc" else rate_of(contrast.metric)
    weights = [weight for weight, _ in contrast.terms]
    values = (
        sum(weight * points for weight, (points, _) in zip(weights, sides, strict=True)) - chance
    )
    drawn = None
    if sides[0][1] is not None:
        drawn = (
            sum(weight * draws for weight, (_, draws) in zip(weights, sides, strict=True)) - chance
        )
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


# attacks held against the trade-off curve of an epsilon, one target at a time


def tested_rates(scores: Scores) -> list[float]:
    """The FPRs at which a ROC is compared with a curve: those that can be measured, and that ties
    allow to be reached.
    """
    return [x for x in measurable_rates(scores) if tied_floor(scores) <= x]


def number_of_tests(with_curve: Iterable[Contrast], settings: dict[Setting, Scores]) -> int:
    """How many comparisons with a curve these contrasts make: one per target and rate."""
    tests = 0
    for contrast in with_curve:
        scores = settings[contrast.first]
        tests += len(tested_rates(scores)) * len(scores.value)
    return tests


def _curve_rows(
    claim_contrasts: list[Contrast], settings: dict[Setting, Scores], delta: float, level: float
) -> list[dict]:
    """A row for each contrast with a curve and each rate."""
    rows = []
    curve = partial(tradeoff, epsilon=CURVE, delta=delta)
    with_curve = [contrast for contrast in claim_contrasts if contrast.minus == "curve"]
    # errors of those that decide are controlled jointly, and so are those of the others
    for needed in (True, False):
        group = [contrast for contrast in with_curve if contrast.needed == needed]
        levels = (level, 1 - (1 - level) / max(number_of_tests(group, settings), 1))
        for contrast in group:
            scores = settings[contrast.first]
            for x in tested_rates(scores):
                rows.append(_least_room_row(contrast, scores, x, curve, levels))
    return rows


def _least_room_row(
    contrast: Contrast, scores: Scores, x: float, curve: Callable, levels: tuple
) -> dict:
    """The row of one contrast and rate: numbers of the target that has the least room below the
    curve, with the outcome over all targets.
    """
    rooms = np.array(
        [room_below(*scored(scores, row), x, curve, levels) for row in range(len(scores.value))]
    )
    least = int(rooms[:, 0].argmin())
    compared = f"{contrast.compared}, {contrast.first.attack}"
    if len(rooms) > 1:
        compared += f", least of {len(rooms)} targets ({scores.targets[least]})"
    value, low, high, simultaneous_low, simultaneous_high = rooms[least]
    contrast = contrast._replace(compared=compared, metric=f"tpr@{x:g}")
    record = _row(contrast, value, (low, high), (simultaneous_low, simultaneous_high))
    record["outcome"] = "open"
    if not one_pair(scores):
        if (rooms[:, 4] < 0).any():
            record["outcome"] = "against"
        elif (rooms[:, 1] > 0).all():
            record["outcome"] = "for"
    return record


def room_below(
    score: np.ndarray, member: np.ndarray, x: float, curve: Callable, levels: Sequence[float]
) -> list[float]:
    """[curve - TPR, then its low and high end per level] of one target at the largest FPR that is
    at most x.

    curve(fpr) is the largest TPR that the curve allows. Ends are those of `studies.comparisons`: a
    target whose high end is below 0 lies above the curve.
    """
    tp, fp, _ = counts(score, member)
    # the lowest threshold with at most this FPR: only non-members set it
    last = np.searchsorted(fp, np.floor(x * fp[-1] + 1e-9), side="right") - 1
    room = [float(curve(fp[last] / fp[-1])) - tp[last] / tp[-1]]
    for level in levels:
        fpr, tpr = (clopper_pearson(hits[last], hits[-1], confidence=level) for hits in (fp, tp))
        room += [float(curve(fpr[0])) - float(tpr[1]), float(curve(fpr[1])) - float(tpr[0])]
    return room


# the contrasts that decide, repeated at equal test accuracy or gap, from checkpoints


def _matched_rows(
    claim_contrasts: list[Contrast], by: str, frontier: pd.DataFrame, level: float
) -> tuple[list[dict], str]:
    """(rows, R in words): a row for each contrast that decides, at the highest level of accuracy or
    gap that checkpoints of both families reach.

    R: of the stochastic families that were queried less often along training than in the comparison
    that decides.
    """
    metric = "gap" if by == "gap" else "auc"
    reached = []
    for contrast in claim_contrasts:
        if not contrast.needed or contrast.metric != metric:
            continue
        labels = [side[0].label for _, side in contrast.terms]
        curves = frontier[frontier["family"].isin(labels)]
        if curves["family"].nunique() != 2:
            continue
        top = highest_level(curves, *labels, by)
        if top is not None:
            reached.append((contrast, curves, top))
    joint_level = 1 - (1 - level) / max(len(reached), 1)
    rows, fewer = [], []
    for contrast, curves, top in reached:
        _, baseline_side = contrast.terms[1]
        at_top = partial(matched, curves, by=by, baseline=baseline_side[0].label, levels=[top])
        at_level = at_top(confidence=level).set_index("family")
        simultaneous = at_top(confidence=joint_level).set_index("family")
        row, fewer_queries = _matched_row(contrast, by, at_level, simultaneous)
        rows.append(row)
        fewer += fewer_queries
    return rows, ", ".join(dict.fromkeys(fewer))


def _matched_row(
    contrast: Contrast, by: str, at_level: pd.DataFrame, simultaneous: pd.DataFrame
) -> tuple[dict, list[str]]:
    """(row, R in words) of a contrast at a level that both families reach.

    R: numbers of queries below those of the comparison that decides. at_level, simultaneous:
    `metrics.matched` by family, with intervals at the level asked for and at the joint level.
    """
    sides = [side[0] for _, side in contrast.terms]
    a, b = (side.label for side in sides)
    at = at_level.loc[a]
    queried, fewer_queries = [], []
    for side in sides:
        if side.stochastic:
            count = at_level.loc[side.label, "queries"]
            queried.append(f"R = {count:g}" if pd.notna(count) else "R not known")
            if not count >= side.queries:
                fewer_queries.append(queried[-1])
    words = [
        f"{a} - {b} at {LEVEL_OF[by]} {at['level']:.3f} ({at['difference_pairs']} pairs)",
        " against ".join(dict.fromkeys(at_level.loc[[a, b], "attack"])),
        " against ".join(dict.fromkeys(queried)),
        "" if at["over_samples"] else "samples not drawn: decides nothing",
    ]
    at_equal = contrast._replace(
        part=AT_EQUAL[by],
        compared=", ".join(filter(None, words)),
        metric="auc",
        needed=by == "gap",
        margin=SAME if by == "gap" else 0.0,
    )
    ends = tuple(at[["difference_low", "difference_high"]])
    joint_ends = tuple(simultaneous.loc[a, ["difference_low", "difference_high"]])
    row = _row(at_equal, at["difference"], ends, joint_ends)
    nothing_left = joint_ends[0] > -SAME and joint_ends[1] < SAME
    if not at["over_samples"]:
        row["outcome"] = "open"
    elif by == "test_acc" and contrast.above == 0 and nothing_left:
        row["outcome"] = "against"
    return row, fewer_queries
