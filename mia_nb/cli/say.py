"""What commands print."""

from __future__ import annotations

import os
from pathlib import Path

from mia_nb import escape


def say(*texts: object) -> None:
    """Print texts, each on one line of its own; names in them can neither command the terminal nor
    begin a line.
    """
    print(*map(escape.terminal, texts), sep="\n", flush=True)


def short(path: Path) -> str:
    """A path for a message, relative to the working directory where that is shorter."""
    return escape.terminal(min(str(path), os.path.relpath(path), key=len))
