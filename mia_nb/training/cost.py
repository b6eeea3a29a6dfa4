"""The cost of a recipe: time and memory of a training step."""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
from torch import Tensor, nn

from mia_nb.arguments import Positive
from mia_nb.checks import checked
from mia_nb.training.batches import plain_images
from mia_nb.training.clipped import group_of
from mia_nb.training.loop import Group
from mia_nb.training.machine import device_of, threads
from mia_nb.training.placing import complete
from mia_nb.training.plans import Plan
from mia_nb.training.seeds import random_state_kept
from mia_nb.types import Images, Recipe


@checked
def step_cost(
    recipe: Recipe,
    images: Images,
    *,
    samples: Positive | None = None,
    repeats: Positive = 5,
    device: str | None = None,
) -> dict:
    """The cost of one plainly trained model, measured by single optimiser steps. Nothing is stored.

    Parameters:
        recipe: of the model; a derived recipe starts from fresh weights.
        images: the training images.
        samples: training images of an epoch; None: half of those that are not set aside.
        repeats: steps that are timed, after one to warm up.
        device: as for `train_pool`; a CPU uses one thread.

    Returns:
        {"parameters"; "seconds" of an epoch: median time of a step times steps; "memory_mib": on a
        GPU the peak memory of a step, on a CPU the activations kept for its backward pass (without
        DP-SGD's gradients per sample); "threads"}.

    Caveat: on a busy machine steps take longer.
    """
    recipe = complete(recipe)
    chosen = device_of(device)
    if samples is None:
        samples = (len(images.y) - recipe.population) // 2
    batch = images._replace(x=images.x[: recipe.batch], y=images.y[: recipe.batch])
    member = np.ones((1, len(images.y)), bool)
    numbers = np.arange(len(batch.y))
    plan = Plan(recipe, batch, member, chosen, channels_last=True, held_out=numbers).on(chosen)
    on_gpu = chosen.type == "cuda"
    count = torch.get_num_threads() if on_gpu else 1
    with threads(count), random_state_kept(chosen):
        group = group_of(plan, [0])
        index = torch.from_numpy(numbers).to(chosen)[None]
        seconds = step_seconds(group, index, repeats)
        memory = torch.cuda.max_memory_allocated(chosen) if on_gpu else saved_bytes(plan)
    return {
        "parameters": sum(p.numel() for p in group.module.parameters()),
        "seconds": statistics.median(seconds) * max(samples // recipe.batch, 1),
        "memory_mib": memory / 2**20,
        "threads": count,
    }


def step_seconds(group: Group, index: torch.Tensor, repeats: int) -> list[float]:
    """Seconds of each of `repeats` optimiser steps on images (G, B), after one to warm up.

    On a GPU the peak of memory afterwards is that of the last step.
    """
    device = group.plan.device
    images = group.plan.images
    taken = []
    x = plain_images(group.plan, index)
    group.seed_noise(0)
    for _ in range(repeats + 1):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        begun = time.perf_counter()
        group.step(x, images.y[index], 1e-6)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - begun)
    return taken[1:]


def saved_bytes(plan: Plan) -> int:
    """Bytes of activations that one model keeps for the backward pass of one batch."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    group = Group(plan._replace(stacked=False, channels_last=False), [0])
    batch = slice(plan.recipe.batch)
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        random_state_kept(plan.device),
    ):
        group.losses(plain_images(plan, batch)[None], plan.images.y[None, batch])
    return sum(kept.values())
