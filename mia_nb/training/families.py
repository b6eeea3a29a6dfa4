"""Families of recipes: named ones, the words that every result is labelled with (how long a model
trained decides what it leaks), and pools of several that share their members.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from mia_nb import models
from mia_nb.arguments import Anything, PathLike
from mia_nb.checks import checked, hint
from mia_nb.training.loop import begin, plan_of
from mia_nb.training.pool import Pool
from mia_nb.training.train import (
    SPLIT,
    check_network,
    complete,
    finetune_pool,
    membership,
    place,
    train_pool,
)
from mia_nb.training.trials import check
from mia_nb.types import Images, Recipe

RECIPES = {  # changes to a Recipe
    # One cycle of the learning rate (Smith and Topin, arXiv 1708.07120) in few epochs, as in public
    # speed-run code, without its tricks that change memorisation: minutes where the papers take
    # hours, and a lower risk than theirs. A lower end.
    "fast": {"schedule": "one_cycle", "epochs": 16},
    # The same with time to learn by heart, about as long as common public training loops for
    # membership inference.
    "long": {"schedule": "one_cycle", "epochs": 100},
    # Guan, Sharma, Tian and Lahlou (UAI 2025): notebooks/presets/paper-snn.yaml, which says what is
    # theirs and what assumed.
    "paper-snn": {
        "epochs": 200,
        "batch": 256,
        "lr": 0.1,
        "optimizer": "sgd",
        "optimizer_args": {"momentum": 0.1, "nesterov": False, "weight_decay": 0.0005},
        "schedule": "cosine",
        "augment": "crop+flip",
        "dtype": "float32",
    },
    # Hong, Wu, Gruber and Lee (arXiv 2501.06686): notebooks/presets/paper-nsde.yaml; its equations,
    # ResNets there have lr 0.1.
    "paper-nsde": {
        "epochs": 300,
        "batch": 512,
        "lr": 0.05,
        "optimizer": "sgd",
        "optimizer_args": {"nesterov": False},
        "schedule": "plateau",
        "augment": "crop+flip",
        "dtype": "float32",
    },
}
SCHEDULE_WORDS = {"one_cycle": "one-cycle", "constant": "constant learning rate"}

# entries that are named where they are not a Recipe's default, and how
UNUSUAL = {"lr": "lr {:g}", "batch": "batch {}", "loss": "{}", "dtype": "{}"}
KNOWN = set(Recipe.model_fields) - {"parent"}
# what draws the members, which all families share
MEMBERS = (*SPLIT, "seed")


@checked
def changes(family: Anything) -> dict:
    """The fields of a Recipe that a named recipe changes.

    Parameters:
        family: "fast" (one cycle, 16 epochs), "long" (100 epochs), "paper-snn" or "paper-nsde"
            (those of the two studies); or a mapping, maybe on top of a name: {"recipe": "fast",
            "augment": "none"} is the fast recipe without augmentation.

    Returns:
        {field: value}, for `Recipe(**...)` or as a family of `family_pools`.

    Raises:
        ValueError: no recipe has this name.

    Example:
        >>> changes({"recipe": "fast", "augment": "none"})
        {'schedule': 'one_cycle', 'epochs': 16, 'augment': 'none'}
    """
    if isinstance(family, str):
        if family not in RECIPES:
            raise ValueError(
                f"unknown recipe {family!r}{hint(family, RECIPES)}; named ones are"
                f" {', '.join(RECIPES)}; else pass {{epochs: 40}}"
            )
        return dict(RECIPES[family])
    if not isinstance(family, dict):
        raise ValueError(
            f"recipe {family!r}: wanted a name ({', '.join(RECIPES)}) or a mapping of changes, e.g."
            " {epochs: 40}"
        )
    named = changes(family["recipe"]) if "recipe" in family else {}
    rest = {name: value for name, value in family.items() if name != "recipe"}
    return named | rest


@checked
def label(recipe: Recipe) -> str:
    """What a result is labelled with, since how long a model trained decides what it leaks.

    Parameters:
        recipe: of the models. Schedule, epochs and augmentation are always named; of what else
            changes memorisation (optimiser, learning rate, batch, loss, dtype, defense, a parent)
            whatever is not a Recipe's default. A recipe with all entries of a named one carries
            that name in front.

    Returns:
        One line.

    Raises:
        ValueError: it names an optimiser, loss or defense that there is not.

    Example:
        >>> label(Recipe(epochs=16))
        'fast: one-cycle, 16 epochs, no augmentation'
    """
    return _labelled(recipe, _others(recipe))


@checked
def labels(recipes: list[Recipe]) -> list[str]:
    """`label` of several recipes, for results beside each other.

    Parameters:
        recipes: their labels leave out what all have besides schedule, epochs and augmentation.

    Returns:
        One line each, in order. Two that are alike in all this (say, of other models) are told
        apart by "(recipe 1)", their place in the list from 0.

    Raises:
        ValueError: as `label`.
    """
    others = [_others(recipe) for recipe in recipes]
    shared = set.intersection(*map(set, others)) if others else set()
    texts = []
    for recipe, facts in zip(recipes, others, strict=True):
        texts.append(_labelled(recipe, [fact for fact in facts if fact not in shared]))
    return [
        f"{text} (recipe {number})" if texts.count(text) > 1 else text
        for number, text in enumerate(texts)
    ]


def _labelled(recipe: Recipe, others: list[str]) -> str:
    """The label: name of the recipe, schedule, epochs, augmentation, and these other facts."""
    recipe = complete(recipe)
    name = ""
    for known, entries in RECIPES.items():
        if complete(recipe.replace(**entries)) == recipe:
            name = f"{known}: "
            break
    if recipe.epochs == 0:
        return name + ", ".join(["not trained further", *others])
    schedule = SCHEDULE_WORDS.get(recipe.schedule, recipe.schedule)
    length = "1 epoch" if recipe.epochs == 1 else f"{recipe.epochs} epochs"
    augment = "no augmentation" if recipe.augment == "none" else recipe.augment
    return name + ", ".join([schedule, length, augment, *others])


def _others(recipe: Recipe) -> list[str]:
    """What else is not as usual, in words."""
    recipe = complete(recipe)
    usual = complete(Recipe(optimizer=recipe.optimizer))
    facts = []
    if recipe.optimizer != Recipe.model_fields["optimizer"].default:
        facts.append(recipe.optimizer)
    for name, value in recipe.optimizer_args.items():
        if value == usual.optimizer_args.get(name):
            continue
        if isinstance(value, bool):
            facts.append(name if value else f"no {name}")
        else:
            facts.append(f"{name.replace('_', ' ')} {value:g}")
    for name, text in UNUSUAL.items():
        value = getattr(recipe, name)
        if value != getattr(usual, name):
            facts.append(text.format(value))
    if recipe.defense:
        args = [f"{name} {value}" for name, value in recipe.defense_args.items()]
        facts.append(", ".join([recipe.defense, *args]))
    if recipe.parent:
        facts.append(f"from {recipe.parent[:12]}")
    return facts


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

    All families are checked before the first is trained; what is stored comes back at once.

    Parameters:
        families: changes to `recipe`, say {"model": "sdenet", "model_args": {"k": 0.3}}.
            {"replace": i, ...} is replace-then-finetune: the last group of family i's networks
            becomes a fresh SDE block, and training goes on (model_args are the block's; freeze:
            only block and head learn). {"weights_of": i, "model": ...} puts the weights of family i
            into another model that takes them, say an odenet's into an sdenet built with
            noise_train=False, so that noise is added only in queries (a replaced network keeps its
            arguments but those given).
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

    Caveat: what lies before a replaced group was trained on the same images without noise. The
    checks of derived families take fresh weights for their parents'.
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
    """(recipe, number of the family that it starts from or None) of each family, as `family_pools`
    trains them.
    """
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
    """(recipe, number of the family that it starts from or None) of one family; of a derived one
    with a parent in name only.

    Parameters:
        family, number: it and its place.
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
            args = start.model_args  # its network and block
        changes |= {"parent": f"family {parent}", "epochs": 0}
    return recipe.replace(**changes, model_args=args | args_given), parent


def _replaced(
    changes: dict,
    number: int,
    planned: list[tuple[Recipe, int | None]],
    recipe: Recipe,
    flow: dict,
) -> tuple[Recipe, int]:
    """As `_planned`, of a family whose networks get a block in place of their last group."""
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
    """A pool that is yet to be trained: its rows have the weights that they will start from."""

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
    """ValueError, with the family's number, for what `train_pool` would refuse once the families
    before it were trained.
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
    """`train_pool`'s check of what is not stored yet."""
    parts = (pool.recipe, pool.images, pool.member, pool.population)
    # where those of a derived pool will lie depends on weights that are yet to be trained
    if pool.parent is None and place(*parts, root, None).folder.has("recipe.json"):
        return
    check(plan_of(*parts, pool.parent), int(pool.population.sum()), pool.parent)


def _check(changes: dict, number: int, fixed: tuple[str, ...]) -> None:
    """ValueError for a family that changes what no recipe has, or one of these `fixed` entries."""
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
    """Number of the earlier family that one starts from, its key taken out of the changes."""
    key = "replace" if "replace" in changes else "weights_of"
    if key not in changes:
        return None
    start = changes.pop(key)
    if not isinstance(start, int) or isinstance(start, bool) or not 0 <= start < number:
        raise ValueError(
            f"family {number} says {key}: {start!r}; wanted the number of an earlier family, from 0"
        )
    return start
