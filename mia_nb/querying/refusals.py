"""Checks of a model's outputs, which are refused if they have the wrong width, are all alike, or
depend on chance or on the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from mia_nb import data
from mia_nb.models import neural_de, timesteps
from mia_nb.querying.network import forward, noisy, prepare
from mia_nb.training.plans import DTYPES
from mia_nb.types import Images

TRIED = 64  # images, at most


def check_outputs(
    module: nn.Module, images: Images, model: int, dtype: str, noise: bool | None
) -> None:
    """Refuse a model whose outputs have the wrong width, are all alike, or depend on chance or on
    the rest of the batch.

    Parameters:
        module: the network, with the model's weights.
        images: up to 64 of them are tried.
        model: the row's number.
        dtype, noise: of the query. A noisy network with SDE blocks is also tried without noise, and
            its noise stays switched off.
    """
    run = partial(forward, prepare(module.eval(), noise), dtype)
    evenly_spaced = torch.linspace(0, len(images.x) - 1, min(TRIED, len(images.x))).long()
    pixels = images.x[evenly_spaced.to(images.x.device)]
    x = data.normalise(pixels, images.mean, images.std, DTYPES[dtype])
    outputs = run(x)
    classes = len(images.classes)
    if outputs.ndim != 2 or outputs.shape[1] != classes:
        raise ValueError(
            f"model {model} gives outputs of shape {tuple(outputs.shape)}; wanted ({len(x)},"
            f" {classes}): one logit a class"
        )
    if not torch.isfinite(outputs).all():
        return  # the error that names the sample is raised where signals are made
    # a network that was trained with noise may give constant outputs without it
    constant = len(x) > 1 and torch.equal(outputs, outputs[:1].expand_as(outputs))
    if constant and not neural_de.is_noisy(module):
        raise ValueError(
            f"model {model} gives the same output for every sample: it did not learn, its input is"
            " constant, or its neurons never fire"
        )
    if noise:
        _check_noise(run, x, model)
        if any(neural_de.flow_blocks(module)):
            check_outputs(module, images, model, dtype, noise=False)
    else:
        _check_repeated(module, run, x, outputs, model, _tolerance(x, dtype))


def _check_repeated(
    module: nn.Module,
    run: Callable[[Tensor], Tensor],
    x: Tensor,
    outputs: Tensor,
    model: int,
    tolerance: float,
) -> None:
    """Refuse a model without noise whose outputs for images x change from query to query, or with
    the batch.
    """
    if getattr(module, "stochastic", False):
        raise ValueError(
            f"model {model} encodes its input as random spikes, so that every output is another"
            " one: declare it with noise=True, and take several queries"
        )
    scale = tolerance * (1 + outputs.abs().max())
    # a convolution rounds differently in another batch, which may flip a spike in a few samples
    allowed_share = 0 if timesteps(module) is None else 0.25
    if _share_above(run(x) - outputs, scale) > allowed_share:
        raise ValueError(
            f"model {model} gives another output to the same query: declare it with noise=True, or"
            " noise=False to switch it off"
        )
    if len(x) == 1:
        return
    half = len(x) // 2
    halves = torch.cat([run(x[:half]), run(x[half:])])
    if _share_above(halves - outputs, scale) > allowed_share:
        raise ValueError(
            f"model {model} gives outputs that depend on the other images in the batch: is"
            " BatchNorm left in train mode?"
        )


def _check_noise(run: Callable[[Tensor], Tensor], x: Tensor, model: int) -> None:
    """ValueError for a model that gives the same outputs under two seeds of its noise."""
    outputs = [noisy(run, x, [len(x)], [("doubt", seed)]) for seed in (0, 1)]
    if torch.equal(*outputs):
        raise ValueError(
            f"model {model} gives the same output to every query although noise=True: it has no"
            " noise to switch on; use noise=None"
        )


def _tolerance(x: Tensor, dtype: str) -> float:
    """Largest rounding difference of a model's outputs, relative to the largest output."""
    if dtype == "bfloat16":
        return 3e-2
    if x.is_cuda and dtype == "float32" and torch.backends.cudnn.allow_tf32:
        return 8e-3  # convolutions multiply numbers of ten bits (TF32)
    return 1e-3


def _share_above(difference: Tensor, scale: Tensor) -> float:
    """Share of samples whose outputs differ by more than `scale`."""
    return float((difference.abs().amax(1) > scale).double().mean())
