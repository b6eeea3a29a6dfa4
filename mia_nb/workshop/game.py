"""The membership game: twenty images, how sure the model is of each, and a guess who was in its training data."""

from __future__ import annotations

import base64
from functools import cache
from typing import NamedTuple

import ipywidgets as W
import numpy as np
import pandas as pd

from mia_nb import metrics, plots
from mia_nb.attacks.margins import over_queries
from mia_nb.plots import samples as pictures
from mia_nb.plots.style import LINES, MEMBER, NON_MEMBER, row_of
from mia_nb.widgets.explorer import ROW, Explorer, Ticks, View, message
from mia_nb.widgets.figure import plain
from mia_nb.widgets.stored import Source

TITLE = "The membership game"
SIDE = 10  # members, and as many non-members, in a hand
COLUMNS = 10
DEALS = 20
NUMBERS = range(1, 2 * SIDE + 1)


class Hand(NamedTuple):
    """Twenty images of one model: columns of the signals, who was a member, and the confidence in the right class (20,)."""

    columns: np.ndarray
    member: np.ndarray
    confidence: np.ndarray


def deal(source: Source, *, target: int = 0, seed: int = 0) -> Hand:
    """Ten members and ten non-members of a target in random order, the same for the same seed. ValueError for too few."""
    signals, rng = source.signals, np.random.default_rng([12, target, seed])
    inside = signals.member[target, source.audited]
    if min(inside.sum(), (~inside).sum()) < SIDE:
        raise ValueError(
            f"model {target} has {inside.sum()} members of {len(inside)}: a hand needs {SIDE} on either side"
        )
    sides = [
        rng.choice(source.audited[inside == side], SIDE, replace=False) for side in (True, False)
    ]
    columns = rng.permutation(np.concatenate(sides))
    margin = over_queries(signals.margin[target : target + 1], signals.draws)[0, columns]
    return Hand(columns, signals.member[target, columns], np.exp(-np.logaddexp(0, -margin)))


def game(
    source: Source, *, target: int = 0, attacks=("loss", "rmia"), guesses=(), reveal: bool = False
) -> Explorer:
    """Tick the images that were in the training data, then have it scored: one's own point beside attacks in the ROC plane.

    Attacks accuse the ten images that they score highest; what that gave is shown once the player is scored. guesses: numbers
    from 1 to 20 that are ticked from the start. The box around one's point and the intervals are 95 % Clopper-Pearson on ten
    trials each: twenty guesses say little about a guesser.
    """
    if source.images is None:
        return message(
            TITLE,
            f"no images are stored with {source.label}; build the cube with: mia-nb run workshop",
        )
    hands, box, last = Hands(source, target, tuple(attacks)), {}, {"hand": 1}

    def draw(hand, accuse, score, clicked) -> View:
        guessed = tuple(hands.labels(hand).index(label) + 1 for label in accuse)
        mine, member = np.isin(list(NUMBERS), guessed), hands.hand(hand).member
        sheet = _framed(hands.sheet(hand), mine, member if score else None)
        figures = {"images": sheet, "plane": hands.plane(hand, guessed if score else None)}
        if not score:
            sentence = f'{len(guessed)} of 20 accused. Who was in the training data? Click or tick them, then tick "score me"'
            return View(
                sentence,
                figures,
                None,
                "attacks play the same hand; they show theirs when you are scored",
            )
        rows = [_row(name, hands.accused(hand, name), member) for name in attacks]
        right, others = (
            int((mine == member).sum()),
            [f"{row['who']} {row['right']}" for row in rows],
        )
        low, high = (100 * float(end) for end in metrics.clopper_pearson(right, 2 * SIDE))
        sentence = f"You: {right} of 20 right (95 %: {low:.0f}-{high:.0f} %); a coin gets 10, {', '.join(others)}"
        note = "solid frames: members; dashed: non-members; a cross marks a wrong guess; attacks accuse the ten they score highest"
        return View(sentence, figures, pd.DataFrame([_row("you", mine, member), *rows]), note)

    def adjust(values) -> dict:
        labels, accuse = hands.labels(values["hand"]), values["accuse"]
        if values["hand"] != last["hand"]:
            last["hand"] = values["hand"]
            return {"accuse": {"options": labels, "value": ()}, "score": {"value": False}}
        if (clicked := values["clicked"]) is None:
            return {}
        box["game"].state["clicked"] = None
        label = labels[clicked - 1]
        return {
            "accuse": {
                "value": tuple(x for x in accuse if x != label)
                if label in accuse
                else (*accuse, label)
            }
        }

    first = hands.labels(1)
    controls = {
        "hand": W.IntSlider(description="hand", min=1, max=DEALS, value=1, **ROW),
        "score": W.Checkbox(description="score me", value=reveal, **ROW),
        "accuse": Ticks(
            "in the training data?", first, tuple(first[i - 1] for i in guesses), limit=2 * SIDE
        ),
    }
    wired = {
        "rows": [["images"], ["plane"]],
        "adjust": adjust,
        "state": {"clicked": None},
        "clicks": {"images": "clicked"},
    }
    box["game"] = made = Explorer(TITLE, controls, draw, **wired)
    return made


class Hands:
    """What the game shows, each computed once; hands are counted from 1."""

    def __init__(self, source: Source, target: int, attacks: tuple[str, ...]):
        self.source, self.target, self.attacks = source, target, attacks
        for name in ("hand", "labels", "whole", "accused", "sheet", "plane"):
            setattr(self, name, cache(getattr(self, name)))

    def hand(self, number: int) -> Hand:
        return deal(self.source, target=self.target, seed=number - 1)

    def labels(self, number: int) -> tuple[str, ...]:
        """Number and confidence of each image."""
        return tuple(
            f"{i}: {_sure(p)}" for i, p in zip(NUMBERS, self.hand(number).confidence, strict=True)
        )

    def whole(self, attack: str) -> tuple[np.ndarray, np.ndarray]:
        """Scores and membership of every image, for the target."""
        found = self.source.scores(attack)
        row = row_of(found, self.target)
        return found.value[row], found.member[row]

    def accused(self, number: int, attack: str) -> np.ndarray:
        """(20,) bool: the ten that the attack scores highest."""
        at = np.searchsorted(self.source.audited, self.hand(number).columns)
        order = np.argsort(-np.nan_to_num(self.whole(attack)[0][at], nan=-np.inf), kind="stable")
        return np.isin(np.arange(2 * SIDE), order[:SIDE])

    def sheet(self, number: int) -> dict:
        x, title = (
            self.source.images[self.hand(number).columns],
            "How sure the model is of each image's right class",
        )
        return pictures.sheet(
            x, self.labels(number), NUMBERS, title, columns=COLUMNS, note="click to accuse"
        )

    def plane(self, number: int, guessed: tuple[int, ...] | None) -> dict:
        """Everybody's point; before one's own is scored the attacks' curves over all images alone."""
        curves, member = {name: self.whole(name) for name in self.attacks}, self.hand(number).member
        if guessed is None:
            figure = plots.guesser(curves, {}, SIDE, SIDE)
            words = {
                "text": "Attacks on all images",
                "subtitle": {"text": "points of these 20 come when you are scored"},
            }
            return plain(figure.update_layout(title=words))
        said = {name: self.accused(number, name) for name in self.attacks} | {
            "you": np.isin(list(NUMBERS), guessed)
        }
        points = {
            name: (int((mine & member).sum()), int((mine & ~member).sum()))
            for name, mine in said.items()
        }
        return plain(plots.guesser(curves, points, SIDE, SIDE))


def _sure(p: float) -> str:
    """A confidence with as many digits as it takes to differ from certainty."""
    digits = int(np.clip(np.ceil(-np.log10(max(1 - p, 1e-6))) - 1, 0, 4))
    return f"{100 * p:.{digits}f} %"


def _row(who: str, said: np.ndarray, member: np.ndarray) -> dict:
    hits, alarms, right = (
        int((said & member).sum()),
        int((said & ~member).sum()),
        int((said == member).sum()),
    )
    (a, b), (c, d) = metrics.clopper_pearson(hits, SIDE), metrics.clopper_pearson(alarms, SIDE)
    return {
        "who": who, "right": f"{right} of {2 * SIDE}", "members found": f"{hits} of {SIDE} [{a:.0%}, {b:.0%}]",
        "false alarms": f"{alarms} of {SIDE} [{c:.0%}, {d:.0%}]",
    }  # fmt: skip


def _framed(sheet: dict, mine: np.ndarray, member: np.ndarray | None) -> dict:
    """The sheet with a frame around the accused, or around all in the colours of their membership and crosses over mistakes."""
    points = sheet["data"][1]
    x, y = (np.frombuffer(base64.b64decode(points[axis]["bdata"]), np.float32) for axis in "xy")
    half, shapes = float(np.diff(np.unique(x))[:1].sum() or 72) / 2 - 3, []
    for i in range(len(mine)):
        ends = {
            "x0": float(x[i]) - half,
            "x1": float(x[i]) + half,
            "y0": float(y[i]) - half,
            "y1": float(y[i]) + half,
        }
        if member is None:
            shapes += (
                [{"type": "rect", "line": {"color": LINES[2], "width": 4}} | ends]
                if mine[i]
                else []
            )
            continue
        style = {
            "color": MEMBER if member[i] else NON_MEMBER,
            "width": 4,
            "dash": "solid" if member[i] else "dash",
        }
        shapes.append({"type": "rect", "line": style} | ends)
        if mine[i] != member[i]:
            cross = {"type": "line", "line": {"color": "#CC79A7", "width": 4}}
            shapes += [cross | ends, cross | ends | {"y0": ends["y1"], "y1": ends["y0"]}]
    return sheet | {"layout": sheet["layout"] | {"shapes": shapes}}
