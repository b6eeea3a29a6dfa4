"""The negative control passes where the design is sound, fires where it leaks by counting, and has
uniform p-values.
"""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kstest
from worlds import CLASSES, balanced, bernoulli, pairs, world

from mia_nb import attacks, metrics
from mia_nb.metrics.curve import auc_null_error
from mia_nb.metrics.null import _silenced as silenced
from mia_nb.metrics.null import holm
from mia_nb.metrics.pairs import redraw

FAST = {
    "loss": attacks.single.loss,
    "attack_r": attacks.reference.attack_r,
    "rmia": attacks.reference.rmia,
}
COUNTING = {name: attacks.ATTACKS[name] for name in ("lira_global", "nig")}


def rows(result, test, name):
    return result.table.query("test == @test and attack == @name").iloc[0]


@pytest.mark.parametrize("leak", [0.0, 1.0])
def test_pairs_pass_whether_or_not_the_models_leak(leak):
    result = metrics.self_test(world(8, leak=leak, population=50), FAST | COUNTING, n_resamples=20)
    assert result.passed and set(result.table["test"]) == {"design", "blind", "N1", "N2", "N3"}
    for name in (*FAST, *COUNTING):
        assert abs(rows(result, "N2", name)["value"] - 0.5) < 0.03
        assert (rows(result, "N2", name)["p"] <= 1 / 20) == (leak > 0)
        assert (rows(result, "N3", name)["value"] > 0.6) == (leak > 0)


def test_a_kept_complementary_model_is_found_by_every_part_of_the_test():
    result = metrics.self_test(
        world(4, 1000), FAST | COUNTING, n_resamples=30, keep_complement=True
    )
    assert not result.passed
    assert (result.table.query("test == 'design'")["verdict"].str.startswith("FAIL")).all()
    for name in COUNTING:
        assert rows(result, "N1", name)["verdict"] == rows(result, "N2", name)["verdict"] == "FAIL"
        assert rows(result, "N2", name)["value"] < 0.46
    for name in FAST:  # differences and ratios of means do not count references
        assert rows(result, "N1", name)["verdict"] == rows(result, "N2", name)["verdict"] == "pass"


def test_balanced_leave_one_out_leaks_the_published_amount():
    result = metrics.self_test(
        world(4, 2000, design=balanced, spread=0.0), COUNTING, n_resamples=30
    )
    assert not result.passed and rows(result, "design", "count of member references")["value"] == 0
    assert rows(result, "N2", "lira_global")["value"] == pytest.approx(0.414, abs=0.012)
    assert rows(result, "N1", "lira_global")["verdict"] == "FAIL"


@pytest.mark.parametrize("leak", [0.0, 3.0])
def test_independent_coins_pass_whether_or_not_the_models_leak(leak):
    result = metrics.self_test(
        world(10, 500, leak=leak, design=bernoulli), FAST | COUNTING, n_resamples=20
    )
    assert result.passed
    assert abs(rows(result, "N2", "rmia")["value"] - 0.5) < 0.02
    for name in FAST:
        assert (rows(result, "N3", name)["value"] > 0.6) == (leak > 0)


def test_an_inverted_score_is_flagged_and_not_turned_around():
    result = metrics.self_test(
        world(8, leak=1.0),
        {"upside down": lambda target, references: -attacks.reference.rmia(target, references)},
        n_resamples=10,
    )
    row = rows(result, "N3", "upside down")
    assert (
        row["value"] < 0.4
        and row["verdict"] == "flag: inverted or leaking design"
        and result.passed
    )


def test_an_attack_that_refuses_is_listed_and_the_rest_runs():
    def needy(target, references):
        raise ValueError("wants 64 references")

    result = metrics.self_test(
        world(4, 100), {"needy": needy, "loss": attacks.single.loss}, n_resamples=5
    )
    assert rows(result, "run", "needy")["verdict"] == "refused: wants 64 references"
    view = result.readable()
    assert len(view) == len(result.table) and not view.isna().any(axis=None)
    assert {"not run", "membership redrawn", "true membership"} < set(view["test"])
    assert {"needy", "loss threshold"} < set(view["attack"]) and "-" in set(view["value"])
    with pytest.raises(ValueError, match=r"no attack can run.*64 references"):
        metrics.self_test(world(4, 100), {"needy": needy}, n_resamples=5)


def test_hidden_membership_is_refused():
    with pytest.raises(ValueError, match="hide membership"):
        metrics.self_test(replace(world(4, 50), member=None), FAST)


def test_names_do_as_well_as_functions_and_one_redraw_is_refused():
    signals = world(6, 100)
    named = metrics.self_test(signals, ["loss", "rmia"], n_resamples=5).table
    assert named.equals(
        metrics.self_test(
            signals, {n: attacks.ATTACKS[n] for n in ("loss", "rmia")}, n_resamples=5
        ).table
    )
    with pytest.raises(ValueError, match="n_resamples=1"):
        metrics.self_test(signals, FAST, n_resamples=1)


def test_few_redraws_judge_as_strictly_as_many():
    failed = [
        not metrics.self_test(
            world(8, 200, leak=2.0, seed=seed), {"loss": attacks.single.loss}, n_resamples=3
        ).passed
        for seed in range(30)
    ]
    assert sum(failed) == 0


def test_a_blind_target_is_scored_as_in_signals_that_are_silenced_whole_without_a_copy_of_the_others():
    signals = world(8, 300, leak=1.0, population=20)
    cubes = {
        name: getattr(signals, name).copy()
        for name in ("margin", "entropy", "modified_entropy", "correct", "top_log_p")
    }
    for name in ("margin", "entropy", "modified_entropy"):
        cubes[name][3] = cubes[name][3].mean()
    cubes["correct"][3], cubes["top_log_p"][3] = True, cubes["top_log_p"][3].mean(0)
    whole, alone = replace(signals, **cubes), silenced(signals, 3)
    for name in ("rmia", "lira_global", "vote", "base", "song_mittal"):
        expected = attacks.score(name, whole, targets=[3]).value
        assert np.array_equal(attacks.score(name, alone, signals).value, expected), name
    large = world(60, 4000)
    tracemalloc.start()
    silenced(large, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < large.margin.nbytes / 4


def test_same_seed_same_table_and_large_pools_are_thinned():
    signals = world(6, 300)
    first, again = (
        metrics.self_test(signals, FAST, n_resamples=5, seed=1, samples=200).table for _ in range(2)
    )
    assert first.equals(again)
    assert rows(metrics.self_test(signals, FAST, n_resamples=5, samples=100), "blind", "loss")[
        "error"
    ] == pytest.approx(auc_null_error(50, 50), rel=0.1)


@pytest.mark.slow
def test_redraw_p_values_are_uniform_when_nothing_leaks():
    # one attack that compares with references, and one that counts them
    tested = {name: attacks.ATTACKS[name] for name in ("rmia", "lira_global")}
    results = [
        metrics.self_test(world(6, 80, seed=seed), tested, n_resamples=19) for seed in range(60)
    ]
    for name in tested:
        p = np.array([rows(result, "N2", name)["p"] for result in results])
        dithered = p - np.random.default_rng(0).random(60) / 20  # p lives on a grid of 1/20
        assert kstest(dithered, "uniform").pvalue > 0.01


@pytest.mark.parametrize("design", [pairs, balanced, bernoulli])
def test_redrawn_masks_keep_the_design(design):
    signals = world(8, 101, population=20, design=design)
    old, audited = signals.member, ~signals.population
    for mask in redraw(signals, 5, np.random.default_rng(1)):
        assert not mask[:, ~audited].any() and (mask != old).any()
        if design is pairs:
            assert (mask[::2, audited] == ~mask[1::2, audited]).all()
            for label in range(CLASSES):
                of_class = mask[:, audited & (signals.labels == label)]
                assert np.abs(of_class.sum(1) - (~of_class).sum(1)).max() <= 1
        elif design is balanced:
            assert (mask[:, audited].sum(0) == 4).all()
        else:
            assert (mask.sum(1) == old.sum(1)).all()


def test_redrawn_pairs_include_each_sample_half_of_the_time():
    masks = np.stack(list(redraw(world(4, 41), 2000, np.random.default_rng(0))))
    assert np.abs(masks.mean(0) - 0.5).max() < 4.5 * 0.5 / np.sqrt(2000)
    together = (masks[:, 0] == masks[:, 2]).mean(0)  # pairs are independent of each other
    assert np.abs(together - 0.5).max() < 4.5 * 0.5 / np.sqrt(2000)


def test_rows_that_share_a_mask_are_redrawn_together():
    signals = world(4, 60)
    doubled = signals.select(models=[0, 1, 0, 2, 3])
    for mask in redraw(doubled, 3, np.random.default_rng(0)):
        assert (
            (mask[0] == mask[2]).all()
            and (mask[0] == ~mask[1]).all()
            and (mask[3] == ~mask[4]).all()
        )


def test_holm_steps_down():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.9, 0.6]), [1, 1])


@pytest.mark.parametrize("models", [4, 8, 16, pytest.param(64, marks=pytest.mark.slow)])
def test_pooled_scores_of_every_attack_tell_nothing_in_a_null_world_of_pairs(models):
    signals = world(models, 400, population=60, seed=models)
    error = auc_null_error(200, 200) / np.sqrt(models / 2)
    told = {}
    for name, attack in attacks.ATTACKS.items():
        try:
            scores = attacks.score(attack, signals)
        except ValueError:
            needs_a_variance = "lira" in name or name in ("nig_offline", "releases", "spikes")
            # no answers; or too few references for a variance
            assert name == "lira_joint" or (models == 4 and needs_a_variance)
            continue
        told[name] = metrics.auc(scores.value.ravel(), scores.member.ravel())
    assert len(told) >= 8
    assert {name: auc for name, auc in told.items() if abs(auc - 0.5) > 3 * error} == {}
