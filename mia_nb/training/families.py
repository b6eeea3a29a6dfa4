"""Pools of several families of models, which are changes to one recipe and share their members."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from mia_nb import models
from mia_nb.arguments import PathLike
from mia_nb.checks import checked
from mia_nb.training.placing import SPLIT, complete
from mia_nb.training.plans import build
from mia_nb.training.pool import Pool
from mia_nb.training.train import finetune_pool, train_pool
from mia_nb.types import Images, Recipe

PLACEHOLDER = "an earlier family"  # parent of a derived family's recipe until that one has a key


@checked
def family_pools(
    families: list[dict],
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

    Stored pools are loaded.

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
        ValueError: before the first is trained, for a family that names what there is not or would
            have other members; else as `train_pool`.

    Source: Hong, Wu, Gruber and Lee (arXiv 2501.06686), 5.4, for replace-then-finetune.

    Caveat: the layers before a replaced group were trained on the same images without noise.
    """
    planned = planned_recipes(families, recipe, model_args or {}, flow or {}, finetune or {})
    for number, (family_recipe, start) in enumerate(planned):
        with _named(number):
            family_recipe = complete(family_recipe)
            if start is None:
                build(family_recipe, images, 0)
    pools: list[Pool] = []
    for family_recipe, start in planned:
        if start is None:
            pools.append(train_pool(family_recipe, images, root=root, **options))
        else:
            pools.append(finetune_pool(pools[start], family_recipe, images, **options))
    return pools


@contextlib.contextmanager
def _named(number: int) -> Iterator[None]:
    """Put the number of a family in front of a ValueError of the block."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"family {number}: {error}") from error


def planned_recipes(
    families: list[dict], recipe: Recipe, model_args: dict, flow: dict, finetune: dict
) -> list[tuple[Recipe, int | None]]:
    """(recipe, number of the family that it starts from, or None) for each family. The recipe of a
    derived family names a placeholder as its parent.
    """
    planned: list[tuple[Recipe, int | None]] = []
    for number, family in enumerate(families):
        with _named(number):
            if "parent" in family:
                raise ValueError(
                    "it names a parent, whose members may be others: it starts from an earlier"
                    " family by weights_of or replace"
                )
            changes = dict(family)
            if "replace" in changes:
                start = changes.pop("replace")
                parent = _earlier(start, planned)
                changed = _with_new_block(finetune | changes, recipe, parent, flow)
            else:
                start = changes.pop("weights_of", None)
                if start is None:
                    changed = _from_scratch(changes, recipe, model_args, flow)
                else:
                    parent = _earlier(start, planned)
                    changed = _with_weights(changes, recipe, parent, model_args, flow)
            planned.append((changed, start))
    return planned


def _from_scratch(changes: dict, recipe: Recipe, model_args: dict, flow: dict) -> Recipe:
    """The recipe of a family whose networks start from fresh weights.

    Parameters:
        changes: the family's.
        recipe, model_args, flow: as for `family_pools`.
    """
    changed = recipe.replace(**changes)
    _check_shared(changed, recipe, (*SPLIT, "seed"))  # the seed draws the members
    args = _network_args(changed.model, model_args, flow)
    return changed.replace(model_args=args | changes.get("model_args", {}))


def _with_weights(
    changes: dict, recipe: Recipe, parent: Recipe, model_args: dict, flow: dict
) -> Recipe:
    """The recipe of a family that takes the weights of an earlier one as they are.

    Parameters:
        changes: the family's.
        parent: the recipe of the earlier family.
        recipe, model_args, flow: as for `family_pools`.
    """
    untrained = {"parent": PLACEHOLDER, "epochs": 0}
    changed = recipe.replace(**(changes | untrained))
    _check_shared(changed, recipe, SPLIT)
    if changed.model == parent.model == "replaced":
        args = parent.model_args  # the arguments of network and block
    else:
        args = _network_args(changed.model, model_args, flow)
    return changed.replace(model_args=args | changes.get("model_args", {}))


def _network_args(model: str, model_args: dict, flow: dict) -> dict:
    """The arguments that all families give this network."""
    if model in models.FLOWS:
        return model_args | flow
    return model_args


def _with_new_block(changes: dict, recipe: Recipe, parent: Recipe, flow: dict) -> Recipe:
    """The recipe of a family in which a block replaces the last group of an earlier one's networks.

    Parameters:
        changes: the family's, with those of fine-tuning.
        parent: the recipe of the earlier family.
        recipe, flow: as for `family_pools`.
    """
    changes = dict(changes)
    network = {
        "base": parent.model,
        "base_args": parent.model_args,
        "freeze": bool(changes.pop("freeze", False)),
    }
    block = flow | changes.pop("model_args", {})
    changes |= {"parent": PLACEHOLDER, "model": "replaced", "model_args": network | block}
    changed = recipe.replace(**changes)
    _check_shared(changed, recipe, SPLIT)
    return changed


def _earlier(start: int, planned: list[tuple[Recipe, int | None]]) -> Recipe:
    """The recipe of the family that another one starts from."""
    if start not in range(len(planned)):
        raise ValueError(
            f"it starts from family {start!r}; wanted the number of an earlier one, from 0"
        )
    return planned[start][0]


def _check_shared(changed: Recipe, recipe: Recipe, fields: tuple[str, ...]) -> None:
    """ValueError for a family that changes one of these fields, and so would have other members."""
    for name in fields:
        if getattr(changed, name) != getattr(recipe, name):
            raise ValueError(
                f"it changes {name}, but all families have the same members: change it for all"
            )
