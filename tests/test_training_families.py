"""Pools of families that share their members, and what one optimiser step of a recipe costs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mia_nb import data, training
from mia_nb.training.families import planned_recipes
from mia_nb.types import Recipe

BASE = Recipe(num_models=2, population=10, epochs=1, batch=16, lr=0.05, seed=3)
WIDTH, FLOW = {"width": 4}, {"steps": 2}
FAMILIES = [
    {"model": "resnet14", "model_args": {"blocks": 1}},
    {"model": "odenet", "lr": 0.02},
    {"weights_of": 1, "model": "sdenet", "model_args": {"k": 0.3, "noise_train": False}},
    {"replace": 0, "model_args": {"k": 0.4, "steps": 3}, "freeze": True, "seed": 8},
]
OPTIONS = {"workers": 1, "strategy": "plain", "progress": False}


@pytest.fixture(scope="module")
def images():
    return data.load("digits", limit=90)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("families")


def made(families, images, root, **options):
    given = {
        "model_args": WIDTH,
        "flow": FLOW,
        "finetune": {"epochs": 2, "lr": 0.01},
        **OPTIONS,
        **options,
    }
    return training.family_pools(families, BASE, images, root=root, **given)


@pytest.fixture(scope="module")
def pools(images, root):
    return made(FAMILIES, images, root)


def test_pools_come_in_the_order_of_their_families_and_share_their_members(pools):
    assert [pool.recipe.model for pool in pools] == ["resnet14", "odenet", "sdenet", "replaced"]
    assert len({pool.key for pool in pools}) == 4
    for pool in pools:
        assert np.array_equal(pool.member, pools[0].member) and np.array_equal(
            pool.population, pools[0].population
        )
        assert pool.member.shape == (2, 90) and pool.population.sum() == 10


def test_a_recipe_has_what_all_networks_then_all_equations_then_its_own_family_say(pools):
    resnet, ode, sde, _ = (pool.recipe for pool in pools)
    assert resnet.model_args == {"width": 4, "blocks": 1} and ode.model_args == {
        "width": 4,
        "steps": 2,
    }
    assert sde.model_args == {"width": 4, "steps": 2, "k": 0.3, "noise_train": False}
    assert (resnet.lr, ode.lr, sde.lr) == (0.05, 0.02, 0.05) and resnet.epochs == ode.epochs == 1


def test_a_replaced_family_is_fine_tuned_as_all_are_but_for_what_it_says_itself(
    pools, images, root
):
    assert (pools[3].recipe.epochs, pools[3].recipe.lr) == (2, 0.01)
    own = {"replace": 0, "model_args": {"k": 0.4, "steps": 3}, "lr": 0.03}
    recipe = made([FAMILIES[0], own], images, root)[1].recipe
    assert (recipe.epochs, recipe.lr) == (2, 0.03)


def test_a_pool_is_the_one_that_its_recipe_trains_alone(pools, images, root):
    alone = training.train_pool(
        BASE.replace(model="odenet", lr=0.02, model_args={**WIDTH, **FLOW}),
        images,
        root=root,
        **OPTIONS,
    )
    assert alone.key == pools[1].key


def test_arguments_of_equations_reach_a_family_whatever_the_case_of_its_name():
    recipes = [
        planned_recipes([{"model": name}], BASE, WIDTH, FLOW, {})[0][0]
        for name in ("odenet", "ODENet")
    ]
    assert recipes[0] == recipes[1] and recipes[1].model_args == WIDTH | FLOW


def test_weights_of_another_family_are_taken_as_they_are(pools):
    _, ode, sde, _ = pools
    assert sde.recipe.epochs == 0 and sde.recipe.parent == ode.key and sde.recipe.snapshots == []
    for m in range(2):
        mine, theirs = sde.state(m), ode.state(m)
        assert mine.keys() == theirs.keys() and all(
            torch.equal(mine[name], theirs[name]) for name in mine
        )
    assert sde.model(0).groups[0][0].k == 0.3 and ode.model(0).groups[0][0].k == 0


def test_a_replaced_family_starts_from_its_parent_with_the_recipe_of_fine_tuning_and_its_own_changes(
    pools,
):
    resnet, *_, replaced = pools
    recipe = replaced.recipe
    assert recipe.parent == resnet.key and (recipe.epochs, recipe.lr, recipe.seed) == (2, 0.01, 8)
    block = {"steps": 3, "k": 0.4}
    assert recipe.model_args == {
        "base": "resnet14",
        "base_args": {"width": 4, "blocks": 1},
        "freeze": True,
        **block,
    }
    assert all(
        torch.equal(replaced.state(0)["network." + name], resnet.state(0)[name])
        for name in ("stem.0.weight",)
    )


def test_a_family_may_take_the_weights_of_a_replaced_one(pools, images, root):
    again = {"weights_of": 3, "model": "replaced", "model_args": {"k": 0.1}}
    last = made([*FAMILIES, again], images, root)[-1]
    assert last.recipe.parent == pools[3].key and last.recipe.model_args == pools[
        3
    ].recipe.model_args | {"k": 0.1}
    assert torch.equal(
        last.state(1)["network.head.weight"], pools[3].state(1)["network.head.weight"]
    )


def test_what_is_stored_comes_back_and_options_reach_every_training(pools, images, root, capsys):
    before = {path: path.stat().st_mtime_ns for path in root.rglob("model_*")}
    again = made(FAMILIES, images, root, progress=True)
    assert [pool.key for pool in again] == [pool.key for pool in pools]
    assert capsys.readouterr().out.count("cached") == 4
    assert before == {path: path.stat().st_mtime_ns for path in root.rglob("model_*")}
    assert all(not pool.folder.read_json("execution.json")["stacked"] for pool in pools)
    with pytest.raises(ValueError, match="strategy"):
        made([{"model": "odenet", "lr": 0.03}], images, root, strategy="sideways")


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("resnet14", "families.*resnet14"),
        ({"modell": "odenet"}, "family 1: a recipe has no 'modell'; did you mean 'model'"),
        (
            {"replace": 1},
            "family 1: it starts from family 1; wanted the number of an earlier one, from 0",
        ),
        ({"replace": -1}, "family 1: it starts from family -1"),
        ({"weights_of": "0", "model": "odenet"}, "family 1: it starts from family '0'"),
        ({"replace": 0, "weights_of": 0}, "family 1: a recipe has no 'weights_of'"),
        ({"model": "odenet", "freeze": True}, "family 1: a recipe has no 'freeze'"),
        (
            {"model": "odenet", "seed": 4},
            "family 1: it changes seed, but all families have the same members",
        ),
        (
            {"replace": 0, "num_models": 4},
            "family 1: it changes num_models, but all families have the same members",
        ),
        ({"model": "odenett"}, "odenett.*odenet"),
        ({"weights_of": 0, "model": "odenet"}, "does not fit odenet"),
    ],
    ids=str,
)
def test_a_family_that_is_none_is_refused_in_one_line_and_what_came_before_is_kept(
    family, words, pools, images, root
):
    before = sorted(path.name for path in root.glob("pool-*"))
    with pytest.raises(ValueError, match=words) as caught:
        made([FAMILIES[0], family], images, root)
    assert "\n" not in str(caught.value)
    assert (
        sorted(path.name for path in root.glob("pool-*")) == before
        and pools[0].status == ["trained"] * 2
    )


@pytest.mark.parametrize(
    ("families", "words"),
    [
        ([{"defense": "relaxlos"}], "family 1: defense='relaxlos' is not known"),
        (
            [{"defense": "l1", "defense_args": {"lamda": 1}}],
            "family 1: defense l1 has no option lamda",
        ),
        ([{"model": "odnet"}], "family 1: no model 'odnet'"),
        ([{"defens_args": {}}], "family 1: a recipe has no 'defens_args'"),
        ([{"replace": 0, "optimizer": "sdg"}], "family 1: optimizer='sdg'"),
    ],
    ids=str,
)
def test_no_family_is_trained_where_a_later_one_names_what_there_is_not(
    families, words, images, tmp_path
):
    with pytest.raises(ValueError, match=words) as caught:
        made([FAMILIES[0], *families], images, tmp_path)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def cost(images, model, samples=None, batch=16, **args):
    recipe = BASE.replace(model=model, model_args={"width": 4, **args}, batch=batch, epochs=2)
    return training.step_cost(recipe, images, samples=samples, repeats=3, device="cpu")


def test_parameters_are_those_of_the_module(pools, images):
    for pool in pools:
        found = training.step_cost(pool.recipe, images, repeats=1, device="cpu")
        assert found["parameters"] == sum(p.numel() for p in pool.model(0).parameters())
        assert found["seconds"] > 0 and found["threads"] == 1


def test_seconds_are_those_of_as_many_steps_as_an_epoch_has(images):
    one, default, thousand = (
        cost(images, "resnet14", samples)["seconds"] for samples in (16, None, 16_000)
    )
    assert 0 < one < thousand
    # within a factor of ten on a busy machine
    assert 100 < thousand / one < 10_000
    assert default < thousand / 20  # (90 - 10) / 2 images are two steps
    assert cost(images, "resnet14", 10_000, batch=32)["seconds"] > 10 * one


def test_memory_of_an_equation_grows_with_its_steps_by_the_same_amount_each_and_beyond_that_of_a_resnet(
    images,
):
    steps = {n: cost(images, "sdenet", steps=n)["memory_mib"] for n in (4, 8, 16)}
    assert steps[16] - steps[8] == pytest.approx(2 * (steps[8] - steps[4]), rel=0.02)
    assert steps[16] > 2 * cost(images, "resnet14")["memory_mib"]
    large, small = (
        cost(images, "sdenet", steps=4, batch=batch)["memory_mib"] for batch in (32, 16)
    )
    assert large == pytest.approx(2 * small, rel=0.05)


def test_measuring_leaves_the_global_generator_and_the_threads_as_found_and_stores_nothing(
    images, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    cost(images, "sdenet", steps=2, k=0.3)
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads
    assert list(tmp_path.iterdir()) == []


def test_a_family_that_names_a_parent_is_refused(pools, images, root):
    with pytest.raises(ValueError, match="family 1: it names a parent"):
        made([FAMILIES[0], {"parent": pools[0].key}], images, root)


def test_a_recipe_that_cannot_be_trained_is_refused_in_one_line(images):
    with pytest.raises(ValueError, match=r"optimizer='sdg' is not one of .*did you mean 'sgd'"):
        training.step_cost(BASE.replace(optimizer="sdg"), images)
