"""The sources of explorers: stored signals with the images, loss traces and recipe of their pool.
No torch.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mia_nb import attacks, escape, store
from mia_nb.attacks.margins import over_queries
from mia_nb.checks import shown, whole
from mia_nb.examples import PREFIX, examples, load_example, thumbnails
from mia_nb.plots.pictures import as_pictures
from mia_nb.types import Scores, Signals
from mia_nb.widgets.words import label, trained

NOTHING = "nothing is stored that can be scored yet; make some with: mia-nb run all --preset demo"
WANTED = "wanted a folder of results, or a list of sources as widgets.sources gives it"
TRAINED_ATTACKS = ("shokri", "song_mittal")  # they train a classifier: too slow for an explorer
ALL = "all"  # the choice of all targets rather than one
# how the signals in the package were queried, where their record does not say
USUAL_QUERY = {"dataset": "cifar10", "draws": "plain", "queries": 1}
LACKS = (
    "images that are grey, training losses and weights are not shipped; a pool that has them:"
    " mia-nb run 01_train -p dataset=cifar10 -p model=resnet14"
)


class Source:
    """Outputs of a pool's models under a label, with the pool's images and loss traces.

    There are three kinds: `Source("mine", signals, images=x, classes=names)` from memory,
    `Source.from_store`, and `Source.shipped` from the package. Everything is read on first use and
    kept. Raises store.Corrupt where a file was altered, ValueError where the folder of the pool is
    needed and gone.

    A sample is named in three ways, and a model in two:
        column: the sample's place in the signals, which hold the population too
        number: its place in the pool's images, which is also its name on the screen
        index: its place among the audited columns, those for which there are scores
        target: the model's place in the signals
        row: its place in the pool
    `samples` holds the number of each column, `audited` the column of each index, `numbers` the
    number of each index, `rows` the row of each target.

    Parameters:
        label: its name on the screen
        signals: the outputs, where they are in memory
        images: (N, C, H, W) uint8, in the order of the signals
        classes: names of the classes
        folder: folder of the stored signals
        pool: folder of the pool
        info: who was queried, and how; by default that of the signals
    """

    def __init__(
        self,
        label: str,
        signals: Signals | None = None,
        *,
        images: "np.ndarray | Thumbnails | None" = None,
        classes: Sequence[str] = (),
        folder: store.Folder | None = None,
        pool: store.Folder | None = None,
        info: dict | None = None,
    ):
        if signals is not None and isinstance(images, np.ndarray):
            samples = len(signals.labels)
            if images.ndim != 4 or len(images) != samples:
                raise ValueError(
                    f"images have shape {images.shape} and the signals {samples:,} samples: wanted"
                    f" images ({samples}, C, H, W), one of each sample, or None"
                )
        self.label = label
        self.folder = folder
        self.pool = pool
        self._signals = signals
        self._images = images
        self._classes = classes
        self._scores: dict[str, tuple[Callable, Scores]] = {}
        self.info = dict(signals.info) if info is None else info
        self.lacks = LACKS if "example" in self.info else ""

    @classmethod
    def from_store(cls, folder: store.Folder, pool: store.Folder, info: dict) -> "Source":
        """Stored signals: their folder, the folder of their pool, and their record."""
        return cls(label(info, pool.recipe), folder=folder, pool=pool, info=info)

    @classmethod
    def shipped(cls, name: str, about: dict, images: "Thumbnails") -> "Source":
        """Signals that come with the package: their name and record in `examples`."""
        info = USUAL_QUERY | about["info"] | {"example": name}
        words = [trained(info | {"pool": ""}, info["recipe"])]
        epochs = info["recipe"]["epochs"]
        if epochs:
            words.append(f"{epochs} epoch{'s' if epochs > 1 else ''}")
        words.append(f"{len(about['test_accuracy'])} networks (shipped)")
        return cls(", ".join(words), images=images, info=info, classes=info["classes"])

    def __repr__(self) -> str:
        return f"Source: {escape.terminal(self.label)}"

    @cached_property
    def signals(self) -> Signals:
        """The signals, read at the first call."""
        if self._signals is not None:
            return self._signals
        if "example" in self.info:
            return load_example(self.info["example"])
        return store.load_signals(self.folder)

    @cached_property
    def samples(self) -> np.ndarray:
        """(N,) the number of each column: 0 to N - 1 where no choice of samples is stored."""
        chosen = None if self.folder is None else store.load_samples(self.folder)
        return np.arange(len(self.signals.labels)) if chosen is None else chosen

    @cached_property
    def images(self) -> np.ndarray | None:
        """The image of each column, (C, H, W) uint8, read one by one, frames of events summed over
        time; None where none are stored.
        """
        if self._images is not None:
            return self._images
        if self.pool is None or not self.pool.has("images.npy"):
            return None
        # not read as a whole: 50,000 images of 64 x 64 pixels take 600 MB, and one is shown
        x = self.pool.map_array("images.npy", "u", (None, None, None, None))
        frames = self.pool.read_json("images.json").get("frames", 1)
        return _Chosen(x, self.samples, frames)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; their numbers where no names are known."""
        if self._classes:
            return tuple(self._classes)
        if self.pool is not None:
            return tuple(self.pool.read_json("images.json", classes=list)["classes"])
        return tuple(map(str, range(self.signals.labels.max() + 1)))

    @cached_property
    def raster(self) -> dict[str, np.ndarray] | None:
        """The recording of a spiking layer on a few of these samples (see `models.recording`); None
        where none was kept.
        """
        if self.folder is None or not self.folder.has("raster.npz"):
            return None
        return self.folder.read_arrays("raster.npz")

    @cached_property
    def canaries(self) -> np.ndarray | None:
        """(A,) bool, whether each audited sample is a canary; None where that is not known."""
        if self.pool is None or not self.pool.has("canary.npy"):
            return None
        return self.pool.read_array("canary.npy")[self.numbers]

    @property
    def recipe(self) -> dict:
        """How the pool was trained; {} where it is not known."""
        return self.pool.recipe if self.pool is not None else self.info.get("recipe", {})

    @cached_property
    def audited(self) -> np.ndarray:
        """(A,) the column of each index: all columns but those of the population."""
        return np.flatnonzero(~self.signals.population)

    @cached_property
    def numbers(self) -> np.ndarray:
        """(A,) the number of each index."""
        return self.samples[self.audited]

    def audited_index(self, number: int) -> int:
        """The index of the sample of this number; ValueError where it was not queried, or belongs
        to the population.
        """
        indices = np.flatnonzero(self.numbers == number)
        if not len(indices):
            near = self.numbers[np.argsort(np.abs(self.numbers - number), kind="stable")[:3]]
            raise ValueError(
                f"sample {number} is not among the {len(self.numbers):,} audited ones; near it are"
                f" {', '.join(map(str, sorted(near)))}"
            )
        return int(indices[0])

    def scores(self, attack: str) -> Scores:
        """Scores of one attack on every model in turn, computed once.

        An attack of one's own is scored again when another function is entered under its name.
        """
        name, function = attacks.find(attack)
        scored, scores = self._scores.get(name, (None, None))
        if scored is not function:
            scores = attacks.score(attack, self.signals)
            self._scores[name] = function, scores
        return scores

    def attacks(self) -> list[str]:
        """Names of the attacks that these signals support, the headline first, except those that
        train a classifier.
        """
        k = self.scores("loss").info["k"]
        queries = self.signals.margin.shape[1]
        names = attacks.literature(k, self.signals.query_kind, queries)
        names = [name for name in names if name not in TRAINED_ATTACKS]
        if self.signals.activity is not None and k > 1:
            names.append("spikes")
        return names

    def margins(self, columns: Sequence[int]) -> np.ndarray:
        """(M, n) every model's margins of the samples in these n columns, mean over queries (of
        time steps the last).
        """
        return over_queries(self.signals.margin[:, :, columns], self.signals.query_kind)

    def trace(self, model: int) -> np.ndarray | None:
        """(E, N) natural logarithms of one target's training losses, NaN for samples that it did
        not train on; None where none were kept.

        model: the target's place in the signals.
        """
        row = self.rows[model]
        name = f"losses_{row:03d}.npy"
        if self.pool is None or not self.pool.has(name):
            return None
        member = self.pool.read_array("member.npy", "b", (None, None))[row]
        losses = self.pool.read_array(name, "f", (None, None))
        if not len(losses):
            return None
        trace = np.full((len(losses), len(member)), np.nan, np.float32)
        trace[:, member] = losses
        return trace[:, self.samples]

    def class_of(self, column: int) -> str:
        """The name of a column's class; its number where there are fewer names."""
        label = int(self.signals.labels[column])
        return self.classes[label] if label < len(self.classes) else str(label)

    @property
    def targets(self) -> list[int | str]:
        """The options of a control of targets: all of them, or one."""
        return [ALL, *range(len(self.signals.margin))]

    @property
    def rows(self) -> list[int]:
        """The row of each target in the pool."""
        return self.info.get("models") or list(range(len(self.signals.margin)))


class _Chosen:
    """The images x[samples] as pictures, each made when it is asked for."""

    def __init__(self, x: np.ndarray, samples: np.ndarray, frames: int):
        self.x = x
        self.samples = samples
        self.frames = frames

    def __getitem__(self, index: int | np.ndarray) -> np.ndarray:
        return as_pictures(self.x[self.samples[index]], self.frames)


class Thumbnails:
    """Images by column of the signals; those that are not shipped are grey."""

    def __init__(self, x: dict[int, np.ndarray], grey: int = 128):
        self.x = x
        self.grey = np.full_like(next(iter(x.values())), grey)

    def __getitem__(self, index: int | np.ndarray) -> np.ndarray:
        images = np.stack([self.x.get(int(i), self.grey) for i in np.atleast_1d(index)])
        return images if np.ndim(index) else images[0]


def sources(
    root: str | Path = "results", *, pool: str = "", limit: int = 200, shipped: bool = True
) -> list[Source]:
    """The signals that explorers choose from: stored ones whose membership is known, oldest first,
    then those that come with the package.

    Half-written results are passed over, damaged ones with a line on standard error.

    Parameters:
        root: folder of results
        pool: how the pool's key, or its name such as "example:cifar10/resnet14", begins; "" for all
            pools
        limit: the largest number of stored signals; the newest are taken
        shipped: whether to add the signals that come with the package

    Returns:
        A list of `Source`; [] where nothing is stored.
    """
    whole("limit", limit, 0)
    pools = {folder.short_key: folder for folder in store.folders(root, "pool")}
    newest_first: list[Source] = []
    for folder in reversed(store.folders(root, "signals")):
        if len(newest_first) == limit:
            break
        try:
            source = _stored(folder, pools, pool)
        except (ValueError, TypeError, OSError) as error:
            print(f"{folder.path.name} is damaged and passed over: {error}", file=sys.stderr)
            continue
        if source is not None:
            newest_first.append(source)
    stored = newest_first[::-1]
    return stored + _shipped(pool) if shipped else stored


def _stored(folder: store.Folder, pools: dict[str, store.Folder], pool: str) -> Source | None:
    """The source of these signals; None where they belong to another pool, are unfinished, or were
    made with images that are not the pool's.

    Parameters:
        folder: of the signals
        pools: {first twelve letters of its key: folder of a pool}
        pool: how the pool's key begins
    """
    if not folder.has("info.json"):
        return None
    info, files = store.read_info(folder)
    pool_folder = pools.get(info.get("pool", "")[:12])
    if pool_folder is None or not info["pool"].startswith(pool):
        return None
    if not all(folder.has(file) for file in files):
        return None
    samples = store.load_samples(folder)
    if samples is not None and not len(samples):  # none of the images is the pool's
        return None
    return Source.from_store(folder, pool_folder, info)


def _shipped(pool: str) -> list[Source]:
    """The signals in the package whose pool has this name, or a name or key that begins so."""
    images = Thumbnails(thumbnails())
    about_examples = examples()
    chosen = []
    for name, about in about_examples.items():
        if f"{PREFIX}{name}".startswith(pool) or about["info"]["pool"].startswith(pool):
            chosen.append(name)
    # a complete name selects one pool, even where other names begin with it
    complete_name = pool.removeprefix(PREFIX)
    if complete_name in about_examples:
        chosen = [name for name in chosen if name == complete_name]
    return [Source.shipped(name, about_examples[name], images) for name in chosen]


def list_of_sources(sources: Source | Sequence[Source]) -> list[Source]:
    """One source or several as a list; ValueError of one line for anything else."""
    if isinstance(sources, Source):
        return [sources]
    if not isinstance(sources, list | tuple):
        raise ValueError(f"sources={shown(sources)}: {WANTED}")
    for source in sources:
        if not isinstance(source, Source):
            raise ValueError(f"sources holds {shown(source)}: {WANTED}")
    return list(sources)


def named(sources: Sequence[Source]) -> dict[str, Source]:
    """Sources by label."""
    return unique((source.label, source) for source in sources)


def unique(entries: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """{name: thing}, with numbers added to names that come more than once."""
    groups: dict[str, list] = {}
    for name, thing in entries:
        groups.setdefault(name, []).append(thing)
    numbered = {}
    for name, things in groups.items():
        if len(things) == 1:
            numbered[name] = things[0]
            continue
        number = 1
        for thing in things:
            while f"{name} ({number})" in groups:  # "net (1)" may be the name of another
                number += 1
            numbered[f"{name} ({number})"] = thing
            number += 1
    return numbered


def pools_of(entry: Source | Iterable[Source]) -> set[str]:
    """Keys of the pools of a source, or of several."""
    sources = [entry] if isinstance(entry, Source) else entry
    return {source.info.get("pool") or source.label for source in sources}


def only(scores: Scores, target: int | str) -> Scores:
    """The scores of one target, or of all for "all"."""
    if target == ALL:
        return scores
    rows = np.flatnonzero(scores.targets == target)
    return dataclasses.replace(
        scores,
        value=scores.value[rows],
        member=scores.member[rows],
        targets=scores.targets[rows],
        pair=scores.pair[rows],
        accuracy=scores.accuracy[rows],
        loss=scores.loss[rows],
    )
