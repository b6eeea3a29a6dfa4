"""Claims judged on the numbers that the papers printed themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median_low
from typing import Literal

import pandas as pd

from mia_nb.checks import checked
from mia_nb.studies.engine import TPR, Claim, Contrast, Study, asking, contrasts, load
from mia_nb.studies.joins import matches
from mia_nb.studies.published import paper_results, printed_setting
from mia_nb.studies.setting import Setting, normal

PAPERS = {
    "snn": ("snn-uai2025", "snn-workshop2025"),
    "nsde": ("nsde2025",),
    "privacy": ("nsde2025",),
}
TABLES = {"privacy": ("XI",)}  # the only table of defenses; of the others every one
LOWEST = "tpr@0.001"  # the smallest rate that the papers print
GAP = {"generalization_gap": "gap"}
ROUNDING = 1e-9
Printed = dict[Setting, dict[str, float]]


@checked
def claims_on_print(study: Literal["snn", "nsde", "privacy"]) -> pd.DataFrame:
    """Every claim of a study, judged on its own printed numbers.

    Each block of the print (a data set, and in the spiking study an architecture) is compared by
    the rules that `claims` uses on what was run here. A comparison is for the claim where the
    printed difference is on the wanted side, or within the margin. The print has one target and no
    intervals: this says whether its numbers fit its sentence, not whether they are resolved.

    Parameters:
        study: "snn" (Guan et al. 2025), "nsde" (Hong, Wu, Gruber and Lee), or "privacy" (the same
            on noise, accounting and defenses: their Table XI).

    Returns:
        index: the claim's name; columns claim (the sentence), verdict ("holds", "holds in part:
        ...", "does not hold", "proved ..." or "not printed"), comparisons, agree (how many of them
        are for the claim), least: the comparison that is least for it, with its block, quote (the
        paper's sentence) and place (where it stands).

    Caveat: of rates at low FPR only those of an AUC's own comparison count, not the TPR that
    `claims` sets beside it.

    Example:
        >>> claims_on_print("snn").loc["S4", "verdict"]
        'holds'
    """
    rules = asking(load(study), "as printed")
    blocks = printed_blocks(study)
    rows = {}
    for name, claim in rules.claims.items():
        compared = [
            (block, contrast, value)
            for block, values in blocks.items()
            for contrast, value in printed_contrasts(rules, claim, values)
        ]
        row = {"claim": claim.sentence} | _verdict(compared)
        if claim.matched == "gap" and row["verdict"] == "holds":
            row["verdict"] = "holds in part: nothing is printed at an equal gap"
        if claim.proved:
            row["verdict"] = claim.proved
        rows[name] = row | {"quote": claim.quote, "place": claim.place}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("id")


def printed_blocks(study: str) -> dict[str, Printed]:
    """{block of the print: {setting: {metric: value}}}; accuracies stand with every attack.

    Of a cell that several tables print the median counts, so that one misprint decides nothing.
    """
    cells: dict[tuple[str, Setting, str], list[float]] = defaultdict(list)
    for paper in PAPERS[study]:
        for record in paper_results(paper):
            if record["table"] not in TABLES.get(study, (record["table"],)):
                continue
            architecture = record["model"].partition("-")[2] if study == "snn" else ""
            block = f"{record['dataset']} {architecture}".strip()
            setting = normal(printed_setting(record))
            metric = GAP.get(record["metric"], record["metric"])
            cells[block, setting, metric].append(record["value"])
    blocks: dict[str, Printed] = defaultdict(lambda: defaultdict(dict))
    for (block, setting, metric), printed in cells.items():
        blocks[block][setting][metric] = median_low(printed)
    for values in blocks.values():
        for setting, metrics in values.items():
            of_models = values.get(setting._replace(attack=""), {})
            for metric, value in of_models.items():
                metrics.setdefault(metric, value)
    return {block: dict(values) for block, values in blocks.items()}


def printed_contrasts(
    rules: Study, claim: Claim, values: Printed
) -> Iterator[tuple[Contrast, float]]:
    """The comparisons that decide a claim in one block, with their printed values."""
    joins = [
        join | {"compare": [asked for asked in join["compare"] if not _needs_scores(asked)]}
        for join in claim.joins
    ]
    usable = {
        setting: metrics
        for setting, metrics in values.items()
        if setting.attack and matches(setting, rules.decide)
    }
    for contrast in contrasts(rules, claim._replace(joins=joins), usable):
        value = _printed_value(contrast, usable)
        if contrast.needed and value is not None:
            yield contrast, value


def _needs_scores(comparison: dict) -> bool:
    """Whether a comparison cannot be read off printed numbers."""
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


def _agrees(contrast: Contrast, value: float) -> bool:
    if contrast.margin:
        return abs(value) <= contrast.margin + ROUNDING
    return value > contrast.above + ROUNDING


def _support(contrast: Contrast, value: float) -> float:
    """How far a value lies on the claim's side of its limit, negative beyond it."""
    if contrast.margin:
        return contrast.margin - abs(value)
    return value - contrast.above


def _verdict(compared: list[tuple[str, Contrast, float]]) -> dict[str, object]:
    if not compared:
        return {"verdict": "not printed", "comparisons": 0, "agree": 0, "least": ""}
    agree = [_agrees(contrast, value) for _, contrast, value in compared]
    block, contrast, value = min(compared, key=lambda row: _support(row[1], row[2]))
    form = ".2f" if contrast.ratio else "+.4f"
    return {
        "verdict": "holds" if all(agree) else "does not hold",
        "comparisons": len(agree),
        "agree": sum(agree),
        "least": f"{block}: {contrast.part}, {contrast.compared}: {value:{form}}",
    }
