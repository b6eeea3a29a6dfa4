"""On a GPU results agree with the CPU's in law and, after few steps in float64, in numbers."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from mia_nb import data, query, querying, training
from mia_nb.types import Recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
RECIPE = Recipe(
    num_models=4,
    epochs=2,
    batch=16,
    lr=0.05,
    model_args={"width": 8},
    augment="crop+flip",
    dtype="float64",
)


@pytest.fixture(scope="module")
def images():
    return data.load("synthetic:classes=4,n=400,size=16,channels=3,seed=1")


@pytest.fixture(scope="module")
def few():
    """For pools that need not be any good."""
    return data.load("synthetic:classes=4,n=160,size=16,channels=3,seed=1")


@pytest.fixture(scope="module")
def from_cpu(few, tmp_path_factory):
    root = tmp_path_factory.mktemp("cpu")
    return training.train_pool(RECIPE, few, root=root, device="cpu", progress=False)


@pytest.mark.parametrize("strategy", ["plain", "stacked"])
def test_a_pool_in_float64_is_the_cpus_to_eight_digits(few, tmp_path, strategy):
    pools = [
        training.train_pool(
            RECIPE, few, root=tmp_path / device, device=device, strategy=strategy, progress=False
        )
        for device in ("cpu", "cuda")
    ]
    assert pools[0].key == pools[1].key
    for m in range(4):
        for name, tensor in pools[0].state(m).items():
            torch.testing.assert_close(pools[1].state(m)[name], tensor, rtol=1e-8, atol=1e-8)
    cpu, gpu = (query(pools[0], few, device=d, force=True, progress=False) for d in ("cpu", "cuda"))
    np.testing.assert_allclose(gpu.margin, cpu.margin, rtol=1e-8, atol=1e-8)


def test_bf16_trains_to_the_accuracy_of_float32(images, tmp_path):
    accuracies = []
    for dtype in ("float32", "bfloat16"):
        shorter = {"num_models": 2, "batch": 32, "epochs": 6}
        recipe = Recipe(**{**RECIPE.to_json(), **shorter, "dtype": dtype})
        pool = training.train_pool(recipe, images, root=tmp_path, device="cuda", progress=False)
        signals = query(pool, images, device="cuda", progress=False)
        accuracies.append(signals.correct[:, 0][~signals.member].mean())
    assert abs(accuracies[0] - accuracies[1]) < 0.05


def test_masks_and_augmentation_do_not_depend_on_the_device(few, from_cpu):
    for options in ({"input_dropout": 0.1}, {"augment": True}):
        cpu, gpu = (
            query(from_cpu, few, queries=3, device=d, force=True, progress=False, **options)
            for d in ("cpu", "cuda")
        )
        np.testing.assert_allclose(gpu.margin, cpu.margin, rtol=1e-8, atol=1e-8)


def test_a_conversion_and_its_answers_per_step_do_not_depend_on_the_device(few, from_cpu):
    margins = []
    for device in ("cpu", "cuda"):
        pool = training.convert_pool(from_cpu, few, 3, device=device, progress=False, force=True)
        rates = querying.firing_rates(pool, few, device=device)
        signals = query(pool, few, per_step=True, device=device, force=True, progress=False)
        margins.append((signals.margin, rates["rate"].to_numpy()))
    # a spike may flip where a convolution rounds otherwise, even in float64: nearly all answers
    # agree, none is far off
    close = np.isclose(margins[0][0], margins[1][0], rtol=1e-6, atol=1e-6)
    assert close.mean() > 0.99
    np.testing.assert_allclose(*(rates for _, rates in margins), atol=1e-3)


def test_spiking_networks_train_on_the_gpu(images, tmp_path):
    recipe = Recipe(
        **{
            **RECIPE.to_json(),
            "model": "snn",
            "model_args": {"base": "tinycnn", "base_args": {"width": 8}, "timesteps": 2},
            "num_models": 2,
            "epochs": 8,
        }
    )
    pool = training.train_pool(recipe, images, root=tmp_path, device="cuda", progress=False)
    signals = query(pool, images, device="cuda", progress=False)
    assert signals.correct[:, 0][signals.member].mean() > 0.5


def test_networks_of_equations_train_stacked_and_answer_with_noise_on_the_gpu(images, tmp_path):
    args = {"width": 8, "steps": 2, "k": 0.1}
    recipe = Recipe(
        **{
            **RECIPE.to_json(),
            "model": "sdenet",
            "model_args": args,
            "num_models": 2,
            "batch": 32,
            "epochs": 6,
            "snapshots": [2],
        }
    )
    for strategy in ("plain", "stacked"):
        pool = training.train_pool(
            recipe,
            images,
            root=tmp_path / strategy,
            device="cuda",
            strategy=strategy,
            progress=False,
        )
        assert pool.folder.read_json("execution.json")["stacked"] == (strategy == "stacked")
        signals = query(pool, images, queries=4, device="cuda", progress=False)
        assert signals.query_kind == "noise" and signals.margin.std(1).min() > 0
        assert signals.correct[:, 0][signals.member].mean() > 0.5
        again = query(pool, images, queries=4, device="cuda", batch=256, force=True, progress=False)
        np.testing.assert_array_equal(again.margin, signals.margin)


def test_a_librarys_sde_solver_answers_on_the_gpu_and_a_step_tells_its_peak(tmp_path):
    images = data.load("synthetic:classes=4,n=80,size=8,channels=3,seed=1")
    recipe = Recipe(
        **{
            **RECIPE.to_json(),
            "model": "sdenet",
            "model_args": {"width": 4, "steps": 1, "method": "srk"},
            "num_models": 2,
            "batch": 40,
            "epochs": 1,
        }
    )
    pool = training.train_pool(recipe, images, root=tmp_path, device="cuda", progress=False)
    assert query(pool, images, queries=2, device="cuda", progress=False).margin.std(1).min() > 0
    cost = training.step_cost(recipe, images, device="cuda")
    assert cost["memory_mib"] > 0 and cost["seconds"] > 0


def same_in_law(pool, other, **tolerance):
    for m in range(4):
        for name, tensor in pool.state(m).items():
            torch.testing.assert_close(other.state(m)[name], tensor, **tolerance)


class Waiting(nn.Module):
    """Looks at a value in each step."""

    def __init__(self, in_channels, num_classes, size):
        super().__init__()
        self.last = nn.Linear(in_channels * size[0] * size[1], num_classes)

    def forward(self, x):
        return self.last(x.flatten(1)) * (1 if x.sum().item() > -1e9 else 2)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["plain", "stacked:4"])
def test_a_compiled_pool_on_the_gpu_is_the_eager_one(images, tmp_path, strategy, capsys):
    pools = [
        training.train_pool(
            RECIPE,
            images,
            root=tmp_path / str(compiled),
            device="cuda",
            strategy=strategy,
            compiled=compiled,
            progress=False,
        )
        for compiled in (False, True)
    ]
    assert pools[1].folder.read_json("execution.json")["compiled"], capsys.readouterr().err
    same_in_law(*pools, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("strategy", ["plain", "stacked:4"])
def test_a_step_waits_for_nothing(images, strategy):
    from mia_nb.training import execution, loop, plans

    there = images._replace(x=images.x.cuda(), y=images.y.cuda())
    plan = plans.Plan(RECIPE, there, np.ones((4, 400), bool), torch.device("cuda"))
    plan = execution.with_strategy(plan, stacked=strategy != "plain", compiled=False)
    group = loop.Group(plan, [0, 1, 2, 3] if plan.stacked else [0])
    x = torch.randn(len(group.ids), 16, 3, 16, 16, dtype=torch.float64, device="cuda")
    y = torch.zeros(len(group.ids), 16, dtype=torch.int64, device="cuda")
    group.step(x, y, 0.01, draws={})  # the first one makes the optimiser's state
    torch.cuda.set_sync_debug_mode("error")
    try:
        group.step(x, y, 0.01, draws={})
        group.optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(entry["fused"] for entry in group.optimizer.param_groups)


@pytest.mark.parametrize("strategy", ["plain", "stacked:4"])
def test_how_often_an_epoch_waits_does_not_depend_on_its_steps(images, strategy):
    from mia_nb.training import clipped, execution, plans

    there, waits = images._replace(x=images.x.cuda(), y=images.y.cuda()), []
    _, models = execution.parse_strategy(strategy)
    for samples in (64, 320):  # 4 steps and 20
        member = np.zeros((4, 400), bool)
        member[:, :samples] = True
        plan = plans.Plan(RECIPE, there, member, torch.device("cuda"))
        plan = execution.with_strategy(plan, stacked=strategy != "plain", compiled=False)
        group = clipped.group_of(plan, list(range(models or 1)))
        group.epoch(0, [])  # makes the optimiser's state
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                group.epoch(1, [])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        waits.append(sum("synchroniz" in str(one.message) for one in caught))
    # the order and the augmentation at its beginning, the losses at its end
    assert waits[0] == waits[1] > 0
