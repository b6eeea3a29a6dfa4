"""What the process that forks kernels does before the first: importing this module imports all that
notebooks need. Nothing else imports it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys

from mia_nb.cli.kernels import MODULES

PATH = [place for place in sys.path if place]  # of a kernel, whatever that of its parent is
_before = dict(os.environ)

for name in MODULES:
    with contextlib.suppress(ImportError):  # who needs it will say what is missing
        importlib.import_module(name)
torch = sys.modules["torch"]
# the first optimiser makes torch import half of itself
torch.optim.SGD([torch.zeros(1)], lr=1.0)
SET_BY_IMPORTS = {name: value for name, value in os.environ.items() if _before.get(name) != value}
gc.collect()
gc.freeze()  # kernels share these pages until they write to them
