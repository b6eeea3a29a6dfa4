"""Pools of several families of models that share their members, so that what they leak can be
compared row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

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
    """A trained pool for each of several families of models, on the same members.

    All families are checked before the first is trained; what is stored comes back at once.

    families: changes to `recipe`, say {"model": "sdenet", "model_args": {"k": 0.3}}. {"replace": i,
        ...} is replace-then-finetune: the last group of family i's networks becomes a fresh SDE
        block, and training goes on (model_args are the block's; freeze: only block and head learn).
        {"weights_of": i, "model": ...} puts the weights of family i into another model that takes
        them, say an odenet's into an sdenet built with noise_train=False, so that noise is added
        only in queries (a replaced network keeps its arguments but those given).
    recipe: what all have unless a family changes it.
    images: what they are trained on.
    model_args: of every network; a family's own come after them.
    flow: of every differential equation, those of replaced networks too; likewise.
    finetune: changes to the recipe of replaced networks, and freeze.
    root: the folder of results.
    options: as for `train_pool`.

    Returns:
        One `Pool` a family, in order.

    Raises:
        ValueError: a family is none, would have other members, or `train_pool` would refuse it; one
            line with its number.

    Source: Hong, Wu, Gruber and Lee (arXiv 2501.06686), 5.4, for replace-then-finetune.

    Caveat: the checks of derived families take fresh weights for their parents'.
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


def _refuse(
    planned: list[tuple[Recipe, int | None]], images: Images, root, given: np.ndarray | None
) -> None:
    """ValueError, with the family's number, for what `train_pool` would refuse once the families
    before it were trained.
    """
    ready: list[SimpleNamespace] = []  # pools that are not trained yet, with fresh weights
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
        begun = partial(begin, recipe, images, start=start and start.state)
        ready.append(
            SimpleNamespace(
                recipe=recipe,
                member=member,
                population=population,
                state=lambda model, begun=begun: begun(model).state_dict(),
                model=lambda model, begun=begun: begun(model).eval(),
            )
        )


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
