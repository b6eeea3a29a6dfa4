"""The checker of answers: what to say to a participant's number or word."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal

import numpy as np

WORDS = ("more", "less", "cannot say")
NOT_ANSWERED = "not answered yet: put your result into `answer` above, then run both cells"


def check(
    answer: object,
    truth: float | str | Sequence[float],
    *,
    praise: str,
    hint: str,
    mistakes: Mapping[str, float | Sequence[float]] | None = None,
    tolerance: float = 5e-4,
    share: bool = False,
) -> bool:
    """Compare an answer with the truth, and print a comment on it.

    A number is also right if it was rounded to two digits or more, as long as it does not fit a
    mistake as well. No answer raises an error: words say what cannot be read.

    Parameters:
        answer: a number, or one of the words more, less, cannot say; None is "not answered yet"
        truth: the right number, several numbers that are all right, or the right word
        praise: what to say to a right answer
        hint: what to say to a wrong answer that is none of the mistakes
        mistakes: {hint: the number or numbers that a known mistake leads to}
        tolerance: largest error of a right number; relative above 1, absolute below
        share: whether the number is a share, between 0 and 1

    Returns:
        Whether the answer is right.

    Example:
        >>> check(0.325, 0.3249, praise="Well done.", hint="Count again.")
        right. Well done.
        True
        >>> check(-0.325, 0.3249, praise="Well done.", hint="", mistakes={"The sign.": -0.3249})
        not yet. The sign.
        False
    """
    if answer is None:
        print(NOT_ANSWERED)
        return False
    if isinstance(truth, str):
        right, comment = judge_word(answer, truth, praise, hint)
    else:
        truths = [float(number) for number in np.atleast_1d(truth)]
        wrong = list_mistakes(mistakes or {})
        right, comment = judge_number(answer, truths, praise, hint, wrong, tolerance, share)
    print(f"right. {comment}" if right else f"not yet. {comment}")
    return right


def judge_word(answer: object, truth: str, praise: str, hint: str) -> tuple[bool, str]:
    """Whether a word is the right one, in upper or lower case, and what to say to it."""
    word = str(answer).strip().lower()
    if word == truth:
        return True, praise
    if word in WORDS:
        return False, hint
    return False, f"Wanted is one of the words {', '.join(WORDS)}."


def judge_number(
    answer: object,
    truths: Sequence[float],
    praise: str,
    hint: str,
    mistakes: Sequence[tuple[float, str]],
    tolerance: float,
    share: bool,
) -> tuple[bool, str]:
    """Whether a number is right, and what to say to it. The first rule that holds decides:

    1. what is no number is wrong;
    2. a number within the tolerance of the truth is right;
    3. exactly the number of a mistake is that mistake;
    4. a rounded truth is right with two digits or more if it fits no mistake; else another digit is
       asked for;
    5. where a share is wanted, the truth in per cent is answered by saying so;
    6. what fits a mistake is that mistake;
    7. anything else is wrong, with a remark on what is no share.
    """
    try:
        number = read_number(answer)
    except ValueError as error:
        return False, f"This answer cannot be checked: {error}"
    digits, _ = written_digits(number)

    if any(is_close(number, truth, tolerance) for truth in truths):
        return True, praise
    for wrong, words in mistakes:
        if abs(number - wrong) < 1e-12:
            return False, words

    # a single digit fits too many numbers to tell which mistake was made
    fitting = [
        words
        for wrong, words in mistakes
        if is_close(number, wrong, tolerance) or (digits >= 2 and rounds(number, wrong))
    ]
    if any(rounds(number, truth) for truth in truths):
        if digits < 2:
            return False, "Close: give one digit more."
        if fitting:  # one digit more tells the truth from the mistake
            return False, "Close: give one digit more."
        return True, praise
    if share and number >= 1 and any(rounds(number, 100 * truth) for truth in truths):
        return False, "As a share, not in per cent: the number is right, divide it by 100."
    if fitting:
        return False, fitting[0]
    if share and not 0 <= number <= 1:
        return False, f"A share between 0 and 1 is wanted, this is {number:.3g}. {hint}"
    return False, hint


def list_mistakes(mistakes: Mapping[str, float | Sequence[float]]) -> list[tuple[float, str]]:
    """[(a wrong number, its hint)] of {hint: wrong numbers}."""
    pairs = []
    for words, numbers in mistakes.items():
        for number in np.atleast_1d(numbers):
            pairs.append((float(number), words))
    return pairs


def read_number(value: object) -> float:
    """A plain finite number; ValueError in words for anything else."""
    try:
        (item,) = np.ravel(value)
        if isinstance(item, bool | np.bool_):
            raise TypeError
        # as text, so that 0.32 has two digits in any precision
        number = float(str(item) if isinstance(item, np.float16 | np.float32) else item)
    except (ValueError, TypeError):
        number = math.nan
    if not math.isfinite(number):
        shown = " ".join(repr(value).split())[:200]
        raise ValueError(f"one finite number is wanted, this is {shown}")
    return number


def is_close(number: float, wanted: float, tolerance: float) -> bool:
    """Whether two numbers agree up to the tolerance, relative above 1 and absolute below."""
    return abs(number - wanted) <= tolerance * max(1.0, abs(wanted)) + 1e-12


def rounds(number: float, exact: float) -> bool:
    """Whether `number` is `exact` rounded to the digits that it was given with.

    A rounding that moves it by more than a quarter does not count.
    """
    _, decimals = written_digits(number)
    distance = abs(number - exact)
    return distance <= 0.5 * 10.0**-decimals + 1e-9 and distance <= 0.25 * abs(exact) + 1e-12


def written_digits(number: float) -> tuple[int, int]:
    """(significant digits, decimals) of a number; zeros at the end do not count."""
    written = Decimal(f"{number:.12g}").normalize().as_tuple()
    return len(written.digits), max(0, -written.exponent)
