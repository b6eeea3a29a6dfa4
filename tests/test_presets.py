"""Every preset runs to its end as it is written, but for sizes, and for the figure of what is
shipped with which a notebook opens.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_formats import write_all
from test_notebooks import without_answer

from mia_nb.cli import notebooks
from mia_nb.cli.run import run
from mia_nb.cli.status import lost_figures, read_status
from mia_nb.data import DATASETS, load
from mia_nb.models import FLOWS
from mia_nb.report import is_figure
from mia_nb.training.recipes import changes

pytestmark = [pytest.mark.slow, pytest.mark.notebook]
FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
PRESETS = sorted(path.stem for path in FOLDER.glob("presets/*.yaml"))
# the smallest size of each name, and how far apart those are that a preset tells apart: 16 and 32
# epochs become 2 and 3
SIZES = {
    "along": (2, 0),
    "batch": (8, 2),
    "control_resamples": (5, 0),
    "epochs": (2, 1),
    "held_out": (20, 0),
    "masked_queries": (2, 0),
    "models": (6, 0),
    "n_resamples": (20, 0),
    "noisy_images": (60, 0),
    "noisy_queries": (2, 0),
    "num_models": (6, 6),
    "population": (40, 0),
    "queries": (2, 0),
    "splits": (2, 0),
    "steps": (1, 1),
    "timesteps": (2, 0),  # hybrid training has a first and a later stage
    "votes": (4, 0),
    # gradients of four channels, laid channels last, end a process on some processors (torch 2.13)
    "width": (8, 8),
}
# notebooks that refuse so little: too few models, canaries. One trains up to 25 families, whose
# epochs may be short: no neuron has to spike there
MORE = {
    "00_prepare": {"limit": 600},
    "09_neural_de": {
        "recipe": {"batch": 30, "epochs": 2, "snapshots": [1]},
        "along": 1,
    },
    "11_worst_case": {"recipe": {"num_models": 8}, "share": 0.3},
}
# lists whose length is a size
LISTS = {
    "batches": [512, 256],
    "marks": [1, 10],
    "plan": [0.02, 2],
    "quality": [1, 2],
    "rates": [0.02, 0.05],
    "snapshots": [1, 2],
}
ONE_DRAW = {"samples": 1}  # of a random surrogate gradient
IMAGES = 80  # of which each model trains on 20, two batches an epoch
SPIKING = 120  # for presets that convert: after fewer steps some neurons never fire
FEWER = 60
COLOURED = f"synthetic:classes=10,n={SPIKING + 40},size=8,channels=3,noise=1"

BREAK = """
from mia_nb import plots

def fails(*_, **__):
    raise RuntimeError("cannot be drawn")

for name in {*plots.__all__} - {"verdict"}:
    setattr(plots, name, fails)
"""


@functools.cache
def published_files() -> str:
    """The folder of stand-ins in the files of the published data sets."""
    return str(write_all(Path(tempfile.mkdtemp())))


@functools.cache
def stand_in() -> str:
    """A file of colour images in two official parts, in place of what would be fetched."""
    images = load(COLOURED)
    x = images.x.numpy().transpose(0, 2, 3, 1)
    y = images.y.numpy()
    path = Path(tempfile.mkdtemp()) / "coloured.npz"
    np.savez(
        path,
        train_images=x[:SPIKING],
        train_labels=y[:SPIKING],
        test_images=x[SPIKING:],
        test_labels=y[SPIKING:],
    )
    return str(path)


def named_recipes(name: str, value: Any) -> Any:
    """`long` as {recipe: long, epochs: 100, ...}: the sizes that the name stands for, written out."""
    if name != "recipes" or not isinstance(value, list):
        return value
    return [
        ({"recipe": one} if isinstance(one, str) else one)
        | {size: new for size, new in changes(one).items() if size in SIZES}
        for one in value
    ]


def found(name: str, value: Any, sizes: dict[str, set]) -> dict[str, set]:
    """Every value of every size in a tree of parameters."""
    value = named_recipes(name, value)
    if isinstance(value, dict):
        for key, one in value.items():
            found(key, one, sizes)
    elif isinstance(value, list):
        for one in value:
            found(name, one, sizes)
    elif name in SIZES and value is not None:
        sizes[name].add(value)
    return sizes


def toy(name: str, value: Any, sizes: dict[str, set]) -> Any:
    """The tree with small sizes, of which different ones stay different; all else as it was."""
    value = named_recipes(name, value)
    if isinstance(value, list):
        short = name in LISTS and value  # an empty list is a choice, and no length
        return LISTS[name] if short else [toy(name, one, sizes) for one in value]
    if name == "surrogate_args":
        return value | ONE_DRAW
    if isinstance(value, dict):
        small = {key: toy(key, one, sizes) for key, one in value.items()}
        # networks are wide, and equations have many steps, unless these say else
        narrow = {"width": SIZES["width"][0]}
        if name == "recipe" and "model_args" in small:
            short = {"steps": SIZES["steps"][0]} if small.get("model") in FLOWS else {}
            small["model_args"] = narrow | short | small["model_args"]
        if name == "network":
            small = narrow | small
        if name == "flow":
            small = {"steps": SIZES["steps"][0]} | small
        if "dataset" in small:
            fetched = {*DATASETS} - {"digits"}
            small["dataset"] = stand_in() if small["dataset"] in fetched else small["dataset"]
            small["limit"] = IMAGES
        return small
    if name in SIZES and value is not None:
        smallest, apart = SIZES[name]
        return min(value, smallest + apart * sum(other < value for other in sizes[name]))
    return value


@functools.cache
def toys(preset: str) -> tuple[notebooks.Step, ...]:
    """The steps of a preset at a small size; those of a paper read the files of published data."""
    sizes = defaultdict(set)
    for step in notebooks.read_preset(preset, [FOLDER]):
        found("", step.get("parameters", {}), sizes)
    whole = notebooks.plan("all", preset, [], [FOLDER])
    converts = any(step.notebook.stem == "02_convert" for step in whole)
    steps = []
    for step in whole:
        small = toy("", step.parameters, sizes)
        if converts and "source" in small:
            small["source"]["limit"] = SPIKING
        for name, value in MORE.get(step.notebook.stem, {}).items():
            small[name] = small[name] | value if isinstance(value, dict) else value
        if preset.startswith("paper"):
            named = {"dataset": step.parameters["source"]["dataset"]}
            small["source"] |= named | {"data_root": published_files()}
            if step.notebook.stem == "09_neural_de":
                small["source"]["limit"] = FEWER  # of up to 25 families
            if small["recipe"]["snapshots"]:
                small["recipe"]["snapshots"] = [1]  # and the last epoch
        steps.append(step._replace(parameters=small))
    return tuple(steps)


def without_sizes(name: str, value: Any) -> Any:
    """The tree of parameters without what may differ between a preset and its toy."""
    value = named_recipes(name, value)
    if isinstance(value, dict):
        free = {*SIZES, *LISTS, "dataset", "data_root", "limit", "share"}
        if name == "surrogate_args":
            free |= ONE_DRAW.keys()
        return {key: without_sizes(key, one) for key, one in value.items() if key not in free}
    return [without_sizes(name, one) for one in value] if isinstance(value, list) else value


def code_cells(path: Path) -> list[dict]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def told(cell: dict) -> bool:
    """Whether a cell is tagged as one whose words or table stand outside the report's folds."""
    return bool({"headline", "verdict"} & {*cell["metadata"].get("tags", [])})


def failed(cell: dict) -> bool:
    return any(output["output_type"] == "error" for output in cell["outputs"])


@pytest.mark.parametrize("preset", PRESETS)
def test_a_toy_of_a_preset_differs_from_it_in_sizes_alone(preset):
    whole = notebooks.plan("all", preset, [], [FOLDER])
    for step, small in zip(whole, toys(preset), strict=True):
        assert step.notebook == small.notebook
        assert without_sizes("", step.parameters) == without_sizes("", small.parameters)


# these run in test_kept.py, test_browser.py and test_notebook_workshop.py, where what they leave is
# looked at as well
ELSEWHERE = {"demo", "tour", "workshop", "workshop-electives"}
PAPERS = ["paper-nsde", "paper-snn"]  # whose rungs are parts of them
# digits before CIFAR-10: of two presets that name the same, the second runs what it names anew
OTHERS = [
    preset
    for preset in reversed(PRESETS)
    if not preset.startswith("paper") and preset not in ELSEWHERE
]
RUN = [*OTHERS, *PAPERS]  # the papers: in test_presets_papers.py


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
def known(notebook: str, preset: str) -> frozenset:
    """What toys of the tour, which test_browser.py runs, and of the presets before this one name in
    a notebook.
    """
    names = set()
    for earlier in ["tour", *RUN[: RUN.index(preset)]]:
        for step in toys(earlier):
            if step.notebook.stem == notebook:
                names |= named_by(step)
    return frozenset(names)


def of_new_kinds(step: notebooks.Step, elsewhere: frozenset) -> list[dict]:
    """A step's first family, the first of each kind that is not known, and those that these start
    from, which they name by their numbers.
    """
    families = step.parameters["families"]
    kinds = [kind_of(family, step.parameters) for family in families]
    chosen = {0}
    for number, kind in enumerate(kinds):
        if kind not in elsewhere and kind not in kinds[:number]:
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
    for name, words_of_data in (("source", ("dataset", "part")), ("analysis", ("stands_for",))):
        if name in named:
            named[name] = named[name] | dict.fromkeys(words_of_data, "")
    return words(named) | kinds


def shortened(preset: str) -> list[notebooks.Step]:
    """The toy of a preset with families of new kinds, without steps that name nothing which the
    others of the same notebook, presets before it, or the tour do not: they differ in data sets and
    numbers.
    """
    short = []
    for step in toys(preset):
        if "families" in step.parameters:
            families = of_new_kinds(step, known(step.notebook.stem, preset))
            step = step._replace(parameters=step.parameters | {"families": families})
        short.append(step)
    kept = list(short)
    for step in short:
        others = [other for other in kept if other is not step and other.notebook == step.notebook]
        elsewhere = known(step.notebook.stem, preset)
        if others and named_by(step) <= elsewhere.union(*map(named_by, others)):
            kept.remove(step)
    return kept


@pytest.mark.parametrize("preset", RUN)
def test_what_runs_of_a_preset_has_every_notebook_and_all_that_it_names(preset):
    every = toys(preset)
    short = shortened(preset)
    assert {step.notebook for step in short} == {step.notebook for step in every}
    for step in every:
        run = [other for other in short if other.notebook == step.notebook]
        elsewhere = known(step.notebook.stem, preset)
        assert named_by(step) <= elsewhere.union(*map(named_by, run))


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """Where the presets leave their pools, which the notebooks without figures take."""
    return tmp_path_factory.mktemp("presets") / "results"


@pytest.mark.parametrize("preset", OTHERS)
def test_a_preset_runs_to_its_end_with_everything_that_it_names(preset, results, tmp_path):
    steps = [
        step._replace(notebook=without_answer(step.notebook, tmp_path))
        for step in shortened(preset)
    ]
    assert_runs(preset, steps, results)


def assert_runs(preset: str, steps: list[notebooks.Step], root: Path) -> None:
    """Every notebook is done, without an error, and every headline has an output."""
    folder = run(preset, steps, root)
    record = read_status(folder)
    assert [one["status"] for one in record] == ["done"] * len(steps) and not lost_figures(folder)
    for one in record:
        cells = code_cells(folder.path / one["file"])
        assert not any(map(failed, cells)), one["file"]
        assert all(cell["outputs"] for cell in cells if told(cell)), one["file"]
    assert folder.intact("report.html")


# run without their figures; that no cell of any notebook needs what a figure's cell computed is
# asked of its source in test_notebooks_form.py
BROKEN = ("03_attack", "10_recipes")


def test_where_every_figure_fails_no_table_is_missing(results, tmp_path):
    """The functions that draw raise, in copies of the notebooks; all else is as it is."""
    steps = {}  # of each notebook one
    for step in [*toys("recipes-digits"), *toys("tour")]:
        if step.notebook.stem in BROKEN:
            steps.setdefault(step.notebook.stem, step)
    broken = []
    for step in steps.values():
        broken.append(
            step._replace(
                notebook=changed(step.notebook, tmp_path, BREAK), parameters=fewer(step.parameters)
            )
        )
    folder = run("broken", broken, results)
    record = read_status(folder)
    assert [one["status"] for one in record] == ["done"] * len(BROKEN)
    lost = {line.partition(": ")[0] for line in lost_figures(folder)}
    assert len(lost) == len(BROKEN)
    report = folder.read_bytes("report.html").decode()
    for one in record:
        cells = code_cells(folder.path / one["file"])
        assert not any(failed(cell) for cell in cells if not is_figure(cell)), one["file"]
        assert all(cell["outputs"] for cell in cells if told(cell)), one["file"]
        assert any(map(failed, cells)), one["file"]
    assert report.count("RuntimeError: cannot be drawn</pre>") >= len(lost)


def fewer(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters with two attacks at most: as many tables and figures of the same pools."""
    few = dict(parameters)
    if "attacks" in few:
        few["attacks"] = few["attacks"][:2]
    return few


def changed(notebook: Path, folder: Path, code: str) -> Path:
    """A copy of a notebook whose set-up also runs this code."""
    node = json.loads(notebook.read_text(encoding="utf-8"))
    (cell,) = [cell for cell in node["cells"] if cell["id"] == "set-up"]
    cell["source"] = [*cell["source"], "\n", code]
    path = folder / notebook.name
    path.write_text(json.dumps(node), encoding="utf-8")
    return path
