"""Signals of a pool's models on images: every model is queried about every image, and its answers
are stored beside the pool.
"""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from joblib import cpu_count as cores  # respects containers and affinity
from torch import nn
from tqdm.auto import tqdm

from mia_nb import data, store
from mia_nb.arguments import Flag, Positive, Rows
from mia_nb.checks import checked, row_numbers
from mia_nb.digests import digest
from mia_nb.models import BASES, architecture, neural_de, recording, timesteps
from mia_nb.models.solvers import BlownUp
from mia_nb.querying.network import BLOCK, activity_names, layer_activity, outputs
from mia_nb.querying.plan import check_size, is_built_in, noise_of_blocks_alone, settings_and_kind
from mia_nb.querying.refusals import check_outputs
from mia_nb.training.machine import device_of, enough_memory, threads
from mia_nb.training.plans import DTYPES
from mia_nb.training.pool import Pool
from mia_nb.types import Images, Query, Signals

VALUES = 2**17  # pixels in one forward pass: threads of smaller ones mostly wait for each other
MOST_ON_GPU = 4  # networks that are queried side by side on one GPU


@checked
def query(
    pool: Pool,
    images: Images,
    *,
    models: Rows | None = None,
    batch: Positive | None = None,
    device: str | None = None,
    progress: Flag = True,
    force: Flag = False,
    **options: Any,
) -> Signals:
    """Signals of a pool's models on images, kept in the store beside the pool.

    Parameters:
        pool: a trained pool; one `at` an earlier epoch is queried with the weights of that epoch.
        images: the pool's own, or others of the same kind.
        models: row numbers of the models that are queried; None: all.
        batch: images in one forward pass; None: chosen by the size of the images.
        device: None: a GPU if there is one.
        progress: whether to show a bar.
        force: whether to query again where signals are stored.
        options: fields of `types.Query`: queries, input_dropout, mask_scope, augment, noise,
            per_step, temperature, activity, output, output_args, limit, seed.

    Options:
        input_dropout p: x_q = x * 1[u > p] per element, after normalisation and without rescaling;
            all models get the same masks (Guan et al. 2025, Algorithm 1).
        mask_scope: "query": one mask is held over time. "step", for spiking networks only: every
            time step has its own mask, as in the public code of Guan et al.; the attacker then
            submits more than one image.
        augment: query 0 is the plain image; the others follow the recipe's augmentation, or
            crop+flip if it has none. All models get the same draws.
        noise: True switches the noise of SDE blocks and dropout layers on, with fresh draws per
            (seed, model, query, block of samples); False switches it off; None leaves it as built.
            An SDE built with noise at inference is queried with it. Random spikes that encode the
            input are never switched off.
        per_step: for spiking networks only. With True (or "cumulative") the Q axis holds the time
            steps: entry t is the output after the first t steps, the last is the plain query's.
            "instant": entry t is the output of step t alone. This attacker is stronger: the service
            must give its output step by step. Spikes on a few images are stored too.
        activity: for spiking networks and one plain query only. The signals also hold the activity
            of the layers (`models.recording.activity`) and the answers after each time step, which
            an attacker sees who measures the device that runs the network.
        output: a defense of `defenses.OUTPUTS` between attacker and models.
        limit: query only this many audited images, a fixed random choice, and as many of the
            population. Images that only a training defense saw (`pool.held_out`) are never queried.

    queries > 1 needs input_dropout, augment or noise. Signals are written model by model, so that
    memory does not grow with them and a killed query can be resumed.

    Returns:
        Signals (M or len(models), Q, N), their arrays read-only.

    Raises:
        ValueError: for outputs that cannot be trusted: of the wrong width, non-finite, the same for
            every sample, probabilities instead of logits, dependent on the other images of a batch
            (train mode left on), random without `noise`, not random with it.

    Caveat: membership is the pool's own mask for its own images; for other images member is False
    everywhere. Example:
        signals = query(pool, images, queries=16, noise=True)
    """
    record = Query(**options)
    chosen_device = device_of(device, here=False)
    data.check_images(images)
    check_size(pool, images)
    rows = row_numbers("models", models, len(pool.member)).tolist()
    settings, query_kind = settings_and_kind(pool, images, rows, record)
    key_settings = {"pool": pool.key, **settings}
    key = _content_key(pool, images, key_settings)
    folder = store.place(pool.folder.path.parent, "signals", pool.folder.name, key)
    batch_size = _batch_size(pool, images, settings["noise"], batch, chosen_device)

    signals = None if force else _load_stored(folder, progress)  # reading needs no lock
    if signals is None:
        with pool.folder.lock(f"signals-{key[:12]}"):
            # another process may have stored them while this one waited
            signals = None if force else _load_stored(folder, progress)
            if signals is None:
                store.open_folder(
                    folder.path.parent, "signals", pool.folder.name, key, key_settings
                )
                if force:
                    store.drop_partial(folder)
                job = Job(pool, settings, query_kind, chosen_device, batch_size)
                with enough_memory('batch=256, or device="cpu"'):
                    signals = _query_and_store(folder, job, images, progress)
    _write_raster(folder, pool, images, signals, chosen_device)
    return signals


class Job(NamedTuple):
    """A query of a pool."""

    pool: Pool
    settings: dict  # as `plan.settings_and_kind` gives them
    kind: str  # of the queries
    device: torch.device
    batch: int  # images in one forward pass


def _content_key(pool: Pool, images: Images, key_settings: dict) -> str:
    """The key of the stored signals: a digest of the settings, the images and the weights.

    A pool that is trained again by another strategy has the same pool key, but other weights. The
    machine is not in the key: it changes rounding only.
    """
    files = pool.folder.files()
    weights = [files.get(pool.weights_name(m), "") for m in key_settings["models"]]
    parts = [images.digest, *weights]
    limit = key_settings.get("limit")
    if limit is not None and pool.is_about(images) and pool.held_out.any():
        # of pools that hold images out, earlier versions chose fewer of the population
        parts.append(digest(_chosen_samples(pool, images, limit)))
    return store.content_key(key_settings, *parts)


def _batch_size(
    pool: Pool, images: Images, noise: bool | None, batch: int | None, device: torch.device
) -> int:
    """Number of images in one forward pass, a multiple of BLOCK: about `batch`; with None at least
    512 (256 with noise, 2,048 on a GPU), more where images are tiny.

    Noise from the global generator, which has one seed, allows only one block at a time.
    """
    if noise and not noise_of_blocks_alone(pool):
        return BLOCK
    if batch is not None:
        return max(batch // BLOCK, 1) * BLOCK
    fewest_blocks = 1 if device.type == "cpu" else 8
    blocks = max(VALUES // images.x[0].numel() // BLOCK, fewest_blocks)
    if not noise:
        blocks = max(blocks, 2)
    return blocks * BLOCK


def _query_and_store(folder: store.Folder, job: Job, images: Images, progress: bool) -> Signals:
    """The signals of a query, after they are written into the folder.

    If a model is refused, the folder is deleted: the query would be refused again.
    """
    try:
        with folder.lock("query"):  # so that `mia-nb clean` leaves the folder alone
            _query_models(folder, job, images, progress)
            return store.load_signals(folder)
    except ValueError as error:
        # damage to a file of the pool is no reason to delete what was queried
        if not isinstance(error, store.Corrupt) and not store.has_signals(folder):
            folder.delete()
        raise


def _load_stored(folder: store.Folder, progress: bool) -> Signals | None:
    """Signals of an earlier query, announced in one line; None if they are missing or altered."""
    try:
        signals = store.load_signals(folder)
    except store.Corrupt:
        return None
    if progress:
        shape = "{} models x {} queries x {} samples".format(*signals.shape)
        print(f"signals {folder.path.name}: {shape}, cached", flush=True)
    return signals


def _write_raster(
    folder: store.Folder, pool: Pool, images: Images, signals: Signals, device: torch.device
) -> None:
    """Beside signals per time step, write raster.npz: the spikes of the first model on a few
    audited images. Models that cannot be recorded get no such file.
    """
    if signals.query_kind != "steps" or folder.intact("raster.npz"):
        return
    samples = store.load_samples(folder)
    if samples is not None and len(samples) == 0:  # these are not the pool's images
        return
    columns = recording.evenly_spaced_images(np.flatnonzero(~signals.population))
    numbers = columns if samples is None else samples[columns]
    pixels = images.x[torch.from_numpy(numbers).to(images.x.device)].to(device)
    x = data.normalise(pixels, images.mean, images.std, DTYPES[pool.recipe.dtype])
    # the signals are stored already: a query does not fail for lack of a picture
    with contextlib.suppress(store.Corrupt, store.ReadOnly, OSError):
        module = pool.model(signals.info["models"][0]).to(device)
        recorded = recording.record_images(module, x, columns)
        if recorded:
            folder.write_arrays("raster.npz", recorded)


def _query_models(folder: store.Folder, job: Job, images: Images, progress: bool) -> None:
    """Write the signals of the queried models, and which of the pool's images they are about.

    Models are written one by one: memory holds only those that are queried side by side.
    """
    pool = job.pool
    settings = job.settings
    rows = settings["models"]
    queried = _queried_images(pool, images, settings.get("limit"))
    images = queried.images
    device_of(job.device)  # refuses a GPU that is not there
    on_device = images._replace(x=images.x.to(job.device), y=images.y.to(job.device))
    left = [m for m in rows if store.read_partial(folder, m) is None]
    networks = _networks(job, len(left))
    info = {
        "draws": job.kind,
        "pool": pool.key,
        "recipe": pool.recipe.to_json(),
        **_describe_network(pool, networks[0]),
        "dataset": images.name,
        **settings,
    }
    if settings.get("activity"):
        info["activity"] = activity_names(networks[0])
    labels = images.y.cpu().numpy()  # once, so that no model waits for a GPU to copy them
    with tqdm(
        desc=f"querying {len(rows)} {pool.recipe.model}",
        unit="model",
        disable=not progress or os.environ.get("MIA_NB_MODE") == "batch",
        total=len(rows),
        initial=len(rows) - len(left),
    ) as bar:
        signals_of = partial(_signals_of_model, job, on_device, labels)
        _write_side_by_side(folder, networks, left, signals_of, job.device, bar)
    design = {"labels": labels, "member": queried.member[rows], "population": queried.population}
    store.join_partial(folder, rows, design, info, queried.samples)


def _write_side_by_side(
    folder: store.Folder,
    networks: list[nn.Module],
    rows: list[int],
    signals_of: Callable[[nn.Module, int], Signals],
    device: torch.device,
    bar: tqdm,
) -> None:
    """Write signals_of(network, row) for each of these rows, in a thread for each network.

    Torch's number of threads and its generators are left as they were.
    """
    idle: queue.SimpleQueue[nn.Module] = queue.SimpleQueue()
    for network in networks:
        idle.put(network)

    def query_model(m: int) -> None:
        network = idle.get()
        try:
            signals = signals_of(network, m)
        finally:
            idle.put(network)
        store.write_partial(folder, m, signals)

    with (
        threads(1 if len(networks) > 1 else torch.get_num_threads()),
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        ThreadPoolExecutor(len(networks)) as executor,
    ):
        try:
            for _ in executor.map(query_model, rows):
                bar.update()
        except BaseException:  # the first model refused, or an interrupt: the others can wait
            executor.shutdown(cancel_futures=True)
            raise


def _networks(job: Job, models: int) -> list[nn.Module]:
    """The networks that are queried side by side, a thread for each, with the weights of one row.

    On a CPU the threads of a single network mostly wait for each other. A GPU works on one model
    while masks are drawn for others and their outputs are measured. Dropout layers and models from
    elsewhere draw noise from the one global generator: such models are queried one after another.
    """
    pool = job.pool
    side_by_side = 1
    if not job.settings["noise"] or noise_of_blocks_alone(pool):
        side_by_side = max(min(cores(), models), 1)
        if job.device.type == "cuda":
            side_by_side = min(side_by_side, MOST_ON_GPU)
    networks = []
    for _ in range(side_by_side):
        network = pool.model(job.settings["models"][0]).to(job.device)
        if is_built_in(pool):  # a network from elsewhere may use `view`
            network.to(memory_format=torch.channels_last)
        networks.append(network)
    return networks


def _signals_of_model(
    job: Job, images: Images, labels: np.ndarray, module: nn.Module, model: int
) -> Signals:
    """Signals of one model, if asked for with the activity of its layers. Its outputs are checked
    first.

    Parameters:
        job: the query.
        images: the queried images, on the network's device.
        labels: (N,) their labels.
        module: the network, which gets the model's weights.
        model: the row's number.
    """
    settings = job.settings
    dtype = job.pool.recipe.dtype
    pool_name = job.pool.folder.path.name  # a notebook queries several pools
    module.load_state_dict(job.pool.state(model))
    activity = None
    info = {}
    try:
        check_outputs(module, images, model, dtype, settings["noise"])
        logits = outputs(module, images, model, settings, dtype, job.batch)
        if settings.get("activity"):
            activity = layer_activity(module, images, settings, dtype, job.batch)
            info["activity"] = activity_names(module)
        signals = Signals.from_logits(logits[None], labels, temperature=settings["temperature"])
    except BlownUp as error:
        raise ValueError(f"{pool_name}: model {model}: {error}") from error
    except ValueError as error:
        # `from_logits` is given one model alone, which it calls model 0
        refusal = str(error).replace("model 0 gives", f"model {model} gives")
        raise ValueError(f"{pool_name}: {refusal}") from error
    return replace(signals, activity=activity, info=info)


class QueriedImages(NamedTuple):
    """The images that the models are queried about."""

    images: Images
    member: np.ndarray  # (M, N) bool
    population: np.ndarray  # (N,) bool
    samples: np.ndarray | None  # their numbers in the pool's data, as `store.load_samples` says


def _queried_images(pool: Pool, images: Images, limit: int | None) -> QueriedImages:
    """The images that are queried: all but the held-out ones. With a limit, that many audited
    images and as many of the population are chosen, the same ones for all queries, in data order.
    """
    about_pool = pool.is_about(images)
    if about_pool:
        member = pool.member
        population = pool.population
    else:
        population = np.zeros(len(images.y), bool)
        member = np.tile(population, (len(pool.member), 1))
    samples = _chosen_samples(pool, images, limit)
    if samples is not None:
        images = images._replace(x=images.x[samples], y=images.y[samples])
        member = member[:, samples]
        population = population[samples]
    if not about_pool:
        samples = np.zeros(0, int)  # these images have no numbers in the pool's data
    return QueriedImages(images, member, population, samples)


def _chosen_samples(pool: Pool, images: Images, limit: int | None) -> np.ndarray | None:
    """The numbers of the images that are queried, rising; None for all."""
    population = np.zeros(len(images.y), bool)
    held_out = np.zeros(len(images.y), bool)
    if pool.is_about(images):
        population = pool.population
        held_out = pool.held_out
    if limit is None and not held_out.any():
        return None
    rng = np.random.default_rng(0)
    chosen_audited = rng.permutation(np.flatnonzero(~population & ~held_out))[:limit]
    chosen_population = rng.permutation(np.flatnonzero(population & ~held_out))[:limit]
    return np.sort(np.concatenate([chosen_audited, chosen_population]))


def _describe_network(pool: Pool, module: nn.Module) -> dict:
    """The entries of `Signals.info` that say which network was queried; for spiking networks also
    the number of time steps and the readout.
    """
    recipe = pool.recipe
    steps = timesteps(module)
    flow = neural_de.describe(module)
    base = architecture(recipe.model, recipe.model_args)
    about: dict = {"model": recipe.model}
    if flow is not None:
        about["flow"] = flow
    if recipe.defense:
        about["defense"] = recipe.defense
        about["defense_args"] = recipe.defense_args
    for option in ("blocks", "freeze"):
        if option in recipe.model_args:
            about[option] = recipe.model_args[option]
    if steps is None:
        name = recipe.model
        if recipe.model in BASES:
            name = f"{base} with its last group replaced"
            about["base"] = base
        if flow and flow["k"]:
            name += f" sigma={flow['sigma']:.3g} (noise sd {flow['noise_sd']:.3g})"
        return {"family": name, **about}
    spiking = "snn " if recipe.model == "snn" else ""
    return {
        "family": f"{spiking}{base} T={steps}",
        **about,
        "base": base,
        "timesteps": steps,
        "readout": getattr(module, "readout", "mean"),
    }
