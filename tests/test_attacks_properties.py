"""What holds for every attack: invariances, extremes, sign, no peeking, and nothing found where
nothing leaks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from attack_worlds import auc, gaussian, null_se, pairs, signals

from mia_nb import attacks
from mia_nb.types import Signals

pytestmark = pytest.mark.filterwarnings(
    "ignore:LiRA has",
    "ignore:difficulty calibration had",
    "ignore:song_mittal:",
    "ignore:Student-t LiRA has one pair",
    "ignore:spikes. no activity",
)
# which needs several answers of a stochastic model
NAMES = [name for name in attacks.ATTACKS if name != "lira_joint"]
TARGET_ALONE = ("loss", "correctness", "attack_p")
LEARNED = ("shokri", "song_mittal")
EVERY = pytest.mark.parametrize("name", NAMES)


def run(name, target, references, **options):
    return attacks.ATTACKS[name](target, references, **options)


@EVERY
def test_a_memorising_model_gives_an_auc_above_one_half(name):
    world = gaussian(
        12, 1500, delta=1.5, difficulty=1.0, population=300, queries=3, query_kind="augment"
    )
    scores = attacks.score(name, world, targets=[0, 1])
    assert all(
        auc(v, m) > 0.5 + 3 * null_se(750, 750)
        for v, m in zip(scores.value, scores.member, strict=True)
    )


@EVERY
def test_scores_do_not_change_when_references_are_permuted(name):
    target, references = gaussian(10, 80, population=20).hold_out(0)
    shuffled = references.select(models=np.random.default_rng(0).permutation(8))
    assert np.allclose(
        run(name, target, references),
        run(name, target, shuffled),
        rtol=1e-9,
        atol=1e-9,
        equal_nan=True,
    )


@EVERY
def test_scores_follow_the_samples_when_these_are_permuted(name):
    target, references = gaussian(10, 80, population=20).hold_out(0)
    order = np.random.default_rng(0).permutation(100)
    moved = run(name, *(s.select(samples=order) for s in (target, references)))
    assert np.allclose(
        run(name, target, references)[order], moved, rtol=1e-9, atol=1e-9, equal_nan=True
    )


@EVERY
def test_a_sample_that_is_there_twice_gets_the_same_score_twice(name):
    target, references = (
        s.select(samples=np.r_[:90, 3, 80:90]) for s in gaussian(10, 80, population=20).hold_out(0)
    )
    score = run(name, target, references)
    assert score[3] == score[90]


@EVERY
def test_scores_are_bit_identical_when_the_targets_membership_is_flipped_or_the_call_repeated(name):
    world = gaussian(10, 80, population=20)
    target, references = world.hold_out(0)
    told = [replace(target, member=m) for m in (None, world.member[:1], ~world.member[:1])]
    scores = [run(name, t, references) for t in (*told, target)]
    assert all(np.array_equal(scores[0], other, equal_nan=True) for other in scores[1:])


@pytest.mark.parametrize("name", [n for n in NAMES if n not in (*TARGET_ALONE, *LEARNED, "vote")])
def test_attacks_do_not_depend_on_how_many_samples_fit_one_block(name, monkeypatch):
    from mia_nb.attacks import margins

    target, references = gaussian(10, 300, population=50, queries=3, query_kind="augment").hold_out(
        0
    )
    whole = run(name, target, references)
    monkeypatch.setattr(margins, "BLOCK", 1)
    assert np.allclose(whole, run(name, target, references), rtol=1e-11, atol=1e-11, equal_nan=True)


@pytest.mark.parametrize(
    "name",
    [
        "attack_r",
        "attack_r_lattice",
        "lira_global",
        "lira_shrunk",
        "lira_per_sample",
        "lira_offline",
        "nig",
        "nig_offline",
    ],
)
def test_moving_all_margins_of_a_sample_together_changes_no_score(name):
    target, references = gaussian(10, 200).hold_out(0)
    shift = np.random.default_rng(0).normal(0, 20, 200)
    moved = [replace(s, margin=s.margin + shift) for s in (target, references)]
    assert np.allclose(run(name, target, references), run(name, *moved), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "name",
    [
        "attack_r_lattice",
        "lira_global",
        "lira_shrunk",
        "lira_per_sample",
        "lira_offline",
        "nig",
        "nig_offline",
    ],
)
def test_scaling_all_margins_changes_no_score(name):
    target, references = gaussian(10, 200).hold_out(0)
    scaled = [replace(s, margin=37.0 * s.margin) for s in (target, references)]
    assert np.allclose(run(name, target, references), run(name, *scaled), rtol=1e-8, atol=1e-8)


def test_moving_all_log_confidences_of_a_sample_together_leaves_watson_unchanged():
    world = gaussian(8, 100)
    # log p = -softplus(-phi), moved
    phi = -np.log(np.expm1(world.loss + np.random.default_rng(0).uniform(0, 5, 100)))
    plain, moved = (
        attacks.reference.watson(*w.hold_out(0)) for w in (world, replace(world, margin=phi))
    )
    assert np.allclose(plain, moved, rtol=1e-9, atol=1e-9)


@EVERY
@pytest.mark.parametrize("size", [1.0, 500.0])
def test_extreme_margins_give_finite_scores(name, size):
    rng = np.random.default_rng(0)
    member = pairs(8, 60, 10)
    phi = rng.choice([-size, -0.1 * size, 0.0, 0.1 * size, size], size=(8, 1, 70)) + rng.normal(
        size=(8, 1, 70)
    )
    target, references = signals(phi, member, population=np.arange(70) >= 60).hold_out(0)
    assert np.isfinite(run(name, target, references)[:60]).all()


@EVERY
def test_equal_logits_everywhere_give_finite_scores_that_tell_nothing_about_a_sample(name):
    member = pairs(8, 60, 10)
    world = Signals.from_logits(
        np.zeros((8, 70, 5)), np.arange(70) % 5, member, population=np.arange(70) >= 60
    )
    score = run(name, *world.hold_out(0))[:60]
    assert np.isfinite(score).all()
    if name not in LEARNED:
        assert np.ptp(score) < 1e-9


@EVERY
def test_one_class_that_is_never_predicted_gives_finite_scores(name):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8, 120, 3)) - 60 * (np.arange(3) == 2)
    world = Signals.from_logits(
        logits, np.arange(120) % 3, pairs(8, 100, 20), population=np.arange(120) >= 100
    )
    assert np.isfinite(run(name, *world.hold_out(0))[:100]).all()


@EVERY
def test_two_samples_are_enough(name):
    phi = np.random.default_rng(0).normal(size=(8, 3))
    mask = np.array([[True, False, False], [False, True, False]] * 4)
    world = signals(
        phi, mask, labels=np.array([0, 1, 0]), population=np.array([False, False, True])
    )
    target, references = world.select(models=[0]), world.select(models=np.arange(2, 8))
    assert np.isfinite(run(name, target, references)[:2]).all()


def refused(name, models):
    """The attacks that one pair of references cannot carry."""
    return models == 4 and (
        name.startswith("lira") or name in ("nig_offline", "releases", "spikes")
    )


def null_z(name, models, worlds, *, keep_complement=False, **options):
    """Mean AUC over worlds without leak, as a z-score: exact mean 1/2, one target a world."""
    samples = 600
    aucs = []
    for seed in range(worlds):
        scores = attacks.score(
            name,
            gaussian(models, samples, delta=0.0, seed=seed, **options),
            targets=[0],
            keep_complement=keep_complement,
        )
        aucs.append(auc(scores.value[0], scores.member[0]))
    return (np.mean(aucs) - 0.5) / (null_se(samples // 2, samples // 2) / np.sqrt(worlds))


@EVERY
@pytest.mark.parametrize("models", [4, 8, 16, 64])
def test_where_nothing_leaks_the_auc_lies_in_its_99_percent_null_interval(name, models):
    if refused(name, models):
        with pytest.raises(ValueError, match="no variance estimate"):
            attacks.score(name, gaussian(models, 100, delta=0.0))
        return
    worlds = 2 if name in LEARNED or models == 64 else 8
    assert abs(null_z(name, models, worlds, population=60)) < 2.576


@pytest.mark.parametrize("name", ["lira", "lira_per_sample", "nig", "rmia", "vote", "attack_r"])
@pytest.mark.parametrize("draws", ["augment", "noise", "steps"])
def test_several_queries_leak_no_design_either(name, draws):
    assert abs(null_z(name, 8, 6, queries=3, query_kind=draws)) < 2.576


@pytest.mark.parametrize(("combine", "draws"), [("joint", "steps"), ("mean_sd", "noise")])
def test_the_joint_forms_leak_no_design(combine, draws):
    assert (
        abs(
            null_z(
                partial(attacks.likelihood.lira, combine=combine),
                8,
                6,
                queries=4,
                query_kind=draws,
            )
        )
        < 2.576
    )


@pytest.mark.parametrize(("name", "highest"), [("lira_global", 0.46), ("nig", 0.40)])
def test_a_kept_complementary_model_leaks_the_design_of_four_models(name, highest):
    world = gaussian(4, 4000, delta=0.0)
    scores = attacks.score(name, world, keep_complement=True)
    mean = np.mean([auc(v, m) for v, m in zip(scores.value, scores.member, strict=True)])
    assert mean < highest
    assert "complementary model kept: the design leaks membership" in scores.info["flags"]


def test_the_suite_leaves_out_what_the_references_cannot_support():
    per_sample, lattice = "lira_per_sample", "attack_r_lattice"
    for k in (1, 2, 4, 5, 15, 16, 31, 32, 100):
        names = set(attacks.suite(k))
        assert {"loss", "rmia", "correctness", "nig"} <= names and lattice not in names
        assert (per_sample in names) == (k >= 32)
        assert any(n.startswith("lira") for n in names) == (k >= 2)
        assert all(attacks.suite(k)[n] is attacks.ATTACKS[n] for n in names)
    assert set(attacks.suite(0)) == {"loss", "correctness", "attack_p"}
    assert [next(iter(attacks.suite(k))) for k in (1, 2, 5, 16, 32)] == [
        "rmia",
        "rmia",
        "rmia",
        "lira_smooth",
        "lira_smooth",
    ]
    assert next(iter(attacks.suite(0))) == "loss" and attacks.literature(0) == attacks.suite(0)
    assert list(attacks.literature(5))[: len(attacks.suite(5))] == list(attacks.suite(5))
    with pytest.raises(ValueError, match="k=-1"):
        attacks.suite(-1)


@pytest.mark.parametrize("k", [0, 1, 2, 5, 16, 32])
def test_every_suite_runs_on_the_pool_it_is_meant_for(k):
    world = gaussian(2 * k + 2, 60)
    for name, attack in attacks.suite(k).items():
        scores = attacks.score(attack, world, targets=[0])
        assert scores.info["attack"] == name and np.isfinite(scores.value).all()


def answers(quieter: float, leak: float = 0.0, seed: int = 0) -> Signals:
    """Eight noisy answers of 12 models: members get `leak` more margin, and noise smaller by the
    factor `quieter`.
    """
    member, rng = pairs(12, 600, seed=seed), np.random.default_rng([seed, 1])
    spread = np.where(member, quieter, 1.0)[:, None]
    phi = rng.normal(0, 1, 600) + leak * member[:, None] + rng.normal(0, 0.3, (12, 1, 600))
    return signals(phi + spread * rng.normal(size=(12, 8, 600)), member, query_kind="noise")


def test_the_joint_attack_sees_members_that_are_answered_with_less_noise_and_the_mean_does_not():
    world = answers(quieter=0.7)
    found = {name: attacks.score(name, world) for name in ("rmia", "lira_global", "lira_joint")}
    aucs = {name: auc(one.value.ravel(), one.member.ravel()) for name, one in found.items()}
    assert aucs["lira_joint"] > 0.7 and max(aucs["rmia"], aucs["lira_global"]) < 0.55


def test_the_joint_attack_finds_nothing_where_nothing_leaks_and_sees_a_plain_leak_too():
    null, leaky = (attacks.score("lira_joint", answers(1.0, leak, seed=3)) for leak in (0.0, 1.0))
    assert abs(auc(null.value.ravel(), null.member.ravel()) - 0.5) < 3 * null_se(
        300, 300
    ) / np.sqrt(6)
    assert auc(leaky.value.ravel(), leaky.member.ravel()) > 0.7


def test_the_joint_attack_is_among_those_of_the_literature_only_where_a_model_was_asked_often():
    assert "lira_joint" in attacks.literature(3, "noise", 4)
    for k, draws, queries in ((3, "noise", 3), (3, "dropout", 16), (1, "noise", 16)):
        assert "lira_joint" not in attacks.literature(k, draws, queries)
    with pytest.raises(ValueError, match="several differing queries"):
        attacks.score("lira_joint", gaussian(8, 60))
