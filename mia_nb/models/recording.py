"""Measurements of a spiking network: firing rates, the spikes of one layer on a few images for
pictures, and the activity of all layers on every sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from mia_nb import models
from mia_nb.models import neurons, sites
from mia_nb.models.in_time import SNN, folded

MOST_IMAGES = 12  # in a recording
MOST_NEURONS = 200  # in a recording
MOST_BYTES = 280_000  # size of a recording; with many time steps fewer neurons are recorded
BYTES = 3  # of a neuron at a time step: a spike as uint8, a potential as float16
# the layers whose operations are counted
COUNTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
MEASURES = ("count", "first", "rest", "charge")  # of a site, explained in `activity`


def checked_batches(batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """The batches, if each is a tensor of floats; ValueError at the first that is not."""
    for x in batches:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            came = type(x).__name__
            if isinstance(x, Tensor):
                came = f"{x.dtype} tensor".removeprefix("torch.")
            raise ValueError(
                f"a batch is a {came}; wanted normalised images (B, C, H, W) alone, as a tensor of"
                " floats"
            )
        yield x


def firing_rates(snn: SNN, batches: Iterable[Tensor]) -> pd.DataFrame:
    """Firing rates on these images, in eval mode.

    Parameters:
        snn: a spiking network.
        batches: normalised images (B, C, H, W).

    Returns:
        A row per site: rate = mean of spk over neurons, steps and images; silent = share of neurons
        that never fired; always = share that fired at every step of every image.

    Raises:
        ValueError: for no batches.

    Caveat: firing rates say nothing about energy.
    """
    fired: dict[str, Tensor] = {}  # by site: how often each neuron fired
    steps: dict[str, int] = {}  # by site: time steps of all images together

    def count(site: str, spike: nn.Module, args: tuple, out: Tensor) -> None:
        spk = out.detach().flatten(1).abs().sign()  # numbers, as sums of booleans are slow
        counts = spk.sum(0, dtype=torch.promote_types(spk.dtype, torch.float32)).double()
        fired[site] = fired.get(site, 0) + counts
        steps[site] = steps.get(site, 0) + len(spk)

    with models.evaluating(snn), models.watched(snn.spikes().items(), count):
        for x in checked_batches(batches):
            folded(snn)(x)
    if not fired:
        raise ValueError(
            "firing_rates got no batches: pass an iterable of normalised images (B, C, H, W)"
        )
    rows = []
    for site, counts in fired.items():
        row = {
            "site": site,
            "rate": float(counts.sum() / (len(counts) * steps[site])),
            "silent": float((counts == 0).double().mean()),
            "always": float((counts == steps[site]).double().mean()),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def record(snn: SNN, x: Tensor, site: str = "spike0") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Spikes and potentials at one site for one image, step by step.

    Parameters:
        snn: a spiking network.
        x: (1, C, H, W) normalised.
        site: its name, as in `.report`.

    Returns:
        spk (T, neurons) bool, mem (T, neurons) before the reset, theta (neurons,).

    Raises:
        ValueError: for an unknown site.
    """
    spikes = snn.spikes()
    if site not in spikes:
        raise ValueError(f"site={site!r} is not one of {', '.join(islice(spikes, 20))}")
    spike = spikes[site]
    currents = {}

    def keep(site: str, spike: nn.Module, args: tuple, out: Tensor) -> None:
        currents[site] = sites.over_time(*args)

    with models.evaluating(snn):
        with models.watched([(site, spike)], keep):
            folded(snn)(x)
        h = currents[site]
        out, mem = neurons.multistep(h, spike.theta, spike.u0, return_mem=True, **spike.options)
    theta, _, _ = neurons.placed(h, spike.theta, spike.u0)
    theta = theta.expand(h.shape[1:]).flatten()
    return (
        out.ne(0).flatten(1).cpu().numpy(),
        mem.double().flatten(1).cpu().numpy(),
        theta.double().cpu().numpy(),
    )


def record_images(
    module: nn.Module, x: Tensor, columns: np.ndarray
) -> dict[str, np.ndarray] | None:
    """Spikes and membrane potentials of the first site over all T time steps for a few images.

    A neuron spikes where its potential reaches its threshold. Potentials that rounding to float16
    would carry across the threshold are moved back, so that this holds in the recording too.

    Parameters:
        module: a network; only a deterministic `SNN` is recorded.
        x: (n, C, H, W) normalised images.
        columns: (n,) numbers of the images.

    Returns:
        Arrays of at most 200 neurons, evenly spaced in the layer; None for any other network:

            spikes      (n, T, neurons) uint8
            membranes   (n, T, neurons) float16, after charging and before the reset
            thresholds  (neurons,) float32
            neurons     (neurons,) their numbers in the layer
            size        (1,) number of neurons of the layer
            samples     (n,) numbers of the images
            site        (1,) name of the site

    Caveat: images are shown one at a time, which may round differently from a batch.
    """
    if not len(x) or not isinstance(module, SNN) or module.stochastic:
        return None
    site = next(iter(module.spikes()))
    recordings = [record(module, image[None], site) for image in x]
    spikes_of_images, membranes_of_images, thresholds_of_images = zip(*recordings, strict=True)
    spk = np.stack(spikes_of_images)
    mem = np.stack(membranes_of_images)
    theta = thresholds_of_images[0]  # the same for all images
    _, timesteps, size = spk.shape
    count = max(1, min(MOST_NEURONS, size, MOST_BYTES // (BYTES * len(x) * timesteps)))
    chosen = _evenly_spaced(size, count)
    spk = spk[:, :, chosen]
    theta = theta[chosen].astype(np.float32)
    return {
        "spikes": spk.astype(np.uint8),
        "membranes": _rounded_without_crossing(mem[:, :, chosen], spk, theta),
        "thresholds": theta,
        "neurons": chosen,
        "size": np.array([size]),
        "samples": np.asarray(columns, dtype=np.int64),
        "site": np.array([site]),
    }


def evenly_spaced_images(columns: np.ndarray) -> np.ndarray:
    """At most 12 of these numbers, evenly spaced in their order."""
    return columns[_evenly_spaced(len(columns), min(MOST_IMAGES, len(columns)))]


def _evenly_spaced(size: int, count: int) -> np.ndarray:
    """`count` numbers from 0 to size - 1, evenly spaced, the first and the last among them."""
    return np.unique(np.linspace(0, size - 1, count).round().astype(np.int64))


def activity_names(module: SNN) -> list[str]:
    """Names of the columns of `activity`: `accumulates`, then `count SITE`, `first SITE`, `rest
    SITE` and `charge SITE` for each site of the network.
    """
    names = ["accumulates"]
    for site in module.spikes():
        names += [f"{measure} {site}" for measure in MEASURES]
    return names


def activity(module: SNN, x: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs of one forward pass, and measurements of every layer during it.

    Parameters:
        module: a spiking network with a deterministic encoding.
        x: (B, C, H, W) normalised images, or (T, B, C, H, W) events.

    Returns:
        (T, B, K) outputs of every single step, and (B, 1 + 4 * sites) float32: the number of
        accumulate operations (`Operations`), then for each site four means over its neurons:

            count   spikes a time step
            first   step of the first spike, counted from 0; T for a neuron that never spikes
            rest    |potential| after the last step, in thresholds
            charge  potential after the last step, in thresholds
    """
    measures: dict[str, Tensor] = {}

    def measure(site: str, spike: nn.Module, args: tuple, out: Tensor) -> None:
        measures[site] = _site_measures(sites.over_time(*args), spike)

    samples = x.shape[1] if x.ndim == 5 else len(x)
    with (
        models.evaluating(module),
        models.watched(module.spikes().items(), measure),
        Operations(module, samples) as counted,
    ):
        steps = folded(module)(x, per_step=True)
    accumulates = counted.accumulates.float()[:, None]
    columns = [accumulates, *(measures[site] for site in module.spikes())]
    return steps, torch.cat(columns, 1)


class Operations:
    """A context that counts the operations of a network's convolutions and linear layers.

    Layers after the first spikes accumulate: at each time step they add a weight for every input
    that is not 0. Layers before them, and all layers of a network without spikes, multiply and
    accumulate for every connection. Images that are shown at every step pass these layers once.

    Parameters:
        network: a network with or without `Spike` sites.
        samples: number of samples in the batch that will enter the network.

    Attributes:
        multiply_accumulates: number of operations for each sample.
        accumulates: (samples,) number of operations.

    Caveat: norms, pooling and the updates of neurons are not counted, as is usual. In the first
    layer zeros are counted too, in frames of events as in images.
    """

    def __init__(self, network: nn.Module, samples: int) -> None:
        self.network = network
        self.samples = samples
        self.multiply_accumulates = 0
        self.accumulates = torch.zeros(samples, dtype=torch.float64)
        self._spiked = False

    def __enter__(self) -> Operations:
        self._handles = []
        for part in self.network.modules():
            if isinstance(part, COUNTED):
                self._handles.append(part.register_forward_pre_hook(self._count))
            elif isinstance(part, sites.Spike):
                self._handles.append(part.register_forward_hook(self._note_spikes))
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _note_spikes(self, spike: nn.Module, args: tuple, out: Tensor) -> None:
        self._spiked = True

    def _count(self, layer: nn.Module, args: tuple) -> None:
        """Add the operations of this layer."""
        x = args[0].detach()
        if not self._spiked:
            rows_per_sample = len(x) // self.samples
            all_connections = int(_connections(layer, torch.ones_like(x[:1])))
            self.multiply_accumulates += rows_per_sample * all_connections
            return
        active_connections = _connections(layer, x.ne(0).to(x.dtype))
        per_sample = active_connections.unflatten(0, (-1, self.samples)).sum(0)
        self.accumulates = self.accumulates.to(x.device) + per_sample


def _connections(layer: nn.Module, active: Tensor) -> Tensor:
    """(rows,) float64: the number of connections of this layer from an active input.

    active (rows, ...): the layer's input, 1 where it is active and 0 elsewhere.
    """
    if isinstance(layer, nn.Linear):
        return active.flatten(1).sum(1, dtype=torch.float64) * layer.out_features
    # all output channels of a group see the same inputs, so one channel per group is enough
    ones = torch.ones_like(layer.weight[: layer.groups])
    reached = layer._conv_forward(active, ones, None).flatten(1).sum(1, dtype=torch.float64)
    return reached * (layer.out_channels // layer.groups)


def _site_measures(h: Tensor, spike: nn.Module) -> Tensor:
    """(B, 4) the MEASURES of one site, from its input currents h (T, B, ...)."""
    options = spike.options
    out, before = neurons.multistep(h, spike.theta, spike.u0, return_mem=True, **options)
    theta, _, _ = neurons.placed(h, spike.theta, spike.u0)
    spk = out.ne(0)
    count = spk.sum(0, dtype=torch.float32) / len(h)
    first = torch.where(spk.any(0), spk.byte().argmax(0), len(h)).float()
    if options["reset"] == "soft":
        after = before[-1] - theta * spk[-1]
    else:
        after = before[-1] * ~spk[-1]
    charge = (after / theta).float()
    values = (count, first, charge.abs(), charge)
    return torch.stack([value.flatten(1).mean(1) for value in values], 1)


def _rounded_without_crossing(mem: np.ndarray, spk: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Potentials rounded to float16, at or above the threshold exactly where there is a spike."""
    largest = np.finfo(np.float16).max
    rounded = np.clip(mem, -largest, largest).astype(np.float16)
    up = np.nextafter(rounded, np.float16(np.inf))
    down = np.nextafter(rounded, np.float16(-np.inf))
    too_low = spk & (rounded < theta)
    too_high = ~spk & (rounded >= theta)
    rounded = np.where(too_low, up, rounded)
    return np.where(too_high, down, rounded)
