"""Cells of a notebook with their outputs as HTML that runs nothing and loads nothing."""

from __future__ import annotations

import importlib.metadata
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbconvert import HTMLExporter

TEMPLATES = Path(__file__).parents[1] / "templates"
PLOTLY = "application/vnd.plotly.v1+json"
PICTURES = ("image/png", "image/jpeg", "image/svg+xml")
WORDS = ("text/html", "text/markdown", "text/plain")
TAGS = """
a abbr b blockquote br caption code col colgroup dd del details div dl dt em figure figcaption
h1 h2 h3 h4 h5 h6 hr i img kbd li mark ol p pre s small span strong sub summary sup table tbody
td tfoot th thead tr u ul var
"""
# a row of a table with a cell that begins with "not run"
NOT_RUN = re.compile(r"<tr>(?:(?!</tr>).)*?<t[dh][^>]*>not run\b.*?</tr>", re.DOTALL)
# as pandas and as Python write it; a class may be named "Nan"
NAN = re.compile(r"(?<![\w.])(NaN|nan)(?![\w.])")
PROGRESS = re.compile(r".*: \d+ %, .* left\n")  # lines that are of interest during the run only
COLOURED = {"limits", "exceeded", "not-exceeded"}  # classes in report.css


def html_of(cells: list[dict]) -> str:
    """Cells with their outputs as HTML, by nbconvert; nothing is executed."""
    from nbformat import v4

    markup, _ = _exporter().from_notebook_node(v4.new_notebook(cells=cells))
    return markup


@cache
def _exporter() -> HTMLExporter:
    from nbconvert import HTMLExporter
    from nbconvert.preprocessors import CoalesceStreamsPreprocessor
    from traitlets.config import Config

    shown = [PLOTLY, *PICTURES, *WORDS]  # the first form that an output has
    return HTMLExporter(
        config=Config(NbConvertBase={"display_data_priority": shown}),
        template_name="report",
        extra_template_basedirs=[str(TEMPLATES)],
        extra_template_paths=[str(_stock_templates())],
        exclude_anchor_links=True,
        default_preprocessors=[],  # one of the defaults may execute notebooks, if configured
        preprocessors=[CoalesceStreamsPreprocessor],
        filters={
            "clean": _clean,
            "printed": _printed,
            "without_missing": _without_missing,
            "figure_title": figure_title,
            "figure_height": _figure_height,
        },
    )


def _stock_templates() -> Path:
    """The folder of nbconvert's own templates, also if nbconvert belongs to another environment."""
    files = importlib.metadata.files("nbconvert") or ()
    known = next((file for file in files if file.match("templates/base/null.j2")), None)
    if known is None:
        raise ValueError(
            "nbconvert's templates are not among its installed files: install nbconvert again"
        )
    return Path(known.locate()).resolve().parents[1]


def _printed(text: str) -> str:
    """The text without colours and progress, as a terminal shows it; "" if only blanks are left."""
    from nbconvert.filters import strip_ansi

    text = strip_ansi(text)
    text = PROGRESS.sub("", text)
    text = NAN.sub("–", text)
    return text if text.strip() else ""


def _without_missing(table: str) -> str:
    """A table without rows that were not run, or, if rows share a heading, with dashes in them; NaN
    becomes a dash too.
    """
    table = NAN.sub("–", table)
    if "rowspan" in table:
        return table.replace("not run", "–")
    return NOT_RUN.sub("", table)


def figure_title(figure: dict) -> str:
    """The title of a plotly figure, as it is in its JSON; "chart" for a figure without one."""
    title = figure.get("layout", {}).get("title")
    if isinstance(title, dict):
        title = title.get("text")
    return str(title or "chart")


def _figure_height(figure: dict) -> str:
    """The height of a figure, in pixels."""
    return f"{float(figure.get('layout', {}).get('height') or 450):.0f}"


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
    """HTML of a notebook reduced to harmless tags, which run nothing and load nothing."""
    import bleach

    markup = re.sub(r"<(script|style)\b.*?</\1\s*>", "", markup, flags=re.DOTALL | re.IGNORECASE)
    return bleach.clean(
        markup,
        tags=TAGS.split(),
        attributes=_is_harmless,
        protocols=["http", "https", "mailto", "data"],
        strip=True,
    )
