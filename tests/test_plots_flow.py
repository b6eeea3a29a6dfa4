"""Figures of differential-equation networks hold exactly what they were given and say true
sentences.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mia_nb import metrics, plots
from mia_nb.metrics.frontier_table import frontier_means
from mia_nb.plots.style import TEMPLATE
from mia_nb.types import Scores

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
    copies = [table.assign(family=table["family"] + f" {i}") for i in (1, 2, 3)]
    several = plots.frontier_lines(pd.concat(copies))
    assert title(several).count(" ends at ") == 2 and "others lie between" in title(several)


def test_notes_say_whether_intervals_cover_the_choice_of_samples():
    table = checkpoints()
    blind = table.drop(columns="auc_draws")
    for drawn, words in ((table, "over 3 pairs and samples"), (blind, "over 3 pairs")):
        assert f"bars 95 % ({words});" in note(plots.frontier_lines(drawn))
    assert "[95 %, over 3 pairs and samples]" in note(plots.families_gap(families()))
    for first, last in ((6, 4), (4, 6)):  # families may have different numbers of models
        unequal = {"ODENet": scores(targets=first), "SDENet": scores(targets=last)}
        assert "over 2 to 3 pairs and samples" in note(plots.families_gap(unequal))


def test_costs_are_bars_of_the_tables_values_with_ratios_to_the_first_family():
    table = cost_table()
    figure = plots.costs(table)
    seconds, memory = (t for t in figure.data if t.type == "bar")
    assert dict(zip(seconds.y, seconds.x, strict=True)) == dict(
        zip(table["family"], table["seconds"], strict=True)
    )
    assert dict(zip(memory.y, memory.x, strict=True)) == dict(
        zip(table["family"], table["memory_mib"], strict=True)
    )
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
            lambda: plots.frontier_lines(frontier_means(checkpoints()).drop(columns="auc_low")),
            "auc_low missing",
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
        "frontier_lines": plots.frontier_lines(checkpoints()),
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
