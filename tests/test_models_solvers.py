"""Solvers: orders of convergence, two libraries as oracles, closed forms with noise, the published
sigmas, refusals.
"""

from __future__ import annotations

import math
import sys
from itertools import pairwise

import pytest
import torch
import torchdiffeq
import torchsde
from torch import nn
from torch.func import vmap

from mia_nb.accounting import noise_sd, nsde_sigma
from mia_nb.models import solvers
from mia_nb.models.neural_de import Drift
from mia_nb.models.solvers import integrate
from mia_nb.studies.paper_numbers import paper_results

FEW = 16  # steps
# k as printed: k as it was
HANDS = {0.71: 1 / math.sqrt(2), 0.35: math.sqrt(2) / 4, 0.18: math.sqrt(2) / 8, 0.13: 1 / 8}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def convolutional():
    """A learned drift as it is in a network, and a state, float64."""
    torch.manual_seed(0)
    return Drift(4, 4).double().requires_grad_(False), torch.randn(3, 4, 6, 5, dtype=torch.float64)


# --------------------------------------------------------------------------------------------------
# without noise


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("rk4", 4), ("stoch_rk4", 4)])
@pytest.mark.parametrize("t0", [0.0, 0.7])
def test_halving_the_step_divides_the_error_by_two_to_the_order(method, order, t0):
    """h' = -h, and h' = h cos t, whose solution h0 exp(sin(t0 + T) - sin t0) also sees the times of
    the stages.
    """
    start, T = torch.tensor([[1.0, -2.0]], dtype=torch.float64), 1.3
    for drift, growth in (
        (lambda t, h: -h, math.exp(-T)),
        (lambda t, h: h * math.cos(t), math.exp(math.sin(t0 + T) - math.sin(t0))),
    ):
        errors = [
            (integrate(drift, start, steps=s, T=T, t0=t0, method=method) - growth * start)
            .abs()
            .max()
            .item()
            for s in (16, 32, 64, 128, 256)
        ]
        observed = [math.log2(a / b) for a, b in pairwise(errors)]
        assert abs(observed[-1] - order) < 0.05 and all(abs(p - order) < 0.3 for p in observed)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-5])
@pytest.mark.parametrize("method", solvers.ADAPTIVE)
def test_adaptive_solvers_reach_the_closed_form_within_their_tolerance(method, tolerance):
    """With the last step beyond the end and interpolated, bosh3 was 13 and fehlberg2 190 tolerances
    off. The error estimate of fehlberg2, 1/512 of the difference of two slopes, is known to be
    small."""
    start, t0, T = torch.tensor([[1.0]], dtype=torch.float64), 0.7, 1.3
    times = []

    def drift(t, h):
        times.append(float(t))
        return h * torch.cos(t)

    end = integrate(
        drift, start, steps=1, T=T, t0=t0, method=method, rtol=tolerance, atol=tolerance
    )
    error = (end - math.exp(math.sin(t0 + T) - math.sin(t0))).abs().item()
    assert error <= tolerance * (100 if method == "fehlberg2" else 1)
    assert min(times) == t0 and max(times) == pytest.approx(t0 + T, abs=1e-12)


@pytest.mark.parametrize(
    ("method", "tolerance", "error"), [("dopri5", 1e-5, 5e-5), ("dopri8", 1e-3, 1e-6)]
)
def test_gradients_of_an_exponential_have_their_closed_form(method, tolerance, error):
    """h' = a h: the derivative of h(T) = h0 exp(a T) is T h(T) for a, exp(a T) for h0."""

    class Growth(nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = nn.Parameter(torch.tensor(0.8, dtype=torch.float64))

        def forward(self, t, h):
            return self.rate * h

    growth, start, T = Growth(), torch.tensor([[2.0]], dtype=torch.float64, requires_grad=True), 1.3
    end = integrate(
        growth,
        start,
        steps=1,
        T=T,
        t0=0.4,
        method=method,
        rtol=tolerance,
        atol=tolerance,
    )
    by_rate, by_start = torch.autograd.grad(end.sum(), [growth.rate, start])
    factor = math.exp(0.8 * T)
    assert end.item() == pytest.approx(2 * factor, rel=error)
    assert by_rate.item() == pytest.approx(
        2 * T * factor, rel=error
    ) and by_start.item() == pytest.approx(factor, rel=error)


def test_own_euler_and_runge_kutta_agree_with_torchdiffeq_on_a_learned_drift(convolutional):
    """Its rk4 is the 3/8 rule, ours the classical one: they differ in the fifth order of the
    step.
    """
    drift, h = convolutional
    for t0, T in ((0.0, 1.0), (0.5, 0.25)):
        times = torch.tensor([t0, t0 + T], dtype=torch.float64)

        def theirs(method, steps, times=times, T=T):
            return torchdiffeq.odeint(
                drift, h, times, method=method, options={"step_size": T / steps}
            )[-1]

        def ours(method, steps, t0=t0, T=T):
            return integrate(drift, h, steps=steps, T=T, t0=t0, method=method)

        assert (ours("euler", FEW) - h).abs().max() > 0.05  # the drift does something
        torch.testing.assert_close(ours("euler", FEW), theirs("euler", FEW), rtol=0, atol=1e-6)
        torch.testing.assert_close(ours("rk4", FEW), theirs("rk4", FEW), rtol=0, atol=1e-4)
        torch.testing.assert_close(ours("stoch_rk4", FEW), ours("rk4", FEW), rtol=0, atol=1e-12)
        tight = integrate(drift, h, steps=1, T=T, t0=t0, method="dopri5", rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(tight, ours("rk4", 128), rtol=0, atol=1e-5)


def test_one_classical_runge_kutta_step_of_a_linear_drift_is_the_exponential_series_to_the_fourth_power():
    """The 3/8 rule gives the same number, so the stages are looked at too: halves, and no other
    point.
    """
    seen = []

    def drift(t, h):
        seen.append((t, h.item()))
        return h

    one = torch.ones(1, 1, dtype=torch.float64)
    z = 0.5
    assert integrate(drift, one, steps=1, T=z, method="rk4").item() == pytest.approx(
        1 + z + z**2 / 2 + z**3 / 6 + z**4 / 24
    )
    times, states = zip(*seen, strict=True)
    assert times == (0, z / 2, z / 2, z)
    assert states == pytest.approx(
        (1, 1 + z / 2, 1 + z / 2 + z**2 / 4, 1 + z + z**2 / 2 + z**3 / 4)
    )


def test_half_precision_states_go_on_in_float32_where_small_increments_count():
    """A hundred increments of .001 on 1: bfloat16 has steps of .0078 there and would lose every
    one.
    """
    one = torch.ones(1, 3, dtype=torch.bfloat16)
    for method in ("euler", "rk4", "stoch_rk4", "dopri5", "milstein"):
        end = integrate(
            lambda t, h: torch.full_like(h, 0.1).bfloat16(), one, steps=100, method=method
        )
        assert end.dtype == torch.float32
        torch.testing.assert_close(end, torch.full_like(end, 1.1), rtol=0, atol=1e-3)


# --------------------------------------------------------------------------------------------------
# with noise


def assert_normal(h: torch.Tensor, mean: float, variance: float):
    """Mean and variance within five standard errors; at 100,000 values one is .3 % of the
    deviation, .45 % of the variance.
    """
    n = h.numel()
    assert h.mean().item() == pytest.approx(mean, abs=5 * math.sqrt(variance / n))
    assert h.var().item() == pytest.approx(variance, rel=5 * math.sqrt(2 / n))


@pytest.mark.parametrize("method", ["euler", "rk4", "stoch_rk4"])
def test_without_drift_the_noise_has_variance_k_squared_times_steps(method):
    start, k, steps = torch.zeros(100, 1000), 0.3, 20
    end = integrate(
        lambda t, h: 0 * h, start, steps=steps, T=0.5, method=method, k=k, generator=seeded(0)
    )
    assert end.var().item() == pytest.approx(k**2 * steps, rel=0.02)
    assert end.std().item() == pytest.approx(noise_sd(k=k, steps=steps), rel=0.01)
    assert_normal(end, 0.0, k**2 * steps)


@pytest.mark.parametrize("rate", [-1.0, 1.0, 3.0])
@pytest.mark.parametrize("method", ["euler", "rk4", "stoch_rk4"])
def test_mean_and_variance_of_a_linear_drift_with_noise_are_geometric_series(method, rate):
    """h(T) = c^n h0 + k d sum_j c^j W_j: c is the factor of a step without noise; d = 1, in
    stoch_rk4 what its stages add.
    """
    k, steps, T, h0 = 0.2, 10, 0.8, 1.5
    z = rate * T / steps
    c = 1 + z if method == "euler" else sum(z**j / math.factorial(j) for j in range(5))
    d = 1 + z / 2 + z**2 / 6 + z**3 / 24 if method == "stoch_rk4" else 1.0
    start = torch.full((100, 1000), h0, dtype=torch.float64)
    end = integrate(
        lambda t, h: rate * h, start, steps=steps, T=T, method=method, k=k, generator=seeded(1)
    )
    assert_normal(end, c**steps * h0, k**2 * d**2 * sum(c ** (2 * j) for j in range(steps)))


@pytest.mark.parametrize("rate", [-1.0, 2.0])
def test_the_library_s_stochastic_schemes_have_the_closed_mean_and_variance_of_a_linear_drift(rate):
    """Milstein with constant diffusion is Euler-Maruyama; srk is weakly exact enough for the
    Ornstein-Uhlenbeck formula.
    """
    k, steps, T, h0 = 0.2, 10, 0.5, 1.5
    start = torch.full((100, 5, 10, 10), h0, dtype=torch.float64)
    options = {"steps": steps, "T": T, "k": k, "generator": seeded(2)}
    c, g = 1 + rate * T / steps, nsde_sigma(k=k, steps=steps, T=T)
    discrete = c**steps * h0, k**2 * sum(c ** (2 * j) for j in range(steps))
    continuous = math.exp(rate * T) * h0, g**2 * (math.exp(2 * rate * T) - 1) / (2 * rate)
    assert_normal(integrate(lambda t, h: rate * h, start, method="milstein", **options), *discrete)
    assert_normal(integrate(lambda t, h: rate * h, start, method="srk", **options), *continuous)
    assert abs(discrete[1] / continuous[1] - 1) > 0.03  # the two can be told apart


def test_own_euler_maruyama_is_torchsde_s_on_the_same_brownian_path(convolutional, monkeypatch):
    drift, h = convolutional
    steps, k, T = 16, 0.3, 0.5
    dt, g = T / steps, nsde_sigma(k=k, steps=steps, T=T)

    class Equation(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def f(self, t, y):
            return drift(t, y.view_as(h)).flatten(1)

        def g(self, t, y):
            return torch.full_like(y, g)

    flat = h.flatten(1)
    path = torchsde.BrownianInterval(0.0, T, size=tuple(flat.shape), dtype=flat.dtype, entropy=7)
    theirs = torchsde.sdeint(
        Equation(), flat, torch.tensor([0.0, T], dtype=flat.dtype), bm=path, method="euler", dt=dt
    )[-1]
    increments = iter([path(i * dt, (i + 1) * dt) / math.sqrt(dt) for i in range(steps)])
    monkeypatch.setattr(solvers, "draw", lambda state, generator: next(increments).view_as(state))
    ours = integrate(drift, h, steps=steps, T=T, k=k)
    assert next(increments, None) is None
    torch.testing.assert_close(ours, theirs.view_as(h), rtol=0, atol=1e-12)
    # and the noise was there
    assert (ours - integrate(drift, h, steps=steps, T=T)).abs().mean() > 0.1


def test_stochastic_runge_kutta_is_its_documented_stages(convolutional):
    """One draw W a step: W/2, W/2 and W inside stages 2 to 4, W on the result; the noise of rk4
    comes after the step.
    """
    drift, h = convolutional
    steps, k, t0, T = 3, 0.4, 0.25, 0.6
    dt = T / steps
    after, inside, draws = h, h, seeded(3)
    for i in range(steps):
        t, w = t0 + i * dt, k * torch.randn(h.shape, generator=draws, dtype=h.dtype)
        for which in ("after", "inside"):
            state, half = (after, 0.0) if which == "after" else (inside, w / 2)
            f1 = drift(t, state)
            f2 = drift(t + dt / 2, state + f1 * dt / 2 + half)
            f3 = drift(t + dt / 2, state + f2 * dt / 2 + half)
            f4 = drift(t + dt, state + f3 * dt + 2 * half)
            state = state + (f1 / 6 + f2 / 3 + f3 / 3 + f4 / 6) * dt + w
            after, inside = (state, inside) if which == "after" else (after, state)
    options = {"steps": steps, "T": T, "t0": t0, "k": k}
    own = {
        m: integrate(drift, h, method=m, generator=seeded(3), **options)
        for m in ("rk4", "stoch_rk4")
    }
    torch.testing.assert_close(own["rk4"], after, rtol=0, atol=1e-12)
    torch.testing.assert_close(own["stoch_rk4"], inside, rtol=0, atol=1e-12)
    assert (after - inside).abs().max() > 1e-3


def test_without_drift_the_three_own_schemes_add_the_same_noise():
    ends = [
        integrate(
            lambda t, h: 0 * h, torch.ones(4, 5), steps=6, k=0.7, method=m, generator=seeded(4)
        )
        for m in solvers.FIXED
    ]
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])


@pytest.mark.parametrize("method", [*solvers.FIXED, *solvers.DIAGONAL])
def test_noise_follows_the_generator_or_else_torch_s_global_one(method):
    def solve(generator=None, start=torch.zeros(3, 2, 4, 4)):  # noqa: B008
        return integrate(lambda t, h: -h, start, steps=4, method=method, k=0.5, generator=generator)

    state = torch.get_rng_state()
    first = solve(seeded(5))
    assert torch.equal(first, solve(seeded(5))) and not torch.equal(first, solve(seeded(6)))
    # a given generator leaves the global one alone
    assert torch.equal(torch.get_rng_state(), state)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        assert torch.equal(first, solve()) and not torch.equal(first, solve())
        if method in solvers.FIXED:  # in logical order, whatever lies where in memory
            torch.manual_seed(5)
            assert torch.equal(
                first,
                solve(None, torch.zeros(3, 2, 4, 4).contiguous(memory_format=torch.channels_last)),
            )


@pytest.mark.parametrize(("method", "stages"), [("milstein", 1), ("srk", 10)])
def test_the_library_takes_as_many_steps_as_were_asked_for(method, stages):
    """Its clock adds rounded steps: what is left over must not become one more.

    One call more is its check of the drift.
    """
    for t0, T in ((0.0, 1.0), (0.25, 0.125), (3.0, 1.0)):
        for steps in (1, 3, 10, 12, 19, 49):
            if steps == 49 and method == "srk":
                continue
            calls = []
            integrate(
                lambda t, h, calls=calls: calls.append(t) or -h,
                torch.ones(1, 2),
                steps=steps,
                T=T,
                t0=t0,
                method=method,
                k=0.1,
            )
            assert len(calls) == stages * steps + 1, (t0, T, steps)


# --------------------------------------------------------------------------------------------------
# published sigma


def test_sigma_reproduces_every_setting_of_the_study_s_table_xii():
    """Hong, Wu, Gruber and Lee (arXiv 2501.06686): 25 settings, sigma with one decimal; four k are
    rounded in print.
    """
    rows = {
        tuple(r["setting"][name] for name in ("s", "T", "k", "sigma"))
        for r in paper_results("nsde2025", "XII")
    }
    assert len(rows) == 25 and len({row[:3] for row in rows}) == 25
    for s, T, k, printed in rows:
        exact = HANDS.get(k, k)
        assert exact == pytest.approx(k, abs=0.0051)
        assert nsde_sigma(k=exact, steps=s, T=T) == pytest.approx(printed, abs=0.055)
        assert noise_sd(k=exact, steps=s) == pytest.approx(
            nsde_sigma(k=exact, steps=s, T=T) * math.sqrt(T)
        )


# --------------------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "rk45"}, "method='rk45' is not one of euler, rk4"),
        ({"steps": 0}, "steps=0: wanted a whole number"),
        ({"steps": True}, "steps=True: wanted a whole number"),
        ({"steps": 2.0}, "steps=2.0: wanted a whole number"),
        ({"T": 0.0}, "T=0.0: wanted a positive time"),
        ({"T": -1}, "T=-1: wanted a positive time"),
        ({"T": math.nan}, "T=nan: wanted a positive time"),
        ({"T": math.inf}, "T=inf: wanted a positive time"),
        ({"k": -0.1}, "k=-0.1: wanted a standard deviation"),
        ({"k": math.nan}, "k=nan: wanted a standard deviation"),
        ({"k": 0.5, "method": "dopri5"}, "an adaptive solver would chase the noise"),
        ({"rtol": 0.0}, "tolerances must be positive"),
        ({"atol": -1e-3}, "tolerances must be positive"),
    ],
)
def test_settings_that_no_solver_can_serve_are_refused_in_one_line(options, says):
    with pytest.raises(ValueError) as error:
        integrate(lambda t, h: -h, torch.ones(1, 2), **{"steps": 2, **options})
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("method", "library"),
    [("dopri5", "torchdiffeq"), ("srk", "torchsde"), ("milstein", "torchsde")],
)
def test_a_missing_library_gives_the_line_that_installs_it(method, library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        ValueError, match=f"needs {library}, which is not installed: pip install {library}"
    ):
        integrate(lambda t, h: -h, torch.ones(1, 2), steps=2, method=method)
    # the own loop needs neither
    assert integrate(lambda t, h: -h, torch.ones(1, 2), steps=2).isfinite().all()


@pytest.mark.parametrize("method", ["dopri5", "srk", "milstein"])
def test_library_solvers_refuse_to_be_stacked_in_one_line(method):
    with pytest.raises(
        ValueError, match=r"works under no torch\.func transform.*or take euler, rk4, stoch_rk4"
    ) as error:
        vmap(lambda h: integrate(lambda t, h: -h, h, steps=2, method=method))(torch.ones(3, 2, 4))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_state_that_reaches_infinity_stops_an_adaptive_solver_and_shows_in_a_fixed_grid(dtype):
    """h' = h^2 from 2 is infinite at t = 1/2."""
    start = torch.full((1, 1), 2.0, dtype=dtype)
    with pytest.raises(
        ValueError, match=r"the state blew up: dopri5 found no step that meets rtol=0\.001"
    ) as error:
        integrate(lambda t, h: h * h, start, steps=1, method="dopri5")
    assert "\n" not in str(error.value)
    assert not integrate(lambda t, h: h * h, start, steps=32, T=4.0).isfinite().all()
