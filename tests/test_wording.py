"""What this project says about privacy, everywhere it speaks: in code, notebooks, presets and documents."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SPOKEN = sorted(
    path
    for pattern in ("mia_nb/**/*.py", "notebooks/**/*.ipynb", "notebooks/**/*.yaml", "*.md", "docs/*.md", "benchmarks/*")
    for path in ROOT.glob(pattern)
    if path.is_file() and path.suffix in (".py", ".ipynb", ".yaml", ".md")
)
FORBIDDEN = {  # a pattern: what is wrong with it
    r"\bprivacy budget": "an accountant's number is an epsilon with a delta, a method and assumptions",
    r"\bepsilon of (the|this|a) (model|network|pool)\b": "it belongs to a training and a method",
    r"\bdp[- ]trained\b": "only DP-SGD is, and it is called that",
    r"\b(provably|is|are|stays?|remains?|kept|keeps?) (private|safe|secure)\b(?! to load)": "nothing here establishes that",
    r"\bleaks? nothing\b": "no attack tried found anything",
    r"\bno (leak|leakage|privacy risk)\b(?! no| may| at all in| is planted)": "no attack tried found any",
    r"\b(safe|secure) (model|network|to (release|publish))": "nothing here establishes that",
    r"\bthe epsilon\b(?! that| it| is aimed| follows| an| of an? (dp|DP)| which)": "which one? say nominal, accounted, audited",
}
NEGATED = re.compile(r"\b(not?|never|nor|without|nothing|none|neither|n't)\b[^.;:]{0,60}$", re.IGNORECASE)


def text_of(path: Path) -> str:
    """What a file says, notebooks cell by cell, lines joined so that phrases may wrap."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        text = "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return re.sub(r"[ \t]*\n[ \t#>*]*", " ", text)


def found(text: str) -> list[str]:
    """Forbidden phrases in a text that are not denied in the same clause."""
    places = []
    for pattern, why in FORBIDDEN.items():
        for match in re.finditer(pattern, text, re.IGNORECASE):
            if not NEGATED.search(text[max(match.start() - 80, 0) : match.start()]):
                places.append(f"...{text[max(match.start() - 40, 0) : match.end() + 20]}...: {why}")
    return places


@pytest.mark.parametrize("path", SPOKEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_called_private_or_safe_and_no_number_is_called_the_epsilon(path):
    assert not found(text_of(path))


@pytest.mark.parametrize(
    "sentence",
    [
        "the privacy budget is 8",
        "the epsilon of the model is 6.1",
        "the network is private",
        "a DP-trained NSDE",
        "this model is safe to release",
        "it leaks nothing",
        "the epsilon is 8",
    ],
)
def test_the_test_finds_what_it_looks_for(sentence):
    assert found(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "it is not a guarantee, and no network is private because of it",
        "never call it the epsilon",
        "nominal epsilon (paper's accounting)",
        "the epsilon that is aimed at",
    ],
)
def test_what_may_be_said_passes(sentence):
    assert not found(sentence)


@pytest.mark.parametrize("path", [p for p in SPOKEN if p.suffix == ".ipynb"], ids=lambda path: path.name)
def test_notebooks_that_speak_of_a_guarantee_say_whose_it_is(path):
    text = text_of(path)
    for match in re.finditer(r"\bguarantee[sd]?\b", text, re.IGNORECASE):
        around = text[max(match.start() - 200, 0) : match.end() + 200]
        assert re.search(r"DP-SGD|\b(no|not|never|none)\b", around), around
