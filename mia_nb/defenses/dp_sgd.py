"""DP-SGD by Opacus: per-sample gradients are clipped, their sum gets Gaussian noise, batches are
Poisson samples; one model at a time.

An accountant needs the number of steps, the sampling rate and the noise multiplier; they are in the
recipe and in `Pool.sampling`. Whatever would void the accountant's statement is refused or
replaced: BatchNorm (replaced by GroupNorm before the optimiser is made), schedules that look at the
training loss, a start from weights that saw the members, gradients per sample that are not those of
single samples (`mismatch`: folded time steps, networks that mix a batch), and buffers that a
forward pass of training rewrites (running statistics).

Caveats. Noise and batches follow from the recipe, its seed, the images, the row and its members:
whoever knows all of these knows the noise, so keep the seed secret if you release the model. Noise
is drawn by ordinary generators, in floating point. The statement is about weights: a pool's folder
also holds the losses of single members, which nothing protects. Not accounted for: normalisation
measured on the images, stopping at a loss that is not finite, choosing among several trainings.

Two options cost no epsilon; with them De and others (2022, arXiv 2204.13650) reach more accuracy.
`multiplicity`: each drawn image takes part in the step as this many augmented copies, whose mean
gradient is clipped as that of one record. `average`: the model that is kept is a moving average of
the weights after each step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from mia_nb.models.fast import whitened
from mia_nb.types import Recipe

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
CHUNK = 2**28  # bytes of gradients per sample held at a time
SCHEDULES = ("one_cycle", "cosine", "linear", "constant")  # known before training


def fitting(module: nn.Module) -> nn.Module:
    """The module as DP-SGD trains it; ValueError if a layer is computed from training images."""
    if whitened(module):
        raise ValueError(
            "its first layer is computed from the training images, which dp_sgd does not account"
            " for; take model_args={'first_layer': 'learned'}"
        )
    return without_batch_norm(module)


def without_batch_norm(module: nn.Module) -> nn.Module:
    """The module with a fresh GroupNorm for every BatchNorm. The number of groups is the largest
    divisor of C up to 32 that leaves at least 4 channels per group.

    The usual min(32, C) groups of a narrow network have one channel each; where one pixel is left
    of a channel, the norm erases it, or cannot be computed for a batch of one.
    """
    for name, child in module.named_children():
        if isinstance(child, NORMS):
            channels = child.num_features
            most = max(min(32, channels // 4), 1)
            groups = max(g for g in range(1, most + 1) if channels % g == 0)
            setattr(module, name, nn.GroupNorm(groups, channels, affine=child.affine))
        else:
            without_batch_norm(child)
    return module


class Clipped:
    """Steps of DP-SGD for a module. The gradient of a step is (sum_i g_i min(1, C / |g_i|) + C
    noise_multiplier N(0, 1)) / expected batch, where g_i is the mean over record i's copies.

    Parameters:
        module: the network.
        optimizer: that of its weights.
        noise_multiplier: standard deviation of the noise, as a multiple of max_grad_norm.
        max_grad_norm: C.
        batch: expected number of records in a step.
        multiplicity: copies of a record, which follow each other in a batch.

    Source: Abadi and others (CCS 2016). Raises ValueError for a network without per-sample
    gradients in Opacus.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        noise_multiplier: float,
        max_grad_norm: float,
        batch: int,
        multiplicity: int = 1,
    ) -> None:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        try:
            self.hooked = GradSampleModule(module, loss_reduction="sum")
        except NotImplementedError as error:
            reason = " ".join(str(error).split())[:160]
            raise ValueError(
                f"no gradients per sample for this network ({reason}); DP-SGD needs others"
            ) from error
        self.optimizer = DPOptimizer(
            optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=batch,
        )
        self.weights = [p for p in module.parameters() if p.requires_grad]
        self.multiplicity = multiplicity
        records = CHUNK // (4 * multiplicity * sum(p.numel() for p in self.weights))
        self.chunk = multiplicity * max(1, records)

    def step(
        self, x: Tensor, losses_of: Callable[[nn.Module, slice], Tensor], generator: torch.Generator
    ) -> Tensor:
        """One step on a Poisson batch x; an empty batch gives a step of noise alone, as the
        accountant assumes. Returns the losses (B,).

        losses_of(hooked module, chunk of rows) -> their losses; large batches are split into
        chunks, with the same result.
        """
        self.optimizer.generator = generator
        chunks = list(range(0, len(x), self.chunk))
        losses = []
        self.optimizer.zero_grad(set_to_none=True)
        for start in chunks:
            sample_losses = losses_of(self.hooked, slice(start, start + self.chunk))
            with warnings.catch_warnings():  # images rightly need no gradients
                warnings.filterwarnings("ignore", "Full backward hook is firing")
                sample_losses.sum().backward()
            losses.append(sample_losses.detach())
            self._take(len(sample_losses), last=start == chunks[-1])
        if not chunks:
            self._take(0, last=True)
        return torch.cat(losses) if losses else x.new_zeros(0)

    def _take(self, size: int, *, last: bool) -> None:
        """Clip the gradients of `size` images, record by record, and add them up; after the last
        chunk of a batch add noise, and step.

        Norms are computed in the weights' own precision; weights that the forward pass did not use
        get noise like all others.
        """
        for p in self.weights:
            if p.grad_sample is None:
                p.grad_sample = p.new_zeros(size, *p.shape)
            p.grad_sample = p.grad_sample.to(p.dtype)
            if self.multiplicity > 1:
                p.grad_sample = p.grad_sample.unflatten(0, (-1, self.multiplicity)).mean(1)
        self.optimizer.signal_skip_step(not last)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def mismatch(hooked: nn.Module, losses_of: Callable[[nn.Module], Tensor]) -> str | None:
    """Name of a weight whose per-sample gradients by hooks differ from the gradients of single
    losses by autograd; None if there is none.

    Hooks compute gradients from the inputs and outputs of layers. If a network mixes the samples of
    a batch, or uses a weight outside its layer, they are wrong, and clipping them bounds nothing.
    Noise is added to the weights first: behind weights of 0 all gradients are 0.

    Parameters:
        hooked: a module of Opacus around the network.
        losses_of: (module) -> losses (B,) of a fixed batch with fixed noise.
    """
    weights = {name: p for name, p in hooked._module.named_parameters() if p.requires_grad}
    stir(weights.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hooked.disable_hooks()
        of_losses = [
            torch.autograd.grad(loss, weights.values(), retain_graph=True, materialize_grads=True)
            for loss in losses_of(hooked)
        ]
        hooked.enable_hooks()
        losses_of(hooked).sum().backward()
    for number, (name, p) in enumerate(weights.items()):
        expected = torch.stack([gradients[number] for gradients in of_losses])
        by_hooks = torch.zeros_like(expected) if p.grad_sample is None else p.grad_sample
        if by_hooks.shape != expected.shape:
            return name
        scale = float(expected.abs().max())
        if float((by_hooks - expected).abs().max()) > 1e-6 * scale + 1e-12:
            return name
    return None


def stir(weights: Iterable[Tensor]) -> None:
    """Add small seeded noise to weights, so that none is 0."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in weights:
            p += 0.01 * torch.randn(p.shape, generator=draw, dtype=p.dtype).to(p.device)


def check_recipe(recipe: Recipe) -> None:
    """ValueError for a recipe whose DP-SGD would not be what is accounted for."""
    multiplicity = recipe.defense_args["multiplicity"]
    if multiplicity > 1 and recipe.augment == "none":
        raise ValueError(
            f"multiplicity={multiplicity} without augmentation: copies of an image would be the"
            " same; take augment='crop+flip', or multiplicity=1"
        )
    if recipe.loss != "cross_entropy":
        raise ValueError(
            f"loss={recipe.loss!r} under dp_sgd: wanted cross_entropy, one loss for each sample"
        )
    if recipe.schedule not in SCHEDULES:
        raise ValueError(
            f"schedule={recipe.schedule!r} looks at the training loss, which nobody accounts for:"
            f" take {', '.join(SCHEDULES)}"
        )
    if recipe.parent is not None:
        raise ValueError(
            "defense='dp_sgd' with a parent: its weights saw the members, and nothing done"
            " afterwards takes that back; train with dp_sgd from the start"
        )
