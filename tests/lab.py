"""A private JupyterLab and a watched Chromium for browser tests: each starts once, for any number
of notebooks.
"""

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
from typing import Any, NamedTuple

import pytest

from mia_nb.cli.kernels import LAUNCHER, BatchKernels

TOKEN = "test"
CHROMIUM = (
    os.environ.get("CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("chromium-browser")
    or "/usr/bin/chromium"
)
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
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyter-widgets/jupyterlab-manager/plugin": {"saveState": True},
}
# a kernel that has its imports done: it starts in the server's folder, and plotly, imported where
# there is no notebook, displays nothing by itself
FORKED = "forked"
RUNS_ELSEWHERE = ("MIA_NB_MODE", "MIA_NB_HOME")  # a notebook that wants them sets them itself
SHOWN = "window.jupyterapp?.shell?.currentWidget"
READY = f"{SHOWN}?.content?.model?.cells?.length > 0 && {SHOWN}.context.path === "
IDLE = "window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'"
RUN_ALL = "window.jupyterapp.commands.execute('notebook:run-all-cells')"
# without asking whether to save; a closed notebook leaves nothing of its outputs in the page
CLOSE_ALL = "[...window.jupyterapp.shell.widgets('main')].forEach(one => one.dispose())"
CELLS = """() => window.jupyterapp.shell.currentWidget.content.widgets.filter(c => c.model.type === 'code').map(c => ({
    done: !c.model.sharedModel.getSource().trim() || (c.model.executionCount > 0 && !c.promptNode.innerText.includes('*')),
    outputs: [...Array(c.model.outputs.length).keys()].map(i => c.model.outputs.get(i).toJSON())}))"""
DRAWN = (
    "[...document.querySelectorAll('.js-plotly-plot')].filter(p => p.querySelector('.main-svg') &&"
    " p.offsetHeight > 50).length"
)


class Watched(NamedTuple):
    """A page, the requests that left this machine, and what its console called errors."""

    page: Any
    external: list[str]
    errors: list[str]


class Server(NamedTuple):
    """A running JupyterLab: its address, and the folder whose notebooks it serves."""

    address: str
    root: Path


def skip_without_browser() -> None:
    """Skip with a reason, or fail where MIA_NB_REQUIRE_BROWSER says that a browser must be
    there.
    """
    lacks = (
        None
        if Path(CHROMIUM).exists()
        else f"no Chromium at {CHROMIUM}: install it, or point CHROMIUM at one"
    )
    lacks = (
        lacks
        if importlib.util.find_spec("playwright")
        else "playwright is not installed: pip install 'mia_nb[test]'"
    )
    if lacks:
        (pytest.fail if os.environ.get("MIA_NB_REQUIRE_BROWSER") else pytest.skip)(lacks)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def fresh_page(browser, *, offline: bool = False, dark: bool = False) -> Iterator[Watched]:
    """A page that shares nothing with the browser's others; `offline` cuts its network."""
    context = browser.new_context(
        viewport={"width": 1300, "height": 1700},
        offline=offline,
        color_scheme="dark" if dark else "light",
    )
    watched = Watched(context.new_page(), [], [])
    inside = ("http://127.0.0.1:", "ws://127.0.0.1:", "file:", "data:", "blob:")
    page = watched.page
    page.on(
        "request", lambda r: None if r.url.startswith(inside) else watched.external.append(r.url)
    )
    page.on(
        "websocket", lambda w: None if w.url.startswith(inside) else watched.external.append(w.url)
    )

    def listen(error: str) -> None:
        # anywidget gives a widget two seconds to start, which a busy machine may exceed; tests wait
        # for every figure to be drawn, so that one that does not start fails there
        if "[anywidget] Failed to initialize" not in error:
            watched.errors.append(error)

    page.on("console", lambda said: listen(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda raised: listen(str(raised)))
    try:
        yield watched
    finally:
        context.close()


@contextlib.contextmanager
def jupyter_lab(folder: Path, *importable: Path) -> Iterator[Server]:
    """A server on a free port of folder/root, with settings, workspaces and runtime files of its
    own beside that; its kernels import from these places too."""
    root = folder / "root"
    root.mkdir()
    for name, setting in SETTINGS.items():
        path = folder / "settings" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(setting))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spec = folder / "data" / "kernels" / FORKED / "kernel.json"
    spec.parent.mkdir(parents=True)
    command = [sys.executable, "-m", LAUNCHER, "-f", "{connection_file}"]
    named = {"display_name": FORKED, "language": "python"}
    metadata = BatchKernels.kernel_spec.metadata
    spec.write_text(json.dumps({"argv": command, "metadata": metadata} | named))
    places = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTER_DATA_DIR": "data",
    }
    places |= {"JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces"}
    environment = {name: value for name, value in os.environ.items() if name not in RUNS_ELSEWHERE}
    environment |= {name: str(folder / place) for name, place in places.items()}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [*map(str, importable), os.environ.get("PYTHONPATH")])
    )
    options = [f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}"]
    options += [
        f"--ServerApp.root_dir={root}",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        "--expose-app-in-browser",
    ]
    command = [sys.executable, "-m", "jupyterlab", *options]
    log = folder / "lab.log"
    with open(log, "w") as out:
        server = subprocess.Popen(
            command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/api/status?token={TOKEN}", server, log)
        yield Server(f"http://127.0.0.1:{port}", root)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)


def _asked(server: Server, path: str, method: str = "GET") -> bytes:
    headers = {"Authorization": f"token {TOKEN}"}
    with urllib.request.urlopen(
        urllib.request.Request(server.address + path, headers=headers, method=method)
    ) as answer:
        return answer.read()


def kernels(server: Server) -> list[str]:
    """The ids of the kernels that run."""
    return [kernel["id"] for kernel in json.loads(_asked(server, "/api/kernels"))]


def end_kernels(server: Server) -> None:
    """Shut every kernel down."""
    for kernel in kernels(server):
        _asked(server, f"/api/kernels/{kernel}", "DELETE")


def open_notebook(page, server: Server, name: str, *, dark: bool = False) -> None:
    """A notebook below the server's root with its kernel, as the only one that is open. A page that
    shows this server's JupyterLab already is not loaded again.
    """
    page.emulate_media(color_scheme="dark" if dark else "light")
    if page.url.startswith(f"{server.address}/lab"):
        page.evaluate(CLOSE_ALL)
        page.evaluate(
            f"window.jupyterapp.commands.execute('docmanager:open', {{path: {json.dumps(name)}}})"
        )
    else:
        page.goto(f"{server.address}/lab/tree/{name}?reset&token={TOKEN}")
    page.wait_for_function(READY + json.dumps(name), timeout=60_000)
    theme = f"JupyterLab {'Dark' if dark else 'Light'}"
    page.evaluate(
        f"window.jupyterapp.commands.execute('apputils:change-theme', {{theme: '{theme}'}})"
    )
    page.wait_for_function(f"document.body.dataset.jpThemeName === '{theme}'", timeout=60_000)
    page.wait_for_function(IDLE, timeout=180_000)


def run_all(page, timeout: float = 120) -> list[dict]:
    """Run every cell; returns the outputs of the code cells, up to the first error."""
    page.evaluate(RUN_ALL)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        cells = page.evaluate(CELLS)
        outputs = [output for cell in cells for output in cell["outputs"]]
        if all(cell["done"] for cell in cells) or any(
            output["output_type"] == "error" for output in outputs
        ):
            return outputs
        time.sleep(0.1)
    raise TimeoutError(f"cells not done after {timeout} s: {[cell['done'] for cell in cells]}")


def write_notebook(path: Path, cells: list[str], kernel: str = "python3") -> None:
    """A notebook of these code cells, not executed."""
    from nbformat import v4

    node = v4.new_notebook(cells=[v4.new_code_cell(cell.strip()) for cell in cells])
    node.metadata["kernelspec"] = {
        "name": kernel,
        "display_name": "Python 3" if kernel == "python3" else kernel,
        "language": "python",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(node))


@contextlib.contextmanager
def live_notebook(
    server: Server,
    browser,
    name: str,
    cells: list[str],
    *,
    dark: bool = False,
    kernel: str = "python3",
    watched: Watched | None = None,
) -> Iterator[tuple]:
    """A notebook of these cells, run live and drawn; yields (page, external requests, errors, its
    path). It is opened in a page of its own, or in the `watched` one.
    """
    path = server.root / name / "live.ipynb"
    write_notebook(path, cells, kernel)
    place = contextlib.nullcontext(watched) if watched else fresh_page(browser, dark=dark)
    with place as (page, external, errors):
        open_notebook(page, server, f"{name}/live.ipynb", dark=dark)
        page.evaluate("window.jupyterapp.shell.collapseLeft()")
        outputs = run_all(page)
        assert [output for output in outputs if output["output_type"] == "error"] == []
        page.wait_for_function(
            "document.querySelector('.js-plotly-plot .main-svg') !== null", timeout=60_000
        )
        page.wait_for_function(
            "[...document.querySelectorAll('.js-plotly-plot')].every(p => p.dataset.drawn)",
            timeout=60_000,
        )
        yield page, external, errors, path


@contextlib.contextmanager
def alone(folder: Path, cells: list[str]) -> Iterator[tuple]:
    """A live notebook in a JupyterLab and a Chromium of its own."""
    with (
        jupyter_lab(folder) as server,
        chromium() as browser,
        live_notebook(server, browser, "alone", cells) as live,
    ):
        yield live


def click_point(page, across: float, down: float) -> None:
    """A click on a point of a figure as a hand makes it: first there, then pressed. plotly loses a
    click that comes within 50 ms of the pointer, as it does where a page is slow.
    """
    page.mouse.move(across, down)
    page.wait_for_function("document.querySelector('.hoverlayer .hovertext') !== null")
    page.wait_for_timeout(200)
    page.mouse.down()
    page.mouse.up()


def wait_for_figures(page, count: int) -> None:
    """Until `count` plotly figures are drawn, no more and no fewer, for half a second: some are
    drawn twice at first.
    """
    page.evaluate("window.steady = 0")
    steady = f"(window.steady = {DRAWN} === {count} ? window.steady || performance.now() : 0)"
    page.wait_for_function(f"{steady} && performance.now() - window.steady > 500", timeout=60_000)
    assert page.evaluate(DRAWN) == count


def _wait_for(url: str, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=1).close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")
