"""The notebooks run from a clean kernel at a small size, and what they leave behind is what they
show.
"""

from __future__ import annotations

import ast
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from mia_nb import metrics, plots, query, training
from mia_nb.attacks import align as aligned
from mia_nb.attacks import in_words, literature, score
from mia_nb.cli.executing import execute
from mia_nb.parameters import read_parameters, record_of
from mia_nb.types import Recipe

pytestmark = pytest.mark.notebook
FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
SMALL = {
    "dataset": "digits",
    "limit": 600,
    "num_models": 6,
    "epochs": 8,
    "snapshots": [3],
    "n_resamples": 100,
    "control_resamples": 20,
}
FIGURE = "application/vnd.plotly.v1+json"


def without_answer(notebook: Path, folder: Path) -> Path:
    """A copy without the figure that a notebook opens with, which takes up to a second: it is drawn
    of what is shipped, whatever the parameters are. That no cell needs what a figure's cell
    computed is asked in test_notebooks_form.py.
    """
    node = json.loads(notebook.read_text(encoding="utf-8"))
    node["cells"] = [cell for cell in node["cells"] if cell["id"] != "answer"]
    path = folder / notebook.name
    path.write_text(json.dumps(node), encoding="utf-8")
    return path


class Run:
    """One executed notebook: its outputs by cell id. One run of each notebook has its `answer`."""

    def __init__(
        self, name: str, results: Path, out: Path, *, answer: bool = False, **parameters: Any
    ):
        declared = read_parameters(FOLDER / f"{name}.ipynb")
        given = {**SMALL, "results": str(results), **parameters}
        known = {n: v for n, v in given.items() if n in declared or record_of(n, declared)}
        began = time.monotonic()
        notebook = FOLDER / f"{name}.ipynb"
        with tempfile.TemporaryDirectory() as copies:
            execute(notebook if answer else without_answer(notebook, Path(copies)), out, known)
        self.seconds = time.monotonic() - began
        self.outputs = {
            c["id"]: c.get("outputs", [])
            for c in json.loads(out.read_text(encoding="utf-8"))["cells"]
        }

    def text(self, cell: str) -> str:
        return "".join("".join(o["text"]) for o in self.outputs[cell] if o.get("name") == "stdout")

    def html(self, cell: str) -> str:
        return "".join(
            "".join(o["data"].get("text/html", "")) for o in self.outputs[cell] if "data" in o
        )

    def figures(self) -> dict[str, dict]:
        return {
            c: o["data"][FIGURE]
            for c, outs in self.outputs.items()
            for o in outs
            if FIGURE in o.get("data", {})
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="module")
def trained(folder) -> Run:
    return Run("01_train", folder / "results", folder / "train.ipynb", answer=True)


@pytest.fixture(scope="module")
def attacked(folder, trained) -> Run:
    return Run("03_attack", folder / "results", folder / "attack.ipynb", answer=True)


@pytest.fixture(scope="module")
def pool(folder, trained) -> training.pool.Pool:
    (path,) = (folder / "results").glob("pool-*")
    return training.load_pool(path.name, root=folder / "results")


@pytest.fixture(scope="module")
def signals(pool):
    return query(pool, pool.images(), progress=False)


def test_no_cell_fails_warns_or_leaves_a_widget(trained, attacked):
    for run in (trained, attacked):
        for cell, outputs in run.outputs.items():
            for output in outputs:
                assert output["output_type"] != "error" and output.get("name") != "stderr", (
                    cell,
                    output,
                )
                assert not any("widget" in kind for kind in output.get("data", {})), cell


def test_every_picture_is_plotly_json_of_light_weight(trained, attacked):
    assert set(trained.figures()) == {"answer", "members", "accuracy", "traces"}
    assert set(attacked.figures()) == {"answer", "summary", "roc", "histogram", "scatter", "gap"}
    for figure in (*trained.figures().values(), *attacked.figures().values()):
        assert len(json.dumps(figure)) < 300_000 and "width" not in figure["layout"]


def test_training_leaves_a_pool_that_learned_and_says_how_well(trained, pool, signals):
    assert pool.member.shape == (6, 600) and pool.status == ["trained"] * 6
    train, test = (signals.correct[:, 0][mask].mean() for mask in (signals.member, ~signals.member))
    assert 0.9 < test < train
    row = re.search(r"<th>train accuracy</th>\s*<td>([\d.]+)</td>", trained.html("table"))
    assert float(row[1]) == pytest.approx(train, abs=1e-4)
    assert pool.key[:12] in trained.text("where") and "check failed" not in trained.html("doubt")


def test_weights_along_training_are_kept_and_know_less_than_those_at_its_end(pool, signals):
    then = query(pool.at(3), pool.images(), progress=False)
    assert (
        len(list(pool.folder.path.glob("snapshot_*"))) == 6
        and pool.at(3).folder.path == pool.folder.path
    )
    assert 0.2 < then.correct.mean() < signals.correct.mean() and then.info["epoch"] == 3
    assert then.loss[:, 0][then.member].mean() > signals.loss[:, 0][signals.member].mean()


def test_outputs_that_are_always_the_same_are_not_queried_again(attacked):
    assert attacked.text("again").startswith("not run: the outputs carry no noise")


def test_the_attack_finds_the_stored_pool_and_does_not_train_it_again(attacked):
    assert "cached" in attacked.text("pool")


def test_verdicts_and_table_repeat_what_the_stored_signals_give(attacked, signals):
    scores = {name: score(name, signals) for name in literature(2)}
    table = metrics.summary(scores, n_resamples=100)
    lines = [plots.verdict(table, name) for name in scores]
    assert attacked.text("verdicts").splitlines() == lines
    readable = metrics.readable(table)
    assert all(
        f"<td>{readable.loc[in_words(name), 'AUC']}</td>" in attacked.html("result")
        for name in scores
    )
    auc = metrics.by_attack(table, "auc")["value"]
    assert 0.5 < auc["rmia"] < 0.95 and auc.between(0.4, 1).all()


def test_the_self_test_passes_and_is_shown(attacked):
    assert "negative control passed" in attacked.text(
        "self-test"
    ) and "<td>pass</td>" in attacked.html("doubt")


def test_an_interval_that_holds_random_guessing_is_no_finding(folder, attacked):
    small = {
        "num_models": 4,
        "limit": 200,
        "epochs": 1,
        "attacks": ["loss"],
        "control_resamples": 5,
    }
    weak = Run("03_attack", folder / "results", folder / "weak.ipynb", **small)
    sentence = "the best interval excludes random guessing"
    for run, verdict in ((attacked, "holds"), (weak, "check failed")):
        rows = re.findall(r"<th>(.*?)</th>\s*<td>(.*?)</td>", run.html("doubts"))
        assert dict(rows)[sentence] == verdict
    low, high = map(float, re.search(r"\[([\d.]+), ([\d.]+)\]", weak.html("result")).groups())
    assert low < 0.5 < high


def test_a_second_run_is_cached_fast_and_the_same_even_when_false_comes_as_text(
    folder, trained, attacked, pool
):

    def models():
        return {path: path.stat().st_mtime_ns for path in (folder / "results").rglob("model_*")}

    before = models()
    again = Run(
        "01_train", folder / "results", folder / "train-again.ipynb", force="false", limit="600"
    )
    assert "cached" in again.text("training") and "cached" in again.text("queried")
    assert again.html("table") == trained.html("table")
    assert again.seconds < max(trained.seconds, 15)
    assert len(list(pool.folder.path.glob("model_*"))) == 6 and models() == before


@pytest.mark.slow
def test_a_key_chooses_the_pool_over_the_recipe_and_references_may_come_from_another(
    folder, pool, attacked
):
    other = training.train_pool(
        Recipe(num_models=4, epochs=4, seed=1),
        pool.images(),
        root=folder / "results",
        workers=1,
        progress=False,
    )
    run = Run(
        "03_attack",
        folder / "results",
        folder / "transfer.ipynb",
        pool=pool.key[:10],
        references=other.key[:10],
        attacks=["loss", "rmia"],
        model="resnet14",
        align="affine",
    )
    assert f"pool {pool.key[:12]}" in run.text("signals") and "tinycnn" in run.text("signals")
    assert "targets tinycnn, references tinycnn, align affine" in run.text("references")
    target, others = (aligned(query(p, pool.images(), progress=False)) for p in (pool, other))
    table = metrics.summary({"rmia": score("rmia", target, others)}, n_resamples=100)
    assert metrics.readable(table).loc["RMIA", "AUC"] in run.html("result")
    assert "loss threshold; RMIA" in run.text("attacks") and run.text("verdicts").count("\n") == 2


@pytest.mark.slow
def test_an_attack_that_the_self_test_leaves_out_can_be_run_alone(folder, pool):
    run = Run(
        "03_attack",
        folder / "results",
        folder / "shokri.ipynb",
        pool=pool.key[:10],
        attacks=["shokri"],
    )
    assert run.text("verdicts").startswith("shadow-model classifier")
    assert "negative control passed" in run.text("self-test")


def test_the_quickstart_shows_a_verdict_a_table_and_a_roc_down_to_one_in_ten_thousand(folder):
    run = Run("quickstart", folder / "none", folder / "quickstart.ipynb", attacks=["rmia", "loss"])
    (roc, histogram) = run.figures().values()
    assert roc["layout"]["xaxis2"]["range"][0] < -4 and len(roc["data"]) > 2
    assert "of the members" in "".join(run.outputs["whole"][0]["data"]["text/markdown"])
    assert "0.592 [0." in run.html("whole") and "1 on each side" in run.html("fewer")
    assert not (folder / "none").exists() and histogram["data"]


def test_shipped_signals_are_attacked_with_nothing_on_the_disk(folder):
    chosen = {"pool": "example:cifar10/resnet14", "attacks": ["rmia", "shokri", "loss"]}
    run = Run("03_attack", folder / "none", folder / "shipped.ipynb", **chosen, n_resamples=5)
    assert run.text("signals").startswith("16 models resnet14 on example:cifar10/resnet14")
    title = "".join(run.outputs["in-words"][0]["data"]["text/markdown"]).splitlines()[0]
    assert title == "### CIFAR-10, ResNet14: members can be told from non-members"
    assert run.text("attacks").splitlines()[0] == "k = 7: RMIA; loss threshold"
    assert "shadow-model classifier is left out" in run.text("attacks") and "0.592 [0." in run.html(
        "result"
    )


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_parameters_are_checked_before_anything_is_computed(path):
    code = [
        c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"
    ]
    code = code[code[0]["id"] == "advanced" :]
    assert code[0]["metadata"]["tags"] == ["parameters"]
    first = "".join(code[1]["source"]).splitlines()
    check = first.index(next(line for line in first if "widgets.setup(globals())" in line))
    assert all(re.match(r"(import|from) |$", line) for line in first[:check]), first
    # further checks: loops that look names up, conditions that raise
    rest = ast.parse("\n".join(first[check + 1 :])).body
    allowed = r"widgets\.want\(|[\w, ()]+ = \(?analysis\."  # short names for what cells use often
    short = [node for node in rest if re.match(allowed, ast.unparse(node))]
    assert all(isinstance(node, ast.For | ast.If) or node in short for node in rest), first
    assert "training." not in "".join(first) and "querying." not in "".join(first)


def test_an_unknown_attack_is_named(folder, pool):
    with pytest.raises(ValueError, match=r"rmai.*rmia"):
        Run(
            "03_attack",
            folder / "results",
            folder / "unknown.ipynb",
            pool=pool.key[:10],
            attacks=["rmai"],
        )
