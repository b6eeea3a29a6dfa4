"""Every family, strategy, loss, defense and augmentation on a pretended CUDA device: no operation
mixes devices, no step waits, no two streams touch the same memory without an order.

Not collected by itself: tests/test_rehearsal.py runs it in a process of its own, with the plugin
`fakecuda` that pretends. What it lies about stands in its docstring; numbers and speed are among
that. Launches and waits of a step are bounded here, as measured on 23 November 2026.
"""

import fakecuda
import numpy as np
import pytest
import torch

from mia_nb import data, querying, training
from mia_nb.attacks import score
from mia_nb.querying import query
from mia_nb.training import clipped, execution, plans
from mia_nb.types import Recipe

# two epochs of two steps: the first of each makes something, the second finds it
SMALL = {"num_models": 2, "epochs": 2, "batch": 30, "lr": 0.05, "dtype": "float32"}
SNN = {"model": "snn", "model_args": {"base": "tinycnn", "base_args": {"width": 8}, "timesteps": 2}}
SPIKING = {
    "model": "snn",
    "model_args": {"base": "resnet18", "base_args": {"width": 8}, "timesteps": 4},
}
FLOW = {"width": 8, "steps": 2}
FAMILIES = {  # name: (recipe, launches of a plain step at most, waits of it)
    "tinycnn": ({"model_args": {"width": 8}}, 40, 0),
    "resnet14": ({"model": "resnet14", "model_args": {"width": 8}}, 185, 0),
    "resnet18": ({"model": "resnet18", "model_args": {"width": 8}}, 170, 0),
    "vgg16": ({"model": "vgg16", "model_args": {"width": 8}}, 135, 0),
    "bfloat16": ({"model": "resnet14", "model_args": {"width": 8}, "dtype": "bfloat16"}, 270, 0),
    "snn": (SNN, 185, 0),
    "snn tet": ({**SNN, "loss": "tet"}, 200, 0),
    "snn resnet18": (SPIKING, 1860, 0),
    "odenet": ({"model": "odenet", "model_args": FLOW}, 180, 0),
    "sdenet": ({"model": "sdenet", "model_args": {**FLOW, "k": 0.1}}, 200, 0),
    "replaced": ({"model": "replaced", "model_args": {"base_args": {"width": 8}}}, 600, 0),
}
# parts of the plan for a GPU, which tests/test_rehearsal.py runs too, train ResNet18 and spike in it
PLANNED = {"resnet18", "snn resnet18"}
DEFENSES = ("l1", "l2", "early_stopping", "dropout", "label_smoothing", "mmd_mixup", "relaxloss")
AUGMENTATIONS = ("crop", "flip", "cutout", "crop+flip+cutout")


@pytest.fixture(scope="module")
def images():
    return data.load("synthetic:classes=4,n=160,size=16,channels=3,seed=1")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Results of tests that ask for a pool and not for its training: each is trained once."""
    return tmp_path_factory.mktemp("results")


def narrow(images, root):
    """A pool of two narrow networks."""
    recipe = Recipe(**{**SMALL, "model_args": {"width": 4}})
    return training.train_pool(recipe, images, root=root, device="cuda", progress=False)


def plan_of(images, options, strategy="plain"):
    """A training of two models on the pretended device, with its group."""
    there = images._replace(x=images.x.cuda(), y=images.y.cuda())
    recipe = Recipe(**{**SMALL, **options})
    member = np.zeros((2, 160), bool)
    member[:, :96] = True
    device = torch.device("cuda")
    _, models = execution.parse_strategy(strategy)
    plan = plans.Plan(recipe, there, member, device)
    plan = execution.with_strategy(plan, stacked=strategy != "plain", compiled=False)
    return clipped.group_of(plan, list(range(models or 1)))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in PLANNED])
def test_a_family_trains_answers_and_is_attacked(images, tmp_path, name):
    # further steps and epochs are those of the tests of a step, a defense, a training that is killed
    recipe = Recipe(**{**SMALL, "batch": 80, "epochs": 1, **FAMILIES[name][0]})
    torch.cuda.manual_seed(5)  # a state that no seed of a training gives
    before = torch.cuda.get_rng_state()
    pool = training.train_pool(recipe, images, root=tmp_path, device="cuda", progress=False)
    assert torch.equal(torch.cuda.get_rng_state(), before), "the caller's generator was used"
    if recipe.model != "snn":  # so little trained, it never spikes, and such outputs are refused
        signals = query(pool, images, device="cuda", progress=False)
        assert np.isfinite(signals.margin).all()
        assert np.isfinite(score("loss", signals).value).all()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_step_waits_for_nothing_and_launches_no_more_than_it_did(images, name):
    options, most, waits = FAMILIES[name]
    group = plan_of(images, options)
    x, y = torch.randn(1, 16, 3, 16, 16).cuda(), torch.zeros(1, 16, dtype=torch.int64).cuda()
    group.step(x, y, 0.01)
    with fakecuda.counted() as seen:
        group.step(x, y, 0.01)
    assert seen.total("waits") == waits and not seen.races, seen.table()
    assert seen.total("launches") <= most, seen.table()


@pytest.mark.parametrize("strategy", ["stacked:2"])
@pytest.mark.parametrize("name", ["tinycnn", "sdenet", "snn"])
def test_a_strategy_trains_without_mixing_devices(images, tmp_path, name, strategy):
    recipe = Recipe(**{**SMALL, **FAMILIES[name][0]})
    pool = training.train_pool(
        recipe, images, root=tmp_path, device="cuda", strategy=strategy, progress=False
    )
    assert pool.status == ["trained"] * 2


@pytest.mark.parametrize("defense", [*DEFENSES, "dp_sgd"])
def test_a_defense_trains(images, tmp_path, defense):
    given = {"held_out": 20} if defense in ("early_stopping", "mmd_mixup") else {}
    options = {"defense": defense, "defense_args": given, "population": 40}
    recipe = Recipe(**{**SMALL, "model_args": {"width": 4}, **options})
    torch.cuda.manual_seed(5)  # a state that no seed of a training gives
    before = torch.cuda.get_rng_state()
    pool = training.train_pool(recipe, images, root=tmp_path, device="cuda", progress=False)
    assert pool.status == ["trained"] * 2
    assert torch.equal(torch.cuda.get_rng_state(), before), "the caller's generator was used"


@pytest.mark.parametrize("augment", AUGMENTATIONS)
def test_an_augmentation_is_made_on_the_device(images, tmp_path, augment):
    recipe = Recipe(**{**SMALL, "epochs": 1, "model_args": {"width": 4}, "augment": augment})
    pool = training.train_pool(recipe, images, root=tmp_path, device="cuda", progress=False)
    signals = query(pool, images, queries=3, augment=True, device="cuda", progress=False)
    assert signals.shape == (2, 3, 160)


@pytest.mark.parametrize(
    "options",
    [
        {"queries": 3, "input_dropout": 0.1},
        {"temperature": 2.0, "output": "rounding"},
    ],
)
def test_a_query_runs_on_the_device(images, root, options):
    pool = narrow(images, root)
    signals = query(pool, images, device="cuda", progress=False, **options)
    assert np.isfinite(signals.margin).all()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tinycnn", {}),
        ("tinycnn", {"input_dropout": 0.1}),
        ("tinycnn", {"augment": True}),
        ("sdenet", {"noise": True}),
        ("snn", {"input_dropout": 0.1, "mask_scope": "step"}),
    ],
)
def test_how_often_a_query_waits_depends_on_neither_queries_nor_images(
    images, root, monkeypatch, name, options
):
    recipe = Recipe(**{**SMALL, **FAMILIES[name][0]})
    pool = training.train_pool(
        recipe, images, root=root, device="cuda", strategy="plain", progress=False
    )
    # it may not spike yet
    monkeypatch.setattr(querying.signals, "check_outputs", lambda *_: None)
    more = data.load("synthetic:classes=4,n=700,size=16,channels=3,seed=1")
    waits = []
    for shown, queries in ((images, 2 if options else 1), (more, 3 if options else 1)):
        with fakecuda.counted() as seen:
            query(pool, shown, queries=queries, batch=256, device="cuda", progress=False, **options)
        assert not seen.races and not seen.total("pageable"), seen.table()
        rest = [n for (_, place), n in seen.waits.items() if not place.startswith("data")]
        waits.append(sum(rest))
        out = {place: n for (what, place), n in seen.waits.items() if what == "device to host"}
        assert list(out.values()) == [2], seen.table()  # of each of the two models its logits
    # all else: images, labels and weights to the device
    assert waits[0] == waits[1], seen.table()


def test_conversion_and_hybrid_training_run_on_the_device(images, root):
    pool = narrow(images, root)
    tuned = training.hybrid_pools(
        pool, images, timesteps=2, epochs=1, device="cuda", progress=False
    )
    signals = query(tuned[2], images, per_step=True, device="cuda", progress=False)
    assert signals.shape == (2, 2, 160)


def test_a_killed_training_goes_on_to_the_same_bytes(images, tmp_path):
    recipe = Recipe(**{**SMALL, "model_args": {"width": 4}, "num_models": 4})
    pool = training.train_pool(recipe, images, root=tmp_path, device="cuda", progress=False)
    whole = pool.state(3)
    pool.folder.remove(pool.weights_name(3))
    again = training.train_pool(recipe, images, root=tmp_path, device="cuda", progress=False)
    found = again.state(3)
    for name, tensor in whole.items():
        assert torch.equal(found[name], tensor)
