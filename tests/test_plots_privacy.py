"""Figures of ladders and bounds hold what they were given, say true sentences
and claim no more.
"""

from __future__ import annotations

import inspect
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from mia_nb import accounting, auditing, plots
from mia_nb.accounting import tradeoff
from mia_nb.auditing.ladder import LABELS
from mia_nb.auditing.one_run import one_run
from mia_nb.plots.style import TEMPLATE
from mia_nb.studies.below_curve import room_below
from mia_nb.types import Scores

STUDY = {"noise_multiplier": 2.0, "samples": 25_000}
FLOW = {"k": 0.5, "steps": 16, "T": 1.0, "method": "euler"}
NOMINAL = {"sample_rate": 512 / 25_000, "steps": 14_700}
FORBIDDEN = (
    "the epsilon of",
    "epsilon of the model",
    "privacy budget",
    " safe",
    "secure",
    "DP-trained",
    "leaks nothing",
)


def scores(shift=0.0, *, targets=4, samples=2000, seed=0, attack="rmia", pairs=True) -> Scores:
    """Members N(shift, 1), non-members N(0, 1)."""
    half = np.array(
        [
            np.random.default_rng([0, i]).permutation(samples) < samples // 2
            for i in range(math.ceil(targets / 2))
        ]
    )
    member = np.stack([half, ~half], axis=1).reshape(-1, samples)[:targets]
    value, rows = (
        np.random.default_rng([1, seed]).normal(size=member.shape) + shift * member,
        np.arange(targets),
    )
    accuracy = np.tile([0.9, 0.8], (targets, 1))
    return Scores(
        value,
        member,
        rows,
        rows // 2 if pairs else rows,
        accuracy,
        1 - accuracy,
        {"attack": attack},
    )


def title(figure) -> str:
    return figure.layout.title.text.replace("<br>", " ")


def note(figure) -> str:
    return figure.layout.title.subtitle.text


def trace(figure, name):
    (found,) = (t for t in figure.data if t.name == name and t.showlegend is not False)
    return found


def audited(correct=1000, epsilon=None):
    """The record of one run on 1,000 canaries, at delta 1e-5."""
    coins = np.random.default_rng(0).random(1000) < 0.5
    record = one_run(coins + 0.0, coins, delta=1e-5, guesses=1000)
    return record if epsilon is None else record._replace(epsilon=epsilon)


def sde_ladder(**changes) -> pd.DataFrame:
    given = {
        "delta": 1e-5,
        "flow": FLOW,
        "nominal": NOMINAL,
        "audited": audited(),
        "accountant": "rdp",
    }
    given |= {"flow": FLOW | {"clip": 0.5}, "lipschitz": {"certified": 1.0}} | changes
    return auditing.ladder(**given)


def words(figure) -> dict[float, str]:
    """{place of a row: what is written there}."""
    return {t.y[0]: t.text[0].strip() for t in figure.data if t.text}


def test_the_ladder_writes_every_row_as_the_table_has_it():
    table = sde_ladder()
    figure = plots.ladder(table)
    assert words(figure) == {
        float(-row): shown for row, shown in zip(table["row"], table["shown"], strict=True)
    }
    axis = figure.layout.yaxis
    assert list(axis.ticktext) == list(LABELS) and list(axis.tickvals) == [
        -1,
        -2,
        -3,
        -4,
        -5,
    ]
    assert [a.text for a in figure.layout.annotations] == list(table["note"])
    assert title(figure) == "Claimed 6.6 (nominal) - proved: none - audited: at least 3.25"
    assert (
        note(figure)
        == "delta 1e-05; add/remove one record in rows 1, 4 and 5; rows 1 to 4 do not bound"
        " each other"
    )
    marks = {t.y[0]: t for t in figure.data if t.text}
    for row in (1, 2, 3, 5):
        assert (
            marks[-row].x[0] == table["epsilon"][row - 1] and marks[-row].marker.symbol == "line-ns"
        )
    end = 10 ** figure.layout.xaxis.range[1]
    runs = {t.y[0]: tuple(t.x) for t in figure.data if t.mode == "lines" and len(t.x) == 2}
    assert set(runs) == {-4, -5} and runs[-5] == pytest.approx((table["epsilon"][4], end))
    assert runs[-4][1] == pytest.approx(end) and runs[-4][0] < table["epsilon"][:3].min()
    assert figure.layout.xaxis.type == "log" and all(
        "none" not in words(figure)[-row] for row in (1, 2, 3, 5)
    )


def test_a_ladder_without_noise_states_no_number_for_it():
    trained = {"noise_multiplier": 1.0, "sample_rate": 0.02, "steps": 1000}
    table = auditing.ladder(
        delta=1e-5, dp_sgd=trained, audited=audited(epsilon=0.0), accountant="rdp"
    )
    figure = plots.ladder(table)
    shown = table.set_index("row")["shown"]
    assert title(figure) == f"Claimed: nothing - proved: {shown[4]} - audited: 0"
    assert (
        words(figure)[-1] == "not applicable (no noise in the network)" and words(figure)[-5] == "0"
    )
    # nothing infinite, no lower bound above 0
    assert not [t for t in figure.data if t.mode == "lines" and len(t.x) == 2]
    silent = plots.ladder(sde_ladder(audited=None))
    assert title(silent) == "Claimed 6.6 (nominal) - proved: none - not audited"


def test_rows_about_replaced_records_are_named_as_such():
    kept = sde_ladder(
        flow=FLOW | {"clip": 0.5, "lipschitz": 1.0},
        stored={"releases": 1, "keep": 0.5, "classes": 10, "relation": "replace"},
    )
    both = "add/remove one record in rows 1 and 5, replace one record in row 4"
    unordered = "rows 1 to 4 do not bound each other"
    assert note(plots.ladder(kept)) == f"delta 1e-05; {both}; {unordered}"
    several = note(plots.ladder({"A": sde_ladder(), "B": kept, "C": sde_ladder()}))
    assert (
        several
        == f"delta 1e-05; A, C: add/remove one record in rows 1, 4 and 5; B: {both}; {unordered}"
    )


def test_only_a_verdict_that_says_refuted_is_called_so():
    table = sde_ladder()
    table.loc[[0, 3], "verdict"] = (
        "row 5 is above, by a method whose conditions are not known to hold here: not refuted"
    )
    assert "refute" not in title(plots.ladder(table))
    table.loc[[1, 3], "verdict"] = "refuted at 95 % by row 5"
    assert title(plots.ladder(table)).endswith(
        " - audited: at least 3.25, which refutes Corollary 1 and the guarantee of DP-SGD"
    )


def test_a_theorem_at_a_local_constant_is_a_lower_bound():
    figure = plots.ladder(sde_ladder(lipschitz={"local": 22.0}))
    runs = {t.y[0] for t in figure.data if t.mode == "lines" and len(t.x) == 2}
    assert runs == {-2, -4, -5} and words(figure)[-2].startswith(">= 53")


def test_several_ladders_stand_apart_and_a_refutation_is_said():
    refuted = sde_ladder(nominal=NOMINAL | {"steps": 490})
    figure = plots.ladder({"long": sde_ladder(), "short": refuted})
    several = "What is claimed, proved and audited of 2 networks"
    assert title(figure) == f"{several}; refuted by the audit: short: the nominal value"
    assert title(plots.ladder({"long": sde_ladder(), "again": sde_ladder()})) == several
    assert len(words(figure)) == 10 and figure.layout.showlegend
    keys = [t for t in figure.data if t.name in ("long", "short") and t.showlegend is not False]
    assert len({t.line.color for t in keys}) == len({t.line.dash for t in keys}) == 2
    with pytest.raises(ValueError, match="no table"):
        plots.ladder({})
    with pytest.raises(ValueError, match="ladder of long got columns"):
        plots.ladder({"long": refuted.drop(columns="shown")})


def test_bounds_are_the_trade_off_curves_and_are_faint_where_they_allow_everything():
    one = scores()
    figure = plots.roc_bounds(one, bounds=((1.0, 1e-5), (8.0, 1e-5)))
    for epsilon, mu in ((1.0, 0.268), (8.0, 1.666)):
        name = f"epsilon {epsilon:g}, delta 1e-05"
        line, gdp = trace(figure, name), trace(figure, f"GDP of {name}")
        np.testing.assert_allclose(line.y, tradeoff(np.array(line.x), epsilon=epsilon, delta=1e-5))
        np.testing.assert_allclose(norm.ppf(gdp.y[:50]) - norm.ppf(gdp.x[:50]), mu, atol=6e-4)
        assert math.isclose(line.x[0], 1 / 10_000) and line.line.dash != gdp.line.dash  # n0 = 1,000
        faint = next(t for t in figure.data if t.name == name and t.showlegend is False)
        assert (
            faint.y[0] > 0.98
            and line.y[-2] <= 0.99
            and faint.x[-1] == 1
            and "0.3" in faint.line.color
        )
    assert figure.layout.xaxis.range[0] == -4


def test_only_what_is_resolved_is_called_above_a_bound():
    # half of its points are above the Gaussian curve
    on_it = scores(accounting.gaussian_mu(1.0, 1e-5), samples=1900)
    assert (
        title(plots.roc_bounds(on_it)) == "no curve is above a bound (95% over 16 looks together)"
    )
    figure = plots.roc_bounds({"weak": scores(), "strong": scores(2.0, seed=1)})
    assert title(figure).startswith(
        "strong is above epsilon 1, delta 1e-05 at FPR 1 % (4 of 4), 10 % (4 of 4)"
    )
    assert "weak is" not in title(figure) and "GDP of epsilon 1" not in title(figure)
    assert "no confidence interval" in note(figure) and "1 %, 10 %" in note(figure)
    few = plots.roc_bounds(scores(2.0, samples=100))
    assert title(few) == "too few non-members to compare any curve with a bound"
    single = plots.roc_bounds(scores(2.0, targets=1))
    assert note(single).startswith("one target;") and "FPR 1 %" in title(single)


def test_a_gaussian_curve_can_be_exceeded_where_the_line_is_not():
    between = 0.5 * (accounting.gaussian_mu(8.0, 1e-5) + norm.ppf(0.999) - norm.ppf(0.1))
    figure = plots.roc_bounds(scores(between, samples=1900), bounds=((8.0, 1e-5),))
    assert "RMIA is above GDP of epsilon 8, delta 1e-05 at FPR 10 % (4 of 4)" in title(figure)
    assert "above epsilon 8" not in title(figure)  # the line allows all there


def test_what_two_looks_would_call_above_is_not_above_after_eight():
    bounds = tuple((epsilon, 1e-5) for epsilon in (1.0, 6.0, 7.0, 8.0))
    curve = partial(tradeoff, mu=accounting.gaussian_mu(1.0, 1e-5))

    def high(one, confidence):
        return room_below(one.value[0], one.member[0], 0.1, curve, (confidence,))[2]

    worlds = (scores(shift, targets=1, samples=1900) for shift in np.arange(0.3, 1.0, 0.02))
    one = next(one for one in worlds if high(one, 1 - 0.05 / 2) < 0 < high(one, 1 - 0.05 / 8))
    assert (
        title(plots.roc_bounds(one, bounds=bounds))
        == "no curve is above a bound (95% over 8 looks together)"
    )
    assert "is above GDP of epsilon 1" in title(plots.roc_bounds(one, bounds=bounds[:1]))


def test_every_target_is_drawn_beside_the_mean():
    figure = plots.roc_bounds(scores(1.0))
    thin = [t for t in figure.data if t.name == "RMIA, target"]
    assert len(thin) == 4 and all(t.line.width < 1 for t in thin)
    bold = next(t for t in figure.data if (t.name or "").startswith("RMIA  AUC"))
    at = [t.y[np.searchsorted(np.array(t.x), 0.1 + 1e-6, side="right") - 1] for t in thin]
    assert bold.y[np.searchsorted(np.array(bold.x), 0.1 + 1e-6, side="right") - 1] == pytest.approx(
        np.mean(at), abs=0.002
    )


def test_figures_are_transparent_and_no_word_claims_more_than_was_shown():
    figures = [plots.ladder(sde_ladder()), plots.roc_bounds(scores(1.0))]
    drawn_by = map(inspect.getmodule, (plots.ladder, plots.roc_bounds))
    texts = [*map(inspect.getsource, drawn_by), *(figure.to_json() for figure in figures)]
    assert all(
        figure.layout.template == TEMPLATE and figure.layout.width is None for figure in figures
    )
    assert TEMPLATE.layout.paper_bgcolor == "rgba(0,0,0,0)"
    for text in texts:
        for phrase in FORBIDDEN:
            assert phrase.lower() not in text.lower(), phrase
