"""What the papers printed, and ours beside it: settings of the spiking-network study, cell by cell."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb.checks import checked
from mia_nb.metrics.curve import MIN_FALSE_POSITIVES
from mia_nb.metrics.tables import intervals
from mia_nb.metrics.uncertainty import RESAMPLES, interval, scored
from mia_nb.types import Scores

PACKAGE = Path(__file__).resolve().parents[1]
PLACES = (PACKAGE / "published", PACKAGE.parent / "data")  # an installed package's, a checkout's
SPIKING = ("snn-uai2025", "snn-workshop2025")
WORDS = {"attack-p": "attack_p", "attack-r": "attack_r", "rmia": "rmia"}
FPR = (0.001, 0.01)  # the only two that the spiking papers print
FAMILIES = {"ann": ("",), "snn": ("convert", "hybrid", "direct")}
ALIGNED = "ann, aligned"
REFERENCES = ("own", "ann", ALIGNED)


class Cell(NamedTuple):
    """One setting of a study on spiking networks and the attack that was run in it.

    `training` is "" and `timesteps` 0 for an ordinary network (ann). `references`: "own" family, "ann" for transfer, or
    "ann, aligned" for transfer with both sides put on one scale (`attacks.align`), which the study did not do.
    """

    family: str  # "ann" | "snn"
    training: str = ""  # "convert" | "hybrid" | "direct"
    timesteps: int = 0
    input_dropout: bool = False
    references: str = "own"
    attack: str = "rmia"  # as in attacks.ATTACKS


def as_cells(cells: dict) -> dict[Cell, Scores]:
    """The cells with `Cell` keys; ValueError for a setting that cannot be, or one without a target."""
    cells = {Cell(*key): scores for key, scores in cells.items()}
    for cell, scores in cells.items():
        spiking = cell.family == "snn"
        fits = cell.training in FAMILIES.get(cell.family, ()) and (cell.timesteps > 0) == spiking
        if not fits or not (spiking or cell.references == "own"):
            raise ValueError(
                f"{cell} is no setting: an ann has training '', 0 timesteps and its own references, "
                f"a snn {', '.join(FAMILIES['snn'])} and at least 1 timestep"
            )
        if cell.references not in REFERENCES:
            raise ValueError(
                f"{cell} has unknown references {cell.references!r}: wanted one of {REFERENCES}"
            )
        if not len(scores.value):
            raise ValueError(f"{cell} has no target: score at least one")
    return cells


@lru_cache(maxsize=1)
def records() -> tuple[dict, ...]:
    """Every printed number, read once and shared: not to be changed."""
    for place in PLACES:
        if (path := place / "paper_results.json").is_file():
            return tuple(json.loads(path.read_text(encoding="utf-8")))
    raise ValueError(
        f"paper_results.json is in none of {', '.join(map(str, PLACES))}: install the package again"
    )


@checked
def paper_results(paper: str | None = None, table: str | None = None) -> list[dict]:
    """Every number that the papers printed: paper, table, dataset, model, setting, attack, metric, value, unit, maybe a note.

    Papers: snn-uai2025 (Guan et al., tables 2 to 6), snn-workshop2025 (F.1 to F.4), nsde2025 (I to XII). Fractions, not
    percent. Caveat: one target, one seed, no intervals; orderings to compare with, not values to reproduce.
    """
    return [
        dict(r) for r in records() if paper in (None, r["paper"]) and table in (None, r["table"])
    ]


@checked
def against_papers(
    cells: dict[Cell, Scores],
    *,
    stands_for: tuple[str, str] | None = ("cifar10", "resnet18"),
    ours: str = "",
    tables=("2", "3", "4", "5", "6"),
    draws: int = RESAMPLES,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per number printed in these tables of the spiking papers (Guan et al. 2025), ours and its interval beside it.

    stands_for: the printed (data set, model) whose block ours is placed in; None places it nowhere. ours: what ours really is,
    say "digits, tinycnn", for the note. Columns: paper, table, dataset, model, training, timesteps (0 = ANN), input_dropout,
    references, attack, metric, published, ours, low, high (as in `intervals`; test accuracy: Student's t over pairs),
    measurable, n0, note. Raises ValueError for a table that no spiking paper has.
    Cells with aligned references stand nowhere: the papers have none.
    Caveat: the printed Attack-R counts references (4, so five levels), hence its zeros at low FPR; ours is continuous.
    """
    cells = {cell: scores for cell, scores in as_cells(cells).items() if cell.references != ALIGNED}
    printed = [r for r in records() if r["paper"] in SPIKING]
    if strange := sorted(set(tables) - {r["table"] for r in printed}):
        raise ValueError(
            f"no spiking paper has table {', '.join(strange)}; known: {sorted({r['table'] for r in printed})}"
        )
    place = (
        f"ours is {ours}" if ours else f"ours stands for {', '.join(stands_for or ('nothing',))}"
    )
    measured: dict[Cell, dict] = {}
    rows = []
    for record in (r for r in printed if r["table"] in tables):
        cell = _cell_of(record)
        here = stands_for is not None and (
            record["dataset"],
            record["model"].split("-")[1],
        ) == tuple(stands_for)
        cell, scores = _find(cells, cell) if here else (cell, None)
        if scores is not None and cell not in measured:
            measured[cell] = measure(scores, draws, seed)
        rows.append(_row(record, measured.get(cell) if here else None, "" if here else place))
        if here and scores is not None:
            rows[-1]["note"] = "; ".join(filter(None, [rows[-1]["note"], place]))
    return pd.DataFrame(rows)


def _cell_of(record: dict) -> Cell:
    """The printed setting in our words; attack "" for an accuracy."""
    family, setting = record["model"].split("-")[0], record["setting"]
    references = setting.get("references", family)
    return Cell(
        family,
        setting.get("training", ""),
        setting.get("T", 0),
        setting.get("input_dropout", False),
        "own" if references == family else references,
        WORDS.get(record["attack"], ""),
    )


def _find(cells: dict[Cell, Scores], wanted: Cell) -> tuple[Cell, Scores | None]:
    """The wanted cell; for an accuracy any plain cell of the same models, which all have the same."""
    if not wanted.attack:
        wanted = next((cell for cell in cells if cell[:4] == wanted[:4]), wanted)
    return wanted, cells.get(wanted)


def measure(scores: Scores, draws: int, seed: int) -> dict:
    """{metric: (value, low, high)} under the printed names, the fewest non-members n0 of a target, and the caveat few targets.

    Accuracies and the generalization gap with Student's t over pairs; "accuracy" is the attack's own at its best threshold,
    (1 + advantage) / 2, which chance alone lifts above 1/2.
    """
    ends = intervals(scores, FPR, draws=draws, seed=seed)
    found = {
        name: tuple(ends.loc[name, ["value", "low", "high"]])
        for name in ("auc", *(f"tpr@{x:g}" for x in FPR))
    }
    found["accuracy"] = tuple(
        (1 + ends.loc["advantage", end]) / 2 for end in ("value", "low", "high")
    )
    for name, right in zip(("train_accuracy", "test_accuracy"), scores.accuracy.T, strict=True):
        found[name] = (right.mean(), *np.clip(interval(right, scores.pair), 0, 1))
    gap = -np.diff(scores.accuracy)[:, 0]
    found["generalization_gap"] = (gap.mean(), *interval(gap, scores.pair))
    few = (
        ""
        if len(np.unique(scores.pair)) > 1
        else f"{len(scores.value)} targets: training randomness not covered"
    )
    return found | {"n0": fewest_non_members(scores), "few": few}


def beside(metric: str, found: dict | None) -> dict:
    """ours, low, high, measurable and n0 of one metric from `measure`; None: it was not run."""
    if found is None:
        return dict.fromkeys(("ours", "low", "high"), np.nan) | {"measurable": False, "n0": 0}
    row = dict(zip(("ours", "low", "high"), map(float, found[metric]), strict=True))
    return row | {"measurable": measurable(metric, found["n0"]), "n0": found["n0"]}


def _row(record: dict, found: dict | None, elsewhere: str) -> dict:
    """One line of the table; `elsewhere` says why a block is not ours."""
    cell, metric = _cell_of(record), record["metric"]
    row = {name: record[name] for name in ("paper", "table", "dataset", "model")}
    row |= cell._asdict() | {"references": cell.references if cell.attack else ""}
    del row["family"]
    row |= {"metric": metric, "published": record["value"]}
    notes = [f"print: {record['note']}" if "note" in record else ""]
    row |= beside(metric, found)
    if found is None:
        notes.append("; ".join(filter(None, ["not run", elsewhere])))
    else:
        notes += [
            "printed in five levels, ours is continuous" if cell.attack == "attack_r" else "",
            found["few"],
        ]
    return row | {"note": "; ".join(filter(None, notes))}


def measurable(metric: str, n0: int) -> bool:
    """Whether so many non-members can tell a TPR: 10 allowed false positives; every other metric always."""
    return (
        not metric.startswith("tpr@")
        or np.floor(float(metric.removeprefix("tpr@")) * n0 + 1e-9) >= MIN_FALSE_POSITIVES
    )


def fewest_non_members(scores: Scores) -> int:
    """n0 of the target that has the fewest."""
    return min(int((~scored(scores, row)[1]).sum()) for row in range(len(scores.value)))


@checked
def against_papers_readable(table: pd.DataFrame) -> pd.DataFrame:
    """`against_papers` or `flow_against_papers` as text, a row per setting and attack: "0.5458 | 0.561 [0.550, 0.571]".

    Published first. "not run" where ours has no such cell; "n/m (n0 = 700)" where the FPR is too low for so few non-members.
    """
    setting = list(table.columns[1 : table.columns.get_loc("metric")])
    titles = {"auc": "AUC", "accuracy": "attack accuracy"}
    rows: dict[tuple, dict] = {}
    for _, row in table.iterrows():
        title = row["metric"].replace("tpr@", "TPR at FPR ").replace("_", " ")
        title = titles.get(row["metric"], title)
        rows.setdefault(tuple(row[setting]), {})[title] = f"{row['published']:.4f} | {_ours(row)}"
    return pd.DataFrame(
        [dict(zip(setting, key, strict=True)) | texts for key, texts in rows.items()]
    ).fillna("")


def _ours(row) -> str:
    if np.isnan(row["ours"]):
        return "not run"
    if not row["measurable"]:
        return f"n/m (n0 = {row['n0']})"
    return f"{row['ours']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
