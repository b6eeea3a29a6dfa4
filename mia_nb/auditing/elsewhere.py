"""Models that are trained elsewhere: drawing their masks, and gathering their outputs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from mia_nb._arrays import npz_arrays
from mia_nb._files import replacing
from mia_nb.arguments import Anything, Array, Count, PathLike, Positive, Whole
from mia_nb.auditing.outputs import outputs_from
from mia_nb.auditing.samples import in_one_line, numpy_of
from mia_nb.checks import checked, shown


@checked
def plan(
    samples: Positive,
    models: Whole,
    *,
    labels: Array | None = None,
    seed: Count = 0,
    out: PathLike = "plan.npz",
) -> Path:
    """Masks for trainings elsewhere, in complementary halves: model m is to be trained on
    `np.flatnonzero(np.load(out)["member"][m])`.

    Parameters:
        samples: the number of samples to train on and audit.
        models: their number, even and from 2 up.
        labels: (samples,), to split every class into halves; None: all samples together.
        seed: of the draw.
        out: path of the .npz to write: member (models, samples), split.

    Returns: the path. Raises ValueError for an odd number of models, fewer than two samples, and
    where `out` is another plan, or any other file: models may have been trained by it.
    """
    from mia_nb.data import paired_membership  # torch

    member = paired_membership(models, samples, labels=labels, seed=seed)
    if Path(out).exists() and not _holds(Path(out), member):
        raise ValueError(
            f"{out} is there and is not this plan; models may have been trained by it: give another"
            " name, or remove it first"
        )
    return _written(out, {"member": member, "split": np.array("pairs")})


@checked
def collect(
    plan: PathLike, logits: Anything, labels: Array, *, out: PathLike = "outputs.npz"
) -> Path:
    """Gathers outputs of models trained elsewhere into the .npz that `read_outputs`, notebook 07
    and `mia-nb audit --logits` read.

    Parameters:
        plan: the .npz of `plan`.
        logits: an entry for each model, in the order of the plan: (N, K) for all samples, members
            or not, or a .npy of that.
        labels: (N,) class numbers from 0.
        out: path of the .npz to write.

    Returns: the path. Raises ValueError for files that cannot be read, another number of models or
    samples, and all that `read_outputs` refuses; nothing is written then.
    """
    arrays, _ = npz_arrays(Path(plan), ("member", "split"))
    if isinstance(logits, str | os.PathLike):
        raise ValueError(f"logits={shown(logits)}: wanted a list, with an entry for each model")
    arrays["logits"] = np.stack([array_in(of_model) for of_model in logits])
    arrays["labels"] = numpy_of(labels)
    outputs_from(arrays, "collected", "")
    return _written(out, arrays)


def _holds(path: Path, member: np.ndarray) -> bool:
    """Whether this file is a plan with these masks."""
    try:
        arrays, _ = npz_arrays(path, ("member",))
    except (OSError, ValueError):
        return False
    return "member" in arrays and np.array_equal(arrays["member"], member)


def _written(out: str | Path, arrays: dict[str, np.ndarray]) -> Path:
    path = Path(out)  # this name, whatever its suffix
    with replacing(path) as file:
        np.savez(file, **arrays)
    return path


def array_in(source: object) -> np.ndarray:
    """An array as given, or read from a .npy."""
    if not isinstance(source, str | os.PathLike):
        return numpy_of(source)
    try:
        with open(source, "rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)  # refuses an .npz
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{source}: wanted .npy ({in_one_line(error, 120)})") from error
