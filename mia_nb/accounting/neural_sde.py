"""The formulas of the neural SDE study, and what the noise of one output hides of the input that is
queried.
"""

from __future__ import annotations

import math

import numpy as np

from mia_nb.accounting.ranges import check
from mia_nb.checks import one_of


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
    check(k=k, steps=steps, T=T)
    return float(k * math.sqrt(steps / T))


def noise_sd(*, k: float, steps: int) -> float:
    """k sqrt(steps) = sigma sqrt(T): standard deviation of the noise in h(T) where the drift is 0.

    Parameters:
        k: standard deviation of the noise of one step, from 0.
        steps: solver steps, from 1.

    Raises:
        ValueError: for numbers out of range.
    """
    check(k=k, steps=steps)
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
    check(noise_sd=noise_sd, T=T, lipschitz=lipschitz, delta=delta)
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
    check(noise_sd=noise_sd, T=T, lipschitz=lipschitz, iterations=iterations)
    check(delta=delta, delta_prime=delta_prime)
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
    check(k=k, steps=steps, T=T, lipschitz=lipschitz, clip=clip, queries=queries)
    one_of("scheme", scheme, ("euler", "rk4", "continuous"))
    if one_sided is not None:
        check(one_sided=one_sided)
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
    if scheme == "continuous":
        growth = lipschitz if one_sided is None else one_sided
        ratio = _continuous_ratio(2 * growth * T)
        noise = noise_sd(k=k, steps=steps)
    else:
        power = _log_squared_lipschitz(T / steps, lipschitz, one_sided, scheme)
        ratio = _ratio_of_steps(power, steps)
        noise = k
    with np.errstate(over="ignore"):
        return float(2 * clip * np.sqrt(ratio * queries) / noise)


def _ratio_of_steps(power: np.float64, steps: int) -> np.float64:
    """c^2s / sum_{j<s} c^2j of s steps that are c-Lipschitz, c = exp(power / 2)."""
    if power == 0:
        return np.float64(1 / steps)
    with np.errstate(over="ignore"):
        return np.expm1(power) / -np.expm1(-steps * power)


def _continuous_ratio(power: float) -> np.float64:
    """The limit of many steps, times their number: the sum becomes an integral of length 1."""
    if power == 0:
        return np.float64(1)
    with np.errstate(divide="ignore", over="ignore"):
        return np.float64(power) / -np.expm1(-power)


def _log_squared_lipschitz(
    dt: float, lipschitz: float, one_sided: float | None, scheme: str
) -> np.float64:
    """ln c^2 of one step's map, which is c-Lipschitz."""
    reach = dt * lipschitz
    if scheme == "rk4":
        growth = sum(reach**j / math.factorial(j) for j in range(1, 5))
        return np.float64(2 * np.log1p(growth))
    if one_sided is None:
        return np.float64(2 * np.log1p(reach))
    with np.errstate(divide="ignore"):
        return np.log1p(np.maximum(2 * dt * one_sided + reach**2, -1.0))
