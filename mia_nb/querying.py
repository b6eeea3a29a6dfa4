"""Query every model of a pool about every image: pool x images -> Signals, cached; outputs that
cannot be trusted are refused.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from mia_nb import data, defenses, store
from mia_nb.arguments import Flag, Positive, Rows
from mia_nb.checks import checked, row_numbers
from mia_nb.models import (
    BASES,
    FLOWS,
    architecture,
    evaluating,
    neural_de,
    recording,
    snn,
    timesteps,
)
from mia_nb.models.recording import Operations
from mia_nb.models.snn import cumulative
from mia_nb.models.solvers import BACKENDS, BlownUp, Draws
from mia_nb.training.execution import cores, device_of
from mia_nb.training.loop import DTYPES, build, fitting, mix
from mia_nb.training.pool import Pool
from mia_nb.training.work import threads, useful_threads
from mia_nb.types import Images, Query, Signals

DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
# pJ of one operation in 32 bits, 45 nm (Horowitz 2014)
ENERGIES = {"multiply_accumulates": 4.6, "accumulates": 0.9}
BLOCK = 256  # samples that share a seed, in data order: draws do not depend on the batch size
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
    _check_size(pool, images)
    rows = row_numbers("models", models, len(pool.member)).tolist()
    settings, query_kind = _settings(pool, images, rows, plan)
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


def _check_size(pool: Pool, images: Images) -> None:
    """ValueError for images of another size than those that the pool was trained on."""
    frames = pool.images_record.get("frames", 1)
    if images.frames != frames:
        raise ValueError(
            f"images of frames={images.frames}; the pool was trained on frames={frames}: load them"
            " with the same number of frames"
        )
    shape = tuple(images.x.shape[1:])
    trained = pool.folder.map_array("images.npy", "u", (None, None, None, None)).shape[1:]
    if shape != trained:
        raise ValueError(
            f"images of {shape} pixels; the pool was trained on {trained}: load them with the same"
            " size"
        )


def _settings(pool: Pool, images: Images, rows: list[int], plan: Query) -> tuple[dict, str]:
    """(the settings that determine the outputs, the kind of the queries); ValueError for a query
    that does not fit this pool.
    """
    per_step = plan.per_step
    output_args = plan.output_args
    if plan.output is not None or output_args:
        output_args = defenses.output_arguments(plan.output, output_args, len(images.classes))
    noise = plan.noise
    if noise is None and pool.recipe.model in FLOWS:
        noise = neural_de.is_noisy(build(pool.recipe, pool.images(), 0)) or None
    # an SDE's noise goes along with what is done to the image; dropout layers' noise is a query
    # of its own
    changed = plan.input_dropout or plan.augment
    goes_along = changed and _noise_of_blocks_alone(pool)
    query_kind = _query_kind(plan, None if goes_along else noise)
    if plan.mask_scope != "query" or per_step:
        _check_steps(pool, rows[0], plan)
    if plan.activity:
        _check_activity(pool, rows[0], plan, query_kind)
    augment = pool.recipe.augment if pool.recipe.augment != "none" else "crop+flip"
    settings = {
        "queries": plan.queries,
        "input_dropout": plan.input_dropout,
        "augment": plan.augment and augment,
        "noise": noise,
        "temperature": plan.temperature,
        "seed": plan.seed if query_kind not in ("plain", "steps") else 0,
        "models": rows,
        **_options_in_key(
            per_step="cumulative" if per_step is True else per_step,
            mask_scope=plan.mask_scope if plan.input_dropout else "query",
            activity=plan.activity,
            limit=plan.limit,
            epoch=pool.epoch,
            output=plan.output,
            output_args=output_args,
        ),
    }
    return settings, query_kind


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
        return most if _noise_of_blocks_alone(pool) else BLOCK
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


def _check_steps(pool: Pool, model: int, plan: Query) -> None:
    """Refuse queries about time steps to a model that has none."""
    module = pool.model(model)
    encode = getattr(module, "encode", "constant")
    if timesteps(module) is None:
        raise ValueError(
            "mask_scope='step' and per_step are for spiking networks;"
            f" {pool.recipe.model} has one output per image: use mask_scope='query',"
            " per_step=False"
        )
    if plan.mask_scope == "step" and encode != "constant":
        raise ValueError(
            f"mask_scope='step' masks what enters at each step, and encode={encode!r} makes that"
            " from one image: use mask_scope='query'"
        )


def _check_activity(pool: Pool, model: int, plan: Query, query_kind: str) -> None:
    """Refuse activity=True for networks that do not spike or spike at random, and for queries that
    are not plain.
    """
    module = pool.model(model)
    if not isinstance(module, snn.SNN) or module.stochastic:
        raise ValueError(
            "activity=True looks at the layers of a spiking network (models.snn.SNN) that does the"
            f" same at every call; {pool.recipe.model} is none: use activity=False"
        )
    if query_kind != "plain" or plan.output is not None:
        raise ValueError(
            f"activity=True with {plan.output or query_kind}: who measures the device sees one"
            " plain query; leave the other option out"
        )


def _options_in_key(**options: Any) -> dict:
    """The options that are set, to be added to the settings in the key of the stored signals.

    Those left at their default are not added, so that adding an option to `Query` changes no key.
    """
    return {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and value != "query"
    }


def _query_kind(plan: Query, noise: bool | None) -> str:
    """What makes the queries of one image differ, a word of types.QUERY_KINDS; ValueError for
    several sources at once, and for several queries that would all be the same.
    """
    on = []
    if plan.input_dropout > 0:
        on.append("dropout")
    if plan.augment:
        on.append("augment")
    if noise is True:
        on.append("noise")
    if plan.per_step:
        on.append("steps")
    queries = plan.queries
    if plan.per_step and (queries > 1 or len(on) > 1):
        raise ValueError(
            f"per_step with queries={queries} and {' and '.join(on[:-1]) or 'nothing random'}: the"
            " query axis holds the time steps then; take one plain query"
        )
    if len(on) > 1:
        raise ValueError(f"{' and '.join(on)} at once: take one source of randomness at a time")
    if plan.augment and queries == 1:
        raise ValueError(
            "augment=True with queries=1 shows the plain image only: take more queries, or"
            " augment=False"
        )
    if queries > 1 and not on:
        raise ValueError(
            f"queries={queries} without input_dropout, augment or noise: all outputs would be the"
            " same; use queries=1"
        )
    if not on:
        return "plain"
    return on[0]


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
        info["activity"] = _activity_names(networks[0])
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
    if not noise or _noise_of_blocks_alone(pool):
        most = 4 if device.type == "cuda" else models
        side_by_side = max(min(cores(), models, most), 1)
    networks = []
    for _ in range(side_by_side):
        network = pool.model(row).to(device)
        if _is_built_in(pool):  # a network from elsewhere may use `view`
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
    """Signals of one model, with what its layers did where that is asked for.

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
        logits = _outputs(module, images, model, options, dtype, batch)
        if options.get("activity"):
            activity = _activity(module, images, options, dtype, batch)
            info["activity"] = _activity_names(module)
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


def _noise_of_blocks_alone(pool: Pool) -> bool:
    """Whether only SDE blocks are noisy in the pool's models. Each block of images can then have a
    generator of its own; dropout layers draw from the global one.
    """
    return pool.recipe.model in FLOWS and _is_built_in(pool) and pool.recipe.defense != "dropout"


def _is_built_in(pool: Pool) -> bool:
    """Whether the pool's network, or the one that it is made from, is one of `models.MODELS`."""
    return ":" not in architecture(pool.recipe.model, pool.recipe.model_args)


def _outputs(
    module: nn.Module, images: Images, model: int, options: dict, dtype: str, batch: int
) -> np.ndarray:
    """(Q, N, K) logits of one model, checked first."""
    per_step = options.get("per_step")
    run = partial(_forward, _prepare(module.eval(), options["noise"]), dtype)
    _check_outputs(run, images, model, len(images.classes), dtype, options["noise"])
    run = partial(run, per_step=per_step)
    if any(block.solver["method"] in BACKENDS for _, block in neural_de.flow_blocks(module)):
        batch = BLOCK  # these solvers choose steps or noise for a batch as a whole

    def logits_of(images: Images) -> np.ndarray:
        """(Q, N, K) answers to these images, query by query."""
        query = partial(
            _logits, run, images, model, options=options, dtype=dtype, steps=timesteps(module)
        )
        queries = options["queries"]
        all_logits = None
        for q in range(queries):
            logits = fitting(partial(query, q), batch, BLOCK)  # no draw depends on the batch
            if all_logits is None:
                all_logits = logits.new_empty(queries, *logits.shape)
            all_logits[q] = logits
        if per_step:  # one query, whose time steps take the place of the queries
            all_logits = all_logits[0]
        return all_logits.cpu().numpy()  # the only step that waits for a GPU

    output = options.get("output")
    if output is None:
        return logits_of(images)
    random_logits = None
    if defenses.OUTPUTS[output].random:
        random_logits = logits_of(_random_images(images, options["seed"]))
    return defenses.change_output(
        output, logits_of(images), random_logits, **options["output_args"]
    )


def _random_images(images: Images, seed: int) -> Images:
    """The same number of images, their pixels drawn uniformly."""
    generator = torch.Generator().manual_seed(mix(seed, "random images"))
    x = torch.randint(0, 256, images.x.shape, generator=generator, dtype=torch.uint8)
    return images._replace(x=x.to(images.x.device))


def _activity_names(module: snn.SNN) -> list[str]:
    """The columns of `_activity`."""
    steps = [f"answer {step}" for step in range(1, module.timesteps)]
    return [*steps, *recording.activity_names(module)]


def _activity(module: snn.SNN, images: Images, options: dict, dtype: str, batch: int) -> np.ndarray:
    """(1, N, F) float32: the margins of the network's answers after each step but the last, and
    the activity of its layers.
    """
    answers = []
    layers = []
    part = max(1, batch // module.timesteps)
    with torch.inference_mode():
        for x in images.x.split(part):
            x = data.normalise(x, images.mean, images.std, DTYPES[dtype])
            steps, layer = recording.activity(module, x)
            answers.append(cumulative(steps.double(), module.readout))
            layers.append(layer)
    logits = torch.cat(answers, 1).cpu().numpy()
    labels = images.y.cpu().numpy()
    signals = Signals.from_logits(logits[None], labels, temperature=options["temperature"])
    early_margins = signals.margin[0, :-1].T  # the last answer is the plain query's
    columns = [early_margins, torch.cat(layers).cpu()]
    return np.concatenate(columns, axis=1).astype(np.float32)[None]


def _prepare(module: nn.Module, noise: bool | None) -> nn.Module:
    """The network with its noise switched on (True) or off (False). With None dropout layers are
    off, and SDE blocks are as they were built.
    """
    for layer in module.modules():
        if isinstance(layer, DROPOUT):
            layer.train(noise is True)
    return neural_de.set_noise(module, noise)


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


def _forward(module: nn.Module, dtype: str, x: Tensor, per_step: str | None = None) -> Tensor:
    """Logits (B, K), or (T, B, K) with per_step, of images, or of events (T, B, C, H, W)."""
    if x.ndim == 5 and getattr(module, "time_axis", 0) == 1:
        x = x.transpose(0, 1)
    with (
        torch.inference_mode(),
        torch.autocast(x.device.type, torch.bfloat16, enabled=dtype == "bfloat16"),
    ):
        if not per_step:
            return module(x)
        instant = module(x, per_step=True)
        if per_step == "cumulative":
            return cumulative(instant.to(DTYPES[dtype]), getattr(module, "readout", "mean"))
        return instant


def _logits(
    run: Callable[[Tensor], Tensor],
    images: Images,
    model: int,
    q: int,
    batch: int,
    *,
    options: dict,
    dtype: str,
    steps: int | None,
) -> Tensor:
    """(N, K) logits of query q in float64, (T, N, K) per step, on the device of the images.

    Draws are made for whole blocks of images. A spiking network gets smaller parts of them, which
    with their `steps` time steps make up `batch` rows. Nothing here waits for a GPU.
    """
    logits = []
    samples = len(images.y)
    part = max(1, batch // (steps or 1))
    mask_steps = steps if options.get("mask_scope") == "step" else None
    for start in range(0, samples, batch):
        stop = min(start + batch, samples)
        x = images.x[start:stop]
        blocks = range(start // BLOCK, math.ceil(stop / BLOCK))
        sizes = [min(BLOCK, samples - block * BLOCK) for block in blocks]
        seeds = [(options["seed"], q, block) for block in blocks]
        if options["augment"] and q > 0:
            x = _augmented(x, options["augment"], sizes, seeds)
        x = data.normalise(x, images.mean, images.std, DTYPES[dtype])
        if options["input_dropout"]:
            p = options["input_dropout"]
            x = x * _masks(x, p, sizes, seeds, mask_steps, images.frames)
        if options["noise"]:
            seeds = [(options["seed"], model, q, block) for block in blocks]
            logits.append(_noisy(run, x, sizes, seeds))
        else:
            logits += [run(rows) for rows in x.split(part, -4)]
    return torch.cat(logits, -2).double()


def _augmented(x: Tensor, ops: str, sizes: list[int], seeds: list[tuple]) -> Tensor:
    """Augmented images (B, C, H, W); each block has its own draws."""
    draws = []
    for size, words in zip(sizes, seeds, strict=True):
        generator = torch.Generator().manual_seed(mix(*words, "augment"))
        draws.append(data.augment_draws(ops, size, *x.shape[2:], generator))
    joined = {}
    for name in draws[0]:
        parts = [draw[name] for draw in draws]
        # the operations of AutoAugment stay on the CPU, which sorts the images by them
        joined[name] = torch.cat(parts) if name == "operations" else _cat_to_device(parts, 0, x)
    return data.apply_augment(x, joined)


def _cat_to_device(parts: list[Tensor], axis: int, x: Tensor) -> Tensor:
    """Tensors drawn on the CPU, joined along an axis and copied to the device of x without
    waiting.
    """
    joined = torch.cat(parts, axis)
    if x.is_cuda:
        joined = joined.pin_memory()
    return joined.to(x.device, non_blocking=True)


def _masks(
    x: Tensor,
    p: float,
    sizes: list[int],
    seeds: list[tuple],
    steps: int | None = None,
    frames: int = 1,
) -> Tensor:
    """Dropout masks 1[u > p] for images x (B, C, H, W), drawn on the CPU whatever the device.

    With `steps` there is a mask for each time step, (steps, B, C, H, W). Frames of events are time
    steps already: their masks are (B, frames * C, H, W), one for all frames without `steps`, and
    one for each with them.
    """
    channels = x.shape[1] // frames
    parts = []
    for size, words in zip(sizes, seeds, strict=True):
        generator = torch.Generator().manual_seed(mix(*words, "mask"))
        shape = (steps or 1, size, channels, *x.shape[2:])
        parts.append(torch.rand(shape, generator=generator) > p)
    masks = _cat_to_device(parts, 1, x).to(x.dtype)
    if frames > 1:
        masks = masks.expand(frames, *masks.shape[1:])
        return masks.transpose(0, 1).flatten(1, 2)
    return masks if steps else masks[0]


def _noisy(
    run: Callable[[Tensor], Tensor], x: Tensor, sizes: list[int], seeds: list[tuple]
) -> Tensor:
    """Logits of images whose noise is seeded block by block.

    SDE blocks draw from a generator for each block of images. All other noise comes from torch's
    global generator, and then x is a single block; `_query_models` restores that generator.
    """
    numbers = [mix(*words, "noise") for words in seeds]
    torch.manual_seed(numbers[0])
    with Draws([torch.Generator(x.device).manual_seed(number) for number in numbers], sizes):
        return run(x)


def _check_outputs(
    run: partial, images: Images, model: int, classes: int, dtype: str, noise: bool | None
) -> None:
    """Refuse a model whose outputs have the wrong width, are all alike, or depend on chance or on
    the rest of the batch.

    Parameters:
        run: `_forward` of a module: images (B, C, H, W) -> logits.
        images: up to 64 of them are tried.
        model: the row's number.
        classes: the number of logits wanted.
        dtype, noise: of the query.
    """
    module = run.args[0]
    evenly_spaced = torch.linspace(0, len(images.x) - 1, min(64, len(images.x))).long()
    x = images.x[evenly_spaced.to(images.x.device)]
    x = data.normalise(x, images.mean, images.std, DTYPES[dtype])
    outputs = run(x)
    if outputs.ndim != 2 or outputs.shape[1] != classes:
        raise ValueError(
            f"model {model} gives outputs of shape {tuple(outputs.shape)}; wanted ({len(x)},"
            f" {classes}): one logit a class"
        )
    if not torch.isfinite(outputs).all():
        reason = neural_de.blown_up(module, x)
        if reason:
            raise ValueError(f"model {model}: {reason}")
        return  # non-finite outputs are named, with their sample, where signals are made
    # a network that was trained with noise may well give a constant without it
    constant = len(x) > 1 and torch.equal(outputs, outputs[:1].expand_as(outputs))
    if constant and not neural_de.is_noisy(module):
        raise ValueError(
            f"model {model} gives the same output for every sample: {_why_constant(module, x)}"
        )
    if noise:
        _check_noise(run, x, model)
        if next(neural_de.flow_blocks(module), None):
            _prepare(module, False)
            _check_outputs(run, images, model, classes, dtype, False)
            _prepare(module, True)
    else:
        _check_repeated(run, x, outputs, model, _tolerance(x, dtype))


def _check_repeated(run: partial, x: Tensor, outputs: Tensor, model: int, tolerance: float) -> None:
    """Refuse a model without noise whose outputs for images x change with the next query, or with
    the batch.
    """
    module = run.args[0]
    if getattr(module, "stochastic", False):
        raise ValueError(
            f"model {model} encodes its input as random spikes, so that every output is another"
            " one: declare it with noise=True, and take several queries"
        )
    scale = tolerance * (1 + outputs.abs().max())
    # a convolution rounds differently in another batch, which flips a spike in a few samples
    allowed = 0 if timesteps(module) is None else 0.25
    if _share_above(run(x) - outputs, scale) > allowed:
        raise ValueError(
            f"model {model} gives another output to the same query: declare it with noise=True, or"
            " noise=False to switch it off"
        )
    if len(x) == 1:
        return
    half = len(x) // 2
    halves = torch.cat([run(x[:half]), run(x[half:])])
    if _share_above(halves - outputs, scale) > allowed:
        raise ValueError(
            f"model {model} gives outputs that depend on the other images in the batch: is"
            " BatchNorm left in train mode?"
        )


def _check_noise(run: Callable[[Tensor], Tensor], x: Tensor, model: int) -> None:
    """ValueError for a model that gives the same outputs under two seeds of its noise."""
    outputs = [_noisy(run, x, [len(x)], [("doubt", seed)]) for seed in (0, 1)]
    if torch.equal(*outputs):
        raise ValueError(
            f"model {model} gives the same output to every query although noise=True: it has no"
            " noise to switch on; use noise=None"
        )


def _tolerance(x: Tensor, dtype: str) -> float:
    """How far two outputs of one model may differ by rounding, relative to the largest."""
    if dtype == "bfloat16":
        return 3e-2
    if x.is_cuda and dtype == "float32" and torch.backends.cudnn.allow_tf32:
        return 8e-3  # convolutions multiply numbers of ten bits (TF32)
    return 1e-3


def _share_above(difference: Tensor, scale: Tensor) -> float:
    """Share of samples whose output differs by more than `scale`."""
    return float((difference.abs().amax(1) > scale).double().mean())


def _why_constant(module: nn.Module, x: Tensor) -> str:
    """Why a model may give the same output for every sample, as a part of a message."""
    if isinstance(module, snn.SNN):
        rates = snn.firing_rates(module, [x]).query("rate == 0")
        if len(rates):
            site = rates["site"].iloc[0]
            return f"it never spikes at {site}; lower its thresholds, or train it further"
    if timesteps(module) is not None:
        return "it did not learn, its input is constant, or its neurons never fire"
    return "it did not learn, or its input is constant"


@checked
def firing_rates(
    pool: Pool,
    images: Images,
    *,
    models: Rows | None = None,
    limit: Positive = 2000,
    batch: Positive = BLOCK,
    device: str | None = None,
) -> pd.DataFrame:
    """How much the networks of a spiking pool fire.

    Parameters:
        pool: of spiking networks.
        images: shown to the networks; of the pool's own images only audited ones are.
        models: rows of the pool; None: all.
        limit: at most so many images, the first ones.
        batch: images in one forward pass.
        device: None: the best there is.

    Returns:
        A row per model and site: `model`, `site`, `rate`, `silent`, `always` as in
        `models.snn.firing_rates`, over members and non-members alike.

    Raises:
        ValueError: for models that are no `SNN`.

    Caveat: it makes no claim about energy.
    """
    tables = []
    for m, module, batches in _models_and_batches(pool, images, models, limit, batch, device):
        if not isinstance(module, snn.SNN):
            raise ValueError(
                f"firing rates are those of spiking networks (models.snn.SNN); {pool.recipe.model}"
                " is none"
            )
        tables.append(snn.firing_rates(module, batches).assign(model=m))
    table = pd.concat(tables, ignore_index=True)
    return table[["model", *table.columns.drop("model")]]


@checked
def operations(
    pool: Pool,
    images: Images,
    *,
    models: Rows | None = None,
    limit: Positive = 2000,
    batch: Positive = BLOCK,
    device: str | None = None,
) -> pd.DataFrame:
    """What the networks of a pool compute for one image, ordinary and spiking ones alike.

    Parameters:
        pool: of any networks.
        images, models, limit, batch, device: as in `firing_rates`.

    Returns:
        A row per model: `model`, `multiply_accumulates` and `accumulates` an image, of its
        convolutions and linear layers as `models.recording.Operations` counts them, and
        `energy_nj`, what they take at 4.6 and 0.9 pJ each.

    Source: the energies are those of 32-bit arithmetic in 45 nm (Horowitz 2014), as is usual in
    papers on spiking networks. Caveat: memory, which takes most of a chip's energy, is not counted.
    """
    rows = []
    for m, module, batches in _models_and_batches(pool, images, models, limit, batch, device):
        seen = 0
        total = dict.fromkeys(ENERGIES, 0.0)
        for x in batches:
            with evaluating(module), torch.inference_mode(), Operations(module, len(x)) as counted:
                module(x)
            seen += len(x)
            total["multiply_accumulates"] += counted.multiply_accumulates * len(x)
            total["accumulates"] += float(counted.accumulates.sum())
        mean = {name: count / seen for name, count in total.items()}
        energy = sum(ENERGIES[name] * count for name, count in mean.items()) / 1000
        rows.append({"model": m, **mean, "energy_nj": energy})
    return pd.DataFrame(rows)


def _models_and_batches(
    pool: Pool,
    images: Images,
    models: Rows | None,
    limit: int,
    batch: int,
    device: str | None,
) -> Iterator[tuple[int, nn.Module, Iterator[Tensor]]]:
    """(row, network, batches of normalised images) for each of these models. Of the pool's own
    images only audited ones are shown.
    """
    chosen = device_of(device)
    numbers = np.arange(len(images.y))
    if pool.is_about(images):
        numbers = np.flatnonzero(~pool.population)
    parts = torch.from_numpy(numbers[:limit]).to(images.x.device).split(batch)
    dtype = DTYPES[pool.recipe.dtype]
    for m in row_numbers("models", models, len(pool.member)).tolist():
        batches = (
            data.normalise(images.x[part].to(chosen), images.mean, images.std, dtype)
            for part in parts
        )
        with threads(useful_threads(batch * images.x[0].numel())):
            yield m, pool.model(m).to(chosen), batches
