"""Pools of several families of models, which are changes to one recipe and share their members."""

from __future__ import annotations

from typing import Any

from mia_nb import models
from mia_nb.arguments import PathLike
from mia_nb.checks import checked
from mia_nb.training.placing import SPLIT, complete
from mia_nb.training.plans import build
from mia_nb.training.pool import Pool
from mia_nb.training.train import finetune_pool, train_pool
from mia_nb.types import Images, Recipe


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
    for number, (family_recipe, parent) in enumerate(planned):
        try:
            family_recipe = complete(family_recipe)
            if parent is None:
                build(family_recipe, images, 0)
        except ValueError as error:
            raise ValueError(f"family {number}: {error}") from error
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
    """(recipe, number of the family that it starts from, or None) for each family. The recipe of a
    derived family names a placeholder as its parent.
    """
    planned: list[tuple[Recipe, int | None]] = []
    for number, family in enumerate(families):
        try:
            if "parent" in family:
                raise ValueError(
                    "it names a parent, whose members may be others: it starts from an earlier"
                    " family by weights_of or replace"
                )
            if "replace" in family:
                planned.append(_replaced(finetune | family, planned, recipe, flow))
            else:
                planned.append(_changed(dict(family), planned, recipe, model_args, flow))
        except ValueError as error:
            raise ValueError(f"family {number}: {error}") from error
    return planned


def _changed(
    changes: dict,
    planned: list[tuple[Recipe, int | None]],
    recipe: Recipe,
    model_args: dict,
    flow: dict,
) -> tuple[Recipe, int | None]:
    """A family of its own, or one that takes the weights of an earlier one as they are.

    Parameters:
        changes: the family.
        planned: the families before it.
        recipe, model_args, flow: as for `family_pools`.
    """
    start = changes.pop("weights_of", None)
    own_args = changes.pop("model_args", {})
    model = changes.get("model", recipe.model)
    args = model_args | flow if model in models.FLOWS else model_args
    if start is not None:
        parent = _earlier(start, planned)
        if model == parent.model == "replaced":
            args = parent.model_args  # the arguments of network and block
        changes |= {"parent": f"family {start}", "epochs": 0}
    changed = recipe.replace(**changes, model_args=args | own_args)
    _check_members(changed, recipe, drawn=start is None)
    return changed, start


def _replaced(
    changes: dict, planned: list[tuple[Recipe, int | None]], recipe: Recipe, flow: dict
) -> tuple[Recipe, int]:
    """As `_changed`, for a family in which a block replaces the last group of the networks."""
    start = changes.pop("replace")
    parent = _earlier(start, planned)
    block = flow | changes.pop("model_args", {})
    freeze = bool(changes.pop("freeze", False))
    network = {"base": parent.model, "base_args": parent.model_args, "freeze": freeze} | block
    changes |= {"parent": f"family {start}", "model": "replaced"}
    changed = recipe.replace(**changes, model_args=network)
    _check_members(changed, recipe, drawn=False)
    return changed, start


def _earlier(start: int, planned: list[tuple[Recipe, int | None]]) -> Recipe:
    """The recipe of the family that another one starts from."""
    if start not in range(len(planned)):
        raise ValueError(
            f"it starts from family {start!r}; wanted the number of an earlier one, from 0"
        )
    return planned[start][0]


def _check_members(changed: Recipe, recipe: Recipe, drawn: bool) -> None:
    """ValueError for a family with other members; with `drawn`, its seed draws them."""
    for name in (*SPLIT, "seed") if drawn else SPLIT:
        if getattr(changed, name) != getattr(recipe, name):
            raise ValueError(
                f"it changes {name}, but all families have the same members: change it for all"
            )
