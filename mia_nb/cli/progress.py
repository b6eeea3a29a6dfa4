"""The progress of a notebook in a terminal: its cells, and the last line that one of them wrote."""

from __future__ import annotations

import re
import sys
import time

from tqdm import tqdm

from mia_nb import escape
from mia_nb.cli.say import say

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
BAR = "{desc} {bar:8} {n_fmt}/{total_fmt}{postfix}"  # short: the last line matters most


class Progress:
    """A bar of the cells that began, on a terminal, and a line when the notebook ends."""

    def __init__(self, name: str, cells: int, quiet: bool = False) -> None:
        self.name = escape.terminal(name)
        self.cells = cells
        self.quiet = quiet
        self.cell = 0
        self.started = time.monotonic()
        self.bar = tqdm(
            desc=self.name,
            total=cells,
            bar_format=BAR,
            file=sys.stdout,
            disable=True if quiet else None,  # None: shown on a terminal only
            leave=False,
            miniters=0,
            dynamic_ncols=True,
        )

    def write(self, text: str) -> None:
        """Take text that a cell printed; a warning in it stays on the screen, as one line."""
        for part in re.split(r"[\r\n]", ANSI.sub("", text)):
            line = escape.terminal(part.strip())
            if line:
                self.bar.set_postfix_str(line, refresh=False)
            warning = line.partition(" UserWarning: ")[2]
            if warning and not self.quiet:
                self.bar.write(f"mia-nb: {warning}")
        self.bar.update(0)

    def flush(self) -> None:
        """Do nothing; papermill calls it."""

    def next_cell(self, cell: dict, cell_index: int) -> None:
        self.cell = cell_index + 1
        self.bar.set_postfix_str("", refresh=False)
        self.bar.update(self.cell - self.bar.n)

    def end(self, outcome: str = "") -> None:
        self.bar.close()
        if not self.quiet:
            spent = time.monotonic() - self.started
            say(f"{self.name:<22} {spent:6.1f} s  {outcome}".rstrip())
