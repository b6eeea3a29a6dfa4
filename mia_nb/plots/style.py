"""The style of all figures: colours with dashes and symbols beside them, the template, titles and
notes.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple

import plotly.graph_objects as go

from mia_nb.attacks import NAMES, in_words

MEMBER = "#D55E00"
NON_MEMBER = "#0072B2"
GREY = "#767676"  # text in it has a contrast of 4.5 on white, and on black
# green, magenta, orange, blue, red, purple, olive, teal: each with the contrast of that grey
LINES = ("#008A01", "#D8219B", "#BA5D00", "#007EB2", "#E1273D", "#7A62D4", "#847500", "#008478")
# five dashes, so that forty series differ in colour or dash; the last is shorter than plotly's
# "longdash", whose pattern is too long for a legend
DASHES = ("solid", "dash", "dot", "dashdot", "12px,3px")
MARKERS = ("circle", "diamond", "square", "cross", "triangle-up", "x", "star")
SMALL = {"size": 11, "color": GREY}
THIN = {"color": GREY, "width": 1}
DOTTED = THIN | {"dash": "dot"}
# attacks that often share a figure, which get the first looks, as these differ in colour
FIRST_ATTACKS = (
    "rmia",
    "nig",
    "lira_global",
    "attack_r",
    "lira_shrunk",
    "watson",
    "loss",
    "correctness",
    "attack_p",
    "vote",
    "lira_smooth",
    "lira_per_sample",
)
# a legend below the picture, which leaves it the whole width and makes room for all its own rows
BELOW = {"orientation": "h", "x": 0, "yref": "container", "y": 0, "yanchor": "bottom"}

AXIS = {
    "gridcolor": "rgba(128,128,128,.22)",
    "linecolor": GREY,
    "zeroline": False,
    "ticks": "outside",
    "tickcolor": GREY,
    "title": {"font": {"size": 13}},
    "automargin": True,
}
LINE_HEIGHT = 18
TITLE = {
    "x": 0,
    "xref": "paper",
    "y": 1,
    "yref": "paper",
    "yanchor": "bottom",
    "pad": {"b": 32},
    "font": {"size": 14},
}
TEMPLATE = go.layout.Template(
    layout={
        "font": {"color": GREY, "size": 13},
        "title": TITLE | {"subtitle": {"font": {"size": 12}}},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "autosize": True,
        "margin": {"t": 76, "l": 64, "r": 24, "b": 52},
        "xaxis": AXIS,
        "yaxis": AXIS,
        "legend": {"bgcolor": "rgba(0,0,0,0)"},
        "colorway": LINES,
    }
)


class Look(NamedTuple):
    """The style of one of several series; colour is never its only cue."""

    colour: str
    dash: str
    symbol: str


class Group(NamedTuple):
    """The style of members or of non-members in every figure."""

    name: str
    colour: str
    dash: str
    symbol: str
    pattern: str  # hatching of a filled area


MEMBERS = Group("members", MEMBER, "solid", "circle", "/")
NON_MEMBERS = Group("non-members", NON_MEMBER, "dash", "diamond", "\\")


def look(i: int) -> Look:
    """The look of series number i."""
    return Look(LINES[i % len(LINES)], DASHES[i % len(DASHES)], MARKERS[i % len(MARKERS)])


def looks(names: Iterable[str]) -> dict[str, Look]:
    """The look of each of several series. An attack looks the same in every figure; other series
    get the first free looks.

    Parameters:
        names: of the series; an attack's key, or its name in words
    """
    names = list(names)
    others = [key for key in NAMES if key not in FIRST_ATTACKS]
    place_of_attack = {in_words(key): i for i, key in enumerate([*FIRST_ATTACKS, *others])}
    places = [place_of_attack.get(in_words(name)) for name in names]
    free_places = (i for i in itertools.count() if i not in places)
    styles = {}
    for name, place in zip(names, places, strict=True):
        if place is None:
            place = next(free_places)
        styles[name] = look(place)
    return styles


def heading(sentence: str, note: str, width: int = 96) -> tuple[dict, int]:
    """(a figure's title, the height in pixels that its lines after the first add).

    Parameters:
        sentence: the result of the figure; wrapped where it is longer than `width` characters
        note: below it, smaller
    """
    lines = textwrap.wrap(sentence, width)
    title = {"text": "<br>".join(lines), "subtitle": {"text": note}}
    extra = LINE_HEIGHT * max(len(lines) - 1, 0)
    if extra:
        title["pad"] = {"b": TITLE["pad"]["b"] + extra}
    return title, extra


def finish(figure: go.Figure, sentence: str, note: str = "", **layout: Any) -> go.Figure:
    """The figure with the template, the sentence as title and the note, smaller, as subtitle.

    Parameters:
        sentence: the result of the figure; a long one is wrapped
        note: sample sizes, intervals and the like
        layout: the figure's layout. Its height is that with a title of one line; each further line
            makes the figure higher
    """
    title, extra = heading(sentence, note)
    if extra:
        layout["margin"] = {"t": TEMPLATE.layout.margin.t + extra}
        layout["height"] += extra
    return figure.update_layout(template=TEMPLATE, title=title, **layout)


def clauses(*parts: str | bool) -> str:
    """The parts joined by semicolons, without those that are empty or False."""
    return "; ".join(part for part in parts if part)


def listed(values: Iterable) -> str:
    """The values, each once, joined by commas."""
    return ", ".join(dict.fromkeys(map(str, values)))


def translucent(colour: str, opacity: float) -> str:
    """The colour, "#RRGGBB", with an opacity between 0 and 1."""
    red = int(colour[1:3], 16)
    green = int(colour[3:5], 16)
    blue = int(colour[5:7], 16)
    return f"rgba({red},{green},{blue},{opacity})"
