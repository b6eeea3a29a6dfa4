"""One finished model: planted leaks and nulls at their stated error rates, any kind of model, twins
that go on after a kill, and errors of one line.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
import threading
from functools import partial
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from nbconvert.filters import markdown2html
from scipy.stats import binom, norm

import mia_nb
from mia_nb import auditing, metrics, store
from mia_nb.auditing import finished, sentences
from mia_nb.auditing.model_outputs import outputs
from mia_nb.auditing.samples import both_sides
from mia_nb.auditing.sentences import TWINS, VARIES
from mia_nb.auditing.twins import retrained_models
from mia_nb.cli import main, stored
from mia_nb.cli.audit import status

CLASSES = 4
HOWTO = (Path(__file__).parent.parent / "docs" / "howto" / "audit-your-model.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", HOWTO, re.DOTALL)


def planted(leak, n=200, seed=0):
    """(function, train, test): margins N(2, 1), of members shifted by `leak`; the first input is
    the number of the sample, which is random.
    """
    rng = np.random.default_rng(seed)
    number, y = rng.permutation(2 * n), np.tile(np.arange(CLASSES), n // 2)
    x = np.column_stack([number, rng.normal(size=(2 * n, 3))])
    table = np.zeros((2 * n, CLASSES))
    table[number, y] = 2 + rng.normal(size=2 * n) + leak * (np.arange(2 * n) < n)

    def logits(batch):
        return table[batch[:, 0].astype(int)]

    return logits, (x[:n], y[:n]), (x[n:], y[n:])


def quick(*args, **options):
    return auditing.audit_model(*args, **{"n_resamples": 30} | options)


@pytest.fixture(autouse=True)
def few_redraws(monkeypatch):
    monkeypatch.setattr(finished, "REDRAWS", 20)


# --------------------------------------------------------------------------------------------------
# planted truth


def test_a_planted_leak_is_said_with_sizes_and_what_twins_would_show():
    found = quick(*planted(1.5))
    assert found.verdict.outcome == "exceeded" and found.shift.passed
    assert found.text.startswith("The finished model gives members of its training data away")
    assert "(200 members, 200 non-members)" in found.text and TWINS in found.text
    assert list(found.table["attack"].unique()) == [*finished.ALONE, "attack_p", "max"]
    low, high = metrics.by_attack(found.table, "auc").loc["loss", ["low", "high"]]
    assert low < norm.cdf(1.5 / np.sqrt(2)) < high and found.twins is None


def test_a_model_without_a_leak_is_not_accused_and_not_acquitted():
    found = quick(*planted(0.0))
    assert found.verdict.outcome == "not established"
    assert "was not shown to give members" in found.text and "a stronger attack may" in found.text


def test_the_populations_threshold_has_the_false_positives_it_was_set_for():
    logits, train, test = planted(1.0, n=4000)
    found = quick(logits, train, test, n_resamples=2)
    accused = re.search(r"accuses ([\d.]+) % .* members and ([\d.]+) %", found.text)
    tpr = norm.sf(norm.isf(0.1) - 1.0)
    assert float(accused[1]) == pytest.approx(100 * tpr, abs=4)
    assert float(accused[2]) == pytest.approx(10, abs=3)


@pytest.mark.slow
def test_of_many_worlds_each_a_null_and_a_leak_are_told_at_the_stated_error_rates():
    """As many as a test can take: benchmarks/audits.py counts 400."""
    n = 200
    for leak, worlds in ((0.0, 60), (0.5, 25)):
        auc = norm.cdf(leak / np.sqrt(2))
        outcomes, covered = [], 0
        for seed in range(worlds):
            audit = quick(*planted(leak, n, seed), n_resamples=100)
            outcomes.append(audit.verdict.outcome)
            low, high = metrics.by_attack(audit.table, "auc").loc["loss", ["low", "high"]]
            covered += low <= auc <= high
        exceeded = outcomes.count("exceeded")
        assert covered >= binom.ppf(0.001, worlds, 0.95)
        if leak == 0:
            assert exceeded <= binom.ppf(0.999, worlds, 0.025)
        else:
            assert exceeded >= 0.85 * worlds


def test_a_shift_of_the_inputs_is_said_before_any_number():
    logits, (x1, y1), (x0, y0) = planted(1.5)
    x0[:, 1] += 2
    found = quick(logits, (x1, y1), (x0, y0))
    assert not found.shift.passed and found.verdict.outcome == "not established"
    assert found.text.startswith("What tells members from non-members here may be their distrib")
    assert "treats train and test differently" in found.text


# --------------------------------------------------------------------------------------------------
# one result, read in several ways


@pytest.fixture(scope="module")
def leaky():
    return quick(*planted(1.5))


def test_limits_are_judged_on_the_attacks_that_decided_and_what_cannot_be_measured_is_refused(
    leaky,
):
    over, under = leaky.limits(["auc>0.6", "tpr@0.1>0.9"])
    assert over.outcome == "exceeded" and under.outcome == "not exceeded"
    assert over.attacks == len(finished.ALONE) and leaky.limits([]) == []
    with pytest.raises(ValueError, match="10,000 are needed"):
        leaky.limits(["tpr@0.001>0.5"])
    with pytest.raises(ValueError, match="needs a fair coin"):
        leaky.limits(["epsilon>1"])


def test_a_doubt_about_the_samples_stands_before_every_limit_too():
    logits, (x1, y1), (x0, y0) = planted(1.5)
    x0[:, 1] += 2
    (verdict,) = quick(logits, (x1, y1), (x0, y0)).limits(["auc>0.6"])
    assert verdict.outcome == "not established" and "their distribution" in verdict.sentence


def test_the_record_is_strict_json_with_the_verdict_first_and_the_status_of_the_gate(leaky):
    record = json.loads(json.dumps(leaky.to_dict(["auc>0.6"]), allow_nan=False))
    assert record["headline"] == leaky.headline and record["schema"] == "mia_nb.audit/2"
    assert [verdict["outcome"] for verdict in record["verdicts"]] == ["exceeded"] * 2
    assert record["design"]["kind"] == "mask" and record["design"]["members"] == 200
    assert len(record["attacks"]) == len(leaky.table) and status(record)[0] == 3


def test_the_page_holds_headline_limits_picture_and_tables_and_asks_nothing_of_the_network(
    leaky, tmp_path
):
    path = leaky.report(tmp_path / "audit.html", fail_if=["auc>0.6"])
    page = path.read_text()
    assert "Members are given away" in page and "EXCEEDED" in page and "auc&gt;0.6" in page
    assert page.count('class="figure"') == 1 and "<h2>Attacks</h2>" in page
    assert "default-src 'none'" in page and not re.search(r'(src|href)="http', page)
    assert path.stat().st_size < 5e6
    assert len(leaky.plot().data) > 4


@pytest.mark.parametrize(
    ("leak", "shift", "step"),
    [
        (1.5, 0, sentences.WEIGH),
        (0.0, 0, sentences.RETRAIN),
        (1.5, 2, sentences.COMPARABLE),
    ],
)
def test_the_page_says_above_its_picture_what_to_do_next(leak, shift, step, tmp_path):
    logits, (x1, y1), (x0, y0) = planted(leak)
    x0[:, 1] += shift
    page = quick(logits, (x1, y1), (x0, y0)).report(tmp_path / "audit.html").read_text()
    above, _, _ = page.partition('class="plot"')
    steps = re.findall(r"<li>(.*?)</li>", above.partition("What to do next")[2])
    assert unescape(steps[0]) == step


@pytest.mark.parametrize("case", ["varies", "copies", "texts", "declared"])
def test_whoever_reads_the_page_the_card_or_the_record_reads_the_remarks_first(case, tmp_path):
    logits, (x1, y1), (x0, y0) = planted(0.5)
    arrays = {"logits": logits(np.concatenate([x1, x0]))[None], "labels": np.concatenate([y1, y0])}
    np.savez(tmp_path / "o.npz", **arrays, member=np.arange(400)[None] < 200, split="random")
    rng = np.random.default_rng(0)
    audits = {
        "varies": lambda: quick(
            lambda batch: logits(batch) + rng.normal(size=(len(batch), 4)), (x1, y1), (x0, y0)
        ),
        "copies": lambda: quick(logits, (x1, y1), (np.r_[x1[:9], x0[9:]], np.r_[y1[:9], y0[9:]])),
        "texts": lambda: quick(
            lambda batch: logits(np.array([[float(word)] for word in batch])),
            (x1[:, 0].astype(str), y1),
            (x0[:, 0].astype(str), y0),
        ),
        "declared": lambda: auditing.audit_outputs(tmp_path / "o.npz", n_resamples=30),
    }
    said = {
        "varies": VARIES,
        "copies": "9 of 200 samples of test are in train too",
        "texts": sentences.UNTESTED,
        "declared": "Assumed, as the file declares",
    }
    found = audits[case]()
    assert len(found.remarks) == 1 and found.remarks[0].startswith(said[case])
    first = " ".join([*found.remarks, found.headline])
    assert found.text.replace("\n", " ").startswith(first)
    assert found.to_dict()["headline"] == first
    for page in (found.report(tmp_path / "a.html").read_text(), markdown2html(found.model_card())):
        text = " ".join(re.sub("<[^>]+>", "", unescape(page)).split())
        at = [text.index(part) for part in (said[case], found.headline, "AUC")]
        assert at == sorted(at)


def test_what_could_not_be_decided_and_a_failed_control_come_before_other_steps(leaky):
    largest = metrics.by_attack(leaky.table, "auc").loc["max", "value"]
    (undecided,) = leaky.limits([f"auc>{largest:.3f}"])
    first, *more = sentences.next_steps("exceeded", verdicts=[undecided], retrained=True)
    assert first == f"Audit more samples: {undecided.limit} could not be decided."
    assert more[0] == sentences.WEIGH and sentences.RETRAIN not in more
    assert sentences.next_steps("exceeded", passed=False) == [sentences.NO_CONTROL]
    assert sentences.next_steps("not exceeded") == [sentences.SWAPPED]
    assert sentences.next_steps("not established", retrained=True) == [sentences.NO_GUARANTEE]


def test_a_limit_that_ties_leave_open_asks_for_no_more_samples_and_the_page_says_why(tmp_path):
    logits, train, test = planted(0.0)
    limits = ["tpr@0.1>0.2", "auc>0.5"]
    # seven in ten samples tie for the largest margin
    found = quick(lambda batch: np.minimum(logits(batch), 1.5), train, test)
    tied, wide = found.limits(limits)
    assert tied.outcome == wide.outcome == "not established" and tied.high < 0.2
    steps = sentences.next_steps("not established", verdicts=[tied, wide])
    assert steps[0] == "Audit more samples: auc>0.5 could not be decided."
    assert steps[1].startswith("Scores tie: state") and steps[1].endswith(
        ": tpr@0.1>0.2 could not be decided."
    )
    page = unescape(found.report(tmp_path / "a.html", fail_if=limits).read_text())
    assert tied.sentence in page and wide.sentence in page and steps[1] in page


def test_a_model_card_says_what_the_audit_found_and_holds_a_row_an_attack(leaky):
    card = leaky.model_card(["auc>0.6"])
    page = markdown2html(card)
    assert "Membership inference" in page.partition("</h2>")[0] and page.count("<p>") == 2
    text = unescape(re.sub("<[^>]+>", "", page))
    (limit,) = leaky.limits(["auc>0.6"])
    assert leaky.headline in text and limit.sentence in text
    attacks = leaky.views()["attacks"]
    assert page.count("<tr>") == 1 + len(attacks)
    assert all(name in text and attacks.loc[name, "AUC"] in text for name in attacks.index)


def test_metrics_are_finite_numbers_of_the_table_by_names_that_trackers_take(leaky):
    numbers = leaky.metrics()
    assert numbers.pop("p") == leaky.verdict.p
    assert all(type(number) is float and np.isfinite(number) for number in numbers.values())
    # what MLflow allows in a name
    assert all(re.fullmatch(r"[\w./-]+", name, re.ASCII) for name in numbers)
    auc = metrics.by_attack(leaky.table, "auc").loc["loss"]
    assert [numbers[f"loss/auc{end}"] for end in ("", "_low", "_high")] == [
        auc["value"],
        auc["low"],
        auc["high"],
    ]
    # 200 non-members cannot tell a rate at 0.1 % false positives
    assert "loss/tpr_at_0.1" in numbers and "loss/tpr_at_0.001" not in numbers


def test_outputs_alone_are_audited_as_the_model_that_gave_them(leaky, tmp_path):
    logits, (x1, y1), (x0, y0) = planted(1.5)
    arrays = {"logits": logits(np.concatenate([x1, x0]))[None], "labels": np.concatenate([y1, y0])}
    np.savez(tmp_path / "o.npz", **arrays, member=np.arange(400)[None] < 200, split="random")
    found = auditing.audit_outputs(tmp_path / "o.npz", n_resamples=30)
    assert found.headline == leaky.headline and found.table.equals(leaky.table)
    assert "Assumed, as the file declares" in found.text
    np.savez(tmp_path / "o.npz", **arrays, member=np.arange(400)[None] < 200)
    undeclared = auditing.audit_outputs(tmp_path / "o.npz", n_resamples=30)
    assert undeclared.verdict.outcome == "not established"
    other = np.random.default_rng(0).normal(size=arrays["logits"].shape) + arrays["logits"]
    arrays["logits"] = np.concatenate([arrays["logits"], other])
    np.savez(tmp_path / "two.npz", **arrays, member=[np.arange(400) < 200, np.arange(400) >= 200])
    with pytest.raises(ValueError, match="outputs of 2 models: wanted those of one"):
        auditing.audit_outputs(tmp_path / "two.npz")


# --------------------------------------------------------------------------------------------------
# classes and groups


def test_classes_and_groups_have_intervals_sizes_and_marks_and_none_is_dropped():
    logits, train, test = planted(1.5, n=240)
    rare = np.where(np.arange(480) % 120 == 0, "rare", "usual")
    names = ["ant", "bee", "cow", "dog"]
    found = quick(logits, train, test, classes=names, groups=rare)
    assert list(found.by_class.index) == names and (found.by_class["n1"] == 60).all()
    assert found.by_class["n0"].sum() == 240 and "tpr n/m" in found.by_class["remark"].iloc[0]
    assert (found.by_class["auc_low"] < found.by_class["auc"]).all()
    assert list(found.by_group.index) == ["rare", "usual"]
    assert found.by_group["remark"].tolist() == ["n/m", ""]
    assert np.isnan(found.by_group.loc["rare", "auc"]) and found.by_group.loc["rare", "n1"] == 2
    html = found._repr_html_()
    assert "NaN" not in html and "rare" in html and "n/m" in repr(found)


def test_a_class_that_leaks_alone_is_found():
    logits, (x1, y1), (x0, y0) = planted(0.0, n=400)

    def one(batch):
        known = np.isin(batch[:, 0], x1[y1 == 2, 0])
        return logits(batch) + 3 * known[:, None] * np.eye(CLASSES)[2]

    by_class = quick(one, (x1, y1), (x0, y0)).by_class
    assert by_class["auc"].idxmax() == "2" and by_class.loc["2", "auc_low"] > 0.9
    assert (by_class.drop("2")["auc_low"] < 0.5).all()
    assert by_class.index[by_class["above_low"] > 0].tolist() == ["2"]


def test_groups_of_another_number_than_samples_are_refused():
    scores = quick(*planted(0.0)).scores["loss"]
    with pytest.raises(ValueError, match=r"groups have shape \(3,\); wanted \(400,\)"):
        metrics.by_group(scores, [0, 1, 2])


# --------------------------------------------------------------------------------------------------
# any model, any data


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(6, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.Dropout(),
            torch.nn.Linear(8, 3),
        )

    def forward(self, x):
        return self.body(x)


def test_a_torch_module_is_queried_in_evaluation_mode_and_left_as_it_was():
    torch.manual_seed(0)
    net, x, y = Net(), torch.randn(60, 6), torch.arange(60) % 3
    net.body[1].eval()
    modes = [part.training for part in net.modules()]
    sets = [torch.utils.data.TensorDataset(x[part], y[part]) for part in (slice(30), slice(30, 60))]
    found = quick(net, *sets)
    assert [part.training for part in net.modules()] == modes and VARIES not in found.text
    with torch.no_grad():
        wanted = net.eval()(x).double()
    signals = mia_nb.Signals.from_logits(wanted[None].numpy(), y.numpy())
    assert np.allclose(found.signals.margin, signals.margin, atol=1e-5)
    assert np.allclose(outputs(net.double(), x.numpy(), batch=7), wanted, atol=1e-5)


@pytest.mark.parametrize("device", ["gpu", "cuda", "cuda:x", 7])
def test_a_device_that_is_not_there_is_refused_in_a_line(device):
    if device in ("cuda", 7) and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    train, test = [(np.zeros((30, 6), np.float32), np.arange(30) % 3) for _ in range(2)]
    train[0][:] += np.arange(30)[:, None]
    with pytest.raises(
        ValueError, match=f"device='?{device}'?: the model cannot be moved"
    ) as error:
        mia_nb.audit(Net(), train, test, device=device)
    assert "\n" not in str(error.value)


def test_doubles_halves_records_with_logits_and_whole_numbers_reach_a_module():
    class Embedded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(20, 3)

        def forward(self, tokens):
            return type("Output", (), {"logits": self.table(tokens).mean(1).bfloat16()})()

    tokens = np.random.default_rng(0).integers(0, 20, (12, 5))
    logits = outputs(Embedded(), tokens, batch=5)
    assert logits.shape == (12, 3) and logits.dtype == np.float32


def test_what_a_function_gets_is_slices_of_what_was_given_and_order_does_not_matter():
    logits, train, test = planted(1.0)
    seen = []

    def recording(batch):
        seen.append(batch)
        return logits(batch)

    found = quick(recording, train, test, batch=64)
    assert all(isinstance(one, np.ndarray) and one.shape[1:] == (4,) for one in seen)
    assert {len(one) for one in seen} == {64, 16, 32}
    assert np.array_equal(found.signals.margin, quick(logits, train, test).signals.margin)


def test_texts_and_ragged_samples_are_answered_and_one_source_is_assumed():
    y = np.arange(80) % 2
    texts = [f"{'good' if label else 'bad'} text {n}" for n, label in enumerate(y)]

    def sentiment(batch):
        assert isinstance(batch[0], str)
        good = np.array([text.startswith("good") for text in batch])
        length = np.array([len(text) for text in batch])
        return np.stack([0.1 * length - 3 * good, 3.0 * good], 1)

    found = quick(sentiment, (texts[:40], y[:40]), (texts[40:], y[40:]))
    assert "one source is assumed" in found.text and "raw inputs are no numbers" in found.shift.note
    rows = [n + np.arange(2 + n % 3) for n in range(80)]

    def length(batch):
        size = np.array([len(row) + row.sum() for row in batch])
        return np.stack([size, 2.0 - size], 1)

    assert quick(length, (rows[:40], y[:40]), (rows[40:], y[40:])).signals.shape == (1, 1, 80)


def test_missing_numbers_in_a_table_stop_nothing():
    logits, (x1, y1), test = planted(0.0)
    x1[::7, 2] = np.nan
    assert quick(logits, (x1, y1), test).verdict.n1 == 200


def test_a_function_that_answers_by_its_batch_or_by_chance_is_named_first():
    logits, train, test = planted(0.0)
    rng = np.random.default_rng(0)
    found = quick(
        lambda batch: logits(batch) + rng.normal(size=(len(batch), 1)) * [1, 0, 0, 0], train, test
    )
    assert found.text.startswith(VARIES)


# --------------------------------------------------------------------------------------------------
# references and twins


def memorising(images, labels, seed):
    """Logits that know what they were fitted to."""
    rng = np.random.default_rng(seed)
    seen, noise = set(images[:, 0]), rng.normal(size=(4000, CLASSES))

    def logits(batch):
        number = batch[:, 0].astype(int)
        right = np.eye(CLASSES)[(7 * number) % CLASSES]
        known = np.array([one in seen for one in batch[:, 0]])
        return 0.7 * noise[number] + (2 + number % 5 + 1.5 * known)[:, None] * right

    return logits


def numbered(n, seed=0):
    rng = np.random.default_rng(seed)
    number = rng.permutation(2 * n)
    x, y = np.column_stack([number, rng.normal(size=(2 * n, 2))]), (7 * number) % CLASSES
    return (x[:n], y[:n]), (x[n:], y[n:])


def test_references_with_masks_find_more_than_the_model_alone():
    train, test = numbered(100)
    x, y = (np.concatenate(part) for part in zip(train, test, strict=True))
    masks = np.random.default_rng(1).random((8, 200)) < 0.5
    given = [(memorising(x[row], y[row], m), row) for m, row in enumerate(masks)]
    model = memorising(*train, 99)
    alone, found = quick(model, train, test), quick(model, train, test, references=given)
    auc = metrics.by_attack(found.table, "auc")["value"]
    assert list(auc.index)[:2] == ["rmia", "nig"] and found.verdict.outcome == "exceeded"
    assert auc["rmia"] > metrics.by_attack(alone.table, "auc")["value"].max()
    assert "Compared with 8 models" in found.text and TWINS not in found.text
    assert found.verdict.n1 == found.verdict.n0 == 100 and found.self_test.passed
    # the record says with how many, and is still about one model
    design = found.to_dict(["auc>0.6"])["design"]
    k = int(np.median(np.minimum(masks.sum(0), 8 - masks.sum(0))))
    assert (design["models"], design["kind"], design["references"]) == (1, "mask", k)
    assert f"{k} models with and {k} without each sample to compare with" in design["words"]
    assert "no model to compare with" in alone.to_dict()["design"]["words"]


def halves(x, y, mask, seed):
    """References on a half and on the others, each with its mask."""
    return [(memorising(x[m], y[m], seed + n), m) for n, m in enumerate((mask, ~mask))]


@pytest.mark.parametrize("more", ["alone", "beside the finished model's own split"])
def test_two_references_on_complementary_halves_serve(more):
    (x1, y1), (x0, y0) = numbered(200)
    x, y = np.concatenate([x1, x0]), np.concatenate([y1, y0])
    model = memorising(x1, y1, 9)
    mask = np.random.default_rng(1).permutation(400) < 200
    references = halves(x, y, mask, 3)
    if more != "alone":
        references += halves(x, y, np.arange(400) < 200, 5)
    found = quick(model, (x1, y1), (x0, y0), references=references)
    assert "Compared with 2 models trained on 200 samples" in found.text
    assert "(1 with and 1 without the typical sample" in found.text
    assert found.self_test.passed and np.isfinite(found.self_test.table.query("p == p").value).all()
    # the mean of a reference with and one without each sample, by hand
    margins = found.signals.margin[:3, 0]
    area = metrics.auc(margins[0] - margins[1:].mean(0), np.arange(400) < 200)
    assert metrics.by_attack(found.table, "auc").loc["max", "value"] > 0.95 * area > 0.6


def test_references_of_the_finished_models_own_split_alone_are_refused():
    (x1, y1), (x0, y0) = numbered(20)
    x, y = np.concatenate([x1, x0]), np.concatenate([y1, y0])
    own = halves(x, y, np.arange(40) < 20, 5)
    for references in (own, own[:1]):
        fails(
            f"each of the {len(references)} references was trained on exactly .*mia-nb plan",
            *(memorising(x1, y1, 9), (x1, y1), (x0, y0)),
            references=references,
        )


def test_twins_are_made_from_complementary_halves_and_attacked_in_turn(tmp_path):
    train, test = numbered(60)
    found = quick(memorising(*train, 9), train, test, retrain=memorising, models=6, root=tmp_path)
    member = found.signals.member
    assert (member[0] == (np.arange(120) < 60)).all()
    assert (member[1::2] != member[2::2]).all() and (member[1:].sum(1) == 60).all()
    for table, sizes in ((found.twins.table, [6, 2]), (found.table, [1, 3])):
        row = metrics.by_attack(table, "auc").loc["rmia"]
        assert row[["targets", "references"]].tolist() == sizes
    assert found.twins.verdict.outcome == "exceeded" and "6 retrained models" in found.text
    assert found.shift is not None and len(found.twins.by_class) == CLASSES


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_model_that_was_missing(tmp_path):
    train, test = numbered(60)
    called, model = [], memorising(*train, 9)

    def stopping(images, labels, seed):
        called.append(seed)
        if len(called) == 3:
            raise KeyboardInterrupt
        return memorising(images, labels, seed)

    # what it appends to `called` would make it another training each time
    options = {"retrain": stopping, "key": "stopping", "models": 4, "root": tmp_path}
    for _ in range(2):
        try:
            found = quick(model, train, test, **options)
        except KeyboardInterrupt:
            assert called == [0, 1, 2]
    assert called == [0, 1, 2, 2, 3]
    quick(model, train, test, **options)
    assert len(called) == 5 and found.twins is not None
    (folder,) = store.folders(tmp_path)
    twins = store.load_signals(folder)
    assert stored.status(folder) == "done"
    assert np.array_equal(twins.margin, found.twins.signals.margin)
    (folder.path / "logits_001.npy").write_bytes(b"damaged")
    x, y = joined(train, test)

    def again(seed):
        query = partial(outputs, x=x)
        return [*retrained_models(stopping, x, y, 4, tmp_path, seed, query, "stopping")]

    again(0)
    assert called[5:] == [1]
    again(1)
    assert called[6:] == [1, 2, 3, 4] and len(store.folders(tmp_path)) == 2


def calls_in(folder):
    """A recorder that a training function may hold: its path stays what it is."""
    folder.mkdir()

    def called(what):
        (folder / f"{len(list(folder.iterdir())):04d}-{what}").touch()

    return called, lambda: [path.name.split("-", 1)[1] for path in sorted(folder.iterdir())]


def joined(train, test):
    """Inputs and labels of both sides."""
    return [np.concatenate(part) for part in zip(train, test, strict=True)]


def twins_of(retrain, x, y, root):
    """(mask, logits) of four twins: the part of an audit that trains and keeps them."""
    return [*retrained_models(retrain, x, y, 4, root, 0, lambda model: outputs(model, x))]


def test_another_training_function_or_other_bound_arguments_are_another_result(tmp_path):
    x, y = joined(*numbered(20))
    called, calls = calls_in(tmp_path / "calls")

    def bound(images, labels, seed, power):
        called(power)
        return memorising(images, labels, seed)

    typed = {"memorising": memorising}
    exec("def typed(images, labels, seed): return memorising(images, labels, seed)", typed)
    ways = [
        partial(bound, power=1),
        partial(bound, power=2),
        typed["typed"],
        partial(bound, power=1),
    ]
    root = tmp_path / "results"
    for count, way in enumerate(ways, 1):
        assert len(twins_of(way, x, y, root)) == 4 and len(store.folders(root)) == min(count, 3)
    assert calls() == ["1"] * 4 + ["2"] * 4


WEIGHTS = {"C": 1.0}


def test_twins_of_another_closure_global_object_or_class_are_trained_anew(tmp_path):
    x, y = joined(*numbered(20))
    called, calls = calls_in(tmp_path / "calls")

    def closure(C):
        def retrain(images, labels, seed):
            called("closure")
            return memorising(images, labels, seed + C)

        return retrain

    class Trainer:
        def __init__(self, C):
            self.C = C

        def __call__(self, images, labels, seed):
            called("object")
            return memorising(images, labels, seed + self.C)

    def world(images, labels, seed):
        called("world")
        return memorising(images, labels, seed + int(WEIGHTS["C"]))

    def counted(retrain):
        before = len(calls())
        twins_of(retrain, x, y, tmp_path / "r")
        return len(calls()) - before

    assert [counted(closure(C)) for C in (1, 2, 1)] == [4, 4, 0]
    assert [counted(Trainer(C)) for C in (1, 2, 1)] == [4, 4, 0]
    assert [counted(Trainer(C).__call__) for C in (1, 2, 1)] == [4, 4, 0]
    first = counted(world)
    WEIGHTS["C"] = 2.0
    second = counted(world)
    WEIGHTS["C"] = 1.0
    assert [first, second, counted(world)] == [4, 4, 0]


@pytest.mark.parametrize("kind", ["ragged", "texts", "objects", "tables of words"])
def test_twins_of_data_that_differ_where_nothing_is_printed_are_trained_anew(tmp_path, kind):
    y = np.arange(40) % 2
    called, calls = calls_in(tmp_path / "calls")

    def samples(change):
        if kind == "texts":
            return [f"{n}" + "a" * 2000 + change * "b" for n in range(40)]
        if kind == "tables of words":
            words = np.array([[f"word {n}", float(n)] for n in range(40)], object)
            words[20, 1] += change * 1e-9
            return words
        rows = [np.full(1500 + (kind == "ragged") * (n % 3), float(n)) for n in range(40)]
        rows[20][700] += change * 1e-9
        held = np.empty(40, object)
        held[:] = rows
        return held if kind == "objects" else rows

    def model(seed):
        def logits(batch):
            kinds = np.array(
                [int(hashlib.md5(pickle.dumps(row)).hexdigest()[:6], 16) for row in batch]
            )
            return np.stack([kinds % (7 + seed), 3.0 - kinds % (5 + seed)], 1)

        return logits

    def retrain(images, labels, seed):
        called("trained")
        return model(seed)

    counts = []
    for change in (0, 1, 0):
        x = samples(change)
        both = both_sides((x[:20], y[:20]), (x[20:], y[20:]))[0]
        twins_of(retrain, both, y, tmp_path / "results")
        counts.append(len(calls()))
    assert counts == [4, 8, 8]


@pytest.mark.slow
def test_a_training_that_cannot_be_compared_wants_a_name_and_then_keeps_its_twins(tmp_path):
    train, test = numbered(20)
    called, calls = calls_in(tmp_path / "calls")
    lock = threading.Lock()

    def guarded(images, labels, seed):
        with lock:
            called("trained")
            return memorising(images, labels, seed)

    options = {"retrain": guarded, "models": 4, "root": tmp_path / "results"}
    fails(r"`lock` is a _thread.lock, .*pass key=", memorising(*train, 9), train, test, **options)
    for count, key in enumerate(("one", "two", "one")):
        quick(memorising(*train, 9), train, test, **options, key=key)
        assert len(calls()) == min(4 * (count + 1), 8)
    fails("leave it out without retrain", memorising(*train, 9), train, test, key="one")
    fails('key="": wanted a name', memorising(*train, 9), train, test, **options, key="")


# --------------------------------------------------------------------------------------------------
# copies


def people(n, seed=0):
    rng = np.random.default_rng(seed)
    ages = rng.normal(40, 10, n).round(6)
    number = range(1000 * seed, 1000 * seed + n)
    return pd.DataFrame({"age": ages, "job": rng.choice(["nurse", "cook"], n), "number": number})


def by_label(batch):
    length = np.array([len(str(row)) for row in batch], float)
    return np.stack([length % 7, 3 - length % 5], 1)


@pytest.mark.parametrize("form", ["mixed table", "texts", "ragged"])
def test_samples_of_test_that_are_in_train_are_found_in_objects_too(form):
    y = np.arange(60) % 2

    def rows(table):
        if form == "texts":
            return [" ".join(map(str, row)) for row in table.itertuples(index=False)]
        if form == "ragged":
            return [np.full(2 + n % 3, age) for n, age in enumerate(table["age"])]
        return table.to_numpy(object)

    table = people(60)
    x1, x0 = rows(table), rows(table.copy(deep=True))
    fails("60 of 60 samples of test are in train too", by_label, (x1, y), (x0, y))
    others = rows(people(60, seed=1))
    half = [*x0[:6], *others[6:]]
    text = quick(
        by_label, (x1, y), (half if form in ("texts", "ragged") else np.array(half), y)
    ).text
    assert "6 of 60 samples of test are in train too" in text
    assert "in train too" not in quick(by_label, (x1, y), (others, y)).text


def test_a_shift_of_the_finished_model_is_no_doubt_about_its_twins(tmp_path):
    train, (x0, y0) = numbered(60)
    x0[:, 1] += 3
    found = quick(
        memorising(*train, 9), train, (x0, y0), retrain=memorising, models=8, root=tmp_path
    )
    assert found.verdict.outcome == "not established" and found.twins.verdict.outcome == "exceeded"


# --------------------------------------------------------------------------------------------------
# what is wrong, in a line


def fails(message, *args, **options):
    with pytest.raises(ValueError, match=message) as error:
        quick(*args, **options)
    assert "\n" not in str(error.value)


def test_models_that_are_none_are_refused_in_a_line():
    logits, train, test = planted(0.0)
    fails(
        "of scikit-learn the estimator itself",
        "a name",
        train,
        test,
    )
    fails(
        "probabilities were passed; pass logits",
        lambda b: np.full((len(b), 4), 0.25) + np.eye(4)[b[:, 0].astype(int) % 4] * 0.3 - 0.075,
        train,
        test,
    )
    fails(
        "non-finite output for sample",
        lambda b: np.log(np.eye(4)[b[:, 0].astype(int) % 4] + 0 * logits(b)),
        train,
        test,
    )
    fails("labels run from 0 to 3; the model has classes 0..1", lambda b: b[:, 1], train, test)
    fails(r"fails on a batch \(400, 4\) of float64: KeyError: 'x'", lambda b: {}["x"], train, test)
    net = torch.nn.Linear(3, 4)
    fails(r"fails on a batch .*RuntimeError: mat1 and mat2", net, train, test)


def test_data_that_do_not_fit_are_refused_in_a_line():
    logits, (x1, y1), (x0, y0) = planted(0.0)
    test = (x0, y0)
    fails("train cannot be read .*a data set whose", logits, iter([]), test)
    fails("train cannot be read", logits, x1, test)
    fails("test has .* 200, .*wanted as many|test has .*200.*150", logits, (x1, y1), (x0, y0[:150]))
    fails("labels of shape", logits, (x1, np.eye(4)[y1]), test)
    for odd in (np.linspace(0.5, 3.5, 200), np.where(y1 == 1, np.nan, y1)):
        fails("labels that are no whole numbers.*a regression", logits, (x1, odd), test)
        fails("test has .* labels that are no whole numbers", logits, (x1, y1), (x0, [*odd]))
    fails(r"labels of shape \(\)", logits, (x1, 5), test)
    fails("one shape", logits, (x1[:, :3], y1), test)
    fails(r"labels .*np\.unique", logits, (x1, y1.astype(str)), (x0, y0.astype(str)))
    fails("the logits have 4, so wanted", logits, (x1, y1), test, classes=["a", "b"])
    fails(r"groups have shape \(3,\)", logits, (x1, y1), test, groups=[1, 2, 3])
    fails(
        r"3 members \(train\) and 200 non-members \(test\): wanted at least 5",
        logits,
        (x1[:3], y1[:3]),
        test,
    )


def test_references_and_twins_that_do_not_fit_are_refused_in_a_line(tmp_path):
    logits, train, test = planted(0.0)
    fails("give one", logits, train, test, references=[1], retrain=print)
    fails("wanted a function", logits, train, test, retrain=3)
    fails("models=5: wanted an even number", logits, train, test, retrain=print, models=5)
    fails(r"references hold 1; wanted \(model, mask\)", logits, train, test, references=[1])
    for nothing in ([], (), iter([])):
        fails(r"references=\[\]: wanted \(model, mask\)", logits, train, test, references=nothing)
    fails("give one", logits, train, test, references=[], retrain=print)
    fails("mask of a reference has shape", logits, train, test, references=[(logits, [True])])
    mask = np.arange(400) % 2 == 0
    other = planted(0.5, seed=1)[0]
    fails("without a model on one side", logits, train, test, references=[(other, mask)])
    fails("model=None", logits, train, test, retrain=lambda *_: None, root=tmp_path)


def test_samples_on_both_sides_are_counted_first_and_refused_where_they_are_all():
    logits, (x1, y1), (x0, y0) = planted(1.0)
    fails("200 of 200 samples of test are in train too", logits, (x1, y1), (x1, y1))
    mixed = (np.concatenate([x1[:20], x0[20:]]), np.concatenate([y1[:20], y0[20:]]))
    told = quick(logits, (x1, y1), mixed).text
    assert told.startswith("20 of 200 samples of test are in train too, which hides a leak: take")
    few = (np.concatenate([x1[:1], x0[1:]]), np.concatenate([y1[:1], y0[1:]]))
    assert "in train too" not in quick(logits, (x1, y1), few).text
    other = (x1, (y1 + 1) % CLASSES)  # of another class: no copies
    assert "in train too" not in quick(logits, (x1, y1), other).text


def test_of_a_model_whose_training_is_unknown_no_change_of_it_is_recommended(leaky):
    assert (
        leaky.verdict.outcome == "exceeded"
        and "page Results of the documentation shows" in leaky.text
    )
    assert "augmentation" not in leaky.text
    assert "page Results" not in quick(*planted(0.0)).text


def test_the_logarithm_of_zero_says_how_to_clip():
    _, train, test = planted(0.0)

    def forest(batch):
        votes = np.eye(CLASSES)[batch[:, 0].astype(int) % CLASSES]
        with np.errstate(divide="ignore"):
            return np.log(votes)

    fails("logarithm of 0 .clip probabilities first", forest, train, test)


# --------------------------------------------------------------------------------------------------
# trained elsewhere


def test_a_plan_and_what_its_models_put_out_become_a_file_that_is_read(tmp_path, capsys):
    path = tmp_path / "plan"
    assert (
        main(["plan", "--samples", "60", "--models", "4", "--seed", "3", "--out", str(path)]) == 0
    )
    assert "train model m on" in capsys.readouterr().out
    member = np.load(path)["member"]
    assert member.shape == (4, 60) and (member[0] != member[1]).all()
    assert np.array_equal(
        np.load(auditing.plan(60, 4, seed=3, out=tmp_path / "p"))["member"], member
    )
    rng, y = np.random.default_rng(0), np.arange(60) % 3
    logits = rng.normal(size=(4, 60, 3)) + 2 * np.eye(3)[y]
    np.save(tmp_path / "0.npy", logits[0])
    np.save(tmp_path / "1.npy", logits[1])
    given = [tmp_path / "0.npy", str(tmp_path / "1.npy"), logits[2], torch.from_numpy(logits[3])]
    found = auditing.read_outputs(auditing.collect(path, given, y, out=tmp_path / "outputs.npz"))
    assert np.array_equal(found.signals.member, member) and found.signals.info["split"] == "pairs"
    assert np.array_equal(found.signals.margin, mia_nb.Signals.from_logits(logits, y).margin)


@pytest.mark.parametrize("other", ["samples", "models", "seed", "a text", "an .npz", "a folder"])
def test_a_plan_is_not_written_over_another_or_over_any_other_file(tmp_path, other):
    path = tmp_path / "plan.npz"
    drawn = {"samples": 40, "models": 4, "seed": 0}
    if other in drawn:
        auditing.plan(**drawn | {other: drawn[other] + 2}, out=path)
    elif other == "a folder":
        path.mkdir()
    elif other == "a text":
        path.write_text("results")
    else:
        np.savez(path, logits=np.zeros(3))
    before = None if path.is_dir() else path.read_bytes()
    with pytest.raises(
        ValueError, match=r"plan\.npz is there and is not this plan; .* another name"
    ):
        auditing.plan(**drawn, out=path)
    assert path.is_dir() or path.read_bytes() == before
    again = auditing.plan(**drawn, out=tmp_path / "other.npz")
    assert auditing.plan(**drawn, out=again) == again


def test_what_cannot_be_collected_is_said_in_a_line_and_nothing_is_written(tmp_path):
    rng, y, out = np.random.default_rng(0), np.arange(40) % 2, tmp_path / "outputs.npz"
    plan = auditing.plan(40, 4, out=tmp_path / "plan.npz")
    logits = rng.normal(size=(4, 40, 2))
    (tmp_path / "bad.npy").write_text("no array")
    for message, given in {
        r"logits \(3, 40, 2\), .*member \(4, 40\) do not fit together": logits[:3],
        "wanted a list, with an entry for each model": str(tmp_path / "*.npy"),
        "must have the same shape": [*logits[:3], logits[3, :20]],
        "bad.npy: wanted .npy": [*logits[:3], tmp_path / "bad.npy"],
        "plan.npz: wanted .npy": [*logits[:3], plan],
        "gave the same outputs": [*logits[:3], logits[0]],
        "probabilities were passed": np.exp(logits) / np.exp(logits).sum(2, keepdims=True),
    }.items():
        with pytest.raises(ValueError, match=message):
            auditing.collect(plan, given, y, out=out)
    with pytest.raises(ValueError, match="does not exist"):
        auditing.collect(tmp_path / "none.npz", logits, y, out=out)
    assert not out.exists()


# --------------------------------------------------------------------------------------------------
# weights on the command line


def test_weights_become_outputs_that_the_audit_reads(tmp_path, monkeypatch, capsys):
    from safetensors.torch import save_file

    from mia_nb import data, models
    from mia_nb.cli import run

    monkeypatch.chdir(tmp_path)
    images = data.load("synthetic:n=80,size=8,channels=1,classes=3")
    seen = np.arange(80) < 40
    np.save("member.npy", seen)
    net = models.build("tinycnn", in_channels=1, num_classes=3, size=8, seed=5)
    save_file(net.state_dict(), "own.safetensors")
    torch.save(net.state_dict(), "own.pt")
    planned = []

    def stop(name, steps, *args, **options):
        planned.append(steps[0].parameters["logits"])
        raise run.Failed("stopped here")

    monkeypatch.setattr(run, "run", stop)
    with torch.no_grad():
        wanted = net.eval()(data.normalise(images.x, images.mean, images.std)).numpy()
    words = ["audit", "--model", "tinycnn", "--data", "synthetic:n=80,size=8,channels=1,classes=3"]
    for file in ("own.safetensors", "own.pt"):
        assert main([*words, "--weights", file, "--member", "member.npy"]) == 1
        found = auditing.read_outputs(planned.pop())
        wants = mia_nb.Signals.from_logits(wanted[None], images.y.numpy())
        assert np.allclose(found.signals.margin, wants.margin, atol=1e-4)
        assert np.array_equal(found.signals.member[0], seen) and found.images.shape == (80, 1, 8, 8)
    builder = (
        "import torch\nfrom mia_nb.models.cnn import TinyCNN\ndef net(): return TinyCNN(1, 3)\n"
    )
    (tmp_path / "net_of_this_folder.py").write_text(builder)
    words[2] = "net_of_this_folder:net"  # a builder beside the user, as notebooks find it
    capsys.readouterr()
    assert main([*words, "--weights", "own.pt", "--member", "member.npy"]) == 1
    assert "stopped here" in capsys.readouterr().err
    words[2] = "tinycnn"
    for more, says in {
        ("--weights", "own.pt"): "--weights needs --member too",
        ("--member", "member.npy"): "--member is for --weights",
        ("--weights", "member.npy", "--member", "member.npy"): "do not fit tinycnn",
        ("--weights", "none.pt", "--member", "member.npy"): "--weights none.pt: no such file",
        ("--weights", "own.pt", "--member", "none.npy"): "none.npy: wanted .npy",
    }.items():
        assert main([*words, *more]) == 2 and says in capsys.readouterr().err


def test_weights_of_one_name_share_no_file_and_a_link_in_its_place_is_not_written_through(
    tmp_path, monkeypatch
):
    from mia_nb import models
    from mia_nb.cli import run

    monkeypatch.chdir(tmp_path)
    np.save("member.npy", np.arange(80) % 2 == 0)
    for seed, folder in enumerate(("a", "b")):
        os.mkdir(folder)
        net = models.build("tinycnn", in_channels=1, num_classes=3, size=8, seed=seed)
        torch.save(net.state_dict(), f"{folder}/model.pt")
    planned = []

    def stop(name, steps, *args, **options):
        planned.append(steps[0].parameters["logits"])
        raise run.Failed("stopped here")

    monkeypatch.setattr(run, "run", stop)
    words = ["audit", "--model", "tinycnn", "--data", "synthetic:n=80,size=8,channels=1,classes=3"]
    words += ["--member", "member.npy"]
    for folder in ("a", "b", "a"):
        assert main([*words, "--weights", f"{folder}/model.pt"]) == 1
    first, second, again = map(Path, planned)
    assert first == again != second and "a_model" in first.name and "b_model" in second.name
    content = first.read_bytes()
    assert content != second.read_bytes()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    first.unlink()
    first.symlink_to(victim)
    assert main([*words, "--weights", "a/model.pt"]) == 1
    assert victim.read_text() == "precious" and not first.is_symlink()
    assert first.read_bytes() == content  # the same run, whatever lay there
    assert {path.name for path in Path("results").iterdir()} == {first.name, second.name}


@pytest.mark.slow
def test_two_audits_at_once_of_weights_of_one_name_each_judge_their_own(
    tmp_path, monkeypatch, capsys
):
    from mia_nb import data, models

    monkeypatch.chdir(tmp_path)
    images = data.load("digits")
    member = np.arange(len(images.y)) % 2 == 0
    np.save("member.npy", member)
    x = data.normalise(images.x, images.mean, images.std)
    for folder, steps in (("a", 40), ("b", 3)):
        os.mkdir(folder)
        net = models.build("tinycnn", in_channels=1, num_classes=10, size=8, seed=0)
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[member]), images.y[member]).backward()
            optimizer.step()
        torch.save(net.state_dict(), f"{folder}/model.pt")

    def command(folder, results):
        words = ["audit", "--weights", f"{folder}/model.pt", "--model", "tinycnn"]
        words += ["--data", "digits", "--member", "member.npy", "--results", results]
        return [*words, "-p", "n_resamples=50", "-p", "control_resamples=5"]

    def start(folder, results):
        words = [sys.executable, "-m", "mia_nb.cli", *command(folder, results)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def headline(out):
        return next(line for line in out.splitlines() if line.startswith("The finished model"))

    def ended(process):
        out, err = process.communicate()
        assert process.returncode in (0, 1), err
        return headline(out)

    alone = []
    for folder in "ab":
        assert main(command(folder, f"alone_{folder}")) in (0, 1)
        alone.append(headline(capsys.readouterr().out))
    assert alone[0] != alone[1]
    at_once = [start(folder, "both") for folder in "ab"]
    assert [ended(process) for process in at_once] == alone


# --------------------------------------------------------------------------------------------------
# examples


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_the_how_tos_examples_run_as_they_stand(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = SNIPPETS[number - 1] if "import" not in SNIPPETS[number] else ""
    code = before + SNIPPETS[number]  # one without imports goes on from the one before it
    exec(compile(code, f"snippet {number}", "exec"), {"__name__": "snippet"})
    said = capsys.readouterr().out
    assert "The finished model" in said or "(4, 1, 200)" in said


def test_the_how_to_shows_all_kinds_of_models():
    assert len(SNIPPETS) == 8


class Transposing(torch.nn.Module):
    """A network of events with samples first, around one with time first."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.transpose(0, 1))


@pytest.mark.parametrize("batch", [4, 10])
def test_event_frames_are_never_taken_for_time_steps_in_silence_and_the_named_option_works(batch):
    from mia_nb.models import snn

    torch.manual_seed(0)
    layers = (torch.nn.Flatten(), torch.nn.Linear(50, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    net = snn.spiking(torch.nn.Sequential(*layers), 4, theta=0.3).eval()
    frames = np.random.default_rng(0).poisson(0.5, (20, 4, 2, 5, 5)).astype(np.float32)
    with torch.no_grad():
        expected = net(torch.from_numpy(frames).transpose(0, 1)).numpy()
    # four samples of four time steps fit either way
    with pytest.raises(ValueError, match="axis 0 is time; of events samples first") as caught:
        outputs(net, frames, batch=batch)
    assert "set time_axis=1 of the network" in str(caught.value)
    np.testing.assert_allclose(outputs(Transposing(net), frames, batch=batch), expected, atol=1e-5)
    net.time_axis = 1
    np.testing.assert_allclose(outputs(net, frames, batch=batch), expected, atol=1e-5)
    labels = np.arange(20) % 3
    audit = mia_nb.audit(
        net, (frames[:10], labels[:10]), (frames[10:], labels[10:]), n_resamples=20
    )
    assert audit.text
