"""Executed notebooks -> one HTML page that needs no network: prose, tables, pictures, plotly
figures, code folded away.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from pathlib import Path

from mia_nb import __version__

PLOTLY = "application/vnd.plotly.v1+json"
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/svg+xml")
TAGS = """a abbr b blockquote br caption code col colgroup dd del details div dl dt em figure figcaption h1 h2 h3 h4 h5 h6 hr i
img kbd li mark ol p pre s small span strong sub summary sup table tbody td tfoot th thead tr u ul var"""
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PROGRESS = re.compile(r".*: \d+ %, .* left\n")  # of interest while it runs

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #666; --line: #d0d0d0;
  --paper: #fff; --tint: #f4f5f7; --link: #0072b2 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e4; --soft: #a0a0a0; --line: #444; --paper: #16181b; --tint: #212429; --link: #56b4e9 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2rem 1.2rem; max-width: 70rem; color: var(--ink); background: var(--paper);
  font: 16px/1.55 system-ui, sans-serif }
p, main > section > ul, main > section > ol { max-width: 50rem }
a { color: var(--link) }
header, footer { color: var(--soft) }
header h1 { color: var(--ink); margin-bottom: .2rem }
section { border-top: 1px solid var(--line); margin-top: 2.5rem; padding-top: .5rem }
nav { background: var(--tint); border-radius: 6px; padding: .8rem 1rem; margin: 1.5rem 0 }
nav > ol { columns: 22rem 2 } nav li { break-inside: avoid }
nav ol { margin: 0; padding-left: 1.4rem } nav ol ol { list-style: none; padding-left: 1rem }
pre, code { font: 13px/1.45 ui-monospace, monospace }
pre { overflow-x: auto; padding: .6rem .8rem; margin: .4rem 0; background: var(--tint); border-radius: 6px;
  white-space: pre-wrap }
pre.stderr { color: var(--soft) } pre.error { border-left: 4px solid #d55e00 }
details { margin: .6rem 0 } summary { cursor: pointer; color: var(--soft); font-size: 13px }
.table { overflow-x: auto } table { border-collapse: collapse; font-size: 14px; margin: .6rem 0 }
th, td { padding: .25rem .6rem; min-width: 4.5rem; border-bottom: 1px solid var(--line); text-align: right }
table.facts th, table.facts td { text-align: left; vertical-align: top; overflow-wrap: anywhere }
thead th { border-bottom-color: var(--soft) } tbody th { text-align: left }
img { max-width: 100% } .plot { width: 100%; min-height: 320px; margin: .6rem 0 }
@media print { body { max-width: none; padding: 0 } nav, details:not([open]), .modebar, noscript { display: none }
  .plot, tr, img { break-inside: avoid } h1, h2, h3, header { break-after: avoid } section { break-before: page }
  header ~ main > section:first-child { break-before: avoid; border: 0; margin-top: 0 }
  a { color: inherit; text-decoration: none } }
@page { margin: 14mm }
"""

DRAW = """
for (const block of document.querySelectorAll('script.figure')) {
  const figure = JSON.parse(block.textContent), place = block.previousElementSibling, layout = figure.layout || {};
  const own = layout.font && layout.font.color;
  layout.paper_bgcolor = 'rgba(0,0,0,0)';
  layout.autosize = true; delete layout.width;
  layout.font = {...layout.font};
  const ink = () => own || getComputedStyle(document.body).color;
  layout.font.color = ink();
  const config = {...figure.config, responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: ''};
  Plotly.newPlot(place, figure.data, layout, config);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => Plotly.relayout(place, {'font.color': ink()}));
}
"""


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
    text, out = page(there, title=title, provenance=provenance), Path(out)
    temporary = out.with_name(f".tmp-{os.getpid()}-{out.name}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, out)
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
        notebooks: {path: what the file holds}. What cells tagged `headline` put out stands on top,
            under "In short".
        title: of the page.
        lead: a sentence or two under the title.
        provenance: {name: value}, what was run, where, with which versions; at the end.

    Raises:
        ValueError: naming a file that is no notebook.

    Every plotly figure is drawn by plotly.js, inlined once (4.8 MB; left out where there is no
    figure). Markdown and HTML of the notebooks are reduced to harmless tags, and a content
    security policy forbids every request and every script but the page's own two.

    Caveats: charts need JavaScript; LaTeX is shown as typed; colours of pandas Stylers are dropped.
    """
    sections, contents, short = [], [], []
    for number, (path, data) in enumerate(notebooks.items(), 1):
        cells = _cells(path, data)
        body, headings = _number_headings("\n".join(map(_cell, cells)), f"s{number}")
        name = headings[0][2] if headings else html.escape(path.stem)
        inner = "".join(
            f'<li><a href="#{i}">{text}</a></li>' for level, i, text in headings[1:] if level == 2
        )
        contents.append(f'<li><a href="#s{number}">{name}</a>{inner and f"<ol>{inner}</ol>"}</li>')
        sections.append(f'<section id="s{number}">\n{body}\n</section>')
        if headline := "\n".join(
            _outputs(cell)
            for cell in cells
            if "headline" in cell.get("metadata", {}).get("tags", [])
        ):
            short.append(f'<h3><a href="#s{number}">{name}</a></h3>\n{headline}')
    if short:
        sections.insert(0, f'<section id="short"><h2>In short</h2>\n{"".join(short)}</section>')
        contents.insert(0, '<li><a href="#short">In short</a></li>')
    if provenance:
        rows = "".join(
            f"<tr><th>{html.escape(n)}</th><td>{html.escape(str(v))}</td></tr>"
            for n, v in provenance.items()
        )
        sections.append(
            '<section id="provenance"><h2>Provenance</h2><table'
            f' class="facts">{rows}</table></section>'
        )
        contents.append('<li><a href="#provenance">Provenance</a></li>')
    return _page(title, lead, contents, sections)


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


def _page(title: str, lead: str, contents: list[str], sections: list[str]) -> str:
    scripts = []
    if any('class="figure"' in section for section in sections):
        from plotly.offline import get_plotlyjs

        scripts = [get_plotlyjs(), DRAW]
    allowed = [
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'"
        for s in scripts
    ]
    # plotly.js compiles functions to draw gl traces
    allowed.append("'unsafe-eval'" if scripts else "'none'")
    policy = (
        f"default-src 'none'; script-src {' '.join(allowed)}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    title = html.escape(title)
    tags, body = "\n".join(f"<script>{s}</script>" for s in scripts), "\n".join(sections)
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
<header><h1>{title}</h1>mia_nb {__version__}<p>{html.escape(lead)}</p></header>
<nav aria-label="Contents"><ol>{"".join(contents)}</ol></nav>
<main>
{body}
</main>
{tags}
</body>
</html>
"""


def _number_headings(body: str, prefix: str) -> tuple[str, list[tuple[int, str, str]]]:
    """Give h1..h3 an id; return (body, [(level, id, text)])."""
    headings = []

    def tag(match):
        headings.append(
            (int(match[1]), f"{prefix}-{len(headings)}", re.sub(r"<[^>]+>", "", match[2]))
        )
        return f'<h{match[1]} id="{headings[-1][1]}">{match[2]}</h{match[1]}>'

    return re.sub(r"<h([1-3])>(.*?)</h\1>", tag, body, flags=re.DOTALL), headings


def _cell(cell: dict) -> str:
    source = cell.get("source", "")
    if cell.get("cell_type") == "markdown":
        return _markdown(source, cell.get("attachments", {}))
    if cell.get("cell_type") != "code" or not source.strip():
        return ""
    injected = "injected-parameters" in cell.get("metadata", {}).get("tags", [])
    summary = "parameters of this run" if injected else f"code {cell.get('execution_count') or ''}"
    code = f"<details{' open' if injected else ''}><summary>{summary}</summary><pre>{html.escape(source)}</pre></details>"
    return code + "\n" + _outputs(cell)


def _outputs(cell: dict) -> str:
    return "\n".join(map(_output, cell.get("outputs", [])))


def _output(output: dict) -> str:
    kind = output.get("output_type")
    if kind == "stream":
        name = "stderr" if output.get("name") == "stderr" else "stdout"
        text = PROGRESS.sub("", _terminal(output.get("text", "")))
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
        return f'<div class="table">{_clean(data["text/html"])}</div>'
    if "text/markdown" in data:
        return _markdown(data["text/markdown"], {})
    return f"<pre>{html.escape(data['text/plain'])}</pre>" if "text/plain" in data else ""


def _figure(figure: dict) -> str:
    layout = figure.get("layout", {})
    heading = layout.get("title") or {}
    label = heading.get("text") if isinstance(heading, dict) else heading
    height = layout.get("height") or 450
    record = {
        name: figure.get(name, empty)
        for name, empty in (("data", []), ("layout", {}), ("config", {}))
    }
    text = json.dumps(record, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<div class="plot" role="img" aria-label="{html.escape(str(label or "chart"))}"'
        f' style="height:{float(height):.0f}px"><noscript>This chart needs'
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
    protocols = ["http", "https", "mailto", "data"]
    return bleach.clean(
        markup, tags=TAGS.split(), attributes=attributes, protocols=protocols, strip=True
    )


def _terminal(text: str) -> str:
    """What a terminal would show: no colour codes, and of a line rewritten with carriage returns
    its last state.
    """
    lines = ANSI.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in lines)
