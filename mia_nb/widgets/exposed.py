"""Vulnerable samples: samples whose scores rise most when they are in the training set, and a test
of whether they rise by more than chance.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from mia_nb import attacks
from mia_nb.attacks.margins import over_queries
from mia_nb.plots import samples
from mia_nb.widgets.controls import attack_options, chooser, count, dropdown, number, tick
from mia_nb.widgets.explorer import Explorer, View, message
from mia_nb.widgets.figure import MARK, with_layout, with_line
from mia_nb.widgets.losses import losses_picture
from mia_nb.widgets.ranking import PAGE, Ranking, Tested, masked_mean, ranking, tested
from mia_nb.widgets.stored import ALL, NOTHING, Source, list_of_sources, named
from mia_nb.widgets.words import NO_IMAGES, number_text, remarks, with_interval

TITLE = "Vulnerable samples"
RIGHT = "most OUT models right"
WRONG = "most OUT models wrong"


def exposed(sources: Sequence[Source], *, n_resamples: int = 200) -> Explorer:
    """Samples ranked by how much higher their scores are where they are members, with a test.

    Parameters:
        sources: stored results to choose a pool from, as `widgets.sources` lists them
        n_resamples: how often the test redraws the masks

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` exports it. Without sources a message that says what to run.

    Samples are ranked by d_i, the mean over pairs of targets of (z_t,i with i in t) - (z_t',i with
    i out of t'), where z are a target's scores less their mean, over their standard deviation;
    without pairs, d_i is the mean over targets with i less the mean over those without. The tick
    box "test" redraws the masks and shows AUC over targets, its mean under redrawn masks, p and q.
    Of more than 5,000 samples only the first 480 and 2,000 others are redrawn; the rest enter the
    correction with p = 1.

    Caveat: a ranking only until it is tested: references and targets share a pool, which moves a
        sample's scores together (see `auditing.vulnerability`).
    """
    pools = named(list_of_sources(sources))
    if not pools:
        return message(TITLE, NOTHING)

    def leader(pool: str, attack: str, outputs: str, sample: int) -> int:
        """The first sample in the list, or the chosen one if the list is empty."""
        rows = filtered(pools[pool], attack, outputs)
        return int(pools[pool].numbers[rows[0]]) if len(rows) else sample

    def pages(pool: str, attack: str, outputs: str) -> int:
        """The number of pages of the list, at least one."""
        return max(1, math.ceil(len(filtered(pools[pool], attack, outputs)) / PAGE))

    def draw(
        pool: str,
        attack: str,
        outputs: str,
        page: int,
        sample: int,
        test: bool,
    ) -> View:
        """One page of the ranking, and where the chosen sample stands in it."""
        source = pools[pool]
        ranked = ranking(source, attack)
        rows = filtered(source, attack, outputs)
        if not len(rows):
            raise ValueError("no sample passes this filter: widen outputs")
        index = source.audited_index(sample)
        column = int(source.audited[index])
        outcome = tested(source, attack, n_resamples) if test else None
        start = PAGE * (page - 1)
        models = tuple(range(len(source.signals.margin)))
        separation = float(ranked.value[index])
        figures = {
            "sheet": sheet(source, rows[start : start + PAGE], start, sample),
            "margins": margins_picture(source, column),
            "traces": losses_picture(source, models, column),
            "ranking": with_line(histogram(ranked, rows, outcome), separation, line=MARK),
        }
        row = number_cells(source, ranked, index)
        if outcome is not None:
            row |= test_cells(outcome, index)
        return View(
            sentence(source, ranked, rows, outcome, attack),
            figures,
            pd.DataFrame([row]),
            note(source, ranked, outcome),
            ranked_list(source, attack, outputs),
        )

    # options that depend on the pool are filled in by `follow`, whose errors the explorer shows
    controls = {
        "pool": chooser("pool", pools),
        "attack": dropdown("attack"),
        "outputs": dropdown("outputs", [ALL, RIGHT, WRONG], ALL),
        "page": count("page"),
        "sample": number("sample", 0),
        "test": tick("test (redraws masks, up to a minute)"),
    }
    follow = {
        "attack": {"options": lambda pool: attack_options(pools[pool].attacks())},
        # another list starts at its first page
        "page": {"max": pages, "value": lambda pool, attack, outputs: 1},
        "sample": {"value": leader},
    }
    return Explorer(
        TITLE,
        controls,
        draw,
        question="Who is exposed, and is that more than chance?",
        rows=[["sheet", "ranking"], ["margins", "traces"]],
        follow=follow,
        pools=pools,
        heights={"sheet": 270, "margins": 225, "traces": 225, "ranking": 270},
        clicks={"sheet": "sample"},
    )


@lru_cache(4)
def out_accuracy(source: Source) -> np.ndarray:
    """(A,) the share of models without a sample that classify it correctly, mean over queries; NaN
    without such models.
    """
    signals = source.signals
    correct = over_queries(signals.correct, signals.query_kind)[:, source.audited]
    return masked_mean(correct, ~signals.member[:, source.audited])


@lru_cache(32)
def filtered(source: Source, attack: str, outputs: str) -> np.ndarray:
    """Indices of the audited samples that pass the filter, most exposed first."""
    order = ranking(source, attack).order
    if not len(order):
        raise ValueError(
            f"no sample of {source.label} is scored in one target and out of another: train more"
            " models, or query images that only some of them saw"
        )
    passes = np.ones(len(source.audited), bool)
    if outputs == RIGHT:
        passes &= out_accuracy(source) >= 0.5
    if outputs == WRONG:
        passes &= out_accuracy(source) < 0.5
    return order[passes[order]]


def margins_picture(source: Source, column: int) -> dict:
    """Margins of one sample by the models with it and without it."""
    margin = source.margins([column])
    inside = source.signals.member[:, [column]]
    with_it = number_text(masked_mean(margin, inside)[0], ".2f")
    without = number_text(masked_mean(margin, ~inside)[0], ".2f")
    return samples.two_worlds(
        margin[:, 0],
        inside[:, 0],
        f"margins of all {len(margin)} models: {with_it} with it, {without} without it",
    )


def sheet(source: Source, on_page: np.ndarray, start: int, sample: int) -> dict:
    """The images of one page of the list."""
    numbers = source.numbers[on_page]
    columns = source.audited[on_page]
    names = [samples.short(source.class_of(column)) for column in columns]
    labels = [f"{place}<br>{name}" for place, name in zip(numbers, names, strict=True)]
    ranks = f"ranks {start + 1:,} to {start + len(on_page):,}"
    if source.images is None:
        on_one_line = ", ".join(labels).replace("<br>", " ")
        return samples.empty(f"{NO_IMAGES}; {ranks}: {on_one_line}")
    title = f"{ranks} of the list: number over label"
    figure = samples.sheet(source.images[columns], labels, numbers, title, chosen=sample)
    return with_layout(figure, meta="click one")


def histogram(ranked: Ranking, rows: np.ndarray, outcome: Tested | None) -> dict:
    """Histogram of the separations of the listed samples, and of separations under redrawn masks
    after a test.
    """
    null = None if outcome is None else outcome.null
    title = f"{len(rows):,} of {len(ranked.value):,} samples"
    return samples.ranking(ranked.value[rows], title, null=null)


def sentence(
    source: Source, ranked: Ranking, rows: np.ndarray, outcome: Tested | None, attack: str
) -> str:
    """The first sample of the list, and after a test the number exposed beyond chance. A test that
    can find nobody says so, since it has not found that nobody is exposed.
    """
    top = int(rows[0])
    several = "s" if len(rows) > 1 else ""
    start = (
        f"By {attacks.in_words(attack)}, sample {source.numbers[top]} (labelled"
        f" {source.class_of(source.audited[top])}) leads {len(rows):,} sample{several}: its score"
        f" is higher by {ranked.value[top]:.2f} sd where it is a member (mean over"
        f" {ranked.based_on}; no interval, as it was chosen for being high)"
    )
    if outcome is None:
        return f"{start}; ranking only; significance not tested"
    significant = int(outcome.table["significant"].sum())
    rate = outcome.table.attrs["rate"]
    fewest = outcome.table.attrs["fewest"]
    beyond = f"exposed beyond chance at a false discovery rate of {rate:.0%}"
    of_all = f"of {len(source.audited):,}"
    if fewest is None:
        return f"{start}; this test is too coarse to find any sample {of_all} {beyond}"
    who = f"{significant:,} samples" if significant else "no sample"
    if not significant and fewest > 1:
        beyond += f", where nothing can be found unless {fewest:,} stand out together"
    return f"{start}; {who} {of_all} {beyond}"


def number_cells(source: Source, ranked: Ranking, index: int) -> dict:
    """The cells of the table with the numbers of one sample, by column."""
    column = source.audited[index]
    value = ranked.value[index]
    half = ranked.half[index]
    rank_text = "not ranked: no scored target on a side"
    if not np.isnan(value):
        (place,) = np.flatnonzero(ranked.order == index)
        rank_text = f"{place + 1:,} of {len(ranked.order):,}"
    out_models = int((~source.signals.member[:, column]).sum())
    row = {
        "sample": int(source.numbers[index]),
        "label": source.class_of(column),
        "rank": rank_text,
        "separation (sd)": with_interval(value, value - half, value + half, ".2f"),
        "over": ranked.based_on,
        "OUT models right": f"{number_text(out_accuracy(source)[index], '.0%')} of {out_models}",
    }
    if source.canaries is not None:
        row["canary"] = "yes" if source.canaries[index] else "no"
    return row


@lru_cache(4)
def ranked_list(source: Source, attack: str, outputs: str) -> pd.DataFrame:
    """The ranked and filtered list for CSV, with the separation of each sample and its interval."""
    ranked = ranking(source, attack)
    rows = filtered(source, attack, outputs)
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


def test_cells(outcome: Tested, index: int) -> dict:
    """The cells of the table with the test of one sample, by column."""
    result = outcome.table.iloc[index]
    auc = number_text(result["auc"], ".3f")
    targets = f"{result['t_in']:.0f}, {result['t_out']:.0f}"
    if index not in outcome.indices:
        return {"AUC over targets": auc, "targets in, out": targets, "p": "not redrawn"}
    null_auc = number_text(result["null_auc"], ".3f")
    smallest_p = number_text(result["smallest_p"])
    return {
        "AUC over targets": f"{auc} (redrawn masks: {null_auc})",
        "targets in, out": targets,
        "p": f"{number_text(result['p'])} (no less than {smallest_p})",
        "q": number_text(result["q"]),
    }


def note(source: Source, ranked: Ranking, outcome: Tested | None) -> str:
    """The remarks: data behind the ranking, and how far to trust it."""
    not_ranked = int(np.isnan(ranked.value).sum())
    notes = [
        source.lacks,
        "with another seed other images stand on top",
        "intervals: Student's, 95 %, of a sample chosen beforehand; who leads a list leads by luck"
        " too",
    ]
    if outcome is None:
        notes.append(
            "targets are each other's references, which moves a sample's scores together: test for"
            " p values"
        )
    if not_ranked:
        lack = "samples lack" if not_ranked > 1 else "sample lacks"
        notes.append(f"{not_ranked:,} {lack} a scored target on one side: not ranked")
    if outcome is not None:
        notes += [outcome.table.attrs["resolution"], f"p: {outcome.table.attrs['method']}"]
        if len(outcome.indices) < len(ranked.value):
            notes.append(
                f"masks redrawn for {len(outcome.indices):,} samples, the others corrected for with"
                " p = 1"
            )
    return remarks(notes)
