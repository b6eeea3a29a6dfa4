"""loss, attack_p, vote, combination of queries and alignment of scales, against their
definitions.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attack_worlds import auc, gaussian, signals
from scipy.special import log_expit, logsumexp, softmax
from scipy.stats import norm

from mia_nb import attacks
from mia_nb.attacks import margins
from mia_nb.types import Signals


def test_loss_by_margin_and_by_loss_have_the_same_auc():
    world = gaussian(samples=500)
    target, _ = world.hold_out(0)
    member = world.member[0]
    assert (
        auc(attacks.single.loss(target), member)
        == auc(attacks.single.loss(target, signal="loss"), member)
        > 0.6
    )
    assert np.allclose(
        attacks.single.loss(target, signal="loss"),
        log_expit(target.margin[0, 0]),
        rtol=1e-13,
        atol=0,
    )


def test_the_margin_still_ranks_where_the_loss_has_saturated():
    target = signals(np.array([[800.0, 900.0]]))
    assert np.diff(attacks.single.loss(target)) > 0
    assert np.diff(attacks.single.loss(target, signal="loss")) == 0


def test_the_threshold_form_is_one_vertex_of_the_roc():
    world = gaussian(samples=300)
    target, references = world.hold_out(0)
    score, member = attacks.single.loss(target), world.member[0]
    shifted = attacks.single.loss(target, references, threshold="reference_train_mean")
    tau = np.mean([references.loss[m, 0, i] for m, i in np.argwhere(references.member)])
    assert np.allclose(shifted, tau - target.loss[0, 0], rtol=1e-12)
    assert np.allclose(attacks.single.loss(target, threshold=tau), shifted)
    caught = shifted >= 0
    vertices = {
        ((score >= v) & member).sum() * 1000 + ((score >= v) & ~member).sum() for v in score
    }
    assert (caught & member).sum() * 1000 + (caught & ~member).sum() in vertices


def test_adding_a_constant_to_all_logits_of_a_sample_changes_no_score():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(1, 1, 40, 5)), rng.integers(0, 5, 40)
    shifted = logits + rng.normal(0, 10, (40, 1))
    scores = [attacks.single.loss(Signals.from_logits(z, labels)) for z in (logits, shifted)]
    assert np.allclose(*scores, rtol=0, atol=1e-12)


def test_the_population_form_is_the_share_of_population_samples_below():
    world = gaussian(samples=60, population=25)
    phi = np.round(world.margin[0, 0], 1)  # ties
    target = replace(world.select(models=[0]), margin=phi[None, None])
    score = attacks.single.attack_p(target, form="population")
    for i, x in enumerate(phi):
        assert score[i] == pytest.approx(np.mean(phi[world.population] < x), abs=1e-15)
    assert (np.diff(score[:60][np.argsort(phi[:60])]) >= 0).all()


def test_the_population_form_approaches_the_continuous_auc_as_the_population_grows():
    world = gaussian(2, 1000, population=20_000)
    target, member = world.select(models=[0]), world.member[0, :1000]
    exact = auc(attacks.single.attack_p(target)[:1000], member)
    few = target.select(samples=np.r_[:1010])
    gap = [
        abs(auc(attacks.single.attack_p(t, form="population")[:1000], member) - exact)
        for t in (few, target)
    ]
    assert gap[1] < 2e-4 < gap[0]


def test_attack_p_without_population_says_what_to_do():
    with pytest.raises(ValueError, match="set population > 0"):
        attacks.single.attack_p(gaussian().hold_out(0)[0], form="population")


def votes(correct, member=None):
    phi = np.where(correct, 1.0, -1.0)
    return replace(signals(phi, member, query_kind="augment"), correct=np.asarray(correct))


def test_one_vote_is_the_correctness_attack():
    target, _ = gaussian().hold_out(0)
    assert np.array_equal(attacks.single.vote(target), attacks.ATTACKS["correctness"](target))
    assert np.array_equal(attacks.single.vote(target), target.correct[0, 0].astype(float))


def test_votes_with_references_are_the_difference_of_smoothed_log_odds():
    world = gaussian(6, 40, queries=5, query_kind="augment")
    target, references = world.hold_out(0)
    score = attacks.single.vote(target, references)
    for i in range(40):
        right = [
            int(references.correct[m, :, i].sum()) for m in range(4) if not references.member[m, i]
        ]
        odds = [
            np.log((n + 0.5) / (5 - n + 0.5)) for n in (int(target.correct[0, :, i].sum()), *right)
        ]
        assert score[i] == pytest.approx(odds[0] - np.mean(odds[1:]), abs=1e-12)


@pytest.mark.parametrize(("queries", "models"), [(1, 7), (1, 11), (4, 7), (5, 9)])
def test_votes_that_agree_with_those_of_all_references_tie_exactly(queries, models):
    """Most samples are of this kind, so that a rounding error would rank them by their votes."""
    count = np.arange(queries + 1)
    alike = np.arange(queries)[None, :, None] < count[None, None, :]
    references = votes(np.repeat(alike, models, axis=0), np.zeros((models, len(count)), bool))
    assert (attacks.single.vote(votes(alike), references) == 0).all()


def test_votes_tie_whatever_the_order_and_the_number_of_the_references():
    rng = np.random.default_rng(1)
    some = np.arange(5)[:, None] < rng.integers(0, 6, 14)  # (queries, references)
    right = np.stack([some[:, rng.permutation(14)].T for _ in range(40)], axis=2)
    alike = votes(np.ones((1, 5, 40), bool))
    scores = attacks.single.vote(alike, votes(right, np.zeros((14, 40), bool)))
    assert np.unique(scores).size == 1
    # one of three right, among three references and among nine
    third = (np.arange(9) % 3 == 0)[:, None, None].repeat(2, axis=2)
    member = (np.arange(9)[:, None] >= 3) & np.array([True, False])
    assert np.ptp(attacks.single.vote(votes(third[:1]), votes(third, member))) == 0


def test_votes_ignore_monotone_transforms_of_the_logits_and_grow_with_every_vote():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(1, 7, 30, 4)), rng.integers(0, 4, 30)
    plain, bent = (
        Signals.from_logits(z, labels, query_kind="augment")
        for z in (logits, np.exp(logits) + logits**3)
    )
    assert np.array_equal(attacks.single.vote(plain), attacks.single.vote(bent))
    ladder = votes(np.arange(6)[None, :, None] < np.arange(7))  # sample i has i of 6 votes
    alike = votes(np.repeat(rng.random((2, 6, 1)) < 0.5, 7, axis=2), np.zeros((2, 7), bool))
    for references in (None, replace(alike, labels=ladder.labels)):
        assert (np.diff(attacks.single.vote(ladder, references)) > 0).all()


def softmax_margin(p):
    return np.log(p) - np.log1p(-p)


def test_queries_combine_as_defined():
    phi = np.random.default_rng(0).normal(0, 3, (2, 20, 9))
    p = 1 / (1 + np.exp(-phi))
    twins = {
        "margin": phi.mean(1),
        "logmeanp": softmax_margin(p.mean(1)),
        "trimmed": np.sort(phi, 1)[:, 2:18].mean(1),
        "last": phi[:, -1],
    }
    for how, twin in twins.items():
        assert np.allclose(margins.combine_queries(phi, how), twin, rtol=1e-12, atol=1e-12), how


def test_the_log_of_the_mean_confidence_survives_saturation():
    phi = np.array([[[700.0, -700.0, 45.0], [690.0, -690.0, 44.0], [600.0, -800.0, 50.0]]])
    log_p, log_not_p = (logsumexp(log_expit(sign * phi), axis=1) - np.log(3) for sign in (1, -1))
    combined = margins.combine_queries(phi, "logmeanp")
    assert np.allclose(combined, log_p - log_not_p, rtol=1e-13)
    assert np.allclose(log_expit(combined), log_p, rtol=1e-13)


def test_with_one_query_all_combinations_agree():
    phi = np.random.default_rng(1).normal(size=(3, 1, 8))
    for how in ("margin", "logmeanp", "trimmed", "last"):
        assert np.array_equal(margins.combine_queries(phi, how), phi[:, 0])


def test_affine_alignment_undoes_an_affine_distortion_of_one_models_margins():
    world = gaussian(8, 100, population=50)
    bent = world.margin.copy()
    bent[2] = 7 * bent[2] - 30
    plain, restored = (attacks.align(w) for w in (world, replace(world, margin=bent)))
    assert np.allclose(plain.margin, restored.margin, rtol=0, atol=1e-12)
    for name in ("rmia", "lira_shrunk", "nig", "attack_r"):
        first, second = (attacks.score(name, w, targets=[0]).value for w in (plain, restored))
        assert np.allclose(first, second, rtol=1e-9, atol=1e-9), name


def test_quantile_alignment_undoes_any_monotone_distortion():
    world = gaussian(8, 100, population=50)
    bent = world.margin.copy()
    bent[2] = np.sinh(bent[2])
    plain, restored = (
        attacks.align(w, how="quantile").margin for w in (world, replace(world, margin=bent))
    )
    assert np.array_equal(plain, restored)


def test_quantile_alignment_gives_the_populations_normal_scores():
    phi = np.arange(10.0)[None]
    aligned = attacks.align(signals(phi, population=np.ones(10, bool)), how="quantile").margin[0, 0]
    assert np.allclose(aligned, norm.ppf((np.arange(10) + 1) / 11), atol=1e-12)


def test_alignment_uses_population_samples_only_and_refuses_a_model_that_answers_the_same_everywhere():
    world = gaussian(4, 100, population=50)
    louder = world.margin + 100 * ~world.population
    assert np.allclose(
        attacks.align(replace(world, margin=louder)).margin[..., 100:],
        attacks.align(world).margin[..., 100:],
    )
    with pytest.raises(ValueError, match="model 0 has margins of interquartile range 0"):
        attacks.align(replace(world, margin=np.ones_like(world.margin)))


def test_softmax_of_a_two_class_model_gives_the_logit_difference_as_margin():
    logits = np.random.default_rng(0).normal(size=(1, 1, 20, 2))
    labels = np.zeros(20, int)
    assert np.allclose(
        attacks.single.loss(Signals.from_logits(logits, labels)),
        logits[0, 0, :, 0] - logits[0, 0, :, 1],
    )
    assert np.allclose(
        np.exp(attacks.single.loss(Signals.from_logits(logits, labels), signal="loss")),
        softmax(logits[0, 0], -1)[:, 0],
    )
