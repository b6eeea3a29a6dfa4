"""Tiny ImageNet, from its official archive or the unpacked folder."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np

from mia_nb.data.image_files import decoded, labelled_files

TINY = "tiny-imagenet-200"
TINY_URL = f"http://cs231n.stanford.edu/{TINY}.zip"


def tiny_imagenet(
    root: Path, download: bool, part: str
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The 100,000 training images and the 10,000 validation images, which are the test part here,
    since the official test images have no labels. Classes are WordNet ids.
    """
    folder = root / TINY
    if not folder.is_dir():
        _unpack(root / f"{TINY}.zip", download)
    files, labels, classes = labelled_files(folder / "train")
    num_train = len(files)
    try:
        rows = (folder / "val" / "val_annotations.txt").read_text().splitlines()
    except OSError as error:
        raise ValueError(
            f"{folder} has no readable val/val_annotations.txt: it is not the official {TINY}"
        ) from error
    for row in rows:
        name, class_name = row.split("\t")[:2]
        files.append(folder / "val" / "images" / name)
        labels.append(classes.index(class_name))
    x = decoded(files, folder, root / ".cache")
    y = np.array(labels)
    if part == "train":
        return x[:num_train], y[:num_train], classes
    if part == "test":
        return x[num_train:], y[num_train:], classes
    return x, y, classes


def _unpack(archive: Path, download: bool) -> None:
    """Unpack the archive beside itself, after downloading it if need be."""
    if not archive.is_file() and not download:
        raise ValueError(
            f"tiny_imagenet is not in {archive.parent}: allow it with download=True (237 MB), or"
            f" put {archive.name} there"
        )
    from torch.hub import download_url_to_file

    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        if not archive.is_file():
            download_url_to_file(TINY_URL, str(archive))
        # renamed when it is complete, so that no part of it is taken for all
        with tempfile.TemporaryDirectory(dir=archive.parent) as unpacked:
            shutil.unpack_archive(archive, unpacked)
            (Path(unpacked) / TINY).rename(archive.parent / TINY)
    except Exception as error:  # damaged archives raise many kinds
        raise ValueError(
            f"tiny_imagenet could not be unpacked or downloaded from {TINY_URL}: {error}; remove"
            f" {archive}, if it is damaged"
        ) from error
