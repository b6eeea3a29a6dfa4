"""What a cell ends with is displayed as Jupyter and Voila would, not only computed."""

from __future__ import annotations

import ast
import doctest
import re
from pathlib import Path

import nbconvert
import nbformat
import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from test_readme import CODE, readers_own

import mia_nb as mia
from mia_nb import widgets
from mia_nb.auditing import shift_guard

ROOT = Path(__file__).parent.parent
LONGEST = 1500  # characters of text/plain that a reader scrolls past without harm
MODES = ("batch", "live")


@pytest.fixture(scope="module")
def shell():
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance()
    yield made
    InteractiveShell.clear_instance()


def displayed(value, shell) -> dict:
    """The MIME bundle that a notebook keeps of a value; an error in any representation is raised."""
    formatter = shell.display_formatter
    formatter.ipython_display_formatter.catch_return = None
    with capture_output() as captured:
        method = getattr(value, "_ipython_display_", None)
        if method is not None:
            method()
            return {"displayed": captured.outputs}
        for name in ("_repr_html_", "_repr_markdown_", "_repr_mimebundle_"):
            representation = getattr(type(value), name, None)
            if representation is not None:
                representation(value)
        bundle, _ = formatter.format(value)
    return bundle


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One of each public result, small."""
    root = tmp_path_factory.mktemp("results")
    images = mia.load("digits", limit=200)
    pool = mia.train(mia.Recipe(num_models=4, epochs=1), images, root=root, progress=False)
    signals = mia.query(pool, images, progress=False)
    scores = {name: mia.score(name, signals) for name in ("rmia", "loss")}
    control = mia.self_test(signals, ["rmia", "loss"], n_resamples=5)
    table = mia.summary(scores, self_test=control, n_resamples=20)
    x, y = np.random.default_rng(0).random((200, 6)), np.arange(200) % 2
    audit = mia.audit(lambda rows: 4 * rows[:, :2] - 2, (x[:100], y[:100]), (x[100:], y[100:]))
    values = {
        "images": images,
        "recipe": pool.recipe,
        "query": mia.Query(),
        "pool": pool,
        "signals": signals,
        "scores": scores["rmia"],
        "control": control,
        "table": table,
        "readable": mia.readable(table),
        "verdict": mia.verdict(scores, self_test=control, n_resamples=20),
        "limit": audit.verdict,
        "audit": audit,
        "shift": shift_guard(x, y, np.arange(200) < 100),
        "ladder": mia.ladder(delta=1e-5),
        "roc": mia.roc(scores),
        "histogram": mia.histogram(scores["rmia"], target=0),
        "source": widgets.sources(root)[0],
        "explorer": mia.explore(root)["Scores and ROC"],
        "tabs": mia.explore(root),
    }
    return values


NAMES = [
    "images",
    "recipe",
    "query",
    "pool",
    "signals",
    "scores",
    "control",
    "table",
    "readable",
    "verdict",
    "limit",
    "audit",
    "shift",
    "ladder",
    "roc",
    "histogram",
    "source",
    "explorer",
    "tabs",
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_every_public_result_is_displayed_in_every_form_that_it_has(
    name, mode, made, shell, monkeypatch
):
    monkeypatch.setenv("MIA_NB_MODE", mode)
    bundle = displayed(made[name], shell)
    assert bundle, name
    if "displayed" in bundle:
        assert bundle["displayed"], f"{name} shows nothing"


@pytest.mark.parametrize("name", NAMES)
def test_the_plain_text_of_a_result_is_short_and_has_no_memory_address(name, made):
    text = repr(made[name])
    if name in ("roc", "histogram", "table", "readable", "ladder", "audit"):
        return  # tables and figures of other libraries; an audit is its text
    assert len(text) < LONGEST, text[:300]
    assert not re.search(r" at 0x[0-9a-f]+>", text), text


@pytest.mark.parametrize("name", ["verdict", "limit", "audit", "control", "shift"])
def test_what_says_something_in_words_has_a_rich_form(name, made, shell):
    bundle = displayed(made[name], shell)
    assert {"text/html", "text/markdown"} & set(bundle), bundle.keys()


@pytest.mark.parametrize(
    ("name", "facts"),
    {
        "images": {"data set": "digits", "images": "200", "shape": "1 x 8 x 8"},
        "pool": {"network": "tinycnn", "models": "4", "images": "200", "set aside": "0"},
        "signals": {"models": "4", "queries": "1 (plain)", "membership": "known"},
        "scores": {"attack": "rmia", "targets": "4", "reference models on each side": "1"},
    }.items(),
)
def test_a_record_shows_what_it_holds_as_a_small_table(name, facts, made, shell):
    markup = displayed(made[name], shell)["text/html"]
    shown = dict(re.findall("<th>(.*?)</th><td>(.*?)</td>", markup))
    assert {fact: shown.get(fact) for fact in facts} == facts
    assert len(markup) < LONGEST


def cells_of(source: str) -> list[str]:
    """Each statement of a page as a cell, as somebody types it."""
    return [ast.get_source_segment(source, node) for node in ast.parse(source).body]


def docstring_cells() -> list[str]:
    examples = doctest.DocTestParser().get_examples(mia.__doc__)
    return [example.source for example in examples if example.exc_msg is None]


@pytest.fixture(scope="module")
def readers_folder(tmp_path_factory):
    """Where pages leave their results, which the second mode takes."""
    return tmp_path_factory.mktemp("reader")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("page", [pytest.param("README.md", marks=pytest.mark.slow), "docstring"])
def test_each_line_of_readme_and_docstring_is_run_and_displayed(
    page, mode, shell, monkeypatch, readers_folder
):
    monkeypatch.chdir(readers_folder)
    monkeypatch.setenv("MIA_NB_MODE", mode)
    if page == "README.md":
        names = readers_own()
        cells = [cell for block in CODE[page] for cell in cells_of(block)]
    else:
        names, cells = {}, docstring_cells()
    assert len(cells) > 8
    for cell in cells:
        tree = ast.parse(cell)
        last = tree.body[-1]
        if not isinstance(last, ast.Expr):
            exec(compile(tree, page, "exec"), names)
            if isinstance(last, ast.Assign) and isinstance(last.targets[0], ast.Name):
                displayed(names[last.targets[0].id], shell)
            continue
        value = eval(compile(ast.Expression(last.value), page, "eval"), names)
        if value is not None:
            assert displayed(value, shell), cell


@pytest.fixture
def renderer(monkeypatch):
    before = pio.renderers.default
    widgets.setup({})
    yield
    pio.renderers.default = before


def test_a_figure_leaves_a_line_where_it_cannot_be_drawn(renderer, shell, made):
    bundle = displayed(made["roc"], shell)
    bundle = bundle if "displayed" not in bundle else bundle["displayed"][0].data
    assert "application/vnd.plotly.v1+json" in bundle
    output = nbformat.v4.new_output("display_data", bundle)
    cells = [nbformat.v4.new_code_cell("fig", outputs=[output, output])]
    page, _ = nbconvert.HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=cells))
    assert page.count("[Figure: ") == 2


@pytest.mark.parametrize("title", ["<img src=x onerror=alert(1)>", None, {"text": "a<br>b & c"}])
def test_the_line_of_a_figure_runs_nothing(title, renderer):
    figure = go.Figure(layout={"title": title})
    words = pio.renderers["mia_nb"].to_mimebundle(figure.to_dict())["text/html"]
    assert "onerror" not in words and "<br>" not in words and words.startswith("<p>[Figure: ")
    assert not isinstance(title, dict) or "a b &amp; c" in words
