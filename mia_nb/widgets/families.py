"""Families of stored outputs: the same members and images, one or two settings apart."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mia_nb import attacks, store
from mia_nb.checks import quantity
from mia_nb.types import Scores
from mia_nb.widgets.matching import (
    architecture_key,
    comparison_key,
    flow_of,
    key_without_dropout,
    key_without_noise,
    network_name,
    noise_off,
    ordinary_network,
    pools_beside,
    query_count,
    query_kind,
    training_key,
)
from mia_nb.widgets.stored import Source, unique
from mia_nb.widgets.words import label, queried, way


class Outputs(NamedTuple):
    """The outputs that an attacker is given: all of a source, or those of some queries."""

    name: str  # in words
    source: Source
    queries: tuple[int, ...] | None = None  # indices of the queries; None: all
    reference: "Outputs | None" = None  # the outputs to compare with

    def scores(self, attack: str) -> Scores:
        """Scores of every model in turn."""
        if self.queries is None:
            return self.source.scores(attack)
        signals = self.source.signals.select(queries=list(self.queries))
        if signals.query_kind == "steps" and len(self.queries) == 1:
            # the output of one time step is read as a plain one
            signals = dataclasses.replace(signals, query_kind="plain")
        return attacks.score(attack, signals)

    @property
    def energy(self) -> float | None:
        """Microjoules of the arithmetic for one image, the mean over models to three digits; None
        where it is not known.
        """
        counted = self.source.info.get("operations")
        if counted is None or self.queries is not None:
            return None
        return float(f"{np.mean(counted['energy_nj']) / 1000:.3g}")


class Family(NamedTuple):
    """Outputs by the values of the settings in which they differ."""

    outputs: dict[tuple, Outputs]
    caption: str  # a remark on what the attacker is given

    @property
    def with_references(self) -> list[Outputs]:
        """All outputs, each before its reference if it has one."""
        everything = []
        for outputs in self.outputs.values():
            everything.append(outputs)
            if outputs.reference is not None:
                everything.append(outputs.reference)
        return everything

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every source, references included, each once."""
        return tuple(dict.fromkeys(outputs.source for outputs in self.with_references))

    @property
    def has_energies(self) -> bool:
        """Whether the energy of all outputs, references included, is known."""
        return all(outputs.energy is not None for outputs in self.with_references)


def by_time(sources: Sequence[Source]) -> dict[str, Family]:
    """Spiking networks by the way they were made and their time steps, (way, t), beside the
    ordinary network.

    Every source with an output per time step is a family (t: the steps so far, or step t alone).
    Every set of spiking pools of one architecture, with the same members and queried in the same
    way, is a family too (t: their T). Of two pools that agree even in T the newest is taken; ways
    of one name that differ in other settings are numbered.
    """
    pools = pools_beside(sources)
    stepwise = [source for source in sources if query_kind(source) == "steps"]
    single = [source for source in sources if query_kind(source) != "steps"]
    families: list[tuple[str, Family]] = []
    for source in stepwise:
        reference = _ordinary_outputs([source], single, pools)
        families.append(_step_by_step(source, reference))
    for ways in _comparable_ways(single, pools):
        networks = list(itertools.chain.from_iterable(group.values() for group in ways))
        if len(networks) > 1:
            reference = _ordinary_outputs(networks, single, pools)
            families.append(_by_timesteps(ways, reference))
    return unique(families)


def _step_by_step(source: Source, reference: Outputs | None) -> tuple[str, Family]:
    """(name, family) of a network with an output at each step."""
    count = source.info.get("timesteps") or source.signals.margin.shape[1]
    family_name = f"{network_name(source, count)}, step by step"
    names = [f"after {t} of {count} steps" for t in range(1, count)]
    names.append(f"after all {count} steps")
    caption = "an attacker who is given one output, at t; who sees that of every step has more"
    if source.info.get("per_step") == "instant":
        family_name += ", each alone"
        names = [f"in step {t} alone" for t in range(1, count + 1)]
        caption = "an attacker who is given the output of step t alone"
    outputs = {}
    for t, name in enumerate(names, 1):
        outputs[way(source.recipe), t] = Outputs(name, source, (t - 1,), reference)
    return family_name, Family(outputs, caption)


def _comparable_ways(
    sources: Sequence[Source], pools: dict[str, store.Folder]
) -> list[list[dict[int, Source]]]:
    """The spiking networks of each architecture that can be compared: for every way in which they
    were trained {T: network}, the smallest T first.
    """
    architectures: dict[tuple, dict[str, dict[int, Source]]] = {}
    for source in sources:
        timesteps = source.info.get("timesteps")
        if not timesteps:
            continue
        architecture = (*comparison_key(source), architecture_key(source))
        ways = architectures.setdefault(architecture, {})
        networks = ways.setdefault(training_key(source, pools), {})
        networks[timesteps] = source  # of two that agree even in T the last, which is newer
    comparable = []
    for ways in architectures.values():
        comparable.append([dict(sorted(networks.items())) for networks in ways.values()])
    return comparable


def _by_timesteps(
    ways: Sequence[dict[int, Source]], reference: Outputs | None
) -> tuple[str, Family]:
    """(name, family) of networks that differ in T, and perhaps in the way they were made."""
    groups = unique((way(_first(group).recipe), group) for group in ways)
    outputs = {}
    for made, group in groups.items():
        for timesteps, source in group.items():
            name = f"with T = {timesteps}" if len(groups) == 1 else f"{made}, T = {timesteps}"
            outputs[made, timesteps] = Outputs(name, source, reference=reference)
    family = Family(outputs, "each T is a network of its own, with the same members")
    return _name_of_groups(groups), family


def _name_of_groups(groups: dict[str, dict[int, Source]]) -> str:
    """The networks of all T and all ways of making them, in words."""
    all_timesteps = sorted(set().union(*groups.values()))
    *others, last = groups
    all_ways = f"{', '.join(others)} and {last}" if others else last
    source = _first(next(iter(groups.values())))
    name = network_name(source, ", ".join(map(str, all_timesteps)), made=all_ways)
    if not source.recipe:  # the name is the source's label, which says how it was queried
        return name
    return ", ".join([name, *queried(source.info)])


def _first(group: dict[int, Source]) -> Source:
    """The network of the smallest T."""
    return next(iter(group.values()))


def _ordinary_outputs(
    spiking: Sequence[Source], sources: Sequence[Source], pools: dict[str, store.Folder]
) -> Outputs | None:
    """The ordinary network beside these spiking ones, if its outputs are stored."""
    source = ordinary_network(spiking, sources, pools)
    if source is None:
        return None
    masked = ", same dropout" if source.info.get("input_dropout") else ""
    return Outputs(f"ordinary network{masked}", source)


def by_dropout(sources: Sequence[Source]) -> dict[str, Family]:
    """Pools that were queried plainly and with input dropout, by (p, number of queries).

    Q = 1, 2, 4, ... and all stand for the first Q queries. Of two sources of equal p the one with
    more queries is taken, and of equally many the newest.
    """
    plain_sources = {}
    for source in sources:
        if query_kind(source) == "plain":
            plain_sources[key_without_dropout(source)] = source
    masked = [source for source in sources if query_kind(source) == "dropout"]
    # {(key of the pool and its queries, whether each step has its own mask): {p: source}}
    groups: dict[tuple, dict[float, Source]] = {}
    for source in sorted(masked, key=query_count):  # the last of equal p has most queries
        key = key_without_dropout(source)
        p = source.info.get("input_dropout")
        if p and key in plain_sources:
            has_step_masks = source.info.get("mask_scope") == "step"
            groups.setdefault((key, has_step_masks), {})[p] = source
    families = []
    for (key, has_step_masks), group in groups.items():
        plain = plain_sources[key]
        reference = Outputs("queried plainly", plain)
        outputs = {}
        for p, source in sorted(group.items()):
            for count in doublings(query_count(source)):
                name = f"p = {p:g}, {quantity(count, 'query', 'queries')}"
                queries = tuple(range(count))
                outputs[p, count] = Outputs(name, source, queries, reference)
        caption = "queries of one p share their masks: the first Q of those made"
        family_name = f"{plain.label}, a mask per step" if has_step_masks else plain.label
        families.append((family_name, Family(outputs, caption)))
    return unique(families)


def by_noise(sources: Sequence[Source]) -> dict[str, Family]:
    """Networks whose outputs are random, by (sigma, number of outputs averaged), beside the same
    networks with their noise off.

    Pools that differ only in the strength of their noise are one family; of two of equal strength
    the one with more outputs is taken.
    """
    groups: dict[tuple, dict[float | str, Source]] = {}
    for source in sources:
        if query_kind(source) == "noise" and query_count(source) > 1:
            levels = groups.setdefault(key_without_noise(source), {})
            sigma = flow_of(source).get("sigma", "as built")
            if sigma not in levels or query_count(source) > query_count(levels[sigma]):
                levels[sigma] = source
    families = []
    for levels in groups.values():
        outputs = {}
        for sigma, source in sorted(levels.items()):
            quiet = noise_off(source, sources)
            reference = None if quiet is None else Outputs("noise off", quiet)
            for count in doublings(query_count(source)):
                name = f"{strength_text(source)}, {quantity(count, 'output')}"
                queries = tuple(range(count))
                outputs[sigma, count] = Outputs(name, source, queries, reference)
        caption = (
            "margins of the first R outputs are averaged, of target and references alike; noise"
            " that is fresh in every output averages away, what it leaves is measured, not promised"
        )
        first = next(iter(outputs.values())).source
        families.append((noisy_name(first, len(levels)), Family(outputs, caption)))
    return unique(families)


def strength_text(source: Source) -> str:
    """The strength of the noise, in words."""
    flow = flow_of(source)
    if not flow:
        return "noise as built"
    return f"sigma = {flow['sigma']:.3g} (noise sd {flow['noise_sd']:.3g})"


def noisy_name(source: Source, levels: int) -> str:
    """The networks of a family with this number of noise strengths, in words."""
    info = source.info
    flow = flow_of(source)
    if source.folder is None:
        name = source.label
    else:
        record = info | {"draws": "plain", "queries": 1}  # their number is a setting of its own
        if levels > 1:
            record["pool"] = ""  # each strength is a pool of its own
        if flow and "base" in info:
            record["family"] = f"{info['base']} with its last group replaced"
        elif flow:
            record["family"] = info["model"]
        name = label(record, source.recipe)
    if flow.get("T") and flow.get("steps"):
        name += f", T = {flow['T']:g}, {flow['steps']} steps"
    return name


def doublings(most: int) -> list[int]:
    """The powers of two up to `most`, and `most`."""
    return sorted({2**n for n in range(most.bit_length())} | {most})
