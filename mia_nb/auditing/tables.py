"""Reading a .csv or .tsv of one model's outputs as arrays."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd

from mia_nb._memory import check_budget
from mia_nb.auditing.samples import in_one_line
from mia_nb.checks import shown

SEPARATORS = {".csv": ",", ".tsv": "\t"}
# columns of a table that are no logits, by the names of the arrays that they are
COLUMNS = {"label": "labels", "labels": "labels", "member": "member", "population": "population"}
# columns whose names say that they hold something else than a class's logit
NO_LOGITS = {
    *("id", "idx", "index", "row", "sample", "model", "query", "split", "fold", "epoch", "file"),
    *("filename", "path", "name", "loss", "pred", "prediction", "predicted", "correct", "members"),
    *("confidence", "score", "target", "targets", "class", "y", "y_true", "y_pred", "is_member"),
}


def table_in(path: str | Path) -> dict[str, np.ndarray]:
    """Arrays of one model's outputs in a .csv or .tsv, a row per sample.

    Parameters:
        path: of the table. Without a header all columns are logits.

    Returns:
        logits (N, K): all columns but those called label, member and population, in their order;
        labels, member and population (N,) where there are such columns, labels as the names of
        columns of logits (also where these are whole numbers) or as their places from 0; classes
        (K,), the names of the columns, where they have any.

    Raises:
        ValueError: for columns of text or of anything but logits, by name; for empty cells, by row
            and column; and for tables that cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    check_budget(str(path), 4 * path.stat().st_size)
    separator = SEPARATORS[path.suffix.lower()]
    try:
        table, names = _read(path, separator)
        return _arrays(table, names, separator)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _arrays(table: pd.DataFrame, names: list[str], separator: str) -> dict[str, np.ndarray]:
    """The columns of a table as arrays, sorted by their names into logits and the others."""
    if names:
        _number_labels(table, names)
    arrays = {}
    logits: list[int] = []  # places of their columns
    for place in range(table.shape[1]):
        name = names[place] if names else f"column {place + 1}"
        values = _column(table[place], name, separator)
        kind = COLUMNS.get(name.lower()) if names else None
        if kind is None:
            _refuse_no_logits(values, name)
            logits.append(place)
        elif kind in arrays:
            raise ValueError(f"it has two columns of {kind}")
        else:
            arrays[kind] = values
    if logits:
        arrays["logits"] = table[logits].to_numpy(np.float64)
        if names:
            arrays["classes"] = np.array([names[place] for place in logits])
    return arrays


def _read(path: Path, separator: str) -> tuple[pd.DataFrame, list[str]]:
    """(table with numbered columns; their names, none without a header)."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = next(csv.reader(file, delimiter=separator), [])
        named = not all(_is_number(name) or name.lower() in ("true", "false") for name in first)
        table = pd.read_csv(
            path,
            sep=separator,
            header=None,
            skiprows=int(named),
            encoding="utf-8-sig",
            float_precision="round_trip",
            low_memory=False,
        )
    except (ValueError, OSError, csv.Error, pd.errors.ParserError) as error:
        raise ValueError(f"it cannot be read as a table ({in_one_line(error, 120)})") from error
    if not named:
        return table, []
    names = [name.strip() for name in first]
    if len(names) != table.shape[1]:
        raise ValueError(
            f"a line has {table.shape[1]} entries where {len(names)} columns are named"
        )
    if "" in names:
        raise ValueError(
            f"column {names.index('') + 1} has no name: are these row numbers? leave them"
            " out (index=False in pandas)"
        )
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two columns are called {shown(name)}")
    return table, names


def _number_labels(table: pd.DataFrame, names: list[str]) -> None:
    """Replaces labels that are names of columns of logits by the numbers of these columns.

    Names may be numbers, in any order: where each label is one, it is no place among the columns.
    """
    classes = [name for name in names if name.lower() not in COLUMNS]
    numbers = [int(name) for name in classes if name.isdecimal()]
    if len(set(numbers)) < len(classes):
        numbers = []
    for place, name in enumerate(names):
        if COLUMNS.get(name.lower()) != "labels":
            continue
        labels = table[place]
        if labels.isin(classes).all():
            table[place] = labels.map(classes.index)
        elif labels.isin(numbers).all():
            table[place] = labels.map(numbers.index)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _column(column: pd.Series, name: str, separator: str) -> np.ndarray:
    """A column's numbers or booleans; ValueError for text and empty cells."""
    # pandas' row numbers, which start below the header
    if column.isna().any():
        row = int(column.isna().to_numpy().argmax())
        raise ValueError(f"{name} has no number in row {row} (counted from 0)")
    values = column.to_numpy()
    if values.dtype.kind not in "biuf":
        text = next(value for value in values if not _is_number(str(value)))
        marks = "tabs" if separator == "\t" else "commas"
        raise ValueError(
            f"{name} holds {shown(text)}: wanted numbers, of member 1 and 0 or true and"
            f" false, separated by {marks}"
        )
    return values


def _refuse_no_logits(values: np.ndarray, name: str) -> None:
    """ValueError for a column that holds something else than logits of a class."""
    if name.lower() in NO_LOGITS:
        raise ValueError(
            f"{name} is no class's logit, it seems: leave the column out; beside logits"
            " there may be label, member and population"
        )
    if len(values) > 2 and (np.diff(values.astype(float)) == 1).all():
        raise ValueError(f"{name} numbers the rows: leave the column out")
    if values.dtype == bool:
        raise ValueError(
            f"{name} holds true and false: call the column member if it says who was trained"
            " on, else leave it out"
        )
