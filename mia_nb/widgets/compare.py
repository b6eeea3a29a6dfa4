"""Run comparison: stored results side by side under one attack, and what was done differently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import ipywidgets as W
import numpy as np
import pandas as pd

from mia_nb import metrics, plots
from mia_nb.metrics.curve import MIN_FALSE_POSITIVES
from mia_nb.metrics.uncertainty import FPR
from mia_nb.types import Scores
from mia_nb.widgets import compared
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
IDENTITY = {
    "pool",
    "models",
    "key",
    "family",
}  # of info: which results these are, not how they were made
ABSENT = "-"


def compare(sources: Sequence[Source]) -> Explorer:
    """Up to four stored results under one attack: ROCs, AUC and TPR with intervals, accuracies, and the settings that differ.

    filter: words that all must be in a result's name, to shorten the list; what is ticked stays. Differences are to the first
    ticked, A. They are paired (`metrics.difference`: the same samples and pairs of targets in each draw) where the same images
    were asked and the pools share their member masks row by row, and are left out otherwise. At test accuracies more than two
    points apart a lower risk may be the price of a worse model: compare at equal accuracy.
    """
    found = named(sources)
    if not found:
        return message(TITLE, NOTHING)
    rows_of = cache(lambda label, attack: measured(found[label].scores(attack)))
    minus = cache(lambda label, other, attack: paired(found[label], found[other], attack))

    @cache
    def common(labels) -> list[str]:
        offered = [found[label].attacks() for label in labels]
        return (
            [name for name in offered[0] if all(name in names for names in offered)]
            if offered
            else ["loss"]
        )

    @cache
    def pictures(labels, attack) -> dict:
        drawn = {
            f"{LETTERS[i]}: {label}": found[label].scores(attack) for i, label in enumerate(labels)
        }
        return plain(plots.roc_pair(drawn))

    def draw(filter, results, attack) -> View:
        if not results:
            raise ValueError(NONE)
        measures = [rows_of(label, attack) for label in results]
        against = [minus(label, results[0], attack) for label in results[1:]]
        changed = differences(
            {LETTERS[i]: settings(found[label]) for i, label in enumerate(results)}
        )
        table = numbers(results, measures, against)
        names = table.columns[1:]
        table = pd.concat(
            [table, changed.reset_index(names="").set_axis(table.columns, axis=1)],
            ignore_index=True,
        )
        note = [
            *warnings(results, measures),
            *dict.fromkeys(
                f for label in results for f in found[label].scores(attack).info["flags"]
            ),
        ]
        note = (
            ["below the accuracies: only settings that differ", *note] if len(names) > 1 else note
        )
        return View(
            sentence(attack, measures, against),
            {"roc": pictures(results, attack)},
            table,
            "; ".join(note),
        )

    last: dict[str, object] = {"words": None, "options": ()}

    def adjust(values) -> dict:
        words = values["filter"].lower().split()
        unlisted = set(values["results"]) - set(last["options"])
        if (
            last["words"] != words or unlisted
        ):  # what is ticked comes first, and stays where it is while boxes are ticked
            matching = [label for label in found if all(word in label.lower() for word in words)]
            rest = [label for label in matching if label not in values["results"]]
            last.update(words=words, options=(*values["results"], *rest[:LISTED]))
        names = common(values["results"])
        return {
            "results": {"options": last["options"]},
            "attack": {
                "options": names,
                "value": values["attack"] if values["attack"] in names else names[0],
            },
        }

    first = tuple(found)[:2]
    controls = {
        "filter": W.Text(
            description="filter",
            placeholder="words, e.g. sdenet noise",
            continuous_update=False,
            **ROW,
        ),
        "results": Ticks(
            "compare (at most 4)", tuple(found)[:LISTED], first, limit=len(LETTERS), height="320px"
        ),
        "attack": dropdown("attack"),
    }
    return Explorer(TITLE, controls, draw, rows=[["roc"]], adjust=adjust)


def measured(scores: Scores) -> dict:
    """AUC, TPR and accuracies of one result with 95 % intervals, and on how much they rest."""
    found, right = compared.measure({"": scores}).loc[""], metrics.accuracies(scores)
    rates = ("auc", *(f"tpr@{x:g}" for x in FPR))
    record = {name: tuple(found[[name, f"{name}_low", f"{name}_high"]]) for name in rates}
    record |= {name: tuple(right.loc[name]) for name in right.index}
    record |= {name: int(found[name]) for name in ("n1", "n0", "targets")}
    return record | {"k": scores.info["k"], "queries": scores.info["queries"]}


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
    """Whether the same samples of the same images were asked, as far as stored: digest, sample numbers, labels."""
    digests = [source.pool.read_json("images.json", digest=str)["digest"] for source in (one, other)
               if source.pool is not None and source.pool.has("images.json")]  # fmt: skip
    if len(set(digests)) > 1:
        return False
    pairs = [
        (source.samples[source.audited], source.signals.labels[source.audited])
        for source in (one, other)
    ]
    return all(np.array_equal(a, b) for a, b in zip(*pairs, strict=True))


def settings(source: Source) -> dict:
    """Recipe and asking of one result as {dotted name: value}; asking's words for other things get "query." before them."""
    recipe = dict(flat(source.recipe))
    asking = {name: value for name, value in source.info.items() if name not in IDENTITY}
    named = {
        name if recipe.get(name, value) == value else f"query.{name}": value
        for name, value in flat(asking)
    }
    return recipe | named


def flat(record: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """(dotted name, value) of a nested record."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def differences(records: dict[str, dict]) -> pd.DataFrame:
    """The settings in which records {name: {setting: value}} differ, a row each; "-" where a record lacks one.

    None counts as absent. Of settings whose last words agree and that take the same values everywhere, the first is kept
    (model_args.k and flow.k).
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


def numbers(labels, measures: list[dict], against: list[pd.DataFrame | None]) -> pd.DataFrame:
    """A column per result: name, AUC, TPRs, difference to A, accuracies, sizes."""
    rows: dict[str, list[str]] = {"result": list(labels)}
    for name in ("auc", *(f"tpr@{x:g}" for x in FPR)):
        shown = [interval(record[name], name, record["n0"]) for record in measures]
        if set(shown) != {"n/m"}:
            rows[word(name)] = shown
    if len(labels) > 1:
        for name in ("auc", f"tpr@{FPR[-1]:g}"):
            changes = [UNPAIRED if one is None else signed(tuple(one.loc[name])) for one in against]
            rows[f"{word(name)} minus A's"] = ["", *changes]
    for name in ("train", "test"):
        rows[f"{name} accuracy"] = [percent(record[name]) for record in measures]
    rows["gap"] = [percent(record["gap"]) for record in measures]
    rows["n1, n0, targets"] = [
        f"{record['n1']:,}, {record['n0']:,}, {record['targets']}" for record in measures
    ]
    rows["references a side, queries"] = [
        f"{record['k']}, {record['queries']}" for record in measures
    ]
    return pd.DataFrame.from_dict(
        rows, orient="index", columns=list(LETTERS[: len(labels)])
    ).reset_index(names="")


def word(name: str) -> str:
    return "AUC" if name == "auc" else f"TPR at {100 * float(name[4:]):g} %"


def interval(ends: tuple, name: str, n0: int) -> str:
    """Value [low, high]; not measurable where fewer than ten false positives are allowed."""
    value, low, high = ends
    if name != "auc" and np.floor(float(name[4:]) * n0 + 1e-9) < MIN_FALSE_POSITIVES:
        return "n/m"
    return f"{value:.3f} [{low:.3f}, {high:.3f}]" if name == "auc" else percent(ends)


def percent(ends: tuple) -> str:
    value, low, high = (100 * end for end in ends)
    return f"{value:.1f} %" + (
        f" [{low:.1f}, {high:.1f}]" if np.isfinite([low, high]).all() else ""
    )


def signed(ends: tuple) -> str:
    value, low, high = ends
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def sentence(attack: str, measures: list[dict], against: list[pd.DataFrame | None]) -> str:
    """AUC of each, and the largest paired difference."""
    each = ", ".join(
        f"{LETTERS[i]} {interval(record['auc'], 'auc', 0)}" for i, record in enumerate(measures)
    )
    words = f"{attack}: AUC {each}"
    known = {
        LETTERS[i]: tuple(one.loc["auc"])
        for i, one in enumerate(against, start=1)
        if one is not None
    }
    if known:
        most = max(known, key=lambda letter: abs(known[letter][0]))
        words += f"; {most} - A = {signed(known[most])}, paired"
    elif against:
        words += f"; {UNPAIRED}"
    sizes = {record["n0"] for record in measures}
    return f"{words}; n0 = {' to '.join(f'{n:,}' for n in sorted({min(sizes), max(sizes)}))}"


def warnings(labels, measures: list[dict]) -> list[str]:
    """What makes risks hard to compare."""
    right = [record["test"][0] for record in measures]
    apart = max(right) - min(right)
    if not apart > APART:
        return []
    least, most = (LETTERS[int(pick(right))] for pick in (np.argmin, np.argmax))
    return [
        f"test accuracies lie {100 * apart:.1f} points apart ({least} to {most}): compare at equal accuracy"
    ]
