"""How a pool is trained: together or one by one, in how many processes. Chosen once, recorded, and read back on resume."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from mia_nb import data, models, store
from mia_nb.training import loop
from mia_nb.training.loop import DTYPES, Group, Plan
from mia_nb.types import Recipe

STACK = 16  # models trained together at most
CACHE = 2 * 2**20  # bytes of saved activations a model and step up to which stacking pays on a CPU: one core's cache


def cores() -> int:
    from joblib import cpu_count  # respects containers and affinity; imported here because helpers do not need it

    return cpu_count()


def processes(recipe: Recipe, device: str | None, workers: int | None) -> int:
    """Processes worth starting: one where helpers could not import the builder, or on a GPU unless asked for more."""
    if models.architecture(recipe.model, recipe.model_args).startswith("__main__:"):
        return 1
    on_cpu = torch.device(device).type == "cpu" if device else not torch.cuda.is_available()
    return max(1, min(workers or (cores() if on_cpu else 1), recipe.num_models))


def execution(folder: store.Folder, device: str | None, strategy: str, choose: Callable[[], dict]) -> dict:
    """How this pool is made: read back from its folder, or chosen and recorded there. Not part of the key."""
    with folder.lock():
        if folder.intact("execution.json"):
            return _resumed(folder, device, strategy)
        if any(name.startswith(("model_", "part_")) for name in folder.files()):
            raise ValueError(
                f"{folder.path / 'execution.json'} is missing or altered, so nobody knows how this pool was begun; "
                "train it anew with force=True"
            )
        chosen = {**choose(), "torch": torch.__version__.split("+")[0]}
        folder.write_json("execution.json", chosen)
    return chosen


def choose(plan: Plan, device, strategy: str, workers: int | None) -> dict:
    """The execution of a training that begins here, of a plan on the CPU."""
    recipe, images, member = plan.recipe, plan.images, plan.member
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    images = images._replace(x=images.x.to(device), y=images.y.to(device))
    group = _group(plan._replace(images=images, device=device), strategy)
    count = processes(recipe, device.type, workers)
    if group and ":" not in strategy:
        group = min(group, -(-len(member) // count))
    count = min(count, -(-len(member) // max(group, 1)))
    convolutional = any(p.ndim == 4 for p in loop.build(recipe, images, 0).parameters())
    return {
        "device": str(device),
        "stacked": group > 0,
        "group": max(group, 1),
        "threads": max(1, cores() // count) if device.type == "cpu" else torch.get_num_threads(),
        "channels_last": convolutional and group == 0,
    }


def _resumed(folder: store.Folder, device: str | None, strategy: str) -> dict:
    """The recorded execution; ValueError where going on from here would mix two kinds of arithmetic in one pool."""
    recorded = folder.read_json("execution.json")
    kind = "stacked" if recorded["stacked"] else "plain"
    kind_of = torch.device(recorded["device"]).type
    here = {"device": torch.device(device).type if device else kind_of, "torch": torch.__version__.split("+")[0]}
    if strategy not in ("auto", "measure"):
        here["strategy"] = strategy.split(":")[0]
    for name, value in here.items():
        begun = {"strategy": kind, "device": kind_of}.get(name, recorded.get(name))
        if value != begun:
            raise ValueError(
                f"{folder.path.name} was begun with {name} {begun}, not {value}: continuing would mix two kinds of arithmetic; "
                "finish it as it was begun, or train it anew with force=True"
            )
    if kind_of == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"{folder.path.name} was begun on a GPU and there is none here; finish it there, or use force=True")
    return recorded


def _group(plan: Plan, strategy: str) -> int:
    """Models stacked together, 0 for plain training of one at a time."""
    kind, _, size = strategy.partition(":")
    if kind not in ("auto", "measure", "plain", "stacked") or (size and not size.strip("0").isdigit()):
        raise ValueError(f"strategy={strategy!r}: wanted auto, measure, plain, stacked or stacked:NUMBER")
    if kind == "auto":
        if plan.device.type == "cuda":
            small = sum(p.numel() for p in loop.build(plan.recipe, plan.images, 0).parameters()) < 1_000_000
        else:
            small = loop.saved_bytes(plan) <= CACHE
        kind = "stacked" if small else "plain"
        if kind == "stacked" and loop.why_not_stacked(plan):
            kind = "plain"
    if kind == "measure":
        return _measure(plan)
    if kind == "stacked" and (reason := loop.why_not_stacked(plan)):
        print(f"training one model at a time, not stacked: {reason}", file=sys.stderr)
        return 0
    return min(int(size or STACK), len(plan.member)) if kind == "stacked" else 0


def _measure(plan: Plan) -> int:
    """Seconds of one optimiser step per model, plain against stacked groups on one thread; the fastest group size."""
    sizes = [] if loop.why_not_stacked(plan) else [g for g in (4, 8, STACK) if g <= len(plan.member)]
    seconds, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1 if plan.device.type == "cpu" else threads)
    for size in [0, *sizes]:
        trial = plan._replace(stacked=size > 0, channels_last=size == 0)
        group = Group(trial, list(range(max(size, 1))))
        index = torch.stack([loop.epoch_order(plan, m, 0)[: plan.recipe.batch] for m in group.ids]).to(plan.device)
        x = data.normalise(plan.images.x[index.reshape(-1)], plan.images.mean, plan.images.std, DTYPES[plan.recipe.dtype])
        batch = x.view(*index.shape, *x.shape[1:]), plan.images.y[index]
        runs = []
        with torch.random.fork_rng(devices=[plan.device] if plan.device.type == "cuda" else []):
            group.seed_noise(0)
            for _ in range(5):
                begun = time.perf_counter()
                group.step(*batch, 1e-6)
                if plan.device.type == "cuda":
                    torch.cuda.synchronize()
                runs.append(time.perf_counter() - begun)
        seconds[size] = sorted(runs[1:])[1] / len(group.ids)
    torch.set_num_threads(threads)
    best = min(seconds, key=seconds.get)
    shown = ", ".join(f"{'plain' if g == 0 else f'stacked {g}'} {1e3 * s:.2f}" for g, s in seconds.items())
    print(f"ms per model and step: {shown}; taking {'plain' if best == 0 else f'stacked:{best}'}", file=sys.stderr)
    return best
