"""What may stand around spikes: all that is linear converts and comes close with many time steps;
everything else is refused by its name, with advice that works. Before the first spikes, and in
networks that are trained with spikes, only time steps must not mix."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mia_nb
from mia_nb import data, models
from mia_nb.models import snn
from mia_nb.models.sites import Spike
from mia_nb.types import Recipe

CHANNELS, SIDE = 4, 6


class Net(nn.Module):
    """Two convolutions with a part between them, or before the first ReLU, or at the end."""

    def __init__(self, between=None, before=None, after=None, layer=None):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(2, CHANNELS, 3, padding=1)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, CHANNELS).view(-1, 1, 1))
        self.head = nn.LazyLinear(5)
        self.layer = layer
        self.between, self.before, self.after = between, before, after

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.before is not None:
            h = self.before(self, h)
        h = torch.relu(h)
        if self.between is not None:
            h = self.between(self, h)
        h = torch.relu(self.second(h))
        out = self.head(h.flatten(1))
        return out if self.after is None else self.after(self, out)


def images(n: int = 64) -> Tensor:
    return torch.randn(n, 2, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def ready(net: nn.Module) -> nn.Module:
    """In eval mode, after lazy layers and running statistics have seen images."""
    with torch.no_grad():
        for _ in range(30):
            net.train()(images())
    return net.eval()


def refusal(call) -> str:
    with pytest.raises(ValueError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def errors(net: nn.Module, **options) -> list[float]:
    """Of the converted network at few and at many time steps, as a share of the outputs."""
    x, wanted = images(), net(images())
    histograms = snn.calibrate(net, [x])
    return [
        float((snn.convert(net, T, [x], histograms=histograms, **options)(x) - wanted).abs().mean())
        / float(wanted.abs().mean())
        for T in (4, 128)
    ]


LINEAR = {
    "nothing": lambda m, h: h,
    "sums": lambda m, h: torch.cat([h[:, :2] + h[:, 2:], h[:, :2] - 0.5], 1),
    "constants": lambda m, h: (2 * h - 1) / 4 + torch.tensor(0.1),
    "a parameter": lambda m, h: h * m.gain,
    "a mean over space": lambda m, h: h - h.mean((2, 3), keepdim=True),
    "padding": lambda m, h: F.pad(h, (1, 1, 1, 1))[:, :, 1:-1, 1:-1],
    "interpolation": lambda m, h: F.interpolate(F.avg_pool2d(h, 2), scale_factor=2, mode="nearest"),
    "bilinear": lambda m, h: F.interpolate(h, size=(SIDE, SIDE), mode="bilinear"),
    "permuted": lambda m, h: h.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    "shuffled": lambda m, h: h.view(h.size(0), 2, -1, SIDE, SIDE).transpose(1, 2).flatten(1, 2),
    "split and stacked": lambda m, h: torch.stack(h.chunk(2, 1), 2).reshape_as(h),
    "a product of matrices": lambda m, h: h @ torch.eye(SIDE),
    "einsum": lambda m, h: torch.einsum("bchw,cd->bdhw", h, m.gain.view(-1, 1).expand(-1, 4) / 4),
    "a mask": lambda m, h: torch.where(torch.arange(SIDE) < 4, h, torch.zeros_like(h)),
    "in place": lambda m, h: h.mul_(0.5).add_(0.25),
    "weight of its own": lambda m, h: F.conv2d(h, m.second.weight, padding=1),
    "adaptive pooling": lambda m, h: F.adaptive_avg_pool2d(h, SIDE),
    "addmm": lambda m, h: (
        h + torch.addmm(h.new_zeros(4), h.mean((2, 3)), torch.eye(4))[..., None, None]
    ),
    "rolled": lambda m, h: h.roll(1, 2).flip(3),
}


@pytest.mark.parametrize("case", LINEAR)
def test_what_is_linear_in_spikes_converts_and_comes_close_with_many_steps(case):
    few, many = errors(ready(Net(LINEAR[case])))
    assert many < 0.06 and many < 0.4 * few


LINEAR_LAYERS = {
    "BatchNorm2d": lambda: nn.BatchNorm2d(CHANNELS),
    "AvgPool2d": lambda: nn.AvgPool2d(3, 1, 1),
    "Dropout2d": lambda: nn.Dropout2d(0.3),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, padding=1),
    "Upsample": lambda: nn.Sequential(nn.AvgPool2d(2), nn.Upsample(scale_factor=2)),
    "PixelShuffle": lambda: nn.Sequential(nn.PixelShuffle(2), nn.PixelUnshuffle(2)),
    "ReflectionPad2d": lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.AvgPool2d(3, 1)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(
        nn.Conv2d(CHANNELS, CHANNELS, 1)
    ),
}


@pytest.mark.parametrize("case", LINEAR_LAYERS)
def test_layers_that_are_linear_in_eval_mode_convert(case):
    few, many = errors(ready(Net(lambda m, h: m.layer(h), layer=LINEAR_LAYERS[case]())))
    assert many < 0.06 and many < 0.4 * few


# a part that is not linear, and the name that a refusal gives it
NOT_LINEAR = {
    "a hand-made ReLU": (lambda m, h: torch.where(h > 1, h, torch.zeros_like(h)), "gt"),
    "the larger of two": (lambda m, h: torch.maximum(h, m.gain), "maximum"),
    "F.threshold": (lambda m, h: F.threshold(h, 0.5, 0.0), "threshold"),
    "F.hardtanh": (lambda m, h: F.hardtanh(h), "hardtanh"),
    "clamp": (lambda m, h: h.clamp(min=0.3), "clamp"),
    "abs": (lambda m, h: (h - 1).abs(), "abs"),
    "exp": (lambda m, h: torch.exp(-h), "exp"),
    "square": (lambda m, h: h.square(), "square"),
    "a power": (lambda m, h: h**2, "pow"),
    "sqrt in place": (lambda m, h: (h + 1).sqrt_(), "sqrt"),
    "sign": (lambda m, h: torch.sign(h), "sign"),
    "comparison": (lambda m, h: h * (h > 0.5), "gt"),
    "itself twice": (lambda m, h: h * h, "mul"),
    "two that spike": (lambda m, h: h * m.second(h), "mul"),
    "a squeeze and a gate": (lambda m, h: h * h.mean((2, 3), keepdim=True), "mul"),
    "a gate that spikes": (lambda m, h: h * torch.relu(m.second(h)), "mul"),
    "under the bar": (lambda m, h: m.gain / (h + 1), "truediv"),
    "rounded": (lambda m, h: torch.div(h, 0.3, rounding_mode="floor"), "div"),
    "floor": (lambda m, h: h // 0.3, "floordiv"),
    "cast to whole numbers": (lambda m, h: h.to(torch.int32).float(), "to"),
    "cast to whole numbers by name": (lambda m, h: h.long().float(), "long"),
    "attention": (lambda m, h: h @ h.transpose(2, 3), "matmul"),
    "attention by einsum": (lambda m, h: torch.einsum("bchw,bcvw->bchv", h, h), "einsum"),
    "standardised": (lambda m, h: (h - h.mean(1, keepdim=True)) / h.std(), "std"),
    "topk": (lambda m, h: h.topk(SIDE, -1).values, "topk"),
    "sort": (lambda m, h: torch.sort(h, 1)[0], "sort"),
    "median": (lambda m, h: h - h.median(), "median"),
    "largest": (lambda m, h: h - h.max(), "max"),
    "norm of its own batch": (
        lambda m, h: F.batch_norm(h, None, None, training=True),
        "batch_norm",
    ),
    "its own index": (
        lambda m, h: m.gain.flatten()[h.argmax(1)].unsqueeze(1).expand_as(h),
        "argmax",
    ),
    "GLU by hand": (lambda m, h: torch.cat([h[:, :2] * h[:, 2:]] * 2, 1), "mul"),
}


@pytest.mark.parametrize("case", NOT_LINEAR)
def test_what_is_not_linear_in_spikes_is_refused_by_its_name_in_conversion(case):
    part, name = NOT_LINEAR[case]
    says = refusal(lambda: snn.convert(ready(Net(part)), 4, [images()]))
    no_form = "has no spiking form" in says
    assert no_form or f": {name} of spikes is not {name} of their mean" in says
    assert no_form or ("nn.ReLU" in says and "train with spikes from the start" in says)


@pytest.mark.parametrize("case", ["a gate that spikes", "attention", "exp", "a hand-made ReLU"])
def test_what_is_not_linear_may_be_trained_with_spikes_as_that_advice_says(case):
    plain, x = ready(Net(NOT_LINEAR[case][0])).double(), images().double()
    folded, looped = (snn.spiking(plain, 4, theta=0.2, fold=fold).eval() for fold in (True, False))
    folded.check_steps(x)
    torch.testing.assert_close(folded(x), looped(x))
    assert snn.firing_rates(folded, [x])["rate"].max() > 0.01


ACTIVATIONS = {
    "PReLU": nn.PReLU,
    "LeakyReLU": nn.LeakyReLU,
    "SiLU": nn.SiLU,
    "Hardtanh": nn.Hardtanh,
    "Softmax": lambda: nn.Softmax(1),
    "Threshold": lambda: nn.Threshold(0.1, 0.0),
    "GLU": lambda: nn.Sequential(nn.Conv2d(CHANNELS, 2 * CHANNELS, 1), nn.GLU(1)),
}


@pytest.mark.parametrize("case", ACTIVATIONS)
@pytest.mark.parametrize("place", ["before", "between"])
def test_another_activation_is_refused_by_its_name_wherever_it_stands(case, place):
    net = ready(Net(**{place: lambda m, h: m.layer(h)}, layer=ACTIVATIONS[case]()))
    for call in (lambda: snn.convert(net, 4, [images()]), lambda: snn.spiking(net, 4)):
        says = refusal(call)
        assert says.startswith("layer") and f": {case} has no spiking form here" in says


def test_anything_may_be_made_of_a_layers_output_before_the_first_spike():
    for part in (
        lambda m, h: torch.where(h > 0, h, torch.zeros_like(h)),
        lambda m, h: h / (1 + torch.exp(-h)),
        lambda m, h: h * h,
    ):
        few, many = errors(ready(Net(before=part)))
        assert many < 0.06 and many < 0.4 * few


def test_a_refused_call_is_named_with_its_file_and_line():
    line = test_a_refused_call_is_named_with_its_file_and_line.__code__.co_firstlineno + 2
    net = Net(lambda m, h: torch.exp(h))
    says = refusal(lambda: snn.convert(ready(net), 4, [images()]))
    assert says.startswith(f"exp (test_models_linearity.py, line {line}): exp of spikes")


SINGLE_STEP = {
    "MaxPool2d": lambda: nn.MaxPool2d(3, 1, 1),
    "AdaptiveMaxPool2d": lambda: nn.Sequential(nn.AdaptiveMaxPool2d(3), nn.Upsample(SIDE)),
    "GroupNorm": lambda: nn.GroupNorm(2, CHANNELS),
    "LayerNorm": lambda: nn.LayerNorm([CHANNELS, SIDE, SIDE]),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(CHANNELS),
    "LocalResponseNorm": lambda: nn.LocalResponseNorm(2, alpha=1.0),
    "RMSNorm": lambda: nn.RMSNorm([CHANNELS, SIDE, SIDE]),
    "BatchNorm2d": lambda: nn.BatchNorm2d(CHANNELS, track_running_stats=False),
    "normalize": lambda: lambda h: F.normalize(h, dim=1),
    "amax": lambda: lambda h: h - h.amax((2, 3), keepdim=True),
    "group_norm": lambda: lambda h: F.group_norm(h, 2),
}


@pytest.mark.parametrize("case", SINGLE_STEP)
def test_max_pooling_and_norms_are_refused_over_spikes_exact_before_them_and_trainable(case):
    layer = SINGLE_STEP[case]()
    net = Net(lambda m, h: m.layer(h))
    net.layer = layer
    ready(net)
    says = refusal(lambda: snn.convert(net, 4, [images()]))
    assert f"{case} of spikes is not {case} of their mean" in says
    assert len(snn.sites(net)) == 2
    assert snn.spiking(net, 4).eval()(images()).shape == (64, 5)  # as that advice says
    # a norm of a whole batch would see other samples
    if case == "BatchNorm2d":
        return
    net.between, net.before = None, net.between
    few, many = errors(net)
    assert many < 0.06 and many < 0.4 * few


def test_the_way_out_of_max_pooling_works():
    net = ready(Net(lambda m, h: m.layer(h), layer=nn.MaxPool2d(3, 1, 1)))
    assert 'pool="avg"' in refusal(lambda: snn.convert(net, 4, [images()]))
    twin = ready(Net(lambda m, h: m.layer(h), layer=nn.AvgPool2d(3, 1, 1)))
    twin.load_state_dict(net.state_dict())
    x = images()
    assert torch.equal(snn.convert(net, 4, [x], pool="avg")(x), snn.convert(twin, 4, [x])(x))


@pytest.mark.slow
def test_the_way_out_of_the_max_pooling_of_torchvisions_resnet18_works(tmp_path):
    images = data.load("synthetic:n=8,size=16,classes=2", data_root=tmp_path)
    recipe = Recipe(model="torchvision.models:resnet18", num_models=2, epochs=1, batch=4)
    pool = mia_nb.train(recipe, images, root=tmp_path, progress=False, workers=1)
    net, x = pool.model(0), data.normalise(images.x, images.mean, images.std)
    for call in (lambda: snn.convert(net, 2, [x]), lambda: mia_nb.convert(pool, images, 2)):
        said = refusal(call)
        assert said.startswith("maxpool: MaxPool2d") and "\n" not in said
        assert 'pool="avg" in snn.convert or pool_layers="avg" in mia.convert' in said
    assert snn.convert(net, 2, [x], pool="avg")(x).shape == (8, 2)
    converted = mia_nb.convert(pool, images, 2, pool_layers="avg")
    assert mia_nb.query(converted, images, progress=False).shape == (2, 1, 8)


class ByHand(Net):
    """The network with Spike modules in place of its ReLUs."""

    def __init__(self, between):
        super().__init__(between)
        self.one, self.two = Spike(), Spike()

    def forward(self, x: Tensor) -> Tensor:
        h = self.between(self, self.one(self.first(x)))
        return self.head(self.two(h).flatten(1))


def test_spike_modules_by_hand_may_stand_around_anything():
    net = ready(ByHand(NOT_LINEAR["two that spike"][0]))
    assert snn.SNN(net, 4)(images()).shape == (64, 5)


class Prepared(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = (x.clamp(-2, 2) ** 2).sqrt() / x.abs().amax((1, 2, 3), keepdim=True)
        return super().forward(torch.where(x > 0.1, x, x.exp()))


def test_the_pixels_may_be_prepared_in_any_way():
    net = ready(Prepared())
    few, many = errors(net)
    assert many < 0.06 and many < 0.4 * few
    # but not where each time step shows other spikes of them
    for encode in ("rate", "latency"):
        says = refusal(lambda encode=encode: snn.convert(net, 4, [images()], encode=encode))
        assert ": pow of spikes is not pow of their mean" in says
    assert len(snn.convert(ready(Net()), 4, [images()], encode="rate").report) == 2


def test_a_softmax_at_the_end_is_refused_with_what_to_return():
    net = ready(Net(after=lambda m, out: F.log_softmax(out, 1)))
    assert "return what it is given, the logits" in refusal(lambda: snn.convert(net, 4, [images()]))
    net.after = None
    assert len(snn.convert(net, 4, [images()]).report) == 2


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (lambda m, h: h - h.flip(0), "flip mixes time steps or samples"),
        (lambda m, h: h - h.roll(1, 0), "roll mixes"),
        (lambda m, h: h.cumsum(0), "cumsum mixes"),
        (lambda m, h: h - h.mean(0), "mean mixes"),
        (
            lambda m, h: h.reshape(-1, 2, CHANNELS, SIDE, SIDE).transpose(0, 1).reshape_as(h),
            "does not run on 5 images",
        ),
        (lambda m, h: h.reshape(SIDE, -1, CHANNELS, SIDE).view_as(h), None),
        (lambda m, h: h.view(64, CHANNELS, SIDE, SIDE), "does not run on 5 images"),
        (lambda m, h: h[:1] + 0 * h, "getitem mixes"),
    ],
)
def test_calls_that_mix_samples_or_steps_are_refused(part, says):
    net = ready(Net(part))
    if says is None:  # moved there and back
        assert snn.convert(net, 4, [images()]) is not None
    else:
        assert says in refusal(lambda: snn.convert(net, 4, [images()]))


@pytest.mark.parametrize("hook", [torch.abs, torch.square])
def test_a_hook_that_is_not_linear_is_found(hook):
    net = ready(Net())
    net.second.register_forward_hook(lambda module, args, out: hook(out))
    says = refusal(lambda: snn.convert(net, 4, [images()]))
    assert says.startswith("second: Conv2d with its hooks of spikes is not")


def noisy(m, h):
    return h + 0.1 * torch.randn_like(h)


def test_networks_that_draw_random_numbers_are_checked_with_the_same_draws():
    for part in (noisy, lambda m, h: F.dropout(h, 0.1)):
        net = snn.convert(ready(Net(before=noisy, between=part)), 4, [images()])
        assert not torch.equal(net(images()), net(images()))
    for part, says in (
        (lambda m, h: noisy(m, h).square(), "square of spikes is not"),
        (lambda m, h: noisy(m, h).flip(0), "flip mixes time steps"),
    ):
        assert says in refusal(
            lambda p=part: snn.convert(ready(Net(before=noisy, between=p)), 4, [images()])
        )


# what is linear for small values or for most of them
SELDOM = {
    "a cap that few activations reach": lambda cap: lambda m, h: torch.minimum(h, cap),
    "a cap that only other images reach": lambda cap: lambda m, h: torch.minimum(h, 1.5 * cap),
    "a small step": lambda cap: lambda m, h: torch.where(h > 0.02 * cap, h, torch.zeros_like(h)),
    "a share of a sum over channels": lambda cap: lambda m, h: h / (h.sum(1, keepdim=True) + cap),
}


@pytest.mark.parametrize("case", SELDOM)
def test_what_is_linear_for_most_values_is_refused(case):
    largest = ready(Net()).first(images()).max().detach()
    net = ready(Net(SELDOM[case](0.9 * largest)))
    assert "of spikes is not" in refusal(lambda: snn.convert(net, 4, [images()]))


def test_what_only_values_beyond_all_activations_would_meet_is_accepted():
    far = 100 * ready(Net()).first(images()).max().detach()
    few, many = errors(ready(Net(lambda m, h: torch.minimum(h, far))))
    assert many < 0.06 and many < 0.4 * few


def test_training_with_spikes_is_refused_where_time_steps_mix():
    digits = data.load("digits", limit=40)
    size = digits.x.shape[-1]
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten()
    )
    net.append(nn.Linear(3 * (size - 2) ** 2, len(digits.classes)))
    says = refusal(lambda: models.check_width(snn.spiking(net, 2, theta=0.1), digits))
    assert says.startswith("2: BatchNorm2d mixes time steps or samples")
    net[2] = nn.GroupNorm(1, 3)
    models.check_width(snn.spiking(net, 2, theta=0.1), digits)


class Doubling(nn.Linear):
    """Looks like a linear layer and is none."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square()


def test_a_subclass_of_a_linear_layer_is_taken_for_what_it_computes():
    net = nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.ReLU(), Doubling(8, 4), nn.ReLU())
    assert "square of spikes is not square of their mean" in refusal(
        lambda: snn.convert(net, 4, [images()])
    )


def test_one_layer_in_two_places_is_judged_by_place():
    norm = nn.GroupNorm(2, CHANNELS)
    net = Net(before=lambda m, h: m.layer(h), between=lambda m, h: m.layer(h), layer=norm)
    assert "GroupNorm of spikes" in refusal(lambda: snn.convert(ready(net), 4, [images()]))
    net.between = None
    assert errors(net)[1] < 0.06
