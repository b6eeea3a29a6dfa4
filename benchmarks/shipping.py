"""Writes the signals that travel with the package, in the form that `mia_nb.examples` reads."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import numpy as np

from mia_nb._files import replacing
from mia_nb.examples import FORMAT, LOGARITHMS, TILES, read_arrays
from mia_nb.types import Signals


def write(
    place: Path, pool: str, signals: Signals, about: dict, names: tuple[str, ...] = LOGARITHMS
) -> None:
    """Add the signals of a pool to an example's folder, in numbers of 16 bits and bits.

    Parameters:
        place: the folder, whose design (labels, membership) the first pool written sets.
        pool: its name there.
        signals: (M, 1, N), without a population; a pool with fewer models has the design's first.
        about: what the manifest records of it; `info` in it becomes the signals' `info`.
        names: which of the entropies travel.

    Raises ValueError for signals with another design.
    """
    place.mkdir(parents=True, exist_ok=True)
    path = place / "manifest.json"
    record = json.loads(path.read_text()) if path.exists() else {"format": FORMAT, "sha256": {}}
    design = {
        "labels": signals.labels.astype(np.uint8),
        "member": np.packbits(signals.member, axis=1),
    }
    if (place / "design.npz").exists():
        stored = read_arrays(place, record, "design.npz")
        if not all(np.array_equal(stored[n][: len(design[n])], design[n]) for n in design):
            raise ValueError(f"{pool} has other labels or members than the pools in {place}")
    else:
        _write(place, record, "design.npz", design)
    # ties among rounded margins decide rates at few false positives: as fine as 16 bits allow
    scale = 2.0 ** np.floor(np.log2(32767 / max(np.abs(signals.margin).max(), 1e-3)))
    arrays = {"margin": _split(np.round(signals.margin[:, 0] * scale), "<i2"), "scale": scale}
    arrays["correct"] = np.packbits(signals.correct[:, 0], axis=1)
    with np.errstate(divide="ignore"):
        arrays |= {n: _split(np.log(getattr(signals, n)[:, 0]), "<f2") for n in names}
    _write(place, record, f"{pool}.npz", arrays)
    record.setdefault("pools", {})[pool] = about
    _write_record(path, record)


def write_images(place: Path, numbers: list[int], x: np.ndarray) -> None:
    """Put thumbnails into an example's folder.

    Parameters:
        place: the folder.
        numbers: of the samples, a multiple of 20.
        x: (n, 3, H, W) uint8, their images.
    """
    from PIL import Image

    record = json.loads((place / "manifest.json").read_text())
    side = x.shape[-1]
    rows = x.reshape(-1, TILES, 3, side, side).transpose(0, 3, 1, 4, 2)
    buffer = io.BytesIO()
    Image.fromarray(rows.reshape(-1, TILES * side, 3)).save(buffer, "png", optimize=True)
    _put(place, record, "images.png", buffer.getvalue())
    record["images"] = [int(number) for number in numbers]
    _write_record(place / "manifest.json", record)


def _write_record(path: Path, record: dict) -> None:
    with replacing(path) as file:
        file.write((json.dumps(record, indent=1, sort_keys=True) + "\n").encode())


def _write(place: Path, record: dict, name: str, arrays: dict[str, np.ndarray]) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    _put(place, record, name, buffer.getvalue())


def _put(place: Path, record: dict, name: str, content: bytes) -> None:
    with replacing(place / name) as file:
        file.write(content)
    record["sha256"][name] = hashlib.sha256(content).hexdigest()


def _split(values: np.ndarray, dtype: str) -> np.ndarray:
    """The bytes of (M, N) values as numbers of 16 bits, (2, N, M): apart they compress better."""
    bits = np.ascontiguousarray(values.T).astype(dtype).view("<u2")
    return np.stack([bits & 255, bits >> 8]).astype(np.uint8)
