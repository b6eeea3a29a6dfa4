"""What enters from Python is checked where it enters: right, or one line of ours."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import mia_nb as mia
from mia_nb import data, metrics, plots, widgets
from mia_nb.training import plans
from mia_nb.types import Signals

FOREIGN = "Traceback|not subscriptable|has no attribute|out of bounds|unpack|broadcast|dtype to be|embedded"


@pytest.fixture(scope="module")
def images():
    return mia.load("digits", limit=60)


@pytest.fixture(scope="module")
def pool(images, tmp_path_factory):
    recipe = mia.Recipe(num_models=4, epochs=1, batch=10)
    return mia.train(recipe, images, root=tmp_path_factory.mktemp("r"), progress=False, workers=1)


@pytest.fixture(scope="module")
def signals(pool, images):
    return mia.query(pool, images, progress=False)


@pytest.fixture(scope="module")
def scores(signals):
    return {name: mia.score(name, signals) for name in ("rmia", "loss")}


CHANGED = {
    "twice as many labels": lambda i: i._replace(y=torch.cat([i.y, i.y])),
    "no labels": lambda i: i._replace(y=i.y[:0]),
    "labels as columns": lambda i: i._replace(y=i.y[:, None]),
    "labels that are floats": lambda i: i._replace(y=i.y.float()),
    "labels that are truth values": lambda i: i._replace(y=i.y > 4),
    "labels from -1": lambda i: i._replace(y=i.y - 1),
    "labels beyond the classes": lambda i: i._replace(classes=i.classes[:3]),
    "pixels that are floats": lambda i: i._replace(x=i.x.float()),
    "pixels that are 16 bits": lambda i: i._replace(x=i.x.to(torch.int16)),
    "pixels without channels": lambda i: i._replace(x=i.x[:, 0]),
    "a std of 0": lambda i: i._replace(std=(0.0,)),
    "a negative std": lambda i: i._replace(std=(-1.0,)),
    "an infinite mean": lambda i: i._replace(mean=(float("inf"),)),
    "three means of one channel": lambda i: i._replace(mean=(0.0,) * 3, std=(1.0,) * 3),
    "more means than stds": lambda i: i._replace(mean=(0.0, 1.0)),
    "no mean": lambda i: i._replace(mean=(), std=()),
}


@pytest.mark.parametrize("change", CHANGED)
@pytest.mark.parametrize("verb", ["train", "query"])
def test_images_whose_fields_do_not_fit_are_refused_before_anything_is_made(
    change, verb, images, pool, tmp_path
):
    changed = CHANGED[change](images)
    with pytest.raises(ValueError, match="wanted") as refused:
        if verb == "train":
            mia.train(mia.Recipe(num_models=2, epochs=1, batch=10), changed, root=tmp_path / "new")
        else:
            mia.query(pool, changed, progress=False)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "new").exists()


def test_images_of_another_size_than_the_pools_are_refused(pool):
    others = mia.load("synthetic:n=20,size=16,channels=1,classes=10")
    with pytest.raises(
        ValueError, match=r"\(1, 16, 16\) pixels; the pool was trained on \(1, 8, 8\)"
    ):
        mia.query(pool, others, progress=False)


def first(target, references):
    return target.margin[0, 0]


ATTACKS = {
    "three scores": lambda t, r: np.zeros(3),
    "a matrix": lambda t, r: t.margin[0],
    "a number": lambda t, r: 1.0,
    "None": lambda t, r: None,
    "text": lambda t, r: np.array(["a"] * t.shape[2]),
    "complex numbers": lambda t, r: first(t, r) + 1j,
    "a masked array": lambda t, r: np.ma.masked_less(first(t, r), 0),
}


@pytest.mark.parametrize("kind", ATTACKS)
def test_an_attack_of_ones_own_that_is_none_is_named(kind, signals):
    with pytest.raises(ValueError, match=r"attack '<lambda>' gives") as refused:
        mia.score(ATTACKS[kind], signals)
    assert "\n" not in str(refused.value)


CALLS = {
    "a self-test that is text": lambda s: metrics.summary(s, self_test="yes"),
    "a self-test that is True": lambda s: mia.verdict(s, self_test=True),
    "a picture of text": lambda s: mia.roc("rmia"),
    "a picture of nothing": lambda s: mia.roc({}),
    "a picture of a list": lambda s: mia.roc([s["rmia"]]),
    "a picture of numbers": lambda s: mia.roc({"rmia": 3}),
    "no bins": lambda s: mia.histogram(s["rmia"], bins=0),
    "negative bins": lambda s: mia.histogram(s["rmia"], bins=-5),
    "a billion bins": lambda s: mia.histogram(s["rmia"], bins=10**9),
    "half a bin": lambda s: mia.histogram(s["rmia"], bins=2.5),
    "target True": lambda s: mia.histogram(s["rmia"], target=True),
    "target 1.5": lambda s: mia.histogram(s["rmia"], target=1.5),
    "an epoch of text": lambda s: mia.frontier({"a": {"last": s}}, n_resamples=5),
    "an epoch that is NaN": lambda s: mia.frontier({"a": {float("nan"): s}}, n_resamples=5),
    "a negative epoch": lambda s: mia.frontier({"a": {-1: s}}, n_resamples=5),
    "another table": lambda s: mia.readable(pd.DataFrame({"a": [1]})),
    "an empty table": lambda s: mia.readable(pd.DataFrame()),
    "a figure of an empty table": lambda s: plots.summary(pd.DataFrame()),
    "words on nothing": lambda s: plots.verdict(pd.DataFrame(), "rmia"),
    "words on another table": lambda s: plots.verdict(pd.DataFrame({"a": [1]}), "rmia"),
    "a histogram of nothing": lambda s: mia.histogram(None),
    "a histogram of several": lambda s: mia.histogram(s),
    "numbers as sources": lambda s: widgets.scores([3]),
    "no list of sources": lambda s: widgets.exposed(None),
    "scores as sources": lambda s: widgets.compare([s["rmia"]]),
    "a folder's name as sources": lambda s: widgets.sample("results"),
    "no sources": lambda s: mia.explore(None),
    "a negative limit": lambda s: widgets.sources(limit=-1),
    "half a limit": lambda s: widgets.sources(limit=0.5),
    "a rate of 2": lambda s: widgets.scores([], at=2),
    "a namespace that is a list": lambda s: widgets.setup([]),
    "an unknown accountant": lambda s: mia.ladder(delta=1e-5, accountant="moments"),
    "a masked score": lambda s: metrics.auc(np.ma.masked_less(np.arange(9.0), 3), np.arange(9) > 4),
    "complex scores": lambda s: metrics.auc(np.arange(9) + 1j, np.arange(9) > 4),
    "pairs of another number": lambda s: metrics.interval(np.zeros(3), np.zeros(2, int)),
    "one value": lambda s: metrics.interval(np.float64(3), np.zeros(1, int)),
    "no members": lambda s: plans.sampling(mia.Recipe(), 0),
    "fewer than no members": lambda s: plans.sampling(mia.Recipe(), -5),
    "fewer members than a batch": lambda s: plans.sampling(mia.Recipe(batch=50), 10),
    "a std of 0": lambda s: data.normalise(torch.zeros(1, 1, 2, 2), (0.0,), (0.0,)),
}


@pytest.mark.parametrize("kind", CALLS)
def test_what_is_no_argument_is_refused_in_one_line_of_ours(kind, scores):
    with pytest.raises(ValueError) as refused:
        CALLS[kind](scores)
    message = str(refused.value)
    assert "\n" not in message and len(message) < 400
    assert not any(word in message for word in FOREIGN.split("|")), message


def grey(**options):
    x, y = np.zeros((4, 1, 8, 8), np.uint8), np.array([0, 1, 0, 1])
    return data.from_arrays(x, y, **options)


@pytest.mark.parametrize("classes", [{"a", "b"}, {"a": 1, "b": 2}, iter("ab"), 3])
def test_names_of_classes_without_an_order_are_refused(classes):
    with pytest.raises(ValueError, match="in the order of the class numbers"):
        grey(classes=classes)


@pytest.mark.parametrize("canary", [np.full(4, 2), np.array([0.5] * 4), ["a"] * 4, [True]])
def test_canaries_that_are_no_truth_values_are_refused(canary):
    with pytest.raises(ValueError, match="canary"):
        grey(canary=canary)


def test_negative_labels_are_no_signals(signals):
    fields = {name: getattr(signals, name) for name in signals.__dataclass_fields__}
    with pytest.raises(ValueError, match="wanted class numbers from 0 up"):
        Signals(**fields | {"labels": signals.labels - 5})


def test_groups_of_numbers_and_text_are_groups(scores):
    groups = np.array([1, "b", None] * 20, object)
    assert mia.verdict(scores, groups=groups, n_resamples=5).title
