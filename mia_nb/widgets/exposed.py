"""Vulnerable samples: whose scores move most when they are in the training set, and how far that list can be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from types import SimpleNamespace
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
from mia_nb.widgets.explorer import ROW, Explorer, View, dropdown, message
from mia_nb.widgets.sample import class_of, losses_of, shown, traces_of
from mia_nb.widgets.scores import NOTHING
from mia_nb.widgets.stored import Source, named, rows_of

TITLE = "Vulnerable samples"
PAGE = 24  # thumbnails
TESTED = 5000  # samples of which all are tested
FOREMOST, YARDSTICK = 480, 2000  # of more: the head of the list, and these, drawn at random
ALL = "all"
FILTERS = {ALL: ALL, "most OUT models right": "right", "most OUT models wrong": "wrong"}


class Ranking(NamedTuple):
    """Audited samples by mean standardised separation of their scores."""

    value: np.ndarray  # (N,) standard deviations of the scores; NaN where a side is missing
    half: np.ndarray  # (N,) half of the 95 % interval, NaN where it cannot be told
    units: str  # what the interval is over
    order: np.ndarray  # samples, most exposed first, NaN left out
    agreement: tuple[
        float, int
    ]  # between halves of the targets: rank correlation, how many of a page both put on top


class Tested(NamedTuple):
    """Scores under redrawn masks."""

    table: pd.DataFrame  # of auditing.vulnerability
    null: np.ndarray  # separations under redrawn masks
    columns: np.ndarray  # samples that were tested


def exposed(sources: Sequence[Source], *, draws: int = 200, seed: int = 0) -> Explorer:
    """Samples ranked by d_i = mean over pairs of targets of (z_t,i with i in t) - (z_t',i with i out of t').

    z: a target's scores less their mean, over their standard deviation; without pairs the mean over targets with i less that
    over those without. It is a ranking, no risk: references and targets share a pool, which moves a sample's scores together
    (see `auditing.vulnerability`). The tick box "test" redraws the masks `draws` times and shows AUC over targets, its mean
    under redrawn masks, p and q; of more than 5,000 samples only the first 480 and 2,000 others are redrawn, and all the
    rest enter the correction with p = 1.
    """
    found = named(sources)
    if not found:
        return message(TITLE, NOTHING)
    seen = _cached(found, draws, seed)
    last: dict[str, tuple | None] = {"at": None}

    def draw(pool, attack, kind, answers, page, sample, test, canary=ALL) -> View:
        source, ranked = found[pool], seen.ranks(pool, attack)
        column, rows = source.column(sample), seen.listed(pool, attack, kind, answers, canary)
        if not len(rows):
            raise ValueError("no sample passes these filters: widen class or answers")
        page_of = tuple(rows[PAGE * (page - 1) : PAGE * page].tolist())
        outcome = seen.tested(pool, attack) if test else None
        one, value = int(source.audited[column]), float(ranked.value[column])
        figures = {
            "sheet": seen.thumbs(pool, page_of, PAGE * (page - 1), sample),
            "margins": seen.margins(pool, one),
            "traces": seen.traces(pool, one),
            "ranking": pictures.marked(
                seen.histogram(pool, attack, test, kind, answers, canary), value
            ),
        }
        row = _row(source, ranked, column, seen.right(pool), outcome, seen.canaries(pool))
        return View(
            _sentence(source, ranked, rows, outcome, attack),
            figures,
            pd.DataFrame([row]),
            _note(ranked, outcome, source),
        )

    def adjust(values) -> dict:
        pool = values["pool"]
        source = found[pool]
        offered = source.attacks()
        attack = values["attack"] if values["attack"] in offered else offered[0]
        kind = values["kind"] if values["kind"] in seen.kinds(pool) else ALL
        asked = (pool, attack, kind, values["answers"], values.get("canary", ALL))
        rows = seen.listed(*asked)
        changes = {
            "attack": {"options": offered, "value": attack},
            "kind": {"options": [ALL, *seen.kinds(pool)], "value": kind},
        }
        most = max(1, -(-len(rows) // PAGE))
        if last["at"] != asked:  # another list starts at its top
            last["at"] = asked
            changes["page"] = {"min": 1, "max": most, "value": 1}
            changes["sample"] = {"value": int(source.numbers[rows[0]])} if len(rows) else {}
        return changes

    rows = [["sheet"], ["margins", "traces"], ["ranking"]]
    return Explorer(
        TITLE, _controls(found), draw, rows=rows, adjust=adjust, clicks={"sheet": "sample"}
    )


def _controls(found: dict[str, Source]) -> dict:
    """What holds for any pool; the rest is filled in by `adjust`, whose complaints are shown in place."""
    controls = {
        "pool": dropdown("pool", list(found), next(iter(found))),
        "attack": dropdown("attack"),
        "kind": dropdown("class", [ALL], ALL),
        "answers": dropdown("answers", list(FILTERS), ALL),
    }
    if any(_has_canaries(source) for source in found.values()):
        controls["canary"] = dropdown("canaries", [ALL, "only", "none"], ALL)
    controls |= {
        "page": W.IntSlider(description="page", min=1, max=1, value=1, **ROW),
        "sample": W.IntText(description="sample", value=0, **ROW),
        "test": W.Checkbox(
            description="test (redraws masks, seconds)",
            value=False,
            indent=False,
            layout=W.Layout(width="98%"),
        ),
    }
    return controls


def _cached(found: dict[str, Source], draws: int, seed: int) -> SimpleNamespace:
    """What is computed once for the controls it depends on."""
    ranks = cache(lambda pool, attack: ranking(found[pool].scores(attack)))
    canaries, right = (
        cache(lambda pool: _canaries(found[pool])),
        cache(lambda pool: _right(found[pool])),
    )
    kinds = cache(lambda pool: _kinds(found[pool]))

    @lru_cache(32)
    def listed(pool, attack, kind, answers, canary) -> np.ndarray:
        """Samples that pass the filters, most exposed first."""
        source, order = found[pool], ranks(pool, attack).order
        if not len(order):
            scored = f"no sample of {pool} is scored in one target and out of another"
            raise ValueError(
                f"{scored}: train more models, or ask about images that only some of them saw"
            )
        keep = np.ones(len(source.audited), bool)
        if kind != ALL:
            keep &= source.signals.labels[source.audited] == kinds(pool)[kind]
        if FILTERS[answers] != ALL:
            share = right(pool)
            keep &= share >= 0.5 if FILTERS[answers] == "right" else share < 0.5
        if canary != ALL:
            known = canaries(pool)
            if known is None:
                raise ValueError(f"{pool} has no canaries: choose canaries: all")
            keep &= known if canary == "only" else ~known
        return order[keep[order]]

    @lru_cache(4)
    def tested(pool, attack) -> Tested:
        return _test(found[pool], attack, ranks(pool, attack).order, draws, seed)

    @lru_cache(16)
    def histogram(pool, attack, test, *filters) -> dict:
        source, rows = found[pool], listed(pool, attack, *filters)
        value, title = (
            ranks(pool, attack).value[rows],
            f"{len(rows):,} of {len(source.audited):,} samples",
        )
        null = tested(pool, attack).null if test else None
        return pictures.ranking(value, title, null=null, name="separation (sd of scores)")

    traces = lru_cache(8)(
        lambda pool, one: traces_of(
            losses_of(found[pool]), np.arange(len(found[pool].signals.margin)), one, None
        )
    )
    margins = lru_cache(8)(lambda pool, one: _margins(found[pool], one))
    thumbs = lru_cache(16)(
        lambda pool, columns, start, sample: _sheet(found[pool], columns, start, sample)
    )

    parts = {
        "ranks": ranks,
        "canaries": canaries,
        "right": right,
        "traces": traces,
        "margins": margins,
        "thumbs": thumbs,
    }
    return SimpleNamespace(**parts, kinds=kinds, listed=listed, tested=tested, histogram=histogram)


def ranking(scores: Scores, *, page: int = PAGE) -> Ranking:
    """Separation of every sample over all targets, and how far every other pair of targets agrees with the rest."""
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
    """(mean separation (N,), half of its 95 % interval (N,), over what): score with the sample less score without it.

    In standard deviations of a target's scores over samples. Complementary pairs: mean and Student's t over the pairs of
    targets; other designs: mean of the targets with the sample less mean of those without it, Student's t with one variance.
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


def _test(source: Source, attack: str, order: np.ndarray, draws: int, seed: int) -> Tested:
    """Redrawn masks for all samples, or for the first in order and a yardstick; what was not redrawn counts with p = 1."""
    signals, everyone, scores = source.signals, len(source.audited), source.scores(attack)
    columns = np.arange(everyone)
    if everyone > TESTED:
        others = np.random.default_rng(seed).choice(everyone, YARDSTICK, replace=False)
        columns = np.unique(np.concatenate([order[:FOREMOST], others]))
        chosen = np.sort(
            np.concatenate([source.audited[columns], np.flatnonzero(signals.population)])
        )
        signals = signals.select(samples=chosen)
    found: list[np.ndarray] = []

    def full() -> Iterator[Scores]:
        for one in auditing.null_scores(attack, signals, draws=draws, seed=seed):
            found.append(separations(one)[0].astype(np.float32))
            value, member = (
                np.full((len(one.value), everyone), np.nan),
                np.zeros((len(one.value), everyone), bool),
            )
            value[:, columns], member[:, columns] = one.value, one.member
            yield replace(one, value=value, member=member)

    table = auditing.vulnerability(scores, null=full())
    return Tested(table, np.concatenate(found), columns)


def _kinds(source: Source) -> dict[str, int]:
    """{class: label}; a class without a name is called by its label, which also sets apart equal names and one called "all"."""
    names = [
        *source.classes,
        *map(str, range(len(source.classes), int(source.signals.labels.max()) + 1)),
    ]
    often = Counter([ALL, *names])
    return {
        f"{name} ({label})" if often[name] > 1 else name: label for label, name in enumerate(names)
    }


def _has_canaries(source: Source) -> bool:
    return source.pool is not None and source.pool.has("canary.npy")


def _canaries(source: Source) -> np.ndarray | None:
    """(N audited,) bool, or None where none are known."""
    if not _has_canaries(source):
        return None
    return source.pool.read_array("canary.npy")[source.numbers]


def _right(source: Source) -> np.ndarray:
    """(N audited,) share of the models without a sample that are right on it, mean over queries; NaN without such models."""
    correct = over_queries(source.signals.correct, source.signals.draws)[:, source.audited]
    out = ~source.signals.member[:, source.audited]
    return np.where(out.any(0), (correct * out).sum(0) / np.maximum(out.sum(0), 1), np.nan)


def _sentence(source: Source, ranked: Ranking, rows, outcome: Tested | None, attack: str) -> str:
    top = int(rows[0])
    label, number = class_of(source, source.audited[top]), source.numbers[top]
    start = f"By {attack}, sample {number} (labelled {label}) leads {len(rows):,} sample{'s' * (len(rows) > 1)}: its score is "
    start += f"higher by {ranked.value[top]:.2f} sd where it is a member (mean over {ranked.units}; no interval, as it was "
    start += "chosen for being high)"
    if outcome is None:
        return f"{start}; a ranking, no risk: not tested"
    found, everyone = int(outcome.table["significant"].sum()), len(source.audited)
    rate = outcome.table.attrs["rate"]
    said = f"{found:,} of {everyone:,} samples" if found else f"no sample of {everyone:,}"
    return f"{start}; {said} exposed beyond chance at a false discovery rate of {rate:.0%}"


def _interval(ranked: Ranking, column: int) -> str:
    value, half = ranked.value[column], ranked.half[column]
    return (
        f"{value:.2f} [{value - half:.2f}, {value + half:.2f}]"
        if np.isfinite(half)
        else f"{value:.2f} [n/m]"
    )


def _row(
    source: Source, ranked: Ranking, column: int, share, outcome: Tested | None, canary
) -> dict:
    signals, one = source.signals, source.audited[column]
    place = np.flatnonzero(ranked.order == column)
    row = {
        "sample": int(source.numbers[column]), "label": class_of(source, one),
        "rank": f"{place[0] + 1:,} of {len(ranked.order):,}" if len(place) else "not ranked: no scored target on a side",
        "separation (sd)": _interval(ranked, column) if len(place) else shown(np.nan), "over": ranked.units,
        "OUT models right": f"{shown(share[column], '.0%')} of {int((~signals.member[:, one]).sum())}",
    }  # fmt: skip
    row |= {} if canary is None else {"canary": "yes" if canary[column] else "no"}
    if outcome is not None:
        line = outcome.table.iloc[column]
        row["AUC over targets"] = shown(line["auc"], ".3f")
        row["targets in, out"] = f"{line['t_in']:.0f}, {line['t_out']:.0f}"
        row["p"] = "not redrawn"
        if column in outcome.columns:
            row["AUC over targets"] += f" (redrawn masks: {shown(line['null_auc'], '.3f')})"
            row["p"], row["q"] = (
                f"{shown(line['p'])} (no less than {shown(line['smallest_p'])})",
                shown(line["q"]),
            )
    return row


def _note(ranked: Ranking, outcome: Tested | None, source: Source) -> str:
    words = ["with another seed other images stand on top"]
    alike, common = ranked.agreement
    if np.isfinite(alike):
        words.append(
            f"two halves of the targets: rank correlation {alike:.2f}, {common} of the {PAGE} on top in common"
        )
    words.append(
        "intervals: Student's, 95 %, of a sample chosen beforehand; who leads a list leads by luck too"
    )
    if outcome is None:
        words.append(
            "targets are each other's references, which moves a sample's scores together: test for p values"
        )
    else:
        words.append(outcome.table.attrs["resolution"])
        words.append(f"p: {outcome.table.attrs['method']}")
        if len(outcome.columns) < len(source.audited):
            words.append(
                f"masks redrawn for {len(outcome.columns):,} samples, the others corrected for with p = 1"
            )
    if missing := int(np.isnan(ranked.value).sum()):
        words.append(
            f"{missing:,} sample{'s lack' if missing > 1 else ' lacks'} a scored target on one side: not ranked"
        )
    return "; ".join(words)


def _margins(source: Source, one: int) -> dict:
    signals = source.signals
    margin = over_queries(signals.margin[:, :, one : one + 1], signals.draws)[:, 0]
    inside = signals.member[:, one]
    means = [margin[side].mean() if side.any() else np.nan for side in (inside, ~inside)]
    with_it, without = (shown(mean, ".2f") for mean in means)
    sentence = f"margins of all {len(margin)} models: {with_it} with it, {without} without it"
    return pictures.two_worlds(margin, inside, sentence, height=330)


def _sheet(source: Source, columns: tuple, start: int, sample: int) -> dict:
    numbers, own = source.numbers[list(columns)], source.audited[list(columns)]
    captions = [(number, class_of(source, one)) for number, one in zip(numbers, own, strict=True)]
    ranks = f"ranks {start + 1:,} to {start + len(columns):,}"
    if source.images is None:
        listed = ", ".join(f"{number} ({label})" for number, label in captions)
        return pictures.empty(f"no images are stored with these signals; {ranks}: {listed}")
    captions, title = (
        [f"{number}<br>{label}" for number, label in captions],
        f"{ranks} of the list; click one",
    )
    return pictures.sheet(source.images[own], captions, numbers, title, chosen=sample)
