"""The workshop's notebooks on a tiny cube: built once, every part run, every solution right, every
wrong answer hinted at.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mia_nb import store, workshop
from mia_nb.cli import main
from mia_nb.cli.executing import execute
from mia_nb.cli.status import read_status

pytestmark = [pytest.mark.notebook, pytest.mark.slow]
FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
PARTS = sorted((FOLDER / "workshop").glob("[01][0-9]_*.ipynb"))[2:]
COURSE = (1, 2, 3, 5, 9, 10)
ELECTIVES = (4, 6, 7, 8, 11)
TINY = [
    "limit=360",
    "num_models=8",
    "epochs=3",
    "small={num_models: 6, epochs: 3}",
    "spiking={num_models: 6, epochs: 3}",
    "timesteps=2",
    "masked_queries=2",
    "noisy={num_models: 4, epochs: 1}",
    "strengths=[0.1, 0.25]",
    "noisy_queries=4",
    "noisy_images=120",
    "claims={num_models: 6, epochs: 3, batch: 32}",
]
MINUTES = [12, 15, 15, 10, 15, 6, 12, 10, 15, 15, 12]
TAKE_AWAY = [
    "Guessing well on average is not the threat; being sure about a few is",
    "Accuracy hides the corner that matters",
    "The question is per sample: how would *this* model look without it?",
    "The best attack depends on the budget",
    "Test your own pipeline on nothing first",
    "A zero can be an artefact",
    "Discreteness hides, it does not protect",
    "Noise is not privacy: at inference it averages away",
    "Averages hide the worst case",
    "Compare at equal utility",
    "A number without its assumption is decoration",
]
WORDED = 7  # the elective that is answered by a word


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """`mia-nb run workshop`, and its electives made small."""
    folder = tmp_path_factory.mktemp("workshop") / "results"
    argv = ["--notebooks", str(FOLDER), "--results", str(folder)]
    assert main(["run", "workshop", *argv]) == 0
    small = [word for text in TINY for word in ("-p", text)]
    assert main(["run", "workshop-electives", *argv, *small]) == 0
    return folder


@pytest.fixture(scope="module")
def runs(results) -> list[store.Folder]:
    """The course's run and that of the electives."""
    return sorted(store.folders(results, "run"), key=lambda run: "electives" in run.path.name)


def cells_of(path: Path) -> dict[str, dict]:
    return {cell["id"]: cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]}


def text_of(cell: dict) -> str:
    return "".join(
        "".join(output["text"])
        for output in cell.get("outputs", [])
        if output.get("name") == "stdout"
    )


def pages_of(cell: dict) -> str:
    return "".join(
        "".join(output.get("data", {}).get("text/html", "")) for output in cell.get("outputs", [])
    )


def solution_of(path: Path) -> str:
    found = re.fullmatch(
        r"<details>\n<summary>.*?</summary>\n\n```python\n(.*?)\n```\n\n</details>",
        "".join(cells_of(path)["solution"]["source"]),
        re.S,
    )
    return found[1]


def ended(words: str) -> str:
    """A sentence with its full stop, unless it is a question."""
    return words if words.endswith("?") else f"{words}."


def test_the_parts_follow_the_table():
    assert len(PARTS) == len(MINUTES) == 11
    # introduction, a break and a discussion of ten minutes each fit into two hours with the course
    assert sum(MINUTES[part - 1] for part in COURSE) + 30 <= 120
    for number, (path, minutes, words) in enumerate(
        zip(PARTS, MINUTES, TAKE_AWAY, strict=True), start=1
    ):
        cells = {name: "".join(cell["source"]) for name, cell in cells_of(path).items()}
        assert path.stem.startswith(f"{number:02d}_") and cells["title"].startswith(f"# {number}. ")
        assert (
            f"*{minutes} minutes.*" in cells["title"]
            and f"**{ended(words)}**" in cells["take-away"]
        )
        order = ["before", "demonstration", "exercise", "check", "solution", "take-away"]
        assert [name for name in cells if name in order] == order, (
            "the prediction comes before the demonstration"
        )


def test_runs_are_named_after_the_preset_and_leave_every_part_and_a_report(runs):
    for run, name, numbers in zip(
        runs, ("run-workshop-", "run-workshop_electives-"), (COURSE, ELECTIVES), strict=True
    ):
        assert run.path.name.startswith(name)
        files = {f"{PARTS[number - 1].stem}.ipynb" for number in numbers}
        assert files | {"report.html"} <= set(run.files())
        assert {step["status"] for step in read_status(run)} == {"done"}


def test_the_preparation_says_where_it_is(runs):
    cells = cells_of(runs[1].path / "00_prepare.ipynb")
    said = "".join(map(text_of, cells.values()))
    assert [f"{number} of 4:" in said for number in (1, 2, 3, 4)] == [True] * 4


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.stem)
def test_a_part_in_batch_asks_shows_and_waits_for_an_answer(runs, path):
    number = int(path.stem[:2])
    run = runs[number in ELECTIVES]
    cells = cells_of(run.path / path.name)
    errors = [
        o
        for cell in cells.values()
        for o in cell.get("outputs", [])
        if o["output_type"] == "error" or o.get("name") == "stderr"
    ]
    assert errors == []
    assert "<details><summary>The answer, after" in pages_of(cells["before"])
    assert "?" in text_of(cells["before"]) and "Answer" not in text_of(cells["before"])
    assert re.search(r"<b>[^<]+</b>: \S", pages_of(cells["demonstration"])), (
        "the demonstration's sentence"
    )
    assert not any(
        "please report this" in text_of(cell) + pages_of(cell) for cell in cells.values()
    )
    figures = sum(
        "application/vnd.plotly.v1+json" in o.get("data", {})
        for c in cells.values()
        for o in c.get("outputs", [])
    )
    assert figures >= 1 and "not answered yet" in text_of(cells["check"])


DOUBT = "import sys\nprint('torch' in sys.modules)"
FORGET = "%reset -f"  # what the part before left


def code_cell(name: str, source: str) -> dict:
    new = {"cell_type": "code", "id": name, "metadata": {}, "source": source}
    return new | {"execution_count": None, "outputs": []}


def solved(number: int, results: Path) -> list[dict]:
    """The cells of a part with its solution for the exercise, then a wrong answer, and whether torch
    is there. The demonstration was shown in the run.
    """
    path = PARTS[number - 1]
    cells = [*json.loads(path.read_text(encoding="utf-8"))["cells"]]
    kept = [cell for cell in cells if cell["id"] != "demonstration"]
    for cell in kept:
        if cell["id"] == "exercise":
            cell["source"] = solution_of(path)
    (place,) = [
        place for place, cell in enumerate(kept) if "parameters" in cell["metadata"].get("tags", [])
    ]
    kept.insert(place + 1, code_cell("given", f"results = {str(results)!r}"))
    other = '"less" if answer == "more" else "more"' if number == WORDED else "0.123"
    (check,) = ["".join(cell["source"]) for cell in kept if cell["id"] == "check"]
    kept.append(code_cell("wrong", f"answer = {other}\n{check}"))
    kept.append(code_cell("torch", DOUBT))
    kept.append(code_cell("forget", FORGET))
    return [cell | {"id": f"{cell['id']}-{number}", "metadata": {}} for cell in kept]


@pytest.fixture(scope="module")
def answered(results, tmp_path_factory) -> dict[str, dict]:
    """The electives with their solutions, one after another in one kernel, which is not forked from
    a process that has torch loaded.
    """
    folder = tmp_path_factory.mktemp("answered")
    book = json.loads(PARTS[0].read_text(encoding="utf-8"))
    book["cells"] = [cell for number in ELECTIVES for cell in solved(number, results)]
    (folder / "in.ipynb").write_text(json.dumps(book))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIA_NB_FORK", "0")
        execute(folder / "in.ipynb", folder / "out.ipynb", {})
    return cells_of(folder / "out.ipynb")


# those of the course, whose pools are shipped: in test_workshop.py
@pytest.mark.parametrize("number", ELECTIVES)
def test_a_solution_is_right_a_wrong_answer_gets_a_hint_and_torch_stays_out(answered, number):
    check, wrong, torch = (
        text_of(answered[f"{name}-{number}"]) for name in ("check", "wrong", "torch")
    )
    assert check.startswith("right. "), check
    assert wrong.startswith("not yet. "), wrong
    assert "cannot be checked" not in wrong, "a hint about the answer, not about its form"
    assert torch.strip() == "False"
    taken = [
        cell["metadata"]["papermill"]["duration"]
        for name, cell in answered.items()
        if name.endswith(f"-{number}") and cell["cell_type"] == "code"
    ]
    assert len(taken) > 5 and sum(taken) < 60, "a part takes seconds"


def test_only_the_first_notebook_imports_the_rooms_that_train():
    for path in PARTS:
        source = "\n".join(
            "".join(cell["source"])
            for cell in cells_of(path).values()
            if cell["cell_type"] == "code"
        )
        assert not re.search(r"\b(torch\b|training\.\w|query\.query\(|data\.load\()", source), (
            path.stem
        )


def test_the_cube_can_be_moved_without_its_weights(results, tmp_path):
    moved = tmp_path / "elsewhere"
    for path in results.rglob("*"):
        if (
            path.is_file()
            and not re.match(r"(model|snapshot)_", path.name)
            and not path.parent.name.startswith("run-")
        ):
            target = moved / path.relative_to(results)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    cube = workshop.open_cube(moved)
    assert cube["race"].signals.margin.shape[0] == 8 and cube["race"].trace(0) is not None
    assert len(cube.group("claims")) == 3
