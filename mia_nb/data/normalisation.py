"""Mean and standard deviation of the channels of images, and images normalised by them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from mia_nb.checks import checked, shown


@checked
def normalise(
    x: Tensor, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
) -> Tensor:
    """(x / 255 - mean) / std per channel.

    Parameters:
        x: pixels (..., C, H, W), uint8.
        mean, std: per channel of x / 255.
        dtype: of the result; half precision is computed in float32 and rounded once.

    Returns:
        (..., C, H, W) of this dtype, on the device of x.
    """
    mean, std = check_scale(mean, std, x.shape[-3] if x.ndim > 2 else 1)
    factors, summands = _scale(mean, std, x.device, dtype)
    return x.to(factors.dtype).mul_(factors).add_(summands).to(dtype)


def check_scale(
    mean: Sequence[float], std: Sequence[float], channels: int, start: str = ""
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std as tuples of floats; ValueError, whose message begins with `start`, if they do
    not fit images with so many channels.
    """
    try:
        means = tuple(map(float, mean))
        stds = tuple(map(float, std))
    except (TypeError, ValueError, OverflowError):
        means = stds = ()
    finite = np.isfinite([*means, *stds]).all() and min(stds, default=0) > 0
    if not finite or len(means) != len(stds) or len(means) not in (1, channels):
        raise ValueError(
            f"{start}mean={shown(mean)}, std={shown(std)}; wanted one positive std and one finite"
            f" mean for each of {channels} channels"
        )
    return means, stds


@lru_cache(maxsize=16)  # so that a step on a GPU copies nothing to the device
def _scale(mean: tuple, std: tuple, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(2, channels, 1, 1) factors and summands that normalise pixels."""
    factors = [1 / (255 * s) for s in std]
    summands = [-m / s for m, s in zip(mean, std, strict=True)]
    # a cached inference tensor would break the gradients of a later caller
    with torch.inference_mode(False):
        scale = torch.tensor([factors, summands], dtype=torch.float64)[..., None, None]
        return scale.to(device, torch.promote_types(dtype, torch.float32))


def measure(x: Tensor) -> tuple[list[float], list[float]]:
    """Mean and std per channel of x / 255.

    The sums are of whole numbers, which are exact, so that the digest of the images, under which
    results are stored, is the same on every machine. NumPy's products of floats differ in the last
    digit between processors.
    """
    mean = []
    std = []
    for channel in x.unbind(1):
        counts = torch.bincount(channel.reshape(-1), minlength=256).tolist()
        pixels = channel.numel()
        total = sum(count * value for value, count in enumerate(counts))
        squares = sum(count * value**2 for value, count in enumerate(counts))
        variance = (pixels * squares - total**2) / (255 * pixels) ** 2
        mean.append(total / (255 * pixels))
        std.append(math.sqrt(variance) or 1.0)
    return mean, std
