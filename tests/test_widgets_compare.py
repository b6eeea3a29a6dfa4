"""The explorer of settings: it measures what is known of a world, its controls and pictures agree,
and differences are paired or not drawn at all.
"""

from __future__ import annotations

import base64
import gc
import io
import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from settings_worlds import (
    LEAKS,
    NOISE,
    QUERIES,
    RATES,
    answers,
    asked_with,
    gaussian_noise,
    noisy_sources,
    result,
    source,
    spiking,
    steady,
)
from worlds import world

import mia_nb as mia
from mia_nb import attacks, metrics
from mia_nb.types import Scores
from mia_nb.widgets import Source, compare, dropout, latency, noise
from mia_nb.widgets.compare import differences, settings_of
from mia_nb.widgets.contrast import RESAMPLES, SCORES_KEPT, UNPAIRED, short_names
from mia_nb.widgets.families import by_time


@pytest.fixture(scope="module")
def plain():
    return source("network", answers([0.5], steady, query_kind="plain", seed=1, family="toy"))


@pytest.fixture(scope="module")
def steps():
    return source("spiking", spiking())


@pytest.fixture(scope="module")
def late(steps, plain):
    return latency([steps, plain])


@pytest.fixture(scope="module")
def rates(plain):
    few = source("few", asked_with(RATES[1], 4))
    return [plain, source("many", asked_with(RATES[0], 6)), few]


@pytest.fixture(scope="module")
def sweep(rates):
    return dropout(rates)


@pytest.fixture(scope="module")
def noisy():
    return noise(noisy_sources(*gaussian_noise()))


def array(value):
    if isinstance(value, dict):
        return np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
    return np.asarray(value)


def rows_of(explorer, metric):
    """The rows of a metric in what CSV saves, by what was queried."""
    table = pd.read_csv(io.StringIO(explorer.csv()), comment="#")
    return table[table["metric"] == metric].set_index("family")


# --- what is measured -----------------------------------------------------------------------------


def test_names_beside_each_other_say_what_they_differ_in():
    short = short_names(["digits, TinyCNN, 8 epochs", "digits, ResNet14, 8 epochs"])
    assert list(short.values()) == ["TinyCNN", "ResNet14"]
    # nothing would be left of the first
    names = ["digits, TinyCNN", "digits, TinyCNN, dropout 0.02"]
    assert short_names(names) == dict(zip(names, names, strict=True))
    assert short_names(names[:1]) == {names[0]: names[0]}


def test_the_auc_after_t_steps_is_that_of_a_world_whose_leak_at_t_is_known(late):
    late.set(target="all", attack="loss", t=1)
    found = rows_of(late, "auc").set_index("t")
    for t, leak in enumerate(LEAKS, start=1):
        row = found.loc[t]
        truth = norm.cdf(leak / np.sqrt(2))
        assert row["low"] <= truth <= row["high"] and row["high"] - row["low"] < 0.05
        assert row["value"] == pytest.approx(truth, abs=0.01)


def test_an_attacker_at_t_scores_the_answer_at_t_alone_and_the_last_is_the_plain_answer(steps):
    (family,) = by_time([steps]).values()
    cube = steps.signals
    for t in (1, 2, 3):
        alone = replace(cube.select(queries=[t - 1]), query_kind="plain")
        for attack in ("loss", "rmia", "nig"):
            scores = family.outputs["direct", t].scores(attack)
            np.testing.assert_array_equal(scores.value, attacks.score(attack, alone).value)
            assert scores.info["flags"] == []


def test_every_point_of_dropout_is_the_auc_of_the_first_q_answers_of_a_world_where_it_is_known(
    sweep,
):
    sweep.set(target="all", attack="loss")
    found = rows_of(sweep, "auc").dropna(subset="p").set_index(["p", "queries"])["value"]
    cells = [(0.02, 1), (0.02, 2), (0.02, 4), (0.02, 6), (0.1, 1), (0.1, 2), (0.1, 4)]
    assert list(found.index) == cells
    for p, queries in cells:
        truth = norm.cdf(1 / np.sqrt(2 * (1 + 4 / queries)))
        assert found[p, queries] == pytest.approx(truth, abs=0.012)


def test_averaging_more_noisy_outputs_tends_to_the_network_without_noise(noisy):
    noisy.set(target="all", attack="loss")
    found = rows_of(noisy, "auc")
    for count, row in found.dropna(subset="outputs").set_index("outputs").iterrows():
        truth = norm.cdf(1 / np.sqrt(0.8**2 + NOISE**2 / count) / np.sqrt(2))
        assert row["low"] < truth < row["high"]
    assert found.loc["noise off", "low"] < norm.cdf(1 / 0.8 / np.sqrt(2))
    wanted = metrics.query_curve(
        gaussian_noise()[0], "loss", queries=(1, 4, 16), fpr=(), n_resamples=RESAMPLES
    ).set_index("R")
    drawn = found.dropna(subset="outputs").set_index("outputs")["value"]
    for count in (1, 4, 16):
        assert drawn[count] == pytest.approx(wanted.loc[count, "value"])


@pytest.mark.parametrize("attack", ["loss", "rmia"])
def test_numbers_are_those_of_the_summary(late, plain, attack):
    late.set(target="all", attack=attack, t=2)
    wanted = mia.summary({attack: plain.scores(attack)}, n_resamples=RESAMPLES)
    wanted = wanted[wanted["attack"] == attack].set_index(["metric", "fpr"])
    table = pd.read_csv(io.StringIO(late.csv()), comment="#")
    found = table[table["family"] == "ordinary network"].set_index(["metric", "fpr"])
    for metric in (("auc", np.nan), ("tpr", 0.1), ("test_acc", np.nan)):
        for end in ("value", "low", "high"):
            one, other = (frame.loc[[metric], end].iloc[0] for frame in (wanted, found))
            assert one == pytest.approx(other)


@pytest.mark.parametrize("which", ["latency", "dropout", "noise", "compare"])
def test_the_difference_is_the_paired_one_of_the_metrics(which, late, sweep, noisy, rates, steps):
    explorer = {"latency": late, "dropout": sweep, "noise": noisy}.get(which)
    if explorer is None:
        explorer = compare([rates[0], rates[1]])
    explorer.set(target="all", attack="loss")
    quiet = {"latency": rates[0], "dropout": rates[0], "compare": rates[0]}.get(which)
    if which == "latency":
        explorer.set(t=2)
        asked = replace(steps.signals.select(queries=[1]), query_kind="plain")
    elif which == "dropout":
        explorer.set(p=0.02, queries=4)
        asked = rates[1].signals.select(queries=slice(4))
    elif which == "noise":
        explorer.set(outputs=4)
        asked, off = gaussian_noise()
        asked = asked.select(queries=slice(4))
        quiet = Source("off", off)
    else:
        asked = rates[1].signals
    wanted = metrics.difference(
        attacks.score("loss", asked), quiet.scores("loss"), (), n_resamples=RESAMPLES
    ).loc["auc"]
    shown = f"{wanted['value']:+.3f} [{wanted['low']:+.3f}, {wanted['high']:+.3f}]"
    assert f"AUC {shown}, paired" in explorer.view.sentence
    minus = explorer.view.long[explorer.view.long["metric"].str.startswith("auc minus ")]
    assert minus["value"].item() == pytest.approx(wanted["value"])


def test_a_network_that_leaks_as_the_ordinary_one_differs_from_it_by_nothing_that_is_resolved():
    spikes = source("spiking", spiking((0.5, 0.5)))
    other = answers([0.5], steady, query_kind="plain", seed=3, family="toy")
    explorer = latency([spikes, source("network", other)])
    for t in (1, 2):
        assert "which may be nothing" in explorer.set(attack="loss", t=t).sentence


# --- what is shown --------------------------------------------------------------------------------


def test_the_sentence_holds_both_sides_with_intervals_their_difference_and_the_sample_size(late):
    words = late.set(target="all", attack="loss", t=2).sentence
    assert words.startswith("after 2 of 3 steps: loss threshold finds ")
    assert "; ordinary network: " in words and words.count("(95 %: ") == 2
    assert "; the difference: AUC +" in words and words.endswith("n0 = 700")


def test_moving_a_setting_moves_the_line_the_histogram_and_the_roc(late):
    views = [late.set(attack="loss", t=t) for t in (1, 3)]
    marks = []
    for view in views:
        shapes = view.figures["curve"]["layout"]["shapes"]
        # beside the dotted level of chance
        marks.append([shape["x0"] for shape in shapes if shape["x0"] == shape["x1"]])
    assert marks == [[1], [3]]
    for name in ("histogram", "roc"):
        first, second = (view.figures[name]["data"] for view in views)
        pairs = zip(first, second, strict=True)
        assert not all(np.array_equal(array(a["y"]), array(b["y"])) for a, b in pairs)
    named = [trace["name"] for trace in views[0].figures["roc"]["data"] if trace.get("showlegend")]
    assert {name.split("  ")[0] for name in named} == {"after 1 of 3 steps", "ordinary network"}


def test_every_control_changes_what_is_shown(sweep, noisy):
    start = {"target": "all", "attack": "loss", "show": ("auc", None), "along": "p"}
    for explorer, moves in (
        (sweep, {"p": 0.1, "queries": 1, "target": 2, "attack": "rmia", "along": "queries"}),
        (noisy, {"outputs": 1, "target": 2, "attack": "rmia", "along": "sigma"}),
    ):
        for control, value in (moves | {"show": ("test_acc", None)}).items():
            along = "outputs" if explorer is noisy else "p"
            explorer.set(**start | {"along": along})
            before = explorer.view
            after = explorer.set(**{control: value})
            assert (after.sentence, after.figures) != (before.sentence, before.figures), control


def test_any_metric_stands_against_any_setting(sweep):
    axis_titles = set()
    for show, along in itertools.product(
        (("auc", None), ("tpr", 0.1), ("test_acc", None)), ("p", "queries")
    ):
        layout = sweep.set(show=show, along=along).figures["curve"]["layout"]
        axis_titles.add((layout["xaxis"]["title"]["text"], layout["yaxis"]["title"]["text"]))
    assert len(axis_titles) == 6
    names = {trace["name"] for trace in sweep.view.figures["curve"]["data"] if "name" in trace}
    assert names == {"p = 0.02", "p = 0.1", "queried plainly"}


def test_a_click_on_a_point_sets_every_setting_of_it(sweep):
    def clicked(*numbers):
        sweep.on_mouse("curve", {"kind": "click", "numbers": numbers})
        return sweep.values["p"], sweep.values["queries"]

    sweep.set(p=0.02, queries=6, along="queries")
    data = sweep.view.figures["curve"]["data"]
    points = [number for trace in data for number in array(trace.get("customdata", []))]
    assert sorted(points) == list(range(7))
    assert clicked(2) == (0.02, 4)
    assert clicked(5) == (0.1, 2)
    assert clicked(2) == (0.02, 4)
    assert clicked() == (0.02, 4) and not sweep.error  # the level of the reference
    assert sweep.set(p=0.1).sentence.startswith("p = 0.1, 4 queries: ")


ENERGIES = {1: 7e3, 2: 12e3, 0: 132e3}  # of networks with so many time steps, nJ


def costly(timesteps, spread=100.0, **info):
    """Outputs of networks that take about as much energy, each pair of models a little more."""
    energies = ENERGIES[timesteps] + spread * (np.arange(8) // 2)
    operations = dict.fromkeys(("multiply_accumulates", "accumulates"), [1e6] * 8)
    info |= {"operations": operations | {"energy_nj": energies.tolist()}}
    about = {"timesteps": timesteps, "base": "toy"} if timesteps else {"family": "toy"}
    signals = answers([0.8 - timesteps / 5], steady, query_kind="plain", **about, **info)
    return source("spiking" if timesteps else "network", signals)


def test_every_metric_stands_against_energy_where_the_reference_has_its_place_too():
    explorer = latency([costly(1), costly(2), costly(0)])
    assert dict(explorer.controls["along"].options) == {
        "steps t": "t",
        "energy for an image, µJ": "energy",
    }
    explorer.set(attack="loss", t=2, along="energy")
    points = {}
    for trace in explorer.view.figures["curve"]["data"]:
        if trace.get("mode", "").startswith("lines+markers"):
            points[trace["name"]] = (array(trace["x"]), trace.get("customdata"))
    energies, numbers = points["direct"]
    np.testing.assert_allclose(energies, [7.15, 12.2], rtol=0.02)  # lines stand a little apart
    assert list(array(numbers)) == [0, 1]
    assert points["ordinary network"][1] is None  # a click on it chooses nothing
    np.testing.assert_allclose(points["ordinary network"][0], 132, rtol=0.02)
    row = rows_of(explorer, "energy_uj").loc["with T = 1"]
    # Student's t, three degrees of freedom: pairs take 7.0, 7.1, 7.2 and 7.3
    half = 3.182 * np.std([7.0, 7.1, 7.2, 7.3], ddof=1) / 2
    assert row["value"] == pytest.approx(7.15)
    assert (row["high"] - row["low"]) / 2 == pytest.approx(half, rel=1e-3)
    assert (
        explorer.view.table["energy for an image, µJ"].str.startswith(("7.15", "12.2", "132")).all()
    )
    explorer.on_mouse("curve", {"kind": "click", "numbers": [0]})
    assert explorer.values["t"] == 1


def test_energy_is_offered_only_where_that_of_every_network_is_known():
    unknown = costly(0)
    del unknown.info["operations"]
    explorer = latency([costly(1), costly(2), unknown])
    assert dict(explorer.controls["along"].options) == {"steps t": "t"}


@pytest.mark.parametrize(
    ("p", "queries", "other", "left"),
    [(0.02, 6, 0.1, 4), (0.02, 2, 0.1, 2), (0.1, 1, 0.02, 1)],
)
def test_at_another_rate_the_queries_stay_or_are_as_many_as_there_are(
    sweep, p, queries, other, left
):
    sweep.set(p=p, queries=queries)
    sweep.set(p=other)
    assert (sweep.values["p"], sweep.values["queries"]) == (other, left)


def test_the_chosen_histogram_stands_beside_the_reference(sweep):
    figure = sweep.set(attack="loss", p=0.1, queries=1).figures["histogram"]
    names = ["non-members", "members, p = 0.1, 1 query", "members, queried plainly"]
    assert [trace["name"] for trace in figure["data"]] == names
    shares = [array(trace["y"])[:-1] for trace in figure["data"]]
    assert all(share.sum() == pytest.approx(1) for share in shares)
    assert not np.array_equal(shares[1], shares[2])


def test_no_point_is_called_the_best(sweep):
    view = sweep.set(p=0.02, queries=6)
    titles = [figure["layout"]["title"]["text"] for figure in view.figures.values()]
    assert not any("best" in text or "beat" in text for text in (view.sentence, *titles))
    assert "flatters the attacker" in view.note and "metrics.choose" in view.note


def test_a_target_of_its_own_is_one_target_with_a_wider_interval(late):
    views = [late.set(target=target, attack="loss", t=2) for target in ("all", 3)]
    assert [view.note.split(" with")[0] for view in views] == ["8 targets", "1 target"]
    widths = []
    for view in views:
        row = view.long[(view.long["metric"] == "auc") & (view.long["t"] == 2)].iloc[0]
        widths.append(row["high"] - row["low"])
    assert widths[1] > 1.5 * widths[0]


@pytest.mark.parametrize("attack", ["loss", "rmia"])
def test_one_target_has_the_scores_it_has_among_all(noisy, attack):
    scores = attacks.score(attack, gaussian_noise()[0].select(queries=slice(0, 4)))
    noisy.set(attack=attack, target=6, outputs=4)
    row = rows_of(noisy, "auc").dropna(subset="outputs").set_index("outputs").loc[4]
    assert row["value"] == pytest.approx(metrics.auc(scores.value[6], scores.member[6]))


def test_attacks_that_do_not_average_are_not_offered_for_some_of_the_queries(noisy):
    assert "lira_joint" not in dict(noisy.controls["attack"].options).values()
    assert "lira_joint" in noisy_sources(gaussian_noise()[0])[0].attacks()


def test_a_value_that_a_control_does_not_have_is_refused_in_one_line(late):
    for wrong in ({"t": 9}, {"pool": "none"}, {"attack": "psychic"}, {"show": "psychic"}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}=.*: wanted one of ") as refused:
            late.set(**wrong)
        assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_scores_of_many_attacks_and_outputs_are_not_all_kept():
    explorer = noise(noisy_sources(gaussian_noise(samples=60)[0]))
    gc.collect()
    before = sum(type(thing) is Scores for thing in gc.get_objects())
    names = ("loss", "attack_p")
    for attack, count in itertools.product(names, (1, 2, 4, 8, 16)):
        explorer.set(attack=attack, target="all", outputs=count)
    gc.collect()
    after = sum(type(thing) is Scores for thing in gc.get_objects())
    assert after <= before + SCORES_KEPT + len(names)


# --- what is not there ----------------------------------------------------------------------------


def test_nothing_to_show_is_said_in_place_with_the_command_that_makes_it(plain):
    for explorer, words in (
        (latency([plain]), "at several time steps"),
        (dropout([plain]), "with input dropout"),
        (noise([plain]), "with noise"),
        (compare([]), "nothing is stored"),
    ):
        assert words in explorer.error and "mia-nb run" in explorer.error and explorer.view is None


def test_without_an_ordinary_network_its_absence_is_remarked(steps):
    view = latency([steps]).view
    assert "no ordinary network with the same members" in view.note
    assert view.sentence.count("(95 %: ") == 1 and "difference" not in view.sentence


def test_without_stored_noise_off_the_note_says_how_to_query():
    explorer = noise(noisy_sources(gaussian_noise(samples=60)[0]))
    assert "noise off" not in explorer.view.sentence
    assert "query(pool, images, noise=False)" in explorer.view.note


def test_outputs_with_dropout_of_an_unknown_rate_are_left_out(rates):
    unknown = source("unknown rate", replace(rates[1].signals, info={"family": "toy"}))
    assert dropout([rates[0], unknown]).view is None
    assert dropout([*rates, unknown]).controls["p"].options == (("0.02", 0.02), ("0.1", 0.1))


def test_noisy_outputs_from_memory_need_no_word_on_how_they_were_queried():
    signals, _ = gaussian_noise(samples=60)
    explorer = noise([Source("mine", signals)])
    words = explorer.set(attack="loss", target=0).sentence
    assert words.startswith(f"noise as built, {QUERIES} outputs: ")
    found = rows_of(explorer, "auc").set_index("outputs")["value"]
    scores = attacks.score("loss", signals)
    assert found[QUERIES] == pytest.approx(metrics.auc(scores.value[0], scores.member[0]))
    curve = explorer.set(along="sigma").figures["curve"]
    assert curve["data"] and "95 %; 1 target, n0 = " in str(curve["layout"])


@pytest.mark.parametrize("make", [noise, compare])
def test_a_first_pool_whose_members_are_hidden_is_told_in_place_and_the_others_are_reached(make):
    signals, quiet = gaussian_noise(samples=60)
    hidden = noisy_sources(replace(signals, member=None), pool="hide", length=0.5)
    explorer = make([*hidden, *noisy_sources(signals, quiet)])
    assert explorer.view is None and "membership" in explorer.error
    assert "report" not in explorer.error
    names = explorer.controls["pool"].options
    if make is compare:
        explorer.controls["beside"].value = names[2:]
    view = explorer.set(pool=names[1])
    assert "noise off" in view.sentence and "paired" in view.sentence


# --- results side by side -------------------------------------------------------------------------


def leaky(leak, seed=0):
    return world(8, 400, leak=leak, spread=0.2, seed=seed)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    low = leaky(0.3)
    worse = replace(low, correct=low.correct & (low.margin > 1))
    return [
        result(root, "weak", leaky(0.3)),
        result(root, "strong", leaky(1.5), epochs=9, model_args={"width": 8, "k": 0.5}),
        result(root, "weak again", leaky(0.3)),
        result(root, "other members", world(8, 400, leak=1.5, seed=1)),
        result(root, "other images", leaky(1.5), digest="e" * 64),
        result(root, "less accurate", worse),
    ]


@pytest.fixture
def runs(results):
    return compare(results)


def test_identical_results_differ_by_exactly_zero_and_in_no_setting(runs):
    view = runs.set(pool="weak", beside=("weak again",))
    assert "the difference: AUC +0.000 [+0.000, +0.000], paired" in view.sentence
    assert "epochs" not in set(view.table[""])


@pytest.mark.parametrize("other", ["other members", "other images"])
def test_other_members_or_images_are_not_paired(runs, other):
    view = runs.set(pool="strong", beside=(other,))
    assert f"the difference: {UNPAIRED}" in view.sentence
    assert not view.long["metric"].str.contains("minus").any()


def test_settings_listed_are_exactly_those_that_differ_on_the_screen_and_in_the_file(runs):
    view = runs.set(pool="weak", beside=("strong",))
    in_file = view.long[view.long["metric"] == "auc"].set_index("family").T
    for table in (view.table.set_index(""), in_file):
        assert table.loc[["epochs", "model_args.k"]].to_dict("index") == {
            "epochs": {"weak": "5", "strong": "9"},
            "model_args.k": {"weak": "-", "strong": "0.5"},
        }
        assert "lr" not in table.index and "model" not in table.index


def test_several_results_stand_beside_the_first_each_with_its_difference(runs):
    names = ("strong", "weak again", "other members")
    view = runs.set(pool="weak", beside=names)
    assert list(view.table.columns) == ["", "weak", *names]
    assert view.sentence.count(" minus weak: ") == 3 and view.sentence.count("(95 %: ") == 4
    drawn = {trace.get("name", "").split("  AUC")[0] for trace in view.figures["roc"]["data"]}
    assert {"weak", *names} <= drawn


def test_a_fourth_tick_beside_the_first_unticks_the_one_ticked_first(runs):
    for box in runs.controls["beside"].box.children:
        box.value = True
    assert len(runs.values["beside"]) == 3 and len(runs.view.table.columns) == 5


def test_the_first_result_is_not_offered_beside_itself(runs):
    runs.set(pool="weak", beside=("strong",))
    runs.set(pool="strong")
    assert "strong" not in runs.controls["beside"].options and runs.values["beside"] == ("weak",)
    assert runs.set(beside=()).sentence.startswith("strong: ")


def test_unequal_accuracy_is_warned_of_from_one_point_on(results, runs):
    right = {one.label: one.scores("loss").accuracy[:, 1].mean() for one in results}
    warned = {}
    for first, second in itertools.combinations(right, 2):
        view = runs.set(pool=first, beside=(second,))
        warned[first, second] = "test accuracies lie" in view.note
    assert warned == {pair: abs(right[pair[0]] - right[pair[1]]) > 0.01 for pair in warned}
    assert len(set(warned.values())) == 2


def test_only_attacks_that_every_result_supports_are_offered(tmp_path):
    many = result(tmp_path, "many", leaky(1.0))
    few = result(tmp_path, "few", world(2, 400, leak=1.0))
    explorer = compare([many, few])
    offered = dict(explorer.controls["attack"].options).values()
    assert set(offered) == set(many.attacks()) & set(few.attacks()) and "rmia" not in offered
    explorer.set(beside=())
    assert ("RMIA", "rmia") in explorer.controls["attack"].options


def test_signals_from_memory_have_no_recipe_and_are_paired_by_their_members():
    signals = leaky(1.0)
    explorer = compare([Source("one", signals), Source("two", signals)])
    assert "AUC +0.000 [+0.000, +0.000], paired" in explorer.view.sentence


def test_nested_settings_are_compared_leaf_by_leaf():
    same = {"lr": 0.1, "seed": 0}
    records = {
        "A": same | {"model_args.k": 0.5, "flow.k": 0.5, "flow.T": 1.0, "parent": None},
        "B": same | {"model_args.k": 0.25, "flow.k": 0.25, "flow.T": 1.0, "parent": "ab" * 32},
        "C": same | {"model_args.k": 0.25, "flow.k": 0.25, "flow.T": 2.0, "split": None},
    }
    table = differences(records)
    assert {name: tuple(row) for name, row in table.iterrows()} == {
        "model_args.k": ("0.5", "0.25", "0.25"),
        "flow.k": ("0.5", "0.25", "0.25"),
        "flow.T": ("1", "1", "2"),
        "parent": ("-", "abababab", "-"),
    }


def test_a_word_that_recipe_and_query_use_for_two_things_is_kept_apart(tmp_path):
    plain = result(tmp_path, "plain", leaky(1.0), info={"augment": False, "seed": 0})
    crops = result(tmp_path, "crops", leaky(1.0), info={"augment": True, "seed": 0})
    found = settings_of(crops)
    assert found["augment"] == "none" and found["query.augment"] is True
    assert "query.seed" not in found
    changed = differences({"A": settings_of(plain), "B": found})
    assert {name: tuple(row) for name, row in changed.iterrows()} == {
        "query.augment": ("False", "True")
    }
