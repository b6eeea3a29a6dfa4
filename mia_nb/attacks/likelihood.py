"""Attacks by likelihood ratio: `lira`, its joint form, and `nig`.

A model's margin at a sample is phi = log p - log(1 - p), where p is the probability that the model
gives the label. Each attack compares how likely the target's margin is under two distributions:
that of the reference models trained with the sample (IN), and that of those trained without it
(OUT). `lira` takes both as Gaussians, `nig` as Student's t, which allows for the poor variance
estimate of few references.

In names, _t is the target's, _in and _out the two sides'; m is a centre, v a variance, and ss a sum
of squares around the mean.
"""

from __future__ import annotations

import warnings

import numpy as np
from scipy.special import betaln, digamma, hyp2f1, polygamma, stdtr

from mia_nb.arguments import Anything, Count, Flag
from mia_nb.attacks.inputs import Sides, combination, compared_margins, count_sides
from mia_nb.attacks.reading import JOINT, combined, medians_of, vector_blocks
from mia_nb.attacks.summaries import World, scatter_matrix, worlds_of
from mia_nb.checks import checked, one_of, quantity
from mia_nb.types import Signals

MANY_REFERENCES = 32  # with so many on each side, lira uses each sample's own variance
NU0 = 6.0  # weight, in references, of all samples' variance in variance="shrunk"
RHO = 0.1  # weight of the diagonal in the joint forms' covariance
KAPPA0 = 1.0  # weight, in references, of the prior in nig's centre of IN
PRIOR_CAP = 5000.0  # nig's a0 where all samples' variances look alike


@checked
def lira(
    target: Signals,
    references: Signals | None = None,
    *,
    offline: Flag = False,
    variance: str = "auto",
    centre: str = "mean",
    tail: str = "one_sided",
    ddof: Count = 1,
    combine: str | None = None,
    missing: str = "raise",
    summary: Anything = None,
) -> np.ndarray:
    """Gaussian likelihood ratio of the margin (LiRA).

        online:   s = log N(phi_t; m_in, v_in) - log N(phi_t; m_out, v_out)
        offline:  s = (phi_t - m_out) / sqrt(v_out)

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        offline: whether only OUT references are used.
        variance: how a side's v is estimated, see below; "auto" takes per_sample where every sample
            has 32 references on each side, else shrunk.
        centre: a side's m, the "mean" or the "median" of its margins.
        tail: of the offline form. "one_sided", or "two_sided": -log N(phi_t; m_out, v_out), which
            rewards low margins as much as high ones.
        ddof: of the variances, see below: 0 or 1.
        combine: "llr" averages s over queries; a name of `combine_queries` reduces the margins
            first; "joint" compares the vectors of a sample's Q margins as Gaussians with the
            covariance 0.9 V + 0.1 diag V, V pooled over samples and sides; "mean_sd" does the same
            with the mean and the log standard deviation of the Q margins.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        summary: `worlds_of` the references, where they are known already; None: computed here.

    Returns:
        (N,) scores in nats (offline in standard deviations), NaN for samples that lack a side.

    Variances, where SS is the sum of squares of a sample's n margins around their mean:
        per_sample: SS / (n - ddof).
        global: sum SS / sum (n - ddof) over samples, one number for all.
        shrunk: (6 v_global + SS) / (6 + n - 1), between the two.

    Raises:
        ValueError: for missing sides, and where no sample has two references on a side.

    Example:
        >>> from mia_nb import load_example, metrics
        >>> signals = load_example("cifar10/resnet14")  # 16 models, 50,000 images
        >>> target, references = signals.hold_out(0)
        >>> score = lira(target, references)
        >>> round(metrics.auc(score, signals.member[0]), 2)
        0.56

    Source: Carlini et al. 2022, Membership Inference Attacks From First Principles (arXiv
    2112.03570).

    Caveat: where reference counts depend on the target's membership, the score reveals the design,
    not the model.
    """
    one_of("variance", variance, ("auto", "per_sample", "global", "shrunk"))
    one_of("centre", centre, ("mean", "median"))
    one_of("tail", tail, ("one_sided", "two_sided"))
    if ddof > 1:
        raise ValueError(f"lira: ddof={ddof}; wanted 0 or 1")
    needed_sides = ("out",) if offline else ("in", "out")
    sides = count_sides("lira", target, references, needed_sides, missing, summary)
    combine = combination("lira", target.query_kind, combine)
    if combine in JOINT:
        if offline:
            raise ValueError(
                "lira: the joint forms compare both worlds; use offline=False, or combine='llr'"
            )
        return _joint(target, references, sides, combine)
    references_a_side = sides.n_out if offline else np.minimum(sides.n_in, sides.n_out)
    fewest = int(references_a_side[sides.audited].min(initial=references.shape[0]))
    if variance == "auto":
        variance = "per_sample" if fewest >= MANY_REFERENCES else "shrunk"
    if fewest < 4:
        warnings.warn(
            f"LiRA has {quantity(fewest, 'reference')} on a side: RMIA and Student-t LiRA are"
            " steadier below 4",
            stacklevel=2,
        )
    margins = compared_margins(target, combine)
    if summary is None:
        summary = worlds_of(references, combine)
    medians = medians_of(references, combine) if centre == "median" else None
    score = np.zeros(sides.usable.shape)
    for query, phi_t in enumerate(margins):
        world_in, world_out = summary.of(query)
        if medians is None:
            m_in = world_in.mean
            m_out = world_out.mean
        else:
            m_in, m_out = medians[:, query]
        v_out = variance_of("OUT", world_out, sides.audited, variance, ddof)
        z_out = (phi_t - m_out) / np.sqrt(v_out)
        if offline and tail == "one_sided":
            score += z_out
        elif offline:
            # -log N(phi_t; m_out, v_out), without its constant
            score += (z_out**2 + np.log(v_out)) / 2
        else:
            v_in = variance_of("IN", world_in, sides.audited, variance, ddof)
            score += (z_out**2 - (phi_t - m_in) ** 2 / v_in + np.log(v_out / v_in)) / 2
    return np.where(sides.usable, score / len(margins), np.nan)


def variance_of(
    side_name: str, world: World, audited: np.ndarray, variance: str, ddof: int
) -> np.ndarray:
    """(N,) variance of a side's margins by one of the forms that `lira` lists, above 0."""
    degrees_of_freedom = np.maximum(world.n - 1, 0)
    divisor = np.maximum(world.n - ddof, 0)
    if not degrees_of_freedom[audited].any():
        raise ValueError(
            f"lira: no sample has two {side_name} references, so there is no variance estimate:"
            " train more pairs, or use rmia"
        )
    overall = world.ss[audited].sum() / divisor[audited].sum()
    if variance == "global":
        v = np.full(world.ss.shape, overall)
    elif variance == "shrunk":
        v = (NU0 * overall + world.ss) / (NU0 + degrees_of_freedom)
    else:
        v = np.where(degrees_of_freedom > 0, world.ss / np.maximum(divisor, 1), overall)
        if not degrees_of_freedom[audited].all():
            warnings.warn(
                "lira: samples with one reference on a side take the global variance",
                stacklevel=3,
            )
    return np.maximum(v, 1e-12 + 1e-12 * overall)


def _joint(target: Signals, references: Signals, sides: Sides, combine: str) -> np.ndarray:
    """(N,) log N(D; m_in, V) - log N(D; m_out, V) of the vector D of a sample's margins.

    The covariance V is that of all samples, so that the ratio is linear in D:
    (m_in - m_out)' V^-1 (D - (m_in + m_out) / 2).
    """
    if combine == "mean_sd":
        _refuse_equal_queries(target, references)
    observed = combined(target.margin, combine)[0]
    numbers = len(observed)
    samples = sides.audited.sum()
    free_in = sides.n_in[sides.audited].sum() - samples  # degrees of freedom
    free_out = sides.n_out[sides.audited].sum() - samples
    fewest = min(free_in, free_out)
    if fewest < 20 * numbers:
        raise ValueError(
            f"lira: the joint form of {numbers} numbers a sample needs {20 * numbers} degrees of"
            f" freedom on a side and the references leave {fewest}: train more pairs, or use"
            " combine='llr'"
        )
    worlds = worlds_of(references, combine)
    m_in, m_out = worlds.means()
    no_scaling = np.broadcast_to(1.0, m_in.shape)
    parts = vector_blocks(references.margin, references.member, combine)
    scatter = scatter_matrix(parts, m_in, m_out, no_scaling, sides.audited)
    covariance = scatter / (free_in + free_out)
    diagonal = np.diag(covariance)
    covariance = (1 - RHO) * covariance + np.diag(RHO * diagonal + 1e-12 * (1 + diagonal))
    direction = np.linalg.solve(covariance, m_in - m_out)
    score = np.einsum("dn,dn->n", direction, observed - (m_in + m_out) / 2)
    return np.where(sides.usable, score, np.nan)


def _refuse_equal_queries(target: Signals, references: Signals) -> None:
    """ValueError if the target, or every reference, answers all queries of each sample equally."""
    parts = vector_blocks(references.margin, references.member)
    target_differs = np.ptp(target.margin, axis=1).any()
    references_differ = any(np.ptp(margin, axis=1).any() for _, margin, _ in parts)
    if not (target_differs and references_differ):
        raise ValueError(
            "combine='mean_sd' needs several differing queries of a stochastic model; these do not"
            " differ"
        )


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
    """Student-t likelihood ratio for few references: LiRA with a prior of the variances that is
    learned from all samples (normal-inverse-gamma, NIG).

        s = log t(phi_t; 2a, m_in, c_in) - log t(phi_t; 2a, m_out, c_out)

    t(.; nu, m, c) is Student's t with nu degrees of freedom, centre m and squared scale c. For a
    side with n references of mean xbar and a prior centre mu0 that counts as kappa0 references,
    k = kappa0 + n and

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
        offline: whether only OUT references are used; s is then the log of the OUT predictive's
            distribution function at phi_t.
        combine: llr averages s over queries; a name of `combine_queries` reduces the margins first.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        allow_unequal: whether reference counts may differ between samples; right for designs such
            as Bernoulli, in which they do not depend on the target's membership.
        summary: `worlds_of` the references, where they are known already; None: computed here.

    Returns:
        (N,) scores in nats, NaN for samples that lack a side.

    Raises:
        ValueError: for missing sides, where no sample has both of them, where none has two OUT
            references and `offline` is true, and where reference counts differ between samples: the
            scale depends on them, so counts that depend on the target's membership reveal the
            design.

    Example:
        >>> from mia_nb import load_example, metrics
        >>> signals = load_example("cifar10/resnet14")  # 16 models, 50,000 images
        >>> target, references = signals.hold_out(0)
        >>> score = nig(target, references)
        >>> round(metrics.auc(score, signals.member[0]), 2)
        0.57

    Source: our formulation of the idea of arXiv 2603.11799.
    """
    needed_sides = ("out",) if offline else ("in", "out")
    sides = count_sides("nig", target, references, needed_sides, missing, summary)
    counts = [sides.n_out] if offline else [sides.n_in, sides.n_out]
    if not allow_unequal and any(len(np.unique(count[sides.audited])) > 1 for count in counts):
        raise ValueError(
            "nig needs as many references a side for every sample, else the score leaks the"
            " design: use complementary pairs with the complementary model held out, or"
            " allow_unequal=True if the counts cannot follow the target's membership"
        )
    combine = combination("nig", target.query_kind, combine)
    margins = compared_margins(target, combine)
    if summary is None:
        summary = worlds_of(references, combine)
    score = np.zeros(sides.usable.shape)
    for query, phi_t in enumerate(margins):
        world_in, world_out = summary.of(query)
        if offline:
            score += _nig_offline(phi_t, world_out, sides.audited)
        else:
            score += _nig_online(phi_t, world_in, world_out, sides.audited)
    return np.where(sides.usable, score / len(margins), np.nan)


def _nig_online(
    phi_t: np.ndarray, world_in: World, world_out: World, audited: np.ndarray
) -> np.ndarray:
    """(N,) `nig`'s score from both sides."""
    (m_in, m_out), a, (c_in, c_out) = nig_predictives(world_in, world_out, audited)
    log_t_in = _log_t(phi_t - m_in, a, c_in)
    log_t_out = _log_t(phi_t - m_out, a, c_out)
    return log_t_in - log_t_out


def nig_predictives(
    world_in: World, world_out: World, audited: np.ndarray
) -> tuple[tuple, np.ndarray, tuple]:
    """((m_in, m_out), a, (c_in, c_out)) as `nig` defines them, (N,) each."""
    if not audited.any():
        raise ValueError(
            "nig: no sample has both an IN and an OUT reference, from which it learns how the two"
            " differ: train more models"
        )
    n_in = np.maximum(world_in.n, 1)
    n_out = np.maximum(world_out.n, 1)
    gap = world_in.mean - world_out.mean
    mean_gap = gap[audited].mean()
    degrees_of_freedom = n_in + n_out - 2
    ss = world_in.ss + world_out.ss
    a0, b0 = variance_prior(degrees_of_freedom, ss, audited, between=gap[audited])
    a = a0 + (n_in / 2 + (n_out - 1) / 2)
    # OUT has no prior centre, so that its centre is its mean
    prior_centre = world_out.mean + mean_gap  # of IN
    k = KAPPA0 + n_in
    m_in = (KAPPA0 * prior_centre + n_in * world_in.mean) / k
    ss_of_prior = KAPPA0 * n_in * (gap - mean_gap) ** 2 / k
    b = b0 + ((world_in.ss + ss_of_prior) / 2 + world_out.ss / 2)
    c_in = b * (k + 1) / (a * k)
    c_out = b * (n_out + 1) / (a * n_out)
    return (m_in, world_out.mean), a, (c_in, c_out)


def _log_t(distance: np.ndarray, a: np.ndarray, c: np.ndarray) -> np.ndarray:
    """log density of Student's t (2a degrees of freedom, squared scale c) at a distance from its
    centre, without the terms in a alone, which are the same on both sides.
    """
    return -np.log(c) / 2 - (a + 0.5) * np.log1p(distance**2 / (2 * a * c))


def _nig_offline(phi_t: np.ndarray, world: World, audited: np.ndarray) -> np.ndarray:
    """(N,) `nig`'s score from the OUT side."""
    n = np.maximum(world.n, 1)
    if not (n[audited] > 1).any():
        raise ValueError(
            "nig: one OUT reference leaves no variance estimate offline: use rmia(offline=True) or"
            " train more pairs"
        )
    a0, b0 = variance_prior(n - 1, world.ss, audited)
    a = a0 + (n - 1) / 2
    b = b0 + world.ss / 2
    c = b * (n + 1) / (a * n)
    z = (phi_t - world.mean) / np.sqrt(c)
    return _log_t_cdf(z, 2 * a)


def variance_prior(
    degrees_of_freedom: np.ndarray,
    ss: np.ndarray,
    audited: np.ndarray,
    between: np.ndarray | None = None,
) -> tuple[float, float]:
    """The inverse-gamma prior (a0, b0) of samples' variances, by the moments of their logarithms.

    Parameters:
        degrees_of_freedom: (N,) of each sample's variance, d below.
        ss: (N,) sums of squares.
        audited: (N,) samples to learn from.
        between: differences of the sides' means, one for each sample; they give the variance where
            no sample has degrees of freedom.

    The variance of log(SS / d) over samples is trigamma(a0), since true variances differ, plus
    trigamma(d / 2), the error of an estimate from d degrees of freedom. Its mean gives b0.
    """
    used = audited & (degrees_of_freedom > 0)
    if not used.any():
        warnings.warn(
            "Student-t LiRA has one pair only: its variance, the spread of samples, is a guess",
            stacklevel=4,
        )
        a0 = 3.0  # the prior's mean is b0 / (a0 - 1)
        return a0, (a0 - 1) * max(between.var() / 2, 1e-6)
    d = degrees_of_freedom[used]
    variance = ss[used] / d
    positive = np.maximum(variance, 1e-12 + 1e-12 * variance.mean())
    # the logarithm of such an estimate is on average off by digamma(d / 2) - log(d / 2)
    log_variance = np.log(positive) - digamma(d / 2) + np.log(d / 2)
    excess = log_variance.var() - polygamma(1, d / 2).mean()  # the spread of true variances
    a0 = PRIOR_CAP
    if excess > polygamma(1, PRIOR_CAP):
        from scipy.optimize import brentq  # takes a moment to import, and not every score needs it

        # trigamma(a0) = excess, solved for log a0
        log_a0 = brentq(lambda x: np.log(polygamma(1, np.exp(x)) / excess), -30, np.log(PRIOR_CAP))
        a0 = np.exp(log_a0)
    return a0, np.exp(log_variance.mean() + digamma(a0))


def _log_t_cdf(z: np.ndarray, nu: np.ndarray) -> np.ndarray:
    """(N,) log of the distribution function of Student's t with nu degrees of freedom.

    Far below the centre the function underflows; there the series of the incomplete beta function
    gives its logarithm.
    """
    tail = stdtr(nu, -np.abs(z))
    out = np.log1p(-tail)
    below = z < 0
    out[below] = np.log(np.maximum(tail[below], 1e-300))
    far = below & (tail < 1e-290)
    if far.any():
        a = nu[far] / 2
        y = nu[far] / (nu[far] + z[far] ** 2)
        series = np.log(hyp2f1(a + 0.5, 1, a + 1, y)) - betaln(a, 0.5) - np.log(2 * a)
        out[far] = a * np.log(y) + np.log1p(-y) / 2 + series
    return out
