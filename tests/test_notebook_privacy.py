"""05_nsde_privacy from a clean kernel at a tiny size: its numbers are those of stored pools, its
words are allowed ones.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from test_notebook_dropout import grounds, table
from test_notebook_neural_de import picture, pictures, title
from test_notebooks import Run
from test_wording import found

from mia_nb import accounting, auditing, query, score, training
from mia_nb.auditing.ladder import LABELS, number

pytestmark = [pytest.mark.notebook, pytest.mark.slow]
SIZE = {
    "limit": 260,
    "population": 20,
    "num_models": 4,
    "network": {"width": 4},
    "flow": {"steps": 2},
    "epochs": 2,
    "snapshots": [1],
    "queries": 2,
    "n_resamples": 50,
    "control_resamples": 5,
    "batches": [512, 128],
    "marks": [10, 100],
    "deltas": [1e-3, 1e-5],
    "attacks": ["rmia", "loss"],
    "trials": 3,
    "families": [
        {"model": "sdenet", "model_args": {"k": 0.5, "T": 0.125}},
        {"model": "sdenet", "model_args": {"k": 0.5, "T": 0.125, "clip": 2.0, "lipschitz": 1.0}},
        {"model": "resnet14"},
    ],
    "private": {"model": "tinycnn", "model_args": {"width": 4}, "epsilon": 8.0},
    "clipped": {"batch": 40, "epochs": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("privacy")


@pytest.fixture(scope="module")
def ran(folder) -> Run:
    return Run("05_nsde_privacy", folder / "results", folder / "out.ipynb", answer=True, **SIZE)


@pytest.fixture(scope="module")
def pools(folder, ran) -> list[training.pool.Pool]:
    return [
        training.load_pool(path.name, folder / "results")
        for path in (folder / "results").glob("pool-*")
    ]


def pool_of(pools, **wanted) -> training.pool.Pool:
    (one,) = [
        pool
        for pool in pools
        if all(
            {"defense": pool.recipe.defense, **pool.recipe.model_args}.get(name) == value
            for name, value in wanted.items()
        )
    ]
    return one


def test_no_cell_fails_or_warns_and_nothing_said_is_a_forbidden_phrase(ran):
    for cell, outputs in ran.outputs.items():
        for output in outputs:
            assert output["output_type"] != "error" and output.get("name") != "stderr", (
                cell,
                output,
            )
            assert not found(
                re.sub(r"<[^>]+>", " ", json.dumps(output.get("data", output.get("text", ""))))
            )


def test_the_nominal_numbers_are_the_accountants(ran):
    rows = {row[0]: row[1:] for row in table(ran.html("order"))[2:]}
    setting = {"noise_multiplier": 2.0, "sample_rate": 512 / 25000, "steps": 4900, "delta": 1e-5}
    wanted = [
        accounting.epsilon(**setting, accountant="gdp"),
        accounting.epsilon(**setting, accountant="gdp", sampling="uniform"),
        *(accounting.epsilon(**setting, accountant=name) for name in ("prv", "rdp")),
    ]
    assert [float(text) for text in rows["100"]] == pytest.approx(wanted, abs=6e-4)
    assert "Nominal epsilon along training" in title(picture(ran, "accounting"))
    assert "falls as delta grows" in title(picture(ran, "sweep"))


def test_the_counterexamples_show_what_the_text_says(ran):
    rows = {
        float(row[0]): [float(text) for text in row[1:]]
        for row in table(ran.html("counter-drift"))[2:]
    }
    assert rows[2.0] == [0.0, 1.99] and rows[0.1][0] == 0 and rows[0.1][1] > 90
    lines = ran.text("counter-gradient").strip().splitlines()
    assert [line.split(":")[0] for line in lines] == ["sigma 2", "sigma 2000"]
    for line in lines:
        error, said, true = re.search(
            r"largest error (\S+); label said (\S+), is (\S+)", line
        ).groups()
        assert float(error) < 1e-5 and said == true


def test_every_ladder_has_the_five_labels_and_the_values_of_its_pool(ran, pools):
    html = ran.html("ladder-tables")
    assert [
        html.count(f">{label.replace(chr(39), '&#x27;')}<") or html.count(f">{label}<")
        for label in LABELS
    ] == [4] * 5
    private = pool_of(pools, defense="dp_sgd")
    spent = {
        "noise_multiplier": private.recipe.defense_args["noise_multiplier"],
        **private.sampling,
    }
    epsilon = accounting.epsilon(**spent, delta=1e-5)
    # as many trials as were counted
    three = accounting.epsilon(**{**spent, "steps": 3 * spent["steps"]}, delta=1e-5)
    assert (
        f">{number(three, up=True)}<" in html and html.count("none (infinite)") == 3 and epsilon < 8
    )
    bounded = pool_of(pools, lipschitz=1.0)
    certified = training.sensitivity(bounded)["certified"].max()
    mu = accounting.release_mu(k=0.5, steps=2, T=0.125, lipschitz=certified, clip=2.0, queries=2)
    assert f">{number(accounting.gaussian_epsilon(mu, 1e-5), up=True)}" in html
    assert "needs clipped h0" in html  # the unbounded one has none
    assert title(picture(ran, "ladder")).startswith("What is claimed, proved and audited of 4 ")
    both = re.search(r": (\S+) for one training, (\S+) for 3", ran.text("tuned")).groups()
    assert [float(text) for text in both] == pytest.approx([epsilon, three], abs=6e-3)


def test_the_audits_are_those_of_the_stored_pools_with_every_attack_paid_for(ran, pools):
    pool = pool_of(pools, defense=None, width=4, steps=None)
    signals = query(pool, pool.images(), progress=False)
    rows = [row for row in table(ran.html("audits"))[2:] if row[0].startswith("ResNet-14")]
    assert [row[1] for row in rows] == ["RMIA", "loss threshold"]
    for row, attack in zip(rows, ("rmia", "loss"), strict=True):
        one = auditing.audit(auditing.score_split(attack, signals), delta=1e-5, attempts=2)
        assert [float(text) for text in row[2:]] == pytest.approx(
            [one.epsilon, one.at_most, one.runs, one.canaries, one.guesses, one.correct, one.alpha],
            abs=6e-5,
        )
        assert one.alpha == pytest.approx(0.05 / 2 / len(one.tried))  # attacks, numbers of guesses


def test_accuracy_for_a_nominal_epsilon_is_drawn_with_its_epochs(ran, pools):
    outputs = [output["data"] for output in ran.outputs["utility"] if "data" in output]
    drawn = [y for one in pictures(ran, "utility") for trace in one["data"] for y in trace["y"]]
    for pool in (pool for pool in pools if pool.recipe.model == "sdenet"):
        signals = query(pool, pool.images(), queries=2, progress=False)
        train, test = score("loss", signals).accuracy.mean(0)
        assert np.isclose(drawn, test, atol=1e-12).any()  # of non-members, not of members
        assert not np.isclose(drawn, train, atol=1e-12).any() or abs(train - test) < 1e-9
    assert len(outputs) == 2  # one picture for each of the two stochastic networks
    assert "nominal epsilon" in json.dumps(outputs[0]) and "epoch" in json.dumps(outputs[0])


def test_claims_are_never_that_training_is_private(ran):
    (verdict,) = (row[1] for row in table(ran.html("claims"))[1:] if row[0].startswith("D14. "))
    assert verdict in ("not established", "does not hold")
    assert any("none (infinite)" in phrase for _, _, phrase in grounds(ran))


def test_the_doubts_are_told_and_the_chain_is_tested(ran):
    assert ran.text("self-test").startswith("negative control passed")
    rows = {row[0]: row[1] for row in table(ran.html("doubts"))[1:]}
    assert rows["the negative control passed"] == "holds"
    assert rows["every stochastic network was queried 16 times or more"] == "check failed"


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"attacks": ["rmi"]}, "did you mean 'rmia'"),
        ({"num_models": 4, "attacks": ["lira_global"]}, "take 6 models or more"),
        ({"private": {"model": "tinycnn", "epsilon": 0.0}}, "wanted a finite target above 0"),
        ({"delta": 2.0}, r"delta=2.0: wanted a fraction in \[0, 1\)"),
    ],
)
def test_parameters_that_mean_nothing_stop_it_in_one_line(folder, parameters, says):
    swift = {**SIZE, "marks": [1], "batches": [128], **parameters}
    with pytest.raises(Exception, match=says):
        Run("05_nsde_privacy", folder / "results", folder / "bad.ipynb", **swift)
