"""Risk against the settings of an equation: one setting at a time, in groups that share the
others.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from mia_nb import metrics, plots, studies
from mia_nb.studies import Setting
from mia_nb.types import Scores

ODENET, SDENET = Setting("odenet", steps=8), Setting("sdenet", k=0.3, steps=8)
DRAWS = 20


def scored(*cells, targets=6, samples=80):
    """Scores of each setting, members stronger by a tenth from one to the next; the first is told
    apart by its accuracy.
    """
    rng = np.random.default_rng(0)
    half = np.array([rng.permutation(samples) < samples // 2 for _ in range(targets // 2)])
    member = np.stack([half, ~half], axis=1).reshape(targets, samples)
    found = {}
    for i, cell in enumerate(cells):
        value = rng.normal(size=member.shape) + 0.1 * (i + 1) * member
        seen = np.array([0.9 - 0.01 * i, 0.8]) + 0.01 * rng.normal(size=(targets, 2))
        found[cell] = Scores(
            value, member, np.arange(targets), np.arange(targets) // 2, seen, 1 - seen, {}
        )
    return found


def varied(*cells, **options):
    """The rows of the AUC, one per family."""
    tables = studies.varied_settings(scored(*cells), **{"n_resamples": DRAWS, **options})
    return {what: table[table["metric"] == "auc"] for what, table in tables.items()}


def groups(table, what):
    """{group: values of the setting}."""
    return {name: list(rows[what]) for name, rows in table.groupby("group", sort=False)}


def test_nothing_and_families_that_differ_in_no_setting_give_no_table():
    assert studies.varied_settings({}) == {}
    assert varied(ODENET) == {} and varied(Setting("resnet14", 3), ODENET) == {}
    assert (
        varied(Setting("resnet14", 3)) == {}
        and varied(Setting("odenet64"), Setting("resnet14", 3)) == {}
    )


@pytest.mark.parametrize(
    ("what", "values"),
    [
        ("method", ["euler", "rk4"]),
        ("blocks", [1, 2, 3]),
        ("T", [1.0, 0.25]),
        ("steps", [8, 4, 16]),
    ],
)
def test_a_setting_in_which_families_differ_and_nothing_else_has_a_table_of_its_own(what, values):
    cells = [ODENET._replace(**{what: value}) for value in values]
    found = varied(Setting("resnet14", 3), *cells, Setting("odenet64", steps=8))
    assert (
        list(found) == [what]
        and list(found[what][what]) == values
        and found[what]["group"].nunique() == 1
    )
    assert list(found[what]["label"]) == [cell.label for cell in cells]


def test_numbers_of_a_row_are_those_of_its_scores():
    cells = [ODENET, ODENET._replace(method="rk4")]
    scores = scored(*cells)
    table = studies.varied_settings(scores, n_resamples=DRAWS, seed=3)["method"]
    ends = ["value", "low", "high"]
    for cell in cells:
        rows = table[table["method"] == cell.method].set_index("metric")
        wanted = metrics.intervals(scores[cell], (), n_resamples=DRAWS, seed=3)
        right = metrics.accuracies(scores[cell])
        for metric, row in (
            ("auc", wanted.loc["auc"]),
            ("train_acc", right.loc["train"]),
            ("test_acc", right.loc["test"]),
        ):
            assert rows.loc[metric, ends].tolist() == pytest.approx(row.tolist())
        each = [
            metrics.auc(*one) for one in zip(scores[cell].value, scores[cell].member, strict=True)
        ]
        assert rows.loc["auc", "value"] == pytest.approx(np.mean(each))
        assert (rows[["n1", "n0", "pairs"]] == [40, 40, 3]).all(axis=None)


def test_two_settings_that_vary_are_compared_one_at_a_time():
    cells = [
        ODENET._replace(method=method, blocks=blocks)
        for method in ("euler", "rk4")
        for blocks in (1, 2)
    ]
    found = varied(*cells)
    assert list(found) == ["method", "blocks"]
    assert groups(found["method"], "method") == {
        "blocks 1": ["euler", "rk4"],
        "blocks 2": ["euler", "rk4"],
    }
    assert groups(found["blocks"], "blocks") == {"method euler": [1, 2], "method rk4": [1, 2]}
    assert varied(cells[0], cells[3]) == {}  # differ in both at once: neither explains anything


def test_a_family_that_differs_in_something_else_too_is_in_no_table():
    other = ODENET._replace(method="rk4", blocks=2)
    found = varied(ODENET, ODENET._replace(blocks=3), other)
    assert list(found) == ["blocks"] and list(found["blocks"]["blocks"]) == [1, 3]


def test_an_odenet_is_the_noiseless_end_of_the_noises_of_sdenets():
    found = varied(ODENET, SDENET, SDENET._replace(k=0.6))
    assert list(found) == ["k"] and groups(found["k"], "k") == {"": [0.0, 0.3, 0.6]}


def test_networks_queried_without_their_noise_or_trained_without_it_are_not_points_of_the_same_line():
    quiet, hidden = SDENET._replace(noise=False), SDENET._replace(noise_train=False)
    found = varied(SDENET, SDENET._replace(k=0.6), quiet, quiet._replace(k=0.6), hidden)
    assert list(found) == ["k"]
    assert groups(found["k"], "k") == {
        "noise_train True, noise True": [0.3, 0.6],
        "noise_train True, noise False": [0.3, 0.6],
    }


def test_time_and_steps_are_compared_at_equal_sigma_where_k_makes_up_for_them():
    found = varied(
        ODENET,
        SDENET,
        SDENET._replace(k=0.3 * sqrt(0.25), T=0.25),
        SDENET._replace(k=0.3 * sqrt(0.5), steps=16),
    )
    assert {"T at equal sigma", "steps at equal sigma"} <= set(found) and not {"T", "steps"} & set(
        found
    )
    assert groups(found["T at equal sigma"], "T at equal sigma") == {"steps 8": [1.0, 0.25]}
    assert groups(found["steps at equal sigma"], "steps at equal sigma") == {"T 1": [8, 16]}
    for what in ("T at equal sigma", "steps at equal sigma"):
        assert found[what]["sigma"].nunique() == 1 and (found[what]["model"] == "sdenet").all()


def test_families_that_coincide_in_a_setting_leave_it_out():
    found = varied(ODENET, Setting("sdenet", steps=8), SDENET, SDENET._replace(k=0.6))
    assert "k" not in found


def test_an_adaptive_solver_stands_beside_fixed_ones_of_every_number_of_steps():
    # chooses its own steps: the cell's number says nothing
    adaptive = Setting("odenet", method="dopri5")
    found = varied(ODENET, ODENET._replace(method="rk4"), ODENET._replace(steps=4), adaptive)
    assert list(found) == ["method", "steps"]
    assert groups(found["method"], "method") == {
        "steps 8": ["euler", "rk4", "dopri5"],
        "steps 4": ["euler", "dopri5"],
    }
    assert groups(found["steps"], "steps") == {"method euler": [8, 4]}
    assert list(varied(adaptive, adaptive._replace(method="bosh3"))["method"]["method"]) == [
        "dopri5",
        "bosh3",
    ]


def test_equations_are_the_single_group_network_and_its_variants():
    cells = [
        Setting("odenet64"),
        Setting("anode", augment=16),
        Setting("anode", augment=64),
        Setting("sonode"),
    ]
    found = varied(Setting("resnet14", 3), ODENET, *cells, Setting("hbnode"))
    assert list(found) == ["equation"]
    assert list(found["equation"]["equation"]) == [
        "ODENet-64",
        "ANODE+16",
        "ANODE+64",
        "SONODE",
        "HBNODE",
    ]
    assert groups(found["equation"], "label").keys() == {""}
    assert varied(Setting("odenet64"), Setting("resnet14", 3)) == {}


def test_every_table_can_be_drawn_with_a_line_for_each_group():
    cells = [SDENET._replace(k=k, T=T) for T in (1.0, 0.25) for k in (0.3, 0.6)]
    adaptive = Setting("odenet", method="dopri5")
    families = scored(ODENET, adaptive, *cells, Setting("odenet64"), Setting("sonode"))
    tables = studies.varied_settings(families, n_resamples=DRAWS)
    assert set(tables) >= {"method", "k", "T", "equation"}
    for what, table in tables.items():
        figure = plots.lines(table, what, line="group", panel="metric")
        aucs = [trace for trace in figure.data if trace.xaxis == "x"]
        assert len(aucs) == table["group"].nunique()
        auc = table.loc[table["metric"] == "auc", "value"]
        assert sorted(y for trace in aucs for y in trace.y) == sorted(auc)
