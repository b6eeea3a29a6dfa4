"""The page of the presets: it counts what they train and what the papers printed, and the presets
of a paper have all that it printed.
"""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest
import torch

from mia_nb.cli import notebooks
from mia_nb.models import neural_de
from mia_nb.studies import reproduction, setting
from mia_nb.studies.paper_numbers import paper_results, printed_setting
from mia_nb.training.families import planned_recipes
from mia_nb.training.plans import build
from mia_nb.types import Images, Recipe

ROOT = Path(__file__).resolve().parents[1]
RUNGS = ("paper-nsde-1", "paper-nsde-2", "paper-nsde-3")
NAMES = {"fashion_mnist": "fashion-mnist", "tiny_imagenet": "tiny-imagenet"}  # in print


PRINTED_ATTACKS = {record["ours"].get("attack", "") for record in paper_results("nsde2025")}
# (channels, side, classes) of the published data sets
PUBLISHED = {
    "cifar10": (3, 32, 10),
    "cifar100": (3, 32, 100),
    "fashion_mnist": (1, 28, 10),
    "tiny_imagenet": (3, 64, 200),
}


def steps(preset: str) -> list[notebooks.Step]:
    return notebooks.plan("all", preset, [], [ROOT / "notebooks"])


def recipes_of(step: notebooks.Step) -> list[Recipe]:
    """The recipes of the pools that one notebook trains."""
    values = step.parameters
    if values.get("pool") or "recipe" not in values or not values["recipe"]["epochs"]:
        return []
    recipe = Recipe(**values["recipe"])
    if "families" in values:
        families = list(values["families"])
        if values.get("private"):
            families.append({**values["private"], **values["clipped"], "defense": "dp_sgd"})
        base = recipe.replace(model_args={})
        if "private" in values:  # that notebook draws members by coins
            base = base.replace(split="bernoulli")
        network = values.get("network", recipe.model_args)
        of_families = [with_fixed_noise(family) for family in families]
        planned = planned_recipes(
            of_families, base, network, values["flow"], values.get("finetune", {})
        )
        return [one for one, _ in planned if one.epochs]
    recipes = [recipe]
    if "tuning" in values and values.get("spiking", "hybrid") == "hybrid":
        recipes += hybrid(recipe, values["timesteps"], dict(values["tuning"]))
    if values.get("direct"):
        recipes.append(spiking(recipe, values["timesteps"], dict(values["direct"])))
    return recipes


def with_fixed_noise(family: dict) -> dict:
    """A family with a fixed noise instead of the noise for its epsilon."""
    changes = dict(family)
    if changes.pop("epsilon", None) is not None:
        changes["defense_args"] = {"noise_multiplier": 1.0}
    return changes


def spiking(recipe: Recipe, timesteps: int, changes: dict) -> Recipe:
    """The recipe of a network's spiking form."""
    base = {"base": recipe.model, "base_args": recipe.model_args, "timesteps": timesteps}
    network = changes.pop("model_args", {}) | base
    return recipe.replace(**changes, model="snn", model_args=network)


def hybrid(recipe: Recipe, timesteps: int, tuning: dict) -> list[Recipe]:
    """The recipes of hybrid training, one for each T."""
    epochs = tuning.pop("epochs")
    tuning.pop("widths", None)
    converted = {"beta": 1.0, "reset": "soft", "surrogate": "boxcar", "detach_reset": True}
    recipes = []
    for T in range(1, timesteps + 1):
        changes = {**tuning, "epochs": epochs[T - 1], "model_args": converted}
        recipes.append(spiking(recipe, T, changes))
    return recipes


def pools(preset: str) -> set[str]:
    """The pools that a preset trains, each once."""
    found = set()
    for step in steps(preset):
        source = {name: step.parameters["source"][name] for name in ("dataset", "part", "limit")}
        found |= {f"{source} {recipe.model_dump_json()}" for recipe in recipes_of(step)}
    return found


@pytest.mark.slow
def test_the_page_of_the_presets_says_how_many_pools_they_train():
    rows = page_rows("| `paper-", 4)
    assert [row[0].strip("`") for row in rows] == [*RUNGS, "paper-snn"]
    for preset, count, *_ in rows:
        assert len(pools(preset.strip("`"))) == int(count)


@cache
def networks(notebook: str) -> dict[str, set]:
    """{data set as printed: settings that are trained} of the study of equations."""
    of_data: dict[str, set] = {}
    for step in steps("paper-nsde"):
        if step.notebook.stem != notebook:
            continue
        name = step.parameters["source"]["dataset"]
        trained = of_data.setdefault(NAMES.get(name, name), set())
        for recipe in recipes_of(step):
            flow = neural_de.describe(build(recipe, BLANK[name], 0))
            info = {"model": recipe.model, "flow": flow, "defense": recipe.defense}
            outputs = step.parameters.get("outputs", []) if not recipe.defense else []
            for output in ["", *outputs]:
                for attack in PRINTED_ATTACKS:
                    trained.add(setting({**info, "output": output}, attack))
    return of_data


def blank(name: str, channels: int, side: int, classes: int) -> Images:
    """One black image of this shape."""
    x = torch.zeros(1, channels, side, side, dtype=torch.uint8)
    return Images(
        x, torch.zeros(1, dtype=int), tuple(map(str, range(classes))), name, (0.5,), (0.25,)
    )


BLANK = {name: blank(name, *shape) for name, shape in PUBLISHED.items()}


@pytest.mark.slow
def test_every_number_of_the_study_of_equations_has_a_network_in_its_preset():
    for record in paper_results("nsde2025"):
        if record["table"] == "VI":
            continue
        notebook = "06_defenses" if record["table"] == "XI" else "09_neural_de"
        trained = dict.fromkeys(networks(notebook).get(record["dataset"], ()))
        wanted = printed_setting(record)
        assert reproduction.closest_setting(trained, wanted, record) is not None, wanted.label


def page_rows(first: str, columns: int) -> list[list[str]]:
    """The cells of those rows of the page that begin so."""
    text = (ROOT / "docs" / "presets.md").read_text(encoding="utf-8")
    rows = []
    for line in text.splitlines():
        if line.startswith(first):
            rows.append([cell.strip() for cell in line[1:-1].split("|")])
    assert rows and all(len(row) == columns for row in rows)
    return rows


def test_the_headers_of_presets_say_the_hours_of_the_page():
    new = {row[0].strip("`"): round(float(row[3])) for row in page_rows("| `paper-", 4)}
    for preset, hours_of_rung in new.items():
        text = (ROOT / "notebooks" / "presets" / f"{preset}.yaml").read_text(encoding="utf-8")
        header = " ".join(line.strip("# ") for line in text.partition("\n\n")[0].splitlines())
        assert re.findall(r"about (\d+) hours on one H100", header) == [str(hours_of_rung)]
        assert not re.search(r"about a (day|week)|weeks on", header)
    text = (ROOT / "notebooks" / "presets" / "paper-nsde.yaml").read_text(encoding="utf-8")
    header = " ".join(line.strip("# ") for line in text.partition("\n\n")[0].splitlines())
    assert re.findall(r"about (\d+) hours on one H100", header) == [
        str(new[rung]) for rung in RUNGS
    ]


def tables_of_page() -> list[tuple[str, list[str], str, str, str]]:
    """(paper, tables, data set, numbers, filled today) of each row of the page."""
    papers = {"NSDE": "nsde2025", "SNN": "snn-uai2025", "workshop": "snn-workshop2025"}
    rows = []
    for word, paper in papers.items():
        for cells in page_rows(f"| {word} ", 6):
            tables, data, numbers, today, *_ = cells
            named = tables.partition(";")[0].removeprefix(word).strip().split(", ")
            name = data.lower().replace("cifar-", "cifar")
            rows.append((paper, named, name, numbers, today))
    return rows


def test_the_page_counts_every_printed_number_once():
    counted = 0
    for paper, tables, data, numbers, *_ in tables_of_page():
        printed = [
            record
            for record in paper_results(paper)
            if record["table"] in tables and data in ("any", record["dataset"])
        ]
        assert len(printed) == int(numbers or 0)
        counted += len(printed)
    assert counted == len(paper_results())


@pytest.mark.slow
def test_the_page_counts_the_numbers_that_the_shipped_pools_stand_beside():
    """Which printed settings they are; what attacks find there is of no account."""
    spec = importlib.util.spec_from_file_location("results", ROOT / "docs" / "results.py")
    results = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(results)
    shipped = {
        "nsde2025": [
            setting(signals.info, attack)
            for signals in results.there(results.DEFENDED).values()
            for attack in results.ATTACKS
        ]
    }
    spiking = [
        network._replace(attack=attack, references=references)
        for network in results.SPIKING.values()
        for attack in ("rmia", "attack_r", "attack_r_lattice", "attack_p")
        for references in ("own", "ann")
        if references == "own" or (network.model == "snn" and attack != "attack_p")
    ]
    shipped |= {"snn-uai2025": spiking, "snn-workshop2025": spiking}
    for paper, tables, data, _, today in tables_of_page():
        filled = 0
        for record in paper_results(paper):
            here = record["table"] in tables and record["dataset"] == data == "cifar10"
            if here and "vgg" not in record["model"]:
                wanted = printed_setting(record)
                filled += (
                    reproduction.closest_setting(dict.fromkeys(shipped[paper]), wanted, record)
                    is not None
                )
        assert filled == int(today or 0), (paper, tables, data)
