"""Signals on disk: one .npy per field, written model by model and mapped when read."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from mia_nb._arrays import arrays_in
from mia_nb._files import replacing
from mia_nb.store.folder import Corrupt, Folder, advising
from mia_nb.types import CUBES, Signals

OUTPUTS = (*CUBES, "top_log_p")  # arrays with a row for each model
DESIGN = ("labels", "member", "population")
FIELDS = (*OUTPUTS, *DESIGN, "activity", "samples")
FINISHED = "margin.npy"  # the file of signals that is written last


def read_info(folder: Folder) -> tuple[dict, list[str]]:
    """(record of the query, file names of the signals); Corrupt if the record is missing or
    altered.
    """
    info = folder.read_json("info.json", draws=str, fields=list)
    fields = info.pop("fields")
    if not {*OUTPUTS, "labels", "population"} <= {*map(str, fields)} <= {*FIELDS}:
        raise folder.corrupt("info.json", f"fields={fields}: wanted those of signals")
    return info, [f"{name}.npy" for name in fields]


def has_signals(folder: Folder) -> bool:
    """Whether the signals were written completely and all their files still exist."""
    with contextlib.suppress(Corrupt):
        _, files = read_info(folder)
        return all(folder.has(name) for name in files)
    return False


def load_signals(folder: Folder) -> Signals:
    """Stored signals; their arrays are read-only and stay on the disk until they are used.

    Raises Corrupt if a file is gone or altered.
    """
    info, files = read_info(folder)
    arrays = {"member": None}
    for name in files:
        arrays[name.removesuffix(".npy")] = folder.map_array(name)
    arrays.pop("samples", None)
    return Signals(**arrays, query_kind=info.pop("draws"), info=info)


def load_samples(folder: Folder) -> np.ndarray | None:
    """Numbers of the queried images in the pool's data; None if all were queried, an empty array if
    the images were not the pool's.
    """
    if "samples.npy" not in read_info(folder)[1]:
        return None
    return folder.read_array("samples.npy", "iu", (None,))


def _partial_file(folder: Folder, model: int) -> Path:
    return folder.path / f".partial-{model:03d}.npz"


def write_partial(folder: Folder, model: int, signals: Signals) -> None:
    """Write one model's outputs into the folder of the signals, so that a stopped query continues
    with the next model.

    Parameters:
        folder: of the signals.
        model: its row in the pool.
        signals: of this model alone.
    """
    outputs = {name: getattr(signals, name) for name in OUTPUTS}
    if signals.activity is not None:
        outputs["activity"] = signals.activity
    path = _partial_file(folder, model)
    with advising(path), replacing(path) as file:
        np.savez(file, allow_pickle=False, **outputs)


def read_partial(folder: Folder, model: int) -> dict[str, np.ndarray] | None:
    """One model's outputs, as `write_partial` wrote them; None if they are missing or damaged.

    Parameters:
        folder: of the signals.
        model: its row in the pool.
    """
    path = _partial_file(folder, model)
    if not path.is_file():
        return None
    try:
        arrays, names = arrays_in(path, is_stored_here=True)  # this checks the archive's checksums
    except Exception:  # whatever is wrong, the model is queried again
        return None
    return arrays if {*OUTPUTS} <= {*names} else None


def drop_partial(folder: Folder) -> list[str]:
    """Remove the partial results of all models; returns the names of their files."""
    return folder.sweep(".partial-*.npz", older_than=0)


def join_partial(
    folder: Folder, models: list[int], design: dict, info: dict, samples: np.ndarray | None = None
) -> None:
    """Write the signals from the partial results of these models, one model at a time. The folder
    holds no signals until all are written.

    Parameters:
        folder: of the signals.
        models: the models' rows in the pool.
        design: labels, member, population.
        info: record of the query; becomes info.json.
        samples: numbers of the queried images, see `load_samples`.
    """
    of_pool = {"samples": samples, **design}
    written = [name for name, value in of_pool.items() if value is not None]
    # what an earlier query left: with the file that is written last gone, it is no result any more
    outdated = [FINISHED, *(f"{name}.npy" for name in of_pool if name not in written)]
    recorded = folder.files()
    folder.remove(*(file for file in outdated if file in recorded))
    for name in written:
        folder.write_array(f"{name}.npy", of_pool[name])
    per_model = list(OUTPUTS)
    if "activity" in info:
        per_model.append("activity")
    folder.write_json("info.json", {**info, "fields": [*per_model, *written]})
    first = read_partial(folder, models[0])
    # files are finished in reverse order: margin.npy is opened first and finished last
    with contextlib.ExitStack() as stack:
        append = {}
        for name in per_model:
            shape = (len(models), *first[name].shape[1:])
            rows = folder.rows(f"{name}.npy", first[name].dtype, shape)
            append[name] = stack.enter_context(rows)
        del first  # as large as what is held of one model
        for model in models:
            outputs = read_partial(folder, model)
            for name in per_model:
                append[name](outputs[name])
    drop_partial(folder)
