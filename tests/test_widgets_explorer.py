"""The frame of every explorer, what it reads, and the first of them: scores and ROC."""

from __future__ import annotations

import gzip
import html
import io
import json
import re
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import ipywidgets as W
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from attack_worlds import gaussian
from scipy.special import ndtri
from scipy.stats import beta
from worlds import bernoulli, world

from mia_nb import attacks, data, metrics, query, store, training, widgets
from mia_nb.metrics.curve import tie_mass
from mia_nb.types import Recipe
from mia_nb.widgets import figure as live
from mia_nb.widgets import pictures, words
from mia_nb.widgets.controls import Ticks
from mia_nb.widgets.explorer import Explorer, View, message
from mia_nb.widgets.figure import plain
from mia_nb.widgets.scores import Rates, rank_of


@pytest.fixture(autouse=True)
def _live(monkeypatch):
    monkeypatch.setenv("MIA_NB_MODE", "live")


def slider(name: str, low: float, high: float, value: float, step: float) -> W.FloatSlider:
    return W.FloatSlider(description=name, min=low, max=high, value=value, step=step)


def line(x: float) -> go.Figure:
    return go.Figure(go.Scatter(x=[0, 1], y=[0, x]), layout={"title": {"text": f"slope {x:g}"}})


def small(**options) -> Explorer:
    def draw(x, **_):
        if x > 8:
            raise ValueError(f"x={x:g} is above 8: move it down")
        if x < -8:
            raise KeyError("inside")
        return View(f"x is {x:g}", {"line": line(x)}, pd.DataFrame({"x": [x]}), "a note")

    return Explorer("Small", {"x": slider("x", -10, 10, 1, 0.1)}, draw, rows=[["line"]], **options)


def test_terms_are_explained_on_hover_in_sentence_and_numbers_and_nowhere_else():
    def draw(x):
        table = pd.DataFrame({"PPV": ["0.5"], "model_args.base": ["odd"]})
        return View("RMIA finds members, more members than <b>", {"line": line(x)}, table, "n0 = 3")

    explorer = Explorer("AUC", {"x": slider("x", -10, 10, 1, 0.1)}, draw, rows=[["line"]])
    assert isinstance(explorer.widget, W.VBox)
    said, numbers = (
        explorer.page.sentence.value,
        explorer.page.numbers.value + explorer.page.note.value,
    )
    assert re.findall(r"<abbr [^>]*>(.*?)</abbr>", said) == ["RMIA", "members"]
    assert "than &lt;b&gt;" in said and "other images?" in said
    assert re.findall(r"<abbr [^>]*>(.*?)</abbr>", numbers) == ["PPV", "n0"]


def test_a_moved_control_redraws_sentence_picture_and_table():
    explorer = small()
    widget = explorer.widget
    before = explorer.page.figures["line"].count
    explorer.controls["x"].value = 3
    assert explorer.view.sentence == "x is 3" and "x is 3" in explorer.page.sentence.value
    assert explorer.page.figures["line"].count == before + 1
    assert json.loads(explorer.page.figures["line"].figure)["layout"]["title"]["text"] == "slope 3"
    assert "<div>3.0</div>" in explorer.page.numbers.value and "a note" in explorer.page.note.value
    assert isinstance(widget, W.VBox)


def test_a_view_without_a_table_leaves_nothing_for_the_keyboard_to_stop_at():
    def draw(x):
        return View(f"x is {x:g}", {"line": line(x)})

    explorer = Explorer("Small", {"x": slider("x", -10, 10, 1, 0.1)}, draw, rows=[["line"]])
    assert "tabindex" not in explorer.page.numbers.value


def test_a_refused_value_is_said_in_place_and_the_picture_stays():
    explorer = small()
    _ = explorer.widget
    count = explorer.page.figures["line"].count
    explorer.controls["x"].value = 9
    assert (
        "x=9 is above 8: move it down" in explorer.page.message.value
        and 'role="alert"' in explorer.page.message.value
    )
    assert explorer.page.figures["line"].count == count and explorer.view.sentence == "x is 1"
    explorer.controls["x"].value = 2
    assert explorer.page.message.value == "" and explorer.view.sentence == "x is 2"
    with pytest.raises(ValueError, match="above 8"):
        explorer.set(x=9)


def test_an_unforeseen_error_is_one_line_in_place_and_no_trace():
    explorer = small()
    _ = explorer.widget
    explorer.controls["x"].value = -9
    assert "KeyError: &#x27;inside&#x27;; please report this" in explorer.page.message.value
    assert "Traceback" not in explorer.page.message.value


def test_an_unknown_control_and_a_value_outside_its_options_are_refused():
    with pytest.raises(ValueError, match="Small has no y; it has x"):
        small().set(y=1)
    explorer = widgets.scores([widgets.stored.Source("a", gaussian())])
    with pytest.raises(ValueError, match="attack='lirra'"):
        explorer.set(attack="lirra")


def test_clicks_and_selections_arrive_as_control_or_state():
    def draw(x, chosen):
        return View(f"{x:g} {chosen}", {"line": line(x)})

    options = {"state": {"chosen": ()}, "clicks": {"line": "x"}, "lassos": {"line": "chosen"}}
    explorer = Explorer(
        "Pointed", {"x": slider("x", 0, 10, 1, 1)}, draw, rows=[["line"]], **options
    )
    _ = explorer.widget
    picture = explorer.page.figures["line"]
    picture.event = {"kind": "click", "numbers": [7], "count": 1}
    picture.event = {"kind": "select", "numbers": [3, 4], "count": 2}
    assert explorer.view.sentence == "7 (3, 4)"
    picture.event = {"kind": "click", "numbers": [], "count": 3}  # a click beside every point
    assert explorer.view.sentence == "7 (3, 4)"


def test_in_batch_mode_an_explorer_is_a_static_figure_with_its_words_and_numbers(monkeypatch):
    shown = []
    monkeypatch.setenv("MIA_NB_MODE", "batch")
    monkeypatch.setattr("mia_nb.widgets.explorer.display", shown.append)
    small()._ipython_display_()
    assert [type(one).__name__ for one in shown] == ["HTML", "Figure", "HTML"]
    assert (
        shown[0].data == "<p><b>Small</b>: x is 1</p>"
        and "<td>1" in shown[2].data
        and "a note" in shown[2].data
    )
    message("Empty", "nothing <stored>; run this")._ipython_display_()
    assert (
        len(shown) == 4 and shown[3].data == "<p><b>Empty</b>: nothing &lt;stored&gt;; run this</p>"
    )


def test_what_a_hand_can_do_is_said_on_a_live_page_alone(monkeypatch):
    explorer = widgets.scores([source()])
    _ = explorer.widget
    live = json.loads(explorer.page.figures["histogram"].figure)["layout"]["title"]["text"]
    assert live.endswith("of cases; drag the line")
    shown = []
    monkeypatch.setenv("MIA_NB_MODE", "batch")
    monkeypatch.setattr("mia_nb.widgets.explorer.display", shown.append)
    explorer._ipython_display_()
    assert shown[1].layout.title.text.endswith("of cases")


def test_what_is_exported_holds_what_is_shown():
    explorer = small()
    table = pd.read_csv(io.StringIO(explorer.csv()), comment="#")
    assert table["x"].tolist() == [1.0] and explorer.csv().startswith("# Small: x is 1\n")


def test_many_figures_share_one_plotly_so_that_a_saved_notebook_stays_small():
    figures = [live.Figure(plain(line(x))) for x in range(6)]
    states = [figure.get_state() for figure in figures]
    assert len({state["library"] for state in states}) == 1
    source = figures[0].library.source
    # base64 in the notebook
    assert b"Plotly" in gzip.decompress(source) and len(source) * 4 / 3 < 2.5e6
    assert all(len(json.dumps(state)) < 13_000 for state in states)


def test_a_plain_figure_draws_as_its_original():
    figure = go.Figure(go.Scatter(x=np.arange(5.0), y=np.arange(5) ** 2))
    assert go.Figure(plain(figure)).to_json() == go.Figure(json.loads(figure.to_json())).to_json()


def test_ticks_keep_the_newest_when_more_than_their_limit_are_ticked():
    ticks = Ticks("compare", ["a", "b", "c"], ["a"], limit=2)
    for box in ticks.box.children[1:]:
        box.value = True
    assert ticks.value == ("b", "c") and [box.value for box in ticks.box.children] == [
        False,
        True,
        True,
    ]
    assert Ticks("compare", ["loss", "rmia"], ["loss", "rmia"]).label == "loss threshold, RMIA"
    ticks.options = ("b", "d")
    assert ticks.value == ("b",) and [box.description for box in ticks.box.children] == ["b", "d"]


def test_a_drag_is_followed_at_its_first_step_and_caught_up_at_its_end():
    import asyncio

    async def drag():
        explorer = small()
        _ = explorer.widget
        explorer._drawn_at = 0.0
        for x in np.linspace(1.1, 5, 40):
            explorer.controls["x"].value = round(float(x), 1)
        first = explorer.view.sentence
        await asyncio.sleep(0.2)
        return first, explorer.view.sentence, explorer.page.figures["line"].count

    first, last, count = asyncio.run(drag())
    assert (first, last) == ("x is 1.1", "x is 5") and count <= 4


def test_a_failed_setting_leaves_everything_as_it_was():
    explorer = widgets.scores(
        [
            widgets.stored.Source("a", gaussian()),
            widgets.stored.Source("b", world(6, 300, leak=1.0)),
        ]
    )
    before, view = explorer.values, explorer.view
    with pytest.raises(ValueError, match="attack='nope'"):
        explorer.set(pool="b", attack="nope")
    with pytest.raises(ValueError, match="is not offered"):
        explorer.set(compare=("zzz",))
    assert explorer.values == before and explorer.view == view and explorer.error == ""


def test_pictures_appear_when_a_first_choice_that_failed_is_mended():
    explorer = widgets.scores(
        [
            widgets.stored.Source("hidden", replace(gaussian(), member=None)),
            widgets.stored.Source("b", world(6, 300)),
        ]
    )
    _ = explorer.widget
    assert "membership" in explorer.page.message.value and explorer.view is None
    with pytest.raises(ValueError, match="shows nothing yet"):
        explorer.csv()
    explorer.set(pool="b")
    assert explorer.page.message.value == "" and "finds" in explorer.page.sentence.value
    assert all(json.loads(figure.figure)["data"] for figure in explorer.page.figures.values())


def test_an_alert_stands_until_its_cause_is_gone():
    explorer = small()
    _ = explorer.widget
    explorer.controls["x"].value = 9
    explorer.page._button("CSV", "the table", explorer.csv).click()
    assert "x=9 is above 8" in explorer.page.message.value


def test_what_leaves_the_page_says_what_it_is_of(monkeypatch):
    explorer = widgets.scores([source()])
    explorer.set(target=3, attack="rmia")
    assert "pool: world; target: 3; attack: RMIA" in explorer.csv()
    assert explorer.slug == "scores-and-roc-world"  # of file names
    shown = []
    monkeypatch.setenv("MIA_NB_MODE", "batch")
    monkeypatch.setattr("mia_nb.widgets.explorer.display", shown.append)
    explorer._ipython_display_()
    assert "pool: world; target: 3; attack: RMIA" in shown[-1].data


def test_a_spreadsheet_gets_no_formula_from_a_class_name():
    def draw(x):
        table = pd.DataFrame({"class": ["=1+1", "@x", "+a", "-0.5 [-1, 0]", "cat", "-", "-a"]})
        return View("one\ntwo", {}, table)

    text = Explorer("Names", {"x": slider("x", 0, 1, 0, 1)}, draw, rows=[]).csv()
    assert text.splitlines()[0] == "# Names: one two"
    assert pd.read_csv(io.StringIO(text), comment="#")["class"].tolist() == [
        "'=1+1",
        "'@x",
        "'+a",
        "-0.5 [-1, 0]",
        "cat",
        "-",
        "'-a",
    ]


def test_the_zoom_is_kept_while_a_slider_moves_and_given_up_for_another_pool():
    explorer = widgets.scores([source(), widgets.stored.Source("few", world(2, 300, leak=1.0))])
    revision = explorer.page.styled("roc")["layout"]["uirevision"]
    explorer.set(threshold=positions(explorer)[20])
    assert explorer.page.styled("roc")["layout"]["uirevision"] == revision
    explorer.set(pool="few")
    assert explorer.page.styled("roc")["layout"]["uirevision"] != revision


def test_samples_without_a_score_count_nowhere():
    one = widgets.stored.Source("coins", world(6, 400, leak=1.0, design=bernoulli))
    explorer = widgets.scores([one])
    view = explorer.set(attack="rmia")
    scores = attacks.score("rmia", one.signals)
    known = ~np.isnan(scores.value)
    assert not known.all()
    outside, inside = (~scores.member & known).sum(1), (scores.member & known).sum(1)
    assert f"n0 = {outside.min():,}" in view.sentence
    assert view.table["members accused"][0].endswith(f" of {inside.sum():,}")
    accused = scores.value >= explorer.values["threshold"]
    assert (
        view.table["false positives"][0]
        == f"{(accused & ~scores.member).sum():,} of {outside.sum():,}"
    )


def test_the_interval_of_one_target_is_clopper_pearsons_and_ties_are_a_mean_over_targets():
    explorer = widgets.scores([source()])
    view = explorer.set(attack="vote", target=2)
    scores = attacks.score("vote", source().signals, targets=2)
    accused = scores.value[0] >= explorer.values["threshold"]
    tp, n1 = int((accused & scores.member[0]).sum()), int(scores.member[0].sum())
    low, high = beta.ppf(0.025, tp, n1 - tp + 1), beta.ppf(0.975, tp + 1, n1 - tp)
    assert view.table["TPR"][0] == f"{tp / n1:.4f} [{low:.4f}, {high:.4f}]"
    every = explorer.set(target="all")
    ties = [tie_mass(row) for row in attacks.score("vote", source().signals).value]
    assert (
        every.table["ties"][0] == f"{np.mean(ties):.3f}"
        and "one threshold for all targets" in every.note
    )


def test_ten_false_alarms_are_resolved_and_nine_are_not():
    explorer = widgets.scores([source()])
    explorer.set(target=0, attack="loss")
    for threshold in positions(explorer):
        view = explorer.set(threshold=threshold)
        alarms = int(view.table["false positives"][0].split(" of ")[0].replace(",", ""))
        assert ("below resolution" in view.sentence) == (alarms < 10)


def test_a_damaged_source_is_a_message_and_the_others_live(stored, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(stored[0], root)
    broken = next(root.glob("signals-*/margin.npy"))
    data_ = bytearray(broken.read_bytes())
    data_[200] ^= 1
    broken.write_bytes(data_)
    found = sorted(
        widgets.sources(root, shipped=False), key=lambda one: one.folder.path != broken.parent
    )
    explorer = widgets.scores(found)
    assert "missing, truncated or altered" in explorer.error
    whole = list(widgets.stored.named(found))[1]  # equal labels are numbered
    assert explorer.set(pool=whole).figures
    tabs = widgets.explore(found)
    for title in tabs.makers:
        assert tabs[title].name == title  # a message or an explorer, never an exception
    images = next(root.glob("pool-*/images.npy"))
    images.write_bytes(images.read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"images.npy is missing, truncated or altered"):
        _ = found[1].images


def test_samples_are_called_by_their_number_in_the_pool(stored):
    limited = widgets.sources(stored[0], shipped=False)[2]
    number = int(limited.numbers[5])
    assert limited.audited_index(number) == 5 and number == limited.samples[limited.audited[5]]
    absent = next(n for n in range(240) if n not in limited.numbers)
    with pytest.raises(
        ValueError, match=rf"sample {absent} is not among the .* audited ones; near it are \d+"
    ):
        limited.audited_index(absent)


def test_images_of_others_are_no_source_and_equal_labels_are_told_apart(stored, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(stored[0], root)
    pool = training.load_pool(stored[2].key[:12], root)
    query(pool, data.load("digits", limit=100, seed=3), progress=False)
    assert len(widgets.sources(root, shipped=False)) == 3
    twice = [widgets.stored.Source("x", gaussian()), widgets.stored.Source("x", gaussian(seed=2))]
    assert list(widgets.scores(twice).controls["pool"].options) == ["x (1)", "x (2)"]


def source(**options) -> widgets.stored.Source:
    return widgets.stored.Source(
        "world", world(8, 2000, leak=1.0, **options), images=np.zeros((2000, 1, 8, 8), np.uint8)
    )


def test_rates_at_a_threshold_are_counted_as_a_slow_loop_counts_them():
    scores = attacks.score("loss", world(6, 300, leak=1.0))
    rates, threshold = Rates(scores), float(np.median(scores.value))
    _, tpr, _, low, high, tp, fp = rates.at(threshold)
    accused = scores.value >= threshold
    assert tp == (accused & scores.member).sum() and fp == (accused & ~scores.member).sum()
    assert tpr == pytest.approx(
        np.mean([a[m].mean() for a, m in zip(accused, scores.member, strict=True)])
    )
    assert low < tpr < high
    assert rates.at(np.inf)[1:3] == (0, 0) and rates.at(-np.inf)[1:3] == (1, 1)
    assert min(abs(rates.at(t).fpr - 0.1) for t in rates.grid()) < 2 / (6 * 150)


def test_the_threshold_is_one_thing_in_the_histogram_on_the_curve_and_in_the_numbers():
    explorer = widgets.scores([source()])
    first = explorer.set(attack="rmia", target=3)
    scores = attacks.score("rmia", source().signals, targets=3)
    for threshold in (explorer.values["threshold"], positions(explorer)[30]):
        view = (
            explorer.set(threshold=threshold)
            if threshold != explorer.values["threshold"]
            else first
        )
        accused, member = scores.value[0] >= threshold, scores.member[0]
        star = next(
            note for note in view.figures["roc"]["layout"]["annotations"] if note["text"] == "★"
        )
        line = view.figures["histogram"]["layout"]["shapes"][0]
        assert line["x0"] == pytest.approx(ndtri(1 - accused[~member].mean())) and line["editable"]
        assert (star["x"], star["y"]) == (accused[~member].mean(), accused[member].mean())
        assert (
            view.table["members accused"][0] == f"{(accused & member).sum():,} of {member.sum():,}"
        )
        assert f"finds {100 * accused[member].mean():.1f} % of members" in view.sentence


def positions(explorer) -> list[float]:
    return [value for _, value in explorer.controls["threshold"].options]


def test_the_slider_reaches_from_accusing_all_to_accusing_none_and_lingers_where_few_are_accused():
    explorer = widgets.scores([source()])
    rates = Rates(explorer_scores := attacks.score(explorer.values["attack"], source().signals))
    fpr = np.array([rates.at(threshold).fpr for threshold in positions(explorer)])
    assert fpr[0] == 1 and fpr[-1] == 0 and (np.diff(fpr) <= 0).all()
    assert (fpr < 0.1).sum() > 40 and 0 < fpr[fpr > 0].min() <= 2 / (~explorer_scores.member).sum(
        1
    ).min()


def test_ppv_follows_the_prior():
    explorer = widgets.scores([source()])
    half = float(explorer.view.table["PPV at prior 1/2"][0])
    hundredth = float(explorer.set(prior="1/100").table["PPV at prior 1/100"][0])
    tpr, fpr = float(explorer.view.table["TPR"][0].split()[0]), float(explorer.view.table["FPR"][0])
    assert half == pytest.approx(tpr / (tpr + fpr), abs=2e-3)
    assert hundredth == pytest.approx(0.01 * tpr / (0.01 * tpr + 0.99 * fpr), abs=2e-3)


def test_where_nothing_leaks_the_explorer_finds_nothing():
    explorer = widgets.scores([widgets.stored.Source("null", world(16, 2000, leak=0.0, seed=5))])
    for attack in ("rmia", "lira_global", "loss"):
        low, high = (
            explorer.set(attack=attack).table["AUC"][0].split("[")[1].rstrip("]").split(", ")
        )
        assert float(low) <= 0.505 and float(high) >= 0.495
    assert 0.07 < float(explorer.view.table["TPR"][0].split()[0]) < 0.13


def test_a_rate_that_rests_on_fewer_than_ten_false_alarms_is_called_below_resolution():
    explorer = widgets.scores([source()])
    explorer.set(target=0)
    view = explorer.set(threshold=positions(explorer)[-2])
    assert "below resolution" in view.sentence


def test_another_pool_offers_its_own_targets_and_attacks():
    few = widgets.stored.Source("few", world(2, 300, leak=1.0))
    explorer = widgets.scores([source(), few])
    assert ("RMIA", "rmia") in explorer.controls["attack"].options
    explorer.set(target=7)
    view = explorer.set(pool="few")
    assert explorer.values["target"] == "all" and explorer.controls["target"].options == (
        "all",
        0,
        1,
    )
    assert ("RMIA", "rmia") not in explorer.controls["attack"].options and view.table["k"][0] == 0


def test_nothing_stored_is_a_message_that_says_what_to_run(tmp_path):
    explorer = widgets.scores(widgets.sources(tmp_path, shipped=False))
    assert "mia-nb run all --preset demo" in explorer.error
    _ = explorer.widget
    assert "nothing is stored" in explorer.page.message.value


def test_an_update_at_fifty_thousand_samples_and_sixteen_models_takes_milliseconds_of_the_kernel():
    explorer = widgets.scores(
        [widgets.stored.Source("big", world(16, 50_000, leak=0.5))], attacks=["loss"]
    )
    _ = explorer.widget
    took = []
    for threshold in positions(explorer)[::20]:
        explorer._drawn_at, start = 0.0, time.process_time()
        explorer.controls["threshold"].value = threshold
        took.append(time.process_time() - start)
    # 0.015 s on a quiet machine
    assert explorer.values["threshold"] == threshold and np.median(took) < 0.5


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Signals of a small real pool, asked in three ways."""
    root = tmp_path_factory.mktemp("results")
    images = data.load("digits", limit=240)
    pool = training.train_pool(
        Recipe(num_models=4, epochs=2, population=40), images, root=root, progress=False
    )
    plain = query(pool, images, progress=False)
    query(pool, images, input_dropout=0.1, queries=2, progress=False)
    query(pool, images, limit=60, progress=False)
    return root, images, pool, plain


def test_stored_signals_come_with_their_images_classes_traces_and_recipe(stored):
    root, images, pool, plain = stored
    first, dropped, limited = widgets.sources(root, shipped=False)
    assert np.array_equal(first.signals.margin, plain.margin) and first.classes == images.classes
    assert first.label == f"digits, TinyCNN ({pool.key[:4]})"
    assert dropped.label.endswith("dropout 0.1, 2 queries") and dropped.signals.margin.shape == (
        4,
        2,
        240,
    )
    assert all(np.array_equal(first.images[n], images.x[n].numpy()) for n in (0, 100, 239))
    assert first.recipe["epochs"] == 2 and len(first.audited) == 200
    assert np.array_equal(first.trace(1), pool.trace(1).astype(np.float32), equal_nan=True)
    assert len(limited.signals.labels) < 240
    assert all(
        int(images.y[n]) == label
        for n, label in zip(limited.samples, limited.signals.labels, strict=True)
    )
    assert np.array_equal(limited.images[3], images.x[limited.samples[3]].numpy())


def test_an_attack_entered_anew_under_its_name_is_scored_again(monkeypatch):
    one = widgets.stored.Source("mine", world(8, 400, leak=1.0))
    shown = {}
    for sign in (1, -1):
        monkeypatch.setitem(
            attacks.ATTACKS,
            "mine",
            lambda target, references, sign=sign: sign * target.margin[0, 0],
        )
        view = widgets.scores([one], attacks=["rmia", "mine"]).set(attack="mine")
        shown[sign] = view.long.set_index("attack").loc["mine", "auc"], view.figures["roc"]
        assert np.array_equal(one.scores("mine").value, attacks.score("mine", one.signals).value)
        assert one.scores("mine") is one.scores("mine")  # computed once
    assert shown[1][0] == pytest.approx(1 - shown[-1][0]) and shown[1][0] > 0.6
    assert shown[1][1] != shown[-1][1]


def test_an_attack_may_be_an_object_of_a_class_of_your_own(monkeypatch):
    @dataclass
    class Margin:
        sign: int

        def __call__(self, target, references):
            return self.sign * target.margin[0, 0]

    one = widgets.stored.Source("mine", world(4, 100, leak=1.0))
    monkeypatch.setitem(attacks.ATTACKS, "mine", Margin(1))
    shown = one.scores("mine")
    assert np.array_equal(shown.value, attacks.score("mine", one.signals).value)
    assert one.scores("mine") is shown


def test_the_label_says_of_which_models_and_images_a_query_was(stored):
    first, dropped, limited = widgets.sources(stored[0], shipped=False)
    assert limited.label == f"{first.label}, limit 60"
    for models, says in (([1, 3], ", 2 of 4 models"), (range(4), "")):
        info = first.info | {"models": list(models)}
        assert words.label(info, first.recipe) == first.label + says
    both = dropped.info | {"models": [0], "limit": 1500}
    assert words.label(both, first.recipe) == dropped.label + ", 1 of 4 models, limit 1,500"


def test_sources_pass_over_what_is_damaged(stored, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(stored[0], root)
    folder = next(root.glob("signals-*"))
    (folder / "info.json").write_text("{}")
    assert len(widgets.sources(root, shipped=False)) == 2
    assert widgets.sources(root, pool="ffff", shipped=False) == []


def test_scores_of_a_source_are_those_of_the_attack(stored):
    first = widgets.sources(stored[0], shipped=False)[0]
    assert np.array_equal(first.scores("rmia").value, attacks.score("rmia", stored[3]).value)
    assert first.scores("rmia") is first.scores("rmia")
    table = widgets.scores([first]).set(attack="rmia", target="all").table
    auc = np.mean(
        [
            metrics.auc(v, m)
            for v, m in zip(first.scores("rmia").value, first.scores("rmia").member, strict=True)
        ]
    )
    assert float(table["AUC"][0].split()[0]) == pytest.approx(auc, abs=1e-3)


@pytest.mark.parametrize(
    "info",
    [
        [],
        3,
        {"draws": 3},
        {"draws": "plain", "pool": 5},
        {"draws": "plain", "fields": ["../x"]},
        {"queries": [2]},
    ],
)
def test_signals_whose_record_is_damaged_are_named_and_hide_no_others(
    stored, tmp_path, info, capsys
):
    root = tmp_path / "copy"
    shutil.copytree(stored[0], root)
    folder = store.Folder(next(root.glob("signals-*")))
    before = folder.read_json("info.json")
    folder.write_json(
        "info.json", before | info if isinstance(info, dict) and "draws" not in info else info
    )
    assert len(widgets.sources(root, shipped=False)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{folder.path.name} is damaged and passed over" in said


def test_the_pool_chosen_in_one_tab_is_chosen_in_all():
    a, b = (widgets.stored.Source(name, world(6, 300, leak=1.0)) for name in "ab")
    tabs = widgets.explore([a, b])
    page = tabs._widget()
    tabs["Scores and ROC"].controls["pool"].value = "b"
    page.selected_index = 1
    assert tabs["One sample, two worlds"].values["pool"] == "b"
    tabs["One sample, two worlds"].controls["pool"].value = "a"
    page.selected_index = 0
    assert tabs["Scores and ROC"].values["pool"] == "a"
    page.selected_index = 3  # no spiking network: a message
    page.selected_index = 2
    assert tabs["Vulnerable samples"].values["pool"] == "a"
    tabs["Vulnerable samples"].controls["pool"].value = "b"
    page.selected_index = len(tabs.makers) - 1
    assert tabs["Run comparison"].values["pool"] == "b"


def test_no_pool_is_taken_that_is_not_offered_and_a_long_list_is_searched_by_typing():
    few = widgets.scores([widgets.stored.Source(name, world(2, 60)) for name in ("mine", "yours")])
    with pytest.raises(ValueError, match=r"^pool='his': wanted one of mine, yours$"):
        few.set(pool="his")
    assert few.set(pool="yours") and few.values["pool"] == "yours"
    names = [f"network {number}" for number in range(30)]
    many = widgets.scores([widgets.stored.Source(name, world(2, 60)) for name in names])
    assert isinstance(many.controls["pool"], W.Combobox) and many.values["pool"] == "network 0"
    with pytest.raises(ValueError, match=r"^pool='his': wanted one of network 0, network 1, "):
        many.set(pool="his")
    assert many.set(pool="network 7") and many.values["pool"] == "network 7"


def test_every_explorer_asks_its_question_on_the_page_and_in_a_report(monkeypatch):
    shown = []
    monkeypatch.setattr("mia_nb.widgets.explorer.display", shown.append)
    for make in (widgets.scores, widgets.sample, widgets.exposed, widgets.compare):
        explorer = make([source()])
        assert explorer.question.endswith("?")
        page = "".join(part.value for part in explorer.widget.children if hasattr(part, "value"))
        assert html.escape(explorer.question) in page
        monkeypatch.setenv("MIA_NB_MODE", "batch")
        shown.clear()
        explorer._ipython_display_()
        assert explorer.question in shown[0].data
        monkeypatch.setenv("MIA_NB_MODE", "live")


def test_the_line_in_the_histogram_is_dragged_to_the_nearest_threshold():
    explorer = widgets.scores([source()])
    _ = explorer.widget
    before = explorer.values["threshold"]
    explorer.page.figures["histogram"].event = {"kind": "drag", "numbers": [], "x": ndtri(0.98)}
    row = explorer.view.table.iloc[0]
    assert explorer.values["threshold"] > before and 0.018 < float(row["FPR"]) < 0.022
    shapes = json.loads(explorer.page.figures["histogram"].figure)["layout"]["shapes"]
    assert shapes[0]["x0"] == pytest.approx(ndtri(1 - float(row["FPR"])), abs=0.01)


def test_a_long_tail_of_scores_hides_no_member_in_the_last_bin():
    one = attacks.score("loss", world(4, 2000, leak=1.0))
    stretched = replace(one, value=np.exp(np.exp(one.value / 4)))
    places = [rank_of(scores)(scores.value)[one.member] for scores in (one, stretched)]
    shares = np.histogram(places[1], 60)[0] / len(places[1])
    assert np.array_equal(*places) and shares.max() < 0.1 and (shares > 0.01).sum() > 20
    assert np.histogram(stretched.value[one.member], 60)[0].max() > 0.9 * len(places[1])
    axis = pictures.ranked(stretched)["layout"]["xaxis"]
    assert axis["ticktext"][axis["tickvals"].index(0)] == "50"


def test_on_a_page_pictures_are_low_and_the_threshold_is_as_wide_as_they_are():
    explorer = widgets.scores([source()])
    figures = {name: explorer.page.styled(name)["layout"] for name in ("histogram", "roc")}
    assert sum(layout["height"] for layout in figures.values()) < 500
    assert "at a prior of 1/2" in explorer.view.sentence and explorer.controls["threshold"] in (
        explorer.widget.children[-1].children[1].children
    )


def test_names_say_in_words_what_was_trained_and_how_it_was_queried():
    info = {"dataset": "digits", "family": "snn tinycnn T=1", "base": "tinycnn", "timesteps": 1}
    info |= {"pool": "d4c7" * 16, "draws": "dropout", "input_dropout": 0.02, "queries": 4}
    words = widgets.stored.label(info, {"model": "snn", "parent": "e092", "epochs": 3})
    name = "digits, TinyCNN as spiking network, T = 1, hybrid (d4c7)"
    assert words == f"{name}, dropout 0.02, 4 queries"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    return widgets.sources(tmp_path_factory.mktemp("empty") / "missing")


def test_signals_that_come_with_the_package_are_there_without_any_results(shipped):
    (first, *_) = shipped
    count, *rest = first.signals.margin.shape
    assert first.label == f"CIFAR-10, ResNet14, 24 epochs, {count} networks (shipped)"
    assert rest == [1, 50_000] and first.recipe["epochs"] == 24
    key = first.info["pool"][:8]
    for pool in (key, "example:cifar10/resnet14"):
        assert [one.label for one in widgets.sources("missing", pool=pool)] == [first.label]
    assert widgets.sources("missing", pool="ffff") == []
    known = [number for number in range(200) if first.images[number].std() > 0]
    assert first.images[5].shape == (3, 32, 32) and len(known) < 20
    assert first.images[np.array([24227, 24228])].shape == (2, 3, 32, 32)


def test_every_explorer_shows_the_shipped_signals_or_says_what_makes_others(shipped):
    tabs = widgets.explore(shipped[:1])
    for title in ("Scores and ROC", "Vulnerable samples", "Run comparison"):
        assert tabs[title].error == "" and tabs[title].view.sentence
    assert "mia-nb run 01_train -p dataset=cifar10" in tabs["Vulnerable samples"].view.note
    for title in ("Latency", "Dropout", "Noise is not privacy"):
        assert "mia-nb run" in tabs[title].error
    with pytest.raises(ValueError, match="shokri needs sorted log-probabilities"):
        attacks.score("shokri", shipped[0].signals.select(samples=slice(0, 400)), targets=0)


FOLDER = "wanted a folder of results, or a list of sources as widgets.sources gives it"


@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_is_explored_as_the_list_of_its_sources_is(stored, kind):
    by_folder, by_list = (
        widgets.explore(kind(stored[0])),
        widgets.explore(widgets.sources(stored[0])),
    )
    pools = [list(tabs["Scores and ROC"].pools) for tabs in (by_folder, by_list)]
    assert pools[0] == pools[1] and by_folder.note == ""


@pytest.mark.parametrize("mode", ["live", "batch"])
@pytest.mark.parametrize(("made", "said"), [(False, "is not there"), (True, "holds no signals")])
def test_of_a_folder_without_signals_one_line_says_so_over_those_of_the_package(
    tmp_path, monkeypatch, mode, made, said
):
    monkeypatch.setenv("MIA_NB_MODE", mode)
    folder = tmp_path / "nowhere"
    if made:
        folder.mkdir()
    tabs = widgets.explore(folder)
    assert said in tabs.note and str(folder) in tabs.note and "\n" not in tabs.note
    assert tabs["Scores and ROC"].view is not None and len(repr(tabs)) < 600
    assert made or not folder.exists()


def test_an_empty_list_of_sources_is_one_line_and_no_tab(capsys):
    tabs = widgets.explore([])
    tabs._ipython_display_()
    assert tabs.makers == {} and "nothing is stored that can be scored yet" in tabs.note
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "junk",
    [None, 7, 0.5, "", b"results", {"a": 1}, ["results"], [None], {"results"}, widgets.Source],
)
def test_what_is_neither_a_folder_nor_sources_is_refused_in_one_line(junk):
    with pytest.raises(ValueError, match=FOLDER) as refused:
        widgets.explore(junk)
    assert "\n" not in str(refused.value)


def test_a_file_is_no_folder_of_results(tmp_path):
    (tmp_path / "scores.csv").touch()
    with pytest.raises(ValueError, match=f"scores.csv' is a file; {FOLDER}"):
        widgets.explore(tmp_path / "scores.csv")
