"""Text that somebody else wrote (names of classes, groups, data sets, runs, presets, pools, files,
attacks, values of parameters) made harmless for what shows it: one function for each medium.

Each takes any value and gives one line that shows the characters as they are, and that does
nothing else: no markup, no mathematics, no links, no commands to a terminal.
"""

from __future__ import annotations

import html as _html
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

# Not printable for Python, and harmless: line breaks, unbreakable spaces, and the joiners that
# words of some languages and some emoji are spelled with
KEPT = "\n\xa0\u200c\u200d"
# JupyterLab and Voila set mathematics in the finished page, where an entity is the character
# again; it must begin and end in one element
MATHEMATICS = re.compile(r"[$\\]")
# Characters that mean nothing to Markdown, at least where they stand: all others become entities
HARMLESS = re.compile(
    r"[^\W_]|[ ,;%()]|(?<=\S)\.(?= |$)|(?<=\d)[./:-](?=\d)|(?<=\w)[:'/-](?=[^\W_]| )"
)


def terminal(text: object) -> str:
    """One line of plain text: for a terminal, a log, an error, the `str` of an object.

    Each line break or tab becomes a space. What is not printable (commands to terminals, characters
    that turn the direction of writing, halves of characters) is written as Python writes it:
    `\\x1b`, `\\u202e`. What comes out can go in again.

    >>> terminal("a\\x1b[31m\\nb")
    'a\\\\x1b[31m b'
    """
    return lines(text).replace("\n", " ")


def lines(text: object) -> str:
    """Text of this package's own with names in it, for a terminal: line breaks and spaces stay, all
    else is as in `terminal`.

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
    """Text between tags of HTML. In an attribute use `attribute`.

    >>> html("<b>5 & 6</b>")
    '&lt;b&gt;5 &amp; 6&lt;/b&gt;'
    """
    escaped = _html.escape(terminal(text))
    return MATHEMATICS.sub(lambda sign: f"<span>&#{ord(sign[0])};</span>", escaped)


def attribute(text: object) -> str:
    """The value of an attribute of HTML, between quotation marks.

    >>> attribute('" onload="x')
    '&quot; onload=&quot;x'
    """
    return _html.escape(terminal(text))


def markdown(text: object) -> str:
    """Text within a paragraph, a heading, an item of a list or a cell of a table of Markdown, as
    JupyterLab, Voila, nbconvert, the report and MkDocs read it.

    >>> markdown("a|b <i>c</i>")
    'a&#124;b &#60;i&#62;c&#60;&#47;i&#62;'
    >>> markdown("It scores 0.5 (1,000 images).")
    'It scores 0.5 (1,000 images).'
    """
    line = " ".join(terminal(text).split())  # four spaces in front would begin a block of code

    def written(place: int, letter: str) -> str:
        # "1." and "1)" begin a list where they begin a line
        begins_a_list = letter in ".)" and line[:place].isdigit()
        if HARMLESS.match(line, place) and not begins_a_list:
            return letter
        if MATHEMATICS.match(letter):
            return f"<span>&#{ord(letter)};</span>"
        return f"&#{ord(letter)};" if letter.isascii() else letter

    return "".join(written(place, letter) for place, letter in enumerate(line))


def plotly(text: object) -> str:
    """Text in a figure of plotly, which reads some tags, entities, mathematics between `$` and
    fields (`%{x}`) in titles, names of traces, ticks, annotations and hover texts.

    >>> plotly("<b>%{x}</b>")
    '&lt;b&gt;%&#123;x}&lt;/b&gt;'
    """
    escaped = _html.escape(terminal(text), quote=False)
    return escaped.replace("%{", "%&#123;").replace("$", "&#36;")


def label(text: object) -> str:
    """The description of a widget, or an option of one: plain text, but for mathematics, of which
    the signs are replaced by their wide forms.

    >>> label("costs $5 <b>")
    'costs ＄5 <b>'
    """
    return terminal(text).replace("$", "\uff04").replace("\\", "\uff3c")


def cells(table: pd.DataFrame, medium: Callable[[object], str] = terminal) -> pd.DataFrame:
    """A table whose texts, those of index and headings too, went through the function of a medium;
    with `terminal` it can be printed.
    """

    def harmless(value: object) -> object:
        return medium(value) if isinstance(value, str) else value

    inside = table.map(harmless).rename(index=harmless, columns=harmless)
    return inside.rename_axis(index=harmless, columns=harmless)


def html_table(table: pd.DataFrame, **options: object) -> str:
    """A table as HTML in which neither markup nor mathematics of its texts has an effect.

    Parameters:
        table: of any texts and numbers.
        options: of pandas' `to_html`.
    """
    import pandas as pd

    with pd.option_context("display.html.use_mathjax", False):
        return cells(table).to_html(escape=True, **options)


def html_facts(facts: Mapping[str, object]) -> str:
    """Named values as a table of HTML with two columns: how a record shows itself in a notebook.

    >>> html_facts({"models": 16})
    '<table><tbody><tr><th>models</th><td>16</td></tr></tbody></table>'
    """
    rows = []
    for name, value in facts.items():
        rows.append(f"<tr><th>{html(name)}</th><td>{html(value)}</td></tr>")
    return f"<table><tbody>{''.join(rows)}</tbody></table>"
