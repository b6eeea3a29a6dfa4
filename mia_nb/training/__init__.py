"""Pools: M models of one recipe, trained on different parts of one data set. Training can be
resumed, uses several processes where they help, and returns a `mia_nb.training.pool.Pool`.
"""

from mia_nb.training.conversion_quality import conversion_quality
from mia_nb.training.cost import step_cost
from mia_nb.training.families import family_pools
from mia_nb.training.plans import sampling
from mia_nb.training.pool import load_pool
from mia_nb.training.private_sde import train_private
from mia_nb.training.proof import proved
from mia_nb.training.recipes import changes, label, labels
from mia_nb.training.sensitivity import sensitivity
from mia_nb.training.spiking import convert_pool, hybrid_pools
from mia_nb.training.train import train_pool

__all__ = [
    "changes",
    "conversion_quality",
    "convert_pool",
    "family_pools",
    "hybrid_pools",
    "label",
    "labels",
    "load_pool",
    "proved",
    "sampling",
    "sensitivity",
    "step_cost",
    "train_pool",
    "train_private",
]
