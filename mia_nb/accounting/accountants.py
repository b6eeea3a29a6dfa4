"""The accountants of DP-SGD: privacy loss distributions, Rényi divergences, and the limit of a
Gaussian trade-off.
"""

from __future__ import annotations

import math
import warnings
from functools import lru_cache

import numpy as np
from scipy.special import erf, ndtr

from mia_nb.accounting.gaussian import gaussian_epsilon
from mia_nb.accounting.ranges import check
from mia_nb.checks import one_of

# of Rényi divergences: those of Opacus, and more beyond both ends
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64))
LOW_ORDERS = tuple(
    1 + x / 1000 for x in (1, 2, 3, 5, 7, 10, 14, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90, 100)
)
HIGH_ORDERS = (64, 72, 80, 96, 112, 128, 160, 192, 224, 256)
HIGH_ORDERS += (320, 384, 448, 512, 640, 768, 896, 1024)
PRV_ERROR = 0.01  # error bound of the privacy loss distribution's discretisation, which is added
PRV_POINTS = 14_000_000  # most mesh points: about 2.5 GB
PRV_WIDTH = 690.0  # exp of a larger number overflows
PRV_DELTA = 1e-10  # below, rounding in the Fourier transform moves epsilon by more than 0.002
SAMPLINGS = ("poisson", "uniform")


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
    check(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps)
    one_of("sampling", sampling, SAMPLINGS)
    if noise_multiplier == 0:
        return math.inf
    half = 0.5 / noise_multiplier
    with np.errstate(over="ignore"):
        growth = float(np.expm1(np.square(2 * half)))
    if sampling == "uniform":  # the docstring's bracket times 2, written so that nothing cancels
        growth = (
            2 * growth * ndtr(3 * half)
            + erf(3 * half / math.sqrt(2))
            - 3 * erf(half / math.sqrt(2))
        )
    return float(sample_rate * math.sqrt(steps) * math.sqrt(growth))


def _prv(noise: float, rate: float, steps: int, delta: float) -> float:
    """Opacus' PRV accountant on a mesh that fits into memory; RDP's value where none does."""
    from opacus.accountants.analysis import prv
    from scipy.fft import next_fast_len

    if delta < PRV_DELTA:
        raise ValueError(
            f"delta={delta} with accountant='prv': wanted {PRV_DELTA} or more (below that, rounding"
            " decides); use 'rdp'"
        )
    error = delta / 1000
    bound = _loss_bound(noise, rate, steps, error)
    width = max(bound, PRV_ERROR) + 3
    points = 2 * width * math.sqrt(steps * math.log(12 / error) / 2) / PRV_ERROR
    precision = PRV_ERROR * max(1.0, points / PRV_POINTS)
    if not (width < PRV_WIDTH and precision < 1):
        return _rdp(noise, rate, steps, delta)
    width = max(bound, precision) + 3
    mesh = precision / math.sqrt(steps * math.log(12 / error) / 2)
    # a little finer: Fourier transforms of other lengths take up to ten times as long
    half = next_fast_len(math.ceil(width / mesh) + 1, real=True)
    mesh = width / (half - 1)
    domain = prv.Domain(-width, width + mesh, 2 * half)
    with np.errstate(all="ignore"):  # log(1 - rate) is -inf for full batches
        losses = prv.PoissonSubsampledGaussianPRV(rate, noise)
        losses = prv.TruncatedPrivacyRandomVariable(losses, domain.t_min, domain.t_max)
        total = prv.compose_heterogeneous([prv.discretize(losses, domain)], [steps])
        # neighbouring cells of the mesh miss each other by rounding where the density is steep, and
        # 10^6 steps multiply the mass that is lost or counted twice to 1 % (epsilon 12.958, where
        # 12.969 is right)
        total.pmf = total.pmf / total.pmf.sum()
        try:
            _, _, upper = total.compute_epsilon(delta, error, precision)
        except RuntimeError as failure:
            # even the lowest loss on the mesh, far below 0, has less than delta
            if "Cannot compute epsilon" in str(failure):
                return 0.0
            raise
    # both are upper bounds; PRV_ERROR is added to the first, so RDP is smaller for small epsilons
    return min(max(0.0, float(upper)), _rdp(noise, rate, steps, delta))


def _loss_bound(noise: float, rate: float, steps: int, error: float) -> float:
    """A privacy loss that neither all steps nor one of them exceeds, but for a part of the delta
    `error` (Gopi et al., remark 5.6, with the constants of their code).

    Opacus' `compute_safe_domain_size` computes the same, and the Rényi divergences of each of its
    calls anew.
    """
    whole, _ = _renyi_epsilon(noise, rate, steps, error / 4, ORDERS)
    one_step, _ = _renyi_epsilon(noise, rate, 1, error / (8 * steps), ORDERS)
    return max(whole, one_step)


def _rdp(noise: float, rate: float, steps: int, delta: float) -> float:
    """Rényi accountant with Opacus' orders, and with more where the best one is the first or the
    last.
    """
    spent, best = _renyi_epsilon(noise, rate, steps, delta, ORDERS)
    if best in (ORDERS[0], ORDERS[-1]):
        more_orders = LOW_ORDERS if best == ORDERS[0] else HIGH_ORDERS
        spent_with_more, _ = _renyi_epsilon(noise, rate, steps, delta, more_orders)
        spent = min(spent, spent_with_more)
    return max(0.0, spent)


def _renyi_epsilon(
    noise: float, rate: float, steps: int, delta: float, orders: tuple[float, ...]
) -> tuple[float, float]:
    """(epsilon, the order with which it is reached) by Rényi divergences of these orders."""
    from opacus.accountants.analysis.rdp import get_privacy_spent

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.filterwarnings("ignore", message="Optimal order")
        divergences = steps * _divergences(noise, rate, orders)
        spent, best = get_privacy_spent(orders=orders, rdp=divergences, delta=delta)
    return float(spent), float(best)


@lru_cache(maxsize=256)
def _divergences(noise: float, rate: float, orders: tuple[float, ...]) -> np.ndarray:
    """Rényi divergences of one step, which take most of an accountant's time: cached, since
    accountants, epochs and deltas share them.
    """
    from opacus.accountants.analysis.rdp import compute_rdp

    return compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders)


def _gdp(noise: float, rate: float, steps: int, delta: float) -> float:
    """The limit's epsilon, for Poisson batches."""
    return gaussian_epsilon(gdp_mu(noise_multiplier=noise, sample_rate=rate, steps=steps), delta)


ACCOUNTANTS = {"prv": _prv, "rdp": _rdp, "gdp": _gdp}


@lru_cache(maxsize=4096)
def spent_by(accountant: str, noise: float, rate: float, steps: int, delta: float) -> float:
    """Epsilon by one of ACCOUNTANTS, cached since a search asks for the same one repeatedly."""
    if noise == 0 or delta == 0:
        return math.inf
    return ACCOUNTANTS[accountant](noise, rate, steps, delta)
