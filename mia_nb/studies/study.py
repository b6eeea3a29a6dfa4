"""The file format of a study, and reading it.

A study is a YAML file. Its `claims` hold, by name,

    sentence, needs     what is claimed, and what must be run to decide it
    quote, place        the paper's own words ("…" where words are left out), and where they stand
    extends             what the extended verdict asks for beyond the paper's comparisons
    ours                a remark of this package, no claim of the paper
    proved              for what the paper proves rather than measures: under which condition
    parts               without one of these the claim cannot hold
    equal               it compares risks of different models, which says less at unequal accuracy
    matched             compared again at equal "test_acc" or "gap", where checkpoints are
    design_check        an AUC less 1/2 that lies below this jointly is a failed design
    remarks             functions of `evidence.py` that add to the evidence
    decided_by          a function of `evidence.py`, for a claim that no join decides
    joins               which settings are set against each other, and how they are compared

A join takes the settings `a`, and either those of `b` that share all fields but those in `differ`
(without `differ` they share nothing), or compares those of `a` `along` a field, `but` the fields
that follow from it, with those in `instead_of` replaced by a property; `which` of the steps (see
`joins`). With `a` alone attacks of one setting are compared; `differ` never names the attack.
`only_b` narrows `b`; `most_alike`: of the first sides those most like the second; `queries`: the
"most" that were run, or "fewer". Each entry of `compare` is one comparison of every pair:

    part, compared      its group in the evidence, and its words: templates of a, b, attack and
                        attacks, as in "{attacks}, {a.label}"
    attack              one attack on both sides, or one for each; absent: the strongest of all that
                        both sides have
    attacks             a list, or "each" (of several) that both sides have, one by one; "in order
                        under b": two attacks on a, the first surely stronger than the other on b
    metric              auc, leak (auc less 1/2), tpr (at the smallest FPR that all settings can
                        measure), test_accuracy, gap (train minus test accuracy)
    needed              false: reported, decides nothing
    above, margin       wanted above `above` (0), or within +-margin
    ratio, swap         a over b; b minus a
    minus               "chance", or "curve" (`below_curve.py`), in place of b
    beyond              the same difference with these fields replaced, subtracted
    tpr                 false: no TPR beside an AUC that decides
    verdict             "as printed" or "extended": only that verdict asks for it; absent: both do

Every claim has two verdicts (`as_printed`): on exactly the settings and attacks of the paper's
tables, and on all that was run.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from mia_nb._yaml import read_yaml_file
from mia_nb.studies.settings import Setting

FOLDER = Path(__file__).parent
JOIN = (
    "a",
    "b",
    "differ",
    "only_b",
    "along",
    "but",
    "instead_of",
    "which",
    "most_alike",
    "queries",
    "compare",
)
COMPARISON = (
    "part",
    "compared",
    "attack",
    "attacks",
    "metric",
    "needed",
    "above",
    "margin",
    "ratio",
    "swap",
    "minus",
    "beyond",
    "tpr",
    "verdict",
)
ENTRIES = ("claims", "models", "decide", "selections", "printed", "name")  # of a file
EVERY = ("each", "each of several", "in order under b")  # words in place of a list of attacks
NOISELESS = "noiseless"  # stands for a selection: `joins.noiseless`


class Claim(NamedTuple):
    """An entry of `claims`, see the top of this module."""

    sentence: str
    needs: str
    joins: list[dict] = []  # noqa: RUF012 - never changed
    parts: tuple[str, ...] = ()
    equal: bool = False
    matched: str = ""
    design_check: float = -1.0
    remarks: tuple[str, ...] = ()
    decided_by: str = ""
    quote: str = ""
    place: str = ""
    extends: str = ""
    ours: bool = False
    proved: str = ""


class Study(NamedTuple):
    """A study's file: its models (empty for any), the settings that decide, claims and selections;
    and the verdict whose comparisons are wanted.
    """

    claims: dict[str, Claim]
    models: tuple[str, ...] = ()
    decide: dict = {}  # noqa: RUF012 - never changed
    selections: dict = {}  # noqa: RUF012
    printed: dict = {}  # noqa: RUF012
    name: str = ""
    shipped: bool = False
    verdict: str = "extended"


def load(study: str | Path) -> Study:
    """The study of this name, which is read once, or of the YAML file at this path, which is read
    each time, since it may be edited.
    """
    is_file = str(study).endswith(".yaml")
    path = Path(study) if is_file else FOLDER / f"{study}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in FOLDER.glob("*.yaml"))
        raise ValueError(f"no study {str(study)!r}: wanted a YAML file or one of {known}")
    return _read(path) if is_file else _shipped(path)._replace(shipped=True)


def _read(path: Path) -> Study:
    """The study of a YAML file; ValueError of one line where it is none."""
    entries = read_yaml_file(path)
    try:
        if strange := [entry for entry in entries if entry not in ENTRIES]:
            raise ValueError(f"unknown entries {strange}; wanted some of {', '.join(ENTRIES)}")
        if not isinstance(entries.get("claims"), dict):
            raise ValueError("it has no claims: wanted some, by name")
        claims = {name: Claim(**claim) for name, claim in entries["claims"].items()}
        study = Study(**entries | {"claims": claims, "name": path.stem})
        for name, claim in claims.items():
            if unknown := [entry for join in claim.joins for entry in _unknown_entries(join)]:
                known = f"fields of a setting are {', '.join(Setting._fields)}"
                raise ValueError(f"claim {name} has unknown entries {unknown}; {known}")
            for join in claim.joins:
                _check_selections(join["a"], join.get("b", {}), join.get("only_b", {}))
        # `selections` may hold anything that the rest of the file refers to
        _check_selections(study.decide)
    except (AttributeError, KeyError, TypeError, ValueError) as reason:
        raise ValueError(f"{path.name} is no study: {reason}") from None
    return study


_shipped = cache(_read)  # a third of a second each, and nothing changes what was read


def _unknown_entries(join: dict) -> list[str]:
    """The entries of a join or its comparisons that no join, comparison or setting has."""
    unknown = [entry for entry in join if entry not in JOIN]
    for comparison in join["compare"]:
        unknown += [entry for entry in comparison if entry not in COMPARISON]
        attacks = comparison.get("attacks")
        if isinstance(attacks, str) and attacks not in EVERY:
            unknown.append(f"attacks: {attacks}")
        if comparison.get("minus") and "beyond" in comparison:  # chance or curve would cancel
            unknown.append("minus beside beyond")
    replaced = join.get("instead_of", {})
    fields = [*join.get("but", ()), *join.get("differ", ()), *replaced, *replaced.values()]
    for comparison in join["compare"]:
        fields += comparison.get("beyond", ())
    if "along" in join:
        fields.insert(0, join["along"])
    return unknown + [field for field in fields if field not in dir(Setting)]


def _check_selections(*selections: dict | list | str) -> None:
    """ValueError unless these selections ask for fields, or properties, of a setting."""
    for selection in selections:
        if selection == NOISELESS:
            continue
        for fields in selection if isinstance(selection, list) else [selection]:
            if strange := [name for name in fields if name not in dir(Setting)]:
                known = ", ".join(Setting._fields)
                raise ValueError(f"a setting has no {', '.join(strange)}: wanted {known}")
