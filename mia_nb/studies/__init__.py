"""Studies: claims of published papers and about recipes as data, with verdicts; the papers' printed
numbers beside ours. NumPy only.
"""

from mia_nb.studies.paper_numbers import SPIKING_ATTACKS
from mia_nb.studies.paper_verdicts import claims_on_print
from mia_nb.studies.reproduction import against_papers, against_papers_readable
from mia_nb.studies.settings import Setting, setting
from mia_nb.studies.tables import varied_settings
from mia_nb.studies.verdicts import claims, comparisons, evidence_readable

__all__ = [
    "SPIKING_ATTACKS",
    "Setting",
    "against_papers",
    "against_papers_readable",
    "claims",
    "claims_on_print",
    "comparisons",
    "evidence_readable",
    "setting",
    "varied_settings",
]
