"""Figures of differential-equation networks hold exactly what they were given and say true
sentences.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mia_nb import metrics, plots
from mia_nb.metrics.frontier import frontier_means
from mia_nb.plots.style import TEMPLATE
from mia_nb.types import Scores, Signals

# AUC of LiRA and accuracies on CIFAR-10 (Hong, Wu, Gruber and Lee, arXiv 2501.06686)
STUDY = {
    "ResNet-14": (0.679, 0.981, 0.860),
    "ODENet": (0.616, 0.943, 0.844),
    "SDENet": (0.525, 0.830, 0.819),
}


def scores(
    shift=1.0, train_acc=0.95, test_acc=0.8, *, targets=6, samples=400, seed=0, name="rmia"
) -> Scores:
    """Members N(shift, 1), non-members N(0, 1), the same masks at every call."""
    half = np.random.default_rng(0).permuted(
        np.tile(np.arange(samples) < samples // 2, (targets // 2, 1)), axis=1
    )
    member = np.stack([half, ~half], axis=1).reshape(targets, samples)
    value = np.random.default_rng([1, seed]).normal(size=member.shape) + shift * member
    rows = np.arange(targets)
    accuracy = np.stack([train_acc + 0.001 * rows, test_acc - 0.002 * rows], axis=1)
    return Scores(value, member, rows, rows // 2, accuracy, 1 - accuracy, {"attack": name})


def families() -> dict[str, Scores]:
    shifts = {"ResNet-14": 0.66, "ODENet": 0.42, "SDENet": 0.09}
    return {
        name: scores(shifts[name], train, test, seed=i)
        for i, (name, (_, train, test)) in enumerate(STUDY.items())
    }


def settings(x="T", values=(0.125, 0.25, 0.5, 1.0), group=None, half=0.01) -> pd.DataFrame:
    auc = 0.55 + 0.02 * np.arange(len(values))
    table = pd.DataFrame(
        {
            x: values,
            "auc": auc,
            "auc_low": auc - half,
            "auc_high": auc + half,
            "train_acc": 0.9 + auc / 20,
        }
    )
    table = table.assign(
        test_acc=0.8 - auc / 10, test_acc_low=0.70, test_acc_high=0.79, pairs=4, n1=200, n0=200
    )
    return table if group is None else table.assign(group=group)


def checkpoints(fpr=(0.1,)) -> pd.DataFrame:
    steps = {1: (0.0, 0.55), 4: (0.3, 0.7), 16: (0.8, 0.8)}
    runs = {
        name: {
            e: {"rmia": scores(slope * d, a + 0.1, a, seed=10 * i + e)}
            for e, (d, a) in steps.items()
        }
        for i, (name, slope) in enumerate((("ResNet-14", 1.0), ("ODENet", 0.6), ("SDENet", 0.1)))
    }
    return metrics.frontier(runs, fpr)


def compared() -> pd.DataFrame:
    return metrics.matched(checkpoints(), baseline="ODENet")


def curve(
    auc=(0.55, 0.6, 0.65), counts=(1, 4, 16), limit=0.66, attack="rmia", half=0.02
) -> pd.DataFrame:
    index = pd.Index([*map(float, counts), np.inf], name="R")
    values = np.array([*auc, limit])
    table = pd.DataFrame(
        {"attack": attack, "auc": values, "auc_low": values - half, "auc_high": values + half},
        index=index,
    )
    return table.assign(extrapolated=np.isinf(index), pairs=4, n1=500)


def cost_table() -> pd.DataFrame:
    rows = [
        ("ResNet-14", 10.0, 1000.0, 871402),
        ("ODENet", 40.0, 1500.0, 486122),
        ("SDENet", 150.0, 5800.0, 486122),
    ]
    return pd.DataFrame(rows, columns=["family", "seconds", "memory_mib", "parameters"])


def trace(figure, name):
    (found,) = (t for t in figure.data if t.name == name and t.showlegend is not False)
    return found


def title(figure) -> str:
    return figure.layout.title.text.replace("<br>", " ")


def note(figure) -> str:
    return figure.layout.title.subtitle.text


def assert_ends(drawn, low, high, axis="y"):
    bars = getattr(drawn, f"error_{axis}")
    np.testing.assert_allclose(getattr(drawn, axis) + bars.array, high)
    np.testing.assert_allclose(getattr(drawn, axis) - bars.arrayminus, low)


def test_every_target_of_every_family_stands_at_its_gap_and_risk():
    figure = plots.families_gap(families())
    for name, one in families().items():
        (drawn,) = (t for t in figure.data if t.name.startswith(f"{name}: "))
        np.testing.assert_allclose(drawn.x, one.accuracy[:, 0] - one.accuracy[:, 1])
        np.testing.assert_allclose(
            drawn.y, [metrics.auc(v, m) for v, m in zip(one.value, one.member, strict=True)]
        )
        ends = metrics.accuracies(one).loc["gap", "value"]
        assert (
            f"gap {ends:.1%}, AUC {np.mean(drawn.y):.3f} [" in drawn.name
            and "200 members" in drawn.hovertemplate
        )
    assert len({(t.marker.color, t.marker.symbol) for t in figure.data[1:]}) == 3
    line = figure.data[0]
    np.testing.assert_allclose(line.y, 0.5 + np.asarray(line.x) / 2)
    assert title(figure).startswith("ResNet-14: AUC") and "SDENet: 0.5" in title(figure)


def test_the_tpr_of_families_is_the_exact_one_and_says_when_it_cannot_be_measured():
    figure = plots.families_gap(families(), "tpr@0.1")
    one = families()["ODENet"]
    (drawn,) = (t for t in figure.data if t.name.startswith("ODENet: "))
    exact = [metrics.tpr_at(v, m, 0.1) for v, m in zip(one.value, one.member, strict=True)]
    np.testing.assert_allclose(drawn.y, [at.tpr for at in exact])
    assert_ends(drawn, [at.low for at in exact], [at.high for at in exact])
    assert "not measurable" not in note(figure)
    # 2 false positives of 200
    assert "not measurable" in note(plots.families_gap(families(), "tpr@0.01"))


def test_both_panels_hold_the_tables_values_and_intervals():
    table = pd.concat(
        [
            settings(group="n = 1"),
            settings(group="n = 2").assign(auc=0.7, auc_low=0.69, auc_high=0.72),
        ]
    )
    figure = plots.risk_against(table, "T")
    for name, rows in table.groupby("group"):
        drawn = trace(figure, f"{name}, AUC")
        np.testing.assert_array_equal(drawn.y, rows["auc"])
        assert_ends(drawn, rows["auc_low"], rows["auc_high"])
        assert [row[0] for row in drawn.customdata] == ["0.125", "0.25", "0.5", "1"]
        assert drawn.customdata[0][1] == "4 pairs · 200 members · 200 non-members"
        test = trace(figure, f"{name}, on non-members")
        np.testing.assert_array_equal(test.y, rows["test_acc"])
        assert_ends(test, rows["test_acc_low"], rows["test_acc_high"])
        assert test.yaxis == "y2" and trace(figure, f"{name}, on members").error_y.array is None
    assert "AUC 0.700 at n = 2, T = 0.125 with test accuracy 74.5%" in title(figure)
    assert (
        "AUC 0.550 at n = 1, T = 0.125 with test accuracy 74.5%; their intervals are apart"
        in title(figure)
    )


def test_settings_that_double_stand_on_a_logarithmic_axis_and_names_every_value():
    axis = plots.risk_against(settings(), "T").layout.xaxis2
    np.testing.assert_allclose(axis.tickvals, [-3, -2, -1, 0])
    assert (
        list(axis.ticktext) == ["0.125", "0.25", "0.5", "1"]
        and axis.title.text == "T (logarithmic)"
    )
    linear = plots.risk_against(settings("k", (0, 0.3, 0.5, 0.6)), "k").layout.xaxis2
    np.testing.assert_allclose(linear.tickvals, [0, 0.3, 0.5, 0.6])
    assert linear.title.text == "k"


def test_words_keep_the_tables_order_and_are_not_joined():
    figure = plots.risk_against(
        settings("solver", ("rk4", "euler", "dopri5", "midpoint")), "solver"
    )
    drawn = trace(figure, "AUC")
    assert drawn.mode == "markers" and list(figure.layout.xaxis2.ticktext) == [
        "rk4",
        "euler",
        "dopri5",
        "midpoint",
    ]
    np.testing.assert_array_equal(drawn.x, range(4))


def test_one_setting_and_settings_without_intervals_are_drawn_and_said():
    figure = plots.risk_against(settings("k", (0.5,)), "k")
    assert title(figure) == "AUC 0.550 at k = 0.5 with test accuracy 74.5%"
    bare = plots.risk_against(settings(half=np.nan), "T")
    assert (
        "4 of 4 AUCs without interval" in note(bare)
        and "apart" not in title(bare)
        and "overlap" not in title(bare)
    )


def test_frontiers_hold_the_means_of_every_checkpoint_in_order():
    table = checkpoints()
    means = frontier_means(table)
    for given in (table.sample(frac=1, random_state=0), means):
        figure = plots.frontier_lines(given)
        for name, rows in means.groupby("family"):
            drawn = trace(figure, name)
            np.testing.assert_allclose(drawn.x, rows["test_acc"])
            np.testing.assert_allclose(drawn.y, rows["auc"])
            assert_ends(drawn, rows["auc_low"], rows["auc_high"])
            assert_ends(drawn, rows["test_acc_low"], rows["test_acc_high"], "x")
            assert (
                list(drawn.text) == ["1", "4", "16"]
                and drawn.marker.size[2] > drawn.marker.size[1] == drawn.marker.size[0]
            )
    last = means[(means["family"] == "ODENet") & (means["epoch"] == 16)].iloc[0]
    assert (
        f"ODENet ends at AUC {last['auc']:.3f} with test accuracy {last['test_acc']:.1%}"
        in title(figure)
    )
    assert "3 pairs" in note(figure) and "up and left is bad" in note(figure)
    rates = trace(plots.frontier_lines(table, metric="tpr@0.1"), "SDENet")
    np.testing.assert_allclose(rates.y, means.loc[means["family"] == "SDENet", "tpr@0.1"])


def test_differences_and_their_intervals_are_the_tables_and_the_baseline_is_the_line():
    table = metrics.matched(checkpoints(), baseline="ResNet-14")
    figure = plots.matched_differences(table)
    assert [t.name for t in figure.data] == ["ODENet - ResNet-14", "SDENet - ResNet-14"]
    for name in ("ODENet", "SDENet"):
        rows, drawn = table[table["family"] == name], trace(figure, f"{name} - ResNet-14")
        np.testing.assert_allclose(drawn.y, rows["difference"])
        assert_ends(drawn, rows["difference_low"], rows["difference_high"])
        np.testing.assert_allclose([row[0] for row in drawn.customdata], rows["level"])
        assert (
            np.abs(np.diff([rows["level"], drawn.x], axis=0)) < np.diff(rows["level"]).min() / 3
        ).all()
    (zero,) = figure.layout.shapes
    assert zero.y0 == zero.y1 == 0


def test_the_sentence_on_matched_levels_counts_verdicts_beside_the_last_accuracies():
    low, high = (-0.05, -0.04, -0.01, 0.01, np.nan), (-0.01, -0.02, 0.02, 0.05, np.nan)
    middle = np.add(low, high) / 2
    rows = pd.DataFrame(
        {
            "level": np.linspace(0.5, 0.7, 5),
            "difference": middle,
            "difference_low": low,
            "difference_high": high,
        }
    )
    rows = rows.assign(family="ode", difference_pairs=4, last_test_acc=0.8)
    base = rows.assign(
        family="cnn",
        difference=np.nan,
        difference_low=np.nan,
        difference_high=np.nan,
        last_test_acc=0.9,
    )
    table = pd.concat([base, rows]).assign(by="test_acc", metric="auc", baseline="cnn")
    figure = plots.matched_differences(table)
    wanted = (
        "AUC against cnn (90.0%) at equal test accuracy: ode (80.0%) less at 2, more at 1,"
        " unresolved at 2 of 5 levels"
    )
    assert title(figure) == wanted
    assert len(figure.data[0].y) == 4  # what no pair reaches has no point


def test_notes_say_whether_intervals_cover_the_choice_of_samples():
    table = checkpoints()
    blind = table.drop(columns="auc_draws")
    for drawn, words in ((table, "over 3 pairs and samples"), (blind, "over 3 pairs")):
        matched = metrics.matched(drawn, baseline="ODENet")
        assert f"95 %, {words}, each for itself" in note(plots.matched_differences(matched))
        assert f"bars 95 % ({words});" in note(plots.frontier_lines(drawn))
    assert "(over 3 pairs and samples)" in note(plots.frontier_lines(table, metric="tpr@0.1"))
    rates = metrics.matched(table, baseline="ODENet", metric="tpr@0.1")
    assert "95 %, over 3 pairs and samples, each" in note(plots.matched_differences(rates))
    assert "[95 %, over 3 pairs and samples]" in note(plots.families_gap(families()))


def test_no_shared_range_is_a_picture_of_the_reason():
    table = checkpoints()
    table.loc[table["family"] == "SDENet", "test_acc"] -= 0.5
    figure = plots.matched_differences(metrics.matched(table, baseline="ResNet-14"))
    assert (
        title(figure).startswith("no level of test_acc is passed by all families")
        and not figure.data
    )


def test_queries_stand_on_a_log2_axis_and_infinity_apart_open_and_unjoined():
    figure = plots.query_curves({"SDENet": curve()}, noise_off={"SDENet": (0.67, 0.65, 0.69)})
    asked, limit = (t for t in figure.data if t.name == "SDENet")
    np.testing.assert_allclose(asked.x, [0, 2, 4])
    assert_ends(asked, curve()["auc_low"][:3], curve()["auc_high"][:3])
    assert (
        limit.mode == "markers"
        and limit.marker.symbol == "circle-open"
        and list(limit.y) == [0.66]
        and limit.x[0] > 5
    )
    assert_ends(limit, [0.64], [0.68])
    assert list(figure.layout.xaxis.ticktext) == ["1", "4", "16", "∞"]
    level = trace(figure, "SDENet, noise off")
    assert (
        list(level.y) == [0.67, 0.67]
        and level.line.dash == "dash"
        and level.line.color == asked.line.color
    )
    assert [t.y[0] for t in figure.data if t.line.width == 0] == [0.65, 0.69]
    assert (
        title(figure)
        == "SDENet: AUC 0.550 with 1 query, 0.650 with 16, 0.660 extrapolated to infinitely many,"
        " 0.670 with the noise off"
    )
    assert "4 pairs, 500 members" in note(figure)


def test_attacks_of_one_curve_are_lines_of_their_own_and_an_open_limit_is_said():
    both = pd.concat([curve(limit=np.nan, half=0.01), curve((0.6, 0.7), (4, 64), attack="nig")])
    figure = plots.query_curves({"SDENet": both, "ODENet, dropout": curve()})
    assert [t.name for t in figure.data if t.showlegend] == [
        "SDENet, RMIA",
        "SDENet, Student-t LiRA",
        "ODENet, dropout",
    ]
    assert list(figure.layout.xaxis.ticktext) == ["1", "4", "16", "64", "∞"]
    np.testing.assert_allclose(trace(figure, "SDENet, Student-t LiRA").x, [2, 6])
    assert title(figure).endswith("no limit could be extrapolated")


def test_an_attack_on_the_spread_of_answers_is_drawn_from_two_queries_on_and_has_no_limit():
    """Members answer with less noise; what averages the answers sees nothing of it."""
    rng, member = np.random.default_rng(0), np.zeros((8, 200), bool)
    for first in range(0, 8, 2):
        member[first, rng.permutation(200)[:100]] = True
        member[first + 1] = ~member[first]
    margin = rng.normal(size=200) + np.where(member, 0.5, 1.0)[:, None] * rng.normal(
        size=(8, 16, 200)
    )
    signals = Signals.from_logits(
        np.stack([margin, 0 * margin], -1), np.zeros(200, int), member, query_kind="noise"
    )
    both = pd.concat(
        metrics.query_curve(signals, name, queries=(1, 2, 16), n_resamples=20)
        for name in ("rmia", "lira_joint")
    )
    drawn = {t.name: t for t in plots.query_curves({"SDENet": both}).data if t.showlegend}
    assert len(drawn["SDENet, RMIA"].x) == 3 and len(drawn["SDENet, LiRA, mean and spread"].x) == 2
    assert drawn["SDENet, LiRA, mean and spread"].y[1] > 0.8 > 0.6 > drawn["SDENet, RMIA"].y[2]
    joint = both[both["attack"] == "lira_joint"]
    assert joint.index.tolist() == [2, 16, np.inf] and np.isnan(joint.loc[np.inf, "auc"])
    with pytest.raises(ValueError, match="needs several queries"):
        metrics.query_curve(signals, "lira_joint", queries=1)


def test_costs_are_bars_of_the_tables_values_with_ratios_to_the_first_family():
    table = cost_table().assign(seconds_low=[9, 38, 140], seconds_high=[11, 43, 165])
    figure = plots.costs(table)
    seconds, memory = (t for t in figure.data if t.type == "bar")
    assert dict(zip(seconds.y, seconds.x, strict=True)) == dict(
        zip(table["family"], table["seconds"], strict=True)
    )
    assert dict(zip(memory.y, memory.x, strict=True)) == dict(
        zip(table["family"], table["memory_mib"], strict=True)
    )
    assert_ends(seconds, [140, 38, 9], [165, 43, 11], "x")
    words = [t.text for t in figure.data if t.type == "scatter"]
    assert words[0][0].strip() == "150 (15×)" and words[1][0].strip() == "5,800 (5.8×)"
    assert (
        title(figure)
        == "SDENet takes 15 times the time of ResNet-14 per epoch and 5.8 times its memory"
    )
    assert "871,402 parameters" in figure.layout.yaxis.ticktext[2]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.families_gap({}), "no family"),
        (
            lambda: plots.families_gap(families(), "accuracy"),
            "metric='accuracy' is neither auc nor tpr@0.01",
        ),
        (lambda: plots.risk_against(settings().drop(columns="test_acc"), "T"), "test_acc missing"),
        (lambda: plots.risk_against(settings(), "sigma"), "sigma missing"),
        (lambda: plots.risk_against(settings()[:0], "T"), "without rows"),
        (
            lambda: plots.risk_against(settings().assign(T=1.0), "T"),
            "risk_against: T = 1 comes more than once: wanted one row per T",
        ),
        (lambda: plots.risk_against(settings().assign(T=[0, 1, 2, np.nan]), "T"), "T is nan"),
        (
            lambda: plots.frontier_lines(frontier_means(checkpoints()).drop(columns="auc_low")),
            "auc_low missing",
        ),
        (lambda: plots.matched_differences(metrics.matched(checkpoints())), "baseline=FAMILY"),
        (
            lambda: plots.matched_differences(compared().query("family != 'ODENet'")),
            "FAMILY",
        ),
        (
            lambda: plots.matched_differences(compared().query("level > 2")),
            "without rows",
        ),
        (lambda: plots.query_curves({}), "no curve"),
        (
            lambda: plots.query_curves({"SDENet": curve().drop(columns="auc_high")}),
            "auc_high missing",
        ),
        (
            lambda: plots.query_curves({"SDENet": curve()}, noise_off={"SDE": 0.6}),
            "name families alike",
        ),
        (
            lambda: plots.costs(cost_table().assign(family="ODENet")),
            "family = ODENet comes more than once",
        ),
        (lambda: plots.costs(cost_table().assign(seconds=[0, 1, 2])), "not positive"),
        (lambda: plots.costs(cost_table().assign(memory_mib=np.nan)), "memory_mib is nan"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(draw, message):
    with pytest.raises(ValueError, match=message) as raised:
        draw()
    assert "\n" not in str(raised.value)


def test_figures_share_the_template_fit_their_page_say_a_sentence_and_stay_light():
    figures = {
        "families_gap": plots.families_gap(families()),
        "risk_against": plots.risk_against(settings(), "T"),
        "frontier_lines": plots.frontier_lines(checkpoints()),
        "matched_differences": plots.matched_differences(compared()),
        "query_curves": plots.query_curves({"SDENet": curve()}),
        "costs": plots.costs(cost_table()),
    }
    for name, figure in figures.items():
        assert (
            figure.layout.width is None
            and figure.layout.height
            and figure.layout.template == TEMPLATE
        ), name
        assert len(title(figure).split()) > 4 and note(figure), name
        assert len(figure.to_json()) < 300_000, name
