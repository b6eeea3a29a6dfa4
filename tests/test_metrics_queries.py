"""Curves over queries and the variance split, against a Gaussian world in which both are known."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from attack_worlds import gaussian, pairs, signals
from scipy.stats import norm

from mia_nb import attacks, metrics

DELTA, SIGMA, NOISE = 1.0, 0.8, 3.0


def noisy(
    models=8,
    samples=1500,
    queries=64,
    *,
    delta=DELTA,
    noise=NOISE,
    difficulty=0.0,
    population=0,
    seed=0,
):
    """Equally hard samples: margins 1 + delta member + .8 eps(model, sample) + noise eps(model,
    query, sample).
    """
    options = {
        "difficulty": difficulty,
        "population": population,
        "seed": seed,
        "query_kind": "noise",
    }
    return gaussian(
        models, samples, delta=delta, sigma=SIGMA, queries=queries, noise=noise, **options
    )


def spread(split, queries):
    """Standard deviation between models of the mean of so many margins, of a variance split."""
    return np.sqrt(split.between_models + split.between_queries / queries)


def auc_of(table):
    """The rows of the AUC, by R."""
    return table[table["metric"] == "auc"].set_index("R")


def truth(queries, *, delta=DELTA, noise=NOISE):
    return norm.cdf(delta / np.sqrt(2 * (SIGMA**2 + noise**2 / queries)))


def test_the_curve_follows_the_closed_form_and_its_limit():
    table = auc_of(metrics.query_curve(noisy(), "loss", fpr=(0.1,), n_resamples=200))
    assert list(table.index) == [1, 4, 16, 64, np.inf]
    for count, row in table.iterrows():
        assert row["low"] < truth(count) < row["high"]
        assert row["value"] == pytest.approx(truth(count), abs=0.01)
    assert (
        table["value"].is_monotonic_increasing
        and table.loc[np.inf, "value"] - table.loc[1, "value"] > 0.1
    )
    assert (
        (table["n0"] == 750).all() and (table["pairs"] == 4).all() and (table["targets"] == 8).all()
    )


@pytest.mark.parametrize("attack", ["rmia", "attack_r", "lira_global", "nig"])
def test_attacks_that_calibrate_per_sample_scale_with_the_queries_as_predicted(attack):
    pool = noisy(16, 800, difficulty=1.5)
    table = metrics.query_curve(
        pool,
        partial(attacks.ATTACKS[attack], combine="margin"),
        queries=(4, 16, 64),
        n_resamples=20,
    )
    auc = auc_of(table)
    assert auc["value"].iloc[2] - auc["value"].iloc[0] > 0.05
    split = metrics.variance_split(pool)
    most = norm.ppf(auc.loc[64, "value"]) * spread(split, 64)
    for count, value in auc["value"].items():
        assert value == pytest.approx(norm.cdf(most / spread(split, count)), abs=0.025)


@pytest.mark.parametrize(
    "attack", ["loss", "rmia", "lira_shrunk", partial(attacks.reference.attack_r, form="lattice")]
)
def test_one_query_is_the_plain_attack_and_all_queries_are_the_whole(attack):
    pool = noisy(6, 300, 8)
    table = metrics.query_curve(pool, attack, queries=(1, 8), fpr=(0.1,), n_resamples=50, seed=3)
    for count, cut in ((1, pool.select(queries=[0])), (8, pool)):
        plain = metrics.intervals(attacks.score(attack, cut), (0.1,), n_resamples=50, seed=3)
        for metric, name in (("auc", "auc"), ("tpr", "tpr@0.1")):
            row = table[(table["R"] == count) & (table["metric"] == metric)].iloc[0]
            ends = ["value", "low", "high"]
            assert row[ends].to_list() == plain.loc[name, ends].to_list()


def test_references_are_asked_as_often_as_the_target():
    pool, other = noisy(4, 300, 8, seed=1), noisy(6, 300, 8, seed=2)
    other = replace(other, labels=pool.labels)
    table = metrics.query_curve(pool, "rmia", other, queries=(2,), n_resamples=20)
    cut = [one.select(queries=[0, 1]) for one in (pool, other)]
    assert (
        auc_of(table).loc[2, "value"]
        == metrics.intervals(attacks.score("rmia", *cut), n_resamples=20).loc["auc", "value"]
    )
    with pytest.raises(ValueError, match="there are 4 outputs"):
        metrics.query_curve(pool, "rmia", other.select(queries=slice(0, 4)), queries=(8,))


def test_next_to_no_noise_makes_a_flat_curve():
    table = auc_of(metrics.query_curve(noisy(6, 600, 16, noise=1e-4), "loss", n_resamples=20))
    np.testing.assert_allclose(table["value"], table.loc[1, "value"], atol=1e-4)


def test_without_a_leak_every_number_of_queries_and_the_limit_are_chance():
    for attack in ("loss", "rmia"):
        pool = noisy(delta=0.0, samples=1000)
        table = auc_of(metrics.query_curve(pool, attack, n_resamples=200))
        assert ((table["low"] < 0.5) & (table["high"] > 0.5)).all()


def test_the_split_finds_both_variances_and_leaves_the_population_out():
    pool = noisy(16, 1000, 16, population=200)
    pool.margin[:, :, pool.population] *= 50
    split = metrics.variance_split(pool)
    assert split.between_queries == pytest.approx(NOISE**2, rel=0.02)
    assert split.between_models == pytest.approx(SIGMA**2, rel=0.05)
    assert (split.queries, split.pairs) == (16, 8)


def test_the_split_is_a_slow_loop_over_models_samples_and_sides():
    pool = noisy(6, 40, 5)
    s2 = np.mean([[np.var(pool.margin[m, :, i], ddof=1) for i in range(40)] for m in range(6)])
    sides = [pool.member[:, i] == side for i in range(40) for side in (True, False)]
    sigma2 = (
        np.mean(
            [np.var(pool.margin[own, :, i // 2].mean(1), ddof=1) for i, own in enumerate(sides)]
        )
        - s2 / 5
    )
    split = metrics.variance_split(pool)
    assert (split.between_queries, split.between_models) == (
        pytest.approx(s2),
        pytest.approx(sigma2),
    )


@pytest.mark.slow
def test_the_ends_of_the_split_cover_variances_that_differ_from_model_to_model():
    covered = np.zeros(2)
    for seed in range(120):
        rng = np.random.default_rng(seed)
        member = pairs(12, 30, seed=seed)
        # mean square 1: noise of some models is louder
        scale = np.sqrt(rng.uniform(0.5, 1.5, 12))[:, None, None]
        margin = SIGMA * rng.normal(size=(12, 1, 30)) + scale * rng.normal(size=(12, 6, 30))
        split = metrics.variance_split(signals(margin, member, query_kind="noise"))
        covered[0] += split.between_queries_low <= 1 <= split.between_queries_high
        covered[1] += split.between_models_low <= SIGMA**2 <= split.between_models_high
    assert (covered / 120 > 0.9).all(), covered


def test_two_pairs_give_no_ends_between_models_and_extrapolate_the_ends_with_the_point():
    split = metrics.variance_split(noisy(4, 300, 4))
    assert np.isnan([split.between_models_low, split.between_models_high]).all()
    assert split.between_queries_low < NOISE**2 < split.between_queries_high
    table = auc_of(metrics.query_curve(noisy(4, 300, 4), "loss", queries=(4,), n_resamples=20))
    ratio = spread(split, 4) / spread(split, np.inf)
    for end in ("value", "low", "high"):
        assert table.loc[np.inf, end] == pytest.approx(
            norm.cdf(norm.ppf(table.loc[4, end]) * ratio)
        )
    few = auc_of(metrics.query_curve(noisy(6, 300, 4), "loss", queries=(4,), n_resamples=20))
    split = metrics.variance_split(noisy(6, 300, 4))
    ratio = np.sqrt(1 + split.between_queries_low / 4 / split.between_models_high)
    assert few.loc[np.inf, "low"] == pytest.approx(norm.cdf(norm.ppf(few.loc[4, "low"]) * ratio))
    assert few.loc[np.inf, "high"] > norm.cdf(norm.ppf(few.loc[4, "high"]) * ratio)


def test_no_spread_between_models_leaves_the_limit_open():
    rng = np.random.default_rng(1)
    member = pairs(4, 200)
    pool = signals(rng.normal(size=(4, 8, 200)) + member[:, None], member, query_kind="noise")
    # means alike in all models
    shrunk = pool.margin - 0.999 * (pool.margin.mean(1, keepdims=True) - member[:, None])
    pool = replace(pool, margin=shrunk)
    assert metrics.variance_split(pool).between_models == 0
    limit = auc_of(metrics.query_curve(pool, "loss", queries=(8,), n_resamples=20)).loc[np.inf]
    assert np.isnan(limit[["value", "low", "high"]].astype(float)).all()


def test_noise_whose_width_betrays_members_is_found_by_the_joint_form_only():
    rng = np.random.default_rng(0)
    member = pairs(12, 500)
    width = np.where(member, 0.5, 1.0)[:, None]
    pool = signals(
        0.5 * rng.normal(size=(12, 1, 500)) + width * rng.normal(size=(12, 16, 500)),
        member,
        query_kind="noise",
    )
    mean, joint = (
        auc_of(metrics.query_curve(pool, attack, queries=(1, 4, 16), n_resamples=50))
        for attack in ("lira_global", partial(attacks.likelihood.lira, combine="mean_sd"))
    )
    assert list(mean.index) == [1, 4, 16, np.inf] and list(joint.index) == [4, 16, np.inf]
    assert joint["combine"].eq("mean_sd").all() and mean["combine"].eq("margin").all()
    assert joint.loc[16, "value"] > 0.9 and mean.loc[16, "low"] < 0.55
    assert np.isnan(joint.loc[np.inf, "value"])  # it averages nothing: no limit
    with pytest.raises(ValueError, match="2 or more"):
        metrics.query_curve(pool, partial(attacks.likelihood.lira, combine="mean_sd"), queries=(1,))


def test_the_column_combine_says_how_queries_were_joined_and_tprs_stay_unextrapolated():
    trimmed = partial(attacks.likelihood.lira, combine="trimmed")
    table = metrics.query_curve(
        noisy(6, 300, 4), trimmed, queries=(4,), fpr=(0.01, 0.1), n_resamples=20
    )
    assert table["combine"].eq("trimmed").all() and len(table) == 2 * 3
    measurable = table.set_index(["R", "fpr"])["measurable"]
    assert not measurable[4, 0.01] and measurable[4, 0.1] and not measurable[np.inf, 0.1]
    limit = table[np.isinf(table["R"]) & (table["metric"] == "tpr")]
    assert limit[["value", "low", "high"]].isna().all(None)


def test_noise_that_is_off_is_an_error_that_names_the_models():
    pool = noisy(6, 100, 4)
    some = pool.margin.copy()
    some[[1, 4]] = some[[1, 4], :1]
    with pytest.raises(
        ValueError,
        match=r"all outputs of models \[1, 4\] for a sample are equal: the noise is off",
    ):
        metrics.variance_split(replace(pool, margin=some))
    with pytest.raises(ValueError, match="all outputs for a sample are equal"):
        metrics.query_curve(replace(pool, margin=np.repeat(pool.margin[:, :1], 4, axis=1)), "loss")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda pool: pool.select(queries=[0]), {}, "hold one query"),
        (lambda pool: replace(pool, member=None), {}, "hide membership"),
        (lambda pool: replace(pool, query_kind="steps"), {}, "time steps"),
        (lambda pool: pool.select(models=[0, 1]), {}, "at least two pairs"),
        (lambda pool: pool, {"queries": (0, 2)}, "whole numbers from 1"),
        (lambda pool: pool, {"queries": (1.5,)}, "whole numbers from 1"),
        (lambda pool: pool, {"queries": (9,)}, "there are 4 outputs"),
        (lambda pool: pool, {"attack": "shokri"}, "averaged over all queries"),
        (lambda pool: pool, {"attack": "rmai"}, "did you mean 'rmia'"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(change, options, message):
    with pytest.raises(ValueError, match=message) as raised:
        metrics.query_curve(change(noisy(4, 100, 4)), **options)
    assert "\n" not in str(raised.value)
