"""The presets of the papers run to their ends as they are written, but for sizes, on stand-ins in the
files of the published data sets.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
from real_formats import ANY_CHECKSUM
from test_presets import FOLDER, OTHERS, assert_runs, changed, toys

from mia_nb import _torchvision, attacks, defenses
from mia_nb.cli import hours, notebooks
from mia_nb.data import load
from mia_nb.models import FLOWS
from mia_nb.studies.published import paper_results
from mia_nb.training.loop import plan_of
from mia_nb.training.train import complete, membership
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
    for preset in ("paper-nsde", "paper-snn"):
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
    for recipe in map(complete, hours.recipes_of(step)):
        member, population = membership(recipe, images, None)
        check(plan_of(recipe, images, member, population), int(population.sum()))
    for attack in named.get("attacks", []):
        attacks.find(attack)
    for output in named.get("outputs", []):
        defenses.output_arguments(output, {})
    stands_for = named["analysis"]["stands_for"]
    if stands_for and stands_for not in STANDS_FOR:
        raise ValueError(f"stands_for={stands_for}: wanted one of {STANDS_FOR}")


@pytest.mark.parametrize("preset", ["paper-nsde", "paper-snn"])
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


def words(value: Any, path: tuple = ()) -> set[tuple]:
    """What a tree of parameters names: its entries, and their values where these are no numbers but
    words, switches, or nothing at all (k = 0 is another network than k = 0.5).
    """
    if isinstance(value, dict) and value:
        return set().union(*(words(inner, (*path, key)) for key, inner in value.items()))
    if isinstance(value, list) and value:
        return set().union(*(words(item, path) for item in value))
    if isinstance(value, bool | str) or not value:
        return {(*path, repr(value))}
    return {path}


def kind_of(family: dict, parameters: dict) -> frozenset:
    """What tells a family's code from another's: all that it names but numbers that any family may
    have. The arguments of equations, and how replaced networks are fine-tuned, are parameters of
    the whole step.
    """
    arguments = dict(family.get("model_args", {}))
    if "replace" in family:
        family = parameters["finetune"] | family
    if family.get("model") in FLOWS or "replace" in family:
        arguments = parameters["flow"] | arguments
    numbers = {("lr",)} | {("model_args", name) for name in ("blocks", "k", "steps", "T", "width")}
    return frozenset(words(family | {"model_args": arguments}) - numbers)


@functools.cache
def known_kinds(notebook: str) -> frozenset:
    """The kinds of family that toys of other presets run in a notebook (test_presets.py)."""
    kinds = set()
    for preset in OTHERS:
        for step in toys(preset):
            if step.notebook.stem == notebook:
                families = step.parameters.get("families", [])
                kinds |= {kind_of(family, step.parameters) for family in families}
    return frozenset(kinds)


def of_new_kinds(step: notebooks.Step) -> list[dict]:
    """A step's first family, the first of each kind that no other preset has, and those that these
    start from, which they name by their numbers.
    """
    families = step.parameters["families"]
    kinds = [kind_of(family, step.parameters) for family in families]
    known = known_kinds(step.notebook.stem)
    chosen = {0}
    for number, kind in enumerate(kinds):
        if kind not in known and kind not in kinds[:number]:
            chosen.add(number)
    for number in list(chosen):
        start = families[number].get("replace", families[number].get("weights_of", number))
        chosen.add(start)
    places = sorted(chosen)
    kept = []
    for number in places:
        family = dict(families[number])
        for word in ("weights_of", "replace"):
            if word in family:
                family[word] = places.index(family[word])
        kept.append(family)
    return kept


def named_by(step: notebooks.Step) -> set:
    """What a step names, its families as wholes, without its data set."""
    named = dict(step.parameters)
    kinds = {kind_of(family, step.parameters) for family in named.pop("families", [])}
    if kinds:
        named |= {"flow": {}, "finetune": {}}  # of its families
    named["source"] = {**named["source"], "dataset": "", "part": ""}
    named["analysis"] = {**named["analysis"], "stands_for": ""}
    return words(named) | kinds


def shortened(steps: list[notebooks.Step]) -> list[notebooks.Step]:
    """The steps with families of new kinds, without those that name nothing which the others of the
    same notebook, or other presets, do not: they differ in data sets and numbers.
    """
    short = []
    for step in steps:
        if "families" in step.parameters:
            families = of_new_kinds(step)
            step = step._replace(parameters=step.parameters | {"families": families})
        short.append(step)
    kept = list(short)
    for step in short:
        others = [other for other in kept if other is not step and other.notebook == step.notebook]
        known = known_kinds(step.notebook.stem)
        if named_by(step) <= known.union(*map(named_by, others)):
            kept.remove(step)
    return kept


@pytest.mark.parametrize("preset", ["paper-nsde", "paper-snn"])
def test_what_runs_of_a_paper_has_every_notebook_and_all_that_it_names(preset):
    every = toys(preset)
    short = shortened(every)
    assert {step.notebook for step in short} == {step.notebook for step in every}
    for step in every:
        run = [other for other in short if other.notebook == step.notebook]
        known = known_kinds(step.notebook.stem)
        assert named_by(step) <= known.union(*map(named_by, run))


@pytest.mark.parametrize("preset", ["paper-nsde", "paper-snn"])
def test_a_paper_runs_to_its_end_with_everything_that_it_names(preset, tmp_path):
    steps = []
    for step in shortened(toys(preset)):
        steps.append(
            step._replace(notebook=changed(step.notebook, tmp_path, ANY_CHECKSUM + THINNED))
        )
    assert_runs(preset, steps, tmp_path / "results")
