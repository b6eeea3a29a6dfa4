"""Importing this module imports everything that notebooks need. Only the process that forks kernels
imports it, before it forks the first, so that kernels start with these modules loaded.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys

# Ctrl-C reaches all processes of a terminal. It is for the one that runs the notebooks: here it
# would end seconds of imports in a traceback. It was held back since this process started.
HEARD = signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

from mia_nb.cli.kernels import MODULES  # noqa: E402  nor may it end this import

PATH = [folder for folder in sys.path if folder]  # sys.path of every kernel, not its parent's
ENVIRONMENT_BEFORE = dict(os.environ)

for name in MODULES:
    with contextlib.suppress(ImportError):  # the notebook that needs it reports what is missing
        importlib.import_module(name)
torch = sys.modules["torch"]
# the first optimiser makes torch import many more of its modules
torch.optim.SGD([torch.zeros(1)], lr=1.0)
SET_BY_IMPORTS = {
    name: value for name, value in os.environ.items() if ENVIRONMENT_BEFORE.get(name) != value
}
gc.collect()
gc.freeze()  # kernels share these pages until they write to them
signal.signal(signal.SIGINT, HEARD)  # kernels are interrupted by it
