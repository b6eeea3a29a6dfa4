"""A network whose features pass through one clipped stochastic differential equation of few
channels: its noisy states can be stored in place of records (`training.train_private`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mia_nb import models
from mia_nb.models.neural_de import FlowBlock


class Bottleneck(nn.Module):
    """Images -> features of another network -> `channels` numbers -> clipped SDE -> linear.

    (B, in_channels, H, W) -> (B, num_classes) logits. The features are mapped linearly, normalised
    by BatchNorm without a scale and multiplied so that a state's usual norm is `clip`; the block
    clips it there.

    Parameters:
        in_channels, num_classes, size, mean, std: as for `models.build`.
        base: the network whose features are taken, by name or your own, with a linear `head`.
        base_args: its options.
        channels: of the state.
        clip: largest norm of the state that enters the block; None: no limit.
        lipschitz: Lipschitz bound of the drift; None: no bound.
        k: standard deviation of the noise of a step.
        noise_eval: whether queries are answered with noise.
        **flow: further options of `neural_de.FlowBlock`.

    Raises:
        ValueError: for a base without a linear `head`, and as `FlowBlock`.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        size: tuple[int, int],
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        *,
        base: str = "tinycnn",
        base_args: dict | None = None,
        channels: int = 16,
        clip: float | None = 1.0,
        lipschitz: float | None = 1.0,
        k: float = 0.5,
        noise_eval: bool = False,
        **flow: Any,
    ) -> None:
        super().__init__()
        self.features = models.build_base(
            base, base_args, in_channels, num_classes, size, mean, std
        )
        head = getattr(self.features, "head", None)
        if not isinstance(head, nn.Linear):
            raise ValueError(f"{base} has no linear `head`: a bottleneck wants the features before")
        self.features.head = nn.Identity()
        self.project = nn.Linear(head.in_features, channels, bias=False)
        self.batch_norm = nn.BatchNorm1d(channels, affine=False)
        self.scale = (1.0 if clip is None else clip) / math.sqrt(channels)
        self.flow = FlowBlock(
            channels, k=k, clip=clip, lipschitz=lipschitz, noise_eval=noise_eval, **flow
        )
        for conv in (self.flow.drift.first, self.flow.drift.second):
            only_centres(conv.state)
        self.head = nn.Linear(channels, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        """The state (B, channels, 1, 1) that enters the block, not yet clipped."""
        state = self.batch_norm(self.project(self.features(x))) * self.scale
        return state[..., None, None]

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logits (B, num_classes); noise from the generator, else from torch's global one."""
        return self.head(self.flow(self.embed(x), generator).flatten(1))


@torch.no_grad()
def only_centres(conv: nn.Conv2d) -> None:
    """Set a kernel's weights off its centre to 0: they see nothing of a state of one pixel, but the
    certified norm would count them.
    """
    centre = conv.weight[..., 1:2, 1:2].clone()
    conv.weight.zero_()
    conv.weight[..., 1:2, 1:2] = centre
