"""Augmentation of a batch of images: its random numbers, and their effect on the pixels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from mia_nb.arguments import Whole
from mia_nb.checks import checked
from mia_nb.data import autoaugment
from mia_nb.types.recipes import AUGMENTATIONS


@checked
def augment_draws(
    ops: str, batch: Whole, height: Whole, width: Whole, generator: torch.Generator
) -> dict[str, Tensor]:
    """The random numbers of one augmented batch, drawn on the CPU, so that they are the same for
    every device.

    Parameters:
        ops: "none", or some of "crop", "flip", "cutout", "translate", "alternate", "autoaugment"
            joined by "+", in any order; crop and translate exclude each other, as do flip and
            alternate.
        batch: number of images B.
        height, width: of an image, in pixels.
        generator: on the CPU.

    Returns:
        for crop, shift (B, 2): rows and columns, uniform within +-(size // 8), 4 at 32x32; for
        flip and alternate, flip (B,) bool, probability 1/2 (in training, alternate flips an image
        in every other epoch); for cutout, centre (B, 2): a uniform pixel, the centre of a square
        hole of side size // 4, 8 at 32x32, clipped at the border; for translate, move (B, 2):
        rows and columns, uniform within +-(size // 16), 2 at 32x32 and 1 at least; for
        autoaugment, operations (B, 2): numbers of two operations, 0 for none. To augment the
        batches of several models at once, concatenate each tensor.

    Raises:
        ValueError: for an unknown word, and for two that exclude each other.

    Source: autoaugment has the policies that Cubuk et al. (CVPR 2019) learned on CIFAR-10, as in
        torchvision.
    """
    chosen = set() if ops == "none" else set(ops.split("+"))
    if unknown := sorted(chosen - set(AUGMENTATIONS)):
        raise ValueError(
            f"augment={ops!r}: {unknown[0]!r} is not one of none, {', '.join(AUGMENTATIONS)} (join"
            " them with '+')"
        )

    for pair in ({"crop", "translate"}, {"flip", "alternate"}):
        if pair <= chosen:
            raise ValueError(f"augment={ops!r}: wanted one of {' and '.join(sorted(pair))}")

    def uniform(low: int, high: int) -> Tensor:
        return torch.randint(low, high, (batch,), generator=generator)

    draws = {}
    if "crop" in chosen:
        draws["shift"] = torch.stack(
            [uniform(-(size // 8), size // 8 + 1) for size in (height, width)], 1
        )
    if chosen & {"flip", "alternate"}:
        draws["flip"] = uniform(0, 2).bool()
    if "cutout" in chosen:
        draws["centre"] = torch.stack([uniform(0, size) for size in (height, width)], 1)
    if "translate" in chosen:
        reach = [max(size // 16, 1) for size in (height, width)]
        draws["move"] = torch.stack([uniform(-most, most + 1) for most in reach], 1)
    if "autoaugment" in chosen:
        draws["operations"] = autoaugment.draw(batch, generator)
    return draws


@checked
def apply_augment(x: Tensor, draws: dict[str, Tensor]) -> Tensor:
    """Augment images: crop or translation and flip in one gather, then AutoAugment, then cutout by
    one mask.

    Parameters:
        x: (B, C, H, W) uint8.
        draws: of `augment_draws`; without draws x itself is returned.

    Returns:
        (B, C, H, W) uint8. A shifted crop is black beyond the border; the flip mirrors the crop
        left to right; a hole is black, at its place in the result. Black means 0 before
        normalisation. A translated image is mirrored beyond the border. AutoAugment fills empty
        pixels with grey.

    Raises:
        ValueError: for AutoAugment of images that have neither one channel nor three.
    """
    if not draws:
        return x
    batch, _, height, width = x.shape
    draws = dict(draws)
    operations = draws.pop("operations", None)  # stay on the CPU, which sorts the images by them
    draws = {name: drawn.to(x.device, non_blocking=True) for name, drawn in draws.items()}
    rows = torch.arange(height, device=x.device).expand(batch, height)
    columns = torch.arange(width, device=x.device).expand(batch, width)
    hole = _hole(draws["centre"], rows, columns) if "centre" in draws else None
    if "flip" in draws:
        columns = torch.where(draws["flip"][:, None], width - 1 - columns, columns)
    if "shift" in draws:
        rows = rows + draws["shift"][:, :1]
        columns = columns + draws["shift"][:, 1:]
    if "move" in draws:
        rows = _mirrored(rows + draws["move"][:, :1], height)
        columns = _mirrored(columns + draws["move"][:, 1:], width)
    if draws.keys() & {"shift", "flip", "move"}:
        x = _pixels_at(x, rows, columns)
    if operations is not None:
        x = autoaugment.apply(x, operations.cpu())
    return x if hole is None else x.masked_fill(hole, 0)


def _hole(centre: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(B, 1, H, W) bool, true in the square hole around the centre (B, 2) of each image.

    rows (B, H) and columns (B, W) are numbers from 0.
    """
    height = rows.shape[1]
    width = columns.shape[1]
    down = rows - centre[:, :1]
    right = columns - centre[:, 1:]
    top = height // 8
    left = width // 8
    in_rows = (down >= -top) & (down < height // 4 - top)
    in_columns = (right >= -left) & (right < width // 4 - left)
    return (in_rows[:, :, None] & in_columns[:, None, :])[:, None]


def _pixels_at(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(B, C, H, W) pixels of each image at these rows (B, H) and columns (B, W), which may lie
    beyond its border by an eighth of its size, where it is black.
    """
    batch, channels, height, width = x.shape
    top = height // 8
    left = width // 8
    number = (rows + top)[:, :, None] * (width + 2 * left) + (columns + left)[:, None, :]
    number = number.view(batch, 1, -1).expand(-1, channels, -1)
    pixels = pad(x, (left, left, top, top)).flatten(2)
    return pixels.gather(2, number).view(batch, channels, height, width)


def _mirrored(lines: Tensor, size: int) -> Tensor:
    """Numbers of rows or columns; those beyond the border are mirrored at the outermost one."""
    last = size - 1
    return last - (last - lines.abs()).abs()
