"""The privacy ladder's controls against the functions that its rows quote."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from worlds import bernoulli, world

from mia_nb import accounting, auditing
from mia_nb.auditing.ladder import LABELS
from mia_nb.widgets import ladder as ladder_of_networks
from mia_nb.widgets.ladder import ACCOUNTANTS, AS_TRAINED, rows

FLOW = {
    "k": 0.5,
    "sigma": 2.0,
    "noise_sd": 1.0,
    "T": 0.25,
    "steps": 4,
    "method": "euler",
    "clip": 0.5,
    "lipschitz": 1.5,
}
SAMPLING = {"sample_rate": 0.1, "steps": 50}
NOISY = {"flow": FLOW, "nominal": SAMPLING}
PRIVATE = {"flow": None, "nominal": SAMPLING, "dp_sgd": {"noise_multiplier": 1.5, **SAMPLING}}
GDP = "GDP Poisson"


@pytest.fixture(scope="module")
def split():
    signals = world(6, 400, leak=6.0, population=40, design=bernoulli, seed=3)
    return auditing.score_split("rmia", signals)


@pytest.fixture
def displayed(monkeypatch) -> list:
    """What is displayed from here on."""
    kept = []
    monkeypatch.setattr(sys.modules["mia_nb.widgets.ladder"], "display", kept.append)
    return kept


def shown(*args) -> list[str]:
    return rows(*args)["shown"].to_list()


def test_rows_as_trained_are_those_of_the_ladder_with_the_same_arguments(split):
    audited = auditing.audit(split, delta=1e-5)
    found = rows(NOISY, 1, 1, 1e-5, GDP, audited)
    wanted = auditing.ladder(**NOISY, delta=1e-5, audited=audited, accountant="gdp")
    assert found.equals(wanted) and found.loc[4, "shown"].startswith("at least")


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("delta", [1e-7, 1e-2])
def test_noise_steps_and_delta_move_row_1_as_the_accountant_says(accountant, delta):
    method, sampling = ACCOUNTANTS[accountant]
    spent = {"noise_multiplier": 4.0, "sample_rate": 0.1, "steps": 100, "delta": delta}
    epsilon = accounting.epsilon(**spent, accountant=method, sampling=sampling)
    table = rows(NOISY, 2, 2, delta, accountant)
    assert table.loc[0, "epsilon"] == pytest.approx(epsilon) and table.loc[0, "delta"] == delta


def test_noise_and_steps_move_the_rows_that_rest_on_them_and_no_others():
    trained = shown(NOISY, 1, 1, 1e-5, GDP)
    for moved, wanted in (((0.5, 1), {0, 1, 2}), ((1, 4), {0})):
        now = shown(NOISY, *moved, 1e-5, GDP)
        assert {i for i in range(5) if now[i] != trained[i]} == wanted


def test_the_guarantee_of_dp_sgd_is_rdps_at_the_noise_multiplier_that_is_set():
    for noise in (1, 2):
        spent = {"noise_multiplier": 1.5 * noise, **SAMPLING, "delta": 1e-5}
        epsilon = accounting.epsilon(**spent, accountant="rdp")
        assert rows(PRIVATE, noise, 1, 1e-5, GDP).loc[3, "epsilon"] == pytest.approx(epsilon)


@pytest.mark.parametrize("name", ["noisy", "private"])
def test_in_batch_mode_the_first_network_stands_as_it_was_trained(
    name, split, displayed, monkeypatch
):
    monkeypatch.setenv("MIA_NB_MODE", "batch")
    networks = {"noisy": NOISY, "private": PRIVATE}
    ladder_of_networks({name: networks[name], "other": NOISY}, {name: split})
    words, figure, table = displayed
    assert f"{name}, noise x 1, steps x 1, delta 1e-05" in words.data
    assert "audited: at least" in figure.layout.title.text.replace("<br>", " ")
    assert table.index.to_list() == list(LABELS)


def test_beside_a_training_that_did_not_take_place_no_audit_stands(split, displayed, monkeypatch):
    monkeypatch.delenv("MIA_NB_MODE", raising=False)
    panel = ladder_of_networks({"a": NOISY}, {"a": split}, delta=3e-6)
    _, noise, steps, delta, _ = panel.kwargs_widgets
    assert delta.value == 3e-6  # a delta between the marks is kept
    panel.update()
    assert displayed[-1].loc[LABELS[4], "shown"].startswith("at least")
    for control, factor in ((noise, 2), (steps, 0.5)):
        control.value = factor
        last = displayed[-1].loc[LABELS[4]]
        assert last["shown"] == "not audited" and last["note"] == AS_TRAINED
        assert not displayed[-1]["verdict"].str.startswith("refuted").any()
        control.value = 1
    assert displayed[-1].loc[LABELS[4], "shown"].startswith("at least")


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, np.nan])
def test_a_delta_that_is_none_is_refused(delta):
    with pytest.raises(ValueError, match="wanted a number above 0 and below 1"):
        ladder_of_networks({"a": NOISY}, delta=delta)


def test_no_network_is_refused():
    with pytest.raises(ValueError, match="networks is empty"):
        ladder_of_networks({})
