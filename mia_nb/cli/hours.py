"""Estimate the hours of training of a preset: number of steps times the seconds of a step, which
are measured here.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from mia_nb.cli.notebooks import Step
from mia_nb.cli.say import print_table, say
from mia_nb.training.cost import step_cost
from mia_nb.training.families import planned_recipes
from mia_nb.training.machine import device_of
from mia_nb.training.recipes import label
from mia_nb.types import Images, Recipe

# (training images, all images, channels, side, classes) of the published data sets
PUBLISHED = {
    "cifar10": (50_000, 60_000, 3, 32, 10),
    "cifar100": (50_000, 60_000, 3, 32, 100),
    "mnist": (60_000, 70_000, 1, 28, 10),
    "fashion_mnist": (60_000, 70_000, 1, 28, 10),
    "tiny_imagenet": (100_000, 110_000, 3, 64, 200),
}
CPU_BATCH = 32  # on a CPU time is proportional to images, so a small batch measures it quickly


def trainings(steps: list[Step]) -> list[tuple[Recipe, Images, int]]:
    """(recipe, a blank batch of images, number of training images of a model) of every pool that
    these steps train, each pool once.
    """
    trainings_by_key = {}
    for step in steps:
        values = step.parameters
        if values.get("pool") or "recipe" not in values or not values["recipe"]["epochs"]:
            continue
        dataset = values["source"]["dataset"]
        if dataset not in PUBLISHED:
            raise ValueError(
                f"{step.notebook.stem} trains on {dataset}: the time is estimated for"
                f" {', '.join(PUBLISHED)} alone"
            )
        official, every, channels, side, classes = PUBLISHED[dataset]
        count = official if values["source"]["part"] == "train" else every
        for recipe in recipes_of(step):
            key = json.dumps([dataset, count, recipe.model_dump()], sort_keys=True)
            samples = (min(count, values["source"]["limit"] or count) - recipe.population) // 2
            trainings_by_key[key] = (
                recipe,
                blank(dataset, recipe.batch, channels, side, classes),
                samples,
            )
    return list(trainings_by_key.values())


def blank(name: str, count: int, channels: int, side: int, classes: int) -> Images:
    """Black images of this shape."""
    x = torch.zeros(count, channels, side, side, dtype=torch.uint8)
    names = tuple(map(str, range(classes)))
    y = torch.arange(count) % classes
    return Images(x, y, names, name, (0.5,), (0.25,))


def recipes_of(step: Step) -> list[Recipe]:
    """The recipes of the pools that one notebook trains."""
    values = step.parameters
    recipe = Recipe(**values["recipe"])
    if "families" in values:
        families = list(values["families"])
        if values.get("private"):
            families.append({**values["private"], **values["clipped"], "defense": "dp_sgd"})
        base = recipe.replace(model_args={})
        if "private" in values:  # that notebook draws members by coins
            base = base.replace(split="bernoulli")
        network = values.get("network", recipe.model_args)
        finetune = values.get("finetune", {})
        of_families = [_without_epsilon(family) for family in families]
        planned = planned_recipes(of_families, base, network, values["flow"], finetune)
        return [one for one, _ in planned if one.epochs]
    recipes = [recipe]
    if "tuning" in values and values.get("spiking", "hybrid") == "hybrid":
        recipes += _hybrid(recipe, values["timesteps"], dict(values["tuning"]))
    if values.get("direct"):
        recipes.append(_spiking(recipe, values["timesteps"], dict(values["direct"])))
    return recipes


def _without_epsilon(family: dict) -> dict:
    """A family with a fixed noise instead of the noise for its epsilon; training takes as long."""
    changes = dict(family)
    if changes.pop("epsilon", None) is not None:
        changes["defense_args"] = {"noise_multiplier": 1.0}
    return changes


def _spiking(recipe: Recipe, timesteps: int, changes: dict) -> Recipe:
    """The recipe of a network's spiking form."""
    base = {"base": recipe.model, "base_args": recipe.model_args, "timesteps": timesteps}
    network = changes.pop("model_args", {}) | base
    return recipe.replace(**changes, model="snn", model_args=network)


def _hybrid(recipe: Recipe, timesteps: int, tuning: dict) -> list[Recipe]:
    """The recipes of hybrid training, one for each T."""
    epochs = tuning.pop("epochs")
    tuning.pop("widths", None)
    converted = {"beta": 1.0, "reset": "soft", "surrogate": "boxcar", "detach_reset": True}
    recipes = []
    for T in range(1, timesteps + 1):
        changes = {**tuning, "epochs": epochs[T - 1], "model_args": converted}
        recipes.append(_spiking(recipe, T, changes))
    return recipes


def measured(recipe: Recipe, images: Images, samples: int) -> float:
    """Seconds of an epoch on this machine, measured on two steps."""
    if device_of(None).type == "cpu":
        recipe = recipe.replace(batch=min(recipe.batch, CPU_BATCH))
    return step_cost(recipe, images, samples=samples, repeats=1)["seconds"]


def hours(
    steps: list[Step], seconds: Callable[[Recipe, Images, int], float] = measured
) -> list[tuple[str, Recipe, float]]:
    """(data set, recipe, hours of training) of every pool that these steps train."""
    times = []
    for recipe, images, samples in trainings(steps):
        taken = seconds(recipe, images, samples) * recipe.epochs * recipe.num_models / 3600
        times.append((images.name, recipe, taken))
    return times


def estimate(steps: list[Step]) -> None:
    """`mia-nb run --estimate`: print a line per pool, and the sum."""
    times = hours(steps)
    rows = [("hours", "data set", "network", "models", "recipe")]
    for name, recipe, taken in times:
        args = ", ".join(f"{key} {value}" for key, value in recipe.model_args.items())
        network = f"{recipe.model} {args}".strip()
        rows.append((f"{taken:.2f}", name, network, str(recipe.num_models), label(recipe)))
    print_table(rows)
    total = sum(taken for _, _, taken in times)
    where = device_of(None)
    say(
        f"about {total:,.1f} hours of training on this machine ({where}), one model after another,"
        " from single steps; querying and attacks come on top"
    )
