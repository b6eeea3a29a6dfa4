"""DP-SGD by Opacus: per-sample gradients clipped, Gaussian noise on their sum, Poisson batches, one model at a time.

The number of steps, the sampling rate and the noise multiplier are what an accountant needs; they are in the recipe and in
`Pool.sampling`. What would void the statement is refused or replaced: BatchNorm (GroupNorm goes in before the optimiser is
made), schedules that look at the training loss, a start from weights that saw the members without it, gradients that are wrong
per sample (adjoint solvers, folded time steps). Caveats: the noise comes from the recipe's seed, so who knows the recipe knows
the noise: for a release keep the seed secret; normalisation measured on the images, and choosing among several trainings, are
not accounted for.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
CHUNK = 2**28  # bytes of gradients per sample held at a time
SCHEDULES = ("one_cycle", "cosine", "constant")  # known beforehand


def without_batch_norm(module: nn.Module) -> nn.Module:
    """The module with a fresh GroupNorm for every BatchNorm, of the largest number of groups up to 32 that divides C."""
    for name, child in module.named_children():
        if isinstance(child, NORMS):
            channels = child.num_features
            groups = max(g for g in range(1, min(32, channels) + 1) if channels % g == 0)
            setattr(module, name, nn.GroupNorm(groups, channels, affine=child.affine))
        else:
            without_batch_norm(child)
    return module


class Clipped:
    """A module whose steps are those of DP-SGD: (sum_i g_i min(1, C / |g_i|) + C noise_multiplier N(0, 1)) / expected batch.

    Source: Abadi and others (CCS 2016). Raises ValueError for a network that Opacus cannot take per-sample gradients of.
    """

    def __init__(self, module: nn.Module, optimizer, *, noise_multiplier: float, max_grad_norm: float, batch: int):
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        try:
            self.hooked = GradSampleModule(module, loss_reduction="sum")
        except NotImplementedError as error:
            reason = " ".join(str(error).split())[:160]
            raise ValueError(f"no gradients per sample for this network ({reason}); DP-SGD needs others") from error
        self.optimizer = DPOptimizer(
            optimizer, noise_multiplier=noise_multiplier, max_grad_norm=max_grad_norm, expected_batch_size=batch
        )
        self.weights = [p for p in module.parameters() if p.requires_grad]
        self.chunk = max(1, CHUNK // (4 * sum(p.numel() for p in self.weights)))

    def step(self, x: Tensor, losses_of, generator: torch.Generator) -> Tensor:
        """One step on a Poisson batch x, maybe empty: then noise alone, as the accountant assumes. The losses (B,).

        losses_of(hooked module, chunk of rows) -> their losses; large batches go through in chunks, which changes nothing.
        """
        self.optimizer.generator = generator
        chunks, losses = list(range(0, len(x), self.chunk)), []
        self.optimizer.zero_grad(set_to_none=True)
        for start in chunks:
            each = losses_of(self.hooked, slice(start, start + self.chunk))
            with warnings.catch_warnings():  # that images need no gradients is as it should be
                warnings.filterwarnings("ignore", "Full backward hook is firing")
                each.sum().backward()
            losses.append(each.detach())
            self._complete(len(each))
            self.optimizer.signal_skip_step(start != chunks[-1])
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        if not chunks:
            self._complete(0)
            self.optimizer.signal_skip_step(False)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return torch.cat(losses) if losses else x.new_zeros(0)

    def _complete(self, size: int) -> None:
        """Weights that the forward did not use have no gradients per sample; they get zeros, and noise like all others."""
        for p in self.weights:
            if p.grad_sample is None:
                p.grad_sample = p.new_zeros(size, *p.shape)


def checked(args: dict, recipe) -> None:
    """ValueError for a recipe whose DP-SGD would not be what is accounted for."""
    noise, bound = args["noise_multiplier"], args["max_grad_norm"]
    if not (math.isfinite(noise) and noise >= 0 and math.isfinite(bound) and bound > 0):
        raise ValueError(
            f"noise_multiplier={noise}, max_grad_norm={bound}: wanted at least 0 (accounting.noise_multiplier finds one for a "
            "target) and a positive norm"
        )
    if recipe.schedule not in SCHEDULES:
        raise ValueError(
            f"schedule={recipe.schedule!r} looks at the training loss, which nobody accounts for: take {', '.join(SCHEDULES)}"
        )
    if recipe.parent is not None:
        raise ValueError(
            "defense='dp_sgd' with a parent: its weights saw the members without clipping and noise, which nothing done "
            "afterwards takes back; train with dp_sgd from the start"
        )
