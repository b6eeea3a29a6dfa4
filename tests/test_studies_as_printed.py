"""The verdict "as printed": the paper's own attacks, settings and parts decide it, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_studies_nsde import ODENET, RESNET, SDENET, SWEEP
from test_studies_nsde import study as flow_study
from test_studies_snn import DRAWS, Cell, as_claimed, rising, study

from mia_nb import attacks, studies
from mia_nb.studies.contrasts import contrasts
from mia_nb.studies.study import load
from mia_nb.types import Signals

PAPERS = Path(__file__).resolve().parents[2] / "shared" / "papers"
TEXTS = {
    "snn": ("snn-uai2025", "snn-workshop2025"),
    "nsde": ("nsde2025",),
    "privacy": ("nsde2025",),
}


def counted(cells, strength: float):
    """The cells, and Attack-R as the study has it: our Attack-R's scores on a leak of this share."""
    found = dict(cells)
    for cell, scores in cells.items():
        if cell.attack != "attack_r":
            continue
        value = scores.value - (1 - strength) * as_claimed(cell) * scores.member
        found[cell._replace(attack="attack_r_lattice")] = replace(scores, value=value)
    return found


def judged(cells, study_name="snn"):
    return studies.claims(study_name, cells, n_resamples=DRAWS)


def test_the_studys_own_attack_r_is_eq_8_and_a_count_in_which_ties_are_for_the_target():
    rng = np.random.default_rng(0)
    models, queries, samples = 7, 5, 40
    logits = rng.normal(size=(models, queries, samples, 3))
    labels = rng.integers(0, 3, samples)
    member = rng.random((models, samples)) < 0.5
    logits[3] = logits[0]  # a tie everywhere
    signals = Signals.from_logits(logits, labels, member, query_kind="dropout")
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    p = p[..., np.arange(samples), labels].mean(1)
    wanted = (p[0] >= p[1:]).mean(0)
    target = signals.select(models=[0])
    references = signals.select(models=range(1, models))
    found = studies.SPIKING_ATTACKS["attack_r_lattice"](target, references)
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    by_margins = attacks.ATTACKS["attack_r_lattice"](target, references)
    assert not np.allclose(by_margins, wanted)


def test_attack_r_decides_as_printed_in_the_studys_form_and_ours_does_not():
    """Ours is as strong as RMIA in this world, and the study's weaker."""
    cells = study(as_claimed, rising, samples=1000)
    even = {
        cell: cells[cell._replace(attack="rmia")] if cell.attack == "attack_r" else scores
        for cell, scores in cells.items()
    }
    assert judged(even).loc["S1", "as_printed"] == "not run"  # the study's form was not run
    lattice = {
        cell._replace(attack="attack_r_lattice"): scores
        for cell, scores in cells.items()
        if cell.attack == "attack_r"
    }
    table = judged(even | lattice)
    assert table.loc["S1", "as_printed"] == "holds"
    assert table.loc["S1", "verdict"] != "holds"
    assert "attack_r_lattice" not in table.loc["S1", "as_printed_evidence"]


def test_what_the_study_never_ran_is_asked_of_the_extended_verdict_alone():
    cells = counted(study(as_claimed, rising, samples=1000), 1.0)
    no_dropout_on_the_ann = {
        cell: scores for cell, scores in cells.items() if cell.training or not cell.input_dropout
    }
    table = judged(no_dropout_on_the_ann)
    assert table.loc["S3", "verdict"] == "not resolved"
    assert table.loc["S3", "as_printed"] == "holds (at unequal accuracy)"
    assert "with dropout" not in table.loc["S3", "as_printed_evidence"]


def test_direct_training_at_one_time_step_is_in_no_table():
    """With it S2 fails in this world, and the study did not print it."""
    cells = counted(study(as_claimed, rising, samples=1000), 1.0)
    for cell in list(cells):
        if cell.training == "direct":
            cells[cell._replace(timesteps=1)] = (
                cells[Cell("ann", attack=cell.attack)]
                if (cell.attack != "attack_r_lattice" and cell.references == "own")
                else cells[cell]
            )
    table = judged(cells)
    assert table.loc["S2", "verdict"] == "does not hold"
    assert table.loc["S2", "as_printed"] == "holds"
    assert table.loc["S8", "as_printed"] == "holds"


def test_dropout_counts_as_printed_only_where_probabilities_were_averaged():
    cells = counted(study(as_claimed, rising, samples=1000), 1.0)
    by_margin = {
        cell: replace(scores, info={"combine": "margin"}) if cell.input_dropout else scores
        for cell, scores in cells.items()
    }
    assert judged(cells).loc["S4", "as_printed"] == "holds"
    table = judged(by_margin)
    assert table.loc["S4", "as_printed"] == "not run" and table.loc["S4", "verdict"] == "holds"


def test_a_stochastic_network_counts_as_printed_with_the_fewest_queries():
    """Many queries undo the protection in this world."""
    few = SDENET._replace(queries=1)
    many = SDENET._replace(queries=64)

    def leak(cell):
        if cell.model == "sdenet":
            return 0.3 if cell.queries == 1 else 1.8
        return 2.0 if cell.model == "resnet14" else 1.0

    cells = flow_study(leak, settings=[RESNET, ODENET, few, many], attacks=("lira_global",))
    table = judged(cells, "nsde")
    assert table.loc["D6", "as_printed"] == "holds"
    assert table.loc["D6", "verdict"] == "does not hold"


def test_a_part_that_no_table_has_is_not_asked_as_printed():
    """D2 is judged by the gaps alone, as the study has no checkpoints."""
    cells = flow_study(
        lambda cell: 1.0,
        lambda cell: (0.98, 0.8) if cell.model == "resnet14" else (0.85, 0.8),
        settings=[RESNET, ODENET],
    )
    table = judged(cells, "nsde")
    assert table.loc["D2", ["as_printed", "verdict"]].tolist() == ["holds", "not resolved"]


def test_what_the_paper_proves_or_never_says_has_no_verdict_as_printed():
    assert judged({}).loc["S9", "as_printed"].startswith("proved where the population is all")
    table = studies.claims("privacy", {})
    assert table.loc["D15", "as_printed"] == "ours"
    assert table.loc["D10", "as_printed"] == "not printed"
    assert "as_printed" not in studies.claims("recipes", {})


def test_a_difference_under_a_margin_also_stands_as_a_share_of_the_leak():
    """Of networks that leak hardly anything 0.01 of AUC may be half of it all."""
    cells = study(lambda cell: 0.06 if cell.training == "direct" else 0.03, samples=1000)
    rows = studies.comparisons("snn", cells, n_resamples=DRAWS)
    row = rows[(rows["claim"] == "S7") & (rows["part"] == "AUC") & (rows["metric"] == "auc")].iloc[
        0
    ]
    names = ["direct", "hybrid"]
    leaks = []
    for training in names:
        sides = [
            cells[Cell("snn", training, 4, attack=attack)]
            for attack in ("rmia", "attack_r", "attack_p")
        ]
        areas = [
            np.mean(
                [attack_auc(value, member) for value, member in zip(s.value, s.member, strict=True)]
            )
            for s in sides
        ]
        leaks.append(max(areas) - 0.5)
    assert row["relative"] == pytest.approx(leaks[0] / leaks[1] - 1, rel=1e-9)
    assert row["relative_low"] < row["relative"] < row["relative_high"]
    assert rows.loc[rows["claim"] == "S1", "relative"].isna().all()


def attack_auc(value, member) -> float:
    """Share of (member, non-member) pairs in order."""
    return float((value[member][:, None] > value[~member]).mean())


def test_fixed_k_is_asked_as_printed_and_fixed_sigma_of_the_extended_verdict():
    of_one_k = [SDENET, SDENET._replace(T=0.5), SDENET._replace(steps=8)]
    of_one_sigma = [cell._replace(queries=1) for cell in SWEEP]
    cells = flow_study(lambda cell: 1.0, settings=[*of_one_k, *of_one_sigma])
    for verdict, shared in (("as printed", "k"), ("extended", "sigma")):
        compared = contrasts(load("nsde", verdict).claims["D13"], cells)
        assert {contrast.part for contrast in compared} == {"T", "steps"}
        for contrast in compared:
            values = [getattr(side[0], shared) for side in contrast.sides]
            assert values[0] == pytest.approx(values[1])


def test_the_counted_attack_r_stands_beside_the_printed_one():
    cells = counted(study(as_claimed, rising, samples=400), 0.5)
    table = studies.against_papers("snn", cells, ours="digits", n_resamples=20)
    row = table.query(
        "table == '2' and model == 'ann-resnet18' and attack == 'attack_r' and metric == 'auc'"
    )
    row = row[row["ours"].notna()].iloc[0]
    scores = cells[Cell("ann", attack="attack_r_lattice")]
    ours = np.mean(
        [
            attack_auc(value, member)
            for value, member in zip(scores.value, scores.member, strict=True)
        ]
    )
    assert row["ours"] == pytest.approx(ours, abs=1e-9)
    assert "ours is continuous" not in row["note"]


@pytest.mark.skipif(not PAPERS.is_dir(), reason="the papers' texts are not here")
@pytest.mark.parametrize("name", TEXTS)
def test_every_quote_stands_in_the_paper(name):
    texts = [(PAPERS / f"{paper}.txt").read_text() for paper in TEXTS[name]]
    text = plain(" ".join(texts))
    for claim_name, claim in load(name).claims.items():
        assert bool(claim.quote) != (claim_name == "D15"), claim_name
        end = 0
        for part in claim.quote.split("…"):
            found = text.find(plain(part), end)
            end = found if found >= 0 else end
            assert found >= 0, (claim_name, part)


def plain(text: str) -> str:
    """Letters and digits alone: texts differ in spaces, dashes and the marks of formulas."""
    return re.sub(r"[^a-z0-9]", "", text.lower())
