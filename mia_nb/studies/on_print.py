"""The papers' own tables: claims judged on the printed numbers, and which of the settings that were
run here are printed there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache, partial
from statistics import median_low
from typing import Literal

import pandas as pd

from mia_nb.attacks import ATTACKS
from mia_nb.checks import checked
from mia_nb.studies.engine import TPR, Claim, Contrast, Study, asking, contrasts, load
from mia_nb.studies.joins import matches
from mia_nb.studies.published import PRINTED_ATTACKS, printed_records, stands_for
from mia_nb.studies.setting import Setting, normal
from mia_nb.types import Scores

PUBLISHED = ("snn", "nsde", "privacy")  # the studies that have printed tables
LOWEST = "tpr@0.001"  # the smallest rate that the papers print
ROUNDING = 1e-9  # of sums of printed decimals
EQ_8 = "logmeanp"  # the study's Eq. 8: queries with input dropout are combined by mean probability
# The attacks of Guan et al. 2025. Their Attack-R counts references; Eq. 8 holds for all three.
SPIKING_ATTACKS = {
    "attack_p": ATTACKS["attack_p"],
    "attack_r_lattice": partial(ATTACKS["attack_r_lattice"], combine=EQ_8),
    "rmia": ATTACKS["rmia"],
}
Printed = dict[Setting, dict[str, float]]


@checked
def claims_on_print(study: Literal["snn", "nsde", "privacy"]) -> pd.DataFrame:
    """Every claim of a study, judged on its own printed numbers.

    Each block of the print (a data set, and in the spiking study an architecture) is compared by
    the rules that `claims` uses on what was run here. A comparison agrees with the claim where the
    printed difference is on the claim's side, or within the margin. The papers print one target and
    no intervals: this says whether their numbers fit the sentence, not whether they are resolved.

    Parameters:
        study: "snn" (Guan et al. 2025), "nsde" (Hong, Wu, Gruber and Lee), or "privacy" (the same
            on noise, accounting and defenses: their Table XI).

    Returns:
        index: the claim's name; columns claim (the sentence), verdict ("holds", "holds in part:
        ...", "does not hold", "proved ..." or "not printed"), comparisons, agree (how many of them
        agree), least: the comparison that agrees least, with its block, quote (the
        paper's sentence) and place (where it stands).

    Caveat: of rates at low FPR only those of an AUC's own comparison count, not the TPR that
    `claims` sets beside it.

    Example:
        >>> claims_on_print("snn").loc["S4", "verdict"]
        'holds'
    """
    rules = asking(load(study), "as printed")
    rows = {}
    for name, claim in rules.claims.items():
        row = {"claim": claim.sentence} | _verdict(_on_print(study)[name])
        if claim.matched == "gap" and row["verdict"] == "holds":
            row["verdict"] = "holds in part: nothing is printed at an equal gap"
        if claim.proved:
            row["verdict"] = claim.proved
        rows[name] = row | {"quote": claim.quote, "place": claim.place}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("id")


def _verdict(compared: list[tuple[str, Contrast, float]]) -> dict[str, object]:
    """The verdict, how many comparisons agree with the claim, and the one that is least for it."""
    if not compared:
        return {"verdict": "not printed", "comparisons": 0, "agree": 0, "least": ""}
    support = [_support(contrast, value) for _, contrast, value in compared]
    agree = sum(value > 0 for value in support)
    block, contrast, value = compared[support.index(min(support))]
    form = ".2f" if contrast.ratio else "+.4f"
    return {
        "verdict": "holds" if agree == len(compared) else "does not hold",
        "comparisons": len(compared),
        "agree": agree,
        "least": f"{block}: {contrast.part}, {contrast.compared}: {value:{form}}",
    }


def _support(contrast: Contrast, value: float) -> float:
    """How far a value lies on the claim's side of its limit, above 0 where it agrees. A difference
    as large as the margin agrees, one as large as the limit does not.
    """
    if contrast.margin:
        return contrast.margin - abs(value) + ROUNDING
    return value - contrast.above - ROUNDING


@cache
def _on_print(study: str) -> dict[str, list[tuple[str, Contrast, float]]]:
    """{claim: comparisons}: those that decide it and can be read off the paper's tables, each as
    (block, contrast, value).
    """
    rules = asking(load(study), "as printed")
    compared = {name: [] for name in rules.claims}
    for block, values in printed_blocks(study).items():
        for name, claim in rules.claims.items():
            for contrast, value in _printed_contrasts(rules, claim, values):
                compared[name].append((block, contrast, value))
    return compared


def printed_blocks(study: str) -> dict[str, Printed]:
    """{block of the print: {setting: {metric: value}}}; accuracies stand with every attack.

    A cell that several tables print counts with its median, so that one misprint decides nothing.
    """
    cells: dict[tuple[str, Setting, str], list[float]] = defaultdict(list)
    for wanted, record in printed_records(study, judged=True):
        architecture = record["model"].partition("-")[2] if study == "snn" else ""
        block = f"{record['dataset']} {architecture}".strip()
        metric = "gap" if record["metric"] == "generalization_gap" else record["metric"]
        cells[block, normal(wanted), metric].append(record["value"])
    blocks: dict[str, Printed] = {}
    for (block, setting, metric), values in cells.items():
        blocks.setdefault(block, {}).setdefault(setting, {})[metric] = median_low(values)
    for printed in blocks.values():
        for setting, metrics in printed.items():
            for metric, value in printed.get(setting._replace(attack=""), {}).items():
                metrics.setdefault(metric, value)
    return blocks


def _printed_contrasts(
    rules: Study, claim: Claim, values: Printed
) -> Iterator[tuple[Contrast, float]]:
    """The comparisons that decide a claim in one block, with their printed values."""
    joins = []
    for join in claim.joins:
        on_print = [entry for entry in join["compare"] if not _needs_scores(entry)]
        joins.append(join | {"compare": on_print})
    usable = {
        setting: metrics
        for setting, metrics in values.items()
        if setting.attack and matches(setting, rules.decide)
    }
    for contrast in contrasts(rules, claim._replace(joins=joins), usable):
        value = _printed_value(contrast, usable)
        if value is not None:
            yield contrast, value


def _needs_scores(comparison: dict) -> bool:
    """Whether a comparison decides nothing, or cannot be read off printed numbers."""
    return (
        comparison.get("attacks") == "in order under b"
        or comparison.get("minus") == "curve"
        or not comparison.get("needed", True)
    )


def _printed_value(contrast: Contrast, values: Printed) -> float | None:
    """The difference, or ratio, of a comparison; None where a side is not printed."""
    metric = LOWEST if contrast.metric == TPR else contrast.metric
    sides = []
    for _, side in contrast.terms:
        printed = [values[setting][metric] for setting in side if metric in values.get(setting, {})]
        if not printed:
            return None
        sides.append(max(printed))
    if contrast.ratio:
        return sides[0] / sides[1] if sides[1] else None
    difference = sum(
        weight * value for (weight, _), value in zip(contrast.terms, sides, strict=True)
    )
    if contrast.minus == "chance":
        difference -= 0.5 if metric == "auc" else float(metric.partition("@")[2])
    return difference


def rules_as_printed(study: Study) -> Study:
    """The study with the comparisons that its paper made, and no part that it did not print."""
    study = asking(study, "as printed")
    claims = {}
    for name, claim in study.claims.items():
        printed = {contrast.part for _, contrast, _ in _on_print(study.name)[name]}
        claims[name] = claim._replace(parts=tuple(part for part in claim.parts if part in printed))
    return study._replace(claims=claims)


def on_no_table(study: Study, name: str) -> bool:
    """Whether no comparison of this claim can be read off the paper's tables."""
    return not _on_print(study.name)[name]


def printed_alone(study: Study, settings: dict[Setting, Scores]) -> dict[Setting, Scores]:
    """The settings that the study's tables have, under the printed name of the attack: what the
    verdict "as printed" rests on.

    The papers do not print how often a stochastic network was queried: the fewest queries that were
    run count. Of Attack-R the study's own form counts, and with input dropout its Eq. 8.

    Parameters:
        study: whose tables are meant
        settings: what was run, in normal form, with its scores
    """
    as_printed: dict[Setting, Scores] = {}
    with_fewest_queries = set()
    for setting, scores in sorted(settings.items(), key=lambda item: item[0].queries):
        if setting.input_dropout and scores.info.get("combine", EQ_8) != EQ_8:
            continue
        printed = setting._replace(attack=_printed_name(study, setting))
        network = printed._replace(queries=1)
        if network not in with_fewest_queries and _in_a_table(study.name, printed):
            with_fewest_queries.add(network)
            as_printed[printed] = scores
    return as_printed


def _printed_name(study: Study, setting: Setting) -> str:
    """The attack under the name that the study's claims have for it; "" for none of the study's."""
    if study.name == "snn":
        names = {"attack_p": "attack_p", "attack_r_lattice": "attack_r", "rmia": "rmia"}
        return names.get(setting.attack, "")
    printed = {attack for attacks in PRINTED_ATTACKS.values() for attack in attacks}
    return setting.attack if setting.attack in printed else ""


def _in_a_table(study: str, setting: Setting) -> bool:
    """Whether a table of the study has this attack on this network."""
    if not setting.attack:
        return False
    for wanted, attack, table in _printed_networks(study):
        if setting.attack in PRINTED_ATTACKS[attack] and stands_for(setting, wanted, table):
            return True
    return False


@cache
def _printed_networks(study: str) -> set[tuple[Setting, str, str]]:
    """(setting, attack, table) of every attack that the study's tables print."""
    networks = set()
    for wanted, record in printed_records(study):
        if wanted.attack:
            networks.add((wanted, record["attack"], record["table"]))
    return networks
