"""Metrics: ROC, intervals, result tables, the null self-test, and choices made on pseudo-targets. NumPy only."""

from .curve import (
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
from .tables import class_gaps, per_target, readable, summary
from .uncertainty import Band, bootstrap, difference, intervals, roc_band

__all__ = [
    "Band",
    "Roc",
    "TprAt",
    "advantage",
    "auc",
    "auc_null_error",
    "balanced_accuracy",
    "bootstrap",
    "class_gaps",
    "clopper_pearson",
    "difference",
    "intervals",
    "null_advantage",
    "per_target",
    "ppv",
    "readable",
    "roc",
    "roc_band",
    "summary",
    "thin",
    "tie_mass",
    "tpr_at",
]
