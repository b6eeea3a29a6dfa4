"""The only import of torchvision, done when it is needed.

A CUDA build of torchvision beside a CPU build of torch cannot load its compiled operators, and then
`import torchvision` fails when it describes the missing operators. Data sets, transforms and the
classifiers of `torchvision.models` need none of them, so their schemas are declared and the import
is tried again. If torchvision imports cleanly, nothing is declared.
"""

from __future__ import annotations

import importlib

import torch

_declared = []  # kept alive, as a Library removes its schemas when it is collected


def module(name: str):
    """Import the module of this name, which may be part of torchvision or import it."""
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
        return importlib.import_module(name)


def datasets():
    """The module torchvision.datasets."""
    return module("torchvision.datasets")
