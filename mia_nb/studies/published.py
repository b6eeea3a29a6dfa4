"""The numbers that the papers printed, with ours beside them."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from mia_nb.arguments import Anything, Count
from mia_nb.checks import checked
from mia_nb.metrics.accuracy import accuracies
from mia_nb.metrics.bootstrap import RESAMPLES
from mia_nb.metrics.curve import measurable
from mia_nb.metrics.targets import smallest, tied_floor
from mia_nb.metrics.uncertainty import intervals
from mia_nb.studies.compare import one_pair, rate_of
from mia_nb.studies.engine import load
from mia_nb.studies.figure4 import figure4_beside
from mia_nb.studies.setting import ALIGNED, NOISY, RESNET_BLOCKS, Setting, usable
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
PRINTED_ATTACKS = {  # where one printed name covers several attacks, the first names it
    "attack-p": ("attack_p",),
    "attack-r": ("attack_r", "attack_r_lattice"),
    "rmia": ("rmia",),
    "yeom": ("loss",),
    "shokri": ("shokri",),
    "song-mittal": ("song_mittal",),
    "watson": ("watson",),
    "lira": ("lira_global", "lira_per_sample"),
}
# our attack that stands beside a printed one, the first of these that was run
LIKE_WITH_LIKE = {"attack-r": ("attack_r_lattice", "attack_r")}
PRINTED_DEFENSES = {  # (defense in training, defense of the output)
    "memguard": ("", "memguard"),
    "mmd-mixup": ("mmd_mixup", ""),
    "l2": ("l2", ""),
    "l1": ("l1", ""),
    "dp-sgd": ("dp_sgd", ""),
    None: ("", ""),
}
# {printed: the k that was rounded to it}
PRINTED_K = {0.71: math.sqrt(0.5), 0.35: math.sqrt(0.125), 0.18: math.sqrt(0.03125), 0.13: 0.125}
OF_DEFENSES = "XI"  # a table that prints model, defense and sigma alone
PRINTED_SCHEME = "stochastic RK4"
OF_PRINTED_SCHEME = ("stoch_rk4", "rk4")  # without noise these are one
NEAR = 0.055  # printed sigmas have one decimal
EQUATION = ("model", "blocks", "method", "augment", "k", "steps", "T", "sigma", "noise_sd")
PRINTED_ACCURACY = {
    "train": "train_accuracy",
    "test": "test_accuracy",
    "gap": "generalization_gap",
}  # our name: the printed one
TITLES = {"auc": "AUC", "accuracy": "attack accuracy"}
COSTS = {"time_per_epoch": "seconds", "memory": "memory_mib"}  # printed metric: our column
BASELINE = "resnet14"  # costs are ratios to its costs


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
    """A record's setting in our words, with k before it was rounded for print; attack "" where the
    number is not about an attack.
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
    steps = printed.get("s", 16)
    T = printed.get("T", 1.0)
    if "s" in printed:
        k = PRINTED_K.get(printed["k"], printed["k"])
    else:
        sigma = printed.get("sigma", 2.0 if model == "replaced" else 0.0)
        k = sigma * math.sqrt(T / steps)
    scheme = "euler"
    if model in NOISY and record["table"] != OF_DEFENSES:
        scheme = "stoch_rk4"
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


@cache
def printed_records(study: str, judged: bool = False) -> list[tuple[Setting, dict]]:
    """(setting, record) of every number in a study's tables, those on demand included; judged: also
    in the tables that only the verdict on print uses.
    """
    printed = load(study).printed
    tables = [*printed["tables"], *printed.get("on_demand", ())]
    if judged:
        tables += printed.get("judged", ())
    return [
        (printed_setting(record), record)
        for record in records()
        if record["paper"] in printed["papers"] and record["table"] in tables
    ]


def against_papers(study: str, settings=None, **options) -> pd.DataFrame:
    """One row per number, or statement, that a paper printed, ours and its interval beside it.

    Parameters:
        study: "snn" (Guan et al. 2025, tables 2 to 6, on demand F.1 to F.4), "nsde" (Hong, Wu,
            Gruber and Lee, arXiv 2501.06686, all tables but VI and XI) or "privacy" (their Table
            XI, defenses), "costs" (their Table VI, as ratios), "figure4" (what the text beside
            their Figure 4 states of accounting).
        settings: the scores of each `Setting`. Of "costs" a table, a row per network, with columns
            family (resnet14, odenet, sdenet, replaced), seconds (of an epoch) and memory_mib. Of
            "figure4" none.
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
        "accuracy" is the attack's, at its best threshold. Of "costs" columns model, printed
        (label), metric, published, unit, ours, note, published_ratio and ratio (to ResNet-14). Of
        "figure4" columns statement, printed, ours, agrees, note.

    Raises:
        ValueError: for a table that has no place here, for settings that cannot be, for one without
            a target; for costs that lack columns or ResNet-14 or name a family twice; and
            as `accounting.over_epochs` does.

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
    print_rules = rules.printed
    known = [*print_rules["tables"], *print_rules.get("on_demand", ())]
    if tables is None:
        tables = print_rules["tables"]
    if strange := sorted(set(tables) - set(known)):
        raise ValueError(
            f"table {', '.join(strange)} has no place here: wanted some of {', '.join(known)}"
        )
    if stands_for == "":
        stands_for = print_rules["stands_for"]
    # the printed data set, in the spiking study with its model
    block = [stands_for] if isinstance(stands_for, str) else list(stands_for or ["nothing"])
    data_note = f"ours is {ours}" if ours else f"ours stands for {', '.join(block)}"
    settings = {
        setting: scores
        for setting, scores in usable(settings, rules.models).items()
        if not setting.variant and setting.references != ALIGNED
    }

    @cache
    def measured(setting: Setting) -> tuple[pd.DataFrame, int]:
        """Each metric of a setting with its interval, and the smallest number of non-members."""
        scores = settings[setting]
        return _measure(scores, n_resamples, seed), smallest(scores)[1]

    rows = []
    for printed, record in printed_records(study):
        if record["table"] not in tables:
            continue
        record_block = [record["dataset"], record["model"].split("-")[-1]][: len(block)]
        in_block = record_block == block
        setting = _closest_setting(settings, printed, record) if in_block else None
        notes = [f"print: {note}" for note in record.get("notes", ())]
        if setting is None:
            numbers = {"ours": np.nan, "low": np.nan, "high": np.nan, "measurable": False, "n0": 0}
            notes.append("not run")
            if not in_block:
                notes.append(data_note)
        else:
            ends, n0 = measured(setting)
            numbers = ends.loc[record["metric"]].rename({"value": "ours"}).to_dict()
            numbers |= {"measurable": measurable(record["metric"], n0), "n0": n0}
            notes += _differences(setting, printed, record, settings[setting])
            notes.append(data_note)
        row = {name: record[name] for name in ("paper", "table", "dataset")}
        row |= _setting_columns(record, printed, print_rules.get("columns"))
        row |= {"metric": record["metric"], "published": record["value"], **numbers}
        row["note"] = "; ".join(notes)
        if "columns" not in print_rules:
            row |= {name: getattr(printed, name) for name in EQUATION}
        rows.append(row)
    return pd.DataFrame(rows)


def _setting_columns(record: dict, printed: Setting, columns: list[str] | None) -> dict:
    """The columns that name the setting of a printed number: model and these columns, or for None
    the printed label, our label and the attack.
    """
    if columns:
        values = {name: getattr(printed, name) for name in columns}
        if not printed.attack:
            values["references"] = ""
        return {"model": record["model"], **values}
    words = record["setting"]
    label = f"row {words['row']}, {words['impact']}" if "row" in words else words["label"]
    return {"printed": label, "setting": printed.label, "attack": printed.attack}


def _closest_setting(settings: dict, printed: Setting, record: dict) -> Setting | None:
    """The one of our settings that is closest to a printed one, None where none stands for it.

    Its attack may be any where the number is not about an attack.
    """
    attacks = PRINTED_ATTACKS.get(record["attack"], ())
    attacks = LIKE_WITH_LIKE.get(record["attack"], attacks)
    table = record["table"]
    candidates = []
    for setting in settings:
        has_attack = not attacks or setting.attack in attacks
        if has_attack and stands_for(setting, printed, table):
            candidates.append(setting)

    def distance(setting: Setting) -> tuple:
        """What decides between candidates, the most important first; the smallest is closest."""
        other_scheme = printed.method == "stoch_rk4" and setting.method not in OF_PRINTED_SCHEME
        return (
            setting.model != printed.model,
            *_departures(setting, printed, table),
            other_scheme,
            setting.queries,
            attacks.index(setting.attack) if attacks else 0,
        )

    return min(candidates, key=distance, default=None)


def stands_for(setting: Setting, printed: Setting, table: str) -> bool:
    """Whether our setting stands for a printed one of this table.

    An SDENet without noise stands for an ODENet.
    """
    noiseless = ("odenet", "sdenet")
    both_noiseless = setting.model in noiseless and printed.model in noiseless and not printed.k
    if setting.model != printed.model and not both_noiseless:
        return False
    names = ["defense", "output", "training", "timesteps", "input_dropout"]
    if printed.attack:
        names.append("references")
    if not _equal(setting, printed, names):
        return False
    if printed.model not in PRINTED_MODELS.values() or printed.model == "resnet14":
        return True
    both_noisy_or_neither = bool(setting.k) == bool(printed.k)
    if not both_noisy_or_neither or abs(setting.sigma - printed.sigma) >= NEAR:
        return False
    if not (setting.noise and setting.noise_train):
        return False
    solver = "steps" if printed.model in NOISY else "method"
    return table == OF_DEFENSES or _equal(setting, printed, ["blocks", "augment", "T", solver])


def _equal(setting: Setting, printed: Setting, names: list[str]) -> bool:
    """Whether two settings agree in these fields."""
    return all(getattr(setting, name) == getattr(printed, name) for name in names)


def _departures(setting: Setting, printed: Setting, table: str) -> tuple[bool, ...]:
    """Whether our setting departs from the printed one, for each property that `stands_for` leaves
    open in this table.
    """
    if table == OF_DEFENSES:
        # its label says more than a name and sigma
        return (", " in setting._replace(defense="", output="").label,)
    return setting.blocks != printed.blocks, setting.steps != printed.steps


def _differences(setting: Setting, printed: Setting, record: dict, scores: Scores) -> list[str]:
    """Notes on a number of ours: where its setting differs from the printed one, what the paper
    does not say, and what our scores cannot show.
    """
    notes = []
    if setting.attack == "attack_r":
        notes.append("printed in five levels, ours is continuous")
    if setting.model != printed.model or any(_departures(setting, printed, record["table"])):
        notes.append(f"ours is {setting.label}")
    if abs(setting.noise_sd - printed.noise_sd) >= NEAR:
        notes.append(f"noise_sd {setting.noise_sd:g}")
    if printed.model in NOISY and record["table"] != OF_DEFENSES:
        notes.append(f"print: {PRINTED_SCHEME}, ours: {setting.method}")
    if setting.k:
        notes.append(f"queries per model not printed, ours: {setting.queries}")
    if record["attack"] == "lira":
        notes.append(f"form of LiRA not printed, ours: {setting.attack}")
    if record["table"] == OF_DEFENSES and record["metric"].startswith("tpr@"):
        floor = tied_floor(scores)
        single = 1 / smallest(scores)[1] + 1e-12
        if floor > max(rate_of(record["metric"]), single):
            notes.append(f"ours: ties, no FPR below {floor:.2g}")
    if one_pair(scores):
        notes.append(f"{len(scores.value)} targets: training randomness not covered")
    return notes


def _measure(scores: Scores, n_resamples: int, seed: int) -> pd.DataFrame:
    """value, low and high of each metric under its printed name.

    Accuracies and the generalization gap with Student's t over pairs; "accuracy" is the attack's
    own at its best threshold, (1 + advantage) / 2, which chance alone lifts above 1/2.
    """
    ends = intervals(scores, FPR, n_resamples=n_resamples, seed=seed)
    ends.loc["accuracy"] = (1 + ends.loc["advantage"]) / 2
    return pd.concat([ends, accuracies(scores).rename(PRINTED_ACCURACY)])


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
    """Our number with its interval as text, or why there is none."""
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
    if lacks := [name for name in ("family", *COSTS.values()) if name not in cost.columns]:
        raise ValueError(
            f"cost has columns {list(cost.columns)}; {', '.join(lacks)} missing: wanted family,"
            " seconds, memory_mib"
        )
    families = cost["family"].tolist()
    if families.count(BASELINE) != 1 or len(set(families)) < len(families):
        raise ValueError(
            f"cost has {', '.join(map(str, families))}: wanted one row per network, and {BASELINE},"
            " as ratios are to it"
        )
    if not (cost[list(COSTS.values())] > 0).all(axis=None):
        raise ValueError(
            "cost has values that are not positive: measure them, or leave the network out"
        )
    rows = []
    for record in paper_results("nsde2025", "VI"):
        metric = record["metric"]
        notes = [f"print: {note}" for note in record.get("notes", ())]
        model = PRINTED_MODELS[record["model"]]
        row = {"model": model, "printed": record["setting"]["label"], "metric": metric}
        row |= {"published": record["value"], "unit": record["unit"], "ours": np.nan}
        if model in families:
            row["ours"] = float(cost.set_index("family").loc[model, COSTS[metric]])
        else:
            notes.append("not run")
        rows.append(row | {"note": "; ".join(notes)})
    table = pd.DataFrame(rows)
    baseline = table[table["model"] == BASELINE].set_index("metric")
    for name, values in (("published_ratio", "published"), ("ratio", "ours")):
        table[name] = table[values] / table["metric"].map(baseline[values])
    return table
