"""Workers: a unit of work is one group of rows; who holds its lock trains it, who finds it free and
unfinished takes it.

A worker needs nothing but the pool's folder, so the same function serves this process, others on
this machine, and other machines that see the same file system. A worker that dies frees its locks.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import filelock
import numpy as np
import safetensors.torch
import torch

from mia_nb import models
from mia_nb.data import check_images
from mia_nb.models.solvers import BlownUp
from mia_nb.store import Corrupt, Folder, content_key, find
from mia_nb.training.clipped import group_of
from mia_nb.training.loop import (
    TRACE_FLOOR,
    Group,
    Plan,
    held_out,
    learning_rate,
    short_of_memory,
)
from mia_nb.types import Images, Recipe

EXECUTION = "execution.json"
REPORTS = ".tmp-progress-"  # how folders begin in which workers report their progress
TORCH = torch.__version__.split("+")[0]  # a pool is finished by the version that began it
# (rows, epochs that they have behind them, mean loss)
Progress = Callable[[list[int], int, float], None]


def load_images(folder: Folder, *, shared: bool = False) -> Images:
    """The images a pool was trained on, from its own folder. shared: mapped, so that all processes
    of a machine hold them once, and which nobody may write to."""
    about = folder.read_json("images.json", classes=list, name=str, mean=list, std=list)
    read = folder.map_array if shared else folder.read_array
    with warnings.catch_warnings(action="ignore"):  # that what is mapped is not writable
        x = torch.from_numpy(read("images.npy", "u", (None, None, None, None)))
        y = torch.from_numpy(read("labels.npy", "i", (len(x),)))
    canary = folder.read_array("canary.npy", "b", (len(x),)) if folder.has("canary.npy") else None
    lists = {name: tuple(about[name]) for name in ("classes", "mean", "std")}
    try:
        return check_images(Images(x=x, y=y, canary=canary, name=about["name"], **lists))
    except (TypeError, ValueError) as error:
        raise folder.corrupt("images.json", error) from error


def load_plan(folder: Folder, images: Images | None = None) -> tuple[Plan, dict]:
    """The plan of a pool begun in this folder and how it is executed."""
    execution = read_execution(folder)
    plan = bare_plan(folder, images).on(torch.device(execution["device"]))
    return plan._replace(
        stacked=execution["stacked"],
        channels_last=execution["channels_last"],
        compiled=execution.get("compiled", False),  # older records lack it
    ), execution


def bare_plan(folder: Folder, images: Images | None = None) -> Plan:
    """What there is to train in this folder, on the CPU, one model at a time."""
    recipe, (member, population), parent = recipe_of(folder), masks(folder), parent_of(folder)
    images = load_images(folder, shared=True) if images is None else images

    def start(model: int) -> dict[str, torch.Tensor]:
        return read_weights(parent, weights_name(model))

    return Plan(
        recipe,
        images,
        member,
        torch.device("cpu"),
        start=parent and start,
        held_out=held_out(recipe, population),
    )


def recipe_of(folder: Folder) -> Recipe:
    """The recipe of a pool, out of its record; Corrupt where its entries are of types that no
    recipe has, ValueError where it names a builder that is not allowed here.
    """
    try:
        recipe = Recipe.from_json(folder.recipe)
    except (TypeError, AttributeError, ValueError) as error:
        raise folder.corrupt("recipe.json", error) from error
    models.check_allowed(recipe.model, recipe.model_args, f"pool {folder.path.name}")
    return recipe


def masks(folder: Folder) -> tuple[np.ndarray, np.ndarray]:
    """member (M, N) and population (N,) of a pool; Corrupt where they do not fit its recipe or each
    other.
    """
    member = folder.read_array("member.npy", "b", (recipe_of(folder).num_models, None))
    return member, folder.read_array("population.npy", "b", member.shape[1:])


def read_execution(folder: Folder) -> dict:
    """How a pool is made, as it was recorded when it was begun; Corrupt where nothing can be made
    that way.
    """
    how = folder.read_json(
        EXECUTION, device=str, stacked=bool, group=int, threads=int, channels_last=bool
    )
    try:
        torch.device(how["device"])
    except RuntimeError as error:
        raise folder.corrupt(EXECUTION, error) from error
    if min(how["group"], how["threads"]) < 1:
        raise folder.corrupt(EXECUTION, f"group={how['group']}, threads={how['threads']}")
    return how


def read_weights(folder: Folder, name: str) -> dict[str, torch.Tensor]:
    """A stored state dictionary; Corrupt where the file is altered, or is no safetensors file for
    all its checksum.
    """
    data = folder.read_bytes(name)
    try:
        return safetensors.torch.load(data)
    except Exception as error:  # its own class, KeyErrors, RuntimeErrors of torch
        raise folder.corrupt(name, error) from error


def parent_of(folder: Folder) -> Folder | None:
    """The folder of a derived pool's parent; ValueError where it is gone or was trained anew
    since.
    """
    recipe = recipe_of(folder)
    if recipe.parent is None:
        return None
    parent = find(recipe.parent, folder.path.parent, "pool")
    if weights_digest(parent, recipe.num_models) != folder.record.get("parent_weights"):
        raise ValueError(
            f"{folder.path.name} started from weights of {parent.path.name} that are no longer"
            " there (trained anew since?): derive the pool again from the weights of now"
        )
    return parent


def weights_digest(folder: Folder, num_models: int) -> str:
    """One checksum of the recorded checksums of all models: equal where the weights are equal."""
    files = folder.files()
    return content_key({}, *(files.get(weights_name(m), "") for m in range(num_models)))


def units(num_models: int, group: int) -> list[list[int]]:
    """The rows of a pool in groups of so many, the last one maybe smaller."""
    return [list(range(num_models))[start : start + group] for start in range(0, num_models, group)]


def unfinished(folder: Folder, rows: list[int]) -> list[int]:
    """Rows without an intact model (and loss trace) or a record of divergence."""
    kept = recipe_of(folder).snapshots
    return [
        m
        for m in rows
        if not folder.has(f"diverged_{m:03d}.json")
        and not all(map(folder.intact, model_files(m, kept)))
    ]


def model_files(model: int, snapshots: list[int]) -> list[str]:
    """Files of a row that was trained to its end."""
    return [trace_name(model), *(weights_name(model, epoch) for epoch in (None, *snapshots))]


def weights_name(model: int, epoch: int | None = None) -> str:
    """File of a row's weights: the last ones, or those kept after an earlier epoch."""
    return (
        f"model_{model:03d}.safetensors"
        if epoch is None
        else f"snapshot_{model:03d}_{epoch:05d}.safetensors"
    )


def trace_name(model: int) -> str:
    return f"losses_{model:03d}.npy"


def report_name(model: int) -> str:
    return f"conversion_{model:03d}.json"


def work(
    folder: Folder,
    *,
    images: Images | None = None,
    each: list[list[int]] | None = None,
    checkpoint: float = 60.0,
    progress: Progress = lambda *_: None,
    wait: bool = True,
) -> None:
    """Train whatever this pool, or `each` of these units, lacks; with `wait`, also what others held
    a lock on but did not finish.
    """
    plan, execution = load_plan(folder, images)
    make = partial(train_unit, folder, plan, checkpoint=checkpoint, progress=progress)
    each = units(len(plan.member), execution["group"]) if each is None else each
    with threads(execution["threads"]):
        share(folder, each, unfinished, make, wait)


def share(
    folder: Folder,
    each: list[list[int]],
    left: Callable,
    make: Callable[[list[int]], None],
    wait: bool = True,
) -> None:
    """make(rows) for every unit of which something is `left`, under its lock; those that others
    work on come last.
    """
    for timeout in (0, -1) if wait else (0,):
        for rows in each:
            with (
                contextlib.suppress(filelock.Timeout),
                folder.lock(unit_name(rows), timeout=timeout),
            ):
                if left(folder, rows):
                    make(rows)


def useful_threads(values: int, most: int | None = None) -> int:
    """Threads for querying a network with so many input values at a time: one where that is little,
    since on a busy machine the threads of small operations mostly wait for each other (measured:
    ten times and more)."""
    return 1 if values < 2**18 else most or torch.get_num_threads()


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Torch's number of threads for the time being: it enters the bits of a result."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def unit_name(rows: list[int]) -> str:
    return f"part_{rows[0]:03d}-{rows[-1]:03d}"


def train_unit(
    folder: Folder, plan: Plan, rows: list[int], checkpoint: float, progress: Progress
) -> None:
    """Train one group to the end, in halves where it does not fit into memory. ValueError for one
    model that does not fit.

    On a CPU stacked models do not depend on how many they are; on a GPU sums run in another order.
    """
    try:
        return _train_group(folder, plan, rows, checkpoint, progress)
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
        if unfinished(folder, part):
            train_unit(folder, plan, part, checkpoint, progress)
    remove_parts(folder, unit_name(rows))


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
        # a Poisson epoch may be empty
        before = history[-1] if history else [0.0] * len(rows)
        history.append(losses.double().mean(1).tolist() if losses.numel() else before)
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


def _trace(plan: Plan, rows, traces, epoch: int, order: np.ndarray, losses: np.ndarray) -> None:
    """Note an epoch's losses in the traces of the rows, each a row's members in sample order."""
    for m, index, loss in zip(rows, order, losses, strict=True):
        place = np.cumsum(plan.member[m]) - 1
        # logarithms, as a loss in float16 would underflow below 6e-8
        traces[m][epoch, place[index]] = np.log(np.maximum(loss, TRACE_FLOOR))


def _finish(
    folder: Folder, group: Group, slot: int, history: list[float], trace: np.ndarray
) -> None:
    """Write what one model ends with: weights and trace, or that it diverged."""
    m = group.ids[slot]
    recipe = group.plan.recipe
    weights = group.weights(slot)
    bad = [epoch for epoch, loss in enumerate(history) if not np.isfinite(loss)]
    if bad or not all(t.isfinite().all() for t in weights.values()):
        first = bad[0] if bad else max(recipe.epochs - 1, 0)
        lr = learning_rate(recipe, first / max(recipe.epochs, 1), history[:first])
        return folder.write_json(f"diverged_{m:03d}.json", {"epoch": first + 1, "lr": lr})
    if group.kept:
        best = {"epoch": int(group.stopped[slot]), "held_out_loss": float(group.best[slot])}
        folder.write_json(f"stopped_{m:03d}.json", best)
    write_weights(folder, weights_name(m), weights)
    folder.write_array(trace_name(m), trace)


def write_weights(folder: Folder, name: str, tensors: dict[str, torch.Tensor]) -> None:
    folder.write_bytes(name, safetensors.torch.save(tensors))


def _write_part(folder: Folder, group: Group, history: list[list[float]], traces: dict) -> None:
    """Write a part file, then remove the older ones."""
    older = _parts(folder, group.ids)
    done = len(history)
    flat = {
        "history": torch.tensor(history, dtype=torch.float64),
        **{f"trace.{m}": torch.from_numpy(trace[:done].copy()) for m, trace in traces.items()},
    }
    write_weights(folder, f"{unit_name(group.ids)}_{done:05d}.safetensors", group.state() | flat)
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
    return sorted(
        name
        for name in folder.files()
        if re.fullmatch(unit_name(rows) + r"_\d{5}\.safetensors", name)
    )


def _resumed(folder: Folder, group: Group) -> tuple[list[list[float]], dict[int, np.ndarray]]:
    """The mean losses (epochs, G) that a group has behind it and each row's trace (epochs,
    members), from its furthest part file, which is loaded: one that is intact and fits the group,
    and from whose epoch on no snapshot is missing.
    """
    plan, rows, recipe = group.plan, group.ids, group.plan.recipe
    counts = dict(zip(rows, plan.member[rows].sum(1), strict=True))
    traces = {m: np.full((recipe.epochs, n), np.nan, np.float16) for m, n in counts.items()}
    for name in reversed(_parts(folder, rows)):
        done = int(name.removesuffix(".safetensors").rpartition("_")[2])
        kept = [e for e in recipe.snapshots if e <= done]
        if not all(folder.intact(weights_name(m, e)) for m in rows for e in kept):
            continue
        shapes = {
            **{k: v.shape for k, v in group.state().items()},
            "history": (done, len(rows)),
            **{f"trace.{m}": (done, n) for m, n in counts.items()},
        }
        with contextlib.suppress(Corrupt):
            flat = read_weights(folder, name)
            fits = shapes.keys() <= flat.keys() and all(
                _fits(*entry, shapes) for entry in flat.items()
            )
            if 0 < done < recipe.epochs and fits:
                for m, trace in traces.items():
                    trace[:done] = flat.pop(f"trace.{m}").numpy()
                history = flat.pop("history").tolist()
                group.load(flat)
                return history, traces
        print(
            f"{folder.path / name} was truncated or altered: going on from before it",
            file=sys.stderr,
        )
    return [], traces


def _fits(name: str, tensor: torch.Tensor, shapes: dict[str, tuple]) -> bool:
    """Whether an entry of a part file has the shape of what it is about: a parameter, for what an
    optimiser keeps of it.
    """
    kind, _, of = name.partition(".")
    if kind == "o":
        of = of.rpartition(".")[0]
    parameter = shapes.get(f"p.{of}")
    buffer = shapes.get(f"b.{of}")
    allowed = {"o": ((), parameter), "k": (parameter, buffer)}
    others = (shapes.get(name, shapes["history"][1:]),)  # of each model the best loss, and when
    return tuple(tensor.shape) in allowed.get(kind, others)
