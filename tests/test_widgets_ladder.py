"""The privacy ladder's sliders against the functions that its rows quote, on stored pools with and
without coins.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from worlds import bernoulli, pairs, world

from mia_nb import accounting, auditing, store
from mia_nb.auditing.ladder import LABELS, number
from mia_nb.widgets.ladder import (
    ACCOUNTANTS,
    ATTACKS,
    DERIVED,
    FORMULAS,
    NO_RECIPE,
    NOT_COMPARED,
    claims,
    ladder,
)
from mia_nb.widgets.stored import Source

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
GDP = "GDP Poisson"
KEYS = itertools.count()


def pool(root, design=bernoulli, *, leak=0.0, flow=FLOW, samples=400, population=40, **recipe):
    """A source as the store gives it: recipe and masks of its pool on disk, signals in memory."""
    signals = world(6, samples, leak=leak, population=population, design=design, seed=3)
    split = "bernoulli" if design is bernoulli else "pairs"
    facts = {
        "batch": 20,
        "epochs": 5,
        "split": split,
        "population": population,
        "parent": None,
        "defense": None,
    } | recipe
    key = f"{next(KEYS):064x}"
    folder = store.open_folder(root, "pool", "toy", key[::-1], facts)
    folder.write_array("member.npy", signals.member)
    info = {"draws": "plain"} | ({"flow": flow} if flow else {})
    return Source(f"pool {key[-2:]}", signals, pool=folder, info=info)


def rows(explorer):
    return explorer.view.table.set_index("label")


def test_rows_at_the_trained_values_are_those_of_the_ladder_with_the_same_arguments(tmp_path):
    source = pool(tmp_path, leak=1.0)
    explorer = ladder([source])
    explorer.set(source=source.label, accountant=GDP)
    record = auditing.audit(
        auditing.score_split(explorer.values["attack"], source.signals),
        delta=1e-5,
        attempts=len(ATTACKS),
    )
    nominal = {"sample_rate": 20 / 200, "steps": 5 * 10}
    wanted = auditing.ladder(
        delta=1e-5, flow=FLOW, nominal=nominal, audited=record, accountant="gdp"
    ).set_index("label")
    for column in ("shown", "verdict", "method", "remark"):
        assert rows(explorer)[column].to_list() == wanted[column].to_list()
    assert record.epsilon > 0.3 and "at least" in rows(explorer).loc[LABELS[4], "shown"]


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("delta", [1e-7, 1e-4, 1e-2])
def test_moving_delta_moves_row_1_as_the_accountant_says(tmp_path, accountant, delta):
    how, sampling = ACCOUNTANTS[accountant]
    explorer = ladder()
    explorer.set(delta=delta, accountant=accountant)
    spent = {"noise_multiplier": 2, "sample_rate": 512 / 25000, "steps": 14_700, "delta": delta}
    epsilon = accounting.epsilon(**spent, accountant=how, sampling=sampling)
    assert float(rows(explorer).loc[LABELS[0], "shown"]) == pytest.approx(epsilon, rel=0.006)
    assert f"(delta {delta:g}, add/remove one record)" in explorer.view.sentence


def test_without_a_pool_the_studys_setting_gives_its_published_number():
    explorer = ladder()
    assert explorer.view.sentence.startswith(
        "Claimed 7.38 (nominal) - proved: none - not audited (delta 1e-05"
    )
    assert rows(explorer).loc[LABELS[1], "shown"] == "2.42 (assumed L)"
    mu = accounting.release_mu(k=0.5, steps=16, T=1.0, lipschitz=1.0, clip=0.5)
    assert rows(explorer).loc[LABELS[2], "shown"] == number(
        accounting.gaussian_epsilon(mu, 1e-5), up=True
    )
    assert "nobody measured" in explorer.view.note


def test_sigma_epochs_and_l_move_the_rows_that_rest_on_them_and_no_others():
    explorer = ladder()
    explorer.set(accountant=GDP)
    for control, value, moved in (
        ("sigma", 1.0, {0, 1, 2}),
        ("epochs", 30, {0}),
        ("lipschitz", 3.0, {1, 2}),
    ):
        before = rows(explorer)["shown"].to_list()
        start = explorer.values[control]
        explorer.set(**{control: value})
        after = rows(explorer)["shown"].to_list()
        assert {i for i in range(5) if before[i] != after[i]} == moved, control
        explorer.set(**{control: start})
        assert rows(explorer)["shown"].to_list() == before


def test_half_the_sigma_is_half_the_k(tmp_path):
    source = pool(tmp_path)
    explorer = ladder([source])
    explorer.set(sigma=1.0)
    method = rows(explorer).loc[LABELS[2], "method"]
    mu = accounting.release_mu(k=0.25, steps=4, T=0.25, lipschitz=1.5, clip=0.5)
    assert f"mu = {mu:.4g}," in method


def test_beside_moved_values_the_audit_is_marked_as_the_stored_trainings_and_refutes_nothing(
    tmp_path,
):
    source = pool(tmp_path, leak=6.0, epochs=1)
    explorer = ladder([source])
    explorer.set(accountant=GDP)
    assert rows(explorer).loc[LABELS[0], "verdict"].startswith("refuted")
    assert "which refutes the nominal value" in explorer.view.sentence
    for move in ({"sigma": 4.0}, {"epochs": 2}):
        explorer.set(**{"sigma": 2.0, "epochs": 1} | move)
        found = rows(explorer)
        assert found.loc[LABELS[0], "verdict"] == NOT_COMPARED
        assert (
            not found["verdict"].str.startswith("refuted").any()
            and "refutes" not in explorer.view.sentence
        )
        assert (
            "stored training" in found.loc[LABELS[4], "shown"]
            and "stored training" in explorer.view.sentence
        )
        assert "not compared" in explorer.view.figures["roc"]["layout"]["title"]["text"]
        assert "moved: " in explorer.view.note
    explorer.set(epochs=1, sigma=2.0)
    assert rows(explorer).loc[LABELS[0], "verdict"].startswith("refuted")


def test_a_pool_of_exact_pairs_is_not_audited_and_says_why(tmp_path):
    source = pool(tmp_path, pairs, leak=2.0)
    explorer = ladder([source])
    last = rows(explorer).loc[LABELS[4]]
    assert (
        last["shown"] == "not audited"
        and "split='bernoulli'" in last["remark"]
        and "no audit: " in explorer.view.note
    )
    assert "not audited" in explorer.view.sentence


def test_dp_sgd_has_the_guarantee_of_its_accountant_and_its_noise_multiplier_on_the_slider(
    tmp_path,
):
    facts = {"defense": "dp_sgd", "defense_args": {"noise_multiplier": 1.5, "max_grad_norm": 1.0}}
    explorer = ladder([pool(tmp_path, flow=None, **facts)])
    assert explorer.controls["sigma"].description == "noise" and explorer.values["sigma"] == 1.5
    for noise in (1.5, 3.0):
        explorer.set(sigma=noise)
        shown = rows(explorer).loc[LABELS[3], "shown"]
        spent = {"noise_multiplier": noise, "sample_rate": 0.1, "steps": 50, "delta": 1e-5}
        epsilon = accounting.epsilon(**spent, accountant="rdp")
        assert epsilon <= float(shown) <= 1.01 * epsilon
        assert f"proved: {shown}" in explorer.view.sentence
    assert "not those that its settings took" in explorer.view.note


def test_noise_between_the_marks_of_the_slider_is_on_it_and_counts_as_not_moved(tmp_path):
    facts = {"defense": "dp_sgd", "defense_args": {"noise_multiplier": 1.437}}
    source = pool(tmp_path, flow=None, **facts)
    explorer = ladder([source])
    explorer.set(source=FORMULAS)
    explorer.set(source=source.label)
    assert (
        1.437 in dict(explorer.controls["sigma"].options).values()
        and "moved" not in explorer.view.note
    )
    explorer.set(sigma=1.45)
    assert "moved: noise multiplier 1.45, trained with 1.437" in explorer.view.note


def test_a_derived_pool_has_no_number_that_counts_its_own_steps_alone(tmp_path):
    facts = {"defense": "dp_sgd", "defense_args": {"noise_multiplier": 1.5}, "parent": "f" * 64}
    explorer = ladder([pool(tmp_path, **facts)])
    found = rows(explorer)
    assert (
        found.loc[LABELS[0], "shown"].startswith("not given")
        and found.loc[LABELS[3], "shown"] == "none (infinite)"
    )
    assert DERIVED in explorer.view.note and explorer.controls["epochs"].disabled


def test_signals_without_a_recipe_still_get_their_roc_and_audit():
    explorer = ladder([Source("mine", world(6, 400, leak=1.0, design=bernoulli))])
    explorer.set(source="mine")
    assert NO_RECIPE in explorer.view.note and "at least" in explorer.view.sentence
    assert explorer.controls["sigma"].disabled and explorer.controls["epochs"].disabled


def test_noise_off_at_inference_leaves_no_release_bound(tmp_path):
    source = pool(tmp_path)
    assert rows(ladder([source])).loc[LABELS[2], "shown"] != "none (infinite)"
    source.info["noise"] = False
    assert rows(ladder([source])).loc[LABELS[2], "remark"] == "noise is off at inference"


def test_curves_over_the_roc_are_named_nominal_and_allow_what_the_formula_says(tmp_path):
    explorer = ladder([pool(tmp_path)])
    explorer.set(accountant=GDP)
    spent = {"noise_multiplier": 2.0, "sample_rate": 0.1, "steps": 50, "delta": 1e-5}
    epsilon = accounting.epsilon(**spent, accountant="gdp")
    lines = [
        trace
        for trace in explorer.view.figures["roc"]["data"]
        if "nominal epsilon" in (trace.get("name") or "")
    ]
    assert {trace["name"] for trace in lines} == {
        f"nominal epsilon {epsilon:.3g} (paper's accounting)",
        f"Gaussian of nominal epsilon {epsilon:.3g} (paper's accounting)",
    }
    for trace in lines:
        for x, y in list(zip(trace["x"], trace["y"], strict=True))[::40]:
            if trace["name"].startswith("Gaussian"):
                wanted = (
                    norm.cdf(norm.ppf(x) + accounting.gaussian_mu(epsilon, 1e-5)) if x < 1 else 1.0
                )
            else:
                wanted = min(
                    math.exp(epsilon) * x + 1e-5, 1 - math.exp(-epsilon) * (1 - 1e-5 - x), 1
                )
            assert y == pytest.approx(wanted, abs=1e-6)


def test_where_nothing_is_claimed_the_curves_are_for_reference(tmp_path):
    source = pool(tmp_path, flow=None)
    explorer = ladder([source])
    table = auditing.ladder(delta=1e-5)
    assert list(claims(table)) == ["for reference: epsilon 1", "for reference: epsilon 8"]
    assert "Claimed: nothing" in explorer.view.sentence
    assert "(for reference: epsilon 8)" in explorer.view.figures["roc"]["layout"]["title"]["text"]


def test_a_pool_drawn_by_coins_with_noise_is_shown_first(tmp_path):
    sources = [pool(tmp_path, pairs), pool(tmp_path, flow=None), pool(tmp_path)]
    assert ladder(sources).values["source"] == sources[2].label
    assert ladder(sources[:2]).values["source"] == sources[1].label
    assert ladder().values["source"] == FORMULAS


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, np.nan])
def test_a_delta_that_is_none_is_refused(delta):
    with pytest.raises(ValueError, match="wanted a number above 0 and below 1"):
        ladder(delta=delta)


def test_a_delta_between_the_marks_is_kept():
    assert "(delta 3e-06, " in ladder(delta=3e-6).view.sentence


@pytest.mark.parametrize(("design", "audit"), [(pairs, False), (bernoulli, True)])
def test_one_model_of_a_pool_of_pairs_is_not_audited_though_its_mask_alone_looks_like_coins(
    tmp_path, design, audit
):
    whole = pool(tmp_path, design, leak=2.0)
    one = Source(
        "one", whole.signals.select(models=[0]), pool=whole.pool, info=whole.info | {"models": [0]}
    )
    last = rows(ladder([one])).loc[LABELS[4]]
    assert (last["shown"] != "not audited") == audit
    assert audit or "split='pairs' are no fair coins" in last["remark"]


def test_a_first_pool_that_cannot_be_read_is_told_in_place_and_the_others_are_reached(tmp_path):
    hidden, altered, good = (pool(tmp_path, leak=1.0) for _ in range(3))
    hidden._signals = replace(hidden.signals, member=None)
    del hidden.signals
    (altered.pool.path / "member.npy").write_bytes(b"other bytes")
    explorer = ladder([hidden, altered, good])
    assert (
        explorer.view is None and "membership" in explorer.error and "report" not in explorer.error
    )
    explorer.controls["source"].value = altered.label
    assert "member.npy is missing, truncated or altered" in explorer.error
    assert (
        "audited: at least" in explorer.set(source=good.label).sentence
        and explorer.values["epochs"] == 5
    )
