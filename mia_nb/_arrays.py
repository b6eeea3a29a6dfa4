"""Arrays in untrusted .npy and .npz files: none is read before its header agrees with its size."""

from __future__ import annotations

import io
import math
import mmap
import os
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy

from mia_nb._memory import check_budget

HEADER = 20_000  # bytes; NumPy accepts headers of up to 10,000


def header_in(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """(shape, whether columns come first, dtype) that the header of an .npy claims."""
    read = {
        (1, 0): npy.read_array_header_1_0,
        (2, 0): npy.read_array_header_2_0,
    }
    return read[npy.read_magic(file)](file)


def array_in(data: bytes | mmap.mmap) -> np.ndarray:
    """The array in the bytes of an .npy, as a view of them; its header is compared with the number
    of bytes first.
    """
    head = io.BytesIO(data[: 1 << 16])
    shape, fortran, dtype = header_in(head)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not read (allow_pickle=False)")
    if head.tell() + math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"its header says {shape} {dtype}, and it has {len(data)} bytes")
    return np.ndarray(shape, dtype, data, head.tell(), order="F" if fortran else "C")


def arrays_in(data: bytes) -> dict[str, np.ndarray]:
    """The arrays in the bytes of an uncompressed .npz; ValueError if they would take more memory
    than there are bytes.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = members_by_name(archive)
        is_compressed = any(entry.compress_type for entry in members.values())
        size = sum(entry.file_size for entry in members.values())
        if is_compressed or size > len(data):
            raise ValueError("it would unpack to more than it is")
        return {name: array_in(archive.read(entry)) for name, entry in members.items()}


def npz_arrays(path: Path, wanted: Collection[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """The `wanted` arrays that an .npz holds, and the names of all its members.

    Only these arrays are read, and only after the sizes in directory and headers were compared and
    allowed. Raises ValueError of one line for a file that is no .npz, and for members that are no
    arrays.
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
    except Exception as error:  # zip files, compression and headers raise many kinds
        raise ValueError(
            f"{path} cannot be read as .npz of plain arrays: {_line(error)}"
        ) from error
    return arrays, list(members)


def members_by_name(packed: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Members of an .npz by the names of their arrays; ValueError if two have the same name, as
    readers would differ in which one they take.
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
    """Bytes of a member's array by its header; ValueError unless this number follows it."""
    with packed.open(entry) as file:
        head = io.BytesIO(file.read(HEADER))  # a header may claim to be 4 GB long
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
