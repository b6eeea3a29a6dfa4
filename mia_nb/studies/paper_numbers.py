"""The numbers that the papers printed, their settings, and which of our settings correspond."""

from __future__ import annotations

import json
import math
from functools import cache, partial
from pathlib import Path

from mia_nb.attacks import ATTACKS
from mia_nb.checks import checked
from mia_nb.studies.joins import matches
from mia_nb.studies.settings import NAMES, NOISY, RESNET_BLOCKS, Setting
from mia_nb.studies.study import load
from mia_nb.types import Scores

PACKAGE = Path(__file__).resolve().parents[1]
PLACES = (PACKAGE / "published", PACKAGE.parent / "data")  # an installed package's, a checkout's
PRINTED_MODELS = {
    "resnet14": "resnet14",
    "odenet-16-32-64": "odenet",
    "odenet-64": "odenet64",
    "anode-64": "anode",
    "sonode-64": "sonode",
    "hbnode-64": "hbnode",
    "sdenet-16-32-64": "sdenet",
    "resnet14+sdenet": "replaced",
}
PRINTED_ATTACKS = {  # a printed name may cover several attacks; the first names it
    "attack-p": ("attack_p",),
    "attack-r": ("attack_r", "attack_r_lattice"),
    "rmia": ("rmia",),
    "yeom": ("loss",),
    "shokri": ("shokri",),
    "song-mittal": ("song_mittal",),
    "watson": ("watson",),
    "lira": ("lira_global", "lira_per_sample"),
}
EQ_8 = "logmeanp"  # the study's Eq. 8: queries with input dropout are combined by mean probability
# The attacks of Guan et al. 2025. Their Attack-R counts references. Eq. 8 holds for all three:
# attack_p and rmia combine so by default.
SPIKING_ATTACKS = {
    "attack_p": ATTACKS["attack_p"],
    "attack_r_lattice": partial(ATTACKS["attack_r_lattice"], combine=EQ_8),
    "rmia": ATTACKS["rmia"],
}
PRINTED_DEFENSES = {  # (defense in training, defense of the output)
    "memguard": ("", "memguard"),
    "mmd-mixup": ("mmd_mixup", ""),
    "l2": ("l2", ""),
    "l1": ("l1", ""),
    "dp-sgd": ("dp_sgd", ""),
    None: ("", ""),
}
# {printed: the k that was rounded to it}
PRINTED_K = {0.71: math.sqrt(0.5), 0.35: math.sqrt(0.125), 0.18: math.sqrt(0.03125), 0.13: 0.125}
TABLE_OF_DEFENSES = "XI"  # a table that prints model, defense and sigma alone
NEAR = 0.055  # printed sigmas have one decimal


@cache
def records() -> tuple[dict, ...]:
    """Every printed number, read once and shared: do not change it."""
    for place in PLACES:
        if (path := place / "paper_results.json").is_file():
            return tuple(json.loads(path.read_text(encoding="utf-8")))
    raise ValueError(
        f"paper_results.json is in none of {', '.join(map(str, PLACES))}: install the package again"
    )


@checked
def paper_results(paper: str | None = None, table: str | None = None) -> list[dict]:
    """Every number that the papers printed: paper, table, dataset, model, setting, attack, metric,
    value, unit, and sometimes notes on oddities of the print.

    Papers: snn-uai2025 (Guan et al., tables 2 to 6), snn-workshop2025 (F.1 to F.4), nsde2025 (I to
    XII). Values are fractions, not percent. Caveat: they are of one target and one seed, without
    intervals: compare orders, do not expect to reproduce values.
    """
    return [
        dict(r) for r in records() if paper in (None, r["paper"]) and table in (None, r["table"])
    ]


def printed_setting(record: dict) -> Setting:
    """A record's setting in our words, with k before it was rounded for print; attack is "" where
    the number is not about an attack.
    """
    attack = PRINTED_ATTACKS.get(record["attack"], ("",))[0]
    if record["model"] in PRINTED_MODELS:
        return _printed_flow(record, attack)
    return _printed_spiking(record, attack)


def _printed_spiking(record: dict, attack: str) -> Setting:
    """The setting of a number of Guan et al., whose models are a family and an architecture."""
    printed = record["setting"]
    family = record["model"].split("-")[0]
    references = printed.get("references", family)
    return Setting(
        family,
        training=printed.get("training", ""),
        timesteps=printed.get("T", 0),
        input_dropout=printed.get("input_dropout", False),
        references="own" if references == family else references,
        attack=attack,
    )


def _printed_flow(record: dict, attack: str) -> Setting:
    """The setting of a number of Hong, Wu, Gruber and Lee."""
    printed = record["setting"]
    model = PRINTED_MODELS[record["model"]]
    defense, output = PRINTED_DEFENSES[printed.get("defense")]
    steps = printed.get("s", 16)
    T = printed.get("T", 1.0)
    if "s" in printed:
        k = PRINTED_K.get(printed["k"], printed["k"])
    else:
        # tables VI and VII print no sigma: the study's is 2 (k = .5, 16 steps, T = 1)
        default = 2.0 if model == "replaced" else 0.0
        sigma = printed.get("sigma", default)
        k = sigma * math.sqrt(T / steps)
    scheme = "euler"
    if model in NOISY and record["table"] != TABLE_OF_DEFENSES:
        scheme = "stoch_rk4"
    return Setting(
        model,
        blocks=printed.get("blocks", RESNET_BLOCKS if model == "resnet14" else 1),
        method=printed.get("solver", scheme),
        augment=printed.get("augment", 0),
        k=k,
        steps=steps,
        T=T,
        defense=defense,
        output=output,
        attack=attack,
    )


@cache
def printed_records(study: str, judged: bool = False) -> list[tuple[Setting, dict]]:
    """(setting, record) of every number in a study's tables, including those on demand.

    judged: whether to include the tables that only the verdict on print uses.
    """
    printed = load(study).printed
    tables = [*printed["tables"], *printed.get("on_demand", ())]
    if judged:
        tables += printed.get("judged", ())
    return [
        (printed_setting(record), record)
        for record in records()
        if record["paper"] in printed["papers"] and record["table"] in tables
    ]


def selection_of(printed: Setting, record: dict) -> dict:
    """The fields, as `joins.matches` takes them, of our settings that correspond to a record's. An
    SDENet without noise corresponds to an ODENet.
    """
    is_flow = printed.model in NAMES and printed.model != "resnet14"
    fields = ["model", "defense", "output", "training", "timesteps", "input_dropout"]
    if printed.attack:
        fields.append("references")
    if is_flow and record["table"] != TABLE_OF_DEFENSES:
        fields += ["blocks", "augment", "T", "steps" if printed.model in NOISY else "method"]
    selection = {name: getattr(printed, name) for name in fields}
    if printed.attack:
        selection["attack"] = list(PRINTED_ATTACKS[record["attack"]])
    if is_flow:
        selection["noise"] = True
        selection["noise_train"] = True
        selection["k"] = {"not": 0} if printed.k else 0
        selection["sigma"] = {"near": printed.sigma, "within": NEAR}
    if printed.model in ("odenet", "sdenet") and not printed.k:
        selection["model"] = ["odenet", "sdenet"]
    return selection


def printed_alone(study: str, settings: dict[Setting, Scores]) -> dict[Setting, Scores]:
    """The settings that are in the study's tables, under the printed name of the attack, for the
    verdict "as printed".

    The papers do not print how often a stochastic network was queried, so the fewest queries that
    were run are taken. Attack-R has the spiking study's own form, and with input dropout its Eq. 8.

    Parameters:
        study: whose tables are meant
        settings: those that were run, in normal form, with their scores
    """
    as_printed: dict[Setting, Scores] = {}
    seen = set()
    for setting, scores in sorted(settings.items(), key=lambda item: item[0].queries):
        if setting.input_dropout and scores.info.get("combine", EQ_8) != EQ_8:
            continue
        printed = _under_printed_name(setting, study)
        if printed is None:
            continue
        whatever_queries = printed._replace(queries=1)
        in_a_table = any(matches(printed, selection) for selection in _selections(study))
        if in_a_table and whatever_queries not in seen:
            seen.add(whatever_queries)
            as_printed[printed] = scores
    return as_printed


def _under_printed_name(setting: Setting, study: str) -> Setting | None:
    """The setting with its attack named as in print; None for an attack that the study does not
    print: the Attack-R of the spiking study is our attack_r_lattice.
    """
    if study != "snn":
        return setting
    if setting.attack == "attack_r":
        return None
    if setting.attack == "attack_r_lattice":
        return setting._replace(attack="attack_r")
    return setting


@cache
def _selections(study: str) -> list[dict]:
    """The fields of our settings that correspond to those with attacks in the study's tables."""
    selections = {}
    for printed, record in printed_records(study):
        if printed.attack:
            # the same setting selects other fields in the table of defenses
            selections[printed, record["table"]] = selection_of(printed, record)
    return list(selections.values())
