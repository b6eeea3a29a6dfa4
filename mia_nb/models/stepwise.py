"""Networks of other libraries' neurons, which keep a state from call to call, over time steps."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable
from typing import Unpack

import torch
from torch import Tensor, nn

from mia_nb import models
from mia_nb.checks import known_options
from mia_nb.models import neurons
from mia_nb.models.in_time import InTime, Presentation

STATE_SAMPLES = 32  # how many samples test whether a network's state is cleared
# methods by which modules drop their state: SpikingJelly, snntorch, Keras
RESETS = ("reset", "reset_state", "reset_states", "reset_mem", "reset_hidden")


class Stepwise(InTime):
    """A network of snntorch neurons, or others with a state, called once per time step with its
    state cleared before and after every batch.

    Parameters:
        net: net(x_t (B, ...)) returns logits (B, K) or a tuple. Never call it yourself between
            batches: its membranes would carry one batch into the next, and scores would depend on
            the order of the queries.
        timesteps: T, from 1.
        output: the index of the logits where the network returns a tuple.
        readout, encode, encode_args, mean, std, time_axis, frames: as in `SNN`.

    Every state tensor of every snntorch neuron of this network is dropped. Other modules are
    cleared by their methods reset(), reset_state(), reset_states(), reset_mem() and reset_hidden(),
    where they have them and these want no argument. The first batch tests the network: the same
    samples must give the same outputs twice.

    snntorch keeps a list of all neurons, by which snntorch.utils.reset finds them. The neurons of
    this network stay in the list, but the list does not keep them alive.

    Raises:
        ValueError: on the first batch, for a network whose state these methods do not clear.
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
        self.fault: str | None = None  # None before the first batch, "" if the test passed

    def steps(self, x: Tensor) -> Tensor:
        """(T, B, K) outputs, one call of the network a step."""
        events = self.events(x)
        inputs = [x] * self.timesteps if events is None else events
        # tested on the first batch only: a state that is kept may settle later
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
        return torch.stack([self._logits(output) for output in outputs])

    def _logits(self, output: Tensor | tuple) -> Tensor:
        return output[self.output] if isinstance(output, tuple) else output

    def clear(self) -> None:
        """Drop every neuron's state."""
        from snntorch import SpikingNeuron

        for part in self.net.modules():
            if isinstance(part, SpikingNeuron):
                _clear_snntorch(part)
            elif not type(part).__module__.startswith("torch.nn."):
                _reset(part)

    def _fault(self, inputs: list[Tensor]) -> str:
        """The complaint about a network that answers the same samples differently the second time,
        else "".
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
    """Replace this network's neurons in snntorch's list of all neurons by weak proxies, which
    snntorch's functions accept: otherwise the list would keep every model of a pool alive.
    """
    from snntorch import SpikingNeuron

    of_net = {id(part) for part in net.modules()}

    def forget(proxy: object) -> None:
        SpikingNeuron.instances[:] = [
            neuron for neuron in SpikingNeuron.instances if neuron is not proxy
        ]

    SpikingNeuron.instances[:] = [
        weakref.proxy(neuron, forget) if id(neuron) in of_net else neuron
        for neuron in SpikingNeuron.instances
    ]


def _captured() -> bool:
    """Whether values cannot be read now: under torch.func, or while torch compiles."""
    return neurons.transformed() or torch.compiler.is_compiling()


def _clear_snntorch(neuron: nn.Module) -> None:
    """Drop a neuron's state, which snntorch keeps in buffers outside of the state dictionary."""
    if hasattr(neuron, "reset_mem"):
        neuron.reset_mem()  # DeltaLeaky keeps its state in plain attributes
    for name in neuron._non_persistent_buffers_set:
        state = getattr(neuron, name)
        if state is not None:
            setattr(neuron, name, torch.zeros(0, device=state.device))


def _reset(part: nn.Module) -> None:
    """Call the methods by which a module drops its state."""
    for name in RESETS:
        method = getattr(part, name, None)
        if callable(method) and not _wants_arguments(method):
            method()


def _wants_arguments(function: Callable) -> bool:
    """Whether a function cannot be called without arguments."""
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is parameter.empty and parameter.kind not in optional:
            return True
    return False
