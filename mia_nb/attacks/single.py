"""Attacks on the target alone: loss threshold, population rank, votes."""

from __future__ import annotations

import numpy as np

from mia_nb.arguments import Real
from mia_nb.attacks.inputs import check, combination, combined_margin, count_sides
from mia_nb.attacks.margins import blocks, log_p
from mia_nb.attacks.reading import margin_blocks
from mia_nb.checks import checked, one_of
from mia_nb.types import Signals


@checked
def loss(
    target: Signals,
    references: Signals | None = None,
    *,
    signal: str = "margin",
    threshold: Real | str | None = None,
    combine: str | None = None,
) -> np.ndarray:
    """Loss threshold: s = phi (signal="margin") or -loss ("loss"), which ranks the same except that
    saturated samples tie.

    Parameters:
        target: signals of one model.
        references: signals of other models, for threshold="reference_train_mean" alone.
        signal: margin or loss.
        threshold: a loss tau that the owner revealed (in the paper, the mean training loss), or
            "reference_train_mean", the mean IN loss of the references, which an attacker can
            compute; s is then tau - loss, and s >= 0 means "member". None: no threshold.
        combine: how queries are combined, a name of `combine_queries`.

    Source: Yeom, Giacomelli, Fredrikson, Jha 2018. Raises ValueError for "reference_train_mean"
    without references.
    """
    check("loss", target, references, needs_references=threshold == "reference_train_mean")
    one_of("signal", signal, ("margin", "loss"))
    combine = combination("loss", target.query_kind, combine)
    phi = combined_margin(target, combine)
    if threshold is None:
        return phi.astype(np.float64) if signal == "margin" else log_p(phi)
    if threshold == "reference_train_mean":
        total = 0.0
        count = 0
        for _, _, margins, member in margin_blocks(references, combine):
            total += log_p(margins[member]).sum()
            count += member.sum()
        threshold = -total / count
    return threshold + log_p(phi)


@checked
def attack_p(
    target: Signals,
    references: Signals | None = None,
    *,
    form: str = "continuous",
    combine: str | None = None,
) -> np.ndarray:
    """Population attack: s = phi ("continuous"), or the share of population samples below it
    ("population").

    Parameters:
        target: signals of one model.
        references: not used.
        form: continuous, or population: s = #{j : phi(z_j) < phi(x)} / P.
        combine: how queries are combined, a name of `combine_queries`.

    1 - s P / (P + 1) is a p-value, valid if population and non-members are exchangeable. Source: Ye
    et al. 2022; Guan et al. 2025. Raises ValueError without population samples. Caveat: the
    population form is a step function of phi: it can only lose vertices of the ROC.
    """
    check("attack_p", target, references)
    one_of("form", form, ("continuous", "population"))
    combine = combination("attack_p", target.query_kind, combine)
    phi = combined_margin(target, combine)
    if form == "continuous":
        return phi.astype(np.float64)
    of_population = np.sort(phi[target.population])
    if not len(of_population):
        raise ValueError(
            'attack_p(form="population") needs samples that no model saw: set population > 0, or'
            ' form="continuous"'
        )
    return np.searchsorted(of_population, phi, side="left") / len(of_population)


@checked
def vote(
    target: Signals, references: Signals | None = None, *, missing: str = "raise"
) -> np.ndarray:
    """Label-only votes: v = share of the Q queries whose predicted class is the label.

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included; None: s = v.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.

    With references s = L(v) - mean_{k in OUT} L(v_k), L(v) = log((Q v + 1/2) / (Q - Q v + 1/2)).
    Source: Choquette-Choo et al. 2021 (augmentation robustness). Raises ValueError for samples
    without OUT reference. Caveat: v has Q + 1 levels, so ties are the rule; take Q about 32. One
    query without references is the correctness attack.
    """
    check("vote", target, references)
    votes_of_target = target.correct[0].sum(0)
    queries = target.shape[1]
    if references is None:
        return votes_of_target / queries
    sides = count_sides("vote", target, references, ("out",), missing)
    n_out = np.maximum(sides.n_out, 1)
    # Most samples tie. A mean of logarithms rounds each tie in a way of its own, a fraction of
    # whole numbers does not: as L(1 - v) = -L(v), s is the sum over v > 1/2 of L(v) times one.
    upper = np.arange(queries // 2 + 1, queries + 1)
    log_odds = np.log(upper + 0.5) - np.log(queries - upper + 0.5)
    score = np.zeros(len(votes_of_target))
    for part in blocks(*references.member.shape):
        votes = references.correct[:, :, part].sum(1)
        out = ~references.member[:, part]
        n = n_out[part]
        reached = votes_of_target[part] == np.arange(queries + 1)[:, None]
        lead = n * reached - models_by_votes(votes, out, queries)  # (queries + 1, samples)
        share = (lead[upper] - lead[queries - upper]) / n
        score[part] = (log_odds[:, None] * share).sum(0)
    return np.where(sides.usable, score, np.nan)


def models_by_votes(votes: np.ndarray, chosen: np.ndarray, queries: int) -> np.ndarray:
    """(queries + 1, N): how many of the chosen models gave a sample 0, 1, ... or all votes.

    votes (M, N): of each model for each sample. chosen (M, N): booleans.
    """
    samples = votes.shape[1]
    cell = votes * samples + np.arange(samples)
    cells = np.bincount(cell[chosen], minlength=(queries + 1) * samples)
    return cells.reshape(queries + 1, samples)
