"""Files and texts that may come from anywhere, and files that are replaced as a whole."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

PLAIN_OPEN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


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


def open_file(path: Path) -> BinaryIO:
    """A regular file for reading; FileNotFoundError for anything else, as if nothing were there."""
    if not is_file(path):
        raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))
    return open(path, "rb", opener=no_link)
