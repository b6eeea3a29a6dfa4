"""What one model of a recipe costs: time and memory of a training step."""

from __future__ import annotations

import statistics
import time
from functools import partial

import numpy as np
import torch

from mia_nb import data
from mia_nb.training import loop
from mia_nb.training.clipped import group_of
from mia_nb.training.loop import DTYPES, Plan
from mia_nb.training.train import complete
from mia_nb.training.work import threads
from mia_nb.types import Images, Recipe


def step_cost(
    recipe: Recipe, images: Images, *, samples: int | None = None, repeats: int = 5, device: str | None = None
) -> dict:
    """{"parameters", "seconds" an epoch, "memory_mib", "threads"} of one plainly trained model, from single optimiser steps.

    seconds: median of `repeats` steps, times the steps of an epoch of `samples` training images (by default half of those
    that are not set aside). memory_mib: on a GPU the peak that was allocated during a step; on a CPU the activations that a
    step keeps for its backward pass (DP-SGD's gradients per sample come on top). On a CPU with one thread. Nothing is stored;
    derived recipes start from fresh weights. Caveat: a step's time on a busy machine is that of the busy machine.
    """
    recipe = complete(recipe)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    samples = (len(images.y) - recipe.population) // 2 if samples is None else samples
    x = images.x[: recipe.batch].to(device)
    member, held_out = np.ones((1, len(images.y)), bool), np.arange(len(x))
    plan = Plan(
        recipe, images._replace(x=x, y=images.y[: recipe.batch].to(device)), member, device, False, True, None, held_out
    )
    x = data.normalise(x, images.mean, images.std, DTYPES[recipe.dtype])[None]
    count = 1 if device.type == "cpu" else torch.get_num_threads()
    with threads(count), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        group, taken = group_of(plan, [0]), []
        step = partial(group.step, x, plan.images.y[None], 1e-6)
        if recipe.defense == "dp_sgd":
            step = partial(group.poisson_step, x[0], plan.images.y, 1e-6, torch.Generator(device).manual_seed(0))
        group.seed_noise(0)
        for _ in range(repeats + 1):  # the first one warms up
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
                torch.cuda.synchronize(device)
            begun = time.perf_counter()
            step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken.append(time.perf_counter() - begun)
        memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else loop.saved_bytes(plan)
    return {
        "parameters": sum(p.numel() for p in group.module.parameters()),
        "seconds": statistics.median(taken[1:]) * max(samples // recipe.batch, 1),
        "memory_mib": memory / 2**20,
        "threads": count,
    }
