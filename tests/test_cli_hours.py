"""How long a preset takes: counted steps, arithmetic, and the page that says so; and that the
presets of a paper have all that it printed.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from mia_nb.cli import hours, main, notebooks
from mia_nb.models import neural_de
from mia_nb.studies import published, setting
from mia_nb.training.loop import build

ROOT = Path(__file__).resolve().parents[1]
RUNGS = ("paper-nsde-1", "paper-nsde-2", "paper-nsde-3")
NAMES = {"fashion_mnist": "fashion-mnist", "tiny_imagenet": "tiny-imagenet"}  # in print


def steps(preset, given=()):
    return notebooks.plan("all", preset, list(given), [ROOT / "notebooks"])


@cache
def assumed_of(text, name, samples):
    recipe, images = KNOWN[text, name]
    return hours.assumed(recipe, images, samples)


KNOWN = {}


def assumed(recipe, images, samples):
    """`hours.assumed`, once for networks of the same arithmetic."""
    facts = [recipe.model, recipe.model_args]
    text = json.dumps(facts, sort_keys=True)
    KNOWN[text, images.name] = recipe, images
    return assumed_of(text, images.name, samples)


def test_the_epochs_of_a_preset_are_those_of_its_pools_each_counted_once():
    found = hours.hours(steps("paper-snn"), lambda *_: 3600.0)
    assert sum(taken for *_, taken in found) == 12 * (200 + 50 + 30 + 30 + 30 + 250)
    assert {images for images, *_ in found} == {"cifar10"}
    samples = {count for *_, count in hours.trainings(steps("paper-snn"))}
    assert samples == {30_000}
    # 16 pools of halves of the training images; where 10,000 are set aside, of 50,000 of 60,000
    assert {count for *_, count in hours.trainings(steps("paper-nsde-1"))} == {25_000}


@pytest.mark.parametrize(
    ("model", "args", "million"),
    [("resnet14", {}, 45), ("odenet", {}, 233), ("sdenet", {"method": "stoch_rk4"}, 925)],
)
def test_the_arithmetic_of_a_network_is_that_of_its_layers(model, args, million):
    """Multiplications of an image, counted by hand from the layers' shapes."""
    step = steps("paper-nsde-1")[0]
    recipe = hours.recipes_of(step)[0].replace(model=model, model_args=args)
    seconds = hours.assumed(recipe, hours.blank("cifar10", 1, 3, 32, 10), 1)
    assert seconds * hours.H100 / 3 / 2 == pytest.approx(million * 1e6, rel=0.02)


@pytest.mark.slow
def test_the_page_of_the_presets_says_how_long_they_take():
    text = (ROOT / "docs" / "presets.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    assert [preset for preset, *_ in rows] == [*RUNGS, "paper-snn"]
    before = set()
    for preset, pools, every, new in rows:
        found = hours.hours(steps(preset), assumed)
        keys = [f"{name} {recipe.model_dump_json()}" for name, recipe, _ in found]
        taken = [one for *_, one in found]
        fresh = [one for key, one in zip(keys, taken, strict=True) if key not in before]
        assert (int(pools), float(every)) == (len(found), pytest.approx(sum(taken), abs=0.06))
        assert float(new) == pytest.approx(sum(fresh), abs=0.06)
        before |= set(keys) if preset in RUNGS else set()
    most = {preset: float(new) for preset, _, _, new in rows}
    assert most["paper-nsde-1"] < 24 and most["paper-nsde-2"] < 24 * 7


def test_an_estimate_times_steps_and_runs_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hours.hours, "__defaults__", (lambda *_: 36.0,))
    monkeypatch.chdir(tmp_path)
    assert main(["run", "all", "--preset", "paper-nsde-1", "--estimate"]) == 0
    said = capsys.readouterr().out
    # 16 models, 36 seconds an epoch
    assert f"about {16 * (10 * 300 + 150 + 100) / 100:.1f} hours of training on this" in said
    assert "mmd_mixup" in said
    assert not list(tmp_path.iterdir())
    assert main(["run", "train", "-p", "dataset=digits", "--estimate"]) == 2
    assert "the time is estimated for cifar10, cifar100" in capsys.readouterr().err


@pytest.mark.slow
def test_every_number_of_the_study_of_equations_has_a_network_in_its_preset():
    networks = {}
    for step in steps("paper-nsde"):
        name = step.parameters["source"]["dataset"]
        of_data = networks.setdefault(NAMES.get(name, name), {})
        for recipe, images, _ in hours.trainings([step]):
            flow = neural_de.describe(build(recipe, images, 0))
            info = {"model": recipe.model, "flow": flow, "defense": recipe.defense}
            outputs = step.parameters.get("outputs", []) if not recipe.defense else []
            for output in ["", *outputs]:
                for words in published.PRINTED_ATTACKS.values():
                    one = setting({**info, "output": output}, words[0])
                    of_data[one] = None
    missing = []
    for record in published.paper_results("nsde2025"):
        if record["table"] == "VI":
            continue
        wanted = published.printed_setting(record)
        if published._placed(networks[record["dataset"]], wanted, record) is None:
            missing.append((record["table"], record["dataset"], wanted.label))
    assert not missing
