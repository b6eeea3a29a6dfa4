"""Explorers as a person meets them: in JupyterLab and in Voila, by mouse and by keyboard, light and dark."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import lab
import pytest

from mia_nb import store

pytestmark = [pytest.mark.browser, pytest.mark.slow]
TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent

BIG = """
import os, sys
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, {tests!r})
import numpy as np
from worlds import world
from mia_nb import widgets
signals = world(16, 50_000, leak=0.5)
images = np.random.default_rng(0).integers(0, 255, (50_000, 3, 8, 8), dtype=np.uint8)
found = [widgets.Source("big", signals, images=images, classes=("cat", "dog", "frog", "ship"))]
"""
MOVE = """async ([handle, key]) => {
  const places = [...document.querySelectorAll('.js-plotly-plot')], before = places.map(p => p.dataset.drawn);
  const start = performance.now();
  document.querySelectorAll('.noUi-handle')[handle].dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
  while (places.every((p, i) => p.dataset.drawn === before[i]) && performance.now() - start < 5000)
    await new Promise(done => setTimeout(done, 4));
  return performance.now() - start;
}"""
SENTENCES = "[...document.querySelectorAll('[role=status]')].map(e => e.innerText)"


@pytest.fixture(autouse=True, scope="module")
def _browser():
    lab.skip_without_browser()


@pytest.fixture
def _live_mode(monkeypatch):
    monkeypatch.delenv("MIA_NB_MODE", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))


@pytest.mark.parametrize("dark", [False, True])
def test_the_threshold_moves_by_keyboard_and_paints_in_time_at_fifty_thousand_samples(tmp_path, _live_mode, dark):
    cells = [BIG.format(tests=str(TESTS)), "widgets.scores(found)"]
    with lab.live_notebook(tmp_path, cells, dark=dark, save_widgets=True) as (page, external, errors, notebook):
        assert page.locator(".js-plotly-plot").count() == 2
        before = page.evaluate(SENTENCES)
        page.locator(".noUi-handle").first.focus()
        times = [page.evaluate(MOVE, [0, "ArrowRight"]) for _ in range(12)]
        assert page.evaluate(SENTENCES) != before
        print(f"threshold to paint: median {statistics.median(times):.0f} ms")
        assert statistics.median(times) < 600  # 110 ms on two quiet cores; room for a busy machine
        page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
        page.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty", timeout=30_000)
        assert 1_500_000 < notebook.stat().st_size < 6_000_000  # the widgets' state is in it, plotly.js once
        assert (external, errors) == ([], [])


def test_a_click_on_csv_png_and_html_downloads_what_is_shown(tmp_path, _live_mode):
    cells = [BIG.format(tests=str(TESTS)).replace("50_000", "2_000"), "widgets.scores(found)"]
    with lab.live_notebook(tmp_path, cells) as (page, external, errors, _):
        for name, start in (("CSV", b"# Scores and ROC"), ("HTML", b"<!DOCTYPE html>"), ("PNG", b"\x89PNG")):
            with page.expect_download(timeout=30_000) as caught:
                page.locator("button.jupyter-button", has_text=name).click()
            assert Path(caught.value.path()).read_bytes().startswith(start)
        assert (external, errors) == ([], [])


def test_a_saved_notebook_holds_every_picture_and_plotly_once(tmp_path, _live_mode):
    cells = [BIG.format(tests=str(TESTS)).replace("50_000", "2_000"), "widgets.scores(found)"]
    with lab.live_notebook(tmp_path, cells, save_widgets=True) as (page, _, _, notebook):
        page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
        page.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty", timeout=30_000)
        state = json.loads(notebook.read_text())["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    figures = [one["state"] for one in state.values() if "figure" in one["state"]]
    libraries = [one for one in state.values() if one["state"].get("_esm", "").startswith("export default {render() {}}")]
    assert len(figures) == 2 and len(libraries) == 1
    assert all(json.loads(figure["figure"])["data"] for figure in figures)


@contextlib.contextmanager
def dashboard(results: Path, log: Path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mia_nb.cli", "explore", "--results", str(results), "--port", str(port), "--no-browser"]
    command += ["--notebooks", str(ROOT / "notebooks")]
    with open(log, "w") as out:
        server = subprocess.Popen(command, cwd=results.parent, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    address = f"http://127.0.0.1:{port}/"
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and server.poll() is None:
            try:
                urllib.request.urlopen(address + "voila/static/nothing", timeout=1).close()
            except urllib.error.HTTPError:  # it answers; asking for / would start a kernel
                break
            except OSError:
                time.sleep(0.2)
        yield address
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, 15)
        server.wait(20)


def test_the_dashboard_shows_explorers_without_code_and_asks_nothing_of_the_network(small_results, tmp_path, _live_mode):
    with dashboard(small_results, tmp_path / "voila.log") as address, lab.chromium() as (page, external, errors):
        page.goto(address, timeout=120_000)
        page.wait_for_function("document.querySelector('.js-plotly-plot .main-svg') !== null", timeout=90_000)
        before = page.evaluate(SENTENCES)
        assert before and page.locator(".jp-CodeCell .jp-InputArea").count() == 0
        page.locator(".noUi-handle").first.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function(f"JSON.stringify({SENTENCES}) !== {json.dumps(json.dumps(before))}", timeout=20_000)
        assert (external, errors) == ([], [])


@pytest.fixture(scope="module")
def small_results(tmp_path_factory) -> Path:
    from mia_nb import data, query, training
    from mia_nb.types import Recipe

    root = tmp_path_factory.mktemp("home") / "results"
    images = data.load("digits", limit=300)
    pool = training.train_pool(Recipe(num_models=6, epochs=2), images, root=root, progress=False)
    query.query(pool, images, progress=False)
    assert store.folders(root, "signals")
    return root
