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
    value = np.linspace(0.52, 0.6, len(settings))
    frame = pd.DataFrame({"value": value, "low": value - 0.01, "high": value + 0.01, "line": "a"})
    frame[x] = settings if isinstance(settings, np.ndarray) else pd.Series(settings)
    return frame


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_drawn_against_settings_of_every_kind(kind):
    given = table(KINDS[kind], "blocks")
    figure = plots.lines(given, "blocks")
    (drawn,) = figure.data
    assert np.isfinite(np.asarray(drawn.x, float)).all() and len(drawn.x) == len(given)
    assert len(figure.layout.xaxis.ticktext) == len(given)


@pytest.mark.parametrize("kind", KINDS)
def test_lines_stand_side_by_side(kind):
    one = table(KINDS[kind], "blocks")
    figure = plots.lines(pd.concat([one, one.assign(line="b")]), "blocks")
    first, second = figure.data
    assert {first.name, second.name} == {"a", "b"}
    if len(one) > 1:
        assert (np.asarray(first.x) < np.asarray(second.x)).all()
