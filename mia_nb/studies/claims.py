"""Comparisons and verdicts of the studies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from mia_nb.checks import checked
from mia_nb.metrics.frontier import highest_level, matched
from mia_nb.metrics.uncertainty import RESAMPLES
from mia_nb.studies.engine import (
    SAME,
    Contrast,
    Study,
    as_table,
    at_unequal_accuracy,
    compare,
    contrasts,
    deciding,
    judge,
    load,
    row_of,
)
from mia_nb.studies.remarks import AT_EQUAL, deciding_aucs
from mia_nb.studies.setting import Setting
from mia_nb.types import Scores

LEVEL_OF = {"test_acc": "test accuracy", "gap": "gap"}
ALIKE = 0.9  # of the ceiling: rank correlations from here on count as those of one ranking
SAME_SAMPLES = (
    f"All recipes expose the same samples (rank correlation at least {ALIKE} of the most that noise"
    " lets one see)."
)


@checked
def comparisons(
    study: str | Path,
    settings: dict[Setting, Scores],
    *,
    draws: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per comparison that a study's claims rest on, as far as it was run.

    study: "snn", "nsde", "privacy", "recipes", or a YAML file of your own (see `studies.engine`).
    settings: the scores of each `Setting`, all of them on the same masks.
    draws, level, seed: resamples of samples, confidence of an interval, seed of the resamples.
    Returns columns claim, part, compared, metric (auc, test_accuracy, gap, ratio of a TPR, and the
    TPR at the smallest FPR that all settings can measure), needed (decides the claim), value, low,
    high (at `level`), sure_low, sure_high (all comparisons of a part that decides nothing, or of
    all parts that do, jointly: level 1 - (1 - level) / comparisons), margin, outcome.
    "for": [low, high] above 0 (or within +-margin); "against": [sure_low, sure_high] below 0 (or
    outside +-margin); else "open". Intervals are paired (`metrics.interval`): the same samples and
    pairs of targets in every setting; accuracies vary over pairs alone. With one pair of targets
    everything is "open": intervals are then over samples alone, and do not show what training
    changes.
    Raises ValueError for settings that cannot be, and when targets were trained on different masks.
    Caveat: references are shared and samples of an accuracy are fixed, which no interval covers.
    """
    found = load(study)
    return compare(found, deciding(found, settings), draws=draws, level=level, seed=seed)


@checked
def claims(
    study: str | Path,
    settings: dict[Setting, Scores],
    *,
    draws: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Verdicts on a study's claims, from its `comparisons`.

    Parameters as in `comparisons`.
    Returns a row per claim, columns claim, verdict, evidence, compared, accuracy_apart (the largest
    difference of mean test accuracy between models that a deciding comparison sets against each
    other, in points, 1 = 1 %; NaN where it sets none but the same ones). "holds": every comparison
    that the claim needs is for it at `level`; "does not hold": one is against it with all of them
    taken jointly, so that many comparisons do not refute by chance; "not run": nothing to compare;
    else "not resolved", also when what was run is for it but a part that it needs is missing.
    " (at unequal accuracy)" follows what compares risks of models more than 1 point apart.
    Raises ValueError as `comparisons` does.
    Caveats: comparisons are at the accuracies that the evidence states, rarely equal ones; claims
    are not corrected for each other, nor for the choice of data; verdicts are about the attacks
    that were run, and not a statement on what any attack could find.
    """
    found = load(study)
    settings = deciding(found, settings)
    return judge(found, settings, compare(found, settings, draws=draws, level=level, seed=seed))


def snn_comparisons(settings: dict[Setting, Scores], **options) -> pd.DataFrame:
    """`comparisons` of the spiking study (Guan et al. 2025), with its options."""
    return comparisons("snn", settings, **options)


def snn_claims(settings: dict[Setting, Scores], **options) -> pd.DataFrame:
    """`claims` of the spiking study (Guan et al. 2025): index S1 to S9, with its options.

    Where aligned references were run S6 needs them too; without them its evidence says so.
    """
    return claims("snn", settings, **options)


@checked
def flow_comparisons(
    settings: dict[Setting, Scores],
    *,
    frontier: pd.DataFrame | None = None,
    draws: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """`comparisons` of Hong, Wu, Gruber and Lee (arXiv 2501.06686) on neural ODEs and SDEs.

    A stochastic model is taken with the most queries that were run. Attacks that only stochastic
    models can be asked (lira_joint) count on their side. Settings with a variant or a defense are
    left out.
    frontier: `metrics.frontier` of checkpoints, families named by `Setting.label`. Then comparisons
    of models are repeated "at equal accuracy" (D1, D4 to D6, D9, D11; needed=False) and "at equal
    gap" (D2; decides): `metrics.matched`, the strongest of the attacks in the frontier, at the
    highest of its default levels that two pairs of both families reach. `compared` says which
    attacks these were, and of stochastic models R, the outputs averaged. "against" at equal
    accuracy also says that nothing is left: the joint interval lies within +-0.01. Made with
    draws=0, a frontier decides nothing ("open"): its intervals do not cover the choice of samples.
    draws, level, seed, what it returns and raises: as in `comparisons`.
    Caveats: a frontier has its own number of queries; at its highest levels fewer pairs may be
    left, as the row says.
    """
    study = load("nsde")
    return _with_matched(study, deciding(study, settings), frontier, draws, level, seed)[0]


@checked
def flow_claims(
    settings: dict[Setting, Scores],
    *,
    frontier: pd.DataFrame | None = None,
    draws: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """`claims` of Hong, Wu, Gruber and Lee (arXiv 2501.06686): index D1 to D7, D9, D11 to D13.

    Parameters as in `flow_comparisons`. With a `frontier` a verdict is followed by " (also at equal
    accuracy)" where every comparison that decides comes out the same there. What holds as the
    models are, but where a comparison at equal accuracy is against it or finds nothing left, is
    "not at equal accuracy". "(also at equal accuracy, R = 4)": there stochastic models were queried
    less often than in what decides. D7 asks for 10 times, and is "not resolved" at best where the
    FPR that can be measured is so large that a model at chance allows no such ratio. D12: an AUC
    resolved below 0.5 is no absence of risk but a failed design, and is said to be so. Defenses
    (D8, D15) and accounting (D10, D14) are in `privacy_claims`.
    """
    study = load("nsde")
    settings = deciding(study, settings)
    table, fewer = _with_matched(study, settings, frontier, draws, level, seed)
    qualify = partial(_at_equal_accuracy, fewer=fewer)
    return judge(study, settings, table, qualify=qualify, frontier=frontier)


def _with_matched(
    study: Study, settings: dict, frontier, draws: int, level: float, seed: int
) -> tuple[pd.DataFrame, dict[str, str]]:
    """All comparisons, and by claim the R of those at equal accuracy that were queried less than
    what decides.
    """
    tables, fewer = [compare(study, settings, draws=draws, level=level, seed=seed)], {}
    for name in study.claims if frontier is not None else ():
        rows = list(_at_one_level(study, name, settings, frontier, level))
        tables += [as_table([row for row, _ in rows])] if rows else []
        fewer[name] = ", ".join(dict.fromkeys(text for _, texts in rows for text in texts))
    order = list(study.claims)
    table = pd.concat(tables).sort_values(
        "claim", key=lambda names: names.map(order.index), kind="stable"
    )
    return table.reset_index(drop=True), fewer


def _at_one_level(
    study: Study, name: str, settings: dict, frontier: pd.DataFrame, level: float
) -> Iterator[tuple[dict, list[str]]]:
    """The contrasts of one claim that decide, at equal accuracy or gap, as far as checkpoints of
    both families are there.

    Beside each row the R of stochastic families that were queried less along training than in what
    decides.
    """
    claim = study.claims[name]
    by, metric = claim.matched, "gap" if claim.matched == "gap" else "auc"
    found = []
    for contrast in contrasts(study, claim, settings) if by else ():
        a, b = (side[0].label for _, side in contrast.terms)
        there = frontier[frontier["family"].isin([a, b])]
        if contrast.needed and contrast.metric == metric and there["family"].nunique() == 2:
            top = highest_level(there, a, b, by)
            found += [(contrast, there, top)] if top is not None else []
    sure = 1 - (1 - level) / max(len(found), 1)
    for contrast, there, top in found:
        baseline = contrast.terms[1][1][0].label
        tables = [
            matched(there, by=by, baseline=baseline, levels=[top], confidence=confidence)
            for confidence in (level, sure)
        ]
        yield _matched_row(name, contrast, by, *(table.set_index("family") for table in tables))


def _matched_row(
    name: str, contrast: Contrast, by: str, there: pd.DataFrame, surely: pd.DataFrame
) -> tuple[dict, list[str]]:
    sides = [side[0] for _, side in contrast.terms]
    a, b = (one.label for one in sides)
    row, over_samples = there.loc[a], there.loc[a, "over_samples"]
    counts = {one: there.loc[one.label, "queries"] for one in sides if one.stochastic}
    queried = {one: f"R = {n:g}" if pd.notna(n) else "R not known" for one, n in counts.items()}
    words = [
        f"{a} - {b} at {LEVEL_OF[by]} {row['level']:.3f} ({row['difference_pairs']} pairs)",
        " against ".join(dict.fromkeys(there.loc[[a, b], "attack"])),
        " against ".join(dict.fromkeys(queried.values())),
        "" if over_samples else "samples not drawn: decides nothing",
    ]
    contrast = contrast._replace(
        part=AT_EQUAL[by],
        compared=", ".join(filter(None, words)),
        metric="auc",
        needed=by == "gap",
        margin=SAME if by == "gap" else 0.0,
    )
    ends, sure_ends = (
        tuple(table.loc[a, ["difference_low", "difference_high"]]) for table in (there, surely)
    )
    record = row_of(name, contrast, row["difference"], ends, sure_ends)
    nothing_left = sure_ends[0] > -SAME and sure_ends[1] < SAME
    if not over_samples:
        record["outcome"] = "open"
    elif by == "test_acc" and contrast.above == 0 and nothing_left:
        record["outcome"] = "against"
    return record, [queried[one] for one, n in counts.items() if not n >= one.queries]


def _at_equal_accuracy(
    verdict: str, rows: pd.DataFrame, unequal: bool, fewer: dict[str, str]
) -> str:
    """The verdict with what comparisons at equal accuracy make of it."""
    there = rows.loc[rows["part"] == AT_EQUAL["test_acc"], "outcome"]
    against = (there == "against").any()
    if verdict == "holds" and against:
        return "not at equal accuracy"
    every = len(there) == deciding_aucs(rows) and (there == "for").all()
    same = every if verdict == "holds" else against and verdict == "does not hold"
    if same and len(there):
        queried = fewer.get(rows["claim"].iloc[0])
        return f"{verdict} (also at equal accuracy{f', {queried}' if queried else ''})"
    return at_unequal_accuracy(verdict, rows, unequal)


def recipe_comparisons(settings: dict[Setting, Scores], **options) -> pd.DataFrame:
    """`comparisons` of recipes, with its options.

    Recipes must share their masks, row by row (`training.family_pools`). R3 lists every attack by
    itself too, which decides nothing.
    """
    return comparisons("recipes", settings, **options)


@checked
def recipe_claims(
    settings: dict[Setting, Scores],
    ranks: pd.DataFrame | None = None,
    *,
    comparisons: pd.DataFrame | None = None,
    draws: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """`claims` on what a recipe does to the membership result: index R1 to R8.

    R1 to R4 compare recipes that differ in epochs alone, R5 in augmentation, R6 in schedule; R8
    compares attacks.
    ranks: `metrics.agreement`, for R7: "holds" where every ratio's lower end is above 0.9, "does
    not hold" where one's upper end is below.
    comparisons: those of the same settings, if already made (draws, level and seed are then
    theirs).
    Caveats: a claim about these recipes on these data; the ends of R7 are not widened for the
    number of comparisons.
    """
    study = load("recipes")
    settings = deciding(study, settings)
    if comparisons is None:
        comparisons = compare(study, settings, draws=draws, level=level, seed=seed)
    verdicts = judge(study, settings, comparisons)
    verdicts.loc["R7"] = _same_samples(ranks)
    return verdicts.sort_index()


def _same_samples(ranks: pd.DataFrame | None) -> dict:
    row = {
        "claim": SAME_SAMPLES,
        "verdict": "not run",
        "evidence": "not run: needs metrics.agreement of two recipes",
        "compared": "",
        "accuracy_apart": np.nan,
    }
    if ranks is None or not len(ranks):
        return row
    against, sure = (ranks["high"] < ALIKE).any(), (ranks["low"] > ALIKE).all()
    verdict = "does not hold" if against else "holds" if sure else "not resolved"
    text = (
        "{first} and {second}: {correlation:.3f} of at most {ceiling:.3f}, ratio {ratio:.2f}"
        " [{low:.2f}, {high:.2f}], {samples:,} samples, {pairs} pairs"
    )
    records = ranks.to_dict("records")
    evidence = "; ".join(text.format(**each) for each in records)
    compared = "; ".join("{first} and {second}".format(**each) for each in records)
    return row | {"verdict": verdict, "evidence": evidence, "compared": compared}
