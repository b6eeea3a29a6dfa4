"""A plotly figure that a kernel can redraw: JSON goes to the browser, clicks and selections come
back.

Plotly's FigureWidget stores plotly.js in the notebook once per figure. Here one `Library` per
kernel holds it, compressed, and every `Figure` refers to it, so that a saved notebook of many
figures stays below 3 MB. Between two drawings a figure is a dict of plain values.
"""

import gzip
import json
import math
from functools import cache
from pathlib import Path

import anywidget
import plotly.graph_objects as go
import traitlets
from ipywidgets import widget_serialization

from mia_nb.plots.style import GREY, LINES

LIBRARY = "export default {render() {}};"
# gzip's level, which delays the first picture: half the time of level 9, and 1 % larger
PACKED = 5
MARK = {"color": LINES[2], "width": 3}  # a conspicuous vertical line


def script(name: str) -> str:
    """A JavaScript file beside this one as one line, without comments, as a saved notebook holds it
    once per figure. Every statement in it ends in a semicolon or a brace.
    """
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines()]
    return " ".join(line for line in lines if not line.startswith("//"))


class Library(anywidget.AnyWidget):
    """plotly.js, compressed."""

    _esm = LIBRARY
    source = traitlets.Bytes().tag(sync=True)


class Figure(anywidget.AnyWidget):
    """`figure` as JSON, redrawn when `count` changes; `event`: {"kind": "click" | "select" |
    "drag", "numbers": customdata, "x": ...}.
    """

    _esm = script("figure.js").replace("GREY", GREY)
    library = traitlets.Instance(Library).tag(sync=True, **widget_serialization)
    figure = traitlets.Unicode().tag(sync=True)
    count = traitlets.Int(0).tag(sync=True)
    event = traitlets.Dict().tag(sync=True)

    def __init__(self, figure: dict):
        super().__init__(library=library(), figure=json.dumps(figure, separators=(",", ":")))

    def show(self, figure: dict) -> None:
        """Draw this figure instead; plotly keeps the zoom while layout.uirevision is the same."""
        text = json.dumps(figure, separators=(",", ":"))
        if text != self.figure:
            with self.hold_sync():  # one message, so that the count redraws the new figure
                self.figure = text
                self.count = self.count + 1


@cache
def library() -> Library:
    from plotly.offline import get_plotlyjs

    program = f"{get_plotlyjs()};\n{script('dressed.js')}"
    return Library(source=gzip.compress(program.encode(), PACKED, mtime=0))


def plain(figure: go.Figure | dict) -> dict:
    """The figure as plain JSON values, with typed arrays as base64. Copying and extending them is a
    hundred times faster than with a go.Figure.
    """
    if isinstance(figure, dict):
        return figure
    return json.loads(figure.to_json(validate=False))


def with_layout(figure: dict, **parts: object) -> dict:
    """A copy of the plain figure with these parts of its layout replaced."""
    return figure | {"layout": figure["layout"] | parts}


def with_title(figure: dict, text: str) -> dict:
    """The plain figure under another title."""
    return with_layout(figure, title=figure["layout"].get("title", {}) | {"text": text})


def with_line(figure: dict, x: float, **look: object) -> dict:
    """The plain figure with a vertical line at x, unchanged where x is not finite.

    look: further properties of the line, such as `editable` for one that can be dragged.
    """
    if not math.isfinite(x):
        return figure
    line = {"type": "line", "line": {"color": GREY}, "yref": "y domain", "y0": 0, "y1": 1}
    line |= {"x0": x, "x1": x} | look
    return with_layout(figure, shapes=[*figure["layout"].get("shapes", []), line])
