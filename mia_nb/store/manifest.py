"""The manifest of a result: a line with the checksum of each finished file. It may come from
anywhere, and hold junk.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import NamedTuple

from mia_nb._files import is_file, no_link, open_file, parse_json, replacing

MANIFEST = "manifest.jsonl"
SHA256 = re.compile("[0-9a-f]{64}")
# nanoseconds; two states of a file that are closer together may have the same time stamp
RECENT = 2 * 10**9


class _Manifest(NamedTuple):
    """A manifest as it was last read."""

    stamp: tuple[int, int, int] | None  # of the file; None if a later state may have the same stamp
    data: bytes  # the complete lines
    files: dict[str, str]
    message: str  # the last message printed about it


UNREAD = _Manifest(None, b"", {}, "")
_READ: dict[Path, _Manifest] = {}


def is_plain(name: object) -> bool:
    """Whether this names a file directly inside a folder on every system: no path, no hidden file,
    no control character.
    """
    return (
        isinstance(name, str)
        and name.isprintable()
        and 0 < len(name.encode()) <= 200
        and name[0] != "."
        and name != MANIFEST
        and not any(mark in name for mark in "/\\:")
    )


def _entry(line: bytes) -> tuple[str, str | None] | None:
    """(file, sha256) from a line of a manifest, where sha256 is None for a removed file; None for a
    line that is no record.
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
    """{file name: sha256} of a manifest, not to be changed; the last line about a name counts.

    Lines that are no records are skipped with one message. Only lines that were appended since the
    last call are parsed.
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
    """Update `files` by lines of a manifest, numbered from `first`. Returns the numbers of lines
    that are no records.
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
    """The message about skipped lines with these numbers."""
    which = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
    lines = "1 line is no record and is"
    if len(bad) > 1:
        lines = f"{len(bad)} lines are no records and are"
    return f"{path}: {lines} skipped ({which}); what was listed there is made again"


def append(path: Path, entries: dict[str, str | None]) -> None:
    """Append entries (file, sha256) to a manifest in one write, on new lines even after a torn
    one.
    """
    lines = "".join(
        json.dumps({"file": name, "sha256": sha}) + "\n" for name, sha in entries.items()
    )
    _give_copy_of_its_own(path)
    with open(path, "a+b", buffering=0, opener=no_link) as file:
        file.seek(max(file.tell() - 1, 0))
        torn = file.read(1) not in (b"", b"\n")
        file.write((b"\n" if torn else b"") + lines.encode())
        os.fsync(file.fileno())


def _give_copy_of_its_own(path: Path) -> None:
    """Replace a manifest that has other hard links (`cp -al` makes them) by a copy, so that these
    keep the old content.
    """
    if is_file(path) and path.stat().st_nlink > 1:
        with open_file(path) as file, replacing(path) as copy:
            shutil.copyfileobj(file, copy)
            copy.flush()
            os.fsync(copy.fileno())
