"""07_audit_your_model by its command: a planted leak stops a release, a world without one does not;
an own builder too.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from PIL import Image
from worlds import CLASSES, bernoulli, pairs

from mia_nb import auditing, metrics, store
from mia_nb.attacks import score
from mia_nb.auditing.result import MIME
from mia_nb.cli import main

pytestmark = [pytest.mark.notebook, pytest.mark.slow]
SMALL = ["-p", "n_resamples=100", "-p", "control_resamples=20"]
BUILDER = """from torch import nn


def mlp(in_channels, num_classes, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * size[0] * size[1], 64), nn.ReLU(), nn.Linear(64, num_classes))
"""


def outputs(path, leak: float, *, design=pairs, models=8, samples=400) -> dict:
    rng = np.random.default_rng(0)
    labels = np.arange(samples) % CLASSES
    member = design(models, samples, labels, rng)
    logits = rng.normal(size=(models, samples, CLASSES))
    logits[:, np.arange(samples), labels] += rng.normal(2, 1, samples) + leak * member
    np.savez(path, logits=logits, labels=labels, member=member)
    return {"logits": logits, "labels": labels, "member": member}


def audited(capsys, *words: str) -> tuple[int, str, dict, dict]:
    """(exit status, what was printed, result.json, the executed notebook) of `mia-nb audit`."""
    status = main(["audit", *words])
    said = capsys.readouterr().out
    folder = next(one for one in store.folders("results", "run") if one.path.name in said)
    assert folder.verify() == [] and (folder.path / "report.html").exists()
    return (
        status,
        said,
        folder.read_json("result.json"),
        json.loads((folder.path / "07_audit_your_model.ipynb").read_text()),
    )


def test_a_planted_leak_exits_with_three_again_at_once_and_its_result_is_what_the_attacks_give(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    outputs("leak.npz", 2.0, design=bernoulli)
    limits = [
        "--fail-if",
        "auc>0.7",
        "--fail-if",
        "tpr@0.1>0.95",
        "--fail-if",
        "epsilon>0.1",
        "--fail-if",
        "advantage>0.95",
    ]
    status, said, result, notebook = audited(capsys, "--logits", "leak.npz", *SMALL, *limits)
    assert status == 3
    found = auditing.read_outputs("leak.npz")
    names = dict.fromkeys(row["attack"] for row in result["attacks"])
    scores = {name: score(name, found.signals) for name in names if name != "max"}
    table = metrics.by_attack(metrics.summary(scores, n_resamples=100), "auc")
    told = [row for row in result["attacks"] if row["metric"] == "auc"]
    assert len(told) == len(names)
    for row in told:
        assert [row[end] for end in ("value", "low", "high")] == pytest.approx(
            table.loc[row["attack"], ["value", "low", "high"]].tolist()
        )
    split_scores = {name: auditing.score_split(name, found.signals) for name in scores}
    verdicts = auditing.judge(
        auditing.limits(limits[1::2]), scores, n_resamples=100, split_scores=split_scores
    )
    assert [one["sentence"] for one in result["verdicts"]] == [one.sentence for one in verdicts]
    assert [one.outcome for one in verdicts] == [
        "exceeded",
        "not exceeded",
        "exceeded",
        "not exceeded",
    ]
    assert result["design"]["kind"] == "coins" and result["data"]["digest"] == found.digest
    assert (
        result["audited_bound"]["epsilon"] == pytest.approx(verdicts[2].low)
        and result["provenance"]["recipe"] is None
    )
    assert (
        result["provenance"]["versions"].keys() >= {"mia_nb", "numpy"}
        and "torch" not in result["provenance"]["versions"]
    )
    # nothing was trained or asked
    assert not {"queries", "epochs", "split"} & result["provenance"]["parameters"].keys()
    json.dumps(result, allow_nan=False)
    roles = {"verdict", "headline"}
    tagged = [cell for cell in notebook["cells"] if roles & {*cell["metadata"].get("tags", [])}]
    first = "".join(tagged[0]["outputs"][0]["text"]).splitlines()[0]
    assert len(tagged) == 2 and first.startswith(
        "The strongest of 6 attacks, Student-t LiRA, tells members"
    )
    assert (
        result["headline"]
        == f"{first} None of the 4 classes is clearly more exposed than the others."
    )
    headings = re.findall(
        r"^## (.*)$", "\n".join("".join(cell["source"]) for cell in notebook["cells"]), re.MULTILINE
    )
    wanted = [
        "Question",
        "Design",
        "Data",
        "Models",
        "Negative control",
        "Attacks",
        "Verdict",
        "Limits",
        "Provenance",
    ]
    assert [one for one in headings if one in wanted] == wanted
    again, said_again, same, _ = audited(capsys, "--logits", "leak.npz", *SMALL, *limits)
    assert again == 3 and "cached" in said_again and same == result
    assert (
        "report.html" in said and "result.json" in said and "2 of 4 stated limits exceeded" in said
    )


def test_a_world_without_a_leak_exits_with_zero_and_its_interval_covers_one_half(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    outputs("null.npz", 0.0)
    status, said, result, _ = audited(
        capsys, "--logits", "null.npz", *SMALL, "--fail-if", "auc>0.6", "--fail-if", "auc>0.5"
    )
    assert status == 0 and "no stated limit exceeded" in said
    assert [one["outcome"] for one in result["verdicts"]] == ["not exceeded", "not established"]
    rows = [row for row in result["attacks"] if row["metric"] == "auc"]
    top = next(row for row in rows if row["attack"] == "max")
    assert top["low"] < 0.5 < top["high"] and result["self_test"]["self_test_passed"]
    assert result["audited_bound"] is None and result["design"]["kind"] == "pairs"


def one_model(path, leak: float, chance, **more) -> None:
    """One model that finds late classes harder; a sample is a member by the `chance` of its
    class.
    """
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, 800)
    member = rng.random(800) < np.asarray(chance)[labels]
    logits = rng.normal(size=(1, 800, CLASSES))
    logits[0, np.arange(800), labels] += 4 - labels + leak * member
    np.savez(path, logits=logits, labels=labels, member=member[None], **more)


def test_another_class_mix_is_no_leak_but_one_that_images_vouch_for_is(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    one_model("mix.npz", 0.0, [0.9, 0.7, 0.3, 0.1])
    limit = [*SMALL, "--fail-if", "auc>0.6"]
    status, said, result, notebook = audited(capsys, "--logits", "mix.npz", *limit)
    (verdict,) = result["verdicts"]
    assert (status, verdict["outcome"]) == (1, "not established") and verdict["low"] > 0.6
    first = "What tells members from non-members here may be their distribution, not memorisation: "
    assert result["headline"].startswith(first + "their class mix differs (p = ")
    assert f"\n{first}" in said and "\nnot established: members and non-members" in said
    verdict_cell = next(cell for cell in notebook["cells"] if cell["id"] == "verdict")
    assert "".join(verdict_cell["outputs"][0]["text"]).startswith(first)
    assert result["design"][
        "doubt"
    ] and "nothing says that members and non-members differ otherwise" in [
        question for question, holds in result["limits"].items() if not holds
    ]
    images = np.random.default_rng(1).integers(0, 256, (800, 1, 6, 6), np.uint8)
    one_model("leak.npz", 2.0, [0.5] * CLASSES, images=images)
    status, said, result, _ = audited(capsys, "--logits", "leak.npz", *limit)
    assert status == 3 and result["headline"].startswith("The finished model gives")
    assert result["design"]["doubt"] == ""


def leaks_by_its_entropy(path) -> None:
    """A model that is surer of its members, whatever it takes them for."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 10, 2000)
    member = rng.random(2000) < 0.5
    named = np.where(rng.random(2000) < 0.4, rng.integers(0, 10, 2000), labels)
    logits = rng.normal(size=(2000, 10))
    logits[np.arange(2000), named] += 3 + 1.2 * member
    np.savez(path, logits=logits[None], labels=labels, member=member[None], split="bernoulli")


def test_limits_on_one_model_are_judged_by_the_attacks_of_its_headline_as_in_python(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    leaks_by_its_entropy("one.npz")
    limits = ["auc>0.65", "auc>0.8", "tpr@0.1>0.2", "tpr@0.02>0.9", "epsilon>0.3", "epsilon>4"]
    words = [word for limit in limits for word in ("--fail-if", limit)]
    status, _, result, _ = audited(capsys, "--logits", "one.npz", *SMALL, *words)
    alone = auditing.audit_outputs("one.npz", n_resamples=100, redraws=20)
    verdicts = alone.limits(limits)
    assert [one["sentence"] for one in result["verdicts"]] == [one.sentence for one in verdicts]
    assert [one.outcome == "exceeded" for one in verdicts] == [True, False] * 3
    assert status == 3 and "(the largest of 4 attacks, entropy" in verdicts[0].sentence
    assert result["headline"].startswith(alone.headline) and "(entropy)" in alone.headline
    told = {row["attack"] for row in result["attacks"]} - {"max"}
    assert told == {*alone.scores} and result["audited_bound"]["epsilon"] == verdicts[4].low


def test_limits_that_these_outputs_cannot_measure_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    outputs("small.npz", 0.0)
    assert main(["audit", "--logits", "small.npz", "--fail-if", "tpr@0.01>0.05"]) == 2
    assert "n0 = 200 non-members a model: 1,000 are needed" in capsys.readouterr().err
    outputs("few.npz", 0.0, models=4)
    assert main(["audit", "--logits", "few.npz", "--fail-if", "auc>0.6"]) == 2
    assert (
        "on 4 models (2 pairs): its interval over so few is too wide to decide"
        in capsys.readouterr().err
    )
    words = ["audit", "--model", "tinycnn", "--data", "digits", "--fail-if", "tpr@0.01>0.05"]
    assert main(words) == 2
    assert "n0 = 898 non-members a model: 1,000 are needed" in capsys.readouterr().err
    assert store.folders("results", "pool") == []  # before anything is trained


def test_an_own_builder_on_a_folder_of_images_is_trained_attacked_and_reported(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(BUILDER)
    rng = np.random.default_rng(0)
    for n in range(240):
        folder = tmp_path / "images" / f"kind{n % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 200, (8, 8, 3)) + 20 * (n % 3)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{n:03d}.jpg", quality=95)
    words = [
        "--model",
        "mine:mlp",
        "--data",
        "images",
        "--models",
        "6",
        "--epochs",
        "15",
        "-p",
        "lr=0.01",
        "-p",
        "shown=6",
    ]
    status, said, result, notebook = audited(capsys, *words, *SMALL, "--fail-if", "auc>0.6")
    assert status == 3, said
    assert result["models"]["gap"]["value"] > 0.1  # random pixels are learned by heart
    assert result["provenance"]["recipe"]["model"] == "mine:mlp" and result["provenance"]["pool"]
    assert result["data"] | {"digest": ""} == {
        "name": "images",
        "digest": "",
        "samples": 240,
        "classes": ["kind0", "kind1", "kind2"],
    }
    drawn = {
        cell["id"]
        for cell in notebook["cells"]
        for o in cell.get("outputs", [])
        if "image/png" in str(o.get("data"))
    }
    assert {"pictures", "thumbnails"} <= drawn
    assert (
        sum(
            MIME in o.get("data", {}) for cell in notebook["cells"] for o in cell.get("outputs", [])
        )
        == 1
    )
    pool = result["provenance"]["pool"]
    status, _, of_pool, _ = audited(capsys, "--pool", pool[:8], *SMALL, "--fail-if", "auc>0.6")
    assert status == 3 and of_pool["attacks"] == result["attacks"]
