"""Checks of the raw inputs of both sides before any attack: whether they differ, and whether they
share samples.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from mia_nb.auditing.samples import numpy_of
from mia_nb.auditing.shift import ShiftGuard, shift_guard
from mia_nb.digests import digest

MOST_VALUES = 20  # of a column of text that are told apart
COPIES = 0.01  # from this share on, samples of test that are in train too are reported


def raw_inputs_guard(
    x: np.ndarray | pd.DataFrame, y: np.ndarray, member: np.ndarray, seed: int
) -> ShiftGuard:
    """The shift guard on raw inputs as vectors; on classes alone where inputs are no numbers."""
    values = numpy_of(x)
    if values.dtype.kind not in "biuf":
        values = numbers_of(x)
    if values is not None and not np.isfinite(values).all():
        values = values.astype(float)
        # missing numbers become 0, infinite ones the largest of their column
        largest = np.abs(np.where(np.isfinite(values), values, 0)).max(0)
        values = np.where(np.isnan(values), 0, values)
        values = values.clip(-largest, largest)
    return shift_guard(values, y, member, seed=seed)


def numbers_of(x: np.ndarray | pd.DataFrame) -> np.ndarray | None:
    """(N, D) numbers of a table whose columns hold numbers, dates or text; None for anything else.

    A column of text becomes one of 0 and 1 for each of its most frequent values.
    """
    if x.ndim != 2:
        return None
    columns = []
    for _, column in pd.DataFrame(x).infer_objects().items():
        if pd.api.types.is_datetime64_any_dtype(column):
            column = pd.to_numeric(column).where(column.notna())
        if pd.api.types.is_numeric_dtype(column):
            columns.append(column.to_numpy(np.float64, na_value=np.nan))
            continue
        # values that are no numbers are compared as text
        text = column.astype(object).map(str)
        for value in text.value_counts().index[:MOST_VALUES]:
            columns.append((text == value).to_numpy(np.float64))
    return np.column_stack(columns)


def samples_on_both_sides(x: np.ndarray, y: np.ndarray, member: np.ndarray) -> str:
    """A sentence where samples of test, with their labels, are in train too; "" where few are,
    ValueError where all are.
    """
    keys = np.array([digest(row, label) for row, label in zip(x, y.tolist(), strict=True)])
    test = keys[~member]
    shared = int(np.isin(test, keys[member]).sum())
    finding = f"{shared:,} of {len(test):,} samples of test are in train too, which hides a leak"
    if shared == len(test):
        raise ValueError(f"{finding}; wanted samples that the model was not trained on")
    return f"{finding}: take them out of test." if shared >= COPIES * len(test) else ""
