"""Signals that ship with the package: outputs of networks, trained on halves of all 50,000 CIFAR-10
images, for each of the images. Attacks, statistics and explorers work on them as on a pool of your
own, without training or downloading anything.

    data/cifar10/manifest.json  how each pool was made, checksums of the files (data/README.md)
                 design.npz     labels (N,) uint8 and member (M, N / 8) uint8, bits packed
                 <pool>.npz     margin (2, N, M) uint8, the low and the high bytes of int16: times
                                scale (), which is a power of two; modified_entropy and, of some
                                pools, entropy (2, N, M) uint8, the bytes of float16, natural
                                logarithms; correct (M, N / 8) uint8, bits packed
                 images.png     thumbnails side by side, for the samples that the manifest numbers

`benchmarks/shipping.py` writes them.
"""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import numpy as np

from mia_nb.checks import checked, hint
from mia_nb.types import Signals

PLACES = (Path(__file__).parent.parent / "data", Path(__file__).parent / "published")
FORMAT = 2
PREFIX = "example:"  # marks a name where the key of a pool may stand as well
TILES = 20  # number of thumbnails in a row of images.png
LOGARITHMS = ("entropy", "modified_entropy")
PICTURED = "resnet14"  # the pool whose most exposed images have thumbnails


@checked
def load_example(name: str = "cifar10/resnet14") -> Signals:
    """Signals that ship with the package: of networks trained on halves of 50,000 CIFAR-10 images,
    or of the 1,797 digits.

    Parameters:
        name: data set and pool, such as "cifar10/resnet14". `mia_nb.examples.examples()` lists
            those of CIFAR-10, `examples("digits")` those of the digits.

    Returns: signals of models in complementary pairs, one query; `info` holds the recipe.
    Raises ValueError for an unknown name and for a file that was altered.
    Caveats: margins are rounded to 16 bits; the sorted log-probabilities that the attack `shokri`
    needs are not shipped, entropies only of resnet14, and modified ones only of some pools
    (elsewhere NaN).

    Example:
        >>> signals = load_example("cifar10/resnet14")
        >>> signals.shape[1:]
        (1, 50000)
    """
    dataset, _, pool = name.removeprefix(PREFIX).partition("/")
    folder = _folder(dataset)
    record = _record(folder)
    if pool not in record["pools"]:
        known = [f"{dataset}/{example}" for example in record["pools"]]
        raise ValueError(f"no example {name!r}{hint(name, known)}; there are {', '.join(known)}")
    design = read_arrays(folder, record, "design.npz")
    arrays = read_arrays(folder, record, f"{pool}.npz")
    models = len(arrays["correct"])
    samples = len(design["labels"])
    entropies = {}
    for name in LOGARITHMS:
        if name in arrays:
            entropies[name] = np.exp(_joined(arrays[name], "<f2")[:, None])
        else:
            entropies[name] = np.full((models, 1, samples), np.nan)
    return Signals(
        margin=_joined(arrays["margin"], "<i2")[:, None] / arrays["scale"],
        labels=design["labels"].astype(np.int64),
        member=_unpacked(design["member"][:models], samples),
        population=np.zeros(samples, bool),
        query_kind="plain",
        correct=_unpacked(arrays["correct"], samples)[:, None],
        top_log_p=np.zeros((models, samples, 0), np.float32),
        info={"dataset": dataset, "example": f"{dataset}/{pool}", **record["pools"][pool]["info"]},
        **entropies,
    )


def examples(dataset: str = "cifar10") -> dict[str, dict]:
    """The shipped pools: their names, for `load_example`, and how they were made (recipe, seconds,
    accuracies, versions). Pools without a defense come first, larger ones before smaller ones, and
    among equals the one whose most exposed images have thumbnails.

    Example:
        >>> "cifar10/resnet14" in examples()
        True
    """
    pools = _record(_folder(dataset))["pools"]

    def rank(name: str) -> tuple:
        recipe = pools[name]["info"].get("recipe", {})
        has_defense = bool(recipe.get("defense"))
        return has_defense, -recipe.get("num_models", 0), name != PICTURED, name

    return {f"{dataset}/{name}": pools[name] for name in sorted(pools, key=rank)}


def thumbnails() -> dict[int, np.ndarray]:
    """The shipped CIFAR-10 images by sample number, (3, H, W) uint8: the most exposed, and random
    ones.
    """
    from PIL import Image

    folder = _folder("cifar10")
    record = _record(folder)
    sheet = np.asarray(Image.open(io.BytesIO(_bytes(folder, record, "images.png"))))
    side = sheet.shape[1] // TILES
    rows = sheet.reshape(-1, side, TILES, side, 3).transpose(0, 2, 4, 1, 3)
    tiles = rows.reshape(-1, 3, side, side)
    return dict(zip(record["images"], tiles, strict=False))  # the last row may be padded


def _folder(dataset: str) -> Path:
    """The folder of a shipped data set; ValueError if there is none."""
    folders = [path.parent for place in PLACES for path in sorted(place.glob("*/manifest.json"))]
    for folder in folders:
        if folder.name == dataset:
            return folder
    if not folders:
        raise ValueError(
            f"the folder of the example data set, {PLACES[-1] / dataset}, is missing;"
            " install mia_nb again, or run from a checkout"
        )
    known = sorted({folder.name for folder in folders})
    raise ValueError(
        f"no example data set {dataset!r}{hint(dataset, known)}; there are {', '.join(known)}"
    )


def _record(folder: Path) -> dict:
    record = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    if record["format"] != FORMAT:
        raise ValueError(f"{folder} has format {record['format']}, this version reads {FORMAT}")
    return record


def _bytes(folder: Path, record: dict, name: str) -> bytes:
    content = (folder / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != record["sha256"].get(name):
        raise ValueError(f"{folder / name} was altered (checksum differs); install mia_nb again")
    return content


def read_arrays(folder: Path, record: dict, name: str) -> dict[str, np.ndarray]:
    """The arrays of a file of an example.

    Parameters:
        folder: of the example.
        record: its manifest.
        name: of the file.

    Raises:
        ValueError: for a file that was altered.
    """
    with np.load(io.BytesIO(_bytes(folder, record, name)), allow_pickle=False) as arrays:
        return dict(arrays)


def _joined(parts: np.ndarray, dtype: str) -> np.ndarray:
    """The values (M, N) from their low and high bytes (2, N, M)."""
    low, high = parts.astype("<u2")
    return (low | high << 8).view(dtype).T.astype(float)


def _unpacked(bits: np.ndarray, samples: int) -> np.ndarray:
    return np.unpackbits(bits, axis=1, count=samples).astype(bool)
