"""The progress of a notebook in a terminal: its cells, and the last line that one of them wrote."""

from __future__ import annotations

import re
import sys
import threading
import time

from tqdm import tqdm

from mia_nb import escape
from mia_nb.cli.say import say

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
EVERY = 180  # seconds between lines where there is no terminal
BAR = "{desc} {bar:8} {n_fmt}/{total_fmt}{postfix}"  # short: the last line matters most


class Progress:
    """A bar of the cells that began on a terminal, a line every few minutes elsewhere, and a line
    when the notebook ends.
    """

    def __init__(self, name: str, cells: int) -> None:
        self.name = escape.terminal(name)
        self.cells = cells
        self.cell = 0
        self.last = ""
        self.ended = threading.Event()
        self.started = time.monotonic()
        self.bar = tqdm(
            desc=self.name,
            total=cells,
            bar_format=BAR,
            file=sys.stdout,
            disable=None,  # shown on a terminal only
            leave=False,
            miniters=0,
            dynamic_ncols=True,
        )
        if self.bar.disable:
            threading.Thread(target=self._say_now_and_then, daemon=True).start()

    def _say_now_and_then(self) -> None:
        """Systems that run commands unattended may end one that is silent."""
        while not self.ended.wait(EVERY):
            say(f"{self.name} cell {self.cell}/{self.cells}  {self.last}".rstrip())

    def write(self, text: str) -> None:
        """Take text that a cell printed; a warning in it stays on the screen, as one line."""
        for part in re.split(r"[\r\n]", ANSI.sub("", text)):
            line = escape.terminal(part.strip())
            if line:
                self.last = line
                self.bar.set_postfix_str(line, refresh=False)
            warning = line.partition(" UserWarning: ")[2]
            if warning:
                self.bar.write(f"mia-nb: {warning}")
        self.bar.update(0)

    def flush(self) -> None:
        """Do nothing; papermill calls it."""

    def next_cell(self, cell: dict, cell_index: int) -> None:
        self.cell = cell_index + 1
        self.last = ""
        self.bar.set_postfix_str("", refresh=False)
        self.bar.update(self.cell - self.bar.n)

    def end(self, outcome: str = "") -> None:
        self.ended.set()
        self.bar.close()
        spent = time.monotonic() - self.started
        say(f"{self.name:<22} {spent:6.1f} s  {outcome}".rstrip())
