"""Schedules of the learning rate."""

from __future__ import annotations

import math

from mia_nb.types import Recipe


def learning_rate(recipe: Recipe, fraction: float, history: list[float]) -> float:
    """The recipe's learning rate at a fraction of training in [0, 1).

    Parameters:
        recipe: gives lr and schedule.
        fraction: t, the share of the training that is over.
        history: mean training loss of each epoch so far, for plateau.

    Schedules:
        one_cycle: half a cosine from lr/25 to lr over the first 30 %, then to lr/10^4 (Smith and
            Topin 2018, as in torch's OneCycleLR).
        cosine: lr (1 + cos(pi t)) / 2.
        linear: lr (1 - t).
        plateau: lr, multiplied by 0.1 whenever the loss has not fallen by 2 % for more than 10
            epochs, down to 1e-5.
        constant: lr.
    """
    lr = recipe.lr
    if recipe.schedule == "one_cycle":
        return _one_cycle(lr, fraction)
    if recipe.schedule == "cosine":
        return lr * (1 + math.cos(math.pi * fraction)) / 2
    if recipe.schedule == "linear":
        return lr * (1 - fraction)
    if recipe.schedule == "plateau":
        return _plateau(lr, history)
    return lr


def _one_cycle(lr: float, fraction: float) -> float:
    """The schedule "one_cycle"."""
    if fraction < 0.3:
        start = lr / 25
        end = lr
        t = fraction / 0.3
    else:
        start = lr
        end = lr / 1e4
        t = (fraction - 0.3) / 0.7
    return end + (start - end) * (1 + math.cos(math.pi * t)) / 2


def _plateau(lr: float, history: list[float]) -> float:
    """The schedule "plateau"."""
    least = min(1e-5, lr)
    best = math.inf
    waited = 0
    for loss in history:
        if loss < 0.98 * best:
            best = loss
            waited = 0
        else:
            waited += 1
        if waited > 10:
            lr = max(lr * 0.1, least)
            waited = 0
    return lr
