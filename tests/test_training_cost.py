"""How long a training will take: said beforehand, and while it runs."""

import time

import numpy as np
import pytest

from mia_nb import data, training
from mia_nb.checks import duration
from mia_nb.cli import main
from mia_nb.training import execution
from mia_nb.training.execution import Bar
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
    slow = Recipe(
        **{
            **SMALL.to_json(),
            "model": "toys:fused",
            "model_args": {"place": str(tmp_path), "pause": 0.02},
        }
    )
    told = training.estimate(slow, images, workers=1, strategy=strategy)
    begun = time.perf_counter()
    training.train_pool(slow, images, root=tmp_path, workers=1, strategy=strategy, progress=False)
    taken = time.perf_counter() - begun
    assert told["steps"] == 300 // 16 and told["groups"] == (4 if strategy == "plain" else 2)
    assert 0.4 < told["seconds"] / taken < 2
    assert (
        f"4 toys:fused, 10 epochs: about {duration(told['seconds'])} on this device" in told["text"]
    )


@pytest.mark.slow
def test_a_long_epoch_is_measured_over_some_of_its_steps(images, tmp_path):
    slow = Recipe(
        **{
            **SMALL.to_json(),
            "model": "toys:fused",
            "model_args": {"place": str(tmp_path), "pause": 0.02},
        }
    )
    whole = training.estimate(slow, images, workers=1, strategy="plain")
    part = training.estimate(slow, images, workers=1, strategy="plain", limit=0.15)
    assert part["steps"] < whole["steps"] and 0.5 < part["seconds"] / whole["seconds"] < 2


@pytest.mark.parametrize(
    "changes",
    [{"split": "bernoulli"}, {"defense": "dp_sgd"}, {"parent": "0" * 64}, {"schedule": "plateau"}],
)
def test_whatever_the_split_defense_or_origin_there_is_an_estimate(changes, images):
    assert (
        training.estimate(Recipe(**{**SMALL.to_json(), **changes}), images, workers=2, limit=0.1)[
            "seconds"
        ]
        > 0
    )


def test_an_estimate_for_given_members_and_one_of_few_steps(images):
    given = Recipe(**{**SMALL.to_json(), "split": "given", "num_models": 3})
    member = np.random.default_rng(0).random((3, 600)) < 0.5
    assert training.estimate(given, images, member=member, workers=1, limit=0.1)["seconds"] > 0
    few = Recipe(**{**SMALL.to_json(), "split": "bernoulli", "batch": 290})
    assert training.estimate(few, images, workers=1, limit=0.1)["steps"] == 1


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"batch": 400}, {}, "batch=400 is more than"),
        ({"optimizer_args": {"foo": 1}}, {}, "do not fit sgd"),
        ({"loss": "tet"}, {}, "wants logits for each time step"),
        ({}, {"workers": "dask:8"}, "wanted a whole number"),
        ({}, {"workers": 0}, "this machine"),
    ],
)
def test_an_estimate_refuses_what_training_refuses(changes, options, message, images):
    with pytest.raises(ValueError, match=message):
        training.estimate(Recipe(**{**SMALL.to_json(), **changes}), images, **options)


CPU = {"device": "cpu", "stacked": True, "group": 2, "threads": 1}


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test turns."""
    now = [100.0]
    monkeypatch.setattr(execution.time, "perf_counter", lambda: now[0])
    return now


def test_the_bar_says_how_long_it_will_take_once_every_worker_trained_an_epoch(
    capsys, monkeypatch, clock
):
    monkeypatch.setenv("MIA_NB_MODE", "batch")
    with Bar("tinycnn", list(range(8)), 100, CPU, 2, True) as bar:
        clock[0] += 300  # a queue, start-up
        bar.update([0, 1], 1, 0.5)
        bar.update([2, 3], 1, 0.5)
        assert "about" not in capsys.readouterr().out
        clock[0] += 10
        bar.update([0, 1], 2, 0.5)  # 4 model-epochs in 10 s, of 800
        assert "8 tinycnn, 100 epochs: about 33 min on this device" in capsys.readouterr().out
        clock[0] += 190
        bar.update([0, 1], 42, 0.5)
        bar.update([2, 3], 41, 0.5)  # 164 in 200 s: 634 left
        assert "20 %, loss 0.5, 13 min left" in capsys.readouterr().out


def test_epochs_of_an_earlier_run_and_of_a_unit_that_begins_anew_do_not_count_as_speed(
    capsys, monkeypatch, clock
):
    monkeypatch.setenv("MIA_NB_MODE", "batch")
    with Bar("resnet18", [0, 1], 200, CPU | {"group": 1, "stacked": False}, 2, True) as bar:
        bar.update([0], 150, 0.5)
        bar.update([1], 150, 0.5)
        capsys.readouterr()
        clock[0] += 100
        bar.update([0], 151, 0.5)
        bar.update([1], 151, 0.5)  # 2 in 100 s; 98 left
        for epoch in range(152, 161):
            clock[0] += 100
            bar.update([0], epoch, 0.5)
            bar.update([1], epoch, 0.5)
        assert "80 %, loss 0.5, 67 min left" in capsys.readouterr().out.replace(
            "1 h 07 min", "67 min"
        )
        bar.update([1], 1, 0.5)  # its worker died, and there was no part file
        assert bar.done == 161 and bar.bar.total == 400
        for epoch in range(2, 201):
            bar.update([1], epoch, 0.5)
        for epoch in range(161, 201):
            bar.update([0], epoch, 0.5)
        said = capsys.readouterr().out
        assert bar.done == 400 and "100 %" in said and "-" not in said.replace("one-", "")


def test_the_command_line_estimates_without_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = ["dataset=synthetic:n=200,size=8", "num_models=2", "model_args={width: 4}", "epochs=3"]
    assert main(["estimate", *(word for text in given for word in ("-p", text))]) == 0
    assert "2 tinycnn, 3 epochs: about" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert main(["estimate", "-p", "epochs=0"]) == 2
