"""Tiny ImageNet, from its official archive or the unpacked folder."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np

from mia_nb.data.image_files import cached, decode, open_regular, size_and_time

TINY = "tiny-imagenet-200"
TINY_URL = f"http://cs231n.stanford.edu/{TINY}.zip"


def tiny_imagenet(
    root: Path, download: bool, part: str
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The 100,000 training images and the 10,000 validation images, which are the test part here,
    since the official test images have no labels. Classes are WordNet ids.
    """
    x, y, classes, train_images = _tiny_parts(root, download)
    of_part = {"all": slice(None), "train": slice(train_images), "test": slice(train_images, None)}
    return x[of_part[part]], y[of_part[part]], classes


def _tiny_parts(root: Path, download: bool) -> tuple[np.ndarray, np.ndarray, list[str], int]:
    """All labelled images, their labels, the classes, and the number of training images."""
    folder = root / TINY
    archive = root / f"{TINY}.zip"
    if folder.is_dir():
        names = [file.relative_to(root).as_posix() for file in folder.rglob("*.JPEG")]
        stamp = [(name, *size_and_time((root / name).stat())) for name in sorted(names)]
        return _read_tiny(
            root / ".cache", folder, stamp, names, lambda name: open_regular(root / name)
        )
    if not archive.is_file():
        _fetch_tiny(archive, download)
    try:
        with zipfile.ZipFile(archive) as packed:
            stamp = [size_and_time(archive.stat())]
            return _read_tiny(
                root / ".cache",
                archive,
                stamp,
                packed.namelist(),
                lambda name: BytesIO(packed.read(name)),
            )
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"{archive} is not an intact zip archive ({error}): remove it and fetch it again"
        ) from error


def _fetch_tiny(archive: Path, download: bool):
    if not download:
        raise ValueError(
            f"tiny_imagenet is not in {archive.parent}: allow it with download=True (237 MB), or"
            f" put {archive.name} there"
        )
    from torch.hub import download_url_to_file

    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        download_url_to_file(TINY_URL, str(archive))
    except OSError as error:
        raise ValueError(
            f"tiny_imagenet could not be downloaded from {TINY_URL}: {error}"
        ) from error


def _read_tiny(
    cache: Path, source: Path, stamp: list, names: list[str], read: Callable[[str], BinaryIO]
) -> tuple[np.ndarray, np.ndarray, list[str], int]:
    try:
        with read(f"{TINY}/val/val_annotations.txt") as file:
            rows = [line.split("\t") for line in file.read().decode().splitlines()]
    except (KeyError, OSError) as error:
        raise ValueError(
            f"{source} holds no val/val_annotations.txt: it is not the official {TINY}"
        ) from error
    train = sorted(
        name for name in names if name.startswith(f"{TINY}/train/") and name.endswith(".JPEG")
    )
    files = train + [f"{TINY}/val/images/{row[0]}" for row in rows]
    of_file = [name.split("/")[2] for name in train] + [row[1] for row in rows]
    classes, y = np.unique(of_file, return_inverse=True)
    x = cached(cache, source, stamp, lambda: decode(files, read))
    return x, y, classes.tolist(), len(train)
