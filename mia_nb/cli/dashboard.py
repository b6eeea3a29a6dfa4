"""The explorers as a page without code, served by Voila on this machine only."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from jupyter_core.paths import jupyter_path

from mia_nb.checks import refuse
from mia_nb.cli.notebooks import find_notebook, folders

IDLE = 600  # seconds after which a page that nobody looks at loses its kernel
ARGUMENTS = (
    "--Voila.ip=127.0.0.1",
    "--VoilaConfiguration.show_tracebacks=False",
    f"--MappingKernelManager.cull_idle_timeout={IDLE}",
    "--MappingKernelManager.cull_interval=60",
)


def serve(args) -> int:
    """`mia-nb explore`: serve notebook 08_explore at 127.0.0.1 until interrupted; Voila's exit
    status.

    Every visit starts a kernel of its own. Raises ValueError where Voila is not installed or
    nothing is stored.
    """
    import nbformat

    results, port = args.results, args.port
    with socket.socket() as probe:
        taken = probe.connect_ex(("127.0.0.1", port)) == 0
    refuse(
        {
            "voila is not installed; add it with: pip install 'mia_nb[dashboard]'": (
                importlib.util.find_spec("voila") is None
            ),
            f"nothing to explore in {results} yet; start with: mia-nb run all --preset demo": (
                not any(Path(results).glob("signals-*"))
            ),
            f"port {port} is taken; stop what listens there, or choose another with --port": taken,
        }
    )
    notebook = nbformat.read(find_notebook("08_explore", folders(args.notebooks)), as_version=4)
    cells = notebook.cells
    after = (
        next(i for i, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", [])) + 1
    )
    given = f'results, mode = {str(Path(results).absolute())!r}, "live"'
    notebook.cells = [*cells[:after], nbformat.v4.new_code_cell(given), *cells[after:]]
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "explore.ipynb")
        nbformat.write(notebook, page)
        _without_network(Path(folder))
        options = [*ARGUMENTS, f"--port={port}", *["--no-browser"] * args.no_browser]
        path = os.pathsep.join(filter(None, [folder, os.environ.get("JUPYTER_PATH")]))
        environment = os.environ | {
            "MIA_NB_MODE": "live",
            "JUPYTER_PLATFORM_DIRS": "1",
            "JUPYTER_PATH": path,
        }
        print(f"http://127.0.0.1:{port}/ (stop with Ctrl-C)", flush=True)
        return subprocess.run(
            [sys.executable, "-m", "voila", str(page), *options], env=environment
        ).returncode


def _without_network(folder: Path) -> None:
    """Voila's page asks a content network for icons that nothing here shows: put a page without
    these links before it.
    """
    for path in map(Path, jupyter_path("voila", "templates", "lab", "index.html.j2")):
        if path.is_file():
            own = folder / "voila" / "templates" / "lab" / path.name
            own.parent.mkdir(parents=True)
            own.write_text(
                re.sub(r'<link[^>]*"https://[^>]*>', "", path.read_text(encoding="utf-8")),
                encoding="utf-8",
            )
            return
