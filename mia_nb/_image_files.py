"""Image files and .npz members to arrays.

Sizes are read first; images are decoded once and cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from mia_nb._files import header_in, replacing
from mia_nb.digests import digest

# tried whatever a file's suffix says; other formats are tried where the suffix says so
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# EPS starts a program; of the others Pillow reads no more than the header
NOT_READ = {"EPS", "BUFR", "GRIB", "HDF5", "MPEG", "WMF"}
# names and suffixes of what may lie among images without being one; so may hidden files
BESIDE = {
    *("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r"),
    *("readme", "license", "licence", "copying", "notice", "authors", "changelog"),
}
BESIDE_SUFFIXES = {
    *(".txt", ".md", ".rst", ".html", ".log", ".csv", ".tsv", ".json", ".jsonl", ".xml"),
    *(".yaml", ".yml", ".toml", ".ini", ".sha256", ".md5"),
}
BESIDE_FOLDERS = {"@eadir", "__macosx"}  # thumbnails and resource forks
HEADER = 20_000  # bytes, of which NumPy takes 10,000 as a header
BLOCK = 256  # images that a thread decodes at a time: a task for each image costs memory and time
BUDGET = "MIA_NB_MAX_GB"
TINY = "tiny-imagenet-200"
TINY_URL = f"http://cs231n.stanford.edu/{TINY}.zip"


def check_budget(what: str, size: int) -> None:
    """ValueError if `size` bytes are more than the environment variable MIA_NB_MAX_GB allows.

    It counts 10^9 bytes; without it half of the memory of this machine, or of its control group.
    """
    text = os.environ.get(BUDGET, "")
    try:
        most = float(text) * 1e9 if text else _memory() / 2
    except ValueError:
        most = math.nan
    if not most > 0:
        raise ValueError(f"{BUDGET}={text!r}: wanted a number of gigabytes, such as 8")
    if size > most:
        raise ValueError(
            f"{what} would take {size / 1e9:,.1f} GB of memory, and {most / 1e9:,.1f} are allowed: "
            f"take fewer or smaller images, or raise {BUDGET}"
        )


def _memory() -> float:
    """Bytes that this process may use, as far as it can be known."""
    limits = [math.inf]
    with contextlib.suppress(AttributeError, OSError, ValueError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kind, group = line.split(":", 2)
            name = {"": "memory.max", "memory": "memory.limit_in_bytes"}.get(kind, "none")
            for folder in (group, *Path(group).parents):
                with contextlib.suppress(OSError, ValueError):  # "max" is no number
                    limits.append(int(Path(f"/sys/fs/cgroup/{kind}/{folder}/{name}").read_text()))
    return min(limits)


def npz_arrays(path: Path, wanted: Collection[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Those of the `wanted` arrays that an .npz holds, and the names of all its members.

    Nothing else is read, and nothing before sizes by directory and headers agree and are allowed.
    Raises ValueError of one line for a file that is no .npz, and for members that are no arrays.
    """
    if not os.path.isfile(path):
        raise ValueError(f"{path} {'is no file' if os.path.exists(path) else 'does not exist'}")
    try:
        with zipfile.ZipFile(path) as packed:
            members = members_by_name(packed)
            chosen = {name: members[name] for name in wanted if name in members}
            size = sum(_array_bytes(packed, entry) for entry in chosen.values())
            check_budget(" and ".join(chosen), size)
            arrays = {}
            for name, entry in chosen.items():
                with packed.open(entry) as file:
                    arrays[name] = npy.read_array(file, allow_pickle=False)
    except Exception as error:  # zip files, compression and headers fail in many kinds
        raise ValueError(
            f"{path} cannot be read as .npz of plain arrays: {_line(error)}"
        ) from error
    return arrays, list(members)


def members_by_name(packed: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Members of an .npz by the names of their arrays; ValueError where two have one name, as
    readers would take different ones.
    """
    members: dict[str, zipfile.ZipInfo] = {}
    for entry in packed.infolist():
        name = entry.filename.removesuffix(".npy")
        if name in members:
            both = " and ".join(sorted({members[name].filename, entry.filename}))
            raise ValueError(f"it holds the array {name} twice ({both}): keep one of them")
        members[name] = entry
    return members


def _array_bytes(packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    """Bytes of a member's array by its header; ValueError unless so many follow it."""
    with packed.open(entry) as file:
        head = BytesIO(file.read(HEADER))  # a header may claim to be of 4 GB itself
    try:
        shape, _, dtype = header_in(head)
    except Exception as error:
        raise ValueError(f"{entry.filename} is no array: {_line(error)}") from error
    claimed = math.prod(shape) * dtype.itemsize
    actual = entry.file_size - head.tell()
    if dtype.hasobject:
        raise ValueError(f"{entry.filename} holds Python objects, which could run code when read")
    if min(shape, default=0) < 0 or claimed != actual:
        raise ValueError(
            f"{entry.filename} claims {claimed:,} bytes in {shape}, and has {actual:,}"
        )
    return claimed


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def class_folders(
    path: Path, cache: Path, size: int | None = None
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """x (N, C, H, W), y (N,) and class names of path/<class>/<image files>.

    All that the installed Pillow reads is an image. Hidden files and what may lie beside images
    (`BESIDE`) are passed over; ValueError for any other file, and for images in folders of a class
    folder, which would be missing in silence.

    Parameters:
        size: side in pixels; the largest square in the middle of each image, scaled. None: as they
            are.
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
        stamp = [(name, *_size_and_time((path / name).stat())) for name in names]
    except OSError as error:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from error
    stamp.append(("upright", size))
    x = _cached(cache, path, stamp, lambda: _decode(names, lambda name: _open(path / name), size))
    return x, np.array(labels), folders


def _images_in(path: Path, folder: str) -> tuple[list[str], list[str]]:
    """Names of the images of a class folder, sorted, and of files that would be left out."""

    def refuse(error: OSError) -> None:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from error

    suffixes = _readable()
    images = []
    others = []
    visited = set()
    for inside, folders, files in os.walk(path / folder, onerror=refuse, followlinks=True):
        folders[:] = [name for name in folders if not _is_beside(name, BESIDE_FOLDERS)]
        real = os.path.realpath(inside)
        if real in visited:  # links may lead in a circle
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
    """Why a folder is refused in which these files would be left out."""
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


def _open(file: Path) -> BinaryIO:
    if file.exists() and not file.is_file():
        raise OSError("it is no regular file (a pipe, a socket or a device); remove it")
    return open(file, "rb")


def _readable() -> dict[str, str]:
    """{suffix: format} of all that the installed Pillow, with its plugins, reads."""
    from PIL import Image

    suffixes = Image.registered_extensions()  # it loads the plugins, of which OPEN is a list then
    reads = (set(Image.OPEN) | {"MPO"}) - NOT_READ  # MPO is opened as JPEG
    return {suffix: kind for suffix, kind in suffixes.items() if kind in reads}


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def tiny_imagenet(
    root: Path, download: bool, part: str
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The 100,000 training images and the 10,000 for validation, which are the test part here: the
    official test images have no labels.

    Classes are WordNet ids.
    """
    x, y, classes, train_images = _tiny_parts(root, download)
    of_part = {"all": slice(None), "train": slice(train_images), "test": slice(train_images, None)}
    return x[of_part[part]], y[of_part[part]], classes


def _tiny_parts(root: Path, download: bool) -> tuple[np.ndarray, np.ndarray, list[str], int]:
    """All labelled images, their labels, the classes, and how many are training images."""
    folder = root / TINY
    archive = root / f"{TINY}.zip"
    if folder.is_dir():
        names = [file.relative_to(root).as_posix() for file in folder.rglob("*.JPEG")]
        stamp = [(name, *_size_and_time((root / name).stat())) for name in sorted(names)]
        return _read_tiny(root / ".cache", folder, stamp, names, lambda name: _open(root / name))
    if not archive.is_file():
        _fetch_tiny(archive, download)
    try:
        with zipfile.ZipFile(archive) as packed:
            stamp = [_size_and_time(archive.stat())]
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
    x = _cached(cache, source, stamp, lambda: _decode(files, read))
    return x, y, classes.tolist(), len(train)


def _size_and_time(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_size, stat.st_mtime_ns


def _formats(name: str) -> list[str]:
    """The formats that a file of this name may have."""
    from PIL import Image

    known = _readable()
    kinds = dict.fromkeys((*FORMATS, known.get(_suffix(name))))
    return [kind for kind in kinds if kind in Image.OPEN]


@contextlib.contextmanager
def _opened(name: str, read: Callable[[str], BinaryIO]) -> Iterator:
    """The image of a file, nothing decoded but its header; whatever fails, a ValueError of one
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
        raise ValueError(f"{printable} cannot be read as an 8-bit image: {_line(error)}") from error


def _decode(
    names: list[str], read: Callable[[str], BinaryIO], size: int | None = None
) -> np.ndarray:
    """(N, C, H, W) uint8 of the named files, which must agree in size or are made to; C = 1 when
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
                    pixels = _pixels(image, size)  # else it is refused undecoded
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
    """(3, H, W) uint8 of an opened image, turned as its orientation says; with a size the square
    in its middle, scaled.
    """
    from PIL import Image, ImageOps

    image.load()
    with contextlib.suppress(Exception):  # who writes a broken orientation has none
        ImageOps.exif_transpose(image, in_place=True)
    colours = image.convert("RGB")
    if size is not None:
        colours = ImageOps.fit(colours, (size, size), Image.Resampling.BICUBIC)
    return np.asarray(colours).transpose(2, 0, 1)


def _cached(
    folder: Path, source: Path, stamp: list, decode: Callable[[], np.ndarray]
) -> np.ndarray:
    """decode(), or its result of last time.

    A file's name holds source, stamp and checksum; what does not fit is rebuilt.
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
    try:  # a cache that cannot be written (read-only, full disk) is no cache, and no error
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(final) as file:
            np.save(file, x)
        for old in set(folder.glob(f"{prefix}-*")) - {final}:
            old.unlink(missing_ok=True)
        for part in folder.glob(f".tmp-*-{prefix}-*"):  # of writers that died
            if time.time() - part.stat().st_mtime > 3600:
                part.unlink(missing_ok=True)
    except OSError:
        pass
    return x
