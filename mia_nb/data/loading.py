"""Data sets by name, folders of images and .npz files as `Images`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from mia_nb._arrays import npz_arrays
from mia_nb._memory import check_budget
from mia_nb.arguments import Count, Flag, PathLike, Whole
from mia_nb.checks import checked, hint
from mia_nb.data.arrays import as_uint8, check_event_counts, check_labels, from_arrays
from mia_nb.data.image_files import class_folders
from mia_nb.data.membership import stratified_choice
from mia_nb.data.tiny_imagenet import tiny_imagenet
from mia_nb.types import Images

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
        keep = np.flatnonzero(stratified_choice(y, min(limit, len(y)), rng))
        x = x[keep]
        y = y[keep]
    mean, std = PUBLISHED.get(str(dataset), (None, None))
    if part != "all":
        name = f"{name}-{part}"
    return from_arrays(x, y, classes=classes, name=name, mean=mean, std=std)


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
        images = [check_event_counts(part, path.name) for part in images]
    # each part by itself: whether floats are 0..1 or 0..255 may differ between parts
    if len({part.dtype for part in images}) > 1:
        images = [as_uint8(part, path.name) for part in images]
    images = np.concatenate(images) if len(images) > 1 else images[0]
    x = as_uint8(images, path.name)
    if not events:
        x = _channels_first(x)
    y = np.concatenate([y.reshape(-1) for y in labels])
    y, classes = check_labels(y, len(x), arrays.get("classes"), path.name)
    return x, y, classes
