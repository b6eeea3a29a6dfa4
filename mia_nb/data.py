"""Data sets as uint8 tensors, their normalisation and augmentation, and membership masks: which
model trains on which samples.
"""

from __future__ import annotations

import inspect
import math
import os
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from mia_nb import _autoaugment, checks
from mia_nb._image_files import check_budget, class_folders, npz_arrays, tiny_imagenet
from mia_nb.arguments import Array, Count, Flag, PathLike, Positive, Real, Whole
from mia_nb.checks import checked, frames_of, hint, mask, shown
from mia_nb.types import AUGMENTATIONS, Images

PUBLISHED = {  # mean and std of x / 255 per channel, as the literature uses them
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "tiny_imagenet": ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
}
SYNTHETIC = {"classes": 10, "n": 2000, "size": 32, "channels": 3, "seed": 0, "noise": 0.25}
KERAS = {  # names of arrays in Keras' mnist.npz: names of the same arrays in MedMNIST
    "x_train": "train_images",
    "y_train": "train_labels",
    "x_test": "test_images",
    "y_test": "test_labels",
}
# the path of an event camera, corners as rows and columns in pixels: a triangle
SACCADES = ((0, 0), (2, 1), (0, 2), (0, 0))
MOMENTS = 4  # times in each frame of events at which pixels are compared with their last event
FLOOR = 0.05  # added to intensities of 0 to 1 before their logarithm is taken
DARK = 16  # floats in 0..255 whose largest is at most this were probably meant as 0..1
MOST_ENTRIES = 2**31  # of all masks of a pool


@checked
def load(
    dataset: PathLike,
    *,
    data_root: PathLike = "data",
    limit: Whole | None = None,
    download: Flag = False,
    size: Whole | None = None,
    part: Literal["all", "train", "test"] = "all",
    seed: Count = 0,
) -> Images:
    """Labelled images by name or from a path.

    Parameters:
        dataset: a name or a path, one of the forms below.
        data_root: the folder where data sets and the cache lie.
        limit: keep that many, from 2 up, stratified by class, in data order; None keeps all.
        download: whether a data set that is not there may be fetched.
        size: of a folder of class folders, the side in pixels that images are scaled to; None
            leaves them as they are.
        part: "train" and "test" are the official parts of a data set that has them, validation
            images counting as test images; "all" is one after the other. On "train" each model of
            a pool trains on half of the official training images, and "test" stays out of all.
        seed: of the choice of `limit`.

    * "digits": 1,797 grey 8x8 digits that come with scikit-learn; grey value = round(v * 255 / 16).
    * "cifar10", "cifar100", "mnist", "fashion_mnist" (torchvision) and "tiny_imagenet" (official
      archive or its unpacked folder), all under `data_root`. Fetched only with download=True.
    * a folder of class folders of images, of one size or made so: with size=64 the largest square
      in the middle of each, scaled to 64 x 64 (bicubic). Classes are the sorted folder names. All
      images grey: one channel, else three; transparency is dropped. Images are turned as their EXIF
      orientation says; of an animation the first frame counts, of a colour of 16 bits the upper 8.
      All that the installed Pillow reads is taken (.heic with its plugin); hidden files and texts
      are passed over, any other file is refused by its name, as it would be missing in silence.
      Decoded pixels are cached under `data_root`/.cache, keyed by path, file names, sizes and
      times.
    * a .npz in the MedMNIST layout: train_images (N, H, W) or (N, H, W, C), train_labels (N,) or
      (N, 1), optional val_* and test_* (all are concatenated, in that order), optional `classes`
      (K,) of names; or in that of Keras' mnist.npz: x_train, y_train, x_test, y_test. Images of
      five axes (N, T, C, H, W) are frames of an event camera, as `from_arrays` takes them.
      Floats within 0..1 are multiplied by 255, other floats must lie within 0..255; both are
      rounded.
    * "synthetic:classes=10,n=2000,size=32,channels=3,seed=0,noise=0.25": one smooth random pattern
      per class plus pixel noise.

    Image folders, .npz and synthetic images that would take more memory than the environment
    variable MIA_NB_MAX_GB says (default: half of the memory) are refused by their headers, before
    they are read. A UserWarning of one line says how what can be read in two ways was read: boolean
    labels, nearly black floats, class names that look alike.

    Returns:
        `Images`; mean and std are the published ones where they exist, otherwise measured on all
        images returned.

    Raises:
        ValueError: of one line for whatever cannot be used.

    Examples: `load("digits", limit=400)`, `load("cifar10", part="train")`.
    """
    name = str(dataset)
    root = Path(data_root)
    place = os.path.expanduser(name)
    path = Path(place)
    # by its text: the path of an empty one is that of the working directory
    folder = name not in DATASETS and os.path.isdir(place)
    if size is not None and (size < 1 or not folder):
        raise ValueError(
            f"size={size} for {name!r}: wanted a side in pixels, for a folder of class folders of"
            " images"
        )
    if part != "all" and (folder or name == "digits" or name.startswith("synthetic")):
        raise ValueError(
            f"part={part!r}: {name} has no official parts; wanted part='all', or one of"
            f" {', '.join(OFFICIAL_PARTS)} or a .npz"
        )
    if name == "digits":
        x, y, classes = _digits()
    elif name in OFFICIAL_PARTS:
        x, y, classes = OFFICIAL_PARTS[name](root, download, part)
    elif name == "synthetic" or name.startswith("synthetic:"):
        x, y, classes = _synthetic(name.partition(":")[2])
        name = "synthetic"
    elif folder:
        x, y, classes = class_folders(path, root / ".cache", size)
        name = path.resolve().name
    elif path.suffix == ".npz":
        x, y, classes = _npz(path, part)
        name = path.stem
    else:
        raise ValueError(
            f"no data set or folder {name!r}{hint(name, DATASETS)} (known: {', '.join(DATASETS)},"
            " synthetic:..., a folder, a .npz)"
        )
    if limit is not None:
        if limit < 2:
            raise ValueError(f"limit={limit}: keep two images or more")
        rng = np.random.default_rng([3, seed])
        keep = np.flatnonzero(_stratified_choice(y, min(limit, len(y)), rng))
        x = x[keep]
        y = y[keep]
    mean, std = PUBLISHED.get(str(dataset), (None, None))
    if part != "all":
        name = f"{name}-{part}"
    return from_arrays(x, y, classes=classes, name=name, mean=mean, std=std)


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
            1); (0,) and (1,): the model normalises. All frames of a sample share them.
        canary: (N,) booleans, which images are canaries; None for none.

    Returns:
        `Images`, with a copy of the pixels.

    Raises:
        ValueError: on NaN, on values out of range, and on labels that are negative, fractional,
            beyond `classes` or, without `classes`, skip a number.

    Example: `from_arrays(x, y, classes=["cat", "dog"])`.
    """
    x = np.asarray(x)
    frames = 1
    if x.ndim == 5:
        x = _check_event_counts(x, name)
        frames = x.shape[1]
        x = x.reshape(-1, *x.shape[2:])  # each frame as an image
    if x.ndim != 4 or not 1 <= x.shape[1] <= 4 or not x.size:
        raise ValueError(
            f"{name}: images have shape {x.shape}; wanted (N, C, H, W) with 1 to 4 channels, or"
            " frames of events (N, T, C, H, W)"
        )
    # a copy: what becomes of the caller's array changes no images
    x = torch.from_numpy(np.array(_as_uint8(x, name), order="C"))
    samples = len(x) // frames
    y, classes = _check_labels(y, samples, classes, name)
    _warn_of_similar_names(classes, name)
    if (mean is None) != (std is None):
        raise ValueError(f"mean={shown(mean)}, std={shown(std)}: give both or none")
    if mean is None:
        mean, std = _measure(x)
    mean, std = _check_scale(mean, std, x.shape[1], f"{name}: ")
    if canary is not None:
        canary = mask(f"{name}: canary", canary, y.shape)
    if frames > 1:
        channels, height, width = x.shape[1:]
        x = x.reshape(samples, frames * channels, height, width)
        if len(mean) > 1:  # a single one serves all channels of all frames
            mean = mean * frames
            std = std * frames
    return Images(x, torch.from_numpy(y), classes, name, mean, std, canary, frames)


def _check_event_counts(x: np.ndarray, name: str) -> np.ndarray:
    """Frames of events (N, T, C, H, W) as whole numbers; ValueError for what counts no events."""
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


def _warn(text: str) -> None:
    """A UserWarning at the line that called this module."""
    own_files = (__file__, checks.__file__)
    frames = enumerate(inspect.stack(0), 1)
    warnings.warn(text, stacklevel=next(i for i, at in frames if at.filename not in own_files))


def _warn_of_similar_names(classes: tuple[str, ...], name: str) -> None:
    """A UserWarning for class names that differ in case, Unicode form or outer spaces only."""
    by_plain_form: dict[str, str] = {}
    pairs = []
    for label in classes:
        plain_form = unicodedata.normalize("NFC", label).casefold().strip()
        if plain_form in by_plain_form:
            pairs.append((by_plain_form[plain_form], label))
        else:
            by_plain_form[plain_form] = label
    if pairs:
        more = f" ({len(pairs) - 1} more such pairs)" if len(pairs) > 1 else ""
        first, other = map(ascii, pairs[0])
        _warn(f"{name}: class names {first} and {other} look alike, read as two classes{more}")


def _as_uint8(x: np.ndarray, name: str) -> np.ndarray:
    """Pixels as uint8, those within 0..1 scaled; ValueError for what are no pixels."""
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
            _warn(
                f"{name}: float pixels run from {low:g} to {high:g} and were read as 0..255, nearly"
                " black; where 1 should be white, clip them to 0..1"
            )
        x = np.rint(x * 255 if high <= 1 else x)
    return x.astype(np.uint8)


def _check_labels(
    y: object, samples: int, classes: Sequence[str] | None, name: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels (N,) int64 and a name for each class; ValueError for labels that cannot be used."""
    y = np.asarray(y)
    if y.shape == (samples, 1):
        y = y[:, 0]
    if y.shape != (samples,) or not samples:
        raise ValueError(
            f"{name}: labels have shape {y.shape}; wanted ({samples},), one class number per image"
        )
    whole = y.dtype.kind == "f" and (y == np.rint(y)).all() and np.abs(y).max() < 2**53
    if y.dtype.kind not in "iub" and not whole:
        raise ValueError(
            f"{name}: labels are {y.dtype} and not whole numbers; wanted class numbers from 0"
        )
    if y.dtype == bool:
        _warn(f"{name}: boolean labels were read as class 0 (False) and class 1 (True)")
    if classes is not None and not _is_list_of_names(classes):
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
        missing = int(np.setdiff1d(np.arange(min(count, present.size + 1)), present)[0])
        raise ValueError(
            f"{name}: labels run to {y.max()} but class {missing} has no image; number them"
            f" 0..{present.size - 1}"
        )
    if count < 2:
        raise ValueError(f"{name}: all labels are of one class; a classifier needs two or more")
    names = []
    for label in range(count) if classes is None else classes:
        names.append(label.decode() if isinstance(label, bytes) else str(label))
    return y, tuple(names)


def _is_list_of_names(classes: object) -> bool:
    if not isinstance(classes, Sequence | np.ndarray) or isinstance(classes, str | bytes):
        return False
    if getattr(classes, "ndim", 1) != 1:
        return False
    return not any(isinstance(label, list | tuple | np.ndarray) for label in classes)


def _measure(x: Tensor) -> tuple[list[float], list[float]]:
    """Mean and std per channel of x / 255.

    The sums are of whole numbers, which no machine rounds: the digest of the images, under which
    results are kept, is the same everywhere. NumPy's products of floats differ in their last digit
    from one processor to the next.
    """
    mean = []
    std = []
    for channel in x.unbind(1):
        counts = torch.bincount(channel.reshape(-1), minlength=256).tolist()
        pixels = channel.numel()
        total = sum(count * value for value, count in enumerate(counts))
        squares = sum(count * value**2 for value, count in enumerate(counts))
        variance = (pixels * squares - total**2) / (255 * pixels) ** 2
        mean.append(total / (255 * pixels))
        std.append(math.sqrt(variance) or 1.0)
    return mean, std


# --------------------------------------------------------------------------------------------------
# event cameras


@checked
def events_from_images(
    images: Images,
    *,
    frames: Positive = 12,
    threshold: Real = 0.2,
    path: Sequence[Sequence[float]] = SACCADES,
) -> Images:
    """What an event camera would record if it moved in front of still images; nothing is random.

    A pixel fires as often as the logarithm of its intensity has changed by `threshold` since its
    last event: ON where it grew brighter, OFF where it grew darker.

    Parameters:
        images: still images; the camera sees the mean of their channels.
        frames: T, into which the recording is cut.
        threshold: change of log(x / 255 + 0.05) that an event stands for, above 0.
        path: (P, 2) rows and columns in pixels of the corners that the camera visits, taking the
            same time for each leg. The default is a triangle: three saccades, as N-MNIST was
            recorded.

    Returns:
        `Images` of T frames of two channels, counts of ON and of OFF events, in the order of
        `images` and with their labels, classes and canaries; the name ends with "-events".

    Raises:
        ValueError: for images that are frames already, a threshold not above 0, a path of fewer
            than two corners, and where a pixel fires more than 255 times in a frame.

    Source: Orchard et al., Converting static image datasets to spiking neuromorphic datasets using
        saccades, Frontiers in Neuroscience 9, 2015.

    Caveat: a noiseless model of a camera. It is not a substitute for a recording.

    Example: `events_from_images(load("digits", limit=400), frames=8)`.
    """
    if images.frames > 1:
        raise ValueError(f"{images.name}: these are {images.frames} frames already; wanted images")
    if not 0 < threshold < math.inf:
        raise ValueError(f"threshold={threshold}: wanted a finite number above 0")
    samples, _, height, width = images.x.shape
    size = samples * height * width * (2 * frames + 8 * 8)  # counts, and eight arrays of doubles
    check_budget(f"events of {samples:,} images in {frames} frames", size)
    scene = images.x.cpu().double().mean(1).numpy() / 255
    rows, columns = _positions(path, frames * MOMENTS + 1)
    last_event = _log_intensity(scene, rows[0], columns[0])
    counts = np.zeros((len(scene), frames, 2, *scene.shape[1:]), np.uint8)
    for frame in range(frames):
        on = np.zeros_like(scene)
        off = np.zeros_like(scene)
        for moment in range(frame * MOMENTS + 1, (frame + 1) * MOMENTS + 1):
            change = _log_intensity(scene, rows[moment], columns[moment]) - last_event
            # so that rounding costs no event where a change is exactly one threshold
            fired = np.sign(change) * np.floor(np.abs(change) / threshold + 1e-4)
            last_event += fired * threshold
            on += np.maximum(fired, 0)
            off += np.maximum(-fired, 0)
        most = max(on.max(), off.max())
        if most > 255:
            raise ValueError(
                f"threshold={threshold}: a pixel fires {most:.0f} times in frame {frame} of"
                f" {frames}; wanted 255 at most: raise the threshold or take more frames"
            )
        counts[:, frame, 0] = on
        counts[:, frame, 1] = off
    return from_arrays(
        counts,
        images.y.cpu().numpy(),
        classes=images.classes,
        name=f"{images.name}-events",
        canary=images.canary,
    )


def _positions(path: Sequence[Sequence[float]], moments: int) -> np.ndarray:
    """(2, moments) rows and columns of a camera that visits the corners of a path and takes the
    same time for each leg.
    """
    corners = np.asarray(path, float)
    if corners.ndim != 2 or corners.shape[1] != 2 or len(corners) < 2:
        raise ValueError(
            f"path has shape {corners.shape}; wanted (P, 2), rows and columns of two corners"
            " or more"
        )
    if not np.isfinite(corners).all():
        raise ValueError("path holds NaN or infinite positions; wanted pixels")
    times = np.linspace(0, len(corners) - 1, moments)
    return np.stack([np.interp(times, np.arange(len(corners)), at) for at in corners.T])


def _log_intensity(scene: np.ndarray, down: float, right: float) -> np.ndarray:
    """(N, H, W) log intensities that a camera sees after moving down and right by so many pixels,
    by bilinear interpolation. Beyond its border a scene repeats its outermost pixels.
    """
    top = math.floor(down)
    left = math.floor(right)
    row_weights = (1 - (down - top), down - top)
    column_weights = (1 - (right - left), right - left)
    height, width = scene.shape[1:]
    intensity = np.zeros_like(scene)
    for row, row_weight in enumerate(row_weights):
        rows = np.clip(np.arange(height) + top + row, 0, height - 1)
        for column, column_weight in enumerate(column_weights):
            columns = np.clip(np.arange(width) + left + column, 0, width - 1)
            intensity += row_weight * column_weight * scene[:, rows][:, :, columns]
    return np.log(intensity + FLOOR).round(6)


# --------------------------------------------------------------------------------------------------
# data sets


def _digits() -> tuple[np.ndarray, np.ndarray, list[str]]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = np.rint(images.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    return x, labels, [str(k) for k in range(10)]


def _torchvision(
    kind: str, megabytes: int, root: Path, download: bool, part: str
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    from mia_nb._torchvision import datasets

    dataset = getattr(datasets(), kind)
    chosen = {"all": (True, False), "train": (True,), "test": (False,)}[part]
    try:
        parts = [dataset(root, train=train, download=download) for train in chosen]
    except (RuntimeError, OSError) as error:
        if download:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{kind} could not be downloaded into {root}: {reason}") from error
        raise ValueError(
            f"{kind} is not in {root}, or not intact: allow it with download=True ({megabytes} MB)"
        ) from error
    x = np.concatenate([np.asarray(part.data) for part in parts])
    y = np.concatenate([np.asarray(part.targets) for part in parts])
    return _channels_first(x), y, parts[0].classes


def _channels_first(x: np.ndarray) -> np.ndarray:
    """Images (N, C, H, W) from (N, H, W) or (N, H, W, C)."""
    return x[:, None] if x.ndim == 3 else np.ascontiguousarray(x.transpose(0, 3, 1, 2))


OFFICIAL_PARTS: dict[str, Callable] = {  # name: what reads a part of it
    "cifar10": partial(_torchvision, "CIFAR10", 170),
    "cifar100": partial(_torchvision, "CIFAR100", 169),
    "mnist": partial(_torchvision, "MNIST", 12),
    "fashion_mnist": partial(_torchvision, "FashionMNIST", 31),
    "tiny_imagenet": tiny_imagenet,
}
DATASETS = ("digits", *OFFICIAL_PARTS)


def _synthetic(options: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Random images of the options in "classes=10,n=2000,...".

    Each class has a pattern, a random mixture of the nine lowest cosines per channel, which models
    learn. The noise of each image they can only memorise.
    """
    values = dict(SYNTHETIC)
    seen_keys = set()
    for part in filter(None, options.split(",")):
        key, _, value = part.partition("=")
        if key not in values:
            raise ValueError(f"synthetic has no option {key!r}; known: {', '.join(SYNTHETIC)}")
        if key in seen_keys:
            raise ValueError(f"synthetic: {key} was given twice; give it once")
        seen_keys.add(key)
        if not value.isascii():
            raise ValueError(f"synthetic: {key}={value!r}; wanted digits 0 to 9")
        try:
            values[key] = type(SYNTHETIC[key])(value)
        except ValueError:
            raise ValueError(
                f"synthetic: {key}={value!r}; wanted a number such as {SYNTHETIC[key]}"
            ) from None
    count, n, size, channels, seed = (
        values[key] for key in ("classes", "n", "size", "channels", "seed")
    )
    fine = 2 <= count <= n and size > 0 and 1 <= channels <= 4 and seed >= 0
    if not (fine and 0 <= values["noise"] < math.inf):
        wanted = "2 <= classes <= n, size > 0, 1 to 4 channels, seed >= 0, finite noise >= 0"
        raise ValueError(f"synthetic: {values}; wanted {wanted}")
    pixels = size * size * channels
    check_budget(f"synthetic: {n:,} images of {pixels:,} values", pixels * (16 * n + 12 * count))
    rng = np.random.default_rng([4, seed])
    waves = np.cos(np.pi * np.arange(3)[:, None] * (np.arange(size) + 0.5) / size)
    patterns = np.einsum("kcab,ai,bj->kcij", rng.normal(size=(count, channels, 3, 3)), waves, waves)
    y = rng.permutation(np.arange(n) % count)
    noise = rng.standard_normal((n, channels, size, size), dtype=np.float32)
    x = 0.5 + 0.08 * patterns.astype(np.float32)[y] + values["noise"] * noise
    return np.rint(255 * x.clip(0, 1)).astype(np.uint8), y, [str(k) for k in range(count)]


def _npz(path: Path, part: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Pixels, labels and names of classes of a .npz file in one of the layouts of `load`."""
    parts = ("train", "val", "test")
    wanted = [f"{part}_{what}" for part in parts for what in ("images", "labels")]
    arrays, held = npz_arrays(path, [*wanted, *KERAS, "classes"])
    if "train_images" not in arrays:
        arrays = {KERAS.get(name, name): array for name, array in arrays.items()}
    parts = [part for part in parts if f"{part}_images" in arrays]
    missing = [f"{part}_labels" for part in parts if f"{part}_labels" not in arrays]
    if "train" not in parts:
        missing = ["train_images"]
    if missing:
        holds = ", ".join(held[:9]) or "nothing"
        raise ValueError(f"{path.name} holds {holds}; it lacks {missing[0]}")
    if part != "all":
        if len(parts) == 1:
            raise ValueError(
                f"part={part!r}: {path.name} holds train_images alone; wanted val_images or"
                " test_images too, or part='all'"
            )
        parts = parts[:1] if part == "train" else parts[1:]
    images = [arrays[f"{part}_images"] for part in parts]
    labels = [arrays[f"{part}_labels"] for part in parts]
    shapes = [array.shape[1:] for array in images]
    shapes_by_part = ", ".join(f"{p} {s}" for p, s in zip(parts, shapes, strict=True))
    if len(set(shapes)) > 1:
        raise ValueError(f"{path.name}: image shapes differ between {shapes_by_part}")
    events = len(shapes[0]) == 4
    still = len(shapes[0]) == 2 or (len(shapes[0]) == 3 and shapes[0][2] <= 4)
    if not events and not still:
        raise ValueError(
            f"{path.name}: images have shape {images[0].shape}; wanted (N, H, W) or (N, H, W, C)"
            " with C <= 4, or frames of events (N, T, C, H, W)"
        )
    for part, x, y in zip(parts, images, labels, strict=True):
        if x.shape[:1] != y.shape[:1] or y.shape[1:] not in ((), (1,)):
            raise ValueError(
                f"{path.name}: {part}_labels have shape {y.shape}; wanted one class number for each"
                f" of {len(x)} images"
            )
    if events:
        images = [_check_event_counts(part, path.name) for part in images]
    # each part by itself: whether floats are 0..1 or 0..255 may differ between parts
    if len({part.dtype for part in images}) > 1:
        images = [_as_uint8(part, path.name) for part in images]
    images = np.concatenate(images) if len(images) > 1 else images[0]
    x = _as_uint8(images, path.name)
    if not events:
        x = _channels_first(x)
    y = np.concatenate([y.reshape(-1) for y in labels])
    y, classes = _check_labels(y, len(x), arrays.get("classes"), path.name)
    return x, y, classes


# ---------------------------------------------------------------------------------------------
# normalisation, augmentation


@checked
def normalise(
    x: Tensor, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
) -> Tensor:
    """(x / 255 - mean) / std per channel.

    Parameters:
        x: pixels (..., C, H, W), uint8.
        mean, std: per channel of x / 255.
        dtype: of the result; half types are computed in float32, rounded once.

    Returns:
        (..., C, H, W) of this dtype, on the device of x.
    """
    mean, std = _check_scale(mean, std, x.shape[-3] if x.ndim > 2 else 1)
    factors, summands = _scale(mean, std, x.device, dtype)
    return x.to(factors.dtype).mul_(factors).add_(summands).to(dtype)


def check_images(images: Images) -> Images:
    """The images themselves, if training and queries can take them.

    Raises ValueError of one line where pixels, labels, classes and normalisation do not fit
    together, as in a record whose fields were replaced.
    """
    x = images.x
    y = images.y
    channels = images.x.shape[1] if images.x.ndim == 4 else 0
    name = shown(images.name)
    if x.ndim != 4 or x.dtype != torch.uint8:
        raise ValueError(
            f"{name}: pixels are {tuple(x.shape)} {x.dtype}; wanted (N, C, H, W) torch.uint8"
        )
    if y.ndim != 1 or len(y) != len(x) or y.dtype.is_floating_point or y.dtype == torch.bool:
        raise ValueError(
            f"{name}: labels are {tuple(y.shape)} {y.dtype}; wanted ({len(x)},) whole numbers"
        )
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(images.classes):
        raise ValueError(
            f"{name}: labels run from {int(y.min())} to {int(y.max())}; wanted 0 to"
            f" {len(images.classes) - 1}, a number of each of {len(images.classes)} classes"
        )
    try:
        frames_of(images.frames, channels)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    _check_scale(images.mean, images.std, channels, f"{name}: ")
    return images


def _check_scale(
    mean: Sequence[float], std: Sequence[float], channels: int, start: str = ""
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std as tuples of floats; ValueError, whose message begins with `start`, where they
    normalise no such images.
    """
    try:
        means = tuple(map(float, mean))
        stds = tuple(map(float, std))
    except (TypeError, ValueError, OverflowError):
        means = stds = ()
    finite = np.isfinite([*means, *stds]).all() and min(stds, default=0) > 0
    if not finite or len(means) != len(stds) or len(means) not in (1, channels):
        raise ValueError(
            f"{start}mean={shown(mean)}, std={shown(std)}; wanted one positive std and one finite"
            f" mean for each of {channels} channels"
        )
    return means, stds


@lru_cache(maxsize=16)  # so that a step on a GPU copies nothing and waits for nothing
def _scale(mean: tuple, std: tuple, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(2, channels, 1, 1) factors and summands by which pixels are normalised."""
    factors = [1 / (255 * s) for s in std]
    summands = [-m / s for m, s in zip(mean, std, strict=True)]
    # a cached inference tensor would break the gradients of a later caller
    with torch.inference_mode(False):
        scale = torch.tensor([factors, summands], dtype=torch.float64)[..., None, None]
        return scale.to(device, torch.promote_types(dtype, torch.float32))


@checked
def augment_draws(
    ops: str, batch: Whole, height: Whole, width: Whole, generator: torch.Generator
) -> dict[str, Tensor]:
    """The random numbers of one augmented batch, drawn on the CPU: the same for every device that
    applies them.

    Parameters:
        ops: "none", or some of "crop", "flip", "cutout", "translate", "alternate", "autoaugment"
            joined by "+", in any order; of crop and translate, and of flip and alternate, one at
            most.
        batch: number of images B.
        height, width: of an image, in pixels.
        generator: on the CPU.

    Returns:
        for crop, shift (B, 2): rows and columns, uniform within +-(size // 8), 4 at 32x32; for
        flip and alternate, flip (B,) bool, probability 1/2 (in training, alternate flips an image
        in every other epoch); for cutout, centre (B, 2): a uniform pixel, the centre of a square
        hole of side size // 4, 8 at 32x32, clipped at the border; for translate, move (B, 2):
        rows and columns, uniform within +-(size // 16), 2 at 32x32 and 1 at least; for
        autoaugment, operations (B, 2): numbers of two operations, 0 for none. To augment several
        models' batches at once, concatenate each tensor.

    Raises:
        ValueError: for an unknown word, and for two that do the same.

    Source: of autoaugment, the policies that Cubuk et al. (CVPR 2019) learned on CIFAR-10, as
        torchvision has them.
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
        draws["operations"] = _autoaugment.draw(batch, generator)
    return draws


@checked
def apply_augment(x: Tensor, draws: dict[str, Tensor]) -> Tensor:
    """Crop or translation and flip as one gather, then AutoAugment, then cutout as one mask.

    Parameters:
        x: (B, C, H, W) uint8.
        draws: of `augment_draws`; empty ones return x itself.

    Returns:
        (B, C, H, W) uint8. A shifted crop sees black (0) beyond the border; the flip mirrors the
        crop left to right; a hole is black, in the frame of the result. Black means 0 before
        normalisation. A translated image is mirrored beyond the border. What AutoAugment moves into
        an image is grey.

    Raises:
        ValueError: for AutoAugment of images that have neither one channel nor three.
    """
    if not draws:
        return x
    batch, channels, height, width = x.shape
    top = height // 8
    left = width // 8
    operations = draws.get("operations")
    draws = {  # the operations stay on the CPU, which sorts the images by them
        name: value.to(x.device, non_blocking=True)
        for name, value in draws.items()
        if name != "operations"
    }
    rows = torch.arange(height, device=x.device).expand(batch, height)
    columns = torch.arange(width, device=x.device).expand(batch, width)
    if "centre" in draws:
        down = rows - draws["centre"][:, :1]
        right = columns - draws["centre"][:, 1:]
        tall = (down >= -top) & (down < height // 4 - top)
        wide = (right >= -left) & (right < width // 4 - left)
        hole = (tall[:, :, None] & wide[:, None, :])[:, None]
    if "flip" in draws:
        columns = torch.where(draws["flip"][:, None], width - 1 - columns, columns)
    if "shift" in draws:
        rows = rows + draws["shift"][:, :1]
        columns = columns + draws["shift"][:, 1:]
    if "move" in draws:
        rows = _mirrored(rows + draws["move"][:, :1], height)
        columns = _mirrored(columns + draws["move"][:, 1:], width)
    if draws.keys() & {"shift", "flip", "move"}:
        pixel = (rows + top)[:, :, None] * (width + 2 * left) + (columns + left)[:, None, :]
        pixel = pixel.view(batch, 1, -1).expand(-1, channels, -1)
        black_border = pad(x, (left, left, top, top)).flatten(2)
        x = black_border.gather(2, pixel).view(batch, channels, height, width)
    if operations is not None:
        x = _autoaugment.apply(x, operations.cpu())
    return x.masked_fill(hole, 0) if "centre" in draws else x


def _mirrored(lines: Tensor, size: int) -> Tensor:
    """Rows or columns of an image; those beyond its border are mirrored at the outermost one."""
    last = size - 1
    return last - (last - lines.abs()).abs()


# --------------------------------------------------------------------------------------------------
# membership


def _check_size(num_models: int, num_samples: int) -> None:
    """ValueError for masks of more entries than memory could hold."""
    if num_models * num_samples > MOST_ENTRIES:
        raise ValueError(
            f"{num_models:,} models and {num_samples:,} samples are masks of"
            f" {num_models * num_samples:,} entries; wanted {MOST_ENTRIES:,} at most"
        )


@checked
def paired_membership(
    num_models: Whole,
    num_samples: Positive,
    *,
    labels: Array | None = None,
    num_population: Whole = 0,
    seed: Count = 0,
) -> np.ndarray:
    """Membership masks in complementary pairs: of two models one trains on what the other does not.

    Parameters:
        num_models: M, even.
        num_samples: N.
        labels: class numbers (N,); with them each row holds half of each class. None: not
            stratified.
        num_population: columns that are False in every row.
        seed: of the choice. A pair k depends on (seed, k) only: a larger pool keeps the rows of a
            smaller one.

    Returns:
        (M, N) bool. Row 2k + 1 is the exact complement of row 2k on all columns but the
        population's. Each row holds half of the audited samples; odd remainders are dealt out, so
        that halves differ by at most one, overall and in each class.

    Raises:
        ValueError: for an odd num_models, or fewer than two audited samples.
    """
    _check_size(num_models, num_samples)
    if num_models < 2 or num_models % 2:
        raise ValueError(
            f"num_models={num_models}: complementary pairs need an even number; take"
            f" {num_models + num_models % 2 or 2}"
        )
    labels, audited = _labels_and_audited(num_samples, labels, num_population, seed)
    member = np.zeros((num_models, num_samples), bool)
    for k in range(num_models // 2):
        rng = np.random.default_rng([2, k, seed])
        order = audited[_order_by_class(labels[audited], rng)]
        member[2 * k, order[rng.integers(2) :: 2]] = True
        member[2 * k + 1, audited] = ~member[2 * k, audited]
    return member


@checked
def bernoulli_membership(
    num_models: Whole,
    num_samples: Positive,
    *,
    labels: Array | None = None,
    num_population: Whole = 0,
    seed: Count = 0,
) -> np.ndarray:
    """Membership masks by independent fair coins.

    Parameters:
        num_models: M.
        num_samples: N.
        labels: class numbers (N,), by which the population is stratified; None: it is not.
        num_population: columns that are False in every row.
        seed: of the coins; row m depends on (seed, m) only.

    Returns:
        (M, N) bool.

    Raises:
        ValueError: for no model, or fewer than two audited samples.
    """
    if num_models < 1:
        raise ValueError(f"num_models={num_models}: a pool needs at least 1")
    _check_size(num_models, num_samples)
    _, audited = _labels_and_audited(num_samples, labels, num_population, seed)
    member = np.zeros((num_models, num_samples), bool)
    for m in range(num_models):
        rng = np.random.default_rng([5, m, seed])
        member[m, audited] = rng.integers(2, size=audited.size, dtype=bool)
    return member


def _labels_and_audited(
    num_samples: int, labels: np.ndarray | None, num_population: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Labels (zeros if None), and the numbers of the samples that are audited: all but the
    population, which is chosen here, stratified by label.
    """
    labels = np.zeros(num_samples, np.int64) if labels is None else np.asarray(labels)
    if labels.shape != (num_samples,):
        raise ValueError(f"labels have shape {labels.shape}; wanted ({num_samples},)")
    if not 0 <= num_population <= num_samples - 2:
        raise ValueError(
            f"num_population={num_population} of num_samples={num_samples}: it must leave two"
            " samples or more to audit"
        )
    population = _stratified_choice(labels, num_population, np.random.default_rng([1, seed]))
    return labels, np.flatnonzero(~population)


def _order_by_class(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Numbers of the samples, sorted by class and in random order within each class."""
    order = rng.permutation(labels.size)
    return order[np.argsort(labels[order], kind="stable")]


def _stratified_choice(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """(N,) bool, a random choice of exactly `count` samples, stratified by class.

    Each class gets the floor or ceiling of its share, and each sample has the same chance.
    Systematic sampling: sorted by class, every (N / count)-th sample is taken, from a random start.
    """
    order = _order_by_class(labels, rng)
    steps = (np.arange(labels.size + 1) + rng.integers(labels.size)) * count // labels.size
    chosen = np.zeros(labels.size, bool)
    chosen[order] = np.diff(steps) == 1
    return chosen
