"""Options and thresholds are chosen on references alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from worlds import world

from mia_nb import attacks, metrics


def blinded(signals, rows):
    """The signals with everything the given models answered replaced by the same nonsense."""
    cubes = {
        name: getattr(signals, name).copy()
        for name in ("margin", "entropy", "modified_entropy", "top_log_p")
    }
    for cube in cubes.values():
        cube[rows] = -7.0
    return replace(signals, **cubes)


def louder(signals, factor, seed):
    """The same models queried with more noise: a worse option."""
    noise = factor * np.random.default_rng(seed).normal(size=signals.margin.shape)
    return replace(signals, margin=signals.margin + noise)


def test_choosing_never_reads_the_excluded_target_or_its_complementary_model():
    plain = world(10, 200, leak=1.0)
    candidates = {"p=0": plain, "noisy": louder(plain, 1.0, 1)}
    seen = metrics.choose(candidates, attacks.reference.rmia, exclude=3)
    unseen = metrics.choose(
        {name: blinded(one, [2, 3]) for name, one in candidates.items()},
        attacks.reference.rmia,
        exclude=3,
    )
    assert seen.best == unseen.best and seen.table.equals(unseen.table)
    assert (seen.table["pseudo_targets"] == 8).all()
    several = metrics.choose(
        {name: blinded(one, [2, 3, 6, 7]) for name, one in candidates.items()},
        attacks.reference.rmia,
        exclude=[3, 6],
    )
    assert (several.table["pseudo_targets"] == 6).all() and several.table["value"].notna().all()


def test_a_refinement_must_earn_its_place():
    plain = world(12, 300, leak=1.0)
    alike = {"p=0": plain, "p=0.01": louder(plain, 0.01, 1), "p=0.1": louder(plain, 0.02, 2)}
    assert metrics.choose(alike, attacks.reference.rmia, exclude=0).best == "p=0"
    better = {"p=0": louder(plain, 3.0, 1), "p=0.01": plain}
    choice = metrics.choose(better, attacks.reference.rmia, exclude=0)
    assert choice.best == "p=0.01" and not choice.table.loc["p=0", "within_one_error"]


def test_the_objective_is_a_mean_over_references_with_an_error_over_pairs():
    plain = world(8, 300, leak=1.0)
    choice = metrics.choose(
        {"noisy": louder(plain, 3.0, 1), "p=0": plain},
        attacks.reference.rmia,
        exclude=0,
        objective="tpr@0.1",
    )
    references = plain.select(models=range(2, 8))
    scores = attacks.score(attacks.reference.rmia, references)
    values = [
        metrics.tpr_at(*row, 0.1).tpr for row in zip(scores.value, scores.member, strict=True)
    ]
    assert choice.table.loc["p=0", "value"] == pytest.approx(np.mean(values))
    pair_means = np.reshape(values, (3, 2)).mean(1)
    assert choice.table.loc["p=0", "error"] == pytest.approx(pair_means.std(ddof=1) / np.sqrt(3))


def test_choosing_needs_two_pairs_of_references_one_pool_and_a_known_objective():
    with pytest.raises(ValueError, match="less than 2 pairs"):
        metrics.choose({"p=0": world(4, 100)}, attacks.reference.rmia, exclude=0)
    with pytest.raises(ValueError, match="another membership mask"):
        metrics.choose(
            {"a": world(8, 100), "b": world(8, 100, seed=1)}, attacks.reference.rmia, exclude=0
        )
    with pytest.raises(ValueError, match="objective='accuracy'"):
        metrics.choose(
            {"a": world(8, 100)}, attacks.reference.rmia, exclude=0, objective="accuracy"
        )
    with pytest.raises(ValueError, match=r"objective='tpr@1%' is not one of auc"):
        metrics.choose({"a": world(8, 100)}, attacks.reference.rmia, exclude=0, objective="tpr@1%")
    with pytest.raises(ValueError, match="hide membership"):
        metrics.choose(
            {"a": replace(world(8, 100), member=None)}, attacks.reference.rmia, exclude=0
        )


def test_importing_metrics_leaves_torch_out():
    code = "import sys, mia_nb.metrics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
