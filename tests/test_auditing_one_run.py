"""Audits in one training run and in several: published values, coverage, fair coins, and what they
may not read.
"""

import json
import os
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from attack_worlds import signals
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binom

from mia_nb.attacks import score
from mia_nb.auditing.coins import check_bernoulli, coin_fault
from mia_nb.auditing.one_run import (
    GRID,
    audit,
    numbers_tried,
    one_run,
    one_run_epsilon,
    score_split,
)
from mia_nb.types import Scores

STEINKE = [  # m, r, v, delta, epsilon, tolerance: the first two published
    (1000, 100, 75, 1e-4, 0.673, 2e-3),
    (100000, 1510, 1439, 1e-5, 2.675, 2e-3),
    (1000, 1000, 600, 1e-5, 0.2972, 5e-5),
    (1000, 1000, 500, 1e-5, 0, 0),
    (1000, 1000, 1000, 1e-5, 5.7823, 5e-5),
]


def bound(m, r, v, delta=1e-5, **options):
    return one_run_epsilon(canaries=m, guesses=r, correct=v, delta=delta, **options)


@pytest.mark.parametrize(("m", "r", "v", "delta", "wanted", "tolerance"), STEINKE)
def test_the_bound_for_any_training_agrees_with_its_paper(m, r, v, delta, wanted, tolerance):
    assert bound(m, r, v, delta) == pytest.approx(wanted, abs=tolerance)


def test_the_bound_agrees_with_computed_tables():
    if not (folder := os.environ.get("MIA_NB_GOLDEN")):
        pytest.skip("MIA_NB_GOLDEN is not set")
    tables = json.loads((Path(folder) / "audit.json").read_text())
    for case in tables["steinke_one_run"]:
        assert bound(case["m"], case["r"], case["v"], case["delta"]) == pytest.approx(
            case["eps"], abs=1e-8
        )
    for case in tables["xiang_one_run_gaussian"]:
        counts = (case["n"], case["r"], case["r"] - case["errors"], case["delta"])
        assert bound(*counts) == pytest.approx(case["eps_steinke"], abs=1e-8)


def test_the_p_value_at_the_bound_is_alpha_by_the_formula_written_out():
    m, r, v, delta = 400, 60, 50, 1e-3
    q = 1 / (1 + np.exp(-bound(m, r, v, delta)))
    tail = [binom.sf(j - 1, r, q) for j in range(v + 1)]
    p = tail[v] + 2 * m * delta * max((tail[v - i] - tail[v]) / i for i in range(1, v + 1))
    assert p == pytest.approx(0.05, abs=1e-7)


def test_more_correct_guesses_never_lower_a_bound_and_more_confidence_never_raises_it():
    rising = [bound(500, 100, v) for v in range(40, 101, 6)]
    assert (np.diff(rising) >= 0).all() and rising[0] == 0 < rising[-1]
    surer = [bound(500, 100, 90, confidence=c) for c in (0.8, 0.95, 0.999)]
    assert (np.diff(surer) < 0).all()


def test_fifty_thousand_canaries_take_less_than_a_second():
    for guesses, correct in ((50_000, 30_000), (12_500, 12_000), (50_000, 45_000), (500, 500)):
        start = process_time()
        assert bound(50_000, guesses, correct) > 0
        assert process_time() - start < 1


def slow_steinke(m, r, v, delta, alpha=0.05):
    """Every value of the pmf, one after the other."""
    below = np.arange(v - 1, -1, -1)

    def excess(epsilon):
        q = expit(epsilon)
        means = np.cumsum(binom.pmf(below, r, q)) / np.arange(1, v + 1)
        return binom.sf(v - 1, r, q) + 2 * m * delta * means.max() - alpha

    return 0.0 if excess(0.0) >= 0 else brentq(excess, 0.0, 40.0, xtol=1e-12)


@pytest.mark.parametrize("m", [1, 7, 100, 8000])
def test_the_bound_by_bisection_agrees_with_the_sum_over_all_counts(m):
    rng = np.random.default_rng(m)
    for r in {1, m // 10 or 1, m // 2 or 1, m}:
        for v in {1, r, r * 9 // 10, r * 6 // 10, (r + 1) // 2, int(rng.integers(r + 1))} - {0}:
            for delta in (0.0, 1e-5, 1e-3, 0.05):
                assert bound(m, r, v, delta) == pytest.approx(
                    slow_steinke(m, r, v, delta), abs=1e-9
                ), (r, v, delta)


def test_a_thousand_million_canaries_are_judged_at_once():
    m, start = 10**9, process_time()
    few = [bound(m, r, v, 1e-11) for r, v in ((m, 6 * 10**8), (10**6, 10**6), (m, 5 * 10**8))]
    assert process_time() - start < 1
    assert few[0] > 0.4 and few[1] > 5 and few[2] == 0
    # thirty standard deviations above chance
    at = [bound(n, n, int(n / 2 + 15 * n**0.5), 0.01 / n) for n in (10**8, 10**9)]
    assert 0 < at[1] < at[0] < 5 * at[1]
    with pytest.raises(ValueError, match="at most 10,000,000,000; audit a part"):
        bound(10**12, 10, 9)


def test_bounds_stay_below_the_truth_of_a_gaussian_channel_in_95_percent_of_runs():
    """Scores N(+-1/2, 1) of 1000 canaries: mu = 1, whose exact epsilon at 1e-5 is 4.377; 250
    guesses a run.
    """
    rng, runs, m, r, truth = np.random.default_rng(9), 1500, 1000, 250, 4.3772
    coin = rng.random((runs, m)) < 0.5
    ranked = np.take_along_axis(coin, (rng.standard_normal((runs, m)) + coin).argsort(1), axis=1)
    correct = ranked[:, -r // 2 :].sum(1) + (~ranked[:, : r // 2]).sum(1)
    known = cache(lambda v: bound(m, r, v))
    bounds = np.array([known(int(v)) for v in correct])
    assert (bounds > truth).sum() <= runs * 0.05 + 3 * np.sqrt(runs * 0.05 * 0.95)
    assert bounds.mean() == pytest.approx(1.46, abs=0.05)


def test_highest_scores_are_guessed_in_and_lowest_out():
    score = np.arange(10.0)
    member = np.array([0, 0, 0, 1, 0, 1, 1, 1, 0, 1], bool)
    assert one_run(score, member, delta=1e-5, guesses=5).correct == 2 + 2  # 9, 8, 7 in; 0, 1 out
    assert one_run(score, member, delta=1e-5, guesses=10).correct == 4 + 4
    assert one_run(-score, member, delta=1e-5, guesses=10).correct == 1 + 1


def test_the_preset_numbers_of_guesses_pay_for_each_other():
    rng = np.random.default_rng(0)
    coin = rng.random(2000) < 0.5
    score = rng.standard_normal(2000) + 2 * coin
    record = one_run(score, coin, delta=1e-5)
    each = [
        one_run(score, coin, delta=1e-5, guesses=round(g * 2000), confidence=1 - 0.05 / 4)
        for g in GRID
    ]
    assert record.epsilon == max(one.epsilon for one in each) > 0
    assert record.alpha == pytest.approx(0.05 / 4) and record.label == "at least"
    assert record.epsilon < max(
        one_run(score, coin, delta=1e-5, guesses=round(g * 2000)).epsilon for g in GRID
    )


def test_numbers_of_guesses_that_could_certify_nothing_do_not_make_the_others_pay():
    """160 canaries: of 2, 8, 40 and 160 guesses 2^-2 > 0.05 / 4, but 2^-8 < 0.05 / 3."""
    rng = np.random.default_rng(10)
    coin = rng.random(160) < 0.5
    record = one_run(rng.standard_normal(160) + 2 * coin, coin, delta=0)
    assert record.tried == (8, 40, 160) and record.alpha == pytest.approx(0.05 / 3)
    assert record.at_most == max(
        bound(160, r, r, delta=0, confidence=1 - 0.05 / 3) for r in (8, 40, 160)
    )
    for m, alpha, delta in product((3, 10, 100, 3000), (0.05, 1e-4), (1e-5, 1e-3)):
        tried = numbers_tried(m, alpha, delta)
        most = [bound(m, r, r, delta, confidence=1 - alpha / len(tried)) for r in tried]
        assert min(most) > 0 or tried == (m,), (m, alpha, delta)
        assert len(set(tried)) == len(tried) and tried[-1] == m
    assert numbers_tried(120, 0.05, 0.0) == (6, 30, 120)  # 0.05 / 4 < 2^-6 < 0.05 / 3
    assert numbers_tried(10_000, 0.05, 1e-5) == (100, 500, 2500, 10_000)


def test_the_number_of_guesses_is_fixed_before_any_coin_is_seen():
    rng = np.random.default_rng(11)
    seen = {
        one_run(
            rng.standard_normal(120) + s * 3 * (c := rng.random(120) < 0.5), c, delta=1e-5
        ).tried
        for s in range(8)
    }
    assert len(seen) == 1


def test_a_bound_of_zero_names_the_most_guesses_and_not_one_that_was_right():
    coin = np.arange(3000) % 2 == 0
    record = one_run(np.where(np.arange(3000) == 0, 1.0, 0.0), coin, delta=1e-5)
    assert record.epsilon == 0 and record.guesses == 3000 and 1300 < record.correct < 1700


def test_scores_that_are_all_equal_give_no_more_than_chance():
    # sorted by membership: an order of the canaries that must not help
    coin = np.arange(1000) < 500
    correct = [
        one_run(np.zeros(1000), coin, delta=1e-5, guesses=200, seed=seed).correct
        for seed in range(30)
    ]
    assert abs(np.mean(correct) - 100) < 4 * np.sqrt(200 / 4 / 30) and np.std(correct) > 2


def test_canaries_without_a_score_are_left_out():
    rng = np.random.default_rng(3)
    coin = rng.random(500) < 0.5
    score = rng.standard_normal(500) + 3 * coin
    gone = rng.random(500) < 0.2
    whole = one_run(score[~gone], coin[~gone], delta=1e-5)
    with_nan = one_run(np.where(gone, np.nan, score), coin, delta=1e-5)
    assert with_nan.canaries == (~gone).sum()
    assert with_nan[:2] == whole[:2]


def test_a_random_score_gives_zero_in_at_least_95_percent_of_runs():
    rng, known = np.random.default_rng(5), 0
    for _ in range(300):
        known += one_run(rng.standard_normal(400), rng.random(400) < 0.5, delta=1e-5).epsilon > 0
    assert known <= 300 * 0.05 + 2 * np.sqrt(300 * 0.05 * 0.95)


def pool(rng, targets=6, samples=600, shift=0.0):
    member = rng.random((targets, samples)) < 0.5
    value = rng.standard_normal(member.shape) + np.broadcast_to(shift, targets)[:, None] * member
    side = np.zeros((targets, 2))
    return Scores(
        value, member, np.arange(targets) * 3, np.arange(targets), side, side, {"attack": "rmia"}
    )


def test_the_audit_reports_the_leaking_target_after_correction():
    scores = pool(np.random.default_rng(6), shift=[0, 0, 0, 3, 0, 0])
    record = audit(scores, delta=1e-5, attempts=2)
    assert record.target == 9 and record.epsilon > 1 and record.attack == "rmia"
    # 6 could certify nothing
    assert record.alpha == pytest.approx(0.05 / (6 * 2 * 3)) and record.tried == (30, 150, 600)
    alone = one_run(scores.value[3], scores.member[3], delta=1e-5, confidence=1 - 0.05 / 12)
    assert (record.epsilon, record.guesses, record.correct) == (
        alone.epsilon,
        alone.guesses,
        alone.correct,
    )
    assert audit(scores, delta=1e-5).epsilon > record.epsilon


def test_audits_of_targets_that_leak_nothing_are_zero_in_95_percent_of_pools():
    found = sum(
        audit(pool(np.random.default_rng(seed), samples=300), delta=1e-5).epsilon > 0
        for seed in range(100)
    )
    assert found <= 5 + 2 * np.sqrt(100 * 0.05 * 0.95)


def designs():
    rng = np.random.default_rng(8)
    half = rng.random((4, 500)).argsort(1) < 250
    return {
        "pairs": (np.vstack([half, ~half]), "complement"),
        "exact halves": (rng.random((4, 500)).argsort(1) < 250, "exact halves"),
        "balanced": (rng.random((8, 500)).argsort(0) < 4, "0.00 times"),
        "rare": (rng.random((4, 500)) < 0.3, "far from one half"),
        "some in most models, some in few": (
            rng.random((8, 500)) < np.where(np.arange(500) % 2, 0.8, 0.2),
            "3.* times",
        ),
        "same coins twice": (np.repeat(rng.random((2, 500)) < 0.5, 2, axis=0), "equal another"),
    }


@pytest.mark.parametrize("name", designs())
def test_designs_that_are_no_fair_coins_are_refused(name):
    member, message = designs()[name]
    with pytest.raises(ValueError, match=message):
        check_bernoulli(member)


def test_two_rows_of_a_pool_of_pairs_are_refused_by_the_word_of_their_design():
    rng = np.random.default_rng(12)
    half = rng.random((4, 301)).argsort(1) < 150
    member = np.stack([half, ~half], 1).reshape(8, 301)
    found = signals(rng.standard_normal(member.shape), member)
    check_bernoulli(member[[0, 3]])  # nothing shows it
    for words, refused in (
        ({"split": "pairs"}, True),
        ({"split": "bernoulli"}, False),
        ({}, False),
    ):
        scores = score("loss", replace(found, info=words), targets=[0, 3])
        assert scores.info.get("split") == words.get("split")
        if refused:
            with pytest.raises(ValueError, match="drawn in pairs"):
                audit(scores, delta=1e-5)
        else:
            assert audit(scores, delta=1e-5).runs == 1


def test_few_fair_coins_are_refused_no_more_often_than_stated():
    # 2 models, 5 samples: each of the 1,024 masks in turn
    for bits in product([False, True], repeat=10):
        check_bernoulli(np.reshape(bits, (2, 5)))
    refused = 0
    for seed in range(3000):
        rng = np.random.default_rng(seed)
        models, samples = rng.integers(2, 9), rng.integers(2, 25)
        refused += bool(coin_fault(rng.random((models, samples)) < 0.5))
    assert refused <= 2
    # the lower tail still counts where halves of all samples are a miracle
    for models, samples in ((2, 21), (4, 15), (5, 31)):
        balanced = np.arange(models)[:, None] < models // 2
        with pytest.raises(ValueError, match="varies"):
            check_bernoulli(shuffled_columns(balanced, samples))


def shuffled_columns(column: np.ndarray, samples: int) -> np.ndarray:
    """(M, samples): a column (M, 1), in another order for each sample."""
    rng = np.random.default_rng(0)
    return rng.permuted(np.repeat(column, samples, axis=1), axis=0)


def test_fair_coins_are_accepted():
    for seed in range(500):
        rng = np.random.default_rng(seed)
        check_bernoulli(rng.random((rng.integers(1, 17), rng.integers(10, 400))) < 0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bound(10, 20, 5), "guesses=20, canaries=10"),
        (lambda: bound(10, 5, 6), "correct=6"),
        (lambda: one_run(np.zeros(3), np.zeros(4, bool), delta=1e-5), "two equal vectors"),
        (lambda: one_run(np.full(3, np.nan), np.zeros(3, bool), delta=1e-5), "none of 3 canaries"),
        (
            lambda: one_run(np.zeros(3), np.zeros(3, bool), delta=1e-5, guesses=4),
            "guesses=4: wanted 1 to 3",
        ),
        (lambda: bound(100, 50.7, 40), "guesses=50.7: wanted a whole number"),
        (lambda: bound(100, 50, 40.9), "correct=40.9"),
        (lambda: bound(np.nan, 5, 4), "canaries=nan"),
        (
            lambda: one_run(np.zeros(3), np.zeros(3, bool), delta=1e-5, guesses=1.5),
            "guesses=1.5: wanted a whole number",
        ),
        (
            lambda: one_run(np.zeros(3), np.zeros(3, bool), delta=1e-5, confidence=95),
            "95 % is 0.95",
        ),
        (lambda: one_run(np.zeros(3), np.zeros(3, bool), delta=-1), "delta=-1"),
        (
            lambda: one_run(np.zeros(3), np.array([0, 1, np.nan]), delta=1e-5),
            "wanted booleans, or the whole numbers 0 and 1",
        ),
        (
            lambda: one_run(np.zeros(3), np.array([0, 1, 0.2]), delta=1e-5),
            "wanted booleans, or the whole numbers 0 and 1",
        ),
        (
            lambda: check_bernoulli(np.full((2, 50), 0.5)),
            "wanted booleans, or the whole numbers 0 and 1",
        ),
        (lambda: audit(pool(np.random.default_rng(0)), delta=1e-5, attempts=1.5), "attempts=1.5"),
        (lambda: audit(pool(np.random.default_rng(0)), delta=1e-5, attempts=0), "attempts=0"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def answers(rng, epsilon, models=8, samples=250):
    """Models whose margin says IN or OUT by randomised response: exactly (epsilon, 0)-DP, one coin
    at a time.
    """
    member = rng.random((models, samples)) < 0.5
    honest = rng.random(member.shape) < 1 / (1 + np.exp(-epsilon))
    return signals(
        np.where(honest == member, 3.0, -3.0) + 0.01 * rng.standard_normal(member.shape), member
    )


def test_runs_together_come_nearer_to_the_truth_and_exceed_it_no_more_often_than_stated():
    truth, together, alone = 1.0, [], []
    for seed in range(120):
        found = answers(np.random.default_rng(seed), truth)
        record = audit(score_split("loss", found), delta=0.0)
        assert (record.runs, record.target, record.canaries) == (4, None, 1000)
        assert (
            record.alpha == pytest.approx(0.05 / 4) and "share no randomness" in record.conditions
        )
        together.append(record.epsilon)
        alone.append(audit(score("loss", found), delta=0.0).epsilon)
    assert np.mean(np.array(together) > truth) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 120)
    assert np.mean(together) > np.mean(alone) + 0.05 and np.mean(together) > 0.7 * truth


def test_runs_together_are_one_audit_of_all_their_coins():
    scores = score_split("rmia", answers(np.random.default_rng(1), 2.0))
    record = audit(scores, delta=1e-5, attempts=3)
    whole = one_run(
        scores.value.ravel(),
        scores.member.ravel(),
        delta=1e-5,
        confidence=1 - 0.05 / 3,
    )
    assert (record.epsilon, record.correct, record.canaries) == (
        whole.epsilon,
        whole.correct,
        whole.canaries,
    )


def test_guesses_that_look_at_each_others_coins_are_never_added_up():
    """Guess that all coins of a sample have an even sum: right half of the time, but for all
    targets at once.
    """
    above = 0
    for seed in range(60):
        scores = pool(np.random.default_rng(seed), targets=16, samples=200)
        others = scores.member.sum(0) - scores.member
        scores = replace(scores, value=np.where(others % 2 == 1, 1.0, -1.0) * (1 + scores.value**2))
        forced = (scores.value.ravel(), scores.member.ravel())  # as if they were disjoint
        above += one_run(*forced, delta=0.0, guesses=3200).epsilon > 0
        assert audit(scores, delta=0.0).runs == 1
    assert above > 15  # 5 % were stated: this is why


def test_few_models_are_audited_one_by_one():
    few = answers(np.random.default_rng(0), 2.0, models=3)
    record = audit(score_split("loss", few), delta=1e-5)
    assert record.runs == 1 and record.target in (0, 1, 2)
