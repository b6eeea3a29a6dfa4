"""Likelihood ratios of the target's margin in the worlds with and without the sample: lira, its
joint form, nig.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import betaln, digamma, gammaln, hyp2f1, polygamma, stdtr

from mia_nb.arguments import Anything, Flag, Whole
from mia_nb.attacks.inputs import (
    Sides,
    columns,
    combination,
    per_query,
    sides,
    target_margin,
    worlds_of,
)
from mia_nb.attacks.margins import blocks, median
from mia_nb.attacks.summaries import World, worlds
from mia_nb.checks import checked, one_of
from mia_nb.types import Signals

PRIOR_CAP = 5000.0  # nig's a0 when the variances look alike
NU0 = 6.0  # references that a shrunken variance gives to that of all samples
RHO = 0.1  # share of the diagonal in the joint forms' covariance
KAPPA0 = 1.0  # references that the centre of IN gives to its prior
JOINT = ("joint", "mean_sd")  # of `combine`: forms that compare vectors


class Fit(NamedTuple):
    """What an attack takes the density of a sample's margin to be, in row 0 IN and in row 1 OUT:
    arrays (2, N), in nats.

    Student's t with `freedom` degrees of freedom, the Gaussian where they are infinite. NaN where a
    side has no references.
    """

    centre: np.ndarray
    scale: np.ndarray  # standard deviation of the Gaussian, scale of Student's t
    freedom: np.ndarray
    n: np.ndarray  # references on the side

    def of(self, sample: int) -> Fit:
        """The fit of one sample, arrays (2, 1)."""
        return Fit(*(part[:, sample : sample + 1] for part in self))

    def log_density(self, phi: np.ndarray) -> np.ndarray:
        """log densities IN and OUT at margins phi, (2, N): of every sample at its own, or of one
        (`of`) at all.
        """
        z = (phi - self.centre) / self.scale
        if np.isinf(self.freedom).all():
            return -(z**2 + np.log(2 * np.pi)) / 2 - np.log(self.scale)
        a = self.freedom / 2
        level = gammaln(a + 0.5) - gammaln(a) - np.log(2 * np.pi * a) / 2
        return level - np.log(self.scale) - (a + 0.5) * np.log1p(z**2 / (2 * a))

    def log_ratio(self, phi: np.ndarray) -> np.ndarray:
        """log density IN - log density OUT: the attack's score of margins phi (N,)."""
        inside, outside = self.log_density(phi)
        return inside - outside


@checked
def lira(
    target: Signals,
    references: Signals | None = None,
    *,
    offline: Flag = False,
    variance: str = "auto",
    centre: str = "mean",
    tail: str = "one_sided",
    ddof: Whole = 1,
    combine: str | None = None,
    missing: str = "raise",
    summary: Anything = None,
) -> np.ndarray:
    """Gaussian likelihood ratio of the margin: s = log N(phi_t; m_in, v_in) - log N(phi_t; m_out,
    v_out).

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        offline: OUT alone: z = (phi_t - m_out) / sqrt(v_out).
        variance: v of a side, SS = sum of squares around a sample's own mean: per_sample SS / (n -
            ddof); global sum SS / sum (n - ddof); shrunk (6 v_global + SS) / (6 + n - 1); auto =
            per_sample where every side has 32 references, else shrunk.
        centre: "mean" or "median".
        tail: offline, one_sided, or two_sided: -log N, which rewards low margins too (parity).
        ddof: of the variance.
        combine: llr averages s over queries; a name of `combine_queries` reduces the margins first;
            joint: one Gaussian over the Q margins, of the covariance 0.9 V + 0.1 diag V, V pooled
            within samples and over sides; mean_sd: that joint form of the queries' mean margin and
            log standard deviation.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        summary: `worlds_of` the references, where they are known already; None: computed here.

    Source: Carlini et al. 2022. Raises ValueError for missing sides and where no sample has two
    references on a side. Caveat: with reference counts that depend on the target's membership the
    score gives the design away, not the model.
    """
    one_of("variance", variance, ("auto", "per_sample", "global", "shrunk"))
    one_of("centre", centre, ("mean", "median"))
    one_of("tail", tail, ("one_sided", "two_sided"))
    need = ("out",) if offline else ("in", "out")
    side = sides("lira", target, references, need, missing, summary)
    combine = combination("lira", target.query_kind, combine)
    if combine in JOINT:
        if offline:
            raise ValueError(
                "lira: the joint forms compare both worlds; use offline=False, or combine='llr'"
            )
        return _joint(target, references, side, combine)
    n_smaller = side.n_out if offline else np.minimum(side.n_in, side.n_out)
    fewest = int(n_smaller[side.audited].min(initial=len(side.mask)))
    if variance == "auto":
        variance = "per_sample" if fewest >= 32 else "shrunk"
    if fewest < 4:
        warnings.warn(
            f"LiRA has {fewest} references on a side: RMIA and Student-t LiRA are steadier below 4",
            stacklevel=2,
        )
    if summary is None:
        summary = worlds_of(references, "lira", combine)
    pairs = per_query(target, references, "lira", combine)
    score = np.zeros(side.usable.shape)
    for query, (phi_t, phi) in enumerate(pairs):
        world_in, world_out = summary.of(query)
        v_in, v_out = _variances(world_in, world_out, side.audited, offline, variance, ddof)
        m_in, m_out = world_in.mean, world_out.mean
        if centre == "median":
            m_in, m_out = median(phi, side.mask), median(phi, ~side.mask)
        z = (phi_t - m_out) / np.sqrt(v_out)
        if not offline:
            score += (z**2 - (phi_t - m_in) ** 2 / v_in + np.log(v_out / v_in)) / 2
        elif tail == "two_sided":
            score += (z**2 + np.log(v_out)) / 2
        else:
            score += z
    return np.where(side.usable, score / len(pairs), np.nan)


def lira_fit(
    target: Signals,
    references: Signals,
    *,
    variance: str = "shrunk",
    combine: str = "margin",
) -> tuple[np.ndarray, Fit]:
    """(the target's margins (N,), the Gaussians that `lira` compares at them).

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        variance: per_sample, global or shrunk.
        combine: one margin for all queries, a name of `combine_queries`.

    log_ratio of the margins is the score of `lira` with these options; NaN where a side is missing.
    Raises ValueError where no sample has two references on a side, so that there is no variance,
    and for variance="auto".
    """
    one_of("variance", variance, ("per_sample", "global", "shrunk"))
    side = sides("lira", target, references, ("in", "out"), "nan")
    world_in, world_out = worlds_of(references, "lira", combine).of(0)
    variances = _variances(world_in, world_out, side.audited, False, variance, 1)
    means = (world_in.mean, world_out.mean)
    return target_margin(target, "lira", combine), _fit(side, means, variances, (np.inf, np.inf))


def nig_fit(
    target: Signals,
    references: Signals,
    *,
    combine: str = "margin",
) -> tuple[np.ndarray, Fit]:
    """(the target's margins (N,), the Student t predictives that `nig` compares at them).

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        combine: one margin for all queries, a name of `combine_queries`.

    log_ratio of the margins is the score of nig(..., combine, allow_unequal=True); NaN where a side
    is missing.
    """
    side = sides("nig", target, references, ("in", "out"), "nan")
    world_in, world_out = worlds_of(references, "nig", combine).of(0)
    centre, a, c = _nig_predictives(world_in, world_out, side.audited)
    return target_margin(target, "nig", combine), _fit(side, centre, c, (2 * a, 2 * a))


def _fit(
    side: Sides,
    centre: Sequence[np.ndarray],
    variance: Sequence[np.ndarray],
    freedom: Sequence[np.ndarray | float],
) -> Fit:
    """The fit of both sides, of each (N,); NaN where a side has no references."""
    n = np.stack([side.n_in, side.n_out])
    present = np.where(n > 0, 1.0, np.nan)
    freedom = np.stack([np.broadcast_to(degrees, n.shape[1:]) for degrees in freedom])
    return Fit(
        np.stack(centre) * present,
        np.sqrt(np.stack(variance)) * present,
        freedom,
        n,
    )


def _variances(
    world_in: World,
    world_out: World,
    audited: np.ndarray,
    offline: bool,
    variance: str,
    ddof: int,
) -> tuple:
    """(v_in, v_out) of every sample; v_in is None offline."""

    def of_side(name: str, n: np.ndarray, ss: np.ndarray) -> np.ndarray:
        """(N,) floored at 1e-12 + (1e-6 s_global)^2."""
        free = np.maximum(n - 1, 0)
        divisor = np.maximum(n - ddof, 0)
        if not free[audited].any():
            raise ValueError(
                f"lira: no sample has two {name} references, so there is no variance estimate:"
                " train more pairs, or use rmia"
            )
        overall = ss[audited].sum() / divisor[audited].sum()
        if variance == "global":
            out = np.full(ss.shape, overall)
        elif variance == "shrunk":
            out = (NU0 * overall + ss) / (NU0 + free)
        else:
            out = np.where(free > 0, ss / np.maximum(divisor, 1), overall)
            if not free[audited].all():
                warnings.warn(
                    "lira: samples with one reference on a side take the global variance",
                    stacklevel=4,
                )
        return np.maximum(out, 1e-12 + 1e-12 * overall)

    v_out = of_side("OUT", world_out.n, world_out.ss)
    return None if offline else of_side("IN", world_in.n, world_in.ss), v_out


def _joint(target: Signals, references: Signals, side: Sides, combine: str) -> np.ndarray:
    """log N(D; m_in, V) - log N(D; m_out, V) of the vector D of a sample's Q margins, V pooled over
    samples and sides.
    """
    observed = target.margin[0]
    margin = columns(references.margin)
    if combine == "mean_sd":
        for cubes in ((target.margin,), (margin[:, part] for part in blocks(*margin.shape))):
            if not any(np.ptp(cube, axis=1).any() for cube in cubes):
                raise ValueError(
                    "combine='mean_sd' needs several differing queries of a stochastic model; these"
                    " do not differ"
                )
        observed = _mean_and_log_sd(target.margin)[0]
        margin = margin.then(_mean_and_log_sd)
    dims, (models, samples) = len(observed), margin.shape
    free = np.array([n[side.audited].sum() - side.audited.sum() for n in (side.n_in, side.n_out)])
    if free.min() < 20 * dims:
        raise ValueError(
            f"lira: the joint form of {dims} signals needs {20 * dims} degrees of freedom on a side"
            f" and the references leave {free.min()}: train more pairs, or use combine='llr'"
        )
    signals = [margin.then(lambda vectors, d=d: vectors[:, d]) for d in range(dims)]
    both = worlds(signals, side.mask)
    m_in, m_out = both.total / np.maximum(both.n, 1)[:, None]
    cross = np.zeros((dims, dims))
    for part in blocks(models * dims, samples):
        mask = side.mask[:, part][:, None]
        used = side.audited[part]
        residual = (margin[:, part] - np.where(mask, m_in[:, part], m_out[:, part])) * used
        residual = residual.swapaxes(0, 1).reshape(dims, -1)
        cross += residual @ residual.T
    pooled = cross / free.sum()
    spread = np.diag(pooled)
    pooled = (1 - RHO) * pooled + np.diag(RHO * spread + 1e-12 * (1 + spread))
    score = np.einsum(
        "dn,dn->n", np.linalg.solve(pooled, m_in - m_out), observed - (m_in + m_out) / 2
    )
    return np.where(side.usable, score, np.nan)


def _mean_and_log_sd(margin: np.ndarray) -> np.ndarray:
    """(M, Q, N) -> (M, 2, N): mean and log standard deviation over the queries."""
    return np.stack([margin.mean(1), np.log(np.maximum(margin.std(1, ddof=1), 1e-9))], axis=1)


@checked
def nig(
    target: Signals,
    references: Signals | None = None,
    *,
    offline: Flag = False,
    combine: str | None = None,
    missing: str = "raise",
    allow_unequal: Flag = False,
    summary: Anything = None,
) -> np.ndarray:
    """Bayesian variance for few references: ratio of Student-t predictives under a
    normal-inverse-gamma prior.

        s = lt(phi_t; 2a, m_in, c_in) - lt(phi_t; 2a, m_out, c_out)

        for a side with n references and a prior of kappa0 of them, k = kappa0 + n:
        m = (kappa0 mu0 + n xbar) / k
        c = b (k + 1) / (a k)
        a = a0 + (n_in + n_out - 1) / 2
        b = b0 + sum over sides of [SS + kappa0 n (xbar - mu0)^2 / k] / 2

    OUT has kappa0 = 0; IN has kappa0 = 1 and mu0 = xbar_out + the mean over samples of (xbar_in -
    xbar_out). a0 and b0 match the moments of log SS over samples; with one pair the variance is
    that of (xbar_in - xbar_out) / sqrt 2 over samples.

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        offline: log T_cdf of the OUT predictive alone.
        combine: llr averages s over queries; a name of `combine_queries` reduces the margins first.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        allow_unequal: for designs, as Bernoulli, whose reference counts differ between samples but
            cannot follow the target's membership.
        summary: `worlds_of` the references, where they are known already; None: computed here.

    Source: our formulation of the idea of arXiv 2603.11799. Raises ValueError for missing sides and
    when reference counts differ between samples: the scale depends on them, so counts that follow
    the target's membership leak the design.
    """
    need = ("out",) if offline else ("in", "out")
    side = sides("nig", target, references, need, missing, summary)
    for count in (side.n_out,) if offline else (side.n_in, side.n_out):
        if not allow_unequal and np.ptp(count[side.audited]):
            raise ValueError(
                "nig needs as many references a side for every sample, else the score leaks the"
                " design: use complementary pairs with the complementary model held out, or"
                " allow_unequal=True if the counts cannot follow the target's membership"
            )
    combine = combination("nig", target.query_kind, combine)
    if summary is None:
        summary = worlds_of(references, "nig", combine)
    pairs = per_query(target, references, "nig", combine)
    score = np.zeros(side.usable.shape)
    for query, (phi_t, _) in enumerate(pairs):
        world_in, world_out = summary.of(query)
        if offline:
            score += _nig_offline(phi_t, world_out, side.audited)
        else:
            score += _nig_online(phi_t, world_in, world_out, side.audited)
    return np.where(side.usable, score / len(pairs), np.nan)


def _nig_online(
    phi_t: np.ndarray, world_in: World, world_out: World, audited: np.ndarray
) -> np.ndarray:
    (m_in, m_out), a, (c_in, c_out) = _nig_predictives(world_in, world_out, audited)
    return _log_t(phi_t - m_in, a, c_in) - _log_t(phi_t - m_out, a, c_out)


def _nig_predictives(
    world_in: World, world_out: World, audited: np.ndarray
) -> tuple[tuple, np.ndarray, tuple]:
    """((m_in, m_out), a, (c_in, c_out)): Student's t with 2a degrees of freedom, centre m, scale^2
    c.
    """
    n_in = np.maximum(world_in.n, 1)
    n_out = np.maximum(world_out.n, 1)
    gap = world_in.mean - world_out.mean
    a0, b0 = variance_prior(
        n_in + n_out - 2, world_in.ss + world_out.ss, audited, between=gap[audited]
    )
    k = KAPPA0 + n_in
    shift = gap[audited].mean()
    centre = (KAPPA0 * (world_out.mean + shift) + n_in * world_in.mean) / k
    pull = KAPPA0 * n_in * (gap - shift) ** 2 / k
    a = a0 + (n_in / 2 + (n_out - 1) / 2)
    b = b0 + ((world_in.ss + pull) / 2 + world_out.ss / 2)
    c_in = b * (k + 1) / (a * k)
    c_out = b * (n_out + 1) / (a * n_out)
    return (centre, world_out.mean), a, (c_in, c_out)


def _log_t(gap: np.ndarray, a: np.ndarray, c: np.ndarray) -> np.ndarray:
    """log density at distance gap of Student's t, 2a degrees of freedom, scale^2 c, up to terms in
    a.
    """
    return -np.log(c) / 2 - (a + 0.5) * np.log1p(gap**2 / (2 * a * c))


def _nig_offline(phi_t: np.ndarray, world: World, audited: np.ndarray) -> np.ndarray:
    n = np.maximum(world.n, 1)
    if not (n[audited] > 1).any():
        raise ValueError(
            "nig: one OUT reference leaves no variance estimate offline: use rmia(offline=True) or"
            " train more pairs"
        )
    a0, b0 = variance_prior(n - 1, world.ss, audited)
    a = a0 + (n - 1) / 2
    z = (phi_t - world.mean) / np.sqrt((b0 + world.ss / 2) * (n + 1) / (a * n))
    return _log_t_cdf(z, 2 * a)


def variance_prior(
    free: np.ndarray,
    ss: np.ndarray,
    audited: np.ndarray,
    between: np.ndarray | None = None,
) -> tuple[float, float]:
    """Inverse-gamma (a0, b0) of the variances, from E and var of log SS: var = trigamma(a0) +
    trigamma(d/2).
    """
    used = audited & (free > 0)
    if not used.any():
        warnings.warn(
            "Student-t LiRA has one pair only: its variance, the spread of samples, is a guess",
            stacklevel=4,
        )
        a0 = 3.0  # the prior's mean is b0 / (a0 - 1)
        return a0, (a0 - 1) * max(between.var() / 2, 1e-6)
    half = free[used] / 2
    variance = ss[used] / free[used]
    log_variance = (
        np.log(np.maximum(variance, 1e-12 + 1e-12 * variance.mean())) - digamma(half) + np.log(half)
    )
    excess = log_variance.var() - polygamma(1, half).mean()
    a0 = PRIOR_CAP
    if excess > polygamma(1, PRIOR_CAP):
        from scipy.optimize import brentq

        a0 = np.exp(
            brentq(lambda x: np.log(polygamma(1, np.exp(x)) / excess), -30, np.log(PRIOR_CAP))
        )
    return a0, np.exp(log_variance.mean() + digamma(a0))


def _log_t_cdf(z: np.ndarray, nu: np.ndarray) -> np.ndarray:
    """log of Student's t distribution function, by the series of the incomplete beta function where
    it underflows.
    """
    tail = stdtr(nu, -np.abs(z))
    out = np.log1p(-tail)
    low = z < 0
    out[low] = np.log(np.maximum(tail[low], 1e-300))
    far = low & (tail < 1e-290)
    if far.any():
        a = nu[far] / 2
        y = nu[far] / (nu[far] + z[far] ** 2)
        series = np.log(hyp2f1(a + 0.5, 1, a + 1, y)) - betaln(a, 0.5) - np.log(2 * a)
        out[far] = a * np.log(y) + np.log1p(-y) / 2 + series
    return out
