"""Kernels that are forked from one process which has everything imported: a notebook's imports then cost next to nothing.

A Jupyter kernel provisioner (entry point `mia-nb-fork`). The parent of the kernels runs nothing but imports, so a kernel finds
no variable, file, thread or random state of another. Where forking is not safe (anything but Linux, a parent with threads,
`MIA_NB_FORK=0`) a kernel starts the ordinary way.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

from jupyter_client.provisioning import LocalProvisioner

PATIENCE = 120.0  # seconds for the parent's imports; a busy machine takes 30
IMPORTED = (
    "ipykernel.kernelapp", "ipykernel.ipkernel", "IPython.display", "anywidget", "ipywidgets", "pandas", "plotly.graph_objects",
    "plotly.io", "scipy.stats", "torch", "mia_nb.accounting", "mia_nb.attacks", "mia_nb.auditing", "mia_nb.data",
    "mia_nb.metrics", "mia_nb.models", "mia_nb.plots", "mia_nb.query", "mia_nb.training", "mia_nb.widgets", "mia_nb.workshop",
)  # fmt: skip
# what libraries read once, when they are imported: a parent with other values cannot serve
READ_ON_IMPORT = ("CUDA", "KMP_", "LD_", "MIA_NB", "MKL_", "NUMEXPR", "OMP_", "OPENBLAS", "PYTHON", "TORCH")


class Parent:
    """The process that imports and forks, seen from the one that runs notebooks. RuntimeError once it is gone."""

    def __init__(self):
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "mia_nb.cli.kernels", str(theirs.fileno())]
        # in a session of its own: Ctrl-C is for the notebook that runs
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()
        ours.settimeout(PATIENCE)
        self.stream, self.lock = ours.makefile("rw", encoding="utf-8"), threading.Lock()
        ours.close()  # the stream holds it

    def ask(self, **request) -> Any:
        """The parent's answer to {"start": ...} (a process number) or {"poll": number} (an exit status or None)."""
        with self.lock:
            try:
                print(json.dumps(request), file=self.stream, flush=True)
                return json.loads(self.stream.readline())
            except (OSError, ValueError) as error:
                raise RuntimeError(f"the process that starts kernels is gone ({error or 'no answer'})") from None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.stream.close()
        self.process.kill()  # kernels notice within a second
        self.process.wait()


class Forked:
    """A forked kernel in the clothes of subprocess.Popen, as LocalProvisioner wants it."""

    stdin = stdout = stderr = None

    def __init__(self, parent: Parent, pid: int):
        self.parent, self.pid, self.returncode = parent, pid, None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                self.returncode = self.parent.ask(poll=self.pid)
            except RuntimeError:
                self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self) -> int:
        while self.poll() is None:
            threading.Event().wait(0.02)
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkProvisioner(LocalProvisioner):
    """Starts kernels by forking where that is safe, else as Jupyter does."""

    async def launch_kernel(self, cmd: list[str], **options) -> dict:
        streams = {options.get(name) for name in ("stdin", "stdout", "stderr")}
        if not possible() or streams != {None} or "ipykernel_launcher" not in cmd:
            return await super().launch_kernel(cmd, **options)
        start = {"argv": cmd[cmd.index("ipykernel_launcher") :], "cwd": options.get("cwd") or os.getcwd()}
        try:
            parent = await asyncio.to_thread(_parent, options["env"])
            pid = await asyncio.to_thread(parent.ask, start=start | {"env": options["env"]})
        except RuntimeError:
            pid = None
        if not isinstance(pid, int):
            return await super().launch_kernel(cmd, **options)
        self.process, self.pid, self.pgid = Forked(parent, pid), pid, pid
        return self.connection_info


def possible() -> bool:
    """Whether kernels are forked here."""
    return sys.platform == "linux" and os.environ.get("MIA_NB_FORK", "1") != "0"


def close() -> None:
    """End the parent, and with it the kernels that are left."""
    with _lock:
        for key in list(_parents):
            _parents.pop(key).close()


_parents: dict[tuple, Parent] = {}
_lock = threading.Lock()
atexit.register(close)


def _parent(env: dict[str, str]) -> Parent:
    """The living parent of kernels in this environment, started where there is none."""
    read = sorted((name, value) for name, value in env.items() if name.startswith(READ_ON_IMPORT))
    key = (os.getpid(), os.getcwd(), tuple(read))
    with _lock:
        if key in _parents and _parents[key].process.poll() is not None:
            _parents.pop(key)
        if key not in _parents:
            _parents[key] = Parent()
        return _parents[key]


def main() -> None:
    """The parent: import, then fork a kernel whenever asked to, until the other end of the socket is closed."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # ipykernel reads it once: a kernel ends when this process does
    before, place = dict(os.environ), sys.path[0]
    for name in IMPORTED:
        with contextlib.suppress(ImportError):  # its own notebook will say what is missing
            importlib.import_module(name)
    sys.path.remove(place)  # the working directory, which a kernel puts in its place itself
    set_by_imports = {name: value for name, value in os.environ.items() if before.get(name) != value}
    gc.collect()
    gc.freeze()  # children share these pages until they write to them
    start = serve(channel)
    if start:
        become_kernel(start | {"env": start["env"] | set_by_imports})


def serve(channel: socket.socket) -> dict | None:
    """Answer requests; returns in every forked child what it is to start, and None in the parent at the end."""
    stream = channel.makefile("rw", encoding="utf-8")
    channel.close()  # the stream holds it
    for line in stream:
        request, answer = json.loads(line), None
        if "poll" in request:
            answer = _exit_status(request["poll"])
        elif threading.active_count() == 1:  # a lock that another thread holds would stay closed in the child
            answer = os.fork()
            if answer == 0:
                stream.close()
                return request["start"]
        print(json.dumps(answer), file=stream, flush=True)
    return None


def _exit_status(pid: int) -> int | None:
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(status) if ended else None


def become_kernel(start: dict) -> None:
    """From here on an ordinary kernel: its own session, folder, environment and random numbers."""
    import numpy as np
    import torch
    from ipykernel import kernelapp

    os.setsid()
    os.chdir(start["cwd"])
    os.environ.clear()
    os.environ.update(start["env"] | {"JPY_PARENT_PID": str(os.getppid())})
    sys.argv = start["argv"]
    # random numbers of its own, as in a fresh process; Python's `random` sees to itself
    np.random.seed()  # noqa: NPY002
    torch.seed()
    kernelapp.launch_new_instance()


if __name__ == "__main__":
    main()
