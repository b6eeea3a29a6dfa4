"""Claims as comparisons between settings of a study: the file format, and what a claim compares.

A study is a YAML file. Its `claims` hold, by name,

    sentence, needs     what is claimed, and what must be run to decide it
    quote, place        the paper's own words ("…" where words are left out), and where they stand
    extends             what the extended verdict asks for beyond the paper's comparisons
    ours                a remark of this package, no claim of the paper
    proved              for what the paper proves rather than measures: under which condition
    parts               without one of these the claim cannot hold
    equal               it compares risks of different models, which says less at unequal accuracy
    matched             compared again at equal "test_acc" or "gap", where checkpoints are
    tpr                 equal AUC is not enough: the TPR decides too
    design_check        an AUC less 1/2 that lies below this jointly is a failed design
    remarks             functions of `remarks.py` that add to the evidence
    decided_by          a function of `remarks.py`, for a claim that no join decides
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
    minus               "chance", or "curve" (of `compare.py`), in place of b
    beyond              the same difference with these fields replaced, subtracted
    tpr                 false: no TPR beside an AUC that decides
    verdict             "as printed" or "extended": only that verdict asks for it; absent: both do

Every claim has two verdicts (`as_printed`): on exactly the settings and attacks of the paper's
tables, and on all that was run.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

from mia_nb._yaml import read_yaml_file
from mia_nb.metrics.targets import per_target_metrics
from mia_nb.metrics.uncertainty import interval
from mia_nb.studies.joins import matches, pairs, side_settings
from mia_nb.studies.setting import Setting, usable
from mia_nb.types import Scores

TPR = "tpr"  # stands for the TPR at the smallest FPR that all settings can measure
STOCHASTIC_ONLY = ("lira_joint",)  # attacks that read off how outputs of one query differ
OF_MODELS = ("test_accuracy", "gap")
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
)
FOLDER = Path(__file__).parent


class Contrast(NamedTuple):
    """A weighted sum over sides; a side is one setting, or the strongest of several attacks.

    The fields are those of `compare` in a study's file.
    """

    part: str
    compared: str
    terms: tuple[tuple[int, tuple[Setting, ...]], ...]
    metric: str = "auc"
    needed: bool = True
    margin: float = 0.0
    above: float = 0.0
    ratio: bool = False
    minus: str = ""
    tpr: bool = True

    @property
    def first(self) -> Setting:
        return self.terms[0][1][0]


EVERY = ("each", "each of several", "in order under b")  # words in place of a list of attacks
COMPARISON = ("attack", "attacks", "swap", "beyond", "verdict", *Contrast._fields)


class Claim(NamedTuple):
    """An entry of `claims`, see the top of this module."""

    sentence: str
    needs: str
    joins: list[dict] = []  # noqa: RUF012 - never changed
    parts: tuple[str, ...] = ()
    equal: bool = False
    matched: str = ""
    tpr: bool = False
    design_check: float = -1.0
    remarks: tuple[str, ...] = ()
    decided_by: str = ""
    quote: str = ""
    place: str = ""
    extends: str = ""
    ours: bool = False
    proved: str = ""


class Study(NamedTuple):
    """A study's file: its models (empty for any), which settings decide, claims and selections."""

    claims: dict[str, Claim]
    models: tuple[str, ...] = ()
    decide: dict = {}  # noqa: RUF012 - never changed
    selections: dict = {}  # noqa: RUF012
    printed: dict = {}  # noqa: RUF012
    name: str = ""
    shipped: bool = False


def load(study: str | Path) -> Study:
    """The study of this name, which is read once, or of a YAML file at this path, which is read
    each time: it may be edited meanwhile.
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
        claims = {name: Claim(**claim) for name, claim in entries["claims"].items()}
        for name, claim in claims.items():
            if unknown := [entry for join in claim.joins for entry in _unknown_entries(join)]:
                known = f"fields of a setting are {', '.join(Setting._fields)}"
                raise ValueError(f"claim {name} has unknown entries {unknown}; {known}")
        return Study(**entries | {"claims": claims, "name": path.stem})
    except (KeyError, TypeError, ValueError) as reason:
        raise ValueError(f"{path.name} is no study: {reason}") from None


_shipped = cache(_read)  # a third of a second each, and nothing changes what was read


def _unknown_entries(join: dict) -> list[str]:
    """What a join or its comparisons have that this engine, or a setting, does not."""
    unknown = [entry for entry in join if entry not in (*JOIN, "compare")]
    for comparison in join["compare"]:
        unknown += [entry for entry in comparison if entry not in COMPARISON or entry == "terms"]
        attacks = comparison.get("attacks")
        if isinstance(attacks, str) and attacks not in EVERY:
            unknown.append(f"attacks: {attacks}")
        if comparison.get("minus") and "beyond" in comparison:  # what is subtracted would cancel
            unknown.append("minus beside beyond")
    fields = [*join.get("but", ()), *join.get("differ", ()), *join.get("instead_of", ())]
    if "along" in join:
        fields.insert(0, join["along"])
    return unknown + [field for field in fields if field not in dir(Setting)]


def asking(study: Study, verdict: str) -> Study:
    """The study with the comparisons that this verdict ("as printed" or "extended") asks for."""
    claims = {}
    for name, claim in study.claims.items():
        joins = []
        for join in claim.joins:
            asked = [entry for entry in join["compare"] if entry.get("verdict", verdict) == verdict]
            joins.append(join | {"compare": asked})
        claims[name] = claim._replace(joins=joins)
    return study._replace(claims=claims)


def deciding(study: Study, settings: dict) -> dict[Setting, Scores]:
    """The settings in normal form that decide the study's claims; ValueError as in `usable`."""
    checked = usable(settings, study.models)
    return {
        setting: scores for setting, scores in checked.items() if matches(setting, study.decide)
    }


def contrasts(study: Study, claim: Claim, settings: dict[Setting, Scores]) -> list[Contrast]:
    """Everything that a claim compares, as far as it was run."""
    networks = list(dict.fromkeys(setting._replace(attack="") for setting in settings))
    wanted = []
    for join in claim.joins:
        for a, b in pairs(join, networks, study.selections):
            for comparison in join["compare"]:
                wanted += _contrasts(comparison, a, b, settings)
    return wanted


def matching(study: Study, claim: Claim, settings: dict[Setting, Scores]) -> list[str]:
    """How many settings each join of a claim matches, in words, for the author of a study."""
    networks = list(dict.fromkeys(setting._replace(attack="") for setting in settings))
    lines = []
    for number, join in enumerate(claim.joins, 1):
        counts = []
        for side in ("a", "b"):
            if side in join:
                count = len(side_settings(join[side], networks, study.selections))
                counts.append(f"{side} matches {count}")
        counts.append(f"they give {len(pairs(join, networks, study.selections))} pairs")
        lines.append(f"join {number}: of {len(networks)} settings {', '.join(counts)}")
    return lines


def _contrasts(
    comparison: dict, a: Setting, b: Setting, settings: dict[Setting, Scores]
) -> Iterator[Contrast]:
    """One comparison of two settings, for each of its attacks."""
    options = {name: comparison[name] for name in Contrast._fields if name in comparison}
    if comparison.get("swap"):
        a, b = b, a
    of_models = comparison.get("metric") in OF_MODELS
    sign = "/" if comparison.get("ratio") else "-"
    compared = f"{{a.models}} {sign} {{b.models}}"
    if not of_models and "attack" not in comparison and "attacks" not in comparison:
        compared += ", {attacks}"
    compared = comparison.get("compared", compared)
    for attack, side_a, side_b in _sides(comparison, a, b, settings):
        words = {
            "a": a,
            "b": b,
            "attack": attack,
            "other": side_b[0].attack,
            "attacks": worst_case(side_a, side_b),
        }
        if of_models:  # all attacks on a model share them
            side_a, side_b = side_a[:1], side_b[:1]
        terms = [(1, side_a)]
        if not comparison.get("minus"):
            terms.append((-1, side_b))
        if "beyond" in comparison:
            subtracted = []
            for weight, side in terms:
                subtracted.append((-weight, (side[0]._replace(**comparison["beyond"]),)))
            if not all(side[0] in settings for _, side in subtracted):
                continue
            terms += subtracted
        options["part"] = comparison["part"].format(**words)
        yield Contrast(**options | {"compared": compared.format(**words), "terms": tuple(terms)})


def _sides(
    comparison: dict, a: Setting, b: Setting, settings: dict[Setting, Scores]
) -> Iterator[tuple[str, tuple, tuple]]:
    """(attack, side of a, side of b) for each attack of a comparison that both settings have."""
    if "attack" not in comparison and "attacks" not in comparison:
        side_a, side_b = strongest(settings, a, b)
        if side_a:
            yield "", side_a, side_b
        return
    attacks = comparison.get("attacks", [comparison.get("attack")])
    if attacks == "in order under b":
        attacks = list(_ordered_under(settings, a, b))
        b = a
    elif attacks in ("each", "each of several"):
        common = _common_attacks(settings, a, b)
        attacks = [] if attacks == "each of several" and len(common) == 1 else common
    for attack in attacks:
        attack_a, attack_b = (attack, attack) if isinstance(attack, str) else attack
        first = a._replace(attack=attack_a)
        second = b._replace(attack=attack_b)
        if first in settings and second in settings:
            yield attack_a, (first,), (second,)


def _common_attacks(settings: dict[Setting, Scores], *networks: Setting) -> list[str]:
    """The attacks that all of these networks have."""
    attacks = dict.fromkeys(setting.attack for setting in settings)
    return [
        attack
        for attack in attacks
        if all(network._replace(attack=attack) in settings for network in networks)
    ]


def _ordered_under(
    settings: dict[Setting, Scores], a: Setting, b: Setting
) -> Iterator[tuple[str, str]]:
    """Two attacks that both settings have, the first of larger AUC under b beyond its interval."""
    under_b = {}
    for attack in _common_attacks(settings, a, b):
        under_b[attack] = settings[b._replace(attack=attack)]
    auc = {attack: per_target_metrics(scores, ())[:, 0] for attack, scores in under_b.items()}
    for better, worse in permutations(auc, 2):
        if interval(auc[better] - auc[worse], under_b[better].pair)[0] > 0:
            yield better, worse


def strongest(settings: dict[Setting, Scores], *networks: Setting) -> list[tuple[Setting, ...]]:
    """For each network the attacks that all of them have, of which the strongest counts: families
    are compared by their worst case. The tuples may be empty.

    Attacks that only stochastic networks allow (`STOCHASTIC_ONLY`) are added to these for the
    stochastic networks, where all of them have the attack.
    """
    common = _common_attacks(settings, *networks)
    noisy = [network for network in networks if network.stochastic]
    noisy_alone = []
    if common and noisy:
        possible = _common_attacks(settings, *noisy)
        noisy_alone = [name for name in STOCHASTIC_ONLY if name in possible and name not in common]
    sides = []
    for network in networks:
        names = common + noisy_alone if network.stochastic else common
        sides.append(tuple(network._replace(attack=name) for name in names))
    return sides


def worst_case(side: tuple, other: tuple) -> str:
    """The attacks of a side in words, and those of the other side if its words differ."""
    words = []
    for attacks in (side, other):
        several = f"strongest of {len(attacks)} attacks"
        words.append(several if len(attacks) > 1 else attacks[0].attack)
    return " against ".join(dict.fromkeys(words))
