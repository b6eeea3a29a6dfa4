"""The guard against members and non-members that differ before anything is trained."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from mia_nb.auditing.shift import shift_guard


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    return (data.images[:, None] * 15).astype(np.uint8), data.target


def test_random_halves_of_the_digits_pass_the_guard(digits):
    x, y = digits
    verdicts = [
        shift_guard(x, y, np.random.default_rng(s).permutation(len(y)) < len(y) // 2, seed=s)
        for s in range(25)
    ]
    assert sum(v.passed for v in verdicts) >= 24
    z = np.array([(v.auc - 0.5) / v.error for v in verdicts])
    assert abs(z.mean()) < 1 and 0.5 < z.std() < 1.7
    assert verdicts[0].note.startswith("no shift found")


def test_halves_balanced_by_class_pass_the_guard_although_their_auc_is_below_one_half(digits):
    x, y = digits
    verdicts = []
    for seed in range(25):
        order = np.random.default_rng(seed).permutation(len(y))
        order = order[np.argsort(y[order], kind="stable")]
        member = np.zeros(len(y), bool)
        member[order[::2]] = True
        verdicts.append(shift_guard(x, y, member, seed=seed))
    assert sum(v.passed for v in verdicts) >= 24
    assert np.mean([v.auc for v in verdicts]) < 0.5


def test_members_that_are_a_tenth_of_a_deviation_brighter_fail_the_guard(digits):
    x, y = digits
    member = np.random.default_rng(0).permutation(len(y)) < len(y) // 2
    bright = x + member[:, None, None, None] * 0.1 * x.std(0)
    verdict = shift_guard(bright, y, member)
    assert not verdict.passed and verdict.auc > 0.5 + 3 * verdict.error
    assert verdict.note.startswith("confounded, not membership: AUC")


def test_sets_of_other_classes_fail_the_guard_by_their_histogram(digits):
    rng = np.random.default_rng(1)
    y = np.arange(1000) % 10
    member = rng.random(1000) < np.where(y < 5, 0.4, 0.6)
    verdict = shift_guard(rng.normal(size=(1000, 20)), y, member)
    assert (
        not verdict.passed
        and verdict.classes_p < 1e-6
        and abs(verdict.auc - 0.5) < 3 * verdict.error
    )
    assert "class histograms differ" in verdict.note


def test_the_guard_fails_between_three_and_six_standard_errors_and_at_one_in_a_thousand():
    rng, member = np.random.default_rng(3), np.arange(1000) < 500
    verdict = shift_guard(
        rng.normal(size=(1000, 1)) + 0.29 * member[:, None], np.zeros(1000), member
    )
    assert 3 < (verdict.auc - 0.5) / verdict.error < 6 and not verdict.passed
    labels = np.arange(500) < 281, np.arange(500) < 219  # chi-square 15.4 at one degree of freedom
    verdict = shift_guard(rng.normal(size=(1000, 5)), np.concatenate(labels).astype(int), member)
    assert (
        1e-5 < verdict.classes_p < 1e-3
        and not verdict.passed
        and "class histograms differ" in verdict.note
    )


def test_large_sets_are_tested_on_a_part():
    rng = np.random.default_rng(2)
    x, member = rng.normal(size=(12_000, 3)), rng.random(12_000) < 0.5
    verdict = shift_guard(x, np.zeros(12_000, int), member)
    assert verdict.error == pytest.approx(np.sqrt(10_001 / (12 * 5000**2)), rel=0.01)
    assert verdict.passed


@pytest.mark.parametrize("value", [0, 0.1, 255])
def test_inputs_that_are_all_equal_tell_nothing_and_do_not_pass(value):
    x, member = np.full((40, 3, 4, 4), value), np.arange(40) < 20
    verdict = shift_guard(x, np.arange(40) % 4, member)
    assert not verdict.passed and np.isnan([verdict.auc, verdict.error]).all()
    assert verdict.note.startswith(
        "nothing could be tested: all raw inputs are equal; classes p = 1; 20 members"
    )
    verdict = shift_guard(x, np.arange(40) < 20, member)
    assert verdict.note.startswith(
        "confounded, not membership: class histograms differ (p = 2.5e-10)"
    )


def test_the_guard_refuses_bad_input_in_one_line():
    with pytest.raises(ValueError, match="one entry of each per sample"):
        shift_guard(np.zeros((5, 3)), np.zeros(4), np.zeros(5, bool))
    holes = np.where(np.arange(30).reshape(10, 3) == 4, np.nan, 1.0)
    with pytest.raises(ValueError, match="x has NaN or infinite values in 1 of 10 samples"):
        shift_guard(holes, np.zeros(10), np.arange(10) < 5)
    with pytest.raises(ValueError, match="labels has NaN or infinite values in 1 of 10 samples"):
        shift_guard(np.ones((10, 3)), holes[:, 1], np.arange(10) < 5)
    with pytest.raises(ValueError, match=r"0 members \(train\) and 9 non-members"):
        shift_guard(np.zeros((9, 3)), np.zeros(9), np.zeros(9, bool))
