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

# what a query is where its record says nothing
PLAIN_QUERY = {
    "input_dropout": 0.0,
    "queries": 1,
    "temperature": 1.0,
    "output": None,
    "output_args": None,
    "epoch": None,
    "limit": None,
}
MORE_RATES = "mia-nb run dropout_sweep --preset demo -p rates='[0.01, 0.02, 0.05]' -p queries=8"
# entries of `info` that pools share which differ in their noise alone
SHARED_QUERY = ("dataset", "epoch", "output", "input_dropout", "temperature", "augment")


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
            ways = groups.setdefault((*comparison_key(source), _architecture_key(source)), {})
            ways.setdefault(_training_key(source, pools), {})[source.info["timesteps"]] = source
    for ways in groups.values():
        rising = [dict(sorted(by_timesteps.items())) for by_timesteps in ways.values()]
        members = []
        for by_timesteps in rising:
            members += by_timesteps.values()
        if len(members) > 1:
            families.append(_by_timesteps(rising, _ordinary_outputs(members, single, pools)))
    return unique(families)


def _step_by_step(source: Source, reference: Outputs | None) -> tuple[str, Family]:
    """A network that gave an output at each step: its name, and the family of its steps."""
    count = source.info.get("timesteps") or source.signals.margin.shape[1]
    is_each_alone = source.info.get("per_step") == "instant"
    outputs = {}
    for t in range(1, count + 1):
        name = f"after {t} of {count} steps" if t < count else f"after all {count} steps"
        if is_each_alone:
            name = f"in step {t} alone"
        outputs[way(source.recipe), t] = Outputs(name, source, (t - 1,), True, reference)
    name = f"{_network_name(source, count)}, step by step"
    if is_each_alone:
        caption = "an attacker who is given the output of step t alone"
        return f"{name}, each alone", Family(outputs, caption)
    caption = "an attacker who is given one output, at t; who sees that of every step has more"
    return name, Family(outputs, caption)


def _by_timesteps(
    ways: Sequence[dict[int, Source]], reference: Outputs | None
) -> tuple[str, Family]:
    """Networks that differ in T, and perhaps in the way they were made: a name and the family."""
    named_ways = []
    for by_timesteps in ways:
        source = next(iter(by_timesteps.values()))
        named_ways.append((way(source.recipe), by_timesteps))
    groups = unique(named_ways)
    all_timesteps = sorted(set().union(*ways))
    first = next(iter(ways[0].values()))
    name = _network_name(first, ", ".join(map(str, all_timesteps)))
    if first.recipe:
        *others, last = groups
        all_ways = f"{', '.join(others)} and {last}" if others else last
        name = name.replace(f", {way(first.recipe)}", f", {all_ways}", 1)
        name = ", ".join([name, *queried(first.info)])
    outputs = {}
    for made, group in groups.items():
        for timesteps, source in group.items():
            text = f"with T = {timesteps}" if len(groups) == 1 else f"{made}, T = {timesteps}"
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
    source = source or ordinary_network(spiking[-1], sources)
    if source is None:
        return None
    masked = ", same dropout" if source.info.get("input_dropout") else ""
    return Outputs(f"ordinary network{masked}", source)


def by_dropout(sources: Sequence[Source]) -> dict[str, Family]:
    """Pools that were queried plainly and with input dropout, by (p, number of queries).

    The first Q of the queries are taken for Q = 1, 2, 4, ... and all; of two sources of equal p
    that of most queries counts, and of as many the newest.
    """
    plain_sources = {}
    for source in sources:
        if query_kind(source) == "plain":
            plain_sources[_key_without_dropout(source)] = source
    groups: dict[tuple, dict[float, Source]] = {}
    for source in sorted(filter(has_dropout, sources), key=query_count):
        key = _key_without_dropout(source)
        if key in plain_sources:
            step_masks = source.info.get("mask_scope") == "step"
            group = groups.setdefault((key, step_masks), {})
            group[source.info["input_dropout"]] = source
    families = []
    for (key, step_masks), group in groups.items():
        plain = plain_sources[key]
        reference = Outputs("queried plainly", plain)
        outputs = {}
        for p, source in sorted(group.items()):
            for count in doublings(query_count(source)):
                name = f"p = {p:g}, {_counted(count, 'query', 'queries')}"
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


def _key_without_dropout(source: Source) -> tuple:
    """Equal for sources of one pool that were queried alike but for input dropout."""
    return source.info.get("pool"), *comparison_key(
        source, ignoring=("input_dropout", "queries", "draws")
    )


def by_noise(sources: Sequence[Source]) -> dict[str, Family]:
    """Networks whose outputs are random, by (sigma, number of outputs averaged), beside the same
    networks with their noise off.

    Pools that differ in the strength of their noise alone are one family; of two of equal strength
    that of most outputs counts.
    """
    groups: dict[str, dict[float | str, Source]] = {}
    for source in sources:
        if query_kind(source) == "noise" and query_count(source) > 1:
            levels = groups.setdefault(_key_without_noise(source), {})
            sigma = _flow(source).get("sigma", "as built")
            levels[sigma] = max(levels.get(sigma, source), source, key=query_count)
    families = []
    for levels in groups.values():
        outputs = {}
        for sigma, source in sorted(levels.items()):
            reference_source = noise_off(source, sources)
            reference = None if reference_source is None else Outputs("noise off", reference_source)
            for count in doublings(query_count(source)):
                name = f"{strength_text(source)}, {_counted(count, 'output', 'outputs')}"
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


def _key_without_noise(source: Source) -> str:
    """Equal for sources that were trained and queried alike but for the strength of their noise."""
    if not _flow(source):
        return json.dumps([source.label])
    args = without(source.recipe.get("model_args", {}), "k")
    recipe = without(source.recipe, "snapshots") | {"model_args": args}
    equation = without(_flow(source), "k", "sigma", "noise_sd")
    query = {name: source.info.get(name) for name in SHARED_QUERY}
    return json.dumps([recipe, equation, query], sort_keys=True, default=str)


def strength_text(source: Source) -> str:
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


def noise_off(source: Source, sources: Sequence[Source]) -> Source | None:
    """The newest plain outputs of the same models on the same samples, at the same epoch, with the
    noise switched off.
    """
    pool = source.info.get("pool")
    if not pool:
        return None
    wanted = comparison_key(source, ignoring=("queries", "draws"))
    for other in reversed(sources):
        if other.info.get("pool") != pool or other.info.get("noise") is not False:
            continue
        if query_kind(other) != "plain":
            continue
        if comparison_key(other, ignoring=("queries", "draws")) == wanted:
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


def _counted(count: int, singular: str, plural: str) -> str:
    """A count and its noun: "1 query", "4 queries"."""
    return f"{count} {singular if count == 1 else plural}"


def comparison_key(source: Source, *, ignoring: Iterable[str] = ()) -> tuple:
    """Equal for sources whose scores can be compared row by row: the same members and samples,
    queried in the same way, up to the settings of the query that are ignored.
    """
    if source.pool is None or source.folder is None:
        signals = source.signals
        arrays = (signals.member, signals.labels, signals.population)
        samples = [digest(*(array for array in arrays if array is not None))]
    else:
        member = source.pool.files().get("member.npy")
        numbers = source.folder.files().get("samples.npy")
        samples = [member, numbers, *source.rows, source.info.get("dataset")]
    query = dict(PLAIN_QUERY)
    for name in PLAIN_QUERY:
        if source.info.get(name):
            query[name] = source.info[name]
    query["draws"] = "plain" if query_kind(source) == "steps" else query_kind(source)
    return *samples, json.dumps(without(query, *ignoring), sort_keys=True)


def _architecture_key(source: Source) -> str:
    """Equal for spiking networks of one architecture whose dropout masks have one scope; of a
    network without a recipe its label.
    """
    if not source.recipe:
        return source.label
    args = source.recipe.get("model_args", {}).get("base_args")
    return json.dumps([source.info.get("base"), args, source.info.get("mask_scope")])


def _training_key(source: Source, pools: dict[str, store.Folder]) -> str:
    """Equal for pools that were trained alike but for their number of time steps."""
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
        if source.info.get("pool") in keys and comparison_key(source) == comparison_key(spiking):
            return source
        if made_from and without(source.recipe, "num_models") == made_from:
            first = _first_models(source, len(spiking.signals.margin))
            if comparison_key(first) == comparison_key(spiking):
                return first
    return None


def _first_models(source: Source, count: int) -> Source:
    """The source with its first `count` models alone, as targets and as references."""
    signals = source.signals
    if len(signals.margin) == count:
        return source
    signals = signals.select(models=slice(0, count))
    return Source(source.label, signals, info=source.info, classes=source.classes)


def ordinary_network(spiking: Source, sources: Sequence[Source]) -> Source | None:
    """The newest network without time and of the same architecture that was queried in the same
    way.
    """
    wanted = comparison_key(spiking)
    base = spiking.info.get("base")
    for source in reversed(sources):
        same_base = base is None or source.info.get("family") in (base, None)
        if not same_base or source.info.get("timesteps") or source.recipe.get("defense"):
            continue
        if comparison_key(source) == wanted:
            return source
    return None
