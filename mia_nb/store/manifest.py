"""The manifest of a result: a line with the checksum of each finished file. It may come from
anywhere, and hold junk.
"""

from __future__ import annotations

import json
import os
import re
import sys
from functools import cache, lru_cache
from pathlib import Path

from mia_nb._files import parse_json

MANIFEST = "manifest.jsonl"
SHA256 = re.compile("[0-9a-f]{64}")


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

    Lines that are no records are skipped with one message.
    """
    if not path.is_file():
        return {}
    stat = path.stat()
    return _parsed(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=100)
def _parsed(path: Path, *stamp: int) -> dict[str, str]:
    """`listed` of the state of a manifest that has this stamp."""
    files = {}
    bad = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
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
    if bad:
        which = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        _say_once(
            f"{path}: what is no record is skipped (line {which}); what was listed there is made"
            " again"
        )
    return files


@cache
def _say_once(message: str) -> None:
    print(message, file=sys.stderr)


def append(path: Path, entries: dict[str, str | None]) -> None:
    """Append entries (file, sha256) to a manifest in one write, on new lines even after a torn
    one; ValueError if the manifest is a link, which may lead anywhere.
    """
    if path.is_symlink():
        raise ValueError(f"{path} is a link: nothing is written through it; move it away")
    lines = "".join(
        json.dumps({"file": name, "sha256": sha}) + "\n" for name, sha in entries.items()
    )
    with open(path, "a+b", buffering=0) as file:
        file.seek(max(file.tell() - 1, 0))
        torn = file.read(1) not in (b"", b"\n")
        file.write((b"\n" if torn else b"") + lines.encode())
        os.fsync(file.fileno())
