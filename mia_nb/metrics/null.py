"""The negative control: does this design, on these signals, find nothing where there is nothing?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtr, stdtrit

from mia_nb import escape
from mia_nb.arguments import Count, Flag, Positive, Several
from mia_nb.attacks import find, in_words
from mia_nb.attacks import score as run_attack
from mia_nb.checks import checked, instance
from mia_nb.metrics.curve import auc, auc_null_error
from mia_nb.metrics.pairs import (
    first_rows,
    need_membership,
    pair_means,
    redraw,
    rows_of_pairs,
    same_or_complement,
    units,
)
from mia_nb.metrics.targets import scored
from mia_nb.types import Scores, Signals

LEVEL = 0.001  # family-wise, after Holm's correction
REDRAW_ERRORS = 4.0  # largest distance of the mean redrawn AUC from 1/2, in standard errors
SIGN_ERRORS = 3.0  # by how many standard errors a real AUC may lie below 1/2
FITTED = ("shokri",)  # attacks that fit a classifier for each target
TESTS = {
    "run": "not run",
    "blind": "constant outputs",
    "N1": "noise",
    "N2": "membership redrawn",
    "N3": "true membership",
}
COLUMNS = ["test", "attack", "value", "error", "p", "tests", "verdict"]
Scoring = Callable[..., Scores]


class Check(NamedTuple):
    """A row of the table; value, standard error and p are NaN where the verdict says it all."""

    test: str
    attack: str
    verdict: str
    value: float = np.nan
    error: float = np.nan
    p: float = np.nan
    tests: int = 0  # in Holm's correction


class SelfTest(NamedTuple):
    """`passed`: no row of `table` says FAIL.

    Columns: test, attack, value, error, p, tests (in Holm's correction), verdict.
    """

    passed: bool
    table: pd.DataFrame

    def __repr__(self) -> str:
        outcome = "passed" if self.passed else "FAILED"
        return f"The negative control {outcome}; {len(self.table)} checks in its table."

    def _repr_html_(self) -> str:
        return f"<p>{escape.html(repr(self))}</p>{escape.html_table(self.readable())}"

    def readable(self) -> pd.DataFrame:
        """The table for people: tests and attacks in words, "-" where a number is missing."""
        tests = self.table["test"].replace(TESTS)
        attacks = self.table["attack"].map(in_words)
        view = self.table.assign(test=tests, attack=attacks).round(4)
        return view.astype(object).where(view.notna(), "-")


@checked
def self_test(
    signals: Signals,
    attacks: dict | Sequence[str],
    *,
    n_resamples: Several = 200,
    seed: Count = 0,
    keep_complement: Flag = False,
    samples: Positive | None = 5000,
) -> SelfTest:
    """Negative control of a pool's design and of the whole chain from signals to AUC.

    Parameters:
        signals: of the pool, with membership.
        attacks: {name: attack}, or a list of names; "shokri" is left out, since it would fit a
            model for every redraw.
        n_resamples: masks that N2 redraws, 2 or more.
        seed: of masks, noise and the samples that are tested.
        keep_complement: whether the target's complementary model stays among the references, a leak
            by counting that this test must find.
        samples: the largest number of audited samples that are tested; None takes all.

    Tests:
        design: the count of a target's member references, used as score, has AUC 1/2; no reference
            has the target's mask or its complement.
        blind: each attack with the target's signals replaced by a constant, and the mean reference
            margin alone: AUC 1/2.
        N1: fresh noise, with means and spreads permuted over samples, and the real mask: AUC 1/2
            over all targets (99.9 % after Holm).
        N2: masks redrawn from the design (`n_resamples` times) on the real signals: mean AUC of the
            first two pairs' targets within 4 standard errors of 1/2; p = (1 + #{redrawn >= real}) /
            (n_resamples + 1) is evidence of a leak, not a condition.
        N3: an AUC more than 3 standard errors below 1/2 is flagged, never flipped.

    Returns:
        A `SelfTest`; an attack that refuses these signals (ValueError) is listed as refused.

    Raises:
        ValueError: when membership is hidden, no attack can run, or n_resamples < 2.
    """
    instance("attacks", attacks, dict | list | tuple)
    if not isinstance(attacks, dict):
        attacks = dict(find(attack) for attack in attacks)
    need_membership(signals, "the self-test needs it")
    rng = np.random.default_rng(seed)
    signals = _subset(signals, samples, rng)
    pair = units(signals.member[:, ~signals.population])

    def of_signals(attack: Any) -> Scoring:
        """An attack as a function from signals to scores."""
        return partial(run_attack, attack, keep_complement=keep_complement)

    tested = {name: of_signals(attack) for name, attack in attacks.items() if name not in FITTED}
    able, refused = _able(tested, signals)
    blind = able | {"mean reference margin": of_signals(_mean_reference_margin)}
    targets = _targets(signals, keep_complement)
    rows = [
        *refused,
        *_design(signals, pair, keep_complement),
        *_blind(signals, blind, pair, targets),
        *_n1_noise(signals, able, pair, targets, rng),
        *_n3_sign(signals, able, pair, targets),
        *_n2_redrawn(signals, able, pair, targets, n_resamples, rng),
    ]
    table = pd.DataFrame(rows)[COLUMNS]
    failed = table["verdict"].str.startswith("FAIL").any()
    return SelfTest(not failed, table)


def _subset(signals: Signals, samples: int | None, rng: np.random.Generator) -> Signals:
    """The signals with at most this number of audited samples."""
    audited = np.flatnonzero(~signals.population)
    if samples is None or len(audited) <= samples:
        return signals
    chosen = rng.choice(audited, samples, replace=False)
    set_aside = np.flatnonzero(signals.population)
    return signals.select(samples=np.sort(np.concatenate([chosen, set_aside])))


def _able(attacks: dict[str, Scoring], signals: Signals) -> tuple[dict[str, Scoring], list[Check]]:
    """(the attacks that accept these signals; rows on those that refuse them)."""
    able = {}
    refused = []
    for name, attack in attacks.items():
        try:
            attack(signals, targets=[0])
            able[name] = attack
        except ValueError as reason:
            refused.append(Check("run", name, f"refused: {reason}"))
    if not able:
        why = refused[0].verdict if refused else "none was given"
        raise ValueError(f"no attack can run on these signals: {why}")
    return able, refused


def _targets(signals: Signals, keep_complement: bool) -> np.ndarray:
    """Rows of the models that can be targets: those with a reference on each side of some sample.

    One model and two references on complementary halves leave each half a single reference, and
    attacks refuse such a target. Where no row has both sides, attacks that run need none: all rows.
    """
    masks = signals.member[:, ~signals.population]
    able = []
    for target in range(len(masks)):
        references = masks[signals.reference_rows(target, keep_complement=keep_complement)]
        able.append(bool((references.any(0) & ~references.all(0)).any()))
    return np.flatnonzero(able) if any(able) else np.arange(len(masks))


def holm(p: Sequence[float]) -> np.ndarray:
    """Holm's step-down adjusted p-values."""
    p = np.asarray(p, dtype=np.float64)
    order = np.argsort(p)
    not_rejected = np.arange(len(p), 0, -1)  # hypotheses that are left at each step
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * not_rejected), 1)
    return adjusted


def _worst(test: str, names: list[str], values: np.ndarray, error: float) -> list[Check]:
    """A row for each attack, on the one of its AUCs that is furthest from 1/2.

    Parameters:
        test: the name of the test.
        names: of the attacks.
        values: (attacks, any number) AUCs.
        error: the standard error of each under the null hypothesis.

    p-values are corrected by Holm over all AUCs.
    """
    distance = np.abs(values - 0.5)
    p = 2 * ndtr(-distance / error)
    adjusted = holm(p.ravel()).reshape(p.shape)
    rows = []
    for row, name in enumerate(names):
        furthest = distance[row].argmax()
        adjusted_p = adjusted[row, furthest]
        verdict = "FAIL" if adjusted_p < LEVEL else "pass"
        rows.append(Check(test, name, verdict, values[row, furthest], error, adjusted_p, p.size))
    return rows


def _null_error(signals: Signals) -> float:
    """Standard error of one target's AUC under the null hypothesis."""
    n1 = signals.member[0].sum()
    return float(auc_null_error(n1, (~signals.population).sum() - n1))


def error_of_mean(error: float, targets: int) -> float:
    """Standard error of the mean of this many targets' AUCs, from that of one.

    One target of a pair counts. Targets drawn by coins share references and count half as well.
    """
    return error / np.sqrt(max(targets / 2, 1))


def _design(signals: Signals, pair: np.ndarray, keep_complement: bool) -> list[Check]:
    """The count of a target's member references has AUC 1/2, and no reference has the target's mask
    or its complement.
    """
    audited = ~signals.population
    areas = []
    mirrors = 0
    for target in first_rows(pair):
        mask = signals.member[target, audited]
        rows = signals.reference_rows(target, keep_complement=keep_complement)
        reference_masks = signals.member[rows][:, audited]
        areas.append(auc(reference_masks.sum(0), mask))
        mirrors += int(same_or_complement(reference_masks, mask).sum())
    verdict = "FAIL: a reference has the target's mask or its complement" if mirrors else "pass"
    return [
        *_worst("design", ["count of member references"], np.array([areas]), _null_error(signals)),
        Check("design", "references that mirror the target", verdict, mirrors),
    ]


def _blind(
    signals: Signals, attacks: dict[str, Scoring], pair: np.ndarray, targets: np.ndarray
) -> list[Check]:
    """Attacks on constant outputs, one target for each unit: complementary models have opposite
    scores, so that their mean would test nothing.
    """
    worlds = [_silenced(signals, row) for row in targets[first_rows(pair[targets])]]
    areas = np.empty((len(attacks), len(worlds)))
    for i, attack in enumerate(attacks.values()):
        for j, world in enumerate(worlds):
            areas[i, j] = auc(*scored(attack(world, signals), 0))
    return _worst("blind", list(attacks), areas, _null_error(signals))


def _mean_reference_margin(target: Signals, references: Signals | None) -> np.ndarray:
    if references is None:
        return np.zeros(len(target.labels))
    return references.margin.mean((0, 1))


def _silenced(signals: Signals, row: int) -> Signals:
    """One model of the signals, with the same output for every sample."""
    model = signals.select(models=[row])
    constant = {}
    for name in ("margin", "entropy", "modified_entropy"):
        values = getattr(model, name)
        constant[name] = np.full_like(values, values.mean())
    for name in ("top_log_p", "activity"):
        values = getattr(model, name)
        if values is not None:
            constant[name] = np.broadcast_to(values.mean(1, keepdims=True), values.shape)
    return replace(model, **constant, correct=np.ones_like(model.correct))


def _mean_auc(signals: Signals, attack: Scoring, pair: np.ndarray, targets: np.ndarray) -> float:
    """AUC averaged over targets within each unit, then over units."""
    scores = attack(signals, targets=targets)
    areas = np.array([auc(*scored(scores, row)) for row in range(len(scores.value))])
    return float(pair_means(areas, pair[scores.targets]).mean())


def _n1_noise(
    signals: Signals,
    attacks: dict[str, Scoring],
    pair: np.ndarray,
    targets: np.ndarray,
    rng: np.random.Generator,
) -> list[Check]:
    """N1: attacks on fresh noise."""
    null = _noise_world(signals, rng)
    areas = np.array([[_mean_auc(null, attack, pair, targets)] for attack in attacks.values()])
    error = error_of_mean(_null_error(signals), len(targets))
    return _worst("N1", list(attacks), areas, error)


def _noise_world(signals: Signals, rng: np.random.Generator) -> Signals:
    """Signals of margins mu_i + sigma_i eps, the real means and spreads permuted over samples."""
    # A sample's mean over models depends on how many of them were trained on it, the target
    # included. Permuting the means over the audited samples removes that and keeps their
    # distribution.
    audited = np.flatnonzero(~signals.population)
    source = np.arange(len(signals.labels))  # the sample whose mean and spread each one is given
    source[audited] = rng.permutation(audited)
    mean = signals.margin.mean((0, 1))[source]
    spread = signals.margin.std(axis=(0, 1))[source] + 1e-6
    margin = mean + spread * rng.standard_normal(signals.margin.shape)
    # Two classes, of which the label is the first: the difference of the logits is the margin.
    # The real labels are put back, since some attacks have a threshold for each class.
    logits = np.stack([margin, np.zeros_like(margin)], axis=-1)
    null = replace(
        Signals.from_logits(
            logits,
            np.zeros_like(signals.labels),
            signals.member,
            population=signals.population,
            query_kind=signals.query_kind,
            info=signals.info,
        ),
        labels=signals.labels,
    )
    if signals.activity is not None:
        mean = signals.activity.mean(0)[source]
        spread = signals.activity.std(0)[source]
        noise = rng.standard_normal(signals.activity.shape)
        null = replace(null, activity=mean + spread * noise)
    return null


def _n2_redrawn(
    signals: Signals,
    attacks: dict[str, Scoring],
    pair: np.ndarray,
    targets: np.ndarray,
    n_resamples: int,
    rng: np.random.Generator,
) -> list[Check]:
    """N2: exact randomisation test over masks redrawn from the same design."""
    targets = targets[np.concatenate([rows[:2] for rows in rows_of_pairs(pair[targets])[:2]])]
    redrawn = {name: [] for name in attacks}
    for mask in redraw(signals, n_resamples, rng):
        world = replace(signals, member=mask)
        for name, attack in attacks.items():
            redrawn[name].append(_mean_auc(world, attack, pair, targets))
    # Student's t: as unlikely with few resamples as REDRAW_ERRORS standard errors with many
    most_errors = -stdtrit(n_resamples - 1, ndtr(-REDRAW_ERRORS))
    rows = []
    for name, attack in attacks.items():
        null = np.array(redrawn[name])
        real = _mean_auc(signals, attack, pair, targets)
        error = null.std(ddof=1) / np.sqrt(n_resamples)
        p = (1 + (null >= real).sum()) / (n_resamples + 1)
        off_chance = abs(null.mean() - 0.5) > most_errors * error + 1e-12
        verdict = "FAIL" if off_chance else "pass"
        rows.append(Check("N2", name, verdict, null.mean(), error, p, 1))
    return rows


def _n3_sign(
    signals: Signals, attacks: dict[str, Scoring], pair: np.ndarray, targets: np.ndarray
) -> list[Check]:
    """N3: attacks on the real signals, whose AUC must not lie below 1/2."""
    error = error_of_mean(_null_error(signals), len(targets))
    rows = []
    for name, attack in attacks.items():
        value = _mean_auc(signals, attack, pair, targets)
        inverted = value < 0.5 - SIGN_ERRORS * error
        verdict = "flag: inverted or leaking design" if inverted else "pass"
        rows.append(Check("N3", name, verdict, value, error))
    return rows
