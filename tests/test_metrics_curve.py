"""ROC, AUC, TPR at FPR against closed forms, slow twins, invariances and other tools' numbers."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, norm

from mia_nb import metrics
from mia_nb.metrics.curve import advantage as best_gap
from mia_nb.metrics.curve import clopper_pearson_of_groups, null_advantage, thin, tie_mass

# One set of 500 members and 500 non-members, scored continuously, on 17 levels, on 5 and on one,
# with the numbers that Privacy Meter (pm), LeakPro, lira-pytorch (lirapt) and jax_privacy (jaxp)
# give for them.
GOLDEN = np.load(Path(__file__).parent / "golden" / "metrics.npz")
Y = GOLDEN["y"].astype(bool)


def noisy(n=400, shift=0.7, decimals=None, seed=0):
    """Gaussian scores with members shifted up; rounding makes ties."""
    rng = np.random.default_rng(seed)
    member = rng.random(n) < 0.5
    score = rng.normal(size=n) + shift * member
    return (score if decimals is None else np.round(score, decimals)), member


def slow_roc(score, member):
    thresholds = [np.inf, *sorted(set(score), reverse=True)]
    return [(np.mean(score[~member] >= t), np.mean(score[member] >= t), t) for t in thresholds]


def slow_auc(score, member):
    wins = [(a > b) + (a == b) / 2 for a in score[member] for b in score[~member]]
    return sum(wins) / len(wins)


@pytest.mark.parametrize("decimals", [None, 1, 0])
def test_roc_and_auc_equal_loops_over_thresholds_and_pairs(decimals):
    score, member = noisy(150, decimals=decimals)
    np.testing.assert_array_equal(np.stack(metrics.roc(score, member), 1), slow_roc(score, member))
    assert metrics.auc(score, member) == pytest.approx(slow_auc(score, member), abs=1e-12)
    ranks = mannwhitneyu(score[member], score[~member]).statistic / (member.sum() * (~member).sum())
    assert metrics.auc(score, member) == pytest.approx(ranks, abs=1e-12)


@pytest.mark.parametrize("decimals", [None, 1])
def test_vertices_never_decrease_and_their_trapezoid_is_the_auc(decimals):
    score, member = noisy(decimals=decimals)
    curve = metrics.roc(score, member)
    assert (
        (np.diff(curve.fpr) >= 0).all()
        and (np.diff(curve.tpr) >= 0).all()
        and (np.diff(curve.threshold) < 0).all()
    )
    assert (curve.fpr[0], curve.tpr[0], curve.fpr[-1], curve.tpr[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(curve.tpr, curve.fpr) == pytest.approx(
        metrics.auc(score, member), abs=1e-12
    )


@pytest.mark.parametrize(
    ("shift", "auc", "advantage", "tpr"),
    [(1, 0.7602, 0.3829, (0.0183, 0.0924)), (2, 0.9214, 0.6827, (0.1378, 0.3721))],
)
def test_gaussian_scores_reach_the_closed_forms(shift, auc, advantage, tpr):
    n = 1_000_001
    member = np.arange(2 * n) < n
    grid = norm.ppf(np.arange(1, n + 1) / (n + 1))  # quantiles instead of draws: no sampling error
    score = np.concatenate([grid + shift, grid])
    assert metrics.auc(score, member) == pytest.approx(auc, abs=1e-4)
    assert best_gap(score, member) == pytest.approx(advantage, abs=1e-4)
    for x, wanted in zip((0.001, 0.01), tpr, strict=True):
        assert metrics.tpr_at(score, member, x).tpr == pytest.approx(wanted, abs=1e-4)
        assert wanted == pytest.approx(norm.cdf(shift + norm.ppf(x)), abs=1e-4)


@pytest.mark.parametrize("decimals", [None, 1])
def test_turning_scores_or_labels_around_mirrors_the_auc(decimals):
    score, member = noisy(decimals=decimals)
    assert metrics.auc(-score, member) == pytest.approx(1 - metrics.auc(score, member), abs=1e-15)
    assert metrics.auc(score, ~member) == metrics.auc(-score, member)


@pytest.mark.parametrize("decimals", [None, 1])
def test_increasing_maps_and_permutations_change_nothing(decimals):
    score, member = noisy(decimals=decimals)
    order = np.random.default_rng(1).permutation(len(score))
    for other, label in (
        (np.exp(score), member),
        (score**3 + 5, member),
        (score[order], member[order]),
    ):
        assert metrics.auc(other, label) == metrics.auc(score, member)
        assert best_gap(other, label) == best_gap(score, member)
        assert metrics.tpr_at(other, label, 0.1) == metrics.tpr_at(score, member, 0.1)


def test_equal_scores_are_one_block_that_says_nothing():
    member = np.arange(2000) < 1000
    score = np.zeros(2000)
    assert (
        metrics.auc(score, member) == 0.5 and best_gap(score, member) == 0 and tie_mass(score) == 1
    )
    assert len(metrics.roc(score, member).fpr) == 2
    at = metrics.tpr_at(score, member, 0.1)
    assert at.tpr == 0 and at.measurable and at.fpr_floor == 1


def test_perfect_separation_is_found_at_every_fpr():
    member = np.arange(2000) < 1000
    score = member + np.linspace(0, 0.5, 2000)
    assert metrics.auc(score, member) == 1 and best_gap(score, member) == 1 and tie_mass(score) == 0
    for x in (0.01, 0.1, 1):
        at = metrics.tpr_at(score, member, x)
        assert at.tpr == 1 and at.fp == 0 and at.measurable


def test_infinite_scores_rank_as_the_extremes():
    assert metrics.auc(np.array([np.inf, 1.0, -np.inf]), np.array([True, False, False])) == 1
    assert metrics.roc(np.array([np.inf, 1.0]), np.array([True, False])).tpr.tolist() == [0, 1, 1]


@pytest.mark.parametrize("decimals", [None, 0])
def test_replicated_samples_change_measurability_only(decimals):
    score, member = noisy(60, decimals=decimals)
    once, thrice = (
        metrics.roc(score, member),
        metrics.roc(np.repeat(score, 3), np.repeat(member, 3)),
    )
    np.testing.assert_allclose(np.stack(once), np.stack(thrice), rtol=1e-15)
    assert metrics.auc(score, member) == metrics.auc(np.repeat(score, 3), np.repeat(member, 3))
    assert not metrics.tpr_at(score, member, 0.2).measurable
    assert metrics.tpr_at(np.repeat(score, 3), np.repeat(member, 3), 0.2).measurable


@pytest.mark.parametrize("decimals", [None, 1, 0])
def test_tpr_rises_with_fpr_and_the_realised_fpr_stays_below(decimals):
    score, member = noisy(decimals=decimals)
    records = [metrics.tpr_at(score, member, x) for x in np.linspace(0, 1, 201)]
    assert (np.diff([at.tpr for at in records]) >= 0).all()
    assert all(at.fpr_realised <= at.fpr + 1e-12 for at in records)
    curve = metrics.roc(score, member)
    for at in records:
        allowed = curve.fpr <= at.fpr + 1e-12
        assert at.tpr == curve.tpr[allowed].max()
        assert at.fpr_realised == curve.fpr[allowed & (curve.tpr == at.tpr)].min()
        assert at.low <= at.tpr <= at.high and at.measurable == (round(at.fpr * at.n0, 6) >= 10)


def test_allowed_false_positives_are_not_lost_to_rounding():
    score, member = np.arange(2000.0), np.arange(2000) % 2 == 0
    assert (
        metrics.tpr_at(score, member, 0.01).measurable
        and not metrics.tpr_at(score, member, 0.0099).measurable
    )
    assert 0.29 * 100 < 29 and metrics.tpr_at(score[:200], member[:200], 0.29).fp == 29


def test_ties_and_not_safety_make_a_lattice_score_zero_at_low_fpr():
    at = metrics.tpr_at(GOLDEN["tied5_scores"], Y, 0.02)
    assert at.measurable and at.tpr == 0 and at.fpr_floor > 0.02


@pytest.mark.parametrize("name", ["cont", "tied17", "tied5", "const"])
def test_auc_and_accuracy_agree_with_privacy_meter_and_lira_pytorch(name):
    score = GOLDEN[f"{name}_scores"]
    for tool in ("pm", "lirapt"):
        assert metrics.auc(score, Y) == pytest.approx(
            float(GOLDEN[f"{tool}_{name}_auc"]), rel=1e-12
        )
    assert (1 + best_gap(score, Y)) / 2 == pytest.approx(
        float(GOLDEN[f"lirapt_{name}_acc"]), rel=1e-12
    )
    for x, key in ((0.01, "1e-2"), (0.001, "1e-3"), (0, "0")):
        assert metrics.tpr_at(score, Y, x).tpr == pytest.approx(
            float(GOLDEN[f"pm_{name}_tpr_{key}"]), rel=1e-12
        )
    assert metrics.tpr_at(score, Y, 0.001).tpr == pytest.approx(
        float(GOLDEN[f"lirapt_{name}_tpr_lt1e-3"]), rel=1e-12
    )


def test_leakpro_agrees_on_continuous_scores_and_breaks_tie_blocks():
    for key, x in (("1%", 0.01), ("10%", 0.1), ("0.1%", 0.001), ("0%", 0)):
        assert metrics.tpr_at(GOLDEN["cont_scores"], Y, x).tpr == pytest.approx(
            float(GOLDEN[f"leakpro_cont_TPR@{key}FPR"])
        )
    # It takes the first point of a block of ties: .799 becomes .524, and a TPR appears where no
    # threshold gives one.
    assert metrics.auc(GOLDEN["tied5_scores"], Y) == pytest.approx(0.798876)
    assert float(GOLDEN["leakpro_tied5_auc"]) == pytest.approx(0.523954)
    assert (
        metrics.tpr_at(GOLDEN["tied17_scores"], Y, 0).tpr
        == 0
        < float(GOLDEN["leakpro_tied17_TPR@0%FPR"])
    )


def upper_hull(x: np.ndarray, y: np.ndarray) -> list[int]:
    """Indices of the upper concave hull of points sorted by x, then y (monotone chain)."""
    keep: list[int] = []
    for i in range(len(x)):
        while len(keep) > 1:
            a, b = keep[-2], keep[-1]
            if (x[b] - x[a]) * (y[i] - y[a]) < (y[b] - y[a]) * (x[i] - x[a]):
                break
            keep.pop()
        keep.append(i)
    return keep


@pytest.mark.parametrize(("name", "tool"), [("cont", "jaxp"), ("tied5", "jaxp_tied5")])
def test_jax_privacy_reports_the_randomised_hull(name, tool):
    score = GOLDEN[f"{name}_scores"]
    full = metrics.roc(score, Y)
    keep = upper_hull(full.fpr, full.tpr)
    # what a rule that tosses coins between two thresholds reaches
    fpr, tpr = full.fpr[keep], full.tpr[keep]
    assert np.trapezoid(tpr, fpr) == pytest.approx(float(GOLDEN[f"{tool}_auroc"]), rel=1e-9)
    np.testing.assert_allclose(
        np.interp([0.001, 0.01, 0.1], fpr, tpr), GOLDEN[f"{tool}_tpr"], rtol=1e-7
    )
    assert metrics.auc(score, Y) <= np.trapezoid(tpr, fpr)


def test_clopper_pearson_has_the_published_ends():
    low, high = metrics.clopper_pearson([0, 10, 1000], 1000)
    np.testing.assert_allclose(low, [0, 0.004806, 1 - 0.003682], atol=5e-7)
    np.testing.assert_allclose(high, [0.003682, 0.018313, 1], atol=5e-7)
    rows = {
        (900, 0.1): (0.081, 0.121),
        (10_000, 0.01): (0.0081, 0.0121),
        (50_000, 0.001): (0.00074, 0.00132),
    }
    for (n0, x), ends in rows.items():
        np.testing.assert_allclose(metrics.clopper_pearson(x * n0, n0), ends, rtol=0.01)


def test_counts_that_arithmetic_rounded_are_the_whole_numbers_that_were_meant():
    assert 0.07 * 100 != 7
    for nearly, count in ((0.07 * 100, 7), (np.float64(3), 3), (1e-12, 0), (10 - 1e-12, 10)):
        exact = metrics.clopper_pearson(count, 10 if count != 7 else 100)
        assert metrics.clopper_pearson(nearly, 10 if count != 7 else 100) == exact


def test_clopper_pearson_of_groups_lies_around_that_of_whole_groups_and_is_it_where_all_are_whole():
    exact = metrics.clopper_pearson(3, 10)
    assert clopper_pearson_of_groups(3, 10, 10) == exact
    assert clopper_pearson_of_groups(30, 100, 10) == exact
    low, high = clopper_pearson_of_groups(35, 100, 10)
    assert (low, high) == (exact[0], metrics.clopper_pearson(4, 10)[1])


def test_clopper_pearson_covers_at_least_as_often_as_it_says():
    for n, p in ((20, 0.03), (300, 0.01), (300, 0.4)):
        k = np.random.default_rng(0).binomial(n, p, 20_000)
        low, high = metrics.clopper_pearson(k, n)
        assert ((low <= p) & (p <= high)).mean() >= 0.95 - 0.004


def test_expected_oracle_advantage_of_chance_is_what_chance_reaches():
    assert null_advantage(450, 450) == pytest.approx(0.0407, abs=5e-5)
    rng = np.random.default_rng(0)
    for n1, n0 in ((450, 450), (20, 20), (100, 500)):
        member = np.arange(n1 + n0) < n1
        found = np.mean([best_gap(rng.random(n1 + n0), member) for _ in range(2000)])
        assert null_advantage(n1, n0) == pytest.approx(found, rel=0.03)


def mean_gap_of_all_orders(n1: int, n0: int) -> float:
    """The mean largest TPR - FPR over all orders of members and non-members, each in turn."""
    gaps = []
    for members in itertools.combinations(range(n1 + n0), n1):
        inside = np.isin(np.arange(n1 + n0), members)
        gaps.append(max(0, (inside.cumsum() / n1 - (~inside).cumsum() / n0).max()))
    return float(np.mean(gaps))


def test_expected_oracle_advantage_of_chance_holds_for_unequal_and_small_sides():
    for n1, n0 in ((1, 9), (2, 8), (3, 4), (5, 6), (4, 7), (7, 3)):
        assert null_advantage(n1, n0) == pytest.approx(mean_gap_of_all_orders(n1, n0), rel=0.015)
    # a single member exceeds half of the others on average
    assert null_advantage(1, 10_000) == pytest.approx(0.5, rel=0.03)
    assert null_advantage(4, 4) == pytest.approx(mean_gap_of_all_orders(4, 4), rel=1e-12)
    # of many, first order on both ends: 1 / (6 n1) with as many others as may be, 1 / (2 n) equal
    for n1, n0, correction in ((10**4, 10**9, 1 / 6e4), (10**4, 10**4 + 1, 1 / 2e4)):
        limit = np.sqrt(np.pi / 8 * (1 / n1 + 1 / n0))
        assert limit - null_advantage(n1, n0) == pytest.approx(correction, rel=0.01)
        assert null_advantage(n0, n1) == null_advantage(n1, n0)
    rng = np.random.default_rng(1)
    for n1, n0 in ((2, 100), (10, 1000)):
        member = np.arange(n1 + n0) < n1
        found = np.mean([best_gap(rng.random(n1 + n0), member) for _ in range(4000)])
        assert null_advantage(n1, n0) == pytest.approx(found, rel=0.03)


def test_ppv_has_the_worked_values():
    found = [float(metrics.ppv(0.05, 0.001, prior)) for prior in (0.5, 0.1, 0.01)]
    np.testing.assert_allclose(found, [0.98, 0.85, 0.34], atol=0.005)
    assert np.isnan(metrics.ppv(0, 0, 0.5))


def test_advantage_is_the_largest_gap_over_all_thresholds():
    score, member = noisy()
    gaps = [(score[member] >= t).mean() - (score[~member] >= t).mean() for t in np.unique(score)]
    assert best_gap(score, member) == pytest.approx(max(gaps), abs=1e-15)


@pytest.mark.parametrize("decimals", [None, 2])
def test_thinned_roc_is_a_small_exact_subset(decimals):
    member = np.arange(50_000) % 2 == 0
    score = np.random.default_rng(0).normal(size=50_000) + member
    score = score if decimals is None else np.round(score, decimals)
    curve = metrics.roc(score, member)
    small = thin(curve, 25_000)
    assert len(small.fpr) < 900
    whole = set(zip(*map(np.ndarray.tolist, curve), strict=True))
    assert set(zip(*map(np.ndarray.tolist, small), strict=True)) <= whole
    assert (small.fpr[0], small.tpr[0], small.fpr[-1], small.tpr[-1]) == (0, 0, 1, 1)
    for x in (0, 1e-4, 1e-3, 1e-2, 1e-1, *(np.arange(51) / 25_000)):
        assert small.tpr[small.fpr <= x + 1e-12].max() == curve.tpr[curve.fpr <= x + 1e-12].max()
    assert np.trapezoid(small.tpr, small.fpr) == pytest.approx(
        np.trapezoid(curve.tpr, curve.fpr), abs=1e-3
    )


@pytest.mark.parametrize(
    ("score", "member", "words"),
    [
        ([0.1, np.nan, 0.2], [True, False, True], "1 of 3 scores are NaN"),
        ([0.1, 0.2], [True, True], "needs members and non-members"),
        ([[0.1, 0.2]], [[True, False]], "one target at a time"),
        ([0.1, 0.2, 0.3], [True, False], "one target at a time"),
    ],
)
def test_scores_without_a_roc_are_refused_in_one_line(score, member, words):
    with pytest.raises(ValueError, match=words) as error:
        metrics.roc(np.array(score), np.array(member))
    assert "\n" not in str(error.value)


def test_percentages_and_impossible_counts_are_refused():
    with pytest.raises(ValueError, match=r"a fraction in \[0, 1\]"):
        metrics.tpr_at(np.arange(4.0), np.arange(4) > 1, 5)
    with pytest.raises(ValueError, match="successes"):
        metrics.clopper_pearson(5, 4)
    with pytest.raises(ValueError, match="does not fit"):
        thin(metrics.roc(np.arange(7.0), np.arange(7) > 3), 5)
