"""AutoAugment for batches: torchvision's operations, each applied to all images that share it.

Source: Cubuk et al. (CVPR 2019), the policies learned on CIFAR-10. torchvision draws one policy
for all images of a call; here every image has its own policy, drawn in advance on the CPU.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from mia_nb._torchvision import module

GREY = 128  # fills empty pixels, as in common code for CIFAR
NEVER = ("Invert", -1.0, None)


@cache
def policies() -> list[tuple]:
    """25 pairs of operations, each given by name, probability and number of its magnitude."""
    auto = module("torchvision.transforms.autoaugment")
    return auto.AutoAugment(auto.AutoAugmentPolicy.CIFAR10).policies


@cache
def operations() -> tuple:
    """All operations as (name, number of the magnitude, sign); number 0 is no operation.

    If an operation has two directions, sign 0 makes its magnitude negative.
    """
    pairs = [(name, magnitude) for policy in policies() for name, _, magnitude in policy]
    drawn_operations = [None]
    for name, magnitude in dict.fromkeys(pairs):
        drawn_operations += [(name, magnitude, 0), (name, magnitude, 1)]
    return tuple(drawn_operations)


def draw(batch: int, generator: torch.Generator) -> Tensor:
    """Numbers (batch, 2) of the two operations in the policy that each image draws; 0 for an
    operation that is left out.
    """
    probabilities = []
    numbers = []
    for policy in policies():
        probabilities.append([probability for _, probability, _ in policy])
        numbers.append([operations().index((name, magnitude, 0)) for name, _, magnitude in policy])
    chosen = torch.randint(0, len(numbers), (batch,), generator=generator)
    uniform = torch.rand(batch, 2, generator=generator)
    sign = torch.randint(0, 2, (batch, 2), generator=generator)
    applied = uniform <= torch.tensor(probabilities)[chosen]
    return (torch.tensor(numbers)[chosen] + sign) * applied


def apply(x: Tensor, drawn: Tensor) -> Tensor:
    """Images (B, C, H, W) uint8 after their operations, whose numbers `drawn` are on the CPU.

    ValueError for images that have neither one channel nor three.
    """
    channels = x.shape[1]
    if channels not in (1, 3):
        raise ValueError(
            f"augment=autoaugment: the images have {channels} channels; wanted 1 or 3, or another"
            " augmentation"
        )
    auto = module("torchvision.transforms.autoaugment")
    # torchvision's first version works channel by channel, and waits for the device at each
    equalize = module("torchvision.transforms.v2.functional").equalize
    transform = auto.AutoAugment(auto.AutoAugmentPolicy.CIFAR10, fill=[GREY] * channels)
    x = x.clone()
    for stage in drawn.unbind(1):
        for number in stage.unique().tolist():
            if number == 0:
                continue
            name, magnitude, sign = operations()[number]
            # a policy of only this operation, which is applied with certainty
            transform.policies = [((name, 1.0, magnitude), NEVER)]
            # number of the policy; what is compared with probabilities; signs
            drawn_by_transform = (0, torch.zeros(2), torch.tensor([sign, sign]))
            transform.get_params = lambda _, result=drawn_by_transform: result
            rows = (stage == number).nonzero()[:, 0].to(x.device, non_blocking=True)
            x[rows] = equalize(x[rows]) if name == "Equalize" else transform(x[rows])
    return x
