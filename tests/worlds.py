"""Signals of pools whose leak is known: margins mu_i + leak member + sigma_i noise, in three
designs.
"""

from __future__ import annotations

import numpy as np

from mia_nb.types import Signals

CLASSES = 4


def pairs(models, samples, labels, rng):
    """Complementary pairs, halves equal in every class."""
    member = np.zeros((models, samples), bool)
    for row in range(0, models, 2):
        order = np.lexsort((rng.random(samples), labels))
        member[row, order[::2]] = True
        member[row + 1] = ~member[row]
    return member


def world(models=8, samples=400, *, leak=0.0, spread=0.6, population=0, design=pairs, seed=0):
    """Margins mu_i + leak member + sigma_i noise, as logits of four classes."""
    rng = np.random.default_rng(seed)
    labels = np.arange(samples + population) % CLASSES
    member = np.zeros((models, samples + population), bool)
    member[:, :samples] = design(models, samples, labels[:samples], rng)
    centre, scale = (
        rng.normal(2, 2, samples + population),
        np.exp(spread * rng.normal(size=samples + population)),
    )
    margin = centre + scale * (leak * member + rng.normal(size=member.shape))
    logits = np.zeros((*margin.shape, CLASSES))
    logits[:, np.arange(len(labels)), labels] = margin + np.log(CLASSES - 1)
    return Signals.from_logits(logits, labels, member, population=np.arange(len(labels)) >= samples)


def balanced(models, samples, labels, rng):
    return rng.random((models, samples)).argsort(0) < models // 2


def bernoulli(models, samples, labels, rng):
    return rng.random((models, samples)) < 0.5
