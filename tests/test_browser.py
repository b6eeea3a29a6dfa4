"""What a person sees: notebooks and explorers in JupyterLab, the dashboard and the offline report,
in a real Chromium.

All in one file, whose tests share one JupyterLab and one Chromium. Notebooks are opened one after
another in one page, as a reader opens them, for loading JupyterLab takes longer than most of them;
every other test has a page of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import lab
import numpy as np
import plotly.graph_objects as go
import pytest
from contrast import least_contrast_of_lines
from nbformat import v4
from test_display import cells_of as statements_of
from test_readme import CODE
from test_report import executed, export, figure

import mia_nb
from mia_nb import plots, store
from mia_nb.attacks import ATTACKS
from mia_nb.cli.notebooks import plan
from mia_nb.plots import style
from mia_nb.report.markup import PLOTLY

pytestmark = [pytest.mark.browser, pytest.mark.slow]
TESTS = Path(__file__).resolve().parent
NOTEBOOKS = TESTS.parent / "notebooks"
SENTENCES = "[...document.querySelectorAll('[role=status]')].map(e => e.innerText)"


@pytest.fixture(autouse=True, scope="module")
def _browser():
    lab.skip_without_browser()


@pytest.fixture(scope="module")
def browser():
    with lab.chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def _jupyter_lab(tmp_path_factory):
    with lab.jupyter_lab(tmp_path_factory.mktemp("lab"), TESTS, TESTS.parent) as server:
        yield server


@pytest.fixture
def server(_jupyter_lab):
    """JupyterLab, without kernels of the test before."""
    yield _jupyter_lab
    lab.end_kernels(_jupyter_lab)


@pytest.fixture(scope="module")
def _page_of_notebooks(browser):
    with lab.fresh_page(browser) as watched:
        yield watched


@pytest.fixture
def watched(server, _page_of_notebooks):
    """The page of JupyterLab, without notebooks, requests and errors of the test before."""
    page, external, errors = _page_of_notebooks
    external.clear()
    errors.clear()
    yield _page_of_notebooks
    page.evaluate(lab.CLOSE_ALL)


def small_run(folder: Path, preset: str, small: list[str]) -> store.Folder:
    """The run of a preset with these parameters, which takes none of its notebooks to say a
    warning.
    """
    argv = [
        "run",
        "all",
        "--preset",
        preset,
        "--notebooks",
        str(NOTEBOOKS),
        "--results",
        str(folder / "results"),
    ]
    argv += [word for text in small for word in ("-p", text)]
    done = subprocess.run(
        [sys.executable, "-m", "mia_nb.cli", *argv], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mia-nb: " not in done.stdout + done.stderr
    return store.folders(folder / "results", "run")[0]


@pytest.fixture(scope="module")
def tour(tmp_path_factory) -> store.Folder:
    """The tour, made small."""
    small = [
        "num_models=6",
        "limit=360",
        "epochs=3",
        "n_resamples=50",
        "control_resamples=4",
        "flow={steps: 2}",
        "along=2",
    ]
    small += ["population=90", "votes=2", "marks=[1, 10]", "clipped={batch: 64, epochs: 2}"]
    small += ["tuning={epochs: 1}", "quality=[1, 4]"]
    return small_run(tmp_path_factory.mktemp("tour"), "tour", small)


def cells_of(notebook: Path) -> list[dict]:
    return json.loads(notebook.read_text())["cells"]


def figures_in(outputs: list[dict]) -> int:
    return sum(PLOTLY in output.get("data", {}) for output in outputs)


def stored_figures(notebook: Path) -> int:
    return figures_in([output for cell in cells_of(notebook) for output in cell.get("outputs", [])])


def copy_with_environment(notebook: Path, to: Path, **variables: str) -> None:
    """A copy whose first cell sets environment variables."""
    node = json.loads(notebook.read_text())
    first = v4.new_code_cell(f"import os\nos.environ.update({variables})")
    node["cells"].insert(0, first)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(json.dumps(node))


UNFOLD = "document.querySelectorAll('details').forEach(fold => { fold.open = true; })"
LARGEST_REPORT = 5_000_000  # bytes
VISIBLE_WORDS = 2500  # that a reader of a report meets before anything is unfolded


@pytest.mark.parametrize("dark", [False, True])
def test_a_report_opened_from_disk_without_network_draws_every_figure(tmp_path, browser, dark):
    table = v4.new_output(
        "display_data",
        {"text/html": "<table><tr><td>1</td></tr></table><script>window.ran = 1</script>"},
    )
    first = executed(tmp_path / "a.ipynb", figure(), figure("gl", go.Scattergl), table)
    out = tmp_path / "report.html"
    out.write_text(export([first, executed(tmp_path / "b.ipynb", figure())]))
    with lab.fresh_page(browser, offline=True, dark=dark) as (page, external, errors):
        page.goto(out.as_uri())
        lab.wait_for_figures(page, 2)  # one a notebook
        page.evaluate(UNFOLD)
        lab.wait_for_figures(page, 3)
        assert (
            page.evaluate("document.querySelectorAll('table').length") == 1
            and page.evaluate("window.ran") is None
        )
        assert page.evaluate("document.querySelector('.plot')._fullLayout.font.color") == (
            "rgb(228, 228, 228)" if dark else "rgb(26, 26, 26)"
        )
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert (external, errors) == ([], [])


@pytest.mark.parametrize("dark", [False, True])
def test_the_line_of_every_attack_is_seen_on_the_paper_of_a_report(tmp_path, browser, dark):
    curves = go.Figure()
    for name, look in style.looks(ATTACKS).items():
        line = {"color": look.colour, "dash": look.dash}
        curves.add_scatter(x=[0, 1], y=[0, 1], mode="lines", name=name, line=line)
    curves = v4.new_output("display_data", {PLOTLY: json.loads(curves.to_json())})
    out = tmp_path / "report.html"
    out.write_text(export([executed(tmp_path / "a.ipynb", curves)]))
    with lab.fresh_page(browser, offline=True, dark=dark) as (page, _, _):
        page.goto(out.as_uri())
        lab.wait_for_figures(page, 1)
        assert page.evaluate(
            "document.querySelectorAll('.scatterlayer path.js-line').length"
        ) == len(ATTACKS)
        assert least_contrast_of_lines(page, 0) >= 4.5


def test_names_of_any_length_push_no_column_off_the_page_of_an_audit(tmp_path, browser):
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(60, 2)), np.arange(60) % 2
    parts = [(np.arange(60)[part, None], y[part]) for part in (slice(30), slice(30, 60))]
    found = mia_nb.audit(
        lambda x: z[x[:, 0]],
        *parts,
        classes=["a" * 200, "of words " * 30],
        groups=np.where(rng.random(60) < 0.5, "/".join(["folder"] * 40), "b"),
        n_resamples=20,
    )
    out = found.report(tmp_path / "audit.html", name="m" * 200)
    with lab.fresh_page(browser, offline=True) as (page, external, errors):
        page.set_viewport_size({"width": 1366, "height": 768})
        page.goto(out.as_uri())
        lab.wait_for_figures(page, 1)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert (external, errors) == ([], [])


OVERLAPS = """(() => {
  const boxes = [...document.querySelectorAll('.annotation-text')].map(e => e.getBoundingClientRect());
  return boxes.slice(1).filter((box, i) => box.top === boxes[i].top && box.left < boxes[i].right).length;
})()"""


def test_captions_of_images_do_not_overlap(tmp_path, browser):
    x = np.zeros((12, 3, 32, 32), np.uint8)
    captions = [f"sigma {2000 + n}: airplane" for n in range(12)]
    sheet = plots.images(x, captions, [True] * 12, columns=6)
    sheet = v4.new_output("display_data", {PLOTLY: json.loads(sheet.to_json())})
    out = tmp_path / "report.html"
    out.write_text(export([executed(tmp_path / "a.ipynb", sheet)]))
    with lab.fresh_page(browser, offline=True) as (page, _, _):
        page.goto(out.as_uri())
        lab.wait_for_figures(page, 1)
        assert page.locator(".annotation-text").count() == 12
        assert page.evaluate(OVERLAPS) == 0


@contextlib.contextmanager
def report_of(folder: store.Folder, browser):
    """The page of a run's report, on which every figure of its notebooks is drawn in the end."""
    notebooks = [file for file in folder.files() if file.endswith(".ipynb")]
    with lab.fresh_page(browser, offline=True) as (page, external, errors):
        page.goto((folder.path / "report.html").as_uri())
        lab.wait_for_figures(page, len(notebooks))
        yield page
        page.evaluate(UNFOLD)
        lab.wait_for_figures(page, sum(stored_figures(folder.path / file) for file in notebooks))
        assert (external, errors) == ([], [])


def test_the_report_of_a_run_draws_every_figure_of_its_notebooks(tour, browser):
    notebooks = [step.notebook.name for step in plan("all", "tour", [], [NOTEBOOKS])]
    assert all(stored_figures(tour.path / name) for name in notebooks)
    assert (tour.path / "report.html").stat().st_size < LARGEST_REPORT
    with report_of(tour, browser) as page:
        assert 300 < len(page.inner_text("body").split()) <= VISIBLE_WORDS
        assert page.evaluate("document.querySelector('#verdict').offsetHeight") < 900


def shows(notebook: Path, server: lab.Server, watched: lab.Watched, *, rerun: bool) -> None:
    """A stored notebook is drawn, and executed again draws as many figures; as figures, not as
    explorers.
    """
    stored = stored_figures(notebook)
    assert stored > 0
    copy_with_environment(notebook, server.root / "rerun" / notebook.name, MIA_NB_MODE="batch")
    page, external, errors = watched
    lab.open_notebook(page, server, f"rerun/{notebook.name}")
    lab.wait_for_figures(page, stored)
    if rerun:
        outputs = lab.run_all(page)
        assert [output for output in outputs if output["output_type"] == "error"] == []
        assert figures_in(outputs) == stored
        lab.wait_for_figures(page, stored)
    assert (external, errors) == ([], [])


# that a kernel of JupyterLab does what papermill's did is seen on a notebook that trains and, in the
# next test, on the explorers; that the figures of all others can be drawn, in the report
@pytest.mark.parametrize(("name", "rerun"), [("01_train.ipynb", True), ("08_explore.ipynb", False)])
def test_an_executed_notebook_shows_and_reruns_in_jupyterlab_without_error_or_request(
    tour, name, rerun, server, watched
):
    shows(tour.path / name, server, watched, rerun=rerun)


MOVED = {  # tab: which of its sliders to move, by keyboard alone
    "Scores and ROC": 0,
    "One sample, two worlds": 0,
    "Vulnerable samples": None,
    "Latency": 1,
    "Dropout": 1,
    "Noise is not privacy": 1,
    "Run comparison": None,
}
SHOWN = "[...document.querySelectorAll('.js-plotly-plot')].filter(p => p.offsetWidth > 0)"
POINT = """(() => {{ const plot = {plot}, trace = plot._fullData[0];
  plot.scrollIntoView({{block: 'center'}});
  const [x, y] = [plot._fullLayout.xaxis, plot._fullLayout.yaxis], at = plot.getBoundingClientRect();
  return [at.left + x._offset + x.d2p(trace.x[0]), at.top + y._offset + y.d2p(trace.y[0])]; }})()"""
WORDS = (
    "[...document.querySelectorAll('[role=status], [role=alert]')].filter(e => e.offsetWidth >"
    " 0).map(e => e.innerText)[0]"
)


def test_every_explorer_answers_to_keyboard_and_click_in_jupyterlab(tour, server, watched):
    name = "explore/08_explore.ipynb"
    copy_with_environment(
        NOTEBOOKS / "08_explore.ipynb", server.root / name, MIA_NB_HOME=str(tour.path.parents[1])
    )
    page, external, errors = watched
    lab.open_notebook(page, server, name)
    outputs = lab.run_all(page)
    assert [output for output in outputs if output["output_type"] == "error"] == []
    tabs = page.locator(".jupyter-widget-tab > .lm-TabBar .lm-TabBar-tab")
    assert tabs.all_inner_texts() == list(MOVED)
    for number, (title, handle) in enumerate(MOVED.items()):
        tabs.nth(number).click()
        page.wait_for_function(f"{WORDS}?.startsWith({json.dumps(title)})", timeout=60_000)
        page.wait_for_function(
            f"{SHOWN}.length > 0 && {SHOWN}.every(p => p.dataset.drawn)", timeout=60_000
        )
        before = page.evaluate(WORDS)
        assert before.startswith(title)
        drawn = page.evaluate(f"{SHOWN}.map(p => p.dataset.drawn)")
        if handle is not None:
            page.locator(".noUi-handle:visible").nth(handle).focus()
            page.keyboard.press("ArrowLeft")
        elif title == "Run comparison":
            page.locator("input[type=checkbox]:visible").nth(2).focus()
            page.keyboard.press("Space")
        else:
            page.locator("input[type=number]:visible").fill("7")
            page.keyboard.press("Enter")
        page.wait_for_function(
            f"JSON.stringify({SHOWN}.map(p => p.dataset.drawn)) !="
            f" '{json.dumps(drawn, separators=(',', ':'))}'"
        )
        assert page.evaluate(WORDS).startswith(title)
    tabs.nth(1).click()
    page.wait_for_function(f"{WORDS}?.startsWith('One sample')")
    image = f"{SHOWN}[2].data[0].source"
    picture = page.evaluate(image)
    lab.click_point(page, *page.evaluate(POINT.format(plot=f"{SHOWN}[0]")))
    page.wait_for_function(f"{image} !== {json.dumps(picture)}", timeout=20_000)
    assert (external, errors) == ([], [])


SOURCE = """
import numpy as np
from worlds import world
from mia_nb import widgets
signals = world(16, {samples}, leak=0.5)
images = np.random.default_rng(0).integers(0, 255, ({samples}, 3, 8, 8), dtype=np.uint8)
found = [widgets.stored.Source("big", signals, images=images, classes=("cat", "dog", "frog", "ship"))]
"""
MOVE = """async ([handle, key]) => {
  const places = [...document.querySelectorAll('.js-plotly-plot')], before = places.map(p => p.dataset.drawn);
  const start = performance.now();
  document.querySelectorAll('.noUi-handle')[handle].dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
  while (places.every((p, i) => p.dataset.drawn === before[i]) && performance.now() - start < 5000)
    await new Promise(done => setTimeout(done, 4));
  return performance.now() - start;
}"""


def moves_and_saves(page, notebook: Path, within: float) -> None:
    """The threshold paints in so many ms, and the saved notebook holds the widgets' state,
    plotly.js once.
    """
    # on a busy machine a picture may still be there that another one replaces
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot').length === 2")
    before = page.evaluate(SENTENCES)
    page.locator(".noUi-handle").first.focus()
    times = [page.evaluate(MOVE, [0, "ArrowRight"]) for _ in range(12)]
    assert page.evaluate(SENTENCES) != before
    print(f"threshold to paint: median {statistics.median(times):.0f} ms")
    assert statistics.median(times) < within
    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_function(
        "!window.jupyterapp.shell.currentWidget.context.model.dirty", timeout=30_000
    )
    assert 1_500_000 < notebook.stat().st_size < 6_000_000


def test_the_threshold_moves_by_keyboard_and_paints_in_time_at_fifty_thousand_samples(
    server, browser, watched
):
    cells = [SOURCE.format(samples=50_000), "widgets.scores(found)"]
    with lab.live_notebook(server, browser, "big", cells, dark=True, watched=watched) as (
        page,
        external,
        errors,
        notebook,
    ):
        assert least_contrast_of_lines(page, 1) >= 4.5
        moves_and_saves(page, notebook, 600)  # 110 ms on two quiet cores; room for a busy machine
        assert (external, errors) == ([], [])


LINE = """(() => { const plot = document.querySelector('.js-plotly-plot');
  plot.scrollIntoView({block: 'center'});
  const {xaxis: x, yaxis: y, shapes} = plot._fullLayout, at = plot.getBoundingClientRect();
  return [at.left + x._offset + x.d2p(shapes[0].x0), at.top + y._offset + y._length / 2]; })()"""


def drags(page) -> None:
    """The threshold's line follows the mouse that presses it."""
    before, (across, down) = page.evaluate(SENTENCES), page.evaluate(LINE)
    page.mouse.move(across + 3, down)
    page.mouse.down()
    page.mouse.move(across - 100, down, steps=5)
    page.mouse.up()
    page.wait_for_function(
        f"JSON.stringify({SENTENCES}) !== {json.dumps(json.dumps(before))}", timeout=20_000
    )
    # a threshold of the grid lies near
    page.wait_for_function(f"Math.abs({LINE}[0] - {across - 103}) < 15", timeout=20_000)


def test_an_explorer_is_dragged_downloads_what_it_shows_and_is_saved_with_every_picture_and_plotly_once(
    server, browser, watched
):
    cells = [SOURCE.format(samples=2_000), "widgets.scores(found)"]
    with lab.live_notebook(
        server, browser, "scores", cells, kernel=lab.FORKED, watched=watched
    ) as (
        page,
        external,
        errors,
        notebook,
    ):
        for name, start in (("CSV", b"# Scores and ROC"), ("PNG", b"\x89PNG")):
            # of two pictures one may still be on its way
            ends = name.lower()
            with page.expect_download(
                lambda file, ends=ends: file.suggested_filename.endswith(ends), timeout=30_000
            ) as caught:
                page.locator("button.jupyter-button", has_text=name).click()
            assert Path(caught.value.path()).read_bytes().startswith(start)
        drags(page)
        # beside other tests; its time proper is the test before
        moves_and_saves(page, notebook, 2000)
        assert (external, errors) == ([], [])
    state = json.loads(notebook.read_text())["metadata"]["widgets"][
        "application/vnd.jupyter.widget-state+json"
    ]["state"]
    figures = [one["state"] for one in state.values() if "figure" in one["state"]]
    libraries = [
        one
        for one in state.values()
        if one["state"].get("_esm", "").startswith("export default {render() {}}")
    ]
    assert len(figures) == 2 and len(libraries) == 1
    assert all(json.loads(figure["figure"])["data"] for figure in figures)


GAME = [
    (
        "import numpy as np\nfrom test_workshop import SAMPLES, cube_of\nfrom mia_nb import"
        " widgets, workshop\nfrom mia_nb.workshop import questions\nx = np.random.default_rng(1).integers(0, 256, (SAMPLES, 1, 8, 8),"
        " np.uint8)\nsource = widgets.stored.Source('toy', cube_of(), images=x, classes=tuple('abcde'))"
    ),
    "questions.Prediction('Which one?', ['this', 'that'], answer='that', why='because so')",
    "workshop.game(source)",
]
SENTENCE = f"{SENTENCES}.join(' | ')"


def test_the_game_is_played_in_jupyterlab(server, browser, watched):
    """A participant at a laptop: predicts with the keyboard, accuses by a click, is scored."""
    with lab.live_notebook(server, browser, "game", GAME, kernel=lab.FORKED, watched=watched) as (
        page,
        external,
        errors,
        _,
    ):
        lab.wait_for_figures(page, 2)
        assert "because so" not in page.evaluate(
            "[...document.querySelectorAll('.jp-OutputArea')].map(e => e.innerText).join()"
        )
        page.locator("input[type=radio]").first.focus()
        page.keyboard.press("Space")
        page.wait_for_function(f"{SENTENCE}.includes('because so')")
        sheet = page.locator(".js-plotly-plot").first
        sheet.scroll_into_view_if_needed()
        box = sheet.evaluate(
            """p => { const r = p.getBoundingClientRect(), x = p._fullLayout.xaxis, y = p._fullLayout.yaxis;
            const t = p._fullData.find(t => t.mode === 'markers');
            return [r.left + x._offset + x.d2p(t.x[0]), r.top + y._offset + y.d2p(t.y[0])]; }"""
        )
        lab.click_point(page, *box)
        page.wait_for_function(f"{SENTENCE}.includes('1 of 20 accused')")
        page.locator("button:has-text('submit')").first.click()
        page.wait_for_function(f"/You: \\d+ of 20 right/.test({SENTENCE})")
        page.wait_for_function(
            "document.querySelector('.js-plotly-plot')._fullLayout.shapes.length >= 20"
        )
        assert (external, errors) == ([], [])


@contextlib.contextmanager
def dashboard(results: Path, log: Path):
    """`mia-nb explore`; yields the address that it prints."""
    command = [sys.executable, "-m", "mia_nb.cli", "explore", "--results", str(results)]
    command += ["--port", "0", "--no-browser"]
    with open(log, "w") as out:
        server = subprocess.Popen(
            command,
            cwd=results.parent,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 60
        while "(stop" not in log.read_text() and server.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield re.search(r"http\S+", log.read_text())[0]
    finally:
        server.terminate()
        status = server.wait(20)
    assert status == 0 and "Traceback" not in log.read_text()


def test_the_dashboard_shows_explorers_without_code_and_asks_nothing_of_the_network(
    tour, browser, tmp_path, monkeypatch
):
    monkeypatch.delenv("MIA_NB_MODE", raising=False)
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join(filter(None, [str(TESTS.parent), os.environ.get("PYTHONPATH")])),
    )
    with (
        dashboard(tour.path.parent, tmp_path / "voila.log") as address,
        lab.fresh_page(browser) as (page, external, errors),
    ):
        page.goto(address, timeout=120_000)
        page.wait_for_function(
            "document.querySelector('.js-plotly-plot .main-svg') !== null", timeout=90_000
        )
        before = page.evaluate(SENTENCES)
        assert before and page.locator(".jp-CodeCell .jp-InputArea").count() == 0
        page.locator(".noUi-handle").first.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function(
            f"JSON.stringify({SENTENCES}) !== {json.dumps(json.dumps(before))}", timeout=20_000
        )
        assert (external, errors) == ([], [])
    # nor does a visit write to the terminal
    assert (tmp_path / "voila.log").read_text().splitlines() == [f"{address} (stop with Ctrl-C)"]


@contextlib.contextmanager
def run_in_lab(server: lab.Server, watched: lab.Watched, name: str, cells: list[str], figures: int):
    """A notebook of these cells, run without an error, with so many figures drawn; its page."""
    lab.write_notebook(server.root / name / "live.ipynb", cells)
    page, external, errors = watched
    lab.open_notebook(page, server, f"{name}/live.ipynb")
    outputs = lab.run_all(page, timeout=300)
    failed = [output for output in outputs if output["output_type"] == "error"]
    assert [output["evalue"] for output in failed] == []
    lab.wait_for_figures(page, figures)
    yield page
    assert (external, errors) == ([], [])


def test_the_readme_runs_from_top_to_bottom_as_a_notebook_and_shows_what_its_lines_end_in(
    server, watched
):
    readers = "from test_readme import readers_own\nglobals().update(readers_own())"
    lines = [cell for block in CODE["README.md"] for cell in statements_of(block)]
    cells = [readers, *lines, "mia.audit(model, train, test)"]  # printed above, displayed here
    with run_in_lab(server, watched, "readme", cells, figures=3) as page:
        assert page.locator(".noUi-handle").count() > 0  # of the explorer
        assert page.locator(".jp-RenderedHTMLCommon table").count() > 0  # of the audit


HOSTILE = """
import numpy as np
import mia_nb as mia

NAME = '<img src=x onerror="window.owned = 1; alert(1)"><script>window.owned = 2</script>`|$x$'
images = mia.load("digits", limit=200)._replace(name=NAME, classes=(NAME, *map(str, range(9))))
pool = mia.train(mia.Recipe(num_models=4, epochs=1), images)
signals = mia.query(pool, images)
groups = np.where(np.arange(len(images.y)) % 2, NAME, "harmless")
scores = {NAME: mia.score("loss", signals), "rmia": mia.score("rmia", signals)}
"""
HOSTILE_CELLS = [
    HOSTILE,
    "images",
    "pool",
    "mia.verdict(scores, groups=groups, about=NAME, n_resamples=50)",
    "mia.readable(mia.summary(scores, n_resamples=50))",
    "mia.roc(scores)",
    'mia.explore("results")',
]
HARM = "window.owned ?? document.querySelectorAll('img[src=\"x\"]').length"


def test_names_of_strangers_stand_in_jupyterlab_and_do_nothing(server, watched):
    with run_in_lab(server, watched, "hostile", HOSTILE_CELLS, figures=3) as page:
        assert page.evaluate(HARM) == 0
        assert "<script>window.owned" in page.inner_text("body")
        for tab in page.locator(".lm-TabBar-tab:visible").all():
            tab.click()
            page.wait_for_timeout(300)
        assert page.evaluate(HARM) == 0
