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
from mia_nb.data.arrays import as_uint8, check_labels, from_arrays
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
SPLITS = ("train", "val", "test")  # of a .npz, in the order of MedMNIST
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
        dataset: a name or a path, in one of the forms below.
        data_root: the folder of data sets and of the cache.
        limit: keep this many images, from 2 up, stratified by class, in data order; None: all.
        download: whether a missing data set may be downloaded.
        size: of a folder of class folders, the side in pixels that images are scaled to; None: they
            keep their size.
        part: "train" and "test" are the official parts of a data set that has them; validation
            images count as test images. "all" is both, training images first. With "train" each
            model of a pool trains on half of the official training images, and no model sees the
            test images.
        seed: of the random choice of `limit`.

    * "digits": 1,797 grey 8x8 digits that come with scikit-learn; grey value = round(v * 255 / 16).
    * "cifar10", "cifar100", "mnist", "fashion_mnist" (torchvision) and "tiny_imagenet" (the
      official archive or its unpacked folder), all under `data_root`; downloaded only with
      download=True.
    * a folder of class folders of images. All have one size, or size=64, say, cuts out the largest
      square in the middle of each and scales it to 64 x 64 (bicubic). Classes are the sorted folder
      names. There is one channel if all images are grey, else three; transparency is dropped.
      Images are turned by their EXIF orientation. The files and their order are those of
      torchvision's ImageFolder (.jpg, .png, .ppm, .bmp, .pgm, .tif, .webp); hidden files are
      skipped, and images in folders inside a class folder refused. Decoded pixels are cached under
      `data_root`/.cache, keyed by path, file names, sizes and times.
    * a .npz in the MedMNIST layout: train_images (N, H, W) or (N, H, W, C), train_labels (N,) or
      (N, 1), optional val_* and test_* (all are concatenated, in that order), optional `classes`
      (K,) of names; or in that of Keras' mnist.npz: x_train, y_train, x_test, y_test. Images of
      five axes (N, T, C, H, W) are frames of an event camera, as `from_arrays` takes them.
      Floats within 0..1 are multiplied by 255, other floats must lie within 0..255; both are
      rounded.
    * "synthetic:classes=10,n=2000,size=32,channels=3,seed=0,noise=0.25": one smooth random pattern
      per class plus pixel noise.

    Image folders, .npz and synthetic images that would take more memory than the environment
    variable MIA_NB_MAX_GB says (default: half of the memory) are refused before they are read.

    Returns:
        `Images`; mean and std are the published ones where they exist, otherwise measured on all
        images returned.

    Raises:
        ValueError: of one line for whatever cannot be used.

    Example:
        >>> images = load("digits", limit=400)
        >>> tuple(images.x.shape), len(images.classes)
        ((400, 1, 8, 8), 10)
        >>> load("synthetic:classes=5,n=200,size=16").x.shape[1:]
        torch.Size([3, 16, 16])
    """
    name = str(dataset)
    root = Path(data_root)
    expanded = os.path.expanduser(name)
    path = Path(expanded)
    # asked of the text: "" is no folder, but Path("") is the working directory
    is_folder = name not in DATASETS and os.path.isdir(expanded)
    if size is not None and (size < 1 or not is_folder):
        raise ValueError(
            f"size={size} for {name!r}: wanted a side in pixels, for a folder of class folders of"
            " images"
        )
    if part != "all" and (is_folder or name == "digits" or name.startswith("synthetic")):
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
    elif is_folder:
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
    """Pixels, labels and class names of scikit-learn's digits."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = np.rint(images.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    return x, labels, [str(k) for k in range(10)]


def _torchvision(
    kind: str, megabytes: int, root: Path, download: bool, part: str
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Pixels, labels and class names of a data set of torchvision.

    Parameters:
        kind: name of its class.
        megabytes: size of the download, for the error message.
        root, download, part: as for `load`.
    """
    from mia_nb._torchvision import datasets

    dataset = getattr(datasets(), kind)
    splits = []
    try:
        if part in ("all", "train"):
            splits.append(dataset(root, train=True, download=download))
        if part in ("all", "test"):
            splits.append(dataset(root, train=False, download=download))
    except (RuntimeError, OSError) as error:
        if download:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{kind} could not be downloaded into {root}: {reason}") from error
        raise ValueError(
            f"{kind} is not in {root}, or not intact: allow it with download=True ({megabytes} MB)"
        ) from error
    x = np.concatenate([np.asarray(split.data) for split in splits])
    y = np.concatenate([np.asarray(split.targets) for split in splits])
    return _channels_first(x), y, splits[0].classes


def _channels_first(x: np.ndarray) -> np.ndarray:
    """Images (N, C, H, W) from (N, H, W) or (N, H, W, C)."""
    return x[:, None] if x.ndim == 3 else np.ascontiguousarray(x.transpose(0, 3, 1, 2))


OFFICIAL_PARTS: dict[str, Callable] = {  # name: the function that reads its parts
    "cifar10": partial(_torchvision, "CIFAR10", 170),
    "cifar100": partial(_torchvision, "CIFAR100", 169),
    "mnist": partial(_torchvision, "MNIST", 12),
    "fashion_mnist": partial(_torchvision, "FashionMNIST", 31),
    "tiny_imagenet": tiny_imagenet,
}
DATASETS = ("digits", *OFFICIAL_PARTS)


def _synthetic(options: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Random images by options such as "classes=10,n=2000".

    Each class has a pattern, a random mixture of the nine lowest cosines per channel, which models
    can learn. The noise of each image can only be memorised.
    """
    values = _synthetic_options(options)
    classes = values["classes"]
    n = values["n"]
    size = values["size"]
    channels = values["channels"]
    pixels = size * size * channels
    check_budget(f"synthetic: {n:,} images of {pixels:,} values", pixels * (16 * n + 12 * classes))
    rng = np.random.default_rng([4, values["seed"]])
    waves = np.cos(np.pi * np.arange(3)[:, None] * (np.arange(size) + 0.5) / size)  # (3, size)
    weights = rng.normal(size=(classes, channels, 3, 3))
    patterns = np.einsum("kcab,ai,bj->kcij", weights, waves, waves)
    y = rng.permutation(np.arange(n) % classes)
    noise = rng.standard_normal((n, channels, size, size), dtype=np.float32)
    x = 0.5 + 0.08 * patterns.astype(np.float32)[y] + values["noise"] * noise
    return np.rint(255 * x.clip(0, 1)).astype(np.uint8), y, [str(k) for k in range(classes)]


def _synthetic_options(text: str) -> dict[str, int | float]:
    """All options of synthetic images, those that the text leaves out at their defaults."""
    values = dict(SYNTHETIC)
    for option in filter(None, text.split(",")):
        key, _, value = option.partition("=")
        if key not in values:
            raise ValueError(f"synthetic has no option {key!r}; known: {', '.join(SYNTHETIC)}")
        try:
            values[key] = type(SYNTHETIC[key])(value)
        except ValueError:
            raise ValueError(
                f"synthetic: {key}={value!r}; wanted a number such as {SYNTHETIC[key]}"
            ) from None
    possible = (
        2 <= values["classes"] <= values["n"]
        and values["size"] > 0
        and 1 <= values["channels"] <= 4
        and values["seed"] >= 0
        and 0 <= values["noise"] < math.inf
    )
    if not possible:
        wanted = "2 <= classes <= n, size > 0, 1 to 4 channels, seed >= 0, finite noise >= 0"
        raise ValueError(f"synthetic: {values}; wanted {wanted}")
    return values


def _npz(path: Path, part: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Pixels, labels and class names of a .npz file in one of the layouts of `load`."""
    wanted = [f"{split}_{kind}" for split in SPLITS for kind in ("images", "labels")]
    arrays, all_names = npz_arrays(path, [*wanted, *KERAS, "classes"])
    if "train_images" not in arrays:
        arrays = {KERAS.get(name, name): array for name, array in arrays.items()}
    splits = [split for split in SPLITS if f"{split}_images" in arrays]
    for needed in ("train_images", *(f"{split}_labels" for split in splits)):
        if needed not in arrays:
            holds = ", ".join(all_names[:9]) or "nothing"
            raise ValueError(f"{path.name} holds {holds}; it lacks {needed}")
    if part != "all" and len(splits) == 1:
        raise ValueError(
            f"part={part!r}: {path.name} holds train_images alone; wanted val_images or"
            " test_images too, or part='all'"
        )
    if part == "train":
        splits = splits[:1]
    elif part == "test":
        splits = splits[1:]
    _check_splits(arrays, splits, path.name)
    images = [arrays[f"{split}_images"] for split in splits]
    labels = [arrays[f"{split}_labels"] for split in splits]
    if images[0].ndim != 5:  # no frames of events, which `from_arrays` takes as they are
        # each split by itself: floats may be within 0..1 in one and within 0..255 in another
        images = [_channels_first(as_uint8(array, path.name)) for array in images]
    x = np.concatenate(images)
    y = np.concatenate([array.reshape(-1) for array in labels])
    y, classes = check_labels(y, len(x), arrays.get("classes"), path.name)
    return x, y, classes


def _check_splits(arrays: dict[str, np.ndarray], splits: list[str], name: str) -> None:
    """ValueError for images of unusable or different shapes, and labels that do not fit them."""
    shape = arrays[f"{splits[0]}_images"].shape
    is_events = len(shape) == 5
    is_still = len(shape) == 3 or (len(shape) == 4 and shape[3] <= 4)
    if not is_events and not is_still:
        raise ValueError(
            f"{name}: images have shape {shape}; wanted (N, H, W) or (N, H, W, C) with C <= 4,"
            " or frames of events (N, T, C, H, W)"
        )
    for split in splits:
        x = arrays[f"{split}_images"]
        y = arrays[f"{split}_labels"]
        if x.shape[1:] != shape[1:]:
            raise ValueError(f"{name}: {split}_images are {x.shape[1:]}, not {shape[1:]}")
        if x.shape[:1] != y.shape[:1] or y.shape[1:] not in ((), (1,)):
            raise ValueError(
                f"{name}: {split}_labels have shape {y.shape}; wanted one class number for"
                f" each of {len(x)} images"
            )
