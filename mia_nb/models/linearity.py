"""Checks by numbers what lies between the spikes of a network.

A converted network answers with a mean over time. A neuron's mean output tends to the ReLU that it
replaces, and this carries over to the network's output only if everything between the neurons is
linear (strictly: affine). And as all time steps run as one batch, nothing may mix the rows of a
batch. What comes before the first spikes of constant images runs once for each image and may be
anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from mia_nb import models
from mia_nb.models.pooling import plain_window
from mia_nb.models.sites import STEPWISE, WithoutSpikes, name_of, spike_calls, where_of

SAMPLES = 5  # images that are tried; calls that join rows in twos, threes or fours do not fit them
TOLERANCE = 1e-3  # as a fraction of the largest value
IMAGES = "images"  # stands beside the names of sites where images are encoded as spikes
TRAIN_WITH_SPIKES = 'train with spikes from the start (snn.spiking, or model="snn")'

Outputs = dict[str, Tensor]  # of the sites, by name


def check_linear(net: fx.GraphModule, x: Tensor, encoded: bool) -> None:
    """Refuse a traced network in which something between the sites is not linear.

    Parameters:
        net: of `sites.trace`.
        x: (B, C, H, W) what enters at one time step.
        encoded: whether x are images encoded as spikes, which differ at every step. Then what lies
            between the images and the first site must be linear too.

    The sites give random numbers a, then b, then their mean. What enters the sites, and the output,
    must then be that of a, that of b, and the mean of the two. This is tried three times: with
    numbers between 0 and twice the largest activation of a site, with numbers that are either, and
    with twice the activations as a and silence as b. Networks that draw random numbers draw the
    same ones every time.

    Raises:
        ValueError: naming the first call that is not linear, and the way out.
    """
    x = x[:SAMPLES]
    with models.evaluating(net):
        for a, b in _pairs(_activations(net, x, encoded)):
            mean = {name: (a[name] + b[name]) / 2 for name in a}
            wrong = _first_wrong(net, (a, b, mean), x, _is_mean)
            if wrong is not None:
                raise ValueError(_not_linear(net, wrong))


def check_steps(net: fx.GraphModule, x: Tensor, encoded: bool) -> None:
    """Refuse a traced network that mixes time steps or samples, which are all rows of one batch.

    Parameters:
        net, x, encoded: as for `check_linear`.

    Four steps run twice with random outputs of the sites. Those of the second step are the same in
    both runs, those of the others are not; nothing may change in the second step.

    Raises:
        ValueError: naming the first call that mixes them.
    """
    x = x[:SAMPLES]
    with models.evaluating(net):
        activations = _activations(net, x, encoded)
        with models.same_draws(x.device):
            a, b, c, d = [_random_outputs(activations, torch.rand_like) for _ in range(4)]
        # the second is no permutation of the first: sums over steps change too
        runs = [_in_one_batch([a, b, c, d]), _in_one_batch([d, b, a, a])]
        wrong = _first_wrong(net, runs, torch.cat([x] * 4), partial(_are_apart, len(x)))
    if wrong is not None:
        raise ValueError(
            f"{_place(wrong)}: {_layer_or_function(net, wrong)} mixes time steps or samples: no"
            f" call may move or reduce the first axis, the batch; or {STEPWISE}"
        )


def _in_one_batch(steps: list[Outputs]) -> Outputs:
    """The outputs of the sites at these time steps, one after the other along the batch."""
    return {name: torch.cat([outputs[name] for outputs in steps]) for name in steps[0]}


def _activations(net: fx.GraphModule, x: Tensor, encoded: bool) -> Outputs:
    """What the sites give as ReLUs, doubled as other images may give more; and encoded images."""
    sites = spike_calls(net)
    values = _values(net, {}, x, sites)
    activations = {str(site.target): 2 * values[site][0] for site in sites}
    if encoded:
        activations[IMAGES] = x
    return activations


def _pairs(activations: Outputs) -> Iterator[tuple[Outputs, Outputs]]:
    """The outputs a and b that `check_linear` tries."""
    device = next(iter(activations.values())).device
    for draw in (torch.rand_like, _zeros_and_ones):
        with models.same_draws(device):
            a = _random_outputs(activations, draw)
            b = _random_outputs(activations, draw)
        yield a, b
    silence = {name: torch.zeros_like(value) for name, value in activations.items()}
    yield activations, silence


def _zeros_and_ones(like: Tensor) -> Tensor:
    return torch.randint_like(like, 2)


def _random_outputs(activations: Outputs, draw: Callable[[Tensor], Tensor]) -> Outputs:
    """Random outputs between the least and the largest of these activations; between 0 and 1 where
    all are 0.

    draw: (like) -> random numbers from 0 to 1 of this shape.
    """
    outputs = {}
    for name, value in activations.items():
        low = value.min().clamp(max=0)
        high = value.max() if value.any() else torch.ones_like(low)
        outputs[name] = low + (high - low) * draw(value)
    return outputs


class _Run(WithoutSpikes):
    """Runs a network whose sites give these outputs, and keeps the tensors of some calls."""

    def __init__(self, net: fx.GraphModule, outputs: Outputs, kept: Iterable[fx.Node]) -> None:
        super().__init__(net, self._output)
        self.outputs = outputs
        self.kept = set(kept)
        self.values: dict[fx.Node, list[Tensor]] = {}

    def _output(self, site: str, value: Tensor) -> Tensor:
        if site in self.outputs:
            return self.outputs[site].clone()
        return torch.relu(value)

    def run_node(self, node: fx.Node) -> Any:
        """One call. Its tensors are copied, as a later call may change them in place."""
        value = super().run_node(node)
        if node in self.kept:
            parts = value if isinstance(value, tuple | list) else [value]
            self.values[node] = [part.clone() for part in parts if isinstance(part, Tensor)]
        return value


def _values(
    net: fx.GraphModule, outputs: Outputs, x: Tensor, kept: Iterable[fx.Node]
) -> dict[fx.Node, list[Tensor]]:
    """What some calls give where the sites give `outputs`, or else the ReLU of their inputs."""
    run = _Run(net, outputs, kept)
    try:
        with models.same_draws(x.device):
            run.run(outputs.get(IMAGES, x).clone(), 1, False)
    except Exception as error:
        raise ValueError(
            f"{type(net).__name__} does not run on {len(x)} images ({models.first_line(error)}):"
            " time steps are laid along the first axis, the batch, which may have any length"
        ) from error
    return run.values


def _first_wrong(
    net: fx.GraphModule,
    runs: Sequence[Outputs],
    x: Tensor,
    right: Callable[..., bool],
) -> fx.Node | None:
    """The first call whose values are not right; None if those that enter the sites, and the
    output, are.

    Parameters:
        net: a traced network.
        runs: the outputs of the sites in each run.
        x: what enters the network.
        right: takes a call's tensors in each of the runs, and says whether they are as wanted.
    """
    # first what enters the sites and the output, as the values of all calls take much memory
    ends = [*(site.args[0] for site in spike_calls(net)), net.graph.output_node()]
    wrong_end = _first_wrong_of(ends, net, runs, x, right)
    if wrong_end is None:
        return None
    # a GPU may give another answer the second time; the network is refused all the same
    return _first_wrong_of(net.graph.nodes, net, runs, x, right) or wrong_end


def _first_wrong_of(
    calls: Iterable[fx.Node],
    net: fx.GraphModule,
    runs: Sequence[Outputs],
    x: Tensor,
    right: Callable[..., bool],
) -> fx.Node | None:
    """The first of these calls whose values are not right, as for `_first_wrong`."""
    values_of_runs = [_values(net, outputs, x, calls) for outputs in runs]
    for call in calls:
        if not right(*[values[call] for values in values_of_runs]):
            return call
    return None


def _is_mean(a: list[Tensor], b: list[Tensor], mean: list[Tensor]) -> bool:
    """Whether the values of the third run are the means of those of the first two."""
    for first, second, middle in zip(a, b, mean, strict=True):
        if not _close((_number(first) + _number(second)) / 2, _number(middle), TOLERANCE):
            return False
    return True


def _are_apart(samples: int, first: list[Tensor], second: list[Tensor]) -> bool:
    """Whether the second of four time steps has the same values in two runs, in which the other
    steps differ.
    """
    second_step = slice(samples, 2 * samples)
    for a, b in zip(first, second, strict=True):
        if a.shape == b.shape and torch.equal(a, b):
            continue  # independent of spikes, such as a weight
        if a.shape != b.shape or a.shape[:1] != (4 * samples,):
            return False
        if not _close(_number(a[second_step]), _number(b[second_step]), 0):
            return False
    return True


def _number(value: Tensor) -> Tensor:
    """The value itself, or a float for a boolean or a whole number."""
    return value if value.is_floating_point() else value.float()


def _close(first: Tensor, second: Tensor, tolerance: float) -> bool:
    """Whether two values differ by no more than their rounding, or than the tolerance."""
    allowed = max(tolerance, 4 * torch.finfo(first.dtype).eps)
    if first.is_cuda:
        allowed *= 10
    return torch.allclose(first, second, rtol=0, atol=allowed * float(first.abs().max()))


def _not_linear(net: fx.GraphModule, node: fx.Node) -> str:
    """The message for a call that is not linear: where it is, its name, why, and what to do."""
    name = _layer_or_function(net, node)
    reason = (
        f"{_place(node)}: {name} of spikes is not {name} of their mean, at any number of timesteps"
    )
    if plain_window(net, node) is not None:
        return (
            f'{reason}; take average pooling, with pool="avg" in snn.convert or pool_layers="avg"'
            f" in mia.convert (best before the network is trained), {TRAIN_WITH_SPIKES}, or"
            f" {STEPWISE}"
        )
    return (
        f"{reason}; write it as nn.ReLU if it is one, train the network with something linear in"
        " its place (average pooling, BatchNorm with running statistics), "
        f"{TRAIN_WITH_SPIKES}, or {STEPWISE}"
    )


def _layer_or_function(net: fx.GraphModule, node: fx.Node) -> str:
    """The name of the layer, function or method that is called, `add` for `add_` too."""
    if node.op == "call_module":
        layer = net.get_submodule(node.target)
        name = type(layer).__name__
        return f"{name} with its hooks" if layer._forward_hooks else name
    return name_of(node).strip("_")


def _place(node: fx.Node) -> str:
    """Where a call is: the path of a layer; for functions also "(file.py, line 7)"."""
    if node.op == "call_module" or "line" not in node.meta:
        return where_of(node)
    return f"{where_of(node)} ({node.meta['line']})"
