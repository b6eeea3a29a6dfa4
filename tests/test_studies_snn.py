"""Printed numbers appear once beside ours, and verdicts on claims are right where the truth is
known.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attack_worlds import gaussian

from mia_nb import attacks, load_example, metrics, studies
from mia_nb.metrics.bootstrap import bootstrap
from mia_nb.metrics.uncertainty import interval
from mia_nb.studies import Setting
from mia_nb.studies.contrasts import contrasts
from mia_nb.studies.paper_numbers import paper_results
from mia_nb.studies.study import load
from mia_nb.types import Scores

ROOT = Path(__file__).parent.parent
COUNTS = {
    "snn-uai2025": {"2": 126, "3": 21, "4": 72, "5": 36, "6": 10},
    "snn-workshop2025": {"F.1": 8, "F.2": 2, "F.3": 72, "F.4": 36},
    "nsde2025": {
        **{
            "I": 192,
            "II": 24,
            "III": 192,
            "IV": 24,
            "V": 104,
            "VI": 8,
            "VII": 96,
            "VIII": 108,
            "IX": 36,
            "X": 35,
            "XI": 56,
        },
        "XII": 366,
    },
}
SETTINGS = [
    ("ann", "", 0),
    ("snn", "hybrid", 1),
    ("snn", "hybrid", 2),
    ("snn", "hybrid", 4),
    ("snn", "direct", 4),
]
DRAWS = 200


def Cell(model, training="", timesteps=0, input_dropout=False, references="own", attack="rmia"):
    """A setting of the spiking study."""
    return Setting(
        model,
        training=training,
        timesteps=timesteps,
        input_dropout=input_dropout,
        references=references,
        attack=attack,
    )


FIELDS = ("value", "member", "targets", "pair", "accuracy", "loss")


def study(
    leak,
    accuracy=lambda cell: 0.8,
    *,
    targets=8,
    samples=400,
    noise=0.5,
    spread=0.0,
    settings=SETTINGS,
    seed=0,
):
    """Scores of every setting: leak(cell) member + a part that all cells share + noise; `spread`:
    the leak varies by pair.
    """
    rng = np.random.default_rng(seed)
    half = np.array([rng.permutation(samples) < samples // 2 for _ in range(targets // 2)])
    member = np.stack([half, ~half], axis=1).reshape(targets, samples)
    pair, shared = np.arange(targets) // 2, rng.normal(size=member.shape)
    cells = {}
    for setting in settings:
        for dropout in (False, True):
            for references in ("own", "ann") if setting[0] == "snn" else ("own",):
                for attack in ("rmia", "attack_r", "attack_p"):
                    cell = Cell(*setting, dropout, references, attack)
                    shift = leak(cell) + spread * rng.normal(size=targets // 2)[pair][:, None]
                    value = shared + noise * rng.normal(size=member.shape) + shift * member
                    test = accuracy(cell) + 0.001 * rng.normal(size=targets)
                    seen = np.column_stack([np.full(targets, 0.95), test])
                    cells[cell] = Scores(
                        value, member, np.arange(targets), pair, seen, 1 - seen, {}
                    )
    return cells


def as_claimed(cell):
    """A world in which S1 to S6 and S8 are true, and S7 (direct = hybrid at 4 steps)."""
    base = 2.5 if cell.model == "ann" else 0.7 + 0.3 * cell.timesteps
    strength = {"rmia": 1.0, "attack_r": 0.65, "attack_p": 0.35}[cell.attack]
    return (
        base
        * strength
        * (1.25 if cell.input_dropout else 1)
        * (0.7 if cell.references == "ann" else 1)
    )


def rising(cell):
    return 0.91 if cell.model == "ann" else 0.8 + 0.02 * cell.timesteps


def verdicts(cells, **options):
    return studies.claims("snn", cells, n_resamples=DRAWS, **options)["verdict"].to_dict()


def test_every_printed_number_is_there_as_counted():
    found = Counter((record["paper"], record["table"]) for record in paper_results())
    assert found == {
        (paper, table): n for paper, tables in COUNTS.items() for table, n in tables.items()
    }
    assert sum(found.values()) == 1624
    assert all(-0.02 <= r["value"] <= 1 for r in paper_results() if r["unit"] == "fraction")
    assert len(paper_results("snn-uai2025", "2")) == 126


def test_a_changed_copy_of_a_printed_number_changes_nothing_here():
    paper_results()[0]["value"] = 7.0
    assert paper_results()[0]["value"] < 1


def test_every_record_of_tables_2_to_6_stands_exactly_once_beside_ours():
    table = studies.against_papers("snn", {})
    assert Counter(table["table"]) == COUNTS["snn-uai2025"]
    where = [
        "table",
        "dataset",
        "model",
        "training",
        "timesteps",
        "input_dropout",
        "references",
        "attack",
        "metric",
    ]
    assert not table.duplicated(where).any()
    assert sorted(table["published"]) == sorted(r["value"] for r in paper_results("snn-uai2025"))
    assert table["ours"].isna().all() and table["note"].str.contains("not run").all()
    cell = table.query(
        "table == '4' and dataset == 'cifar100' and timesteps == 2 and input_dropout and attack =="
        " 'rmia'"
    )
    assert cell.set_index("metric")["published"].to_dict() == {
        "auc": 0.6969,
        "tpr@0.001": 0.0072,
        "tpr@0.01": 0.0613,
    }
    assert (cell["references"] == "ann").all()
    assert (
        table[table["model"] == "ann-resnet18"].query("metric == 'auc'")["references"] == "own"
    ).all()


def test_ours_stands_only_in_the_block_it_stands_for_with_the_interval_of_the_summary():
    cells = study(as_claimed, rising)
    table = studies.against_papers(
        "snn", cells, stands_for=("cifar10", "resnet18"), ours="digits, tinycnn", n_resamples=DRAWS
    )
    placed = table["dataset"].eq("cifar10") & table["model"].str.endswith("resnet18")
    assert (table["ours"].notna() == placed).all() and (
        table["note"].str.contains("not run") == ~placed
    ).all()
    assert table[placed]["note"].str.contains("ours is digits, tinycnn").all()
    cell = Cell("snn", "hybrid", 2, True, "ann", "rmia")
    row = table.query(
        "table == '4' and timesteps == 2 and input_dropout and attack == 'rmia' and metric == 'auc'"
    ).iloc[0]
    expected = metrics.intervals(cells[cell], n_resamples=DRAWS).loc["auc"]
    assert tuple(row[["ours", "low", "high"]]) == pytest.approx(
        tuple(expected[["value", "low", "high"]])
    )
    accuracy = table.query("table == '6' and dataset == 'cifar10'").set_index(
        ["training", "timesteps"]
    )
    truth = {
        ("hybrid", 1): 0.82,
        ("hybrid", 2): 0.84,
        ("hybrid", 4): 0.88,
        ("direct", 4): 0.88,
        ("", 0): 0.91,
    }
    for key, value in truth.items():
        assert accuracy.loc[key, "ours"] == pytest.approx(value, abs=0.002)
        assert accuracy.loc[key, "low"] < accuracy.loc[key, "ours"] < accuracy.loc[key, "high"]
    assert (
        studies.against_papers("snn", cells, stands_for=None, n_resamples=DRAWS)["ours"]
        .isna()
        .all()
    )


def test_an_fpr_that_ours_cannot_measure_is_said_so_in_the_table_that_people_read():
    table = studies.against_papers(
        "snn", study(as_claimed, samples=2000, targets=4), n_resamples=DRAWS
    )
    ran = table[table["ours"].notna()]
    assert (ran["measurable"] == ran["metric"].ne("tpr@0.001")).all()
    view = studies.against_papers_readable(table).set_index(
        ["table", "dataset", "model", "timesteps", "input_dropout", "attack"]
    )
    row = view.loc[("2", "cifar10", "snn-resnet18", 1, False, "rmia")]
    assert row["TPR at FPR 0.001"] == "0.0084 | n/m (n0 = 1000)"
    assert row["AUC"].startswith("0.5989 | 0.") and row["TPR at FPR 0.01"].startswith("0.0382 | 0.")
    places = [len(row[name].split()[2]) for name in ("AUC", "TPR at FPR 0.01")]
    assert places == [len("0.123"), len("0.1234")]
    assert (
        view.loc[("2", "cifar100", "snn-resnet18", 1, False, "rmia"), "AUC"] == "0.6906 | not run"
    )


@pytest.mark.parametrize(("targets", "ends"), [(2, "no interval"), (4, "]")])
def test_an_accuracy_of_one_pair_of_models_is_said_to_have_no_interval(targets, ends):
    cells = study(as_claimed, samples=200, targets=targets)
    table = studies.against_papers("snn", cells, n_resamples=DRAWS)
    view = studies.against_papers_readable(table[table["ours"].notna()])
    accuracies = view["test accuracy"][view["test accuracy"] != ""]
    assert len(accuracies) and accuracies.str.endswith(ends).all()
    assert not view.map(lambda text: "nan" in str(text)).any(axis=None)


def test_a_margin_as_wide_as_the_rate_itself_decides_no_tpr():
    cells = study(as_claimed, samples=2000, targets=4)
    table = studies.comparisons("snn", cells, n_resamples=DRAWS)
    beside = table[table["metric"] == "tpr@0.01"].groupby("claim").size()
    assert beside["S1"] and "S7" not in beside and (table["claim"] == "S7").any()


def test_the_evidence_names_a_comparison_that_keeps_a_claim_from_holding():
    cells = study(as_claimed, rising, samples=1000)
    table = studies.comparisons("snn", cells, n_resamples=DRAWS)
    rows = table[(table["claim"] == "S1") & (table["metric"] == "auc")]
    rows = rows[rows["part"] == rows["part"].iloc[0]]
    largest = rows["value"].idxmax()
    table.loc[rows.index, "outcome"] = "for"
    table.loc[largest, "outcome"] = "open"
    found = studies.claims("snn", cells, comparisons=table).loc["S1"]
    assert found["verdict"] == "not resolved"
    assert f"least {rows.loc[largest, 'compared']} {rows['value'].max():+.3f}" in found["evidence"]


def test_oddities_of_the_print_stay_with_the_number():
    notes = studies.against_papers("snn", {}, tables=("3",)).query("model == 'ann-vgg16'")["note"]
    assert len(notes) == 3 and notes.str.startswith("print: the three ANN values").all()


def test_without_cells_every_claim_is_not_run_and_says_what_it_needs():
    claims = studies.claims("snn", {})
    assert (
        list(claims.index) == [f"S{i}" for i in range(1, 11)]
        and (claims["verdict"] == "not run").all()
    )
    assert claims["evidence"].str.startswith("not run: needs").all()


def test_in_a_world_made_as_the_study_claims_the_claims_hold():
    cells = study(as_claimed, rising, samples=1000)
    claims = studies.claims("snn", cells, n_resamples=DRAWS)
    found = claims["verdict"].to_dict()
    assert [name for name, verdict in found.items() if verdict == "holds"] == [
        "S1",
        "S2",
        "S4",
        "S5",
        "S6",
        "S8",
    ]
    assert found["S3"] == "holds (at unequal accuracy)"
    assert found["S7"] == "not resolved" and found["S9"] == "not run"
    for name in ("S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8"):
        assert "train / test accuracy" in claims.loc[name, "evidence"]
    assert "ANN 0.950 / 0.9" in claims.loc["S3", "evidence"]
    assert "compared at test accuracies up to 0.0" in claims.loc["S3", "evidence"]
    assert "apart" not in claims.loc["S1", "evidence"]


def test_in_the_opposite_world_no_claim_holds():
    leak = {"rmia": 0.8, "attack_r": 1.1, "attack_p": 1.4}

    def opposite(cell):
        base = leak[cell.attack] * (0.4 if cell.model == "ann" else 1.6 - 0.25 * cell.timesteps)
        training = 2.0 if cell.training == "direct" else 1.0
        return (
            base
            * training
            * (0.6 if cell.input_dropout else 1)
            * (1.5 if cell.references == "ann" else 1)
        )

    found = verdicts(study(opposite, lambda cell: 0.9 - 0.02 * cell.timesteps, samples=1000))
    assert all(found[f"S{i}"] == "does not hold" for i in (1, 2, 4, 5, 6, 7, 8)), found
    assert found["S3"] == "does not hold (at unequal accuracy)"


def test_equal_risk_of_two_trainings_holds_only_when_it_is_known_to_a_hundredth():
    few, many = (
        study(as_claimed, rising, noise=noise, settings=SETTINGS[3:], samples=1000, seed=1)
        for noise in (2.0, 0.02)
    )
    assert verdicts(few)["S7"] == "not resolved" and verdicts(many)["S7"] == "holds"
    assert (
        "test accuracy: 2 of 2 for"
        in studies.claims("snn", many, n_resamples=DRAWS).loc["S7", "evidence"]
    )


def test_a_verdict_on_different_models_says_how_far_apart_their_accuracies_are():
    def leak(cell):
        return as_claimed(cell) * (0.5 if cell.training == "direct" else 1)

    def accuracy(gap):
        return lambda cell: {"ann": 0.9 + gap, "snn": 0.9 - gap * (cell.training == "direct")}[
            cell.model
        ]

    equal, unequal = (
        study(leak, accuracy(gap), settings=[SETTINGS[0], *SETTINGS[3:]]) for gap in (0, 0.03)
    )
    assert verdicts(equal)["S3"] == "holds" and verdicts(equal)["S7"] == "does not hold"
    claims = studies.claims("snn", unequal, n_resamples=DRAWS)
    assert claims.loc["S3", "verdict"] == "holds (at unequal accuracy)"
    assert claims.loc["S7", "verdict"] == "does not hold (at unequal accuracy)"
    assert claims.loc["S3", "accuracy_apart"] == pytest.approx(6, abs=0.2)
    assert claims.loc["S7", "accuracy_apart"] == pytest.approx(3, abs=0.2)
    assert claims.loc[["S1", "S2", "S4", "S5", "S6", "S8", "S9"], "accuracy_apart"].isna().all()
    assert studies.claims("snn", {})["accuracy_apart"].isna().all()


def test_sentences_say_where_only_auc_decides():
    table = studies.comparisons(
        "snn", study(as_claimed, rising, samples=4000, targets=4), n_resamples=20
    )
    deciding = table[table["needed"]].groupby("claim")["metric"].agg(set)
    sentences = studies.claims("snn", {})["claim"]
    for name in ("S1", "S2", "S4", "S5", "S6"):
        assert deciding[name] == {"auc"} and sentences[name].endswith("(in AUC).")
    strongest = {
        "S3": "(in AUC of the strongest attack)",
        "S7": "(AUC of the strongest attack within",
    }
    for name, words in strongest.items():
        assert deciding[name] == {"auc"} and words in sentences[name]
    assert "the AUC of the strongest attack" in sentences["S8"]
    assert not sentences[["S8", "S9"]].str.contains("(in AUC)", regex=False).any()


def test_a_claim_that_lacks_a_part_is_never_said_to_hold():
    cells = {
        c: s
        for c, s in study(as_claimed, rising, samples=1000).items()
        if not (c.model == "ann" and c.input_dropout)
    }
    claims = studies.claims("snn", cells, n_resamples=DRAWS)
    assert (
        claims.loc["S3", "verdict"] == "not resolved"
        and "with dropout: not run" in claims.loc["S3", "evidence"]
    )
    assert "gain beyond" not in claims.loc["S4", "evidence"]
    alone = {cell: scores for cell, scores in cells.items() if cell.references == "ann"}
    alone = studies.claims("snn", alone, n_resamples=DRAWS)
    assert (
        alone.loc["S6", "verdict"] == "not resolved"
        and "weaker than own: not run" in alone.loc["S6", "evidence"]
    )


def with_aligned(cells, share):
    """Aligned ANN references whose scores are `share` own and the rest those of plain ANN
    references.
    """
    found = {c: s for c, s in cells.items() if c.references == "ann" and c.attack == "rmia"}
    own = {c: cells[c._replace(references="own")].value for c in found}
    mixed = {c: replace(s, value=share * own[c] + (1 - share) * s.value) for c, s in found.items()}
    return cells | {c._replace(references="ann, aligned"): s for c, s in mixed.items()}


def test_references_of_another_family_are_weaker_only_where_aligning_them_does_not_help():
    cells = study(as_claimed, rising, samples=1000, settings=SETTINGS[2:3])
    weaker, equal = (
        studies.claims("snn", with_aligned(cells, share), n_resamples=DRAWS).loc["S6"]
        for share in (0.0, 1.0)
    )
    alone = studies.claims("snn", cells, n_resamples=DRAWS).loc["S6"]
    assert (
        alone["verdict"] == "holds"
        and "without alignment: part of the difference" in alone["evidence"]
    )
    assert weaker["verdict"] == "holds" and "without alignment" not in weaker["evidence"]
    assert "weaker than own, aligned: 2 of 2 for" in weaker["evidence"]
    assert (
        equal["verdict"] == "not resolved" and "weaker without alignment only" in equal["evidence"]
    )
    assert (
        "weaker than own: 2 of 2 for" in equal["evidence"]
        and "better than a coin, aligned: 2 of 2" in equal["evidence"]
    )
    stronger = with_aligned(cells, 1.0)
    for cell in [cell for cell in stronger if cell.references == "ann, aligned"]:
        scores = stronger[cell]
        stronger[cell] = replace(scores, value=scores.value + scores.member)
    assert verdicts(stronger)["S6"] == "does not hold"


def test_aligned_references_touch_nothing_but_s6_and_what_s5_reports():
    cells = study(as_claimed, rising, settings=SETTINGS[:3])
    plain, both = (
        studies.comparisons("snn", some, n_resamples=DRAWS)
        for some in (cells, with_aligned(cells, 0.5))
    )
    added = both[both["compared"].str.contains("aligned")]
    assert set(added["claim"]) == {"S5", "S6"} and not added.query("claim == 'S5'")["needed"].any()
    rest, values = (
        both.drop(added.index),
        ["claim", "part", "compared", "metric", "value", "low", "high"],
    )
    assert rest[values].reset_index(drop=True).equals(plain[values])


def test_aligned_references_stand_beside_no_printed_number():
    cells = study(as_claimed, rising, settings=SETTINGS[:3])
    tables = [
        studies.against_papers("snn", some, n_resamples=DRAWS)
        for some in (cells, with_aligned(cells, 0.5))
    ]
    assert tables[0].equals(tables[1])
    only = {c: s for c, s in with_aligned(cells, 0.5).items() if c.references == "ann, aligned"}
    assert studies.against_papers("snn", only, n_resamples=DRAWS)["ours"].isna().all()
    with pytest.raises(
        ValueError,
        match=r"references='ann aligned', attack='rmia'. cannot be: .* references are one of",
    ):
        studies.against_papers(
            "snn",
            {Cell("snn", "hybrid", 1, references="ann aligned"): cells[Cell("snn", "hybrid", 1)]},
        )


def test_the_gain_beyond_the_anns_own_is_the_difference_of_four_auc_drawn_jointly():
    cells = study(
        lambda cell: 1 + cell.input_dropout * (0.6 if cell.model == "snn" else 0.3), noise=0.2
    )
    table = studies.comparisons("snn", cells, n_resamples=DRAWS, seed=3)
    row = table.query(
        "part == \"gain beyond the ANN's own\" and compared == 'SNN hybrid T=2'"
    ).iloc[0]
    four = [
        Cell(*setting, dropout)
        for setting in (SETTINGS[2], SETTINGS[0])
        for dropout in (True, False)
    ]
    draws = [bootstrap(cells[cell], n_resamples=DRAWS, seed=3)["auc"] for cell in four]
    auc = [metrics.per_target(cells[cell])["auc"].to_numpy() for cell in four]
    both = auc[0] - auc[1] - auc[2] + auc[3]
    assert row["value"] == pytest.approx(both.mean())
    jointly = draws[0] - draws[1] - draws[2] + draws[3]
    assert (row["low"], row["high"]) == pytest.approx(interval(both, cells[four[0]].pair, jointly))
    assert row["outcome"] == "for" and not row["needed"]


def test_a_comparison_is_the_paired_difference():
    cells = study(as_claimed, rising, targets=12)
    table = studies.comparisons("snn", cells, n_resamples=DRAWS)
    row = table.query(
        "claim == 'S4' and part == 'rmia' and metric == 'auc' and compared == 'SNN hybrid T=1'"
    ).iloc[0]
    expected = metrics.difference(
        cells[Cell("snn", "hybrid", 1, True)], cells[Cell("snn", "hybrid", 1)], n_resamples=DRAWS
    )
    assert tuple(row[["value", "low", "high"]]) == pytest.approx(tuple(expected.loc["auc"]))
    jointly = table["simultaneous_high"] - table["simultaneous_low"]
    assert (jointly >= table["high"] - table["low"] - 1e-12).all()


def test_families_are_compared_by_their_strongest_attack():
    def leak(cell):  # rmia alone would call the ANN safer
        return {"ann": {"rmia": 0.3, "attack_r": 2.0}, "snn": {"rmia": 1.0, "attack_r": 0.5}}[
            cell.model
        ].get(cell.attack, 0.1)

    table = studies.comparisons("snn", study(leak), n_resamples=DRAWS).query(
        "claim == 'S3' and metric == 'auc'"
    )
    assert (table[table["needed"]]["outcome"] == "for").all()
    assert (table[table["part"].str.startswith("rmia")]["outcome"] == "against").all()


def test_accuracies_that_fall_while_the_risk_rises_refute_the_trade_off():
    cells = study(as_claimed, lambda cell: 0.9 - 0.02 * cell.timesteps, samples=1000)
    assert verdicts(cells)["S2"] == "holds" and verdicts(cells)["S8"] == "does not hold"


@pytest.mark.parametrize(("population", "verdict"), [(4000, "holds"), (3, "does not hold")])
def test_counting_a_population_gives_the_same_roc_as_the_ratio_only_where_the_population_is_large(
    population, verdict
):
    signals = gaussian(8, 1000, delta=1.5, population=population)
    cells = {
        Cell("ann", attack=name): attacks.score(name, signals) for name in ("rmia", "rmia_count")
    }
    claims = studies.claims("snn", cells, n_resamples=DRAWS)
    assert claims.loc["S9", "verdict"] == verdict, claims.loc["S9", "evidence"]


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_where_nothing_differs_verdicts_are_rarely_anything_but_unresolved(spread):
    wrong, single, compared, worlds = Counter(), 0, 0, 60
    for seed in range(worlds):
        cells = study(
            lambda cell: 0.8,
            samples=200,
            spread=spread,
            noise=1.0,
            settings=SETTINGS[1:4],
            seed=seed,
        )
        cells = {c: s for c, s in cells.items() if c.references == "own" and c.attack == "rmia"}
        table = studies.comparisons("snn", cells, n_resamples=DRAWS)
        table = table[table["needed"] & table["claim"].isin(["S2", "S4", "S8"])]
        single += ((table["low"] > 0) | (table["high"] < 0)).sum()
        compared += len(table)
        for claim, group in table.groupby("claim"):
            wrong[claim] += (group["outcome"] == "against").any() or (
                group["outcome"] == "for"
            ).all()
    assert single / compared < 0.07
    assert all(count <= 8 for count in wrong.values()), wrong  # P(more than 8 of 60 at 5 %) = 0.2 %


@pytest.mark.parametrize("sign", [1, -1])
def test_one_pair_of_targets_decides_nothing_however_far_apart_the_settings_are(sign):
    cells = study(lambda cell: 1 + sign * as_claimed(cell), rising, targets=2)
    cells |= {c._replace(attack="rmia_count"): s for c, s in cells.items() if c.attack == "rmia"}
    table = studies.comparisons("snn", cells, n_resamples=DRAWS)
    assert (table["outcome"] == "open").all() and ((table["low"] > 0) | (table["high"] < 0)).any()
    claims = studies.claims("snn", cells, n_resamples=DRAWS)
    assert (claims["verdict"] == "not resolved").all()
    assert (
        claims["evidence"]
        .str.contains("one pair of targets does not show training randomness")
        .all()
    )


def test_cells_of_other_masks_and_settings_that_cannot_be_are_refused_in_one_line():
    cells = study(as_claimed, settings=SETTINGS[:2])
    cell = Cell("snn", "hybrid", 1)
    with pytest.raises(ValueError, match="SNN hybrid T=1 and ANN have different membership"):
        studies.claims("snn", cells | {cell: replace(cells[cell], member=~cells[cell].member)})
    for wrong in (
        Cell("ann", "hybrid"),
        Cell("snn", "hybrid", 0),
        Cell("snn", "", 2),
        Cell("ann", references="ann"),
    ):
        with pytest.raises(ValueError, match="cannot be: an ann has"):
            studies.against_papers("snn", {wrong: cells[cell]})


def test_signals_of_spiking_networks_say_how_they_were_trained():
    info = {"model": "snn", "timesteps": 4, "input_dropout": 0.0}
    direct = {"parent": None, "epochs": 8}
    hybrid = {"parent": "abc", "epochs": 2}
    converted = {"parent": "abc", "epochs": 0}
    for training, recipe in (("direct", direct), ("hybrid", hybrid), ("convert", converted)):
        setting = studies.setting(info | {"recipe": recipe}, "rmia")
        assert setting == Cell("snn", training, 4)
    dropped = studies.setting(info | {"recipe": hybrid, "input_dropout": 0.01}, "rmia")
    assert dropped == Cell("snn", "hybrid", 4, input_dropout=True)
    often = {"recipe": hybrid, "input_dropout": 0.01, "queries": 30}
    assert studies.setting(info | often, "rmia") == dropped._replace(queries=30)
    assert studies.setting(info | {"recipe": direct, "queries": 30}).queries == 1
    with pytest.raises(ValueError, match="a spiking network name no recipe"):
        studies.setting(info, "rmia")


@pytest.mark.parametrize("model", ["tinycnn", "resnet14", "fast", "odenet", "sdenet"])
def test_a_query_with_input_dropout_has_another_setting_than_one_without(model):
    flow = {"layout": "16-32-64", "order": 1, "damped": False, "augment": 0, "method": "euler"}
    flow |= {"k": 0.5 * (model == "sdenet"), "steps": 16, "T": 1.0, "blocks": 1}
    flow |= {"noise_train": True, "noise_eval": False, "sigma": 0.0, "noise_sd": 0.0}
    info = {"model": model, "flow": flow}
    plain = studies.setting(info | {"input_dropout": 0.0, "queries": 1}, "rmia")
    several = [
        studies.setting(info | {"input_dropout": 0.1, "queries": queries}, "rmia")
        for queries in (1, 4)
    ]
    assert not plain.input_dropout and len({plain, *several}) == 3
    for setting, queries in zip(several, (1, 4), strict=True):
        assert setting == plain._replace(input_dropout=True, queries=queries)


def test_signals_of_shipped_spiking_networks_have_the_setting_that_their_name_says():
    for name in ("convert-T4", "hybrid-T1", "hybrid-T2", "direct-T1", "direct-T4"):
        training, timesteps = name.split("-T")
        file_name = name.replace("convert", "converted")
        info = load_example(f"cifar10/fast-{file_name}").info
        assert studies.setting(info, "rmia") == Cell("snn", training, int(timesteps)), name


def test_every_claim_can_be_compared():
    cells = study(as_claimed, rising)
    counted = {c._replace(attack="rmia_count"): s for c, s in cells.items() if c.attack == "rmia"}
    snn = load("snn")
    assert all(contrasts(claim, cells | counted) for claim in snn.claims.values())


@pytest.mark.slow
def test_an_installed_package_carries_the_printed_numbers_and_no_data_set(tmp_path):
    pytest.importorskip("setuptools")
    source = tmp_path / "source"
    (source / "data" / "cifar-10-batches-py").mkdir(parents=True)
    (source / "data" / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"pixels")
    (source / "data" / "mine.json").write_text("{}")
    for name in ("pyproject.toml", "README.md", "LICENSE", "data/paper_results.json"):
        shutil.copy(ROOT / name, source / name)
    for name in ("mia_nb", "notebooks"):
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "results")
        )
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        str(source),
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-q",
    ]
    subprocess.run([*build, "-w", str(tmp_path)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert [n for n in archive.namelist() if "published/" in n] == [
            "mia_nb/published/paper_results.json"
        ]
        archive.extractall(tmp_path / "site")
    code = (
        "import json, mia_nb.studies as m; from mia_nb.studies.paper_numbers import paper_results;"
        " print(json.dumps([m.__file__, len(paper_results()), len(m.claims('snn', {}))]))"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        check=True,
    )
    where, *counts = json.loads(ran.stdout)
    assert where.startswith(str(tmp_path / "site")) and counts == [1624, 10]
