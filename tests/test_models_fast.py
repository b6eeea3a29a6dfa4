"""The fast network: its whitening, its start, every image size; Muon; what a training step shows of an image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mia_nb as mia
from mia_nb import data
from mia_nb.models import build, fast
from mia_nb.models.snn import convert
from mia_nb.training import batches, loop, plans, schedules, trials
from mia_nb.training.muon import COEFFICIENTS, STEPS, Muon, orthogonalised
from mia_nb.training.placing import complete, membership

RECIPE = {
    "model": "fast",
    "model_args": {"width": 4},
    "num_models": 4,
    "epochs": 2,
    "batch": 50,
    "lr": 0.1,
    "optimizer": "muon",
    "schedule": "linear",
    "augment": "translate+alternate",
}


@pytest.fixture(scope="module")
def digits():
    return mia.load("digits", limit=200)


def made(size=32, channels=3, seed=0, **options):
    return build(
        "fast", {"width": 4, **options}, in_channels=channels, num_classes=7, size=size, seed=seed
    )


def plan(images, **changes):
    recipe = complete(mia.Recipe(**RECIPE | changes))
    return plans.plan_of(recipe, images, *membership(recipe, images, None, None))


def test_whitened_patches_are_uncorrelated_with_unit_variance():
    draw = torch.Generator().manual_seed(0)
    smooth = F.avg_pool2d(torch.randn(200, 3, 20, 20, generator=draw), 3, 1)
    net = made(size=18)
    fast.whiten(net, smooth)
    patches = F.conv2d(smooth, net.first[0].weight).movedim(1, -1).flatten(0, 2).double()
    assert torch.equal(patches[:, :12], -patches[:, 12:])
    second_moments = patches[:, :12].T @ patches[:, :12] / len(patches)
    values = torch.linalg.eigvalsh(second_moments)
    off_diagonal = second_moments - torch.diag(second_moments.diagonal())
    assert off_diagonal.abs().max() < 1e-4
    # a direction of variance v keeps v / (v + floor) of its variance
    assert values.max() < 1 and values.min() > 0.9


def test_a_convolution_begins_by_passing_its_channels_through():
    x = torch.randn(2, 5, 6, 6)
    assert torch.equal(fast.convolution(5, 8)(x)[:, :5], x)


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (1, 28), (3, 32), (3, 64), (2, (9, 40))])
@pytest.mark.parametrize("pooling", fast.POOLINGS)
def test_it_takes_images_from_8x8_grey_upwards(channels, size, pooling):
    height, width = (size, size) if isinstance(size, int) else size
    net = made(size, channels, pooling=pooling)
    assert net(torch.randn(2, channels, height, width)).shape == (2, 7)


@pytest.mark.parametrize("option", ["activation", "pooling", "first_layer"])
def test_an_unknown_word_is_refused_with_the_known_ones(option):
    with pytest.raises(ValueError, match=f"{option}='none' is not one of "):
        made(**{option: "none"})


def test_each_model_whitens_patches_of_its_own_members_alone(digits):
    whole = plan(digits)
    member = whole.member.copy()
    first, second = (loop.Group(whole, [m]).module.first[0].weight for m in (0, 1))
    assert not torch.equal(first, second)
    # other non-members, the same layer
    other = digits.x.clone()
    other[~torch.from_numpy(member[0])] = 0
    changed = whole._replace(images=digits._replace(x=other))
    assert torch.equal(loop.Group(changed, [0]).module.first[0].weight, first)


def test_it_learns_digits_and_is_resumed_to_the_same_bits(digits):
    whole = plan(digits, epochs=12, model_args={"width": 16})
    group = loop.Group(whole, [0])
    history: list[list[float]] = []
    for epoch in range(12):
        if epoch == 6:
            state = {name: tensor.clone() for name, tensor in group.state().items()}
        history.append([float(group.epoch(epoch, history)[1].mean())])
    assert history[-1][0] < 0.8 * history[0][0]
    resumed = loop.Group(whole, [0])
    resumed.load(state)
    for epoch in range(6, 12):
        resumed.epoch(epoch, history[:epoch])
    for name, tensor in group.weights(0).items():
        assert torch.equal(tensor, resumed.weights(0)[name]), name


def test_fixed_weights_stay_as_they_were(digits):
    group = loop.Group(plan(digits), [0])
    before = {k: v.clone() for k, v in group.module.state_dict().items()}
    group.epoch(0, [])
    fixed = {name for name, p in group.module.named_parameters() if not p.requires_grad}
    assert fixed == {"first.0.weight"} | {
        f"groups.{g}.{place}.weight"
        for g, places in enumerate(norms(group.module))
        for place in places
    }
    for name, tensor in group.module.state_dict().items():
        if name in fixed:
            assert torch.equal(tensor, before[name])


def norms(module):
    return [
        [place for place, layer in enumerate(group) if isinstance(layer, nn.BatchNorm2d)]
        for group in module.groups
    ]


def test_stacked_models_take_the_steps_of_single_ones(digits):
    assert trials.why_not_stacked(plan(digits)) is None


def test_it_converts_to_a_spiking_network_that_approaches_it(digits):
    group = loop.Group(plan(digits, epochs=4), [0])
    for epoch in range(4):
        group.epoch(epoch, [])
    net = group.module.eval()
    x = batches.plain_images(group.plan, torch.arange(100))
    errors = []
    for timesteps in (4, 256):
        converted = convert(net, timesteps, [x])
        with torch.no_grad():
            errors.append(float((converted(x) - net(x)).abs().mean() / net(x).abs().mean()))
    assert errors[1] < 0.1 < errors[0]


def test_dp_sgd_refuses_the_whitened_layer_and_takes_a_learned_one(digits, tmp_path):
    private = {"defense": "dp_sgd", "epochs": 1, "num_models": 2}
    with pytest.raises(ValueError, match="first_layer"):
        mia.train(mia.Recipe(**RECIPE | private), digits, root=tmp_path, progress=False)
    args = {"width": 4, "first_layer": "learned"}
    recipe = mia.Recipe(**RECIPE | private | {"model_args": args})
    assert mia.train(recipe, digits, root=tmp_path, progress=False).member.shape == (2, 200)


def test_a_spiking_network_trained_directly_is_whitened_too(digits, tmp_path):
    args = {"base": "fast", "base_args": {"width": 4}, "timesteps": 2}
    recipe = mia.Recipe(**RECIPE | {"model": "snn", "model_args": args, "num_models": 2})
    pool = mia.train(recipe, digits, root=tmp_path, progress=False)
    layer = fast.whitened(pool.model(0))[0]
    half = len(layer.weight) // 2
    assert torch.equal(layer.weight[:half], -layer.weight[half:])


@pytest.mark.parametrize("shape", [(6, 20), (20, 6), (3, 5, 5)])
def test_the_iteration_changes_singular_values_alone_and_brings_them_near_one(shape):
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(shape, generator=draw, dtype=torch.float64)
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    s = s / (s.square().sum(-1, keepdim=True).sqrt())
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        s = a * s + b * s**3 + c * s**5
    expected = u * s[..., None, :] @ vh
    torch.testing.assert_close(orthogonalised(matrix), expected, rtol=1e-5, atol=1e-5)
    assert shape[-1] == shape[-2] or ((s > 0.3).all() and (s < 1.3).all())


def test_matrices_vectors_and_numbers_take_the_steps_of_sgd():
    draw = torch.Generator().manual_seed(0)
    options = {
        "momentum": 0.6,
        "matrix_lr": 0.5,
        "vector_lr": 0.2,
        "sgd_momentum": 0.8,
        "decay": 0.01,
    }
    for shape, rate in (((3, 4), 0.5), ((4,), 0.2), ((), 0.2)):
        ours = nn.Parameter(torch.randn(shape, generator=draw))
        theirs = nn.Parameter(ours.detach().clone())
        muon = Muon([ours], lr=0.1, **options)
        sgd = torch.optim.SGD(
            [theirs], lr=rate, momentum=0.8, nesterov=True, weight_decay=0.01 / rate
        )
        for step in range(4):
            gradient = torch.randn(shape, generator=draw)
            fraction = 1 - step / 4
            muon.param_groups[0]["lr"], sgd.param_groups[0]["lr"] = 0.1 * fraction, rate * fraction
            ours.grad, theirs.grad = gradient.clone(), gradient.clone()
            muon.step()
            sgd.step()
            torch.testing.assert_close(ours, theirs)


def test_filters_keep_their_norm_and_move_by_an_orthogonal_step():
    draw = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(8, 4, 3, 3, generator=draw))
    weight.data *= 8**0.5 / weight.data.norm()
    before = weight.detach().clone()
    weight.grad = torch.randn(weight.shape, generator=draw)
    Muon([weight], lr=0.1, **loop.OPTIMIZERS["muon"][1]).step()
    moved = torch.linalg.svdvals((weight.detach() - before).flatten(1)) / 0.1
    assert moved.min() > 0.3 and moved.max() < 1.3


@pytest.mark.parametrize("name", ["momentum", "sgd_momentum", "matrix_lr", "vector_lr", "decay"])
def test_options_of_muon_that_mean_nothing_are_refused_by_name(name, digits, tmp_path):
    recipe = mia.Recipe(**RECIPE | {"optimizer_args": {name: -1.0}})
    with pytest.raises(ValueError, match=name):
        mia.train(recipe, digits, root=tmp_path, progress=False)


def test_alternating_flips_show_every_image_mirrored_in_every_other_epoch(digits):
    group = loop.Group(plan(digits, augment="alternate"), [1])
    seen = []
    for epoch in range(4):
        order, _ = group.order(epoch)
        draws = batches.augmentations(group.plan, group.ids, epoch, order.shape[1])
        batches.alternate(group.plan, group.ids, draws, order, epoch)
        flips = torch.zeros(len(digits.y), dtype=torch.int64) - 1
        flips[order[0]] = draws["flip"][0].long()
        seen.append(flips)
    shown_always = torch.stack(seen).min(0).values >= 0
    flips = torch.stack(seen)[:, shown_always]
    assert flips.shape[1] > 20
    assert (flips[0] != flips[1]).all() and torch.equal(flips[0], flips[2])
    assert 0.2 < flips[0].float().mean() < 0.8


def test_a_translated_image_is_that_of_reflection_padding():
    x = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)
    draws = data.augment_draws("translate", 6, 32, 32, torch.Generator().manual_seed(1))
    assert draws["move"].abs().max() <= 2
    padded = F.pad(x.float(), (2, 2, 2, 2), mode="reflect")
    for image, wide, (down, right) in zip(
        data.apply_augment(x, draws), padded, draws["move"] + 2, strict=True
    ):
        assert torch.equal(image.float(), wide[:, down : down + 32, right : right + 32])


@pytest.mark.parametrize("ops", ["crop+translate", "flip+alternate"])
def test_two_words_for_one_thing_are_refused(ops):
    with pytest.raises(ValueError, match="wanted one of"):
        data.augment_draws(ops, 2, 8, 8, torch.Generator())


def test_the_linear_schedule_ends_at_zero():
    recipe = mia.Recipe(**RECIPE)
    rates = [schedules.learning_rate(recipe, t, []) for t in np.linspace(0, 1, 5)]
    np.testing.assert_allclose(rates, 0.1 * np.array([1, 0.75, 0.5, 0.25, 0]))
