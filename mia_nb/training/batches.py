"""The batches of a group in an epoch: the order of the images, and how they are augmented.

In shapes, G is the number of models of a group, B that of images in a batch.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mia_nb import data
from mia_nb.training.plans import DTYPES, Plan
from mia_nb.training.seeds import generator


def epoch_order(plan: Plan, model: int, epoch: int) -> Tensor:
    """(steps * batch,) numbers of a row's images in the order of an epoch.

    They are permutations of the row's members, joined and cut off at the end: under coin flips
    (split "bernoulli") a row can have fewer members than an epoch has images.
    """
    members = torch.from_numpy(np.flatnonzero(plan.member[model]))
    draw = generator(plan.recipe.seed, model, epoch, "order")
    wanted = plan.steps * plan.recipe.batch
    rounds = math.ceil(wanted / len(members))
    orders = [torch.randperm(len(members), generator=draw) for _ in range(rounds)]
    return members[torch.cat(orders)[:wanted]]


def augmentation(
    plan: Plan, model: int, epoch: int, size: int, purpose: str = "augment"
) -> dict[str, Tensor]:
    """A row's augmentation draws for one epoch, tensors whose first axis has `size` entries; empty
    without augmentation.
    """
    recipe = plan.recipe
    if recipe.augment == "none":
        return {}
    height, width = plan.images.x.shape[2:]
    draw = generator(recipe.seed, model, epoch, purpose)
    return data.augment_draws(recipe.augment, size, height, width, draw)


def augmentations(
    plan: Plan, rows: list[int], epoch: int, size: int, purpose: str = "augment"
) -> dict[str, Tensor]:
    """The augmentation draws (G, size, ...) of several rows for one epoch, on the device.

    AutoAugment's operations stay on the CPU, which sorts the images by them.
    """
    drawn = stack_draws([augmentation(plan, m, epoch, size, purpose) for m in rows])
    for name, value in drawn.items():
        if name != "operations":
            drawn[name] = value.to(plan.device)
    return drawn


def alternate(
    plan: Plan, rows: list[int], augments: dict[str, Tensor], order: Tensor, epoch: int
) -> None:
    """If the recipe says "alternate", mirror each image in every other epoch, by changing
    `augments` in place. A coin for each image decides whether it begins mirrored.

    order (G, samples): numbers of the epoch's images.
    """
    if "alternate" not in plan.recipe.augment.split("+"):
        return
    for slot, model in enumerate(rows):
        coins = generator(plan.recipe.seed, model, "alternate")
        first = torch.randint(0, 2, (len(plan.images.y),), generator=coins).bool()
        augments["flip"][slot] = first[order[slot]] ^ (epoch % 2 == 1)


def stack_draws(draws: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The draws of several models along a leading model axis."""
    return {name: torch.stack([of_model[name] for of_model in draws]) for name in draws[0]}


def split_draws(draws: dict[str, Tensor], sizes: list[int]) -> list[dict[str, Tensor]]:
    """The draws (G, samples, ...) of an epoch as those (G, B, ...) of each step, whose batch sizes
    are given.
    """
    of_steps: list[dict[str, Tensor]] = [{} for _ in sizes]
    for name, value in draws.items():
        for of_step, part in zip(of_steps, value.split(sizes, 1), strict=True):
            of_step[name] = part
    return of_steps


def plain_images(plan: Plan, index: Tensor | slice) -> Tensor:
    """The images with these numbers, normalised, without augmentation."""
    return _normalised(plan, plan.images.x[index])


def augmented_images(plan: Plan, index: Tensor, augments: dict[str, Tensor]) -> Tensor:
    """The images (G, B, C, H, W) with numbers (G, B), augmented by draws (G, B, ...) and
    normalised.
    """
    x = plan.images.x[index.reshape(-1)]
    if augments:
        x = data.apply_augment(x, {name: draws.flatten(0, 1) for name, draws in augments.items()})
    x = _normalised(plan, x)
    return x.view(*index.shape, *x.shape[1:])


def _normalised(plan: Plan, x: Tensor) -> Tensor:
    images = plan.images
    return data.normalise(x, images.mean, images.std, DTYPES[plan.recipe.dtype])
