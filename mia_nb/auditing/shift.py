"""Could the non-members have been members? A classifier on raw inputs must not tell them apart."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2_contingency
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from mia_nb.metrics.curve import auc as area_under
from mia_nb.metrics.curve import auc_null_error

ERRORS, LEVEL = 3.0, 0.001  # standard errors of the AUC from 1/2; p of the class histogram
CONFOUNDED = "confounded, not membership"


class ShiftGuard(NamedTuple):
    """`auc` of the inputs' classifier with its null standard error; `classes_p` of equal class histograms; `note` in words."""

    passed: bool
    auc: float
    error: float
    classes_p: float
    note: str


def shift_guard(
    x, labels, member, *, components: int = 32, folds: int = 5, seed: int = 0, samples: int | None = 10_000
) -> ShiftGuard:
    """Two-sample classifier test of members against non-members on raw inputs, before any attack.

    x: (N, C, H, W) uint8 or (N, D); labels (N,); member (N,). Pixels standardised, PCA to `components`, logistic regression;
    AUC of the held-out part averaged over `folds` stratified folds. Passed: it lies at most 3 standard errors,
    sqrt((n1 + n0 + 1) / (12 n1 n0)), above 1/2, and a chi-square test finds the class histograms alike (p >= .001).
    Below 1/2 nothing fails: in halves balanced by class, what the training folds have too much of the held-out one lacks,
    which lowers the AUC by about one standard error without any shift, and no shift lowers it.
    `samples`: larger sets are tested on that many, drawn with `seed`; None takes all (Lopez-Paz and Oquab 2017).
    Inputs that are all equal tell nothing: auc and error are NaN, it is not passed, and the note
    says that nothing could be tested, or that class histograms differ.
    Where it fails an attack's false positive rate means nothing: the note says "confounded, not membership". Raises
    ValueError for shapes that differ, x or labels that are not finite, and fewer than `folds` members or non-members. Caveat:
    a pass rules out shifts that a linear classifier sees in the leading components, no others; sets without randomised
    inclusion cannot pass by assertion.
    """
    x, labels, member = np.asarray(x), np.asarray(labels), np.asarray(member, bool)
    if member.ndim != 1 or x.shape[:1] != member.shape or labels.shape != member.shape:
        raise ValueError(f"x {x.shape}, labels {labels.shape}, member {member.shape}: wanted one entry of each per sample")
    for name, values in (("x", x), ("labels", labels)):
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = len(values) - np.isfinite(values.reshape(len(values), -1)).all(1).sum()
            raise ValueError(f"{name} has NaN or infinite values in {bad} of {len(values)} samples: wanted finite ones")
    rng = np.random.default_rng(seed)
    if samples is not None and len(x) > samples:
        chosen = np.sort(rng.choice(len(x), samples, replace=False))
        x, labels, member = x[chosen], labels[chosen], member[chosen]
    n1, n0 = int(member.sum()), int((~member).sum())
    if min(n1, n0) < folds:
        raise ValueError(f"{n1} members and {n0} non-members: {folds} folds need at least that many of each")
    table = _histograms(labels, member)
    classes_p = float(chi2_contingency(table, correction=False).pvalue) if table.shape[1] > 1 else 1.0
    pixels = x.reshape(len(x), -1).astype(np.float32)
    if (pixels == pixels[0]).all():
        return ShiftGuard(*_verdict(math.nan, math.nan, classes_p, n1, n0))._replace(passed=False)
    pixels = StandardScaler().fit_transform(pixels)
    size = min(components, *pixels.shape)
    solver = "randomized" if size < min(pixels.shape) else "full"
    features = PCA(size, whiten=True, svd_solver=solver, random_state=seed).fit_transform(pixels)
    split = StratifiedKFold(folds, shuffle=True, random_state=seed).split(features, member)
    value = float(np.mean([_held_out(features, member, *parts) for parts in split]))
    error = float(auc_null_error(n1, n0))
    return ShiftGuard(*_verdict(value, error, classes_p, n1, n0))


def _held_out(features, member, train, test) -> float:
    model = LogisticRegression(max_iter=1000).fit(features[train], member[train])
    return area_under(model.decision_function(features[test]), member[test])


def _histograms(labels, member) -> np.ndarray:
    """(2, classes) counts of members and non-members."""
    classes, code = np.unique(labels, return_inverse=True)
    return np.stack([np.bincount(code[side], minlength=len(classes)) for side in (member, ~member)])


def _verdict(value, error, classes_p, n1, n0) -> tuple:
    seen = f"AUC {value:.3f} on raw inputs, {(value - 0.5) / error:+.1f} standard errors of {error:.3f} from 1/2"
    size = f"{n1} members, {n0} non-members"
    found = [seen] if value - 0.5 > ERRORS * error else []
    found += [f"class histograms differ (p = {classes_p:.2g})"] if classes_p < LEVEL else []
    equal = "nothing could be tested: all raw inputs are equal"
    alike = equal if math.isnan(value) else f"no shift found: {seen}"
    note = f"{CONFOUNDED}: {'; '.join(found)}" if found else f"{alike}; classes p = {classes_p:.2g}"
    note = f"{note}; {size}"
    return not found, value, error, classes_p, note
