"""Defended networks find their printed numbers; costs are compared as ratios."""

from __future__ import annotations

from collections import Counter
from functools import partial
from math import sqrt

import numpy as np
import pandas as pd
import pytest

from mia_nb import metrics, studies
from mia_nb.metrics.targets import tied_floor
from mia_nb.studies import Setting
from mia_nb.studies.paper_numbers import paper_results
from mia_nb.types import Scores

DefenseCell = partial(Setting, attack="lira_global")
DRAWS = 50
PLAIN, MEMGUARD, DP = (
    DefenseCell("resnet14", 3),
    DefenseCell("resnet14", 3, output="memguard"),
    DefenseCell("resnet14", 3, defense="dp_sgd"),
)
SDE = DefenseCell("sdenet", k=0.5, queries=4)
FLOW = {
    "blocks": 1,
    "method": "euler",
    "augment": 0,
    "k": 0.5,
    "steps": 16,
    "T": 1.0,
    "noise_train": True,
    "noise_eval": True,
    "layout": "16-32-64",
    "order": 1,
    "damped": False,
}


def scores(leak=1.0, *, targets=8, samples=400, seed=0, accuracy=(0.95, 0.8), value=None) -> Scores:
    """Members N(leak, 1), non-members N(0, 1), complementary pairs, the same masks at every
    call.
    """
    rng = np.random.default_rng(0)
    half = np.array([rng.permutation(samples) < samples // 2 for _ in range(targets // 2)])
    member = np.stack([half, ~half], axis=1).reshape(targets, samples)
    noise = np.random.default_rng([1, seed])
    value = (
        noise.normal(size=member.shape) + leak * member if value is None else value(member, noise)
    )
    seen = np.array(accuracy) + 0.001 * noise.normal(size=(targets, 2))
    return Scores(
        value,
        member,
        np.arange(targets),
        np.arange(targets) // 2,
        seen,
        1 - seen,
        {"k": 3, "queries": 1},
    )


def of_labels(member, rng):
    """Two levels: right or wrong, members more often right."""
    return (rng.random(member.shape) < np.where(member, 0.98, 0.86)).astype(float)


def test_every_record_of_table_eleven_stands_exactly_once_beside_ours():
    table = studies.against_papers("privacy", {})
    assert (
        len(table) == 56
        and table["ours"].isna().all()
        and table["note"].str.contains("not run").all()
    )
    keys = Counter(
        (r["setting"]["label"], r["metric"], r["value"]) for r in paper_results("nsde2025", "XI")
    )
    assert Counter(zip(table["printed"], table["metric"], table["published"], strict=True)) == keys
    assert (
        table.groupby("printed")["setting"].nunique().eq(1).all()
        and table["setting"].nunique() == 8
    )


def test_ours_stands_beside_its_own_row_with_its_interval_and_nowhere_else():
    one = scores(0.7)
    table = studies.against_papers(
        "privacy", {DP: one, SDE: scores(0.1, accuracy=(0.82, 0.82))}, n_resamples=DRAWS
    )
    found = table[table["ours"].notna()]
    assert set(found["printed"]) == {"DP-SGD, eps=8", "SDENet sigma=2"} and len(found) == 14
    row = found[(found["printed"] == "DP-SGD, eps=8") & (found["metric"] == "auc")].iloc[0]
    ends = metrics.intervals(one, n_resamples=DRAWS).loc["auc"]
    assert (row["published"], row["ours"], row["low"], row["high"]) == (
        0.516,
        *ends[["value", "low", "high"]],
    )
    assert (
        row["n0"] == 200
        and row["measurable"]
        and "form of LiRA not printed, ours: lira_global" in row["note"]
    )
    assert not found[found["metric"] == "tpr@0.01"]["measurable"].any()  # 2 false positives of 200
    gap = found[
        (found["printed"] == "SDENet sigma=2") & (found["metric"] == "generalization_gap")
    ].iloc[0]
    assert gap["low"] < 0 < gap["high"] and gap["published"] == -0.0002 and "ours: 4" in gap["note"]
    assert (
        studies.against_papers("privacy", {DP: one}, stands_for=None, n_resamples=DRAWS)["ours"]
        .isna()
        .all()
    )


def test_the_printed_options_come_first_and_others_are_named():
    tuned = DefenseCell("resnet14", 3, defense="l2", options="weight 0.01")
    both = {tuned: scores(0.2), DefenseCell("resnet14", 3, defense="l2"): scores(0.9)}
    for cells, named in ((both, False), ({tuned: scores(0.2)}, True)):
        row = (
            studies.against_papers("privacy", cells, n_resamples=DRAWS)
            .query("printed == 'L2-Regularization' and metric == 'auc'")
            .iloc[0]
        )
        assert ("weight 0.01" in row["note"]) == named and (row["ours"] < 0.6) == named
    strange = DefenseCell("sdenet", k=0.5, noise=False)
    assert (
        studies.against_papers("privacy", {strange: scores()}, n_resamples=DRAWS)["ours"]
        .isna()
        .all()
    )


def test_memguards_zero_is_called_what_it_is_on_both_sides():
    table = studies.against_papers(
        "privacy", {MEMGUARD: scores(value=of_labels)}, n_resamples=DRAWS
    )
    rows = table[table["printed"] == "Memguard"].set_index("metric")
    tpr = rows.loc["tpr@0.01"]
    assert tpr["published"] == tpr["ours"] == 0
    assert "print: 0 by ties" in tpr["note"] and "ours: ties, no FPR below 0.8" in tpr["note"]
    assert "print: below 0.561 = (1 + gap) / 2" in rows.loc["accuracy", "note"]
    others = table[(table["metric"] == "accuracy") & (table["printed"] != "Memguard")]
    assert not others["note"].str.contains("below 0").any() and rows.loc["auc", "ours"] > 0.54


def test_the_smallest_realisable_false_positive_rate_is_that_of_the_first_tie_block():
    value = np.array([[3.0, 2, 2, 2, 1, 1]])
    one = Scores(
        value,
        np.array([[True, True, False, False, True, False]]),
        np.arange(1),
        np.arange(1),
        np.ones((1, 2)),
        np.ones((1, 2)),
        {},
    )
    assert tied_floor(one) == 2 / 3


def test_signals_say_which_defense_they_were_queried_behind():
    plain = {"model": "resnet14", "queries": 1}
    assert studies.setting(plain, "rmia") == PLAIN._replace(attack="rmia")
    assert (
        studies.setting(
            plain | {"output": "memguard", "output_args": {"confidence": 0.9}}, "loss"
        ).label
        == "ResNet-14, MemGuard, confidence 0.9"
    )
    printed_weight = studies.setting(
        plain | {"defense": "l1", "defense_args": {"weight": 1e-5}}, "rmia"
    )
    assert printed_weight.label == "ResNet-14, L1" and printed_weight.options == ""
    other = studies.setting(plain | {"defense": "l1", "defense_args": {"weight": 1e-3}}, "rmia")
    assert other.label == "ResNet-14, L1, weight 0.001"
    sde = studies.setting(
        {"model": "sdenet", "flow": FLOW, "noise": None, "queries": 4}, "lira_global"
    )
    assert sde == SDE and sde.stochastic and sde.label == "SDENet sigma=2"
    short = studies.setting(
        {"model": "sdenet", "flow": FLOW | {"steps": 8, "k": sqrt(0.5)}, "queries": 4},
        "lira_global",
    )
    assert (
        short.label == "SDENet sigma=2, 8 steps"
        and abs(short.sigma - 2) < 1e-9
        and not short.variant
    )
    quiet = studies.setting(
        {"model": "sdenet", "flow": FLOW, "noise": False, "queries": 4}, "lira_global"
    )
    assert (
        quiet.label == "SDENet sigma=2, noise off" and quiet.queries == 1 and not quiet.stochastic
    )
    assert (
        studies.setting({"model": "tinycnn", "defense": "relaxloss"}, "loss").label
        == "tinycnn, RelaxLoss"
    )


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (DefenseCell("resnet14", k=0.5), "is for sdenet and replaced alone"),
        (DefenseCell("sdenet", k=-0.5), "k >= 0"),
        (DefenseCell("sdenet", queries=0), "at least 1 block, step and query"),
    ],
)
def test_networks_that_cannot_be_are_refused(cell, words):
    with pytest.raises(ValueError, match=words):
        studies.against_papers("privacy", {cell: scores()})


def test_signals_without_a_model_and_scores_without_a_target_are_refused():
    with pytest.raises(ValueError, match="signals name no model"):
        studies.setting({"queries": 1}, "loss")
    with pytest.raises(ValueError, match="has no target"):
        rows, single = np.zeros((0, 2)), np.zeros(0, int)
        studies.against_papers(
            "privacy", {PLAIN: Scores(rows, rows > 0, single, single, rows, rows, {})}
        )


def cost(**changes) -> pd.DataFrame:
    names = ["resnet14", "odenet", "sdenet", "replaced"]
    table = pd.DataFrame(
        {"family": names, "seconds": [10.0, 40, 150, 20], "memory_mib": [1000.0, 1500, 5800, 1200]}
    )
    return table.assign(**changes)


def test_costs_are_ratios_to_resnet_on_both_sides():
    table = studies.against_papers("costs", cost())
    assert len(table) == 8 and table["note"].str.contains("label printed as k=2").sum() == 2
    seconds = table[table["metric"] == "time_per_epoch"].set_index("model")
    assert seconds["published_ratio"].to_dict() == {
        "resnet14": 1.0,
        "odenet": 2.3,
        "sdenet": 3.0,
        "replaced": 1.5,
    }
    assert seconds["ratio"].to_dict() == {
        "resnet14": 1.0,
        "odenet": 4.0,
        "sdenet": 15.0,
        "replaced": 2.0,
    }
    memory = table[table["metric"] == "memory"].set_index("model")
    assert (
        memory.loc["sdenet", "published_ratio"] == 5051 / 941
        and memory.loc["sdenet", "ratio"] == 5.8
    )
    missing = studies.against_papers("costs", cost().iloc[:2])
    assert (missing.loc[missing["ratio"].isna(), "note"].str.endswith("not run")).all() and missing[
        "ratio"
    ].isna().sum() == 4


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (cost().iloc[1:], "and resnet14, as ratios are to it"),
        (cost(family=["resnet14", "odenet", "odenet", "sdenet"]), "wanted one row per network"),
    ],
)
def test_costs_that_cannot_be_compared_are_refused(table, words):
    with pytest.raises(ValueError, match=words):
        studies.against_papers("costs", table)
