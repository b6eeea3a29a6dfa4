"""Executed notebooks -> one HTML page that needs no network: a verdict, then of every notebook its
question, its result in words and one picture; everything else folded.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from pathlib import Path
from typing import NamedTuple

from mia_nb._files import replacing
from mia_nb._glossary import explained, glossary

PLOTLY = "application/vnd.plotly.v1+json"
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/svg+xml")
TAGS = """
a abbr b blockquote br caption code col colgroup dd del details div dl dt em figure figcaption
h1 h2 h3 h4 h5 h6 hr i img kbd li mark ol p pre s small span strong sub summary sup table tbody
td tfoot th thead tr u ul var
"""
HERE = Path(__file__)
WORDS = ("text/markdown", "text/html", "text/plain")
FIGURE = "raises-exception"  # the tag of cells that draw: Jupyter goes on after an error in one
MOST_OF_AN_ERROR = 200  # characters
DRAWN_BY = re.compile(r"\b(?:plots|widgets|workshop|mia)\.\w+(?=\()")
ROLES = ("verdict", "headline", "picture")  # tags of cells whose outputs stand outside the folds
TABLE = re.compile(r'<div class="table">.*?</table>\s*</div>', re.DOTALL)  # as `_output` makes it
NOT_RUN = re.compile(r"<tr>(?:(?!</tr>).)*?<t[dh][^>]*>not run\b.*?</tr>", re.DOTALL)
NAN = re.compile(r"(?<![\w.])nan(?![\w.])", re.IGNORECASE)
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PROGRESS = re.compile(r".*: \d+ %, .* left\n")  # of interest while it runs

STYLE = HERE.with_name("report.css").read_text(encoding="utf-8")

DRAW = HERE.with_name("report.js").read_text(encoding="utf-8")


def export(
    notebooks: list[Path], out: Path, *, title: str = "Report", provenance: dict | None = None
) -> Path:
    """Write `page` of executed notebooks to a file; return its path.

    Parameters:
        notebooks: their paths.
        out: the file.
        title, provenance: as for `page`.

    Raises:
        ValueError: naming a file that is no notebook.
    """
    there = {path: path.read_bytes() if path.is_file() else b"" for path in map(Path, notebooks)}
    text = page(there, title=title, provenance=provenance)
    out = Path(out)
    with replacing(out) as file:
        file.write(text.encode())
    return out


def page(
    notebooks: dict[Path, bytes],
    *,
    title: str = "Report",
    lead: str = "",
    provenance: dict | None = None,
) -> str:
    """The outputs of executed notebooks as one page that asks nothing of the network.

    Parameters:
        notebooks: {path: content} of executed .ipynb files, in the page's order.
        title: the page's.
        lead: a sentence or two under it.
        provenance: {name: value}: what was run, where, with which versions; folded, at the end.

    Returns:
        HTML. On top the outputs of the cell tagged `verdict`, beside its notebook's picture; one
        that is a notebook's headline too stands there only where there is no other. Then
        of every notebook its title, the first sentence of its text, which figures failed and why,
        the outputs of cells tagged `headline`, and one picture: the first figure of a cell tagged
        `picture`, or else its first.
        Everything else is folded and drawn when it is opened. Rows of what was not run are left
        out. Every plotly figure is drawn by plotly.js, inlined once (4.8 MB; left out where there
        is no figure). Markdown and HTML of the notebooks are reduced to harmless tags, and a
        content security policy forbids every request and every script but the page's own two.

    Raises:
        ValueError: naming a file that is no notebook.

    Caveats: charts need JavaScript; LaTeX is shown as typed; colours of pandas Stylers are dropped.
    """
    terms = dict(glossary())
    parts = [_part(n, path, data) for n, (path, data) in enumerate(notebooks.items(), 1)]
    top = min(
        (part for part in parts if part.outputs["verdict"]),
        key=lambda part: part.outputs["verdict"] in part.outputs["headline"],
        default=None,
    )
    contents = "".join(f'<li><a href="#{part.id}">{part.name}</a></li>' for part in parts)
    sections = [
        top and f'<section id="verdict">{explained(top.verdict(), terms)}</section>',
        lead and f"<p>{html.escape(lead)}</p>",
        f'<nav aria-label="Contents"><ul>{contents}</ul></nav>',
        *(part.section(terms, is_top=part is top) for part in parts),
    ]
    if provenance:
        rows = "".join(
            f"<tr><th>{html.escape(n)}</th><td>{html.escape(str(v))}</td></tr>"
            for n, v in provenance.items()
        )
        sections.append(
            '<section id="provenance"><details><summary>Provenance: what was run, where, with which'
            f' versions</summary><table class="facts">{rows}</table></details></section>'
        )
    return _page(title, [section for section in sections if section])


class Part(NamedTuple):
    """A notebook on the page: its anchor, title and question; the figures that failed; HTML of what
    stands outside the fold by role, and of the rest; and what the rest holds.
    """

    id: str
    name: str
    question: str
    lost: list[str]
    outputs: dict[str, str]
    rest: str
    holds: str

    def verdict(self) -> str:
        """The verdict, its heading made the page's, over the picture; what to do next below it, so
        that a laptop's first screen holds the picture and its legend.
        """
        words = re.sub(r"(?<=\d) %", "&nbsp;%", self.outputs["verdict"])
        words = re.sub("<(/?)h3>", r"<\1h2>", words)
        picture = self.outputs["picture"]
        return (
            words.replace("<li>Next: ", f"</ul>{picture}<ul><li>Next: ")
            if "<li>Next: " in words
            else words + picture
        )

    def section(self, terms: dict[str, str], is_top: bool) -> str:
        """The notebook's section; that of the page's verdict and first picture links to them."""
        above = '<p><a href="#verdict">Its result is the verdict on top.</a></p>' * is_top
        words = self.outputs["headline"].replace(self.outputs["verdict"] * is_top, "")
        lost = "".join(f'<pre class="error">{html.escape(line)}</pre>\n' for line in self.lost)
        return (
            f'<section id="{self.id}">\n<h2>{self.name}</h2>\n<p>{self.question}</p>\n{lost}'
            f"{explained(words, dict(terms))}\n{above or self.outputs['picture']}\n"
            f'<details class="rest"><summary>All of this notebook: {self.holds}</summary>\n'
            f"{self.rest}\n</details>\n</section>"
        )


def _part(number: int, path: Path, data: bytes) -> Part:
    cells = _cells(path, data)
    shown = {role: [cell for cell in cells if role in _tags(cell)] for role in ROLES}
    outputs = {
        "verdict": _outputs(*shown["verdict"], kinds=("text/markdown",)),
        "headline": _outputs(*shown["headline"], kinds=WORDS),
    }
    figures = (
        output
        for cell in shown["picture"] or cells
        for output in cell.get("outputs", [])
        if _drawn(output)
    )
    picture = next(figures, None)
    outputs["picture"] = _output(picture) if picture else ""
    if picture:  # shown outside the fold, not twice; its title says in words what a table holds
        outputs["headline"] = TABLE.sub("", outputs["headline"])
        for cell in cells:
            cell["outputs"] = [one for one in cell.get("outputs", []) if one is not picture]
    body = "\n".join(map(_cell, cells))
    heading = re.search(r"<h1>(.*?)</h1>\s*(?:<p>(.*?)</p>)?", body, re.DOTALL)
    words = [re.sub(r"<[^>]+>", "", text or "") for text in heading.groups()] if heading else []
    counts = {"table": body.count("<table"), "picture": body.count('class="plot"')}
    holds = [f"{count} {what}{'s' * (count > 1)}" for what, count in counts.items() if count]
    name, opening = words or (html.escape(path.stem), "")
    told = re.sub(r"^\d+ minutes\.\s*(Elective\.)?", "", opening)  # how long is no question
    sentences = re.findall(r".+?(?:[.?!](?=\s|$)|$)", told, re.DOTALL)
    question = next((one for one in sentences if one.endswith("?")), "".join(sentences[:1]))
    holds = ", ".join([*holds, "code and text"])
    return Part(f"s{number}", name, question.strip(), lost_figures(cells), outputs, body, holds)


def is_figure(cell: dict) -> bool:
    """Whether a cell draws and nothing else: what comes after it does without."""
    return FIGURE in _tags(cell)


def lost_figures(cells: list[dict]) -> list[str]:
    """A line for each figure of an executed notebook that failed: its cell, what was to draw it,
    the error.
    """
    lines = []
    for cell in filter(is_figure, cells):
        errors = [one for one in cell.get("outputs", []) if one["output_type"] == "error"]
        call = DRAWN_BY.search(cell["source"])
        for error in errors:
            reason = " ".join(f"{error['ename']}: {error['evalue']}".split())
            name = f"{cell.get('id', '')} ({call[0]})" if call else cell.get("id", "")
            lines.append(f"figure {name}: {reason[:MOST_OF_AN_ERROR]}")
    return lines


def _tags(cell: dict) -> list[str]:
    return cell.get("metadata", {}).get("tags", [])


def _cells(path: Path, data: bytes) -> list[dict]:
    """The cells of a notebook, consecutive pieces of one stream made one."""
    import nbformat
    from nbconvert.preprocessors import CoalesceStreamsPreprocessor

    try:
        node = nbformat.reads(data.decode(), as_version=4)
        nbformat.validate(node)
    except Exception as error:  # whatever stands there, and deep in libraries
        reason = str(error).strip().partition("\n")[0][:160]
        raise ValueError(
            f"{path} is not a notebook ({reason}); pass executed .ipynb files"
        ) from error
    return CoalesceStreamsPreprocessor().preprocess(node, {})[0]["cells"]


def _page(title: str, sections: list[str]) -> str:
    code, allowed = "", "'none'"
    if any('class="figure"' in section for section in sections):
        from plotly.offline import get_plotlyjs

        packed = base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
        code = f'<script type="text/plain" id="plotly">{packed}</script>\n<script>{DRAW}</script>'
        known = base64.b64encode(hashlib.sha256(DRAW.encode()).digest()).decode()
        # plotly.js is unpacked by the page's own script, and compiles functions to draw gl traces
        allowed = f"'sha256-{known}' 'unsafe-eval'"
    policy = (
        f"default-src 'none'; script-src {allowed}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    title = html.escape(title)
    body = "\n".join(sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1>{title}</h1></header>
<main>
{body}
</main>
{code}
</body>
</html>
"""


def _cell(cell: dict) -> str:
    source = cell.get("source", "")
    if cell.get("cell_type") == "markdown":
        return _markdown(source, cell.get("attachments", {}))
    if cell.get("cell_type") != "code" or not source.strip():
        return ""
    injected = "injected-parameters" in _tags(cell)
    summary = "parameters of this run" if injected else f"code {cell.get('execution_count') or ''}"
    code = f"<details><summary>{summary}</summary><pre>{html.escape(source)}</pre></details>"
    return code + "\n" + _outputs(cell)


def _outputs(*cells: dict, kinds: tuple[str, ...] = ()) -> str:
    """What cells put out; kinds: only what is of one of these, and prints."""
    return "\n".join(
        _output(output)
        for cell in cells
        for output in cell.get("outputs", [])
        if not kinds
        or "data" not in output
        or ({*kinds} & {*output["data"]} and not _drawn(output))
    )


def _drawn(output: dict) -> bool:
    return bool({PLOTLY, *PICTURES} & {*output.get("data", {})})


def _output(output: dict) -> str:
    kind = output.get("output_type")
    if kind == "stream":
        name = "stderr" if output.get("name") == "stderr" else "stdout"
        text = NAN.sub("–", PROGRESS.sub("", _terminal(output.get("text", ""))))
        return text.strip() and f'<pre class="{name}">{html.escape(text)}</pre>'
    if kind == "error":
        trace = (
            _terminal("\n".join(output.get("traceback", [])))
            or f"{output.get('ename')}: {output.get('evalue')}"
        )
        return f'<pre class="error">{html.escape(trace)}</pre>'
    data = output.get("data", {})
    if PLOTLY in data:
        return _figure(data[PLOTLY])
    for mime in PICTURES:
        if mime in data:
            raw = data[mime]
            encoded = (
                base64.b64encode(raw.encode()).decode()
                if "svg" in mime
                else re.sub(r"[^A-Za-z0-9+/=]", "", raw)
            )
            return (
                f'<img alt="{html.escape(data.get("text/plain", "picture"))}"'
                f' src="data:{mime};base64,{encoded}">'
            )
    if "text/html" in data:
        return f'<div class="table">{_without_missing(_clean(data["text/html"]))}</div>'
    if "text/markdown" in data:
        return _markdown(data["text/markdown"], {})
    return f"<pre>{html.escape(data['text/plain'])}</pre>" if "text/plain" in data else ""


def _without_missing(table: str) -> str:
    """Without rows of what was not run; a dash for it where rows share a heading, and for NaN."""
    table = table.replace("not run", "–") if "rowspan" in table else NOT_RUN.sub("", table)
    return NAN.sub("–", table)


def _figure(figure: dict) -> str:
    layout = figure.get("layout", {})
    heading = layout.get("title") or {}
    label = heading.get("text") if isinstance(heading, dict) else heading
    record = {
        name: figure.get(name, empty)
        for name, empty in (("data", []), ("layout", {}), ("config", {}))
    }
    text = json.dumps(record, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<div class="plot" role="figure" aria-label="{html.escape(str(label or "chart"))}"'
        f' style="height:{float(layout.get("height") or 450):.0f}px"><noscript>This chart needs'
        ' JavaScript.</noscript></div>\n<script type="application/json"'
        f' class="figure">{text}</script>'
    )


def _markdown(source: str, attachments: dict) -> str:
    import mistune

    for name, bundle in attachments.items():
        for mime, data in bundle.items():
            source = source.replace(f"attachment:{name}", f"data:{mime};base64,{data}")
    render = mistune.create_markdown(
        renderer=mistune.HTMLRenderer(escape=False, allow_harmful_protocols=["data:image/"]),
        plugins=["table", "strikethrough", "def_list"],
    )
    return _clean(str(render(source)))


def _clean(markup: str) -> str:
    """Reduce to harmless tags: nothing that runs, nothing that loads."""
    import bleach

    markup = re.sub(r"<(script|style)\b.*?</\1\s*>", "", markup, flags=re.DOTALL | re.IGNORECASE)
    attributes = {
        "a": lambda tag, name, value: name == "href" and re.match("https?://|mailto:|#", value),
        "abbr": ["title"],
        "th": ["colspan", "rowspan"],
        "td": ["colspan", "rowspan"],
        "img": lambda tag, name, value: (
            name in ("alt", "width", "height")
            or (name == "src" and value.startswith("data:image/"))
        ),
    }
    return bleach.clean(
        markup,
        tags=TAGS.split(),
        attributes=attributes,
        protocols=["http", "https", "mailto", "data"],
        strip=True,
    )


def _terminal(text: str) -> str:
    """What a terminal would show: no colour codes, and of a line rewritten with carriage returns
    its last state.
    """
    lines = ANSI.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in lines)
