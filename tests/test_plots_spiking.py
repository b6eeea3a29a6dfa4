"""Figures of spiking pools hold exactly what they were given, say true sentences, and lose nothing
on a log axis.
"""

from __future__ import annotations

import base64
import io

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from mia_nb import plots
from mia_nb.plots.style import TEMPLATE


def trace(figure, name):
    return next(t for t in figure.data if t.name == name)


def title(figure) -> str:
    return figure.layout.title.text.replace("<br>", " ")


def conversion_report(models=3, sites=("spike0", "spike1", "spike10")) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    columns = ["theta", "u0", "expected_error", "clipped_mass", "firing_rate"]
    rows = [(m, s, *rng.uniform(0.01, 0.4, 5)) for m in range(models) for s in sites]
    return pd.DataFrame(rows, columns=["model", "site", *columns])


def grid(gain=0.02, error=0.004) -> pd.DataFrame:
    rows = [
        (0.0, 1, 0.61, error),
        (0.01, 1, 0.605, error),
        (0.01, 30, 0.61 + gain, error),
        (0.05, 30, 0.6, error),
    ]
    return pd.DataFrame(rows, columns=["p", "queries", "value", "error"])


def layer(steps=16, neurons=40, theta=1.0, seed=0):
    """(spk, mem before reset) of integrate-and-fire neurons under constant input."""
    x, mem = np.random.default_rng(seed).normal(0.15, 0.25, neurons), np.full(neurons, 0.5) * theta
    spikes, potentials = [], []
    for _ in range(steps):
        mem = mem + x
        spikes.append(mem >= theta)
        potentials.append(mem)
        mem = mem - theta * spikes[-1]
    return np.array(spikes), np.array(potentials)


def test_sites_show_median_and_range_over_models_in_the_networks_order():
    report = conversion_report()
    figure = plots.sites(report)
    for drawn, column in zip(figure.data, ("theta", "clipped_mass", "firing_rate"), strict=True):
        cube = report[column].to_numpy().reshape(3, 3)
        assert list(drawn.x) == ["spike0", "spike1", "spike10"]
        np.testing.assert_allclose(drawn.y, np.median(cube, axis=0))
        np.testing.assert_allclose(drawn.y + drawn.error_y.array, cube.max(0))
        np.testing.assert_allclose(drawn.y - drawn.error_y.arrayminus, cube.min(0))
    rate = report.groupby("site", sort=False)["firing_rate"].median()
    assert (
        f"the 3 sites fire in {rate.min():.1%} ({rate.idxmin()}) to {rate.max():.1%}"
        f" ({rate.idxmax()})" in title(figure)
    )


def test_a_site_without_activation_is_named_and_keeps_its_place():
    report = conversion_report()
    report.loc[report["site"] == "spike1", ["theta", "u0"]] = np.nan
    figure = plots.sites(report)
    assert "no activation and so no threshold: spike1" in figure.layout.title.subtitle.text
    np.testing.assert_array_equal(np.isnan(figure.data[0].y), [False, True, False])
    assert np.isfinite(figure.data[2].y).all()


def test_reports_with_missing_or_doubled_sites_are_refused():
    report = conversion_report()
    with pytest.raises(ValueError, match="comes more than once: wanted one row per site"):
        plots.sites(pd.concat([report, report]))
    with pytest.raises(ValueError, match="firing_rate is nan"):
        plots.sites(report.assign(firing_rate=np.nan))
    with pytest.raises(ValueError, match="u0 missing"):
        plots.sites(report.drop(columns="u0"))


def test_the_heatmap_stars_and_outlines_the_chosen_cell_and_leaves_untried_ones_empty():
    figure = plots.heatmap(grid(), chosen=(0.01, 1), name="AUC")
    cells = figure.data[0]
    assert list(cells.x) == ["1", "30"] and list(cells.y) == ["0", "0.01", "0.05"]
    np.testing.assert_array_equal(cells.z, [[0.61, np.nan], [0.605, 0.63], [np.nan, 0.6]])
    assert [list(row) for row in cells.text] == [
        ["0.610 ± .004", ""],
        ["★ 0.605 ± .004", "0.630 ± .004"],
        ["", "0.600 ± .004"],
    ]
    for shape in figure.layout.shapes:
        assert (shape.x0, shape.x1, shape.y0, shape.y1) == (-0.5, 0.5, 0.5, 1.5)
    assert "empty: not tried" in figure.layout.title.subtitle.text


@pytest.mark.parametrize(
    ("gain", "end"),
    [
        (0.02, "the best cell is 0.020 above p = 0, beyond one standard error"),
        (0.003, "the best cell is 0.003 above p = 0, within one standard error"),
        (-0.003, "no cell beats p = 0"),
    ],
)
def test_the_heatmaps_sentence_applies_the_one_standard_error_rule(gain, end):
    figure = plots.heatmap(grid(gain), chosen=(0.01, 30), name="AUC of rmia")
    assert (
        title(figure)
        == f"p = 0.01 with 30 queries is chosen: AUC of rmia {0.61 + gain:.3f} ± .004; {end}"
    )


def test_the_heatmap_refuses_a_choice_that_was_not_tried_and_cells_given_twice():
    with pytest.raises(ValueError, match=r"chosen=\(0.02, 30\) is not in the table"):
        plots.heatmap(grid(), chosen=(0.02, 30), name="AUC")
    with pytest.raises(ValueError, match="p = 0, queries = 1 comes more than once"):
        plots.heatmap(pd.concat([grid(), grid()]), chosen=(0.01, 1), name="AUC")
    with pytest.raises(ValueError, match="error is nan"):
        plots.heatmap(grid(error=np.nan), chosen=(0.01, 1), name="AUC")
    with pytest.raises(ValueError, match="no row of p = 0"):
        plots.heatmap(grid().query("p > 0"), chosen=(0.01, 30), name="AUC")


def test_the_raster_holds_every_spike_with_the_busiest_neuron_on_top():
    spk, mem = layer()
    figure = plots.raster(spk, mem, np.ones(spk.shape[1]), name="spike3")
    cells = figure.data[0]
    neurons = np.asarray(cells.customdata)[:, 0]
    np.testing.assert_array_equal(np.asarray(cells.z), spk.T[neurons])
    assert sorted(neurons) == list(range(40)) and (np.diff(spk.mean(0)[neurons]) >= 0).all()
    silent = int((~spk.any(0)).sum())
    assert (
        title(figure)
        == f"spike3: 40 neurons fire in {spk.mean():.1%} of 16 time steps; {silent} of them never"
    )


def test_a_raster_of_one_time_step_counts_one():
    spk, mem = layer()
    assert f"{spk[:1].mean():.1%} of 1 time step; " in title(
        plots.raster(spk[:1], mem[:1], np.ones(40))
    )


def test_the_traces_are_membranes_before_reset_with_filled_markers_where_they_reach_the_threshold():
    theta = np.random.default_rng(1).uniform(0.5, 2, 300)
    spk, mem = layer(neurons=300, theta=theta)
    figure = plots.raster(spk, mem, theta)
    traces = [t for t in figure.data if t.name and t.name.startswith("neuron")]
    traced = [int(t.name.split()[1].rstrip(",")) for t in traces]
    rates = spk.mean(0)
    assert (
        rates[traced[0]] == rates.max()
        and rates[traced[2]] == rates[rates > 0].min()
        and len(set(traced)) == 3
    )
    for neuron, drawn in zip(traced, traces, strict=True):
        np.testing.assert_array_equal(drawn.y, mem[:, neuron])
        np.testing.assert_array_equal(
            [not symbol.endswith("-open") for symbol in drawn.marker.symbol], spk[:, neuron]
        )
        level = next(
            t for t in figure.data if t.name == f"threshold {theta[neuron]:.3g} of neuron {neuron}"
        )
        assert set(level.y) == {theta[neuron]} and level.line.dash == "dash"
        # a traced neuron is never thinned away
        assert neuron in np.asarray(figure.data[0].customdata)
    assert "of 300 neurons drawn" in figure.layout.title.subtitle.text


def test_a_silent_layer_shows_the_neurons_that_come_closest():
    mem = np.tile([0.1, 0.9, 0.5, 0.8], (4, 1))
    figure = plots.raster(np.zeros((4, 4), bool), mem, np.ones(4))
    traces = [t.name for t in figure.data if t.name and t.name.startswith("neuron")]
    assert traces == ["neuron 1, fires 0%", "neuron 3, fires 0%", "neuron 2, fires 0%"]


def test_the_image_beside_the_raster_keeps_its_pixels():
    x = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)
    figure = plots.raster(*layer(), np.ones(40), image=x)
    shown = np.asarray(
        Image.open(io.BytesIO(base64.b64decode(figure.layout.images[0].source.split(",")[1])))
    )
    np.testing.assert_array_equal(shown[::24, ::24], x.transpose(1, 2, 0))
    assert figure.layout.xaxis.domain[1] < figure.layout.images[0].x
    with pytest.raises(ValueError, match="uint8"):
        plots.raster(*layer(), np.ones(40), image=x / 255)


def test_the_raster_refuses_membranes_after_the_reset_and_wrong_shapes():
    spk, mem = layer()
    with pytest.raises(ValueError, match="before the reset"):
        plots.raster(spk, mem - spk, np.ones(40))
    with pytest.raises(ValueError, match=r"wanted \(T, neurons\)"):
        plots.raster(spk, mem[:, :3], np.ones(40))
    with pytest.raises(ValueError, match=r"wanted \(T, neurons\)"):
        plots.raster(spk, mem, np.ones(3))


def every_figure() -> dict:
    spk, mem = layer(64, 5000)
    return {
        "sites": plots.sites(conversion_report(16, tuple(f"spike{i}" for i in range(17)))),
        "heatmap": plots.heatmap(grid(), chosen=(0.01, 30), name="AUC"),
        "raster": plots.raster(
            spk, mem, np.ones(spk.shape[1]), image=np.zeros((1, 28, 28), np.uint8)
        ),
    }


def test_figures_share_the_template_fit_their_page_say_a_sentence_and_stay_light():
    for name, figure in every_figure().items():
        assert (
            figure.layout.width is None
            and figure.layout.height
            and figure.layout.template == TEMPLATE
        ), name
        assert len(title(figure).split()) > 4 and figure.layout.title.subtitle.text, name
        assert len(figure.to_json()) < 300_000, name
