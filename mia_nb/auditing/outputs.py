"""Outputs of models that were trained elsewhere: one .npz of plain arrays, doubted before it is believed."""

from __future__ import annotations

import difflib
import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb._image_files import npz_arrays
from mia_nb.auditing.one_run import check_bernoulli
from mia_nb.checks import checked
from mia_nb.metrics.curve import auc, auc_null_error
from mia_nb.types import DRAWS, Signals

ARRAYS = {
    "logits": "(models, samples, classes) or (models, queries, samples, classes)",
    "labels": "(samples,)",
    "member": "(models, samples)",
}
OPTIONAL = ("population", "classes", "images", "draws", "split")
INVERTED, LOST = 6.0, 2.0  # standard errors from chance that are certain, and that may be chance
ROUNDED = 0.05  # share by which sums of probabilities may miss 1
PROBABILITIES = {
    "sum to 1": "probabilities were passed; pass logits, or np.log(p)",
    "sum to 100": "percentages were passed; pass logits, or np.log(p / 100)",
    "lie in [0, 1]": "sigmoids were passed; pass logits, or np.log(p / (1 - p)) with p clipped "
    "(logits that lie so by chance: pass logits - 1, which changes no softmax)",
    "are -log(p)": "negated log-probabilities were passed; pass -logits",
}
LOOK = "Look at the outputs first:"
FEWEST = 2  # members, and non-members, of a model


class Outputs(NamedTuple):
    """What a file of outputs held: `images` (N, C, H, W) uint8 or None, names of `classes`, sha256 of the file."""

    signals: Signals
    images: np.ndarray | None
    classes: tuple[str, ...]
    digest: str


@checked
def read_outputs(path: str | Path) -> Outputs:
    """The .npz of what models, trained anywhere, answered: nothing in it is unpickled.

    logits      (M, N, K) or (M, Q, N, K): before softmax (log-probabilities will do), M models asked Q times about N samples
    labels      (N,) class numbers from 0
    member      (M, N) bool or 0/1: was the sample in the model's training set?
    population  optional (N,) bool: samples that no model trained on and no attack is judged by
    classes     optional (K,) names;   draws  optional text, what Q holds: dropout, augment, steps or noise (the default)
    split       optional text, how chance alone drew the members: pairs (complementary halves),
                bernoulli (independent fair coins) or random (any draw that looked at no sample)
    images      optional (N, H, W), (N, H, W, C) or (N, C, H, W) uint8, shown beside what is found

    `member` may come from complementary halves, coins, or any masks that were drawn at random: only then do non-members show
    what a member would have looked like outside. Raises ValueError of one line that says what came, what was wanted and what
    to do: missing or pickled arrays, swapped axes, NaN, labels out of range, a model without
    members or without non-members, two models with the same outputs, a model that answers every
    sample alike, masks that are visibly not what `split` declares; of any model probabilities,
    percentages, sigmoids or negated log-probabilities; and beyond 6 standard errors an inverted
    mask, rows of `member` in another order than the models, labels from 1, negated logits. What is
    only suspicious stands in `signals.info["remarks"]`, and by `comparable` on top of the verdict:
    members' classes no better than chance, outputs of one sign, samples without an answer.
    Caveat: masks whose samples are in another order than the outputs look like models that do not
    leak. One split shows too little of how it was drawn: an audited epsilon of one model wants
    `split`, and without `split` or images no limit is decided.
    """
    path = Path(path)
    arrays = _arrays(path)
    logits, labels, member = (arrays[name] for name in ARRAYS)
    labels = _labels(labels, path.name)
    logits, member = _axes(logits, labels, member, path.name)
    member = _flags(member, "member", path.name)
    population = _flags(arrays.get("population", np.zeros(len(labels))), "population", path.name)
    if population.shape != labels.shape:
        raise ValueError(
            f"{path.name}: population has shape {population.shape}; wanted {labels.shape}, one flag per sample"
        )
    _check_design(member, population, path.name)
    _check_answers(logits, path.name)
    _check_scale(logits, path.name)
    classes = _classes(arrays.get("classes"), logits.shape[-1], path.name)
    digest, draws = _digest(path), _draws(arrays.get("draws"), logits, path.name)
    queries = logits.shape[1] if logits.ndim == 4 else 1
    info = {"family": path.stem, "dataset": path.stem, "outputs": digest, "queries": queries}
    if "split" in arrays:
        info["split"] = _split(arrays["split"], member[:, ~population], path.name)
    lost = _check_labels(logits, labels, member, path.name)
    info["remarks"] = [*lost, *_remarks(logits)]
    try:
        signals = Signals.from_logits(
            logits, labels, member, population=population, draws=draws, info=info
        )
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
    _check_direction(signals, path.name)
    _check_rows(signals, path.name)
    return Outputs(signals, _images(arrays.get("images"), len(labels), path.name), classes, digest)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays by name; those that are pickles are refused, those not known are left alone."""
    there, names = npz_arrays(path, (*ARRAYS, *OPTIONAL))
    if lacks := [name for name in ARRAYS if name not in there]:
        close = difflib.get_close_matches(lacks[0], names, 1, cutoff=0.5)
        hint = f"; is it {close[0]!r}?" if close else ""
        held = ", ".join(names) or "nothing"
        raise ValueError(f"{path.name} holds {held}; it lacks {lacks[0]} {ARRAYS[lacks[0]]}{hint}")
    for name, array in there.items():
        kinds = "US" if name in ("classes", "draws", "split") else "biuf"
        if array.dtype.kind not in kinds:
            wanted = "text" if kinds == "US" else "numbers"
            raise ValueError(f"{path.name}: {name} is of type {array.dtype}; wanted {wanted}")
    return there


def _labels(labels: np.ndarray, where: str) -> np.ndarray:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        advice = "; pass labels.argmax(1)" if labels.ndim == 2 else ""
        raise ValueError(
            f"{where}: labels have shape {labels.shape}; wanted (samples,) class numbers{advice}"
        )
    if (
        not len(labels)
        or not np.isfinite(labels).all()
        or (labels != np.rint(labels)).any()
        or labels.min() < 0
    ):
        raise ValueError(
            f"{where}: labels must be whole numbers from 0, one per sample, and there must be some"
        )
    return labels.astype(np.int64)


def _axes(
    logits: np.ndarray, labels: np.ndarray, member: np.ndarray, where: str
) -> tuple[np.ndarray, np.ndarray]:
    """Both with axes in order; else ValueError with the transposition that would put them so."""
    samples = len(labels)
    if logits.ndim == 2:
        advice = (
            "; of one model pass logits[None] and member[None]" if len(logits) == samples else ""
        )
        raise ValueError(
            f"{where}: logits have shape {logits.shape}; wanted {ARRAYS['logits']}{advice}"
        )
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
        raise ValueError(
            f"{where}: {taken} samples of the population are members of a model; wanted samples that no model saw"
        )
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
            raise ValueError(
                f"{where}: model {model} answers every sample alike: was it trained, and asked about these?"
            )
        mark = hashlib.sha256(np.ascontiguousarray(answers)).digest()
        if mark in seen:
            raise ValueError(
                f"{where}: models {seen[mark]} and {model} gave the same outputs: is one file in there twice?"
            )
        seen[mark] = model


def _check_scale(logits: np.ndarray, where: str) -> None:
    """Logits or log-probabilities of every model."""
    kinds = [_scale(one.reshape(-1, one.shape[-1])) for one in logits]
    if kind := next(filter(None, kinds), None):
        alike = [model for model, one in enumerate(kinds) if one == kind]
        mixed = ", not those of the others" if len(alike) < len(logits) else ""
        found = f"{_models(alike)} are all >= 0 and {kind}{mixed}"
        raise ValueError(f"{where}: the outputs of {found}: {PROBABILITIES[kind]}")


def _scale(z: np.ndarray) -> str | None:
    """The key of PROBABILITIES of outputs (rows, K) that are no logits, None of others."""
    if not z.min() >= 0:
        return None
    if whole := next((whole for whole in (1, 100) if _sum_to(whole, z)), None):
        return f"sum to {whole}"
    if z.max() <= 1:
        return "lie in [0, 1]"
    return "are -log(p)" if _sum_to(1, np.exp(-z.astype(float))) else None


def _sum_to(whole: int, z: np.ndarray) -> bool:
    return np.allclose(z.sum(1, dtype=float), whole, rtol=ROUNDED, atol=0)


def _models(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
    return f"model{'s' if len(numbers) > 1 else ''} {shown}"


def _check_labels(logits, labels, member, where: str) -> list[str]:
    """Remarks on models at chance on their members; ValueError if one change puts all far above."""
    binary = ", or 1 - labels" if logits.shape[-1] == 2 else ""
    found = {"": [], "labels - 1": [], "labels + 1": [], f"-logits{binary}": []}
    for z, who in zip(logits, member, strict=True):
        z, y = (z if z.ndim == 2 else z.mean(0))[who], labels[who]
        named = (z.argmax(1), z.argmax(1) + 1, z.argmax(1) - 1, z.argmin(1))
        for above, one in zip(found.values(), named, strict=True):
            above.append(_above_chance(one, y))
    at_chance = [model for model, above in enumerate(found.pop("")) if above < LOST]
    if not at_chance:
        return []
    for fix, above in found.items():
        if len(at_chance) == len(logits) and INVERTED < min(above) < np.inf:
            chance = "no model names its members' classes better than chance"
            raise ValueError(f"{where}: {chance}, and with {fix} all do: pass {fix}")
    return [
        f"{LOOK} {_models(at_chance)} named members' classes no better than chance (shuffled or "
        "shifted labels, another order of samples or classes, or no training?)."
    ]


def _above_chance(named: np.ndarray, labels: np.ndarray) -> float:
    """Standard errors of the accuracy above that of the same predictions in any order."""
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        return np.inf
    chance = np.mean([np.mean(named == one) * n for one, n in zip(classes, counts, strict=True)])
    chance *= len(classes) / len(labels)
    error = np.sqrt(chance * (1 - chance) / len(labels))
    return float((np.mean(named == labels) - chance) / max(error, 1e-12))


def _remarks(logits: np.ndarray) -> list[str]:
    """What no logits look like but some may be."""
    signs, silent = {">= 0": [], "<= 0": []}, 0
    for model, z in enumerate(logits):
        z = z.reshape(-1, z.shape[-1])
        silent += int((z == z[:, :1]).all(1).sum())
        if z.min() >= 0:
            signs[">= 0"].append(model)
        elif z.max() <= 0 and not _sum_to(1, np.exp(z.astype(float))):
            signs["<= 0"].append(model)
    said = [
        f"{LOOK} those of {_models(models)} are all {sign}, as if cut off, squashed or negated."
        for sign, models in signs.items() if models
    ]  # fmt: skip
    if silent:
        said.append(f"{LOOK} {silent:,} are equal for all classes, as if nothing was asked.")
    return said


def _check_rows(signals: Signals, where: str) -> None:
    """No other order of `member`'s rows may fit the margins, less their mean, better."""
    audited = ~signals.population
    margin, member = signals.margin.mean(1)[:, audited], signals.member[:, audited]
    n1, n0 = member.sum(1), (~member).sum(1)
    ranks = pd.DataFrame(margin - margin.mean(0)).rank(axis=1).to_numpy()
    values = ((ranks @ member.T) - n1 * (n1 + 1) / 2) / (n1 * n0)  # AUC of a model and a row
    errors = (values - 0.5) / auc_null_error(n1, n0)
    from scipy.optimize import linear_sum_assignment

    order = linear_sum_assignment(errors, maximize=True)[1]
    own, best = errors.diagonal(), errors[np.arange(len(order)), order]
    if ((best > INVERTED) & (own < LOST)).any():
        worst = np.argmax(best - own)
        surer = f"model {worst} is surer of the members of row {order[worst]} than of its own"
        fix = f"are the rows of member in another order? pass member[{order.tolist()}]"
        raise ValueError(f"{where}: {surer}: {fix}")


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
        raise ValueError(
            f"{where}: classes have shape {names.shape}; the logits have {count}, so wanted ({count},) names"
        )
    return tuple(
        name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
        for name in names.tolist()
    )


def _draws(word, logits: np.ndarray, where: str) -> str:
    if logits.ndim == 3 or logits.shape[1] == 1:
        return "plain"
    word = "noise" if word is None else str(np.asarray(word).reshape(-1)[0])
    if word not in DRAWS[1:]:
        raise ValueError(
            f"{where}: draws is {word!r}; wanted what the {logits.shape[1]} queries are: {', '.join(DRAWS[1:])}"
        )
    return word


def _split(word, member: np.ndarray, where: str) -> str:
    """What the file declares, where the masks do not visibly contradict it."""
    word = str(np.asarray(word).reshape(-1)[0]) if word.size else ""
    if word not in ("pairs", "bernoulli", "random"):
        raise ValueError(
            f"{where}: split is {word!r}; wanted pairs, bernoulli or random, "
            "or no such array where members were not drawn by chance"
        )
    if word == "bernoulli":
        try:
            check_bernoulli(member)
        except ValueError as error:
            raise ValueError(f"{where}: split is 'bernoulli', but {error}") from error
    elif word == "pairs" and any(((row != member).all(1)).sum() != 1 for row in member):
        raise ValueError(
            f"{where}: split is 'pairs', but some mask has no complement of its own; leave split out"
        )
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
