"""Other rules for three operations under vmap: a stack of convolutions is one grouped convolution,
a stack of batch norms one batch norm over all channels, both in channels-last order, and every
model draws its noise from its own generator.

PyTorch's own rules for the first two give the same numbers in channels-first order, which took 1.4
times as long for TinyCNN on a CPU (8 models, batch 32, one thread). Its own rule for noise draws
one tensor for the whole stack: a model would depend on its companions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


def _folded(x: Tensor, dim: int | None, size: int) -> Tensor:
    """(B, C, H, W) with a model axis at `dim` -> (B, size * C, H, W), channels last; without
    copying where it already is.
    """
    x = x.unsqueeze(1).expand(-1, size, -1, -1, -1) if dim is None else x.movedim(dim, 1)
    return x.flatten(1, 2).contiguous(memory_format=torch.channels_last)


def _unfolded(x: Tensor, size: int) -> Tensor:
    return x.unflatten(1, (size, -1))


class _Conv2d(torch.autograd.Function):
    """conv2d whose rule under vmap is one grouped convolution; autograd goes through the rule's own
    operations.
    """

    @staticmethod
    def forward(x, weight, bias, stride, padding, dilation):
        return F.conv2d(x, weight, bias, stride, padding, dilation)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, x, weight, bias, *options):
        models = info.batch_size
        x = _folded(x, in_dims[0], models)
        weight = (
            weight.expand(models, *weight.shape)
            if in_dims[1] is None
            else weight.movedim(in_dims[1], 0)
        )
        weight = weight.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        if bias is not None:
            bias = (
                bias.expand(models, -1) if in_dims[2] is None else bias.movedim(in_dims[2], 0)
            ).flatten()
        return _unfolded(F.conv2d(x, weight, bias, *options, groups=models), models), 1


def _conv2d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    if groups != 1 or isinstance(padding, str) or x.ndim != 4:
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    return _Conv2d.apply(x, weight, bias, stride, padding, dilation)


class _BatchNorm(torch.autograd.Function):
    """batch_norm likewise; the running statistics (models, C) are views of what the rule updates in
    place.
    """

    @staticmethod
    def forward(x, mean, var, weight, bias, training, momentum, eps):
        return F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, x, *rest):
        models = info.batch_size
        flat = [t.flatten() if isinstance(t, Tensor) else t for t in rest]
        return _unfolded(F.batch_norm(_folded(x, in_dims[0], models), *flat), models), 1


def _batch_norm(x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    if x.ndim != 4 or any(t is None for t in (mean, var, weight, bias)):
        return F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    return _BatchNorm.apply(x, mean, var, weight, bias, training, momentum, eps)


class _Noise(torch.autograd.Function):
    """randn_like of a stack: slot after slot as each model alone would draw from its generator."""

    @staticmethod
    def forward(h, generators):
        return torch.randn(h.shape, generator=generators[0], dtype=h.dtype, device=h.device)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info, in_dims, h, generators):
        shape = h.movedim(in_dims[0], 0).shape
        # on a GPU many small draws would cost more than the step: equal in law
        if len(generators) == 1:
            return torch.randn(shape, generator=generators[0], dtype=h.dtype, device=h.device), 0
        return (
            torch.stack(
                [
                    torch.randn(shape[1:], generator=g, dtype=h.dtype, device=h.device)
                    for g in generators
                ]
            ),
            0,
        )


def _group_norm(x, num_groups, weight=None, bias=None, eps=1e-5):
    # under vmap it refuses what is channels last
    return F.group_norm(x.contiguous(), num_groups, weight, bias, eps)


RULES = {torch.conv2d: _conv2d, F.batch_norm: _batch_norm, F.group_norm: _group_norm}


class Stacking(TorchFunctionMode):
    """While on, noise comes from the models' generators and, with `channels_last`, convolutions and
    norms use the rules above; everything else is untouched."""

    def __init__(self, generators: list[torch.Generator], channels_last: bool):
        super().__init__()
        self.generators, self.rules = generators, RULES if channels_last else {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.randn_like:
            return _Noise.apply(args[0], self.generators)
        return self.rules.get(function, function)(*args, **(kwargs or {}))
