"""What an attack checks and reduces before it works: options, agreement of target and references,
sides, queries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mia_nb.attacks.margins import COMBINE, Columns, blocks, combine_queries
from mia_nb.checks import first_of, refuse
from mia_nb.types import Signals

LOG_P_ATTACKS = ("attack_p", "rmia", "base")  # work on log p: average the probability over queries
# average the log-likelihood ratio over queries that are no copies of one image
LIKELIHOOD_ATTACKS = ("lira", "nig")
NO_MARGINS = ("vote", "shokri", "song_mittal")  # average what they read off each query


def one_of(option: str, value, allowed: tuple):
    if value not in allowed:
        raise ValueError(f"{option}={value!r} is not one of {', '.join(map(str, allowed))}")


def combination(attack: str, draws: str, combine: str | None = None) -> str:
    """How this attack combines queries: what was asked for, else its default for what the queries
    are.
    """
    if combine is not None:
        return combine
    per_query = attack in LIKELIHOOD_ATTACKS and draws in ("augment", "steps")
    return first_of(
        {
            "logmeanp": attack in LOG_P_ATTACKS,
            "mean": attack in NO_MARGINS,
            "llr": per_query,
            "margin": True,
        }
    )


def own(target: Signals, attack: str, combine: str | None) -> np.ndarray:
    """(N,) margins of the target after query combination."""
    combine = combination(attack, target.draws, combine)
    one_of("combine", combine, COMBINE)
    return combine_queries(target.margin, combine)[0]


def theirs(references: Signals, attack: str, combine: str | None) -> Columns:
    """(M, N) margins of the references after query combination, which never exist at once."""
    combine = combination(attack, references.draws, combine)
    one_of("combine", combine, COMBINE)
    return columns(references, "margin").then(lambda margin: combine_queries(margin, combine))


def columns(references: Signals, name: str) -> Columns:
    """A field of the references, (M, N); of a cube the columns are (M, Q, part)."""
    models, _, samples = references.shape
    return Columns((models, samples), lambda part: references.cut(name, part))


def per_query(
    target: Signals, references: Signals, attack: str, combine: str | None
) -> list[tuple[np.ndarray, Columns]]:
    """Pairs of margins (N,) and (M, N): one pair a query for combine="llr", one pair of reduced
    margins otherwise.
    """
    combine = combination(attack, target.draws, combine)
    one_of("combine", combine, ("llr", *COMBINE))
    if combine != "llr":
        return [(own(target, attack, combine), theirs(references, attack, combine))]
    models, queries, samples = references.shape
    queried = [
        Columns((models, samples), lambda part, q=q: references.cut("margin", part, q))
        for q in range(queries)
    ]
    return list(zip(target.margin[0], queried, strict=True))


def check(
    attack: str,
    target: Signals,
    references: Signals | None = None,
    *,
    needs_references=False,
    same_samples=True,
):
    """Refuse in one line what no attack can work with."""
    alone = references is None or not references.shape[0]
    refuse(
        {
            f"{attack} takes one target, got {target.shape[0]} models: use attacks.score, or"
            " signals.hold_out(m)": target.shape[0] != 1,
            f"{attack} needs reference models and none are left: train more pairs, or use loss or"
            " attack_p": alone and needs_references,
        }
    )
    if alone:
        return
    queries, samples = zip(*(s.shape[1:] for s in (target, references)), strict=True)
    other = same_samples and not np.array_equal(target.labels, references.labels)
    refuse(
        {
            f"{attack} needs to know which samples each reference was trained on, but"
            " references.member is None": references.hidden,
            f"the target was queried {queries[0]} times, the references {queries[1]} times: query"
            " both alike": queries[0] != queries[1],
            f"{attack}: target ({samples[0]} samples) and references ({samples[1]}) differ in"
            " samples or labels": other,
        }
    )


class Sides(NamedTuple):
    """Which references were trained on each sample."""

    mask: Columns  # (M, N) bool, True = IN
    n_in: np.ndarray  # (N,)
    n_out: np.ndarray
    # (N,) bool: has every side the attack needs; never demanded of population samples
    usable: np.ndarray
    # (N,) bool: usable and no population sample; what estimates over samples are made from
    audited: np.ndarray


def sides(
    attack: str, target: Signals, references: Signals | None, need: tuple, missing: str
) -> Sides:
    """The sides of every sample; a missing one is refused (missing="raise") or makes the score NaN
    ("nan").
    """
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
            f"{attack} needs {wanted} references of every sample and {empty} of {usable.size}"
            ' samples lack one: use complementary pairs, or missing="nan" to leave them unscored'
        )
    return Sides(mask, n_in, n_out, usable, usable & ~target.population)
