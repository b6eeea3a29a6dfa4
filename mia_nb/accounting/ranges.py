"""The ranges of numbers that functions of accounting accept.

They stand here and not in annotations, as elsewhere, since an argument means the same in every
function of this room, and its refusal says what that is.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def _from_0(numbers: np.ndarray) -> np.ndarray:
    return numbers >= 0


def _above_0(numbers: np.ndarray) -> np.ndarray:
    return numbers > 0


def _whole_from_1(numbers: np.ndarray) -> np.ndarray:
    return (numbers >= 1) & (numbers == np.floor(numbers))


def _whole_from_2(numbers: np.ndarray) -> np.ndarray:
    return (numbers >= 2) & (numbers == np.floor(numbers))


def _fractions(numbers: np.ndarray) -> np.ndarray:
    return (numbers >= 0) & (numbers <= 1)


WANTED = {  # {argument: (whether numbers lie in its range, the range in words)}
    "noise_multiplier": (
        lambda numbers: (numbers == 0) | ((numbers >= 1e-6) & (numbers <= 1e9)),
        "0 or from 1e-6 to 1e9: noise sd / clipping norm",
    ),
    "sample_rate": (
        lambda numbers: (numbers > 0) & (numbers <= 1),
        "above 0 and at most 1: expected batch / number of records",
    ),
    "steps": (_whole_from_1, "a whole number from 1: count the steps taken"),
    "epochs": (_whole_from_1, "whole numbers from 1: count epochs from 1"),
    "samples": (_whole_from_1, "a whole number from 1: records trained on"),
    "members": (_whole_from_1, "a whole number from 1: records that a model trains on"),
    "batch": (_whole_from_1, "a whole number from 1, at most the records trained on"),
    "iterations": (_whole_from_1, "a whole number from 1"),
    "queries": (_whole_from_1, "a whole number from 1: outputs for the same input"),
    "classes": (_whole_from_2, "a whole number from 2: labels to choose from"),
    "keep": (_fractions, "from 1 / classes to 1: the probability of saying the true label"),
    "delta": (
        lambda numbers: (numbers >= 0) & (numbers < 1),
        "from 0 to below 1: use 1e-5, or less than 1 / number of records",
    ),
    "delta_prime": (
        lambda numbers: (numbers > 0) & (numbers < 1),
        "above 0 and below 1: use half of the total delta",
    ),
    "fpr": (_fractions, "fractions from 0 to 1"),
    "epsilon": (_from_0, "a number from 0"),
    "mu": (_from_0, "a number from 0: distance of two unit Gaussians"),
    "k": (_from_0, "a finite number from 0: noise per step"),
    "noise_sd": (_from_0, "a finite number from 0: k sqrt(steps)"),
    "lipschitz": (_from_0, "a finite number from 0: a certified bound of the drift"),
    "T": (_above_0, "a finite number above 0: integration time"),
    "clip": (
        _above_0,
        "a finite number above 0: the largest norm of the state that enters the block",
    ),
    "one_sided": (np.isfinite, "a finite number from -lipschitz to lipschitz"),
}
MAY_BE_INFINITE = ("epsilon", "mu")


def check(several: tuple[str, ...] = (), **arguments: Any) -> None:
    """ValueError for arguments that are no numbers in their range; those named in `several` may be
    arrays.
    """
    for name, value in arguments.items():
        in_range, wanted = WANTED[name]
        numbers = _numbers(value)
        if numbers is None or (numbers.ndim and name not in several):
            kind = "numbers" if name in several else "one number"
            raise ValueError(f"{name}={_shown(value)}: wanted {kind}, {wanted}")
        allowed = in_range(numbers)
        if name not in MAY_BE_INFINITE:
            allowed = allowed & np.isfinite(numbers)
        if not np.all(allowed):
            raise ValueError(f"{name}={_shown(value)}: wanted {wanted}")


def _numbers(value: object) -> np.ndarray | None:
    """The value as floats; None for anything that is no number, and for text, which NumPy would
    read as one.
    """
    try:
        numbers = np.asarray(value, float)
    except (TypeError, ValueError, OverflowError):  # the last: a whole number above all floats
        return None
    is_text = np.asarray(value).dtype.kind in "SU"
    return None if is_text else numbers


def _shown(value: object) -> str:
    """A value on one line; unlike `checks.shown` without the names of NumPy's types."""
    text = repr(value) if isinstance(value, str) else str(value)
    return " ".join(text.split())[:60]
