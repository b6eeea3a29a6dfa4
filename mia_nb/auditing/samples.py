"""Reading the samples of an audit from arrays, tensors, tables, data sets and loaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
import pandas as pd

from mia_nb.checks import as_array, shown
from mia_nb.digests import digest

# names of the input and of the label in data sets whose items are dicts
INPUTS = ("image", "img", "x", "pixel_values", "input_ids", "features")
# further inputs of a model, and what it takes for them where it is not given them
FURTHER = {"attention_mask": 1, "token_type_ids": 0}
LABELS = ("label", "labels", "y", "target", "fine_label")
READ_AGAIN = 32  # items of a data set that are read twice
STACK = (
    "stack them in one array and pass a function, model.eval() and"
    " lambda x: model(*torch.as_tensor(x).unbind(1))"
)
DATA = (
    "wanted (x, y) of arrays, tensors or tables, or a data set whose [i] is (x, y) or a dict with"
    " an image and a label, or a DataLoader of such a data set"
)


def both_sides(
    train: object, test: object, estimator_classes: list | None = None
) -> tuple[np.ndarray | pd.DataFrame, np.ndarray, np.ndarray]:
    """x and y of both sides together, and who is a member; x is a table if both are.

    estimator_classes: those of an estimator whose labels are not numbers from 0.
    """
    x1, y1 = _samples("train", train, estimator_classes)
    x0, y0 = _samples("test", test, estimator_classes)
    y = np.concatenate([y1, y0])
    member = np.arange(len(y)) < len(y1)
    if isinstance(x1, pd.DataFrame) and isinstance(x0, pd.DataFrame):
        names = [*x1.columns]
        others = [*x0.columns]
        repeated = len({*names}) < len(names) or len({*others}) < len(others)
        if repeated or {*names} != {*others}:
            raise ValueError(
                f"columns of train are {shown(names)}, of test {shown(others)}; wanted the same"
                " names, each once"
            )
        # columns by their names, whatever their order
        return pd.concat([x1, x0[names]], ignore_index=True), y, member
    x1 = numpy_of(x1)
    x0 = numpy_of(x0)
    if x1.shape[1:] != x0.shape[1:]:
        raise ValueError(
            f"samples of train have shape {x1.shape[1:]}, of test {x0.shape[1:]}; wanted one shape"
        )
    return np.concatenate([x1, x0]), y, member


def _samples(
    name: str, data: object, estimator_classes: list | None = None
) -> tuple[np.ndarray | pd.DataFrame, np.ndarray]:
    """x (n, ...) as an array, or unchanged if it is a table, and y (n,) as class numbers."""
    try:
        if isinstance(data, tuple | list) and len(data) == 2:
            x, y = data
            _refuse_other_inputs(x, y)
        else:
            items = [sample_of(item) for item in items_of(data)]
            x, y = zip(*items, strict=True)
        x = x if isinstance(x, pd.DataFrame) else numpy_of(x)
        y = numpy_of(y)
        if y.shape[1:] == (1,):  # a table of one column
            y = y[:, 0]
    except Exception as error:
        raise ValueError(f"{name} cannot be read ({in_one_line(error, 200)}): {DATA}") from error
    if estimator_classes is not None and y.ndim == 1:
        y = class_numbers(name, y, estimator_classes)
    y = whole_numbers(y)
    if y.dtype.kind == "f":
        odd = y[~(np.isfinite(y) & (y == np.rint(y)))]
        raise ValueError(
            f"{name} has {len(odd)} labels that are no whole numbers, {shown(odd[:3].tolist())}"
            " ...; wanted class numbers from 0: a regression cannot be audited"
        )
    if y.dtype.kind not in "biu":
        raise ValueError(
            f"{name} has labels {shown(y[:3].tolist())} ...; wanted class numbers from 0:"
            " np.unique(y, return_inverse=True)[1] of train and test together"
        )
    if y.ndim != 1:
        raise ValueError(
            f"{name} has labels of shape {y.shape}; wanted (samples,) class numbers from 0"
        )
    if x.shape[:1] != y.shape:
        raise ValueError(f"{name} has {x.shape[:1]} samples and {y.shape} labels; wanted as many")
    return x, y


def _refuse_other_inputs(x: object, y: object) -> None:
    """ValueError where x is a tuple or mapping of inputs, not of samples, or a sparse matrix."""
    if hasattr(x, "toarray"):
        raise ValueError(
            f"x is a sparse {type(x).__name__}; pass x.toarray(), or texts and a pipeline of the"
            " vectoriser and the model"
        )
    if isinstance(x, Mapping):
        raise ValueError(f"x is a mapping of {shown([*x])}; {STACK}")
    if not isinstance(x, tuple | list) or len(x) == len(y):
        return
    if {len(part) for part in x if np.ndim(part)} == {len(y)}:
        raise ValueError(f"x holds {len(x)} inputs of {len(y)} samples; {STACK}")


def whole_numbers(labels: np.ndarray) -> np.ndarray:
    """Labels that are whole numbers in floats or objects as integers, any others unchanged."""
    if labels.dtype == object and pd.api.types.infer_dtype(labels, skipna=False) == "integer":
        return labels.astype(np.int64)
    if labels.dtype.kind == "f" and (np.isfinite(labels) & (labels == np.rint(labels))).all():
        return labels.astype(np.int64)
    return labels


def rows_of(x: np.ndarray | pd.DataFrame, which: np.ndarray | slice) -> np.ndarray | pd.DataFrame:
    """Some rows of an array or of a table."""
    return x.iloc[which] if isinstance(x, pd.DataFrame) else x[which]


def in_one_line(error: BaseException, most: int) -> str:
    """An error of other code on one line of at most `most` characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:most]


def numpy_of(values: object) -> np.ndarray:
    """Arrays, tensors or lists of these as one array, of objects where samples differ in shape."""
    if not isinstance(values, tuple | list):
        return as_array(values)
    parts = [numpy_of(part) for part in values]
    if len({part.shape for part in parts}) == 1:
        return np.stack(parts)
    ragged = np.empty(len(parts), object)
    ragged[:] = parts
    return ragged


def sample_of(item: object) -> tuple[object, object]:
    """The input and the label of a data set's item: its first two entries, or those of a mapping
    under their usual names. ValueError for a mapping with a mask, or the like, that makes a
    difference: the model would be asked without it.
    """
    if isinstance(item, Mapping):
        inputs = [name for name in INPUTS if name in item]
        labels = [name for name in LABELS if name in item]
        if len(inputs) != 1 or len(labels) != 1:
            raise ValueError(
                f"items are dicts with {shown([*item])}: wanted one entry of {', '.join(INPUTS)}"
                f" and one of {', '.join(LABELS)}"
            )
        for name, usual in FURTHER.items():
            if name in item and (numpy_of(item[name]) != usual).any():
                raise ValueError(f"items hold {name}, which the model would not be given; {STACK}")
        return item[inputs[0]], item[labels[0]]
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise ValueError(f"an item is a {type(item).__name__}; wanted (x, y)")
    return item[0], item[1]


def items_of(data: object) -> Iterator:
    """The items of a data set, or those that a DataLoader draws from one, in its order."""
    if hasattr(data, "__getitem__") or not hasattr(data, "dataset"):
        return (data[i] for i in range(len(data)))
    return (data.dataset[i] for i in _numbers_drawn(data))


def reads_differ(data: object) -> bool:
    """Whether a data set gives other inputs when some of its items are read again, as one with
    random augmentation does.
    """
    if isinstance(data, tuple | list):
        return False
    first, second = (
        [numpy_of(sample_of(item)[0]) for item in islice(items_of(data), READ_AGAIN)]
        for _ in range(2)
    )
    return not all(map(_is_alike, first, second))


def _is_alike(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two readings of an input are equal but for rounding, which differs on a GPU."""
    if first.shape == second.shape and first.dtype.kind == "f":
        return np.allclose(first, second, rtol=1e-3, atol=1e-5, equal_nan=True)
    return digest(first) == digest(second)


def _numbers_drawn(loader: object) -> Sequence[int]:
    """The numbers of the items that a DataLoader draws from its data set, rising.

    What a sampler leaves out, such as a part for validation, was not trained on. Raises ValueError
    for a sampler that is not one of torch's and does not name its `indices`.
    """
    sampler = getattr(loader, "batch_sampler", None)
    if sampler is None:
        sampler = getattr(loader, "sampler", None)
    while hasattr(sampler, "sampler"):  # of batches, or one that repeats another
        sampler = sampler.sampler
    if hasattr(sampler, "__getitem__"):  # a list of numbers or of batches
        return np.unique(np.hstack([numpy_of(part) for part in sampler])).tolist()
    if hasattr(sampler, "indices"):
        return np.unique(numpy_of(sampler.indices)).tolist()
    if sampler is not None and not type(sampler).__module__.startswith("torch."):
        raise ValueError(
            f"which items a {type(sampler).__name__} draws is not known; pass them as a data set,"
            " torch.utils.data.Subset(loader.dataset, numbers)"
        )
    if hasattr(sampler, "weights"):
        return np.flatnonzero(numpy_of(sampler.weights)).tolist()
    return range(len(getattr(sampler, "data_source", loader.dataset)))


def class_numbers(name: str, labels: np.ndarray, estimator_classes: list) -> np.ndarray:
    """The index of each label among an estimator's classes; ValueError for labels that it lacks."""
    number_of = {label: number for number, label in enumerate(estimator_classes)}
    for label in labels.tolist():
        if label not in number_of:
            raise ValueError(
                f"the estimator's classes are {shown(estimator_classes)}, and {name} has labels"
                f" {shown(label)} ...; wanted the labels that it was trained on, or train it on"
                " np.unique(y, return_inverse=True)[1] and pass these"
            )
    return np.array([number_of[label] for label in labels.tolist()], np.int64)
