"""Pages that need no network: of executed notebooks, and of an audit."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mia_nb import escape
from mia_nb._files import replacing
from mia_nb._glossary import explained, glossary
from mia_nb.report.markup import TEMPLATES, figure_title
from mia_nb.report.parts import part_of

if TYPE_CHECKING:
    from mia_nb.auditing.model_audit import ModelAudit
    from mia_nb.auditing.verdicts import LimitVerdict

DRAW = (TEMPLATES / "report" / "report.js").read_text(encoding="utf-8")


def page(
    notebooks: dict[Path, bytes],
    *,
    title: str = "Report",
    lead: str = "",
    provenance: dict | None = None,
) -> str:
    """The outputs of executed notebooks as one page that needs no network.

    Parameters:
        notebooks: {path: content} of executed .ipynb files, in the page's order. Paths are named in
            errors, and in the page for notebooks without a title.
        title: of the page.
        lead: a sentence or two below the title.
        provenance: {name: value}: what was run, where, with which versions; folded, at the end.

    Returns:
        HTML. At the top are the outputs of the cell tagged `verdict`, beside its notebook's
        picture; a cell that is also a notebook's headline is taken only if there is no other. Then
        every notebook shows its title, the first sentence of its text, which figures failed and
        why, the outputs of cells tagged `headline` as prose, and one picture: the first figure of a
        cell tagged `picture`, else its first figure.
        Everything else is folded and drawn when it is opened. Rows that were not run are left out.
        Plotly figures are drawn by plotly.js, inlined once (1.8 MB, packed; left out if there is no
        figure). Markdown and HTML of the notebooks are reduced to harmless tags, and a content
        security policy forbids every request and every script but the page's own two.

    Raises:
        ValueError: naming a file that is no notebook.

    Caveats: charts need JavaScript; LaTeX is shown as typed; colours of pandas Stylers are dropped.
    """
    parts = []
    for number, (path, content) in enumerate(notebooks.items(), start=1):
        parts.append(part_of(f"s{number}", path, content))
    with_verdict = [part for part in parts if part.verdict]
    with_verdict.sort(key=lambda part: part.verdict_is_headline)
    top = with_verdict[0] if with_verdict else None
    return _rendered(
        "page.html.j2",
        has_figures=any('class="figure"' in part.picture + part.rest for part in parts),
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
    """Write the audit of one finished model as one page that needs no network.

    Parameters:
        audit: of `mia_nb.audit`.
        out: the file.
        limits: verdicts of `ModelAudit.limits` on stated limits.
        name: what was audited, for the page's title.

    Returns:
        The path of the file.
    """
    from mia_nb.auditing.result import provenance
    from mia_nb.auditing.sentences import BELOW, EXCEEDED, OPEN, next_steps
    from mia_nb.auditing.verdicts import LimitsTable

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
        has_figures=True,
        title=f"Audit of {name}",
        outcome="Nothing can be concluded" if audit.doubt else title_of[audit.verdict.outcome],
        remarks=audit.remarks,
        headline=audit.headline,
        limits=LimitsTable(limits)._repr_html_(),
        steps=steps,
        figure=json.loads(figure.to_json()),
        figure_title=figure_title(figure.to_dict()),
        height=figure.layout.height or 450,
        tables={name: escape.html_table(table) for name, table in audit.views().items()},
        rest=[*audit.text.split("\n"), *(verdict.sentence for verdict in limits)],
        provenance={"date": facts["date"], **facts["versions"], **facts["hardware"]},
    )
    path = Path(out)
    with replacing(path) as file:
        file.write(page.encode())
    return path


def _rendered(template: str, *, has_figures: bool, **contents: Any) -> str:
    """A complete page: with its style, the script that draws, plotly.js if there are figures, and a
    content security policy that allows nothing else.
    """
    import jinja2

    loader = jinja2.FileSystemLoader(TEMPLATES / "report")
    environment = jinja2.Environment(loader=loader, autoescape=True)
    # a term is explained at its first mention on the page
    environment.filters["explained"] = partial(explained, terms=dict(glossary()))
    policy = "script-src 'none'"
    plotly = ""
    if has_figures:
        plotly = _packed_plotly()
        digest = base64.b64encode(hashlib.sha256(DRAW.encode()).digest()).decode()
        # report.js unpacks and executes plotly.js, which compiles functions for WebGL
        policy = f"script-src 'sha256-{digest}' 'unsafe-eval'"
    return environment.get_template(template).render(
        style=(TEMPLATES / "report" / "report.css").read_text(encoding="utf-8"),
        draw=DRAW,
        plotly=plotly,
        policy=f"default-src 'none'; {policy}; style-src 'unsafe-inline'; img-src data: blob:;"
        " base-uri 'none'; form-action 'none'",
        **contents,
    )


@cache
def _packed_plotly() -> str:
    """plotly.js, compressed, as text."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
