"""Other models beside the finished one: given with masks, or retrained on halves and stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from mia_nb import store
from mia_nb.auditing.samples import in_one_line, numpy_of, rows_of
from mia_nb.checks import mask, shown
from mia_nb.digests import digest, digest_of_function
from mia_nb.types import Signals


def given_references(
    references: Iterable, samples: int, query: Callable
) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """(mask, logits) of each reference."""
    for reference in references:
        if not (isinstance(reference, tuple | list) and len(reference) == 2):
            raise ValueError(f"references hold {shown(reference)}; wanted (model, mask) of each")
        model, trained_on = reference
        member = mask("the mask of a reference", numpy_of(trained_on), (samples,))
        yield member, query(model)


def retrained_models(
    retrain: Callable,
    x: np.ndarray | pd.DataFrame,
    y: np.ndarray,
    models: int,
    root: Path,
    seed: int,
    query: Callable,
    key: str | None = None,
) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """(mask, logits) of each model trained on a half, from the disk if stored there already."""
    from tqdm.auto import tqdm

    from mia_nb.data import paired_membership  # torch

    record = {
        "retrained": _identity(retrain, key),
        "seed": seed,
        "models": models,
        "shape": [*x.shape],
    }
    content = store.content_key(record, digest(numpy_of(x)), digest(y))
    folder = store.open_folder(root, "signals", "retrained", content, record)
    member = paired_membership(models, len(y), labels=y, seed=seed)
    names = [f"logits_{m:03d}.npy" for m in range(models)]
    complete = all(map(folder.intact, names)) and store.has_signals(folder)
    if not complete:
        with folder.lock("retraining"):
            for m in tqdm(range(models), desc="retraining", unit="model", disable=None):
                if not folder.intact(names[m]):
                    half = rows_of(x, member[m])
                    model = _trained(retrain, half, y[member[m]], seed + m)
                    folder.write_array(names[m], query(model))
            if not store.has_signals(folder):  # `mia-nb list` calls it done then
                logits = np.stack([folder.read_array(name) for name in names])
                _write_signals(folder, logits, y, member)
    return zip(member, [folder.read_array(name) for name in names], strict=True)


def _write_signals(
    folder: store.Folder, logits: np.ndarray, labels: np.ndarray, member: np.ndarray
) -> None:
    """Store the signals of all models, as those of a queried pool are stored."""
    signals = Signals.from_logits(logits, labels, member)
    models = range(len(member))
    for m in models:
        store.write_partial(folder, m, signals.select(models=[m]))
    design = {"labels": labels, "member": member, "population": signals.population}
    store.join_partial(folder, [*models], design, {"draws": "plain"}, None)


def _trained(retrain: Callable, x: np.ndarray | pd.DataFrame, y: np.ndarray, seed: int) -> object:
    """The model that one call of the user's training function gives; its errors are raised in one
    line, chained to their traceback.
    """
    try:
        return retrain(x, y, seed)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"retrain(images, labels, seed) fails on {len(y)} samples with seed {seed}:"
            f" {in_one_line(error, 200)}"
        ) from error


def _identity(function: Callable, key: str | None) -> str:
    """The identity of a training function: the given name, or a digest of all it computes with."""
    if key is not None:
        return f"key {key}"
    try:
        return digest_of_function(function)
    except ValueError as error:
        raise ValueError(
            f"retrain={shown(function)}: {error}; so a change of it would go unnoticed: pass"
            ' key="a name that changes when the training does"'
        ) from None
