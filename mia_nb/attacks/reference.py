"""Attacks that compare the target's output with an average of the references' outputs: attack_r,
watson, rmia, base.

In names, phi is a margin, p the probability of the label, q = 1 - p; _t is the target's, _in and
_out those of the references trained with a sample and without it.

`rmia` and `base` average probabilities in one of two ways, which agree but for rounding. With a
summary, from sums of p and of q, which `score` makes once for all targets. Without one, in
logarithms from the margin of every reference: `score` leaves that to them where float64 cannot hold
some p, where `trim` looks at single references, and where queries vote.
"""

from __future__ import annotations

import warnings

import numpy as np

from mia_nb.arguments import Anything, Flag, Real
from mia_nb.attacks.inputs import combination, sides, target_margin, target_margins
from mia_nb.attacks.margins import COMBINE, blocks, log_mean_p_q, log_p, median
from mia_nb.attacks.reading import counts, margin_blocks
from mia_nb.attacks.summaries import Confidences, World, Worlds, worlds, worlds_of
from mia_nb.checks import checked, one_of
from mia_nb.types import Signals

MAX_LOSS = 1000.0  # the largest loss of attack_r's interpolation
SIGNALS = {  # what watson compares, as a function of the margin
    "loss": log_p,
    "margin": np.asarray,
    "confidence": lambda margin: np.exp(log_p(margin)),
}


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
    """Reference attack: how the target's margin phi_t compares with the references' margins phi_k
    of the same sample.

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        form: "shift", "interp" or "lattice", see below.
        combine: how queries are combined, a name of `combine_queries`.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        summary: `worlds_of` the references, where they are known already; None: computed here.

    Forms:
        shift: phi_t - mean phi_k.
        interp: 1 - I(loss_t), I interpolates the sorted losses {0, l_1..n, 1000} of the OUT
            references onto 0, 1/(n+1), ..., 1 (Ye et al. 2022).
        lattice: share of n references with phi_k <= phi_t, at most n + 1 values (Guan et al. 2025):
            its zeros at low FPR are made by ties.

    Returns:
        (N,) scores: nats with shift, else in [0, 1].

    Raises ValueError, with interp, for samples without OUT reference.
    """
    one_of("form", form, ("shift", "interp", "lattice"))
    need = ("out",) if form == "interp" else ()
    sides("attack_r", target, references, need, missing, summary)
    combine = combination("attack_r", target.query_kind, combine)
    phi_t = target_margin(target, combine)
    if form == "shift":
        if summary is None:
            summary = worlds_of(references, combine)
        return phi_t - _mean_or_nan(summary.together(0))
    score = np.empty(len(phi_t))
    for part, _, phi, member in margin_blocks(references, combine):
        if form == "lattice":
            score[part] = (phi <= phi_t[part]).mean(0)
        else:
            score[part] = 1 - _interpolated(-log_p(phi_t[part]), -log_p(phi), ~member)
    return score


def _mean_or_nan(world: World) -> np.ndarray:
    """(N,) the world's means, NaN where there is no reference."""
    return np.where(world.n > 0, world.mean, np.nan)


def _interpolated(loss_t: np.ndarray, losses: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """(N,) position of the target's loss among those of the references, in [0, 1].

    Parameters:
        loss_t: (N,) losses of the target.
        losses: (M, N) losses of the references.
        keep: (M, N) which of them count.

    The knots 0, the sorted losses that count, and MAX_LOSS stand at equal distances; between them
    the position is linear in the loss. NaN where no loss counts.
    """
    loss_t = np.minimum(loss_t, MAX_LOSS)
    count = keep.sum(0)
    # Losses that do not count become MAX_LOSS: they sort behind the others, to the last knot.
    losses = np.sort(np.where(keep, np.minimum(losses, MAX_LOSS), MAX_LOSS), axis=0)
    knots = np.vstack([np.zeros_like(loss_t), losses, np.full_like(loss_t, MAX_LOSS)])
    below = np.minimum((knots[1:] <= loss_t).sum(0), count)
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
    summary: Anything = None,
) -> np.ndarray:
    """Difficulty calibration: the target's signal less the mean of what models that did not train
    on the sample show, s = g_t - mean_{k in OUT} g_k.

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        signal: g, one of "loss" (log p), "margin" (phi) and "confidence" (p).
        centre: "mean" or "median" of the references.
        combine: how queries are combined, a name of `combine_queries`.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        summary: `watson_worlds` of the references, where they are known; None: computed here.

    Source: Watson, Guo, Cormode, Sablayrolles 2022. Raises ValueError for samples without OUT
    reference. Warns when the ranking equals the plain loss attack's: the calibration had no effect.
    """
    signal_of = SIGNALS[one_of("signal", signal, SIGNALS)]
    one_of("centre", centre, ("mean", "median"))
    side = sides("watson", target, references, ("out",), missing, summary)
    combine = combination("watson", target.query_kind, combine)
    phi_t = target_margin(target, combine)
    if centre == "median":
        average = np.empty(len(phi_t))
        for part, _, phi, member in margin_blocks(references, combine):
            average[part] = median(signal_of(phi), ~member)
    else:
        if summary is None:
            summary = watson_worlds(references, combine, signal)
        _, world_out = summary.of(0)
        average = _mean_or_nan(world_out)
    score = signal_of(phi_t) - average
    by_falling_loss = score[side.audited][np.argsort(phi_t[side.audited])]
    if len(by_falling_loss) > 2 and (np.diff(by_falling_loss) > 0).all():
        warnings.warn(
            "difficulty calibration had no effect: it ranks exactly as the loss does",
            stacklevel=2,
        )
    return score


def watson_worlds(references: Signals, combine: str, signal: str) -> Worlds:
    """The worlds of what `watson` compares, of the references."""
    one_of("combine", combine, COMBINE)
    signal_of = SIGNALS[one_of("signal", signal, SIGNALS)]
    margins = margin_blocks(references, combine)
    values = ((part, number, signal_of(phi), member) for part, number, phi, member in margins)
    return worlds(values, counts(references), 1)


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
    """Robust membership inference (RMIA): the target's confidence in the label over the average
    confidence pbar of the references, u = log p_t - log pbar.

        online:   pbar = (mean_IN p + mean_OUT p) / 2
        offline:  pbar = ((1 + a) mean_OUT p + (1 - a)) / 2

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        form: "ratio": s = u. "count": s is the share of population samples z with
            u(x) - u(z) > log gamma; its ROC vertices are a subset of ratio's. "vote": the same
            share, a comparison with z being won by the majority of queries.
        offline: whether OUT references alone are used.
        a: slope of the line by which the offline form guesses mean_IN p from mean_OUT p, in [0, 1].
        gamma: threshold of count and vote, above 0.
        trim: share of the references dropped at each end of the confidences, in [0, 0.5); online
            from IN and OUT together, which then weigh by model.
        combine: how queries are combined, a name of `combine_queries`; llr averages u over queries.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        summary: `confidences_of` the references, where they are known; None: read from them.

    Returns:
        (N,) scores: nats with ratio, else shares in [0, 1]; NaN for samples that lack a side.

    A population sample that no reference was trained on gets the offline average of all its
    references. pbar is kept as a margin, so that saturated samples keep their order. The paper's
    temperature belongs to `Signals.from_logits`. Raises ValueError for missing sides and, in count
    and vote, without population. Source: Zarifzadeh, Liu, Shokri 2024, Eq. 2-11; Guan et al. 2025
    (ratio).
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
    combine = combination("rmia", target.query_kind, "llr" if form == "vote" else combine)
    phi_t = target_margins(target, combine)
    log_average = np.empty(phi_t.shape)
    if summary is None:
        for part, query, phi, member in margin_blocks(references, combine):
            log_average[query, part] = _log_average(phi, member, offline=offline, a=a, trim=trim)
    else:
        for query in range(len(phi_t)):
            log_average[query] = _log_average_of_sums(summary, query, offline=offline, a=a)
    u = log_p(phi_t) - log_average
    u[:, ~side.usable & ~target.population] = np.nan
    if form == "vote":
        return _majority(u, target.population, np.log(gamma))
    u = u.mean(0)
    if form == "ratio":
        return u
    of_population = np.sort(u[target.population])
    count = np.searchsorted(of_population, u - np.log(gamma), side="left")
    return np.where(np.isnan(u), np.nan, count / len(of_population))


def _log_average(
    phi: np.ndarray, member: np.ndarray, *, offline: bool, a: float, trim: float
) -> np.ndarray:
    """(N,) logarithm of rmia's pbar, by way of its margin log pbar - log(1 - pbar), so that it is
    accurate where pbar rounds to 1.

    Parameters:
        phi: (M, N) margins of the references.
        member: (M, N) their membership.
        offline, a, trim: of `rmia`.
    """
    in_count = np.count_nonzero(member, axis=0)
    out_count = len(member) - in_count
    out_alone = (in_count == 0) | offline
    # NaN where a side has no reference
    n_in = np.where(in_count, in_count, np.nan)
    n_out = np.where(out_count, out_count, np.nan)
    weight_in = np.where(out_alone, 0 / n_out, 0.5 / n_in)
    weight_out = np.where(out_alone, 1 / n_out, 0.5 / n_out)
    weight = np.where(member, weight_in, weight_out)
    if trim:
        phi, weight = _trimmed(phi, weight > 0, trim)
    mean_p, mean_q = log_mean_p_q(phi, weight)
    # pbar = blend mean_p + 1 - blend, and 1 - pbar = blend mean_q
    blend = np.where(out_alone, (1 + a) / 2, 1.0)
    with np.errstate(divide="ignore"):  # log 0 = -inf is meant: where blend is 1 nothing is added
        log_pbar = np.logaddexp(np.log(blend) + mean_p, np.log1p(-blend))
    return log_p(log_pbar - np.log(blend) - mean_q)


def _trimmed(phi: np.ndarray, used: np.ndarray, trim: float) -> tuple[np.ndarray, np.ndarray]:
    """The margins sorted along axis 0, and the weights (M, N) of a mean without the share `trim` of
    those used at each end.
    """
    count = used.sum(0)
    cut = (trim * count).astype(int)
    rank = np.arange(len(phi))[:, None]
    keep = (rank >= cut) & (rank < count - cut)
    rising = np.sort(np.where(used, phi, np.inf), axis=0)  # what is not used comes last
    return np.where(keep, rising, 0), keep / np.maximum(count - 2 * cut, 1)


def _log_average_of_sums(
    summary: Confidences, query: int, *, offline: bool, a: float
) -> np.ndarray:
    """`_log_average` without trim, from the sums over the references.

    p is pbar and q is 1 - pbar, neither computed as a difference, so that the logarithm is accurate
    where pbar rounds to 1.
    """
    n_in, _ = summary.n
    with np.errstate(divide="ignore", invalid="ignore"):  # NaN where a side has no reference
        p_in, p_out = summary.p[:, query] / summary.n
        q_in, q_out = summary.q[:, query] / summary.n
        p = (p_in + p_out) / 2
        q = (q_in + q_out) / 2
        out_alone = (n_in == 0) | offline
        if out_alone.any():
            p = np.where(out_alone, ((1 + a) * p_out + 1 - a) / 2, p)
            q = np.where(out_alone, (1 + a) * q_out / 2, q)
        return -np.log1p(q / p)


def _majority(u: np.ndarray, population: np.ndarray, log_gamma: float) -> np.ndarray:
    """(N,) share of population samples z that u puts below x in more than half of the queries.

    Parameters:
        u: (Q, N).
        population: (N,) bool.
        log_gamma: by which u(x) has to exceed u(z).
    """
    half = len(u) / 2
    share = np.empty(u.shape[1])
    for part in blocks(int(population.sum()), u.shape[1]):
        queries_won = 0
        for of_query in u:
            gap = of_query[part, None] - of_query[population]
            queries_won = queries_won + (gap > log_gamma).astype(np.int32)
        share[part] = (queries_won > half).mean(1)
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
    """The target's confidence in the label over the models' average confidence (BASE).

        online:   s = log p_t - log mean_{IN and OUT} p
        offline:  s = log p_t - alpha log mean_OUT p

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        offline: whether OUT references alone are used.
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
    need = ("out",) if offline else ()
    sides("base", target, references, need, missing, summary)
    combine = combination("base", target.query_kind, combine)
    phi_t = target_margins(target, combine)
    log_average = np.empty(phi_t.shape)
    if summary is None:
        for part, query, phi, member in margin_blocks(references, combine):
            log_average[query, part] = _log_mean(phi, member, offline)
    else:
        for query in range(len(phi_t)):
            log_average[query] = _log_mean_of_sums(summary, query, offline)
    power = alpha if offline else 1
    return ((log_p(phi_t) - power * log_average) / len(phi_t)).sum(0)


def _log_mean(phi: np.ndarray, member: np.ndarray, offline: bool) -> np.ndarray:
    """(N,) logarithm of base's mean p over references of margins phi (M, N), over the OUT ones
    offline; NaN without any.
    """
    n_out = np.count_nonzero(~member, axis=0)
    weight = np.full(phi.shape, 1 / len(phi))
    if offline:
        weight_out = 1 / np.where(n_out, n_out, np.nan)
        weight = np.where(member, 0 * weight_out, weight_out)
    mean_p, mean_q = log_mean_p_q(phi, weight)
    return log_p(mean_p - mean_q)


def _log_mean_of_sums(summary: Confidences, query: int, offline: bool) -> np.ndarray:
    """The same from the sums over the references."""
    rows = [1] if offline else [0, 1]
    p = summary.p[rows, query].sum(0)
    q = summary.q[rows, query].sum(0)
    with np.errstate(invalid="ignore"):
        return -np.log1p(q / p)
