"""The explorers as a page without code, served by Voila on this machine only."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from jupyter_core.paths import jupyter_path

from mia_nb.checks import refuse

PAGE = "from mia_nb import widgets\nwidgets.setup({{}})\nwidgets.explore(widgets.sources({!r}))"
GRACE = 10  # seconds that Voila has for ending its kernels
ARGUMENTS = (
    "--Voila.ip=127.0.0.1",
    "--Voila.log_level=ERROR",
    "--VoilaConfiguration.show_tracebacks=False",
    # seconds after which a page that nobody looks at loses its kernel
    "--MappingKernelManager.cull_idle_timeout=600",
    "--MappingKernelManager.cull_interval=60",
)


def serve(args) -> int:
    """`mia-nb explore`: serve the explorers at 127.0.0.1 until interrupted (Ctrl-C, SIGTERM);
    Voila's exit status.

    Every visit starts a kernel of its own. Raises ValueError where Voila is not installed.
    """
    from ipykernel.kernelspec import write_kernel_spec
    from nbformat import v4

    refuse(
        {
            "voila is not installed; add it with: pip install 'mia_nb[dashboard]'": (
                importlib.util.find_spec("voila") is None
            ),
            f"port {args.port} is taken; stop what listens there, or choose another with --port": (
                _taken(args.port)
            ),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "explore.ipynb")
        cell = v4.new_code_cell(PAGE.format(os.path.abspath(args.results)))
        page.write_text(v4.writes(v4.new_notebook(cells=[cell])), encoding="utf-8")
        _without_network(Path(folder))
        # as long as the interval: of a longer one, Jupyter's own, tornado warns
        Path(folder, "voila.json").write_text(
            '{"Voila": {"tornado_settings": {"ws_ping_timeout": 30000}}}', encoding="utf-8"
        )
        # its own log warns of TCP at each visit; errors of cells are told by Voila
        write_kernel_spec(Path(folder, "kernels", "python3"), None, ["--log-level=ERROR"])
        environment = (
            os.environ
            | {
                "MIA_NB_MODE": "live",
                "JUPYTER_PLATFORM_DIRS": "1",
            }
            | {
                name: os.pathsep.join(filter(None, [folder, os.environ.get(name)]))
                for name in ("JUPYTER_PATH", "JUPYTER_CONFIG_PATH")
            }
        )
        options = [*ARGUMENTS, f"--port={args.port}", *["--no-browser"] * args.no_browser]
        server = subprocess.Popen(
            [sys.executable, "-m", "voila", str(page), *options],
            env=environment,
            # in a session of its own: a key pressed here reaches it once, from here
            start_new_session=True,
        )

        def stop(*_):
            # interrupted, Voila ends its kernels; while it starts it has none
            server.send_signal(signal.SIGINT if _taken(args.port) else signal.SIGTERM)
            late = threading.Timer(GRACE, server.terminate)  # kernels end with their parent
            late.daemon = True
            late.start()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        while server.poll() is None and not _taken(args.port):
            time.sleep(0.1)
        if server.poll() is None:  # before it listens, a browser is refused
            print(f"http://127.0.0.1:{args.port}/ (stop with Ctrl-C)", flush=True)
        return 0 if server.wait() == -signal.SIGTERM else server.returncode


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _without_network(folder: Path) -> None:
    """Voila's page asks a content network for icons that nothing here shows: put a page without
    these links before it.
    """
    places = map(Path, jupyter_path("voila", "templates", "lab", "index.html.j2"))
    if page := next(filter(Path.is_file, places), None):
        own = folder / "voila" / "templates" / "lab" / page.name
        own.parent.mkdir(parents=True)
        own.write_text(
            re.sub(r'<link[^>]*"https://[^>]*>', "", page.read_text(encoding="utf-8")),
            encoding="utf-8",
        )
