"""Audits: lower bounds on epsilon, the ladder, stated limits, outputs from elsewhere, exposed
samples, canaries. NumPy only.
"""

from mia_nb.auditing.alone import attacks_on
from mia_nb.auditing.canaries import canary_arrays, canary_member
from mia_nb.auditing.canary_rates import canary_rates
from mia_nb.auditing.design import design
from mia_nb.auditing.elsewhere import collect, plan
from mia_nb.auditing.finished import audit_model, audit_outputs
from mia_nb.auditing.gate import judge
from mia_nb.auditing.ladder import ladder
from mia_nb.auditing.limits import limits, refuse_unmeasurable
from mia_nb.auditing.one_run import audit, score_split
from mia_nb.auditing.outputs import Outputs, read_outputs
from mia_nb.auditing.result import result
from mia_nb.auditing.sentences import headline, next_steps
from mia_nb.auditing.shift import comparable, shift_guard
from mia_nb.auditing.verdicts import LimitsTable
from mia_nb.auditing.vulnerable import null_scores, vulnerability

__all__ = [
    "LimitsTable",
    "Outputs",
    "attacks_on",
    "audit",
    "audit_model",
    "audit_outputs",
    "canary_arrays",
    "canary_member",
    "canary_rates",
    "collect",
    "comparable",
    "design",
    "headline",
    "judge",
    "ladder",
    "limits",
    "next_steps",
    "null_scores",
    "plan",
    "read_outputs",
    "refuse_unmeasurable",
    "result",
    "score_split",
    "shift_guard",
    "vulnerability",
]
