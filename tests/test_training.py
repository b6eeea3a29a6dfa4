import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from mia_nb import data, models, store, training
from mia_nb.training import (
    batches,
    loop,
    placing,
    plans,
    progress,
    schedules,
    trials,
)
from mia_nb.training import train as train_module
from mia_nb.training.pool import open_pool, trace_name, weights_name
from mia_nb.training.stacking import keeps_gradients
from mia_nb.types import Recipe

SMALL = Recipe(num_models=4, epochs=3, batch=16, lr=0.05, model_args={"width": 4})
MLP = Recipe(model="toys:mlp", num_models=4, epochs=2, batch=16, lr=0.05)


@pytest.fixture(scope="module")
def images():
    return data.load("synthetic:classes=4,n=160,size=8,channels=1,seed=1")


def train(recipe, images, root, **options):
    return training.train_pool(
        recipe, images, root=root, progress=False, **{"workers": 1, **options}
    )


def weights(pool):
    return [pool.state(m) for m in range(len(pool.member))]


def digests(folder):
    files = sorted(p for p in Path(folder).iterdir() if p.suffix in (".safetensors", ".npy"))
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_relabelled_images_train_a_pool_of_their_own(images, tmp_path):
    wrong = images._replace(y=(images.y + 1) % 4)
    recipe = SMALL.replace(num_models=2, epochs=1)
    pools = [train(recipe, given, tmp_path) for given in (wrong, images)]
    assert pools[0].key != pools[1].key
    assert torch.equal(pools[1].images().y, images.y) and torch.equal(pools[0].images().y, wrong.y)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(model="tinycnn", model_args={"width": 4}, augment="crop+flip+cutout"),
        Recipe(
            model="resnet14",
            model_args={"width": 4, "blocks": 1},
            optimizer="adam",
            lr=1e-3,
            schedule="cosine",
        ),
        pytest.param(Recipe(model="resnet18", model_args={"width": 2}), marks=pytest.mark.slow),
        Recipe(model="toys:mlp", schedule="constant"),
    ],
    ids=lambda r: r.model,
)
def test_stacked_training_equals_one_by_one_in_float64(recipe, images, tmp_path):
    if recipe.model == "resnet18":
        images = data.load("synthetic:classes=4,n=64,size=32,channels=3,seed=1")
    recipe = Recipe(
        **{**recipe.to_json(), "num_models": 4, "epochs": 3, "batch": 16, "dtype": "float64"}
    )
    plain = train(recipe, images, tmp_path / "plain", strategy="plain")
    stacked = train(recipe, images, tmp_path / "stacked", strategy="stacked:3")
    assert stacked.folder.read_json("execution.json")["stacked"]
    for one, other in zip(weights(plain), weights(stacked), strict=True):
        for name, tensor in one.items():
            torch.testing.assert_close(other[name], tensor, rtol=1e-10, atol=1e-10)
    x = data.normalise(images.x, images.mean, images.std, torch.float64)
    torch.testing.assert_close(stacked.model(3)(x), plain.model(3)(x), rtol=1e-10, atol=1e-10)


def test_stacked_networks_differ_from_plain_ones_where_the_gradient_is_rounding_noise_alone(
    images, tmp_path
):
    """A bias before a batch norm has a gradient of 0, and Adam divides what rounding leaves of it
    by 1e-8.
    """
    recipe = Recipe(
        model="resnet14",
        model_args={"width": 4, "blocks": 1},
        optimizer="adam",
        num_models=4,
        epochs=2,
        batch=32,
        lr=0.05,
        dtype="float64",
    )
    plain = train(recipe, images, tmp_path / "plain", strategy="plain")
    stacked = train(recipe, images, tmp_path / "stacked", strategy="stacked:2")
    for one, other in zip(weights(plain), weights(stacked), strict=True):
        for name, tensor in one.items():
            cancelled = re.search(r"(conv[12]|shortcut\.0)\.bias", name)
            bound = 1e-9 if cancelled else 1e-10
            torch.testing.assert_close(other[name], tensor, rtol=bound, atol=bound)


@pytest.mark.parametrize("split", ["pairs", "bernoulli"])
def test_a_pool_can_grow_and_keep_its_first_models(images, tmp_path, split):
    recipe = Recipe(**{**SMALL.to_json(), "split": split})
    small = train(recipe, images, tmp_path, strategy="plain")
    large = train(
        Recipe(**{**recipe.to_json(), "num_models": 6}), images, tmp_path, strategy="plain"
    )
    assert np.array_equal(large.member[:4], small.member)
    for m in range(4):
        assert all(torch.equal(small.state(m)[k], v) for k, v in large.state(m).items())


def test_rows_epochs_and_seeds_draw_different_numbers(images):
    def plan(seed):
        recipe = Recipe(augment="crop+flip", seed=seed)
        return plans.Plan(
            recipe, images, np.ones((2, 160), bool), torch.device("cpu"), False, False
        )

    draws = [
        lambda seed, row, epoch: batches.epoch_order(plan(seed), row, epoch),
        lambda seed, row, epoch: batches.augmentation(plan(seed), row, epoch, 64)["shift"],
        lambda seed, row, epoch: next(plans.build(plan(seed).recipe, images, row).parameters()),
    ]
    for draw in draws:
        base = draw(0, 0, 0)
        assert (
            draw(0, 0, 0).equal(base)
            and not draw(1, 0, 0).equal(base)
            and not draw(0, 1, 0).equal(base)
        )
    assert all(not draw(0, 0, 1).equal(draw(0, 0, 0)) for draw in draws[:2])


def test_another_mask_other_pixels_classes_or_code_is_another_pool(images, tmp_path, monkeypatch):
    keys = {train(MLP, images, tmp_path).key}
    keys.add(train(Recipe(**{**MLP.to_json(), "seed": 1}), images, tmp_path).key)
    given = Recipe(**{**MLP.to_json(), "split": "given"})
    masks = [data.paired_membership(4, 160, seed=seed) for seed in (0, 1)]
    keys |= {train(given, images, tmp_path, member=mask).key for mask in masks}
    x, y = images.x.numpy(), images.y.numpy()
    keys.add(train(MLP, data.from_arrays(255 - x, y, name=images.name), tmp_path).key)
    keys.add(
        train(MLP, data.from_arrays(x, y, classes=list("abcde"), name=images.name), tmp_path).key
    )
    pool = train(MLP, images, tmp_path)
    monkeypatch.setattr(models, "source", lambda *model: "other code")
    keys.add(train(MLP, images, tmp_path).key)
    assert len(keys) == 7
    with pytest.raises(ValueError, match="is not the one pool"):
        pool.model(0)


@pytest.mark.parametrize("model", ["running", "frozen", "tied", "functional_dropout"])
def test_what_a_users_model_does_in_training_is_kept_whatever_the_strategy(images, tmp_path, model):
    recipe = Recipe(**{**MLP.to_json(), "model": f"toys:{model}", "dtype": "float64"})
    plain, auto = (train(recipe, images, tmp_path / s, strategy=s) for s in ("plain", "auto"))
    first = plans.build(recipe, images, 0).state_dict()
    for one, other in zip(weights(plain), weights(auto), strict=True):
        assert one.keys() == first.keys()
        assert all(torch.allclose(one[k], other[k], rtol=1e-10, atol=1e-10) for k in one)
    plain.model(0), auto.model(0)
    if model == "running":
        assert plain.state(0)["mean"] > 1
    if model == "frozen":
        assert torch.equal(auto.state(0)["1.weight"].float(), first["1.weight"])
    if model in ("running", "functional_dropout"):
        assert not auto.folder.read_json("execution.json")["stacked"]


@pytest.mark.slow
def test_a_model_that_prints_does_not_disturb_its_helpers(images, tmp_path):
    recipe = Recipe(**{**MLP.to_json(), "model": "toys:talkative", "num_models": 12, "epochs": 10})
    assert train(recipe, images, tmp_path, workers=2, strategy="plain").status == ["trained"] * 12


def test_weights_that_are_not_finite_are_no_result(images, tmp_path):
    recipe = Recipe(
        **{**MLP.to_json(), "lr": 1e39, "epochs": 1, "batch": 64, "schedule": "constant"}
    )
    with pytest.raises(ValueError, match="diverged in epoch 1"):
        train(recipe, images, tmp_path)
    assert not list(tmp_path.glob("*/model_*"))


def test_damaged_images_of_a_finished_pool_are_written_again(images, tmp_path):
    pool = train(SMALL, images, tmp_path)
    (pool.folder.path / "images.npy").write_bytes(b"")
    assert torch.equal(train(SMALL, images, tmp_path).images().x, images.x)


def test_an_edited_recipe_is_refused(images, tmp_path):
    pool = train(SMALL, images, tmp_path)
    path = pool.folder.path / "recipe.json"
    path.write_text(path.read_text().replace('"epochs": 3', '"epochs": 7'))
    with pytest.raises(ValueError, match=r"recipe\.json"):
        training.load_pool(pool.key[:8], tmp_path)


def test_force_waits_for_nobody_who_trains_now(images, tmp_path):
    pool = train(SMALL, images, tmp_path)
    with (
        pool.folder.lock("part_000-003"),
        pytest.raises(ValueError, match="being trained by another process"),
    ):
        train(SMALL, images, tmp_path, force=True)


@pytest.mark.parametrize(
    ("strategy", "advice"),
    [("stacked", 'strategy="plain" or "stacked:4" with force=True'), ("plain", "a smaller batch")],
)
def test_where_a_gpus_memory_runs_out_one_line_advises_another_strategy(
    strategy, advice, images, tmp_path, monkeypatch
):
    def short(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB")

    monkeypatch.setattr(loop.Group, "epoch", short)
    with pytest.raises(ValueError, match=f"too little memory: take {advice}") as caught:
        train(SMALL, images, tmp_path, strategy=strategy)
    assert "\n" not in str(caught.value)


def test_the_same_recipe_gives_the_same_bytes(images, tmp_path):
    one = train(SMALL, images, tmp_path / "one")  # by workers: in test_training_workers.py
    two = train(SMALL, images, tmp_path / "two")
    assert one.key == two.key and digests(one.folder.path) == digests(two.folder.path)


def test_training_leaves_the_global_generator_and_the_threads_as_found(images, tmp_path):
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    train(SMALL, images, tmp_path)
    assert torch.equal(torch.get_rng_state(), before) and torch.get_num_threads() == threads


def test_every_epoch_is_a_fresh_permutation_of_the_members_with_equal_steps(images):
    member = data.bernoulli_membership(6, len(images.y), seed=3)
    plan = plans.Plan(
        Recipe(num_models=6, batch=16), images, member, torch.device("cpu"), False, False
    )
    for m in range(6):
        members = np.flatnonzero(member[m])
        first, second = (batches.epoch_order(plan, m, e).numpy() for e in (0, 1))
        assert len(first) == plan.steps * 16 and not np.array_equal(first, second)
        assert set(first) <= set(members)
        once = min(len(first), len(members))
        assert len(set(first[:once])) == once


@pytest.mark.parametrize("fraction", np.linspace(0, 0.99, 34))
def test_one_cycle_and_cosine_equal_torchs_schedulers(fraction):
    total = 100_000
    parameter = torch.zeros(1, requires_grad=True)
    step = round(fraction * total)
    cosine = 0.1 * (1 + np.cos(np.pi * step / total)) / 2
    assert schedules.learning_rate(Recipe(schedule="cosine"), step / total, []) == pytest.approx(
        cosine
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        torch.optim.SGD([parameter]), 0.1, total_steps=total, final_div_factor=400
    )
    scheduler.last_epoch = step - 1
    scheduler.optimizer.step()
    scheduler.step()
    assert schedules.learning_rate(Recipe(), step / total, []) == pytest.approx(
        scheduler.get_last_lr()[0], rel=1e-3, abs=1e-6
    )


def test_plateau_equals_torchs_scheduler():
    rng = np.random.default_rng(0)
    history = list(
        np.concatenate(
            [
                np.linspace(2, 1, 15),
                1 + 0.01 * rng.random(40),
                np.linspace(0.9, 0.5, 5),
                np.full(30, 0.5),
            ]
        )
    )
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    torchs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.1, patience=10, threshold=0.02, min_lr=1e-5
    )
    for epoch in range(len(history)):
        ours = schedules.learning_rate(Recipe(schedule="plateau"), 0.0, history[:epoch])
        assert ours == pytest.approx(optimizer.param_groups[0]["lr"])
        torchs.step(history[epoch])
    assert ours < 0.1


@pytest.mark.parametrize("way", [{"channels_last": True}, {"stacked": True}])
def test_narrow_strided_convolutions_have_the_gradients_of_channels_first(way):
    """Below eight channels a CPU with AVX2 would give wrong ones in channels-last order, or end."""
    coloured = data.load("synthetic:classes=4,n=32,size=16,channels=3,seed=1")
    recipe = Recipe(model="resnet18", model_args={"width": 4}, num_models=2, batch=16)
    first = plans.Plan(recipe, coloured, np.ones((2, 32), bool), torch.device("cpu"))
    index = torch.arange(16)[None]
    changes = []
    for plan in (first, first._replace(**way)):
        group = loop.Group(plan, [0])
        before = {name: value.clone() for name, value in group.weights(0).items()}
        group.step(batches.plain_images(plan, index), coloured.y[index], 1)
        after = group.weights(0)
        changes.append({name: after[name] - before[name] for name in group.trained})
    for name, expected in changes[0].items():
        error = (changes[1][name] - expected).norm()
        assert error < 1e-2 * expected.norm() + 1e-5, name


def test_a_narrow_network_is_not_compiled(images):
    recipe = Recipe(model="resnet18", model_args={"width": 4}, batch=16)
    plan = plans.Plan(recipe, images, np.ones((2, 160), bool), torch.device("cpu"))
    assert "strided 1 x 1 convolutions" in trials.why_not_compiled(plan)
    wide = recipe.replace(model_args={"width": 8})
    assert keeps_gradients(plans.build(wide, images, 0))


def test_loss_traces_hold_the_members_losses_and_nothing_else(images, tmp_path):
    recipe = Recipe(
        **{**MLP.to_json(), "lr": 1e-30, "batch": 8, "optimizer_args": {"weight_decay": 0.0}}
    )
    pool = train(recipe, images, tmp_path)
    x = data.normalise(images.x, images.mean, images.std)
    for m in range(4):
        loss = (
            torch.nn.functional.cross_entropy(pool.model(m)(x), images.y, reduction="none")
            .detach()
            .numpy()
        )
        trace = pool.trace(m)
        assert np.isnan(trace[:, ~pool.member[m]]).all()
        assert not np.isnan(trace[:, pool.member[m]]).any()
        expected = np.log(loss[pool.member[m]])
        np.testing.assert_allclose(trace[1, pool.member[m]], expected, atol=2e-3)


def test_a_finished_pool_comes_back_without_training(images, tmp_path):
    pool = train(SMALL, images, tmp_path)
    before = digests(pool.folder.path)
    manifest = (pool.folder.path / "manifest.jsonl").read_bytes()
    begun = time.process_time()
    train(SMALL, images, tmp_path)
    assert time.process_time() - begun < 1
    assert (
        digests(pool.folder.path) == before
        and (pool.folder.path / "manifest.jsonl").read_bytes() == manifest
    )
    assert training.load_pool(pool.key[:8], tmp_path).key == pool.key


def test_an_altered_model_is_named_and_trained_again_to_the_same_bytes(images, tmp_path):
    pool = train(SMALL, images, tmp_path)
    before = digests(pool.folder.path)
    path = pool.folder.path / weights_name(2)
    path.write_bytes(path.read_bytes()[:-3] + b"abc")
    with pytest.raises(ValueError, match=r"model_002\.safetensors"):
        pool.model(2)
    train(SMALL, images, tmp_path)
    assert digests(pool.folder.path) == before


def test_force_trains_everything_again_to_the_same_bytes(images, tmp_path):
    pool = train(SMALL, images, tmp_path)
    before, touched = (
        digests(pool.folder.path),
        (pool.folder.path / weights_name(0)).stat().st_mtime_ns,
    )
    train(SMALL, images, tmp_path, force=True)
    assert digests(pool.folder.path) == before
    assert (pool.folder.path / weights_name(0)).stat().st_mtime_ns > touched


def test_a_resumed_group_ends_with_the_bytes_of_one_never_stopped(images, tmp_path):
    plateau = {
        "schedule": "plateau",
        "lr": 1e-9,
        "epochs": 14,
        "model": "toys:mlp",
        "model_args": {},
    }
    for strategy, change in (("plain", {}), ("stacked:4", {}), ("plain", plateau)):
        recipe = Recipe(
            **{**SMALL.to_json(), "augment": "crop+flip", "optimizer": "adam", "lr": 0.01, **change}
        )
        whole = train(
            recipe, images, tmp_path / f"{strategy}-{recipe.schedule}-whole", strategy=strategy
        )

        class Stopped(Exception):
            pass

        seen = []

        def stop_after_two(*event, seen=seen):
            seen.append(event)
            if len(seen) == 2:
                raise Stopped

        root = tmp_path / f"{strategy}-{recipe.schedule}-stopped"
        monkey = pytest.MonkeyPatch()
        monkey.setattr(progress.Advance, "report", stop_after_two)
        with pytest.raises(Stopped):
            train(recipe, images, root, strategy=strategy, checkpoint=0)
        monkey.undo()
        assert list(root.glob("*/part_*"))
        again = train(recipe, images, root, checkpoint=0)
        assert digests(again.folder.path) == digests(whole.folder.path)


def test_a_pool_goes_on_as_it_was_begun_and_by_no_other_torch(images, tmp_path):
    pool = train(SMALL, images, tmp_path, strategy="plain")
    before = digests(pool.folder.path)
    pool.folder.remove(weights_name(1))
    train(SMALL, images, tmp_path, strategy="stacked")
    assert digests(pool.folder.path) == before
    pool.folder.remove(weights_name(1))
    execution = pool.folder.read_json("execution.json")
    pool.folder.write_json("execution.json", {**execution, "torch": "1.0.0"})
    with pytest.raises(ValueError, match=r"begun with torch 1\.0\.0"):
        train(SMALL, images, tmp_path)
    assert train(SMALL, images, tmp_path, force=True).status == ["trained"] * 4


def test_a_diverged_model_is_one_line_the_others_are_kept_and_it_stays_said(images, tmp_path):
    recipe = Recipe(
        **{
            **MLP.to_json(),
            "lr": 1e18,
            "schedule": "constant",
            "optimizer_args": {"momentum": 0.99},
        }
    )
    for _ in range(2):
        with pytest.raises(ValueError, match=r"model \d diverged in epoch \d .* lower lr"):
            train(recipe, images, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "sdg"}, "did you mean 'sgd'"),
        ({"schedule": "onecycle"}, "did you mean 'one_cycle'"),
        ({"augment": "flop"}, "flop"),
        ({"dtype": "float16"}, "dtype='float16'"),
        ({"batch": 512}, "take a smaller batch"),
        ({"optimizer_args": {"momentun": 0.9}}, "momentun"),
        ({"model": "tinycn"}, "did you mean"),
        ({"model": "toys:nothing"}, "nothing"),
        ({"model": "toys:constant", "model_args": {"num_classes": 7}}, "7"),
        ({"split": "given"}, "member mask"),
    ],
)
def test_recipes_that_cannot_be_trained_are_refused_before_anything_is_written(
    images, tmp_path, change, message
):
    with pytest.raises(ValueError, match=message) as caught:
        train(Recipe(**{**SMALL.to_json(), "model_args": {}, **change}), images, tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("members", "count"), [(1, "1 training sample;"), (0, "0 training samples;")]
)
def test_a_model_with_fewer_than_two_members_is_refused_whatever_the_batch(images, members, count):
    member = np.zeros((1, len(images.y)), bool)
    member[:, :members] = True
    plan = plans.plan_of(SMALL.replace(batch=1, split="given"), images, member, ~member[0])
    with pytest.raises(ValueError, match=f"a model has {count} wanted 2 or more"):
        trials.check(plan, 0)


@pytest.mark.parametrize("strategy", ["plain", "stacked"])
def test_of_a_record_in_training_mode_the_logits_are_trained_on_as_if_they_came_alone(
    images, tmp_path, strategy
):
    recipes = [MLP.replace(model=model, num_models=2) for model in ("toys:two_heads", "toys:mlp")]
    two, one = (train(recipe, images, tmp_path, strategy=strategy) for recipe in recipes)
    for model in range(2):
        for name, weight in one.state(model).items():
            assert torch.equal(two.state(model)[f"inner.{name}"], weight)


@pytest.mark.parametrize(
    ("kind", "came"),
    [("dict", "a dict"), ("tuple", "a tuple"), ("none", "a NoneType"), ("wide", "(2, 8)")],
)
@pytest.mark.parametrize("defense", [None, "dp_sgd"])
def test_what_gives_no_logits_in_training_mode_alone_is_refused_before_anything_is_written(
    images, tmp_path, kind, came, defense
):
    recipe = MLP.replace(model="toys:two_heads", model_args={"kind": kind}, defense=defense)
    with pytest.raises(ValueError) as caught:
        train(recipe, images, tmp_path)
    says = str(caught.value)
    assert f"the model gives {came} for two images in training mode" in says and "\n" not in says
    assert not list(tmp_path.iterdir())


def test_looking_at_training_mode_leaves_statistics_modes_and_generator_alone(images):
    net = torch.nn.Sequential(
        torch.nn.BatchNorm2d(1), torch.nn.Flatten(), torch.nn.Dropout(), torch.nn.Linear(64, 4)
    )
    net.eval()
    net[2].train()
    state, drawn = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    models.check_training(net, images)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in state.items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [part.training for part in net] == [False, False, True, False]


def test_an_odd_number_of_models_is_refused():
    with pytest.raises(ValueError, match="take 6"):
        Recipe(num_models=5)


def test_a_given_mask_and_bernoulli_splits_keep_their_population(images, tmp_path):
    recipe = Recipe(**{**MLP.to_json(), "split": "bernoulli", "num_models": 3, "population": 20})
    pool = train(recipe, images, tmp_path)
    assert pool.population.sum() == 20 and not pool.member[:, pool.population].any()
    given = Recipe(**{**recipe.to_json(), "split": "given"})
    assert not train(
        Recipe(**{**given.to_json(), "population": 0}), images, tmp_path, member=pool.member
    ).population.any()
    with pytest.raises(ValueError, match="leaves"):
        train(Recipe(**{**given.to_json(), "population": 1}), images, tmp_path, member=pool.member)


def test_a_canary_that_every_coin_left_out_is_not_taken_for_an_image_set_aside(images, tmp_path):
    canary = np.arange(len(images.y)) < 5
    marked = data.from_arrays(
        images.x.numpy(), images.y.numpy(), classes=images.classes, canary=canary
    )
    member = np.broadcast_to(np.arange(len(images.y)) >= 25, (2, len(images.y))).copy()
    member[1, 1:5] = True  # canary 0 is in neither model
    given = Recipe(**{**MLP.to_json(), "split": "given", "num_models": 2, "population": 20})
    pool = train(given, marked, tmp_path, member=member)
    assert (
        pool.population.tolist()
        == ((np.arange(len(images.y)) >= 5) & (np.arange(len(images.y)) < 25)).tolist()
    )


def test_what_cannot_be_stacked_is_trained_one_by_one_and_says_why(images, tmp_path, capsys):
    train(
        Recipe(**{**MLP.to_json(), "model": "toys:branching"}), images, tmp_path, strategy="stacked"
    )
    assert "one model at a time" in capsys.readouterr().err
    train(
        Recipe(**{**MLP.to_json(), "model": "toys:dropout_mlp"}),
        images,
        tmp_path,
        strategy="stacked",
    )
    assert "random numbers" in capsys.readouterr().err
    train(Recipe(**{**MLP.to_json(), "schedule": "plateau"}), images, tmp_path, strategy="stacked")
    assert "learning rate per model" in capsys.readouterr().err


def test_dropout_noise_depends_on_the_row_alone(images, tmp_path):
    recipe = Recipe(**{**MLP.to_json(), "model": "toys:dropout_mlp"})
    small, large = (
        train(Recipe(**{**recipe.to_json(), "num_models": m}), images, tmp_path) for m in (2, 4)
    )
    assert all(torch.equal(small.state(1)[k], v) for k, v in large.state(1).items())


LONGER = SMALL.replace(epochs=30)
PAIRS = "stacked:2"  # two groups of models, one for each of two workers
SCRIPT = f"""
import json, sys
sys.path.insert(0, sys.argv[2])
from mia_nb import data, training
from mia_nb.types import Recipe
images = data.load("synthetic:classes=4,n=160,size=8,channels=1,seed=1")
recipe = Recipe(**json.loads(sys.argv[3]))
training.train_pool(recipe, images, root=sys.argv[1], workers=2, strategy="{PAIRS}", checkpoint=0,
                    progress=False)
"""


def start(root):
    recipe = json.dumps(LONGER.to_json())
    command = [sys.executable, "-c", SCRIPT, str(root), str(Path(__file__).parent), recipe]
    return subprocess.Popen(command)


@pytest.fixture(scope="module")
def never_killed(images, tmp_path_factory):
    """Digests of what this process alone makes of the script's pool."""
    pool = train(LONGER, images, tmp_path_factory.mktemp("never_killed"), strategy=PAIRS)
    return digests(pool.folder.path)


@pytest.mark.slow
def test_a_pool_killed_twice_with_its_workers_ends_with_the_bytes_of_one_never_killed(
    images, tmp_path, never_killed
):
    rng = random.Random(0)

    def written():
        manifests = tmp_path.glob("pool-*/manifest.jsonl")
        return sum(path.read_bytes().count(b"\n") for path in manifests)

    for _ in range(2):
        enough = written() + rng.randint(1, 20)
        process = start(tmp_path)
        while process.poll() is None and written() < enough:
            time.sleep(0.005)  # oftener would take a core from the training
        assert process.poll() is None, "it ended before it was killed"
        helpers = psutil.Process(process.pid).children()
        os.kill(process.pid, signal.SIGKILL)
        assert not psutil.wait_procs(helpers, timeout=30)[1], "a helper outlived its parent"
        process.wait()
    killed = train(LONGER, images, tmp_path, strategy=PAIRS).folder.path
    for scratch in killed.glob(
        ".tmp-*.safetensors"
    ):  # of a write that was killed; swept in an hour
        scratch.unlink()
    assert digests(killed) == never_killed
    assert not list(killed.glob("part_*")) and not list(killed.glob(".tmp-progress-*"))


@pytest.mark.slow
def test_two_runs_of_one_pool_share_the_work_and_train_no_model_twice(
    images, tmp_path, never_killed, monkeypatch
):
    other = None
    real = loop.Group.epoch

    def epoch(group, *args):
        """One of this run's first unit, begun when the other run, which finds that unit locked, has
        trained the second.
        """
        nonlocal other
        if other is None:
            other = start(tmp_path)
            while not list(tmp_path.glob(f"pool-*/{weights_name(3)}")):
                assert other.poll() is None, "it ended before the work was done"
                time.sleep(0.05)
        return real(group, *args)

    monkeypatch.setattr(loop.Group, "epoch", epoch)
    shared = train(LONGER, images, tmp_path, strategy=PAIRS).folder.path
    assert other.wait() == 0
    assert digests(shared) == never_killed
    lines = (shared / "manifest.jsonl").read_text()
    assert [lines.count(f'"{weights_name(m)}"') for m in range(4)] == [1] * 4
    assert [lines.count(f'"{trace_name(m)}"') for m in range(4)] == [1] * 4


def test_the_plan_of_a_folder_is_all_that_a_worker_needs(images, tmp_path):
    pool = train(SMALL, images, tmp_path)
    there = open_pool(pool.folder)
    plan = there.plan(there.mapped_images(), there.parent)
    assert plan.recipe == pool.recipe and np.array_equal(plan.member, pool.member)
    assert plan.images.digest == images.digest and torch.equal(plan.images.x, images.x)


@pytest.fixture(scope="module")
def finished(images, tmp_path_factory):
    return train(MLP, images, tmp_path_factory.mktemp("finished"), strategy="plain")


def copied(pool, root):
    """The same pool in another place, to be damaged."""
    place = root / pool.folder.path.name
    shutil.copytree(pool.folder.path, place)
    return replace(pool, folder=store.Folder(place))


def listed(folder, name, raw):
    """A file that mia_nb did not write, listed with the right checksum."""
    (folder.path / name).write_bytes(raw)
    folder.add(name)


def test_training_anew_removes_nothing_outside_of_its_folder(images, finished, tmp_path):
    pool = copied(finished, tmp_path / "results")
    victims = [tmp_path / "victim", tmp_path / "results" / "victim"]
    (pool.folder.path / "model_").mkdir()
    with open(pool.folder.path / "manifest.jsonl", "a") as manifest:
        for name in ("model_/../../../victim", "model_/../../victim", str(victims[0])):
            manifest.write(json.dumps({"file": name, "sha256": "0" * 64}) + "\n")
    for victim in victims:
        victim.write_text("precious")
    (pool.folder.path / weights_name(1)).unlink()
    (pool.folder.path / weights_name(1)).symlink_to(victims[0])
    assert (
        train(MLP, images, tmp_path / "results", strategy="plain", force=True).status
        == ["trained"] * 4
    )
    assert [victim.read_text() for victim in victims] == ["precious"] * 2


def test_what_a_manifest_of_junk_listed_is_made_again(images, finished, tmp_path, capsys):
    pool = copied(finished, tmp_path)
    before, manifest = digests(pool.folder.path), pool.folder.path / "manifest.jsonl"
    manifest.write_bytes(b"\0" * manifest.stat().st_size)
    assert (
        pool.folder.files() == {}
        and "what is no record is skipped (line 1)" in capsys.readouterr().err
    )
    with pytest.raises(store.Corrupt, match=r"recipe\.json"):
        training.load_pool(pool.folder.path.name, tmp_path)
    train(MLP, images, tmp_path, strategy="plain")
    assert digests(pool.folder.path) == before


def test_a_damaged_part_file_is_passed_over(images, finished, tmp_path):
    pool = copied(finished, tmp_path)
    before = digests(pool.folder.path)
    pool.folder.remove(weights_name(1))
    part = "part_001-001_00001.safetensors"
    pool.folder.write_bytes(part, b"whole")
    (pool.folder.path / part).write_bytes(b"altered")
    train(MLP, images, tmp_path, strategy="plain")
    assert digests(pool.folder.path) == before


@pytest.mark.parametrize("name", ["member.npy", "population.npy", "images.npy", "labels.npy"])
@pytest.mark.parametrize(
    "wrong",
    [np.zeros((2, 3, 5)), np.array(["a"] * 160), np.zeros(7, bool)],
    ids=["shape", "text", "short"],
)
def test_arrays_of_a_pool_that_do_not_fit_are_named(images, finished, tmp_path, name, wrong):
    pool = copied(finished, tmp_path)
    pool.folder.write_array(name, wrong)
    with pytest.raises(store.Corrupt, match=rf"{name} is not what it should be"):
        training.load_pool(pool.key[:8], tmp_path).images()


RECORDS = {
    "recipe.json": [[], {"key": 5, "recipe": []}],
    "images.json": [[], {}, {"classes": 3, "name": [], "digest": 5, "mean": "x", "std": None}],
    "diverged_001.json": [[], {"epoch": "x"}],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in RECORDS.items() for value in values]
)
def test_a_record_of_a_pool_that_is_none_is_named(images, finished, tmp_path, name, value):
    pool = copied(finished, tmp_path)
    pool.folder.write_json(name, value)
    with pytest.raises(store.Corrupt, match=rf"{name} is not what it should be"):
        training.load_pool(pool.folder.path.name, tmp_path).images()


@pytest.mark.skipif(os.name == "nt", reason="files of Unix")
@pytest.mark.parametrize("name", [weights_name(1), trace_name(1), "member.npy", "images.json"])
def test_a_pipe_in_a_files_place_is_not_waited_for_but_made_again(images, finished, tmp_path, name):
    pool = copied(finished, tmp_path)
    before = digests(pool.folder.path)
    (pool.folder.path / name).unlink()
    os.mkfifo(pool.folder.path / name)
    train(MLP, images, tmp_path, strategy="plain")
    assert digests(pool.folder.path) == before and pool.folder.damaged() == []


def test_a_pool_that_another_process_begins_meanwhile_gets_its_inputs(
    images, tmp_path, monkeypatch
):
    """The other process has written the recipe, and was killed before anything else."""
    recipe = placing.complete(MLP)
    masks = placing.membership(recipe, images, None, None)
    placed = placing.place(recipe, images, *masks, tmp_path, None)
    name = f"{images.name}-{placing.title(recipe)}"

    def check(*_):
        recorded = recipe.to_json()
        store.open_folder(tmp_path, "pool", name, placed.key, recorded, **placed.record)

    monkeypatch.setattr(train_module, "check", check)
    pool = train(MLP, images, tmp_path, strategy="plain")
    assert training.load_pool(pool.key, tmp_path).unfinished(range(4)) == []


def test_force_removes_nothing_where_the_device_is_not_there(images, finished, tmp_path):
    pool = copied(finished, tmp_path)
    before = digests(pool.folder.path)
    with pytest.raises(ValueError, match=r"this machine has .* GPUs"):
        train(MLP, images, tmp_path, strategy="plain", force=True, device="cuda:99")
    assert digests(pool.folder.path) == before and pool.folder.damaged() == []
    assert pool.unfinished(range(4)) == []
