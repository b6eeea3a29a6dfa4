"""`train_pool` makes a pool from a recipe and images; what cannot be trained is refused before
anything is written.

The training of a model itself is in `mia_nb.training.loop`.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from mia_nb import data, defenses, models
from mia_nb.arguments import Array, Flag, PathLike, Positive, Real
from mia_nb.checks import checked, positive
from mia_nb.training.backends import check_backend, started
from mia_nb.training.execution import (
    chosen_record,
    parse_strategy,
    processes_worth_starting,
    read_or_choose,
    units_at_a_time,
)
from mia_nb.training.machine import device_of
from mia_nb.training.making import finish, is_begun, is_complete, rows_to_make, write_inputs
from mia_nb.training.placing import SPLIT, complete, membership, place, warn_of_large_rows
from mia_nb.training.pool import Pool, load_pool
from mia_nb.training.trials import check
from mia_nb.training.workers import check_workers, train_rows
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
    compiled: Flag = False,
    workers: Positive | None = None,
    backend: str = "loky",
    progress: Flag = True,
    force: Flag = False,
    checkpoint: Real = 60.0,
) -> Pool:
    """Train the missing models of a pool, or load it if it is complete.

    A model depends on the recipe, its row and the epoch alone. A killed run is resumed: on a CPU
    with the same bits, on a GPU up to the order of its sums.

    Parameters:
        recipe: determines the models. With `parent`, the key of a pool in the same root, row m
            starts from the weights of that pool's row m and has the same members; with epochs=0 the
            weights are not trained further, say to run at other `timesteps`.
        images: the images that the models are trained on.
        member: (M, N) of booleans, or 0 and 1, with split="given"; None draws it from the recipe's
            split, population and seed. Equal rows repeat one training and are not references of
            each other. All rows take as many steps, those of their mean number of members: a
            warning says where some members of the largest are never trained on.
        root: the folder of results.
        device: "cpu", "cuda" or "cuda:NUMBER"; None: a GPU if there is one.
        strategy: how models share the machine. "plain": one after another. "stacked:G": G models
            together, "stacked" means 16. "auto": stacked if a step's activations fit a core's cache
            (on a GPU: below a million weights), else plain. If stacking is not possible, models
            are trained one by one, and one line says why. A pool goes on as it was begun.
        compiled: compile the steps, which pays for long trainings; likewise if it is possible.
        workers: units (a model, or a stacked group) that are trained at a time; None: one per core
            or GPU, and on a CPU this process alone if the training takes only seconds. A lost
            worker costs the work since its unit's last part file.
        backend: where the workers are. "loky": processes of this machine. "dask": the active
            `distributed.Client`, or local workers. "ray": the cluster that Ray is connected to, or
            local workers. All must see `root`; name their device if it is not that of this machine.
        progress: show a bar, or plain lines if MIA_NB_MODE is batch.
        force: remove the stored models and train them again.
        checkpoint: seconds between part files of a running group.

    Returns:
        A `Pool`.

    Raises:
        ValueError: the recipe cannot be trained; models diverged (the others are kept); the pool
            was begun on another device; the parent has another split, other images, or was not
            trained to its end.

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
    # these three are called for their errors alone
    device_of(device, here=False)
    parse_strategy(strategy)
    positive("checkpoint", checkpoint, zero=True)
    parent = open_parent(recipe, images, root)
    member, population = membership(recipe, images, member, parent)
    if recipe.split == "given" and parent is None:
        warn_of_large_rows(recipe, member)
    pool = place(recipe, images, member, population, root, parent)
    if not force and is_complete(pool):
        return finish(pool, "cached", progress)
    plan = pool.plan(images, parent)
    if not is_begun(pool):
        parent_recipe = None if parent is None else parent.recipe
        check(plan, int(population.sum()), parent_recipe)
    begun = time.perf_counter()
    local = backend == "loky"  # processes of this machine
    to_start = processes_worth_starting(plan, device, workers) if local else workers
    with started(backend, to_start, pool.record["builder"], device) as count:
        if force and not local:
            write_inputs(pool, images)
            check_workers(pool, device, count)
        # with force this removes the stored models, so that all checks come before
        rows = rows_to_make(pool, images, force)
        if rows:
            # The size of a stacked group depends on the number of units at a time. On this machine
            # that is the number of cores even if a short training uses this process alone, or the
            # size would depend on a measured time.
            units = units_at_a_time(recipe, device, workers) if local else count
            choose = partial(chosen_record, plan, device, strategy, compiled, units)
            execution = read_or_choose(pool.folder, device, choose, here=local)
            train_rows(
                pool,
                plan,
                rows,
                execution,
                backend=backend,
                count=count,
                checkpoint=checkpoint,
                progress=progress,
            )
    seconds = time.perf_counter() - begun
    return finish(pool, f"trained in {seconds:.1f} s", progress)


def finetune_pool(pool: Pool, recipe: Recipe, images: Images, **options: Any) -> Pool:
    """Train every model of a pool further, by `recipe` with the pool as its parent and the pool's
    split. The new pool is stored beside it, in the same root.

    Parameters:
        pool: at the end of its training.
        recipe: of the further training.
        images: the pool's own.
        options: as for `train_pool`.

    Raises:
        ValueError: as `train_pool`.
    """
    check_at_end(pool)
    split = {name: getattr(pool.recipe, name) for name in SPLIT}
    recipe = recipe.replace(parent=pool.key, **split)
    return train_pool(recipe, images, root=pool.folder.path.parent, **options)


def check_at_end(pool: Pool) -> None:
    """ValueError for a pool `at` an earlier epoch: a derived pool starts from the last weights."""
    if pool.epoch is not None:
        raise ValueError(
            f"this is pool {pool.folder.path.name} as it was after epoch {pool.epoch}, and pools"
            f" are derived from the end of training: train one of {pool.epoch} epochs and derive"
            " from that"
        )


def open_parent(recipe: Recipe, images: Images, root: PathLike) -> Pool | None:
    """The pool that a recipe starts from; ValueError if it does not fit."""
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
    """ValueError if nothing can be derived from a pool: it was trained on other images, lacks
    models, or was trained under a defense that changes its networks.

    Parameters:
        parent: the pool.
        images: those of the derived pool.
        defense: of the derived pool, which may be the parent's own.
    """
    name = parent.folder.path.name
    trained_under = parent.recipe.defense
    under_another = trained_under not in (None, defense)
    if under_another and defenses.find(trained_under).module is not None:
        raise ValueError(
            f"pool {name} is trained under {trained_under}, which changes the network: train one"
            " without it, and derive from that"
        )
    if not parent.is_about(images):
        raise ValueError(
            f"pool {name} was trained on other images than these ({images.name}): who is a member"
            " would mean nothing; derive pools with the parent's own images"
        )
    for m, status in enumerate(parent.status):
        if status != "trained":
            raise ValueError(f"model {m} of pool {name} is {status}: nothing can start from it")
