"""What this project says about privacy, everywhere it speaks: in code, notebooks, presets and
documents.
"""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SPOKEN = sorted(
    path
    for pattern in (
        "mia_nb/**/*.py",
        "notebooks/**/*.ipynb",
        "notebooks/**/*.yaml",
        "*.md",
        "docs/**/*.md",
        "benchmarks/*",
    )
    for path in ROOT.glob(pattern)
    if path.is_file() and path.suffix in (".py", ".ipynb", ".yaml", ".md")
)
NETWORK = r"(model|network|net|pool|n?sde|sdenet|n?ode|odenet|classifier)"
ONE = r"(the|this|that|an?|our|your|its|each|every)"
BE = (
    r"\b(is|are|be|been|was|were|becomes?|stays?|remains?|kept)"
    r" ((\w+ly|now|more|so|thus|quite|also|therefore|then) )*"
)
RELEASE = r"(release|publish|publication|share|sharing|deploy|deployment)"
NUMBER = (
    "an accountant's number is an epsilon with a delta, a method and assumptions; it belongs to a"
    " training"
)
NOT_SHOWN = "nothing here establishes that; say what attacks found"
ONLY = "only of DP-SGD"
FORBIDDEN = {  # a pattern: what is wrong with it
    r"\bprivacy budget": NUMBER,
    r"\bprivacy loss (is|of)\b": NUMBER,
    rf"(?<!nominal )\bepsilon of {ONE} ([\w-]+ ){{0,2}}{NETWORK}s?\b(?! trained by dp-sgd)": NUMBER,
    rf"\b{NETWORK}'s (\w+ )?epsilon\b": NUMBER,
    r"\bthe epsilon\b(?! that is aimed)": "which one? say nominal, accounted, audited",
    r"\bepsilon (=|is|of|:) inf\b": "print: none (infinite)",
    r"\bdp[- ]trained\b": ONLY,
    rf"(?<!local )\bdp {NETWORK}": ONLY,
    rf"{BE}(private|safe|secure)\b(?! to load)": NOT_SHOWN,
    rf"{BE}protected\b": NOT_SHOWN,
    r"\b(makes?|made|making|renders?|keeps?) ([\w-]+ ){0,4}(private|safe|secure)\b": NOT_SHOWN,
    r"\b(provably|completely|fully|perfectly) (private|safe|secure)\b": NOT_SHOWN,
    r"\bprivate (neural|n?sde|sdenet|n?ode|odenet)\b": NOT_SHOWN,
    rf"\b(safe|secure|safely|securely) (for|to) (\w+ )?{RELEASE}": NOT_SHOWN,
    rf"\b(safe|secure) ({NETWORK}|{RELEASE})": NOT_SHOWN,
    r"\bleaks? nothing\b|\bleaks no (?!more|less)|\bleak no information": NOT_SHOWN,
    r"\bprivacy[- ]preserving\b|\b(preserves?|protects?|ensures?) (the )?privacy\b": NOT_SHOWN,
    # an objection quoted, a world without a leak
    r"\bnothing leaks\b(?!!\"| in (a|any)[^.,;]{0,20}\bworlds?\b)": NOT_SHOWN,
    r"\bno (leak|leakage|privacy risk)\b": NOT_SHOWN,
}
# two texts of the ladder, which say it of whatever has one
LABEL = r"\b(?<!training )(?<!the only row that may be called a )"
# of every mechanism that is (epsilon, delta)-DP
ANY = r"(?!(?<=that is )\(epsilon, |(?<=that are )\(epsilon, )"
OF_DP_SGD = {  # what may be said of DP-SGD, in one sentence with it
    rf"{LABEL}guarante(e|es|ed|eing)\b|\btraining guarantee (of|for|that)\b": ONLY,
    r"\b(an?|the|its|our|has|have|with) (\w+ )?training guarantee\b": ONLY,
    rf"{BE}{ANY}(\([^)]*\)-)?(dp|differentially private)\b": ONLY,
    r"\b(satisf(y|ies)|provides?|gives?|has|ensures?|achieves?) (\S+ )?\S*differential privacy\b(?! with the nominal)": (
        ONLY
    ),
    rf"\bdifferentially private (training|neural|{NETWORK})": ONLY,
    r"\btrained with dp\b": ONLY,
}
NO = r"not?|never|nor|without|nothing|none|neither|cannot|\w+n't"
WORD = r" (?!(?:so|and|but|hence|thus|therefore|because|while) )[^\s,;:.!?]+"


def text_of(path: Path) -> str:
    """What a file says, notebooks cell by cell: phrases may wrap, a paragraph or a point of a list
    begins a line.
    """
    text = path.read_text()
    if path.suffix == ".ipynb":
        text = "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    text = re.sub(r"""["']\s*\n\s*[rf]?["']""", "", text)  # a string that goes on in the next line
    return re.sub(r"[ \t]*\n(?![ \t#>]*(\n|[*|-] ))[ \t#>]*", " ", text)


def denied(before: str, words: int, said: str = NO) -> bool:
    """Whether a phrase is denied at most so many words before it, within its clause."""
    return bool(re.search(rf"\b({said})[*_]*({WORD}){{0,{words}}} ?$", before, re.IGNORECASE))


def found(text: str) -> list[str]:
    """Forbidden phrases that are not denied right before, and what only DP-SGD has where it is not
    spoken of.
    """
    places = []
    for sentence in re.split(r"(?<=[.!?])\s+|\n+", text):
        rules = [(pattern, why, 3, NO) for pattern, why in FORBIDDEN.items()]
        if "dp-sgd" not in sentence.lower():
            rules += [(pattern, why, 6, f"{NO}|if|whether") for pattern, why in OF_DP_SGD.items()]
        for pattern, why, words, said in rules:
            for match in re.finditer(pattern, sentence, re.IGNORECASE):
                if not denied(sentence[: match.start()], words, said):
                    places.append(
                        f"...{sentence[max(match.start() - 40, 0) : match.end() + 20]}...: {why}"
                    )
    return places


@pytest.mark.parametrize("path", SPOKEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_called_private_or_safe_and_no_number_is_called_the_epsilon(path):
    assert not found(text_of(path))


@pytest.mark.parametrize(
    "sentence",
    [
        "the privacy budget is 8",
        "Its privacy loss is 6",
        "the epsilon of the model is 6.1",
        "the epsilon is 8",
        "the epsilon which the SDE has",
        "the epsilon of the neural SDE",
        "Epsilon of the SDE: 6.1",
        "epsilon of our model",
        "epsilon of the trained network",
        "the model's epsilon is 8",
        "the network's epsilon",
        "epsilon = inf",
        "the network is private",
        "the model is completely private",
        "this makes the model private",
        "a private neural SDE",
        "the attack fails, therefore members are protected",
        "this model is safe to release",
        "safe for release",
        "a safe release",
        "it leaks nothing",
        "leaks no information",
        "nothing leaks",
        "there is no leak",
        "the SDE is differentially private",
        "The network is DP.",
        "The network is (8, 1e-5)-DP.",
        "The SDE is (epsilon, delta)-DP.",
        "NSDE training is DP with epsilon 6",
        "trained with DP, the NSDE",
        "a DP-trained NSDE",
        "a DP trained SDE",
        "DP SDE",
        "a differentially private network",
        "a provably private classifier",
        "the SDE satisfies (8, 1e-5)-differential privacy",
        "noise preserves privacy",
        "the epsilon of the network trained with noise",
        "the SDE has a privacy guarantee of epsilon 8",
        "the SDE has a training guarantee",
        "training guarantee of epsilon 8",
        "epsilon 8 is guaranteed for the neural SDE",
        "The neural SDE has a guarantee of epsilon 8 for its training set. Training is not slow.",
        "Training is not slow and the SDE has a guarantee.",
        "DP-SGD is slow. The neural SDE has a guarantee.",
        "No attack found anything, so the model is safe to publish.",
        "No attack found anything so the network is private.",
        "Without noise an attack works; with it no attack succeeds, so the network is private.",
        "not only is it safe, the network is private",
        "it does not matter which network one takes, it is private",
        '"the network "\n    "is private"',
        "the network\n# is private",
    ],
)
def test_the_test_finds_what_it_looks_for(sentence, tmp_path):
    (tmp_path / "said.py").write_text(sentence)
    assert found(text_of(tmp_path / "said.py"))


@pytest.mark.parametrize(
    "sentence",
    [
        "it is not a guarantee, and no network is private because of it",
        "never call it the epsilon",
        "nominal epsilon (paper's accounting)",
        "nominal epsilon of this network",
        "the epsilon that is aimed at",
        "epsilon of a network trained by DP-SGD",
        "none (infinite)",
        "training guarantee none (infinite)",
        "the only row that may be called a guarantee for the training set",
        "a guarantee, which DP-SGD has",
        "No network here has the other finite guarantee: stem and drift frozen.",
        "DP-SGD with Poisson batches is (8, 1e-5)-DP.",
        "Any training that is (epsilon, delta)-DP limits how often guesses are right.",
        "How many members can be found at most, if training was DP with epsilon 8?",
        "local DP of the queried input's hidden state",
        "it does not leak",
        "it leaks no more than the other",
        "in worlds without a leak no attack may find one",
        "Nothing leaks in any of these worlds.",
        "files of people you trust are safe to load",
    ],
)
def test_what_may_be_said_passes(sentence):
    assert not found(sentence)
