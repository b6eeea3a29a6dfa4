"""Claims about noise, accounting and defenses get the verdicts that planted worlds deserve."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from mia_nb import auditing, studies
from mia_nb.accounting import tradeoff
from mia_nb.auditing.one_run import one_run
from mia_nb.studies import Setting
from mia_nb.types import Scores

DRAWS = 100
FOLDER = Path(studies.__file__).parent
DP, PLAIN, MEMGUARD = (
    Setting("resnet14", 3, defense="dp_sgd"),
    Setting("resnet14", 3),
    Setting("resnet14", 3, output="memguard"),
)
SDE, QUIET = Setting("sdenet", k=0.5, queries=16), Setting("sdenet")
FORBIDDEN = (
    "the epsilon of",
    "epsilon of the model",
    "privacy budget",
    " safe",
    "secure",
    "private ",
    "DP-trained",
    "leaks nothing",
)


def world(
    leaks: dict,
    accuracy=None,
    *,
    targets=8,
    samples=1900,
    seed=0,
    attacks=("lira_global",),
    pairs=True,
) -> dict:
    """{cell: Scores}: members N(leak, 1), non-members N(0, 1), the same masks for all; half of the
    noise is shared.
    """
    rng = np.random.default_rng(seed)
    half = np.array(
        [rng.permutation(samples) < samples // 2 for _ in range(math.ceil(targets / 2))]
    )
    member = np.stack([half, ~half], axis=1).reshape(-1, samples)[:targets]
    shared, rows = rng.normal(size=member.shape), np.arange(targets)
    cells = {}
    for cell, leak in leaks.items():
        for attack in attacks:
            value = (
                math.sqrt(0.9) * shared
                + math.sqrt(0.1) * rng.normal(size=member.shape)
                + leak * member
            )
            seen = np.array((accuracy or {}).get(cell, (0.8, 0.8))) + 0.001 * rng.normal(
                size=(targets, 2)
            )
            cells[cell._replace(attack=attack)] = Scores(
                value, member, rows, rows // 2 if pairs else rows, seen, 1 - seen, {}
            )
    return cells


def verdict(cells, claim, **options) -> str:
    return studies.claims("privacy", cells, n_resamples=DRAWS, **options).loc[claim, "verdict"]


def ladder(steps=14_700, dp_sgd=None, audited=True) -> pd.DataFrame:
    """The ladder of an SDENet of sigma 2 and of a perfect attack on 1,000 fair coins, of which not
    quite half are heads.
    """
    coins = np.random.default_rng(0).random(1000) < 0.5
    record = one_run(coins + 0.0, coins, delta=1e-5, guesses=1000) if audited else None
    flow = {"k": 0.5, "steps": 16, "T": 1.0, "method": "euler"}
    nominal = {"sample_rate": 512 / 25_000, "steps": steps}
    return auditing.ladder(
        delta=1e-5, flow=flow, nominal=nominal, dp_sgd=dp_sgd, audited=record, accountant="rdp"
    )


def test_without_anything_run_only_what_needs_no_run_is_said():
    table = studies.claims("privacy", {})
    assert table["verdict"].to_dict() == {
        "D8": "not run",
        "D10": "not run",
        "D14": "not established",
        "D15": "not run",
        "D16": "not run",
        "D17": "not run",
    }
    assert table["as_printed"].to_dict() == {
        "D8": "not run",
        "D10": "not printed",
        "D14": "not printed",
        "D15": "ours",
        "D16": "not run",
        "D17": "not run",
    }
    assert list(table.columns) == [
        "claim",
        "as_printed",
        "verdict",
        "evidence",
        "compared",
        "accuracy_apart",
        "as_printed_evidence",
    ]


def test_a_neural_sde_that_gives_away_no_more_at_a_better_accuracy_equals_dp_sgd():
    cells = world({DP: 0.05, SDE: 0.05}, {DP: (0.74, 0.74), SDE: (0.82, 0.82)})
    assert verdict(cells, "D8") == "holds"
    worse = world({DP: 0.05, SDE: 0.05}, {DP: (0.82, 0.82), SDE: (0.74, 0.74)})
    row = studies.claims("privacy", worse, n_resamples=DRAWS).loc["D8"]
    assert (
        row["verdict"] == "does not hold"
        and "accuracy: SDENet sigma=2, 16 queries - ResNet-14, DP-SGD -0.08" in (row["evidence"])
    )
    leaky = world({DP: 0.05, SDE: 0.6}, {DP: (0.74, 0.74), SDE: (0.82, 0.82)})
    assert verdict(leaky, "D8") == "does not hold"


def test_accuracies_are_those_on_images_as_they_are_not_on_augmented_copies():
    truth = {DP: (0.74, 0.74), SDE: (0.82, 0.82)}
    cells = world({DP: 0.05, SDE: 0.05}, truth)
    copies = world(
        {DP: 0.05, SDE: 0.05}, {DP: (0.42, 0.41), SDE: (0.44, 0.44)}, attacks=("RMIA, 4 copies",)
    )
    cells |= {c: replace(s, info={"draws": "augment"}) for c, s in copies.items()}
    row = studies.claims("privacy", cells, n_resamples=DRAWS).loc["D8"]
    assert row["accuracy_apart"] == pytest.approx(8, abs=0.2)  # points
    assert "accuracy: SDENet sigma=2, 16 queries - ResNet-14, DP-SGD +0.079" in row["evidence"]
    caveat = row["evidence"].split("train / test accuracy ")[1]
    assert "/ 0.44" not in caveat and "/ 0.41" not in caveat


def test_to_protect_better_than_dp_sgd_is_not_held_against_a_network():
    cells = world({DP: 0.6, SDE: 0.05}, {DP: (0.74, 0.74), SDE: (0.82, 0.82)})
    assert verdict(cells, "D8") == "holds"


def test_equal_protection_is_asked_of_the_most_asked_network_and_needs_a_measurable_rate():
    accuracy = {DP: (0.74, 0.74), SDE: (0.82, 0.82), SDE._replace(queries=1): (0.82, 0.82)}
    cells = world({DP: 0.05, SDE: 0.6, SDE._replace(queries=1): 0.0}, accuracy)
    found = studies.comparisons("privacy", cells, n_resamples=DRAWS).query("claim == 'D8'")
    assert (
        found["compared"].str.contains("16 queries").all()
        and verdict(cells, "D8") == "does not hold"
    )
    few = world({DP: 0.0, SDE: 0.0}, accuracy, samples=180)  # 9 false positives of 90 at 10 %
    assert set(
        studies.comparisons("privacy", few, n_resamples=DRAWS).query("claim == 'D8'")["metric"]
    ) == {
        "auc",
        "test_accuracy",
    }
    assert verdict(few, "D8") == "not resolved"


def test_the_room_below_the_curve_is_that_of_exact_intervals_at_the_realised_rate():
    cells = world({SDE: 0.3}, targets=2, samples=2000)
    found = (
        studies.comparisons("privacy", cells, n_resamples=DRAWS, delta=1e-5)
        .query("claim == 'D10'")
        .set_index("metric")
    )
    assert list(found.index) == ["tpr@0.01", "tpr@0.1"]
    (one,) = cells.values()
    rooms = []
    for value, member in zip(one.value, one.member, strict=True):
        threshold = np.sort(value[~member])[-101]  # 100 of 1,000 false positives
        tp = int((value[member] > threshold).sum())
        room = [tradeoff(0.1, epsilon=1.0, delta=1e-5) - tp / 1000]
        # alone, and jointly with the other target and the other rate
        for alpha in (0.05, 0.05 / 4):
            ends = beta_ends(tp, 1000, alpha), beta_ends(100, 1000, alpha)
            room += [tradeoff(ends[1][i], epsilon=1.0, delta=1e-5) - ends[0][1 - i] for i in (0, 1)]
        rooms.append(room)
    columns = ["value", "low", "high", "simultaneous_low", "simultaneous_high"]
    np.testing.assert_allclose(found.loc["tpr@0.1", columns].astype(float), min(rooms), atol=1e-9)


def beta_ends(hits, trials, alpha):
    from scipy.stats import beta

    return beta.ppf(alpha / 2, hits, trials - hits + 1), beta.ppf(
        1 - alpha / 2, hits + 1, trials - hits
    )


def test_a_curve_is_exceeded_only_when_one_target_exceeds_it_after_all_looks():
    below = world({SDE: 0.05})  # 9 false positives of 950 at 1 %
    row = studies.claims("privacy", below, n_resamples=DRAWS).loc["D10"]
    assert row["verdict"] == "holds (at FPR 0.1 and above)"
    said = row["evidence"].split("; ")
    assert "a curve would count as exceeded only at 95 % over 8 looks together" in said
    assert "FPR below 0.1 not measurable, as an FPR of 0.001 needs 10,000 non-members" in said
    above = world({SDE: 1.6}, samples=4000)  # TPR 0.63 at 10 %, the curve of epsilon 1 allows 0.27
    assert verdict(above, "D10") == "does not hold"
    on_it = norm.ppf(tradeoff(0.1, epsilon=1.0, delta=1e-5)) - norm.ppf(0.1)
    assert verdict(world({SDE: on_it}), "D10") == "not resolved"
    two = world({SDE: 0.05}) | world({SDE: 1.6}, attacks=("rmia",))
    row = studies.claims("privacy", two, n_resamples=DRAWS).loc["D10"]
    assert row["verdict"] == "does not hold" and "LiRA, one variance tpr@0.1: " in row["evidence"]
    # 8 targets, 1 rate, 2 attacks
    assert "a curve counts as exceeded only at 95 % over 16 looks together" in row["evidence"]


def test_an_attack_whose_ties_leave_no_small_rate_is_not_looked_at():
    cells = world({SDE: 0.05})
    alone = studies.comparisons("privacy", cells, n_resamples=2).query("claim == 'D10'")
    two_levels = {
        cell._replace(attack="correctness"): replace(one, value=(one.value > -1).astype(float))
        for cell, one in cells.items()
    }
    both = studies.comparisons("privacy", cells | two_levels, n_resamples=2).query("claim == 'D10'")
    assert (
        both.equals(alone) and verdict(cells | two_levels, "D10") == "holds (at FPR 0.1 and above)"
    )


def test_on_the_curve_itself_looks_rarely_exceed_it():
    """A mechanism that meets the curve exactly at 10 %: at most 5 % of studies of 8 targets may say
    that it is above.
    """
    leak = norm.ppf(tradeoff(0.1, epsilon=1.0, delta=1e-5)) - norm.ppf(0.1)
    said = []
    for seed in range(60):
        table = studies.comparisons(
            "privacy", world({SDE: leak}, samples=400, seed=seed), n_resamples=2
        )
        said.append((table.query("claim == 'D10'")["outcome"] == "against").any())
    assert sum(said) <= 5  # 3 expected at most, and Clopper-Pearson ends of both rates are wide


def test_networks_without_noise_are_looked_at_beside_and_decide_nothing():
    cells = world({SDE: 0.05, QUIET: 1.6})
    found = studies.comparisons("privacy", cells, n_resamples=DRAWS).query("claim == 'D10'")
    assert found.groupby("part")["outcome"].first().to_dict() == {
        "lira_global": "for",
        "without noise, lira_global": "against",
    }
    row = studies.claims("privacy", cells, n_resamples=DRAWS).loc["D10"]
    assert row["verdict"].startswith("holds") and "would count as exceeded" in row["evidence"]


def test_single_targets_are_the_units_of_a_bernoulli_pool_and_one_decides_nothing():
    cells = world({SDE: 1.6, DP: 0.0}, targets=5, pairs=False)
    assert verdict(cells, "D10") == "does not hold"
    cells = world({SDE: 1.6}, targets=1, pairs=False)
    row = studies.claims("privacy", cells, n_resamples=DRAWS).loc["D10"]
    assert row["verdict"] == "not resolved" and "nothing is decided" in row["evidence"]


def test_nothing_establishes_a_guarantee_for_a_neural_sde():
    row = studies.claims("privacy", {}, ladders={"SDENet sigma=2": ladder()}).loc[
        "D14"
    ]  # RDP: 6.60
    assert row["verdict"] == "not established"
    assert (
        "at delta 1e-05: nominal (paper's accounting) 6.6, training guarantee none (infinite),"
        " audited at least 3.25" in row["evidence"]
    )
    assert "h(0) is missing" in row["evidence"]
    parts = row["evidence"].split("; ")  # as notebooks print them, a line each
    assert f"nominal value of SDENet sigma=2: {ladder().loc[0, 'verdict']}" in parts
    assert all(part.count("(") == part.count(")") and len(part.split()) > 4 for part in parts), (
        parts
    )
    silent = studies.claims("privacy", {}, ladders={"this network": ladder(audited=False)}).loc[
        "D14"
    ]
    assert silent["verdict"] == "not established" and "audited not audited" in silent["evidence"]


def test_an_audit_refutes_a_nominal_value_only_where_its_conditions_hold():
    refuted = studies.claims("privacy", {}, ladders={"this network": ladder(steps=490)}).loc[
        "D14"
    ]  # RDP: 1.03
    assert (
        refuted["verdict"] == "does not hold" and "refuted at 95 % by row 5" in refuted["evidence"]
    )
    assert "steinke, one run, m = 1,000, r = 1,000, v = 9" in refuted["evidence"]


def test_a_ladder_with_a_finite_guarantee_is_dp_sgds_and_speaks_in_its_claim():
    cells = world({DP: 0.05, SDE: 0.05}, {DP: (0.74, 0.74), SDE: (0.82, 0.82)})
    trained = ladder(490, {"noise_multiplier": 2.0, "sample_rate": 512 / 25_000, "steps": 14_700})
    table = studies.claims(
        "privacy", cells, n_resamples=DRAWS, ladders={"ResNet-14, DP-SGD": trained}
    )
    assert (
        "DP-SGD accounted: ResNet-14, DP-SGD epsilon 6.61 at delta 1e-05, DP-SGD, RDP"
        in table.loc["D8", "evidence"]
    )
    assert (
        table.loc["D14", "verdict"] == "not established"
        and "3.25" not in table.loc["D14", "evidence"]
    )
    second = studies.claims(
        "privacy", cells, n_resamples=DRAWS, ladders={"A, DP-SGD": trained, "B, DP-SGD": trained}
    ).loc["D8", "evidence"]
    assert [part[:31] for part in second.split("; ") if "-SGD epsilon" in part] == [
        f"DP-SGD accounted: {n}, DP-SGD eps" for n in "AB"
    ]


def test_the_audit_of_an_undefended_network_without_noise_says_nothing_about_the_studys_claim():
    coins = np.random.default_rng(0).random(1000) < 0.5
    plain = auditing.ladder(
        delta=1e-5, audited=one_run(coins + 0.0, coins, delta=1e-5, guesses=1000)
    )
    evidence = studies.claims(
        "privacy", {}, ladders={"ResNet-14": plain, "SDENet sigma=2": ladder()}
    ).loc["D14", "evidence"]
    assert "ResNet-14" not in evidence and "SDENet sigma=2 at delta 1e-05" in evidence
    assert (
        "nominal value and audit not given"
        in studies.claims("privacy", {}, ladders={"this network": plain}).loc["D14", "evidence"]
    )


def test_a_guarantee_that_is_not_dp_sgds_is_not_told_as_such():
    cells = world({DP: 0.05, SDE: 0.05}, {DP: (0.74, 0.74), SDE: (0.82, 0.82)})
    flow = {"k": 0.5, "steps": 16, "T": 1.0, "method": "euler", "clip": 0.5, "lipschitz": 1.0}
    args = {
        "delta": 1e-5,
        "flow": flow,
        "nominal": {"sample_rate": 512 / 25_000, "steps": 14_700},
        "accountant": "rdp",
    }
    stored = {"releases": 1, "keep": 0.5, "classes": 10, "relation": "replace"}
    kept = auditing.ladder(**args, stored=stored)
    table = studies.claims("privacy", cells, n_resamples=DRAWS, ladders={"SDENet, stored": kept})
    assert "what DP-SGD was accounted at is not given" in table.loc["D8", "evidence"]
    wanted = (
        "SDENet, stored at delta 1e-05: nominal (paper's accounting) 6.6, training guarantee"
        f" {kept.loc[3, 'shown']}, "
    )
    assert np.isfinite(kept.loc[3, "epsilon"]) and wanted in table.loc["D14", "evidence"]


def memguarded(gap: float, attack: str, seed=0) -> dict:
    """Answers of two levels, right or wrong, right `gap` more often on members."""
    cell = MEMGUARD._replace(attack=attack)
    ((_, one),) = world({cell: 0.0}, attacks=(attack,), samples=1900, targets=32).items()
    right = np.random.default_rng(seed).random(one.value.shape) < np.where(
        one.member, 0.85 + gap, 0.85
    )
    return {cell: replace(one, value=right.astype(float))}


def test_memguards_zero_holds_by_ties_and_not_as_a_measure_of_what_is_left():
    row = studies.claims("privacy", memguarded(0.12, "correctness"), n_resamples=DRAWS).loc["D15"]
    assert row["verdict"] == "does not hold"
    assert (
        "correctness 0.000 by ties (no FPR below 0.8" in row["evidence"]
        and "the printed 0, and no measure" in row["evidence"]
    )
    # right as often on both: labels say nothing
    assert verdict(memguarded(0.0, "correctness"), "D15") == "holds"
    smooth = memguarded(0.12, "correctness") | world(
        {MEMGUARD: 0.5}, targets=32, attacks=("lira_per_sample",)
    )
    evidence = studies.claims("privacy", smooth, n_resamples=DRAWS).loc["D15", "evidence"]
    assert (
        "LiRA, variance per sample 0.2" in evidence.split("TPR at 10 % FPR")[1]
        and evidence.count("by ties") == 1
    )


def test_an_auc_below_a_half_is_a_failed_design_and_no_protection():
    assert verdict(memguarded(-0.12, "correctness"), "D15") == "not resolved (design check failed)"


@pytest.mark.parametrize("apart", [{"noise": False}, {"input_dropout": True}])
def test_networks_that_the_study_does_not_know_decide_nothing(apart):
    cells = world({SDE._replace(**apart): 1.6, DP: 0.0})
    assert (
        studies.claims("privacy", cells, n_resamples=DRAWS)["verdict"].to_dict()["D10"] == "not run"
    )


def test_pools_with_other_members_are_refused():
    with pytest.raises(ValueError, match="different membership"):
        studies.claims("privacy", world({SDE: 0.0}) | world({DP: 0.0}, seed=1), n_resamples=DRAWS)


def test_no_word_claims_more_than_was_shown():
    cells = world({DP: 0.05, SDE: 0.05, MEMGUARD: 0.3})
    texts = [
        *(file.read_text() for file in FOLDER.iterdir() if file.is_file()),
        studies.claims(
            "privacy", cells, ladders={"this network": ladder()}, n_resamples=DRAWS
        ).to_string(),
    ]
    for text in texts:
        for phrase in FORBIDDEN:
            assert phrase.lower() not in text.lower(), phrase
