"""Run comparison: stored results side by side under one attack, and what was done differently."""

import re
from collections.abc import Sequence
from functools import cache

import ipywidgets as W
import numpy as np
import pandas as pd

from mia_nb import attacks, metrics, plots
from mia_nb.metrics.curve import measurable
from mia_nb.metrics.pairs import same_masks
from mia_nb.metrics.uncertainty import FPR, smallest
from mia_nb.types import Scores
from mia_nb.widgets import compared
from mia_nb.widgets.compared import ENDS, NOT_MEASURABLE, ends
from mia_nb.widgets.explorer import (
    ROW,
    Explorer,
    Ticks,
    View,
    dropdown,
    message,
    plain,
    remarks,
    worded,
)
from mia_nb.widgets.stored import NOTHING, Source, list_of_sources, named

TITLE = "Run comparison"
LETTERS = "ABCD"
LISTED = 40  # tick boxes at once
APART = 0.02  # of test accuracy: more is another utility
UNPAIRED = "other members or images: not paired"
# of info: which results these are, not how they were made
IDENTITY = {"pool", "models", "key", "family", "recipe", "classes", "images", "example"}
ABSENT = "-"
CHANGES = {"AUC minus A's": "auc", f"TPR at {100 * FPR[-1]:g} % minus A's": f"tpr@{FPR[-1]:g}"}


def compare(sources: Sequence[Source]) -> Explorer:
    """Up to four stored results under one attack: ROCs, AUC and TPR with intervals, accuracies, and
    the settings that differ.

    Parameters:
        sources: what to choose from, as `sources` gives them

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` and `html()` export it. Without sources a message that says what to run.

    Filter: words that all must be in a result's name, to shorten the list; what is ticked stays.
    Differences are to the first ticked, A. They are paired (`metrics.difference`: the same samples
    and pairs of targets in each resample) where the same images were queried and the pools share
    their member masks row by row, and are left out otherwise.

    Caveat: at test accuracies more than two points apart a lower risk may be the price of a worse
        model: compare at equal accuracy.
    """
    sources = list_of_sources(sources)
    found = named(sources)
    if not found:
        return message(TITLE, NOTHING)
    column = cache(lambda label, attack: numbers(found[label].scores(attack)))
    minus = cache(lambda label, other, attack: paired(found[label], found[other], attack))

    def common(results) -> list[str]:
        """Attacks that all of the results support."""
        offered = [found[label].attacks() for label in results] or [["loss"]]
        return [name for name in offered[0] if all(name in names for names in offered)]

    @cache
    def picture(results, attack) -> dict:
        scores = {
            f"{a}: {r}": found[r].scores(attack) for a, r in zip(LETTERS, results, strict=False)
        }
        return plain(plots.roc_pair(scores))

    def draw(filter, results, attack) -> View:
        if not results:
            raise ValueError("tick one or more results")
        scores = {
            a: found[label].scores(attack) for a, label in zip(LETTERS, results, strict=False)
        }
        columns = {
            a: {"result": label} | column(label, attack)
            for a, label in zip(LETTERS, results, strict=False)
        }
        against = {
            a: minus(label, results[0], attack)
            for a, label in zip(LETTERS[1:], results[1:], strict=False)
        }
        changed = differences(
            {a: settings(found[label]) for a, label in zip(LETTERS, results, strict=False)}
        )
        table = pd.concat([with_changes(columns, against), changed]).reset_index(names="")
        flags = [flag for one in scores.values() for flag in one.info["flags"]]
        return View(
            sentence(attack, scores, columns, against),
            {"roc": picture(results, attack)},
            table,
            remarks(
                {
                    "below the accuracies: only settings that differ": against,
                    unequal(scores): unequal(scores),
                },
                flags,
            ),
        )

    def listed(filter, results) -> tuple[str, ...]:
        """What is ticked, and the names in which all words of the filter stand."""
        wanted = filter.lower().split()
        fitting = [name for name in found if all(word in name.lower() for word in wanted)]
        return tuple(dict.fromkeys([*results, *fitting]))[: LISTED + len(results)]

    controls = {
        "filter": W.Text(
            description="filter", placeholder="e.g. sdenet noise", continuous_update=False, **ROW
        ),
        "results": Ticks(
            "compare (at most 4)",
            tuple(found)[:2],
            tuple(found)[:2],
            limit=len(LETTERS),
            height="320px",
        ),
        "attack": dropdown("attack"),
    }
    follow = {
        "results": {"options": listed},
        "attack": {"options": lambda results: worded(common(results))},
    }
    return Explorer(TITLE, controls, draw, rows=[["roc"]], heights={"roc": 300}, follow=follow)


def numbers(scores: Scores) -> dict[str, str]:
    """What the table says of one result: AUC, TPRs, accuracies, and on how much they rest."""
    row = compared.measure({"": scores}).loc[""]
    right = 100 * metrics.accuracies(scores)
    three = {x: 100 * row[[f"tpr@{x:g}{end}" for end in ENDS]] for x in FPR}
    told = {x: ends(*each, ".1f", unit=" %") for x, each in three.items()}
    groups = {"train accuracy": "train", "test accuracy": "test", "gap": "gap"}
    return {
        "AUC": ends(*row[[f"auc{end}" for end in ENDS]]),
        **{
            f"TPR at {100 * x:g} %": text if measurable(f"tpr@{x:g}", row["n0"]) else NOT_MEASURABLE
            for x, text in told.items()
        },
        **{name: ends(*right.loc[group], ".1f", unit=" %") for name, group in groups.items()},
        "n1, n0, targets": f"{row['n1']:,.0f}, {row['n0']:,.0f}, {row['targets']:.0f}",
        "references a side, queries": f"{scores.info['k']}, {scores.info['queries']}",
    }


def paired(one: Source, other: Source, attack: str) -> pd.DataFrame | None:
    """`metrics.difference` one - other; None where the images or the members are not the same."""
    scores = [one.scores(attack), other.scores(attack)]
    if not (same_images(one, other) and same_masks(*scores)):
        return None
    return metrics.difference(*scores, FPR, n_resamples=compared.DRAWS)


def same_images(one: Source, other: Source) -> bool:
    """Whether the same samples of the same images were queried, as far as stored: digest, sample
    numbers, labels.
    """
    pools = [s.pool for s in (one, other) if s.pool is not None and s.pool.has("images.json")]
    digests = {pool.read_json("images.json", digest=str)["digest"] for pool in pools}
    return len(digests) < 2 and all(
        map(np.array_equal, *[(s.numbers, s.signals.labels[s.audited]) for s in (one, other)])
    )


def settings(source: Source) -> dict:
    """Recipe and query of one result as {dotted name: value}; a query's words for other things get
    "query." before them.
    """
    recipe = flat(source.recipe)
    query = flat({name: value for name, value in source.info.items() if name not in IDENTITY})
    return recipe | {n if recipe.get(n, v) == v else f"query.{n}": v for n, v in query.items()}


def flat(record: dict) -> dict:
    """{dotted name: value} of a nested record."""
    return pd.json_normalize([record]).to_dict("records")[0]


def differences(records: dict[str, dict]) -> pd.DataFrame:
    """The settings in which records {name: {setting: value}} differ, a row each; "-" where a record
    lacks one.

    None counts as absent. Of settings whose last words agree and that take the same values
    everywhere, the first is kept (model_args.k and flow.k).
    """
    texts = {name: {n: text(v) for n, v in record.items()} for name, record in records.items()}
    table = pd.DataFrame(texts).fillna(ABSENT)
    changed = table[table.nunique(axis=1) > 1]
    restated = changed.assign(word=[name.rsplit(".", 1)[-1] for name in changed.index])
    return changed[~restated.duplicated()]


def text(value) -> str:
    """A setting as it is printed; keys of pools by their first eight letters."""
    words = f"{value:.6g}" if isinstance(value, float) else str(value)
    if re.fullmatch("[0-9a-f]{64}", words):
        return words[:8]
    return ABSENT if value is None else words


def with_changes(columns: dict[str, dict], against: dict) -> pd.DataFrame:
    """A column per result, the differences to A below its AUC."""
    table = {}
    for letter, cells in columns.items():
        change = dict.fromkeys(CHANGES, UNPAIRED)
        difference = against.get(letter)
        if difference is not None:
            change = {n: ends(*difference.loc[m], "+.3f") for n, m in CHANGES.items()}
        if letter not in against:
            change = dict.fromkeys(CHANGES if against else (), "")
        table[letter] = {"result": "", "AUC": ""} | change | cells
    table = pd.DataFrame(table)
    return table[(table != NOT_MEASURABLE).any(axis=1)]


def sentence(attack: str, scores: dict, columns: dict[str, dict], against: dict) -> str:
    """AUC of each, and the largest paired difference."""
    each = ", ".join(f"{letter} {cells['AUC']}" for letter, cells in columns.items())
    words = f"{attacks.in_words(attack)}: AUC {each}"
    known = {a: tuple(one.loc["auc"]) for a, one in against.items() if one is not None}
    if known:
        most = max(known, key=lambda letter: abs(known[letter][0]))
        words += f"; {most} - A = {ends(*known[most], '+.3f')}, paired"
    elif against:
        words += f"; {UNPAIRED}"
    sizes = [smallest(one)[1] for one in scores.values()]
    return f"{words}; n0 = {' to '.join(f'{n:,}' for n in sorted({min(sizes), max(sizes)}))}"


def unequal(scores: dict[str, Scores]) -> str:
    """How far test accuracies lie apart: risks are hard to compare then; "" where they do not."""
    right = pd.Series({letter: one.accuracy[:, 1].mean() for letter, one in scores.items()})
    apart = right.max() - right.min()
    return (
        f"test accuracies lie {100 * apart:.1f} points apart ({right.idxmin()} to"
        f" {right.idxmax()}): compare at equal accuracy"
    ) * bool(apart > APART)
