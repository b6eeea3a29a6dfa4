"""Solving dh/dt = f(t, h), and dh = f(t, h) dt + g dB: an own fixed-grid loop, and two libraries
where they serve better.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from numbers import Integral
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

FIXED = ("euler", "rk4", "stoch_rk4")
ADAPTIVE = ("dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun")  # torchdiffeq
DIAGONAL = ("srk", "milstein")  # torchsde
METHODS = (*FIXED, *ADAPTIVE, *DIAGONAL)
BACKENDS = dict.fromkeys(ADAPTIVE, "torchdiffeq") | dict.fromkeys(DIAGONAL, "torchsde")

Drift = Callable[[float, Tensor], Tensor]


class BlownUp(ValueError):
    """A state that left all bounds inside a solver that chooses its own steps."""


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
    adjoint: bool = False,
) -> Tensor:
    """h(t0 + T) of dh/dt = drift(t, h), h(t0) = h; after each of `steps` steps noise of standard
    deviation k is added.

    Parameters:
        drift: (t, h) -> dh/dt, of the shape of h.
        h: (B, ...) the state at t0. Under autocast it stays float32: increments smaller than its
            256th part would be lost in bfloat16.
        steps: of a fixed grid, from 1.
        T: integration time, above 0.
        t0: where it begins.
        method: "euler": with k > 0 Euler-Maruyama.
            "rk4": the classical tableau (coefficients >= 0, so a step's Lipschitz factor is at most
            sum_{j<=4} (dt L)^j / j!); its noise comes after the step.
            "stoch_rk4": one draw W = k n a step, W/2, W/2, W added inside stages 2 to 4 and W to
                the
            result; equal to rk4 only where the drift is 0.
            "dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun": torchdiffeq, no noise.
            "srk", "milstein": torchsde with diffusion k sqrt(steps / T).
        k: standard deviation of the noise of a step, from 0.
        generator: of the noise; None: torch's global one.
        rtol, atol: tolerances, by which torchdiffeq chooses its steps.
        adjoint: torchdiffeq solves backwards in time for the gradient: little memory, approximate,
            and wrong for gradients per sample.

    Returns:
        The state (B, ...) at t0 + T.

    Raises:
        ValueError: for settings that make no sense, a missing library, a state that blows up in an
            adaptive solver.

    Example:
        >>> h = torch.ones(1, 1)
        >>> integrate(lambda t, h: -h, h, steps=4, method="rk4")  # exp(-1) = 0.3679
        tensor([[0.3679]])

    Source: public code of Oganesyan, Volokhova and Vetrov (stoch_rk4).

    Caveats: a fixed grid is not checked for its accuracy, and may give inf; an adaptive solver
    chooses its steps for the whole batch, so within the tolerances a state's solution depends on
    its companions. The own loop (the first three) works under torch.func.vmap and compiles whole.
    """
    check(steps=steps, T=T, method=method, k=k, rtol=rtol, atol=atol, adjoint=adjoint)
    h = widened(h)
    if method in BACKENDS:
        if is_transformed(h):
            raise ValueError(
                f"method={method!r} works under no torch.func transform, so its models cannot be"
                f" stacked: train them one by one (strategy='plain'), or take {', '.join(FIXED)}"
            )
        if method in DIAGONAL:
            return _torchsde(drift, h, t0, T, method, steps, k * math.sqrt(steps / T), generator)
        return _torchdiffeq(drift, h, t0, T, method, rtol, atol, adjoint)
    dt = T / steps
    step = {"euler": _euler, "rk4": _rk4, "stoch_rk4": _stoch_rk4}[method]
    for i in range(steps):
        noise = k * draw(h, generator) if k else None
        h = step(drift, t0 + i * dt, h, dt, noise)
    return h


def check(
    *,
    steps: int,
    T: float = 1.0,
    method: str = "euler",
    k: float = 0.0,
    rtol: float = 1e-3,
    atol: float = 1e-3,
    adjoint: bool = False,
) -> None:
    """ValueError of one line for settings that no solver can serve."""
    whole = isinstance(steps, Integral) and not isinstance(steps, bool) and steps >= 1
    if method not in METHODS:
        raise ValueError(f"method={method!r} is not one of {', '.join(METHODS)}")
    if not whole:
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
    if adjoint and method not in ADAPTIVE:
        raise ValueError(
            f"adjoint=True with method={method!r}: only {', '.join(ADAPTIVE)} have adjoint"
            " gradients"
        )
    if method in BACKENDS:
        _library(method)


def widened(h: Tensor) -> Tensor:
    """A state in float32 at least."""
    return h.float() if h.dtype in (torch.bfloat16, torch.float16) else h


def is_transformed(h: Tensor) -> bool:
    """Whether a torch.func transform (vmap, grad, jvp) is looking at this tensor."""
    return torch._C._functorch.is_functorch_wrapped_tensor(h)


def draw(h: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal noise like h, filled in the order of its logical shape whatever its memory
    format, so that stacked and plain training draw the same numbers."""
    if generator is None:
        return torch.randn_like(h, memory_format=torch.contiguous_format)
    return torch.randn(h.shape, generator=generator, device=h.device, dtype=h.dtype)


class Draws(TorchFunctionMode):
    """While on, in this thread, randn_like draws every block of rows from its generator."""

    def __init__(self, generators: list[torch.Generator], sizes: list[int]) -> None:
        super().__init__()
        self.generators, self.sizes = generators, sizes

    def __torch_function__(
        self,
        function: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        if function is not torch.randn_like:
            return function(*args, **(kwargs or {}))
        blocks = args[0].split(self.sizes) if len(self.sizes) > 1 else args
        return torch.cat([draw(block, g) for block, g in zip(blocks, self.generators, strict=True)])


def _euler(drift: Drift, t: float, h: Tensor, dt: float, noise: Tensor | None) -> Tensor:
    h = h + dt * drift(t, h)
    return h if noise is None else h + noise


def _rk4(drift: Drift, t: float, h: Tensor, dt: float, noise: Tensor | None) -> Tensor:
    k1 = drift(t, h)
    k2 = drift(t + dt / 2, h + dt / 2 * k1)
    k3 = drift(t + dt / 2, h + dt / 2 * k2)
    k4 = drift(t + dt, h + dt * k3)
    h = h + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return h if noise is None else h + noise


def _stoch_rk4(drift: Drift, t: float, h: Tensor, dt: float, noise: Tensor | None) -> Tensor:
    w = 0.0 if noise is None else noise
    k1 = drift(t, h)
    k2 = drift(t + dt / 2, h + dt / 2 * k1 + w / 2)
    k3 = drift(t + dt / 2, h + dt / 2 * k2 + w / 2)
    k4 = drift(t + dt, h + dt * k3 + w)
    return h + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4) + w


def _library(method: str) -> ModuleType:
    """The module behind a method; imported here, since it takes a second and few need it."""
    name = BACKENDS[method]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"method={method!r} needs {name}, which is not installed: pip install {name}"
        ) from error


class _Function(nn.Module):
    """A drift as torchdiffeq's adjoint wants it: a module that owns the parameters."""

    def __init__(self, drift: Drift) -> None:
        super().__init__()
        self.drift = drift
        owner = getattr(drift, "__self__", drift)
        self.owner = owner if isinstance(owner, nn.Module) else None

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        return self.drift(t, h)


def _torchdiffeq(
    drift: Drift,
    h: Tensor,
    t0: float,
    T: float,
    method: str,
    rtol: float,
    atol: float,
    adjoint: bool,
) -> Tensor:
    library = _library(method)
    times = torch.tensor(
        [t0, t0 + T], dtype=h.dtype if h.dtype == torch.float64 else torch.float32, device=h.device
    )
    solve = library.odeint_adjoint if adjoint else library.odeint
    function = _Function(drift)
    if adjoint and function.owner is None:  # its parameters would get no gradient
        raise ValueError(
            "adjoint=True with a drift that is no nn.Module and no method of one: its parameters"
            " cannot be found; make it a module, or leave adjoint out"
        )
    # the last step ends at the end; else the library steps beyond it and interpolates, which no
    # tolerance checks
    ends = {"step_t": times[1:]}
    back = {"adjoint_options": {"step_t": times[:1]}} if adjoint else {}
    try:
        return solve(function, h, times, rtol=rtol, atol=atol, method=method, options=ends, **back)[
            -1
        ]
    except AssertionError as error:  # a step size of 0, or a state that is not finite
        first = (str(error).splitlines() or ["no reason given"])[0]
        raise BlownUp(
            f"the state blew up: {method} found no step that meets rtol={rtol}, atol={atol}"
            f" ({first}); take a smaller learning rate, lipschitz=, or a fixed grid"
        ) from error


class _Diffusion(nn.Module):
    """drift and constant diffusion on states flattened to (B, d), as torchsde wants them."""

    noise_type, sde_type = "diagonal", "ito"

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
    library = _library(method)
    y = h.flatten(1)
    device = h.device if generator is None else generator.device
    # torchsde draws from NumPy: the bits of one number of ours are its seed
    entropy = int(
        draw(torch.zeros(1, dtype=torch.float64, device=device), generator).view(torch.int64).abs()
    )
    levy = "space-time" if method == "srk" else "none"
    path = library.BrownianInterval(
        t0=t0,
        t1=t0 + T,
        size=tuple(y.shape),
        dtype=y.dtype,
        device=y.device,
        entropy=entropy,
        levy_area_approximation=levy,
    )
    times = torch.tensor([t0, t0 + T], dtype=torch.float64, device=y.device)
    problem = _Diffusion(drift, h.shape[1:], diffusion)
    # steps a trifle longer, the last cut off at the end: rounding would leave a remainder of a step
    # more
    return library.sdeint(problem, y, times, bm=path, method=method, dt=T / steps * (1 + 1e-9))[
        -1
    ].view_as(h)
