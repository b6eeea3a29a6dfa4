"""How long a training will take: said beforehand, and while it runs."""

import pytest

from mia_nb import data
from mia_nb.checks import duration
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
