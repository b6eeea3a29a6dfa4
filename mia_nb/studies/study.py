"""The file format of a study, and reading it.

A study is a YAML file. Its `claims` hold, by name, the entries of a `Claim`. The `joins` of a claim
say which settings are set against each other (`Join`), and the entries of `compare` how
(`Contrast`). `models` are the models that the study has; without it, any. `decide` selects the
settings that decide. `selections` only holds selections that the rest of the file refers to.
`printed`, in the studies that come with the package, names the papers' tables.

A selection {field: value} asks for fields or properties of a `Setting`; a value may be a list of
values, or {not: x}, {from: least}, {near: x, within: distance}. In a list of selections the first
that matches any setting counts.

The claims of a published study have two verdicts: on exactly the settings and attacks of the
paper's tables, and on all that was run ("extended").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mia_nb._yaml import read_yaml_file
from mia_nb.checks import hint, instance, shown
from mia_nb.metrics.curve import rate_of
from mia_nb.studies.settings import Setting

FOLDER = Path(__file__).parent
WEIGHTS = (1, -1, -1, 1)  # of the sides of a contrast: a - b, and of `beyond` minus the same
T = TypeVar("T", bound=NamedTuple)
Selections = list[dict]  # of which the first that matches any setting counts


class Contrast(NamedTuple):
    """A comparison of two settings: an entry of `compare`, and with `sides` what it asks of a pair.

    Parameters:
        part: its group in the evidence
        compared: how the evidence calls it; like `part` it may have {a}, {b}, {attack}, {other}
            (the attack on b) and {attacks}, as in "{attacks}, {a.label}"
        attacks: the name of an attack, or a list of names, each on both sides; a list of pairs, the
            first on a and the second on b; "each": every attack that both sides have, one by one;
            "each of several": the same where there are two or more; "in order under b": two attacks
            on a, of which the first is surely stronger on b; absent: the strongest of all attacks
            that both sides have
        metric: auc, tpr (at the smallest FPR that all settings can measure), test_accuracy, gap
            (train minus test accuracy)
        needed: false for a comparison that is reported and decides nothing
        above: the claim wants the value above this
        margin: the claim wants the value within +-margin, in place of `above`
        ratio: a over b, in place of a minus b
        swap: b minus a
        minus: "chance", or "curve" (`below_curve.py`), in place of b
        beyond: {field: value}; the difference between the two settings with these fields replaced
            is subtracted (not beside `minus`)
        tpr: false: no TPR is reported beside an AUC that decides
        verdict: "as printed" or "extended": only that verdict uses it; absent: both do
        sides: what is compared, not an entry of a file; a side is one setting, or the settings of
            several attacks on a network, of which the strongest counts
    """

    part: str
    compared: str = ""
    attacks: list | str = ""
    metric: str = "auc"
    needed: bool = True
    above: float = 0.0
    margin: float = 0.0
    ratio: bool = False
    swap: bool = False
    minus: str = ""
    beyond: dict = {}  # noqa: RUF012 - never changed
    tpr: bool = True
    verdict: str = ""
    sides: tuple[tuple[Setting, ...], ...] = ()

    @property
    def first(self) -> Setting:
        """The first setting of the first side."""
        return self.sides[0][0]

    @property
    def settings(self) -> set[Setting]:
        """Every setting on a side."""
        return {setting for side in self.sides for setting in side}

    def weighted(self, values: list[Any]) -> Any:
        """The weighted sum of the sides' values, numbers or arrays, minus the value at chance where
        the contrast is with chance.
        """
        total = sum(weight * value for weight, value in zip(WEIGHTS, values, strict=False))
        if self.minus != "chance":
            return total
        chance = 0.5 if self.metric == "auc" else rate_of(self.metric)
        return total - chance

    @property
    def possible(self) -> tuple[float, float]:
        """The smallest and the largest weighted sum that there can be."""
        low, high = (-1.0, 1.0) if self.metric == "gap" else (0.0, 1.0)
        values_of_smallest = []
        values_of_largest = []
        for weight in WEIGHTS[: len(self.sides)]:
            values_of_smallest.append(low if weight > 0 else high)
            values_of_largest.append(high if weight > 0 else low)
        return self.weighted(values_of_smallest), self.weighted(values_of_largest)

    def outcome(self, ends: tuple[float, float], simultaneous: tuple[float, float]) -> str:
        """ "for" or "against" the claim, or "open".

        Parameters:
            ends: (low, high) of the interval at the level asked for, which decides "for"
            simultaneous: (low, high) of the interval that holds for all comparisons jointly, which
                decides "against"; NaN decides nothing
        """
        low, high = ends
        simultaneous_low, simultaneous_high = simultaneous
        if self.margin:
            holds = -self.margin < low and high < self.margin
            fails = simultaneous_low > self.margin or simultaneous_high < -self.margin
        else:
            holds = low > self.above
            fails = simultaneous_high < self.above
        if holds:
            return "for"
        # A model at chance has TPR = FPR, and no TPR exceeds 1: a claimed ratio above 1 / FPR
        # cannot be reached, so a smaller one is not evidence against the claim.
        out_of_reach = self.ratio and self.above * rate_of(self.metric) > 1 - 1e-9
        return "against" if fails and not out_of_reach else "open"

    def row(
        self, value: float, ends: tuple[float, float], simultaneous: tuple[float, float]
    ) -> dict[str, object]:
        """One row of `compare.compare`, without the claim: a value of the contrast with its
        intervals, as in `outcome`.
        """
        return {
            "part": self.part,
            "compared": self.compared,
            "metric": f"ratio of {self.metric}" if self.ratio else self.metric,
            "needed": self.needed,
            "value": float(value),
            "low": ends[0],
            "high": ends[1],
            "simultaneous_low": simultaneous[0],
            "simultaneous_high": simultaneous[1],
            "margin": self.margin,
            "outcome": self.outcome(ends, simultaneous),
        }


class Join(NamedTuple):
    """Which settings are set against each other.

    Parameters:
        compare: the comparisons, each of which is made for every pair of settings
        a: selections; without `b` and `along`, attacks on one setting are compared
        b: selections; a setting of b is paired with one of a where they share all fields but those
            in `differ`, the name of the recipe and the attack
        differ: fields in which a and b may differ; absent: all
        along: a field; settings of a that share all others are compared along it, the one with the
            larger value first
        instead_of: {field: property}: settings along the way share the property, and may differ in
            the field
        which: the steps along the way: "all" (neighbours, and the last with the first), "ends" (the
            last with the first), "between" (neighbours), or "longest" (the last with every other)
        most_alike: true: each setting of b is paired only with those of a that are most like it
        queries: "most": only pairs whose second setting was queried most often; "fewer": only the
            others
    """

    compare: list[Contrast]
    a: Selections
    b: Selections | None = None
    differ: list[str] = list(Setting._fields)  # noqa: RUF012 - never changed
    along: str = ""
    instead_of: dict[str, str] = {}  # noqa: RUF012 - never changed
    which: str = "all"
    most_alike: bool = False
    queries: str = ""


class Claim(NamedTuple):
    """A claim.

    Parameters:
        sentence: what is claimed
        needs: what must be run to decide it
        joins: what is compared
        parts: of comparisons; while one of these was not run, the claim cannot hold
        equal: true where risks of different models are compared, which says less at unequal
            accuracy
        matched: "test_acc" or "gap", at equal values of which comparisons are repeated where there
            are checkpoints
        design_check: the design has failed where an AUC minus 1/2 surely lies below this, all
            comparisons taken jointly
        remarks: names of functions of `evidence.py` that add to the evidence
        decided_by: the name of a function of `evidence.py`, for a claim that no join decides
        quote: the paper's own words ("…" where words are left out); a remark of this package on a
            published study has none
        place: where the paper's words stand
        extends: what the extended verdict asks for beyond the paper's comparisons
        proved: the condition under which the paper proves the claim, rather than measures it
    """

    sentence: str
    needs: str
    joins: list[Join] = []  # noqa: RUF012 - never changed
    parts: tuple[str, ...] = ()
    equal: bool = False
    matched: str = ""
    design_check: float = -1.0
    remarks: tuple[str, ...] = ()
    decided_by: str = ""
    quote: str = ""
    place: str = ""
    extends: str = ""
    proved: str = ""


class Study(NamedTuple):
    """A study's file; its entries are explained on top of this module."""

    claims: dict[str, Claim]
    models: tuple[str, ...] = ()
    decide: dict = {}  # noqa: RUF012 - never changed
    selections: Any = None
    printed: dict = {}  # noqa: RUF012


def load(study: str | Path, verdict: str = "extended") -> Study:
    """A study, with the comparisons that a verdict asks for.

    Parameters:
        study: the name of one that comes with the package, which is read once; or the path of a
            YAML file, which is read each time, since it may be edited.
        verdict: "as printed" or "extended".
    """
    if str(study).endswith(".yaml"):
        return _read(Path(study), verdict)
    path = FOLDER / f"{study}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in FOLDER.glob("*.yaml"))
        raise ValueError(f"no study {str(study)!r}: wanted a YAML file or one of {known}")
    return _shipped(path, verdict)


def _read(path: Path, verdict: str) -> Study:
    """The study of a YAML file; ValueError of one line where it is none."""
    try:
        study = _record(Study, "a study", read_yaml_file(path))
        claims = {}
        for name, entries in instance("claims", study.claims, dict).items():
            claims[name] = _claim(f"claim {name}", entries, verdict)
            _check_fields(f"claim {name}", _fields(claims[name]))
        _check_fields("decide", study.decide)
    except (AttributeError, TypeError, ValueError) as reason:
        raise ValueError(f"{path.name} is no study: {reason}") from None
    return study._replace(claims=claims)


def _record(kind: type[T], what: str, entries: dict) -> T:
    """The record of these entries; ValueError for one that it does not have, and for one missing.

    Parameters:
        kind: the record's class, a named tuple.
        what: the record in words, for the message.
        entries: {field: value}.
    """
    known = [name for name in kind._fields if name != "sides"]  # which is no entry of a file
    if not isinstance(entries, dict):
        raise ValueError(f"{what} is {shown(entries)}: wanted a mapping of {', '.join(known)}")
    for name in entries:
        if name not in known:
            raise ValueError(
                f"{what} has no {name!r}{hint(name, known)}; it has {', '.join(known)}"
            )
    for name in known:
        if name not in kind._field_defaults and name not in entries:
            raise ValueError(f"{what} lacks {name!r}")
    return kind(**entries)


def _check_fields(what: str, names: Iterable[str]) -> None:
    """ValueError for a field or property that no setting has."""
    for name in names:
        if not hasattr(Setting(), name):
            known = Setting._fields
            raise ValueError(
                f"{what}: a setting has no {name!r}{hint(name, known)}; it has {', '.join(known)}"
            )


_shipped = cache(_read)  # a third of a second each, and nothing changes what was read


def _claim(name: str, entries: dict, verdict: str) -> Claim:
    """A claim from its entries; ValueError for one that no claim, join or comparison has, and for
    two that exclude each other.
    """
    claim = _record(Claim, name, entries)
    joins = []
    for join_entries in instance(f"joins of {name}", claim.joins, list):
        join = _record(Join, f"a join of {name}", join_entries)
        wanted = []
        for comparison in instance(f"compare of {name}", join.compare, list):
            contrast = _record(Contrast, f"a comparison of {name}", comparison)
            if contrast.minus and contrast.beyond:
                raise ValueError(f"{contrast.part} has minus and beyond: wanted one of them")
            if contrast.verdict in ("", verdict):
                wanted.append(contrast)
        joins.append(join._replace(a=_as_list(join.a), b=_as_list(join.b), compare=wanted))
    return claim._replace(joins=joins)


def _as_list(selection: dict | Selections | None) -> Selections | None:
    """The selections of a side, of which a file may give a single one without a list."""
    return [selection] if isinstance(selection, dict) else selection


def _fields(claim: Claim) -> Iterator[str]:
    """The fields and properties of settings that a claim's joins name."""
    for join in claim.joins:
        for selection in (*join.a, *(join.b or [])):
            yield from selection
        if join.along:
            yield join.along
        yield from (*join.differ, *join.instead_of, *join.instead_of.values())
        for contrast in join.compare:
            yield from contrast.beyond
