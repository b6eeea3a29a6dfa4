"""Could the non-members have been members? A classifier on raw inputs must not tell them apart."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import chdtrc

from mia_nb import escape
from mia_nb.arguments import Array, Count, Mask
from mia_nb.checks import checked
from mia_nb.metrics.curve import auc, auc_null_error
from mia_nb.metrics.pairs import units
from mia_nb.types import Signals

COMPONENTS = 32  # of the PCA
FOLDS = 5  # of the cross-validation
MOST_SAMPLES = 10_000  # so many samples of larger sets are tested
ERRORS = 3.0  # standard errors by which the AUC may exceed 1/2
LEVEL = 0.001  # smallest p of equal class histograms
CONFOUNDED = "confounded, not membership"
MIX = 0.01  # class mixes differ below this p
ALIKE = 0.9  # masks of a larger correlation are one split
DOUBT = "What tells members from non-members here may be their distribution, not memorisation"


class ShiftGuard(NamedTuple):
    """`auc` of the inputs' classifier with its null standard error; `classes_p` of equal class
    histograms; `note` in words.
    """

    passed: bool
    auc: float
    error: float
    classes_p: float
    note: str

    def __repr__(self) -> str:
        return f"Shift guard {'passed' if self.passed else 'FAILED'}: {self.note}"

    def _repr_markdown_(self) -> str:
        return escape.markdown(repr(self))


@checked
def shift_guard(
    x: Array | None,
    labels: Array,
    member: Mask,
    *,
    seed: Count = 0,
) -> ShiftGuard:
    """Two-sample classifier test of members against non-members on raw inputs, before any attack.

    Parameters:
        x: (N, C, H, W) uint8 or (N, D); None: inputs that are no numbers, of which nothing but
            their classes can be tested.
        labels: (N,).
        member: (N,) bool.
        seed: of folds, PCA and the choice of 10,000 samples of a larger set.

    Returns:
        A `ShiftGuard`: passed, auc, error, classes_p, note.

    The classifier is a logistic regression on 32 principal components of standardised pixels; its
    held-out AUC is averaged over five stratified folds. The guard passes if the AUC is at most 3
    standard errors, sqrt((n1 + n0 + 1) / (12 n1 n0)), above 1/2, and a chi-square test finds no
    difference of the class histograms (p >= .001). An AUC below 1/2 passes: in halves balanced by
    class, samples that are too frequent in the training folds are too rare in the held-out one,
    which lowers the AUC by about one standard error without any shift, and no shift lowers it. If
    all inputs are equal, auc and error are NaN, the guard does not pass, and the note says that
    nothing could be tested, or that class histograms differ. Where the guard fails, an attack's
    false positive rate means nothing: the note says "confounded, not membership".

    Raises:
        ValueError: for shapes that differ, x or labels that are not finite, and fewer than five
            members or non-members.

    Source: Lopez-Paz and Oquab 2017.

    Caveat: a pass rules out only shifts that a linear classifier sees in the leading components; it
    does not replace membership drawn at random.
    """
    labels = np.asarray(labels)
    if x is None:
        why_untested = "raw inputs are no numbers"
        x = np.zeros((len(labels), 1))
    else:
        why_untested = "all raw inputs are equal"
        x = np.asarray(x)
    if member.ndim != 1 or not x.shape[:1] == labels.shape == member.shape:
        raise ValueError(
            f"x {x.shape}, labels {labels.shape}, member {member.shape}: wanted one entry of each"
            " per sample"
        )
    _refuse_infinite("x", x)
    _refuse_infinite("labels", labels)
    if len(x) > MOST_SAMPLES:
        chosen = np.sort(np.random.default_rng(seed).choice(len(x), MOST_SAMPLES, replace=False))
        x = x[chosen]
        labels = labels[chosen]
        member = member[chosen]
    n1 = int(member.sum())
    n0 = int((~member).sum())
    sizes = f"{n1} members (train) and {n0} non-members (test)"
    if min(n1, n0) < FOLDS:
        raise ValueError(f"{sizes}: wanted at least {FOLDS} of each")
    value = math.nan
    error = math.nan
    classes_p = class_mix(labels, member, seed=seed)
    pixels = x.reshape(len(x), -1).astype(np.float32)
    if (pixels != pixels[0]).any():
        value = _classified(pixels, member, seed)
        error = float(auc_null_error(n1, n0))
    note = _note(value, error, classes_p, why_untested)
    passed = bool(value - 0.5 <= ERRORS * error and classes_p >= LEVEL)
    return ShiftGuard(passed, value, error, classes_p, f"{note}; {n1} members, {n0} non-members")


def _refuse_infinite(name: str, values: np.ndarray) -> None:
    """ValueError for samples with values that are NaN or infinite."""
    if values.dtype.kind != "f":
        return
    finite = np.isfinite(values.reshape(len(values), -1)).all(1)
    if not finite.all():
        raise ValueError(
            f"{name} has NaN or infinite values in {(~finite).sum()} of {len(values)} samples:"
            " wanted finite ones"
        )


def _classified(pixels: np.ndarray, member: np.ndarray, seed: int) -> float:
    """Mean AUC of the held-out folds by logistic regression on principal components."""
    from sklearn.decomposition import PCA  # a second of start-up
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from sklearn.preprocessing import StandardScaler

    pixels = StandardScaler().fit_transform(pixels)
    size = min(COMPONENTS, *pixels.shape)
    solver = "randomized" if size < min(pixels.shape) else "full"
    features = PCA(size, whiten=True, svd_solver=solver, random_state=seed).fit_transform(pixels)
    values = []
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    for train, test in folds.split(features, member):
        model = LogisticRegression(max_iter=1000).fit(features[train], member[train])
        values.append(auc(model.decision_function(features[test]), member[test]))
    return float(np.mean(values))


def _note(value: float, error: float, classes_p: float, why_untested: str) -> str:
    """What the guard found, in words; why_untested: the reason where no AUC could be computed."""
    auc_words = (
        f"AUC {value:.3f} on raw inputs, {(value - 0.5) / error:+.1f} standard errors of"
        f" {error:.3f} from 1/2"
    )
    shifts = []
    if value - 0.5 > ERRORS * error:
        shifts.append(auc_words)
    if classes_p < LEVEL:
        shifts.append(f"class histograms differ (p = {classes_p:.2g})")
    if shifts:
        return f"{CONFOUNDED}: {'; '.join(shifts)}"
    finding = f"no shift found: {auc_words}"
    if math.isnan(value):
        finding = f"nothing could be tested: {why_untested}"
    return f"{finding}; classes p = {classes_p:.2g}"


@checked
def class_mix(labels: Array, member: Mask, *, seed: Count = 0) -> float:
    """p of the hypothesis that members and non-members of every split have the same class mix.

    Parameters:
        labels: (N,).
        member: (splits, N) bool, each split once (a mask and its complement are one split).

    Each split has Pearson's chi-square test of independence, by Monte Carlo over tables with the
    same margins where a count below 5 is expected; the result is the smallest p times the number of
    splits (Bonferroni), at most 1. Caveat: an equal mix says nothing about samples inside a class.
    """
    member = np.atleast_2d(member)
    code = np.unique(labels, return_inverse=True)[1]
    total = np.bincount(code)
    if len(total) < 2:
        return 1.0
    rng = np.random.default_rng(seed)
    most_tables = 1000 + 200 * len(member)
    smallest = 1.0
    for inside in member:
        members = np.bincount(code[inside], minlength=len(total))
        p = _p_of_equal_mix(members, total, most_tables, rng)
        smallest = min(smallest, p * len(member))
    return smallest


def _p_of_equal_mix(
    members: np.ndarray, total: np.ndarray, most_tables: int, rng: np.random.Generator
) -> float:
    """p of one split, from the numbers (classes,) of its members and of all samples."""
    share = members.sum() / total.sum()
    distance = _chi_square(members, total, share)
    if total.min() * min(share, 1 - share) >= 5:
        return float(chdtrc(len(total) - 1, distance))
    for tables in (200, most_tables):  # few tables first, which may suffice
        drawn = rng.multivariate_hypergeometric(total, members.sum(), tables)
        as_far = _chi_square(drawn, total, share) >= distance * (1 - 1e-9)
        p = (1 + as_far.sum()) / (1 + tables)
        if p > 0.1:
            break
    return float(p)


def _chi_square(members: np.ndarray, total: np.ndarray, share: float) -> np.ndarray:
    """Pearson's chi-square of numbers of members (..., classes), `share` of all samples."""
    return ((members - share * total) ** 2 / (share * (1 - share) * total)).sum(-1)


@checked
def comparable(signals: Signals, split: str | None = None, shift: ShiftGuard | None = None) -> dict:
    """Whether a difference in distribution, not memorisation, may tell members from non-members.

    Parameters:
        signals: their info["split"] is the declaration of a file (pairs, bernoulli or random), if
            it has one.
        split: "pairs" or "bernoulli" if this package drew the members; nothing is doubted then.
        shift: result of `shift_guard` on raw inputs; None: there are none.

    Returns:
        A dict of
            doubt: a sentence with the reason and what to do, or "". Reasons: the class mix differs
                (`class_mix`, p < .01); the guard fails; or, undeclared and without raw inputs,
                there is one split (all masks correlate by more than .9, complements included) or
                the same samples are members more often than chance explains (p < .01).
            assumed: a sentence where only a declaration rules out the last of these reasons, else
                "".
            remarks: suspicions of `read_outputs`.
    """
    facts = {"doubt": "", "assumed": "", "remarks": list(signals.info.get("remarks", ()))}
    if split in ("pairs", "bernoulli"):
        return facts
    audited = ~signals.population
    member = signals.member[:, audited]
    _, first_of_unit = np.unique(units(member), return_index=True)
    splits = member[first_of_unit]  # a mask and its complement are one split
    p = class_mix(signals.labels[audited], splits)
    why_fixed = _why_fixed(splits)
    unseen = why_fixed and shift is None
    declared = signals.info.get("split", "given") != "given"
    if p < MIX:
        reason = f"their class mix differs (p = {p:.2g}). Give both sides the same mix of classes"
    elif shift is not None and not shift.passed:
        reason = f"the shift guard fails ({shift.note}). Take both sides from one source"
    elif unseen and not declared:
        reason = (
            f"{why_fixed}, and without images nothing shows that chance drew the members. Add"
            ' images to the .npz, or split="random" if it did (a .csv has no place for either)'
        )
    else:
        reason = ""
    if reason:
        facts["doubt"] = f"{DOUBT}: {reason}, or train models on random halves."
    elif unseen:
        facts["assumed"] = f"Assumed, as the file declares: chance drew the members ({why_fixed})."
    return facts


def _why_fixed(splits: np.ndarray) -> str:
    """Why membership may be a property of the sample, whatever the model; "" if it is not."""
    if np.abs(np.corrcoef(splits)).min() > ALIKE:
        return "there is a single split"
    times_member = splits.sum(0)  # of each sample
    share = splits.mean(1)
    spread = ((times_member - times_member.mean()) ** 2).sum() / (share * (1 - share)).sum()
    if chdtrc(len(times_member) - 1, spread) < MIX:
        return "some samples are members of more models than others"
    return ""
