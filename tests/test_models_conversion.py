"""Thresholds: closed forms, exact optima, slow twins; conversion: which calls become sites, what is
refused, and the limit of many time steps."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exact_thresholds import fit_threshold
from torch import nn

import mia_nb._torchvision
from mia_nb.models import build, snn
from mia_nb.models.sites import Spike, trace
from mia_nb.models.thresholds import (
    DEAD,
    Histogram,
    expected,
    fit_histogram,
    quantised,
)


def cost(a, theta, T=1, p=1):
    """E |a - Q_T(a)|^p, written out."""
    levels = np.arange(T + 1) * theta / T
    return (np.abs(a[:, None] - levels).min(1) ** p).mean()


def sample(law, n=30_000, seed=0):
    rng = np.random.default_rng(seed)
    draw = {
        "half-normal": lambda: np.abs(rng.normal(size=n)),
        "exponential": lambda: rng.exponential(size=n),
        "relu": lambda: positive(rng.normal(-1, 1, 40 + 7 * n))[:n],
        "lognormal": lambda: np.exp(rng.normal(0, 1, n)),
    }
    return draw[law]()


def positive(z):
    return z[z > 0]


def by_histogram(a, T=1, p=1, bins=2048):
    """The histogram twin, fed in pieces."""
    histogram = Histogram.empty(1, bins)
    for part in np.array_split(a, 7):
        histogram = histogram.add(torch.tensor(part)[None])
    return histogram, fit_histogram(histogram, T, p)[0]


# --------------------------------------------------------------------------------------------------
# thresholds


@pytest.mark.parametrize(("T", "p"), [(1, 1), (1, 2), (2, 1), (5, 1), (8, 2)])
def test_the_quantiser_takes_the_nearest_level(T, p):
    a = np.random.default_rng(0).exponential(size=500) * 3
    assert (np.abs(a - quantised(a, 1.3, T)) ** p).mean() == pytest.approx(
        cost(a, 1.3, T, p), rel=1e-12
    )


@pytest.mark.parametrize(
    ("law", "theta", "least", "tolerance"),
    [
        ("half-normal", 1.0291, 0.3397, 0.006),
        ("exponential", 2 * np.log(2), 0.5, 0.010),
        ("relu", None, 0.2401, 0.006),
    ],
)
def test_thresholds_of_known_laws_are_their_closed_forms(law, theta, least, tolerance):
    a = sample(law)
    fitted, u0 = fit_threshold(a)
    assert u0 == fitted / 2 and (theta is None or fitted == pytest.approx(theta, rel=0.03))
    assert cost(a, fitted) == pytest.approx(least, abs=tolerance)


@pytest.mark.parametrize("law", ["half-normal", "exponential", "relu", "lognormal"])
@pytest.mark.parametrize("n", [1, 2, 3, 10, 301])
def test_at_one_step_the_threshold_is_the_median_of_all_above_half_of_it_and_no_other_value_costs_less(
    law, n
):
    a = sample(law, n, seed=n)
    theta, _ = fit_threshold(a)
    above = np.sort(a[a >= theta / 2])
    assert theta in above[[(len(above) - 1) // 2, len(above) // 2]]
    grid = np.concatenate(
        [a, np.linspace(0, a.max(), 3001)[1:], *([theta * (1 + s)] for s in (-1e-6, 1e-6))]
    )
    assert cost(a, theta) <= min(cost(a, other) for other in grid) * (1 + 1e-12)


def test_of_two_solutions_the_cheaper_one_is_taken():
    theta, _ = fit_threshold([1.0] * 7 + [3.0] * 3)
    assert theta == 1 and cost(np.array([1.0] * 7 + [3.0] * 3), 1) == pytest.approx(0.6)


def coordinate_descent(a, sweeps=60):
    """The released search: amplitude given the firing threshold, firing threshold given the
    amplitude, in turns.
    """
    fires = np.median(a)
    for _ in range(sweeps):
        amplitude = np.median(a[a >= fires])
        fires = amplitude / 2
    return amplitude


@pytest.mark.parametrize("law", ["half-normal", "exponential", "relu", "lognormal"])
@pytest.mark.parametrize(("T", "p"), [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (4, 2)])
def test_the_fit_costs_no_more_than_any_grid_point_or_coordinate_descent_and_its_twin_is_near(
    law, T, p
):
    a = sample(law, 3_000)
    theta, _ = fit_threshold(a, T, p)
    least = min(cost(a, other, T, p) for other in a.max() * np.arange(1, 257) / 256)
    assert cost(a, theta, T, p) <= least * (1 + 1e-12)
    if T == p == 1:
        assert cost(a, theta) <= cost(a, coordinate_descent(a)) * (1 + 1e-12)
    _, twin = by_histogram(a, T, p)
    assert cost(a, twin, T, p) <= cost(a, theta, T, p) * 1.004


@pytest.mark.parametrize("law", ["half-normal", "exponential", "relu"])
def test_the_histogram_threshold_is_within_half_a_percent_of_the_exact_one(law):
    a = sample(law, 100_000)
    theta, _ = fit_threshold(a)
    assert by_histogram(a)[1] == pytest.approx(theta, rel=0.006)


def test_thresholds_are_those_of_the_published_search_where_it_has_converged(official):
    for law, sweeps, fires, amplitude, _ in official["thr_rows"]:
        a = official[("act_halfnormal", "act_exp", "act_gamma")[int(law)]]
        theta, u0 = fit_threshold(a)
        assert cost(a, theta) <= cost(a, amplitude) * (1 + 1e-12)
        if sweeps < 0:  # until nothing changes, and on a larger sample of the same law
            assert theta == pytest.approx(amplitude, rel=1e-2) and theta - u0 == pytest.approx(
                fires, rel=3e-2
            )


TABLE = {
    "half-normal": {2: (0.221, 0.247), 4: (0.134, 0.202), 8: (0.077, 0.180)},
    "exponential": {2: (0.350, 0.381), 4: (0.225, 0.317), 8: (0.138, 0.284)},
    "relu": {2: (0.160, 0.177), 4: (0.098, 0.145), 8: (0.058, 0.128)},
}


@pytest.mark.parametrize("law", TABLE)
def test_refitting_for_every_number_of_steps_has_the_known_errors_and_beats_reuse(law):
    histogram, once = by_histogram(sample(law))
    for T, (refit, reused) in TABLE[law].items():
        for theta, known in ((fit_histogram(histogram, T), refit), (np.array([once]), reused)):
            assert expected(histogram, theta, T)[0][0] == pytest.approx(known, abs=0.01)


@pytest.mark.parametrize(
    ("law", "known"), [("half-normal", 0.282), ("exponential", 0.591), ("relu", 0.202)]
)
def test_the_largest_activation_is_a_bad_threshold(law, known):
    """Its error at T = 4 depends on the sample's maximum; the known values are those of 30,000
    draws.
    """
    histogram, _ = by_histogram(a := sample(law))
    error = expected(histogram, np.array([a.max()]), 4)[0][0]
    assert error == pytest.approx(known, rel=0.12) and error > 1.3 * TABLE[law][4][1]


def test_merging_bins_gives_the_counts_of_one_pass_with_the_final_range():
    rng = np.random.default_rng(0)
    pieces = [
        rng.exponential(size=(3, 200)) * scale * [[1], [0.01], [0]]
        for scale in (1e-4, 0.02, 1, 0.1, 40)
    ]
    pieces.insert(2, np.full((3, 5), [[2.0], [0.5], [0.0]]))  # ends of a range
    for dtype in (torch.float64, torch.float32):
        histogram = Histogram.empty(3, 64)
        for piece in pieces:
            histogram = histogram.add(torch.tensor(piece, dtype=dtype))
        every = torch.tensor(np.concatenate(pieces, 1), dtype=dtype).double().numpy()
        for g in range(3):
            width = float(histogram.range[g])
            assert every[g].max() < width and np.log2(width) % 1 == 0
            counts = np.histogram(positive(every[g]), bins=64, range=(0, width))[0]
            assert histogram.counts[g].tolist() == counts.tolist()


def test_half_precision_activations_are_counted_where_they_are():
    z = torch.tensor([[0.001, 0.002, 0.0009]], dtype=torch.float16)
    assert torch.equal(
        Histogram.empty(1, 2048).add(z).counts, Histogram.empty(1, 2048).add(z.double()).counts
    )


def test_expected_error_and_clipped_mass_are_those_of_the_sample():
    a = sample("exponential", 20_000)
    histogram, _ = by_histogram(a)
    error, clipped = expected(histogram, np.array([1.5]), 4)
    assert error[0] == pytest.approx(cost(a, 1.5, 4), abs=1e-3) and clipped[0] == pytest.approx(
        (a > 1.5).mean(), abs=5e-3
    )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: fit_histogram(Histogram.empty(1, 8), p=3), "p=3"),
        (
            lambda: fit_histogram(Histogram.empty(1, 8), T=0),
            "T=0, p=1: wanted a whole T >= 1 and p = 1 or 2",
        ),
        (lambda: fit_histogram(Histogram.empty(1, 8), T=2.5), "T=2.5"),
        (lambda: fit_histogram(Histogram.empty(1, 8), p=0.5), "p=0.5"),
        (
            lambda: Histogram.empty(1, 8).add(torch.tensor([[1.0, float("nan")]])),
            "did the model diverge?",
        ),
    ],
)
def test_threshold_errors_say_what_came(call, says):
    with pytest.raises(ValueError) as error:
        call()
    assert says in str(error.value) and "\n" not in str(error.value)


# --------------------------------------------------------------------------------------------------
# sites


class Net(nn.Module):
    """conv - activation - linear; `how` is its forward."""

    def __init__(self, how=None, size=6):
        super().__init__()
        self.how, self.relu, self.inplace = how, nn.ReLU(), nn.ReLU(inplace=True)
        self.conv, self.more = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.head, self.wide, self.both = (nn.Linear(n * size * size, 4) for n in (3, 5, 6))
        self.gain = nn.Parameter(torch.tensor([0.5, 1.0, 2.0]).view(3, 1, 1))

    def forward(self, x):
        return self.how(self, x)


def functional(m, x):
    return m.head(F.relu(m.more(F.relu(m.conv(x)))).flatten(1))


def methods(m, x):
    return m.head(torch.relu(m.more(m.conv(x).relu())).flatten(1))


def keywords(m, x):
    return m.head(torch.relu(input=m.more(F.relu(input=m.conv(x), inplace=False))).flatten(1))


def in_place(m, x):
    h = m.conv(x)
    h.relu_()
    h = m.more(h) + h
    F.relu(h, inplace=True)
    return m.head(h.flatten(1))


def in_place_module(m, x):
    h = m.conv(x)
    m.inplace(h)
    return m.head((F.relu_(m.more(h)) + h).flatten(1))


def size_of_the_input(m, x):
    return m.head(F.relu(m.more(F.relu(m.conv(x)))).view(x.size(0), -1))


def shape_of_the_input(m, x):
    n, _, height, width = x.shape
    return m.head(F.relu(m.more(F.relu(m.conv(x)))).reshape(n, 3 * height * width))


def size_of_the_activation(m, x):
    h = F.relu(m.more(F.relu(m.conv(x))))
    return m.head(h.view(h.size(0), -1))


def skip_from_the_input(m, x):
    return m.head((F.relu(m.more(F.relu(m.conv(x)))) + x.sum(1, keepdim=True)).flatten(1))


def skip_from_the_prefix(m, x):
    c = m.conv(x)
    return m.head(F.relu(m.more(F.relu(c)) + c).flatten(1))


def static_and_temporal(m, x):
    return m.wide(torch.cat([x, F.relu(m.conv(x))], dim=1).flatten(1))


def two_branches(m, x):
    return m.both(torch.cat([F.relu(m.conv(x)), F.relu(m.conv(-x))], 1).flatten(1))


def shared_module(m, x):
    return m.head(m.relu(m.more(m.relu(m.conv(x)))).flatten(1))


def dtype_of_the_input(m, x):
    return m.head(F.relu(m.more(F.relu(m.conv(x)))).to(x.dtype).to(x.device).flatten(1))


def parameter_and_added_in_place(m, x):
    h = F.relu(m.conv(x)) * m.gain
    h += m.conv(x)
    return m.head(F.relu(h).flatten(1))


def made_of_the_size(m, x):
    bias = x.new_ones(x.size(0), 3, 1, 1)
    return m.head((F.relu(m.conv(x)) + bias).flatten(1))


def scaled_by_the_batch(m, x):
    return m.head((F.relu(m.conv(x.clamp(-3, 3))) * x.abs().max()).flatten(1))


def unused(m, x):
    h = m.conv(x)
    F.relu(h + 1)
    return m.head(F.relu(h).flatten(1))


def with_options(m, x, features: bool = False, mask=None):
    h = F.relu(m.conv(x))
    if mask is not None:
        h = h * mask
    if features:
        return h
    return m.head(h.flatten(1))


class Optional(Net):
    def forward(self, x, features: bool = False, mask=None):
        return with_options(self, x, features, mask)


WAYS = {
    functional: 2,
    methods: 2,
    keywords: 2,
    in_place: 2,
    in_place_module: 2,
    size_of_the_input: 2,
    shape_of_the_input: 2,
    size_of_the_activation: 2,
    skip_from_the_input: 2,
    skip_from_the_prefix: 2,
    static_and_temporal: 1,
    two_branches: 2,
    shared_module: 2,
    dtype_of_the_input: 2,
    parameter_and_added_in_place: 2,
    made_of_the_size: 1,
    unused: 1,
    with_options: 1,
    scaled_by_the_batch: 1,
}


def net_of(way):
    torch.manual_seed(0)
    return (Optional() if way is with_options else Net(way)).double().eval()


def images(n=8, size=6, channels=2, seed=0):
    return torch.randn(
        n, channels, size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def tiny(width):
    return build(
        "tinycnn",
        {"width": width},
        in_channels=1,
        num_classes=10,
        size=8,
        seed=0,
        dtype=torch.float64,
    )


def events(x, T):
    return x.expand(T, *x.shape)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_of_writing_a_relu_spikes_in_all_plans_alike_and_tends_to_the_plain_network(way):
    model, x = net_of(way), images()
    before = model(x)
    assert len(snn.sites(model)) == WAYS[way]
    outputs = {}
    for T in (3, 64):
        spiking = snn.convert(model, T, [x])
        looped = snn.convert(model, T, [x], fold=False)
        outputs[T] = spiking(x)
        assert torch.equal(looped(x), outputs[T])  # step by step
        assert torch.equal(spiking(events(x, T)), outputs[T])  # without the static prefix
        assert len(spiking.spikes()) == len(spiking.report) == WAYS[way]
        assert spiking.report["firing_rate"].between(0.01, 0.99).all()
    scale = before.abs().mean()
    assert (outputs[64] - before).abs().mean() < min(
        0.15 * scale, 0.4 * (outputs[3] - before).abs().mean()
    )
    assert torch.equal(model(x), before)  # the plain network is left as it was


def test_the_static_prefix_runs_once_an_image_unless_the_input_is_asked_for_its_size():
    x, T = images(4), 5
    for way, rows in (
        (functional, 4),
        (skip_from_the_input, 4),
        (size_of_the_input, 4 * T),
        (made_of_the_size, 4),
    ):
        spiking, seen = snn.spiking(net_of(way), T), []
        spiking.net.conv.register_forward_hook(
            lambda module, args, out, seen=seen: seen.append(len(out))
        )
        spiking(x)
        assert seen == [rows]


@pytest.mark.parametrize(("model", "count"), [("resnet18", 17), ("vgg16", 15), ("tinycnn", 3)])
def test_published_networks_have_17_and_15_sites_named_in_order(model, count):
    plain = build(model, {"width": 2}, in_channels=3, num_classes=5, size=8, seed=0)
    found = snn.sites(plain)
    assert [site.name for site in found] == [f"spike{i}" for i in range(count)]
    assert list(snn.spiking(plain, 2).spikes()) == [site.name for site in found]


@pytest.mark.slow
def test_torchvisions_resnet18_has_17_sites_in_9_modules_and_converts():
    mia_nb._torchvision.datasets()
    from torchvision.models import resnet18

    torch.manual_seed(0)
    model, x = resnet18(num_classes=5).double().eval(), images(2, 16, 3)
    with torch.no_grad():
        model.train()(images(16, 16, 3, seed=1))
    model.eval()
    assert sum(isinstance(part, nn.ReLU) for part in model.modules()) == 9
    found = snn.sites(model)
    assert len(found) == 17 and len({site.where for site in found}) == 9
    with pytest.raises(ValueError, match="maxpool: MaxPool2d of spikes is not"):
        snn.convert(model, 3, [x])
    model.maxpool = nn.AvgPool2d(3, 2, 1)
    far, near = (snn.convert(model, T, [x]) for T in (3, 32))
    looped = copy.copy(far)
    looped.fold = False
    assert torch.equal(far(x), looped(x)) and torch.equal(far(events(x, 3)), far(x))
    far, near = ((spiking(x) - model(x)).abs().mean() for spiking in (far, near))
    assert near < 0.9 * far  # the rest is the uneven timing of spikes in 17 layers


def test_a_converted_network_comes_close_to_the_plain_one_and_refitting_helps():
    torch.manual_seed(0)
    model, x = tiny(8), images(64, 8, 1)
    model.train()(x)
    model.eval()
    histograms = snn.calibrate(model, [x])
    error = {
        (T, fit): (
            (snn.convert(model, T, [x], histograms=histograms, fit_T=fit)(x) - model(x))
            .abs()
            .mean()
        )
        for T in (4, 32)
        for fit in (None, 1)
    }
    assert error[32, None] < 0.3 * error[4, None] and error[32, None] < 0.5 * error[32, 1]


def test_calibration_counts_every_site_in_eval_mode_and_leaves_modes_as_found():
    model, x = tiny(2), images(16, 8, 1)
    model.train()
    model.features[1].eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    histograms = snn.calibrate(model, x.split(5))
    spiking = snn.convert(model, 2, x.split(5))
    assert model.training and not model.features[1].training and model.features[4].training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(part.training for part in spiking.modules())
    model.eval()
    for i, histogram in zip((2, 5, 8), histograms, strict=True):
        h = model.features[: i + 1](x)
        assert int(histogram.counts.sum()) == int((h > 0).sum())
        counts = torch.histc(h[h > 0], 2048, 0, float(histogram.range))
        assert torch.equal(histogram.counts[0], counts.long())
        exact, _ = fit_threshold(h[h > 0].detach().numpy(), 2)
        assert float(spiking.report["theta"][i // 3]) == pytest.approx(exact, rel=0.05)
    net, _ = trace(model, Spike)
    net.train()
    net.get_submodule("features.1").eval()
    with pytest.raises(RuntimeError):
        snn.calibrate(net, [x, x[:, :, :, None]])
    assert (
        net.training
        and not net.get_submodule("features.1").training
        and net.get_submodule("features.4").training
    )


def test_a_network_without_parameters_converts_in_the_dtype_of_its_images():
    x = images()
    plain = nn.Sequential(nn.AvgPool2d(2), nn.ReLU(), nn.Flatten())
    error = [(snn.convert(plain, T, [x])(x) - plain(x)).abs().mean() for T in (4, 64)]
    assert error[1] < 0.2 * error[0] and snn.convert(plain, 4, [x])(x).dtype == torch.float64
    assert (
        snn.convert(plain, 4, [x.float()], histograms=snn.calibrate(plain, [x]))(x.float()).dtype
        == torch.float32
    )


def test_per_channel_thresholds_are_those_of_the_channels_alone():
    model, x = net_of(functional), images(32)
    spiking = snn.convert(model, 2, [x], per_channel=True)
    h = torch.relu(model.conv(x))
    for c in range(3):
        exact, _ = fit_threshold(h[:, c].detach().numpy().ravel(), 2)
        assert float(spiking.net.spike0.theta[c]) == pytest.approx(exact, rel=0.02)
    assert torch.equal(spiking.net.spike0.u0, spiking.net.spike0.theta / 2)
    assert spiking.report["channels"].tolist() == [3, 3]


def test_dead_sites_and_channels_never_fire():
    model, x = net_of(functional), images()
    with torch.no_grad():
        model.conv.bias[1] = -100.0
    spiking = snn.convert(model, 4, [x], per_channel=True)
    assert spiking.net.spike0.theta[1] == DEAD and spiking.report["dead"].tolist() == [1, 0]
    assert np.isfinite(spiking.report["theta"]).all()
    with torch.no_grad():
        model.conv.bias[:] = -100.0
    for per_channel in (False, True):
        spiking = snn.convert(model, 4, [x], per_channel=per_channel)
        assert (
            spiking.report["dead"][0] == (3 if per_channel else 1)
            and spiking.report["firing_rate"][0] == 0
        )
        torch.testing.assert_close(spiking(x).std(0), torch.zeros(4, dtype=torch.float64))


def test_the_report_has_the_measured_numbers_of_every_site():
    model, x = net_of(functional), images(32)
    spiking = snn.convert(model, 4, x.split(10))
    a = torch.relu(model.conv(x)).detach().numpy().ravel()
    row = spiking.report.iloc[0]
    theta = float(spiking.net.spike0.theta)
    assert row["theta"] == pytest.approx(theta) and row["u0"] == pytest.approx(theta / 2)
    assert row["expected_error"] == pytest.approx(cost(a[a > 0], theta, 4), rel=0.01)
    assert row["clipped_mass"] == pytest.approx((a[a > 0] > theta).mean(), abs=0.01)
    assert row["firing_rate"] == pytest.approx((quantised(a, theta, 4) / theta).mean(), abs=1e-6)
    assert list(row[["site", "kind"]]) == ["spike0", "relu"]


def test_average_pooling_takes_the_place_of_max_pooling_where_asked():
    plain = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
    ).double()
    pooled = snn.convert(plain, 3, [images()], pool="avg")
    assert isinstance(pooled.net.get_submodule("2"), nn.AvgPool2d) and isinstance(
        plain[2], nn.MaxPool2d
    )
    with pytest.raises(ValueError, match=r'take average pooling, with pool="avg" in snn\.convert'):
        snn.convert(plain, 3, [images()])
    assert isinstance(snn.spiking(plain, 3).net.get_submodule("2"), nn.MaxPool2d)


# --------------------------------------------------------------------------------------------------
# refusals


def dropped(m, x):
    return m.head(F.dropout(F.relu(m.conv(x)), 0.5, m.training).flatten(1))


def only_in_training(m, x):
    h = F.relu(m.conv(x))
    if m.training:
        h = h + 1
    return m.head(h.flatten(1))


def by_value(m, x):
    return m.head((F.relu(m.conv(x)) if x.sum() > 0 else m.conv(x)).flatten(1))


def gelu(m, x):
    return m.head(F.gelu(F.relu(m.conv(x))).flatten(1))


def sigmoid_method(m, x):
    return m.head(m.conv(x).sigmoid().relu().flatten(1))


def clamped(m, x):
    return m.head(m.more(F.relu(m.conv(x))).clamp(min=0).flatten(1))


def of_a_weight(m, x):
    return m.head((F.relu(m.conv(x)) * F.relu(m.gain)).flatten(1))


def in_place_on_a_view(m, x):
    h = m.conv(x)
    F.relu_(h.view(h.size(0), -1))
    return m.head(F.relu(m.more(h)).flatten(1))


def no_relu(m, x):
    return m.head(m.conv(x).flatten(1))


def unread(m, x):
    F.relu(m.conv(x))
    return m.head(m.conv(x).flatten(1))


def already(m, x):
    return m.head(m.spike(m.conv(x)).flatten(1))


def mixed(m, x):
    return m.head(F.relu(m.more(m.spike(m.conv(x)))).flatten(1))


def sequential(*layers):
    return nn.Sequential(nn.Conv2d(2, 3, 3), *layers, nn.Flatten(), nn.LazyLinear(4))


class TwoInputs(Net):
    def forward(self, x, y):
        return functional(self, x + y)


def leaky():
    import snntorch

    return nn.Sequential(
        nn.Flatten(), nn.Linear(72, 3), nn.ReLU(), snntorch.Leaky(0.9, init_hidden=True)
    )


def with_spike(how):
    model = Net(how)
    model.spike = Spike()
    return model


REFUSED = {
    "ReLU6": (sequential(nn.ReLU6()), "1: ReLU6 has no spiking form"),
    "nested GELU": (
        sequential(nn.ReLU(), nn.Sequential(nn.GELU())),
        "2.0: GELU has no spiking form",
    ),
    "F.gelu": (Net(gelu), "gelu: gelu has no spiking form"),
    "sigmoid": (Net(sigmoid_method), "sigmoid has no spiking form"),
    "hidden activations": (
        nn.Sequential(nn.Flatten(2), nn.ReLU(), nn.TransformerEncoderLayer(36, 2, 8)),
        "2: TransformerEncoder",
    ),
    "control flow": (Net(by_value), "cannot be traced (symbolically traced variables"),
    "dropout": (Net(dropped), "dropout differs between training and evaluation"),
    "training flag": (Net(only_in_training), "differs between training and evaluation"),
    "clamp": (Net(clamped), "clamp: clamp has no spiking form"),
    "weight": (Net(of_a_weight), "spike1: a ReLU of a weight or a constant cannot spike"),
    "view": (Net(in_place_on_a_view), "relu_ changes in place what is then read by another name"),
    "no ReLU": (Net(no_relu), "Net has no ReLU"),
    "unread ReLU": (Net(unread), "the output of Net does not depend on any spike"),
    "already spiking": (with_spike(already), "spike spikes already"),
    "mixed": (with_spike(mixed), "spike spikes already"),
    "snntorch": (
        leaky(),
        "3 is a neuron of snntorch: this network spikes already; wrap it in Stepwise",
    ),
    "two inputs": (TwoInputs(), "takes 2 inputs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_converted_is_refused_by_name_with_the_way_out(case):
    model, says = REFUSED[case]
    training = model.training
    for call in (
        lambda: snn.sites(model),
        lambda: snn.convert(model, 2, [images()]),
        lambda: snn.spiking(model, 2),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert says in str(error.value) and "\n" not in str(error.value)
        assert (
            "Stepwise" in str(error.value)
            or "nn.Dropout module" in str(error.value)
            or case in ("unread ReLU", "two inputs")
        )
    assert model.training == training


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: snn.SNN(with_spike(mixed), 2), "is a relu beside Spike modules"),
        (lambda: snn.convert(Net(functional).double(), 2, []), "calibration got no batches"),
        (
            lambda: snn.convert(Net(functional).double(), 2, [images()], pool="max"),
            "pool='max' is not one of keep, avg",
        ),
        (
            lambda: snn.convert(Net(functional).double(), 2, [images()], histograms=[]),
            "histograms of 0 sites came; this model has 2",
        ),
        (
            lambda: snn.convert(Net(functional).double(), 2, [images()], readout="max"),
            "readout='max' is not one of mean",
        ),
        (lambda: snn.spiking(Net(functional), 0), "timesteps=0"),
        (
            lambda: snn.spiking(Net(functional), 2.5),
            "timesteps=2.5: wanted a whole number from 1 up",
        ),
        (lambda: snn.convert(Net(functional).double(), 2.5, [images()]), "timesteps=2.5"),
        (lambda: snn.convert(Net(functional).double(), 2, [images()], fit_T=0), "T=0, p=1"),
        (lambda: snn.convert(Net(functional).double(), 2, [images()], p=3), "T=2, p=3"),
        (
            lambda: snn.convert(Net(functional), 2, [images().byte()]),
            "a batch is a uint8 tensor; wanted normalised images",
        ),
        (
            lambda: snn.convert(Net(functional), 2, [(images(), 0)]),
            "a batch is a tuple; wanted normalised images",
        ),
        (
            lambda: snn.calibrate(Net(functional), [[images()]]),
            "a batch is a list; wanted normalised images",
        ),
        (
            lambda: snn.firing_rates(snn.spiking(Net(functional), 2), [(images(), 0)]),
            "a batch is a tuple",
        ),
        (lambda: Spike(beta=0), "beta=0: wanted soft or hard, and 0 < beta <= 1"),
        (lambda: Spike(beta=1.1), "beta=1.1"),
        (lambda: Spike(reset="none"), "reset='none'"),
        (
            lambda: snn.spiking(Net(functional), 2, theta=0),
            "theta=0: a firing threshold is above 0",
        ),
        (
            lambda: snn.spiking(Net(functional), 2, encode="poisson"),
            "encode='poisson' is not one of constant",
        ),
    ],
)
def test_wrong_arguments_are_named(call, says):
    with pytest.raises(ValueError) as error:
        call()
    assert says in str(error.value) and "\n" not in str(error.value)
