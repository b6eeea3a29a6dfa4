"""The files that a group in training writes into the pool's folder: part files, from which a killed
training is resumed, and the results of each model.
"""

from __future__ import annotations

import re
import shutil

import numpy as np
import torch

from mia_nb.store import Folder
from mia_nb.training.loop import Group
from mia_nb.training.plans import Plan
from mia_nb.training.pool import (
    diverged_name,
    read_weights,
    stopped_name,
    trace_name,
    weights_name,
    write_weights,
)
from mia_nb.training.schedules import learning_rate

REPORTS = ".tmp-progress-"  # prefix of the folders in which workers report their progress
TRACE_FLOOR = 1e-10  # the lowest loss whose logarithm is stored: a float32 loss can be exactly 0


def unit_name(rows: list[int]) -> str:
    """The prefix in the names of a unit's lock and part files."""
    return f"part_{rows[0]:03d}-{rows[-1]:03d}"


def note_losses(
    plan: Plan,
    rows: list[int],
    traces: dict[int, np.ndarray],
    epoch: int,
    order: np.ndarray,
    losses: np.ndarray,
) -> None:
    """Enter an epoch's losses into the rows' traces, in the order of each row's members."""
    for m, samples, row_losses in zip(rows, order, losses, strict=True):
        place_among_members = np.cumsum(plan.member[m]) - 1  # of each image that is a member
        # logarithms, since a loss in float16 would underflow below 6e-8
        log_losses = np.log(np.maximum(row_losses, TRACE_FLOOR))
        traces[m][epoch, place_among_members[samples]] = log_losses


def write_model(
    folder: Folder, group: Group, slot: int, history: list[float], trace: np.ndarray
) -> None:
    """Write the results of one model: its weights and trace, or a record of its divergence."""
    m = group.ids[slot]
    recipe = group.plan.recipe
    weights = group.weights(slot)
    diverged = [epoch for epoch, loss in enumerate(history) if not np.isfinite(loss)]
    if not diverged and not all(tensor.isfinite().all() for tensor in weights.values()):
        diverged = [max(recipe.epochs - 1, 0)]  # by the last steps
    if diverged:
        first = diverged[0]
        lr = learning_rate(recipe, first / max(recipe.epochs, 1), history[:first])
        folder.write_json(diverged_name(m), {"epoch": first + 1, "lr": lr})
        return
    if recipe.defense == "early_stopping":
        best = {"epoch": int(group.stopped[slot]), "held_out_loss": float(group.best[slot])}
        folder.write_json(stopped_name(m), best)
    write_weights(folder, weights_name(m), weights)
    folder.write_array(trace_name(m), trace)


def write_part(
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


def restored(folder: Folder, group: Group) -> tuple[list[list[float]], dict[int, np.ndarray]]:
    """Load a group's furthest part file that is intact. Returns the mean losses (epochs, G) so far,
    and each row's trace (epochs, members).
    """
    plan = group.plan
    traces = {}
    for m in group.ids:
        members = int(plan.member[m].sum())
        traces[m] = np.full((plan.recipe.epochs, members), np.nan, np.float16)
    for name in reversed(_parts(folder, group.ids)):
        if folder.intact(name):
            part = read_weights(folder, name)
            history = part.pop("history").tolist()
            for m, trace in traces.items():
                trace[: len(history)] = part.pop(f"trace.{m}").numpy()
            group.load(part)
            return history, traces
    return [], traces


def _parts(folder: Folder, rows: list[int]) -> list[str]:
    """Names of a unit's part files, the furthest last. The name holds the epoch, so that a new file
    never replaces an old one.
    """
    pattern = unit_name(rows) + r"_\d{5}\.safetensors"
    return sorted(name for name in folder.files() if re.fullmatch(pattern, name))


def remove_parts(folder: Folder, unit: str = "part") -> None:
    """Remove the part files of a finished unit, or of all units, including unrecorded ones."""
    folder.remove(*(path.name for path in folder.path.glob(unit + "_*")))


def remove_leftovers(folder: Folder) -> None:
    """Remove the files that killed runs left in the folder of a finished pool."""
    remove_parts(folder)
    for reports in folder.path.glob(f"{REPORTS}*"):
        shutil.rmtree(reports, ignore_errors=True)
