import numpy as np
import pytest
import safetensors.torch
import torch

from mia_nb import data, query, querying, studies, training
from mia_nb.models import snn
from mia_nb.types import Recipe, Signals

ARGS = {"base": "tinycnn", "base_args": {"width": 4}, "timesteps": 3, "theta": 0.3}
DIRECT = Recipe(
    model="snn", model_args=ARGS, num_models=2, epochs=1, batch=16, lr=0.05, dtype="float64"
)


@pytest.fixture(scope="module")
def images():
    return data.load("synthetic:classes=4,n=300,size=8,channels=1,seed=1")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("pools")


@pytest.fixture(scope="module")
def pool(images, root):
    return train(images, root)


def train(images, root, **args):
    recipe = Recipe(**{**DIRECT.to_json(), "model_args": {**ARGS, **args}})
    return training.train_pool(
        recipe, images, root=root, progress=False, workers=1, strategy="plain"
    )


@pytest.fixture(scope="module")
def plain(images, root):
    recipe = Recipe(num_models=2, epochs=1, batch=32, model_args={"width": 4})
    return training.train_pool(recipe, images, root=root, progress=False, workers=1)


def ask(pool, images, **options):
    return query(pool, images, progress=False, **options)


def test_signals_of_a_pool_hold_its_recipe_which_says_how_it_came_to_spike(pool, plain, images):
    converted = training.convert_pool(plain, images, 2, progress=False)
    for training_kind, one, timesteps in (
        ("direct", pool, pool.recipe.model_args["timesteps"]),
        ("convert", converted, 2),
        ("", plain, 0),
    ):
        info = ask(one, images).info
        assert Recipe(**info["recipe"]) == one.recipe
        found = studies.setting(info, "rmia")
        assert (found.training, found.timesteps) == (training_kind, timesteps)


def instant(pool, images, model):
    x = data.normalise(images.x, images.mean, images.std, torch.float64)
    with torch.no_grad():
        return pool.model(model)(x, per_step=True).numpy()


@pytest.mark.parametrize("readout", ["mean", "sum", "last"])
def test_the_last_time_step_is_the_plain_answer(images, root, readout):
    pool = train(images, root, readout=readout)
    steps, once = ask(pool, images, per_step=True), ask(pool, images)
    assert steps.query_kind == "steps" and steps.margin.shape == (2, 3, len(images.y))
    np.testing.assert_allclose(steps.margin[:, -1:], once.margin, rtol=1e-12, atol=1e-12)
    assert np.array_equal(steps.correct[:, -1:], once.correct)


def test_each_time_step_is_the_mean_of_the_logits_so_far_or_the_step_alone(pool, images):
    logits = np.stack([instant(pool, images, m) for m in range(2)])
    so_far = np.cumsum(logits, 1) / np.arange(1, 4)[:, None, None]
    for per_step, expected in ((True, so_far), ("cumulative", so_far), ("instant", logits)):
        margin = Signals.from_logits(expected, images.y.numpy()).margin
        np.testing.assert_allclose(
            ask(pool, images, per_step=per_step).margin, margin, rtol=1e-11, atol=1e-11
        )


def test_one_time_step_is_the_plain_query(images, root):
    pool = train(images, root, timesteps=1)
    assert np.array_equal(ask(pool, images, per_step=True).margin, ask(pool, images).margin)
    dropped = [
        ask(pool, images, input_dropout=0.2, queries=2, mask_scope=scope).margin
        for scope in ("query", "step")
    ]
    np.testing.assert_allclose(*dropped, rtol=1e-12, atol=1e-12)


def test_masks_per_step_differ_from_masks_per_query_and_equal_events_masked_by_hand(pool, images):
    options = {"input_dropout": 0.2, "queries": 2}
    once, step = (ask(pool, images, mask_scope=scope, **options) for scope in ("query", "step"))
    assert (
        not np.allclose(once.margin, step.margin)
        and step.query_kind == "dropout"
        and step.info["mask_scope"] == "step"
    )
    x = data.normalise(images.x, images.mean, images.std, torch.float64)
    masks = querying.network._masks(x, 0.2, [256, 44], [(0, 1, 0), (0, 1, 1)], 3)
    assert masks.shape == (3, *x.shape) and not torch.equal(masks[0], masks[1])
    with torch.no_grad():
        by_hand = pool.model(1)(x * masks).numpy()
    np.testing.assert_allclose(
        step.margin[1, 1], Signals.from_logits(by_hand[None], images.y).margin[0, 0], rtol=1e-10
    )


def test_without_dropout_masks_per_step_are_the_plain_query(pool, images):
    assert np.array_equal(ask(pool, images, mask_scope="step").margin, ask(pool, images).margin)


@pytest.mark.parametrize(
    "options", [{}, {"per_step": True}, {"input_dropout": 0.1, "queries": 2, "mask_scope": "step"}]
)
def test_answers_depend_on_neither_batch_size_nor_repetition(pool, images, options):
    one, other = (ask(pool, images, batch=size, force=True, **options) for size in (256, 5000))
    np.testing.assert_allclose(one.margin, other.margin, rtol=1e-11, atol=1e-11)
    assert np.array_equal(ask(pool, images, batch=256, force=True, **options).margin, one.margin)


def test_scores_do_not_depend_on_the_order_of_the_images(pool, images):
    order = np.random.default_rng(0).permutation(len(images.y))
    shuffled = data.from_arrays(
        images.x.numpy()[order],
        images.y.numpy()[order],
        classes=list(images.classes),
        name="shuffled",
    )
    shuffled = shuffled._replace(mean=images.mean, std=images.std)
    margins = ask(pool, shuffled).margin
    np.testing.assert_allclose(
        margins, ask(pool, images).margin[:, :, order], rtol=1e-11, atol=1e-11
    )


def test_questions_about_time_steps_are_refused_where_they_mean_nothing(pool, plain, images, root):
    for options in ({"per_step": True}, {"mask_scope": "step", "input_dropout": 0.1}):
        with pytest.raises(ValueError, match="spiking networks; tinycnn has one output"):
            ask(plain, images, **options)
    for options in ({"queries": 3}, {"queries": 3, "noise": True}, {"input_dropout": 0.1}):
        with pytest.raises(ValueError, match="the query axis holds the time steps"):
            ask(pool, images, per_step=True, **options)
    with pytest.raises(ValueError, match="per_step='all'"):
        ask(pool, images, per_step="all")
    with pytest.raises(ValueError, match="mask_scope='steps'"):
        ask(pool, images, mask_scope="steps", input_dropout=0.1)
    with pytest.raises(ValueError, match="encode='rate'"):
        ask(train(images, root, encode="rate"), images, mask_scope="step", input_dropout=0.1)


def test_random_encodings_are_noise_that_must_be_declared(images, root):
    pool = train(images, root, encode="rate")
    for noise in (None, False):
        with pytest.raises(ValueError, match=r"random spikes.*noise=True"):
            ask(pool, images, noise=noise)
    signals = ask(pool, images, noise=True, queries=3)
    assert signals.query_kind == "noise" and (signals.margin.std(1) > 0).mean() > 0.9
    assert np.array_equal(
        ask(pool, images, noise=True, queries=2, force=True, batch=256).margin,
        signals.margin[:, :2],
    )


def test_signals_name_the_network_its_steps_and_its_readout(pool, plain, images):
    info = ask(pool, images).info
    assert (info["family"], info["base"], info["timesteps"], info["readout"]) == (
        "snn tinycnn T=3",
        "tinycnn",
        3,
        "mean",
    )
    assert (
        ask(plain, images).info["family"] == "tinycnn"
        and "timesteps" not in ask(plain, images).info
    )


def test_a_network_that_never_spikes_is_refused(images, tmp_path):
    pool = train(images, tmp_path)
    state = pool.state(1)
    state["net.spike1.theta"] = state["net.spike1.theta"] * 0 + 1e9
    pool.folder.write_bytes("model_001.safetensors", safetensors.torch.save(state))
    with pytest.raises(ValueError, match=r"model 1 .* its neurons never fire") as caught:
        ask(pool, images)
    assert "\n" not in str(caught.value)


def test_firing_rates_are_those_of_every_model_on_the_first_audited_images(images, tmp_path, plain):
    recipe = Recipe(**{**DIRECT.to_json(), "population": 100})
    pool = training.train_pool(
        recipe, images, root=tmp_path, progress=False, workers=1, strategy="plain"
    )
    table = querying.firing_rates(pool, images, limit=50)
    assert (
        list(table.columns) == ["model", "site", "rate", "silent", "always"] and len(table) == 2 * 3
    )
    x = data.normalise(
        images.x[np.flatnonzero(~pool.population)[:50]], images.mean, images.std, torch.float64
    )
    expected = snn.firing_rates(pool.model(1), [x])
    np.testing.assert_allclose(
        table[table["model"] == 1][["rate", "silent", "always"]],
        expected[["rate", "silent", "always"]],
    )
    with pytest.raises(ValueError, match="tinycnn is none"):
        querying.firing_rates(plain, images)


@pytest.mark.parametrize("encode", ["constant", "rate", "latency"])
@pytest.mark.parametrize("fold", [True, False])
def test_a_network_that_never_fires_is_refused_whatever_encodes_its_input(
    images, root, encode, fold
):
    dead = train(images, root, encode=encode, theta=1000.0, fold=fold)
    for options in ({}, {"noise": True, "queries": 3}, {"noise": False}):
        with pytest.raises(ValueError, match="its neurons never fire") as caught:
            ask(dead, images, **options)
        assert "\n" not in str(caught.value)
    # with lower thresholds it answers
    alive = train(images, root, encode=encode, theta=0.3, fold=fold)
    options = {"noise": True, "queries": 3} if encode == "rate" else {}
    assert np.isfinite(ask(alive, images, **options).margin).all()
    if encode == "rate":
        with pytest.raises(ValueError, match="declare it with noise=True"):
            ask(alive, images)


def test_masks_per_step_reach_a_network_of_which_samples_come_first(images, root):
    options = {"input_dropout": 0.2, "queries": 2, "mask_scope": "step"}
    usual, other = (train(images, root, time_axis=axis) for axis in (0, 1))
    assert np.array_equal(
        ask(usual, images, **options).margin, ask(other, images, **options).margin
    )
