"""What a person sees: notebooks in JupyterLab and the offline report, in a real Chromium."""

from __future__ import annotations

import json
from pathlib import Path

import lab
import plotly.graph_objects as go
import pytest
from nbformat import v4
from test_report import executed, figure

from mia_nb import store
from mia_nb.cli import main
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
@pytest.mark.parametrize("name", [path.name for path in sorted(NOTEBOOKS.glob("*.ipynb"))])
def test_an_executed_notebook_shows_and_reruns_in_jupyterlab_without_error_or_request(demo, name, tmp_path):
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


@pytest.mark.slow
def test_the_report_of_the_demo_draws_every_figure_of_its_notebooks(demo):
    texts = [(demo.path / file).read_text() for file in demo.files() if file.endswith(".ipynb")]
    count = figures_in([o for text in texts for cell in json.loads(text)["cells"] for o in cell.get("outputs", [])])
    with lab.chromium(offline=True) as (page, external, errors):
        page.goto((demo.path / "report.html").as_uri())
        lab.wait_for_figures(page, count)
        assert (external, errors) == ([], [])
