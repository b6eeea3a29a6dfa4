"""Reading and checking outputs of models that were trained elsewhere: one .npz of plain arrays, or
a table for one model.
"""

from __future__ import annotations

import difflib
import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mia_nb._arrays import npz_arrays
from mia_nb.arguments import PathLike
from mia_nb.auditing.coins import coin_fault
from mia_nb.auditing.doubts import (
    at_chance_words,
    models_at_chance,
    refuse_copies,
    refuse_other_masks,
    refuse_probabilities,
)
from mia_nb.auditing.tables import SEPARATORS, table_in
from mia_nb.checks import checked
from mia_nb.types import QUERY_KINDS, Signals

ARRAYS = {
    "logits": "(models, samples, classes) or (models, queries, samples, classes)",
    "labels": "(samples,)",
    "member": "(models, samples)",
}
OPTIONAL = ("population", "classes", "images", "draws", "split")
TEXT = ("classes", "draws", "split")  # the arrays of text; all others hold numbers
SPLITS = ("pairs", "bernoulli", "random")
FEWEST = 2  # members, and non-members, of a model


class Outputs(NamedTuple):
    """The contents of a file of outputs: `images` (N, C, H, W) uint8 or None, names of `classes`,
    sha256 of the file. Images of events have `frames`, one after the other along the channels.
    """

    signals: Signals
    images: np.ndarray | None
    classes: tuple[str, ...]
    digest: str
    frames: int = 1


@checked
def read_outputs(path: PathLike) -> Outputs:
    """Outputs of models trained anywhere, from an .npz, in which nothing is unpickled, or of one
    model from a .csv or .tsv.

    Parameters:
        path: of an .npz with the arrays below, or of a table with a row per sample: columns label
            and member (true or false, 1 or 0), population if there is one, and for each class a
            column of logits that has its name. Labels are such names, or class numbers.

    Arrays:
        logits: (M, N, K) or (M, Q, N, K), before softmax (log-probabilities are accepted): M models
            queried Q times about N samples.
        labels: (N,) class numbers from 0.
        member: (M, N) bool or 0/1: was the sample in the model's training set?
        population: optional (N,) bool, samples that no model trained on and that are not audited.
        classes: optional (K,) names.
        draws: optional text, what the Q queries are: dropout, augment, steps or noise (default).
        split: optional text, how members were drawn at random: pairs (complementary halves),
            bernoulli (independent fair coins) or random (any draw that looked at no sample).
        images: optional (N, H, W), (N, H, W, C), (N, C, H, W) or frames of events (N, T, C, H, W)
            uint8, shown beside the results.

    `member` must come from complementary halves, coins, or other masks drawn at random: only then
    do non-members show how a member would look if it had not been trained on.

    Returns:
        An `Outputs` of signals, images (N, C, H, W) or None, names of classes, and the file's
        sha256. Mere suspicions are in `signals.info["remarks"]`, and `comparable` puts them on top
        of the verdict: members' classes predicted no better than by chance, and one model that is
        far surer of non-members.

    Raises:
        ValueError: for missing or pickled arrays, swapped axes, NaN, labels out of range, a model
            without members or without non-members, two models with the same outputs, masks that are
            visibly not what `split` declares; for probabilities or sigmoids of any model; and,
            beyond 6 standard errors, for inverted masks of several models and rows of `member` in
            another order than the models, where a model predicts its members' classes better than
            by chance.

    Caveat: if the samples of masks and outputs are in different orders, models look as if they did
    not leak. One split shows too little of how it was drawn: an audited epsilon of one model needs
    `split`, and without `split` or images no limit is decided.
    """
    path = Path(path)
    if path.suffix.lower() in SEPARATORS:
        arrays = _of_table(path)
        names = [*arrays]
    else:
        arrays, names = npz_arrays(path, (*ARRAYS, *OPTIONAL))
    if lacks := [name for name in ARRAYS if name not in arrays]:
        close = difflib.get_close_matches(lacks[0], names, 1, cutoff=0.5)
        hint = f"; is it {close[0]!r}?" if close else ""
        held = ", ".join(names) or "nothing"
        raise ValueError(f"{path.name} holds {held}; it lacks {lacks[0]} {ARRAYS[lacks[0]]}{hint}")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        return outputs_from(arrays, path.stem, digest)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _of_table(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a table of one model's outputs."""
    arrays = table_in(path)
    lacking = [name for name in ("label", "member") if {name, f"{name}s"}.isdisjoint(arrays)]
    number_of_logits = arrays["logits"].shape[1] if "logits" in arrays else 0
    if lacking:
        raise ValueError(
            f"{path.name} has no column {' and no column '.join(lacking)}: wanted a line of names,"
            " a column label (class numbers from 0), a column member (1 for samples of the training"
            " set, else 0) and a column of logits for each class; outputs of several models go into"
            " an .npz (mia_nb.auditing.collect)"
        )
    if number_of_logits < 2:
        raise ValueError(
            f"{path.name} has {number_of_logits} column of logits: wanted one for each class, two"
            " or more"
        )
    return arrays | {"logits": arrays["logits"][None], "member": arrays["member"][None]}


def outputs_from(arrays: dict[str, np.ndarray], name: str, digest: str) -> Outputs:
    """The arrays, checked one after the other, as signals and what is shown beside them."""
    for key, array in arrays.items():
        wanted, kinds = ("text", "US") if key in TEXT else ("numbers", "biuf")
        if array.dtype.kind not in kinds:
            raise ValueError(f"{key} is of type {array.dtype}; wanted {wanted}")
    logits = arrays["logits"]
    labels = _labels(arrays["labels"])
    member = _flags(_per_model(logits, labels, arrays["member"]), "member")
    population = _flags(arrays.get("population", np.zeros(len(labels))), "population")
    _check_design(member, population)
    refuse_probabilities(logits)
    refuse_copies(logits)
    names = _classes(arrays.get("classes"), logits.shape[-1])
    queries = logits.shape[1] if logits.ndim == 4 else 1
    query_kind = _query_kind(arrays.get("draws"), queries)
    info = {"family": name, "dataset": name, "outputs": digest, "queries": queries}
    if "split" in arrays:
        info["split"] = _split(arrays["split"], member[:, ~population])
    at_chance = models_at_chance(logits, labels, member)
    info["remarks"] = [at_chance_words(at_chance)] if at_chance else []
    signals = Signals.from_logits(
        logits, labels, member, population=population, query_kind=query_kind, info=info
    )
    # of models that are all at chance, what they are surer of says nothing of the masks
    if len(at_chance) < len(logits) and (suspicion := refuse_other_masks(signals)):
        signals.info["remarks"].append(suspicion)
    images, frames = _images(arrays.get("images"), len(labels))
    return Outputs(signals, images, names, digest, frames)


def _labels(labels: np.ndarray) -> np.ndarray:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        advice = "; pass labels.argmax(1)" if labels.ndim == 2 else ""
        raise ValueError(
            f"labels have shape {labels.shape}; wanted (samples,) class numbers{advice}"
        )
    numbers = labels.size and np.isfinite(labels).all() and labels.min() >= 0
    if not numbers or (labels != np.rint(labels)).any():
        raise ValueError(
            "labels must be whole numbers from 0, one per sample, and there must be some"
        )
    return labels.astype(np.int64)


def _per_model(logits: np.ndarray, labels: np.ndarray, member: np.ndarray) -> np.ndarray:
    """`member` with a row per model; ValueError, with the transposition that would help, where the
    axes of logits or member are in another order.
    """
    samples = len(labels)
    came = f"logits have shape {logits.shape}"
    if logits.ndim not in (3, 4):
        alone = logits.ndim == 2 and len(logits) == samples
        advice = "; of one model pass logits[None] and member[None]" if alone else ""
        raise ValueError(f"{came}; wanted {ARRAYS['logits']}{advice}")
    if logits.shape[-2] != samples:
        places = [axis for axis, n in enumerate(logits.shape) if n == samples]
        moved = f"; pass np.moveaxis(logits, {places[0]}, -2)" if places else ""
        raise ValueError(f"{came} and there are {samples} labels; wanted {ARRAYS['logits']}{moved}")
    models = len(logits)
    if member.shape == (samples,) and models == 1:
        return member[None]
    if member.shape != (models, samples):
        turned = "; pass member.T" if member.shape == (samples, models) else ""
        raise ValueError(
            f"member has shape {member.shape}; logits of {models} models and {samples} samples want"
            f" ({models}, {samples}), a row per model{turned}"
        )
    return member


def _flags(array: np.ndarray, name: str) -> np.ndarray:
    others = array[~np.isin(array, (0, 1))]
    if others.size:
        raise ValueError(f"{name} holds {others[0]:g}; wanted true and false, or 1 and 0")
    return array.astype(bool)


def _check_design(member: np.ndarray, population: np.ndarray) -> None:
    if population.shape != member.shape[1:]:
        raise ValueError(
            f"population has shape {population.shape}; wanted {member.shape[1:]}, one flag per"
            " sample"
        )
    taken = int((member & population).any(0).sum())
    if taken:
        raise ValueError(
            f"{taken} samples of the population are members of a model; wanted samples that no"
            " model saw"
        )
    inside = member[:, ~population].sum(1)
    outside = (~population).sum() - inside
    lacking = np.minimum(inside, outside) < FEWEST
    if lacking.any():
        model = int(lacking.argmax())  # the first of them
        raise ValueError(
            f"model {model} has {inside[model]} members and {outside[model]} non-members among the"
            " audited samples; wanted some of each: query every model with samples that it did and"
            " samples that it did not train on"
        )


def _classes(names: np.ndarray | None, count: int) -> tuple[str, ...]:
    if names is None:
        return tuple(map(str, range(count)))
    if names.shape != (count,):
        raise ValueError(
            f"classes have shape {names.shape}; the logits have {count}, so wanted ({count},) names"
        )
    return tuple(_text(names))


def _text(words) -> list[str]:
    return [
        word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)
        for word in np.ravel(words).tolist()
    ]


def _query_kind(declared: np.ndarray | None, queries: int) -> str:
    if queries == 1:
        return "plain"
    kind = "noise" if declared is None else "".join(_text(declared)[:1])
    if kind not in QUERY_KINDS[1:]:
        raise ValueError(
            f"draws is {kind!r}; wanted what the {queries} queries are:"
            f" {', '.join(QUERY_KINDS[1:])}"
        )
    return kind


def _split(declared: np.ndarray, member: np.ndarray) -> str:
    """What the file declares, where the masks do not visibly contradict it."""
    kind = "".join(_text(declared)[:1])
    if kind not in SPLITS:
        raise ValueError(
            f"split is {kind!r}; wanted pairs, bernoulli or random, or no such array where members"
            " were not drawn by chance"
        )
    if kind == "pairs" and any((row != member).all(1).sum() != 1 for row in member):
        raise ValueError(
            "split is 'pairs', but some mask has no complement of its own; leave split out"
        )
    if kind == "bernoulli" and (fault := coin_fault(member)):
        raise ValueError(f"split is 'bernoulli', but {fault}")
    return kind


def _images(x: np.ndarray | None, samples: int) -> tuple[np.ndarray | None, int]:
    """Images (N, C, H, W), and the number of frames of events that their channels hold."""
    if x is None:
        return None, 1
    if x.dtype != np.uint8 or x.ndim not in (3, 4, 5) or len(x) != samples:
        raise ValueError(
            f"images are {x.dtype} {x.shape}; wanted uint8 (N, H, W), (N, H, W, C), (N, C, H, W) or"
            f" frames (N, T, C, H, W), N = {samples}"
        )
    frames = 1
    if x.ndim == 5:
        frames = x.shape[1]
        if not frames or not 1 <= x.shape[2] <= 3:
            raise ValueError(
                f"frames have shape {x.shape}; wanted (N, T, C, H, W), 1 to 3 channels"
            )
        return np.ascontiguousarray(x).reshape(samples, -1, *x.shape[3:]), frames
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.shape[1] not in (1, 3):
        raise ValueError(f"images have {x.shape[1]} channels; wanted 1 or 3")
    return np.ascontiguousarray(x), frames
