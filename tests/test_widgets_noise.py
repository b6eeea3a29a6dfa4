"""Noise is not privacy, on a Gaussian world in which the separation after R answers is known."""

from __future__ import annotations

import base64
import gc
import sys
from dataclasses import replace

import numpy as np
import pytest
from attack_worlds import gaussian
from scipy.stats import norm

from mia_nb import attacks, metrics, store
from mia_nb.metrics.queries import VarianceSplit
from mia_nb.types import Scores
from mia_nb.widgets.noise import KEPT, grouped, noise, separation, title, two_worlds
from mia_nb.widgets.stored import Source

DELTA, SIGMA, NOISE, QUERIES = 1.0, 0.8, 3.0, 16


def world(seed=0, noise_sd=NOISE, samples=600, queries=QUERIES):
    """Equally hard samples: 1 + delta member + .8 eps(model, sample) + noise eps(answer), and the
    same margins without it.
    """
    options = {"delta": DELTA, "sigma": SIGMA, "difficulty": 0.0, "seed": seed}
    noisy = gaussian(8, samples, queries=queries, noise=noise_sd, query_kind="noise", **options)
    return noisy, gaussian(8, samples, **options)


def flow(sigma, **other):
    return {"k": sigma / 2, "sigma": sigma, "noise_sd": sigma, "T": 1.0, "steps": 4} | other


def stored(noisy, quiet=None, *, pool="aaaa", sigma=1.0, **info):
    """Sources as the store gives them: who was asked, and how, in `info`."""
    facts = {"pool": pool, "dataset": "toy", "model": "sdenet", "flow": flow(sigma)} | info
    found = [
        Source(
            f"toy sdenet {pool}, noise",
            noisy,
            info=facts | {"draws": "noise", "noise": True, "queries": QUERIES},
        )
    ]
    off = facts | {"draws": "plain", "noise": False, "queries": 1}
    return found + (
        [Source(f"toy sdenet {pool}, noise off", quiet, info=off)] if quiet is not None else []
    )


@pytest.fixture(scope="module")
def explorer():
    return noise(stored(*world()))


def heights(view, name):
    """y of a line of the AUC picture, which plotly keeps as base64."""
    y = next(trace["y"] for trace in view.figures["curve"]["data"] if trace.get("name") == name)
    return np.frombuffer(base64.b64decode(y["bdata"]), y["dtype"])


def d_prime(answers):
    return DELTA / np.sqrt(SIGMA**2 + NOISE**2 / answers)


@pytest.mark.parametrize("answers", [1, 4, 16])
def test_the_separation_after_r_outputs_is_the_closed_form_within_its_error(explorer, answers):
    table = explorer.set(attack="loss", target="all", outputs=answers).table.set_index("outputs")
    row = table.loc[str(answers)]
    low, high = (
        np.sqrt(2) * norm.ppf(float(end))
        for end in row["AUC"].split("[")[1].rstrip("]").split(", ")
    )
    assert low < d_prime(answers) < high
    assert float(row["d' closed form"]) == pytest.approx(d_prime(answers), rel=0.06)


def test_infinitely_many_outputs_tend_to_the_margins_without_noise(explorer):
    row = explorer.set(attack="loss", target="all").table.set_index("outputs").loc["noise off"]
    assert float(row["d' measured"]) == pytest.approx(DELTA / SIGMA, rel=0.06)
    assert float(row["d' closed form"]) == pytest.approx(DELTA / SIGMA, rel=0.1)


def test_the_closed_form_is_the_known_ratio_of_spreads():
    split = VarianceSplit(9.0, 0.64, 16, 4, *[np.nan] * 4)
    table = separation(0.7, split, [1, 16, np.inf])
    assert table.loc[16, "auc"] == pytest.approx(0.7)
    assert table.loc[1, "d"] / table.loc[16, "d"] == pytest.approx(
        np.sqrt((0.64 + 9 / 16) / (0.64 + 9))
    )
    assert table.loc[np.inf, "d"] == pytest.approx(
        np.sqrt(2) * norm.ppf(0.7) * np.sqrt(1 + 9 / 16 / 0.64)
    )


@pytest.mark.parametrize("attack", ["loss", "rmia"])
def test_all_outputs_are_the_plain_attack_on_all_queries_and_one_is_the_first(explorer, attack):
    noisy, quiet = world()
    table = explorer.set(attack=attack, target="all", outputs=QUERIES).table.set_index("outputs")
    for words, signals in (("16", noisy), ("1", noisy.select(queries=[0])), ("noise off", quiet)):
        auc = metrics.intervals(attacks.score(attack, signals), (), n_resamples=200).loc["auc"]
        assert (
            table.loc[words, "AUC"] == f"{auc['value']:.3f} [{auc['low']:.3f}, {auc['high']:.3f}]"
        )


def test_the_curve_agrees_with_the_table_of_metrics(explorer):
    view = explorer.set(attack="loss", target="all", outputs=4, closed=True)
    wanted = metrics.query_curve(world()[0], "loss", queries=(1, 4, 16), fpr=(), n_resamples=200)
    wanted = wanted.set_index("R")
    drawn = dict(zip(range(1, 17), heights(view, "queried R times"), strict=True))
    for count in (1, 4, 16):
        assert drawn[count] == pytest.approx(wanted.loc[count, "value"])
    assert explorer.view.sentence.count(f"{wanted.loc[4, 'value']:.3f}") == 1


def test_the_sentence_names_one_output_many_and_the_noise_off_with_intervals_and_size(explorer):
    sentence = explorer.set(attack="loss", target="all", outputs=16).sentence
    assert sentence.startswith("sigma = 1 (noise sd 1): one output gives AUC 0.")
    assert "16 outputs 0." in sentence and "the model without its noise 0." in sentence
    assert sentence.count("[") == 3 and "8 targets" in sentence and "n0 = 300" in sentence
    assert "1 outputs" not in explorer.set(outputs=1).sentence


def test_every_control_changes_a_picture(explorer):
    explorer.set(attack="loss", target="all", outputs=4, sample=1, closed=False)
    for control, other in {
        "outputs": 9,
        "sample": 7,
        "closed": True,
        "attack": "rmia",
        "target": 2,
    }.items():
        before = explorer.view.figures
        assert explorer.set(**{control: other}).figures != before, control


def test_a_running_mean_settles_on_the_mean_of_all_outputs_of_the_chosen_models(explorer):
    noisy, _ = world()
    view = explorer.set(attack="loss", target=3, outputs=16, sample=5)
    title = view.figures["sample"]["layout"]["title"]["text"]
    column, apart = (
        int(title.split("Sample ")[1].split()[0]),
        float(title.split("outputs are ")[1].split()[0]),
    )
    models = two_worlds(noisy.member[:, column], noisy.member, 3)
    assert (
        3 in models.values()
        and noisy.member[models[True], column]
        and not noisy.member[models[False], column]
    )
    mean = noisy.margin.mean(1)[:, column]
    assert apart == pytest.approx(mean[models[True]] - mean[models[False]], abs=0.006)


def test_a_target_stands_against_its_own_complement():
    member = np.array([[1, 0, 1, 0], [1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1]], bool)
    assert two_worlds(member[:, 0], member, 0) == {True: 0, False: 2}
    assert two_worlds(member[:, 0], member, 3) == {True: 1, False: 3}
    assert two_worlds(member[:, 0], member, None) == {True: 0, False: 2}
    assert two_worlds(np.ones(3, bool), np.ones((3, 2), bool), None) == {True: 0}


def test_pools_that_differ_in_the_noise_alone_share_an_entry_and_the_slider_orders_them_by_sigma():
    noisy, _ = world(samples=60)
    pools = [
        stored(noisy, pool=f"{i}" * 4, sigma=sigma)[0] for i, sigma in enumerate((2.0, 0.5, 1.0))
    ]
    longer = stored(noisy, pool="long", sigma=1.0, flow=flow(1.0, T=0.5))
    groups = grouped([*pools, *longer])
    assert [list(levels) for levels in groups.values()] == [
        [f"sigma = {s:g} (noise sd {s:g})" for s in (0.5, 1.0, 2.0)],
        ["sigma = 1 (noise sd 1)"],
    ]
    explorer = noise([*pools, *longer])
    assert explorer.set(sigma="sigma = 2 (noise sd 2)").sentence.startswith("sigma = 2")
    assert not explorer.controls["sigma"].disabled
    explorer.set(pool=list(groups)[1])
    assert explorer.controls["sigma"].disabled and explorer.view.sentence.startswith("sigma = 1")


def test_the_noise_off_twin_is_of_the_same_pool_and_epoch():
    noisy, quiet = world(samples=60)
    other = stored(noisy, quiet, pool="bbbb")[1]
    early = stored(noisy, quiet, pool="aaaa", epoch=2)[1]
    (levels,) = grouped([*stored(noisy), other, early]).values()
    assert levels["sigma = 1 (noise sd 1)"].quiet is None
    own = stored(noisy, quiet)
    (levels,) = grouped([other, early, *own]).values()
    level = levels["sigma = 1 (noise sd 1)"]
    assert (level.source, level.quiet) == (own[0], own[1])


def test_of_two_queries_of_one_pool_the_one_with_more_outputs_counts():
    noisy, _ = world(samples=60)
    few = stored(noisy.select(queries=slice(0, 4)))[0]
    few.info["queries"] = 4
    many = stored(noisy)[0]
    (levels,) = grouped([few, many]).values()
    assert levels["sigma = 1 (noise sd 1)"].source is many


def test_without_stored_noise_off_the_explorer_says_how_to_query():
    explorer = noise(stored(world(samples=60)[0]))
    assert "without its noise" not in explorer.view.sentence
    assert "query.query(training.load_pool('aaaa'), images, noise=False)" in explorer.view.note


def test_no_noisy_source_gives_a_message_with_a_command():
    plain = Source("plain", world(samples=60)[1])
    assert "mia-nb run" in noise([plain]).error and noise([]).view is None


def test_models_whose_noise_is_off_are_named_and_have_no_closed_form():
    noisy, _ = world(samples=60)
    same = replace(noisy, margin=np.repeat(noisy.margin[:, :1], QUERIES, axis=1))
    explorer = noise(stored(same))
    assert "the noise is off" in explorer.set(closed=True).note
    assert (explorer.view.table["d' closed form"] == "n/m").all()


def test_attacks_that_do_not_average_are_not_offered(explorer):
    assert "lira_joint" not in dict(explorer.controls["attack"].options).values()
    assert "lira_joint" in stored(world()[0])[0].attacks()


def test_of_many_samples_one_target_comes_first_and_all_are_scored_at_doublings_and_at_the_slider(
    monkeypatch,
):
    noisy, _ = world(samples=150)
    monkeypatch.setattr(sys.modules["mia_nb.widgets.noise"], "AHEAD", noisy.margin.size - 1)
    explorer = noise(stored(noisy))
    value = attacks.score("loss", noisy.select(queries=slice(0, 11)), targets=0).value[0]
    view = explorer.set(attack="loss", outputs=11)
    assert explorer.values["target"] == 0 and len(heights(view, "queried R times")) == QUERIES
    assert view.sentence.count(f"11 outputs {metrics.auc(value, noisy.member[0]):.3f} [") == 1
    view = explorer.set(target="all")
    assert (
        len(heights(view, "queried R times")) == 5
        and "8 targets" in view.sentence
        and "11 outputs" in view.sentence
    )


@pytest.mark.parametrize("attack", ["loss", "rmia"])
def test_one_target_has_the_scores_it_has_among_all(explorer, attack):
    data = attacks.score(attack, world()[0].select(queries=slice(0, 5)))
    auc = metrics.auc(data.value[6], data.member[6])
    assert f"5 outputs {auc:.3f} [" in explorer.set(attack=attack, target=6, outputs=5).sentence


def test_the_twin_without_noise_was_queried_for_the_same_samples_and_is_the_newest_that_did():
    noisy, quiet = world()
    (some,) = stored(noisy.select(samples=np.arange(300, 600)), limit=300)
    whole = stored(noisy, quiet)[1]
    others, same, again = (
        stored(noisy, quiet.select(samples=np.arange(*part)), limit=300)[1]
        for part in ((0, 300), (300, 600), (300, 600))
    )
    behind = stored(
        noisy, quiet.select(samples=np.arange(300, 600)), limit=300, output="label_only"
    )[1]
    for there, twin in (
        ([whole, others, behind], None),
        ([same, whole, others], same),
        ([same, again, behind], again),
    ):
        (levels,) = grouped([*there, some]).values()
        level = next(iter(levels.values()))
        assert (level.source, level.quiet) == (some, twin)
    explorer = noise([some, whole])
    assert "without its noise" not in explorer.view.sentence
    assert "images, limit=300, noise=False)" in explorer.view.note


def test_dotted_levels_are_the_margins_without_noise_and_funnels_lie_where_the_mean_of_r_outputs_does(
    explorer,
):
    noisy, quiet = world()
    view = explorer.set(attack="loss", target=3, outputs=16, sample=5, closed=True)
    column = int(view.figures["sample"]["layout"]["title"]["text"].split("Sample ")[1].split()[0])
    models = two_worlds(noisy.member[:, column], noisy.member, 3)
    drawn = view.figures["sample"]["data"]
    levels = [trace["y"][0] for trace in drawn if trace.get("name") == "noise off"]
    np.testing.assert_allclose(
        levels, [quiet.margin[models[side], 0, column] for side in (True, False)]
    )
    y = [
        np.frombuffer(base64.b64decode(t["y"]["bdata"]), t["y"]["dtype"])
        for t in drawn
        if t.get("name") == "closed form"
    ]
    for side, low, high in zip((True, False), y[::2], y[1::2], strict=True):
        own = noisy.margin[models[side], :, column]
        error = np.sqrt(((own - own.mean()) ** 2).sum() / (QUERIES - 1) / np.arange(1, QUERIES + 1))
        np.testing.assert_allclose(
            [low, high], own.mean() + np.multiply.outer((-1.96, 1.96), error)
        )


def test_noisy_outputs_from_memory_need_no_word_on_how_they_were_queried():
    noisy, _ = world(samples=60)
    view = noise([Source("mine", noisy)]).view
    auc = metrics.auc(*(part[0] for part in (attacks.score("loss", noisy).value, noisy.member)))
    assert (
        view.sentence.startswith("noise as built: one output gives AUC 0.")
        and "16 outputs" in view.sentence
    )
    assert (
        f"16 outputs {auc:.3f} ["
        in noise([Source("mine", noisy)]).set(attack="loss", target=0).sentence
    )


def test_a_first_pool_whose_members_are_hidden_is_told_in_place_and_the_others_are_reached():
    noisy, quiet = world(samples=60)
    hidden = stored(replace(noisy, member=None), pool="hide", flow=flow(1.0, T=0.5))
    explorer = noise([*hidden, *stored(noisy, quiet)])
    assert (
        explorer.view is None and "membership" in explorer.error and "report" not in explorer.error
    )
    view = explorer.set(pool=explorer.controls["pool"].options[1])
    assert "the model without its noise" in view.sentence and explorer.values["outputs"] == QUERIES


@pytest.mark.slow
def test_scores_of_many_attacks_and_outputs_are_not_all_kept():
    explorer, attacks_ = noise(stored(world(samples=60)[0])), ("loss", "attack_p")
    gc.collect()
    before = sum(type(thing) is Scores for thing in gc.get_objects())
    for attack in attacks_:
        for count in range(1, QUERIES + 1):
            explorer.set(attack=attack, target="all", outputs=count)
    gc.collect()
    assert sum(type(thing) is Scores for thing in gc.get_objects()) <= before + KEPT + len(attacks_)


def test_a_pool_is_called_by_what_is_known_of_it_but_its_noise(tmp_path):
    folder = store.open_folder(tmp_path, "signals", "toy", "a" * 64, {})
    facts = {
        "pool": "abcdef",
        "dataset": "toy",
        "model": "sdenet",
        "flow": flow(1.0),
        "epoch": 2,
        "draws": "noise",
        "queries": 4,
    }
    facts["family"] = "sdenet sigma=1 (noise sd 1)"
    assert (
        title(Source("x", folder=folder, info=facts), 1)
        == "toy, SDENet (abcd), epoch 2, T = 1, 4 steps"
    )
    assert (
        title(Source("x", folder=folder, info=facts), 3) == "toy, SDENet, epoch 2, T = 1, 4 steps"
    )
    other = facts | {
        "model": "replaced",
        "base": "resnet14",
        "family": "resnet14 with its last group replaced sigma=1 (noise sd 1)",
    }
    assert title(Source("x", folder=folder, info=other), 3).startswith(
        "toy, ResNet14 with its last group replaced, epoch 2"
    )
    dropped = {
        "pool": "abcdef",
        "dataset": "toy",
        "family": "vgg11",
        "draws": "noise",
        "queries": 4,
    }
    assert title(Source("x", folder=folder, info=dropped), 1) == "toy, vgg11 (abcd)"


def test_of_four_outputs_scored_at_doublings_three_may_be_chosen(monkeypatch):
    noisy, _ = world(samples=60, queries=4)
    monkeypatch.setattr(sys.modules["mia_nb.widgets.noise"], "AHEAD", 1)
    (one,) = stored(noisy)
    one.info["queries"] = 4
    assert "3 outputs 0." in noise([one]).set(attack="loss", target="all", outputs=3).sentence
