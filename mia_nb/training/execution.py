"""The execution of a training: models together or one by one, compiled or not, in how many
processes. It is chosen once, recorded, and read back when the training is resumed.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
from joblib import cpu_count as cores  # respects containers and affinity

from mia_nb import models, store
from mia_nb.training.cost import saved_bytes
from mia_nb.training.machine import device_of
from mia_nb.training.plans import Plan, build
from mia_nb.training.trials import why_not_compiled, why_not_stacked
from mia_nb.types import Recipe

EXECUTION = "execution.json"
TORCH = torch.__version__.split("+")[0]  # a pool is finished by the version that began it
STACK = 16  # models trained together, at most
# bytes of saved activations per model and step up to which stacking is faster on a CPU: a core's
# cache
CACHE = 2 * 2**20
# seconds of training from which worker processes are started: each takes two seconds to load torch
WORTH_A_PROCESS = 20.0
STEP = 2e-3  # seconds that the smallest step takes on one core, roughly
PER_BYTE = 1e-9  # seconds that each byte of a step's activations adds
STRATEGIES = re.compile(r"auto|(plain|stacked(:[1-9]\d*)?)(\+compiled)?")


class Strategy(NamedTuple):
    """The way in which a plan's models take their steps."""

    kind: str  # plain | stacked
    group: int = 1  # models trained together
    compiled: bool = False

    @property
    def family(self) -> str:
        """The kind of arithmetic; a pool has only one."""
        return self.kind + ("+compiled" if self.compiled else "")

    def __str__(self) -> str:
        text = self.kind
        if self.kind != "plain":
            text += f":{self.group}"
        if self.compiled:
            text += "+compiled"
        return text

    def of(self, plan: Plan) -> Plan:
        """The plan, trained this way."""
        network = build(plan.recipe, plan.images, 0)
        convolutional = any(parameter.ndim == 4 for parameter in network.parameters())
        stacked = self.kind == "stacked"
        clipped = plan.recipe.defense == "dp_sgd"
        return plan._replace(
            stacked=stacked,
            channels_last=convolutional and not stacked and not clipped,
            compiled=self.compiled,
        )


def processes(recipe: Recipe, device: str | None, workers: int | None) -> int:
    """Number of processes that train at a time.

    It is one if others could not import the builder, or if a device was named by its number. Else
    it is the number that was asked for, by default one per core or GPU, at most one per model.
    """
    chosen = device_of(device)
    script = models.architecture(recipe.model, recipe.model_args).startswith("__main__:")
    if script or (device and chosen.index is not None):
        return 1
    most = cores() if chosen.type == "cpu" else torch.cuda.device_count()
    return max(1, min(workers or most, recipe.num_models))


def worth_processes(plan: Plan) -> bool:
    """Whether a training on the CPU is long enough for further processes, by a rule of thumb."""
    recipe = plan.recipe
    steps = int(plan.member.sum()) // recipe.batch * recipe.epochs
    if steps * STEP > WORTH_A_PROCESS:  # tested first, as saved_bytes costs a forward pass
        return True
    return steps * (STEP + PER_BYTE * saved_bytes(plan)) > WORTH_A_PROCESS


def read_execution(folder: store.Folder) -> dict:
    """The execution of a pool, recorded when it was begun; Corrupt if the record is no possible
    execution.
    """
    recorded = folder.read_json(
        EXECUTION, device=str, stacked=bool, group=int, threads=int, channels_last=bool
    )
    try:
        torch.device(recorded["device"])
    except RuntimeError as error:
        raise folder.corrupt(EXECUTION, error) from error
    group = recorded["group"]
    threads = recorded["threads"]
    if group < 1 or threads < 1:
        raise folder.corrupt(EXECUTION, f"group={group}, threads={threads}")
    recorded.setdefault("compiled", False)  # older records lack it
    return recorded


def with_record(plan: Plan, recorded: dict) -> Plan:
    """The plan with the device and strategy of a recorded execution."""
    return plan.on(torch.device(recorded["device"]))._replace(
        stacked=recorded["stacked"],
        channels_last=recorded["channels_last"],
        compiled=recorded["compiled"],
    )


def read_or_choose(
    folder: store.Folder, device: str | None, strategy: str, choose: Callable[[], dict]
) -> dict:
    """The execution of this pool, read from its folder, or else chosen and recorded there.

    It is not part of the key.
    """
    with folder.lock():
        if folder.intact(EXECUTION):
            return checked_record(folder, device, strategy)
        if any(name.startswith(("model_", "part_")) for name in folder.files()):
            raise ValueError(
                f"{folder.path / EXECUTION} is missing or altered, so nobody knows how this"
                " pool was begun; train it anew with force=True"
            )
        folder.write_json(EXECUTION, {**choose(), "asked": strategy, "torch": TORCH})
    return read_execution(folder)


def checked_record(
    folder: store.Folder, device: str | None, strategy: str, *, here: bool = True
) -> dict:
    """The recorded execution; ValueError if continuing would mix two kinds of arithmetic in a pool
    or, with `here`, needs a GPU that this machine does not have.
    """
    recorded = read_execution(folder)
    begun_on = torch.device(recorded["device"]).type
    wanted_device = device_of(device, here=False).type if device else begun_on
    pairs = [("device", begun_on, wanted_device), ("torch", recorded.get("torch"), TORCH)]
    wanted = parse_strategy(strategy)
    # the same request may have been impossible then, and be recorded as another strategy
    if isinstance(wanted, Strategy) and strategy != recorded.get("asked"):
        pairs.append(("strategy", recorded_strategy(recorded).family, wanted.family))
    for name, begun, value in pairs:
        if begun != value:
            raise ValueError(
                f"{folder.path.name} was begun with {name} {begun}, not {value}: continuing would"
                " mix two kinds of arithmetic; finish it as it was begun, or train it anew with"
                " force=True"
            )
    if here and begun_on == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"{folder.path.name} was begun on a GPU and there is none here; finish it there, or use"
            " force=True"
        )
    return recorded


def chosen_record(
    plan: Plan, device: str | torch.device | None, strategy: str, workers: int | None
) -> dict:
    """The record of an execution, chosen for a training that begins on this machine. The optimiser
    is always fused, and convolutions are channels last unless stacked. Only the recipe can ask for
    bfloat16, which gives other models.

    Parameters:
        plan: of the training, on the CPU.
        device: as for `train_pool`.
        strategy: auto (small networks stacked, others plain, never compiled), plain, stacked or
            stacked:G, each of the last three also with +compiled. If stacking or compiling is not
            possible, models are trained without it, and one line says why.
        workers: as for `train_pool`.

    Raises:
        ValueError: for an unknown strategy.
    """
    plan = plan.on(device_of(device))
    if emulated(plan.recipe.dtype, plan.device):
        print(
            "bfloat16 is emulated on this processor, which takes several times as long as float32;"
            ' dtype="float32" trains other models in less time',
            file=sys.stderr,
        )
    num_models = len(plan.member)
    way = parse_strategy(strategy)
    if isinstance(way, Strategy):
        way = without_impossible(plan, way._replace(group=min(way.group, num_models)))
    else:
        way = _by_rule(plan)
    way_names_its_group = ":" in strategy
    if way.kind == "stacked" and not way_names_its_group:  # so that every worker has a group
        count = processes(plan.recipe, str(plan.device), workers)
        way = way._replace(group=min(way.group, math.ceil(num_models / count)))
    threads = torch.get_num_threads()
    if plan.device.type == "cpu":
        # even if cores are free: the bits of a model depend on the number of threads, and on a busy
        # machine two threads took three to seven times as long as one
        threads = 1
    return {
        "device": str(plan.device),
        "stacked": way.kind == "stacked",
        "group": way.group,
        "compiled": way.compiled,
        "threads": threads,
        "channels_last": way.of(plan).channels_last,
    }


def emulated(dtype: str, device: torch.device) -> bool:
    """Whether arithmetic of this type is emulated: bfloat16 on processors with AVX2 but without
    AVX-512, where a convolution took 4.7 times as long as in float32.
    """
    old = torch.backends.cpu.get_cpu_capability() == "AVX2"
    return old and dtype == "bfloat16" and device.type == "cpu"


def parse_strategy(strategy: str) -> Strategy | str:
    """The `Strategy` that is named, or "auto"; ValueError for anything else."""
    if not isinstance(strategy, str) or not STRATEGIES.fullmatch(strategy):
        raise ValueError(
            f"strategy={strategy!r}: wanted auto, plain, stacked or stacked:NUMBER, the last three"
            " also with +compiled"
        )
    if strategy == "auto":
        return strategy
    name, _, compiled_too = strategy.partition("+")
    kind, _, size = name.partition(":")
    group = 1
    if kind == "stacked":
        group = int(size) if size else STACK
    return Strategy(kind, group, bool(compiled_too))


def without_impossible(plan: Plan, way: Strategy) -> Strategy:
    """The strategy without what is impossible for this plan; one line gives the reason for each
    omission.
    """
    reason = why_not_stacked(plan) if way.kind == "stacked" else None
    if reason is not None:
        print(f"training one model at a time, not stacked: {reason}", file=sys.stderr)
        way = Strategy("plain", compiled=way.compiled)
    reason = why_not_compiled(way.of(plan)) if way.compiled else None
    if reason is not None:
        print(f"training without compilation: {reason}", file=sys.stderr)
        way = way._replace(compiled=False)
    return way


def recorded_strategy(recorded: dict) -> Strategy:
    """The strategy of a record, as `read_execution` gives it."""
    kind = "stacked" if recorded["stacked"] else "plain"
    return Strategy(kind, recorded["group"], recorded["compiled"])


def _by_rule(plan: Plan) -> Strategy:
    """Stacked if that is faster by a rule of thumb and possible, else plain."""
    if plan.device.type == "cuda":
        network = build(plan.recipe, plan.images, 0)
        small = sum(p.numel() for p in network.parameters()) < 1_000_000
    else:
        small = saved_bytes(plan) <= CACHE
    if small and why_not_stacked(plan) is None:
        return Strategy("stacked", min(STACK, len(plan.member)))
    return Strategy("plain")
