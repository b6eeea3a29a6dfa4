"""Executed notebooks -> one HTML page that needs no network: a verdict, then of every notebook its
question, its result in words and one picture; everything else is folded.

nbconvert turns cells into HTML by `templates/report/index.html.j2`; `page.html.j2` puts the page
together. Tags of cells say what stands outside the folds: `verdict`, `headline`, `picture`.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import importlib.metadata
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mia_nb import escape
from mia_nb._files import replacing, without_collection
from mia_nb._glossary import explained, glossary

if TYPE_CHECKING:
    from nbconvert import HTMLExporter

    from mia_nb.auditing.gate import LimitVerdict
    from mia_nb.auditing.model_audit import ModelAudit

TEMPLATES = Path(__file__).parent / "templates"
PLOTLY = "application/vnd.plotly.v1+json"
PICTURES = ("image/png", "image/jpeg", "image/svg+xml")
WORDS = ("text/html", "text/markdown", "text/plain")
FIGURE = "raises-exception"  # the tag of cells that draw: Jupyter goes on after an error in one
MOST_OF_AN_ERROR = 200  # characters
DRAWN_BY = re.compile(r"\b(?:plots|widgets|workshop|mia)\.\w+(?=\()")
TAGS = """
a abbr b blockquote br caption code col colgroup dd del details div dl dt em figure figcaption
h1 h2 h3 h4 h5 h6 hr i img kbd li mark ol p pre s small span strong sub summary sup table tbody
td tfoot th thead tr u ul var
"""
NOT_RUN = re.compile(r"<tr>(?:(?!</tr>).)*?<t[dh][^>]*>not run\b.*?</tr>", re.DOTALL)
NAN = re.compile(r"(?<![\w.])nan(?![\w.])", re.IGNORECASE)
PROGRESS = re.compile(r".*: \d+ %, .* left\n")  # of interest while it runs
COLOURED = {"limits", "exceeded", "not-exceeded"}  # classes in report.css
NEXT_STEP = "Next: "  # how a verdict's sentences on what to do begin
PRINTED = re.compile(r'<pre class="stdout">(.*?)</pre>', re.DOTALL)
DRAW = (TEMPLATES / "report" / "report.js").read_text(encoding="utf-8")


def page(
    notebooks: dict[Path, bytes],
    *,
    title: str = "Report",
    lead: str = "",
    provenance: dict | None = None,
) -> str:
    """The outputs of executed notebooks as one page that asks nothing of the network.

    Parameters:
        notebooks: {path: content} of executed .ipynb files, in the page's order; paths are named in
            errors and, where a notebook has no title, in the page.
        title: the page's.
        lead: a sentence or two under it.
        provenance: {name: value}: what was run, where, with which versions; folded, at the end.

    Returns:
        HTML. On top the outputs of the cell tagged `verdict`, beside its notebook's picture; one
        that is a notebook's headline too stands there only where there is no other. Then
        of every notebook its title, the first sentence of its text, which figures failed and why,
        the outputs of cells tagged `headline` as prose, and one picture: the first figure of a cell
        tagged `picture`, or else its first.
        Everything else is folded and drawn when it is opened. Rows of what was not run are left
        out. Every plotly figure is drawn by plotly.js, inlined once (1.8 MB, packed; left out where
        there is no figure). Markdown and HTML of the notebooks are reduced to harmless tags, and a
        content security policy forbids every request and every script but the page's own two.

    Raises:
        ValueError: naming a file that is no notebook.

    Caveats: charts need JavaScript; LaTeX is shown as typed; colours of pandas Stylers are dropped.
    """
    parts = [
        _part(f"s{number}", path, content)
        for number, (path, content) in enumerate(notebooks.items(), 1)
    ]
    with_verdict = [part for part in parts if part.verdict]
    top = min(with_verdict, key=lambda part: part.verdict_is_headline, default=None)
    figures = any('class="figure"' in part.picture + part.rest for part in parts)
    return _rendered(
        "page.html.j2",
        figures,
        title=title,
        lead=lead,
        parts=parts,
        top=top,
        provenance=provenance,
    )


def audit_page(
    audit: ModelAudit,
    out: str | Path,
    limits: Sequence[LimitVerdict] = (),
    *,
    name: str = "one finished model",
) -> Path:
    """Write the audit of one finished model as one page that asks nothing of the network.

    Parameters:
        audit: of `mia_nb.audit`.
        out: the file.
        limits: what `ModelAudit.limits` says of limits that were stated.
        name: what was audited, for the page's title.

    Returns:
        its path.
    """
    from mia_nb.auditing.gate import LimitsTable
    from mia_nb.auditing.result import provenance
    from mia_nb.auditing.sentences import BELOW, EXCEEDED, OPEN, next_steps

    title_of = {
        EXCEEDED: "Members are given away",
        OPEN: "Not shown to give members away",
        BELOW: "Members rank below non-members",
    }
    steps = next_steps(
        audit.verdict.outcome,
        doubt=audit.doubt,
        passed=audit.self_test.passed,
        retrained=len(audit.signals.member) > 1,
        verdicts=limits,
    )
    figure = audit.plot()
    facts = provenance({})
    page = _rendered(
        "audit.html.j2",
        True,
        title=f"Audit of {name}",
        outcome="Nothing can be concluded" if audit.doubt else title_of[audit.verdict.outcome],
        headline=audit.headline,
        limits=LimitsTable(limits)._repr_html_(),
        steps=steps,
        figure=json.loads(figure.to_json()),
        figure_title=_figure_title(figure.to_dict()),
        height=figure.layout.height or 450,
        tables={name: escape.html_table(table) for name, table in audit.views().items()},
        rest=audit.text.split("\n"),
        provenance={"date": facts["date"], **facts["versions"], **facts["hardware"]},
    )
    path = Path(out)
    with replacing(path) as file:
        file.write(page.encode())
    return path


def _rendered(template: str, figures: bool, **contents: Any) -> str:
    """A page that asks for nothing else: in it style, the script that draws, plotly.js where there
    are figures, and the content security policy that allows these alone.
    """
    import jinja2

    loader = jinja2.FileSystemLoader(TEMPLATES / "report")
    environment = jinja2.Environment(loader=loader, autoescape=True)
    # a term is explained where the page mentions it first
    environment.filters["explained"] = partial(explained, terms=dict(glossary()))
    policy = "script-src 'none'"
    if figures:
        digest = base64.b64encode(hashlib.sha256(DRAW.encode()).digest()).decode()
        # report.js unpacks plotly.js and executes it, and plotly.js compiles functions to draw gl
        policy = f"script-src 'sha256-{digest}' 'unsafe-eval'"
    return environment.get_template(template).render(
        style=(TEMPLATES / "report" / "report.css").read_text(encoding="utf-8"),
        draw=DRAW,
        plotly=_packed_plotly() if figures else "",
        policy=f"default-src 'none'; {policy}; style-src 'unsafe-inline'; img-src data: blob:;"
        " base-uri 'none'; form-action 'none'",
        **contents,
    )


@dataclass
class Part:
    """What the page shows of one notebook. All but the anchor, the title, the question, the
    figures that failed and the contents (of the fold, in words) is HTML.
    """

    anchor: str
    title: str
    question: str
    failed_figures: list[str]
    verdict: str
    verdict_is_headline: bool
    headline: str
    picture: str
    rest: str
    contents: str

    def verdict_around_picture(self) -> str:
        """The verdict, its heading made the page's: over the picture its first sentence and the
        first step to take, which are all that some readers want; the others below it.
        """
        words = re.sub(r"(?<=\d) %", "&nbsp;%", self.verdict)
        words = re.sub("<(/?)h3>", r"<\1h2>", words)
        heading, opening, items = words.partition("<ul>")
        items = re.findall(r"<li>(.*?)</li>", items, re.DOTALL)
        if not opening or not items:
            return words + self.picture
        steps = [item for item in items if item.startswith(NEXT_STEP)]
        first = [items[0], *steps[:1]]
        above = "\n".join(f"<p>{item}</p>" for item in dict.fromkeys(first))
        below = "\n".join(f"<li>{item}</li>" for item in items if item not in first)
        if below:
            below = f"<ul>\n{below}\n</ul>"
        return f"{heading}{above}\n{self.picture}{below}"


def _part(anchor: str, path: Path, content: bytes) -> Part:
    from nbformat import v4

    cells = _cells(path, content)
    failed_figures = lost_figures(cells)
    verdict_cells = [cell for cell in cells if "verdict" in _tags(cell)]
    headline_cells = [cell for cell in cells if "headline" in _tags(cell)]
    picture_cells = [cell for cell in cells if "picture" in _tags(cell)]
    pictures = [output for output in _outputs(picture_cells or cells) if _is_picture(output)]
    picture = pictures[:1]
    verdict = [
        output
        for output in _outputs(verdict_cells)
        if "data" not in output or "text/markdown" in output["data"] or _is_table(output)
    ]
    headline = [
        output
        for output in _outputs(headline_cells)
        if not _is_picture(output) and not _is_among(output, verdict)
    ]
    if picture:
        # its title says in words what a table holds
        headline = [output for output in headline if not _is_table(output)]
    for cell in cells:
        if "outputs" in cell:  # the picture is not shown twice
            cell["outputs"] = [o for o in cell["outputs"] if not _is_among(o, picture)]
    rest = _html(cells)
    title, question = _title_and_question(rest)
    return Part(
        anchor=anchor,
        title=title or path.stem,
        question=question,
        failed_figures=failed_figures,
        verdict=_as_prose(_html([v4.new_code_cell(outputs=verdict)])).strip(),
        verdict_is_headline=any(_is_among(cell, headline_cells) for cell in verdict_cells),
        headline=_as_prose(_html([v4.new_code_cell(outputs=headline)])),
        picture=_html([v4.new_code_cell(outputs=picture)]),
        rest=rest,
        contents=_contents(rest),
    )


def _title_and_question(markup: str) -> tuple[str, str]:
    """The first heading, and of the paragraph under it the first sentence that asks, or else the
    first; empty where there is none.
    """
    heading = re.search(r"<h1>(.*?)</h1>\s*(?:<p>(.*?)</p>)?", markup, re.DOTALL)
    if heading is None:
        return "", ""
    title, opening = (_text(words or "") for words in heading.groups())
    # how long a part takes is no question
    opening = re.sub(r"^\d+ minutes\.\s*(Elective\.)?", "", opening)
    sentences = re.findall(r".+?(?:[.?!](?=\s|$)|$)", opening, re.DOTALL)
    questions = [sentence for sentence in sentences if sentence.endswith("?")]
    first = (questions or sentences or [""])[0]
    return title, first.strip()


def _text(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", markup))


def _as_prose(markup: str) -> str:
    """What cells printed as paragraphs, one a line; an indented line goes on with the one above."""

    def paragraphs(match: re.Match) -> str:
        lines = re.sub(r"\n[ \t]+(?=\S)", " ", match[1]).splitlines()
        return "\n".join(f"<p>{line}</p>" for line in lines if line.strip())

    return PRINTED.sub(paragraphs, markup)


def _contents(markup: str) -> str:
    """What a fold holds: `2 tables, 1 picture and text`."""
    counts = {"table": markup.count("<table"), "picture": markup.count('class="plot"')}
    words = [f"{count} {noun}{'s' * (count > 1)}" for noun, count in counts.items() if count]
    return f"{', '.join(words)} and text" if words else "text"


def is_figure(cell: dict) -> bool:
    """Whether a cell draws and nothing else: what comes after it does without."""
    return FIGURE in _tags(cell)


def lost_figures(cells: list[dict]) -> list[str]:
    """A line for each figure of an executed notebook that failed: its cell, what was to draw it,
    the error.
    """
    lines = []
    for cell in filter(is_figure, cells):
        name = cell.get("id", "")
        if call := DRAWN_BY.search(cell["source"]):
            name = f"{name} ({call[0]})"
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                reason = " ".join(f"{output['ename']}: {output['evalue']}".split())
                lines.append(f"figure {name}: {reason[:MOST_OF_AN_ERROR]}")
    return lines


def _tags(cell: dict) -> list[str]:
    return cell.get("metadata", {}).get("tags", [])


def _outputs(cells: list[dict]) -> list[dict]:
    return [output for cell in cells for output in cell.get("outputs", [])]


def _is_picture(output: dict) -> bool:
    return not {PLOTLY, *PICTURES}.isdisjoint(output.get("data", {}))


def _is_table(output: dict) -> bool:
    return "<table" in output.get("data", {}).get("text/html", "")


def _is_among(item: dict, items: list[dict]) -> bool:
    """Whether it is one of these, and not only equal to one."""
    return any(item is other for other in items)


def _cells(path: Path, content: bytes) -> list[dict]:
    import nbformat

    try:
        with without_collection():
            notebook = nbformat.reads(content.decode(), as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # whatever stands there, and deep in libraries
        reason = str(error).strip().partition("\n")[0][:160]
        raise ValueError(
            f"{path} is not a notebook ({reason}); pass executed .ipynb files"
        ) from error
    return notebook["cells"]


def _html(cells: list[dict]) -> str:
    """Cells with their outputs as HTML, by nbconvert; nothing is executed."""
    from nbformat import v4

    markup, _ = _exporter().from_notebook_node(v4.new_notebook(cells=cells))
    return markup


@cache
def _exporter() -> HTMLExporter:
    from nbconvert import HTMLExporter
    from nbconvert.preprocessors import CoalesceStreamsPreprocessor
    from traitlets.config import Config

    shown = [PLOTLY, *PICTURES, *WORDS]  # of an output that comes in several forms the first
    return HTMLExporter(
        config=Config(NbConvertBase={"display_data_priority": shown}),
        template_name="report",
        extra_template_basedirs=[str(TEMPLATES)],
        extra_template_paths=[str(_stock_templates())],
        exclude_anchor_links=True,
        default_preprocessors=[],  # one of them executes notebooks where a configuration says so
        preprocessors=[CoalesceStreamsPreprocessor],
        filters={
            "clean": _clean,
            "printed": _printed,
            "without_missing": _without_missing,
            "figure_title": _figure_title,
            "figure_height": _figure_height,
        },
    )


def _stock_templates() -> Path:
    """nbconvert's own, beside it: also where this environment borrows it from another."""
    files = importlib.metadata.files("nbconvert") or ()
    known = next(file for file in files if file.match("templates/base/null.j2"))
    return Path(known.locate()).resolve().parents[1]


def _printed(text: str) -> str:
    """What a terminal would show at the end: no colours, no progress; empty for blank lines."""
    from nbconvert.filters import strip_ansi

    text = NAN.sub("–", PROGRESS.sub("", strip_ansi(text)))
    return text if text.strip() else ""


def _without_missing(table: str) -> str:
    """Without rows of what was not run; a dash for it where rows share a heading, and for NaN."""
    table = table.replace("not run", "–") if "rowspan" in table else NOT_RUN.sub("", table)
    return NAN.sub("–", table)


def _figure_title(figure: dict) -> str:
    title = figure.get("layout", {}).get("title")
    if isinstance(title, dict):
        title = title.get("text")
    return str(title or "chart")


def _figure_height(figure: dict) -> str:
    """In pixels."""
    return f"{float(figure.get('layout', {}).get('height') or 450):.0f}"


@cache
def _packed_plotly() -> str:
    """plotly.js, compressed, as text."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def _is_harmless(tag: str, name: str, value: str) -> bool:
    """Whether an attribute of a tag runs nothing and loads nothing."""
    if tag == "a":
        return name == "href" and re.match("https?://|mailto:|#", value) is not None
    if tag == "img":
        is_inline = name == "src" and value.startswith("data:image/")
        return is_inline or name in ("alt", "width", "height")
    if tag in ("td", "th"):
        return name in ("colspan", "rowspan")
    if tag in ("table", "tr"):  # colours of a table of limits
        return name == "class" and value in COLOURED
    return (tag, name) == ("abbr", "title")


def _clean(markup: str) -> str:
    """HTML of a notebook reduced to harmless tags: nothing that runs, nothing that loads."""
    import bleach

    markup = re.sub(r"<(script|style)\b.*?</\1\s*>", "", markup, flags=re.DOTALL | re.IGNORECASE)
    return bleach.clean(
        markup,
        tags=TAGS.split(),
        attributes=_is_harmless,
        protocols=["http", "https", "mailto", "data"],
        strip=True,
    )
