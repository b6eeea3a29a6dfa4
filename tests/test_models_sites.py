"""What tracing must not change in silence: calls in place, pools, constants, draws, clamps; and what a refusal says."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mia_nb.models import snn


class Net(nn.Module):
    """Two convolutions and a linear layer; `how` is its forward."""

    def __init__(self, how, features=108):
        super().__init__()
        torch.manual_seed(0)
        self.how, self.pool, self.drop = how, nn.MaxPool2d(2), nn.Dropout(0.5, inplace=True)
        self.conv, self.more, self.head = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1), nn.Linear(features, 4)

    def forward(self, x):
        return self.how(self, x)


def net_of(how, features=108):
    return Net(how, features).double().eval()


def images(n=8):
    return torch.randn(n, 2, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def end(m, h):
    return m.head(F.relu(m.more(F.relu(h))).flatten(1))


def refusal(call):
    with pytest.raises(ValueError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


# ----------------------------------------------------------------------------------------------------------------- in place


def input_unassigned(m, x):
    x.sub_(0.5)
    return end(m, m.conv(x))


def input_assigned(m, x):
    return end(m, m.conv(x.mul_(2)))


def hidden_unassigned(m, x):
    h = m.conv(x)
    h.add_(1.0)
    return end(m, h)


def read_under_another_name(m, x):
    h = m.conv(x)
    g = h
    h += m.more(F.relu(h))
    return m.head((g + h).flatten(1))


def written_into(m, x):
    h = m.conv(x)
    torch.add(h, 1, out=h)
    return end(m, h)


def dropped_in_place(m, x):
    h = m.conv(x)
    return end(m, m.drop(h) + h)


def changed_function(m, x):
    h = m.conv(x)
    torch.exp_(h)
    return end(m, h)


CHANGED = {
    input_unassigned: "sub_ changes x",
    input_assigned: "mul_ changes x",
    hidden_unassigned: "add_ changes in place",
    read_under_another_name: "iadd changes in place",
    written_into: "add changes in place",
    dropped_in_place: "drop changes in place",
    changed_function: "exp_ changes in place",
}


@pytest.mark.parametrize("how", CHANGED, ids=lambda how: how.__name__)
def test_changes_in_place_that_a_graph_of_results_would_lose_are_refused(how):
    for call in (lambda: snn.sites(net_of(how)), lambda: snn.spiking(net_of(how), 2)):
        assert CHANGED[how] in refusal(call)


def residual_in_place(m, x):
    h = m.conv(x)
    out = m.drop(m.more(F.relu(h)))
    out += h
    out *= 0.5
    return m.head(F.relu(out).add_(1.0).flatten(1))


def test_changes_in_place_of_a_tensor_that_nobody_else_reads_pass_and_mean_what_they_say():
    model, x = net_of(residual_in_place), images()
    before = x.clone()
    near, far = ((snn.convert(model, T, [x])(x) - model(x)).abs().mean() for T in (256, 4))
    assert near < 0.1 * far and torch.equal(x, before)
    spiking = snn.convert(model, 4, [x])
    looped = snn.convert(model, 4, [x], fold=False)
    assert torch.equal(spiking(x), looped(x))


def changed_through_a_view(m, x):
    h = m.conv(x)
    flat = h.flatten(1)
    a = m.more(F.relu(h))
    h += a
    return m.head(F.relu(h).flatten(1) + flat)


def test_a_trace_that_answers_otherwise_than_the_model_is_refused_on_the_first_batch():
    histograms = snn.calibrate(net_of(lambda m, x: end(m, m.conv(x))), [images()])
    for given in (None, histograms):
        says = refusal(lambda given=given: snn.convert(net_of(changed_through_a_view), 2, [images()], histograms=given))
        assert "Net answers otherwise once traced (by up to" in says


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_random_layers_and_rounding_are_no_reason_to_refuse(dtype):
    model = net_of(lambda m, x: end(m, m.conv(x) + torch.randn_like(x[:, :1]))).to(dtype)
    state = torch.get_rng_state()
    net = snn.convert(model, 2, [images().to(dtype)])
    assert not torch.equal(net(images().to(dtype)), net(images().to(dtype)))
    torch.set_rng_state(state)


def test_a_model_that_returns_more_than_logits_is_refused():
    says = refusal(lambda: snn.convert(net_of(lambda m, x: (end(m, m.conv(x)), x)), 2, [images()]))
    assert "returns a tuple; wanted logits (B, K)" in says


# -------------------------------------------------------------------------------------------------------------------- pools


def pooled_by(call):
    return lambda m, x: m.head(call(m, F.relu(m.more(call(m, F.relu(m.conv(x)))))).flatten(1))


POOLS = {
    "one module twice": (lambda m, h: m.pool(h), lambda m, h: F.avg_pool2d(h, 2), 3),
    "function": (lambda m, h: F.max_pool2d(h, 2), lambda m, h: F.avg_pool2d(h, 2), 3),
    "torch's": (lambda m, h: torch.max_pool2d(h, 2, 2), lambda m, h: F.avg_pool2d(h, 2), 3),
    "options": (
        lambda m, h: F.max_pool2d(h, kernel_size=3, stride=2, padding=1, ceil_mode=True),
        lambda m, h: F.avg_pool2d(h, 3, 2, 1, True),
        27,
    ),
}


@pytest.mark.parametrize("case", POOLS)
def test_every_max_pooling_becomes_average_pooling_where_asked(case):
    maximum, average, features = POOLS[case]
    plain, twin, x = net_of(pooled_by(maximum), features), net_of(pooled_by(average), features), images()
    assert torch.equal(snn.convert(plain, 3, [x], pool="avg")(x), snn.convert(twin, 3, [x])(x))
    assert not torch.equal(snn.convert(plain, 3, [x])(x), snn.convert(twin, 3, [x])(x))
    out = snn.spiking(plain, 3, theta=0.1, pool="avg")(x)
    assert torch.equal(out, snn.spiking(twin, 3, theta=0.1)(x))


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.MaxPool2d(2, dilation=2), "MaxPool2d"),
        (nn.AdaptiveMaxPool2d(2), "AdaptiveMaxPool2d"),
        (lambda h: F.max_pool2d(h, 2, dilation=2), "max_pool2d"),
        (lambda h: F.max_pool2d(h, 2, return_indices=True)[0], "max_pool2d_with_indices"),
        (lambda h: F.adaptive_max_pool2d(h, 2), "adaptive_max_pool2d"),
        (lambda h: F.max_pool1d(h.flatten(2), 2), "max_pool1d"),
    ],
)
def test_other_max_pooling_is_kept_or_refused_but_never_dropped(layer, name):
    model = net_of(lambda m, x: F.relu(m.conv(x)))
    model.layer, model.how = layer, lambda m, x: m.layer(F.relu(m.conv(x))).flatten(1)
    for call in (lambda: snn.convert(model, 2, [images()], pool="avg"), lambda: snn.spiking(model, 2, pool="avg")):
        assert f"pool='avg' replaces plain 2-d max pooling only, not this {name}" in refusal(call)
    assert snn.convert(model, 2, [images()])(images()).shape == (8, model(images()).shape[1])
