"""The layers and calls that `linearity` knows: those that are linear, and max pooling and norms,
which are not linear but act on each time step alone.
"""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import fx, nn

from mia_nb.models.modules import DROPOUT
from mia_nb.models.sites import SIZES

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
# layers that are not linear but act on each time step alone: max pooling and norms. Batch norms are
# also in LINEAR_LAYERS: which one holds depends on running statistics; `linearity` decides.
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
    nn.BatchNorm1d,
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
# What follows names functions of torch, torch.nn.functional and operator, and methods of tensors.

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
    # arithmetic
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
    # moves of entries
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
    # copies and casts
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
# calls that read only the shape or the dtype of their second argument
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
# functions and methods that do what SINGLE_STEP_LAYERS do
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


def listed_name(node: fx.Node) -> str:
    """The name under which the sets above may list a call: of a method, an attribute, or a function
    of torch itself. "" for layers and for other functions.
    """
    if node.target is getattr:
        return str(node.args[1])
    if node.op == "call_method":
        return str(node.target).rstrip("_")
    if node.op == "call_function":
        return NAMES_OF_FUNCTIONS.get(node.target, "")
    return ""
