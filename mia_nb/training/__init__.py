"""Pools: M models of one recipe, trained on different parts of one data set, resumable, in as many
processes as help.
"""

from mia_nb.training.cost import estimate, step_cost
from mia_nb.training.families import family_pools
from mia_nb.training.loop import mix, sampling
from mia_nb.training.pool import Pool, ancestor, load_pool
from mia_nb.training.recipes import RECIPES, changes, label, labels
from mia_nb.training.sensitivity import sensitivity
from mia_nb.training.spiking import (
    conversion_quality,
    conversion_report,
    convert_pool,
    hybrid_pools,
)
from mia_nb.training.train import check, complete, finetune_pool, replace_pool, train_pool
from mia_nb.types import Recipe

__all__ = [
    "RECIPES",
    "Pool",
    "Recipe",
    "ancestor",
    "changes",
    "check",
    "complete",
    "conversion_quality",
    "conversion_report",
    "convert_pool",
    "estimate",
    "family_pools",
    "finetune_pool",
    "hybrid_pools",
    "label",
    "labels",
    "load_pool",
    "mix",
    "replace_pool",
    "sampling",
    "sensitivity",
    "step_cost",
    "train_pool",
]
