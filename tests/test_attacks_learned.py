"""shokri and song_mittal: rules learned from the references."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attack_worlds import auc, gaussian, null_se, pairs, signals

from mia_nb import attacks
from mia_nb.types import Signals


def quadratic_threshold(values, member):
    """Smallest value with the best balanced accuracy, every value tried against every row."""
    best = (-1.0, 0.0)
    for tau in sorted(set(values)):
        gain = int((values[member] >= tau).sum()) * int((~member).sum()) + int(
            (values[~member] < tau).sum()
        ) * int(member.sum())
        if gain > best[0]:
            best = (gain, tau)
    return best[1]


@pytest.mark.parametrize("metric", ["confidence", "entropy", "modified"])
def test_thresholds_per_class_equal_the_quadratic_scan(metric):
    world = gaussian(8, 160)
    if metric == "entropy":
        world = replace(world, entropy=np.round(world.entropy, 2))  # ties
    target, references = world.hold_out(0)
    value = {
        "confidence": lambda s: s.log_p,
        "entropy": lambda s: -s.entropy,
        "modified": lambda s: -s.modified_entropy,
    }[metric]
    score = attacks.learned.song_mittal(target, references, metric=metric)
    for y in range(4):
        rows = references.labels == y
        tau = quadratic_threshold(
            value(references)[:, 0, rows].ravel(), references.member[:, rows].ravel()
        )
        assert np.allclose(score[rows], value(target)[0, 0, rows] - tau, rtol=1e-12, atol=1e-12)


def test_one_global_threshold_shifts_all_scores_alike():
    target, references = gaussian(8, 200).hold_out(0)
    score = attacks.learned.song_mittal(target, references, metric="confidence", per_class=False)
    tau = quadratic_threshold(references.log_p[:, 0].ravel(), references.member.ravel())
    assert np.allclose(score, target.log_p[0, 0] - tau, rtol=1e-12, atol=1e-12)


def test_a_thin_class_takes_the_global_threshold_and_says_so():
    world = gaussian(4, 200)
    labels = np.where(np.arange(200) < 5, 7, world.labels)
    target, references = (replace(s, labels=labels) for s in world.hold_out(0))
    with pytest.warns(UserWarning, match="1 class with under 20"):
        score = attacks.learned.song_mittal(target, references)
    everywhere = attacks.learned.song_mittal(target, references, per_class=False)
    assert np.array_equal(score[:5], everywhere[:5])
    assert not np.allclose(score[5:], everywhere[5:])


def test_a_class_constant_added_to_the_metric_changes_no_score():
    target, references = gaussian(8, 400).hold_out(0)
    offset = np.array([0.0, 3.0, 1.5, 7.0])[target.labels]
    moved = [replace(s, entropy=s.entropy + offset) for s in (target, references)]
    first, second = (
        attacks.learned.song_mittal(*pair, metric="entropy")
        for pair in ((target, references), moved)
    )
    assert np.allclose(first, second, rtol=0, atol=1e-12)


def test_uniform_and_certain_outputs_have_the_closed_form_entropies():
    for classes in (2, 5, 10):
        logits = np.zeros((3, 1, 60, classes))
        logits[:, :, 30:, 0] = 200.0
        member = pairs(4, 60)[1:]
        world = Signals.from_logits(logits, np.zeros(60, int), member)
        target, references = world.select(models=[0]), world.select(models=[1, 2])
        modified = (classes - 1) / classes * (np.log(classes) + np.log(classes / (classes - 1)))
        for metric, uniform in (
            ("modified", modified),
            ("entropy", np.log(classes)),
            ("confidence", np.log(classes)),
        ):
            score = attacks.learned.song_mittal(target, references, metric=metric)
            assert np.ptp(score[:30]) == 0 and np.ptp(score[30:]) == 0
            assert score[30] - score[0] == pytest.approx(uniform, abs=1e-12)


def test_a_constant_metric_scores_zero_everywhere():
    target, references = gaussian(6, 80).hold_out(0)
    flat = [
        replace(s, modified_entropy=np.full_like(s.modified_entropy, 0.3))
        for s in (target, references)
    ]
    assert (attacks.learned.song_mittal(*flat) == 0).all()


def test_the_auc_of_correctness_is_one_half_plus_half_the_gap():
    world = gaussian(4, 501, delta=2.0)
    scores = attacks.score("correctness", world)
    for value, member, (inside, outside) in zip(
        scores.value, scores.member, scores.accuracy, strict=True
    ):
        assert auc(value, member) == pytest.approx(0.5 + (inside - outside) / 2, abs=1e-12)


def test_song_mittal_averages_queries_and_takes_the_last_time_step():
    target, references = gaussian(6, 120, queries=3, query_kind="augment").hold_out(0)
    last = [s.select(queries=[2]) for s in (target, references)]
    steps = [replace(s, query_kind="steps") for s in (target, references)]
    assert np.array_equal(attacks.learned.song_mittal(*steps), attacks.learned.song_mittal(*last))
    mean = [
        replace(s.select(queries=[0]), modified_entropy=s.modified_entropy.mean(1, keepdims=True))
        for s in (target, references)
    ]
    assert np.array_equal(
        attacks.learned.song_mittal(target, references), attacks.learned.song_mittal(*mean)
    )


def leaking(models=6, samples=400, seed=0):
    return gaussian(models, samples, delta=1.5, difficulty=0.5, seed=seed)


@pytest.mark.parametrize("samples", [400, 2000])  # one classifier for all classes, one for each
def test_shokri_finds_a_planted_leak_and_repeats_itself_bit_for_bit(samples):
    world = leaking(samples=samples)
    target, references = world.hold_out(0)
    score = attacks.learned.shokri(target, references, seed=3)
    assert auc(score, world.member[0]) > 0.75
    assert np.array_equal(score, attacks.learned.shokri(target, references, seed=3))


def test_shokri_learns_nothing_from_permuted_labels_and_the_opposite_from_flipped_ones():
    world = leaking()
    target, references = world.hold_out(0)
    member = world.member[0]
    flipped = attacks.learned.shokri(target, replace(references, member=~references.member))
    assert auc(flipped, member) == pytest.approx(
        1 - auc(attacks.learned.shokri(target, references), member), abs=1e-9
    )
    rng = np.random.default_rng(0)
    aucs = [
        auc(
            attacks.learned.shokri(
                target, replace(references, member=rng.random(references.member.shape) < 0.5)
            ),
            member,
        )
        for _ in range(12)
    ]
    assert abs(np.mean(aucs) - 0.5) < 4 * np.std(aucs, ddof=1) / np.sqrt(12)


def test_shokri_refuses_signals_without_log_probabilities():
    target, references = leaking().hold_out(0)
    with pytest.raises(ValueError, match="shokri needs sorted log-probabilities"):
        attacks.learned.shokri(replace(target, top_log_p=target.top_log_p[..., :0]), references)


def test_shokri_draws_rows_evenly_over_classes_and_membership():
    from mia_nb.attacks.learned import _rows

    world = gaussian(8, 300, population=40)
    model, sample = _rows(world, 480, 0)
    assert len(set(zip(model, sample, strict=True))) == 480 and sample.max() < 300
    for y in range(4):
        of_class = world.labels[:300] == y
        for kind in (False, True):
            everyone = (world.member[:, :300][:, of_class] == kind).sum() / (8 * 300)
            drawn = ((world.labels[sample] == y) & (world.member[model, sample] == kind)).mean()
            assert abs(drawn - everyone) <= 1 / 480 + 1e-12
    assert len(_rows(world, 8 * 300, 0)[0]) == 8 * 300


def test_shokri_ranks_by_the_balanced_log_odds_of_a_shift_it_can_express():
    rng = np.random.default_rng(1)
    member = pairs(6, 3000)
    phi = rng.normal(size=member.shape) + 1.0 * member
    world = signals(phi, member, classes=2, labels=np.zeros(3000, int))
    target, references = world.hold_out(0)
    target, references = (
        replace(s, top_log_p=s.top_log_p * 0, correct=s.correct | True)
        for s in (target, references)
    )
    log_odds = target.margin[0, 0] - 0.5  # log N(phi; 1, 1) - log N(phi; 0, 1)
    assert np.abs(attacks.learned.shokri(target, references) - log_odds).max() < 0.2


def test_both_accept_references_on_other_samples_and_others_do_not():
    target, _ = leaking(2).hold_out(0)
    _, references = leaking(6, samples=300, seed=1).hold_out(0)
    member = leaking(2).member[0]
    for attack in (attacks.learned.shokri, attacks.learned.song_mittal):
        assert auc(attack(target, references), member) > 0.5 + 3 * null_se(200, 200)
    with pytest.raises(ValueError, match=r"target \(400 samples\) and references \(300\) differ"):
        attacks.reference.rmia(target, references)


def test_a_class_that_the_references_lack_falls_back_to_one_joint_classifier():
    world = leaking()
    target, references = world.hold_out(0)
    unknown = replace(target, labels=np.where(np.arange(400) < 9, 8, target.labels))
    score = attacks.learned.shokri(unknown, references)
    assert auc(score[:9], world.member[0, :9]) > 0.5


def test_references_that_are_members_only_teach_nothing():
    target, references = leaking().hold_out(0)
    with pytest.raises(ValueError, match="members and non-members"):
        attacks.learned.shokri(target, replace(references, member=references.member | True))
