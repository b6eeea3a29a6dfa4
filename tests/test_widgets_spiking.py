"""Explorers of latency and of input dropout: what they group, what they measure, and that controls
and pictures agree.
"""

from __future__ import annotations

import base64
import shutil
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from worlds import pairs

from mia_nb import attacks, data, metrics, query, store, training
from mia_nb.types import Recipe, Signals
from mia_nb.widgets import compared, sources
from mia_nb.widgets.dropout import dropout, queried
from mia_nb.widgets.latency import latency
from mia_nb.widgets.networks import networks
from mia_nb.widgets.stored import Source

MODELS, SAMPLES = 8, 1400
LEAKS = (0.2, 0.8, 1.4)  # of a network's answer after 1, 2, 3 steps
RATES = (0.02, 0.1)
SPIKING = "synthetic, TinyCNN as spiking network"


def answers(leaks, noise, *, query_kind, seed=0, models=MODELS, **info):
    """Signals whose margins are leak_q member + noise_q: the loss attack on query q has AUC
    Phi(leak_q / (sd sqrt 2)).
    """
    rng = np.random.default_rng(seed)
    labels = np.arange(SAMPLES) % 4
    member = pairs(models, SAMPLES, labels, np.random.default_rng(7))
    margin = np.stack([leak * member for leak in leaks], 1) + noise(
        rng, (models, len(leaks), SAMPLES)
    )
    logits = np.zeros((*margin.shape, 4))
    logits[..., np.arange(SAMPLES), labels] = margin + np.log(3)
    return Signals.from_logits(logits, labels, member, query_kind=query_kind, info=info)


def steady(rng, shape):
    """Of one sample the same at every step."""
    return np.broadcast_to(rng.normal(size=(shape[0], 1, shape[2])), shape)


def spiking(leaks=LEAKS, **options):
    return answers(leaks, steady, query_kind="steps", timesteps=len(leaks), base="toy", **options)


def source(name, signals):
    images = np.arange(SAMPLES * 4, dtype=np.int64).astype(np.uint8).reshape(SAMPLES, 1, 2, 2)
    return Source(name, signals, images=images, classes=("a", "b", "c", "d"))


@pytest.fixture(scope="module")
def plain():
    return source("network", answers([0.5], steady, query_kind="plain", seed=1, family="toy"))


@pytest.fixture(scope="module")
def steps():
    one = source("spiking", spiking())
    spk = np.arange(12 * 3 * 5).reshape(12, 3, 5) % 3 == 0
    one.raster = {
        "spikes": spk.astype(np.uint8),
        "membranes": np.where(spk, 1.25, 0.5).astype(np.float16),
        "thresholds": np.ones(5, np.float32),
        "neurons": np.arange(5),
        "size": np.array([5]),
        "samples": np.arange(12) * 100,
        "site": np.array(["spike0"]),
    }
    return one


@pytest.fixture(scope="module")
def late(steps, plain):
    return latency([steps, plain])


def title(view, figure):
    return view.figures[figure]["layout"]["title"]["text"]


def lines(figure):
    """Vertical lines: their places."""
    return [shape["x0"] for shape in figure["layout"]["shapes"] if shape["type"] == "line"]


def array(value):
    return (
        np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
        if isinstance(value, dict)
        else np.asarray(value)
    )


def test_the_auc_after_t_steps_is_that_of_a_world_whose_leak_at_t_is_known(late):
    for t, leak in enumerate(LEAKS, start=1):
        view = late.set(target="all", attack="loss", t=t)
        row = view.table[view.table[""] != ""].iloc[0]
        value, low, high = (float(word.strip("[,]")) for word in row["AUC"].split())
        assert low <= norm.cdf(leak / np.sqrt(2)) <= high and high - low < 0.05
        assert row["queried"] == (f"after {t} of 3 steps" if t < 3 else "after all 3 steps")
        assert value == pytest.approx(norm.cdf(leak / np.sqrt(2)), abs=0.01)


def test_an_attacker_at_t_scores_the_answer_at_t_alone_and_the_last_is_the_plain_answer(steps):
    (one,) = networks([steps]).values()
    cube = steps.signals
    for t in (1, 2, 3):
        alone = answers(LEAKS[t - 1 : t], lambda *_: 0, query_kind="plain")
        alone = Signals(**{**vars(alone), "margin": cube.margin[:, [t - 1]]})
        for attack in ("loss", "rmia", "nig"):
            np.testing.assert_array_equal(
                one.scores(t, attack).value, attacks.score(attack, alone).value
            )
    assert one.scores(2, "rmia").info["flags"] == []


def test_the_sentence_compares_t_with_all_steps_and_with_the_ordinary_network_and_carries_intervals_and_n(
    late,
):
    words = late.set(target="all", attack="loss", t=2).sentence
    assert (
        words.startswith("After 2 of 3 steps loss threshold finds ")
        and "; after all 3 steps: " in words
    )
    assert "; ordinary network: " in words and words.count("(95 %: ") == 3 and "n0 = 700" in words
    assert "after all" not in late.set(t=3).sentence[1:]


def test_the_difference_from_the_ordinary_network_is_the_paired_one_of_the_metrics(steps, plain):
    (one,) = networks([steps, plain]).values()
    rows = compared.measure({t: one.scores(t, "loss") for t in one.times}, 0)
    for t in (1, 2, 3):
        paired = metrics.difference(
            one.scores(t, "loss"), plain.scores("loss"), n_resamples=compared.DRAWS
        ).loc["auc"]
        np.testing.assert_allclose(
            rows.loc[t, ["gain", "gain_low", "gain_high"]].astype(float), paired, atol=1e-12
        )
    assert rows.loc[0, "gain"] == rows.loc[0, "gain_low"] == 0


def test_a_network_that_leaks_as_the_ordinary_one_differs_from_it_by_nothing_that_is_resolved():
    twins = (
        source("spiking", spiking((0.5, 0.5))),
        source("network", answers([0.5], steady, query_kind="plain", seed=3, family="toy")),
    )
    (one,) = networks(twins).values()
    rows = compared.measure({t: one.scores(t, "loss") for t in one.times}, 0)
    assert (rows.loc[[1, 2], "gain_low"] < 0).all() and (rows.loc[[1, 2], "gain_high"] > 0).all()
    assert rows.loc[1, "gain"] == rows.loc[2, "gain"]


def test_moving_t_moves_the_marker_the_histogram_the_roc_and_the_confidence(late):
    views = [late.set(attack="loss", t=t) for t in (1, 3)]
    assert [lines(view.figures["curve"]) for view in views] == [[1], [3]]
    for name in ("histogram", "roc", "confidence"):
        first, second = (view.figures[name]["data"] for view in views)
        assert not all(
            np.array_equal(array(a["y"]), array(b["y"])) for a, b in zip(first, second, strict=True)
        )
    names = [trace["name"] for trace in views[0].figures["roc"]["data"] if trace.get("showlegend")]
    assert [name.split("  ")[0] for name in names] == [
        "loss threshold, after 1 of 3 steps",
        "loss threshold, ordinary network",
    ]
    # a click on a point sets t
    assert set(array(views[0].figures["curve"]["data"][-1]["customdata"])) == {1, 2, 3}


def test_the_raster_is_greyed_out_after_t_and_says_how_sure_the_network_is_then(late, steps):
    view = late.set(t=2, sample=300)
    confidence = np.exp(steps.signals.log_p[0, 1, 300])
    assert f"Sample 300 (a), {'a' if steps.signals.member[0, 300] else 'not a'} member" in title(
        view, "raster"
    )
    assert f"confidence {confidence:.3f} after 2 of 3 steps" in title(view, "raster")
    assert lines(view.figures["raster"]) == [2.5, 2.5]
    later = [
        shape for shape in view.figures["raster"]["layout"]["shapes"] if shape["type"] == "rect"
    ]
    assert [(shape["x0"], shape["x1"]) for shape in later] == [(2.5, 3.5)] * 2
    assert len(late.controls["sample"].options) == 12 and title(
        late.set(sample=400), "raster"
    ) != title(view, "raster")


def test_the_confidence_above_the_raster_is_that_of_the_step_chosen(late, steps):
    # of others all steps answer alike
    inside = [number for number in range(0, 1200, 100) if steps.signals.member[0, number]]
    for t in (1, 2, 3):
        odds = np.exp(steps.signals.margin[0, t - 1, inside[0]])
        assert f"confidence {odds / (1 + odds):.3f} " in title(
            late.set(t=t, sample=inside[0]), "raster"
        )
    late.set(t=2)
    assert len({title(late.set(t=t), "raster").split(" after")[0] for t in (1, 2, 3)}) == 3


def test_of_images_drawn_as_random_spikes_the_picture_says_that_none_can_be_recorded(
    plain, tmp_path
):
    recipe = {"model": "snn", "model_args": {"encode": "rate"}, "epochs": 1, "parent": None}
    pool = store.open_folder(tmp_path, "pool", "toy", "a" * 64, recipe)
    coded = Source("spiking", spiking(pool="a" * 64), pool=pool, classes=tuple("abcd"))
    words = title(latency([coded, plain]).view, "raster")
    assert "cannot be recorded" in words and "query.query" not in words


def test_networks_of_different_t_show_a_recording_of_the_same_pool_and_epoch_and_their_own_confidence(
    steps,
):
    alone = {
        T: source(
            "net",
            answers(
                [1.0], steady, query_kind="plain", seed=T, timesteps=T, pool=f"{T}" * 12, base="toy"
            ),
        )
        for T in (2, 3)
    }
    asked_at = {"instant": {"per_step": "instant"}, "early": {"epoch": 1}, "silent": {}}
    stepwise = {
        name: source(name, spiking(seed=8, pool="3" * 12, **info))
        for name, info in asked_at.items()
    }
    stepwise["instant"].raster = stepwise["early"].raster = steps.raster
    number = next(n for n in range(0, 1200, 100) if steps.signals.member[0, n])
    late = latency([*alone.values(), *stepwise.values()])
    words = title(late.set(network="net, T = 2, 3", t=3, sample=number), "raster")
    assert f"confidence {np.exp(alone[3].signals.log_p[0, 0, number]):.3f} with T = 3" in words
    assert "No spikes" in title(late.set(t=2), "raster")
    assert "No spikes" in title(late.set(network="silent, T = 3, step by step", t=3), "raster")
    late = latency([*alone.values(), stepwise["early"]])
    assert "No spikes" in title(late.set(network="net, T = 2, 3", t=3), "raster")


def test_without_a_recording_the_picture_says_which_question_makes_one(plain):
    bare = latency([source("spiking", spiking(pool="abcdef123456789")), plain])
    assert "query.query(training.load_pool('abcdef123456'), images, per_step=True)" in title(
        bare.view, "raster"
    ).replace("<br>", " ")
    assert bare.controls["sample"].disabled


def test_a_target_of_its_own_is_one_target(late):
    both = [late.set(target=target, attack="loss", t=2) for target in ("all", 3)]
    assert [view.note.split(" with")[0] for view in both] == ["8 targets", "1 target"]
    widths = [
        np.ptp([float(x) for x in view.table["AUC"][1].split("[")[1].strip("]").split(", ")])
        for view in both
    ]
    assert widths[1] > 1.5 * widths[0]


def test_the_ordinary_network_has_the_same_members_and_the_same_architecture(steps, plain):
    other_members = source(
        "other", Signals(**{**vars(plain.signals), "member": ~plain.signals.member})
    )
    other_base = source("wide", Signals(**{**vars(plain.signals), "info": {"family": "wide"}}))
    (alone,) = networks([steps, other_members, other_base]).values()
    (both,) = networks([steps, other_members, plain, other_base]).values()
    assert alone.ordinary is None and both.ordinary is plain
    view = latency([steps, other_members]).view
    assert (
        "no ordinary network with the same members" in view.note
        and "minus ordinary" not in view.table
    )
    assert view.sentence.count("(95 %: ") == 2


def test_nothing_to_show_is_said_in_place_with_the_command_that_makes_it(plain):
    for explorer, words in (
        (latency([plain]), "at several time steps"),
        (dropout([plain]), "with input dropout"),
    ):
        assert words in explorer.error and "mia-nb run" in explorer.error and explorer.view is None


def test_a_value_that_a_control_does_not_have_is_refused_in_one_line(late):
    for wrong in ({"t": 9}, {"network": "none"}, {"attack": "psychic"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            late.set(**wrong)


def asked_with(p, queries, leak=1.0, **info):
    """Answers whose noise has one part per sample and one per query, so that the mean of Q has
    variance 1 + 4 / Q.
    """

    def noise(rng, shape):
        return steady(rng, shape) + 2 * rng.normal(size=shape)

    info = {"input_dropout": p, "queries": queries, "family": "toy"} | info
    return answers([leak] * queries, noise, query_kind="dropout", seed=int(1000 * p), **info)


@pytest.fixture(scope="module")
def rates(plain):
    return [
        plain,
        *(
            source(f"p {p}", asked_with(p, queries))
            for p, queries in zip(RATES, (6, 4), strict=True)
        ),
    ]


@pytest.fixture(scope="module")
def sweep(rates):
    return dropout(rates)


def test_every_cell_of_the_map_is_the_auc_of_the_first_q_answers_of_a_world_where_it_is_known(
    sweep,
):
    view = sweep.set(attack="loss")
    heat = view.figures["map"]["data"][0]
    found = {
        number: array(heat["z"]).reshape(3, 4)[i, j]
        for i, row in enumerate(heat["customdata"])
        for j, number in enumerate(row)
    }
    assert heat["x"] == ["1", "2", "4", "6"] and heat["y"] == ["0", "0.02", "0.1"]
    assert heat["customdata"] == [[0, None, None, None], [1, 2, 3, 4], [5, 6, 7, None]]
    for number, (p, queries) in enumerate(
        [(0, 1), (0.02, 1), (0.02, 2), (0.02, 4), (0.02, 6), (0.1, 1), (0.1, 2), (0.1, 4)]
    ):
        truth = (
            norm.cdf(0.5 / np.sqrt(2)) if p == 0 else norm.cdf(1 / np.sqrt(2 * (1 + 4 / queries)))
        )
        assert found[number] == pytest.approx(truth, abs=0.012)


def test_the_difference_from_the_plain_question_is_the_paired_one_of_the_metrics(sweep, rates):
    view = sweep.set(attack="loss", p=0.02, queries=4)
    cell = attacks.score("loss", rates[1].signals.select(queries=slice(4)))
    gain, low, high = metrics.difference(
        cell, rates[0].scores("loss"), (), n_resamples=compared.DRAWS
    ).loc["auc"]
    assert f"AUC changes by {gain:+.3f} [{low:+.3f}, {high:+.3f}]" in view.sentence
    assert (
        view.sentence.startswith("With p = 0.02 and 4 queries loss threshold finds ")
        and "queried plainly: " in view.sentence
    )
    assert sweep.set(p=0.0).sentence.startswith("Queried plainly loss threshold finds ")


def test_a_click_on_a_cell_moves_the_sliders_and_a_slider_moves_the_cell(sweep):
    def clicked(*numbers):
        sweep._pointed("map", {"kind": "click", "numbers": numbers})
        return sweep.values["p"], sweep.values["queries"]

    def outline():
        shape = sweep.view.figures["map"]["layout"]["shapes"][0]
        return shape["x0"], shape["y0"]

    sweep.set(p=0.02, queries=6)
    assert outline() == (2.5, 0.5)
    assert clicked(2) == (0.02, 2) and outline() == (0.5, 0.5)
    sweep.set(p=0.1)
    assert outline() == (0.5, 1.5)
    assert clicked(2) == (0.02, 2)  # the same cell again, after a slider
    assert clicked(0) == (0.0, 1) and sweep.controls["queries"].options == (1,)
    assert clicked() == (0.0, 1) and not sweep.error  # a cell that was not asked
    sweep.set(p=0.1)
    sweep.set(queries=4)
    assert outline() == (1.5, 1.5)


def test_the_chosen_cells_histogram_stands_beside_the_plain_one(sweep):
    figure = sweep.set(attack="loss", p=0.1, queries=1).figures["histogram"]
    names = ["non-members", "members, p = 0.1, Q = 1", "members, plain"]
    assert [trace["name"] for trace in figure["data"]] == names
    shares = [array(trace["y"])[:-1] for trace in figure["data"]]
    assert all(share.sum() == pytest.approx(1) for share in shares)
    assert not np.array_equal(shares[1], shares[2])


def test_the_map_never_calls_a_cell_the_best(sweep):
    view = sweep.set(p=0.02, queries=6)
    texts = [view.sentence, *(title(view, name) for name in view.figures)]
    assert not any("best" in text or "beat" in text for text in texts)
    assert "flatters the attacker" in view.note and "metrics.choose" in view.note


def test_where_one_rate_was_asked_the_note_says_how_to_ask_more(rates, sweep):
    assert "only p" not in sweep.view.note
    alone = dropout(rates[:2]).view
    assert "only p = 0.02 was queried" in alone.note and "mia-nb run dropout_sweep" in alone.note


def test_of_two_questions_at_one_rate_the_one_with_more_queries_is_shown(plain):
    few, many = source("few", asked_with(0.02, 2)), source("many", asked_with(0.02, 4))
    for order in ([plain, few, many], [many, few, plain]):
        (one,) = queried(order).values()
        assert one.at == {0.02: many} and one.cells == [(0.0, 1), (0.02, 1), (0.02, 2), (0.02, 4)]


@pytest.mark.parametrize(
    ("p", "queries", "other", "left"),
    [(0.02, 6, 0.0, 1), (0.02, 6, 0.1, 4), (0.02, 2, 0.1, 2), (0.1, 1, 0.02, 1)],
)
def test_at_another_rate_the_queries_stay_or_are_as_many_as_there_are(
    sweep, p, queries, other, left
):
    sweep.set(p=p, queries=queries)
    sweep.set(p=other)
    assert (sweep.values["p"], sweep.values["queries"]) == (other, left)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    root = tmp_path_factory.mktemp("pools")
    images = data.load("synthetic:classes=4,n=120,size=8,channels=1,seed=1")
    how = {"root": root, "progress": False, "workers": 1}
    network = training.train_pool(
        Recipe(num_models=4, epochs=2, batch=16, model_args={"width": 4}), images, **how
    )
    twin = training.train_pool(
        Recipe(num_models=4, epochs=3, batch=16, model_args={"width": 4}), images, **how
    )
    converted = {T: training.convert_pool(network, images, T, progress=False) for T in (1, 2)}
    for pool in (network, twin, *converted.values()):
        query(pool, images, progress=False)
    for pool in (network, *converted.values()):
        query(pool, images, input_dropout=0.1, queries=2, progress=False)
    query(converted[2], images, per_step=True, progress=False)
    return sources(root), network, converted


def test_stored_pools_that_differ_in_t_alone_are_one_network_beside_their_parent(stored):
    found, network, converted = stored
    entries = networks(found)
    shipped = {name for name in entries if name.startswith("CIFAR-10")}
    assert sorted(name.partition(", T = ")[2] for name in shipped) == [
        "1, 4, direct",
        "1, 4, hybrid",
    ]
    entries = {name: one for name, one in entries.items() if name.startswith(SPIKING)}
    assert list(entries) == [
        f"{SPIKING}, T = 2, converted, step by step",
        f"{SPIKING}, T = 1, 2, converted",
        f"{SPIKING}, T = 1, 2, converted, dropout 0.1, 2 queries",
    ]
    for name, one in entries.items():
        # and not the twin, trained on the same members later
        assert one.ordinary.info["pool"] == network.key
        assert one.ordinary.info["draws"] == ("dropout" if "dropout" in name else "plain")
        keys = [one.outputs[t].info["pool"] for t in (1, 2)]
        assert keys == (
            [converted[2].key] * 2
            if "step by step" in name
            else [converted[1].key, converted[2].key]
        )


def test_stored_results_are_explored_without_an_error(stored):
    found, _, _ = stored
    late, sweep = latency(found), dropout(found)
    for name in networks(found):
        view = late.set(network=name)
        assert view.sentence and set(view.figures) == {
            "curve",
            "histogram",
            "roc",
            "confidence",
            "raster",
        }
    masked = late.set(network=f"{SPIKING}, T = 1, 2, converted, dropout 0.1, 2 queries")
    assert "same dropout" in masked.sentence
    # recorded when the same pool was asked step by step
    recorded = late.set(network=f"{SPIKING}, T = 1, 2, converted", t=2)
    assert "confidence" in title(recorded, "raster") and "No spikes" in title(
        late.set(t=1), "raster"
    )
    for name in queried(found):
        assert sweep.set(pool=name).figures["map"]


def test_a_damaged_recording_is_told_in_its_place_and_damaged_answers_leave_the_others_within_reach(
    stored, tmp_path
):
    _, _, converted = stored
    root = tmp_path / "copy"
    shutil.copytree(converted[2].folder.path.parent, root)
    (raster,) = root.glob("*/raster.npz")
    raster.write_bytes(b"other bytes")
    late = latency(sources(root))
    view = late.set(network=f"{SPIKING}, T = 1, 2, converted", t=2)
    assert (
        "cannot be read" in title(view, "raster")
        and "raster.npz" in title(view, "raster")
        and late.controls["sample"].disabled
    )
    first = next(iter(networks(sources(root)).values())).any
    (first.folder.path / "margin.npy").write_bytes(b"other bytes")
    late = latency(sources(root))
    assert late.view is None and "margin.npy is missing, truncated or altered" in late.error
    assert late.set(network=f"{SPIKING}, T = 1, 2, converted", t=2).sentence.startswith(
        "With T = 2"
    )
    first = next(iter(queried(sources(root)).values())).plain
    (first.folder.path / "margin.npy").write_bytes(b"other bytes")
    sweep = dropout(sources(root))
    assert sweep.view is None and "margin.npy is missing, truncated or altered" in sweep.error
    assert sweep.set(pool=sweep.controls["pool"].options[1]).figures["map"]


def test_answers_with_dropout_of_an_unknown_rate_are_named_and_the_others_are_shown(rates):
    unknown = source("unknown rate", replace(rates[1].signals, info={"family": "toy"}))
    assert "of unknown rate the rate is not known" in dropout([rates[0], unknown]).error
    (one,) = queried([*rates, unknown]).values()
    assert list(one.at) == list(RATES)
