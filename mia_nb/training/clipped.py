"""Training by DP-SGD: a group of one model, whose batches are Poisson draws and whose steps are clipped and noised."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from mia_nb import defenses, store
from mia_nb.defenses.dp_sgd import Clipped
from mia_nb.training.compiled import CompiledGroup
from mia_nb.training.graphs import GraphGroup
from mia_nb.training.loop import Group, Plan, answer, augmentation, generator, learning_rate, mix


class ClippedGroup(Group):
    """One model of a plan whose recipe says dp_sgd."""

    def __init__(self, plan: Plan, ids: list[int]):
        super().__init__(plan._replace(stacked=False), ids)
        args = plan.recipe.defense_args
        self.clipped = Clipped(self.module, self.optimizer, batch=plan.recipe.batch, **args)
        told = {
            k: v for k, v in plan.recipe.to_json().items() if k not in ("num_models", "snapshots")
        }
        row = np.packbits(plan.member[ids[0]]).tobytes()
        # another training must have other noise and other batches, or the noise of two trainings could be taken out
        self.training = store.content_key(told | {"row": ids[0]}, plan.images.digest, row)

    def poisson_step(self, x: Tensor, y: Tensor, lr: float, noise: torch.Generator) -> Tensor:
        """One step on a Poisson batch (B, C, H, W), maybe empty; the detached losses (B,)."""

        def losses_of(hooked, rows: slice) -> Tensor:
            step = defenses.Step(
                partial(answer, self.plan, hooked), self.criterion, x[rows], y[rows], 0, {}, {}
            )
            return defenses.plain(step)[0]

        self.optimizer.param_groups[0]["lr"] = lr
        return self.clipped.step(x, losses_of, noise)

    def epoch(self, epoch: int, history: list[list[float]]) -> tuple[Tensor, Tensor]:
        """Train one epoch of `steps` Poisson batches: sample numbers (1, drawn) and their losses, both on the CPU."""
        plan, recipe, (model,) = self.plan, self.plan.recipe, self.ids
        members = np.flatnonzero(plan.member[model])
        coins = generator(self.training, epoch, "order")
        drawn = torch.rand(plan.steps, len(members), generator=coins) < plan.sample_rate
        batches = [torch.from_numpy(members[row.numpy()]) for row in drawn]
        sizes = [len(batch) for batch in batches]
        augments = augmentation(plan, model, epoch, sum(sizes))
        parts = {name: values.split(sizes) for name, values in augments.items()}
        noise, kept = (
            torch.Generator(plan.device).manual_seed(mix(self.training, epoch, "clip")),
            [],
        )
        with torch.random.fork_rng(devices=[plan.device] if plan.device.type == "cuda" else []):
            self.seed_noise(epoch)
            for s, numbers in enumerate(batches):
                there = numbers.to(plan.device)
                x = self.shown(there, {name: part[s] for name, part in parts.items()})
                lr = learning_rate(
                    recipe, (epoch + s / plan.steps) / recipe.epochs, [row[0] for row in history]
                )
                kept.append(self.poisson_step(x, plan.images.y[there], lr, noise))
        return torch.cat(batches)[None], torch.cat(kept)[None].cpu()


def group_of(plan: Plan, ids: list[int]) -> Group:
    """The trainer that the plan and its recipe ask for."""
    if plan.recipe.defense == "dp_sgd":
        return ClippedGroup(plan, ids)
    return (GraphGroup if plan.graph else CompiledGroup if plan.compiled else Group)(plan, ids)
