"""Claims judged on printed numbers: known cells of the papers, and what the page shows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from mia_nb.studies import claims_on_print
from mia_nb.studies.paper_numbers import paper_results
from mia_nb.studies.paper_verdicts import printed_blocks
from mia_nb.studies.settings import Setting

PAGE = Path(__file__).resolve().parents[1] / "docs" / "claims.md"


def test_a_block_holds_the_cells_of_its_tables_with_the_accuracies_of_their_models():
    block = printed_blocks("snn")["cifar10 resnet18"]
    first = Setting("snn", training="hybrid", timesteps=1, attack="attack_p")  # Table 2, first cell
    assert block[first]["auc"] == 0.5458 and block[first]["tpr@0.001"] == 0.0008
    assert 0.5 < block[first]["test_accuracy"] < 1


def test_a_margin_that_the_print_breaks_fails_the_claim():
    """S7 allows .01, and Guan et al. print .5962 for direct and .7757 for hybrid training at T = 4
    on CIFAR-100."""
    claim = claims_on_print("snn").loc["S7"]
    assert claim["verdict"] == "does not hold" and claim["agree"] < claim["comparisons"]
    assert claim["least"].startswith("cifar100 resnet18: AUC, ")
    block = printed_blocks("snn")["cifar100 resnet18"]
    direct, hybrid = (
        max(
            block[one]["auc"]
            for one in block
            if one.model == "snn"
            and "auc" in block[one]
            and one.training == training
            and one.timesteps == 4
            and one.references == "own"
            and not one.input_dropout
        )
        for training in ("direct", "hybrid")
    )
    assert (direct, hybrid) == (0.5962, 0.7757)


def test_a_claim_that_every_printed_comparison_supports_holds():
    table = claims_on_print("snn")
    for name in ("S4", "S5", "S6"):
        assert table.loc[name, "verdict"] == "holds"
        assert table.loc[name, "agree"] == table.loc[name, "comparisons"] > 0
    assert table.loc["S9", "verdict"].startswith("proved") and not table.loc["S9", "comparisons"]
    nothing = claims_on_print("privacy").loc["D10", ["verdict", "comparisons"]]
    assert nothing.tolist() == ["not printed", 0]


def test_a_claim_of_which_a_part_is_not_printed_holds_in_part():
    """D2 rests on a comparison at equal gaps, for which the print has no checkpoints."""
    verdict = claims_on_print("nsde").loc["D2", "verdict"]
    assert verdict == "holds in part: nothing is printed at an equal gap"


def test_a_cell_that_one_table_misprints_counts_as_most_tables_print_it():
    """LiRA on the SDENet of CIFAR-10: .625 in Table III, .525 in VIII and XII."""
    block = printed_blocks("nsde")["cifar10"]
    printed = {
        metrics["auc"]
        for one, metrics in block.items()
        if (one.model, one.k, one.T, one.steps, one.blocks) == ("sdenet", 0.5, 1, 16, 1)
        and one.attack == "lira_global"
        and one.method == "stoch_rk4"
    }
    assert printed == {0.525}
    table_3 = [
        record["value"]
        for record in paper_results("nsde2025", "III")
        if (record["dataset"], record["attack"], record["metric"]) == ("cifar10", "lira", "auc")
        and record["model"].startswith("sdenet")
    ]
    assert table_3 == [0.625]
    assert claims_on_print("nsde").loc["D6", "verdict"] == "holds"


def test_two_tables_print_one_row_of_ordinary_networks():
    """Guan et al. print the same AUCs for ResNet18 (Table 2) and VGG-16 (Table 3)."""
    rows = [
        [
            record["value"]
            for record in paper_results("snn-uai2025", table)
            if (record["dataset"], record["model"][:3], record["metric"])
            == ("cifar10", "ann", "auc")
        ]
        for table in ("2", "3")
    ]
    assert rows == [[0.5661, 0.5949, 0.6384]] * 2


def test_a_network_without_noise_is_less_exposed_than_both_neural_odes_on_print():
    """TPR at 0.1 % of the strongest attack, RMIA: .0091 against .0193 and .0272 on CIFAR-10 (Tables
    V, III), .0204 against .0541 and .0291 on CIFAR-100."""
    claim = claims_on_print("nsde").loc["D22"]
    assert (claim["verdict"], claim["agree"], claim["comparisons"]) == ("holds", 4, 4)
    assert claim["least"].startswith("cifar100: ODENet-64, ") and claim["least"].endswith("+0.0087")


def test_two_blocks_of_table_xii_print_two_results_of_one_setting():
    """k = 0.3 over 16 steps; the second one's AUC and accuracy are those of k = 0.6."""
    printed = {}
    for record in paper_results("nsde2025", "XII"):
        about = record["setting"]
        if (about["s"], about["T"]) == (16, 1):
            printed[about["k"], about["impact"], record["metric"]] = record["value"]
    auc_and_accuracy = [
        (printed[k, block, "auc"], printed[k, block, "accuracy"])
        for k, block in ((0.3, "k"), (0.3, "stochasticity"), (0.6, "stochasticity"))
    ]
    assert auc_and_accuracy == [(0.53, 0.5129), (0.516, 0.5202), (0.516, 0.5202)]
    assert "has an AUC of .530 and an attack accuracy of 51.29 %" in PAGE.read_text()


@pytest.mark.parametrize(
    ("dataset", "without_noise", "ordinary"),
    [("cifar10", 0.559, 0.617), ("cifar100", 0.676, 0.792)],
)
def test_the_print_has_two_results_of_a_network_without_noise(dataset, without_noise, ordinary):
    """An SDENet of sigma 0 (Table V) and an ODENet by RK4 (Table IX): LiRA's AUC."""
    block = printed_blocks("nsde")[dataset]
    sde = Setting("sdenet", method="stoch_rk4", attack="lira_global")
    ode = Setting("odenet", method="rk4", attack="lira_global")
    assert (block[sde]["auc"], block[ode]["auc"]) == (without_noise, ordinary)
    assert all(f"{auc:.3f}"[1:] in PAGE.read_text() for auc in (without_noise, ordinary))


@pytest.mark.parametrize(("attack", "rises"), [("rmia", 11), ("attack_r", 11), ("attack_p", 7)])
def test_input_dropout_strengthens_two_printed_attacks_everywhere(attack, rises):
    gains = []
    for values in printed_blocks("snn").values():
        for run, metrics in values.items():
            if run.model == "snn" and run.references == "own" and run.input_dropout:
                plain = values.get(run._replace(input_dropout=False), {})
                if run.attack == attack and plain:
                    gains.append(metrics["auc"] - plain["auc"])
    assert (sum(gain > 0 for gain in gains), len(gains)) == (rises, 11)


@pytest.mark.parametrize("study", ["snn", "nsde", "privacy"])
def test_the_page_shows_what_is_computed(study):
    page = PAGE.read_text()
    rows = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if " | " in line}
    for name, row in claims_on_print(study).iterrows():
        _, quote, rule, on_print, *here = rows[name].strip("| ").split(" | ")
        assert quote == (f'"{row["quote"]}" ({row["place"]})' if row["quote"] else "none")
        assert rule.startswith(row["claim"]) and len(here) == 2
        wanted = row["verdict"]
        if row["comparisons"]:
            wanted += f": {row['agree']} of {row['comparisons']}, least {row['least']}"
        assert on_print == wanted


@pytest.fixture(scope="module")
def results():
    spec = importlib.util.spec_from_file_location("results", PAGE.with_name("results.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("study", ["snn", "nsde", "privacy"])
def test_the_page_shows_what_the_shipped_pools_say(results, study):
    assert "\n".join(results.verdicts(study)) in PAGE.read_text()


def test_a_defense_that_prints_no_member_found_is_no_times_more_exposed():
    """Table XI prints a TPR of 0 for MemGuard, and .0014 for the SDENet."""
    claim = claims_on_print("privacy").loc["D16"]
    assert claim["verdict"] == "does not hold" and (claim["agree"], claim["comparisons"]) == (3, 4)
    assert claim["least"].endswith("0.00") and "MemGuard" in claim["least"]
    leak = claims_on_print("privacy").loc["D15", "least"]
    assert leak.endswith("+0.0800")  # an AUC of .580, and nothing that is gone


def test_a_factor_is_the_ratio_of_two_printed_rates(results):
    lira = {
        table_of: next(
            record["value"]
            for record in paper_results("nsde2025", table_of)
            if (record["dataset"], record["attack"], record["metric"])
            == ("cifar10", "lira", "tpr@0.001")
            and record["model"] == model
        )
        for table_of, model in (("I", "resnet14"), ("VII", "resnet14+sdenet"))
    }
    rows = [line.strip("| ").split(" | ") for line in results.factors()[3:]]
    *_, block = rows
    assert block[0].startswith("an NSDE block") and block[1] == "0 of 8"  # the paper: more than ten
    assert block[3] == f"{lira['I'] / lira['VII']:.2f}" == "8.80"
    assert rows[0][1] == "4 of 4"  # two attacks at two rates


def test_the_page_shows_the_factors_and_the_cells_that_it_names(results):
    assert "\n".join(results.factors()) in PAGE.read_text()
    rmia = {
        (record["dataset"], record["model"][:3], record["value"])
        for record in paper_results("snn-uai2025", "2")
        if record["attack"] == "rmia" and record["metric"] == "auc"
    }
    named = {("cifar10", value) for value in (0.6384, 0.6428, 0.6465)}
    named |= {("cifar100", value) for value in (0.7582, 0.8076)}
    assert {(data, "snn", value) for data, value in named} <= rmia
    assert {("cifar10", "ann", 0.6384), ("cifar100", "ann", 0.8251)} <= rmia
