"""Small stand-ins for CIFAR-10, CIFAR-100, Fashion-MNIST and Tiny-ImageNet in the files in which
these are published.
"""

from __future__ import annotations

import pickle
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from mia_nb.data import load

TRAIN, TEST = 200, 40
# torchvision knows the published files by their checksums, which no stand-in has
ANY_CHECKSUM = """
from mia_nb import _torchvision
_torchvision.module("torchvision.datasets.cifar").check_integrity = lambda *_: True
"""


def patterns(size: int, channels: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, H, W, C) that networks can learn, and their labels."""
    options = f"classes={classes},n={TRAIN + TEST},size={size},channels={channels},noise=1"
    images = load(f"synthetic:{options}")
    return images.x.numpy().transpose(0, 2, 3, 1), images.y.numpy()


def write_all(root: Path) -> Path:
    """The four data sets below a folder, which is what `data_root` wants."""
    _cifar10(root / "cifar-10-batches-py")
    _cifar100(root / "cifar-100-python")
    _fashion_mnist(root / "FashionMNIST" / "raw")
    _tiny_imagenet(root / "tiny-imagenet-200.zip")
    return root


def _rows(x: np.ndarray) -> np.ndarray:
    """Images as CIFAR has them: a row each, channel after channel."""
    return x.transpose(0, 3, 1, 2).reshape(len(x), -1)


def _cifar10(folder: Path) -> None:
    folder.mkdir(parents=True)
    x, y = patterns(32, 3)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for name, images, labels in zip(names, np.split(x, 6), np.split(y, 6), strict=True):
        batch = {"data": _rows(images), "labels": labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(batch))
    meta = {"label_names": [f"class {k}" for k in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta))


def _cifar100(folder: Path) -> None:
    folder.mkdir(parents=True)
    x, y = patterns(32, 3, 100)
    for name, part in (("train", slice(TRAIN)), ("test", slice(TRAIN, None))):
        batch = {"data": _rows(x[part]), "fine_labels": y[part].tolist()}
        (folder / name).write_bytes(pickle.dumps(batch))
    meta = {"fine_label_names": [f"class {k}" for k in range(100)]}
    (folder / "meta").write_bytes(pickle.dumps(meta))


def _fashion_mnist(folder: Path) -> None:
    folder.mkdir(parents=True)
    x, y = patterns(28, 1)
    for name, part in (("train", slice(TRAIN)), ("t10k", slice(TRAIN, None))):
        images, labels = x[part], y[part].astype(np.uint8)
        head = np.array([2051, len(labels), 28, 28], ">i4").tobytes()
        (folder / f"{name}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = np.array([2049, len(labels)], ">i4").tobytes()
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def _tiny_imagenet(archive: Path) -> None:
    x, y = patterns(64, 3)
    lines = []
    with zipfile.ZipFile(archive, "w") as packed:
        for i, (image, label) in enumerate(zip(x, y, strict=True)):
            wnid = f"n{label:08}"
            name = f"train/{wnid}/images/{wnid}_{i}.JPEG"
            if i >= TRAIN:
                name = f"val/images/val_{i}.JPEG"
                lines.append(f"val_{i}.JPEG\t{wnid}\t0\t0\t63\t63\n")
            content = BytesIO()
            Image.fromarray(image).save(content, "JPEG")
            packed.writestr(f"tiny-imagenet-200/{name}", content.getvalue())
        packed.writestr("tiny-imagenet-200/val/val_annotations.txt", "".join(lines))
