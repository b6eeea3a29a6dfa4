"""What a question step by step leaves beside its answers: spikes and membranes of one layer on a
few images.
"""

import numpy as np
import pytest
import torch

from mia_nb import data, plots, query, store, training, widgets
from mia_nb.models import recording, snn
from mia_nb.types import Recipe

ARGS = {"base": "tinycnn", "base_args": {"width": 4}, "timesteps": 3, "theta": 0.3}


@pytest.fixture(scope="module")
def images():
    return data.load("synthetic:classes=4,n=60,size=8,channels=1,seed=1")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("pools")


def train(images, root, dtype="float64", **args):
    recipe = Recipe(
        model="snn",
        model_args={**ARGS, **args},
        num_models=2,
        epochs=2,
        batch=16,
        dtype=dtype,
        population=10,
    )
    return training.train_pool(
        recipe, images, root=root, progress=False, workers=1, strategy="plain"
    )


def asked(root, pool):
    """The stored signals that answer step by step."""
    return [s for s in widgets.sources(root, pool=pool.key) if s.info["draws"] == "steps"]


@pytest.fixture(scope="module")
def pool(images, root):
    pool = train(images, root)
    query(pool, images, per_step=True, progress=False)
    return pool


def neurons_by_hand(pool, x):
    """Potentials and spikes of the first site by the recurrence u = beta u + h, spike where u >=
    theta, back to 0 then.
    """
    module, inputs = pool.model(0), []
    spike = module.spikes()["spike0"]
    spike.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.no_grad():
        module(x)
    (h,) = inputs  # at the first site the same current enters at every step
    assert (
        h.shape[0] == len(x) and spike.options["reset"] == "hard" and spike.options["beta"] == 0.5
    )
    mem, spk, u = [], [], torch.zeros_like(h)
    for _ in range(3):
        u = 0.5 * u + h
        fired = u >= 0.3
        mem.append(u.flatten(1))
        spk.append(fired.flatten(1))
        u = torch.where(fired, torch.zeros_like(u), u)
    return torch.stack(mem, 1).numpy(), torch.stack(spk, 1).numpy()


def test_recorded_spikes_and_membranes_are_those_of_the_recurrence_written_out(pool, images, root):
    raster = asked(root, pool)[0].raster
    audited = np.flatnonzero(~pool.population)
    assert np.array_equal(
        raster["samples"], audited[np.linspace(0, len(audited) - 1, 12).round().astype(int)]
    )
    x = data.normalise(
        images.x[torch.from_numpy(raster["samples"])], images.mean, images.std, torch.float64
    )
    mem, spk = neurons_by_hand(pool, x)
    assert (
        raster["spikes"].shape == (12, 3, 200)
        and raster["size"] == [spk.shape[2]]
        and raster["site"] == ["spike0"]
    )
    assert (
        np.array_equal(raster["spikes"], spk[:, :, raster["neurons"]])
        and 0 < raster["spikes"].mean() < 1
    )
    np.testing.assert_allclose(
        raster["membranes"], mem[:, :, raster["neurons"]], rtol=2e-3, atol=1e-4
    )
    np.testing.assert_allclose(raster["thresholds"], 0.3, rtol=1e-6)


def test_the_recording_leaves_signals_and_their_keys_as_they_were(
    pool, images, root, tmp_path, monkeypatch
):
    (source,) = asked(root, pool)
    monkeypatch.setattr(recording, "record_images", lambda *_: None)
    other = train(images, tmp_path)
    query(other, images, per_step=True, progress=False)
    (bare,) = asked(tmp_path, other)
    assert bare.raster is None and bare.folder.key == source.folder.key
    assert (bare.folder.path / "margin.npy").read_bytes() == (
        source.folder.path / "margin.npy"
    ).read_bytes()
    assert set(source.folder.files()) - set(bare.folder.files()) == {"raster.npz"}


def test_numbers_of_samples_are_columns_of_the_signals_also_when_few_images_were_asked(
    pool, images, root
):
    query(pool, images, per_step="instant", limit=20, progress=False)
    source = next(s for s in asked(root, pool) if s.info.get("limit"))
    raster = source.raster
    assert set(raster["samples"]) <= set(source.audited) and len(source.signals.labels) == 30
    x = images.x[torch.from_numpy(source.samples[raster["samples"]])]
    spk = neurons_by_hand(pool, data.normalise(x, images.mean, images.std, torch.float64))[1]
    assert np.array_equal(raster["spikes"], spk[:, :, raster["neurons"]])


def test_nothing_is_recorded_of_networks_without_spikes_of_plain_questions_or_of_other_images(
    pool, images, root, tmp_path
):
    recipe = Recipe(num_models=2, epochs=1, batch=16, model_args={"width": 4})
    ordinary = training.train_pool(recipe, images, root=tmp_path, progress=False, workers=1)
    query(ordinary, images, progress=False)
    query(pool, images, progress=False)
    query(pool, images._replace(x=255 - images.x), per_step=True, progress=False)
    folders = [*store.folders(tmp_path, "signals"), *store.folders(root, "signals")]
    without = [f for f in folders if not f.has("raster.npz")]
    assert len(without) == 3 and all(s.raster is None for s in widgets.sources(tmp_path))
    x = data.normalise(images.x[:2], images.mean, images.std, torch.float32)
    assert recording.record_images(ordinary.model(0), x, np.arange(2)) is None


def test_a_network_that_encodes_by_random_spikes_is_not_recorded(images, root):
    module = train(images, root, encode="rate").model(0)
    assert module.stochastic
    assert recording.record_images(module, images.x[:2].double() / 255, np.arange(2)) is None


@pytest.mark.parametrize("timesteps", [3, 64])
def test_a_recording_stays_small_whatever_the_number_of_steps(pool, images, timesteps):
    x = data.normalise(images.x[:12], images.mean, images.std, torch.float64)
    kept = recording.record_images(snn.retime(pool.model(0), timesteps), x, np.arange(12))
    assert kept["spikes"].shape[1] == timesteps and sum(a.nbytes for a in kept.values()) < 300_000


def test_rounding_never_moves_a_membrane_across_its_threshold():
    rng = np.random.default_rng(0)
    theta = rng.uniform(0.1, 3, 50)
    mem = theta * (1 + rng.choice([-1, 1], (12, 4, 50)) * 10 ** rng.uniform(-9, -3, (12, 4, 50)))
    spk = mem >= theta
    small = recording._rounded_without_crossing(mem, spk, theta.astype(np.float32))
    # plain rounding would
    assert ((mem.astype(np.float16) >= theta.astype(np.float32)) != spk).any()
    assert small.dtype == np.float16 and np.array_equal(small >= theta.astype(np.float32), spk)
    np.testing.assert_allclose(small, mem, rtol=2e-3)
    plots.raster(spk[0], small[0], theta.astype(np.float32))  # refuses spikes that disagree


def test_a_cached_question_step_by_step_without_its_recording_records_it_then(
    pool, images, root, tmp_path, monkeypatch
):
    other = train(images, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(recording, "record_images", lambda *_: None)
        query(other, images, per_step=True, progress=False)
        query(other, images, per_step=True, limit=20, progress=False)
    assert [source.raster for source in asked(tmp_path, other)] == [None, None]
    for options in ({}, {"limit": 20}):
        query(other, images, per_step=True, progress=False, **options)
    whole, few = asked(tmp_path, other)
    wanted = next(
        s
        for s in asked(root, pool)
        if not s.info.get("limit") and s.info["per_step"] == "cumulative"
    ).raster
    for name, array in wanted.items():
        assert np.array_equal(whole.raster[name], array), name
    x = data.normalise(
        images.x[torch.from_numpy(few.samples[few.raster["samples"]])],
        images.mean,
        images.std,
        torch.float64,
    )
    assert np.array_equal(
        few.raster["spikes"], neurons_by_hand(other, x)[1][:, :, few.raster["neurons"]]
    )
    path = whole.folder.path / "raster.npz"
    sound, stamp = path.read_bytes(), path.stat().st_mtime_ns
    query(other, images, per_step=True, progress=False)
    assert path.stat().st_mtime_ns == stamp
    path.write_bytes(b"other bytes")
    query(other, images, per_step=True, progress=False)
    assert path.read_bytes() == sound
