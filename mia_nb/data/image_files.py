"""Arrays from image files in class folders. Images are decoded once and cached."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np

from mia_nb._files import replacing
from mia_nb._memory import check_budget
from mia_nb.digests import digest

# what torchvision's suffixes stand for; other formats may start programs (EPS) or lack pixels
FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
BLOCK = 256  # images that a thread decodes per task: one task per image costs memory and time


def class_folders(
    path: Path, cache: Path, size: int | None
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """x (N, C, H, W), y (N,) and class names of path/<class>/<image files>.

    Parameters:
        path: the folder of class folders.
        cache: the folder of decoded images.
        size: side in pixels to which the largest square in the middle of each image is scaled;
            None: images keep their size.

    Raises:
        ValueError: for no class folder, a class without images, images deeper inside, and as
            `decoded` does.
    """
    files, labels, classes = labelled_files(path)
    deeper = [file for file in files if len(file.relative_to(path).parts) > 2]
    if deeper:
        raise ValueError(
            f"{deeper[0]} lies deeper than {path}/<class>/<image file> (images there:"
            f" {len(deeper):,}): move them up, or name the folder that holds the class folders"
        )
    return decoded(files, path, cache, size), np.array(labels), classes


def labelled_files(path: Path) -> tuple[list[Path], list[int], list[str]]:
    """(image files, their class numbers, class names), in the order of torchvision's ImageFolder.
    Hidden files and folders are left out.
    """
    from mia_nb._torchvision import datasets

    folder = datasets().folder
    try:
        classes = [name for name in folder.find_classes(path)[0] if name[0] != "."]
        numbers = {name: number for number, name in enumerate(classes)}
        samples = folder.make_dataset(path, numbers, folder.IMG_EXTENSIONS)
    except OSError as error:  # torchvision's words: no class folder, or no valid file in one
        raise ValueError(f"{path}: {str(error).strip()}") from error
    files = []
    labels = []
    for name, label in samples:
        file = Path(name)
        if not any(part[0] == "." for part in file.relative_to(path).parts):
            files.append(file)
            labels.append(label)
    present = set(labels)
    for name, number in numbers.items():
        if number not in present:
            raise ValueError(f"{path}: all images of the class {name} are hidden files")
    return files, labels, classes


def decoded(files: list[Path], source: Path, cache: Path, size: int | None = None) -> np.ndarray:
    """(N, C, H, W) uint8 of image files of one size, or scaled to `size`; C = 1 if all are grey,
    else 3.

    They are stored in the folder `cache`, under their names, sizes and times, in place of what was
    stored of `source` before.

    Raises:
        ValueError: for images that would take too much memory, cannot be read, have more than 8
            bits per channel, or differ in size.
    """
    from PIL import Image

    with _refusing(files[0]), Image.open(files[0], formats=FORMATS) as first:
        area = first.width * first.height if size is None else size**2
    check_budget(f"{len(files):,} images of {area:,} pixels", len(files) * 3 * area)
    stamp = []
    for file in files:
        with _refusing(file):
            stat = file.stat()
        stamp.append((os.fspath(file.relative_to(source)), stat.st_size, stat.st_mtime_ns))
    prefix = hashlib.sha256(os.fsencode(source.resolve())).hexdigest()[:16]
    stored = cache / f"{prefix}-{digest(stamp, size)[:32]}.npy"
    with contextlib.suppress(OSError, ValueError, EOFError):  # there is none, or it is damaged
        return np.load(stored, allow_pickle=False)
    x = _decode(files, size)
    with contextlib.suppress(OSError):  # a read-only or full disk: nothing is stored
        cache.mkdir(parents=True, exist_ok=True)
        for old in cache.glob(f"{prefix}-*"):
            old.unlink()
        with replacing(stored) as file:
            np.save(file, x)
    return x


def _decode(files: list[Path], size: int | None) -> np.ndarray:
    from tqdm.auto import tqdm

    first, _ = _pixels(files[0], size)
    x = np.empty((len(files), *first.shape), np.uint8)

    def fill(i: int) -> bool:
        """Decode image i into its place; whether it is grey."""
        pixels, grey = _pixels(files[i], size)
        if pixels.shape != first.shape:
            _, height, width = first.shape
            _, other_height, other_width = pixels.shape
            raise ValueError(
                f"image sizes differ: {files[0]} and {files[i]} are {width}x{height} and"
                f" {other_width}x{other_height} (width x height); choose one with size="
            )
        x[i] = pixels
        return grey

    quiet = os.environ.get("MIA_NB_MODE") == "batch"
    options = {"desc": "reading images", "unit": "image", "leave": False, "disable": quiet}
    with ThreadPool(min(8, os.cpu_count() or 1)) as pool:
        filled = pool.imap(fill, range(len(files)), chunksize=BLOCK)
        grey = list(tqdm(filled, total=len(files), **options))
    return np.ascontiguousarray(x[:, :1]) if all(grey) else x


def _pixels(file: Path, size: int | None) -> tuple[np.ndarray, bool]:
    """(3, H, W) uint8 of an image, turned by its EXIF orientation, and whether it is grey; with
    `size` the square in its middle, scaled to it.
    """
    from PIL import Image, ImageOps

    with _refusing(file), Image.open(file, formats=FORMATS) as image:
        if image.mode[0] in "IF":
            raise ValueError(f"mode {image.mode} has more than 8 bits per channel")
        grey = image.mode in ("1", "L", "LA")
        image.load()
        with contextlib.suppress(Exception):  # a broken orientation is ignored
            ImageOps.exif_transpose(image, in_place=True)
        colours = image.convert("RGB")
    if size is not None:
        colours = ImageOps.fit(colours, (size, size), Image.Resampling.BICUBIC)
    return np.asarray(colours).transpose(2, 0, 1), grey


@contextlib.contextmanager
def _refusing(file: Path) -> Iterator[None]:
    """A context in which any failure is a ValueError of one line that names the file."""
    try:
        yield
    except Exception as error:  # Pillow's plugins raise many kinds
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"{file} cannot be read as an 8-bit image: {reason}") from error
