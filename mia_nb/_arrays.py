"""Arrays in untrusted .npz files: none takes more memory than it may."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

import numpy as np

from mia_nb._memory import check_budget


def arrays_in(
    source: str | Path | BinaryIO,
    wanted: Collection[str] | None = None,
    *,
    is_stored_here: bool = False,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The `wanted` arrays that an .npz holds (None: all), and the names of all its members.

    A compressed archive may unpack to far more than it is. So the sizes in its directory, beyond
    which nothing is read, are added up, and refused if memory may not hold them. What this program
    has stored (`is_stored_here`) is not compressed, and then its size is not limited. Errors of
    many kinds are raised for what is no .npz of plain arrays.
    """
    with np.lib.npyio.NpzFile(source, allow_pickle=False) as packed:
        names = [name for name in packed.files if wanted is None or name in wanted]
        entries = packed.zip.infolist()
        is_compressed = any(entry.compress_type for entry in entries)
        if is_compressed or not is_stored_here:
            read = [entry for entry in entries if entry.filename.removesuffix(".npy") in names]
            check_budget(" and ".join(names), sum(entry.file_size for entry in read))
        arrays = {name: packed[name] for name in names}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} is no array")
    return arrays, packed.files


def npz_arrays(path: Path, wanted: Collection[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """As `arrays_in`, for a file; ValueError of one line for a file that is no .npz, and for
    members that are no arrays.
    """
    if not os.path.exists(path):
        raise ValueError(f"{path} does not exist")
    if not os.path.isfile(path):
        raise ValueError(f"{path} is no file")
    try:
        return arrays_in(path, wanted)
    except Exception as error:  # zip files, compression and headers raise many kinds
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"{path} cannot be read as .npz of plain arrays: {reason}") from error
