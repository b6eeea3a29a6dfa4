"""Lower bounds on epsilon from true and false positives of an attack at a threshold that was fixed
beforehand.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.special import ndtri

from mia_nb.checks import checked, fraction, reals, refuse, whole
from mia_nb.metrics.curve import clopper_pearson
from mia_nb.metrics.uncertainty import scored
from mia_nb.types import Scores

POPULATION_LEVEL = "population-level"
OTHER_TARGETS, HALF_OF_SAMPLES = "other targets", "half of the samples"


def _ends(tp, positives, fp, negatives, confidence) -> tuple[float, float]:
    """(lower end of the TPR, upper end of the FPR), which hold jointly with the stated confidence
    (Bonferroni).
    """
    for name, hits, trials in (("tp", tp, positives), ("fp", fp, negatives)):
        if not 0 <= whole(name, hits, 0) <= whole("trials", trials, 0) or trials < 1:
            raise ValueError(
                f"{name}={hits} of {trials}: wanted 0 <= hits <= trials and at least one trial"
            )
    low, _ = clopper_pearson(tp, positives, confidence=confidence)
    _, high = clopper_pearson(fp, negatives, confidence=confidence)
    return float(low), float(high)


@checked
def epsilon_lower(
    *, tp: int, positives: int, fp: int, negatives: int, delta: float, confidence: float = 0.95
) -> float:
    """Lower bound on epsilon of any (epsilon, delta)-DP mechanism (one record added or removed)
    that an attack with these counts could face.

    With a = 1 - confidence:

        tpr_lo = Beta^-1(a/2; tp, positives - tp + 1)
        fpr_hi = Beta^-1(1 - a/2; fp + 1, negatives - fp)
        epsilon >= max(0, ln((tpr_lo - delta) / fpr_hi), ln((1 - delta - fpr_hi) / (1 - tpr_lo)))

    Parameters:
        tp: trials with the record that are called members.
        positives: trials with the record.
        fp: trials without the record that are called members.
        negatives: trials without the record.
        delta: in [0, 1).
        confidence: of both ends together, in (0, 1).

    Exact Clopper-Pearson ends, joint coverage by Bonferroni (Jagielski, Ullman and Oprea 2020; Nasr
    et al. 2021). Raises ValueError for impossible counts. Caveat: the threshold must come from
    other data, and trials must be independent trainings for a statement on a mechanism; many
    records of one model are not (`population_level`). 25,000 of 25,000 without a false positive
    certify 8.82 at most.
    """
    low, high = _ends(tp, positives, fp, negatives, confidence)
    with np.errstate(divide="ignore"):
        ratios = [np.maximum(low - delta, 0) / high, np.maximum(1 - delta - high, 0) / (1 - low)]
        return float(max(0.0, *np.log(ratios)))


@checked
def mu_lower(
    *, tp: int, positives: int, fp: int, negatives: int, confidence: float = 0.95
) -> float:
    """max(0, Phi^-1(tpr_lo) - Phi^-1(fpr_hi)): lower bound on mu of a Gaussian-DP mechanism.

    Counts and ends are those of `epsilon_lower` (Dong, Roth and Su 2022);
    `accounting.gaussian_epsilon(mu, delta)` turns mu into epsilon. Caveat: valid only where the
    mechanism is Gaussian-DP.
    """
    low, high = _ends(tp, positives, fp, negatives, confidence)
    return 0.0 if low == 0 or high == 1 else float(max(0.0, ndtri(low) - ndtri(high)))


@checked
def population_level(
    scores: Scores, *, fpr=(0.001, 0.01, 0.1), delta: float, confidence: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """`epsilon_lower` of every target at thresholds that its own membership did not set: a row per
    target and preset FPR.

    Parameters:
        scores: of the targets; samples without a score (NaN) are left out.
        fpr: false positive rates in (0, 1).
        delta: in [0, 1).
        confidence: of all rows of one target together.
        seed: of the random half that sets thresholds where there is a single pair.

    Samples that score above the threshold are called members. For an FPR it is the smallest score
    above which at most that share of the pooled non-members of all other targets lie, neither the
    target's nor its complementary model's; with a single pair it comes from a random half of the
    target's own samples and is applied to the other half. Every row holds at 1 - (1 - confidence) /
    len(fpr), so that the largest of a target's rows holds at `confidence` (Bonferroni); the largest
    over targets does not.

    Columns: target, fpr, threshold, source, tp, positives, fp, negatives, fpr_realised, epsilon,
    delta, alpha (of the row), label. Raises ValueError for FPRs outside (0, 1), and where no
    non-member can set a threshold. Caveat: the label says "population-level". Many records of one
    training are no independent runs, so this describes one model and refutes no claim about a
    mechanism. Other targets may have had this one among their references; targets whose scores
    differ in scale get a poor threshold, not a wrong bound.
    """
    fpr = np.atleast_1d(reals("fpr", fraction("fpr", fpr, "()", many=True)))
    refuse({"fpr is empty: wanted one or more false positive rates; 1 % is 0.01": not fpr.size})
    alpha, rows = (1 - confidence) / len(fpr), []
    for row, target in enumerate(scores.targets):
        source, others, (value, member) = _threshold_samples(scores, row, seed)
        for rate, threshold in zip(fpr, _thresholds(*others, fpr), strict=True):
            called = value > threshold
            trials = {
                "tp": int((called & member).sum()),
                "positives": int(member.sum()),
                "fp": int((called & ~member).sum()),
                "negatives": int((~member).sum()),
            }
            bound = epsilon_lower(**trials, delta=delta, confidence=1 - alpha)
            rows.append(
                {
                    "target": int(target),
                    "fpr": float(rate),
                    "threshold": threshold,
                    "source": source,
                    **trials,
                    "fpr_realised": trials["fp"] / trials["negatives"],
                    "epsilon": bound,
                    "delta": delta,
                    "alpha": alpha,
                    "label": POPULATION_LEVEL,
                }
            )
    return pd.DataFrame(rows)


def _threshold_samples(scores: Scores, row: int, seed: int) -> tuple[str, tuple, tuple]:
    """(where thresholds come from, (value, member) that set them, (value, member) of the target
    that they are applied to).
    """
    value, member = scored(scores, row)
    others = np.flatnonzero(scores.pair != scores.pair[row])
    if len(others):
        pooled = zip(*(scored(scores, other) for other in others), strict=True)
        return OTHER_TARGETS, tuple(map(np.concatenate, pooled)), (value, member)
    half = np.random.default_rng([seed, row]).permutation(len(value)) < len(value) // 2
    return HALF_OF_SAMPLES, (value[half], member[half]), (value[~half], member[~half])


def _thresholds(value, member, fpr) -> list[float]:
    """For each FPR the score above which at most that share of the non-members lie."""
    others = value[~member]
    none = f"none of {len(value)} samples that set the threshold is a non-member"
    refuse({f"{none}: score more samples or targets": not len(others)})
    places = len(others) - 1 - np.floor(fpr * len(others) + 1e-9).astype(int)
    return np.partition(others, places)[places].tolist()
