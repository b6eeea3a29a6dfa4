"""`train_pool`: a recipe and images -> a pool, whatever of it is missing; refusals before anything
is written.
"""

from __future__ import annotations

import time
from typing import Any

from mia_nb import data, defenses, models
from mia_nb.arguments import Array, Flag, PathLike, Positive, Real
from mia_nb.checks import checked, positive
from mia_nb.training.backends import check_backend
from mia_nb.training.execution import parsed
from mia_nb.training.machine import device_of
from mia_nb.training.making import finish, is_begun, is_complete, reopened, rows_to_make
from mia_nb.training.placing import SPLIT, complete, membership, place
from mia_nb.training.pool import Pool, load_pool
from mia_nb.training.trials import check
from mia_nb.training.workers import check_workers, train_rows, workers_for
from mia_nb.types import Images, Recipe


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
    # these three refuse names and numbers that mean nothing; what they return is not needed yet
    device_of(device, here=False)
    parsed(strategy)
    positive("checkpoint", checkpoint, zero=True)
    parent = open_parent(recipe, images, root)
    placed = place(recipe, images, *membership(recipe, images, member, parent), root, parent)
    pool = reopened(placed, images)
    if not force and is_complete(pool):
        return finish(pool, "cached", progress)
    if backend == "loky":
        device_of(device)  # it trains here
    plan = placed.plan(images, parent)  # what is asked for says what is trained, not the folder
    if not is_begun(pool):
        check(plan, int(pool.population.sum()), parent)
    begun = time.perf_counter()
    where = {"device": device, "workers": workers, "backend": backend}
    with workers_for(pool, plan, **where) as count:
        if force and is_begun(pool):
            check_workers(pool, count, device, backend)
        rows = rows_to_make(pool, images, force)  # with force it removes models: checks come before
        train_rows(
            pool,
            plan,
            rows,
            count,
            strategy=strategy,
            checkpoint=checkpoint,
            progress=progress,
            **where,
        )
    return finish(pool, f"trained in {time.perf_counter() - begun:.1f} s", progress)


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
