"""The kernels of a run: forked from one process that has everything imported, so that only the first notebook waits for it.

A Jupyter kernel provisioner (entry point `mia-nb-fork`). Where forking is not possible a kernel starts the ordinary way.
"""

from __future__ import annotations

import asyncio
import os

from jupyter_client.provisioning import LocalProvisioner

from mia_nb import _forking


class ForkProvisioner(LocalProvisioner):
    """Starts kernels by forking, or as Jupyter does."""

    async def launch_kernel(self, cmd: list[str], **options) -> dict:
        """Start the kernel of this command; returns how to reach it."""
        streams = {options.get(name) for name in ("stdin", "stdout", "stderr")}
        if not _forking.possible() or streams != {None} or "ipykernel_launcher" not in cmd:
            return await super().launch_kernel(cmd, **options)
        argv = cmd[cmd.index("ipykernel_launcher") :]
        try:
            self.process = await asyncio.to_thread(_fork, argv, options["env"])
        except RuntimeError:
            return await super().launch_kernel(cmd, **options)
        self.pid = self.pgid = self.process.pid
        return self.connection_info


def _fork(argv: list[str], env: dict[str, str]) -> _forking.Process:
    return _forking.parent_for(env).start(
        "mia_nb.cli.kernels:main", env, argv=argv, own_parent=True
    )


def main() -> None:
    """What a forked kernel does; it ends when its parent is gone."""
    from ipykernel import kernelapp

    kernelapp.launch_new_instance(parent_handle=os.getppid())
