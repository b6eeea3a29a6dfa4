"""The result table says what was measured, how sure that is, and what was not measurable."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from mia_nb import auditing, metrics
from mia_nb.metrics.null import SelfTest
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
    row = table.loc["loss"]
    assert list(table.index) == ["loss", "max"]
    assert list(table.columns[:9]) == [
        *(
            "auc",
            "auc_low",
            "auc_high",
            "auc_min",
            "auc_max",
            "tpr@0.1",
            "tpr@0.1_low",
            "tpr@0.1_high",
            "tpr@0.1_measurable",
        )
    ]
    assert row["auc"] == pytest.approx(np.mean(aucs)) and (row["auc_min"], row["auc_max"]) == (
        min(aucs),
        max(aucs),
    )
    assert row["auc_low"] < row["auc"] < row["auc_high"]
    assert row["balanced_accuracy"] == pytest.approx((1 + row["advantage"]) / 2)
    assert row["gap"] == pytest.approx(0.2) and (
        row["train_acc"],
        row["train_loss"],
    ) == pytest.approx((0.95, 0.1))
    assert (row["n1"], row["n0"], row["targets"], row["k"], row["queries"]) == (200, 200, 8, 3, 1)


def test_an_fpr_too_low_for_the_non_members_keeps_its_number_and_is_shown_as_not_measurable():
    table = metrics.summary({"loss": pool(0.7)}, fpr=(0.01, 0.1), n_resamples=50)
    assert not table.loc["loss", "tpr@0.01_measurable"] and table.loc["loss", "tpr@0.01"] > 0
    view = metrics.readable(table)
    assert view.loc["loss threshold", "TPR at FPR 0.01"] == "n/m (n0 = 200)"
    assert view.loc["loss threshold", "TPR at FPR 0.1"].startswith(
        f"{table.loc['loss', 'tpr@0.1']:.3f} ["
    )
    assert table.loc["loss", "ppv_fpr"] == 0.1


def test_a_zero_that_comes_from_ties_is_called_a_lattice():
    scores = pool(0.7)
    table = metrics.summary(
        {"lattice": replace(scores, value=np.sign(scores.value))}, fpr=(0.1,), n_resamples=50
    )
    assert table.loc["lattice", "tpr@0.1_measurable"] and table.loc["lattice", "tpr@0.1"] == 0
    assert (
        metrics.readable(table).loc["lattice", "TPR at FPR 0.1"]
        == "0: tied scores allow no lower FPR"
    )
    assert (
        "0 by ties in 8 of 8 targets" in table.loc["lattice", "flags"]
        and table.loc["lattice", "tie_mass"] == 1
    )


def test_max_takes_the_largest_value_and_the_largest_ends_of_each_metric():
    scores = {"a": pool(0.5, seed=1), "b": pool(0.5, seed=2), "c": pool(0.1, seed=3)}
    table = metrics.summary(scores, fpr=(0.1,), n_resamples=200)
    for name in ("auc", "tpr@0.1", "advantage"):
        assert table.loc["max", name] == table.loc[["a", "b", "c"], name].max()
    best = table.loc[["a", "b", "c"], "auc"].astype(float).idxmax()
    for end in ("auc_low", "auc_high"):
        assert table.loc["max", end] == table.loc[["a", "b", "c"], end].max()
    assert table.loc["max", "flags"].startswith(f"unadjusted: auc {best}")
    assert metrics.readable(table).index[-1] == "strongest attack (picked afterwards)"


def test_ppv_uses_the_realised_fpr_and_its_upper_end():
    row = metrics.summary({"loss": pool(2.0)}, fpr=(0.1,), n_resamples=20).loc["loss"]
    rows = metrics.per_target({"loss": pool(2.0)}, (0.1,))
    tpr, fpr = rows["tpr@0.1"].mean(), rows["tpr@0.1_realised"].mean()
    assert row["ppv@0.1"] == pytest.approx(0.1 * tpr / (0.1 * tpr + 0.9 * fpr))
    upper = metrics.clopper_pearson(rows["tpr@0.1_fp"], rows["n0"])[1].mean()
    assert (
        row["ppv@0.1_low"] == pytest.approx(0.1 * tpr / (0.1 * tpr + 0.9 * upper))
        and row["ppv@0.1_low"] < row["ppv@0.1"]
    )


def test_flags_name_one_target_inversion_few_pairs_and_what_the_attack_said():
    single = pool(0.5, targets=2, flags=["global variance: one reference a side"])
    single = Scores(
        *(
            getattr(single, n)[:1]
            for n in ("value", "member", "targets", "pair", "accuracy", "loss")
        ),
        single.info,
    )
    flags = metrics.summary({"a": single}, n_resamples=20).loc["a", "flags"]
    assert "one target: training randomness not covered" in flags and "global variance" in flags
    assert (
        "inverted or leaking design"
        in metrics.summary({"a": pool(-0.5)}, n_resamples=20).loc["a", "flags"]
    )
    assert "inverted" not in metrics.summary({"a": pool(0.0)}, n_resamples=20).loc["a", "flags"]
    assert "few pairs (4)" in metrics.summary({"a": pool(0.5)}, n_resamples=20).loc["a", "flags"]


def test_samples_without_a_score_are_counted_and_left_out():
    scores = pool(0.5)
    gap = np.arange(scores.value.shape[1]) < 40
    rows = metrics.per_target({"a": replace(scores, value=np.where(gap, np.nan, scores.value))})
    assert np.allclose(rows["unscored"], 0.1) and (rows["n1"] + rows["n0"] == 360).all()
    assert rows["auc"][0] == metrics.auc(scores.value[0, ~gap], scores.member[0, ~gap])


def test_a_failed_self_test_stamps_every_row_and_hides_nothing():
    failed = SelfTest(False, None)
    plain, stamped = (
        metrics.summary({"a": pool(0.5)}, n_resamples=20, self_test=verdict)
        for verdict in (None, failed)
    )
    assert (
        stamped["flags"].str.startswith("design check failed").all()
        and (stamped["self_test"] == "failed").all()
    )
    assert (stamped["auc"] == plain["auc"]).all()
    assert (
        metrics.summary({"a": pool(0.5)}, n_resamples=20, self_test=SelfTest(True, None))[
            "self_test"
        ]
        == "passed"
    ).all()


def test_the_correctness_attack_has_exactly_half_the_gap_above_one_half():
    rng = np.random.default_rng(0)
    member = np.arange(1000) < 500
    correct = np.where(member, rng.random(1000) < 0.95, rng.random(1000) < 0.7)
    gap = correct[member].mean() - correct[~member].mean()
    assert metrics.auc(correct, member) - 0.5 == pytest.approx(gap / 2, abs=1e-15)


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
        assert len(metrics.summary({name: one}, n_resamples=20)) == 2


def test_targets_that_only_one_attack_scored_do_not_make_samples_unequal():
    scores = pool(0.5)
    fields = ("value", "member", "targets", "pair", "accuracy", "loss")
    last = Scores(*(getattr(scores, name)[6:] for name in fields), {})
    assert len(metrics.summary({"a": scores, "b": last}, n_resamples=20)) == 3
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
    fields = ("value", "member", "targets", "pair", "accuracy", "loss")
    with pytest.raises(ValueError, match="loss has no target"):
        metrics.summary({"loss": Scores(*(getattr(scores, name)[:0] for name in fields), {})})
