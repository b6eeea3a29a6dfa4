"""A result on disk: its files, written atomically and read by their checksums, and its locks."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import numpy as np
from numpy.lib.format import open_memmap, read_array

from mia_nb._arrays import arrays_in
from mia_nb._files import has_entries, parse_json, replacing
from mia_nb.store.manifest import MANIFEST, append, is_plain, listed

# bytes below which a file is read, not mapped: mapped files stay open, and few may be open at once
SMALL = 1 << 24
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Corrupt(ValueError):
    """A stored file differs from its record, or does not hold what it should; the message names the
    file and the remedy.
    """

    def __init__(self, message: str, file: str = ""):
        super().__init__(message)
        self.file = file


class ReadOnly(ValueError):
    """Something would have to be written into a read-only folder."""


def content_key(record: dict, *parts: bytes | str) -> str:
    """sha256 (hex) of the record as canonical JSON and of further parts, each after its length."""
    canonical = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest = hashlib.sha256()
    for part in (canonical, *parts):
        raw = part.encode() if isinstance(part, str) else bytes(part)
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """sha256 (hex) of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Folder:
    """One result.

    Every read verifies first: `Corrupt` if nothing is recorded, or checksum or form differ.
    """

    path: Path

    @property
    def kind(self) -> str:
        """pool, signals or run."""
        return self.path.name.split("-", 1)[0]

    @property
    def name(self) -> str:
        """The name of the result, between its kind and its key."""
        return self.path.name.split("-", 1)[1].rsplit("-", 1)[0]

    @property
    def short_key(self) -> str:
        """The first twelve letters of the key, with which the folder's name ends."""
        return self.path.name.rsplit("-", 1)[1]

    @property
    def record(self) -> dict:
        """The content of recipe.json: kind, name, key, recipe and more."""
        return self.read_json("recipe.json", key=str, recipe=dict)

    @property
    def recipe(self) -> dict:
        """The record from which the key was made."""
        return self.record["recipe"]

    @property
    def key(self) -> str:
        """The whole key; the folder's name has twelve letters of it."""
        return self.record["key"]

    def begins_with(self, prefix: str) -> bool:
        """Whether the folder's name, or the key of its result, begins with this prefix."""
        if self.path.name.startswith(prefix):
            return True
        if not self.short_key.startswith(prefix[:12]):
            return False
        # only for a prefix of more than twelve letters is the record read, so that a damaged record
        # blocks no other result
        return len(prefix) <= 12 or self.key.startswith(prefix)

    def files(self) -> dict[str, str]:
        """{file name: sha256} of the finished files; not to be changed."""
        return listed(self.path / MANIFEST)

    def has(self, name: str) -> bool:
        """Whether this file is recorded and exists."""
        return name in self.files() and (self.path / name).is_file()

    def intact(self, name: str) -> bool:
        """Whether this file is recorded, exists, and agrees with its checksum."""
        recorded = self.files().get(name)
        return recorded is not None and self._sha256(name) == recorded

    def damaged(self) -> list[str]:
        """Names of files that are recorded but missing, truncated or altered."""
        return [name for name, sha in self.files().items() if self._sha256(name) != sha]

    def verify(self) -> list[str]:
        """One line per damaged file."""
        return [f"{self.path / name}: missing, truncated or altered" for name in self.damaged()]

    def _sha256(self, name: str) -> str | None:
        """Checksum of the present file of this name; None if there is none."""
        path = self.path / name
        return sha256_of(path) if path.is_file() else None

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Callable[[bytes | memoryview], None]]:
        """Write piece by piece under a temporary name; at the end flush to the disk, rename, then
        record. Readers see the whole file or none."""
        if not is_plain(name):
            raise ValueError(
                f"{name!r} is no name of a stored file: wanted a plain one, without folders"
            )
        path = self.path / name
        digest = hashlib.sha256()
        with advising(path):
            with replacing(path) as file:

                def write(data: bytes | memoryview) -> None:
                    file.write(data)
                    digest.update(data)

                yield write
                file.flush()
                os.fsync(file.fileno())
            self._append({name: digest.hexdigest()})

    def write_bytes(self, name: str, data: bytes | memoryview) -> None:
        """Write a file at once, as `writing` does."""
        with self.writing(name) as write:
            write(data)

    @contextlib.contextmanager
    def rows(
        self, name: str, dtype: np.dtype, shape: tuple[int, ...]
    ) -> Iterator[Callable[[np.ndarray], None]]:
        """Write an array of this shape some rows at a time, in order; only those rows are in
        memory.
        """
        header = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
            "fortran_order": False,
            "shape": shape,
        }
        with self.writing(name) as write:
            buffer = io.BytesIO()
            np.lib.format.write_array_header_1_0(buffer, header)
            write(buffer.getvalue())
            written = 0

            def append(rows: np.ndarray) -> None:
                nonlocal written
                written += len(rows)
                if rows.shape[1:] != shape[1:] or rows.dtype != dtype or written > shape[0]:
                    raise ValueError(
                        f"{name} is {shape} {dtype}; {written} rows {rows.shape} {rows.dtype} do"
                        " not fit"
                    )
                write(np.ascontiguousarray(rows).data)

            yield append
            if written != shape[0]:
                raise ValueError(f"{name} got {written} of {shape[0]} rows: write them all")

    def write_json(self, name: str, value: object) -> None:
        """Write a value as JSON."""
        text = json.dumps(value, indent=1, sort_keys=True) + "\n"
        self.write_bytes(name, text.encode())

    def write_array(self, name: str, array: np.ndarray) -> None:
        """Write an array as .npy."""
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        self.write_bytes(name, buffer.getbuffer())

    def write_arrays(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        """Write arrays as .npz."""
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        self.write_bytes(name, buffer.getbuffer())

    def add(self, name: str) -> None:
        """Record a file that another program has written here."""
        sha = self._sha256(name)
        if sha is None:
            raise self.corrupt(name)
        self._append({name: sha})

    def remove(self, *names: str) -> None:
        """Take files off the manifest, then remove them; of a link only the link."""
        plain = [name for name in names if is_plain(name)]
        if plain:
            self._append(dict.fromkeys(plain))
        for name in plain:
            (self.path / name).unlink(missing_ok=True)

    def delete(self) -> None:
        """Remove the whole result; if it is a link, only the link."""
        try:
            if self.path.is_symlink():
                self.path.unlink()
            else:
                shutil.rmtree(self.path)
        except OSError as error:  # rmtree names the file inside
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def read_bytes(self, name: str) -> bytes:
        """The verified content of the file of this name."""
        path = self.path / name
        data = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(data).hexdigest() != self.files().get(name):
            raise self.corrupt(name)
        return data

    def corrupt(self, name: str, reason: object = None) -> Corrupt:
        """The error for a file that differs from its checksum or, with a reason, holds something
        wrong.
        """
        if reason is None:
            damage = (
                "is missing, truncated or altered (checksum differs); run the step that made it"
                " again, or"
            )
        else:
            text = " ".join(str(reason).split())[:200] or type(reason).__name__
            damage = f"is not what it should be though its checksum is right ({text});"
        return Corrupt(
            f"{self.path / name} {damage} remove the folder with: mia-nb clean {self.path.name}",
            name,
        )

    def read_json(self, name: str, /, **entries: type) -> Any:
        """The content of a JSON file; with entries (name=type) a record that has these entries."""
        data = self.read_bytes(name)
        try:
            value = parse_json(data)
        except ValueError as error:
            raise self.corrupt(name, error) from error
        if entries and not has_entries(value, entries):
            raise self.corrupt(name, f"wanted a record with {', '.join(entries)}")
        return value

    def read_array(self, name: str, kinds: str = "", shape: tuple | None = None) -> np.ndarray:
        """A stored array; Corrupt if its dtype has none of these kinds, or its shape differs from
        `shape`, in which None stands for any size.
        """
        file = io.BytesIO(self.read_bytes(name))
        return self._checked_array(name, lambda: read_array(file, allow_pickle=False), kinds, shape)

    def map_array(self, name: str, kinds: str = "", shape: tuple | None = None) -> np.ndarray:
        """A stored array, read-only, verified and then mapped, so that memory holds only the parts
        in use.

        Writing the array again makes a new file; a mapped one does not change.
        """
        path = self.path / name
        if name not in self.files() or (path.exists() and path.stat().st_size < SMALL):
            array = self.read_array(name, kinds, shape)
            array.flags.writeable = False
            return array
        if not self.intact(name):
            raise self.corrupt(name)
        return self._checked_array(name, lambda: open_memmap(path, mode="r"), kinds, shape)

    def _checked_array(
        self, name: str, read: Callable[[], np.ndarray], kinds: str, shape: tuple | None
    ) -> np.ndarray:
        try:
            array = np.asarray(read())
        # a header is a Python literal, and anything may be wrong with that
        except Exception as error:
            # too many open files, say, are no damage
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise
            raise self.corrupt(name, error) from error
        is_of_shape = shape is None or _has_shape(array, shape)
        is_of_kind = not kinds or array.dtype.kind in kinds
        if not is_of_shape or not is_of_kind:
            raise self.corrupt(name, f"it holds {array.shape} {array.dtype}")
        return array

    def read_arrays(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of a stored .npz, by name."""
        file = io.BytesIO(self.read_bytes(name))
        try:
            return arrays_in(file, is_stored_here=True)[0]
        except Exception as error:  # as in `_checked_array`, and damaged archives
            raise self.corrupt(name, error) from error

    @contextlib.contextmanager
    def lock(self, name: str = "folder", timeout: float = -1) -> Iterator[None]:
        """Hold an advisory lock of the operating system, which ends when its holder dies;
        filelock.Timeout after `timeout` s.

        Only writers need a lock: readers work in read-only folders, where this raises ReadOnly.
        """
        lock = filelock.FileLock(self.path / f".lock-{name}", timeout=timeout)
        try:
            lock.acquire()
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            raise ReadOnly(
                f"cannot write to {self.path}: {error.strerror}; what is finished there can be"
                " read, anything else wants a results folder that you may write to"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def locked(self, name: str = "folder") -> bool:
        """Whether somebody holds this lock now, or may; no file is made by the question."""
        if not (self.path / f".lock-{name}").is_file():
            return False
        try:
            with self.lock(name, timeout=0):
                return False
        except ReadOnly as error:  # of another user, or on a medium where nobody can write
            return error.__cause__.errno != errno.EROFS
        except OSError:  # held (filelock.Timeout), or unknown
            return True

    def sweep(self, pattern: str = ".tmp-*", older_than: float = 3600.0) -> list[str]:
        """Remove files of a pattern that have not changed for so many seconds, by default temporary
        files of dead writers. Returns their names.
        """
        stale = [
            path
            for path in sorted(self.path.glob(pattern))
            if not path.is_dir() and time.time() - path.lstat().st_mtime >= older_than
        ]
        for path in stale:
            path.unlink(missing_ok=True)
        return [path.name for path in stale]

    def _append(self, entries: dict[str, str | None]) -> None:
        """Append to the manifest, one writer at a time, since appends from several machines are not
        atomic on every file system.
        """
        with self.lock("manifest"):
            append(self.path / MANIFEST, entries)


def _has_shape(array: np.ndarray, shape: tuple[int | None, ...]) -> bool:
    """Whether an array has this shape, in which None stands for any size."""
    if array.ndim != len(shape):
        return False
    return all(wanted in (None, size) for wanted, size in zip(shape, array.shape, strict=True))


@contextlib.contextmanager
def advising(path: Path) -> Iterator[None]:
    """A context in which this file is written; an error says so, and what to do."""
    try:
        yield
    except OSError as error:
        if " while writing " in str(error):  # of another file, which is written inside this context
            raise
        advice = "see to that and run again"
        if error.errno in FULL:
            advice = "make room and run again"
        elif error.errno in READ_ONLY:
            advice = "take a results folder that you may write to"
        raise OSError(
            error.errno,
            f"{error.strerror} while writing {path}: {advice}, what is finished is kept",
        ) from error
