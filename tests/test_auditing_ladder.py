"""The ladder: exact labels and notes, values that formulas give, what refutes what, and words that
may not appear.
"""

import ast
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mia_nb import accounting, auditing
from mia_nb.auditing.ladder import LABELS, NOTES, ladder, number
from mia_nb.auditing.one_run import one_run, one_run_epsilon
from mia_nb.models.neural_de import FlowBlock

DELTA = 1e-5
FLOW = {"k": 0.5, "steps": 16, "T": 1.0, "method": "euler"}
NOMINAL = {"sample_rate": 0.02048, "steps": 14700}
FIGURE = {"accountant": "gdp", "sampling": "uniform"}  # closed form: fast, and the study's figure


def audited(shift, m=2000, delta=DELTA, seed=0, guesses=None):
    rng = np.random.default_rng(seed)
    coin = rng.random(m) < 0.5
    return one_run(rng.standard_normal(m) + shift * coin, coin, delta=delta, guesses=guesses)


def rows(**given):
    return ladder(delta=DELTA, **given).set_index("row")


def test_labels_and_notes_are_the_exact_words():
    table = ladder(delta=DELTA, flow=FLOW, nominal=NOMINAL, audited=audited(3), **FIGURE)
    assert (
        table["label"].to_list()
        == [
            "nominal (paper's accounting)",
            "paper's theorem with measured L",
            "release bound",
            "training guarantee",
            "audited lower bound",
        ]
        == list(LABELS)
    )
    assert (
        table["note"].to_list()
        == [
            "assumes T*L <= 1 and private gradients; not a guarantee",
            "paper's formula; shown outside its domain if eps >= 1; not a guarantee",
            "local DP of the queried input's hidden state, per query; says nothing about training",
            "the only row that may be called a guarantee for the training set",
            "at least this, 95 % confidence",
        ]
        == list(NOTES)
    )
    assert table["row"].to_list() == [1, 2, 3, 4, 5] and (table["delta"] == DELTA).all()
    assert (table["relation"] != "").all()


def test_the_nominal_row_follows_the_named_accountant():
    assert rows(flow=FLOW, nominal=NOMINAL).loc[1, "shown"] == "6.13"
    figure = rows(flow=FLOW, nominal=NOMINAL, **FIGURE).loc[1]
    assert figure["epsilon"] == pytest.approx(7.381, abs=1e-3) and figure["shown"] == "7.38"
    assert "sigma = 2" in figure["method"] and "GDP accountant (uniform)" in figure["method"]


def test_the_theorem_row_gives_the_certified_and_the_local_value():
    row = rows(flow=FLOW, lipschitz={"certified": 1.0, "local": 0.5}).loc[2]
    assert row["epsilon"] == pytest.approx(2.4224, abs=1e-4)
    assert row["shown"] == "2.42 (certified L); >= 1.21 (at the local L)"
    assert "outside its domain" in row["remark"]
    only = rows(flow=FLOW, lipschitz={"certified": None, "local": 0.2}).loc[2]
    assert only["shown"] == ">= 0.484 (at the local L)" and only["remark"] == ""


def test_the_corollary_at_its_own_noise_gives_its_own_epsilon():
    # noise_sd 128.8 for 300 iterations, T L = 1, total delta 1e-5 split evenly: 8
    flow = FLOW | {"k": 128.8 / 4}
    row = rows(
        flow=flow,
        nominal={"sample_rate": 0.02, "steps": 300},
        lipschitz={"certified": 1.0},
        **FIGURE,
    ).loc[2]
    assert "Corollary 1 over 300 steps, total delta split evenly: 8 (certified L)" in row["method"]
    assert "outside its domain" in row["remark"] and row["epsilon"] < 1


def test_times_below_one_and_steep_drifts_are_remarked():
    row = rows(flow=FLOW | {"T": 0.25}, nominal=NOMINAL, lipschitz={"local": 22.0}, **FIGURE).loc[1]
    assert "T = 0.25: the tabulated sigma exceeds the theorem's by 1/sqrt T" in row["remark"]
    assert "T*L >= 5.5 at the local L: the assumption T*L <= 1 does not hold" in row["remark"]
    assert "1/sqrt T" not in rows(flow=FLOW, nominal=NOMINAL, **FIGURE).loc[1, "remark"]


def test_the_release_row_needs_a_clipped_state_and_a_certified_bound():
    clipped, bound = FLOW | {"clip": 0.5}, {"certified": 1.0}
    row = rows(flow=clipped, lipschitz=bound).loc[3]
    assert "mu = 0.776" in row["method"] and row["epsilon"] == pytest.approx(3.2712, abs=1e-3)
    often = rows(flow=clipped, lipschitz=bound, release={"queries": 4}).loc[3, "shown"]
    assert "over 4 queries" in often
    for flow, lipschitz in ((FLOW, bound), (clipped, {"local": 1.0})):
        shown = rows(flow=flow, lipschitz=lipschitz).loc[3, "shown"]
        assert shown == "not given: needs clipped h0 (clip=C) and a certified L"
    other = rows(flow=clipped | {"method": "stoch_rk4"}, lipschitz=bound).loc[3, "shown"]
    assert other.startswith("not covered (stoch_rk4")
    off = rows(flow=clipped | {"noise_eval": False}, lipschitz=bound).loc[3]
    assert off["shown"] == "none (infinite)" and math.isinf(off["epsilon"])
    assert off["remark"] == "noise is off at inference"


def test_a_description_of_a_network_is_a_flow():
    from torch import nn

    from mia_nb.models.neural_de import describe

    about = describe(nn.Sequential(FlowBlock(4, steps=16, k=0.5, lipschitz=1.0, clip=0.5)))
    assert rows(flow=about).loc[3, "epsilon"] == pytest.approx(3.2712, abs=1e-3)
    assert "needs clipped h0 (clip=C)" in rows(flow=about | {"clip": None}).loc[3, "shown"]


def test_without_noise_only_the_audit_can_speak():
    for flow in (None, FLOW | {"k": 0.0}):
        table = rows(flow=flow, nominal=NOMINAL, audited=audited(3))
        assert (table.loc[[1, 2, 3], "shown"] == "not applicable (no noise in the network)").all()
        assert (
            table.loc[[1, 2, 3], "epsilon"].isna().all()
            and (table.loc[[1, 2, 3], "verdict"] == "").all()
        )
        assert (
            table.loc[4, "shown"] == "none (infinite)"
            and table.loc[4, "verdict"] == "nothing claimed"
        )
    untrained = rows(flow=FLOW | {"noise_train": False}, nominal=NOMINAL).loc[1, "shown"]
    assert untrained == "not applicable (no noise in training)"


def test_the_guarantee_is_that_of_dp_sgd_alone():
    spent = {"noise_multiplier": 2.0, "sample_rate": 0.02048, "steps": 490}
    row = rows(flow=FLOW, dp_sgd=spent).loc[4]
    assert row["epsilon"] == pytest.approx(0.945, abs=2e-3) and "PRV" in row["method"]
    assert row["remark"].endswith("the network's noise adds nothing")
    # never an approximation here
    assert "PRV" in rows(dp_sgd=spent, accountant="gdp").loc[4, "method"]


def test_an_audit_above_a_claim_refutes_it_and_one_below_says_nothing():
    record = audited(8)
    weak = {"sample_rate": 0.001, "steps": 100}  # a nominal number near 0
    bounded = FLOW | {"lipschitz": 1e-4}  # by construction, and so throughout training
    above = rows(flow=bounded, nominal=weak, audited=record, **FIGURE)
    assert record.epsilon > max(above.loc[1, "epsilon"], 1)
    assert above.loc[1, "verdict"] == above.loc[2, "verdict"] == "refuted at 95 % by row 5"
    assert above.loc[4, "verdict"] == "nothing claimed" and above.loc[5, "verdict"] == ""
    measured = rows(
        flow=FLOW, nominal=weak, lipschitz={"certified": 1e-4}, audited=record, **FIGURE
    ).loc[2]
    assert (
        measured["verdict"].startswith("not tested")
        and "L of the weights at the end" in measured["remark"]
    )
    below = rows(
        flow=FLOW | {"lipschitz": 2e-3},
        nominal=NOMINAL | {"steps": 1000},
        audited=audited(0.5),
        **FIGURE,
    )
    assert below.loc[1, "verdict"] == below.loc[2, "verdict"] == "no attack found that exceeds it"
    assert (
        rows(flow=FLOW, nominal=weak, lipschitz={"local": 1e-4}, audited=record, **FIGURE)
        .loc[2, "verdict"]
        .startswith("not tested")
    )


def test_a_claim_that_right_guesses_alone_could_not_exceed_is_not_called_unexceeded():
    perfect = audited(60)
    most = one_run_epsilon(
        canaries=2000, guesses=2000, correct=2000, delta=DELTA, confidence=1 - 0.05 / 4
    )
    # a few coins more fell IN than are guessed IN
    assert 4 < perfect.epsilon < perfect.at_most == most < 6.5
    # 7.38 by the study's accounting
    table = rows(flow=FLOW, nominal=NOMINAL, audited=perfect, **FIGURE)
    assert table.loc[1, "verdict"] == "row 5 could not have exceeded it (at most 6)"
    assert "at most 6 had every guess been right" in table.loc[5, "method"]
    nothing = audited(0)
    assert nothing.epsilon == 0 and nothing.at_most == most
    assert audited(3, guesses=50).at_most < audited(3, guesses=500).at_most < most + 1


def test_several_trainings_are_summed_in_the_guarantee_and_an_audit_is_compared_with_one():
    spent = {"noise_multiplier": 2.0, "sample_rate": 0.02048, "steps": 490}
    one, five = (
        rows(dp_sgd=spent | {"trials": n}, audited=audited(0.8), accountant="rdp").loc[4]
        for n in (1, 5)
    )
    whole = rows(dp_sgd=spent | {"steps": 5 * 490}, accountant="rdp").loc[4, "epsilon"]
    assert (
        five["epsilon"] == whole > one["epsilon"]
        and "5 trainings, all counted as the last (one: " in five["method"]
    )
    assert (
        one["epsilon"] < audited(0.8).epsilon < whole
        and five["verdict"] == one["verdict"] == "refuted at 95 % by row 5"
    )


CLIPPED = FLOW | {"clip": 0.5, "lipschitz": 0.0}
COIN = {
    "releases": 1,
    "keep": 0.5,
    "classes": 2,
    "relation": "replace",
}  # a label that says nothing


def test_stored_features_of_public_networks_have_the_guarantee_of_release_and_labels():
    once = rows(flow=CLIPPED, stored=COIN).loc[4]
    assert once["epsilon"] == pytest.approx(1.9931, abs=1e-4)
    epochs = rows(flow=CLIPPED, stored=COIN | {"releases": 300}).loc[4]
    assert epochs["epsilon"] == pytest.approx(73.62, abs=0.02) and "mu = 8.66" in epochs["method"]
    steep = rows(
        flow=CLIPPED | {"lipschitz": 1.0},
        stored=COIN | {"keep": math.e / (1 + math.e)},  # of epsilon 1
        audited=audited(8),
    ).loc[4]
    assert 3.2712 < steep["epsilon"] < 4.2712 and steep["relation"] == "replace one record"
    assert steep["verdict"] == "not tested by row 5, whose coins add records"
    assert (steep["label"], steep["note"]) == (
        LABELS[3],
        NOTES[3],
    ) and "public data alone" in steep["remark"]
    assert rows(flow=CLIPPED, release={"queries": 1}).loc[4, "shown"] == "none (infinite)"


@pytest.mark.parametrize("classes", [2, 10])
def test_the_printed_epsilon_has_the_exact_delta_of_feature_and_label_together(classes):
    """delta(eps) = p D(eps - e) + q D(eps + e) + (1 - p - q) D(eps), where the label's likelihood
    ratio is e^e, e^-e or 1.
    """
    mu, e = 0.5, 1.0
    p, q = math.exp(e) / (math.exp(e) + classes - 1), 1 / (math.exp(e) + classes - 1)
    label = {"keep": p, "classes": classes}
    total = rows(flow=CLIPPED, stored=COIN | label).loc[4, "epsilon"]
    D = [accounting.gaussian_delta(mu, total + shift) for shift in (-e, e, 0)]
    exact = p * D[0] + q * D[1] + (1 - p - q) * D[2]
    assert exact == pytest.approx(DELTA, rel=1e-6)


def test_where_empty_slots_hide_a_record_the_row_is_about_adding_one_and_an_audit_can_refute_it():
    label = {"keep": 0.6, "classes": 5}
    stored = {"releases": 1, "relation": "add/remove", **label}
    row = rows(flow=CLIPPED, stored=stored, audited=audited(8)).loc[4]
    mu = 0.5 / 2  # clip over the standard deviation of all noise
    exact = accounting.stored_epsilon(mu=mu, delta=DELTA, relation="add/remove", **label)
    assert row["epsilon"] == pytest.approx(exact) and "composed exactly" in row["method"]
    assert row["relation"] == "add/remove one record"
    assert row["verdict"] == "refuted at 95 % by row 5"
    below = rows(flow=CLIPPED, stored=stored, audited=audited(0.1)).loc[4]
    assert "refuted" not in below["verdict"] and "not tested" not in below["verdict"]
    # one record replaced by another is twice as far
    twice = rows(flow=CLIPPED, stored=stored | {"relation": "replace"}, audited=audited(8)).loc[4]
    assert twice["epsilon"] > exact and twice["verdict"].startswith("not tested")


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"k": 0.0}, "noise in the network"),
        ({"clip": None}, "clipped h0"),
        ({"lipschitz": None}, "a certified L"),
        ({"method": "dopri5"}, "euler or rk4"),
        ({"order": 2}, "euler or rk4"),
        ({}, "privatised labels"),
    ],
)
def test_stored_features_without_one_of_the_conditions_have_no_finite_guarantee(change, missing):
    stored = COIN if change else COIN | {"keep": 1}
    row = rows(flow=CLIPPED | change, stored=stored, audited=audited(3)).loc[4]
    assert (
        row["shown"] == "none (infinite)"
        and missing in row["method"]
        and row["verdict"] == "nothing claimed"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"flow": CLIPPED, "release": {"queries": 1, "querys": 64}}, "release has no 'querys'"),
        ({"flow": FLOW, "lipschitz": {"certifed": 1.0}}, "lipschitz has no 'certifed'"),
        ({"flow": FLOW, "lipschitz": 1.0}, "lipschitz=1.0: wanted (a )?dict"),
        ({"nominal": 3}, "nominal=3: wanted (a )?dict"),
        ({"flow": FLOW, "lipschitz": {"certified": 1.0, "local": 2.0}}, "refutes the certified 1"),
        (
            {"dp_sgd": {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 9, "trials": 0}},
            "trials=0",
        ),
        ({"stored": {"releases": 1}}, "stored lacks keep, classes, relation"),
        ({"flow": CLIPPED, "stored": COIN | {"relation": "swap"}}, "relation='swap'"),
        ({"stored": COIN, "dp_sgd": NOMINAL | {"noise_multiplier": 1}}, "two ways"),
        ({"audited": pd.DataFrame({"epsilon": [1.0]})}, "audited=.*: wanted Audit"),
    ],
)
def test_what_the_ladder_does_not_know_is_refused_in_one_line(given, message):
    with pytest.raises(ValueError, match=message):
        rows(**given)


def test_what_bounds_the_released_state_is_passed_through():
    once, often = (rows(flow=CLIPPED, release={"queries": n}).loc[3, "epsilon"] for n in (1, 64))
    # the clip is the network's
    assert once == pytest.approx(1.9931, abs=1e-4) and often > 10 * once
    far = rows(
        flow=FLOW, nominal=NOMINAL, lipschitz={"certified": 1.0, "distance": 52.0}, **FIGURE
    ).loc[2]
    assert "states that enter lie up to 52 apart; the theorem takes 1 at most" in far["remark"]


def test_a_lower_bound_is_rounded_down_and_zero_is_printed_as_zero():
    record = audited(3)._replace(epsilon=1.2199)
    row = rows(audited=record).loc[5]
    assert row["shown"] == "at least 1.21" and row["epsilon"] == 1.2199
    for part in (
        f"m = {record.canaries:,}",
        f"r = {record.guesses:,}",
        f"v = {record.correct:,}",
        f"alpha = {record.alpha:.3g}",
    ):
        assert part in row["method"]
    assert rows(audited=record._replace(epsilon=0.0)).loc[5, "shown"] == "0"
    assert (
        rows(audited=record._replace(confidence=0.99)).loc[5, "note"]
        == "at least this, 99 % confidence"
    )
    assert rows().loc[5, "shown"] == "not audited"


def test_no_output_and_no_line_of_the_room_says_what_must_not_be_said():
    forbidden = re.compile(
        r"epsilon of the model|privacy budget|\bthe epsilon\b|\bsafe\b|\bsecure\b|DP-trained|leaks"
        r" nothing",
        re.I,
    )
    tables = [
        rows(
            flow=FLOW | {"clip": 0.5},
            nominal=NOMINAL,
            lipschitz={"certified": 1.0, "local": 0.5},
            audited=audited(0),
        ),
        rows(
            dp_sgd={"noise_multiplier": 2.0, "sample_rate": 0.02, "steps": 10}, audited=audited(3)
        ),
    ]
    printed = pd.concat(tables).map(str)
    assert not [cell for cell in printed.to_numpy().ravel() if forbidden.search(cell)]
    others = printed.drop(columns=["note", "label"]).loc[[1, 2, 3, 5]]
    assert not [
        cell for cell in others.to_numpy().ravel() if re.search(r"\bprivate\b|guarantee", cell)
    ]
    for path in Path(auditing.__file__).parent.glob("*.py"):
        strings = [
            n.value
            for n in ast.walk(ast.parse(path.read_text()))
            if isinstance(n, ast.Constant) and isinstance(n.value, str)
        ]
        assert not [s for s in strings if forbidden.search(s)], path.name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"flow": {"k": 1}}, "flow lacks steps, T, method"),
        ({"nominal": {"steps": 3}}, "nominal lacks sample_rate"),
        ({"dp_sgd": {}}, "dp_sgd lacks noise_multiplier"),
        ({"audited": 1.3}, "audited=1.3: wanted Audit"),
        ({"flow": FLOW, "nominal": NOMINAL, "sampling": "uniform"}, "uniform"),
    ],
)
def test_incomplete_arguments_are_refused_in_one_line(given, message):
    with pytest.raises(ValueError, match=message):
        rows(**given)


def test_an_audit_at_another_delta_is_refused():
    with pytest.raises(ValueError, match="audit again at this delta"):
        rows(audited=audited(1, delta=1e-4))


def test_upper_statements_are_rounded_up_and_a_missing_bound_is_none():
    assert [number(e, up=True) for e in (8.0, 8.004, 2.9649, 0.12345, 0.0)] == [
        "8",
        "8.01",
        "2.97",
        "0.124",
        "0",
    ]
    assert number(1234.2, up=True) == "1,240" and number(7.381) == "7.38"
    flow = {"k": 0.5, "steps": 16, "T": 1.0, "method": "euler"}
    table = ladder(
        delta=1e-5, flow=flow, lipschitz={"certified": float("nan"), "local": float("nan")}
    )
    assert np.isnan(table["epsilon"][1])
