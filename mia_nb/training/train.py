"""`train_pool`: a recipe and images -> a pool, whatever of it is missing; refusals before anything
is written.
"""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from mia_nb import __version__, data, defenses, models, store
from mia_nb.arguments import Array, Flag, PathLike, Real, Whole
from mia_nb.checks import checked, instance, mask, one_of, positive
from mia_nb.defenses import dp_sgd
from mia_nb.models import neural_de
from mia_nb.training import loop
from mia_nb.training.clipped import ClippedGroup
from mia_nb.training.execution import (
    device_of,
    parsed,
    processes,
    training_bar,
    worth_processes,
)
from mia_nb.training.loop import DTYPES, LOSSES, OPTIMIZERS, Plan, mix
from mia_nb.training.pool import Pool, load_pool
from mia_nb.training.work import (
    bare_plan,
    masks,
    model_files,
    recipe_of,
    remove_leftovers,
    unfinished,
    units,
    weights_digest,
    work,
)
from mia_nb.training.workers import check_workers, decide, started, train_units
from mia_nb.types import Images, Recipe

# enters every key; raise it when the same recipe starts to mean other models
FORMAT = 1
# 1: on a CPU, and on a GPU one by one, convolutions learned from wrong gradients
FORMAT_OF_DP_SGD = 2
# what training writes
MADE = (
    "model",
    "losses",
    "snapshot",
    "part",
    "diverged",
    "stopped",
    "conversion",
    "execution.json",
)
# what, with the seed, draws the members of a pool
SPLIT = ("num_models", "split", "population")
# what a fine-tuned spiking pool may have otherwise than its parent
MAY_CHANGE = (
    "timesteps",
    "readout",
    "encode",
    "encode_args",
    "surrogate",
    "surrogate_args",
    "learn",
    "fold",
)


@checked
def train_pool(
    recipe: Recipe,
    images: Images,
    *,
    member: Array | None = None,
    root: PathLike = "results",
    device: str | None = None,
    strategy: str = "auto",
    workers: Whole | None = None,
    backend: str = "loky",
    progress: Flag = True,
    force: Flag = False,
    checkpoint: Real = 60.0,
) -> Pool:
    """The trained pool of a recipe; what of it is missing is trained, a finished one read.

    A model depends on the recipe, its row and the epoch alone. A killed run goes on: on a CPU to
    the same bits, on a GPU up to the order of its sums.

    Parameters:
        recipe: what determines the models. Its `parent`, the key of a pool in the same root, makes
            row m go on from that pool's row m, on the same members; with epochs=0 the weights are
            taken as they are, say at other `timesteps`.
        images: what they are trained on.
        member: (M, N) of booleans, or 0 and 1, with split="given"; None draws it from the recipe's
            split, population and seed. Rows that are alike repeat one training, and are no
            references of each other.
        root: the folder of results.
        device: "cpu", "cuda" or "cuda:NUMBER"; None takes a GPU where there is one.
        strategy: how models share the machine. "plain": one after another. "stacked:G": G models
            as one, "stacked" for 16. "auto": stacked where a step's activations fit a core's cache
            (on a GPU: below a million weights), else plain. "+compiled" behind any of the first
            three compiles its steps. What cannot be done is trained without, and one line says why.
        workers: units (a model, or a stacked group) that are trained at a time; None: one a core or
            one a GPU, and on a CPU this process alone where the training takes only seconds. A
            worker that is lost costs what it did since its unit's last part file.
        backend: where the workers are. "loky": processes of this machine. "dask": the active
            `distributed.Client`, or local workers. "ray": the cluster that Ray is connected to, or
            local workers. All must see `root`.
        progress: show a bar, or plain lines where MIA_NB_MODE is batch.
        force: train again what is there.
        checkpoint: seconds between part files of a running group.

    Returns:
        A `Pool`.

    Raises:
        ValueError: the recipe cannot be trained; models diverged (the others are kept); the pool
            was begun on another device or by another strategy; the parent has another split, other
            images, or was not trained to its end.

    Example:
        >>> from mia_nb import data, training
        >>> from mia_nb.types import Recipe
        >>> images = data.load("digits", limit=400)
        >>> recipe = Recipe(num_models=2, epochs=1)
        >>> training.train_pool(recipe, images, progress=False).member.shape
        (2, 400)
    """
    recipe = complete(recipe)
    images = data.check_images(instance("images", images, Images))
    models.allow(*models.builders_of(recipe.model, recipe.model_args))
    check_workers(workers, backend, models.architecture(recipe.model, recipe.model_args))
    device_of(device, here=False)
    parsed(strategy)
    positive("checkpoint", checkpoint, zero=True)
    parent = _parent(recipe, images, root)
    member, population = membership(recipe, images, member, parent)
    pool, extra = place(recipe, images, member, population, root, parent)
    folder = pool.folder
    if known := folder.has("recipe.json"):
        open_pool(pool, images, extra)
        if not force and not unfinished(folder, range(len(member))):
            with contextlib.suppress(store.ReadOnly):
                remove_leftovers(folder)
            return announce(pool, progress, "cached")
    begun = time.perf_counter()
    local = backend == "loky"
    count = processes(recipe, device, workers) if local else workers
    if not known:
        check(recipe, images, member, population, parent)
        open_pool(pool, images, extra)
    rows = missing(folder, len(member), force, unfinished)
    on_cpu = device_of(device, here=False).type == "cpu"
    if local and workers is None and on_cpu and not worth_processes(bare_plan(folder, images)):
        count = 1
    with started(backend, count, folder, device) as count:
        how = decide(backend, workers if local else count, folder, images, device, strategy)
        touched = [unit for unit in units(len(member), how["group"]) if set(unit) & set(rows)]
        count = min(count, len(touched))
        todo = [m for unit in touched for m in unit]
        with training_bar(_title(recipe), todo, recipe.epochs, how, count, progress) as report:
            if local and count == 1:
                work(folder, images=images, checkpoint=checkpoint, progress=report)
            else:
                train_units(folder, touched, backend, count, checkpoint, report)
    remove_leftovers(folder)
    return announce(pool, progress, f"trained in {time.perf_counter() - begun:.1f} s")


@checked
def finetune_pool(pool: Pool, recipe: Recipe, images: Images, **options) -> Pool:
    """Train every model of a pool further: `recipe` with the pool as its parent and its split,
    beside it in the same root.

    Parameters:
        options: as for `train_pool`. Raises ValueError as that does.
    """
    at_the_end(pool)
    recipe = recipe.replace(parent=pool.key, **{n: getattr(pool.recipe, n) for n in SPLIT})
    return train_pool(recipe, images, root=pool.folder.path.parent, **options)


@checked
def replace_pool(
    pool: Pool,
    recipe: Recipe,
    images: Images,
    *,
    freeze: Flag = False,
    block: dict | None = None,
    **options,
) -> Pool:
    """Replace-then-finetune: the last group of every network becomes a fresh SDE block, and
    training goes on by `recipe`.

    block: options of `models.neural_de.FlowBlock` (by default k = .5, 16 steps, T = 1: sigma 2).
    freeze: train only the block and the head. options: as for `train_pool`. Source: Hong, Wu,
    Gruber and Lee (arXiv 2501.06686), 5.4; they fine-tune half as long as they trained, and do not
    say whether all layers. Raises ValueError as `train_pool`, and for networks without a group to
    replace. Caveat: what lies before the block was trained on the same images without noise.
    """
    return finetune_pool(pool, replaced(pool.recipe, recipe, freeze, block), images, **options)


def replaced(given: Recipe, recipe: Recipe, freeze: bool, block: dict | None) -> Recipe:
    """The recipe by which networks of the `given` one go on with a block in place of their last
    group.
    """
    base = {"base": given.model, "base_args": given.model_args}
    args = base | {"freeze": bool(freeze)} | (block or {})
    return recipe.replace(model="replaced", model_args=args)


def at_the_end(pool: Pool) -> None:
    """ValueError for a pool as it was earlier: what is derived from it would start from its last
    weights.
    """
    if pool.epoch is not None:
        raise ValueError(
            f"this is pool {pool.folder.path.name} as it was after epoch {pool.epoch}, and pools"
            f" are derived from the end of training: train one of {pool.epoch} epochs and derive"
            " from that"
        )


def _parent(recipe: Recipe, images: Images, root: str | Path) -> Pool | None:
    """The pool that a recipe starts from; ValueError where it does not fit."""
    if recipe.parent is None:
        return None
    parent = load_pool(recipe.parent, root)
    if parent.key != recipe.parent:
        raise ValueError(
            f"parent={recipe.parent!r} is short for {parent.key}: a recipe names the whole key"
        )
    for name in SPLIT:
        value = getattr(recipe, name)
        of_parent = getattr(parent.recipe, name)
        if value != of_parent:
            raise ValueError(
                f"{name}={value!r}, but the parent's is {of_parent!r}: a derived pool keeps its"
                " parent's split"
            )
    check_parent(parent, images, recipe.defense)
    return parent


def check_parent(parent: Pool, images: Images, defense: str | None = None) -> None:
    """ValueError where a pool was trained on other images, lacks models, or has networks that only
    its defense makes.
    """
    name = parent.folder.path.name
    check_network(parent.recipe, defense, f"pool {name}")
    if images.digest != parent.folder.read_json("images.json", digest=str)["digest"]:
        raise ValueError(
            f"pool {name} was trained on other images than these ({images.name}): who is a member"
            " would mean nothing; derive pools with the parent's own images"
        )
    for m, status in enumerate(parent.status):
        if status != "trained":
            raise ValueError(
                f"model {m} of the parent {name} is {status}: nothing can start from it"
            )


def check_network(given: Recipe, defense: str | None, what: str) -> None:
    """ValueError where networks of the `given` recipe are those that only its defense makes, and
    the next has another.
    """
    if (
        given.defense is not None
        and given.defense != defense
        and defenses.find(given.defense).module is not None
    ):
        raise ValueError(
            f"{what} is trained under {given.defense}, which changes the network: train one without"
            " it, and derive from that"
        )


def missing(folder: store.Folder, models: int, force: bool, left: Callable) -> list[int]:
    """Rows to make: all with `force`, else those of which something is `left`; damaged files are
    named.
    """
    if force:
        if any(
            folder.locked(path.name.removeprefix(".lock-"))
            for path in folder.path.glob(".lock-part_*")
        ):
            raise ValueError(
                f"{folder.path.name} is being trained by another process: wait for it, or stop it,"
                " before force=True"
            )
        masks(folder)  # what cannot be trained again is refused before anything is removed
        with folder.lock():
            folder.remove(*(name for name in folder.files() if name.split("_")[0] in MADE))
    rows = left(folder, range(models))
    kept = recipe_of(folder).snapshots
    for name in [name for m in rows for name in model_files(m, kept)]:
        if folder.has(name) and not folder.intact(name):
            print(
                f"{folder.path / name} was truncated or altered (checksum differs): training this"
                " model again",
                file=sys.stderr,
            )
    return rows


@checked
def complete(recipe: Recipe) -> Recipe:
    """The recipe with the optimiser's defaults written out; ValueError for a name that is not
    known.
    """
    for name, table in {"optimizer": OPTIMIZERS, "loss": LOSSES}.items():
        one_of(name, getattr(recipe, name), table)
    return recipe.replace(
        optimizer_args={**OPTIMIZERS[recipe.optimizer][1], **recipe.optimizer_args},
        defense_args=defenses.arguments(recipe.defense, recipe.defense_args),
    )


def plan_of(
    recipe: Recipe,
    images: Images,
    member: np.ndarray,
    population: np.ndarray,
) -> Plan:
    """What there is to train from fresh weights, on the CPU, one model at a time."""
    return Plan(
        recipe,
        images,
        member,
        torch.device("cpu"),
        held_out=loop.held_out(recipe, population),
    )


def check(
    recipe: Recipe,
    images: Images,
    member: np.ndarray,
    population: np.ndarray,
    parent: Pool | None = None,
) -> None:
    """Refuse, before anything is written, what cannot be trained: ValueError of one line."""
    if recipe.defense is not None:
        _check_defense(recipe, int(population.sum()), parent and parent.recipe.defense)
    if parent is not None and recipe.model == parent.recipe.model == "snn":
        _same_neurons(recipe, parent.recipe)
    expected = loop.expected_members(recipe, member)
    smallest = int(member.sum(1).min())
    if parent is None and recipe.model == "snn" and recipe.model_args.get("calibration"):
        raise ValueError(
            "model_args names a calibration, but nothing was calibrated: thresholds come from"
            " convert_pool"
        )
    if expected < recipe.batch or smallest < 2:
        raise ValueError(
            f"batch={recipe.batch} is more than a model's"
            f" {expected if smallest > 1 else smallest} training samples; take a smaller batch or"
            " more data"
        )
    if recipe.augment != "none":
        data.augment_draws(recipe.augment, 1, *images.x.shape[2:], torch.Generator())
    try:
        OPTIMIZERS[recipe.optimizer][0](
            [torch.zeros(1, requires_grad=True)], lr=recipe.lr, **recipe.optimizer_args
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"optimizer_args={recipe.optimizer_args} do not fit {recipe.optimizer}: {error}"
        ) from error
    module = models.check_width(loop.begin(recipe, images, 0, parent and parent.state), images)
    models.check_training(module, images)
    neural_de.check_noise(module)
    if recipe.loss in loop.PER_STEP and models.timesteps(module) is None:
        raise ValueError(
            f"loss={recipe.loss!r} wants logits for each time step, and {recipe.model} is no"
            ' spiking network: take loss="cross_entropy", or model="snn"'
        )
    if recipe.defense == "dp_sgd":
        _try_clipping(plan_of(recipe, images, member, population))
    same = parent and all(
        getattr(recipe, f) == getattr(parent.recipe, f) for f in ("model", "model_args", "dtype")
    )
    if same and not _alike(module, parent.model(0), images):
        raise ValueError(
            f"{recipe.model} with the parent's weights gives other outputs than the parent: it"
            " computes with what its state dictionary does not hold; register that as persistent"
            " buffers"
        )


def _check_defense(recipe: Recipe, aside: int, before: str | None) -> None:
    """ValueError for a defense that this recipe, with so many images set aside and its parent's
    defense, cannot have.
    """
    defense = defenses.find(recipe.defense)
    args = recipe.defense_args
    wanted = args.get("held_out", 0)
    if defense.held_out and not 1 <= wanted <= aside:
        raise ValueError(
            f"held_out={wanted} of {aside} images set aside: defense {recipe.defense}"
            " looks at images that are no members and no non-members; take population=1000, say,"
            " and defense_args={'held_out': 500}"
        )
    if defense.logits and recipe.loss != "cross_entropy":
        raise ValueError(
            f"defense {recipe.defense} changes cross_entropy, and loss={recipe.loss!r}: take one of"
            " the two"
        )
    if recipe.defense == "dp_sgd":
        dp_sgd.checked(args, recipe, before)


def _try_clipping(plan: Plan) -> None:
    """Gradients per sample of three images against those of single losses, in float64 at weights of
    which none is 0, buffers before and after, and a clipped step of one image: so that a network
    whose clipping would bound nothing, or that carries its members past it, is refused before
    anything is written."""
    group = ClippedGroup(plan._replace(recipe=plan.recipe.replace(dtype="float64")), [0])
    x = group.shown(torch.arange(3), {})
    y = plan.images.y[:3]
    module = group.clipped.hooked.to_standard_module()
    dp_sgd.stir(group.params)

    def losses_of(network: nn.Module) -> torch.Tensor:
        torch.manual_seed(0)
        return group.criterion(models.main_logits(network(x)), y)

    with loop.random_state_kept(plan.device):
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        mixed = dp_sgd.mismatch(module, losses_of, group.params)
        changed = dp_sgd.rewritten(module, before)
        if mixed:
            raise ValueError(
                f"{plan.recipe.model} has no gradients per sample at {mixed}: samples mix in a"
                " batch, or its layer does not use it alone; DP-SGD would clip what is"
                " none"
            )
        if changed:
            raise ValueError(
                f"{plan.recipe.model}: buffer {changed} is computed from members without clipping"
                " and noise, as a forward pass of training changes it; take a layer that keeps no"
                " statistics"
            )
        one = ClippedGroup(plan, [0])
        one.seed_noise(0)
        one.step(x[None, :1].to(DTYPES[plan.recipe.dtype]), y[None, :1], 1e-6)


def _same_neurons(recipe: Recipe, parent: Recipe) -> None:
    """ValueError where weights and thresholds would be read by other neurons than those that they
    were fitted for.
    """
    own, before = recipe.model_args, parent.model_args
    names = (own.keys() | before.keys()) - set(MAY_CHANGE)
    if differing := sorted(name for name in names if own.get(name) != before.get(name)):
        raise ValueError(
            f"model_args differ from the parent's in {', '.join(differing)}: its thresholds would"
            " serve other neurons; start from {**parent.recipe.model_args, ...} and change "
            + ", ".join(MAY_CHANGE)
            + " at most"
        )


def _alike(one: nn.Module, other: nn.Module, images: Images) -> bool:
    """Whether two modules give the same logits for two images, given the same random draws."""

    def logits(module: nn.Module) -> torch.Tensor:
        dtype = next(module.parameters(), torch.zeros(())).dtype
        x = data.normalise(images.x[:2].cpu(), images.mean, images.std, dtype)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return module.eval()(x).double()

    return torch.allclose(logits(one), logits(other), rtol=1e-3, atol=1e-3, equal_nan=True)


def membership(
    recipe: Recipe, images: Images, member: np.ndarray | None, parent: Pool | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Masks (M, N) and population (N,): the parent's, drawn by the recipe's split, or given."""
    samples = len(images.y)
    given = member is not None
    derived = parent is not None
    if derived and given and not np.array_equal(member, parent.member):
        raise ValueError(
            "member differs from the parent's: a derived pool keeps its parent's members; leave"
            " member out"
        )
    if not derived and given != (recipe.split == "given"):
        raise ValueError(
            f'split={recipe.split!r}: give a member mask with split="given", and with no other'
            " split"
        )
    if derived:
        return parent.member, parent.population
    if member is not None:
        member = _given(mask("member", member, (recipe.num_models, samples)))
        # its coins
        unseen = ~member.any(0) & ~(
            images.canary if images.canary is not None else np.zeros(samples, bool)
        )
        if recipe.population not in (0, unseen.sum()):
            raise ValueError(
                f"population={recipe.population}, but the given mask leaves {unseen.sum()} samples"
                " to no model"
            )
        return member, unseen & (recipe.population > 0)
    options = {
        "labels": images.y.cpu().numpy(),
        "num_population": recipe.population,
        "seed": mix(recipe.seed, "member"),
    }
    # both splits set the same samples aside, and only in pairs is "in no row" the same as "set
    # aside"
    pairs = data.paired_membership(recipe.num_models + recipe.num_models % 2, samples, **options)
    member = (
        pairs
        if recipe.split == "pairs"
        else data.bernoulli_membership(recipe.num_models, samples, **options)
    )
    return member, ~pairs.any(0)


def _given(member: np.ndarray) -> np.ndarray:
    """The mask itself; ValueError for rows without members or non-members, a warning where some
    rows are alike.
    """
    if (uniform := np.flatnonzero(member.all(1) | ~member.any(1))).size:
        raise ValueError(
            f"rows {uniform[:5].tolist()} of member are all True or all False: each model wants"
            " members and non-members"
        )
    alike = len(member) - len({row.tobytes() for row in np.packbits(member, axis=1)})
    # one mask for all rows says that one training is to be repeated
    if 0 < alike < len(member) - 1:
        warnings.warn(
            f"{alike} of {len(member)} rows of member equal another: such models are no references"
            " of each other",
            stacklevel=4,
        )
    return member


def place(
    recipe: Recipe, images: Images, member, population, root: str | Path, parent: Pool | None
) -> tuple[Pool, dict]:
    """The pool of a recipe where it lies or would lie, and what its record says besides the recipe;
    nothing is written.
    """
    extra = {"builder": models.source(recipe.model, recipe.model_args)}
    if parent is not None:
        extra["parent_weights"] = weights_digest(parent.folder, recipe.num_models)
    # older keys stay
    settings = {n: value for n, value in recipe.to_json().items() if n != "snapshots" or value}
    number = FORMAT_OF_DP_SGD if recipe.defense == "dp_sgd" else FORMAT
    key = store.content_key(
        {"format": number, **extra, **settings}, images.digest, np.packbits(member).tobytes()
    )
    folder = store.place(root, "pool", f"{images.name}-{_title(recipe)}", key)
    return Pool(recipe, key, member, population, folder), {"version": __version__, **extra}


def _title(recipe: Recipe) -> str:
    """What a folder is called by: the model and its defense, of a spiking network also its network,
    time steps and origin.
    """
    network = models.architecture(recipe.model, recipe.model_args)
    if recipe.model == "snn":
        if recipe.parent is None:
            origin = "direct"
        elif recipe.epochs:
            origin = "tuned"
        else:
            origin = "converted"
        parts = ["snn", network, f"T{recipe.model_args.get('timesteps', 4)}", origin]
    else:
        parts = [recipe.model, network if recipe.model in models.BASES else None]
        parts += ["tuned" if recipe.parent else None]
    return "_".join(part for part in (*parts, recipe.defense) if part)


def open_pool(pool: Pool, images: Images, extra: dict) -> None:
    """Make the pool's folder, with its images and masks in place."""
    folder = pool.folder
    store.open_folder(
        folder.path.parent,
        "pool",
        f"{images.name}-{_title(pool.recipe)}",
        pool.key,
        pool.recipe.to_json(),
        **extra,
    )
    about = {k: getattr(images, k) for k in ("classes", "name", "digest", "mean", "std")}
    arrays = {
        "images.npy": images.x,
        "labels.npy": images.y,
        "member.npy": pool.member,
        "population.npy": pool.population,
        "canary.npy": images.canary,
    }
    given = [name for name, array in arrays.items() if array is not None]
    if all(map(folder.intact, [*given, "images.json"])):  # nothing to write, and so nothing to lock
        return
    with folder.lock():
        for name in given:
            if not folder.intact(name):
                array = arrays[name]
                folder.write_array(
                    name, array if isinstance(array, np.ndarray) else array.cpu().numpy()
                )
        if not folder.intact("images.json"):
            folder.write_json("images.json", about)


def announce(pool: Pool, progress: bool, what: str) -> Pool:
    """The pool, with a line about it; ValueError that names a model that diverged."""
    if progress:
        print(f"pool {pool.folder.path.name}: {len(pool.member)} models, {what}", flush=True)
    for m, status in enumerate(pool.status):
        if status.startswith("diverged"):
            lr = pool.folder.read_json(f"diverged_{m:03d}.json", lr=int | float)["lr"]
            flow = (
                ", or take more steps, or bound the drift (lipschitz)"
                if pool.recipe.model in models.FLOWS
                else ""
            )
            raise ValueError(
                f"model {m} {status} (non-finite loss at learning rate {lr:.3g}, peak"
                f" lr={pool.recipe.lr}): lower lr or change the schedule{flow}; the other models"
                " are kept"
            )
    return pool
