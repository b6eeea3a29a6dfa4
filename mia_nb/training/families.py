"""Pools of several families of models, which are changes to one recipe and share their members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from mia_nb import models
from mia_nb.arguments import Anything, PathLike
from mia_nb.checks import checked
from mia_nb.training.placing import SPLIT, complete, membership, place
from mia_nb.training.plans import begin, plan_of
from mia_nb.training.pool import Pool
from mia_nb.training.train import check_network, finetune_pool, train_pool
from mia_nb.training.trials import check
from mia_nb.types import Images, Recipe

KNOWN = set(Recipe.model_fields) - {"parent"}
# the fields that determine the members, which all families share
MEMBERS = (*SPLIT, "seed")


@checked
def family_pools(
    families: Anything,
    recipe: Recipe,
    images: Images,
    *,
    model_args: dict | None = None,
    flow: dict | None = None,
    finetune: dict | None = None,
    root: PathLike = "results",
    **options: Any,
) -> list[Pool]:
    """A trained pool for each of several families of models, on the same members.

    All families are checked before the first is trained; stored pools are loaded.

    Parameters:
        families: changes to `recipe`, say {"model": "sdenet", "model_args": {"k": 0.3}}.
            {"replace": i, ...} is replace-then-finetune: a fresh SDE block replaces the last group
            of family i's networks, and training continues (model_args are the block's; with freeze
            only block and head learn). {"weights_of": i, "model": ...} puts the weights of family i
            into another model that takes them, say an odenet's into an sdenet built with
            noise_train=False, so that noise is added only in queries (a replaced network keeps its
            arguments except those given).
        recipe: the recipe that the families change.
        images: the images that all are trained on.
        model_args: arguments of every network; a family's own override them.
        flow: likewise of every differential equation, including those in replaced networks.
        finetune: changes to the recipe of replaced networks, and freeze.
        root: the folder of results.
        options: as for `train_pool`.

    Returns:
        One `Pool` per family, in order.

    Raises:
        ValueError: in one line with the family's number: it is no mapping of changes, would have
            other members, or `train_pool` would refuse it.

    Source: Hong, Wu, Gruber and Lee (arXiv 2501.06686), 5.4, for replace-then-finetune.

    Caveat: the layers before a replaced group were trained on the same images without noise. The
    checks of derived families use fresh weights in place of their parents'.
    """
    planned = planned_recipes(families, recipe, model_args or {}, flow or {}, finetune or {})
    _refuse(planned, images, root, options.get("member"))
    pools: list[Pool] = []
    for family_recipe, parent in planned:
        if parent is None:
            pools.append(train_pool(family_recipe, images, root=root, **options))
        else:
            pools.append(finetune_pool(pools[parent], family_recipe, images, **options))
    return pools


def planned_recipes(
    families: list[dict], recipe: Recipe, model_args: dict, flow: dict, finetune: dict
) -> list[tuple[Recipe, int | None]]:
    """(recipe, number of the family that it starts from, or None) for each family."""
    planned: list[tuple[Recipe, int | None]] = []
    for number, family in enumerate(families):
        planned.append(_planned(family, number, planned, recipe, model_args, flow, finetune))
    return planned


def _planned(
    family: dict,
    number: int,
    planned: list[tuple[Recipe, int | None]],
    recipe: Recipe,
    model_args: dict,
    flow: dict,
    finetune: dict,
) -> tuple[Recipe, int | None]:
    """(recipe, number of the family that it starts from, or None) of one family. The recipe of a
    derived family names a placeholder as its parent.

    Parameters:
        family, number: the family and its place.
        planned: the families before it.
        recipe, model_args, flow, finetune: as for `family_pools`.
    """
    if not isinstance(family, dict):
        raise ValueError(
            f"family {number} is {family!r}: wanted a mapping of changes to the recipe, e.g."
            " {model: odenet}"
        )
    if "replace" in family:
        return _replaced(finetune | family, number, planned, recipe, flow)
    changes = dict(family)
    parent = _parent(changes, number)
    args_given = changes.pop("model_args", {})
    _check(changes, number, MEMBERS if parent is None else SPLIT)
    model = changes.get("model", recipe.model)
    args = dict(model_args)
    if model in models.FLOWS:
        args |= flow
    if parent is not None:
        start = planned[parent][0]
        if changes.get("model") == start.model == "replaced":
            args = start.model_args  # the arguments of network and block
        changes |= {"parent": f"family {parent}", "epochs": 0}
    return recipe.replace(**changes, model_args=args | args_given), parent


def _replaced(
    changes: dict,
    number: int,
    planned: list[tuple[Recipe, int | None]],
    recipe: Recipe,
    flow: dict,
) -> tuple[Recipe, int]:
    """As `_planned`, for a family in which a block replaces the last group of the networks."""
    parent = _parent(changes, number)
    block = flow | changes.pop("model_args", {})
    freeze = bool(changes.pop("freeze", False))
    _check(changes, number, SPLIT)
    start = planned[parent][0]
    network = {"base": start.model, "base_args": start.model_args, "freeze": freeze} | block
    tuned = recipe.replace(**changes, parent=f"family {parent}")
    return tuned.replace(model="replaced", model_args=network), parent


@dataclass(frozen=True)
class Untrained:
    """A pool that is not trained yet: its rows have their initial weights."""

    recipe: Recipe
    images: Images
    member: np.ndarray
    population: np.ndarray
    parent: Untrained | None

    def model(self, model: int) -> nn.Module:
        """A row as a module, in evaluation mode."""
        start = None if self.parent is None else self.parent.state
        return begin(self.recipe, self.images, model, start).eval()

    def state(self, model: int) -> dict[str, torch.Tensor]:
        """A row's weights."""
        return self.model(model).state_dict()


def _refuse(
    planned: list[tuple[Recipe, int | None]],
    images: Images,
    root: PathLike,
    member: np.ndarray | None,
) -> None:
    """ValueError, with the family's number, for a family that `train_pool` would refuse after it
    has trained the families before.
    """
    pools: list[Untrained] = []
    for number, (recipe, parent_number) in enumerate(planned):
        parent = None if parent_number is None else pools[parent_number]
        try:
            recipe = complete(recipe)
            if parent is not None:
                check_network(parent.recipe, recipe.defense, f"family {parent_number}")
            pool = Untrained(recipe, images, *membership(recipe, images, member, parent), parent)
            _check_pool(pool, root)
        except ValueError as error:
            raise ValueError(f"family {number}: {error}") from error
        pools.append(pool)


def _check_pool(pool: Untrained, root: PathLike) -> None:
    """The check of `train_pool`, for a pool that is not stored yet."""
    parts = (pool.recipe, pool.images, pool.member, pool.population)
    # the place of a derived pool depends on weights that are not trained yet
    if pool.parent is None and place(*parts, root, None).folder.has("recipe.json"):
        return
    check(plan_of(*parts, pool.parent), int(pool.population.sum()), pool.parent)


def _check(changes: dict, number: int, fixed: tuple[str, ...]) -> None:
    """ValueError for a family that changes an unknown field, or one of the `fixed` ones."""
    unknown = sorted(set(changes) - KNOWN)
    if unknown:
        raise ValueError(
            f"family {number} changes {unknown[0]!r}, which no recipe has; it may change"
            f" {', '.join(sorted(KNOWN - set(fixed)))}"
        )
    for name in fixed:
        if name in changes:
            raise ValueError(
                f"family {number} changes {name!r}, but all families have the same members: change"
                " it for all"
            )


def _parent(changes: dict, number: int) -> int | None:
    """Number of the earlier family that this one starts from, removed from the changes."""
    key = "replace" if "replace" in changes else "weights_of"
    if key not in changes:
        return None
    start = changes.pop(key)
    if not isinstance(start, int) or isinstance(start, bool) or not 0 <= start < number:
        raise ValueError(
            f"family {number} says {key}: {start!r}; wanted the number of an earlier family, from 0"
        )
    return start
