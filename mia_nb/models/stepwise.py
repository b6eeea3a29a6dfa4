"""Networks of other libraries' neurons, which keep a state from call to call, over time steps."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterable
from typing import Unpack

import torch
from torch import Tensor, nn

from mia_nb import models
from mia_nb.checks import known_options
from mia_nb.models import neurons
from mia_nb.models.in_time import InTime, Presentation

STATE_SAMPLES = 32  # on which it is tried whether a network's state is cleared
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
