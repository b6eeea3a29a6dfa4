"""What the papers printed, and ours beside it."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from mia_nb.arguments import Anything, Count
from mia_nb.checks import checked
from mia_nb.metrics.curve import measurable
from mia_nb.metrics.tables import accuracies, intervals
from mia_nb.metrics.uncertainty import (
    RESAMPLES,
    smallest,
    tied_floor,
)
from mia_nb.studies.engine import load, one_pair
from mia_nb.studies.figure4 import figure4_beside
from mia_nb.studies.setting import ALIGNED, NAMES, NOISY, RESNET_BLOCKS, Setting, usable
from mia_nb.types import Scores

PACKAGE = Path(__file__).resolve().parents[1]
PLACES = (PACKAGE / "published", PACKAGE.parent / "data")  # an installed package's, a checkout's
FPR = (0.001, 0.01)  # the only two that the papers print
PRINTED_MODELS = {
    "resnet14": "resnet14",
    "odenet-16-32-64": "odenet",
    "odenet-64": "odenet64",
    "anode-64": "anode",
    "sonode-64": "sonode",
    "hbnode-64": "hbnode",
    "sdenet-16-32-64": "sdenet",
    "resnet14+sdenet": "replaced",
}
PRINTED_ATTACKS = {  # the first names it where several are one
    "attack-p": ("attack_p",),
    "attack-r": ("attack_r", "attack_r_lattice"),
    "rmia": ("rmia",),
    "yeom": ("loss",),
    "shokri": ("shokri",),
    "song-mittal": ("song_mittal",),
    "watson": ("watson",),
    "lira": ("lira_global", "lira_per_sample"),
}
LIKE_WITH_LIKE = {
    "attack-r": ("attack_r_lattice", "attack_r")
}  # which stands beside the print first
PRINTED_DEFENSES = {  # in training, of the output
    "memguard": ("", "memguard"),
    "mmd-mixup": ("mmd_mixup", ""),
    "l2": ("l2", ""),
    "l1": ("l1", ""),
    "dp-sgd": ("dp_sgd", ""),
    None: ("", ""),
}
# what was rounded
PRINTED_K = {0.71: math.sqrt(0.5), 0.35: math.sqrt(0.125), 0.18: math.sqrt(0.03125), 0.13: 0.125}
PRINTED_SCHEME = "stochastic RK4"
OF_PRINTED_SCHEME = ("stoch_rk4", "rk4")  # without noise these are one
NEAR = 0.055  # printed sigmas have one decimal
EQUATION = ("model", "blocks", "method", "augment", "k", "steps", "T", "sigma", "noise_sd")
PRINTED_ACCURACY = {
    "train": "train_accuracy",
    "test": "test_accuracy",
    "gap": "generalization_gap",
}
TITLES = {"auc": "AUC", "accuracy": "attack accuracy"}
# printed metric: our column and its unit
COSTS = {"time_per_epoch": ("seconds", "seconds"), "memory": ("memory_mib", "MiB")}
BASELINE = "resnet14"  # that costs are ratios to


@cache
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
    """Every number that the papers printed: paper, table, dataset, model, setting, attack, metric,
    value, unit, maybe notes on what is odd in print.

    Papers: snn-uai2025 (Guan et al., tables 2 to 6), snn-workshop2025 (F.1 to F.4), nsde2025 (I to
    XII). Fractions, not percent. Caveat: one target, one seed, no intervals; orderings to compare
    with, not values to reproduce.
    """
    return [
        dict(r) for r in records() if paper in (None, r["paper"]) and table in (None, r["table"])
    ]


def printed_setting(record: dict) -> Setting:
    """A record's setting in our words, with the k whose rounding was printed; attack "" for what no
    attack has.
    """
    printed = record["setting"]
    attack = PRINTED_ATTACKS.get(record["attack"], ("",))[0]
    if record["model"] not in PRINTED_MODELS:
        family = record["model"].split("-")[0]
        references = printed.get("references", family)
        return Setting(
            family,
            training=printed.get("training", ""),
            timesteps=printed.get("T", 0),
            input_dropout=printed.get("input_dropout", False),
            references="own" if references == family else references,
            attack=attack,
        )
    model = PRINTED_MODELS[record["model"]]
    defense, output = PRINTED_DEFENSES[printed.get("defense")]
    sigma = printed.get("sigma", 2.0 if model == "replaced" else 0.0)
    steps = printed.get("s", 16)
    T = printed.get("T", 1.0)
    k = (
        PRINTED_K.get(printed["k"], printed["k"])
        if "s" in printed
        else sigma * math.sqrt(T / steps)
    )
    scheme = "stoch_rk4" if model in NOISY and record["table"] != "XI" else "euler"
    return Setting(
        model,
        blocks=printed.get("blocks", RESNET_BLOCKS if model == "resnet14" else 1),
        method=printed.get("solver", scheme),
        augment=printed.get("augment", 0),
        k=k,
        steps=steps,
        T=T,
        defense=defense,
        output=output,
        attack=attack,
    )


def against_papers(study: str, settings=None, **options) -> pd.DataFrame:
    """One row per number, or statement, that a paper printed, ours and its interval beside it.

    Parameters:
        study: "snn" (Guan et al. 2025, tables 2 to 6, on demand F.1 to F.4), "nsde" (Hong, Wu,
            Gruber and Lee, arXiv 2501.06686, all tables but VI and XI) or "privacy" (their Table
            XI, defenses), "costs" (their Table VI, as ratios), "figure4" (what the text beside
            their Figure 4 states of accounting).
        settings: the scores of each `Setting`. Of "costs" a table, a row per network, with columns
            family (resnet14, odenet, sdenet, replaced, or the names printed for them in tables:
            "ResNet-14", "SDENet sigma=2"), seconds (of an epoch), memory_mib and where measured
            _low and _high of both. Of "figure4" none.
        stands_for: the printed data set, with its model in the spiking study, whose rows ours is
            placed in; "" is the study's own, CIFAR-10 (and ResNet18); None places it nowhere.
        ours: what ours really is, say "digits, tinycnn", for the note; "" says what it stands for.
        tables: a part of the study's tables; None for all but those on demand.
        n_resamples: resamples behind an interval.
        seed: of the resamples.
        sigma, samples, batch, epochs, delta, deltas: of "figure4", as in `accounting.over_epochs`;
            by default 2.0, 25,000, 512, 300, 1e-5, (1e-2, 1e-3, 1e-4, 1e-5, 1e-6).

    Returns:
        columns paper, table, dataset, what the print calls the setting (spiking: model, training,
        timesteps (0 = ANN), input_dropout, references; others: printed, setting), attack, metric,
        published, ours, low, high (as in `intervals`; accuracies and generalization gap: Student's
        t over pairs), measurable, n0, note, and of neural ODEs and SDEs the printed equation.
        "accuracy" is the attack's, at its best threshold. Of "costs" columns paper, table, model,
        printed (label), metric, published, unit, published_ratio (to ResNet-14), ours, ours_unit,
        ratio, ratio_low, ratio_high (ends over the baseline's opposite ends, so at least as wide as
        their level), note. Of "figure4" columns statement, printed, ours, agrees, note.

    Raises:
        ValueError: for a table that has no place here, for settings that cannot be, for one without
            a target; for costs that lack columns, name a family twice, are not positive or lack
            ResNet-14; and as `accounting.over_epochs` does.

    Caveat: the notes say how far ours is the printed setting. It is placed by model, blocks,
    channels, solver, and for stochastic models sigma, steps and T (Table XI: model, defense and
    sigma alone), with noise on and the fewest queries, whose number is not printed; neither are
    the steps of the ODENets, which form of LiRA was run, and how DP-SGD was tuned. SDENets are
    placed whatever their scheme, those of the printed one first, settings with a variant or with
    aligned references nowhere.
    The printed Attack-R counts references (4, so five levels), hence its zeros at low FPR; where
    "attack_r_lattice" was run, which counts them too, it stands beside it, else our "attack_r".
    MemGuard's TPR of 0 is an effect of ties. Seconds and megabytes are of one machine, batch
    size and implementation; only ratios can be compared. Epsilons of Figure 4 are nominal
    (paper's accounting: sigma as DP-SGD's noise multiplier, for one record added or removed),
    and its batch size, samples and sampling of GDP are not printed.
    """
    others = {"costs": costs_beside, "figure4": figure4_beside}
    if study in others:
        return others[study](settings, **options)
    return tables_beside(study, settings, **options)


@checked
def tables_beside(
    study: str,
    settings: dict[Setting, Scores],
    *,
    stands_for: str | tuple[str, str] | None = "",
    ours: str = "",
    tables: Anything | None = None,
    n_resamples: Count = RESAMPLES,
    seed: Count = 0,
) -> pd.DataFrame:
    """Printed tables with ours beside them, see `against_papers`."""
    rules = load(study)
    printed = rules.printed
    known = [*printed["tables"], *printed.get("on_demand", ())]
    tables = printed["tables"] if tables is None else tables
    if strange := sorted(set(tables) - set(known)):
        raise ValueError(
            f"table {', '.join(strange)} has no place here: wanted some of {', '.join(known)}"
        )
    stands_for = printed["stands_for"] if stands_for == "" else stands_for
    block = [stands_for] if isinstance(stands_for, str) else list(stands_for or ["nothing"])
    place = f"ours is {ours}" if ours else f"ours stands for {', '.join(block)}"
    settings = {
        setting: scores
        for setting, scores in usable(settings, rules.models).items()
        if not setting.variant and setting.references != ALIGNED
    }

    @cache
    def measured(setting: Setting) -> dict:
        return measure(settings[setting], n_resamples, seed)

    rows = []
    for record in records():
        if record["paper"] not in printed["papers"] or record["table"] not in tables:
            continue
        here = block == [record["dataset"], record["model"].split("-")[-1]][: len(block)]
        wanted = printed_setting(record)
        setting = _placed(settings, wanted, record) if here else None
        notes = [f"print: {note}" for note in record.get("notes", ())]
        if setting is None:
            notes += ["not run", "" if here else place]
        else:
            tied = _tied(settings[setting], record["metric"]) if record["table"] == "XI" else ""
            notes += [*_differences(setting, wanted, record), tied, measured(setting)["few"], place]
        rows.append(
            {name: record[name] for name in ("paper", "table", "dataset")}
            | _identity(record, wanted, printed.get("columns"))
            | {"metric": record["metric"], "published": record["value"]}
            | _beside(record["metric"], measured(setting) if setting else None)
            | {"note": "; ".join(filter(None, notes))}
            | ({} if "columns" in printed else {name: getattr(wanted, name) for name in EQUATION})
        )
    return pd.DataFrame(rows)


def _identity(record: dict, wanted: Setting, columns: list[str] | None) -> dict:
    """What names a printed number's setting."""
    if columns:
        columns_of_setting = {name: getattr(wanted, name) for name in columns}
        return (
            {"model": record["model"]}
            | columns_of_setting
            | ({} if wanted.attack else {"references": ""})
        )
    about = record["setting"]
    row = f"row {about['row']}, {about['impact']}" if "row" in about else about["label"]
    return {"printed": row, "setting": wanted.label, "attack": wanted.attack}


def _placed(settings: dict, wanted: Setting, record: dict) -> Setting | None:
    """Our setting for a printed one, any attack where the number is no attack's."""
    attacks = PRINTED_ATTACKS.get(record["attack"], ())
    attacks = LIKE_WITH_LIKE.get(record["attack"], attacks)
    candidates = [
        setting
        for setting in settings
        if (setting.attack in attacks or not attacks) and stands_for(setting, wanted, record)
    ]

    def order(setting: Setting) -> tuple:
        attack = attacks.index(setting.attack) if attacks else 0
        other_scheme = wanted.method == "stoch_rk4" and setting.method not in OF_PRINTED_SCHEME
        apart = _apart(setting, wanted, record)
        return setting.model != wanted.model, *apart, other_scheme, setting.queries, attack

    return min(candidates, key=order, default=None)


def stands_for(setting: Setting, wanted: Setting, record: dict) -> bool:
    """Whether our network is a printed one; an sdenet without noise is an odenet."""
    quiet = {"odenet", "sdenet"} if not wanted.k else set()
    models = quiet if wanted.model in quiet else {wanted.model}
    names = ["defense", "output", "training", "timesteps", "input_dropout"]
    names += ["references"] if wanted.attack else []
    if setting.model not in models or not _equal(setting, wanted, names):
        return False
    if wanted.model not in PRINTED_MODELS.values() or wanted.model == "resnet14":
        return True
    near = bool(setting.k) == bool(wanted.k) and abs(setting.sigma - wanted.sigma) < NEAR
    if not (near and setting.noise and setting.noise_train):
        return False
    solver = "steps" if wanted.model in NOISY else "method"
    return record["table"] == "XI" or _equal(setting, wanted, ["blocks", "augment", "T", solver])


def _equal(setting: Setting, wanted: Setting, names: list[str]) -> bool:
    return all(getattr(setting, name) == getattr(wanted, name) for name in names)


def _apart(setting: Setting, wanted: Setting, record: dict) -> tuple:
    """What of our network is not as printed, as far as the table leaves it open."""
    if record["table"] == "XI":  # more than a name, sigma and the defense
        return (", " in setting._replace(defense="", output="").label,)
    return setting.blocks != wanted.blocks, setting.steps != wanted.steps


def _differences(setting: Setting, wanted: Setting, record: dict) -> list[str]:
    """How our setting is not the printed one, and what the print leaves open."""
    differs = setting.model != wanted.model or any(_apart(setting, wanted, record))
    noisy = wanted.model in NOISY and record["table"] != "XI"
    return [
        "printed in five levels, ours is continuous" if setting.attack == "attack_r" else "",
        f"ours is {setting.label}" if differs else "",
        f"noise_sd {setting.noise_sd:g}" if abs(setting.noise_sd - wanted.noise_sd) >= NEAR else "",
        f"print: {PRINTED_SCHEME}, ours: {setting.method}" if noisy else "",
        f"queries per model not printed, ours: {setting.queries}" if setting.k else "",
        f"form of LiRA not printed, ours: {setting.attack}" if record["attack"] == "lira" else "",
    ]


def measure(scores: Scores, n_resamples: int, seed: int) -> dict:
    """{metric: (value, low, high)} under the printed names, the fewest non-members n0 of a target,
    and the caveat few targets.

    Accuracies and the generalization gap with Student's t over pairs; "accuracy" is the attack's
    own at its best threshold, (1 + advantage) / 2, which chance alone lifts above 1/2.
    """
    ends = intervals(scores, FPR, n_resamples=n_resamples, seed=seed)
    warning = f"{len(scores.value)} targets: training randomness not covered"
    return {
        **{name: tuple(row) for name, row in ends.drop("advantage").iterrows()},
        "accuracy": tuple((1 + end) / 2 for end in ends.loc["advantage"]),
        **{PRINTED_ACCURACY[name]: tuple(row) for name, row in accuracies(scores).iterrows()},
        "n0": smallest(scores)[1],
        "few": warning if one_pair(scores) else "",
    }


def _beside(metric: str, measured: dict | None) -> dict:
    """ours, low, high, measurable and n0 of one metric from `measure`; None: it was not run."""
    if measured is None:
        return dict.fromkeys(("ours", "low", "high"), np.nan) | {"measurable": False, "n0": 0}
    row = dict(zip(("ours", "low", "high"), map(float, measured[metric]), strict=True))
    return row | {"measurable": measurable(metric, measured["n0"]), "n0": measured["n0"]}


def _tied(scores: Scores, metric: str) -> str:
    if not metric.startswith("tpr@"):
        return ""
    floor = tied_floor(scores)
    x = float(metric.removeprefix("tpr@"))
    single = 1 / smallest(scores)[1]
    return f"ours: ties, no FPR below {floor:.2g}" if floor > max(x, single + 1e-12) else ""


@checked
def against_papers_readable(table: pd.DataFrame) -> pd.DataFrame:
    """`against_papers` of a study as text, a row per setting and attack.

    Parameters:
        table: what `against_papers` gives for "snn", "nsde" or "privacy", or some of its rows.

    Returns:
        A column for each word of the setting, and one for each metric, published first: "0.5458 |
        0.561 [0.550, 0.571]"; "not run" where ours has no such setting; "n/m (n0 = 700)" where the
        FPR is too low for so few non-members.
    """
    setting = list(table.columns[1 : table.columns.get_loc("metric")])
    rows: dict[tuple, dict] = {}
    for _, row in table.iterrows():
        title = row["metric"].replace("tpr@", "TPR at FPR ").replace("_", " ")
        texts = rows.setdefault(tuple(row[setting]), dict(row[setting]))
        texts[TITLES.get(title, title)] = f"{row['published']:.4f} | {_ours(row)}"
    return pd.DataFrame(rows.values()).fillna("")


def _ours(row: dict) -> str:
    if np.isnan(row["ours"]):
        return "not run"
    if not row["measurable"]:
        return f"n/m (n0 = {row['n0']})"
    return "{ours:.{places}f} [{low:.{places}f}, {high:.{places}f}]".format(
        **row, places=4 if row["metric"].startswith("tpr@") else 3
    )


@checked
def costs_beside(cost: pd.DataFrame) -> pd.DataFrame:
    """Table VI with ours beside it, see `against_papers`."""
    ours = _costs(cost)
    printed = paper_results("nsde2025", "VI")
    of_baseline = {
        record["metric"]: record["value"]
        for record in printed
        if PRINTED_MODELS[record["model"]] == BASELINE
    }
    rows = []
    for record in printed:
        model = PRINTED_MODELS[record["model"]]
        metric = record["metric"]
        column, unit = COSTS[metric]
        value, low, high = ours.loc[model, [column, f"{column}_low", f"{column}_high"]]
        base, base_low, base_high = ours.loc[BASELINE, [column, f"{column}_low", f"{column}_high"]]
        ratios = (value / base, low / base_high, high / base_low)
        if model == BASELINE:
            ratios = (1.0, 1.0, 1.0)
        notes = [f"print: {note}" for note in record.get("notes", ())]
        if np.isnan(value):
            notes.append("not run")
        rows.append(
            {
                "paper": record["paper"],
                "table": record["table"],
                "model": model,
                "printed": record["setting"]["label"],
                "metric": metric,
                "published": record["value"],
                "unit": record["unit"],
                "published_ratio": record["value"] / of_baseline[metric],
                "ours": value,
                "ours_unit": unit,
                "ratio": ratios[0],
                "ratio_low": ratios[1],
                "ratio_high": ratios[2],
                "note": "; ".join(notes),
            }
        )
    return pd.DataFrame(rows)


def _costs(cost: pd.DataFrame) -> pd.DataFrame:
    """The costs of networks by our names of them, NaN where not run; ValueError for what cannot be
    compared.
    """
    columns = [column for column, _ in COSTS.values()]
    if lacks := [name for name in ("family", *columns) if name not in cost.columns]:
        raise ValueError(
            f"cost has columns {list(cost.columns)}; {', '.join(lacks)} missing: wanted family,"
            " seconds, memory_mib"
        )
    keys = {name: key for key, name in NAMES.items()} | {key: key for key in NAMES}
    models = cost["family"].astype(str).str.partition(" sigma=")[0].map(keys)
    by_model = cost.assign(model=models)[models.notna()].set_index("model")
    twice = ", ".join(by_model.index[by_model.index.duplicated()])
    families = ", ".join(map(str, cost["family"]))
    if twice:
        raise ValueError(f"{twice} comes twice in cost: one row per network")
    if BASELINE not in by_model.index:
        raise ValueError(f"cost has {families}; {BASELINE} missing: ratios are to it")
    if not (by_model[columns].astype(float) > 0).all(axis=None):
        raise ValueError(
            "cost has values that are not positive: measure them, or leave the network out"
        )
    ends = [f"{name}{end}" for name in columns for end in ("", "_low", "_high")]
    return by_model.reindex(index=list(NAMES), columns=ends).astype(float)
