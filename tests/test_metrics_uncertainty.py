"""Draws and intervals against slow twins, closed forms and known rates of coverage."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from mia_nb import auditing, metrics
from mia_nb.metrics import bootstrap as module
from mia_nb.metrics.bootstrap import bootstrap
from mia_nb.metrics.curve import advantage, auc_null_error
from mia_nb.metrics.frontier_table import frontier_means
from mia_nb.metrics.targets import per_target_metrics
from mia_nb.studies.compare import ratio_interval
from mia_nb.studies.study import Contrast
from mia_nb.types import Scores

FPR = (0.01, 0.1)


def pool(targets=8, samples=300, shift=0.7, *, seed=0, decimals=None, spread=0.0):
    """Scores of complementary pairs: members shifted up, by an amount that may differ from pair to
    pair.
    """
    rng = np.random.default_rng(seed)
    member = np.empty((targets, samples), bool)
    for row in range(0, targets, 2):
        member[row] = rng.permutation(samples) < samples // 2
        member[row + 1 :] = ~member[row]
    pair = np.arange(targets) // 2
    value = (
        rng.normal(size=member.shape)
        + (shift + spread * rng.normal(size=targets))[pair][:, None] * member
    )
    value = value if decimals is None else np.round(value, decimals)
    return Scores(
        value, member, np.arange(targets), pair, np.ones((targets, 2)), np.ones((targets, 2)), {}
    )


def metrics_of(score, member):
    return [
        metrics.auc(score, member),
        advantage(score, member),
        *(metrics.tpr_at(score, member, x).tpr for x in FPR),
    ]


def test_no_interval_leaves_the_range_of_what_it_is_about():
    scores = pool(6, 60, shift=1.5, spread=3.0)  # three pairs that are nothing alike
    table = metrics.summary({"wild": scores}, n_resamples=20)
    auc, tpr = metrics.by_attack(table, "auc"), metrics.by_attack(table, "tpr", 0.1)
    for rows in (auc, tpr):
        assert 0 <= rows.loc["wild", "low"] <= rows.loc["wild", "high"] <= 1
    # Student's t over them would go beyond both
    assert (auc.loc["wild", ["low", "high"]] == [0, 1]).all()


@pytest.mark.parametrize("decimals", [None, 1, 0])
def test_integer_weights_equal_resampling_and_recomputing(decimals):
    scores = pool(6, 90, decimals=decimals)
    fast = np.stack(list(bootstrap(scores, FPR, n_resamples=7, seed=3).values()), 2)
    for draw, columns in enumerate(np.random.default_rng([3, 0]).integers(0, 90, (7, 90))):
        slow = [
            metrics_of(scores.value[row, columns], scores.member[row, columns]) for row in range(6)
        ]
        np.testing.assert_allclose(fast[draw], slow, atol=1e-12)


def test_draws_do_not_depend_on_how_many_are_held_at_once(monkeypatch):
    scores = pool(4, 100)
    whole = bootstrap(scores, FPR, n_resamples=20)
    monkeypatch.setattr(module, "CHUNK", 300)
    monkeypatch.setattr(module, "TARGETS_PER_THREAD", 3)
    for name, draws in bootstrap(scores, FPR, n_resamples=20).items():
        np.testing.assert_array_equal(draws, whole[name])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process here runs on all cores")
def test_draws_use_no_more_threads_than_there_are_cores_for_this_process(monkeypatch):
    asked, executor = [], module.ThreadPoolExecutor
    monkeypatch.setattr(
        module, "ThreadPoolExecutor", lambda threads: asked.append(threads) or executor(threads)
    )
    monkeypatch.setattr(module, "TARGETS_PER_THREAD", 1)
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        bootstrap(pool(4, 50), FPR, n_resamples=5)
    finally:
        os.sched_setaffinity(0, before)
    assert asked == [1]


def test_equal_infinite_scores_are_one_block_in_every_draw():
    scores = pool(4, 120)
    value = np.where(np.abs(scores.value) > 1, np.copysign(np.inf, scores.value), scores.value)
    finite = np.where(np.isinf(value), np.copysign(1e3, value), value)
    infinite, bounded = (
        bootstrap(replace(scores, value=one), FPR, n_resamples=9) for one in (value, finite)
    )
    for name in infinite:
        np.testing.assert_array_equal(infinite[name], bounded[name])


def test_unscored_samples_take_no_part():
    scores = pool(4, 100)
    value = np.hstack([scores.value, np.full((4, 30), np.nan)])
    member = np.hstack([scores.member, np.ones((4, 30), bool)])
    wider = replace(scores, value=value, member=member)
    np.testing.assert_array_equal(per_target_metrics(wider, FPR), per_target_metrics(scores, FPR))
    weights = np.hstack([np.arange(100)[None] % 4, np.full((1, 30), 9)])
    cut = module._resampled_metrics(
        weights[:, :100], module._ranked(scores.value[0], scores.member[0]), FPR
    )
    np.testing.assert_array_equal(
        module._resampled_metrics(weights, module._ranked(value[0], member[0]), FPR), cut
    )


@pytest.mark.parametrize("metric", ["auc", "tpr@0.1"])
def test_intervals_shrink_like_one_over_the_square_root_of_the_samples(metric):
    widths = []
    for samples in (400, 6400):
        one = metrics.intervals(pool(2, samples), FPR, n_resamples=400).loc[metric]
        widths.append(one["high"] - one["low"])
    assert widths[0] / widths[1] == pytest.approx(4, rel=0.3)


def test_auc_interval_of_one_target_has_the_width_of_its_standard_error():
    scores = pool(2, 4000, shift=0.0)
    scores = Scores(
        *(
            getattr(scores, name)[:1]
            for name in ("value", "member", "targets", "pair", "accuracy", "loss")
        ),
        {},
    )
    one = metrics.intervals(scores, FPR, n_resamples=2000).loc["auc"]
    assert one["high"] - one["low"] == pytest.approx(
        2 * 1.96 * auc_null_error(2000, 2000), rel=0.08
    )


def test_pairs_that_leak_differently_widen_the_interval():
    alike, unlike = pool(8, 2000, spread=0.0), pool(8, 2000, spread=0.5)
    width = [
        np.subtract(*metrics.intervals(scores, n_resamples=300).loc["auc", ["high", "low"]])
        for scores in (alike, unlike)
    ]
    assert width[1] > 3 * width[0]


@pytest.mark.parametrize("targets", [4, 6, 8, 20])
def test_an_interval_is_students_over_pairs_and_what_pairs_share_by_their_samples(targets):
    rng = np.random.default_rng(targets)
    pair, shared = np.arange(targets) // 2, rng.normal(size=(4000, 1))
    shared = (shared - shared.mean()) / shared.std()
    value, draws = rng.normal(size=targets), 0.3 * shared + 0.1 * rng.normal(size=(4000, targets))
    low, high = metrics.interval(value, pair, draws)
    pairs, means = targets // 2, value.reshape(-1, 2).mean(1)
    quantile = student.ppf(0.9875 if pairs == 3 else 0.975, pairs - 1)
    # own noise of 0.1 is in the spread over pairs
    wanted = quantile**2 * means.var(ddof=1) / pairs + 1.96**2 * 0.3**2
    assert high - low == pytest.approx(2 * np.sqrt(wanted), rel=0.05) and (
        low + high
    ) / 2 == pytest.approx(value.mean())
    # never below what samples alone show
    alike = metrics.interval(np.full(targets, 0.5), pair, draws)
    assert np.subtract(*alike[::-1]) == pytest.approx(
        2 * 1.96 * np.hypot(0.3, 0.1 / np.sqrt(targets)), rel=0.05
    )
    low, high = metrics.interval(value, pair)
    np.testing.assert_allclose(high - low, 2 * quantile * means.std(ddof=1) / np.sqrt(pairs))


def test_one_pair_has_the_interval_of_its_samples_and_none_without_draws():
    draws = np.random.default_rng(0).normal(size=(4000, 2))
    low, high = metrics.interval(np.array([0.5, 0.7]), np.zeros(2), draws)
    assert high - low == pytest.approx(2 * 1.96 / np.sqrt(2), rel=0.05)
    assert np.isnan(metrics.interval(np.array([0.5, 0.7]), np.zeros(2))).all()


def test_summary_frontier_and_gate_give_one_interval():
    scores = pool(16, 1200, 0.4, spread=0.3)
    table = metrics.summary({"rmia": scores}, (0.1,))
    means = frontier_means(metrics.frontier({"cnn": {1: {"rmia": scores}}}, (0.1,))).iloc[0]
    stated = auditing.limits(["auc>0.6", "tpr@0.1>0.2"])
    found = {one.metric: one for one in auditing.judge(stated, {"rmia": scores})}
    for name, rate in (("auc", None), ("tpr@0.1", 0.1)):
        row = metrics.by_attack(table, name.removesuffix("@0.1"), rate).loc["rmia"]
        own = (row["low"], row["high"])
        assert (
            own
            == (means[f"{name}_low"], means[f"{name}_high"])
            == (found[name].low, found[name].high)
        )


@pytest.mark.slow
def test_the_two_way_interval_covers_the_true_auc():
    truth, inside = norm.cdf(0.7 / np.sqrt(2)), 0
    for seed in range(150):
        one = metrics.intervals(pool(16, 200, seed=seed), (0.1,), n_resamples=300).loc["auc"]
        inside += one["low"] <= truth <= one["high"]
    assert inside / 150 >= 0.92  # resampling both ways errs on the wide side


def one_model(value, member):
    facts = np.ones((1, 2))
    return Scores(value[None], member[None], np.arange(1), np.arange(1), facts, facts, {})


def test_one_group_on_a_side_says_nothing_of_other_samples():
    member = np.arange(200) < 100
    value = np.random.default_rng(0).normal(size=200) + 1.2 * member
    for groups in (~member, np.where(member, np.arange(200), -1)):  # 1 and 1, 100 and 1
        table = metrics.intervals(one_model(value, member), n_resamples=50, groups=groups)
        assert (table[["low", "high"]] == [0, 1]).all(axis=None)
    # nor where the samples of all groups but one were not scored
    unscored = one_model(np.where(np.arange(200) < 150, value, np.nan), member)
    table = metrics.intervals(unscored, n_resamples=50, groups=np.arange(200) // 50)
    assert (table[["low", "high"]] == [0, 1]).all(axis=None)
    verdict, *_ = auditing.judge(
        auditing.limits(["auc>0.6"]), {"a": one_model(value, member)}, groups=~member
    )
    assert (verdict.outcome, verdict.low, verdict.high) == ("not established", 0, 1)


def test_exact_intervals_count_groups_in_place_of_samples_and_t_those_of_the_smaller_side():
    member = np.arange(200) < 100
    noise = np.random.default_rng(0).normal(size=200)
    groups = np.where(member, np.arange(200) // 20, np.arange(200) // 10)  # 5 of members, 10 others
    perfect = metrics.intervals(
        one_model(noise + 20 * member, member), FPR, n_resamples=50, groups=groups
    )
    assert perfect.loc["auc", "low"] == pytest.approx(0.025 ** (1 / 5))
    assert perfect.loc["tpr@0.1", "low"] == pytest.approx(0.025 ** (1 / 5))
    scores = one_model(noise + 0.7 * member, member)
    sd = bootstrap(scores, FPR, n_resamples=50, groups=groups)["advantage"].std(ddof=1)
    found = metrics.intervals(scores, FPR, n_resamples=50, groups=groups).loc["advantage"]
    assert found["high"] - found["value"] == pytest.approx(student.ppf(0.975, 4) * sd)


def test_few_groups_take_students_t_with_several_pairs_too():
    scores = pool(8, 300)
    groups = np.arange(300) // 60
    shared = bootstrap(scores, FPR, n_resamples=100, groups=groups)
    table = metrics.intervals(scores, FPR, n_resamples=100, groups=groups)
    half = table.loc["auc", "value"] - table.loc["auc", "low"]
    assert half >= student.ppf(0.975, 4) * shared["auc"].mean(1).std(ddof=1)


def test_samples_that_are_groups_of_one_have_almost_the_interval_of_ungrouped_samples():
    scores = pool(2, 3000)
    alone = metrics.intervals(scores, FPR, n_resamples=50)
    grouped = metrics.intervals(scores, FPR, n_resamples=50, groups=np.arange(3000))
    np.testing.assert_allclose(grouped, alone, atol=1e-4)


def test_a_perfect_or_powerless_advantage_has_an_interval():
    q = 1 - 0.0125 ** (1 / 15)  # a share that all of 15 samples miss at 1.25 %
    perfect = metrics.intervals(pool(8, 30, shift=50.0), FPR, n_resamples=20).loc["advantage"]
    assert perfect.to_list() == pytest.approx([1, 1 - 2 * q, 1])
    inverted = metrics.intervals(pool(8, 30, shift=-50.0), FPR, n_resamples=20).loc["advantage"]
    assert inverted.to_list() == pytest.approx([0, 0, q])
    member = np.arange(50) < 10
    unequal = metrics.summary({"a": one_model(member.astype(float), member)}, n_resamples=20)
    low = 1 - (1 - 0.0125 ** (1 / 10)) - (1 - 0.0125 ** (1 / 40))
    assert metrics.by_attack(unequal, "advantage").loc["a", "low"] == pytest.approx(low)
    balanced = metrics.by_attack(unequal, "balanced_accuracy").loc["a"]
    assert balanced[["low", "high"]].to_list() == pytest.approx([(1 + low) / 2, 1])


def test_a_perfect_attack_on_few_samples_is_not_stated_without_an_interval():
    few = metrics.intervals(pool(8, 30, shift=50.0), FPR, n_resamples=100).loc["auc"]
    assert few["value"] == few["high"] == 1
    assert few["low"] == pytest.approx(0.025 ** (1 / 15))  # 15 pairs in one order: a^15 = 2.5 %
    upside_down = metrics.intervals(pool(8, 30, shift=-50.0), FPR, n_resamples=100).loc["auc"]
    assert (upside_down["low"], upside_down["high"]) == pytest.approx((0, 1 - few["low"]))
    many = metrics.intervals(pool(8, 2000, shift=50.0), FPR, n_resamples=20).loc["auc"]
    assert many["low"] == pytest.approx(0.9963, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("targets", [4, 16])
def test_models_that_leak_differently_are_covered(targets):
    truth, covered = norm.cdf(0.7 / np.sqrt(2) / np.sqrt(1 + 0.2**2 / 2)), 0
    for seed in range(150):
        row = metrics.intervals(
            pool(targets, 1000, seed=seed, spread=0.2), (), n_resamples=100
        ).loc["auc"]
        covered += row["low"] <= truth <= row["high"]
    assert covered / 150 >= 0.9  # 0.95 less two and a half standard errors


def test_a_zero_keeps_a_positive_upper_end():
    scores = pool(4, 2000, decimals=0)
    table = metrics.intervals(
        replace(scores, value=np.clip(scores.value, -1, 1)), (0.01,), n_resamples=50
    )
    assert table.loc["tpr@0.01", "value"] == 0
    assert table.loc["tpr@0.01", "high"] == pytest.approx(0.003682, abs=1e-6)


def test_the_lower_end_of_a_rate_allows_for_the_threshold_between_two_false_positives():
    scores = pool(16, 400, 1.5)
    rows, (low, high) = (
        metrics.per_target(scores, (0.1,)),
        metrics.intervals(scores, (0.1,)).loc["tpr@0.1", ["low", "high"]],
    )
    fewer = [
        metrics.tpr_at(v, m, 19 / 200).tpr for v, m in zip(scores.value, scores.member, strict=True)
    ]
    np.testing.assert_allclose(rows["tpr@0.1_fewer"], fewer)
    assert (low + high) / 2 == pytest.approx(
        rows["tpr@0.1"].mean() - np.mean(rows["tpr@0.1"] - fewer) / 2
    )


def test_the_interval_of_a_ratio_is_fiellers():
    rng = np.random.default_rng(3)
    b = 2 + 0.2 * rng.normal(size=12)
    a, pair = 3 * b + 0.1 * rng.normal(size=12), np.arange(12)
    low, high = ratio_interval(a, b, pair)
    for r in (low, high):
        ends = metrics.interval(a - r * b, pair)
        # 0 lies on the border of the interval of a - r b
        assert min(abs(ends[0]), abs(ends[1])) < 1e-9
    draws = 0.01 * rng.normal(size=(500, 1))
    wider = ratio_interval(a, b, pair, a + draws, b + 0 * draws)
    assert wider[0] < low < 3 < high < wider[1]
    assert (
        ratio_interval(a, np.zeros(12), pair)[1] == np.inf
        and np.isnan(ratio_interval(a[:1], b[:1], pair[:1])).all()
    )


def test_no_difference_leaves_the_range_of_what_it_is_about():
    wild, tame = pool(4, 60, shift=1.5, spread=3.0), pool(4, 60)
    tame = replace(tame, member=wild.member)
    table = metrics.difference(wild, tame, FPR, n_resamples=20)  # t with one degree of freedom
    assert (table["low"] == -1).any() and (table["high"] == 1).any()
    assert table[["low", "high"]].abs().to_numpy().max() == 1
    groups = metrics.by_group(wild, np.arange(60) // 30, n_resamples=20)
    ends = groups[["above_low", "above_high"]].to_numpy()
    assert (np.abs(ends[~np.isnan(ends)]) <= 1).all()
    value, pair = np.array([0.1, 0.9]), np.arange(2)
    unbound = metrics.interval(value, pair)
    assert unbound[0] < -1 and unbound[1] > 1
    assert metrics.interval(value, pair, within=(0, 1)) == (0, 1)
    assert metrics.interval(value, pair, within=(-9, 9)) == unbound


def test_a_sum_of_weighted_metrics_has_the_range_of_its_terms():
    contrast = Contrast("part", "compared", sides=((), ()))
    assert contrast.possible == (-1, 1)
    assert contrast._replace(metric="gap").possible == (-2, 2)
    alone = contrast._replace(sides=((),))
    assert alone._replace(minus="chance").possible == (-0.5, 0.5)
    assert alone._replace(metric="tpr@0.01", minus="chance").possible == (-0.01, 0.99)
    of_differences = contrast._replace(sides=((), (), (), ()))
    assert of_differences.possible == (-2, 2)


def test_a_difference_is_paired_and_therefore_narrow():
    a = pool(8, 1000)
    noise = 0.5 * np.random.default_rng(5).normal(size=a.value.shape)
    b = replace(a, value=a.value + noise)
    found = metrics.difference(a, b, FPR, n_resamples=300).loc["auc"]
    alone = metrics.intervals(a, FPR, n_resamples=300).loc["auc"]
    assert found["low"] > 0 and found["high"] - found["low"] < 0.7 * (alone["high"] - alone["low"])
    assert (metrics.difference(a, a, FPR, n_resamples=20).to_numpy() == 0).all()
    with pytest.raises(ValueError, match="same masks"):
        metrics.difference(a, pool(8, 1000, seed=9), FPR, n_resamples=2)


def test_a_seed_fixes_every_draw():
    scores = pool(6, 200)
    first, again, other = (
        bootstrap(scores, FPR, n_resamples=10, seed=seed)["auc"] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


# --------------------------------------------------------------------------------------------------
# resamples of many samples, to first order


@pytest.mark.parametrize("decimals", [None, 1])
def test_an_influence_is_what_a_little_more_of_a_sample_changes(decimals):
    # of which the largest advantage is at one threshold alone
    scores = pool(2, 200, decimals=decimals, seed=5)
    found, influences = module.influence(scores.value[0], scores.member[0], FPR)
    assert found == metrics_of(scores.value[0], scores.member[0])
    copies = 10_000
    weights = np.full((201, 200), copies)
    weights[1:] += np.eye(200, dtype=int)
    ranked = module._ranked(scores.value[0], scores.member[0])
    same, *more = module._resampled_metrics(weights, ranked, FPR)
    change = copies * (np.array(more) - same)
    np.testing.assert_allclose(influences[:2].T, change[:, :2], atol=1e-5)


def test_influences_sum_to_zero_and_those_on_an_auc_have_the_variance_of_delong():
    scores = pool(2, 300, decimals=1)
    score, member = scores.value[0], scores.member[0]
    _, influences = module.influence(score, member, FPR)
    np.testing.assert_allclose(influences.sum(1), 0, atol=1e-12)
    wins = np.sign(score[member][:, None] - score[~member]) / 2 + 0.5  # every pair, O(n1 n0)
    variance = wins.mean(1).var() / member.sum() + wins.mean(0).var() / (~member).sum()
    assert np.sum(influences[0] ** 2) == pytest.approx(variance, rel=1e-12)


def test_influences_do_not_change_with_a_rising_function_of_the_scores_or_with_unscored_samples():
    scores = pool(2, 200, decimals=1)
    score, member = scores.value[0], scores.member[0]
    _, plain = module.influence(score, member, FPR)
    _, risen = module.influence(np.exp(score), member, FPR)
    np.testing.assert_array_equal(plain, risen)
    _, longer = module.influence(np.append(score, np.nan), np.append(member, True), FPR)
    np.testing.assert_array_equal(longer[:, :200], plain)
    assert (longer[:, 200] == 0).all()


def test_first_order_resamples_follow_the_exact_ones_draw_by_draw(monkeypatch):
    scores = pool(4, 6000)
    exact = bootstrap(scores, FPR, n_resamples=200)
    monkeypatch.setattr(module, "FIRST_ORDER_FROM", 6000)
    linear = bootstrap(scores, FPR, n_resamples=200)
    least = {"auc": 0.999, "advantage": 0.9, "tpr@0.01": 0.85, "tpr@0.1": 0.95}
    for name, correlation in least.items():
        one, other = exact[name].mean(1), linear[name].mean(1)
        assert np.corrcoef(one, other)[0, 1] > correlation, name
        assert np.std(other) == pytest.approx(np.std(one), rel=0.12), name


def test_groups_of_samples_drawn_in_place_of_too_many_leave_the_variance(monkeypatch):
    scores = pool(4, 12_000)
    monkeypatch.setattr(module, "MOST_UNITS", 12_000)
    one_by_one = bootstrap(scores, FPR, n_resamples=2000)
    monkeypatch.setattr(module, "MOST_UNITS", 3000)
    in_groups = bootstrap(scores, FPR, n_resamples=2000)
    for name, draws in one_by_one.items():
        spread = draws.mean(1).std()
        assert in_groups[name].mean(1).std() == pytest.approx(spread, rel=0.1), name


def test_samples_of_one_group_are_drawn_together_to_first_order_too(monkeypatch):
    """Every sample ten times over: the variance is ten times that of as many independent ones."""
    scores = pool(4, 1500)
    ten = replace(scores, value=scores.value.repeat(10, 1), member=scores.member.repeat(10, 1))
    groups = np.arange(1500).repeat(10)
    exact = bootstrap(scores, FPR, n_resamples=1000)["auc"].mean(1).std()
    monkeypatch.setattr(module, "FIRST_ORDER_FROM", 1500)
    grouped = bootstrap(ten, FPR, n_resamples=1000, groups=groups)["auc"].mean(1).std()
    alone = bootstrap(ten, FPR, n_resamples=1000)["auc"].mean(1).std()
    assert grouped == pytest.approx(exact, rel=0.05)
    assert alone == pytest.approx(exact / np.sqrt(10), rel=0.1)
