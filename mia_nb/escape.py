"""Text that somebody else wrote (names of classes, groups, data sets, runs, presets, pools, files,
attacks, values of parameters) made safe for what shows it: one function for each medium.

Each takes any value and gives one line that shows the characters as they are, and that does
nothing else: no markup, no mathematics, no links, no commands to a terminal.
"""

from __future__ import annotations

import html as _html
import re

# Invisible characters that words of some languages and some emoji are spelled with
JOINERS = "\u200c\u200d"
# JupyterLab and Voila set mathematics in the finished page, where an entity is the character
# again; it must begin and end in one element
MATHEMATICS = re.compile(r"[$\\]")
# What Markdown has no use for, at least where it stands: all else becomes an entity
HARMLESS = re.compile(
    r"[^\W_]|[ ,;%()]|(?<=\S)\.(?= |$)|(?<=\d)[./:-](?=\d)|(?<=\w)[:'/-](?=[^\W_]| )"
)


def terminal(text: object) -> str:
    """One line of plain text: for a terminal, a log, an error, the `str` of an object.

    Line breaks and tabs become spaces. What is not printable (commands to terminals, characters
    that turn the direction of writing, halves of characters) is written as Python writes it:
    `\\x1b`, `\\u202e`. What comes out can go in again.

    >>> terminal("a\\x1b[31m\\nb")
    'a\\\\x1b[31m b'
    """
    written = (
        c
        if c.isprintable() or c in JOINERS
        else " "
        if c.isspace()
        else c.encode("unicode_escape").decode()
        for c in str(text)
    )
    return " ".join("".join(written).split())


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
    line = terminal(text)
    # "1." and "1)" begin a list where they begin a line
    return "".join(
        c
        if HARMLESS.match(line, place) and not (c in ".)" and line[:place].isdigit())
        else f"<span>&#{ord(c)};</span>"
        if MATHEMATICS.match(c)
        else f"&#{ord(c)};"
        if c.isascii()
        else c
        for place, c in enumerate(line)
    )


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
