"""Arrays from image files in class folders. Images are decoded once and cached."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mia_nb._files import replacing
from mia_nb._memory import check_budget
from mia_nb.digests import digest

# formats that are tried for every suffix; others are tried only for their own suffix
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# EPS starts a program; Pillow reads only the headers of the others
NOT_READ = {"EPS", "BUFR", "GRIB", "HDF5", "MPEG", "WMF"}
# names and suffixes of other files that are allowed among images, as hidden files are
BESIDE = {
    *("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r"),
    *("readme", "license", "licence", "copying", "notice", "authors", "changelog"),
}
BESIDE_SUFFIXES = {
    *(".txt", ".md", ".rst", ".html", ".log", ".csv", ".tsv", ".json", ".jsonl", ".xml"),
    *(".yaml", ".yml", ".toml", ".ini", ".sha256", ".md5"),
}
BESIDE_FOLDERS = {"@eadir", "__macosx"}  # thumbnails and resource forks
BLOCK = 256  # images that a thread decodes per task: one task per image costs memory and time


def class_folders(
    path: Path, cache: Path, size: int | None
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """x (N, C, H, W), y (N,) and class names of path/<class>/<image files>.

    Every file that the installed Pillow reads is an image. Hidden files and those of `BESIDE` are
    skipped. ValueError for any other file, and for images in folders inside a class folder, so that
    none is left out unnoticed.

    Parameters:
        size: side in pixels to which the largest square in the middle of each image is scaled;
            None: images keep their size.
    """
    try:
        folders = sorted(e.name for e in os.scandir(path) if e.is_dir() and e.name[0] != ".")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if len(folders) < 2:
        raise ValueError(
            f"{path} holds {len(folders)} class folders; wanted {path}/<class>/<image files> for"
            " two or more classes"
        )
    names: list[str] = []
    labels: list[int] = []
    left_out: list[str] = []
    for label, folder in enumerate(folders):
        of_class, others = _images_in(path, folder)
        if not of_class and not others:
            raise ValueError(
                f"class folder {path / folder} holds no images (.jpg, .png and all else that Pillow"
                " reads); remove it or fill it"
            )
        names += of_class
        labels += [label] * len(of_class)
        left_out += others
    if left_out:
        raise ValueError(_refusal(path, left_out))
    try:
        stamp = [(name, *size_and_time((path / name).stat())) for name in names]
    except OSError as error:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from error
    stamp.append(("upright", size))
    x = cached(
        cache, path, stamp, lambda: decode(names, lambda name: open_regular(path / name), size)
    )
    return x, np.array(labels), folders


def _images_in(path: Path, folder: str) -> tuple[list[str], list[str]]:
    """Sorted names of the images in a class folder, and names of files that would be left out."""

    def refuse(error: OSError) -> None:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from error

    suffixes = _readable()
    images = []
    others = []
    visited = set()
    for inside, folders, files in os.walk(path / folder, onerror=refuse, followlinks=True):
        folders[:] = [name for name in folders if not _is_beside(name, BESIDE_FOLDERS)]
        real = os.path.realpath(inside)
        if real in visited:  # links may form a circle
            folders.clear()
        visited.add(real)
        for file in files:
            if _is_beside(file, BESIDE) or _suffix(file) in BESIDE_SUFFIXES:
                continue
            name = os.path.relpath(os.path.join(inside, file), path)
            is_image = _suffix(file) in suffixes
            if is_image and not _is_deeper(name):
                images.append(name)
            elif is_image or not _is_deeper(name):
                others.append(name)
    return sorted(images), others


def _is_beside(name: str, known: Collection[str]) -> bool:
    return name[0] == "." or name.lower() in known


def _is_deeper(name: str) -> bool:
    """Whether this names a file in a folder of a class folder."""
    return name.count(os.sep) > 1


def _refusal(path: Path, left_out: list[str]) -> str:
    """The reason for refusing a folder in which these files would be left out."""
    first = min(left_out, key=lambda name: (_is_deeper(name), name))
    printable = first if first.isprintable() else ascii(first)
    if _is_deeper(first):
        reason = f"lies deeper than {path}/<class>/<image files>: move images up"
    else:
        reason = (
            "is no image that the installed Pillow reads: convert images to .png or register"
            " Pillow's plugin for them"
        )
    return f"{printable} in {path} {reason}, all else out ({len(left_out):,} files in all)"


def open_regular(file: Path) -> BinaryIO:
    if file.exists() and not file.is_file():
        raise OSError("it is no regular file (a pipe, a socket or a device); remove it")
    return open(file, "rb")


def _readable() -> dict[str, str]:
    """{suffix: format} of all files that the installed Pillow reads, with its plugins."""
    from PIL import Image

    suffixes = Image.registered_extensions()  # this loads the plugins, which Image.OPEN then lists
    reads = (set(Image.OPEN) | {"MPO"}) - NOT_READ  # MPO is opened as JPEG
    return {suffix: kind for suffix, kind in suffixes.items() if kind in reads}


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def size_and_time(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_size, stat.st_mtime_ns


def _formats(name: str) -> list[str]:
    """The formats that are tried for a file of this name."""
    from PIL import Image

    known = _readable()
    kinds = dict.fromkeys((*FORMATS, known.get(_suffix(name))))
    return [kind for kind in kinds if kind in Image.OPEN]


@contextlib.contextmanager
def _opened(name: str, read: Callable[[str], BinaryIO]) -> Iterator:
    """The image of a file, of which only the header is decoded. Any failure is a ValueError of one
    line.
    """
    from PIL import Image

    printable = name if name.isprintable() else ascii(name)
    try:
        with read(name) as file, Image.open(file, formats=_formats(name)) as image:
            if image.mode[0] in "IF":
                raise ValueError(f"mode {image.mode} has more than 8 bits per channel")
            yield image
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        most = f"{Image.MAX_IMAGE_PIXELS / 1e6:.0f} million"
        advice = "scale it down, or leave it out"
        raise ValueError(f"{printable} has more than {most} pixels: {advice}") from error
    except Exception as error:  # Pillow's plugins raise many kinds
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"{printable} cannot be read as an 8-bit image: {reason}") from error


def decode(
    names: list[str], read: Callable[[str], BinaryIO], size: int | None = None
) -> np.ndarray:
    """(N, C, H, W) uint8 of the named files, which have one size or are scaled to `size`; C = 1 if
    all are grey, else 3.
    """
    from PIL import Image
    from tqdm.auto import tqdm

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", category=UserWarning, module="PIL")  # of damaged EXIF
        with _opened(names[0], read) as first:
            area = first.width * first.height if size is None else size**2
        check_budget(f"{len(names):,} images of {area:,} pixels", len(names) * 3 * area)
        with _opened(names[0], read) as first:
            shape = _pixels(first, size).shape
        x = np.empty((len(names), *shape), np.uint8)
        grey = np.empty(len(names), bool)

        def fill(i: int) -> None:
            """Decode image i into its place; ValueError for another size."""
            pixels = None
            with _opened(names[i], read) as image:
                if size is not None or image.width * image.height == area:
                    pixels = _pixels(image, size)  # else the image is refused without decoding
            if pixels is None or pixels.shape != shape:
                sizes = f"{shape[2]}x{shape[1]} and {image.width}x{image.height}"
                raise ValueError(
                    f"image sizes differ: {names[0]} and {names[i]} are {sizes} (width x height);"
                    " choose one with size="
                )
            x[i] = pixels
            grey[i] = image.mode in ("1", "L", "LA")

        def fill_block(start: int) -> int:
            block = range(start, min(start + BLOCK, len(names)))
            for i in block:
                fill(i)
            return len(block)

        quiet = os.environ.get("MIA_NB_MODE") == "batch"
        bar = tqdm(
            total=len(names), desc="reading images", unit="image", leave=False, disable=quiet
        )
        with bar, ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for count in pool.map(fill_block, range(0, len(names), BLOCK)):
                bar.update(count)
    return np.ascontiguousarray(x[:, :1]) if grey.all() else x


def _pixels(image: Any, size: int | None) -> np.ndarray:
    """(3, H, W) uint8 of an opened image, turned by its EXIF orientation; with `size` the square in
    its middle, scaled to it.
    """
    from PIL import Image, ImageOps

    image.load()
    with contextlib.suppress(Exception):  # a broken orientation is ignored
        ImageOps.exif_transpose(image, in_place=True)
    colours = image.convert("RGB")
    if size is not None:
        colours = ImageOps.fit(colours, (size, size), Image.Resampling.BICUBIC)
    return np.asarray(colours).transpose(2, 0, 1)


def cached(folder: Path, source: Path, stamp: list, decode: Callable[[], np.ndarray]) -> np.ndarray:
    """The stored result of decode(), or decode(), whose result is then stored.

    The name of the stored file holds source, stamp and checksum; a file that does not fit is
    replaced.
    """
    prefix = hashlib.sha256(os.fsencode(source.resolve())).hexdigest()[:16]
    key = f"{prefix}-{digest(stamp)[:32]}"
    for file in folder.glob(f"{key}-*.npy"):
        check_budget(str(source), file.stat().st_size)
        try:
            x = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            continue
        if file.stem == f"{key}-{zlib.crc32(x):08x}":
            return x
    x = decode()
    final = folder / f"{key}-{zlib.crc32(x):08x}.npy"
    try:  # if the cache cannot be written (read-only, full disk), nothing is cached
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(final) as file:
            np.save(file, x)
        for old in set(folder.glob(f"{prefix}-*")) - {final}:
            old.unlink(missing_ok=True)
        for part in folder.glob(f".tmp-*-{prefix}-*"):  # left by writers that died
            if time.time() - part.stat().st_mtime > 3600:
                part.unlink(missing_ok=True)
    except OSError:
        pass
    return x
