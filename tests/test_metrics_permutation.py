"""The permutation test behind the audit of one finished model: exact without a leak, and where it
finds one.
"""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from scipy.stats import t as student

from mia_nb.auditing.decision import groups_among_largest, loss_gap
from mia_nb.auditing.sentences import loss_words, tail_words, threshold_words
from mia_nb.metrics.curve import clopper_pearson
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


@pytest.mark.parametrize("unscored_side", [True, False])
def test_members_among_the_largest_scores_are_counted_where_some_samples_are_not_scored(
    unscored_side,
):
    rng = np.random.default_rng(4)
    member = np.arange(1000) < 500
    score = rng.normal(size=1000)
    score[:9] += 40
    score[(rng.random(1000) < 0.6) & (member == unscored_side) & (np.arange(1000) > 20)] = np.nan
    evidence = membership_test({"a": score}, member)
    largest = np.argsort(-np.nan_to_num(score, nan=-np.inf))[: evidence.top]
    share = member[~np.isnan(score)].mean()
    assert evidence.top_members == member[largest].sum() <= evidence.top
    assert evidence.member_share == share != 0.5
    top = int(re.search(r"of (\d+)$", words := tail_words(evidence, score, member))[1])
    assert words.endswith(f"where chance would give {top * share:.1f} of {top}")


def test_scores_that_tie_at_the_edge_of_the_tail_are_all_counted():
    member = np.arange(400) < 200
    tied = np.arange(400) % 200 < np.where(member, 127, 84)
    evidence = membership_test({"a": tied.astype(float)}, member)
    assert (evidence.top, evidence.top_members) == (211, 127)
    words = tail_words(evidence, tied.astype(float), member)
    assert words.startswith("127 of the 211 samples that tie for the largest score are members")
    assert words.endswith("where chance would give 105.5 of 211")
    above = np.where(np.arange(400) % 200 < 2, 2.0, tied)  # two of each side stand above the tie
    evidence = membership_test({"a": above}, member)
    assert (evidence.top, evidence.top_members) == (211, 127)
    assert tail_words(evidence, above, member).startswith("127 of the 211 largest scores belong to")


def test_the_difference_of_mean_losses_has_students_interval_over_units_or_none():
    log_p = -np.array([1.0, 1, 2, 2, 3, 3, 7, 7, 9, 9])
    member = np.arange(10) < 6
    value, low, high = loss_gap(log_p, member, np.arange(10) // 2)
    error = np.sqrt(np.var([1, 2, 3], ddof=1) / 3 + np.var([7, 9], ddof=1) / 2)
    assert (value, high - value) == pytest.approx((6, student.ppf(0.975, 1) * error))
    assert value - low == pytest.approx(high - value)
    alone = loss_gap(log_p, member, np.where(member, np.arange(10), -1))
    assert alone[0] == value and np.isnan(alone[1:]).all()
    assert loss_words("loss", log_p, member, alone).endswith("a difference of 6")


def test_exact_intervals_of_an_audit_count_units_in_place_of_samples():
    scores = np.array([9.0, 8, 8, 7, np.nan, 1])
    units = np.array([0, 0, 1, 2, 3, 4])
    assert groups_among_largest(scores, None, 3) == 3
    assert [groups_among_largest(scores, units, top) for top in (1, 3, 4)] == [1, 2, 3]
    member = np.arange(200) < 100
    called = np.arange(200) % 2 == 0
    alone = threshold_words(called, member)
    assert threshold_words(called, member, np.arange(200)) == alone
    low, high = (100 * end for end in clopper_pearson(5, 10))
    grouped = threshold_words(called, member, np.arange(200) // 10)
    assert f"accuses 50 % [{low:.0f}, {high:.0f}] of members" in grouped


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


def test_no_attack_and_one_without_scores_are_refused_in_a_line():
    member = np.arange(8) < 4
    for means in (None, {"loss": np.arange(8.0)}):
        with pytest.raises(ValueError, match="scores is empty: wanted"):
            membership_test({}, member, means=means)
    with pytest.raises(ValueError, match="none scored no sample: all its scores are NaN"):
        membership_test({"loss": np.arange(8.0), "none": np.full(8, np.nan)}, member)


def test_the_shares_of_the_level_add_up_to_all_of_it():
    assert sum(SHARES.values()) == 1


def test_units_on_both_sides_and_one_side_alone_are_refused():
    member = np.arange(6) < 3
    with pytest.raises(ValueError, match="samples on both sides"):
        membership_test({"loss": np.arange(6.0)}, member, units=np.array([0, 0, 1, 1, 2, 2]))
    with pytest.raises(ValueError, match="one side"):
        membership_test({"loss": np.arange(6.0)}, np.ones(6, bool))
