"""How long a training will take: said beforehand, and while it runs."""

import pytest
import torch

from mia_nb import data
from mia_nb.checks import duration
from mia_nb.models.solvers import BlownUp
from mia_nb.training import execution, progress
from mia_nb.training.placing import membership
from mia_nb.training.plans import plan_of
from mia_nb.training.progress import training_bar
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


CPU = {"device": "cpu", "stacked": True, "group": 2, "threads": 1, "compiled": False}


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test turns."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


def test_a_batch_run_says_each_tenth_that_is_done_and_how_long_the_rest_takes(
    capsys, monkeypatch, clock
):
    monkeypatch.setenv("MIA_NB_MODE", "batch")
    with training_bar("tinycnn", list(range(8)), 100, CPU, 2, True) as report:
        clock[0] += 300  # a queue, start-up
        report([0, 1], 1, 0.5)
        clock[0] += 200
        report([0, 1], 42, 0.5)
        report([2, 3], 41, 0.5)  # 164 in 200 s: 634 left
        assert "20 %, loss 0.5, 13 min left" in capsys.readouterr().out


def test_epochs_of_an_earlier_run_do_not_count_as_speed(capsys, monkeypatch, clock):
    monkeypatch.setenv("MIA_NB_MODE", "batch")
    with training_bar("resnet18", [0, 1], 200, CPU | {"group": 1}, 2, True) as report:
        report([0, 1], 150, 0.5)
        clock[0] += 1000
        report([0, 1], 160, 0.5)  # 20 in 1,000 s; 80 left
        assert "80 %, loss 0.5, 67 min left" in capsys.readouterr().out.replace(
            "1 h 07 min", "67 min"
        )
        report([1], 1, 0.5)  # its worker died, and there was no part file
        report([1], 200, 0.5)
        report([0], 200, 0.5)
        assert "100 %" in capsys.readouterr().out


def test_a_live_bar_counts_epochs_of_models_and_shows_the_loss(capsys, monkeypatch):
    monkeypatch.setenv("MIA_NB_MODE", "live")
    with training_bar("tinycnn", [0, 1], 5, CPU, 2, True) as report:
        report([0, 1], 5, 0.25)
    shown = capsys.readouterr().err
    assert "training 2 tinycnn (stacked:2, 2 x 1 threads)" in shown
    assert "10/10" in shown and "loss=0.25" in shown
    with training_bar("tinycnn", [0, 1], 5, CPU, 2, False) as report:
        report([0, 1], 5, 0.25)
    assert capsys.readouterr().err == ""


def test_a_training_is_estimated_from_its_fastest_step_and_draws_nothing(images, monkeypatch):
    monkeypatch.setattr(execution, "step_seconds", lambda *_: [0.7, 0.5, 0.9])
    member, population = membership(SMALL, images, None)
    plan = plan_of(SMALL, images, member, population)
    before = torch.get_rng_state()
    # half of 600 images in batches of 16: 18 steps an epoch
    assert execution.seconds_alone(plan) == pytest.approx(0.5 * 18 * 10 * 4)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_estimate_of_a_model_that_blows_up_at_once_is_nothing(images, monkeypatch):
    def blows_up(*_):
        raise BlownUp("no step size")

    monkeypatch.setattr(execution, "step_seconds", blows_up)
    member, population = membership(SMALL, images, None)
    assert execution.seconds_alone(plan_of(SMALL, images, member, population)) == 0
