"""Checks that all calls between the spiking neurons of a network are linear.

A converted network answers with a mean over time. A neuron's mean output tends to the ReLU that it
replaces, and this carries over to the network's output only if everything between the neurons is
linear (strictly: affine). `linear_calls` lists the calls known to be linear; any other call is
refused by its name. Max pooling and norms are also allowed where they do no harm: before the first
spikes of constant input, and in networks that are trained with spikes from the start. Before the
first weight, where a network prepares its images, everything is allowed.
"""

from __future__ import annotations

import operator
import re
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from mia_nb import models
from mia_nb.models.linear_calls import (
    CONSTANTS,
    LINEAR_ATTRIBUTES,
    LINEAR_IN_FIRST,
    LINEAR_LAYERS,
    PRODUCTS,
    SHAPED_BY,
    SINGLE_STEP,
    SINGLE_STEP_LAYERS,
    SUMS,
    listed_name,
)
from mia_nb.models.pooling import plain_window
from mia_nb.models.sites import (
    SIZES,
    STEPWISE,
    TENSOR_TYPES,
    Repeat,
    Site,
    Spike,
    run_without_spikes,
    where_of,
)

SAMPLES = 4  # images that `check_values` tries
TOLERANCE = 1e-3  # as a fraction of the largest value
BY_HAND = "insert mia_nb.models.snn.Spike modules by hand and pass the network to SNN"


class Stage(IntEnum):
    """How far a value is on the way from the images to the spikes."""

    FIXED = 0  # does not depend on the images
    PIXELS = 1  # depends on images, but on no weight
    ANALOGUE = 2  # depends on images and weights, computed once for each image
    SPIKES = 3  # depends on spikes


def check_calls(net: fx.GraphModule, *, mean_over_time: bool, encoded: bool = False) -> None:
    """Refuse a traced network with a call that is not allowed in a spiking network.

    What is allowed depends on the furthest stage among a call's inputs:

        FIXED, PIXELS   every call
        ANALOGUE        linear calls, max pooling and norms
        SPIKES          linear calls; max pooling and norms unless mean_over_time

    Spikes themselves, and calls that read a tensor's shape or type only, are allowed everywhere.

    Parameters:
        net: of `sites.trace`.
        mean_over_time: whether the network was trained without spikes, so that means over time must
            equal its values (conversion).
        encoded: whether the images themselves are encoded as spikes, which differ at every step.

    Raises:
        ValueError: with the place, the name and the way out.
    """
    images = Stage.SPIKES if encoded and mean_over_time else Stage.PIXELS
    learned = _depending_on_weights(net)
    stages: dict[fx.Node, Stage] = {}
    for node in net.graph.nodes:
        if node.op == "placeholder":
            stages[node] = Stage.FIXED if node.target in ("timesteps", "static") else images
            continue
        before = _furthest(node.all_input_nodes, stages)
        if not _is_allowed(net, node, before, stages, mean_over_time):
            raise ValueError(_refusal(net, node, before))
        stages[node] = _stage_after(net, node, before, node in learned)


def _depending_on_weights(net: fx.GraphModule) -> set[fx.Node]:
    """The values that depend on a weight."""
    learned: set[fx.Node] = set()
    for node in net.graph.nodes:
        if _has_weights(net, node) or not learned.isdisjoint(node.all_input_nodes):
            learned.add(node)
    return learned


def _stage_after(net: fx.GraphModule, node: fx.Node, before: Stage, learned: bool) -> Stage:
    """The stage of a call's result, whose furthest input is at the stage `before`."""
    if _spikes(net, node):
        return Stage.SPIKES
    if node.op == "output" or _says_shape_or_kind(node):
        return Stage.FIXED
    return Stage.ANALOGUE if before == Stage.PIXELS and learned else before


def _is_allowed(
    net: fx.GraphModule,
    node: fx.Node,
    before: Stage,
    stages: dict[fx.Node, Stage],
    mean_over_time: bool,
) -> bool:
    """Whether a call may stand where it does; the rules are those in `check_calls`."""
    if before <= Stage.PIXELS or node.op == "output":
        return True
    if _spikes(net, node) or _says_shape_or_kind(node) or _is_linear(net, node, stages):
        return True
    single_step_allowed = before == Stage.ANALOGUE or not mean_over_time
    return single_step_allowed and _is_single_step(net, node)


def _spikes(net: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a call is a site that spikes."""
    return node.op == "call_module" and isinstance(net.get_submodule(node.target), Spike)


def _has_weights(net: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a call is a layer with parameters, or reads a parameter."""
    if node.op == "call_module":
        return next(net.get_submodule(node.target).parameters(), None) is not None
    return node.op == "get_attr" and isinstance(operator.attrgetter(node.target)(net), nn.Parameter)


def _name(node: fx.Node) -> str:
    """The name of the function or method that is called, `add` for `add_` too."""
    if name := listed_name(node):
        return name
    return getattr(node.target, "__name__", str(node.target)).strip("_")


def _argument(node: fx.Node, position: int, keyword: str, default: Any = None) -> Any:
    """An argument of a call, given by position or by keyword."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(keyword, default)


def _says_shape_or_kind(node: fx.Node) -> bool:
    """Whether a call's result is a tensor's shape, dtype and the like, or a tensor of constants."""
    return listed_name(node) in SIZES | TENSOR_TYPES | CONSTANTS


def _is_linear(net: fx.GraphModule, node: fx.Node, stages: dict[fx.Node, Stage]) -> bool:
    """Whether a call is linear in its inputs of the furthest stage."""
    if node.op == "call_module":
        module = net.get_submodule(node.target)
        if isinstance(module, Repeat):
            return True
        without_statistics = hasattr(module, "running_mean") and module.running_mean is None
        return _is_one_of(module, LINEAR_LAYERS) and not without_statistics
    name = listed_name(node)
    if node.target is getattr:
        return name in LINEAR_ATTRIBUTES
    if name == "where":
        condition = _argument(node, 1 if node.op == "call_method" else 0, "condition")
        return _furthest(condition, stages) <= Stage.PIXELS
    if name in SUMS:
        return True
    if name in PRODUCTS:
        factors = [stages[source] for source in _sources((node.args, node.kwargs))]
        return factors.count(max(factors)) == 1
    return name in LINEAR_IN_FIRST and _is_linear_in_its_first(node, name, stages)


def _is_linear_in_its_first(node: fx.Node, name: str, stages: dict[fx.Node, Stage]) -> bool:
    """Whether a call of LINEAR_IN_FIRST has constant other arguments, and does not round."""
    others = node.args[2 if name in SHAPED_BY else 1 :]
    by_keyword = {keyword: value for keyword, value in node.kwargs.items() if keyword != "input"}
    if _furthest((others, by_keyword), stages) > Stage.PIXELS:
        return False
    if name == "batch_norm":  # with the statistics of the batch it is not linear
        return _argument(node, 5, "training", False) is False
    if name in ("div", "divide"):
        return node.kwargs.get("rounding_mode") is None
    if name == "to":  # conversion to integers or booleans rounds
        arguments = [*others, *by_keyword.values()]
        dtypes = [value for value in arguments if isinstance(value, torch.dtype)]
        return all(dtype.is_floating_point for dtype in dtypes)
    return True


def _is_single_step(net: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a call is a max pooling or a norm."""
    if node.op == "call_module":
        return _is_one_of(net.get_submodule(node.target), SINGLE_STEP_LAYERS)
    return listed_name(node) in SINGLE_STEP


def _is_one_of(module: nn.Module, layers: tuple[type[nn.Module], ...]) -> bool:
    """Whether a module computes what one of these layers does, which a subclass may not."""
    forward = type(module).forward
    return any(isinstance(module, kind) and forward is kind.forward for kind in layers)


def _sources(arguments: Any) -> list[fx.Node]:
    """The values among these arguments; a value that occurs twice is listed twice."""
    sources: list[fx.Node] = []
    fx.node.map_arg(arguments, sources.append)
    return sources


def _furthest(arguments: Any, stages: dict[fx.Node, Stage]) -> Stage:
    """The furthest stage among these arguments."""
    return max((stages[source] for source in _sources(arguments)), default=Stage.FIXED)


def _refusal(net: fx.GraphModule, node: fx.Node, stage: Stage) -> str:
    """The message for a call that is not allowed: where it is, its name, why, and what to do."""
    name = _name(node)
    if node.op == "call_module":
        name = type(net.get_submodule(node.target)).__name__
    place = where_of(node) + _line_of(node)
    if not _is_single_step(net, node):
        signal = "spikes" if stage == Stage.SPIKES else "a layer's output"
        return (
            f"{place}: {name} of {signal} is not known to be linear, and only ReLU becomes spikes;"
            " write it as nn.ReLU if it is one, train with nn.ReLU in its place,"
            f" {BY_HAND}, or {STEPWISE}"
        )
    reason = f"{place}: {name} of spikes is not {name} of their mean, at any number of timesteps"
    if plain_window(net, node) is not None:
        return (
            f'{reason}; take average pooling, with pool="avg" in snn.convert or pool_layers="avg"'
            f" in mia.convert (best before the network is trained), {_train_with_spikes()}"
        )
    other = "BatchNorm (with running statistics)" if "norm" in name.lower() else "average pooling"
    return f"{reason}; train the network with {other} in its place, {_train_with_spikes()}"


def _train_with_spikes() -> str:
    return f'train with spikes from the start (snn.spiking, or model="snn"), or {STEPWISE}'


def _line_of(node: fx.Node) -> str:
    """Where the code calls a function, as " (file.py, line 7)"; "" for layers, which have names."""
    if node.op == "call_module":
        return ""
    frames = re.findall(r'File "([^"]+)", line (\d+), in (.*)', node.stack_trace or "")
    tracing = (str(Path(torch.__file__).parent), str(Path(__file__).with_name("sites.py")))
    for file, line, _ in reversed(frames):
        if not file.startswith(tracing):
            return f" ({Path(file).name}, line {line})"
    return ""


def check_values(net: fx.GraphModule, sites: list[Site], x: Tensor) -> None:
    """Check with random numbers what `check_calls` reads from the code: between the sites of a
    traced network nothing mixes samples or time steps, and everything is linear.

    Parameters:
        net: of `sites.trace`.
        sites: its sites.
        x: normalised images (B, C, H, W).

    Each site gives random numbers a at one time step, b at the next and their mean at a third. The
    inputs of all sites, and the output, must then be those of a alone at the first step, those of b
    alone at the second, and their mean at the third. Networks that draw random numbers in eval mode
    are not tried.

    Raises:
        ValueError: naming the first place where this does not hold.
    """
    x = x[:SAMPLES]
    n = len(x)
    with models.evaluating(net), models.same_draws(x.device):
        without_spikes = _replayed(net, {}, x, 1)
        activations = {site.name: without_spikes[site.name].relu() for site in sites}
        a, b = (
            {name: torch.rand_like(act) * (act.max() + 1) for name, act in activations.items()}
            for _ in range(2)
        )
        of_a = _replayed(net, a, x, 1)
        again = _replayed(net, a, x, 1)
        if any(not torch.equal(of_a[name], again[name]) for name in of_a):
            return
        of_b = _replayed(net, b, x, 1)
        three = {name: torch.cat([a[name], b[name], (a[name] + b[name]) / 2]) for name in a}
        together = _replayed(net, three, torch.cat([x, x, x]), 3)
    places = {site.name: f"before {site.where}" for site in sites} | {"output": "before the output"}
    for name, value in together.items():
        first, second = of_a[name], of_b[name]
        allowed = max(TOLERANCE, 4 * torch.finfo(value.dtype).eps) * (10 if x.is_cuda else 1)
        close = partial(torch.allclose, rtol=0, atol=allowed * float(value.abs().max()))
        same_shape = value.shape == (3 * n, *first.shape[1:])
        if not (same_shape and close(value[: 2 * n], torch.cat([first, second]))):
            raise ValueError(
                f"{places[name]} time steps or samples are mixed: no call may move or reduce the"
                f" first axis, the batch; or {STEPWISE}"
            )
        mixture = value[2 * n :]
        if not close(mixture, (first + second) / 2):
            raise ValueError(
                f"{places[name]} something is not linear in spikes, as a hook may do: take it out,"
                f" or {STEPWISE}"
            )


def _replayed(
    net: fx.GraphModule, outputs: dict[str, Tensor], x: Tensor, timesteps: int
) -> dict[str, Tensor]:
    """Run the network with these outputs of its sites; other sites give the ReLU of their inputs.

    Returns the inputs of all sites by name, and the "output".
    """
    inputs: dict[str, Tensor] = {}

    def at_site(name: str, value: Tensor) -> Tensor:
        inputs[name] = value
        return outputs[name] if name in outputs else torch.relu(value)

    try:
        output = run_without_spikes(net, x, at_site, timesteps)
    except Exception as error:
        raise ValueError(
            f"{type(net).__name__} does not run on {len(x)} images ({models.first_line(error)}):"
            " time steps are laid along the first axis, the batch, which may have any length"
        ) from error
    return {**inputs, "output": output}
