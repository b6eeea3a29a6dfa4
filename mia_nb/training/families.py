"""Pools of several families of models that share their members, so that what they leak can be compared row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from mia_nb import models
from mia_nb.training.pool import Pool
from mia_nb.training.train import finetune_pool, replace_pool, train_pool
from mia_nb.types import Images, Recipe

KNOWN = {f.name for f in fields(Recipe)} - {"parent"}


def family_pools(
    families: Sequence[dict],
    recipe: Recipe,
    images: Images,
    *,
    model_args: dict | None = None,
    flow: dict | None = None,
    finetune: dict | None = None,
    root: str | Path = "results",
    **options,
) -> list[Pool]:
    """One pool for each family, in order; what is stored comes back at once.

    families: changes to `recipe`, say {"model": "sdenet", "model_args": {"k": 0.3}}. {"replace": i, ...}: replace-then-finetune
    from family i (`replace_pool`; model_args are the block's, and freeze). {"weights_of": i, "model": ...}: the weights of
    family i in another model that takes them, say an odenet's in an sdenet built with noise_train=False, so that noise is added
    only when it is asked. model_args: of every network; flow: of every differential equation, replaced ones included; a
    family's own come after both. finetune: recipe changes of replaced networks, and freeze. options: as for `train_pool`.
    Raises ValueError of one line for a family that is none, and as `train_pool` does.
    """
    pools: list[Pool] = []
    for number, family in enumerate(families):
        if not isinstance(family, dict):
            raise ValueError(
                f"family {number} is {family!r}: wanted a mapping of changes to the recipe, e.g. {{model: odenet}}"
            )
        changes = {**(finetune or {}), **family} if "replace" in family else dict(family)
        parent = _parent(changes, pools, number)
        own, freeze = changes.pop("model_args", {}), changes.pop("freeze", False)
        if unknown := sorted(set(changes) - KNOWN):
            raise ValueError(f"family {number} changes {unknown[0]!r}, which no recipe has; it has {', '.join(sorted(KNOWN))}")
        if "replace" in family:
            how = {"freeze": freeze, "block": {**(flow or {}), **own}}
            pools.append(replace_pool(parent, replace(recipe, **changes), images, **how, **options))
            continue
        equation = flow if changes.get("model", recipe.model) in models.FLOWS else None
        one = replace(recipe, **changes, model_args={**(model_args or {}), **(equation or {}), **own})
        if parent is None:
            pools.append(train_pool(one, images, root=root, **options))
        else:
            pools.append(finetune_pool(parent, replace(one, epochs=0, parent=parent.key), images, **options))
    return pools


def _parent(changes: dict, pools: list[Pool], number: int) -> Pool | None:
    """The earlier family that one starts from, its word taken out of the changes."""
    for word in ("replace", "weights_of"):
        if word in changes:
            place = changes.pop(word)
            if not isinstance(place, int) or isinstance(place, bool) or not 0 <= place < number:
                raise ValueError(f"family {number} says {word}: {place!r}; wanted the number of an earlier family, from 0")
            return pools[place]
    return None
