"""attack_r, watson, rmia and base against plain loops over their definitions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from attack_worlds import auc, gaussian, pairs, signals
from scipy.special import log_expit, logsumexp

from mia_nb import attacks
from mia_nb.types import Signals

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def lme(values):
    return logsumexp(values) - np.log(len(values))


def uneven(queries=1, population=0, seed=0):
    """A target and references in a Bernoulli design where every sample has both sides."""
    world = gaussian(8, 30, queries=queries, population=population, seed=seed)
    rng = np.random.default_rng(seed)
    member = rng.random(world.member.shape) < 0.5
    member[1], member[2] = True, False
    member[:, world.population] = False
    return replace(world, member=member).select(models=[0]), replace(world, member=member).select(
        models=np.arange(1, 8)
    )


def sides_of(references, i, phi):
    inside = references.member[:, i]
    return phi[inside, i], phi[~inside, i]


@pytest.mark.parametrize("form", ["shift", "interp", "lattice"])
def test_attack_r_equals_a_loop_over_samples(form):
    target, references = uneven()
    score = attacks.reference.attack_r(target, references, form=form)
    phi_t, phi = target.margin[0, 0], references.margin[:, 0]
    for i in range(30):
        values = phi[:, i]
        knots = np.r_[0, np.sort(-log_expit(values[~references.member[:, i]])), 1000]
        twin = {
            "shift": phi_t[i] - values.mean(),
            "lattice": np.mean(phi_t[i] >= values),
            "interp": 1 - np.interp(-log_expit(phi_t[i]), knots, np.linspace(0, 1, len(knots))),
        }
        assert np.isclose(score[i], twin[form], **CLOSE)


def test_the_lattice_has_one_value_more_than_references_and_ties_count_as_at_least():
    target, references = gaussian(6, 400).hold_out(0)
    assert len(np.unique(attacks.reference.attack_r(target, references, form="lattice"))) == 5
    alone = replace(references, margin=np.repeat(target.margin, 4, axis=0))
    assert (attacks.reference.attack_r(target, alone, form="lattice") == 1).all()


def test_with_one_reference_shift_and_watson_are_plain_differences():
    world = gaussian(2, 50)
    target, reference = (
        world.select(models=[0]),
        replace(world.select(models=[1]), member=np.zeros((1, 50), bool)),
    )
    difference = target.margin[0, 0] - reference.margin[0, 0]
    assert np.array_equal(attacks.reference.attack_r(target, reference), difference)
    assert np.array_equal(attacks.reference.watson(target, reference, signal="margin"), difference)
    assert np.allclose(
        attacks.reference.watson(target, reference),
        log_expit(target.margin[0, 0]) - log_expit(reference.margin[0, 0]),
        **CLOSE,
    )


@pytest.mark.parametrize("signal", ["loss", "margin", "confidence"])
@pytest.mark.parametrize("centre", ["mean", "median"])
def test_watson_equals_a_loop_over_samples(signal, centre):
    target, references = uneven()
    read = {"loss": log_expit, "margin": np.asarray, "confidence": lambda x: np.exp(log_expit(x))}[
        signal
    ]
    score = attacks.reference.watson(target, references, signal=signal, centre=centre)
    for i in range(30):
        outside = references.margin[:, 0, i][~references.member[:, i]]
        twin = read(target.margin[0, 0, i]) - getattr(np, centre)(read(outside))
        assert np.isclose(score[i], twin, **CLOSE)


def test_watson_warns_when_calibration_changed_nothing():
    target, references = gaussian(6, 50).hold_out(0)
    flat = replace(references, margin=np.zeros_like(references.margin))
    with pytest.warns(UserWarning, match="calibration had no effect"):
        attacks.reference.watson(target, flat)


def rmia_twin(target, references, *, offline=False, a=0.3):
    """log p_t - log pbar by the definition, in the log domain."""
    phi_t, phi = target.margin[0, 0], references.margin[:, 0]
    out = np.empty(len(phi_t))
    for i, x in enumerate(phi_t):
        inside, outside = sides_of(references, i, phi)
        if offline or not len(inside):
            pbar = logsumexp(
                [
                    np.log((1 + a) / 2) + lme(log_expit(outside)),
                    np.log((1 - a) / 2) if a < 1 else -np.inf,
                ]
            )
        else:
            pbar = logsumexp([lme(log_expit(inside)), lme(log_expit(outside))]) - np.log(2)
        out[i] = log_expit(x) - pbar
    return out


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("a", [0.0, 0.3, 1.0])
def test_rmia_equals_a_loop_over_samples(offline, a):
    target, references = uneven(population=10)
    assert np.allclose(
        attacks.reference.rmia(target, references, offline=offline, a=a),
        rmia_twin(target, references, offline=offline, a=a),
        **CLOSE,
    )


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("offline", [False, True])
def test_the_count_form_equals_the_comparison_of_every_pair(gamma, offline):
    target, references = gaussian(8, 200, population=80).hold_out(0)
    u = rmia_twin(target, references, offline=offline)
    ahead = u[:, None] - u[target.population] - np.log(gamma)
    twin = (ahead > 1e-12).mean(1)
    score = attacks.reference.rmia(target, references, form="count", gamma=gamma, offline=offline)
    off = np.abs(score - twin)[:200]
    assert off.max() <= 1 / 80 + 1e-12 and (off > 1e-12).mean() <= (0.001 if gamma != 1 else 0)


def test_roc_vertices_of_the_count_form_are_vertices_of_the_ratio():
    world = gaussian(8, 300, population=40)
    target, references = world.hold_out(0)
    member = world.member[0, :300]

    def vertices(score):
        score = score[:300]
        return {
            (int((member & (score >= v)).sum()), int((~member & (score >= v)).sum())) for v in score
        }

    ratio = vertices(attacks.reference.rmia(target, references))
    for gamma in (1, 2, 8):
        assert (
            vertices(attacks.reference.rmia(target, references, form="count", gamma=gamma)) <= ratio
        )


def test_the_count_form_approaches_the_ratio_as_the_population_grows():
    world = gaussian(8, 1000, population=20_000)
    target, references = world.hold_out(0)
    member = world.member[0, :1000]
    exact = auc(attacks.reference.rmia(target, references)[:1000], member)
    gap = []
    for population in (10, 20_000):
        few = [
            signals_.select(samples=np.arange(1000 + population))
            for signals_ in (target, references)
        ]
        gap.append(abs(auc(attacks.reference.rmia(*few, form="count")[:1000], member) - exact))
    assert gap[1] < 2e-4 < gap[0]


def test_the_vote_form_takes_the_majority_of_queries_for_each_pair():
    target, references = gaussian(6, 20, queries=4, population=9, query_kind="augment").hold_out(0)
    u = np.array(
        [rmia_twin(target.select(queries=[q]), references.select(queries=[q])) for q in range(4)]
    )
    score = attacks.reference.rmia(target, references, form="vote", gamma=1.1)
    for i in range(29):
        majority = [
            sum(u[q, i] - u[q, z] > np.log(1.1) for q in range(4)) > 2
            for z in np.flatnonzero(target.population)
        ]
        assert score[i] == pytest.approx(np.mean(majority), abs=1e-12)


def test_rmia_averages_the_log_ratio_over_queries_when_asked_and_the_confidence_by_default():
    target, references = gaussian(6, 20, queries=4, query_kind="augment").hold_out(0)
    per_query = [
        rmia_twin(target.select(queries=[q]), references.select(queries=[q])) for q in range(4)
    ]
    assert np.allclose(
        attacks.reference.rmia(target, references, combine="llr"), np.mean(per_query, 0), **CLOSE
    )
    p_t, p = (np.exp(log_expit(s.margin)).mean(1) for s in (target, references))
    assert np.allclose(
        attacks.reference.rmia(target, references), np.log(p_t[0] / p.mean(0)), **CLOSE
    )


def test_saturated_samples_keep_the_order_of_exact_arithmetic():
    rng = np.random.default_rng(0)
    phi = rng.uniform(40, 60, (9, 200))
    world = signals(phi, np.vstack([np.zeros((1, 200), bool), pairs(8, 200)]))
    target, references = world.select(models=[0]), world.select(models=np.arange(1, 9))
    not_p = np.exp(-world.margin[:, 0])  # 1 - p to 17 digits: 1 - p = e^-phi / (1 + e^-phi)
    score = attacks.reference.rmia(target, references)
    exact = not_p[1:].mean(0) - not_p[0]
    assert np.array_equal(np.argsort(score), np.argsort(exact))
    assert np.allclose(score, exact, rtol=1e-9)
    offline = attacks.reference.rmia(target, references, offline=True, a=1)
    out = ~references.member
    exact = (not_p[1:] * out).sum(0) / out.sum(0) - not_p[0]
    assert np.allclose(offline, exact, rtol=1e-9)


@pytest.mark.parametrize("offline", [False, True])
def test_the_saturation_safe_form_is_the_plain_form_where_nothing_saturates(offline):
    target, references = gaussian(10, 500, difficulty=1.0).hold_out(0)
    difference = attacks.reference.rmia(target, references, offline=offline) - rmia_twin(
        target, references, offline=offline
    )
    assert np.abs(difference).max() < 4e-14


def base_twin(target, references, *, offline=False, alpha=1.0):
    phi = references.margin[:, 0]
    among = [
        phi[~references.member[:, i], i] if offline else phi[:, i] for i in range(phi.shape[1])
    ]
    return log_expit(target.margin[0, 0]) - (alpha if offline else 1) * np.array(
        [lme(log_expit(x)) for x in among]
    )


@pytest.mark.parametrize(("offline", "alpha"), [(False, 1.0), (True, 1.0), (True, 0.33)])
def test_base_equals_a_loop_over_samples(offline, alpha):
    target, references = uneven()
    assert np.allclose(
        attacks.reference.base(target, references, offline=offline, alpha=alpha),
        base_twin(target, references, offline=offline, alpha=alpha),
        **CLOSE,
    )


def test_base_is_exactly_rmia_when_the_sides_are_equal_and_differs_when_not():
    for models in (4, 8, 14):
        target, references = gaussian(models, 100).hold_out(0)
        assert np.array_equal(
            attacks.reference.base(target, references), attacks.reference.rmia(target, references)
        )
        assert np.allclose(
            attacks.reference.base(target, references, offline=True),
            attacks.reference.rmia(target, references, offline=True, a=1),
            **CLOSE,
        )
    target, references = uneven()
    assert not np.allclose(
        attacks.reference.base(target, references), attacks.reference.rmia(target, references)
    )


@pytest.mark.parametrize(
    ("attack", "side"),
    [
        (attacks.reference.rmia, "in"),
        (attacks.reference.rmia, "out"),
        (attacks.reference.watson, "out"),
        (attacks.single.vote, "out"),
        (partial(attacks.reference.base, offline=True), "out"),
        (partial(attacks.reference.attack_r, form="interp"), "out"),
        (attacks.likelihood.lira, "in"),
        (partial(attacks.likelihood.nig, allow_unequal=True), "out"),
    ],
)
def test_a_missing_side_is_refused_or_left_unscored(attack, side):
    target, references = gaussian(10, 60).hold_out(0)
    member = references.member.copy()
    member[:, [3, 8]] = side == "out"
    short = replace(references, member=member)
    with pytest.raises(ValueError, match=r"2 of 60 samples lack one.*complementary pairs"):
        attack(target, short)
    score = attack(target, short, missing="nan")
    assert np.array_equal(np.flatnonzero(np.isnan(score)), [3, 8])


def test_population_samples_never_count_as_missing_a_side():
    target, references = gaussian(10, 60, population=20).hold_out(0)
    for name in ("rmia", "rmia_count", "lira", "nig"):
        score = attacks.ATTACKS[name](target, references)
        assert np.isfinite(score[:60]).all(), name


@pytest.mark.parametrize(
    "options",
    [{"a": 1.2}, {"a": -0.1}, {"gamma": 0}, {"form": "counts"}, {"combine": "mean"}],
)
def test_rmia_refuses_options_outside_their_range(options):
    with pytest.raises(ValueError):
        attacks.reference.rmia(*gaussian(population=5).hold_out(0), **options)


def test_rmia_needs_a_population_only_to_count():
    with pytest.raises(ValueError, match="set population > 0"):
        attacks.reference.rmia(*gaussian().hold_out(0), form="count")


def test_float32_logits_give_the_scores_of_float64_logits():
    rng = np.random.default_rng(0)
    logits, labels, member = rng.normal(0, 3, (8, 1, 50, 6)), rng.integers(0, 6, 50), pairs(8, 50)
    worlds = [Signals.from_logits(z, labels, member) for z in (logits, logits.astype(np.float32))]
    for name in ("loss", "attack_r", "rmia", "lira", "nig"):
        first, second = (attacks.score(name, world).value for world in worlds)
        assert np.allclose(first, second, rtol=1e-4, atol=1e-4), name


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["rmia", "base"])
def test_large_float32_margins_give_the_scores_of_float64_margins(name):
    world = gaussian(8, 50)
    single = replace(world, margin=(100 * world.margin).astype(np.float32))
    assert np.abs(single.margin).max() > 90  # whose exponential is infinite in float32
    double = replace(single, margin=single.margin.astype(np.float64))
    first, second = (attacks.score(name, each).value for each in (single, double))
    assert np.allclose(first, second, rtol=1e-4, atol=1e-4)
