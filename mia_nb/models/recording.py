"""What a spiking network does besides answering: a small recording for pictures, and the activity
of all its layers on every sample.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from mia_nb import models
from mia_nb.models import neurons, sites, snn

IMAGES, NEURONS = 12, 200
COUNTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # of which `Operations` counts connections
MEASURES = ("count", "first", "rest", "charge")  # of each site, by `activity`
BYTES = 280_000  # of all that is recorded; with many time steps fewer neurons are


def recorded(module: nn.Module, x: Tensor, columns: np.ndarray) -> dict[str, np.ndarray] | None:
    """Spikes and membranes of one site over all T time steps for a few images; None for what is no
    deterministic `SNN`.

    x (n, C, H, W): normalised images; columns (n,): their numbers. The first site, and of its
    neurons at most 200, evenly spaced: `spikes` (n, T, neurons) uint8, `membranes` (n, T, neurons)
    float16, after charging and before the reset, `thresholds` (neurons,) float32, `neurons`
    (neurons,) numbers in the layer of `size` (1,) neurons, `samples` (n,), `site` (1,). Equation:
    spike where membrane >= threshold; where rounding to float16 would cross the threshold the
    membrane is moved back to its side. Caveat: images are shown one at a time, which may round
    otherwise than a batch.
    """
    if not len(x) or not isinstance(module, snn.SNN) or module.stochastic:
        return None
    spikes = module.spikes()
    if not spikes:
        return None
    site = next(iter(spikes))
    seen = [snn.record(module, image[None], site) for image in x]
    spk = np.stack([spk for spk, _, _ in seen])
    mem = np.stack([mem for _, mem, _ in seen])
    theta = seen[0][2]
    _, timesteps, size = spk.shape
    count = max(1, min(NEURONS, size, BYTES // (3 * len(x) * timesteps)))
    chosen = _evenly_spaced(size, count)
    spk = spk[:, :, chosen]
    theta = theta[chosen].astype(np.float32)
    return {
        "spikes": spk.astype(np.uint8),
        "membranes": _on_its_side(mem[:, :, chosen], spk, theta),
        "thresholds": theta,
        "neurons": chosen,
        "size": np.array([size]),
        "samples": np.asarray(columns, dtype=np.int64),
        "site": np.array([site]),
    }


def evenly(columns: np.ndarray) -> np.ndarray:
    """At most 12 of these numbers, evenly spaced in their order."""
    return columns[_evenly_spaced(len(columns), min(IMAGES, len(columns)))]


def _evenly_spaced(size: int, count: int) -> np.ndarray:
    """`count` of the numbers below `size`, the first and the last among them."""
    return np.unique(np.linspace(0, size - 1, count).round().astype(np.int64))


def activity_names(module: snn.SNN) -> list[str]:
    """What `activity` measures of a network, a name a column: `accumulates`, then `count SITE`,
    `first SITE`, `rest SITE` and `charge SITE` of each of its sites.
    """
    names = ["accumulates"]
    for site in module.spikes():
        names += [f"{measure} {site}" for measure in MEASURES]
    return names


def activity(module: snn.SNN, x: Tensor) -> tuple[Tensor, Tensor]:
    """One forward pass, and what every layer did meanwhile.

    Parameters:
        module: a spiking network whose encoding does not draw.
        x: (B, C, H, W) normalised images, or (T, B, C, H, W) events.

    Returns:
        (T, B, K) outputs of every single step, and (B, 1 + 4 * sites) float32: the accumulate
        operations of `operations`, then for each site in its order, each a mean over its neurons:

            count   spikes a time step
            first   step of the first spike, from 0; T for a neuron that never spikes
            rest    |potential| after the last step, in thresholds
            charge  potential after the last step, in thresholds
    """
    seen: dict[str, Tensor] = {}

    def watch(name: str, spike: nn.Module, args: tuple, out: Tensor) -> None:
        seen[name] = _measured(sites.over_time(*args), spike)

    samples = x.shape[1] if x.ndim == 5 else len(x)
    with (
        models.evaluating(module),
        snn.watched(module, watch),
        Operations(module, samples) as done,
    ):
        steps = snn.folded(module)(x, per_step=True)
    accumulates = done.accumulates.float()[:, None]
    return steps, torch.cat([accumulates, *(seen[name] for name in module.spikes())], 1)


class Operations:
    """Counts what the convolutions and linear layers of a network do while it is entered.

    Whatever comes after the first spikes accumulates: a weight is added for every input that is not
    0, at each time step. Before them, and in a network without spikes, every connection multiplies
    and accumulates; images that are shown at every step pass there once.

    Parameters:
        network: with `Spike` sites or without.
        samples: in the batch that is to come.

    Attributes: multiply_accumulates, a number a sample; accumulates (samples,).

    Caveat: norms, pooling and the neurons' own updates are not counted, as is usual; frames of
    events enter the first layer as images do, whose zeros are counted too.
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
                self._handles.append(part.register_forward_hook(self._see_spikes))
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _see_spikes(self, spike: nn.Module, args: tuple, out: Tensor) -> None:
        self._spiked = True

    def _count(self, layer: nn.Module, args: tuple) -> None:
        """Add the connections of this layer that are at work."""
        x = args[0].detach()
        if not self._spiked:
            rows = len(x) // self.samples
            self.multiply_accumulates += rows * int(_connections(layer, torch.ones_like(x[:1])))
            return
        at_work = _connections(layer, x.ne(0).to(x.dtype))
        per_sample = at_work.unflatten(0, (-1, self.samples)).sum(0)
        self.accumulates = self.accumulates.to(x.device) + per_sample


def _connections(layer: nn.Module, active: Tensor) -> Tensor:
    """(rows,) float64 number of the connections of this layer that lead from an active input, 1
    among 0.
    """
    if isinstance(layer, nn.Linear):
        return active.flatten(1).sum(1, dtype=torch.float64) * layer.out_features
    # one output channel a group sees what the others see
    ones = torch.ones_like(layer.weight[: layer.groups])
    reached = layer._conv_forward(active, ones, None).flatten(1).sum(1, dtype=torch.float64)
    return reached * (layer.out_channels // layer.groups)


def _measured(h: Tensor, spike: nn.Module) -> Tensor:
    """(B, 4) of what `activity` measures, from the input currents h (T, B, ...) of one site."""
    options = spike.options
    out, before = neurons.multistep(h, spike.theta, spike.u0, return_mem=True, **options)
    theta = neurons.placed(h, spike.theta, spike.u0)[0]
    spk = out.ne(0)
    count = spk.sum(0, dtype=torch.float32) / len(h)
    first = torch.where(spk.any(0), spk.byte().argmax(0), len(h)).float()
    after = before[-1] - theta * spk[-1] if options["reset"] == "soft" else before[-1] * ~spk[-1]
    charge = (after / theta).float()
    values = (count, first, charge.abs(), charge)
    return torch.stack([value.flatten(1).mean(1) for value in values], 1)


def _on_its_side(mem: np.ndarray, spk: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """float16 potentials that are at or above the threshold exactly where a spike is."""
    largest = np.finfo(np.float16).max
    small = np.clip(mem, -largest, largest).astype(np.float16)
    up = np.nextafter(small, np.float16(np.inf))
    down = np.nextafter(small, np.float16(-np.inf))
    below = spk & (small < theta)
    above = ~spk & (small >= theta)
    return np.where(below, up, np.where(above, down, small))
