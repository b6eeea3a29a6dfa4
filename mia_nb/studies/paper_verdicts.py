"""Claims judged on the numbers that their papers printed."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from statistics import median_low
from typing import Literal

import pandas as pd

from mia_nb.checks import checked
from mia_nb.studies.contrasts import contrasts
from mia_nb.studies.joins import matches
from mia_nb.studies.paper_numbers import EQ_8, printed_records, selection_of
from mia_nb.studies.settings import Setting
from mia_nb.studies.study import Claim, Contrast, load
from mia_nb.types import Scores

LOWEST = "tpr@0.001"  # the smallest rate that the papers print
ROUNDING = 1e-9  # of sums of printed decimals
Printed = dict[Setting, dict[str, float]]


@checked
def claims_on_print(study: Literal["snn", "nsde", "privacy"]) -> pd.DataFrame:
    """Every claim of a study, judged on its own printed numbers.

    Each block of the print (a data set, and in the spiking study an architecture) is compared by
    the rules of `claims`. A comparison agrees with the claim if the printed difference is on the
    claim's side, or within the margin. The papers print one target and no intervals: this says
    whether their numbers fit the sentence, not whether they are significant.

    Parameters:
        study: "snn" (Guan et al. 2025), "nsde" (Hong, Wu, Gruber and Lee), or "privacy" (the same
            on noise, accounting and defenses: their Table XI).

    Returns:
        index: the claim's name; columns claim (the sentence), verdict ("holds", "holds in part:
        ...", "does not hold", "proved ..." or "not printed"), comparisons, agree (how many of them
        agree), least (the comparison that agrees least, with its block), quote (the paper's
        sentence) and place (where it stands).

    Caveat: the TPRs that `claims` adds to comparisons of AUCs are not counted here.

    Example:
        >>> claims_on_print("snn").loc["S4", "verdict"]
        'holds'
    """
    compared = printed_comparisons(study)
    rows = {}
    for name, claim in load(study).claims.items():
        row = {"claim": claim.sentence} | _verdict(compared[name])
        if claim.matched == "gap" and row["verdict"] == "holds":
            row["verdict"] = "holds in part: nothing is printed at an equal gap"
        if claim.proved:
            row["verdict"] = claim.proved
        rows[name] = row | {"quote": claim.quote, "place": claim.place}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("id")


def _verdict(compared: list[tuple[str, Contrast, float]]) -> dict[str, object]:
    """The verdict, how many comparisons agree with the claim, and which supports it least."""
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
    """How far a value lies on the claim's side of its limit; above 0 if it agrees. A difference
    equal to the margin agrees, one equal to the limit does not.
    """
    if contrast.margin:
        return contrast.margin - abs(value) + ROUNDING
    return value - contrast.above - ROUNDING


@cache
def printed_comparisons(study: str) -> dict[str, list[tuple[str, Contrast, float]]]:
    """{claim: comparisons that decide it and are in the paper's tables}, each as (block, contrast,
    value). It is read once and shared: do not change it.
    """
    rules = load(study, "as printed")
    compared = {name: [] for name in rules.claims}
    for block, printed in printed_blocks(study).items():
        values = {}
        for setting, metrics in printed.items():
            if setting.attack and matches(setting, rules.decide):
                values[setting] = metrics
        for name, claim in rules.claims.items():
            for contrast in contrasts(claim, values):
                value = _printed_value(contrast, values)
                if value is not None:
                    compared[name].append((block, contrast, value))
    return compared


def printed_blocks(study: str) -> dict[str, Printed]:
    """{block of the print: {setting: {metric: value}}}; every attack has the accuracies.

    A cell that several tables print has its median, so that one misprint decides nothing.
    """
    cells: dict[tuple[str, Setting, str], list[float]] = defaultdict(list)
    for setting, record in printed_records(study, judged=True):
        architecture = record["model"].partition("-")[2] if study == "snn" else ""
        block = f"{record['dataset']} {architecture}".strip()
        metric = "gap" if record["metric"] == "generalization_gap" else record["metric"]
        cells[block, setting, metric].append(record["value"])
    blocks: dict[str, Printed] = {}
    for (block, setting, metric), values in cells.items():
        blocks.setdefault(block, {}).setdefault(setting, {})[metric] = median_low(values)
    for printed in blocks.values():
        for setting, metrics in printed.items():
            accuracies = printed.get(setting._replace(attack=""), {})
            for metric, value in accuracies.items():
                metrics.setdefault(metric, value)
    return blocks


def _printed_value(contrast: Contrast, values: Printed) -> float | None:
    """The difference, or ratio, of a comparison; None where it decides nothing, a side is not
    printed, or a curve is needed.
    """
    if not contrast.needed or contrast.minus == "curve":
        return None
    if contrast.metric == "tpr":
        contrast = contrast._replace(metric=LOWEST)
    sides = []
    for side in contrast.sides:
        printed = []
        for setting in side:
            if contrast.metric in values[setting]:
                printed.append(values[setting][contrast.metric])
        if not printed:
            return None
        sides.append(max(printed))
    if not contrast.ratio:
        return contrast.weighted(sides)
    first, second = sides
    return first / second if second else None


def claims_as_printed(study: str) -> dict[str, Claim]:
    """The claims with the comparisons that their paper made, and no part that it did not print."""
    compared = printed_comparisons(study)
    claims = {}
    for name, claim in load(study, "as printed").claims.items():
        printed_parts = {contrast.part for _, contrast, _ in compared[name]}
        parts = tuple(part for part in claim.parts if part in printed_parts)
        claims[name] = claim._replace(parts=parts)
    return claims


def printed_alone(study: str, settings: dict[Setting, Scores]) -> dict[Setting, Scores]:
    """The settings that are in the study's tables, under the printed name of the attack.

    The papers do not print how often a stochastic network was queried, so the fewest queries that
    were run are taken. Attack-R has the spiking study's own form, our attack_r_lattice, and with
    input dropout its Eq. 8.
    """
    fewest: dict[Setting, tuple[Setting, Scores]] = {}
    for setting, scores in sorted(settings.items(), key=lambda item: item[0].queries):
        if setting.input_dropout and scores.info.get("combine", EQ_8) != EQ_8:
            continue
        if study == "snn" and setting.attack == "attack_r":
            continue
        if study == "snn" and setting.attack == "attack_r_lattice":
            setting = setting._replace(attack="attack_r")
        if any(matches(setting, selection) for selection in _selections(study)):
            fewest.setdefault(setting._replace(queries=1), (setting, scores))
    return dict(fewest.values())


@cache
def _selections(study: str) -> list[dict]:
    """The fields of our settings that correspond to those with attacks in the study's tables."""
    selections = {}
    for printed, record in printed_records(study):
        if printed.attack:
            # the same setting selects other fields in the table of defenses
            selections[printed, record["table"]] = selection_of(printed, record)
    return list(selections.values())
