"""What attacks do first: check their options and that target and references agree, count the
references on each side, and combine queries.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mia_nb.attacks.margins import COMBINE, Columns, combine_queries
from mia_nb.attacks.summaries import (
    Confidences,
    Summary,
    Worlds,
    confidences,
    counts,
    worlds,
)
from mia_nb.checks import one_of
from mia_nb.types import PER_MODEL, Signals

# how an attack combines queries by default; all others average the margin. "logmeanp" averages the
# probability, for attacks on log p; "mean" what is read off each query
COMBINATIONS = dict.fromkeys(
    ("attack_p", "rmia", "rmia_tuned", "base"), "logmeanp"
) | dict.fromkeys(("vote", "shokri", "song_mittal"), "mean")


def combination(attack: str, query_kind: str, combine: str | None = None) -> str:
    """How this attack combines queries: `combine`, or its default for this kind of queries."""
    usual = COMBINATIONS.get(attack, "margin")
    # these queries show different inputs or steps: their log-likelihood ratios are averaged
    if attack in ("lira", "nig") and query_kind in ("augment", "steps"):
        usual = "llr"
    return usual if combine is None else combine


def target_margin(target: Signals, attack: str, combine: str | None) -> np.ndarray:
    """(N,) margins of the target after query combination."""
    combine = one_of("combine", combination(attack, target.query_kind, combine), COMBINE)
    return combine_queries(target.margin, combine)[0]


def reference_margins(references: Signals, attack: str, combine: str | None) -> Columns:
    """(M, N) margins of the references after query combination, which never exist at once."""
    combine = one_of("combine", combination(attack, references.query_kind, combine), COMBINE)
    return columns(references.margin).then(lambda margin: combine_queries(margin, combine))


def columns(array: np.ndarray | Columns) -> Columns:
    """An array (M, ..., N) as `Columns` of the shape (M, N), whose blocks are (M, ..., block)."""
    return Columns((array.shape[0], array.shape[-1]), lambda index: array[..., index[-1]])


def select_lazily(pool: Signals, rows: np.ndarray) -> Signals:
    """Signals of these models whose arrays are `Columns`: blocks are read when an attack asks for
    them, and nothing is copied before.
    """

    def lazy(array: np.ndarray) -> Columns:
        shape = (len(rows), *array.shape[1:])
        return Columns(shape, lambda index: array[index][rows], array.dtype)

    arrays = {name: getattr(pool, name) for name in PER_MODEL}
    if pool.activity is not None:
        arrays["activity"] = pool.activity
    return replace(pool, **{name: lazy(array) for name, array in arrays.items()})


def per_query(
    target: Signals, references: Signals, attack: str, combine: str | None
) -> list[tuple[np.ndarray, Columns]]:
    """Pairs of margins (N,) and (M, N): one pair a query for combine="llr", one pair of reduced
    margins otherwise.
    """
    combine = combination(attack, target.query_kind, combine)
    margins = margins_per_query(references, attack, combine)
    if combine == "llr":
        return list(zip(target.margin[0], margins, strict=True))
    return [(target_margin(target, attack, combine), margins[0])]


def margins_per_query(references: Signals, attack: str, combine: str | None) -> list[Columns]:
    """Margins (M, N): one a query for combine="llr", one of reduced margins otherwise."""
    combine = combination(attack, references.query_kind, combine)
    if one_of("combine", combine, ("llr", *COMBINE)) != "llr":
        return [reference_margins(references, attack, combine)]
    models, queries, samples = references.shape
    return [
        Columns((models, samples), lambda index, q=q: references.margin[:, q, index[-1]])
        for q in range(queries)
    ]


def worlds_of(references: Signals, attack: str, combine: str | None) -> Worlds:
    """The worlds of the margins of `margins_per_query`."""
    margins = margins_per_query(references, attack, combine)
    return worlds(margins, columns(references.member))


def confidences_of(references: Signals, attack: str, combine: str | None) -> Confidences:
    """The confidences behind the margins of `margins_per_query`."""
    margins = margins_per_query(references, attack, combine)
    return confidences(margins, columns(references.member))


def check(
    attack: str,
    target: Signals,
    references: Signals | None = None,
    *,
    needs_references: bool = False,
    same_samples: bool = True,
) -> None:
    """ValueError of one line for a target and references that no attack can work with."""
    no_references = references is None or not references.shape[0]
    if target.shape[0] != 1:
        raise ValueError(
            f"{attack} takes one target, got {target.shape[0]} models: use attacks.score, or"
            " signals.hold_out(m)"
        )
    if no_references and needs_references:
        raise ValueError(
            f"{attack} needs reference models and none are left: train more pairs, or use loss or"
            " attack_p"
        )
    if no_references:
        return
    _, target_queries, target_samples = target.shape
    _, reference_queries, reference_samples = references.shape
    if references.member is None:
        raise ValueError(
            f"{attack} needs to know which samples each reference was trained on, but"
            " references.member is None"
        )
    if target_queries != reference_queries:
        raise ValueError(
            f"the target was queried {target_queries} times, the references {reference_queries}"
            " times: query both alike"
        )
    if same_samples and not np.array_equal(target.labels, references.labels):
        raise ValueError(
            f"{attack}: target ({target_samples} samples) and references ({reference_samples})"
            " differ in samples or labels"
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
    attack: str,
    target: Signals,
    references: Signals | None,
    need: tuple,
    missing: str,
    summary: Summary | None = None,
) -> Sides:
    """Which references were trained on each sample, and how many.

    Parameters:
        attack: the name in error messages.
        target: signals of one model.
        references: signals of the other models, membership included.
        need: the sides that the attack needs, of "in" and "out".
        missing: "raise" to refuse audited samples that lack such a side, "nan" to mark them as not
            usable.
        summary: of the references, which holds the counts; None: they are counted here.
    """
    check(attack, target, references, needs_references=True)
    one_of("missing", missing, ("raise", "nan"))
    mask = columns(references.member)
    n_in, n_out = counts(mask) if summary is None else summary.n
    on_side = {"in": n_in, "out": n_out}
    usable = np.all([count > 0 for side, count in on_side.items() if side in need], axis=0)
    usable = np.broadcast_to(usable, n_in.shape)
    empty = int((~usable & ~target.population).sum())
    if empty and missing == "raise":
        wanted = " and ".join(side.upper() for side in need)
        raise ValueError(
            f"{attack} needs {wanted} references of every sample and {empty} of {usable.size}"
            ' samples lack one: use complementary pairs, or missing="nan" to leave them unscored'
        )
    return Sides(mask, n_in, n_out, usable, usable & ~target.population)
