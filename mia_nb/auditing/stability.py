"""Do the same samples stand out again when the target is trained anew? Overlap of vulnerable sets over seeds and attacks."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import hypergeom

from mia_nb.metrics.curve import counts

LEAST = 3  # repetitions
STABLE = 0.5  # mean Jaccard below which a list from one seed is not to be reported


def stability(values: dict[str, np.ndarray], member, *, fpr: float = 0.01) -> pd.DataFrame:
    """Overlap of the vulnerable sets V_a,s = members at or above the threshold of FPR `fpr`, attack a, repetition s.

    values: {attack: (S, N)} scores of S >= 3 targets trained on the same `member` (N,) with other seeds. A row per attack
    (compare "seeds": its S sets) and, with two attacks or more, a row per repetition (compare "attacks": their sets).
    Columns: compare, of, sets, size (mean), jaccard (mean over pairs of sets), jaccard_min, jaccard_max, coverage |union|,
    stability |intersection|, each with its expectation (_chance) for independent random sets of the same sizes among the n1
    members; union_fpr, the false positives of the union, which grow with every set added; coverage_equal_fpr, the union
    after every set's threshold was raised until the union's own FPR is at most `fpr`: compare unions by this column only;
    n1, n0, fpr, attrs["note"]. The Jaccard of two empty sets is NaN and left out of means.
    Samples that some repetition or attack left without a score (NaN: no reference on one side) are left out of all.
    Raises ValueError for S < 3, shapes that differ, no scored member or non-member, and an FPR outside (0, 1). Caveat:
    published stability at low FPR is .1 or less; what one seed calls vulnerable is a ranking.
    """
    member, values = np.asarray(member, bool), {name: np.asarray(v, np.float64) for name, v in values.items()}
    if not 0 < fpr < 1:
        raise ValueError(f"fpr={fpr}: wanted a false positive rate between 0 and 1; 1 % is 0.01")
    shapes = {v.shape for v in values.values()}
    if len(shapes) != 1 or len(shape := shapes.pop()) != 2 or shape[1:] != member.shape:
        raise ValueError(f"values {[v.shape for v in values.values()]}, member {member.shape}: wanted equal (S, N) and (N,)")
    if shape[0] < LEAST:
        raise ValueError(f"{shape[0]} repetitions of the target: stability needs {LEAST} or more, trained with other seeds")
    known = ~np.isnan(np.concatenate(list(values.values()))).any(0)
    member, values = member[known], {name: v[:, known] for name, v in values.items()}
    if not (member.any() and not member.all()):
        raise ValueError(f"{known.sum()} of {len(known)} samples have all scores: wanted a member and a non-member among them")
    curves = {(name, s): _ranked(v[s], member) for name, v in values.items() for s in range(shape[0])}
    rows = [_row("seeds", name, [curves[name, s] for s in range(shape[0])], member, fpr) for name in values]
    if len(values) > 1:
        rows += [_row("attacks", s, [curves[name, s] for name in values], member, fpr) for s in range(shape[0])]
    table = pd.DataFrame(rows)
    lowest = table.loc[table["compare"] == "seeds", "jaccard"].min()
    steady = lowest >= STABLE
    table.attrs["note"] = (
        f"mean Jaccard over seeds {lowest:.2f} at least: lists overlap from seed to seed"
        if steady
        else f"mean Jaccard over seeds {lowest:.2f} for the least steady attack: do not report lists of samples from one seed"
    )
    return table


def _ranked(score: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    _, fp, threshold = counts(score, member)
    return score, fp, threshold


def _sets(curves: list, allowed: int) -> np.ndarray:
    """(sets, N) who is at or above the smallest threshold with at most `allowed` false positives."""
    return np.stack([score >= threshold[np.searchsorted(fp, allowed, side="right") - 1] for score, fp, threshold in curves])


def _row(compare: str, of, curves: list, member: np.ndarray, fpr: float) -> dict:
    n1, n0 = int(member.sum()), int((~member).sum())
    allowed = int(np.floor(fpr * n0 + 1e-9))
    chosen = _sets(curves, allowed)
    sizes = chosen[:, member].sum(1)
    pairs = list(combinations(range(len(chosen)), 2))
    jaccard = np.array([_jaccard(*(chosen[i, member] for i in pair)) for pair in pairs])
    chance = np.array([_chance(*(int(sizes[i]) for i in pair), n1) for pair in pairs])
    low, high = 0, allowed  # largest number of false positives a set, with the union's within what is allowed
    while low < high:
        middle = (low + high + 1) // 2
        fits = _sets(curves, middle)[:, ~member].any(0).sum() <= allowed
        low, high = (middle, high) if fits else (low, middle - 1)
    known = jaccard[~np.isnan(jaccard)]
    return {
        "compare": compare,
        "of": of,
        "sets": len(chosen),
        "size": sizes.mean(),
        "jaccard": known.mean() if len(known) else np.nan,
        "jaccard_min": known.min() if len(known) else np.nan,
        "jaccard_max": known.max() if len(known) else np.nan,
        "jaccard_chance": chance[~np.isnan(jaccard)].mean() if len(known) else np.nan,
        "coverage": int(chosen[:, member].any(0).sum()),
        "coverage_chance": n1 * (1 - np.prod(1 - sizes / n1)),
        "stability": int(chosen[:, member].all(0).sum()),
        "stability_chance": n1 * np.prod(sizes / n1),
        "union_fpr": chosen[:, ~member].any(0).mean(),
        "coverage_equal_fpr": int(_sets(curves, low)[:, member].any(0).sum()),
        "n1": n1,
        "n0": n0,
        "fpr": fpr,
    }


def _jaccard(a: np.ndarray, b: np.ndarray) -> float:
    union = int((a | b).sum())
    return int((a & b).sum()) / union if union else np.nan


def _chance(a: int, b: int, n1: int) -> float:
    """E |A and B| / |A or B| of independent random sets of a and b among n1: hypergeometric."""
    common = np.arange(max(0, a + b - n1), min(a, b) + 1)
    with np.errstate(invalid="ignore"):
        return float((hypergeom.pmf(common, n1, a, b) * common / (a + b - common)).sum())
