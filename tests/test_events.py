"""Pools of frames of events: networks see the frames in their order, whatever trains them; queries
mask them; what shows images one at every step is refused.
"""

import numpy as np
import pytest
import torch

from mia_nb import data, models, query, training
from mia_nb.querying import BLOCK
from mia_nb.training.loop import mix
from mia_nb.types import Recipe

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
