"""lira_smooth and rmia_tuned: what is learned over samples and chosen on references is true, and the
target's membership plays no part in it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attack_worlds import auc, gaussian, null_se, pairs, signals
from numpy.polynomial import polynomial
from scipy.stats import norm, rankdata

from mia_nb import attacks
from mia_nb.attacks import tuned
from mia_nb.attacks.reference import rmia
from mia_nb.attacks.smooth import lira_smooth
from mia_nb.attacks.summaries import confidences_of
from mia_nb.attacks.tuned import _area_and_log_rate, rmia_tuned
from mia_nb.types import Signals


def mean_auc(scores):
    return np.mean([auc(v, m) for v, m in zip(scores.value, scores.member, strict=True)])


def hard_samples_leak(models=8, samples=4000, seed=0):
    """(signals; the true log-likelihood ratio of every model's margin): gap and spread depend on
    how hard a sample is.
    """
    rng = np.random.default_rng(seed)
    member = pairs(models, samples, seed=seed)
    level = rng.normal(2, 3, samples)
    gap = 1.5 / (1 + np.exp(level))
    spread = np.exp(-level / 6)
    centre = level + np.where(member, gap / 2, -gap / 2)
    phi = centre + spread * rng.normal(size=member.shape)
    ratio = norm.logpdf(phi, level + gap / 2, spread) - norm.logpdf(phi, level - gap / 2, spread)
    return signals(phi, member, seed=seed), ratio


# --- lira_smooth -----------------------------------------------------------------------------------


def test_with_few_references_the_smoothed_ratio_is_nearer_to_the_true_one_than_any_other_lira():
    world, truth = hard_samples_leak()
    nearness = {}
    for name in ("lira_smooth", "lira", "lira_global", "lira_per_sample", "nig"):
        score = attacks.score(name, world, targets=[0]).value[0]
        nearness[name] = np.corrcoef(rankdata(score), rankdata(truth[0]))[0, 1]
    smooth = nearness.pop("lira_smooth")
    assert smooth > 0.8 and smooth > max(nearness.values()) + 0.1


def test_with_many_references_and_samples_it_is_the_true_ratio():
    """Levels are then known, and gap and spread are curves that a polynomial can follow."""
    error = []
    for models in (8, 32, 128):
        world, truth = hard_samples_leak(models, 3000)
        score = lira_smooth(*world.hold_out(0), degree=10)
        usual = np.abs(truth[0]) < 3
        error.append(np.median(np.abs(score - truth[0])[usual]))
    assert error[0] > 1.5 * error[1] > 1.5 * 1.5 * error[2]
    assert error[2] < 0.05


def slow_lira_smooth(target: Signals, references: Signals, degree: int) -> np.ndarray:
    """Sample by sample, with ordinary polynomials of the rank and numpy's least squares."""
    target_margin = target.margin[0, 0]
    samples = len(target_margin)
    level, gap, log_in, log_out = np.empty((4, samples))
    for i in range(samples):
        inside = references.margin[references.member[:, i], 0, i]
        outside = references.margin[~references.member[:, i], 0, i]
        level[i] = (inside.mean() + outside.mean()) / 2
        gap[i] = inside.mean() - outside.mean()
        log_in[i] = np.log(inside.var(ddof=1))
        log_out[i] = np.log(outside.var(ddof=1))
    # E log chi2_d / d for d = 2, in closed form: minus Euler's constant
    log_in += np.euler_gamma
    log_out += np.euler_gamma
    rank = np.argsort(np.argsort(level)) / samples

    def fitted(values):
        return polynomial.polyval(rank, polynomial.polyfit(rank, values, degree))

    gap, log_in, log_out = fitted(gap), fitted(log_in), fitted(log_out)
    score = np.empty(samples)
    for i in range(samples):
        score[i] = norm.logpdf(target_margin[i], level[i] + gap[i] / 2, np.exp(log_in[i] / 2))
        score[i] -= norm.logpdf(target_margin[i], level[i] - gap[i] / 2, np.exp(log_out[i] / 2))
    return score


def test_it_equals_a_slow_twin():
    target, references = gaussian(8, 150).hold_out(0)
    found = lira_smooth(target, references, degree=3)
    np.testing.assert_allclose(found, slow_lira_smooth(target, references, 3), atol=1e-9)


def test_a_polynomial_of_degree_0_is_one_gap_and_one_variance_a_side():
    target, references = gaussian(8, 200).hold_out(0)
    found = lira_smooth(target, references, degree=0)
    np.testing.assert_allclose(found, slow_lira_smooth(target, references, 0), atol=1e-9)


def test_a_shift_and_a_positive_scale_of_all_margins_change_nothing():
    target, references = gaussian(8, 200).hold_out(0)
    moved = [replace(s, margin=3 * s.margin - 7) for s in (target, references)]
    np.testing.assert_allclose(
        lira_smooth(*moved), lira_smooth(target, references), rtol=1e-6, atol=1e-6
    )


def test_population_samples_are_unscored_and_change_no_score():
    target, references = gaussian(10, 120, population=40).hold_out(0)
    score = lira_smooth(target, references)
    assert np.isnan(score[120:]).all()
    without = [s.select(samples=np.arange(120)) for s in (target, references)]
    np.testing.assert_allclose(score[:120], lira_smooth(*without), rtol=1e-12, atol=1e-12)


# --- rmia_tuned ------------------------------------------------------------------------------------


def saturated(models=12, samples=1500, seed=0, easy_gap=2.0, hard_gap=0.2):
    """Half of the samples are fitted so well that their probabilities are nearly 1."""
    rng = np.random.default_rng(seed)
    member = pairs(models, samples, seed=seed)
    easy = np.arange(samples) % 2 == 0
    level = np.where(easy, 6.0, 0.0)
    gap = np.where(easy, easy_gap, hard_gap)
    phi = level + gap * member + rng.normal(size=member.shape)
    return signals(phi, member, seed=seed)


CLOSE = {"rtol": 1e-12, "atol": 1e-12}


@pytest.mark.parametrize("temperature", [1.0, 2.0, 3.5])
def test_of_one_temperature_it_is_rmia_on_margins_divided_by_it(temperature):
    target, references = gaussian(8, 200, population=30).hold_out(0)
    cooled = [replace(s, margin=s.margin / temperature) for s in (target, references)]
    found = rmia_tuned(target, references, temperatures=(temperature,))
    np.testing.assert_allclose(found, rmia(*cooled), **CLOSE)


def test_where_easy_samples_leak_a_higher_temperature_is_chosen_and_finds_more():
    world = saturated()
    target, references = world.hold_out(0)
    found = rmia_tuned(target, references)
    chosen = [
        t
        for t in (1.0, 1.5, 2.0, 3.0)
        if np.array_equal(found, rmia_tuned(target, references, temperatures=(t,)))
    ]
    assert chosen[0] > 1
    targets = range(0, 12, 2)
    plain = mean_auc(attacks.score("rmia", world, targets=targets))
    assert mean_auc(attacks.score("rmia_tuned", world, targets=targets)) > plain + 0.02


def test_where_nothing_is_gained_it_is_rmia():
    """What leaks are hard samples alone, which a temperature mixes with the noise of easy ones."""
    world = saturated(easy_gap=0.0, hard_gap=0.5)
    np.testing.assert_allclose(
        attacks.score("rmia_tuned", world).value, attacks.score("rmia", world).value, **CLOSE
    )


def slow_choice(references: Signals, seed: int = 0) -> float:
    """Pseudo-target by pseudo-target, each on copies of the references that its pair leaves."""
    rng = np.random.default_rng(seed)
    temperatures = (1.0, 1.5, 2.0, 3.0)
    pseudo_targets = rng.permutation(references.shape[0])[:8]
    samples = rng.permutation(np.flatnonzero(~references.population))[: 200_000 // 8]
    known = references.select(samples=np.sort(samples))
    measured = []
    for row in pseudo_targets:
        pseudo_target, others = known.hold_out(int(row))
        for temperature in temperatures:
            cooled = [replace(s, margin=s.margin / temperature) for s in (pseudo_target, others)]
            score = rmia(*cooled, missing="nan")
            measured.append(_area_and_log_rate(score, known.member[row]))
    measured = np.array(measured).reshape(len(pseudo_targets), len(temperatures), 2)
    lead = measured - measured[:, :1]
    error = lead.std(0, ddof=1) / np.sqrt(len(lead))
    best = 0
    for column in range(len(temperatures)):
        clear = (lead[:, column].mean(0) > error[column]).all()
        if clear and lead[:, column, 1].mean() > lead[:, best, 1].mean():
            best = column
    return temperatures[best]


@pytest.mark.parametrize("design", ["pairs", "shuffled pairs", "Bernoulli", "margins of 1000 nats"])
def test_all_targets_of_a_pool_get_the_temperature_that_a_slow_twin_chooses_for_each(design):
    world = saturated(10, 300, easy_gap=0.3, hard_gap=0.2)
    if design == "shuffled pairs":
        world = world.select(models=np.random.default_rng(2).permutation(10))
    if design == "Bernoulli":
        member = np.random.default_rng(1).random((10, 300)) < 0.5
        world = replace(world, member=member)
    if design == "margins of 1000 nats":
        world = replace(world, margin=400 * world.margin)
    found = attacks.score("rmia_tuned", world).value
    chosen = []
    for t in range(0, 10, 2):
        target, references = world.hold_out(t)
        chosen.append(slow_choice(references))
        cooled = [replace(s, margin=s.margin / chosen[-1]) for s in (target, references)]
        expected = rmia(*cooled, missing="nan")
        np.testing.assert_allclose(found[t], expected, rtol=1e-10, atol=1e-10)
    if design == "pairs":
        assert set(chosen) == {1, 3}


@pytest.mark.parametrize("models", [8, 32])
def test_reading_for_a_choice_is_not_quadratic_in_the_number_of_models(monkeypatch, models):
    reads = []

    def counted(pool, *args):
        reads.append(len(pool.margin))
        return confidences_of(pool, *args)

    monkeypatch.setattr(tuned, "confidences_of", counted)
    attacks.score("rmia_tuned", gaussian(models, 50))
    # at 4 temperatures, for at most 16 models that play the target and once for the scores
    assert sum(reads) <= 4 * (16 + 1) * np.log2(models / 2) * models


def test_a_seed_repeats_the_choice_and_another_target_membership_does_not_change_it():
    world = saturated(8, 400)
    target, references = world.hold_out(0)
    first = rmia_tuned(target, references, seed=1)
    assert np.array_equal(first, rmia_tuned(target, references, seed=1))
    told = replace(target, member=world.member[[1]])
    assert np.array_equal(first, rmia_tuned(told, references, seed=1))


@pytest.mark.parametrize("models", [4, 6])
def test_with_too_few_pairs_to_choose_on_it_is_rmia(models):
    world = saturated(models, 300)
    if models == 4:  # one pair is left, and a pseudo-target of it has no references
        np.testing.assert_allclose(
            attacks.score("rmia_tuned", world).value, attacks.score("rmia", world).value, **CLOSE
        )
    assert np.isfinite(attacks.score("rmia_tuned", world).value).all()


# --- both ------------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("name", ["lira_smooth", "rmia_tuned"])


@BOTH
@pytest.mark.parametrize(("models", "queries"), [(8, 1), (8, 4), (16, 1)])
def test_nothing_is_found_where_nothing_leaks(name, models, queries):
    options = {"delta": 0.0, "queries": queries, "query_kind": "plain" if queries == 1 else "noise"}
    worlds = [gaussian(models, 200, seed=seed, **options) for seed in range(2)]
    found = np.mean([mean_auc(attacks.score(name, world)) for world in worlds])
    # targets that are each other's references vary together: half as many count as independent
    assert abs(found - 0.5) < 3 * null_se(100, 100) / np.sqrt(models)


@BOTH
def test_samples_that_lack_a_side_are_refused_or_left_unscored(name):
    target, references = gaussian(12, 200).hold_out(0)
    member = references.member.copy()
    member[:, 7] = False
    short = replace(references, member=member)
    attack = attacks.ATTACKS[name]
    with pytest.raises(ValueError, match="1 of 200 samples lack one"):
        attack(target, short)
    assert np.flatnonzero(np.isnan(attack(target, short, missing="nan"))).tolist() == [7]


@BOTH
@pytest.mark.parametrize(
    ("option", "of"),
    [
        ({"degree": -1}, "lira_smooth"),
        ({"degree": 21}, "lira_smooth"),
        ({"degree": 2.5}, "lira_smooth"),
        ({"temperatures": ()}, "rmia_tuned"),
        ({"temperatures": (1.0, 0.0)}, "rmia_tuned"),
        ({"temperatures": (1.0, float("nan"))}, "rmia_tuned"),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused_by_name(name, option, of):
    if name != of:
        return
    with pytest.raises(ValueError, match=next(iter(option))):
        attacks.ATTACKS[name](*gaussian(8, 100).hold_out(0), **option)
