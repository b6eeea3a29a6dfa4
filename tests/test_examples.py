"""Signals that travel with the package: what is written is what is read, to 16 bits; altered files,
other designs and unknown names are refused in one line; tables printed from them are those of the
full arrays."""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mia_nb import examples, metrics
from mia_nb.attacks import score
from mia_nb.attacks.learned import song_mittal
from mia_nb.types import Signals
from mia_nb.widgets.ranking import separations

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import shipping


def make(models=8, samples=2000, seed=0, leak=0.5):
    """Signals of complementary pairs on ten classes, in which members score higher."""
    rng = np.random.default_rng(seed)
    half = rng.permuted(np.tile([True, False], (models // 2, samples // 2)), axis=1)
    member = np.stack([half, ~half], axis=1).reshape(models, samples)
    labels = rng.integers(0, 10, samples)
    logits = rng.normal(size=(models, samples, 10))
    easy = rng.normal(3, 2, samples)
    logits[:, np.arange(samples), labels] += easy + leak * member
    return Signals.from_logits(logits, labels, member, info={"family": "test"})


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "PLACES", (tmp_path,))
    signals = make()
    shipping.write(tmp_path / "cifar10", "one", signals, {"info": {"recipe": {"epochs": 3}}})
    return tmp_path / "cifar10", signals


def test_what_is_read_is_what_was_written_to_sixteen_bits(written):
    read, signals = examples.load_example("cifar10/one"), written[1]
    assert np.array_equal(read.member, signals.member)
    assert np.array_equal(read.correct, signals.correct)
    assert np.array_equal(read.labels, signals.labels) and not read.population.any()
    assert read.margin.dtype == float
    finest = np.abs(signals.margin).max() / 2**14  # of a scale that is a power of two
    np.testing.assert_allclose(read.margin, signals.margin, rtol=0, atol=finest / 2)
    for name in ("entropy", "modified_entropy"):  # logarithms: relative to their size
        got, wanted = (np.log(getattr(one, name)) for one in (read, signals))
        np.testing.assert_allclose(got, wanted, rtol=2**-11, atol=1e-4)
    assert read.info["recipe"] == {"epochs": 3} and read.info["example"] == "cifar10/one"
    assert np.array_equal(read.margin, examples.load_example("example:cifar10/one").margin)


def test_entropies_that_did_not_travel_are_missing_and_refused_in_one_line(written):
    place, signals = written
    shipping.write(place, "short", signals, {"info": {}}, ("modified_entropy",))
    read, whole = (examples.load_example(f"cifar10/{name}") for name in ("short", "one"))
    assert np.isnan(read.entropy).all() and read.entropy.shape == whole.entropy.shape
    assert np.array_equal(read.modified_entropy, whole.modified_entropy)
    again, first = (score("song_mittal", one).value for one in (read, whole))
    assert np.array_equal(again, first)
    with pytest.raises(ValueError, match="'entropy': these signals hold no entropies"):
        score(partial(song_mittal, metric="entropy"), read)


def test_extreme_outputs_keep_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "PLACES", (tmp_path,))
    logits = np.zeros((2, 4, 3))
    logits[:, :, 0] = [[0, 30, 90, 2000], [0, 30, 90, 3000]]
    member = np.array([[True, False, True, False], [False, True, False, True]])
    signals = Signals.from_logits(logits, np.zeros(4, int), member)
    shipping.write(tmp_path / "cifar10", "far", signals, {"info": {}})
    read = examples.load_example("cifar10/far")
    for name in ("margin", "entropy", "modified_entropy"):
        assert np.isfinite(getattr(read, name)).all()
        order = np.argsort(getattr(signals, name)[0, 0], kind="stable")
        assert (np.diff(getattr(read, name)[0, 0][order]) >= 0).all()
    assert (np.diff(read.entropy[0, 0, :3]) < 0).all()  # 1e-12 and 1e-37 are not one number


@pytest.mark.parametrize("name", ["lira", "rmia", "nig", "base", "loss", "correctness"])
def test_results_are_those_of_the_full_arrays_far_below_the_printed_digit(written, name):
    read, signals = examples.load_example("cifar10/one"), written[1]
    got, wanted = (metrics.summary({name: score(name, s)}, n_resamples=20) for s in (read, signals))
    auc, wanted_auc = (metrics.by_attack(table, "auc")["value"] for table in (got, wanted))
    assert auc[name] == pytest.approx(wanted_auc[name], abs=2e-5)
    accuracy, wanted_one = (
        metrics.by_attack(table, "test_acc")["value"] for table in (got, wanted)
    )
    assert accuracy[name] == wanted_one[name]


def test_a_pool_with_fewer_models_shares_the_design_and_another_design_is_refused(written):
    place, signals = written
    fewer = signals.select(models=range(4))
    shipping.write(place, "fewer", fewer, {"info": {}})
    read = examples.load_example("cifar10/fewer")
    assert np.array_equal(read.member, signals.member[:4])
    assert list(examples.examples()) == ["cifar10/fewer", "cifar10/one"]
    with pytest.raises(ValueError, match="other labels or members"):
        shipping.write(place, "else", make(seed=1), {"info": {}})


def test_an_unknown_name_says_what_there_is(written):
    with pytest.raises(ValueError, match="'cifar10/onee'; did you mean 'cifar10/one'"):
        examples.load_example("cifar10/onee")
    with pytest.raises(ValueError, match=r"data set 'mnist'; there are cifar10$"):
        examples.load_example("mnist/one")
    with pytest.raises(ValueError, match=r"'cifar1'; did you mean 'cifar10'\?; there are cifar10$"):
        examples.load_example("cifar1/one")


def test_an_installation_that_lost_the_signals_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "PLACES", (tmp_path,))
    with pytest.raises(ValueError, match=r"cifar10, is missing; install mia_nb again") as raised:
        examples.load_example()
    assert "\n" not in str(raised.value)


def test_an_altered_file_and_another_format_are_refused(written):
    place, _ = written
    content = (place / "one.npz").read_bytes()
    (place / "one.npz").write_bytes(content[:-1] + b"x")
    with pytest.raises(ValueError, match="was altered"):
        examples.load_example("cifar10/one")
    record = json.loads((place / "manifest.json").read_text())
    (place / "manifest.json").write_text(json.dumps(record | {"format": 99}))
    with pytest.raises(ValueError, match="has format 99"):
        examples.load_example("cifar10/one")


def test_thumbnails_come_back_by_sample_number(written):
    x = np.random.default_rng(0).integers(0, 256, (40, 3, 32, 32), dtype=np.uint8)
    numbers = list(range(0, 400, 10))
    shipping.write_images(written[0], numbers, x)
    read = examples.thumbnails()
    assert list(read) == numbers
    assert all(np.array_equal(read[number], one) for number, one in zip(numbers, x, strict=True))


def test_the_shipped_signals_are_fifty_thousand_images_in_complementary_pairs():
    name = "cifar10/resnet14"
    signals, about = examples.load_example(name), examples.examples()[name]
    models = len(signals.margin)
    assert signals.shape == (models, 1, 50_000) and models % 2 == 0
    assert (signals.member.sum(1) == 25_000).all()
    assert (signals.member[::2] ^ signals.member[1::2]).all()
    assert np.bincount(signals.labels).tolist() == [5000] * 10
    for right, member, train, test in zip(
        signals.correct[:, 0],
        signals.member,
        about["train_accuracy"],
        about["test_accuracy"],
        strict=True,
    ):
        assert right[member].mean() == pytest.approx(train, abs=1e-4)
        assert right[~member].mean() == pytest.approx(test, abs=1e-4)
    assert about["info"]["recipe"]["model"] == "resnet14" and min(about["test_accuracy"]) > 0.78


def test_the_shipped_signals_resolve_rates_that_small_data_cannot():
    signals = examples.load_example("cifar10/resnet14")
    table = metrics.summary({"rmia": score("rmia", signals)}, (0.001,), n_resamples=10)
    row = metrics.by_attack(table, "tpr", 0.001).loc["rmia"]
    assert row["measurable"] and row["low"] > 0.002
    assert 0.57 < metrics.by_attack(table, "auc").loc["rmia", "value"] < 0.62


def test_shipped_thumbnails_are_images_of_many_samples():
    images = examples.thumbnails()
    assert len(images) == 400 and all(0 <= number < 50_000 for number in images)
    assert all(one.shape == (3, 32, 32) and one.std() > 0 for one in images.values())
    separated = separations(score("rmia", examples.load_example("cifar10/resnet14")))[0]
    assert set(map(int, np.argsort(-separated)[:48])) <= set(images)  # two pages of the explorer


def test_the_shipped_folder_is_small_enough_for_a_wheel():
    place = examples.PLACES[0] / "cifar10"
    assert sum(path.stat().st_size for path in place.iterdir()) < 25e6


def test_of_every_shipped_spiking_pool_operations_are_known_and_are_fewer_than_the_networks():
    shipped = {name: about["info"] for name, about in examples.examples().items()}
    ordinary = shipped["cifar10/fast-small"]["operations"]
    spiking = {name: info for name, info in shipped.items() if info.get("timesteps")}
    assert len(spiking) >= 3
    for name, info in spiking.items():
        counted = {word: np.array(counts) for word, counts in info["operations"].items()}
        models = len(examples.load_example(name).margin)
        assert all(len(counts) == models for counts in counted.values())
        energy = 4.6 * counted["multiply_accumulates"] + 0.9 * counted["accumulates"]
        np.testing.assert_allclose(counted["energy_nj"], energy / 1000, atol=1)
        assert counted["energy_nj"].max() < ordinary["energy_nj"][0] / 2
        if info["recipe"]["parent"]:
            assert info["made_from"]["model"] == info["base"]
