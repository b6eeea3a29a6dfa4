"""Pixels and labels of any kind as `Images`, and the checks of `Images`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mia_nb.checks import as_array, frames_of, mask, shown
from mia_nb.data.normalisation import check_scale, measure
from mia_nb.types import Images

DARK = 16  # floats with a maximum from 1 to this are too dark for 0..255 and too bright for 0..1


def from_arrays(
    x: np.ndarray | Tensor,
    y: np.ndarray | Sequence[int],
    *,
    classes: Sequence[str] | None = None,
    name: str = "arrays",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    canary: np.ndarray | None = None,
) -> Images:
    """Images from arrays.

    Parameters:
        x: pixels (N, C, H, W), 1 to 4 channels: uint8, integers within 0..255, floats within 0..1
            (multiplied by 255) or within 0..255; rounded. Or T frames of an event camera (N, T, C,
            H, W): whole numbers of events within 0..255, or booleans.
        y: class numbers from 0, (N,) or (N, 1).
        classes: a name for each class; None: their numbers.
        name: of the data set, for messages and reports.
        mean, std: per channel of x / 255; None: measured on all images (a constant channel gets std
            1); (0,) and (1,): the model itself normalises. All frames of a sample share them.
        canary: (N,) booleans, True for canaries; None: there are none.

    Returns:
        `Images`, with a copy of the pixels.

    Raises:
        ValueError: on NaN, on values out of range, and on labels that are negative, fractional,
            beyond `classes` or, without `classes`, skip a number.

    Example: `from_arrays(x, y, classes=["cat", "dog"])`.
    """
    x = as_array(x)
    frames = 1
    if x.ndim == 5:  # frames are images until they are measured
        x = check_event_counts(x, name)
        frames = x.shape[1]
        x = x.reshape(-1, *x.shape[2:])
    if x.ndim != 4 or not 1 <= x.shape[1] <= 4 or not x.size:
        raise ValueError(
            f"{name}: images have shape {x.shape}; wanted (N, C, H, W) with 1 to 4 channels, or"
            " frames of events (N, T, C, H, W)"
        )
    # a copy, so that later changes to the caller's array change no images
    x = torch.from_numpy(np.array(as_uint8(x, name), order="C"))
    samples = len(x) // frames
    y, classes = check_labels(y, samples, classes, name)
    if (mean is None) != (std is None):
        raise ValueError(f"mean={shown(mean)}, std={shown(std)}: give both or none")
    if mean is None:
        mean, std = measure(x)
    mean, std = check_scale(mean, std, x.shape[1], f"{name}: ")
    if canary is not None:
        canary = mask(f"{name}: canary", canary, y.shape)
    if frames > 1:
        channels, height, width = x.shape[1:]
        x = x.reshape(samples, frames * channels, height, width)
        if len(mean) > 1:  # a single one serves all channels of all frames
            mean = mean * frames
            std = std * frames
    return Images(x, torch.from_numpy(y), classes, name, mean, std, canary, frames)


def check_images(images: Images) -> Images:
    """The images themselves, if they can be used for training and queries.

    Raises ValueError of one line if pixels, labels, classes and normalisation do not fit together,
    as in a record whose fields were replaced.
    """
    x = images.x
    y = images.y
    fits = x.ndim == 4 and x.dtype == torch.uint8 and y.shape == x.shape[:1]
    if not fits or not _are_class_numbers(y, len(images.classes)):
        raise ValueError(
            f"{shown(images.name)}: pixels are {tuple(x.shape)} {x.dtype}, labels {tuple(y.shape)}"
            f" {y.dtype}; wanted (N, C, H, W) torch.uint8, and a whole number for each image, from"
            f" 0 to {len(images.classes) - 1}"
        )
    frames_of(images.frames, x.shape[1])
    check_scale(images.mean, images.std, x.shape[1], f"{shown(images.name)}: ")
    return images


def _are_class_numbers(y: Tensor, count: int) -> bool:
    """Whether these are whole numbers below the number of classes; also if there are none."""
    if y.dtype.is_floating_point or y.dtype == torch.bool:
        return False
    return len(y) == 0 or 0 <= int(y.min()) <= int(y.max()) < count


def check_event_counts(x: np.ndarray, name: str) -> np.ndarray:
    """Frames of events (N, T, C, H, W) as whole numbers; ValueError if they are no counts."""
    if not x.size or not 1 <= x.shape[2] <= 4:
        raise ValueError(
            f"{name}: frames of events have shape {x.shape}; wanted (N, T, C, H, W) with 1 to 4"
            " channels"
        )
    if x.dtype == bool:
        return x.astype(np.uint8)
    if not np.issubdtype(x.dtype, np.integer):
        raise ValueError(
            f"{name}: frames of events are {x.dtype}; wanted whole numbers of events within"
            " 0..255, or booleans"
        )
    return x


def as_uint8(x: np.ndarray, name: str) -> np.ndarray:
    """Pixels as uint8, scaled if they are within 0..1; ValueError for arrays that are no pixels."""
    if x.dtype == np.uint8:
        return x
    numbers = np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer)
    if not numbers or not x.size:
        raise ValueError(
            f"{name}: images are {x.dtype} {x.shape}; wanted numbers within 0..255, or floats"
            " within 0..1"
        )
    low = x.min()
    high = x.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        first = int(np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(1))[0])
        raise ValueError(f"{name}: image {first} holds NaN or infinite pixels; remove or repair it")
    if low < 0 or high > 255:
        raise ValueError(
            f"{name}: pixels run from {low:g} to {high:g}; wanted 0..255, or floats within 0..1"
            " (not yet normalised)"
        )
    if np.issubdtype(x.dtype, np.floating):
        if 1 < high <= DARK:
            raise ValueError(
                f"{name}: float pixels run from {low:g} to {high:g}: within 0..255 they are nearly"
                " black; where 1 should be white, clip them to 0..1"
            )
        x = np.rint(x * 255 if high <= 1 else x)
    return x.astype(np.uint8)


def check_labels(
    y: object, samples: int, classes: Sequence[str] | None, name: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels (N,) int64 and a name for each class; ValueError for labels that cannot be used."""
    y = as_array(y)
    if y.shape == (samples, 1):
        y = y[:, 0]
    if y.shape != (samples,) or not samples:
        raise ValueError(
            f"{name}: labels have shape {y.shape}; wanted ({samples},), one class number per image"
        )
    is_whole = y.dtype.kind in "iub"
    if y.dtype.kind == "f":
        is_whole = (y == np.rint(y)).all() and np.abs(y).max() < 2**53
    if not is_whole:
        raise ValueError(
            f"{name}: labels are {y.dtype} and not whole numbers; wanted class numbers from 0"
        )
    if classes is not None and np.array(classes, object).ndim != 1:
        raise ValueError(
            f"{name}: classes={shown(classes)}; wanted a list of names, in the order of the class"
            " numbers"
        )
    y = y.astype(np.int64)
    count = len(classes) if classes is not None else int(y.max()) + 1
    if y.min() < 0 or y.max() >= count:
        raise ValueError(f"{name}: labels run from {y.min()} to {y.max()}; wanted 0..{count - 1}")
    present = np.unique(y)
    if classes is None and present.size < count:
        missing = np.flatnonzero(present != np.arange(present.size))[0]
        raise ValueError(
            f"{name}: labels run to {y.max()} but class {missing} has no image; number them"
            f" 0..{present.size - 1}"
        )
    if count < 2:
        raise ValueError(f"{name}: all labels are of one class; a classifier needs two or more")
    if classes is None:
        classes = range(count)
    return y, tuple(label.decode() if isinstance(label, bytes) else str(label) for label in classes)
