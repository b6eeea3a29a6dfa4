"""Spiking pools out of a pool of trained networks: conversion, and the hybrid training that starts
from it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import torch
from joblib import cpu_count as cores  # respects containers and affinity
from torch import Tensor

from mia_nb import data, models
from mia_nb.arguments import Flag, Positive, Real, Rows, Whole
from mia_nb.checks import checked, row_numbers, whole
from mia_nb.models import snn
from mia_nb.training.execution import execution
from mia_nb.training.machine import device_of, threads, useful_threads
from mia_nb.training.making import finish, is_complete, reopened, rows_to_make
from mia_nb.training.placing import place
from mia_nb.training.plans import DTYPES, begin, build
from mia_nb.training.pool import Pool, report_name, trace_name, weights_name, write_weights
from mia_nb.training.seeds import generator
from mia_nb.training.train import at_the_end, check_parent, finetune_pool
from mia_nb.training.work import make_each
from mia_nb.types import Images, Recipe

BATCH = 256  # images a calibration looks at together
# what a conversion leaves open
LATER = ("surrogate", "surrogate_args", "learn", "fold", "encode", "encode_args")


@checked
def convert_pool(
    pool: Pool,
    images: Images,
    timesteps: Positive,
    *,
    fit_T: Positive | None = None,
    per_channel: Flag = False,
    p: Real = 1,
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
    augmentation: no model's thresholds know of an image that the model did not train on. Resumes
    model by model; what was converted comes back at once. `Pool.conversion_report` gives the fits.

    Parameters:
        pool: trained networks; the converted ones lie beside it, in the same root.
        images: the pool's own.
        timesteps: T, the steps that the spiking networks take.
        fit_T: steps that the thresholds are fitted for; None: T.
        per_channel: one threshold a channel, not one a layer.
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

    Caveat: a bfloat16 pool is calibrated in float32, of which its activations are roundings.
    """
    _plain(pool, images)
    at_the_end(pool)
    if p not in (1, 2):
        raise ValueError(
            f"p={p!r}: thresholds minimise the mean absolute error (1) or the mean square (2)"
        )
    _only("a conversion, whose neurons are fixed", network, LATER)
    check_parent(pool, images)
    fitted = {
        "fit_T": timesteps if fit_T is None else fit_T,
        "per_channel": bool(per_channel),
        "p": int(p),
        "images": min(calibration, int(pool.member.sum(1).max())),
    }
    args = {
        "timesteps": timesteps,
        "readout": readout,
        "pool": pool_layers,
        "calibration": fitted,
        **{name: value for name, value in network.items() if value is not None},
    }
    recipe = _converted(pool, args)
    root = pool.folder.path.parent
    placed = place(recipe, images, pool.member, pool.population, root, pool)
    derived = reopened(placed, images)
    if not force and is_complete(derived):
        return finish(derived, "cached", progress)
    device_of(device)
    models.check_width(build(recipe, images, 0), images)
    # every model is checked when it is converted, the first before anything is written
    encode = args.get("encode", "constant")
    snn.check_convertible(pool.model(0), pool=pool_layers, encode=encode)
    begun = time.perf_counter()
    rows = rows_to_make(derived, images, force)
    how = execution(derived.folder, device, "plain", lambda: _one_by_one(device, images))
    convert = partial(_convert, pool, placed, images, torch.device(how["device"]))
    with threads(how["threads"]):
        make_each(derived, rows, convert, "converting", progress)
    return finish(derived, f"converted in {time.perf_counter() - begun:.1f} s", progress)


def _converted(pool: Pool, network: dict) -> Recipe:
    """The recipe of a pool's networks as spiking ones of these options, not trained any further."""
    base = {"base": pool.recipe.model, "base_args": pool.recipe.model_args}
    return pool.recipe.replace(
        model="snn",
        model_args=base | network,
        epochs=0,
        parent=pool.key,
        # thresholds are fitted on the members, and not under the parent's defense
        defense=None,
        defense_args={},
    )


def _plain(pool: Pool, images: Images) -> None:
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


def _convert(pool: Pool, derived: Pool, images: Images, device: torch.device, model: int) -> None:
    """Convert one row and write report, trace and weights."""
    args = dict(derived.recipe.model_args)
    fitted = dict(args.pop("calibration"))
    timesteps = args.pop("timesteps")
    del args["base"], args["base_args"]
    converted = snn.convert(
        pool.model(model).to(device),
        timesteps,
        _members(derived, images, model, fitted.pop("images"), device),
        **fitted,
        **args,
        mean=images.mean,
        std=images.std,
    )
    state = {
        name: tensor.detach().cpu().contiguous().clone()
        for name, tensor in converted.state_dict().items()
    }
    # what the recipe builds takes these weights
    begin(derived.recipe, images, model, lambda _: state)
    # JSON has no NaN
    report = converted.report.astype(object).where(converted.report.notna(), None)
    folder = derived.folder
    folder.write_json(
        report_name(model), {"columns": list(report), "rows": report.to_numpy().tolist()}
    )
    no_losses = np.zeros((0, int(pool.member[model].sum())), np.float16)
    folder.write_array(trace_name(model), no_losses)
    write_weights(folder, weights_name(model), state)


def _members(
    pool: Pool, images: Images, model: int, count: int, device: torch.device
) -> Iterator[Tensor]:
    """Normalised batches of the first `count` of a row's own members, in an order drawn for this
    row.
    """
    members = torch.from_numpy(np.flatnonzero(pool.member[model]))
    order = members[
        torch.randperm(len(members), generator=generator(pool.recipe.seed, model, "calibration"))
    ]
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
        pool: trained networks; all that is derived lies beside it, in the same root.
        images: the pool's own.
        timesteps: the last T.
        epochs: one number, or one per T (those beyond `timesteps` are not used).
        lr, batch, schedule, optimizer, loss: as in a Recipe, for every T.
        optimizer_args: None: for SGD momentum .9 without Nesterov and weight decay, else none.
        augment, dtype: None: the network's own.
        conversion: options of `convert_pool` (per_channel, p, readout, surrogate, ...).
        widths: half the width of the window in which the surrogate passes the gradient, in
            thresholds, one for each T; None: as the conversion says, 1/2 by default. The code of
            Guan et al. has 1 / (2 T): [0.5, 0.25, 0.1667, 0.125].
        train: options of `train_pool`.

    Returns:
        {1: Pool, 2: Pool, ..., timesteps: Pool}.

    Raises:
        ValueError: as `convert_pool` and `train_pool`; or epochs or widths do not fit timesteps.

    Source: Guan et al. (UAI 2025) for learning rate and epochs, their code for optimiser, schedule
    and batch.
    """
    _only(
        "conversion here",
        conversion or {},
        ("per_channel", "p", "calibration", "pool_layers", "readout", *LATER),
    )
    _only(
        "training here",
        train,
        ("device", "strategy", "workers", "backend", "progress", "force", "checkpoint"),
    )
    epochs_of = _of_each(epochs, timesteps)
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
    how = {name: train[name] for name in ("device", "progress", "force") if name in train}
    last = convert_pool(pool, images, 1, fit_T=1, **{**(conversion or {}), **how})
    pools = {}
    for T in range(1, timesteps + 1):
        network = {**last.recipe.model_args, "timesteps": T}
        if widths is not None:
            network["surrogate_args"] = {"width": widths[T - 1]}
        recipe = tuning.replace(model_args=network, epochs=epochs_of[T - 1])
        last = finetune_pool(last, recipe, images, **train)
        pools[T] = last
    return pools


def _of_each(epochs: int | Sequence[int], timesteps: int) -> list[int]:
    """Epochs for each of T = 1, 2, ..., `timesteps`."""
    several = [epochs] * timesteps if isinstance(epochs, Integral) else list(epochs)
    if timesteps < 1 or len(several) < timesteps:
        raise ValueError(
            f"epochs={epochs} for timesteps={timesteps}: give one number, or one for each of T = 1,"
            " 2, ..."
        )
    return several[:timesteps]


def _only(what: str, options: dict, known: tuple[str, ...]) -> None:
    """ValueError for an option that is none of these."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no option of {what}; it takes {', '.join(known)}")


@checked
def conversion_quality(
    pool: Pool,
    images: Images,
    timesteps: Sequence[int] = (1, 2, 4, 8, 16, 32),
    *,
    models: Rows = (0, 1),
    calibration: Positive = 2000,
    limit: Positive = 1000,
    device: str | None = None,
) -> pd.DataFrame:
    """How much accuracy a conversion costs without any training. Nothing is stored.

    Parameters:
        pool: trained networks that do not spike.
        images: the pool's own.
        timesteps: each T that is tried; one calibration per model and grouping serves all.
        models: row numbers.
        calibration: members that a model is calibrated on, at most.
        limit: images that a model is queried with, at most, of those that it did not train on
            (population included).
        device: as for `train_pool`.

    Returns:
        A row per model, T, fit and grouping: model; timesteps; fit ("refit" for this T, or "reused"
        from T = 1); per ("layer" or "channel"); right, of `images` images; network: those
        that the network itself gets right.

    Raises:
        ValueError: as `convert_pool`.
    """
    _plain(pool, images)
    check_parent(pool, images)
    models = row_numbers("models", models, len(pool.member)).tolist()
    timesteps = [whole("timesteps", T) for T in timesteps]
    chosen = device_of(device)
    rows = []
    with threads(useful_threads(BATCH * images.x[0].numel())):
        for m in models:
            rows += _quality(pool, images, m, timesteps, calibration, limit, chosen)
    return pd.DataFrame(
        rows, columns=["model", "timesteps", "fit", "per", "right", "images", "network"]
    )


def _quality(
    pool: Pool,
    images: Images,
    m: int,
    timesteps: list[int],
    calibration: int,
    limit: int,
    device: torch.device,
) -> list[dict]:
    """`conversion_quality`'s rows of one model."""
    model = pool.model(m).to(device)
    rows = []
    foreign = torch.from_numpy(np.flatnonzero(~pool.member[m]))
    order = torch.randperm(len(foreign), generator=generator(pool.recipe.seed, m, "quality"))
    chosen = foreign[order][:limit].to(images.x.device)
    x = data.normalise(
        images.x[chosen].to(device), images.mean, images.std, DTYPES[pool.recipe.dtype]
    )
    y = images.y[chosen].to(device)
    about = {"model": m, "images": len(y), "network": int(_right(model, x, y))}
    for per_channel in (False, True):
        histograms = snn.calibrate(
            model, _members(pool, images, m, calibration, device), per_channel=per_channel
        )
        fit = partial(snn.convert, model, per_channel=per_channel, histograms=histograms)
        reused = _right(fit(max(timesteps, default=1), fit_T=1), x, y)
        for T in timesteps:
            shared = about | {"timesteps": T, "per": "channel" if per_channel else "layer"}
            rows.append(shared | {"fit": "refit", "right": int(_right(fit(T), x, y)[-1])})
            if T > 1:
                rows.append(shared | {"fit": "reused", "right": int(reused[T - 1])})
    return rows


def _right(model: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Number of right answers; of a spiking network (T,), after each of its time steps."""
    spiking = isinstance(model, snn.SNN)
    options = {"per_step": True} if spiking else {}
    with torch.inference_mode():
        outputs = torch.cat([model(part, **options) for part in x.split(BATCH)], -2)
        if spiking:
            outputs = snn.cumulative(outputs)
        return (outputs.argmax(-1) == y).sum(-1)
