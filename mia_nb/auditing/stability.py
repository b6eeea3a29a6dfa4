"""Do the same samples stand out again when the target is trained anew? Overlap of vulnerable sets over seeds and attacks."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd

from mia_nb.checks import checked
from mia_nb.metrics.curve import MIN_FALSE_POSITIVES, counts

LEAST = 3  # repetitions
STABLE = 0.5  # mean Jaccard below which a list from one seed is not to be reported
BEYOND = 0.1  # by which members' overlap, corrected for chance, must exceed the non-members' to say anything of membership


@checked
def stability(values: dict[str, np.ndarray], member, *, fpr: float = 0.01) -> pd.DataFrame:
    """Overlap of the vulnerable sets V_a,s = members at or above the threshold of FPR `fpr`, attack a, repetition s.

    values: {attack: (S, N)} scores of S >= 3 targets trained on the same `member` (N,) with other seeds. A row per attack
    (compare "seeds": its S sets) and, with two attacks or more, a row per repetition (compare "attacks": their sets).
    Columns: compare, of, sets, size (mean), jaccard (mean over pairs of sets), jaccard_min, jaccard_max, coverage |union|,
    stability |intersection|, each with its expectation (_chance) for independent random sets of the same sizes among the n1
    members; jaccard_out (and its jaccard_out_chance), stability_out, the same of the non-members that are at or above the
    same thresholds: lists repeat without any leak where samples are easy or hard or references are the same;
    union_fpr, the false positives of the union, which grow with every set added; coverage_equal_fpr, the union after every
    set's threshold was raised until the union's own FPR is at most `fpr`: compare unions by this column only; n1, n0, fpr,
    measurable (10 false positives or more are allowed: fpr n0 >= 10). No set has more false positives than fpr allows: where
    the largest scores of more non-members are equal it is empty. The Jaccard of two empty sets is NaN and left out of means.
    attrs["note"]: whether the least steady attack's lists may be reported, which takes a mean Jaccard of .5 and a k =
    (jaccard - chance) / (1 - chance) that is .1, and two standard errors, above that of non-members.
    Samples that some repetition or attack left without a score (NaN: no reference on one side) are left out of all.
    Raises ValueError for S < 3, shapes that differ, no scored member or non-member, and an FPR outside (0, 1). Caveats:
    published stability at low FPR is .1 or less; what one seed calls vulnerable is a ranking. Larger sets overlap more, also
    beyond chance: a leak alike for all members lifts their overlap too.
    """
    member, values = (
        np.asarray(member, bool),
        {name: np.asarray(v, np.float64) for name, v in values.items()},
    )
    if not 0 < fpr < 1:
        raise ValueError(f"fpr={fpr}: wanted a false positive rate between 0 and 1; 1 % is 0.01")
    shapes = {v.shape for v in values.values()}
    if len(shapes) != 1 or len(shape := shapes.pop()) != 2 or shape[1:] != member.shape:
        raise ValueError(
            f"values {[v.shape for v in values.values()]}, member {member.shape}: wanted equal (S, N) and (N,)"
        )
    if shape[0] < LEAST:
        raise ValueError(
            f"{shape[0]} repetitions of the target: stability needs {LEAST} or more, trained with other seeds"
        )
    known = ~np.isnan(np.concatenate(list(values.values()))).any(0)
    member, values = member[known], {name: v[:, known] for name, v in values.items()}
    if not (member.any() and not member.all()):
        raise ValueError(
            f"{known.sum()} of {len(known)} samples have all scores: wanted a member and a non-member among them"
        )
    curves = {
        (name, s): _ranked(v[s], member) for name, v in values.items() for s in range(shape[0])
    }
    rows = [
        _row("seeds", name, [curves[name, s] for s in range(shape[0])], member, fpr)
        for name in values
    ]
    if len(values) > 1:
        rows += [
            _row("attacks", s, [curves[name, s] for name in values], member, fpr)
            for s in range(shape[0])
        ]
    table = pd.DataFrame(rows)
    table.attrs["note"] = _note(table[table["compare"] == "seeds"])
    return table


def _note(seeds: pd.DataFrame) -> str:
    """Whether lists may be reported, by the attack whose sets overlap least."""
    if seeds["jaccard"].isna().all():
        return f"no member stands out at a false positive rate of {seeds['fpr'].iloc[0]:g}: there is no list to repeat"
    least = seeds.loc[seeds["jaccard"].idxmin()]
    start = f"mean Jaccard over seeds {least['jaccard']:.2f}"
    if len(seeds) > 1:
        start += f" for the least steady attack, {least['of']}"
    if np.isnan(least["jaccard_out"]):
        return f"{start}; no non-member stands out to compare with: do not report lists of samples"
    start += f", {least['jaccard_out']:.2f} for non-members"
    if least["jaccard"] < STABLE:
        return f"{start}: do not report lists of samples from one seed"
    unions = least["coverage"], least["union_fpr"] * least["n0"]
    inside, outside = (
        (least[name] - least[f"{name}_chance"]) / max(1 - least[f"{name}_chance"], 1e-12)
        for name in ("jaccard", "jaccard_out")
    )
    error = (
        sum(
            j * (1 - j) / union
            for j, union in zip(least[["jaccard", "jaccard_out"]], unions, strict=True)
        )
        ** 0.5
    )
    if inside < outside + max(BEYOND, 2 * error):
        return f"{start}: lists repeat, but no more than non-members' or chance's do, which says nothing of membership"
    return f"{start}: lists overlap from seed to seed, more than those of non-members"


def _ranked(score: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    _, fp, threshold = counts(score, member)
    return score, fp, threshold


def _sets(curves: list, allowed: int) -> np.ndarray:
    """(sets, N) who is at or above the smallest threshold with at most `allowed` false positives; none without one."""
    last = [
        np.searchsorted(fp, allowed, side="right") - 1 for _, fp, _ in curves
    ]  # 0: above all, the infinite ones too
    return np.stack(
        [
            (at > 0) & (score >= threshold[at])
            for at, (score, _, threshold) in zip(last, curves, strict=True)
        ]
    )


def _row(compare: str, of, curves: list, member: np.ndarray, fpr: float) -> dict:
    n1, n0 = int(member.sum()), int((~member).sum())
    allowed = int(np.floor(fpr * n0 + 1e-9))
    chosen = _sets(curves, allowed)
    sizes = chosen[:, member].sum(1)
    pairs = list(combinations(range(len(chosen)), 2))
    jaccard, chance = _overlap(chosen[:, member], pairs)
    out, out_chance = _overlap(chosen[:, ~member], pairs)
    low, high = (
        0,
        allowed,
    )  # largest number of false positives a set, with the union's within what is allowed
    while low < high:
        middle = (low + high + 1) // 2
        fits = _sets(curves, middle)[:, ~member].any(0).sum() <= allowed
        low, high = (middle, high) if fits else (low, middle - 1)
    return {
        "compare": compare,
        "of": of,
        "sets": len(chosen),
        "size": sizes.mean(),
        "jaccard": _mean(jaccard),
        "jaccard_min": np.fmin.reduce(jaccard),
        "jaccard_max": np.fmax.reduce(jaccard),
        "jaccard_chance": _mean(chance),
        "jaccard_out": _mean(out),
        "jaccard_out_chance": _mean(out_chance),
        "coverage": int(chosen[:, member].any(0).sum()),
        "coverage_chance": n1 * (1 - np.prod(1 - sizes / n1)),
        "stability": int(chosen[:, member].all(0).sum()),
        "stability_chance": n1 * np.prod(sizes / n1),
        "stability_out": int(chosen[:, ~member].all(0).sum()),
        "union_fpr": chosen[:, ~member].any(0).mean(),
        "coverage_equal_fpr": int(_sets(curves, low)[:, member].any(0).sum()),
        "n1": n1,
        "n0": n0,
        "fpr": fpr,
        "measurable": allowed >= MIN_FALSE_POSITIVES,
    }


def _overlap(chosen: np.ndarray, pairs: list) -> tuple[np.ndarray, np.ndarray]:
    """(Jaccard, its expectation by chance) of each pair of sets (sets, n); NaN where both are empty."""
    sizes = chosen.sum(1)
    jaccard = np.array([_jaccard(chosen[i], chosen[j]) for i, j in pairs])
    chance = np.array([_chance(int(sizes[i]), int(sizes[j]), chosen.shape[1]) for i, j in pairs])
    return jaccard, np.where(np.isnan(jaccard), np.nan, chance)


def _mean(values: np.ndarray) -> float:
    """Mean without NaN; NaN where nothing else is."""
    known = values[~np.isnan(values)]
    return known.mean() if len(known) else np.nan


def _jaccard(a: np.ndarray, b: np.ndarray) -> float:
    union = int((a | b).sum())
    return int((a & b).sum()) / union if union else np.nan


def _chance(a: int, b: int, n1: int) -> float:
    """E |A and B| / |A or B| of independent random sets of a and b among n1: hypergeometric."""
    from scipy.stats import hypergeom  # a second of start-up

    common = np.arange(max(0, a + b - n1), min(a, b) + 1)
    with np.errstate(invalid="ignore"):
        return float((hypergeom.pmf(common, n1, a, b) * common / (a + b - common)).sum())
