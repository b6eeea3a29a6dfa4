"""Checks of what callers pass: each gives the value back, or raises ValueError of one line: what
came, what was wanted.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import math
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from typing import Any

import numpy as np

# a parameter's nesting, entries and whole numbers stay below
DEEP = 12
MANY = 100_000
LARGE = 2**63
SHORT = reprlib.Repr()
SHORT.maxlevel, SHORT.maxstring, SHORT.maxother = 3, 60, 60


def shown(value: Any) -> str:
    """A value as an error shows it: short, on one line, whatever it is."""
    text = " ".join(SHORT.repr(value).split())
    return text if len(text) <= 120 else f"{text[:120]}..."


def duration(seconds: float) -> str:
    """Seconds as one would say them: 0.4 s, 45 s, 12 min, 2 h 10 min, 3 d 4 h."""
    if seconds < 90:
        return f"{seconds:.{0 if seconds >= 9.5 else 1}f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"


def holding(texts: dict[str, Any]) -> list[str]:
    """Those of the texts {text: whether it holds} that do."""
    return [text for text, holds in texts.items() if holds]


def first_of(texts: dict[str, Any]) -> str:
    """The first of the texts {text: whether it holds} that does, "" if none does."""
    return next(iter(holding(texts)), "")


def hint(value: Any, known: Iterable[str]) -> str:
    """ "; did you mean 'crop'?" where a known word is close, else nothing."""
    close = difflib.get_close_matches(str(value), list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def one_of(name: str, value: Any, known: Iterable[str]) -> str:
    """The value, if it is one of the known words; ValueError, with the closest of them, if not."""
    if not isinstance(value, str) or value not in known:
        words = ", ".join(known)
        raise ValueError(f"{name}={shown(value)} is not one of {words}{hint(value, known)}")
    return value


def instance(name: str, value: Any, kind: type) -> Any:
    """The value, if it is of this class; ValueError if not."""
    if not isinstance(value, kind):
        raise ValueError(f"{name}={shown(value)}: wanted {getattr(kind, '__name__', kind)}")
    return value


def whole(name: str, value: Any, least: int = 1) -> int:
    """The value as an int, if it is a whole number from `least` up; ValueError if not."""
    number = value.item() if isinstance(value, np.number) else value
    real = isinstance(number, int | float) and not isinstance(number, bool)
    if not (real and least <= number < LARGE and number % 1 == 0):
        wanted = f" from {least} up" if least > -LARGE else ""
        raise ValueError(f"{name}={shown(value)}: wanted a whole number{wanted}")
    return int(number)


def reals(name: str, value: Any) -> np.ndarray:
    """The value as float64, if it holds nothing but real numbers; ValueError if not."""
    found = np.asarray(value)
    if found.dtype.kind not in "biuf" or isinstance(value, np.ma.MaskedArray):
        raise ValueError(f"{name}={shown(value)}: wanted numbers")
    return found.astype(np.float64, copy=False)


def counted(name: str, value: Any, least: int = 0) -> np.ndarray:
    """The value as float64, if it holds nothing but whole numbers from `least` up; ValueError if
    not. What arithmetic rounded, as in 0.07 * 100, is the whole number beside it.
    """
    found = reals(name, value)
    near = np.rint(found)
    # NaN and infinity fail the comparison
    with np.errstate(invalid="ignore"):
        fits = (np.abs(found - near) <= 1e-9 * np.maximum(near, 1)) & (near >= least)
    if not fits.all():
        first = found[~fits].ravel()[0] if found.ndim else found
        raise ValueError(
            f"{name}={shown(value)}: wanted whole numbers from {least} up, and {first:g} is none:"
            " of a rate pass its hits and trials"
        )
    return near


def positive(name: str, value: Any, *, zero: bool = False) -> Any:
    """The value, if it is one finite number above 0, or 0 where that will do; ValueError if not."""
    found = reals(name, value)
    if found.ndim or not (0 < found < np.inf or (zero and found == 0)):
        raise ValueError(
            f"{name}={shown(value)}: wanted a finite number {'from 0 up' if zero else 'above 0'}"
        )
    return value


def fraction(name: str, value: Any, ends: str = "[]", *, many: bool = False) -> Any:
    """The value, if it lies in [0, 1], without 0 or 1 where `ends` is "(]", "[)" or "()";
    ValueError if not.
    """
    found = reals(name, value)
    above = found > 0 if ends[0] == "(" else found >= 0
    below = found < 1 if ends[1] == ")" else found <= 1
    if (found.ndim and not many) or not (above & below).all():
        wanted = f"{'fractions' if many else 'a fraction'} in {ends[0]}0, 1{ends[1]}"
        raise ValueError(f"{name}={shown(value)}: wanted {wanted}; 95 % is 0.95")
    return value


def mask(name: str, value: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """The value as booleans, if it holds booleans or the whole numbers 0 and 1, in this shape;
    ValueError if not.
    """
    found = np.asarray(value)
    if (
        found.size
        and found.dtype != bool
        and (found.dtype.kind not in "iu" or not np.isin(found, (0, 1)).all())
    ):
        what = (
            f"numbers from {found.min()} to {found.max()}"
            if found.dtype.kind in "iuf"
            else shown(value)
        )
        raise ValueError(f"{name} holds {what}: wanted booleans, or the whole numbers 0 and 1")
    if shape is not None and found.shape != shape:
        raise ValueError(f"{name} has shape {found.shape}; wanted {shape}")
    return found.astype(bool, copy=False)


def row_numbers(name: str, value: Any, count: int) -> np.ndarray:
    """Row numbers as an int array: one or several of 0..count - 1, None for all; ValueError if
    not.
    """
    if value is None:
        return np.arange(count)
    found = np.atleast_1d(np.asarray(list(value) if isinstance(value, Iterable) else value))
    if found.dtype.kind not in "iu" or found.ndim != 1 or ((found < 0) | (found >= count)).any():
        raise ValueError(f"{name}={shown(value)}: wanted some of the rows 0..{count - 1}")
    return found.astype(int)


def plain(value: Any, depth: int = DEEP, seen: Iterator[int] | None = None) -> Any:
    """The value as JSON has it: tuples and arrays as lists, NumPy's numbers as Python's, paths as
    text.

    ValueError for anything else: NaN and infinity, whole numbers beyond 64 bits, names that are no
    text, what contains itself or is nested absurdly.
    """
    seen = seen or itertools.count()
    if depth == 0 or next(seen) > MANY:
        raise ValueError(
            f"it contains itself, is nested more than {DEEP} deep or has more than {MANY} entries"
        )
    if hasattr(value, "tolist") and not isinstance(value, type):
        value = value.tolist()
    if isinstance(value, dict):
        if bad := [name for name in value if not isinstance(name, str)]:
            raise ValueError(f"{shown(bad[0])} is a name in a mapping, and names are text")
        return {name: plain(item, depth - 1, seen) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth - 1, seen) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if (isinstance(value, float) and not math.isfinite(value)) or (
        isinstance(value, int) and abs(value) >= LARGE
    ):
        raise ValueError(f"{shown(value)} is not finite, or too large")
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(
        f"{shown(value)} is a {type(value).__name__}; parameters are numbers, text, true/false,"
        " null, lists or mappings"
    )


def real(name: str, value: Any) -> Any:
    """The value, if it is one real number, infinite or not; ValueError if not."""
    found = reals(name, value)
    if found.ndim or np.isnan(found) or found.dtype == bool:
        raise ValueError(f"{name}={shown(value)}: wanted a number")
    return value


RATES = partial(fraction, many=True)
CLASSES = (
    "Images",
    "Recipe",
    "Pool",
    "Scores",
    "Signals",
    "Folder",
    "Roc",
    "Limit",
    "SelfTest",
    "pd.DataFrame",
)
OF_KIND = {  # what an annotation asks for; classes of the package are known by their names
    "int": partial(whole, least=-LARGE),
    "float": real,
    "bool": partial(instance, kind=bool | np.bool_),
    "str": partial(instance, kind=str),
    "str | Path": partial(instance, kind=str | os.PathLike),
    "dict": partial(instance, kind=dict),
}
OF_NAME = {  # what a name asks for, wherever it is a parameter
    "seed": partial(whole, least=0),
    "n_resamples": partial(whole, least=0),
    "confidence": partial(fraction, ends="()"),
    "level": partial(fraction, ends="()"),
    "delta": partial(fraction, ends="[)", many=True),
    "input_dropout": fraction,
    "fpr": RATES,
    "tpr": RATES,
    "prior": RATES,
    "member": mask,
    "score": reals,
    "k": partial(whole, least=0),
    "num_samples": whole,
    "samples": whole,
    "components": whole,
    "share": fraction,
    "folds": partial(whole, least=2),
}


def checked(function: Callable) -> Callable:
    """The function, its arguments checked by their names and annotations before it runs; ValueError
    of one line.

    None is allowed where it is the default or the annotation says so. What neither a name nor an
    annotation tells is left to the function.
    """
    signature = inspect.signature(function)
    known = {name: _check_of(parameter) for name, parameter in signature.parameters.items()}
    optional = {
        name
        for name, parameter in signature.parameters.items()
        if "None" in str(parameter.annotation)
    }

    @wraps(function)
    def call(*args, **options):
        for name, value in signature.bind(*args, **options).arguments.items():
            left_out = value is signature.parameters[name].default or (
                value is None and name in optional
            )
            if known[name] and not left_out:
                known[name](name, value)
        return function(*args, **options)

    return call


def _check_of(parameter: inspect.Parameter) -> Callable | None:
    """The check of a parameter, None where nothing is known of it."""
    kind = parameter.annotation if isinstance(parameter.annotation, str) else ""
    kind = kind.removesuffix(" | None")
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return None
    if parameter.name in OF_NAME and kind in ("", "int", "float"):
        check = OF_NAME[parameter.name]
        words = getattr(OF_NAME[parameter.name], "keywords", {})
        return partial(check, many=False) if kind == "float" and "many" in words else check
    return _check_of_kind(kind)


def _check_of_kind(kind: str) -> Callable | None:
    """The check of an annotation; of a mapping's values and of a sequence's items too."""
    if kind in CLASSES:
        return partial(_of_class, kind=kind.removeprefix("pd."))
    for start, container in (("dict[", dict), ("list[", list | tuple), ("Sequence[", list | tuple)):
        if kind.startswith(start):
            inner = kind[len(start) : -1]
            item = inner.partition(", ")[2] if container is dict else inner
            check = None if item in ("str", "dict") else _check_of_kind(item)
            return None if item == "int" else partial(_each, kind=container, check=check)
    return OF_KIND.get(kind)


def _of_class(name: str, value: Any, kind: str) -> None:
    if kind not in [one.__name__ for one in type(value).__mro__]:
        raise ValueError(f"{name}={shown(value)}: wanted {kind}")


def _each(name: str, value: Any, kind: type, check: Callable | None) -> None:
    instance(name, value, kind)
    if check:
        for place, item in value.items() if isinstance(value, dict) else enumerate(value):
            check(f"{name}[{place!r}]", item)
