"""Metrics: ROC, intervals, result tables, the null self-test, and choices made on pseudo-targets. NumPy only."""

from mia_nb.metrics.curve import (
    Roc,
    TprAt,
    advantage,
    auc,
    auc_null_error,
    balanced_accuracy,
    clopper_pearson,
    null_advantage,
    ppv,
    roc,
    thin,
    tie_mass,
    tpr_at,
)
from mia_nb.metrics.null import SelfTest, self_test
from mia_nb.metrics.protocol import Choice, choose, reference_threshold
from mia_nb.metrics.tables import class_gaps, per_target, readable, summary
from mia_nb.metrics.uncertainty import bootstrap, difference, intervals

__all__ = [
    "Choice",
    "Roc",
    "SelfTest",
    "TprAt",
    "advantage",
    "auc",
    "auc_null_error",
    "balanced_accuracy",
    "bootstrap",
    "choose",
    "class_gaps",
    "clopper_pearson",
    "difference",
    "intervals",
    "null_advantage",
    "per_target",
    "ppv",
    "readable",
    "reference_threshold",
    "roc",
    "self_test",
    "summary",
    "thin",
    "tie_mass",
    "tpr_at",
]
