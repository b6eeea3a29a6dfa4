"""A `Plan` of a training says on which images each model of a pool is trained, how the models take
their steps, and from which networks they start.

In shapes, M is the number of models of a pool, N that of images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mia_nb import defenses, models, store
from mia_nb.arguments import Positive
from mia_nb.checks import checked
from mia_nb.training.seeds import generator, mix
from mia_nb.types import Images, Recipe

# types of weights and images; "bfloat16" keeps them in float32 and computes under autocast
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}
Start = Callable[[int], dict[str, Tensor]]  # row -> the weights of the parent that it starts from


class Plan(NamedTuple):
    """All that a worker needs to train any row, that is any model, of a pool."""

    recipe: Recipe
    images: Images
    member: np.ndarray  # (M, N) bool
    device: torch.device
    stacked: bool = False  # several models in one forward pass
    channels_last: bool = False  # memory format of images and weights
    start: Start | None = None  # for a derived pool: the weights that its models start from
    held_out: np.ndarray | None = None  # numbers of the images that only the defense sees
    compiled: bool = False  # forward, loss and backward pass by torch.compile

    def on(self, device: torch.device) -> Plan:
        """The plan with its images on this device."""
        images = self.images._replace(x=self.images.x.to(device), y=self.images.y.to(device))
        return self._replace(images=images, device=device)

    @property
    def steps(self) -> int:
        """Optimiser steps in an epoch, the same for all rows: expected members // batch."""
        return expected_members(self.recipe, self.member) // self.recipe.batch


def plan_of(
    recipe: Recipe,
    images: Images,
    member: np.ndarray,
    population: np.ndarray,
    start: Start | None = None,
) -> Plan:
    """The plan of a pool on the CPU, one model at a time.

    Parameters:
        recipe, images: of the pool.
        member: (M, N) bool.
        population: (N,) bool.
        start: for a derived pool, the weights that its models start from.
    """
    return Plan(
        recipe,
        images,
        member,
        torch.device("cpu"),
        start=start,
        held_out=held_out(recipe, population),
    )


def expected_members(recipe: Recipe, member: np.ndarray) -> int:
    """Mean number of members of a row; under coin flips the expected number, which does not change
    when a pool grows.
    """
    if recipe.split == "bernoulli":
        return (member.shape[1] - recipe.population) // 2
    return int(member.sum(1).mean())


def held_out(recipe: Recipe, population: np.ndarray) -> np.ndarray | None:
    """Numbers of the images that only the recipe's defense sees, drawn from the population; None if
    it needs none.
    """
    if recipe.defense is None or not defenses.find(recipe.defense).held_out:
        return None
    candidates = np.flatnonzero(population)
    draw = generator(recipe.seed, "held_out")
    order = torch.randperm(len(candidates), generator=draw).numpy()
    return np.sort(candidates[order[: recipe.defense_args["held_out"]]])


@checked
def sampling(recipe: Recipe, members: Positive) -> dict:
    """Sampling rate and steps of a training, for an accountant of differential privacy.

    Parameters:
        recipe: only its batch and epochs matter.
        members: number of images that a model trains on.

    Returns:
        {"sample_rate": batch / members, "steps": optimiser steps}.

    Raises:
        ValueError: for fewer members than a batch.

    Caveat: only under dp_sgd are batches Poisson draws at that rate; of any other training these
    numbers are nominal.

    Example:
        >>> from mia_nb.types import Recipe
        >>> sampling(Recipe(epochs=10, batch=50), 500)
        {'sample_rate': 0.1, 'steps': 100}
    """
    check_batch(recipe, members)
    return {
        "sample_rate": recipe.batch / members,
        "steps": recipe.epochs * (members // recipe.batch),
    }


def check_batch(recipe: Recipe, members: int) -> None:
    """ValueError if a batch is more than the images that a model trains on."""
    if recipe.batch > members:
        raise ValueError(
            f"batch={recipe.batch} is more than a model's {members} training samples; take a"
            " smaller batch or more data"
        )


def training_key(settings: dict, images: Images, member: np.ndarray, row: int) -> str:
    """The digest (hex) of one training, which seeds its private noise. Two trainings never share
    noise, which could be subtracted.

    Parameters:
        settings: all that determines the training, besides images, members and row.
        images: the pool's.
        member: (M, N) bool.
        row: number of the row that is trained.
    """
    members = np.packbits(member[row]).tobytes()
    return store.content_key({**settings, "row": row}, images.digest, members)


def begin(recipe: Recipe, images: Images, model: int, start: Start | None = None) -> nn.Module:
    """Row `model` before its first step, in the recipe's dtype: freshly initialised, or with the
    weights that `start` gives.
    """
    module = build(recipe, images, model).to(DTYPES[recipe.dtype])
    if start is not None:
        try:
            state = start(model)
            if hasattr(module, "adopt") and state.keys() != module.state_dict().keys():
                state = module.adopt(state)
            module.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(
                f"model {model} of pool {recipe.parent[:12]} does not fit {recipe.model} with"
                f" {recipe.model_args} ({_first_misfit(error)}): take the parent's model and"
                " model_args, or convert_pool for a spiking network"
            ) from error
    return module


def _first_misfit(error: RuntimeError) -> str:
    """The first misfit that torch names where a module does not take weights, in at most 160
    letters.
    """
    misfits = str(error).split("\n\t")[1:]  # below a heading
    if not misfits:
        return models.first_line(error)
    return misfits[0][:160].strip()


def build(recipe: Recipe, images: Images, model: int) -> nn.Module:
    """Row `model` of the pool, freshly initialised. The seed of a derived pool is used only where
    its network has layers that the parent does not have.
    """
    fresh = recipe.parent is None or recipe.model == "replaced"
    _, channels, height, width = images.x.shape
    module = models.build(
        recipe.model,
        recipe.model_args,
        in_channels=channels,
        num_classes=len(images.classes),
        size=(height, width),
        seed=mix(recipe.seed if fresh else None, model, "init"),
        mean=images.mean,
        std=images.std,
        frames=images.frames,
    )
    return defenses.adapt(module, recipe.defense, recipe.defense_args)
