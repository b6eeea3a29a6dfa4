"""Frames of events: networks see them in their order, whatever trains them; queries mask them;
audits take them; pictures sum them; what shows one image at every step refuses them.
"""

from argparse import Namespace

import numpy as np
import pandas as pd
import pytest
import torch

from mia_nb import auditing, data, models, plots, query, training
from mia_nb.cli.weights import with_outputs
from mia_nb.models import snn
from mia_nb.plots.pictures import as_pictures
from mia_nb.querying.network import BLOCK
from mia_nb.training.seeds import mix
from mia_nb.types import Recipe, Signals
from mia_nb.widgets.stored import sources

FRAMES = 3
ARGS = {"base": "tinycnn", "base_args": {"width": 4}, "timesteps": FRAMES, "theta": 0.3}
DIRECT = Recipe(
    model="snn", model_args=ARGS, num_models=2, epochs=2, batch=16, lr=0.05, dtype="float64"
)


@pytest.fixture(scope="module")
def images():
    return data.events_from_images(data.load("digits", limit=64), frames=FRAMES)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("pools")


def train(recipe, images, root, strategy="plain"):
    options = {"root": root, "progress": False, "workers": 1, "strategy": strategy}
    return training.train_pool(recipe, images, **options)


@pytest.fixture(scope="module")
def pool(images, root):
    return train(DIRECT, images, root)


def shown(images):
    return data.normalise(images.x, images.mean, images.std, torch.float64)


def as_events(x, images):
    """(B, T * C, H, W) as (T, B, C, H, W), by hand."""
    channels = images.channels
    steps = [x[:, t * channels : (t + 1) * channels] for t in range(images.frames)]
    return torch.stack(steps)


def test_a_pool_keeps_the_number_of_frames_and_its_networks_see_one_at_each_step(pool, images):
    kept = training.load_pool(pool.key, root=pool.folder.path.parent).images()
    assert kept.frames == FRAMES and kept.digest == images.digest
    module = pool.model(0)
    x = shown(images)
    events = as_events(x, images)
    with torch.no_grad():
        steps = module(x, per_step=True)
        assert torch.equal(steps, module(events, per_step=True))
        backwards = module(events.flip(0).transpose(0, 1).flatten(1, 2), per_step=True)
        assert torch.equal(backwards, module(events.flip(0), per_step=True))
    assert not torch.allclose(steps, backwards)


def test_stacked_models_learn_frames_like_models_one_by_one(pool, images, tmp_path):
    stacked = train(DIRECT, images, tmp_path, strategy="stacked")
    for model in range(2):
        weights = pool.state(model)
        for name, tensor in stacked.state(model).items():
            torch.testing.assert_close(tensor, weights[name], rtol=1e-9, atol=1e-9)


def test_an_ordinary_network_sees_all_frames_as_channels(images, root):
    recipe = Recipe(num_models=2, epochs=1, batch=32, model_args={"width": 4})
    pool = train(recipe, images, root)
    weights = next(pool.model(0).parameters())
    assert weights.shape[1] == FRAMES * images.channels
    assert query(pool, images, progress=False).margin.shape == (2, 1, 64)


def test_a_builder_that_names_frames_gets_their_number():
    size = {"in_channels": 6, "num_classes": 2, "size": 8, "seed": 0}
    module = models.build("snn", {"timesteps": 3}, frames=3, **size)
    assert module.frames == 3
    assert next(module.parameters()).shape[1] == 2


def test_a_stepwise_network_is_called_once_for_each_frame(images):
    layers = torch.nn.Flatten(), torch.nn.Linear(2 * 8 * 8, 10, dtype=torch.float64)
    net = torch.nn.Sequential(*layers)
    x = shown(images)
    with torch.no_grad():
        steps = snn.Stepwise(net, FRAMES, frames=FRAMES)(x, per_step=True)
        expected = torch.stack([net(frame) for frame in as_events(x, images)])
    assert torch.equal(steps, expected)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"timesteps": 4}, "timesteps=4: the images are 3 frames of events, one for each step"),
        ({"encode": "latency"}, "encode='latency' makes events of images"),
    ],
)
def test_networks_that_do_not_show_the_frames_are_refused_before_training(
    images, tmp_path, change, says
):
    with pytest.raises(ValueError, match=says) as error:
        train(DIRECT.replace(model_args={**ARGS, **change}), images, tmp_path)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_autoaugment_of_frames_is_refused_though_they_have_three_channels(tmp_path):
    images = data.from_arrays(np.zeros((8, 3, 1, 8, 8), int) + np.arange(8) % 2, np.arange(8) % 2)
    with pytest.raises(ValueError, match="AutoAugment changes colours, and these are 3 frames"):
        train(DIRECT.replace(batch=2, augment="autoaugment"), images, tmp_path)


def test_conversions_of_frames_are_refused(images, root):
    recipe = Recipe(num_models=2, epochs=1, batch=32, model_args={"width": 4})
    pool = train(recipe, images, root)
    for refused in (
        lambda: training.convert_pool(pool, images, FRAMES),
        lambda: training.hybrid_pools(pool, images, timesteps=2, epochs=1, progress=False),
        lambda: training.conversion_quality(pool, images),
    ):
        with pytest.raises(ValueError, match="a conversion shows one image at every step"):
            refused()


@pytest.mark.parametrize("scope", ["query", "step"])
def test_a_mask_hides_a_pixel_in_all_frames_and_a_mask_per_step_in_one(pool, images, scope):
    signals = query(
        pool, images, queries=2, input_dropout=0.3, mask_scope=scope, seed=5, progress=False
    )
    draws = FRAMES if scope == "step" else 1
    generator = torch.Generator().manual_seed(mix(5, 1, 0, "mask"))
    masks = torch.rand(draws, len(images.y), 2, 8, 8, generator=generator) > 0.3
    assert len(images.y) <= BLOCK
    with torch.no_grad():
        logits = pool.model(1)(as_events(shown(images), images) * masks)
    rows = torch.arange(len(images.y))
    others = logits.clone()
    others[rows, images.y] = -torch.inf
    margin = logits[rows, images.y] - others.logsumexp(1)
    np.testing.assert_allclose(signals.margin[1, 1], margin.numpy(), rtol=1e-9, atol=1e-9)


def test_queries_step_by_step_end_with_the_plain_answer(pool, images):
    steps = query(pool, images, per_step=True, progress=False)
    assert steps.margin.shape == (2, FRAMES, len(images.y))
    once = query(pool, images, progress=False)
    np.testing.assert_allclose(steps.margin[:, -1:], once.margin, rtol=1e-12, atol=1e-12)


def test_images_of_another_number_of_frames_are_refused(pool, images):
    with pytest.raises(ValueError, match="frames=1; the pool was trained on frames=3"):
        query(pool, images._replace(frames=1), progress=False)


def test_a_picture_of_frames_sums_them_and_shows_on_yellow_and_off_blue():
    counts = np.zeros((2, 3, 2, 4, 5), np.uint8)
    counts[0, :, 0, 1, 2] = 2  # six ON events
    counts[0, 1, 1, 3, 4] = 3  # three OFF events
    shown = as_pictures(counts.reshape(2, 6, 4, 5), frames=3)
    expected = np.zeros((2, 3, 4, 5), np.uint8)
    expected[0, :2, 1, 2] = 255
    expected[0, 2, 3, 4] = 127
    np.testing.assert_array_equal(shown, expected)
    np.testing.assert_array_equal(as_pictures(counts[0].reshape(6, 4, 5), frames=3), expected[0])
    grey = np.random.default_rng(0).integers(0, 256, (2, 1, 4, 5), dtype=np.uint8)
    assert as_pictures(grey) is grey


def test_explorers_and_sheets_show_frames_as_one_picture(pool, images, root):
    query(pool, images, progress=False)
    stored = sources(root, pool=pool.key, shipped=False)
    expected = as_pictures(images.x.numpy(), FRAMES)
    np.testing.assert_array_equal(stored[0].images[np.arange(4)], expected[:4])
    sheet = plots.images(images.x[:4], list("abcd"), pool.member[0, :4], frames=FRAMES)
    other = plots.images(expected[:4], list("abcd"), pool.member[0, :4])
    assert sheet.to_json() == other.to_json()


def test_a_finished_network_is_audited_on_frames_with_samples_first(pool, images):
    module = pool.model(0)
    x = shown(images).unflatten(1, (FRAMES, -1))
    seen = torch.from_numpy(pool.member[0])
    module.time_axis = 1
    sides = [(x[side], images.y[side]) for side in (seen, ~seen)]
    audited = auditing.audit_model(module, *sides, n_resamples=20)
    folded = [(part.flatten(1, 2), y) for part, y in sides]
    again = auditing.audit_model(module, *folded, n_resamples=20)
    pd.testing.assert_frame_equal(audited.table, again.table)


def test_weights_of_a_spiking_network_are_audited_on_an_npz_of_frames(tmp_path):
    images = data.events_from_images(data.load("digits", limit=40), frames=4)
    counts = images.x.unflatten(1, (4, 2)).numpy()
    np.savez(tmp_path / "events.npz", train_images=counts, train_labels=images.y.numpy())
    size = {"in_channels": 8, "num_classes": 10, "size": 8, "seed": 0, "frames": 4}
    module = models.build("snn", **size).eval()
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(4)  # an untrained network spikes too little to tell samples apart
    torch.save(module.state_dict(), tmp_path / "net.pt")
    np.save(tmp_path / "member.npy", np.arange(40) < 20)
    options = {"model": "snn", "weights": str(tmp_path / "net.pt"), "results": str(tmp_path)}
    options |= {"data": str(tmp_path / "events.npz"), "member": str(tmp_path / "member.npy")}
    given = with_outputs(Namespace(**options))
    outputs = auditing.read_outputs(given.logits)
    assert outputs.frames == 4
    np.testing.assert_array_equal(outputs.images, images.x.numpy())
    with torch.no_grad():
        x = data.normalise(images.x, images.mean, images.std)
        logits = module(as_events(x, images)).numpy()
    expected = Signals.from_logits(logits[None], images.y.numpy()).margin
    np.testing.assert_allclose(outputs.signals.margin, expected, rtol=1e-4, atol=1e-5)
