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

import pandas as pd

from mia_nb import __version__
from mia_nb._code_origin import NUMERIC, WITH_TORCH
from mia_nb.arguments import Anything
from mia_nb.auditing.sentences import headline
from mia_nb.checks import checked
from mia_nb.metrics.groups import largest_contribution
from mia_nb.metrics.tables import by_attack
from mia_nb.parameters import Source
from mia_nb.types import Query, Recipe

SCHEMA = "mia_nb.audit/2"  # 2: `attacks` has a row per attack and metric
MIME = "application/vnd.mia-nb.audit+json"  # under which an executed notebook carries the record
MAKING = (
    "recipe",
    *Recipe.model_fields,
    "source",
    *Source.model_fields,
    "strategy",
    "compiled",
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
INVERTED = "inverted or leaking design"


def provenance(parameters: dict) -> dict:
    """Versions (of torch and of what builds on it only if used), date, machine, and the audit
    notebook's parameters without those that change nothing.
    """
    audited = "model"
    if parameters.get("logits"):
        audited = "logits"
    elif parameters.get("pool"):
        audited = "pool"
    versions = {"mia_nb": __version__, "python": platform.python_version()}
    names = list(NUMERIC)
    if audited != "logits":  # forked kernels have torch loaded whether it is used or not
        names += [name for name in WITH_TORCH if name in sys.modules]
    for name in names:
        versions[name] = importlib.metadata.version(name)
    torch = sys.modules.get("torch")
    gpu = None
    if torch is not None and torch.cuda.is_available():
        gpu = torch.cuda.get_device_name()
    cores = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    used = {}
    for name, value in parameters.items():
        if name not in IDLE[audited]:
            used[name] = {**value} if hasattr(value, "keys") else value
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "hardware": {
            "system": platform.system(),
            "machine": platform.machine(),
            "cores": cores,
            "gpu": gpu,
        },
        "parameters": used,
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
    """The record beside the report: strict JSON, with null for missing numbers.

    Parameters:
        question: of the audit, in a sentence.
        design: from `design`.
        data: facts of the images.
        models: `metrics.accuracies`.
        table: `metrics.summary`.
        self_test: `metrics.self_test`.
        verdicts: from `judge`.
        limits: {question to doubt: whether it holds}.
        parameters: the audit notebook's; those that change nothing are left out.
        origin: further provenance: recipe, keys.
        audited: the record of `audit`; None without one.
        groups: `metrics.by_group` of the strongest attack over classes; None without one.
        finding: as for `headline`.

    Returns:
        A dict; a notebook that displays it carries it in its page. The attacks' numbers, a row per
        attack and metric, have their own 95 % intervals, measurable or not; the verdicts are about
        their maximum. provenance: date, versions, hardware, parameters and `origin`.
    """
    flags = by_attack(table, "auc")["flags"].drop("max")
    sentences = [headline(table, self_test.passed, design, finding=finding)]
    if groups is None:
        groups = pd.DataFrame()
    if len(groups):
        sentences.append(largest_contribution(groups, "classes"))
    record = {
        "schema": SCHEMA,
        "headline": " ".join(filter(None, sentences)),
        "question": question,
        "design": design,
        "data": data,
        "models": models.to_dict("index"),
        "attacks": table.to_dict("records"),
        "groups": groups.reset_index().to_dict("records"),
        "self_test": {
            "self_test_passed": bool(self_test.passed),
            "inverted": [name for name, words in flags.items() if INVERTED in words],
            "tests": self_test.table.to_dict("records"),
        },
        "verdicts": [verdict._asdict() for verdict in verdicts],
        "audited_bound": None if audited is None else audited._asdict(),
        "limits": limits,
        "provenance": provenance(parameters) | (origin or {}),
    }
    return Record(strict(record))


def strict(value):
    """The value in strict JSON: NumPy's numbers as Python's, NaN and infinities as null, keys as
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
