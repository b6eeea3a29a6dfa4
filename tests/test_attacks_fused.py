"""fused: several attacks weighed on pseudo-targets, none of which is the target."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from attack_worlds import auc, gaussian, null_se, pairs, signals
from sklearn.linear_model import LogisticRegression

from mia_nb import attacks
from mia_nb.attacks.fused import TAIL


def two_kinds(models=16, samples=1500, seed=0):
    """Half of the samples leak by a large gap among loud answers, half by a small one among quiet
    answers.
    """
    rng = np.random.default_rng(seed)
    member, loud = pairs(models, samples, seed=seed), np.arange(samples) % 2 == 0
    level, spread, gap = np.where(loud, -6, 6), np.where(loud, 3.0, 0.15), np.where(loud, 3.0, 0.2)
    phi = rng.normal(level, 0.5) + gap * member + spread * rng.normal(size=member.shape)
    return signals(phi, member, seed=seed)


def mean_auc(scores):
    return np.mean([auc(v, m) for v, m in zip(scores.value, scores.member, strict=True)])


def test_fused_beats_every_attack_that_it_is_made_of_where_no_single_one_is_best():
    world, targets = two_kinds(), range(0, 16, 2)
    singles = {
        name: attacks.ATTACKS[name]
        for name in ("rmia", "nig", "attack_r", "loss", "lira_global", "lira_shrunk")
    }
    singles["nig_ratio"] = partial(attacks.likelihood.nig, share_variance="ratio")
    found = {
        name: mean_auc(attacks.score(one, world, targets=targets)) for name, one in singles.items()
    }
    best = mean_auc(attacks.score("fused", world, targets=targets))
    assert {name: value for name, value in found.items() if value > best} == {}
    assert best > 0.5 + 20 * null_se(750, 750) / np.sqrt(8)


def test_the_second_fit_weighs_what_the_first_would_accuse(monkeypatch):
    fits, fit = [], LogisticRegression.fit

    def watched(self, x, y, sample_weight=None):
        fit(self, x, y, sample_weight)
        fits.append((x @ self.coef_[0], y, sample_weight))
        return self

    monkeypatch.setattr(LogisticRegression, "fit", watched)
    attacks.score("fused", two_kinds(8, 300), targets=[0])
    (odds, member, unweighted), (*_, weight) = fits
    assert unweighted is None and np.all(np.diff(weight[np.argsort(odds)]) >= 0)
    accused = odds >= np.quantile(odds[~member.astype(bool)], TAIL)
    assert weight[accused].min() > 0.49 and weight[~accused].max() < 0.51 and TAIL > 0.5


@pytest.mark.parametrize(("models", "queries"), [(8, 1), (8, 4), (16, 1)])
def test_fused_finds_nothing_where_nothing_leaks(models, queries):
    options = {"delta": 0.0, "queries": queries, "query_kind": "plain" if queries == 1 else "noise"}
    worlds = [gaussian(models, 200, seed=seed, **options) for seed in range(2)]
    found = np.mean([mean_auc(attacks.score("fused", world)) for world in worlds])
    # targets that are each other's pseudo-targets vary together: half as many count as independent
    assert abs(found - 0.5) < 3 * null_se(100, 100) / np.sqrt(models)


@pytest.mark.parametrize("models", [4, 6])
def test_fewer_than_three_pairs_of_references_are_refused_in_one_line(models):
    with pytest.raises(
        ValueError, match=r"2 references a side.* 0 of 100 .*3 pairs.*use rmia"
    ) as refused:
        attacks.score("fused", gaussian(models, 100))
    assert "\n" not in str(refused.value)


def test_a_target_alone_and_references_of_one_side_are_refused():
    target, references = gaussian(10, 100).hold_out(0)
    with pytest.raises(ValueError, match="needs reference models"):
        attacks.fused.fused(target)
    one_sided = replace(references, member=np.zeros_like(references.member))
    with pytest.raises(ValueError, match="fused needs IN and OUT references"):
        attacks.fused.fused(target, one_sided)


@pytest.mark.parametrize("option", [{"pseudo": 0}, {"pseudo": 2.5}, {"max_rows": 10}], ids=str)
def test_too_few_pseudo_targets_or_rows_to_fit_on_are_refused(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        attacks.fused.fused(*gaussian(10, 100).hold_out(0), **option)


def test_a_seed_repeats_what_is_drawn_and_another_draws_anew():
    pair = gaussian(16, 200).hold_out(0)
    draw = partial(attacks.fused.fused, *pair, pseudo=4, max_rows=400)
    assert np.array_equal(draw(seed=1), draw(seed=1)) and not np.array_equal(
        draw(seed=1), draw(seed=2)
    )


def test_population_columns_are_left_out_and_change_no_score():
    target, references = gaussian(10, 120, population=40).hold_out(0)
    score = attacks.fused.fused(target, references)
    assert np.isnan(score[120:]).all() and np.isfinite(score[:120]).all()
    without = [s.select(samples=np.arange(120)) for s in (target, references)]
    assert np.allclose(score[:120], attacks.fused.fused(*without), rtol=1e-12, atol=1e-12)


def test_a_pseudo_target_never_has_its_complement_among_its_references(monkeypatch):
    from mia_nb.types import Signals

    held, plain = [], Signals.hold_out
    target, references = gaussian(12, 100).hold_out(3)
    monkeypatch.setattr(Signals, "hold_out", lambda s, row: held.append((s, row)) or plain(s, row))
    attacks.fused.fused(target, references, pseudo=6)
    assert len(held) == 6
    masks = np.array([s.member[row] for s, row in held])
    # drawn in pairs: each sample is a member half the time
    assert all((masks[i] != masks[i + 1]).all() for i in (0, 2, 4))
    for s, row in held:
        rest = plain(s, row)[1].member
        assert (
            len(rest) == 8
            and not (rest == s.member[row]).all(1).any()
            and not (rest != s.member[row]).all(1).any()
        )


def test_samples_that_lack_a_side_are_refused_or_left_unscored():
    target, references = gaussian(12, 200).hold_out(0)
    member = references.member.copy()
    member[:, 7] = False
    short = replace(references, member=member)
    with pytest.raises(ValueError, match="1 of 200 samples lack one"):
        attacks.fused.fused(target, short)
    score = attacks.fused.fused(target, short, missing="nan")
    assert np.flatnonzero(np.isnan(score)).tolist() == [7]


def test_a_balanced_design_without_pairs_is_refused_unless_told_otherwise():
    rng = np.random.default_rng(0)
    target, references = gaussian(12, 300).hold_out(0)
    uneven = replace(references, member=rng.random(references.member.shape) < 0.5)
    with pytest.raises(ValueError, match="allow_unequal"):
        attacks.fused.fused(target, uneven, missing="nan")
    assert (
        np.isfinite(attacks.fused.fused(target, uneven, missing="nan", allow_unequal=True)).mean()
        > 0.8
    )
