"""The membership game: twenty images with the model's confidence in each; the player guesses which
of them were in its training data.
"""

from functools import cache
from typing import Any, NamedTuple

import ipywidgets as W
import numpy as np
import pandas as pd
from scipy.special import expit

from mia_nb import metrics
from mia_nb.attacks import in_words
from mia_nb.metrics.targets import scored
from mia_nb.plots.samples import sheet
from mia_nb.plots.scores import row_of
from mia_nb.plots.style import LINES, MEMBER, NON_MEMBER
from mia_nb.plots.teaching import guesser
from mia_nb.widgets.controls import Ticks, count
from mia_nb.widgets.explorer import Explorer, View, message
from mia_nb.widgets.figure import plain, with_layout, with_title
from mia_nb.widgets.stored import Source

TITLE = "The membership game"
WITHOUT_IMAGES = "no images are stored with {}; load them with the pool's own images"
SIDE = 10  # members, and as many non-members, in a hand
COLUMNS = 10
OPPONENTS = ("loss", "rmia")
YOU = "you"  # the player's name in figure and table
DEALS = 20
NUMBERS = range(1, 2 * SIDE + 1)
ACCUSED = {"color": LINES[0], "width": 4}
CROSS = {"color": "#CC79A7", "width": 4}
FRAMES = {
    True: {"color": MEMBER, "width": 4, "dash": "solid"},
    False: {"color": NON_MEMBER, "width": 4, "dash": "dash"},
}
SHEET_TITLE = "How sure the model is of each image's right class"
HOW_TO_PLAY = 'click an image to accuse it (green frame), then press "submit"'
LEGEND = (
    "Solid vermillion frame: a member; dashed blue frame: a non-member; pink cross: a wrong guess"
)
PLANE_BEFORE = {  # texts of the ROC plane before the player submits
    "title_text": "Attacks on all images",
    "meta": "the points of these 20 appear once you submit",
}


class Hand(NamedTuple):
    """Twenty images of one model: columns of the signals, membership, and confidence in the right
    class, (20,) each.
    """

    columns: np.ndarray
    member: np.ndarray
    confidence: np.ndarray

    @property
    def labels(self) -> tuple[str, ...]:
        """Number and confidence of each image, with enough digits to differ from certainty; beyond
        four digits more than 99.999 %.
        """
        labels = []
        for number, confidence in zip(NUMBERS, self.confidence, strict=True):
            doubt = np.maximum(1 - confidence, 1e-6)
            digits = int(np.clip(np.ceil(-np.log10(doubt)) - 1, 0, 4))
            text = f"{100 * confidence:.{digits}f}"
            labels.append(f"{number}: {'>99.999' if float(text) == 100 else text} %")
        return tuple(labels)


def pictured(source: Source) -> np.ndarray:
    """Columns of the signals whose images may be dealt; with thumbnails, those of the samples that
    were drawn at random.
    """
    return getattr(source.images, "dealt", source.audited)


def deal(source: Source, *, target: int = 0, seed: int = 0) -> Hand:
    """Ten members and ten non-members of a target in random order, the same for the same seed.

    Raises:
        ValueError: where the target has fewer than ten of either.
    """
    signals = source.signals
    rng = np.random.default_rng([12, target, seed])
    candidates = pictured(source)
    is_member = signals.member[target, candidates]
    if min(is_member.sum(), (~is_member).sum()) < SIDE:
        raise ValueError(
            f"model {target} has {is_member.sum()} members of {len(is_member)}: a hand needs {SIDE}"
            " on either side"
        )
    members = rng.choice(candidates[is_member], SIDE, replace=False)
    non_members = rng.choice(candidates[~is_member], SIDE, replace=False)
    columns = rng.permutation(np.concatenate([members, non_members]))
    confidence = expit(source.margins(columns)[target])
    return Hand(columns, signals.member[target, columns], confidence)


def game(source: Source, *, target: int = 0) -> Explorer:
    """Click the images that were in the training data, then submit: the player's own point appears
    beside attacks in the ROC plane.

    The loss threshold and RMIA play too: they accuse the ten images that they score highest; their
    results are shown once the player has submitted. The box around the player's point and the
    intervals are 95 % Clopper-Pearson on ten trials each.

    Parameters:
        source: signals with images, such as `open_cube()["pool"]`
        target: the model under attack, its row number

    Returns:
        An explorer; a static figure in batch mode.

    Raises:
        ValueError: where an attack scores no member or no non-member of the target.

    Caveat: twenty guesses say little about a guesser.
    """
    if source.images is None:
        return message(TITLE, WITHOUT_IMAGES.format(source.label))
    values = {}  # scores of all audited samples
    curves = {}  # scores and membership of the samples that have a score
    for name in OPPONENTS:
        scores = source.scores(name)
        row = row_of(scores, target)
        score, member = scored(scores, row)
        if member.all() or not member.any():
            raise ValueError(
                f"{in_words(name)} scored no member or no non-member of model {target} of"
                f" {source.label}: the game wants some of each, so train more models"
            )
        values[in_words(name)] = scores.value[row]
        curves[in_words(name)] = score, member
    plane_before = plain(guesser(curves, {}, SIDE, SIDE).update_layout(PLANE_BEFORE))

    @cache
    def hand_of(number: int) -> Hand:
        """The hand of this number, from 1."""
        return deal(source, target=target, seed=number - 1)

    @cache
    def images(number: int) -> dict:
        """The sheet of a hand, without frames."""
        hand = hand_of(number)
        below = [label.replace(": ", "<br>") for label in hand.labels]
        return sheet(source.images[hand.columns], below, NUMBERS, SHEET_TITLE, columns=COLUMNS)

    def draw(hand: int, accuse: tuple[str, ...], score: bool) -> View:
        """The hand with the accusations, and once it is submitted the player's point."""
        dealt = hand_of(hand)
        guess = np.isin(dealt.labels, accuse)
        if not score:
            sentence = f"{guess.sum()} of 20 accused. Who was in the training data?"
            return View(sentence, {"images": _accused(images(hand), guess), "plane": plane_before})
        indices = np.searchsorted(source.audited, dealt.columns)
        guesses = {name: _highest(value[indices]) for name, value in values.items()}
        sentence, points, table = _results(guesses | {YOU: guess}, dealt.member)
        figures = {
            "images": _revealed(images(hand), guess, dealt.member),
            "plane": plain(guesser(curves, points, SIDE, SIDE)),
        }
        return View(sentence, figures, table, "attacks accuse the ten they score highest")

    def clicked(number: int, values: dict[str, Any]) -> dict:
        """Accuse the clicked image, or take the accusation back, until the hand is submitted: from
        then on the player knows the answer.
        """
        if values["score"]:
            return {}
        label = hand_of(values["hand"]).labels[number - 1]
        accused = values["accuse"]
        if label in accused:
            return {"accuse": tuple(other for other in accused if other != label)}
        return {"accuse": (*accused, label)}

    controls = {
        "hand": count("hand", 1, DEALS),
        "score": W.ToggleButton(description="submit", button_style="success"),
        "accuse": Ticks("in the training data?", hand_of(1).labels, limit=2 * SIDE),
    }
    controls["accuse"].layout.display = "none"  # clicks on the images set it
    follow = {  # another hand is played from its start
        "accuse": {"options": lambda hand: hand_of(hand).labels, "value": lambda hand: ()},
        "score": {"value": lambda hand: False},
    }
    return Explorer(
        TITLE,
        controls,
        draw,
        rows=[["images"], ["plane"]],
        follow=follow,
        clicks={"images": clicked},
    )


def _results(
    guesses: dict[str, np.ndarray], member: np.ndarray
) -> tuple[str, dict[str, tuple[int, int]], pd.DataFrame]:
    """The results of all players.

    Parameters:
        guesses: {player: (20,) bool, the accused images}, the attacks and "you"
        member: (20,) bool

    Returns:
        The result in words, {player: (hits, false alarms)}, and a table with a row for each player.
    """
    points = {}
    right = {}
    for name, guess in guesses.items():
        hits = int((guess & member).sum())
        alarms = int((guess & ~member).sum())
        points[name] = hits, alarms
        right[name] = SIDE + hits - alarms  # members accused and non-members spared
    attacks = [name for name in guesses if name != YOU]
    low, high = metrics.clopper_pearson(right[YOU], 2 * SIDE)
    interval = f"95 %: {100 * low:.0f}-{100 * high:.0f} %"
    others = ", ".join(f"{name} {right[name]} of 20" for name in attacks)
    sentence = f"You: {right[YOU]} of 20 right ({interval}); a coin gets 10, {others}"
    rows = []
    for name in (YOU, *attacks):
        hits, alarms = points[name]
        row = {
            "who": name,
            "right": f"{right[name]} of {2 * SIDE}",
            "members found": _of_ten(hits),
            "false alarms": _of_ten(alarms),
        }
        rows.append(row)
    return sentence, points, pd.DataFrame(rows)


def _of_ten(count: int) -> str:
    """A count of ten with its interval: "7 of 10 [35%, 93%]"."""
    low, high = metrics.clopper_pearson(count, SIDE)
    return f"{count} of {SIDE} [{low:.0%}, {high:.0%}]"


def _highest(value: np.ndarray) -> np.ndarray:
    """(20,) bool: the ten that an attack scores highest."""
    order = np.argsort(-np.nan_to_num(value, nan=-np.inf), kind="stable")
    return np.isin(np.arange(2 * SIDE), order[:SIDE])


def _boxes(images: dict) -> list[dict[str, float]]:
    """The corners of the twenty images on their sheet."""
    captions = images["layout"]["annotations"]
    step = captions[1]["x"] - captions[0]["x"]
    # an image is as wide as 3/4 of the step to the next; its caption begins close below
    half = 3 / 8 * step + 0.5
    boxes = []
    for caption in captions:
        middle = caption["x"] - 0.5  # a pixel is drawn around its number
        bottom = caption["y"]
        box = {"x0": middle - half, "x1": middle + half, "y0": bottom - 2 * half, "y1": bottom}
        boxes.append(box)
    return boxes


def _accused(images: dict, guess: np.ndarray) -> dict:
    """The sheet of images with a frame around each accused one."""
    shapes = []
    for box, is_accused in zip(_boxes(images), guess, strict=True):
        if is_accused:
            shapes.append({"type": "rect", "line": ACCUSED} | box)
    return with_layout(images, shapes=shapes, meta=HOW_TO_PLAY)


def _revealed(images: dict, guess: np.ndarray, member: np.ndarray) -> dict:
    """The sheet with frames in the colours of membership, and crosses over mistakes."""
    shapes = []
    for box, is_accused, is_member in zip(_boxes(images), guess, member, strict=True):
        shapes.append({"type": "rect", "line": FRAMES[bool(is_member)]} | box)
        if is_accused != is_member:
            falling = {"type": "line", "line": CROSS} | box
            rising = falling | {"y0": box["y1"], "y1": box["y0"]}
            shapes += [falling, rising]
    return with_layout(with_title(images, LEGEND), shapes=shapes, meta="")
