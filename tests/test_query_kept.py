"""What a query leaves in the store, and what it makes of what it finds there."""

import errno
import os

import numpy as np
import pytest

from mia_nb import data, query, querying, store, training, widgets
from mia_nb.cli import stored
from mia_nb.types import PER_MODEL, Recipe

RECIPE = Recipe(num_models=4, epochs=1, batch=16, lr=0.05, model_args={"width": 4}, dtype="float64")
OPTIONS = {"queries": 2, "input_dropout": 0.1, "limit": 50, "progress": False}


@pytest.fixture(scope="module")
def images():
    return data.load("synthetic:classes=4,n=200,size=8,channels=1,seed=1")


@pytest.fixture
def pool(images, tmp_path, monkeypatch):
    monkeypatch.setattr(querying.signals, "cores", lambda: 1)
    return training.train_pool(RECIPE, images, root=tmp_path, progress=False, workers=1)


@pytest.fixture
def asked(monkeypatch):
    """The models that were asked, as they are."""
    numbers, answers = [], querying.signals.outputs
    monkeypatch.setattr(
        querying.signals, "outputs", lambda *rest: numbers.append(rest[2]) or answers(*rest)
    )
    return numbers


def spoil(path):
    path.write_bytes(path.read_bytes()[:-3] + b"xyz")


def test_whoever_cleans_while_a_query_runs_leaves_its_files_alone(
    pool, images, tmp_path, monkeypatch
):
    said, read_partial = [], store.read_partial

    def clean(folder, model):
        # they are being joined
        if model == 2 and read_partial(folder, 2) and list(folder.path.glob(".tmp-*")):
            said.append(stored.status(folder))
            for everything in (False, True):
                said.extend(
                    stored.cleaned(tmp_path, None, everything=everything, older_than=None, yes=True)
                )
        return read_partial(folder, model)

    monkeypatch.setattr(store.signals, "read_partial", clean)
    signals = query(pool, images, **OPTIONS)
    assert (
        said[0] == "running"
        and len(said) == 5
        and all("in use, left alone" in line for line in said[1:])
    )
    (folder,) = store.folders(tmp_path, "signals")
    assert signals.shape == (4, 2, 50) and stored.status(folder) == "done" and not folder.verify()


@pytest.mark.parametrize("name", ["member", "entropy", "samples", "labels", "info"])
def test_what_was_damaged_and_cleaned_is_asked_about_anew(pool, images, tmp_path, asked, name):
    first = query(pool, images, **OPTIONS)
    (folder,) = store.folders(tmp_path, "signals")
    (source,) = widgets.sources(tmp_path, shipped=False)
    numbers = source.samples
    spoil(folder.path / f"{name}.{'json' if name == 'info' else 'npy'}")
    assert sum("missing, truncated or altered" in line for line in stored._tidy(folder)) == 1
    assert stored.status(folder) == "partial" and widgets.sources(tmp_path, shipped=False) == []
    if name in ("samples", "info"):
        with pytest.raises(store.Corrupt, match=name):
            _ = widgets.stored.Source("x", folder=folder, pool=pool.folder, info={}).samples
    again = query(pool, images, **OPTIONS)
    assert (
        asked == [0, 1, 2, 3] * 2 and stored.status(folder) == "done" and again.info == first.info
    )
    assert all(np.array_equal(getattr(again, field), getattr(first, field)) for field in PER_MODEL)
    assert np.array_equal(widgets.sources(tmp_path, shipped=False)[0].samples, numbers)


def test_a_fault_of_the_disk_is_no_reason_to_ask_again(pool, images, asked, monkeypatch):
    query(pool, images, **OPTIONS)

    def failing(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(store.Folder, "map_array", failing)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        query(pool, images, **OPTIONS)
    assert asked == [0, 1, 2, 3]


def test_a_damaged_model_takes_no_answers_of_the_others_away(pool, images, tmp_path, asked):
    weights = pool.folder.path / "model_002.safetensors"
    whole = weights.read_bytes()
    spoil(weights)
    with pytest.raises(store.Corrupt, match="model_002"):
        query(pool, images, **OPTIONS)
    (folder,) = store.folders(tmp_path, "signals")
    assert stored.status(folder) == "partial" and store.read_partial(folder, 1) is not None
    weights.write_bytes(whole)
    query(pool, images, **OPTIONS)
    assert sorted(asked) == [0, 1, 2, 3]


def test_answers_of_a_stopped_repetition_are_cleaned_and_those_of_an_unfinished_query_are_not(
    pool, images, tmp_path, monkeypatch
):
    def stopped(*rest):
        if rest[2] >= 2:
            raise KeyboardInterrupt
        return answers(*rest)

    answers = querying.signals.outputs
    for finished in (False, True):
        monkeypatch.setattr(querying.signals, "outputs", stopped)
        with pytest.raises(KeyboardInterrupt):
            query(pool, images, force=True, **OPTIONS)
        (folder,) = store.folders(tmp_path, "signals")
        assert stored.status(folder) == ("done" if finished else "partial")
        told = list(stored._tidy(folder))
        assert len(list(folder.path.glob(".partial-*"))) == (0 if finished else 2) and len(
            told
        ) == (2 if finished else 0)
        monkeypatch.setattr(querying.signals, "outputs", answers)
        query(pool, images, **OPTIONS)
