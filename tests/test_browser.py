"""What a person sees: notebooks in JupyterLab and the offline report, in a real Chromium."""

from __future__ import annotations

import json

import lab
import plotly.graph_objects as go
import pytest
from nbformat import v4
from test_report import executed, figure

from mia_nb.report import export

pytestmark = pytest.mark.browser


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


def test_a_notebook_runs_in_jupyterlab_and_draws_every_figure(tmp_path):
    cells = ["import plotly.graph_objects as go\ngo.Figure(go.Scatter(y=[1, 3, 2]))", "go.Figure(go.Bar(y=[1, 2]))", ""]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in cells], metadata={"kernelspec": spec})
    (tmp_path / "work").mkdir()
    (tmp_path / "work/a.ipynb").write_text(json.dumps(made))
    with lab.jupyter_lab(tmp_path / "work", tmp_path) as address, lab.chromium() as (page, external, errors):
        lab.open_notebook(page, address, "a.ipynb")
        outputs = lab.run_all(page)
        assert [output["output_type"] for output in outputs] == ["display_data", "display_data"]
        lab.wait_for_figures(page, 2)
        assert (external, errors) == ([], [])
