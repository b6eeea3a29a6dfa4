"""The documentation site: built from README, docs, notebooks and docstrings without a warning, every
link of it leads somewhere, and nothing of it is fetched from elsewhere.
"""

import ast
import doctest
import html
import importlib
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import yaml
from IPython.core.formatters import DisplayFormatter
from nbformat import v4

import mia_nb as mia
from mia_nb import auditing

ROOT = Path(__file__).parent.parent
NEEDED = ("mkdocs", "material", "mkdocstrings", "griffe_pydantic")
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
needs_docs = pytest.mark.skipif(
    bool(missing), reason=f"the docs group is not installed: {missing}; pip install '.[docs]'"
)
OWN = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("path", OWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_in_the_repository_leads_somewhere(path):
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text()):
        assert (path.parent / link).exists(), link


def test_every_attack_has_its_paper():
    tree = ast.parse((ROOT / "mia_nb/attacks/registry.py").read_text())
    (table,) = (node.value for node in tree.body if isinstance(node, ast.AnnAssign))
    page = (ROOT / "docs/attacks.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {
        key.value for key in table.keys
    }


def page_maker():
    """docs/site.py as a module."""
    spec = importlib.util.spec_from_file_location("page_maker", ROOT / "docs" / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_parameter_of_a_public_function_has_a_line_in_its_docstring():
    site, missing = page_maker(), {}
    for path in (path for room in site.rooms() for path in site.exported(room)):
        module, _, name = path.rpartition(".")
        source = site.source_of(module.removeprefix("mia_nb.").replace(".", "/"))
        found = [n for n in ast.parse(source.read_text()).body if getattr(n, "name", "") == name]
        for node in (n for n in found if isinstance(n, ast.FunctionDef)):
            names = {
                a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            }
            _, _, lines = (ast.get_docstring(node) or "").partition("\nParameters:\n")
            named = re.findall(r"^    ([\w*, ]+):", lines.partition("\n\n")[0], re.MULTILINE)
            if len(names) > 1 and (
                without := names - {n.strip() for t in named for n in t.split(",")}
            ):
                missing[path] = sorted(without)
    assert not missing


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/**/*.yml")), ids=lambda path: path.name)
def test_what_github_reads_is_yaml(path):
    found = yaml.safe_load(path.read_text())
    if "body" in found:
        assert found["name"] and all(field["attributes"]["label"] for field in found["body"])


def test_the_devcontainer_is_json():
    assert json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())["postCreateCommand"]


class Page(HTMLParser):
    """What a built page links to, what it loads, and its anchors."""

    def __init__(self, path: Path):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found.get("id"), found.get("name")}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe", "source", "video") and found.get("src"):
            self.loads.append(found["src"])
        if tag == "link" and found.get("rel") not in ("prev", "next", "canonical"):
            self.loads.append(found["href"])


def run_of(folder: Path, name: str) -> None:
    """An executed copy of a notebook, as a run leaves it, with one output of each kind."""
    book = json.loads((ROOT / "notebooks" / name).read_text())
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    figure = {"data": [{"y": [1, 2], "name": "</script>"}], "layout": {"title": {"text": "drawn"}}}
    table = "<table><tr><td>cell<script>bad()</script></td></tr></table>"
    code[0]["outputs"] = [
        {"output_type": "stream", "name": "stdout", "text": ["half\rwhole\n", "<b>line</b>"]},
        {"output_type": "display_data", "data": {"application/vnd.plotly.v1+json": figure}},
        {"output_type": "display_data", "data": {"text/html": table, "text/plain": "table"}},
    ]
    injected = {"cell_type": "code", "source": "epochs = 1", "outputs": [], "metadata": {}}
    injected["metadata"]["tags"] = ["injected-parameters"]
    book["cells"].insert(2, injected)
    (folder / "run-demo-0").mkdir(parents=True)
    (folder / "run-demo-0" / name).write_text(json.dumps(book))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """(the built site, what gathering its pages printed)."""
    build = tmp_path_factory.mktemp("docs")
    run_of(build / "results", "01_train.ipynb")
    book = json.loads((ROOT / "notebooks" / "03_attack.ipynb").read_text())
    book["cells"][0]["source"] = "# Of an earlier version"
    (build / "results" / "run-demo-0" / "03_attack.ipynb").write_text(json.dumps(book))
    gather = [sys.executable, ROOT / "docs" / "site.py", build, build / "results"]
    said = subprocess.run(gather, capture_output=True, text=True, check=True).stdout
    mkdocs = ["mkdocs", "build", "--strict", "--quiet", "-f", build / "mkdocs.yml"]
    built = subprocess.run(
        [sys.executable, "-m", *mkdocs],
        capture_output=True,
        text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert built.returncode == 0 and not built.stderr, built.stdout + built.stderr
    return build / "site", said


@needs_docs
@pytest.mark.slow
def test_the_site_has_every_page_and_no_dead_link(site):
    pages = {path.resolve(): Page(path) for path in site[0].rglob("*.html")}
    assert len(pages) > 60
    dead = []
    for path, page in pages.items():
        for link in page.links:
            at = urlsplit(link)
            if at.scheme or path.name == "404.html":
                continue
            target = (path.parent / unquote(at.path)).resolve() if at.path else path
            anchors = pages[target].anchors if target in pages else {""}
            if not target.is_file() or (at.fragment and unquote(at.fragment) not in anchors):
                dead.append(f"{path.relative_to(site[0].resolve())}: {link}")
    assert not dead


@needs_docs
@pytest.mark.slow
def test_no_two_pages_of_the_menu_have_one_name_and_none_stands_in_it_twice(site):
    def entries(nav: list) -> Iterator[tuple[str, str]]:
        for entry in nav:
            for name, rest in entry.items() if isinstance(entry, dict) else [("", entry)]:
                yield from entries(rest) if isinstance(rest, list) else [(name, rest)]

    build = site[0].parent
    menu = list(entries(yaml.safe_load((build / "mkdocs.yml").read_text())["nav"]))
    heads = {page: (build / "pages" / page).read_text() for _, page in menu}
    names = [name or re.search(r"^# (.+)$", heads[page], re.MULTILINE)[1] for name, page in menu]
    assert len(heads) == len(menu) and len({name.lower() for name in names}) == len(names)
    assert sum("results" in name.lower().split() for name in names) == 1
    places = [page for _, page in menu]
    assert places[places.index("workshop.md") + 1] == "tutorials/workshop/00_introduction.md"


@needs_docs
@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site):
    for path in site[0].rglob("*.html"):
        for source in Page(path).loads:
            assert not urlsplit(source).netloc, f"{path.name}: {source}"
    for path in site[0].rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", path.read_text()), path.name


@needs_docs
@pytest.mark.slow
def test_notebooks_are_shown_executed_where_a_run_left_them_as_they_are_today(site):
    built, said = site
    books = [*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("notebooks/workshop/*.ipynb")]
    stored = [path for path in books if '"image/png"' in path.read_text()]
    assert said.startswith(f"1 of {len(books)} notebooks shown executed, from run-demo-0; ")
    for path in stored:
        page = (built / "tutorials" / path.relative_to(ROOT / "notebooks")).with_suffix(".html")
        assert "data:image/png;base64," in page.read_text(), page
    text = (built / "tutorials" / "01_train.html").read_text()
    assert "<pre>whole\n&lt;b&gt;line&lt;/b&gt;</pre>" in text and "<td>cell</td>" in text
    (figure,) = re.findall(r'<script type="application/json">(\{"data.*?)</script>', text)
    assert json.loads(figure)["data"][0]["name"] == "</script>"
    assert "bad()" not in text and "assets/plotly.js" in text
    assert (built / "assets" / "plotly.js").stat().st_size > 1e6
    assert "Of an earlier version" not in (built / "tutorials" / "03_attack.html").read_text()


@needs_docs
def test_a_result_stands_on_the_site_as_text_and_a_hostile_name_in_it_as_letters():
    site = page_maker()
    scores = mia.score("rmia", mia.load_example("digits/ordinary-12"))
    hostile = "cats <img src=x onerror=alert(1)> [x](javascript:alert(1))"
    results = [
        mia.verdict(scores, about=hostile, n_resamples=20),
        auditing.shift_guard(np.eye(200), np.zeros(200, int), np.arange(200) < 100),
    ]
    for result in results:
        formatted, _ = DisplayFormatter().format(result)
        markup = site.shown({"output_type": "display_data", "data": formatted})
        assert type(result).__name__ + "(" not in markup + formatted["text/plain"]
        assert "<img" not in markup and "href" not in markup
        assert type(result).__name__ != "Verdict" or "<h3>cats &#60;img src" in markup


@needs_docs
def test_what_markdown_of_a_foreign_notebook_would_run_is_left_out_of_the_site():
    hostile = "**bold** <script>bad()</script> <img src=x onerror=bad()> [x](javascript:bad())"
    markup = page_maker().shown({"data": {"text/markdown": hostile}})
    assert "<strong>bold</strong>" in markup
    assert "<script" not in markup and "<img" not in markup and "href" not in markup


@needs_docs
@pytest.mark.slow
def test_the_reference_has_every_public_name_and_the_search_finds_it(site):
    index = (site[0] / "search" / "search_index.json").read_text()
    places = {entry["location"] for entry in json.loads(index)["docs"]}
    face = ast.literal_eval(
        re.search(r"^FACE = (\{.*?^\})", (ROOT / "mia_nb/__init__.py").read_text(), re.S | re.M)[1]
    )
    for target in face.values():
        room, _, name = target.partition(":")
        assert any(
            p.startswith(f"reference/{room}.html#") and p.endswith(f".{name}") for p in places
        )
    recipe = html.unescape((site[0] / "reference" / "types.html").read_text())
    assert "a number of images in an optimiser step, from 1 up" in recipe  # a field's description
    for page in (site[0] / "reference").glob("*.html"):  # what is typed at a prompt is code
        assert "<blockquote" not in page.read_text(), page.name


@needs_docs
def test_a_table_breaks_before_an_interval_and_not_within_one():
    line = "| RMIA | 0.592 [0.589, 0.594] | 0.58 % [0.51, 0.64] |"
    words = "| RMIA | 0.592 [0.589,\u00a00.594] | 0.58\u00a0% [0.51,\u00a00.64] |"
    assert page_maker().unbroken(f"{line}\n0.5 [0.4, 0.6]") == f"{words}\n0.5 [0.4, 0.6]"


@needs_docs
def test_cells_in_a_row_whose_code_a_notebook_folds_are_one_fold_of_the_page(tmp_path):
    cells = [v4.new_markdown_cell("# Title"), *(v4.new_code_cell(f"a = {n}") for n in range(4))]
    for cell in cells[1:4]:
        cell.metadata = {"jupyter": {"source_hidden": True}}
    cells[2].outputs = [v4.new_output("stream", text="said")]
    copy = tmp_path / "results" / "run" / "quickstart.ipynb"
    copy.parent.mkdir(parents=True)
    copy.write_text(json.dumps(v4.new_notebook(cells=cells)))
    notebook = ROOT / "notebooks" / "quickstart.ipynb"
    page = page_maker().tutorial(notebook, copy, "tutorials/quickstart.md")
    words = ["Code, 3 lines", "a = 0", "a = 1", "said", "Code, 1 line", "a = 2", "\na = 3"]
    places = [page.index(word) for word in words]
    assert places == sorted(places) and page.count("??? abstract") == 2


EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "mia_nb").rglob("*.py")
    if ">>>" in path.read_text() and path.name != "__init__.py"  # whose own test is test_face.py
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_docstrings_run(name, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIA_NB_MODE", "batch")
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed, capsys.readouterr().out


def what_was_measured() -> str:
    """The pages that hold what was measured, one after another."""
    pages = ("docs/results.md", "docs/claims.md", "benchmarks/RESULTS.md")
    return " ".join((ROOT / page).read_text(encoding="utf-8") for page in pages)


def intervals_in(text: str) -> list[str]:
    """Numbers with their intervals, as "0.517 [0.514, 0.519]"."""
    return re.findall(r"[-+]?\d?\.\d+ \[[^\]]+\]", " ".join(text.split()))


def test_every_interval_of_the_findings_stands_in_the_results_they_are_taken_from():
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    intervals = intervals_in(text)
    measured = what_was_measured()
    assert len(intervals) > 25
    assert [one for one in intervals if one not in measured] == []


def test_every_interval_of_a_notebooks_text_stands_in_the_results_it_is_taken_from():
    measured, intervals = what_was_measured(), []
    for path in (ROOT / "notebooks").rglob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                intervals += [(path.stem, one) for one in intervals_in("".join(cell["source"]))]
    assert len(intervals) > 25
    assert [(name, one) for name, one in intervals if one not in measured] == []


def rows_of(page: str, caption: str) -> list[list[str]]:
    """The cells of the first table after a line, without its head."""
    lines = page.partition(caption)[2].splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("|---"))
    body = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 1 :])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


def test_the_findings_say_what_the_tables_of_the_results_hold():
    findings = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    leads = rows_of(results, "Which attack leads")
    led = [cells[1] for cells in leads if cells[1].startswith("RMIA over")]
    sure = [sum("RMIA over" in c[n] and "not resolved" not in c[n] for c in leads) for n in (1, 2)]
    assert (
        f"Of these attacks RMIA leads in AUC on {len(led)} of {len(leads)} pools of networks,"
        f" resolved on {sure[0]}; at one false positive in a thousand its lead is resolved on"
        f" {sure[1]}." in findings
    )
    above = [cells[3] for cells in leads if cells[3].startswith("+")]
    clearly = [text for text in above if "not resolved" not in text]
    assert (
        f"LiRA with smoothed gaps, an extension of ours, has a higher AUC than RMIA on {len(above)}"
        f" of them, resolved on {len(clearly)}." in findings
    )
    equal = rows_of(results, "<!-- trained for less: begin")
    assert len(equal) > 5 and rows_of(findings, "<!-- equal: begin") == equal
    claims = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    decided = rows_of(findings, "<!-- claims: begin")
    assert len(decided) > 10
    for claim, verdict, number in decided:
        row = next(line for line in claims.splitlines() if line.startswith(f"| {claim} |"))
        assert f" | {verdict} | " in row and number.split(";")[0] in row


def test_the_findings_count_the_verdicts_of_the_page_of_claims():
    claims = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    findings = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    titles = {"snn": "spiking networks", "nsde": "neural ODEs and SDEs"}
    for study, title in titles.items():
        _, _, rest = claims.partition(f"verdicts: {study}: begin -->")
        lines = re.findall(r"^\| [SD]\d.*", rest.partition("<!-- verdicts")[0], re.MULTILINE)
        verdicts = [[cell.strip() for cell in line.strip("|").split("|")[-3:]] for line in lines]
        on_print, as_printed, extended = zip(*verdicts, strict=True)

        def count(column, *begins):
            return sum(cell.startswith(begins) for cell in column)

        whole = ("holds:", "holds (at")
        counts = [
            len(lines),
            count(on_print, "holds:"),
            count(on_print, "does not hold"),
            count(as_printed, *whole) + as_printed.count("holds"),
            count(as_printed, "not resolved"),
            count(as_printed, "not run"),
            count(extended, *whole) + extended.count("holds"),
            count(extended, "not resolved"),
        ]
        assert f"| {title} | {' | '.join(map(str, counts))} |" in findings
