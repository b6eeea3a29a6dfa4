"""Two kinds of exercise, and what each says of an answer: a number, and one of a few choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

import numpy as np

WORDS = ("more", "less", "cannot say")
Verdict = tuple[bool, str]  # whether an answer is right, and what to say to it


class Number(NamedTuple):
    """An exercise whose answer is a number."""

    truths: Sequence[float]  # each of them is right
    praise: str
    hint: str  # where no mistake is recognised
    mistakes: Sequence[tuple] = ()  # (numbers that a mistake leads to, its hint)
    tolerance: float = 5e-4  # relative above 1, absolute below
    share: bool = False  # between 0 and 1

    def judge(self, value) -> Verdict:
        """Right, also if rounded to two digits or more that fit no mistake; else the hint of the
        mistake made. TypeError for what is no number.
        """
        number = read_number(value)
        enough = _digits(number)[0] >= 2
        mistakes = [(wrong, hint) for numbers, hint in self.mistakes for wrong in numbers]
        if any(self._is(number, truth) for truth in self.truths):
            return True, self.praise
        if exact := [hint for wrong, hint in mistakes if abs(number - wrong) < 1e-12]:
            return False, exact[0]
        fitting = [
            hint
            for wrong, hint in mistakes
            if self._is(number, wrong) or (enough and rounds(number, wrong))
        ]
        if any(rounds(number, truth) for truth in self.truths):
            right = enough and not fitting
            return right, self.praise if right else "Close: give one digit more."
        if self.share and number >= 1 and any(rounds(number, 100 * x) for x in self.truths):
            return False, "As a share, not in per cent: the number is right, divide it by 100."
        outside = self.share and not 0 <= number <= 1
        wanted = f"A share between 0 and 1 is wanted, this is {number:.3g}. " if outside else ""
        return False, fitting[0] if fitting else f"{wanted}{self.hint}"

    def _is(self, number: float, truth: float) -> bool:
        return abs(number - truth) <= self.tolerance * max(1.0, abs(truth)) + 1e-12


class Choice(NamedTuple):
    """An exercise whose answer is one of a few whole numbers or words."""

    truth: int | str
    comments: dict[int | str, str]  # what is said of each that may be chosen, the truth too
    wanted: str  # what is said of anything else

    def judge(self, value) -> Verdict:
        """Right, or a hint; words are read in any case. TypeError for what should be a number."""
        worded = isinstance(self.truth, str)
        chosen = str(value).strip().lower() if worded else read_number(value)
        return chosen == self.truth, self.comments.get(chosen, self.wanted)


def word(truth: str, praise: str, hint: str) -> Choice:
    """The exercise whose answer is one of WORDS."""
    comments = dict.fromkeys(WORDS, hint) | {truth: praise}
    return Choice(truth, comments, f"Wanted is one of the words {', '.join(WORDS)}.")


def read_number(value) -> float:
    """A plain finite number; TypeError in words for anything else."""
    text = isinstance(value, str | bytes)
    if text or np.size(value) != 1:
        came = f"the text {value!r}" if text else f"{np.size(value)} values"
        raise TypeError(f"one number is wanted, this is {came}")
    item = np.asarray(value).reshape(-1)[0]
    if isinstance(item, bool | np.bool_):
        raise TypeError(f"one number is wanted, this is {item}")
    # 0.32 has two digits in any precision
    number = float(str(item)) if isinstance(item, np.float32 | np.float16) else float(item)
    if not math.isfinite(number):
        raise TypeError(f"a finite number is wanted, this is {number}")
    return number


def rounds(value: float, truth: float) -> bool:
    """Whether `value` is `truth` rounded to the digits given.

    A rounding that moves it by more than a quarter says nothing.
    """
    near = abs(value - truth)
    return near <= 0.5 * 10.0 ** -_digits(value)[1] + 1e-9 and near <= 0.25 * abs(truth) + 1e-12


def _digits(value: float) -> tuple[int, int]:
    """(significant digits, decimals) that a number was given with; zeros at the end are not
    seen.
    """
    written = Decimal(f"{value:.12g}").normalize().as_tuple()
    return len(written.digits), max(0, -written.exponent)
