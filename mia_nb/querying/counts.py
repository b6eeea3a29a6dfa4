"""Firing rates and numbers of operations of a pool's networks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from mia_nb import data
from mia_nb.arguments import Positive, Rows
from mia_nb.checks import checked, row_numbers
from mia_nb.models import evaluating, snn
from mia_nb.models.recording import Operations
from mia_nb.querying.network import BLOCK
from mia_nb.training.machine import device_of, threads, useful_threads
from mia_nb.training.plans import DTYPES
from mia_nb.training.pool import Pool
from mia_nb.types import Images

# pJ per operation in 32 bits, 45 nm (Horowitz 2014)
ENERGIES = {"multiply_accumulates": 4.6, "accumulates": 0.9}


@checked
def firing_rates(
    pool: Pool,
    images: Images,
    *,
    models: Rows | None = None,
    limit: Positive = 2000,
    device: str | None = None,
) -> pd.DataFrame:
    """Firing rates of the networks of a spiking pool.

    Parameters:
        pool: of spiking networks.
        images: shown to the networks; of the pool's own images only the audited ones.
        models: row numbers; None: all.
        limit: number of images at most, the first ones.
        device: None: a GPU if there is one.

    Returns:
        A row per model and site: `model`, `site`, `rate`, `silent`, `always` as in
        `models.snn.firing_rates`, over members and non-members alike.

    Raises:
        ValueError: for models that are no `SNN`.

    Caveat: firing rates say nothing about energy.
    """
    tables = []
    for m, module, batches in _models_and_batches(pool, images, models, limit, device):
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
    device: str | None = None,
) -> pd.DataFrame:
    """Numbers of operations per image of a pool's networks, ordinary or spiking.

    Parameters:
        pool: of any networks.
        images, models, limit, device: as in `firing_rates`.

    Returns:
        A row per model: `model`; `multiply_accumulates` and `accumulates` per image in convolutions
        and linear layers, counted by `models.recording.Operations`; `energy_nj`, their energy at
        4.6 and 0.9 pJ each.

    Source: the energies are those of 32-bit arithmetic in 45 nm (Horowitz 2014), as is usual in
    papers on spiking networks. Caveat: memory, which takes most of a chip's energy, is not counted.
    """
    rows = []
    for m, module, batches in _models_and_batches(pool, images, models, limit, device):
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
    device: str | None,
) -> Iterator[tuple[int, nn.Module, Iterator[Tensor]]]:
    """(row, network, batches of normalised images) for each of these models; of the pool's own
    images only the audited ones.
    """
    chosen = device_of(device)
    numbers = np.arange(len(images.y))
    if pool.is_about(images):
        numbers = np.flatnonzero(~pool.population)
    parts = torch.from_numpy(numbers[:limit]).to(images.x.device).split(BLOCK)
    dtype = DTYPES[pool.recipe.dtype]
    for m in row_numbers("models", models, len(pool.member)).tolist():
        batches = (
            data.normalise(images.x[part].to(chosen), images.mean, images.std, dtype)
            for part in parts
        )
        with threads(useful_threads(BLOCK * images.x[0].numel())):
            yield m, pool.model(m).to(chosen), batches
