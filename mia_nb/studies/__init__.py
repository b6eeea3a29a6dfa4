"""Studies: claims of published papers and about recipes as data, with verdicts; the papers' printed
numbers beside ours. NumPy only.
"""

from mia_nb.studies.claims import (
    claims,
    comparisons,
    flow_claims,
    flow_comparisons,
    recipe_claims,
    recipe_comparisons,
    snn_claims,
    snn_comparisons,
)
from mia_nb.studies.figure4 import figure4_against_paper
from mia_nb.studies.privacy import privacy_claims, privacy_comparisons
from mia_nb.studies.published import (
    against_papers,
    against_papers_readable,
    cost_against_papers,
    paper_results,
)
from mia_nb.studies.setting import Setting, recipe_setting, setting
from mia_nb.studies.tables import defense_table, recipe_facts, recipe_risks, varied_settings

__all__ = [
    "Setting",
    "against_papers",
    "against_papers_readable",
    "claims",
    "comparisons",
    "cost_against_papers",
    "defense_table",
    "figure4_against_paper",
    "flow_claims",
    "flow_comparisons",
    "paper_results",
    "privacy_claims",
    "privacy_comparisons",
    "recipe_claims",
    "recipe_comparisons",
    "recipe_facts",
    "recipe_risks",
    "recipe_setting",
    "setting",
    "snn_claims",
    "snn_comparisons",
    "varied_settings",
]
