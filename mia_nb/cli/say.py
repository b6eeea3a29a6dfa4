"""How commands print."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

from mia_nb import escape


def say(*texts: object) -> None:
    """Print each text on a line of its own; names in it can neither command the terminal nor begin
    a line.
    """
    print(*map(escape.terminal, texts), sep="\n", flush=True)


def short(path: Path) -> str:
    """A path for a message, relative to the working directory if that is shorter."""
    return escape.terminal(min(str(path), os.path.relpath(path), key=len))


def print_table(rows: list[tuple[str, ...]], width: int = 10_000) -> None:
    """Print rows of text as columns, folded at a width."""
    rows = [tuple(map(escape.terminal, row)) for row in rows]
    widths = [min(max(map(len, column)), width // 4) for column in zip(*rows, strict=True)]
    folded = textwrap.TextWrapper(width, subsequent_indent=" " * 8, break_long_words=False)
    for row in rows:
        cells = (cell.ljust(size) for cell, size in zip(row, widths, strict=True))
        say(*folded.wrap("  ".join(cells).rstrip()))
