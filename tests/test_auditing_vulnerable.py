"""Samples found exposed: exact p-values, false discoveries in a null world, a planted sample, and
what cannot be resolved.
"""

import json
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import mannwhitneyu

from mia_nb.attacks import score
from mia_nb.auditing.one_run import score_split
from mia_nb.auditing.vulnerable import null_scores, vulnerability
from mia_nb.metrics import auc
from mia_nb.types import Scores, Signals

APART = {"attack": "lira", "disjoint": True}
SHARED = {"attack": "lira", "disjoint": False}


def world(
    rng, *, targets=16, samples=200, pairs=True, planted=(), shift=6.0, info=APART, digits=None
):
    """Null scores N(0, 1) with a shift for members on the planted samples only."""
    if pairs:
        half = rng.random((targets // 2, samples)) < 0.5
        member = np.stack([half, ~half], axis=1).reshape(targets, samples)
    else:
        member = rng.random((targets, samples)) < 0.5
    value = rng.standard_normal(member.shape)
    value[:, list(planted)] += shift * member[:, list(planted)]
    value = value if digits is None else value.round(digits)
    side, rows = np.zeros((targets, 2)), np.arange(targets)
    return Scores(value, member, rows, rows // 2 if pairs else rows, side, side, info)


def test_the_auc_of_a_sample_is_that_of_its_scores_over_targets():
    scores = world(np.random.default_rng(0), samples=30, pairs=False, digits=0)
    table = vulnerability(scores)
    wanted = [auc(scores.value[:, i], scores.member[:, i]) for i in range(30)]
    np.testing.assert_allclose(table["auc"], wanted, atol=1e-12)
    np.testing.assert_allclose(table["resolution"], 1 / (table["t_in"] * table["t_out"]))


def test_untied_p_values_of_coins_are_those_of_the_exact_mann_whitney_test():
    scores = world(
        np.random.default_rng(1), targets=20, samples=40, pairs=False, planted=[3], shift=1.0
    )
    wanted = [
        mannwhitneyu(v[m], v[~m], alternative="greater", method="exact").pvalue
        for v, m in zip(scores.value.T, scores.member.T, strict=True)
    ]
    np.testing.assert_allclose(vulnerability(scores)["p"], wanted, rtol=1e-10)


@pytest.mark.parametrize("digits", [0, None])
def test_p_values_count_all_permutations_of_targets_and_all_flips_of_pairs_ties_included(digits):
    rng = np.random.default_rng(2)
    for pairs in (False, True):
        scores = world(
            rng, targets=8, samples=12, pairs=pairs, digits=digits, planted=[0], shift=1.0
        )
        for i, p in enumerate(vulnerability(scores)["p"]):
            value, member = scores.value[:, i], scores.member[:, i]
            if pairs:
                masks = [
                    np.ravel([[a, not a] for a in flips])
                    for flips in product([False, True], repeat=4)
                ]
            else:
                masks = [
                    np.isin(np.arange(8), chosen)
                    for chosen in combinations(range(8), int(member.sum()))
                ]
            null = np.array([auc(value, mask) for mask in masks])
            assert p == pytest.approx((null >= auc(value, member) - 1e-12).mean(), rel=1e-12)


@pytest.mark.parametrize("pairs", [True, False])
def test_in_a_null_world_at_most_the_rate_of_runs_discovers_anything(pairs):
    rng = np.random.default_rng(4)
    found = [
        vulnerability(world(rng, targets=24, pairs=pairs))["significant"].any() for _ in range(80)
    ]
    assert np.mean(found) <= 0.1 + 2 * np.sqrt(0.1 * 0.9 / 80)


@pytest.mark.parametrize("pairs", [True, False])
def test_a_planted_sample_is_found_with_enough_targets(pairs):
    table = vulnerability(world(np.random.default_rng(5), targets=32, pairs=pairs, planted=[17]))
    assert table.loc[17, "significant"] and table.loc[17, "auc"] == 1
    assert table["significant"].sum() <= 3
    assert "a single sample of 200 can be found" in table.attrs["resolution"]


def test_the_floor_under_redrawn_masks_counts_those_that_put_a_sample_in_perfect_order():
    """Four scores stand so in a sixth of all worlds: no number of draws brings p below about
    1/6.
    """
    scores = world(
        np.random.default_rng(11), targets=4, samples=60, planted=[3], shift=50.0, info=SHARED
    )
    null = [
        world(np.random.default_rng(200 + seed), targets=4, samples=60, info=SHARED)
        for seed in range(300)
    ]
    table = vulnerability(scores, null=null)
    apart = [replace(one, info={"disjoint": True}) for one in null]
    perfect = [sum(vulnerability(one).loc[i, "auc"] == 1 for one in apart) for i in range(5)]
    np.testing.assert_allclose(table["smallest_p"][:5], (1 + np.array(perfect)) / 301)
    assert (
        abs(table["smallest_p"].mean() - 1 / 6) < 0.02
        and table.loc[3, "p"] == table.loc[3, "smallest_p"]
    )
    assert (table["p"] >= table["smallest_p"]).all()
    assert (
        "rate of 0.1, not even all of 60 samples together: score more targets"
        in table.attrs["resolution"]
    )


def test_the_resolution_names_what_binds_draws_or_targets():
    scores = world(np.random.default_rng(12), targets=32, samples=100, info=SHARED)
    null = [
        world(np.random.default_rng(300 + seed), targets=32, samples=100, info=SHARED)
        for seed in range(40)
    ]
    said = vulnerability(scores, null=null).attrs["resolution"]
    assert (
        said
        == "32 targets in 16 pairs: p cannot fall below 0.0244; nothing can be found unless 25 of"
        " 100 samples reach it together: redraw more than 40 masks"
    )


def test_what_is_no_null_of_these_scores_is_refused_in_one_line():
    scores = world(np.random.default_rng(14), targets=8, samples=40, info=SHARED)
    other = world(np.random.default_rng(15), targets=8, samples=40, info=SHARED)
    spent = (one for one in [other])
    assert len(vulnerability(scores, null=spent)) == 40
    for null, message in (
        (spent, "null holds no scores: wanted one redrawn mask or more"),
        (
            [replace(other, info=SHARED | {"attack": "loss"})],
            "null holds scores of loss, these are of lira",
        ),
        (
            [world(np.random.default_rng(15), targets=8, samples=30)],
            r"null has targets x samples \(8, 30\)",
        ),
        (
            [world(np.random.default_rng(15), targets=6, samples=40)],
            r"null has targets x samples \(6, 40\)",
        ),
        (
            [replace(other, targets=other.targets + 1)],
            "or other targets: null_scores scores all models",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            vulnerability(scores, null=null)


def test_more_targets_than_an_exact_test_allows_are_refused_in_one_line():
    scores = world(np.random.default_rng(0), targets=320, samples=2, pairs=False)
    message = r"320 targets without pairs are too many .* null=null_scores\(attack, signals\)"
    with pytest.raises(ValueError, match=message):
        vulnerability(scores)


def test_halves_of_one_pool_are_disjoint_pools():
    signals = null_signals(np.random.default_rng(17), models=16)
    coins = np.random.default_rng(17).random((16, 150)) < 0.5
    split = score_split("attack_r", replace(signals, member=coins))
    assert vulnerability(split).attrs["method"].startswith("exact")
    halves = score(
        "attack_r", signals.select(models=slice(8)), signals.select(models=slice(8, None))
    )
    assert vulnerability(halves).attrs["method"] == "exact: flips within pairs"


def test_a_sample_that_one_of_a_pair_did_not_score_loses_the_pair():
    scores = world(np.random.default_rng(18), targets=12, samples=20, planted=[3], shift=2.0)
    value = scores.value.copy()
    value[4, 3] = np.nan
    rest = np.arange(12) // 2 != 2
    left = {
        n: getattr(scores, n)[rest]
        for n in ("value", "member", "targets", "pair", "accuracy", "loss")
    }
    wanted, found = (
        vulnerability(Scores(**left, info=APART)).loc[3],
        vulnerability(replace(scores, value=value)).loc[3],
    )
    for column in ("auc", "t_in", "t_out", "p", "smallest_p"):
        assert found[column] == pytest.approx(wanted[column]), column


def test_with_eight_targets_in_pairs_nothing_can_be_found_and_it_is_said():
    table = vulnerability(world(np.random.default_rng(6), targets=8, planted=[17]))
    assert table.loc[17, "auc"] == 1 and table.loc[17, "p"] == 1 / 16 == table.loc[17, "smallest_p"]
    assert not table["significant"].any()
    assert (
        "8 targets in 4 pairs: p cannot fall below 0.0625; nothing can be found unless 125 of 200"
        in table.attrs["resolution"]
    )
    few = vulnerability(world(np.random.default_rng(6), targets=4))
    assert "nothing can be found at a rate of 0.1" in few.attrs["resolution"]


def test_samples_that_one_target_did_not_score_lose_that_target_only():
    scores = world(np.random.default_rng(7), targets=12, samples=20, pairs=False)
    value = scores.value.copy()
    value[4, 3] = np.nan
    table = vulnerability(replace(scores, value=value))
    rest = np.arange(12) != 4
    assert table.loc[3, "auc"] == pytest.approx(auc(value[rest, 3], scores.member[rest, 3]))
    assert table.loc[3, "t_in"] + table.loc[3, "t_out"] == 11
    wanted = mannwhitneyu(
        value[rest & scores.member[:, 3], 3],
        value[rest & ~scores.member[:, 3], 3],
        alternative="greater",
        method="exact",
    )
    assert table.loc[3, "p"] == pytest.approx(wanted.pvalue)


def null_signals(rng, models=8, samples=150):
    half = rng.random((models // 2, samples)).argsort(1) < samples // 2
    member = np.stack([half, ~half], axis=1).reshape(models, samples)
    margin = rng.normal(0, 2, samples) + rng.standard_normal((models, 1, samples))
    logits = np.stack([margin, np.zeros_like(margin)], axis=-1)
    return Signals.from_logits(logits, np.zeros(samples, int), member, info={"pool": "a"})


def test_shared_pools_are_biased_and_their_null_is_printed_beside_them():
    signals = null_signals(np.random.default_rng(8))
    scores = score("lira", signals)
    with pytest.raises(ValueError, match="share a pool"):
        vulnerability(scores)
    table = vulnerability(scores, null=null_scores("lira", signals, n_resamples=60))
    assert table["null_auc"].mean() < 0.48  # nothing leaks: the honest value is 1/2
    error = table["auc"].std() / np.sqrt(len(table))
    assert abs(table["auc"].mean() - table["null_auc"].mean()) < 4 * error
    assert not table["significant"].any() and "60 redrawn masks" in table.attrs["method"]
    assert abs(table["p"].mean() - 0.5) < 4 * np.sqrt(1 / 12 / len(table)) * 2


def test_redrawn_coins_that_leave_a_sample_one_side_count_for_nothing():
    scores = world(np.random.default_rng(10), targets=4, samples=50, pairs=False, info=SHARED)
    redrawn = [
        world(np.random.default_rng(100 + seed), targets=4, samples=50, pairs=False)
        for seed in range(40)
    ]
    table = vulnerability(scores, null=redrawn)
    with np.errstate(invalid="ignore"):
        drawn = np.array([vulnerability(one)["auc"] for one in redrawn])
    assert np.isnan(drawn).any()
    for row in table[table["auc"].notna()].itertuples():
        known = drawn[~np.isnan(drawn[:, row.sample]), row.sample]
        assert row.p == pytest.approx((1 + (known >= row.auc).sum()) / (1 + len(known)))
        assert row.null_auc == pytest.approx(known.mean())


def test_complementary_models_of_some_targets_only_are_refused_and_empty_sides_too():
    scores = world(np.random.default_rng(9))
    part = {
        n: getattr(scores, n)[:15]
        for n in ("value", "member", "targets", "pair", "accuracy", "loss")
    }
    with pytest.raises(ValueError, match="both of each pair, or one of each"):
        vulnerability(Scores(**part, info=APART))
    with pytest.raises(ValueError, match="in one target and out of another"):
        vulnerability(
            replace(world(np.random.default_rng(9), pairs=False), member=np.ones((16, 200), bool))
        )
    with pytest.raises(ValueError, match="share a pool"):
        vulnerability(replace(scores, info=SHARED))


def test_lists_that_are_empty_have_no_overlap_and_nothing_is_concluded_from_them():
    book = Path(__file__).resolve().parents[1] / "notebooks" / "11_worst_case.ipynb"
    found = json.loads(book.read_text(encoding="utf-8"))["cells"]
    cells = {cell["id"]: "".join(cell["source"]) for cell in found}
    member = np.arange(8) < 4
    seen = SimpleNamespace(select=lambda **_: None, population=np.zeros(8, bool))
    names = {
        "np": np,
        "pd": pd,
        "combinations": combinations,
        "display": lambda table: None,
        "in_words": str,
        # every list holds all members, and no non-member
        "score": lambda *_: SimpleNamespace(value=np.tile(1.0 * member, (3, 1))),
    }
    given = {"repeats": 3, "others": "coins", "attacks": ["loss"], "fpr": 0.1, "anew": None}
    world = {"seen": seen, "recipe": SimpleNamespace(num_models=8), "fixed": member[None]}
    names |= given | world | {"right": {}, "ladders": {}}
    exec(cells["lists"], names)
    exec(cells["repeat"], names)
    (row,) = names["steady"].to_dict("records")
    assert row["jaccard"] == 1 and np.isnan(row["jaccard_out"])
    exec(cells["doubts-facts"], names)
    assert not any(names["repeated"])
