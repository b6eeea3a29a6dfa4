"""Names that somebody else chose, made safe for each medium: they do nothing, and stand there."""

import re
from html import unescape
from html.parser import HTMLParser

import markdown as python_markdown
import pandas as pd
import pytest
from nbconvert.filters import markdown2html
from nbformat import v4

from mia_nb import escape, report

NAMES = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "</td></table><svg/onload=alert(1)>",
    "&lt;b&gt; &amp;",
    "&#60;b>",
    "[click](javascript:alert(1))",
    "![seen](http://evil.example/x.png)",
    "<javascript:alert(1)>",
    "<http://evil.example>",
    "[note]: http://evil.example",
    "http://evil.example www.evil.example me@evil.example",
    "# heading",
    "1. item",
    "12) item",
    "- item",
    "+ item",
    "* item",
    "> quoted",
    "a | b | c",
    "`code` ``` ~~~ ~~gone~~",
    "*x* _y_ **z** __w__ snake_case_name",
    "--- === ***",
    "$\\href{javascript:alert(1)}{x}$ $$y$$",
    "\\(x\\) \\[y\\] \\begin{align}z\\end{align} \\ref{a}",
    "\\*not\\*",
    "!!! note",
    "??? note",
    "{: onclick=alert(1)} {#id} [^1] :smile: ==m== ^^u^^",
    "term : definition",
    "%{x} %{customdata[0]}",
    "\"quoted\" and 'quoted'",
    "Ünïcode 猫 🐈 می‌خواهم e\u0301",
]
UNPRINTABLE = {
    "red\x1b[31m": "red\\x1b[31m",
    "title\x1b]0;x\x07": "title\\x1b]0;x\\x07",
    "c1 \x9b31m": "c1 \\x9b31m",
    "over\rwritten": "over written",
    "two\nlines\u2028three": "two lines three",
    "tab\tname": "tab name",
    "back\x08space\x7f": "back\\x08space\\x7f",
    "nul\0": "nul\\x00",
    "gpj.\u202ecod": "gpj.\\u202ecod",
    "iso\u2066late": "iso\\u2066late",
    "zero\u200bwidth\ufeff": "zero\\u200bwidth\\ufeff",
    "half\udcff": "half\\udcff",
    "ideographic\u3000space": "ideographic space",
}
EVERY = NAMES + list(UNPRINTABLE)


class Page(HTMLParser):
    """The tags and the text of some HTML."""

    def __init__(self, markup: str):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def readable(name: str) -> str:
    return UNPRINTABLE.get(name, name)


@pytest.mark.parametrize("name", EVERY)
def test_a_terminal_gets_one_line_of_printable_characters(name):
    line = escape.terminal(name)
    assert line == readable(name)
    assert all(c.isprintable() or c in escape.KEPT[2:] for c in line)
    assert escape.terminal(line) == line
    line.encode()


@pytest.mark.parametrize("name", EVERY)
def test_html_shows_the_name_and_no_tag_of_it(name):
    page = Page(f"<p>{escape.html(name)}</p>")
    assert page.text == readable(name)
    assert set(page.tags) <= {"p", "span"} and page.attributes == []


def renderers():
    """Those of nbconvert and Voila, of the report, and of MkDocs with what Material adds."""
    extensions = ["tables", "attr_list", "def_list", "footnotes", "admonition", "abbr"]
    extensions += ["pymdownx.details", "pymdownx.superfences", "pymdownx.highlight"]
    return {
        "nbconvert": markdown2html,
        "report": lambda text: report.markup.html_of([v4.new_markdown_cell(text)]),
        "mkdocs": lambda text: python_markdown.markdown(text, extensions=extensions),
    }


PLACES = {
    "paragraph": ("{}", {"p"}),
    "sentence": ("The class {} is exposed.", {"p"}),
    "heading": ("### {}\n", {"h3", "a"}),
    "item": ("* {}\n* more\n", {"ul", "li"}),
    "cell": (
        "| class | n |\n|---|---|\n| {} | 1 |\n",
        {"table", "thead", "tbody", "tr", "th", "td"},
    ),
}


@pytest.mark.parametrize("renderer", ["nbconvert", "report", "mkdocs"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", EVERY)
def test_markdown_shows_the_name_and_nothing_of_it_is_markup(name, place, renderer):
    form, tags = PLACES[place]
    page = Page(renderers()[renderer](form.format(escape.markdown(name))))
    assert set(page.tags) <= tags | {"span", "div"}
    assert readable(name) in " ".join(page.text.split())
    own = Page(renderers()[renderer](form.format("name")))  # what the renderer adds by itself
    assert sum(tag != "span" for tag in page.tags) == sum(tag != "span" for tag in own.tags)
    links = [value for key, value in page.attributes if key in ("href", "src")]
    assert all(link.startswith("#") for link in links)  # the anchor of a heading


def test_signs_of_mathematics_stand_in_elements_of_their_own():
    name = "$x$ \\(y\\) \\[z\\] \\begin{a}\\end{a}"
    for page in (escape.html(name), markdown2html(escape.markdown(name))):
        texts = [unescape(text) for text in re.split("<[^>]*>", page)]
        signs = [text for text in texts if "$" in text or "\\" in text]
        assert len(signs) == 8 and set(signs) == {"$", "\\"}


@pytest.mark.parametrize("name", EVERY)
def test_plotly_gets_no_tag_no_field_and_no_mathematics(name):
    text = escape.plotly(name)
    assert "<" not in text and "%{" not in text and "$" not in text
    assert Page(text).text == readable(name)


@pytest.mark.parametrize("name", EVERY)
def test_a_description_of_a_widget_has_no_signs_of_mathematics(name):
    text = escape.label(name)
    assert "$" not in text and "\\" not in text
    assert text.replace("\uff04", "$").replace("\uff3c", "\\") == readable(name)


def test_own_sentences_stay_readable_as_markdown():
    line = "At 1 % false positives (of 1,000 images) it finds 0.5 of them, n/m: the model's worst."
    assert escape.markdown(line) == line


def test_spaces_stay_where_they_tell_one_path_from_another_and_begin_no_code_in_markdown():
    assert escape.terminal("/a/my  folder ") == "/a/my  folder "
    assert escape.lines("pool   a\n  b\xa0%") == "pool   a\n  b\xa0%"
    assert escape.markdown("    four  spaces ") == "four spaces"


@pytest.mark.parametrize("name", EVERY)
def test_markdown_turns_into_the_line_of_a_terminal_again(name):
    assert escape.unmarked(escape.markdown(name)) == escape.terminal(name)


@pytest.mark.parametrize("medium", ["terminal", "html", "markdown", "plotly", "label"])
def test_any_value_has_a_text(medium):
    for value in (3, 2.5, None, b"<b>", ["<b>"], ("a", 1)):
        assert "<b>" not in getattr(escape, medium)(value) or medium in ("terminal", "label")


def test_a_table_of_hostile_names_is_inert_as_html_and_as_text():
    for name in EVERY:
        index = pd.Index([name], name=name)
        table = pd.DataFrame({name: [name], "number": [1.5]}, index=index)
        page = Page(escape.html_table(table))
        assert set(page.tags) == {"table", "thead", "tbody", "tr", "th", "td"}
        assert page.text.count(readable(name).strip()) >= 4
        assert ("class", "dataframe tex2jax_ignore mathjax_ignore") in page.attributes
        text = escape.cells(table).to_string()
        assert all(c.isprintable() or c in escape.KEPT for c in text)
    levels = pd.MultiIndex.from_tuples([("<a>", 1), ("<b>", 2)], names=["<c>", None])
    assert "<a>" not in escape.html_table(pd.DataFrame({0: ["<d>", "e"]}, index=levels))
