"""Worlds for the explorer of settings: what an attack finds after t steps, Q queries or R noisy
outputs is known.
"""

from __future__ import annotations

import itertools

import numpy as np
from attack_worlds import gaussian
from worlds import pairs

from mia_nb import store
from mia_nb.types import Signals
from mia_nb.widgets import Source

MODELS, SAMPLES = 8, 1400
LEAKS = (0.2, 0.8, 1.4)  # of a network's answer after 1, 2, 3 steps
RATES = (0.02, 0.1)
NOISE, QUERIES = 3.0, 16
KEYS = itertools.count()
RECIPE = {
    "model": "tinycnn",
    "model_args": {"width": 8},
    "epochs": 5,
    "lr": 0.1,
    "augment": "none",
    "seed": 0,
    "parent": None,
}


def answers(leaks, noise, *, query_kind, seed=0, **info):
    """Signals whose margins are leak_q member + noise_q: the loss attack on query q has AUC
    Phi(leak_q / (sd sqrt 2)).
    """
    rng = np.random.default_rng(seed)
    labels = np.arange(SAMPLES) % 4
    member = pairs(MODELS, SAMPLES, labels, np.random.default_rng(7))
    margin = np.stack([leak * member for leak in leaks], 1)
    margin = margin + noise(rng, (MODELS, len(leaks), SAMPLES))
    logits = np.zeros((*margin.shape, 4))
    logits[..., np.arange(SAMPLES), labels] = margin + np.log(3)
    return Signals.from_logits(logits, labels, member, query_kind=query_kind, info=info)


def steady(rng, shape):
    """Of one sample the same at every step."""
    return np.broadcast_to(rng.normal(size=(shape[0], 1, shape[2])), shape)


def spiking(leaks=LEAKS, **options):
    return answers(leaks, steady, query_kind="steps", timesteps=len(leaks), base="toy", **options)


def asked_with(p, queries, leak=1.0, **info):
    """Answers whose noise has one part per sample and one per query, so that the mean of Q has
    variance 1 + 4 / Q.
    """

    def noise(rng, shape):
        return steady(rng, shape) + 2 * rng.normal(size=shape)

    info = {"input_dropout": p, "queries": queries, "family": "toy"} | info
    return answers([leak] * queries, noise, query_kind="dropout", seed=int(1000 * p), **info)


def source(name, signals):
    images = np.arange(SAMPLES * 4, dtype=np.int64).astype(np.uint8).reshape(SAMPLES, 1, 2, 2)
    return Source(name, signals, images=images, classes=("a", "b", "c", "d"))


def gaussian_noise(seed=0, samples=600, queries=QUERIES):
    """Equally hard samples: 1 + member + .8 eps(model, sample) + NOISE eps(answer), and the same
    margins without that noise.
    """
    options = {"delta": 1.0, "sigma": 0.8, "difficulty": 0.0, "seed": seed}
    noisy = gaussian(8, samples, queries=queries, noise=NOISE, query_kind="noise", **options)
    return noisy, gaussian(8, samples, **options)


def noisy_sources(noisy, quiet=None, *, pool="aaaa", sigma=1.0, length=1.0, **info):
    """Sources as the store gives them: who was asked, and how, in `info`."""
    flow = {"k": sigma / 2, "sigma": sigma, "noise_sd": sigma, "T": length, "steps": 4}
    facts = {"pool": pool, "dataset": "toy", "model": "sdenet", "flow": flow} | info
    queried = {"draws": "noise", "noise": True, "queries": noisy.margin.shape[1]}
    found = [Source(f"toy sdenet {pool}, noise", noisy, info=facts | queried)]
    if quiet is not None:
        off = {"draws": "plain", "noise": False, "queries": 1}
        found.append(Source(f"toy sdenet {pool}, noise off", quiet, info=facts | off))
    return found


def result(root, label, signals, *, digest="d" * 64, info=None, **recipe):
    """A source as the store gives it: recipe and images of its pool on disk, signals in memory."""
    folder = store.open_folder(root, "pool", "toy", f"{next(KEYS):064x}"[::-1], RECIPE | recipe)
    folder.write_json("images.json", {"digest": digest, "classes": list("abcd")})
    about = {"draws": "plain", "queries": 1, "pool": label * 12} | (info or {})
    return Source(label, signals, pool=folder, info=about)
