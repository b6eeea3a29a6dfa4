"""How long a training will take: said beforehand, and while it runs."""

import time

import pytest

from mia_nb import data, training
from mia_nb.cli import main
from mia_nb.training.progress import Bar, duration
from mia_nb.types import Recipe

SMALL = Recipe(num_models=4, epochs=10, batch=16, lr=0.05, model_args={"width": 4})


@pytest.fixture(scope="module")
def images():
    return data.load("synthetic:classes=4,n=600,size=8,channels=1,seed=1")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.44, "0.4 s"),
        (45, "45 s"),
        (89, "89 s"),
        (700, "12 min"),
        (7800, "2 h 10 min"),
        (3600, "1 h 00 min"),
        (273600, "3 d 4 h"),
    ],
)
def test_seconds_are_said_as_one_would_say_them(seconds, said):
    assert duration(seconds) == said


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["plain", "stacked:2"])
def test_an_estimate_is_near_to_what_training_takes(strategy, images, tmp_path):
    slow = Recipe(**{**SMALL.to_json(), "model": "toys:fused", "model_args": {"place": str(tmp_path), "pause": 0.02}})
    told = training.estimate(slow, images, workers=1, strategy=strategy)
    begun = time.perf_counter()
    training.train_pool(slow, images, root=tmp_path, workers=1, strategy=strategy, progress=False)
    taken = time.perf_counter() - begun
    assert told["steps"] == 300 // 16 and told["groups"] == (4 if strategy == "plain" else 2)
    assert 0.5 < told["seconds"] / taken < 1.5
    assert f"4 toys:fused, 10 epochs: about {duration(told['seconds'])} on this device" in told["text"]


def test_a_long_epoch_is_measured_over_some_of_its_steps(images, tmp_path):
    slow = Recipe(**{**SMALL.to_json(), "model": "toys:fused", "model_args": {"place": str(tmp_path), "pause": 0.02}})
    whole = training.estimate(slow, images, workers=1, strategy="plain")
    part = training.estimate(slow, images, workers=1, strategy="plain", limit=0.15)
    assert part["steps"] < whole["steps"] and 0.5 < part["seconds"] / whole["seconds"] < 2


@pytest.mark.parametrize("changes", [{"split": "given"}, {"split": "bernoulli"}, {"defense": "dp_sgd"}, {"parent": "0" * 64}])
def test_whatever_the_split_defense_or_origin_there_is_an_estimate(changes, images):
    assert training.estimate(Recipe(**{**SMALL.to_json(), **changes}), images, workers=2, limit=0.1)["seconds"] > 0


def test_the_bar_says_how_long_it_will_take_once_every_worker_was_heard(capsys, monkeypatch):
    monkeypatch.setenv("MIA_NB_MODE", "batch")
    with Bar("tinycnn", list(range(8)), 100, {"stacked": True, "group": 2, "threads": 1}, 2, True) as bar:
        bar.begun -= 10  # ten seconds ago
        bar.update([0, 1], 1, 0.5)
        assert "about" not in capsys.readouterr().out
        bar.update([2, 3], 1, 0.5)  # 4 of 800 model-epochs in 10 s
        assert "8 tinycnn, 100 epochs: about 33 min on this device" in capsys.readouterr().out
        bar.update([0, 1], 40, 0.5)  # 84 in 10 s: 85 s left
        assert "10 %, loss 0.5, 85 s left" in capsys.readouterr().out
        bar.update([0, 1], -40, 0.5)  # begun anew: said once
        bar.update([0, 1], 40, 0.5)
        assert "about" not in capsys.readouterr().out


def test_the_command_line_estimates_without_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = ["dataset=synthetic:n=200,size=8", "num_models=2", "model_args={width: 4}", "epochs=3"]
    assert main(["estimate", *(word for text in given for word in ("-p", text))]) == 0
    assert "2 tinycnn, 3 epochs: about" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert main(["estimate", "-p", "epochs=0"]) == 2
