"""What attacks do first: check that target and references agree, count the references on each
side, and combine the target's queries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mia_nb.attacks.margins import COMBINE, combine_queries
from mia_nb.attacks.reading import combined, counts
from mia_nb.attacks.summaries import Summary
from mia_nb.checks import one_of
from mia_nb.types import Signals

# How these attacks combine queries by default; all others average the margin. Attacks on log p
# average the probability ("logmeanp"); "mean" stands for the mean of what each query shows.
COMBINATIONS = {
    "attack_p": "logmeanp",
    "rmia": "logmeanp",
    "rmia_tuned": "logmeanp",
    "base": "logmeanp",
    "vote": "mean",
    "shokri": "mean",
    "song_mittal": "mean",
}


def combination(attack: str, query_kind: str, combine: str | None = None) -> str:
    """How this attack combines queries: `combine`, or its default for this kind of queries."""
    if combine is not None:
        return combine
    # These queries differ in input or time step: their log-likelihood ratios are averaged.
    if attack in ("lira", "nig") and query_kind in ("augment", "steps"):
        return "llr"
    return COMBINATIONS.get(attack, "margin")


def combined_margin(target: Signals, combine: str) -> np.ndarray:
    """(N,) margins of the target, its queries combined by `combine_queries`."""
    return combine_queries(target.margin, one_of("combine", combine, COMBINE))[0]


def compared_margins(target: Signals, combine: str) -> np.ndarray:
    """(R, N) margins of the target that are compared: of all queries for "llr", otherwise one of
    all together.
    """
    return combined(target.margin, one_of("combine", combine, ("llr", *COMBINE)))[0]


def check(
    attack: str,
    target: Signals,
    references: Signals | None = None,
    *,
    needs_references: bool = False,
    same_samples: bool = True,
) -> None:
    """ValueError for a target and references that this attack cannot work with."""
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
    """How many references were trained on each sample."""

    n_in: np.ndarray  # (N,)
    n_out: np.ndarray
    # (N,) bool: has a reference on each side that the attack needs; population samples may lack one
    usable: np.ndarray
    # (N,) bool: usable, and no population sample; estimates over samples are made from these
    audited: np.ndarray


def count_sides(
    attack: str,
    target: Signals,
    references: Signals | None,
    needed_sides: tuple[str, ...],
    missing: str,
    summary: Summary | None = None,
) -> Sides:
    """How many references were trained on each sample and how many were not, after `check`.

    Parameters:
        attack: the name in error messages.
        target: signals of one model.
        references: signals of the other models, membership included.
        needed_sides: those that the attack needs, of "in" and "out".
        missing: "raise" to refuse audited samples that lack such a side; "nan" to accept them, not
            usable.
        summary: of the references, which holds the counts; None: they are counted here.
    """
    check(attack, target, references, needs_references=True)
    one_of("missing", missing, ("raise", "nan"))
    n_in, n_out = counts(references) if summary is None else summary.n
    usable = np.ones(n_in.shape, bool)
    if "in" in needed_sides:
        usable &= n_in > 0
    if "out" in needed_sides:
        usable &= n_out > 0
    empty = int((~usable & ~target.population).sum())
    if empty and missing == "raise":
        wanted = " and ".join(side.upper() for side in needed_sides)
        raise ValueError(
            f"{attack} needs {wanted} references of every sample and {empty} of {usable.size}"
            ' samples lack one: use complementary pairs, or missing="nan" to leave them unscored'
        )
    return Sides(n_in, n_out, usable, usable & ~target.population)
