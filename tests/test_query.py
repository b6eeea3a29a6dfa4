import shutil

import numpy as np
import pytest
import safetensors.torch
import torch

from mia_nb import data, query, store, training
from mia_nb.querying import network, signals
from mia_nb.types import PER_MODEL, Recipe, Signals

RECIPE = Recipe(num_models=2, epochs=2, batch=16, lr=0.05, model_args={"width": 4}, dtype="float64")


@pytest.fixture(scope="module")
def images():
    return data.load("synthetic:classes=4,n=600,size=8,channels=1,seed=1")


@pytest.fixture(scope="module")
def pool(images, tmp_path_factory):
    return train(RECIPE, images, tmp_path_factory.mktemp("pool"))


def train(recipe, images, root, **change):
    recipe = Recipe(**{**recipe.to_json(), **change})
    return training.train_pool(recipe, images, root=root, progress=False, workers=1)


def ask(pool, images, **options):
    return query(pool, images, progress=False, **options)


def test_plain_signals_are_those_of_the_models_logits(pool, images):
    signals = ask(pool, images)
    x = data.normalise(images.x, images.mean, images.std, torch.float64)
    logits = np.stack([pool.model(m)(x).detach().numpy() for m in range(2)])
    expected = Signals.from_logits(logits, images.y.numpy(), pool.member)
    np.testing.assert_allclose(signals.margin, expected.margin, rtol=1e-12)
    assert np.array_equal(signals.member, pool.member) and signals.query_kind == "plain"


def test_images_that_were_relabelled_or_turned_are_not_the_pools_own(pool, images):
    before = ask(pool, images)
    relabelled = ask(pool, images._replace(y=(images.y + 1) % 4))
    turned = ask(pool, images._replace(x=images.x.transpose(2, 3).contiguous()))
    assert before.member.any() and not relabelled.member.any() and not turned.member.any()
    assert not np.allclose(relabelled.margin, before.margin)
    assert not np.allclose(turned.margin, before.margin)
    assert np.array_equal(ask(pool, images).margin, before.margin)


def test_no_dropout_is_the_plain_query(pool, images):
    assert np.array_equal(ask(pool, images, input_dropout=0.0).margin, ask(pool, images).margin)


@pytest.mark.parametrize("options", [{"input_dropout": 0.1}, {"augment": True}])
def test_answers_do_not_depend_on_the_batch_size_and_smaller_queries_are_prefixes(
    pool, images, options
):
    four = ask(pool, images, queries=4, batch=256, **options)
    two = ask(pool, images, queries=2, batch=5000, **options)
    np.testing.assert_allclose(four.margin[:, :2], two.margin, rtol=1e-11, atol=1e-11)
    assert four.margin[:, 0].std() > 0 and not np.allclose(four.margin[:, 1], four.margin[:, 2])


def test_the_share_of_kept_pixels_is_one_minus_the_rate_and_masks_are_fresh_per_query():
    x = torch.ones(512, 1, 16, 16)
    masks = [network._masks(x, 0.3, [256, 256], [(0, q, 0), (0, q, 1)]) for q in (0, 1)]
    assert masks[0].mean().item() == pytest.approx(0.7, abs=4 * (0.21 / masks[0].numel()) ** 0.5)
    assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks[0][:256], masks[0][256:])


def test_all_models_see_the_same_masks(images, tmp_path):
    pool = train(RECIPE, images, tmp_path)
    twin = training.train_pool(RECIPE, images, root=tmp_path / "twin", progress=False, workers=1)
    state = twin.folder.read_bytes("model_000.safetensors")
    pool.folder.write_bytes("model_001.safetensors", state)
    signals = ask(pool, images, queries=3, input_dropout=0.2)
    assert np.array_equal(signals.margin[0], signals.margin[1])


def test_the_first_augmented_query_is_the_plain_image(pool, images):
    assert np.array_equal(
        ask(pool, images, queries=3, augment=True).margin[:, 0], ask(pool, images).margin[:, 0]
    )


def test_dropping_and_masking_need_no_trained_noise_but_queries_need_a_source(pool, images):
    with pytest.raises(ValueError, match="queries=1"):
        ask(pool, images, queries=5)
    with pytest.raises(ValueError, match="one source"):
        ask(pool, images, queries=5, input_dropout=0.1, augment=True)


def test_noise_of_dropout_layers_is_fresh_seeded_and_can_be_switched_off(images, tmp_path):
    pool = train(RECIPE, images, tmp_path, model="toys:dropout_mlp", model_args={})
    on = ask(pool, images, queries=3, noise=True)
    assert on.query_kind == "noise" and (on.margin.std(1) > 0).all()
    assert np.array_equal(
        on.margin[:, :2], ask(pool, images, queries=2, noise=True, force=True, batch=256).margin
    )
    assert not np.array_equal(on.margin, ask(pool, images, queries=3, noise=True, seed=1).margin)
    assert np.array_equal(ask(pool, images).margin, ask(pool, images, noise=False).margin)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("toys:softmax_mlp", "probabilities"),
        ("toys:constant", "same output for every sample"),
        ("toys:train_mode", "other images in the batch"),
        ("toys:noisy", "gives another output to the same query"),
    ],
)
def test_outputs_that_cannot_be_trusted_are_refused_in_one_line(images, tmp_path, model, message):
    pool = train(RECIPE, images, tmp_path, model=model, model_args={})
    with pytest.raises(ValueError, match=message) as caught:
        ask(pool, images)
    assert "\n" not in str(caught.value)


def test_images_with_other_classes_than_the_models_are_refused(pool):
    with pytest.raises(ValueError, match=r"shape \(64, 4\); wanted \(64, 5\)"):
        ask(pool, data.load("synthetic:classes=5,n=100,size=8,channels=1"))


def test_a_model_without_noise_cannot_be_asked_for_noise(pool, images):
    with pytest.raises(ValueError, match="no noise to switch on"):
        ask(pool, images, queries=2, noise=True)


def test_a_non_finite_model_is_named_with_its_sample(pool, images, tmp_path):
    broken = train(RECIPE, images, tmp_path)
    state = broken.state(1)
    name = next(k for k in state if k.endswith("bias"))
    state[name] = state[name] * float("nan")
    broken.folder.write_bytes("model_001.safetensors", safetensors.torch.save(state))
    with pytest.raises(ValueError, match="model 1 gives a non-finite output for sample 0") as told:
        ask(broken, images)
    assert str(told.value).startswith(f"{broken.folder.path.name}: ")  # of several, which pool


def test_signals_are_cached_and_an_altered_cache_is_made_again(pool, images, capsys):
    first = ask(pool, images, seed=7, input_dropout=0.1, queries=2)
    folder = next(
        f for f in store.folders(pool.folder.path.parent, "signals") if f.recipe["seed"] == 7
    )
    path = folder.path / "margin.npy"
    stamp = path.stat().st_mtime_ns
    again = query(pool, images, seed=7, input_dropout=0.1, queries=2)
    assert "cached" in capsys.readouterr().out and path.stat().st_mtime_ns == stamp
    assert np.array_equal(again.margin, first.margin) and again.info == first.info
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(store.Corrupt, match=r"margin\.npy"):
        store.load_signals(folder)
    assert np.array_equal(
        ask(pool, images, seed=7, input_dropout=0.1, queries=2).margin, first.margin
    )


def test_images_the_pool_never_saw_come_back_as_no_members(pool):
    other = data.load("synthetic:classes=4,n=100,size=8,channels=1,seed=2")
    assert not ask(pool, other).member.any()


def test_signals_carry_the_pools_population_and_membership(images, tmp_path):
    pool = train(RECIPE, images, tmp_path, population=50)
    signals = ask(pool, images)
    assert np.array_equal(signals.population, pool.population) and signals.population.sum() == 50


def test_signals_of_other_weights_are_never_taken_for_these(images, tmp_path):
    pool = train(RECIPE, images, tmp_path, split="pairs")
    before = ask(pool, images)
    assert not np.array_equal(
        ask(train(RECIPE, images, tmp_path, seed=1), images).margin, before.margin
    )
    pool.folder.write_bytes(
        "model_001.safetensors", pool.folder.read_bytes("model_000.safetensors")
    )
    assert np.array_equal(ask(pool, images).margin[1], before.margin[0])


@pytest.mark.parametrize("models", [[-1], [9], []])
def test_rows_that_a_pool_does_not_have_are_refused(pool, images, models):
    with pytest.raises(ValueError, match=r"rows 0\.\.1"):
        ask(pool, images, models=models)


def test_a_refused_query_leaves_no_result(images, tmp_path):
    pool = train(RECIPE, images, tmp_path, model="toys:softmax_mlp", model_args={})
    with pytest.raises(ValueError, match="probabilities"):
        ask(pool, images)
    assert not store.folders(tmp_path, "signals")


def test_a_subset_of_models_gives_the_same_rows(pool, images):
    assert np.array_equal(ask(pool, images, models=[1]).margin[0], ask(pool, images).margin[1])


def test_a_killed_query_goes_on_with_the_next_model_and_ends_bit_equal(
    images, tmp_path, monkeypatch
):
    pool = train(RECIPE, images, tmp_path, num_models=4)
    options = {"queries": 3, "input_dropout": 0.1}
    whole = ask(pool, images, **options)
    asked, answers = [], signals.outputs

    def killed(module, images, model, *rest):
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(model)
        return answers(module, images, model, *rest)

    monkeypatch.setattr(signals, "outputs", killed)
    monkeypatch.setattr(signals, "cores", lambda: 1)
    folder = next(f for f in store.folders(tmp_path, "signals"))
    shutil.rmtree(folder.path)
    with pytest.raises(KeyboardInterrupt):
        ask(pool, images, **options)
    assert asked == [0, 1] and not store.has_signals(folder)
    monkeypatch.setattr(signals, "outputs", lambda *rest: asked.append(rest[2]) or answers(*rest))
    again = ask(pool, images, **options)
    assert (
        asked == [0, 1, 2, 3]
        and store.has_signals(folder)
        and not list(folder.path.glob(".partial-*"))
    )
    for name in PER_MODEL:
        assert np.array_equal(getattr(again, name), getattr(whole, name)), name
    assert again.info == whole.info


def test_a_query_that_is_refused_after_some_answers_leaves_no_result_and_takes_none_away(
    images, tmp_path
):
    pool = train(RECIPE, images, tmp_path)
    good = ask(pool, images)
    (folder,) = store.folders(tmp_path, "signals")
    state = {
        name: value * float("nan") if name.endswith("bias") else value
        for name, value in pool.state(1).items()
    }
    before = pool.folder.read_bytes("model_001.safetensors")
    pool.folder.write_bytes("model_001.safetensors", safetensors.torch.save(state))
    with pytest.raises(ValueError, match="model 1 gives a non-finite output"):
        ask(pool, images)
    assert store.folders(tmp_path, "signals") == [folder]
    pool.folder.write_bytes("model_001.safetensors", before)
    assert np.array_equal(ask(pool, images).margin, good.margin)


def test_where_a_gpus_memory_runs_out_one_line_advises_and_what_was_answered_stays(
    images, tmp_path, monkeypatch
):
    pool = train(RECIPE, images, tmp_path)
    answers = signals.outputs

    def short(module, images, model, *rest):
        if model == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB")
        return answers(module, images, model, *rest)

    monkeypatch.setattr(signals, "outputs", short)
    monkeypatch.setattr(signals, "cores", lambda: 1)
    with pytest.raises(ValueError, match="too little memory: take batch=256") as caught:
        ask(pool, images)
    assert "\n" not in str(caught.value)
    (folder,) = store.folders(tmp_path, "signals")
    assert store.read_partial(folder, 0) is not None


def test_answers_cannot_be_written_over(pool, images):
    with pytest.raises(ValueError, match="read-only"):
        ask(pool, images).margin[0] = 0
