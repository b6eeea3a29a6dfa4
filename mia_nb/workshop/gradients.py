"""A record and its label, read off the gradient of one training step."""

from typing import NamedTuple

import numpy as np

HIDDEN = 16  # width of the small network whose gradients are shown
STEPS = 16  # of its equation


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
