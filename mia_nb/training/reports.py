"""The progress of workers, which reaches the calling process by files: a worker writes a report for
each unit into a folder, and the calling process reads them there. Once it has removed the folder,
workers stop, since nobody waits for their results.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from mia_nb._files import parse_json, replacing
from mia_nb.training.progress import Progress
from mia_nb.training.saving import unit_name

INTERVAL = 0.5  # seconds between two reports of a worker, and between two readings of the reports


class Unwanted(Exception):
    """The process that asked for this work has stopped."""


class Reporter:
    """A worker's side: a `Progress` function that writes a report of a unit into a folder; raises
    `Unwanted` if the folder is gone.

    Parameters:
        folder: of the reports.
        epochs: of each model; the last one is always reported.
    """

    def __init__(self, folder: Path, epochs: int):
        self.folder = folder
        self.epochs = epochs
        self.written = 0.0

    def __call__(self, rows: list[int], epoch: int, loss: float) -> None:
        if not self.folder.is_dir():
            raise Unwanted
        if epoch < self.epochs and time.monotonic() - self.written < INTERVAL:
            return
        try:
            with replacing(self.folder / unit_name(rows)) as file:
                file.write(json.dumps([rows, epoch, loss]).encode())
        except FileNotFoundError:
            raise Unwanted from None
        self.written = time.monotonic()


@contextlib.contextmanager
def passed_on(folder: Path, progress: Progress) -> Iterator[None]:
    """The calling process's side: pass the reports in a folder on to `progress` while the block
    runs, from a thread, and once more at its end.
    """
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(INTERVAL):
            _read(folder, progress)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _read(folder, progress)


def _read(folder: Path, progress: Progress) -> None:
    """Pass on the present report of each unit."""
    for path in sorted(folder.glob("part_*")):
        # a report may be gone by now
        with contextlib.suppress(OSError, ValueError):
            rows, epoch, loss = parse_json(path.read_text())
            progress(rows, epoch, loss)
