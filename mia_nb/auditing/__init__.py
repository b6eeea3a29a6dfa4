"""Audits: lower bounds on epsilon, the ladder, exposed samples, canaries, stability, shift guard. NumPy only."""

from mia_nb.auditing.bounds import epsilon_lower, mu_lower, population_level
from mia_nb.auditing.canaries import canary_arrays, canary_labels, canary_member, canary_rates
from mia_nb.auditing.claims import figure4_against_paper, privacy_claims, privacy_comparisons
from mia_nb.auditing.ladder import LABELS, NOTES, ladder
from mia_nb.auditing.one_run import Audit, OneRun, audit, check_bernoulli, one_run, one_run_epsilon
from mia_nb.auditing.shift import ShiftGuard, shift_guard
from mia_nb.auditing.stability import stability
from mia_nb.auditing.vulnerable import null_scores, vulnerability

__all__ = [
    "LABELS",
    "NOTES",
    "Audit",
    "OneRun",
    "ShiftGuard",
    "audit",
    "canary_arrays",
    "canary_labels",
    "canary_member",
    "canary_rates",
    "check_bernoulli",
    "epsilon_lower",
    "figure4_against_paper",
    "ladder",
    "mu_lower",
    "null_scores",
    "one_run",
    "one_run_epsilon",
    "population_level",
    "privacy_claims",
    "privacy_comparisons",
    "shift_guard",
    "stability",
    "vulnerability",
]
