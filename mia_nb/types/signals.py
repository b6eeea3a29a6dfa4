"""What an attacker measures about models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from mia_nb import escape
from mia_nb.checks import (
    as_array,
    instance,
    mask,
    one_of,
    positive,
    row_numbers,
    shown,
)

QUERY_KINDS = ("plain", "dropout", "augment", "noise", "steps", "releases")
TOP = 10  # sorted log-probabilities kept per sample for the shadow classifier
CUBES = ("margin", "entropy", "modified_entropy", "correct")  # (M, Q, N)
ENTROPIES = ("entropy", "modified_entropy")
PER_MODEL = (*CUBES, "member", "top_log_p")


@dataclass(frozen=True, eq=False)
class Signals:
    """What an attacker measures about M models, queried Q times about N samples of K classes.

    Fields:
        margin: (M, Q, N) float64, phi = z_y - logsumexp of the other logits = log p_y - log(1 -
            p_y), in nats; it never saturates.
        labels: (N,) int64.
        member: (M, N) bool, True where the sample was in the model's training set; None: hidden
            from the attacker.
        population: (N,) bool, samples set aside before training, which no model saw.
        query_kind: what distinguishes the queries, a word of `types.QUERY_KINDS`.
        entropy: (M, Q, N), at least 0, small where the model is confident.
        modified_entropy: (M, Q, N), as entropy, but large where the model is confident and wrong.
        correct: (M, Q, N) bool.
        top_log_p: (M, N, 10 or fewer) float32, the largest log-probabilities, averaged over the
            queries and sorted.
        activity: (M, N, F) float32, of a spiking network: its margins after each time step but the
            last, then the activity of its layers; info["activity"] names the columns. None where it
            was not recorded.
        info: how the models were queried; entries of `query`'s options and of the pool.

    Raises ValueError for arrays whose shapes do not fit together, and for margins that are not
    finite. Arrays from the store are read-only and stay on the disk until they are used. Attacks
    use only these fields. Source: Carlini et al. 2022 (margin), Song & Mittal 2021 (modified
    entropy).
    """

    margin: np.ndarray
    labels: np.ndarray
    member: np.ndarray | None
    population: np.ndarray
    query_kind: str
    entropy: np.ndarray
    modified_entropy: np.ndarray
    correct: np.ndarray
    top_log_p: np.ndarray
    info: dict
    activity: np.ndarray | None = None

    def __post_init__(self):
        shape = self.margin.shape
        if len(shape) != 3:
            raise ValueError(f"margin has shape {shape}; wanted (models, queries, samples)")
        wanted = dict.fromkeys(CUBES, shape)
        wanted["labels"] = wanted["population"] = shape[2:]
        wanted["member"] = (shape[0], shape[2])
        wanted["top_log_p"] = (shape[0], shape[2], *self.top_log_p.shape[-1:])
        if self.activity is not None:
            names = self.info.get("activity")
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise ValueError(f'info["activity"] is {shown(names)}; wanted a name a column')
            wanted["activity"] = (shape[0], shape[2], len(names))
        for name, expected in wanted.items():
            value = getattr(self, name)
            if value is not None and value.shape != expected:
                raise ValueError(f"{name} has shape {value.shape}; margin {shape} wants {expected}")
        for name in ("population", "member"):
            value = getattr(self, name)
            if value is not None and value.dtype != bool:
                raise ValueError(f"{name} has dtype {value.dtype}; wanted booleans")
        if self.labels.size and self.labels.min() < 0:
            raise ValueError(f"labels hold {self.labels.min()}; wanted class numbers from 0 up")
        one_of("query_kind", self.query_kind, QUERY_KINDS)
        self.check_complete()

    def check_complete(self) -> None:
        """ValueError where a number is missing (NaN), or a margin is infinite.

        An attack would read a missing number as a sample without a reference, or sort it among the
        others. Entropies may be missing altogether (all NaN).
        """
        for name, array in self._checked_arrays():
            # a sum is finite only if all numbers are, and needs one pass and no memory
            with np.errstate(over="ignore", invalid="ignore"):
                total = array.sum()
            if np.isfinite(total):
                continue
            is_missing = _is_not_finite if name == "margin" else np.isnan
            # model by model, as arrays on the disk may not fit into memory
            counts = [np.count_nonzero(is_missing(of_model)) for of_model in array]
            missing = sum(counts)
            if missing == 0 or (missing == array.size and name in ENTROPIES):
                continue
            model = int(np.flatnonzero(counts)[0])
            first = np.argwhere(is_missing(array[model]))[0]
            # samples are the last axis of (M, Q, N), and the second of arrays without queries
            sample = first[0] if name in ("top_log_p", "activity") else first[-1]
            raise ValueError(
                f"{name} of model {model} is {array[(model, *first)]} for sample {sample}, the"
                f" first of {missing:,} missing among {array.size:,} values: wanted finite numbers;"
                " query again, or leave these models or samples out"
            )

    def _checked_arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """(name, array) of the fields in which missing numbers are looked for."""
        for name in ("margin", *ENTROPIES, "top_log_p", "activity"):
            array = getattr(self, name)
            # `attacks.reading.LazyRows` are rows of arrays that were checked
            if not isinstance(array, np.ndarray) or not array.size:
                continue
            # read-only arrays are the store's and were checked when they were written; of them only
            # margins are checked again, since every attack reads those anyway
            if name == "margin" or array.flags.writeable:
                yield name, array

    def __repr__(self) -> str:
        models, queries, samples = self.shape
        known = "membership known" if self.member is not None else "membership hidden"
        return (
            f"Signals: {models} models, {queries} queries ({self.query_kind}), {samples:,} samples,"
            f" {known}"
        )

    def _repr_html_(self) -> str:
        models, queries, samples = self.shape
        facts = {
            "models": f"{models:,}",
            "queries": f"{queries} ({self.query_kind})",
            "samples": f"{samples:,}",
            "set aside": f"{int(self.population.sum()):,}",
            "membership": "hidden" if self.member is None else "known",
        }
        return escape.html_facts(facts)

    log_p = property(lambda self: -np.logaddexp(0.0, -self.margin))
    loss = property(lambda self: np.logaddexp(0.0, -self.margin))
    shape = property(lambda self: self.margin.shape, doc="(M, Q, N)")

    def select(self, models=None, queries=None, samples=None) -> Signals:
        """Signals of some models, queries and samples.

        Parameters:
            models, queries, samples: a number, a list or array of numbers, a slice, or a mask
                along each axis; None keeps all.

        Returns:
            Signals; their arrays are views where only slices are given, else copies.

        Raises:
            ValueError: where an axis has no such entries.
        """
        m = _axis_index(self.shape[0], models)
        q = _axis_index(self.shape[1], queries)
        n = _axis_index(self.shape[2], samples)
        return replace(
            self,
            **{name: getattr(self, name)[m][:, q][:, :, n] for name in CUBES},
            labels=self.labels[n],
            population=self.population[n],
            member=None if self.member is None else self.member[m][:, n],
            top_log_p=self.top_log_p[m][:, n],
            activity=None if self.activity is None else self.activity[m][:, n],
        )

    def hide(self) -> Signals:
        """The same signals with membership hidden from the attacker (member = None)."""
        return replace(self, member=None)

    def reference_rows(self, target: int, *, keep_complement: bool = False) -> np.ndarray:
        """Rows of the models that may serve as references for a target.

        Parameters:
            target: row of the target.
            keep_complement: whether to keep the complementary model, trained on exactly the other
                samples; it leaks the design.

        A row is left out if its mask is equal or complementary to the target's on the audited
        columns that not all models saw. Raises ValueError where membership is hidden.
        """
        if self.member is None:
            raise ValueError("these signals hide membership (member=None): references need it")
        target = int(row_numbers("target", target, self.shape[0])[0])
        masks = self.member[:, ~(self.population | self.member.all(0))]
        differs = masks != masks[target]
        keep = differs.any(1)
        if not keep_complement:
            keep &= ~differs.all(1)
        keep[target] = False
        return np.flatnonzero(keep)

    def hold_out(self, target: int, *, keep_complement: bool = False) -> tuple[Signals, Signals]:
        """(signals of the target with membership hidden, signals of its references).

        Parameters and errors are those of `reference_rows`. Example:
            target, references = signals.hold_out(0)
        """
        rows = self.reference_rows(target, keep_complement=keep_complement)
        return self.select(models=[target]).hide(), self.select(models=rows)

    @classmethod
    def of_releases(cls, signals: Sequence[Signals]) -> Signals:
        """Signals of several releases of the same models, joined: each release becomes a query.

        Parameters:
            signals: one query of each release, the latest last: updates of a model, or its
                checkpoints along training (`pool.at(epoch)`). Model m has the same members in all.

        Returns:
            (M, releases, N) signals of the kind "releases". The sorted log-probabilities, and the
            accuracies and losses read from these signals, are those of the last release. Entropies
            are missing where those of any release are.

        Raises:
            ValueError: for no release, for several queries of one, and where models, members,
                samples or labels differ between releases.

        Example:
            signals = Signals.of_releases([early, late])
        """
        signals = list(signals)
        if not signals:
            raise ValueError("no release was given: wanted the signals of one or several")
        last = signals[-1]
        for number, release in enumerate(signals):
            _check_release(number, release, last)
        cubes = {
            name: np.concatenate([getattr(release, name) for release in signals], axis=1)
            for name in CUBES
        }
        for name in ENTROPIES:
            if np.isnan(cubes[name]).any():
                cubes[name] = np.full(cubes[name].shape, np.nan)
        released = [
            {name: release.info.get(name) for name in ("pool", "epoch")} for release in signals
        ]
        info = last.info | {"queries": len(signals), "draws": "releases", "releases": released}
        return replace(last, **cubes, query_kind="releases", info=info, activity=None)

    @classmethod
    def from_logits(
        cls,
        logits,
        labels,
        member=None,
        *,
        population=None,
        temperature=1.0,
        query_kind="plain",
        info=None,
    ) -> Signals:
        """Signals from the raw logits of models.

        Parameters:
            logits: (M, Q, N, K) or (M, N, K), numbers of any kind.
            labels: (N,) whole numbers from 0 to K - 1.
            member: (M, N) booleans; None: hidden.
            population: (N,) booleans; None: no sample was set aside.
            temperature: above 0, divides the logits first.
            query_kind: what distinguishes the queries, a word of `types.QUERY_KINDS`.
            info: entries for `Signals.info`.

        Equations, all stable in float64: phi = z_y - logsumexp_{c != y} z_c; entropy = -sum p log
        p; modified entropy = -(1 - p_y) log p_y - sum_{c != y} p_c log(1 - p_c). A tie of the
        argmax counts as wrong.

        Raises:
            ValueError: for one class, labels out of range, non-finite logits (naming model and
                sample), and probabilities passed as logits.

        Caveat: log-probabilities are valid logits and are not refused. Example:
            signals = Signals.from_logits(logits, labels, member)
        """
        logits, labels = _logits_and_labels(logits, labels)
        positive("temperature", temperature)
        models, queries, samples, classes = logits.shape
        cubes = {name: np.empty(logits.shape[:3]) for name in CUBES}
        cubes["correct"] = np.empty(logits.shape[:3], bool)
        top_log_p = np.zeros((models, samples, min(classes, TOP)), np.float32)
        all_probabilities = samples > 0
        for m in range(models):
            mean_log_p = np.zeros((samples, classes))
            for q in range(queries):
                z = logits[m, q].astype(np.float64) / temperature
                _check_finite(z, m, q)
                all_probabilities = all_probabilities and _are_probabilities(logits[m, q])
                log_p, measures = _measures_of_logits(z, labels)
                for name in CUBES:
                    cubes[name][m, q] = measures[name]
                mean_log_p = mean_log_p + log_p / queries
            if queries:
                top_log_p[m] = -np.sort(-mean_log_p, axis=1)[:, :TOP]
        if all_probabilities:
            raise ValueError(
                "these logits are all >= 0 and sum to 1: probabilities were passed; pass logits, or"
                " np.log(p)"
            )
        population = np.zeros(samples, bool) if population is None else population
        return cls(
            labels=labels,
            member=None if member is None else mask("member", member),
            population=mask("population", population),
            query_kind=query_kind,
            top_log_p=top_log_p,
            info={} if info is None else dict(instance("info", info, dict)),
            **cubes,
        )


def _is_not_finite(values: np.ndarray) -> np.ndarray:
    return ~np.isfinite(values)


def _are_probabilities(outputs: np.ndarray) -> bool:
    """Whether the rows of outputs (N, K) look like probabilities: numbers from 0 up, of sum 1."""
    return bool((outputs >= 0).all() and np.allclose(outputs.sum(1), 1, atol=1e-3))


def _check_finite(z: np.ndarray, model: int, query: int) -> None:
    """ValueError where a logit of (N, K) is not finite."""
    finite = np.isfinite(z).all(1)
    if not finite.all():
        sample = int(np.flatnonzero(~finite)[0])
        raise ValueError(
            f"model {model} gives a non-finite output for sample {sample} (query {query}):"
            f" {z[sample][:4]}; did it diverge, or is it the logarithm of 0 (clip"
            " probabilities first)?"
        )


def _logits_and_labels(logits: object, labels: object) -> tuple[np.ndarray, np.ndarray]:
    """Logits (M, Q, N, K) and labels (N,) int64; ValueError for arrays that are neither."""
    logits = as_array(logits)
    labels = as_array(labels)
    if logits.ndim == 3:
        logits = logits[:, None]
    numbers = logits.dtype.kind in "iuf" and (labels.dtype.kind in "biu" or not labels.size)
    if not numbers or labels.ndim != 1:
        raise ValueError(
            f"logits of {logits.dtype} and labels of {labels.dtype}: wanted numbers and a"
            " vector of whole numbers"
        )
    if logits.ndim != 4 or logits.shape[2:3] != labels.shape:
        raise ValueError(
            f"logits {logits.shape} and labels {labels.shape}: wanted (M, Q, N, K) or (M, N, K)"
            " and (N,)"
        )
    classes = logits.shape[3]
    if classes < 2:
        raise ValueError(
            f"logits have {classes} class: membership inference here needs two or more outputs"
        )
    labels = labels.astype(np.int64, copy=False)
    first, last = (labels.min(), labels.max()) if labels.size else (0, 0)
    if first < 0 or last >= classes:
        raise ValueError(
            f"labels run from {first} to {last}; the model has classes 0..{classes - 1}"
        )
    return logits, labels


def _check_release(number: int, release: Signals, last: Signals) -> None:
    """ValueError where a release is not of the models and samples of the last one."""
    if release.shape[1] != 1:
        raise ValueError(
            f"release {number} holds {release.shape[1]} queries: wanted one query a release"
        )
    for name in ("labels", "population", "member"):
        if not np.array_equal(getattr(release, name), getattr(last, name)):
            raise ValueError(
                f"release {number} and the last one differ in {name}: wanted the same"
                " models (of the same members, in the same order) on the same samples"
            )


def _axis_index(
    size: int, index: int | Sequence[int] | slice | np.ndarray | None
) -> slice | np.ndarray:
    """A slice or an array that indexes an axis of this size; ValueError where it has no such
    entries.
    """
    if index is None:
        return slice(None)
    try:
        axis_index = index if isinstance(index, slice) else np.atleast_1d(index)
        np.arange(size)[axis_index]  # raises IndexError
    except (IndexError, TypeError, ValueError):
        raise ValueError(
            f"{shown(index)} picks nothing from an axis of {size}: wanted numbers below it, a slice"
            " or a mask"
        ) from None
    return axis_index


def pair_ids(member: np.ndarray) -> np.ndarray:
    """(M,) number of each row's pair. Rows of member (M, N) that are equal or exactly complementary
    share a number; pairs are numbered in order of appearance.
    """
    numbers: dict[bytes, int] = {}
    pairs = []
    for row in member:
        # a row and its complement become the same row, which begins with False
        key = np.packbits(row ^ row[:1]).tobytes()
        pairs.append(numbers.setdefault(key, len(numbers)))
    return np.array(pairs, int)


def _measures_of_logits(
    z: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """log p (N, K) of logits (N, K), and the measures in CUBES by name, each (N,).

    The largest class is left out of its own sums, so that neither log p nor log(1 - p) cancels
    where p rounds to 1.
    """
    columns = np.arange(len(z))
    top = z.argmax(1)
    z_y = z[columns, labels]
    without_label = z.copy()
    without_label[columns, labels] = -np.inf
    without_top = z.copy()
    without_top[columns, top] = -np.inf
    margin = z_y - logsumexp(without_label, axis=1)
    top_margin = z[columns, top] - logsumexp(without_top, axis=1)
    log_p = z - logsumexp(z, axis=1, keepdims=True)
    log_p[columns, top] = -np.logaddexp(0, -top_margin)
    p = np.exp(log_p)
    entropy = np.maximum(-(p * log_p).sum(1), 0)
    log_not_p = np.log1p(-np.minimum(p, 0.75))  # only the top class exceeds it
    log_not_p[columns, top] = -np.logaddexp(0, top_margin)
    of_other_classes = p * log_not_p
    of_other_classes[columns, labels] = 0
    not_p_y = np.exp(-np.logaddexp(0, margin))
    minus_log_p_y = np.logaddexp(0, -margin)
    modified_entropy = not_p_y * minus_log_p_y - of_other_classes.sum(1)
    return log_p, {
        "margin": margin,
        "entropy": entropy,
        "modified_entropy": modified_entropy,
        "correct": z_y > without_label.max(1),
    }
