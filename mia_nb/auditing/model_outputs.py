"""The outputs of one model for samples, whatever kind of model it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mia_nb.auditing.samples import in_one_line, numpy_of, rows_of
from mia_nb.checks import shown

if TYPE_CHECKING:
    import torch

SMALLEST = 1e-6  # probabilities of an estimator are clipped to this before the logarithm
MODEL = (
    "wanted a torch module, or a function of a batch that gives logits (batch, classes); of"
    " scikit-learn the estimator itself"
)


def outputs(
    model: object,
    x: np.ndarray | pd.DataFrame,
    *,
    batch: int = 512,
    device: str | None = None,
    estimator_classes: list | None = None,
) -> np.ndarray:
    """Logits (N, K) of a torch module or a function, one row per sample of x.

    Samples are queried in random order, so that batches are unrelated to membership. An estimator
    that was fitted on a table gets a table, every other model arrays; labels are numbered by
    `estimator_classes`, where these are not None. Raises ValueError where the model fails or gives
    other shapes.
    """
    x = x if wants_columns(model) else numpy_of(x)
    order = np.random.default_rng(0).permutation(len(x))
    parts = []
    with _queried(model, device, estimator_classes) as query:
        for start in range(0, len(x), batch):
            rows = rows_of(x, order[start : start + batch])
            parts.append(_batch_outputs(query, rows))
    return np.concatenate(parts)[np.argsort(order)]


def _batch_outputs(query: Callable, x: np.ndarray | pd.DataFrame) -> np.ndarray:
    """Logits of one batch."""
    try:
        output = query(x)
    except (Exception, SystemExit) as error:
        kind = f"columns {shown([*x.columns])}" if isinstance(x, pd.DataFrame) else x.dtype
        raise ValueError(
            f"the model fails on a batch {x.shape} of {kind}: {in_one_line(error, 200)}"
        ) from error
    return logits_of(output, len(x))


@contextmanager
def _queried(
    model: object, device: str | None, estimator_classes: list | None
) -> Iterator[Callable]:
    """A function from NumPy batches to outputs; a module's modes are restored at the end."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        query = logits_function(model, estimator_classes) or model
        if not callable(query):
            raise ValueError(f"model={shown(model)}: {MODEL}")
        yield query
        return
    modes = {part: part.training for part in model.modules()}
    try:
        model.to(device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"device={shown(device)}: the model cannot be moved there ({in_one_line(error, 120)});"
            " take cpu, cuda where PyTorch can use a GPU, or None, which leaves it where it is"
        ) from error
    try:
        with torch.inference_mode():
            model.eval()
            yield _module_query(model)
    finally:
        for part, training in modes.items():
            part.training = training


def _module_query(module: torch.nn.Module) -> Callable:
    """A function from NumPy batches to a module's outputs, computed on its device and in the type
    of its weights.
    """
    import torch

    weight = next(module.parameters(), torch.zeros(()))
    counts = [getattr(part, "timesteps", None) for part in module.modules()]
    time_steps = {count for count in counts if isinstance(count, int) and count > 1}

    def query(x: np.ndarray) -> object:
        x = torch.as_tensor(x, device=weight.device)
        if x.is_floating_point():
            x = x.to(weight.dtype)
        # with as many samples as time steps, a network that takes the first axis of events for time
        # would give wrong numbers without an error
        if x.ndim == 5 and len(x) in time_steps:
            first = logits_of(module(x[:1]), 1)
            others = logits_of(module(x[1:]), len(x) - 1)
            return np.concatenate([first, others])
        return module(x)

    return query


def logits_of(output: object, samples: int) -> np.ndarray:
    """A model's output for a batch as logits (samples, classes).

    Parameters:
        output: an array or tensor (samples, classes); (samples,) or (samples, 1), one logit of a
            binary network; a mapping or record with an entry `logits`; or a tuple of which one
            entry is (samples, classes), and no other is one number a sample.
        samples: number of samples in the batch.

    Returns:
        (samples, classes) array; one logit z becomes the columns 0 and z.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(output, Mapping):
        if "logits" not in output:
            raise ValueError(
                f"the model gives a dict with {shown([*output])}; wanted an entry logits, of shape"
                " (batch, classes)"
            )
        output = output["logits"]
    elif not hasattr(output, "shape") and hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, tuple):
        output = _entry_of(output, samples)
    logits = numpy_of(output)
    if logits.shape in ((samples,), (samples, 1)):
        logit = logits.reshape(-1)
        return np.stack([np.zeros_like(logit), logit], axis=1)
    if logits.ndim != 2 or len(logits) != samples:
        raise ValueError(
            f"the model gives {logits.shape} for {samples} samples; wanted (batch, classes) logits,"
            " or one logit a sample"
        )
    return logits


def _entry_of(output: tuple, samples: int) -> object:
    """The one entry of a tuple that can be logits.

    One number a sample beside a wide entry can be a binary network's logit, and the wide entry its
    features. Without a wide entry it may as well be a loss, and is not taken for a logit.
    """
    shapes = [tuple(getattr(entry, "shape", ())) for entry in output]
    fitting = []
    for entry, shape in zip(output, shapes, strict=True):
        if len(shape) in (1, 2) and shape[0] == samples:
            fitting.append(entry)
    if len(fitting) != 1 or fitting[0].shape in ((samples,), (samples, 1)):
        raise ValueError(
            f"the model gives a tuple of shapes {shapes}; wanted one entry (batch, classes) and no"
            " other of one number a sample: return the logits alone, lambda x: model(x)[0]"
        )
    return fitting[0]


def named_classes(model: object) -> list | None:
    """The classes of a scikit-learn estimator whose labels are not 0 to K - 1; None for all other
    models.
    """
    classes = _classes(model)
    if classes is None or classes == list(range(len(classes))):
        return None
    several_outputs = isinstance(classes[0], list)
    return None if several_outputs else classes


def _classes(model: object) -> list | None:
    """The classes of a scikit-learn estimator, a list for each of several outputs; None for other
    models. ValueError for an estimator that cannot be audited.
    """
    if isinstance(model, type):
        raise ValueError(f"model={shown(model)} is a class; wanted a trained model of it")
    declared = getattr(model, "classes_", None)
    is_estimator = hasattr(model, "fit") and hasattr(model, "predict") and not callable(model)
    if is_estimator and declared is None:
        raise ValueError(
            f"model={shown(model)} has no classes, as it is a regressor, finds outliers or is not"
            " fitted; wanted a fitted classifier"
        )
    if is_estimator and not _gives_scores(model):
        raise ValueError(
            f"model={shown(model)} gives the predicted class alone; wanted predict_proba or"
            " decision_function (CalibratedClassifierCV adds it, to a VotingClassifier"
            " voting='soft')"
        )
    if declared is None or not _gives_scores(model):
        return None
    return [np.asarray(part).tolist() for part in declared]


def _gives_scores(model: object) -> bool:
    """Whether this is a scikit-learn estimator that gives more than the predicted class."""
    return hasattr(model, "predict_proba") or hasattr(model, "decision_function")


def logits_function(model: object, estimator_classes: list | None = None) -> Callable | None:
    """A function from a batch to the logits of a scikit-learn estimator; None for other models.

    estimator_classes: those by which labels are numbered, None for 0 to K - 1. Raises ValueError
    for an estimator with other classes, whose outputs would be in another order.
    """
    classes = _classes(model)
    if classes is None:
        return None
    if classes not in (list(range(len(classes))), estimator_classes):
        wanted = "class numbers"
        if estimator_classes:
            wanted = f"{shown(estimator_classes)} or class numbers"
        raise ValueError(
            f"the estimator's classes are {shown(classes)}; wanted {wanted} from 0: train it on"
            " np.unique(y, return_inverse=True)[1]"
        )
    if hasattr(model, "predict_proba"):
        return lambda x: np.log(np.asarray(model.predict_proba(x)).clip(SMALLEST))
    if len(classes) > 2 and _decides_between_pairs(model):
        raise ValueError(
            f"model={shown(model)} decides between pairs of its {len(classes)} classes; wanted a"
            " score of each class: decision_function_shape='ovr', which needs no other training"
        )
    return model.decision_function


def _decides_between_pairs(model: object) -> bool:
    """Whether an estimator, the last of a pipeline, or the best of a search scores pairs of
    classes. One that is a part of another estimator may, and its own scores are not given.
    """
    while hasattr(model, "best_estimator_") or hasattr(model, "steps"):
        model = model.best_estimator_ if hasattr(model, "best_estimator_") else model.steps[-1][1]
    return getattr(model, "decision_function_shape", "") == "ovo"


def wants_columns(model: object) -> bool:
    """Whether this is an estimator that was fitted on a table, and may pick columns by name."""
    return _gives_scores(model) and getattr(model, "feature_names_in_", None) is not None
