"""Outputs of models that were trained elsewhere: one .npz of plain arrays, doubted before it is believed."""

from __future__ import annotations

import difflib
import hashlib
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mia_nb.auditing.one_run import check_bernoulli
from mia_nb.metrics.curve import auc, auc_null_error
from mia_nb.types import DRAWS, Signals

ARRAYS = {
    "logits": "(models, samples, classes) or (models, queries, samples, classes)",
    "labels": "(samples,)",
    "member": "(models, samples)",
}
OPTIONAL = ("population", "classes", "images", "draws", "split")
INVERTED = 6.0  # standard errors below 1/2 at which membership is taken to be the wrong way round
FEWEST = 2  # members, and non-members, of a model


class Outputs(NamedTuple):
    """What a file of outputs held: `images` (N, C, H, W) uint8 or None, names of `classes`, sha256 of the file."""

    signals: Signals
    images: np.ndarray | None
    classes: tuple[str, ...]
    digest: str


def read_outputs(path: str | Path) -> Outputs:
    """The .npz of what models, trained anywhere, answered: nothing in it is unpickled.

    logits      (M, N, K) or (M, Q, N, K): before softmax (log-probabilities will do), M models asked Q times about N samples
    labels      (N,) class numbers from 0
    member      (M, N) bool or 0/1: was the sample in the model's training set?
    population  optional (N,) bool: samples that no model trained on and no attack is judged by
    classes     optional (K,) names;   draws  optional text, what Q holds: dropout, augment, steps or noise (the default)
    split       optional text, how members were drawn: pairs (complementary halves) or bernoulli (independent fair coins)
    images      optional (N, H, W), (N, H, W, C) or (N, C, H, W) uint8, shown beside what is found

    `member` may come from complementary halves, coins, or any masks that were drawn at random: only then do non-members show
    what a member would have looked like outside. Raises ValueError of one line that says what came, what was wanted and what
    to do: missing or pickled arrays, swapped axes, probabilities, NaN, labels out of range, a model without members or without
    non-members, two models with the same outputs, a model that answers every sample alike, and members that are answered worse
    than non-members by 6 standard errors (an inverted mask), and masks that are visibly not what `split` declares. Caveat:
    samples in another order than their labels or masks cannot be recognised where models are no better than chance; look at
    the accuracies. One mask alone shows too little of how it was drawn: an audited epsilon of one model wants the `split`.
    """
    path = Path(path)
    arrays = _arrays(path)
    logits, labels, member = (arrays[name] for name in ARRAYS)
    labels = _labels(labels, path.name)
    logits, member = _axes(logits, labels, member, path.name)
    member = _flags(member, "member", path.name)
    population = _flags(arrays.get("population", np.zeros(len(labels))), "population", path.name)
    if population.shape != labels.shape:
        raise ValueError(f"{path.name}: population has shape {population.shape}; wanted {labels.shape}, one flag per sample")
    _check_design(member, population, path.name)
    _check_answers(logits, path.name)
    classes = _classes(arrays.get("classes"), logits.shape[-1], path.name)
    digest, draws = _digest(path), _draws(arrays.get("draws"), logits, path.name)
    queries = logits.shape[1] if logits.ndim == 4 else 1
    info = {"family": path.stem, "dataset": path.stem, "outputs": digest, "queries": queries}
    if "split" in arrays:
        info["split"] = _split(arrays["split"], member[:, ~population], path.name)
    try:
        signals = Signals.from_logits(logits, labels, member, population=population, draws=draws, info=info)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
    _check_direction(signals, path.name)
    return Outputs(signals, _images(arrays.get("images"), len(labels), path.name), classes, digest)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays by name; those that are pickles are refused, those not known are left alone."""
    if not path.is_file():
        raise ValueError(f"{path} is no file: wanted an .npz with {_wanted()}")
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ValueError(f"{path.name} is one bare array; wanted np.savez(path, logits=..., labels=..., member=...)")
        with file:
            names = list(file.files)
            there = {name: _one(file, name, path.name) for name in names if name in (*ARRAYS, *OPTIONAL)}
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError) as error:
        if str(error).startswith(path.name):
            raise
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path.name} cannot be read as an .npz of plain arrays: {reason}") from error
    if lacks := [name for name in ARRAYS if name not in there]:
        close = difflib.get_close_matches(lacks[0], names, 1, cutoff=0.5)
        hint = f"; is it {close[0]!r}?" if close else ""
        raise ValueError(f"{path.name} holds {', '.join(names) or 'nothing'}; it lacks {lacks[0]} {ARRAYS[lacks[0]]}{hint}")
    return there


def _one(file, name: str, where: str) -> np.ndarray:
    try:
        array = file[name]
    except ValueError as error:
        if "pickle" not in str(error) and "Object" not in str(error):
            raise
        raise ValueError(f"{where}: {name} is an object array (a pickle) and may run code: save plain numbers") from error
    kinds = "US" if name in ("classes", "draws", "split") else "biuf"
    if array.dtype.kind not in kinds:
        raise ValueError(f"{where}: {name} is of type {array.dtype}; wanted {'text' if kinds == 'US' else 'numbers'}")
    return array


def _wanted() -> str:
    return ", ".join(f"{name} {axes}" for name, axes in ARRAYS.items())


def _labels(labels: np.ndarray, where: str) -> np.ndarray:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        advice = "; pass labels.argmax(1)" if labels.ndim == 2 else ""
        raise ValueError(f"{where}: labels have shape {labels.shape}; wanted (samples,) class numbers{advice}")
    if not len(labels) or not np.isfinite(labels).all() or (labels != np.rint(labels)).any() or labels.min() < 0:
        raise ValueError(f"{where}: labels must be whole numbers from 0, one per sample, and there must be some")
    return labels.astype(np.int64)


def _axes(logits: np.ndarray, labels: np.ndarray, member: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Both with axes in order; else ValueError with the transposition that would put them so."""
    samples = len(labels)
    if logits.ndim == 2:
        advice = "; of one model pass logits[None] and member[None]" if len(logits) == samples else ""
        raise ValueError(f"{where}: logits have shape {logits.shape}; wanted {ARRAYS['logits']}{advice}")
    if logits.ndim not in (3, 4):
        raise ValueError(f"{where}: logits have shape {logits.shape}; wanted {ARRAYS['logits']}")
    if logits.shape[-2] != samples:
        places = [axis for axis in range(logits.ndim) if logits.shape[axis] == samples]
        advice = f"; pass np.moveaxis(logits, {places[0]}, -2)" if places else ""
        raise ValueError(
            f"{where}: logits have shape {logits.shape} and there are {samples} labels; wanted {ARRAYS['logits']}{advice}"
        )
    models = len(logits)
    if member.shape == (samples,) and models == 1:
        member = member[None]
    if member.shape != (models, samples):
        advice = "; pass member.T" if member.shape == (samples, models) else ""
        raise ValueError(
            f"{where}: member has shape {member.shape}; logits of {models} models and {samples} samples want "
            f"({models}, {samples}), a row per model{advice}"
        )
    return logits, member


def _flags(array: np.ndarray, name: str, where: str) -> np.ndarray:
    if array.dtype != bool and not np.isin(array, (0, 1)).all():
        odd = array[~np.isin(array, (0, 1))].reshape(-1)[0]
        raise ValueError(f"{where}: {name} holds {odd:g}; wanted true and false, or 1 and 0")
    return array.astype(bool)


def _check_design(member: np.ndarray, population: np.ndarray, where: str) -> None:
    if taken := int((member & population).any(0).sum()):
        raise ValueError(f"{where}: {taken} samples of the population are members of a model; wanted samples that no model saw")
    audited = member[:, ~population]
    for model, row in enumerate(audited):
        inside, outside = int(row.sum()), int((~row).sum())
        if min(inside, outside) < FEWEST:
            raise ValueError(
                f"{where}: model {model} has {inside} members and {outside} non-members among the audited samples; "
                "wanted some of each: ask every model about samples that it did and samples that it did not train on"
            )


def _check_answers(logits: np.ndarray, where: str) -> None:
    """Every model its own outputs, and not one output for all."""
    seen: dict[bytes, int] = {}
    for model, answers in enumerate(logits):
        flat = answers.reshape(-1, *answers.shape[-2:])
        if logits.shape[-2] > 1 and (flat == flat[:, :1]).all():
            raise ValueError(f"{where}: model {model} answers every sample alike: was it trained, and asked about these?")
        mark = hashlib.sha256(np.ascontiguousarray(answers)).digest()
        if mark in seen:
            raise ValueError(f"{where}: models {seen[mark]} and {model} gave the same outputs: is one file in there twice?")
        seen[mark] = model


def _check_direction(signals: Signals, where: str) -> None:
    audited = ~signals.population
    margin, member = signals.margin.mean(1)[:, audited], signals.member[:, audited]
    values = np.array([auc(one, who) for one, who in zip(margin, member, strict=True)])
    errors = [auc_null_error(who.sum(), (~who).sum()) for who in member]
    if ((values - 0.5) / errors).max() < -INVERTED:
        raise ValueError(
            f"{where}: every model is surer of non-members than of members (AUC of the margin {values.mean():.3f}): "
            "is member inverted? pass ~member"
        )


def _classes(names, count: int, where: str) -> tuple[str, ...]:
    if names is None:
        return tuple(map(str, range(count)))
    if names.shape != (count,):
        raise ValueError(f"{where}: classes have shape {names.shape}; the logits have {count}, so wanted ({count},) names")
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names.tolist())


def _draws(word, logits: np.ndarray, where: str) -> str:
    if logits.ndim == 3 or logits.shape[1] == 1:
        return "plain"
    word = "noise" if word is None else str(np.asarray(word).reshape(-1)[0])
    if word not in DRAWS[1:]:
        raise ValueError(f"{where}: draws is {word!r}; wanted what the {logits.shape[1]} queries are: {', '.join(DRAWS[1:])}")
    return word


def _split(word, member: np.ndarray, where: str) -> str:
    """What the file declares, where the masks do not visibly contradict it."""
    word = str(np.asarray(word).reshape(-1)[0]) if word.size else ""
    if word not in ("pairs", "bernoulli"):
        raise ValueError(
            f"{where}: split is {word!r}; wanted pairs, bernoulli, or no such array where members were drawn otherwise"
        )
    if word == "bernoulli":
        try:
            check_bernoulli(member)
        except ValueError as error:
            raise ValueError(f"{where}: split is 'bernoulli', but {error}") from error
    elif any(((row != member).all(1)).sum() != 1 for row in member):
        raise ValueError(f"{where}: split is 'pairs', but some mask has no complement of its own; leave split out")
    return word


def _images(x, samples: int, where: str) -> np.ndarray | None:
    if x is None:
        return None
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or len(x) != samples:
        raise ValueError(
            f"{where}: images are {x.dtype} {x.shape}; wanted uint8 (N, H, W), (N, H, W, C) or (N, C, H, W), N = {samples}"
        )
    x = x[:, None] if x.ndim == 3 else x if x.shape[1] in (1, 3) else x.transpose(0, 3, 1, 2)
    if x.shape[1] not in (1, 3):
        raise ValueError(f"{where}: images have {x.shape[1]} channels; wanted 1 or 3")
    return np.ascontiguousarray(x)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
