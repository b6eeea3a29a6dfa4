"""Names that strangers chose (of classes, groups, data sets, runs, presets, pools, files, attacks)
in every place that shows them: they stand there, and do nothing.
"""

from __future__ import annotations

import dataclasses
import json
from html import unescape

import nbformat
import numpy as np
import pandas as pd
import pytest
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html
from nbformat import v4
from test_escape import Page
from worlds import world

import mia_nb as mia
from mia_nb import escape, metrics, store
from mia_nb.cli import main
from mia_nb.cli import run as runner
from mia_nb.cli.progress import Progress

IMAGE = "<img src=x onerror=alert(1)>"
LINK = "[x](javascript:alert(1)) | `y` $z$ # &lt;"
ESCAPES = "cat\x1b]0;owned\x07\x1b[2J\r\nmia-nb: all is well\u202e"
HOSTILE = [IMAGE, LINK, ESCAPES]
DANGEROUS = {"img", "script", "svg", "a", "iframe", "style", "code", "table"}


def assert_inert(markup: str, name: str, allowed: frozenset = frozenset()) -> None:
    """The name can be read in some HTML, and none of it is a tag."""
    page = Page(markup)
    assert not DANGEROUS - allowed & {*page.tags}
    assert not [key for key, _ in page.attributes if key.startswith("on")]
    assert " ".join(escape.terminal(name).split()) in " ".join(page.text.split())


def assert_printable(text: str) -> None:
    assert [c for c in text if not c.isprintable() and c not in "\n\xa0"] == []


def leaky(name: str) -> tuple[dict, np.ndarray]:
    """Scores under which the group of this name leaks most, and each sample's group."""
    signals = world(8, 400, leak=1.0)
    groups = np.array(["harmless", name], dtype=object)[(np.arange(400) % 2)]
    scores = mia.score("loss", signals)
    value = scores.value + 3 * scores.member * (groups == name)
    return {name: dataclasses.replace(scores, value=value)}, groups


@pytest.mark.parametrize("name", HOSTILE)
def test_a_verdict_names_class_data_set_and_attack_in_every_representation(name):
    scores, groups = leaky(name)
    found = mia.verdict(scores, groups=groups, about=f"{name}, ResNet14", n_resamples=50)
    assert any("Largest contribution" in sentence for sentence in found.sentences)
    page = markdown2html(found._repr_markdown_())
    assert_inert(page, name, frozenset("a"))  # the anchor of its heading
    assert page.count("<li>") == len(found.sentences) + len(found.next)
    assert_printable(str(found))
    assert len(str(found).split("\n")) == len(found.sentences) + 2


@pytest.mark.parametrize("name", HOSTILE)
def test_an_audit_of_a_finished_model_names_classes_and_groups(name):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 8)), np.arange(400) % 2

    def nearest(batch):
        far = ((batch[:, None] - x[None, :200]) ** 2).sum(2)
        return np.stack([-far[:, y[:200] == k].min(1) for k in (0, 1)], axis=1)

    groups = np.array([name, "harmless"], dtype=object)[(np.arange(400) // 2) % 2]
    found = mia.audit(
        nearest,
        (x[:200], y[:200]),
        (x[200:], y[200:]),
        classes=[name, "other"],
        groups=groups,
        n_resamples=20,
    )
    assert_inert(found._repr_html_(), name, frozenset({"table"}))
    assert_printable(repr(found))


@pytest.mark.parametrize("name", HOSTILE)
def test_images_and_scores_show_names_in_a_table(name):
    images = mia.load("digits", limit=20)._replace(name=name, classes=(name, "other"))
    scores = mia.score("loss", world(8, 40, leak=1.0))
    scores = dataclasses.replace(scores, info=scores.info | {"attack": name})
    for shown in (images, scores):
        assert_inert(shown._repr_html_(), name, frozenset({"table"}))


@pytest.fixture
def stored(tmp_path):
    """A results folder of a stranger: a pool and a run under hostile names."""
    (tmp_path / "results").mkdir()
    for kind, name in (("pool", IMAGE), ("run", ESCAPES)):
        recipe = {"steps": [], "model": ESCAPES, "num_models": 2}
        key = store.content_key([kind, name])
        folder = store.open_folder(tmp_path / "results", kind, name, key, recipe)
        folder.write_bytes("x.bin", b"1")
        # as it may come from elsewhere
        called = name.replace("/", "")
        folder.path.rename(folder.path.with_name(f"{kind}-{called}-{key[:12]}"))
        folder = store.find(key[:12], tmp_path / "results")
        if kind == "run":
            step = {"notebook": ESCAPES, "file": ESCAPES, "status": "failed", "started": "2026"}
            step |= {"seconds": 1.0, "error": ESCAPES}
            folder.write_json(runner.STATUS, {"steps": [step]})
    return tmp_path


def test_list_and_show_print_no_control_characters_and_one_line_a_result(
    stored, capsys, monkeypatch
):
    monkeypatch.chdir(stored)
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert_printable(text)
    assert len(text.splitlines()) == 3
    assert IMAGE in text and "cat\\x1b]0;owned\\x07\\x1b[2J  mia-nb: all is well\\u202e" in text
    for folder in store.folders("results"):
        assert main(["show", folder.key[:12]]) == 0
        text = capsys.readouterr().out
        assert_printable(text)
        assert "mia-nb: all is well" not in [line.strip()[:19] for line in text.splitlines()]


@pytest.mark.parametrize(
    "argv",
    [
        ["run", ESCAPES],
        ["run", "all", "--preset", ESCAPES],
        ["show", ESCAPES],
        ["clean", ESCAPES],
        ["params", ESCAPES + ".ipynb"],
        ["run", "01_train", "-p", f"{ESCAPES}=1"],
        ["run", "01_train", "-p", f"model={ESCAPES}"],
        ["audit", "--pool", ESCAPES],
        ["audit", "--logits", ESCAPES],
        [ESCAPES],
        ["run", "01_train", "--backend", ESCAPES],
        ["list", "--results", ESCAPES],
    ],
)
def test_messages_about_hostile_arguments_are_printable(argv, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        main(argv)
    except SystemExit as end:
        assert end.code
    out, err = capsys.readouterr()
    assert_printable(out + err)
    assert len((out + err).splitlines()) == 1


def test_the_verdict_after_a_run_is_the_text_that_markdown_showed(tmp_path, monkeypatch):
    monkeypatch.setattr("mia_nb.cli.report.SENTENCES", 20)
    scores, groups = leaky(IMAGE)
    found = mia.verdict(scores, groups=groups, about=f"{ESCAPES}", n_resamples=20)
    shown = v4.new_output("display_data", {"text/markdown": found._repr_markdown_()})
    cell = v4.new_code_cell("", metadata={"tags": ["verdict"]}, outputs=[shown])
    folder = store.open_folder(tmp_path, "run", "x", store.content_key("x"), {"steps": []})
    folder.write_bytes("a.ipynb", json.dumps(v4.new_notebook(cells=[cell])).encode())
    text = "\n".join(runner.verdict_lines(folder))
    assert_printable(text)
    plain = " ".join(text.replace("\xa0", " ").split())
    assert " ".join(found.title.split("\r\n")[0].replace("\x1b", "\\x1b").split())[:3] in plain
    assert IMAGE in plain and "&#" not in plain and "<span>" not in plain


def test_progress_of_a_run_shows_what_cells_print_without_their_control_characters(
    capsys, monkeypatch
):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    progress = Progress(f"{ESCAPES}.ipynb", 2)
    progress.bar.mininterval = 0
    progress.write(f"{ESCAPES} is trained")
    progress.end(outcome="")
    shown = capsys.readouterr().out
    assert "is trained" in shown
    assert_printable(shown.replace("\r", ""))


def test_a_table_that_a_notebook_ends_with_is_inert_in_the_page_that_nbconvert_makes():
    from IPython.core.formatters import DisplayFormatter

    from mia_nb.widgets import setup

    setup({})
    scores, groups = leaky(LINK)
    table = metrics.readable_groups(metrics.by_group(scores[LINK], groups, n_resamples=5))
    tables = [table, metrics.readable(metrics.summary(scores, n_resamples=5))]
    for shown in (*tables, pd.DataFrame({IMAGE: [LINK]})):
        data, _ = DisplayFormatter().format(shown)
        output = v4.new_output("display_data", data)
        node = v4.new_notebook(cells=[v4.new_code_cell("", outputs=[output])])
        page, _ = HTMLExporter(template_name="basic").from_notebook_node(nbformat.from_dict(node))
        assert "<img" not in page and "javascript:alert" in unescape(page)
        assert "mathjax_ignore" in page
