"""The execution of a training: models together or one by one, compiled or not, in how many
processes. It is chosen once, recorded, and read back when the training is resumed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import torch
from joblib import cpu_count as cores  # respects containers and affinity

from mia_nb import models, store
from mia_nb.models.solvers import BlownUp
from mia_nb.training.clipped import group_of
from mia_nb.training.cost import saved_bytes, step_seconds
from mia_nb.training.machine import device_of, threads
from mia_nb.training.plans import Plan, build
from mia_nb.training.seeds import random_state_kept
from mia_nb.training.trials import why_not_compiled, why_not_stacked
from mia_nb.types import Recipe

EXECUTION = "execution.json"
TORCH = torch.__version__.split("+")[0]  # a pool is finished by the version that began it
STACK = 16  # models trained together, at most
# bytes of saved activations per model and step up to which stacking is faster on a CPU: a core's
# cache
CACHE = 2 * 2**20
SMALL = 1_000_000  # weights below which stacking is faster on a GPU
# seconds of training, model by model, from which further processes are started: each loads torch
# first, which takes several seconds, and stacked models take half as long or less
WORTH_A_PROCESS = 20.0


def units_at_a_time(recipe: Recipe, device: str | None, workers: int | None) -> int:
    """Number of units (models, or stacked groups) that processes of this machine train at a time.

    It is one if other processes could not import the builder, or if a device was named by its
    number. Else it is the number that was asked for, by default one per core or GPU, at most one
    per model.
    """
    chosen = device_of(device)
    in_script = models.architecture(recipe.model, recipe.model_args).startswith("__main__:")
    numbered = bool(device) and chosen.index is not None
    if in_script or numbered:
        return 1
    if workers is None:
        workers = cores() if chosen.type == "cpu" else torch.cuda.device_count()
    return min(workers, recipe.num_models)


def processes_worth_starting(plan: Plan, device: str | None, workers: int | None) -> int:
    """Number of processes for a training: as many as units at a time, but one if it takes only
    seconds on the CPU and no number was asked for.
    """
    count = units_at_a_time(plan.recipe, device, workers)
    if workers is not None or count == 1 or device_of(device).type != "cpu":
        return count
    return 1 if seconds_alone(plan) < WORTH_A_PROCESS else count


def seconds_alone(plan: Plan) -> float:
    """Seconds that a training on the CPU takes model by model in this process, estimated from its
    fastest step of three; 0 if the model diverges at once.
    """
    first_batch = torch.arange(plan.recipe.batch)[None]
    try:
        with threads(1), random_state_kept(plan.device):
            seconds = min(step_seconds(group_of(plan, [0]), first_batch, 3))
    except BlownUp:
        return 0.0
    return seconds * plan.steps * plan.recipe.epochs * len(plan.member)


def read_execution(folder: store.Folder) -> dict:
    """The execution of a pool, recorded when it was begun."""
    recorded = folder.read_json(
        EXECUTION, device=str, stacked=bool, group=int, threads=int, channels_last=bool
    )
    return {"compiled": False, **recorded}  # older records lack it


def with_record(plan: Plan, recorded: dict) -> Plan:
    """The plan with the device and strategy of a recorded execution."""
    return plan.on(torch.device(recorded["device"]))._replace(
        stacked=recorded["stacked"],
        channels_last=recorded["channels_last"],
        compiled=recorded["compiled"],
    )


def read_or_choose(
    folder: store.Folder, device: str | None, choose: Callable[[], dict], *, here: bool = True
) -> dict:
    """The execution of this pool, read from its folder, or else chosen and recorded there. It is
    not part of the key.

    Parameters:
        folder: of the pool.
        device: that is wanted, or None.
        choose: gives the execution of a pool that is not begun.
        here: whether the models are made on this machine.

    Raises:
        ValueError: if continuing would mix devices or versions of torch in a pool, or needs a GPU
            that this machine does not have.
    """
    with folder.lock():
        if not folder.intact(EXECUTION):
            folder.write_json(EXECUTION, {**choose(), "torch": TORCH})
    recorded = read_execution(folder)
    begun_on = torch.device(recorded["device"]).type
    wanted_device = device_of(device, here=False).type if device else begun_on
    begun_with = {"device": begun_on, "torch": recorded.get("torch")}
    now = {"device": wanted_device, "torch": TORCH}
    for name, begun in begun_with.items():
        if begun != now[name]:
            raise ValueError(
                f"{folder.path.name} was begun with {name} {begun}, not {now[name]}: continuing"
                " would mix two kinds of arithmetic; finish it as it was begun, or train it anew"
                " with force=True"
            )
    if here and begun_on == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"{folder.path.name} was begun on a GPU and there is none here; finish it there, or use"
            " force=True"
        )
    return recorded


def chosen_record(
    plan: Plan, device: str | None, strategy: str, compiled: bool, units: int
) -> dict:
    """The record of an execution, chosen for a training that begins. The optimiser is always fused,
    and convolutions are channels last unless stacked. Only the recipe can ask for bfloat16, which
    gives other models.

    Parameters:
        plan: of the training, on the CPU.
        device: as for `train_pool`. Where a cluster's GPU is not here, the CPU serves the trials.
        strategy, compiled: as for `train_pool`. If stacking or compiling is not possible, models
            are trained without it, and one line says why.
        units: number of units that are trained at a time.
    """
    chosen = device_of(device, here=False)
    if chosen.type == "cpu" or torch.cuda.is_available():
        plan = plan.on(chosen)
    kind, group = parse_strategy(strategy)
    stacked = kind == "stacked" or (kind == "auto" and _is_small(plan))
    if stacked:
        reason = why_not_stacked(plan)
        stacked = reason is None
        if kind == "stacked" and not stacked:
            print(f"training one model at a time, not stacked: {reason}", file=sys.stderr)
    plan = with_strategy(plan, stacked, compiled)
    if compiled:
        reason = why_not_compiled(plan)
        if reason is not None:
            print(f"training without compilation: {reason}", file=sys.stderr)
            plan = plan._replace(compiled=False)
    threads = torch.get_num_threads()
    if chosen.type == "cpu":
        # even if cores are free: the bits of a model depend on the number of threads, and on a busy
        # machine two threads took three to seven times as long as one
        threads = 1
    return {
        "device": str(chosen),
        "stacked": stacked,
        "group": _group_size(group, len(plan.member), units) if stacked else 1,
        "compiled": plan.compiled,
        "threads": threads,
        "channels_last": plan.channels_last,
    }


def _group_size(wanted: int | None, num_models: int, units: int) -> int:
    """Number of models that are stacked: the wanted one or, without one, so many that each unit
    that is trained at a time has a group.
    """
    if wanted is None:
        wanted = min(STACK, math.ceil(num_models / units))
    return min(wanted, num_models)


def parse_strategy(strategy: str) -> tuple[str, int | None]:
    """("auto", "plain" or "stacked", the number of models trained together or None); ValueError for
    anything else.
    """
    kind, colon, number = strategy.partition(":")
    if not colon and kind in ("auto", "plain", "stacked"):
        return kind, None
    if kind == "stacked" and number.isdecimal() and int(number) > 0 and str(int(number)) == number:
        return kind, int(number)
    raise ValueError(
        f"strategy={strategy!r}: wanted auto, plain, stacked or stacked:NUMBER; compiled=True"
        " compiles the steps of any"
    )


def in_words(how: dict) -> str:
    """The strategy of an execution: "plain", "stacked:8", "stacked:8, compiled"."""
    text = f"stacked:{how['group']}" if how["stacked"] else "plain"
    return f"{text}, compiled" if how["compiled"] else text


def with_strategy(plan: Plan, stacked: bool, compiled: bool) -> Plan:
    """The plan, trained stacked or not, compiled or not. Convolutional networks are channels last
    where that is possible: neither stacked nor under DP-SGD.
    """
    channels_last = False
    if not stacked and plan.recipe.defense != "dp_sgd":
        network = build(plan.recipe, plan.images, 0)
        channels_last = any(parameter.ndim == 4 for parameter in network.parameters())
    return plan._replace(stacked=stacked, channels_last=channels_last, compiled=compiled)


def _is_small(plan: Plan) -> bool:
    """Whether stacked models train faster, by a rule of thumb."""
    if plan.device.type == "cpu":
        return saved_bytes(plan) <= CACHE
    network = build(plan.recipe, plan.images, 0)
    return sum(p.numel() for p in network.parameters()) < SMALL
