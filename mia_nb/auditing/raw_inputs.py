"""Checks of the raw inputs of both sides before any attack: whether they differ, and whether they
share samples.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from mia_nb.auditing.samples import numpy_of
from mia_nb.auditing.shift import COPIES, ShiftGuard, shift_guard
from mia_nb.digests import digest

MOST_VALUES = 20  # of a column of text that are told apart
LARGEST = 1e15  # larger numbers of a table are cut to this where rows are compared
EXACT = 2**53  # whole numbers up to here are floats too


def raw_inputs_guard(
    x: np.ndarray | pd.DataFrame, y: np.ndarray, member: np.ndarray, seed: int
) -> ShiftGuard:
    """The shift guard on raw inputs as vectors; on classes alone where inputs are no numbers."""
    values = numpy_of(x)
    if values.dtype.kind not in "biuf":
        values = numbers_of(x)
    if values is None:  # with inputs that are all equal, the guard compares the classes alone
        guard = shift_guard(np.zeros((len(y), 1)), y, member, seed=seed)
        return guard._replace(note=guard.note.replace("inputs are equal", "inputs are no numbers"))
    finite = np.isfinite(values).all()
    return shift_guard(values if finite else without_extremes(values), y, member, seed=seed)


def samples_on_both_sides(x: np.ndarray, y: np.ndarray, member: np.ndarray) -> str:
    """A sentence where samples of test, with their labels, are in train too; "" where few are,
    ValueError where all are.
    """
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
    """A form in which 1, 1.0 and NumPy's 1 are equal, as are 0 and -0; None for a missing value."""
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


def numbers_of(x: np.ndarray | pd.DataFrame) -> np.ndarray | None:
    """(N, D) numbers of a table whose columns hold numbers, text or both; None for anything else.

    A column of text becomes one of 0 and 1 for each of its most frequent values.
    """
    if not isinstance(x, pd.DataFrame):
        if x.ndim != 2 or x.dtype.kind not in "OSU":
            return None
        x = pd.DataFrame(x)
    columns = []
    for place in range(x.shape[1]):
        column = x.iloc[:, place].infer_objects()
        if pd.api.types.is_datetime64_any_dtype(column):
            column = pd.to_numeric(column).where(column.notna())
        if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
            columns.append(column.astype("Float64").to_numpy(np.float64, na_value=np.nan))
            continue
        # values that are no numbers are compared as text
        text = column.astype(object).map(str)
        for value in text.value_counts().index[:MOST_VALUES]:
            columns.append((text == value).to_numpy(np.float64))
    return np.column_stack(columns) if columns else None


def without_extremes(x: np.ndarray) -> np.ndarray:
    """Numbers that can be compared: missing ones become 0, infinite and huge ones the largest of
    the others.
    """
    x = np.asarray(x, np.float64)
    finite = np.abs(x[np.isfinite(x)])
    largest = min(float(finite.max()), LARGEST) if finite.size else 0.0
    return np.nan_to_num(x, nan=0.0, posinf=largest, neginf=-largest).clip(-LARGEST, LARGEST)
