"""Metrics: ROC, intervals, result tables, null self-test, choices on pseudo-targets, published claims. NumPy only."""

from mia_nb.metrics.agreement import agreement, exposure
from mia_nb.metrics.claims import snn_claims, snn_comparisons
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
from mia_nb.metrics.defense_published import (
    DefenseCell,
    cost_against_papers,
    defense_against_papers,
    defense_cell,
    defense_table,
)
from mia_nb.metrics.flow_claims import flow_claims, flow_comparisons
from mia_nb.metrics.flow_published import FlowCell, flow_against_papers, flow_cell
from mia_nb.metrics.frontier import frontier, frontier_means, matched
from mia_nb.metrics.null import SelfTest, self_test
from mia_nb.metrics.protocol import Choice, choose, reference_threshold
from mia_nb.metrics.published import Cell, against_papers, against_papers_readable, paper_results
from mia_nb.metrics.queries import VarianceSplit, query_curve, variance_split
from mia_nb.metrics.recipes import (
    RecipeCell,
    recipe_cell,
    recipe_claims,
    recipe_comparisons,
    recipe_facts,
    recipe_risks,
)
from mia_nb.metrics.settings import varied_settings
from mia_nb.metrics.tables import accuracies, class_gaps, intervals, per_target, readable, summary
from mia_nb.metrics.uncertainty import bootstrap, difference, interval

__all__ = [
    "Cell",
    "Choice",
    "DefenseCell",
    "FlowCell",
    "RecipeCell",
    "Roc",
    "SelfTest",
    "TprAt",
    "VarianceSplit",
    "accuracies",
    "advantage",
    "against_papers",
    "against_papers_readable",
    "agreement",
    "auc",
    "auc_null_error",
    "balanced_accuracy",
    "bootstrap",
    "choose",
    "class_gaps",
    "clopper_pearson",
    "cost_against_papers",
    "defense_against_papers",
    "defense_cell",
    "defense_table",
    "difference",
    "exposure",
    "flow_against_papers",
    "flow_cell",
    "flow_claims",
    "flow_comparisons",
    "frontier",
    "frontier_means",
    "interval",
    "intervals",
    "matched",
    "null_advantage",
    "paper_results",
    "per_target",
    "ppv",
    "query_curve",
    "readable",
    "recipe_cell",
    "recipe_claims",
    "recipe_comparisons",
    "recipe_facts",
    "recipe_risks",
    "reference_threshold",
    "roc",
    "self_test",
    "snn_claims",
    "snn_comparisons",
    "summary",
    "thin",
    "tie_mass",
    "tpr_at",
    "variance_split",
    "varied_settings",
]
