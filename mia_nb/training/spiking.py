"""Spiking pools made from a pool of trained networks: conversion, and the hybrid training that
starts with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from numbers import Integral
from typing import Any, Literal

import numpy as np
import torch
from joblib import cpu_count as cores  # respects containers and affinity
from torch import Tensor

from mia_nb import data, models
from mia_nb.arguments import Flag, Positive, Real, Whole
from mia_nb.checks import checked
from mia_nb.models import snn
from mia_nb.training.execution import read_or_choose
from mia_nb.training.machine import device_of, threads, useful_threads
from mia_nb.training.making import finish, is_complete, rows_to_make
from mia_nb.training.placing import place
from mia_nb.training.plans import DTYPES, begin, build
from mia_nb.training.pool import Pool, report_name, trace_name, weights_name, write_weights
from mia_nb.training.seeds import generator
from mia_nb.training.train import check_at_end, check_parent, finetune_pool
from mia_nb.training.work import make_each
from mia_nb.types import Images, Recipe

BATCH = 256  # images in one forward pass of a calibration
TRIED = 8  # images on which it is tried whether a network converts
# options that a conversion only passes on to the spiking network
NETWORK_OPTIONS = ("surrogate", "surrogate_args", "learn", "fold", "encode", "encode_args")


@checked
def convert_pool(
    pool: Pool,
    images: Images,
    timesteps: Positive,
    *,
    fit_T: Positive | None = None,
    per_channel: Flag = False,
    p: Literal[1, 2] = 1,
    calibration: Positive = 10_000,
    pool_layers: str = "keep",
    readout: str = "mean",
    device: str | None = None,
    progress: Flag = True,
    force: Flag = False,
    **network: Any,
) -> Pool:
    """A pool's networks as spiking networks, not trained any further.

    Thresholds are fitted on each model's own members, in a seeded random order and without
    augmentation, so that they depend on no image that the model did not train on. The conversion
    can be resumed model by model, and a finished one is loaded. `Pool.conversion_report` gives the
    fits.

    Parameters:
        pool: trained networks; the converted pool is stored beside it, in the same root.
        images: the pool's own.
        timesteps: T, the time steps of the spiking networks.
        fit_T: time steps that the thresholds are fitted for; None: T.
        per_channel: fit a threshold for each channel, not for each layer.
        p: thresholds minimise the mean absolute error (1) or the mean square (2).
        calibration: members that a model is calibrated on, at most.
        pool_layers: "keep", or "avg" to replace max-pooling.
        readout: "mean", "sum" or "last" of the logits over T.
        device, progress, force: as for `train_pool`.
        network: surrogate, surrogate_args, learn, fold for later training; encode, encode_args.

    Returns:
        A `Pool`.

    Raises:
        ValueError: these are not the pool's images; it spikes already, or is not trained to its
            end; its networks cannot be converted.

    Source: Bojkovic et al. (AISTATS 2024).

    Caveat: a bfloat16 pool is calibrated in float32, while its activations were rounded to
    bfloat16.
    """
    check_convertible(pool, images)
    check_at_end(pool)
    unknown = sorted(set(network) - set(NETWORK_OPTIONS))
    if unknown:
        raise ValueError(
            f"{unknown[0]!r} is no option of a conversion, whose neurons are fixed; it takes"
            f" {', '.join(NETWORK_OPTIONS)}"
        )
    check_parent(pool, images)
    args = {
        "timesteps": timesteps,
        "readout": readout,
        "pool": pool_layers,
        "calibration": {
            "fit_T": timesteps if fit_T is None else fit_T,
            "per_channel": bool(per_channel),
            "p": p,
            "images": min(calibration, int(pool.member.sum(1).max())),
        },
    }
    given = {name: value for name, value in network.items() if value is not None}
    recipe = _converted_recipe(pool, args | given)
    root = pool.folder.path.parent
    placed = place(recipe, images, pool.member, pool.population, root, pool)
    if not force and is_complete(placed):
        return finish(placed, "cached", progress)
    device_of(device)
    models.check_width(build(recipe, images, 0), images)
    # refused before anything is written: a network that cannot be converted, or whose spiking form
    # has weights that the recipe's network does not take
    tried = _converted_network(pool, recipe, images, torch.device("cpu"), 0, TRIED).state_dict()
    begin(recipe, images, 0, lambda _: tried)
    begun = time.perf_counter()
    rows = rows_to_make(placed, images, force)
    how = read_or_choose(placed.folder, device, lambda: _one_by_one(device, images))
    convert = partial(_convert, pool, placed, images, torch.device(how["device"]))
    with threads(how["threads"]):
        make_each(placed, rows, convert, "converting", progress)
    return finish(placed, f"converted in {time.perf_counter() - begun:.1f} s", progress)


def _converted_recipe(pool: Pool, args: dict) -> Recipe:
    """The recipe of a pool's networks as spiking ones with these arguments, trained no further."""
    base = {"base": pool.recipe.model, "base_args": pool.recipe.model_args}
    return pool.recipe.replace(
        model="snn",
        model_args=base | args,
        epochs=0,
        parent=pool.key,
        # thresholds are fitted on the members, without the parent's defense
        defense=None,
        defense_args={},
    )


def check_convertible(pool: Pool, images: Images) -> None:
    """ValueError for a pool of spiking networks, and for frames of events."""
    if images.frames > 1:
        raise ValueError(
            "a conversion shows one image at every step, and these are"
            f' {images.frames} frames of events: train spiking networks directly, model="snn"'
        )
    if pool.recipe.model == "snn":
        raise ValueError(
            f"pool {pool.folder.path.name} spikes already: for other timesteps train a"
            " recipe whose parent it is"
        )


def _one_by_one(device: str | None, images: Images) -> dict:
    """The execution of a conversion: one model after another."""
    chosen = device_of(device)
    most = cores() if chosen.type == "cpu" else None
    return {
        "device": str(chosen),
        "stacked": False,
        "group": 1,
        "threads": useful_threads(BATCH * images.x[0].numel(), most),
        "channels_last": False,
    }


def _converted_network(
    pool: Pool, recipe: Recipe, images: Images, device: torch.device, model: int, count: int
) -> snn.SNN:
    """A network of `pool`, converted on this many images as a recipe says."""
    args = recipe.model_args
    calibration = args["calibration"]
    return snn.convert(
        pool.model(model).to(device),
        args["timesteps"],
        member_batches(pool, images, model, count, device),
        fit_T=calibration["fit_T"],
        per_channel=calibration["per_channel"],
        p=calibration["p"],
        pool=args["pool"],
        readout=args["readout"],
        mean=images.mean,
        std=images.std,
        **{name: args[name] for name in NETWORK_OPTIONS if name in args},
    )


def _convert(pool: Pool, placed: Pool, images: Images, device: torch.device, model: int) -> None:
    """Convert a row of `pool`; write report, trace and weights into the folder of `placed`."""
    count = placed.recipe.model_args["calibration"]["images"]
    converted = _converted_network(pool, placed.recipe, images, device, model, count)
    # JSON has no NaN
    report = converted.report.astype(object).where(converted.report.notna(), None)
    folder = placed.folder
    folder.write_json(
        report_name(model), {"columns": list(report), "rows": report.to_numpy().tolist()}
    )
    no_losses = np.zeros((0, int(pool.member[model].sum())), np.float16)
    folder.write_array(trace_name(model), no_losses)
    write_weights(folder, weights_name(model), converted.state_dict())


def member_batches(
    pool: Pool, images: Images, model: int, count: int, device: torch.device
) -> Iterator[Tensor]:
    """Normalised batches of at most `count` of a row's own members, in a random order that is
    seeded by the row.
    """
    members = torch.from_numpy(np.flatnonzero(pool.member[model]))
    draw = generator(pool.recipe.seed, model, "calibration")
    order = members[torch.randperm(len(members), generator=draw)]
    for chosen in order[:count].split(BATCH):
        yield data.normalise(
            images.x[chosen.to(images.x.device)].to(device),
            images.mean,
            images.std,
            DTYPES[pool.recipe.dtype],
        )


@checked
def hybrid_pools(
    pool: Pool,
    images: Images,
    *,
    timesteps: Whole = 4,
    epochs: int | Sequence[int] = (50, 30, 30, 30),
    lr: Real = 5e-3,
    batch: Whole = 16,
    schedule: str = "cosine",
    optimizer: str = "sgd",
    optimizer_args: dict | None = None,
    loss: str = "cross_entropy",
    augment: str | None = None,
    dtype: str | None = None,
    conversion: dict | None = None,
    widths: Sequence[float] | None = None,
    **train: Any,
) -> dict[int, Pool]:
    """Hybrid training of spiking networks: conversion, then fine-tuning at T = 1, 2, ...

    The networks are converted at T = 1 and fine-tuned; then T = 2, 3, ... start from the weights of
    T - 1 and keep the thresholds of T = 1.

    Parameters:
        pool: trained networks; all derived pools are stored beside it, in the same root.
        images: the pool's own.
        timesteps: the last T.
        epochs: one number, or one for each T; numbers beyond `timesteps` are ignored.
        lr, batch, schedule, optimizer, loss: as in a Recipe, for every T.
        optimizer_args: None: for SGD momentum 0.9 without Nesterov and weight decay, else none.
        augment, dtype: None: those of the pool's recipe.
        conversion: options of `convert_pool` (per_channel, p, readout, surrogate, ...).
        widths: one number for each T: half the width, in thresholds, of the window in which the
            surrogate passes the gradient. None: as `conversion` says, 1/2 by default. The code of
            Guan et al. has 1 / (2 T): [0.5, 0.25, 0.1667, 0.125].
        train: options of `train_pool`.

    Returns:
        {1: Pool, 2: Pool, ..., timesteps: Pool}.

    Raises:
        ValueError: as `convert_pool` and `train_pool`; or epochs or widths do not fit timesteps.

    Source: Guan et al. (UAI 2025) for learning rate and epochs, their code for optimiser, schedule
    and batch.
    """
    epochs_of_each = _epochs_of_each(epochs, timesteps)
    if widths is not None and len(widths) < timesteps:
        raise ValueError(
            f"widths={widths} for timesteps={timesteps}: give one for each of T = 1, 2, ..., or"
            " none"
        )
    if optimizer_args is None:
        optimizer_args = {}
        if optimizer == "sgd":
            optimizer_args = {"momentum": 0.9, "nesterov": False, "weight_decay": 0.0}
    tuning = Recipe(
        model="snn",
        seed=pool.recipe.seed,
        batch=batch,
        lr=lr,
        optimizer=optimizer,
        optimizer_args=optimizer_args,
        schedule=schedule,
        augment=augment or pool.recipe.augment,
        loss=loss,
        dtype=dtype or pool.recipe.dtype,
    )
    options = dict(conversion or {})
    for name in ("device", "progress", "force"):
        if name in train:
            options[name] = train[name]
    last = convert_pool(pool, images, 1, fit_T=1, **options)
    pools = {}
    for T in range(1, timesteps + 1):
        network = {**last.recipe.model_args, "timesteps": T}
        if widths is not None:
            network["surrogate_args"] = {"width": widths[T - 1]}
        recipe = tuning.replace(model_args=network, epochs=epochs_of_each[T - 1])
        last = finetune_pool(last, recipe, images, **train)
        pools[T] = last
    return pools


def _epochs_of_each(epochs: int | Sequence[int], timesteps: int) -> list[int]:
    """Epochs for each of T = 1, 2, ..., `timesteps`."""
    several = [epochs] * timesteps if isinstance(epochs, Integral) else list(epochs)
    if timesteps < 1 or len(several) < timesteps:
        raise ValueError(
            f"epochs={epochs} for timesteps={timesteps}: give one number, or one for each of T = 1,"
            " 2, ..."
        )
    return several[:timesteps]
