"""Scoring signals that are larger than the memory that is there for them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from attack_worlds import gaussian, pairs, save_signals

from mia_nb import attacks, store
from mia_nb.attacks.reading import LazyRows, select_lazily
from mia_nb.types import PER_MODEL, Signals

MODELS, SAMPLES, QUERIES, ROOM = 64, 20_000, 4, 80e6
BOUNDED = ("rmia", "lira_global", "lira_per_sample", "nig", "attack_r", "loss")
CHILD = """
import json, sys
import numpy as np
from pathlib import Path
from mia_nb import attacks, store
attacks.score("rmia", store.load_signals(store.Folder(Path(sys.argv[1]) / "signals-small-0")))
def peak():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])  # ru_maxrss is the parent's at first
before = peak()
signals = store.load_signals(store.Folder(Path(sys.argv[1]) / "signals-large-0"))
if sys.argv[2] == "copy":
    kept = [np.array(getattr(signals, name)) for name in ("margin", "entropy", "modified_entropy", "correct", "top_log_p")]
else:
    np.save(sys.argv[3], [attacks.score(name, signals, targets=[0, 33]).value for name in sys.argv[2].split(",")])
print(json.dumps(peak() - before))
"""


def large(models: int, samples: int, queries: int) -> Signals:
    """Margins of a Gaussian world; the other cubes only take up room."""
    rng = np.random.default_rng(0)
    member = pairs(models, samples)
    margin = rng.normal(1, 2, samples) + (member + rng.normal(size=member.shape))[:, None]
    margin = margin + 0.1 * rng.normal(size=(models, queries, samples))
    labels, population = rng.integers(0, 10, samples), np.zeros(samples, bool)
    top = np.zeros((models, samples, 10), np.float32)
    return Signals(
        margin, labels, member, population, "augment", -margin, -margin, margin > 0, top, {}
    )


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    root, signals = tmp_path_factory.mktemp("signals"), large(MODELS, SAMPLES, QUERIES)
    for name, one in (
        ("small", signals.select(models=slice(8), samples=slice(500))),
        ("large", signals),
    ):
        folder = store.Folder(root / f"signals-{name}-0")
        folder.path.mkdir()
        save_signals(folder, one)
    return root, signals


def child(*words) -> float:
    """Bytes by which the largest resident memory of a fresh process grew."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, words)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_stored_signals_are_scored_in_less_memory_than_they_take_with_the_scores_of_memory(
    stored, tmp_path
):
    root, signals = stored
    size = sum(getattr(signals, name).nbytes for name in PER_MODEL)
    assert child(root, "copy") > 0.9 * size > 2 * ROOM  # the whole of it would not go unnoticed
    assert child(root, ",".join(BOUNDED), tmp_path / "found.npy") < ROOM
    for name, found in zip(BOUNDED, np.load(tmp_path / "found.npy"), strict=True):
        assert np.array_equal(found, attacks.score(name, signals, targets=[0, 33]).value), name


@pytest.mark.parametrize(
    "name", ["loss", "attack_r", "watson", "lira_per_sample", "rmia", "base", "nig", "vote"]
)
def test_an_attack_makes_no_copy_of_what_it_reads_of_the_references(name, monkeypatch):
    world, rows, sizes = gaussian(70, 600, queries=3, query_kind="augment"), np.r_[2:70], []
    read = LazyRows.__getitem__

    def counted(array, index):
        sizes.append(read(array, index).size)
        return read(array, index)

    monkeypatch.setattr(LazyRows, "__getitem__", counted)
    references = select_lazily(world, rows)
    target = world.select(models=[0]).hide()
    found = attacks.ATTACKS[name](target, references)
    assert np.array_equal(found, attacks.ATTACKS[name](target, world.select(models=rows)))
    assert not sizes or max(sizes) < 0.9 * world.margin[rows].size


def test_an_attack_from_elsewhere_and_those_that_learn_get_arrays():
    got = []

    def own(target, references):
        got.append(references)
        return target.margin[0].mean(0) - references.margin.mean((0, 1))

    attacks.score(own, gaussian(6, 40), targets=[0])
    assert {type(getattr(got[0], name)) for name in PER_MODEL} == {np.ndarray}


@pytest.mark.parametrize(
    "name", ["rmia", "lira_global", "nig", "attack_r_lattice", "lira_joint", "vote"]
)
@pytest.mark.parametrize("draws", ["augment", "noise"])
def test_scores_do_not_depend_on_how_many_samples_are_in_hand(name, draws, monkeypatch):
    world = gaussian(12, 300, queries=5, query_kind=draws, population=40)
    whole = attacks.score(name, world).value
    for module in (
        attacks.margins,
        attacks.reading,
        attacks.reference,
        attacks.single,
    ):
        monkeypatch.setattr(
            module,
            "blocks",
            lambda rows, samples: (slice(i, min(i + 7, samples)) for i in range(0, samples, 7)),
        )
    np.testing.assert_allclose(attacks.score(name, world).value, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["loss", "vote"])
def test_scores_of_some_samples_are_those_of_a_slice_of_them(name):
    part = gaussian(12, 200).select(samples=np.arange(0, 200, 2))
    whole = attacks.score(name, gaussian(12, 200).select(samples=slice(0, 200, 2)))
    scores = attacks.score(name, part)
    assert np.array_equal(scores.value, whole.value)
    assert np.array_equal(scores.accuracy, whole.accuracy) and np.array_equal(
        scores.loss, whole.loss
    )


def test_no_reference_is_lost_between_two_pools_of_one_design():
    world = gaussian(10, 80)
    other = replace(gaussian(10, 80, seed=4), labels=world.labels, member=world.member)
    scores = attacks.score("rmia", world, other)
    for t in range(10):
        rows = [m for m in range(10) if m // 2 != t // 2]
        alone = attacks.reference.rmia(world.select(models=[t]), other.select(models=rows))
        np.testing.assert_allclose(scores.value[t], alone, rtol=1e-12, atol=1e-12)
