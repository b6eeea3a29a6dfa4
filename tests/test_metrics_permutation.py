"""The permutation test behind the audit of one finished model: exact without a leak, and where it
finds one.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mia_nb.metrics.permutation import SHARES, membership_test, pure_units


def test_over_all_deals_of_few_samples_p_is_small_no_more_often_than_it_says():
    """4 + 4 samples: each of the 70 deals in turn is the true one."""
    rng = np.random.default_rng(0)
    loss = rng.normal(size=8)
    scores = {"loss": loss, "other": loss**2}
    p = []
    for inside in itertools.combinations(range(8), 4):
        member = np.isin(np.arange(8), inside)
        p.append(membership_test(scores, member, means={"loss": loss}, permutations=499).p)
    for level in (0.025, 0.1, 0.5):
        assert np.mean(np.array(p) <= level) <= level + 0.02  # deals are drawn, not listed


def test_p_counts_the_true_deal_and_is_never_zero():
    member = np.arange(200) < 100
    evidence = membership_test({"loss": member + 0.0}, member, permutations=99)
    assert evidence.p == pytest.approx(1 / 100)


def test_an_attack_given_twenty_times_costs_nothing():
    rng = np.random.default_rng(1)
    member = np.arange(300) < 150
    score = rng.normal(size=300) + 0.3 * member
    alone = membership_test({"loss": score}, member)
    often = membership_test({f"loss {i}": score + 0 for i in range(20)}, member)
    assert often.p == alone.p


def test_a_few_wholly_exposed_members_decide_by_their_tail():
    rng = np.random.default_rng(2)
    score = rng.normal(size=1000)
    score[:25] += 40
    evidence = membership_test({"loss": score}, np.arange(1000) < 500, means={"loss": -score})
    assert evidence.p <= 0.005 and evidence.part == "tail"
    assert evidence.top_members >= evidence.top - 1 > 5


def test_the_mean_that_decides_is_named_and_what_says_nothing_is_not():
    rng = np.random.default_rng(3)
    member = np.arange(400) < 200
    means = {"noise": rng.normal(size=400), "loss": rng.normal(size=400) + 0.6 * member}
    evidence = membership_test({"none": rng.normal(size=400)}, member, means=means)
    assert evidence.part == "loss" and evidence.mean == "loss" and evidence.p <= 0.01


def test_whole_groups_change_sides_where_they_are_units():
    """20 groups of ten: the group decides the score, so that samples alone would accuse."""
    accused = {"samples": 0, "groups": 0}
    group = np.repeat(np.arange(20), 10)
    member = np.arange(200) < 100
    for seed in range(60):
        score = np.random.default_rng([4, seed]).normal(size=20)[group]
        for name, units in {"samples": None, "groups": pure_units(group, member)}.items():
            p = membership_test({"loss": score}, member, units=units, permutations=399).p
            accused[name] += p <= 0.025
    assert accused["samples"] > 15 and accused["groups"] <= 5  # 1.5 expected of groups


def test_the_shares_of_the_level_add_up_to_all_of_it():
    assert sum(SHARES.values()) == 1


def test_units_on_both_sides_and_one_side_alone_are_refused():
    member = np.arange(6) < 3
    with pytest.raises(ValueError, match="samples on both sides"):
        membership_test({"loss": np.arange(6.0)}, member, units=np.array([0, 0, 1, 1, 2, 2]))
    with pytest.raises(ValueError, match="one side"):
        membership_test({"loss": np.arange(6.0)}, np.ones(6, bool))
