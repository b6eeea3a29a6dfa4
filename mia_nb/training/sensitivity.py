"""Lipschitz constants and distances, measured on a trained pool: the assumptions of proofs about
neural differential equations.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from mia_nb import data
from mia_nb.checks import checked
from mia_nb.models import watched
from mia_nb.models.neural_de import flow_blocks, local_lipschitz, set_noise
from mia_nb.training.machine import threads, useful_threads
from mia_nb.training.plans import DTYPES
from mia_nb.training.pool import Pool

IMAGES = 64  # of the pool's, the first
EXACT = "donot_use_mm_for_euclid_dist"  # else small distances between large norms are rounded


@checked
def sensitivity(pool: Pool) -> pd.DataFrame:
    """Measure how far a differential equation can stretch distances between hidden states.

    Parameters:
        pool: trained networks with a FlowBlock.

    Returns:
        A row per model and block: model; block; certified: an upper bound on the drift's Lipschitz
        constant in h (`Drift.certified_lipschitz`; NaN for second order); local: the largest
        Jacobian norm of the drift at the states that enter and leave the block, a lower bound on
        that constant; norm: the largest |h0|; distance: the largest |h0 - h0'| over pairs of
        images; images: their number. h0 is the state that enters the equation, after the block's
        clip. All is computed in float32 and without noise.

    Raises:
        ValueError: the pool has no FlowBlock.

    Source: Hong, Wu, Gruber and Lee (arXiv 2501.06686), Theorem 1, take pairs of states at distance
    1 at most.
    """
    images = pool.images()
    x = data.normalise(images.x[:IMAGES], images.mean, images.std, DTYPES[pool.recipe.dtype])
    rows = []
    with threads(useful_threads(x.numel())):
        for m in range(len(pool.member)):
            rows += _rows(pool, m, x)
    return pd.DataFrame(rows).assign(images=len(x))


def _rows(pool: Pool, m: int, x: torch.Tensor) -> list[dict]:
    """A row per block of one model."""
    module = set_noise(pool.model(m), False)
    module.requires_grad_(False)  # Jacobians are those in h alone
    rows = []
    blocks = list(flow_blocks(module))
    if not blocks:
        raise ValueError(
            f"{pool.recipe.model} has no differential equation whose sensitivity could be measured"
        )
    for name, block, before, after in _states(module, blocks, x):
        entering = block.entering(before)
        flat = entering.flatten(1)
        facts = {"certified": np.nan, "local": np.nan}
        if block.order == 1:
            facts["certified"] = block.drift.certified_lipschitz(tuple(before.shape[-2:]))
            begin = block.solver["t0"]
            end = begin + block.solver["T"]
            norms_at_begin = local_lipschitz(block.drift, entering, begin)
            norms_at_end = local_lipschitz(block.drift, after, end)
            facts["local"] = float(torch.cat([norms_at_begin, norms_at_end]).detach().max())
        rows.append(
            {
                "model": m,
                "block": name,
                **facts,
                "norm": float(flat.norm(dim=1).max()),
                "distance": float(torch.cdist(flat, flat, compute_mode=EXACT).max()),
            }
        )
    return rows


def _states(module: torch.nn.Module, blocks: list, x: torch.Tensor) -> list[tuple]:
    """(name, block, its input, its output) for every block on these images."""
    states: list[tuple] = []

    def keep(name: str, block: torch.nn.Module, args: tuple, output: torch.Tensor) -> None:
        states.append((name, block, args[0].detach(), output.detach()))

    with watched(blocks, keep), torch.no_grad():
        module.eval()(x)
    return states
