"""The checker of answers: what to say to a participant's number or word."""

from collections.abc import Mapping, Sequence

import numpy as np

from mia_nb.checks import shown

WORDS = ("more", "less", "cannot say")
NOT_ANSWERED = "not answered yet: put your result into `answer` above, then run both cells"


def check(
    answer: object,
    truth: float | str | Sequence[float],
    *,
    praise: str,
    hint: str,
    mistakes: Mapping[str, float | Sequence[float]] | None = None,
    tolerance: float = 5e-3,
    share: bool = False,
) -> bool:
    """Compare an answer with the truth, and print a comment on it.

    A number is right if no mistake's number is nearer, and its error is that of three digits or
    less. No answer raises an error: words say what cannot be read.

    Parameters:
        answer: a number, or one of the words more, less, cannot say; None is "not answered yet"
        truth: the right number, several numbers that are all right, or the right word
        praise: what to say to a right answer
        hint: what to say to a wrong answer that is none of the mistakes
        mistakes: {hint: the number or numbers that a known mistake leads to}
        tolerance: largest relative error of a right number
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
        comment = on_word(answer, truth, praise, hint)
    else:
        comments = {praise: truth, **(mistakes or {})}
        comment = on_number(answer, truth, comments, tolerance, share) or hint
    right = comment == praise
    print(f"right. {comment}" if right else f"not yet. {comment}")
    return right


def on_word(answer: object, truth: str, praise: str, hint: str) -> str:
    """The comment on a word."""
    word = str(answer).strip().lower()
    if word not in WORDS:
        return f"Wanted is one of the words {', '.join(WORDS)}."
    return praise if word == truth else hint


def on_number(
    answer: object,
    truth: float | Sequence[float],
    comments: Mapping[str, float | Sequence[float]],
    tolerance: float,
    share: bool,
) -> str:
    """The comment on a number; "" where there is none.

    Parameters:
        answer: what was given
        truth: the right number or numbers
        comments: {comment: the number or numbers that it is about}, the truth included
        tolerance: largest relative error
        share: whether the number is a share
    """
    try:
        (number,) = np.ravel(answer).astype(float)
    except (ValueError, TypeError):
        number = np.nan
    if not np.isfinite(number):
        return (
            f"This answer cannot be checked: one finite number is wanted, this is {shown(answer)}"
        )
    comment = nearest_comment(number, comments, tolerance)
    if comment:
        return comment
    for exact in np.atleast_1d(truth):
        # nobody rounds a whole number: 60 for 64 is no answer with too few digits
        rounded = () if float(exact).is_integer() else (f"{exact:.1g}", f"{exact:.2g}")
        if number in map(float, rounded):
            return "Close: give one digit more."
        if share and abs(number / 100 - exact) <= tolerance * abs(exact):
            return "As a share, not in per cent: the number is right, divide it by 100."
    return ""


def nearest_comment(
    number: float, comments: Mapping[str, float | Sequence[float]], tolerance: float
) -> str:
    """The comment about the number that lies nearest, within the tolerance; "" where none does."""
    nearest = ""
    least = np.inf
    for comment, numbers in comments.items():
        for exact in np.atleast_1d(numbers):
            error = abs(number - exact)
            if error <= tolerance * abs(exact) + 1e-12 and error < least:
                nearest = comment
                least = error
    return nearest
