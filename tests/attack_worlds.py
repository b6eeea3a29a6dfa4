"""Synthetic worlds with a known answer, shared by the tests of attacks."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import logsumexp
from scipy.stats import rankdata

from mia_nb import store
from mia_nb.types import Signals


def pairs(models: int, samples: int, population: int = 0, seed: int = 0) -> np.ndarray:
    """(M, N) member mask of complementary pairs; the last `population` columns are False
    everywhere.
    """
    rng = np.random.default_rng(seed)
    half = np.array([rng.permutation(samples) < samples // 2 for _ in range(models // 2)])
    mask = np.stack([half, ~half], axis=1).reshape(models, samples)
    return np.hstack([mask, np.zeros((models, population), bool)])


def signals(
    phi, member=None, *, labels=None, population=None, query_kind="plain", classes=4, seed=0
) -> Signals:
    """Signals of the given margins (M, Q, N) or (M, N): random logits whose label's logit is raised
    until the margin fits.
    """
    phi = phi[:, None] if phi.ndim == 2 else phi
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, phi.shape[2]) if labels is None else labels
    logits = rng.normal(size=(*phi.shape, classes))
    right = np.arange(classes) == labels[:, None]
    others = logsumexp(np.where(right, -np.inf, logits), axis=-1)
    logits = np.where(right, (phi + others)[..., None], logits)
    return Signals.from_logits(logits, labels, member, population=population, query_kind=query_kind)


@lru_cache(maxsize=64)  # tests only read them
def gaussian(
    models=8,
    samples=200,
    *,
    delta=1.0,
    sigma=1.0,
    difficulty=1.5,
    queries=1,
    noise=0.5,
    population=0,
    query_kind="plain",
    seed=0,
) -> Signals:
    """phi[m, q, i] = mu_i + delta member[m, i] + sigma_i eps[m, i] + query noise, in complementary
    pairs.
    """
    rng = np.random.default_rng(seed)
    member = pairs(models, samples, population, seed)
    columns = samples + population
    phi = (
        rng.normal(1, difficulty, columns) + delta * member + sigma * rng.normal(size=member.shape)
    )
    phi = phi[:, None] + (noise * rng.normal(size=(models, queries, columns)) if queries > 1 else 0)
    return signals(
        phi, member, population=np.arange(columns) >= samples, query_kind=query_kind, seed=seed
    )


def auc(score: np.ndarray, member: np.ndarray) -> float:
    ranks, members = rankdata(score), member.sum()
    return (ranks[member].sum() - members * (members + 1) / 2) / (members * (~member).sum())


def null_se(members: int, others: int) -> float:
    return np.sqrt((members + others + 1) / (12 * members * others))


def save_signals(folder, signals, samples=None):
    """Signals as a query stores them, from the outputs of one model after the other."""
    models = list(range(signals.shape[0]))
    for model in models:
        store.write_partial(folder, model, signals.select(models=[model]))
    design = {name: getattr(signals, name) for name in store.DESIGN}
    info = {"draws": signals.query_kind, **signals.info}
    store.join_partial(folder, models, design, info, samples)
