"""What people have, as arrays: outputs of models, items of data sets, scikit-learn's estimators."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from mia_nb._image_files import check_budget
from mia_nb.checks import shown

INPUTS = ("image", "img", "x", "pixel_values", "input", "inputs", "input_ids", "features", "data")
LABELS = ("label", "labels", "y", "target", "targets", "fine_label")
SEPARATORS = {".csv": ",", ".tsv": "\t"}
# columns of a table that are no logits, by the names of the arrays that they are
COLUMNS = {"label": "labels", "labels": "labels", "member": "member", "population": "population"}
# columns whose names say that they hold something else than a class's logit
NO_LOGITS = {
    *("id", "idx", "index", "row", "sample", "model", "query", "split", "fold", "epoch", "file"),
    *("filename", "path", "name", "loss", "pred", "prediction", "predicted", "correct", "members"),
    *("confidence", "score", "target", "targets", "class", "y", "y_true", "y_pred", "is_member"),
}
SMALLEST = 1e-6  # probabilities of an estimator are clipped to this before the logarithm
MOST_VALUES = 20  # of a column of text that are told apart
LARGEST = 1e15  # what a table holds beyond this is cut where rows are compared


def in_one_line(error: BaseException, most: int) -> str:
    """An error of somebody else's on one line, and no longer than this."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:most]


def numpy_of(values: object) -> np.ndarray:
    """Arrays, tensors or lists of these as one array; of objects where samples differ in shape.

    Raises ValueError for masked arrays and complex numbers, of which nothing here knows the
    meaning.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        return (values.float() if "bfloat16" in str(values.dtype) else values).numpy()
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError("a masked array came; wanted plain numbers, for instance x.filled(0)")
    if not isinstance(values, tuple | list):
        array = np.asarray(values)
        if array.dtype.kind == "c":
            raise ValueError("complex numbers came; wanted real ones, for instance abs(x)")
        return array
    parts = [numpy_of(part) for part in values]
    if len({part.shape for part in parts}) == 1:
        return np.stack(parts)
    ragged = np.empty(len(parts), object)
    ragged[:] = parts
    return ragged


def logits_of(output: object, samples: int) -> np.ndarray:
    """What a model gave for a batch, as logits (samples, classes).

    Parameters:
        output: an array or tensor (samples, classes); (samples,) or (samples, 1), one logit of a
            binary network; a mapping or record with an entry `logits`; or a tuple of which one
            entry has the shape of logits.
        samples: how many there are in the batch.

    Returns:
        (samples, classes) array; of one logit z the columns 0 and z.

    Raises:
        ValueError: of one line that says what came, for anything else, and for one probability a
            sample.
    """
    if isinstance(output, Mapping):
        if "logits" not in output:
            names = ", ".join(map(str, list(output)[:10]))
            raise ValueError(
                f"the model gives a dict with {names or 'nothing'}; wanted an entry logits, of"
                " shape (batch, classes)"
            )
        output = output["logits"]
    elif not hasattr(output, "shape") and hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, tuple):
        output = _entry_of(output, samples)
    logits = numpy_of(output)
    if logits.ndim == 3 and logits.shape[2] == 1:
        logits = logits[:, :, 0]
    if logits.shape in ((samples,), (samples, 1)):
        return _binary(logits.reshape(-1))
    if logits.ndim != 2 or len(logits) != samples:
        raise ValueError(
            f"the model gives {logits.shape} for {samples} samples; wanted (batch, classes) logits,"
            " or one logit a sample"
        )
    return logits


def _entry_of(output: tuple, samples: int) -> object:
    """The one entry of a tuple that can be logits."""
    shapes = [tuple(getattr(entry, "shape", ())) for entry in output]
    fitting = [
        entry
        for entry, shape in zip(output, shapes, strict=True)
        if len(shape) == 2 and shape[0] == samples and shape[1] > 1
    ]
    if len(fitting) != 1:
        raise ValueError(
            f"the model gives a tuple of shapes {shapes}, of which {len(fitting)} can be logits"
            " (batch, classes); return these alone: lambda x: model(x)[0]"
        )
    return fitting[0]


def _binary(logit: np.ndarray) -> np.ndarray:
    """The logits of two classes from one."""
    if logit.dtype.kind not in "fiub":
        raise ValueError(f"the model gives {logit.dtype}; wanted numbers")
    if ((logit >= 0) & (logit <= 1)).all():
        raise ValueError(
            "the model gives one number in [0, 1] a sample, a probability p, it seems; return"
            " np.log(p / (1 - p)) with p = p.clip(1e-6, 1 - 1e-6)"
        )
    return np.stack([np.zeros_like(logit), logit], axis=1)


def named_classes(model: object) -> list | None:
    """The classes of a scikit-learn estimator, where its labels are other than 0 to K - 1; None of
    all other models.
    """
    declared = getattr(model, "classes_", None)
    if declared is None or np.ndim(declared) != 1 or not _ways(model):
        return None
    named = np.asarray(declared).tolist()
    return None if named == list(range(len(named))) else named


def class_numbers(name: str, labels: np.ndarray, known: list) -> np.ndarray:
    """The place of each label among an estimator's classes; ValueError for labels that it does not
    have.
    """
    place = {label: number for number, label in enumerate(known)}
    words = np.asarray(labels).reshape(-1).tolist()
    strange = [label for label in words if _missing(label) or label not in place]
    if strange:
        raise ValueError(
            f"the estimator's classes are {shown(known)}, and {name} has labels"
            f" {shown(strange[0])} ...; wanted the labels that it was trained on, or train it on"
            " np.unique(y, return_inverse=True)[1] and pass these"
        )
    return np.array([place[label] for label in words], np.int64)


def _missing(label: object) -> bool:
    try:
        return bool(label != label) or label.__hash__ is None
    except (TypeError, ValueError):  # pd.NA has no truth value
        return True


def _ways(model: object) -> list[str]:
    return [way for way in ("predict_proba", "decision_function") if hasattr(model, way)]


def estimator(model: object, known: list | None = None) -> Callable | None:
    """A function of a batch that gives the logits of a scikit-learn estimator; None of others.

    known: the classes that labels are numbered by, None for 0 to K - 1. Raises ValueError for an
    estimator of other classes: its outputs would be in another order.
    """
    declared = getattr(model, "classes_", None)
    ways = _ways(model)
    if declared is None or not ways:
        return None
    named = np.asarray(declared).tolist() if np.ndim(declared) == 1 else list(declared)
    if np.ndim(declared) != 1 or named not in (list(range(len(named))), known):
        raise ValueError(
            f"the estimator's classes are {shown(named)}; wanted {shown(known) if known else ''}"
            f"{' or ' if known else ''}class numbers from 0: train it on"
            " np.unique(y, return_inverse=True)[1]"
        )
    if ways[0] == "predict_proba":
        return lambda x: np.log(np.asarray(model.predict_proba(x)).clip(SMALLEST))
    return model.decision_function


def wants_columns(model: object) -> bool:
    """Whether this is an estimator that was fitted on a table, and may pick columns by name."""
    return bool(_ways(model)) and getattr(model, "feature_names_in_", None) is not None


def numbers_of(x: np.ndarray | pd.DataFrame) -> np.ndarray | None:
    """(N, D) numbers of a table whose columns hold numbers, text or both; None of anything else.

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
        # what is no number is compared as it is written
        text = column.astype(object).map(str)
        for value in text.value_counts().index[:MOST_VALUES]:
            columns.append((text == value).to_numpy(np.float64))
    return np.column_stack(columns) if columns else None


def sample_of(item: object) -> tuple[object, object]:
    """The input and the label of a data set's item: the first two of a tuple, or entries of a
    mapping by their usual names.
    """
    if isinstance(item, Mapping):
        inputs = [name for name in INPUTS if name in item]
        labels = [name for name in LABELS if name in item]
        if len(inputs) != 1 or len(labels) != 1:
            names = ", ".join(map(str, list(item)[:10]))
            raise ValueError(
                f"items are dicts with {names}: wanted one entry of {', '.join(INPUTS)} and one of"
                f" {', '.join(LABELS)}"
            )
        return item[inputs[0]], item[labels[0]]
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise ValueError(f"an item is a {type(item).__name__}; wanted (x, y)")
    return item[0], item[1]


def without_extremes(x: np.ndarray) -> np.ndarray:
    """Numbers that can be compared: what is missing is 0, what is infinite or beyond all use the
    largest that is not.
    """
    x = np.asarray(x, np.float64)
    finite = np.abs(x[np.isfinite(x)])
    largest = min(float(finite.max()), LARGEST) if finite.size else 0.0
    return np.nan_to_num(x, nan=0.0, posinf=largest, neginf=-largest).clip(-LARGEST, LARGEST)


def _number_labels(table: pd.DataFrame, names: list[str]) -> None:
    """Where a table's labels are names of its columns of logits, their numbers take their place."""
    classes = [name for name in names if name.lower() not in COLUMNS]
    for place, name in enumerate(names):
        if COLUMNS.get(name.lower()) == "labels" and table[place].isin(classes).all():
            table[place] = table[place].map(classes.index)


def table_in(path: str | Path) -> dict[str, np.ndarray]:
    """Arrays of one model's outputs in a .csv or .tsv, a row per sample.

    Parameters:
        path: of the table. Without a line of names all columns are logits.

    Returns:
        logits (N, K): all columns but those called label, member and population, in their order;
        labels, member and population (N,) where there are such columns, labels as numbers or as
        names of columns of logits; classes (K,), the names of the columns, where they have any.

    Raises:
        ValueError: of one line for columns that hold text or something else than logits, by their
            name; for empty cells, by row and column; and for tables that cannot be read.
    """
    path = Path(path)
    start = f"{path}: "
    mark = SEPARATORS[path.suffix.lower()]
    if not path.is_file():
        raise ValueError(f"{start}there is no such file")
    check_budget(str(path), 4 * path.stat().st_size)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            names = next(csv.reader(file, delimiter=mark), [])
        named = not all(_is_number(name) or name.lower() in ("true", "false") for name in names)
        table = pd.read_csv(
            path,
            sep=mark,
            header=None,
            skiprows=int(named),
            encoding="utf-8-sig",
            float_precision="round_trip",
            low_memory=False,
        )
    except (ValueError, OSError, csv.Error, pd.errors.ParserError) as error:
        raise ValueError(
            f"{start}it cannot be read as a table ({in_one_line(error, 120)})"
        ) from error
    names = [name.strip() for name in names] if named else []
    if named and len(names) != table.shape[1]:
        raise ValueError(
            f"{start}a line has {table.shape[1]} entries where {len(names)} columns are named"
        )
    if "" in names:
        raise ValueError(
            f"{start}"
            f"column {names.index('') + 1 if '' in names else 0} has no name: are these row"
            " numbers? leave them out (index=False in pandas)"
        )
    if len({*names}) < len(names):
        raise ValueError(
            f"{start}"
            f"two columns are called {next((shown(n) for n in names if names.count(n) > 1), '')}"
        )
    _number_labels(table, names)
    arrays = {}
    columns: list[int] = []
    for place in range(table.shape[1]):
        name = names[place] if named else f"column {place + 1}"
        values = _column(table[place], name, start)
        if named and name.lower() in COLUMNS:
            kind = COLUMNS[name.lower()]
            if kind in arrays:
                raise ValueError(f"{start}it has two columns of {kind}")
            arrays[kind] = values
            continue
        counts_rows = len(values) > 2 and (np.diff(values.astype(float)) == 1).all()
        if named and name.lower() in NO_LOGITS:
            raise ValueError(
                f"{start}"
                f"{name} is no class's logit, it seems: leave the column out; beside logits there"
                " may be label, member and population"
            )
        if counts_rows:
            raise ValueError(f"{start}{name} numbers the rows: leave the column out")
        if values.dtype == bool:
            raise ValueError(
                f"{start}"
                f"{name} holds true and false: call the column member if it says who was trained"
                " on, else leave it out"
            )
        columns.append(place)
    if columns:
        arrays["logits"] = table[columns].to_numpy(np.float64)
        arrays |= {"classes": np.array([names[place] for place in columns])} if named else {}
    return arrays


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _column(column: pd.Series, name: str, start: str) -> np.ndarray:
    """A column's numbers or booleans; ValueError for text and empty cells."""
    # pandas' own row numbers: those of the table below its names
    if column.isna().any():
        row = int(column.isna().to_numpy().argmax())
        raise ValueError(f"{start}{name} has no number in row {row} (counted from 0)")
    values = column.to_numpy()
    if values.dtype.kind not in "biuf":
        text = next(value for value in values if not _is_number(str(value)))
        marks = "tabs" if start.lower().endswith(".tsv: ") else "commas"
        raise ValueError(
            f"{start}{name} holds {shown(text)}: wanted numbers, of member 1 and 0 or true and"
            f" false, separated by {marks}"
        )
    return values
