"""04_dropout_sweep from a clean kernel at a small size: what it chooses and compares is what the
stored models give.
"""

from __future__ import annotations

import json
import re
from functools import partial
from html import unescape

import numpy as np
import pytest
from test_notebooks import Run

from mia_nb import metrics, query, studies, training
from mia_nb.attacks import NAMES, align, score
from mia_nb.attacks.single import attack_p
from mia_nb.studies import Setting

pytestmark = [pytest.mark.notebook, pytest.mark.slow]
SIZE = {
    "limit": 400,
    "population": 100,
    "num_models": 8,
    "epochs": 8,
    "timesteps": 2,
    "tuning": {"epochs": 2, "lr": 0.02, "batch": 32},
    "direct": {"epochs": 6, "optimizer": "adam", "lr": 0.004},
    "rates": [0.1, 0.3],
    "queries": 3,
    "n_resamples": 50,
}
TARGETS, OTHERS = range(4), range(4, 8)
FAMILIES = {
    "ANN": Setting("ann", attack="rmia"),
    "hybrid T = 1": Setting("snn", training="hybrid", timesteps=1, attack="rmia"),
    "hybrid T = 2": Setting("snn", training="hybrid", timesteps=2, attack="rmia"),
    "direct T = 2": Setting("snn", training="direct", timesteps=2, attack="rmia"),
}
POPULATION = "attack_p(form='population')"
COUNTED = "attack_r_lattice"
ATTACKS = {name: name for name in ("attack_p", "attack_r", "rmia", "rmia_count")} | {
    POPULATION: partial(attack_p, form="population"),
    COUNTED: studies.SPIKING_ATTACKS[COUNTED],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("dropout")


@pytest.fixture(scope="module")
def swept(folder) -> Run:
    return Run("04_dropout_sweep", folder / "results", folder / "swept.ipynb", answer=True, **SIZE)


@pytest.fixture(scope="module")
def pools(folder, swept) -> dict[str, training.pool.Pool]:
    found = {}
    for path in (folder / "results").glob("pool-*"):
        pool = training.load_pool(path.name, folder / "results")
        spiking, derived = pool.recipe.model == "snn", pool.recipe.epochs and pool.parent
        way = (
            ("hybrid" if derived else "direct" if pool.recipe.epochs else "convert")
            if spiking
            else ""
        )
        found[way, pool.recipe.model_args.get("timesteps", 0)] = pool
    assert set(found) == {
        ("convert", 1),
        *((one.training, one.timesteps) for one in FAMILIES.values()),
    }
    return {name: found[one.training, one.timesteps] for name, one in FAMILIES.items()}


def asked(pool, p: float, q: int):
    options = {"input_dropout": p, "queries": SIZE["queries"]} if p else {}
    return query(pool, pool.images(), models=range(8), progress=False, **options).select(
        queries=slice(0, q)
    )


def table(html: str) -> list[list[str]]:
    """The texts of an HTML table, row by row; a cell that spans rows is in each of them."""
    rows, hanging = [], {}
    for markup in re.findall(r"<tr.*?</tr>", html, re.S):
        cells, row = re.findall(r"<t[hd]([^>]*)>(.*?)</t[hd]>", markup, re.S), []
        while cells or len(row) in hanging:
            if len(row) in hanging:
                text, left = hanging.pop(len(row))
            else:
                attributes, text = cells.pop(0)
                left = int((re.search(r'rowspan="(\d+)"', attributes) or [0, 1])[1])
            hanging |= {len(row): (text, left - 1)} if left > 1 else {}
            row.append(text.replace("\N{NO-BREAK SPACE}", " "))
        rows.append(row)
    return rows


def grounds(run: Run) -> list[list[str]]:
    """[claim, verdict, phrase] for each phrase of the evidence, which a click unfolds."""
    page = run.html("evidence")
    assert page.startswith("<details><summary>") and "<details open" not in page
    rows = []
    for tag, text, has_phrases in re.findall("<(b|li)>([^<]*)(<ul>)?", page):
        if tag == "b":
            claim = unescape(text)
        elif has_phrases:
            verdict = unescape(text)
        else:
            rows.append([claim, verdict, unescape(text)])
    return rows


def wanted(truth) -> list[list[str]]:
    """The same of a table of claims."""
    rows = []
    for number, row in truth.iterrows():
        name = f"{number}. {row['claim']}"
        rows += [[name, row["verdict"], phrase] for phrase in row["evidence"].split("; ")]
        verdict = f"as printed: {row['as_printed']}" if "as_printed" in truth else ""
        phrases = row["as_printed_evidence"].split("; ") if verdict else []
        rows += [[name, verdict, phrase] for phrase in phrases]
    return rows


def headline(truth) -> list[str]:
    """The lines above the evidence: the claims of each verdict."""
    verdicts = sorted(set(truth["verdict"]))
    return [f"{one}: {', '.join(truth.index[truth['verdict'] == one])}" for one in verdicts]


def setting(text: str) -> tuple[float, int]:
    """(p, Q) of "p = 0.1, Q = 2"; "p = 0" is one question."""
    p, _, q = text.removeprefix("p = ").partition(", Q = ")
    return float(p), int(q or 1)


@pytest.fixture(scope="module")
def used(swept) -> dict[str, tuple[float, int]]:
    return {row[0]: setting(row[2]) for row in table(swept.html("choices"))[1:]}


@pytest.fixture(scope="module")
def result(swept) -> dict[tuple, str]:
    """{(references, models, dropout, attack): "AUC [low, high]"}."""
    (_, *head), _, *rows = table(swept.html("result"))
    keys = {name: key for key, name in NAMES.items()}
    return {
        (*row[:3], keys.get(attack, attack)): text
        for row in rows
        for attack, text in zip(head[2:], row[3:], strict=True)
        if text
    }


def auc(text: str) -> float:
    return float(text.split()[0])


def test_no_cell_fails_warns_or_leaves_a_widget(swept):
    for cell, outputs in swept.outputs.items():
        for output in outputs:
            assert output["output_type"] != "error" and output.get("name") != "stderr", (
                cell,
                output,
            )
            assert not any("widget" in kind for kind in output.get("data", {})), cell


def test_every_picture_is_there_and_light(swept):
    figures = swept.figures()
    drawn = {"answer", "heatmap-snn", "heatmap-ann", "roc", "scatter", "steps", "accuracy"}
    assert set(figures) == drawn
    assert all(len(json.dumps(figure)) < 100_000 for figure in figures.values())
    names = [
        trace["name"] for trace in figures["steps"]["data"] if trace.get("showlegend") is not False
    ]
    assert {
        "ANN",
        "ANN, dropout",
        "hybrid",
        "hybrid, dropout",
        "hybrid, ANN references",
        "direct",
    } <= set(names)


def test_the_choice_comes_from_models_that_are_not_attacked_and_prefers_plain_questions(
    swept, pools
):
    grid = [(0.0, 1), *((p, q) for q in (1, 2, 3) for p in (0.1, 0.3))]  # the simplest first
    for name, *row in table(swept.html("choices"))[1:]:
        values = []
        for p, q in grid:
            # rows 0 to 3 are not even there
            alone = score("rmia", asked(pools[name], p, q).select(models=OTHERS))
            each = [
                metrics.auc(value, member)
                for value, member in zip(alone.value, alone.member, strict=True)
            ]
            values.append([np.mean(each[:2]), np.mean(each[2:])])
        mean, error = np.mean(values, axis=1), np.std(values, axis=1, ddof=1) / np.sqrt(2)
        best = grid[int(np.argmax(mean >= mean.max() - error[mean.argmax()]))]
        dropout = best if best[0] else grid[1 + int(mean[1:].argmax())]
        assert (setting(row[0]), setting(row[1])) == (best, dropout), name
        assert row[3] == f"{mean[0]:.3f} ± {error[0]:.3f}"
        assert row[2] == f"{mean[grid.index(dropout)]:.3f} ± {error[grid.index(dropout)]:.3f}"


def test_the_heat_map_holds_the_whole_grid_and_one_cell_without_damage(swept):
    (heat,) = swept.figures()["heatmap-snn"]["data"]
    assert heat["y"] == ["0", "0.1", "0.3"] and heat["x"] == ["1", "2", "3"]
    assert [bool(text) for text in np.ravel(heat["text"])] == [True, False, False, *[True] * 6]
    assert sum(text.startswith("★") for text in np.ravel(heat["text"])) == 1


@pytest.fixture(scope="module")
def cells(pools, used) -> dict[Setting, object]:
    """The scores of every setting, from the stored pools."""
    found = {}
    for name, family in FAMILIES.items():
        for dropout, (p, q) in ((False, (0.0, 1)), (True, used[name])):
            spot, mine, networks = (
                family._replace(input_dropout=dropout),
                asked(pools[name], p, q),
                asked(pools["ANN"], p, q),
            )
            found |= {
                spot._replace(attack=a): score(one, mine, targets=TARGETS)
                for a, one in ATTACKS.items()
            }
            for attack in ("attack_r", COUNTED, "rmia") if name != "ANN" else ():
                foreign = score(ATTACKS[attack], mine, networks, targets=TARGETS)
                found[spot._replace(attack=attack, references="ann")] = foreign
    return found


def test_every_family_is_attacked_with_and_without_dropout_the_ann_too(result, cells):
    words = {family: name for name, family in FAMILIES.items()}
    for cell, scores in cells.items():
        key = (
            cell.references.replace("ann", "ANN"),
            words[cell._replace(input_dropout=False, references="own", attack="rmia")],
            "yes" if cell.input_dropout else "no",
            cell.attack,
        )
        assert auc(result[key]) == pytest.approx(
            metrics.per_target(scores)["auc"].mean(), abs=6e-4
        ), cell
    assert len(result) == len(cells) + 6  # and, aligned, three families with and without dropout


def test_networks_as_references_stand_beside_themselves_on_one_scale(result, pools, used):
    for name in ("hybrid T = 1", "hybrid T = 2", "direct T = 2"):
        both = (align(asked(pools[which], *used[name])) for which in (name, "ANN"))
        truth = metrics.per_target(score("rmia", *both, targets=TARGETS))["auc"].mean()
        assert auc(result["ANN", name, "yes", "rmia, aligned"]) == pytest.approx(truth, abs=6e-4)


def test_the_gain_of_spikes_is_set_against_that_of_the_ann(swept, result):
    rows = {
        (row[0], row[1].removeprefix("SNN ")): [float(v) for v in row[2:]]
        for row in table(swept.html("gain"))[1:]
    }
    gains = {name: ends[0] for (what, name), ends in rows.items() if what == "gain"}
    plain, damaged = (auc(result["own", "ANN", treated, "rmia"]) for treated in ("no", "yes"))
    assert gains["ANN"] == pytest.approx(damaged - plain, abs=2e-3)
    beyond = {name: ends for (what, name), ends in rows.items() if what != "gain"}
    assert set(beyond) == {"hybrid T=1", "hybrid T=2", "direct T=2"}
    for name, (value, low, high) in beyond.items():
        assert value == pytest.approx(gains[name] - gains["ANN"], abs=2e-4) and low < value < high
    assert f"Of {len(beyond)} intervals" in swept.text("verdict")


def test_the_claims_are_those_of_the_same_scores(swept, cells, pools, used):
    aligned = {}
    for name in ("hybrid T = 1", "hybrid T = 2", "direct T = 2"):
        for dropout, plan in ((False, (0.0, 1)), (True, used[name])):
            both = (align(asked(pools[which], *plan)) for which in (name, "ANN"))
            cell = FAMILIES[name]._replace(
                input_dropout=dropout, attack="rmia", references="ann, aligned"
            )
            aligned[cell] = score("rmia", *both, targets=TARGETS)
    truth = studies.claims("snn", cells | aligned, n_resamples=SIZE["n_resamples"])
    shown = {row[0]: row[1] for row in table(swept.html("claims"))[1:]}
    assert shown == {f"{name}. {row['claim']}": row["verdict"] for name, row in truth.iterrows()}
    assert "not run" not in shown.values()
    as_printed = {row[0]: row[2] for row in table(swept.html("claims"))[1:]}
    assert list(as_printed.values()) == truth["as_printed"].tolist()
    assert grounds(swept) == wanted(truth)
    assert swept.text("evidence").splitlines() == headline(truth)
    phrases = " ".join(row[2] for row in grounds(swept))
    assert "RMIA on the ANN itself: ANN" in phrases and "gain beyond the ANN's own" in phrases


def test_printed_numbers_stand_under_their_attack_with_ours_beside_them(swept, result):
    head, _, *rows = table(swept.html("published"))
    printed = {tuple(row[:3]): dict(zip(head[3:], row[3:], strict=True)) for row in rows}
    ours = result["own", "hybrid T = 1", "yes", "rmia"]
    assert (
        printed["2", "cifar10", "snn-resnet18, hybrid, T = 1, dropout"]["rmia"]
        == f"0.6384 | {ours}"
    )
    assert printed["2", "cifar10", "ann-resnet18"]["rmia"].startswith("0.6384 | 0.")
    assert printed["4", "cifar10", "snn-resnet18, hybrid, T = 2, ANN references"]["attack_p"] == ""
    elsewhere = [row for key, row in printed.items() if key[1] != "cifar10" or "vgg16" in key[2]]
    assert all(text.endswith("| not run") for row in elsewhere for text in row.values() if text)
    assert printed["2", "cifar10", "snn-resnet18, hybrid, T = 4"]["rmia"].endswith("not run")
    assert "| n/m" in swept.html("published-rates") and "0.8610 | 0." in swept.html(
        "published-accuracy"
    )
    assert len(rows) == 37


def test_it_ends_in_doubt(swept):
    assert re.match(r"negative control (passed|FAILED): \d+ checks", swept.text("self-test"))
    doubts = {row[0]: row[1] for row in table(swept.html("doubts"))[1:]}
    assert doubts["a rate at 1 % false alarms is measurable"] == "check failed"
    assert doubts["all families are queried with masks of one kind"] == "holds"
    assert {row[0] for row in table(swept.html("stability"))[1:]} == set(FAMILIES)


def test_a_second_run_is_cached_and_says_the_same(folder, swept):
    again = Run(
        "04_dropout_sweep", folder / "results", folder / "again.ipynb", force="false", **SIZE
    )
    assert again.text("pools").count("cached") == 5 and again.text("choice").count("cached") == 12
    for cell in ("choices", "result", "gain", "claims", "published", "doubts"):
        assert again.html(cell) == swept.html(cell), cell


def test_masks_per_step_are_for_spikes_only_and_what_is_left_out_is_said(folder, swept):
    size = SIZE | {
        "direct": {},
        "timesteps": 1,
        "attacks": ["attack_p"],
        "stands_for": [],
        "mask_scope": "step",
    }
    run = Run("04_dropout_sweep", folder / "results", folder / "step.ipynb", **size)
    infos = [
        json.loads(path.read_text()) for path in (folder / "results").glob("signals-*/info.json")
    ]
    stepwise = [info for info in infos if info.get("mask_scope") == "step"]
    assert len(stepwise) == 2 and all(info["timesteps"] == 1 for info in stepwise)
    shown = {row[0].split(".")[0]: row[1] for row in table(run.html("claims"))[1:]}
    assert {name for name, verdict in shown.items() if verdict == "not run"} == {
        "S1",
        "S2",
        "S7",
        "S8",
    }
    assert run.text("beside").startswith("0 of ") and "not run" in run.html("published")
    doubts = {row[0]: row[1] for row in table(run.html("doubts"))[1:]}
    assert doubts["all families are queried with masks of one kind"] == "check failed"


def test_too_few_models_for_a_choice_are_refused_with_a_way_out(folder, swept):
    with pytest.raises(ValueError, match="take 6 or more"):
        Run("04_dropout_sweep", folder / "results", folder / "few.ipynb", **SIZE | {"models": 4})


def test_with_a_plan_fixed_beforehand_every_model_is_attacked_by_it(folder, swept, pools):
    run = Run(
        "04_dropout_sweep", folder / "results", folder / "plan.ipynb", **SIZE | {"plan": [0.05, 2]}
    )
    assert run.text("grid").startswith("8 targets") and "p = 0.05, Q = 2 is fixed" in run.text(
        "grid"
    )
    assert {row[2] for row in table(run.html("choices"))[1:]} == {"p = 0.05, Q = 2"}
    truth = metrics.per_target(score("rmia", asked(pools["ANN"], 0.05, 2)))["auc"].mean()
    (_, *head), _, *rows = table(run.html("result"))
    (shown,) = [row for row in rows if row[:3] == ["own", "ANN", "yes"]]
    assert auc(shown[2 + head[1:].index(NAMES["rmia"])]) == pytest.approx(truth, abs=6e-4)
