"""A figure over a setting takes settings of every kind."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mia_nb import plots

KINDS = {
    "whole numbers": [1, 2, 3],
    "one whole number": [2],
    "small whole numbers": np.array([1, 2, 3], np.int8),
    "whole numbers with 0": [0, 1, 16],
    "numbers": [0.25, 0.5, 1.0],
    "negative numbers": [-1.0, 0.0, 2.0],
    "true and false": [True, False],
    "words": ["euler", "rk4", "dopri5"],
    "words and None": ["none", None, "crop"],
    "lists": [[1, 2], [3]],
    "mixed": [1, "two", None],
}


def table(settings, x):
    count = len(settings)
    auc = np.linspace(0.52, 0.6, count)
    frame = pd.DataFrame(
        {
            "auc": auc,
            "auc_low": auc - 0.01,
            "auc_high": auc + 0.01,
            "train_acc": np.linspace(0.9, 0.8, count),
            "test_acc": np.linspace(0.7, 0.8, count),
        }
    )
    frame[x] = settings if isinstance(settings, np.ndarray) else pd.Series(settings)
    return frame


@pytest.mark.parametrize("x", ["blocks", "T"])
@pytest.mark.parametrize("kind", KINDS)
def test_risk_is_drawn_against_settings_of_every_kind(kind, x):
    given = table(KINDS[kind], x)
    figure = plots.risk_against(given, x)
    drawn = [trace for trace in figure.data if len(trace.x) == len(given)]
    assert drawn
    for trace in drawn:
        assert np.isfinite(np.asarray(trace.x, float)).all()
    assert len(figure.layout.xaxis.ticktext) == len(given)


@pytest.mark.parametrize("kind", KINDS)
def test_risk_is_drawn_for_groups_side_by_side(kind):
    one = table(KINDS[kind], "blocks")
    both = pd.concat([one.assign(group="a"), one.assign(group="b")])
    figure = plots.risk_against(both, "blocks")
    assert {trace.name for trace in figure.data} >= {"a", "b"} or len(figure.data) >= 6
