"""Builders with flow blocks that tests name as "toys_flow:function": noise switched off, frozen,
beside dropout.
"""

import torch
from torch import nn

from mia_nb.models.neural_de import FlowBlock, FlowNet, set_noise
from mia_nb.training.train import finetune_pool


def silenced(in_channels, num_classes):
    """An SDE classifier whose noise somebody switched off and forgot."""
    return set_noise(FlowNet(in_channels, num_classes, width=4, steps=2, k=0.3), False)


class Frozen(nn.Module):
    """Solves its SDE on the same path at every question: it ignores whatever seed is set."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x, torch.Generator().manual_seed(0))


def frozen(in_channels, num_classes):
    return Frozen(FlowNet(in_channels, num_classes, width=4, steps=2, k=0.3))


def dropout_and_flow(in_channels, num_classes, size, k=0.3):
    """Two sources of noise in one network: dropout, and an SDE block on states (B, 2, 4, 4)."""
    features = in_channels * size[0] * size[1]
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(features, 32),
        nn.Dropout(0.5),
        nn.Unflatten(1, (2, 4, 4)),
        FlowBlock(2, steps=2, k=k),
        nn.Flatten(),
        nn.Linear(32, num_classes),
    )


class Mixing(nn.Module):
    """Features from which those of the whole batch are taken, in evaluation too."""

    def __init__(self, features, num_classes):
        super().__init__()
        self.head = nn.Linear(features, num_classes)

    def forward(self, x):
        h = x.flatten(1)
        return self.head(h - h.mean(0))


def mixing(in_channels, num_classes, size):
    return Mixing(in_channels * size[0] * size[1], num_classes)


def replaced(pool, recipe, images, *, freeze=False, block=None, **options):
    """The pool whose networks have a fresh SDE block in place of the last group of another's."""
    base = {"base": pool.recipe.model, "base_args": pool.recipe.model_args, "freeze": freeze}
    recipe = recipe.replace(model="replaced", model_args=base | (block or {}))
    return finetune_pool(pool, recipe, images, **options)
