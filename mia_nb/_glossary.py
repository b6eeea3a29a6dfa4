"""Terms of docs/glossary.md, explained on hover at their first mention."""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path

PLACES = [Path(__file__).parent / place for place in ("published", "../docs")]
MARKUP = re.compile(r"(<(?:abbr|script|style)\b.*?</(?:abbr|script|style)>|<[^>]*>)", re.DOTALL)


@cache
def glossary() -> dict[str, str]:
    """{term: meaning}, longest first."""
    paths = [path for place in PLACES if (path := place / "glossary.md").is_file()]
    text = paths[0].read_text(encoding="utf-8") if paths else ""
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", text, re.MULTILINE)[1:]
    terms = {
        re.sub(r" \(.*\)|`", "", term).strip(): meaning.replace("`", "")
        for names, meaning in rows
        for term in names.split(",")
    }
    return {term: terms[term] for term in sorted(terms, key=len, reverse=True) if len(term) > 1}


def explained(markup: str, terms: dict[str, str] | None = None) -> str:
    """The markup with the first mention of each term explained on hover.

    Parameters:
        markup: HTML.
        terms: as of `glossary`; explained terms are removed from it. None: all terms.
    """
    terms = dict(glossary()) if terms is None else terms
    for term in list(terms):
        case = 0 if term.isupper() else re.IGNORECASE  # BASE is an attack, a base is not
        mention = re.compile(rf"(?<![\w.]){re.escape(term)}s?(?!\w)", case)
        pieces = MARKUP.split(markup)  # alternately text and markup
        where = next((i for i in range(0, len(pieces), 2) if mention.search(pieces[i])), None)
        if where is not None:
            opening_tag = f'<abbr title="{html.escape(terms.pop(term))}">'
            pieces[where] = mention.sub(rf"{opening_tag}\g<0></abbr>", pieces[where], count=1)
            markup = "".join(pieces)
    return markup
