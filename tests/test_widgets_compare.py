"""Stored results side by side: what differs between them, exactly, and differences that are paired
or not drawn at all.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from worlds import world

from mia_nb import metrics, store
from mia_nb.attacks import in_words
from mia_nb.widgets.compare import UNPAIRED, compare, differences, paired, settings
from mia_nb.widgets.stored import Source

KEYS = itertools.count()
RECIPE = {
    "model": "tinycnn",
    "model_args": {"width": 8},
    "epochs": 5,
    "lr": 0.1,
    "augment": "none",
    "seed": 0,
    "parent": None,
}


def result(root, label, signals, *, digest="d" * 64, info=None, **recipe):
    """A source as the store gives it: recipe and images of its pool on disk, signals in memory."""
    folder = store.open_folder(root, "pool", "toy", f"{next(KEYS):064x}"[::-1], RECIPE | recipe)
    folder.write_json("images.json", {"digest": digest, "classes": list("abcd")})
    return Source(
        label,
        signals,
        pool=folder,
        info={"draws": "plain", "queries": 1, "pool": label * 12} | (info or {}),
    )


def leaky(leak, seed=0, **more):
    return world(8, 400, leak=leak, spread=0.2, seed=seed, **more)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    return [
        result(root, "weak", leaky(0.3)),
        result(root, "strong", leaky(1.5), epochs=9, model_args={"width": 8, "k": 0.5}),
        result(root, "weak again", leaky(0.3)),
        result(root, "other members", world(8, 400, leak=1.5, seed=1)),
        result(root, "other images", leaky(1.5), digest="e" * 64),
        result(
            root,
            "less accurate",
            replace(low := leaky(0.3), correct=low.correct & (low.margin > 1)),
        ),
    ]


@pytest.fixture
def explorer(results):
    return compare(results)


def cells(explorer):
    table = explorer.view.table
    return table.set_index(table.columns[0])


def test_identical_results_differ_by_exactly_zero_and_in_no_setting(explorer, results):
    explorer.set(results=("weak", "weak again"))
    assert cells(explorer).loc["AUC minus A's", "B"] == "+0.000 [+0.000, +0.000]"
    assert (paired(results[2], results[0], "loss").to_numpy() == 0).all()
    assert cells(explorer).index[-1] == "references a side, queries"


@pytest.mark.parametrize("attack", ["loss", "rmia"])
def test_differences_are_those_of_metrics_paired_draw_by_draw(explorer, results, attack):
    explorer.set(results=("weak", "strong"), attack=attack)
    wanted = metrics.difference(
        results[1].scores(attack), results[0].scores(attack), n_resamples=200
    ).loc["auc"]
    shown = f"{wanted['value']:+.3f} [{wanted['low']:+.3f}, {wanted['high']:+.3f}]"
    assert wanted["low"] > 0.02
    assert (
        cells(explorer).loc["AUC minus A's", "B"] == shown
        and f"B - A = {shown}, paired" in explorer.view.sentence
    )


@pytest.mark.parametrize("other", ["other members", "other images"])
def test_other_members_or_images_are_not_paired(explorer, other):
    explorer.set(results=("strong", other))
    assert (
        cells(explorer).loc["AUC minus A's", "B"] == UNPAIRED and UNPAIRED in explorer.view.sentence
    )


def test_settings_listed_are_exactly_those_that_differ(explorer):
    explorer.set(results=("weak", "strong"))
    changed = cells(explorer).loc["references a side, queries":].iloc[1:]
    assert {name: tuple(row) for name, row in changed.iterrows()} == {
        "epochs": ("5", "9"),
        "model_args.k": ("-", "0.5"),
    }


def test_nested_settings_are_compared_leaf_by_leaf_and_restatements_come_once():
    records = {
        "A": {
            "lr": 0.1,
            "model_args.k": 0.5,
            "flow.k": 0.5,
            "flow.T": 1.0,
            "parent": None,
            "seed": 0,
        },
        "B": {
            "lr": 0.1,
            "model_args.k": 0.25,
            "flow.k": 0.25,
            "flow.T": 1.0,
            "seed": 0,
            "parent": "ab" * 32,
        },
        "C": {
            "lr": 0.1,
            "model_args.k": 0.25,
            "flow.k": 0.25,
            "flow.T": 2.0,
            "seed": 0,
            "split": None,
        },
    }
    table = differences(records)
    assert {name: tuple(row) for name, row in table.iterrows()} == {
        "model_args.k": ("0.5", "0.25", "0.25"),
        "flow.T": ("1", "1", "2"),
        "parent": ("-", "abababab", "-"),
    }
    assert list(table.columns) == ["A", "B", "C"]


def test_a_word_that_recipe_and_asking_use_for_two_things_is_kept_apart(tmp_path):
    plain = result(tmp_path, "plain", leaky(1.0), info={"augment": False, "seed": 0})
    crops = result(tmp_path, "crops", leaky(1.0), info={"augment": True, "seed": 0})
    found = settings(crops)
    assert (
        found["augment"] == "none" and found["query.augment"] is True and "query.seed" not in found
    )
    changed = differences({"A": settings(plain), "B": found})
    assert {name: tuple(row) for name, row in changed.iterrows()} == {
        "query.augment": ("False", "True")
    }


def test_numbers_are_those_of_intervals_and_accuracies(explorer, results):
    explorer.set(results=("strong",), attack="loss")
    scores = results[1].scores("loss")
    auc = metrics.intervals(scores, n_resamples=200).loc["auc"]
    gap = 100 * metrics.accuracies(scores).loc["gap"]
    table = cells(explorer)
    assert table.loc["AUC", "A"] == f"{auc['value']:.3f} [{auc['low']:.3f}, {auc['high']:.3f}]"
    assert table.loc["gap", "A"] == f"{gap['value']:.1f} % [{gap['low']:.1f}, {gap['high']:.1f}]"
    assert table.loc["n1, n0, targets", "A"] == "200, 200, 8"
    # 200 non-members resolve no more
    assert "TPR at 0.1 %" not in table.index and "TPR at 10 %" in table.index
    assert "AUC minus A's" not in table.index


def test_unequal_accuracy_is_warned_of_from_two_points_on(results):
    explorer = compare(results)
    right = {source.label: source.scores("loss").accuracy[:, 1].mean() for source in results}
    pairs = list(itertools.combinations(right, 2))
    warned = {}
    for pair in pairs:
        explorer.set(results=pair)
        warned[pair] = "compare at equal accuracy" in explorer.view.note
    assert warned == {pair: abs(right[pair[0]] - right[pair[1]]) > 0.02 for pair in pairs}
    assert len(set(warned.values())) == 2


def test_the_filter_shortens_the_list_and_keeps_what_is_ticked(explorer, results):
    explorer.set(results=("strong",))
    explorer.set(filter="OTHER mem")
    assert explorer.controls["results"].options == ("strong", "other members")
    assert explorer.values["results"] == ("strong",)
    explorer.set(filter="")
    assert set(explorer.controls["results"].options) == {source.label for source in results}


def test_the_order_of_the_boxes_stays_while_they_are_ticked(explorer):
    before = explorer.controls["results"].options
    explorer.set(results=("other images", "weak"))
    assert explorer.controls["results"].options == before


def test_a_fifth_tick_unticks_the_first(explorer):
    for box in explorer.controls["results"].box.children:
        box.value = True
    assert len(explorer.values["results"]) == 4
    assert len(explorer.view.table.columns) == 5


def test_with_nothing_ticked_the_explorer_asks_for_a_tick_and_keeps_its_pictures(explorer):
    before = explorer.view
    with pytest.raises(ValueError, match="tick one or more"):
        explorer.set(results=())
    assert repr(explorer.view) == repr(before) and explorer.view.figures == before.figures
    assert explorer.set(results=("weak",)).sentence.startswith(
        f"{in_words(explorer.values['attack'])}: AUC A 0."
    )


def test_only_attacks_that_every_result_supports_are_offered(tmp_path):
    many, few = (
        result(tmp_path, "many", leaky(1.0)),
        result(tmp_path, "few", world(2, 400, leak=1.0)),
    )
    explorer = compare([many, few])
    offered = dict(explorer.controls["attack"].options).values()
    assert set(offered) == set(many.attacks()) & set(few.attacks()) and "rmia" not in offered
    explorer.set(results=("many",))
    assert ("RMIA", "rmia") in explorer.controls["attack"].options


def test_the_rocs_are_those_of_the_ticked_results(explorer):
    figure = explorer.set(results=("weak", "strong", "other members")).figures["roc"]
    named = {
        trace["name"].split("  AUC")[0]
        for trace in figure["data"]
        if "AUC" in (trace.get("name") or "")
    }
    assert named == {"A: weak", "B: strong", "C: other members"}


def test_without_results_there_is_a_message_with_a_command():
    explorer = compare([])
    assert explorer.view is None and "mia-nb run all" in explorer.error


def test_signals_from_memory_have_no_recipe_and_are_paired_by_their_members():
    signals = leaky(1.0)
    one, two = Source("one", signals), Source("two", signals)
    explorer = compare([one, two])
    assert np.array_equal(paired(two, one, "loss")["value"], np.zeros(5))
    assert "paired" in explorer.view.sentence


def test_a_first_result_that_cannot_be_scored_is_told_in_place_and_the_others_are_reached(results):
    hidden = Source("hidden", replace(results[0].signals, member=None))
    explorer = compare([hidden, results[0], results[1]])
    assert (
        explorer.view is None and "membership" in explorer.error and "report" not in explorer.error
    )
    assert "strong" in explorer.controls["results"].options
    assert "paired" in explorer.set(results=("weak", "strong")).sentence
