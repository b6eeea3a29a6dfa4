"""The result table says what was measured, how sure that is, and what was not measurable."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from mia_nb import auditing, metrics
from mia_nb.metrics import null
from mia_nb.metrics.frontier_table import frontier_means
from mia_nb.metrics.null import SelfTest
from mia_nb.metrics.table_text import in_digits, percent_interval
from mia_nb.types import Scores, Signals


def pool(shift, *, targets=8, samples=400, seed=0, **info):
    rng = np.random.default_rng(0)
    member = np.empty((targets, samples), bool)
    for row in range(0, targets, 2):
        member[row] = rng.permutation(samples) < samples // 2
        member[row + 1 :] = ~member[row]
    value = np.random.default_rng(seed + 1).normal(size=member.shape) + shift * member
    accuracy = np.column_stack([np.full(targets, 0.95), np.linspace(0.7, 0.8, targets)])
    loss = np.column_stack([np.full(targets, 0.1), np.full(targets, 0.9)])
    return Scores(
        value,
        member,
        np.arange(targets),
        np.arange(targets) // 2,
        accuracy,
        loss,
        {"k": 3, "queries": 1, **info},
    )


def test_columns_come_in_the_documented_order_and_hold_averages_over_targets():
    scores = pool(0.7)
    table = metrics.summary({"loss": scores}, fpr=(0.1,), n_resamples=50)
    aucs = [
        metrics.auc(value, member)
        for value, member in zip(scores.value, scores.member, strict=True)
    ]
    assert list(table["attack"].unique()) == ["loss", "max"]
    assert list(table.columns) == [
        *("attack", "metric", "fpr", "prior", "value", "low", "high", "chance"),
        *("smallest", "largest", "measurable", "targets", "pairs", "n1", "n0"),
        *("references", "queries", "tie_mass", "fpr_floor", "flags"),
    ]
    assert list(table.loc[table["attack"] == "loss", "metric"]) == [
        *("auc", "tpr", "advantage", "balanced_accuracy", "ppv", "ppv", "ppv"),
        *("train_acc", "test_acc", "gap", "train_loss", "test_loss"),
    ]
    rows = table[table["attack"] == "loss"].drop_duplicates("metric").set_index("metric")
    row = rows.loc["auc"]
    assert row["value"] == pytest.approx(np.mean(aucs))
    assert (row["smallest"], row["largest"]) == (min(aucs), max(aucs))
    assert row["low"] < row["value"] < row["high"] and row["chance"] == 0.5
    mean = rows["value"]
    assert mean["balanced_accuracy"] == pytest.approx((1 + mean["advantage"]) / 2)
    assert mean["gap"] == pytest.approx(0.2)
    assert (mean["train_acc"], mean["train_loss"]) == pytest.approx((0.95, 0.1))
    facts = ["n1", "n0", "targets", "pairs", "references", "queries"]
    assert row[facts].tolist() == [200, 200, 8, 4, 3, 1]


def test_accuracies_have_the_intervals_of_the_models():
    scores = pool(0.7)
    table = metrics.summary({"loss": scores}, fpr=(), n_resamples=20)
    for metric, side in (("train_acc", "train"), ("test_acc", "test"), ("gap", "gap")):
        row = metrics.by_attack(table, metric).loc["loss"]
        wanted = metrics.accuracies(scores).loc[side]
        assert row[["value", "low", "high"]].tolist() == pytest.approx(wanted.tolist())


def test_accuracies_of_pairs_of_one_target_and_of_two_are_means_over_targets():
    accuracy = np.array([[0.95, 0.8], [0.95, 0.8], [0.95, 0.797]])
    fields = vars(pool(0.7, targets=4)) | {"accuracy": accuracy}
    scores = Scores(*(array[:3] for array in list(fields.values())[:-1]), {"attack": "loss"})
    train, test, gap = metrics.accuracies(scores).to_numpy()
    # the two pairs' means are .8 and .797: their mean has the standard error .0015
    half = student.ppf(0.975, 1) * 0.0015
    np.testing.assert_allclose(test, [0.799, 0.799 - half, 0.799 + half])
    table = frontier_means(metrics.frontier({"cnn": {1: {"loss": scores}}}, (), n_resamples=0))
    for column, wanted in zip(("train_acc", "test_acc", "gap"), (train, test, gap), strict=True):
        ends = table.loc[0, [column, f"{column}_low", f"{column}_high"]].tolist()
        assert ends == pytest.approx(wanted.tolist())
        value = metrics.by_attack(metrics.summary(scores, (), n_resamples=2), column)["value"]
        assert value.iloc[0] == pytest.approx(wanted[0])


@pytest.mark.parametrize(
    ("number", "form", "text"),
    [
        (-110.4, ".2g", "-110"),
        (-22.9, ".2g", "-23"),
        (99.9, ".2g", "100"),
        (12345, ".3g", "12,300"),
        (0.617, ".3f", "0.617"),
        (1.5e-5, ".2g", "1.5e-05"),
        (np.inf, ".2g", "inf"),
        (np.nan, ".2g", "nan"),
    ],
)
def test_large_numbers_of_few_digits_end_in_zeros(number, form, text):
    assert in_digits(number, form) == text


def test_a_table_that_went_through_a_file_is_the_same(tmp_path):
    table = metrics.summary({"loss": pool(0.7), "rmia": pool(0.9)}, n_resamples=20)
    table.to_csv(tmp_path / "table.csv", index=False)
    read = pd.read_csv(tmp_path / "table.csv", keep_default_na=True).fillna({"flags": ""})
    pd.testing.assert_frame_equal(read, table, check_exact=False)
    assert metrics.readable(read, full=True).equals(metrics.readable(table, full=True))


def test_a_metric_or_a_rate_that_is_not_there_is_named_with_what_is():
    table = metrics.summary({"loss": pool(0.7)}, fpr=(0.1, 0.2), n_resamples=20)
    with pytest.raises(ValueError, match=r"no tpr at FPR 0.05; it has auc, tpr at FPR 0.1, tpr"):
        metrics.by_attack(table, "tpr", 0.05)
    with pytest.raises(ValueError, match="several rows of tpr for an attack"):
        metrics.by_attack(table, "tpr")


def test_an_fpr_too_low_for_the_non_members_keeps_its_number_and_is_shown_as_not_measurable():
    table = metrics.summary({"loss": pool(0.7)}, fpr=(0.01, 0.1), n_resamples=50)
    few, enough = (metrics.by_attack(table, "tpr", x).loc["loss"] for x in (0.01, 0.1))
    assert not few["measurable"] and few["value"] > 0
    view = metrics.readable(table, percent=False)
    assert view.loc["loss threshold", "TPR at FPR 0.01"] == "n/m (n0 = 200)"
    assert view.loc["loss threshold", "TPR at FPR 0.1"].startswith(f"{enough['value']:.3f} [")
    assert list(view) == ["AUC", "TPR at FPR 0.01", "TPR at FPR 0.1"]
    assert (table.loc[table["metric"] == "ppv", "fpr"] == 0.1).all()


def test_rates_are_written_in_percent_with_two_figures_or_as_shares_on_request():
    table = metrics.summary({"loss": pool(0.7)}, fpr=(0.1,), n_resamples=20)
    tpr = table["metric"] == "tpr"
    for numbers, text in (
        ([0.0058, 0.005, 0.00641], "0.58 % [0.50, 0.64]"),
        ([0.17585, 0.1716, 0.18106], "18 % [17, 18]"),
        ([0.17585, 0.1756, 0.17606], "17.6 % [17.6, 17.6]"),
        ([0.0, 0.0, 0.0037], "0.00 % [0.00, 0.37]"),
        ([1.0, 0.96, 1.0], "100 % [96, 100]"),
    ):
        table.loc[tpr, ["value", "low", "high"]] = numbers
        assert metrics.readable(table)["TPR at 10 % FPR"].iloc[0] == text
        shares = metrics.readable(table, percent=False)["TPR at FPR 0.1"]
        assert shares.iloc[0].startswith(f"{numbers[0]:.3f} [")
    table.loc[tpr, "measurable"] = False
    assert metrics.readable(table)["TPR at 10 % FPR"].iloc[0].startswith("n/m (n0 =")


def test_what_an_attack_was_measured_on_is_shown_on_request():
    table = metrics.summary({"loss": pool(0.7)}, fpr=(0.1,), n_resamples=20)
    view = metrics.readable(table, full=True)
    assert list(view)[:2] == list(metrics.readable(table))
    assert list(view)[2:] == [
        "best TPR - FPR (expected by chance)",
        "train / test accuracy",
        "gap",
        "reference models per side",
        "flags",
    ]


def test_a_zero_that_comes_from_ties_is_called_a_lattice():
    scores = pool(0.7)
    table = metrics.summary(
        {"lattice": replace(scores, value=np.sign(scores.value))}, fpr=(0.1,), n_resamples=50
    )
    row = metrics.by_attack(table, "tpr", 0.1).loc["lattice"]
    assert row["measurable"] and row["value"] == 0
    shown = metrics.readable(table).loc["lattice", "TPR at 10 % FPR"]
    assert shown == "0: tied scores allow no lower FPR"
    assert "0 by ties in 8 of 8 targets" in row["flags"] and row["tie_mass"] == 1


def test_max_takes_the_largest_value_and_the_largest_ends_of_each_metric():
    scores = {"a": pool(0.5, seed=1), "b": pool(0.5, seed=2), "c": pool(0.1, seed=3)}
    table = metrics.summary(scores, fpr=(0.1,), n_resamples=200)
    for name, fpr in (("auc", None), ("tpr", 0.1), ("advantage", None)):
        rows = metrics.by_attack(table, name, fpr)[["value", "low", "high"]]
        assert rows.loc["max"].tolist() == rows.loc[["a", "b", "c"]].max().tolist()
    auc = metrics.by_attack(table, "auc")
    best = auc["value"].drop("max").idxmax()
    assert auc.loc["max", "flags"].startswith(f"unadjusted: auc {best}, advantage ")
    # these names are no attacks': they may as well be families of models
    assert metrics.readable(table).index[-1] == "strongest of these (picked afterwards)"
    known = metrics.summary({"loss": scores["a"]}, fpr=(0.1,), n_resamples=20)
    assert metrics.readable(known).index[-1] == "strongest attack (picked afterwards)"


def test_ppv_uses_the_realised_fpr_and_its_upper_end():
    table = metrics.summary({"loss": pool(2.0)}, fpr=(0.1,), n_resamples=20)
    row = table[(table["attack"] == "loss") & (table["prior"] == 0.1)].iloc[0]
    rows = metrics.per_target({"loss": pool(2.0)}, (0.1,))
    tpr, fpr = rows["tpr@0.1"].mean(), rows["tpr@0.1_realised"].mean()
    assert row["value"] == pytest.approx(0.1 * tpr / (0.1 * tpr + 0.9 * fpr))
    upper = metrics.clopper_pearson(rows["tpr@0.1_fp"], rows["n0"])[1].mean()
    assert row["low"] == pytest.approx(0.1 * tpr / (0.1 * tpr + 0.9 * upper))
    assert row["low"] < row["value"]


def test_the_lower_end_of_a_ppv_counts_groups_of_non_members():
    scores = pool(2.0, targets=2)
    groups = np.arange(400) // 20  # each has members and non-members
    table = metrics.summary({"a": scores}, (0.1,), n_resamples=20, groups=groups)
    found = table[(table["metric"] == "ppv") & (table["prior"] == 0.1) & (table["attack"] == "a")]
    rows = metrics.per_target(scores, (0.1,))
    in_groups = np.ceil(rows["tpr@0.1_fp"] * 20 / rows["n0"])
    upper = metrics.clopper_pearson(in_groups, np.full(2, 20))[1].mean()
    low = metrics.ppv(rows["tpr@0.1"].mean(), upper, 0.1)
    assert found["low"].item() == pytest.approx(low)


def test_flags_name_one_target_inversion_few_pairs_and_what_the_attack_said():
    single = pool(0.5, targets=2, flags=["global variance: one reference a side"])
    single = Scores(
        *(
            getattr(single, n)[:1]
            for n in ("value", "member", "targets", "pair", "accuracy", "loss")
        ),
        single.info,
    )

    def flags(scores):
        table = metrics.summary({"a": scores}, n_resamples=20)
        return metrics.by_attack(table, "auc").loc["a", "flags"]

    assert "one target: training randomness not covered" in flags(single)
    assert "global variance" in flags(single)
    assert "inverted or leaking design" in flags(pool(-0.5))
    assert "inverted" not in flags(pool(0.0))
    assert "few pairs (4)" in flags(pool(0.5))
    halves = np.random.default_rng(0).random((3, single.value.shape[1])) < 0.5
    coins = Scores(
        single.value.repeat(3, 0),
        halves,
        np.arange(3),
        np.arange(3),
        single.accuracy.repeat(3, 0),
        single.loss.repeat(3, 0),
        {},
    )
    assert "few training sets (3): wide intervals, Student's t over training sets" in flags(coins)


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((0.9966, 0.97, 0.9996), "99.7 % [97.0, 100.0]"),
        ((0.9999, 0.999, 1), "99.99 % [99.90, 100.00]"),
        ((0.99999, 0.9, 1), "99.999 % [90.000, 100.000]"),
        ((1, 0.97, 1), "100 % [97, 100]"),
        ((0.994, 0.97, 0.9996), "99 % [97, 100]"),
        ((0.0058, 0.005, 0.0064), "0.58 % [0.50, 0.64]"),
    ],
)
def test_a_rate_below_all_is_not_written_as_all_of_it(ends, text):
    assert percent_interval(*ends) == text


def test_samples_without_a_score_are_counted_and_left_out():
    scores = pool(0.5)
    gap = np.arange(scores.value.shape[1]) < 40
    rows = metrics.per_target({"a": replace(scores, value=np.where(gap, np.nan, scores.value))})
    assert np.allclose(rows["unscored"], 0.1) and (rows["n1"] + rows["n0"] == 360).all()
    assert rows["auc"][0] == metrics.auc(scores.value[0, ~gap], scores.member[0, ~gap])


def control(passed: bool, *attacks: str) -> SelfTest:
    rows = [("N2", attack, 0.5, 0.01, 1.0, 1, "ok") for attack in attacks]
    return SelfTest(passed, pd.DataFrame(rows, columns=null.COLUMNS))


def test_a_failed_self_test_stamps_every_row_and_hides_nothing():
    plain, stamped = (
        metrics.summary({"a": pool(0.5)}, n_resamples=20, self_test=verdict)
        for verdict in (None, control(False))
    )
    assert (
        stamped["flags"].str.startswith("design check failed").all()
        and (stamped["self_test"] == "failed").all()
    )
    assert stamped["value"].equals(plain["value"])


def test_a_passed_self_test_stamps_the_attacks_that_it_ran():
    scores = {"a": pool(0.5), "b": pool(0.3)}
    for ran in (("a",), ("a", "b")):
        table = metrics.summary(scores, n_resamples=20, self_test=control(True, *ran))
        stamps = table.groupby("attack")["self_test"].agg(set).to_dict()
        assert stamps["a"] == {"passed"}
        assert stamps["b"] == {"passed" if len(ran) == 2 else "not tested"}
        assert stamps["max"] == {"passed"}  # a has the highest AUC


def test_the_maximum_is_stamped_as_the_attack_of_the_highest_auc():
    scores = {"a": pool(0.5), "b": pool(1.5)}
    table = metrics.summary(scores, n_resamples=20, self_test=control(True, "a"))
    assert set(table.loc[table["attack"] == "max", "self_test"]) == {"not tested"}


def test_the_correctness_attack_has_exactly_half_the_gap_above_one_half():
    rng = np.random.default_rng(0)
    member = np.arange(1000) < 500
    correct = np.where(member, rng.random(1000) < 0.95, rng.random(1000) < 0.7)
    gap = correct[member].mean() - correct[~member].mean()
    assert metrics.auc(correct, member) - 0.5 == pytest.approx(gap / 2, abs=1e-15)


@pytest.mark.filterwarnings("error")
def test_a_class_without_members_or_non_members_has_no_gap_and_no_warning():
    logits = np.random.default_rng(0).normal(size=(2, 40, 3))
    labels = (np.arange(40) >= 10).astype(int)
    first_half = np.arange(40) % 2 == 0
    halves = np.stack([first_half, ~first_half])
    table = metrics.class_gaps(Signals.from_logits(logits, labels, halves | (labels == 0)))
    assert table.notna().loc[0].tolist() == [True, True, False, False]
    assert table.notna().loc[1].all()
    table = metrics.class_gaps(Signals.from_logits(logits, labels, halves & (labels == 1)))
    assert table.notna().loc[0].tolist() == [True, False, True, False]


def test_class_gaps_are_the_accuracies_of_each_class_apart():
    logits = np.random.default_rng(0).normal(size=(4, 60, 3))
    labels = np.arange(60) % 3
    member = np.zeros((4, 60), bool)
    member[::2, :25] = member[1::2, 25:50] = True
    signals = Signals.from_logits(logits, labels, member, population=np.arange(60) >= 50)
    table = metrics.class_gaps(signals)
    right = logits.argmax(-1) == labels
    inside = (labels == 1) & (np.arange(60) < 50)
    assert table.loc[1, "train_acc"] == pytest.approx(right[:, inside][member[:, inside]].mean())
    assert table.loc[1, "test_acc"] == pytest.approx(right[:, inside][~member[:, inside]].mean())
    assert table["samples"].sum() == 50


def test_an_empty_or_ambiguous_summary_is_refused():
    with pytest.raises(ValueError, match=r"attacks\.score"):
        metrics.summary({})
    with pytest.raises(ValueError, match="name max is taken"):
        metrics.summary({"max": pool(0.5)})


def flipped(scores, row, sample):
    member = scores.member.copy()
    member[row, sample] ^= True
    return replace(scores, member=member)


UNEQUAL = {
    "fewer samples": (pool(0.5, samples=300), "'b' scored 300 samples and 'a' 400: wanted one set"),
    "one other member": (flipped(pool(0.5), 3, 17), "different members in target 3 (1 of 400"),
    "other masks": (replace(pool(0.5), member=~pool(0.5).member), "target 0 (400 of 400 samples)"),
}


@pytest.mark.parametrize("what", UNEQUAL)
@pytest.mark.parametrize("judged", ["summary", "verdict", "judge"])
def test_attacks_on_different_samples_share_no_table_and_no_verdict(what, judged):
    other, says = UNEQUAL[what]
    scores = {"a": pool(0.5), "b": other}
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        if judged == "judge":
            auditing.judge(auditing.limits(["auc>0.5"]), scores, n_resamples=20)
        else:
            getattr(metrics, judged)(scores, n_resamples=20)
    assert "\n" not in str(refused.value)
    for name, one in scores.items():  # the advice
        assert metrics.summary({name: one}, n_resamples=20)["attack"].nunique() == 2


def test_targets_that_only_one_attack_scored_do_not_make_samples_unequal():
    scores = pool(0.5)
    fields = ("value", "member", "targets", "pair", "accuracy", "loss")
    last = Scores(*(getattr(scores, name)[6:] for name in fields), {})
    assert metrics.summary({"a": scores, "b": last}, n_resamples=20)["attack"].nunique() == 3
    holes = np.where(np.arange(400) % 3, scores.value, np.nan)
    assert len(metrics.summary({"a": scores, "b": replace(scores, value=holes)}, n_resamples=20))


def test_groups_of_another_number_of_samples_are_refused():
    with pytest.raises(ValueError, match=r"groups have shape \(399,\); wanted \(400,\)"):
        metrics.summary({"a": pool(0.5)}, n_resamples=20, groups=np.zeros(399))


def test_a_single_score_goes_by_its_attacks_name():
    scores = pool(0.5, attack="rmia")
    assert metrics.summary(scores, n_resamples=20).equals(
        metrics.summary({"rmia": scores}, n_resamples=20)
    )


def test_targets_without_a_score_are_refused_by_the_attacks_name():
    scores = pool(0.5)
    value = scores.value.copy()
    value[3] = np.nan
    with pytest.raises(ValueError, match="watson scored no sample of a target"):
        metrics.summary({"watson": replace(scores, value=value)})
    with pytest.raises(ValueError, match="scored no sample of a target"):
        metrics.intervals(replace(scores, value=value), n_resamples=20)
    fields = ("value", "member", "targets", "pair", "accuracy", "loss")
    with pytest.raises(ValueError, match="loss has no target"):
        metrics.summary({"loss": Scores(*(getattr(scores, name)[:0] for name in fields), {})})


def test_operations_are_rows_of_the_table_with_intervals_over_the_pairs_of_targets():
    scores = pool(0.7, targets=4)
    few = replace(scores, **{n: getattr(scores, n)[1:] for n in ("value", "member")})
    few = replace(few, targets=scores.targets[1:], pair=scores.pair[1:])
    few = replace(few, accuracy=scores.accuracy[1:], loss=scores.loss[1:])
    counted = pd.DataFrame(
        {
            "model": range(4),
            "multiply_accumulates": 10.0,
            "accumulates": [0.0, 100.0, 200.0, 300.0],
            "energy_nj": [0.0, 3000.0, 5000.0, 9000.0],
        }
    )
    table = metrics.summary({"loss": scores}, fpr=(0.1,), n_resamples=20)
    long = metrics.with_operations(table, scores, counted)
    pd.testing.assert_frame_equal(long.iloc[: len(table)], table)
    energy = metrics.by_attack(long, "energy_uj").loc["loss"]
    # the pairs' means are 1.5 and 7: Student's t with one degree of freedom is 12.71 wide
    assert energy["value"] == 4.25 and energy["pairs"] == 2
    assert energy["high"] - energy["value"] == pytest.approx(12.706 * 2.75, rel=1e-3)
    assert metrics.by_attack(long, "multiply_accumulates").loc["loss", "high"] == 10
    # of some targets those count that were attacked, by their number in the pool
    three = metrics.summary({"loss": few}, fpr=(0.1,), n_resamples=20)
    lists = {name: counted[name].tolist() for name in counted}
    rows = metrics.by_attack(metrics.with_operations(three, few, lists), "accumulates")
    assert rows.loc["loss", ["value", "smallest", "largest"]].tolist() == [200, 100, 300]
    with pytest.raises(ValueError, match=r"operations of 3 models.* 4 or more were attacked"):
        metrics.with_operations(table, scores, counted[:3])
