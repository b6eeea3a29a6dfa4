"""Neurons against snntorch, loops written out here, and the published layer's values; surrogates in
closed form.

Small copies of the published layer's outputs and gradients are in golden/snn.npz; the whole vectors
are read from the folder MIA_NB_GOLDEN.
"""

from __future__ import annotations

import inspect
from functools import partial

import numpy as np
import pytest
import snntorch
import snntorch.surrogate
import torch
from torch.func import grad, vmap

from mia_nb.models import neurons, snn
from mia_nb.models.neurons import multistep, surrogate
from mia_nb.models.sites import Spike


def noise(*shape, seed=0, shift=0.3, dtype=torch.float64):
    return shift + torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def by_snntorch(x, **options):
    """Spikes of snntorch's Leaky over x (T, ...)."""
    neuron = snntorch.Leaky(threshold=1.0, **options)
    mem, spikes = neuron.init_leaky(), []
    for x_t in x:
        spk, mem = neuron(x_t, mem)
        spikes.append(spk)
    return torch.stack(spikes)


class Fire(torch.autograd.Function):
    """H(v) with the normal LocalZO derivative of delta = 1/2."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v >= 0).to(v.dtype)

    @staticmethod
    def backward(ctx, upstream):
        (v,) = ctx.saved_tensors
        return upstream * torch.exp(-2 * v**2) * 2 / np.sqrt(2 * np.pi)


def plain_loop(x, theta, u0, *, beta, reset, detach_reset, amplitude=1.0):
    mem, out = u0, []
    for x_t in x:
        mem = beta * mem + x_t
        spk = Fire.apply(mem - theta)
        out.append(amplitude * spk)
        back = spk.detach() if detach_reset else spk
        mem = mem - theta * back if reset == "soft" else mem * (1 - back)
    return torch.stack(out)


# --------------------------------------------------------------------------------------------------
# forward


def test_integrate_and_fire_has_the_spikes_of_snntorch_on_continuous_input():
    x = noise(16, 50, 40, dtype=torch.float32)
    assert torch.equal(multistep(x, 1.0, 0.0, beta=1.0), by_snntorch(x, beta=1.0))


@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_a_hard_reset_is_that_of_snntorch_for_every_leak(beta):
    x = noise(16, 50, 40, dtype=torch.float32)
    assert torch.equal(
        multistep(x, 1.0, 0.0, beta=beta, reset="hard"),
        by_snntorch(x, beta=beta, reset_mechanism="zero"),
    )


def reference(x, beta):
    """One neuron, soft reset, theta = 1, u0 = 0."""
    mem, spikes = 0.0, []
    for value in x:
        mem = beta * mem + value
        spikes.append(float(mem >= 1))
        mem -= spikes[-1]
    return spikes


@pytest.mark.parametrize(("beta", "shares"), [(0.5, (0.04, 0.08)), (0.9, (0.035, 0.065))])
def test_a_soft_reset_with_leak_decays_the_residual_where_snntorch_subtracts_after_the_decay(
    beta, shares
):
    x = noise(16, 30, 30)
    ours = multistep(x, 1.0, 0.0, beta=beta)
    assert ours.flatten(1).T.tolist() == [reference(row, beta) for row in x.flatten(1).T.tolist()]
    differ = (ours != by_snntorch(x.float(), beta=beta).double()).double().mean()
    assert shares[0] < differ < shares[1]


def test_a_charge_of_two_and_a_half_fires_twice():
    out, mem = multistep(torch.tensor([2.5, 0, 0, 0])[:, None], 1.0, 0.0, return_mem=True)
    assert out[:, 0].tolist() == [1, 1, 0, 0]
    assert mem[:, 0].tolist() == [2.5, 1.5, 0.5, 0.5]  # before the reset


def test_reaching_the_threshold_fires_and_staying_below_does_not():
    assert multistep(torch.tensor([[1.0], [0.999]]).T[None], 1.0, 0.0)[0, 0].tolist() == [1, 0]


def test_the_initial_potential_decays_like_any_other():
    _, mem = multistep(torch.zeros(3, 1), 9.0, 8.0, beta=0.5, return_mem=True)
    assert mem[:, 0].tolist() == [4, 2, 1]


def test_thresholds_per_channel_are_those_of_one_channel_at_a_time():
    x, theta = noise(5, 3, 4, 6, 6), torch.tensor([0.5, 1.0, 2.0, 1e4], dtype=torch.float64)
    both = multistep(x, theta, theta / 2)
    for c in range(4):
        assert torch.equal(
            both[:, :, c], multistep(x[:, :, c], float(theta[c]), float(theta[c]) / 2)
        )
    assert set(both[:, :, 2].unique().tolist()) == {0.0, 2.0}  # the amplitude is theta
    flat = multistep(x[..., 0, 0], theta, theta / 2)  # after a linear layer
    assert torch.equal(flat, both[..., 0, 0])


@pytest.mark.parametrize("T", range(1, 9))
def test_the_mean_output_for_a_constant_input_is_the_quantiser(T):
    rng = np.random.default_rng(T)
    theta, a = rng.uniform(0.1, 5, 4000), rng.normal(1, 2, 4000) * 2
    level = T * a / theta + 0.5
    theta, a = (v[np.abs(level - np.round(level)) > 1e-9] for v in (theta, a))
    expected = theta / T * np.clip(np.floor(T * a / theta + 0.5), 0, T)
    theta = torch.tensor(theta)
    out = multistep(torch.tensor(a).expand(T, 1, -1), theta, theta / 2).mean(0)[0]
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_output_keeps_the_dtype_of_the_input_and_the_potential_the_wider_one(dtype):
    x = noise(4, 8).to(dtype)
    out, mem = multistep(x, torch.tensor(1.0), torch.tensor(0.5), return_mem=True)
    assert out.dtype == dtype and mem.dtype == torch.promote_types(dtype, torch.float32)
    assert multistep(x, 1.0, 0.5).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"reset": "hard", "beta": 0.5, "amplitude": 1.0}, {"beta": 0.5}, {"amplitude": 2.0}],
)
def test_without_gradients_every_bit_and_the_order_in_memory_are_those_with_them(
    options, static, dtype
):
    for theta in (torch.tensor(0.7), torch.linspace(0.4, 1, 6)):
        for order in (torch.contiguous_format, torch.channels_last):
            x = noise(12, 6, 4, 4).to(dtype).contiguous(memory_format=order)
            x = x.expand(3, *x.shape) if static else x.unflatten(0, (3, -1))
            kept, expected = x.clone(), multistep(x, theta, theta / 2, **options)
            with torch.inference_mode():
                out = multistep(x, theta, theta / 2, **options)
            assert torch.equal(out, expected) and (out.dtype, out.stride()) == (
                expected.dtype,
                expected.stride(),
            )
            assert torch.equal(x, kept) and out.count_nonzero() > 0


# --------------------------------------------------------------------------------------------------
# gradients


@pytest.mark.parametrize("detach_reset", [True, False])
@pytest.mark.parametrize("reset", ["soft", "hard"])
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_outputs_and_gradients_are_those_of_a_plain_loop_with_a_custom_function(
    beta, reset, detach_reset
):
    w, results = noise(6, 5, 7, seed=1), []
    for form in (plain_loop, partial(multistep, surrogate=neurons.local_zo, amplitude=1.0)):
        x = noise(6, 5, 7).requires_grad_()
        theta = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
        u0 = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        out = form(x, theta, u0, beta=beta, reset=reset, detach_reset=detach_reset)
        results.append((out, *torch.autograd.grad((w * out).sum(), (x, theta, u0))))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    assert torch.equal(results[0][0], results[1][0]) and results[0][1].abs().sum() > 0


def test_gradients_are_those_of_snntorch_with_the_same_surrogate():
    w, gradients = noise(8, 5, 20, seed=1, dtype=torch.float32), []
    ours = partial(multistep, theta=1.0, u0=0.0, surrogate=surrogate("snntorch:atan", alpha=2.0))
    own = partial(multistep, theta=1.0, u0=0.0, surrogate=surrogate("atan", alpha=2.0))
    for form in (
        partial(by_snntorch, beta=1.0, spike_grad=snntorch.surrogate.atan(alpha=2.0)),
        ours,
        own,
    ):
        x = noise(8, 5, 20, dtype=torch.float32).requires_grad_()
        gradients.append(torch.autograd.grad((w * form(x)).sum(), x)[0])
    for mine in gradients[1:]:
        torch.testing.assert_close(mine, gradients[0], rtol=0, atol=2e-6)


def test_per_sample_gradients_by_vmap_are_those_of_one_sample_at_a_time():
    x, w = noise(4, 6, 3), noise(4, 3, seed=1)
    of_one = lambda row: (w * multistep(row[:, None], 1.0, 0.5, surrogate=neurons.atan)[:, 0]).sum()  # noqa: E731
    together = vmap(grad(of_one), in_dims=1, out_dims=1)(x)
    for b in range(6):
        row = x[:, b].clone().requires_grad_()
        torch.testing.assert_close(
            together[:, b], torch.autograd.grad(of_one(row), row)[0], rtol=1e-12, atol=1e-13
        )


@pytest.mark.parametrize("T", [1, 2, 4])
def test_outputs_and_gradients_are_those_of_the_published_layer(official, T):
    """theta is their amplitude, u0 their amplitude less their firing threshold; axes (batch, time,
    C, H, W).
    """
    x, y, w, gx = (
        torch.tensor(official[f"{name}_T{T}"]).transpose(0, 1) for name in ("x", "y", "w", "gx")
    )
    theta, u0 = float(official["theta_out"]), float(official["theta_out"] - official["theta_in"])
    x.requires_grad_()
    out = multistep(x, theta, u0, surrogate=surrogate("boxcar", width=0.5 / T))
    torch.testing.assert_close(out, y.to(out), rtol=0, atol=1e-7)  # theirs went through float32
    torch.testing.assert_close(
        torch.autograd.grad((w * out).sum(), x)[0], gx.to(x), rtol=1e-6, atol=1e-6
    )


# --------------------------------------------------------------------------------------------------
# surrogates

ONE = torch.ones((), dtype=torch.float64)


def test_local_zo_has_its_published_closed_form_and_the_draws_average_to_it():
    values = (0.798, 0.666, 0.388, 0.108)
    v = torch.tensor([0.0, 0.3, 0.6, 1.0], dtype=torch.float64)
    closed = neurons.local_zo(v, ONE, ONE)
    torch.testing.assert_close(closed, torch.tensor(values, dtype=torch.float64), rtol=0, atol=6e-4)
    torch.manual_seed(0)
    drawn = neurons.local_zo(v[:, None].expand(4, 200_000), ONE, ONE, samples=5).mean(1)
    torch.testing.assert_close(drawn, closed, rtol=0, atol=2e-3)
    torch.testing.assert_close(neurons.local_zo(-v, ONE, ONE), closed)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("local_zo", {"delta": 0.3}),
        ("atan", {}),
        ("triangular", {"k": 2.0}),
        ("boxcar", {}),
        ("boxcar", {"width": 0.5}),
    ],
)
def test_surrogates_have_the_area_of_the_jump_they_stand_for(name, options):
    v = torch.linspace(-100, 100, 400_001, dtype=torch.float64)
    for theta in (1.0, 3.0):
        area = torch.trapezoid(surrogate(name, **options)(v, theta * ONE, theta * ONE), v)
        assert float(area) == pytest.approx(1, abs=3e-3)


def test_fast_sigmoid_has_the_slope_of_x_over_one_plus_k_x():
    v = torch.linspace(-2, 2, 101, dtype=torch.float64, requires_grad=True)
    slope = torch.autograd.grad((v / (1 + 25 * v.abs())).sum(), v)[0]
    torch.testing.assert_close(surrogate("fast_sigmoid", k=25.0)(v.detach(), ONE, ONE), slope)


def test_surrogates_of_snntorch_keep_the_dtype_and_say_that_they_do_not_vmap():
    theirs = surrogate("snntorch:fast_sigmoid", slope=5)
    for dtype in (torch.float64, torch.bfloat16):
        assert theirs(torch.linspace(-1, 1, 5, dtype=dtype), ONE, ONE).dtype == dtype
    v = torch.linspace(-1, 1, 5, dtype=torch.float64)
    torch.testing.assert_close(
        theirs(v, ONE, ONE), surrogate("fast_sigmoid", k=5.0)(v, ONE, ONE), rtol=1e-6, atol=1e-6
    )
    with pytest.raises(ValueError, match=r"torch\.func .* use local_zo"):
        vmap(
            grad(lambda row: multistep(row[:, None], 1.0, 0.0, surrogate=theirs).sum()), in_dims=1
        )(noise(3, 4))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: surrogate("box"), "surrogate 'box' is not one of boxcar"),
        (lambda: surrogate("snntorch:box"), "snntorch.surrogate has no such function"),
        (lambda: surrogate("boxcar", wide=1), "surrogate_args={'wide': 1} do not fit boxcar"),
    ],
)
def test_errors_name_the_argument_and_the_choices(call, says):
    with pytest.raises(ValueError) as error:
        call()
    assert says in str(error.value) and "\n" not in str(error.value)


def test_what_a_conversion_leaves_out_a_spike_fills_in_alike():
    defaults = {
        name: parameter.default for name, parameter in inspect.signature(Spike).parameters.items()
    }
    assert {name: defaults[name] for name in snn.CONVERTED} == snn.CONVERTED
