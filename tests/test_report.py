"""The offline page: everything shown, nothing fetched, nothing run."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest
from nbformat import v4
from plotly.offline import get_plotlyjs

from mia_nb import store
from mia_nb.cli.report import verdict_lines
from mia_nb.report.pages import DRAW, page

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def figure(title="A chart", kind=go.Scatter) -> dict:
    chart = go.Figure(
        kind(x=[1, 2, 3], y=[1, 3, 2], mode="markers"), layout={"title": {"text": title}}
    )
    return v4.new_output(
        "display_data",
        {"application/vnd.plotly.v1+json": json.loads(chart.to_json()), "text/html": "<b>no</b>"},
    )


def executed(
    path: Path, *outputs, markdown="# A title\n\n## A section\n\nProse.", source="secret_code = 1"
) -> Path:
    cells = [
        v4.new_markdown_cell(markdown),
        v4.new_code_cell(source, outputs=list(outputs), execution_count=1),
    ]
    path.write_text(json.dumps(v4.new_notebook(cells=cells)))
    return path


def export(paths: list[Path], **options) -> str:
    """The page of these notebooks."""
    return page({path: path.read_bytes() for path in paths}, **options)


def page_of(tmp_path: Path, *outputs, **options) -> str:
    path = executed(tmp_path / "a.ipynb", *outputs, **options)
    return export([path], title="T & T").partition("<body>")[2]


def test_prose_tables_streams_and_pictures_are_there_and_code_is_left_out(tmp_path):
    table = pd.DataFrame({"auc": [0.625]}, index=["lira"])
    page = page_of(
        tmp_path,
        v4.new_output("stream", name="stdout", text="epoch 1\repoch 2\rdo"),
        v4.new_output(
            "stream",
            name="stdout",
            text="ne\ntraining 8 tinycnn (stacked): 12 %, loss 1.2, 3 s left\n",
        ),
        v4.new_output("stream", name="stdout", text=["\x1b[31m", "red\x1b[0m\n"]),
        v4.new_output("display_data", {"text/html": table.to_html(), "text/plain": "no"}),
        v4.new_output("display_data", {"image/png": PIXEL + "\n", "text/plain": "no"}),
        v4.new_output(
            "display_data", {"image/svg+xml": "<svg xmlns='http://www.w3.org/2000/svg'/>"}
        ),
        v4.new_output("display_data", {"text/markdown": "**bold**"}),
        v4.new_output("execute_result", {"text/plain": "a < b"}),
        v4.new_output(
            "error", ename="ValueError", evalue="bad", traceback=["\x1b[31mValueError\x1b[0m: bad"]
        ),
    )
    assert re.search(r"<h1>T &amp; T</h1>", page) and re.search(
        r"<h2>A section</h2>\s*<p>Prose.</p>", page
    )
    assert '<li><a href="#s1">A title</a></li>' in page
    assert '<pre class="stdout">done\nred\n</pre>' in page and "epoch 1" not in page
    assert "<th>auc</th>" in page and "<td>0.625</td>" in page
    assert f'src="data:image/png;base64,{PIXEL}"' in page
    svg = re.search(r"data:image/svg\+xml;base64,([^\"]+)", page)[1]
    assert base64.b64decode(svg).startswith(b"<svg")
    assert (
        "<strong>bold</strong>" in page
        and "<pre>a &lt; b</pre>" in page
        and '<pre class="error">ValueError: bad</pre>' in page
    )
    assert "secret_code" not in page


def test_what_a_notebook_could_smuggle_in_neither_runs_nor_loads(tmp_path):
    evil = (
        "<script>alert(1)</script><img src=https://evil.example/a.png><img src=x"
        " onerror=alert(1)><iframe src=//evil.example><a"
        " href='javascript:alert(1)'>x</a><style>@import url(https://evil.example/a.css)</style><b"
        " onclick=alert(1)>kept</b>"
    )
    hostile = figure(title="</script><script>alert(1)</script>")
    page = page_of(
        tmp_path,
        v4.new_output("display_data", {"text/html": evil}),
        v4.new_output("display_data", {"image/png": '"><script>alert(1)</script>'}),
        v4.new_output("stream", name="stdout", text=evil),
        hostile,
        markdown=(
            f"# Title <script>alert(1)</script>\n\n{evil}\n\n![p](https://evil.example/b.png)"
            " [x](javascript:alert(1))"
        ),
        source=f"print('''{evil}''')",
    )
    text = re.sub(r"<pre.*?</pre>", "", page, flags=re.DOTALL)
    assert re.findall(r"<script[^>]*>", text) == [
        '<script class="figure" type="application/json">',
        '<script type="text/plain" id="plotly">',
        "<script>",
    ]
    before_plotly = text.partition("<script>")[0]
    assert not re.search(r"<(iframe|style|link|object|embed)\b|\son\w+=|javascript:", before_plotly)
    assert all(
        source.startswith("data:image/")
        for source in re.findall(r"<img[^>]*src=\"([^\"]*)\"", before_plotly)
    )
    assert "<b>kept</b>" in text


def test_figures_share_one_plotly_and_the_page_names_no_outside_address(tmp_path):
    first = executed(tmp_path / "a.ipynb", figure(), figure("Second"))
    second = executed(tmp_path / "b.ipynb", figure("Third"), markdown="no heading")
    page = export([first, second])
    assert page.count("<script>") == 1 and page.count('class="figure"') == 3 and DRAW in page
    packed = re.search(r'id="plotly">([^<]*)<', page)[1]
    assert gzip.decompress(base64.b64decode(packed)).decode() == get_plotlyjs()
    assert 1e6 < len(page) < 2.5e6
    assert not re.search(
        r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//", page
    )
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert (
        policy.startswith("default-src 'none'")
        and "http" not in policy
        and policy.count("sha256-") == 1
    )
    assert '<a href="#s2">b</a>' in page and 'aria-label="Third"' in page
    assert not list(tmp_path.glob(".tmp*"))


def test_what_nbconvert_is_told_to_do_elsewhere_executes_no_notebook(tmp_path, monkeypatch):
    config = tmp_path / "jupyter_nbconvert_config.py"
    config.write_text("c.ExecutePreprocessor.enabled = True")
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    source = "open('executed', 'w')"
    export([executed(tmp_path / "a.ipynb", source=source)])
    assert not (tmp_path / "executed").exists()


def test_a_page_without_figures_carries_no_script(tmp_path):
    page = export([executed(tmp_path / "a.ipynb")])
    assert "<script" not in page and "script-src 'none'" in page and len(page) < 10_000


def test_attached_pictures_of_markdown_are_inlined(tmp_path):
    path = executed(tmp_path / "a.ipynb", markdown="![p](attachment:a.png)")
    record = json.loads(path.read_text())
    record["cells"][0]["attachments"] = {"a.png": {"image/png": PIXEL}}
    path.write_text(json.dumps(record))
    assert f'<img alt="p" src="data:image/png;base64,{PIXEL}"/>' in export([path])


def test_a_file_that_is_no_notebook_is_named(tmp_path):
    (tmp_path / "a.ipynb").write_text("[]")
    with pytest.raises(ValueError, match=r"a\.ipynb is not a notebook"):
        export([tmp_path / "a.ipynb"])


def test_outside_the_folds_stand_verdict_question_headline_and_one_picture(tmp_path):
    def cell(name, *outputs, tag=None):
        made = v4.new_code_cell(f"code_of_{name}", outputs=list(outputs), execution_count=1)
        return made | {"metadata": {"tags": [tag]} if tag else {}}

    def said(text):
        return v4.new_output("stream", name="stdout", text=text)

    told = "### AUC is told\n\n* 7 % found\n\n| group |\n|---|\n| cats |"
    words = v4.new_output("display_data", {"text/markdown": told})
    cells = [
        v4.new_markdown_cell("# A title\n\nIs it *so*? And more of the like.\n\n## Below"),
        cell("verdict", words, tag="verdict"),
        cell("first", figure("First"), said("all the details")),
        cell("chosen", figure("Chosen"), tag="picture"),
        cell("headline", said("AUC .6"), tag="headline"),
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps(v4.new_notebook(cells=cells)))
    second = executed(
        tmp_path / "b.ipynb", said("more details"), figure("Only"), markdown="# Other"
    )
    facts = {"Python": "3.11", "<b>": "a & b"}
    page = export([tmp_path / "a.ipynb", second], provenance=facts)
    body = page.partition("<body>")[2]
    outside = re.sub(r"<details.*?</details>\n</section>", "", body, flags=re.DOTALL)
    for shown in ("7&nbsp;% found", "A title", "Is it so?", "AUC .6", ">Chosen<", ">Only<"):
        assert shown.strip("<>") in outside
    assert "<p>AUC .6</p>" in outside and "code_of" not in body
    for folded in ("all the details", "more details", "And more", "First", "Below"):
        assert folded in body and folded not in outside
    # the picture stands below the verdict's sentences; its tables are in the notebook's fold
    order = ("7&nbsp;% found", 'aria-label="Chosen"', 'id="s1"', ">cats</td>")
    places = [body.index(words) for words in order]
    assert places == sorted(places) and body.count(order[1]) == 1
    assert '<abbr title="chance that a random member' in outside
    assert body.count("<h2>A title</h2>") == 1
    assert "<th>&lt;b&gt;</th><td>a &amp; b</td>" in body.partition('id="provenance"')[2]
    plain = export([executed(tmp_path / "c.ipynb")])
    assert 'id="verdict"' not in plain and 'id="provenance"' not in plain


def test_a_figure_that_failed_is_said_in_a_line_outside_the_folds(tmp_path):
    path = executed(
        tmp_path / "a.ipynb",
        v4.new_output("error", ename="KeyError", evalue="'<b>'\n", traceback=["a trace"]),
        source="plots.roc_pair(scores)",
    )
    node = json.loads(path.read_text())
    node["cells"][1] |= {"id": "roc", "metadata": {"tags": ["raises-exception"]}}
    path.write_text(json.dumps(node))
    page = export([path])
    outside, _, folded = page.partition('<details class="rest">')
    assert "figure roc (plots.roc_pair): KeyError: &#39;&lt;b&gt;&#39;</pre>" in outside
    assert "a trace" in folded and "a trace" not in outside


def test_what_a_headline_prints_is_prose_and_an_indented_line_goes_on_with_the_one_above(tmp_path):
    printed = v4.new_output("stream", name="stdout", text="A < b,\n  and c.\n\nSecond.\n")
    cell = v4.new_code_cell("x", outputs=[printed]) | {"metadata": {"tags": ["headline"]}}
    cells = [v4.new_markdown_cell("# A title"), cell]
    (tmp_path / "a.ipynb").write_text(json.dumps(v4.new_notebook(cells=cells)))
    page = export([tmp_path / "a.ipynb"])
    outside = page.partition('<details class="rest">')[0]
    assert "<p>A &lt; b, and c.</p>\n<p>Second.</p>" in outside


@pytest.mark.parametrize(
    ("opening", "question"),
    [
        ("*12 minutes.* You play. By hand.", "You play."),
        ("*6 minutes.* *Elective.* A table says: 0.00.\nYou look.", "A table says: 0.00."),
        ("*10 minutes.* A network adds noise. What is left?", "What is left?"),
        ("12 minutes are enough.", "12 minutes are enough."),
    ],
)
def test_how_many_minutes_a_part_takes_is_no_question(tmp_path, opening, question):
    page = page_of(tmp_path, markdown=f"# A title\n\n{opening}")
    assert f"<h2>A title</h2>\n<p>{question}</p>" in page


def test_a_headline_that_is_a_verdict_stands_on_top_until_a_notebook_has_one_of_its_own(tmp_path):
    def notebook(name, words, *tags):
        told = v4.new_output("display_data", {"text/markdown": f"### Told\n\n* {words}"})
        cell = v4.new_code_cell("x", outputs=[told]) | {"metadata": {"tags": list(tags)}}
        cells = [v4.new_markdown_cell(f"# {name}"), cell]
        (tmp_path / f"{name}.ipynb").write_text(json.dumps(v4.new_notebook(cells=cells)))
        return tmp_path / f"{name}.ipynb"

    first = notebook("first", "shipped leak", "headline", "verdict")
    own = notebook("own", "trained leak", "verdict")
    for notebooks, top, below in (
        ([first], "shipped leak", None),
        ([first, own], "trained leak", "shipped leak"),
    ):
        body = export(notebooks).partition("<body>")[2]
        outside = re.sub(r"<details.*?</details>\n</section>", "", body, flags=re.DOTALL)
        above, _, rest = outside.partition("<nav")
        assert top in above and top not in rest and (below is None or below in rest)


def test_rows_of_what_was_not_run_are_left_out_and_no_number_is_called_nan(tmp_path):
    table = pd.DataFrame(
        {"verdict": ["holds", "not run", "not run (one pair)"], "auc": [0.5, 0.7, 0.8]},
        index=["S1", "S2", "S3"],
    )
    table.loc["S4"] = ["open", float("nan")]
    page = page_of(
        tmp_path,
        v4.new_output("display_data", {"text/html": table.to_html()}),
        v4.new_output("stream", name="stdout", text="mean nan, nanosecond"),
    )
    assert "S1" in page and "S4" in page and "<td>–</td>" in page and "mean –, nanosecond" in page
    assert not re.search(r"not run|S2|S3|NaN|\bnan\b", page)


def test_a_class_named_nan_with_a_capital_keeps_its_name(tmp_path):
    table = pd.DataFrame({"class": ["Nan", "Naan"], "auc": [0.5, float("nan")]})
    page = page_of(tmp_path, v4.new_output("display_data", {"text/html": table.to_html()}))
    assert "<td>Nan</td>" in page and "<td>–</td>" in page and "NaN" not in page


@pytest.mark.parametrize(
    "text",
    [
        '{"cells": [1]}',
        '{"cells": {"a": 1}}',
        "[" * 100_000,
        '{"cells":' + "[" * 100_000,
        "\x00",
        "",
    ],
)
def test_what_has_not_the_form_of_a_notebook_is_named_in_one_line(tmp_path, text):
    (tmp_path / "a.ipynb").write_text(text)
    with pytest.raises(ValueError, match=r"a\.ipynb is not a notebook") as caught:
        export([tmp_path / "a.ipynb"])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_verdict_is_said_in_lines_of_a_terminal_that_part_no_number_from_its_unit(tmp_path):
    folder = store.open_folder(tmp_path, "run", "one", "a" * 64, {}, version="1")
    words = (
        "### digits: told\n\n* "
        + "At 10 % false positives it finds 21 % of all. " * 4
        + "\n* B.\n* C.\n* D.\n"
    )
    cell = v4.new_code_cell("x", outputs=[v4.new_output("display_data", {"text/markdown": words})])
    plain = v4.new_notebook(cells=[v4.new_code_cell("x")])
    folder.write_json("a.ipynb", plain)
    assert verdict_lines(folder) == []
    cell["metadata"] = {"tags": ["verdict"]}
    folder.write_json("b.ipynb", v4.new_notebook(cells=[cell]))
    lines = verdict_lines(folder)
    assert lines[0] == "digits: told" and lines[-2:] == ["B.", "C."] and len(lines) > 4
    assert max(map(len, lines)) < 80 and not any(line.endswith(("10", "21")) for line in lines)


def test_a_report_is_made_where_nbconvert_belongs_to_another_environment(tmp_path):
    path = executed(tmp_path / "a.ipynb")
    program = (
        # Jupyter looks for templates in its own environment alone
        "import jupyter_core.paths, pathlib, sys\n"
        "jupyter_core.paths.jupyter_path = lambda *_: []\n"
        "from mia_nb.report.pages import page\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "print(page({path: path.read_bytes()}))"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
    assert "Prose." in done.stdout, done.stderr
