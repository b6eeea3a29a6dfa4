"""Figures of accounting, ladders, bounds and defenses hold what they were given, say true sentences
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

from mia_nb import accounting, auditing, metrics, plots
from mia_nb.accounting import tradeoff
from mia_nb.auditing.ladder import LABELS
from mia_nb.auditing.one_run import one_run
from mia_nb.plots import privacy
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


def spent(epochs=(10, 100, 300), delta=1e-5, batch=512, **options) -> pd.DataFrame:
    table = accounting.over_epochs(
        **STUDY,
        batch=batch,
        epochs=epochs,
        delta=delta,
        accountants=("rdp", "gdp"),
        sampling="uniform",
        **options,
    )
    return table.assign(batch=batch)


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


def utility(models=4) -> pd.DataFrame:
    table = spent(range(1, 61))
    seen = [(e, m, 0.85 - 0.5 / e - 0.01 * m) for e in range(1, 61) for m in range(models)]
    return table.merge(pd.DataFrame(seen, columns=["epoch", "model", "test_acc"]), on="epoch")


def test_accuracy_against_epsilon_is_shown_to_be_accuracy_against_epochs():
    table = utility()
    figure = plots.privacy_utility(table)
    by_epoch, gdp = (
        trace(figure, "mean of models"),
        trace(figure, "GDP (CLT approximation), uniform batches"),
    )
    assert list(by_epoch.x) == list(gdp.customdata) == list(range(1, 61))
    np.testing.assert_allclose(by_epoch.y, gdp.y)
    np.testing.assert_allclose(gdp.y, 0.835 - 0.5 / np.arange(1, 61))
    np.testing.assert_allclose(
        gdp.x, table[table["accountant"] == "gdp"].groupby("epoch")["epsilon"].first()
    )
    assert f"{0.835 - 0.5 / 31:.1%} (GDP (CLT approximation), uniform batches: epoch 31)" in title(
        figure
    )
    assert (by_epoch.xaxis, gdp.xaxis) == (
        "x",
        "x2",
    ) and figure.layout.xaxis2.title.text == privacy.NOMINAL
    thin = [t for t in figure.data if t.showlegend is False]
    # 4 models: by epoch and under two accountants
    assert len(thin) == 4 * 3 and all(t.line.width == 1 for t in thin)
    assert "left by epoch, right relabelled" in note(figure) and "not a guarantee" in note(figure)
    assert "delta 1e-05" in note(figure) and "add/remove one record" in note(figure)


def test_curves_by_delta_and_an_epsilon_that_is_never_reached():
    table = pd.concat(
        [
            utility().assign(delta=d, epsilon=lambda t, d=d: t["epsilon"] * 10 * d)
            for d in (0.1, 10.0)
        ]
    )
    figure = plots.privacy_utility(table[table["accountant"] == "rdp"])
    # lines name their delta
    assert "(RDP, delta 0.1: epoch " in title(figure) and "delta" not in note(figure)
    first = table.loc[(table["accountant"] == "rdp") & (table["delta"] == 10), "epsilon"].min()
    assert title(figure).endswith(
        f"; RDP, delta 10 begins at nominal epsilon {first:.4g} (epoch 1), above 2"
    )
    broken = utility()
    broken.loc[broken["accountant"] == "rdp", "test_acc"] += 0.1
    with pytest.raises(ValueError, match="differs between accountants or deltas"):
        plots.privacy_utility(broken)


def measured(*epochs) -> pd.DataFrame:
    """Epsilon a tenth of the epoch, test accuracy 50 % and a point per epoch."""
    rows = [{"epoch": e, "epsilon": 0.1 * e, "test_acc": 0.5 + 0.01 * e} for e in epochs]
    return pd.DataFrame(rows).assign(accountant="prv", sampling="poisson", delta=1e-5, model=0)


def test_accuracy_is_read_where_it_was_measured():
    assert (
        title(plots.privacy_utility(measured(1, 6, 11)))
        == "PRV ends at nominal epsilon 1.1 (epoch 11), below 2, with a mean test accuracy of 61.0%"
    )
    wide = title(plots.privacy_utility(measured(1, 10, 30)))
    assert wide == "At nominal epsilon 2 the mean test accuracy is 60.0% (PRV: epoch 10, at 1)"
    near = title(plots.privacy_utility(measured(1, 19, 20, 21)))
    assert near == "At nominal epsilon 2 the mean test accuracy is 70.0% (PRV: epoch 20)"


def test_both_forms_of_batches_are_lines_of_their_own():
    both = [
        measured(1, 10, 30).assign(accountant="gdp", sampling=form)
        for form in ("poisson", "uniform")
    ]
    both[1]["epsilon"] *= 2
    figure = plots.privacy_utility(pd.concat(both))
    name = "GDP (CLT approximation), {} batches".format
    assert list(trace(figure, name("poisson")).x) == [0.1, 1, 3] and list(
        trace(figure, name("uniform")).x
    ) == [0.2, 2, 6]
    assert "60.0% (GDP (CLT approximation), uniform batches: epoch 10)" in title(figure)


@pytest.mark.parametrize("without", [{"noise_multiplier": 0.0}, {"delta": 0.0}])
def test_an_infinite_epsilon_is_said_to_be_one_of_no_noise_or_no_delta(without):
    table = accounting.over_epochs(
        **({**STUDY, "batch": 512, "epochs": [1, 2], "delta": 1e-5, "accountants": "rdp"} | without)
    )
    with pytest.raises(
        ValueError,
        match=r"epsilon is infinite, as it is for a sigma \(noise multiplier\) or a delta of 0",
    ) as why:
        plots.privacy_utility(table.assign(model=0, test_acc=0.5))
    assert "\n" not in str(why.value)


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
        flow=FLOW | {"clip": 0.5, "lipschitz": 1.0}, stored={"releases": 1, "label_epsilon": 1.0}
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


def defended() -> pd.DataFrame:
    rows = [
        ("ResNet-14", "", "", 0.86, 0.12, 0.68),
        ("ResNet-14, L1", "l1", "", 0.865, 0.11, 0.64),
        ("ResNet-14, DP-SGD", "dp_sgd", "", 0.744, -0.01, 0.516),
        ("ResNet-14, MemGuard", "", "memguard", 0.86, 0.12, 0.58),
    ]
    long = []
    for name, defense, output, test_acc, gap, auc in rows:
        about = {"name": name, "defense": defense, "output": output, "attack": "lira_global"}
        measurable = defense != "dp_sgd"
        for metric, fpr, value, low, high, known in (
            ("auc", np.nan, auc, auc - 0.01, auc + 0.02, True),
            ("tpr", 0.1, 0.2, 0.1, 0.3, measurable),
            ("test_acc", np.nan, test_acc, np.nan, np.nan, True),
            ("gap", np.nan, gap, np.nan, np.nan, True),
        ):
            ends = {"value": value, "low": low, "high": high, "measurable": known}
            long.append({**about, "metric": metric, "fpr": fpr, **ends})
    return pd.DataFrame(long)


def of_metric(metric: str) -> pd.DataFrame:
    table = defended()
    return table[table["metric"] == metric].set_index("name")


def test_defenses_stand_at_their_accuracy_and_risk_with_intervals():
    figure = plots.defenses(defended())
    accuracy, gap, auc = (of_metric(metric)["value"] for metric in ("test_acc", "gap", "auc"))
    for name in auc.index:
        mine = [
            t
            for t in figure.data
            if t.mode == "markers" and t.name.startswith(name) and t.legendgroup == name
        ]
        assert [(t.x[0], t.y[0]) for t in mine] == [
            (accuracy[name], auc[name]),
            (gap[name], auc[name]),
        ]
        assert mine[0].error_y.array[0] == pytest.approx(0.02) and mine[0].error_y.arrayminus[
            0
        ] == pytest.approx(0.01)
    trades = [t for t in figure.data if t.mode == "lines" and t.showlegend is False]
    assert len(trades) == 6 and {(t.x[0], t.y[0]) for t in trades} == {(0.86, 0.68), (0.12, 0.68)}
    assert len({t.marker.symbol for t in figure.data if t.mode == "markers"}) == 4
    chance = trace(figure, "1/2 + gap/2 (correctness)")
    np.testing.assert_allclose(chance.y, 0.5 + np.array(chance.x) / 2)
    assert (
        title(figure)
        == "ResNet-14 undefended: AUC 0.680 at 86.0%; DP-SGD leaks least: 0.516, 11.6 points less"
        " accurate; at most a point less accurate: L1, 0.640; answers masked by MemGuard: 0.580 by"
        " these attacks"  # not "leaks least": others may read more from labels
    )
    assert figure.layout.shapes[-1].x0 == 0.85


def test_the_sentence_about_defenses_follows_the_table():
    table = defended()
    costly = table[table["name"].isin(["ResNet-14", "ResNet-14, DP-SGD"])]
    assert title(plots.defenses(costly)).endswith(
        "every defense in training costs more than a point of accuracy"
    )
    free = table[table["name"].isin(["ResNet-14", "ResNet-14, L1"])]
    assert title(plots.defenses(free)).endswith("L1 leaks least: 0.640, 0.5 points more accurate")
    unnamed = defended().drop(columns=["defense", "output"])
    assert (
        title(plots.defenses(unnamed))
        == "ResNet-14, DP-SGD leaks least: AUC 0.516 at test accuracy 74.4%"
    )
    assert title(plots.defenses(unnamed, undefended="ResNet-14")) == title(
        # without a word on outputs nobody knows that answers were masked
        plots.defenses(defended().assign(output=""))
    )


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (
            lambda: plots.defenses(pd.concat([defended()] * 2)),
            "name = ResNet-14 comes more than once",
        ),
        (lambda: plots.defenses(defended(), undefended="VGG"), "'VGG' is not in the table"),
        (lambda: plots.defenses(defended().drop(columns="low")), "low missing"),
    ],
)
def test_tables_that_cannot_be_drawn_are_refused_in_one_line(call, wanted):
    with pytest.raises(ValueError, match=wanted) as error:
        call()
    assert "\n" not in str(error.value)


def test_summaries_of_measured_defenses_can_be_drawn():
    found = {"ResNet-14": scores(1.0), "ResNet-14, DP-SGD": scores(0.1, seed=1)}
    tables = []
    for name, one in found.items():
        table = metrics.summary({"loss": one}, (0.1,), n_resamples=50)
        tables.append(table[table["attack"] == "max"].assign(name=name))
    assert "DP-SGD leaks least" in title(plots.defenses(pd.concat(tables)))


def test_a_title_leaves_out_options_of_a_defense_where_its_name_alone_tells_it_from_the_others():
    options = ", max grad norm 1, noise multiplier 1.116"
    named = {"ResNet-14, DP-SGD": f"ResNet-14, DP-SGD{options}"}
    table = defended().replace({"name": named})
    assert title(plots.defenses(table)) == title(plots.defenses(defended()))
    other = table[table["name"].isin(named.values())].assign(name=f"ResNet-14, DP-SGD{options}5")
    both = title(plots.defenses(pd.concat([table, other])))
    assert f"DP-SGD{options} leaks least" in both


def test_figures_are_transparent_and_no_word_claims_more_than_was_shown():
    figures = [
        plots.privacy_utility(utility()),
        plots.ladder(sde_ladder()),
        plots.roc_bounds(scores(1.0)),
        plots.defenses(defended()),
    ]
    drawn_by = map(inspect.getmodule, (plots.ladder, plots.roc_bounds, plots.defenses))
    texts = [*map(inspect.getsource, drawn_by), *(figure.to_json() for figure in figures)]
    assert all(
        figure.layout.template == TEMPLATE and figure.layout.width is None for figure in figures
    )
    assert TEMPLATE.layout.paper_bgcolor == "rgba(0,0,0,0)"
    for text in texts:
        for phrase in FORBIDDEN:
            assert phrase.lower() not in text.lower(), phrase
