"""Units of work. A unit is one group of rows; a worker takes a unit that is free and unfinished and
holds its lock during training. A worker that dies frees its locks.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

import filelock
import numpy as np
from tqdm.auto import tqdm

from mia_nb.models.solvers import BlownUp
from mia_nb.store import Folder
from mia_nb.training.clipped import group_of
from mia_nb.training.execution import with_record
from mia_nb.training.machine import enough_memory, threads
from mia_nb.training.plans import Plan
from mia_nb.training.pool import Pool, weights_name, write_weights
from mia_nb.training.progress import Progress
from mia_nb.training.saving import (
    note_losses,
    remove_parts,
    restored,
    unit_name,
    write_model,
    write_part,
)


def units(rows: list[int], group: int) -> list[list[int]]:
    """The rows in groups of this size; the last group may be smaller."""
    return [rows[start : start + group] for start in range(0, len(rows), group)]


def work(
    pool: Pool,
    plan: Plan,
    how: dict,
    todo: list[list[int]],
    *,
    checkpoint: float,
    progress: Progress,
    wait: bool = True,
) -> None:
    """Train the unfinished models of these units.

    Parameters:
        pool: stores the models.
        plan: the pool's, on the CPU.
        how: the execution, as `execution.chosen_record` gives it.
        todo: rows of each unit.
        checkpoint: seconds between part files.
        progress: called after each epoch of a unit.
        wait: whether to wait for units that others have locked, and to finish those units.
    """
    plan = with_record(plan, how)

    def make(rows: list[int]) -> None:
        _train_group(pool.folder, plan, rows, checkpoint, progress)

    advice = "a smaller batch in the recipe"
    if how["stacked"]:
        advice = 'strategy="plain" or "stacked:4" with force=True'
    with threads(how["threads"]), enough_memory(advice):
        share(pool, todo, make, wait)


def make_each(
    pool: Pool, rows: list[int], make: Callable[[int], None], what: str, progress: bool
) -> None:
    """Call make(row) for one row after another, with a bar.

    Parameters:
        pool: of the rows.
        rows: the missing ones.
        make: makes one row.
        what: the text of the bar.
        progress: whether the bar is shown.
    """
    quiet = not progress or os.environ.get("MIA_NB_MODE") == "batch"
    with tqdm(total=len(rows), desc=what, unit="model", disable=quiet) as bar:

        def make_unit(unit: list[int]) -> None:
            make(unit[0])
            bar.update()

        share(pool, units(rows, 1), make_unit)


def share(
    pool: Pool, todo: list[list[int]], make: Callable[[list[int]], None], wait: bool = True
) -> None:
    """Call make(rows) for every unfinished unit, under its lock; units that others have locked come
    last.
    """
    timeouts = [0]  # first the units that are free
    if wait:
        timeouts.append(-1)  # then those that must be waited for
    for timeout in timeouts:
        for rows in todo:
            with (
                contextlib.suppress(filelock.Timeout),
                pool.folder.lock(unit_name(rows), timeout=timeout),
            ):
                if pool.unfinished(rows):
                    make(rows)


def _train_group(
    folder: Folder, plan: Plan, rows: list[int], checkpoint: float, progress: Progress
) -> None:
    """Train one group, from its part file if there is one, and write the results of each model."""
    group = group_of(plan, rows)
    epochs = plan.recipe.epochs
    history, traces = restored(folder, group)
    if history:
        progress(rows, len(history), float(np.mean(history[-1])))
    saved = time.monotonic()
    for epoch in range(len(history), epochs):
        try:
            order, losses = group.epoch(epoch, history)
        except BlownUp:  # the solver noticed before a loss could
            history.append([float("nan")] * len(rows))
            break
        if losses.numel():
            means = losses.double().mean(1).tolist()
        elif history:  # a Poisson epoch may be empty
            means = history[-1]
        else:
            means = [0.0] * len(rows)
        history.append(means)
        note_losses(plan, rows, traces, epoch, order.numpy(), losses.double().numpy())
        progress(rows, epoch + 1, float(np.mean(history[-1])))
        if not np.isfinite(history[-1]).any():
            break
        if epoch + 1 in plan.recipe.snapshots:
            for slot, m in enumerate(rows):
                write_weights(folder, weights_name(m, epoch + 1), group.weights(slot))
        if time.monotonic() - saved >= checkpoint and epoch + 1 < epochs:
            write_part(folder, group, history, traces)
            saved = time.monotonic()
    for slot, m in enumerate(rows):
        history_of_model = [means[slot] for means in history]
        write_model(folder, group, slot, history_of_model, traces[m])
    remove_parts(folder, unit_name(rows))
