"""Vulnerable samples: those whose scores rise most when they are in the training set, and a test of
whether that is more than chance.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import ipywidgets as W
import numpy as np
import pandas as pd

from mia_nb import attacks, auditing
from mia_nb.attacks.margins import over_queries
from mia_nb.metrics.agreement import rank_correlation
from mia_nb.metrics.uncertainty import half_width, interval
from mia_nb.plots import samples as pictures
from mia_nb.types import Scores
from mia_nb.widgets.explorer import (
    MARK,
    ROW,
    Explorer,
    View,
    chooser,
    count,
    dropdown,
    message,
    remarks,
    tick,
    with_layout,
    with_line,
    worded,
)
from mia_nb.widgets.pictures import masked_mean, number_text, with_interval
from mia_nb.widgets.sample import traces
from mia_nb.widgets.stored import ALL, NOTHING, Source, list_of_sources, named, rows_of

TITLE = "Vulnerable samples"
QUESTION = "Who is exposed, and is that more than chance?"
PAGE = 24  # thumbnails
ALL_TESTED = 5000  # up to so many samples the test redraws masks for all of them
# of more samples masks are redrawn for the first of the list, and for others drawn at random
FIRST_TESTED = 480
OTHERS_TESTED = 2000
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


def exposed(sources: Sequence[Source], *, n_resamples: int = 200) -> Explorer:
    """Samples ranked by how much higher their scores are where they are members, with a test.

    Parameters:
        sources: stored results to choose a pool from, as `widgets.sources` lists them
        n_resamples: how often the test redraws the masks

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` exports it. Without sources a message that says what to run.

    Ranked by d_i = mean over pairs of targets of (z_t,i with i in t) - (z_t',i with i out of t'),
    z: a target's scores less their mean, over their standard deviation; without pairs the mean over
    targets with i less that over those without. The tick box "test" redraws the masks and shows AUC
    over targets, its mean under redrawn masks, p and q; of more than 5,000 samples only the first
    480 and 2,000 others are redrawn, and all the rest enter the correction with p = 1.

    Caveat: a ranking only until it is tested: references and targets share a pool, which moves a
        sample's scores together (see `auditing.vulnerability`).
    """
    pools = named(list_of_sources(sources))
    if not pools:
        return message(TITLE, NOTHING)

    def leader(pool: str, attack: str, kind: int | str, outputs: str, sample: int) -> int:
        """The first sample in the list; the one chosen before if the list is empty."""
        rows = filtered(pools[pool], attack, kind, outputs)
        return int(pools[pool].numbers[rows[0]]) if len(rows) else sample

    def pages(pool: str, attack: str, kind: int | str, outputs: str) -> int:
        return max(1, math.ceil(len(filtered(pools[pool], attack, kind, outputs)) / PAGE))

    def draw(
        pool: str,
        attack: str,
        kind: int | str,
        outputs: str,
        page: int,
        sample: int,
        test: bool,
    ) -> View:
        """One page of the ranking, and where the chosen sample stands in it."""
        source = pools[pool]
        ranked = ranking(source, attack)
        rows = filtered(source, attack, kind, outputs)
        if not len(rows):
            raise ValueError("no sample passes these filters: widen class or outputs")
        column = source.column(sample)  # among the audited samples
        image = int(source.audited[column])  # among all
        outcome = tested(source, attack, n_resamples) if test else None
        start = PAGE * (page - 1)
        on_page = tuple(rows[start : start + PAGE].tolist())
        spread = histogram(source, attack, (kind, outputs), n_resamples if test else 0)
        figures = {
            "sheet": sheet(source, on_page, start, sample),
            "margins": margins(source, image),
            "traces": traces(source, tuple(range(len(source.signals.margin))), image),
            "ranking": with_line(spread, float(ranked.value[column]), line=MARK),
        }
        row = numbers(source, ranked, column)
        if outcome is not None:
            row |= test_numbers(outcome, column)
        return View(
            sentence(source, ranked, rows, outcome, attack),
            figures,
            pd.DataFrame([row]),
            note(source, ranked, outcome),
            ranks(source, ranked, rows),
        )

    # options that depend on the pool are filled in by `follow`, whose errors the explorer shows
    controls = {
        "pool": chooser("pool", pools),
        "attack": dropdown("attack"),
        "kind": dropdown("class", [ALL], ALL),
        "outputs": dropdown("outputs", list(FILTERS), ALL),
        "page": count("page"),
        "sample": W.IntText(description="sample", value=0, **ROW),
        "test": tick("test (redraws masks, seconds)"),
    }
    follow = {
        "attack": {"options": lambda pool: worded(pools[pool].attacks())},
        "kind": {"options": lambda pool: [(ALL, ALL), *pools[pool].kinds]},
        # another list starts at its first page
        "page": {"max": pages, "value": lambda pool, attack, kind, outputs: 1},
        "sample": {"value": leader},
    }
    return Explorer(
        TITLE,
        controls,
        draw,
        question=QUESTION,
        rows=[["sheet", "ranking"], ["margins", "traces"]],
        follow=follow,
        pools=pools,
        heights={"sheet": 270, "margins": 225, "traces": 225, "ranking": 270},
        clicks={"sheet": "sample"},
    )


@lru_cache(4)
def out_accuracy(source: Source) -> np.ndarray:
    """(N audited,) share of the models without a sample that are right on it, mean over
    queries; NaN without such models.
    """
    signals = source.signals
    correct = over_queries(signals.correct, signals.query_kind)[:, source.audited]
    return masked_mean(correct, ~signals.member[:, source.audited])


@lru_cache(32)
def filtered(source: Source, attack: str, kind: int | str, outputs: str) -> np.ndarray:
    """Columns of the samples that pass the filters, most exposed first."""
    order = ranking(source, attack).order
    if not len(order):
        raise ValueError(
            f"no sample of {source.label} is scored in one target and out of another: train more"
            " models, or query images that only some of them saw"
        )
    passes = np.ones(len(source.audited), bool)
    if kind != ALL:
        passes &= source.signals.labels[source.audited] == kind
    if outputs != ALL:
        share = out_accuracy(source)
        passes &= share >= 0.5 if FILTERS[outputs] == "right" else share < 0.5
    return order[passes[order]]


@lru_cache(8)
def margins(source: Source, image: int) -> dict:
    """Margins of one sample by the models with it and without it."""
    signals = source.signals
    margin = over_queries(signals.margin[:, :, [image]], signals.query_kind)
    inside = signals.member[:, [image]]
    with_it = number_text(masked_mean(margin, inside)[0], ".2f")
    without = number_text(masked_mean(margin, ~inside)[0], ".2f")
    return pictures.two_worlds(
        margin[:, 0],
        inside[:, 0],
        f"margins of all {len(margin)} models: {with_it} with it, {without} without it",
        height=330,
    )


@lru_cache(16)
def sheet(source: Source, columns: tuple[int, ...], start: int, sample: int) -> dict:
    """A page of images of the list."""
    numbers = source.numbers[list(columns)]
    images = source.audited[list(columns)]
    names = [pictures.short(source.class_of(image)) for image in images]
    words = [f"{number}<br>{name}" for number, name in zip(numbers, names, strict=True)]
    ranks = f"ranks {start + 1:,} to {start + len(columns):,}"
    if source.images is None:
        why = "no images are stored with these signals"
        return pictures.empty(f"{why}; {ranks}: {', '.join(words)}".replace("<br>", " "))
    title = f"{ranks} of the list: number over label"
    figure = pictures.sheet(source.images[images], words, numbers, title, chosen=sample)
    return with_layout(figure, meta="click one")


@lru_cache(16)
def histogram(source: Source, attack: str, filters: tuple, n_resamples: int) -> dict:
    """Histogram of the separations of the listed samples, beside those under redrawn masks if
    `n_resamples` is not 0.
    """
    rows = filtered(source, attack, *filters)
    value = ranking(source, attack).value
    null = tested(source, attack, n_resamples).null if n_resamples else None
    title = f"{len(rows):,} of {len(value):,} samples"
    name = "separation (sd of scores)"
    return pictures.ranking(value[rows], title, null=null, name=name)


@lru_cache(16)
def ranking(source: Source, attack: str) -> Ranking:
    """Separation of every sample over all targets, and how far two halves of the targets agree."""
    scores = source.scores(attack)
    value, half, units = separations(scores)
    order = np.argsort(-value, kind="stable")
    ranked = order[~np.isnan(value[order])]
    return Ranking(value, half, units, ranked, agreement(scores))


def agreement(scores: Scores) -> tuple[float, int]:
    """(rank correlation of the separations in two halves of the targets, number of samples on the
    first page of both); NaN and 0 where there is one pair of targets.
    """
    pairs = np.unique(scores.pair)
    if len(pairs) < 2:
        return np.nan, 0
    halves = []
    for side in (pairs[::2], pairs[1::2]):
        halves.append(separations(rows_of(scores, np.isin(scores.pair, side)))[0])
    known = np.isfinite(halves).all(0)
    first, second = (half[known] for half in halves)
    correlation = rank_correlation(first, second) if known.sum() > 2 else np.nan
    return correlation, len(most_exposed(first) & most_exposed(second))


def most_exposed(value: np.ndarray) -> set[int]:
    """Indices of the largest values, as many as a page holds."""
    return set(np.argsort(-value, kind="stable")[:PAGE].tolist())


def separations(scores: Scores) -> tuple[np.ndarray, np.ndarray, str]:
    """How much higher a sample's score is in targets that were trained on it, in standard
    deviations of a target's scores over samples.

    With complementary pairs: mean and Student's t over the pairs of targets. In other designs: mean
    of the targets with the sample less mean of those without it, Student's t with one variance.

    Returns:
        The mean separation (N,), half the width of its 95 % interval (N,), and in words what both
        are over.
    """
    mean = np.nanmean(scores.value, axis=1)
    spread = np.nanstd(scores.value, axis=1)
    z = (scores.value - mean[:, None]) / np.maximum(spread, 1e-12)[:, None]
    pairs = [np.flatnonzero(scores.pair == number) for number in np.unique(scores.pair)]
    if all(len(rows) == 2 and np.logical_xor(*scores.member[rows]).all() for rows in pairs):
        gaps = []
        for first, second in pairs:
            gaps.append(np.where(scores.member[first], 1, -1) * (z[first] - z[second]))
        gap = np.stack(gaps)
        low, high = interval(gap, np.arange(len(gap)))
        return gap.mean(0), (high - low) / 2, f"{len(gap)} pairs of targets"
    inside = ~np.isnan(z) & scores.member
    outside = ~np.isnan(z) & ~scores.member
    n1 = inside.sum(0)
    n0 = outside.sum(0)
    with_it = masked_mean(z, inside)
    without = masked_mean(z, outside)
    squares = np.where(inside, (z - with_it) ** 2, 0).sum(0)
    squares += np.where(outside, (z - without) ** 2, 0).sum(0)
    degrees = n1 + n0 - 2
    with np.errstate(divide="ignore", invalid="ignore"):
        half = half_width(squares / degrees * (1 / n1 + 1 / n0), degrees + 1)
    return with_it - without, half, f"{len(z)} targets without pairs"


@lru_cache(4)
def tested(source: Source, attack: str, n_resamples: int) -> Tested:
    """The test of all samples, or of the first in the list and others drawn at random; a sample
    whose masks were not redrawn counts with p = 1.
    """
    signals = source.signals
    count_audited = len(source.audited)
    scores = source.scores(attack)
    columns = np.arange(count_audited)
    if count_audited > ALL_TESTED:
        others = np.random.default_rng(0).choice(count_audited, OTHERS_TESTED, replace=False)
        columns = np.unique(np.concatenate([ranking(source, attack).order[:FIRST_TESTED], others]))
        chosen = [source.audited[columns], np.flatnonzero(signals.population)]
        signals = signals.select(samples=np.sort(np.concatenate(chosen)))
    null: list[np.ndarray] = []

    def null_scores() -> Iterator[Scores]:
        """Redrawn scores, NaN for samples that were not redrawn."""
        for redrawn in auditing.null_scores(attack, signals, n_resamples=n_resamples):
            null.append(separations(redrawn)[0].astype(np.float32))
            value = np.full((len(redrawn.value), count_audited), np.nan)
            member = np.zeros(value.shape, bool)
            value[:, columns] = redrawn.value
            member[:, columns] = redrawn.member
            yield replace(redrawn, value=value, member=member)

    return Tested(auditing.vulnerability(scores, null=null_scores()), np.concatenate(null), columns)


def sentence(
    source: Source, ranked: Ranking, rows: np.ndarray, outcome: Tested | None, attack: str
) -> str:
    """The first sample of the list, and how many are exposed beyond chance if that was tested."""
    top = int(rows[0])
    several = "s" if len(rows) > 1 else ""
    start = (
        f"By {attacks.in_words(attack)}, sample {source.numbers[top]} (labelled"
        f" {source.class_of(source.audited[top])}) leads {len(rows):,} sample{several}: its score"
        f" is higher by {ranked.value[top]:.2f} sd where it is a member (mean over {ranked.units};"
        " no interval, as it was chosen for being high)"
    )
    if outcome is None:
        return f"{start}; ranking only; significance not tested"
    significant = int(outcome.table["significant"].sum())
    rate = outcome.table.attrs["rate"]
    who = f"{significant:,} samples" if significant else "no sample"
    return (
        f"{start}; {who} of {len(source.audited):,} exposed beyond chance at a false discovery rate"
        f" of {rate:.0%}"
    )


def numbers(source: Source, ranked: Ranking, column: int) -> dict:
    """The table's row about one sample."""
    image = source.audited[column]
    value = ranked.value[column]
    half = ranked.half[column]
    rank = "not ranked: no scored target on a side"
    if not np.isnan(value):
        rank = f"{np.flatnonzero(ranked.order == column)[0] + 1:,} of {len(ranked.order):,}"
    out = int((~source.signals.member[:, image]).sum())
    row = {
        "sample": int(source.numbers[column]),
        "label": source.class_of(image),
        "rank": rank,
        "separation (sd)": with_interval(value, value - half, value + half, ".2f"),
        "over": ranked.units,
        "OUT models right": f"{number_text(out_accuracy(source)[column], '.0%')} of {out}",
    }
    if source.canaries is not None:
        row["canary"] = "yes" if source.canaries[column] else "no"
    return row


def ranks(source: Source, ranked: Ranking, rows: np.ndarray) -> pd.DataFrame:
    """The ranked and filtered list for CSV, with the separation of each sample and its interval."""
    value = ranked.value[rows]
    half = ranked.half[rows]
    return pd.DataFrame(
        {
            "sample": source.numbers[rows],
            "label": [source.class_of(column) for column in source.audited[rows]],
            "separation": value,
            "low": value - half,
            "high": value + half,
        }
    )


def test_numbers(outcome: Tested, column: int) -> dict:
    """The table's entries on the test of one sample."""
    line = outcome.table.iloc[column]
    row = {
        "AUC over targets": number_text(line["auc"], ".3f"),
        "targets in, out": f"{line['t_in']:.0f}, {line['t_out']:.0f}",
        "p": "not redrawn",
    }
    if column in outcome.columns:
        row["AUC over targets"] += f" (redrawn masks: {number_text(line['null_auc'], '.3f')})"
        row |= {
            "p": f"{number_text(line['p'])} (no less than {number_text(line['smallest_p'])})",
            "q": number_text(line["q"]),
        }
    return row


def note(source: Source, ranked: Ranking, outcome: Tested | None) -> str:
    """What the ranking rests on and how far it can be trusted."""
    correlation, common = ranked.agreement
    missing = int(np.isnan(ranked.value).sum())
    lack = "samples lack" if missing > 1 else "sample lacks"
    texts = {
        source.lacks: source.lacks,
        "with another seed other images stand on top": True,
        f"two halves of the targets: rank correlation {correlation:.2f}, {common} of the {PAGE} on"
        " top in common": np.isfinite(correlation),
        "intervals: Student's, 95 %, of a sample chosen beforehand; who leads a list leads by luck"
        " too": True,
        "targets are each other's references, which moves a sample's scores together: test for p"
        " values": outcome is None,
        f"{missing:,} {lack} a scored target on one side: not ranked": missing,
    }
    if outcome is None:
        return remarks(texts)
    attrs = outcome.table.attrs
    test_notes = [attrs["resolution"], f"p: {attrs['method']}"]
    if len(outcome.columns) < len(ranked.value):
        test_notes.append(
            f"masks redrawn for {len(outcome.columns):,} samples, the others corrected for with"
            " p = 1"
        )
    return remarks(texts, filter(None, test_notes))
