"""Run comparison: stored results side by side under one attack, and what was done differently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import ipywidgets as W
import numpy as np
import pandas as pd

from mia_nb import metrics, plots
from mia_nb.metrics.curve import MIN_FALSE_POSITIVES
from mia_nb.metrics.uncertainty import FPR
from mia_nb.types import Scores
from mia_nb.widgets import compared
from mia_nb.widgets.compared import ends
from mia_nb.widgets.explorer import ROW, Explorer, Ticks, View, dropdown, message
from mia_nb.widgets.figure import plain
from mia_nb.widgets.scores import NOTHING
from mia_nb.widgets.stored import Source, named

TITLE = "Run comparison"
NONE = "tick one or more results"
LETTERS = "ABCD"
LISTED = 40  # tick boxes at once
APART = 0.02  # of test accuracy: more is another utility
UNPAIRED = "other members or images: not paired"
# of info: which results these are, not how they were made
IDENTITY = {"pool", "models", "key", "family"}
ABSENT, NOT_MEASURABLE = "-", "n/m"


def compare(sources: Sequence[Source]) -> Explorer:
    """Up to four stored results under one attack: ROCs, AUC and TPR with intervals, accuracies, and
    the settings that differ.

    filter: words that all must be in a result's name, to shorten the list; what is ticked stays.
    Differences are to the first ticked, A. They are paired (`metrics.difference`: the same samples
    and pairs of targets in each draw) where the same images were asked and the pools share their
    member masks row by row, and are left out otherwise. At test accuracies more than two points
    apart a lower risk may be the price of a worse model: compare at equal accuracy.

    sources: what to choose from
    """
    found = named(sources)
    if not found:
        return message(TITLE, NOTHING)
    result_of = cache(lambda label, attack: measured(found[label].scores(attack)))
    minus = cache(lambda label, other, attack: paired(found[label], found[other], attack))

    def common(results) -> list[str]:
        """Attacks that all of the results support."""
        offered = [found[label].attacks() for label in results] or [["loss"]]
        return [name for name in offered[0] if all(name in names for names in offered)]

    @cache
    def picture(results, attack) -> dict:
        named = zip(LETTERS, results, strict=False)
        return plain(
            plots.roc_pair({f"{a}: {label}": found[label].scores(attack) for a, label in named})
        )

    def draw(filter, results, attack) -> View:
        if not results:
            raise ValueError(NONE)
        measures = [result_of(label, attack) for label in results]
        against = [minus(label, results[0], attack) for label in results[1:]]
        own = [settings(found[label]) for label in results]
        changed = differences(dict(zip(LETTERS, own, strict=False)))
        table = pd.concat([numbers(results, measures, against), changed]).reset_index(names="")
        flags = [flag for label in results for flag in found[label].scores(attack).info["flags"]]
        note = ["below the accuracies: only settings that differ"] if len(results) > 1 else []
        note += [*warnings(measures), *dict.fromkeys(flags)]
        words, figures = sentence(attack, measures, against), {"roc": picture(results, attack)}
        return View(words, figures, table, "; ".join(note))

    def listed(filter, results) -> tuple[str, ...]:
        """What is ticked, and what the words of the filter match."""
        words = filter.lower().split()
        matching = [label for label in found if all(word in label.lower() for word in words)]
        return (*results, *[label for label in matching if label not in results][:LISTED])

    first = tuple(found)[:2]
    hint = "words, e.g. sdenet noise"
    controls = {
        "filter": W.Text(description="filter", placeholder=hint, continuous_update=False, **ROW),
        "results": Ticks("compare (at most 4)", first, first, limit=len(LETTERS), height="320px"),
        "attack": dropdown("attack"),
    }
    follow = {"results": {"options": listed}, "attack": {"options": common}}
    return Explorer(TITLE, controls, draw, rows=[["roc"]], follow=follow)


class Measured(NamedTuple):
    """One result under one attack."""

    risk: dict[str, str]  # cells of the table: AUC and TPR with 95 % intervals
    rest: dict[str, str]  # accuracies, and on how much the risk rests
    test: float  # accuracy
    n0: int


def measured(scores: Scores) -> Measured:
    """The numbers of one result, as they are printed."""
    row, right = compared.measure({"": scores}).loc[""], metrics.accuracies(scores)
    risk = {"AUC": ends(row["auc"], row["auc_low"], row["auc_high"])}
    for x in FPR:
        resolved = np.floor(x * row["n0"] + 1e-9) >= MIN_FALSE_POSITIVES
        value = [row[f"tpr@{x:g}{end}"] for end in ("", "_low", "_high")]
        risk[f"TPR at {100 * x:g} %"] = percent(*value) if resolved else NOT_MEASURABLE
    rest = {
        "train accuracy": percent(*right.loc["train"]),
        "test accuracy": percent(*right.loc["test"]),
        "gap": percent(*right.loc["gap"]),
        "n1, n0, targets": f"{row['n1']:,.0f}, {row['n0']:,.0f}, {row['targets']:.0f}",
        "references a side, queries": f"{scores.info['k']}, {scores.info['queries']}",
    }
    return Measured(risk, rest, right.loc["test", "value"], int(row["n0"]))


def paired(one: Source, other: Source, attack: str) -> pd.DataFrame | None:
    """`metrics.difference` one - other; None where the images or the members are not the same."""
    if not same_images(one, other):
        return None
    try:
        return metrics.difference(
            one.scores(attack), other.scores(attack), FPR, draws=compared.DRAWS
        )
    except ValueError:
        return None


def same_images(one: Source, other: Source) -> bool:
    """Whether the same samples of the same images were asked, as far as stored: digest, sample
    numbers, labels.
    """
    digests = [
        source.pool.read_json("images.json", digest=str)["digest"]
        for source in (one, other)
        if source.pool is not None and source.pool.has("images.json")
    ]
    if len(set(digests)) > 1:
        return False
    pairs = [
        (source.samples[source.audited], source.signals.labels[source.audited])
        for source in (one, other)
    ]
    return all(np.array_equal(a, b) for a, b in zip(*pairs, strict=True))


def settings(source: Source) -> dict:
    """Recipe and asking of one result as {dotted name: value}; asking's words for other things get
    "query." before them.
    """
    recipe = dict(flat(source.recipe))
    asking = flat({name: value for name, value in source.info.items() if name not in IDENTITY})
    own = {n if recipe.get(n, value) == value else f"query.{n}": value for n, value in asking}
    return recipe | own


def flat(record: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """(dotted name, value) of a nested record."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def differences(records: dict[str, dict]) -> pd.DataFrame:
    """The settings in which records {name: {setting: value}} differ, a row each; "-" where a record
    lacks one.

    None counts as absent. Of settings whose last words agree and that take the same values
    everywhere, the first is kept (model_args.k and flow.k).
    """
    names = dict.fromkeys(name for record in records.values() for name in record)
    rows, seen = {}, set()
    for name in names:
        values = [text(record.get(name)) for record in records.values()]
        restated = (name.rsplit(".", 1)[-1], *values)
        if len(set(values)) > 1 and restated not in seen:
            rows[name] = values
            seen.add(restated)
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(records))


def text(value) -> str:
    """A setting as it is printed; keys of pools by their first eight letters."""
    if value is None:
        return ABSENT
    if isinstance(value, float):
        return f"{value:.6g}"
    words = str(value)
    return words[:8] if len(words) == 64 and set(words) <= set("0123456789abcdef") else words


def numbers(labels, measures: list[Measured], against: list[pd.DataFrame | None]) -> pd.DataFrame:
    """A column per result: name, AUC, TPRs, difference to A, accuracies, sizes."""
    changes = {"AUC minus A's": "auc", f"TPR at {100 * FPR[-1]:g} % minus A's": f"tpr@{FPR[-1]:g}"}
    minus = [dict.fromkeys(changes if against else (), "")]
    for difference in against:
        cells = dict.fromkeys(changes, UNPAIRED)
        if difference is not None:
            cells = {n: ends(*difference.loc[metric], "+.3f") for n, metric in changes.items()}
        minus.append(cells)
    columns = {}
    for letter, label, one, change in zip(LETTERS, labels, measures, minus, strict=False):
        columns[letter] = {"result": label} | one.risk | change | one.rest
    table = pd.DataFrame(columns)
    return table[(table != NOT_MEASURABLE).any(axis=1)]


def percent(value: float, low: float, high: float) -> str:
    text = f"{100 * value:.1f} %"
    return f"{text} [{100 * low:.1f}, {100 * high:.1f}]" if np.isfinite(low + high) else text


def sentence(attack: str, measures: list[Measured], against: list[pd.DataFrame | None]) -> str:
    """AUC of each, and the largest paired difference."""
    each = [f"{a} {one.risk['AUC']}" for a, one in zip(LETTERS, measures, strict=False)]
    known = {
        letter: tuple(difference.loc["auc"])
        for letter, difference in zip(LETTERS[1:], against, strict=False)
        if difference is not None
    }
    words = f"{attack}: AUC {', '.join(each)}"
    if known:
        most = max(known, key=lambda letter: abs(known[letter][0]))
        words += f"; {most} - A = {ends(*known[most], '+.3f')}, paired"
    elif against:
        words += f"; {UNPAIRED}"
    sizes = {one.n0 for one in measures}
    return f"{words}; n0 = {' to '.join(f'{n:,}' for n in sorted({min(sizes), max(sizes)}))}"


def warnings(measures: list[Measured]) -> list[str]:
    """What makes risks hard to compare."""
    right = [one.test for one in measures]
    if not max(right) - min(right) > APART:
        return []
    least, most = (LETTERS[int(pick(right))] for pick in (np.argmin, np.argmax))
    return [
        f"test accuracies lie {100 * (max(right) - min(right)):.1f} points apart ({least} to"
        f" {most}): compare at equal accuracy"
    ]
