"""Attacks that compare the target's output with an average of the references' outputs.

    rmia      log p_t - log pbar, pbar = (mean_IN p + mean_OUT p) / 2
    base      log p_t - log mean p
    watson    g_t - mean_OUT g, g = log p, the margin or p
    attack_r  phi_t - mean phi, for form="shift"

In names, phi is a margin and p the probability of the label; _t is the target's, _in and _out those
of the references trained with a sample and without it.
"""

from __future__ import annotations

import warnings

import numpy as np

from mia_nb.arguments import Anything, Flag, Real
from mia_nb.attacks.inputs import combination, combined_margin, compared_margins, count_sides
from mia_nb.attacks.margins import blocks, log_p, median
from mia_nb.attacks.reading import margin_blocks
from mia_nb.attacks.summaries import LARGEST_MARGIN, Confidences, confidences_of, worlds_of
from mia_nb.checks import checked, one_of
from mia_nb.types import Signals

MAX_LOSS = 1000.0  # the largest loss of attack_r's interpolation
SIGNALS = {  # what watson compares, as a function of the margin
    "loss": log_p,
    "margin": np.asarray,
    "confidence": lambda margin: np.exp(log_p(margin)),
}


@checked
def rmia(
    target: Signals,
    references: Signals | None = None,
    *,
    form: str = "ratio",
    offline: Flag = False,
    a: Real = 0.3,
    gamma: Real = 1.0,
    combine: str | None = None,
    missing: str = "raise",
    summary: Anything = None,
) -> np.ndarray:
    """Robust membership inference (RMIA): the target's confidence in the label, relative to the
    references' average confidence pbar: u = log p_t - log pbar.

        online:   pbar = (mean_IN p + mean_OUT p) / 2
        offline:  pbar = ((1 + a) mean_OUT p + (1 - a)) / 2

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        form: "ratio": s = u. "count": s is the share of population samples z with
            u(x) - u(z) > log gamma; its ROC vertices are a subset of ratio's. "vote": the same
            share, where the majority of queries decides each comparison.
        offline: whether only OUT references are used.
        a: slope of the line by which the offline form guesses mean_IN p from mean_OUT p, in [0, 1].
        gamma: threshold of count and vote, above 0.
        combine: how queries are combined, a name of `combine_queries`; llr averages u over queries.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        summary: `confidences_of` the references, where they are known; None: read from them.

    Returns:
        (N,) scores: nats with ratio, else shares in [0, 1]; NaN for samples that lack a side.

    A population sample that no reference was trained on gets the offline average of all references.
    Saturated samples keep their order, up to margins of 700 nats, beyond which all count as 700.
    The paper's temperature belongs to `Signals.from_logits`. Raises ValueError for missing sides
    and, in count and vote, without population. Source: Zarifzadeh, Liu, Shokri 2024, Eq. 2-11; Guan
    et al. 2025 (ratio).
    """
    one_of("form", form, ("ratio", "count", "vote"))
    if not (0 <= a <= 1 and gamma > 0):
        raise ValueError(f"rmia: a={a} must lie in [0, 1], and gamma={gamma} must be positive")
    needed_sides = ("out",) if offline else ("in", "out")
    sides = count_sides("rmia", target, references, needed_sides, missing, summary)
    if form != "ratio" and not target.population.any():
        raise ValueError(
            f"rmia(form={form!r}) needs population samples that no model saw; set population > 0"
            " or use form='ratio'"
        )
    if form == "vote":
        combine = "llr"  # which keeps queries apart
    combine = combination("rmia", target.query_kind, combine)
    if summary is None:
        summary = confidences_of(references, combine)
    # pbar = slope mean p + 1 - slope; of two sides slope is 1, of OUT alone it is (1 + a) / 2
    out_alone = (sides.n_in == 0) | offline
    mean_p, mean_q = _mean_confidences(summary, np.where(out_alone, 0, 0.5))
    slope = np.where(out_alone, (1 + a) / 2, 1)
    log_pbar = _log_mean(slope * mean_p + (1 - slope), slope * mean_q)
    u = _log_p_of_target(target, combine) - log_pbar
    unscored = ~(sides.usable | target.population)
    u[:, unscored] = np.nan
    if form == "vote":
        return _majority(u, target.population, np.log(gamma))
    u = u.mean(0)
    if form == "ratio":
        return u
    of_population = np.sort(u[target.population])
    count = np.searchsorted(of_population, u - np.log(gamma), side="left")
    return np.where(np.isnan(u), np.nan, count / len(of_population))


def _majority(u: np.ndarray, population: np.ndarray, log_gamma: float) -> np.ndarray:
    """(N,) share of population samples z for which u(x) - u(z) > log_gamma in most queries.

    Parameters:
        u: (Q, N).
        population: (N,) bool.
    """
    queries, samples = u.shape
    population_size = int(population.sum())
    smallest_type = np.min_scalar_type(queries)  # faster to count in than int64
    share = np.empty(samples)
    for part in blocks(population_size, samples):
        queries_won = np.zeros((part.stop - part.start, population_size), smallest_type)
        for query in range(queries):
            gap = u[query, part, None] - u[query, population]
            queries_won += gap > log_gamma
        share[part] = (queries_won > queries / 2).mean(1)
    return np.where(np.isnan(u[0]), np.nan, share)


@checked
def base(
    target: Signals,
    references: Signals | None = None,
    *,
    offline: Flag = False,
    alpha: Real = 1.0,
    combine: str | None = None,
    missing: str = "raise",
    summary: Anything = None,
) -> np.ndarray:
    """The target's confidence in the label, relative to the references' average confidence (BASE).

        online:   s = log p_t - log mean_{IN and OUT} p
        offline:  s = log p_t - alpha log mean_OUT p

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        offline: whether only OUT references are used.
        alpha: exponent of the average in the offline form.
        combine: how queries are combined, a name of `combine_queries`.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        summary: `confidences_of` the references, where they are known; None: read from them.

    Returns:
        (N,) scores in nats.

    Online this is `rmia` when n_in = n_out; with unequal sides `base` weighs models equally, `rmia`
    sides equally. At Q = 1 it is also the "RMIA" p_t / mean p of Guan et al. 2025, on a log scale.
    Source: Lassila et al. 2025. Raises ValueError for samples without OUT reference (offline).
    """
    needed_sides = ("out",) if offline else ()
    sides = count_sides("base", target, references, needed_sides, missing, summary)
    combine = combination("base", target.query_kind, combine)
    if summary is None:
        summary = confidences_of(references, combine)
    if offline:
        power = alpha
        share_in = 0.0
    else:
        power = 1.0
        share_in = sides.n_in / np.maximum(sides.n_in + sides.n_out, 1)
    mean_p, mean_q = _mean_confidences(summary, share_in)
    u = _log_p_of_target(target, combine) - power * _log_mean(mean_p, mean_q)
    return (u / len(u)).sum(0)


def _mean_confidences(
    summary: Confidences, weight_in: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    """(R, N) averages of the references' p and of q = 1 - p, which is no difference of rounded
    numbers, so that the logarithm of p is accurate where p rounds to 1.

    The mean over IN references has the weight `weight_in` (N,), the mean over OUT references the
    rest. The mean over no reference counts as 0.
    """
    n_in, n_out = np.maximum(summary.n, 1)
    weight_out = 1 - weight_in
    p = weight_in * (summary.p[0] / n_in) + weight_out * (summary.p[1] / n_out)
    q = weight_in * (summary.q[0] / n_in) + weight_out * (summary.q[1] / n_out)
    return p, q


def _log_p_of_target(target: Signals, combine: str) -> np.ndarray:
    """(R, N) log p of the target, no further from 0 than that of any reference can be."""
    return log_p(np.clip(compared_margins(target, combine), -LARGEST_MARGIN, LARGEST_MARGIN))


def _log_mean(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """log of a mean p, given the mean q of 1 - p too; NaN where no reference makes both 0."""
    with np.errstate(invalid="ignore"):
        return -np.log1p(q / p)


@checked
def attack_r(
    target: Signals,
    references: Signals | None = None,
    *,
    form: str = "shift",
    combine: str | None = None,
    missing: str = "raise",
    summary: Anything = None,
) -> np.ndarray:
    """Reference attack: the target's margin phi_t compared with the references' margins phi_k of
    the same sample.

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        form: "shift", "interp" or "lattice", see below.
        combine: how queries are combined, a name of `combine_queries`.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        summary: `worlds_of` the references, where they are known already; None: computed here.

    Forms:
        shift: phi_t - mean phi_k.
        interp: 1 - I(loss_t), where I maps 0, the sorted losses l_1..n of the OUT references and
            1000 to 0, 1/(n+1), ..., 1 and is linear in between (Ye et al. 2022).
        lattice: share of the n references with phi_k <= phi_t (Guan et al. 2025). It has at most
            n + 1 values: a TPR of 0 at low FPR comes from ties.

    Returns:
        (N,) scores: nats with shift, else in [0, 1].

    Raises ValueError, with interp, for samples without OUT reference.
    """
    one_of("form", form, ("shift", "interp", "lattice"))
    needed_sides = ("out",) if form == "interp" else ()
    count_sides("attack_r", target, references, needed_sides, missing, summary)
    combine = combination("attack_r", target.query_kind, combine)
    phi_t = combined_margin(target, combine)
    if form == "shift":
        if summary is None:
            summary = worlds_of(references, combine)
        count = summary.n.sum(0)
        total = summary.total[:, 0].sum(0)
        return phi_t - total / np.where(count > 0, count, np.nan)
    score = np.empty(len(phi_t))
    for part, _, phi, member in margin_blocks(references, combine):
        if form == "lattice":
            score[part] = (phi <= phi_t[part]).mean(0)
        else:
            score[part] = 1 - _interpolated(-log_p(phi_t[part]), -log_p(phi), ~member)
    return score


def _interpolated(loss_t: np.ndarray, losses: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """(N,) position of the target's loss among those of the references, in [0, 1].

    Parameters:
        loss_t: (N,) losses of the target.
        losses: (M, N) losses of the references.
        keep: (M, N) which of them count.

    The knots are 0, the sorted losses that count, and MAX_LOSS; their positions are equally spaced.
    Between them the position is linear in the loss. NaN where no loss counts.
    """
    loss_t = np.minimum(loss_t, MAX_LOSS)
    count = keep.sum(0)
    # Losses that do not count become MAX_LOSS: they sort behind the others, to the last knot.
    losses = np.sort(np.where(keep, np.minimum(losses, MAX_LOSS), MAX_LOSS), axis=0)
    knots = np.vstack([np.zeros_like(loss_t), losses, np.full_like(loss_t, MAX_LOSS)])
    below = np.minimum((knots[1:] <= loss_t).sum(0), count)  # number of the knot below the target
    low = np.take_along_axis(knots, below[None], 0)[0]
    high = np.take_along_axis(knots, (below + 1)[None], 0)[0]
    width = np.where(high > low, high - low, 1)
    fraction = np.where(high > low, (loss_t - low) / width, 1)
    return np.where(count > 0, (below + fraction) / (count + 1), np.nan)


@checked
def watson(
    target: Signals,
    references: Signals | None = None,
    *,
    signal: str = "loss",
    centre: str = "mean",
    combine: str | None = None,
    missing: str = "raise",
) -> np.ndarray:
    """Difficulty calibration: the target's signal minus its mean over the references that were not
    trained on the sample, s = g_t - mean_{k in OUT} g_k.

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        signal: g, one of "loss" (log p), "margin" (phi) and "confidence" (p).
        centre: "mean" or "median" of the references.
        combine: how queries are combined, a name of `combine_queries`.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.

    Source: Watson, Guo, Cormode, Sablayrolles 2022. Raises ValueError for samples without OUT
    reference. Warns when the calibration had no effect: the ranking equals the loss attack's.
    """
    signal_of = SIGNALS[one_of("signal", signal, SIGNALS)]
    one_of("centre", centre, ("mean", "median"))
    sides = count_sides("watson", target, references, ("out",), missing)
    combine = combination("watson", target.query_kind, combine)
    phi_t = combined_margin(target, combine)
    average = np.empty(len(phi_t))
    for part, _, phi, member in margin_blocks(references, combine):
        values = signal_of(phi)
        if centre == "median":
            average[part] = median(values, ~member)
        else:
            n_out = sides.n_out[part]
            total = np.einsum("mn,mn->n", values, (~member).astype(np.float64))
            average[part] = total / np.where(n_out > 0, n_out, np.nan)
    score = signal_of(phi_t) - average
    by_falling_loss = score[sides.audited][np.argsort(phi_t[sides.audited])]
    if len(by_falling_loss) > 2 and (np.diff(by_falling_loss) > 0).all():
        warnings.warn(
            "difficulty calibration had no effect: it ranks exactly as the loss does",
            stacklevel=2,
        )
    return score
