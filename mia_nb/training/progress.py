"""How far a training is, and how long it will take."""

from __future__ import annotations

import os
import threading
import time

from tqdm.auto import tqdm

from mia_nb.checks import duration
from mia_nb.training.execution import recorded_way

LONG = 60  # seconds from which on a training says beforehand how long it will take


class Bar:
    """One progress bar in model-epochs; plain lines, about ten in all, where MIA_NB_MODE is batch.

    Once every worker has told of an epoch, a long training says how long it will take."""

    def __init__(
        self,
        title: str,
        rows: list[int],
        epochs: int,
        execution: dict,
        workers: int,
        progress: bool,
    ):
        place = "" if execution["device"] == "cpu" else f" on {execution['device']}"
        self.label = (
            f"training {len(rows)} {title}{place} ({recorded_way(execution)}, {workers} x"
            f" {execution['threads']} threads)"
        )
        self.what = f"{len(rows)} {title}, {epochs} epochs"
        # model-epochs in which every worker trains one epoch
        self.measured = workers * execution["group"]
        self.plain = os.environ.get("MIA_NB_MODE") == "batch"
        self.bar = tqdm(
            total=len(rows) * epochs,
            desc=self.label,
            unit="epoch",
            disable=not progress or self.plain,
        )
        self.at = dict.fromkeys(rows, 0)  # each row's epoch
        # the clock runs from the first report on, which came after start-up, queues and compilation
        self.begun, self.base, self.told = None, 0, False
        self.progress, self.done, self.lock = progress, 0, threading.Lock()

    def update(self, rows: list[int], epoch: int, loss: float) -> None:
        """Some rows have trained so many epochs, be it just now, before this run, or again; called
        from any thread.
        """
        with self.lock:
            old, before = self.at[rows[0]], self.done
            self.at |= dict.fromkeys(rows, epoch)
            self.done = sum(self.at.values())
            self.bar.set_postfix(loss=f"{loss:.3g}", refresh=False)
            self.bar.update(self.done - before)
            first = self.begun is None
            self.begun = time.perf_counter() if first else self.begun
            # not trained since then: a unit that begins anew, or goes on from its part file
            if first or epoch < old or (old == 0 and epoch > 1):
                self.base += self.done - before
            if self.progress and self.done > self.base:
                pace = (time.perf_counter() - self.begun) / (self.done - self.base)
                self.tell(before, pace, loss)

    def tell(self, before: int, pace: float, loss: float) -> None:
        """Say what is due: how long it will take, and a tenth that is done; pace: seconds for a
        model-epoch.
        """
        total = self.bar.total
        if not self.told and self.done - self.base >= self.measured:
            self.told = True
            if pace * total > LONG:
                self.bar.write(
                    f"{self.what}: about {duration(pace * total)} on this device, from one epoch of"
                    " each worker"
                )
        if self.plain and before * 10 // total < self.done * 10 // total:
            left = duration(pace * (total - self.done))
            print(
                f"{self.label}: {100 * self.done // total} %, loss {loss:.3g}, {left} left",
                flush=True,
            )

    def __enter__(self):
        return self

    def __exit__(self, *exception) -> None:
        self.bar.close()
