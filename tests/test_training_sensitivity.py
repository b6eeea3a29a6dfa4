"""What is measured of trained equations against what their weights say, and what an accountant is
told of a training.
"""

import numpy as np
import pytest
import torch

from mia_nb import accounting, auditing, data, training
from mia_nb.models import neural_de
from mia_nb.types import Recipe

SDE = Recipe(
    model="sdenet",
    model_args={"width": 4, "steps": 2, "k": 0.3},
    num_models=2,
    epochs=1,
    batch=16,
    lr=0.05,
)


@pytest.fixture(scope="module")
def images():
    return data.load("digits", limit=80)


def train(recipe, images, root):
    return training.train_pool(
        recipe, images, root=root, progress=False, workers=1, strategy="plain"
    )


def test_certified_bounds_local_and_distances_are_those_of_the_states(images, tmp_path):
    pool = train(SDE, images, tmp_path)
    table = training.sensitivity(pool)
    assert (
        list(table["model"]) == [0, 0, 0, 1, 1, 1] and (table["local"] <= table["certified"]).all()
    )
    assert (table["distance"] <= 2 * table["norm"] + 1e-4).all() and (table["images"] == 64).all()
    module = neural_de.set_noise(pool.model(1), False)
    name, block = next(neural_de.flow_blocks(module))
    seen = []
    block.register_forward_hook(lambda b, args, out: seen.append(args[0].flatten(1)))
    with torch.no_grad():
        module(data.normalise(images.x[:64], images.mean, images.std))
    row = table[(table["model"] == 1) & (table["block"] == name)].iloc[0]
    gaps = [float((a - b).norm()) for a in seen[0] for b in seen[0]]
    assert row["distance"] == pytest.approx(max(gaps), rel=1e-5)
    assert row["norm"] == pytest.approx(float(seen[0].norm(dim=1).max()), rel=1e-6)


def test_a_bounded_drift_keeps_its_bound_and_a_clip_is_what_enters(images, tmp_path):
    bounded = SDE.replace(model_args={**SDE.model_args, "lipschitz": 0.7, "clip": 0.5})
    table = training.sensitivity(train(bounded, images, tmp_path))
    assert (table["certified"] <= 0.7 * (1 + 1e-5)).all() and (table["local"] <= 0.7).all()
    assert (table["norm"] <= 0.5 * (1 + 1e-6)).all() and (
        table["distance"] <= 2 * 0.5 * (1 + 1e-6)
    ).all()
    # the states of the first block are longer than that before the clip
    assert table["norm"].max() == pytest.approx(0.5)


def test_second_order_has_no_certified_bound_and_other_networks_are_refused(images, tmp_path):
    table = training.sensitivity(
        train(SDE.replace(model="sonode", model_args={"width": 4, "steps": 2}), images, tmp_path)
    )
    assert table["certified"].isna().all() and np.isfinite(table["distance"]).all()
    with pytest.raises(ValueError, match="no differential equation"):
        training.sensitivity(
            train(SDE.replace(model="tinycnn", model_args={"width": 4}), images, tmp_path)
        )


def test_a_family_that_aims_at_an_epsilon_gets_the_noise_that_reaches_it_for_the_training_it_describes():
    recipe = Recipe(epochs=20, batch=32)
    families = [
        {"model": "odenet"},
        {"defense": "dp_sgd", "epsilon": 8, "batch": 64, "defense_args": {"max_grad_norm": 0.5}},
    ]
    other, private = accounting.aimed(families, recipe, members=750, delta=1e-5)
    assert (
        other == {"model": "odenet"}
        and "epsilon" not in private
        and private["defense_args"]["max_grad_norm"] == 0.5
    )
    noise, spent = (
        private["defense_args"]["noise_multiplier"],
        training.sampling(recipe.replace(batch=64), 750),
    )
    assert spent == {"sample_rate": 64 / 750, "steps": 220}
    reached = accounting.epsilon(noise_multiplier=noise, **spent, delta=1e-5, accountant="rdp")
    assert 7.99 < reached <= 8 and families[1]["epsilon"] == 8  # what was given is left as it was
    with pytest.raises(ValueError, match="family 0 aims at epsilon=8 without"):
        accounting.aimed([{"epsilon": 8}], recipe, members=750, delta=1e-5)


@pytest.mark.parametrize("sigma", [0.5, 2.0, 2000.0])
def test_a_gradient_shows_image_and_label_whatever_sigma_is_which_is_why_row_1_is_called_no_guarantee(
    images, sigma
):
    for n in range(5):
        x, y = (
            data.normalise(images.x[n : n + 1], images.mean, images.std, torch.float64),
            images.y[n : n + 1],
        )
        torch.manual_seed(n)
        stem, head = (
            torch.nn.Linear(*size).double() for size in ((x.numel(), 16), (16, len(images.classes)))
        )
        # sigma = k sqrt(16)
        h = neural_de.integrate(
            lambda t, h: torch.tanh(h), stem(x.flatten(1)), steps=16, k=sigma / 4
        )
        torch.nn.functional.cross_entropy(head(h / h.norm()), y).backward()
        i = stem.bias.grad.abs().argmax()
        # dL/dW = g x^T, dL/db = g
        assert (stem.weight.grad[i] / stem.bias.grad[i] - x.flatten()).abs().max() < 1e-5
        # dL/db = p - 1 at the label, p elsewhere
        assert (head.bias.grad < 0).nonzero().flatten().tolist() == y.tolist()
    flow = {"k": sigma / 4, "steps": 16, "T": 1.0, "method": "euler"}
    table = auditing.ladder(
        delta=1e-5, flow=flow, nominal={"sample_rate": 0.02, "steps": 490}, accountant="rdp"
    )
    rows = table.set_index("row")
    assert rows.loc[1, "label"] == "nominal (paper's accounting)" and np.isfinite(
        rows.loc[1, "epsilon"]
    )
    assert rows.loc[1, "note"] == "assumes T*L <= 1 and private gradients; not a guarantee"
    assert (
        rows.loc[4, "label"] == "training guarantee" and rows.loc[4, "shown"] == "none (infinite)"
    )
