"""An attacker who sees the spikes: closed forms, the formula in loops, and nothing found where
nothing leaks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from attack_worlds import auc, gaussian, null_se, pairs, signals
from scipy.stats import norm

from mia_nb import attacks, metrics
from mia_nb.attacks.smooth import lira_smooth
from mia_nb.attacks.spikes import SEEN, spikes
from mia_nb.types import Signals
from mia_nb.widgets.stored import Source
from mia_nb.widgets.words import queried

COVARIANCE = np.array([[1.0, 0.6, 0.1], [0.6, 2.0, 0.3], [0.1, 0.3, 0.5]])
GAPS = np.array([0.5, 0.6, -0.3])
NAMES = ["count spike0", "rest spike0"]


def world(models: int, samples: int, gaps=GAPS, seed: int = 0, population: int = 0) -> Signals:
    """Margins and two columns of activity with one covariance, members higher by the gaps."""
    rng = np.random.default_rng(seed)
    member = pairs(models, samples, population, seed=seed)
    noise = rng.multivariate_normal(np.zeros(3), COVARIANCE, size=member.shape)
    level = rng.normal(1, 2, (samples + population, 3))
    shown = level + noise + np.asarray(gaps) * member[:, :, None]
    aside = np.arange(samples + population) >= samples
    plain = signals(shown[:, :, 0], member, population=aside, seed=seed)
    activity = shown[:, :, 1:].astype(np.float32)
    return replace(plain, activity=activity, info=plain.info | {"activity": NAMES})


def mean_auc(scores) -> float:
    return np.mean(
        [auc(value, mask) for value, mask in zip(scores.value, scores.member, strict=True)]
    )


def test_it_finds_what_the_best_test_of_vectors_of_known_covariance_can_find():
    """AUC Phi(d / sqrt 2), d^2 = gaps^T C^-1 gaps, of which k references a side hide a share: the
    level that they estimate has the variance C / (2 k)."""
    found = attacks.score("spikes", world(16, 4000), targets=range(8))
    distance = GAPS @ np.linalg.solve(COVARIANCE, GAPS) / (1 + 1 / 14)
    error = null_se(2000, 2000) / np.sqrt(8)
    assert mean_auc(found) == pytest.approx(norm.cdf(np.sqrt(distance / 2)), abs=4 * error)


def test_who_sees_the_margin_alone_gets_the_smoothed_likelihood_ratio_of_margins():
    one = world(8, 300)
    alone = attacks.score(partial(spikes, see=[]), one)
    margins = attacks.score("lira_smooth", one)
    np.testing.assert_allclose(alone.value, margins.value, rtol=1e-9, atol=1e-9)


def test_each_attacker_sees_its_own_columns():
    one = world(8, 300)
    by = {see: attacks.score(partial(spikes, see=see), one).value for see in SEEN}
    alone = attacks.score(partial(spikes, see=[]), one).value
    for see in ("answers", "power", "times"):  # of which this world shows nothing
        np.testing.assert_array_equal(by[see], alone)
    both = attacks.score(partial(spikes, see=["counts", "membranes"]), one).value
    np.testing.assert_array_equal(both, attacks.score("spikes", one).value)
    assert len({array.tobytes() for array in (alone, both, by["counts"], by["membranes"])}) == 4


def test_with_one_gap_and_one_variance_for_all_samples_it_is_the_formula_in_loops():
    one = world(8, 60)
    target, references = one.hold_out(3)
    shown = np.concatenate([one.margin.swapaxes(1, 2), one.activity], axis=2).astype(float)
    rows = one.reference_rows(3)
    usual = shown[rows].mean(0)
    for model in (3, *rows):  # what a network does alike on all samples is no evidence on any
        shown[model, :, 1:] -= (shown[model] - usual).mean(0)[1:]
    residuals, gaps, levels, variances = [], [], [], []
    for sample in range(60):
        inside = one.member[rows, sample]
        means = [shown[rows[inside == side], sample].mean(0) for side in (False, True)]
        gaps.append(means[1] - means[0])
        levels.append((means[0] + means[1]) / 2)
        rest = [shown[row, sample] - means[int(one.member[row, sample])] for row in rows]
        residuals.append(rest)
        variances.append(np.sum(np.square(rest), axis=0) / (len(rows) - 2))
    # the logarithm of a variance of 4 degrees of freedom is on average digamma(2) - log(2) too low
    bias = (1 - np.euler_gamma) - np.log(2)
    spread = np.exp((np.mean(np.log(variances), axis=0) - bias) / 2)
    standard = np.asarray(residuals) / spread
    shared = np.einsum("nri,nrj->ij", standard, standard) / (60 * (len(rows) - 2))
    gap = np.mean(gaps, axis=0) / spread
    z = (shown[3] - levels) / spread
    given, left = shared[1:, 1:].copy(), z[:, 1:].copy()
    added = []
    for r in (0, 1):
        slope = shared[r + 1, 0] / shared[0, 0]
        given[r] -= slope * shared[0, 1:]
        left[:, r] -= slope * z[:, 0]
        rest = gap[r + 1] - slope * gap[0]
        noise = given[r, r] * (1 / 3 + 1 / 3) / 60
        added.append(max(1 - noise / rest**2, 0) * rest)
    margin_alone = lira_smooth(target, references, degree=0)
    score = margin_alone + left @ np.linalg.solve(given, added)
    np.testing.assert_allclose(spikes(target, references, degree=0), score, rtol=1e-9, atol=1e-9)


def test_activity_that_tells_nothing_more_is_left_out():
    """What lies along with the margin, as its own noise makes it, is shrunk to the margin's score:
    the weight that is left of pure noise moves hardly any pair of samples."""
    told = world(16, 3000, gaps=GAPS[0] * COVARIANCE[0])
    alone = attacks.score(partial(spikes, see=[]), told)
    found = attacks.score("spikes", told)
    assert mean_auc(found) == pytest.approx(mean_auc(alone), abs=0.002)
    for one, other in zip(found.value, alone.value, strict=True):
        assert np.corrcoef(one, other)[0, 1] > 0.99


def test_what_a_network_does_on_all_samples_alike_is_no_evidence_on_any():
    """Layers that spike more in one network than in another, each by far more than its samples
    differ: 30 such columns, of which the references show too few draws to learn their covariance.
    """
    rng = np.random.default_rng(0)
    told = world(16, 3000)
    noise = rng.normal(size=(16, 3000, 30))
    habits = 10 * rng.normal(size=(16, 1, 30))
    several = replace(
        told,
        activity=(noise + habits).astype(np.float32),
        info=told.info | {"activity": [f"count spike{layer}" for layer in range(30)]},
    )
    alone = attacks.score("lira_smooth", told)
    found = attacks.score("spikes", several)
    assert mean_auc(found) == pytest.approx(mean_auc(alone), abs=0.003)


@pytest.mark.parametrize("models", [6, 16])
def test_in_a_world_without_leaks_it_finds_nothing(models):
    values = []
    for seed in range(20):
        scores = attacks.score(
            "spikes", world(models, 400, gaps=np.zeros(3), seed=seed), targets=[0]
        )
        values.append(auc(scores.value[0], scores.member[0]))
    assert abs(np.mean(values) - 0.5) < 3.3 * null_se(200, 200) / np.sqrt(20)


@pytest.mark.slow
def test_the_self_test_hides_the_activity_too():
    """With a leak in the activity alone, its blind target must look alike everywhere, and the world
    without leaks must have none."""
    leaky = world(16, 600, gaps=[0, 1.5, 0], population=60)
    assert mean_auc(attacks.score("spikes", leaky)) > 0.7
    found = metrics.self_test(leaky, ["spikes"], samples=None)
    assert found.passed, found


def test_numbers_of_another_scale_give_the_same_scores():
    one = world(8, 200)
    changed = replace(one, activity=1000 - 250 * one.activity)
    ours, theirs = (attacks.score("spikes", signals).value for signals in (one, changed))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_column_that_is_there_twice_counts_once():
    one = world(8, 200)
    twice = replace(
        one,
        activity=one.activity[:, :, [0, 1, 1]],
        info=one.info | {"activity": [*NAMES, "rest again"]},
    )
    ours, theirs = (attacks.score("spikes", signals).value for signals in (one, twice))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_without_activity_the_margins_are_read_and_the_scores_say_so():
    plain = gaussian(8, 100)
    scores = attacks.score("spikes", plain)
    margins = attacks.score("lira_smooth", plain)
    np.testing.assert_allclose(scores.value, margins.value, rtol=1e-9, atol=1e-9)
    assert any("no activity" in flag for flag in scores.info["flags"])


def test_signals_keep_their_activity_through_picks_and_the_formats_of_attacks():
    one = world(8, 100, population=10)
    few = one.select(models=[2, 5], samples=[7, 3, 50])
    np.testing.assert_array_equal(few.activity, one.activity[[2, 5]][:, [7, 3, 50]])
    hidden, references = one.hold_out(0)
    assert hidden.activity.shape == (1, 110, 2) and references.activity.shape == (6, 110, 2)
    assert Signals.of_releases([one, one]).activity is None
    # attacks that read answers alone are not disturbed
    for name in ("rmia", "lira_smooth", "rmia_tuned", "shokri"):
        bare = replace(one, activity=None)
        np.testing.assert_array_equal(
            attacks.score(name, one).value, attacks.score(name, bare).value
        )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"activity": np.zeros((8, 50, 3), np.float32)}, "activity has shape"),
        ({"info": {}}, "wanted a name a column"),
        ({"info": {"activity": "count spike0"}}, "wanted a name a column"),
        ({"activity": np.full((8, 50, 2), np.nan, np.float32)}, "activity of model 0 is nan"),
    ],
)
def test_activity_that_does_not_fit_is_refused(change, reason):
    with pytest.raises(ValueError, match=reason):
        replace(world(8, 50), **change)


def test_what_the_attack_cannot_work_with_is_refused():
    one = world(8, 50)
    other = replace(one, info=one.info | {"activity": ["count spike0", "rest spike1"]})
    with pytest.raises(ValueError, match="show other columns"):
        attacks.score("spikes", one, other)
    with pytest.raises(ValueError, match="see='heat' is not one of"):
        attacks.score(partial(spikes, see="heat"), one)
    with pytest.raises(ValueError, match="no sample has two references"):
        attacks.score("spikes", world(4, 50))


def test_explorers_offer_the_attack_where_there_is_activity():
    seen, bare = world(8, 100), gaussian(8, 100)
    offered = {name: Source(name, one).attacks() for name, one in (("a", seen), ("b", bare))}
    assert offered["a"] == [*offered["b"], "spikes"]
    found = Source("a", seen).scores("spikes").value
    np.testing.assert_array_equal(found, attacks.score("spikes", seen).value)
    assert queried(seen.info) == ["with activity"] and queried(bare.info) == []
