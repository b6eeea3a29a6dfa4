"""Training by DP-SGD: a group of one model with Poisson batches and clipped, noised steps."""

import numpy as np
import torch
from torch import Tensor, nn

from mia_nb.defenses.dp_sgd import Clipped
from mia_nb.training.compiled import CompiledGroup
from mia_nb.training.loop import Group, logits_of
from mia_nb.training.plans import Plan, expected_members, training_key
from mia_nb.training.seeds import generator, mix


class ClippedGroup(Group):
    """One model of a plan whose recipe has the defense dp_sgd."""

    def __init__(self, plan: Plan, ids: list[int]):
        # channels first: Opacus' gradients per sample of a convolution assume it without a check
        super().__init__(plan._replace(stacked=False, channels_last=False), ids)
        options = dict(plan.recipe.defense_args)
        self.average = options.pop("average")  # decay of the averaged weights; no part of a step
        self.multiplicity = options["multiplicity"]
        self.clipped = Clipped(self.module, self.optimizer, batch=plan.recipe.batch, **options)
        self.steps_taken = 0
        settings = plan.recipe.to_json()
        del settings["num_models"], settings["snapshots"]
        if self.multiplicity == 1:  # a multiplicity of 1 does not enter the seed
            del options["multiplicity"]
        settings["defense_args"] = options
        self.training = training_key(settings, plan.images, plan.member, ids[0])

    def order(self, epoch: int) -> tuple[Tensor, list[int]]:
        """An epoch's Poisson batches: joined sample numbers (1, drawn), each repeated for the
        copies of the image, and the batch sizes.
        """
        members = torch.from_numpy(np.flatnonzero(self.plan.member[self.ids[0]]))
        coins = generator(self.training, epoch, "order")
        rate = self.plan.recipe.batch / expected_members(self.plan.recipe, self.plan.member)
        drawn = torch.rand(self.plan.steps, len(members), generator=coins) < rate
        numbers = members.expand(drawn.shape)[drawn].repeat_interleave(self.multiplicity)
        return numbers[None], (self.multiplicity * drawn.sum(1)).tolist()

    def epoch(self, epoch: int, history: list[list[float]]) -> tuple[Tensor, Tensor]:
        """Train one epoch, as in any group."""
        self.steps_taken = epoch * self.plan.steps
        return super().epoch(epoch, history)

    def seed_noise(self, epoch: int, purpose: str = "noise") -> None:
        """Seed an epoch's noise, including that of the steps."""
        super().seed_noise(epoch, purpose)
        self.noise = torch.Generator(self.plan.device).manual_seed(
            mix(self.training, epoch, "clip")
        )

    def step(
        self, x: Tensor, y: Tensor, lr: float, *, epoch: int = 0, draws: dict | None = None
    ) -> Tensor:
        """One step on a Poisson batch (1, B, C, H, W), which may be empty; copies of an image are
        neighbours. Returns the detached losses (1, B).
        """

        def losses_of(hooked: nn.Module, rows: slice) -> Tensor:
            return self.criterion(logits_of(self.plan, hooked, x[0, rows]), y[0, rows])

        self.optimizer.param_groups[0]["lr"] = lr
        losses = self.clipped.step(x[0], losses_of, self.noise)
        if self.average:
            self.keep_average()
        return losses[None]

    def keep_average(self) -> None:
        """Move the kept weights towards the present ones, faster in the first steps, since the
        initial weights are random.
        """
        self.steps_taken += 1
        decay = min(self.average, self.steps_taken / (self.steps_taken + 10))
        for name, tensor in (self.params | self.buffers).items():
            now = tensor.detach()
            if name in self.kept and now.is_floating_point():
                self.kept[name].lerp_(now, 1 - decay)
            else:
                self.kept[name] = now.clone()


def group_of(plan: Plan, ids: list[int]) -> Group:
    """The kind of group that the plan and its recipe ask for."""
    if plan.recipe.defense == "dp_sgd":
        return ClippedGroup(plan, ids)
    if plan.compiled:
        return CompiledGroup(plan, ids)
    return Group(plan, ids)
