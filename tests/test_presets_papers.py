"""The presets of the papers run to their ends as they are written, but for sizes, on stand-ins in the
files of the published data sets.
"""

from __future__ import annotations

import copy

import pytest
from real_formats import ANY_CHECKSUM
from test_notebooks import without_answer
from test_presets import FOLDER, PAPERS, assert_runs, changed, shortened, toys
from test_presets_page import recipes_of

from mia_nb import _torchvision, attacks, defenses
from mia_nb.cli import notebooks
from mia_nb.data import load
from mia_nb.studies.paper_numbers import paper_results
from mia_nb.training.placing import complete, membership
from mia_nb.training.plans import plan_of
from mia_nb.training.trials import check

pytestmark = [pytest.mark.slow, pytest.mark.notebook]
RUNGS = ("paper-nsde-1", "paper-nsde-2", "paper-nsde-3")  # which are all of paper-nsde
# data sets of the papers, and one with its model
STANDS_FOR = [*{record["dataset"] for record in paper_results()}, ["cifar10", "resnet18"]]
# Files hold images of 28 to 64 pixels a side, which take most of the time; of these every fourth runs.
THINNED = """
from mia_nb import data

read_files = data.load

def thinned(*args, **options):
    images = read_files(*args, **options)
    return images._replace(x=images.x[:, :, ::4, ::4].contiguous())

data.load = thinned
"""


@pytest.fixture
def any_checksum(monkeypatch):
    cifar = _torchvision.module("torchvision.datasets.cifar")
    monkeypatch.setattr(cifar, "check_integrity", lambda *_: True)


def test_a_toy_of_a_paper_has_its_data_sets(any_checksum):
    for preset in PAPERS:
        whole = [step.parameters["source"] for step in notebooks.plan("all", preset, [], [FOLDER])]
        small = [step.parameters["source"] for step in toys(preset)]
        for source, toy_source in zip(whole, small, strict=True):
            assert source["dataset"] == toy_source["dataset"]
            assert load(**toy_source).name.startswith(source["dataset"])


def check_names(step: notebooks.Step) -> None:
    """ValueError where a step names a data set, network, optimiser, defense, attack or option that
    there is not: what is asked of a recipe before it trains, and nothing trained.
    """
    named = step.parameters
    images = load(**named["source"])
    for recipe in map(complete, recipes_of(step)):
        member, population = membership(recipe, images, None)
        check(plan_of(recipe, images, member, population), int(population.sum()))
    for attack in named.get("attacks", []):
        attacks.find(attack)
    for output in named.get("outputs", []):
        defenses.output_arguments(output, {})
    stands_for = named["analysis"]["stands_for"]
    if stands_for and stands_for not in STANDS_FOR:
        raise ValueError(f"stands_for={stands_for}: wanted one of {STANDS_FOR}")


@pytest.mark.parametrize("preset", PAPERS)
def test_everything_that_a_paper_names_is_there(preset, any_checksum):
    for step in toys(preset):
        check_names(step)


TYPOS = [  # where in the parameters of a step, what is written there, and what the refusal names
    (["source", "dataset"], "cifar1O", "cifar1O"),
    (["recipe", "optimizer"], "sgdd", "sgdd"),
    (["recipe", "optimizer_args"], {"nestrov": False}, "nestrov"),
    (["recipe", "schedule"], "plateu", "plateu"),
    (["recipe", "augment"], "crop+flp", "crop\\+flp"),
    (["families", 1, "model"], "odnet", "odnet"),
    (["families", 1, "defense"], "l3", "l3"),
    (["families", 3, "defense_args"], {"heldout": 20}, "heldout"),
    (["families", 6, "model_args"], {"metod": "rk4"}, "metod"),
    (["flow", "method"], "stoch_rk5", "stoch_rk5"),
    (["outputs", 0], "memgard", "memgard"),
    (["attacks"], ["rnia"], "rnia"),
    (["analysis", "stands_for"], "cifar-10", "cifar-10"),
]


@pytest.fixture(scope="module")
def defended():
    return [step for step in toys("paper-nsde") if step.notebook.stem == "06_defenses"][-1]


@pytest.mark.parametrize(
    ("place", "typo", "refused"), TYPOS, ids=[refused for *_, refused in TYPOS]
)
def test_a_typo_in_a_preset_is_refused(place, typo, refused, defended, any_checksum):
    parameters = copy.deepcopy(defended.parameters)
    inner = parameters
    for word in place[:-1]:
        inner = inner[word]
    inner[place[-1]] = typo
    with pytest.raises(ValueError, match=refused):
        check_names(defended._replace(parameters=parameters))


def test_the_rungs_of_a_paper_are_all_of_it():
    parts = [notebooks.plan("all", rung, [], [FOLDER]) for rung in RUNGS]
    assert notebooks.plan("all", "paper-nsde", [], [FOLDER]) == [*parts[0], *parts[1], *parts[2]]


@pytest.mark.parametrize("preset", PAPERS)
def test_a_paper_runs_to_its_end_with_everything_that_it_names(preset, tmp_path):
    steps = []
    for step in shortened(preset):
        plain = without_answer(step.notebook, tmp_path)
        steps.append(step._replace(notebook=changed(plain, tmp_path, ANY_CHECKSUM + THINNED)))
    assert_runs(preset, steps, tmp_path / "results")
