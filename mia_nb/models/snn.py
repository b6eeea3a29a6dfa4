"""Spiking networks: converted from a trained network, or the same network trained with spikes from
the start.

Sources: Guan et al. 2025 (the study), Bojkovic et al. 2024 (conversion), Mukhoty et al. 2023
(direct training).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, fx, nn

from mia_nb import models
from mia_nb.checks import one_of, whole
from mia_nb.models import pooling
from mia_nb.models.in_time import SNN, cumulative, retime
from mia_nb.models.recording import checked_batches, firing_rates, record
from mia_nb.models.sites import Site, Spike, run_without_spikes, trace, traced
from mia_nb.models.stepwise import Stepwise
from mia_nb.models.thresholds import (
    DEAD,
    Histogram,
    check_fit,
    expected,
    fit_histogram,
)

__all__ = [
    "SNN",
    "Histogram",
    "Spike",
    "Stepwise",
    "calibrate",
    "convert",
    "cumulative",
    "firing_rates",
    "network",
    "record",
    "retime",
    "sites",
    "spiking",
]

BINS = 2048  # of a histogram of activations
REPORTED_IMAGES = 1024  # images on which a conversion measures its firing rates
NO_BATCHES = "calibration got no batches: pass an iterable of normalised images (B, C, H, W)"
# options of `Spike`: its own defaults, which are those of conversion
CONVERTED = {
    "beta": 1.0,
    "reset": "soft",
    "surrogate": "boxcar",
    "detach_reset": True,
    "amplitude": None,
}
# not in Guan et al.: the released settings of Mukhoty et al., who differentiate through the reset
DIRECT = {
    "beta": 0.5,
    "reset": "hard",
    "surrogate": "local_zo",
    "detach_reset": False,
    "amplitude": 1.0,
}


def sites(model: nn.Module) -> list[Site]:
    """The places where this model would spike, without converting it; ValueError as `spiking`."""
    _, spike_sites = trace(model, Spike)
    return spike_sites


def calibrate(
    net: nn.Module, batches: Iterable[Tensor], *, per_channel: bool = False
) -> list[Histogram]:
    """Histograms of the positive activations at every site, in one pass of the plain network in
    eval mode.

    Parameters:
        net: a model or a traced network.
        batches: normalised images (B, C, H, W) of the model's own training half: never another
            model's, never evaluation non-members.
        per_channel: one histogram per channel, else per layer. It has 2,048 bins, so memory does
            not grow with the amount of data.

    Returns:
        A `Histogram` per site, in the order of the network.

    Raises:
        ValueError: if there are no batches.
    """
    if not traced(net):
        net, _ = trace(net, Spike)
    histograms: dict[str, Histogram] = {}
    with models.evaluating(net):
        for x in checked_batches(batches):
            run_without_spikes(net, x, partial(_counted, histograms, per_channel))
    if not histograms:
        raise ValueError(NO_BATCHES)
    return list(histograms.values())


def _counted(histograms: dict[str, Histogram], per_channel: bool, site: str, x: Tensor) -> Tensor:
    """The ReLU of a site's input, counted in the site's histogram."""
    z = torch.relu(x)
    grouped = z.reshape(1, -1)
    if per_channel and z.ndim > 1:
        grouped = z.transpose(0, 1).flatten(1)
    histogram = histograms.get(site) or Histogram.empty(len(grouped), BINS)
    histograms[site] = histogram.add(grouped)
    return z


def convert(
    model: nn.Module,
    timesteps: int,
    batches: Iterable[Tensor],
    *,
    fit_T: int | None = None,
    per_channel: bool = False,
    p: float = 1,
    pool: str = "keep",
    histograms: list[Histogram] | None = None,
    learn: bool = False,
    surrogate: str = "boxcar",
    surrogate_args: dict | None = None,
    **options: Any,
) -> SNN:
    """A spiking copy of a trained ReLU network, thresholds fitted on its activations, u0 = theta /
    2; in eval mode.

    Parameters:
        model: trained; its ReLUs become spiking sites.
        timesteps: T of the copy.
        batches: normalised images (B, C, H, W) of the model's own training half. On the first of
            them the network is checked: what lies between its spikes must be linear (`linearity`).
        fit_T: T that thresholds are fitted for; None: timesteps. fit_T = 1 with more time steps is
            the released conversion, meant for fine-tuning.
        per_channel: one threshold per channel, else per layer.
        p: theta minimises E |a - Q_T(a)|^p over a site's positive activations a (thresholds.py).
        pool: "keep", or "avg" to replace max-pooling, best done before the model is trained.
        histograms: of `calibrate`: several T at the price of one; one small batch is enough then.
        learn: whether thresholds can be trained later.
        surrogate, surrogate_args: gradient of the spikes, for later training.
        **options: as for `SNN`.

    Returns:
        An `SNN`. Its `.report` has a row per site: theta and u0 (means over channels), the expected
        error, the share of activations above theta, which is clipped, and the firing rate measured
        on up to 1,024 of the images. Dead sites get a threshold that is never reached.

    Raises:
        ValueError: for no batches; for a model that cannot be converted, with the place and the way
            out; and if the traced network, with ReLU at its sites, gives other outputs on the first
            batch than the model.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.rand(32, 1, 2, 2)
        >>> convert(net, 4, [x])(x).shape
        torch.Size([32, 3])

    Source: Bojkovic et al. 2024.
    """
    timesteps = whole("timesteps", timesteps)
    fit_T = timesteps if fit_T is None else fit_T
    check_fit(fit_T, p)
    spike = partial(Spike, learn=learn, surrogate=surrogate, surrogate_args=surrogate_args)
    net, spike_sites = trace(model, spike)
    snn = SNN(net, timesteps, **options).eval()
    batches = checked_batches(batches)
    first = next(batches, None)
    if first is None:
        raise ValueError(NO_BATCHES)
    _check_same_answers(net, model, first)
    _replace_pools(net, pool)
    snn.check_linear(first)
    reported: list[Tensor] = []
    if histograms is None:
        passing = _keeping(chain([first], batches), reported, REPORTED_IMAGES)
        histograms = calibrate(net, passing, per_channel=per_channel)
    if len(histograms) != len(spike_sites):
        raise ValueError(
            f"histograms of {len(histograms)} sites came; this model has {len(spike_sites)}:"
            " calibrate it"
        )
    thetas = place_thresholds(snn, histograms, fit_T, p, like=next(model.parameters(), first))
    rows = []
    for site, histogram, theta in zip(spike_sites, histograms, thetas, strict=True):
        about_site = {"site": site.name, "where": site.where, "kind": site.kind}
        rows.append(about_site | _quality(histogram, theta, timesteps, p))
    snn.report = pd.DataFrame(rows)
    if reported:
        snn.report["firing_rate"] = firing_rates(snn, reported)["rate"].to_numpy()
    return snn


def place_thresholds(
    snn: SNN, histograms: list[Histogram], fit_T: int, p: float = 1, *, like: Tensor
) -> list[np.ndarray]:
    """Fit the thresholds of a network for this many time steps, and place them, with u0 = theta /
    2, in the network itself. Returns those of each site: one per channel, or one of the layer.

    like: a tensor of the network's type and device.
    """
    thetas = []
    for spike, histogram in zip(snn.spikes().values(), histograms, strict=True):
        theta = fit_histogram(histogram, fit_T, p)
        value = torch.as_tensor(theta if len(theta) > 1 else theta[0]).to(like)
        spike.place(value, value / 2)
        thetas.append(theta)
    snn.to(like.dtype)
    return thetas


def _quality(histogram: Histogram, theta: np.ndarray, timesteps: int, p: float) -> dict[str, Any]:
    """The report of a site's thresholds (groups,): their mean, and means of what they cost,
    weighted by the number of activations in each group.
    """
    error, clipped = expected(histogram, theta, timesteps, p)
    alive = theta < DEAD
    mean_theta = theta[alive].mean() if alive.any() else np.nan
    weight = histogram.counts.sum(1).numpy() / max(1, int(histogram.counts.sum()))
    return {
        "channels": len(theta),
        "theta": mean_theta,
        "u0": mean_theta / 2,
        "dead": int((~alive).sum()),
        "expected_error": (weight * error).sum(),
        "clipped_mass": (weight * clipped).sum(),
    }


def _check_same_answers(net: fx.GraphModule, model: nn.Module, x: Tensor) -> None:
    """Refuse a network whose trace computes something else: views are changed in place, or tracing
    froze values.
    """
    with models.evaluating(model), models.same_draws(x.device):
        plain = model(x.clone())
    with models.evaluating(net), models.same_draws(x.device):
        # counted in histograms, as these refuse activations that are not finite
        from_trace = run_without_spikes(net, x.clone(), partial(_counted, {}, False))
    if not isinstance(plain, Tensor):
        raise ValueError(
            f"{type(model).__name__} returns a {type(plain).__name__}; wanted logits (B, K) as one"
            " tensor"
        )
    allowed = max(1e-3, 4 * torch.finfo(plain.dtype).eps) * float(plain.abs().max())
    if not torch.allclose(from_trace, plain, rtol=0, atol=allowed, equal_nan=True):
        largest = float((from_trace - plain).abs().max())
        raise ValueError(
            f"{type(model).__name__} gives other outputs once traced (by up to {largest:.3g}): does"
            " forward change in place a view that is read later, draw random numbers or read a"
            " clock?"
        )


def _keeping(batches: Iterable[Tensor], kept: list[Tensor], samples: int) -> Iterator[Tensor]:
    """The batches, unchanged; their first `samples` images are added to `kept` as they pass."""
    left = samples
    for x in batches:
        if left > 0:
            kept.append(x[:left])
            left -= len(x)
        yield x


def _replace_pools(net: fx.GraphModule, pool: str) -> None:
    """Replace max-pooling by average pooling where `pool` is "avg"."""
    if one_of("pool", pool, ("keep", "avg")) == "avg":
        pooling.average_pools(net)


def spiking(
    model: nn.Module,
    timesteps: int,
    *,
    theta: float = 1.0,
    learn: bool = False,
    pool: str = "keep",
    **options: Any,
) -> SNN:
    """The same network with LIF neurons in place of its ReLUs, to be trained with spikes from the
    start.

    Parameters:
        model: a network with ReLUs, trained or not.
        timesteps: T, from 1.
        theta: threshold of all neurons.
        learn: whether thresholds are trained.
        pool: "keep", or "avg" to replace max-pooling.
        **options: those of `Spike` and of `SNN`.

    Source: the defaults (beta .5, hard reset with gradient, LocalZO in closed form, amplitude 1)
    are those released with Mukhoty et al. 2023; Guan et al. 2025 name the method only.
    """
    names_for_spike = (*DIRECT, "surrogate_args")
    for_spike = {name: options[name] for name in names_for_spike if name in options}
    for_snn = {name: options[name] for name in options if name not in names_for_spike}
    spike = partial(Spike, theta, 0.0, learn=learn, **{**DIRECT, **for_spike})
    net, _ = trace(model, spike)
    _replace_pools(net, pool)
    return SNN(net, timesteps, **for_snn)


def network(
    in_channels: int,
    num_classes: int,
    size: int,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    *,
    base: str = "tinycnn",
    base_args: dict | None = None,
    timesteps: int = 4,
    calibration: dict | None = None,
    pool: str = "keep",
    frames: int = 1,
    **options: Any,
) -> SNN:
    """The builder behind `models.build("snn", {"base": ..., "timesteps": ...})`: `spiking` of a
    named or own network.

    Parameters:
        in_channels, num_classes, size, mean, std: as for `models.build`.
        base: the network that becomes spiking, as `model` for `models.build`; its initial weights
            are those of the plain network of the same seed.
        base_args: its options.
        timesteps: T, from 1.
        calibration: how a converted pool's thresholds were fitted (`training.convert_pool`). If
            given, neurons are those of conversion, and their thresholds come with the weights.
        pool: "keep", or "avg" to replace max-pooling.
        frames: of events in the images, as for `models.build`; several are shown one per step.
        **options: those of `spiking`.

    Raises:
        ValueError: if the number of frames is not timesteps, and for frames with an encoding.
    """
    if frames > 1:
        if timesteps != frames:
            raise ValueError(
                f"timesteps={timesteps}: the images are {frames} frames of events, one for each"
                f" step; take timesteps={frames}"
            )
        encode = options.get("encode", "constant")
        if encode != "constant":
            raise ValueError(
                f"encode={encode!r} makes events of images, and these are {frames} frames of events"
                " already: leave it out"
            )
        in_channels //= frames
        mean = mean[:in_channels]
        std = std[:in_channels]
    plain = models.build_base(base, base_args, in_channels, num_classes, size, mean, std)
    if calibration is not None:
        options = {**CONVERTED, **options}
    return spiking(plain, timesteps, pool=pool, mean=mean, std=std, frames=frames, **options)
