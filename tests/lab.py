"""A private JupyterLab and a watched Chromium for browser tests."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

TOKEN = "test"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
READY = "window.jupyterapp?.shell?.currentWidget?.content?.model?.cells?.length > 0"
IDLE = "window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'"
RUN_ALL = "window.jupyterapp.commands.execute('notebook:run-all-cells')"
CELLS = """() => window.jupyterapp.shell.currentWidget.content.widgets.filter(c => c.model.type === 'code').map(c => ({
    done: !c.model.sharedModel.getSource().trim() || (c.model.executionCount > 0 && !c.promptNode.innerText.includes('*')),
    outputs: [...Array(c.model.outputs.length).keys()].map(i => c.model.outputs.get(i).toJSON())}))"""
DRAWN = (
    "[...document.querySelectorAll('.js-plotly-plot')].filter(p => p.querySelector('.main-svg') && p.offsetHeight > 50).length"
)


class Watched(NamedTuple):
    """A page, the requests that left this machine, and what its console called errors."""

    page: object
    external: list[str]
    errors: list[str]


def skip_without_browser() -> None:
    """Skip with a reason, or fail where MIA_NB_REQUIRE_BROWSER says that a browser must be there."""
    lacks = None if Path(CHROMIUM).exists() else f"no Chromium at {CHROMIUM}: install it, or point CHROMIUM at one"
    lacks = lacks if importlib.util.find_spec("playwright") else "playwright is not installed: pip install 'mia_nb[test]'"
    if lacks:
        (pytest.fail if os.environ.get("MIA_NB_REQUIRE_BROWSER") else pytest.skip)(lacks)


@contextlib.contextmanager
def chromium(*, offline: bool = False, dark: bool = False) -> Iterator[Watched]:
    """A fresh headless page; `offline` cuts its network."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context(
            viewport={"width": 1300, "height": 1700}, offline=offline, color_scheme="dark" if dark else "light"
        )
        watched = Watched(context.new_page(), [], [])
        inside = ("http://127.0.0.1:", "ws://127.0.0.1:", "file:", "data:", "blob:")
        page = watched.page
        page.on("request", lambda r: None if r.url.startswith(inside) else watched.external.append(r.url))
        page.on("websocket", lambda w: None if w.url.startswith(inside) else watched.external.append(w.url))
        page.on("console", lambda m: watched.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: watched.errors.append(str(e)))
        try:
            yield watched
        finally:
            browser.close()


@contextlib.contextmanager
def jupyter_lab(root: Path, tmp: Path) -> Iterator[str]:
    """A server on a free port with its own settings, workspaces and runtime folder; yields its address."""
    for name, setting in SETTINGS.items():
        path = tmp / "settings/@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(setting))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    places = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_RUNTIME_DIR": "runtime", "JUPYTER_DATA_DIR": "data"}
    places |= {"JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces"}
    environment = os.environ | {name: str(tmp / place) for name, place in places.items()}
    options = [f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}"]
    options += [f"--ServerApp.root_dir={root}", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--expose-app-in-browser"]
    command = [sys.executable, "-m", "jupyterlab", *options]
    log = tmp / "lab.log"
    with open(log, "w") as out:
        server = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        _wait_for(f"http://127.0.0.1:{port}/api/status?token={TOKEN}", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)


def open_notebook(page, address: str, name: str, *, kernel: bool = True) -> None:
    page.goto(f"{address}/lab/tree/{name}?reset&token={TOKEN}")
    page.wait_for_function(READY, timeout=60_000)
    if kernel:
        page.wait_for_function(IDLE, timeout=60_000)


def run_all(page, timeout: float = 120) -> list[dict]:
    """Run every cell; returns the outputs of the code cells, up to the first error."""
    page.evaluate(RUN_ALL)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        cells = page.evaluate(CELLS)
        outputs = [output for cell in cells for output in cell["outputs"]]
        if all(cell["done"] for cell in cells) or any(output["output_type"] == "error" for output in outputs):
            return outputs
        time.sleep(0.1)
    raise TimeoutError(f"cells not done after {timeout} s: {[cell['done'] for cell in cells]}")


@contextlib.contextmanager
def live_notebook(folder: Path, cells: list[str], *, dark: bool = False, save_widgets: bool = False) -> Iterator[tuple]:
    """A notebook of these cells, run live and drawn; yields (page, external requests, errors, its path) below `folder`."""
    from nbformat import v4

    root, settings = folder / "root", folder / "settings"
    root.mkdir()
    node = v4.new_notebook(cells=[v4.new_code_cell(cell.strip()) for cell in cells])
    node.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    (root / "live.ipynb").write_text(json.dumps(node))
    chosen = {"@jupyterlab/apputils-extension/themes": {"theme": f"JupyterLab {'Dark' if dark else 'Light'}"}}
    chosen["@jupyter-widgets/jupyterlab-manager/plugin"] = {"saveState": save_widgets}
    for name, setting in chosen.items():
        path = settings / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(setting))
    with jupyter_lab(root, folder) as address, chromium(dark=dark) as (page, external, errors):
        open_notebook(page, address, "live.ipynb")
        page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
        outputs = run_all(page)
        assert [output for output in outputs if output["output_type"] == "error"] == []
        page.wait_for_function("document.querySelector('.js-plotly-plot .main-svg') !== null", timeout=60_000)
        page.wait_for_function("[...document.querySelectorAll('.js-plotly-plot')].every(p => p.dataset.drawn)", timeout=60_000)
        yield page, external, errors, root / "live.ipynb"


def wait_for_figures(page, count: int) -> None:
    """Until `count` plotly figures are drawn, no more and no fewer."""
    page.wait_for_function(f"{DRAWN} >= {count}", timeout=60_000)
    assert page.evaluate(DRAWN) == count


def _wait_for(url: str, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=1).close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")
