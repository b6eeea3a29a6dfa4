"""The formulas of the neural SDE study, and what the noise of one output hides of the input that is
queried.
"""

from __future__ import annotations

import math

import numpy as np

from mia_nb.accounting.ranges import check
from mia_nb.checks import one_of

ORDERS = {"euler": 1, "rk4": 4}  # of the schemes for which `release_mu` holds


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
            "euler": c = 1 + dt L; "rk4": c = sum_{j<=4} (dt L)^j / j! (the classical scheme).
        queries: outputs for the same input.

    Returns:
        mu; infinite where k is 0. Equality for linear drift that expands.

    Raises:
        ValueError: for numbers out of range, and another scheme.

    Source: privacy amplification by iteration (Feldman et al. 2018; Altschuler and Talwar 2022; in
    trade-off functions Bok, Su and Altschuler 2024).

    Caveats, all on the caller: the state that enters is clipped to norm `clip` and depends on no
    other record (no batch norm in train mode); L is certified and global; noise is independent, on
    at inference; parameters are fixed. It says nothing about training. Not covered: stochastic
    RK4, the 3/8 rule, adaptive solvers. Later blocks add nothing (post-processing).
    """
    check(k=k, steps=steps, T=T, lipschitz=lipschitz, clip=clip, queries=queries)
    one_of("scheme", scheme, ORDERS)
    if k == 0:
        return math.inf
    reach = T / steps * lipschitz
    stretch = sum(reach**j / math.factorial(j) for j in range(1, ORDERS[scheme] + 1))  # c - 1
    power = 2 * np.log1p(stretch)  # ln c^2
    with np.errstate(over="ignore"):
        ratio = 1 / steps  # c^2s / sum_{j<s} c^2j
        if power > 0:
            ratio = np.expm1(power) / -np.expm1(-steps * power)
        return float(2 * clip * np.sqrt(ratio * queries) / k)
