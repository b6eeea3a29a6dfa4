"""Checks that all calls between the spiking neurons of a network are linear.

A converted network answers with a mean over time. A neuron's mean output tends to the ReLU that it
replaces, and this carries over to the network's output only if everything between the neurons is
linear (strictly: affine). The calls known to be linear are listed here; any other call is refused
by its name. Max pooling and norms are also allowed where they do no harm: before the first spikes
of constant input, and in networks that are trained with spikes from the start. Before the first
weight, where a network prepares its images, everything is allowed.
"""

from __future__ import annotations

import operator
import re
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from mia_nb import models
from mia_nb.models.modules import DROPOUT
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

# layers that are linear in their input, in eval mode
LINEAR_LAYERS = (
    nn.Identity,
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    *DROPOUT,
    nn.Flatten,
    nn.Unflatten,
    nn.ZeroPad1d,
    nn.ZeroPad2d,
    nn.ZeroPad3d,
    nn.ConstantPad1d,
    nn.ConstantPad2d,
    nn.ConstantPad3d,
    nn.ReflectionPad1d,
    nn.ReflectionPad2d,
    nn.ReflectionPad3d,
    nn.ReplicationPad1d,
    nn.ReplicationPad2d,
    nn.ReplicationPad3d,
    nn.CircularPad1d,
    nn.CircularPad2d,
    nn.CircularPad3d,
    nn.Upsample,
    nn.UpsamplingNearest2d,
    nn.UpsamplingBilinear2d,
    nn.PixelShuffle,
    nn.PixelUnshuffle,
    nn.ChannelShuffle,
    nn.Unfold,
    nn.Fold,
)
# layers that are not linear, but that a network trained with spikes may contain
SINGLE_STEP_LAYERS = (
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
    nn.LPPool1d,
    nn.LPPool2d,
    nn.BatchNorm1d,  # without running statistics
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.LocalResponseNorm,
)
# Calls by name: functions of torch, torch.nn.functional and operator, and methods of tensors.
# sums of their arguments
SUMS = {
    "add",
    "sub",
    "subtract",
    "rsub",
    "cat",
    "concat",
    "concatenate",
    "stack",
    "hstack",
    "vstack",
    "dstack",
}
# linear in each factor while the others are constant
PRODUCTS = {
    "mul",
    "multiply",
    "matmul",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "mv",
    "einsum",
    "tensordot",
    "linear",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
}
# linear in their first argument
LINEAR_IN_FIRST = {
    # values
    "neg",
    "negative",
    "pos",
    "positive",
    "div",
    "divide",
    "truediv",
    "true_divide",
    "mean",
    "sum",
    "cumsum",
    "masked_fill",
    "batch_norm",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "interpolate",
    "upsample",
    "upsample_nearest",
    "upsample_bilinear",
    # their places
    "pad",
    "pixel_shuffle",
    "pixel_unshuffle",
    "channel_shuffle",
    "native_channel_shuffle",
    "unfold",
    "fold",
    "flatten",
    "unflatten",
    "reshape",
    "reshape_as",
    "view",
    "view_as",
    "expand",
    "expand_as",
    "broadcast_to",
    "squeeze",
    "unsqueeze",
    "permute",
    "transpose",
    "swapaxes",
    "swapdims",
    "movedim",
    "moveaxis",
    "t",
    "adjoint",
    "flip",
    "fliplr",
    "flipud",
    "rot90",
    "roll",
    "repeat",
    "repeat_interleave",
    "tile",
    "chunk",
    "split",
    "tensor_split",
    "unbind",
    "narrow",
    "select",
    "index_select",
    "gather",
    "take_along_dim",
    "diagonal",
    "getitem",
    # their storage
    "contiguous",
    "clone",
    "detach",
    "to",
    "type_as",
    "float",
    "double",
    "half",
    "bfloat16",
    "cpu",
    "cuda",
}
LINEAR_ATTRIBUTES = {"T", "mT", "H", "mH", "data", "real"}
# of their second argument only the shape or the dtype counts
SHAPED_BY = {"view_as", "expand_as", "reshape_as", "type_as"}
# results that do not depend on the tensor's values
CONSTANTS = {
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "rand_like",
    "randn_like",
    "randint_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
}
SINGLE_STEP = {
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_pool1d_with_indices",
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "adaptive_max_pool1d_with_indices",
    "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d_with_indices",
    "lp_pool1d",
    "lp_pool2d",
    "amax",
    "group_norm",
    "layer_norm",
    "rms_norm",
    "instance_norm",
    "local_response_norm",
    "normalize",
}
NAMES_OF_FUNCTIONS = {
    function: name
    for name in SUMS | PRODUCTS | LINEAR_IN_FIRST | CONSTANTS | SINGLE_STEP | SIZES | {"where"}
    for home in (operator, torch, F)
    if callable(function := getattr(home, name, None))
}
SAMPLES = 4  # on which linearity is tried
TOLERANCE = 1e-3  # of the largest value
BY_HAND = "insert mia_nb.models.snn.Spike modules by hand and pass the network to SNN"


class Stage(IntEnum):
    """How far a value is on the way from the images to the spikes."""

    FIXED = 0  # does not depend on the images
    PIXELS = 1  # depends on images, but on no weight
    ANALOGUE = 2  # depends on images and weights, computed once for each image
    SPIKES = 3  # depends on spikes


def check_calls(net: fx.GraphModule, *, mean_over_time: bool, encoded: bool = False) -> None:
    """Refuse a traced network with a call that is not allowed in a spiking network.

    Parameters:
        net: of `sites.trace`.
        mean_over_time: whether the network was trained without spikes, so that means over time must
            equal its values (conversion). If not, max pooling and norms are allowed anywhere.
        encoded: whether the images themselves are encoded as spikes, which differ at every step.

    Raises:
        ValueError: with the place, the name and the way out.
    """
    stages: dict[fx.Node, Stage] = {}
    learned: set[fx.Node] = set()  # values that depend on a weight
    for node in net.graph.nodes:
        before = max((stages[source] for source in node.all_input_nodes), default=Stage.FIXED)
        if _has_weights(net, node) or not learned.isdisjoint(node.all_input_nodes):
            learned.add(node)
        if node.op == "placeholder":
            images = node.target not in ("timesteps", "static")
            first = Stage.SPIKES if encoded and mean_over_time else Stage.PIXELS
            stages[node] = first if images else Stage.FIXED
        elif node.op == "call_module" and isinstance(net.get_submodule(node.target), Spike):
            stages[node] = Stage.SPIKES
        elif before == Stage.FIXED or node.op == "output" or _says_shape_or_kind(node):
            stages[node] = Stage.FIXED
        elif before == Stage.PIXELS:
            stages[node] = Stage.ANALOGUE if node in learned else Stage.PIXELS
        else:
            harmless = not mean_over_time or before == Stage.ANALOGUE
            if not _is_linear(net, node, stages) and not (harmless and _is_single_step(net, node)):
                raise ValueError(_refusal(net, node, before))
            stages[node] = before


def _has_weights(net: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a call is a layer with parameters, or reads a parameter."""
    if node.op == "call_module":
        return next(net.get_submodule(node.target).parameters(), None) is not None
    return node.op == "get_attr" and isinstance(operator.attrgetter(node.target)(net), nn.Parameter)


def _name(node: fx.Node) -> str:
    """The name of the function or method that is called, `add` for `add_` too."""
    if name := _listed_name(node):
        return name
    return getattr(node.target, "__name__", str(node.target)).strip("_")


def _listed_name(node: fx.Node) -> str:
    """The name by which the lists above know a call of a method or an attribute, and of a function
    if it is torch's own of that name; "" of other functions and of layers.
    """
    if node.target is getattr:
        return str(node.args[1])
    if node.op == "call_method":
        return str(node.target).rstrip("_")
    if node.op == "call_function":
        return NAMES_OF_FUNCTIONS.get(node.target, "")
    return ""


def _argument(node: fx.Node, position: int, keyword: str, default: Any = None) -> Any:
    """An argument of a call, given by position or by keyword."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(keyword, default)


def _says_shape_or_kind(node: fx.Node) -> bool:
    """Whether a call's result is a number of axes, a dtype and the like, or a tensor of constants
    in the shape of its input.
    """
    return _listed_name(node) in SIZES | TENSOR_TYPES | CONSTANTS


def _is_linear(net: fx.GraphModule, node: fx.Node, stages: dict[fx.Node, Stage]) -> bool:
    """Whether a call is linear in those of its inputs that are at the furthest stage."""
    if node.op == "call_module":
        module = net.get_submodule(node.target)
        if isinstance(module, Repeat):
            return True
        without_statistics = hasattr(module, "running_mean") and module.running_mean is None
        return _is_one_of(module, LINEAR_LAYERS) and not without_statistics
    name = _listed_name(node)
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
    return _listed_name(node) in SINGLE_STEP


def _is_one_of(module: nn.Module, layers: tuple[type[nn.Module], ...]) -> bool:
    """Whether a module computes as one of these layers do; a subclass may not."""
    forward = type(module).forward
    return any(isinstance(module, kind) and forward is kind.forward for kind in layers)


def _sources(arguments: Any) -> list[fx.Node]:
    """The values among these arguments, each as often as it occurs."""
    sources: list[fx.Node] = []
    fx.node.map_arg(arguments, sources.append)
    return sources


def _furthest(arguments: Any, stages: dict[fx.Node, Stage]) -> Stage:
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
    """ " (file.py, line 7)", the code that calls a function; "" for a layer, which has a name."""
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
        allowed = max(TOLERANCE, 4 * torch.finfo(value.dtype).eps) * (10 if x.is_cuda else 1)
        atol = allowed * float(value.abs().max())
        apart = torch.cat([of_a[name], of_b[name]])
        mixed = value.shape != (3 * len(x), *of_a[name].shape[1:])
        if not mixed:
            mixed = not torch.allclose(value[: 2 * len(x)], apart, rtol=0, atol=atol)
        if mixed:
            raise ValueError(
                f"{places[name]} time steps or samples are mixed: no call may move or reduce the"
                f" first axis, the batch; or {STEPWISE}"
            )
        mean = (of_a[name] + of_b[name]) / 2
        if not torch.allclose(value[2 * len(x) :], mean, rtol=0, atol=atol):
            raise ValueError(
                f"{places[name]} something is not linear in spikes, as a hook may do: take it out,"
                f" or {STEPWISE}"
            )


def _replayed(
    net: fx.GraphModule, outputs: dict[str, Tensor], x: Tensor, timesteps: int
) -> dict[str, Tensor]:
    """The inputs of all sites by name, and the "output", of a run with these outputs of sites;
    other sites give the ReLU of their inputs.
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
