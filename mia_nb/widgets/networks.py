"""Which stored sources are one network seen in several ways: after each time step, at several T,
with and without spikes.
"""

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from typing import NamedTuple

from mia_nb import attacks, store
from mia_nb.digests import digest
from mia_nb.types import Scores, Signals
from mia_nb.widgets.stored import Source, queried, trained, unique

ORDINARY = 0  # the time steps of a network that has none
# how outputs are queried where nothing is said
USUAL = {"input_dropout": 0.0, "queries": 1, "temperature": 1.0} | dict.fromkeys(
    ("output", "output_args", "epoch", "limit")
)


class Network(NamedTuple):
    """Outputs of a spiking network after t steps, or of networks of T = t steps, and those of the
    ordinary one beside it.
    """

    # by t; the same source throughout where a network gave one after each step
    outputs: dict[int, Source]
    per_step: str  # "cumulative" | "instant"; "" for networks of different T
    ordinary: Source | None  # queried in the same way

    @property
    def any(self) -> Source:
        return next(iter(self.outputs.values()))

    @property
    def times(self) -> list[int]:
        """Every t, the ordinary network last."""
        return [*self.outputs, *([ORDINARY] if self.ordinary else [])]

    @property
    def middle(self) -> int:
        """The time that a slider starts at."""
        return sorted(self.outputs)[(len(self.outputs) - 1) // 2]

    def pair(self, t: int) -> list[int]:
        """t, and the ordinary network where there is one."""
        return [t, *([ORDINARY] if self.ordinary else [])]

    def source(self, t: int) -> Source:
        return self.outputs[t] if t != ORDINARY else self.ordinary

    def signals(self, t: int) -> Signals:
        """Of an attacker who is given one output, at t."""
        signals = self.source(t).signals
        if t == ORDINARY or not self.per_step:
            return signals
        return dataclasses.replace(signals.select(queries=[t - 1]), query_kind="plain")

    def scores(self, t: int, attack: str) -> Scores:
        return (
            self.source(t).scores(attack)
            if t == ORDINARY or not self.per_step
            else attacks.score(attack, self.signals(t))
        )

    def when(self, t: int) -> str:
        """In words, to go before or after a verb."""
        if t == ORDINARY:
            return "ordinary network" + (
                ", same dropout" if self.ordinary.info.get("input_dropout") else ""
            )
        last = max(self.outputs)
        words = {"": f"with T = {t}", "instant": f"in step {t} alone"}
        after = f"after {t} of {last} steps" if t < last else f"after all {last} steps"
        return words.get(self.per_step, after)


def networks(sources: Sequence[Source]) -> dict[str, Network]:
    """Spiking networks seen at several times, by name; {} where there are none.

    One entry for every source with an output per time step, and one for every set of spiking pools
    that have members, recipe and parent's parent in common and were queried in the same way, but
    differ in T; of two with equal T the newest.
    """
    pools = _pools(sources)
    single = [source for source in sources if query_kind(source) != "steps"]
    entries: list[tuple[str, Network]] = []
    for source in (source for source in sources if query_kind(source) == "steps"):
        count = source.info.get("timesteps") or source.signals.margin.shape[1]
        each = ", each alone" if kind(source) == "instant" else ""
        outputs = dict.fromkeys(range(1, count + 1), source)
        network = Network(outputs, kind(source), ordinary(source, single, pools))
        entries.append((f"{_name(source, count)}, step by step{each}", network))
    groups: dict[tuple, dict[int, Source]] = {}
    for source in (source for source in single if source.info.get("timesteps")):
        group = groups.setdefault((*alike(source), _training(source, pools)), {})
        group[source.info["timesteps"]] = source
    for group in (dict(sorted(group.items())) for group in groups.values() if len(group) > 1):
        first = next(iter(group.values()))
        last = next(reversed(group.values()))
        name = f"{_name(first, ', '.join(map(str, group)))}{_queried(first)}"
        entries.append((name, Network(group, "", ordinary(last, single, pools))))
    return unique(entries)


def query_kind(source: Source) -> str:
    """What its queries are; stored sources say so without being read."""
    return source.info.get("draws") or source.signals.query_kind


def query_count(source: Source) -> int:
    """How often it was queried; stored sources say so without being read."""
    return int(source.info.get("queries") or source.signals.margin.shape[1])


def doublings(most: int) -> list[int]:
    """1, 2, 4, ... and `most`."""
    return sorted({2**n for n in range(most.bit_length())} | {most})


def kind(source: Source) -> str:
    """What a network that was queried step by step gave at each."""
    return "instant" if source.info.get("per_step") == "instant" else "cumulative"


def query_call(source: Source, **options) -> str:
    """The call that queries the models of a source about its images again, with these options."""
    names = ("limit", "output", "output_args")
    models = {} if 0 in source.rows else {"models": source.rows}
    given = models | {name: source.info[name] for name in names if source.info.get(name)} | options
    words = ", ".join(f"{name}={value!r}" for name, value in given.items())
    epoch = f".at({source.info['epoch']})" if source.info.get("epoch") else ""
    pool = (source.info.get("pool") or "KEY")[:12]
    return f"query.query(training.load_pool({pool!r}){epoch}, images, {words})"


def recorder(one: Network, t: int, sources: Sequence[Source]) -> tuple[Source | None, str]:
    """(whose recording of spikes shows this network at t, ""), its own before others; or (None, why
    it cannot be read or "").

    Another's is of the same pool at the same epoch, shows a model that this network's outputs hold,
    and, of a network queried step by step, was queried for the same kind of outputs.
    """
    own = one.outputs[t]
    why = ""
    near = [
        s for s in reversed(sources) if query_kind(s) == "steps" and one.per_step in ("", kind(s))
    ]
    for source in (own, *(other for other in near if _shows(other, own))):
        try:
            if source.raster is not None:
                return source, ""
        except (ValueError, OSError) as error:
            why = " ".join(str(error).split())
    return None, why


def _shows(source: Source, own: Source) -> bool:
    """Whether the model recorded is one of this source's."""
    pools = [(one.info.get("pool"), one.info.get("epoch")) for one in (source, own)]
    return bool(pools[0][0]) and pools[0] == pools[1] and source.rows[0] in own.rows


def _name(source: Source, timesteps) -> str:
    """The network of so many time steps in words."""
    if not source.recipe:
        return f"{source.label}, T = {timesteps}"
    return trained(source.info | {"timesteps": timesteps, "pool": ""}, source.recipe)


def _queried(source: Source) -> str:
    """The words of a label that say how it was queried: ", dropout 0.02, 3 queries"."""
    return "".join(f", {words}" for words in queried(source.info)) if source.recipe else ""


def alike(source: Source, *, but: Sequence[str] = ()) -> tuple:
    """What sources share whose scores are compared row by row: members, samples and, `but` for
    some, how they were queried.
    """
    if source.pool is None or source.folder is None:
        one = source.signals
        arrays = [a for a in (one.member, one.labels, one.population) if a is not None]
        place = [digest(*arrays)]
    else:
        queried = source.folder.files()
        trained = source.pool.files()
        stored = [trained.get("member.npy"), queried.get("samples.npy")]
        place = [*stored, *source.rows, source.info.get("dataset")]
    how = {
        **USUAL,
        **{name: source.info[name] for name in USUAL if source.info.get(name)},
        "draws": "plain" if query_kind(source) == "steps" else query_kind(source),
    }
    return *place, json.dumps({n: v for n, v in how.items() if n not in but}, sort_keys=True)


def _training(source: Source, pools: dict[str, store.Folder]) -> str:
    """How a pool was trained but for its number of time steps."""
    recipe = without(source.recipe, "epochs", "model_args", "parent")
    args = without(source.recipe.get("model_args", {}), "timesteps")
    args["calibration"] = without(args.get("calibration") or {}, "fit_T")
    first = ancestors(source, pools)[-1:]
    scope = source.info.get("mask_scope")
    return json.dumps([recipe, args, _name(source, "any"), first, scope], sort_keys=True)


def without(record: dict, *names: str) -> dict:
    """The record less some entries."""
    return {name: value for name, value in record.items() if name not in names}


def _pools(sources: Sequence[Source]) -> dict[str, store.Folder]:
    """Every pool beside these, by the first twelve letters of its key: a parent need not have been
    queried.
    """
    roots = {source.pool.path.parent for source in sources if source.pool is not None}
    return {
        folder.path.name.rsplit("-", 1)[1]: folder
        for root in roots
        for folder in store.folders(root, "pool")
    }


def ancestors(source: Source, pools: dict[str, store.Folder]) -> list[str]:
    """Keys of the pools that this one was derived from, the nearest first."""
    keys: list[str] = []
    folder = source.pool
    # of a damaged parent nothing more is known
    with contextlib.suppress(ValueError, OSError, KeyError):
        while folder is not None and (key := folder.recipe.get("parent")):
            keys.append(key)
            folder = pools.get(key[:12])
    return keys


def ordinary(
    spiking: Source, sources: Sequence[Source], pools: dict[str, store.Folder]
) -> Source | None:
    """The network without time that was queried in the same way: an ancestor, or the newest of the
    same architecture.
    """
    like = alike(spiking)
    keys = ancestors(spiking, pools)
    bases = (spiking.info.get("base"), None)
    fitting = [s for s in sources if not s.info.get("timesteps") and alike(s) == like]
    parents = [s for s in fitting if s.info.get("pool") in keys]
    same = [s for s in fitting if bases[0] is None or s.info.get("family") in bases]
    return next(reversed(parents or [s for s in same if not s.recipe.get("defense")]), None)
