"""What noise buys: DP-SGD accountants, the formulas of the neural SDE study, a release bound,
trade-off curves.

Neighbouring data sets differ by adding or removing one record. delta goes with every epsilon.
Logarithms are natural, Phi is the normal cdf. Kinds of numbers live here that are never mixed:
`epsilon` speaks about DP-SGD (clipped per-sample gradients, Gaussian noise, Poisson batches) and is
a nominal number for anything else; `theorem_epsilon` and `corollary_epsilon` are a paper's
formulas; `release_mu` bounds what one output tells about the queried input, and says nothing about
training; `response_epsilon` is about one label that is randomised; `stored_epsilon` is about one
record of which a noisy state and a randomised label were drawn once and stored.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import erf, log_ndtr, ndtr, ndtri

from mia_nb.checks import one_of
from mia_nb.types import Recipe

LOW_ORDERS = [
    1 + x / 1000 for x in (1, 2, 3, 5, 7, 10, 14, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90, 100)
]
HIGH_ORDERS = [64, 72, 80, 96, 112, *(o * x for o in (32, 64, 128) for x in (4, 5, 6, 7)), 1024]
PRV_ERROR = 0.01  # what the privacy loss distribution's discretisation may add, and is added
PRV_POINTS = 14_000_000  # mesh points at most: about 2.5 GB
PRV_WIDTH = 690.0  # exp of more overflows
PRV_DELTA = 1e-10  # below it rounding in the Fourier transform moves epsilon by more than 0.002
NOISE_RANGE = (1e-3, 1e6)
HALVINGS = 100


def _counts(v: np.ndarray) -> np.ndarray:
    return (v >= 1) & (v == np.floor(v))


WANTED = {  # {argument: (what holds for it, in words)}
    "noise_multiplier": (
        lambda v: (v == 0) | ((v >= 1e-6) & (v <= 1e9)),
        "0 or from 1e-6 to 1e9: noise sd / clipping norm",
    ),
    "sample_rate": (
        lambda v: (v > 0) & (v <= 1),
        "above 0 and at most 1: expected batch / number of records",
    ),
    "steps": (_counts, "a whole number from 1: count the steps taken"),
    "epochs": (_counts, "whole numbers from 1: count epochs from 1"),
    "samples": (_counts, "a whole number from 1: records trained on"),
    "members": (_counts, "a whole number from 1: records that a model trains on"),
    "batch": (_counts, "a whole number from 1, at most the records trained on"),
    "iterations": (_counts, "a whole number from 1"),
    "queries": (_counts, "a whole number from 1: outputs for the same input"),
    "classes": (
        lambda v: (v >= 2) & (v == np.floor(v)),
        "a whole number from 2: labels to choose from",
    ),
    "keep": (
        lambda v: (v >= 0) & (v <= 1),
        "from 1 / classes to 1: the probability of saying the true label",
    ),
    "delta": (
        lambda v: (v >= 0) & (v < 1),
        "from 0 to below 1: use 1e-5, or less than 1 / number of records",
    ),
    "delta_prime": (
        lambda v: (v > 0) & (v < 1),
        "above 0 and below 1: use half of the total delta",
    ),
    "fpr": (lambda v: (v >= 0) & (v <= 1), "fractions from 0 to 1"),
    "epsilon": (lambda v: v >= 0, "a number from 0"),
    "mu": (lambda v: v >= 0, "a number from 0: distance of two unit Gaussians"),
    "k": (lambda v: v >= 0, "a finite number from 0: noise per step"),
    "noise_sd": (lambda v: v >= 0, "a finite number from 0: k sqrt(steps)"),
    "lipschitz": (lambda v: v >= 0, "a finite number from 0: a certified bound of the drift"),
    "T": (lambda v: v > 0, "a finite number above 0: integration time"),
    "clip": (
        lambda v: v > 0,
        "a finite number above 0: the largest norm of the state that enters the block",
    ),
    "one_sided": (np.isfinite, "a finite number from -lipschitz to lipschitz"),
}
MAY_BE_INFINITE = {"epsilon", "mu"}
RELATIONS = ("replace", "add/remove")  # of neighbouring sets of stored records


def epsilon(
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    accountant: str = "prv",
    sampling: str = "poisson",
) -> float:
    """(epsilon, delta) of DP-SGD: `steps` Gaussian steps on batches drawn at `sample_rate`, each
    clipped to norm 1.

    Parameters:
        noise_multiplier: standard deviation of the noise / clipping norm, 0 or from 1e-6 to 1e9.
        sample_rate: expected batch / records, above 0 and at most 1.
        steps: optimiser steps taken, from 1.
        delta: from 0 to below 1, as 1e-5.
        accountant: prv, rdp or gdp.
            "prv" (Gopi, Lee and Wutschitz, arXiv 2106.02848, by Opacus): privacy loss distribution,
            upper end: the tight value + about .01; 0.1 to 2 s, more where epsilon is large or
            steps are many (25 s at 10^6). Where "rdp" gives less, as below epsilon .01, that is the
            value, since both are upper bounds. The error of .01 grows where the mesh would not fit
            into memory; where it cannot hold the loss at all (epsilon above about 600) the value is
            that of "rdp".
            "rdp" (Mironov, Talwar and Zhang, arXiv 1908.10530; conversion of Balle et al., arXiv
            1905.09982): 5 to 20 % above prv in usual settings, tens of milliseconds. Its orders,
            1.1 to 63, are extended to 1.001 and 1024 when the best is at an end.
            "gdp" (Dong, Roth and Su; Bu et al., arXiv 1911.11607): closed form of `gdp_mu`, a
            central limit approximation and NO guarantee: below the true value in 23 of 32 settings
            tested, from -22 % to +83 %.
        sampling: poisson, or uniform (batches of fixed size): gdp only.

    Returns:
        Epsilon; infinite for 0 noise or delta 0.

    Raises:
        ValueError: for numbers out of range, an unknown accountant, uniform with prv or rdp, and
            prv with a delta that its arithmetic cannot resolve (below 1e-10).

    Example:
        >>> round(epsilon(noise_multiplier=1, sample_rate=0.01, steps=1000, delta=1e-5), 1)
        1.8

    Caveats: holds for DP-SGD with secret Poisson batches only, for one training run; of any other
    noise it is nominal. One full-batch release (sample_rate 1) is a plain Gaussian:
    `gaussian_epsilon(sqrt(steps) / noise_multiplier, delta)` is exact there, while gdp's limit is
    not (2.140 instead of 1.993 at noise 2, one step, delta 1e-5).
    """
    _check(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, delta=delta)
    one_of("accountant", accountant, ACCOUNTANTS)
    one_of("sampling", sampling, SAMPLINGS)
    if sampling == "uniform" and accountant != "gdp":
        raise ValueError(
            f"sampling='uniform' with accountant={accountant!r}: only gdp has such a form; take"
            " 'poisson'"
        )
    if sampling == "uniform":
        return gaussian_epsilon(
            gdp_mu(
                noise_multiplier=noise_multiplier,
                sample_rate=sample_rate,
                steps=steps,
                sampling=sampling,
            ),
            delta,
        )
    return _spent(accountant, float(noise_multiplier), float(sample_rate), int(steps), float(delta))


def noise_multiplier(
    *, epsilon: float, sample_rate: float, steps: int, delta: float, accountant: str = "rdp"
) -> float:
    """Smallest noise multiplier of DP-SGD whose (epsilon, delta) by `accountant` stays within
    `epsilon`, rounded up.

    Parameters:
        epsilon: the target, finite and above 0.
        sample_rate: expected batch / records, above 0 and at most 1.
        steps: optimiser steps, from 1.
        delta: above 0 and below 1.
        accountant: "rdp" takes a tenth of a second to one; "prv" starts from there, takes some ten
            calls and needs about 5 % less noise; "gdp" is no guarantee.

    Returns:
        Noise sd / clipping norm with four significant digits; checked, so that the target is never
        exceeded by that accountant.

    Raises:
        ValueError: for numbers out of range, and where no noise from 0.001 to 1e6 reaches the
            target or all of it does: neither "prv" nor "rdp" goes below about
            ln(1/delta) / 1000, and delta 0 is out of reach.
    """
    _check(epsilon=epsilon, sample_rate=sample_rate, steps=steps, delta=delta)
    one_of("accountant", accountant, ACCOUNTANTS)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon={epsilon}: wanted a finite target above 0, say 8")
    if delta == 0:
        raise ValueError(
            f"epsilon={epsilon} at delta=0 is not reached by any noise: take a delta above 0, say"
            " 1e-5"
        )
    noise = 1.0
    for name, factor in (("gdp", 2.0), ("rdp", 1.2), ("prv", 1.05)):
        noise = _solve(
            name, factor, noise, float(epsilon), (float(sample_rate), int(steps), float(delta))
        )
        if name == accountant:
            break
    return noise


def aimed(families: Sequence[dict], recipe: Recipe, *, members: int, delta: float) -> list[dict]:
    """Changes to a recipe in which "epsilon" has become the noise multiplier of DP-SGD that reaches
    it, by RDP.

    Parameters:
        families: dicts of recipe changes; those with defense "dp_sgd" may name the epsilon that is
            aimed at. The others come back as they are.
        recipe: gives the batch and epochs that a family does not name.
        members: records that a model trains on.
        delta: of that epsilon.

    Returns:
        The families, each a new dict.

    Raises:
        ValueError: for an epsilon without dp_sgd or beside a noise multiplier, and as
            `noise_multiplier` does.
    """
    aimed_families = []
    for number, given in enumerate(families):
        if not isinstance(given, dict):
            raise ValueError(
                f"family {number} is {given!r}: wanted a mapping of changes to the recipe, e.g."
                " {model: odenet}"
            )
        family = dict(given)
        aimed_families.append(family)
        target = family.pop("epsilon", None)
        if target is None:
            continue
        defense_args = family.get("defense_args") or {}
        if family.get("defense") != "dp_sgd":
            raise ValueError(
                f"family {number} aims at epsilon={target} without defense: dp_sgd, whose noise"
                " it would set"
            )
        if "noise_multiplier" in defense_args:
            raise ValueError(
                f"family {number} names an epsilon and a noise_multiplier, of which one"
                " follows: name one"
            )
        batch = family.get("batch", recipe.batch)
        epochs = family.get("epochs", recipe.epochs)
        _check(members=members, batch=batch, epochs=epochs)
        rate = batch / members
        steps = epochs * (members // batch)
        noise = noise_multiplier(epsilon=target, sample_rate=rate, steps=steps, delta=delta)
        family["defense_args"] = {**defense_args, "noise_multiplier": noise}
    return aimed_families


def over_epochs(
    *,
    noise_multiplier: float,
    samples: int,
    batch: int,
    epochs: Sequence[int],
    delta: float,
    accountants: Sequence[str] = ("prv", "rdp", "gdp"),
    sampling: str = "poisson",
) -> pd.DataFrame:
    """`epsilon` along training, a row per epoch, delta and accountant.

    Parameters:
        noise_multiplier: noise sd / clipping norm.
        samples: records trained on.
        batch: records a step, at most `samples`; sample_rate = batch / samples.
        epochs: one number or several; steps = epoch * ceil(samples / batch).
        delta: one number or several.
        accountants: one name or several, of prv, rdp, gdp.
        sampling: the form of gdp. Rows of prv and rdp are Poisson whatever it says, and carry that
            word.

    Returns:
        Columns epoch, steps, accountant, sampling, delta, epsilon. With sampling "uniform" and
        noise_multiplier 2 it is figure 4 (left) of Hong, Wu, Gruber and Lee (arXiv 2501.06686).

    Raises:
        ValueError: as `epsilon` does.

    Caveat: prv takes up to seconds per row, so pass a few epochs. Trainings here drop the remainder
    of an epoch (`Pool.sampling`).
    """
    _check(several=("epochs",), samples=samples, batch=batch, epochs=epochs)
    one_of("sampling", sampling, SAMPLINGS)
    if batch > samples:
        raise ValueError(
            f"batch={batch} is more than samples={samples}: wanted at most all records"
        )
    rows = []
    for epoch in np.ravel(epochs):
        steps = int(epoch) * math.ceil(samples / batch)
        for single_delta in np.ravel(delta).tolist():
            for accountant in [accountants] if isinstance(accountants, str) else accountants:
                form = sampling if accountant == "gdp" else "poisson"
                facts = {
                    "steps": steps,
                    "delta": single_delta,
                    "accountant": accountant,
                    "sampling": form,
                }
                spent = epsilon(
                    noise_multiplier=noise_multiplier, sample_rate=batch / samples, **facts
                )
                rows.append({"epoch": int(epoch), **facts, "epsilon": spent})
    return pd.DataFrame(
        rows, columns=["epoch", "steps", "accountant", "sampling", "delta", "epsilon"]
    )


def gdp_mu(
    *, noise_multiplier: float, sample_rate: float, steps: int, sampling: str = "poisson"
) -> float:
    """mu of the Gaussian that DP-SGD's trade-off function tends to.

    Parameters:
        noise_multiplier, sample_rate, steps: as in `epsilon`.
        sampling: with n = noise_multiplier and c = sample_rate sqrt(steps),
            "poisson": mu = c sqrt(exp(1/n^2) - 1) (Bu, Dong, Long and Su, arXiv 1911.11607);
            "uniform": mu = sqrt(2) c sqrt(exp(1/n^2) Phi(3/(2n)) + 3 Phi(-1/(2n)) - 2) (Dong, Roth
            and Su, arXiv 1905.02383).

    Returns:
        mu; infinite where n is 0, and where exp overflows (n below .038).

    Raises:
        ValueError: for numbers out of range.

    Caveat: a limit for many steps and c fixed, no guarantee.
    """
    _check(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps)
    one_of("sampling", sampling, SAMPLINGS)
    if noise_multiplier == 0:
        return math.inf
    half = 0.5 / noise_multiplier
    with np.errstate(over="ignore"):
        growth = float(np.expm1(np.square(2 * half)))
    if sampling == "uniform":  # the same sum, written so that nothing cancels for large n
        growth = (
            2 * growth * ndtr(3 * half)
            + erf(3 * half / math.sqrt(2))
            - 3 * erf(half / math.sqrt(2))
        )
    return float(sample_rate * math.sqrt(steps) * math.sqrt(growth))


def nsde_sigma(*, k: float, steps: int, T: float) -> float:
    """sigma = k sqrt(steps / T): the diffusion coefficient, printed as sigma by Hong, Wu, Gruber
    and Lee (arXiv 2501.06686).

    Parameters:
        k: standard deviation of the noise of one step, from 0.
        steps: solver steps, from 1.
        T: integration time, above 0.

    Raises:
        ValueError: for numbers out of range.

    Caveat: their accountants take it as the noise multiplier; their Theorem 1 takes `noise_sd`. The
    two agree at T = 1 only.
    """
    _check(k=k, steps=steps, T=T)
    return float(k * math.sqrt(steps / T))


def noise_sd(*, k: float, steps: int) -> float:
    """k sqrt(steps) = sigma sqrt(T): standard deviation of the noise in h(T) where the drift is 0.

    Parameters:
        k: standard deviation of the noise of one step, from 0.
        steps: solver steps, from 1.

    Raises:
        ValueError: for numbers out of range.
    """
    _check(k=k, steps=steps)
    return float(k * math.sqrt(steps))


def theorem_epsilon(*, noise_sd: float, T: float, lipschitz: float, delta: float) -> float:
    """Theorem 1 of Hong, Wu, Gruber and Lee (arXiv 2501.06686), solved: sqrt(2 ln(1.25 / delta)) T
    lipschitz / noise_sd.

    Parameters:
        noise_sd: k sqrt(steps), the theorem's sigma in dh = f dt + (sigma / sqrt T) dB.
        T: integration time, above 0.
        lipschitz: a certified bound of the drift.
        delta: from 0 to below 1.

    Returns:
        Epsilon; infinite where noise_sd or delta is 0.

    Raises:
        ValueError: for numbers out of range.

    Caveats: the paper's formula, not a guarantee. It is stated for a result below 1 only, and for
    |h - h'| <= 1, which is neither enforced in the study's networks nor used beyond time 0; h(0)
    itself is missing from the sum that the proof bounds, so that a zero drift would need no noise.
    """
    _check(noise_sd=noise_sd, T=T, lipschitz=lipschitz, delta=delta)
    if noise_sd == 0 or delta == 0:
        return math.inf
    return float(math.sqrt(2 * math.log(1.25 / delta)) * T * lipschitz / noise_sd)


def corollary_epsilon(
    *,
    noise_sd: float,
    T: float,
    lipschitz: float,
    iterations: int,
    delta: float,
    delta_prime: float,
) -> float:
    """Corollary 1 of Hong, Wu, Gruber and Lee (arXiv 2501.06686), solved for epsilon': 4 sqrt(K
    ln(1.25 / delta) ln(1 / delta')) T lipschitz / noise_sd, for (epsilon', K delta + delta').

    Parameters:
        noise_sd: k sqrt(steps).
        T: integration time, above 0.
        lipschitz: the largest bound of the drift during training.
        iterations: K, from 1.
        delta: of one iteration.
        delta_prime: of their composition, above 0 and below 1.

    Returns:
        epsilon' after K iterations; infinite where noise_sd or delta is 0. The noise_sd that an
        epsilon' needs is the value at noise_sd 1, over epsilon': 128.8 for 8 at T lipschitz = 1,
        K = 300 and a total delta of 1e-5 split evenly (delta = 5e-6 / K, delta' = 5e-6).

    Raises:
        ValueError: for numbers out of range.

    Caveats: the paper's formula, not a guarantee. Those of `theorem_epsilon`; beyond that it
    assumes that gradients see the data through h(T) alone.
    """
    _check(noise_sd=noise_sd, T=T, lipschitz=lipschitz, iterations=iterations)
    _check(delta=delta, delta_prime=delta_prime)
    if noise_sd == 0 or delta == 0:
        return math.inf
    root = math.sqrt(iterations * math.log(1.25 / delta) * math.log(1 / delta_prime))
    return float(4 * root * T * lipschitz) / noise_sd


def release_mu(
    *,
    k: float,
    steps: int,
    T: float,
    lipschitz: float,
    clip: float,
    scheme: str = "euler",
    queries: int = 1,
    one_sided: float | None = None,
) -> float:
    """mu of the Gaussian trade-off between the hidden states of two inputs: local DP of the queried
    input, per `queries`; `gaussian_epsilon(mu, delta)` is its epsilon.

    Parameters:
        k: noise k N(0, 1) after every step.
        steps: s, solver steps, from 1; dt = T / s.
        T: integration time, above 0.
        lipschitz: L, a certified bound of the drift.
        clip: largest norm of the state that enters; Delta = 2 clip.
        scheme: whose step is c-Lipschitz; mu = Delta sqrt(queries c^2s / (k^2 sum_{j<s} c^2j)).
            "euler": c = 1 + dt L; with one_sided l: c = sqrt(1 + 2 dt l + (dt L)^2).
            "rk4": c = sum_{j<=4} (dt L)^j / j! (the classical scheme).
            "continuous": mu = (Delta / g) sqrt(queries 2 l / (1 - exp(-2 l T))), g = k sqrt(s / T),
            l = one_sided, else L: the limit, to compare.
        queries: outputs for the same input.
        one_sided: l, from -L to L, with <f(a) - f(b), a - b> <= l |a - b|^2; None: not known.

    Returns:
        mu; infinite where k is 0. Equality for linear drift.

    Raises:
        ValueError: for numbers out of range, and for one_sided with rk4.

    Source: privacy amplification by iteration (Feldman et al. 2018; Altschuler and Talwar 2022; in
    trade-off functions Bok, Su and Altschuler 2024).

    Caveats, all on the caller: the state that enters is clipped to norm `clip` and depends on no
    other record (no batch norm in train mode); L is certified and global; noise is independent, on
    at inference; parameters are fixed. It says nothing about training. Not covered: stochastic
    RK4, the 3/8 rule, adaptive solvers. Later blocks add nothing (post-processing).
    """
    _check(k=k, steps=steps, T=T, lipschitz=lipschitz, clip=clip, queries=queries)
    one_of("scheme", scheme, ("euler", "rk4", "continuous"))
    if one_sided is not None:
        _check(one_sided=one_sided)
        if scheme == "rk4":
            raise ValueError(
                "one_sided with scheme='rk4': no such form is known; leave one_sided empty, or use"
                " 'euler'"
            )
        if not -lipschitz <= one_sided <= lipschitz:
            raise ValueError(
                f"one_sided={one_sided}: wanted -lipschitz to lipschitz, here {-lipschitz} to"
                f" {lipschitz}"
            )
    if k == 0:
        return math.inf
    rate = lipschitz if one_sided is None else one_sided
    with np.errstate(divide="ignore", over="ignore"):
        if scheme == "continuous":
            power = np.float64(2 * rate * T)
            parts = 1.0
        else:
            power = _log_squared_lipschitz(T / steps, lipschitz, one_sided, scheme)
            parts = steps
        # c^2s / sum_{j<s} c^2j with c = exp(power / 2); without steps the sum is an integral, and s
        # its length
        numerator = power if scheme == "continuous" else np.expm1(power)
        ratio = 1 / parts if power == 0 else numerator / -np.expm1(-parts * power)
        noise = noise_sd(k=k, steps=steps) if scheme == "continuous" else k
        return float(2 * clip * np.sqrt(ratio * queries) / noise)


def gaussian_delta(mu: float | np.ndarray, epsilon: float | np.ndarray) -> float | np.ndarray:
    """delta of a mu-GDP mechanism at epsilon: Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 -
    epsilon/mu), from log-cdfs.

    Parameters:
        mu: distance of two unit Gaussians, from 0; a number or an array.
        epsilon: from 0; a number or an array, broadcast.

    Raises:
        ValueError: for a negative one.

    Source: Balle and Wang, arXiv 1805.06530; Dong, Roth and Su, corollary 1: exact for every
    epsilon.
    """
    _check(several=("mu", "epsilon"), mu=mu, epsilon=epsilon)
    mu, epsilon = np.broadcast_arrays(np.asarray(mu, float), np.asarray(epsilon, float))
    with np.errstate(all="ignore"):
        delta = np.where(np.isinf(mu), 1.0, np.exp(_log_delta(mu, epsilon)))
    return _plain(np.where((mu == 0) | np.isinf(epsilon), 0.0, delta))


def gaussian_epsilon(mu: float | np.ndarray, delta: float | np.ndarray) -> float | np.ndarray:
    """epsilon of a mu-GDP mechanism at delta, exact for all mu: `gaussian_delta` inverted by
    bisection, never below the root.

    Parameters:
        mu: sensitivity / standard deviation for one Gaussian release, sqrt(sum of squares) for
            several; a number or an array.
        delta: from 0 to below 1; a number or an array, broadcast.

    Returns:
        0 for mu 0; infinite for mu infinite or delta 0.

    Raises:
        ValueError: for mu < 0 or delta outside [0, 1).

    Caveat: the classical sqrt(2 ln(1.25 / delta)) mu is proved below 1 only: its true delta is
    2.3e-5 at epsilon 10 for 1e-5.
    """
    _check(several=("mu", "delta"), mu=mu, delta=delta)
    mu, delta = np.broadcast_arrays(np.asarray(mu, float), np.asarray(delta, float))
    with np.errstate(all="ignore"):
        target = np.log(delta)
        high = np.where(
            _log_delta(mu, 0.0) <= target, 0.0, np.maximum(mu * (mu / 2 - ndtri(delta)), 0)
        )
        _, high = _bisect(lambda middle: _log_delta(mu, middle) <= target, np.zeros(mu.shape), high)
    return _plain(np.where(mu == 0, 0.0, np.where(np.isinf(mu) | (delta == 0), np.inf, high)))


def gaussian_mu(epsilon: float | np.ndarray, delta: float | np.ndarray) -> float | np.ndarray:
    """The largest mu whose Gaussian trade-off implies (epsilon, delta): the inverse of
    `gaussian_epsilon` in mu.

    Parameters:
        epsilon: from 0; a number or an array.
        delta: from 0 to below 1; a number or an array, broadcast.

    Returns:
        mu, for the curve of `tradeoff(mu=...)` of equal (epsilon, delta): 1.666 for (8, 1e-5). 0
        for delta 0, infinite for epsilon infinite.

    Raises:
        ValueError: for epsilon < 0 or delta outside [0, 1).
    """
    _check(several=("epsilon", "delta"), epsilon=epsilon, delta=delta)
    epsilon, delta = np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(delta, float))
    with np.errstate(all="ignore"):
        finite = np.where(np.isinf(epsilon), 0.0, epsilon)
        target = np.log(delta)
        high = np.ones(epsilon.shape)
        while np.any(short := _log_delta(high, finite) < target):
            high = np.where(short, 2 * high, high)
        low, _ = _bisect(
            lambda middle: _log_delta(middle, finite) > target, np.zeros(epsilon.shape), high
        )
    return _plain(np.where(np.isinf(epsilon), np.inf, np.where(delta == 0, 0.0, low)))


def response_epsilon(*, keep: float, classes: int) -> float:
    """ln(keep (classes - 1) / (1 - keep)): epsilon, at delta 0, of a label that is said at random
    once and kept as said.

    Parameters:
        keep: probability of the true label, from 1 / classes to 1; else one of the other classes -
            1 is said, uniformly.
        classes: how many labels there are, from 2.

    Returns:
        Epsilon of this one label: 0 at keep 1 / classes, infinite at keep 1.

    Raises:
        ValueError: for keep outside [1 / classes, 1] and fewer than 2 classes.

    Source: randomised response (Warner 1965; Kairouz, Oh and Viswanath 2016, arXiv 1407.1338).

    Caveat: of the label alone, and each further draw adds as much again.
    """
    _check(classes=classes, keep=keep)
    if keep < 1 / classes:
        raise ValueError(f"keep={keep} of {classes} classes: wanted {WANTED['keep'][1]}")
    return math.inf if keep == 1 else max(0.0, math.log1p(float((keep * classes - 1) / (1 - keep))))


def stored_epsilon(
    *, mu: float, keep: float, classes: int, delta: float, relation: str = "replace"
) -> float:
    """Epsilon at delta of one stored record: a state with a Gaussian trade-off and a label by
    randomised response, both drawn once, taken together exactly.

    Parameters:
        mu: of the states of neighbouring records (`release_mu` with Delta = 2 clip; where a record
            is added or removed, Delta = clip), from 0.
        keep: probability of the true label, from 1 / classes to 1, as in `response_epsilon`.
        classes: how many labels there are, from 2.
        delta: from 0 to below 1.
        relation: "replace": one record becomes another one. "add/remove": one record takes the
            place of an empty slot, whose state is 0 before the noise and whose label is uniform.

    With the loss l of the label (ln of its two probabilities' ratio), which is independent of that
    of the state, delta(epsilon) = E[gaussian_delta(mu, epsilon - l)]; for "add/remove" the larger
    of both directions.

    Returns:
        Epsilon, rounded up by bisection; at most gaussian_epsilon(mu, delta) + the label's own.
        Infinite where mu is infinite, keep is 1, or delta is 0 and mu is not.

    Raises:
        ValueError: for numbers out of range and an unknown relation.

    Source: the hockey-stick divergence of a product (Dong, Roth and Su, arXiv 1905.02383; Zhu, Dong
    and Wang, arXiv 2106.08567).

    Caveat: what it stands on is in `training.proved`.
    """
    _check(mu=mu, classes=classes, keep=keep, delta=delta)
    one_of("relation", relation, RELATIONS)
    label = response_epsilon(keep=keep, classes=classes)
    if math.isinf(label) or math.isinf(mu) or (delta == 0 and mu > 0):
        return math.inf
    directions = _label_losses(keep, int(classes), relation)
    if mu == 0 and delta == 0:
        return max(max(losses[chances > 0]) for chances, losses in directions)

    def enough(epsilon: float) -> bool:
        return all(
            chances @ _signed_delta(mu, epsilon - losses) <= delta for chances, losses in directions
        )

    if enough(0.0):
        return 0.0
    _, high = _bisect(enough, 0.0, float(gaussian_epsilon(mu, delta)) + label)
    return float(high)


def stored_mu(
    *, epsilon: float, keep: float, classes: int, delta: float, relation: str = "replace"
) -> float:
    """The largest mu of a stored state that stays within `epsilon` together with its label: the
    inverse of `stored_epsilon` in mu, rounded down.

    Parameters:
        epsilon: the target, finite and above 0.
        keep, classes, delta, relation: as for `stored_epsilon`.

    Returns:
        mu; 0 where the label alone takes all of epsilon.

    Raises:
        ValueError: as `stored_epsilon`; for a target that is not finite and above 0, and delta 0.
    """
    _check(epsilon=epsilon)
    if not 0 < epsilon < math.inf or delta == 0:
        raise ValueError(f"epsilon={epsilon} at delta={delta}: wanted both above 0, say 8 and 1e-5")
    label = {"keep": keep, "classes": classes, "delta": delta, "relation": relation}

    def too_much(mu: float) -> bool:
        return stored_epsilon(mu=float(mu), **label) > epsilon

    if too_much(0.0):
        return 0.0
    low, _ = _bisect(too_much, 0.0, float(gaussian_mu(epsilon, delta)))
    return float(low)


def _label_losses(keep: float, classes: int, relation: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """(probabilities, ln of the ratios) of a randomised label, a pair for each direction."""
    other = (1 - keep) / (classes - 1)
    if relation == "replace":  # symmetric; a third label is as probable for both
        loss = response_epsilon(keep=keep, classes=classes)
        chances = np.array([keep, other, (classes - 2) * other])
        return [(chances, np.array([loss, -loss, 0.0]))]
    losses = np.log(classes * np.array([keep, other]))
    added = np.array([keep, 1 - keep])
    removed = np.array([1 / classes, 1 - 1 / classes])
    return [(added, losses), (removed, -losses)]


def _signed_delta(mu: float, epsilon: np.ndarray) -> np.ndarray:
    """`gaussian_delta` where epsilon may be negative."""
    if mu == 0:
        return np.maximum(-np.expm1(epsilon), 0)
    with np.errstate(all="ignore"):
        return np.exp(_log_delta(mu, epsilon))


def tradeoff(
    fpr: float | np.ndarray,
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    mu: float | None = None,
) -> float | np.ndarray:
    """The largest TPR at `fpr` of any attack on an (epsilon, delta)-DP or on a mu-GDP mechanism: a
    ceiling for a ROC curve.

    Parameters:
        fpr: a number or an array in [0, 1].
        epsilon: from 0; min(e^epsilon fpr + delta, 1 - e^-epsilon (1 - delta - fpr), 1) (Kairouz,
            Oh and Viswanath 2015).
        delta: with epsilon, from 0 to below 1.
        mu: instead of epsilon, from 0; Phi(Phi^-1(fpr) + mu) (Dong, Roth and Su, arXiv 1905.02383).

    Returns:
        TPR of the shape of `fpr`.

    Raises:
        ValueError: unless exactly one of epsilon and mu is given, for delta with mu, and for
            numbers out of range.

    Caveat: a measured curve is above it only where the lower end of its interval is.
    """
    came = f"tradeoff got epsilon={epsilon} and mu={mu}"
    if (epsilon is None) == (mu is None):
        raise ValueError(f"{came}: wanted exactly one of them")
    _check(
        several=("fpr",),
        fpr=fpr,
        delta=delta,
        **({"mu": mu} if epsilon is None else {"epsilon": epsilon}),
    )
    fpr = np.asarray(fpr, float)
    if mu is not None:
        no_delta = "a Gaussian trade-off has no delta; leave it out, or pass epsilon"
        if delta:
            raise ValueError(f"delta={delta} with mu={mu}: {no_delta}")
        return _plain(ndtr(ndtri(fpr) + mu) if np.isfinite(mu) else np.ones_like(fpr))
    if np.isinf(epsilon):
        return _plain(np.ones_like(fpr))
    steep = np.exp(min(epsilon, 700.0)) * fpr + delta
    return _plain(np.minimum(np.minimum(steep, 1 - np.exp(-epsilon) * (1 - delta - fpr)), 1.0))


def _prv(noise: float, rate: float, steps: int, delta: float) -> float:
    """Opacus' PRV accountant on a mesh that fits; RDP's value where none does."""
    from opacus.accountants import PRVAccountant
    from opacus.accountants.analysis.prv import (
        PoissonSubsampledGaussianPRV,
        compute_safe_domain_size,
    )

    wanted = f"wanted {PRV_DELTA} or more, below rounding decides; use 'rdp'"
    if delta < PRV_DELTA:
        raise ValueError(f"delta={delta} with accountant='prv': {wanted}")
    error = delta / 1000
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # orders at the end of their range only widen the mesh; log(1 - sample_rate) is -inf for
        # full batches
        warnings.filterwarnings("ignore", message="Optimal order")
        width = compute_safe_domain_size(
            [PoissonSubsampledGaussianPRV(rate, noise)], [steps], PRV_ERROR, error
        )
        points = 2 * width * math.sqrt(steps * math.log(12 / error) / 2) / PRV_ERROR
        precision = PRV_ERROR * max(1.0, points / PRV_POINTS)
        if not (width < PRV_WIDTH and precision < 1):
            return _rdp(noise, rate, steps, delta)
        accountant = PRVAccountant()
        accountant.history = [(noise, rate, steps)]
        # what `get_epsilon` does, in two steps, since the distribution must be mended between them:
        # neighbouring cells of the mesh miss each other by rounding where the density is steep, and
        # 10^6 steps multiply the mass that is lost or counted twice to 1 % (epsilon 12.958, where
        # 12.969 is right)
        losses = accountant._get_dprv(eps_error=precision, delta_error=error)
        losses.pmf = losses.pmf / losses.pmf.sum()
        try:
            spent = float(losses.compute_epsilon(delta, error, precision)[2])
        except RuntimeError as failure:
            # even the lowest loss on the mesh, far below 0, has less than delta
            if "Cannot compute epsilon" in str(failure):
                return 0.0
            raise
    # both are upper bounds; the mesh adds PRV_ERROR, so that a small epsilon is smaller by RDP
    return min(max(0.0, spent), _rdp(noise, rate, steps, delta))


def _rdp(noise: float, rate: float, steps: int, delta: float) -> float:
    """Rényi accountant with Opacus' orders, and with more where the best one is the first or the
    last.
    """
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(noise, rate, steps)]
    orders = accountant.DEFAULT_ALPHAS
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.filterwarnings("ignore", message="Optimal order")
        spent, best = accountant.get_privacy_spent(delta=delta, alphas=orders)
        if best in (orders[0], orders[-1]):
            more = LOW_ORDERS if best == orders[0] else HIGH_ORDERS
            spent = min(spent, accountant.get_privacy_spent(delta=delta, alphas=more)[0])
    return max(0.0, float(spent))


def _gdp(noise: float, rate: float, steps: int, delta: float) -> float:
    return gaussian_epsilon(gdp_mu(noise_multiplier=noise, sample_rate=rate, steps=steps), delta)


ACCOUNTANTS = {"prv": _prv, "rdp": _rdp, "gdp": _gdp}
SAMPLINGS = ("poisson", "uniform")


@lru_cache(maxsize=4096)
def _spent(accountant: str, noise: float, rate: float, steps: int, delta: float) -> float:
    if noise == 0 or delta == 0:
        return math.inf
    return ACCOUNTANTS[accountant](noise, rate, steps, delta)


def _solve(
    accountant: str, factor: float, start: float, target: float, setting: tuple[float, int, float]
) -> float:
    """Smallest noise within the target on a grid of four digits, searched outwards from `start` in
    growing strides.
    """

    def excess(log_noise: float) -> float:
        spent = _spent(accountant, math.exp(log_noise), *setting)
        return math.log(min(max(spent / target, 0.1), 10.0))

    high = math.log(start)
    stride = math.log(factor)
    low, lowest, highest = high, *map(math.log, NOISE_RANGE)
    while excess(high) > 0:
        low = high
        high = high + stride
        stride = 1.5 * stride
        if high > highest:
            raise ValueError(
                f"epsilon={target} at delta={setting[2]} is not reached by any noise_multiplier up"
                f" to {NOISE_RANGE[1]:g} by {accountant}: raise epsilon or delta"
            )
    while excess(low) <= 0:
        high = low
        low = low - stride
        stride = 1.5 * stride
        if low < lowest:
            raise ValueError(
                f"epsilon={target} is met at noise_multiplier {NOISE_RANGE[0]:g} already: ask for"
                " less"
            )
    from scipy.optimize import brentq

    root = math.exp(brentq(excess, low, high, xtol=1e-5))
    digit = 10.0 ** (math.floor(math.log10(root)) - 3)
    multiple = math.ceil(root / digit)
    while _spent(accountant, noise := float(f"{multiple * digit:.4g}"), *setting) > target:
        multiple += 1
    return noise


def _log_squared_lipschitz(
    dt: float, lipschitz: float, one_sided: float | None, scheme: str
) -> np.float64:
    """ln c^2 of one step's map."""
    reach = dt * lipschitz
    if scheme == "rk4":
        return np.float64(2 * np.log1p(sum(reach**j / math.factorial(j) for j in range(1, 5))))
    if one_sided is None:
        return np.float64(2 * np.log1p(reach))
    return np.log1p(np.maximum(2 * dt * one_sided + reach**2, -1.0))


def _log_delta(mu: float | np.ndarray, epsilon: float | np.ndarray) -> float | np.ndarray:
    """ln of `gaussian_delta` for finite numbers above 0: two log-cdfs, subtracted without leaving
    the logarithm.
    """
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return first + np.log(-np.expm1(np.minimum(second - first, 0)))


def _bisect(
    in_upper_part: Callable[[np.ndarray], np.ndarray | bool],
    low: float | np.ndarray,
    high: float | np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers just below and just above where the upper part begins, each entry by itself."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        upper = in_upper_part(middle)
        low = np.where(upper, low, middle)
        high = np.where(upper, middle, high)
    return low, high


def _plain(values: float | np.ndarray) -> float | np.ndarray:
    """A Python number for one, the array for several."""
    return values.item() if np.ndim(values) == 0 else values


def _check(several: tuple[str, ...] = (), **given: Any) -> None:
    """Numbers within range; those of `several` may be arrays.

    Text is none, though NumPy reads it as one.
    """
    for name, value in given.items():
        (holds, wanted), many = WANTED[name], name in several
        try:
            array = np.asarray(value, float)
            fine = bool(np.all(holds(array) & (np.isfinite(array) | (name in MAY_BE_INFINITE))))
            number = np.asarray(value).dtype.kind not in "SU" and (array.ndim == 0 or many)
        except (TypeError, ValueError):
            fine = number = False
        if not (fine and number):
            shown = " ".join((repr(value) if isinstance(value, str) else str(value)).split())
            kind = ""
            if not number:
                kind = "numbers, " if many else "one number, "
            raise ValueError(f"{name}={shown[:60]}: wanted {kind}{wanted}")
