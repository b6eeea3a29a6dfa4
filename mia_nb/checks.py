"""Checks of values that callers pass: each returns the value, or raises ValueError of one line:
what came, what was wanted.
"""

from __future__ import annotations

import difflib
import inspect
import math
import os
import reprlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache, wraps
from types import UnionType
from typing import (
    Any,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

# limits of a parameter's nesting and of its whole numbers
DEEP = 12
LARGE = 2**63
SHORT = reprlib.Repr()
SHORT.maxlevel = 3
SHORT.maxstring = 60
SHORT.maxother = 60


def shown(value: Any) -> str:
    """Any value as an error shows it: short and on one line."""
    text = " ".join(SHORT.repr(value).split())
    return text if len(text) <= 120 else f"{text[:120]}..."


def quantity(count: int, singular: str, plural: str = "") -> str:
    """A count and its noun: "1 query", "4 queries". plural: "" for the singular with an s."""
    if count == 1:
        return f"{count} {singular}"
    return f"{count} {plural or singular + 's'}"


def duration(seconds: float) -> str:
    """Seconds in a readable form: 0.4 s, 45 s, 12 min, 2 h 10 min, 3 d 4 h."""
    if seconds < 9.5:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"


def hint(value: Any, known: Iterable[str]) -> str:
    """ "; did you mean 'crop'?" if a known word is close, else ""."""
    close = difflib.get_close_matches(str(value), list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def one_of(name: str, value: Any, known: Iterable[str]) -> str:
    """The value, if it is one of the known words; ValueError, with the closest of them, if not."""
    if not isinstance(value, str) or value not in known:
        words = ", ".join(known)
        raise ValueError(f"{name}={shown(value)} is not one of {words}{hint(value, known)}")
    return value


def known_options(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """TypeError, in Python's words, for an option that the constructor of `owner` does not take.
    Without this check the error would name the class that the options are passed on to.
    """
    for name in given:
        if name not in known:
            raise TypeError(f"{owner}.__init__() got an unexpected keyword argument {name!r}")


def instance(name: str, value: Any, kind: type) -> Any:
    """The value, if it is an instance of this class; ValueError if not."""
    if not isinstance(value, kind):
        raise ValueError(f"{name}={shown(value)}: wanted {getattr(kind, '__name__', kind)}")
    return value


def whole(name: str, value: Any, least: int = 1) -> int:
    """The value as an int, if it is a whole number from `least` up; ValueError if not."""
    number = value.item() if isinstance(value, np.number) else value
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if not (is_number and least <= number < LARGE and number % 1 == 0):
        wanted = f" from {least} up" if least > -LARGE else ""
        raise ValueError(f"{name}={shown(value)}: wanted a whole number{wanted}")
    return int(number)


def frames_of(value: Any, channels: int) -> int:
    """A number of frames of events that divides the number of channels; ValueError for others."""
    if type(value) is not int or value < 1 or channels % value:
        raise ValueError(
            f"frames={shown(value)}; wanted a whole number of which {channels} channels are a"
            " multiple"
        )
    return value


def as_array(value: Any) -> np.ndarray:
    """The value as an array. Tensors may be on a GPU, carry gradients, or be of bfloat16, which
    NumPy lacks: these become float32.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if "bfloat16" in str(value.dtype):
            value = value.float()
    return np.asarray(value)


def reals(name: str, value: Any) -> np.ndarray:
    """The value as float64, if it holds only real numbers; ValueError if not."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or isinstance(value, np.ma.MaskedArray):
        raise ValueError(f"{name}={shown(value)}: wanted numbers")
    return array.astype(np.float64, copy=False)


def counted(name: str, value: Any) -> np.ndarray:
    """The value as float64, if it holds only whole numbers from 0 up; ValueError if not.

    Rounding errors of arithmetic, as in 0.07 * 100, are removed.
    """
    array = reals(name, value)
    near = np.rint(array)
    # NaN and infinity fail the comparison
    with np.errstate(invalid="ignore"):
        fits = (np.abs(array - near) <= 1e-9 * np.maximum(near, 1)) & (near >= 0)
    if not fits.all():
        first = array[~fits].ravel()[0] if array.ndim else array
        raise ValueError(
            f"{name}={shown(value)}: wanted whole numbers from 0 up, and {first:g} is none:"
            " of a rate pass its hits and trials"
        )
    return near


def positive(name: str, value: Any, *, zero: bool = False) -> Any:
    """The value, if it is one finite number above 0, or 0 if allowed; ValueError if not."""
    number = reals(name, value)
    fits = number.ndim == 0 and (0 < number < np.inf or (zero and number == 0))
    if not fits:
        least = "from 0 up" if zero else "above 0"
        raise ValueError(f"{name}={shown(value)}: wanted a finite number {least}")
    return value


def fraction(name: str, value: Any, ends: str = "[]", *, many: bool = False) -> Any:
    """The value, if it lies in [0, 1]; ValueError if not. `ends` "(]", "[)" or "()" exclude 0, 1 or
    both.
    """
    numbers = reals(name, value)
    above = numbers > 0 if ends[0] == "(" else numbers >= 0
    below = numbers < 1 if ends[1] == ")" else numbers <= 1
    if (numbers.ndim and not many) or not (above & below).all():
        wanted = f"{'fractions' if many else 'a fraction'} in {ends[0]}0, 1{ends[1]}"
        raise ValueError(f"{name}={shown(value)}: wanted {wanted}; 95 % is 0.95")
    return value


def mask(name: str, value: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """The value as booleans, if it holds booleans or the whole numbers 0 and 1 and has this shape;
    ValueError if not.
    """
    array = np.asarray(value)
    zeros_and_ones = array.dtype.kind in "iu" and np.isin(array, (0, 1)).all()
    if array.size and array.dtype != bool and not zeros_and_ones:
        contents = shown(value)
        if array.dtype.kind in "iuf":
            contents = f"numbers from {array.min()} to {array.max()}"
        raise ValueError(f"{name} holds {contents}: wanted booleans, or the whole numbers 0 and 1")
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}; wanted {shape}")
    return array.astype(bool, copy=False)


def row_numbers(name: str, value: Any, count: int) -> np.ndarray:
    """Row numbers as an int array: one or several of 0..count - 1, or None for all; ValueError for
    other values.
    """
    if value is None:
        return np.arange(count)
    rows = np.atleast_1d(list(value) if isinstance(value, Iterable) else value)
    if rows.dtype.kind not in "iu" or rows.ndim != 1 or ((rows < 0) | (rows >= count)).any():
        raise ValueError(f"{name}={shown(value)}: wanted some of the rows 0..{count - 1}")
    return rows.astype(int)


def plain(value: Any, depth: int = DEEP) -> Any:
    """The value in types of JSON: tuples and arrays as lists, NumPy's numbers as Python's, paths as
    text.

    ValueError for anything else: NaN and infinity, whole numbers beyond 64 bits, names that are not
    text, values that contain themselves or are nested too deeply.
    """
    if depth == 0:
        raise ValueError(f"it contains itself or is nested more than {DEEP} deep")
    if hasattr(value, "tolist") and not isinstance(value, type):
        value = value.tolist()
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise ValueError(f"{shown(name)} is a name in a mapping, and names are text")
        return {name: plain(item, depth - 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth - 1) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    infinite = isinstance(value, float) and not math.isfinite(value)
    if infinite or (isinstance(value, int) and abs(value) >= LARGE):
        raise ValueError(f"{shown(value)} is not finite, or too large")
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(
        f"{shown(value)} is a {type(value).__name__}; parameters are numbers, text, true/false,"
        " null, lists or mappings"
    )


def real(name: str, value: Any) -> Any:
    """The value, if it is one real number, infinite or not; ValueError if not."""
    number = reals(name, value)
    if number.ndim or np.isnan(number) or number.dtype == bool:
        raise ValueError(f"{name}={shown(value)}: wanted a number")
    return value


MADE_BY = {  # which calls give a record, for whoever passes what it is made from
    "dataset": "; data.from_arrays(x, y) makes images of arrays and tensors",
    "Images": ", as data.load gives them of a name or path, and data.from_arrays(x, y) of arrays",
    "Pool": ", as mia.train(recipe, images) and mia.load_pool(key) give it",
    "Recipe": ", such as mia.Recipe(num_models=4, epochs=5)",
    "Scores": ', as mia.score("rmia", signals) gives them',
    "Signals": ", as mia.query(pool, images) gives them",
}

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, its arguments validated by pydantic against their annotations before it runs.

    A mistake is a ValueError of one line: which argument, what came, what was wanted. Only types of
    `mia_nb.arguments` convert values; defaults are not validated.
    """
    signature = inspect.signature(function)

    @cache  # built at the first call and not at import, as it takes milliseconds
    def validator() -> Callable:
        """A function with this signature, validated by pydantic, that returns its arguments."""
        from pydantic import ConfigDict, validate_call

        def passed_on(*args: Any, **options: Any) -> tuple[tuple, dict]:
            return args, options

        hints = get_type_hints(function, include_extras=True)
        annotations = {name: _by_instance(hints.get(name, Any)) for name in signature.parameters}
        parameters = [
            parameter.replace(annotation=annotations[name])
            for name, parameter in signature.parameters.items()
        ]
        passed_on.__signature__ = signature.replace(parameters=parameters)
        passed_on.__annotations__ = annotations
        return validate_call(
            passed_on, config=ConfigDict(strict=True, arbitrary_types_allowed=True)
        )

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            values = signature.bind(*args, **options).arguments
        except TypeError as error:
            raise TypeError(f"{function.__name__}: {error}") from None
        try:
            args, options = validator()(*args, **options)
        except ValueError as error:
            if not hasattr(error, "errors"):  # it is not of pydantic, which is imported late
                raise
            raise ValueError(_refusal(error.errors(), values, signature)) from None
        return function(*args, **options)

    return call


def _by_instance(annotation: Any) -> Any:
    """The annotation with classes of this package replaced by checks for an instance: pydantic
    itself would validate the fields of a dataclass or named tuple, and accept a plain tuple.
    """
    from pydantic import InstanceOf

    if isinstance(annotation, type) and annotation.__module__.startswith("mia_nb."):
        return InstanceOf[annotation]
    origin = get_origin(annotation)
    if origin is UnionType:
        origin = Union
    if origin in (Union, dict, list, tuple, Sequence):
        return origin[tuple(map(_by_instance, get_args(annotation)))]
    return annotation


def _refusal(errors: list[dict], values: dict[str, Any], signature: inspect.Signature) -> str:
    """One line for pydantic's errors in the first argument that has any."""
    names = list(signature.parameters)

    def argument(error: dict) -> str:
        place = error["loc"][0]
        return place if isinstance(place, str) else names[place]

    name = argument(errors[0])
    of_argument = [error for error in errors if argument(error) == name]
    # a union has an error for each of its types; None is refused by all values but itself
    telling = [error for error in of_argument if error["type"] != "none_required"]
    if len(telling) == 1 and telling[0]["type"] == "value_error":
        return str(telling[0]["ctx"]["error"]) + MADE_BY.get(name, "")
    # the annotation names all types
    wanted = str(signature.parameters[name].annotation).removesuffix(" | None")
    return f"{name}={shown(values[name])}: wanted {wanted}{MADE_BY.get(wanted, '')}"
