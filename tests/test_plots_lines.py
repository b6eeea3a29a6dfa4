"""Lines over the long table hold exactly what they were given, on axes that lose nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mia_nb import metrics, plots
from mia_nb.plots.style import TEMPLATE
from mia_nb.types import Scores

# RMIA on ResNet18, CIFAR-10 (Guan et al. 2025, Tables 3, 4, 6)
AUC = {
    "hybrid": {1: 0.5989, 2: 0.6083, 4: 0.6261},
    "hybrid, input dropout": {1: 0.6384, 2: 0.6428, 4: 0.6465},
    "direct": {4: 0.6385},
    "ANN references": {1: 0.5852, 2: 0.5968, 4: 0.6132},
}
LEVELS = pd.DataFrame(
    [("ANN", 0.6384, 0.632, 0.645), ("ANN, input dropout", 0.645, np.nan, np.nan)],
    columns=["line", "value", "low", "high"],
)


def against_t(lines=AUC, half=0.008) -> pd.DataFrame:
    rows = [
        (name, t, v, v - half, v + half)
        for name, values in lines.items()
        for t, v in values.items()
    ]
    return pd.DataFrame(rows, columns=["line", "T", "value", "low", "high"])


def trace(figure, name):
    return next(t for t in figure.data if t.name == name)


def test_every_value_and_interval_is_the_tables():
    table = against_t()
    figure = plots.lines(table, "T", levels=LEVELS, log=True)
    for name, rows in table.groupby("line"):
        drawn = trace(figure, name)
        assert list(drawn.customdata) == list(rows["T"])
        np.testing.assert_array_equal(drawn.y, rows["value"])
        np.testing.assert_allclose(drawn.y + drawn.error_y.array, rows["high"])
        np.testing.assert_allclose(drawn.y - drawn.error_y.arrayminus, rows["low"])
        np.testing.assert_array_equal(np.rint(np.log2(drawn.x)), np.log2(rows["T"]))
    assert list(trace(figure, "ANN").y) == [0.6384] * 2
    assert list(trace(figure, "ANN, input dropout").y) == [0.645] * 2
    bands = [t for t in figure.data if t.line.width == 0]
    # the second level has no interval and so no band
    assert [set(t.y) for t in bands] == [{0.632}, {0.645}]


def test_a_logarithmic_axis_names_every_setting_and_holds_every_point():
    figure = plots.lines(
        against_t({"hybrid": {1: 0.6, 3: 0.61, 64: 0.7}}), "T", levels=LEVELS, log=True
    )
    axis = figure.layout.xaxis
    assert axis.type == "log"
    assert list(axis.tickvals) == [1, 3, 64] and list(axis.ticktext) == ["1", "3", "64"]
    for drawn in figure.data:
        assert (np.log10(drawn.x) >= axis.range[0]).all()
        assert (np.log10(drawn.x) <= axis.range[1]).all()


def test_infinity_stands_apart_and_open_behind_the_last_number():
    table = against_t({"SDENet": {1: 0.6, 4: 0.65, np.inf: 0.7}})
    figure = plots.lines(table, "T", log=True)
    measured, limit = figure.data
    assert list(measured.y) == [0.6, 0.65] and measured.mode == "lines+markers"
    assert list(limit.y) == [0.7] and limit.mode == "markers" and not limit.showlegend
    assert limit.marker.symbol[0].endswith("-open") and limit.x[0] > 4 * 2
    assert list(figure.layout.xaxis.ticktext) == ["1", "4", "∞"]
    assert list(limit.customdata) == ["∞"]


def test_words_are_not_joined_and_keep_their_order():
    table = against_t({"a": {"rk4": 0.6, "euler": 0.61}, "b": {"rk4": 0.5, "euler": 0.55}})
    figure = plots.lines(table, "T")
    assert [drawn.mode for drawn in figure.data] == ["markers"] * 2
    assert list(figure.layout.xaxis.ticktext) == ["rk4", "euler"]
    assert figure.layout.xaxis.type == "linear"


def pool(shift: float, seed: int) -> Scores:
    rng = np.random.default_rng(seed)
    member = np.repeat([[True, False], [False, True]], 200, axis=1)
    member = np.concatenate([member, member])
    value = rng.normal(size=member.shape) + shift * member
    half = np.array([[0.9, 0.8]] * 4)
    return Scores(value, member, np.arange(4), np.arange(4) // 2, half, half, {})


def test_a_summary_is_drawn_with_a_panel_for_each_metric():
    tables = []
    for epochs, shift in ((5, 0.3), (20, 0.8)):
        table = metrics.summary(
            {"loss": pool(shift, 1), "rmia": pool(shift, 2)}, (0.01, 0.1), n_resamples=20
        )
        tables.append(table[table["attack"] != "max"].assign(epochs=epochs))
    table = pd.concat(tables)
    table = table[table["metric"].isin(["auc", "tpr", "test_acc"])]
    figure = plots.lines(table, "epochs", line="attack", panel="metric", log=True)
    titles = [figure.layout[f"yaxis{i}"].title.text for i in ("", 2, 3, 4)]
    assert titles == ["AUC", "TPR at 1 % FPR", "TPR at 10 % FPR", "test accuracy"]
    assert figure.layout.yaxis.tickformat is None and figure.layout.yaxis2.tickformat == "~%"
    loss = [drawn for drawn in figure.data if drawn.name == "loss"]
    assert [drawn.showlegend for drawn in loss] == [True, False, False, False]
    assert len({drawn.line.color for drawn in loss}) == 1
    auc = table[(table["metric"] == "auc") & (table["attack"] == "loss")]
    assert list(loss[0].y) == list(auc["value"])
    # 4 non-members of 400 at 1 % false positives
    assert all(symbol.endswith("-open") for symbol in loss[1].marker.symbol)
    assert not any(symbol.endswith("-open") for symbol in loss[2].marker.symbol)
    chances = {shape.yref: shape.y0 for shape in figure.layout.shapes}
    assert chances == {"y": 0.5, "y2": 0.01, "y3": 0.1}
    assert "200 members" in loss[0].hovertext[0]


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        ([0.884243, 0.9001, 0.915966], ["0.884", "0.9001", "0.916"]),
        ([0.884243, 0.887243, 0.915966], ["0.884", "0.887", "0.916"]),
        ([0.0625, 0.125, np.inf], ["0.0625", "0.125", "∞"]),
        ([0.333333, 1.0, np.inf], ["0.333", "1", "∞"]),
        ([1, 512, 1024], ["1", "512", "1024"]),
        ([0.001, 1 / 3, 2 / 3], ["0.001", "0.333", "0.667"]),
        ([0.00012345, 0.5, 1.0], ["0.000123", "0.5", "1"]),
        ([0.884243], ["0.884"]),
        ([0.8842431, 0.8842439], ["0.884243", "0.884244"]),
        (["a long name", "another"], ["a long name", "another"]),
    ],
)
def test_settings_that_nobody_chose_are_written_in_few_digits(settings, texts):
    table = pd.DataFrame({"x": settings, "line": "a", "value": 0.6, "metric": "auc"})
    axis = plots.lines(table, "x").layout.xaxis
    assert list(axis.ticktext) == texts and len(axis.tickvals) == len(texts)


def test_an_axis_of_many_settings_is_written_at_powers_of_2_or_else_at_its_ends():
    table = pd.DataFrame({"x": range(1, 17), "line": "a", "value": 0.6, "metric": "auc"})
    assert plots.lines(table, "x", log=True).layout.xaxis.ticktext == ("1", "2", "4", "8", "16")
    table["x"] = 3 * table["x"] / 7
    assert plots.lines(table, "x", log=True).layout.xaxis.ticktext == ("0.429", "6.86")


def test_one_pair_is_not_one_pairs():
    table = pd.DataFrame({"T": [1, 2], "line": "a", "value": [0.6, 0.7], "metric": "auc"})
    table = table.assign(low=0.5, high=0.8, pairs=[1, 2], n1=[1, 1200], n0=30)
    (drawn,) = plots.lines(table, "T").data
    assert drawn.hovertext[0] == "1 pair · 1 member · 30 non-members"
    assert drawn.hovertext[1].startswith("2 pairs · 1,200 members")


def test_values_without_intervals_have_no_bars_and_stand_at_their_setting():
    table = against_t().drop(columns=["low", "high"])
    for drawn in plots.lines(table, "T").data:
        assert np.isnan(drawn.error_y.array).all()
        assert list(drawn.x) == list(drawn.customdata)


def test_a_variant_is_told_by_its_dash():
    one = against_t({"loss": {1: 0.5, 2: 0.6}})
    table = pd.concat([one.assign(recipe="plain"), one.assign(recipe="crop", value=0.7)])
    plain, crop = plots.lines(table, "T", variant="recipe").data
    assert (plain.name, crop.name) == ("loss, plain", "loss, crop")
    assert plain.line.color == crop.line.color and plain.line.dash != crop.line.dash


def test_title_and_caption_are_the_callers_and_a_long_title_has_room():
    short, long = (
        plots.lines(against_t(), "T", title=title, caption="bars 95 %")
        for title in ("AUC against T", "AUC against T " * 12)
    )
    assert short.layout.title.text == "AUC against T" and short.layout.template == TEMPLATE
    assert short.layout.title.subtitle.text == "bars 95 %" and short.layout.width is None
    room = long.layout.margin.t - TEMPLATE.layout.margin.t
    assert room == long.layout.height - short.layout.height > 0


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda t: t.drop(columns=["value"]), {}, "value missing"),
        (lambda t: t.assign(value=[*t["value"][1:], np.inf]), {}, "value is infinite where T is 4"),
        (lambda t: t.head(0), {}, "without rows"),
        (lambda t: t.assign(T=0), {"log": True}, "line = hybrid, T = 0 comes more than once"),
        (lambda t: t.assign(T=t["T"] - 1), {"log": True}, "T is 0: wanted numbers above 0"),
        (lambda t: t.assign(T=[np.nan, *t["T"][1:]]), {}, "T is nan in a row"),
        (lambda t: pd.concat([t, t]), {}, "line = hybrid, T = 1 comes more than once"),
        (lambda t: t, {"panel": "metric"}, "metric missing"),
    ],
)
def test_tables_that_cannot_be_drawn_are_refused_in_one_line(change, options, message):
    with pytest.raises(ValueError, match=message) as error:
        plots.lines(change(against_t()), "T", **options)
    assert "\n" not in str(error.value)
