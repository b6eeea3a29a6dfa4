"""Lower bounds on epsilon from one threshold: published values and coverage."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta

from mia_nb.auditing.bounds import epsilon_lower

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


@pytest.mark.parametrize(("counts", "wanted"), PUBLISHED)
def test_counts_give_the_known_lower_bounds(counts, wanted):
    assert epsilon_lower(**dict(zip(COUNTS, counts, strict=True))) == pytest.approx(
        wanted, abs=6e-5
    )


def test_the_bound_agrees_with_computed_tables():
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


def test_the_bound_is_its_formula_on_quantiles_of_beta_distributions():
    tp, positives, fp, negatives, delta, a = 70, 200, 12, 300, 1e-3, 0.1
    low, high = beta.ppf(a / 2, tp, positives - tp + 1), beta.ppf(1 - a / 2, fp + 1, negatives - fp)
    wanted = max(np.log((low - delta) / high), np.log((1 - delta - high) / (1 - low)))
    counts = {"tp": tp, "positives": positives, "fp": fp, "negatives": negatives}
    assert epsilon_lower(**counts, delta=delta, confidence=0.9) == pytest.approx(wanted, rel=1e-12)


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
