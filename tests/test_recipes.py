"""Named recipes and labels; what recipes do to the membership result, on signals whose truth is
known.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mia_nb import metrics, plots, studies, training
from mia_nb.attacks import score
from mia_nb.cli import notebooks
from mia_nb.data import paired_membership
from mia_nb.metrics.memorised_samples import memorisation
from mia_nb.training import changes, label, labels, train
from mia_nb.training.recipes import RECIPES
from mia_nb.types import Recipe, Signals

PRESETS = Path(__file__).resolve().parents[1] / "notebooks" / "presets"
MASK = paired_membership(16, 1000, seed=0)


def signals(member, margin) -> Signals:
    """Signals with these margins (M, N), in three classes."""
    z = np.zeros((*margin.shape, 3))
    z[..., 0] = margin + np.log(2)
    return Signals.from_logits(z, np.zeros(margin.shape[1], int), member)


def world(strength, seed, *, member=MASK, noise=1.0, hardness=1.0) -> Signals:
    """Membership raises the margin of sample i by strength[i]; noise is independent for every model
    and sample.
    """
    rng = np.random.default_rng(seed)
    hard = hardness * rng.normal(size=member.shape[1])
    return signals(member, hard + member * strength + noise * rng.normal(size=member.shape))


def strengths(seed, samples=1000):
    return np.abs(np.random.default_rng(seed).normal(size=samples))


# ---- names ----


@pytest.mark.parametrize("name", ["paper-snn", "paper-nsde"])
def test_the_recipe_of_a_paper_is_that_of_its_preset(name):
    first = notebooks.read_preset(name, [PRESETS.parent])[0]["parameters"]
    assert {entry: first[entry] for entry in RECIPES[name]} == RECIPES[name]
    others = {"dataset", "part", "model", "model_args", "num_models", "seed", "snapshots"}
    others |= {"population"}
    # nothing of its training is missing
    assert set(first) == set(RECIPES[name]) | (set(first) & others)


def test_recipes_are_changes_that_training_accepts_and_fast_is_one_cycle_in_16_to_20_epochs_and_long_100_or_more():
    for entries in RECIPES.values():
        assert training.train.check and training.label(Recipe().replace(**entries))
    assert RECIPES["fast"]["schedule"] == "one_cycle" and 16 <= RECIPES["fast"]["epochs"] <= 20
    assert RECIPES["long"]["epochs"] >= 100


def test_a_label_says_schedule_epochs_and_augmentation_and_what_is_unusual():
    assert label(Recipe(epochs=16, augment="crop+flip")) == "fast: one-cycle, 16 epochs, crop+flip"
    assert (
        label(Recipe(epochs=1, schedule="constant"))
        == "constant learning rate, 1 epoch, no augmentation"
    )
    adam = Recipe(optimizer="adam", lr=0.001, batch=64, dtype="bfloat16", defense="l2")
    assert (
        label(adam)
        == "one-cycle, 20 epochs, no augmentation, adam, lr 0.001, batch 64, bfloat16, l2, weight"
        " 1e-05"
    )
    assert label(Recipe(epochs=6, parent="ab" * 32)).endswith(
        "6 epochs, no augmentation, from abababababab"
    )
    assert label(Recipe(epochs=0, parent="ab" * 32)) == "not trained further, from abababababab"


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_carries_a_name_exactly_when_it_has_all_its_entries(name):
    recipe = Recipe(model="resnet14", num_models=4, seed=3).replace(**RECIPES[name])
    assert label(recipe).startswith(f"{name}: ")
    for other in ({"epochs": 7}, {"schedule": "constant"}):
        assert ": " not in label(recipe.replace(**other))


def test_the_name_is_found_where_defaults_of_the_optimiser_are_written_out():
    recipe = train.complete(Recipe().replace(**RECIPES["paper-nsde"]))
    assert "momentum" in recipe.optimizer_args and label(recipe).startswith("paper-nsde: ")


def test_labels_beside_each_other_leave_out_what_all_share_and_differ():
    fast, slow = Recipe(epochs=16, batch=64), Recipe(epochs=40, batch=64, lr=0.05)
    assert labels([fast, slow]) == [
        "fast: one-cycle, 16 epochs, no augmentation",
        "one-cycle, 40 epochs, no augmentation, lr 0.05",
    ]
    twins = labels([fast, fast.replace(model="resnet14")])
    assert len(set(twins)) == 2 and twins[1].endswith("(recipe 1)") and labels([]) == []


def test_a_family_is_a_name_or_changes_or_changes_on_top_of_a_name():
    assert changes("fast") == RECIPES["fast"] and changes("fast") is not RECIPES["fast"]
    assert changes({"epochs": 40}) == {"epochs": 40}
    assert changes({"recipe": "fast", "augment": "none", "epochs": 18}) == {
        **RECIPES["fast"],
        "augment": "none",
        "epochs": 18,
    }
    with pytest.raises(ValueError, match="unknown recipe 'fats'; did you mean 'fast'"):
        changes("fats")
    with pytest.raises(ValueError, match="wanted a name"):
        changes(40)


# ---- do two recipes expose the same samples? ----


def test_exposure_is_the_mean_margin_inside_minus_that_outside():
    one = world(strengths(0), 1)
    inside, outside = (
        np.where(mask, one.margin[:, 0], 0).sum(0) / 8 for mask in (one.member, ~one.member)
    )
    assert memorisation(one).shape == (8, 1000)
    assert memorisation(one).mean(0) == pytest.approx(inside - outside)


@pytest.mark.slow
def test_equal_recipes_with_independent_noise_agree_as_far_as_their_noise_allows():
    """The correlation is far below one and its ratio to the ceiling is one, also when one recipe is
    noisier and steeper.
    """
    found = []
    for seed in range(8):
        true = strengths(seed)
        pair = {"a": world(true, 100 + seed), "b": world(2 * true, 200 + seed, noise=3.0)}
        found.append(metrics.agreement(pair).iloc[0])
    table = pd.DataFrame(found)
    assert table["correlation"].max() < 0.6 and table["ceiling"].mean() < 0.5
    assert table["ratio"].mean() == pytest.approx(1, abs=0.06)
    assert table["low"].lt(1).mean() >= 0.9 and table["high"].gt(1).mean() >= 0.9
    assert (table["low"] > 0).all()  # and that there is agreement is resolved


@pytest.mark.slow
def test_recipes_that_expose_other_samples_have_a_ratio_of_zero_and_half_related_ones_of_about_a_half():
    rng, ratios = np.random.default_rng(0), []
    for seed in range(8):
        x, y = rng.normal(size=(2, 1000))
        pools = {
            "a": world(x, seed),
            "b": world(y, 50 + seed),
            "c": world(x / 2 + np.sqrt(0.75) * y, 90 + seed),
        }
        ratios.append(metrics.agreement(pools)["ratio"])
    none, half, most = np.mean(ratios, axis=0)
    assert none == pytest.approx(0, abs=0.05)
    # Spearman's of a correlation of one half
    assert half == pytest.approx(6 / np.pi * np.arcsin(0.25), abs=0.06)
    assert most == pytest.approx(6 / np.pi * np.arcsin(np.sqrt(0.75) / 2), abs=0.06)


def test_noise_that_recipes_share_model_by_model_is_no_agreement():
    """Same initial weights, same batches: row m of both pools errs alike, yet exposes nothing in
    common.
    """
    shared = np.random.default_rng(0).normal(size=MASK.shape)
    pools = {
        name: signals(
            MASK,
            MASK * strengths(seed)
            + 2 * shared
            + 0.1 * np.random.default_rng(seed).normal(size=MASK.shape),
        )
        for seed, name in enumerate("ab")
    }
    naive = np.corrcoef(*(memorisation(one).mean(0) for one in pools.values()))[0, 1]
    row = metrics.agreement(pools).iloc[0]
    assert naive > 0.3 and row["low"] < 0 < row["high"] and abs(row["correlation"]) < 0.1


def test_the_ranking_of_an_attack_agrees_with_itself_and_takes_no_reference_from_the_other_half():
    true = 2 * strengths(3, 600)
    member = paired_membership(16, 600, seed=1)
    pools = {name: world(true, seed, member=member, hardness=0) for seed, name in enumerate("ab")}
    row = metrics.agreement(pools, "attack_r", splits=4).iloc[0]
    assert (
        row["low"] < 1 < row["high"] and row["low"] > 0.3 and row["covers"] == "samples and pairs"
    )
    few = {name: one.select(models=slice(0, 8)) for name, one in pools.items()}
    assert metrics.agreement(few, "attack_r").iloc[0]["covers"] == "samples"
    with pytest.raises(ValueError, match="3 pairs of models: two halves need 4"):
        metrics.agreement(
            {name: one.select(models=slice(0, 6)) for name, one in pools.items()}, "attack_r"
        )


def test_agreement_refuses_what_is_not_paired_or_not_shared():
    one = world(strengths(0), 0)
    with pytest.raises(ValueError, match="different membership"):
        metrics.agreement(
            {"a": one, "b": world(strengths(0), 1, member=paired_membership(16, 1000, seed=5))}
        )
    with pytest.raises(ValueError, match="got 1 pool"):
        metrics.agreement({"a": one})
    coins = np.random.default_rng(0).random((6, 1000)) < 0.5
    with pytest.raises(ValueError, match="not complementary pairs"):
        memorisation(world(strengths(0), 0, member=coins))


def test_a_population_is_left_out_and_samples_without_exposure_have_no_ceiling():
    aside = np.zeros(1000, bool)
    aside[:300] = True
    member = paired_membership(8, 1000, num_population=0, seed=2) & ~aside
    one, other = (
        replace(world(strengths(0), seed, member=member), population=aside) for seed in (1, 2)
    )
    assert memorisation(one).shape == (4, 700)
    assert metrics.agreement({"a": one, "b": other}).iloc[0]["samples"] == 700
    flat = signals(member, np.random.default_rng(0).normal(size=1000) + np.zeros(member.shape))
    flat = replace(flat, population=aside)
    assert np.isnan(metrics.agreement({"a": flat, "b": flat}).iloc[0]["ratio"])


# ---- claims ----


def of(strength: dict[str, float], recipes: dict[str, Recipe], *, same=False) -> dict:
    """Cells of loss and rmia on recipes whose membership effect is given; the same noise in all of
    them if `same`.
    """
    each = {
        name: world(np.full(1000, effect), 0 if same else i, noise=0.7)
        for i, (name, effect) in enumerate(strength.items())
    }
    return {
        studies.setting(recipes[name], word, label=name): score(word, one)
        for name, one in each.items()
        for word in ("loss", "rmia")
    }


LENGTHS = {"5": Recipe(epochs=5), "20": Recipe(epochs=20), "80": Recipe(epochs=80)}


@pytest.fixture(scope="module")
def rising():
    return of({"5": 0.1, "20": 0.4, "80": 0.8}, LENGTHS)


def test_a_risk_that_rises_with_epochs_is_found_and_a_short_recipe_does_not_stand_for_a_long_one(
    rising,
):
    claims = studies.claims("recipes", rising, n_resamples=200)
    verdicts = claims["verdict"].str.split(" \\(").str[0].to_dict()
    assert verdicts["R1"] == verdicts["R2"] == "holds" and verdicts["R3"] == "does not hold"
    assert verdicts["R5"] == verdicts["R6"] == verdicts["R7"] == "not run"


def test_a_difference_between_recipes_is_that_of_their_scores_target_by_target(rising):
    table = studies.comparisons("recipes", rising, n_resamples=200)
    rows = table[(table["claim"] == "R3") & (table["part"] == "rmia") & (table["metric"] == "auc")]
    assert rows["compared"].tolist() == ["80 - 5, rmia", "80 - 20, rmia"]
    means = {
        cell.recipe: metrics.intervals(one, n_resamples=2).loc["auc", "value"]
        for cell, one in rising.items()
        if cell.attack == "rmia"
    }
    long, *short = (means[name] for name in ("80", "5", "20"))
    assert rows["value"].tolist() == pytest.approx([long - one for one in short])
    assert (rows["low"] < rows["value"]).all() and (rows["value"] < rows["high"]).all()


def test_pairing_resolves_what_intervals_by_themselves_do_not():
    """The same noise under both recipes: each AUC's interval overlaps the other's, the paired
    difference is sure.
    """
    cells = of({"5": 0.30, "20": 0.33}, LENGTHS, same=True)
    loss = {cell.recipe: scores for cell, scores in cells.items() if cell.attack == "loss"}
    ends = metrics.by_attack(metrics.summary(loss, (), n_resamples=300), "auc")
    assert ends.loc["5", "high"] > ends.loc["20", "low"]
    table = studies.comparisons("recipes", cells, n_resamples=300)
    row = table[
        (table["claim"] == "R3") & (table["part"] == "loss") & (table["metric"] == "auc")
    ].iloc[0]
    assert 0 < row["low"] < row["value"] < row["high"] < 0.03


def test_equal_recipes_can_stand_for_each_other_and_a_risk_that_does_not_rise_is_not_said_to():
    cells = of({"5": 0.4, "20": 0.4, "80": 0.4}, LENGTHS, same=True)
    verdicts = studies.claims("recipes", cells, n_resamples=200)["verdict"]
    assert verdicts["R3"] == "holds" and verdicts["R1"] == "not resolved"


def test_augmentation_and_schedule_are_compared_where_nothing_else_differs():
    recipes = {
        "plain": Recipe(),
        "crop": Recipe(augment="crop+flip"),
        "flat": Recipe(schedule="constant"),
        "other": Recipe(augment="crop", epochs=40, lr=0.05),
    }
    cells = of({"plain": 0.8, "crop": 0.2, "flat": 0.8, "other": 0.1}, recipes, same=True)
    table = studies.comparisons("recipes", cells, n_resamples=100)
    assert set(table["claim"]) == {"R5", "R6"}
    assert set(table.loc[table["claim"] == "R5", "compared"]) == {
        "plain - crop, strongest of 2 attacks"
    }
    claims = studies.claims("recipes", cells, comparisons=table)
    assert (
        claims.loc["R5", "verdict"].startswith("holds") and claims.loc["R6", "verdict"] == "holds"
    )
    assert claims.loc["R1", "verdict"] == "not run"


def test_the_order_of_attacks_is_asked_where_it_is_sure_under_the_shortest_recipe():
    """rmia knows how hard a sample is, loss does not; exchanged under the long recipe they come in
    another order.
    """
    cells = of({"5": 0.4, "80": 0.8}, LENGTHS)
    other = {"loss": "rmia", "rmia": "loss"}
    turned = {
        c: cells[c._replace(attack=other[c.attack])] if c.epochs == 80 else one
        for c, one in cells.items()
    }
    for found, verdict in ((cells, "holds"), (turned, "does not hold")):
        claims = studies.claims("recipes", found, n_resamples=50)
        assert (
            claims.loc["R8", "verdict"] == verdict
            and "RMIA - loss under 80" in claims.loc["R8", "evidence"]
        )
    alike = {c: cells[c._replace(attack="loss")] for c in cells}
    # no order to ask for
    assert studies.claims("recipes", alike, n_resamples=5).loc["R8", "verdict"] == "not run"


def test_recipes_on_other_masks_are_refused(rising):
    cell, other = next(iter(rising)), studies.setting(Recipe(epochs=9), "loss", label="x")
    moved = score("loss", world(strengths(0), 0, member=paired_membership(16, 1000, seed=9)))
    with pytest.raises(ValueError, match="different membership"):
        studies.comparisons("recipes", {cell: rising[cell], other: moved}, n_resamples=10)


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ([(0.95, 1.05), (0.92, 1.1)], "holds"),
        ([(0.95, 1.05), (0.5, 0.8)], "does not hold"),
        ([(0.7, 1.1)], "not resolved"),
    ],
)
def test_the_verdict_on_rankings_follows_the_ends_of_their_ratios(rising, ends, verdict):
    row = {
        "first": "5",
        "second": "20",
        "correlation": 0.4,
        "ceiling": 0.5,
        "ratio": 0.8,
        "samples": 1000,
        "pairs": 8,
    }
    ranks = pd.DataFrame([{**row, "low": low, "high": high} for low, high in ends])
    found = studies.claims("recipes", rising, ranks=ranks, n_resamples=5)
    assert (
        found.loc["R7", "verdict"] == verdict
        and "1,000 samples, 8 pairs" in found.loc["R7", "evidence"]
    )


# ---- tables and pictures ----


def test_a_rate_that_cannot_be_measured_is_marked_in_the_table_and_drawn_open(rising):
    tables = []
    for cell, found in rising.items():
        table = metrics.summary({cell.attack: found}, (0.01, 0.1), n_resamples=50)
        tables.append(table[table["attack"] != "max"].assign(epochs=cell.epochs))
    risks = pd.concat(tables, ignore_index=True)
    risks = risks[risks["metric"].isin(["auc", "tpr"])]
    assert len(risks) == 3 * 6
    assert not risks.loc[risks["fpr"] == 0.01, "measurable"].any()
    figure = plots.lines(risks, "epochs", line="attack", panel="metric", log=True)
    (drawn,) = (trace for trace in figure.data if trace.name == "rmia" and trace.xaxis == "x")
    truth = risks[(risks["metric"] == "auc") & (risks["attack"] == "rmia")].sort_values("epochs")
    assert list(drawn.y) == list(truth["value"])
    assert list(drawn.x) == pytest.approx(truth["epochs"].tolist(), rel=0.1)
    assert list(drawn.error_y.array) == pytest.approx((truth["high"] - truth["value"]).tolist())
    (few,) = (trace for trace in figure.data if trace.name == "rmia" and trace.xaxis == "x2")
    assert all(symbol.endswith("-open") for symbol in few.marker.symbol)
