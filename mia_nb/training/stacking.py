"""Other rules for three operations under vmap: a stack of convolutions is one grouped convolution,
a stack of batch norms one batch norm over all channels, both in channels-last order, and every
model draws its noise from its own generator.

PyTorch's own rules for the first two give the same numbers in channels-first order, which took 1.4
times as long for TinyCNN on a CPU (8 models, batch 32, one thread). Its own rule for noise draws
one tensor for the whole stack: a model would depend on its companions.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


def _with_rule(plain: Callable, stacked: Callable) -> Callable:
    """The function `plain`, which under vmap is stacked(models, axes, *arguments), axes being those
    of the models; autograd goes through the operations of `stacked`.
    """

    class Ruled(torch.autograd.Function):
        @staticmethod
        def forward(*arguments):
            return plain(*arguments)

        @staticmethod
        def setup_context(ctx, inputs, output):
            """Nothing is kept: `forward` itself is never differentiated."""

        @staticmethod
        def vmap(info, axes, *arguments):
            return stacked(info.batch_size, axes, *arguments)

    return Ruled.apply


def _leading(tensor: Tensor, axis: int | None, models: int) -> Tensor:
    """The models' axis in front; without copying where there is none."""
    return tensor.expand(models, *tensor.shape) if axis is None else tensor.movedim(axis, 0)


def _folded(x: Tensor, axis: int | None, models: int) -> Tensor:
    """(B, C, H, W) with the models' axis -> (B, models * C, H, W), channels last; without copying
    where it already is.
    """
    folded = _leading(x, axis, models).movedim(0, 1).flatten(1, 2)
    return folded.contiguous(memory_format=torch.channels_last)


def _grouped_conv2d(models: int, axes, x, weight, bias, *options):
    weight = _leading(weight, axes[1], models).flatten(0, 1)
    weight = weight.contiguous(memory_format=torch.channels_last)
    bias = None if bias is None else _leading(bias, axes[2], models).flatten()
    x = F.conv2d(_folded(x, axes[0], models), weight, bias, *options, groups=models)
    return x.unflatten(1, (models, -1)), 1


_stackable_conv2d = _with_rule(F.conv2d, _grouped_conv2d)


def _conv2d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    if groups != 1 or isinstance(padding, str) or x.ndim != 4:
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    return _stackable_conv2d(x, weight, bias, stride, padding, dilation)


def _wide_batch_norm(models: int, axes, x, *rest):
    # the running statistics (models, C) are views of what is updated in place
    flat = [t.flatten() if isinstance(t, Tensor) else t for t in rest]
    x = F.batch_norm(_folded(x, axes[0], models), *flat)
    return x.unflatten(1, (models, -1)), 1


_stackable_batch_norm = _with_rule(F.batch_norm, _wide_batch_norm)


def _batch_norm(x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    if x.ndim != 4 or any(t is None for t in (mean, var, weight, bias)):
        return F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    return _stackable_batch_norm(x, mean, var, weight, bias, training, momentum, eps)


def _drawn(h: Tensor, generators: list[torch.Generator]) -> Tensor:
    return torch.randn(h.shape, generator=generators[0], dtype=h.dtype, device=h.device)


def _drawn_each(models: int, axes, h: Tensor, generators: list[torch.Generator]):
    """Slot after slot as each model alone would draw from its generator."""
    h = h.movedim(axes[0], 0)
    return torch.stack([_drawn(h[0], [g]) for g in generators]), 0


_noise = _with_rule(_drawn, _drawn_each)


def _group_norm(x, num_groups, weight=None, bias=None, eps=1e-5):
    # under vmap it refuses what is channels last
    return F.group_norm(x.contiguous(), num_groups, weight, bias, eps)


RULES = {torch.conv2d: _conv2d, F.batch_norm: _batch_norm, F.group_norm: _group_norm}


class Stacking(TorchFunctionMode):
    """While on, noise comes from the models' generators and, with `channels_last`, convolutions and
    norms use the rules above; everything else is untouched."""

    def __init__(self, generators: list[torch.Generator], channels_last: bool):
        super().__init__()
        self.generators = generators
        self.rules = RULES if channels_last else {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.randn_like:
            return _noise(args[0].detach(), self.generators)
        return self.rules.get(function, function)(*args, **(kwargs or {}))
