"""Several attacks weighed by a model that is fitted on the references, each of them in turn as a
pseudo-target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.polynomial.legendre import legvander
from scipy.special import gammaln

from mia_nb.attacks.inputs import sides
from mia_nb.attacks.learned import standardised
from mia_nb.attacks.likelihood import nig, variance_prior
from mia_nb.attacks.margins import over_queries
from mia_nb.attacks.reference import attack_r, rmia
from mia_nb.types import Signals

DEGREE = 8  # of the polynomials of the samples' ranks
TAIL = 0.8  # the share of pseudo non-members below the centre of the second fit's weights
PENALTY = 0.1  # scikit-learn's C


def fused(
    target: Signals,
    references: Signals | None = None,
    *,
    pseudo=8,
    max_rows=200_000,
    missing="raise",
    allow_unequal=False,
    seed=0,
) -> np.ndarray:
    """Log-odds of "member" from several attacks' scores, weighed by how they did on pseudo-targets.

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        pseudo: most pseudo-targets, 2 or more.
        max_rows: rows (pseudo-target, sample) to fit on, the same samples of each.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        allow_unequal: as in `nig`.
        seed: of the pseudo-targets and samples.

    References, drawn in complementary pairs, play the target in turn, their complements held out of
    their references; a logistic regression of their known membership is fitted on the features of
    `_features`, in squares and products where these describe a sample, then again with weights 1 /
    (1 + exp(-4 (s - q) / sd s)), q the TAIL quantile of s over non-members: low false positive
    rates are decided in that tail. The target's membership is never read.

    Source: stacking, Wolpert 1992; the attacks, Carlini et al. 2022 and Zarifzadeh et al. 2024.
    Raises ValueError for missing sides, for pseudo-targets without two references a side (three
    pairs besides the target's are the least), and as `nig` does for reference counts that differ
    between samples. Population columns are NaN. Caveat: every target costs `pseudo` times the
    attacks that are fused, and two fits; at low false positive rates the gain over the best single
    attack is small, and with few hundred samples of hardly trained models a single attack can be
    better.
    """
    from sklearn.linear_model import LogisticRegression  # a second of start-up

    usable = np.flatnonzero(sides("fused", target, references, ("in", "out"), missing).audited)
    known = references.select(samples=usable)
    pairs = np.unique(known.member ^ known.member[:, :1], axis=0, return_inverse=True)[1].ravel()
    if not isinstance(pseudo, (int, np.integer)) or pseudo < 2 or max_rows < 100 * pseudo:
        raise ValueError(
            f"pseudo={pseudo!r}, max_rows={max_rows!r}: wanted 2 or more pseudo-targets, and 100"
            " rows or more for each; the defaults are 8 and 200000"
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(pairs.max() + 1)
    rows = np.concatenate([np.flatnonzero(pairs == pair) for pair in order])[:pseudo]
    if (most := max_rows // len(rows)) < len(usable):
        known = known.select(samples=np.sort(rng.choice(len(usable), most, replace=False)))
    # some shipped signals hold no entropies
    entropies = [
        name
        for name in ("entropy", "modified_entropy")
        if not any(np.isnan(getattr(s, name)).all() for s in (target, references))
    ]
    features = partial(_features, entropies=entropies, allow_unequal=allow_unequal)
    train = np.vstack([features(*known.hold_out(row)) for row in rows])
    test = features(target.select(samples=usable), references.select(samples=usable))
    member = known.member[rows].ravel()
    scored = np.isfinite(train).all(1)
    train, test = standardised(train[scored], test)
    train, test = standardised(
        # and all products of two of the columns that describe a sample's outputs
        *(
            np.hstack([x, *(x[:, i : i + 1] * x[:, i:SHAPES] for i in range(SHAPES))])
            for x in map(np.arcsinh, (train, test))
        )
    )
    member = member[scored]
    weight = None
    for _ in range(2):
        model = LogisticRegression(C=PENALTY, solver="newton-cholesky", tol=1e-8)
        model.fit(train, member, sample_weight=weight)
        odds = np.einsum("nf,f->n", train, model.coef_[0])
        weight = 1 / (
            1 + np.exp(-4 * (odds - np.quantile(odds[~member], TAIL)) / max(odds.std(), 1e-9))
        )
    score = np.full(target.labels.shape, np.nan)
    score[usable] = np.einsum("nf,f->n", test, model.coef_[0]) + model.intercept_
    return score


SHAPES = 7  # features of `_ratio`


def _features(target, references, *, entropies, allow_unequal) -> np.ndarray:
    """(N, F); NaN for samples with fewer than two references on a side."""
    n_in = references.member.sum(0)
    able = np.minimum(n_in, len(references.member) - n_in) > 1
    if able.sum() < 10:
        raise ValueError(
            f"fused needs 2 references a side of a pseudo-target and {able.sum()} of {len(able)}"
            " samples have them: train 3 pairs besides the target's, or use rmia"
        )
    if not able.all():
        target, references = (s.select(samples=able) for s in (target, references))
    both = target, references
    warm = [replace(s, margin=s.margin / 2) for s in both]
    features = [
        *_ratio([s.margin.mean(1) for s in both], references.member),
        rmia(*both),
        rmia(*warm),
        nig(*both, share_variance="ratio", allow_unequal=allow_unequal),
        nig(*both, allow_unequal=allow_unequal),
        attack_r(*both),
        target.margin[0].mean(0),
    ]
    for name in entropies:
        logs = [-np.log(over_queries(getattr(s, name), s.query_kind) + 1e-12) for s in both]
        features.append(_ratio(logs, references.member)[0])
    if target.shape[1] > 1:
        spread = [-np.log(s.margin.std(1) + 1e-9) for s in both]
        features += [
            _ratio(spread, references.member)[0],
            target.correct[0].mean(0),
            nig(*both, combine="logmeanp", share_variance="ratio", allow_unequal=allow_unequal),
        ]
    out = np.full((len(able), len(features)), np.nan)
    out[able] = np.column_stack(features)
    return out


def _ratio(signal, mask) -> tuple[np.ndarray, ...]:
    """(log-likelihood ratio, gap, log variance OUT, log variance IN, centre OUT, z IN, z OUT).

    As `nig`, but the prior of each side's variance and of the gap m_in - m_out between the sides is
    a polynomial of the sample's rank by its mean over the references: hard samples leak more. With
    v a side's variance given its prior, the gap is f + w (gap - f), w = t / (t + v_in / n_in +
    v_out / n_out), f and t the polynomials of its mean and of its variance beyond that of the mean
    of so few references; the centres then are the best of those this gap apart.
    """
    phi_t = signal[0][0]
    phi = signal[1]
    smooth = _smoother(phi.mean(0))
    n, mean, prior = [], [], []
    for side in (mask, ~mask):
        n.append(side.sum(0))
        mean.append(np.einsum("mn,mn->n", phi, side) / n[-1])
        ss = np.einsum("mn,mn->n", (phi - mean[-1]) ** 2, side)
        variance = ss / (n[-1] - 1)
        usual = np.exp(smooth(np.log(variance + 1e-12 + 1e-12 * variance.mean())))
        a0, b0 = variance_prior(n[-1] - 1, ss / usual, np.ones(phi_t.shape, bool), None)
        prior.append((a0 + (n[-1] - 1) / 2, b0 * usual + ss / 2))
    v_in, v_out = (b / np.maximum(a - 0.5, 0.5) for a, b in prior)
    noise = v_in / n[0] + v_out / n[1]
    gap = mean[0] - mean[1]
    usual = smooth(gap)
    tau = np.maximum(smooth((gap - usual) ** 2 - noise), 0.01 * noise)
    gap = usual + tau / (tau + noise) * (gap - usual)
    precise_in = n[0] / v_in
    precise_out = n[1] / v_out
    centre = ((mean[0] - gap) * precise_in + mean[1] * precise_out) / (precise_in + precise_out)
    common = 1 / (precise_in + precise_out)
    extra = (common + tau / (tau + noise) * noise / 2) / v_in, common / v_out
    distances = phi_t - centre - gap, phi_t - centre
    log = [
        _log_t(x, a, b / a * (1 + e)) for x, (a, b), e in zip(distances, prior, extra, strict=True)
    ]
    z_in, z_out = (x / np.sqrt(v) for x, v in zip(distances, (v_in, v_out), strict=True))
    return log[0] - log[1], gap, np.log(v_out), np.log(v_in), centre, z_in, z_out


def _log_t(x, a, c) -> np.ndarray:
    """Log density of Student's t, 2a degrees of freedom, scale^2 c, up to a constant."""
    return (
        gammaln(a + 0.5) - gammaln(a) - np.log(a * c) / 2 - (a + 0.5) * np.log1p(x**2 / (2 * a * c))
    )


def _smoother(level: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """What smooths values (N,) by a polynomial of the levels' ranks, by least squares."""
    _, place, ties = np.unique(level, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
    basis = legvander(2 * ranks / len(level) - 1, DEGREE)
    inverse = np.linalg.pinv(basis.T @ basis, hermitian=True)
    return lambda values: np.einsum("nb,b->n", basis, inverse @ (basis.T @ values))
