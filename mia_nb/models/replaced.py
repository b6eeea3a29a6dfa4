"""A trained network whose last group of residual blocks is replaced by a stochastic differential
equation, to be fine-tuned.

Source: Hong, Wu, Gruber and Lee (arXiv 2501.06686).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from mia_nb import models
from mia_nb.models.neural_de import FlowBlock


class Replaced(nn.Module):
    """A network whose last group was replaced by another block.

    Parameters:
        network: with the new block as its last group.
        freeze: whether all but that block and the head are frozen: they take no gradient, and stay
            in evaluation mode during training.
    """

    def __init__(self, network: nn.Module, freeze: bool = False) -> None:
        super().__init__()
        self.network = network
        self.freeze = freeze
        if freeze:
            network.requires_grad_(False)
            network.groups[-1].requires_grad_(True)
            network.head.requires_grad_(True)

    def train(self, mode: bool = True) -> Replaced:
        """As nn.Module.train, except that frozen parts stay in evaluation mode."""
        super().train(mode)
        if self.freeze:  # else frozen batch norms would update their statistics
            self.network.eval()
            self.network.groups[-1].train(mode)
            self.network.head.train(mode)
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def adopt(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """A state dictionary for this module: the last group is its own, everything else is that of
        the network before its group was replaced.

        state: the state dictionary of that network.
        """
        last_group = f"groups.{len(self.network.groups) - 1}."
        adopted = {}
        for name, tensor in self.network.state_dict().items():
            if name.startswith(last_group):
                adopted[f"network.{name}"] = tensor
        for name, tensor in state.items():
            if not name.startswith(last_group):
                adopted[f"network.{name}"] = tensor
        return adopted


def replace_last(model: nn.Module, block: nn.Module, freeze: bool = False) -> Replaced:
    """A copy of a trained network with its last group of residual blocks replaced, to be
    fine-tuned.

    Parameters:
        model: anything with `groups` (a ModuleList) and `head`, as `models.cnn.ResNet14`.
        block: the module that replaces the group.
        freeze: train only the block and the head (the study does not say; by default everything is
            trained).

    Raises:
        ValueError: for a model without groups.

    Caveat: the layers before the block were trained on the same data without noise, and still give
    it away.
    """
    if not isinstance(getattr(model, "groups", None), nn.ModuleList) or not hasattr(model, "head"):
        raise ValueError(
            f"{type(model).__name__} has no `groups` and `head`: replace_last wants a ResNet14 or"
            " one built like it"
        )
    model = copy.deepcopy(model)
    if isinstance(model.groups[-1], nn.ModuleList):  # a network of flows, whose groups are lists
        model.groups[-1] = nn.ModuleList([block])
    else:
        model.groups[-1] = block
    return Replaced(model, freeze)


def replaced(
    in_channels: int,
    num_classes: int,
    size: int,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    *,
    base: str = "resnet14",
    base_args: dict | None = None,
    freeze: bool = False,
    k: float = 0.5,
    **flow: Any,
) -> Replaced:
    """The builder behind `models.build("replaced", {"base": ..., "k": ...})`: `replace_last` of a
    named or own network.

    Parameters:
        in_channels, num_classes, size, mean, std: as for `models.build`.
        base: the network whose last group is replaced, as `model` for `models.build`.
        base_args: its options.
        freeze: as for `replace_last`.
        k: noise of a step. The study's defaults are k = .5, 16 steps and T = 1, so sigma is 2.
        **flow: options of `FlowBlock` except augment.
    """
    network = models.build_base(base, base_args, in_channels, num_classes, size, mean, std)
    if flow.get("augment"):
        raise ValueError(
            "augment: the head of a replaced network has the width it was trained with; leave"
            " augment out"
        )
    if not isinstance(getattr(network, "head", None), nn.Linear):
        raise ValueError(
            f"{base} has no linear `head`: replaced wants a resnet14, or a network of flows"
        )
    block = FlowBlock(network.head.in_features, k=k, **flow)
    return replace_last(network, block, freeze)
