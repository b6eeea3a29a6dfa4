"""Neural ODE and SDE classifiers: published sizes, the equations, noise, gradients per sample,
bounds, and replacement.
"""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F
from torch.nn.functional import cross_entropy

from mia_nb.models import build, snn, solvers
from mia_nb.models.cnn import ResNet14, TinyCNN
from mia_nb.models.lipschitz import conv_norm
from mia_nb.models.neural_de import (
    ConcatConv2d,
    Drift,
    FlowBlock,
    FlowNet,
    describe,
    flow_blocks,
    is_noisy,
    local_lipschitz,
    set_noise,
)
from mia_nb.models.replaced import Replaced, replace_last

FORMS = ("odenet", "odenet64", "anode", "sonode", "hbnode", "sdenet")
DOUBLE = torch.float64


def make(model="sdenet", args=None, *, channels=1, classes=3, size=8, seed=0, dtype=DOUBLE):
    """A small network, in float64 unless said otherwise."""
    small = (
        {"base_args": {"width": 4, "blocks": 1}, "steps": 3}
        if model == "replaced"
        else {"width": 4, "steps": 3}
    )
    return build(
        model,
        {**small, **(args or {})},
        in_channels=channels,
        num_classes=classes,
        size=size,
        seed=seed,
        dtype=dtype,
    )


def power_norm(
    weight: Tensor, height: int, width: int, *, iterations: int = 200, seed: int = 0
) -> Tensor:
    """Operator norm of the same convolution by power iteration: converges from below, so for
    display and tests only.
    """
    x = torch.randn(
        1,
        weight.shape[1],
        height,
        width,
        dtype=weight.dtype,
        generator=torch.Generator().manual_seed(seed),
    )
    x, tiny = x.to(weight.device), torch.finfo(weight.dtype).tiny
    padding = (weight.shape[-2] // 2, weight.shape[-1] // 2)
    for _ in range(iterations):
        x = x / x.norm().clamp(min=tiny)
        y = F.conv2d(x, weight, padding=padding)
        x = F.conv_transpose2d(y, weight, padding=padding)
    return y.norm()


def random(*shape, seed=0, dtype=DOUBLE):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def linear(block: FlowBlock, gain: float) -> FlowBlock:
    """The block with drift gain * h wherever h >= 0, by its own weights."""
    with torch.no_grad():
        for parameter in block.drift.parameters():
            parameter.zero_()
        for i in range(block.out_channels):
            block.drift.first.state.weight[i, i, 1, 1] = 1
            block.drift.second.state.weight[i, i, 1, 1] = gain
    return block


def count(module) -> int:
    return sum(p.numel() for p in module.parameters())


def gradient(output, parameters) -> torch.Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(output, list(parameters))])


# --------------------------------------------------------------------------------------------------
# architecture


@pytest.mark.parametrize(("blocks", "parameters"), [(1, 486_122), (2, 877_674), (3, 1_269_226)])
def test_odenet_and_sdenet_have_the_published_parameter_counts(blocks, parameters):
    for name in ("odenet", "sdenet"):
        net = build(name, {"blocks": blocks}, in_channels=3, num_classes=10, size=32, seed=0)
        assert count(net) == parameters and len(list(flow_blocks(net))) == 3 * blocks


@pytest.mark.parametrize(
    ("name", "args", "groups", "head"),
    [
        ("odenet", {}, [(32, 16, 16), (64, 8, 8), (128, 4, 4)], 128),
        ("sdenet", {"blocks": 2}, [(32, 16, 16), (64, 8, 8), (128, 4, 4)], 128),
        ("odenet64", {}, [(64, 4, 4)], 64),
        ("anode", {}, [(80, 4, 4)], 80),
        ("anode", {"augment": 64, "blocks": 2}, [(128, 4, 4)], 128),
        ("sonode", {}, [(64, 4, 4)], 64),
        ("hbnode", {}, [(64, 4, 4)], 64),
    ],
)
def test_each_form_has_the_published_shapes_after_each_group_and_width_of_head(
    name, args, groups, head
):
    net, shapes = (
        build(name, {"steps": 1, **args}, in_channels=3, num_classes=10, size=32, seed=0),
        [],
    )
    for group in net.groups:
        group[-1].register_forward_hook(
            lambda module, inputs, output: shapes.append(tuple(output.shape[1:]))
        )
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert shapes == groups and net.head.in_features == head


@pytest.mark.parametrize("name", [*FORMS, "replaced"])
@pytest.mark.parametrize(("channels", "height", "width"), [(1, 8, 8), (1, 28, 28), (3, 24, 40)])
def test_every_form_takes_every_image_size_and_treats_images_one_by_one(
    name, channels, height, width
):
    net = set_noise(
        make(name, {"steps": 2}, channels=channels, classes=7, size=(height, width)).eval(), False
    )
    x = random(3, channels, height, width).requires_grad_()
    logits = net(x)
    assert logits.shape == (3, 7)
    logits[0].square().sum().backward()
    assert (x.grad[0].abs().sum(0) > 0).double().mean() > 0.9 and (x.grad[1:] == 0).all()
    torch.testing.assert_close(net(x[1:2]), logits[1:2], rtol=1e-10, atol=1e-10)


def test_concat_conv_is_a_convolution_of_the_state_with_a_channel_of_times():
    layer, h = ConcatConv2d(3, 5).double(), random(2, 3, 6, 4)
    joined = torch.cat([layer.time.weight, layer.state.weight], 1)
    for t in (0.0, 0.3, torch.tensor(1.7)):
        channels = torch.cat([float(t) * torch.ones(2, 1, 6, 4, dtype=DOUBLE), h], 1)
        expected = F.conv2d(channels, joined, layer.time.bias, padding=1)
        torch.testing.assert_close(
            layer(t, h), expected, rtol=1e-6 if isinstance(t, torch.Tensor) else 1e-12, atol=1e-6
        )


def test_without_gradients_the_time_channel_is_convolved_once_for_all_images():
    layer, h = ConcatConv2d(3, 5).double(), random(4, 3, 6, 4)
    expected, seen = layer(0.3, h), []
    layer.time.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    with torch.no_grad():
        torch.testing.assert_close(layer(0.3, h), expected, rtol=1e-12, atol=1e-12)
        assert layer(0.3, h[:0]).shape == (0, 5, 6, 4)
    layer(0.3, h)
    assert seen == [1, 0, 4]


def test_concat_conv_begins_as_torch_begins_a_convolution_with_one_channel_more():
    torch.manual_seed(0)
    ours, theirs = ConcatConv2d(31, 256), nn.Conv2d(32, 256, 3)
    bound = 1 / math.sqrt(9 * 32)
    for part, like in (
        (ours.state.weight, theirs.weight),
        (ours.time.weight, theirs.weight),
        (ours.time.bias, theirs.bias),
    ):
        for values in (part, like):
            assert 0.97 * bound < values.abs().max() <= bound
        # uniform: variance bound^2 / 3, known to sqrt(.8 / n) of itself
        assert part.var().item() == pytest.approx(
            bound**2 / 3, rel=5 * math.sqrt(0.8 / part.numel())
        )
    assert count(ours) == count(theirs)


# --------------------------------------------------------------------------------------------------
# equations


def twin(block: FlowBlock, h, steps):
    """Euler's method for every form, the drift written with literal convolutions of cat([t, h])."""

    def drift(t, state):
        for part in (block.drift.first, block.drift.second):
            joined = torch.cat([part.time.weight, part.state.weight], 1)
            channels = torch.cat([torch.full_like(state[:, :1], t), state.clamp(min=0)], 1)
            state = F.conv2d(channels, joined, part.time.bias, padding=1)
        return state

    h = F.pad(h, (0, 0, 0, 0, 0, block.augment))
    v = block.start(h) if block.start is not None else torch.zeros_like(h)
    t, dt = block.solver["t0"], block.solver["T"] / steps
    for _ in range(steps):
        if block.order == 1:
            h = h + dt * drift(t, h)
        elif block.damped:
            h, v = (
                h + dt * v,
                v + dt * (drift(t, h) - v / (1 + math.exp(-block.damping.gamma.item()))),
            )
        else:
            h, v = h + dt * v, v + dt * drift(t, torch.cat([h, v], 1))
        t += dt
    return h


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"augment": 2},
        {"order": 2},
        {"order": 2, "start": "zeros"},
        {"order": 2, "damped": True},
        {"t0": 1.5, "T": 0.3},
    ],
)
def test_every_form_solves_its_equation(args):
    torch.manual_seed(0)
    block, h = FlowBlock(3, steps=4, **args).double(), random(2, 3, 5, 4)
    expected = twin(block, h, 4)
    torch.testing.assert_close(block(h), expected, rtol=1e-10, atol=1e-10)
    assert expected.shape[1] == block.out_channels == 3 + block.augment
    assert (expected[:, :3] - h).abs().max() > 0.01


def test_a_second_order_network_with_drift_minus_h_swings_as_a_cosine():
    block = linear(FlowBlock(3, order=2, start="zeros", method="rk4").double(), -1)
    h = random(2, 3, 4, 4).abs()
    torch.testing.assert_close(block(h), math.cos(1) * h, rtol=0, atol=1e-5)


def test_a_heavy_ball_without_drift_loses_momentum_at_the_rate_sigmoid_of_minus_three():
    """m' = -d m, so h(1) = h0 + m0 (1 - exp(-d)) / d; m0 is what the start network says, here a
    constant.
    """
    block = linear(FlowBlock(3, order=2, damped=True, method="rk4").double(), 0)
    d = torch.sigmoid(block.damping.gamma).item()
    assert d == pytest.approx(0.0474, abs=5e-5)
    with torch.no_grad():
        for parameter in block.start.parameters():
            parameter.zero_()
        block.start[2].bias.fill_(0.8)
    h = random(2, 3, 4, 4)
    torch.testing.assert_close(block(h), h + 0.8 * (1 - math.exp(-d)) / d, rtol=0, atol=1e-9)


def test_a_heavy_ball_with_drift_minus_h_is_a_damped_oscillator():
    block = linear(FlowBlock(3, order=2, damped=True, start="zeros", method="rk4").double(), -1)
    d, h = torch.sigmoid(block.damping.gamma).item(), random(2, 3, 4, 4).abs()
    w = math.sqrt(1 - d**2 / 4)
    factor = math.exp(-d / 2) * (math.cos(w) + d / (2 * w) * math.sin(w))
    torch.testing.assert_close(block(h), factor * h, rtol=0, atol=1e-6)
    assert abs(factor - math.cos(1)) > 0.005


@pytest.mark.parametrize(("name", "method"), [("odenet", "euler"), ("odenet64", "rk4")])
def test_two_blocks_of_the_same_weights_are_one_over_twice_the_time(name, method):
    long = make(name, {"T": 1.0, "steps": 6, "method": method}).eval()
    two = make(name, {"T": 0.5, "steps": 3, "blocks": 2, "method": method}).eval()
    state = {
        key.replace(".0.drift", f".{i}.drift"): v
        for i in (0, 1)
        for key, v in long.state_dict().items()
    }
    two.load_state_dict(state)
    x = random(2, 1, 8, 8)
    torch.testing.assert_close(two(x), long(x), rtol=1e-10, atol=1e-10)


# --------------------------------------------------------------------------------------------------
# noise


def test_noise_flags_hold_for_their_mode_and_the_seed_decides():
    x = random(2, 1, 8, 8)

    def answers(net, seed):
        torch.manual_seed(seed)
        return net(x)

    with torch.random.fork_rng(devices=[]):
        for train, evaluate in ((True, True), (True, False), (False, True), (False, False)):
            net = make(args={"noise_train": train, "noise_eval": evaluate, "norm": "gn"})
            for mode, noisy in ((net.train, train), (net.eval, evaluate)):
                mode()
                assert torch.equal(answers(net, 1), answers(net, 1))
                assert torch.equal(answers(net, 1), answers(net, 2)) != noisy
            assert is_noisy(net) == evaluate
            assert torch.equal(answers(set_noise(net.eval(), False), 1), answers(net, 2))
            assert not torch.equal(answers(set_noise(net, True), 1), answers(net, 2))
            assert torch.equal(answers(set_noise(net, None), 1), answers(net, 2)) != evaluate
            assert is_noisy(net) == evaluate  # as built, whatever was forced


def test_a_generator_given_to_the_network_is_the_only_source_of_its_noise():
    net, x, state = make().eval(), random(2, 1, 8, 8), torch.get_rng_state()
    first = net(x, torch.Generator().manual_seed(3))
    assert torch.equal(first, net(x, torch.Generator().manual_seed(3)))
    assert not torch.equal(first, net(x, torch.Generator().manual_seed(4)))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_block_without_drift_adds_noise_of_its_noise_sd_also_to_appended_channels():
    block = linear(FlowBlock(2, k=0.25, steps=8, T=0.125, augment=2).double(), 0)
    out = block(torch.zeros(500, 2, 10, 10, dtype=DOUBLE), torch.Generator().manual_seed(0))
    assert block.noise_sd == pytest.approx(0.25 * math.sqrt(8)) and block.sigma == pytest.approx(2)
    for part in (out[:, :2], out[:, 2:]):
        assert part.var().item() == pytest.approx(block.noise_sd**2, rel=0.02)


def test_training_with_the_wanted_noise_switched_off_is_refused_and_without_wish_allowed():
    x = random(4, 1, 8, 8)
    net = set_noise(make().train(), False)
    with pytest.raises(
        ValueError, match="noise is switched off, but this block trains with it"
    ) as error:
        net(x)
    assert "\n" not in str(error.value)
    assert set_noise(net, None)(x).isfinite().all()
    assert set_noise(net.eval(), False)(x).isfinite().all()
    for args in ({"noise_train": False}, {"k": 0.0}):
        assert set_noise(make(args=args).train(), False)(x).isfinite().all()


def test_describe_gives_the_equation_as_it_was_asked_for():
    about = describe(
        make(args={"steps": 8, "T": 0.5, "blocks": 2, "method": "rk4", "noise_eval": False})
    )
    assert json.loads(json.dumps(about)) == about
    wanted = {
        "layout": "16-32-64",
        "blocks": 2,
        "k": 0.5,
        "method": "rk4",
        "steps": 8,
        "T": 0.5,
        "order": 1,
        "damped": False,
    }
    wanted |= {
        "augment": 0,
        "noise_train": True,
        "noise_eval": False,
        "lipschitz": None,
        "clip": None,
    }
    assert {name: about[name] for name in wanted} == wanted
    assert about["sigma"] == pytest.approx(2.0) and about["noise_sd"] == pytest.approx(math.sqrt(2))
    assert describe(make("hbnode"))["damped"] and describe(make("anode"))["augment"] == 16
    assert describe(make("anode", args={"blocks": 2}))["augment"] == 16
    assert describe(make("replaced"))["layout"] == "last" and describe(make("replaced"))["k"] == 0.5
    assert describe(TinyCNN()) is None and not is_noisy(TinyCNN()) and not is_noisy(make("odenet"))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("sdenet", {"method": "rk4"}),
        ("sdenet", {"method": "srk"}),
        ("odenet", {"method": "dopri5"}),
        ("odenet", {"lipschitz": 1.0, "clip": 2.0}),
        *((form, {"k": 0.1}) for form in FORMS),
    ],
)
def test_under_bfloat16_autocast_the_state_stays_float32(name, args):
    net, kinds = make(name, {"steps": 1, **args}, dtype=torch.float32), []
    for _, block in flow_blocks(net):
        block.register_forward_hook(lambda module, inputs, output: kinds.append(output.dtype))
        block.drift.register_forward_hook(
            lambda module, inputs, output: kinds.append(inputs[1].dtype)
        )
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(random(4, 1, 8, 8, dtype=torch.float32))
    assert set(kinds) == {torch.float32} and logits.dtype == torch.bfloat16
    logits.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())


# ----------------------------------------------------------------------------------------------
# stacking, compiling, per sample


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("odenet", {}),
        ("odenet", {"method": "rk4", "blocks": 2}),
        ("sdenet", {"method": "stoch_rk4"}),
        ("odenet", {"lipschitz": 0.1, "clip": 1.0}),
        ("anode", {"norm": "gn"}),
        ("sonode", {"method": "rk4"}),
        ("hbnode", {}),
        ("replaced", {}),
    ],
)
def test_stacked_networks_answer_and_learn_as_one_after_the_other(name, args):
    nets = [set_noise(make(name, args, seed=s).eval(), False) for s in range(3)]
    x = random(3, 4, 1, 8, 8)
    parameters, buffers = stack_module_state(nets)
    base = copy.deepcopy(nets[0]).to("meta")
    stacked = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)))(parameters, buffers, x)
    single = torch.stack([net(x) for net, x in zip(nets, x, strict=True)])
    torch.testing.assert_close(stacked, single, rtol=1e-10, atol=1e-10)
    together = torch.autograd.grad(stacked.square().sum(), list(parameters.values()))
    for m, net in enumerate(nets):
        alone = torch.autograd.grad(
            single[m].square().sum(), list(net.parameters()), retain_graph=True
        )
        for ours, theirs in zip(together, alone, strict=True):
            torch.testing.assert_close(ours[m], theirs, rtol=1e-8, atol=1e-8)


def test_noise_of_stacked_models_is_each_one_s_own():
    nets = [linear(FlowBlock(2, k=0.5, steps=4).double(), 0) for _ in range(3)]
    parameters, _ = stack_module_state(nets)
    h = torch.zeros(500, 2, 5, 5, dtype=DOUBLE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        out = vmap(lambda p: functional_call(nets[0], p, (h,)), randomness="different")(parameters)
    correlations = torch.corrcoef(out.flatten(1).detach())
    assert (correlations - torch.eye(3)).abs().max() < 5 / math.sqrt(out[0].numel())
    assert out.var().item() == pytest.approx(0.25 * 4, rel=5 * math.sqrt(2 / out.numel()))


PER_SAMPLE = [
    ("sdenet", {}),
    ("sdenet", {"method": "rk4", "blocks": 2}),
    ("anode", {"k": 0.1}),
    ("sonode", {"k": 0.1}),
    ("hbnode", {"k": 0.1}),
    ("odenet", {"clip": 1.0}),
]


@pytest.mark.parametrize(("name", "args"), [*PER_SAMPLE, ("odenet", {"lipschitz": 0.1})])
def test_gradients_per_sample_by_vmap_are_those_of_a_loop(name, args):
    net = set_noise(make(name, {"norm": "gn", **args}).eval(), False)
    x, y = random(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    parameters = dict(net.named_parameters())

    def loss(p, x, y):
        return cross_entropy(functional_call(net, p, (x[None],)), y[None])

    found = vmap(grad(loss), (None, 0, 0))(parameters, x, y)
    for i in range(4):
        alone = torch.autograd.grad(
            cross_entropy(net(x[i : i + 1]), y[i : i + 1]), list(parameters.values())
        )
        for each, expected in zip(found.values(), alone, strict=True):
            torch.testing.assert_close(each[i], expected, rtol=0, atol=1e-6)


def hooked(net):
    """The network under Opacus' hooks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule
    return GradSampleModule(net, loss_reduction="sum")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "args"), PER_SAMPLE)
def test_gradients_per_sample_by_opacus_hooks_are_those_of_the_same_batch_and_noise(name, args):
    """Group norm, so that only the noise is shared in a batch: the gradient of one image's loss,
    drawn with the same seed.
    """
    net, x, y = (
        make(name, {"norm": "gn", **args}).train(),
        random(4, 1, 8, 8),
        torch.tensor([0, 1, 2, 0]),
    )

    def losses(module):
        torch.manual_seed(9)
        return cross_entropy(module(x), y, reduction="none")

    with torch.random.fork_rng(devices=[]):
        alone = [torch.autograd.grad(losses(net)[i], list(net.parameters())) for i in range(4)]
        losses(hooked(net)).sum().backward()
    for place, parameter in enumerate(net.parameters()):
        expected = torch.stack([alone[i][place] for i in range(4)])
        torch.testing.assert_close(parameter.grad_sample, expected, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("odenet", {"lipschitz": 1.0}, "lipschitz gives wrong gradients per sample"),
        ("odenet", {"method": "dopri5"}, "method='dopri5' gives wrong gradients per sample"),
        ("sdenet", {"method": "srk"}, "method='srk' gives wrong gradients per sample"),
    ],
)
def test_under_opacus_hooks_what_would_be_wrong_without_a_word_is_refused(name, args, says):
    net, x = make(name, {"norm": "gn", **args}).train(), random(2, 1, 8, 8)
    net(x)
    with pytest.raises(ValueError) as error:
        hooked(net)(x)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"method": "dopri5"}, "method='dopri5' works under no torch.func transform"),
        ({"method": "srk", "k": 0.5}, "method='srk' works under no torch.func transform"),
    ],
)
def test_a_library_s_solver_is_refused_under_vmap_in_one_line(args, says):
    net = make("odenet", {"norm": "gn", **args}).eval()
    parameters, x = {name: p.detach() for name, p in net.named_parameters()}, random(2, 1, 8, 8)
    per_sample = vmap(grad(lambda p, x: functional_call(net, p, (x[None],)).sum()), (None, 0))
    stacked = vmap(lambda p: functional_call(net, p, (x,)))
    for call in (
        lambda: per_sample(parameters, x),
        lambda: stacked({n: torch.stack([p, p]) for n, p in parameters.items()}),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("sdenet", {"steps": 2}),
        ("sdenet", {"method": "rk4", "steps": 1}),
        ("odenet64", {"lipschitz": 1.0, "clip": 2.0, "k": 0.5, "steps": 2}),
        ("hbnode", {"k": 0.1, "steps": 2}),
    ],
)
def test_training_with_noise_compiles_as_one_graph(name, args):
    """fullgraph=True refuses any break."""
    net, x = make(name, args, dtype=torch.float32).train(), random(2, 1, 8, 8, dtype=torch.float32)
    torch._dynamo.reset()
    compiled, results = torch.compile(net, backend="eager", fullgraph=True), []
    with torch.random.fork_rng(devices=[]):
        for module in (net, compiled):
            torch.manual_seed(0)
            logits = module(x)
            results.append((logits, gradient(logits.square().sum(), net.parameters())))
    torch._dynamo.reset()
    for plain, graph in zip(*results, strict=True):
        torch.testing.assert_close(graph, plain, rtol=1e-4, atol=1e-4)


# --------------------------------------------------------------------------------------------------
# bounds


def dense(weight, height, width, circular=False):
    """The matrix of a zero-padded convolution, or of the circular one of a grid two larger."""
    height, width = (height + 2, width + 2) if circular else (height, width)
    basis = torch.eye(weight.shape[1] * height * width, dtype=weight.dtype).view(
        -1, weight.shape[1], height, width
    )
    padded = F.pad(basis, (1, 1, 1, 1), mode="circular" if circular else "constant")
    return F.conv2d(padded, weight).flatten(1).T


@pytest.mark.parametrize(("out", "into"), [(2, 2), (3, 1), (1, 3)])
def test_certified_norm_lies_between_the_true_norm_and_is_exact_for_the_circular_convolution(
    out, into
):
    for seed in range(4):
        weight = random(out, into, 3, 3, seed=seed)
        true = torch.linalg.matrix_norm(dense(weight, 4, 4), 2)
        certified = conv_norm(weight, 4, 4)
        assert true <= certified <= 1.6 * true
        torch.testing.assert_close(
            certified, torch.linalg.matrix_norm(dense(weight, 4, 4, circular=True), 2)
        )
        torch.testing.assert_close(
            power_norm(weight, 4, 4, iterations=2000), true, rtol=1e-6, atol=0
        )


@pytest.mark.parametrize(("out", "into", "size"), [(1, 1, 1), (4, 4, 8), (8, 3, 5), (16, 16, 4)])
def test_power_iteration_never_exceeds_the_certified_norm(out, into, size):
    for seed in range(3):
        weight = random(out, into, 3, 3, seed=seed)
        assert power_norm(weight, size, size + 2) <= conv_norm(weight, size, size + 2) * (1 + 1e-12)


def test_the_norm_of_the_reshaped_weight_is_no_bound():
    """A kernel of nine ones sums its neighbourhood: norm near 9 on a large image, while the
    reshaped weight has norm 3.
    """
    weight = torch.ones(1, 1, 3, 3, dtype=DOUBLE)
    assert torch.linalg.matrix_norm(weight.flatten(1), 2) == 3
    assert 8.5 < power_norm(weight, 16, 16) <= conv_norm(weight, 16, 16) and conv_norm(
        weight, 16, 16
    ) == pytest.approx(9)


def test_norms_of_a_zero_kernel_are_zero_and_leave_finite_gradients():
    weight = torch.zeros(2, 2, 3, 3)
    assert conv_norm(weight, 4, 4) == 0 and power_norm(weight, 4, 4) == 0
    block = linear(FlowBlock(2, lipschitz=1.0), 0)
    block(torch.ones(1, 2, 4, 4)).sum().backward()
    assert all(p.grad.isfinite().all() for p in block.parameters())


@pytest.mark.parametrize("target", [0.05, 1.0])
def test_a_bounded_drift_keeps_its_target_at_birth_and_after_training(target):
    torch.manual_seed(0)
    block, h, size = FlowBlock(4, lipschitz=target).double(), random(6, 4, 5, 6), (5, 6)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.5)
    for step in range(4):
        certified = block.drift.certified_lipschitz(size)
        assert certified <= target * (1 + 1e-9)
        measured = local_lipschitz(block.drift, h, iterations=10)
        assert (
            measured.shape == (6,)
            and (measured > 0).all()
            and (measured <= certified * (1 + 1e-9)).all()
        )
        a, b = block.drift(0.3, h), block.drift(0.3, h + random(6, 4, 5, 6, seed=step))
        assert (
            (a - b).flatten(1).norm(dim=1)
            <= certified * random(6, 4, 5, 6, seed=step).flatten(1).norm(dim=1)
        ).all()
        optimizer.zero_grad()
        (-(block(h).square().mean())).backward()  # wants to stretch
        optimizer.step()
    free = conv_norm(block.drift.first.state.weight, *size) * conv_norm(
        block.drift.second.state.weight, *size
    )
    assert free > 2 * target  # the bound was at work, and is reached
    assert block.drift.certified_lipschitz(size) == pytest.approx(target)


def test_a_bound_that_is_not_reached_changes_nothing_and_the_time_channel_is_free():
    torch.manual_seed(0)
    free, bounded = Drift(3, 3).double(), Drift(3, 3, lipschitz=1e4).double()
    bounded.load_state_dict(free.state_dict())
    h = random(2, 3, 4, 4)
    assert torch.equal(free(0.5, h), bounded(0.5, h))
    norms = [conv_norm(part.state.weight, 4, 4).item() for part in (free.first, free.second)]
    assert (
        free.certified_lipschitz((4, 4))
        == bounded.certified_lipschitz((4, 4))
        == pytest.approx(math.prod(norms))
    )
    before = free.certified_lipschitz((4, 4))
    with torch.no_grad():
        free.first.time.weight.mul_(1000)
    assert free.certified_lipschitz((4, 4)) == before


def test_gradients_flow_through_the_bound():
    """Where it holds, the drift does not change with the length of its weights: their gradient is
    orthogonal to them.
    """
    weight = random(2, 3, 3, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: conv_norm(w, 4, 5), weight)
    for lipschitz, orthogonal in ((1e-3, True), (1e4, False)):
        torch.manual_seed(0)
        drift = Drift(3, 3, lipschitz=lipschitz).double()
        drift(0.5, random(2, 3, 4, 4)).square().sum().backward()
        for part in (drift.first, drift.second):
            w, g = part.state.weight.detach(), part.state.weight.grad
            assert g.norm() > 0
            assert (abs((w * g).sum()) < 1e-10 * w.norm() * g.norm()) == orthogonal


def test_local_lipschitz_is_the_norm_of_the_jacobian():
    matrix, h = random(6, 6), random(4, 6, seed=1)
    found = local_lipschitz(lambda t, h: h @ matrix.T, h, iterations=500)
    torch.testing.assert_close(
        found, torch.linalg.matrix_norm(matrix, 2).expand(4), rtol=1e-8, atol=0
    )
    found = local_lipschitz(lambda t, h: t * h**2, h, 3.0, iterations=500)
    torch.testing.assert_close(found, 6 * h.abs().amax(1), rtol=1e-8, atol=0)
    short = local_lipschitz(lambda t, h: h @ matrix.T, h, iterations=2)
    assert (short < torch.linalg.matrix_norm(matrix, 2)).all()  # from below


@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_a_solution_stretches_at_most_by_the_series_of_its_scheme(method):
    """(sum_{j <= p} (dt L)^j / j!)^steps, p = 1 for Euler and 4 for the classical Runge-Kutta
    scheme, all weights >= 0.
    """
    steps, L, h = 3, 2.0, random(3, 3, 4, 4)
    torch.manual_seed(0)
    block = FlowBlock(3, steps=steps, method=method, lipschitz=L).double()
    with torch.no_grad():
        for part in (block.drift.first, block.drift.second):
            part.state.weight.mul_(20)  # so that the bound is reached
    order = 1 if method == "euler" else 4
    bound = sum((L / steps) ** j / math.factorial(j) for j in range(order + 1)) ** steps
    measured = local_lipschitz(lambda t, h: block(h), h, iterations=6)
    assert (measured > 1.01).all() and (measured <= bound).all()
    # the same with drift h, where the bound is met with equality
    exact = linear(FlowBlock(3, steps=steps, method=method).double(), L)
    met = local_lipschitz(lambda t, h: exact(h), h.abs(), iterations=2)
    torch.testing.assert_close(met, torch.full((3,), bound, dtype=DOUBLE))


def test_clip_scales_each_image_s_state_to_at_most_its_norm():
    block, h = (
        linear(FlowBlock(3, clip=2.0).double(), 0),
        random(4, 3, 4, 4) * torch.tensor([0.01, 0.1, 1, 10]).view(-1, 1, 1, 1),
    )
    out, norms = block(h), h.flatten(1).norm(dim=1)
    torch.testing.assert_close(out.flatten(1).norm(dim=1), norms.clamp(max=2))
    assert torch.equal(out[:2], h[:2]) and (norms[2:] > 2).all()
    torch.testing.assert_close(out[2:] / 2, h[2:] / norms[2:].view(-1, 1, 1, 1))


def test_clip_holds_in_half_precision_and_leaves_finite_gradients_at_states_near_zero():
    block = linear(FlowBlock(3, clip=0.3), 0)
    out = block(random(20, 3, 4, 4, dtype=torch.float32).bfloat16())
    assert out.flatten(1).norm(dim=1).max() <= 0.3 * (1 + 1e-6)
    for scale in (0, 1e-30, 1e-20, 1e-10, 1):
        h = torch.full((1, 3, 4, 4), float(scale), requires_grad=True)
        block(h).square().sum().backward()
        assert h.grad.isfinite().all()


# --------------------------------------------------------------------------------------------------
# replacement


def train(net, images=16, steps=3):
    """A bare loop in training mode."""
    optimizer = torch.optim.SGD(
        [p for p in net.parameters() if p.requires_grad], lr=0.1, momentum=0.9, weight_decay=5e-4
    )
    x, y = random(images, 1, 8, 8, seed=5), torch.arange(images) % 3
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(net.train()(x), y).backward()
        optimizer.step()


def outside(state, last="network.groups.2."):
    return {
        name: tensor
        for name, tensor in state.items()
        if not name.startswith((last, "network.head."))
    }


@pytest.mark.parametrize("base", ["resnet14", "odenet"])
@pytest.mark.parametrize("freeze", [False, True])
def test_replacement_changes_the_last_group_only_and_freezing_keeps_the_stem_bitwise(base, freeze):
    torch.manual_seed(0)
    args = {"width": 4, **({"blocks": 1} if base == "resnet14" else {"steps": 2})}
    model = build(base, args, in_channels=1, num_classes=3, size=8, seed=0, dtype=DOUBLE)
    train(model)
    kept = copy.deepcopy(model.state_dict())
    net = replace_last(model, FlowBlock(16, k=0.5, steps=2).double(), freeze)
    before = copy.deepcopy(net.state_dict())
    assert all(
        torch.equal(before[f"network.{name}"], value)
        for name, value in kept.items()
        if not name.startswith("groups.2.")
    )
    assert [name for name, _ in flow_blocks(net)][-1] == (
        "network.groups.2" if base == "resnet14" else "network.groups.2.0"
    )
    train(net)
    after = net.state_dict()
    same = {name: torch.equal(value, before[name]) for name, value in outside(after).items()}
    assert any("running_mean" in name for name in same) and any(
        "num_batches" in name for name in same
    )
    assert all(same.values()) == freeze and (freeze or not any(same.values()))
    trained = (set(after) - set(outside(after))) - {
        n for n in after if "groups.2.0" in n and base == "resnet14"
    }
    assert trained and not any(torch.equal(after[name], before[name]) for name in trained)
    # the first network is left alone
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())


def test_frozen_parts_stay_in_evaluation_mode_and_evaluation_means_all():
    net = make("replaced", {"freeze": True}).train()
    modes = {name: part.training for name, part in net.network.named_children()}
    assert modes == {"stem": False, "groups": False, "downs": False, "head": True}
    assert (
        net.network.groups[-1].training
        and net.network.groups[-1].drift.training
        and not net.network.groups[0].training
    )
    assert not any(part.training for part in net.eval().modules())


def test_adopt_takes_what_the_network_knew_and_keeps_the_new_block():
    parent = build(
        "resnet14",
        {"width": 4, "blocks": 1},
        in_channels=1,
        num_classes=3,
        size=8,
        seed=7,
        dtype=DOUBLE,
    )
    net = make("replaced")
    fresh = copy.deepcopy(net.state_dict())
    # strict: nothing missing, nothing left over
    net.load_state_dict(net.adopt(parent.state_dict()))
    expected, x = replace_last(parent, copy.deepcopy(net.network.groups[-1])), random(2, 1, 8, 8)
    assert torch.equal(set_noise(net.eval(), False)(x), set_noise(expected.eval(), False)(x))
    for name, value in net.state_dict().items():
        own = name.startswith("network.groups.2.")
        assert torch.equal(
            value, fresh[name] if own else parent.state_dict()[name.removeprefix("network.")]
        )


def test_the_replaced_builder_has_the_study_s_defaults_and_depends_on_the_seed_alone():
    net = make("replaced", {"steps": 16})
    (block,) = (block for _, block in flow_blocks(net))
    assert (block.k, block.solver["steps"], block.solver["T"], block.sigma) == (0.5, 16, 1.0, 2.0)
    assert block.out_channels == 16 and all(p.requires_grad for p in net.parameters())
    same, other = (
        make("replaced", {"steps": 16}).state_dict(),
        make("replaced", {"steps": 16}, seed=1).state_dict(),
    )
    assert all(torch.equal(value, same[name]) for name, value in net.state_dict().items())
    assert not torch.equal(
        net.state_dict()["network.groups.2.drift.first.state.weight"],
        other["network.groups.2.drift.first.state.weight"],
    )
    assert not torch.equal(
        net.state_dict()["network.stem.0.weight"], other["network.stem.0.weight"]
    )
    flows = make(
        "replaced",
        {"base": "odenet", "base_args": {"width": 4, "steps": 2}, "k": 0.1, "method": "rk4"},
    )
    assert [block.k for _, block in flow_blocks(flows)] == [0, 0, 0.1]
    full = build("replaced", None, in_channels=3, num_classes=10, size=32, seed=0)
    assert count(full) == 1_259_818 - 3 * (2 * 256 + 2 * (9 * 128 * 128 + 128)) + 2 * (
        9 * 129 * 128 + 128
    )


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"base": "tinycnn", "base_args": {}}, "TinyCNN has no `groups` and `head`"),
        ({"base": "vgg16", "base_args": {"width": 2}}, "vgg16 has no linear `head`"),
        ({"augment": 4}, "leave augment out"),
        ({"k": -1.0}, "k=-1.0: wanted a standard deviation"),
        ({"widht": 4}, "widht"),
        ({"base": "resnet15"}, "no model 'resnet15'"),
    ],
)
def test_what_cannot_be_replaced_is_refused_in_one_line(args, says):
    with pytest.raises(ValueError) as error:
        make("replaced", args)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_networks_without_groups_and_head_are_refused():
    for model in (TinyCNN(), nn.Linear(2, 2), nn.Sequential()):
        with pytest.raises(
            ValueError, match=r"has no `groups` and `head`: replace_last wants a ResNet14"
        ):
            replace_last(model, FlowBlock(4))
    assert isinstance(replace_last(ResNet14(width=4, blocks=1), FlowBlock(16)), Replaced)


# --------------------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"layout": "32"}, "layout='32' is not one of 16-32-64, 64"),
        ({"norm": "ln"}, "norm='ln' is not one of bn, gn"),
        ({"blocks": 0}, "blocks=0, width=4: wanted both from 1 up"),
        ({"order": 3}, "order=3, damped=False: wanted order 1, order 2"),
        ({"damped": True}, "order=1, damped=True: wanted order 1, order 2"),
        ({"augment": -1}, "augment=-1 with order=1: wanted channels from 0 up"),
        ({"augment": 2, "order": 2}, "augment=2 with order=2"),
        ({"start": "ones", "order": 2}, "start='ones' is not one of conv, zeros"),
        ({"lipschitz": 0.0}, "lipschitz=0.0 with order=1: wanted a positive bound"),
        (
            {"lipschitz": 1.0, "order": 2},
            "lipschitz=1.0 with order=2: wanted a positive bound, and order 1",
        ),
        ({"clip": -1.0}, "clip=-1.0: wanted a positive norm"),
        ({"steps": 0}, "steps=0: wanted a whole number of steps from 1 up"),
        ({"steps": True}, "steps=True: wanted a whole number of steps"),
        ({"T": 0.0}, "T=0.0: wanted a positive time"),
        ({"method": "midpoint"}, "method='midpoint' is not one of euler"),
        ({"method": "dopri5", "k": 0.5}, "an adaptive solver would chase the noise"),
        ({"stepps": 3}, "takes no 'stepps'; did you mean 'steps'?"),
    ],
)
def test_networks_that_make_no_sense_are_refused_in_one_line(args, says):
    with pytest.raises(ValueError) as error:
        make("odenet", args)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_an_option_of_a_block_alone_is_none_of_the_network():
    for name in ("nonsense", "t0", "channels"):
        with pytest.raises(
            TypeError, match=rf"^FlowNet.__init__\(\) got an unexpected .* '{name}'"
        ):
            FlowNet(1, 3, width=4, **{name: 3})


def test_networks_are_imported_without_the_accountants():
    code = "import sys, mia_nb.models.neural_de; sys.exit('mia_nb.accounting' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_network_whose_library_is_missing_says_how_to_install_it_when_it_is_built(monkeypatch):
    for library, args in (
        ("torchdiffeq", {"method": "dopri5"}),
        ("torchsde", {"method": "srk", "k": 0.5}),
    ):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(
            ValueError, match=f"needs {library}, which is not installed: pip install {library}"
        ):
            make("odenet", args)
    assert FlowNet(1, 3, width=4, steps=1)(torch.zeros(2, 1, 8, 8)).shape == (2, 3)


def test_an_adaptive_network_that_blows_up_says_so_in_one_line():
    net = make("odenet", {"method": "dopri5"}).eval()
    with torch.no_grad():
        net.groups[0][0].drift.second.state.weight.mul_(1e200)
    with pytest.raises(ValueError, match="the state blew up: dopri5") as error:
        net(random(2, 1, 8, 8))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["odenet", "sdenet", "replaced"])
def test_a_network_of_flows_is_not_converted_to_spikes(name):
    with pytest.raises(ValueError, match="is a differential equation") as error:
        snn.convert(make(name, dtype=torch.float32).eval(), 2, [torch.rand(4, 1, 8, 8)])
    assert "\n" not in str(error.value)


def test_fixed_grid_methods_are_those_that_need_no_library():
    assert not set(solvers.FIXED) & set(solvers.BACKENDS) and set(solvers.METHODS) == {
        *solvers.FIXED,
        *solvers.BACKENDS,
    }
