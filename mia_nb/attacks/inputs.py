"""What an attack checks and reduces before it works: options, agreement of target and references, sides, queries."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mia_nb.attacks.margins import COMBINE, Columns, blocks, combine_queries
from mia_nb.types import Signals

LOG_P_ATTACKS = ("attack_p", "rmia", "base")  # work on log p: average the probability over queries
LIKELIHOOD_ATTACKS = (
    "lira",
    "nig",
)  # average the log-likelihood ratio over queries that are no copies of one image
NO_MARGINS = ("vote", "shokri", "song_mittal")  # average what they read off each query


def one_of(option: str, value, allowed: tuple):
    if value not in allowed:
        raise ValueError(f"{option}={value!r} is not one of {', '.join(map(str, allowed))}")


def combination(attack: str, draws: str, combine: str | None = None) -> str:
    """How this attack combines queries: what was asked for, else its default for what the queries are."""
    if combine is not None:
        return combine
    if attack in LOG_P_ATTACKS:
        return "logmeanp"
    if attack in NO_MARGINS:
        return "mean"
    return "llr" if attack in LIKELIHOOD_ATTACKS and draws in ("augment", "steps") else "margin"


def own(target: Signals, attack: str, combine: str | None) -> np.ndarray:
    """(N,) margins of the target after query combination."""
    how = combination(attack, target.draws, combine)
    one_of("combine", how, COMBINE)
    return combine_queries(target.margin, how)[0]


def theirs(references: Signals, attack: str, combine: str | None) -> Columns:
    """(M, N) margins of the references after query combination, which never exist at once."""
    how = combination(attack, references.draws, combine)
    one_of("combine", how, COMBINE)
    return columns(references, "margin").then(lambda margin: combine_queries(margin, how))


def columns(references: Signals, name: str) -> Columns:
    """A field of the references, (M, N); of a cube the columns are (M, Q, part)."""
    models, _, samples = references.shape
    return Columns((models, samples), lambda part: references.cut(name, part))


def per_query(
    target: Signals, references: Signals, attack: str, combine: str | None
) -> list[tuple[np.ndarray, Columns]]:
    """Pairs of margins (N,) and (M, N): one pair a query for combine="llr", one pair of reduced margins otherwise."""
    how = combination(attack, target.draws, combine)
    one_of("combine", how, ("llr", *COMBINE))
    if how != "llr":
        return [(own(target, attack, how), theirs(references, attack, how))]
    models, queries, samples = references.shape
    asked = [
        Columns((models, samples), lambda part, q=q: references.cut("margin", part, q))
        for q in range(queries)
    ]
    return list(zip(target.margin[0], asked, strict=True))


def check(
    attack: str,
    target: Signals,
    references: Signals | None = None,
    *,
    needs_references=False,
    same_samples=True,
):
    """Refuse in one line what no attack can work with."""
    if target.shape[0] != 1:
        raise ValueError(
            f"{attack} takes one target, got {target.shape[0]} models: use attacks.score, or signals.hold_out(m)"
        )
    if references is None or not references.shape[0]:
        if needs_references:
            raise ValueError(
                f"{attack} needs reference models and none are left: train more pairs, or use loss or attack_p"
            )
        return
    if references.hidden:
        raise ValueError(
            f"{attack} needs to know which samples each reference was trained on, but references.member is None"
        )
    if target.shape[1] != references.shape[1]:
        asked = target.shape[1], references.shape[1]
        raise ValueError(
            f"the target was queried {asked[0]} times, the references {asked[1]} times: query both alike"
        )
    if same_samples and not np.array_equal(target.labels, references.labels):
        sizes = target.labels.size, references.labels.size
        raise ValueError(
            f"{attack}: target ({sizes[0]} samples) and references ({sizes[1]}) differ in samples or labels"
        )


class Sides(NamedTuple):
    """Which references were trained on each sample."""

    mask: Columns  # (M, N) bool, True = IN
    n_in: np.ndarray  # (N,)
    n_out: np.ndarray
    usable: (
        np.ndarray
    )  # (N,) bool: has every side the attack needs; never demanded of population samples
    audited: (
        np.ndarray
    )  # (N,) bool: usable and no population sample; what estimates over samples are made from


def sides(
    attack: str, target: Signals, references: Signals | None, need: tuple, missing: str
) -> Sides:
    """The sides of every sample; a missing one is refused (missing="raise") or makes the score NaN ("nan")."""
    check(attack, target, references, needs_references=True)
    one_of("missing", missing, ("raise", "nan"))
    mask = columns(references, "member")
    n_in = np.empty(mask.shape[1], np.int64)
    for part in blocks(*mask.shape):
        n_in[part] = np.add.reduce(mask[:, part], axis=0, dtype=np.int64)
    n_out = len(mask) - n_in
    usable = np.ones(n_in.shape, bool)
    for side, count in (("in", n_in), ("out", n_out)):
        if side in need:
            usable &= count > 0
    empty = int((~usable & ~target.population).sum())
    if empty and missing == "raise":
        wanted = " and ".join(side.upper() for side in need)
        raise ValueError(
            f"{attack} needs {wanted} references of every sample and {empty} of {usable.size} samples lack one: "
            'use complementary pairs, or missing="nan" to leave them unscored'
        )
    return Sides(mask, n_in, n_out, usable, usable & ~target.population)
