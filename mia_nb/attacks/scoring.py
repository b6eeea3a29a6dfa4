"""Every target in turn against the references that its design allows."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches

import numpy as np

from mia_nb.attacks.inputs import combination
from mia_nb.attacks.learned import shokri, song_mittal
from mia_nb.attacks.margins import log_p, over_queries
from mia_nb.attacks.registry import ATTACKS, Attack
from mia_nb.types import Scores, Signals

PER_MODEL = ("margin", "entropy", "modified_entropy", "correct", "top_log_p", "member")
PLAN = ("input_dropout", "augment", "mask_scope", "per_step", "seed", "noise", "temperature")  # with the queries, how one asks
UNSAID = {"mask_scope": "query", "per_step": False}  # what signals mean that do not say


def score(
    attack: str | Attack,
    target: Signals,
    references: Signals | None = None,
    *,
    targets: int | Iterable[int] | None = None,
    keep_mate: bool = False,
) -> Scores:
    """One attack on every target model in turn (rows `targets`, default all), larger = more likely a member.

    references: the pool they are taken from, None = the target's own. Every row whose mask on the audited columns equals the
    target's or its exact complement is no reference, whichever pool it is in; keep_mate=True drops the equal ones only, which
    leaks the design. With none left the attack gets references=None. The attack sees all columns, Scores only audited ones.
    Where samples lack a side (Bernoulli designs) they score NaN and the share is a flag; the attack's warnings are flags too,
    as are answers after every time step, and targets and references on two scales or asked by two plans.
    Raises ValueError for an unknown attack, hidden membership, references that saw no or every audited sample, and target and
    references that differ in samples or labels (only shokri and song_mittal learn from other samples).
    """
    name, function = find(attack)
    pool = target if references is None else references
    audited = ~target.population
    targets = (
        np.arange(len(target.margin))
        if targets is None
        else np.asarray(list(targets) if isinstance(targets, Iterable) else [targets], int)
    )
    kept = _reference_rows(function, target, pool, targets, keep_mate)
    options = dict(getattr(function, "keywords", {}))
    plain = getattr(function, "func", function)
    tolerated = {
        option: value
        for option, value in (("missing", "nan"), ("allow_unequal", True))  # a design that leaves gaps is stamped, not refused
        if option in inspect.signature(plain).parameters and option not in options
    }
    value = np.empty((len(targets), audited.sum()))
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always", UserWarning)
        for row, t, chosen in zip(value, targets, _references(pool, kept), strict=True):
            row[:] = function(replace(target.select(models=[t]), member=None), chosen, **tolerated)[audited]
    flags = _design_flags(pool, kept, keep_mate) + _scale_flags(target, pool) + _plan_flags(target, pool)
    for warning in raised:
        if warning.category is not UserWarning:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif str(warning.message) not in flags:
            flags.append(str(warning.message))
    if unscored := np.isnan(value).mean() if value.size else 0:
        flags.append(f"{unscored:.2%} of the samples unscored: no reference on one side")
    member = target.member[targets][:, audited]
    accuracy, loss = _by_membership(target, targets, member, audited)
    attack_name = getattr(plain, "__name__", name)
    return Scores(
        value=value,
        member=member,
        targets=targets,
        pair=_pair_numbers(member),
        accuracy=accuracy,
        loss=loss,
        info={
            "attack": name,
            "options": options,
            "k": min((_a_side(pool, rows) for rows in kept), default=0),
            "queries": target.margin.shape[1],
            "draws": target.draws,
            "combine": combination(attack_name, target.draws, options.get("combine")),
            "keys": {"target": target.info.get("pool"), "references": pool.info.get("pool")},
            "disjoint": references is not None and not _shared_masks(target.member[targets][:, audited], pool),
            "flags": flags,
        },
    )


def find(attack: str | Attack) -> tuple[str, Attack]:
    """The attack's word in ATTACKS, or its own name with the options bound to it, and the function; ValueError if unknown."""
    if isinstance(attack, str):
        if attack not in ATTACKS:
            near = get_close_matches(attack, ATTACKS, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"unknown attack {attack!r}: {hint}known are {', '.join(ATTACKS)}")
        return attack, ATTACKS[attack]
    plain, options = getattr(attack, "func", attack), getattr(attack, "keywords", {})
    for name, known in ATTACKS.items():
        if plain is getattr(known, "func", known) and options == getattr(known, "keywords", {}):
            return name, attack
    bound = ", ".join(f"{option}={value!r}" for option, value in options.items())
    name = getattr(plain, "__name__", type(plain).__name__)
    return f"{name}({bound})" if bound else name, attack


def _reference_rows(function, target, pool, targets, keep_mate) -> list[np.ndarray]:
    """For each target, the rows of the pool that may serve as its references."""
    if target.member is None or pool.member is None:
        raise ValueError(
            "score needs the membership of targets and references, but member is None: score it with the full signals"
        )
    if wrong := [int(t) for t in targets if not 0 <= t < len(target.margin)]:
        raise ValueError(f"targets {wrong} do not exist: the signals hold models 0..{len(target.margin) - 1}")
    audited = ~target.population
    if not np.array_equal(target.labels, pool.labels):
        if getattr(function, "func", function) not in (shokri, song_mittal):
            raise ValueError(
                f"target ({target.labels.size} samples) and references ({pool.labels.size}) differ in samples or labels: "
                "query both on the same images (only shokri and song_mittal learn from other samples)"
            )
        mask = pool.member[:, ~pool.population]
        kept = [np.arange(len(mask))] * len(targets)
    else:
        mask = pool.member[:, audited]
        kept = []
        for own in target.member[targets][:, audited]:
            drop = (mask == own).all(1)
            if not keep_mate:
                drop |= (mask != own).all(1)
            kept.append(np.flatnonzero(~drop))
    blind = np.flatnonzero(mask.all(1) | ~mask.any(1))
    if len(blind) and any(np.isin(blind, rows).any() for rows in kept):
        raise ValueError(
            f"reference models {blind.tolist()} saw none or all of the audited samples: they tell nothing, leave them out"
        )
    return kept


def _shared_masks(masks: np.ndarray, pool: Signals) -> bool:
    """Whether a model of the pool was trained on the members of a target, or on exactly the others."""
    theirs = pool.member[:, ~pool.population]
    same = masks.shape[1] == theirs.shape[1]
    return same and any(((theirs == own).all(1) | (theirs != own).all(1)).any() for own in masks)


def _a_side(pool: Signals, rows: np.ndarray) -> int:
    """References a side: the median over audited samples of the smaller of IN and OUT; in pairs, the pairs that are left."""
    if not len(rows):
        return 0
    n_in = np.count_nonzero(pool.member[rows], axis=0)[~pool.population]
    return int(np.median(np.minimum(n_in, len(rows) - n_in)))


def _references(pool: Signals, kept: list[np.ndarray]) -> Iterator[Signals | None]:
    """pool.select(models=rows) for each of `kept`, or None for no rows, without copying the whole cube every time.

    From one target to the next few rows change; only those are overwritten, in the record that the last target was given.
    """
    current, chosen = np.array([], int), None
    for rows in kept:
        if not len(rows):
            yield None
            continue
        if len(rows) != len(current):
            chosen = pool.select(models=rows)
        else:
            changed = np.flatnonzero(rows != current)
            for name in PER_MODEL:
                getattr(chosen, name)[changed] = getattr(pool, name)[rows[changed]]
        current = rows
        yield chosen


def _design_flags(pool, kept, keep_mate) -> list[str]:
    if keep_mate:
        return ["mate kept: the design leaks membership"]
    audited = ~pool.population
    if np.ptp(np.count_nonzero(pool.member, axis=0)[audited]):
        return []  # Bernoulli, or other samples: counts vary, but not with one target's membership
    for rows in kept:
        if np.ptp(np.count_nonzero(pool.member[rows], axis=0)[audited]):
            return ["balanced design without pairs: reference counts leak membership"]
    return []


def _scale_flags(target, pool) -> list[str]:
    """Answers of spiking networks read out in two ways differ in scale, unless both sides were aligned."""
    ways = [signals.info.get("readout") for signals in (target, pool)]
    if None in ways or ways[0] == ways[1] or "align" in target.info:
        return []
    return [f"targets read out by {ways[0]}, references by {ways[1]}: two scales; align them"]


def _plan_flags(target, pool) -> list[str]:
    """References show how models answer the target's questions only where they were asked the same ones."""
    flags = ["answers after every time step: a stronger attacker"] if target.draws == "steps" else []
    plans = [UNSAID | signals.info | {"queries": signals.margin.shape[1]} for signals in (target, pool)]
    for name in ("queries", *PLAN):
        ours, theirs = (plan.get(name) for plan in plans)
        said = all(name in plan for plan in plans)
        if said and (ours or None) != (theirs or None):  # None, False and 0 all say no
            flags.append(f"targets asked with {name} {ours}, references with {theirs}: not one plan")
    return flags


def _by_membership(target, targets, member, audited) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy and mean loss of each target, (targets, 2): on members, on non-members; NaN for the loss of aligned margins."""
    out = np.full((2, len(targets), 2), np.nan)
    for i, t in enumerate(targets):
        values = (target.correct[t],) if "align" in target.info else (target.correct[t], -log_p(target.margin[t]))
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
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in canonical], dtype=int)
