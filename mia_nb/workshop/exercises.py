"""The exercises' checks: a hint that depends on what went wrong, and the truth computed from the cube. They never raise."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal

import numpy as np
from scipy.special import bdtrc

from mia_nb import accounting, attacks, metrics
from mia_nb.workshop.cube import group
from mia_nb.workshop.null import redrawn
from mia_nb.workshop.race import race_table
from mia_nb.workshop.truths import (
    CLOSE,
    Cube,
    answers_gain,
    canary_split,
    equal_accuracy,
    mean_auc,
    middle,
    outcome,
    steps_difference,
)

IMAGE = 42  # of part 3
WORDS = ("more", "less", "cannot say")


def check(part: int, value, cube: Cube) -> bool:
    """Compare an answer with the truth in the cube; prints that it is missing, a hint, or that it is right. True if right.

    None is "not answered yet". The hint depends on what is wrong and does not give the answer away. Never raises: what it
    cannot read, or a cube that lacks what the part needs, is said in words.
    """
    try:
        if part not in CHECKS:
            right, words = (
                False,
                f"there is no part {part!r}; the workshop has parts 1 to {max(CHECKS)}",
            )
        elif value is None:
            right, words = (
                False,
                "not answered yet: put your result into `answer` above, then run both cells",
            )
        else:
            right, words = CHECKS[part](value, cube)
            words = f"right. {words}" if right else f"not yet. {words}"
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        right, words = (
            False,
            f"not yet. This answer cannot be checked: {' '.join(str(error).split())[:200]}",
        )
    print(f"Part {part}: {words}")
    return right


def _number(value) -> float:
    """A plain number; TypeError in words for anything else."""
    if isinstance(value, str | bytes) or np.size(value) != 1:
        what = (
            f"{np.size(value)} values"
            if not isinstance(value, str | bytes)
            else f"the text {value!r}"
        )
        raise TypeError(f"one number is wanted, this is {what}")
    one = np.asarray(value).reshape(-1)[0]
    if isinstance(one, bool | np.bool_):
        raise TypeError(f"one number is wanted, this is {one}")
    number = (
        float(str(one)) if isinstance(one, np.float32 | np.float16) else float(one)
    )  # 0.32 has two digits in any precision
    if not math.isfinite(number):
        raise TypeError(f"a finite number is wanted, this is {number}")
    return number


def _word(value, allowed) -> str:
    text = str(value).strip().lower()
    if text not in allowed:
        raise TypeError(f"one of the words {', '.join(allowed)} is wanted, this is {value!r}")
    return text


def _is(value: float, truth: float, tolerance: float = 5e-4) -> bool:
    return abs(value - truth) <= tolerance * max(1.0, abs(truth)) + 1e-12


def _digits(value: float) -> tuple[int, int]:
    """(significant digits, decimals) that a number was given with; zeros at the end are not seen."""
    written = Decimal(f"{value:.12g}").normalize().as_tuple()
    return len(written.digits), max(0, -written.exponent)


def _rounds(value: float, truth: float) -> bool:
    """Whether `value` is `truth` rounded to the digits given. A rounding that moves it by more than a quarter says nothing."""
    near = abs(value - truth)
    return near <= 0.5 * 10.0 ** -_digits(value)[1] + 1e-9 and near <= 0.25 * abs(truth) + 1e-12


def _judge(
    number, truths, praise, mistakes, hint, *, tolerance=5e-4, share=False
) -> tuple[bool, str]:
    """Right, also if rounded to two digits or more that fit no mistake; else the hint of the mistake (value, hint) made."""
    if any(_is(number, truth, tolerance) for truth in truths):
        return True, praise
    if exact := [words for value, words in mistakes if abs(number - value) < 1e-12]:
        return False, exact[0]
    enough = _digits(number)[0] >= 2
    if any(_rounds(number, truth) for truth in truths):
        mistaken = any(
            _is(number, value, tolerance) or _rounds(number, value) for value, _ in mistakes
        )
        return (True, praise) if enough and not mistaken else (False, "Close: give one digit more.")
    if share and number >= 1 and any(_rounds(number, 100 * truth) for truth in truths):
        return False, "As a share, not in per cent: the number is right, divide it by 100."
    for value, words in mistakes:
        if _is(number, value, tolerance) or (enough and _rounds(number, value)):
            return False, words
    if share and not 0 <= number <= 1:
        return False, f"A share between 0 and 1 is wanted, this is {number:.3g}. {hint}"
    return False, hint


def _luck(value, cube: Cube) -> tuple[bool, str]:
    number, least = _number(value), int(np.flatnonzero(bdtrc(np.arange(21) - 1, 20, 0.5) < 0.05)[0])
    if number != round(number) or not 0 <= number <= 20:
        return False, "A whole number from 0 to 20 is wanted."
    chance = float(bdtrc(number - 1, 20, 0.5))
    if number < least:
        return (
            False,
            f"A coin gets {number:.0f} or more of 20 right in {chance:.1%} of all games; fewer than 5 % are wanted.",
        )
    if number > least:
        return (
            False,
            f"{number:.0f} would do (a coin gets there in {chance:.2%} of all games), but is it the smallest number?",
        )
    return (
        True,
        f"A coin gets {least} or more in {chance:.1%} of all games: twenty guesses show nobody's skill unless it is great.",
    )


def _accusations(value, cube: Cube) -> tuple[bool, str]:
    score, number = cube["small"].scores("rmia"), _number(value)
    at = metrics.tpr_at(score.value[0], score.member[0], 0.05)
    rates = {at.fpr_realised, at.fpr}
    truths = [float(metrics.ppv(at.tpr, fpr, 0.01)) for fpr in rates]
    every_second = (
        "That is the share if every second person was a member. Here it is one in a hundred."
    )
    mistakes = [(float(metrics.ppv(at.tpr, fpr, 0.5)), every_second) for fpr in rates]
    mistakes += [
        (
            at.tpr,
            "That is the share of members found. Asked is the share of accusations that are right.",
        )
    ]
    mistakes += [
        (1 - truth, "That is the share of accusations that are wrong.") for truth in truths
    ]
    praise = f"{truths[0]:.1%}: of a hundred people accused about {100 - 100 * truths[0]:.0f} were never in the data."
    hint = "Count for 100 people: how many members are found, how many of the others are accused? See metrics.ppv."
    return _judge(number, truths, praise, mistakes, hint, share=True)


def _gap(value, cube: Cube) -> tuple[bool, str]:
    number, signals = _number(value), cube["pool"].signals
    _, references = signals.hold_out(0)
    phi, inside = references.margin[:, 0, IMAGE], references.member[:, IMAGE]
    whole, member = signals.margin[:, 0, IMAGE], signals.member[:, IMAGE]
    loss = np.logaddexp(0, -phi)
    truth, everybody, losses = (
        float(x[m].mean() - x[~m].mean())
        for x, m in ((phi, inside), (whole, member), (loss, inside))
    )
    of_losses = (
        "That is a difference of losses. The margin does not saturate where the model is sure."
    )
    mistakes = [
        (-truth, "The sign: with the image minus without it."),
        (
            everybody,
            "The target and its mate are among your models. hold_out(0) gives the references alone.",
        ),
        *((sign * losses, of_losses) for sign in (1, -1)),
    ]
    side = "more" if truth > 0 else "less"
    praise = f"{truth:.2f} nats: models that were trained on image {IMAGE} are {side} sure of it by so much, on average."
    hint = f"Two means of margins of image {IMAGE}: over references that were trained on it, and over those that were not."
    return _judge(number, [truth], praise, mistakes, hint)


def _budget(value, cube: Cube) -> tuple[bool, str]:
    number, table = _number(value), race_table(cube["pool"].signals)
    best = table[table["metric"] == "AUC"].groupby("references")["value"].max()
    enough = int(best.index[best > best.max() - CLOSE].min())
    if number not in best.index:
        return False, f"One of the budgets is wanted: {', '.join(map(str, best.index))}."
    if number < enough:
        return (
            False,
            f"With {number:.0f} the best attack is {best.max() - best[int(number)]:.3f} behind; {CLOSE} is allowed.",
        )
    if number > enough:
        return False, f"{number:.0f} is enough, but a smaller budget also comes within {CLOSE}."
    return (
        True,
        f"With {enough} the best attack reaches {best[enough]:.3f}, with {best.index.max()} {best.max():.3f}.",
    )


def _p_value(value, cube: Cube) -> tuple[bool, str]:
    number = _number(value)
    real, drawn = redrawn(cube["small"].signals, "loss")
    count, worlds = int((drawn >= real).sum()), len(drawn)
    truth = (1 + count) / (worlds + 1)
    below = "That is the share of worlds below the real one; count those at or above it."
    mistakes = [
        (
            count / worlds,
            "Nearly. The real world is itself one of the possible worlds: add one, above and below.",
        ),
        *(
            (share, below)
            for share in (1 - truth, 1 - count / worlds, (worlds - count + 1) / (worlds + 1))
        ),
    ]
    praise = f"{count} of {worlds} redrawn worlds reach the real {real:.3f}; the real one is one of the worlds too."
    hint = "Count the redrawn worlds whose AUC is at least the real one, add one, and divide by all worlds."
    return _judge(number, [truth], praise, mistakes, hint, tolerance=1e-6, share=True)


def _first_step(value, cube: Cube) -> tuple[bool, str]:
    number, few = _number(value), cube["pool"].signals.select(models=slice(0, 6))
    score = attacks.score("attack_r_lattice", few, targets=0)
    curve = metrics.roc(score.value[0], score.member[0])
    truth, n0 = float(curve.fpr[1]), int((~score.member[0]).sum())
    evenly = "The scores have five values, but the samples do not spread evenly over them."
    mistakes = [
        (0.0, "The curve starts at (0, 0), where nobody is accused. Take the next vertex."),
        (
            1 / n0,
            "One non-member alone would be 1 / n0, but tied samples can only be accused together.",
        ),
        *((share, evenly) for share in (1 / 5, 1 / 4)),
        (float(curve.tpr[1]), "That is the true positive rate there."),
    ]
    praise = f"Whoever accuses anybody accuses {truth:.0%} of the non-members: at 1 % there is no point of the curve."
    hint = "metrics.roc(score, member) gives fpr and tpr of every vertex, in order."
    return _judge(number, [truth], praise, mistakes, hint, tolerance=1e-4, share=True)


def _more_steps(value, cube: Cube) -> tuple[bool, str]:
    said, (low, high, ends) = _word(value, WORDS), steps_difference(cube)
    truth = outcome(low, high)
    if said == truth:
        return (
            True,
            f"AUC {ends[0]:.3f} after the first step, {ends[1]:.3f} after the last; the interval decides, not the sign.",
        )
    return (
        False,
        "Look at `low` and `high` of the difference last minus first: on which side of zero do they lie?",
    )


def _gain(value, cube: Cube) -> tuple[bool, str]:
    number, (truth, low, high, ends) = _number(value), answers_gain(cube)
    source = middle(cube)
    many, one = (
        source.signals.margin.shape[1],
        attacks.score("loss", source.signals.select(queries=[0])),
    )
    mistakes = [
        (-truth, "The sign: many answers minus one."),
        *((end, "That is one of the two AUCs; asked is their difference.") for end in ends),
        (
            mean_auc(source.scores("loss")) - mean_auc(one),
            "That is the loss attack's gain; take rmia.",
        ),
    ]
    praise = f"From {ends[0]:.3f} to {ends[1]:.3f} (95 %: {low:+.3f} to {high:+.3f}) by asking {many} times instead of once."
    hint = "Score the first answer alone, signals.select(queries=[0]), and all of them; average the AUC over targets."
    return _judge(number, [truth], praise, mistakes, hint, tolerance=2e-4)


def _canaries(value, cube: Cube) -> tuple[bool, str]:
    number, (odd, others) = _number(value), canary_split(cube)
    every = [mean_auc(source.scores("rmia")) for source in group(cube, "canary")]
    one = "That is one training, and everybody: choose the canaries' columns, and average over all trainings."
    mistakes = [
        (
            others[0],
            "That is the AUC among the images that are no canaries: the mask is the wrong way round.",
        ),
        (
            float(np.mean(every)),
            "That is the average over everybody. Take the canaries' columns of score and member alone.",
        ),
        *((auc, one) for auc in every),
    ]
    praise = f"{odd[0]:.3f} among the mislabelled, {others[0]:.3f} among the others: one average for all would hide that."
    hint = (
        "For every training and target: metrics.auc(value[canary], member[canary]); then the mean."
    )
    return _judge(number, [odd[0]], praise, mistakes, hint, tolerance=2e-4, share=True)


def _equal(value, cube: Cube) -> tuple[bool, str]:
    said, (other, row) = _word(value, WORDS), equal_accuracy(cube)
    truth = "cannot say" if row is None else outcome(row["difference_low"], row["difference_high"])
    if said != truth:
        return (
            False,
            "Read `difference_low` and `difference_high` in the last row of the table: do both lie on one side of zero?",
        )
    if row is None:
        return True, f"{other} and ordinary training share no accuracy."
    ends = f"{row['difference']:+.3f} [{row['difference_low']:+.3f}, {row['difference_high']:+.3f}]"
    return (
        True,
        f"At {row['level']:.1%} test accuracy {other} differs by {ends} from ordinary training.",
    )


def _ceiling(value, cube: Cube) -> tuple[bool, str]:
    number = _number(value)
    truth, at_one = (
        float(accounting.tradeoff(0.01, epsilon=epsilon, delta=1e-5)) for epsilon in (8.0, 1.0)
    )
    first_line = math.exp(8) * 0.01 + 1e-5
    ends = f"{number:.3g} is no share. A curve has two ends: the bound also counts from the other one; take the smaller."
    mistakes = [
        (first_line, ends),
        (at_one, "That is for epsilon 1."),
        (0.01, "1 % is what a coin finds; asked is the most that (8, 1e-5) allows."),
    ]
    praise = f"{truth:.2%} of all members at 1 % false alarms would not contradict epsilon 8."
    hint = "TPR <= min(e^epsilon FPR + delta, 1 - e^-epsilon (1 - delta - FPR)); accounting.tradeoff knows it."
    return _judge(number, [truth], praise, mistakes, hint, tolerance=1e-4, share=True)


CHECKS: dict[int, Callable] = {
    1: _luck, 2: _accusations, 3: _gap, 4: _budget, 5: _p_value, 6: _first_step, 7: _more_steps, 8: _gain, 9: _canaries,
    10: _equal, 11: _ceiling,
}  # fmt: skip
