"""Studies: claims of published papers and about recipes as data, with verdicts; the papers' printed
numbers beside ours. NumPy only.
"""

from mia_nb.studies.claims import claims, comparisons
from mia_nb.studies.on_print import SPIKING_ATTACKS, claims_on_print
from mia_nb.studies.published import against_papers, against_papers_readable
from mia_nb.studies.setting import Setting, setting
from mia_nb.studies.tables import recipe_facts, varied_settings

__all__ = [
    "SPIKING_ATTACKS",
    "Setting",
    "against_papers",
    "against_papers_readable",
    "claims",
    "claims_on_print",
    "comparisons",
    "recipe_facts",
    "setting",
    "varied_settings",
]
