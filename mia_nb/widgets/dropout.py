"""Dropout: one pool asked with input dropout p in Q queries, cell by cell beside the plain question."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import ipywidgets as W
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mia_nb import attacks, metrics, plots
from mia_nb.plots.style import GREY, finish
from mia_nb.types import Scores
from mia_nb.widgets import compared
from mia_nb.widgets.explorer import Explorer, View, dropdown, message, steps
from mia_nb.widgets.figure import plain
from mia_nb.widgets.networks import alike, draws, query_count
from mia_nb.widgets.stored import Source, only

TITLE = "Dropout"
MORE = "mia-nb run dropout_sweep --preset demo -p rates='[0.01, 0.02, 0.05]' -p queries=8"
NOTHING = f"no pool is stored that was asked plainly and with input dropout; make one with: {MORE}"
UNKNOWN = "; of {} the rate is not known: Source(label, signals, info={{'draws': 'dropout', 'input_dropout': 0.02}})"
ALL = "all"
PLAIN = 0  # number of the cell of the plain question
KEPT = 12  # Scores at once, of 7 MB each for 16 targets and 50,000 samples
AHEAD = 2e6  # scores in a map of which all cells are drawn at once, so that no click waits


class Asked(NamedTuple):
    """One pool, asked plainly and at several rates of input dropout."""

    plain: Source
    at: dict[float, Source]  # by p > 0, rising

    @property
    def cells(self) -> list[tuple[float, int]]:
        """(p, Q), row by row; p = 0 has one, since a second plain question has the same answer."""
        found = [(0.0, 1)]
        for p, source in self.at.items():
            most = query_count(source)
            found += [
                (p, q)
                for q in sorted({2**n for n in range(most.bit_length()) if 2**n <= most} | {most})
            ]
        return found

    def scores(self, p: float, queries: int, attack: str) -> Scores:
        """Of the first `queries` answers at p."""
        if p == 0:
            return self.plain.scores(attack)
        return attacks.score(attack, self.at[p].signals.select(queries=slice(queries)))


def dropout(sources: Sequence[Source]) -> Explorer:
    """A map of attack success over input dropout p and queries Q, and one of its cells beside the plain question.

    Pools: those with stored signals of the plain question and of at least one p (query(..., input_dropout=p, queries=Q)); Q
    queries are the first Q of those asked, so that cells of a row share their masks. Errors in the map are over pairs of
    targets, for one target that of a null AUC. The difference of AUC is `metrics.difference`: paired, the same draws of
    samples and pairs of targets on both sides. Caveat: the largest cell of a map is the largest of many numbers; p and Q chosen
    on what is evaluated flatter the attacker, `metrics.choose` takes them from other models.
    """
    found = asked(sources)
    if not found:
        return message(TITLE, missing(sources))
    cells = {name: one.cells for name, one in found.items()}
    scores_of = lru_cache(KEPT)(
        lambda pool, attack, cell: found[pool].scores(*cells[pool][cell], attack)
    )
    drawn = cache(lambda *at: compared.bootstrap(chosen(*at)))
    grid = cache(
        lambda *at: table_of(cells[at[0]], (chosen(*at, i) for i in range(len(cells[at[0]]))))
    )
    measured = cache(
        lambda *at, cell: compared.measure(
            both(*at, cell=cell), PLAIN, draws=lambda i: drawn(*at, i)
        )
    )

    def chosen(pool, attack, target, cell) -> Scores:
        return only(scores_of(pool, attack, cell), None if target == ALL else target)

    def both(*at, cell) -> dict[int, Scores]:
        return {i: chosen(*at, i) for i in dict.fromkeys((cell, PLAIN))}

    @cache
    def pictures(*at, cell) -> dict:
        one_map = mapped(grid(*at), cells[at[0]][cell], at[1])
        return {"map": one_map} | beside(
            {how(*cells[at[0]][i]): one for i, one in both(*at, cell=cell).items()}, at[1]
        )

    def draw(pool, target, attack, p, queries, cell) -> View:
        at, own = (pool, attack, target), cells[pool]
        if len(own) * chosen(*at, PLAIN).value.size <= AHEAD:
            for i in range(len(own)):
                measured(*at, cell=i), pictures(*at, cell=i)
        rows = measured(*at, cell=cell)
        names = {i: how(*own[i]) for i in rows.index}
        table = compared.numbers(rows, names, cell, reference=PLAIN, word="plain")
        words = note(found[pool], rows, len(own), chosen(*at, cell).info["flags"])
        return View(sentence(rows, own[cell], cell, attack), pictures(*at, cell=cell), table, words)

    last: dict[str, int] = {"pool": "", "cell": 0}

    def adjust(values) -> dict:
        pool = values["pool"]
        own, first = cells[pool], found[pool].plain
        names, targets = first.attacks(), range(len(first.signals.margin))
        if last["pool"] != pool:
            cell = max(i for i, (p, _) in enumerate(own) if p == own[1][0])
        elif last["cell"] != values["cell"]:  # a click
            cell = values["cell"] if 0 <= values["cell"] < len(own) else last["cell"]
        else:
            cell = nearest(own, values["p"], values["queries"])
        last.update(pool=pool, cell=cell)
        p, queries = own[cell]
        return {
            "target": {
                "options": [ALL, *targets],
                "value": values["target"] if values["target"] in targets else ALL,
            },
            "attack": {
                "options": names,
                "value": values["attack"] if values["attack"] in names else names[0],
            },
            "p": {"options": list(dict.fromkeys(p for p, _ in own)), "value": p},
            "queries": {"options": [q for other, q in own if other == p], "value": queries},
            "cell": {"max": len(own) - 1, "value": cell},
        }

    controls = {
        "pool": dropdown("pool", list(found), next(iter(found))),
        "target": dropdown("target", [ALL], ALL),
        "attack": dropdown("attack"),
        "p": steps("dropout p", [0.0], 0.0),
        "queries": steps("queries Q", [1], 1),
        "cell": W.IntSlider(
            description="cell", min=0, max=0, value=0, layout=W.Layout(display="none")
        ),  # what a click sets
    }
    return Explorer(
        TITLE,
        controls,
        draw,
        rows=[["map"], ["histogram"], ["roc"]],
        adjust=adjust,
        clicks={"map": "cell"},
    )


def missing(sources: Sequence[Source]) -> str:
    """Why there is nothing to show."""
    unknown = [
        source.label
        for source in sources
        if draws(source) == "dropout" and not source.info.get("input_dropout")
    ]
    return NOTHING + (UNKNOWN.format(", ".join(unknown)) if unknown else "")


def asked(sources: Sequence[Source]) -> dict[str, Asked]:
    """Pools with a plain source and one with input dropout or more, by name; of equal p that of most queries, the newest."""
    plainly = {_whom(source): source for source in sources if draws(source) == "plain"}
    groups: dict[tuple, dict[float, Source]] = {}
    for source in (
        source
        for source in sources
        if draws(source) == "dropout" and source.info.get("input_dropout")
    ):
        group, p = (
            groups.setdefault((_whom(source), source.info.get("mask_scope")), {}),
            source.info["input_dropout"],
        )
        if p not in group or query_count(source) >= query_count(group[p]):
            group[p] = source
    found: dict[str, Asked] = {}
    for (whom, scope), group in groups.items():
        if whom in plainly:
            name = plainly[whom].label + (", a mask per step" if scope == "step" else "")
            found[name if name not in found else f"{name} ({len(found)})"] = Asked(
                plainly[whom], dict(sorted(group.items()))
            )
    return found


def _whom(source: Source) -> tuple:
    return source.info.get("pool"), *alike(source, but=("input_dropout", "queries", "draws"))


def nearest(cells: Sequence[tuple[float, int]], p: float, queries: int) -> int:
    """Number of the cell at this p, or at the one nearest to it, with at most so many queries."""
    p = min((other for other, _ in cells), key=lambda other: abs(other - p))
    return max(
        (q, i) for i, (other, q) in enumerate(cells) if other == p and (q <= queries or q == 1)
    )[1]


def table_of(cells: Sequence[tuple[float, int]], scores: Iterable[Scores]) -> pd.DataFrame:
    """p, queries, value, error: the AUC of every cell, its mean over targets and standard error."""
    rows = []
    for (p, queries), one in zip(cells, scores, strict=True):
        facts = metrics.per_target(one, ())
        pairs = facts.groupby("pair")["auc"].mean()
        several = pairs.std(ddof=1) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
        error = (
            metrics.auc_null_error(int(facts["n1"].min()), int(facts["n0"].min()))
            if several is None
            else several
        )
        rows.append({"p": p, "queries": queries, "value": pairs.mean(), "error": error})
    return pd.DataFrame(rows)


def mapped(table: pd.DataFrame, cell: tuple[float, int], attack: str) -> dict:
    """The map with one cell outlined; cells carry their numbers, those that were not asked none."""
    figure = plain(plots.heatmap(table, chosen=cell, name=f"AUC of {attack}"))
    number = {(p, q): i for i, (p, q) in enumerate(zip(table["p"], table["queries"], strict=True))}
    ps, queries = (sorted(set(table[name])) for name in ("p", "queries"))
    trace = figure["data"][0] | {"customdata": [[number.get((p, q)) for q in queries] for p in ps]}
    words = f"AUC of {attack} over input dropout p and queries Q: {table['value'].min():.3f} to {table['value'].max():.3f}"
    title = figure["layout"]["title"] | {
        "text": words, "subtitle": {"text": "★ and outline: the cell shown below, click another; ± one standard error"}
    }  # fmt: skip
    return figure | {
        "data": [trace, *figure["data"][1:]],
        "layout": figure["layout"] | {"title": title},
    }


def how(p: float, queries: int) -> str:
    return f"p = {p:g}, Q = {queries}" if p else "plain"


def beside(both: dict[str, Scores], attack: str) -> dict[str, dict]:
    """Histograms and ROCs of named scores."""
    roc = plots.roc_pair({f"{attack}, {name}": one for name, one in both.items()})
    roc.update_layout(height=420, title_text=f"ROC of {attack}: " + " beside ".join(both))
    return {"histogram": plain(histograms(both, attack)), "roc": plain(roc)}


def histograms(both: dict[str, Scores], attack: str) -> go.Figure:
    """Histograms of scores, a panel each with its own scale of scores."""
    single, names = [plots.histogram(one, bins=60) for one in both.values()], list(both)
    figure = make_subplots(
        1, len(single), subplot_titles=names, shared_yaxes=True, horizontal_spacing=0.06
    )
    for column, one in enumerate(single, start=1):
        for trace in one.data:
            name = str(trace.name).split(" (")[0]
            figure.add_trace(
                trace.update(name=name, legendgroup=name, showlegend=column == 1), row=1, col=column
            )
    top = max(trace.y.max() for one in single for trace in one.data)
    figure.update_xaxes(title_text="score (larger = more likely a member)", title_standoff=4)
    figure.update_yaxes(range=[0, 1.05 * top], tickformat="~%").update_yaxes(
        title_text="share of group", col=1
    )
    figure.update_annotations(font={"size": 12, "color": GREY})
    words, legend = (
        f"Scores of {attack}: " + " beside ".join(names),
        {"orientation": "h", "y": -0.3, "yanchor": "top"},
    )
    return finish(figure, words, "share of each group per bin; the outermost bins hold the tails", headroom=22, height=310,
                  legend=legend)  # fmt: skip


def sentence(rows: pd.DataFrame, where: tuple[float, int], cell: int, attack: str) -> str:
    """ "With p = 0.02 and 4 queries rmia finds ..., n0 = 898; asked plainly: ...; AUC changes by +0.004 [-0.002, +0.009]" """
    if cell == PLAIN:
        return f"Asked plainly {compared.told(rows, PLAIN, attack)}"
    p, queries = where
    gain, low, high = rows.loc[cell, ["gain", "gain_low", "gain_high"]]
    beyond = "" if low > 0 or high < 0 else ", which may be nothing"
    return (
        f"With p = {p:g} and {queries} {'query' if queries == 1 else 'queries'} {compared.told(rows, cell, attack)}; "
        f"asked plainly: {compared.told(rows, PLAIN)}; AUC changes by {gain:+.3f} [{low:+.3f}, {high:+.3f}]{beyond}"
    )


def note(one: Asked, rows: pd.DataFrame, cells: int, flags: Sequence[str]) -> str:
    """What the numbers rest on, how not to read the map, and what is missing in it."""
    words = [
        compared.sizes(rows),
        f"one of {cells} cells tried on the same targets: to pick p and Q by this map is a selection that flatters the "
        "attacker; metrics.choose picks them on other models",
    ]
    if len(one.at) == 1:
        key = (one.plain.info.get("pool") or "KEY")[:12]
        words.append(
            f"only p = {next(iter(one.at)):g} was asked; more: {MORE}, or of any pool "
            f"query.query(training.load_pool({key!r}), images, input_dropout=0.05, queries=8)"
        )
    return "; ".join([*words, "thresholds set with hindsight (oracle)", *flags])
