"""02_convert from a clean kernel at a small size, and 03_attack on what it left."""

from __future__ import annotations

import json
import re

import pytest
from test_notebooks import Run

from mia_nb import metrics, query, training, widgets
from mia_nb.attacks import score

pytestmark = [pytest.mark.notebook, pytest.mark.slow]
TUNING = {"epochs": 2, "lr": 0.02, "batch": 32}
SIZE = {
    "limit": 500,
    "num_models": 4,
    "epochs": 6,
    "snapshots": [],
    "timesteps": 2,
    "tuning": TUNING,
    "quality": [1, 16],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("convert")


@pytest.fixture(scope="module")
def converted(folder) -> Run:
    return Run(
        "02_convert",
        folder / "results",
        folder / "convert.ipynb",
        direct={"epochs": 3},
        answer=True,
        **SIZE,
    )


@pytest.fixture(scope="module")
def pools(folder, converted) -> dict[str, training.pool.Pool]:
    found = [
        training.load_pool(path.name, folder / "results")
        for path in (folder / "results").glob("pool-*")
    ]
    args = [pool.recipe.model_args for pool in found]
    names = [
        (a.get("timesteps", 0), pool.recipe.epochs, pool.parent is not None)
        for a, pool in zip(args, found, strict=True)
    ]
    return dict(zip(names, found, strict=True))


def cells(html: str) -> list[list[str]]:
    """The texts of an HTML table, row by row."""
    return [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)
        for row in re.findall(r"<tr.*?</tr>", html, re.S)
    ]


def test_no_cell_fails_or_warns(converted):
    for cell, outputs in converted.outputs.items():
        assert not [
            o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"
        ], cell


def test_every_figure_is_drawn(converted):
    assert set(converted.figures()) == {
        "answer",
        "thresholds",
        "quality",
        "accuracy",
        "raster",
        "confidence",
    }


def test_one_pool_is_left_per_way_and_number_of_steps(pools):
    assert set(pools) == {
        (0, 6, False),
        (1, 0, True),
        (2, 0, True),
        (1, 2, True),
        (2, 2, True),
        (2, 3, False),
    }
    chain = pools[2, 2, True]
    assert (
        chain.parent.key == pools[1, 2, True].key and chain.ancestor.key == pools[0, 6, False].key
    )


def test_the_accuracy_table_is_that_of_the_stored_models(converted, pools):
    rows = cells(converted.html("accuracy-table"))
    hybrid = rows[next(i for i, row in enumerate(rows) if "hybrid" in row) + 1]
    assert hybrid[0] == "2"
    pool = pools[2, 2, True]
    truth = metrics.accuracies(score("correctness", query(pool, pool.images(), progress=False)))
    shown = [float(v) for v in hybrid[1:]]
    assert shown == pytest.approx(truth[["value", "low", "high"]].to_numpy().ravel(), abs=1e-4)


def test_conversion_at_sixteen_steps_keeps_the_networks_answers(converted):
    refit = [
        row for row in cells(converted.html("quality-table")) if row and row[0].startswith("refit")
    ]
    assert len(refit) == 2 and all(float(row[-1]) > float(row[1]) for row in refit)


def test_a_second_run_finds_everything_stored(folder, converted):
    again = Run(
        "02_convert", folder / "results", folder / "again.ipynb", direct={"epochs": 3}, **SIZE
    )
    assert again.text("hybrid").count("cached") == 3 and "cached" in again.text("direct")


def test_attack_makes_the_same_spiking_target_and_takes_its_parent_as_reference(folder, pools):
    size = {**SIZE, "spiking": "hybrid", "references": "parent", "align": "affine"}
    run = Run("03_attack", folder / "results", folder / "attack.ipynb", **size)
    assert f"snn tinycnn T=2 on digits, pool {pools[2, 2, True].key[:12]}" in run.text("signals")
    assert "references tinycnn" in run.text("references")


def test_attack_takes_answers_after_every_time_step(folder, pools):
    Run(
        "03_attack",
        folder / "results",
        folder / "steps.ipynb",
        **SIZE,
        spiking="convert",
        per_step=True,
    )
    infos = [
        json.loads(path.read_text()) for path in (folder / "results").glob("signals-*/info.json")
    ]
    asked = [info["pool"] for info in infos if info["draws"] == "steps"]  # of the tuned one by 02
    assert sorted(asked) == sorted([pools[2, 0, True].key, pools[2, 2, True].key])


def test_the_answers_after_every_step_are_kept_with_a_recording(folder, converted, pools):
    found = widgets.sources(folder / "results", pool=pools[2, 2, True].key)
    (steps,) = (source for source in found if source.info["draws"] == "steps")
    last = metrics.accuracies(score("correctness", steps.signals.select(queries=[1])))
    said = converted.text("steps")
    assert "test accuracy: after step 1 " in said
    assert f"after step 2 {last.loc['test', 'value']:.1%}" in said  # members are left out
    kept = next((folder / "results").glob("signals-*/raster.npz"))
    assert kept.stat().st_size < 300_000
