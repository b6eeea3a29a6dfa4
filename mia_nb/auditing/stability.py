"""Do the same samples stand out again when the target is trained anew? Overlap of vulnerable sets
over seeds and attacks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pandas as pd

from mia_nb.arguments import Fraction, Mask
from mia_nb.checks import checked
from mia_nb.metrics.curve import MIN_FALSE_POSITIVES, counts

FEWEST = 3  # repetitions
STABLE = 0.5  # mean Jaccard below which a list from one seed is not to be reported
# by which members' overlap, corrected for chance, must exceed the non-members' to say anything of
# membership
BEYOND = 0.1


@checked
def stability(values: dict[str, np.ndarray], member: Mask, *, fpr: Fraction = 0.01) -> pd.DataFrame:
    """Overlap of the vulnerable sets of repetitions and of attacks: members at or above the
    threshold of one FPR.

    Parameters:
        values: {attack: (S, N)} scores of S >= 3 targets trained on the same members with other
            seeds.
        member: (N,) bool.
        fpr: false positive rate in (0, 1).

    Returns:
        A row per attack (compare "seeds": its S sets) and, with two attacks or more, a row per
        repetition (compare "attacks": their sets). attrs["note"] says whether the least steady
        attack's lists may be reported, which takes a mean Jaccard of .5 and a k = (jaccard -
        chance) / (1 - chance) that is .1, and two standard errors, above that of non-members.
        Columns:
            compare, of, sets, n1, n0, fpr.
            size: mean of the sets'.
            jaccard: mean over pairs of sets; jaccard_min, jaccard_max.
            coverage, stability: |union|, |intersection|.
            jaccard_chance, coverage_chance, stability_chance: their expectations for independent
                random sets of the same sizes among the n1 members.
            jaccard_out, jaccard_out_chance, stability_out: the same of the non-members that are at
                or above the same thresholds: lists repeat without any leak where samples are easy
                or hard or references are the same.
            union_fpr: the false positives of the union, which grow with every set added.
            coverage_equal_fpr: the union after every set's threshold was raised until the union's
                own FPR is at most `fpr`: compare unions by this column only.
            measurable: 10 false positives or more are allowed: fpr n0 >= 10.

    No set has more false positives than fpr allows: where the largest scores of more non-members
    are equal it is empty. The Jaccard of two empty sets is NaN and left out of means. Samples that
    some repetition or attack left without a score (NaN: no reference on one side) are left out.

    Raises:
        ValueError: for S < 3, shapes that differ, no scored member or non-member, and an FPR
            outside (0, 1).

    Caveat: published stability at low FPR is .1 or less; what one seed calls vulnerable is a
    ranking. Larger sets overlap more, also beyond chance: a leak alike for all members lifts their
    overlap too.
    """
    member = np.asarray(member, bool)
    values = {name: np.asarray(v, np.float64) for name, v in values.items()}
    shapes = [v.shape for v in values.values()]
    equal = len(set(shapes)) == 1 and len(shapes[0]) == 2 and shapes[0][1:] == member.shape
    if not 0 < fpr < 1:
        raise ValueError(f"fpr={fpr}: wanted a false positive rate between 0 and 1; 1 % is 0.01")
    if not equal:
        raise ValueError(f"values {shapes}, member {member.shape}: wanted equal (S, N) and (N,)")
    scores = np.stack(list(values.values()))
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
    curves = [[(score, *counts(score, member)[1:]) for score in rows] for rows in scores]
    groups = [("seeds", name, sets) for name, sets in zip(values, curves, strict=True)]
    if len(values) > 1:
        groups += [("attacks", s, list(sets)) for s, sets in enumerate(zip(*curves, strict=True))]
    table = pd.DataFrame([_row(*group, member, fpr) for group in groups])
    table.attrs["note"] = _note(table[table["compare"] == "seeds"])
    return table


def _note(seeds: pd.DataFrame) -> str:
    """Whether lists may be reported, by the attack whose sets overlap least."""
    if seeds["jaccard"].isna().all():
        rate = f"a false positive rate of {seeds['fpr'].iloc[0]:g}"
        return f"no member stands out at {rate}: there is no list to repeat"
    least = seeds.loc[seeds["jaccard"].idxmin()]
    start = f"mean Jaccard over seeds {least['jaccard']:.2f}"
    if len(seeds) > 1:
        start += f" for the least steady attack, {least['of']}"
    compared = f"{start}, {least['jaccard_out']:.2f} for non-members"
    unions = np.array([least["coverage"], least["union_fpr"] * least["n0"]])
    jaccard, chance = (
        least[[f"jaccard{end}", f"jaccard_out{end}"]].to_numpy(float) for end in ("", "_chance")
    )
    inside, outside = (jaccard - chance) / np.maximum(1 - chance, 1e-12)
    with np.errstate(invalid="ignore"):  # no non-member stands out
        error = (jaccard * (1 - jaccard) / unions).sum() ** 0.5
    if np.isnan(outside):
        return f"{start}; no non-member stands out to compare with: do not report lists of samples"
    if least["jaccard"] < STABLE:
        return f"{compared}: do not report lists of samples from one seed"
    if inside < outside + max(BEYOND, 2 * error):
        return (
            f"{compared}: lists repeat, but no more than non-members' or chance's do, which says"
            " nothing of membership"
        )
    return f"{compared}: lists overlap from seed to seed, more than those of non-members"


def _sets(curves: list, allowed: int) -> np.ndarray:
    """(sets, N) who is at or above the smallest threshold with at most `allowed` false positives;
    none without one. curves: (score (N,), fp, threshold) of each set.
    """
    lasts = [np.searchsorted(fp, allowed, side="right") - 1 for _, fp, _ in curves]
    # 0: above all, the infinite ones too
    return np.stack(
        [
            (last > 0) & (score >= threshold[last])
            for last, (score, _, threshold) in zip(lasts, curves, strict=True)
        ]
    )


def _row(compare: str, of: Callable, curves: list, member: np.ndarray, fpr: float) -> dict:
    n1 = int(member.sum())
    n0 = int((~member).sum())
    allowed = int(np.floor(fpr * n0 + 1e-9))
    chosen = _sets(curves, allowed)
    inside = chosen[:, member]
    outside = chosen[:, ~member]
    sizes = inside.sum(1)
    jaccard, chance = _overlap(inside)
    out, out_chance = _overlap(outside)
    # largest number of false positives a set, with the union's within what is allowed
    places = bisect_left(
        range(1, allowed + 1),
        True,
        key=lambda most: _sets(curves, most)[:, ~member].any(0).sum() > allowed,
    )
    return {
        "compare": compare,
        "of": of,
        "sets": len(chosen),
        "size": sizes.mean(),
        "jaccard": pd.Series(jaccard).mean(),
        "jaccard_min": np.fmin.reduce(jaccard),
        "jaccard_max": np.fmax.reduce(jaccard),
        "jaccard_chance": pd.Series(chance).mean(),
        "jaccard_out": pd.Series(out).mean(),
        "jaccard_out_chance": pd.Series(out_chance).mean(),
        "coverage": int(inside.any(0).sum()),
        "coverage_chance": n1 * (1 - np.prod(1 - sizes / n1)),
        "stability": int(inside.all(0).sum()),
        "stability_chance": n1 * np.prod(sizes / n1),
        "stability_out": int(outside.all(0).sum()),
        "union_fpr": outside.any(0).mean(),
        "coverage_equal_fpr": int(_sets(curves, places)[:, member].any(0).sum()),
        "n1": n1,
        "n0": n0,
        "fpr": fpr,
        "measurable": allowed >= MIN_FALSE_POSITIVES,
    }


def _overlap(sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Jaccard, its expectation by chance) of each pair of sets (sets, n); NaN where both are
    empty.
    """
    first, second = np.transpose(list(combinations(range(len(sets)), 2)))
    common = (sets[first] & sets[second]).sum(1)
    union = (sets[first] | sets[second]).sum(1)
    jaccard = np.where(union > 0, common / np.maximum(union, 1), np.nan)
    sizes = sets.sum(1).tolist()
    chance = [_chance(a, b, sets.shape[1]) for a, b in combinations(sizes, 2)]
    return jaccard, np.where(np.isnan(jaccard), np.nan, chance)


def _chance(a: int, b: int, n1: int) -> float:
    """E |A and B| / |A or B| of independent random sets of a and b among n1: hypergeometric."""
    from scipy.stats import hypergeom  # a second of start-up

    common = np.arange(max(0, a + b - n1), min(a, b) + 1)
    with np.errstate(invalid="ignore"):
        return float((hypergeom.pmf(common, n1, a, b) * common / (a + b - common)).sum())
