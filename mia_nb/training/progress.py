"""How far a training is, and how long it will take."""

from __future__ import annotations

import os
import threading
import time

from tqdm.auto import tqdm

from mia_nb.training.execution import recorded_way

LONG = 60  # seconds from which on a training says beforehand how long it will take


def duration(seconds: float) -> str:
    """Seconds as one would say them: 0.4 s, 45 s, 12 min, 2 h 10 min, 3 d 4 h."""
    if seconds < 90:
        return f"{seconds:.{0 if seconds >= 9.5 else 1}f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"


class Bar:
    """One progress bar in model-epochs; plain lines, about ten in all, where MIA_NB_MODE is batch.

    Once every worker has told of an epoch, a long training says how long it will take."""

    def __init__(self, title: str, rows: list[int], epochs: int, execution: dict, workers: int, progress: bool):
        self.label = f"training {len(rows)} {title} ({recorded_way(execution)}, {workers} x {execution['threads']} threads)"
        self.what = f"{len(rows)} {title}, {epochs} epochs"
        self.measured = workers * execution["group"]  # model-epochs after which all workers have been heard of
        self.plain = os.environ.get("MIA_NB_MODE") == "batch"
        self.bar = tqdm(total=len(rows) * epochs, desc=self.label, unit="epoch", disable=not progress or self.plain)
        self.progress, self.done, self.begun, self.lock = progress, 0, time.perf_counter(), threading.Lock()

    def update(self, rows: list[int], epochs: int, loss: float) -> None:
        """Some rows are `epochs` further (or, where they begin anew, back); called from any thread."""
        with self.lock:
            before, self.done = self.done, self.done + len(rows) * epochs
            self.bar.set_postfix(loss=f"{loss:.3g}", refresh=False)
            self.bar.update(len(rows) * epochs)
            if not self.progress or not self.done:
                return
            spent = time.perf_counter() - self.begun
            left = spent * (self.bar.total / self.done - 1)
            if before < self.measured <= self.done and spent + left > LONG:
                self.bar.write(f"{self.what}: about {duration(spent + left)} on this device, from one epoch of {self.measured}")
            if self.plain and before * 10 // self.bar.total != self.done * 10 // self.bar.total:
                print(
                    f"{self.label}: {100 * self.done // self.bar.total} %, loss {loss:.3g}, {duration(left)} left", flush=True
                )

    def __enter__(self):
        return self

    def __exit__(self, *exception) -> None:
        self.bar.close()
