"""Defenses that change the outputs of a trained model: logits in, logits out, NumPy.

The attacker sees the changed outputs of targets and references alike. A defense that shows
probabilities returns their logarithms, which attacks read like logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax

from mia_nb.checks import whole


def label_only(logits: np.ndarray, *, confidence: float = 0.5) -> np.ndarray:
    """MemGuard in the form that Hong, Wu, Gruber and Lee (arXiv 2501.06686) call arbitrary: the
    predicted class gets `confidence`, the others equal shares. (..., K) -> (..., K).

    Scores of attacks then have two values only, right and wrong. No threshold reaches a small false
    positive rate, so the TPR there is 0 because of ties, which says nothing about protection. Use
    the attacks that need labels only (correctness; vote, with augmentation).
    """
    classes = logits.shape[-1]
    if not isinstance(confidence, int | float) or not 1 / classes < confidence < 1:
        raise ValueError(
            f"confidence={confidence!r}: wanted more than 1/{classes} and less than 1, so that the"
            " label can be read"
        )
    top = np.arange(classes) == logits.argmax(-1)[..., None]
    return np.where(top, np.log(confidence), np.log((1 - confidence) / (classes - 1)))


def hamp(logits: np.ndarray, *, random: np.ndarray) -> np.ndarray:
    """The output part of HAMP: the sorted probabilities of a random input, assigned to the classes
    in the order of the real output.

    random (N, K): the same model's logits on random images, one for each output. Source: Chen and
    Pattabiraman (NDSS 2024). Caveat: the order of the classes is not changed and still gives
    information away; HAMP's training part is not included.
    """
    falling = -np.sort(-log_softmax(random, -1), -1)
    # among tied classes the first, which is predicted, gets the largest probability
    return np.take_along_axis(falling, _ranks(logits), -1)


def rounding(logits: np.ndarray, *, decimals: int = 1) -> np.ndarray:
    """Probabilities rounded to this number of decimals. One that rounds to 0 was below half a unit
    of the last decimal, and counts as a quarter of a unit.

    Caveat: classes may tie after rounding; `change_output` keeps the predicted class slightly above
    the others.
    """
    unit = 10.0 ** -whole("decimals", decimals)
    p = np.round(np.exp(log_softmax(logits, -1)), decimals)
    return np.log(np.maximum(p, unit / 4))


def top(logits: np.ndarray, *, classes: int = 1) -> np.ndarray:
    """Only the `classes` largest probabilities are shown. The attacker spreads the missing mass
    evenly over the other classes, none of which gets more than the smallest one shown.
    """
    total = logits.shape[-1]
    if not 1 <= whole("classes", classes) < total:
        raise ValueError(f"classes={classes}: wanted at least 1 and fewer than the model's {total}")
    p = np.exp(log_softmax(logits, -1))
    shown = _ranks(p) < classes
    missing = np.maximum(1 - (p * shown).sum(-1, keepdims=True), 1e-12)
    smallest_shown = np.where(shown, p, np.inf).min(-1, keepdims=True)
    guess = np.minimum(missing / (total - classes), smallest_shown)
    return np.log(np.where(shown, np.maximum(p, 1e-12), guess))


def _ranks(values: np.ndarray) -> np.ndarray:
    """(..., K) rank of each class, 0 for the largest; ties are ranked in order of the classes."""
    order = np.argsort(-values, -1, kind="stable")
    return np.argsort(order, -1)


class Output(NamedTuple):
    """A function logits -> logits, the defaults of its options, and whether it also takes the
    model's logits on random images (random=).
    """

    change: Callable[..., np.ndarray]
    defaults: dict
    random: bool = False


OUTPUTS = {
    "memguard": Output(label_only, {"confidence": 0.5}),
    "hamp": Output(hamp, {}, random=True),
    "rounding": Output(rounding, {"decimals": 1}),
    "top": Output(top, {"classes": 1}),
}


def change_output(
    name: str, logits: np.ndarray, random: np.ndarray | None = None, **options: float
) -> np.ndarray:
    """Logits (..., K) as an output defense shows them.

    The predicted class, the first of the largest logits, stays predicted: if another class would
    tie with it or exceed it, it is raised to 1e-9 above that class.

    Parameters:
        name: a key of OUTPUTS.
        logits: (..., K) logits of a model.
        random: the model's logits on random images, for defenses that need them.
        options: all options of the defense.
    """
    defense = OUTPUTS[name]
    if defense.random:
        shown = defense.change(logits, random=random, **options)
    else:
        shown = defense.change(logits, **options)
    predicted = np.arange(logits.shape[-1]) == logits.argmax(-1)[..., None]
    largest_other = np.where(predicted, -np.inf, shown).max(-1, keepdims=True)
    return np.where(predicted, np.maximum(shown, largest_other + 1e-9), shown)
