"""Stated limits against closed forms, outputs of models trained elsewhere, and the exit status of
`mia-nb audit`.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
from attack_worlds import pairs as in_pairs
from scipy.special import softmax
from scipy.stats import binom, norm
from worlds import bernoulli, pairs, world

from mia_nb import auditing, metrics, store
from mia_nb.attacks import score
from mia_nb.auditing.gate import called_at_threshold_of_others, ties_broken
from mia_nb.auditing.limits import fewest
from mia_nb.auditing.result import MAKING, QUERYING, provenance, strict
from mia_nb.auditing.shift import class_mix
from mia_nb.auditing.verdicts import LimitVerdict
from mia_nb.cli import audit as command
from mia_nb.cli import main, notebooks, run_key
from mia_nb.metrics import tpr_at
from mia_nb.parameters import Source, read_parameters
from mia_nb.report import markup
from mia_nb.types import Query, Recipe, Scores, Signals

ONE = auditing.limits
JUDGED = (2, 100, 100, 4, "")  # attacks, members, non-members, targets, sentence


def scores(value, member, pair=None) -> Scores:
    """Scores (targets, N) as `attacks.score` gives them; each target its own unit unless said
    otherwise.
    """
    value, member = np.atleast_2d(value).astype(float), np.atleast_2d(member).astype(bool)
    targets, sides = np.arange(len(value)), np.zeros((len(value), 2))
    return Scores(
        value,
        member,
        targets,
        targets if pair is None else np.asarray(pair),
        sides,
        sides,
        {"attack": "a"},
    )


def gaussian(d, n, targets=1, seed=0) -> Scores:
    rng = np.random.default_rng(seed)
    member = np.tile(np.arange(2 * n) < n, (targets, 1))
    return scores(rng.normal(size=member.shape) + d * member, member, np.arange(targets) // 2)


# --------------------------------------------------------------------------------------------------
# limits stated


def test_limits_are_read_however_they_are_spaced_and_each_once():
    assert [
        str(one)
        for one in ONE(
            [" TPR@0.010 > 5e-2", "tpr@1e-2>.05", "auc>0.6", "epsilon>8", "advantage>0.1"]
        )
    ] == [
        "tpr@0.01>0.05",
        "auc>0.6",
        "epsilon>8",
        "advantage>0.1",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("auc", "wanted METRIC>LIMIT"),
        ("auc<0.6", "wanted METRIC>LIMIT"),
        ("auc>=0.6", "wanted METRIC>LIMIT"),
        ("acc>0.6", "wanted METRIC>LIMIT"),
        ("tpr@1%>0.1", "wanted METRIC>LIMIT"),
        ("tpr>0.1", "wanted METRIC>LIMIT"),
        ("auc>nan", "wanted METRIC>LIMIT"),
        ("auc>0.6.1", "wanted METRIC>LIMIT"),
        (0.6, "wanted METRIC>LIMIT"),
        ("auc>60", "never above 1"),
        ("tpr@0.01>1", "never above 1"),
        ("tpr@1>0.9", "lies between 0 and 1"),
        ("epsilon>1e999", "wanted a finite limit"),
        ("tpr@0.1000001>0.15", "six digits at most; wanted tpr@0.1"),
        ("auc>0.4", "an attacker who guesses reaches 0.5"),
        ("tpr@0.1>0.05", "an attacker who guesses reaches 0.1"),
    ],
)
def test_what_is_no_limit_is_refused_in_one_line(text, says):
    with pytest.raises(ValueError, match=says) as error:
        ONE([text])
    assert "\n" not in str(error.value) and str(text) in str(error.value)


def test_one_text_in_place_of_a_list_is_refused_as_what_it_is():
    with pytest.raises(ValueError, match=r"texts='auc>0\.6': wanted a list of them"):
        auditing.limits("auc>0.6")


def test_limits_that_differ_after_many_digits_are_two_and_keep_their_digits():
    texts = ["auc>0.6", "auc>0.60000000000001", "tpr@0.1>0.15000001"]
    assert [str(one) for one in ONE(texts)] == texts


SIZES = {"non_members": 999, "members": 999, "models": 8, "split": "pairs"}


def test_a_rate_that_ten_false_alarms_cannot_carry_is_refused_with_the_number_that_could():
    with pytest.raises(
        ValueError,
        match=r"n0 = 999 non-members a model: 1,000 are needed.*state tpr@0.0101 or a higher rate",
    ):
        auditing.refuse_unmeasurable(ONE(["tpr@0.01>0.05"]), **SIZES)
    auditing.refuse_unmeasurable(
        ONE(["tpr@0.01>0.05", "tpr@0.0101>0.05"]), **{**SIZES, "non_members": 1000}
    )
    # what the message advises is taken
    auditing.refuse_unmeasurable(ONE(["tpr@0.0101>0.05"]), **SIZES)


def test_a_limit_on_a_rate_that_even_all_members_found_would_not_exceed_is_refused():
    most = 0.025 ** (1 / 999)  # Clopper-Pearson, 999 of 999, one attack
    auditing.refuse_unmeasurable(ONE([f"tpr@0.1>{most - 1e-6}"]), **SIZES, attacks=1)
    with pytest.raises(ValueError, match="can never be exceeded: with n1 = 999"):
        auditing.refuse_unmeasurable(ONE([f"tpr@0.1>{most + 1e-6}"]), **SIZES, attacks=1)


def test_epsilon_wants_coins_and_a_limit_that_right_guesses_about_all_would_exceed():
    with pytest.raises(ValueError, match="needs a fair coin per image"):
        auditing.refuse_unmeasurable(ONE(["epsilon>1"]), **SIZES, audited=2000)
    coins = {**SIZES, "split": "bernoulli", "audited": 2000}
    # q^m = alpha at delta 0; four of eight models are audited together
    q = (0.05 / (6 * 4)) ** (1 / 8000)
    most = math.log(q / (1 - q))
    auditing.refuse_unmeasurable(ONE([f"epsilon>{most - 0.01}"]), **coins, delta=0)
    with pytest.raises(ValueError, match="can never be exceeded: right guesses about all 8,000"):
        auditing.refuse_unmeasurable(ONE([f"epsilon>{most + 0.01}"]), **coins, delta=0)


@pytest.mark.parametrize(
    ("text", "models", "units", "says"),
    [
        (
            "advantage>0.1",
            2,
            1,
            (
                r"on 2 models \(1 pair\): its threshold is set on other targets; train 6 models \(3"
                r" pairs\) or"
            ),
        ),
        # twice the same split: four models, one unit
        ("advantage>0.1", 4, 1, r"on 4 models \(1 pair\)"),
        ("advantage>0.1", 4, 2, r"on 4 models \(2 pairs\)"),
        (
            "auc>0.6",
            4,
            None,
            (
                r"on 4 models \(2 pairs\): its interval over so few is too wide to decide; train 6"
                r" models"
            ),
        ),
        ("tpr@0.1>0.3", 4, 2, r"on 4 models \(2 pairs\)"),
        ("auc>0.6", 2, 2, r"on 2 models \(2 training sets\).*train 3 models or more"),
    ],
)
def test_a_limit_on_too_few_pairs_is_refused_with_the_number_of_models_that_could_decide(
    text, models, units, says
):
    with pytest.raises(ValueError, match=says) as error:
        auditing.refuse_unmeasurable(ONE([text]), **{**SIZES, "models": models}, units=units)
    assert "\n" not in str(error.value)
    for enough in (6, 8):
        auditing.refuse_unmeasurable(ONE([text]), **{**SIZES, "models": enough})
    # one pair: the samples' own interval
    auditing.refuse_unmeasurable(ONE(["auc>0.6"]), **{**SIZES, "models": 2})
    auditing.refuse_unmeasurable(
        ONE(["epsilon>0.1"]), **{**SIZES, "models": 2, "split": "bernoulli"}, audited=2000
    )


def test_two_pairs_would_not_decide_even_a_perfect_attack_among_six():
    found = gaussian(3.0, 200, targets=4)
    moved = replace(
        found,
        value=np.where(np.arange(4)[:, None] < 2, found.value, gaussian(1.0, 200, targets=4).value),
    )
    (verdict,) = auditing.judge(ONE(["auc>0.5"]), {f"a{i}": moved for i in range(6)})
    assert verdict.outcome == "not established" and verdict.value > 0.8


def test_the_members_promised_before_training_are_there_afterwards():
    for n in (100, 1001):
        assert (
            fewest(n, "pairs")
            == pairs(2, n, np.zeros(n, int), np.random.default_rng(0)).sum(1).min()
        )
        coins = bernoulli(2000, n, None, np.random.default_rng(0)).sum(1)
        assert coins.min() > fewest(n, "bernoulli") > n // 2 - 3 * np.sqrt(n)


# --------------------------------------------------------------------------------------------------
# limits judged


@pytest.mark.parametrize("attacks", [1, 6])
def test_a_perfect_attack_exceeds_a_rate_up_to_the_exact_lower_end_shared_by_all_attacks(attacks):
    member = np.arange(200) < 100
    found = {
        f"a{i}": scores(np.where(member, 2.0, 1.0) + 1e-3 * np.arange(200), member)
        for i in range(attacks)
    }
    low = (0.025 / attacks) ** (1 / 100)  # Clopper-Pearson by hand: 100 of 100
    above, below = auditing.judge(ONE([f"tpr@0.1>{low - 1e-4}", f"tpr@0.1>{low + 1e-4}"]), found)
    assert above.outcome == "exceeded" and below.outcome == "not established"
    assert above.low == pytest.approx(low, abs=1e-9) and (
        above.value,
        above.high,
        above.attacks,
    ) == (1, 1, attacks)


def test_a_rate_without_any_hit_is_below_a_limit_only_from_the_exact_upper_end_on():
    member = np.arange(200) < 100
    # every member below all others
    found = {"a": scores(np.where(member, 1.0, 2.0) + 1e-3 * np.arange(200), member)}
    high = 1 - 0.025 ** (1 / 100)
    assert high < 0.1
    (verdict,) = auditing.judge(ONE(["tpr@0.1>0.1"]), found)
    assert verdict.outcome == "not exceeded" and verdict.high == pytest.approx(high, abs=1e-9)


def test_a_gaussian_shift_is_judged_as_its_true_values_say():
    d, n = 1.0, 4000
    auc, advantage, tpr = (
        norm.cdf(d / math.sqrt(2)),
        2 * norm.cdf(d / 2) - 1,
        norm.cdf(d + norm.ppf(0.1)),
    )
    found = {"a": gaussian(d, n, targets=12)}
    for name, true, wide in (
        ("auc", auc, 0.03),
        ("advantage", advantage, 0.06),
        ("tpr@0.1", tpr, 0.06),
    ):
        stated = ONE([f"{name}>{true - wide}", f"{name}>{true}", f"{name}>{true + wide}"])
        verdicts = auditing.judge(stated, found)
        assert [one.outcome for one in verdicts] == [
            "exceeded",
            "not established",
            "not exceeded",
        ], name
        assert verdicts[1].low < true < verdicts[1].high and verdicts[1].value == pytest.approx(
            true, abs=0.02
        )


@pytest.mark.slow
def test_a_limit_at_the_truth_is_seldom_called_exceeded_though_the_strongest_attack_is_picked():
    worlds, stated = 120, ONE([f"auc>{norm.cdf(0.5 / math.sqrt(2)):.9f}", "auc>0.5"])
    wrong = 0
    for seed in range(worlds):
        found = {f"a{i}": gaussian(0.5, 100, seed=1000 * i + seed) for i in range(4)}
        at_truth, below = auditing.judge(stated, found, n_resamples=100)
        wrong += at_truth.outcome == "exceeded"
        assert below.outcome == "exceeded"
    assert wrong <= binom.isf(1e-4, worlds, 0.05)


@pytest.mark.parametrize("above", [0, 40])  # members and non-members above those that tie
def test_a_rate_within_a_tie_is_kept_only_if_accusing_at_random_within_it_keeps_it(above):
    member = np.arange(2000) < 1000
    rank = np.arange(2000) % 1000
    tied = np.where(member, 800, 200) + above
    value = np.where(rank < above, 2000.0 - rank, np.where(rank < tied, 1.0, 0.0))
    stated = ["tpr@0.1>0.3", "tpr@0.1>0.6"]  # at random within the tie 0.4 or 0.28
    low, high = auditing.judge(auditing.limits(stated), {"loss": scores(value, member)})
    assert (low.outcome, high.outcome) == ("not established", "not exceeded")
    assert "at random among those that tie finds" in low.sentence and low.high < 0.3
    found = tpr_at(ties_broken(scores(value, member), 0).value[0], member, 0.1).tpr
    share = (100 - above) / 200
    assert found == pytest.approx((above + share * 800) / 1000, abs=0.08)


def test_what_most_samples_tie_for_is_no_tail_but_another_attacks_may_be():
    member = np.arange(400) < 200
    correct = np.arange(400) % 200 < np.where(member, 199, 150)
    tried = {"correctness": scores(correct, member)}
    (verdict,) = auditing.judge(auditing.limits(["auc>0.65"]), tried)
    assert verdict.outcome == "not established" and verdict.tail == ""
    value = np.random.default_rng(0).normal(size=400)
    value[:12] += 20
    tried["loss"] = scores(value, member)
    (verdict,) = auditing.judge(auditing.limits(["auc>0.7"]), tried)
    assert verdict.tail.startswith("the 12 largest scores all belong to members (loss threshold)")


def test_a_coarse_attack_that_finds_nothing_leaves_a_rate_kept():
    member = np.arange(4000) < 2000
    value = (np.arange(4000) % 10 < 9).astype(float)  # such as a correctness without a gap
    (verdict,) = auditing.judge(auditing.limits(["tpr@0.1>0.2"]), {"loss": scores(value, member)})
    assert verdict.outcome == "not exceeded"


def test_without_an_attack_there_is_nothing_to_judge():
    with pytest.raises(ValueError, match="no attack was given: wanted"):
        auditing.judge(ONE(["auc>0.6"]), {})


def test_an_epsilon_is_refused_only_where_no_number_of_guesses_that_is_tried_could_exceed_it():
    few = {**SIZES, "split": "bernoulli", "models": 2, "audited": 20, "attacks": 1}
    # two models, one by one, at 0.025 each: of 1, 5 and 20 guesses 20 alone could certify anything
    m = 20
    q = 0.025 ** (1 / m)
    most = math.log(q / (1 - q))
    auditing.refuse_unmeasurable(ONE([f"epsilon>{most - 0.01}"]), **few, delta=0)
    with pytest.raises(ValueError, match="can never be exceeded"):
        auditing.refuse_unmeasurable(ONE([f"epsilon>{most + 0.01}"]), **few, delta=0)


def test_choosing_among_attacks_is_paid_for():
    found = gaussian(0.4, 500, seed=3)
    alone = auditing.judge(ONE(["auc>0.5"]), {"a": found})[0]
    many = auditing.judge(ONE(["auc>0.5"]), {f"a{i}": found for i in range(8)})[0]
    assert many.value == alone.value and many.low < alone.low and many.high > alone.high


def test_the_advantage_is_that_of_thresholds_set_on_other_pairs():
    found = gaussian(1.0, 300, targets=4)
    said = called_at_threshold_of_others(found)
    tpr, fpr = said.value[0, found.member[0]].mean(), said.value[0, ~found.member[0]].mean()
    assert tpr - fpr == pytest.approx(2 * metrics.auc(said.value[0], found.member[0]) - 1)
    # its own scores set no threshold
    moved = replace(found, value=found.value + np.array([[5.0], [5.0], [0.0], [0.0]]))
    assert np.array_equal(
        called_at_threshold_of_others(moved).value[0],
        (moved.value[0] >= moved.value[0].min()).astype(float),
    )
    null = gaussian(0.0, 40, targets=8, seed=1)
    hindsight = metrics.by_attack(metrics.summary({"a": null}, n_resamples=50), "advantage").loc[
        "a", "value"
    ]
    assert (
        hindsight
        > 0.1
        > abs(auditing.judge(ONE(["advantage>0.5"]), {"a": null}, n_resamples=50)[0].value)
    )


def test_an_audited_epsilon_is_exceeded_or_open_and_never_not_exceeded():
    signals = world(4, 600, leak=3.0, design=bernoulli)
    found = {name: score(name, signals) for name in ("loss", "attack_r")}
    bound = max(auditing.audit(one, delta=1e-5, attempts=2).epsilon for one in found.values())
    over, open_ = auditing.judge(ONE([f"epsilon>{bound - 0.01}", f"epsilon>{bound + 0.01}"]), found)
    assert bound > 0.1 and (over.outcome, open_.outcome) == ("exceeded", "not established")
    assert (
        over.low == bound
        and math.isnan(over.high)
        and "nothing here bounds it from above" in open_.sentence
    )
    (together,) = auditing.judge(
        ONE(["epsilon>0.1"]),
        found,
        split_scores={name: auditing.score_split(name, signals) for name in found},
    )
    assert together.low == max(
        auditing.audit(auditing.score_split(name, signals), delta=1e-5, attempts=2).epsilon
        for name in found
    )
    assert "95 %, 2 runs together" in together.sentence and "one run" in over.sentence
    nothing = replace(found["loss"], value=np.full_like(found["loss"].value, np.nan))
    for split_scores in ({}, {"loss": nothing}):
        with pytest.raises(ValueError, match="cannot be measured: no attack scored a member"):
            auditing.judge(ONE(["epsilon>0.1"]), found, split_scores=split_scores)


def test_attacks_that_scored_too_few_non_members_say_nothing_on_a_rate():
    full = gaussian(1.0, 100)
    holes = replace(full, value=np.where(np.arange(200) % 3, full.value, np.nan))
    (verdict,) = auditing.judge(ONE(["tpr@0.1>0.9"]), {"full": full, "holes": holes})
    assert verdict.attack == "full" and verdict.attacks == 2
    with pytest.raises(ValueError, match="no attack scored 100 non-members"):
        auditing.judge(ONE(["tpr@0.1>0.9"]), {"holes": holes})


def uneven(pairs_, seed, spread=0.4, n=60) -> Scores:
    """Pairs that leak differently: shifts drawn from a normal of mean 1."""
    rng = np.random.default_rng(seed)
    member = pairs(2 * pairs_, n, np.zeros(n, int), rng)
    shift = np.repeat(rng.normal(1, spread, pairs_), 2)[:, None]
    return scores(
        rng.normal(size=member.shape) + shift * member, member, np.arange(2 * pairs_) // 2
    )


@pytest.mark.parametrize("many", [2, 3, 4, 10, 11])
def test_the_interval_is_never_narrower_than_students_over_pairs(many):
    found = uneven(many, 0)
    (verdict,) = auditing.judge(ONE(["auc>0.9"]), {"a": found}, n_resamples=100)
    each = metrics.targets.per_target_metrics(found, ())[:, 0]
    low, high = metrics.interval(each, found.pair)
    assert (f"with {many} pairs the interval may miss up to 14 %" in verdict.sentence) == (
        many <= 4
    )
    coins = replace(found, pair=np.arange(2 * many))
    (verdict,) = auditing.judge(ONE(["auc>0.9"]), {"a": coins}, n_resamples=9)
    assert (f"with {2 * many} training sets the interval may" in verdict.sentence) == (many == 2)
    (verdict,) = auditing.judge(ONE(["auc>0.9"]), {"a": found}, n_resamples=100)
    assert verdict.high - verdict.low >= min(high, 1) - max(low, 0) - 1e-12


def test_an_attack_that_leaves_a_target_without_a_side_is_left_out_named_and_paid_for():
    full = uneven(4, 1, n=200)
    bad = replace(
        full,
        value=np.where(
            (np.arange(8)[:, None] == 0) & ~full.member, np.nan, full.value + 9 * full.member
        ),
    )
    gone = replace(full, value=np.where(np.arange(8)[:, None] == 0, np.nan, full.value))
    stated = ONE(["auc>0.6", "tpr@0.1>0.2", "advantage>0.1"])
    for broken in (bad, gone):
        verdicts = auditing.judge(stated, {"bad": broken, "good": full}, n_resamples=100)
        paid = auditing.judge(stated, {"good": full, "same": full}, n_resamples=100)
        for one, twice in zip(verdicts, paid, strict=True):
            assert (one.attack, one.attacks, one.low, one.high) == (
                "good",
                2,
                twice.low,
                twice.high,
            )
            assert "largest of 2 attacks, good; without bad" in one.sentence
        with pytest.raises(
            ValueError, match="no attack scored a member and a non-member of each model"
        ):
            auditing.judge(ONE(["auc>0.6"]), {"bad": broken})
    coins = world(4, 300, leak=2.0, design=bernoulli)
    loss = score("loss", coins)
    holes = replace(
        loss, value=np.where((np.arange(4)[:, None] == 0) & ~loss.member, np.nan, loss.value)
    )
    (verdict,) = auditing.judge(ONE(["epsilon>0.1"]), {"holes": holes, "loss": loss})
    assert (
        verdict.low == auditing.audit(loss, delta=1e-5, attempts=2).epsilon
        and "without holes" in verdict.sentence
    )


def test_an_advantage_on_one_split_has_no_other_targets():
    found = gaussian(1.0, 100, targets=2)
    with pytest.raises(ValueError, match="cannot be measured on one pair"):
        auditing.judge(ONE(["advantage>0.1"]), {"a": found})


# --------------------------------------------------------------------------------------------------
# design, headline, result


def test_the_design_is_told_from_the_masks():
    kinds = {
        design.__name__: auditing.design(world(8, 400, design=design))
        for design in (pairs, bernoulli)
    }
    assert {name: facts["kind"] for name, facts in kinds.items()} == {
        "pairs": "pairs",
        "bernoulli": "coins",
    }
    words = kinds["pairs"].pop("words")
    assert kinds["pairs"] | {"draws": ""} == {
        "kind": "pairs",
        "models": 8,
        "units": 4,
        "samples": 400,
        "audited": 400,
        "population": 0,
        "members": 200,
        "non_members": 200,
        "references": 3,
        "queries": 1,
        "draws": "",
    }
    signals = world(6, 300)
    member = np.tile(np.arange(300) < 100, (6, 1)) ^ (np.arange(6)[:, None] == np.arange(300) % 50)
    given = auditing.design(replace(signals, member=member))
    assert given["kind"] == "masks" and given["units"] == 6
    assert "at least 200 members and 200 non-members" in words


def test_one_mask_is_no_coin_unless_it_was_declared_one():
    half = world(1, 200, design=lambda m, n, labels, rng: (np.arange(n) < n // 2)[None])
    for signals in (half, world(1, 200, design=bernoulli)):
        facts = auditing.design(signals)
        assert facts["kind"] == "mask" and "coin" not in (said := facts["words"])
        assert (
            said.startswith("1 model, one mask: of 200 audited samples it has ")
            and "models" not in said
        )
        with pytest.raises(ValueError, match="declared as split=bernoulli"):
            auditing.refuse_unmeasurable(
                ONE(["epsilon>0.1"]), **{**SIZES, "models": 1, "split": facts["kind"]}
            )
    coin = world(1, 200, design=bernoulli)
    declared = auditing.design(coin, "bernoulli")
    assert declared["kind"] == "coins" and declared["words"].startswith(
        "1 model, a fair coin for every sample"
    )
    assert auditing.design(replace(coin, info={"split": "bernoulli"}))["kind"] == "coins"


def test_a_wide_interval_around_one_half_is_no_evidence_of_a_coin():
    signals = world(4, 60)
    table = metrics.summary(
        {name: score(name, signals) for name in ("loss", "attack_p")}, n_resamples=100
    )
    said = auditing.headline(table, True, auditing.design(signals))
    low, high = metrics.by_attack(table, "auc").loc["max", ["low", "high"]]
    assert low < 0.5 < high
    assert "cannot tell" in said and "coin" not in said and "4 targets (2 pairs)" in said


def test_strict_json_has_null_for_what_is_no_number():
    odd = {
        "a": np.float64("nan"),
        1: (np.int64(3), np.inf),
        "b": np.array([True, False]),
        "c": {"d": np.str_("x")},
    }
    assert json.loads(json.dumps(strict(odd), allow_nan=False)) == {
        "a": None,
        "1": [3, None],
        "b": [True, False],
        "c": {"d": "x"},
    }


def test_the_headline_follows_the_interval():
    for leak, words in ((2.0, "tells members from non-members"), (0.0, "no better than a coin")):
        signals = world(8, 300, leak=leak)
        table = metrics.summary(
            {name: score(name, signals) for name in ("loss", "rmia")}, n_resamples=100
        )
        assert words in auditing.headline(table, True) and "n0 = 150" in auditing.headline(
            table, True
        )
        assert "FAILED" in auditing.headline(table, False)


def test_the_status_is_three_only_for_what_is_established_and_one_where_nothing_vouches_for_the_numbers():
    record = {"self_test": {"self_test_passed": True, "inverted": []}}
    for outcomes, passed, inverted, code in (
        ([], False, [], 0),
        (["not exceeded"], True, [], 0),
        (["not established"], True, [], 0),
        (["exceeded", "not exceeded"], True, [], 3),
        (["exceeded"], False, [], 3),
        (["not exceeded"], False, [], 1),
        (["not exceeded"], True, ["rmia"], 1),
    ):
        record["verdicts"] = [{"outcome": one} for one in outcomes]
        record["self_test"] = {"self_test_passed": passed, "inverted": inverted}
        assert command.status(record)[0] == code, (outcomes, passed, inverted)


def test_limits_are_shown_with_what_was_measured_in_words_and_colour():
    nan = float("nan")
    found = [
        LimitVerdict(
            "tpr@0.01>0.05", "exceeded", "tpr@0.01", 0.05, 0.108, 0.072, 0.14, "rmia", *JUDGED
        ),
        LimitVerdict("auc>0.6", "not exceeded", "auc", 0.6, 0.55, 0.53, 0.57, "lira", *JUDGED),
        LimitVerdict(
            "auc>0.7", "not exceeded", "auc", 0.7, 0.55, 0.53, 0.57, "<b>", *JUDGED, tail="so"
        ),
        LimitVerdict("epsilon>1", "not established", "epsilon", 1, 0.5, 0.5, nan, "loss", *JUDGED),
        LimitVerdict("auc>0.8", "not established", "auc", 0.8, nan, nan, nan, "", *JUDGED),
    ]
    table = auditing.LimitsTable(found)
    shown = [list(row.values())[1:] for row in table.rows]
    assert shown == [
        ["10.8 %", "7.2 %, 14 %", "RMIA", "EXCEEDED"],
        ["0.550", "0.530, 0.570", "LiRA", "PASS"],
        ["0.550", "0.530, 0.570", "<b>", "PASS, but the tail leaks"],
        ["0.500", "0.500 or more", "loss threshold", "NOT ESTABLISHED"],
        ["not measurable", "not measurable", "", "NOT ESTABLISHED"],
    ]
    assert len(repr(table).splitlines()) == 6
    page = table._repr_html_()
    assert re.findall('<tr class="(.*?)">', page) == ["exceeded", "not-exceeded"]
    assert page.count("<tr>") == 1 + 3 and "<b>" not in page  # the head, and what is not plain
    nothing = auditing.LimitsTable([])
    assert (nothing._repr_html_(), repr(nothing)) == ("", "no limit was stated")
    assert markup._clean(page) == page  # what a report takes out of a notebook leaves the colours


def test_limits_become_junit_tests_that_fail_where_they_are_exceeded():
    outcomes = {
        "auc>0.6": "exceeded",
        "tpr@0.1>0.5": "not exceeded",
        "epsilon>1": "not established",
    }
    record = {
        "self_test": {"self_test_passed": True, "inverted": []},
        "verdicts": [
            {"limit": limit, "outcome": outcome, "sentence": f"<{limit}> \x1b: {outcome}"}
            for limit, outcome in outcomes.items()
        ],
    }
    suite = ElementTree.fromstring(command.junit(record))
    counts = {name: suite.get(name) for name in ("tests", "failures", "skipped")}
    assert counts == {"tests": "4", "failures": "1", "skipped": "1"}
    inside = {case.get("name"): [kind.tag for kind in case] for case in suite}
    assert inside == {
        "the audit itself": [],
        "auc>0.6": ["failure"],
        "tpr@0.1>0.5": [],
        "epsilon>1": ["skipped"],
    }
    assert suite.find(".//failure").get("message") == r"<auc>0.6> \x1b: exceeded"
    record["verdicts"] = record["verdicts"][1:]
    record["self_test"]["self_test_passed"] = False
    failed = ElementTree.fromstring(command.junit(record)).find(".//testcase[failure]")
    assert failed.get("name") == "the audit itself"


# --------------------------------------------------------------------------------------------------
# outputs


def arrays(models=4, samples=60, classes=3, seed=0) -> dict:
    rng = np.random.default_rng(seed)
    labels = np.arange(samples) % classes
    member = pairs(models, samples, labels, rng)
    z = rng.normal(size=(models, samples, classes))
    z[:, np.arange(samples), labels] += 1 + member
    return {"logits": z, "labels": labels, "member": member}


def saved(tmp_path, **changes):
    kept = {name: value for name, value in (arrays() | changes).items() if value is not None}
    np.savez(tmp_path / "outputs.npz", **kept)
    return tmp_path / "outputs.npz"


def test_outputs_come_back_as_signals_of_the_same_logits(tmp_path):
    given = arrays()
    x = np.random.default_rng(1).integers(0, 256, (60, 3, 5, 4), np.uint8)
    names = np.array(["a", "b", "c"])
    found = auditing.read_outputs(
        saved(tmp_path, member=given["member"].astype(int), images=x, classes=names)
    )
    z, y = given["logits"], given["labels"]
    margin = z[:, np.arange(60), y] - np.log(np.exp(z).sum(2) - np.exp(z[:, np.arange(60), y]))
    np.testing.assert_allclose(found.signals.margin[:, 0], margin, rtol=1e-10)
    assert (
        np.array_equal(found.signals.member, given["member"])
        and found.signals.query_kind == "plain"
    )
    assert found.classes == ("a", "b", "c") and np.array_equal(found.images, x)
    score("rmia", found.signals)


def test_several_queries_one_model_and_a_population_are_taken(tmp_path):
    given = arrays()
    many = np.stack([given["logits"], given["logits"] + 0.1], axis=1)
    assert auditing.read_outputs(saved(tmp_path, logits=many)).signals.query_kind == "noise"
    assert (
        auditing.read_outputs(
            saved(tmp_path, logits=many, draws=np.array("augment"))
        ).signals.query_kind
        == "augment"
    )
    one = auditing.read_outputs(
        saved(tmp_path, logits=given["logits"][:1], member=given["member"][:1])
    )
    assert one.signals.member.shape == (1, 60)
    aside = np.arange(60) >= 50
    member = given["member"] & ~aside
    assert (
        auditing.read_outputs(
            saved(tmp_path, member=member, population=aside)
        ).signals.population.sum()
        == 10
    )


def test_tensors_are_not_needed_to_read_outputs(tmp_path):
    path = saved(tmp_path)
    code = (
        f"import sys; from mia_nb import auditing; auditing.read_outputs({str(path)!r});"
        " sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


GIVEN = arrays()
Z, Y, IN = GIVEN["logits"], GIVEN["labels"], GIVEN["member"]
P = np.exp(Z) / np.exp(Z).sum(2, keepdims=True)
MANY = arrays(models=6, samples=600) | {"logits": 3 * arrays(models=6, samples=600)["logits"]}
SIDE = np.pad(MANY["logits"], ((0, 0), (0, 0), (1, 0)), constant_values=-9.0)  # a background


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"member": None, "members": IN}, r"lacks member \(models, samples\)"),
        ({"labels": None}, r"lacks labels \(samples,\)"),
        ({"logits": Z.transpose(1, 0, 2)}, r"shapes logits \(60, 4, 3\), labels \(60,\), member"),
        ({"logits": Z.transpose(0, 2, 1)}, "do not fit together"),
        ({"logits": Z[0]}, r"wanted logits \(models, samples, classes\)"),
        ({"logits": Z[None, None]}, "do not fit together"),
        ({"logits": Z[:, :50]}, r"logits \(4, 50, 3\), labels \(60,\)"),
        ({"logits": Z[0, 0, 0]}, "do not fit together"),
        ({"logits": P}, "models 0, 1, 2, 3 are all >= 0 and sum to 1: probabilities were passed"),
        ({"logits": P.round(2)}, "probabilities were passed"),
        ({"logits": 1 / (1 + np.exp(-Z))}, r"lie in \[0, 1\]: sigmoids were passed"),
        ({"logits": np.concatenate([Z[:3], P[3:]])}, "of model 3 .* sum to 1: probabilities"),
        (
            {"logits": np.where(np.arange(60)[:, None] == 7, np.nan, Z)},
            "model 0 gives a non-finite output for sample 7",
        ),
        ({"logits": np.concatenate([Z[:3], Z[:1]])}, "models 0 and 3 gave the same outputs"),
        ({"logits": Z.astype(object)}, "Object arrays cannot be loaded"),
        ({"logits": Z.astype(complex)}, "wanted numbers"),
        ({"labels": np.eye(3, dtype=int)[Y]}, r"labels \(60, 3\)"),
        ({"labels": Y + 1}, "labels run from 1 to 3"),
        ({"labels": Y + 0.5}, "a vector of whole numbers"),
        ({"labels": np.where(Y == 1, np.inf, Y)}, "a vector of whole numbers"),
        ({"labels": Y - 1}, "labels run from -1 to 1"),
        ({"member": IN.T}, r"member \(60, 4\) do not fit together"),
        ({"member": IN[:3]}, r"member \(3, 60\) do not fit together"),
        ({"member": IN * 0.5}, "member holds numbers from 0.0 to 0.5"),
        (
            {"member": np.where(np.arange(4)[:, None] == 2, True, IN)},
            "model 2 has 60 members and 0 non-members",
        ),
        (arrays(samples=600) | {"member": ~arrays(samples=600)["member"]}, "pass ~member"),
        ({"population": np.arange(60) < 5}, "5 samples of the population are members"),
        ({"population": np.zeros(9, bool)}, r"population has shape \(9,\)"),
        ({"classes": np.array(["a", "b"])}, "the logits have 3"),
        ({"images": np.zeros((60, 4, 4))}, "wanted uint8"),
        ({"images": np.zeros((60, 9, 4, 4), np.uint8)}, "of 1 to 3 channels"),
        ({"split": np.array("halves")}, "split='halves' is not one of pairs, bernoulli, random"),
        ({"logits": np.stack([Z, Z + 1], 1), "draws": np.array("often")}, "query_kind='often'"),
    ],
)
def test_outputs_that_cannot_be_believed_are_refused_in_one_line(tmp_path, changes, says):
    with pytest.raises(ValueError, match=says) as error:
        auditing.read_outputs(saved(tmp_path, **changes))
    assert "\n" not in str(error.value) and "outputs.npz" in str(error.value)


AT_CHANCE = {
    "labels in another order": {"labels": MANY["labels"][::-1]},
    "classes from 1": {"logits": SIDE},
    "labels from 1": {"logits": np.roll(SIDE, -1, 2), "labels": MANY["labels"] + 1},
    "negated logits": {"logits": -MANY["logits"]},
    "-log p": {"logits": -np.log(softmax(MANY["logits"], 2))},
    "an inverted mask of models that memorised without learning": {
        "logits": np.where(
            MANY["member"][:, :, None] & (MANY["labels"][:, None] == np.arange(Z.shape[2])),
            6.0,
            0.0,
        )
        + np.random.default_rng(6).normal(size=MANY["logits"].shape),
        "member": ~MANY["member"],
    },
    "one output for all samples": {"logits": np.tile(MANY["logits"][:, :1], (1, 600, 1))},
}


def test_nothing_is_said_of_outputs_without_a_fault(tmp_path):
    assert headline_of(saved(tmp_path, **MANY)).startswith("The strongest of")


def test_honest_groups_of_one_model_are_audited_though_members_happen_to_be_harder(tmp_path):
    rng = np.random.default_rng(8)
    group = np.repeat(np.arange(10), 40)
    easy = rng.normal(size=10)[group]
    labels = rng.integers(0, 3, 400)
    logits = rng.normal(size=(400, 3)) * 0.5
    logits[np.arange(400), labels] += 1.5 + easy
    given = {"logits": logits[None], "labels": labels, "member": group[None] < 5, "split": "random"}
    np.savez(tmp_path / "groups.npz", **given)
    found = auditing.audit_outputs(tmp_path / "groups.npz", groups=group, n_resamples=30)
    assert found.verdict.outcome == "not established"
    assert found.text.startswith("Look at the outputs first: the model is surer of non-members")
    # two models on one split may both be so, but not one on the others' complement
    given["logits"] = np.stack([logits, logits + 0.1 * rng.normal(size=logits.shape)])
    np.savez(tmp_path / "twice.npz", **given | {"member": np.tile(group < 5, (2, 1))})
    (remark,) = auditing.read_outputs(tmp_path / "twice.npz").signals.info["remarks"]
    assert remark.startswith("Look at the outputs first: every model is surer of non-members")


@pytest.mark.parametrize("fault", AT_CHANCE)
def test_models_at_chance_on_their_members_stand_before_the_verdict(tmp_path, fault):
    said = headline_of(saved(tmp_path, **MANY | AT_CHANCE[fault]))
    start = "Look at the outputs first: models 0, 1, 2, 3, 4, 5 named members' classes no better"
    assert said.startswith(start)


def headline_of(path) -> str:
    signals = auditing.read_outputs(path).signals
    facts = auditing.design(signals) | auditing.comparable(signals)
    table = metrics.summary({"loss": score("loss", signals)}, n_resamples=50)
    return auditing.headline(table, True, facts)


def test_log_probabilities_and_a_bad_classifier_are_valid_outputs(tmp_path):
    log_p = np.log(softmax(MANY["logits"], 2))
    good = auditing.read_outputs(saved(tmp_path, **MANY | {"logits": log_p}))
    assert good.signals.info["remarks"] == []
    noise = np.random.default_rng(1).normal(size=MANY["logits"].shape)
    bad = auditing.read_outputs(saved(tmp_path, **MANY | {"logits": noise}))
    (remark,) = bad.signals.info["remarks"]
    assert "named members' classes no better than chance" in remark


# ------------------------------------------------------------------ distribution, not memorisation


def halves(labels, rng, more=0.0):
    """One split: a random half, or members with more samples of the first half of the classes."""
    chance = 0.5 + more * (labels < (labels.max() + 1) / 2) - more / 2
    return rng.random(len(labels)) < chance


def unmemorised(more=0.0, *, models=1, seed=0, leak=0.0, samples=800, **info) -> Signals:
    """Models on one split that answer some classes better than others, whoever is a member."""
    rng, classes = np.random.default_rng(seed), 10
    labels = rng.integers(0, classes, samples)
    member = np.tile(halves(labels, rng, more), (models, 1))
    z = rng.normal(size=(models, samples, classes))
    z[:, np.arange(samples), labels] += 4 - 4 * labels / classes + leak * member
    return Signals.from_logits(z, labels, member, info=info)


def verdict_on(signals, limit="auc>0.55", shift=None):
    facts = auditing.comparable(signals, shift=shift)
    scores = {"loss": score("loss", signals)}
    return auditing.judge(ONE([limit]), scores, n_resamples=100, doubt=facts["doubt"])[0], facts


@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize("info", [{}, {"split": "random"}])
def test_a_class_mix_is_no_leak_whatever_the_file_declares(models, info):
    signals = unmemorised(0.8, models=models, **info)
    alone = auditing.judge(ONE(["auc>0.55"]), {"loss": score("loss", signals)}, n_resamples=100)[0]
    found, facts = verdict_on(signals)
    assert (alone.outcome, found.outcome) == ("exceeded", "not established")
    assert "may be their distribution, not memorisation: their class mix differs" in found.sentence
    assert "Give both sides the same mix" in facts["doubt"]
    assert "By the numbers alone: exceeded; auc" in found.sentence
    table = metrics.summary({"loss": score("loss", signals)}, n_resamples=50)
    said = auditing.headline(table, True, auditing.design(signals) | facts)
    assert said.startswith(facts["doubt"]) and "loss threshold, tells the two sides apart: " in said
    checks = {"self_test_passed": True, "inverted": []}
    record = {"verdicts": [found._asdict()], "design": facts, "self_test": checks}
    assert command.status(record)[0] == 1


def test_a_leak_on_one_split_is_established_only_if_chance_is_shown_or_declared_to_have_drawn_it():
    signals = unmemorised(leak=2.0)
    unknown, facts = verdict_on(signals)
    assert unknown.outcome == "not established"
    assert "there is a single split, and without images" in unknown.sentence
    assert 'split="random" if it did' in facts["doubt"]
    inputs, member = np.random.default_rng(1).normal(size=(800, 6)), signals.member[0]
    for x, outcome in ((inputs, "exceeded"), (inputs + 0.5 * member[:, None], "not established")):
        found, told = verdict_on(signals, shift=auditing.shift_guard(x, signals.labels, member))
        assert found.outcome == outcome
        assert ("the shift guard fails" in told["doubt"]) == (outcome != "exceeded")
    declared, told = verdict_on(unmemorised(leak=2.0, split="random"))
    assert declared.outcome == "exceeded"
    assert "as the file declares: chance drew the members" in told["assumed"]
    table = metrics.summary({"loss": score("loss", signals)}, n_resamples=50)
    assert auditing.headline(table, True, auditing.design(signals) | told).endswith(told["assumed"])
    assert auditing.comparable(signals, "bernoulli")["doubt"] == ""  # drawn by this package


def test_not_exceeded_is_not_established_either_where_distribution_may_hide_a_leak():
    assert verdict_on(unmemorised(0.8), "auc>0.99")[0].outcome == "not established"
    assert verdict_on(unmemorised(split="random"), "auc>0.99")[0].outcome == "not exceeded"


def test_masks_that_are_one_split_but_for_a_few_samples_or_that_never_take_some_are_told():
    one = unmemorised(models=6, seed=3)
    rng = np.random.default_rng(0)
    near = one.member ^ (rng.random(one.member.shape) < 0.01)
    never = one.member & (rng.random(one.member.shape) < 0.5)
    for mask, says in ((near, "there is a single split"), (never, "members of more models")):
        assert says in auditing.comparable(replace(one, member=mask))["doubt"]
    for design in (pairs, bernoulli):
        assert auditing.comparable(world(8, 400, design=design))["doubt"] == ""


@pytest.mark.parametrize(("classes", "samples"), [(10, 800), (100, 400)])
def test_random_splits_seldom_fail_the_class_mix_and_others_always_do(classes, samples):
    found = []
    for seed in range(worlds := 100 if classes == 10 else 30):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, classes, samples)
        found.append([class_mix(labels, halves(labels, rng, more)) for more in (0, 0.5)])
    null, shifted = np.array(found).T
    assert all((null < p).sum() <= binom.isf(1e-4, worlds, p) for p in (0.01, 0.05))
    assert 0.25 < np.median(null) < 0.75 and (shifted < 0.01).mean() >= 0.9
    assert class_mix(np.zeros(20), np.arange(20) < 10) == 1


def test_one_split_of_another_class_mix_is_found_among_many():
    labels, rng = np.arange(1000) % 10, np.random.default_rng(0)
    member = rng.random((16, 1000)) < 0.5
    assert class_mix(labels, member) > 0.01
    member[5] = halves(labels, rng, 0.5)
    assert class_mix(labels, member) < 1e-6


def test_a_mix_that_no_drawn_table_reaches_has_the_smallest_p_that_so_many_draws_can_give():
    labels = np.arange(48) % 12  # 4 of a class, so that tables are drawn
    assert class_mix(labels, labels < 6) == pytest.approx(1 / (1 + 1200))


def test_a_second_pair_of_another_class_mix_is_told():
    signals = world(4, 800, design=pairs)
    skewed = halves(signals.labels, np.random.default_rng(0), 0.8)
    member = np.stack([*signals.member[:2], skewed, ~skewed])
    assert auditing.comparable(signals)["doubt"] == ""
    assert "class mix differs" in auditing.comparable(replace(signals, member=member))["doubt"]


def test_files_that_are_no_npz_are_refused_in_one_line(tmp_path):
    np.save(tmp_path / "bare.npy", Z)
    (tmp_path / "torn.npz").write_bytes(saved(tmp_path).read_bytes()[:300])
    (tmp_path / "text.npz").write_text("logits")
    for name, says in (
        ("bare.npy", "cannot be read as .npz"),
        ("torn.npz", "cannot be read"),
        ("text.npz", "cannot be read"),
        ("absent.npz", "does not exist"),
        (".", "is no file"),
    ):
        with pytest.raises(ValueError, match=says) as error:
            auditing.read_outputs(tmp_path / name)
        assert "\n" not in str(error.value)


# --------------------------------------------------------------------------------------------------
# command line


def options(**changes) -> Namespace:
    none = dict.fromkeys(("model", "data", "logits", "pool", "epochs", "models"))
    return Namespace(**none | {"parameter": [], "fail_if": []} | changes)


def test_options_become_parameters_of_the_notebook():
    given = command.parameters(
        options(
            model="a:b", data="d", epochs=3, models=8, parameter=["lr=0.1"], fail_if=["auc > .6"]
        )
    )
    wanted = {
        "model": "a:b",
        "dataset": "d",
        "epochs": "3",
        "num_models": "8",
        "lr": "0.1",
        "fail_if": '["auc>0.6"]',
    }
    assert dict(given) == wanted


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "wanted one of --model"),
        (["--model", "a:b"], "--model needs --data"),
        (["--pool", "4c", "--logits", "x.npz"], "came --logits and --pool"),
        (["--pool", "4c", "--epochs", "3"], "--epochs would change nothing"),
        (["--logits", "x.npz"], "no such file"),
        (["--pool", "4c", "--fail-if", "auc"], "wanted METRIC>LIMIT"),
        (["--pool", "4c", "-p", "colour=red"], "no parameter 'colour'"),
        (["--model", "a:b", "--data", "d", "-p", "epochs"], "wanted -p name=value"),
        (["--model", "a:b", "--data", "d", "--models", "many"], "invalid int value"),
    ],
)
def test_bad_options_are_one_line_and_status_two_before_anything_runs(
    words, says, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(["audit", *words])
    except SystemExit as leaving:  # argparse
        code = leaving.code
    said = capsys.readouterr().err
    assert code == 2 and says in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--logits", "x.npz", "-p", "queries=7", "-p", "output=memguard"],
            "--logits brings outputs: queries, output would change nothing; leave them out",
        ),
        (
            ["--pool", "4c", "-p", "lr=3", "-p", "queries=7"],
            "--pool brings trained models: lr would change nothing",
        ),
        (
            ["--model", "a:b", "--data", "d", "-p", "pool="],
            "--model brings a network: pool would change nothing; leave it out",
        ),
        (
            ["--model", "a:b", "--data", "d", "-p", "epochs=3", "--epochs", "50"],
            "epochs was given 2 times (--epochs 50, -p epochs=3)",
        ),
        (["--pool", "4c", "-p", "delta=1e-5", "-p", "delta=1e-6"], "delta was given 2 times"),
        (["--pool", "4c", "-p", "fail_if=[auc]"], "wanted METRIC>LIMIT"),
        (
            ["--pool", "4c", "-p", "fail_if=[auc>0.6]", "--fail-if", "auc>0.7"],
            "fail_if was given 2 times",
        ),
        (["--pool", "4c", "-p", "fail_if=['auc"], "not YAML"),
    ],
)
def test_a_parameter_that_would_change_nothing_or_came_twice_is_refused_in_one_line(
    words, says, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["audit", *words]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_every_parameter_of_the_notebook_is_known_to_apply_or_not_and_only_those_that_do_are_recorded():
    file = notebooks.find_notebook(command.NOTEBOOK, notebooks.folders(None))
    declared = {name: one.default for name, one in read_parameters(file).items()}
    always = {"fail_if", "attacks", "analysis", "results", "run"}
    assert always | {"logits", "pool", "recipe", "source", "query"} == set(declared)
    for changes, applying in (
        ({"logits": "x.npz"}, {"logits"}),
        ({"pool": "4c"}, {"pool", "query"}),
        ({}, {"recipe", "source", "query"}),
    ):
        assert set(provenance(declared | changes)["parameters"]) == always | applying
    bare = {*Recipe.model_fields, *Source.model_fields, "strategy", "workers"}
    assert bare <= set(MAKING) and set(Query.model_fields) <= set(QUERYING)


def test_a_builders_file_is_found_without_importing_the_package_around_it(tmp_path, monkeypatch):
    (tmp_path / "fragile/inner").mkdir(parents=True)
    (tmp_path / "fragile/__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "fragile/inner/net.py").write_text("x = 1\n")  # inner/ has no __init__.py
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose/net.py").write_text("xyz = 1\n")
    monkeypatch.chdir(tmp_path)
    for builder, file in (
        ("fragile.inner.net:make", "fragile/inner/net.py"),
        ("loose.net:make", "loose/net.py"),
    ):
        assert run_key.fingerprint(builder) == store.sha256_of(tmp_path / file)
    assert (
        run_key.fingerprint("fragile.absent:make") is None
        and run_key.fingerprint("sys:exit") is None
    )


def test_a_limit_on_a_rate_that_is_kept_names_a_tail_that_gives_members_away():
    """One member in fifty is above everybody else, all others are as non-members are."""
    rng = np.random.default_rng(0)
    member = in_pairs(8, 4000)
    value = rng.normal(size=member.shape)
    value[member & (rng.random(member.shape) < 0.02)] += 9
    limits = ONE(["tpr@0.1>0.3", "tpr@0.01>0.3"])
    at_10, at_1 = auditing.judge(limits, {"loss": scores(value, member)}, n_resamples=100)
    assert at_10.outcome == at_1.outcome == "not exceeded"
    assert "finds" in at_10.tail and "at 1 % false positives" in at_10.tail
    assert at_1.tail == ""  # 2,000 non-members measure no smaller rate
    nothing = rng.normal(size=member.shape)
    quiet = auditing.judge(limits, {"loss": scores(nothing, member)}, n_resamples=100)
    assert [one.tail for one in quiet] == ["", ""]
