"""The progress of a training: reports of epochs, and the bar or plain lines that show them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

from tqdm.auto import tqdm

from mia_nb.checks import duration
from mia_nb.training.execution import in_words

# (rows, number of epochs that they have finished, mean loss of the last one)
Progress = Callable[[list[int], int, float], None]


@contextlib.contextmanager
def training_bar(
    title: str, rows: list[int], epochs: int, how: dict, workers: int, progress: bool
) -> Iterator[Progress]:
    """A progress bar in epochs of models; about ten plain lines where MIA_NB_MODE is batch.

    Parameters:
        title: what is trained.
        rows: the models' numbers.
        epochs: of each model.
        how: the execution, as `execution.chosen_record` gives it.
        workers: units that are trained at a time.
        progress: False shows nothing.

    Yields:
        A function that takes reports of progress from any thread: rows, the number of epochs that
        they have finished, and the mean loss of the last one.
    """
    place = "" if how["device"] == "cpu" else f" on {how['device']}"
    strategy = f"{in_words(how)}, {workers} x {how['threads']} threads"
    label = f"training {len(rows)} {title}{place} ({strategy})"
    plain = os.environ.get("MIA_NB_MODE") == "batch"
    total = len(rows) * epochs
    with tqdm(total=total, desc=label, unit="epoch", disable=not progress or plain) as bar:
        advance = Advance(bar, rows, total, label if progress and plain else None)
        yield advance.report


class Advance:
    """Counts the epochs that the rows of a training have finished.

    Parameters:
        bar: shows the count.
        rows: numbers of the models.
        total: epochs of all models together.
        label: begins every plain line; None prints none.
    """

    def __init__(self, bar: tqdm, rows: list[int], total: int, label: str | None):
        self.bar = bar
        self.total = total
        self.label = label
        self.epochs = dict.fromkeys(rows, 0)
        self.done = 0
        self.begun = time.perf_counter()
        # epochs in the first report, maybe of an earlier run: the pace is measured from there on
        self.done_at_first: int | None = None

    def report(self, rows: list[int], epoch: int, loss: float) -> None:
        """Note that these rows have finished so many epochs, the last with this mean loss."""
        before = self.done
        self.epochs.update(dict.fromkeys(rows, epoch))
        self.done = sum(self.epochs.values())
        self.bar.set_postfix(loss=f"{loss:.3g}", refresh=False)
        self.bar.update(self.done - before)
        if self.done_at_first is None:
            self.done_at_first = self.done
            self.begun = time.perf_counter()
        if self.label is None:
            return
        tenths_before = 10 * before // self.total
        tenths = 10 * self.done // self.total
        if tenths > tenths_before:
            self.print_line(loss)

    def print_line(self, loss: float) -> None:
        """Print how much is done and, if anything was trained here, how long the rest takes."""
        line = f"{self.label}: {100 * self.done // self.total} %, loss {loss:.3g}"
        trained = self.done - self.done_at_first
        if trained > 0:
            pace = (time.perf_counter() - self.begun) / trained
            line += f", {duration(pace * (self.total - self.done))} left"
        print(line, flush=True)
