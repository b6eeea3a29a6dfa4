"""Options and thresholds are chosen on references alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from worlds import world

from mia_nb import attacks, metrics
from mia_nb.metrics.curve import balanced_accuracy


def blinded(signals, rows):
    """The signals with everything the given models answered replaced by NaN."""
    cubes = {
        name: getattr(signals, name).copy()
        for name in ("margin", "entropy", "modified_entropy", "top_log_p")
    }
    for cube in cubes.values():
        cube[rows] = np.nan
    return replace(signals, **cubes)


def louder(signals, factor, seed):
    """The same models queried with more noise: a worse option."""
    noise = factor * np.random.default_rng(seed).normal(size=signals.margin.shape)
    return replace(signals, margin=signals.margin + noise)


def test_choosing_never_reads_the_excluded_target_or_its_complementary_model():
    plain = world(10, 200, leak=1.0)
    candidates = {"p=0": plain, "noisy": louder(plain, 1.0, 1)}
    seen = metrics.choose(candidates, attacks.reference.rmia, exclude=3)
    unseen = metrics.choose(
        {name: blinded(one, [2, 3]) for name, one in candidates.items()},
        attacks.reference.rmia,
        exclude=3,
    )
    assert seen.best == unseen.best and seen.table.equals(unseen.table)
    assert (seen.table["pseudo_targets"] == 8).all()
    several = metrics.choose(
        {name: blinded(one, [2, 3, 6, 7]) for name, one in candidates.items()},
        attacks.reference.rmia,
        exclude=[3, 6],
    )
    assert (several.table["pseudo_targets"] == 6).all() and several.table["value"].notna().all()


def test_a_refinement_must_earn_its_place():
    plain = world(12, 300, leak=1.0)
    alike = {"p=0": plain, "p=0.01": louder(plain, 0.01, 1), "p=0.1": louder(plain, 0.02, 2)}
    assert metrics.choose(alike, attacks.reference.rmia, exclude=0).best == "p=0"
    better = {"p=0": louder(plain, 3.0, 1), "p=0.01": plain}
    choice = metrics.choose(better, attacks.reference.rmia, exclude=0)
    assert choice.best == "p=0.01" and not choice.table.loc["p=0", "within_one_error"]


def test_candidates_may_bring_their_own_attack_and_the_objective_is_free():
    plain = world(8, 300, leak=1.0)
    choice = metrics.choose(
        {"loss": (plain, attacks.single.loss), "rmia": (plain, attacks.reference.rmia)},
        None,
        exclude=0,
        objective="tpr@0.1",
    )
    references = plain.select(models=range(2, 8))
    scores = attacks.score(attacks.reference.rmia, references)
    values = [
        metrics.tpr_at(*row, 0.1).tpr for row in zip(scores.value, scores.member, strict=True)
    ]
    assert choice.best == "rmia" and choice.table.loc["rmia", "value"] == pytest.approx(
        np.mean(values)
    )
    pair_means = np.reshape(values, (3, 2)).mean(1)
    assert choice.table.loc["rmia", "error"] == pytest.approx(pair_means.std(ddof=1) / np.sqrt(3))


def test_choosing_needs_two_pairs_of_references_one_pool_and_a_known_objective():
    with pytest.raises(ValueError, match="less than 2 pairs"):
        metrics.choose({"p=0": world(4, 100)}, attacks.reference.rmia, exclude=0)
    with pytest.raises(ValueError, match="another membership mask"):
        metrics.choose(
            {"a": world(8, 100), "b": world(8, 100, seed=1)}, attacks.reference.rmia, exclude=0
        )
    with pytest.raises(ValueError, match="objective='accuracy'"):
        metrics.choose(
            {"a": world(8, 100)}, attacks.reference.rmia, exclude=0, objective="accuracy"
        )
    with pytest.raises(ValueError, match=r"objective='tpr@1%' is not one of auc"):
        metrics.choose({"a": world(8, 100)}, attacks.reference.rmia, exclude=0, objective="tpr@1%")
    with pytest.raises(ValueError, match="hide membership"):
        metrics.choose(
            {"a": replace(world(8, 100), member=None)}, attacks.reference.rmia, exclude=0
        )


def test_a_threshold_from_other_samples_is_refused():
    with pytest.raises(ValueError, match="on the same images"):
        metrics.reference_threshold(world(6, 100), attacks.learned.shokri, world(6, 80))


def test_reference_thresholds_equal_a_loop_over_pseudo_targets():
    signals = world(6, 200, leak=1.0, population=30)
    table = metrics.reference_threshold(signals, attacks.reference.rmia, targets=[1], fpr=0.1)
    audited, pooled = ~signals.population, []
    for pseudo, complement in ((2, 3), (3, 2), (4, 5), (5, 4)):
        rest = [row for row in range(2, 6) if row not in (pseudo, complement)]
        score = attacks.reference.rmia(
            replace(signals.select(models=[pseudo]), member=None), signals.select(models=rest)
        )
        pooled.extend(score[audited & ~signals.member[pseudo]])
    target = attacks.reference.rmia(
        replace(signals.select(models=[1]), member=None), signals.select(models=range(2, 6))
    )[audited]
    member, threshold = signals.member[1, audited], table["threshold"][0]
    assert np.sum(np.array(pooled) >= threshold) == np.floor(0.1 * len(pooled))
    assert table["fpr_realised"][0] == np.mean(target[~member] >= threshold)
    assert table["tpr"][0] == np.mean(target[member] >= threshold)
    assert table["ratio"][0] == pytest.approx(table["fpr_realised"][0] / 0.1)


def test_the_threshold_reads_neither_the_target_nor_its_complementary_model():
    signals = world(8, 200, leak=1.0)
    flipped = replace(signals, member=signals.member.copy())
    flipped.member[:2] = ~flipped.member[:2]
    shuffled = replace(signals, margin=signals.margin.copy())
    shuffled.margin[:2] = np.random.default_rng(0).normal(size=shuffled.margin[:2].shape)
    wanted = metrics.reference_threshold(signals, attacks.reference.rmia, targets=[0, 1])[
        "threshold"
    ]
    for other in (flipped, shuffled):
        assert metrics.reference_threshold(other, attacks.reference.rmia, targets=[0, 1])[
            "threshold"
        ].equals(wanted)


def test_realised_rates_come_close_to_the_nominal_one_and_misses_are_flagged():
    signals = world(10, 2000, leak=1.0)
    table = metrics.reference_threshold(signals, attacks.reference.rmia, fpr=0.1)
    assert (
        table["ratio"].between(0.7, 1.4).all() and (table["flag"] == "").all() and len(table) == 10
    )
    shifted = replace(
        signals, margin=signals.margin + np.where(np.arange(10) < 2, 6.0, 0.0)[:, None, None]
    )
    assert metrics.reference_threshold(shifted, attacks.single.loss, targets=[0], fpr=0.1)["flag"][
        0
    ].startswith("realised FPR is")


def test_without_a_wanted_fpr_the_threshold_maximises_balanced_accuracy():
    signals = world(8, 1000, leak=1.0)
    table = metrics.reference_threshold(signals, attacks.reference.rmia, fpr=None, targets=[0, 1])
    scores = attacks.score(attacks.reference.rmia, signals, targets=[0, 1])
    for row in range(2):
        oracle = balanced_accuracy(scores.value[row], scores.member[row])
        assert oracle - 0.03 < table["balanced_accuracy"][row] <= oracle
    assert table["ratio"].isna().all() and (table["flag"] == "").all()


def test_tied_scores_never_exceed_the_wanted_rate_on_the_references():
    signals = world(6, 200, leak=1.0)
    lattice = partial(attacks.reference.attack_r, form="lattice")
    threshold = metrics.reference_threshold(signals, lattice, targets=[0], fpr=0.1)["threshold"][0]
    scores = attacks.score(lattice, signals.select(models=range(2, 6)))
    assert (scores.value[~scores.member] >= threshold).mean() <= 0.1


def test_references_may_be_another_family_trained_on_the_same_masks():
    signals = world(8, 300, leak=1.0)
    others = louder(signals, 0.1, 3)
    table = metrics.reference_threshold(
        signals, attacks.reference.rmia, others, targets=[0], fpr=0.1
    )
    unseen = metrics.reference_threshold(
        signals, attacks.reference.rmia, blinded(others, [0, 1]), targets=[0], fpr=0.1
    )
    assert table.equals(unseen) and np.isfinite(table["threshold"][0])


def test_importing_metrics_leaves_torch_out():
    code = "import sys, mia_nb.metrics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
