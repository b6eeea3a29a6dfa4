"""A record and its label, read off the gradient of one training step."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb.plots import samples
from mia_nb.widgets.controls import count, steps
from mia_nb.widgets.explorer import Explorer, View, message
from mia_nb.widgets.stored import Source
from mia_nb.workshop.game import WITHOUT_IMAGES, pictured

TITLE = "Two gradients"
SIGMAS = (0, 2, 20, 200, 2000)
HIDDEN = 16  # width of the small network whose gradients are shown
STEPS = 16  # of its equation


def leak(source: Source) -> Explorer:
    """An image, beside the image and label that are read off the gradient of one training step at
    any strength of the noise in the network's equation.

    The network is small and its weights are random, but the result holds for every linear first
    layer with a bias. It concerns gradients of single records, which DP-SGD clips and adds noise
    to; it says nothing about a trained model's outputs.

    Parameters:
        source: signals with images, such as `cube["pool"]`

    Returns:
        An explorer, a static figure in batch mode.
    """
    if source.images is None:
        return message(TITLE, WITHOUT_IMAGES.format(source.label))

    def draw(image: int, sigma: float) -> View:
        """The image beside its reconstruction from the gradient of one step."""
        column = pictured(source)[image]
        x = np.asarray(source.images[column], float) / 255
        label = source.signals.labels[column]
        leaked = gradients(x, label, len(source.classes), sigma=sigma, seed=image)
        record, label_read = recovered(leaked)
        record = record.reshape(x.shape)
        worst = float(np.abs(record - x).max())
        true_class = source.classes[label]
        class_read = source.classes[label_read]

        label_text = "the right label"
        if label_read != label:
            label_text = f"the label {class_read} instead of {true_class}"
        sentence = (
            f"sigma = {sigma:g}: the image is read off the gradient to {worst:.0e} of the brightest"
            f" pixel, and {label_text}"
        )
        row = {
            "sigma": f"{sigma:g}",
            "largest error of a pixel": f"{worst:.1e}",
            "label read": class_read,
            "size of the gradient": f"{np.linalg.norm(leaked.weight):.1e}",
        }
        note = (
            "no training, no attack on outputs: one backward pass of a small network with such an"
            " equation inside"
        )
        both = np.rint(255 * np.clip(np.stack([x, record]), 0, 1)).astype(np.uint8)
        captions = [f"the record: {true_class}", f"its gradient: {class_read}"]
        title = f"One record, and what its gradient shows at sigma = {sigma:g}"
        figure = samples.sheet(both, captions, [0, 1], title, columns=8)
        return View(sentence, {"record": figure}, pd.DataFrame([row]), note)

    last = len(pictured(source)) - 1
    controls = {
        "image": count("image", 0, last, 3),
        "sigma": steps("sigma", SIGMAS, 2),
    }
    return Explorer(TITLE, controls, cache(draw), rows=[["record"]])


class Gradients(NamedTuple):
    """Gradients of one record's loss with respect to the first layer's weights (HIDDEN, D) and bias
    (HIDDEN,), and to the last bias (K,).
    """

    weight: np.ndarray
    bias: np.ndarray
    last_bias: np.ndarray


def gradients(x: np.ndarray, label: int, classes: int, *, sigma: float, seed: int = 0) -> Gradients:
    """One backward pass through a linear layer, a neural SDE and a linear layer, for one record x
    (D,).

    h_0 = W x + b;  h_{i+1} = h_i + tanh(h_i) dt + sigma sqrt(dt) eps_i, 16 steps to T = 1;  logits
    = V h / |h| + c. With g = dL/dh_0 of the cross-entropy L: dL/dW = g x^T and dL/db = g, so that
    every row of dL/dW over dL/db is the record, and dL/dc = p - e_label has its only negative entry
    at the label: noise changes g and p, but neither of the two statements.

    Parameters:
        x: (D,) the record
        label: its class
        classes: number of classes K
        sigma: strength of the noise in the equation
        seed: seed of the weights and of the noise
    """
    x = np.asarray(x, float).ravel()
    rng = np.random.default_rng(seed)
    first = rng.normal(0, 1 / np.sqrt(x.size), (HIDDEN, x.size))
    last = rng.normal(0, 1, (classes, HIDDEN))
    bias = rng.normal(0, 0.1, HIDDEN)
    h = first @ x + bias
    dt = 1 / STEPS
    states = []
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


def recovered(leaked: Gradients) -> tuple[np.ndarray, int]:
    """(the record (D,), its label) read off its gradients alone."""
    i = int(np.abs(leaked.bias).argmax())
    return leaked.weight[i] / leaked.bias[i], int(leaked.last_bias.argmin())
