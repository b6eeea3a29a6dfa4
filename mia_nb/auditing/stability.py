"""Do the same samples stand out when the target is trained again? Overlap of vulnerable sets over
seeds and attacks.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd

from mia_nb.arguments import Mask, Rate
from mia_nb.checks import checked
from mia_nb.metrics.curve import allowed, counts

FEWEST = 3  # repetitions
STABLE = 0.5  # with a smaller mean Jaccard, a list from one seed must not be reported
# by which members' overlap, corrected for chance, must exceed the non-members' to say anything of
# membership
BEYOND = 0.1


@checked
def stability(values: dict[str, np.ndarray], member: Mask, *, fpr: Rate = 0.01) -> pd.DataFrame:
    """Overlap, over repetitions and attacks, of the vulnerable sets: the members at or above the
    threshold of one FPR.

    Parameters:
        values: {attack: (S, N)} scores of S >= 3 targets trained on the same members with other
            seeds.
        member: (N,) bool.
        fpr: false positive rate in (0, 1).

    Returns:
        A row per attack (compare "seeds": its S sets) and, with two attacks or more, a row per
        repetition (compare "attacks": their sets). attrs["note"] says whether the lists of the
        attack with the least overlap may be reported. That takes a mean Jaccard of .5 and a k =
        (jaccard - chance) / (1 - chance) that exceeds the non-members' by .1 and by two standard
        errors.
        Columns:
            compare, of.
            size: mean of the sets'.
            jaccard: mean over pairs of sets; jaccard_chance: its expectation for independent random
                sets of the same sizes among the members.
            coverage, stability: |union|, |intersection|.
            jaccard_out, jaccard_out_chance, coverage_out, stability_out: the same for the
                non-members at or above the same thresholds: lists repeat without any leak where
                samples are easy or hard or references are the same.

    No set has more false positives than fpr allows: it is empty where more non-members tie for the
    largest score. The Jaccard of two empty sets is NaN and left out of means. Samples that lack a
    score in some repetition or attack (NaN: no reference on one side) are left out.

    Raises:
        ValueError: for S < 3, shapes that differ, no scored member or non-member, and an FPR
            outside (0, 1).

    Caveat: published stability at low FPR is .1 or less; a list from one seed is only a ranking.
    Larger sets overlap more, even beyond chance: an equal leak of all members raises their overlap
    too. Unions have more false positives than each of their sets.
    """
    shapes = [np.shape(scores) for scores in values.values()]
    equal = len(set(shapes)) == 1 and len(shapes[0]) == 2 and shapes[0][1:] == member.shape
    if not equal:
        raise ValueError(f"values {shapes}, member {member.shape}: wanted equal (S, N) and (N,)")
    scores = np.stack([np.asarray(of_attack, np.float64) for of_attack in values.values()])
    repetitions = scores.shape[1]
    known = ~np.isnan(scores).any((0, 1))
    scores = scores[..., known]
    member = member[known]
    if repetitions < FEWEST:
        raise ValueError(
            f"{repetitions} repetitions of the target: stability needs {FEWEST} or more, trained"
            " with other seeds"
        )
    if member.all() or not member.any():
        raise ValueError(
            f"{known.sum()} of {len(known)} samples have all scores: wanted a member and a"
            " non-member among them"
        )
    sets = np.array([[_above(score, member, fpr) for score in rows] for rows in scores])
    rows = [_row("seeds", name, sets[i], member) for i, name in enumerate(values)]
    if len(values) > 1:
        rows += [_row("attacks", seed, sets[:, seed], member) for seed in range(repetitions)]
    table = pd.DataFrame(rows)
    table.attrs["note"] = _note(table[table["compare"] == "seeds"], fpr)
    return table


def _above(score: np.ndarray, member: np.ndarray, fpr: float) -> np.ndarray:
    """(N,) whether each score is at or above the smallest threshold whose false positives the rate
    allows; all False without one.
    """
    _, fp, threshold = counts(score, member)
    last = int(np.searchsorted(fp, allowed(fpr, fp[-1]), side="right")) - 1
    # 0: above all, the infinite ones too
    return (score >= threshold[last]) & (last > 0)


def _row(compare: str, of: str | int, sets: np.ndarray, member: np.ndarray) -> dict:
    """A row of the table from sets (sets, N) bool."""
    row = {"compare": compare, "of": of, "size": sets[:, member].sum(1).mean()}
    for end, side in (("", member), ("_out", ~member)):
        inside = sets[:, side]
        jaccard, chance = _overlap(inside)
        row[f"jaccard{end}"] = jaccard
        row[f"jaccard{end}_chance"] = chance
        row[f"coverage{end}"] = int(inside.any(0).sum())
        row[f"stability{end}"] = int(inside.all(0).sum())
    return row


def _overlap(sets: np.ndarray) -> tuple[float, float]:
    """(Jaccard, its expectation by chance) of sets (sets, n): means over pairs of sets that are not
    both empty; NaN without any.
    """
    jaccard = []
    chance = []
    for first, second in combinations(sets, 2):
        union = (first | second).sum()
        if union:
            jaccard.append((first & second).sum() / union)
            chance.append(_chance(int(first.sum()), int(second.sum()), len(first)))
    return (np.mean(jaccard), np.mean(chance)) if jaccard else (np.nan, np.nan)


def _chance(a: int, b: int, n: int) -> float:
    """E |A and B| / |A or B| of independent random sets of a and b among n: hypergeometric."""
    from scipy.stats import hypergeom  # a second of start-up

    common = np.arange(max(0, a + b - n), min(a, b) + 1)
    return float((hypergeom.pmf(common, n, a, b) * common / (a + b - common)).sum())


def _note(seeds: pd.DataFrame, fpr: float) -> str:
    """A sentence on whether lists may be reported, by the attack whose sets overlap least."""
    if seeds["jaccard"].isna().all():
        return (
            f"no member stands out at a false positive rate of {fpr:g}: there is no list to repeat"
        )
    least = seeds.loc[seeds["jaccard"].idxmin()]
    start = f"mean Jaccard over seeds {least['jaccard']:.2f}"
    if len(seeds) > 1:
        start += f" for the least steady attack, {least['of']}"
    if np.isnan(least["jaccard_out"]):
        return f"{start}; no non-member stands out to compare with: do not report lists of samples"
    compared = f"{start}, {least['jaccard_out']:.2f} for non-members"
    if least["jaccard"] < STABLE:
        return f"{compared}: do not report lists of samples from one seed"
    beyond_chance = []
    variance = 0.0
    for end in ("", "_out"):
        jaccard = least[f"jaccard{end}"]
        chance = least[f"jaccard{end}_chance"]
        beyond_chance.append((jaccard - chance) / max(1 - chance, 1e-12))
        variance += jaccard * (1 - jaccard) / least[f"coverage{end}"]
    members, others = beyond_chance
    if members < others + max(BEYOND, 2 * variance**0.5):
        return (
            f"{compared}: lists repeat, but no more than non-members' or chance's do, which says"
            " nothing of membership"
        )
    return f"{compared}: lists overlap from seed to seed, more than those of non-members"
