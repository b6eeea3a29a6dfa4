"""Reading of untrusted files and texts, and files that are replaced as a whole."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO


def parse_json(text: str | bytes) -> Any:
    """Parse an untrusted text as JSON; ValueError if it is not JSON or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def has_entries(value: object, entries: Mapping[str, Any]) -> bool:
    """Whether a value parsed from JSON is a record that has these entries, each of its type."""
    if not isinstance(value, dict):
        return False
    return all(isinstance(value.get(name), kind) for name, kind in entries.items())


def scratch_name(name: str) -> str:
    """A hidden name for a file that is being written, which no other writer has or can guess."""
    return f".tmp-{os.getpid()}-{secrets.token_hex(8)}-{name}"


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A new file beside `path` that replaces it when everything is written.

    The new file has a name of its own, and no existing file is opened. So if `path` is a link, the
    link is replaced and its target unchanged; readers see the old file or the new one; and a failed
    write leaves the old one. An OSError names `path`, not the new file.
    """
    path = Path(path)
    temporary = path.with_name(scratch_name(path.name[-100:]))
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except OSError as error:
        discard(temporary)
        if error.filename != str(temporary):  # an error of other work inside the context
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        discard(temporary)
        raise


def discard(temporary: Path) -> None:
    """Remove an unfinished file if possible: on a read-only file system even removing a missing
    file fails, and would hide the first error.
    """
    with contextlib.suppress(OSError):
        temporary.unlink()
