"""The verdict "as printed": a study's claims on exactly the settings and attacks of its tables."""

from __future__ import annotations

from functools import cache, partial

from mia_nb.attacks import ATTACKS
from mia_nb.studies.engine import Study, asking, load
from mia_nb.studies.on_print import printed_blocks, printed_contrasts
from mia_nb.studies.published import PRINTED_ATTACKS, paper_results, printed_setting, stands_for
from mia_nb.studies.setting import Setting
from mia_nb.types import Scores

EQ_8 = "logmeanp"  # the study's Eq. 8: queries with input dropout are combined by mean probability
# The attacks of Guan et al. 2025. Their Attack-R counts references; Eq. 8 holds for all three.
SPIKING_ATTACKS = {
    "attack_p": ATTACKS["attack_p"],
    "attack_r_lattice": partial(ATTACKS["attack_r_lattice"], combine=EQ_8),
    "rmia": ATTACKS["rmia"],
}


def rules_as_printed(study: Study) -> Study:
    """The study with the comparisons that its paper made, and no part that it did not print."""
    study = asking(study, "as printed")
    claims = {}
    for name, claim in study.claims.items():
        parts = _printed_parts(study.name).get(name, frozenset())
        claims[name] = claim._replace(parts=tuple(part for part in claim.parts if part in parts))
    return study._replace(claims=claims)


@cache
def _printed_parts(study: str) -> dict[str, frozenset[str]]:
    """{claim: the parts of its evidence that can be read off the paper's tables}"""
    rules = asking(load(study), "as printed")
    parts = {}
    for name, claim in rules.claims.items():
        contrast_parts = set()
        for values in printed_blocks(study).values():
            contrast_parts |= {
                contrast.part for contrast, _ in printed_contrasts(rules, claim, values)
            }
        if contrast_parts:
            parts[name] = frozenset(contrast_parts)
    return parts


def on_no_table(study: Study, name: str) -> bool:
    """Whether no comparison of this claim can be read off the paper's tables."""
    return name not in _printed_parts(study.name)


def printed_alone(study: Study, settings: dict[Setting, Scores]) -> dict[Setting, Scores]:
    """Of settings in normal form those that the study's tables have, the attack named as printed.

    A stochastic network counts with the fewest queries that were run, as the papers do not print
    their number. Of Attack-R the study's own form counts, and with input dropout its Eq. 8.
    """
    as_printed: dict[Setting, Scores] = {}
    asked_least = set()
    for setting, scores in sorted(settings.items(), key=lambda item: item[0].queries):
        printed = setting._replace(attack=_printed_name(study, setting))
        other_combination = scores.info.get("combine", EQ_8) != EQ_8
        network = printed._replace(queries=1)
        if not printed.attack or network in asked_least or not _in_a_table(study.name, printed):
            continue
        if setting.input_dropout and other_combination:
            continue
        asked_least.add(network)
        as_printed[printed] = scores
    return as_printed


def _printed_name(study: Study, setting: Setting) -> str:
    """The attack under the name that the study's claims have for it; "" for none of the study's."""
    if study.name == "snn":
        own_forms = {"attack_r_lattice": "attack_r", "attack_r": ""}
        attack = own_forms.get(setting.attack, setting.attack)
        return attack if attack in ("attack_p", "attack_r", "rmia") else ""
    printed = {attack for attacks in PRINTED_ATTACKS.values() for attack in attacks}
    return setting.attack if setting.attack in printed else ""


@cache
def _records(study: str) -> list[tuple[Setting, dict]]:
    """The settings of a study's tables that an attack was run on, each with a record of it."""
    printed = load(study).printed
    tables = [*printed["tables"], *printed.get("on_demand", ())]
    records = {}
    for record in paper_results():
        wanted = printed_setting(record)
        in_study = record["paper"] in printed["papers"] and record["table"] in tables
        if in_study and wanted.attack:
            records.setdefault((wanted, record["attack"], record["table"]), record)
    return [(key[0], record) for key, record in records.items()]


def _in_a_table(study: str, setting: Setting) -> bool:
    return any(
        setting.attack in PRINTED_ATTACKS[record["attack"]] and stands_for(setting, wanted, record)
        for wanted, record in _records(study)
    )
