"""Rules for three operations under vmap, in place of PyTorch's own. A stack of convolutions becomes
one grouped convolution, a stack of batch norms one batch norm over all channels, both in
channels-last order; every model draws its noise from its own generator.

PyTorch's rules for the first two give the same numbers in channels-first order, which took 1.4
times as long for TinyCNN on a CPU (8 models, batch 32, one thread). Its rule for noise draws one
tensor for the whole stack, so that a model would depend on the other models.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# a reason why a model is neither stacked nor compiled
RANDOM = "its forward draws random numbers, which would depend on the group"


def keeps_gradients(network: nn.Module) -> bool:
    """Whether a CPU computes right gradients of a network in channels-last order, which a compiler
    may choose by itself.

    oneDNN's AVX2 kernel for strided 1 x 1 convolutions writes past its buffer if there are fewer
    than eight input channels (oneDNN's issue 6035, torch 2.13): gradients were wrong by their own
    size, or the process ended.
    """
    for module in network.modules():
        if not isinstance(module, nn.Conv2d) or module.groups > 1:
            continue
        if module.in_channels < 8 and max(module.kernel_size) == 1 and max(module.stride) > 1:
            return False
    return True


def _with_rule(plain: Callable, stacked: Callable) -> Callable:
    """The function `plain`, which under vmap becomes stacked(models, axes, *arguments), where axes
    are the models' axes of the arguments. Autograd goes through the operations of `stacked`.
    """

    class Ruled(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: object) -> Tensor:
            return plain(*arguments)

        @staticmethod
        def setup_context(ctx: object, inputs: tuple, output: Tensor) -> None:
            """Nothing is kept: `forward` itself is never differentiated."""

        @staticmethod
        def vmap(info: Any, axes: tuple, *arguments: object) -> tuple[Tensor, int]:
            return stacked(info.batch_size, axes, *arguments)

    return Ruled.apply


def _leading(tensor: Tensor, axis: int | None, models: int) -> Tensor:
    """The tensor with the models' axis in front; a tensor without one is expanded, not copied."""
    if axis is None:
        return tensor.expand(models, *tensor.shape)
    return tensor.movedim(axis, 0)


def _folded(x: Tensor, axis: int | None, models: int) -> Tensor:
    """(B, C, H, W) with the models' axis -> (B, models * C, H, W), channels last; not copied if the
    memory is in that order already.
    """
    folded = _leading(x, axis, models).movedim(0, 1).flatten(1, 2)
    return folded.contiguous(memory_format=torch.channels_last)


def _grouped_conv2d(
    models: int, axes: tuple, x: Tensor, weight: Tensor, bias: Tensor | None, *options: object
) -> tuple[Tensor, int]:
    """A stack of convolutions as one convolution with `models` groups."""
    weight = _leading(weight, axes[1], models).flatten(0, 1)
    weight = weight.contiguous(memory_format=torch.channels_last)
    if bias is not None:
        bias = _leading(bias, axes[2], models).flatten()
    x = F.conv2d(_folded(x, axes[0], models), weight, bias, *options, groups=models)
    return x.unflatten(1, (models, -1)), 1


_stackable_conv2d = _with_rule(F.conv2d, _grouped_conv2d)


def _conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple = 1,
    padding: int | tuple | str = 0,
    dilation: int | tuple = 1,
    groups: int = 1,
) -> Tensor:
    if groups != 1 or isinstance(padding, str) or x.ndim != 4:
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    return _stackable_conv2d(x, weight, bias, stride, padding, dilation)


def _wide_batch_norm(models: int, axes: tuple, x: Tensor, *rest: object) -> tuple[Tensor, int]:
    """A stack of batch norms as one batch norm over all channels."""
    # flattened running statistics (models, C) are views, so that they are updated in place
    flat = [value.flatten() if isinstance(value, Tensor) else value for value in rest]
    x = F.batch_norm(_folded(x, axes[0], models), *flat)
    return x.unflatten(1, (models, -1)), 1


_stackable_batch_norm = _with_rule(F.batch_norm, _wide_batch_norm)


def _batch_norm(
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if x.ndim != 4 or any(tensor is None for tensor in (mean, var, weight, bias)):
        return F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    return _stackable_batch_norm(x, mean, var, weight, bias, training, momentum, eps)


def _noise_of_model(h: Tensor, generators: list[torch.Generator]) -> Tensor:
    """Standard normal noise of one model, from the first generator, in the shape of h."""
    return torch.randn(h.shape, generator=generators[0], dtype=h.dtype, device=h.device)


def _noise_of_models(
    models: int, axes: tuple, h: Tensor, generators: list[torch.Generator]
) -> tuple[Tensor, int]:
    """Noise of all models, each from its own generator, as the model alone would draw it."""
    h_of_model = h.select(axes[0], 0)
    return torch.stack([_noise_of_model(h_of_model, [one]) for one in generators]), 0


_noise = _with_rule(_noise_of_model, _noise_of_models)


def _group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    # under vmap, group_norm refuses channels-last tensors
    return F.group_norm(x.contiguous(), num_groups, weight, bias, eps)


RULES = {torch.conv2d: _conv2d, F.batch_norm: _batch_norm, F.group_norm: _group_norm}


class Stacking(TorchFunctionMode):
    """A mode in which noise comes from the models' generators and, with `channels_last`,
    convolutions and norms use the rules above; nothing else changes.
    """

    def __init__(self, generators: list[torch.Generator], channels_last: bool):
        super().__init__()
        self.generators = generators
        self.rules = RULES if channels_last else {}

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if function is torch.randn_like:
            return _noise(args[0].detach(), self.generators)
        return self.rules.get(function, function)(*args, **(kwargs or {}))
