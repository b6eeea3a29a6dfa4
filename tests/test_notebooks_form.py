"""Every committed notebook and preset keeps the house form."""

from __future__ import annotations

import ast
import json
import re
import runpy
import symtable
from pathlib import Path
from types import SimpleNamespace

import pytest

from mia_nb import parameters
from mia_nb.cli import notebooks
from mia_nb.report import is_figure

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
stored = SimpleNamespace(**runpy.run_path(str(FOLDER.parent / "docs" / "stored.py")))
NOTEBOOKS = sorted(FOLDER.rglob("*.ipynb"))
PRESETS = sorted(FOLDER.glob("presets/*.yaml"))
ABSOLUTE = re.compile(r"""["'](/(?!/)\w|~/|[A-Za-z]:\\)""")
PLACE = re.compile(
    r"/(home|root|tmp|Users|work|private|var)/|[A-Z]:\\\\Users|<IPython|0x[0-9a-f]{6}"
)
DRAWS = re.compile(
    r"\bplots\.(?!verdict\b)\w+\("
    r"|\b(widgets\.(explore|scores|sample|interact|latency|noise|exposed)|mia\.(roc|histogram)"
    r"|workshop\.game)\("
)


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request) -> dict:
    return json.loads(request.param.read_text(encoding="utf-8"))


def code(notebook: dict) -> list[str]:
    """Sources of the code cells; the parameters cell, a list of literals, has its own test."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [
        "".join(cell["source"])
        for cell in cells
        if "parameters" not in cell["metadata"].get("tags", [])
    ]


def test_there_are_notebooks_and_presets():
    assert NOTEBOOKS and PRESETS


def test_a_notebook_is_stripped_but_for_the_cells_that_keep_their_output(notebook):
    for cell in notebook["cells"]:
        assert bool(cell.get("outputs")) == stored.is_kept(cell), cell["id"]
        assert not cell.get("execution_count") and set(cell["metadata"]) <= {"tags", "jupyter"}
    kept = {stored.MADE_FROM} if any(map(stored.is_kept, notebook["cells"])) else set()
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"} | kept


@pytest.mark.parametrize("path", stored.books(), ids=lambda path: path.stem)
def test_stored_outputs_were_made_from_the_code_and_the_signals_of_today(path):
    book = json.loads(path.read_text(encoding="utf-8"))
    assert book["metadata"][stored.MADE_FROM] == stored.made_from(book), (
        f"its outputs are out of date: {stored.REFRESH} {path.relative_to(FOLDER.parent)}"
    )


@pytest.mark.parametrize("path", stored.books(), ids=lambda path: path.stem)
def test_stored_outputs_are_words_and_small_pictures_and_name_no_place(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    for output in outputs:
        data = output.get("data", {})
        assert set(data) <= {"image/png", "text/html", "text/markdown", "text/plain"}, (
            f"as JupyterLab saved it: {stored.REFRESH} {path.relative_to(FOLDER.parent)}"
        )
        assert len(data.get("image/png", "")) < 80_000
        assert output.keys().isdisjoint({"execution_count"}) and not output.get("metadata")
    words = json.dumps([{**o, "data": {**o.get("data", {}), "image/png": ""}} for o in outputs])
    assert not PLACE.search(words), PLACE.search(words)


@pytest.mark.slow
@pytest.mark.notebook
@pytest.mark.parametrize("path", stored.books(), ids=lambda path: path.stem)
def test_stored_outputs_say_what_a_run_says_today(path):
    shown = stored.run(path)
    for cell in filter(stored.is_kept, json.loads(path.read_text(encoding="utf-8"))["cells"]):
        assert stored.words(cell["outputs"]) == stored.words(shown[cell["id"]]), (
            f"its outputs are out of date: {stored.REFRESH} {path.relative_to(FOLDER.parent)}"
        )


def test_all_stored_outputs_stay_below_two_megabytes():
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 2.4e6


@pytest.mark.parametrize("path", FOLDER.glob("workshop/*.ipynb"), ids=lambda path: path.stem)
def test_no_cell_that_asks_or_checks_keeps_its_output(path):
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        asks = {"question", "exercise", "check"} & set(cell["metadata"].get("tags", []))
        assert not asks or not cell["outputs"]


def test_a_notebook_asks_for_the_kernel_python3(notebook):
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"


def test_cell_ids_are_there_and_name_one_cell_each(notebook):
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids) and notebook["nbformat_minor"] >= 5


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def test_cells_define_nothing_but_one_function_for_what_follows_controls(notebook):
    for source in code(notebook):
        nodes = ast.walk(ast.parse(source))
        defined = [node.name for node in nodes if isinstance(node, DEFINITIONS)]
        allowed = re.findall(r"widgets\.interact\(\s*(\w+)", source)
        assert defined == [name for name in allowed if name != "lambda"], source


def test_cells_that_draw_are_those_that_may_fail_and_they_say_nothing_else(notebook):
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        draws = cell["cell_type"] == "code" and bool(DRAWS.search(source))
        assert draws == is_figure(cell), source
        assert not draws or not {"verdict", "headline"} & set(cell["metadata"]["tags"]), source


def test_no_cell_needs_what_a_cell_that_draws_computed(notebook):
    drawn = set()
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            reads, writes = names_of("".join(cell["source"]))
            assert is_figure(cell) or not reads & drawn, (cell["id"], reads & drawn)
            drawn = drawn | writes if is_figure(cell) else drawn - writes


def names_of(source: str) -> tuple[set[str], set[str]]:
    """The names that a cell takes from cells before it, and those that it leaves to cells after it."""
    whole = symtable.symtable(source, "cell", "exec")
    writes = {one.get_name() for one in whole.get_symbols() if one.is_assigned()}
    tables = [whole]
    for table in tables:
        tables += table.get_children()
    reads = {
        one.get_name()
        for table in tables
        for one in table.get_symbols()
        if one.is_referenced() and (table is whole or one.is_global())
    }
    return reads - writes, writes


def test_no_cell_names_an_absolute_path(notebook):
    assert not [source for source in code(notebook) if ABSOLUTE.search(source)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_one_parameters_cell_holds_literals_with_type_and_help(path):
    tagged = [
        c
        for c in json.loads(path.read_text())["cells"]
        if "parameters" in c["metadata"].get("tags", [])
    ]
    assert len(tagged) == 1
    known = parameters.read_parameters(path)
    assert all(parameters.fit(p, p.default) == p.default for p in known.values())
    assert all(p.kinds and p.help for p in known.values())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_parameters_cell_is_short_and_names_few_fields_of_its_records(path):
    (cell,) = [
        c
        for c in json.loads(path.read_text())["cells"]
        if "parameters" in c["metadata"].get("tags", [])
    ]
    known = parameters.read_parameters(path)
    if path.stem == "00_prepare":
        pytest.skip("its parameters are the sizes of eleven parts")
    assert len(known) <= 14 and len(cell["source"]) <= 21
    assert max(len(line.rstrip()) for line in cell["source"]) <= 100
    records = {name: one.default for name, one in known.items() if name in parameters.RECORDS}
    assert all(len(fields) <= 6 for fields in records.values())
    assert parameters.complete(known, []).keys() == known.keys()


OPENING = [path for path in FOLDER.glob("[01]*.ipynb") if path.stem != "08_explore"]


@pytest.mark.parametrize("path", OPENING, ids=lambda path: path.stem)
def test_a_notebook_opens_with_its_question_and_answer_and_folds_what_few_change(path):
    cells = {cell["id"]: cell for cell in json.loads(path.read_text())["cells"]}
    title = "".join(cells["title"]["source"])
    assert "**Question.**" in title and "**Answer.**" in title and "```" not in title
    for name in ("advanced", "set-up"):
        assert cells[name]["metadata"] == {"jupyter": {"source_hidden": True}}


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_step_of_a_preset_names_a_notebook_and_its_parameters(path):
    steps = notebooks.plan("all", path.stem, [], [FOLDER])
    assert steps and all(step.notebook in NOTEBOOKS for step in steps)


def test_the_form_tests_find_what_they_look_for():
    assert (
        ABSOLUTE.search("open('/home/me/x')")
        and ABSOLUTE.search('"~/x"')
        and ABSOLUTE.search(r"'C:\x'")
    )
    assert (
        not ABSOLUTE.search("'https://x.org'")
        and not ABSOLUTE.search("a / b")
        and not ABSOLUTE.search("'results/x'")
    )
    assert PLACE.search("saved in /home/me/x")
