"""The kernels of a run: this interpreter in batch mode, forked by multiprocessing's fork server. It
imports everything once (`preloaded`), so only the first notebook waits for imports.

`ForkProvisioner` is a Jupyter kernel provisioner (entry point `mia-nb-fork`). Outside of Linux, and
with `MIA_NB_FORK=0`, kernels are not forked but start as Jupyter starts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from importlib.metadata import entry_points
from multiprocessing import forkserver, resource_tracker
from typing import Any

from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.provisioning import LocalProvisioner

from mia_nb.cli.notebooks import PACKAGE

FORKING = "mia-nb-fork"
INSTALLED = entry_points(group="jupyter_client.kernel_provisioners", name=FORKING)
LAUNCHER = "ipykernel_launcher"
# options that silence two logs, neither of which gets errors of cells: the kernel's own warns of
# TCP at each start and complains when interrupted, tornado's may warn of a closed socket at the end
QUIET = [
    "--log-level=CRITICAL",
    "--IPKernelApp.logging_config={'loggers': {'tornado.general': {'level': 'CRITICAL'}}}",
]
MODULES = (  # imported once for all kernels
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "IPython.display",
    "anywidget",
    "ipywidgets",
    "nbformat",
    "pandas",
    "plotly.graph_objects",
    "plotly.io._renderers",
    "scipy.stats",
    "sklearn.datasets",
    "sklearn.linear_model",
    "torch",
    "mia_nb.accounting",
    "mia_nb.attacks",
    "mia_nb.auditing",
    "mia_nb.data",
    "mia_nb.metrics",
    "mia_nb.models",
    "mia_nb.plots",
    "mia_nb.querying",
    "mia_nb.training",
    "mia_nb.widgets",
    "mia_nb.workshop",
)


class BatchKernels(AsyncKernelManager):
    """Kernels of this interpreter, whichever kernel specs are installed, in batch mode and without
    inherited warning filters.
    """

    kernel_spec = KernelSpec(
        argv=[
            sys.executable,
            "-m",
            LAUNCHER,
            "-f",
            "{connection_file}",
            *QUIET,
        ],
        display_name="Python 3 (ipykernel)",
        language="python",
        env={"MIA_NB_MODE": "batch", "PYTHONWARNINGS": "", "JUPYTER_PLATFORM_DIRS": "1"},
        metadata={"kernel_provisioner": {"provisioner_name": FORKING}} if INSTALLED else {},
    )


class ForkProvisioner(LocalProvisioner):
    """Starts kernels by forking, or as Jupyter does."""

    async def launch_kernel(self, cmd: list[str], **options: Any) -> dict:
        """Start the kernel of this command; returns its connection info."""
        if not _is_forked():
            return await super().launch_kernel(cmd, **options)
        argv = cmd[cmd.index(LAUNCHER) :]
        try:
            self.process = await asyncio.to_thread(ForkedKernel, argv, options["env"])
        except (OSError, EOFError):  # the fork server died, out of memory for example
            return await super().launch_kernel(cmd, **options)
        self.pid = self.pgid = self.process.pid
        return self.connection_info


class ForkedKernel:
    """A kernel's process, with the methods of subprocess.Popen that a provisioner uses."""

    stdin = stdout = stderr = None

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        _start_fork_server()
        context = multiprocessing.get_context("forkserver")
        # a daemon: when this process ends, it ends the kernel and does not wait for it
        self._process = context.Process(target=_run_kernel, args=(argv, env), daemon=True)
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit status; None while the kernel runs."""
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()


def _is_forked() -> bool:
    """Whether kernels are forked here. They are not if warnings are filtered (`python -W`,
    PYTHONWARNINGS): the fork server would inherit the filters, which may turn warnings of imported
    libraries into errors.
    """
    wanted = os.environ.get("MIA_NB_FORK", "1") != "0"
    return wanted and sys.platform == "linux" and not sys.warnoptions


def _start_fork_server() -> None:
    """Start the fork server if none runs, outside of the working directory, where a file may have
    the name of a library. Ctrl-C is held back from it until it can ignore it (`preloaded`).
    """
    forkserver.set_forkserver_preload(["mia_nb.cli.preloaded"])
    resource_tracker.ensure_running()  # lets signals through when it starts
    let_through = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with contextlib.chdir(PACKAGE.parent):
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, let_through)


def _run_kernel(argv: list[str], env: dict[str, str]) -> None:
    """Run a kernel in a forked process as in a new one. It ends with the process that asked for it,
    or with the fork server.
    """
    import numpy as np
    import torch
    from ipykernel import kernelapp

    from mia_nb.cli import preloaded

    os.setsid()  # Ctrl-C is for the process that runs the notebook
    threading.Thread(target=_end_with_parent, name="mia-nb-parent", daemon=True).start()
    # let notebooks start processes as any other process does
    multiprocessing.set_start_method(None, force=True)
    multiprocessing.current_process().daemon = False
    os.environ.clear()
    os.environ.update(env | preloaded.SET_BY_IMPORTS)
    sys.argv = argv
    sys.path[:] = preloaded.PATH
    np.random.seed()  # noqa: NPY002  else all forks draw the same; Python's `random` reseeds itself
    torch.seed()
    kernelapp.launch_new_instance(parent_handle=os.getppid())
    os._exit(0)  # multiprocessing would flush streams that the kernel has closed


def _end_with_parent() -> None:
    """Wait for the parent process to end, and end this one."""
    multiprocessing.parent_process().join()
    os._exit(1)
