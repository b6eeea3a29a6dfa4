"""Metrics: ROC, intervals, result tables, negative control, choices. NumPy only."""

from mia_nb.metrics.accuracy import accuracies, class_gaps
from mia_nb.metrics.choice import choose
from mia_nb.metrics.curve import auc, clopper_pearson, ppv, roc, tpr_at
from mia_nb.metrics.equal_utility import matched
from mia_nb.metrics.frontier_table import frontier, frontier_means
from mia_nb.metrics.groups import by_group, readable_groups
from mia_nb.metrics.memorised_samples import agreement
from mia_nb.metrics.null import self_test
from mia_nb.metrics.operations import with_operations
from mia_nb.metrics.queries import query_curve, variance_split
from mia_nb.metrics.sentences import verdict
from mia_nb.metrics.table_text import readable
from mia_nb.metrics.tables import by_attack, summary
from mia_nb.metrics.targets import per_target
from mia_nb.metrics.uncertainty import difference, interval, intervals

__all__ = [
    "accuracies",
    "agreement",
    "auc",
    "by_attack",
    "by_group",
    "choose",
    "class_gaps",
    "clopper_pearson",
    "difference",
    "frontier",
    "frontier_means",
    "interval",
    "intervals",
    "matched",
    "per_target",
    "ppv",
    "query_curve",
    "readable",
    "readable_groups",
    "roc",
    "self_test",
    "summary",
    "tpr_at",
    "variance_split",
    "verdict",
    "with_operations",
]
