"""Vulnerable samples: whose scores move most when they are in the training set, and how far that
list can be trusted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import ipywidgets as W
import numpy as np
import pandas as pd

from mia_nb import auditing
from mia_nb.attacks.margins import over_queries
from mia_nb.metrics.agreement import rank_correlation
from mia_nb.metrics.uncertainty import half_width, interval
from mia_nb.plots import samples as pictures
from mia_nb.types import Scores
from mia_nb.widgets.compared import ends
from mia_nb.widgets.explorer import ROW, Explorer, View, count, dropdown, message, remarks, tick
from mia_nb.widgets.sample import losses_of, shown, traces_of
from mia_nb.widgets.scores import NOTHING
from mia_nb.widgets.stored import ALL, Source, keep, named, rows_of

TITLE = "Vulnerable samples"
PAGE = 24  # thumbnails
TESTED = 5000  # samples of which all are tested
FOREMOST, YARDSTICK = 480, 2000  # of more: the head of the list, and these, drawn at random
FILTERS = {ALL: ALL, "most OUT models right": "right", "most OUT models wrong": "wrong"}


class Ranking(NamedTuple):
    """Audited samples by mean standardised separation of their scores."""

    value: np.ndarray  # (N,) standard deviations of the scores; NaN where a side is missing
    half: np.ndarray  # (N,) half of the 95 % interval, NaN where it cannot be told
    units: str  # what the interval is over
    order: np.ndarray  # samples, most exposed first, NaN left out
    # between halves of the targets: rank correlation, how many of a page both put on top
    agreement: tuple[float, int]


class Tested(NamedTuple):
    """Scores under redrawn masks."""

    table: pd.DataFrame  # of auditing.vulnerability
    null: np.ndarray  # separations under redrawn masks
    columns: np.ndarray  # samples that were tested


def exposed(sources: Sequence[Source], *, draws: int = 200, seed: int = 0) -> Explorer:
    """Samples ranked by d_i = mean over pairs of targets of (z_t,i with i in t) - (z_t',i with i
    out of t').

    z: a target's scores less their mean, over their standard deviation; without pairs the mean over
    targets with i less that over those without. It is a ranking only: references and targets
    share a pool, which moves a sample's scores together (see `auditing.vulnerability`). The tick
    box "test" redraws the masks and shows AUC over targets, its mean under redrawn masks, p and q;
    of more than 5,000 samples only the first 480 and 2,000 others are redrawn, and all the rest
    enter the correction with p = 1.

    sources: what to choose the pool from
    draws: how often the test redraws the masks
    seed: of these draws
    """
    found = named(sources)
    if not found:
        return message(TITLE, NOTHING)
    seen = Seen(found, draws, seed)

    def leader(pool, attack, kind, answers, canary, sample) -> int:
        rows = seen.listed(pool, attack, kind, answers, canary)
        return int(found[pool].numbers[rows[0]]) if len(rows) else sample

    # what holds for any pool; the rest is filled in by what they follow, whose complaints are
    # shown in place
    controls = {
        "pool": dropdown("pool", list(found), next(iter(found))),
        "attack": dropdown("attack"),
        "kind": dropdown("class", [ALL], ALL),
        "answers": dropdown("outputs", list(FILTERS), ALL),
        "canary": dropdown("canaries", [ALL, "only", "none"], ALL),
        "page": count("page"),
        "sample": W.IntText(description="sample", value=0, **ROW),
        "test": tick("test (redraws masks, seconds)"),
    }
    state = {}
    if not any(source.has_canaries for source in found.values()):
        state["canary"] = controls.pop("canary").value
    follow = {
        "attack": {"options": lambda pool: found[pool].attacks()},
        "kind": {"options": lambda pool: [ALL, *seen.kinds(pool)]},
        "page": {  # another list starts at its top
            "max": lambda pool, attack, kind, answers, canary: max(
                1, -(-len(seen.listed(pool, attack, kind, answers, canary)) // PAGE)
            ),
            "value": lambda pool, attack, kind, answers, canary: 1,
        },
        "sample": {"value": leader},
    }
    rows, clicks = [["sheet"], ["margins", "traces"], ["ranking"]], {"sheet": "sample"}
    return Explorer(
        TITLE, controls, seen.view, rows=rows, follow=follow, state=state, clicks=clicks
    )


class Seen:
    """What one explorer has computed so far, each once for the controls it depends on."""

    def __init__(self, found: dict[str, Source], draws: int, seed: int):
        self.found, self.draws, self.seed = found, draws, seed
        keep(self, ranks=None, right=None, kinds=None, listed=32, tested=4, histogram=16)
        keep(self, traces=8, margins=8, sheet=16)

    def ranks(self, pool, attack) -> Ranking:
        return ranking(self.found[pool].scores(attack))

    def right(self, pool) -> np.ndarray:
        """(N audited,) share of the models without a sample that are right on it, mean over
        queries; NaN without such models.
        """
        signals, audited = self.found[pool].signals, self.found[pool].audited
        correct = over_queries(signals.correct, signals.draws)[:, audited]
        out = ~signals.member[:, audited]
        return np.where(out.any(0), (correct * out).sum(0) / np.maximum(out.sum(0), 1), np.nan)

    def kinds(self, pool) -> dict[str, int]:
        """{class: label}; a class without a name is called by its label, which also sets apart
        equal names and one called "all".
        """
        source = self.found[pool]
        labels = range(max(len(source.classes), int(source.signals.labels.max()) + 1))
        names = [*source.classes, *map(str, labels[len(source.classes) :])]
        often = Counter([ALL, *names])
        return {
            f"{name} ({label})" if often[name] > 1 else name: label
            for label, name in enumerate(names)
        }

    def listed(self, pool, attack, kind, answers, canary) -> np.ndarray:
        """Samples that pass the filters, most exposed first."""
        source, order = self.found[pool], self.ranks(pool, attack).order
        if not len(order):
            raise ValueError(
                f"no sample of {pool} is scored in one target and out of another: train more"
                " models, or query images that only some of them saw"
            )
        passed = np.ones(len(source.audited), bool)
        if kind != ALL:
            passed &= source.signals.labels[source.audited] == self.kinds(pool)[kind]
        if answers != ALL:
            share = self.right(pool)
            passed &= share >= 0.5 if FILTERS[answers] == "right" else share < 0.5
        if canary != ALL:
            if source.canaries is None:
                raise ValueError(f"{pool} has no canaries: choose canaries: all")
            passed &= source.canaries == (canary == "only")
        return order[passed[order]]

    def tested(self, pool, attack) -> Tested:
        order = self.ranks(pool, attack).order
        return tested(self.found[pool], attack, order, self.draws, self.seed)

    def histogram(self, pool, attack, test, *filters) -> dict:
        """How separations spread over the samples listed, beside redrawn masks if tested."""
        rows, ranked = self.listed(pool, attack, *filters), self.ranks(pool, attack)
        title = f"{len(rows):,} of {len(ranked.value):,} samples"
        null = self.tested(pool, attack).null if test else None
        name = "separation (sd of scores)"
        return pictures.ranking(ranked.value[rows], title, null=null, name=name)

    def traces(self, pool, one) -> dict:
        source = self.found[pool]
        return traces_of(losses_of(source), np.arange(len(source.signals.margin)), one, None)

    def margins(self, pool, one) -> dict:
        """Margins of one sample by the models with it and without it."""
        signals = self.found[pool].signals
        margin = over_queries(signals.margin[:, :, one : one + 1], signals.draws)[:, 0]
        inside = signals.member[:, one]
        means = [margin[side].mean() if side.any() else np.nan for side in (inside, ~inside)]
        with_it, without = (shown(mean, ".2f") for mean in means)
        sentence = f"margins of all {len(margin)} models: {with_it} with it, {without} without it"
        return pictures.two_worlds(margin, inside, sentence, height=330)

    def sheet(self, pool, columns: tuple, start: int, sample: int) -> dict:
        """A page of images of the list."""
        source, rows = self.found[pool], list(columns)
        numbers, own = source.numbers[rows], source.audited[rows]
        captions = list(zip(numbers, map(source.class_of, own), strict=True))
        ranks = f"ranks {start + 1:,} to {start + len(rows):,}"
        if source.images is None:
            names = ", ".join(f"{number} ({label})" for number, label in captions)
            return pictures.empty(f"no images are stored with these signals; {ranks}: {names}")
        words = [f"{number}<br>{label}" for number, label in captions]
        title = f"{ranks} of the list; click one"
        return pictures.sheet(source.images[own], words, numbers, title, chosen=sample)

    def view(self, pool, attack, kind, answers, page, sample, test, canary) -> View:
        """What is shown for one setting of the controls."""
        source, ranked = self.found[pool], self.ranks(pool, attack)
        column, rows = source.column(sample), self.listed(pool, attack, kind, answers, canary)
        if not len(rows):
            raise ValueError("no sample passes these filters: widen class or outputs")
        start, one = PAGE * (page - 1), int(source.audited[column])
        outcome = self.tested(pool, attack) if test else None
        histogram = self.histogram(pool, attack, test, kind, answers, canary)
        figures = {
            "sheet": self.sheet(pool, tuple(rows[start : start + PAGE].tolist()), start, sample),
            "margins": self.margins(pool, one),
            "traces": self.traces(pool, one),
            "ranking": pictures.marked(histogram, float(ranked.value[column])),
        }
        row = numbers(source, ranked, column, self.right(pool)[column])
        row |= {} if outcome is None else test_numbers(outcome, column)
        words = sentence(source, ranked, rows, outcome, attack)
        return View(words, figures, pd.DataFrame([row]), note(ranked, outcome))


def ranking(scores: Scores, *, page: int = PAGE) -> Ranking:
    """Separation of every sample over all targets, and how far every other pair of targets agrees
    with the rest.
    """
    value, half, units = separations(scores)
    order = np.argsort(-value, kind="stable")
    parts = []
    for start in (0, 1):
        rows = np.flatnonzero(np.isin(scores.pair, np.unique(scores.pair)[start::2]))
        parts.append(
            separations(rows_of(scores, rows))[0] if len(rows) else np.full(len(value), np.nan)
        )
    known = np.flatnonzero(np.isfinite(parts[0]) & np.isfinite(parts[1]))
    tops = [set(known[np.argsort(-part[known], kind="stable")[:page]]) for part in parts]
    alike = rank_correlation(parts[0][known], parts[1][known]) if len(known) > 2 else np.nan
    return Ranking(
        value, half, units, order[~np.isnan(value[order])], (alike, len(tops[0] & tops[1]))
    )


def separations(scores: Scores) -> tuple[np.ndarray, np.ndarray, str]:
    """(mean separation (N,), half of its 95 % interval (N,), over what): score with the sample less
    score without it.

    In standard deviations of a target's scores over samples. Complementary pairs: mean and
    Student's t over the pairs of targets; other designs: mean of the targets with the sample less
    mean of those without it, Student's t with one variance.
    """
    mean, spread = np.nanmean(scores.value, axis=1), np.nanstd(scores.value, axis=1)
    z = (scores.value - mean[:, None]) / np.maximum(spread, 1e-12)[:, None]
    twins = [np.flatnonzero(scores.pair == one) for one in np.unique(scores.pair)]
    if all(
        len(rows) == 2 and (scores.member[rows[0]] != scores.member[rows[1]]).all()
        for rows in twins
    ):
        gap = np.stack([np.where(scores.member[a], z[a] - z[b], z[b] - z[a]) for a, b in twins])
        return (
            gap.mean(0),
            interval(gap, np.arange(len(gap)))[1] - gap.mean(0),
            f"{len(gap)} pairs of targets",
        )
    known = ~np.isnan(z)
    sides = [known & scores.member, known & ~scores.member]
    n_in, n_out = (side.sum(0) for side in sides)
    m_in, m_out = (np.where(side, z, 0).sum(0) / np.maximum(side.sum(0), 1) for side in sides)
    value = np.where((n_in > 0) & (n_out > 0), m_in - m_out, np.nan)
    ss = sum(
        np.where(side, (z - m) ** 2, 0).sum(0) for side, m in zip(sides, (m_in, m_out), strict=True)
    )
    free = n_in + n_out - 2
    with np.errstate(divide="ignore", invalid="ignore"):
        half = half_width(ss / free * (1 / n_in + 1 / n_out), free + 1)
    return value, half, f"{len(z)} targets without pairs"


def tested(source: Source, attack: str, order: np.ndarray, draws: int, seed: int) -> Tested:
    """Redrawn masks for all samples, or for the first in order and a yardstick; what was not
    redrawn counts with p = 1.
    """
    signals, everyone, scores = source.signals, len(source.audited), source.scores(attack)
    columns = np.arange(everyone)
    if everyone > TESTED:
        others = np.random.default_rng(seed).choice(everyone, YARDSTICK, replace=False)
        columns = np.unique(np.concatenate([order[:FOREMOST], others]))
        chosen = [source.audited[columns], np.flatnonzero(signals.population)]
        signals = signals.select(samples=np.sort(np.concatenate(chosen)))
    null: list[np.ndarray] = []

    def full() -> Iterator[Scores]:
        for one in auditing.null_scores(attack, signals, draws=draws, seed=seed):
            null.append(separations(one)[0].astype(np.float32))
            value = np.full((len(one.value), everyone), np.nan)
            member = np.zeros(value.shape, bool)
            value[:, columns], member[:, columns] = one.value, one.member
            yield replace(one, value=value, member=member)

    table = auditing.vulnerability(scores, null=full())
    return Tested(table, np.concatenate(null), columns)


def sentence(source: Source, ranked: Ranking, rows, outcome: Tested | None, attack: str) -> str:
    """Who leads the list, and how many are exposed beyond chance where that was tested."""
    top, several = int(rows[0]), "s" if len(rows) > 1 else ""
    start = (
        f"By {attack}, sample {source.numbers[top]} (labelled"
        f" {source.class_of(source.audited[top])}) leads {len(rows):,} sample{several}: its score"
        f" is higher by {ranked.value[top]:.2f} sd where it is a member (mean over {ranked.units};"
        " no interval, as it was chosen for being high)"
    )
    if outcome is None:
        return f"{start}; ranking only; significance not tested"
    significant, everyone = int(outcome.table["significant"].sum()), len(source.audited)
    who = f"no sample of {everyone:,}"
    if significant:
        who = f"{significant:,} of {everyone:,} samples"
    rate = outcome.table.attrs["rate"]
    return f"{start}; {who} exposed beyond chance at a false discovery rate of {rate:.0%}"


def numbers(source: Source, ranked: Ranking, column: int, right: float) -> dict:
    """The table's row about one sample."""
    one, (value, half) = source.audited[column], (ranked.value[column], ranked.half[column])
    place = np.flatnonzero(ranked.order == column)
    rank, separation = "not ranked: no scored target on a side", shown(np.nan)
    if len(place):
        rank = f"{place[0] + 1:,} of {len(ranked.order):,}"
        separation = f"{value:.2f} [n/m]"
    if np.isfinite(half):
        separation = ends(value, value - half, value + half, ".2f")
    out = int((~source.signals.member[:, one]).sum())
    row = {
        "sample": int(source.numbers[column]),
        "label": source.class_of(one),
        "rank": rank,
        "separation (sd)": separation,
        "over": ranked.units,
        "OUT models right": f"{shown(right, '.0%')} of {out}",
    }
    if source.canaries is not None:
        row["canary"] = "yes" if source.canaries[column] else "no"
    return row


def test_numbers(outcome: Tested, column: int) -> dict:
    """What the table says of the test of one sample."""
    line = outcome.table.iloc[column]
    row = {
        "AUC over targets": shown(line["auc"], ".3f"),
        "targets in, out": f"{line['t_in']:.0f}, {line['t_out']:.0f}",
        "p": "not redrawn",
    }
    if column in outcome.columns:
        row["AUC over targets"] += f" (redrawn masks: {shown(line['null_auc'], '.3f')})"
        row["p"] = f"{shown(line['p'])} (no less than {shown(line['smallest_p'])})"
        row["q"] = shown(line["q"])
    return row


def note(ranked: Ranking, outcome: Tested | None) -> str:
    """What the ranking rests on and how far it can be trusted."""
    alike, common = ranked.agreement
    missing = int(np.isnan(ranked.value).sum())
    lack = "samples lack" if missing > 1 else "sample lacks"
    texts = {
        "with another seed other images stand on top": True,
        f"two halves of the targets: rank correlation {alike:.2f}, {common} of the {PAGE} on top"
        " in common": np.isfinite(alike),
        "intervals: Student's, 95 %, of a sample chosen beforehand; who leads a list leads by luck"
        " too": True,
        "targets are each other's references, which moves a sample's scores together: test for p"
        " values": outcome is None,
    }
    if outcome is not None:
        tested = f"masks redrawn for {len(outcome.columns):,} samples, the others corrected for"
        texts |= {
            outcome.table.attrs["resolution"]: True,
            f"p: {outcome.table.attrs['method']}": True,
            f"{tested} with p = 1": len(outcome.columns) < len(ranked.value),
        }
    return remarks(texts | {f"{missing:,} {lack} a scored target on one side: not ranked": missing})
