"""Python processes that start at once: forked from a parent that has imported everything and does
nothing else.

A child finds no variable, file, thread or random state of another, as the parent runs nothing but
imports. A child that was asked for with `own_parent` gets such a parent for its own children. Linux
alone; `MIA_NB_FORK=0` turns it off.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

IMPORTED = (
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
    *(
        f"mia_nb.{room}"
        for room in (
            "accounting",
            "attacks",
            "auditing",
            "data",
            "metrics",
            "models",
            "plots",
            "querying",
        )
    ),
    "mia_nb.training",
    "mia_nb.widgets",
    "mia_nb.workshop",
)
# what libraries read once, when they are imported: a parent with other values cannot serve
READ_ON_IMPORT = ("CUDA", "KMP_", "LD_", "MKL_", "NUMEXPR", "OMP_", "OPENBLAS", "PYTHON", "TORCH")
# children see this package, whatever lies in their working directory
PLACE = Path(__file__).resolve().parents[1]
PATIENCE = 120.0  # seconds for the parent's imports; a busy machine takes 30
LONGEST = 2**20  # bytes of a message

own_parent: Parent | None = None  # of this process's children, where it was forked with one
_parents: dict[tuple, Parent] = {}
_lock = threading.Lock()


class Parent:
    """The process that forks, seen from the one that asks it to. RuntimeError once it is gone."""

    def __init__(self, channel: socket.socket, process: subprocess.Popen | None = None):
        self.channel = channel
        self.process = process
        self.lock = threading.Lock()
        channel.settimeout(PATIENCE)

    def request(self, request: dict, files: tuple[int, ...] = ()) -> Any:
        """Its answer to one request: {"call": ...} a process number, {"poll": number} an exit
        status; None for neither.
        """
        with self.lock:
            try:
                socket.send_fds(self.channel, [json.dumps(request).encode()], files)
                return json.loads(self.channel.recv(LONGEST))
            except (OSError, ValueError) as error:
                self.close()  # an answer that comes too late would be taken for the next one
                raise RuntimeError(
                    f"the process that starts others is gone ({error or 'no answer'})"
                ) from None

    def start(self, call: str, env: dict[str, str], files: tuple[int, ...] = (), **more) -> Process:
        """A child that calls `module:function`.

        files: its standard input, output and error; () for the parent's. more: argv and path, as in
        `sys`, and own_parent.
        """
        pid = self.request({"call": call, "env": env, "cwd": os.getcwd(), **more}, files)
        if pid is None:
            raise RuntimeError("forking is not safe there")
        return Process(self, pid)

    def close(self) -> None:
        """End it, and with it its children: they notice within a second."""
        self.channel.close()
        if self.process:
            self.process.kill()
            self.process.wait()


class Process:
    """A child, with what subprocess.Popen has."""

    stdin = stdout = stderr = None

    def __init__(self, parent: Parent, pid: int):
        self.parent, self.pid, self.returncode = parent, pid, None

    def poll(self) -> int | None:
        """The exit status, None while it runs; that of a killed process once its parent is gone."""
        if self.returncode is None:
            try:
                self.returncode = self.parent.request({"poll": self.pid})
            except RuntimeError:
                self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def possible() -> bool:
    """Whether processes are forked here."""
    return hasattr(os, "pidfd_open") and os.environ.get("MIA_NB_FORK", "1") != "0"


def parent_for(env: dict[str, str]) -> Parent:
    """The living parent of children in this environment, started where there is none."""
    read = sorted((name, value) for name, value in env.items() if name.startswith(READ_ON_IMPORT))
    key = (os.getpid(), tuple(read))
    with _lock:
        if key in _parents and _parents[key].process.poll() is not None:
            _parents.pop(key).close()
        if key not in _parents:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [
                sys.executable,
                "-c",
                f"from mia_nb._forking import main; main({theirs.fileno()}, {os.getpid()})",
            ]
            # in a session of its own: Ctrl-C is for the notebook that runs
            process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env=env,
                cwd=PLACE,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            theirs.close()
            _parents[key] = Parent(ours, process)
        return _parents[key]


@atexit.register
def close() -> None:
    """End the parents that this process started."""
    with _lock:
        for key in list(_parents):
            parent = _parents.pop(key)
            if key[0] == os.getpid():
                parent.close()


def popen(call: str, env: dict[str, str], stderr: IO) -> Process | subprocess.Popen:
    """A process that calls `module:function`, with pipes of text; forked where this process has a
    parent for that.
    """
    if own_parent:
        (his_in, our_out), (our_in, his_out) = os.pipe(), os.pipe()
        try:
            files = (his_in, his_out, stderr.fileno())
            child = own_parent.start(
                call, env, files, path=[place or os.getcwd() for place in sys.path]
            )
            child.stdin = open(our_out, "w")  # noqa: SIM115
            child.stdout = open(our_in)  # noqa: SIM115
            return child
        except RuntimeError:
            os.close(our_out)
            os.close(our_in)
        finally:
            os.close(his_in)
            os.close(his_out)
    command = [sys.executable, "-c", f"from {call.replace(':', ' import ')} as call; call()"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env, text=True
    )


def main(channel: int, asker: int) -> None:
    """The parent: import, then fork whenever asked to, until nobody can ask any more.

    asker: number of the process that started this one. It may end while this one imports; what
    takes its place as parent is then somebody else, and nobody is left to serve.
    """
    channel = socket.socket(fileno=channel)
    before = dict(os.environ)
    for name in IMPORTED:
        with contextlib.suppress(ImportError):  # who needs it will say what is missing
            importlib.import_module(name)
    sys.path.remove("")  # that was for this package
    torch = sys.modules["torch"]
    # the first optimiser makes torch import half of itself
    torch.optim.SGD([torch.zeros(1)], lr=1.0)
    set_by_imports = {
        name: value for name, value in os.environ.items() if before.get(name) != value
    }
    gc.collect()
    gc.freeze()  # children share these pages until they write to them
    _end_with(asker)
    begin(serve(channel, asker), set_by_imports)


def _end_with(parent: int) -> None:
    """End this process if that one is no longer its parent."""
    if os.getppid() != parent:
        os._exit(1)


def serve(channel: socket.socket, *watched: int) -> dict:
    """Answer requests until a watched process or the other end of the channel is gone; returns in
    every child alone.
    """
    try:
        ends = [os.pidfd_open(pid) for pid in watched]
    except ProcessLookupError:  # it ended just now
        os._exit(1)
    here = os.getpid()
    heard = [channel, *ends]
    while not set(ends) & set(ready := select.select(heard, [], [])[0]):
        message, files, *_ = socket.recv_fds(ready[0], LONGEST, 3)
        if not message:
            heard.remove(channel)
            continue
        request = json.loads(message)
        answer = None
        if "poll" in request:
            answer = _exit_status(request["poll"])
        elif (
            threading.active_count() == 1
        ):  # a lock that another thread holds would stay closed in the child
            answer = os.fork()
            if answer == 0:
                for end in ends:
                    os.close(end)
                channel.close()
                return request | {"files": files, "parent": here}
        for file in files:
            os.close(file)
        with contextlib.suppress(OSError):
            channel.send(json.dumps(answer).encode())
    # as the one child that this was for
    os._exit(0 if len(watched) == 1 or _exit_status(watched[1]) == 0 else 1)


def _exit_status(pid: int) -> int | None:
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(status) if ended else None


def begin(request: dict, set_by_imports: dict[str, str]) -> None:
    """From here on a process of its own: session, folder, environment and random numbers; then what
    was asked for.
    """
    global own_parent
    import numpy as np
    import torch

    if request.get("own_parent"):
        os.setsid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        above = request["parent"]
        _end_with(above)
        child = os.fork()
        if child:
            theirs.close()
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the child
            return begin(serve(ours, above, child), set_by_imports)
        ours.close()
        own_parent = Parent(theirs)
    for number, file in enumerate(request["files"]):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"] | set_by_imports)
    sys.path[:], sys.argv = request.get("path", sys.path), request.get("argv", sys.argv)
    np.random.seed()  # noqa: NPY002  not the parent's; Python's `random` sees to itself
    torch.seed()
    module, _, name = request["call"].partition(":")
    getattr(importlib.import_module(module), name)()
