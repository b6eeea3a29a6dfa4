"""What a recipe costs: time and memory of a training step, and how long a pool will take."""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch

from mia_nb.checks import checked, duration, positive, whole
from mia_nb.training.clipped import group_of
from mia_nb.training.execution import choose, device_of, processes, recorded_strategy, step_seconds
from mia_nb.training.loop import Plan, random_state_kept, saved_bytes
from mia_nb.training.train import check, complete, membership, plan_of
from mia_nb.training.work import threads
from mia_nb.types import Images, Recipe


@checked
def step_cost(
    recipe: Recipe,
    images: Images,
    *,
    samples: int | None = None,
    repeats: int = 5,
    device: str | None = None,
) -> dict:
    """What one plainly trained model costs, from single optimiser steps.

    Parameters:
        recipe: what is trained; a derived recipe starts from fresh weights. Nothing is stored.
        images: what it is trained on.
        samples: training images of an epoch; None: half of those that are not set aside.
        repeats: steps that are timed, after one that warms up.
        device: as for `train_pool`; a CPU takes one thread.

    Returns:
        {"parameters"; "seconds" of an epoch: the median step, times its steps; "memory_mib": on a
        GPU the peak that a step allocated, on a CPU the activations that it keeps for its backward
        pass (DP-SGD's gradients per sample come on top); "threads"}.

    Caveat: a step's time on a busy machine is that of the busy machine.
    """
    recipe = complete(recipe)
    device, repeats = device_of(device), whole("repeats", repeats)
    samples = (
        (len(images.y) - recipe.population) // 2 if samples is None else whole("samples", samples)
    )
    batch = images._replace(x=images.x[: recipe.batch], y=images.y[: recipe.batch])
    member, rows = np.ones((1, len(images.y)), bool), np.arange(len(batch.y))
    plan = Plan(recipe, batch, member, device, channels_last=True, held_out=rows).on(device)
    on_gpu = device.type == "cuda"
    count = torch.get_num_threads() if on_gpu else 1
    with threads(count), random_state_kept(device):
        group = group_of(plan, [0])
        seconds = step_seconds(group, torch.from_numpy(rows).to(device)[None], repeats)
        memory = torch.cuda.max_memory_allocated(device) if on_gpu else saved_bytes(plan)
    return {
        "parameters": sum(p.numel() for p in group.module.parameters()),
        "seconds": statistics.median(seconds) * max(samples // recipe.batch, 1),
        "memory_mib": memory / 2**20,
        "threads": count,
    }


@checked
def estimate(
    recipe: Recipe,
    images: Images,
    *,
    member: np.ndarray | None = None,
    device: str | None = None,
    strategy: str = "auto",
    workers: int | None = None,
    limit: float = 5.0,
) -> dict:
    """How long a pool would take on this machine, from one measured epoch of one group.

    Parameters:
        recipe: what would be trained; a derived recipe starts from fresh weights. Nothing is
            stored.
        images: what it would be trained on.
        member: (M, N) of booleans, with split="given".
        device, strategy: as for `train_pool`.
        workers: processes of this machine, None for as many as `train_pool` takes.
        limit: seconds; an epoch that takes longer is measured over fewer of its steps.

    Returns:
        {"seconds": epoch * epochs * ceil(groups / together); "epoch": seconds of a group's epoch;
        "steps" that were measured; "groups" of models; "together": groups at a time; "text": "16
        resnet18, 200 epochs: about 2 h 10 min on this device ..."}.

    Raises:
        ValueError: as `train_pool`, or workers are on other machines.

    Caveat: the group is measured alone; groups beside it share memory and caches. The progress bar
    of a training says it again from what all workers did.
    """
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise ValueError(
            f"workers={workers!r}: what is measured is this machine; wanted a number of its"
            " processes, or None"
        )
    recipe, limit = complete(recipe), positive("limit", limit)
    fresh = complete(recipe.replace(parent=None, epochs=max(recipe.epochs, 1)))
    member, population = membership(fresh, images, member)
    check(fresh, images, member, population)
    plan = plan_of(fresh, images, member, population)
    how = choose(plan, device, strategy, workers)
    plan = recorded_strategy(how).of(plan.on(torch.device(how["device"])))
    with threads(how["threads"]):
        taken, steps = _epoch(plan, list(range(min(how["group"], len(member)))), limit)
    groups = -(-len(member) // how["group"])
    together = min(groups, processes(fresh, device, workers))
    seconds = taken * recipe.epochs * -(-groups // together)
    of = f"{how['group']} models" if how["group"] > 1 else "a model"
    text = (
        f"{recipe.num_models} {recipe.model}, {recipe.epochs} epochs: about {duration(seconds)} on"
        f" this device ({together} at a time; an epoch of {of} takes {duration(taken)}, from"
        f" {steps} of {plan.steps} steps)"
    )
    return {
        "seconds": seconds,
        "epoch": taken,
        "steps": steps,
        "groups": groups,
        "together": together,
        "text": text,
    }


def _epoch(plan: Plan, rows: list[int], limit: float) -> tuple[float, int]:
    """Seconds of an epoch of a group, from at most `limit` seconds of its steps; and how many steps
    those were.
    """
    group, steps, samples = group_of(plan, rows), min(3, plan.steps), plan.member.shape[1]
    # a warm-up (which may compile), a look at what a step takes, the measurement
    for number in range(3):
        # other members, as only their number matters here
        member = np.tile(np.arange(samples) < steps * plan.recipe.batch, (len(plan.member), 1))
        group.plan = plan._replace(member=member, recipe=plan.recipe.replace(split="given"))
        begun = time.perf_counter()
        group.epoch(0, [])  # its losses come to the CPU, so a GPU has finished
        taken = time.perf_counter() - begun
        if number == 0 and taken > limit and not plan.compiled:
            break  # a slow network needs no warm-up
        if number == 1:
            steps = max(steps, min(plan.steps, int(limit * steps / taken)))
    return taken * plan.steps / steps, steps
