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


@pytest.mark.parametrize("preset", ["paper-nsde", "paper-snn"])
def test_a_paper_runs_to_its_end_with_everything_that_it_names(preset, tmp_path):
    steps = []
    for step in toys(preset):
        steps.append(step._replace(notebook=changed(step.notebook, tmp_path, ANY_CHECKSUM)))
    assert_runs(preset, steps, tmp_path / "results")
