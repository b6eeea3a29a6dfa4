"""An audit's result for machines: design, models, attacks with intervals, verdicts, provenance, as strict JSON."""

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
from mia_nb.auditing.gate import is_coins
from mia_nb.checks import checked
from mia_nb.metrics.protocol import units
from mia_nb.types import Signals

SCHEMA = "mia_nb.audit/1"
MIME = "application/vnd.mia-nb.audit+json"  # under which an executed notebook carries the record
PACKAGES = ("numpy", "scipy", "scikit-learn", "pandas", "torch", "torchvision")
MAKING = (
    "model", "model_args", "dataset", "data_root", "limit", "size", "download", "num_models", "split", "population", "seed",
    "epochs", "batch", "lr", "optimizer", "optimizer_args", "schedule", "augment", "loss", "dtype", "defense", "defense_args",
    "strategy", "workers",
)  # fmt: skip
ASKING = ("queries", "input_dropout", "query_augment", "noise", "output", "device")
VAGUE = 0.05  # half width of an AUC's interval beyond which holding 1/2 says nothing
INVERTED = "inverted or leaking design"


@checked
def design(signals: Signals, split: str | None = None) -> dict:
    """How members were drawn, as far as the masks show, and who is compared with whom.

    kind: "pairs" (rows in exact complements), "coins" (fair and independent as far as can be seen), "masks" (any others),
    "mask" (one row that nobody declared a coin's: one row shows too little to tell). `split`: "pairs" or "bernoulli", how
    the members were drawn (default: what the signals' info says of it, if anything).
    Smallest numbers of members and non-members over models; `references` a side for the target that keeps fewest.
    """
    member = signals.member[:, ~signals.population]
    numbers = units(member)
    told = member[:, ~member.all(0)]  # canaries are paired among themselves
    twins = [told[numbers == one] for one in np.unique(numbers)]
    paired = all(len(two) == 2 and (two[0] != two[1]).all() for two in twins)
    declared = (split or signals.info.get("split")) == "bernoulli"
    kind = (
        "pairs"
        if paired
        else "coins"
        if is_coins(member) and (declared or len(member) > 1)
        else "masks"
    )
    kind = "mask" if kind == "masks" and len(member) == 1 else kind
    inside = member.sum(1)
    kept = [member[numbers != one] for one in numbers]
    sides = [
        int(np.median(np.minimum(rest.sum(0), (~rest).sum(0)))) if len(rest) else 0 for rest in kept
    ]
    return {
        "kind": kind,
        "models": len(member),
        "units": len(twins),
        "samples": len(signals.labels),
        "audited": member.shape[1],
        "population": int(signals.population.sum()),
        "members": int(inside.min()),
        "non_members": int((member.shape[1] - inside).min()),
        "references": min(sides),
        "queries": signals.margin.shape[1],
        "draws": signals.draws,
    }


WORDS = {
    "pairs": "{units} pair{plural} of models on complementary halves",
    "coins": "{models} model{s}, a fair coin for every sample and model",
    "mask": "1 model, one mask",
    "masks": "{models} models on {units} training set{plural}, given",
}


@checked
def in_words(facts: dict) -> str:
    """The design in sentences."""
    sizes = f"at least {facts['members']:,} members and {facts['non_members']:,} non-members"
    plural, s = ("s" if facts[name] > 1 else "" for name in ("units", "models"))
    who = WORDS[facts["kind"]].format(**facts, plural=plural, s=s)
    start = f"{who}: of {facts['audited']:,} audited samples"
    sees = "The attacker sees the outputs for all classes and the true labels, knows how the target was made, and has"
    if facts["models"] == 1:
        inside, outside = (f"{facts[name]:,}" for name in ("members", "non_members"))
        nothing = f"{sees} no model to compare with; weights and gradients stay hidden."
        return f"{start} it has {inside} members and {outside} non-members. {nothing}"
    mate = "A target's mate, trained on exactly the other half,"
    left_out = (
        mate
        if facts["kind"] == "pairs"
        else "A model with the target's training set, or with exactly the others,"
    )
    k = facts["references"]
    knows = (
        f"{k} model{'s' if k > 1 else ''} with and {k} without each sample to compare with"
        if k
        else "no model to compare with"
    )
    return (
        f"{start} each model has {sizes}. Every model is the target in turn. {left_out} "
        f"is no reference: it would give the answer away. {sees} {knows}; weights and gradients stay hidden."
    )


@checked
def headline(table: pd.DataFrame, self_test_passed: bool, design: dict | None = None) -> str:
    """What the strongest attack found, with interval, sizes and the state of the self-test, in a sentence.

    "no better than a coin" only where the interval holds 1/2 and is at most VAGUE wide on each side; where it is wider nothing
    was found out. `design`: that of `design`, for the number of pairs or training sets; where it
    holds what `comparable` says, remarks and doubt come first.
    """
    top = table.loc[table.drop("max")["auc"].astype(float).idxmax()]
    low, high = table.loc["max", ["auc_low", "auc_high"]]
    found = "finds members no better than a coin, as far as these numbers resolve"
    if (high - low) / 2 > VAGUE:
        found = "cannot tell members from non-members, nor show that it could not: the interval is too wide"
    if low > 0.5 or high < 0.5:
        found = (
            "tells members from non-members"
            if low > 0.5
            else "ranks members below non-members (is the design right?)"
        )
    targets = f"{top['targets']:.0f} target{'s' if top['targets'] > 1 else ''}"
    first, last = [], []
    if design is not None:
        first = [*design.get("remarks", ()), design.get("doubt")]
        last = [design.get("assumed")]
        found = "tells the two sides apart" if design.get("doubt") and low > 0.5 else found
    if design is not None and design["models"] > 1:
        many = "s" if design["units"] > 1 else ""
        targets += (
            f" ({design['units']} {'pair' if design['kind'] == 'pairs' else 'training set'}{many})"
        )
    sizes = f"{targets}, n1 = {top['n1']:,.0f} members, n0 = {top['n0']:,.0f} non-members"
    test = (
        "The null self-test passed"
        if self_test_passed
        else "The null self-test FAILED: do not quote these numbers"
    )
    auc = f"AUC {top['auc']:.3f} [{low:.3f}, {high:.3f}]"
    strongest = f"The strongest of {len(table) - 1} attacks, {top.name}, {found}"
    return " ".join(one for one in (*first, f"{strongest}: {auc}, {sizes}. {test}.", *last) if one)


def idle(way: str) -> tuple[str, ...]:
    """The audit notebook's parameters that change nothing where it is given "logits", or a "pool", and not a "model"."""
    ways = {
        "model": ("logits", "pool"),
        "pool": ("logits", *MAKING),
        "logits": ("pool", *MAKING, *ASKING),
    }
    return ways[way]


@checked
def provenance(parameters: dict | None = None) -> dict:
    """Versions, date, machine; of torch only where it was used. `parameters`: the audit notebook's; idle ones are left out."""
    versions = {"mia_nb": __version__, "python": platform.python_version()}
    way = next((name for name in ("logits", "pool") if (parameters or {}).get(name)), "model")
    for name in PACKAGES:  # forked kernels have torch loaded whether it is used or not
        if name not in ("torch", "torchvision") or (name in sys.modules and way != "logits"):
            versions[name] = importlib.metadata.version(name)
    torch = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = {
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": cores,
        "gpu": gpu,
    }
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "hardware": machine,
    }
    if parameters is None:
        return found
    return found | {
        "parameters": {name: value for name, value in parameters.items() if name not in idle(way)}
    }


@checked
def result(
    *, question: str, design: dict, data: dict, models, table: pd.DataFrame, self_test, verdicts, limits: dict,
    provenance: dict, audited=None,
) -> dict:  # fmt: skip
    """The record that stands beside the report: strict JSON, null for what has no number.

    models: `metrics.accuracies`; table: `metrics.summary`; self_test: `metrics.self_test`; verdicts: those of `judge`;
    limits: {question to doubt: whether it holds}; audited: the record of `audit`, None where there is none. The attacks'
    numbers keep their own 95 % intervals, measurable or not (`tpr@x_measurable`); the verdicts are about their maximum.
    """
    attacks = [
        {"attack": name} | row
        for name, row in zip(table.index, table.to_dict("records"), strict=True)
    ]
    inverted = [name for name, flags in table.drop("max")["flags"].items() if INVERTED in flags]
    checks = {
        "self_test_passed": bool(self_test.passed),
        "inverted": inverted,
        "tests": self_test.table.to_dict("records"),
    }
    bound = (
        None if audited is None else {k: v for k, v in audited._asdict().items() if k != "targets"}
    )
    record = {
        "schema": SCHEMA,
        "headline": headline(table, self_test.passed, design),
        "question": question,
        "design": design,
    }
    record |= {
        "data": data,
        "models": models.to_dict("index"),
        "attacks": attacks,
        "self_test": checks,
    }
    record |= {
        "verdicts": [one._asdict() for one in verdicts],
        "audited_bound": bound,
        "limits": limits,
    }
    return strict(record | {"provenance": provenance})


def strict(value):
    """What strict JSON can hold: NumPy's numbers as Python's, NaN and infinities as null, keys as text, tuples as lists."""
    if isinstance(value, dict):
        return {str(name): strict(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if hasattr(value, "tolist"):
        return strict(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | bool | int) else str(value)


@checked
def bundle(record: dict) -> dict:
    """The record as an output of a notebook cell: `display(bundle(record), raw=True)`."""
    said = f"{record['schema']}: {len(record['attacks'])} rows, {len(record['verdicts'])} limits"
    return {MIME: record, "text/plain": f"{said}; the machine-readable result of this page"}
