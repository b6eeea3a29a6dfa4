"""What a person sees: notebooks in JupyterLab and the offline report, in a real Chromium."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import lab
import plotly.graph_objects as go
import pytest
from nbformat import v4
from test_report import executed, figure

from mia_nb import store
from mia_nb.cli import main
from mia_nb.cli.notebooks import plan
from mia_nb.report import PLOTLY, export

pytestmark = pytest.mark.browser
NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


@pytest.fixture(autouse=True, scope="module")
def _browser():
    lab.skip_without_browser()


@pytest.mark.parametrize("dark", [False, True])
def test_a_report_opened_from_disk_without_network_draws_every_figure(tmp_path, dark):
    table = v4.new_output("display_data", {"text/html": "<table><tr><td>1</td></tr></table><script>window.ran = 1</script>"})
    first = executed(tmp_path / "a.ipynb", figure(), figure("gl", go.Scattergl), table)
    out = export([first, executed(tmp_path / "b.ipynb", figure())], tmp_path / "report.html")
    with lab.chromium(offline=True, dark=dark) as (page, external, errors):
        page.goto(out.as_uri())
        lab.wait_for_figures(page, 3)
        assert page.evaluate("document.querySelectorAll('table').length") == 1 and page.evaluate("window.ran") is None
        assert page.evaluate("document.querySelector('.plot')._fullLayout.font.color") == (
            "rgb(228, 228, 228)" if dark else "rgb(26, 26, 26)"
        )
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert (external, errors) == ([], [])


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> store.Folder:
    """The demo preset, made small."""
    results = tmp_path_factory.mktemp("demo") / "results"
    small = ["num_models=6", "limit=360", "epochs=3", "draws=50", "self_test_draws=4", "flow={steps: 2}", "along=2"]
    small += ["population=90", "votes=2", "marks=[1, 10]", "clipped={batch: 64, epochs: 2}"]
    argv = ["run", "all", "--preset", "demo", "--notebooks", str(NOTEBOOKS), "--results", str(results)]
    assert main([*argv, *(word for text in small for word in ("-p", text))]) == 0
    return store.folders(results, "run")[0]


def figures_in(outputs: list[dict]) -> int:
    return sum(PLOTLY in output.get("data", {}) for output in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", [step.notebook.name for step in plan("all", "demo", [], [NOTEBOOKS])])
def test_an_executed_notebook_shows_and_reruns_in_jupyterlab_without_error_or_request(demo, name, tmp_path, monkeypatch):
    monkeypatch.setenv("MIA_NB_MODE", "batch")  # as figures, not as explorers, which have tests of their own
    cells = json.loads((demo.path / name).read_text())["cells"]
    stored = figures_in([output for cell in cells for output in cell.get("outputs", [])])
    assert stored > 0
    with lab.jupyter_lab(demo.path, tmp_path) as address, lab.chromium() as (page, external, errors):
        lab.open_notebook(page, address, name)
        lab.wait_for_figures(page, stored)
        outputs = lab.run_all(page)
        assert [output for output in outputs if output["output_type"] == "error"] == []
        assert figures_in(outputs) == stored
        lab.wait_for_figures(page, stored)
        assert (external, errors) == ([], [])


MOVED = {  # tab: which of its sliders to move, by keyboard alone
    "Scores and ROC": 0, "One sample, two worlds": 0, "Vulnerable samples": None, "Latency": 0, "Dropout": 1,
    "Noise is not privacy": 1, "Privacy ladder": 3, "Run comparison": None,
}  # fmt: skip
SHOWN = "[...document.querySelectorAll('.js-plotly-plot')].filter(p => p.offsetWidth > 0)"
POINT = """(() => {{ const plot = {plot}, trace = plot._fullData[0];
  plot.scrollIntoView({{block: 'center'}});
  const [x, y] = [plot._fullLayout.xaxis, plot._fullLayout.yaxis], at = plot.getBoundingClientRect();
  return [at.left + x._offset + x.d2p(trace.x[0]), at.top + y._offset + y.d2p(trace.y[0])]; }})()"""
WORDS = "[...document.querySelectorAll('[role=status], [role=alert]')].filter(e => e.offsetWidth > 0).map(e => e.innerText)[0]"


@pytest.mark.slow
def test_every_explorer_answers_to_keyboard_and_click_in_jupyterlab(demo, tmp_path, monkeypatch):
    monkeypatch.delenv("MIA_NB_MODE", raising=False)
    monkeypatch.setenv("MIA_NB_HOME", str(demo.path.parents[1]))
    (tmp_path / "root").mkdir()
    shutil.copy(NOTEBOOKS / "08_explore.ipynb", tmp_path / "root")
    with lab.jupyter_lab(tmp_path / "root", tmp_path) as address, lab.chromium() as (page, external, errors):
        lab.open_notebook(page, address, "08_explore.ipynb")
        outputs = lab.run_all(page)
        assert [output for output in outputs if output["output_type"] == "error"] == []
        tabs = page.locator(".jupyter-widget-tab > .lm-TabBar .lm-TabBar-tab")
        assert tabs.all_inner_texts() == list(MOVED)
        for number, (title, handle) in enumerate(MOVED.items()):
            tabs.nth(number).click()
            page.wait_for_function(f"{WORDS}?.startsWith({json.dumps(title)})", timeout=60_000)
            page.wait_for_function(f"{SHOWN}.length > 0 && {SHOWN}.every(p => p.dataset.drawn)", timeout=60_000)
            before = page.evaluate(WORDS)
            assert before.startswith(title)
            drawn = page.evaluate(f"{SHOWN}.map(p => p.dataset.drawn)")
            if handle is not None:
                page.locator(".noUi-handle:visible").nth(handle).focus()
                page.keyboard.press("ArrowLeft")
            elif title == "Run comparison":
                page.locator("input[type=checkbox]:visible").nth(2).click()
            else:
                page.locator("input[type=number]:visible").fill("7")
                page.keyboard.press("Enter")
            page.wait_for_function(
                f"JSON.stringify({SHOWN}.map(p => p.dataset.drawn)) != '{json.dumps(drawn, separators=(',', ':'))}'"
            )
            assert page.evaluate(WORDS).startswith(title)
        tabs.nth(1).click()
        page.wait_for_function(f"{WORDS}?.startsWith('One sample')")
        image = f"{SHOWN}[2].data[0].source"
        picture = page.evaluate(image)
        page.mouse.click(*page.evaluate(POINT.format(plot=f"{SHOWN}[0]")))
        page.wait_for_function(f"{image} !== {json.dumps(picture)}", timeout=20_000)
        assert (external, errors) == ([], [])


@pytest.mark.slow
def test_the_report_of_the_demo_draws_every_figure_of_its_notebooks(demo):
    texts = [(demo.path / file).read_text() for file in demo.files() if file.endswith(".ipynb")]
    count = figures_in([o for text in texts for cell in json.loads(text)["cells"] for o in cell.get("outputs", [])])
    with lab.chromium(offline=True) as (page, external, errors):
        page.goto((demo.path / "report.html").as_uri())
        lab.wait_for_figures(page, count)
        assert (external, errors) == ([], [])
