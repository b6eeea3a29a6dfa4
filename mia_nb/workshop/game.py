"""The membership game: twenty images, how sure the model is of each, and a guess who was in its training data."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import ipywidgets as W
import numpy as np
import pandas as pd

from mia_nb import metrics, plots
from mia_nb.attacks.margins import over_queries
from mia_nb.plots import samples as pictures
from mia_nb.plots.style import LINES, MEMBER, NON_MEMBER
from mia_nb.widgets.explorer import ROW, Explorer, Ticks, View, message
from mia_nb.widgets.figure import plain
from mia_nb.widgets.stored import Source

TITLE = "The membership game"
SIDE = 10  # members, and as many non-members, in a hand
COLUMNS = 10
DEALS = 20


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
        raise ValueError(f"model {target} has {inside.sum()} members of {len(inside)}: a hand needs {SIDE} on either side")
    sides = [rng.choice(source.audited[inside == side], SIDE, replace=False) for side in (True, False)]
    columns = rng.permutation(np.concatenate(sides))
    margin = over_queries(signals.margin[target : target + 1], signals.draws)[0, columns]
    return Hand(columns, signals.member[target, columns], np.exp(-np.logaddexp(0, -margin)))


def game(source: Source, *, target: int = 0, attacks=("loss", "rmia"), guesses=(), reveal: bool = False) -> Explorer:
    """Tick the images that were in the training data, then have it scored: one's own point beside attacks in the ROC plane.

    Attacks accuse the ten images that they score highest. guesses: numbers from 1 to 20 that are ticked from the start. The box
    around one's point and the intervals are 95 % Clopper-Pearson on ten trials each: twenty guesses say little about a guesser.
    """
    if source.images is None:
        return message(TITLE, f"no images are stored with {source.label}; build the cube with: mia-nb run workshop")
    hand = cache(lambda number: deal(source, target=target, seed=number - 1))
    labels = cache(lambda number: tuple(f"{i}: {_sure(p)}" for i, p in enumerate(hand(number).confidence, 1)))
    row = cache(lambda attack: int(np.flatnonzero(source.scores(attack).targets == target)[0]))
    whole = cache(lambda attack: (source.scores(attack).value[row(attack)], source.scores(attack).member[row(attack)]))

    @cache
    def accused(number, attack) -> np.ndarray:
        at = np.searchsorted(source.audited, hand(number).columns)
        order = np.argsort(-np.nan_to_num(whole(attack)[0][at], nan=-np.inf), kind="stable")
        return np.isin(np.arange(2 * SIDE), order[:SIDE])

    @cache
    def sheet(number) -> dict:
        own = hand(number)
        words = [f"{i}: {_sure(p)}" for i, p in enumerate(own.confidence, 1)]
        numbers = list(range(1, 2 * SIDE + 1))
        title = "How sure the model is of each image's right class"
        return pictures.sheet(source.images[own.columns], words, numbers, title, columns=COLUMNS, note="click to accuse")

    @cache
    def plane(number, guessed, shown) -> dict:
        own = hand(number)
        said = {name: accused(number, name) for name in attacks}
        said |= {"you": np.isin(np.arange(1, 2 * SIDE + 1), guessed)} if shown else {}
        points = {name: (int((a & own.member).sum()), int((a & ~own.member).sum())) for name, a in said.items()}
        return plain(plots.guesser({name: whole(name) for name in attacks}, points, SIDE, SIDE))

    def draw(another, accuse, score, clicked) -> View:
        guessed = tuple(labels(another).index(label) + 1 for label in accuse)
        own = hand(another)
        mine = np.isin(np.arange(1, 2 * SIDE + 1), guessed)
        figures = {
            "images": _framed(sheet(another), mine, own.member if score else None),
            "plane": plane(another, guessed, score),
        }
        rows = [_row(name, accused(another, name), own.member) for name in attacks]
        if not score:
            sentence = f'{len(guessed)} of 20 accused. Who was in the training data? Tick or click them, then tick "score me"'
            return View(sentence, figures, pd.DataFrame(rows), "attacks accuse the ten images that they are most sure of")
        right, others = int((mine == own.member).sum()), [f"{row['who']} {row['right']}" for row in rows]
        low, high = (100 * float(end) for end in metrics.clopper_pearson(right, 2 * SIDE))
        sentence = f"{right} of 20 right (95 %: {low:.0f}-{high:.0f} %); a coin gets 10, {', '.join(others)}"
        note = "framed solid: members, dashed: non-members; a cross marks a wrong guess"
        return View(sentence, figures, pd.DataFrame([_row("you", mine, own.member), *rows]), note)

    box, last = {}, {"deal": 1}

    def adjust(values) -> dict:
        number, accuse = values["another"], values["accuse"]
        changes = {"accuse": {"options": labels(number), "value": accuse}}
        if number != last["deal"]:
            last["deal"] = number
            return {"accuse": {"options": labels(number), "value": ()}, "score": {"value": False}}
        if (clicked := values["clicked"]) is not None:
            box["game"].state["clicked"] = None
            label = labels(number)[clicked - 1]
            changes["accuse"]["value"] = tuple(x for x in accuse if x != label) if label in accuse else (*accuse, label)
        return changes

    controls = {
        "another": W.IntSlider(description="hand", min=1, max=DEALS, value=1, **ROW),
        "accuse": Ticks("in the training data?", labels(1), tuple(labels(1)[i - 1] for i in guesses), limit=2 * SIDE),
        "score": W.Checkbox(description="score me", value=reveal, indent=False),
    }
    clicks = {"images": "clicked"}
    rows = [["images"], ["plane"]]
    box["game"] = made = Explorer(TITLE, controls, draw, rows=rows, adjust=adjust, state={"clicked": None}, clicks=clicks)
    return made


def _sure(p: float) -> str:
    """A confidence with as many digits as it takes to differ from certainty."""
    digits = int(np.clip(np.ceil(-np.log10(max(1 - p, 1e-6))) - 1, 0, 4))
    return f"{100 * p:.{digits}f} %"


def _row(who: str, said: np.ndarray, member: np.ndarray) -> dict:
    hits, alarms, right = int((said & member).sum()), int((said & ~member).sum()), int((said == member).sum())
    (a, b), (c, d) = metrics.clopper_pearson(hits, SIDE), metrics.clopper_pearson(alarms, SIDE)
    return {
        "who": who, "right": f"{right} of {2 * SIDE}", "members found": f"{hits} of {SIDE} [{a:.0%}, {b:.0%}]",
        "false alarms": f"{alarms} of {SIDE} [{c:.0%}, {d:.0%}]",
    }  # fmt: skip


def _framed(sheet: dict, mine: np.ndarray, member: np.ndarray | None) -> dict:
    """The sheet with a frame around the accused, or around all in the colours of their membership and crosses over mistakes."""
    import base64

    points = sheet["data"][1]
    x, y = (np.frombuffer(base64.b64decode(points[axis]["bdata"]), np.float32) for axis in "xy")
    half, shapes = float(np.diff(np.unique(x))[:1].sum() or 72) / 2 - 3, []
    for i in range(len(mine)):
        ends = {"x0": float(x[i]) - half, "x1": float(x[i]) + half, "y0": float(y[i]) - half, "y1": float(y[i]) + half}
        if member is None:
            shapes += [{"type": "rect", "line": {"color": LINES[2], "width": 4}} | ends] if mine[i] else []
            continue
        style = {"color": MEMBER if member[i] else NON_MEMBER, "width": 4, "dash": "solid" if member[i] else "dash"}
        shapes.append({"type": "rect", "line": style} | ends)
        if mine[i] != member[i]:
            cross = {"type": "line", "line": {"color": "#CC79A7", "width": 4}}
            shapes += [cross | ends, cross | ends | {"y0": ends["y1"], "y1": ends["y0"]}]
    return sheet | {"layout": sheet["layout"] | {"shapes": shapes}}
