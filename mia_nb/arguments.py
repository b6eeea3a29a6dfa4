"""Types of the arguments of public functions: `help()` and editors show them, and `checked` holds
callers to them.

A class of the package, without `Annotated`, wants an instance of itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import PlainValidator, SkipValidation, ValidationInfo

from mia_nb.checks import LARGE, fraction, instance, mask, real, reals, whole


def _held_to(check: Callable[..., Any], **options: Any) -> PlainValidator:
    """A check of `mia_nb.checks` in the form that pydantic calls."""

    def validate(value: Any, info: ValidationInfo) -> Any:
        return check(info.field_name, value, **options)

    return PlainValidator(validate)


Whole = Annotated[int, _held_to(whole, least=-LARGE)]
"""Any whole number."""

Count = Annotated[int, _held_to(whole, least=0)]
"""A whole number from 0 up: a seed, a number of resamples."""

Positive = Annotated[int, _held_to(whole, least=1)]
"""A whole number from 1 up."""

Several = Annotated[int, _held_to(whole, least=2)]
"""A whole number from 2 up."""

Real = Annotated[float, _held_to(real)]
"""A real number, infinite or not."""

Flag = Annotated[bool, _held_to(instance, kind=bool | np.bool_)]
"""True or False, and no other value that counts as one of them."""

PathLike = Annotated[str | Path, _held_to(instance, kind=str | os.PathLike)]
"""A file or folder."""

Level = Annotated[float, _held_to(fraction, ends="()")]
"""A probability between 0 and 1 without its ends, such as a level of confidence."""

Delta = Annotated[float, _held_to(fraction, ends="[)")]
"""The delta of differential privacy, in [0, 1)."""

Fraction = Annotated[float, _held_to(fraction)]
"""A fraction in [0, 1]."""

Rates = Annotated[float | Sequence[float] | np.ndarray, _held_to(fraction, many=True)]
"""One rate in [0, 1], or several."""

Mask = Annotated[np.ndarray, _held_to(mask)]
"""Booleans, or the whole numbers 0 and 1."""

Numbers = Annotated[np.ndarray, _held_to(reals)]
"""Real numbers in any shape, as float64."""

Array = Annotated[np.ndarray, SkipValidation]
"""An array, or a value that NumPy converts to one; the function itself checks its contents."""

Rows = Annotated[int | Iterable[int], SkipValidation]
"""One row number or several; the function itself checks that they are there."""

Named = Annotated[str | Callable[..., Any], SkipValidation]
"""A name, or the function that it names."""

Anything = Annotated[Any, SkipValidation]
"""A value that the docstring describes; the function itself checks it."""
