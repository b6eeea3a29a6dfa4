"""Networks of spiking neurons over time steps: how images enter, how outputs are read, and how all
steps run at once.

Time is folded into the batch, (T * B, ...): first all samples of step 1, then those of step 2. What
lies before the first spikes runs once per image.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, fx, nn

from mia_nb import models
from mia_nb.checks import known_options, one_of, whole
from mia_nb.models import linearity, neurons
from mia_nb.models.sites import Spike, is_spike, spike_calls, trace, traced

READOUTS = ("mean", "sum", "last")
ENCODINGS = ("constant", "rate", "latency")


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


class InTime(nn.Module):
    """What networks over time steps have in common: how images enter, and how outputs are read.

    A subclass gives `steps(x)`, the outputs (T, B, K) of every single step.
    """

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
        """Whether every call draws new spikes from torch's global generator; it is assumed that a
        function `encode` draws none.
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

        std = torch.tensor(self.std, device=x.device, dtype=x.dtype).view(-1, 1, 1)
        mean = torch.tensor(self.mean, device=x.device, dtype=x.dtype).view(-1, 1, 1)
        pixels = (x * std + mean).clamp(0, 1)
        options = dict(self.encode_args)
        if self.encode == "latency":
            options.setdefault("normalize", True)  # else dark pixels would fire after the last step
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
        readout: how outputs of the last layer, which does not spike, are joined over time: "mean",
            "sum" or "last". "sum" is "mean" at temperature 1/T and so changes every confidence.
        encode: "constant", "rate" (Bernoulli(x) per step, random), "latency", or a function of x
            that returns (T, B, ...).
        encode_args: options of the encoding. Latency fits its spike times into the T steps unless
            normalize=False.
        mean, std: of the images' normalisation. Rate and latency need pixels in [0, 1] and undo it.
        time_axis: the axis of events that is time: 0 for (T, B, C, H, W), or 1 for
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
        if not traced(net):
            net, _ = trace(net, None)
        self.net = net
        self.fold = fold
        self.report = None

    def spikes(self) -> dict[str, Spike]:
        """The sites by name, in the order in which they fire."""
        names = [node.target for node in spike_calls(self.net)]
        return {name: self.net.get_submodule(name) for name in names}

    def check_steps(self, x: Tensor) -> None:
        """ValueError if the network mixes time steps or samples, tried on images (B, C, H, W)."""
        rows, encoded = self._at_one_step(x)
        linearity.check_steps(self.net, rows, encoded)

    def check_linear(self, x: Tensor) -> None:
        """ValueError if what lies between the spikes mixes time steps or samples, or is not linear,
        so that means over time would not tend to the values of a network without spikes.
        """
        rows, encoded = self._at_one_step(x)
        linearity.check_linear(self.net, rows, encoded)
        self.check_steps(x)

    def _at_one_step(self, x: Tensor) -> tuple[Tensor, bool]:
        """What enters the network at single time steps, as rows of a batch, and whether it differs
        from step to step.
        """
        with models.same_draws(x.device):
            events = self.events(x)
        if events is None:
            return x, False
        return events.flatten(0, 1), True

    def steps(self, x: Tensor) -> Tensor:
        """(T, B, K) outputs of the last layer."""
        if self.fold and _hooked_by_opacus(self.net):
            # Opacus would take the T * B rows for T * B samples and clip each step on its own
            raise ValueError(
                "per-sample gradients of a network folded over time would clip single steps: build"
                " with fold=False"
            )
        events = self.events(x)
        if self.fold:
            return self._folded(x, events)
        return self._step_by_step(x, events)

    def _folded(self, x: Tensor, events: Tensor | None) -> Tensor:
        """All steps in one call of the network, whose arguments `sites.trace` describes."""
        static = events is None
        rows = x if static else events.flatten(0, 1)
        return self.net(rows, self.timesteps, static).unflatten(0, (self.timesteps, -1))

    def _step_by_step(self, x: Tensor, events: Tensor | None) -> Tensor:
        """One run of the network per step."""
        runner = _StepRunner(self.net)
        inputs = [x] * self.timesteps if events is None else events
        return torch.stack([runner.run(input_now, 1, False) for input_now in inputs])


def _hooked_by_opacus(net: nn.Module) -> bool:
    """Whether Opacus collects per-sample gradients of this network or of one of its parts."""
    for part in net.modules():
        for hook in part._forward_hooks.values():
            if str(getattr(hook, "__module__", None)).startswith("opacus."):
                return True
    return False


class _StepRunner(fx.Interpreter):
    """Runs one time step per call of `run`, and keeps the potentials for the next step."""

    def __init__(self, net: fx.GraphModule) -> None:
        super().__init__(net)
        self.mem: dict[str, Tensor] = {}

    def run_node(self, node: fx.Node) -> Any:
        """One operation; a site spikes from the potential that the last step left."""
        if not is_spike(self.module, node):
            return super().run_node(node)
        spike = self.fetch_attr(node.target)
        args, _ = self.fetch_args_kwargs_from_env(node)
        x = args[0]
        options = dict(spike.options)
        amplitude = options.pop("amplitude")
        theta, u0, amplitude = neurons.placed(x[None], spike.theta, spike.u0, amplitude)
        mem = self.mem.get(node.name, u0)
        out, self.mem[node.name], _ = neurons.step(x, mem, theta, amplitude, **options)
        return out.to(x.dtype)


def _check_time_axis(time_axis: int) -> None:
    if time_axis not in (0, 1):
        raise ValueError(
            f"time_axis={time_axis!r}: wanted 0 for events (T, B, C, H, W), or 1 for (B, T, C, H,"
            " W)"
        )


def _time_first(x: Tensor, timesteps: int, time_axis: int) -> Tensor:
    """Events (T, B, ...) from (T, B, C, H, W) at `time_axis` 0, or (B, T, C, H, W) at 1."""
    _check_time_axis(time_axis)
    steps = x.shape[time_axis]
    other = x.shape[1 - time_axis]
    if steps == timesteps:
        return x.transpose(0, time_axis)
    came = f"events {tuple(x.shape)} have {steps} time steps, as axis {time_axis} is time"
    if other != timesteps:
        raise ValueError(f"{came}; the network runs {timesteps}: retime it")
    # the other axis fits: the events are probably in the other order
    order = "(T, B, C, H, W)" if time_axis == 1 else "samples first, (B, T, C, H, W)"
    raise ValueError(f"{came}; of events {order} set time_axis={1 - time_axis} of the network")


def read_out(steps: Tensor, readout: str) -> Tensor:
    """(T, B, K) -> (B, K); under autocast in float32, since a mean in half precision would make
    outputs equal that differ.
    """
    if torch.is_autocast_enabled(steps.device.type):
        steps = steps.float()
    if readout == "last":
        return steps[-1]
    if readout == "sum":
        return steps.sum(0)
    return steps.mean(0)


def cumulative(steps: Tensor, readout: str = "mean") -> Tensor:
    """(T, B, K) -> (T, B, K): the readout after each number of steps; the last row is the network's
    output.
    """
    if readout == "last":
        return steps
    sums = steps.cumsum(0)
    if readout == "sum":
        return sums
    counts = torch.arange(1, len(steps) + 1, device=steps.device)
    return sums / counts.view(-1, 1, 1)


def retime(snn: SNN, timesteps: int) -> SNN:
    """A shallow copy over another number of steps, which shares weights and thresholds."""
    return _changed_copy(snn, timesteps=whole("timesteps", timesteps), report=None)


def folded(snn: SNN) -> SNN:
    """A shallow copy that runs all time steps in one call of each layer."""
    return _changed_copy(snn, fold=True)


def _changed_copy(snn: SNN, **changes: Any) -> SNN:
    """A shallow copy with other attributes, which shares weights and thresholds."""
    other = copy.copy(snn)
    vars(other).update(changes)
    return other
