"""Notebook 08, the explorers, as a page without code: rendered by Voila in Jupyter's own server,
for this machine only and behind a token.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import re
import secrets
import signal
import sys
import tempfile
import warnings
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from mia_nb.cli import notebooks
from mia_nb.cli.say import say

if TYPE_CHECKING:
    from traitlets.config import Config

NOTEBOOK = "08_explore.ipynb"
ADDRESS = f"/voila/render/{NOTEBOOK}"
GRACE = 5  # seconds that an unfinished page has to end
# messages that a page may send to its kernel: to move controls, not to execute code
MESSAGES = [
    "comm_open",
    "comm_close",
    "comm_msg",
    "comm_info_request",
    "kernel_info_request",
    "shutdown_request",
]


def serve(args: Namespace) -> int:
    """`mia-nb explore`: serve the explorers at 127.0.0.1 until interrupted (Ctrl-C, SIGTERM).

    Jupyter's own server asks for a token, which is part of the address that is printed and opened;
    it refuses names of other machines, and ends its kernels when it ends. Every visit with the
    token starts a kernel. If the port is taken, a free one near it is used. Raises ValueError if
    Voila is not installed.
    """
    if importlib.util.find_spec("voila") is None:
        raise ValueError("voila is not installed; add it with: pip install 'mia_nb[dashboard]'")
    results = os.path.abspath(args.results)
    # a stop by SIGTERM while it starts leaves this block, which removes the folder
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with tempfile.TemporaryDirectory() as folder:
        _prepare(Path(folder), results)
        # Voila reads a configuration, which may be Python, from the folder that it starts in; the
        # folder is left before it is removed, as Windows cannot remove a folder in use
        with contextlib.chdir(folder):
            _serve(Path(folder), args.port, open_browser=not args.no_browser)
    return 0


def _prepare(folder: Path, results: str) -> None:
    """Write the notebook for this results folder, its kernel and the page around it into a folder,
    and set the environment of server and kernels.
    """
    import nbformat
    from ipykernel.kernelspec import write_kernel_spec
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    from mia_nb.cli.kernels import QUIET

    original = notebooks.find_notebook(Path(NOTEBOOK).stem, notebooks.folders())
    notebook = parameterize_notebook(
        load_notebook_node(str(original)),
        {"results": results},
        kernel_name="python3",
        language="python",
    )
    # the explorers come first, so that they fit a screen; the text is below them
    notebook.cells.sort(key=lambda cell: cell.cell_type != "code")
    nbformat.write(notebook, folder / NOTEBOOK)
    write_kernel_spec(folder / "kernels" / "python3", None, QUIET)
    _put_page(folder)
    os.environ["MIA_NB_MODE"] = "live"
    os.environ["JUPYTER_PLATFORM_DIRS"] = "1"
    places = [str(folder), os.environ.get("JUPYTER_PATH")]
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, places))


def _serve(folder: Path, port: int, open_browser: bool) -> None:
    from jupyter_server.serverapp import ServerApp

    class Server(ServerApp):
        def load_config_file(self, suppress_errors: bool = True) -> None:
            """Do nothing: the user's settings for other servers must not open this one."""

    token = secrets.token_hex(24)
    # a warning about Voila's static files, which are behind the token like everything else
    warnings.filterwarnings("ignore", "Extension endpoints")
    app = Server.instance(config=_settings(folder, port, open_browser, token))
    app.initialize([], find_extensions=False)

    def announce() -> None:
        if port not in (0, app.port):
            say(f"port {port} is taken: {app.port} is used instead")
        say(f"http://127.0.0.1:{app.port}{ADDRESS}?token={token} (stop with Ctrl-C)")

    def stop(*_: object) -> None:
        logging.disable()  # an unfinished page would log errors
        app.stop(from_signal=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    app.io_loop.add_callback(announce)  # once it listens
    app.start()
    loop = app.io_loop.asyncio_loop
    # Python would wait for the threads of a page that is still being made
    unfinished = asyncio.all_tasks(loop)
    for task in unfinished:
        task.cancel()
    if unfinished:
        loop.run_until_complete(asyncio.wait(unfinished, timeout=GRACE))


def _settings(folder: Path, port: int, open_browser: bool, token: str) -> Config:
    """Settings of a server for this machine only, which shows this notebook and nothing else."""
    from traitlets.config import Config

    server = {
        "ip": "127.0.0.1",
        "port": port,
        "open_browser": open_browser,
        "root_dir": str(folder),
        "default_url": ADDRESS,
        "jpserver_extensions": {"voila.server_extension": True},
        "allow_remote_access": False,
        "allow_unauthenticated_access": False,
        "terminals_enabled": False,
        "allow_root": True,
        "log_level": "ERROR",
        # MathJax would come from a content network, and no page here has formulas
        "tornado_settings": {"mathjax_url": None, "mathjax_config": None},
    }
    kernels = {
        # seconds of idleness after which a kernel ends that no page is connected to
        "cull_idle_timeout": 600,
        "cull_interval": 60,
        "allowed_message_types": MESSAGES,
    }
    return Config(
        ServerApp=server,
        IdentityProvider={"token": token},
        MappingKernelManager=kernels,
        KernelSpecManager={"kernel_dirs": [str(folder / "kernels")], "ensure_native_kernel": False},
        VoilaConfiguration={"show_tracebacks": False},
    )


def _put_page(folder: Path) -> None:
    """Write Voila's page into a folder without its links to a content network, which load icons
    that are not used.
    """
    from jupyter_core.paths import jupyter_path

    pages = map(Path, jupyter_path("voila", "templates", "lab", "index.html.j2"))
    page = next(filter(Path.is_file, pages), None)
    if page is None:
        return  # Voila then serves its own page
    template = re.sub(r'<link[^>]*"https://[^>]*>', "", page.read_text(encoding="utf-8"))
    copy = folder / "voila" / "templates" / "lab" / page.name
    copy.parent.mkdir(parents=True)
    copy.write_text(template, encoding="utf-8")
