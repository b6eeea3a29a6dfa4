"""An audit's result for machines: design, models, attacks with intervals, verdicts, provenance, as
strict JSON.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import sys
from datetime import UTC, datetime

import numpy as np
import pandas as pd

from mia_nb import __version__
from mia_nb.arguments import Anything, Flag
from mia_nb.attacks import in_words
from mia_nb.auditing.one_run import coin_fault
from mia_nb.auditing.vulnerable import in_pairs
from mia_nb.checks import checked
from mia_nb.metrics.groups import largest_contribution
from mia_nb.metrics.pairs import units
from mia_nb.metrics.tables import by_attack
from mia_nb.metrics.verdict import measured_advice
from mia_nb.parameters import Source
from mia_nb.types import Query, Recipe, Signals

SCHEMA = "mia_nb.audit/2"  # 2: `attacks` has a row per attack and metric
MIME = "application/vnd.mia-nb.audit+json"  # under which an executed notebook carries the record
PACKAGES = ("numpy", "scipy", "scikit-learn", "pandas", "torch", "torchvision")
MAKING = (
    "recipe",
    *Recipe.model_fields,
    "source",
    *Source.model_fields,
    "strategy",
    "workers",
    "backend",
)
QUERYING = ("query", *Query.model_fields, "device")
# the audit notebook's parameters that change nothing where it is given logits, a pool or a model
IDLE = {
    "model": ("logits", "pool"),
    "pool": ("logits", *MAKING),
    "logits": ("pool", *MAKING, *QUERYING),
}
VAGUE = 0.05  # half width of an AUC's interval beyond which holding 1/2 says nothing
UNSHOWN = ("targets", "left_out")  # of an audit's record
INVERTED = "inverted or leaking design"
WORDS = {
    "pairs": "{units} pair{plural} of models on complementary halves",
    "coins": "{models} model{s}, a fair coin for every sample and model",
    "mask": "1 model, one mask",
    "masks": "{models} models on {units} training set{plural}, given",
}
SEES = (
    "The attacker sees the outputs for all classes and the true labels, knows how the target was"
    " made, and has"
)


@checked
def design(signals: Signals, split: str | None = None) -> dict:
    """How members were drawn, as far as the masks show, and who is compared with whom.

    Parameters:
        signals: of M models.
        split: "pairs" or "bernoulli", how the members were drawn (default: what the signals' info
            says of it, if anything).

    Returns:
        A dict of kind: "pairs" (rows in exact complements), "coins" (fair and independent as far as
        can be seen), "masks" (any others), "mask" (one row that nobody declared a coin's: one row
        shows too little to tell); numbers of models, units (pairs, or different training sets),
        samples, audited and population; the smallest numbers of members and non_members over
        models; references: a side, for the target that keeps fewest; queries, draws; words: all
        this in sentences.
    """
    member = signals.member[:, ~signals.population]
    numbers = units(member)
    declared = (split or signals.info.get("split")) == "bernoulli"
    if in_pairs(member, numbers):
        kind = "pairs"
    elif not coin_fault(member) and (declared or len(member) > 1):
        kind = "coins"
    elif len(member) == 1:
        kind = "mask"
    else:
        kind = "masks"
    inside = member.sum(1)
    others = [member[numbers != number] for number in numbers]
    sides = [int(np.median(np.minimum(one.sum(0), (~one).sum(0)))) for one in others]
    facts = {
        "kind": kind,
        "models": len(member),
        "units": len(np.unique(numbers)),
        "samples": len(signals.labels),
        "audited": member.shape[1],
        "population": int(signals.population.sum()),
        "members": int(inside.min()),
        "non_members": int((member.shape[1] - inside).min()),
        "references": min(sides),
        "queries": signals.margin.shape[1],
        "draws": signals.query_kind,
    }
    return facts | {"words": _words(facts)}


def _words(facts: dict) -> str:
    """The design in sentences."""
    plural, s = ("s" if facts[name] > 1 else "" for name in ("units", "models"))
    start = WORDS[facts["kind"]].format(**facts, plural=plural, s=s)
    start += f": of {facts['audited']:,} audited samples"
    n1, n0, k = (facts[name] for name in ("members", "non_members", "references"))
    left_out = (
        "A target's complementary model, trained on exactly the other half,"
        if facts["kind"] == "pairs"
        else "A model with the target's training set, or with exactly the others,"
    )
    both = f"{k} model{'s' if k > 1 else ''} with and {k} without each sample to compare with"
    knows = both if k else "no model to compare with"
    resolution = (
        f"it has {n1:,} members and {n0:,} non-members."
        if facts["models"] == 1
        else f"each model has at least {n1:,} members and {n0:,} non-members. Every model is the"
        f" target in turn. {left_out} is no reference: it would give the answer away."
    )
    return f"{start} {resolution} {SEES} {knows}; weights and gradients stay hidden."


@checked
def headline(
    table: pd.DataFrame, self_test_passed: Flag, design: dict | None = None, *, finding: str = ""
) -> str:
    """What the strongest attack found, with interval, sizes and the state of the negative control,
    in a sentence.

    Parameters:
        table: of `metrics.summary`.
        self_test_passed: of `metrics.self_test`.
        design: that of `design`, for the number of pairs or training sets; where it holds what
            `comparable` says, remarks and doubt come first.
        finding: what stands in place of the strongest attack's interval: of one finished model the
            headline of `audit_outputs`, whose permutation test has more power.

    Returns:
        one to a few sentences. "no better than a coin" only where the interval holds 1/2 and is at
        most .05 wide on each side; where it is wider nothing was found out.
    """
    auc = by_attack(table, "auc")
    top = auc.loc[auc["value"].drop("max").idxmax()]
    low, high = auc.loc["max", ["low", "high"]]
    facts = design or {}
    if low > 0.5 and facts.get("doubt"):
        says = "tells the two sides apart"
    elif low > 0.5:
        says = "tells members from non-members"
    elif high < 0.5:
        says = "ranks members below non-members (is the design right?)"
    elif (high - low) / 2 > VAGUE:
        says = (
            "cannot tell members from non-members, nor show that it could not: the interval is too"
            " wide"
        )
    else:
        says = "finds members no better than a coin, as far as these numbers resolve"
    targets = f"{top['targets']:.0f} target{'s' if top['targets'] > 1 else ''}"
    if facts.get("models", 1) > 1:
        unit = "pair" if facts["kind"] == "pairs" else "training set"
        targets += f" ({facts['units']} {unit}{'s' if facts['units'] > 1 else ''})"
    sizes = f"{targets}, n1 = {top['n1']:,.0f} members, n0 = {top['n0']:,.0f} non-members"
    test = "passed" if self_test_passed else "FAILED: do not quote these numbers"
    strongest = (
        f"The strongest of {len(auc) - 1} attacks, {in_words(top.name)}, {says}: AUC"
        f" {top['value']:.3f} [{low:.3f}, {high:.3f}], {sizes}."
    )
    sentences = (
        *facts.get("remarks", ()),
        facts.get("doubt"),
        finding.removeprefix(facts.get("doubt", "")).strip() or strongest,
        f"The negative control {test}.",
        facts.get("assumed"),
    )
    return " ".join(sentence for sentence in sentences if sentence)


def provenance(parameters: dict) -> dict:
    """Versions, date, machine; of torch only where it was used; the audit notebook's parameters
    without idle ones.
    """
    versions = {"mia_nb": __version__, "python": platform.python_version()}
    way = next((name for name in ("logits", "pool") if parameters.get(name)), "model")
    versions |= {  # forked kernels have torch loaded whether it is used or not
        name: importlib.metadata.version(name)
        for name in PACKAGES
        if name not in ("torch", "torchvision") or (name in sys.modules and way != "logits")
    }
    torch = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    used = {name: value for name, value in parameters.items() if name not in IDLE[way]}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "hardware": {
            "system": platform.system(),
            "machine": platform.machine(),
            "cores": cores,
            "gpu": gpu,
        },
        "parameters": {
            name: {**value} if hasattr(value, "keys") else value for name, value in used.items()
        },
    }


class Record(dict):
    """The record of an audit; a notebook's output carries it for machines."""

    def _repr_mimebundle_(self, **_) -> dict:
        contents = f"{self['schema']}: {len(self['attacks'])} rows, {len(self['verdicts'])} limits"
        text = f"{contents}; the machine-readable result of this page"
        return {MIME: dict(self), "text/plain": text}


@checked
def result(
    *,
    question: str,
    design: dict,
    data: dict,
    models: Anything,
    table: pd.DataFrame,
    self_test: Anything,
    verdicts: Anything,
    limits: dict,
    parameters: dict,
    origin: dict | None = None,
    audited: Anything | None = None,
    groups: pd.DataFrame | None = None,
    finding: str = "",
) -> Record:
    """The record that stands beside the report: strict JSON, null for what has no number.

    Parameters:
        question: of the audit, in a sentence.
        design: that of `design`.
        data: of the images.
        models: `metrics.accuracies`.
        table: `metrics.summary`.
        self_test: `metrics.self_test`.
        verdicts: those of `judge`.
        limits: {question to doubt: whether it holds}.
        parameters: the audit notebook's; those that change nothing are left out.
        origin: what else the provenance holds: recipe, keys.
        audited: the record of `audit`, None where there is none.
        groups: `metrics.by_group` of the strongest attack over classes, None where there is none.
        finding: as for `headline`.

    Returns:
        A dict; displayed in a notebook, the page carries it. The attacks' numbers, a row
        per attack and metric, keep their own 95 % intervals, measurable or not; the verdicts are
        about their maximum.
        provenance: date, versions, hardware, parameters and `origin`.
    """
    auc = by_attack(table, "auc")
    flags = auc["flags"].drop("max")
    bound = None
    if audited is not None:
        bound = {name: value for name, value in audited._asdict().items() if name not in UNSHOWN}
    split = pd.DataFrame() if groups is None else groups
    contribution = largest_contribution(split, "classes") if len(split) else ""
    leaks = auc.loc["max", "low"] > 0.5 and self_test.passed and not design.get("doubt")
    first = headline(table, self_test.passed, design, finding=finding)
    record = {
        "schema": SCHEMA,
        "headline": " ".join(filter(None, [first, contribution])),
        "question": question,
        "design": design,
        "data": data,
        "models": models.to_dict("index"),
        "attacks": table.to_dict("records"),
        "groups": split.reset_index().to_dict("records"),
        "advice": measured_advice(_trained_by(origin)) if leaks else [],
        "self_test": {
            "self_test_passed": bool(self_test.passed),
            "inverted": [name for name, words in flags.items() if INVERTED in words],
            "tests": self_test.table.to_dict("records"),
        },
        "verdicts": [verdict._asdict() for verdict in verdicts],
        "audited_bound": bound,
        "limits": limits,
        "provenance": provenance(parameters) | (origin or {}),
    }
    return Record(strict(record))


def _trained_by(origin: dict | None) -> Recipe | None:
    """The recipe that an audit's origin names, None where it names none."""
    record = (origin or {}).get("recipe")
    return None if record is None else Recipe.from_json(record)


def strict(value):
    """What strict JSON can hold: NumPy's numbers as Python's, NaN and infinities as null, keys as
    text, tuples as lists.
    """
    if isinstance(value, dict):
        return {str(name): strict(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if hasattr(value, "tolist"):
        return strict(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | bool | int) else str(value)
