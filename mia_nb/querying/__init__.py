"""Query every model of a pool about every image: pool x images -> Signals, which are stored.
Outputs that cannot be trusted are refused.
"""

from mia_nb.querying.counts import firing_rates, operations
from mia_nb.querying.signals import query

__all__ = ["firing_rates", "operations", "query"]
