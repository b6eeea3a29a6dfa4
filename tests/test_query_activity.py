"""What spiking networks do besides answering: layers and operations against slow twins, and the
query that keeps them.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mia_nb import data, query, querying, store, training
from mia_nb.models import recording, snn
from mia_nb.types import Recipe

SMALL = {"num_models": 2, "epochs": 1, "batch": 16, "population": 10, "dtype": "float64"}
SPIKING = {"base": "tinycnn", "base_args": {"width": 4}, "timesteps": 3, "theta": 0.3}
QUIET = {"progress": False, "workers": 1, "strategy": "plain"}


@pytest.fixture(scope="module")
def images():
    return data.load("synthetic:classes=4,n=60,size=8,channels=1,seed=1")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("pools")


@pytest.fixture(scope="module")
def networks(images, root):
    recipe = Recipe(model="tinycnn", model_args={"width": 4}, **SMALL)
    return training.train_pool(recipe, images, root=root, **QUIET)


@pytest.fixture(scope="module")
def pools(images, root, networks):
    """One whose neurons lose the threshold when they spike, and one whose neurons return to 0."""
    direct = Recipe(model="snn", model_args=SPIKING, **SMALL)
    return {
        "soft": training.convert_pool(networks, images, 3, progress=False),
        "hard": training.train_pool(direct, images, root=root, **QUIET),
    }


def shown(images, count=5):
    return data.normalise(images.x[:count], images.mean, images.std, torch.float64)


def by_hand(module, image):
    """(4 * sites,) of one image from its recorded spikes and potentials, neuron by neuron."""
    columns = []
    for site, spike in module.spikes().items():
        spk, before, theta = snn.record(module, image[None], site)
        steps, neurons = spk.shape
        first = [next((t for t in range(steps) if spk[t, n]), steps) for n in range(neurons)]
        left = before[-1] - theta * spk[-1]
        if spike.options["reset"] == "hard":
            left = np.where(spk[-1], 0, before[-1])
        columns += [spk.sum() / spk.size, np.mean(first)]
        columns += [np.mean(np.abs(left) / theta), np.mean(left / theta)]
    return columns


@pytest.mark.parametrize("reset", ["soft", "hard"])
def test_activity_is_what_its_recording_says_neuron_by_neuron(reset, pools, images):
    module = pools[reset].model(0).eval()
    assert all(spike.options["reset"] == reset for spike in module.spikes().values())
    x = shown(images)
    steps, activity = recording.activity(module, x)
    assert len(recording.activity_names(module)) == activity.shape[1] == 1 + 4 * 3
    with torch.inference_mode():
        torch.testing.assert_close(steps, module(x, per_step=True), rtol=1e-9, atol=1e-9)
    expected = [by_hand(module, image) for image in x]
    assert np.std(expected, axis=0).min() > 0  # nothing that is the same everywhere
    np.testing.assert_allclose(activity[:, 1:].numpy(), expected, rtol=1e-5, atol=1e-6)


def connections(layer, x):
    """Active connections of a convolution of one image (C, H, W), counted one by one."""
    (kh, kw), (sh, sw), (ph, pw) = layer.kernel_size, layer.stride, layer.padding
    height, width = x.shape[1:]
    of_group = layer.in_channels // layer.groups
    count = 0
    for out in range(layer.out_channels):
        group = out // (layer.out_channels // layer.groups)
        for top in range(-ph, height + ph - kh + 1, sh):
            for left in range(-pw, width + pw - kw + 1, sw):
                for c in range(of_group):
                    for i in range(max(top, 0), min(top + kh, height)):
                        for j in range(max(left, 0), min(left + kw, width)):
                            count += bool(x[group * of_group + c, i, j] != 0)
    return count


@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 2)])
def test_operations_are_counted_as_one_counts_connections(stride, groups):
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 6, (3, 2), stride=stride, padding=(1, 0), groups=groups)
    x = torch.rand(3, 4, 5, 6).bernoulli() * torch.randn(3, 4, 5, 6)
    expected = [connections(layer, image) for image in x]
    assert recording._connections(layer, x.ne(0).float()).tolist() == expected
    full = recording._connections(layer, torch.ones_like(x))
    assert full.tolist() == [connections(layer, image) for image in torch.ones_like(x)]
    linear = nn.Linear(7, 3)
    row = torch.tensor([[0.0, 1, 0, 2, 0, 0, -1]])
    assert recording._connections(linear, row.ne(0).float()).tolist() == [9]


def test_before_the_first_spikes_everything_multiplies_and_after_it_only_what_spikes_adds(
    pools, images
):
    module = pools["soft"].model(0).eval()
    x = shown(images)
    inputs = {}
    layers = {n: part for n, part in module.named_modules() if isinstance(part, recording.COUNTED)}
    for name, part in layers.items():
        part.register_forward_pre_hook(lambda _, args, name=name: inputs.setdefault(name, args[0]))
    with torch.inference_mode(), recording.Operations(module, len(x)) as done:
        module(x)
    (first, stem), *others = layers.items()
    # an image that is shown at each of the three steps enters once
    assert len(inputs[first]) == len(x)
    assert done.multiply_accumulates == connections(stem, torch.ones_like(x[0]))
    per_sample = torch.zeros(len(x))
    for name, part in others:
        rows = inputs[name].ne(0)
        if isinstance(part, nn.Linear):
            counts = rows.sum(1) * part.out_features
        else:
            counts = torch.tensor([connections(part, row) for row in rows])
        per_sample += counts.unflatten(0, (3, -1)).sum(0)
    assert done.accumulates.tolist() == per_sample.tolist()


def test_operations_of_a_pool_are_means_over_images_with_their_energy(pools, networks, images):
    ordinary = querying.operations(networks, images, limit=20)
    assert ordinary["accumulates"].tolist() == [0, 0]
    spiking = querying.operations(pools["soft"], images, models=[1], limit=20)
    module = pools["soft"].model(1).eval()
    audited = np.flatnonzero(~networks.population)[:20]
    x = data.normalise(images.x[audited], images.mean, images.std, torch.float64)
    _, activity = recording.activity(module, x)
    row = spiking.iloc[0]
    assert row["model"] == 1
    assert row["accumulates"] == pytest.approx(float(activity[:, 0].double().mean()), rel=1e-6)
    assert 0 < row["multiply_accumulates"] < ordinary["multiply_accumulates"][0]
    energy = 4.6 * row["multiply_accumulates"] + 0.9 * row["accumulates"]
    assert row["energy_nj"] == pytest.approx(energy / 1000)


@pytest.mark.parametrize("reset", ["soft", "hard"])
def test_a_query_keeps_answers_and_activity_side_by_side(reset, pools, images):
    pool = pools[reset]
    signals = query(pool, images, activity=True, progress=False)
    plain = query(pool, images, progress=False)
    np.testing.assert_array_equal(signals.margin, plain.margin)
    assert plain.activity is None and "activity" not in plain.info
    names = signals.info["activity"]
    assert names[:3] == ["answer 1", "answer 2", "accumulates"]
    assert signals.activity.shape == (2, 60, len(names))
    steps = query(pool, images, per_step=True, progress=False).margin
    np.testing.assert_allclose(
        signals.activity[:, :, :2], steps[:, :2].swapaxes(1, 2), rtol=1e-5, atol=1e-5
    )
    _, activity = recording.activity(pool.model(1).eval(), shown(images, 60))
    np.testing.assert_allclose(signals.activity[1, :, 2:], activity, rtol=1e-5, atol=1e-5)
    again = query(pool, images, activity=True, progress=False)  # from the disk
    np.testing.assert_array_equal(again.activity, signals.activity)
    assert again.info["activity"] == names


def test_a_query_that_was_killed_goes_on_with_its_activity(pools, images, monkeypatch):
    pool = pools["hard"]
    asked = {"activity": True, "limit": 20, "progress": False}
    whole = query(pool, images, **asked)
    keep = store.write_partial
    written = []

    def killed(folder, model, signals):
        if written:
            raise KeyboardInterrupt
        keep(folder, model, signals)
        written.append(model)

    monkeypatch.setattr(store, "write_partial", killed)
    with pytest.raises(KeyboardInterrupt):
        query(pool, images, force=True, **asked)
    monkeypatch.undo()
    resumed = query(pool, images, **asked)
    np.testing.assert_array_equal(resumed.activity, whole.activity)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"input_dropout": 0.1, "queries": 2}, "activity=True with dropout"),
        ({"per_step": True}, "activity=True with steps"),
        ({"output": "memguard"}, "activity=True with memguard"),
    ],
)
def test_an_attacker_at_the_device_sees_one_plain_query(options, reason, pools, images):
    with pytest.raises(ValueError, match=reason):
        query(pools["soft"], images, activity=True, progress=False, **options)


def test_what_does_not_spike_has_no_activity(networks, images):
    with pytest.raises(ValueError, match="layers of a spiking network"):
        query(networks, images, activity=True, progress=False)
