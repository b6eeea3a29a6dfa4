"""Spiking networks: converted from a trained network, or the same network trained with spikes from
the start.

Time is folded into the batch, (T * B, ...), step by step; what lies before the first spikes runs
once per image. Sources: Guan et al. 2025 (the study), Bojkovic et al. 2024 (conversion), Mukhoty et
al. 2023 (direct training).
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, TypedDict, Unpack

import numpy as np
import pandas as pd
import torch
from torch import Tensor, fx, nn

from mia_nb import models
from mia_nb.checks import known_options, one_of, whole
from mia_nb.models import linearity, neurons
from mia_nb.models import sites as places
from mia_nb.models.sites import Site, Spike
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
REPORTED_IMAGES = 1024  # on which a conversion measures its firing rates
STATE_SAMPLES = 32  # on which it is tried whether a network's state is cleared
# methods by which modules drop their state: SpikingJelly, snntorch, Keras
RESETS = ("reset", "reset_state", "reset_states", "reset_mem", "reset_hidden")
READOUTS = ("mean", "sum", "last")
ENCODINGS = ("constant", "rate", "latency")
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


class Presentation(TypedDict, total=False):
    """How images enter a network over time steps, and how its outputs are read: options of `SNN`
    and of `Stepwise`, with their meaning there.
    """

    readout: str
    encode: str | Callable[[Tensor], Tensor]
    encode_args: dict[str, Any] | None
    mean: Sequence[float]
    std: Sequence[float]
    time_axis: int
    frames: int


class Execution(Presentation, total=False):
    """Options of `SNN`."""

    fold: bool


class InTime(nn.Module):
    """What networks over time steps have in common: how images enter, and how outputs are read."""

    def __init__(
        self,
        timesteps: int,
        *,
        readout: str = "mean",
        encode: str | Callable[[Tensor], Tensor] = "constant",
        encode_args: dict[str, Any] | None = None,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        time_axis: int = 0,
        frames: int = 1,
    ) -> None:
        super().__init__()
        self.frames = whole("frames", frames)
        _check_time_axis(time_axis)
        self.time_axis = time_axis
        self.readout = one_of("readout", readout, READOUTS)
        if not callable(encode):
            one_of("encode", encode, ENCODINGS)
        self.encode = encode
        self.encode_args = dict(encode_args or {})
        self.timesteps = whole("timesteps", timesteps)
        self.mean = tuple(mean)
        self.std = tuple(std)

    @property
    def stochastic(self) -> bool:
        """Whether every call draws new spikes from torch's global generator; a function `encode` is
        taken not to draw.
        """
        return self.encode == "rate"

    def events(self, x: Tensor) -> Tensor | None:
        """(T, B, ...) inputs, or None where the images themselves are shown at every step."""
        if x.ndim == 5:
            return _time_first(x, self.timesteps, self.time_axis)
        if self.frames > 1:
            return _time_first(x.unflatten(1, (self.frames, -1)), self.timesteps, 1)
        if self.encode == "constant":
            return None
        if callable(self.encode):
            return self._encoded_by_function(x)
        return self._encoded_by_snntorch(x)

    def _encoded_by_function(self, x: Tensor) -> Tensor:
        events = self.encode(x)
        if events.shape[:2] != (self.timesteps, len(x)):
            raise ValueError(
                f"encode returned {tuple(events.shape)}; wanted (T, B, ...) = ({self.timesteps},"
                f" {len(x)}, ...)"
            )
        return events

    def _encoded_by_snntorch(self, x: Tensor) -> Tensor:
        from snntorch import spikegen

        scale, shift = (
            torch.tensor(v, device=x.device, dtype=x.dtype).view(-1, 1, 1)
            for v in (self.std, self.mean)
        )
        pixels = (x * scale + shift).clamp(0, 1)
        # else dark pixels would fire after the last step
        fitting = {"normalize": True} if self.encode == "latency" else {}
        options = {**fitting, **self.encode_args}
        try:
            events = getattr(spikegen, self.encode)(pixels, num_steps=self.timesteps, **options)
        except Exception as error:  # snntorch raises bare exceptions
            raise ValueError(
                f"encode={self.encode!r} with encode_args={self.encode_args}:"
                f" {' '.join(str(error).split())}"
            ) from error
        return events.to(x.dtype)

    def forward(self, x: Tensor, per_step: bool = False) -> Tensor:
        """Logits (B, K); with per_step those of every single step, (T, B, K)."""
        steps = self.steps(x)
        return steps if per_step else read_out(steps, self.readout)


class SNN(InTime):
    """A network of `Spike` sites over T time steps: images (B, C, H, W) or events (T, B, C, H, W)
    -> logits (B, K).

    Parameters:
        net: a traced network of `sites.trace`, or a module of your own that calls `Spike` where it
            used a ReLU.
        timesteps: T, from 1.
        readout: "mean", "sum" or "last" over time of the last layer, which does not spike; "sum" is
            "mean" at temperature 1/T and so changes every confidence.
        encode: "constant", "rate" (Bernoulli(x) per step, random), "latency", or a function of x
            that returns (T, B, ...).
        encode_args: of the encoding. Latency fits its spike times into the T steps unless
            normalize=False.
        mean, std: of the images' normalisation, which rate and latency undo, as they need pixels in
            [0, 1].
        time_axis: of events: 0 as they are (T, B, C, H, W), or 1 where samples come first,
            (B, T, C, H, W), as loaders of event data and audits give them. It may be set later too.
        frames: T where the input is (B, T * C, H, W), frames of events one after the other as in
            `Images`; 1 for images.
        fold: False runs step by step (the same outputs in eval mode; batch norm statistics per
            step in train mode).

    Attributes: timesteps, readout, report (a row per site, after `convert`).

    Raises:
        ValueError: for events of another T.
    """

    def __init__(
        self,
        net: nn.Module,
        timesteps: int,
        *,
        fold: bool = True,
        **presentation: Unpack[Presentation],
    ) -> None:
        known_options("SNN", presentation, Presentation.__annotations__)
        super().__init__(timesteps, **presentation)
        self.net = net if places.traced(net) else places.trace(net, None)[0]
        self.fold = fold
        self.report = None

    def spikes(self) -> dict[str, Spike]:
        """The sites by name, in the order in which they fire."""
        spikes = {}
        for node in self.net.graph.nodes:
            part = self.net.get_submodule(node.target) if node.op == "call_module" else None
            if isinstance(part, Spike):
                spikes[node.target] = part
        return spikes

    def steps(self, x: Tensor) -> Tensor:
        """(T, B, K) outputs of the last layer."""
        if self.fold and _hooked_by_opacus(self.net):
            # Opacus would take the T * B rows for T * B samples and clip each step on its own
            raise ValueError(
                "per-sample gradients of a network folded over time would clip single steps: build"
                " with fold=False"
            )
        events = self.events(x)
        if not self.fold:
            mem: dict[str, Tensor] = {}
            step = _Step(self.net, mem)
            inputs = [x] * self.timesteps if events is None else events
            return torch.stack([step.run(events_now, 1, False) for events_now in inputs])
        static = events is None
        rows = x if static else events.flatten(0, 1)
        return self.net(rows, self.timesteps, static).unflatten(0, (self.timesteps, -1))


def _hooked_by_opacus(net: nn.Module) -> bool:
    """Whether per-sample gradients are collected here, be the network the wrapped module or a part
    of it.
    """
    hooks = (hook for part in net.modules() for hook in part._forward_hooks.values())
    return any((getattr(hook, "__module__", None) or "").startswith("opacus.") for hook in hooks)


class _Step(fx.Interpreter):
    """One time step; the potentials live in `mem`, which the caller drops after the last step."""

    def __init__(self, net: fx.GraphModule, mem: dict[str, Tensor]) -> None:
        super().__init__(net)
        self.mem = mem

    def run_node(self, node: fx.Node) -> Any:
        """One operation; at a site, the spikes from the potential that the last step left."""
        if node.op != "call_module" or not isinstance(spike := self.fetch_attr(node.target), Spike):
            return super().run_node(node)
        x = self.fetch_args_kwargs_from_env(node)[0][0]
        options = dict(spike.options)
        theta, u0, amplitude = neurons.placed(
            x[None], spike.theta, spike.u0, options.pop("amplitude")
        )
        out, self.mem[node.name], _ = neurons.step(
            x, self.mem.get(node.name, u0), theta, amplitude, **options
        )
        return out.to(x.dtype)


def _check_time_axis(time_axis: int) -> None:
    if time_axis not in (0, 1):
        raise ValueError(
            f"time_axis={time_axis!r}: wanted 0 for events (T, B, C, H, W), or 1 for (B, T, C, H,"
            " W)"
        )


def _time_first(x: Tensor, timesteps: int, time_axis: int) -> Tensor:
    """Events (T, B, ...) from five axes of which `time_axis` is time."""
    _check_time_axis(time_axis)
    steps = x.shape[time_axis]
    other = x.shape[1 - time_axis]
    if steps == timesteps:
        return x.transpose(0, time_axis)
    came = f"events {tuple(x.shape)} have {steps} time steps, as axis {time_axis} is time"
    if other != timesteps:
        raise ValueError(f"{came}; the network runs {timesteps}: retime it")
    order = "(T, B, C, H, W)" if time_axis else "samples first, (B, T, C, H, W)"
    raise ValueError(f"{came}; of events {order} set time_axis={1 - time_axis} of the network")


def read_out(steps: Tensor, readout: str) -> Tensor:
    """(T, B, K) -> (B, K); under autocast in float32, since a mean in half precision would tie
    outputs that differ.
    """
    if torch.is_autocast_enabled(steps.device.type):
        steps = steps.float()
    if readout == "last":
        return steps[-1]
    return steps.mean(0) if readout == "mean" else steps.sum(0)


def cumulative(steps: Tensor, readout: str = "mean") -> Tensor:
    """(T, B, K) -> (T, B, K): what the readout says after the first t steps; the last row is the
    network's output.
    """
    if readout == "last":
        return steps
    sums = steps.cumsum(0)
    if readout == "sum":
        return sums
    counts = torch.arange(1, len(steps) + 1, device=steps.device)
    return sums / counts.view(-1, 1, 1)


class Stepwise(InTime):
    """A network of snntorch neurons, or others with a state, called once per time step with its
    state cleared before and after every batch.

    Parameters:
        net: net(x_t (B, ...)) returns logits (B, K) or a tuple. Never call it yourself between
            batches: its membranes would carry one batch into the next, and scores would depend on
            the order of the queries.
        timesteps: T, from 1.
        output: the entry of a tuple that the logits are.
        readout, encode, encode_args, mean, std, time_axis, frames: as in `SNN`.

    Every state tensor of every snntorch neuron of this network is dropped. Other modules are
    cleared by what they have of reset(), reset_state(), reset_states(), reset_mem() and
    reset_hidden(), where that wants no argument. On the first batch the network is tried: the same
    samples must give the same outputs twice.

    snntorch keeps a list of all neurons, by which snntorch.utils.reset finds them. Those of this
    network stay in it, but are not kept alive by it.

    Raises:
        ValueError: on the first batch, for a network whose state is not cleared so.
    """

    def __init__(
        self,
        net: nn.Module,
        timesteps: int,
        *,
        output: int = 0,
        **presentation: Unpack[Presentation],
    ) -> None:
        known_options("Stepwise", presentation, Presentation.__annotations__)
        super().__init__(timesteps, **presentation)
        _listed_weakly(net)
        self.net = net
        self.output = output
        self.fault: str | None = None  # found on the first batch

    def steps(self, x: Tensor) -> Tensor:
        """(T, B, K) outputs, one call of the network a step."""
        events = self.events(x)
        inputs = [x] * self.timesteps if events is None else events
        # once, as what is kept may settle
        if self.fault is None and not _captured():
            self.fault = self._fault([step[:STATE_SAMPLES] for step in inputs])
        if self.fault:
            raise ValueError(self.fault)
        return self._run(inputs)

    def _run(self, inputs: Iterable[Tensor]) -> Tensor:
        self.clear()
        try:
            outputs = [self.net(step) for step in inputs]
        finally:
            self.clear()
        return torch.stack([out[self.output] if isinstance(out, tuple) else out for out in outputs])

    def clear(self) -> None:
        """Drop every neuron's state: snntorch keeps it in buffers that it leaves out of the state
        dictionary.
        """
        from snntorch import SpikingNeuron

        for part in self.net.modules():
            if isinstance(part, SpikingNeuron):
                getattr(part, "reset_mem", lambda: None)()  # DeltaLeaky keeps plain attributes
                for name in part._non_persistent_buffers_set:
                    if (state := getattr(part, name)) is not None:
                        setattr(part, name, torch.zeros(0, device=state.device))
            elif not type(part).__module__.startswith("torch.nn."):
                _reset(part)

    def _fault(self, inputs: list[Tensor]) -> str:
        """What to say of a network that answers the same samples otherwise a second time; "" of any
        other.
        """
        outputs = []
        for _ in range(2):
            with models.evaluating(self.net), models.same_draws(inputs[0].device):
                outputs.append(self._run(inputs))
        first, second = outputs
        allowed = 1e-4 * float(first.abs().max())
        if torch.allclose(first, second, rtol=0, atol=allowed, equal_nan=True):
            return ""
        return (
            f"{type(self.net).__name__} keeps a state from batch to batch: give the part that"
            " keeps it a method reset(), without arguments, that drops it"
        )


def _listed_weakly(net: nn.Module) -> None:
    """Let snntorch's list of all neurons hold those of this network by weak references, which its
    functions take for the neurons: the list alone would keep every model of a pool alive.
    """
    from snntorch import SpikingNeuron

    of_net = {id(part) for part in net.modules()}

    def forget(gone: object) -> None:
        SpikingNeuron.instances[:] = [kept for kept in SpikingNeuron.instances if kept is not gone]

    SpikingNeuron.instances[:] = [
        weakref.proxy(neuron, forget) if id(neuron) in of_net else neuron
        for neuron in SpikingNeuron.instances
    ]


def _captured() -> bool:
    """Whether nothing may be looked at now: under torch.func, while torch compiles, or in a CUDA
    graph.
    """
    if neurons.transformed() or torch.compiler.is_compiling():
        return True
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _reset(part: nn.Module) -> None:
    """Call the methods by which a module drops its state."""
    for name in RESETS:
        method = getattr(part, name, None)
        if not callable(method):
            continue
        try:
            parameters = inspect.signature(method).parameters.values()
        except (TypeError, ValueError):  # no Python function
            continue
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        wanted = [p for p in parameters if p.default is p.empty and p.kind not in several]
        if not wanted:
            method()


def sites(model: nn.Module) -> list[Site]:
    """Where this model would spike, without converting it; ValueError as `spiking`."""
    net, spike_sites = places.trace(model, Spike)
    linearity.check_calls(net, mean_over_time=False)
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
        per_channel: a histogram for each channel, else for each layer; of 2,048 bins, so that
            memory does not grow with the amount of data.

    Returns:
        A `Histogram` per site, in the order of the network.

    Raises:
        ValueError: for no batches.
    """
    net = net if places.traced(net) else places.trace(net, Spike)[0]
    histograms: dict[str, Histogram] = {}
    counting = _Counting(net, histograms, per_channel)
    with models.evaluating(net):
        for x in _checked(batches):
            counting.run(x, 1, False)
    if not histograms:
        raise ValueError(
            "calibration got no batches: pass an iterable of normalised images (B, C, H, W)"
        )
    return list(histograms.values())


def _checked(batches: Iterable[Tensor]) -> Iterator[Tensor]:
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


class _Counting(fx.Interpreter):
    """The plain network, with ReLU at the sites and their activations counted."""

    def __init__(self, net: fx.GraphModule, found: dict[str, Histogram], per_channel: bool) -> None:
        super().__init__(net)
        self.found = found
        self.per_channel = per_channel

    def call_module(self, target: str, args: tuple, kwargs: dict[str, Any]) -> Tensor:
        """What a module returns; at a site, the ReLU of its input, which is counted."""
        if not isinstance(self.fetch_attr(target), Spike):
            return super().call_module(target, args, kwargs)
        z = torch.relu(args[0])
        if self.per_channel and z.ndim > 1:
            grouped = z.transpose(0, 1).flatten(1)
        else:
            grouped = z.reshape(1, -1)
        histogram = self.found.get(target) or Histogram.empty(len(grouped), BINS)
        self.found[target] = histogram.add(grouped)
        return z


def convert(
    model: nn.Module,
    timesteps: int,
    batches: Iterable[Tensor] = (),
    *,
    fit_T: int | None = None,
    per_channel: bool = False,
    p: float = 1,
    pool: str = "keep",
    histograms: list[Histogram] | None = None,
    learn: bool = False,
    surrogate: str = "boxcar",
    surrogate_args: dict | None = None,
    **options: Unpack[Execution],
) -> SNN:
    """A spiking copy of a trained ReLU network, thresholds fitted on its activations, u0 = theta /
    2; in eval mode.

    Parameters:
        model: trained; its ReLUs become spiking sites.
        timesteps: T of the copy.
        batches: normalised images (B, C, H, W) of the model's own training half.
        fit_T: T that thresholds are fitted for; None: timesteps. 1 with more steps is the released
            conversion, meant for fine-tuning.
        per_channel: one threshold a channel, else one a layer.
        p: theta minimises E |a - Q_T(a)|^p over a site's positive activations a (thresholds.py).
        pool: "keep", or "avg" to replace max-pooling, which belongs before the training of the
            model.
        histograms: of `calibrate`, instead of batches: several T at the price of one.
        learn: whether thresholds can be trained later.
        surrogate, surrogate_args: gradient of the spikes, for later training.
        **options: as for `SNN`.

    Returns:
        An `SNN`. Its `.report` has a row per site: theta and u0 (means over channels), the expected
        error, the mass above theta, which is clipped, and the firing rate measured on up to 1,024
        of the images. Dead sites get a threshold that is never reached.

    Raises:
        ValueError: naming the place and the way out for what cannot be converted, and where the
            traced network, with ReLU at its sites, gives the first batch other outputs than the
            model.

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
    spike = dict(CONVERTED, learn=learn, surrogate=surrogate, surrogate_args=surrogate_args)
    net, spike_sites = places.trace(model, lambda: Spike(**spike))
    snn = SNN(net, timesteps, **options).eval()
    batches = _checked(batches)
    first = next(batches, None)
    if first is not None:
        _same_answers(net, model, first)
        batches = chain([first], batches)
    _pooled(net, pool)
    encoded = options.get("encode", "constant") != "constant"
    linearity.check_calls(net, mean_over_time=True, encoded=encoded)
    if first is not None:
        linearity.check_values(net, spike_sites, first)
    kept: list[Tensor] = []
    if histograms is None:
        shown = _keeping(batches, kept, REPORTED_IMAGES)
        histograms = calibrate(net, shown, per_channel=per_channel)
    if len(histograms) != len(spike_sites):
        raise ValueError(
            f"histograms of {len(histograms)} sites came; this model has {len(spike_sites)}:"
            " calibrate it"
        )
    like = next(model.parameters(), torch.zeros(()) if first is None else first)
    rows = []
    for site, histogram in zip(spike_sites, histograms, strict=True):
        theta = fit_histogram(histogram, fit_T, p)
        value = torch.as_tensor(theta if len(theta) > 1 else theta[0]).to(like)
        net.get_submodule(site.name).place(value, value / 2)
        place = {"site": site.name, "where": site.where, "kind": site.kind}
        rows.append(place | _quality(histogram, theta, timesteps, p))
    snn.to(like.dtype).report = pd.DataFrame(rows)
    if kept:
        snn.report["firing_rate"] = firing_rates(snn, kept)["rate"].to_numpy()
    return snn


def _quality(histogram: Histogram, theta: np.ndarray, timesteps: int, p: float) -> dict[str, Any]:
    """What a conversion reports of one site's thresholds (groups,), means over its groups."""
    error, clipped = expected(histogram, theta, timesteps, p)
    alive = theta < DEAD
    middle = theta[alive].mean() if alive.any() else np.nan
    weight = histogram.counts.sum(1).numpy() / max(1, int(histogram.counts.sum()))
    return {
        "channels": len(theta),
        "theta": middle,
        "u0": middle / 2,
        "dead": int((~alive).sum()),
        "expected_error": (weight * error).sum(),
        "clipped_mass": (weight * clipped).sum(),
    }


def check_convertible(model: nn.Module, *, pool: str = "keep", encode: str = "constant") -> None:
    """ValueError, as `convert` gives it, for a network that cannot be converted.

    Parameters:
        model, pool, encode: as for `convert`.
    """
    net = _pooled(places.trace(model, Spike)[0], pool)
    linearity.check_calls(net, mean_over_time=True, encoded=encode != "constant")


def _same_answers(net: fx.GraphModule, model: nn.Module, x: Tensor) -> None:
    """Refuse a network whose trace computes something else: views that change in place, or values
    frozen by tracing.
    """
    with models.evaluating(model), models.same_draws(x.device):
        plain = model(x.clone())
    with models.evaluating(net), models.same_draws(x.device):
        traced = _Counting(net, {}, False).run(x.clone(), 1, False)
    if not isinstance(plain, Tensor):
        raise ValueError(
            f"{type(model).__name__} returns a {type(plain).__name__}; wanted logits (B, K) as one"
            " tensor"
        )
    allowed = max(1e-3, 4 * torch.finfo(plain.dtype).eps) * float(plain.abs().max())
    if not torch.allclose(traced, plain, rtol=0, atol=allowed, equal_nan=True):
        raise ValueError(
            f"{type(model).__name__} gives other outputs once traced (by up to"
            f" {float((traced - plain).abs().max()):.3g}): does forward change in place a view that"
            " is read later, draw random numbers or read a clock?"
        )


def _keeping(batches: Iterable[Tensor], kept: list[Tensor], samples: int) -> Iterable[Tensor]:
    """The batches; the first `samples` images stay in `kept`."""
    left = samples
    for x in batches:
        if left > 0:
            kept.append(x[:left])
            left -= len(x)
        yield x


def _pooled(net: fx.GraphModule, pool: str) -> fx.GraphModule:
    return net if one_of("pool", pool, ("keep", "avg")) == "keep" else places.average_pools(net)


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

    Source: the defaults (beta .5, hard reset, differentiated, LocalZO in closed form, amplitude 1)
    are those released with Mukhoty et al. 2023; Guan et al. 2025 name the method only.
    """
    of_spike = {k: options.pop(k) for k in (*DIRECT, "surrogate_args") if k in options}
    net, _ = places.trace(model, lambda: Spike(theta, 0.0, learn=learn, **{**DIRECT, **of_spike}))
    _pooled(net, pool)
    linearity.check_calls(net, mean_over_time=False)
    return SNN(net, timesteps, **options)


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
        base: the network that becomes spiking, as `model` there; its weights start as those of the
            plain network of the same seed.
        base_args: its options.
        timesteps: T, from 1.
        calibration: how a converted pool's thresholds were fitted (`training.convert_pool`):
            neurons are then those of conversion, and the thresholds come with the weights.
        pool: "keep", or "avg" to replace max-pooling.
        frames: of events in the images, as for `models.build`; several are shown one at each step.
        **options: those of `spiking`.

    Raises:
        ValueError: for frames of another number than timesteps, and for frames that are encoded.
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
    plain = models.build(
        base,
        base_args,
        in_channels=in_channels,
        num_classes=num_classes,
        size=size,
        mean=mean,
        std=std,
        seed=torch.initial_seed(),
    )
    if calibration is not None:
        options = {**CONVERTED, **options}
    return spiking(plain, timesteps, pool=pool, mean=mean, std=std, frames=frames, **options)


def retime(snn: SNN, timesteps: int) -> SNN:
    """The same weights and thresholds over another number of steps; a shallow copy that shares
    them.
    """
    return _copy(snn, timesteps=whole("timesteps", timesteps), report=None)


def firing_rates(snn: SNN, batches: Iterable[Tensor]) -> pd.DataFrame:
    """What spikes on these images, in eval mode.

    Parameters:
        snn: a spiking network.
        batches: normalised images (B, C, H, W).

    Returns:
        A row per site: rate = mean of spk over neurons, steps and images; silent = share of neurons
        that never fired; always = share that fired at every step of every image.

    Raises:
        ValueError: for no batches.

    Caveat: no claim about energy.
    """
    totals: dict[str, list] = {}

    def count(name: str, module: nn.Module, args: tuple, out: Tensor) -> None:
        spk = out.detach().flatten(1).abs().sign()  # truth values are slow to sum
        fired = spk.sum(0, dtype=torch.promote_types(spk.dtype, torch.float32)).double()
        spent = torch.stack([fired, torch.full_like(fired, len(spk))])
        totals[name] = totals[name] + spent if name in totals else spent

    with models.evaluating(snn), watched(snn, count):
        for x in _checked(batches):
            folded(snn)(x)
    if not totals:
        raise ValueError(
            "firing_rates got no batches: pass an iterable of normalised images (B, C, H, W)"
        )
    rows = [
        {
            "site": name,
            "rate": float(fired.sum() / seen.sum()),
            "silent": float((fired == 0).double().mean()),
            "always": float((fired == seen).double().mean()),
        }
        for name, (fired, seen) in totals.items()
    ]
    return pd.DataFrame(rows)


@contextlib.contextmanager
def watched(snn: SNN, see: Callable[[str, Spike, tuple, Tensor], None]) -> Iterator[None]:
    """Call see(site, its neurons, what came in, what went out) whenever a site fires."""
    spikes = snn.spikes().items()
    handles = [spike.register_forward_hook(partial(see, name)) for name, spike in spikes]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def folded(snn: SNN) -> SNN:
    """The same network, all time steps in one call of each layer."""
    return _copy(snn, fold=True)


def _copy(snn: SNN, **changes: Any) -> SNN:
    """A shallow copy with other attributes, which shares weights and thresholds."""
    other = copy.copy(snn)
    vars(other).update(changes)
    return other


def record(snn: SNN, x: Tensor, site: str = "spike0") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One image at one site, step by step.

    Parameters:
        snn: a spiking network.
        x: (1, C, H, W) normalised.
        site: its name, as in `.report`.

    Returns:
        spk (T, neurons) bool, mem (T, neurons) before the reset, theta (neurons,).

    Raises:
        ValueError: for a site that is not there.
    """
    spikes = snn.spikes()
    if site not in spikes:
        raise ValueError(f"site={site!r} is not one of {', '.join(islice(spikes, 20))}")
    spike = spikes[site]
    currents = {}

    def keep(name: str, module: Spike, args: tuple, out: Tensor) -> None:
        if name == site:
            currents[name] = places.over_time(*args)

    with models.evaluating(snn):
        with watched(snn, keep):
            folded(snn)(x)
        h = currents[site]
        out, mem = neurons.multistep(h, spike.theta, spike.u0, return_mem=True, **spike.options)
    theta = neurons.placed(h, spike.theta, spike.u0)[0].expand(h.shape[1:]).flatten()
    return (
        out.ne(0).flatten(1).cpu().numpy(),
        mem.double().flatten(1).cpu().numpy(),
        theta.double().cpu().numpy(),
    )
