"""The one place that imports torchvision, and only when asked.

A CUDA build of torchvision beside a CPU build of torch cannot load its compiled operators, and then `import torchvision` itself
fails while it describes operators that are not there. Data sets and transforms need none of them, so their schemas are
declared and the import is tried once more. Where torchvision imports cleanly nothing is declared.
"""

from __future__ import annotations

import torch

_declared = []  # a Library takes its schemas along when it is collected


def datasets():
    """The module torchvision.datasets."""
    try:
        import torchvision.datasets as module
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
        import torchvision.datasets as module
    return module
