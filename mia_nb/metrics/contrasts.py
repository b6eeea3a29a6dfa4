"""Claims as signed differences between settings of a study: paired intervals, verdicts and their evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mia_nb.metrics.published import fewest_non_members, measurable
from mia_nb.metrics.uncertainty import (
    FPR,
    bootstrap,
    interval,
    names,
    per_target_metrics,
    ratio_interval,
)
from mia_nb.types import Scores

SAME = 0.01  # differences up to this count as none, of AUC and of accuracy
TPR = "tpr"  # stands for the TPR at the smallest FPR that all cells can measure
STOCHASTIC_ONLY = ("lira_joint",)  # attacks that read off how answers to one question differ
OF_MODELS = {
    "test_accuracy": lambda scores: scores.accuracy[:, 1],
    "gap": lambda scores: -np.diff(scores.accuracy)[:, 0],
}
COLUMNS = [
    "claim", "part", "compared", "metric", "needed", "value", "low", "high", "sure_low", "sure_high", "margin", "outcome",
]  # fmt: skip


class Contrast(NamedTuple):
    """A weighted sum over sides that a claim wants above `above` (`margin` 0) or within +-margin.

    A side is one cell, or the strongest of several attacks. `part` groups contrasts in the evidence;
    parts that are not `needed` are reported and decide nothing. `metric`: auc, tpr (the smallest FPR that all cells can
    measure), test_accuracy, or gap (train minus test accuracy). `ratio`: the first side over the second, not a difference.
    """

    part: str
    compared: str
    terms: tuple[tuple[int, tuple[Any, ...]], ...]
    metric: str = "auc"
    needed: bool = True
    margin: float = 0.0
    chance: bool = False  # subtract what a coin gets
    above: float = 0.0
    ratio: bool = False


class Claim(NamedTuple):
    """`needs` says what must be run; without one of `parts` the claim cannot hold; `tpr`: equal AUC is not enough.

    `equal`: the claim compares the risks of different models, which says less when these are not equally accurate.
    `matched`: what models are put on one level of before they are compared again ("test_acc" | "gap"), where that is done.
    """

    sentence: str
    contrasts: Callable[..., Iterator[Contrast]]
    needs: str
    parts: tuple[str, ...] = ()
    tpr: bool = False
    equal: bool = False
    matched: str = ""


def minus(part: str, compared: str, a, b, **options) -> Contrast:
    """The contrast a - b; each is a cell or a tuple of them."""
    sides = [side if isinstance(side[0], tuple) else (side,) for side in (a, b)]
    return Contrast(part, compared, ((1, sides[0]), (-1, sides[1])), **options)


def strongest(cells, *settings) -> list[tuple]:
    """For each setting the attacks that all of them have, so that families are compared by their worst case; maybe none.

    What only stochastic networks can be asked (`STOCHASTIC_ONLY`) counts beside these where all stochastic settings have it.
    """
    words = dict.fromkeys(cell.attack for cell in cells)
    found = {word: [s._replace(attack=word) in cells for s in settings] for word in words}
    common = [word for word in words if all(found[word])]
    noisy = [getattr(s, "stochastic", False) for s in settings]
    own = [
        word
        for word in STOCHASTIC_ONLY
        if word in words and word not in common and any(noisy) and found[word] == noisy
    ]
    sides = [[*common, *(own if random else [])] if common else [] for random in noisy]
    return [
        tuple(s._replace(attack=word) for word in side)
        for s, side in zip(settings, sides, strict=True)
    ]


def worst_case(side: tuple, other: tuple = ()) -> str:
    """In words: which attacks a side takes the strongest of, and the other side where it takes other ones."""
    words = [
        f"strongest of {len(one)} attacks" if len(one) > 1 else one[0].attack
        for one in (side, other or side)
    ]
    return " against ".join(dict.fromkeys(words))


def steps(group: list) -> list[tuple]:
    """Adjacent settings, and the ends when there is something between."""
    return [*pairwise(group), *([(group[0], group[-1])] if len(group) > 2 else [])]


def compare(
    claims: dict[str, Claim], cells: dict, where, *, draws: int, level: float, seed: int
) -> pd.DataFrame:
    """One row per comparison that the claims rest on, as far as it was run, with `COLUMNS`.

    `where(cell)`: the setting in words. Intervals are those of `metrics.interval` (of a ratio `ratio_interval`), paired: the
    same samples and pairs in every cell. Those of accuracies and gaps cover pairs alone.
    ValueError when the cells' targets were trained on different masks.
    """
    _same_masks(cells, where)
    n0 = min(map(fewest_non_members, cells.values()), default=0)
    tpr = next((f"tpr@{x:g}" for x in FPR if measurable(f"tpr@{x:g}", n0)), None)
    measured: dict[Any, tuple] = {}
    frames = [
        _compared(name, claim, cells, tpr, measured, draws, level, seed)
        for name, claim in claims.items()
    ]
    return pd.DataFrame([row for frame in frames for row in frame], columns=COLUMNS).astype(
        {"needed": bool}
    )


def _same_masks(cells: dict, where):
    """A pairing needs row k of every cell to be a model trained on the same samples."""
    units = {cell: np.unique(scores.pair, return_inverse=True)[1] for cell, scores in cells.items()}
    for cell, scores in cells.items():
        first = next(iter(cells))
        if not (
            np.array_equal(scores.member, cells[first].member)
            and np.array_equal(units[cell], units[first])
        ):
            raise ValueError(
                f"{where(cell)} and {where(first)} have different membership: claims need pools trained on the same masks "
                "and the same targets of each"
            )


def _asked(claim: Claim, cells, tpr: str | None) -> Iterator[Contrast]:
    """The contrasts of a claim; every AUC that decides gets its TPR beside it."""
    for contrast in claim.contrasts(cells):
        if contrast.metric != TPR:
            yield contrast
        if tpr and (contrast.metric == TPR or (contrast.metric == "auc" and contrast.needed)):
            yield contrast._replace(
                metric=tpr, needed=contrast.needed if contrast.metric == TPR else claim.tpr
            )


def _compared(name: str, claim: Claim, cells, tpr, measured, draws, level, seed) -> list[dict]:
    """The rows of one claim."""
    asked = list(_asked(claim, cells, tpr))
    jointly = pd.Series([_family(contrast) for contrast in asked], dtype=object).value_counts()
    rows = []
    for contrast in asked:
        for cell in (cell for _, side in contrast.terms for cell in side):
            if cell not in measured:
                sampled = bootstrap(cells[cell], FPR, draws=draws, seed=seed)
                measured[cell] = per_target_metrics(cells[cell], FPR), sampled, cells[cell]
        sure = 1 - (1 - level) / jointly[_family(contrast)]
        value, *ends = _estimate(contrast, measured, (level, sure))
        alone = _one_pair(
            measured[contrast.terms[0][1][0]][2]
        )  # then the intervals are of samples only
        record = row_of(name, contrast, value, *ends)
        rows.append(record | ({"outcome": "open"} if alone else {}))
    return rows


def row_of(name: str, contrast: Contrast, value: float, ends: tuple, sure_ends: tuple) -> dict:
    """One row of `compare`; "for" by the interval `ends`, "against" by the joint one, NaN decides nothing."""
    (low, high), (sure_low, sure_high), m, above = ends, sure_ends, contrast.margin, contrast.above
    metric = f"ratio of {contrast.metric}" if contrast.ratio else contrast.metric
    # A model at chance has TPR = FPR: above 1 / FPR no ratio to it can be seen, so that falling short of it shows nothing.
    out_of_reach = contrast.ratio and above * float(contrast.metric.removeprefix("tpr@")) > 1 - 1e-9
    holds = low > above if not m else -m < low and high < m
    fails = sure_high < above if not m else sure_low > m or sure_high < -m
    outcome = "for" if holds else "against" if fails and not out_of_reach else "open"
    record = (name, contrast.part, contrast.compared, metric, contrast.needed, float(value))
    return dict(zip(COLUMNS, (*record, low, high, sure_low, sure_high, m, outcome), strict=True))


def _one_pair(scores: Scores) -> bool:
    return len(np.unique(scores.pair)) < 2


def _family(contrast: Contrast) -> str:
    """Comparisons whose errors are counted together."""
    return "needed" if contrast.needed else f"{contrast.part}, {contrast.metric}"


def _estimate(contrast: Contrast, measured, levels) -> tuple:
    """(value, interval per level): paired, of the strongest attack of each side."""
    metric = contrast.metric
    sides = [_strongest(metric, [measured[cell] for cell in side]) for _, side in contrast.terms]
    pair = measured[contrast.terms[0][1][0]][2].pair
    if contrast.ratio:
        (a, draws_a), (b, draws_b) = sides
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.divide(a.mean(), b.mean())
        return value, *(
            ratio_interval(a, b, pair, draws_a, draws_b, confidence=level) for level in levels
        )
    coin = (
        0.0
        if not contrast.chance
        else 0.5
        if metric == "auc"
        else float(metric.removeprefix("tpr@"))
    )
    weights = [weight for weight, _ in contrast.terms]
    total = sum(weight * values for weight, (values, _) in zip(weights, sides, strict=True)) - coin
    drawn = None
    if metric not in OF_MODELS:
        drawn = (
            sum(weight * draws for weight, (_, draws) in zip(weights, sides, strict=True)) - coin
        )
    return total.mean(), *(interval(total, pair, drawn, confidence=level) for level in levels)


def _strongest(metric: str, side: list[tuple]) -> tuple[np.ndarray, np.ndarray | None]:
    """(values of the targets, their draws or None) of the attack on this side whose mean is largest."""
    if metric in OF_MODELS:
        return max((OF_MODELS[metric](scores) for *_, scores in side), key=np.mean), None
    points, sampled, _ = max(side, key=lambda one: one[0][:, names(FPR).index(metric)].mean())
    return points[:, names(FPR).index(metric)], sampled[metric]


def judge(
    claims: dict[str, Claim], cells: dict, table: pd.DataFrame, who, *, extra=None, qualify=None
) -> pd.DataFrame:
    """A verdict per claim from its rows in `table` (`compare`): claim, verdict, evidence, compared, accuracy_apart.

    `who(cell)`: the models in words; `extra(found)`: more evidence; `qualify(verdict, found, unequal) -> verdict`.
    """
    rows = {}
    for name, claim in claims.items():
        found = table[table["claim"] == name]
        needed, contrasts = found[found["needed"]], list(claim.contrasts(cells))
        apart = _apart([contrast for contrast in contrasts if contrast.needed], cells, who)
        missing = [part for part in claim.parts if part not in set(needed["part"])]
        evidence = [
            *_evidence(found),
            *(f"{part}: not run" for part in missing),
            *(extra(found) if extra else ()),
            *_caveats(contrasts, cells, who),
        ]
        unequal = claim.equal and apart > SAME + 1e-9
        rows[name] = {
            "claim": claim.sentence,
            "verdict": (qualify or at_unequal_accuracy)(_verdict(needed, missing), found, unequal),
            "evidence": "; ".join(evidence) if len(found) else f"not run: needs {claim.needs}",
            "compared": "; ".join(dict.fromkeys(needed["compared"])),
            "accuracy_apart": 100 * apart,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("id")


def _verdict(needed: pd.DataFrame, missing) -> str:
    if not len(needed):
        return "not run"
    if (needed["outcome"] == "against").any():
        return "does not hold"
    return "holds" if (needed["outcome"] == "for").all() and not missing else "not resolved"


def at_unequal_accuracy(verdict: str, found: pd.DataFrame, unequal: bool) -> str:
    """Only what is decided can rest on unequal accuracy."""
    return (
        f"{verdict} (at unequal accuracy)"
        if unequal and verdict in ("holds", "does not hold")
        else verdict
    )


def _evidence(found: pd.DataFrame) -> Iterator[str]:
    """A phrase per part: counts, and the comparison that is least for the claim; of a TPR that decides nothing the counts."""
    for (part, metric), group in found.groupby(["part", "metric"], sort=False):
        least, tpr = _least(group), metric.startswith("tpr@")
        texts = [
            f"{(group['outcome'] == side).sum()} of {len(group)} {side}"
            for side in ("for", "against")
        ]
        if not tpr or least["needed"]:
            form = ".1f" if metric.startswith("ratio") else "+.3f"
            value, low, high = (format(least[name], form) for name in ("value", "low", "high"))
            interval = f"{least['compared']} {value} [{low}, {high}]"
            texts = [*texts, f"least {interval}"] if len(group) > 1 else [interval]
        title = (
            part
            if "tpr@" not in metric
            else metric
            if metric.startswith(part)
            else f"{part} {metric}"
        )
        yield f"{title}: {', '.join(texts)}"


def _least(group: pd.DataFrame) -> pd.Series:
    """The smallest difference; under a margin the largest in size; a difference that is no number where all are none."""
    size = group["value"].where(group["margin"] == 0, -group["value"].abs())
    return group.loc[size.idxmin() if size.notna().any() else group.index[0]]


def _sides(contrasts: list[Contrast]) -> list[list]:
    """The cells that each contrast compares."""
    return [[cell for _, side in contrast.terms for cell in side] for contrast in contrasts]


def _accuracy(contrasts: list[Contrast], cells: dict, who) -> dict[str, np.ndarray]:
    """Mean train and test accuracy of all models compared."""
    accuracy: dict[str, np.ndarray] = {}
    for cell in sorted(
        {cell for side in _sides(contrasts) for cell in side}
    ):  # plain sorts first: the model as it is used
        accuracy.setdefault(who(cell), cells[cell].accuracy.mean(0))
    return accuracy


def _apart(contrasts: list[Contrast], cells: dict, who) -> float:
    """Largest difference of test accuracy inside a contrast of different models; NaN without one."""
    accuracy = _accuracy(contrasts, cells, who)
    models = [{who(cell) for cell in side} for side in _sides(contrasts)]
    return max(
        (float(np.ptp([accuracy[name][1] for name in side])) for side in models if len(side) > 1),
        default=np.nan,
    )


def _caveats(contrasts: list[Contrast], cells: dict, who) -> Iterator[str]:
    """Train and test accuracy of everything compared, how unequal, and too few targets."""
    accuracy = _accuracy(contrasts, cells, who).items()
    yield "train / test accuracy " + ", ".join(
        f"{name} {a:.3f} / {b:.3f}" for name, (a, b) in accuracy
    )
    if (apart := _apart(contrasts, cells, who)) > 0:
        yield f"compared at test accuracies up to {apart:.3f} apart"
    if contrasts and _one_pair(cells[contrasts[0].terms[0][1][0]]):
        yield "one pair of targets does not show training randomness: nothing is decided"
