"""Pools of neural ODE and SDE classifiers: stacked noise, snapshots along training,
replace-then-finetune, resumption.
"""

import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from toys_flow import replaced

from mia_nb import data, store, training
from mia_nb.training import loop, plans, progress
from mia_nb.training.pool import weights_name
from mia_nb.types import Recipe

TINY = {"width": 4, "steps": 2}
ODE = Recipe(
    model="odenet", model_args=TINY, num_models=2, population=20, epochs=2, batch=16, lr=0.05
)
SDE = ODE.replace(model="sdenet", model_args={**TINY, "k": 0.3})
RESNET = ODE.replace(model="resnet14", model_args={"width": 4, "blocks": 1})
TUNE = Recipe(epochs=2, batch=16, lr=0.02, seed=5)
BLOCK = {"steps": 2, "k": 0.3}
LAST = ("network.groups.2.", "network.head.")  # what a frozen replaced network still learns


@pytest.fixture(scope="module")
def images():
    return data.load("digits", limit=100)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("pools")


@pytest.fixture(scope="module")
def parent(images, root):
    return train(RESNET, images, root)


def train(recipe, images, root, **options):
    return training.train_pool(
        recipe, images, root=root, progress=False, **{"workers": 1, "strategy": "plain", **options}
    )


def swap(pool, images, recipe=TUNE, **options):
    options = {"workers": 1, "strategy": "plain", "progress": False, "block": BLOCK, **options}
    return replaced(pool, recipe, images, **options)


def same_weights(one, other, rows=None, **close):
    for m in range(len(one.member)) if rows is None else rows:
        assert one.state(m).keys() == other.state(m).keys()
        for name, tensor in one.state(m).items():
            torch.testing.assert_close(
                other.state(m)[name], tensor, **(close or {"rtol": 0, "atol": 0})
            )


def differ(one, other, name):
    return not torch.equal(one[name], other[name])


def digests(folder):
    files = sorted(p for p in Path(folder).iterdir() if p.suffix in (".safetensors", ".npy"))
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def plain_and_stacked(recipe, images, root):
    plain, stacked = (
        train(recipe, images, root / kind[:5], strategy=kind) for kind in ("plain", "stacked:2")
    )
    assert stacked.folder.read_json("execution.json")["stacked"]
    return plain, stacked


@pytest.mark.parametrize(
    ("model", "args"),
    [
        ("odenet", {"method": "rk4"}),
        ("odenet", {"norm": "gn"}),
        ("sdenet", {"k": 0.3}),
        ("sdenet", {"k": 0.3, "method": "stoch_rk4", "blocks": 2}),
        ("sdenet", {"k": 0.3, "lipschitz": 0.5, "clip": 2.0}),
        ("sonode", {}),
        ("hbnode", {"k": 0.1}),
        ("anode", {"augment": 3}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else value,
)
def test_stacked_flows_equal_one_by_one_in_float64_with_the_same_noise(
    model, args, images, tmp_path
):
    recipe = ODE.replace(model=model, model_args={**TINY, **args}, epochs=3, dtype="float64")
    plain, stacked = plain_and_stacked(recipe, images, tmp_path)
    same_weights(plain, stacked, rtol=1e-10, atol=1e-10)
    assert differ(plain.state(1), plans.begin(recipe, images, 1).state_dict(), "head.weight")
    for m in range(len(plain.member)):
        np.testing.assert_allclose(plain.trace(m), stacked.trace(m), rtol=2e-3)


@pytest.mark.parametrize("freeze", [False, True])
def test_stacked_replaced_networks_equal_one_by_one_in_float64(freeze, images, tmp_path):
    recipe, pools = TUNE.replace(dtype="float64", epochs=3), []
    for kind in ("plain", "stacked:2"):
        start = train(RESNET.replace(dtype="float64", epochs=1), images, tmp_path / kind[:5])
        pools.append(swap(start, images, recipe, freeze=freeze, strategy=kind))
    assert pools[1].folder.read_json("execution.json")["stacked"] and pools[0].key == pools[1].key
    same_weights(*pools, rtol=1e-10, atol=1e-10)


def test_a_models_noise_depends_on_neither_group_nor_companions_to_the_last_bit(images, tmp_path):
    # narrower or in float32, a vector instruction may span two models, and a sum be rounded in
    # another order
    recipe = SDE.replace(model_args={**SDE.model_args, "width": 8}, dtype="float64", epochs=1)
    large = recipe.replace(num_models=4)
    two, four = (train(large, images, tmp_path / str(g), strategy=f"stacked:{g}") for g in (2, 4))
    same_weights(two, four)
    same_weights(train(recipe, images, tmp_path, strategy="stacked"), four)
    small, large = (train(r, images, tmp_path / "plain") for r in (recipe, large))
    same_weights(small, large)


def test_every_row_epoch_and_seed_has_noise_of_its_own_and_stacked_rows_have_the_plain_ones(images):
    def plan(seed, stacked):
        recipe = training.placing.complete(SDE.replace(seed=seed))
        return plans.Plan(
            recipe, images, np.ones((4, 100), bool), torch.device("cpu"), stacked, False
        )

    def drawn(seed, epoch, ids):
        group = loop.Group(plan(seed, True), ids)
        group.seed_noise(epoch)
        return {
            (seed, epoch, m): torch.randn(8, generator=g)
            for m, g in zip(ids, group.generators, strict=True)
        }

    draws = drawn(0, 0, [0, 3]) | drawn(0, 1, [0, 3]) | drawn(1, 0, [0, 3])
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(draws.values(), 2))
    assert torch.equal(drawn(0, 0, [3, 1])[0, 0, 3], draws[0, 0, 3])
    with torch.random.fork_rng(devices=[]):
        loop.Group(plan(0, False), [3]).seed_noise(1)
        assert torch.equal(torch.randn(8), draws[0, 1, 3])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schedule": "plateau"}, "learning rate per model"),
        (
            {"model_args": {**TINY, "k": 0.0, "method": "dopri5"}},
            "method='dopri5' works under no torch.func transform",
        ),
        (
            {"model_args": {**TINY, "k": 0.3, "method": "srk"}},
            "method='srk' works under no torch.func transform",
        ),
    ],
    ids=["plateau", "dopri5", "srk"],
)
def test_flows_that_cannot_be_stacked_are_trained_one_by_one_with_one_line_and_auto_is_silent(
    change, reason, images, tmp_path, capsys
):
    recipe = SDE.replace(epochs=1, **change)
    asked = train(recipe, images, tmp_path / "asked", strategy="stacked")
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "one model at a time" in said and reason in said
    auto = train(recipe, images, tmp_path / "auto", strategy="auto")
    assert capsys.readouterr().err == ""
    assert not any(p.folder.read_json("execution.json")["stacked"] for p in (asked, auto))
    same_weights(asked, auto)


@pytest.mark.parametrize("strategy", ["plain", "stacked"])
def test_training_with_noise_leaves_the_global_generator_as_found(strategy, images, tmp_path):
    before = torch.get_rng_state()
    train(SDE.replace(snapshots=[1]), images, tmp_path, strategy=strategy)
    assert torch.equal(torch.get_rng_state(), before)


class Stopped(Exception):
    pass


@pytest.mark.parametrize(
    ("strategy", "place"),
    [("plain", "epoch 3"), ("plain", "snapshot 4"), ("stacked:2", "snapshot 4")],
)
def test_an_sde_pool_killed_on_its_way_ends_with_the_bytes_of_one_never_killed(
    strategy, place, images, tmp_path, monkeypatch
):
    recipe = SDE.replace(epochs=4, snapshots=[1, 3], optimizer="adam", lr=0.01)
    whole = train(recipe, images, tmp_path / "whole", strategy=strategy)
    what, number = place.split()
    seen, write = itertools.count(1), store.Folder.write_bytes

    def update(*event):
        if next(seen) == int(number):
            raise Stopped

    def write_bytes(folder, name, content):
        if name.startswith("snapshot") and next(seen) == int(number):
            raise Stopped
        write(folder, name, content)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(
            *(
                (progress.Advance, "report", update)
                if what == "epoch"
                else (store.Folder, "write_bytes", write_bytes)
            )
        )
        train(recipe, images, tmp_path / "killed", strategy=strategy, checkpoint=0)
    assert list((tmp_path / "killed").glob("*/part_*"))
    again = train(recipe, images, tmp_path / "killed", strategy=strategy, checkpoint=0)
    assert digests(again.folder.path) == digests(whole.folder.path)
    assert len(list(again.folder.path.glob("snapshot_*"))) == 4


def test_a_damaged_snapshot_is_refused_and_made_again_to_the_same_bytes(images, tmp_path):
    recipe = SDE.replace(snapshots=[1])
    pool = train(recipe, images, tmp_path)
    before, path = digests(pool.folder.path), pool.folder.path / weights_name(1, 1)
    path.write_bytes(path.read_bytes()[:-3] + b"abc")
    with pytest.raises(store.Corrupt, match=r"snapshot_001_00001\.safetensors"):
        pool.at(1).state(1)
    assert pool.unfinished(range(2)) == [1]
    train(recipe, images, tmp_path)
    assert digests(pool.folder.path) == before
    path.unlink()
    train(recipe, images, tmp_path)
    assert digests(pool.folder.path) == before


@pytest.mark.parametrize("strategy", ["plain", "stacked:2"])
def test_a_snapshot_is_the_end_of_a_run_stopped_there_and_takes_nothing_from_the_run_that_goes_on(
    strategy, images, tmp_path
):
    recipe = SDE.replace(schedule="constant", epochs=3)
    kept = train(recipe.replace(snapshots=[1, 2]), images, tmp_path, strategy=strategy)
    for epoch in (1, 2, 3):
        stopped = train(recipe.replace(epochs=epoch), images, tmp_path, strategy=strategy)
        same_weights(kept.at(epoch), stopped)
        assert stopped.key != kept.key
    assert differ(kept.at(1).state(0), kept.state(0), "head.weight")
    assert torch.equal(kept.at(2).model(1).head.weight, kept.at(2).state(1)["head.weight"])


def test_epochs_that_were_not_kept_are_refused_and_those_beyond_the_end_are_dropped(
    images, tmp_path
):
    recipe = SDE.replace(snapshots=[9, 1, 2, 1])
    assert recipe.snapshots == [1] == Recipe.from_json(recipe.to_json()).snapshots
    pool = train(recipe, images, tmp_path)
    assert pool.key == train(SDE.replace(snapshots=[1]), images, tmp_path).key
    for epoch in (0, 3, 9):
        with pytest.raises(
            ValueError, match=rf"epoch {epoch} .* was not kept; there are 1, 2"
        ) as caught:
            pool.at(epoch)
        assert "\n" not in str(caught.value)
    same_weights(pool.at(2), pool)
    assert (
        pool.at(2).epoch is None and pool.at(1).at(2).epoch is None and pool.at(1).at(1).epoch == 1
    )
    for wrong in ([0], [1.5], [True], ["1"]):
        with pytest.raises(ValueError, match="wanted a list of epochs"):
            SDE.replace(snapshots=wrong)


@pytest.mark.parametrize("base", ["resnet14", "odenet"])
def test_a_replaced_pool_starts_with_all_of_its_parent_but_the_last_group(base, images, root):
    start = train(RESNET if base == "resnet14" else ODE, images, root)
    begun = swap(start, images, TUNE.replace(epochs=0, parent=start.key))
    for m in range(2):
        mine, theirs = begun.state(m), start.state(m)
        adopted = {f"network.{name}" for name in theirs if not name.startswith("groups.2.")}
        assert all(
            torch.equal(mine[name], theirs[name.removeprefix("network.")]) for name in adopted
        )
        fresh = mine.keys() - adopted
        assert (
            adopted
            and fresh
            and all(name.startswith("network.groups.2.") and ".drift." in name for name in fresh)
        )
    weight = next(name for name in sorted(fresh) if name.endswith("drift.first.state.weight"))
    reseeded = swap(start, images, TUNE.replace(epochs=0, parent=start.key, seed=6))
    assert differ(begun.state(0), begun.state(1), weight) and differ(
        begun.state(0), reseeded.state(0), weight
    )
    if base == "odenet":  # same names and shapes: nothing of the old block may be taken over
        assert differ(
            begun.state(0), {weight: start.state(0)[weight.removeprefix("network.")]}, weight
        )


def test_frozen_layers_stay_as_they_were_to_the_last_bit_with_their_statistics(parent, images):
    frozen, free = (swap(parent, images, freeze=freeze) for freeze in (True, False))
    begun = swap(parent, images, TUNE.replace(epochs=0, parent=parent.key))
    for m in range(2):
        before = begun.state(m)
        kept = {name for name in before if not name.startswith(LAST)}
        assert any("running_var" in name for name in kept)
        assert {
            name for name in before if differ(before, frozen.state(m), name)
        } == before.keys() - kept
        assert {name for name in kept if differ(before, free.state(m), name)} == kept
    assert frozen.key != free.key


def test_a_network_without_groups_to_replace_is_refused_in_one_line(images, root):
    start = train(ODE.replace(model="tinycnn", model_args={"width": 4}, epochs=1), images, root)
    before = sorted(root.iterdir())
    with pytest.raises(ValueError, match="TinyCNN has no `groups`") as caught:
        swap(start, images)
    assert "\n" not in str(caught.value) and sorted(root.iterdir()) == before


def test_a_replaced_pool_can_be_trained_further(parent, images):
    child = swap(parent, images)
    options = {"progress": False, "workers": 1, "strategy": "plain"}
    same = training.train.finetune_pool(child, child.recipe.replace(epochs=0), images, **options)
    same_weights(child, same)
    further = training.train.finetune_pool(
        child, child.recipe.replace(epochs=1, seed=8), images, **options
    )
    assert differ(further.state(0), child.state(0), "network.head.weight")
    assert further.parent.key == child.key and further.ancestor.key == parent.key
    assert np.array_equal(further.member, parent.member) and np.array_equal(
        further.population, parent.population
    )


def test_the_key_of_a_replaced_pool_holds_its_parents_weights_and_its_block(images, tmp_path):
    start, begin = train(RESNET.replace(epochs=1), images, tmp_path), TUNE.replace(epochs=1)
    keys = [
        swap(start, images, begin, block=block).key
        for block in (BLOCK, {**BLOCK, "k": 0.2}, {**BLOCK, "method": "rk4"})
    ]
    start.folder.write_bytes(weights_name(1), start.folder.read_bytes(weights_name(0)))
    keys.append(swap(start, images, begin).key)
    assert len(set(keys)) == 4


@pytest.mark.parametrize("strategy", ["plain", "stacked", "auto"])
def test_training_without_the_noise_that_the_model_wants_is_refused(strategy, images, tmp_path):
    with pytest.raises(
        ValueError, match="noise is switched off, but this block trains with it"
    ) as caught:
        train(
            SDE.replace(model="toys_flow:silenced", model_args={}),
            images,
            tmp_path,
            strategy=strategy,
        )
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("*/model_*"))


def test_a_pool_that_trains_without_its_noise_is_the_pool_of_the_equation_without_noise(
    images, tmp_path
):
    quiet = SDE.replace(model_args={**SDE.model_args, "noise_train": False})
    pools = [train(recipe, images, tmp_path) for recipe in (ODE, quiet, SDE)]
    same_weights(pools[0], pools[1])
    assert len({p.key for p in pools}) == 3
    assert all(differ(pools[1].state(m), pools[2].state(m), "head.weight") for m in range(2))


@pytest.mark.parametrize("strategy", ["plain", "stacked"])
def test_a_pool_of_flows_that_diverges_names_the_model_and_what_to_change(
    strategy, images, tmp_path
):
    with pytest.raises(
        ValueError, match=r"model 0 diverged in epoch 1 .*lower lr.*more steps.*lipschitz"
    ) as caught:
        train(ODE.replace(lr=1e12, schedule="constant"), images, tmp_path, strategy=strategy)
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("*/model_*"))


def test_a_model_that_diverges_in_a_stack_changes_no_bit_of_its_companions(images, tmp_path):
    tune, pools = SDE.replace(num_models=4, lr=0.01), {}
    options = {"progress": False, "workers": 1, "strategy": "stacked:4"}
    for name in ("sound", "broken"):
        start = train(SDE.replace(num_models=4, epochs=1), images, tmp_path / name)
        if name == "broken":  # not one of the first two models, on which stacking is tried
            huge = {k: v * 1e30 if "drift" in k else v for k, v in start.state(2).items()}
            start.folder.write_bytes(weights_name(2), safetensors.torch.save(huge))
            with pytest.raises(
                ValueError, match=r"model 2 diverged in epoch 1 .* the other models are kept"
            ):
                training.train.finetune_pool(start, tune, images, **options)
            folder = next(p for p in (tmp_path / name).glob("pool-*tuned*"))
            pools[name] = training.load_pool(folder.name, tmp_path / name)
        else:
            pools[name] = training.train.finetune_pool(start, tune, images, **options)
    assert pools["broken"].status == ["trained", "trained", "diverged in epoch 1", "trained"]
    same_weights(pools["sound"], pools["broken"], rows=[0, 1, 3])


def test_a_state_that_blows_up_in_an_adaptive_solver_is_a_divergence_of_its_model(tmp_path):
    recipe = Recipe(
        model="odenet",
        model_args={"width": 4, "method": "dopri5"},
        num_models=4,
        batch=16,
        epochs=2,
        lr=1e12,
        schedule="constant",
    )
    images = data.load("digits", limit=200)
    for _ in range(2):  # and a second run says the same at once
        with pytest.raises(ValueError, match=r"model 0 diverged in epoch 1 .* bound the drift"):
            training.train_pool(recipe, images, root=tmp_path, progress=False, workers=1)
    (folder,) = tmp_path.glob("pool-*")
    assert len(list(folder.glob("diverged_*.json"))) == 4
