"""Figures of differential-equation networks hold exactly what they were given and say true
sentences.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from mia_nb import metrics, plots
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
    figure = plots.gap_against_risk(families())
    for name, one in families().items():
        drawn = trace(figure, name)
        np.testing.assert_allclose(drawn.x, one.accuracy[:, 0] - one.accuracy[:, 1])
        np.testing.assert_allclose(
            drawn.y, [metrics.auc(v, m) for v, m in zip(one.value, one.member, strict=True)]
        )
    assert len({(t.marker.color, t.marker.symbol) for t in figure.data[1:]}) == 3
    assert "one point per target and line of the legend" in figure.layout.title.subtitle.text
    line = figure.data[0]
    np.testing.assert_allclose(line.y, 0.5 + np.asarray(line.x) / 2)


def along_training() -> go.Figure:
    return plots.against(
        metrics.frontier_means(checkpoints()),
        "test_acc",
        "auc",
        line="family",
        label="epoch",
        title="AUC against test accuracy along training",
        caption="bars 95 %",
    )


def test_points_along_training_are_the_means_of_every_checkpoint_with_their_ends_in_order():
    figure = along_training()
    for name, rows in metrics.frontier_means(checkpoints()).groupby("family"):
        drawn = trace(figure, name)
        np.testing.assert_allclose(drawn.x, rows["test_acc"])
        np.testing.assert_allclose(drawn.y, rows["auc"])
        assert_ends(drawn, rows["auc_low"], rows["auc_high"])
        assert_ends(drawn, rows["test_acc_low"], rows["test_acc_high"], "x")
        assert drawn.mode == "lines+markers+text" and list(drawn.text) == ["1", "4", "16"]
        assert drawn.marker.size[2] > drawn.marker.size[1] == drawn.marker.size[0]
        assert drawn.hovertext[0] == "3 pairs · 200 members · 200 non-members"
    assert figure.layout.xaxis.title.text == "test accuracy" and figure.layout.xaxis.tickformat
    assert figure.layout.yaxis.title.text == "AUC" and not figure.layout.yaxis.tickformat


def test_points_without_labels_are_not_joined_and_without_ends_have_no_bars():
    table = pd.DataFrame({"line": ["a", "b"], "gap": [0.1, 0.2], "auc": [0.6, 0.7]})
    table = table.assign(auc_low=[0.55, np.nan], auc_high=[0.65, np.nan])
    figure = plots.against(table, "gap", "auc")
    assert [t.mode for t in figure.data] == ["markers"] * 2
    assert [list(t.x) + list(t.y) for t in figure.data] == [[0.1, 0.6], [0.2, 0.7]]
    assert_ends(figure.data[0], [0.55], [0.65])
    assert all(t.error_x.array is None for t in figure.data)
    assert np.isnan(figure.data[1].error_y.array).all()
    assert len({t.marker.color for t in figure.data}) == 2


def test_words_are_rows_of_the_figure():
    table = pd.DataFrame({"line": ["a", "a"], "value": [0.1, 0.2], "recipes": ["x / y", "x / z"]})
    (drawn,) = plots.against(table, "value", "recipes").data
    assert list(drawn.y) == ["x / y", "x / z"] and list(drawn.x) == [0.1, 0.2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"auc": np.nan}, "against: auc is nan"),
        ({"test_acc": np.inf}, "against: test_acc is inf"),
        (None, "a table without rows"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(changes, message):
    table = metrics.frontier_means(checkpoints())
    table = table.iloc[:0] if changes is None else table.assign(**changes)
    with pytest.raises(ValueError, match=message) as raised:
        plots.against(table, "test_acc", "auc", line="family")
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="family missing"):
        plots.against(table.drop(columns="family"), "test_acc", "auc", line="family")


def test_figures_share_the_template_fit_their_page_say_a_sentence_and_stay_light():
    figures = {"gap": plots.gap_against_risk(families()), "against": along_training()}
    for name, figure in figures.items():
        assert (
            figure.layout.width is None
            and figure.layout.height
            and figure.layout.template == TEMPLATE
        ), name
        assert len(title(figure).split()) > 4 and note(figure), name
        assert len(figure.to_json()) < 300_000, name
