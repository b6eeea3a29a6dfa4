"""Leakage at equal utility: interpolation against piecewise linear curves whose crossings are
known.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from mia_nb import metrics
from mia_nb.metrics.bootstrap import bootstrap
from mia_nb.metrics.frontier_table import frontier_means
from mia_nb.types import Scores


def scores(
    shift=1.0, test_acc=0.8, *, targets=6, samples=200, seed=0, masks=0, name="rmia"
) -> Scores:
    """Members N(shift, 1), non-members N(0, 1); accuracies .95 on members and test_acc, a little
    apart, on the others.
    """
    mask = np.random.default_rng(masks)
    half = mask.permuted(np.tile(np.arange(samples) < samples // 2, (targets // 2, 1)), axis=1)
    member = np.stack([half, ~half], axis=1).reshape(targets, samples)
    value = np.random.default_rng(seed).normal(size=member.shape) + shift * member
    rows = np.arange(targets)
    accuracy = np.stack([np.full(targets, 0.95), test_acc + 0.01 * rows], axis=1)
    return Scores(value, member, rows, rows // 2, accuracy, 1 - accuracy, {"attack": name})


def lines(families: dict[str, list[tuple]], spread=None) -> pd.DataFrame:
    """A frontier whose curves are given: {family: [(test_acc, auc), ...]} for epochs 1, 2, ...,
    shifted by `spread` per pair.

    spread: (pairs, 2), added to accuracy and AUC of both targets of a pair; losses are 1 -
    accuracy, gaps half the accuracy.
    """
    spread = np.zeros((2, 2)) if spread is None else np.asarray(spread, float)
    rows = []
    for family, points in families.items():
        for epoch, point in enumerate(points, start=1):
            for target in range(2 * len(spread)):
                apart = (
                    0.001 * (-1) ** target
                )  # a target and its complementary model: only their mean counts
                accuracy, auc = np.asarray(point, float) + spread[target // 2] + apart
                rows.append(
                    (
                        family,
                        epoch,
                        "rmia",
                        target,
                        target // 2,
                        accuracy,
                        1 - accuracy,
                        accuracy / 2,
                        auc,
                    )
                )
    return pd.DataFrame(
        rows,
        columns=[
            "family",
            "epoch",
            "attack",
            "target",
            "pair",
            "test_acc",
            "train_loss",
            "gap",
            "auc",
        ],
    ).assign(queries=np.nan, n1=100, n0=100)


def at(table, family, level):
    return table[(table["family"] == family) & np.isclose(table["level"], level)].iloc[0]


def test_rows_are_those_of_the_target_tables():
    runs = {
        "ode": {1: {"rmia": scores(), "loss": scores(0.5, name="loss")}, 2: {"rmia": scores(1.2)}}
    }
    table = metrics.frontier(runs, fpr=(0.1,))
    assert len(table) == 18 and list(table["epoch"].unique()) == [1, 2]
    own = metrics.per_target({"loss": runs["ode"][1]["loss"]}, (0.1,))
    mine = table[(table["attack"] == "loss")].reset_index(drop=True)
    for column in (
        "target",
        "pair",
        "auc",
        "advantage",
        "tpr@0.1",
        "tpr@0.1_measurable",
        "test_acc",
        "gap",
        "train_loss",
        "n0",
    ):
        assert mine[column].tolist() == own[column].tolist()


def test_means_are_of_the_strongest_attack_with_student_ends_over_pairs():
    runs = {
        "ode": {
            1: {"loss": scores(0.3), "rmia": scores(1.0)},
            5: {"loss": scores(1.5, seed=1), "rmia": scores(1.0)},
        }
    }
    table = metrics.frontier(runs, fpr=(0.1,), n_resamples=0)
    means = frontier_means(table)
    assert means["attack"].tolist() == ["rmia", "loss"] and means["pairs"].tolist() == [3, 3]
    best = table[(table["epoch"] == 5) & (table["attack"] == "loss")]
    for column in ("auc", "advantage", "test_acc", "gap"):
        pairs = best.groupby("pair")[column].mean()
        half = student.ppf(0.9875, 2) * pairs.std(ddof=1) / np.sqrt(3)
        found = means.loc[1, [column, f"{column}_low", f"{column}_high"]].astype(float)
        np.testing.assert_allclose(found, [pairs.mean(), pairs.mean() - half, pairs.mean() + half])
    assert means["n0"].tolist() == [100, 100] and means["tpr@0.1_measurable"].all()


def test_an_accuracy_that_one_target_lacks_has_no_mean():
    found = scores()
    found.accuracy[2, 1] = np.nan
    means = frontier_means(metrics.frontier({"ode": {1: {"rmia": found}}}, (), n_resamples=0))
    assert means.loc[0, ["test_acc", "gap"]].isna().all() and means["auc"].notna().all()
    assert means.loc[0, "train_loss"] == pytest.approx(0.05)


def test_ends_stay_possible_and_one_pair_has_none():
    certain = metrics.frontier({"ode": {1: {"rmia": scores(6.0, samples=20)}}}, ())
    certain.loc[certain["pair"] == 0, "auc"] = 0.9
    assert frontier_means(certain).loc[0, "auc_high"] == 1
    alone = frontier_means(metrics.frontier({"ode": {1: {"rmia": scores(targets=2)}}}, ()))
    assert (
        np.isfinite(alone.loc[0, "auc"])
        and np.isnan(alone.loc[0, ["auc_low", "auc_high"]].astype(float)).all()
    )


def test_draws_are_those_of_the_bootstrap_over_samples_and_the_same_samples_for_all_families():
    """With one pair the bootstrap draws samples alone; coarse scores tie and some are missing."""
    coarse = replace(scores(targets=2), value=np.round(scores(targets=2).value))
    coarse.value[0, :20] = np.nan
    runs = {
        "cnn": {1: {"rmia": coarse}},
        "ode": {1: {"rmia": replace(coarse, value=coarse.value.copy())}},
    }
    table = metrics.frontier(runs, (), n_resamples=40, seed=3)
    for family in runs:
        drawn = np.stack(table.loc[table["family"] == family, "auc_draws"])
        np.testing.assert_array_equal(drawn, bootstrap(coarse, (), n_resamples=40, seed=3)["auc"].T)
    assert "auc_draws" not in metrics.frontier(runs, (), n_resamples=0)
    few = replace(
        coarse,
        member=np.stack([np.arange(200) < 1, np.arange(200) >= 1]),
        value=scores(targets=2).value,
    )
    drawn = np.stack(metrics.frontier({"cnn": {1: {"rmia": few}}}, (), n_resamples=40)["auc_draws"])
    assert 0 < np.isnan(drawn[0]).sum() < 40  # the only member of a target is not in every draw
    with pytest.raises(ValueError, match="n_resamples=-1: wanted a whole number from 0 up"):
        metrics.frontier(runs, (), n_resamples=-1)


def null_world(seed: int, n_resamples: int, pairs: int = 8, samples: int = 160) -> pd.Series:
    """B - A at one accuracy, two families of one law in which each gives away its own samples in
    every training.
    """
    rng = np.random.default_rng(seed)
    half = rng.permuted(np.tile(np.arange(samples) < samples // 2, (pairs, 1)), axis=1)
    member, rows = np.stack([half, ~half], axis=1).reshape(2 * pairs, samples), np.arange(2 * pairs)
    runs: dict = {}
    for family in "AB":
        leak = 1.0 + 2.0 * rng.normal(size=samples)
        for epoch, progress in enumerate((0.2, 1.0)):
            value = rng.normal(size=member.shape) + progress * leak * member
            accuracy = np.full((2 * pairs, 2), 0.5 + 0.3 * progress)
            runs.setdefault(family, {})[epoch] = {
                "rmia": Scores(value, member, rows, rows // 2, accuracy, accuracy, {})
            }
    return at(
        metrics.matched(
            metrics.frontier(runs, (), n_resamples=n_resamples), baseline="A", levels=[0.75]
        ),
        "B",
        0.75,
    )


@pytest.mark.slow
def test_samples_that_one_family_gives_away_in_every_training_do_not_make_families_differ():
    found = [null_world(seed, n_resamples=200) for seed in range(60)]
    excluded = sum(not row["difference_low"] <= 0 <= row["difference_high"] for row in found)
    assert excluded <= 9, excluded  # 3 of 60 expected; chance gives 10 or more once in 1,300 times
    assert all(row["over_samples"] for row in found)


def test_ends_hold_the_spread_over_pairs_and_what_pairs_share_by_their_samples():
    wide, narrow = null_world(0, n_resamples=200), null_world(0, n_resamples=0)
    assert wide["difference"] == narrow["difference"] and not narrow["over_samples"]
    assert (
        wide["difference_high"] - wide["difference_low"]
        > narrow["difference_high"] - narrow["difference_low"]
    )
    table = lines(
        {"cnn": [(0.5, 0.5), (0.7, 0.6)], "ode": [(0.5, 0.5), (0.7, 0.7)]}, np.zeros((3, 2))
    )
    rng = np.random.default_rng(0)
    # all pairs alike: no training randomness
    apart = {"cnn": 0.0, "ode": 0.02 * rng.normal(size=400)}
    table["auc_draws"] = [
        np.float32(row.auc + apart[row.family] * (row.epoch == 2)) for row in table.itertuples()
    ]
    with pytest.raises(ValueError, match=r"rows hold \[0, 400\] draws"):
        metrics.matched(table)
    table["auc_draws"] = [drawn * np.ones(400) for drawn in table["auc_draws"]]
    spread = 0.75 * apart["ode"].std(ddof=1)  # three quarters of the way
    for confidence, z in ((0.95, 1.96), (0.8, 1.2816)):
        ode = at(
            metrics.matched(table, baseline="cnn", levels=[0.65], confidence=confidence),
            "ode",
            0.65,
        )
        assert ode["difference"] == pytest.approx(0.075)
        ends = z * spread * np.array([-1, 1])
        np.testing.assert_allclose(
            ode[["difference_low", "difference_high"]].astype(float), 0.075 + ends, atol=1e-5
        )
        np.testing.assert_allclose(ode[["low", "high"]].astype(float), 0.65 + ends, atol=1e-5)
    other = metrics.matched(table, by="test_acc", metric="gap", levels=[0.65])
    # accuracies have no draws
    assert not other["over_samples"].any() and np.allclose(other["low"], other["high"])
    means = frontier_means(table).set_index(["family", "epoch"])
    assert means.loc[("ode", 2), "auc_high"] == pytest.approx(0.7 + 1.96 * spread / 0.75, abs=1e-5)
    assert (
        means["over_samples"].all()
        and not frontier_means(table.drop(columns="auc_draws"))["over_samples"].any()
    )


def test_the_queries_of_the_checkpoints_next_to_a_level_are_said():
    def asked(shift, accuracy, queries):
        return replace(scores(shift, accuracy), info={"attack": "rmia", "queries": queries})

    runs = {
        "sde": {
            1: {"rmia": asked(0.2, 0.5, 4)},
            2: {"rmia": asked(0.5, 0.7, 16)},
            3: {"rmia": asked(0.9, 0.9, 16)},
        }
    }
    table = metrics.frontier(runs, (), n_resamples=0)
    assert table.groupby("epoch")["queries"].first().tolist() == [4, 16, 16]
    assert metrics.matched(table, levels=[0.6, 0.85])["queries"].tolist() == [4, 16]
    unsaid = metrics.frontier(
        {"sde": {1: {"rmia": scores()}, 2: {"rmia": scores(test_acc=0.9)}}}, ()
    )
    assert unsaid["queries"].isna().all() and metrics.matched(unsaid)["queries"].isna().all()


def test_other_masks_or_pairs_are_refused():
    with pytest.raises(
        ValueError,
        match=r"ode at epoch 3 \(rmia\) and cnn at epoch 1 \(rmia\) have different membership",
    ):
        metrics.frontier({"cnn": {1: {"rmia": scores()}}, "ode": {3: {"rmia": scores(masks=1)}}})
    with pytest.raises(ValueError, match="different membership"):
        other = replace(scores(), pair=np.array([0, 1, 1, 0, 2, 2]))
        metrics.frontier({"cnn": {1: {"rmia": scores()}}, "ode": {1: {"rmia": other}}})
    with pytest.raises(ValueError, match="got no scores"):
        metrics.frontier({"cnn": {}})


def test_piecewise_linear_curves_give_the_leakage_drawn_between_their_checkpoints():
    table = lines({"cnn": [(0.5, 0.5), (0.7, 0.6), (0.9, 0.9)], "ode": [(0.6, 0.5), (0.8, 0.54)]})
    found = metrics.matched(table, baseline="cnn", levels=[0.65, 0.7, 0.75])
    assert [at(found, "cnn", x)["value"] for x in (0.65, 0.7, 0.75)] == pytest.approx(
        [0.575, 0.6, 0.675]
    )
    assert [at(found, "ode", x)["value"] for x in (0.65, 0.7, 0.75)] == pytest.approx(
        [0.51, 0.52, 0.53]
    )
    assert [at(found, "ode", x)["difference"] for x in (0.65, 0.7, 0.75)] == pytest.approx(
        [-0.065, -0.08, -0.145]
    )
    assert np.isnan(found.loc[found["family"] == "cnn", "difference"]).all()
    assert np.isnan(metrics.matched(table, levels=[0.65])["difference"]).all()
    assert found["last_test_acc"].tolist() == pytest.approx([0.9, 0.8] * 3)


@pytest.mark.parametrize(
    ("by", "low", "high"), [("test_acc", 0.6, 0.8), ("gap", 0.3, 0.4), ("train_loss", 0.2, 0.4)]
)
def test_default_levels_lie_inside_the_range_that_all_mean_curves_pass(by, low, high):
    table = lines({"cnn": [(0.5, 0.5), (0.7, 0.6), (0.9, 0.9)], "ode": [(0.6, 0.5), (0.8, 0.54)]})
    found = metrics.matched(table, by=by, baseline="cnn")
    np.testing.assert_allclose(found["level"].unique(), np.linspace(low, high, 7)[1:-1])
    assert (found["pairs"] == 2).all()
    accuracy = {
        "test_acc": found["level"],
        "gap": 2 * found["level"],
        "train_loss": 1 - found["level"],
    }[by]
    ode = found["family"] == "ode"
    np.testing.assert_allclose(found.loc[ode, "value"], 0.5 + 0.2 * (accuracy[ode] - 0.6))


def test_the_first_crossing_counts_where_accuracy_goes_up_and_down():
    table = lines({"cnn": [(0.5, 0.5), (0.8, 0.56), (0.6, 0.9), (0.9, 0.99)]})
    assert metrics.matched(table, levels=[0.7])["value"].tolist() == pytest.approx([0.54])
    descent = table.assign(train_loss=1 - table["test_acc"])
    assert metrics.matched(descent, by="train_loss", levels=[0.3])[
        "value"
    ].tolist() == pytest.approx([0.54])
    beyond = metrics.matched(table, levels=[0.85])["value"]  # the first way up ends at .8
    assert beyond.tolist() == pytest.approx([0.9 + 0.09 * 0.25 / 0.3])


def test_nothing_is_extrapolated_and_the_dropped_are_counted():
    # accuracies start at .5, .6, .4 and end at .8, .9, .7
    spread = [(0.0, 0.0), (0.1, 0.02), (-0.1, 0.04)]
    found = metrics.matched(
        lines({"cnn": [(0.5, 0.5), (0.8, 0.8)]}, spread), levels=[0.3, 0.45, 0.65, 0.75, 0.95]
    )
    assert found["pairs"].tolist() == [0, 1, 3, 2, 0]
    assert np.isnan(found["value"][[0, 4]]).all() and found["attack"].tolist() == [
        "",
        "rmia",
        "rmia",
        "rmia",
        "",
    ]
    assert np.isnan(found["low"][[0, 1, 4]]).all() and np.isfinite(found["low"][[2, 3]]).all()
    assert found["value"][2] == pytest.approx(np.mean([0.65, 0.57, 0.79]))


def test_differences_use_the_pairs_that_both_have():
    spread = np.array([(0.0, 0.0), (0.1, 0.05), (-0.1, 0.0)])
    cnn = lines({"cnn": [(0.5, 0.5), (0.8, 0.8)]}, spread)
    ode = lines({"ode": [(0.5, 0.5), (0.8, 0.65)]}, spread)
    # pair 0 never comes to .65 as an ODE
    ode.loc[(ode["pair"] == 0) & (ode["epoch"] == 2), "test_acc"] = 0.55
    found = at(metrics.matched(pd.concat([cnn, ode]), baseline="cnn", levels=[0.65]), "ode", 0.65)
    differences = [0.575 - 0.6, 0.625 - 0.75]  # of pairs 1 and 2
    assert (found["pairs"], found["difference_pairs"]) == (2, 2)
    assert found["difference"] == pytest.approx(np.mean(differences))
    half = student.ppf(0.975, 1) * np.std(differences, ddof=1) / np.sqrt(2)
    assert found["difference_high"] - found["difference"] == pytest.approx(half)


def test_equal_families_differ_by_nothing():
    rng = np.random.default_rng(0)
    points = list(zip(np.linspace(0.4, 0.9, 6), rng.uniform(0.5, 0.8, 6), strict=True))
    found = metrics.matched(
        lines({"a": points, "b": points}, 0.02 * rng.normal(size=(5, 2))), baseline="a"
    )
    own = found[found["family"] == "b"]
    assert (own[["difference", "difference_low", "difference_high"]] == 0).all(None) and len(
        own
    ) == 5


@pytest.mark.slow
def test_ends_cover_the_truth_as_often_as_they_say():
    """AUC is linear in accuracy in every pair, with its own offset: the mean offset of the world is
    0, the difference -.05.
    """
    inside = np.zeros(2)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        spread = [np.column_stack([np.zeros(4), 0.03 * rng.normal(size=4)]) for _ in range(2)]
        both = [
            lines({f: [(0.4, 0.5), (0.8, top)]}, s)
            for f, top, s in zip("ab", (0.7, 0.6), spread, strict=True)
        ]
        found = at(metrics.matched(pd.concat(both), baseline="a", levels=[0.6]), "b", 0.6)
        inside += (
            found["low"] <= 0.55 <= found["high"],
            found["difference_low"] <= -0.05 <= found["difference_high"],
        )
    assert (np.abs(inside / 200 - 0.95) < 3.5 * np.sqrt(0.05 * 0.95 / 200)).all(), inside


def test_the_strongest_attack_is_chosen_at_every_checkpoint():
    table = lines({"cnn": [(0.5, 0.5), (0.7, 0.6), (0.9, 0.7)]})
    other = table.assign(attack="loss", auc=[0.55] * 4 + [0.58] * 8)
    both = pd.concat([table, other])
    found = metrics.matched(both, levels=[0.6, 0.8])
    assert found["attack"].tolist() == ["loss, rmia", "rmia"]
    assert found["value"].tolist() == pytest.approx([(0.55 + 0.6) / 2, 0.65])
    assert metrics.matched(both, levels=[0.6], attack="loss")["value"].tolist() == pytest.approx(
        [0.565]
    )


def test_families_without_a_shared_range_get_an_empty_table_that_says_why():
    found = metrics.matched(
        lines({"cnn": [(0.8, 0.6), (0.9, 0.7)], "ode": [(0.3, 0.5), (0.5, 0.6)]}), baseline="cnn"
    )
    assert found.empty and {"level", "difference", "pairs", "attack"} <= set(found.columns)
    assert found.attrs["reason"].startswith(
        "no level of test_acc is passed by all families: cnn 0.8 to 0.9, ode 0.3 to 0.5"
    )


def test_equal_worlds_trained_apart_do_not_differ():
    """Two families of the same leak at every accuracy: real scores, real AUCs, no difference at
    equal accuracy.
    """
    shift = {0.5: 0.2, 0.6: 0.6, 0.7: 1.0}
    runs = {
        family: {
            e: {"rmia": scores(d, a, targets=8, samples=1000, seed=100 * f + e)}
            for e, (a, d) in enumerate(shift.items())
        }
        for f, family in enumerate(("cnn", "ode"))
    }
    found = metrics.matched(metrics.frontier(runs, ()), baseline="cnn", levels=[0.62])
    # pair p has accuracy .01 (2p + 1/2) more at each checkpoint, and so meets .62 earlier
    truth = [
        np.interp(
            0.62,
            np.array([0.5, 0.6, 0.7]) + 0.01 * (2 * p + 0.5),
            norm.cdf(np.array([0.2, 0.6, 1.0]) / np.sqrt(2)),
        )
        for p in range(4)
    ]
    assert at(found, "cnn", 0.62)["value"] == pytest.approx(np.mean(truth), abs=0.015)
    ode = at(found, "ode", 0.62)
    assert ode["difference_low"] < 0 < ode["difference_high"] and abs(ode["difference"]) < 0.02


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda t: t, {"by": "auc"}, "by='auc' is not one of test_acc, train_loss, gap"),
        (lambda t: t, {"metric": "tpr@0.5"}, "metric='tpr@0.5' is not one of"),
        (lambda t: t, {"baseline": "resnet"}, "baseline='resnet' is not one of the families"),
        (lambda t: t, {"attack": "lira"}, "attack='lira' is not in the table"),
        (lambda t: t.drop(columns="pair"), {}, "pair missing"),
        (lambda t: t.drop(columns="queries"), {}, "queries missing"),
        (lambda t: t[:0], {}, "without rows"),
        (lambda t: t[~((t["family"] == "ode") & (t["target"] > 1))], {}, "other targets or pairs"),
        (
            lambda t: pd.concat([t, t[t["epoch"] == 1].assign(attack="loss")]),
            {"attack": "loss"},
            "cnn has no loss at epoch 2",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(change, options, message):
    table = lines({"cnn": [(0.5, 0.5), (0.9, 0.6)], "ode": [(0.5, 0.5), (0.9, 0.6)]})
    with pytest.raises(ValueError, match=message) as raised:
        metrics.matched(change(table), **options)
    assert "\n" not in str(raised.value)


def test_means_of_a_table_without_counts_name_the_columns():
    table = lines({"cnn": [(0.5, 0.5), (0.9, 0.6)]})
    with pytest.raises(ValueError, match="n1, n0 missing: pass"):
        frontier_means(table.drop(columns=["n1", "n0"]))
