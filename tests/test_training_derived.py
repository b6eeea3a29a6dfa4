import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from mia_nb import data, store, training
from mia_nb.models import snn
from mia_nb.training import batches, losses, progress, seeds
from mia_nb.training.pool import open_pool, weights_name
from mia_nb.types import Recipe

SMALL = Recipe(num_models=4, epochs=2, batch=16, lr=0.05, model_args={"width": 4}, population=20)
FURTHER = Recipe(
    epochs=3,
    batch=16,
    lr=0.01,
    model_args={"width": 4},
    augment="crop+flip",
    seed=5,
    optimizer="adam",
)
DIRECT = {"base": "tinycnn", "base_args": {"width": 4}, "timesteps": 2, "theta": 0.3}


@pytest.fixture(scope="module")
def images():
    return data.load("synthetic:classes=4,n=180,size=8,channels=1,seed=1")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("pools")


@pytest.fixture(scope="module")
def pool(images, root):
    return train(SMALL, images, root)


def train(recipe, images, root, **options):
    return training.train_pool(
        recipe, images, root=root, progress=False, **{"workers": 1, "strategy": "plain", **options}
    )


def finetune(pool, recipe, images, **options):
    return training.train.finetune_pool(
        pool, recipe, images, progress=False, **{"workers": 1, "strategy": "plain", **options}
    )


def convert(pool, images, timesteps=2, **options):
    return training.convert_pool(pool, images, timesteps, progress=False, **options)


def digests(folder):
    files = sorted(
        p
        for p in Path(folder).iterdir()
        if p.suffix in (".safetensors", ".npy") or "conversion" in p.name
    )
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def same_weights(one, other, **close):
    for m in range(len(one.member)):
        for name, tensor in one.state(m).items():
            torch.testing.assert_close(
                other.state(m)[name], tensor, **(close or {"rtol": 0, "atol": 0})
            )


class Stopped(Exception):
    pass


def stop_after(monkeypatch, calls):
    seen = []

    def update(*event):
        seen.append(event)
        if len(seen) == calls:
            raise Stopped

    monkeypatch.setattr(progress.Advance, "report", update)


def test_a_fine_tuned_pool_keeps_the_split_of_its_parent_and_names_it(pool, images):
    child = finetune(pool, FURTHER, images)
    assert np.array_equal(child.member, pool.member) and np.array_equal(
        child.population, pool.population
    )
    assert child.parent.key == pool.key and child.ancestor.key == pool.key and pool.parent is None
    grandchild = finetune(child, FURTHER.replace(seed=6), images)
    assert grandchild.ancestor.key == pool.key and grandchild.parent.key == child.key
    assert training.load_pool(child.key[:8], pool.folder.path.parent).parent.key == pool.key


def test_every_row_starts_from_the_same_row_of_its_parent(pool, images):
    copy = finetune(pool, SMALL.replace(parent=pool.key, epochs=0, seed=9), images)
    same_weights(pool, copy)
    assert copy.trace(3).shape == (0, 180)
    crawl = SMALL.replace(epochs=1, lr=1e-30, optimizer_args={"weight_decay": 0.0})
    weights = finetune(pool, crawl, images).state(2)
    for name, tensor in pool.state(2).items():
        if "running" not in name and "num_batches" not in name:
            assert torch.equal(weights[name], tensor)


def test_one_epoch_of_fine_tuning_is_plain_sgd_from_the_parents_weights(pool, images):
    recipe = SMALL.replace(
        epochs=1,
        schedule="constant",
        optimizer_args={"momentum": 0.0, "nesterov": False, "weight_decay": 0.0},
    )
    child = finetune(pool, recipe, images)
    module = pool.model(1).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    plan = child.plan(images, child.parent)
    for batch in batches.epoch_order(plan, 1, 0).split(16):
        optimizer.zero_grad()
        x = data.normalise(images.x[batch], images.mean, images.std)
        torch.nn.functional.cross_entropy(module(x), images.y[batch]).backward()
        optimizer.step()
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(child.state(1)[name], tensor, rtol=1e-4, atol=1e-5)


def test_order_and_augmentation_follow_the_childs_own_seed(pool, images):
    one, other = (finetune(pool, FURTHER.replace(seed=seed), images) for seed in (5, 6))
    assert one.key != other.key
    assert not torch.equal(one.state(0)["head.weight"], other.state(0)["head.weight"])


def test_stacked_fine_tuning_equals_one_by_one_in_float64(images, tmp_path):
    parent = train(SMALL.replace(dtype="float64"), images, tmp_path)
    recipe = FURTHER.replace(dtype="float64")
    plain = finetune(parent, recipe, images)
    before = {m: plain.state(m) for m in range(4)}
    stacked = finetune(parent, recipe, images, strategy="stacked:3", force=True)
    assert stacked.folder.read_json("execution.json")["stacked"]
    for m, state in before.items():
        for name, tensor in state.items():
            torch.testing.assert_close(stacked.state(m)[name], tensor, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("strategy", ["plain", "stacked:4"])
def test_interrupted_fine_tuning_ends_with_the_bytes_of_one_never_stopped(
    images, tmp_path, strategy, monkeypatch
):
    pools = {name: train(SMALL, images, tmp_path / name) for name in ("whole", "stopped")}
    whole = finetune(pools["whole"], FURTHER, images, strategy=strategy)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_after(patch, 2)
        finetune(pools["stopped"], FURTHER, images, strategy=strategy, checkpoint=0)
    assert list((tmp_path / "stopped").glob("*/part_*"))
    again = finetune(pools["stopped"], FURTHER, images, strategy=strategy, checkpoint=0)
    assert again.key == whole.key and digests(again.folder.path) == digests(whole.folder.path)


@pytest.mark.slow
def test_helper_processes_find_the_parent_beside_the_folder(pool, images, tmp_path, capfd):
    twin = train(SMALL, images, tmp_path)
    alone = finetune(pool, FURTHER.replace(seed=8), images)
    helped = finetune(twin, FURTHER.replace(seed=8), images, workers=2)
    # another number of threads rounds differently
    same_weights(alone, helped, rtol=1e-4, atol=1e-4)
    assert "a worker stopped" not in capfd.readouterr().err


def test_a_finished_derived_pool_comes_back_at_once(pool, images, capsys):
    child = finetune(pool, FURTHER, images)
    stamp = (child.folder.path / "manifest.jsonl").read_bytes()
    training.train.finetune_pool(pool, FURTHER, images)
    assert (
        "cached" in capsys.readouterr().out
        and (child.folder.path / "manifest.jsonl").read_bytes() == stamp
    )


def test_a_parent_trained_anew_is_another_parent_and_workers_refuse_the_old_child(images, tmp_path):
    parent = train(SMALL, images, tmp_path)
    child = finetune(parent, FURTHER, images)
    parent.folder.write_bytes(weights_name(1), parent.folder.read_bytes(weights_name(0)))
    assert finetune(parent, FURTHER, images).key != child.key
    for pool in (child, open_pool(child.folder)):
        with pytest.raises(ValueError, match="no longer there") as caught:
            pool.parent  # noqa: B018
        assert "\n" not in str(caught.value)


def test_an_altered_file_of_the_parent_is_named(images, tmp_path):
    parent = train(SMALL, images, tmp_path)
    path = parent.folder.path / weights_name(3)
    path.write_bytes(path.read_bytes()[:-3] + b"abc")
    with pytest.raises(store.Corrupt, match=r"model_003\.safetensors"):
        finetune(parent, FURTHER, images)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_models": 6}, "num_models=6, but the parent's is 4"),
        ({"population": 0}, "population=0, but the parent's is 20"),
        ({"split": "bernoulli"}, "split='bernoulli', but the parent's is 'pairs'"),
        ({"parent": "0" * 64}, "no pool in"),
        ({"model_args": {"width": 5}}, "does not fit tinycnn"),
        ({"model": "snn", "model_args": DIRECT}, "convert_pool"),
        ({"loss": "tet"}, "no spiking network"),
        ({"defense": "mixup"}, "did you mean .mmd_mixup"),
        ({"defense": "dp_sgd"}, "with a parent"),
    ],
)
def test_children_that_do_not_fit_their_parent_are_refused_before_anything_is_written(
    pool, images, root, change, message
):
    before = sorted(root.iterdir())
    with pytest.raises(ValueError, match=message) as caught:
        train(
            SMALL.replace(
                parent=change.get("parent", pool.key),
                **{k: v for k, v in change.items() if k != "parent"},
            ),
            images,
            root,
        )
    assert "\n" not in str(caught.value) and sorted(root.iterdir()) == before


def test_other_images_and_other_members_than_the_parents_are_refused(pool, images, root):
    other = data.load("synthetic:classes=4,n=180,size=8,channels=1,seed=2")
    for derive in (lambda: finetune(pool, FURTHER, other), lambda: convert(pool, other)):
        with pytest.raises(ValueError, match="trained on other images"):
            derive()
    with pytest.raises(ValueError, match="member differs"):
        train(SMALL.replace(parent=pool.key), images, root, member=~pool.member)


def test_a_parent_with_a_diverged_model_is_refused(images, tmp_path):
    parent = train(SMALL, images, tmp_path)
    parent.folder.write_json("diverged_002.json", {"epoch": 1, "lr": 1.0})
    for derive in (lambda: finetune(parent, FURTHER, images), lambda: convert(parent, images)):
        with pytest.raises(ValueError, match=r"model 2 of pool .* diverged"):
            derive()
    assert list(tmp_path.glob("pool-*")) == [parent.folder.path]


def test_no_epochs_without_a_parent_is_no_recipe():
    with pytest.raises(ValueError, match="epochs=0"):
        Recipe(epochs=0)
    assert Recipe(epochs=0, parent="f" * 64).epochs == 0


def test_tet_is_the_mean_cross_entropy_of_the_steps_and_the_distance_of_the_logits_from_one():
    # (T, B, K)
    logits = torch.tensor([[[0.0, 0.0], [2.0, 0.0]], [[1.0, 1.0], [0.0, 3.0]]], dtype=torch.float64)
    labels = torch.tensor([0, 1])
    # (B, T)
    ce = np.array([[np.log(2), np.log(2)], [2 + np.log1p(np.exp(-2)), np.log1p(np.exp(-3))]])
    mse = np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 4.0]]).mean(1)
    np.testing.assert_allclose(
        losses.LOSSES["tet"](logits, labels), 0.95 * ce.mean(1) + 0.05 * mse, rtol=1e-12
    )


@pytest.mark.parametrize("loss", ["cross_entropy", "tet"])
def test_a_directly_trained_spiking_pool_is_the_same_stacked_and_plain(images, tmp_path, loss):
    recipe = Recipe(
        model="snn",
        model_args={**DIRECT, "surrogate": "atan"},
        num_models=2,
        epochs=1,
        batch=16,
        lr=0.05,
        dtype="float64",
        loss=loss,
    )
    plain = train(recipe, images, tmp_path / "plain")
    stacked = train(recipe, images, tmp_path / "stacked", strategy="stacked:2")
    assert stacked.folder.read_json("execution.json")["stacked"]
    same_weights(plain, stacked, rtol=1e-10, atol=1e-10)


def test_a_calibration_without_a_conversion_is_refused(images, tmp_path):
    recipe = SMALL.replace(model="snn", model_args={**DIRECT, "calibration": {"fit_T": 2}})
    with pytest.raises(ValueError, match="convert_pool"):
        train(recipe, images, tmp_path)


def thresholds(pool, model):
    return {k: v for k, v in pool.state(model).items() if k.endswith(("theta", "u0"))}


def test_each_model_is_converted_on_all_of_its_own_members_and_on_nothing_else(pool, images):
    converted = convert(pool, images, 3)
    x = data.normalise(images.x, images.mean, images.std)
    for m in range(4):
        by_hand = snn.convert(pool.model(m), 3, [x[pool.member[m]]])
        for name, value in by_hand.state_dict().items():
            torch.testing.assert_close(converted.state(m)[name], value)
        with torch.no_grad():
            torch.testing.assert_close(converted.model(m)(x), by_hand(x))
    assert any(
        not torch.equal(v, thresholds(converted, 1)[k]) for k, v in thresholds(converted, 0).items()
    )


def test_pixels_of_non_members_do_not_enter_a_models_thresholds(pool, images, tmp_path):
    x = images.x.clone()
    x[~pool.member[2]] = 255 - x[~pool.member[2]]
    changed = data.from_arrays(
        x.numpy(), images.y.numpy(), classes=list(images.classes), name=images.name
    )
    changed = changed._replace(mean=images.mean, std=images.std)
    twin = train(SMALL, changed, tmp_path)
    for m in range(4):  # the same networks on other pixels
        twin.folder.write_bytes(weights_name(m), pool.folder.read_bytes(weights_name(m)))
    one, other = convert(pool, images, calibration=50), convert(twin, changed, calibration=50)
    assert all(torch.equal(v, thresholds(other, 2)[k]) for k, v in thresholds(one, 2).items())
    assert any(not torch.equal(v, thresholds(other, 3)[k]) for k, v in thresholds(one, 3).items())


def test_thresholds_per_channel_of_another_T_and_of_fewer_images_are_other_pools(pool, images):
    pools = [
        convert(pool, images, **o)
        for o in ({}, {"fit_T": 1}, {"per_channel": True}, {"calibration": 30}, {"p": 2})
    ]
    assert len({p.key for p in pools}) == 5
    assert pools[2].state(0)["net.spike2.theta"].shape == (16,) and pools[2].model(0).spikes()[
        "spike2"
    ].theta.shape == (16,)
    assert convert(pool, images, fit_T=2).key == pools[0].key
    assert convert(pool, images, calibration=10**6).key == pools[0].key


def test_an_interrupted_conversion_goes_on_model_by_model_to_the_same_bytes(
    images, tmp_path, monkeypatch
):
    pools = {name: train(SMALL, images, tmp_path / name) for name in ("whole", "stopped")}
    whole = convert(pools["whole"], images)
    real, seen = snn.convert, []

    def stop(*args, **options):
        seen.append(args)  # the first is a trial
        if len(seen) == 4:
            raise Stopped
        return real(*args, **options)

    monkeypatch.setattr(snn, "convert", stop)
    with pytest.raises(Stopped):
        convert(pools["stopped"], images)
    again = convert(pools["stopped"], images)
    assert len(seen) == 7 and digests(again.folder.path) == digests(whole.folder.path)
    convert(pools["stopped"], images)
    assert len(seen) == 7


def test_a_pool_of_converted_weights_at_other_timesteps_wants_no_report(pool, images):
    converted = convert(pool, images, 2)
    args = {**converted.recipe.model_args, "timesteps": 3}
    copy = finetune(converted, converted.recipe.replace(model_args=args, epochs=0), images)
    assert copy.recipe.model_args["calibration"] and copy.unfinished(range(4)) == []
    assert copy.conversion_report().equals(converted.conversion_report())


def test_force_removes_no_conversion_that_cannot_be_made_here(images, tmp_path):
    parent = train(SMALL, images, tmp_path)
    converted = convert(parent, images)
    before = digests(converted.folder.path)
    with pytest.raises(ValueError, match=r"this machine has .* GPUs"):
        convert(parent, images, force=True, device="cuda:99")
    assert digests(converted.folder.path) == before
    assert converted.unfinished(range(4)) == []


@pytest.mark.parametrize("how", ["converted", "fine-tuned"])
def test_force_removes_nothing_that_starts_from_damaged_weights(images, tmp_path, how):
    parent = train(SMALL, images, tmp_path)

    def derive(**options):
        if how == "converted":
            return convert(parent, images, **options)
        return finetune(parent, SMALL.replace(epochs=1), images, **options)

    derived = derive()
    before = digests(derived.folder.path)
    path = parent.folder.path / weights_name(3)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(store.Corrupt, match=r"model_003\.safetensors"):
        derive(force=True)
    assert digests(derived.folder.path) == before and derived.unfinished(range(4)) == []


def test_a_conversion_report_is_kept_for_every_model_and_found_by_descendants(pool, images):
    converted = convert(pool, images, 2)
    report = converted.conversion_report()
    x = data.normalise(images.x[pool.member[3]], images.mean, images.std)
    expected = snn.convert(pool.model(3), 2, [x]).report
    kept = report[report["model"] == 3].drop(columns="model").reset_index(drop=True)
    assert list(kept) == list(expected) and kept["where"].tolist() == expected["where"].tolist()
    for column in ("theta", "u0", "expected_error", "clipped_mass", "firing_rate"):
        np.testing.assert_allclose(kept[column].astype(float), expected[column], rtol=1e-5)
    tuned = finetune(converted, converted.recipe.replace(epochs=1, lr=1e-3), images)
    assert tuned.conversion_report().equals(report)
    with pytest.raises(ValueError, match="was not converted"):
        pool.conversion_report()


def test_a_pool_that_spikes_is_not_converted_again(pool, images):
    with pytest.raises(ValueError, match="spikes already"):
        convert(convert(pool, images), images)
    with pytest.raises(ValueError, match="surogate"):
        convert(pool, images, surogate="atan")
    with pytest.raises(ValueError, match="calibration=0"):
        convert(pool, images, calibration=0)


def test_hybrid_training_goes_from_step_to_step_with_the_thresholds_of_the_first(pool, images):
    options = {
        "timesteps": 3,
        "epochs": (2, 1, 1),
        "progress": False,
        "workers": 1,
        "strategy": "plain",
    }
    pools = training.hybrid_pools(pool, images, **options, conversion={"surrogate": "atan"})
    converted = pools[1].parent
    assert (
        list(pools) == [1, 2, 3]
        and converted.recipe.epochs == 0
        and converted.parent.key == pool.key
    )
    assert pools[2].parent.key == pools[1].key and pools[3].parent.key == pools[2].key
    assert [pools[T].recipe.epochs for T in pools] == [2, 1, 1] and [
        pools[T].model(0).timesteps for T in pools
    ] == [1, 2, 3]
    for m in range(4):
        for name, theta in thresholds(converted, m).items():
            assert all(torch.equal(pools[T].state(m)[name], theta) for T in pools)
    assert not torch.equal(
        pools[3].state(0)["net.head.weight"], pools[2].state(0)["net.head.weight"]
    )
    again = training.hybrid_pools(pool, images, **options, conversion={"surrogate": "atan"})
    assert [p.key for p in again.values()] == [p.key for p in pools.values()]
    with pytest.raises(ValueError, match="one number, or one for each"):
        training.hybrid_pools(pool, images, timesteps=4, epochs=(1, 1))


def test_the_window_of_the_surrogate_narrows_with_the_time_steps_where_widths_are_given(
    pool, images
):
    options = {"timesteps": 2, "epochs": 1, "progress": False, "workers": 1, "strategy": "plain"}
    pools = training.hybrid_pools(pool, images, **options, widths=[0.5, 1e-9])
    given = [one.recipe.model_args["surrogate_args"] for one in pools.values()]
    assert given == [{"width": 0.5}, {"width": 1e-9}]
    default = training.hybrid_pools(pool, images, **options)
    usual = default[1].state(0)
    weights = next(name for name, value in usual.items() if value.ndim == 4)  # of a convolution
    assert torch.equal(pools[1].state(0)[weights], usual[weights])  # 1/2 is the default
    # no gradient passes a window of no width: only what follows the last spike goes on learning
    assert torch.equal(pools[2].state(0)[weights], pools[1].state(0)[weights])
    assert not torch.equal(default[2].state(0)[weights], usual[weights])
    with pytest.raises(ValueError, match=r"widths=\[0.5\] for timesteps=2: give one for each"):
        training.hybrid_pools(pool, images, **options, widths=[0.5])


@pytest.mark.slow
def test_fine_tuning_a_conversion_repairs_what_one_time_step_lost_on_digits(tmp_path):
    images = data.load("digits")
    ann = train(Recipe(num_models=2, epochs=6), images, tmp_path, strategy="auto")
    x = data.normalise(images.x, images.mean, images.std)

    def accuracy(pool):
        with torch.no_grad():
            right = np.stack([(pool.model(m)(x).argmax(1) == images.y).numpy() for m in range(2)])
        return right[~pool.member].mean()

    hybrid = training.hybrid_pools(ann, images, timesteps=2, epochs=(2, 1), progress=False)
    converted = accuracy(hybrid[1].parent)
    assert (
        accuracy(hybrid[1]) > converted + 0.02
        and accuracy(hybrid[2]) > 0.95
        and accuracy(ann) > 0.96
    )


def test_thresholds_are_not_given_to_other_neurons(pool, images):
    converted = convert(pool, images, 2)
    bare = {"base": pool.recipe.model, "base_args": pool.recipe.model_args, "timesteps": 3}
    with pytest.raises(ValueError, match="differ from the parent's in calibration, pool"):
        finetune(converted, Recipe(model="snn", model_args=bare, num_models=4, epochs=1), images)
    longer = converted.recipe.replace(
        model_args={**converted.recipe.model_args, "timesteps": 3}, epochs=1, parent=converted.key
    )
    assert finetune(converted, longer, images).model(0).timesteps == 3


@pytest.mark.parametrize(
    "options",
    [{"fit_T": 0}, {"p": 3}, {"calibration": 2.5}, {"beta": 0.9}, {"timesteps": 1.5}],
    ids=lambda o: next(iter(o)),
)
def test_options_that_no_conversion_takes_are_named_before_anything_is_written(
    pool, images, root, options
):
    before = set(root.iterdir())
    with pytest.raises(ValueError, match=next(iter(options))):
        convert(pool, images, **{"timesteps": 2, **options})
    assert set(root.iterdir()) == before


def test_conversion_quality_counts_the_right_answers_of_every_conversion_made_alone(pool, images):
    table = training.conversion_quality(pool, images, [1, 2, 3], models=[1])
    assert len(table) == 10 and list(table["timesteps"][:5]) == [1, 2, 2, 3, 3]
    foreign = torch.from_numpy(np.flatnonzero(~pool.member[1]))
    asked = foreign[torch.randperm(len(foreign), generator=seeds.generator(0, 1, "quality"))]
    own = torch.from_numpy(np.flatnonzero(pool.member[1]))
    own = own[torch.randperm(len(own), generator=seeds.generator(0, 1, "calibration"))]
    x, fitted = (data.normalise(images.x[rows], images.mean, images.std) for rows in (asked, own))
    for row in table.itertuples():
        fit_T = row.timesteps if row.fit == "refit" else 1
        with torch.no_grad():
            alone = snn.convert(
                pool.model(1),
                row.timesteps,
                [fitted],
                fit_T=fit_T,
                per_channel=row.per == "channel",
            )(x)
            network = pool.model(1)(x)
        right = [int((answers.argmax(1) == images.y[asked]).sum()) for answers in (alone, network)]
        assert [row.right, row.network] == right and row.images == len(asked)


def test_a_pool_that_pools_by_a_maximum_is_refused_before_anything_is_written_and_its_advice_works(
    images, root
):
    recipe = SMALL.replace(model="fast", model_args={"width": 4, "pooling": "max"}, epochs=1)
    pool = train(recipe, images, root)
    before = sorted(root.iterdir())
    with pytest.raises(ValueError, match=r'MaxPool2d of spikes is not .* pool_layers="avg"'):
        convert(pool, images)
    assert sorted(root.iterdir()) == before
    assert convert(pool, images, pool_layers="avg").recipe.model_args["pool"] == "avg"
