"""Every page of the site as Markdown, for `mkdocs build`: python docs/site.py [build folder]
[results folder].

This folder's pages, README and the like, the notebooks, and a reference made from docstrings
without importing what they stand in. Links between files of the repository become links between
pages. A notebook is shown executed where a run left it in the results and its cells are today's,
elsewhere with the outputs that it is stored with.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import html
import io
import json
import os
import posixpath
import re
import shutil
import sys
import textwrap
from pathlib import Path

import bleach
import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
PAGES = {  # pages that lie elsewhere in the repository: where they are on the site
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "license.md",
    "CITATION.cff": "citation.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
    "data/README.md": "data.md",
    "notebooks/workshop": "tutorials/index.md",
    "notebooks/README.md": "tutorials/index.md",
}
LINK = re.compile(r"(\]\(|(?:src|href)=\")([^)\s#\"]+)(?=[)\s#\"])")
# spaces of a table at which no line breaks: within an interval, and before a per cent
WITHIN = re.compile(r"(?<=\d) (?=%)|(?<=\d,) (?=[-+\d.]+\])")
PARAGRAPH = "\n\n"
PLOTLY = "application/vnd.plotly.v1+json"
LONG = 10  # a cell with more lines of code is folded
TABLE = ["table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td"]
TEXT = ["p", "div", "span", "br", "hr", "b", "strong", "i", "em", "small", "sub", "sup", "code"]
LISTS = ["ul", "ol", "li", "dl", "dt", "dd", "details", "summary", "abbr", "a", "pre"]
TAGS = [*TABLE, *TEXT, *LISTS, *(f"h{level}" for level in range(1, 7))]


@functools.cache
def notebooks() -> dict[Path, str]:
    """Each notebook and its page."""
    there = [
        path for part in ("", "workshop/") for path in sorted(ROOT.glob(f"notebooks/{part}*.ipynb"))
    ]
    return {
        path: f"tutorials/{path.relative_to(ROOT / 'notebooks').with_suffix('.md').as_posix()}"
        for path in there
    }


@functools.cache
def places() -> dict[str, str]:
    """What can be linked to in the repository: its place on the site."""
    books = {path.relative_to(ROOT).as_posix(): uri for path, uri in notebooks().items()}
    own = {
        path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix()
        for path in (ROOT / "docs").rglob("*")
        if path.is_file() and path.suffix != ".py"
    }
    modules = {}
    for path in (ROOT / "mia_nb").rglob("*.py"):
        room = path.relative_to(ROOT / "mia_nb").parts[0].removesuffix(".py")
        if room in rooms():
            modules[path.relative_to(ROOT).as_posix()] = f"reference/{room}.md"
    return own | books | PAGES | modules


def relinked(text: str, source: str, page: str) -> str:
    """Markdown of a file of the repository, its links leading to pages of the site."""
    known = places()

    def place(match: re.Match) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        if path not in known:
            return match[0]
        return match[1] + posixpath.relpath(known[path], posixpath.dirname(page) or ".")

    return LINK.sub(place, text)


def unbroken(text: str) -> str:
    """Markdown whose tables break no line within an interval; before it they may, to fit."""
    return "\n".join(
        WITHIN.sub("\u00a0", line) if line.startswith("|") else line for line in text.split("\n")
    )


def assigned(tree: ast.Module) -> list[tuple[str, ast.expr]]:
    """Names that a module sets, and what to."""
    sets = [node for node in tree.body if isinstance(node, (ast.Assign, ast.AnnAssign))]
    pairs = [(getattr(node, "target", None) or node.targets[0], node.value) for node in sets]
    return [(target.id, value) for target, value in pairs if isinstance(target, ast.Name)]


@functools.cache
def literal(name: str):
    """The value of a name of mia_nb/__init__.py."""
    tree = ast.parse((ROOT / "mia_nb" / "__init__.py").read_text())
    return ast.literal_eval(dict(assigned(tree))[name])


@functools.cache
def rooms() -> list[str]:
    return [room for room in literal("ROOMS") if source_of(room).exists()]


def source_of(room: str) -> Path:
    path = ROOT / "mia_nb" / room / "__init__.py"
    return path if path.exists() else path.parent.with_suffix(".py")


@functools.cache
def exported(room: str) -> list[str]:
    """The public names of a room, as the paths where they are defined.

    `__all__`; where there is none, the functions and classes that have docstrings.
    """
    tree = ast.parse(source_of(room).read_text())
    origin = {
        name.asname or name.name: f"{node.module}.{name.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    public = next((ast.literal_eval(v) for n, v in assigned(tree) if n == "__all__"), None)
    if public is None:
        kinds = (ast.FunctionDef, ast.ClassDef)
        own = [node for node in tree.body if isinstance(node, kinds) and ast.get_docstring(node)]
        public = [node.name for node in own if not node.name.startswith("_")]
    return [path for name in public if defined(path := origin.get(name, f"mia_nb.{room}.{name}"))]


@functools.cache
def definitions(path: str) -> tuple[str, dict[str, str]]:
    """A path's name, and what its module defines: each name with the docstring's first paragraph.

    Names that are set together in a line are left out.
    """
    module, _, name = path.rpartition(".")
    tree = ast.parse(source_of(module.removeprefix("mia_nb.").replace(".", "/")).read_text())
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = {node.name: first(node) for node in tree.body if isinstance(node, kinds)}
    return name, found | {name: "" for name, _ in assigned(tree)}


def defined(path: str) -> bool:
    name, found = definitions(path)
    return name in found


def first(node: ast.AST) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((ast.get_docstring(node) or "").partition(PARAGRAPH)[0].split())


def paragraphs(docstring: str) -> str:
    """A docstring as Markdown, its examples as code."""
    parts = docstring.split("\n\n")
    return "\n\n".join(f"```pycon\n{one}\n```" if one.startswith(">>>") else one for one in parts)


def table(rows: list[tuple[str, str]]) -> list[str]:
    cells = (f"| {left} | {right.replace('|', chr(92) + '|')} |" for left, right in rows)
    return ["| | |", "|---|---|", *cells, ""]


def reference() -> dict[str, str]:
    """Pages made from docstrings: the face, a page a room, the command line."""
    names, about, pages = [], [], {}
    for name, target in literal("FACE").items():
        room, _, inside = target.partition(":")
        path = next(path for path in exported(room) if path.rpartition(".")[2] == inside)
        names.append((f"[`mia.{name}`][{path}]", definitions(path)[1][inside]))
    for room in rooms():
        tree = ast.parse(source_of(room).read_text())
        about.append((f"[`{room}`]({room}.md)", first(tree)))
        entries = [f"::: {path}" for path in exported(room)]
        text = [f"# {room}", paragraphs(ast.get_docstring(tree) or ""), *entries]
        pages[f"reference/{room}.md"] = PARAGRAPH.join(text)
    whole = ast.get_docstring(ast.parse((ROOT / "mia_nb" / "__init__.py").read_text()))
    lines = ["# Reference", "", "`import mia_nb as mia` offers, imported when it is used:", ""]
    lines += [*table(names), "More is in its rooms, as in `from mia_nb import attacks`:", ""]
    lines += [*table(about), "## In one example", "", paragraphs(whole.partition(PARAGRAPH)[2])]
    pages["reference/index.md"] = "\n".join(lines)
    pages["reference/command-line.md"] = command_line()
    return pages


def command_line() -> str:
    """What `mia-nb --help` and the help of each command print."""
    from mia_nb import cli

    def printed(*words: str) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            cli.main([*words, "--help"])
        return f"```text\n{out.getvalue().strip()}\n```\n"

    os.environ["COLUMNS"] = "90"
    whole = printed()
    commands = re.findall(r"^    (\w+)", whole, re.MULTILINE)
    parts = [f"## mia-nb {command}\n\n{printed(command)}" for command in commands]
    return "\n".join(["# Command line", "", whole, *parts])


def text_of(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def cells_of(path: Path) -> list[dict]:
    return json.loads(path.read_text())["cells"]


def sources(cells: list[dict]) -> list[str]:
    """What tells whether two notebooks are one: their cells, less what a run adds."""
    kept = [c for c in cells if "injected-parameters" not in c["metadata"].get("tags", [])]
    return [text_of(cell["source"]) for cell in kept]


def executed(path: Path, results: Path) -> Path | None:
    """The notebook as the latest run left it, where its cells are those of today."""
    copies = sorted(results.glob(f"run-*/{path.name}"), key=lambda copy: -copy.stat().st_mtime)
    today = sources(cells_of(path))
    return next((copy for copy in copies if sources(cells_of(copy)) == today), None)


def keeps(path: Path) -> bool:
    """Whether a notebook is stored with outputs."""
    return any(cell.get("outputs") for cell in cells_of(path))


def tutorial(path: Path, copy: Path | None, page: str) -> str:
    """A notebook as Markdown, without the paths of the machine that it ran on."""
    source = path.relative_to(ROOT).as_posix()
    parts: list[str] = []
    folded: list[str] = []  # cells in a row whose code is folded in the notebook too
    for cell in cells_of(copy or path):
        text = text_of(cell["source"]).strip()
        outputs = list(map(shown, joined(cell.get("outputs", []))))
        if cell["metadata"].get("jupyter", {}).get("source_hidden") and text:
            folded.append(text)
            text = ""
        if folded and (text or outputs):
            parts.append(fold(PARAGRAPH.join(folded)))
            folded = []
        if cell["cell_type"] == "markdown":
            parts.append(relinked(text, source, page))
        elif text:
            parts.append(code(text))
        parts += outputs
    if folded:
        parts.append(fold(PARAGRAPH.join(folded)))
    title, _, lead = parts[0].partition("\n")
    about = "as the last run left it" if copy else "run it for more of its outputs"
    if not copy and not keeps(path):
        about = "run it for its outputs"
    parts[:1] = [title, f"*The notebook `{source}`: {about}.*", lead.strip()]
    if any('class="figure"' in part for part in parts):
        up = posixpath.relpath("assets/plotly.js", posixpath.dirname(page))
        parts.append(f'<script src="{up}"></script>')
    whole = PARAGRAPH.join(part for part in parts if part)
    return whole.replace(f"{copy.parent.parent.parent}/", "") if copy else whole


def code(text: str) -> str:
    if text.count("\n") < LONG:
        return f"```python\n{text}\n```"
    return fold(text)


def fold(text: str) -> str:
    """Code that a click shows."""
    lines = text.count("\n") + 1
    title = "Code, 1 line" if lines == 1 else f"Code, {lines} lines"
    return f'??? abstract "{title}"\n' + textwrap.indent(f"```python\n{text}\n```", "    ")


def joined(outputs: list[dict]) -> list[dict]:
    """Consecutive pieces of one stream made one; what went to stderr is left out."""
    whole: list[dict] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if whole and output["output_type"] == whole[-1]["output_type"] == "stream":
            text = text_of(whole[-1]["text"]) + text_of(output["text"])
            whole[-1] = whole[-1] | {"text": text}
        else:
            whole.append(output)
    return whole


def shown(output: dict) -> str:
    """One output as HTML, of which scripts and whatever loads something are left out."""
    data = output.get("data", {})
    if PLOTLY in data:
        figure = {name: data[PLOTLY].get(name, {}) for name in ("data", "layout")}
        record = json.dumps(figure, separators=(",", ":")).replace("<", "\\u003c")
        height = float(figure["layout"].get("height") or 450)
        place = f'<div class="figure" style="height:{height:.0f}px"></div>'
        return f'{place}\n<script type="application/json">{record}</script>'
    if "image/png" in data:
        alt = html.escape(text_of(data.get("text/plain", "picture")))
        return f'<img alt="{alt}" src="data:image/png;base64,{text_of(data["image/png"]).strip()}">'
    if "text/html" in data:
        markup = re.sub(r"<(script|style)\b.*?</\1\s*>", "", text_of(data["text/html"]), flags=re.S)
        markup = WITHIN.sub("\u00a0", bleach.clean(markup, tags=TAGS, strip=True))
        return f'<div class="output">{markup}</div>'
    if "text/markdown" in data:
        import markdown  # of the docs group: what else is made here does without

        markup = markdown.markdown(text_of(data["text/markdown"]), extensions=["tables"])
        return f'<div class="output">{bleach.clean(markup, tags=TAGS, strip=True)}</div>'
    lines = text_of(output.get("text") or data.get("text/plain") or "").strip().split("\n")
    text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
    return text and f'<div class="output"><pre>{html.escape(text)}</pre></div>'


def pages(results: Path) -> dict[str, str]:
    """The Markdown of every page; one line says which notebooks are shown executed."""
    own = {
        f"docs/{path.relative_to(ROOT / 'docs').as_posix()}" for path in ROOT.glob("docs/**/*.md")
    }
    made = {
        place: unbroken(relinked((ROOT / source).read_text(), source, place))
        for source, place in places().items()
        if source in own or (source in PAGES and source.endswith(".md"))
    }
    for source, title in (("LICENSE", "Licence"), ("CITATION.cff", "How to cite")):
        made[PAGES[source]] = f"# {title}\n\n```text\n{(ROOT / source).read_text()}\n```\n"
    copies = {path: executed(path, results) for path in notebooks()}
    made |= {page: tutorial(path, copies[path], page) for path, page in notebooks().items()}
    used = [copy for copy in copies.values() if copy]
    runs = ", ".join(sorted({copy.parent.name for copy in used}))
    stored = sum(keeps(path) for path, copy in copies.items() if not copy)
    print(
        f"{len(used)} of {len(copies)} notebooks shown executed, from {runs}"
        if used
        else f"no notebook shown executed: {results} has no run of them (make demo leaves one)",
        f"{stored} with the outputs that they are stored with",
        sep="; ",
    )
    return made | reference()


def settings(build: Path) -> dict:
    """mkdocs.yml, for pages in the build folder, with the notebooks and rooms in its menu."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    titles = {page: cells_of(path)[0]["source"] for path, page in notebooks().items()}
    titles = {page: text_of(text).partition("\n")[0].lstrip("# ") for page, text in titles.items()}
    parts = [page for page in titles if page.startswith("tutorials/workshop/")]
    numbers = {page: re.match(r"\d*", Path(page).stem)[0] for page in titles}
    alone = [{f"{numbers[p]} {titles[p]}".strip(): p} for p in titles if p not in parts]
    alone.sort(key=lambda entry: next(iter(entry))[0].isdigit())
    for section in config["nav"]:
        if "Tutorials" in section:
            section["Tutorials"] += [*alone, {"Workshop": ["workshop.md", *parts]}]
        if "Reference" in section:
            section["Reference"] += [f"reference/{room}.md" for room in rooms()]
    python = config["plugins"][-1]["mkdocstrings"]["handlers"]["python"]
    python["paths"] = [str(ROOT)]
    python["options"]["extensions"].append(str(ROOT / "docs" / "docstrings.py"))
    return config | {"docs_dir": "pages", "site_dir": "site"}


def main(build: str = "build", results: str = "results") -> None:
    folder = ROOT / build
    shutil.rmtree(folder / "pages", ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder / "pages", ignore=shutil.ignore_patterns("*.py", "*.md"))
    for page, text in pages(ROOT / results).items():
        (folder / "pages" / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / "pages" / page).write_text(text)
    if any('class="figure"' in path.read_text() for path in folder.glob("pages/tutorials/*.md")):
        from plotly.offline import get_plotlyjs

        (folder / "pages" / "assets" / "plotly.js").write_text(get_plotlyjs())
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(settings(folder), sort_keys=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
