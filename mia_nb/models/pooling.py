"""Average pooling in place of max pooling, which has no spiking form, in a traced network."""

from __future__ import annotations

import torch.nn.functional as F
from torch import fx, nn

POOL_ARGS = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")


def average_pools(net: fx.GraphModule) -> None:
    """Replace every plain 2-d max pooling, layer or function, by average pooling."""
    for node in list(net.graph.nodes):
        window = plain_window(net, node)
        if window is None:
            continue
        if node.op == "call_module":
            net.set_submodule(node.target, nn.AvgPool2d(**window))
        else:
            images = node.args[0] if node.args else node.kwargs["input"]
            node.target = F.avg_pool2d
            node.args = (images,)
            node.kwargs = window
    net.recompile()


def plain_window(net: fx.GraphModule, node: fx.Node) -> dict | None:
    """The window of a 2-d max pooling as options of average pooling; None for other calls, and for
    max pooling that is dilated or returns indices.
    """
    if node.op == "call_module" and isinstance(net.get_submodule(node.target), nn.MaxPool2d):
        options = vars(net.get_submodule(node.target))
    elif node.op == "call_function" and getattr(node.target, "__name__", "") == "max_pool2d":
        options = dict(zip(POOL_ARGS, node.args, strict=False)) | node.kwargs
    else:
        return None
    if options.get("dilation", 1) not in (1, (1, 1), [1, 1]) or options.get("return_indices"):
        return None
    kept = ("kernel_size", "stride", "padding", "ceil_mode")
    return {name: options[name] for name in kept if options.get(name) is not None}
