"""Several releases of one model: closed forms, invariances, and where nothing leaks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from attack_worlds import auc, gaussian, null_se, pairs, signals
from scipy.stats import norm

import mia_nb as mia
from mia_nb import attacks
from mia_nb.attacks.smooth import releases
from mia_nb.types import Signals

COVARIANCE = np.array([[1.0, 0.6, 0.1], [0.6, 2.0, 0.3], [0.1, 0.3, 0.5]])
GAPS = np.array([0.3, 0.8, 0.4])


def world(models: int, samples: int, gaps: np.ndarray = GAPS, seed: int = 0) -> Signals:
    """Margins of three releases with one covariance, members higher by the gaps."""
    rng = np.random.default_rng(seed)
    member = pairs(models, samples, seed=seed)
    noise = rng.multivariate_normal(np.zeros(3), COVARIANCE, size=(models, samples))
    level = rng.normal(1, 2, (samples, 3))
    phi = level + noise + gaps * member[:, :, None]
    return signals(phi.swapaxes(1, 2), member, query_kind="releases", seed=seed)


def mean_auc(scores) -> float:
    return np.mean(
        [auc(value, mask) for value, mask in zip(scores.value, scores.member, strict=True)]
    )


def test_it_finds_what_the_best_test_of_vectors_of_known_covariance_can_find():
    """AUC Phi(d / sqrt 2), d^2 = gaps^T C^-1 gaps, of which k references a side hide a share: the
    level that they estimate has the variance C / (2 k)."""
    found = attacks.score("releases", world(16, 4000), targets=range(8))
    distance = GAPS @ np.linalg.solve(COVARIANCE, GAPS) / (1 + 1 / 14)
    error = null_se(2000, 2000) / np.sqrt(8)
    assert mean_auc(found) == pytest.approx(norm.cdf(np.sqrt(distance / 2)), abs=4 * error)


def test_it_finds_more_than_any_release_alone_and_than_their_sum():
    several = world(16, 2000)
    found = mean_auc(attacks.score("releases", several))
    alone = [
        mean_auc(attacks.score("lira_smooth", several.select(queries=[release])))
        for release in range(3)
    ]
    summed = mean_auc(attacks.score("lira_smooth", several))
    assert found > max(*alone, summed) + 0.01


def test_with_one_gap_and_one_variance_for_all_samples_it_is_the_formula_in_loops():
    several = world(8, 60)
    target, references = several.hold_out(3)
    phi, member = references.margin, references.member
    levels, gaps = np.empty((3, 60)), np.empty((3, 60))
    residuals = np.empty(phi.shape)
    for r in range(3):
        for i in range(60):
            inside, outside = phi[member[:, i], r, i], phi[~member[:, i], r, i]
            levels[r, i] = (inside.mean() + outside.mean()) / 2
            gaps[r, i] = inside.mean() - outside.mean()
            centre = np.where(member[:, i], inside.mean(), outside.mean())
            residuals[:, r, i] = phi[:, r, i] - centre
    shared = np.zeros((3, 3))
    for m in range(6):
        shared += residuals[m] @ residuals[m].T
    weights = np.linalg.solve(shared / (60 * 4), gaps.mean(1))
    expected = weights @ (target.margin[0] - levels)
    np.testing.assert_allclose(releases(target, references, degree=0), expected, rtol=1e-9)


def test_the_scale_of_a_release_and_a_release_that_came_twice_change_nothing():
    several = world(10, 300)
    scaled = replace(several, margin=several.margin * np.array([1.0, 37.0, 0.1])[:, None])
    # of degree 0, since the smooth functions follow the mean level over releases
    plain = partial(releases, degree=0)
    found, expected = (attacks.score(plain, s).value for s in (scaled, several))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    twice = several.select(queries=[1, 2, 2])
    once = several.select(queries=[1, 2])
    found, expected = (attacks.score(plain, s).value for s in (twice, once))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_of_a_single_release_it_is_the_smoothed_lira():
    single = world(10, 200).select(queries=[1])
    found = attacks.score("releases", single).value
    assert np.array_equal(found, attacks.score("lira_smooth", single).value)


@pytest.mark.parametrize("models", [6, 8, 16])
def test_where_nothing_leaks_it_finds_nothing(models):
    several = world(models, 2000, gaps=np.zeros(3), seed=models)
    found = attacks.score("releases", several)
    assert abs(mean_auc(found) - 0.5) < 4 * null_se(1000, 1000) / np.sqrt(models / 2)


def test_signals_of_releases_are_their_margins_one_after_the_other_and_are_flagged():
    several = world(8, 50)
    each = [replace(several.select(queries=[r]), query_kind="plain") for r in range(3)]
    joined = Signals.of_releases(each)
    assert np.array_equal(joined.margin, several.margin) and joined.query_kind == "releases"
    assert np.array_equal(joined.top_log_p, each[-1].top_log_p)
    scores = attacks.score("releases", joined)
    assert scores.info["flags"] == [
        "several releases of one model: an attacker who kept the earlier ones"
    ]
    last = attacks.score("loss", each[-1])
    assert np.array_equal(scores.accuracy, last.accuracy)
    assert np.array_equal(scores.loss, last.loss)
    assert "releases" in attacks.literature(3, "releases", 3)
    assert "releases" not in attacks.literature(3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda each: [], "no release was given"),
        (lambda each: [each[0].select(models=[1, 0, 2, 3, 4, 5]), each[1]], "differ in member"),
        (lambda each: [each[0].select(samples=slice(40)), each[1]], "differ in labels"),
        (lambda each: [Signals.of_releases(each), each[0]], "holds 2 queries"),
    ],
)
def test_releases_of_other_models_or_samples_are_refused(change, says):
    several = gaussian(6, 50)
    with pytest.raises(ValueError, match=says):
        Signals.of_releases(change([several, several]))


def test_too_few_references_for_a_spread_are_refused():
    with pytest.raises(ValueError, match="no sample has two references on either side"):
        attacks.score("releases", world(4, 50))
    with pytest.raises(ValueError, match="take 6 models or more"):
        attacks.refuse_too_few(["releases"], 4)


def test_checkpoints_of_a_training_are_releases(tmp_path):
    images = mia.load("digits", limit=300)
    recipe = mia.Recipe(num_models=6, epochs=3, snapshots=[1, 2])
    pool = mia.train(recipe, images, root=tmp_path, progress=False)
    each = [mia.query(pool.at(epoch), images, progress=False) for epoch in (1, 2, 3)]
    joined = Signals.of_releases(each)
    assert joined.shape == (6, 3, 300)
    assert np.isfinite(attacks.score("releases", joined).value).all()


@pytest.mark.parametrize("attack", [releases, attacks.smooth.lira_smooth])
def test_a_degree_that_is_none_is_refused_before_anything_is_read(attack):
    with pytest.raises(ValueError, match="degree=21: wanted 20 at most"):
        attack(world(8, 200).hold_out(0)[0], None, degree=21)
