"""A network that is accurate after a few passes over small images, in the style of the CIFAR-10
speed records.

What makes it fast: a first layer that whitens small patches of the training images and is not
trained, filters that pass their input through before they learn anything, BatchNorm without a
scale, and few, wide layers. It trains best with the optimiser `muon` (`mia_nb.training.muon`).

Source: Jordan 2024 (arXiv 2404.00498), whose network has GELU and max pooling. With ReLU and
average pooling, the defaults here, it converts to a spiking network.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from mia_nb.checks import one_of

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU}
POOLINGS = {"average": nn.AvgPool2d, "max": nn.MaxPool2d}
FIRST_LAYERS = ("whitening", "learned")
PATCH = 2  # side of the patches that the first layer whitens, in pixels
MOMENTUM = 0.4  # of BatchNorm's running statistics; larger than usual, as training has few steps
FRESH = 1 / 16  # about the size of a fresh network's logits
FLOOR = 5e-4  # added to the variance of a direction, so that whitening does not amplify noise


class FastNet(nn.Module):
    """Whitening 2x2 convolution, then groups of two 3x3 convolutions of w, 4w and 4w channels;
    average; linear.

    (B, in_channels, H, W) -> (B, num_classes) logits. A group is: convolution, pooling by 2, norm,
    activation, convolution, norm, activation. Feature maps of one pixel are not pooled. 1,971,000
    trained parameters at w = 64 and 10 classes, 497,000 at w = 32.

    Parameters:
        in_channels: channels of an image.
        num_classes: how many logits there are.
        size: (H, W) of the images, in pixels.
        width: channels w of the first group.
        activation: "relu", or "gelu", which does not convert to spikes.
        pooling: "average", or "max", which does not convert to spikes.
        first_layer: "whitening", computed from the model's own training images before the first
            step (`whiten`) and then fixed; or "learned", trained like all others, for DP-SGD.

    Raises:
        ValueError: for another activation, pooling or first layer.
    """

    def __init__(
        self,
        in_channels: int = 3,
        num_classes: int = 10,
        size: tuple[int, int] = (32, 32),
        width: int = 64,
        activation: str = "relu",
        pooling: str = "average",
        first_layer: str = "whitening",
    ) -> None:
        super().__init__()
        one_of("activation", activation, ACTIVATIONS)
        one_of("pooling", pooling, POOLINGS)
        one_of("first_layer", first_layer, FIRST_LAYERS)
        act = ACTIVATIONS[activation]
        pool = POOLINGS[pooling]
        patches = 2 * in_channels * PATCH**2  # each direction and its negative
        first = nn.Conv2d(in_channels, patches, PATCH)
        if first_layer == "whitening":
            first.weight.requires_grad = False
            first.whitening = True
        self.first = nn.Sequential(first, act())
        side = min(size) - PATCH + 1
        groups = []
        for before, after in pairwise((patches, width, 4 * width, 4 * width)):
            layers = [convolution(before, after)]
            if side >= 2:
                layers.append(pool(2))
                side //= 2
            layers += [norm(after), act(), convolution(after, after), norm(after), act()]
            groups.append(nn.Sequential(*layers))
        self.groups = nn.ModuleList(groups)
        self.head = nn.Linear(4 * width, num_classes, bias=False)
        # logits of a fresh network are equally small at every width, so one learning rate fits
        self.head.weight.data /= self.head.weight.data.std()
        self.scale = FRESH / (4 * width) ** 0.5

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for group in self.groups:
            h = group(h)
        return self.head(h.mean((-2, -1))) * self.scale


def convolution(before: int, after: int) -> nn.Conv2d:
    """A 3x3 convolution without bias, whose first filters pass their channel through."""
    layer = nn.Conv2d(before, after, 3, padding=1, bias=False)
    nn.init.dirac_(layer.weight.data[:before])
    return layer


def norm(channels: int) -> nn.BatchNorm2d:
    """BatchNorm with a bias, and a scale that stays 1."""
    layer = nn.BatchNorm2d(channels, momentum=MOMENTUM)
    layer.weight.requires_grad = False
    return layer


def whitened(module: nn.Module) -> list[nn.Conv2d]:
    """The layers of a network that `whiten` computes from training images; most networks have
    none.
    """
    return [layer for layer in module.modules() if getattr(layer, "whitening", False)]


@torch.no_grad()
def whiten(module: nn.Module, images: Tensor) -> None:
    """Set the whitening layers of a network: the principal directions of small patches, each with
    its negative, scaled to unit variance.

    Parameters:
        module: a network; without a whitening layer nothing happens.
        images: (N, C, H, W), normalised, some thousands of the model's training images.
    """
    for layer in whitened(module):
        channels, height, width = layer.weight.shape[1:]
        # (N, C, rows, columns, height, width), then a row of pixels for every patch
        patches = images.double().unfold(2, height, 1).unfold(3, width, 1)
        rows = patches.permute(0, 2, 3, 1, 4, 5).flatten(0, 2).flatten(1)
        variances, directions = torch.linalg.eigh(rows.T @ rows / len(rows))
        # an eigenvector's sign is arbitrary: the largest entry is made positive
        largest = directions.gather(0, directions.abs().argmax(0)[None])
        directions = directions * largest.sign()
        filters = directions.T / (variances[:, None] + FLOOR).sqrt()
        filters = filters.view(-1, channels, height, width)
        layer.weight.copy_(torch.cat([filters, -filters]))
