"""AutoAugment for batches: torchvision's operations, each applied to all images that share it.

Source: Cubuk et al. (CVPR 2019), the policies learned on CIFAR-10. torchvision draws one policy
for all images of a call; here every image has its own, drawn beforehand on the CPU.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from mia_nb._torchvision import module

GREY = 128  # what is moved into an image, as in common code for CIFAR
NEVER = ("Invert", -1.0, None)


@cache
def policies() -> list[tuple]:
    """25 pairs of operations: of each the name, how probable it is, and its magnitude's number."""
    auto = module("torchvision.transforms.autoaugment")
    return auto.AutoAugment(auto.AutoAugmentPolicy.CIFAR10).policies


@cache
def operations() -> tuple:
    """Every operation as (name, magnitude's number, sign), by its own number; number 0 is none.

    Sign 0 takes the magnitude negative where an operation has two directions.
    """
    pairs = [(name, magnitude) for policy in policies() for name, _, magnitude in policy]
    drawn_operations = [None]
    for name, magnitude in dict.fromkeys(pairs):
        drawn_operations += [(name, magnitude, 0), (name, magnitude, 1)]
    return tuple(drawn_operations)


def draw(batch: int, generator: torch.Generator) -> Tensor:
    """Numbers (batch, 2) of the two operations of the policy that each image drew, 0 where one is
    left out.
    """
    probabilities, numbers = [], []
    for policy in policies():
        probabilities.append([probability for _, probability, _ in policy])
        numbers.append([operations().index((name, magnitude, 0)) for name, _, magnitude in policy])
    chosen = torch.randint(0, len(numbers), (batch,), generator=generator)
    uniform = torch.rand(batch, 2, generator=generator)
    sign = torch.randint(0, 2, (batch, 2), generator=generator)
    applied = uniform <= torch.tensor(probabilities)[chosen]
    return (torch.tensor(numbers)[chosen] + sign) * applied


def apply(x: Tensor, drawn: Tensor) -> Tensor:
    """Images (B, C, H, W) uint8 after the operations that they drew, which lie on the CPU.

    ValueError for images that have neither one channel nor three.
    """
    channels = x.shape[1]
    if channels not in (1, 3):
        raise ValueError(
            f"augment=autoaugment: the images have {channels} channels; wanted 1 or 3, or another"
            " augmentation"
        )
    auto = module("torchvision.transforms.autoaugment")
    # that of the first version goes channel by channel, and waits for the device at each
    equalize = module("torchvision.transforms.v2.functional").equalize
    transform = auto.AutoAugment(auto.AutoAugmentPolicy.CIFAR10, fill=[GREY] * channels)
    x = x.clone()
    for stage in drawn.unbind(1):
        for number in stage.unique().tolist():
            if number == 0:
                continue
            name, magnitude, sign = operations()[number]
            # a policy of this operation alone, which is certain to be applied
            transform.policies = [((name, 1.0, magnitude), NEVER)]
            certain = (0, torch.zeros(2), torch.tensor([sign, sign]))
            transform.get_params = lambda _, certain=certain: certain
            rows = (stage == number).nonzero()[:, 0].to(x.device, non_blocking=True)
            x[rows] = equalize(x[rows]) if name == "Equalize" else transform(x[rows])
    return x
