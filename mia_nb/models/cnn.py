"""Convolutional classifiers of the membership literature, from 8x8 upwards, grey or colour.

One definition serves every use: torch.fx can trace it (each ReLU is one call site), and it runs
under torch.func.vmap with parameters and BatchNorm statistics stacked along a model axis. That is
why it takes the mean over the last two axes: adaptive pooling is slow under vmap, sample by sample.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import relu


class TinyCNN(nn.Module):
    """Three times conv 3x3, BatchNorm, ReLU with w, 2w, 4w channels and stride 1, 2, 2; mean over
    height and width; linear.

    (B, in_channels, H, W) -> (B, num_classes) logits. The model of the demo, 24,000 parameters at w
    = 16.
    """

    def __init__(self, in_channels: int = 1, num_classes: int = 10, width: int = 16) -> None:
        super().__init__()
        widths = pairwise((in_channels, width, 2 * width, 4 * width))
        layers = []
        for (before, after), stride in zip(widths, (1, 2, 2), strict=True):
            layers += [
                nn.Conv2d(before, after, 3, stride, 1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(4 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((-2, -1)))


class PreActivationBlock(nn.Module):
    """h + conv(ReLU(BN(conv(ReLU(BN(h)))))), convolutions with bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.conv2(relu(self.bn2(self.conv1(relu(self.bn1(h))))))


class ResNet14(nn.Module):
    """The baseline of the study of neural differential equations: three groups of `blocks` residual
    blocks, w, 2w, 4w channels.

    Stem conv stride 2 and BN; group; BN and conv stride 2; group; BN and conv stride 2; group;
    mean; linear. ReLU after each BN. Hong, Wu, Gruber and Lee (arXiv 2501.06686) call this
    ResNet-14; with the three blocks a group that they state it has 22 layers, with blocks=2 it has
    14. 1,259,818 parameters at the defaults and 10 classes. `groups` is a list, so that a group can
    be replaced by another block of the same channels.
    """

    def __init__(
        self, in_channels: int = 3, num_classes: int = 10, blocks: int = 3, width: int = 32
    ) -> None:
        super().__init__()
        channels = (width, 2 * width, 4 * width)
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.groups = nn.ModuleList(
            nn.Sequential(*(PreActivationBlock(c) for _ in range(blocks))) for c in channels
        )
        self.downs = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, 2 * c, 3, 2, 1, bias=False))
            for c in channels[:2]
        )
        self.head = nn.Linear(4 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.groups[0](self.stem(x))
        h = self.groups[1](self.downs[0](h))
        h = self.groups[2](self.downs[1](h))
        return self.head(h.mean((-2, -1)))


class BasicBlock(nn.Module):
    """ReLU(BN(conv(ReLU(BN(conv(h))))) + shortcut(h)); the shortcut is a 1x1 conv and BN where the
    shape changes.
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(after)
        if stride == 1 and before == after:
            self.shortcut = nn.Identity()
        else:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride), nn.BatchNorm2d(after)
            )

    def forward(self, h: Tensor) -> Tensor:
        return relu(self.bn2(self.conv2(relu(self.bn1(self.conv1(h))))) + self.shortcut(h))


class ResNet18(nn.Module):
    """ResNet18 for small images: 3x3 stem of stride 1, no max-pooling, stages of two blocks with w,
    2w, 4w, 8w channels.

    17 ReLU call sites, convolutions with bias. He et al. 2016; this form: Guan, Sharma, Tian and
    Lahlou (UAI 2025).
    """

    def __init__(self, in_channels: int = 3, num_classes: int = 10, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        )
        widths = pairwise((width, width, 2 * width, 4 * width, 8 * width))
        blocks = []
        for (before, after), stride in zip(widths, (1, 2, 2, 2), strict=True):
            blocks += [BasicBlock(before, after, stride), BasicBlock(after, after, 1)]
        self.stages = nn.Sequential(*blocks)
        self.head = nn.Linear(8 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((-2, -1)))


class VGG16(nn.Module):
    """13 times conv 3x3, BN, ReLU with five average poolings; classifier 8w - 64w - 64w - classes
    with ReLU, no dropout.

    15 ReLU call sites. Below 32x32 the poolings round up; above, the last feature map is averaged.
    Simonyan and Zisserman 2015; average pooling as in Guan, Sharma, Tian and Lahlou (UAI 2025),
    since spikes have no maximum.
    """

    def __init__(self, in_channels: int = 3, num_classes: int = 10, width: int = 64) -> None:
        super().__init__()
        layers = []
        before = in_channels
        for repeats, factor in ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8)):
            for _ in range(repeats):
                layers += [
                    nn.Conv2d(before, factor * width, 3, padding=1),
                    nn.BatchNorm2d(factor * width),
                    nn.ReLU(),
                ]
                before = factor * width
            layers.append(nn.AvgPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*layers)
        wide = 64 * width
        self.classifier = nn.Sequential(
            nn.Linear(before, wide),
            nn.ReLU(),
            nn.Linear(wide, wide),
            nn.ReLU(),
            nn.Linear(wide, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((-2, -1)))
