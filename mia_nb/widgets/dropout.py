"""Dropout: one pool queried with input dropout p, Q times, cell by cell beside the plain
query.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import pandas as pd

from mia_nb import attacks, metrics, plots
from mia_nb.metrics.curve import auc_null_error
from mia_nb.metrics.uncertainty import bootstrap
from mia_nb.types import Scores
from mia_nb.widgets import compared
from mia_nb.widgets.explorer import (
    END,
    Explorer,
    View,
    dropdown,
    message,
    plain,
    remarks,
    steps,
    with_layout,
    worded,
)
from mia_nb.widgets.networks import alike, doublings, query_call, query_count, query_kind
from mia_nb.widgets.pools import Pools
from mia_nb.widgets.stored import ALL, Source, list_of_sources, only, unique

TITLE = "Dropout"
MORE = "mia-nb run dropout_sweep --preset demo -p rates='[0.01, 0.02, 0.05]' -p queries=8"
NOTHING = (
    f"no pool is stored that was queried plainly and with input dropout; make one with: {MORE}"
)
UNKNOWN = (
    "; of {} the rate is not known: Source(label, signals, info={{'draws': 'dropout',"
    " 'input_dropout': 0.02}})"
)
PLAIN = "plain"
KEPT = 12  # Scores at once, of 7 MB each for 16 targets and 50,000 samples


class Queried(NamedTuple):
    """One pool, queried plainly and at several rates of input dropout."""

    plain: Source
    at: dict[float, Source]  # by p > 0, rising

    @property
    def cells(self) -> list[tuple[float, int]]:
        """(p, Q), row by row; p = 0 has one, since a second plain query has the same output."""
        rows = [[(p, q) for q in doublings(query_count(one))] for p, one in self.at.items()]
        return [(0.0, 1), *(cell for row in rows for cell in row)]

    def queries(self, p: float) -> list[int]:
        return [q for other, q in self.cells if other == p]

    def scores(self, p: float, queries: int, attack: str) -> Scores:
        """Of the first `queries` outputs at p."""
        if p == 0:
            return self.plain.scores(attack)
        return attacks.score(attack, self.at[p].signals.select(queries=slice(queries)))


def dropout(sources: Sequence[Source]) -> Explorer:
    """A map of attack success over input dropout p and queries Q, and one of its cells beside the
    plain query.

    Parameters:
        sources: what to find the pools in, as `sources` gives them

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` and `html()` export it. Without sources a message that says what to run.

    Pools: those with stored signals of the plain query and of at least one p (query(...,
    input_dropout=p, queries=Q)); Q queries are the first Q of those made, so that cells of a row
    share their masks. Errors in the map are over pairs of targets, for one target that of a null
    AUC. The difference of AUC is `metrics.difference`: paired, the same resamples of samples and
    pairs of targets on both sides.

    Caveat: the largest cell of a map is the largest of many numbers; p and Q chosen on what is
        evaluated flatter the attacker, `metrics.choose` takes them from other models.
    """
    sources = list_of_sources(sources)
    found = queried(sources)
    if not found:
        unknown = [s.label for s in sources if query_kind(s) == "dropout" and not _rate(s)]
        return message(TITLE, NOTHING + (UNKNOWN.format(", ".join(unknown)) if unknown else ""))
    scores_of = lru_cache(KEPT)(lambda pool, *cell: found[pool].scores(*cell))
    drawn = cache(lambda *at: bootstrap(chosen(*at), n_resamples=compared.DRAWS))
    grid = cache(lambda *at: table_of({cell: chosen(*at, *cell) for cell in found[at[0]].cells}))

    def chosen(pool, target, attack, p, queries) -> Scores:
        return only(scores_of(pool, p, queries, attack), target)

    @cache
    def shown(at, cell) -> tuple[pd.DataFrame, dict]:
        """(numbers, pictures) of a cell and of the plain query."""
        both = {how(*one): (*at, *one) for one in dict.fromkeys((cell, (0.0, 1)))}
        scores = {name: chosen(*one) for name, one in both.items()}
        sampled = {name: drawn(*one) for name, one in both.items()}
        return compared.measure(scores, PLAIN, sampled=sampled), {
            "map": mapped(grid(*at), cell, at[2])
        } | compared.beside(scores, at[2])

    def draw(pool, target, attack, p, queries) -> View:
        at = (pool, target, attack)
        cell = (p, queries)
        cells = found[pool].cells
        rows, figures = shown(at, cell)
        table = compared.numbers(rows, how(*cell), reference=PLAIN)
        return View(
            sentence(rows, p, queries, attack),
            figures,
            table,
            note(found[pool], rows, len(cells), chosen(*at, *cell).info["flags"]),
        )

    def fewer(pool, p, queries) -> int:
        """As many as there are of these queries."""
        return max(q for q in found[pool].queries(p) if q <= max(queries, 1))

    def clicked(number, values) -> dict:
        return dict(zip(("p", "queries"), found[values["pool"]].cells[number], strict=True))

    follow = {
        "target": {"options": lambda pool: found[pool].plain.targets},
        "attack": {"options": lambda pool: worded(found[pool].plain.attacks())},
        "p": {
            "options": lambda pool: [0.0, *found[pool].at],
            "value": lambda pool: min(found[pool].at),
        },
        "queries": {"options": lambda pool, p: found[pool].queries(p), "value": fewer},
    }
    controls = {
        "pool": Pools("pool", found, next(iter(found))),
        "target": dropdown("target", [ALL], ALL),
        "attack": dropdown("attack"),
        "p": steps("dropout p", [0.0], 0.0),
        "queries": steps("queries Q", [END], END),
    }
    return Explorer(
        TITLE,
        controls,
        draw,
        rows=[["map", "histogram"], ["roc"]],
        follow=follow,
        pools=found,
        heights={"map": 230, "histogram": 230, "roc": 285},
        clicks={"map": clicked},
    )


def _rate(source: Source) -> float | None:
    return source.info.get("input_dropout")


def queried(sources: Sequence[Source]) -> dict[str, Queried]:
    """Pools with a plain source and one with input dropout or more, by name; of equal p that of
    most queries, the newest.
    """
    plainly = {_whom(source): source for source in sources if query_kind(source) == "plain"}
    groups: dict[tuple, dict[float, Source]] = {}
    masked = [s for s in sources if _rate(s) and query_kind(s) == "dropout" and _whom(s) in plainly]
    for source in sorted(masked, key=query_count):
        group = groups.setdefault((_whom(source), source.info.get("mask_scope") == "step"), {})
        group[_rate(source)] = source
    return unique(
        (
            plainly[whom].label + ", a mask per step" * step,
            Queried(plainly[whom], dict(sorted(at.items()))),
        )
        for (whom, step), at in groups.items()
    )


def _whom(source: Source) -> tuple:
    return source.info.get("pool"), *alike(source, but=("input_dropout", "queries", "draws"))


def table_of(scores: dict[tuple[float, int], Scores]) -> pd.DataFrame:
    """p, queries, value, error: the AUC of every cell, its mean over targets and standard error."""
    rows = []
    for (p, queries), one in scores.items():
        facts = metrics.per_target(one, ())
        pairs = facts.groupby("pair")["auc"].mean()
        alone = len(pairs) == 1
        error = auc_null_error(*facts[["n1", "n0"]].min()) if alone else pairs.sem()
        rows.append({"p": p, "queries": queries, "value": pairs.mean(), "error": error})
    return pd.DataFrame(rows)


def mapped(table: pd.DataFrame, cell: tuple[float, int], attack: str) -> dict:
    """The map with one cell outlined; cells carry their numbers, those not queried none."""
    who = attacks.in_words(attack)
    figure = plain(plots.heatmap(table, chosen=cell, name=f"AUC of {who}"))
    number = table.reset_index().pivot(index="p", columns="queries", values="index")
    cells = number.astype(object).where(number.notna(), None).to_numpy().tolist()
    low = table["value"].min()
    high = table["value"].max()
    words = f"AUC of {who} over input dropout p and queries Q: {low:.3f} to {high:.3f}"
    title = figure["layout"]["title"] | {
        "text": words,
        "subtitle": {"text": "★ and outline: the cell shown below; ± one standard error"},
    }
    # two lines and no bar of colours: a column of a page is narrow, and the cells say their numbers
    texts = [[text.replace(" ±", "<br>±") for text in row] for row in figure["data"][0]["text"]]
    own = {"customdata": cells, "text": texts, "showscale": False}
    return with_layout(
        figure | {"data": [figure["data"][0] | own, *figure["data"][1:]]},
        title=title,
        meta="click a cell",
    )


def how(p: float, queries: int) -> str:
    return f"p = {p:g}, Q = {queries}" if p else PLAIN


def sentence(rows: pd.DataFrame, p: float, queries: int, attack: str) -> str:
    """ "With p = 0.02 and 4 queries RMIA finds ..., n0 = 898; queried plainly: ...; AUC changes by
    +0.004 [-0.002, +0.009]"
    """
    if not p:
        return f"Queried plainly {compared.told(rows, PLAIN, attack)}"
    gain, low, high = rows.loc[how(p, queries), [f"gain{end}" for end in compared.ENDS]]
    return (
        f"With p = {p:g} and {queries} {'query' if queries == 1 else 'queries'}"
        f" {compared.told(rows, how(p, queries), attack)}; queried plainly:"
        f" {compared.told(rows, PLAIN)}; AUC changes by"
        f" {compared.ends(gain, low, high, '+.3f')}{', which may be nothing' * (low <= 0 <= high)}"
    )


def note(one: Queried, rows: pd.DataFrame, cells: int, flags: Sequence[str]) -> str:
    """What the numbers rest on, how not to read the map, and what is missing in it."""
    call = query_call(one.plain, input_dropout=0.05, queries=8)
    return remarks(
        {
            compared.sizes(rows): True,
            f"one of {cells} cells tried on the same targets: to pick p and Q by this map is a"
            " selection that flatters the attacker; metrics.choose picks them on other"
            " models": True,
            f"only p = {min(one.at):g} was queried; more: {MORE}, or of any pool {call}": len(
                one.at
            )
            == 1,
            compared.ORACLE: True,
        },
        flags,
    )
