"""Every target in turn against the references that its design allows."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable
from difflib import get_close_matches

import numpy as np

from mia_nb.attacks.inputs import combination
from mia_nb.attacks.learned import shokri, song_mittal
from mia_nb.attacks.margins import log_p, over_queries
from mia_nb.attacks.registry import ATTACKS, Attack
from mia_nb.checks import checked, instance, row_numbers
from mia_nb.types import Scores, Signals

PLAN = (
    "input_dropout",
    "augment",
    "mask_scope",
    "per_step",
    "seed",
    "noise",
    "temperature",
)  # with the queries, how one asks
UNSAID = {"mask_scope": "query", "per_step": False}  # what signals mean that do not say


@checked
def score(
    attack: str | Attack,
    target: Signals,
    references: Signals | None = None,
    *,
    targets: int | Iterable[int] | None = None,
    keep_mate: bool = False,
) -> Scores:
    """One attack on every target model in turn (rows `targets`, default all), larger = more likely a member.

    references: the pool they are taken from, None = the target's own. Every row whose mask on the audited columns, those that
    all models saw aside, equals the target's or its exact complement is no reference, whichever pool it is in; keep_mate=True
    drops the equal ones only, which leaks the design. With none left the attack gets references=None. The attack sees all
    columns, Scores only audited ones.
    Where samples lack a side (Bernoulli designs) they score NaN and the share is a flag; the attack's warnings are flags too,
    as are answers after every time step, and targets and references on two scales or asked by two plans.
    References are read block by block where they lie, so that memory beyond them does not grow with their number; shokri and
    song_mittal learn from a copy of what they read.
    Raises ValueError for an unknown attack, hidden membership, references that saw no or every audited sample, and target and
    references that differ in samples or labels (only shokri and song_mittal learn from other samples).
    """
    (
        instance("target", target, Signals),
        references is None or instance("references", references, Signals),
    )
    name, function = find(attack)
    pool = target if references is None else references
    audited = ~target.population
    targets = row_numbers("targets", targets, target.shape[0])
    kept = _reference_rows(function, target, pool, targets, keep_mate)
    options = dict(getattr(function, "keywords", {}))
    plain = getattr(function, "func", function)
    tolerated = {
        option: value
        for option, value in (
            ("missing", "nan"),
            ("allow_unequal", True),
        )  # a design that leaves gaps is stamped, not refused
        if option in inspect.signature(plain).parameters and option not in options
    }
    value = np.empty((len(targets), audited.sum()))
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always", UserWarning)
        for row, t, others in zip(value, targets, kept, strict=True):
            chosen = pool.select(models=others) if len(others) else None
            row[:] = function(target.select(models=[t]).hide(), chosen, **tolerated)[audited]
    designs = _designs(pool, kept)
    flags = (
        _design_flags(pool, designs, keep_mate)
        + _scale_flags(target, pool)
        + _plan_flags(target, pool)
    )
    flags += [words for words in _told(raised) if words not in flags]
    if unscored := np.isnan(value).mean() if value.size else 0:
        flags.append(f"{unscored:.2%} of the samples unscored: no reference on one side")
    member = target.member[targets][:, audited]
    accuracy, loss = _by_membership(target, targets, member, audited)
    attack_name = getattr(plain, "__name__", name)
    return Scores(
        value=value,
        member=member,
        targets=targets,
        pair=_pair_numbers(target.member[targets][:, audited & ~target.member.all(0)]),
        accuracy=accuracy,
        loss=loss,
        info={
            "attack": name,
            "options": options,
            "k": min((k for k, _ in designs), default=0),
            "queries": target.shape[1],
            "draws": target.draws,
            "combine": combination(attack_name, target.draws, options.get("combine")),
            "keys": {"target": target.info.get("pool"), "references": pool.info.get("pool")},
            "disjoint": references is not None and not _shared_masks(target, targets, pool),
            "flags": flags,
            **{said: target.info[said] for said in ("split",) if said in target.info},
        },
    )


@checked
def find(attack: str | Attack) -> tuple[str, Attack]:
    """The attack's word in ATTACKS, or its own name with the options bound to it, and the function; ValueError if unknown."""
    if isinstance(attack, str):
        if attack not in ATTACKS:
            near = get_close_matches(attack, ATTACKS, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"unknown attack {attack!r}: {hint}known are {', '.join(ATTACKS)}")
        return attack, ATTACKS[attack]
    instance("attack", attack, Callable)
    plain, options = getattr(attack, "func", attack), getattr(attack, "keywords", {})
    for name, known in ATTACKS.items():
        if plain is getattr(known, "func", known) and options == getattr(known, "keywords", {}):
            return name, attack
    bound = ", ".join(f"{option}={value!r}" for option, value in options.items())
    name = getattr(plain, "__name__", type(plain).__name__)
    return f"{name}({bound})" if bound else name, attack


def _reference_rows(function, target, pool, targets, keep_mate) -> list[np.ndarray]:
    """For each target, the rows of the pool that may serve as its references."""
    if target.hidden or pool.hidden:
        raise ValueError(
            "score needs the membership of targets and references, but member is None: score it with the full signals"
        )
    audited = ~target.population
    if not np.array_equal(target.labels, pool.labels):
        if getattr(function, "func", function) not in (shokri, song_mittal):
            raise ValueError(
                f"target ({target.labels.size} samples) and references ({pool.labels.size}) differ in samples or labels: "
                "query both on the same images (only shokri and song_mittal learn from other samples)"
            )
        audited = ~pool.population
        kept = [np.arange(pool.shape[0])] * len(targets)
    else:
        told, kept = audited & ~(target.member.all(0) & pool.member.all(0)), []
        theirs = _masks(pool.member, told)
        for mask, side in _masks(target.member[targets], told):
            strangers = [
                m
                for m, (other, its) in enumerate(theirs)
                if other != mask or (keep_mate and its != side)
            ]
            kept.append(np.array(strangers, int))
    blind = [
        m for m, row in enumerate(pool.member) if (seen := row[audited]).all() or not seen.any()
    ]
    if any(np.isin(blind, rows).any() for rows in kept):
        raise ValueError(
            f"reference models {blind} saw none or all of the audited samples: they tell nothing, leave them out"
        )
    return kept


def _masks(member: np.ndarray, told: np.ndarray) -> list[tuple[bytes, bytes]]:
    """(what a mask on the columns `told` and its complement have in common, which of the two it is) of each row.

    A sample that all models saw, as all but the canaries, tells mates from strangers no more than a population's.
    """
    rows = (row[told] for row in member)
    return [(np.packbits(row ^ row[:1]).tobytes(), row[:1].tobytes()) for row in rows]


def _shared_masks(target: Signals, targets: np.ndarray, pool: Signals) -> bool:
    """Whether a model of the pool was trained on the members of a target, or on exactly the others."""
    ours, theirs = target.member[:, ~target.population], pool.member[:, ~pool.population]
    if ours.shape[1] != theirs.shape[1]:
        return False
    told = ~(ours.all(0) & theirs.all(0))
    known = {mask for mask, _ in _masks(theirs, told)}
    return any(mask in known for mask, _ in _masks(ours[targets], told))


def _designs(pool: Signals, kept: list[np.ndarray]) -> list[tuple[int, bool]]:
    """For each target: its references a side, the median over audited samples of the smaller of IN and OUT (in pairs, the
    pairs that are left); and whether their IN counts differ between samples."""
    audited, found = ~pool.population, []
    everyone = np.add.reduce(pool.member, axis=0, dtype=np.int64)
    for rows in kept:
        n_in = (everyone - pool.member[np.setdiff1d(np.arange(pool.shape[0]), rows)].sum(0))[
            audited
        ]
        k = int(np.median(np.minimum(n_in, len(rows) - n_in))) if len(rows) else 0
        found.append((k, bool(np.ptp(n_in))))
    return found


def _design_flags(pool, designs, keep_mate) -> list[str]:
    if keep_mate:
        return ["mate kept: the design leaks membership"]
    if np.ptp(np.add.reduce(pool.member, axis=0, dtype=np.int64)[~pool.population]):
        return []  # Bernoulli, or other samples: counts vary, but not with one target's membership
    return (
        ["balanced design without pairs: reference counts leak membership"]
        if any(uneven for _, uneven in designs)
        else []
    )


def _told(raised: list[warnings.WarningMessage]) -> list[str]:
    """What the attack warned of, each once; other libraries' warnings are passed on."""
    for warning in raised:
        if warning.category is not UserWarning:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return list(
        dict.fromkeys(str(warning.message) for warning in raised if warning.category is UserWarning)
    )


def _scale_flags(target, pool) -> list[str]:
    """Answers of spiking networks read out in two ways differ in scale, unless both sides were aligned."""
    ways = [signals.info.get("readout") for signals in (target, pool)]
    if None in ways or ways[0] == ways[1] or "align" in target.info:
        return []
    return [f"targets read out by {ways[0]}, references by {ways[1]}: two scales; align them"]


def _plan_flags(target, pool) -> list[str]:
    """References show how models answer the target's questions only where they were asked the same ones."""
    flags = (
        ["answers after every time step: a stronger attacker"] if target.draws == "steps" else []
    )
    plans = [UNSAID | signals.info | {"queries": signals.shape[1]} for signals in (target, pool)]
    for name in ("queries", *PLAN):
        ours, theirs = (plan.get(name) for plan in plans)
        said = all(name in plan for plan in plans)
        if said and (ours or None) != (theirs or None):  # None, False and 0 all say no
            flags.append(
                f"targets asked with {name} {ours}, references with {theirs}: not one plan"
            )
    return flags


def _by_membership(target, targets, member, audited) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy and mean loss of each target, (targets, 2): on members, on non-members; NaN for the loss of aligned margins."""
    out = np.full((2, len(targets), 2), np.nan)
    for i, t in enumerate(targets):
        one = target.select(models=[t])
        values = (
            (one.correct[0],) if "align" in target.info else (one.correct[0], -log_p(one.margin[0]))
        )
        for kind, cube in enumerate(values):
            per_sample = over_queries(cube[None], target.draws)[0, audited]
            for column, side in enumerate((member[i], ~member[i])):
                if side.any():
                    out[kind, i, column] = per_sample[side].mean()
    return out[0], out[1]


def _pair_numbers(member: np.ndarray) -> np.ndarray:
    """One number for a mask and its complement, in order of appearance."""
    numbers: dict[bytes, int] = {}
    canonical = member ^ member[:, :1]
    return np.array(
        [numbers.setdefault(row.tobytes(), len(numbers)) for row in canonical], dtype=int
    )
