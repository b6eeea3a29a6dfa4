"""Where a network spikes: every call of a ReLU, found by tracing, becomes one `Spike`.

Calls are replaced, not modules, because ReLU modules are shared (torchvision's ResNet18 calls 9 of
them in 17 places) and functional ReLUs have no module at all.

`trace` records the calls of a network as a graph of torch.fx, puts `Spike` modules in the place of
its ReLU calls, and lays the graph out over time. Values before the first spikes are the same at
every time step ("static"), so they are computed once. Values after them differ ("temporal"), and
are computed for all time steps as one batch. Where both meet, `Repeat` repeats the static value.
"""

from __future__ import annotations

import copy
import inspect
import operator
import os
import sys
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from mia_nb import models
from mia_nb.models import neurons
from mia_nb.models.modules import DROPOUT
from mia_nb.models.neural_de import FlowBlock

RELUS = {F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_"}  # functions and methods
CLAMPS = {"clamp", "clip", "clamp_min", "clamp_max"}  # of activations: a ReLU, ReLU6 or hardtanh
NO_SPIKING_FORM = {
    "relu6",
    "gelu",
    "silu",
    "elu",
    "selu",
    "celu",
    "leaky_relu",
    "prelu",
    "rrelu",
    "hardswish",
    "hardtanh",
    "hardsigmoid",
    "sigmoid",
    "expit",
    "tanh",
    "softplus",
    "softsign",
    "mish",
    "threshold",
    "glu",
    "logsigmoid",
    "softmax",
    "log_softmax",
    "softmin",
    "softshrink",
    "hardshrink",
    "tanhshrink",
    "scaled_dot_product_attention",
}
# assignments that change a tensor, such as h += a, and what they compute
ASSIGNMENTS = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}
# calls that may return memory of their input, beside those of which ATen's signatures say so
CASTS = {"float", "double", "half", "bfloat16", "type", "type_as", "cpu", "cuda"}
# in evaluation they return their input itself
DROPOUTS = {
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_dropout",
    "feature_alpha_dropout",
}
VIEWS = {"getitem", "atleast_1d", "atleast_2d", "atleast_3d"} | CASTS | DROPOUTS
VIEW_LAYERS = (nn.Flatten, nn.Unflatten, nn.Identity, *DROPOUT)
# what a tensor says about itself: sizes, which the number of images changes, and types
SIZES = {"size", "dim", "numel", "shape", "ndim", "nelement"}
TENSOR_TYPES = {"dtype", "device", "layout", "get_device", "is_cuda"}
# files whose code traces a network: what is left of a stack of calls is the network's own code
TRACING = (f"{Path(torch.__file__).parent}{os.sep}", __file__)
# Python modules of torch's activations, and of layers with inner activations, unseen by fx
ACTIVATION_MODULES = {layer.__module__ for layer in (nn.ReLU, nn.RNN, nn.Transformer)}
STEPWISE = "wrap a step-wise snntorch network in mia_nb.models.snn.Stepwise"
WAY_OUT = f"insert mia_nb.models.snn.Spike modules by hand, or {STEPWISE}"
# without advice to insert Spike modules, since a network that has them is traced as well
UNTRACED = f"write the control flow without values of tensors, or {STEPWISE}"


def over_time(x: Tensor, timesteps: int, static: bool) -> Tensor:
    """The input of a site as (T, B, ...).

    x is (B, ...) if `static`, the same at every step; else (T * B, ...), step by step.
    """
    return x.expand(timesteps, *x.shape) if static else x.unflatten(0, (timesteps, -1))


class Spike(nn.Module):
    """Integrate-and-fire neurons in place of one ReLU call; equations and options:
    `neurons.multistep`.

    In a network of your own call it as you would a ReLU; `SNN` supplies the time steps.

    theta, the firing threshold, and u0, the initial potential, are numbers or one value per channel
    (C,). They are buffers, or parameters with learn=True, so that the state dictionary holds them.
    Training with learn=True can take theta to 0 or below, where neurons fire without input: such a
    state is refused when it is loaded.

    Raises ValueError for theta <= 0, beta outside (0, 1], and an unknown reset or surrogate.

    Example:
        >>> Spike(theta=1.0)(torch.tensor([[0.4, 1.2]]))
        tensor([[0., 1.]])
    """

    def __init__(
        self,
        theta: Tensor | float = 1.0,
        u0: Tensor | float = 0.0,
        *,
        amplitude: float | None = None,
        beta: float = 1.0,
        reset: str = "soft",
        surrogate: str = "boxcar",
        surrogate_args: dict[str, Any] | None = None,
        detach_reset: bool = True,
        learn: bool = False,
    ) -> None:
        super().__init__()
        if reset not in neurons.RESETS or not 0 < beta <= 1:
            raise ValueError(
                f"reset={reset!r}, beta={beta}: wanted {' or '.join(neurons.RESETS)}, and 0 < beta"
                " <= 1"
            )
        self.options = {
            "amplitude": amplitude,
            "beta": float(beta),
            "reset": reset,
            "detach_reset": detach_reset,
            "surrogate": neurons.surrogate(surrogate, **(surrogate_args or {})),
        }
        self.learn = learn
        self.place(theta, u0)

    def place(self, theta: Tensor | float, u0: Tensor | float) -> None:
        """Set threshold and initial potential; ValueError unless theta > 0."""
        if not (torch.as_tensor(theta) > 0).all():
            raise ValueError(f"theta={theta}: a firing threshold is above 0")
        kind = nn.Parameter if self.learn else nn.Buffer
        dtype = torch.get_default_dtype()
        # copies, as sites share no memory
        self.theta = kind(torch.as_tensor(theta, dtype=dtype).detach().clone())
        self.u0 = kind(torch.as_tensor(u0, dtype=dtype).detach().clone())

    def forward(self, x: Tensor, timesteps: int = 1, static: bool = False) -> Tensor:
        """Spikes (timesteps * B, ...); x and static as for `over_time`."""
        x = over_time(x, timesteps, static)
        return neurons.multistep(x, self.theta, self.u0, **self.options).flatten(0, 1)

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        # a checkpoint decides whether thresholds are numbers or one per channel
        theta = state.get(prefix + "theta")
        if theta is not None and not theta.is_meta and not (theta > 0).all():
            raise ValueError(
                f"{prefix}theta={float(theta.min()):.4g}: a firing threshold is above 0; train with"
                " a smaller lr"
            )
        for name in ("theta", "u0"):
            saved = state.get(prefix + name)
            current = getattr(self, name)
            if saved is not None and saved.shape != current.shape:
                current.data = current.new_empty(saved.shape)
        super()._load_from_state_dict(state, prefix, *rest)


class Repeat(nn.Module):
    """Repeats a static tensor over all time steps."""

    def forward(self, x: Tensor, timesteps: int, static: bool) -> Tensor:
        """x (B, ...) as (timesteps * B, ...); x itself if it is not static or has no batch axis."""
        if not static or x.ndim == 0:
            return x
        return x.expand(timesteps, *x.shape).flatten(0, 1)


class Site(NamedTuple):
    """One place that spikes: its name, the part of the model it is in, and the kind of call."""

    name: str
    where: str
    kind: str


class _Proxy(fx.Proxy):
    """A value of the graph, which records `h += a` as a change of h, not as h = h + a."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self._assigned(operator.iadd, other)

    def __isub__(self, other: Any) -> fx.Proxy:
        return self._assigned(operator.isub, other)

    def __imul__(self, other: Any) -> fx.Proxy:
        return self._assigned(operator.imul, other)

    def __itruediv__(self, other: Any) -> fx.Proxy:
        return self._assigned(operator.itruediv, other)

    def _assigned(self, assignment: Callable, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", assignment, (self, other), {})


class _Tracer(fx.Tracer):
    """Records a network's calls, without entering spiking layers; knows the current module."""

    where = ""  # path of the module that is being traced, for messages

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return (
            isinstance(module, Spike) or _snntorch(module) or super().is_leaf_module(module, name)
        )

    def create_node(self, kind: str, *rest: Any, **options: Any) -> fx.Node:
        """A call, which remembers its line: fx would record the whole stack, which is deep and
        slow to read.
        """
        node = super().create_node(kind, *rest, **options)
        if kind in ("call_function", "call_method"):
            node.meta["line"] = _line_that_is_traced()
        return node

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def call_module(
        self, module: nn.Module, forward: Callable, args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        self.where = self.path_of_module(module)
        return super().call_module(module, forward, args, kwargs)


def _line_that_is_traced() -> str:
    """The line of the network's code from which this is called: "file.py, line 7"."""
    frame = sys._getframe()
    while frame.f_code.co_filename.startswith(TRACING):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"


def traced(net: nn.Module) -> bool:
    """Whether a network comes from `trace`, unlike a graph of the user's own."""
    if not isinstance(net, fx.GraphModule):
        return False
    inputs = {node.target for node in net.graph.nodes if node.op == "placeholder"}
    return {"timesteps", "static"} <= inputs


def _snntorch(module: nn.Module) -> bool:
    """Whether a layer is one of snntorch."""
    return type(module).__module__.startswith("snntorch.")


def trace(model: nn.Module, spike: Callable[[], Spike] | None) -> tuple[fx.GraphModule, list[Site]]:
    """A copy of the model in which every ReLU call is a `Spike` made by `spike`, laid out over
    time, and the list of its sites.

    The graph takes (x, timesteps, static). With static=True x is (B, ...), and everything before
    the first spikes runs once. Otherwise x holds all steps, (timesteps * B, ...), step by step.
    spike=None keeps the Spike modules that the model already has. Raises ValueError with the place,
    the reason and the way out; a model is converted completely or not at all.
    """
    _refuse_parts(model)
    # two copies, since tracing writes constants into a model
    other_mode = copy.deepcopy(model).train(not model.training)
    model = copy.deepcopy(model)
    graph = _graph(model)
    _refuse_two_modes(model, graph, other_mode, _graph(other_mode))
    net = fx.GraphModule(model, graph, type(model).__name__)
    sites = _sites_by_hand(net) if spike is None else _put_spikes(net, spike)
    if not sites:
        raise ValueError(
            f"{type(model).__name__} has no ReLU, so nothing in it can spike; {WAY_OUT}"
        )
    _settle_changes(net)
    _lay_out(net)
    called = {node.target for node in graph.nodes}  # without calls whose results were unused
    return net, [site for site in sites if site.name in called]


def _refuse_parts(model: nn.Module) -> None:
    """ValueError for a network that already spikes or solves a differential equation."""
    for name, part in model.named_modules():
        if models.timesteps(part) is not None:
            raise ValueError(
                f"{name or type(part).__name__} spikes already: pass the plain network that it was"
                " made from"
            )
        if isinstance(part, FlowBlock):
            raise ValueError(
                f"{name} is a differential equation, which no spikes stand for: convert a network"
                " without one"
            )


def _graph(model: nn.Module) -> fx.Graph:
    """The model's calls for one image tensor; other arguments take their defaults."""
    tracer = _Tracer()
    parameters = list(inspect.signature(model.forward).parameters.values())
    simple = (bool, int, float, str, type(None))
    defaults = {p.name: p.default for p in parameters[1:] if isinstance(p.default, simple)}
    random_state = torch.get_rng_state()
    try:
        graph = tracer.trace(model, concrete_args=defaults)
    except Exception as error:  # control flow by value, unsupported Python, anything
        place = tracer.where or type(model).__name__
        raise ValueError(
            f"{place} cannot be traced ({models.first_line(error)}); {UNTRACED}"
        ) from error
    if not torch.equal(torch.get_rng_state(), random_state):
        raise ValueError(
            f"{type(model).__name__} draws random numbers that do not depend on its input, which"
            " tracing freezes: use an nn.Dropout module or torch.rand_like of a tensor"
        )
    _erase_defaults(graph, len(defaults))
    return graph


def _erase_defaults(graph: fx.Graph, count: int) -> None:
    """Erase this many inputs after the images, and the calls by which fx checks that they have
    their default values.
    """
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    unwanted = inputs[1 : 1 + count]
    for node in unwanted:  # the list grows: users of users are unwanted too
        unwanted += [user for user in node.users if user not in unwanted]
    for node in reversed(unwanted):
        graph.erase_node(node)


def _refuse_two_modes(
    model: nn.Module, graph: fx.Graph, other_model: nn.Module, other_graph: fx.Graph
) -> None:
    """ValueError if the model computes something else in training than in evaluation, or makes
    other constants from call to call.
    """
    for node, other_node in zip_longest(graph.nodes, other_graph.nodes):
        if not _same_call(node, model, other_node, other_model):
            raise ValueError(
                f"{where_of(node or other_node)} differs between training and evaluation, or from"
                " call to call, which tracing freezes: use an nn.Dropout module or its like in"
                " place of functions that are told the mode"
            )


def _same_call(
    node: fx.Node | None, model: nn.Module, other_node: fx.Node | None, other_model: nn.Module
) -> bool:
    """Whether two nodes, of the graphs of two copies of a model, are the same call or constant."""
    if node is None or other_node is None or node.format_node() != other_node.format_node():
        return False
    if str(node.target).startswith("_tensor_constant"):  # made in forward
        value_of = operator.attrgetter(node.target)
        return torch.equal(value_of(model), value_of(other_model))
    return True


def _sites_by_hand(net: fx.GraphModule) -> list[Site]:
    """The Spike modules that the model already has; ValueError if it has other activations too."""
    sites = []
    for node in net.graph.nodes:
        kind = _kind(net, node)
        if kind is None:
            continue
        if kind != "Spike":
            raise ValueError(
                f"{where_of(node)} is a {kind} beside Spike modules: replace all activations by"
                " Spike, or none"
            )
        if not node.args:
            node.args = (node.kwargs["x"],)
        sites.append(Site(node.target, where_of(node), kind))
    return sites


def _put_spikes(net: fx.GraphModule, spike: Callable[[], Spike]) -> list[Site]:
    """Put spikes in the place of every ReLU call."""
    sites = []
    device = next((p.device for p in net.parameters()), None)
    for node in list(net.graph.nodes):
        kind = _kind(net, node)
        if kind is None:
            continue
        if kind == "Spike":
            raise ValueError(
                f"{where_of(node)} spikes already: nothing is left to convert; {WAY_OUT}"
            )
        name = f"spike{len(sites)}"
        _replace(net, node, name, spike().to(device))
        sites.append(Site(name, where_of(node), kind))
    return sites


def _kind(net: fx.GraphModule, node: fx.Node) -> str | None:
    """The kind of a site's call, None for calls that are no site; ValueError for calls that a
    spiking network cannot contain.
    """
    if node.op == "call_module":
        return _kind_of_layer(net.get_submodule(node.target), node)
    if node.op in ("call_function", "call_method"):
        return _kind_of_function(node)
    return None


def _kind_of_layer(module: nn.Module, node: fx.Node) -> str | None:
    if _snntorch(module):
        raise ValueError(
            f"{node.target} is a neuron of snntorch: this network spikes already; wrap it in"
            " Stepwise"
        )
    if isinstance(module, Spike):
        return "Spike"
    if type(module) is nn.ReLU:
        return "ReLU"
    if type(module).__module__ in ACTIVATION_MODULES:
        raise ValueError(_refusal(node, type(module).__name__))
    return None


def _kind_of_function(node: fx.Node) -> str | None:
    name = name_of(node)
    if node.target in RELUS:
        return name
    plain_name = name.strip("_").removeprefix("special_")
    if plain_name in NO_SPIKING_FORM:
        raise ValueError(_refusal(node, name))
    source = next(iter(node.all_input_nodes), None)
    of_images = source is not None and source.op == "placeholder"
    if plain_name in CLAMPS and not of_images:
        raise ValueError(_refusal(node, name))
    return None


def _refusal(node: fx.Node, name: str) -> str:
    """The message for an activation that has no spiking form."""
    if "softmax" in name.lower() and all(user.op == "output" for user in node.users):
        return (
            f"{where_of(node)}: {name} of the logits has no spiking form: return what it is given,"
            f" the logits themselves; or {STEPWISE}"
        )
    return (
        f"{where_of(node)}: {name} has no spiking form here, only ReLU has; train with ReLU, or"
        f" {WAY_OUT}"
    )


def where_of(node: fx.Node) -> str:
    """The module that a call is in; for a layer, its own path."""
    if node.op == "call_module":
        return str(node.target)
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    inside = str(stack[-1][0]) if stack else ""
    return f"{inside}.{node.name}" if inside else node.name


def _replace(net: fx.GraphModule, node: fx.Node, name: str, spike: Spike) -> None:
    """Replace a call by spikes."""
    if hasattr(net, name):
        raise ValueError(
            f"the model has a part named {name!r}, the name of a spiking site: rename it"
        )
    net.add_submodule(name, spike)
    source = node.args[0] if node.args else node.kwargs["input"]
    inplace = _changed(net, node) is not None or node.args[1:2] == (True,)  # F.relu(h, True)
    if inplace:
        views = [value for value in _same_memory(net, source, node) if value is not source]
        if _any_read_after(node, views):
            raise ValueError(
                f"{where_of(node)} changes in place what is then read by another name: use its"
                f" result; {WAY_OUT}"
            )
    with net.graph.inserting_after(node):
        new = net.graph.call_module(name, (source,))
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    if inplace:  # later reads of the input saw the activation
        source.replace_all_uses_with(new, delete_user_cb=lambda user: user > new)
    net.graph.erase_node(node)


def _settle_changes(net: fx.GraphModule) -> None:
    """Make assignments such as h += a, which change a tensor in place, h = h + a; ValueError where
    a call changes a tensor in place and its result does not tell: a graph knows results only.
    """
    for node in net.graph.nodes:
        if node.target in ASSIGNMENTS:
            _settle_assignment(net, node)
        else:
            _refuse_change(net, node)


def _settle_assignment(net: fx.GraphModule, node: fx.Node) -> None:
    """Make h += a h = h + a; ValueError where the old h is read later by another name."""
    old = node.args[0]
    # a size is a number, which no assignment changes
    if not _is_size(old) and _any_read_after(node, _same_memory(net, old, node)):
        raise ValueError(_change_read(node))
    node.target = ASSIGNMENTS[node.target]


def _refuse_change(net: fx.GraphModule, node: fx.Node) -> None:
    """ValueError for a call that changes a tensor in place, if the tensor is the input or a weight,
    if the call's result is dropped, or if the tensor is read later.
    """
    old = _changed(net, node)
    if old is None:
        return
    if old.op in ("placeholder", "get_attr"):
        raise ValueError(
            f"{where_of(node)} changes {old.name}, which is not its own, in place: work on a new"
            " tensor"
        )
    if not node.users or _any_read_after(node, _same_memory(net, old, node)):
        raise ValueError(_change_read(node))


def _change_read(node: fx.Node) -> str:
    """The message for a change in place that is not seen in the call's result alone."""
    return (
        f"{where_of(node)} changes in place what another name reads, or none: use its result, as in"
        " h = h + 1"
    )


def _any_read_after(node: fx.Node, values: list[fx.Node]) -> bool:
    """Whether one of these values, more than its size or type, is read after this call."""
    for value in values:
        for user in value.users:
            if user > node and name_of(user) not in SIZES | TENSOR_TYPES:
                return True
    return False


def _same_memory(net: fx.GraphModule, value: fx.Node, call: fx.Node) -> list[fx.Node]:
    """A value, what it is a view of, and the views of these that were made before a call: if the
    call changes one in place, it may change all.
    """
    values = [value]
    base = _base(net, value)
    while base is not None:
        values.append(base)
        base = _base(net, base)
    for base in values:  # the list grows: views of views are looked for too
        for user in base.users:
            if user < call and user not in values and _base(net, user) is base:
                values.append(user)
    return values


def _base(net: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """The value whose memory a call may return, as `flatten` does; None if it returns new
    memory.
    """
    if not node.all_input_nodes:
        return None
    if node.op == "call_module":
        is_view = isinstance(net.get_submodule(node.target), VIEW_LAYERS)
    elif node.target is getattr:
        is_view = name_of(node) not in SIZES | TENSOR_TYPES  # h.T
    else:
        is_view = node.op in ("call_function", "call_method") and _returns_view(name_of(node))
    return node.all_input_nodes[0] if is_view else None


def _returns_view(name: str) -> bool:
    """Whether a function or method of this name may return memory of its input."""
    if name in VIEWS:
        return True
    overloads = getattr(torch.ops.aten, name, None)
    if overloads is None:
        return False
    returns = getattr(overloads, overloads.overloads()[0])._schema.returns
    alias = returns[0].alias_info if returns else None
    return alias is not None and not alias.is_write


def _is_size(node: fx.Node) -> bool:
    """Whether a value is a size of a tensor, or computed from sizes alone."""
    inputs = node.all_input_nodes
    return name_of(node) in SIZES or (inputs != [] and all(map(_is_size, inputs)))


def name_of(node: fx.Node) -> str:
    """The name of the function, method or attribute that a node asks for."""
    if node.target is getattr:
        return node.args[1]
    return getattr(node.target, "__name__", str(node.target))


def _changed(net: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """The tensor that a call changes in place, None if it changes none."""
    if node.op not in ("call_module", "call_method", "call_function"):
        return None
    out = node.kwargs.get("out")
    if isinstance(out, fx.Node):
        return out
    if node.op == "call_module":
        inplace = getattr(net.get_submodule(node.target), "inplace", False)
    else:
        name = name_of(node)
        inplace = name.endswith("_") and not name.endswith("__")
    if inplace or node.kwargs.get("inplace") is True:
        return next(iter(node.all_input_nodes), None)
    return None


def _lay_out(net: fx.GraphModule) -> None:
    """Lay the graph out over time: add arguments `timesteps` and `static` after the images, pass
    them to the spikes, and put a `Repeat` where a static value meets a temporal one.
    """
    graph = net.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if len(inputs) != 1:
        raise ValueError(f"the model takes {len(inputs)} inputs; wanted one tensor of images")
    images = inputs[0]
    with graph.inserting_after(images):
        static = graph.placeholder("static")
        timesteps = graph.placeholder("timesteps")  # inserted later, so it precedes `static`
    behaviour = {static: "fixed", timesteps: "fixed", images: "static"}
    for node in graph.nodes:
        if node not in behaviour:
            behaviour[node] = _behaviour(net, node, behaviour)
    net.add_submodule("repeat", Repeat())
    if _uses_numbers_behind_spikes(behaviour):
        with graph.inserting_after(static):
            repeated = graph.call_module("repeat", (images, timesteps, static))
        images.replace_all_uses_with(repeated, delete_user_cb=lambda user: user is not repeated)
        behaviour = dict.fromkeys(graph.nodes, "temporal")
    for node in list(graph.nodes):
        if is_spike(net, node):
            same_at_every_step = static if behaviour[node.args[0]] == "static" else False
            node.args = (node.args[0], timesteps, same_at_every_step)
            node.kwargs = {}
        elif behaviour[node] == "temporal":
            for source in node.all_input_nodes:
                if behaviour[source] == "static":
                    with graph.inserting_before(node):
                        repeated = graph.call_module("repeat", (source, timesteps, static))
                    node.replace_input_with(source, repeated)
    output = graph.output_node()
    if behaviour[output] != "temporal":
        raise ValueError(
            f"the output of {type(net).__name__} does not depend on any spike: is a ReLU's result"
            " unused?"
        )
    _tidy(net)


def _tidy(net: fx.GraphModule) -> None:
    """Drop what nothing uses from a graph that was changed, and compile it."""
    for node in net.graph.nodes:
        node.type = None  # annotations are strings here, which a pickled graph could not import
    net.graph.eliminate_dead_code()
    net.graph.lint()
    net.delete_all_unused_submodules()
    net.recompile()


def _behaviour(net: fx.GraphModule, node: fx.Node, behaviour: dict[fx.Node, str]) -> str:
    """How a node's value behaves over time, given the behaviour of the nodes before it.

    "fixed": independent of the images. "static": the same at every step. "number": a size of a
    static value, such as its batch size. "temporal": different at every step.
    """
    if is_spike(net, node):
        if behaviour[node.args[0]] not in ("static", "temporal"):
            raise ValueError(
                f"{node.target}: a ReLU of a weight or a constant cannot spike; {WAY_OUT}"
            )
        return "temporal"
    of_inputs = {behaviour[i] for i in node.all_input_nodes}
    name = name_of(node)
    if name in TENSOR_TYPES:
        return "fixed"
    if "temporal" in of_inputs:
        return "temporal"
    if "static" in of_inputs:
        return "number" if name in SIZES else "static"
    return "number" if "number" in of_inputs else "fixed"


def _uses_numbers_behind_spikes(behaviour: dict[fx.Node, str]) -> bool:
    """Whether a "number" is used after spikes: then the whole network has to run on all steps."""
    for node in behaviour:
        if behaviour[node] != "temporal":
            continue
        if any(behaviour[i] == "number" for i in node.all_input_nodes):
            return True
    return False


def is_spike(net: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a call of a traced network is one of a `Spike`."""
    return node.op == "call_module" and isinstance(net.get_submodule(node.target), Spike)


def spike_calls(net: fx.GraphModule) -> list[fx.Node]:
    """The calls that spike, in their order."""
    return [node for node in net.graph.nodes if is_spike(net, node)]


class WithoutSpikes(fx.Interpreter):
    """Runs a traced network with a function in place of its spikes."""

    def __init__(self, net: fx.GraphModule, at_site: Callable[[str, Tensor], Tensor]) -> None:
        super().__init__(net)
        self.extra_traceback = False  # messages are of one line
        self.at_site = at_site

    def call_module(self, target: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        if isinstance(self.fetch_attr(target), Spike):
            return self.at_site(target, args[0])
        return super().call_module(target, args, kwargs)


def run_without_spikes(
    net: fx.GraphModule, x: Tensor, at_site: Callable[[str, Tensor], Tensor]
) -> Any:
    """The output of a traced network whose sites give other values than spikes.

    Parameters:
        net: of `trace`.
        x: (B, C, H, W) normalised images.
        at_site: (name of a site, its input) -> its output, of the same shape.
    """
    return WithoutSpikes(net, at_site).run(x, 1, False)
