"""Losses by their names in a recipe."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor


def tet(logits: Tensor, labels: Tensor, *, lamb: float = 0.05, means: float = 1.0) -> Tensor:
    """Loss of temporal efficient training: (1 - lamb) mean_t CE(z_t, y) + lamb mean_{t,k} (z_tk -
    means)^2.

    Parameters:
        logits: z (T, B, K), of each time step.
        labels: y (B,).
        lamb: weight of the second term, which keeps the logits near the firing threshold.
        means: the firing threshold.

    Returns:
        (B,) losses.

    Source: Deng, Li, Zhang and Gu (ICLR 2022).
    """
    steps = len(logits)
    of_steps = F.cross_entropy(logits.flatten(0, 1), labels.repeat(steps), reduction="none")
    cross_entropy = of_steps.view(steps, -1).mean(0)
    return (1 - lamb) * cross_entropy + lamb * (logits - means).square().mean((0, 2))


# logits (B, K), labels (B,) -> (B,)
LOSSES = {"cross_entropy": partial(F.cross_entropy, reduction="none"), "tet": tet}
PER_STEP = ("tet",)  # losses of (T, B, K), the logits of each time step
