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
MEMBERS = ("num_models", "split", "population", "seed")  # what draws the members, which all families share


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
    only when it is asked (a replaced network keeps its arguments but those given). model_args: of every network; flow: of every
    differential equation, replaced ones included; a family's own come after both. finetune: recipe changes of replaced
    networks, and freeze. options: as for `train_pool`.
    Raises ValueError of one line for a family that is none or that would have other members, and as `train_pool` does.
    """
    pools: list[Pool] = []
    for number, family in enumerate(families):
        if not isinstance(family, dict):
            raise ValueError(
                f"family {number} is {family!r}: wanted a mapping of changes to the recipe, e.g. {{model: odenet}}"
            )
        changes = {**(finetune or {}), **family} if "replace" in family else dict(family)
        parent = _parent(changes, pools, number)
        own = changes.pop("model_args", {})
        freeze = changes.pop("freeze", False) if "replace" in family else False
        _check(changes, number, MEMBERS if parent is None else MEMBERS[:-1])
        if "replace" in family:
            how = {"freeze": freeze, "block": {**(flow or {}), **own}}
            pools.append(replace_pool(parent, replace(recipe, **changes), images, **how, **options))
            continue
        equation = flow if changes.get("model", recipe.model) in models.FLOWS else None
        shared = {**(model_args or {}), **(equation or {})}
        if parent is not None and changes.get("model") == parent.recipe.model == "replaced":
            shared = parent.recipe.model_args  # its network and block
        one = replace(recipe, **changes, model_args={**shared, **own})
        if parent is None:
            pools.append(train_pool(one, images, root=root, **options))
        else:
            pools.append(finetune_pool(parent, replace(one, epochs=0, parent=parent.key), images, **options))
    return pools


def _check(changes: dict, number: int, fixed: tuple[str, ...]) -> None:
    if unknown := sorted(set(changes) - KNOWN):
        known = ", ".join(sorted(KNOWN - set(fixed)))
        raise ValueError(f"family {number} changes {unknown[0]!r}, which no recipe has; it may change {known}")
    if other := [name for name in fixed if name in changes]:
        raise ValueError(f"family {number} changes {other[0]!r}, but all families have the same members: change it for all")


def _parent(changes: dict, pools: list[Pool], number: int) -> Pool | None:
    """The earlier family that one starts from, its word taken out of the changes."""
    for word in ("replace", "weights_of"):
        if word in changes:
            place = changes.pop(word)
            if not isinstance(place, int) or isinstance(place, bool) or not 0 <= place < number:
                raise ValueError(f"family {number} says {word}: {place!r}; wanted the number of an earlier family, from 0")
            return pools[place]
    return None
