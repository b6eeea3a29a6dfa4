"""score: which references a target gets, and what is recorded."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
from attack_worlds import gaussian, pairs, signals

from mia_nb import attacks

pytestmark = pytest.mark.filterwarnings("ignore:LiRA has")


@pytest.mark.parametrize("name", ["loss", "rmia_count", "lira_shrunk", "nig", "shokri", "vote"])
def test_score_is_the_attack_on_every_target_with_its_pair_held_out(name):
    world = gaussian(8, 60, population=20)
    scores = attacks.score(name, world)
    for t in range(8):
        alone = attacks.ATTACKS[name](*world.hold_out(t))[:60]
        np.testing.assert_allclose(scores.value[t], alone, rtol=1e-12, atol=1e-12)
    assert np.array_equal(scores.member, world.member[:, :60])


@pytest.mark.filterwarnings("error")
def test_nig_refuses_two_models_without_pairs():
    member = np.random.default_rng(0).random((2, 50)) < 0.5
    coins = signals(np.random.default_rng(1).normal(size=member.shape), member)
    with pytest.raises(ValueError, match="nig: no sample has both an IN and an OUT reference"):
        attacks.score("nig", coins)


def test_an_attack_that_gives_nan_is_not_said_to_lack_references():
    def divides(target, references=None):
        return np.where(np.arange(50) < 5, np.nan, target.margin[0, 0])

    scores = attacks.score(divides, gaussian(8, 50))
    assert "40 of 400 scores missing: the attack gave NaN" in scores.info["flags"]


def test_the_order_of_targets_does_not_matter():
    world = gaussian(10, 50)
    whole, some = attacks.score("nig", world), attacks.score("nig", world, targets=[7, 0, 4, 0])
    assert np.array_equal(some.value, whole.value[[7, 0, 4, 0]])
    assert some.targets.tolist() == [7, 0, 4, 0] and some.pair.tolist() == [0, 1, 2, 1]


def test_one_target_may_be_given_as_a_number():
    world = gaussian(8, 50)
    assert np.array_equal(
        attacks.score("rmia", world, targets=3).value, attacks.score("rmia", world).value[3:4]
    )


def test_scoring_leaves_the_signals_as_they_were():
    world, copy = gaussian(8, 50), gaussian.__wrapped__(8, 50)
    attacks.score("rmia", world, world)
    for field in fields(world):
        assert np.array_equal(getattr(world, field.name), getattr(copy, field.name)), field.name


def test_an_attack_of_ones_own_may_write_into_what_it_is_given():
    def in_place(target, references):
        for given in (target, references):
            for name in ("margin", "entropy", "correct", "top_log_p", "labels", "population"):
                array = getattr(given, name)
                array[...] = 0
        references.member[...] = False
        return np.zeros(46)

    def centred(target, references):
        margin = target.margin[0, 0]
        margin -= references.margin[:, 0].mean(0)  # a view: this writes into the signals
        references.margin[...] += 1
        return margin

    world = gaussian.__wrapped__(8, 40, population=6)
    before = gaussian.__wrapped__(8, 40, population=6)
    attacks.score(in_place, world)
    scores = [attacks.score(centred, world) for _ in range(2)]
    for field in fields(world):
        now, then = getattr(world, field.name), getattr(before, field.name)
        assert np.array_equal(now, then), field.name
    for t in range(8):
        target, references = before.hold_out(t)
        wanted = target.margin[0, 0] - references.margin[:, 0].mean(0)
        for found in scores:
            np.testing.assert_allclose(found.value[t], wanted[:40], atol=1e-12)


def test_the_references_that_an_attack_sees_are_the_pool_without_the_pair():
    world = gaussian(8, 40, population=6)
    seen = []

    def spy(target, references):
        seen.append((target.member, references.member.copy(), references.margin.copy()))
        return np.zeros(46)

    attacks.score(spy, world)
    for t, (member, masks, margins) in enumerate(seen):
        rows = [m for m in range(8) if m // 2 != t // 2]
        assert member is None
        assert np.array_equal(masks, world.member[rows]) and np.array_equal(
            margins, world.margin[rows]
        )


def test_pairs_are_numbered_by_content_wherever_complementary_models_stand():
    world = gaussian(8, 40).select(models=[0, 2, 4, 1, 3, 6, 5, 7])
    assert attacks.score("loss", world).pair.tolist() == [0, 1, 2, 0, 1, 3, 2, 3]


def test_accuracy_and_loss_are_those_of_members_and_of_non_members():
    world = gaussian(4, 40, queries=3, query_kind="augment", population=8)
    scores = attacks.score("loss", world)
    for t in range(4):
        for column, inside in enumerate((True, False)):
            rows = np.flatnonzero((world.member[t] == inside) & ~world.population)
            assert scores.accuracy[t, column] == pytest.approx(
                np.mean([world.correct[t, q, i] for q in range(3) for i in rows])
            )
            assert scores.loss[t, column] == pytest.approx(
                np.mean([world.loss[t, q, i] for q in range(3) for i in rows])
            )
    # aligned margins are no longer log-odds
    assert np.isnan(attacks.score("loss", attacks.align(world)).loss).all()
    last = attacks.score("loss", replace(world, query_kind="steps"))
    assert last.loss[0, 0] == pytest.approx(world.loss[0, 2, world.member[0]].mean())
    assert last.accuracy[0, 0] == pytest.approx(world.correct[0, 2, world.member[0]].mean())


def test_references_of_another_pool_lose_the_targets_mask_and_its_complement():
    world = gaussian(8, 50)
    other = replace(gaussian(8, 50, seed=3), member=world.member, labels=world.labels)
    poisoned = other.margin.copy()
    poisoned[2:4] = 1e9  # same masks as target 2 and its complement
    scores = attacks.score("rmia", world, replace(other, margin=poisoned), targets=[2])
    rows = [0, 1, 4, 5, 6, 7]
    alone = attacks.reference.rmia(world.select(models=[2]), other.select(models=rows))
    np.testing.assert_allclose(scores.value[0], alone, rtol=1e-12, atol=1e-12)
    assert scores.info["k"] == 3


def test_an_independent_target_keeps_all_references():
    target = gaussian(2, 50, seed=9)
    pool = gaussian(6, 50, seed=1)
    scores = attacks.score("rmia", target, replace(pool, labels=target.labels))
    assert scores.info["k"] == 3 and scores.pair.tolist() == [0, 0]


def test_keeping_the_complementary_model_adds_it_to_the_references_and_flags_every_number():
    world = gaussian(4, 50)
    scores = attacks.score("attack_r", world, keep_complement=True)
    assert np.allclose(scores.value[0], world.margin[0, 0] - world.margin[1:, 0].mean(0))
    assert scores.info["flags"] == ["complementary model kept: the design leaks membership"]


def test_without_references_left_an_attack_that_needs_them_says_so_and_others_run():
    world = gaussian(2, 50)
    assert attacks.score("loss", world).info["k"] == 0
    with pytest.raises(ValueError, match="rmia needs reference models and none are left"):
        attacks.score("rmia", world)


def bernoulli(models, samples, seed=0):
    world = gaussian(models, samples, seed=seed)
    return replace(world, member=np.random.default_rng(seed).random((models, samples)) < 0.5)


@pytest.mark.parametrize("name", ["rmia", "lira_shrunk", "nig", "watson"])
def test_in_a_bernoulli_design_samples_without_a_side_are_unscored_and_a_flag_counts_them(name):
    world = bernoulli(6, 300)
    scores = attacks.score(name, world, targets=[0])
    references = world.member[1:]
    lacking = ~(~references).any(0) | (~references.any(0) & (name != "watson"))
    sides = np.minimum(references.sum(0), (~references).sum(0))
    assert scores.info["k"] == int(np.median(sides)) == 2
    assert lacking.any() and np.array_equal(np.isnan(scores.value[0]), lacking)
    assert (
        f"{lacking.sum()} of 300 scores missing: no reference on one side" in scores.info["flags"]
    )


def test_a_balanced_design_without_pairs_is_flagged():
    world = gaussian(6, 100)
    member = np.random.default_rng(0).random((6, 100)).argsort(0) < 3
    scores = attacks.score("lira_global", replace(world, member=member))
    assert "balanced design without pairs: reference counts leak membership" in scores.info["flags"]
    assert attacks.score("rmia", world).info["flags"] == []


def test_info_names_the_attack_its_options_and_its_queries():
    world = replace(gaussian(6, 40, queries=3, query_kind="augment"), info={"pool": "abc"})
    info = attacks.score("lira_global", world).info
    assert info["attack"] == "lira_global" and info["options"] == {"variance": "global"}
    assert (info["k"], info["queries"], info["draws"], info["combine"]) == (2, 3, "augment", "llr")
    assert info["keys"] == {"target": "abc", "references": "abc"}
    assert info["flags"] == [
        "LiRA has 2 references on a side: RMIA and Student-t LiRA are steadier below 4"
    ]
    assert (
        attacks.score(partial(attacks.likelihood.lira, variance="global"), world).info["attack"]
        == "lira_global"
    )
    custom = attacks.score(partial(attacks.reference.rmia, a=0.6, combine="margin"), world).info
    assert custom["attack"] == "rmia(a=0.6, combine='margin')" and custom["combine"] == "margin"
    assert attacks.score("rmia", world).info["combine"] == "logmeanp"


def test_bad_requests_are_refused_in_one_line():
    world = gaussian(6, 40)
    with pytest.raises(ValueError, match="unknown attack 'rmai'; did you mean 'rmia'"):
        attacks.score("rmai", world)
    with pytest.raises(ValueError, match="membership"):
        attacks.score("rmia", replace(world, member=None))
    with pytest.raises(ValueError, match=r"targets=\[0, 6\]: wanted some of the rows 0\.\.5"):
        attacks.score("rmia", world, targets=[0, 6])
    with pytest.raises(ValueError, match="one target"):
        attacks.reference.rmia(world, world)
    with pytest.raises(ValueError, match="target was queried 1 times, the references 3 times"):
        attacks.score(
            "rmia",
            world,
            replace(gaussian(6, 40, queries=3, query_kind="augment"), labels=world.labels),
        )
    other = gaussian(6, 30)
    with pytest.raises(ValueError, match="only shokri and song_mittal learn from other samples"):
        attacks.score("rmia", world, other)
    assert attacks.score("song_mittal", world, other).value.shape == (6, 40)


@pytest.mark.parametrize("all_or_none", [True, False])
def test_references_that_saw_all_or_none_of_the_audited_samples_are_refused(all_or_none):
    world = gaussian(6, 40, population=10)
    member = world.member.copy()
    member[5, :40] = all_or_none
    with pytest.raises(ValueError, match=r"reference models \[5\] saw none or all"):
        attacks.score("rmia", replace(world, member=member), targets=[0])
    assert np.isfinite(attacks.score("rmia", world, targets=[0]).value).all()


def test_masks_are_compared_on_audited_columns_only():
    world = gaussian(6, 40, population=10)
    member = world.member.copy()
    member[1, 40:] = True  # as in a pool that was trained on the target's population
    scores = attacks.score("rmia", world, replace(world, member=member), targets=[0])
    assert scores.info["k"] == 2
    assert pairs(6, 40)[0].tolist() == scores.member[0].tolist()


def test_two_readouts_of_spiking_networks_are_flagged_as_two_scales():
    world = gaussian(8, 40)
    mean, total = (replace(world, info={**world.info, "readout": way}) for way in ("mean", "sum"))
    assert not attacks.score("rmia", mean, mean).info["flags"]
    assert "two scales" in attacks.score("rmia", total, mean).info["flags"][0]


def test_references_that_were_queried_by_another_plan_are_flagged_with_what_differs():
    world = gaussian(8, 40, queries=3, query_kind="dropout")
    plan = {
        "queries": 3,
        "input_dropout": 0.3,
        "augment": False,
        "seed": 0,
        "noise": None,
        "temperature": 1.0,
    }

    def flags(target, references, **shape):
        ours, theirs = (replace(world, info=plan | changes) for changes in (target, references))
        return attacks.score("attack_r", ours, theirs).info["flags"]

    assert (
        flags({}, {}) == flags({"noise": False}, {"mask_scope": "query", "per_step": False}) == []
    )
    assert flags({"mask_scope": "step"}, {}) == [
        "targets queried with mask_scope step, references with query: not one plan"
    ]
    assert flags({}, {"per_step": "instant"}) == [
        "targets queried with per_step False, references with instant: not one plan"
    ]
    for name, value in {
        "input_dropout": 0.5,
        "augment": "flip",
        "seed": 1,
        "noise": True,
        "temperature": 2.0,
    }.items():
        expected = (
            f"targets queried with {name} {plan[name]}, references with {value}: not one plan"
        )
        assert flags({}, {name: value}) == [expected]
    assert len(flags({"seed": 1, "mask_scope": "step"}, {})) == 2
    unsaid = replace(world, info={})
    assert attacks.score("attack_r", unsaid, replace(world, info=plan)).info["flags"] == []


def test_a_plan_has_as_many_queries_as_were_kept():
    many = replace(gaussian(8, 40, queries=3, query_kind="dropout"), info={"queries": 3})
    few = replace(many.select(queries=slice(0, 2)), info={"queries": 2})
    assert attacks.score("rmia", few, many.select(queries=slice(0, 2))).info["flags"] == []
    flags = attacks.score(lambda target, references: np.zeros(40), few, many).info["flags"]
    # the attacks here refuse it
    assert flags == ["targets queried with queries 2, references with 3: not one plan"]


def test_outputs_after_every_time_step_are_flagged_as_a_stronger_attacker():
    world = gaussian(8, 40, queries=3, query_kind="steps")
    assert attacks.score("rmia", world).info["flags"] == [
        "outputs after every time step: a stronger attacker"
    ]
    assert attacks.score("rmia", replace(world, query_kind="dropout")).info["flags"] == []
