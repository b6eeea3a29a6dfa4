"""The progress of a run: the last line that a notebook wrote, and the share of the run that is
done.
"""

from __future__ import annotations

import re
import shutil
import sys
import time

from mia_nb import escape
from mia_nb.checks import duration
from mia_nb.cli.say import say

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Overall:
    """The share of a run that is done, from each notebook's share, and the time that the rest may
    take.
    """

    def __init__(self, shares: dict[str, float], todo: list[str]) -> None:
        self.shares = shares
        self.left = list(todo)
        self.started, self.cached = time.monotonic(), self.done()

    def done(self, part: float = 0.0) -> float:
        """The share that is done, counting this part of the current notebook."""
        left = sum(self.shares[file] for file in self.left)
        at_hand = self.shares[self.left[0]] * part if self.left else 0
        return 1 - (left - at_hand) / sum(self.shares.values())

    def line(self, part: float) -> str:
        """`34 %, 2 min left`; without the time before a twentieth is done."""
        done = self.done(part)
        spent = time.monotonic() - self.started
        known = done - self.cached
        return f"{done:4.0%}" + (
            f", {duration(spent / known * (1 - done))} left" if known >= 0.05 else ""
        )


class Progress:
    """Shows the last line a notebook wrote: in place on a terminal, twice a minute in a log."""

    def __init__(
        self, name: str, cells: int, quiet: bool = False, overall: Overall | None = None
    ) -> None:
        self.name = escape.terminal(name)
        self.cells = cells
        self.quiet = quiet
        self.cell, self.last = 0, ""
        self.overall = overall or Overall({name: 1.0}, [name])
        self.started = self.shown = time.monotonic()

    def write(self, text: str) -> None:
        """Take text that a cell printed; a warning in it stays on the screen, as one line."""
        texts = (part.strip() for part in re.split(r"[\r\n]", ANSI.sub("", text)))
        parts = [escape.terminal(text) for text in texts if text]
        self.last = parts[-1] if parts else self.last
        for warning in (part.partition(" UserWarning: ")[2] for part in parts):
            if warning and not self.quiet:
                print(_clear(), end="")
                say(f"mia-nb: {warning}")
        self._show()

    def flush(self) -> None:
        """Do nothing; papermill calls it."""

    def next_cell(self, cell: dict, cell_index: int) -> None:
        self.cell = cell_index + 1
        self.last = ""
        self._show()

    def end(self, outcome: str = "") -> None:
        if self.quiet:
            return
        spent = time.monotonic() - self.started
        print(f"{_clear()}{self.name:<22} {spent:6.1f} s  {outcome}".rstrip(), flush=True)

    def _show(self) -> None:
        now = time.monotonic()
        terminal = sys.stdout.isatty()
        if self.quiet or now - self.shown < (0.1 if terminal else 30):
            return
        self.shown = now
        within = re.search(r"(\d+) ?%", self.last)  # the cell's own progress
        part = max(0, self.cell - 1 + (int(within[1]) / 100 if within else 0)) / self.cells
        line = f"{self.overall.line(part)}  {self.name} cell {self.cell}/{self.cells}  {self.last}"
        width = shutil.get_terminal_size().columns - 1
        print(f"{_clear()}{line[:width]}", end="" if terminal else "\n", flush=True)


def _clear() -> str:
    return "\r\x1b[K" if sys.stdout.isatty() else ""
