"""The frame around making the models of a pool, by training or conversion: its folder, its inputs,
the missing rows, and the end of the work.
"""

from __future__ import annotations

import contextlib

import numpy as np

from mia_nb import models, store
from mia_nb.training.placing import title
from mia_nb.training.pool import Pool
from mia_nb.training.saving import remove_leftovers
from mia_nb.types import Images

INPUTS = ("images.npy", "labels.npy", "member.npy", "population.npy", "canary.npy", "images.json")
# beginnings of the names of the files that training writes
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


def is_begun(pool: Pool) -> bool:
    """Whether the pool has a folder that holds its recipe."""
    return pool.folder.has("recipe.json")


def is_complete(pool: Pool) -> bool:
    """Whether all models of the pool are made, and what they were made of is intact."""
    if pool.unfinished(range(len(pool.member))):
        return False
    inputs = [name for name in pool.folder.files() if name in INPUTS]
    return is_begun(pool) and all(pool.folder.intact(name) for name in inputs)


def rows_to_make(pool: Pool, images: Images, force: bool) -> list[int]:
    """The rows that must be made: the unfinished ones or, with `force`, all, whose models are
    removed. Writes the pool's inputs first if they are missing.

    Call it after all checks.
    """
    write_inputs(pool, images)
    if force:
        _remove_made(pool)
    return pool.unfinished(range(len(pool.member)))


def write_inputs(pool: Pool, images: Images) -> None:
    """Make the pool's folder, and write its recipe, images and masks if they are not intact."""
    folder = pool.folder
    store.open_folder(
        folder.path.parent,
        "pool",
        f"{images.name}-{title(pool.recipe)}",
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
        return  # without a lock, since nothing is written
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


def _remove_made(pool: Pool) -> None:
    """Remove all models; ValueError if another process is training them, Corrupt if weights of the
    parent are damaged.
    """
    folder = pool.folder
    units_begun = [path.name.removeprefix(".lock-") for path in folder.path.glob(".lock-part_*")]
    if any(folder.locked(name) for name in units_begun):
        raise ValueError(
            f"{folder.path.name} is being trained by another process: wait for it, or stop it,"
            " before force=True"
        )
    parent = pool.parent
    if parent is not None:
        for m in range(len(pool.member)):
            parent.state(m)
    with folder.lock():
        folder.remove(*(name for name in folder.files() if name.split("_")[0] in MADE))


def finish(pool: Pool, done: str, progress: bool) -> Pool:
    """The pool, after all its rows are made. A line says so; `done` is "cached", say.

    ValueError if a model diverged.
    """
    with contextlib.suppress(store.ReadOnly):
        remove_leftovers(pool.folder)
    if progress:
        print(f"pool {pool.folder.path.name}: {len(pool.member)} models, {done}", flush=True)
    for m, status in enumerate(pool.status):
        if status.startswith("diverged"):
            advice = "lower lr or change the schedule"
            if pool.recipe.model in models.FLOWS:
                advice += ", or take more steps, or bound the drift (lipschitz)"
            lr = pool.divergence(m)["lr"]
            raise ValueError(
                f"model {m} {status} (non-finite loss at learning rate {lr:.3g}, peak"
                f" lr={pool.recipe.lr}): {advice}; the other models are kept"
            )
    return pool
