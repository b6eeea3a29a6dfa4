"""`train_pool`: a recipe and images -> a pool, whatever of it is missing; refusals before anything
is written.
"""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from mia_nb import __version__, data, defenses, models, store
from mia_nb.arguments import Array, Flag, PathLike, Positive, Real
from mia_nb.checks import checked, mask, one_of, positive
from mia_nb.training.execution import device_of, parsed
from mia_nb.training.loop import LOSSES, OPTIMIZERS, mix
from mia_nb.training.pool import Pool, load_pool, open_pool, weights_digest
from mia_nb.training.trials import check
from mia_nb.training.work import remove_leftovers
from mia_nb.training.workers import check_backend, train_rows
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
    "stored",
    "execution.json",
)
# what, with the seed, draws the members of a pool
SPLIT = ("num_models", "split", "population")


@checked
def train_pool(
    recipe: Recipe,
    images: Images,
    *,
    member: Array | None = None,
    root: PathLike = "results",
    device: str | None = None,
    strategy: str = "auto",
    workers: Positive | None = None,
    backend: str = "loky",
    progress: Flag = True,
    force: Flag = False,
    checkpoint: Real = 60.0,
) -> Pool:
    """Train the missing models of a pool, or load it if it is complete.

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
    data.check_images(images)
    models.allow(*models.builders_of(recipe.model, recipe.model_args))
    check_backend(backend, models.architecture(recipe.model, recipe.model_args))
    device_of(device, here=False)  # these three refuse what is none
    parsed(strategy)
    positive("checkpoint", checkpoint, zero=True)
    parent = open_parent(recipe, images, root)
    pool = place(recipe, images, *membership(recipe, images, member, parent), root, parent)
    known = pool.folder.has("recipe.json")

    def prepare() -> Callable[[list[int]], None]:
        if backend == "loky":
            device_of(device)  # it trains here
        plan = pool.plan(images, parent)
        if not known:
            check(plan, int(pool.population.sum()), parent)

        def make(rows: list[int]) -> None:
            train_rows(
                pool,
                plan,
                rows,
                _title(recipe),
                device=device,
                strategy=strategy,
                workers=workers,
                backend=backend,
                checkpoint=checkpoint,
                progress=progress,
            )

        return make

    return make_missing(pool, images, prepare, force=force, progress=progress)


def make_missing(
    pool: Pool,
    images: Images,
    prepare: Callable[[], Callable[[list[int]], None]],
    *,
    force: bool,
    progress: bool,
    done: str = "trained",
) -> Pool:
    """The pool with its missing rows made, or read where it is complete.

    Parameters:
        pool: where it lies or would lie.
        images: its own.
        prepare: gives what makes rows; ValueError for a pool that cannot be made here. Called only
            where there is something to make, and before any model is written or removed.
        force: whether rows that are there are made again.
        progress: whether a line says what was done.
        done: what the rows are in the end.
    """
    known = pool.folder.has("recipe.json")
    if known:
        write_inputs(pool, images)
        pool = open_pool(pool.folder)
        if not force and not pool.unfinished(range(len(pool.member))):
            with contextlib.suppress(store.ReadOnly):
                remove_leftovers(pool.folder)
            return announce(pool, progress, "cached")
    make = prepare()
    if not known:
        write_inputs(pool, images)
    begun = time.perf_counter()
    make(rows_to_make(pool, force))
    remove_leftovers(pool.folder)
    return announce(pool, progress, f"{done} in {time.perf_counter() - begun:.1f} s")


def finetune_pool(pool: Pool, recipe: Recipe, images: Images, **options: Any) -> Pool:
    """Train every model of a pool further: `recipe` with the pool as its parent and its split,
    beside it in the same root.

    Parameters:
        pool: at the end of its training.
        recipe: of the training that follows.
        images: the pool's own.
        options: as for `train_pool`.

    Raises:
        ValueError: as `train_pool`.
    """
    at_the_end(pool)
    split = {name: getattr(pool.recipe, name) for name in SPLIT}
    recipe = recipe.replace(parent=pool.key, **split)
    return train_pool(recipe, images, root=pool.folder.path.parent, **options)


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


def open_parent(recipe: Recipe, images: Images, root: PathLike) -> Pool | None:
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
    if not parent.is_about(images):
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


def rows_to_make(pool: Pool, force: bool) -> list[int]:
    """Rows to make: all with `force`, else the unfinished ones; damaged files are named."""
    folder = pool.folder
    rows = range(len(pool.member))
    if force:
        units_begun = [
            path.name.removeprefix(".lock-") for path in folder.path.glob(".lock-part_*")
        ]
        if any(folder.locked(name) for name in units_begun):
            raise ValueError(
                f"{folder.path.name} is being trained by another process: wait for it, or stop it,"
                " before force=True"
            )
        parent = pool.parent
        if parent is not None:
            for m in rows:
                parent.state(m)  # Corrupt where nothing can start from it
        with folder.lock():
            folder.remove(*(name for name in folder.files() if name.split("_")[0] in MADE))
    missing = pool.unfinished(rows)
    for name in [name for m in missing for name in pool.files_of(m)]:
        if folder.has(name) and not folder.intact(name):
            print(
                f"{folder.path / name} was truncated or altered (checksum differs): training this"
                " model again",
                file=sys.stderr,
            )
    return missing


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


def membership(
    recipe: Recipe, images: Images, member: np.ndarray | None, parent: Pool | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Masks (M, N) and population (N,): the parent's, drawn by the recipe's split, or given."""
    samples = len(images.y)
    if parent is not None:
        if member is not None and not np.array_equal(member, parent.member):
            raise ValueError(
                "member differs from the parent's: a derived pool keeps its parent's members; leave"
                " member out"
            )
        return parent.member, parent.population
    if (member is not None) != (recipe.split == "given"):
        raise ValueError(
            f'split={recipe.split!r}: give a member mask with split="given", and with no other'
            " split"
        )
    if member is not None:
        member = _given(mask("member", member, (recipe.num_models, samples)))
        unseen = ~member.any(0)
        if images.canary is not None:  # canaries are members by their coins
            unseen &= ~images.canary
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
    even = recipe.num_models + recipe.num_models % 2
    pairs = data.paired_membership(even, samples, **options)
    if recipe.split == "pairs":
        return pairs, ~pairs.any(0)
    return data.bernoulli_membership(recipe.num_models, samples, **options), ~pairs.any(0)


def _given(member: np.ndarray) -> np.ndarray:
    """The mask itself; ValueError for rows without members or non-members, a warning where some
    rows are alike.
    """
    uniform = np.flatnonzero(member.all(1) | ~member.any(1))
    if uniform.size:
        raise ValueError(
            f"rows {uniform[:5].tolist()} of member are all True or all False: each model wants"
            " members and non-members"
        )
    different = {row.tobytes() for row in np.packbits(member, axis=1)}
    repeated = len(member) - len(different)
    # one mask for all rows says that one training is to be repeated
    if 0 < repeated < len(member) - 1:
        warnings.warn(
            f"{repeated} of {len(member)} rows of member equal another: such models are no"
            " references of each other",
            stacklevel=4,
        )
    return member


def place(
    recipe: Recipe,
    images: Images,
    member: np.ndarray,
    population: np.ndarray,
    root: PathLike,
    parent: Pool | None,
    **further: str,
) -> Pool:
    """The pool of a recipe where it lies or would lie; nothing is written. What else determines its
    models is named in `further`.
    """
    extra = {"builder": models.source(recipe.model, recipe.model_args), **further}
    if parent is not None:
        extra["parent_weights"] = weights_digest(parent.folder, recipe.num_models)
    settings = recipe.to_json()
    if not recipe.snapshots:  # older keys stay
        del settings["snapshots"]
    number = FORMAT_OF_DP_SGD if recipe.defense == "dp_sgd" else FORMAT
    key = store.content_key(
        {"format": number, **extra, **settings}, images.digest, np.packbits(member).tobytes()
    )
    folder = store.place(root, "pool", f"{images.name}-{_title(recipe)}", key)
    record = {"version": __version__, **extra}
    return Pool(recipe, key, member, population, folder, record=record)


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
        parts = [recipe.model]
        if recipe.model in models.BASES:
            parts.append(network)
        if recipe.parent:
            parts.append("tuned")
    if recipe.defense:
        parts.append(recipe.defense)
    return "_".join(part for part in parts if part)


def write_inputs(pool: Pool, images: Images) -> None:
    """Make the pool's folder, with its recipe, images and masks in place."""
    folder = pool.folder
    store.open_folder(
        folder.path.parent,
        "pool",
        f"{images.name}-{_title(pool.recipe)}",
        pool.key,
        pool.recipe.to_json(),
        **pool.record,
    )
    arrays = {
        "images.npy": images.x,
        "labels.npy": images.y,
        "member.npy": pool.member,
        "population.npy": pool.population,
    }
    if images.canary is not None:
        arrays["canary.npy"] = images.canary
    if all(folder.intact(name) for name in [*arrays, "images.json"]):
        return  # nothing to write, and so nothing to lock
    about = {name: getattr(images, name) for name in ("classes", "name", "digest", "mean", "std")}
    if images.frames > 1:
        about["frames"] = images.frames
    with folder.lock():
        for name, array in arrays.items():
            if not folder.intact(name):
                if not isinstance(array, np.ndarray):
                    array = array.cpu().numpy()
                folder.write_array(name, array)
        if not folder.intact("images.json"):
            folder.write_json("images.json", about)


def announce(pool: Pool, progress: bool, what: str) -> Pool:
    """The pool, with a line about it; ValueError that names a model that diverged."""
    if progress:
        print(f"pool {pool.folder.path.name}: {len(pool.member)} models, {what}", flush=True)
    for m, status in enumerate(pool.status):
        if not status.startswith("diverged"):
            continue
        advice = "lower lr or change the schedule"
        if pool.recipe.model in models.FLOWS:
            advice += ", or take more steps, or bound the drift (lipschitz)"
        lr = pool.divergence(m)["lr"]
        raise ValueError(
            f"model {m} {status} (non-finite loss at learning rate {lr:.3g}, peak"
            f" lr={pool.recipe.lr}): {advice}; the other models are kept"
        )
    return pool
