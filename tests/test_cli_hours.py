"""How long a preset takes: counted steps, arithmetic, and the page that says so; and that the
presets of a paper have all that it printed.
"""

from __future__ import annotations

import importlib.util
import json
import re
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mia_nb.cli import hours, main, notebooks
from mia_nb.models import neural_de
from mia_nb.studies import reproduction, setting
from mia_nb.studies.paper_numbers import paper_results, printed_setting
from mia_nb.training.plans import build

ROOT = Path(__file__).resolve().parents[1]
RUNGS = ("paper-nsde-1", "paper-nsde-2", "paper-nsde-3")
NAMES = {"fashion_mnist": "fashion-mnist", "tiny_imagenet": "tiny-imagenet"}  # in print


def steps(preset, given=()):
    return notebooks.plan("all", preset, list(given), [ROOT / "notebooks"])


# Floating-point operations a second that narrow convolutions are assumed to reach on an H100 in
# TF32: a sixteenth of its peak of 495e12. Nothing of this has been measured.
H100 = 30e12
KNOWN = {}
PRINTED_ATTACKS = {record["ours"].get("attack", "") for record in paper_results("nsde2025")}


def seconds_on_h100(recipe, images, samples):
    """Seconds of an epoch as far as arithmetic says: three times the operations of the answers."""
    network = build(recipe, images, 0).eval()
    image = torch.zeros(1, *images.x.shape[1:])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(image)
    return 3 * counter.get_total_flops() * samples / H100


@cache
def assumed_of(text, name, samples):
    recipe, images = KNOWN[text, name]
    return seconds_on_h100(recipe, images, samples)


def assumed(recipe, images, samples):
    """`seconds_on_h100`, once for networks of the same arithmetic: how strong the noise is, and how
    long the time that the same steps divide, costs nothing.
    """
    args = {name: value for name, value in recipe.model_args.items() if name not in ("k", "T")}
    facts = [recipe.model, args]
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
    seconds = seconds_on_h100(recipe, hours.blank("cifar10", 1, 3, 32, 10), 1)
    assert seconds * H100 / 3 / 2 == pytest.approx(million * 1e6, rel=0.02)


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


@cache
def networks(notebook: str) -> dict[str, dict]:
    """{data set as printed: {setting: (pool, hours of its training)}} of the study of equations."""
    of_data: dict[str, dict] = {}
    for step in steps("paper-nsde"):
        if step.notebook.stem != notebook:
            continue
        name = step.parameters["source"]["dataset"]
        trained = of_data.setdefault(NAMES.get(name, name), {})
        for _, recipe, taken in hours.hours([step], assumed):
            flow = neural_de.describe(build(recipe, BLANK[name], 0))
            info = {"model": recipe.model, "flow": flow, "defense": recipe.defense}
            outputs = step.parameters.get("outputs", []) if not recipe.defense else []
            for output in ["", *outputs]:
                for attack in PRINTED_ATTACKS:
                    network = setting({**info, "output": output}, attack)
                    trained.setdefault(network, (recipe.model_dump_json(), taken))
    return of_data


BLANK = {name: hours.blank(name, 1, *shape) for name, (_, _, *shape) in hours.PUBLISHED.items()}


@cache
def pools_of(table: str, dataset: str) -> tuple[dict[str, float], list[str]]:
    """{pool: its hours} of the pools that a printed table rests on, and what has none."""
    trained = networks("06_defenses" if table == "XI" else "09_neural_de").get(dataset, {})
    taken, missing = {}, []
    for record in paper_results("nsde2025", table):
        wanted = printed_setting(record)
        if record["dataset"] == dataset:
            network = reproduction.closest_setting(trained, wanted, record)
            if network is None:
                missing.append(wanted.label)
            else:
                pool, of_pool = trained[network]
                taken[pool] = of_pool
    return taken, missing


@pytest.mark.slow
def test_every_number_of_the_study_of_equations_has_a_network_in_its_preset():
    records = paper_results("nsde2025")
    printed = {(record["table"], record["dataset"]) for record in records}
    for table, dataset in printed:
        if table != "VI":
            missing = pools_of(table, dataset)[1]
            assert not missing, (table, dataset)


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


def tables_of_page() -> list[tuple[str, list[str], str, str, str, str]]:
    """(paper, tables, data set, numbers, filled today, hours) of each row of the page."""
    papers = {"NSDE": "nsde2025", "SNN": "snn-uai2025", "workshop": "snn-workshop2025"}
    rows = []
    for word, paper in papers.items():
        for cells in page_rows(f"| {word} ", 6):
            tables, data, numbers, today, _, taken = cells
            named = tables.partition(";")[0].removeprefix(word).strip().split(", ")
            name = data.lower().replace("cifar-", "cifar")
            rows.append((paper, named, name, numbers, today, taken))
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
def test_the_page_says_how_long_the_pools_of_a_table_take():
    for paper, tables, data, _, _, taken in tables_of_page():
        if paper == "nsde2025" and data != "any" and not tables[0].startswith("Figure"):
            pools = {}
            for table in tables:
                pools |= pools_of(table, data)[0]
            assert float(taken) == pytest.approx(sum(pools.values()), abs=0.06)
    given = {"SNN 2": [("dataset", "cifar10")], "SNN 3": [("model", "vgg16")]}
    for first, changes in given.items():
        trained = hours.hours(steps("paper-snn", changes), assumed)
        taken = sum(of_pool for *_, of_pool in trained)
        cells = page_rows(f"| {first}", 6)[0]
        assert float(cells[-1]) == pytest.approx(taken, abs=0.06)


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
    for paper, tables, data, _, today, _ in tables_of_page():
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
