"""How much accuracy a conversion to spiking networks costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from mia_nb import data
from mia_nb.arguments import Rows
from mia_nb.checks import checked, row_numbers, whole
from mia_nb.models import snn
from mia_nb.models.sites import trace
from mia_nb.training.machine import device_of, threads, useful_threads
from mia_nb.training.plans import DTYPES
from mia_nb.training.pool import Pool
from mia_nb.training.seeds import generator
from mia_nb.training.spiking import BATCH, TRIED, check_convertible, member_batches
from mia_nb.training.train import check_parent
from mia_nb.types import Images

CALIBRATION = 2000  # members that a model is calibrated on, at most
QUERIED = 1000  # images that a model did not train on, at most


@checked
def conversion_quality(
    pool: Pool,
    images: Images,
    timesteps: Sequence[int] = (1, 2, 4, 8, 16, 32),
    *,
    models: Rows = (0, 1),
    device: str | None = None,
) -> pd.DataFrame:
    """How much accuracy a conversion costs without any training. Nothing is stored.

    Parameters:
        pool: trained networks that do not spike.
        images: the pool's own.
        timesteps: each T that is tried; all share a calibration per model and grouping.
        models: row numbers. A model is calibrated on 2,000 of its members and queried with 1,000
            images that it did not train on (the population is included), at most.
        device: as for `train_pool`.

    Returns:
        A row per model, T, fit and grouping: model; timesteps; fit ("refit" for this T, or "reused"
        from T = 1); per ("layer" or "channel"); right, the number of right answers for `images`
        images; network, that of the network before conversion.

    Raises:
        ValueError: as `convert_pool`.
    """
    check_convertible(pool, images)
    check_parent(pool, images)
    models = row_numbers("models", models, len(pool.member)).tolist()
    timesteps = [whole("timesteps", T) for T in timesteps]
    chosen = device_of(device)
    rows = []
    with threads(useful_threads(BATCH * images.x[0].numel())):
        for m in models:
            rows += _rows_of_model(pool, images, m, timesteps, chosen)
    return pd.DataFrame(
        rows, columns=["model", "timesteps", "fit", "per", "right", "images", "network"]
    )


def _rows_of_model(
    pool: Pool,
    images: Images,
    m: int,
    timesteps: list[int],
    device: torch.device,
) -> list[dict]:
    """The rows of one model in the table of `conversion_quality`."""
    network = pool.model(m).to(device)
    non_members = torch.from_numpy(np.flatnonzero(~pool.member[m]))
    order = torch.randperm(len(non_members), generator=generator(pool.recipe.seed, m, "quality"))
    chosen = non_members[order][:QUERIED].to(images.x.device)
    x = data.normalise(
        images.x[chosen].to(device), images.mean, images.std, DTYPES[pool.recipe.dtype]
    )
    y = images.y[chosen].to(device)
    right_before = int(_right(network, x, y))
    few_members = list(member_batches(pool, images, m, TRIED, device))
    traced, _ = trace(network, snn.Spike)
    rows = []
    for per_channel in (False, True):
        histograms = snn.calibrate(
            traced, member_batches(pool, images, m, CALIBRATION, device), per_channel=per_channel
        )
        # thresholds come from the histograms; on the few members the network is only checked
        spiking = snn.convert(
            network,
            max(timesteps, default=1),
            few_members,
            fit_T=1,
            per_channel=per_channel,
            histograms=histograms,
        )
        reused = _right_by_step(spiking, x, y)
        for T in timesteps:
            shared = {
                "model": m,
                "images": len(y),
                "network": right_before,
                "timesteps": T,
                "per": "channel" if per_channel else "layer",
            }
            snn.place_thresholds(spiking, histograms, T, like=x)
            refit = _right_by_step(snn.retime(spiking, T), x, y)
            rows.append(shared | {"fit": "refit", "right": int(refit[-1])})
            if T > 1:
                rows.append(shared | {"fit": "reused", "right": int(reused[T - 1])})
    return rows


def _right(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Number of right answers of a network that does not spike."""
    with torch.inference_mode():
        logits = torch.cat([network(part) for part in x.split(BATCH)])
        return (logits.argmax(-1) == y).sum()


def _right_by_step(network: snn.SNN, x: Tensor, y: Tensor) -> Tensor:
    """(T,) numbers of right answers of a spiking network, after each of its time steps."""
    with torch.inference_mode():
        logits = torch.cat([network(part, per_step=True) for part in x.split(BATCH)], 1)
        return (snn.cumulative(logits).argmax(-1) == y).sum(-1)
