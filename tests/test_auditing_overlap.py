"""Vulnerable sets over seeds and attacks, and the guard against sets that differ before anything is
trained.
"""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.datasets import load_digits

from mia_nb.auditing.shift import shift_guard
from mia_nb.auditing.stability import stability
from mia_nb.metrics import tpr_at


def repetitions(rng, *, seeds=4, samples=2000, common=0.0, shift=1.0):
    """Scores with a share `common` of each sample's noise repeated in every repetition."""
    member = rng.permutation(samples) < samples // 2
    noise = np.sqrt(common) * rng.standard_normal(samples)
    value = noise + np.sqrt(1 - common) * rng.standard_normal((seeds, samples)) + shift * member
    return value, member


def test_sets_overlap_as_counted_by_hand():
    member = np.array([1, 1, 1, 1, 0, 0], bool)
    # sets {0, 1}, {0, 2}, {0, 1}
    a = np.array([[9, 8, 1, 1, 5, 0], [9, 1, 8, 1, 5, 0], [9, 8, 1, 1, 5, 0]], float)
    table = stability({"a": a}, member, fpr=0.3)
    row = table.iloc[0]
    assert row["jaccard"] == pytest.approx((1 / 3 + 1 + 1 / 3) / 3)
    assert (row["coverage"], row["stability"], row["size"]) == (3, 1, 2)
    # 2 of 4 against 2 of 4, counted
    assert row["jaccard_chance"] == pytest.approx((1 / 6) * 1 + (4 / 6) / 3)


def test_each_set_has_the_size_that_the_roc_gives_it():
    value, member = repetitions(np.random.default_rng(0))
    row = stability({"a": value}, member, fpr=0.05).iloc[0]
    assert row["size"] == pytest.approx(np.mean([tpr_at(v, member, 0.05).tp for v in value]))


@pytest.mark.slow
def test_independent_repetitions_overlap_as_chance_says_and_equal_ones_wholly():
    value, member = repetitions(np.random.default_rng(1), samples=20000)
    row = stability({"a": value}, member, fpr=0.1).iloc[0]
    assert row["jaccard"] == pytest.approx(row["jaccard_chance"], rel=0.1)
    assert row["stability"] == pytest.approx(10000 * (row["size"] / 10000) ** 4, rel=0.1)
    same = stability({"a": np.repeat(value[:1], 3, axis=0)}, member, fpr=0.1)
    assert (
        same.loc[0, "jaccard"] == 1
        and same.loc[0, "coverage"] == same.loc[0, "stability"] == same.loc[0, "size"]
    )
    # the non-members' repeat as well: equal scores are no evidence
    assert same.loc[0, "jaccard_out"] == 1
    assert "which says nothing of membership" in same.attrs["note"]


def test_lists_that_repeat_because_samples_are_easy_or_hard_are_not_taken_for_membership():
    value, member = repetitions(np.random.default_rng(4), samples=20000, common=0.9, shift=0.0)
    table = stability({"loss": value}, member, fpr=0.1)
    row = table.iloc[0]
    assert row["jaccard"] > 0.5 > 5 * row["jaccard_chance"] and row["jaccard_out"] == pytest.approx(
        row["jaccard"], abs=0.1
    )
    assert row["stability_out"] == pytest.approx(row["stability"], rel=0.2)
    assert (
        f"{row['jaccard_out']:.2f} for non-members: lists repeat, but no more"
        in table.attrs["note"]
    )
    for seed in range(60):  # few samples: the overlaps differ by luck
        value, member = repetitions(
            np.random.default_rng(seed), samples=400, common=0.95, shift=0.0
        )
        assert (
            "more than those of non-members"
            not in stability({"loss": value}, member, fpr=0.1).attrs["note"]
        )


def test_lists_of_members_that_leak_themselves_are_said_to_repeat():
    rng = np.random.default_rng(5)
    value, member = repetitions(rng, shift=0.0)
    exposed = member & (rng.random(2000) < 0.3)
    table = stability({"loss": value + 8 * exposed}, member, fpr=0.01)
    assert table.loc[0, "jaccard"] > 0.9 and table.loc[0, "jaccard_out"] < 0.1
    assert "overlap from seed to seed, more than those of non-members" in table.attrs["note"]


def test_large_lists_that_overlap_by_chance_alone_are_not_taken_for_membership():
    value, member = repetitions(np.random.default_rng(6), shift=3.0)
    table = stability({"loss": value}, member, fpr=0.1)
    assert table.loc[0, "jaccard"] > 0.9 and table.loc[0, "jaccard_out"] < 0.1
    assert "which says nothing of membership" in table.attrs["note"]


def test_equal_infinite_scores_never_admit_more_false_positives_than_allowed():
    value, member = repetitions(np.random.default_rng(7), samples=200)
    value[:, 60:160] = np.inf
    table = stability({"a": value}, member, fpr=0.01)
    row = table.iloc[0]
    assert row["coverage_out"] == row["size"] == row["coverage"] == 0
    assert np.isnan(row["jaccard"]) and table.attrs["note"].startswith(
        "no member stands out at a false positive rate of 0.01"
    )
    value[:, ~member] = np.minimum(value[:, ~member], 9)
    # members alone are infinite: they are found
    row = stability({"a": value}, member, fpr=0.01).iloc[0]
    assert row["size"] >= member[60:160].sum() and row["coverage_out"] <= 0.04 * 100


def test_lists_without_a_false_positive_have_no_yardstick_and_it_is_said():
    member = np.arange(40) < 20
    value = np.where(member, 2.0, 1.0) + np.zeros((3, 1))
    table = stability({"a": value}, member, fpr=0.1)
    assert table.loc[0, "jaccard"] == 1 and np.isnan(table.loc[0, "jaccard_out"])
    assert "no non-member stands out to compare with" in table.attrs["note"]


def test_samples_without_a_score_somewhere_are_left_out_everywhere():
    value, member = repetitions(np.random.default_rng(1))
    holes = value.copy()
    holes[0, :100], holes[2, 50:200] = np.nan, np.nan
    left = stability({"a": holes, "b": value}, member, fpr=0.1)
    assert left.equals(stability({"a": value[:, 200:], "b": value[:, 200:]}, member[200:], fpr=0.1))
    with pytest.raises(ValueError, match="0 of 2000 samples have all scores"):
        stability({"a": np.where(np.arange(4)[:, None] == 1, np.nan, value)}, member)


def test_unions_of_independent_sets_grow_as_they_must():
    value, member = repetitions(np.random.default_rng(2), samples=20000)
    row = stability({"a": value}, member, fpr=0.05).iloc[0]
    assert row["coverage_out"] == pytest.approx(10000 * (1 - 0.95**4), rel=0.1)
    found = norm.sf(norm.isf(0.05) - 1)  # share of members of each set
    assert row["coverage"] == pytest.approx(10000 * (1 - (1 - found) ** 4), rel=0.05)


def test_attacks_are_compared_within_a_seed_and_low_overlap_is_said():
    rng = np.random.default_rng(3)
    value, member = repetitions(rng, common=0.2)
    other = value + 0.1 * rng.standard_normal(value.shape)
    table = stability({"loss": value, "lira": other}, member, fpr=0.05)
    assert table["compare"].to_list() == ["seeds"] * 2 + ["attacks"] * 4
    assert (
        table.loc[table["compare"] == "attacks", "jaccard"].min()
        > table.loc[table["compare"] == "seeds", "jaccard"].max()
    )
    assert "do not report lists" in table.attrs["note"]


@pytest.mark.parametrize(
    ("values", "fpr", "message"),
    [
        ({"a": np.zeros((2, 4))}, 0.1, "2 repetitions"),
        ({"a": np.zeros((3, 5))}, 0.1, "wanted equal"),
        ({"a": np.zeros((3, 4))}, 0, "fpr=0"),
        ({"a": np.full((3, 4), np.nan)}, 0.1, "0 of 4 samples have all scores"),
    ],
)
def test_stability_refuses_bad_input_in_one_line(values, fpr, message):
    with pytest.raises(ValueError, match=message):
        stability(values, np.array([1, 1, 0, 0], bool), fpr=fpr)


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
