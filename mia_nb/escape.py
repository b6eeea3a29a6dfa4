"""Foreign text (names of classes, groups, data sets, runs, presets, pools, files, attacks, values
of parameters) made harmless for the medium that shows it: one function for each medium.

Each function of a text takes any value and returns one line (`lines` keeps line breaks), which
shows the characters as they are and has no other effect: no markup, no mathematics, no links, no
commands to a terminal. `unmarked` undoes `markdown`.
"""

from __future__ import annotations

import html as _html
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

# characters that Python calls not printable, but that are harmless: line breaks, unbreakable
# spaces, and joiners in words of some languages and in some emoji
KEPT = "\n\xa0\u200c\u200d"
# signs of mathematics; JupyterLab and Voila typeset it in the finished page, where entities are
# characters again, but only if it begins and ends in one element
MATHEMATICS = re.compile(r"[$\\]")
# characters without a meaning in Markdown, at least in this position; all others become entities
HARMLESS = re.compile(
    r"""
    [^\W_]                           # a letter or digit
    | [ ,;%()]
    | (?<=\S) \. (?=[ ]|$)           # the full stop of a sentence
    | (?<=\d) [./:-] (?=\d)          # within a number, a date or a time
    | (?<=\w) [:'/-] (?=[^\W_]|[ ])  # within or after a word
    """,
    re.VERBOSE,
)


def terminal(text: object) -> str:
    """One line of plain text: for a terminal, a log, an error, the `str` of an object.

    Each line break or tab becomes a space. Unprintable characters (commands to terminals, changes
    of the direction of writing, halves of characters) are written as Python writes them: `\\x1b`,
    `\\u202e`. The result can be passed in again without a change.

    >>> terminal("a\\x1b[31m\\nb")
    'a\\\\x1b[31m b'
    """
    return lines(text).replace("\n", " ")


def lines(text: object) -> str:
    """This package's own text with names in it, for a terminal: line breaks and spaces stay, the
    rest is as in `terminal`.

    Caveat: a name that holds a line break begins a line of its own, unless it went through
    `terminal` before.

    >>> print(lines("kind  name\\npool  a\\x1b[31m"))
    kind  name
    pool  a\\x1b[31m
    """
    return "".join(map(_shown, str(text)))


def _shown(character: str) -> str:
    if character.isprintable() or character in KEPT:
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode()


def unmarked(text: str) -> str:
    """The text that `markdown` was given; for a terminal it goes through `terminal`.

    >>> unmarked(markdown("<b>$5</b>"))
    '<b>$5</b>'
    """
    return _html.unescape(re.sub("<span>(.*?)</span>", r"\1", text))


def html(text: object) -> str:
    """Text between tags of HTML, but not inside a tag: it may hold elements of its own.

    >>> html("<b>5 & 6</b>")
    '&lt;b&gt;5 &amp; 6&lt;/b&gt;'
    """
    escaped = _html.escape(terminal(text))
    return MATHEMATICS.sub(lambda sign: f"<span>&#{ord(sign[0])};</span>", escaped)


def markdown(text: object) -> str:
    """Text within a paragraph, heading, list item or table cell of Markdown, as JupyterLab, Voila,
    nbconvert, the report and MkDocs read it.

    >>> markdown("a|b <i>c</i>")
    'a&#124;b &#60;i&#62;c&#60;&#47;i&#62;'
    >>> markdown("It scores 0.5 (1,000 images).")
    'It scores 0.5 (1,000 images).'
    """
    line = " ".join(terminal(text).split())  # four leading spaces would begin a block of code

    def written(place: int, letter: str) -> str:
        # "1." and "1)" at the start of a line begin a list
        begins_a_list = letter in ".)" and line[:place].isdigit()
        if HARMLESS.match(line, place) and not begins_a_list:
            return letter
        if MATHEMATICS.match(letter):
            return f"<span>&#{ord(letter)};</span>"
        return f"&#{ord(letter)};" if letter.isascii() else letter

    return "".join(written(place, letter) for place, letter in enumerate(line))


def plotly(text: object) -> str:
    """Text in a figure of plotly, which interprets some tags, entities, mathematics between `$` and
    fields (`%{x}`) in titles, names of traces, ticks, annotations and hover texts.

    >>> plotly("<b>%{x}</b>")
    '&lt;b&gt;%&#123;x}&lt;/b&gt;'
    """
    escaped = _html.escape(terminal(text), quote=False)
    return escaped.replace("%{", "%&#123;").replace("$", "&#36;")


def label(text: object) -> str:
    """The description of a widget, or an option in it: plain text in which signs of mathematics are
    replaced by their wide forms.

    >>> label("costs $5 <b>")
    'costs ＄5 <b>'
    """
    return terminal(text).replace("$", "\uff04").replace("\\", "\uff3c")


def cells(table: pd.DataFrame, medium: Callable[[object], str] = terminal) -> pd.DataFrame:
    """A table whose texts, also in index and headings, are made harmless for a medium by its
    function; with `terminal` the table can be printed.
    """

    def harmless(value: object) -> object:
        return medium(value) if isinstance(value, str) else value

    inside = table.map(harmless).rename(index=harmless, columns=harmless)
    return inside.rename_axis(index=harmless, columns=harmless)


def html_table(table: pd.DataFrame, **options: object) -> str:
    """A table as HTML in which markup and mathematics in its texts have no effect.

    Parameters:
        table: of any texts and numbers.
        options: of pandas' `to_html`.
    """
    import pandas as pd

    with pd.option_context("display.html.use_mathjax", False):
        return cells(table).to_html(escape=True, **options)


def html_facts(facts: Mapping[str, object]) -> str:
    """Named values as an HTML table with two columns, by which notebooks show records.

    >>> html_facts({"models": 16})
    '<table><tbody><tr><th>models</th><td>16</td></tr></tbody></table>'
    """
    rows = []
    for name, value in facts.items():
        rows.append(f"<tr><th>{html(name)}</th><td>{html(value)}</td></tr>")
    return f"<table><tbody>{''.join(rows)}</tbody></table>"
