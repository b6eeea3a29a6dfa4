"""All targets of a pool at once: the attack on each target alone, in a time that is not quadratic in
the number of models.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from attack_worlds import gaussian

from mia_nb import attacks
from mia_nb.attacks.reference import base, rmia
from mia_nb.attacks.summaries import left_out
from mia_nb.types import Signals

pytestmark = pytest.mark.filterwarnings(
    "ignore:LiRA has",
    "ignore:difficulty calibration had",
    "ignore:lira. samples with one",
    "ignore:invalid value",
)
CLOSE = {"rtol": 1e-10, "atol": 1e-10}
SHARED = (
    "rmia",
    "rmia_offline",
    "rmia_count",
    "rmia_tuned",
    partial(rmia, combine="llr"),
    "base",
    partial(base, offline=True, alpha=0.7),
    "attack_r",
    "lira",
    "lira_global",
    "lira_per_sample",
    "lira_offline",
    "lira_smooth",
    "releases",
    "nig",
    "nig_offline",
)
EVERY = pytest.mark.parametrize("attack", SHARED)


def alone(attack, target: Signals, pool: Signals, rows: list[np.ndarray]) -> np.ndarray:
    """The slow twin: the attack on every target by itself, on copies of its references."""
    _, function = attacks.find(attack)
    accepted = {"missing": "nan"}
    if "nig" in str(attack):
        accepted["allow_unequal"] = True
    found = []
    for t, others in enumerate(rows):
        one = target.select(models=[t]).hide()
        found.append(function(one, pool.select(models=others), **accepted))
    return np.array(found)[:, ~target.population]


def without_pair(world: Signals, models: int) -> list[np.ndarray]:
    return [np.array([m for m in range(models) if m // 2 != t // 2]) for t in range(models)]


@EVERY
@pytest.mark.parametrize("queries", [1, 3])
def test_in_pairs_each_target_gets_what_the_attack_alone_gives_it(attack, queries):
    world = gaussian(14, 200, population=30, queries=queries, query_kind="augment")
    expected = alone(attack, world, world, without_pair(world, 14))
    np.testing.assert_allclose(attacks.score(attack, world).value, expected, **CLOSE)


@EVERY
def test_in_a_bernoulli_design_too(attack):
    world = gaussian(10, 200, population=20).select(models=slice(9))
    member = (np.random.default_rng(1).random((9, 220)) < 0.5) & ~world.population
    member[:4, 0] = True  # a sample whose side is empty for some targets
    member[4:, 0] = False
    world = replace(world, member=member)
    rows = [np.flatnonzero(np.arange(9) != t) for t in range(9)]
    expected = alone(attack, world, world, rows)
    np.testing.assert_allclose(attacks.score(attack, world).value, expected, **CLOSE)


@pytest.mark.parametrize("attack", ["rmia", "lira_global", "attack_r"])
def test_references_of_another_pool_and_kept_complements_too(attack):
    world = gaussian(8, 150)
    other = replace(gaussian(12, 150, seed=5), labels=world.labels)
    everyone = [np.arange(12)] * 8
    found = attacks.score(attack, world, other).value
    np.testing.assert_allclose(found, alone(attack, world, other, everyone), **CLOSE)
    but_itself = [np.flatnonzero(np.arange(8) != t) for t in range(8)]
    found = attacks.score(attack, world, keep_complement=True).value
    np.testing.assert_allclose(found, alone(attack, world, world, but_itself), **CLOSE)


@pytest.mark.parametrize("attack", ["rmia", "rmia_offline", "base"])
def test_references_of_1e_minus_40_do_not_drown_in_a_pair_of_a_half(attack):
    """A sum over all models less the pair's would be off by 1e-17, which is all there is here."""
    world = gaussian(8, 100)
    margin = world.margin + 90.0
    margin[2:4] = 0.0
    for sign in (1, -1):
        extreme = replace(world, margin=sign * margin)
        expected = alone(attack, extreme, extreme, without_pair(extreme, 8))
        found = attacks.score(attack, extreme).value
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("attack", ["lira_global", "nig", "lira_smooth"])
def test_a_pair_a_million_nats_away_leaves_the_others_variances_alone(attack):
    world = gaussian(10, 100)
    margin = world.margin.copy()
    margin[4:6] += 1e6
    far = replace(world, margin=margin)
    expected = alone(attack, far, far, without_pair(far, 10))
    found = attacks.score(attack, far, targets=[4, 5]).value
    np.testing.assert_allclose(found, expected[4:6], rtol=1e-10)


@pytest.mark.parametrize("attack", ["rmia", "base"])
def test_margins_whose_probabilities_float64_cannot_hold_count_as_700_nats(attack):
    world = gaussian(8, 60)
    huge = replace(world, margin=400 * world.margin)
    assert np.abs(huge.margin).max() > 1000
    found = attacks.score(attack, huge).value
    clipped = attacks.score(attack, replace(huge, margin=huge.margin.clip(-700, 700))).value
    assert np.isfinite(found).all() and np.array_equal(found, clipped)


class Read:
    """A summary that is the list of the models read."""

    def __init__(self, rows):
        self.rows = sorted(rows)

    def merged(self, other):
        return Read([*self.rows, *other.rows])


@pytest.mark.parametrize("units", [1, 2, 3, 7, 64])
def test_a_units_summary_is_of_every_other_model_once_and_reading_is_not_quadratic(units):
    unit = np.random.default_rng(0).permutation(np.repeat(np.arange(units), 2))
    reads = []

    def summarise(rows):
        reads.append(len(rows))
        return Read(rows)

    found = dict(left_out(unit, set(range(units)), summarise))
    assert set(found) == set(range(units))
    for number, summary in found.items():
        rows = [] if summary is None else summary.rows
        assert rows == np.flatnonzero(unit != number).tolist()
    assert sum(reads) <= 2 * units * np.ceil(np.log2(max(units, 1)))


def test_a_targets_scores_do_not_depend_on_which_others_are_scored():
    world = gaussian(14, 100)
    for attack in ("rmia", "lira_global", "nig"):
        whole = attacks.score(attack, world).value
        assert np.array_equal(attacks.score(attack, world, targets=[5]).value, whole[[5]])
