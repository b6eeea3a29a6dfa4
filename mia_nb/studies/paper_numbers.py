"""The numbers that the papers printed, their settings, and which of our settings correspond."""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path

from mia_nb.attacks import ATTACKS
from mia_nb.checks import checked
from mia_nb.studies.settings import NAMES, NOISY, Setting
from mia_nb.studies.study import load

PACKAGE = Path(__file__).resolve().parents[1]
PLACES = (PACKAGE / "published", PACKAGE.parent / "data")  # an installed package's, a checkout's
FORMS = {  # {printed attack: ours that stand for it, of which the first that was run counts}
    "attack_r": ["attack_r_lattice", "attack_r"],
    "lira_global": ["lira_global", "lira_per_sample"],
}
EQ_8 = "logmeanp"  # the study's Eq. 8: queries with input dropout are combined by mean probability
# The attacks of Guan et al. 2025. Their Attack-R counts references. Eq. 8 holds for all three:
# attack_p and rmia combine so by default.
SPIKING_ATTACKS = {
    "attack_p": ATTACKS["attack_p"],
    "attack_r_lattice": partial(ATTACKS["attack_r_lattice"], combine=EQ_8),
    "rmia": ATTACKS["rmia"],
}
TABLE_OF_DEFENSES = "XI"  # a table that prints model, defense and sigma alone
NEAR = 0.055  # printed sigmas have one decimal


@cache
def records() -> tuple[dict, ...]:
    """Every printed number, read once and shared: do not change it."""
    installed, checkout = (place / "paper_results.json" for place in PLACES)
    path = installed if installed.is_file() else checkout
    return tuple(json.loads(path.read_text(encoding="utf-8")))


@checked
def paper_results(paper: str | None = None, table: str | None = None) -> list[dict]:
    """Every number that the papers printed: paper, table, dataset, model, setting (in their words),
    ours (the fields of our `Setting`), attack, metric, value, unit, and sometimes notes on oddities
    of the print.

    Papers: snn-uai2025 (Guan et al., tables 2 to 6), snn-workshop2025 (F.1 to F.4), nsde2025 (I to
    XII). Values are fractions, not percent. Caveat: they are of one target and one seed, without
    intervals: compare orders, do not expect to reproduce values.
    """
    results = []
    for record in records():
        if paper in (None, record["paper"]) and table in (None, record["table"]):
            results.append(dict(record))
    return results


def printed_setting(record: dict) -> Setting:
    """A record's setting in our words, with k before it was rounded for print; attack is "" where
    the number is not about an attack.
    """
    return Setting(**record["ours"])


@cache
def printed_records(study: str, judged: bool = False) -> list[tuple[Setting, dict]]:
    """(setting, record) of every number in a study's tables, including those on demand.

    judged: whether to include the tables that only the verdict on print uses.
    """
    printed = load(study).printed
    tables = [*printed["tables"], *printed.get("on_demand", ())]
    if judged:
        tables += printed.get("judged", ())
    selected = []
    for record in records():
        if record["paper"] in printed["papers"] and record["table"] in tables:
            selected.append((printed_setting(record), record))
    return selected


def selection_of(printed: Setting, record: dict) -> dict:
    """The fields, as `joins.matches` takes them, of our settings that correspond to a record's. An
    SDENet without noise corresponds to an ODENet.
    """
    is_flow = printed.model in NAMES and printed.model != "resnet14"
    fields = ["model", "defense", "output", "training", "timesteps", "input_dropout"]
    if printed.attack:
        fields.append("references")
    if is_flow and record["table"] != TABLE_OF_DEFENSES:
        fields += ["blocks", "augment", "T"]
        fields.append("steps" if printed.model in NOISY else "method")
    selection = {name: getattr(printed, name) for name in fields}
    if printed.attack:
        selection["attack"] = FORMS.get(printed.attack, printed.attack)
    if is_flow:
        selection["noise"] = True
        selection["noise_train"] = True
        selection["k"] = {"not": 0} if printed.k else 0
        selection["sigma"] = {"near": printed.sigma, "within": NEAR}
    if printed.model in ("odenet", "sdenet") and not printed.k:
        selection["model"] = ["odenet", "sdenet"]
    return selection
