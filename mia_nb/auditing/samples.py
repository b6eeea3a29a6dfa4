"""The samples of an audit as people have them: arrays, tensors, tables, data sets, loaders."""

from __future__ import annotations

import numpy as np
import pandas as pd

from mia_nb.auditing.readers import (
    class_numbers,
    in_one_line,
    numbers_of,
    numpy_of,
    sample_of,
    without_extremes,
)
from mia_nb.auditing.shift import COPIES, ShiftGuard, shift_guard
from mia_nb.checks import shown
from mia_nb.digests import digest

EXACT = 2**53  # whole numbers up to here are floats too
DATA = (
    "wanted (x, y) of arrays or tensors, or a data set whose [i] is (x, y) or has an image and a"
    " label, or a DataLoader of such a data set"
)


def both_sides(
    train: object, test: object, known: list | None = None
) -> tuple[np.ndarray | pd.DataFrame, np.ndarray, np.ndarray]:
    """x and y of both, and who is a member; x is a table where both are.

    known: the classes of an estimator whose labels are not numbers from 0.
    """
    (x1, y1), (x0, y0) = _samples("train", train, known), _samples("test", test, known)
    tables = [isinstance(x, pd.DataFrame) for x in (x1, x0)]
    if all(tables):
        names = [*x1.columns]
        others = [*x0.columns]
        if len(names) != len(others) or {*names} != {*others} or len({*names}) < len(names):
            raise ValueError(
                f"columns of train are {shown(names)}, of test {shown(others)}; wanted the same"
                " ones, each once"
            )
        y = np.concatenate([y1, y0])
        # columns by their names, whatever their order
        both = pd.concat([x1, x0[names]], ignore_index=True)
        return both, y, np.arange(len(y)) < len(y1)
    x1 = numpy_of(x1)
    x0 = numpy_of(x0)
    if x1.shape[1:] != x0.shape[1:]:
        raise ValueError(
            f"samples of train have shape {x1.shape[1:]}, of test {x0.shape[1:]}; wanted one shape"
        )
    y = np.concatenate([y1, y0])
    return np.concatenate([x1, x0]), y, np.arange(len(y)) < len(y1)


def _samples(
    name: str, data: object, known: list | None = None
) -> tuple[np.ndarray | pd.DataFrame, np.ndarray]:
    """x (n, ...) as an array, or as the table that it is, and y (n,) as class numbers."""
    alone = isinstance(data, tuple | list) and len(data) == 2
    if not hasattr(data, "__getitem__") and hasattr(data, "dataset"):
        data = data.dataset  # of a DataLoader, in the order of the data set
    try:
        if alone:
            x, y = data
        else:
            x, y = zip(*(sample_of(data[i]) for i in range(len(data))), strict=True)
        x = x if isinstance(x, pd.DataFrame) else numpy_of(x)
        y = numpy_of(y)
    except Exception as error:
        raise ValueError(f"{name} cannot be read ({in_one_line(error, 120)}): {DATA}") from error
    if known is not None and y.shape in ((len(y),), (len(y), 1)):
        y = class_numbers(name, y, known)
    if y.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} has labels {shown(y[:3].tolist())} ...; wanted class numbers from 0:"
            " np.unique(y, return_inverse=True)[1] of train and test together"
        )
    y = y[:, 0] if y.shape == (len(y), 1) else y
    if y.ndim != 1:
        raise ValueError(
            f"{name} has labels of shape {y.shape}; wanted (samples,) class numbers from 0"
        )
    if x.shape[:1] != y.shape:
        raise ValueError(f"{name} has {x.shape[:1]} samples and {y.shape} labels; wanted as many")
    return x, y


def rows_of(x: np.ndarray | pd.DataFrame, which: np.ndarray | slice) -> np.ndarray | pd.DataFrame:
    """Some rows of an array or of a table."""
    return x.iloc[which] if isinstance(x, pd.DataFrame) else x[which]


def raw_inputs_guard(
    x: np.ndarray | pd.DataFrame, y: np.ndarray, member: np.ndarray, seed: int
) -> ShiftGuard:
    """The shift guard on raw inputs as vectors; of what is no numbers on the classes alone."""
    values = numpy_of(x)
    if values.dtype.kind not in "biuf":
        values = numbers_of(x)
    if values is None:
        guard = shift_guard(np.zeros((len(y), 1)), y, member, seed=seed)
        return guard._replace(note=guard.note.replace("inputs are equal", "inputs are no numbers"))
    finite = np.isfinite(values).all()
    return shift_guard(values if finite else without_extremes(values), y, member, seed=seed)


def copies(x: np.ndarray, y: np.ndarray, member: np.ndarray) -> str:
    """What to say where samples of test, with their labels, are in train too; "" where few are."""
    try:
        keys = [digest(_comparable(row), label) for row, label in zip(x, y.tolist(), strict=True)]
    except ValueError as error:
        return f"That no sample of test is in train too could not be checked ({error})."
    trained = {key for key, inside in zip(keys, member, strict=True) if inside}
    outside = [key for key, inside in zip(keys, member, strict=True) if not inside]
    shared = sum(key in trained for key in outside)
    finding = f"{shared:,} of {len(outside):,} samples of test are in train too, which hides a leak"
    if shared == len(outside):
        raise ValueError(f"{finding}; wanted samples that the model was not trained on")
    return f"{finding}: take them out of test." if shared >= COPIES * len(outside) else ""


def _comparable(value: object) -> object:
    """A value in which 1, 1.0 and NumPy's 1 are one, 0 has no sign, and what is missing is None."""
    if hasattr(value, "detach"):
        value = numpy_of(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f":
            return np.where(np.isnan(value), np.nan, value + 0.0)
        if value.dtype.kind in "biucSU":
            return value
        return [value.shape, *(_comparable(entry) for entry in value.ravel().tolist())]
    if isinstance(value, list | tuple):
        return [_comparable(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _comparable(entry) for key, entry in value.items()}
    if value is None or value is pd.NA or value is pd.NaT or value != value:  # NaN
        return None
    if isinstance(value, float) or (isinstance(value, int) and abs(value) <= EXACT):
        return float(value) + 0.0
    return value
