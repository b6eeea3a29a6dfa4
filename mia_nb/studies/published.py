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
from mia_nb.metrics.uncertainty import RESAMPLES, smallest, tied_floor
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
# which stands beside the print first
LIKE_WITH_LIKE = {"attack-r": ("attack_r_lattice", "attack_r")}
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
    """Every number of a study's tables, those on demand too, after its setting; judged: also of the
    tables that only the verdict on print takes.
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
    def measured(setting: Setting) -> tuple[pd.DataFrame, int]:
        scores = settings[setting]
        return _measure(scores, n_resamples, seed), smallest(scores)[1]

    rows = []
    for wanted, record in printed_records(study):
        if record["table"] not in tables:
            continue
        here = [record["dataset"], record["model"].split("-")[-1]][: len(block)] == block
        setting = _placed(settings, wanted, record) if here else None
        notes = [f"print: {note}" for note in record.get("notes", ())]
        if setting is None:
            numbers = {"ours": np.nan, "low": np.nan, "high": np.nan, "measurable": False, "n0": 0}
            notes += ["not run", "" if here else place]
        else:
            ends, n0 = measured(setting)
            numbers = ends.loc[record["metric"]].rename({"value": "ours"}).to_dict()
            numbers |= {"measurable": measurable(record["metric"], n0), "n0": n0}
            notes += [*_differences(setting, wanted, record, settings[setting]), place]
        rows.append(
            {name: record[name] for name in ("paper", "table", "dataset")}
            | _identity(record, wanted, printed.get("columns"))
            | {"metric": record["metric"], "published": record["value"], **numbers}
            | {"note": "; ".join(filter(None, notes))}
            | ({} if "columns" in printed else {name: getattr(wanted, name) for name in EQUATION})
        )
    return pd.DataFrame(rows)


def _identity(record: dict, wanted: Setting, columns: list[str] | None) -> dict:
    """What names a printed number's setting."""
    if columns:
        of_setting = {name: getattr(wanted, name) for name in columns}
        if not wanted.attack:
            of_setting["references"] = ""
        return {"model": record["model"], **of_setting}
    about = record["setting"]
    row = f"row {about['row']}, {about['impact']}" if "row" in about else about["label"]
    return {"printed": row, "setting": wanted.label, "attack": wanted.attack}


def _placed(settings: dict, wanted: Setting, record: dict) -> Setting | None:
    """Our setting for a printed one, any attack where the number is no attack's."""
    attacks = PRINTED_ATTACKS.get(record["attack"], ())
    attacks = LIKE_WITH_LIKE.get(record["attack"], attacks)
    table = record["table"]
    candidates = [
        setting
        for setting in settings
        if (setting.attack in attacks or not attacks) and stands_for(setting, wanted, table)
    ]

    def order(setting: Setting) -> tuple:
        attack = attacks.index(setting.attack) if attacks else 0
        other_scheme = wanted.method == "stoch_rk4" and setting.method not in OF_PRINTED_SCHEME
        apart = _apart(setting, wanted, table)
        return setting.model != wanted.model, *apart, other_scheme, setting.queries, attack

    return min(candidates, key=order, default=None)


def stands_for(setting: Setting, wanted: Setting, table: str) -> bool:
    """Whether our network is one of a table; an sdenet without noise is an odenet."""
    quiet = ("odenet", "sdenet")
    alike = setting.model in quiet and wanted.model in quiet and not wanted.k
    names = ["defense", "output", "training", "timesteps", "input_dropout"]
    names += ["references"] if wanted.attack else []
    if not (alike or setting.model == wanted.model) or not _equal(setting, wanted, names):
        return False
    if wanted.model not in PRINTED_MODELS.values() or wanted.model == "resnet14":
        return True
    near = bool(setting.k) == bool(wanted.k) and abs(setting.sigma - wanted.sigma) < NEAR
    if not (near and setting.noise and setting.noise_train):
        return False
    solver = "steps" if wanted.model in NOISY else "method"
    return table == OF_DEFENSES or _equal(setting, wanted, ["blocks", "augment", "T", solver])


def _equal(setting: Setting, wanted: Setting, names: list[str]) -> bool:
    return all(getattr(setting, name) == getattr(wanted, name) for name in names)


def _apart(setting: Setting, wanted: Setting, table: str) -> tuple:
    """What of our network is not as printed, as far as the table leaves it open."""
    if table == OF_DEFENSES:  # more than a name, sigma and the defense
        return (", " in setting._replace(defense="", output="").label,)
    return setting.blocks != wanted.blocks, setting.steps != wanted.steps


def _differences(setting: Setting, wanted: Setting, record: dict, scores: Scores) -> list[str]:
    """How our setting is not the printed one, what the print leaves open, and what ours does not
    show.
    """
    notes = []
    if setting.attack == "attack_r":
        notes.append("printed in five levels, ours is continuous")
    if setting.model != wanted.model or any(_apart(setting, wanted, record["table"])):
        notes.append(f"ours is {setting.label}")
    if abs(setting.noise_sd - wanted.noise_sd) >= NEAR:
        notes.append(f"noise_sd {setting.noise_sd:g}")
    if wanted.model in NOISY and record["table"] != OF_DEFENSES:
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
