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
from mia_nb.auditing.tables import SEPARATORS, table_in
from mia_nb.checks import checked, mask


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

    Returns: the path. Raises ValueError for an odd number of models, or fewer than two samples.
    """
    from mia_nb.data import paired_membership  # torch

    member = paired_membership(models, samples, labels=labels, seed=seed)
    return _written(out, {"member": member, "split": np.array("pairs")})


@checked
def collect(
    plan: Anything, logits: Anything, labels: Array, *, out: PathLike = "outputs.npz"
) -> Path:
    """Gathers outputs of models trained elsewhere into the .npz that `read_outputs`, notebook 07
    and `mia-nb audit --logits` read.

    Parameters:
        plan: the .npz of `plan`, or masks (M, N) of your own.
        logits: an entry for each model, in the order of the masks: (N, K) for all samples, in the
            order of the plan, members or not; or a .npy, an .npz with `logits`, or a .csv or .tsv.
        labels: (N,) class numbers from 0, or a .npy, an .npz with `labels`, or a .csv or .tsv with
            a column label.
        out: path of the .npz to write.

    Returns: the path. Raises ValueError for files that cannot be read, another number of models or
    samples, and all that `read_outputs` refuses; nothing is written then.
    """
    masks = {"member": plan}
    if isinstance(plan, str | os.PathLike):
        masks = npz_arrays(Path(plan), ("member", "split"))[0]
    member = mask("member of the plan", masks.get("member", ()))
    of_models = [array_in("logits", of_model) for of_model in logits]
    shapes = {of_model.shape for of_model in of_models}
    if member.ndim != 2:
        raise ValueError(f"the plan has masks of shape {member.shape}; wanted (models, samples)")
    if len(of_models) != len(member):
        raise ValueError(
            f"there are logits of {len(of_models)} models and {len(member)} masks; wanted one"
            " of each, in the order of the plan"
        )
    if len(shapes) > 1:
        raise ValueError(f"the models' logits have shapes {sorted(shapes)}; wanted one shape")
    arrays = masks | {"logits": np.stack(of_models), "labels": array_in("labels", labels)}
    outputs_from(arrays, "collected", "")
    return _written(out, arrays)


def _written(out: str | Path, arrays: dict[str, np.ndarray]) -> Path:
    path = Path(out)  # this name, whatever its suffix
    # a device or pipe is written to; anything else becomes a new file
    special = path.exists() and not path.is_file()
    with open(path, "wb") if special else replacing(path) as file:
        np.savez(file, **arrays)
    return path


def array_in(name: str, source: object) -> np.ndarray:
    """An array as given, or read from a .npy, under this name from an .npz, or from a .csv or .tsv
    (`tables.table_in`).
    """
    if not isinstance(source, str | os.PathLike):
        return numpy_of(source)
    wanted = f"{source}: wanted .npy, or .npz, .csv or .tsv with {name}"
    if not Path(source).is_file():  # reading a pipe might never end
        raise ValueError(f"{wanted}; there is no such file")
    if Path(source).suffix.lower() in SEPARATORS:
        arrays = table_in(source)
        if name not in arrays:
            held = "a column of numbers for each class" if name == "logits" else "a line of names"
            raise ValueError(f"{wanted}; there is no such column: wanted {held}")
        return arrays[name]
    try:
        loaded = np.load(source, allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else loaded[name]
    except Exception as error:
        raise ValueError(f"{wanted} ({in_one_line(error, 120)})") from error
