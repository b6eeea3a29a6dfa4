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
    text = ""
    for place in PLACES:
        path = place / "glossary.md"
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            break
    meanings = {}
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    for names, meaning in rows[1:]:  # without the heading
        for name in names.split(","):
            term = re.sub(r" \(.*\)|`", "", name).strip()
            if len(term) > 1:
                meanings[term] = meaning.replace("`", "")
    return dict(sorted(meanings.items(), key=lambda entry: len(entry[0]), reverse=True))


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
        for place in range(0, len(pieces), 2):
            if mention.search(pieces[place]):
                opening_tag = f'<abbr title="{html.escape(terms.pop(term))}">'
                pieces[place] = mention.sub(rf"{opening_tag}\g<0></abbr>", pieces[place], count=1)
                markup = "".join(pieces)
                break
    return markup
