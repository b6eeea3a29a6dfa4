"""Which settings a claim compares: the table of settings joined with itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import combinations, pairwise, product

from mia_nb.studies.settings import Setting
from mia_nb.studies.study import Join, Selections

ROUNDING = 1e-3  # of sigma, where k was not given in full
LIKENESS = ("blocks", "method", "steps", "T")
Pair = tuple[Setting, Setting]


def networks_of(settings: Iterable[Setting]) -> list[Setting]:
    """The settings without their attacks, each once."""
    return list(dict.fromkeys(setting._replace(attack="") for setting in settings))


def select(selections: Selections, networks: list[Setting]) -> list[Setting]:
    """The settings that match the first of these selections with any match."""
    for fields in selections:
        chosen = [setting for setting in networks if matches(setting, fields)]
        if chosen:
            return chosen
    return []


def matches(setting: Setting, fields: dict) -> bool:
    """Whether the setting has these values in its fields and properties.

    A value may be a list of values, or {not: x}, {from: least}, {near: x, within: distance}.
    """
    return all(_fits(getattr(setting, name), value) for name, value in fields.items())


def _fits(value: object, wanted: object) -> bool:
    """Whether a field has a wanted value, in one of the forms that `matches` takes."""
    if isinstance(wanted, list):
        return value in wanted
    if not isinstance(wanted, dict):
        return value == wanted
    if "not" in wanted:
        return value != wanted["not"]
    if "from" in wanted:
        return value > wanted["from"] - 1e-9
    return abs(value - wanted["near"]) < wanted["within"]


def equal_in(setting: Setting, other: Setting, names: Iterable[str]) -> bool:
    """Whether two settings have the same values in these fields.

    Adaptive solvers choose their own number of steps, which counts as equal to any other.
    """
    for name in names:
        value = getattr(setting, name)
        other_value = getattr(other, name)
        if value == other_value:
            continue
        if name == "sigma" and math.isclose(value, other_value, rel_tol=ROUNDING):
            continue
        if name == "steps" and (setting.adaptive or other.adaptive):
            continue
        return False
    return True


def pairs(join: Join, networks: list[Setting]) -> list[Pair]:
    """The pairs of settings, with blank attack, that a join compares, its first side first.

    A join of one side pairs every setting with itself.
    """
    a = select(join.a, networks)
    if join.along:
        joined = _along(join, a)
    elif join.b is None:
        joined = [(setting, setting) for setting in a]
    elif join.a == join.b:
        joined = _sharing(join, combinations(a, 2))
    else:
        joined = _sharing(join, product(a, select(join.b, networks)))
    if join.most_alike:
        joined = _largest(joined, lambda pair: pair[1], _likeness)
    if join.queries:
        most = _largest(joined, _without_queries, lambda pair: pair[1].queries)
        if join.queries == "most":
            return most
        return [pair for pair in joined if pair not in most]
    return joined


def _sharing(join: Join, candidates: Iterable[Pair]) -> list[Pair]:
    """The pairs that share all fields but those in which they may differ."""
    shared = [name for name in Setting._fields if name not in (*join.differ, "recipe")]
    return [(a, b) for a, b in candidates if equal_in(a, b, shared)]


def _along(join: Join, networks: list[Setting]) -> list[Pair]:
    """(more, less): settings that differ in one field, and in the name of the recipe."""
    may_differ = {join.along, "recipe", *join.instead_of}
    shared = [name for name in Setting._fields if name not in may_differ]
    shared += join.instead_of.values()
    joined = []
    for more in networks:
        group = [setting for setting in networks if equal_in(setting, more, shared)]
        values = sorted({getattr(setting, join.along) for setting in group})
        steps = _steps(values, join.which)
        for less in group:
            if (getattr(less, join.along), getattr(more, join.along)) in steps:
                joined.append((more, less))
    return joined


def _steps(values: list, which: str) -> list[tuple]:
    """(less, more) for each step through these ascending values; which: as in `Join`."""
    if which == "longest":
        return [(less, values[-1]) for less in values[:-1]]
    ends = [(values[0], values[-1])] if len(values) > 1 else []
    neighbours = [step for step in pairwise(values) if step not in ends]
    return {"all": neighbours + ends, "ends": ends, "between": neighbours}[which]


def _likeness(pair: Pair) -> int:
    """How many of blocks, solver, steps and T the two settings share."""
    a, b = pair
    return sum(getattr(a, name) == getattr(b, name) for name in LIKENESS)


def _without_queries(pair: Pair) -> Pair:
    """The pair as if each side had been queried once."""
    a, b = pair
    return a._replace(queries=1), b._replace(queries=1)


def _largest(joined: list[Pair], group_of: Callable, size_of: Callable) -> list[Pair]:
    """In each group of pairs, those of the largest size."""
    largest: dict = {}
    for pair in joined:
        group = group_of(pair)
        largest[group] = max(largest.get(group, 0), size_of(pair))
    return [pair for pair in joined if size_of(pair) == largest[group_of(pair)]]
