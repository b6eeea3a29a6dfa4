"""Which stored outputs belong beside each other: the same members and images, one or two settings
apart.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from mia_nb import attacks, store
from mia_nb.digests import digest
from mia_nb.types import Scores
from mia_nb.widgets.stored import Source, label, queried, trained, unique, way

# how outputs are queried where nothing is said
USUAL = {"input_dropout": 0.0, "queries": 1, "temperature": 1.0} | dict.fromkeys(
    ("output", "output_args", "epoch", "limit")
)
MORE_RATES = "mia-nb run dropout_sweep --preset demo -p rates='[0.01, 0.02, 0.05]' -p queries=8"
# of info: what pools that differ in their noise alone share
SAME_BUT_NOISE = ("dataset", "epoch", "output", "input_dropout", "temperature", "augment")


class Outputs(NamedTuple):
    """What an attacker is given: the outputs of a source, or some of them."""

    name: str  # in words
    source: Source
    queries: tuple[int, ...] | None = None  # which of the queries; None: all
    one_step: bool = False  # the output of one time step, which is read as a plain one
    reference: "Outputs | None" = None  # what it is compared with

    def scores(self, attack: str) -> Scores:
        """Scores of every model in turn."""
        if self.queries is None:
            return self.source.scores(attack)
        signals = self.source.signals.select(queries=list(self.queries))
        if self.one_step:
            signals = dataclasses.replace(signals, query_kind="plain")
        return attacks.score(attack, signals)

    @property
    def energy(self) -> float | None:
        """Microjoules of the arithmetic for one image, to three figures, the mean over models; None
        where it is not known.
        """
        counted = self.source.info.get("operations")
        if counted is None or self.queries is not None:
            return None
        return float(f"{np.mean(counted['energy_nj']) / 1000:.3g}")


class Family(NamedTuple):
    """Outputs by the values of the settings in which they differ."""

    outputs: dict[tuple, Outputs]
    caption: str  # what the attacker is given

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every source, references included, each once."""
        stored = []
        for outputs in self.outputs.values():
            stored.append(outputs.source)
            if outputs.reference is not None:
                stored.append(outputs.reference.source)
        return tuple(dict.fromkeys(stored))


def by_time(sources: Sequence[Source]) -> dict[str, Family]:
    """Spiking networks by how they were made and their time steps, (way, t), beside the ordinary
    network.

    One family for every source with an output per time step (t: the steps so far, or step t
    alone), and one for every set of spiking pools of one architecture that have their members in
    common and were queried in the same way (t: their T). Of two that differ in T alone, and have
    the same, the newest; ways that differ in more are numbered.
    """
    pools = _pools_beside(sources)
    stepwise = [source for source in sources if query_kind(source) == "steps"]
    single = [source for source in sources if query_kind(source) != "steps"]
    families: list[tuple[str, Family]] = []
    for source in stepwise:
        families.append(_step_by_step(source, _ordinary_outputs([source], single, pools)))
    groups: dict[tuple, dict[str, dict[int, Source]]] = {}
    for source in single:
        if source.info.get("timesteps"):
            ways = groups.setdefault((*alike(source), _architecture(source)), {})
            ways.setdefault(_training(source, pools), {})[source.info["timesteps"]] = source
    for ways in groups.values():
        rising = [dict(sorted(by_timesteps.items())) for by_timesteps in ways.values()]
        members = []
        for by_timesteps in rising:
            members += by_timesteps.values()
        if len(members) > 1:
            families.append(_of_each_t(rising, _ordinary_outputs(members, single, pools)))
    return unique(families)


def _step_by_step(source: Source, reference: Outputs | None) -> tuple[str, Family]:
    """A network that gave an output at each step: its name, and the family of its steps."""
    count = source.info.get("timesteps") or source.signals.margin.shape[1]
    alone = source.info.get("per_step") == "instant"
    outputs = {}
    for t in range(1, count + 1):
        name = f"after {t} of {count} steps" if t < count else f"after all {count} steps"
        if alone:
            name = f"in step {t} alone"
        outputs[way(source.recipe), t] = Outputs(name, source, (t - 1,), True, reference)
    name = f"{_network_name(source, count)}, step by step"
    if alone:
        caption = "an attacker who is given the output of step t alone"
        return f"{name}, each alone", Family(outputs, caption)
    caption = "an attacker who is given one output, at t; who sees that of every step has more"
    return name, Family(outputs, caption)


def _of_each_t(ways: Sequence[dict[int, Source]], reference: Outputs | None) -> tuple[str, Family]:
    """Networks of different T, in several ways: their name, and the family."""
    named = unique((way(next(iter(group.values())).recipe), group) for group in ways)
    every = sorted(set().union(*ways))
    first = next(iter(ways[0].values()))
    name = _network_name(first, ", ".join(map(str, every)))
    if first.recipe:
        *others, last = named
        all_ways = f"{', '.join(others)} and {last}" if others else last
        name = name.replace(f", {way(first.recipe)}", f", {all_ways}", 1)
        name = ", ".join([name, *queried(first.info)])
    outputs = {}
    for made, group in named.items():
        for timesteps, source in group.items():
            text = f"with T = {timesteps}" if len(named) == 1 else f"{made}, T = {timesteps}"
            outputs[made, timesteps] = Outputs(text, source, reference=reference)
    return name, Family(outputs, "each T is a network of its own, with the same members")


def _network_name(source: Source, timesteps: int | str) -> str:
    """The network of so many time steps in words."""
    if not source.recipe:
        return f"{source.label}, T = {timesteps}"
    return trained(source.info | {"timesteps": timesteps, "pool": ""}, source.recipe)


def _ordinary_outputs(
    spiking: Sequence[Source], sources: Sequence[Source], pools: dict[str, store.Folder]
) -> Outputs | None:
    """The ordinary network beside these spiking ones, if its outputs are stored: one that any of
    them was made from, before others of the same architecture.
    """
    source = None
    for network in spiking:
        source = source or ancestor(network, sources, pools)
    source = source or ordinary(spiking[-1], sources)
    if source is None:
        return None
    masked = ", same dropout" if source.info.get("input_dropout") else ""
    return Outputs(f"ordinary network{masked}", source)


def by_dropout(sources: Sequence[Source]) -> dict[str, Family]:
    """Pools that were queried plainly and with input dropout, by (p, number of queries).

    The first Q of the queries are taken for Q = 1, 2, 4, ... and all; of two sources of equal p
    that of most queries counts, and of as many the newest.
    """
    plainly = {_queried_but_dropout(s): s for s in sources if query_kind(s) == "plain"}
    groups: dict[tuple, dict[float, Source]] = {}
    for source in sorted(filter(has_dropout, sources), key=query_count):
        whom = _queried_but_dropout(source)
        if whom in plainly:
            step_masks = source.info.get("mask_scope") == "step"
            group = groups.setdefault((whom, step_masks), {})
            group[source.info["input_dropout"]] = source
    families = []
    for (whom, step_masks), group in groups.items():
        plain = plainly[whom]
        reference = Outputs("queried plainly", plain)
        outputs = {}
        for p, source in sorted(group.items()):
            for count in doublings(query_count(source)):
                name = f"p = {p:g}, {_number(count, 'query', 'queries')}"
                queries = tuple(range(count))
                outputs[p, count] = Outputs(name, source, queries, reference=reference)
        caption = "queries of one p share their masks: the first Q of those made"
        if len(group) == 1:
            caption += f"; only p = {min(group):g} was queried, more: {MORE_RATES}"
        name = f"{plain.label}, a mask per step" if step_masks else plain.label
        families.append((name, Family(outputs, caption)))
    return unique(families)


def has_dropout(source: Source) -> bool:
    """Whether it was queried with input dropout of a known rate."""
    return query_kind(source) == "dropout" and bool(source.info.get("input_dropout"))


def _queried_but_dropout(source: Source) -> tuple:
    return source.info.get("pool"), *alike(source, but=("input_dropout", "queries", "draws"))


def by_noise(sources: Sequence[Source]) -> dict[str, Family]:
    """Networks whose outputs are random, by (sigma, number of outputs averaged), beside the same
    networks with their noise off.

    Pools that differ in the strength of their noise alone are one family; of two of equal strength
    that of most outputs counts.
    """
    groups: dict[str, dict[float | str, Source]] = {}
    for source in sources:
        if query_kind(source) == "noise" and query_count(source) > 1:
            levels = groups.setdefault(_all_but_its_noise(source), {})
            sigma = _flow(source).get("sigma", "as built")
            levels[sigma] = max(levels.get(sigma, source), source, key=query_count)
    families = []
    for levels in groups.values():
        outputs = {}
        for sigma, source in sorted(levels.items()):
            quiet = silent(source, sources)
            reference = None if quiet is None else Outputs("noise off", quiet)
            for count in doublings(query_count(source)):
                name = f"{strength(source)}, {_number(count, 'output', 'outputs')}"
                queries = tuple(range(count))
                outputs[sigma, count] = Outputs(name, source, queries, reference=reference)
        caption = (
            "margins of the first R outputs are averaged, of target and references alike; noise"
            " that is fresh in every output averages away, what it leaves is measured, not promised"
        )
        first = next(iter(outputs.values())).source
        families.append((noisy_name(first, len(levels)), Family(outputs, caption)))
    return unique(families)


def _flow(source: Source) -> dict:
    """The equation of a network that solves one; {} for others."""
    return source.info.get("flow") or {}


def _all_but_its_noise(source: Source) -> str:
    """How a pool was trained and queried, but for the strength of its noise."""
    if not _flow(source):
        return json.dumps([source.label])
    args = without(source.recipe.get("model_args", {}), "k")
    recipe = without(source.recipe, "snapshots") | {"model_args": args}
    equation = without(_flow(source), "k", "sigma", "noise_sd")
    query = {name: source.info.get(name) for name in SAME_BUT_NOISE}
    return json.dumps([recipe, equation, query], sort_keys=True, default=str)


def strength(source: Source) -> str:
    """How strong the noise is, in words."""
    if not _flow(source):
        return "noise as built"
    return "sigma = {sigma:.3g} (noise sd {noise_sd:.3g})".format(**_flow(source))


def noisy_name(source: Source, levels: int) -> str:
    """The networks of a family of so many strengths of noise, in words."""
    info = source.info
    flow = _flow(source)
    name = source.label
    if source.folder is not None:
        family = info["family"]
        if flow:
            family = info["model"]
        if flow and "base" in info:
            family = f"{info['base']} with its last group replaced"
        pool = {"pool": ""} if levels > 1 else {}
        plain_query = {"draws": "plain", "queries": 1, "family": family}
        name = label(info | plain_query | pool, source.recipe)
    if flow.get("T") and flow.get("steps"):
        name += f", T = {flow['T']:g}, {flow['steps']} steps"
    return name


def silent(source: Source, sources: Sequence[Source]) -> Source | None:
    """The newest plain outputs of the same models on the same samples, at the same epoch, with the
    noise switched off.
    """
    pool = source.info.get("pool")
    but = ("queries", "draws")
    for other in reversed(sources):
        if not pool or other.info.get("pool") != pool or other.info.get("noise") is not False:
            continue
        if query_kind(other) == "plain" and alike(other, but=but) == alike(source, but=but):
            return other
    return None


def same_images(first: Source, second: Source) -> bool:
    """Whether the same samples of the same images were queried, as far as stored: digest, sample
    numbers, labels.
    """
    digests = set()
    for source in (first, second):
        if source.pool is not None and source.pool.has("images.json"):
            digests.add(source.pool.read_json("images.json", digest=str)["digest"])
    if len(digests) > 1:
        return False
    labels = [source.signals.labels[source.audited] for source in (first, second)]
    return np.array_equal(first.numbers, second.numbers) and np.array_equal(*labels)


def query_kind(source: Source) -> str:
    """What its queries are; stored sources say so without being read."""
    return source.info.get("draws") or source.signals.query_kind


def query_count(source: Source) -> int:
    """How often it was queried; stored sources say so without being read."""
    return int(source.info.get("queries") or source.signals.margin.shape[1])


def doublings(most: int) -> list[int]:
    """1, 2, 4, ... and `most`."""
    return sorted({2**n for n in range(most.bit_length())} | {most})


def _number(count: int, singular: str, plural: str) -> str:
    return f"{count} {singular if count == 1 else plural}"


def alike(source: Source, *, but: Iterable[str] = ()) -> tuple:
    """What sources share whose scores are compared row by row: members, samples and, `but` for
    some, how they were queried.
    """
    if source.pool is None or source.folder is None:
        signals = source.signals
        arrays = [a for a in (signals.member, signals.labels, signals.population) if a is not None]
        place = [digest(*arrays)]
    else:
        member = source.pool.files().get("member.npy")
        samples = source.folder.files().get("samples.npy")
        place = [member, samples, *source.rows, source.info.get("dataset")]
    how = USUAL | {name: source.info[name] for name in USUAL if source.info.get(name)}
    how["draws"] = "plain" if query_kind(source) == "steps" else query_kind(source)
    return *place, json.dumps(without(how, *but), sort_keys=True)


def _architecture(source: Source) -> str:
    """The network that spikes, and with what masks it was queried; of unknown ones the name."""
    if not source.recipe:
        return source.label
    args = source.recipe.get("model_args", {}).get("base_args")
    return json.dumps([source.info.get("base"), args, source.info.get("mask_scope")])


def _training(source: Source, pools: dict[str, store.Folder]) -> str:
    """How a pool was trained but for its number of time steps."""
    recipe = without(source.recipe, "epochs", "model_args", "parent")
    args = without(source.recipe.get("model_args", {}), "timesteps")
    args["calibration"] = without(args.get("calibration") or {}, "fit_T")
    first = ancestors(source, pools)[-1:]
    scope = source.info.get("mask_scope")
    return json.dumps([recipe, args, _network_name(source, "any"), first, scope], sort_keys=True)


def without(record: dict, *names: str) -> dict:
    """The record less some entries."""
    return {name: value for name, value in record.items() if name not in names}


def _pools_beside(sources: Sequence[Source]) -> dict[str, store.Folder]:
    """Every pool beside these, by the first twelve letters of its key: a parent need not have been
    queried.
    """
    roots = {source.pool.path.parent for source in sources if source.pool is not None}
    pools = {}
    for root in roots:
        for folder in store.folders(root, "pool"):
            pools[folder.path.name.rsplit("-", 1)[1]] = folder
    return pools


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


def ancestor(
    spiking: Source, sources: Sequence[Source], pools: dict[str, store.Folder]
) -> Source | None:
    """The network that a spiking one was made from, queried in the same way; of shipped ones, whose
    parents are not stored, the first models of its recipe.
    """
    keys = ancestors(spiking, pools)
    made_from = without(spiking.info.get("made_from") or {}, "num_models")
    for source in reversed(sources):
        if source.info.get("timesteps"):
            continue
        if source.info.get("pool") in keys and alike(source) == alike(spiking):
            return source
        if made_from and without(source.recipe, "num_models") == made_from:
            first = _first_models(source, len(spiking.signals.margin))
            if alike(first) == alike(spiking):
                return first
    return None


def _first_models(source: Source, count: int) -> Source:
    """The source as if it had no more models than so many, and no more references."""
    signals = source.signals
    if len(signals.margin) == count:
        return source
    signals = signals.select(models=slice(0, count))
    return Source(source.label, signals, info=source.info, classes=source.classes)


def ordinary(spiking: Source, sources: Sequence[Source]) -> Source | None:
    """The newest network without time and of the same architecture that was queried in the same
    way.
    """
    like = alike(spiking)
    base = spiking.info.get("base")
    for source in reversed(sources):
        same = base is None or source.info.get("family") in (base, None)
        if not same or source.info.get("timesteps") or source.recipe.get("defense"):
            continue
        if alike(source) == like:
            return source
    return None
