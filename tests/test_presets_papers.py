"""The presets of the papers run to their ends as they are written, but for sizes, on stand-ins in the
files of the published data sets.
"""

from __future__ import annotations

import pytest
from real_formats import ANY_CHECKSUM
from test_presets import FOLDER, assert_runs, changed, toys

from mia_nb import _torchvision
from mia_nb.cli import notebooks
from mia_nb.data import load

pytestmark = [pytest.mark.slow, pytest.mark.notebook]
RUNGS = ("paper-nsde-1", "paper-nsde-2", "paper-nsde-3")  # which are all of paper-nsde


def test_a_toy_of_a_paper_has_its_data_sets(monkeypatch):
    cifar = _torchvision.module("torchvision.datasets.cifar")
    monkeypatch.setattr(cifar, "check_integrity", lambda *_: True)
    for preset in ("paper-nsde", "paper-snn"):
        whole = [step.parameters["source"] for step in notebooks.plan("all", preset, [], [FOLDER])]
        small = [step.parameters["source"] for step in toys(preset)]
        for source, toy_source in zip(whole, small, strict=True):
            assert source["dataset"] == toy_source["dataset"]
            assert load(**toy_source).name.startswith(source["dataset"])


def test_the_rungs_of_a_paper_are_all_of_it():
    parts = [notebooks.plan("all", rung, [], [FOLDER]) for rung in RUNGS]
    assert notebooks.plan("all", "paper-nsde", [], [FOLDER]) == [*parts[0], *parts[1], *parts[2]]


def kind_of(family: dict) -> str:
    """What tells a family's code from another's: all but the sizes of its numbers."""
    plain = {key: value for key, value in family.items() if key != "model_args"}
    arguments = {}
    for key, value in family.get("model_args", {}).items():
        if isinstance(value, str) or not value:
            arguments[key] = value
        elif key in ("blocks", "augment"):
            arguments[key] = "more"
    return str(plain | arguments)


def of_different_kinds(families: list[dict]) -> list[dict]:
    """The first family of each kind; those that others name by their numbers keep being named."""
    kept: list[dict] = []
    places: dict[int, int] = {}
    for number, family in enumerate(families):
        for word in ("weights_of", "replace"):
            if word in family:
                family = family | {word: places[family[word]]}
        kinds = [kind_of(other) for other in kept]
        if kind_of(family) in kinds:
            places[number] = kinds.index(kind_of(family))
            continue
        places[number] = len(kept)
        kept.append(family)
    return kept


def shortened(steps: list[notebooks.Step]) -> list[notebooks.Step]:
    """The steps with families of different kinds, without those all of whose kinds another step of
    the same notebook has: they differ in data sets and numbers.
    """
    short: list[notebooks.Step] = []
    for step in steps:
        families = step.parameters.get("families")
        if families:
            step = step._replace(
                parameters=step.parameters | {"families": of_different_kinds(families)}
            )
        short.append(step)
    kept = []
    for step in short:
        families = step.parameters.get("families")
        kinds = {kind_of(family) for family in families or []}
        others = [
            {kind_of(family) for family in other.parameters["families"]}
            for other in short
            if families and other.notebook == step.notebook and other is not step
        ]
        covered = any(kinds < other for other in others)
        if not covered:
            kept.append(step)
    return kept


@pytest.mark.parametrize("preset", ["paper-nsde", "paper-snn"])
def test_a_paper_runs_to_its_end_with_everything_that_it_names(preset, tmp_path):
    steps = []
    for step in shortened(toys(preset)):
        steps.append(step._replace(notebook=changed(step.notebook, tmp_path, ANY_CHECKSUM)))
    assert_runs(preset, steps, tmp_path / "results")
