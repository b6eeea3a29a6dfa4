"""Which settings a claim compares: the table of settings joined with itself."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import combinations, pairwise, product

from mia_nb.studies.setting import NOISE_IN, Setting

ROUNDING = 1e-3  # of sigma, where k was not given in full
LIKENESS = ("blocks", "method", "steps", "T")


def select(wanted: dict | list, networks: list[Setting]) -> list[Setting]:
    """The settings that match {field: value}; of a list of such records, those that match the first
    record with any match.

    A value may be a list of values, or {not: x}, {from: least}, {near: x, within: distance}.
    """
    for fields in wanted if isinstance(wanted, list) else [wanted]:
        if chosen := [setting for setting in networks if matches(setting, fields)]:
            return chosen
    return []


def matches(setting: Setting, fields: dict) -> bool:
    """Whether the setting has these values in its fields and properties; ValueError for others."""
    if strange := [name for name in fields if not hasattr(setting, name)]:
        raise ValueError(
            f"a setting has no {', '.join(strange)}: wanted {', '.join(setting._fields)}"
        )
    return all(_fits(getattr(setting, name), value) for name, value in fields.items())


def _fits(value: object, wanted: object) -> bool:
    """Whether a field has a wanted value, in one of the forms that `select` takes."""
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


def pairs(join: dict, networks: list[Setting], selections: dict) -> list[tuple[Setting, Setting]]:
    """The settings (attack left blank) that a join sets against each other, its first side first.

    A join of one side alone sets every setting against itself.
    """
    a = side_settings(join["a"], networks, selections)
    if "along" in join:
        matched = _along(join, a)
    elif "b" not in join:
        matched = [(setting, setting) for setting in a]
    else:
        b = select(join.get("only_b", {}), side_settings(join["b"], networks, selections))
        differ = join.get("differ", Setting._fields)
        shared = [name for name in Setting._fields if name not in differ]
        candidates = combinations(a, 2) if join["a"] == join["b"] else product(a, b)
        matched = [pair for pair in candidates if equal_in(*pair, shared)]
    if join.get("most_alike"):
        matched = _most_alike(matched)
    return _by_queries(matched, join["queries"]) if "queries" in join else matched


def side_settings(
    side: dict | list | str, networks: list[Setting], selections: dict
) -> list[Setting]:
    """The settings of a side of a join: those that it selects, or `noiseless` ones."""
    if side == "noiseless":
        return noiseless(networks, selections)
    return select(side, networks)


def _along(join: dict, networks: list[Setting]) -> list[tuple[Setting, Setting]]:
    """(more, less): settings that differ in one field, and in those that the join leaves free."""
    field = join["along"]
    instead = join.get("instead_of", {})
    free = {field, *join.get("but", ()), *instead}
    shared = [name for name in Setting._fields if name not in free] + [*instead.values()]
    matched = []
    for more in networks:
        group = [setting for setting in networks if equal_in(setting, more, shared)]
        values = sorted({getattr(setting, field) for setting in group})
        steps = _steps(values, join.get("which", "all"))
        for less in group:
            if (getattr(less, field), getattr(more, field)) in steps:
                matched.append((more, less))
    return matched


def _steps(values: list, which: str) -> list[tuple]:
    """(less, more): neighbours and the two ends, or a part of these; "longest": all and the last.

    which: "all", "ends", "between" or "longest".
    """
    ends = [(values[0], values[-1])] if len(values) > 1 else []
    neighbours = [step for step in pairwise(values) if step not in ends]
    if which == "longest":
        return [(less, values[-1]) for less in values[:-1]]
    return {"all": neighbours + ends, "ends": ends, "between": neighbours}[which]


def _most_alike(matched: list[tuple]) -> list[tuple]:
    """Of the pairs with the same second side those whose first side shares most of blocks, solver,
    steps and T with it.
    """

    def likeness(first: Setting, second: Setting) -> int:
        return sum(getattr(first, name) == getattr(second, name) for name in LIKENESS)

    most: dict[Setting, int] = {}
    for first, second in matched:
        most[second] = max(most.get(second, 0), likeness(first, second))
    return [pair for pair in matched if likeness(*pair) == most[pair[1]]]


def _by_queries(matched: list[tuple], which: str) -> list[tuple]:
    """Of pairs that differ in queries alone the one with the most ("most"), or all others
    ("fewer").
    """

    def networks(pair: tuple) -> tuple:
        return tuple(setting._replace(queries=1) for setting in pair)

    most: dict[tuple, int] = {}
    for pair in matched:
        most[networks(pair)] = max(most.get(networks(pair), 0), pair[1].queries)
    chosen = []
    for pair in matched:
        has_most = pair[1].queries == most[networks(pair)]
        if has_most == (which == "most"):
            chosen.append(pair)
    return chosen


def noiseless(networks: list[Setting], selections: dict) -> list[Setting]:
    """Networks of sigma 0, most like the SDENets of sigma 2, and these with their noise off in
    training and when queried.
    """
    built = select(selections["sdenets"], networks)
    zero = select({"model": "sdenet", "k": 0, "blocks": 1}, networks)
    candidates = zero or select(selections["odenets"], networks)
    nearest = [a for a, _ in _most_alike(list(product(candidates, built)))]
    nearest = nearest or zero or select(selections["studied"], networks)
    return list(dict.fromkeys([*nearest, *select({"noise_in": "neither"}, built)]))


def noise_not_run(networks: list[Setting], selections: dict) -> list[str]:
    """The places of noise, in words, in which no network was run. A network of sigma 0 that is
    otherwise like those of sigma 2 counts as one with its noise off.
    """
    built = select(selections["sdenets"], networks)
    run = {setting.noise_in for setting in built}
    solvers = {(setting.method, setting.steps) for setting in noiseless(networks, selections)}
    if not built or any((setting.method, setting.steps) in solvers for setting in built):
        run.add("neither")
    return [where for where in NOISE_IN.values() if where not in run]
