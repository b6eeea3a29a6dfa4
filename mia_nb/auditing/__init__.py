"""Audits: lower bounds on epsilon, the ladder, stated limits, outputs from elsewhere, exposed
samples, canaries. NumPy only.
"""

from mia_nb.auditing.bounds import epsilon_lower, mu_lower, population_level
from mia_nb.auditing.canaries import canary_arrays, canary_labels, canary_member, canary_rates
from mia_nb.auditing.finished import ModelAudit, audit_model, by_group, collect, plan
from mia_nb.auditing.gate import (
    Limit,
    Verdict,
    fewest,
    judge,
    limits,
    refuse_unmeasurable,
)
from mia_nb.auditing.ladder import LABELS, NOTES, ladder
from mia_nb.auditing.one_run import (
    Audit,
    audit,
    check_bernoulli,
    is_coins,
    one_run,
    one_run_epsilon,
    score_split,
)
from mia_nb.auditing.outputs import Outputs, read_outputs
from mia_nb.auditing.result import bundle, design, headline, in_words, provenance, result
from mia_nb.auditing.shift import ShiftGuard, class_mix, comparable, copies, shift_guard
from mia_nb.auditing.stability import stability
from mia_nb.auditing.vulnerable import null_scores, vulnerability

__all__ = [
    "LABELS",
    "NOTES",
    "Audit",
    "Limit",
    "ModelAudit",
    "Outputs",
    "ShiftGuard",
    "Verdict",
    "audit",
    "audit_model",
    "bundle",
    "by_group",
    "canary_arrays",
    "canary_labels",
    "canary_member",
    "canary_rates",
    "check_bernoulli",
    "class_mix",
    "collect",
    "comparable",
    "copies",
    "design",
    "epsilon_lower",
    "fewest",
    "headline",
    "in_words",
    "is_coins",
    "judge",
    "ladder",
    "limits",
    "mu_lower",
    "null_scores",
    "one_run",
    "one_run_epsilon",
    "plan",
    "population_level",
    "provenance",
    "read_outputs",
    "refuse_unmeasurable",
    "result",
    "score_split",
    "shift_guard",
    "stability",
    "vulnerability",
]
