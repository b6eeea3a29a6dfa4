"""Two gradients that give a record away, whatever noise lies between them."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import ipywidgets as W
import numpy as np
import pandas as pd

from mia_nb.plots import samples as pictures
from mia_nb.widgets.explorer import ROW, Explorer, View, message, steps
from mia_nb.widgets.stored import Source

TITLE = "Two gradients"
SIGMAS = (0, 2, 20, 200, 2000)
HIDDEN, STEPS = 16, 16


class Gradients(NamedTuple):
    """Gradients of one record's loss: of the first layer's weights (HIDDEN, D) and bias (HIDDEN,), of the last bias (K,)."""

    weight: np.ndarray
    bias: np.ndarray
    last_bias: np.ndarray


def gradients(x, label: int, classes: int, *, sigma: float, seed: int = 0) -> Gradients:
    """One backward pass through a linear layer, a neural SDE and a linear layer, for one record x (D,).

    h_0 = W x + b;  h_{i+1} = h_i + tanh(h_i) dt + sigma sqrt(dt) eps_i, 16 steps to T = 1;  logits = V h / |h| + c.
    With g = dL/dh_0 of the cross-entropy L: dL/dW = g x^T and dL/db = g, so that every row of dL/dW over dL/db is the record,
    and dL/dc = p - e_label has its only negative entry at the label: noise changes g and p, and neither of the two statements.
    """
    x, rng = np.asarray(x, float).ravel(), np.random.default_rng(seed)
    first, last = (
        rng.normal(0, 1 / np.sqrt(x.size), (HIDDEN, x.size)),
        rng.normal(0, 1, (classes, HIDDEN)),
    )
    bias = rng.normal(0, 0.1, HIDDEN)
    h, dt, states = first @ x + bias, 1 / STEPS, []
    for _ in range(STEPS):
        states.append(h)
        h = h + np.tanh(h) * dt + sigma * np.sqrt(dt) * rng.standard_normal(HIDDEN)
    norm = np.linalg.norm(h)
    logits = last @ h / norm
    p = np.exp(logits - logits.max())
    p /= p.sum()
    error = p - (np.arange(classes) == label)
    g = last.T @ error
    g = (g - h * (h @ g) / norm**2) / norm
    for state in reversed(states):
        g = g * (1 + dt * (1 - np.tanh(state) ** 2))
    return Gradients(np.outer(g, x), g, error)


def recovered(found: Gradients) -> tuple[np.ndarray, int]:
    """(the record (D,), its label) read off its gradients alone."""
    i = int(np.abs(found.bias).argmax())
    return found.weight[i] / found.bias[i], int(found.last_bias.argmin())


def leak(source: Source) -> Explorer:
    """An image, the noise of an equation in the network, and the image and label read off the gradient of one training step.

    The network is small and freshly drawn: what is shown holds for every linear first layer with a bias. It concerns gradients
    of single records, which DP-SGD clips and covers with noise; it says nothing about what a trained model answers.
    """
    if source.images is None:
        return message(
            TITLE,
            f"no images are stored with {source.label}; build the cube with: mia-nb run workshop",
        )

    @cache
    def run(image, sigma):
        x = np.asarray(source.images[image], float) / 255
        label = int(source.signals.labels[image])
        found = gradients(x, label, len(source.classes), sigma=sigma, seed=image)
        seen, said = recovered(found)
        return x, seen.reshape(x.shape), label, said, found

    @cache
    def picture(image, sigma):
        x, seen, label, said, _ = run(image, sigma)
        both = np.rint(255 * np.clip(np.stack([x, seen]), 0, 1)).astype(np.uint8)
        words = [f"the record: {source.classes[label]}", f"its gradient: {source.classes[said]}"]
        title = f"One record, and what its gradient shows at sigma = {sigma:g}"
        return pictures.sheet(both, words, [0, 1], title, columns=8)

    def draw(image, sigma) -> View:
        x, seen, label, said, found = run(image, sigma)
        worst = float(np.abs(seen - x).max())
        right = (
            "the right label"
            if said == label
            else f"the label {source.classes[said]} instead of {source.classes[label]}"
        )
        sentence = f"sigma = {sigma:g}: the image is read off the gradient to {worst:.0e} of the brightest pixel, and {right}"
        row = {
            "sigma": f"{sigma:g}",
            "largest error of a pixel": f"{worst:.1e}",
            "label said": source.classes[said],
        }
        row |= {"size of the gradient": f"{np.linalg.norm(found.weight):.1e}"}
        note = "no training, no attack on answers: one backward pass of a small network with such an equation inside"
        return View(sentence, {"record": picture(image, sigma)}, pd.DataFrame([row]), note)

    controls = {
        "image": W.IntSlider(
            description="image", min=0, max=len(source.signals.labels) - 1, value=3, **ROW
        ),
        "sigma": steps("sigma", SIGMAS, 2),
    }
    return Explorer(TITLE, controls, draw, rows=[["record"]])
