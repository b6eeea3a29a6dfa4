"""The eleven parts: of each the question that is asked first, what its answer turns out to be, and
the exercise. All numbers are computed from the cube.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import bdtrc

from mia_nb import accounting, attacks, metrics
from mia_nb.types import Scores
from mia_nb.widgets.networks import draws
from mia_nb.widgets.stored import Source
from mia_nb.workshop.answers import Number, Smallest, Word
from mia_nb.workshop.cube import canaries, group
from mia_nb.workshop.measures import (
    canary_auc,
    common_accuracy,
    frontier,
    lattice_scores,
    mean_auc,
    outcome,
    p_value,
    race_table,
    redrawn,
    with_references,
)
from mia_nb.workshop.questions import Prediction, predict

Cube = dict[str, Source]
Truth = tuple[object, str]  # the answer to a part's question, and why
CLOSE = 0.01  # AUCs nearer than this are called equal in the workshop's texts
IMAGE = 42  # of part 3


class Part(NamedTuple):
    """A part of the workshop."""

    question: str
    options: Sequence  # to choose from, or the two ends of a slider
    truth: Callable[[Cube], Truth]
    exercise: Callable[[Cube], Number | Smallest | Word]


def truth(part: int, cube: Cube) -> dict[str, object]:
    """{"answer", "why"} for the prediction of a part, 1 to 11, to be handed to `predict`.

    ValueError for another number.
    """
    if part not in PARTS:
        raise ValueError(f"part {part!r}: the workshop has parts {min(PARTS)} to {max(PARTS)}")
    answer, why = PARTS[part].truth(cube)
    return {"answer": answer, "why": why}


def question(part: int, cube: Cube) -> Prediction:
    """The question of a part, 1 to 11, as `predict` asks it. ValueError for another number."""
    answer = truth(part, cube)
    return predict(PARTS[part].question, PARTS[part].options, **answer)


def check(part: int, value, cube: Cube) -> bool:
    """Compare an answer with the truth in the cube; prints that it is missing, a hint, or that it
    is right. True if right.

    None is "not answered yet". The hint depends on what is wrong and does not give the answer away.
    Never raises: what it cannot read, or a cube that lacks what the part needs, is said in words.
    """
    right = False
    try:
        if part not in PARTS:
            comment = f"there is no part {part!r}; the workshop has parts 1 to {max(PARTS)}"
        elif value is None:
            comment = "not answered yet: put your result into `answer` above, then run both cells"
        else:
            right, comment = PARTS[part].exercise(cube).judge(value)
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


def _game(cube: Cube) -> Truth:
    loss, rmia = (right_of_twenty(cube["small"].scores(name)) for name in ("loss", "rmia"))
    return round(loss, 1), (
        "On average over all images and targets that is what the loss attack gets, which sees what"
        f" you see; a coin gets 10. With reference models RMIA gets {rmia:.1f}."
    )


def _luck(cube: Cube) -> Smallest:
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
    comments = {n: text.format(n, chance[n]) for n, text in enumerate(texts)}
    return Smallest(least, comments, "A whole number from 0 to 20 is wanted.")


def _threshold(cube: Cube) -> Truth:
    score = cube["small"].scores("rmia")
    value, member = score.value[0], score.member[0]
    curve, right_end = metrics.roc(value, member), metrics.tpr_at(value, member, 0.02)
    best = int(np.argmax(curve.tpr - curve.fpr))
    common = float(metrics.ppv(curve.tpr[best], curve.fpr[best], 0.01))
    rare = float(metrics.ppv(right_end.tpr, right_end.fpr_realised, 0.01))
    return "far to the right", (
        f"Where most guesses are right, {curve.fpr[best]:.0%} of the innocent are accused. If one"
        f" person in a hundred was a member, only {common:.1%} of those accusations are right; far"
        f" to the right, at {right_end.fpr_realised:.1%} false alarms, {rare:.1%}: more, and still"
        " most of them are wrong."
    )


def _accusations(cube: Cube) -> Number:
    score = cube["small"].scores("rmia")
    at = metrics.tpr_at(score.value[0], score.member[0], 0.05)
    rare, even = (
        [float(metrics.ppv(at.tpr, fpr, prior)) for fpr in (at.fpr_realised, at.fpr)]
        for prior in (0.01, 0.5)
    )
    return Number(
        rare,
        praise=(
            f"{rare[0]:.1%}: of a hundred people accused about {100 - 100 * rare[0]:.0f} were never"
            " in the data."
        ),
        hint=(
            "Count for 100 people: how many members are found, how many of the others are accused?"
            " See metrics.ppv."
        ),
        mistakes=[
            (
                even,
                "That is the share if every second person was a member. Here it is one in a"
                " hundred.",
            ),
            (
                [at.tpr],
                "That is the share of members found. Wanted is the share of accusations that are"
                " right.",
            ),
            ([1 - share for share in rare], "That is the share of accusations that are wrong."),
        ],
        share=True,
    )


def _worlds(cube: Cube) -> Truth:
    signals = cube["pool"].signals
    most = len(signals.margin) - 2
    ways = (("lira_per_sample", 4), ("lira_per_sample", most), ("lira_shrunk", 4))
    scores = [with_references(signals, *way) for way in ways]
    with_few, with_all, shrunk = (np.nan if s is None else mean_auc(s) for s in scores)
    return "no" if with_few < with_all - CLOSE else "yes", (
        "With two models in each world and a spread of its own for every image the likelihood"
        f" ratio reaches AUC {with_few:.3f}, with all {most} references {with_all:.3f}. Two models"
        " can agree by luck: then the spread is far too small and the ratio explodes. A spread"
        f" borrowed from all images gives {shrunk:.3f}."
    )


def _gap(cube: Cube) -> Number:
    def gap(signals, quantity: str) -> float:
        values, inside = getattr(signals, quantity)[:, 0, IMAGE], signals.member[:, IMAGE]
        return float(values[inside].mean() - values[~inside].mean())

    everybody = cube["pool"].signals
    _, references = everybody.hold_out(0)
    truth, losses = gap(references, "margin"), gap(references, "loss")
    side = "more" if truth > 0 else "less"
    return Number(
        [truth],
        praise=(
            f"{truth:.2f} nats: models that were trained on image {IMAGE} are {side} sure of it by"
            " so much, on average."
        ),
        hint=(
            f"Two means of margins of image {IMAGE}: over references that were trained on it, and"
            " over those that were not."
        ),
        mistakes=[
            ([-truth], "The sign: with the image minus without it."),
            (
                [gap(everybody, "margin")],
                "The target and its complementary model are among your models. hold_out(0) gives"
                " the references alone.",
            ),
            (
                [losses, -losses],
                "That is a difference of losses. The margin does not saturate where the model is"
                " sure.",
            ),
        ],
    )


def _race(cube: Cube) -> Truth:
    signals, winners, why = cube["pool"].signals, [], []
    for count in (4, min(64, len(signals.margin) - 2)):
        scores = {name: with_references(signals, name, count) for name in PARTS[4].options}
        values = {name: mean_auc(ran) for name, ran in scores.items() if ran is not None}
        winners.append(max(values, key=values.get))
        listed = ", ".join(f"{name} {value:.3f}" for name, value in values.items())
        why.append(f"AUC with {count} references: {listed}; highest: {winners[-1]}.")
    return winners[0], " ".join(why)


def _budget(cube: Cube) -> Smallest:
    table = race_table(cube["pool"].signals)
    best = table[table["metric"] == "AUC"].groupby("references")["value"].max()
    most, least = best.index.max(), int(best.index[best > best.max() - CLOSE].min())
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
    return Smallest(least, comments | {least: praise}, wanted)


def _real(cube: Cube) -> Truth:
    real, drawn = redrawn(cube["small"].signals, "rmia")
    p = p_value(real, drawn)
    return "no" if p <= 0.05 else "yes", (
        f"{int((drawn >= real).sum())} of {len(drawn)} worlds with members dealt anew reach"
        f" {real:.3f} (p = {p:.3g}); they lie between {drawn.min():.3f} and {drawn.max():.3f}."
    )


def _p_value(cube: Cube) -> Number:
    real, drawn = redrawn(cube["small"].signals, "loss")
    truth, share, worlds = p_value(real, drawn), float((drawn >= real).mean()), len(drawn)
    return Number(
        [truth],
        praise=(
            f"{share * worlds:.0f} of {worlds} redrawn worlds reach the real {real:.3f}; the real"
            " one is one of the worlds too."
        ),
        hint=(
            "Count the redrawn worlds whose AUC is at least the real one, add one, and divide by"
            " all worlds."
        ),
        mistakes=[
            (
                [share],
                "Nearly. The real world is itself one of the possible worlds: add one, above and"
                " below.",
            ),
            (
                [1 - truth, 1 - share, p_value(-real, -drawn)],
                "That is the share of worlds below the real one; count those at or above it.",
            ),
        ],
        tolerance=1e-6,
        share=True,
    )


def _lattice(cube: Cube) -> Truth:
    tied, free = lattice_scores(cube["pool"], 4).values()
    first, second = (metrics.tpr_at(s.value[0], s.member[0], 0.05) for s in (tied, free))
    wide = first.fpr_floor > 0.05
    return "too few different scores" if wide else "nothing can be found", (
        "The target can beat 0, 1, 2, 3 or 4 of four references: five scores. The highest accuses"
        f" {first.fpr_floor:.0%} of the non-members, so that no threshold reaches 5 %. The same"
        f" comparison as a difference finds {second.tpr:.1%} there."
    )


def _first_step(cube: Cube) -> Number:
    six = cube["pool"].signals.select(models=slice(0, 6))
    score = attacks.score("attack_r_lattice", six, targets=0)
    curve = metrics.roc(score.value[0], score.member[0])
    truth, n0 = float(curve.fpr[1]), int((~score.member[0]).sum())
    return Number(
        [truth],
        praise=(
            f"Whoever accuses anybody accuses {truth:.0%} of the non-members: at 1 % there is no"
            " point of the curve."
        ),
        hint="metrics.roc(score, member) gives fpr and tpr of every vertex, in order.",
        mistakes=[
            ([0.0], "The curve starts at (0, 0), where nobody is accused. Take the next vertex."),
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
    )


class Gain(NamedTuple):
    """How much higher RMIA's AUC is after than before, with its 95 % interval, and both."""

    value: float
    low: float
    high: float
    before: float
    after: float


def _gained(before: Scores, after: Scores) -> Gain:
    row = metrics.difference(after, before, (), draws=200).loc["auc", ["value", "low", "high"]]
    return Gain(*map(float, row), mean_auc(before), mean_auc(after))


def _of_steps(cube: Cube) -> Gain:
    """From the first time step to the last."""
    steps = cube["spikes/steps"].signals
    return _gained(*(attacks.score("rmia", steps.select(queries=[t])) for t in (0, -1)))


def _spikes(cube: Cube) -> Truth:
    gain = _of_steps(cube)
    return outcome(gain.low, gain.high), (
        f"RMIA after the first step {gain.before:.3f}, after the last {gain.after:.3f}; difference"
        f" 95 %: {gain.low:+.3f} to {gain.high:+.3f}. Coarse outputs hide some of the signal; they"
        " do not remove it."
    )


def _more_steps(cube: Cube) -> Word:
    gain = _of_steps(cube)
    return Word(
        outcome(gain.low, gain.high),
        praise=(
            f"AUC {gain.before:.3f} after the first step, {gain.after:.3f} after the last; the"
            " interval decides, not the sign."
        ),
        hint=(
            "Look at `low` and `high` of the difference last minus first: on which side of zero do"
            " they lie?"
        ),
    )


def _sigma(source: Source) -> float:
    """The noise of an equation's outputs, sigma = k sqrt(steps / T)."""
    return float((source.info.get("flow") or {}).get("sigma", 0.0))


def _middle(cube: Cube) -> Source:
    """The noisy networks of middle strength: noise that an attacker notices and that leaves them
    useful.
    """
    noisy = sorted((s for s in group(cube, "noise") if draws(s) == "noise"), key=_sigma)
    return noisy[len(noisy) // 2]


def _of_outputs(source: Source) -> Gain:
    """From one output to the average of all."""
    first = source.signals.select(queries=[0])
    return _gained(attacks.score("rmia", first), source.scores("rmia"))


def _noise(cube: Cube) -> Truth:
    source = _middle(cube)
    gain, outputs = _of_outputs(source), source.signals.margin.shape[1]
    averages = gain.low > 0
    return "only against those who query once" if averages else "cannot say from these outputs", (
        f"One output at sigma = {_sigma(source):g}: AUC {gain.before:.3f}; {outputs} outputs"
        f" averaged: {gain.after:.3f} ({gain.value:+.3f}, 95 %: {gain.low:+.3f} to"
        f" {gain.high:+.3f})."
    )


def _gain(cube: Cube) -> Number:
    source = _middle(cube)
    gain, signals = _of_outputs(source), source.signals
    loss_once = attacks.score("loss", signals.select(queries=[0]))
    return Number(
        [gain.value],
        praise=(
            f"From {gain.before:.3f} to {gain.after:.3f} (95 %: {gain.low:+.3f} to"
            f" {gain.high:+.3f}) by querying {signals.margin.shape[1]} times instead of once."
        ),
        hint=(
            "Score the first output alone, signals.select(queries=[0]), and all of them; average"
            " the AUC over targets."
        ),
        mistakes=[
            ([-gain.value], "The sign: many outputs minus one."),
            ([gain.before, gain.after], "That is one of the two AUCs; wanted is their difference."),
            (
                [mean_auc(source.scores("loss")) - mean_auc(loss_once)],
                "That is the loss attack's gain; take rmia.",
            ),
        ],
        tolerance=2e-4,
    )


def _canary_split(cube: Cube) -> tuple[tuple, tuple]:
    """AUC of RMIA on the mislabelled images and on all others, each (mean, low, high)."""
    sources = group(cube, "canary")
    mask = canaries(sources[0])[sources[0].audited]
    return canary_auc(sources, "rmia", mask), canary_auc(sources, "rmia", ~mask)


def _exposed(cube: Cube) -> Truth:
    odd, others = _canary_split(cube)
    answers = {"more": "odd and mislabelled ones", "less": "typical ones"}
    difference = odd[0] - others[0]
    return answers.get(outcome(difference, difference), "all alike"), (
        "RMIA's AUC is {:.3f} [{:.3f}, {:.3f}] among the mislabelled images, {:.3f} [{:.3f},"
        " {:.3f}] among the others.".format(*odd, *others)
    )


def _canaries(cube: Cube) -> Number:
    (odd, *_), (others, *_) = _canary_split(cube)
    every = [mean_auc(source.scores("rmia")) for source in group(cube, "canary")]
    return Number(
        [odd],
        praise=(
            f"{odd:.3f} among the mislabelled, {others:.3f} among the others: one average for all"
            " would hide that."
        ),
        hint=(
            "For every training and target: metrics.auc(value[canary], member[canary]); then the"
            " mean."
        ),
        mistakes=[
            (
                [others],
                "That is the AUC among the images that are no canaries: the mask is the wrong way"
                " round.",
            ),
            (
                [float(np.mean(every))],
                "That is the average over everybody. Take the canaries' columns of score and"
                " member alone.",
            ),
            (
                every,
                "That is one training, and everybody: choose the canaries' columns, and average"
                " over all trainings.",
            ),
        ],
        tolerance=2e-4,
        share=True,
    )


def _equal_accuracy(cube: Cube) -> tuple[str, object]:
    """(name, row of `metrics.matched`) of the second family against the first, where both are as
    accurate, else (name, None).
    """
    table = frontier(group(cube, "fight"))
    first, other = table["family"].unique()[:2]
    both, level = table[table["family"].isin([first, other])], common_accuracy(table, first, other)
    matched = metrics.matched(both, baseline=first, levels=[level]).set_index("family")
    row = matched.loc[other]
    return other, row if row["difference_pairs"] >= 2 else None


def _fight(cube: Cube) -> Truth:
    other, row = _equal_accuracy(cube)
    undecided = "it is just worse, or one cannot say"
    if row is None:
        return undecided, (
            f"{other} and ordinary training pass no accuracy in common: nothing can be compared."
        )
    low, high = row["difference_low"], row["difference_high"]
    answers = {"less": "it gives away less", "more": "it gives away more"}
    return answers.get(outcome(low, high), undecided), (
        f"At {row['level']:.1%} test accuracy {other}'s AUC differs by {row['difference']:+.3f}"
        f" (95 %: {low:+.3f} to {high:+.3f})."
    )


def _equal(cube: Cube) -> Word:
    hint = (
        "Read `difference_low` and `difference_high` in the last row of the table: do both lie on"
        " one side of zero?"
    )
    other, row = _equal_accuracy(cube)
    if row is None:
        return Word("cannot say", f"{other} and ordinary training share no accuracy.", hint)
    low, high = row["difference_low"], row["difference_high"]
    praise = (
        f"At {row['level']:.1%} test accuracy {other} differs by {row['difference']:+.3f}"
        f" [{low:+.3f}, {high:+.3f}] from ordinary training."
    )
    return Word(outcome(low, high), praise, hint)


def _most_found(epsilon: float) -> float:
    return float(accounting.tradeoff(0.01, epsilon=epsilon, delta=1e-5))


def _claims(cube: Cube) -> Truth:
    bound = _most_found(8.0)
    return round(100 * bound), (
        f"Epsilon 8 at delta 1e-5 allows {bound:.2%} of members at 1 % false alarms; epsilon 1"
        f" would allow {_most_found(1.0):.1%}. What is proved for the worst case and what an"
        " attack finds today are two things."
    )


def _ceiling(cube: Cube) -> Number:
    truth, first_line = _most_found(8.0), math.exp(8) * 0.01 + 1e-5
    return Number(
        [truth],
        praise=f"{truth:.2%} of all members at 1 % false alarms would not contradict epsilon 8.",
        hint=(
            "TPR <= min(e^epsilon FPR + delta, 1 - e^-epsilon (1 - delta - FPR));"
            " accounting.tradeoff knows it."
        ),
        mistakes=[
            (
                [first_line],
                f"{first_line:.3g} is no share. A curve has two ends: the bound also counts from"
                " the other one; take the smaller.",
            ),
            ([_most_found(1.0)], "That is for epsilon 1."),
            ([0.01], "1 % is what a coin finds; wanted is the most that (8, 1e-5) allows."),
        ],
        tolerance=1e-4,
        share=True,
    )


PARTS = {
    1: Part(
        "You will see 20 images, 10 of them from the training data. How many will you get right?",
        (0, 20),
        _game,
        _luck,
    ),
    2: Part(
        "An accusation can cost somebody a job. Where would you put the threshold?",
        (
            "where most guesses are right",
            "where half of the members are found",
            "far to the right",
        ),
        _threshold,
        _accusations,
    ),
    3: Part(
        "Somebody trained two models with your image and two without it. Are four models enough to"
        " be sure about that one image?",
        ("yes", "no"),
        _worlds,
        _gap,
    ),
    4: Part(
        "Which attack wins with 4 reference models?",
        ("loss", "rmia", "nig", "lira_per_sample"),
        _race,
        _budget,
    ),
    5: Part(
        "Could the AUC of RMIA on these models come from nothing?", ("yes", "no"), _real, _p_value
    ),
    6: Part(
        "Attack-R with four references finds exactly 0 % of the members at 5 % false alarms. Why?",
        ("nothing can be found", "too few different scores", "a programming error"),
        _lattice,
        _first_step,
    ),
    7: Part(
        "Does a spiking network give away more after four time steps than after one?",
        ("more", "less", "cannot say"),
        _spikes,
        _more_steps,
    ),
    8: Part(
        "Does a network that adds fresh noise to every output protect its training data?",
        ("yes", "only against those who query once", "cannot say from these outputs"),
        _noise,
        _gain,
    ),
    9: Part(
        "Which images will be most at risk?",
        ("odd and mislabelled ones", "typical ones", "all alike"),
        _exposed,
        _canaries,
    ),
    10: Part(
        "A model trained with RelaxLoss gives away less in the end. And when ordinary training is"
        " stopped at the same accuracy?",
        ("it gives away less", "it is just worse, or one cannot say", "it gives away more"),
        _fight,
        _equal,
    ),
    11: Part(
        "An attacker may raise 1 % false alarms. Which share of the members (in %) can he find at"
        " most, if training was DP with epsilon 8?",
        (0, 100),
        _claims,
        _ceiling,
    ),
}
