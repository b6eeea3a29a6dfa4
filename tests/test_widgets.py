"""The notebooks' set-up: parameters are what they claim to be, whatever papermill made of them."""

from __future__ import annotations

import os
import sys

import numpy as np
import pandas as pd
import plotly.io as pio
import pytest
from ipywidgets import SelectionSlider
from nbformat import v4

from mia_nb import load_example, studies, widgets, workshop
from mia_nb.report.markup import html_of
from mia_nb.types import Signals
from mia_nb.widgets import Source


@pytest.fixture(autouse=True)
def _as_found(monkeypatch):
    monkeypatch.setenv("MIA_NB_MODE", "live")
    monkeypatch.setattr(pio.renderers, "default", pio.renderers.default)


def test_images_of_other_samples_than_the_signals_are_refused():
    signals = load_example("cifar10/resnet14")
    few = np.zeros((10, 3, 8, 8), np.uint8)
    with pytest.raises(ValueError, match=r"images have shape \(10, 3, 8, 8\) and the signals"):
        Source("mine", signals, images=few)
    with pytest.raises(ValueError, match=r"images have shape \(10, 64\)"):
        Source("mine", signals.select(samples=range(10)), images=few[:, 0].reshape(10, -1))


@pytest.mark.parametrize("inside", [False, True])
def test_signals_without_members_or_others_have_no_threshold_and_a_line_says_so(inside):
    rng = np.random.default_rng(0)
    member = np.full((2, 90), inside)
    signals = Signals.from_logits(rng.normal(size=(2, 90, 3)), np.arange(90) % 3, member)
    said = str(widgets.scores([Source("mine", signals)], attacks=["loss"]))
    assert "loss threshold scored no member or no non-member of a model of mine" in said


def namespace(annotations: dict, **values) -> dict:
    return {"__annotations__": annotations, **values}


@pytest.mark.parametrize(
    ("wanted", "given", "value"),
    [
        (bool, "false", False),
        (bool, "True", True),
        (int, "16", 16),
        (int | None, "null", None),
        (int | None, None, None),
        (float, 1, 1.0),
        (float, "0.5", 0.5),
        (list, "[rmia, loss]", ["rmia", "loss"]),
        (dict, "{width: 32}", {"width": 32}),
        (str, "false", "false"),
        (str | None, "null", None),
        (str | None, "cpu", "cpu"),
    ],
)
def test_text_becomes_the_annotated_type(wanted, given, value):
    found = namespace({"x": wanted}, x=given)
    widgets.setup(found)
    assert found["x"] == value and type(found["x"]) is type(value)


@pytest.mark.parametrize(
    ("wanted", "given"),
    [(int, "many"), (int, 2.5), (int, True), (bool, 1), (str, 12), (list, "rmia")],
)
def test_what_does_not_fit_is_named_with_the_type_it_should_have(wanted, given):
    with pytest.raises(
        ValueError,
        match=rf"^epochs={given!r} is .*, wanted {wanted.__name__}",
    ):
        widgets.setup(namespace({"epochs": wanted}, epochs=given))


def test_names_without_a_value_and_values_without_a_type_are_left_alone():
    found = namespace({"epochs": int}, other="x")
    widgets.setup(found)
    assert found == namespace({"epochs": int}, other="x")


def test_annotations_of_the_parameters_cell_are_still_known_after_papermill_has_overwritten_the_values():
    found: dict = {}
    for cell in ("epochs: int = 20\nforce: bool = True", "epochs = '3'\nforce = 'false'"):
        exec(compile(cell, "cell", "exec", dont_inherit=True), found)
    widgets.setup(found)
    assert (found["epochs"], found["force"]) == (3, False)


@pytest.mark.parametrize(("mode", "kept"), [("batch", "batch"), ("live", "live"), ("auto", "live")])
def test_the_mode_parameter_overrides_the_runners_choice_unless_auto(mode, kept):
    widgets.setup(namespace({"mode": str}, mode=mode))
    assert os.environ["MIA_NB_MODE"] == kept


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="mode='fast' is not one of auto, batch, live"):
        widgets.setup(namespace({"mode": str}, mode="fast"))


def test_figures_are_stored_as_plotly_json_and_a_line():
    import plotly.graph_objects as go

    widgets.setup({})
    bundle = pio.renderers._build_mime_bundle(go.Figure(layout={"height": 300}).to_dict())
    assert set(bundle) == {"application/vnd.plotly.v1+json", "text/html"}
    # the line for programs that cannot draw it, and no second copy of the figure
    assert len(bundle["text/html"]) < 200 and "script" not in bundle["text/html"]
    assert bundle["application/vnd.plotly.v1+json"]["config"]["responsive"] is True


def test_relative_folders_start_at_the_projects_home(monkeypatch, tmp_path):
    monkeypatch.setenv("MIA_NB_HOME", str(tmp_path))
    source = {"dataset": "digits", "data_root": "/elsewhere"}
    found = namespace({"results": str, "source": dict}, results="results", source=source)
    widgets.setup(found)
    assert found["results"] == str(tmp_path / "results")
    assert found["source"].data_root == "/elsewhere"


def test_records_take_fields_by_their_bare_names_and_keep_the_notebooks_own_defaults():
    cells = [
        "",
        'recipe: dict = {"epochs": 5, "lr": 0.5}  # of training\nrun: dict = {}  # how',
        "# Parameters\nbatch = 64\nforce = 'true'\nrecipe = {'epochs': 7}\n",
    ]
    found: dict = {"In": cells}
    for cell in cells:
        exec(compile(cell, "cell", "exec", dont_inherit=True), found)
    widgets.setup(found)
    recipe = found["recipe"]
    assert (recipe.epochs, recipe.lr, recipe.batch, recipe.num_models) == (7, 0.5, 64, 16)
    assert {**found["run"]}["force"] is True
    widgets.setup(found)  # the cell may be executed again
    assert found["recipe"] == recipe


def test_a_name_that_is_nobodys_is_refused_although_papermill_would_take_it():
    cells = ['recipe: dict = {"epochs": 5}  # of training', "# Parameters\nepoch = 3\n"]
    found: dict = {"In": cells}
    for cell in cells:
        exec(compile(cell, "cell", "exec", dont_inherit=True), found)
    with pytest.raises(ValueError, match=r"no parameter 'epoch'; did you mean 'epochs'\?"):
        widgets.setup(found)


def test_a_source_of_some_samples_of_shipped_signals_shows_those_alone():
    few = load_example("digits/ordinary-05").select(samples=range(0, 1797, 20))
    assert Source("few", few).signals is few and few.margin.shape == (16, 1, 90)
    assert workshop.open_cube("nowhere")["small"].signals.margin.shape == (16, 1, 2500)


def test_a_figure_that_follows_controls_is_shown_once_in_batch_mode(monkeypatch, capsys):
    shown, controls = [], {"name": ["a", "b"], "noise": SelectionSlider(options=[1, 2], value=2)}
    monkeypatch.setattr(sys.modules["mia_nb.widgets.setup"], "display", shown.append)
    widgets.interact(lambda name, noise: shown.append((name, noise)), **controls)
    first, panel = shown  # which draws into its own output
    panel.kwargs_widgets[0].value = "b"
    assert first == ("a", 2) and shown[2:] == [("b", 2)]
    monkeypatch.setenv("MIA_NB_MODE", "batch")
    widgets.interact(lambda name, noise: shown.append((name, noise)), **controls)
    assert shown[3:] == [("a", 2)]

    def refuse(noise):
        raise ValueError("train more pairs")

    monkeypatch.setenv("MIA_NB_MODE", "live")
    widgets.interact(refuse, noise=[1])
    assert capsys.readouterr().out.endswith("train more pairs\n")


def test_evidence_is_a_list_of_claims_in_the_notebook_and_in_the_report():
    """A table would be set at the right edge, and lose in the report what was not run."""
    claims = pd.DataFrame(
        {
            "claim": ["RMIA < LiRA", "Noise hides"],
            "as_printed": ["holds", "not run"],
            "verdict": ["holds", "not run"],
            "evidence": ["AUC: 2 of 2 for; TPR: 1 of 2 for", "not run: needs noise"],
            "as_printed_evidence": ["AUC: 1 of 1 for", "not run: needs noise"],
        },
        index=["S1", "S2"],
    )
    shown = widgets.folded("What each verdict rests on", studies.evidence_readable(claims)).data
    assert shown == (
        "<details><summary>What each verdict rests on</summary>"
        "<p><b>S1. RMIA &lt; LiRA</b></p>"
        "<ul><li>holds<ul><li>AUC: 2 of 2 for</li><li>TPR: 1 of 2 for</li></ul></li>"
        "<li>as printed: holds<ul><li>AUC: 1 of 1 for</li></ul></li></ul>"
        "<p><b>S2. Noise hides</b></p>"
        "<ul><li>not run<ul><li>not run: needs noise</li></ul></li>"
        "<li>as printed: not run<ul><li>not run: needs noise</li></ul></li></ul></details>"
    )
    cell = v4.new_code_cell(
        outputs=[v4.new_output("execute_result", {"text/html": shown}, execution_count=1)]
    )
    assert shown in html_of([cell])
