"""What one model puts out for samples, whatever kind of model it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pandas as pd

from mia_nb.auditing.readers import estimator, in_one_line, logits_of, numpy_of, wants_columns
from mia_nb.auditing.samples import rows_of
from mia_nb.checks import shown

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
    known: list | None = None,
) -> np.ndarray:
    """Logits (N, K) of a torch module or a function, one row per sample of x.

    Samples are queried in a random order, so that a batch tells nothing about who is a member. An
    estimator that was fitted on a table gets one, every other model arrays; `known` are the classes
    by which labels are numbered. Raises ValueError of one line where the model fails or gives other
    shapes.
    """
    x = x if wants_columns(model) else numpy_of(x)
    order = np.random.default_rng(0).permutation(len(x))
    with _queried(model, device, known) as query:
        cuts = range(0, len(x), batch)
        parts = [_batch_outputs(query, rows_of(x, order[start : start + batch])) for start in cuts]
    return np.concatenate(parts)[np.argsort(order)]


def _batch_outputs(query: Callable, x: np.ndarray | pd.DataFrame) -> np.ndarray:
    """Logits of one batch."""
    try:
        output = query(x)
    except (Exception, SystemExit) as error:
        kind = getattr(x, "dtype", f"columns {shown([*getattr(x, 'columns', ())])}")
        raise ValueError(
            f"the model fails on a batch {x.shape} of {kind}: {in_one_line(error, 200)}"
        ) from error
    return logits_of(output, len(x))


@contextmanager
def _queried(model: object, device: str | None, known: list | None = None) -> Iterator[Callable]:
    """A function from NumPy batches to outputs; a module's modes are restored at the end."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        query = estimator(model, known) or model
        if not callable(query):
            raise ValueError(f"model={shown(model)}: {MODEL}")
        yield query
        return
    modes = {part: part.training for part in model.modules()}
    weight = next(model.to(device).parameters(), torch.zeros(()))
    counts = [getattr(part, "timesteps", None) for part in model.modules()]
    steps = [count for count in counts if isinstance(count, int) and count > 1]

    def query(x: np.ndarray):
        """What the module answers, on its device and in the type of its weights."""
        x = torch.as_tensor(x, device=weight.device)
        x = x.to(weight.dtype) if x.is_floating_point() else x
        # as many samples as time steps: a network that takes the first axis of events for time
        # would answer, with other numbers
        parts = [x[:1], x[1:]] if x.ndim == 5 and len(x) in steps else [x]
        answers = [model(part) for part in parts]
        if len(answers) == 1:
            return answers[0]
        return np.concatenate([logits_of(a, len(p)) for a, p in zip(answers, parts, strict=True)])

    try:
        with torch.inference_mode():
            model.eval()
            yield query
    finally:
        for part, training in modes.items():
            part.training = training
