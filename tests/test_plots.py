"""Figures hold exactly what the records hold, keep the house style, and stay light."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from contrast import contrast, linear
from scipy.stats import norm
from worlds import world

from mia_nb import attacks, metrics, plots
from mia_nb.attacks import ATTACKS
from mia_nb.plots import curves, marks, pictures, samples, style
from mia_nb.plots.style import TEMPLATE
from mia_nb.plots.views import rank_among
from mia_nb.types import Scores


def gaussian_scores(
    samples=600, targets=6, shift=1.0, seed=0, name="rmia", round_to=None
) -> Scores:
    """Members N(shift, 1), non-members N(0, 1), in complementary pairs."""
    rng = np.random.default_rng(seed)
    first = rng.permuted(np.tile(np.arange(samples) < samples // 2, (targets // 2, 1)), axis=1)
    member = np.stack([first, ~first], axis=1).reshape(targets, samples)
    value = rng.normal(size=member.shape) + shift * member
    value = value if round_to is None else np.round(value, round_to)
    accuracy = np.stack([np.linspace(0.95, 1.0, targets), np.linspace(0.9, 0.94, targets)], axis=1)
    rows = np.arange(targets)
    return Scores(value, member, rows, rows // 2, accuracy, 1 - accuracy, {"attack": name})


def roc(scores, log=True) -> go.Figure:
    """One of the two panels of `plots.roc_pair`."""
    pair = plots.roc_pair(scores)
    axis = "2" if log else ""
    drawn = [t for t in pair.data if t.xaxis == f"x{axis}"]
    shapes = [shape for shape in pair.layout.shapes if shape.xref == f"x{axis}"]
    axes = {"xaxis": pair.layout[f"xaxis{axis}"], "yaxis": pair.layout[f"yaxis{axis}"]}
    figure = go.Figure([go.Scatter(t, xaxis="x", yaxis="y") for t in drawn])
    return figure.update_layout(title=pair.layout.title, shapes=shapes, **axes)


def traces_of(figure: go.Figure, **wanted) -> list:
    return [
        t for t in figure.data if all(getattr(t, name) == value for name, value in wanted.items())
    ]


def curve_of(figure: go.Figure):
    return next(t for t in figure.data if t.name and "AUC" in t.name)


def test_drawn_tpr_is_the_mean_of_tpr_at_over_targets_at_every_drawn_rate():
    scores = gaussian_scores()
    curve = curve_of(roc(scores))
    for x, y in zip(curve.x[::7], curve.y[::7], strict=True):
        exact = [
            metrics.tpr_at(v, m, round(float(x) * 300) / 300).tpr
            for v, m in zip(scores.value, scores.member, strict=True)
        ]
        assert y == pytest.approx(np.mean(exact), abs=1e-6)


def test_thinning_keeps_tpr_at_the_usual_rates_with_50000_samples():
    scores = gaussian_scores(50_000, 2, seed=1)
    curve = curve_of(roc(scores))
    for x in (1e-4, 1e-3, 1e-2, 1e-1):
        exact = np.mean(
            [metrics.tpr_at(v, m, x).tpr for v, m in zip(scores.value, scores.member, strict=True)]
        )
        assert curve.y[np.searchsorted(curve.x, x * (1 + 1e-5)) - 1] == pytest.approx(
            exact, abs=1e-6
        )
    assert len(curve.x) < 1500


def test_the_area_under_the_linear_view_is_the_auc():
    for round_to in (None, 0):
        scores = gaussian_scores(2000, 2, round_to=round_to)
        curve = curve_of(roc(scores, log=False))
        auc = np.mean([metrics.auc(v, m) for v, m in zip(scores.value, scores.member, strict=True)])
        assert np.trapezoid(curve.y.astype(float), curve.x.astype(float)) == pytest.approx(
            auc, abs=2e-3
        )
        assert f"{auc:.3f}" in curve.name


def test_log_axes_hold_only_positive_numbers_and_start_at_one_sample():
    figure = roc(gaussian_scores(shift=0.2))
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    for trace in figure.data:
        assert (np.asarray(trace.x) > 0).all() and (np.asarray(trace.y) > 0).all()
    assert figure.layout.xaxis.range[0] == pytest.approx(np.log10(1 / 300))


def test_the_resolution_floor_is_shaded_up_to_ten_false_alarms():
    (shade,) = roc(gaussian_scores()).layout.shapes
    assert (shade.x0, shade.x1) == (pytest.approx(1 / 300), pytest.approx(10 / 300))


def test_the_side_by_side_view_holds_both_scales_and_names_each_attack_once():
    scores = {"rmia": gaussian_scores(), "loss": gaussian_scores(shift=0.5)}
    figure = plots.roc_pair(scores)
    assert figure.layout.xaxis.type != "log" and figure.layout.xaxis2.type == "log"
    named = [t.name for t in figure.data if t.showlegend and t.name]
    assert len(named) == 2 and named[0].startswith("RMIA") and named[1].startswith("loss threshold")


def test_the_band_of_one_target_is_its_clopper_pearson_interval():
    scores = gaussian_scores(targets=2)
    one = Scores(
        **{
            n: getattr(scores, n)[:1]
            for n in ("value", "member", "targets", "pair", "accuracy", "loss")
        },
        info={},
    )
    figure = roc(one)
    low, high = figure.data[1], figure.data[2]
    at = 40
    record = metrics.tpr_at(one.value[0], one.member[0], round(float(low.x[at]) * 300) / 300)
    assert (low.y[at], high.y[at]) == (
        pytest.approx(record.low, abs=1e-6),
        pytest.approx(record.high, abs=1e-6),
    )


def test_the_band_is_at_least_as_wide_as_the_t_interval_over_pairs():
    scores = gaussian_scores(targets=6)
    # one pair leaks far more
    scores.value[scores.pair == 0] += 1.5 * scores.member[scores.pair == 0]
    figure = roc(scores)
    low, high = figure.data[1], figure.data[2]
    at = int(np.searchsorted(low.x, 0.1))
    x = round(float(low.x[at]) * 300) / 300
    per_pair = [
        np.mean(
            [metrics.tpr_at(scores.value[r], scores.member[r], x).tpr for r in (2 * p, 2 * p + 1)]
        )
        for p in range(3)
    ]
    # t quantile .9875 with 2 degrees of freedom
    half = 6.205347 * np.std(per_pair, ddof=1) / np.sqrt(3)
    assert low.y[at] == pytest.approx(max(np.mean(per_pair) - half, 1 / 300), abs=1e-5)
    assert high.y[at] == pytest.approx(min(np.mean(per_pair) + half, 1), abs=1e-5)


def test_only_the_best_of_many_attacks_shows_its_band():
    many = {f"attack {i}": gaussian_scores(shift=0.2 * i) for i in range(5)}
    assert [t.legendgroup for t in roc(many).data if t.fill == "tonexty"] == ["attack 4"]
    few = {name: many[name] for name in list(many)[:2]}
    assert len(traces_of(roc(few), fill="tonexty")) == 2


def test_lattice_scores_carry_a_tie_flag_and_continuous_ones_do_not():
    scores = gaussian_scores(round_to=0)
    scores.value[:] = np.clip(scores.value, 0, 1)
    assert "ties: no FPR below" in curve_of(roc(scores)).name
    assert "ties" not in curve_of(roc(gaussian_scores())).name


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([(2, 300)], ", ties: no FPR from 0.0067 to 1"),  # as a vote of labels gives
        ([(90, 150)], ", ties: no FPR from 0.3 to 0.5"),
        ([(90, 105)], ""),
        ([(0, 24)], ", ties: no FPR below 0.08"),
        ([(0, 24), (30, 300)], ", ties: no FPR below 0.08 or from 0.1 to 1"),
        ([(0, 300)], ", ties: no FPR below 1"),
    ],
)
def test_the_legend_names_the_rates_that_blocks_of_tied_scores_leave_out(blocks, words):
    scores = gaussian_scores()
    for score, member in zip(scores.value, scores.member, strict=True):
        of_others = np.sort(score[~member])[::-1]
        for first, end in blocks:
            inside = (score <= of_others[first]) & (score >= of_others[end - 1])
            score[inside] = of_others[first]
    assert curve_of(roc(scores, log=False)).name.partition(", ")[2] == words.removeprefix(", ")


def test_samples_without_a_score_are_left_out():
    scores = gaussian_scores()
    full = curve_of(roc(scores)).name
    value = np.concatenate([scores.value, np.full((6, 50), np.nan)], axis=1)
    padded = np.concatenate([scores.member, np.ones((6, 50), bool)], axis=1)
    wider = Scores(
        value, padded, scores.targets, scores.pair, scores.accuracy, scores.loss, scores.info
    )
    assert curve_of(roc(wider)).name == full
    assert sum(t.customdata[:-1].sum() for t in plots.histogram(wider, target=0).data) == 600


def test_histogram_counts_equal_numpys_and_every_sample_is_in_a_bin():
    scores = gaussian_scores()
    scores.value[0, 0] = np.inf
    figure = plots.histogram(scores, target=0)
    non_members, members = figure.data
    for trace, mask in ((members, scores.member[0]), (non_members, ~scores.member[0])):
        assert len(trace.x) == 101 and trace.customdata[:-1].sum() == mask.sum()
        np.testing.assert_allclose(trace.y, trace.customdata / mask.sum())
        inner = np.histogram(scores.value[0, mask], np.asarray(trace.x))[0]
        np.testing.assert_array_equal(trace.customdata[1:-2], inner[1:-1])


def test_heavy_tails_do_not_squeeze_the_histogram():
    scores = gaussian_scores()
    scores.value[0, :3] = 1e6, 1e5, -1e6
    edges = np.asarray(plots.histogram(scores, target=0).data[0].x)
    low, high = np.quantile(scores.value[0], [0.25, 0.75])
    assert edges[-1] == pytest.approx(high + 4 * (high - low)) and edges[0] == pytest.approx(
        low - 4 * (high - low)
    )


def test_on_an_axis_of_ranks_a_score_stands_at_the_share_of_non_members_above_it():
    scores = attacks.score("loss", world(4, 2000, leak=1.0))
    stretched = replace(scores, value=np.exp(np.exp(scores.value / 4)))
    figure = plots.histogram(stretched, target=0, bins=60, scale="rank")
    assert figure.to_dict()["data"][0]["y"] == pytest.approx(
        plots.histogram(scores, target=0, bins=60, scale="rank").to_dict()["data"][0]["y"]
    )
    ticks = dict(zip(figure.layout.xaxis.ticktext, figure.layout.xaxis.tickvals, strict=True))
    assert ticks["50"] == pytest.approx(0) and ticks["1"] == pytest.approx(norm.ppf(0.99))
    others = np.sort(scores.value[0, ~scores.member[0]])
    rank = rank_among(others)
    assert rank(np.array([others[900], np.nan]))[0] == norm.ppf(900 / len(others))
    assert np.isnan(rank(np.array([np.nan]))).all()
    with pytest.raises(ValueError, match="scale='log' is not one of score, rank"):
        plots.histogram(scores, scale="log")


def test_a_pooled_histogram_holds_every_target():
    assert sum(t.customdata[:-1].sum() for t in plots.histogram(gaussian_scores()).data) == 6 * 600


def test_members_are_vermillion_solid_and_round_and_non_members_blue_dashed_and_diamonds():
    scores = gaussian_scores()
    non_members, members = plots.histogram(scores, target=0).data
    assert (members.line.color, members.line.dash, members.fillpattern.shape) == (
        "#D55E00",
        "solid",
        "/",
    )
    assert (non_members.line.color, non_members.line.dash, non_members.fillpattern.shape) == (
        "#0072B2",
        "dash",
        "\\",
    )
    dots = {
        t.name: t.marker
        for t in plots.scatter(scores, gaussian_scores(name="loss")).data
        if t.type == "scattergl"
    }
    assert (dots["members"].color, dots["members"].symbol) == ("#D55E00", "circle")
    assert (dots["non-members"].color, dots["non-members"].symbol) == ("#0072B2", "diamond-open")


def test_no_two_attacks_of_a_suite_share_both_colour_and_dash():
    many = {f"attack {i}": gaussian_scores(60, 2) for i in range(12)}
    styles = [(t.line.color, t.line.dash) for t in roc(many).data if t.name and "AUC" in t.name]
    assert len(set(styles)) == 12


def test_scatter_points_are_the_scores_of_their_sample():
    x, y = gaussian_scores(), gaussian_scores(name="loss")
    y.value[:] = 2 * x.value + 1
    for trace in (t for t in plots.scatter(x, y, target=2).data if t.type == "scattergl"):
        np.testing.assert_array_equal(trace.x, x.value[2, trace.customdata].astype(np.float32))
        np.testing.assert_array_equal(trace.y, y.value[2, trace.customdata].astype(np.float32))
        assert (x.member[2, trace.customdata] == (trace.name == "members")).all()
    assert "correlation 1.00" in plots.scatter(x, y).layout.title.text


def test_a_histogram_says_over_how_many_targets_it_counts_and_tells_both_groups_anywhere():
    scores = attacks.score("loss", world(6, 300, leak=1.0))
    pooled, alone = (plots.histogram(scores, target=target) for target in (None, 0))
    assert all(re.search(r"\([\d,]+ of 6 targets\)$", trace.name) for trace in pooled.data)
    assert all(re.search(r"\([\d,]+\)$", trace.name) for trace in alone.data)
    assert pooled.layout.hovermode == "x"


def test_scatter_refuses_pools_with_other_members():
    with pytest.raises(ValueError, match="other members"):
        plots.scatter(gaussian_scores(seed=0), gaussian_scores(seed=1))


def test_an_unknown_target_is_named():
    with pytest.raises(ValueError, match="target=9 was not attacked"):
        plots.histogram(gaussian_scores(), target=9)


def test_gap_against_risk_puts_the_correctness_attack_on_its_line():
    rng = np.random.default_rng(0)
    scores = gaussian_scores(1000, 4)
    right = np.where(
        scores.member, rng.random(scores.member.shape) < 0.98, rng.random(scores.member.shape) < 0.8
    )
    accuracy = np.array(
        [[r[m].mean(), r[~m].mean()] for r, m in zip(right, scores.member, strict=True)]
    )
    exact = Scores(
        right.astype(float),
        scores.member,
        scores.targets,
        scores.pair,
        accuracy,
        accuracy,
        {"attack": "correctness"},
    )
    figure = plots.gap_against_risk(exact)
    line, points = figure.data
    np.testing.assert_allclose(points.y, 0.5 + np.asarray(points.x) / 2, atol=1e-12)
    np.testing.assert_allclose(line.y, 0.5 + np.asarray(line.x) / 2, atol=1e-12)


@pytest.mark.parametrize("epochs", [1, 2, 12, 13])
def test_losses_over_few_epochs_have_ticks_at_epochs_and_a_single_one_is_a_point(epochs):
    log_loss = np.random.default_rng(0).normal(size=(4, epochs, 30))
    figure = plots.loss_traces(log_loss)
    everyone = np.exp(np.quantile(log_loss, [0.25, 0.5, 0.75], axis=(0, 2)))
    lines = np.exp(log_loss[:, :, 0])
    of_sample = go.Figure(plots.samples.sample_traces(lines, everyone, "s", target=lines[0]))
    for shown in (figure, of_sample):
        assert shown.layout.xaxis.dtick == (1 if epochs <= 12 else None)
        assert shown.layout.yaxis.nticks == 3  # plotly sets none where dtick is given
        assert shown.layout.yaxis.dtick is None
        named = {trace.mode for trace in shown.data if trace.hovertemplate}
        assert named == {"markers" if epochs == 1 else "lines"}
    assert ("in the only epoch" in figure.layout.title.text) == (epochs == 1)


def test_loss_traces_show_the_median_over_models_of_the_median_over_members():
    rng = np.random.default_rng(0)
    log_loss = rng.normal(size=(5, 7, 40)).astype(np.float16)
    log_loss[:, :, 20:] = np.nan
    figure = plots.loss_traces(iter(log_loss))
    typical = next(t for t in figure.data if t.name == "median member")
    expected = np.median(np.median(np.exp(log_loss[:, :, :20].astype(float)), axis=2), axis=0)
    # the median of an even number is taken on the log scale
    np.testing.assert_allclose(typical.y, expected, rtol=2e-2)
    assert list(typical.x) == list(range(1, 8)) and figure.layout.yaxis.type == "log"
    with pytest.raises(ValueError, match="no loss traces"):
        plots.loss_traces([])


def test_accuracy_shows_both_ends_of_every_gap():
    scores = gaussian_scores()
    members, non_members = (t for t in plots.accuracy(scores).data if t.mode == "markers")
    np.testing.assert_array_equal(members.y, scores.accuracy[:, 0])
    np.testing.assert_array_equal(non_members.y, scores.accuracy[:, 1])


def test_summary_and_verdict_repeat_the_tables_numbers():
    table = metrics.summary(
        {"rmia": gaussian_scores(), "loss": gaussian_scores(shift=0.3, name="loss")}, n_resamples=50
    )
    points = plots.summary(table).data[0]
    assert list(points.y) == ["loss threshold", "RMIA"]
    auc = metrics.by_attack(table, "auc").loc[["loss", "rmia"]]
    np.testing.assert_allclose(points.x, auc["value"])
    np.testing.assert_allclose(points.x + points.error_x.array, auc["high"])
    tpr = metrics.by_attack(table, "tpr", 0.1).loc["rmia", "value"]
    sentence = plots.verdict(table, "rmia")
    assert sentence.startswith(f"RMIA finds {100 * tpr:.1f} % of members at 10 % FPR (95 %: ")
    assert sentence.endswith("n0 = 300")


def test_of_equal_attacks_the_summary_names_the_first_of_the_table():
    scores = gaussian_scores()
    figure = plots.summary(metrics.summary({"rmia": scores, "base": scores}, n_resamples=50))
    assert (
        figure.layout.title.text.startswith("RMIA separates best")
        and figure.data[0].y[-1] == "RMIA"
    )


def test_pictures_say_what_their_bars_and_thresholds_are():
    assert (
        "thresholds set with hindsight (oracle)"
        in roc(gaussian_scores()).layout.title.subtitle.text
    )
    assert (
        "1.96 s.e. of random guessing"
        in plots.gap_against_risk(gaussian_scores()).layout.title.subtitle.text
    )


def test_the_verdict_takes_the_smallest_measurable_rate_and_the_auc_without_one():
    rows = [("auc", np.nan, 0.6, 0.55, 0.65), ("tpr", 0.01, 0.068, 0.051, 0.088)]
    rows.append(("tpr", 0.1, 0.068, 0.051, 0.088))
    table = pd.DataFrame(rows, columns=["metric", "fpr", "value", "low", "high"])
    table = table.assign(attack="rmia", n0=898, fpr_floor=0.0, flags="")
    wanted = "RMIA finds 6.8 % of members at 10 % FPR (95 %: 5.1-8.8), n0 = 898"
    assert plots.verdict(table.assign(measurable=[True, False, True]), "rmia") == wanted
    assert "at 1 % FPR" in plots.verdict(table.assign(measurable=True), "rmia")
    assert (
        plots.verdict(table.assign(measurable=[True, False, False]), "rmia")
        == "RMIA has AUC 0.600 (95 %: 0.550-0.650); n0 = 898 is too few for a rate at a low FPR"
    )


def test_a_zero_that_comes_from_ties_is_not_called_a_result():
    scores = gaussian_scores(round_to=0)
    scores.value[:] = scores.value > -1
    table = metrics.summary({"correctness": scores}, n_resamples=20)
    assert re.search(
        r"^correctness rule has AUC 0\.\d+ .*; its tied scores allow no FPR below 6\d %$",
        plots.verdict(table, "correctness"),
    )


def test_a_sheet_shows_the_pixels_between_frames_of_the_membership_colour():
    import base64
    import io

    from PIL import Image

    x = np.random.default_rng(0).integers(0, 256, (3, 3, 8, 8), dtype=np.uint8)
    figure = plots.images(x, ["a", "b", "c"], np.array([True, False, True]))
    sheet = np.asarray(
        Image.open(io.BytesIO(base64.b64decode(figure.data[0].source.split(",")[1])))
    )
    # 8 pixels are shown by 64, between gaps of 10 above each other and 21 beside each other
    np.testing.assert_array_equal(sheet[5:69:8, 95:159:8, :3], x[1].transpose(1, 2, 0))
    assert tuple(sheet[4, 9]) == (0xD5, 0x5E, 0x00, 255) and tuple(sheet[4, 106]) == (
        0x00,
        0x72,
        0xB2,
        255,
    )
    assert [a.text for a in figure.layout.annotations] == ["● a", "◇ b", "● c"]


@pytest.mark.parametrize("channels", range(1, 6))
def test_images_of_any_number_of_channels_are_drawn_and_say_what_is_left_out(channels):
    x = np.random.default_rng(0).integers(0, 256, (2, channels, 8, 8), dtype=np.uint8)
    said = f"channels 1 to 3 of {channels}"
    titles = [
        samples.sheet(x, ["a", "b"], [0, 1], "two")["layout"]["title"]["text"],
        samples.picture(x[0], "one")["layout"]["title"]["text"],
        plots.images(x, ["a", "b"], np.array([True, False])).layout.title.text,
    ]
    assert [said in title for title in titles] == [channels > 3] * 3
    pixels = pictures.rgb(x[0])
    assert pixels.shape == (8, 8, 3)
    if channels > 2:
        np.testing.assert_array_equal(pixels, np.moveaxis(x[0, :3], 0, 2))


def every_figure(scores: dict[str, Scores]) -> dict[str, go.Figure]:
    x, y = list(scores.values())[:2]
    return {
        "roc_pair": plots.roc_pair(scores),
        "histogram": plots.histogram(x),
        "scatter": plots.scatter(x, y),
        "gap_against_risk": plots.gap_against_risk(scores),
        "accuracy": plots.accuracy(x),
    }


def test_no_figure_of_50000_samples_and_eleven_attacks_weighs_300_kilobytes():
    scores = {f"attack {i}": gaussian_scores(50_000, 2, shift=0.1 * i) for i in range(11)}
    weights = {name: len(figure.to_json()) for name, figure in every_figure(scores).items()}
    assert max(weights.values()) < 300_000, weights


def test_figures_share_the_template_fit_their_page_and_say_a_sentence():
    for name, figure in every_figure(
        {"rmia": gaussian_scores(), "loss": gaussian_scores(name="loss")}
    ).items():
        assert (
            figure.layout.width is None
            and figure.layout.height
            and figure.layout.template == TEMPLATE
        ), name
        assert len(figure.layout.title.text.split()) > 4, name
    assert TEMPLATE.layout.paper_bgcolor == "rgba(0,0,0,0)"


def test_plots_leave_torch_alone():
    code = "import sys, mia_nb.plots, mia_nb.widgets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_bins_of_equal_values_are_one_unit_wide_around_them():
    assert np.allclose(marks.bins(3, 3, 4), [2.5, 2.75, 3, 3.25, 3.5])
    assert np.allclose(marks.bins(0, 1, 2), [0, 0.5, 1])


def test_a_rocs_title_and_order_follow_what_is_found_at_the_rate_it_states_not_the_area():
    fpr, none = np.array([0.01, 0.1, 1.0]), np.zeros(3)
    area = curves.Curve(
        fpr, np.array([0.02, 0.2, 1.0]), none, none, 0.7, 900, 900, 0.01, (0.0, 0.01)
    )
    early = area._replace(tpr=np.array([0.05, 0.3, 1.0]), auc=0.6)
    sentence, order = curves._ranked({"area": area, "early": early})
    assert sentence.startswith("early finds 30.0 % of members at 10 %")
    assert order == ["early", "area"]
    few = {"early": early._replace(n0=50), "area": area._replace(n0=50)}
    sentence, order = curves._ranked(few)
    assert sentence.startswith("area: AUC 0.700; n0 = 50 is too few")
    assert order == ["area", "early"]
    # no attack has a threshold of 1 % false positives or fewer: 10 % is the lowest rate to speak of
    tied = {
        name: curve._replace(fpr=np.array([0.05, 0.1, 1.0]), n0=9000, floor=0.05)
        for name, curve in (("area", area), ("early", early))
    }
    assert curves._ranked(tied)[0].startswith("early finds 30.0 % of members at 10 %")
    coarse = {"rule": early._replace(fpr=np.array([0.6, 0.8, 1.0]), n0=9000, floor=0.6)}
    assert curves._ranked(coarse)[0].endswith("its tied scores allow no FPR below 60 %")


def test_title_band_and_first_of_the_legend_are_the_same_attack():
    """The attack with the larger area finds fewer members at the lowest rate."""
    rng = np.random.default_rng(5)
    member = np.arange(2000) < 1000
    wide = rng.normal(size=2000) + 0.8 * member
    early = rng.normal(size=2000)
    early[:150] += 8  # 15 % of members, without a false positive
    one = np.ones(1, int)
    made = {
        name: Scores(value[None], member[None], one - 1, one - 1, one * 0.5, one * 0.5, {})
        for name, value in (("wide", wide), ("early", early))
    }
    for i in range(3):
        made[f"noise {i}"] = replace(made["wide"], value=rng.normal(size=(1, 2000)))
    figure = plots.roc_pair(made)
    legend = [trace.name for trace in figure.data if trace.showlegend and trace.name]
    areas = [float(re.search(r"AUC (\d\.\d+)", name)[1]) for name in legend if "AUC" in name]
    assert areas[0] < max(areas)
    assert legend[0].startswith("early")
    assert {trace.legendgroup for trace in figure.data if trace.fill == "tonexty"} == {"early"}
    assert figure.layout.title.text.startswith("early finds")
    assert "band of early" in figure.layout.title.subtitle.text


def test_an_attack_has_one_colour_whatever_stands_beside_it():
    scores = {name: gaussian_scores(name=name) for name in ("loss", "rmia", "attack_r")}
    colours = set()
    for names in (["rmia"], ["loss", "rmia"], ["attack_r", "loss", "rmia"]):
        figure = roc({name: scores[name] for name in names})
        drawn = {
            t.name.split("  ")[0]: t.line.color for t in figure.data if "AUC" in (t.name or "")
        }
        colours.add(drawn["RMIA"])
    gaps = plots.gap_against_risk({name: scores[name] for name in ("loss", "rmia")})
    colours |= {trace.marker.color for trace in gaps.data if trace.name == "RMIA"}
    assert len(colours) == 1


def test_every_attack_has_a_look_of_its_own_which_no_neighbour_changes():
    alone = {key: style.looks([key])[key] for key in ATTACKS}
    assert len({look[:2] for look in alone.values()}) == len(ATTACKS)
    assert len({(look.colour, look.symbol) for look in alone.values()}) == len(ATTACKS)
    beside = style.looks(["mine", *ATTACKS, "yours"])
    assert {key: beside[key] for key in ATTACKS} == alone
    assert len({look[:2] for look in beside.values()}) == len(ATTACKS) + 2
    for k in range(40):
        suite = [alone[key].colour for key in attacks.suite(k)]
        assert len(set(suite)) == len(suite)


def channels(colour):
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255


@pytest.mark.parametrize("colour", (style.GREY, *style.LINES))
def test_text_and_lines_have_the_contrast_that_readers_need(colour):
    assert contrast(channels(colour), np.ones(3)) >= 4.5
    assert contrast(channels(colour), np.zeros(3)) >= 4.5


def test_colours_of_lines_are_told_apart():
    """CIE 1976: lightness and two chromatic axes, in which a difference of 2.3 is just seen."""
    to_xyz = [[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]]
    lab = []
    for colour in style.LINES:
        x, y, z = np.cbrt(to_xyz @ linear(channels(colour)) / [0.9505, 1, 1.0888])
        lab.append((116 * y - 16, 500 * (x - y), 200 * (y - z)))
    assert min(math.dist(*pair) for pair in itertools.combinations(lab, 2)) > 30


def test_the_staircase_of_log_axes_is_the_best_vertex_within_the_false_positives():
    rng = np.random.default_rng(3)
    member = np.arange(60) < 30
    value = np.round(rng.normal(size=60) + member, 1)  # with ties
    one = np.ones(1, int)
    scores = Scores(value[None], member[None], one - 1, one - 1, one * 0.5, one * 0.5, {})
    curve = curve_of(roc(scores))
    steps = [value >= at for at in np.unique(value)]
    for fpr, tpr in zip(curve.x, curve.y, strict=True):
        allowed = [step for step in steps if step[~member].sum() <= round(fpr * 30)]
        assert tpr == pytest.approx(max(step[member].mean() for step in allowed))


def test_the_roc_of_shipped_pools_takes_as_many_models_of_each_and_names_attack_and_pool():
    figure = plots.shipped_roc(["odenet", "resnet14"])
    names = {trace.name for trace in figure.data if trace.name}
    assert {"RMIA on odenet", "RMIA on resnet14"} <= {name.split("  ")[0] for name in names}
    assert "mean of 8 targets" in str(figure.layout)
    alone = plots.shipped_roc(["odenet"], ["rmia", "loss"])
    assert {"RMIA", "loss threshold"} <= {str(t.name).split("  ")[0] for t in alone.data}
