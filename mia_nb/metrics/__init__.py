"""Metrics: ROC, intervals, result tables, negative control, choices. NumPy only."""

from mia_nb.metrics.agreement import agreement, exposure
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
from mia_nb.metrics.frontier import frontier, frontier_means, matched
from mia_nb.metrics.null import SelfTest, self_test
from mia_nb.metrics.protocol import Choice, choose, reference_threshold
from mia_nb.metrics.queries import VarianceSplit, query_curve, variance_split
from mia_nb.metrics.tables import accuracies, class_gaps, intervals, per_target, readable, summary
from mia_nb.metrics.uncertainty import bootstrap, difference, interval

__all__ = [
    "Choice",
    "Roc",
    "SelfTest",
    "TprAt",
    "VarianceSplit",
    "accuracies",
    "advantage",
    "agreement",
    "auc",
    "auc_null_error",
    "balanced_accuracy",
    "bootstrap",
    "choose",
    "class_gaps",
    "clopper_pearson",
    "difference",
    "exposure",
    "frontier",
    "frontier_means",
    "interval",
    "intervals",
    "matched",
    "null_advantage",
    "per_target",
    "ppv",
    "query_curve",
    "readable",
    "reference_threshold",
    "roc",
    "self_test",
    "summary",
    "thin",
    "tie_mass",
    "tpr_at",
    "variance_split",
]
