"""Attacks that compare the target with the references' average output: attack_r, watson, rmia,
base.
"""

from __future__ import annotations

import warnings

import numpy as np

from mia_nb.arguments import Anything, Flag, Real
from mia_nb.attacks.inputs import (
    Sides,
    columns,
    per_query,
    reference_margins,
    sides,
    target_margin,
)
from mia_nb.attacks.margins import Columns, blocks, by_blocks, log_mean_p_q, log_p, median
from mia_nb.attacks.summaries import Confidences, World, Worlds, worlds
from mia_nb.checks import checked, one_of
from mia_nb.types import Signals

MAX_LOSS = 1000.0  # the largest loss of attack_r's interpolation
READINGS = {  # of watson: what is compared, as a function of the margin
    "loss": log_p,
    "margin": np.asarray,
    "confidence": lambda margin: np.exp(log_p(margin)),
}


def _mean(phi: Columns, mask: Columns) -> np.ndarray:
    """(N,) mean of phi (M, N) over the rows that the mask keeps; NaN where it keeps none."""

    def mean(part: slice) -> np.ndarray:
        keep = mask[:, part].astype(np.float64)
        count = keep.sum(0)
        return np.einsum("mn,mn->n", phi[:, part], keep) / np.where(count > 0, count, np.nan)

    return by_blocks(phi.shape, mean)


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
    """Reference attack: how the target's margin compares with the references' margins phi_k of the
    same sample.

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        form: shift, interp or lattice, see below.
        combine: how queries are combined, a name of `combine_queries`.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        summary: `worlds_of` the references, where they are known already; None: computed here.

    Forms:
        shift: phi_t - mean phi_k.
        interp: 1 - I(loss_t), I interpolates the sorted losses {0, l_1..n, 1000} of the OUT
            references onto 0, 1/(n+1), ..., 1 (Ye et al. 2022).
        lattice: share of n references with phi_k <= phi_t, at most n + 1 values (Guan et al. 2025):
            its zeros at low FPR are made by ties.

    Raises ValueError, with interp, for samples without OUT reference.
    """
    one_of("form", form, ("shift", "interp", "lattice"))
    need = ("out",) if form == "interp" else ()
    side = sides("attack_r", target, references, need, missing, summary)
    phi_t = target_margin(target, "attack_r", combine)
    phi = reference_margins(references, "attack_r", combine)
    if form == "lattice":
        below = Columns(phi.shape, lambda index: (phi_t[index[-1]] >= phi[index]).astype(float))
        return _mean(below, side.mask.then(np.ones_like))
    if form == "interp":
        return 1 - by_blocks(
            phi.shape,
            lambda part: _interpolated(
                -log_p(phi_t[part]), -log_p(phi[:, part]), ~side.mask[:, part]
            ),
        )
    if summary is None:
        summary = worlds([phi], side.mask)
    return phi_t - _mean_or_nan(summary.together(0))


def _mean_or_nan(world: World) -> np.ndarray:
    """(N,) mean margins, NaN where there is no reference."""
    return np.where(world.n > 0, world.mean, np.nan)


def _interpolated(loss_t: np.ndarray, losses: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Position of each loss among {0, sorted losses that are kept, MAX_LOSS} in units of 1 / (their
    count + 1).
    """
    loss_t = np.minimum(loss_t, MAX_LOSS)
    count = keep.sum(0)
    # what is not kept sorts to the end, where MAX_LOSS stands
    losses = np.sort(np.where(keep, np.minimum(losses, MAX_LOSS), MAX_LOSS), axis=0)
    knots = np.vstack([np.zeros_like(loss_t), losses, np.full_like(loss_t, MAX_LOSS)])
    below = np.minimum((knots[1:] <= loss_t).sum(0), count)
    low = np.take_along_axis(knots, below[None], 0)[0]
    high = np.take_along_axis(knots, (below + 1)[None], 0)[0]
    share = np.where(high > low, (loss_t - low) / np.where(high > low, high - low, 1), 1)
    return np.where(count > 0, (below + share) / (count + 1), np.nan)


@checked
def watson(
    target: Signals,
    references: Signals | None = None,
    *,
    signal: str = "loss",
    centre: str = "mean",
    combine: str | None = None,
    missing: str = "raise",
    summary: Anything = None,
) -> np.ndarray:
    """Difficulty calibration: s = g_t - mean_{k in OUT} g_k.

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        signal: g: log p ("loss"), phi ("margin") or p ("confidence").
        centre: "mean" or "median".
        combine: how queries are combined, a name of `combine_queries`.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        summary: `watson_worlds` of the references, where they are known; None: computed here.

    Source: Watson, Guo, Cormode, Sablayrolles 2022. Raises ValueError for samples without OUT
    reference. Warns when the ranking equals the plain loss attack's: the calibration had no effect.
    """
    read = READINGS[one_of("signal", signal, READINGS)]
    one_of("centre", centre, ("mean", "median"))
    side = sides("watson", target, references, ("out",), missing, summary)
    phi_t = target_margin(target, "watson", combine)
    if centre == "median":
        phi = reference_margins(references, "watson", combine)
        average = median(phi.then(read), ~side.mask)
    else:
        if summary is None:
            summary = watson_worlds(references, combine=combine, signal=signal)
        _, world_out = summary.of(0)
        average = _mean_or_nan(world_out)
    score = read(phi_t) - average
    ranked = score[side.audited][np.argsort(phi_t[side.audited])]
    if len(ranked) > 2 and (np.diff(ranked) > 0).all():
        warnings.warn(
            "difficulty calibration had no effect: it ranks exactly as the loss does",
            stacklevel=2,
        )
    return score


def watson_worlds(
    references: Signals, *, combine: str | None = None, signal: str = "loss"
) -> Worlds:
    """The worlds of what `watson` compares."""
    read = READINGS[one_of("signal", signal, READINGS)]
    values = reference_margins(references, "watson", combine).then(read)
    return worlds([values], columns(references.member))


@checked
def rmia(
    target: Signals,
    references: Signals | None = None,
    *,
    form: str = "ratio",
    offline: Flag = False,
    a: Real = 0.3,
    gamma: Real = 1.0,
    trim: Real = 0.0,
    combine: str | None = None,
    missing: str = "raise",
    summary: Anything = None,
) -> np.ndarray:
    """Robust likelihood ratio u = log p_t - log pbar against the average confidence of the
    references.

        online:   pbar = (mean_IN p + mean_OUT p) / 2
        offline:  pbar = ((1 + a) mean_OUT p + (1 - a)) / 2

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        form: ratio, s = u; count, s = share of population samples z with u(x) - u(z) > log gamma,
            whose ROC vertices are a subset of ratio's; vote, the majority over queries of that
            comparison for each pair (x, z).
        offline: whether OUT references alone are used.
        a: of the offline average, in [0, 1].
        gamma: of count and vote, above 0.
        trim: share of the references dropped at each end of the confidences, in [0, 0.5); online
            from IN and OUT together, which then weigh by model.
        combine: how queries are combined, a name of `combine_queries`; llr averages u over queries.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        summary: `confidences_of` the references, where they are known; None: read from them.

    A population sample that no reference was trained on gets the offline rule with all its OUT
    references. pbar is kept as a margin, so saturated samples keep their order. Source: Zarifzadeh,
    Liu, Shokri 2024, Eq. 2-11; Guan et al. 2025 (ratio). Raises ValueError for missing sides and,
    in count and vote, without population. The paper's temperature belongs to `Signals.from_logits`.
    """
    one_of("form", form, ("ratio", "count", "vote"))
    if not (0 <= a <= 1 and 0 <= trim < 0.5 and gamma > 0):
        raise ValueError(
            f"rmia: a={a} must lie in [0, 1], trim={trim} in [0, 0.5), and gamma={gamma} must be"
            " positive"
        )
    need = ("out",) if offline else ("in", "out")
    side = sides("rmia", target, references, need, missing, summary)
    if form != "ratio" and not target.population.any():
        raise ValueError(
            f"rmia(form={form!r}) needs population samples that no model saw; set population > 0"
            " or use form='ratio'"
        )
    u = []
    pairs = per_query(target, references, "rmia", "llr" if form == "vote" else combine)
    for query, (phi_t, phi) in enumerate(pairs):
        if summary is None:
            average = log_p(_average_margin(phi, side, offline=offline, a=a, trim=trim))
        else:
            average = _log_average(summary, query, offline=offline, a=a)
        u.append(log_p(phi_t) - average)
    u = np.array(u)
    u[:, ~side.usable & ~target.population] = np.nan
    if form == "vote":
        return _majority(u, target.population, np.log(gamma))
    u = u.mean(0)
    if form == "ratio":
        return u
    among = np.sort(u[target.population])
    count = np.searchsorted(among, u - np.log(gamma), side="left")
    return np.where(np.isnan(u), np.nan, count / len(among))


def _log_average(summary: Confidences, query: int, *, offline: bool, a: float) -> np.ndarray:
    """(N,) logarithm of rmia's pbar, from the sums over the references.

    pbar and 1 - pbar are computed side by side, neither as a difference, so that the logarithm is
    accurate where pbar rounds to 1.
    """
    n_in, _ = summary.n
    with np.errstate(divide="ignore", invalid="ignore"):  # NaN where a side has no reference
        p_in, p_out = summary.p[:, query] / summary.n
        q_in, q_out = summary.q[:, query] / summary.n
        p = (p_in + p_out) / 2
        q = (q_in + q_out) / 2
        by_out = (n_in == 0) | offline
        if by_out.any():
            p = np.where(by_out, ((1 + a) * p_out + 1 - a) / 2, p)
            q = np.where(by_out, (1 + a) * q_out / 2, q)
        return -np.log1p(q / p)


def _average_margin(
    phi: Columns, side: Sides, *, offline: bool, a: float, trim: float
) -> np.ndarray:
    """(N,) margin of rmia's pbar: log pbar - log(1 - pbar), accurate where pbar rounds to 1."""
    by_out = (side.n_in == 0) | offline
    n_in = np.where(side.n_in, side.n_in, np.nan)
    n_out = np.where(side.n_out, side.n_out, np.nan)
    weight_in = np.where(by_out, 0 / n_out, 0.5 / n_in)
    weight_out = np.where(by_out, 1 / n_out, 0.5 / n_out)
    mean_p, mean_q = _log_means(phi, side.mask, weight_in, weight_out, trim)
    with np.errstate(divide="ignore"):  # log 0 = -inf is meant: a = 1 adds nothing
        blend = np.where(by_out, (1 + a) / 2, 1.0)
        return np.logaddexp(np.log(blend) + mean_p, np.log1p(-blend)) - np.log(blend) - mean_q


def _log_means(
    phi: Columns, mask: Columns, weight_in: np.ndarray, weight_out: np.ndarray, trim: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """(log mean p, log mean (1 - p)) over references, each (N,), with one weight for IN and one for
    OUT models.
    """
    mean_p, mean_q = np.empty((2, phi.shape[1]))
    for part in blocks(*phi.shape):
        x = phi[:, part]
        weight = np.where(mask[:, part], weight_in[part], weight_out[part])
        if trim:
            used = weight > 0
            count = used.sum(0)
            rank = np.arange(len(x))[:, None]
            cut = (trim * count).astype(int)
            keep = (rank >= cut) & (rank < count - cut)
            x = np.where(keep, np.sort(np.where(used, x, np.inf), axis=0), 0)
            weight = keep / np.maximum(count - 2 * cut, 1)
        mean_p[part], mean_q[part] = log_mean_p_q(x, weight)
    return mean_p, mean_q


def _majority(u: np.ndarray, population: np.ndarray, log_gamma: float) -> np.ndarray:
    """Share of population samples z that more than half of the queries put below x: (Q, N) ->
    (N,).
    """
    half = len(u) / 2

    def won(part: slice) -> np.ndarray:
        gaps = (u_q[part, None] - u_q[population] for u_q in u)
        return (sum((gap > log_gamma).astype(np.int32) for gap in gaps) > half).mean(1)

    score = by_blocks((int(population.sum()), u.shape[1]), won)
    return np.where(np.isnan(u[0]), np.nan, score)


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
    """Confidence over the models' average confidence: s = log p_t - log mean_{IN + OUT} p, or log
    p_t - alpha log mean_OUT p.

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        offline: whether OUT references alone are used.
        alpha: of the offline form.
        combine: how queries are combined, a name of `combine_queries`.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        summary: `confidences_of` the references, where they are known; None: read from them.

    Online this is `rmia` when n_in = n_out; with unequal sides `base` weighs models equally, `rmia`
    sides equally. At Q = 1 it is also the "RMIA" p_t / mean p of Guan et al. 2025, on a log scale.
    Source: Lassila et al. 2025. Raises ValueError for samples without OUT reference (offline).
    """
    need = ("out",) if offline else ()
    side = sides("base", target, references, need, missing, summary)
    count = np.where(side.n_out, side.n_out, np.nan) if offline else len(side.mask)
    weight_out = np.ones(side.n_out.shape) / count
    weight_in = 0 * weight_out if offline else weight_out
    power = alpha if offline else 1
    score = np.zeros(side.n_out.shape)
    pairs = per_query(target, references, "base", combine)
    for query, (phi_t, phi) in enumerate(pairs):
        if summary is None:
            mean_p, mean_q = _log_means(phi, side.mask, weight_in, weight_out)
            average = log_p(mean_p - mean_q)
        else:
            average = _log_overall(summary, query, offline)
        score += (log_p(phi_t) - power * average) / len(pairs)
    return score


def _log_overall(summary: Confidences, query: int, offline: bool) -> np.ndarray:
    """(N,) logarithm of base's mean p: over all references, or the OUT ones; NaN without any."""
    side = slice(1, 2) if offline else slice(None)
    p = summary.p[side, query].sum(0)
    q = summary.q[side, query].sum(0)
    with np.errstate(invalid="ignore"):
        return -np.log1p(q / p)
