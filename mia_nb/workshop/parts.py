"""The eleven parts, a record each: the question that is asked first, what its answer turns out to
be, the exercise and the demonstration. All numbers are computed from the cube.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import bdtrc

from mia_nb import accounting, attacks, metrics, widgets
from mia_nb.metrics.uncertainty import measurable_rates
from mia_nb.types import Scores, Signals
from mia_nb.widgets.explorer import Explorer
from mia_nb.widgets.networks import query_kind
from mia_nb.widgets.stored import Source
from mia_nb.workshop import explorers
from mia_nb.workshop.answers import WORDS, Choice, Number, word
from mia_nb.workshop.cube import Cube
from mia_nb.workshop.game import game
from mia_nb.workshop.measures import (
    RATE,
    auc_among,
    equal_accuracy,
    first_half,
    lattice_scores,
    mean_auc,
    odd_ones,
    outcome,
    p_value,
    race_table,
    redrawn,
    with_interval,
    with_references,
)
from mia_nb.workshop.questions import Prediction

CLOSE = 0.01  # AUCs nearer than this are called equal in the workshop's texts
IMAGE = 266  # of part 3


class Part(NamedTuple):
    """A part of the workshop, of one cube."""

    question: str
    options: Sequence  # to choose from, or the two ends of a slider
    answer: object
    why: str
    exercise: Number | Choice
    demonstration: Callable[[], Explorer]


def read_part(number: int, cube: Cube) -> Part:
    """Part 1 to 11 with the numbers of the cube. ValueError for another number."""
    if number not in PARTS:
        raise ValueError(f"there is no part {number!r}; the workshop has parts 1 to {max(PARTS)}")
    return PARTS[number](cube)


def question(part: int, cube: Cube) -> Prediction:
    """The question that a part begins with; its answer comes after one's own.

    Parameters:
        part: 1 to 11
        cube: of `open_cube`

    Returns:
        A `Prediction`: radio buttons or a slider; in batch mode the folded answer.

    Raises:
        ValueError: for another number, and for a cube that lacks what the part needs.
    """
    record = read_part(part, cube)
    return Prediction(record.question, record.options, answer=record.answer, why=record.why)


def show(part: int, cube: Cube) -> Explorer:
    """The demonstration of a part: an explorer, a static figure in batch mode.

    Parameters:
        part: 1 to 11
        cube: of `open_cube`

    Returns:
        The explorer, not yet displayed.

    Raises:
        ValueError: for another number, and for a cube that lacks what the part needs.
    """
    return read_part(part, cube).demonstration()


def check(part: int, value, cube: Cube) -> bool:
    """Compare the answer to a part's exercise with the truth in the cube, and print what to say.

    The hint depends on what is wrong and does not give the answer away. What cannot be read, or a
    cube that lacks what the part needs, is said in words: this raises nothing.

    Parameters:
        part: 1 to 11
        value: a number or one of the words more, less, cannot say; None is "not answered yet"
        cube: of `open_cube`

    Returns:
        whether it is right.
    """
    right = False
    try:
        if value is None and part in PARTS:
            comment = "not answered yet: put your result into `answer` above, then run both cells"
        else:
            right, comment = read_part(part, cube).exercise.judge(value)
            comment = f"{'right' if right else 'not yet'}. {comment}"
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        comment = f"not yet. This answer cannot be checked: {reason}"
    print(f"Part {part}: {comment}")
    return right


def right_of_twenty(scores: Scores) -> float:
    """Expected right guesses of twenty, when the upper half of each target's scores is accused."""
    accused = scores.value > np.median(scores.value, axis=1, keepdims=True)
    return float(20 * np.mean((accused == scores.member).mean(1)))


def _attacker(cube: Cube) -> Part:
    loss, rmia = (right_of_twenty(cube["pool"].scores(name)) for name in ("loss", "rmia"))
    chance = bdtrc(np.arange(21) - 1, 20, 0.5)  # of so many right or more
    least = int(np.flatnonzero(chance < 0.05)[0])
    too_small = (
        "A coin gets {} or more of 20 right in {:.1%} of all games; fewer than 5 % are wanted."
    )
    too_large = (
        "{} would do (a coin gets there in {:.2%} of all games), but is it the smallest number?"
    )
    praise = (
        "A coin gets {} or more in {:.1%} of all games: twenty guesses show nobody's skill unless"
        " it is great."
    )
    texts = [*[too_small] * least, praise, *[too_large] * (20 - least)]
    return Part(
        "You will see 20 images, 10 of them from the training data. How many will you get right?",
        (0, 20),
        round(loss, 1),
        "On average over all images and targets that is what the loss attack gets, which sees what"
        f" you see; a coin gets 10. With reference models RMIA gets {rmia:.1f}.",
        Choice(
            least,
            {n: text.format(n, chance[n]) for n, text in enumerate(texts)},
            "A whole number from 0 to 20 is wanted.",
        ),
        partial(game, cube["pool"]),
    )


def _threshold(cube: Cube) -> Part:
    scores = cube["pool"].scores("rmia")
    value = scores.value[0]
    member = scores.member[0]
    lowest = (measurable_rates(scores) or [0.02])[0]
    curve = metrics.roc(value, member)
    right_end = metrics.tpr_at(value, member, lowest)
    best = int(np.argmax(curve.tpr - curve.fpr))
    common = float(metrics.ppv(curve.tpr[best], curve.fpr[best], 0.01))
    at = metrics.tpr_at(value, member, RATE)
    few = right_end.fpr_realised
    rare, even = (
        [float(metrics.ppv(at.tpr, fpr, prior)) for fpr in (at.fpr_realised, at.fpr)]
        for prior in (0.01, 0.5)
    )
    return Part(
        "An accusation can cost somebody a job. Where would you put the threshold?",
        (
            "where most guesses are right",
            "where half of the members are found",
            "far to the right",
        ),
        "far to the right",
        f"Where most guesses are right, {curve.fpr[best]:.0%} of the innocent are accused. If one"
        f" person in a hundred was a member, only {common:.1%} of those accusations are right; far"
        f" to the right, at {few:.1%} false alarms,"
        f" {float(metrics.ppv(right_end.tpr, few, 0.01)):.1%}: more, and still"
        " most of them are wrong.",
        Number(
            rare,
            praise=(
                f"{rare[0]:.1%}: of a hundred people accused about {100 - 100 * rare[0]:.0f} were"
                " never in the data."
            ),
            hint=(
                "Count for 100 people: how many members are found, how many of the others are"
                " accused? See metrics.ppv."
            ),
            mistakes=[
                (
                    even,
                    "That is the share if every second person was a member. Here it is one in a"
                    " hundred.",
                ),
                (
                    [at.tpr],
                    "That is the share of members found. Wanted is the share of accusations that"
                    " are right.",
                ),
                ([1 - share for share in rare], "That is the share of accusations that are wrong."),
            ],
            share=True,
        ),
        partial(widgets.scores, [cube["pool"]], attacks=["rmia", "loss"], at=0.1),
    )


def _gap(signals: Signals, quantity: str) -> float:
    """Mean of a quantity of the image over models trained on it, minus that over the others."""
    values = getattr(signals, quantity)[:, 0, IMAGE]
    inside = signals.member[:, IMAGE]
    return float(values[inside].mean() - values[~inside].mean())


def _worlds(cube: Cube) -> Part:
    everybody = cube["pool"].signals
    most = len(everybody.margin) - 2
    references = everybody.hold_out(0)[1]
    ways = (("lira_per_sample", 4), ("lira_per_sample", most), ("lira_shrunk", 4))
    scores = [with_references(everybody, *way) for way in ways]
    with_few, with_all, shrunk = (np.nan if s is None else mean_auc(s) for s in scores)
    truth = _gap(references, "margin")
    losses = _gap(references, "loss")
    return Part(
        "Somebody trained two models with your image and two without it. Are four models enough to"
        " be sure about that one image?",
        ("yes", "no"),
        "no" if with_few < with_all - CLOSE else "yes",
        "With two models in each world and a spread of its own for every image the likelihood"
        f" ratio reaches AUC {with_few:.3f}, with all {most} references {with_all:.3f}. Two models"
        " can agree by luck: then the spread is far too small and the ratio explodes. A spread"
        f" borrowed from all images gives {shrunk:.3f}.",
        Number(
            [truth],
            praise=(
                f"{truth:.2f} nats: models that were trained on image {IMAGE} are"
                f" {'more' if truth > 0 else 'less'} sure of it by so much, on average."
            ),
            hint=(
                f"Two means of margins of image {IMAGE}: over references that were trained on it,"
                " and over those that were not."
            ),
            mistakes=[
                ([-truth], "The sign: with the image minus without it."),
                (
                    [_gap(everybody, "margin")],
                    "The target and its complementary model are among your models. hold_out(0)"
                    " gives the references alone.",
                ),
                (
                    [losses, -losses],
                    "That is a difference of losses. The margin does not saturate where the model"
                    " is sure.",
                ),
            ],
        ),
        partial(widgets.sample, [cube["pool"]]),
    )


def _budget(cube: Cube) -> Part:
    signals = cube["race"].signals
    options = ("loss", "rmia", "nig", "lira_per_sample")
    winners, why = [], []
    for count in (4, min(64, len(signals.margin) - 2)):
        scores = {name: with_references(signals, name, count) for name in options}
        values = {name: mean_auc(ran) for name, ran in scores.items() if ran is not None}
        winners.append(max(values, key=values.get))
        listed = ", ".join(
            f"{attacks.in_words(name)} {value:.3f}" for name, value in values.items()
        )
        why.append(
            f"AUC with {count} references: {listed}; highest: {attacks.in_words(winners[-1])}."
        )
    table = race_table(signals)
    best = table[table["metric"] == "AUC"].groupby("references")["value"].max()
    most = best.index.max()
    least = int(best.index[best > best.max() - CLOSE].min())
    too_small = f"With {{}} the best attack is {{:.3f}} behind; {CLOSE} is allowed."
    too_large = f"{{}} is enough, but a smaller budget also comes within {CLOSE}."
    praise = (
        f"With {least} the best attack reaches {best[least]:.3f}, with {most} {best.max():.3f}."
    )
    comments = {
        count: (too_small if count < least else too_large).format(count, best.max() - value)
        for count, value in best.items()
    }
    wanted = f"One of the budgets is wanted: {', '.join(map(str, best.index))}."
    return Part(
        "Which attack wins with 4 reference models?",
        [*map(attacks.in_words, options)],
        attacks.in_words(winners[0]),
        " ".join(why),
        Choice(least, comments | {least: praise}, wanted),
        partial(explorers.race, cube["race"]),
    )


def _real(cube: Cube) -> Part:
    real, drawn = redrawn(cube["small"].signals, "rmia")
    p, (loss, worlds) = p_value(real, drawn), redrawn(cube["small"].signals, "loss")
    truth = p_value(loss, worlds)
    share = float((worlds >= loss).mean())
    return Part(
        "Could the AUC of RMIA on these models come from nothing?",
        ("yes", "no"),
        "no" if p <= 0.05 else "yes",
        f"{int((drawn >= real).sum())} of {len(drawn)} worlds with members dealt anew reach"
        f" {real:.3f} (p = {p:.3g}); they lie between {drawn.min():.3f} and {drawn.max():.3f}.",
        Number(
            [truth],
            praise=(
                f"{share * len(worlds):.0f} of {len(worlds)} redrawn worlds reach the real"
                f" {loss:.3f}; the real one is one of the worlds too."
            ),
            hint=(
                "Count the redrawn worlds whose AUC is at least the real one, add one, and divide"
                " by all worlds."
            ),
            mistakes=[
                (
                    [share],
                    "Nearly. The real world is itself one of the possible worlds: add one, above"
                    " and below.",
                ),
                (
                    [1 - truth, 1 - share, p_value(-loss, -worlds)],
                    "That is the share of worlds below the real one; count those at or above it.",
                ),
            ],
            tolerance=1e-6,
            share=True,
        ),
        partial(explorers.null, cube["small"]),
    )


def _lattice(cube: Cube) -> Part:
    tied, free = lattice_scores(cube["pool"], 4).values()
    first, second = (metrics.tpr_at(s.value[0], s.member[0], RATE) for s in (tied, free))
    curve = metrics.roc(tied.value[0], tied.member[0])
    n0 = int((~tied.member[0]).sum())
    truth = float(curve.fpr[1])
    return Part(
        "Attack-R with four references finds exactly 0 % of the members at 5 % false alarms. Why?",
        ("nothing can be found", "too few different scores", "a programming error"),
        "too few different scores" if first.fpr_floor > RATE else "nothing can be found",
        "The target can beat 0, 1, 2, 3 or 4 of four references: five scores. The highest accuses"
        f" {first.fpr_floor:.0%} of the non-members, so that no threshold reaches 5 %. The same"
        f" comparison as a difference finds {second.tpr:.1%} there.",
        Number(
            [truth],
            praise=(
                f"Whoever accuses anybody accuses {truth:.0%} of the non-members: at 1 % there is"
                " no point of the curve."
            ),
            hint="metrics.roc(score, member) gives fpr and tpr of every vertex, in order.",
            mistakes=[
                (
                    [0.0],
                    "The curve starts at (0, 0), where nobody is accused. Take the next vertex.",
                ),
                (
                    [1 / n0],
                    "One non-member alone would be 1 / n0, but tied samples can only be accused"
                    " together.",
                ),
                (
                    [1 / 5, 1 / 4],
                    "The scores have five values, but the samples do not spread evenly over them.",
                ),
                ([float(curve.tpr[1])], "That is the true positive rate there."),
            ],
            tolerance=1e-4,
            share=True,
        ),
        partial(explorers.lattice, cube["pool"]),
    )


def _gained(before: Scores, after: Scores) -> tuple[float, ...]:
    """How much higher the AUC is after than before, with its 95 % interval, and both."""
    row = metrics.difference(after, before, (), n_resamples=200).loc[
        "auc", ["value", "low", "high"]
    ]
    return *map(float, row), mean_auc(before), mean_auc(after)


def _steps(cube: Cube) -> Part:
    steps = cube["spikes/steps"].signals
    scores = (attacks.score("rmia", steps.select(queries=[t])) for t in (0, -1))
    _, low, high, first, last = _gained(*scores)
    return Part(
        "Does a spiking network give away more after four time steps than after one?",
        WORDS,
        outcome(low, high),
        f"RMIA after the first step {first:.3f}, after the last {last:.3f}; difference 95 %:"
        f" {low:+.3f} to {high:+.3f}. Coarse outputs hide some of the signal; they do not remove"
        " it.",
        word(
            outcome(low, high),
            praise=(
                f"AUC {first:.3f} after the first step, {last:.3f} after the last; the interval"
                " decides, not the sign."
            ),
            hint=(
                "Look at `low` and `high` of the difference last minus first: on which side of"
                " zero do they lie?"
            ),
        ),
        partial(widgets.latency, cube.group("spikes")),
    )


def _sigma(source: Source) -> float:
    """The noise of an equation's outputs, sigma = k sqrt(steps / T)."""
    return float((source.info.get("flow") or {}).get("sigma", 0.0))


def _noise(cube: Cube) -> Part:
    noisy = sorted((s for s in cube.group("noise") if query_kind(s) == "noise"), key=_sigma)
    middle = noisy[len(noisy) // 2]  # an attacker notices the noise, the networks are still useful
    once = middle.signals.select(queries=[0])
    outputs = middle.signals.margin.shape[1]
    gain, low, high, first, last = _gained(attacks.score("rmia", once), middle.scores("rmia"))
    of_loss = mean_auc(middle.scores("loss")) - mean_auc(attacks.score("loss", once))
    options = ("yes", "only against those who query once", "cannot say from these outputs")
    return Part(
        "Does a network that adds fresh noise to every output protect its training data?",
        options,
        options[1] if low > 0 else options[2],
        f"One output at sigma = {_sigma(middle):g}: AUC {first:.3f}; {outputs} outputs averaged:"
        f" {last:.3f} ({gain:+.3f}, 95 %: {low:+.3f} to {high:+.3f}).",
        Number(
            [gain],
            praise=(
                f"From {first:.3f} to {last:.3f} (95 %: {low:+.3f} to {high:+.3f}) by querying"
                f" {outputs} times instead of once."
            ),
            hint=(
                "Score the first output alone, signals.select(queries=[0]), and all of them;"
                " average the AUC over targets."
            ),
            mistakes=[
                ([-gain], "The sign: many outputs minus one."),
                ([first, last], "That is one of the two AUCs; wanted is their difference."),
                ([of_loss], "That is the loss attack's gain; take RMIA."),
            ],
            tolerance=2e-4,
        ),
        partial(widgets.noise, cube.group("noise")),
    )


def _exposed(cube: Cube) -> Part:
    source = cube["pool"]
    mask = odd_ones(source.signals)
    rmia = first_half(source.scores("rmia"))
    odd, others = (auc_among(rmia, side) for side in (mask, ~mask))
    answers = {
        "more": "odd ones, which other models get wrong",
        "less": "typical ones, which other models get right",
        "cannot say": "all alike",
    }
    return Part(
        "Which images will be most at risk?",
        tuple(answers.values()),
        answers["more" if odd[1] > others[2] else "less" if odd[2] < others[1] else "cannot say"],
        f"RMIA's AUC is {with_interval(*odd)} among the {mask.sum():,} odd images,"
        f" {with_interval(*others)} among the others.",
        Number(
            [odd[0]],
            praise=(
                f"{odd[0]:.3f} among the odd ones, {others[0]:.3f} among the others: one average"
                " for all would hide that."
            ),
            hint="For every model: metrics.auc(value[odd], member[odd]); then the mean.",
            mistakes=[
                (
                    [others[0]],
                    "That is the AUC among the images that are not odd: the mask is the wrong way"
                    " round.",
                ),
                (
                    [mean_auc(rmia), mean_auc(source.scores("rmia"))],
                    "That is the average over everybody. Take the odd images' columns of value and"
                    " member alone.",
                ),
            ],
            tolerance=2e-4,
            share=True,
        ),
        partial(widgets.exposed, [source]),
    )


def _fight(cube: Cube) -> Part:
    row = equal_accuracy(cube.group("fight")).iloc[1]
    low = row["difference_low"]
    high = row["difference_high"]
    resolved = outcome(low, high)
    why = (
        f"At {row['level']:.1%} test accuracy {row.name}'s AUC differs by {row['difference']:+.3f}"
        f" (95 %: {low:+.3f} to {high:+.3f})."
    )
    praise = (
        f"At {row['level']:.1%} test accuracy {row.name} differs by"
        f" {with_interval(row['difference'], low, high, '+.3f')} from ordinary training."
    )
    if row["difference_pairs"] < 2:
        resolved = "cannot say"
        why = (
            f"{row.name} and ordinary training pass no accuracy in common: nothing can be compared."
        )
        praise = f"{row.name} and ordinary training share no accuracy."
    answers = {
        "less": "it gives away less",
        "cannot say": "it is just worse, or one cannot say",
        "more": "it gives away more",
    }
    hint = (
        "Read `difference_low` and `difference_high` in the last row of the table: do both lie on"
        " one side of zero?"
    )
    return Part(
        "A model trained with RelaxLoss gives away less in the end. And when ordinary training is"
        " stopped at the same accuracy?",
        tuple(answers.values()),
        answers[resolved],
        why,
        word(resolved, praise, hint),
        partial(explorers.fight, cube.group("fight")),
    )


def _claims(cube: Cube) -> Part:
    bound, private = (
        float(accounting.tradeoff(0.01, epsilon=epsilon, delta=1e-5)) for epsilon in (8.0, 1.0)
    )
    first_line = math.exp(8) * 0.01 + 1e-5
    return Part(
        "An attacker may raise 1 % false alarms. Which share of the members (in %) can he find at"
        " most, if training was DP with epsilon 8?",
        (0, 100),
        round(100 * bound),
        f"Epsilon 8 at delta 1e-5 allows {bound:.2%} of members at 1 % false alarms; epsilon 1"
        f" would allow {private:.1%}. What is proved for the worst case and what an attack finds"
        " today are two things.",
        Number(
            [bound],
            praise=(
                f"{bound:.2%} of all members at 1 % false alarms would not contradict epsilon 8."
            ),
            hint=(
                "TPR <= min(e^epsilon FPR + delta, 1 - e^-epsilon (1 - delta - FPR));"
                " accounting.tradeoff knows it."
            ),
            mistakes=[
                (
                    [first_line],
                    f"{first_line:.3g} is no share. A curve has two ends: the bound also counts"
                    " from the other one; take the smaller.",
                ),
                ([private], "That is for epsilon 1."),
                ([0.01], "1 % is what a coin finds; wanted is the most that (8, 1e-5) allows."),
            ],
            tolerance=1e-4,
            share=True,
        ),
        partial(explorers.leak, cube["pool"]),
    )


PARTS = dict(
    enumerate(
        (
            _attacker,
            _threshold,
            _worlds,
            _budget,
            _real,
            _lattice,
            _steps,
            _noise,
            _exposed,
            _fight,
            _claims,
        ),
        start=1,
    )
)
