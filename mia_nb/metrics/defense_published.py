"""What the study of neural ODE and SDE classifiers printed about defenses and cost, and ours beside it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb.checks import checked
from mia_nb.metrics.curve import counts
from mia_nb.metrics.flow_published import (
    NAMES,
    NEAR,
    NOISY,
    PAPER,
    PRINTED_ATTACKS,
    PRINTED_MODELS,
    flow_cell,
)
from mia_nb.metrics.published import beside, measure, records
from mia_nb.metrics.tables import summary
from mia_nb.metrics.uncertainty import FPR, RESAMPLES, interval, scored
from mia_nb.types import Scores

PRINTED_DEFENSES = {  # printed word: defense in training, defense of the output, the options it says
    "memguard": (
        "",
        "memguard",
        {"confidence": 0.5},
    ),  # not printed: which confidence is shown says nothing
    "mmd-mixup": ("mmd_mixup", "", {"weight": 5e-4}),
    "l2": ("l2", "", {"weight": 1e-5}),
    "l1": ("l1", "", {"weight": 1e-5}),
    "dp-sgd": ("dp_sgd", "", {}),
    None: ("", "", {}),
}
PRINTED_OPTIONS = {
    training or output: options for training, output, options in PRINTED_DEFENSES.values()
}
WORDS = {
    "l1": "L1", "l2": "L2", "mmd_mixup": "MMD + Mixup", "dp_sgd": "DP-SGD", "memguard": "MemGuard", "relaxloss": "RelaxLoss",
    "hamp": "HAMP",
}  # fmt: skip
COSTS = {"time_per_epoch": "seconds", "memory": "memory_mib"}  # printed metric: our column
OURS_UNIT = {"seconds": "seconds", "memory_mib": "MiB"}


class DefenseCell(NamedTuple):
    """One defended (or undefended) network of the study of neural SDE classifiers and the attack that was run on it.

    `model`: a key of flow_published.NAMES, or another name, which stands in no printed table. `defense` in training and
    `output` between models and attacker, by the names of `mia_nb.defenses`, "" for none. `sigma`, `noise_sd`: of a neural SDE.
    `queries`: answers averaged per sample. `setting`: options in words, which set cells apart and exclude none. `variant`: what
    the study does not know ("frozen", "noise off"); a cell with one stands in no printed table and decides no claim.
    """

    model: str
    defense: str = ""
    output: str = ""
    sigma: float = 0.0
    noise_sd: float = 0.0
    attack: str = "lira_global"  # as in attacks.ATTACKS
    queries: int = 1
    setting: str = ""
    variant: str = ""

    @property
    def stochastic(self) -> bool:
        """Whether answers to one question differ."""
        return self.sigma > 0 and "noise off" not in self.variant

    @property
    def label(self) -> str:
        """The defended network in words, without queries and attack: "ResNet-14, L2", "SDENet sigma=2"."""
        name = NAMES.get(self.model, self.model) + (
            f" sigma={self.sigma:.3g}" if self.model in NOISY else ""
        )
        defenses = [
            WORDS.get(word, word.replace("_", " ")) for word in (self.defense, self.output) if word
        ]
        return ", ".join(filter(None, [name, *defenses, self.setting, self.variant]))


@checked
def defense_cell(info: dict, attack: str) -> DefenseCell:
    """The defended network of signals, from `Signals.info`, with the attack that was run on them.

    Equations are named as in `flow_cell`; options of defenses that are not the printed ones go into `setting`, with blocks,
    solver, steps and T. Other networks (tinycnn) keep their name. ValueError when signals name no model, or when those of a
    model of the study do not say how their flow was integrated.
    """
    model, defense, output = (info.get(name) or "" for name in ("model", "defense", "output"))
    if not model:
        raise ValueError(
            f"signals name no model (info has {', '.join(sorted(info)) or 'nothing'}): make them with query(pool)"
        )
    options = [
        _options(defense, info.get("defense_args")),
        _options(output, info.get("output_args")),
    ]
    cell = DefenseCell(model, defense, output, attack=attack, queries=info.get("queries", 1))
    if model not in NAMES:
        return defense_checked_cell(cell._replace(setting=", ".join(filter(None, options))))
    flow = flow_cell({**info, "defense": None, "output": None}, attack)
    about = flow._replace(variant="", noise=True, noise_train=True).label.partition(", ")[2]
    words = [
        flow.variant,
        "" if flow.noise_train else "trained without noise",
        "" if flow.noise else "noise off",
    ]
    cell = cell._replace(
        model=flow.model, sigma=flow.sigma, noise_sd=flow.noise_sd, queries=flow.queries
    )
    setting, variant = (", ".join(filter(None, each)) for each in ([about, *options], words))
    return defense_checked_cell(cell._replace(setting=setting, variant=variant))


def _options(name: str, given: dict | None) -> str:
    """Options in words, without those whose value the study prints."""
    printed = PRINTED_OPTIONS.get(name, {})
    words = {
        key: f"{value:g}" if isinstance(value, int | float) else str(value)
        for key, value in sorted((given or {}).items())
    }
    return ", ".join(
        f"{key.replace('_', ' ')} {word}"
        for key, word in words.items()
        if printed.get(key) != given[key]
    )


def defense_checked_cell(cell: DefenseCell) -> DefenseCell:
    """The cell with one query where answers do not differ; ValueError for one that cannot be."""
    cell = DefenseCell(*cell)
    if (
        cell.sigma < 0
        or cell.noise_sd < 0
        or bool(cell.sigma) != bool(cell.noise_sd)
        or cell.queries < 1
    ):
        raise ValueError(
            f"{cell} cannot be: wanted sigma and noise_sd both 0 or both above, and at least 1 query"
        )
    if cell.sigma and cell.model in NAMES and cell.model not in NOISY:
        raise ValueError(f"{cell} cannot be: noise (sigma) is for {' and '.join(NOISY)} alone")
    return cell if cell.stochastic else cell._replace(queries=1)


def defense_checked(cells: dict) -> dict[DefenseCell, Scores]:
    """The cells with `DefenseCell` keys; ValueError for one that cannot be or has no target."""
    found: dict[DefenseCell, Scores] = {}
    for key, scores in cells.items():
        if not len(scores.value):
            raise ValueError(f"{DefenseCell(*key)} has no target: score at least one")
        found.setdefault(defense_checked_cell(key), scores)
    return found


@checked
def defense_table(
    cells: dict[DefenseCell, Scores], fpr=FPR, *, draws: int = RESAMPLES, seed: int = 0
) -> pd.DataFrame:
    """One row per defended network under its strongest attack: what a defense costs and what it leaves to find.

    Columns: name, defense, output, attack (of largest mean AUC, unadjusted), attacks (how many were tried), test_acc, gap,
    auc, tpr@x, each with _low and _high (95 %: accuracies and gaps Student's t over pairs, NaN with one pair; auc and tpr@x
    those of the maximum over attacks, drawn together), tpr@x_measurable, queries, n1, n0, targets, pairs.
    Networks that differ in queries alone are one row. Raises ValueError as `defense_against_papers`, and for no cell.
    Caveat: an attack that was not run is not there; no attack found is no absence of one.
    """
    cells = defense_checked(cells)
    if not cells:
        raise ValueError(
            "defense_table got no cells: pass {defense_cell(signals.info, attack): attacks.score(...)}"
        )
    groups: dict[str, dict[str, Scores]] = {}
    about = {}
    for cell, scores in cells.items():
        word = cell.attack if cell.queries == 1 else f"{cell.attack}, {cell.queries} queries"
        groups.setdefault(cell.label, {})[word] = scores
        about.setdefault(cell.label, cell)
    rows = []
    for name, attacks in groups.items():
        table = summary(attacks, fpr, draws=draws, seed=seed)
        top, best = table.loc["max"], table[table.index != "max"]["auc"].astype(float).idxmax()
        one = attacks[best]
        row = {
            "name": name,
            "defense": about[name].defense,
            "output": about[name].output,
            "attack": best,
            "attacks": len(attacks),
        }
        for fact, values in (
            ("test_acc", one.accuracy[:, 1]),
            ("gap", -np.diff(one.accuracy)[:, 0]),
        ):
            low, high = np.clip(interval(values, one.pair), -1 if fact == "gap" else 0, 1)
            row |= {
                fact: float(values.mean()),
                f"{fact}_low": float(low),
                f"{fact}_high": float(high),
            }
        row |= {
            column: top[column]
            for column in table
            if column.split("_")[0] == "auc" and column[-3:] not in ("min", "max")
        }
        row |= {column: top[column] for column in table if column.startswith("tpr@")}
        row |= {
            "queries": table.loc[best, "queries"],
            "n1": int(table["n1"].min()),
            "n0": int(table["n0"].min()),
        }
        rows.append(row | {"targets": len(one.value), "pairs": len(np.unique(one.pair))})
    return pd.DataFrame(rows)


@checked
def defense_against_papers(
    cells: dict[DefenseCell, Scores],
    *,
    stands_for: str | None = "cifar10",
    ours: str = "",
    draws: int = RESAMPLES,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per number of Table XI (defenses, LiRA) of Hong, Wu, Gruber and Lee (arXiv 2501.06686), ours beside it.

    stands_for, ours: as in `flow_against_papers`; the table is of CIFAR-10. Columns: paper, table, dataset, printed (label),
    defense (in our words), attack, metric, published, ours, low, high, measurable, n0, note. Metrics: train_accuracy,
    test_accuracy, generalization_gap (Student's t over pairs), tpr@0.001, tpr@0.01, auc, accuracy (the attack's, at its best
    threshold). Ours is placed by model, defense and sigma; cells with a variant nowhere. Where several settings of a defense
    were run, the one with the printed options, then the first; the note says which.
    Raises ValueError for cells that cannot be or have no target.
    Caveats, in the notes: MemGuard's TPR of 0 is an effect of ties, not of protection; how DP-SGD was tuned is not printed.
    """
    cells = defense_checked(cells)
    place = f"ours is {ours}" if ours else f"ours stands for {stands_for or 'nothing'}"
    measured: dict[DefenseCell, dict] = {}
    rows = []
    for record in (r for r in records() if r["paper"] == PAPER and r["table"] == "XI"):
        here, wanted = record["dataset"] == stands_for, printed_defense(record)
        cell = _find(cells, wanted, PRINTED_ATTACKS.get(record["attack"], ())) if here else None
        if cell is not None and cell not in measured:
            measured[cell] = measure(cells[cell], draws, seed)
        notes = [
            *_oddities(record, wanted),
            *(["not run"] if cell is None else _differences(wanted, cell, record)),
        ]
        notes += [_tied(cells[cell], record["metric"]), measured[cell]["few"]] if cell else []
        notes += [place if cell or not here else ""]
        row = {name: record[name] for name in ("paper", "table", "dataset")} | {
            "printed": record["setting"]["label"]
        }
        row |= {
            "defense": wanted.label,
            "attack": wanted.attack,
            "metric": record["metric"],
            "published": record["value"],
        }
        rows.append(
            row
            | beside(record["metric"], measured.get(cell))
            | {"note": "; ".join(filter(None, notes))}
        )
    return pd.DataFrame(rows)


def printed_defense(record: dict) -> DefenseCell:
    """The defended network of a record of Table XI in our words; attack "" for what no attack has."""
    model, setting = PRINTED_MODELS[record["model"]], record["setting"]
    training, output, _ = PRINTED_DEFENSES[setting.get("defense")]
    sigma = setting.get("sigma", 0.0)
    return DefenseCell(
        model, training, output, sigma, sigma, PRINTED_ATTACKS.get(record["attack"], ("",))[0]
    )  # T is 1


def _find(cells: dict, wanted: DefenseCell, attacks: tuple[str, ...]) -> DefenseCell | None:
    """Our cell for a printed one, any attack where the number is no attack's; an sdenet without noise is an odenet."""
    models = [wanted.model, *(["odenet"] if wanted.model == "sdenet" and not wanted.sigma else [])]
    found = [
        cell
        for cell in cells
        if cell.model in models and (cell.defense, cell.output) == (wanted.defense, wanted.output) and not cell.variant
        and abs(cell.sigma - wanted.sigma) < NEAR and bool(cell.sigma) == bool(wanted.sigma)
        and (cell.attack in attacks or not attacks)
    ]  # fmt: skip

    def order(cell: DefenseCell) -> tuple:
        attack = attacks.index(cell.attack) if attacks else 0
        return models.index(cell.model), bool(cell.setting), cell.queries, attack

    return min(found, key=order, default=None)


def _oddities(record: dict, wanted: DefenseCell) -> list[str]:
    """What is strange or open about a printed number."""
    notes = [f"print: {record['note']}"] if "note" in record else []
    if wanted.output == "memguard" and record["metric"].startswith("tpr@"):
        notes.append("print: 0 by ties, as the answer has two levels, and not by a lack of signal")
    by_label = (1 + _printed_gap(record["setting"])) / 2
    if record["metric"] == "accuracy" and record["value"] < by_label:
        notes.append(f"print: below {by_label:.3f} = (1 + gap) / 2, which the label alone gives")
    if wanted.defense == "dp_sgd":
        notes.append(
            f"print: target epsilon {record['setting']['epsilon']:g}, no delta, accountant or tuning beside it"
        )
    return notes


def _printed_gap(setting: dict) -> float:
    """The gap that Table XI prints for the same network."""
    rows = (
        r
        for r in records()
        if r["paper"] == PAPER and r["table"] == "XI" and r["metric"] == "generalization_gap"
    )
    return next(r["value"] for r in rows if r["setting"] == setting)


def _differences(wanted: DefenseCell, cell: DefenseCell, record: dict) -> list[str]:
    """How our cell is not the printed one, and what the print leaves open."""
    return [
        f"ours is {cell.label}" if cell.setting or cell.model != wanted.model else "",
        f"noise_sd {cell.noise_sd:g}" if abs(cell.noise_sd - wanted.noise_sd) >= NEAR else "",
        f"queries per model not printed, ours: {cell.queries}" if cell.sigma else "",
        f"form of LiRA not printed, ours: {cell.attack}" if record["attack"] == "lira" else "",
    ]


def tied_floor(scores: Scores) -> float:
    """The largest over targets of the smallest FPR above 0 that the scores can realise; below it a TPR is the ties' doing."""
    floors = []
    for row in range(len(scores.value)):
        _, fp, _ = counts(*scored(scores, row))
        floors.append(fp[fp > 0][0] / fp[-1])
    return float(max(floors))


def _tied(scores: Scores, metric: str) -> str:
    if not metric.startswith("tpr@"):
        return ""
    floor, x = tied_floor(scores), float(metric.removeprefix("tpr@"))
    single = 1 / min(int((~scored(scores, row)[1]).sum()) for row in range(len(scores.value)))
    return f"ours: ties, no FPR below {floor:.2g}" if floor > max(x, single + 1e-12) else ""


@checked
def cost_against_papers(cost: pd.DataFrame, *, baseline: str = "resnet14") -> pd.DataFrame:
    """Time per epoch and memory of Table VI of Hong, Wu, Gruber and Lee (arXiv 2501.06686), ours beside it, as ratios.

    cost: a row per network with columns family (resnet14, odenet, sdenet, replaced, or the names printed for them in tables:
    "ResNet-14", "SDENet sigma=2"), seconds (of an epoch), memory_mib and where measured _low and _high of both.
    Columns: paper, table, model, printed (label), metric, published, unit, published_ratio (to ResNet-14), ours, ours_unit,
    ratio, ratio_low, ratio_high (ends over the baseline's opposite ends, so at least as wide as their level), note.
    Raises ValueError for missing columns, a family that comes twice, values that are not positive, or no baseline.
    Caveat: seconds and megabytes are of one machine, batch size and implementation; only ratios can be compared.
    """
    lacks = [name for name in ("family", *COSTS.values()) if name not in cost.columns]
    if lacks:
        raise ValueError(
            f"cost has columns {list(cost.columns)}; {', '.join(lacks)} missing: wanted family, seconds, memory_mib"
        )
    own = cost.assign(model=[_model_of(str(family)) for family in cost["family"]])
    own = own[own["model"].notna()].set_index("model")
    if own.index.duplicated().any():
        raise ValueError(
            f"{', '.join(own.index[own.index.duplicated()])} comes twice in cost: one row per network"
        )
    if baseline not in own.index:
        raise ValueError(
            f"cost has {', '.join(map(str, cost['family']))}; {baseline} missing: ratios are to it"
        )
    if not (own[list(COSTS.values())].astype(float) > 0).all(axis=None):
        raise ValueError(
            "cost has values that are not positive: measure them, or leave the network out"
        )
    printed = [r for r in records() if r["paper"] == PAPER and r["table"] == "VI"]
    first = {r["metric"]: r["value"] for r in printed if PRINTED_MODELS[r["model"]] == baseline}
    rows = []
    for record in printed:
        model, metric, column = (
            PRINTED_MODELS[record["model"]],
            record["metric"],
            COSTS[record["metric"]],
        )
        row = {
            "paper": PAPER,
            "table": "VI",
            "model": model,
            "printed": record["setting"]["label"],
            "metric": metric,
        }
        row |= {
            "published": record["value"],
            "unit": record["unit"],
            "published_ratio": record["value"] / first[metric],
        }
        value, low, high = (
            _ratio(own, model, baseline, column) if model in own.index else (np.nan,) * 3
        )
        row |= {
            "ours": float(own.loc[model, column]) if model in own.index else np.nan,
            "ours_unit": OURS_UNIT[column],
        }
        notes = [
            f"print: {record['note']}" if "note" in record else "",
            "" if model in own.index else "not run",
        ]
        rows.append(
            row
            | {
                "ratio": value,
                "ratio_low": low,
                "ratio_high": high,
                "note": "; ".join(filter(None, notes)),
            }
        )
    return pd.DataFrame(rows)


def _model_of(family: str) -> str | None:
    """Our word for a network that Table VI has, by its key or its name; None for another."""
    name = family.split(" sigma=")[0]
    return next((key for key in PRINTED_MODELS.values() if name in (key, NAMES[key])), None)


def _ratio(own: pd.DataFrame, model: str, baseline: str, column: str) -> tuple[float, float, float]:
    here, there = own.loc[model], own.loc[baseline]
    ends = (f"{column}_low", f"{column}_high")
    if model == baseline:
        return 1.0, 1.0, 1.0
    if not set(ends) <= set(own.columns):
        return here[column] / there[column], np.nan, np.nan
    return (
        here[column] / there[column],
        here[ends[0]] / there[ends[1]],
        here[ends[1]] / there[ends[0]],
    )
