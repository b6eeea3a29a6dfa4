"""Bootstrap, and paired differences against slow twins and known rates."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from mia_nb import metrics
from mia_nb.metrics import uncertainty as module
from mia_nb.types import Scores

FPR = (0.01, 0.1)


def pool(targets=8, samples=300, shift=0.7, *, seed=0, decimals=None, spread=0.0):
    """Scores of complementary pairs: members shifted up, by an amount that may differ from pair to pair."""
    rng = np.random.default_rng(seed)
    member = np.empty((targets, samples), bool)
    for row in range(0, targets, 2):
        member[row] = rng.permutation(samples) < samples // 2
        member[row + 1 :] = ~member[row]
    pair = np.arange(targets) // 2
    value = rng.normal(size=member.shape) + (shift + spread * rng.normal(size=targets))[pair][:, None] * member
    value = value if decimals is None else np.round(value, decimals)
    return Scores(value, member, np.arange(targets), pair, np.ones((targets, 2)), np.ones((targets, 2)), {})


def metrics_of(score, member):
    return [metrics.auc(score, member), metrics.advantage(score, member), *(metrics.tpr_at(score, member, x).tpr for x in FPR)]


@pytest.mark.parametrize("decimals", [None, 1, 0])
def test_integer_weights_equal_resampling_and_recomputing(decimals):
    scores = pool(6, 90, decimals=decimals)
    fast = np.stack(list(metrics.bootstrap(scores, FPR, draws=7, seed=3).values()), 1)
    sample_rng, pair_rng = (np.random.default_rng([3, stream]) for stream in range(2))
    samples = sample_rng.integers(0, 90, (7, 90))
    pairs = pair_rng.integers(0, 3, (7, 3))
    for draw in range(7):
        rows = np.concatenate([[2 * pair, 2 * pair + 1] for pair in pairs[draw]])
        columns = samples[draw]
        slow = np.mean([metrics_of(scores.value[row, columns], scores.member[row, columns]) for row in rows], 0)
        np.testing.assert_allclose(fast[draw], slow, atol=1e-12)


def test_draws_do_not_depend_on_how_many_are_held_at_once(monkeypatch):
    scores = pool(4, 100)
    whole = metrics.bootstrap(scores, FPR, draws=20)
    monkeypatch.setattr(module, "CHUNK", 300)
    monkeypatch.setattr(module, "TARGETS", 3)
    for name, draws in metrics.bootstrap(scores, FPR, draws=20).items():
        np.testing.assert_array_equal(draws, whole[name])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process here runs on all cores")
def test_draws_use_no_more_threads_than_there_are_cores_for_this_process(monkeypatch):
    asked, executor = [], module.ThreadPoolExecutor
    monkeypatch.setattr(module, "ThreadPoolExecutor", lambda threads: asked.append(threads) or executor(threads))
    monkeypatch.setattr(module, "TARGETS", 1)
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        metrics.bootstrap(pool(4, 50), FPR, draws=5)
    finally:
        os.sched_setaffinity(0, before)
    assert asked == [1]


def test_equal_infinite_scores_are_one_block_in_every_draw():
    scores = pool(4, 120)
    value = np.where(np.abs(scores.value) > 1, np.copysign(np.inf, scores.value), scores.value)
    finite = np.where(np.isinf(value), np.copysign(1e3, value), value)
    infinite, bounded = (metrics.bootstrap(replace(scores, value=one), FPR, draws=9) for one in (value, finite))
    for name in infinite:
        np.testing.assert_array_equal(infinite[name], bounded[name])


def test_unscored_samples_take_no_part():
    scores = pool(4, 100)
    value = np.hstack([scores.value, np.full((4, 30), np.nan)])
    member = np.hstack([scores.member, np.ones((4, 30), bool)])
    wider = replace(scores, value=value, member=member)
    np.testing.assert_array_equal(module.per_target_metrics(wider, FPR), module.per_target_metrics(scores, FPR))
    weights = np.hstack([np.arange(100)[None] % 4, np.full((1, 30), 9)])
    cut = module._weighted(weights[:, :100], module._sorted(scores.value[0], scores.member[0]), FPR)
    np.testing.assert_array_equal(module._weighted(weights, module._sorted(value[0], member[0]), FPR), cut)


@pytest.mark.parametrize("metric", ["auc", "tpr@0.1"])
def test_intervals_shrink_like_one_over_the_square_root_of_the_samples(metric):
    widths = []
    for samples in (400, 6400):
        one = metrics.intervals(pool(2, samples), FPR, draws=400).loc[metric]
        widths.append(one["bootstrap_high"] - one["bootstrap_low"])
    assert widths[0] / widths[1] == pytest.approx(4, rel=0.3)


def test_auc_interval_of_one_target_has_the_width_of_its_standard_error():
    scores = pool(2, 4000, shift=0.0)
    scores = Scores(*(getattr(scores, name)[:1] for name in ("value", "member", "targets", "pair", "accuracy", "loss")), {})
    one = metrics.intervals(scores, FPR, draws=2000).loc["auc"]
    assert one["high"] - one["low"] == pytest.approx(2 * 1.96 * metrics.auc_null_error(2000, 2000), rel=0.08)


def test_pairs_are_resampled_as_units_once_there_are_two_of_them():
    alike, unlike = pool(8, 2000, spread=0.0), pool(8, 2000, spread=0.5)
    width = [np.subtract(*metrics.intervals(scores, draws=300).loc["auc", ["high", "low"]]) for scores in (alike, unlike)]
    assert width[1] > 3 * width[0]
    pair = pool(2, 2000)
    names = ("value", "member", "targets", "pair", "accuracy", "loss")
    doubled = Scores(*(np.concatenate([getattr(pair, name)] * 2) for name in names), {})
    np.testing.assert_allclose(metrics.bootstrap(doubled, draws=9)["auc"], metrics.bootstrap(pair, draws=9)["auc"], rtol=1e-14)


@pytest.mark.slow
def test_the_two_way_interval_covers_the_true_auc():
    truth, inside = norm.cdf(0.7 / np.sqrt(2)), 0
    for seed in range(150):
        one = metrics.intervals(pool(16, 200, seed=seed), (0.1,), draws=300).loc["auc"]
        inside += one["low"] <= truth <= one["high"]
    assert inside / 150 >= 0.92  # resampling both ways errs on the wide side


@pytest.mark.parametrize(("targets", "spread", "shift"), [(8, 0.0, 0.7), (8, 0.5, 0.7), (4, 0.5, 2.0), (12, 0.5, 0.7)])
def test_headline_is_the_widest_interval_within_zero_and_one(targets, spread, shift):
    table = metrics.intervals(pool(targets, 400, shift, spread=spread), FPR, draws=300)
    for name, row in table.iterrows():
        kinds = ["bootstrap", *(["exact"] if name.startswith("tpr") else []), *(["t"] if targets < 10 else [])]
        widest = max(kinds, key=lambda kind, row=row: row[f"{kind}_high"] - row[f"{kind}_low"])
        assert (row["low"], row["high"]) == (max(row[f"{widest}_low"], 0), min(row[f"{widest}_high"], 1))
    assert np.isnan(table.loc["auc", "exact_low"])


def test_a_perfect_attack_on_few_samples_is_not_stated_without_an_interval():
    few = metrics.intervals(pool(8, 30, shift=50.0), FPR, draws=100).loc["auc"]
    assert few["value"] == 1 and (few["bootstrap_low"], few["high"]) == (1, 1)
    assert few["low"] == pytest.approx(0.025 ** (1 / 15))  # 15 pairs in one order: a^15 = 2.5 %
    upside_down = metrics.intervals(pool(8, 30, shift=-50.0), FPR, draws=100).loc["auc"]
    assert (upside_down["low"], upside_down["high"]) == pytest.approx((0, 1 - few["low"]))
    many = metrics.intervals(pool(8, 2000, shift=50.0), FPR, draws=20).loc["auc"]
    assert many["low"] == pytest.approx(0.9963, abs=1e-4)


@pytest.mark.slow
def test_two_pairs_of_models_that_leak_differently_are_covered_because_of_students_t():
    truth, covered = norm.cdf(0.7 / np.sqrt(2) / np.sqrt(1 + 0.2**2 / 2)), {"": 0, "bootstrap_": 0}
    for seed in range(150):
        row = metrics.intervals(pool(4, 300, seed=seed, spread=0.2), (0.1,), draws=200).loc["auc"]
        for kind in covered:
            covered[kind] += row[f"{kind}low"] <= truth <= row[f"{kind}high"]
    assert covered[""] / 150 >= 0.92 > covered["bootstrap_"] / 150


def test_a_zero_keeps_a_positive_upper_end():
    scores = pool(4, 2000, decimals=0)
    table = metrics.intervals(replace(scores, value=np.clip(scores.value, -1, 1)), (0.01,), draws=50)
    assert table.loc["tpr@0.01", "value"] == 0
    assert table.loc["tpr@0.01", "high"] == pytest.approx(0.003682, abs=1e-6)


@pytest.mark.parametrize(("targets", "filled"), [(2, False), (4, True), (8, True), (10, False)])
def test_few_pairs_also_get_the_student_interval_of_their_means(targets, filled):
    scores = pool(targets, 300)
    row = metrics.intervals(scores, FPR, draws=20).loc["auc"]
    assert np.isfinite(row["t_low"]) == filled
    if filled:
        means = [np.mean([metrics.auc(scores.value[t], scores.member[t]) for t in (p, p + 1)]) for p in range(0, targets, 2)]
        half = student.ppf(0.975, len(means) - 1) * np.std(means, ddof=1) / np.sqrt(len(means))
        np.testing.assert_allclose([row["t_low"], row["t_high"]], [np.mean(means) - half, np.mean(means) + half])


def test_a_difference_is_paired_and_therefore_narrow():
    a = pool(8, 1000)
    noise = 0.5 * np.random.default_rng(5).normal(size=a.value.shape)
    b = replace(a, value=a.value + noise)
    found = metrics.difference(a, b, FPR, draws=300).loc["auc"]
    alone = metrics.intervals(a, FPR, draws=300).loc["auc"]
    assert found["low"] > 0 and found["high"] - found["low"] < 0.7 * (alone["high"] - alone["low"])
    assert (metrics.difference(a, a, FPR, draws=20).to_numpy() == 0).all()
    with pytest.raises(ValueError, match="same masks"):
        metrics.difference(a, pool(8, 1000, seed=9), FPR, draws=2)


def test_a_seed_fixes_every_draw():
    scores = pool(6, 200)
    first, again, other = (metrics.bootstrap(scores, FPR, draws=10, seed=seed)["auc"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
