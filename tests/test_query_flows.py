"""Asking neural ODE and SDE classifiers: noisy queries, their seeds, snapshots, a choice of images,
doubts.
"""

import numpy as np
import pytest
import safetensors.torch
import torch
from toys_flow import replaced

from mia_nb import data, models, query, querying, store, training
from mia_nb.models.neural_de import set_noise
from mia_nb.training.pool import weights_name
from mia_nb.types import Recipe, Signals

TINY = {"width": 4, "steps": 2}
ODE = Recipe(
    model="odenet", model_args=TINY, num_models=4, population=60, epochs=1, batch=64, lr=0.05
)
SDE = ODE.replace(model="sdenet", model_args={**TINY, "k": 0.3}, epochs=3, snapshots=[1, 2])


@pytest.fixture(scope="module")
def images():
    return data.load("digits", limit=600)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("pools")


@pytest.fixture(scope="module")
def pool(images, root):
    return train(SDE, images, root)


@pytest.fixture(scope="module")
def noisy(pool, images):
    return ask(pool, images, queries=4)


def train(recipe, images, root, **change):
    return training.train_pool(
        recipe.replace(**change),
        images,
        root=root,
        progress=False,
        workers=1,
        strategy="plain",
        device="cpu",
    )


def ask(pool, images, **options):
    return query(pool, images, progress=False, device="cpu", **options)


def test_noise_of_blocks_beside_dropout_layers_is_the_same_whoever_draws_beside(images, tmp_path):
    pool = train(SDE, images, tmp_path, defense="dropout", epochs=1, snapshots=[])
    first, again = (ask(pool, images, noise=True, force=True) for _ in range(2))
    assert np.array_equal(first.margin, again.margin)


def margins(module, images, generators=None, block=256):
    """(N,) by hand, block after block, each with its generator; without noise where there is
    none.
    """
    x = data.normalise(images.x, images.mean, images.std)
    with torch.no_grad():
        parts = [
            module(part, *([generators(b)] if generators else []))
            for b, part in enumerate(x.split(block))
        ]
    return Signals.from_logits(torch.cat(parts).double().numpy()[None], images.y.numpy()).margin[
        0, 0
    ]


def overwrite(pool, model, change):
    state = {name: change(name, tensor) for name, tensor in pool.state(model).items()}
    pool.folder.write_bytes(weights_name(model), safetensors.torch.save(state))


def test_an_sde_is_queried_with_its_noise_as_built_and_without_it_only_when_told(pool, images):
    as_built, quiet = ask(pool, images), ask(pool, images, noise=False)
    assert (as_built.query_kind, quiet.query_kind) == (
        "noise",
        "plain",
    ) and as_built.margin.shape == quiet.margin.shape == (4, 1, 600)
    assert np.array_equal(as_built.margin, ask(pool, images, noise=True).margin)
    assert np.array_equal(quiet.margin, ask(pool, images, noise=False, seed=5, force=True).margin)
    np.testing.assert_allclose(
        quiet.margin[2, 0], margins(set_noise(pool.model(2), False), images), rtol=1e-4, atol=1e-4
    )
    assert np.abs(as_built.margin - quiet.margin).mean() > 0.05
    assert as_built.info["noise"] is True and quiet.info["noise"] is False


def test_a_network_built_without_noise_at_inference_has_it_only_when_told(images, root):
    quiet = train(SDE, images, root, model_args={**SDE.model_args, "noise_eval": False}, epochs=1)
    assert (
        ask(quiet, images).query_kind == "plain"
        and ask(quiet, images, noise=True, queries=2).query_kind == "noise"
    )
    assert np.array_equal(ask(quiet, images).margin, ask(quiet, images, noise=False).margin)
    with pytest.raises(ValueError, match="use queries=1"):
        ask(quiet, images, queries=2)


def test_every_query_is_the_forward_under_the_seed_of_its_model_query_and_block(
    pool, noisy, images
):
    for m, q in ((0, 0), (3, 2)):

        def generator(block, m=m, q=q):
            return torch.Generator().manual_seed(training.seeds.mix(0, m, q, block, "noise"))

        np.testing.assert_allclose(
            noisy.margin[m, q], margins(pool.model(m), images, generator), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("side_by_side", [1, 2])
def test_no_bit_of_a_noisy_output_depends_on_batch_companions_workers_or_number_of_queries(
    side_by_side, pool, noisy, images, monkeypatch
):
    monkeypatch.setattr(querying.signals, "cores", lambda: side_by_side)
    for options in ({"batch": 256}, {"batch": 512}, {"batch": 5000}):
        assert np.array_equal(
            ask(pool, images, queries=4, force=True, **options).margin, noisy.margin
        )
    assert np.array_equal(
        ask(pool, images, queries=4, models=[2], force=True).margin[0], noisy.margin[2]
    )
    assert np.array_equal(
        ask(pool, images, queries=4, models=[3, 1], force=True).margin, noisy.margin[[3, 1]]
    )
    assert np.array_equal(
        ask(pool, images, queries=16, models=[1], force=True).margin[0, :4], noisy.margin[1]
    )


def test_blocks_of_tiny_images_are_queried_together_and_draw_as_if_alone(
    pool, noisy, images, monkeypatch
):
    sizes, forward = [], querying.network.forward
    monkeypatch.setattr(
        querying.network,
        "forward",
        lambda m, dtype, x, **how: sizes.append(len(x)) or forward(m, dtype, x, **how),
    )
    together = ask(pool, images, queries=2, models=[1], force=True).margin
    assert sizes.count(600) == 2 and max(sizes) == 600
    monkeypatch.setattr(querying.signals, "VALUES", 1)
    alone = ask(pool, images, queries=2, models=[1], force=True).margin
    assert sizes.count(256) == 4 and sizes.count(88) == 2
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)
    h = torch.zeros(600, 3)
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 2, 3)]
    with querying.network.NoiseOfBlocks(generators, [256, 256, 88]):
        drawn = torch.randn_like(h)
    for seed, part in zip((1, 2, 3), drawn.split(256), strict=True):
        assert torch.equal(
            part, torch.randn(part.shape, generator=torch.Generator().manual_seed(seed))
        )


def test_noise_of_a_library_s_solver_is_one_path_a_block_and_does_not_depend_on_the_batch(
    images, root
):
    pytest.importorskip("torchsde")
    milstein = train(
        SDE,
        images,
        root,
        model_args={**SDE.model_args, "method": "milstein"},
        epochs=1,
        snapshots=[],
    )

    def generator(block):
        return torch.Generator().manual_seed(training.seeds.mix(0, 1, 0, block, "noise"))

    margin = ask(milstein, images, models=[1]).margin[0, 0]
    np.testing.assert_allclose(
        margin, margins(milstein.model(1), images, generator), rtol=1e-4, atol=1e-4
    )


def test_querying_with_noise_leaves_the_global_generator_as_found(pool, images, monkeypatch):
    for workers in (1, 2):
        monkeypatch.setattr(querying.signals, "cores", lambda workers=workers: workers)
        before = torch.get_rng_state()
        ask(pool, images, queries=2, force=True)
        assert torch.equal(torch.get_rng_state(), before)


def test_queries_models_blocks_and_seeds_have_noise_of_their_own(pool, noisy, images):
    assert not any(np.array_equal(noisy.margin[:, 0], noisy.margin[:, q]) for q in (1, 2, 3))
    assert not np.array_equal(noisy.margin, ask(pool, images, queries=4, seed=1).margin)
    twins = train(SDE, images, pool.folder.path.parent.parent / "twins")
    overwrite(twins, 1, lambda name, tensor: twins.state(0)[name])
    twice = images._replace(x=images.x[:256].repeat(2, 1, 1, 1), y=images.y[:256].repeat(2))
    answers, quiet = ask(twins, twice, models=[0, 1]), ask(twins, twice, models=[0, 1], noise=False)
    assert np.array_equal(quiet.margin[0], quiet.margin[1])
    # the same weights, the same images
    assert not np.isclose(answers.margin[0], answers.margin[1]).any()
    # the same images, another block
    assert not np.isclose(answers.margin[0, 0, :256], answers.margin[0, 0, 256:]).any()


def test_the_mean_of_four_queries_has_a_quarter_of_the_variance_of_one(pool, images):
    margin = ask(pool, images, queries=16, models=[0, 1]).margin
    one = margin.var(1, ddof=1).mean()
    four = margin.reshape(2, 4, 4, 600).mean(2).var(1, ddof=1).mean()
    assert four / one == pytest.approx(0.25, rel=0.1)


def test_noise_that_an_equation_does_not_have_is_refused_in_one_line(images, root):
    ode = train(ODE, images, root)
    for options in ({}, {"queries": 3}):
        with pytest.raises(ValueError, match="no noise to switch on; use noise=None") as caught:
            ask(ode, images, noise=True, **options)
        assert "\n" not in str(caught.value)
    assert np.array_equal(ask(ode, images, noise=False).margin, ask(ode, images).margin)


def test_an_sdes_noise_goes_along_with_input_dropout_and_augmentation(pool, images):
    for option, draws in (({"input_dropout": 0.1}, "dropout"), ({"augment": True}, "augment")):
        noisy, quiet = (
            ask(pool, images, queries=3, noise=noise, **option) for noise in (None, False)
        )
        assert noisy.query_kind == quiet.query_kind == draws
        assert (noisy.info["noise"], quiet.info["noise"]) == (True, False)
        assert (noisy.margin != quiet.margin).mean() > 0.99
    with pytest.raises(ValueError, match="at once"):
        ask(pool, images, queries=3, input_dropout=0.1, augment=True)


def test_dropout_layers_draw_from_the_global_generator_block_by_block_as_before(
    images, root, monkeypatch
):
    monkeypatch.setattr(querying.signals, "cores", lambda: 2)
    dropout = train(ODE, images, root, model="toys:dropout_mlp", model_args={}, epochs=3)
    signals, quiet = ask(dropout, images, noise=True, queries=2), ask(dropout, images)
    assert (signals.query_kind, quiet.query_kind) == ("noise", "plain")
    np.testing.assert_allclose(
        quiet.margin[1, 0], margins(dropout.model(1), images), rtol=1e-4, atol=1e-4
    )
    module = dropout.model(3).train()
    with torch.random.fork_rng(devices=[]):
        for q in (0, 1):

            class Seeded(torch.nn.Module):
                def forward(self, x, block, q=q):
                    torch.manual_seed(training.seeds.mix(0, 3, q, block, "noise"))
                    return module(x)

            np.testing.assert_allclose(
                signals.margin[3, q], margins(Seeded(), images, lambda b: b), rtol=1e-4, atol=1e-4
            )


def test_dropout_beside_an_sde_block_is_queried_with_both_and_with_neither(images, root):
    both = train(ODE, images, root, model="toys_flow:dropout_and_flow", model_args={}, epochs=3)
    on = ask(both, images, noise=True, queries=2)
    assert np.array_equal(
        on.margin, ask(both, images, noise=True, queries=2, batch=256, force=True).margin
    )
    module = set_noise(both.model(0), False)
    np.testing.assert_allclose(
        ask(both, images, noise=False).margin[0, 0], margins(module, images), rtol=1e-4, atol=1e-4
    )
    with pytest.raises(
        ValueError, match="gives another output to the same query: declare it with noise=True"
    ):
        ask(both, images)


def test_a_model_that_ignores_its_seed_is_caught(images, root):
    frozen = train(ODE, images, root, model="toys_flow:frozen", model_args={})
    with pytest.raises(
        ValueError, match="model 0 gives the same output to every query although noise=True"
    ) as caught:
        ask(frozen, images, noise=True, queries=2)
    assert "\n" not in str(caught.value)


def test_a_limit_queries_a_fixed_random_choice_that_keeps_masks_and_population(pool, images):
    some, whole = ask(pool, images, limit=100, noise=False), ask(pool, images, noise=False)
    assert some.margin.shape == (4, 1, 160) and some.population.sum() == 60 == pool.population.sum()
    # where each answer belongs, found from the answers themselves
    near = np.abs(some.margin[:, 0, :, None] - whole.margin[:, 0, None, :]).max(0)
    chosen = near.argmin(1)
    assert near.min(1).max() < 1e-3 and len(set(chosen)) == 160 and (np.diff(chosen) > 0).all()
    assert np.array_equal(some.member, pool.member[:, chosen]) and np.array_equal(
        some.labels, images.y.numpy()[chosen]
    )
    assert np.array_equal(some.population, pool.population[chosen])
    audited = chosen[~pool.population[chosen]]
    share = some.member[:, ~some.population].mean(1)
    assert np.abs(share - 0.5).max() < 0.2 and share[0] + share[1] == 1  # pairs stay complementary
    assert audited.max() > 500 and not np.array_equal(
        audited, np.flatnonzero(~pool.population)[:100]
    )
    assert np.array_equal(ask(pool, images, limit=100, models=[2]).labels, some.labels)
    assert np.array_equal(ask(pool, images, limit=30, noise=False).population.sum(), 30)


def test_limits_that_leave_nothing_to_query_are_refused_and_large_ones_query_all(pool, images):
    before = len(store.folders(pool.folder.path.parent, "signals"))
    for limit in (0, -3):
        with pytest.raises(
            ValueError, match=f"limit={limit}: wanted a number of images from 1 up"
        ) as caught:
            ask(pool, images, limit=limit)
        assert "\n" not in str(caught.value)
    assert len(store.folders(pool.folder.path.parent, "signals")) == before
    assert np.array_equal(
        ask(pool, images, limit=10**6, queries=4).margin, ask(pool, images, queries=4).margin
    )


@pytest.mark.parametrize("noise", [None, False])
def test_a_state_that_blew_up_is_named_with_its_model(noise, images, root):
    broken = train(SDE, images, root / f"broken-{noise}", epochs=1, snapshots=[])
    overwrite(
        broken,
        1,
        lambda name, tensor: tensor * 1e30 if name.startswith("groups.1.0.drift") else tensor,
    )
    with pytest.raises(
        ValueError,
        match="model 1 gives a non-finite output for sample 0",
    ) as caught:
        ask(broken, images, noise=noise)
    assert "\n" not in str(caught.value) and not store.folders(root / f"broken-{noise}", "signals")
    assert ask(broken, images, noise=noise, models=[0, 2, 3]).margin.shape == (3, 1, 600)


def test_signals_say_which_equation_gave_them_and_are_the_same_from_the_cache(pool, images, root):
    fresh = ask(pool, images, force=True)
    info = ask(pool, images).info
    assert info == fresh.info and info["model"] == "sdenet" and info["pool"] == pool.key
    assert info["family"] == "sdenet sigma=0.424 (noise sd 0.424)"  # .3 sqrt 2
    expected = {
        "method": "euler",
        "steps": 2,
        "T": 1.0,
        "k": 0.3,
        "blocks": 1,
        "layout": "16-32-64",
        "order": 1,
    }
    assert {name: info["flow"][name] for name in expected} == expected
    assert info["flow"]["sigma"] == pytest.approx(0.3 * 2**0.5) == info["flow"]["noise_sd"]
    two = train(ODE, images, root, model_args={**TINY, "blocks": 2})
    assert ask(two, images).info["blocks"] == 2 == ask(two, images).info["flow"]["blocks"]
    assert "blocks" not in info and ask(two, images).info["family"] == "odenet"


def test_every_kept_epoch_has_signals_of_its_own_and_the_last_has_the_pools(pool, images):
    signals = {epoch: ask(pool.at(epoch), images, noise=False) for epoch in (1, 2, 3)}
    for epoch in (1, 2, 3):
        by_hand = margins(set_noise(pool.at(epoch).model(1), False), images)
        np.testing.assert_allclose(signals[epoch].margin[1, 0], by_hand, rtol=1e-4, atol=1e-4)
        assert signals[epoch].info.get("epoch") == (epoch if epoch < 3 else None)
        assert np.array_equal(signals[epoch].member, pool.member)
    assert not np.allclose(signals[1].margin, signals[2].margin)
    name, other = weights_name(1, 1), pool.folder.read_bytes(weights_name(1, 2))
    own = pool.folder.read_bytes(name)
    pool.folder.write_bytes(name, other)
    # by weights, not by number
    assert np.array_equal(ask(pool.at(1), images, noise=False).margin[1], signals[2].margin[1])
    pool.folder.write_bytes(name, own)
    before = len(store.folders(pool.folder.path.parent, "signals"))
    assert np.array_equal(ask(pool, images, noise=False).margin, signals[3].margin)
    assert len(store.folders(pool.folder.path.parent, "signals")) == before


def test_a_replaced_network_is_queried_with_the_noise_of_its_new_block(images, root):
    start = train(ODE, images, root, model="resnet14", model_args={"width": 4, "blocks": 1})
    recipe = Recipe(epochs=2, batch=64, lr=0.05)
    options = {"progress": False, "workers": 1, "strategy": "plain"}
    changed = replaced(start, recipe, images, block={"steps": 2, "k": 0.5}, **options)
    on, off = ask(changed, images, queries=2), ask(changed, images, noise=False)
    assert (on.query_kind, off.query_kind) == ("noise", "plain") and (
        on.margin[:, 0] != on.margin[:, 1]
    ).mean() > 0.99
    assert on.info["family"] == "resnet14 with its last group replaced sigma=0.707 (noise sd 0.707)"
    assert (
        on.info["flow"]["layout"] == "last"
        and models.architecture("replaced", changed.recipe.model_args) == "resnet14"
    )
    assert np.array_equal(on.member, start.member)


def test_outputs_of_an_adaptive_solver_depend_on_no_batch_size(images, root):
    adaptive = train(ODE, images, root, num_models=2, model_args={"width": 4, "method": "dopri5"})
    one, other = (ask(adaptive, images, batch=size, force=True) for size in (256, 5000))
    assert np.array_equal(one.margin, other.margin)
