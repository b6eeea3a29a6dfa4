"""Units of work: a unit is one group of rows; who holds its lock trains it, who finds it free and
unfinished takes it. A worker that dies frees its locks.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator

import filelock
import numpy as np
import torch
from tqdm.auto import tqdm

from mia_nb.models.solvers import BlownUp
from mia_nb.store import Corrupt, Folder
from mia_nb.training.clipped import group_of
from mia_nb.training.loop import TRACE_FLOOR, Group, Plan, learning_rate, short_of_memory
from mia_nb.training.pool import (
    Pool,
    diverged_name,
    read_weights,
    stopped_name,
    trace_name,
    weights_name,
    write_weights,
)

REPORTS = ".tmp-progress-"  # how folders begin in which workers report their progress
# (rows, epochs that they have behind them, mean loss)
Progress = Callable[[list[int], int, float], None]


def units(rows: list[int], group: int) -> list[list[int]]:
    """Rows of a pool in groups of so many, the last one maybe smaller."""
    return [rows[start : start + group] for start in range(0, len(rows), group)]


def unit_name(rows: list[int]) -> str:
    """What a unit's lock and part files are called by."""
    return f"part_{rows[0]:03d}-{rows[-1]:03d}"


def work(
    pool: Pool,
    plan: Plan,
    threads_each: int,
    todo: list[list[int]],
    *,
    checkpoint: float,
    progress: Progress,
    wait: bool = True,
) -> None:
    """Train what these units lack.

    Parameters:
        pool: where models are stored.
        plan: how they are trained, on its device.
        threads_each: torch's threads meanwhile.
        todo: rows of each unit.
        checkpoint: seconds between part files.
        progress: called after each epoch of a unit.
        wait: whether to wait for units that others hold a lock on, and train what those did not
            finish.
    """

    def make(rows: list[int]) -> None:
        train_unit(pool, plan, rows, checkpoint, progress)

    with threads(threads_each):
        share(pool, todo, make, wait)


def make_each(
    pool: Pool, rows: list[int], make: Callable[[int], None], what: str, progress: bool
) -> None:
    """make(row) for one row after another, with a bar.

    Parameters:
        pool: whose rows.
        rows: that are missing.
        make: makes one.
        what: what the bar says.
        progress: whether it is shown.
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
    """make(rows) for every unit of which something is unfinished, under its lock; those that
    others work on come last.
    """
    for timeout in (0, -1) if wait else (0,):
        for rows in todo:
            with (
                contextlib.suppress(filelock.Timeout),
                pool.folder.lock(unit_name(rows), timeout=timeout),
            ):
                if pool.unfinished(rows):
                    make(rows)


def useful_threads(values: int, most: int | None = None) -> int:
    """Threads for querying a network with so many input values at a time: one where that is little,
    since on a busy machine the threads of small operations mostly wait for each other (measured:
    ten times and more).
    """
    if values < 2**18:
        return 1
    return most or torch.get_num_threads()


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Torch's number of threads for the time being: it enters the bits of a result."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_unit(
    pool: Pool, plan: Plan, rows: list[int], checkpoint: float, progress: Progress
) -> None:
    """Train one group to the end, in halves where it does not fit into memory. ValueError for one
    model that does not fit.

    On a CPU stacked models do not depend on how many they are; on a GPU sums run in another order.
    """
    try:
        return _train_group(pool.folder, plan, rows, checkpoint, progress)
    except RuntimeError as error:
        if not short_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:160]
    torch.cuda.empty_cache()  # outside of the handler, whose traceback holds the group's tensors
    if len(rows) == 1:
        raise ValueError(
            f"model {rows[0]} does not fit into memory ({reason}): take a smaller batch or network,"
            " fewer workers on this device, or a larger device; what is finished is kept"
        )
    half = len(rows) // 2
    print(
        f"{len(rows)} models do not fit into memory together: training {half} at a time",
        file=sys.stderr,
    )
    for part in (rows[:half], rows[half:]):
        if pool.unfinished(part):
            train_unit(pool, plan, part, checkpoint, progress)
    remove_parts(pool.folder, unit_name(rows))


def _train_group(
    folder: Folder, plan: Plan, rows: list[int], checkpoint: float, progress: Progress
) -> None:
    """Train one group from its part file if there is one; finished models are written one file
    each.
    """
    group = group_of(plan, rows)
    epochs = plan.recipe.epochs
    history, traces = _resumed(folder, group)
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
            history.append(losses.double().mean(1).tolist())
        else:  # a Poisson epoch may be empty
            history.append(history[-1] if history else [0.0] * len(rows))
        _trace(plan, rows, traces, epoch, order.numpy(), losses.double().numpy())
        progress(rows, epoch + 1, float(np.mean(history[-1])))
        if not np.isfinite(history[-1]).any():
            break
        if epoch + 1 in plan.recipe.snapshots:
            for slot, m in enumerate(rows):
                write_weights(folder, weights_name(m, epoch + 1), group.weights(slot))
        if time.monotonic() - saved >= checkpoint and epoch + 1 < epochs:
            _write_part(folder, group, history, traces)
            saved = time.monotonic()
    for slot, m in enumerate(rows):
        _finish(folder, group, slot, [losses[slot] for losses in history], traces[m])
    remove_parts(folder, unit_name(rows))


def _trace(
    plan: Plan,
    rows: list[int],
    traces: dict[int, np.ndarray],
    epoch: int,
    order: np.ndarray,
    losses: np.ndarray,
) -> None:
    """Note an epoch's losses in the traces of the rows, each a row's members in sample order."""
    for m, samples, row_losses in zip(rows, order, losses, strict=True):
        place = np.cumsum(plan.member[m]) - 1
        # logarithms, as a loss in float16 would underflow below 6e-8
        traces[m][epoch, place[samples]] = np.log(np.maximum(row_losses, TRACE_FLOOR))


def _finish(
    folder: Folder, group: Group, slot: int, history: list[float], trace: np.ndarray
) -> None:
    """Write what one model ends with: weights and trace, or that it diverged."""
    m = group.ids[slot]
    recipe = group.plan.recipe
    weights = group.weights(slot)
    bad = [epoch for epoch, loss in enumerate(history) if not np.isfinite(loss)]
    if bad or not all(tensor.isfinite().all() for tensor in weights.values()):
        first = bad[0] if bad else max(recipe.epochs - 1, 0)
        lr = learning_rate(recipe, first / max(recipe.epochs, 1), history[:first])
        folder.write_json(diverged_name(m), {"epoch": first + 1, "lr": lr})
        return
    if recipe.defense == "early_stopping":
        best = {"epoch": int(group.stopped[slot]), "held_out_loss": float(group.best[slot])}
        folder.write_json(stopped_name(m), best)
    write_weights(folder, weights_name(m), weights)
    folder.write_array(trace_name(m), trace)


def _write_part(
    folder: Folder, group: Group, history: list[list[float]], traces: dict[int, np.ndarray]
) -> None:
    """Write a part file, then remove the older ones."""
    older = _parts(folder, group.ids)
    done = len(history)
    part = group.state()
    part["history"] = torch.tensor(history, dtype=torch.float64)
    for m, trace in traces.items():
        part[f"trace.{m}"] = torch.from_numpy(trace[:done].copy())
    write_weights(folder, f"{unit_name(group.ids)}_{done:05d}.safetensors", part)
    folder.remove(*older)


def remove_parts(folder: Folder, unit: str = "part") -> None:
    """Part files of a finished unit, or of all, also those that a kill left unrecorded."""
    folder.remove(*(path.name for path in folder.path.glob(unit + "_*")))


def remove_leftovers(folder: Folder) -> None:
    """What killed runs left in the folder of a pool that is finished now."""
    remove_parts(folder)
    for reports in folder.path.glob(f"{REPORTS}*"):
        shutil.rmtree(reports, ignore_errors=True)


def _parts(folder: Folder, rows: list[int]) -> list[str]:
    """Names of a unit's part files, the furthest last; the epoch is in the name, so that a new one
    never replaces the old.
    """
    pattern = unit_name(rows) + r"_\d{5}\.safetensors"
    return sorted(name for name in folder.files() if re.fullmatch(pattern, name))


def _resumed(folder: Folder, group: Group) -> tuple[list[list[float]], dict[int, np.ndarray]]:
    """The mean losses (epochs, G) that a group has behind it and each row's trace (epochs,
    members), from its furthest part file, which is loaded: one that is intact and fits the group,
    and from whose epoch on no snapshot is missing.
    """
    plan = group.plan
    recipe = plan.recipe
    traces = {}
    for m in group.ids:
        members = int(plan.member[m].sum())
        traces[m] = np.full((recipe.epochs, members), np.nan, np.float16)
    for name in reversed(_parts(folder, group.ids)):
        done = int(name.removesuffix(".safetensors").rpartition("_")[2])
        snapshots = [
            weights_name(m, epoch) for m in group.ids for epoch in recipe.snapshots if epoch <= done
        ]
        if not all(folder.intact(snapshot) for snapshot in snapshots):
            continue
        part = _read_part(folder, name, group, done) if 0 < done < recipe.epochs else None
        if part is None:
            print(
                f"{folder.path / name} was truncated or altered: going on from before it",
                file=sys.stderr,
            )
            continue
        for m, trace in traces.items():
            trace[:done] = part.pop(f"trace.{m}").numpy()
        history = part.pop("history").tolist()
        group.load(part)
        return history, traces
    return [], traces


def _read_part(
    folder: Folder, name: str, group: Group, done: int
) -> dict[str, torch.Tensor] | None:
    """A part file after so many epochs; None where it is altered or does not fit the group."""
    shapes = {key: tuple(tensor.shape) for key, tensor in group.state().items()}
    shapes["history"] = (done, len(group.ids))
    for m in group.ids:
        shapes[f"trace.{m}"] = (done, int(group.plan.member[m].sum()))
    try:
        part = read_weights(folder, name)
    except Corrupt:
        return None
    if not shapes.keys() <= part.keys():
        return None
    if not all(_fits(key, tensor, shapes) for key, tensor in part.items()):
        return None
    return part


def _fits(name: str, tensor: torch.Tensor, shapes: dict[str, tuple]) -> bool:
    """Whether an entry of a part file has the shape of what it is about.

    A fused optimiser writes beyond the end of a state that is too short for its parameter.
    """
    shape = tuple(tensor.shape)
    if name in shapes:
        return shape == shapes[name]
    kind, _, rest = name.partition(".")
    if kind == "o":  # what an optimiser keeps of a parameter: a number, or as many as it has
        parameter = f"p.{rest.rpartition('.')[0]}"
        return parameter in shapes and shape in ((), shapes[parameter])
    if kind == "k":  # the best so far of a parameter or buffer
        return shape in (shapes.get(f"p.{rest}"), shapes.get(f"b.{rest}"))
    # of each model the best loss, and when
    return name in ("best", "stopped") and shape == shapes["history"][1:]
