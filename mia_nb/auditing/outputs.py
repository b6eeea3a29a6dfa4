"""Reading and checking outputs of models that were trained elsewhere: one .npz of plain arrays, or
a table for one model.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from mia_nb import store
from mia_nb._arrays import npz_arrays
from mia_nb.arguments import PathLike
from mia_nb.auditing.doubts import (
    at_chance_words,
    inverted_mask_remark,
    models_at_chance,
    refuse_copies,
    refuse_probabilities,
)
from mia_nb.auditing.samples import whole_numbers
from mia_nb.auditing.sentences import LOOK
from mia_nb.auditing.tables import table_arrays
from mia_nb.checks import checked, one_of, shown
from mia_nb.types import Signals

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
    model from a .csv.

    Parameters:
        path: of an .npz with the arrays below, or of a table with a row per sample: columns label
            and member (1 or 0, or true and false), and for each class a column of logits that has
            its name. Labels are such names, or class numbers.

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
        images: optional (N, C, H, W) or frames of events (N, T, C, H, W) uint8, shown beside the
            results.

    `member` must come from complementary halves, coins, or other masks drawn at random: only then
    do non-members show how a member would look if it had not been trained on.

    Returns:
        An `Outputs` of signals, images (N, C, H, W) or None, names of classes, and the file's
        sha256. Mere suspicions are in `signals.info["remarks"]`, and `comparable` puts them on top
        of the verdict: members' classes predicted no better than by chance, one model that is
        surer of non-members, and a few columns of a table that are no sample's class.

    Raises:
        ValueError: for missing or pickled arrays, shapes that do not fit together, NaN, labels out
            of range, a model without members or without non-members, two models with the same
            outputs; for probabilities or sigmoids of any model; and, beyond 6 standard errors, for
            an inverted mask of several models that predict their members' classes better than by
            chance.

    Caveat: if the samples of masks and outputs are in different orders, models look as if they did
    not leak. One split shows too little of how it was drawn: an audited epsilon of one model needs
    `split`, and without `split` or images no limit is decided.
    """
    path = Path(path)
    is_table = path.suffix.lower() == ".csv"
    if is_table:
        arrays = table_arrays(path)
    else:
        arrays, _ = npz_arrays(path, (*ARRAYS, *OPTIONAL))
    try:
        contents = outputs_from(arrays, path.stem, store.sha256_of(path))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
    if is_table:
        contents.signals.info["remarks"] += columns_without_samples(contents)
    return contents


def columns_without_samples(contents: Outputs) -> list[str]:
    """What to say of a few classes without a sample: each may be a column that holds no logits, as
    in a table every column beside label and member is a class. One that is called by a number is.
    """
    occurring = np.isin(range(len(contents.classes)), contents.signals.labels)
    absent = [name for name, occurs in zip(contents.classes, occurring, strict=True) if not occurs]
    names = [name for name in absent if not name.isdecimal()]
    if not names or occurring.mean() <= 0.5:
        return []
    return [
        f"{LOOK} no sample has the label {shown(names)}; a column that holds no class's logits"
        " changes all numbers: leave it out."
    ]


def outputs_from(arrays: dict[str, np.ndarray], name: str, digest: str) -> Outputs:
    """The arrays, checked one after the other, as signals and what is shown beside them."""
    _check_arrays(arrays)
    logits = arrays["logits"]
    refuse_probabilities(logits)
    refuse_copies(logits)
    queries = logits.shape[1] if logits.ndim == 4 else 1
    query_kind = "plain"
    if queries > 1:
        query_kind = arrays["draws"].item() if "draws" in arrays else "noise"
    info = {"family": name, "dataset": name, "outputs": digest, "queries": queries, "remarks": []}
    if "split" in arrays:
        info["split"] = one_of("split", arrays["split"].item(), SPLITS)
    signals = Signals.from_logits(
        logits,
        whole_numbers(arrays["labels"]),
        arrays["member"],
        population=arrays.get("population"),
        query_kind=query_kind,
        info=info,
    )
    _check_sides(signals.member, signals.population)
    at_chance = models_at_chance(logits, signals.labels, signals.member)
    if at_chance:
        signals.info["remarks"].append(at_chance_words(at_chance))
    # of models that are all at chance, what they are surer of says nothing of the masks
    if len(at_chance) < len(logits):
        suspicion = inverted_mask_remark(signals)
        if suspicion:
            signals.info["remarks"].append(suspicion)
    classes = _class_names(arrays.get("classes"), logits.shape[-1])
    images, frames = _images(arrays.get("images"), len(signals.labels))
    return Outputs(signals, images, classes, digest, frames)


def _check_arrays(arrays: dict[str, np.ndarray]) -> None:
    """ValueError where arrays are missing, hold something else or do not fit together."""
    for name, shape in ARRAYS.items():
        if name not in arrays:
            raise ValueError(f"it lacks {name} {shape}")
    for name, array in arrays.items():
        if name in TEXT and array.dtype.kind != "U":
            raise ValueError(f"{name} is of type {array.dtype}; wanted text")
        if name not in TEXT and array.dtype.kind not in "biuf":
            raise ValueError(f"{name} is of type {array.dtype}; wanted numbers")
    logits = arrays["logits"]
    fits = (
        logits.ndim in (3, 4)
        and arrays["labels"].shape == logits.shape[-2:-1]
        and arrays["member"].shape == (len(logits), logits.shape[-2])
    )
    if not fits:
        came = ", ".join(f"{name} {arrays[name].shape}" for name in ARRAYS)
        wanted = ", ".join(f"{name} {shape}" for name, shape in ARRAYS.items())
        raise ValueError(f"the shapes {came} do not fit together; wanted {wanted}")


def _check_sides(member: np.ndarray, population: np.ndarray) -> None:
    """ValueError where the population has members, or a model lacks members or non-members."""
    in_both = int((member & population).any(0).sum())
    if in_both:
        raise ValueError(
            f"{in_both} samples of the population are members of a model; wanted samples that no"
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


def _class_names(classes: np.ndarray | None, count: int) -> tuple[str, ...]:
    """The names of this many classes; their numbers where none are given."""
    if classes is None:
        return tuple(map(str, range(count)))
    if classes.shape != (count,):
        raise ValueError(
            f"classes have shape {classes.shape}; the logits have {count}, so wanted"
            f" ({count},) names"
        )
    return tuple(map(str, classes.tolist()))


def _images(x: np.ndarray | None, samples: int) -> tuple[np.ndarray | None, int]:
    """Images (N, C, H, W), and the number of frames of events that their channels hold."""
    if x is None:
        return None, 1
    channels = x.shape[-3] if x.ndim in (4, 5) else 0
    if x.dtype != np.uint8 or len(x) != samples or not 1 <= channels <= 3:
        raise ValueError(
            f"images are {x.dtype} {x.shape}; wanted uint8 (N, C, H, W) or frames (N, T, C, H, W),"
            f" N = {samples}, of 1 to 3 channels"
        )
    frames = x.shape[1] if x.ndim == 5 else 1
    return np.ascontiguousarray(x).reshape(samples, -1, *x.shape[-2:]), frames
