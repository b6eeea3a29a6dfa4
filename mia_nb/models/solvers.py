"""Solve dh/dt = f(t, h), or with noise dh = f(t, h) dt + g dB.

`integrate` takes equal steps in a loop of its own ("euler", "rk4", "stoch_rk4"), which vmap and
compilation pass through. It hands the other methods to torchdiffeq, which chooses its steps by
tolerances, or to torchsde, which solves the stochastic equation.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from numbers import Integral
from types import ModuleType

import torch
from torch import Tensor, nn

from mia_nb.checks import one_of
from mia_nb.models.modules import first_line
from mia_nb.models.neurons import transformed

FIXED = ("euler", "rk4", "stoch_rk4")  # the loop of this module
ADAPTIVE = ("dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun")  # torchdiffeq
DIAGONAL = ("srk", "milstein")  # torchsde: noise without correlation between coordinates
METHODS = (*FIXED, *ADAPTIVE, *DIAGONAL)
BACKENDS = dict.fromkeys(ADAPTIVE, "torchdiffeq") | dict.fromkeys(DIAGONAL, "torchsde")

Drift = Callable[[float, Tensor], Tensor]  # (t, h) -> dh/dt, of the shape of h


class BlownUp(ValueError):
    """An adaptive solver found no step size for a state that grows beyond all bounds."""


def integrate(
    drift: Drift,
    h: Tensor,
    *,
    steps: int,
    T: float = 1.0,
    t0: float = 0.0,
    method: str = "euler",
    k: float = 0.0,
    generator: torch.Generator | None = None,
    rtol: float = 1e-3,
    atol: float = 1e-3,
) -> Tensor:
    """The state at t0 + T of dh/dt = drift(t, h), started from h at t0.

    With k > 0 every step also adds noise of standard deviation k, so that more steps mean more
    noise in all.

    Parameters:
        drift: (t, h) -> dh/dt, of the shape of h.
        h: (B, ...) the state at t0. Under autocast it stays float32, as bfloat16 would lose
            increments below 1/256 of the state.
        steps: number of equal steps, from 1; adaptive methods ignore it.
        T: integration time, above 0.
        t0: the time at which integration begins.
        method: one of
            "euler": Euler, with k > 0 Euler-Maruyama.
            "rk4": the classical Runge-Kutta step; its noise comes after the step. Its coefficients
                are not negative, so that a step's Lipschitz factor is at most the sum of
                (dt L)^j / j! over j <= 4.
            "stoch_rk4": a Runge-Kutta step whose noise W, drawn once, also enters its stages:
                W/2, W/2 and W in stages 2 to 4, and W in the result. With noise it equals rk4
                only where the drift is 0.
            "dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun": torchdiffeq, without noise.
            "srk", "milstein": torchsde with the diffusion k sqrt(steps / T).
        k: standard deviation of the noise of a step, from 0.
        generator: draws the noise; None: torch's global one.
        rtol, atol: tolerances by which torchdiffeq chooses its steps.

    Returns:
        The state (B, ...) at t0 + T.

    Raises:
        ValueError: for settings that make no sense, a missing library, and a state that blows up in
            an adaptive solver.

    Example:
        >>> h = torch.ones(1, 1)
        >>> integrate(lambda t, h: -h, h, steps=4, method="rk4")  # exp(-1) = 0.3679
        tensor([[0.3679]])

    Source: for stoch_rk4, the public code of Oganesyan, Volokhova and Vetrov (arXiv 2002.09779).

    Caveats: nothing checks whether equal steps are short enough, and the result may be inf. An
    adaptive solver chooses its steps for the whole batch, so that within the tolerances a state's
    solution depends on its companions.
    """
    check(steps=steps, T=T, method=method, k=k, rtol=rtol, atol=atol)
    h = widened(h)
    if method in BACKENDS and transformed():
        raise ValueError(
            f"method={method!r} works under no torch.func transform, so its models cannot be"
            f" stacked: train them one by one (strategy='plain'), or take {', '.join(FIXED)}"
        )
    if method in ADAPTIVE:
        return _torchdiffeq(drift, h, t0, T, method, rtol, atol)
    if method in DIAGONAL:
        # g dB has the variance g^2 T / steps over a step, which is to be k^2
        diffusion = k * math.sqrt(steps / T)
        return _torchsde(drift, h, t0, T, method, steps, diffusion, generator)
    step = STEPPERS[method]
    dt = T / steps
    for i in range(steps):
        noise = k * draw(h, generator) if k else None
        h = step(drift, t0 + i * dt, h, dt, noise)
    return h


def _euler(drift: Drift, t: float, h: Tensor, dt: float, noise: Tensor | None) -> Tensor:
    """One step h + dt f(t, h) + noise: Euler, of order 1, and with noise Euler-Maruyama."""
    h = h + dt * drift(t, h)
    return h if noise is None else h + noise


def _rk4(drift: Drift, t: float, h: Tensor, dt: float, noise: Tensor | None) -> Tensor:
    """One classical Runge-Kutta step, of order 4 without noise; the noise comes after it."""
    k1 = drift(t, h)
    k2 = drift(t + dt / 2, h + dt / 2 * k1)
    k3 = drift(t + dt / 2, h + dt / 2 * k2)
    k4 = drift(t + dt, h + dt * k3)
    h = h + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return h if noise is None else h + noise


def _stoch_rk4(drift: Drift, t: float, h: Tensor, dt: float, noise: Tensor | None) -> Tensor:
    """One classical Runge-Kutta step whose noise w also enters its stages; without noise `_rk4`."""
    w = 0.0 if noise is None else noise
    k1 = drift(t, h)
    k2 = drift(t + dt / 2, h + dt / 2 * k1 + w / 2)
    k3 = drift(t + dt / 2, h + dt / 2 * k2 + w / 2)
    k4 = drift(t + dt, h + dt * k3 + w)
    return h + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4) + w


STEPPERS = {"euler": _euler, "rk4": _rk4, "stoch_rk4": _stoch_rk4}


def check(
    *,
    steps: int,
    T: float = 1.0,
    method: str = "euler",
    k: float = 0.0,
    rtol: float = 1e-3,
    atol: float = 1e-3,
) -> None:
    """ValueError of one line for settings that no solver can use."""
    one_of("method", method, METHODS)
    is_whole = isinstance(steps, Integral) and not isinstance(steps, bool)
    if not (is_whole and steps >= 1):
        raise ValueError(f"steps={steps!r}: wanted a whole number of steps from 1 up")
    if not 0 < T < math.inf:
        raise ValueError(f"T={T}: wanted a positive time of integration")
    if not (0 <= k < math.inf):
        raise ValueError(f"k={k}: wanted a standard deviation of the noise of a step, 0 for none")
    if k > 0 and method in ADAPTIVE:
        raise ValueError(
            f"k={k} with method={method!r}: an adaptive solver would chase the noise with ever"
            " smaller steps; take euler, rk4, stoch_rk4, srk or milstein, or k=0"
        )
    if not (rtol > 0 and atol > 0):
        raise ValueError(f"rtol={rtol}, atol={atol}: tolerances must be positive")
    if method in BACKENDS:
        _library(method)  # refuses a library that is not installed


def widened(h: Tensor) -> Tensor:
    """The state in float32 if it is in half precision, else unchanged."""
    return h.float() if h.dtype in (torch.bfloat16, torch.float16) else h


def draw(h: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal noise of the shape of h.

    The numbers fill the axes in order, whatever the memory format of h, so that stacked and plain
    training draw the same noise.
    """
    if generator is None:
        return torch.randn_like(h, memory_format=torch.contiguous_format)
    return torch.randn(h.shape, generator=generator, device=h.device, dtype=h.dtype)


def _library(method: str) -> ModuleType:
    """The library of a method, imported only when needed, as that takes a second."""
    name = BACKENDS[method]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"method={method!r} needs {name}, which is not installed: pip install {name}"
        ) from error


def _torchdiffeq(
    drift: Drift, h: Tensor, t0: float, T: float, method: str, rtol: float, atol: float
) -> Tensor:
    """The last state of torchdiffeq's solution; BlownUp if it finds no step size."""
    library = _library(method)
    dtype = torch.float64 if h.dtype == torch.float64 else torch.float32
    times = torch.tensor([t0, t0 + T], dtype=dtype, device=h.device)
    # without step_t the library steps beyond the end and interpolates, outside of the tolerances
    options = {"step_t": times[1:]}
    try:
        states = library.odeint(
            drift, h, times, method=method, rtol=rtol, atol=atol, options=options
        )
    except AssertionError as error:  # a step size of 0, or a state that is not finite
        raise BlownUp(
            f"the state blew up: {method} found no step that meets rtol={rtol}, atol={atol}"
            f" ({first_line(error)}); take a smaller learning rate, lipschitz=, or a fixed grid"
        ) from error
    return states[-1]


class _Diffusion(nn.Module):
    """The equation as torchsde wants it: drift f and constant diffusion g of states (B, d)."""

    noise_type = "diagonal"
    sde_type = "ito"

    def __init__(self, drift: Drift, shape: torch.Size, diffusion: float) -> None:
        super().__init__()
        self.drift = drift
        self.shape = shape
        self.diffusion = diffusion

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        return self.drift(t, y.view(-1, *self.shape)).flatten(1).to(y.dtype)

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.full_like(y, self.diffusion)


def _torchsde(
    drift: Drift,
    h: Tensor,
    t0: float,
    T: float,
    method: str,
    steps: int,
    diffusion: float,
    generator: torch.Generator | None,
) -> Tensor:
    """The last state of torchsde's solution on `steps` equal steps."""
    library = _library(method)
    y = h.flatten(1)
    path = library.BrownianInterval(
        t0=t0,
        t1=t0 + T,
        size=tuple(y.shape),
        dtype=y.dtype,
        device=y.device,
        entropy=_brownian_seed(h, generator),
        levy_area_approximation="space-time" if method == "srk" else "none",
    )
    times = torch.tensor([t0, t0 + T], dtype=torch.float64, device=y.device)
    equation = _Diffusion(drift, h.shape[1:], diffusion)
    # slightly longer than T / steps: else rounding could leave a remainder, and with it one more
    # step; the library cuts the last step off at the end
    dt = T / steps * (1 + 1e-9)
    states = library.sdeint(equation, y, times, bm=path, method=method, dt=dt)
    return states[-1].view_as(h)


def _brownian_seed(h: Tensor, generator: torch.Generator | None) -> int:
    """A seed for torchsde, which draws from NumPy: the bits of one number of the generator."""
    device = h.device if generator is None else generator.device
    number = draw(torch.zeros(1, dtype=torch.float64, device=device), generator)
    return int(number.view(torch.int64).abs())
