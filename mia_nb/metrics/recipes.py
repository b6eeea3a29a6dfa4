"""What a recipe does to the membership result: facts, risk against epochs, and claims about recipes with verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import permutations
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb.checks import checked
from mia_nb.metrics.contrasts import (
    COLUMNS,
    SAME,
    TPR,
    Claim,
    Contrast,
    compare,
    judge,
    minus,
    steps,
    strongest,
    worst_case,
)
from mia_nb.metrics.tables import intervals, per_target
from mia_nb.metrics.uncertainty import FPR, RESAMPLES, interval, names, per_target_metrics
from mia_nb.types import Recipe, Scores

ALIKE = 0.9  # of the ceiling: rank correlations from here on count as those of one ranking
FACTS = ("train accuracy", "test accuracy", "gap", "member loss", "non-member loss")
RANKS = "R7"


class RecipeCell(NamedTuple):
    """One attack under one recipe. `schedule`, `augment` and `rest` (all else, as JSON) say what is equal; `label` names it."""

    label: str
    epochs: int
    schedule: str
    augment: str
    rest: str
    attack: str = ""


@checked
def recipe_cell(label: str, recipe: Recipe, attack: str = "") -> RecipeCell:
    """The cell of a recipe under the name that it has everywhere (`training.labels`). Snapshots change no model."""
    facts = {
        k: v
        for k, v in recipe.to_json().items()
        if k not in ("epochs", "schedule", "augment", "snapshots")
    }
    return RecipeCell(
        label,
        recipe.epochs,
        recipe.schedule,
        recipe.augment,
        json.dumps(facts, sort_keys=True),
        attack,
    )


@checked
def recipe_facts(scores: dict[str, Scores]) -> pd.DataFrame:
    """What every result is to be read beside: per recipe a row per fact with value, low, high, and pairs, members, non-members.

    scores: {label: Scores of any attack}. Facts: train and test accuracy, their gap, and the mean loss on members and on
    non-members; Student's 95 % interval over pairs of targets (NaN with one): of training, not of the choice of images.
    """
    rows = []
    for label, one in scores.items():
        values = np.column_stack([one.accuracy, one.accuracy[:, 0] - one.accuracy[:, 1], one.loss])
        low, high = (np.broadcast_to(end, len(FACTS)) for end in interval(values, one.pair))
        sizes = {
            "pairs": len(np.unique(one.pair)),
            "n1": int(one.member.sum(1).min()),
            "n0": int((~one.member).sum(1).min()),
        }
        for i, fact in enumerate(FACTS):
            rows.append(
                {
                    "recipe": label,
                    "fact": fact,
                    "value": values[:, i].mean(),
                    "low": low[i],
                    "high": high[i],
                    **sizes,
                }
            )
    return pd.DataFrame(rows)


@checked
def recipe_risks(
    cells: dict[RecipeCell, Scores], fpr=FPR, *, draws: int = RESAMPLES, seed: int = 0
) -> pd.DataFrame:
    """A row per cell and metric (auc, tpr@x): the cell's fields, value, low, high (`intervals`), measurable, pairs, n1, n0.

    measurable: whether every target has the non-members that its FPR asks for, ten false positives (always for an AUC).
    """
    rows = []
    for cell, one in cells.items():
        ends, each = intervals(one, fpr, draws=draws, seed=seed), per_target(one, fpr)
        sizes = {
            "pairs": len(np.unique(one.pair)),
            "n1": int(each["n1"].min()),
            "n0": int(each["n0"].min()),
        }
        for metric in (name for name in names(fpr) if name != "advantage"):
            sure = metric == "auc" or bool(each[f"{metric}_measurable"].all())
            found = ends.loc[metric, ["value", "low", "high"]].to_dict()
            rows.append({**cell._asdict(), "metric": metric, **found, "measurable": sure, **sizes})
    return pd.DataFrame(rows)


def _settings(cells) -> list[RecipeCell]:
    return list(dict.fromkeys(cell._replace(attack="") for cell in cells))


def _apart_only_in(cells, what: str) -> list[list[RecipeCell]]:
    """Groups of settings that differ in one field and in nothing else."""
    groups: dict[tuple, list[RecipeCell]] = {}
    for cell in _settings(cells):
        groups.setdefault(cell._replace(label="", **{what: ""}), []).append(cell)
    return [group for group in groups.values() if len(group) > 1]


def _by_epochs(cells) -> list[list[RecipeCell]]:
    return [
        sorted(group, key=lambda cell: cell.epochs) for group in _apart_only_in(cells, "epochs")
    ]


def _risk(cells, part: str, a: RecipeCell, b: RecipeCell, **options) -> Iterator[Contrast]:
    """a - b in AUC of the strongest of the attacks that both have."""
    sides = strongest(cells, a, b)
    if all(sides):
        yield minus(part, f"{a.label} - {b.label}, {worst_case(*sides)}", *sides, **options)


def _longer(cells, **options) -> Iterator[Contrast]:
    """Longest against shortest decides; steps between them are reported."""
    for group in _by_epochs(cells):
        for less, more in steps(group):
            ends = (less, more) == (group[0], group[-1])
            yield from _risk(cells, "ends" if ends else "steps", more, less, needed=ends, **options)


def _r1(cells) -> Iterator[Contrast]:
    yield from _longer(cells)


def _r2(cells) -> Iterator[Contrast]:
    yield from _longer(cells, metric=TPR)


def _r3(cells) -> Iterator[Contrast]:
    for group in _by_epochs(cells):
        for less in group[:-1]:
            yield from _risk(cells, "short for long", group[-1], less, margin=SAME)
            for word in dict.fromkeys(cell.attack for cell in cells):
                a, b = (cell._replace(attack=word) for cell in (group[-1], less))
                if a in cells and b in cells:
                    yield minus(
                        word, f"{a.label} - {b.label}, {word}", a, b, margin=SAME, needed=False
                    )


def _r4(cells) -> Iterator[Contrast]:
    for group in _by_epochs(cells):
        sides = strongest(cells, group[-1], group[0])
        if all(sides):
            more, less = (side[0] for side in sides)
            yield minus(
                "accuracy", f"{more.label} - {less.label}", more, less, metric="test_accuracy"
            )


def _r5(cells) -> Iterator[Contrast]:
    for group in _apart_only_in(cells, "augment"):
        for plain in (cell for cell in group if cell.augment == "none"):
            for other in (cell for cell in group if cell is not plain):
                yield from _risk(cells, "augmentation", plain, other)


def _r6(cells) -> Iterator[Contrast]:
    for group in _apart_only_in(cells, "schedule"):
        for i, a in enumerate(group):
            for b in group[i + 1 :]:
                yield from _risk(cells, "schedule", a, b, margin=SAME)


def _r8(cells) -> Iterator[Contrast]:
    """Attacks whose order is sure under the shortest recipe, each two of them under the longest."""
    words = list(dict.fromkeys(cell.attack for cell in cells))
    for group in _by_epochs(cells):
        both = [
            word
            for word in words
            if all(end._replace(attack=word) in cells for end in (group[0], group[-1]))
        ]
        auc = {
            word: per_target_metrics(cells[group[0]._replace(attack=word)], ())[:, 0]
            for word in both
        }
        for better, worse in permutations(both, 2):
            if (
                interval(auc[better] - auc[worse], cells[group[0]._replace(attack=better)].pair)[0]
                > 0
            ):
                compared = f"{better} - {worse} under {group[-1].label}, surely above 0 under {group[0].label}"
                yield minus(
                    "order",
                    compared,
                    *(group[-1]._replace(attack=word) for word in (better, worse)),
                )


CLAIMS = {
    "R1": Claim("Longer training raises the risk (AUC of the strongest attack, the longest recipe against the shortest).", _r1,
                "two recipes that differ in epochs alone", ("ends",), equal=True),
    "R2": Claim("Longer training lets more members be found at few false alarms (TPR at the smallest measurable FPR).", _r2,
                "two recipes that differ in epochs alone, with non-members enough for a TPR", equal=True),
    "R3": Claim(f"A short recipe can stand for the longest (AUC of the strongest attack within {SAME}).", _r3,
                "two recipes that differ in epochs alone", ("short for long",)),
    "R4": Claim("Longer training is more accurate on images that a model has not seen (the longest against the shortest).", _r4,
                "two recipes that differ in epochs alone", ("accuracy",)),
    "R5": Claim("Augmentation lowers the risk (AUC of the strongest attack).", _r5,
                "two recipes that differ in augmentation alone", ("augmentation",), equal=True),
    "R6": Claim(f"The schedule hardly matters (AUC of the strongest attack within {SAME}).", _r6,
                "two recipes that differ in schedule alone", ("schedule",)),
    "R8": Claim("Attacks come in one order: what is surely stronger in AUC under the shortest recipe is so under the longest.",
                _r8,
                "two attacks of different strength, and two recipes that differ in epochs alone", ("order",)),
}  # fmt: skip
SAME_SAMPLES = f"All recipes expose the same samples (rank correlation at least {ALIKE} of the most that noise lets one see)."


@checked
def recipe_comparisons(
    cells: dict[RecipeCell, Scores], *, draws: int = RESAMPLES, level: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """One row per comparison that a claim about recipes rests on, as far as it was run: columns as in `snn_comparisons`.

    Recipes must share their masks, row by row (`training.family_pools`): then the same targets, pairs and samples are drawn in
    both, and the difference's interval is that of pairs. R3 lists every attack by itself too, which decides nothing.
    Raises ValueError for cells trained on different masks.
    """
    return compare(CLAIMS, cells, lambda cell: cell.label, draws=draws, level=level, seed=seed)[
        COLUMNS
    ]


@checked
def recipe_claims(
    cells: dict[RecipeCell, Scores],
    ranks: pd.DataFrame | None = None,
    *,
    comparisons: pd.DataFrame | None = None,
    draws: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Verdicts on what a recipe does to the membership result: index R1 to R8, columns as in `snn_claims`.

    "holds", "does not hold", "not resolved" or "not run", from `recipe_comparisons`; R1 to R4 compare recipes that differ in
    epochs alone, R5 in augmentation, R6 in schedule; R8 attacks. R7 from `ranks` (`agreement`): "holds" where every ratio's
    lower end is above 0.9, "does not hold" where one's upper end is below. " (at unequal accuracy)": R1, R2, R5 above 1 point.
    comparisons: those of the same cells, if already made (draws, level and seed are then theirs).
    Caveats: a claim about these recipes on these data; the ends of R7 are not widened for the number of comparisons.
    """
    table = (
        recipe_comparisons(cells, draws=draws, level=level, seed=seed)
        if comparisons is None
        else comparisons
    )
    verdicts = judge(CLAIMS, cells, table, lambda cell: cell.label)
    return (
        pd.concat([verdicts, pd.DataFrame([_same_samples(ranks)], index=[RANKS])])
        .sort_index()
        .rename_axis("id")
    )


def _same_samples(ranks: pd.DataFrame | None) -> dict:
    row = {
        "claim": SAME_SAMPLES,
        "verdict": "not run",
        "evidence": "not run: needs metrics.agreement of two recipes",
    }
    row |= {"compared": "", "accuracy_apart": np.nan}
    if ranks is None or not len(ranks):
        return row
    against, sure = (ranks["high"] < ALIKE).any(), (ranks["low"] > ALIKE).all()
    row["verdict"] = "does not hold" if against else "holds" if sure else "not resolved"
    words = [
        f"{one['first']} and {one['second']}: {one['correlation']:.3f} of at most {one['ceiling']:.3f}, "
        f"ratio {one['ratio']:.2f} [{one['low']:.2f}, {one['high']:.2f}], {one['samples']:,} samples, {one['pairs']} pairs"
        for _, one in ranks.iterrows()
    ]
    compared = [f"{a} and {b}" for a, b in zip(ranks["first"], ranks["second"], strict=True)]
    return row | {"evidence": "; ".join(words), "compared": "; ".join(compared)}
