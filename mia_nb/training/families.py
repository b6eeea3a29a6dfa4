"""Pools of several families of models that share their members, so that what they leak can be
compared row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mia_nb import models
from mia_nb.checks import checked
from mia_nb.training.loop import begin
from mia_nb.training.pool import Pool
from mia_nb.training.train import (
    SPLIT,
    check,
    check_network,
    complete,
    finetune_pool,
    membership,
    place,
    replaced,
    train_pool,
)
from mia_nb.types import Images, Recipe

KNOWN = set(Recipe.model_fields) - {"parent"}
# what draws the members, which all families share
MEMBERS = (*SPLIT, "seed")


@checked
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

    families: changes to `recipe`, say {"model": "sdenet", "model_args": {"k": 0.3}}. {"replace": i,
    ...}: replace-then-finetune from family i (`replace_pool`; model_args are the block's, and
    freeze). {"weights_of": i, "model": ...}: the weights of family i in another model that takes
    them, say an odenet's in an sdenet built with noise_train=False, so that noise is added only
    when it is asked (a replaced network keeps its arguments but those given). model_args: of every
    network; flow: of every differential equation, replaced ones included; a family's own come after
    both. finetune: recipe changes of replaced networks, and freeze. options: as for `train_pool`.
    All families are checked before the first is trained. Raises ValueError of one line for a family
    that is none, that would have other members, or that `train_pool` would refuse. Caveat: of what
    is derived, weights are checked by fresh ones.
    """
    planned: list[tuple[Recipe, int | None]] = []
    for number, family in enumerate(families):
        planned.append(
            _planned(family, number, planned, recipe, model_args or {}, flow or {}, finetune or {})
        )
    _refuse(planned, images, root, options.get("member"))
    pools: list[Pool] = []
    for one, parent in planned:
        if parent is None:
            pools.append(train_pool(one, images, root=root, **options))
        else:
            pools.append(finetune_pool(pools[parent], one, images, **options))
    return pools


def _planned(
    family, number: int, planned: list, recipe: Recipe, model_args: dict, flow: dict, finetune: dict
):
    """(recipe, number of the family that it starts from or None) of one family; of a derived one
    with a parent in name only.
    """
    if not isinstance(family, dict):
        raise ValueError(
            f"family {number} is {family!r}: wanted a mapping of changes to the recipe, e.g."
            " {model: odenet}"
        )
    changes = {**finetune, **family} if "replace" in family else dict(family)
    parent = _parent(changes, number)
    own = changes.pop("model_args", {})
    freeze = changes.pop("freeze", False) if "replace" in family else False
    _check(changes, number, MEMBERS if parent is None else SPLIT)
    derived = {} if parent is None else {"parent": f"family {parent}"}
    if "replace" in family:
        return (
            replaced(
                planned[parent][0], recipe.replace(**changes, **derived), freeze, {**flow, **own}
            ),
            parent,
        )
    equation = flow if changes.get("model", recipe.model) in models.FLOWS else {}
    shared = {**model_args, **equation}
    if parent is not None and changes.get("model") == planned[parent][0].model == "replaced":
        shared = planned[parent][0].model_args  # its network and block
    told = changes if parent is None else {**changes, **derived, "epochs": 0}
    return recipe.replace(**{**told, "model_args": {**shared, **own}}), parent


class _Fresh(NamedTuple):
    """Stands for a pool that is not trained yet: its recipe, its members, and weights as they are
    before the first step.
    """

    recipe: Recipe
    images: Images
    member: np.ndarray
    population: np.ndarray
    parent: _Fresh | None

    def state(self, model: int) -> dict:
        return self._begin(model).state_dict()

    def model(self, model: int):
        return self._begin(model).eval()

    def _begin(self, model: int):
        return begin(self.recipe, self.images, model, self.parent and self.parent.state)


def _refuse(
    planned: list[tuple[Recipe, int | None]], images: Images, root, given: np.ndarray | None
) -> None:
    """ValueError, with the family's number, for what `train_pool` would refuse once the families
    before it were trained.
    """
    ready: list[_Fresh] = []
    for number, (recipe, parent) in enumerate(planned):
        try:
            recipe, start = complete(recipe), None if parent is None else ready[parent]
            if start is not None:
                check_network(start.recipe, recipe.defense, f"family {parent}")
            member, population = membership(recipe, images, given, start)
            known = start is None and place(recipe, images, member, population, root, None)[
                0
            ].folder.has("recipe.json")
            if not known:
                check(recipe, images, member, population, start)
        except ValueError as error:
            raise ValueError(f"family {number}: {error}") from error
        ready.append(_Fresh(recipe, images, member, population, start))


def _check(changes: dict, number: int, fixed: tuple[str, ...]) -> None:
    if unknown := sorted(set(changes) - KNOWN):
        known = ", ".join(sorted(KNOWN - set(fixed)))
        raise ValueError(
            f"family {number} changes {unknown[0]!r}, which no recipe has; it may change {known}"
        )
    if other := [name for name in fixed if name in changes]:
        raise ValueError(
            f"family {number} changes {other[0]!r}, but all families have the same members: change"
            " it for all"
        )


def _parent(changes: dict, number: int) -> int | None:
    """Number of the earlier family that one starts from, its word taken out of the changes."""
    word = "replace" if "replace" in changes else "weights_of"
    if word not in changes:
        return None
    start = changes.pop(word)
    if not isinstance(start, int) or isinstance(start, bool) or not 0 <= start < number:
        raise ValueError(
            f"family {number} says {word}: {start!r}; wanted the number of an earlier family, from"
            " 0"
        )
    return start
