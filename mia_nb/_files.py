"""Files that may come from anywhere: plain names, regular files, manifests that hold junk."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

MANIFEST = "manifest.jsonl"
PLAIN_OPEN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
SHA256 = re.compile("[0-9a-f]{64}")
# nanoseconds: two states of a file that are no further apart may show the same time
RECENT = 2 * 10**9


class _Manifest(NamedTuple):
    """A manifest as it was last read."""

    stamp: tuple[int, int, int] | None  # of the file; None where a later state may have the same
    data: bytes  # whole lines alone
    files: dict[str, str]
    message: str  # that was printed of it


UNREAD = _Manifest(None, b"", {}, "")
_READ: dict[Path, _Manifest] = {}


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """No garbage is collected inside: for what descends as deep as a foreign text is nested.

    At the end of the stack the finalizer of any object, of whoever's, would fail for want of it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parse_json(text: str | bytes) -> Any:
    """What a text that may come from anywhere says as JSON; ValueError for what is none, and for
    what is nested too deep.
    """
    try:
        with without_collection():
            return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def is_plain(name: object) -> bool:
    """Whether this names a file right inside a folder, whatever the system: no path, no hidden
    file, no control character.
    """
    return (
        isinstance(name, str)
        and name.isprintable()
        and 0 < len(name.encode()) <= 200
        and name[0] != "."
        and name != MANIFEST
        and not any(mark in name for mark in "/\\:")
    )


def is_file(path: Path) -> bool:
    """Whether a regular file is there: no link, no pipe, no socket, no device, no folder."""
    return path.is_file() and not path.is_symlink()


def no_link(path: str, flags: int) -> int:
    """How `open` opens what could have become a link or a pipe since it was looked at: neither
    followed nor waited for.
    """
    return os.open(path, flags | PLAIN_OPEN, 0o666)


def scratch_name(name: str) -> str:
    """A hidden name for a file that is being written, of one writer and guessed by nobody."""
    return f".tmp-{os.getpid()}-{secrets.token_hex(8)}-{name}"


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A new file beside `path` that takes its place when all is written.

    It is made under a name of its own, and nothing that lies there is opened. So what `path` is, a
    link or another name of a file that is kept elsewhere, is replaced and not written through;
    readers see the old file or the new one; and a write that fails leaves the old one. An OSError
    names `path`, not the file that was made.
    """
    path = Path(path)
    temporary = path.with_name(scratch_name(path.name[-100:]))
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except OSError as error:
        discard(temporary)
        if error.filename != str(temporary):  # of something else that was done meanwhile
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        discard(temporary)
        raise


def discard(temporary: Path) -> None:
    """Remove a file that could not be finished, if that can be done: on a read-only file system
    removing fails too, even of what is not there, and would hide the first complaint.
    """
    with contextlib.suppress(OSError):
        temporary.unlink()


def alone(path: Path) -> None:
    """Give a file that is about to be appended to a copy of its own where it has further names
    (hard links, as `cp -al` makes them): what those show stays as it is.
    """
    if is_file(path) and path.stat().st_nlink > 1:
        with open_file(path) as file, replacing(path) as copy:
            shutil.copyfileobj(file, copy)
            copy.flush()
            os.fsync(copy.fileno())


def open_file(path: Path) -> BinaryIO:
    """A regular file for reading; FileNotFoundError for anything else, as if nothing were there."""
    if not is_file(path):
        raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))
    return open(path, "rb", opener=no_link)


def _entry(line: bytes) -> tuple[str, str | None] | None:
    """(file, sha256) of a line of a manifest, the latter None for a file that was removed; None for
    what is no record.
    """
    try:
        entry = parse_json(line)
        name = entry["file"]
        sha = entry["sha256"]
        if is_plain(name) and (sha is None or SHA256.fullmatch(sha)):
            return name, sha
    except (ValueError, TypeError, KeyError):
        pass
    return None


def listed(path: Path) -> dict[str, str]:
    """{file name: sha256} of a manifest, to be read only; the last line about a name counts.

    Lines that are no records are skipped, and said once. Only what was appended since the last call
    is parsed.
    """
    last = _READ.get(path, UNREAD)
    try:
        with open_file(path) as file:
            stat = os.fstat(file.fileno())
            stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if stamp == last.stamp:
                return last.files
            data = file.read()
    except FileNotFoundError:
        return {}
    before = last.data if data.startswith(last.data) else b""
    files = dict(last.files) if before else {}
    bad = _read_lines(data[len(before) :], before.count(b"\n") + 1, files)
    message = last.message
    if bad:
        message = _skipped(path, bad)
        if message != last.message:
            print(message, file=sys.stderr)
    if len(_READ) > 100:
        _READ.clear()
    settled = time.time_ns() - stat.st_mtime_ns > RECENT
    whole_lines = data if data.endswith(b"\n") else b""
    _READ[path] = _Manifest(stamp if settled else None, whole_lines, files, message)
    return files


def _read_lines(data: bytes, first: int, files: dict[str, str]) -> list[int]:
    """Bring `files` up to date with lines of a manifest, numbered from `first`; the numbers of
    those that are no records.
    """
    bad = []
    for number, line in enumerate(data.split(b"\n"), first):
        entry = _entry(line)
        if entry is None:
            if line:
                bad.append(number)
            continue
        name, sha = entry
        if sha:
            files[name] = sha
        else:
            files.pop(name, None)
    return bad


def _skipped(path: Path, bad: list[int]) -> str:
    """What is said of lines with these numbers."""
    which = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
    lines = "1 line is no record and is"
    if len(bad) > 1:
        lines = f"{len(bad)} lines are no records and are"
    return f"{path}: {lines} skipped ({which}); what was listed there is made again"
