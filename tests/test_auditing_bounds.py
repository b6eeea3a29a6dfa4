"""Lower bounds on epsilon from one threshold: published values, coverage, and thresholds that
others set.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta, norm

from mia_nb.auditing.bounds import OTHER_TARGETS, epsilon_lower, mu_lower, population_level
from mia_nb.types import Scores

COUNTS = ("tp", "positives", "fp", "negatives", "delta")
PUBLISHED = [
    ((990, 25000, 25, 25000, 1e-5), 3.2272),
    ((100, 25000, 25, 25000, 0), 0.7912),
    ((500, 500, 0, 500, 1e-5), 4.9056),
    ((400, 500, 100, 500, 0), 1.1648),
    ((25000, 25000, 0, 25000, 1e-5), 8.8212),
    ((0, 100, 0, 100, 0), 0),
    ((35, 25000, 25, 25000, 1e-5), 0),
]


def world(rng, *, pairs=3, samples=400, shift=0.0):
    """Scores of targets in complementary pairs: N(shift, 1) for members, N(0, 1) for others."""
    half = rng.random((pairs, samples)) < 0.5
    member = np.stack([half, ~half], axis=1).reshape(2 * pairs, samples)
    value = rng.standard_normal(member.shape) + shift * member
    targets = np.arange(len(member))
    side = np.zeros((len(member), 2))
    return Scores(value, member, targets, targets // 2, side, side, {"attack": "loss"})


@pytest.mark.parametrize(("counts", "wanted"), PUBLISHED)
def test_counts_give_the_known_lower_bounds(counts, wanted):
    assert epsilon_lower(**dict(zip(COUNTS, counts, strict=True))) == pytest.approx(
        wanted, abs=6e-5
    )


def test_both_bounds_agree_with_computed_tables():
    if not (folder := os.environ.get("MIA_NB_GOLDEN")):
        pytest.skip("MIA_NB_GOLDEN is not set")
    for case in json.loads((Path(folder) / "audit.json").read_text())["tpr_fpr_lower_bounds"]:
        counts = {
            "tp": case["tp"],
            "positives": case["P"],
            "fp": case["fp"],
            "negatives": case["N"],
        }
        assert epsilon_lower(**counts, delta=case["delta"]) == pytest.approx(
            case["eps_lower_cp"], abs=1e-9
        )
        assert mu_lower(**counts) == pytest.approx(case["mu_lower_cp"], abs=1e-9)


def test_the_bound_is_its_formula_on_quantiles_of_beta_distributions():
    tp, positives, fp, negatives, delta, a = 70, 200, 12, 300, 1e-3, 0.1
    low, high = beta.ppf(a / 2, tp, positives - tp + 1), beta.ppf(1 - a / 2, fp + 1, negatives - fp)
    wanted = max(np.log((low - delta) / high), np.log((1 - delta - high) / (1 - low)))
    counts = {"tp": tp, "positives": positives, "fp": fp, "negatives": negatives}
    assert epsilon_lower(**counts, delta=delta, confidence=0.9) == pytest.approx(wanted, rel=1e-12)
    assert mu_lower(**counts, confidence=0.9) == pytest.approx(
        norm.ppf(low) - norm.ppf(high), rel=1e-12
    )


def test_an_attack_that_spares_members_counts_by_its_true_negatives():
    few_missed = epsilon_lower(tp=1000, positives=1000, fp=500, negatives=1000, delta=0)
    assert few_missed == pytest.approx(
        np.log((1 - beta.ppf(0.975, 501, 500)) / (1 - 0.025 ** (1 / 1000))), rel=1e-9
    )


def test_the_bound_exceeds_the_truth_of_randomised_response_in_at_most_five_percent_of_runs():
    rng, truth, exceeded = np.random.default_rng(0), 1.0, 0
    p = np.exp(truth) / (1 + np.exp(truth))
    for _ in range(1000):
        tp, fp = rng.binomial(500, p), rng.binomial(500, 1 - p)
        exceeded += epsilon_lower(tp=tp, positives=500, fp=fp, negatives=500, delta=0) > truth
    assert exceeded <= 1000 * 0.05 + 3 * np.sqrt(1000 * 0.05 * 0.95)


def test_a_random_score_gives_zero_in_at_least_95_percent_of_targets():
    rng, positive, targets = np.random.default_rng(1), 0, 0
    for _ in range(60):
        best = (
            population_level(world(rng), fpr=(0.01, 0.1), delta=1e-5)
            .groupby("target")["epsilon"]
            .max()
        )
        positive, targets = positive + (best > 0).sum(), targets + len(best)
    assert positive <= targets * 0.05


def test_thresholds_come_from_other_targets_and_never_from_the_complementary_model():
    scores = world(np.random.default_rng(2), pairs=2, shift=1.0)
    before = population_level(scores, delta=1e-5)
    changed = scores.value.copy()
    changed[1] += 100.0  # the first target's complementary model
    after = population_level(
        Scores(changed, *(getattr(scores, n) for n in list(scores.__dict__)[1:])), delta=1e-5
    )
    first = before["target"] == 0
    assert (before["source"] == OTHER_TARGETS).all()
    np.testing.assert_array_equal(before.loc[first, "threshold"], after.loc[first, "threshold"])
    assert (
        before.loc[before["target"] == 2, "threshold"].values
        != after.loc[after["target"] == 2, "threshold"].values
    ).any()


def test_with_one_pair_one_half_of_the_samples_sets_the_threshold_and_the_other_is_counted():
    scores = world(np.random.default_rng(3), pairs=1, samples=401, shift=2.0)
    table = population_level(scores, fpr=(0.1,), delta=1e-5)
    assert (table["source"] == "half of the samples").all()
    assert (table["positives"] + table["negatives"] == 201).all()
    assert (table["epsilon"] > 0.5).all()


def test_each_row_pays_for_the_number_of_preset_rates():
    scores = world(np.random.default_rng(4), shift=1.0)
    alone, several = (
        population_level(scores, fpr=f, delta=1e-5) for f in ((0.1,), (0.001, 0.01, 0.1))
    )
    several = several[several["fpr"] == 0.1]
    assert alone["alpha"].to_list() == pytest.approx([0.05] * 6) and several[
        "alpha"
    ].to_list() == pytest.approx([0.05 / 3] * 6)
    assert (alone["epsilon"].values > several["epsilon"].values).all()
    assert set(several["label"]) == {"population-level"}


def test_the_threshold_allows_the_preset_share_of_false_positives_ties_included():
    scores = world(np.random.default_rng(5))
    coarse = Scores(scores.value.round(1), *(getattr(scores, n) for n in list(scores.__dict__)[1:]))
    for one in (scores, coarse):
        table = population_level(one, fpr=(0.01, 0.1), delta=1e-5)
        for row in table.itertuples():
            at = np.flatnonzero(one.targets == row.target)[0]
            others = one.pair != one.pair[at]
            pooled = one.value[others][~one.member[others]]
            assert (pooled > row.threshold).mean() <= row.fpr < (pooled >= row.threshold).mean()
            assert row.fp == ((one.value[at] > row.threshold) & ~one.member[at]).sum()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tp": 11}, "tp=11 of 10"),
        ({"negatives": 0, "fp": 0}, "fp=0 of 0"),
        ({"confidence": 95}, "95 % is 0.95"),
        ({"delta": 1.0}, "delta=1.0"),
    ],
)
def test_impossible_counts_and_levels_are_refused_in_one_line(change, message):
    counts = {"tp": 5, "positives": 10, "fp": 1, "negatives": 10, "delta": 1e-5}
    with pytest.raises(ValueError, match=message):
        epsilon_lower(**(counts | change))
