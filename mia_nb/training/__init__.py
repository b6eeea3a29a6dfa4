"""Pools: M models of one recipe, trained on different parts of one data set, resumable, in as many processes as help."""

from __future__ import annotations

import difflib
import os
import sys
import threading
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import nn
from tqdm.auto import tqdm

from mia_nb import __version__, data, models, store
from mia_nb.training import loop
from mia_nb.training.loop import DTYPES, LOSSES, OPTIMIZERS, SCHEDULES, Group, Plan, mix
from mia_nb.training.work import Helpers, load_images, remove_parts, trace_name, unfinished, units, weights_name, work
from mia_nb.types import Images, Recipe

__all__ = ["Pool", "load_pool", "mix", "train_pool"]

FORMAT = 1  # enters every key; raise it when the same recipe starts to mean other models
STACK = 16  # models trained together at most
CACHE = 2 * 2**20  # bytes of saved activations a model and step up to which stacking pays on a CPU: one core's cache
TRACE_LIMIT = 2**30  # bytes of loss traces that `Pool.traces` puts into memory


@dataclass(frozen=True, eq=False)
class Pool:
    """Trained models and who their members are; everything is read from `folder`, checksums verified."""

    recipe: Recipe
    key: str
    member: np.ndarray  # (M, N) bool
    population: np.ndarray  # (N,) bool: set aside before training
    folder: store.Folder

    @property
    def status(self) -> list[str]:
        """Per row: "trained", "diverged in epoch e", or "missing"."""
        files, found = self.folder.files(), []
        for m in range(len(self.member)):
            if f"diverged_{m:03d}.json" in files:
                found.append(f"diverged in epoch {self.folder.read_json(f'diverged_{m:03d}.json')['epoch']}")
            else:
                found.append("trained" if weights_name(m) in files else "missing")
        return found

    @cached_property
    def traces(self) -> np.ndarray | None:
        """(M, E, N) float16 natural logarithms of per-sample training losses, from 1e-10 up; NaN where a row did not train
        on a sample in that epoch. None where they would take more than 1 GiB: read `trace(m)` one by one then."""
        models, samples = self.member.shape
        if models * self.recipe.epochs * samples * 2 > TRACE_LIMIT:
            return None
        return np.stack([self.trace(m) for m in range(models)])

    def trace(self, model: int) -> np.ndarray:
        """(E, N) of one row, as `traces`; all NaN for a row that was not trained to its end."""
        full = np.full((self.recipe.epochs, self.member.shape[1]), np.nan, np.float16)
        if self.status[model] == "trained":
            full[:, self.member[model]] = self.folder.read_array(trace_name(model))
        return full

    def state(self, model: int) -> dict[str, torch.Tensor]:
        """State dictionary of one row. Raises store.Corrupt where the file was altered."""
        if (status := self.status[model]) != "trained":
            raise ValueError(f"model {model} of pool {self.key[:12]} is {status}; train the pool again with another recipe")
        return safetensors.torch.load(self.folder.read_bytes(weights_name(model)))

    def model(self, model: int) -> nn.Module:
        """One row as a module in evaluation mode, on the CPU, in the recipe's dtype."""
        if self.folder.record.get("builder", "") != models.source(self.recipe.model):
            raise ValueError(
                f"the code of {self.recipe.model} is not the one pool {self.key[:12]} was trained with; train it again"
            )
        module = loop.build(self.recipe, self._images, model).to(DTYPES[self.recipe.dtype])
        module.load_state_dict(self.state(model))
        return module.eval()

    def images(self) -> Images:
        """The images, from the pool's own folder."""
        return self._images

    @cached_property
    def _images(self) -> Images:
        return load_images(self.folder)


def train_pool(
    recipe: Recipe,
    images: Images,
    *,
    member: np.ndarray | None = None,
    root: str | Path = "results",
    device: str | None = None,
    strategy: str = "auto",
    workers: int | None = None,
    progress: bool = True,
    force: bool = False,
    checkpoint: float = 60.0,
) -> Pool:
    """Train the pool of a recipe, or what of it is missing; a finished pool comes back at once.

    member (M, N) bool: drawn from recipe.split, population and seed when None; given, recipe.split must be "given".
    strategy: "auto" (by rule: stacked where a step's activations fit a core's cache, or on a GPU a network has under a million
    weights; else plain), "plain", "stacked", "stacked:G", or "measure" (times one step of each).
    workers: processes, by default as many as cores on a CPU and one on a GPU.
    checkpoint: seconds between part files of a running group, from which a killed run resumes to the same bits (same device,
    strategy and threads, which are recorded and read back). force: train again from nothing.
    Raises ValueError for recipes that cannot be trained, models that diverged (the others are kept), a pool begun elsewhere.
    """
    recipe = complete(recipe)
    member, population = _membership(recipe, images, member)
    built = {"format": FORMAT, "builder": models.source(recipe.model), **recipe.to_json()}
    key = store.content_key(built, images.digest, np.packbits(member).tobytes())
    folder = store.place(root, "pool", f"{images.name}-{recipe.model}", key)
    pool = Pool(recipe, key, member, population, folder)
    if known := folder.has("recipe.json"):
        _open(recipe, images, member, population, key, root)
        if not force and not unfinished(folder, range(len(member))):
            remove_parts(folder)
            return _announce(pool, progress, "cached")
    begun = time.perf_counter()
    with Helpers(_processes(recipe, device, workers) - 1) as helpers:
        if not known:
            check(recipe, images, member)
            _open(recipe, images, member, population, key, root)
        missing = _missing(folder, len(member), force)
        execution = _execution(recipe, images, member, folder, device, strategy, workers)
        touched = [rows for rows in units(len(member), execution["group"]) if set(rows) & set(missing)]
        count = min(len(helpers.processes), len(touched) - 1)
        with _Bar(recipe, [m for rows in touched for m in rows], execution, count + 1, progress) as bar:
            helpers.start(folder, count, checkpoint, bar.update)
            work(folder, images=images, checkpoint=checkpoint, progress=bar.update)
    return _announce(pool, progress, f"trained in {time.perf_counter() - begun:.1f} s")


def _missing(folder: store.Folder, models: int, force: bool) -> list[int]:
    """Rows to train: all with `force`, else those without an intact model; damaged files are named."""
    if force:
        if any(folder.locked(path.name.removeprefix(".lock-")) for path in folder.path.glob(".lock-part_*")):
            raise ValueError(
                f"{folder.path.name} is being trained by another process: wait for it, or stop it, before force=True"
            )
        with folder.lock():
            for name in folder.files():
                if name.split("_")[0] in ("model", "losses", "part", "diverged", "execution.json"):
                    folder.remove(name)
    missing = unfinished(folder, range(models))
    for name in [n for m in missing for n in (weights_name(m), trace_name(m)) if folder.has(n) and not folder.intact(n)]:
        print(f"{folder.path / name} was truncated or altered (checksum differs): training this model again", file=sys.stderr)
    return missing


def _cores() -> int:
    from joblib import cpu_count  # respects containers and affinity; imported here because helpers do not need it

    return cpu_count()


def _processes(recipe: Recipe, device: str | None, workers: int | None) -> int:
    """Processes worth starting: one where helpers could not import the builder, or on a GPU unless asked for more."""
    if recipe.model.startswith("__main__:"):
        return 1
    on_cpu = torch.device(device).type == "cpu" if device else not torch.cuda.is_available()
    return max(1, min(workers or (_cores() if on_cpu else 1), recipe.num_models))


def load_pool(prefix: str, root: str | Path = "results") -> Pool:
    """The pool whose key or folder name starts with the prefix. Raises ValueError for none, several, or an unfinished one."""
    folder = store.find(prefix, root, "pool")
    member = folder.read_array("member.npy")
    pool = Pool(Recipe.from_json(folder.recipe), folder.key, member, folder.read_array("population.npy"), folder)
    if (left := pool.status.count("missing")) > 0:
        raise ValueError(
            f"pool {folder.path.name} lacks {left} of its {len(member)} models: run its training again to finish it"
        )
    return pool


def complete(recipe: Recipe) -> Recipe:
    """The recipe with the optimiser's defaults written out; ValueError for a name that is not known."""
    tables = {"optimizer": OPTIMIZERS, "schedule": SCHEDULES, "loss": LOSSES, "dtype": DTYPES}
    for name, table in tables.items():
        if (value := getattr(recipe, name)) not in table:
            close = difflib.get_close_matches(str(value), list(table), 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"{name}={value!r} is not one of {', '.join(table)}{hint}")
    if recipe.defense is not None or recipe.parent is not None:
        raise ValueError(
            f"defense={recipe.defense!r}, parent={recipe.parent!r}: this version trains plain pools only; leave both empty"
        )
    # 1 and 1.0 are the same recipe
    return replace(recipe, lr=float(recipe.lr), optimizer_args={**OPTIMIZERS[recipe.optimizer][1], **recipe.optimizer_args})


def check(recipe: Recipe, images: Images, member: np.ndarray) -> None:
    """Refuse, before anything is written, what cannot be trained: ValueError of one line."""
    smallest = int(member.sum(1).min())
    if int(member.sum(1).mean()) < recipe.batch or smallest < 2:
        raise ValueError(
            f"batch={recipe.batch} is more than a model's {smallest} training samples; take a smaller batch or more data"
        )
    if recipe.augment != "none":
        data.augment_draws(recipe.augment, 1, *images.x.shape[2:], torch.Generator())
    try:
        OPTIMIZERS[recipe.optimizer][0]([torch.zeros(1, requires_grad=True)], lr=recipe.lr, fused=True, **recipe.optimizer_args)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"optimizer_args={recipe.optimizer_args} do not fit {recipe.optimizer}: {error}") from error
    models.check_width(loop.build(recipe, images, 0), images)


def _membership(recipe: Recipe, images: Images, member: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Masks (M, N) and population (N,): drawn by the recipe's split, or given."""
    samples = len(images.y)
    if (member is None) == (recipe.split == "given"):
        raise ValueError(f'split={recipe.split!r}: give a member mask with split="given", and with no other split')
    if member is not None:
        member = np.asarray(member, bool)
        if member.shape != (recipe.num_models, samples):
            raise ValueError(f"member has shape {member.shape}; wanted (num_models, samples) = {(recipe.num_models, samples)}")
        unseen = ~member.any(0)
        if recipe.population not in (0, unseen.sum()):
            raise ValueError(f"population={recipe.population}, but the given mask leaves {unseen.sum()} samples to no model")
        return member, unseen & (recipe.population > 0)
    options = {"labels": images.y.cpu().numpy(), "num_population": recipe.population, "seed": mix(recipe.seed, "member")}
    # both splits set the same samples aside, and only in pairs is "in no row" the same as "set aside"
    pairs = data.paired_membership(recipe.num_models + recipe.num_models % 2, samples, **options)
    member = pairs if recipe.split == "pairs" else data.bernoulli_membership(recipe.num_models, samples, **options)
    return member, ~pairs.any(0)


def _open(recipe: Recipe, images: Images, member, population, key: str, root: str | Path) -> None:
    """Make the pool's folder, with its images and masks in place."""
    extra = {"version": __version__, "builder": models.source(recipe.model)}
    folder = store.open_folder(root, "pool", f"{images.name}-{recipe.model}", key, recipe.to_json(), **extra)
    about = {k: getattr(images, k) for k in ("classes", "name", "digest", "mean", "std")}
    arrays = {
        "images.npy": images.x,
        "labels.npy": images.y,
        "member.npy": member,
        "population.npy": population,
        "canary.npy": images.canary,
    }
    with folder.lock():
        for name, array in arrays.items():
            if array is not None and not folder.intact(name):
                folder.write_array(name, array if isinstance(array, np.ndarray) else array.cpu().numpy())
        if not folder.intact("images.json"):
            folder.write_json("images.json", about)


def _execution(recipe, images, member, folder, device, strategy, workers) -> dict:
    """How this pool is trained: read back from its folder, or chosen and recorded there. Not part of the key."""
    with folder.lock():
        if folder.intact("execution.json"):
            return _resumed(folder, device, strategy)
        if any(name.startswith(("model_", "part_")) for name in folder.files()):
            raise ValueError(
                f"{folder.path / 'execution.json'} is missing or altered, so nobody knows how this pool was begun; "
                "train it anew with force=True"
            )
        device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        plan = Plan(recipe, images._replace(x=images.x.to(device), y=images.y.to(device)), member, device, False, False)
        group = _group(plan, strategy)
        plan = plan._replace(stacked=group > 0)
        processes = _processes(recipe, device.type, workers)
        if group and ":" not in strategy:
            group = min(group, -(-len(member) // processes))
        processes = min(processes, -(-len(member) // max(group, 1)))
        convolutional = any(p.ndim == 4 for p in loop.build(recipe, images, 0).parameters())
        execution = {
            "device": str(device),
            "stacked": group > 0,
            "group": max(group, 1),
            "threads": max(1, _cores() // processes) if device.type == "cpu" else torch.get_num_threads(),
            "channels_last": convolutional and group == 0,
            "torch": torch.__version__.split("+")[0],
        }
        folder.write_json("execution.json", execution)
    return execution


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


class _Bar:
    """One progress bar in model-epochs; plain lines, about ten in all, where MIA_NB_MODE is batch."""

    def __init__(self, recipe: Recipe, rows: list[int], execution: dict, workers: int, progress: bool):
        how = f"stacked {execution['group']}" if execution["stacked"] else "plain"
        self.label = f"training {len(rows)} {recipe.model} ({how}, {workers} x {execution['threads']} threads)"
        self.plain = os.environ.get("MIA_NB_MODE") == "batch"
        self.bar = tqdm(total=len(rows) * recipe.epochs, desc=self.label, unit="epoch", disable=not progress or self.plain)
        self.progress, self.done, self.begun, self.lock = progress, 0, time.perf_counter(), threading.Lock()

    def update(self, rows: list[int], epochs: int, loss: float) -> None:
        """Some rows are `epochs` further; called from any thread."""
        with self.lock:
            before, self.done = self.done, self.done + len(rows) * epochs
            self.bar.set_postfix(loss=f"{loss:.3g}", refresh=False)
            self.bar.update(len(rows) * epochs)
            if self.plain and self.progress and before * 10 // self.bar.total != self.done * 10 // self.bar.total:
                left = (time.perf_counter() - self.begun) * (self.bar.total / self.done - 1)
                print(f"{self.label}: {100 * self.done // self.bar.total} %, loss {loss:.3g}, {left:.0f} s left", flush=True)

    def __enter__(self):
        return self

    def __exit__(self, *exception) -> None:
        self.bar.close()


def _announce(pool: Pool, progress: bool, what: str) -> Pool:
    if progress:
        print(f"pool {pool.folder.path.name}: {len(pool.member)} models, {what}", flush=True)
    for m, status in enumerate(pool.status):
        if status.startswith("diverged"):
            lr = pool.folder.read_json(f"diverged_{m:03d}.json")["lr"]
            raise ValueError(
                f"model {m} {status} (non-finite loss at learning rate {lr:.3g}, peak lr={pool.recipe.lr}): "
                "lower lr or change the schedule; the other models are kept"
            )
    return pool
