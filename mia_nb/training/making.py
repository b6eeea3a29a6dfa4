"""Making what a pool lacks, by training, conversion or whatever else: its folder as it is, its
inputs, the rows that are missing, and the end of the work.
"""

from __future__ import annotations

import contextlib
import sys

import numpy as np

from mia_nb import models, store
from mia_nb.training.placing import title
from mia_nb.training.pool import Pool, open_pool
from mia_nb.training.saving import remove_leftovers
from mia_nb.types import Images

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


def is_begun(pool: Pool) -> bool:
    """Whether the pool has a folder with its recipe."""
    return pool.folder.has("recipe.json")


def reopened(pool: Pool, images: Images) -> Pool:
    """The pool as its folder has it, damaged inputs written anew; the pool itself where there is no
    folder yet. What is trained is said by the pool as it was placed, not by its folder.
    """
    if not is_begun(pool):
        return pool
    write_inputs(pool, images)
    return open_pool(pool.folder)


def is_complete(pool: Pool) -> bool:
    """Whether nothing of the pool is left to make."""
    return is_begun(pool) and not pool.unfinished(range(len(pool.member)))


def rows_to_make(pool: Pool, images: Images, force: bool) -> list[int]:
    """The rows that are to be made, in a folder with its inputs: all with `force`, which removes
    them, else the unfinished ones.

    Call it when little can be refused any more.
    """
    # what is written last; without it another process may be writing now, which this waits for
    if not pool.folder.has("images.json"):
        write_inputs(pool, images)
    if force:
        _remove_made(pool)
    missing = pool.unfinished(range(len(pool.member)))
    _name_damaged(pool, missing)
    return missing


def write_inputs(pool: Pool, images: Images) -> None:
    """Make the pool's folder, with its recipe, images and masks in place."""
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


def _remove_made(pool: Pool) -> None:
    """Remove all models; ValueError where others train them now, Corrupt where nothing could start
    from the parent's.
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


def _name_damaged(pool: Pool, rows: list[int]) -> None:
    """Print which files of these rows were damaged."""
    folder = pool.folder
    for name in [name for m in rows for name in pool.files_of(m)]:
        if folder.has(name) and not folder.intact(name):
            print(
                f"{folder.path / name} was truncated or altered (checksum differs): training this"
                " model again",
                file=sys.stderr,
            )


def finish(pool: Pool, done: str, progress: bool) -> Pool:
    """The pool, all of whose rows are made, with a line that says so: {done} "cached", say.

    ValueError that names a model that diverged.
    """
    with contextlib.suppress(store.ReadOnly):
        remove_leftovers(pool.folder)
    if progress:
        print(f"pool {pool.folder.path.name}: {len(pool.member)} models, {done}", flush=True)
    for m, status in enumerate(pool.status):
        if status.startswith("diverged"):
            raise ValueError(_divergence(pool, m, status))
    return pool


def _divergence(pool: Pool, model: int, status: str) -> str:
    """What is said of a model that diverged."""
    advice = "lower lr or change the schedule"
    if pool.recipe.model in models.FLOWS:
        advice += ", or take more steps, or bound the drift (lipschitz)"
    lr = pool.divergence(model)["lr"]
    return (
        f"model {model} {status} (non-finite loss at learning rate {lr:.3g}, peak"
        f" lr={pool.recipe.lr}): {advice}; the other models are kept"
    )
