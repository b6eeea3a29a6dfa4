"""10_recipes from a clean kernel at a tiny size: what it shows is what the stored pools give."""

from __future__ import annotations

import re

import numpy as np
import pytest
from test_notebook_dropout import grounds, headline, table, wanted
from test_notebook_neural_de import mean_auc, pictures
from test_notebooks import Run

from mia_nb import metrics, query, studies, training
from mia_nb.attacks import in_words, score

pytestmark = [pytest.mark.notebook, pytest.mark.slow]
SIZE = {
    "limit": 400,
    "num_models": 8,
    "recipes": [{"epochs": 2}, "fast", {"recipe": "fast", "augment": "crop"}],
    "attacks": ["rmia", "loss"],
    "splits": 2,
    "n_resamples": 50,
    "control_resamples": 5,
}
NAMES = [
    "one-cycle, 2 epochs, no augmentation",
    "fast: one-cycle, 16 epochs, no augmentation",
    "fast: one-cycle, 16 epochs, crop",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recipes")


@pytest.fixture(scope="module")
def run(folder) -> Run:
    return Run("10_recipes", folder / "results", folder / "recipes.ipynb", answer=True, **SIZE)


@pytest.fixture(scope="module")
def pools(folder, run) -> dict[str, training.pool.Pool]:
    found = [
        training.load_pool(path.name, folder / "results")
        for path in (folder / "results").glob("pool-*")
    ]
    found = {training.label(pool.recipe): pool for pool in found}
    assert sorted(found) == sorted(NAMES)
    return {name: found[name] for name in NAMES}


@pytest.fixture(scope="module")
def answers(pools):
    return {name: query(pool, pool.images(), progress=False) for name, pool in pools.items()}


@pytest.fixture(scope="module")
def cells(pools, answers):
    return {
        studies.setting(pools[name].recipe, word, label=name): score(word, one)
        for name, one in answers.items()
        for word in SIZE["attacks"]
    }


def test_no_cell_fails_warns_or_leaves_a_widget(run):
    for cell, outputs in run.outputs.items():
        for output in outputs:
            assert output["output_type"] != "error" and output.get("name") != "stderr", (
                cell,
                output,
            )
            assert not any("widget" in kind for kind in output.get("data", {})), cell
    assert set(run.figures()) == {"answer", "epochs", "ranks", "scatter"}


def test_all_recipes_have_the_same_members_and_every_pool_is_labelled_by_what_it_does(run, pools):
    first, *others = (pool.member for pool in pools.values())
    assert first.shape == (8, 400) and all(np.array_equal(first, one) for one in others)
    lines = run.text("pools").splitlines()
    assert [f"{name}: pool {pool.key[:12]}" for name, pool in pools.items()] == lines[-3:]


def test_facts_and_risks_are_those_of_the_stored_models_with_their_numbers(run, answers, cells):
    shown = {row[0]: row[1:] for row in table(run.html("facts"))[2:]}
    assert list(
        shown
    ) == NAMES and "4 pairs of models, 200 members and 200 non-members" in run.text("facts")
    for name, one in answers.items():
        right = one.correct[:, 0]
        means = [
            np.mean([r[s].mean() for r, s in zip(right, side, strict=True)])
            for side in (one.member, ~one.member)
        ]
        assert [float(text.split()[0]) for text in shown[name][:2]] == pytest.approx(
            means, abs=6e-5
        )
    html = run.html("attacks")
    for cell, one in cells.items():
        low, high = metrics.intervals(one, (0.01, 0.1), n_resamples=SIZE["n_resamples"]).loc[
            "auc", ["low", "high"]
        ]
        assert f"<td>{mean_auc(one):.3f} [{low:.3f}, {high:.3f}]</td>" in html, cell
    assert html.count("n/m (n0 = 200)") == len(cells)  # 1 % of 200 is no measurable rate


def test_the_headline_names_the_strongest_attack_of_each_recipe(run, cells):
    for name, line in zip(NAMES, run.text("headline").splitlines(), strict=True):
        best = max(
            (cell for cell in cells if cell.label == name), key=lambda cell: mean_auc(cells[cell])
        )
        assert (
            line.startswith(f"{name}: AUC {mean_auc(cells[best]):.3f} [")
            and f"] by {in_words(best.attack)}, 4 pairs, 200 + 200" in line
        )


def test_differences_are_paired_and_between_recipes_that_differ_in_epochs_alone(run, cells):
    rows = table(run.html("differences"))
    assert rows[0][1:] == [f"{NAMES[1]} - {NAMES[0]}"]
    of = {(cell.label, cell.attack): mean_auc(one) for cell, one in cells.items()}
    shown = {row[0]: row[1] for row in rows[2:]}
    for word in SIZE["attacks"]:
        assert shown[in_words(word)].startswith(f"{of[NAMES[1], word] - of[NAMES[0], word]:+.3f} [")
    assert set(shown) == {"strongest", *map(in_words, SIZE["attacks"])}


def test_rankings_are_compared_under_their_ceiling(run, answers):
    of_margins, of_scores = pictures(run, "ranks")
    for figure, word in ((of_margins, None), (of_scores, "rmia")):
        truth = metrics.agreement(answers, word, splits=2)
        drawn = {trace["name"]: trace for trace in figure["data"]}
        for line in ("correlation", "ceiling", "ratio"):
            known = truth[truth[line].notna()]
            assert drawn[line]["x"] == pytest.approx(known[line].tolist())
            assert drawn[line]["y"] == (known["first"] + "<br>" + known["second"]).tolist()
        ends = (known["high"] - known["ratio"]).tolist()
        assert drawn["ratio"]["error_x"]["array"] == pytest.approx(ends, nan_ok=True)


def test_verdicts_are_those_of_the_same_cells_and_every_claim_has_its_evidence(run, cells, answers):
    truth = studies.claims(
        "recipes",
        cells,
        ranks=metrics.agreement(answers, splits=2),
        n_resamples=SIZE["n_resamples"],
    )
    shown = {row[0]: row[1] for row in table(run.html("claims"))[1:]}
    assert shown == {f"{name}. {row['claim']}": row["verdict"] for name, row in truth.iterrows()}
    assert grounds(run) == wanted(truth)
    assert run.text("evidence").splitlines() == headline(truth)
    assert truth.loc["R6", "verdict"] == "not run" and truth.loc["R5", "verdict"] != "not run"


def test_it_ends_in_doubt(run):
    assert re.match(
        r"negative control (passed|FAILED): \d+ checks on fast: one-cycle, 16 epochs",
        run.text("self-test"),
    )
    doubts = {row[0]: row[1] for row in table(run.html("doubts"))[1:]}
    assert len(doubts) == 8 and doubts["a rate at 1 % false alarms is measurable"] == "check failed"
    assert ("passed" in run.text("self-test")) == (doubts["the negative control passed"] == "holds")


def test_few_models_and_no_attack_to_rank_say_what_was_left_out(folder):
    size = SIZE | {
        "num_models": 4,
        "recipes": [{"epochs": 2}, {"epochs": 2, "augment": "crop"}],
        "ranked": "",
        "attacks": [],
    }
    small = Run("10_recipes", folder / "results", folder / "small.ipynb", **size)
    assert "scores are not compared" in small.text("agreement")
    assert len(pictures(small, "ranks")) == 1
    assert "no two differ in epochs alone" in small.text("differences")
    assert "<td>not run</td>" in small.html("claims")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"recipes": ["fats", "long"]}, "unknown recipe 'fats'; did you mean 'fast'"),
        ({"recipes": ["fast"]}, "a comparison wants two or more"),
        ({"num_models": 4, "attacks": ["rmia", "lira_global"]}, "take 6 models or more"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_trained(folder, parameters, message):
    with pytest.raises(ValueError, match=message):
        Run("10_recipes", folder / "none", folder / "bad.ipynb", **SIZE | parameters)
    assert not (folder / "none").exists()
