"""Signals of a pool's models on images: every model is queried about every image, and its answers
are kept in the store beside the pool.
"""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from joblib import cpu_count as cores  # respects containers and affinity
from torch import nn
from tqdm.auto import tqdm

from mia_nb import data, store
from mia_nb.arguments import Flag, Positive, Rows
from mia_nb.checks import checked, row_numbers
from mia_nb.models import BASES, architecture, neural_de, recording, timesteps
from mia_nb.models.solvers import BlownUp
from mia_nb.querying.network import BLOCK, activity_names, layer_activity, outputs
from mia_nb.querying.plan import check_size, is_built_in, noise_of_blocks_alone, settings_and_kind
from mia_nb.querying.refusals import check_outputs
from mia_nb.training.machine import device_of, threads
from mia_nb.training.plans import DTYPES
from mia_nb.training.pool import Pool
from mia_nb.types import Images, Query, Signals

VALUES = 2**17  # pixels queried together: small operations mostly wait for each other


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
        pool: a trained pool; one `at` an earlier epoch is queried as it was then.
        images: the pool's own, or others of the same kind.
        models: rows of the pool that are queried; None: all.
        batch: images in one forward pass; None: as many as pay.
        device: None: the best there is.
        progress: whether a bar is shown.
        force: whether stored signals are made anew.
        options: fields of `types.Query`: queries, input_dropout, mask_scope, augment, noise,
            per_step, temperature, activity, output, output_args, limit, seed.

    Options:
        input_dropout p: x_q = x * 1[u > p] per element, after normalisation, unscaled, the same
            masks for all models (Guan et al. 2025, Algorithm 1).
        mask_scope="step": spiking networks only, other inputs are dropped at every time step, as in
            the public code of Guan et al., which takes more than one submitted image ("query": one
            mask, held over time).
        augment: query 0 is the plain image, the others follow the recipe's augmentation, or
            crop+flip where it has none, the same draws for all models.
        noise: None as built; True switches the noise of SDE blocks and dropout layers on, with
            fresh draws per (seed, model, query, block of samples), False off. An SDE built with
            noise at inference is queried with it. Input encoded by random spikes is never off.
        per_step=True (or "cumulative"): spiking networks only, the Q axis holds the time steps,
            entry t the output after the first t, the last the plain query's; "instant": step t
            alone. That is a stronger attacker, to whom the service gives its output step by step.
            Spikes on a few images are kept beside it.
        activity: spiking networks only, of one plain query: the signals also hold what the layers
            did meanwhile (`models.recording.activity`) and the answers after each time step. That
            is what somebody sees who measures the device on which the network runs.
        output: a defense of `defenses.OUTPUTS` between attacker and models.
        limit: only so many of the audited images, a fixed random choice, and as many of the
            population; never those that only a training defense saw (`pool.held_out`).

    queries > 1 needs input_dropout, augment or noise. Signals are written model by model: memory
    does not grow with them, and a killed query goes on.

    Returns:
        Signals (M or len(models), Q, N), their arrays read-only.

    Raises:
        ValueError: for outputs that cannot be trusted: wrong width, non-finite, the same for every
            sample, probabilities instead of logits, dependent on the companions in a batch (train
            mode left on), random without `noise`, not random with it.

    Caveat: membership is the pool's own mask where the images are its own; other images come back
    with member all False. Example:
        signals = query(pool, images, queries=16, noise=True)
    """
    plan = Query(**options)
    chosen_device = device_of(device, here=False)
    data.check_images(images)
    check_size(pool, images)
    rows = row_numbers("models", models, len(pool.member)).tolist()
    settings, query_kind = settings_and_kind(pool, images, rows, plan)
    # The key includes the weights: trained again by another strategy, a pool has other weights
    # under the same pool key. It leaves out the machine, since outputs differ by rounding only.
    key_settings = {"pool": pool.key, **settings}
    files = pool.folder.files()
    weights = [files.get(pool.weights_name(m), "") for m in rows]
    key = store.content_key(key_settings, images.digest, *weights)
    folder = store.place(pool.folder.path.parent, "signals", pool.folder.name, key)
    batch_size = _batch_size(pool, images, settings["noise"], batch, chosen_device)
    run = partial(
        _query_models, pool, images, settings, query_kind, chosen_device, batch_size, progress
    )
    signals = None if force else _load_stored(folder, progress)
    if signals is None:  # reading needs no lock
        with pool.folder.lock(f"signals-{key[:12]}"):
            # another process may have made them meanwhile
            signals = None if force else _load_stored(folder, progress)
            if signals is None:
                store.open_folder(
                    folder.path.parent, "signals", pool.folder.name, key, key_settings
                )
                if force:
                    store.drop_partial(folder)
                signals = _query_and_load(folder, run)
    _write_raster(folder, pool, images, signals, chosen_device)
    return signals


def _batch_size(
    pool: Pool, images: Images, noise: bool | None, batch: int | None, device: torch.device
) -> int:
    """Number of images in one forward pass, in whole blocks: `batch`, or at least 512 (on a GPU
    2,048), more where images are tiny.

    With noise `batch` is ignored. Noise of the global generator, which takes one seed, allows one
    block at a time.
    """
    least = 1 if device.type == "cpu" else 8
    most = max(VALUES // images.x[0].numel() // BLOCK, least) * BLOCK
    if noise:
        return most if noise_of_blocks_alone(pool) else BLOCK
    if batch is None:
        return max(most, 512)
    return max(batch // BLOCK, 1) * BLOCK


def _query_and_load(folder: store.Folder, run: Callable[[store.Folder], None]) -> Signals:
    """Signals that `run` writes into the folder.

    If a model is refused, the folder is deleted: the query would be refused again.
    """
    try:
        with folder.lock("query"):  # so that `mia-nb clean` leaves the folder alone
            run(folder)
            return store.load_signals(folder)
    except ValueError as error:
        # a damaged file of the pool says nothing against the models that were queried
        if not isinstance(error, store.Corrupt) and not store.has_signals(folder):
            folder.delete()
        raise


def _load_stored(folder: store.Folder, progress: bool) -> Signals | None:
    """Signals of an earlier query, announced in one line; None if any are missing or altered."""
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
    """Write raster.npz, which shows the first model at work on a few audited images, beside the
    signals of a query step by step. Models that cannot be recorded get no such file.
    """
    if signals.query_kind != "steps" or folder.intact("raster.npz"):
        return
    samples = store.load_samples(folder)
    if samples is not None and not len(samples):  # not images of the pool
        return
    columns = recording.evenly_spaced_images(np.flatnonzero(~signals.population))
    numbers = torch.from_numpy(columns if samples is None else samples[columns])
    pixels = images.x[numbers.to(images.x.device)].to(device)
    x = data.normalise(pixels, images.mean, images.std, DTYPES[pool.recipe.dtype])
    # the signals are stored already: a query does not fail for want of a picture
    with contextlib.suppress(store.Corrupt, store.ReadOnly, OSError):
        module = pool.model(signals.info["models"][0]).to(device)
        recorded = recording.record_images(module, x, columns)
        if recorded:
            folder.write_arrays("raster.npz", recorded)


def _query_models(
    pool: Pool,
    images: Images,
    options: dict,
    query_kind: str,
    device: torch.device,
    batch: int,
    progress: bool,
    folder: store.Folder,
) -> None:
    """Write the signals of these models, and which of the pool's images they are about.

    Models are written one by one: no more of them than are queried side by side are in memory.
    """
    rows = options["models"]
    images, member, population, chosen = _queried_images(pool, images, options.get("limit"))
    device_of(device)  # refuses a GPU that is not there
    on_device = images._replace(x=images.x.to(device), y=images.y.to(device))
    left = [m for m in rows if store.read_partial(folder, m) is None]
    networks = _networks(pool, rows[0], options["noise"], len(left), device)
    info = {"draws": query_kind, "pool": pool.key, **_describe_network(pool, networks[0])}
    info |= {"dataset": images.name, **options}
    if options.get("activity"):
        info["activity"] = activity_names(networks[0])
    labels = images.y.cpu().numpy()
    idle: queue.SimpleQueue[nn.Module] = queue.SimpleQueue()
    for network in networks:
        idle.put(network)

    def query_model(m: int) -> None:
        network = idle.get()
        try:
            pool.fill(network, m)
            signals = _signals_of_model(
                network, on_device, labels, m, options, pool.recipe.dtype, batch
            )
        finally:
            idle.put(network)
        store.write_partial(folder, m, signals)

    with (
        threads(1 if len(networks) > 1 else torch.get_num_threads()),
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        ThreadPoolExecutor(len(networks)) as executor,
    ):
        bar = tqdm(
            executor.map(query_model, left),
            desc=f"querying {len(rows)} {pool.recipe.model}",
            unit="model",
            disable=not progress or os.environ.get("MIA_NB_MODE") == "batch",
            total=len(rows),
            initial=len(rows) - len(left),
        )
        try:
            list(bar)
        except BaseException:  # the first model refused, or an interrupt: the others can wait
            executor.shutdown(cancel_futures=True)
            raise
    design = {"labels": labels, "member": member[rows], "population": population}
    store.join_partial(folder, rows, design, info, chosen)


def _networks(
    pool: Pool, row: int, noise: bool | None, models: int, device: torch.device
) -> list[nn.Module]:
    """The networks that are queried side by side, a thread for each, with the weights of one row.

    On a CPU the threads of a single network mostly wait for each other. A GPU works on one model
    while masks are drawn for others and their outputs are measured.

    Parameters:
        pool: the pool that is queried.
        row: the model whose weights the networks get.
        noise: of the query. Dropout and the noise of models from elsewhere draw from the one global
            generator, so that such models are queried one after another.
        models: number of models to be queried.
        device: where the networks are put.
    """
    side_by_side = 1
    if not noise or noise_of_blocks_alone(pool):
        most = 4 if device.type == "cuda" else models
        side_by_side = max(min(cores(), models, most), 1)
    networks = []
    for _ in range(side_by_side):
        network = pool.model(row).to(device)
        if is_built_in(pool):  # a network from elsewhere may use `view`
            network.to(memory_format=torch.channels_last)
        networks.append(network)
    return networks


def _signals_of_model(
    module: nn.Module,
    images: Images,
    labels: np.ndarray,
    model: int,
    options: dict,
    dtype: str,
    batch: int,
) -> Signals:
    """Signals of one model, with what its layers did where that is asked for; its outputs are
    checked first.

    Parameters:
        module: the network, with the model's weights.
        images: the images shown, on the network's device.
        labels: (N,) their labels on the CPU, so that no model waits for a GPU to copy them.
        model: the row's number.
        options: of the query.
        dtype: of the pool.
        batch: images in one forward pass.
    """
    activity = None
    info = {}
    try:
        check_outputs(module, images, model, dtype, options["noise"])
        logits = outputs(module, images, model, options, dtype, batch)
        if options.get("activity"):
            activity = layer_activity(module, images, options, dtype, batch)
            info["activity"] = activity_names(module)
    except BlownUp as error:
        raise ValueError(f"model {model}: {error}") from error
    try:
        signals = Signals.from_logits(logits[None], labels, temperature=options["temperature"])
    except ValueError as error:
        raise ValueError(str(error).replace("model 0 gives", f"model {model} gives")) from error
    return replace(signals, activity=activity, info=info)


def _queried_images(
    pool: Pool, images: Images, limit: int | None
) -> tuple[Images, np.ndarray, np.ndarray, np.ndarray | None]:
    """(images, member (M, N), population (N,), numbers of these images in the pool's data).

    The numbers are None if all images of the pool are queried, and an empty array for images that
    are not the pool's. With a limit, that many audited images and as many of the population are
    chosen, the same ones for all queries, in data order. Held-out images are never queried.
    """
    about_pool = pool.is_about(images)
    if about_pool:
        member = pool.member
        population = pool.population
        held_out = pool.held_out
    else:
        population = np.zeros(len(images.y), bool)
        held_out = population
        member = np.tile(population, (len(pool.member), 1))
    chosen = None
    if limit is not None or held_out.any():
        rng = np.random.default_rng(0)
        parts = [rng.permutation(np.flatnonzero(p))[:limit] for p in (~population, population)]
        chosen = np.sort(np.concatenate(parts))
        chosen = chosen[~held_out[chosen]]
        images = images._replace(x=images.x[chosen], y=images.y[chosen])
        member = member[:, chosen]
        population = population[chosen]
    if not about_pool:
        chosen = np.zeros(0, int)
    return images, member, population, chosen


def _describe_network(pool: Pool, module: nn.Module) -> dict:
    """Entries of `Signals.info` that say which network was queried; of spiking networks also the
    number of time steps and the readout.
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
    for name in ("blocks", "freeze"):
        if name in recipe.model_args:
            about[name] = recipe.model_args[name]
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
