"""The ladder: exact labels and notes, values that formulas give, what refutes what, and words that may not appear."""

import ast
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mia_nb import auditing
from mia_nb.auditing import LABELS, NOTES, ladder, one_run
from mia_nb.auditing.ladder import number
from mia_nb.models.neural_de import FlowBlock

DELTA = 1e-5
FLOW = {"k": 0.5, "steps": 16, "T": 1.0, "method": "euler"}
NOMINAL = {"sample_rate": 0.02048, "steps": 14700}
FIGURE = {"accountant": "gdp", "sampling": "uniform"}  # closed form: fast, and the study's figure


def audited(shift, method="steinke", m=2000, delta=DELTA, seed=0):
    rng = np.random.default_rng(seed)
    coin = rng.random(m) < 0.5
    return one_run(rng.standard_normal(m) + shift * coin, coin, delta=delta, method=method)


def rows(**given):
    return ladder(delta=DELTA, **given).set_index("row")


def test_labels_and_notes_are_the_exact_words():
    table = ladder(delta=DELTA, flow=FLOW, nominal=NOMINAL, audited=audited(3), **FIGURE)
    assert table["label"].to_list() == [
        "nominal (paper's accounting)",
        "paper's theorem with measured L",
        "release bound",
        "training guarantee",
        "audited lower bound",
    ] == list(LABELS)  # fmt: skip
    assert table["note"].to_list() == [
        "assumes T*L <= 1 and private gradients; not a guarantee",
        "paper's formula; shown outside its domain if eps >= 1; not a guarantee",
        "local DP of the queried input's hidden state, per query; says nothing about training",
        "the only row that may be called a guarantee for the training set",
        "at least this, 95 % confidence",
    ] == list(NOTES)  # fmt: skip
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
    flow = FLOW | {"k": 128.8 / 4}  # noise_sd 128.8 for 300 iterations, T L = 1, total delta 1e-5 split evenly: 8
    row = rows(flow=flow, nominal={"sample_rate": 0.02, "steps": 300}, lipschitz={"certified": 1.0}, **FIGURE).loc[2]
    assert "Corollary 1 over 300 steps, total delta split evenly: 8 (certified L)" in row["method"]
    assert "outside its domain" in row["remark"] and row["epsilon"] < 1


def test_times_below_one_and_steep_drifts_are_remarked():
    row = rows(flow=FLOW | {"T": 0.25}, nominal=NOMINAL, lipschitz={"local": 22.0}, **FIGURE).loc[1]
    assert "T = 0.25: the tabulated sigma exceeds the theorem's by 1/sqrt T" in row["remark"]
    assert "T*L >= 5.5 at the local L: the assumption T*L <= 1 does not hold" in row["remark"]
    assert "1/sqrt T" not in rows(flow=FLOW, nominal=NOMINAL, **FIGURE).loc[1, "remark"]


def test_the_release_row_needs_a_clipped_state_and_a_certified_bound():
    given = {"flow": FLOW, "lipschitz": {"certified": 1.0}}
    row = rows(**given, release={"clip": 0.5, "queries": 1}).loc[3]
    assert "mu = 0.776" in row["method"] and row["epsilon"] == pytest.approx(3.2712, abs=1e-3)
    assert "over 4 queries" in rows(**given, release={"clip": 0.5, "queries": 4}).loc[3, "shown"]
    assert rows(**given).loc[3, "shown"].startswith("not given: needs clipped h0")
    assert rows(flow=FLOW, release={"clip": 0.5}, lipschitz={"local": 1.0}).loc[3, "shown"].startswith("not given")
    assert (
        rows(flow=FLOW | {"method": "stoch_rk4"}, lipschitz={"certified": 1.0}, release={"clip": 0.5})
        .loc[3, "shown"]
        .startswith("not covered (stoch_rk4")
    )
    off = rows(flow=FLOW | {"noise_eval": False}, lipschitz={"certified": 1.0}, release={"clip": 0.5}).loc[3]
    assert off["shown"] == "none (infinite)" and math.isinf(off["epsilon"])


def test_a_description_of_a_network_is_a_flow():
    from torch import nn

    from mia_nb.models.neural_de import describe

    about = describe(nn.Sequential(FlowBlock(4, steps=16, k=0.5, lipschitz=1.0, clip=0.5)))
    assert rows(flow=about).loc[3, "epsilon"] == pytest.approx(3.2712, abs=1e-3)
    assert "build the block with clip=C" in rows(flow=about | {"clip": None}).loc[3, "shown"]
    with pytest.raises(ValueError, match=r"clips at 0\.5"):
        rows(flow=about, release={"clip": 2.0})


def test_without_noise_only_the_audit_can_speak():
    for flow in (None, FLOW | {"k": 0.0}):
        table = rows(flow=flow, nominal=NOMINAL, audited=audited(3))
        assert (table.loc[[1, 2, 3], "shown"] == "not applicable (no noise in the network)").all()
        assert table.loc[[1, 2, 3], "epsilon"].isna().all() and (table.loc[[1, 2, 3], "verdict"] == "").all()
        assert table.loc[4, "shown"] == "none (infinite)" and table.loc[4, "verdict"] == "nothing claimed"
    untrained = rows(flow=FLOW | {"noise_train": False}, nominal=NOMINAL).loc[1, "shown"]
    assert untrained == "not applicable (no noise in training)"


def test_the_guarantee_is_that_of_dp_sgd_alone():
    spent = {"noise_multiplier": 2.0, "sample_rate": 0.02048, "steps": 490}
    row = rows(flow=FLOW, dp_sgd=spent).loc[4]
    assert row["epsilon"] == pytest.approx(0.945, abs=2e-3) and "PRV" in row["method"]
    assert row["remark"].endswith("the network's noise adds nothing")
    assert "PRV" in rows(dp_sgd=spent, accountant="gdp").loc[4, "method"]  # never an approximation here


def test_an_audit_above_a_claim_refutes_it_and_one_below_says_nothing():
    record = audited(8)
    weak = {"sample_rate": 0.001, "steps": 100}  # a nominal number near 0
    above = rows(flow=FLOW, nominal=weak, lipschitz={"certified": 1e-4}, audited=record, **FIGURE)
    assert record.epsilon > max(above.loc[1, "epsilon"], 1)
    assert above.loc[1, "verdict"] == above.loc[2, "verdict"] == "refuted at 95 % by row 5"
    assert above.loc[4, "verdict"] == "nothing claimed" and above.loc[5, "verdict"] == ""
    below = rows(flow=FLOW, nominal=NOMINAL, lipschitz={"certified": 1.0}, audited=audited(0.5), **FIGURE)
    assert below.loc[1, "verdict"] == below.loc[2, "verdict"] == "no attack found that exceeds it"
    assert (
        rows(flow=FLOW, nominal=weak, lipschitz={"local": 1e-4}, audited=record, **FIGURE)
        .loc[2, "verdict"]
        .startswith("not tested")
    )


@pytest.mark.parametrize(
    ("method", "gaussian", "refutes"), [("fdp", True, True), ("fdp", False, False), ("xiang", True, False)]
)
def test_methods_refute_only_where_their_conditions_hold(method, gaussian, refutes):
    options = FIGURE if gaussian else {"accountant": "rdp"}
    table = rows(flow=FLOW, nominal={"sample_rate": 0.001, "steps": 100}, audited=audited(8, method), **options)
    wanted = (
        "refuted at 95 % by row 5"
        if refutes
        else "row 5 is above, by a method whose conditions are not known to hold here: not refuted"
    )
    assert table.loc[1, "verdict"] == wanted
    assert table.loc[5, "shown"].endswith(", assuming a Gaussian trade-off")


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
    assert rows(audited=record._replace(confidence=0.99)).loc[5, "note"] == "at least this, 99 % confidence"
    assert rows().loc[5, "shown"] == "not audited"


def test_no_output_and_no_line_of_the_room_says_what_must_not_be_said():
    forbidden = re.compile(
        r"epsilon of the model|privacy budget|\bthe epsilon\b|\bsafe\b|\bsecure\b|DP-trained|leaks nothing", re.I
    )
    tables = [
        rows(flow=FLOW, nominal=NOMINAL, lipschitz={"certified": 1.0, "local": 0.5}, release={"clip": 0.5}, audited=audited(0)),
        rows(dp_sgd={"noise_multiplier": 2.0, "sample_rate": 0.02, "steps": 10}, audited=audited(3)),
    ]
    printed = pd.concat(tables).map(str)
    assert not [cell for cell in printed.to_numpy().ravel() if forbidden.search(cell)]
    others = printed.drop(columns=["note", "label"]).loc[[1, 2, 3, 5]]
    assert not [cell for cell in others.to_numpy().ravel() if re.search(r"\bprivate\b|guarantee", cell)]
    for path in Path(auditing.__file__).parent.glob("*.py"):
        strings = [
            n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant) and isinstance(n.value, str)
        ]
        assert not [s for s in strings if forbidden.search(s)], path.name


@pytest.mark.parametrize(
    ("given", "message"),
    [({"flow": {"k": 1}}, "flow lacks steps, T, method"), ({"nominal": {"steps": 3}}, "nominal lacks sample_rate"),
     ({"dp_sgd": {}}, "dp_sgd lacks noise_multiplier"), ({"audited": 1.3}, "audited is a float"),
     ({"flow": FLOW, "nominal": NOMINAL, "sampling": "uniform"}, "uniform")],
)  # fmt: skip
def test_incomplete_arguments_are_refused_in_one_line(given, message):
    with pytest.raises(ValueError, match=message):
        rows(**given)


def test_an_audit_at_another_delta_is_refused():
    with pytest.raises(ValueError, match="audit again at this delta"):
        rows(audited=audited(1, delta=1e-4))


def test_an_audit_of_gaussian_trade_offs_says_nothing_about_a_corollary_that_claims_none():
    flow = {"k": 0.5, "steps": 16, "T": 1.0, "method": "euler"}
    one = one_run(np.arange(4000.0), np.arange(4000) >= 2000, delta=1e-5, method="fdp")
    table = ladder(
        delta=1e-5, flow=flow, nominal={"sample_rate": 0.01, "steps": 10}, lipschitz={"certified": 1e-9, "local": None},
        audited=one, accountant="gdp",
    )  # fmt: skip
    assert table["verdict"][0].startswith("refuted") and not table["verdict"][1].startswith("refuted")


def test_upper_statements_are_rounded_up_and_a_missing_bound_is_none():
    assert [number(e, up=True) for e in (8.0, 8.004, 2.9649, 0.12345, 0.0)] == ["8", "8.01", "2.97", "0.124", "0"]
    assert number(1234.2, up=True) == "1,240" and number(7.381) == "7.38"
    flow = {"k": 0.5, "steps": 16, "T": 1.0, "method": "euler"}
    table = ladder(delta=1e-5, flow=flow, lipschitz={"certified": float("nan"), "local": float("nan")})
    assert np.isnan(table["epsilon"][1])
