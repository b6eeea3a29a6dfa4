"""The ranges of numbers that functions of accounting accept."""

from __future__ import annotations

from typing import Any

import numpy as np


def _counts(v: np.ndarray) -> np.ndarray:
    return (v >= 1) & (v == np.floor(v))


WANTED = {  # {argument: (what holds for it, in words)}
    "noise_multiplier": (
        lambda v: (v == 0) | ((v >= 1e-6) & (v <= 1e9)),
        "0 or from 1e-6 to 1e9: noise sd / clipping norm",
    ),
    "sample_rate": (
        lambda v: (v > 0) & (v <= 1),
        "above 0 and at most 1: expected batch / number of records",
    ),
    "steps": (_counts, "a whole number from 1: count the steps taken"),
    "epochs": (_counts, "whole numbers from 1: count epochs from 1"),
    "samples": (_counts, "a whole number from 1: records trained on"),
    "members": (_counts, "a whole number from 1: records that a model trains on"),
    "batch": (_counts, "a whole number from 1, at most the records trained on"),
    "iterations": (_counts, "a whole number from 1"),
    "queries": (_counts, "a whole number from 1: outputs for the same input"),
    "classes": (
        lambda v: (v >= 2) & (v == np.floor(v)),
        "a whole number from 2: labels to choose from",
    ),
    "keep": (
        lambda v: (v >= 0) & (v <= 1),
        "from 1 / classes to 1: the probability of saying the true label",
    ),
    "delta": (
        lambda v: (v >= 0) & (v < 1),
        "from 0 to below 1: use 1e-5, or less than 1 / number of records",
    ),
    "delta_prime": (
        lambda v: (v > 0) & (v < 1),
        "above 0 and below 1: use half of the total delta",
    ),
    "fpr": (lambda v: (v >= 0) & (v <= 1), "fractions from 0 to 1"),
    "epsilon": (lambda v: v >= 0, "a number from 0"),
    "mu": (lambda v: v >= 0, "a number from 0: distance of two unit Gaussians"),
    "k": (lambda v: v >= 0, "a finite number from 0: noise per step"),
    "noise_sd": (lambda v: v >= 0, "a finite number from 0: k sqrt(steps)"),
    "lipschitz": (lambda v: v >= 0, "a finite number from 0: a certified bound of the drift"),
    "T": (lambda v: v > 0, "a finite number above 0: integration time"),
    "clip": (
        lambda v: v > 0,
        "a finite number above 0: the largest norm of the state that enters the block",
    ),
    "one_sided": (np.isfinite, "a finite number from -lipschitz to lipschitz"),
}
MAY_BE_INFINITE = {"epsilon", "mu"}


def check(several: tuple[str, ...] = (), **arguments: Any) -> None:
    """Refuse arguments that are no numbers in their range; those of `several` may be arrays.

    Text is no number, though NumPy reads it as one.
    """
    for name, value in arguments.items():
        in_range, wanted = WANTED[name]
        numbers = _numbers(value)
        if numbers is None or (numbers.ndim and name not in several):
            kind = "numbers" if name in several else "one number"
            raise ValueError(f"{name}={_shown(value)}: wanted {kind}, {wanted}")
        finite = np.isfinite(numbers) | (name in MAY_BE_INFINITE)
        if not np.all(in_range(numbers) & finite):
            raise ValueError(f"{name}={_shown(value)}: wanted {wanted}")


def _numbers(value: object) -> np.ndarray | None:
    """The value as floats; None for text and anything else that is no number."""
    try:
        numbers = np.asarray(value, float)
    except (TypeError, ValueError, OverflowError):  # the last: a whole number above all floats
        return None
    is_text = np.asarray(value).dtype.kind in "SU"
    return None if is_text else numbers


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return " ".join(text.split())[:60]
