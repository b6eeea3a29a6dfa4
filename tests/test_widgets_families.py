"""Which stored outputs belong beside each other, and what they are called."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from settings_worlds import (
    answers,
    asked_with,
    gaussian_noise,
    noisy_sources,
    source,
    spiking,
    steady,
)

from mia_nb import data, query, store, training
from mia_nb.types import Recipe, Signals
from mia_nb.widgets import Source, dropout, latency, sources
from mia_nb.widgets.families import by_dropout, by_noise, by_time, noisy_name
from mia_nb.widgets.stored import named

SPIKING = "synthetic, TinyCNN as spiking network"


def changed(signals, **fields):
    return Signals(**{**vars(signals), **fields})


# --- time steps -----------------------------------------------------------------------------------


def test_the_ordinary_network_has_the_same_members_and_the_same_architecture():
    steps = source("spiking", spiking())
    plain = source("network", answers([0.5], steady, query_kind="plain", seed=1, family="toy"))
    other_members = source("other", changed(plain.signals, member=~plain.signals.member))
    other_base = source("wide", changed(plain.signals, info={"family": "wide"}))
    (alone,) = by_time([steps, other_members, other_base]).values()
    (both,) = by_time([steps, other_members, plain, other_base]).values()
    assert alone.outputs["direct", 1].reference is None
    assert both.outputs["direct", 1].reference.source is plain


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    root = tmp_path_factory.mktemp("pools")
    images = data.load("synthetic:classes=4,n=120,size=8,channels=1,seed=1")
    how = {"root": root, "progress": False, "workers": 1}
    recipe = Recipe(num_models=4, epochs=2, batch=16, model_args={"width": 4})
    network = training.train_pool(recipe, images, **how)
    longer = Recipe(num_models=4, epochs=3, batch=16, model_args={"width": 4})
    twin = training.train_pool(longer, images, **how)
    converted = {T: training.convert_pool(network, images, T, progress=False) for T in (1, 2)}
    for pool in (network, twin, *converted.values()):
        query(pool, images, progress=False)
    for pool in (network, *converted.values()):
        query(pool, images, input_dropout=0.1, queries=2, progress=False)
    query(converted[2], images, per_step=True, progress=False)
    return sources(root), network, converted


def test_stored_pools_that_differ_in_t_alone_are_one_family_beside_their_parent(stored):
    found, network, converted = stored
    families = by_time(found)
    shipped = [name for name in families if name.startswith("CIFAR-10")]
    endings = sorted(name.partition(", T = ")[2] for name in shipped)
    assert endings == ["1, 2, 4, converted, direct and hybrid"]
    # the network that they were made from is shipped with eight others, and beside later ones
    reference = families[shipped[0]].outputs["hybrid", 1].reference.source
    assert reference.info["example"] == "cifar10/fast-small" and len(reference.signals.margin) == 8
    families = {name: family for name, family in families.items() if name.startswith(SPIKING)}
    assert list(families) == [
        f"{SPIKING}, T = 2, converted, step by step",
        f"{SPIKING}, T = 1, 2, converted",
        f"{SPIKING}, T = 1, 2, converted, dropout 0.1, 2 queries",
    ]
    for name, family in families.items():
        ordinary = family.outputs["converted", 1].reference
        # and not the twin, trained on the same members later
        assert ordinary.source.info["pool"] == network.key
        assert ordinary.source.info["draws"] == ("dropout" if "dropout" in name else "plain")
        assert ("same dropout" in ordinary.name) == ("dropout" in name)
        keys = [family.outputs["converted", t].source.info["pool"] for t in (1, 2)]
        if "step by step" in name:
            assert keys == [converted[2].key] * 2
        else:
            assert keys == [converted[1].key, converted[2].key]


def test_parents_are_looked_for_in_one_reading_of_the_folder(stored, monkeypatch):
    found, _, _ = stored
    read = []

    def folders(*where):
        read.append(where)
        return all_folders(*where)

    all_folders = store.folders
    monkeypatch.setattr(store, "folders", folders)
    monkeypatch.setattr(store, "find", None)
    assert by_time(found) and len(read) == 1


def test_stored_results_are_explored_without_an_error(stored):
    found, _, _ = stored
    late, sweep = latency(found), dropout(found)
    for name in by_time(found):
        assert set(late.set(pool=name).figures) == {"curve", "histogram", "roc"}
    for name in by_dropout(found):
        assert sweep.set(pool=name).figures["curve"]


def test_damaged_answers_leave_the_others_within_reach(stored, tmp_path):
    _, _, converted = stored
    root = tmp_path / "copy"
    shutil.copytree(converted[2].folder.path.parent, root)
    family = next(iter(by_time(sources(root)).values()))
    (family.sources[0].folder.path / "margin.npy").write_bytes(b"other bytes")
    late = latency(sources(root))
    assert late.view is None and "margin.npy is missing, truncated or altered" in late.error
    view = late.set(pool=f"{SPIKING}, T = 1, 2, converted", t=2)
    assert view.sentence.startswith("with T = 2")
    first = next(iter(by_dropout(sources(root)).values())).outputs[0.1, 1].reference.source
    (first.folder.path / "margin.npy").write_bytes(b"other bytes")
    sweep = dropout(sources(root))
    assert sweep.view is None and "margin.npy is missing, truncated or altered" in sweep.error
    assert sweep.set(pool=sweep.controls["pool"].options[1]).figures["curve"]


# --- dropout --------------------------------------------------------------------------------------


def test_of_two_questions_at_one_rate_the_one_with_more_queries_is_shown():
    plain = source("network", answers([0.5], steady, query_kind="plain", seed=1, family="toy"))
    few, many = source("few", asked_with(0.02, 2)), source("many", asked_with(0.02, 4))
    for order in ([plain, few, many], [many, few, plain]):
        (family,) = by_dropout(order).values()
        assert list(family.outputs) == [(0.02, 1), (0.02, 2), (0.02, 4)]
        assert {outputs.source for outputs in family.outputs.values()} == {many}


# --- noise ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def noisy():
    return gaussian_noise(samples=60)


def test_pools_that_differ_in_the_noise_alone_share_a_family_ordered_by_sigma(noisy):
    signals, _ = noisy
    found = []
    for i, sigma in enumerate((2.0, 0.5, 1.0)):
        found += noisy_sources(signals, pool=f"{i}" * 4, sigma=sigma)
    found += noisy_sources(signals, pool="long", length=0.5)
    first, second = by_noise(found).values()
    assert list(dict.fromkeys(sigma for sigma, _ in first.outputs)) == [0.5, 1.0, 2.0]
    assert [count for _, count in second.outputs] == [1, 2, 4, 8, 16]


def test_sources_of_one_label_are_told_apart_and_take_no_name_of_another(noisy):
    signals, _ = noisy
    twins = [Source("net", signals), Source("net (1)", signals), Source("net", signals)]
    names = named(twins)
    assert [*names] == ["net (2)", "net (3)", "net (1)"]
    assert set(names.values()) == set(twins)
    families = by_noise(twins)
    assert {family.outputs["as built", 1].source for family in families.values()} == set(twins)


def test_the_noise_off_twin_is_of_the_same_pool_and_epoch(noisy):
    other = noisy_sources(*noisy, pool="bbbb")[1]
    early = noisy_sources(*noisy, pool="aaaa", epoch=2)[1]
    (family,) = by_noise([*noisy_sources(noisy[0]), other, early]).values()
    assert family.outputs[1.0, 1].reference is None
    mine = noisy_sources(*noisy)
    (family,) = by_noise([other, early, *mine]).values()
    outputs = family.outputs[1.0, 1]
    assert (outputs.source, outputs.reference.source) == tuple(mine)


def test_of_two_queries_of_one_pool_the_one_with_more_outputs_counts(noisy):
    signals, _ = noisy
    (few,) = noisy_sources(signals.select(queries=slice(0, 4)))
    (many,) = noisy_sources(signals)
    (family,) = by_noise([few, many]).values()
    assert {outputs.source for outputs in family.outputs.values()} == {many}


def test_the_twin_without_noise_was_queried_for_the_same_samples_and_is_the_newest_that_did():
    noisy, quiet = gaussian_noise()
    late = np.arange(300, 600)

    def off(samples, **info):
        return noisy_sources(noisy, quiet.select(samples=samples), limit=300, **info)[1]

    (some,) = noisy_sources(noisy.select(samples=late), limit=300)
    whole = noisy_sources(noisy, quiet)[1]
    others, same, again = off(np.arange(300)), off(late), off(late)
    behind = off(late, output="label_only")
    for there, twin in (
        ([whole, others, behind], None),
        ([same, whole, others], same),
        ([same, again, behind], again),
    ):
        (family,) = by_noise([*there, some]).values()
        reference = family.outputs[1.0, 1].reference
        assert (reference and reference.source) is twin


def test_a_pool_is_called_by_what_is_known_of_it_but_its_noise(tmp_path):
    folder = store.open_folder(tmp_path, "signals", "toy", "a" * 64, {})
    flow = {"k": 0.5, "sigma": 1.0, "noise_sd": 1.0, "T": 1.0, "steps": 4}
    queried = {"pool": "abcdef", "dataset": "toy", "draws": "noise", "queries": 4}
    facts = queried | {"model": "sdenet", "flow": flow, "epoch": 2}
    facts["family"] = "sdenet sigma=1 (noise sd 1)"
    one = Source("x", folder=folder, info=facts)
    assert noisy_name(one, 1) == "toy, SDENet (abcd), epoch 2, T = 1, 4 steps"
    assert noisy_name(one, 3) == "toy, SDENet, epoch 2, T = 1, 4 steps"
    family = "resnet14 with its last group replaced sigma=1 (noise sd 1)"
    other = facts | {"model": "replaced", "base": "resnet14", "family": family}
    name = noisy_name(Source("x", folder=folder, info=other), 3)
    assert name.startswith("toy, ResNet14 with its last group replaced, epoch 2")
    dropped = queried | {"family": "vgg11"}
    assert noisy_name(Source("x", folder=folder, info=dropped), 1) == "toy, vgg11 (abcd)"
