"""Spiking networks: all plans of execution agree, nothing is carried from call to call, copies and
stacks behave like the original; networks of snntorch; encodings, readouts and what is measured at
the sites."""

from __future__ import annotations

import copy
import gc
import io
import pickle

import numpy as np
import pytest
import snntorch
import torch
import torch.nn.functional as F
from opacus import GradSampleModule
from snntorch import SpikingNeuron, spikegen, utils
from snntorch._neurons.deltaleaky import DeltaLeaky
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from mia_nb.models import build, in_time, snn
from mia_nb.models.sites import Spike
from mia_nb.models.thresholds import DEAD

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


def plain(seed=0, model="tinycnn", width=3, size=8, dtype=torch.float64):
    """A named network with statistics of some data, in eval mode."""
    net = build(
        model, {"width": width}, in_channels=2, num_classes=5, size=size, seed=seed, dtype=dtype
    )
    with torch.no_grad():
        net.train()(images(64, seed=9, dtype=dtype))
    return net.eval()


def images(n=12, seed=0, size=8, dtype=torch.float64):
    return torch.randn(
        n, 2, size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def converted(T=4, seed=0, **options):
    return snn.convert(plain(seed), T, [images(32)], **options)


def direct(T=4, seed=0, **options):
    return snn.spiking(plain(seed), T, **options).eval()


def smooth_mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 5)
    ).double()


class ByHand(nn.Module):
    """Spike modules where ReLUs were, one of them with a shape of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(2, 3, 3), nn.Linear(108, 5)
        self.first, self.second = (
            Spike(0.5, 0.25, beta=0.9),
            Spike(torch.tensor([0.2, 0.3, 0.4]), 0.1),
        )
        self.more = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        h = self.first(self.conv(x))
        return self.head((self.second(self.more(h)) + h).flatten(1))


NETS = {
    "converted": converted,
    "per channel": lambda T=4, **options: converted(T, per_channel=True, **options),
    "direct": direct,
    "resnet18": (
        lambda T=4, **options: snn.spiking(plain(model="resnet18", width=2), T, **options).eval()
    ),
    "by hand": lambda T=4, **options: snn.SNN(ByHand().double(), T, **options).eval(),
}


@pytest.fixture(params=NETS)
def make(request):
    return NETS[request.param]


def fire_some(net, x):
    assert snn.firing_rates(net, [x])["rate"].max() > 0.01


# --------------------------------------------------------------------------------------------------
# execution


@pytest.mark.parametrize("T", [1, 4])
def test_folded_time_steps_equal_single_ones_with_and_without_the_static_prefix(make, T):
    x, folded, looped = images(), make(T), make(T, fold=False)
    fire_some(folded, x)
    for per_step in (False, True):
        out = folded(x, per_step=per_step)
        assert torch.equal(looped(x, per_step=per_step), out)
        assert torch.equal(folded(x.expand(T, *x.shape), per_step=per_step), out)
        assert torch.equal(looped(x.expand(T, *x.shape), per_step=per_step), out)
    moving = torch.stack([images(seed=s) for s in range(T)])
    assert torch.equal(looped(moving), folded(moving))


@pytest.mark.parametrize("kind", ["converted", "direct"])
def test_folded_gradients_equal_those_of_single_steps(kind):
    x, w = images(), images(1, seed=3)[0, 0, 0, :5]
    gradients = []
    for fold in (True, False):
        net = NETS[kind](fold=fold)
        (net(x) * w).sum().backward()
        gradients.append([p.grad for p in net.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    assert gradients[0][0].abs().sum() > 0


def stacked(nets):
    """(function of parameters, buffers and images for one model, parameters, buffers)."""
    parameters, buffers = stack_module_state(nets)
    base = copy.deepcopy(nets[0]).to("meta")
    return lambda p, b, x: functional_call(base, (p, b), (x,)), parameters, buffers


@pytest.mark.parametrize("kind", NETS)
def test_three_stacked_models_answer_and_learn_like_three_models(kind):
    nets = [copy.deepcopy(NETS[kind]()) for _ in range(3)]
    for m, net in enumerate(nets):
        for name, value in (*net.named_parameters(), *net.named_buffers()):
            if value.is_floating_point() and "running" not in name:
                value.data.mul_(1 + 0.05 * m)
    one, parameters, buffers = stacked(nets)
    x, y = images(), torch.arange(12) % 5
    out = vmap(one, in_dims=(0, 0, None))(parameters, buffers, x)
    loss = lambda p, b: F.cross_entropy(one(p, b, x), y)  # noqa: E731
    together = vmap(grad(loss))(parameters, buffers)
    for m, net in enumerate(nets):
        torch.testing.assert_close(out[m], net(x), rtol=1e-10, atol=1e-12)
        names, values = zip(*net.named_parameters(), strict=True)
        alone = torch.autograd.grad(F.cross_entropy(net(x), y), values)
        for name, value in zip(names, alone, strict=True):
            torch.testing.assert_close(together[name][m], value, rtol=1e-8, atol=1e-11)
    assert not torch.allclose(out[0], out[2])


@pytest.mark.slow
def test_a_compiled_step_of_stacked_models_keeps_the_surrogates_gradient():
    nets = [snn.spiking(smooth_mlp(seed), 3, theta=0.2) for seed in range(3)]
    one, parameters, buffers = stacked(nets)
    x, y = images(), torch.arange(12) % 5

    def losses(parameters, buffers):
        return vmap(lambda p, b: F.cross_entropy(one(p, b, x), y))(parameters, buffers)

    results = []
    # to machine code: test_training_compiled.py, whose networks differ in every weight if one
    # gradient does
    for form in (losses, torch.compile(losses, backend="aot_eager")):
        leaves = {name: p.detach().clone().requires_grad_() for name, p in parameters.items()}
        value = form(leaves, buffers)
        results.append((value, *torch.autograd.grad(value.sum(), list(leaves.values()))))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-10, atol=1e-10)
    assert results[0][1].abs().sum() > 0


def per_sample(net, x, y):
    """{name: (B, ...)} by vmap(grad)."""
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    buffers = dict(net.named_buffers())

    def loss(p, x, y):
        return F.cross_entropy(functional_call(net, (p, buffers), (x[None],)), y[None])

    return vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)


def test_per_sample_gradients_by_vmap_or_step_by_step_through_opacus_are_those_of_single_samples():
    x, y = images(6), torch.arange(6) % 5
    by_vmap = per_sample(snn.spiking(smooth_mlp(), 4, theta=0.2), x, y)
    looped = snn.spiking(smooth_mlp(), 4, theta=0.2, fold=False)
    wrapped = GradSampleModule(copy.deepcopy(looped), loss_reduction="sum")
    F.cross_entropy(wrapped(x), y, reduction="sum").backward()
    by_opacus = {
        name.removeprefix("_module."): p.grad_sample for name, p in wrapped.named_parameters()
    }
    names, values = zip(*looped.named_parameters(), strict=True)
    for i in range(6):
        alone = torch.autograd.grad(F.cross_entropy(looped(x[i : i + 1]), y[i : i + 1]), values)
        for name, value in zip(names, alone, strict=True):
            torch.testing.assert_close(by_vmap[name][i], value, rtol=1e-8, atol=1e-11)
            torch.testing.assert_close(by_opacus[name][i], value, rtol=1e-8, atol=1e-11)
    for name, p in wrapped.named_parameters():
        torch.testing.assert_close(
            by_opacus[name.removeprefix("_module.")].sum(0), p.grad, rtol=1e-8, atol=1e-11
        )


@pytest.mark.parametrize("nest", [lambda net: net, lambda net: nn.Sequential(nn.Identity(), net)])
def test_opacus_on_a_folded_network_is_refused_also_as_a_part_and_allowed_again_without_it(nest):
    net = snn.spiking(smooth_mlp(), 4)
    wrapped = GradSampleModule(nest(net))
    with pytest.raises(ValueError, match="build with fold=False"):
        wrapped(images(6))
    wrapped.to_standard_module()
    assert net(images(6)).shape == (6, 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("per_channel", [False, True])
def test_every_dtype_is_kept_from_images_to_logits_and_near_to_the_widest(dtype, per_channel):
    net = converted(per_channel=per_channel)
    narrow = snn.convert(plain(dtype=dtype), 4, [images(32, dtype=dtype)], per_channel=per_channel)
    assert {value.dtype for value in narrow.state_dict().values() if value.is_floating_point()} == {
        dtype
    }
    out = narrow(images(dtype=dtype))
    assert out.dtype == dtype
    error = (out.double() - net(images())).abs().mean() / net(images()).abs().mean()
    assert error < {torch.bfloat16: 0.3, torch.float32: 0.02, torch.float64: 1e-12}[dtype]
    for fold in (True, False):
        trained = snn.spiking(plain(dtype=dtype), 3, fold=fold)
        trained(images(dtype=dtype)).sum().backward()
        assert {p.grad.dtype for p in trained.parameters()} == {dtype}


# --------------------------------------------------------------------------------------------------
# no state, no ties


def test_answers_depend_neither_on_the_order_of_the_batch_nor_on_earlier_calls(make):
    net, x = make(), images()
    first, order = net(x), torch.randperm(12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(net(x[order]), first[order])
    net(100 * images(3, seed=5))
    assert torch.equal(net(x), first)
    assert torch.equal(torch.cat([net(part) for part in x.split(5)]), first)


def test_two_living_models_do_not_touch_each_other(make):
    one, other, x = make(), make(), images()
    before = one(x)
    other.train()(3 * x).sum().backward()
    with torch.no_grad():
        for p in (*other.parameters(), *(b for b in other.buffers() if b.is_floating_point())):
            p.add_(1)
    assert torch.equal(one(x), before) and all(p.grad is None for p in one.parameters())


def test_copies_pickles_and_saved_states_answer_alike(make):
    net, x = make(), images()
    before = net(x)
    before.sum().backward()  # no graph may be left behind that cannot be copied
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin(x), before) and list(twin.spikes()) == list(net.spikes())
        assert not set(twin.spikes().values()) & set(net.spikes().values())
        twin.fold = False
        assert torch.equal(twin(x), before)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = make()
    with torch.no_grad():
        for value in other.state_dict().values():
            value.zero_()
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x), before)


def test_a_state_carries_thresholds_also_where_their_number_differs():
    source, x = converted(per_channel=True, seed=1), images()
    for learn in (False, True):
        target = snn.spiking(plain(), 4, learn=learn, **snn.CONVERTED).eval()
        missing = target.load_state_dict(source.state_dict())
        assert not missing.missing_keys and not missing.unexpected_keys
        assert (
            target.net.spike1.theta.shape == (6,) and target.net.spike1.theta.dtype == torch.float32
        )
        torch.testing.assert_close(target(x), source(x), rtol=0, atol=1e-5)
    assert [name for name, _ in target.named_parameters() if "spike1" in name] == [
        "net.spike1.theta",
        "net.spike1.u0",
    ]


def test_learned_thresholds_get_gradients_and_share_no_memory():
    theta = torch.tensor(0.5)
    net = snn.spiking(plain(), 4, theta=theta, learn=True, amplitude=None)
    net(images()).square().sum().backward()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.step()
    values = [float(spike.theta.detach()) for spike in net.spikes().values()]
    assert len(set(values)) == 3 and float(theta) == 0.5
    assert all(spike.theta.grad.abs() > 0 for spike in net.spikes().values())


@pytest.mark.parametrize("wrong", [0.0, -0.5, float("nan")])
def test_a_state_whose_training_took_a_threshold_to_zero_is_refused_by_name(wrong):
    net = snn.spiking(plain(), 4, learn=True)
    net.net.spike1.theta.data.fill_(wrong)
    with pytest.raises(
        ValueError, match=f"net.spike1.theta={wrong:.4g}: a firing threshold is above 0"
    ):
        snn.spiking(plain(), 4, learn=True).load_state_dict(net.state_dict())


def test_retimed_networks_share_weights_and_thresholds_and_answer_like_one_built_for_that_time():
    x, net = images(), converted(4)
    other = snn.retime(net, 7)
    histograms = snn.calibrate(plain(), [images(32)])
    twin = snn.convert(plain(), 7, [x], histograms=histograms, fit_T=4)
    assert torch.equal(other(x), twin(x))
    assert (net.timesteps, other.timesteps, other.report) == (4, 7, None)
    assert all(a is b for a, b in zip(net.parameters(), other.parameters(), strict=True))
    assert torch.equal(snn.retime(other, 4)(x), net(x))
    for wrong in (0, 2.5, "3"):
        with pytest.raises(
            ValueError,
            match=(f"timesteps={wrong!r}: wanted a whole number from 1 up"),
        ):
            snn.retime(net, wrong)


def test_thresholds_live_on_the_device_of_the_weights():
    net = snn.spiking(plain().to("meta"), 2)
    assert {value.device.type for value in net.state_dict().values()} == {"meta"}


def test_the_builder_starts_from_the_weights_of_the_plain_network_of_the_same_seed():
    options = {"in_channels": 2, "num_classes": 5, "size": 8, "seed": 3}
    base = build("tinycnn", {"width": 3}, **options)
    for extra in ({}, {"calibration": {"fit_T": 1}}):
        net = build(
            "snn",
            {"base": "tinycnn", "base_args": {"width": 3}, "timesteps": 2, **extra},
            **options,
        )
        state = net.state_dict()
        assert all(
            torch.equal(state[f"net.{name}"], value) for name, value in base.state_dict().items()
        )
        assert net.net.spike0.options["beta"] == (1.0 if extra else 0.5)


# --------------------------------------------------------------------------------------------------
# inputs and read-outs


def test_events_of_another_number_of_steps_are_refused_and_moving_images_make_events():
    square = torch.zeros(4, 1, 2, 8, 8, dtype=torch.float64)
    for t in range(4):
        square[t, 0, :, 2:5, t : t + 3] = 1
    events = spikegen.delta(square, threshold=0.5, off_spike=True).double()
    assert events.unique().tolist() == [-1, 0, 1] and float(events[1, 0, 0].abs().sum()) == 6
    for fold in (True, False):
        out = converted(4, fold=fold)(events, per_step=True)
        assert out.shape == (4, 1, 5) and not torch.equal(out[1], out[0])
        with pytest.raises(
            ValueError,
            match=r"events \(3, 1, 2, 8, 8\) have 3 time steps, as axis 0 is time; the network runs 4",
        ):
            converted(4, fold=fold)(events[:3])


EVENT_NETS = {
    "converted": lambda **options: converted(4, **options).float(),
    "step by step": lambda **options: direct(4, fold=False, **options).float(),
    "Stepwise": lambda **options: snn.Stepwise(nested("Leaky"), 4, **options).eval(),
}


@pytest.mark.parametrize("kind", EVENT_NETS)
@pytest.mark.parametrize("samples", [3, 4])
def test_events_with_samples_first_are_taken_by_the_option_that_the_message_names(kind, samples):
    frames = torch.poisson(torch.full((samples, 4, 2, 8, 8), 0.5))
    net = EVENT_NETS[kind]()
    expected = net(frames.transpose(0, 1))
    if samples != 4:
        with pytest.raises(ValueError) as error:
            net(frames)
        says = str(error.value)
        assert "(3, 4, 2, 8, 8) have 3 time steps, as axis 0 is time" in says
        assert says.endswith("set time_axis=1 of the network")
    net.time_axis = 1
    assert torch.equal(net(frames), expected)
    assert torch.equal(EVENT_NETS[kind](time_axis=1)(frames), expected)
    if samples != 4:
        with pytest.raises(ValueError, match=r"of events \(T, B, C, H, W\) set time_axis=0"):
            net(frames.transpose(0, 1))
    with pytest.raises(ValueError, match="time_axis=2: wanted 0 for events"):
        EVENT_NETS[kind](time_axis=2)


def seen(net, x, T):
    """The input of the first layer at every step."""
    grabbed = []
    next(part for part in net.net.modules() if isinstance(part, nn.Conv2d)).register_forward_hook(
        lambda module, args, out: grabbed.append(args[0])
    )
    net(x)
    return torch.cat(grabbed).unflatten(0, (T, -1))


def test_rate_coding_draws_pixels_again_at_every_call_after_undoing_the_normalisation():
    mean, std = (0.4, 0.6), (0.2, 0.3)
    pixels = torch.rand(2, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = (pixels - torch.tensor(mean).view(2, 1, 1)) / torch.tensor(std).view(2, 1, 1)
    net = direct(2_000, encode="rate", mean=mean, std=std)
    torch.manual_seed(0)
    spikes = seen(net, x, 2_000)
    assert set(spikes.unique().tolist()) == {0.0, 1.0} and spikes.dtype == x.dtype
    error = (spikes.mean(0) - pixels) / (pixels * (1 - pixels) / 2_000).sqrt()
    assert error.abs().max() < 5 and 0.8 < error.square().mean() < 1.25
    lag = ((spikes[1:] - pixels) * (spikes[:-1] - pixels)).mean(0)
    assert lag.abs().max() < 5 * 0.25 / np.sqrt(2_000)  # steps are independent
    net = direct(4, theta=0.05, encode="rate", mean=mean, std=std)
    assert net.stochastic and not direct().stochastic and not torch.equal(net(x), net(x))
    torch.manual_seed(1)
    first = net(x)
    torch.manual_seed(1)
    assert torch.equal(net(x), first)


def test_latency_coding_fires_once_a_pixel_and_bright_pixels_first():
    x = torch.linspace(0.05, 1, 128, dtype=torch.float64).view(1, 2, 8, 8)
    spikes = seen(direct(6, encode="latency", mean=(0.0,), std=(1.0,)), x, 6)
    assert torch.equal(spikes.sum(0), torch.ones_like(x))
    when = spikes.argmax(0).flatten()
    assert (when.diff() <= 0).all() and when[-1] == 0
    wrong = direct(2, encode="latency", encode_args={"normalize": False})
    with pytest.raises(
        ValueError, match=r"encode='latency' with encode_args=.*'normalize': False.* out of bounds"
    ):
        wrong(0.011 + 0 * x)


def test_an_encoding_of_the_user_is_used_and_its_shape_checked():
    x, T = images(), 3
    net = direct(T, encode=lambda x: torch.stack([x, 2 * x, -x]))
    assert torch.equal(net(x), direct(T)(torch.stack([x, 2 * x, -x]))) and not net.stochastic
    with pytest.raises(
        ValueError,
        match=r"encode returned \(2, 12, 2, 8, 8\); wanted \(T, B, ...\) = \(3, 12, ...\)",
    ):
        direct(T, encode=lambda x: torch.stack([x, x]))(x)


def test_read_outs_are_mean_sum_and_last_of_the_steps_and_the_sum_is_the_mean_at_temperature_one_over_t(
    make,
):
    x, T = images(), 4
    steps = make(T)(x, per_step=True)
    assert steps.shape == (T, 12, 5)
    out = {readout: make(T, readout=readout)(x) for readout in in_time.READOUTS}
    assert torch.equal(out["mean"], steps.mean(0)) and torch.equal(out["last"], steps[-1])
    torch.testing.assert_close(F.softmax(out["sum"], 1), F.softmax(out["mean"] / (1 / T), 1))
    for readout in in_time.READOUTS:
        so_far = snn.cumulative(steps, readout)
        for t in range(1, T + 1):
            torch.testing.assert_close(so_far[t - 1], in_time.read_out(steps[:t], readout))
            torch.testing.assert_close(
                so_far[t - 1], snn.retime(make(T, readout=readout), t)(x), rtol=1e-9, atol=1e-12
            )


# --------------------------------------------------------------------------------------------------
# measured at the sites


def constructed():
    """One site with four neurons: never, every second step, always, at every step of bright
    images.
    """
    net = nn.Sequential(nn.Flatten(), nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[0, 0], [0, 0], [0, 0], [1, 0]]))
        net[1].bias.copy_(torch.tensor([-1.0, 0.5, 1.5, 0.0]))
    return snn.spiking(net, 4, **snn.CONVERTED)


@pytest.mark.parametrize("fold", [True, False])
def test_firing_rates_have_their_closed_form(fold):
    net = constructed()
    net.fold = fold
    x = torch.tensor([[1.0, 0], [0.0, 0], [1.0, 0], [0.0, 0]], dtype=torch.float64)
    row = snn.firing_rates(net.train(), [x[:3], x[3:]]).iloc[0]
    assert (row["site"], row["silent"], row["always"]) == ("spike0", 0.25, 0.25)
    assert row["rate"] == pytest.approx((0 + 0.5 + 1 + 0.5) / 4)
    assert net.training and not net.net.spike0._forward_hooks
    with pytest.raises(ValueError, match="got no batches"):
        snn.firing_rates(net, [])


def test_measuring_leaves_statistics_and_modes_as_they_were():
    net = direct().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    snn.firing_rates(net, [images()])
    snn.record(net, images(1))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(part.training for part in net.modules())


def test_recorded_spikes_are_those_of_the_forward_pass(make):
    net, x = make(), images(1)
    for name, spike in net.spikes().items():
        grabbed = []
        handle = spike.register_forward_hook(
            lambda module, args, out, grabbed=grabbed: grabbed.append(out)
        )
        net(x)
        handle.remove()
        for plan in (net, copy.copy(net)):
            plan.fold = plan is net
            spk, mem, theta = snn.record(plan, x, name)
            assert spk.dtype == bool and np.array_equal(spk, (grabbed[0] != 0).flatten(1).numpy())
            assert np.array_equal(spk, mem >= theta) and spk.shape == mem.shape == (4, *theta.shape)
        net.fold = True
    with pytest.raises(ValueError, match="site='spike99' is not one of"):
        snn.record(net, x, "spike99")


def test_sites_of_a_network_with_spikes_of_its_own_keep_their_names():
    net = NETS["by hand"]()
    assert list(net.spikes()) == ["first", "second"]


def test_a_dead_threshold_is_out_of_reach_in_every_dtype():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        out = Spike(DEAD, DEAD / 2).to(dtype)(torch.full((8, 3), 100.0, dtype=dtype), 8)
        assert (out == 0).all()


# --------------------------------------------------------------------------------------------------
# of snntorch

NEURONS = {
    "Leaky": lambda: snntorch.Leaky(0.9, threshold=0.3, init_hidden=True),
    "Synaptic": lambda: snntorch.Synaptic(0.8, 0.9, threshold=0.3, init_hidden=True),
    "Lapicque": lambda: snntorch.Lapicque(0.9, threshold=0.01, init_hidden=True),
    "Alpha": lambda: snntorch.Alpha(0.9, 0.8, threshold=0.05, init_hidden=True),
    "RLeaky": lambda: snntorch.RLeaky(0.9, threshold=0.3, linear_features=6, init_hidden=True),
    "RSynaptic": lambda: snntorch.RSynaptic(
        0.8, 0.9, threshold=0.3, linear_features=6, init_hidden=True
    ),
    "SLSTM": lambda: snntorch.SLSTM(6, 6, threshold=0.05, init_hidden=True),
}


def nested(kind, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(128, 6), NEURONS[kind]()), nn.Linear(6, 5)
    )


def steps_of(net, x, T):
    return torch.stack([net(x) for _ in range(T)]).mean(0)


@pytest.mark.parametrize("kind", NEURONS)
def test_stepwise_clears_nested_neurons_before_every_batch_where_a_naive_call_does_not(kind):
    x, T = images(dtype=torch.float32).abs(), 5
    naive = nested(kind)
    first = steps_of(naive, x, T)
    # the membranes of the first batch are still there
    assert not torch.equal(steps_of(naive, x, T), first)
    net = snn.Stepwise(nested(kind), T)
    assert torch.equal(net(x), first) and torch.equal(net(x), first)
    net.net(x)  # a call past the wrapper
    assert torch.equal(net(x), first)
    torch.testing.assert_close(net(x[:5]), first[:5], rtol=0, atol=1e-6)
    assert torch.equal(net(x, per_step=True).mean(0), first)
    assert torch.equal(net(x.expand(T, *x.shape)), first)


@pytest.mark.parametrize("kind", NEURONS)
def test_stepwise_states_hold_weights_only_and_load_into_a_network_that_was_used(kind):
    x = images(dtype=torch.float32).abs()
    one, other = snn.Stepwise(nested(kind), 3), snn.Stepwise(nested(kind, seed=1), 3)
    fresh = set(one.state_dict())
    one(x)
    other(x[:3])
    assert set(one.state_dict()) == fresh and not any(
        key.endswith((".mem", ".syn", ".spk")) for key in fresh
    )
    other.load_state_dict(one.state_dict())
    assert torch.equal(other(x), one(x))


def test_stepwise_touches_no_other_network_and_keeps_none_alive():
    gc.collect()  # networks of other tests
    before = len(SpikingNeuron.instances)
    x = images(dtype=torch.float32).abs()
    living = nested("Leaky")
    living(x)
    mem = living[0][2].mem.clone()
    assert mem.abs().sum() > 0
    for seed in range(5):
        net = snn.Stepwise(nested("RSynaptic", seed), 3)
        net(x).sum().backward()
        copy.deepcopy(net)(x)
    assert torch.equal(living[0][2].mem, mem)
    del net
    gc.collect()
    assert len(SpikingNeuron.instances) == before + 1  # only the network that was never wrapped
    SpikingNeuron.instances.pop()


class Flat(nn.Module):
    """snntorch's reset sees neurons that are children of the network itself."""

    def __init__(self, neuron):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.neuron, self.head = nn.Linear(128, 6), neuron, nn.Linear(6, 5)

    def forward(self, x):
        return self.head(self.neuron(self.layer(x.flatten(1))))


# snntorch's reset leaves the spikes of an RSynaptic, wrapped or not
@pytest.mark.parametrize("kind", [kind for kind in NEURONS if kind != "RSynaptic"])
def test_snntorchs_own_reset_works_as_before_once_a_network_was_wrapped(kind):
    x, net = images(dtype=torch.float32).abs(), Flat(NEURONS[kind]())

    def as_in_tutorials():
        utils.reset(net)
        with torch.no_grad():
            return steps_of(net, x, 5)

    before, wrapped = as_in_tutorials(), snn.Stepwise(net, 5)
    wrapped(x[:3])
    assert torch.equal(as_in_tutorials(), before) and torch.equal(as_in_tutorials(), before)
    assert torch.equal(wrapped(x), before) and torch.equal(as_in_tutorials(), before)
    assert any(neuron == net.neuron for neuron in SpikingNeuron.instances)
    snn.Stepwise(wrapped, 5)  # a second time
    assert torch.equal(as_in_tutorials(), before)


# --------------------------------------------------------------------------------------------------
# neurons of others


class Integrator(nn.Module):
    """A neuron that keeps its membrane between calls, with no way to clear it."""

    def __init__(self):
        super().__init__()
        self.v = None

    def forward(self, x):
        self.v = x if self.v is None else 0.9 * self.v + x
        out = (self.v > 0.5).to(x)
        self.v = self.v - 0.5 * out
        return out


class Resettable(Integrator):
    """As those of SpikingJelly."""

    def reset(self):
        self.v = None


class InABuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("v", torch.zeros(1))

    def forward(self, x):
        self.v = 0.9 * self.v + x
        return (self.v > 0.5).to(x)


class InAList(nn.Module):
    def __init__(self):
        super().__init__()
        self.history = []

    def forward(self, x):
        self.history.append(x)
        return (sum(self.history) > 0.5).to(x)


class Hidden(Flat):
    """A state outside of its modules' attributes, seen in the outputs alone."""

    def __init__(self):
        super().__init__(nn.Identity())
        self.box = {"calls": 0}

    def forward(self, x):
        self.box["calls"] += 1
        return super().forward(x) + self.box["calls"]


class WithReset(Hidden):
    def reset_state(self, value=0):
        self.box["calls"] = value


@pytest.mark.parametrize(
    ("net", "says"),
    [
        (lambda: Flat(Integrator()), "Flat keeps a state from batch to batch: give the part"),
        (lambda: Flat(InABuffer()), "give the part that keeps it a method reset()"),
        (lambda: Flat(InAList()), "keeps a state from batch to batch"),
        (lambda: Hidden(), "Hidden keeps a state from batch to batch: give the part"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_a_state_that_stepwise_cannot_clear_is_refused_on_the_first_batch(net, says, training):
    net = net()
    weights = {
        name: value.clone() for name, value in net.state_dict().items() if name != "neuron.v"
    }
    wrapped = snn.Stepwise(net, 4).train(training)
    for _ in range(20):
        with pytest.raises(ValueError) as error:
            wrapped(images(dtype=torch.float32))
        assert says in str(error.value) and "\n" not in str(error.value)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in weights.items())
    assert wrapped.training == training


@pytest.mark.parametrize("net", [Flat(Resettable()), WithReset(), Flat(nn.Dropout(0.5))])
def test_neurons_that_can_be_reset_are_reset_and_layers_without_state_pass(net):
    x, net = images(dtype=torch.float32), snn.Stepwise(net, 4).eval()
    first = net(x)
    assert torch.equal(net(x), first)
    torch.testing.assert_close(net(x[:5]), first[:5])
    drawn = torch.get_rng_state()
    snn.Stepwise(net.net, 4)(x)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_an_untried_network_is_trained_as_if_it_had_not_been_tried():
    x = images(dtype=torch.float32)
    ways = []
    for tried in (True, False):
        torch.manual_seed(1)
        net = snn.Stepwise(nn.Sequential(nn.BatchNorm2d(2), nn.Dropout(0.5), nested("Leaky")), 3)
        net.fault = None if tried else ""
        net(x).sum().backward()
        ways.append([*net.state_dict().values(), *(p.grad for p in net.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*ways, strict=True))


class Delta(nn.Module):
    """Returns (logits, state), of a neuron that keeps its state in plain attributes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.neuron = nn.Linear(128, 5), DeltaLeaky(0.5, 0.1, init_hidden=True)

    def forward(self, x):
        return self.neuron(self.layer(x.flatten(1)))


def test_stepwise_reads_the_named_entry_of_a_tuple_and_clears_plain_attributes():
    x = images(dtype=torch.float32)
    net = snn.Stepwise(Delta(), 4, readout="sum")
    first = net(x)
    assert first.shape == (12, 5) and torch.equal(net(x), first) and first.abs().sum() > 0


def test_stepwise_encodes_reads_out_and_refuses_like_snn():
    x = images(dtype=torch.float32)
    by_hand = snn.Stepwise(nested("Leaky"), 3, encode=lambda x: torch.stack([x, -x, 2 * x]))
    assert torch.equal(by_hand(x), snn.Stepwise(nested("Leaky"), 3)(torch.stack([x, -x, 2 * x])))
    rate = snn.Stepwise(nested("Leaky"), 3, encode="rate")
    assert rate.stochastic and not by_hand.stochastic
    mean, total = (
        snn.Stepwise(nested("Leaky"), 3, readout=readout)(x) for readout in ("mean", "sum")
    )
    torch.testing.assert_close(total, 3 * mean)
    with pytest.raises(ValueError, match="have 2 time steps, as axis 0 is time"):
        by_hand(torch.stack([x, x]))
    for name, wrong in (("readout", "max"), ("encode", "poisson"), ("timesteps", 0)):
        with pytest.raises(ValueError, match=f"^{name}={wrong!r}[ :]"):
            snn.Stepwise(nested("Leaky"), **{"timesteps": 3, name: wrong})


def test_an_unknown_option_is_said_to_be_one_of_the_network_that_was_asked_for():
    unknown = r"__init__\(\) got an unexpected keyword argument 'encod'"
    with pytest.raises(TypeError, match=f"^SNN.{unknown}"):
        snn.SNN(plain(), 4, encod="rate")
    with pytest.raises(TypeError, match=f"^SNN.{unknown}"):
        converted(encod="rate")
    with pytest.raises(TypeError, match=f"^Stepwise.{unknown}"):
        snn.Stepwise(plain(), 4, encod="rate")
    with pytest.raises(ValueError, match=f"^model snn cannot be built: TypeError: SNN.{unknown}"):
        build("snn", {"encod": "rate"}, in_channels=1, num_classes=3, size=8, seed=0)
