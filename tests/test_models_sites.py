"""What tracing must not change in silence: calls in place, pools, constants, draws, clamps; and
what a refusal says.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mia_nb.models import build, snn
from mia_nb.models.sites import Spike, trace


class Net(nn.Module):
    """Two convolutions and a linear layer; `how` is its forward."""

    def __init__(self, how, features=108):
        super().__init__()
        torch.manual_seed(0)
        self.how, self.pool, self.drop = how, nn.MaxPool2d(2), nn.Dropout(0.5, inplace=True)
        self.again = self.pool  # one module under two names
        self.quiet = nn.Dropout(0.5)  # in evaluation its output is its input itself
        self.conv, self.more, self.head = (
            nn.Conv2d(2, 3, 3, padding=1),
            nn.Conv2d(3, 3, 3, padding=1),
            nn.Linear(features, 4),
        )

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


# --------------------------------------------------------------------------------------------------
# in place


def input_unassigned(m, x):
    x.sub_(0.5)
    return end(m, m.conv(x))


def input_assigned(m, x):
    return end(m, m.conv(x.mul_(2)))


def hidden_unassigned(m, x):
    h = m.conv(x)
    h.add_(1.0)
    return end(m, h)


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


def read_under_another_name(m, x):
    h = m.conv(x)
    g = h
    h += m.more(F.relu(h))
    return m.head((g + h).flatten(1))


def view_read_later(m, x):
    h = m.conv(x)
    flat = h.flatten(1)
    h += m.more(F.relu(h))
    return m.head(flat)


def base_read_later(m, x):
    h = m.conv(x)
    flat = h.view(h.size(0), -1)
    flat += F.relu(flat)
    return m.head(m.more(h).flatten(1))


def view_of_a_view_read_later(m, x):
    h = F.relu(m.conv(x))
    apart = h.unflatten(1, (1, 3)).transpose(1, 2)
    h.transpose(2, 3).mul_(2)
    return m.head(apart.flatten(1))


def slice_read_later(m, x):
    h = F.relu(m.conv(x))
    first = h[:, :1]
    h *= 2
    return m.head((h + first).flatten(1))


def behind_dropout(m, x):
    h = m.conv(x)
    kept = m.quiet(h)
    h += m.more(F.relu(h))
    return m.head((F.relu(h) + kept).flatten(1))


def behind_a_function_of_dropout(m, x):
    h = m.conv(x)
    kept = F.dropout(h, 0.5, training=False)
    h += m.more(F.relu(h))
    return m.head((F.relu(h) + kept).flatten(1))


def before_dropout(m, x):
    h = m.conv(x)
    out = m.quiet(h)
    out += m.more(F.relu(h))
    return m.head((F.relu(out) + h).flatten(1))


def behind_a_cast(m, x):
    h = m.conv(x)
    same = h.type_as(x)
    h += m.more(F.relu(h))
    return m.head((F.relu(h) + same).flatten(1))


CHANGED = {
    input_unassigned: "sub_ changes x",
    input_assigned: "mul_ changes x",
    hidden_unassigned: "add_ changes in place",
    written_into: "add changes in place",
    dropped_in_place: "drop changes in place",
    changed_function: "exp_ changes in place",
    read_under_another_name: "iadd changes in place what another name reads",
    view_read_later: "iadd changes in place what another name reads",
    base_read_later: "iadd changes in place what another name reads",
    view_of_a_view_read_later: "mul_ changes in place what another name reads",
    slice_read_later: "imul changes in place what another name reads",
    behind_dropout: "iadd changes in place what another name reads",
    behind_a_function_of_dropout: "iadd changes in place what another name reads",
    before_dropout: "iadd changes in place what another name reads",
    behind_a_cast: "iadd changes in place what another name reads",
}


@pytest.mark.parametrize("how", CHANGED, ids=lambda how: how.__name__)
def test_changes_in_place_that_a_graph_of_results_would_lose_are_refused(how):
    for call in (lambda: snn.sites(net_of(how)), lambda: snn.spiking(net_of(how), 2)):
        assert CHANGED[how] in refusal(call)


def relu_of_a_base(m, x):
    h = m.conv(x)
    flat = h.flatten(1)
    return m.head(flat + F.relu_(h).flatten(1))


def relu_of_a_view(m, x):
    h = m.conv(x)
    flat = F.relu_(h.flatten(1))
    return m.head(flat + m.more(h).flatten(1))


@pytest.mark.parametrize("how", [relu_of_a_base, relu_of_a_view], ids=lambda how: how.__name__)
def test_relus_that_change_a_view_which_is_read_later_are_refused(how):
    for call in (lambda: snn.sites(net_of(how)), lambda: snn.spiking(net_of(how), 2)):
        assert "relu_ changes in place what is then read by another name" in refusal(call)


def views_that_nothing_else_reads(m, x):
    h = m.conv(x)
    flat = h.flatten(1)
    flat += 1
    flat = F.relu_(flat.view(flat.size(0), -1))
    again = flat.view(h.shape)
    again *= 2
    return m.head(again.flatten(1))


def test_changes_in_place_of_views_that_nothing_else_reads_pass():
    model, x = net_of(views_that_nothing_else_reads), images()
    near, far = ((snn.convert(model, T, [x])(x) - model(x)).abs().mean() for T in (256, 4))
    assert near < 0.1 * far


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


def a_branch_with_dropout(m, x):
    h = m.conv(x)
    out = m.quiet(m.more(m.quiet(F.relu(m.quiet(h)))))
    out += h
    return m.head(m.quiet(F.relu_(out)).flatten(1))


def test_dropout_is_no_reason_to_refuse_where_what_was_dropped_is_not_read_again():
    model, x = net_of(a_branch_with_dropout), images()
    near, far = ((snn.convert(model, T, [x])(x) - model(x)).abs().mean() for T in (256, 4))
    assert near < 0.1 * far


@pytest.mark.parametrize("count", [lambda x: x.size(0), lambda x: x.shape[0]])
def test_sizes_are_numbers_which_an_assignment_leaves_as_they_were(count):
    def flattened(m, x):
        samples = count(x)
        pixels = samples
        pixels *= 72
        return m.head(F.relu(m.conv(x)).view(samples, -1)) + 0 * pixels

    assert snn.spiking(net_of(flattened), 2)(images()).shape == (8, 4)


def changed_behind_einsum(m, x):
    h = m.conv(x)
    turned = torch.einsum("bchw->bcwh", h)  # a view, which no rule about calls knows
    h += m.more(F.relu(h))
    return m.head((F.relu(h) + turned).flatten(1))


def test_a_trace_that_answers_otherwise_than_the_model_is_refused_on_the_first_batch():
    histograms = snn.calibrate(net_of(lambda m, x: end(m, m.conv(x))), [images()])
    for given in (None, histograms):
        says = refusal(
            lambda given=given: snn.convert(
                net_of(changed_behind_einsum), 2, [images()], histograms=given
            )
        )
        assert "Net gives other outputs once traced (by up to" in says


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


# --------------------------------------------------------------------------------------------------
# pools


def pooled_by(call):
    return lambda m, x: m.head(call(m, F.relu(m.more(call(m, F.relu(m.conv(x)))))).flatten(1))


POOLS = {
    "one module twice": (lambda m, h: m.pool(h), lambda m, h: F.avg_pool2d(h, 2), 3),
    "its second name": (lambda m, h: m.again(h), lambda m, h: F.avg_pool2d(h, 2), 3),
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
    plain, twin, x = (
        net_of(pooled_by(maximum), features),
        net_of(pooled_by(average), features),
        images(),
    )
    assert torch.equal(snn.convert(plain, 3, [x], pool="avg")(x), snn.convert(twin, 3, [x])(x))
    out = snn.spiking(plain, 3, theta=0.1, pool="avg")(x)
    assert torch.equal(out, snn.spiking(twin, 3, theta=0.1)(x))
    assert not torch.equal(out, snn.spiking(plain, 3, theta=0.1)(x))


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
def test_other_max_pooling_is_kept_for_training_and_refused_in_conversion(layer, name):
    model = net_of(lambda m, x: F.relu(m.conv(x)))
    model.layer, model.how = layer, lambda m, x: m.layer(F.relu(m.conv(x))).flatten(1)
    for pool in ("keep", "avg"):
        says = refusal(lambda pool=pool: snn.convert(model, 2, [images()], pool=pool))
        assert f"{name} of spikes is not {name} of their mean" in says and "avg" not in says
        assert snn.spiking(model, 2, pool=pool)(images()).shape == (8, model(images()).shape[1])


# -------------------------------------------------------------------------------------------------
# constants, draws, clamps


def by_value(m, x):
    return end(m, m.conv(x) if x.sum() > 0 else m.conv(-x))


def scaled_by_the_mode(m, x):
    return end(m, m.conv(x) * torch.tensor(1.0 + m.training))


def a_branch_by_chance(m, x):
    return end(m, m.conv(x) if torch.rand(1) < 0.5 else m.conv(-x))


def noise_of_no_input(m, x):
    return end(m, m.conv(x) + torch.randn(3, 1, 1))


def with_constants(m, x):
    h = m.conv(x) * torch.tensor([0.5, 1.0, 2.0]).double().view(3, 1, 1)
    return end(m, h + torch.tensor(0.1, dtype=x.dtype))


def test_constants_made_in_forward_are_kept_and_the_model_left_without_them():
    model, x = net_of(with_constants), images()
    names = set(vars(model))
    near, far = ((snn.convert(model, T, [x])(x) - model(x)).abs().mean() for T in (256, 4))
    assert near < 0.1 * far and set(vars(model)) == names


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (scaled_by_the_mode, "differs between training and evaluation, or from call to call"),
        (a_branch_by_chance, "Net draws random numbers that do not depend on its input"),
        (noise_of_no_input, "Net draws random numbers that do not depend on its input"),
        (by_value, "Net cannot be traced"),
    ],
)
def test_values_that_tracing_would_freeze_are_refused_for_the_true_reason_without_useless_advice(
    how, says
):
    message = refusal(lambda: snn.spiking(net_of(how), 2))
    assert says in message and "Spike modules" not in message
    assert says in refusal(lambda: snn.SNN(net_of(how), 2))


CLAMPED = {
    "two sides": lambda h: h.clamp(0, 6),
    "two sides by name": lambda h: torch.clip(h, min=-1, max=1),
    "above": lambda h: F.relu(h).clamp_max(6),
    "in place": lambda h: h.clamp_(0, 6),
    "expit": lambda h: torch.special.expit(h),
    "tanh in place": lambda h: h.tanh_(),
    "special softmax": lambda h: torch.special.softmax(h, 1),
}


@pytest.mark.parametrize("case", CLAMPED)
def test_other_activations_in_disguise_are_refused(case):
    message = refusal(lambda: snn.sites(net_of(lambda m, x: end(m, CLAMPED[case](m.conv(x))))))
    assert "has no spiking form here, only ReLU has" in message


@pytest.mark.parametrize(
    "clamp", [lambda x: x.clamp(0, 1), lambda x: torch.clamp(x, min=-2.0), lambda x: x.clip(max=1)]
)
def test_the_input_may_be_clamped(clamp):
    assert len(snn.sites(net_of(lambda m, x: end(m, m.conv(clamp(x)))))) == 2


# --------------------------------------------------------------------------------------------------
# what is passed in


class ByHand(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.sp, self.last = nn.Linear(72, 6), Spike(0.3), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(self.sp(x=self.first(x.flatten(1))))


def test_spikes_by_hand_may_be_called_by_keyword():
    x, spiking = images(), snn.SNN(ByHand().double(), 3)
    h = ByHand().double().first(x.flatten(1))
    out = spiking.net.sp(h, 3, True).unflatten(0, (3, -1))
    torch.testing.assert_close(spiking(x, per_step=True), spiking.net.last(out))


def spiking_already():
    plain = nn.Sequential(nn.Flatten(), nn.Linear(72, 6), nn.ReLU(), nn.Linear(6, 4)).double()
    net = snn.spiking(plain, 2)
    return {"SNN": net, "Stepwise": snn.Stepwise(plain, 2), "1": nn.Sequential(nn.Identity(), net)}


@pytest.mark.parametrize("name", ["SNN", "Stepwise", "1"])
def test_spiking_networks_are_not_converted_again(name):
    net = spiking_already()[name]
    calls = [
        snn.sites,
        lambda n: snn.convert(n, 2, [images()]),
        lambda n: snn.spiking(n, 2),
        lambda n: snn.SNN(n, 2),
    ]
    for call in [*calls, lambda n: snn.calibrate(n, [images()])]:
        assert refusal(lambda call=call: call(net)).startswith(
            f"{name} spikes already: pass the plain network"
        )


def test_a_graph_of_the_users_own_is_traced_like_any_module():
    x = images()
    plain = nn.Sequential(nn.Flatten(), nn.Linear(72, 6), nn.ReLU(), nn.Linear(6, 4)).double()
    graph = torch.fx.symbolic_trace(plain)
    assert torch.equal(snn.convert(graph, 3, [x])(x), snn.convert(plain, 3, [x])(x))
    assert torch.equal(snn.calibrate(graph, [x])[0].counts, snn.calibrate(plain, [x])[0].counts)
    assert torch.equal(
        snn.calibrate(trace(graph, Spike)[0], [x])[0].counts, snn.calibrate(plain, [x])[0].counts
    )
    assert "is a ReLU beside Spike modules" in refusal(lambda: snn.SNN(graph, 2))


def test_a_base_that_spikes_already_is_refused_and_a_builders_reason_comes_first_with_the_users_own_arguments_only():
    options = {"in_channels": 1, "num_classes": 3, "size": 8, "seed": 0}
    says = refusal(
        lambda: build(
            "snn", {"base": "snn", "base_args": {"timesteps": 2}, "timesteps": 2}, **options
        )
    )
    assert says.startswith("model snn cannot be built: ValueError: SNN spikes already")
    says = refusal(lambda: build("resnet14", {"width": "wide"}, **options))
    assert says.startswith("model resnet14 cannot be built: ") and says.endswith(
        "(model_args: {'width': 'wide'})"
    )
