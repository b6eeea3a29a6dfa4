"""Pictures of single samples: what is drawn is what was given."""

from __future__ import annotations

import base64
import io

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from mia_nb.plots import samples
from mia_nb.widgets.figure import with_line


def unpacked(values):
    kind = {"f4": np.float32, "i4": np.int32}[values["dtype"]]
    return np.frombuffer(base64.b64decode(values["bdata"]), kind)


def pixels(figure):
    source = figure["data"][0]["source"]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))))


def named(figure, start):
    return next(trace for trace in figure["data"] if trace.get("name", "").startswith(start))


def test_every_point_carries_its_sample():
    x, y = np.arange(6.0), np.array([3, 1, np.nan, 5, 4, 2.0])
    member = np.array([1, 0, 1, 0, 1, 0], bool)
    numbers = np.array([9, 4, 7, 30, 2, 5])
    figure = samples.score_points(x, y, member, numbers, names=("loss", "rmia"))
    drawn = {t["name"]: list(unpacked(t["customdata"])) for t in figure["data"]}
    assert drawn == {"non-members": [4, 30, 5], "members": [9, 2]}
    assert np.array_equal(unpacked(figure["data"][0]["y"]), [1, 5, 2])
    go.Figure(figure)


def test_of_many_points_at_most_3000_are_drawn_and_the_sentence_counts_all():
    x, numbers = np.arange(20_000.0), np.arange(20_000)
    figure = samples.score_points(x, x, numbers < 9000, numbers, names=("loss", "rmia"))
    assert sum(len(unpacked(trace["x"])) for trace in figure["data"]) == 3000
    assert (
        "1.00" in figure["layout"]["title"]["text"]
        and "20,000" in figure["layout"]["title"]["text"]
    )


def test_thinned_points_are_finite_and_as_many_as_wanted():
    x = np.arange(500.0)
    x[::7] = np.nan
    shown, there = samples.thinned(x, x, 40)
    assert there == np.isfinite(x).sum() and len(shown) == 40
    assert len(samples.thinned(x, x)[0]) == there


def test_a_small_image_is_enlarged_without_smoothing():
    x = np.random.default_rng(0).integers(0, 256, (1, 8, 8), dtype=np.uint8)
    large = pixels(samples.picture(x, "a digit"))
    assert large.shape == (256, 256, 3)
    assert np.array_equal(large[::32, ::32, 1], x[0]) and np.array_equal(
        large[31::32, 31::32, 2], x[0]
    )


def test_a_row_for_each_world_holds_its_models_and_the_densities_keep_their_ratio():
    x = np.linspace(-3, 3, 101)
    inside, outside = np.exp(-((x - 1) ** 2)), 0.5 * np.exp(-((x + 1) ** 2))
    curve = samples.Curve("Gaussian", "dash", x, inside, outside)
    figure = samples.two_worlds(
        [1.0, -1.0, 2.0], [True, False, True], "s", target=0.5, trained=True, curves=[curve]
    )
    assert np.array_equal(unpacked(named(figure, "IN")["x"]), [1, 2]) and set(
        unpacked(named(figure, "IN")["y"])
    ) == {1}
    assert np.array_equal(unpacked(named(figure, "OUT")["x"]), [-1]) and set(
        unpacked(named(figure, "OUT")["y"])
    ) == {0}
    drawn = [
        unpacked(t["y"])
        for t in figure["data"]
        if t.get("line", {}).get("dash") == "dash" and "name" not in t
    ]
    lower, upper = sorted(drawn, key=lambda y: y.min())
    assert np.isclose((upper - 1).max() / lower.max(), 2, rtol=1e-3)
    assert named(figure, "target")["name"] == "target: a member"
    outside = samples.two_worlds([1.0], [True], "s", target=0.5)
    assert named(outside, "target")["name"] == "target: no member"
    go.Figure(figure)


def test_lines_of_many_models_are_one_trace_with_gaps_and_their_median_beside():
    lines = np.array([[3, 2, 1.0], [5, 4, np.nan]])
    figure = samples.sample_traces(lines, np.array([[1, 1, 1], [2, 2, 2], [3, 3, 3.0]]), "s")
    y = unpacked(named(figure, "this sample")["y"])
    assert np.array_equal(y, [3, 2, 1, np.nan, 5, 4, np.nan, np.nan], equal_nan=True)
    assert np.array_equal(unpacked(named(figure, "their median")["y"]), [4, 3, 1])
    go.Figure(figure)


def test_a_sheet_shows_every_image_where_its_pointer_target_lies():
    x = np.stack([np.full((3, 16, 16), shade, np.uint8) for shade in (10, 90, 200)])
    figure = samples.sheet(x, ["a", "b", "c"], [7, 3, 5], "three", chosen=3, columns=2)
    canvas, points = pixels(figure), figure["data"][1]
    assert list(unpacked(points["customdata"])) == [7, 3, 5]
    centres = np.round(np.stack([unpacked(points["y"]), unpacked(points["x"])])).astype(int)
    assert list(canvas[centres[0], centres[1], 0]) == [10, 90, 200]
    (frame,) = figure["layout"]["shapes"]
    assert frame["x0"] < centres[1, 1] < frame["x1"] and frame["y0"] < centres[0, 1] < frame["y1"]
    go.Figure(figure)


def test_the_ranking_and_its_null_are_each_shares_of_their_own():
    figure = samples.ranking(np.array([0.0, 1, 2, np.nan]), "s", null=np.zeros(50))
    shares = [unpacked(t["y"])[:-1] for t in figure["data"]]
    assert np.allclose([share.sum() for share in shares], 1) and shares[1][0] == 1
    assert with_line(figure, 1.5)["layout"]["shapes"][0]["x0"] == 1.5
    assert with_line(figure, np.nan) == figure


def test_a_long_sentence_asks_for_room_of_its_own():
    short, long = (
        samples.empty(text)["layout"]["height"] for text in ("short", "many words " * 20)
    )
    assert long > short
