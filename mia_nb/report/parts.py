"""A notebook's part of a report: its question, its verdict, its result and one picture."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mia_nb.report.markup import PICTURES, PLOTLY, html_of

FIGURE = "raises-exception"  # tag of cells that draw: Jupyter goes on after an error in them
MOST_OF_AN_ERROR = 200  # characters
DRAWN_BY = re.compile(r"\b(?:plots|widgets|workshop|mia)\.\w+(?=\()")  # a call in a cell's source
PRINTED = re.compile(r'<pre class="stdout">(.*?)</pre>', re.DOTALL)


@dataclass(frozen=True)
class Part:
    """A notebook's part of the page. Anchor, title, question and failed figures are plain text; the
    other texts are HTML.
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


@lru_cache(maxsize=32)  # a run writes its report anew after each of its notebooks
def part_of(anchor: str, path: Path, content: bytes) -> Part:
    """A notebook's part of the page.

    Parameters:
        anchor: the name by which the page links to it.
        path: of the notebook, for messages and as the title of a notebook without one.
        content: of the file.

    Raises:
        ValueError: if the file is no notebook.
    """
    cells = _cells(path, content)
    verdict = _verdict(cells)
    picture = _picture(cells)
    headline = _headline(cells, verdict, picture)
    rest = html_of(_without(picture, cells))
    title, question = _title_and_question(rest)
    return Part(
        anchor=anchor,
        title=title or path.stem,
        question=question,
        failed_figures=errors_of_figures(cells),
        verdict=_as_prose(_html_of_outputs(verdict)).strip(),
        # a page takes such a verdict only if no notebook has one of its own
        verdict_is_headline=any("headline" in _tags(cell) for cell in _tagged(cells, "verdict")),
        headline=_as_prose(_html_of_outputs(headline)),
        picture=_html_of_outputs(picture),
        rest=rest,
    )


def _verdict(cells: list[dict]) -> list[dict]:
    """Prose and tables of the cells tagged `verdict`."""
    return [output for output in _outputs(_tagged(cells, "verdict")) if _is_prose_or_table(output)]


def _picture(cells: list[dict]) -> list[dict]:
    """The first picture of the cells tagged `picture`, or of all cells if none is tagged: a list of
    one output, or of none.
    """
    outputs = _outputs(_tagged(cells, "picture") or cells)
    return [output for output in outputs if _is_picture(output)][:1]


def _headline(cells: list[dict], verdict: list[dict], picture: list[dict]) -> list[dict]:
    """The outputs of the cells tagged `headline`, without pictures and without the verdict. Tables
    are left out where there is a picture, whose title says in words what they hold.
    """
    headline = []
    for output in _outputs(_tagged(cells, "headline")):
        if _is_picture(output) or _is_among(output, verdict):
            continue
        if picture and _is_table(output):
            continue
        headline.append(output)
    return headline


def _without(picture: list[dict], cells: list[dict]) -> list[dict]:
    """The cells without the picture, which stands above them on the page."""
    from nbformat import NotebookNode

    others = []
    for cell in cells:
        if "outputs" in cell:
            outputs = [output for output in cell["outputs"] if not _is_among(output, picture)]
            cell = NotebookNode(cell | {"outputs": outputs})
        others.append(cell)
    return others


def _html_of_outputs(outputs: list[dict]) -> str:
    from nbformat import v4

    return html_of([v4.new_code_cell(outputs=outputs)])


def _title_and_question(markup: str) -> tuple[str, str]:
    """(first heading; first question in the paragraph below it, or else that paragraph's first
    sentence), each "" if there is none.
    """
    heading = re.search(r"<h1>(.*?)</h1>\s*(?:<p>(.*?)</p>)?", markup, re.DOTALL)
    if heading is None:
        return "", ""
    title = _text(heading[1])
    paragraph = _text(heading[2] or "")
    # drop the statement of how long a part takes
    paragraph = re.sub(r"^\d+ minutes\.\s*(Elective\.)?", "", paragraph)
    sentences = re.findall(r".+?(?:[.?!](?=\s|$)|$)", paragraph, re.DOTALL)
    questions = [sentence for sentence in sentences if sentence.endswith("?")]
    first = next(iter(questions or sentences), "")
    return title, first.strip()


def _text(markup: str) -> str:
    """The text of some HTML, without its tags."""
    return html.unescape(re.sub(r"<[^>]+>", "", markup))


def _as_prose(markup: str) -> str:
    """Printed lines as paragraphs; an indented line continues the line above."""

    def paragraphs(match: re.Match) -> str:
        lines = re.sub(r"\n[ \t]+(?=\S)", " ", match[1]).splitlines()
        return "\n".join(f"<p>{line}</p>" for line in lines if line.strip())

    return PRINTED.sub(paragraphs, markup)


def is_figure(cell: dict) -> bool:
    """Whether a cell only draws, so that later cells do not need it."""
    return FIGURE in _tags(cell)


def errors_of_figures(cells: list[dict]) -> list[str]:
    """A line for each figure of an executed notebook that failed: its cell, the function that draws
    it, the error.
    """
    lines = []
    for cell in filter(is_figure, cells):
        name = cell.get("id", "")
        function = DRAWN_BY.search(cell["source"])
        if function is not None:
            name = f"{name} ({function[0]})"
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                reason = " ".join(f"{output['ename']}: {output['evalue']}".split())
                lines.append(f"figure {name}: {reason[:MOST_OF_AN_ERROR]}")
    return lines


def _tags(cell: dict) -> list[str]:
    return cell.get("metadata", {}).get("tags", [])


def _tagged(cells: list[dict], tag: str) -> list[dict]:
    return [cell for cell in cells if tag in _tags(cell)]


def _outputs(cells: list[dict]) -> list[dict]:
    return [output for cell in cells for output in cell.get("outputs", [])]


def _is_picture(output: dict) -> bool:
    return not {PLOTLY, *PICTURES}.isdisjoint(output.get("data", {}))


def _is_table(output: dict) -> bool:
    return "<table" in output.get("data", {}).get("text/html", "")


def _is_prose_or_table(output: dict) -> bool:
    """Whether an output is text: printed, an error, Markdown, or a table."""
    return "data" not in output or "text/markdown" in output["data"] or _is_table(output)


def _is_among(output: dict, outputs: list[dict]) -> bool:
    """Whether this very output, not an equal one, is among the outputs."""
    return any(output is other for other in outputs)


def _cells(path: Path, content: bytes) -> list[dict]:
    """The cells of a notebook; ValueError for content that is none."""
    import nbformat

    try:
        notebook = nbformat.reads(content.decode(), as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # libraries raise many kinds for a file of any content
        first_line, _, _ = str(error).strip().partition("\n")
        reason = first_line[:160]
        raise ValueError(
            f"{path} is not a notebook ({reason}); pass executed .ipynb files"
        ) from error
    return notebook["cells"]
