"""On a GPU results agree with the CPU's in law and, after few steps in float64, in numbers."""

import numpy as np
import pytest
import torch

from mia_nb import data, query, training
from mia_nb.types import Recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
RECIPE = Recipe(num_models=4, epochs=2, batch=16, lr=0.05, model_args={"width": 8}, augment="crop+flip", dtype="float64")


@pytest.fixture(scope="module")
def images():
    return data.load("synthetic:classes=4,n=400,size=16,channels=3,seed=1")


@pytest.mark.parametrize("strategy", ["plain", "stacked"])
def test_a_pool_in_float64_is_the_cpus_to_eight_digits(images, tmp_path, strategy):
    pools = [
        training.train_pool(RECIPE, images, root=tmp_path / device, device=device, strategy=strategy, progress=False)
        for device in ("cpu", "cuda")
    ]
    assert pools[0].key == pools[1].key
    for m in range(4):
        for name, tensor in pools[0].state(m).items():
            torch.testing.assert_close(pools[1].state(m)[name], tensor, rtol=1e-8, atol=1e-8)
    cpu, gpu = (query.query(pools[0], images, device=d, force=True, progress=False) for d in ("cpu", "cuda"))
    np.testing.assert_allclose(gpu.margin, cpu.margin, rtol=1e-8, atol=1e-8)


def test_bf16_trains_to_the_accuracy_of_float32(images, tmp_path):
    accuracies = []
    for dtype in ("float32", "bfloat16"):
        recipe = Recipe(**{**RECIPE.to_json(), "dtype": dtype, "epochs": 10})
        pool = training.train_pool(recipe, images, root=tmp_path, device="cuda", progress=False)
        signals = query.query(pool, images, device="cuda", progress=False)
        accuracies.append(signals.correct[:, 0][~signals.member].mean())
    assert abs(accuracies[0] - accuracies[1]) < 0.05


def test_masks_and_augmentation_do_not_depend_on_the_device(images, tmp_path):
    pool = training.train_pool(RECIPE, images, root=tmp_path, device="cpu", progress=False)
    for options in ({"input_dropout": 0.1}, {"augment": True}):
        cpu, gpu = (
            query.query(pool, images, queries=3, device=d, force=True, progress=False, **options) for d in ("cpu", "cuda")
        )
        np.testing.assert_allclose(gpu.margin, cpu.margin, rtol=1e-8, atol=1e-8)


def test_a_conversion_and_its_answers_per_step_do_not_depend_on_the_device(images, tmp_path):
    networks = training.train_pool(RECIPE, images, root=tmp_path, device="cpu", progress=False)
    margins = []
    for device in ("cpu", "cuda"):
        pool = training.convert_pool(networks, images, 3, device=device, progress=False, force=True)
        rates = query.firing_rates(pool, images, device=device)
        signals = query.query(pool, images, per_step=True, device=device, force=True, progress=False)
        margins.append((signals.margin, rates["rate"].to_numpy()))
    # a spike may flip where a convolution rounds otherwise, even in float64: nearly all answers agree, none is far off
    close = np.isclose(margins[0][0], margins[1][0], rtol=1e-6, atol=1e-6)
    assert close.mean() > 0.99
    np.testing.assert_allclose(*(rates for _, rates in margins), atol=1e-3)


def test_spiking_networks_train_on_the_gpu(images, tmp_path):
    recipe = Recipe(**{**RECIPE.to_json(), "model": "snn", "model_args": {"base": "tinycnn", "timesteps": 2}, "epochs": 10})
    pool = training.train_pool(recipe, images, root=tmp_path, device="cuda", progress=False)
    signals = query.query(pool, images, device="cuda", progress=False)
    assert signals.correct[:, 0][signals.member].mean() > 0.5


def test_networks_of_equations_train_stacked_and_answer_with_noise_on_the_gpu(images, tmp_path):
    args = {"width": 8, "steps": 2, "k": 0.1}
    recipe = Recipe(**{**RECIPE.to_json(), "model": "sdenet", "model_args": args, "epochs": 10, "snapshots": [2]})
    for strategy in ("plain", "stacked"):  # equal in law there, not in bits: a group draws its noise from one generator
        pool = training.train_pool(recipe, images, root=tmp_path / strategy, device="cuda", strategy=strategy, progress=False)
        assert pool.folder.read_json("execution.json")["stacked"] == (strategy == "stacked")
        signals = query.query(pool, images, queries=4, device="cuda", progress=False)
        assert signals.draws == "noise" and signals.margin.std(1).min() > 0
        assert signals.correct[:, 0][signals.member].mean() > 0.5
        again = query.query(pool, images, queries=4, device="cuda", batch=256, force=True, progress=False)
        np.testing.assert_array_equal(again.margin, signals.margin)


def test_a_librarys_sde_solver_answers_on_the_gpu_and_a_step_tells_its_peak(images, tmp_path):
    recipe = Recipe(
        **{**RECIPE.to_json(), "model": "sdenet", "model_args": {"width": 4, "steps": 2, "method": "srk"}, "epochs": 1}
    )
    pool = training.train_pool(recipe, images, root=tmp_path, device="cuda", progress=False)
    assert query.query(pool, images, queries=2, device="cuda", progress=False).margin.std(1).min() > 0
    cost = training.step_cost(recipe, images, device="cuda")
    assert cost["memory_mib"] > 0 and cost["seconds"] > 0
