"""A result in words: what is resolved, what is not, and what to do."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from test_examples import make

from mia_nb import metrics
from mia_nb.attacks import ATTACKS, NAMES, in_words, score
from mia_nb.metrics.groups import largest_contribution
from mia_nb.metrics.sentences import WHAT_LOWERS, _percent, _percents, verdict


def said(models=8, samples=2400, leak=0.6, names=("rmia", "loss"), **options):
    signals = make(models, samples, leak=leak)
    scores = {name: score(name, signals) for name in names}
    return verdict(scores, n_resamples=50, **options), scores


def test_an_attack_of_ones_own_is_called_by_its_key():
    scores = said()[1]["rmia"]
    assert "false positives my_attack finds" in str(verdict({"my_attack": scores}, n_resamples=20))
    assert "the loss threshold finds" in str(verdict({"loss": scores}, n_resamples=20))


def test_a_leak_is_said_with_its_interval_its_rate_and_what_a_reader_may_conclude():
    result, scores = said(about="ten classes")
    assert result.title == "ten classes: members can be told from non-members"
    text = str(result)
    table = metrics.summary(scores, (0.01,), n_resamples=50)
    tpr, low, high = metrics.by_attack(table, "tpr", 0.01).loc["rmia", ["value", "low", "high"]]
    assert "At 1 % false positives the strongest of 2 attacks (RMIA, picked afterwards)" in text
    assert f"{100 * low:.1f} % to {100 * high:.1f} %" in text and "times chance" in text
    share = 0.01 * tpr / (0.01 * tpr + 0.99 * 0.01)
    assert f"{100 * share:.1f} % of those it accuses are members" in text
    assert "Not measurable with 1,200 non-members: false positive rates of 0.1 %" in text
    assert "reference models on each side: 3" in text
    assert "was not run" in text and "Run the negative control." in text


def test_a_summary_that_is_there_is_read_and_one_of_other_scores_or_rates_refused():
    result, scores = said()
    table = metrics.summary(scores, n_resamples=50)
    assert verdict(scores, table=table) == result
    others = {"rmia": scores["rmia"]}
    for wrong in (metrics.summary(others, n_resamples=5), metrics.summary(scores, (0.1,))):
        with pytest.raises(ValueError, match=r"wanted metrics\.summary of the same scores"):
            verdict(scores, table=wrong)


def test_every_attack_has_one_name_of_its_own_for_people_and_a_users_own_its_key():
    assert set(NAMES) == set(ATTACKS) and len(set(NAMES.values())) == len(NAMES)
    assert in_words("nig") == "Student-t LiRA" and in_words("mine") == "mine"
    scores = {name: score(name, make()) for name in ("nig", "loss")}
    table = metrics.summary(scores | {"mine": scores["loss"]}, n_resamples=5)
    assert list(table["attack"].unique()) == ["nig", "loss", "mine", "max"]
    assert list(metrics.readable(table).index)[:3] == ["Student-t LiRA", "loss threshold", "mine"]


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


@pytest.mark.parametrize("non_members", [60, 400, 5000])
def test_rates_that_cannot_be_measured_are_a_list_with_one_and(non_members):
    needs = ["0.1 % (needs 10,000)", "1 % (needs 1,000)", "10 % (needs 100)"]
    wanted = {
        60: f"{needs[0]}, {needs[1]} and {needs[2]}",
        400: f"{needs[0]} and {needs[1]}",
        5000: needs[0],
    }[non_members]
    text = str(said(2, 2 * non_members, leak=1, names=("loss",))[0])
    assert f"{non_members:,} non-members: false positive rates of {wanted}." in text


def test_the_models_and_all_images_that_were_scored_are_counted():
    even = said(2, 202, names=("loss",))[1]["loss"]
    odd = dataclasses.replace(even, value=even.value[:, :201], member=even.member[:, :201])
    assert "2 models attacked in turn, 201 images each" in str(verdict(odd, n_resamples=5))
    some = dataclasses.replace(odd, value=np.where(np.arange(201) < 9, np.nan, odd.value))
    assert "2 models attacked in turn, 192 images each" in str(verdict(some, n_resamples=5))
    alone = score("loss", make(2, 202), targets=[0])
    assert "\n1 model attacked on 202 images" in str(verdict(alone, n_resamples=5))


def test_a_failed_negative_control_stands_in_the_title():
    signals = make()
    control = metrics.self_test(signals, ["loss"], n_resamples=5)
    broken = control._replace(passed=False)
    result = verdict({"loss": score("loss", signals)}, self_test=broken, n_resamples=20)
    assert result.title == "do not use: the negative control failed"
    assert "FAILED" in str(result) and result.next[0].startswith("Find out why")


def grouped(seed=0, leak=0.0, planted=0.0, models=8, samples=1200):
    """Scores of a world with five groups, of which the fourth leaks by `planted` more."""
    signals = make(models, samples, seed=seed, leak=leak)
    groups = np.random.default_rng([seed, 9]).integers(0, 5, samples)
    extra = planted * (signals.member & (groups == 3))[:, None, :]
    planted = dataclasses.replace(signals, margin=signals.margin + extra)
    return score("loss", planted), np.array(["ant", "bee", "cow", "dog", "elk"])[groups]


def test_a_planted_class_that_leaks_is_named_alone_and_its_table_travels_with_the_verdict():
    for seed in range(8):
        scores, classes = grouped(seed, planted=2.5)
        result = verdict(scores, groups=classes, n_resamples=50)
        table = result.by_group
        assert table.index[table["above_low"] > 0].tolist() == ["dog"]
        sentence = next(one for one in result.sentences if one.startswith("Largest contribution"))
        assert "dog (AUC" in sentence and "adjusted for comparing 5 classes or groups)" in sentence
        assert table.loc["dog", "above_low"] < table.loc["dog", "above"]
        pairs = list(zip(scores.value, scores.member, strict=True))
        auc = {
            name: np.mean([metrics.auc(v[classes == name], m[classes == name]) for v, m in pairs])
            for name in table.index
        }
        others = np.mean([auc[name] for name in auc if name != "dog"])
        assert table.loc["dog", "above"] == pytest.approx(auc["dog"] - others, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("leak", "models"), [(0.0, 8), (0.6, 8), (0.6, 2)])
def test_where_all_groups_leak_alike_one_is_named_in_at_most_the_stated_share_of_worlds(
    leak, models
):
    named = 0
    for seed in range(60):
        table = metrics.by_group(*grouped(seed, leak, models=models), n_resamples=50)
        named += bool((table["above_low"] > 0).any())
    assert named <= 5  # at 2.5 %: more in less than 1 of 100 runs
    told = largest_contribution(table.assign(above_low=-0.1), "classes")
    assert told == "None of the 5 classes is clearly more exposed than the others."


@pytest.mark.parametrize(("what", "name"), [("classes", "class 3"), ("groups", "group 3")])
def test_a_group_whose_name_is_a_number_is_named_with_a_word(what, name):
    scores, classes = grouped(0, planted=2.5)
    numbers = np.unique(classes, return_inverse=True)[1]
    table = metrics.by_group(scores, numbers, n_resamples=50)
    sentence = largest_contribution(table, what)
    assert sentence.startswith(f"Largest contribution: {name} (AUC 0.")


@pytest.mark.parametrize("named", [False, True])
def test_samples_whose_label_is_nan_are_one_group(named):
    scores, classes = grouped(0, planted=2.5)
    numbers = np.unique(classes, return_inverse=True)[1].astype(float)
    missing = np.where(numbers == numbers.max(), np.nan, numbers)
    among = np.unique(missing) if named else None
    table = metrics.by_group(scores, missing, among=among, n_resamples=50)
    whole = metrics.by_group(scores, numbers, n_resamples=50)
    pd.testing.assert_frame_equal(table.reset_index(drop=True), whole.reset_index(drop=True))
    assert np.isnan(table.index[-1]) and table["n1"].iloc[-1] > 0


def test_small_groups_are_marked_and_never_named():
    scores, _ = grouped(planted=0)
    groups = np.array(["many"] * 700 + ["more"] * 460 + ["few"] * 34 + ["hardly"] * 6)
    value = scores.value + 1e3 * scores.member * np.isin(groups, ["few", "hardly"])
    scores = dataclasses.replace(scores, value=value)
    result = verdict(scores, groups=groups, n_resamples=20)
    table, view = result.by_group, metrics.readable_groups(result.by_group)
    assert table.loc["few", "auc"] == 1 and np.isnan(table.loc["few", "above"])
    assert table.loc["hardly", "remark"] == "n/m" and view.loc["hardly", "AUC"] == "n/m"
    assert view.loc["few", "TPR at 10 % FPR"] == "n/m" and view.loc["many", "AUC"].endswith("]")
    assert (
        "of the 2 classes or groups is clearly more exposed than the others (2 were too small)."
        in str(result)
    )
    alone = verdict(scores, groups=np.zeros(1200, int), n_resamples=20)
    assert "groups" not in str(alone) and len(alone.by_group) == 1


@pytest.mark.parametrize("attack", ["loss", "correctness"])
def test_a_groups_rate_of_0_that_ties_leave_says_so_as_the_table_of_attacks_does(attack):
    signals = make(8, 1200, leak=1.0)
    groups = np.array(["many"] * 700 + ["more"] * 480 + ["few"] * 20)
    table = metrics.by_group(score(attack, signals), groups, n_resamples=20)
    view = metrics.readable_groups(table)["TPR at 10 % FPR"]
    whole = metrics.readable(metrics.summary({attack: score(attack, signals)}, n_resamples=20))
    assert view["few"] == "n/m" and "tied" not in table.loc["few", "remark"]
    tied = attack == "correctness"
    assert (view["many"] == whole["TPR at 10 % FPR"].iloc[0] == view["more"]) == tied
    assert (table.loc["many", "remark"] == "tied") == tied and view["many"].startswith("0:") == tied


def test_where_something_leaks_the_studies_are_named_and_never_as_a_promise():
    leaking, _ = said()
    quiet, _ = said(leak=0)
    assert leaking.next[1] == WHAT_LOWERS and "promise nothing for yours" in WHAT_LOWERS
    assert WHAT_LOWERS not in str(quiet)


def test_it_shows_itself_in_a_notebook_and_takes_one_attack_alone():
    signals = make()
    result = verdict(score("loss", signals), n_resamples=20)
    assert result._repr_markdown_().startswith("### members can be told")
    quiet = score("loss", signals)
    shuffled = dataclasses.replace(
        quiet, value=np.random.default_rng(0).normal(size=quiet.value.shape)
    )
    assert verdict(shuffled, n_resamples=20).title == "no attack is resolved from guessing"


def test_a_narrow_interval_is_printed_with_digits_that_show_it():
    row = pd.Series({"value": 0.5209, "low": 0.5191, "high": 0.5224})
    assert _percents(row) == ("52.1 %", "51.9 % to 52.2 %")
    row = pd.Series({"value": 0.592, "low": 0.56, "high": 0.62})
    assert _percents(row) == ("59 %", "56 % to 62 %")


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (0.00004, "less than 0.01 %"),
        (0.00006, "0.01 %"),
        (0.998, "99.8 %"),
        (0.9994, "99.9 %"),
        (0.9999, "more than 99.9 %"),
        (1.0, "100 %"),
    ],
)
def test_a_share_is_none_or_all_only_where_it_is(share, text):
    assert _percent(share) == text


def test_an_interval_that_ends_at_all_shows_how_near_the_other_end_is():
    row = pd.Series({"value": 1.0, "low": 0.9996, "high": 1.0})
    assert _percents(row) == ("100 %", "99.96 % to 100 %")
    row = pd.Series({"value": 0.99998, "low": 0.99997, "high": 1.0})
    assert _percents(row) == ("more than 99.99 %", "more than 99.99 % to 100 %")
    row = pd.Series({"value": 0.000004, "low": 0.0, "high": 0.00004})
    assert _percents(row) == ("less than 0.001 %", "0 % to 0.004 %")
