"""What commands print."""

from __future__ import annotations

from mia_nb import escape


def say(*texts: object) -> None:
    """Print texts, each on one line of its own; names in them can neither command the terminal nor
    begin a line.
    """
    print(*map(escape.terminal, texts), sep="\n", flush=True)
