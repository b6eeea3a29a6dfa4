"""Image files to one uint8 array, decoded once and cached. Only `data` uses it."""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm"}
TINY = "tiny-imagenet-200"
TINY_URL = f"http://cs231n.stanford.edu/{TINY}.zip"


def class_folders(path: Path, cache: Path, size: int | None = None) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """x (N, C, H, W), y (N,) and class names of path/<class>/<image files>; hidden files and unknown suffixes are skipped.

    size: side in pixels; the largest square in the middle of each image, scaled. None: as they are.
    """
    folders = sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith("."))
    if len(folders) < 2:
        raise ValueError(
            f"{path} holds {len(folders)} class folders; wanted {path}/<class>/<image files> for two or more classes"
        )
    stamp, labels = [], []
    for label, folder in enumerate(folders):
        try:
            found = sorted(_images_in(path, folder))
        except OSError as error:
            raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from error
        if not found:
            deeper = any((path / folder).glob("*/"))
            fix = f"it holds folders: is the data set {path / folder}?" if deeper else "remove it or fill it"
            raise ValueError(f"class folder {path / folder} holds no images ({', '.join(sorted(SUFFIXES))}); {fix}")
        stamp += found
        labels += [label] * len(found)
    names = [name for name, *_ in stamp]
    stamp += [] if size is None else [("size", size, 0)]
    x = _cached(cache, path, stamp, lambda: _decode(names, lambda name: (path / name).read_bytes(), size))
    return x, np.array(labels), folders


def _images_in(path: Path, folder: str):
    with os.scandir(path / folder) as entries:
        for entry in entries:
            if entry.name[0] != "." and os.path.splitext(entry.name)[1].lower() in SUFFIXES and not entry.is_dir():
                yield (f"{folder}/{entry.name}", *_size_and_time(entry.stat()))


def tiny_imagenet(root: Path, download: bool) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The 100,000 training and 10,000 validation images; the official test images have no labels. Classes are WordNet ids."""
    folder, archive = root / TINY, root / f"{TINY}.zip"
    if folder.is_dir():
        names = [file.relative_to(root).as_posix() for file in folder.rglob("*.JPEG")]
        stamp = [(name, *_size_and_time((root / name).stat())) for name in sorted(names)]
        return _tiny_parts(root / ".cache", folder, stamp, names, lambda name: (root / name).read_bytes())
    if not archive.is_file():
        _fetch_tiny(archive, download)
    try:
        with zipfile.ZipFile(archive) as packed:
            stamp = [_size_and_time(archive.stat())]
            return _tiny_parts(root / ".cache", archive, stamp, packed.namelist(), packed.read)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{archive} is not an intact zip archive ({error}): remove it and fetch it again") from error


def _fetch_tiny(archive: Path, download: bool):
    if not download:
        raise ValueError(
            f"tiny_imagenet is not in {archive.parent}: allow it with download=true (237 MB), or put {archive.name} there"
        )
    from torch.hub import download_url_to_file

    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        download_url_to_file(TINY_URL, str(archive))
    except OSError as error:
        raise ValueError(f"tiny_imagenet could not be downloaded from {TINY_URL}: {error}") from error


def _tiny_parts(cache: Path, source: Path, stamp: list, names: list[str], read: Callable[[str], bytes]):
    try:
        rows = [line.split("\t") for line in read(f"{TINY}/val/val_annotations.txt").decode().splitlines()]
    except (KeyError, OSError) as error:
        raise ValueError(f"{source} holds no val/val_annotations.txt: it is not the official {TINY}") from error
    train = sorted(name for name in names if name.startswith(f"{TINY}/train/") and name.endswith(".JPEG"))
    files = train + [f"{TINY}/val/images/{row[0]}" for row in rows]
    of_file = [name.split("/")[2] for name in train] + [row[1] for row in rows]
    classes, y = np.unique(of_file, return_inverse=True)
    return _cached(cache, source, stamp, lambda: _decode(files, read)), y, classes.tolist()


def _size_and_time(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_size, stat.st_mtime_ns


def _decode(names: list[str], read: Callable[[str], bytes], size: int | None = None) -> np.ndarray:
    """(N, C, H, W) uint8 of the named files, which must agree in size or are made to; C = 1 when all are grey, else 3."""
    from PIL import Image, ImageOps
    from tqdm.auto import tqdm

    def pixels(name):
        try:
            with Image.open(BytesIO(read(name))) as image:
                if image.mode[0] in "IF":
                    raise ValueError(f"mode {image.mode} has more than 8 bits per channel")
                colours = image.convert("RGB")
                colours = colours if size is None else ImageOps.fit(colours, (size, size), Image.Resampling.BICUBIC)
                return np.asarray(colours).transpose(2, 0, 1), image.mode in ("1", "L", "LA")
        except Exception as error:  # Pillow's plugins raise many kinds
            raise ValueError(f"{name} cannot be read as an 8-bit image: {error}") from error

    shape = pixels(names[0])[0].shape
    x, grey = np.empty((len(names), *shape), np.uint8), np.empty(len(names), bool)

    def fill(block):
        for i in block:
            image, grey[i] = pixels(names[i])
            if image.shape != shape:
                sizes = "{2}x{1} and {5}x{4}".format(*shape, *image.shape)
                raise ValueError(
                    f"image sizes differ: {names[0]} and {names[i]} are {sizes} (width x height); choose one with size="
                )
            x[i] = image
        return len(block)

    blocks = [range(start, min(start + 256, len(names))) for start in range(0, len(names), 256)]
    quiet = os.environ.get("MIA_NB_MODE") == "batch"
    bar = tqdm(total=len(names), desc="reading images", unit="image", leave=False, disable=quiet)
    with bar, ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for count in pool.map(fill, blocks):
            bar.update(count)
    return np.ascontiguousarray(x[:, :1]) if grey.all() else x


def _cached(folder: Path, source: Path, stamp: list, decode: Callable[[], np.ndarray]) -> np.ndarray:
    """decode(), or its result of last time. A file's name holds source, stamp and checksum; what does not fit is rebuilt."""
    prefix = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]
    key = f"{prefix}-{hashlib.sha256(repr(stamp).encode()).hexdigest()[:32]}"
    for file in folder.glob(f"{key}-*.npy"):
        try:
            x = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            continue
        if file.stem == f"{key}-{zlib.crc32(x):08x}":
            return x
    x = decode()
    final = folder / f"{key}-{zlib.crc32(x):08x}.npy"
    part = folder / f"{prefix}-{os.getpid()}.part"
    try:  # a cache that cannot be written (read-only, full disk) is no cache, and no error
        folder.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            np.save(file, x)
        part.replace(final)
        for old in set(folder.glob(f"{prefix}-*")) - {final}:
            old.unlink(missing_ok=True)
    except OSError:
        if part.exists():
            part.unlink()
    return x
