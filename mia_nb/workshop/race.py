"""Attacks against their price: how many reference models each of them wants."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
import pandas as pd

from mia_nb import attacks, metrics, plots
from mia_nb.metrics.protocol import units
from mia_nb.types import Scores, Signals
from mia_nb.widgets.explorer import Explorer, Ticks, View, buttons, message
from mia_nb.widgets.figure import plain
from mia_nb.widgets.stored import Source

TITLE = "Budget race"
BUDGETS = (1, 4, 16, 64)
ATTACKS = ("loss", "rmia", "nig", "lira_per_sample", "lira_shrunk")
PAIRS = 8  # of targets: enough for an interval, few enough to be quick
RATE = 0.05  # false alarms that several hundred non-members can resolve
METRICS = {"AUC": "auc", f"found at {RATE:.0%} false alarms": f"tpr@{RATE:g}"}


def with_references(
    signals: Signals, attack: str, references: int, *, pairs: int = PAIRS
) -> Scores | None:
    """Scores of both targets of `pairs` pairs, each with so many reference models: those of the pairs that follow.

    A single reference has seen an image or not, so that no attack has both sides: rmia then weighs models equally (`base`),
    the likelihood ratios cannot run. None where an attack refuses so few. Raises ValueError for more references than there are.
    """
    unit = units(signals.member[:, ~signals.population])
    members = [np.flatnonzero(unit == one) for one in range(unit.max() + 1)]
    if not 1 <= references <= len(unit) - len(members[0]):
        raise ValueError(
            f"{references} references: this pool leaves 1 to {len(unit) - len(members[0])}"
        )
    if references == 1 and attack not in ("loss", "rmia"):
        return None
    attack, found = "base" if attack == "rmia" and references == 1 else attack, []
    for number in range(min(pairs, len(members))):
        others = np.concatenate(
            [members[(number + 1 + i) % len(members)] for i in range(len(members) - 1)]
        )[:references]
        rows = np.concatenate([members[number], others])
        try:
            one = attacks.score(
                attack, signals.select(models=rows), targets=range(len(members[number]))
            )
        except ValueError:
            return None
        if np.isnan(one.value).all():
            return None
        found.append((one, members[number], np.full(len(members[number]), number)))
    parts = {
        name: np.concatenate([getattr(one, name) for one, _, _ in found])
        for name in ("value", "member", "accuracy", "loss")
    }
    who = {
        "targets": np.concatenate([rows for _, rows, _ in found]),
        "pair": np.concatenate([pair for _, _, pair in found]),
    }
    return Scores(**parts, **who, info=found[0][0].info | {"k": references // 2})


def race_table(
    signals: Signals, *, budgets=BUDGETS, names: Sequence[str] = ATTACKS, pairs: int = PAIRS
) -> pd.DataFrame:
    """A row per attack, budget and metric: attack, references, metric, value, low, high, targets, n0; NaN where it cannot run.

    Ends are those of `metrics.intervals` with 200 draws. Budgets larger than the pool are left out; the same question about the
    same signals is answered once.
    """
    return _measured(signals, tuple(budgets), tuple(names), pairs).copy()


@lru_cache(8)
def _measured(signals: Signals, budgets: tuple, names: tuple, pairs: int) -> pd.DataFrame:
    rows, most = [], len(signals.member) - 2
    for budget in [b for b in budgets if b <= most]:
        for name in names:
            scores = with_references(signals, name, budget, pairs=pairs)
            found = None if scores is None else metrics.intervals(scores, (RATE,), draws=200)
            for words, metric in METRICS.items():
                value, low, high = (
                    (np.nan,) * 3 if found is None else found.loc[metric, ["value", "low", "high"]]
                )
                n = (
                    (0, 0)
                    if scores is None
                    else (len(scores.targets), int((~scores.member).sum(1).min()))
                )
                row = {
                    "attack": name,
                    "references": budget,
                    "metric": words,
                    "value": value,
                    "low": low,
                    "high": high,
                }
                rows.append(row | {"targets": n[0], "n0": n[1]})
    return pd.DataFrame(rows)


def race(
    source: Source, *, budgets: Sequence[int] = BUDGETS, names: Sequence[str] = ATTACKS
) -> Explorer:
    """Who finds most with 1, 4, 16 and 64 reference models? Every attack on the same targets, with 95 % bands.

    A target's mate is never a reference. The table holds the AUC too where another metric is drawn.
    """
    if len(source.signals.margin) < 6:
        return message(
            TITLE,
            f"{source.label} has {len(source.signals.margin)} models; a race needs 6 or more, better 66",
        )
    every = race_table(source.signals, budgets=budgets, names=names)

    @cache
    def picture(metric, shown):
        table = every[(every["metric"] == metric) & every["attack"].isin(shown)]
        return plain(
            plots.budget_race(table, metric=metric, chance=0.5 if metric == "AUC" else RATE)
        )

    def draw(metric, shown) -> View:
        if not shown:
            raise ValueError("tick one attack or more")
        table = every[(every["metric"] == metric) & every["attack"].isin(shown)].drop(
            columns="metric"
        )
        best = (
            table.dropna(subset="value")
            .loc[lambda t: t.groupby("references")["value"].idxmax()]
            .set_index("references")
        )
        words = [
            f"{r.attack} with {b} ({r.value:.3f} [{r.low:.3f}, {r.high:.3f}])"
            for b, r in best.iterrows()
        ]
        n = table.loc[table["targets"].idxmax()]
        sentence = f"Highest {metric}: {'; '.join(words)}; {n['targets']} targets, n0 = {n['n0']}"
        note = "n/m: cannot run with so few; with one reference rmia weighs models equally; the highest is chosen with hindsight"
        wide = table.assign(value=[_cell(row) for row in table.itertuples()])
        wide = (
            wide.pivot(index="attack", columns="references", values="value")
            .reindex(shown)
            .rename_axis(None, axis=1)
        )
        wide.columns = [
            f"{budget} references" if budget > 1 else "1 reference" for budget in wide.columns
        ]
        return View(sentence, {"race": picture(metric, shown)}, wide.reset_index(), note)

    controls = {
        "metric": buttons("metric", list(METRICS), "AUC"),
        "shown": Ticks("attacks", tuple(names), tuple(names), limit=len(names)),
    }
    return Explorer(TITLE, controls, draw, rows=[["race"]])


def _cell(row) -> str:
    return "n/m" if np.isnan(row.value) else f"{row.value:.3f} [{row.low:.3f}, {row.high:.3f}]"
