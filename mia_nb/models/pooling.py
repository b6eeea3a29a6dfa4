"""Average pooling in place of max pooling, which has no spiking form, in a traced network."""

from __future__ import annotations

import torch.nn.functional as F
from torch import fx, nn

from mia_nb.models.sites import where_of

POOL_ARGS = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")


def average_pools(net: fx.GraphModule) -> fx.GraphModule:
    """Replace every 2-d max pooling, layer or function, by average pooling; returns the network.

    Raises ValueError for max pooling that average pooling cannot replace: in other dimensions,
    dilated, or with indices returned.
    """
    for node in list(net.graph.nodes):
        name = max_pooling(net, node)
        if not name:
            continue
        window = plain_window(net, node)
        if window is None:
            raise ValueError(
                f"{where_of(node)}: pool='avg' replaces plain 2-d max pooling only, not this"
                f" {name}: change the model"
            )
        if node.op == "call_module":
            net.set_submodule(node.target, nn.AvgPool2d(**window))
        else:
            images = node.args[0] if node.args else node.kwargs["input"]
            node.target = F.avg_pool2d
            node.args = (images,)
            node.kwargs = window
    net.recompile()
    return net


def max_pooling(net: fx.GraphModule, node: fx.Node) -> str:
    """The name of the layer or function if a call is a max pooling, else ""."""
    if node.op == "call_module":
        name = type(net.get_submodule(node.target)).__name__
    elif node.op == "call_function":
        name = getattr(node.target, "__name__", "")
    else:
        return ""
    return name if "maxpool" in name.lower().replace("_", "") else ""


def plain_window(net: fx.GraphModule, node: fx.Node) -> dict | None:
    """The window of a plain 2-d max pooling as options of average pooling, else None."""
    if max_pooling(net, node) not in ("max_pool2d", "MaxPool2d"):
        return None
    if node.op == "call_module":
        options = vars(net.get_submodule(node.target))
    else:
        options = dict(zip(POOL_ARGS, node.args, strict=False)) | node.kwargs
    if options.get("dilation", 1) not in (1, (1, 1), [1, 1]) or options.get("return_indices"):
        return None
    kept = ("kernel_size", "stride", "padding", "ceil_mode")
    return {name: options[name] for name in kept if options.get(name) is not None}
