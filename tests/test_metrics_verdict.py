"""A result in words: what is resolved, what is not, and what to do."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from test_examples import make

from mia_nb import metrics
from mia_nb.attacks import score
from mia_nb.metrics.verdict import verdict


def said(models=8, samples=2400, leak=0.6, names=("rmia", "loss"), **options):
    signals = make(models, samples, leak=leak)
    scores = {name: score(name, signals) for name in names}
    return verdict(scores, n_resamples=50, **options), scores


def test_a_leak_is_said_with_its_interval_its_rate_and_what_a_reader_may_conclude():
    result, scores = said(about="ten classes")
    assert result.title == "ten classes: members can be told from non-members"
    text = str(result)
    row = metrics.summary(scores, (0.01,), n_resamples=50).loc["rmia"]
    low, high = (100 * row[f"tpr@0.01_{end}"] for end in ("low", "high"))
    assert "At 1 % false positives the strongest of 2 attacks (RMIA, picked afterwards)" in text
    assert f"{low:.1f} % to {high:.1f} %" in text and "times chance" in text
    share = 0.01 * row["tpr@0.01"] / (0.01 * row["tpr@0.01"] + 0.99 * 0.01)
    assert f"{100 * share:.1f} % of those it accuses are members" in text
    assert "Not measurable with 1,200 non-members: false positive rates of 0.1 %" in text
    assert "reference models on each side: 3" in text
    assert "was not run" in text and "Run the negative control." in text


def test_where_nothing_leaks_nothing_is_claimed_and_nothing_is_promised():
    result, _ = said(leak=0)
    assert result.title == "no attack is resolved from guessing"
    assert "not resolved from chance" in str(result) and "no guarantee" in str(result)
    assert "times chance" not in str(result) and "those it accuses" not in str(result)


def test_few_non_members_leave_the_auc_alone():
    result, _ = said(2, 120, leak=1, names=("loss",))
    assert "The loss threshold scores a random member above" in result.sentences[0]
    assert "Train at least 4 models" in str(result)
    assert (
        "Not measurable with 60 non-members: false positive rates of 0.1 % (needs 10,000)"
        in str(result)
    )


def test_a_failed_negative_control_stands_in_the_title():
    signals = make()
    control = metrics.self_test(signals, ["loss"], n_resamples=5)
    broken = control._replace(passed=False)
    result = verdict({"loss": score("loss", signals)}, self_test=broken, n_resamples=20)
    assert result.title == "do not use: the negative control failed"
    assert "FAILED" in str(result) and result.next[0].startswith("Find out why")


@pytest.mark.parametrize(("low", "sentence"), [(0.9, "cats, 95 %"), (0.5, "No class or group")])
def test_the_most_exposed_group_is_named_where_it_is_resolved(low, sentence):
    groups = pd.DataFrame(
        {"auc": [0.95, 0.55], "auc_low": [low, 0.5], "auc_high": [0.97, 0.6]},
        index=["cats", "dogs"],
    )
    assert sentence in str(said(by_group=groups)[0])


def test_it_shows_itself_in_a_notebook_and_takes_one_attack_alone():
    signals = make()
    result = verdict(score("loss", signals), n_resamples=20)
    assert result._repr_markdown_().startswith("### members can be told")
    quiet = score("loss", signals)
    shuffled = dataclasses.replace(
        quiet, value=np.random.default_rng(0).normal(size=quiet.value.shape)
    )
    assert verdict(shuffled, n_resamples=20).title == "no attack is resolved from guessing"
