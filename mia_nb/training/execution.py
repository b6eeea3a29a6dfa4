"""How a pool is trained: together or one by one, compiled or not, in how many processes. Chosen
once, recorded, and read back on resume; and the bar that shows how far it is."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from joblib import cpu_count as cores  # respects containers and affinity
from tqdm.auto import tqdm

from mia_nb import models, store
from mia_nb.checks import duration, refuse, shown
from mia_nb.training import compiled, graphs, loop
from mia_nb.training.clipped import group_of
from mia_nb.training.loop import Group, Plan
from mia_nb.training.work import EXECUTION, TORCH, read_execution, threads
from mia_nb.types import Recipe

STACK = 16  # models trained together at most
# bytes of saved activations a model and step up to which stacking pays on a CPU: one core's cache
CACHE = 2 * 2**20
# seconds of training from which compiling is worth a try: twenty times what it takes, about half a
# minute
LONG = 20 * 30.0
MEASURED = "measured.json"
# of a recipe, what the seconds of a step depend on
COSTS = (
    "model",
    "model_args",
    "batch",
    "dtype",
    "loss",
    "optimizer",
    "optimizer_args",
    "schedule",
    "augment",
    "defense",
    "defense_args",
)
ANNOUNCED = 60  # seconds from which on a training says beforehand how long it will take
STRATEGIES = re.compile(r"auto|measure|(plain|stacked(:[1-9]\d*)?)(\+compiled)?|graph:[1-9]\d*")


class Strategy(NamedTuple):
    """How a plan's models take their steps."""

    kind: str  # plain | stacked | graph
    group: int = 1  # models together
    compiled: bool = False

    @property
    def family(self) -> str:
        """The kind of arithmetic, which no pool mixes."""
        return self.kind + ("+compiled" if self.compiled else "")

    def __str__(self) -> str:
        return (
            self.kind
            + (f":{self.group}" if self.kind != "plain" else "")
            + ("+compiled" if self.compiled else "")
        )

    def of(self, plan: Plan) -> Plan:
        """The plan, trained this way."""
        convolutional = any(
            p.ndim == 4 for p in loop.build(plan.recipe, plan.images, 0).parameters()
        )
        stacked = self.kind == "stacked"
        return plan._replace(
            stacked=stacked,
            channels_last=convolutional and not stacked,
            compiled=self.compiled,
            graph=self.kind == "graph",
        )


def device_of(device: str | torch.device | None, *, here: bool = True) -> torch.device:
    """The device of that name; None: a GPU where there is one.

    ValueError for a name that is none, and for a GPU that is not `here` (False: another machine's
    name will do).
    """
    chosen, count = None, torch.cuda.device_count()
    with contextlib.suppress(RuntimeError, TypeError):
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    kind, number = (chosen.type, chosen.index or 0) if chosen else (None, 0)
    refuse(
        {
            "wanted cpu, cuda or cuda:NUMBER; None takes a GPU where there is one": (
                kind not in ("cpu", "cuda")
            ),
            f"this machine has {count} GPUs that PyTorch can use; take cpu, or None": (
                here and kind == "cuda" and number >= count
            ),
        },
        f"device={shown(device)}: ",
    )
    return chosen


def processes(recipe: Recipe, device: str | None, workers: int | None) -> int:
    """Processes worth starting: one where helpers could not import the builder or a device was
    named by its number, or one a GPU unless more are wanted."""
    chosen = device_of(device)
    script = models.architecture(recipe.model, recipe.model_args).startswith("__main__:")
    if script or (device and chosen.index is not None):
        return 1
    most = cores() if chosen.type == "cpu" else torch.cuda.device_count()
    return max(1, min(workers or most, recipe.num_models))


def execution(
    folder: store.Folder, device: str | None, strategy: str, choose: Callable[[], dict]
) -> dict:
    """How this pool is made: read back from its folder, or chosen and recorded there.

    Not part of the key.
    """
    with folder.lock():
        if folder.intact(EXECUTION):
            return resumed(folder, device, strategy)
        if any(name.startswith(("model_", "part_")) for name in folder.files()):
            raise ValueError(
                f"{folder.path / EXECUTION} is missing or altered, so nobody knows how this"
                " pool was begun; train it anew with force=True"
            )
        folder.write_json(EXECUTION, {**choose(), "asked": strategy, "torch": TORCH})
    return read_execution(folder)


def resumed(folder: store.Folder, device: str | None, strategy: str, *, here: bool = True) -> dict:
    """The recorded execution; ValueError where going on from here would mix two kinds of arithmetic
    in one pool, or needs a GPU that is not `here`.
    """
    recorded, wanted = read_execution(folder), parsed(strategy)
    begun_on = torch.device(recorded["device"]).type
    device = device_of(device, here=False).type if device else begun_on
    pairs = [("device", begun_on, device), ("torch", recorded.get("torch"), TORCH)]
    # what was wanted then may not have been possible
    if isinstance(wanted, Strategy) and strategy != recorded.get("asked"):
        pairs.append(("strategy", recorded_strategy(recorded).family, wanted.family))
    way_out = "continuing would mix two kinds of arithmetic; finish it as it was begun, or train it"
    reasons = {
        f"with {name} {begun}, not {value}: {way_out} anew with force=True": begun != value
        for name, begun, value in pairs
    }
    reasons["on a GPU and there is none here; finish it there, or use force=True"] = (
        here and begun_on == "cuda" and not torch.cuda.is_available()
    )
    refuse(reasons, f"{folder.path.name} was begun ")
    return recorded


def choose(
    plan: Plan, device, strategy: str, workers: int | None, *, root: str | Path | None = None
) -> dict:
    """The execution of a training that begins here, of a plan on the CPU.

    strategy: auto (by rule, never compiled: captured on a GPU, see `side_by_side`, else stacked or
    plain), measure (`fastest`; what it measured is kept below `root`), plain, stacked or stacked:G,
    each of the last three also +compiled, or graph:G (G plain models in one CUDA graph). ValueError
    for another. What cannot be stacked, compiled or captured is trained without, and one line says
    why. Every way has a fused optimiser; convolutions are channels last unless stacked; bfloat16 is
    the recipe's to say, as it makes other models.
    """
    plan, models, way = plan.on(device_of(device)), len(plan.member), parsed(strategy)
    device, count = plan.device, processes(plan.recipe, str(plan.device), workers)
    if isinstance(way, Strategy):
        way = settled(plan, way._replace(group=min(way.group, models)))
    else:
        way = _by_rule(plan) if way == "auto" else fastest(plan, count, root)
    if way.kind != "plain" and ":" not in strategy:
        way = way._replace(group=min(way.group, -(-models // count)))
    count = min(count, -(-models // way.group))
    return {
        "device": str(device),
        "stacked": way.kind == "stacked",
        "group": way.group,
        "compiled": way.compiled,
        "graph": way.kind == "graph",
        "threads": max(1, cores() // count) if device.type == "cpu" else torch.get_num_threads(),
        "channels_last": way.of(plan).channels_last,
    }


def parsed(strategy: str) -> Strategy | str:
    """The way that a strategy names, or "auto" or "measure"; ValueError for what is none of
    them.
    """
    if not isinstance(strategy, str) or not STRATEGIES.fullmatch(strategy):
        raise ValueError(
            f"strategy={strategy!r}: wanted auto, measure, plain, stacked or stacked:NUMBER, the"
            " three also +compiled, or graph:NUMBER"
        )
    if strategy in ("auto", "measure"):
        return strategy
    name, _, compiled_too = strategy.partition("+")
    kind, _, size = name.partition(":")
    return Strategy(
        kind, int(size) if size else STACK if kind == "stacked" else 1, bool(compiled_too)
    )


def possible(plan: Plan, way: Strategy, say: Callable[[str], None] = lambda line: None) -> Strategy:
    """The way itself, or what of it this plan can be trained by; a line that says why for each
    thing that it cannot.
    """
    if way.kind == "stacked" and (reason := loop.why_not_stacked(plan)):
        say(f"training one model at a time, not stacked: {reason}")
        way = Strategy("plain", compiled=way.compiled)
    if way.kind == "graph" and (reason := graphs.why_no_graph(way.of(plan), way.group)):
        say(f"training one model at a time, not in a CUDA graph: {reason}")
        way = Strategy("plain")
    if way.compiled and (reason := compiled.why_not_compiled(way.of(plan))):
        say(f"training without compilation: {reason}")
        way = way._replace(compiled=False)
    return way


def settled(plan: Plan, way: Strategy) -> Strategy:
    """What is possible of the way that was chosen; why not all is said."""
    return possible(plan, way, partial(print, file=sys.stderr))


def recorded_strategy(recorded: dict) -> Strategy:
    """The way of an execution.json; those of older pools say nothing of compilation and graphs."""
    kind = "stacked" if recorded["stacked"] else "graph" if recorded.get("graph") else "plain"
    return Strategy(kind, recorded["group"], recorded.get("compiled", False))


def _by_rule(plan: Plan) -> Strategy:
    """On a GPU captured where that can be done; else stacked where that pays by the rule of thumb
    and can be done, else plain.
    """
    on_gpu, reason_why = plan.device.type == "cuda", None
    if on_gpu:
        way = Strategy("graph", side_by_side(plan))
        if (reason_why := graphs.why_no_graph(way.of(plan), way.group)) is None:
            return way
    small = (
        sum(p.numel() for p in loop.build(plan.recipe, plan.images, 0).parameters()) < 1_000_000
        if on_gpu
        else loop.saved_bytes(plan) <= CACHE
    )
    way = (
        Strategy("stacked", min(STACK, len(plan.member)))
        if small and not loop.why_not_stacked(plan)
        else Strategy("plain")
    )
    if reason_why:
        print(f"training {way}, not in a CUDA graph: {reason_why}", file=sys.stderr)
    return way


def side_by_side(plan: Plan) -> int:
    """How many models one CUDA graph takes by the rule of thumb, which no GPU has confirmed: at
    most 16, and so many that the activations which they keep for the backward pass fill a sixteenth
    of the device's memory (on 80 GiB TinyCNN 16, ResNet18 a few), in graphs of one size."""
    few = plan.recipe.replace(batch=min(plan.recipe.batch, graphs.TRIAL))
    each = loop.saved_bytes(plan._replace(recipe=few)) * plan.recipe.batch / few.batch
    room = int(torch.cuda.get_device_properties(plan.device).total_memory / 16 / each)
    most = 1 if plan.recipe.schedule == "plateau" else min(STACK, max(room, 1))
    return -(-len(plan.member) // -(-len(plan.member) // most))


def fastest(plan: Plan, workers: int, root: str | Path | None = None) -> Strategy:
    """The way with the least seconds per model and step: plain, or stacked in groups of 4, 8 or 16,
    on one thread of a CPU.

    On a GPU also 4 or 8 models in a CUDA graph. Where the fastest of these would still train for
    over ten minutes, plain and the best stacked group are tried compiled too. What was measured is
    kept in measured.json below the root, and read there by the next pool of the same kind (recipe
    as far as a step's time depends on it, shape of the images, device, cores, version of torch); a
    damaged file is measured again. What was chosen is checked like what was wanted. Caveat: a
    step's time on a busy machine is that of the busy machine.
    """
    folder = None if root is None else store.Folder(Path(root).resolve())
    key, models = _kind_of(plan), len(plan.member)
    known = _remembered(folder).get(key, {})
    before = dict(known)
    sizes = [] if loop.why_not_stacked(plan) else [g for g in (4, 8, STACK) if g <= models]
    plain, stacked = Strategy("plain"), [Strategy("stacked", g) for g in sizes]
    graph = [Strategy("graph", g) for g in (4, 8) if g <= models and plan.device.type == "cuda"]
    ways = [plain, *stacked, *graph]
    best = _quickest(plan, ways, known)
    steps = models * plan.steps * plan.recipe.epochs
    if LONG < known[str(best)] * steps / workers < math.inf:
        stacked = [_quickest(plan, stacked, known)] if stacked else []
        ways += [way._replace(compiled=True) for way in (plain, *stacked)]
        best = _quickest(plan, ways, known)
    # without those that failed: the next pool may have more memory, or a compiler
    known = {way: seconds for way, seconds in known.items() if seconds < math.inf}
    if folder and known != before:
        with folder.lock("measured"):
            folder.write_json(MEASURED, {**_remembered(folder), key: known})
    times = ", ".join(f"{way} {1e3 * known[str(way)]:.2f}" for way in ways if str(way) in known)
    print(
        f"ms per model and step{', measured before' * (known == before)}: {times}; taking {best}",
        file=sys.stderr,
    )
    return settled(plan, best)


def _quickest(plan: Plan, ways: list[Strategy], known: dict[str, float]) -> Strategy:
    """The way whose steps take least; what is not `known` yet is measured and added there."""
    with threads(1 if plan.device.type == "cpu" else torch.get_num_threads()):
        known |= {str(way): _tried(plan, way) for way in ways if str(way) not in known}
    return min(ways, key=lambda way: known[str(way)])


def _tried(plan: Plan, way: Strategy) -> float:
    """Seconds of a step per model; infinite where it cannot be taken this way, with a line where
    it fails.
    """
    try:
        usable = (way.kind == "stacked" and not way.compiled) or possible(plan, way) == way
        return _seconds(way.of(plan), way.group) if usable else math.inf
    except RuntimeError as error:  # that memory runs out is one
        print(f"{way} is not taken, as it fails here: {compiled.reason(error)}", file=sys.stderr)
    torch.cuda.empty_cache()  # outside of the handler, whose traceback holds tensors
    return math.inf


def _seconds(plan: Plan, models: int) -> float:
    """Seconds of a step per model: the median of four, after one that warms up, compiles or
    captures.
    """
    group = group_of(plan, list(range(models)))
    orders = [loop.epoch_order(plan, m, 0)[: plan.recipe.batch] for m in group.ids]
    with loop.random_state_kept(plan.device):
        seconds = step_seconds(group, torch.stack(orders).to(plan.device), 4)
    if plan.graph and group.graph is None:
        raise RuntimeError("its steps were not captured")
    return statistics.median_low(seconds) / models


def step_seconds(group: Group, index: torch.Tensor, repeats: int) -> list[float]:
    """Seconds of each of `repeats` optimiser steps on images (G, B), after one that warms up.

    On a GPU its peak of memory is that of the last step.
    """
    device, images, taken = group.plan.device, group.plan.images, []
    x = group.shown(index, {})
    group.seed_noise(0)
    for _ in range(repeats + 1):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        begun = time.perf_counter()
        group.step(x, images.y[index], 1e-6)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - begun)
    return taken[1:]


def _kind_of(plan: Plan) -> str:
    """All that the seconds of a step depend on, as a key."""
    recipe, device = plan.recipe.to_json(), platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        names = re.findall(r"^model name.*", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        device = next(iter(names), device)
    if plan.device.type == "cuda":
        device = torch.cuda.get_device_name(plan.device)
    here = [
        list(plan.images.x.shape[1:]),
        len(plan.images.classes),
        device,
        cores(),
        torch.__version__,
    ]
    source = models.source(plan.recipe.model, plan.recipe.model_args)
    return store.content_key({name: recipe[name] for name in COSTS} | {"here": here}, source)


def _remembered(folder: store.Folder | None) -> dict[str, dict[str, float]]:
    """What was measured below this root; nothing where the file is not there or damaged."""
    if folder is None or not folder.has(MEASURED):
        return {}
    with contextlib.suppress(store.Corrupt, AttributeError, TypeError, ValueError):
        return {
            key: {way: float(seconds) for way, seconds in ways.items()}
            for key, ways in folder.read_json(MEASURED).items()
        }
    print(f"{folder.path / MEASURED} was truncated or altered: measuring again", file=sys.stderr)
    return {}


class Bar(contextlib.AbstractContextManager):
    """One progress bar in model-epochs; plain lines, about ten in all, where MIA_NB_MODE is batch.

    Once every worker has reported an epoch, a long training says how long it will take."""

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
        how = f"{recorded_strategy(execution)}, {workers} x {execution['threads']} threads"
        self.label = f"training {len(rows)} {title}{place} ({how})"
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
        self.begun, self.base, self.announced = None, 0, False
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
            # not trained since then: a unit that begins anew, or goes on from its part file
            if self.begun is None or epoch < old or (old == 0 and epoch > 1):
                self.base += self.done - before
            self.begun = self.begun or time.perf_counter()
            if self.progress and self.done > self.base:
                pace = (time.perf_counter() - self.begun) / (self.done - self.base)
                self.tell(before, pace, loss)

    def tell(self, before: int, pace: float, loss: float) -> None:
        """Say what is due: how long it will take, and a tenth that is done; pace: seconds for a
        model-epoch.
        """
        total = self.bar.total
        if not self.announced and self.done - self.base >= self.measured:
            self.announced = True
            if pace * total > ANNOUNCED:
                self.bar.write(
                    f"{self.what}: about {duration(pace * total)} on this device, from one epoch of"
                    " each worker"
                )
        if self.plain and before * 10 // total < self.done * 10 // total:
            print(
                f"{self.label}: {100 * self.done // total} %, loss {loss:.3g},"
                f" {duration(pace * (total - self.done))} left",
                flush=True,
            )

    def __exit__(self, *exception) -> None:
        self.bar.close()
