"""Claims judged on the numbers that the papers printed themselves."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from statistics import median_low
from typing import Literal, NamedTuple

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


# --------------------------------------------------------------------------------------------------
# factors


class Factor(NamedTuple):
    """A sentence that says how many times less exposed something is, and the cells it is about."""

    statement: str
    least: float
    most: float
    above: dict  # entries of the records in the numerator
    below: dict  # and in the denominator
    datasets: tuple[str, ...]
    attacks: tuple[str, ...] = ("lira", "rmia")


NODE = {"table": "I", "model": "odenet-16-32-64"}
NSDE = {"table": "III", "model": "sdenet-16-32-64"}
ODENET_64 = {"table": "V", "model": "odenet-64"}
RESNET = {"table": "I", "model": "resnet14"}
ALL = ("cifar10", "cifar100", "fashion-mnist", "tiny-imagenet")
HEURISTIC = {"table": "XI", "defense": ("l1", "l2", "mmd-mixup", "memguard")}
NOISY = {"table": "XI", "sigma": 2.0}
LIRA = ("lira",)
LOW_RATES = ("tpr@0.001", "tpr@0.01")
FACTORS = (
    Factor("NODEs: 1.3 to 4 times less than ResNet-14, CIFAR-10", 1.3, 4, RESNET, NODE, ALL[:1]),
    Factor("NODEs: 1.6 to 2.6 times less, CIFAR-100", 1.6, 2.6, RESNET, NODE, ALL[1:2]),
    Factor("NODEs: at most 2 times less on the two others", 1, 2, RESNET, NODE, ALL[2:]),
    Factor(
        "ODENet-64: 2.5 to 6 times less than ResNet-14 (Appendix C)",
        2.5,
        6,
        RESNET,
        ODENET_64,
        ALL[:2],
        LIRA,
    ),
    Factor("NSDEs: 1.8 to 10 times less than NODEs", 1.8, 10, NODE | {"table": "III"}, NSDE, ALL),
    Factor(
        "NSDEs: 4 to 10 times less than NODEs (Section 5.1)",
        4,
        10,
        NODE | {"table": "III"},
        NSDE,
        ALL,
    ),
    Factor(
        "NSDEs: 2 to 5 times less than heuristic defenses", 2, 5, HEURISTIC, NOISY, ALL[:1], LIRA
    ),
    Factor(
        "NSDEs: 2 to 8 times less than heuristic defenses (Section 5.1)",
        2,
        8,
        HEURISTIC,
        NOISY,
        ALL[:1],
        LIRA,
    ),
    Factor(
        "an NSDE block in place of the last group: more than 10 times less than ResNet-14",
        10,
        math.inf,
        RESNET,
        {"table": "VII"},
        ALL,
        LIRA,
    ),
)


@checked
def factors_on_print() -> pd.DataFrame:
    """What Hong, Wu, Gruber and Lee say in times, beside the ratios of the TPRs that they print.

    Returns:
        columns statement; ratios: how many can be formed at 0.1 % and 1 % FPR; agree: how many lie
        within the statement, half of its last digit allowed; smallest, largest ratio. A printed TPR
        of 0 in the denominator makes a ratio infinite, two of them none.

    Example:
        >>> int(factors_on_print()["agree"].iloc[0])
        4
    """
    rows = []
    for factor in FACTORS:
        ratios = sorted(_ratios(factor))
        least = factor.least - _half_a_digit(factor.least)
        most = factor.most + _half_a_digit(factor.most)
        rows.append(
            {
                "statement": factor.statement,
                "ratios": len(ratios),
                "agree": sum(least <= ratio < most for ratio in ratios),
                "smallest": ratios[0],
                "largest": ratios[-1],
            }
        )
    return pd.DataFrame(rows)


def _half_a_digit(limit: float) -> float:
    """Half of the last digit of a limit as the paper writes it: 2 or 1.3."""
    return 0.5 if limit == math.inf or limit == int(limit) else 0.05


def _ratios(factor: Factor) -> Iterator[float]:
    """The TPRs above, over those below, of one data set, attack and rate each."""
    above = _tprs(factor, factor.above)
    below = _tprs(factor, factor.below)
    for place, values in above.items():
        for value, other in product(values, below[place]):
            if other:
                yield value / other
            elif value:
                yield math.inf


def _tprs(factor: Factor, wanted: dict) -> dict[tuple, list[float]]:
    """{(data set, attack, rate): printed TPRs} of the records with these entries."""
    values: dict[tuple, list[float]] = defaultdict(list)
    for record in paper_results("nsde2025", wanted["table"]):
        entries = {"model": record["model"]} | record["setting"]
        fits = all(
            entries.get(name) in (value if isinstance(value, tuple) else (value,))
            for name, value in wanted.items()
            if name != "table"
        )
        place = (record["dataset"], record["attack"], record["metric"])
        of_factor = place[0] in factor.datasets and place[1] in factor.attacks
        if fits and of_factor and place[2] in LOW_RATES:
            values[place].append(record["value"])
    return values
