"""LiRA whose gap and variances are smoothed over samples: for few references, and for several
releases of one model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.polynomial.legendre import legval, legvander
from scipy.special import digamma

from mia_nb.arguments import Anything, Count
from mia_nb.attacks.inputs import Sides, combination, combined_margin, count_sides
from mia_nb.attacks.reading import VectorBlock, vector_blocks
from mia_nb.attacks.summaries import Worlds, scatter_matrix, worlds_of
from mia_nb.checks import checked
from mia_nb.types import Signals

SAMPLES_A_DEGREE = 10  # fewest samples for each degree, so that curves do not follow single ones
FLOOR = 1e-12  # of a variance, for samples on which all references agree


@checked
def lira_smooth(
    target: Signals,
    references: Signals | None = None,
    *,
    degree: Count = 6,
    combine: str | None = None,
    missing: str = "raise",
    summary: Anything = None,
) -> np.ndarray:
    """Gaussian likelihood ratio whose gap and variances are learned over all samples.

    With k references a side, the gap m_in - m_out between a sample's two mean margins has the
    variance 2 v / k: with few references it is mostly noise, and `lira` multiplies the target's
    margin by it. But how much a sample's margin gains by training depends on how hard the sample
    is, which samples share. So each sample keeps its own level, the middle of its two means, and
    everything else is a smooth function of the level:

        level = (m_in + m_out) / 2
        gap = f(level), regressed on m_in - m_out
        v_in, v_out = exp(g(level)), regressed on the logarithms of the samples' own variances
        s = log N(phi_t; level + gap / 2, v_in) - log N(phi_t; level - gap / 2, v_out)

    f and g are polynomials of the level's rank among the audited samples, by least squares. The
    logarithm of a variance estimated with d degrees of freedom has the bias digamma(d / 2) -
    log(d / 2), which is subtracted.

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        degree: of the polynomials, 0 to 20, and at most one for every 10 samples; 0 is one gap and
            one variance a side for all samples.
        combine: how queries are combined, a name of `combine_queries`; None: their mean margin.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        summary: `worlds_of` the references, where they are known already; None: computed here.

    Returns:
        (N,) scores, larger = more likely a member; NaN for population samples, which no model was
        trained on.

    Raises:
        ValueError: for missing sides, and where no sample has two references on either side.

    Source: our own; the likelihood ratio is that of Carlini et al. 2022.
    Caveat: it is for few references. On 64 networks its AUC was above that of `lira` with 2 to 31
    references a side, by less the more there were.
    """
    _check_degree(degree)
    sides = count_sides("lira_smooth", target, references, ("in", "out"), missing, summary)
    combine = combination("lira_smooth", target.query_kind, combine)
    phi_t = combined_margin(target, combine)
    if summary is None:
        summary = worlds_of(references, combine)
    world_in, world_out = summary.of(0)
    learned, degree = _samples_to_learn_from("lira_smooth", sides, degree)
    level = (world_in.mean + world_out.mean) / 2
    curves = Smoother(level[learned], degree)
    log_variance_in = _log_variance(world_in.ss[learned], world_in.n[learned] - 1)
    log_variance_out = _log_variance(world_out.ss[learned], world_out.n[learned] - 1)

    distance = phi_t - level
    gap = curves.fitted((world_in.mean - world_out.mean)[learned], level)
    log_in = curves.fitted(log_variance_in, level)
    log_out = curves.fitted(log_variance_out, level)
    score = (
        (distance + gap / 2) ** 2 / np.exp(log_out)
        - (distance - gap / 2) ** 2 / np.exp(log_in)
        + log_out
        - log_in
    ) / 2
    return np.where(sides.usable, score, np.nan)


@checked
def releases(
    target: Signals,
    references: Signals | None = None,
    *,
    degree: Count = 6,
    missing: str = "raise",
    summary: Anything = None,
) -> np.ndarray:
    """Gaussian likelihood ratio of the margins that several releases of one model give a sample.

    Every release is trained on the same members, so each is evidence; but margins of several
    releases are correlated, so the evidence does not simply add up. Let phi be the vector of one
    margin for each release, of the target and of every reference:

        level_r = (m_in,r + m_out,r) / 2, the sample's own
        gap_r = f_r(level), spread_r = exp(g_r(level)), smooth functions as in `lira_smooth`
        z_r = (phi_r - level_r) / spread_r, h_r = gap_r / spread_r
        s = h^T C^-1 z

    level is the mean of level_r. C is the covariance of the references' standardised residuals,
    pooled over samples and sides: s is log N(phi; IN) - log N(phi; OUT) of two Gaussians that
    differ in their means alone. A single release is scored by `lira_smooth`, whose two sides have
    variances of their own.

    Parameters:
        target: signals of one model, a release in place of each query (`Signals.of_releases`).
        references: signals of the other models, of the same releases, membership included.
        degree: of the polynomials, 0 to 20, and at most one for every 10 samples.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        summary: `worlds_of` the releases, where they are known already; None: computed here.

    Returns:
        (N,) scores, larger = more likely a member; NaN for population samples.

    Raises:
        ValueError: for missing sides, and where no sample has two references on either side.

    Source: our own; the likelihood ratio is that of Carlini et al. 2022.
    Caveat: it needs an attacker who kept the earlier releases and trains references through all of
    them.
    """
    _check_degree(degree)
    if target.shape[1] == 1:
        return lira_smooth(target, references, degree=degree, missing=missing, summary=summary)
    sides = count_sides("releases", target, references, ("in", "out"), missing, summary)
    if summary is None:
        summary = worlds_of(references, "llr")
    blocks = vector_blocks(references.margin, references.member)
    parts = standardised("releases", target.margin[0], blocks, sides, summary, degree)
    # a pseudo-inverse, since releases may be copies of each other
    weights = np.linalg.pinv(parts.shared, hermitian=True) @ parts.gap
    return np.where(sides.usable, np.einsum("rn,rn->n", weights, parts.target), np.nan)


class Standardised(NamedTuple):
    """R numbers a sample, relative to the sample's own level and in units of their spread."""

    target: np.ndarray  # (R, N)
    gap: np.ndarray  # (R, N) between members and others, a smooth function of the level
    shared: np.ndarray  # (R, R) covariance of the references' residuals
    learned: np.ndarray  # (N,) bool: the samples that gap and spread were learned on
    degree: int  # of the polynomials


def standardised(
    attack: str,
    target_columns: np.ndarray,
    reference_blocks: Iterable[VectorBlock],
    sides: Sides,
    summary: Worlds,
    degree: int,
    *,
    leading: int | None = None,
) -> Standardised:
    """The parts of a likelihood ratio of several numbers a sample; equations in `releases`.

    Parameters:
        attack: the name in error messages.
        target_columns: (R, N) numbers of the target.
        reference_blocks: the R numbers of the references.
        sides: numbers of references of each sample.
        summary: the worlds of these R numbers, a query for each.
        degree: of the polynomials, 0 to 20, and at most one for every 10 samples.
        leading: how many of the R, from the first on, define a sample's level; None: all.
    """
    learned, degree = _samples_to_learn_from(attack, sides, degree)
    mean_in, mean_out = summary.means()
    levels = (mean_in + mean_out) / 2
    level = levels[:leading].mean(0)
    curves = Smoother(level[learned], degree)
    # both sides have one variance, with a degree of freedom lost to each mean
    degrees_of_freedom = (sides.n_in + sides.n_out - 2)[learned]
    gap = np.empty(levels.shape)
    spread = np.empty(levels.shape)
    for number in range(len(levels)):
        world_in, world_out = summary.of(number)
        log_variance = _log_variance((world_in.ss + world_out.ss)[learned], degrees_of_freedom)
        gap[number] = curves.fitted((world_in.mean - world_out.mean)[learned], level)
        spread[number] = np.exp(curves.fitted(log_variance, level) / 2)
    shared = scatter_matrix(reference_blocks, mean_in, mean_out, spread, learned)
    shared /= degrees_of_freedom.sum()
    return Standardised((target_columns - levels) / spread, gap / spread, shared, learned, degree)


def _check_degree(degree: int) -> None:
    if degree > 20:
        raise ValueError(f"degree={degree}: wanted 20 at most; 6 is the default")


def _samples_to_learn_from(attack: str, sides: Sides, degree: int) -> tuple[np.ndarray, int]:
    """(N,) bool: the samples that curves are learned on, those with two references on either side;
    and the degree that their number supports.
    """
    learned = sides.audited & (sides.n_in > 1) & (sides.n_out > 1)
    if not learned.any():
        raise ValueError(
            f"{attack}: no sample has two references on either side, so there is no variance"
            " estimate: train more pairs, or use rmia"
        )
    return learned, min(degree, int(learned.sum()) // SAMPLES_A_DEGREE)


def _log_variance(ss: np.ndarray, degrees_of_freedom: np.ndarray) -> np.ndarray:
    """Unbiased logarithms of the variances that these sums of squares estimate."""
    variance = ss / degrees_of_freedom
    floor = FLOOR * (1 + variance.mean())
    half = degrees_of_freedom / 2
    bias = digamma(half) - np.log(half)
    return np.log(np.maximum(variance, floor)) - bias


class Smoother:
    """Fits curves to values at the same levels (n,): polynomials of the rank among the levels, by
    least squares.

    They are Legendre polynomials, which are nearly orthogonal whatever the scale of the levels.
    """

    def __init__(self, level: np.ndarray, degree: int) -> None:
        self.ordered = np.sort(level)
        self.basis = legvander(self._rank(level), degree)
        self.normal = np.linalg.pinv(self.basis.T @ self.basis, hermitian=True)

    def fitted(self, values: np.ndarray, at: np.ndarray) -> np.ndarray:
        """The curve fitted to values (n,), evaluated at any levels."""
        weights = self.normal @ (self.basis.T @ values)
        return legval(self._rank(at), weights)

    def _rank(self, at: np.ndarray) -> np.ndarray:
        """Mid-rank among the levels, scaled from -1 to 1."""
        below = np.searchsorted(self.ordered, at, "left")
        up_to = np.searchsorted(self.ordered, at, "right")
        return (below + up_to) / len(self.ordered) - 1
