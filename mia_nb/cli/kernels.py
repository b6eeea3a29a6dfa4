"""The kernels of a run: this interpreter in batch mode, forked from one process that has everything
imported, so that only the first notebook waits for it.

`ForkProvisioner` is a Jupyter kernel provisioner (entry point `mia-nb-fork`). Where forking is not
possible a kernel starts the ordinary way.
"""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.metadata import entry_points

from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.provisioning import LocalProvisioner

from mia_nb import _forking

FORKING = "mia-nb-fork"
INSTALLED = entry_points(group="jupyter_client.kernel_provisioners", name=FORKING)


class BatchKernels(AsyncKernelManager):
    """Kernels of this interpreter, whatever kernel specs lie around, in batch mode and without
    inherited warning filters.
    """

    # a kernel's own log warns of TCP at each start and complains when interrupted, and tornado's
    # says at times that a kernel which ends flushed a closed socket; errors of cells go to neither
    kernel_spec = KernelSpec(
        argv=[
            sys.executable,
            "-m",
            "ipykernel_launcher",
            "-f",
            "{connection_file}",
            "--log-level=CRITICAL",
            "--IPKernelApp.logging_config={'loggers': {'tornado.general': {'level': 'CRITICAL'}}}",
        ],
        display_name="Python 3 (ipykernel)",
        language="python",
        env={"MIA_NB_MODE": "batch", "PYTHONWARNINGS": "", "JUPYTER_PLATFORM_DIRS": "1"},
        metadata={"kernel_provisioner": {"provisioner_name": FORKING}} if INSTALLED else {},
    )


class ForkProvisioner(LocalProvisioner):
    """Starts kernels by forking, or as Jupyter does."""

    async def launch_kernel(self, cmd: list[str], **options) -> dict:
        """Start the kernel of this command; returns how to reach it."""
        streams = {options.get(name) for name in ("stdin", "stdout", "stderr")}
        if not _forking.possible() or streams != {None} or "ipykernel_launcher" not in cmd:
            return await super().launch_kernel(cmd, **options)
        argv = cmd[cmd.index("ipykernel_launcher") :]
        env = options["env"]
        try:
            self.process = await asyncio.to_thread(
                lambda: _forking.parent_for(env).start(
                    "mia_nb.cli.kernels:main", env, argv=argv, own_parent=True
                )
            )
        except RuntimeError:
            return await super().launch_kernel(cmd, **options)
        self.pid = self.pgid = self.process.pid
        return self.connection_info


def main() -> None:
    """What a forked kernel does; it ends when its parent is gone."""
    from ipykernel import kernelapp

    kernelapp.launch_new_instance(parent_handle=os.getppid())
