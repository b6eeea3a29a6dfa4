"""The numbers that the papers printed, with ours beside them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
import pandas as pd

from mia_nb.arguments import Anything, Count, Several
from mia_nb.checks import checked
from mia_nb.metrics.accuracy import accuracies
from mia_nb.metrics.bootstrap import RESAMPLES
from mia_nb.metrics.curve import measurable, rate_of
from mia_nb.metrics.targets import smallest, tied_floor
from mia_nb.metrics.uncertainty import intervals
from mia_nb.studies.contrasts import one_pair
from mia_nb.studies.joins import matches
from mia_nb.studies.paper_numbers import (
    FORMS,
    NEAR,
    TABLE_OF_DEFENSES,
    paper_results,
    printed_records,
    selection_of,
)
from mia_nb.studies.settings import ALIGNED, NOISY, Setting, usable
from mia_nb.studies.study import load
from mia_nb.types import Scores

FPR = (0.001, 0.01)  # the only two that the papers print
PRINTED_SCHEME = "stochastic RK4"
OF_PRINTED_SCHEME = ("stoch_rk4", "rk4")  # without noise these are one
EQUATION = ("model", "blocks", "method", "augment", "k", "steps", "T", "sigma", "noise_sd")
PRINTED_ACCURACY = {
    "train": "train_accuracy",
    "test": "test_accuracy",
    "gap": "generalization_gap",
}  # our name: the printed one
NOWHERE = "nothing"  # the name of no printed data set
NOT_RUN = {"ours": np.nan, "low": np.nan, "high": np.nan, "measurable": False, "n0": 0}
COSTS = {"time_per_epoch": "seconds", "memory": "memory_mib"}  # printed metric: our column
BASELINE = "resnet14"  # costs are ratios to its costs
TITLES = {"auc": "AUC", "accuracy": "attack accuracy"}


@checked
def against_papers(
    study: str,
    settings: dict[Setting, Scores] | pd.DataFrame,
    *,
    stands_for: str | tuple[str, str] | None = "",
    ours: str = "",
    tables: Anything | None = None,
    n_resamples: Several = RESAMPLES,
    seed: Count = 0,
) -> pd.DataFrame:
    """One row per number that a paper printed, with ours and its interval beside it.

    Parameters:
        study: "snn" (Guan et al. 2025, tables 2 to 6, on demand F.1 to F.4), "nsde" (Hong, Wu,
            Gruber and Lee, arXiv 2501.06686, all tables but VI and XI) or "privacy" (their Table
            XI, defenses), "costs" (their Table VI, as ratios).
        settings: the scores of each `Setting`. For "costs" a table, a row per network, with columns
            family (resnet14, odenet, sdenet, replaced), seconds (of an epoch) and memory_mib.
        stands_for: the printed data set, in the spiking study with its model, beside whose rows
            ours is placed; "" is the study's own, CIFAR-10 (and ResNet18); None: nowhere.
        ours: the data and model that ours really are, such as "digits, tinycnn", for the note; ""
            takes `stands_for`.
        tables: some of the study's tables; None: all but those on demand.
        n_resamples: resamples behind an interval.
        seed: of the resamples.

    Returns:
        columns paper, table, dataset, what the print calls the setting (spiking: model, training,
        timesteps (0 = ANN), input_dropout, references; others: printed, setting), attack, metric,
        published, ours, low, high (as in `intervals`; accuracies and generalization gap: Student's
        t over pairs), measurable, n0, note, and of neural ODEs and SDEs the printed equation.
        "accuracy" is the attack's, at its best threshold. Of "costs" columns model, printed
        (label), metric, published, unit, ours, note, published_ratio and ratio (to ResNet-14).

    Raises:
        ValueError: for impossible settings, one without a target, and costs that lack ResNet-14 or
            name a family twice.

    Caveat: the notes say how ours differs from the printed setting. Ours is placed by model,
    blocks, channels, solver, and for stochastic models sigma, steps and T (Table XI: model, defense
    and sigma alone), with noise on and the fewest queries. The papers do not print the number of
    queries, the steps of the ODENets, which form of LiRA was run, and how DP-SGD was tuned. SDENets
    are placed whatever their scheme, those of the printed one first; settings with a variant or
    with aligned references are not placed. The printed Attack-R counts references (4, so five
    levels), hence its zeros at low FPR; our "attack_r_lattice", which counts them too, is placed
    beside it if it was run, else "attack_r". MemGuard's TPR of 0 is an effect of ties. Seconds and
    megabytes are of one machine, batch size and implementation; only ratios can be compared.
    """
    if study == "costs":
        return _costs(settings)
    rules = load(study)
    print_rules = rules.printed
    if stands_for == "":
        stands_for = print_rules["stands_for"]
    if stands_for is None:
        stands_for = NOWHERE
    block = [stands_for] if isinstance(stands_for, str) else list(stands_for)
    data_note = f"ours is {ours}" if ours else f"ours stands for {', '.join(block)}"
    placed = {}
    for setting, scores in usable(settings, rules.models).items():
        if not setting.variant and setting.references != ALIGNED:
            placed[setting] = scores

    @cache
    def measured(setting: Setting) -> dict[str, dict]:
        return _measured(placed[setting], n_resamples, seed)

    rows = []
    for printed, record in printed_records(study):
        if record["table"] not in (tables or print_rules["tables"]):
            continue
        in_block = _block_of(record)[: len(block)] == block
        closest = None
        if in_block:
            closest = closest_setting(placed, printed, record)
        notes = [f"print: {note}" for note in record.get("notes", ())]
        if closest is None:
            numbers = NOT_RUN
            notes.append("not run")
        else:
            numbers = measured(closest)[record["metric"]]
            notes += _differences(closest, printed, record, placed[closest])
        if closest is not None or not in_block:
            notes.append(data_note)
        row = {name: record[name] for name in ("paper", "table", "dataset")}
        row |= _setting_columns(record, printed, print_rules.get("columns"))
        row |= {"metric": record["metric"], "published": record["value"], **numbers}
        row["note"] = "; ".join(notes)
        if "columns" not in print_rules:
            row |= {name: getattr(printed, name) for name in EQUATION}
        rows.append(row)
    return pd.DataFrame(rows)


def _block_of(record: dict) -> list[str]:
    """[data set, architecture] of a printed number: that of "SNN-resnet18" is resnet18."""
    return [record["dataset"], record["model"].split("-")[-1]]


def _costs(cost: pd.DataFrame) -> pd.DataFrame:
    """Table VI of Hong, Wu, Gruber and Lee, the costs of training, with ours beside it."""
    families = list(cost["family"])
    if BASELINE not in families or len(set(families)) < len(families):
        raise ValueError(
            f"cost has {', '.join(map(str, families))}: wanted one row per network, and {BASELINE},"
            " as ratios are to it"
        )
    ours = cost.set_index("family")
    rows = []
    for record in paper_results("nsde2025", "VI"):
        model = record["ours"]["model"]
        notes = [f"print: {note}" for note in record.get("notes", ())]
        if model not in ours.index:
            notes.append("not run")
        row = {
            "model": model,
            "printed": record["setting"]["label"],
            "metric": record["metric"],
            "published": record["value"],
            "unit": record["unit"],
            "ours": ours[COSTS[record["metric"]]].get(model, np.nan),
            "note": "; ".join(notes),
        }
        rows.append(row)
    table = pd.DataFrame(rows)
    baseline = table[table["model"] == BASELINE].set_index("metric")
    table["published_ratio"] = table["published"] / table["metric"].map(baseline["published"])
    table["ratio"] = table["ours"] / table["metric"].map(baseline["ours"])
    return table


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
    label = words.get("label")
    if "row" in words:
        label = f"row {words['row']}, {words['impact']}"
    return {"printed": label, "setting": printed.label, "attack": printed.attack}


def closest_setting(settings: Iterable[Setting], printed: Setting, record: dict) -> Setting | None:
    """The setting of ours that is closest to a printed one; None if none corresponds to it.

    It may have any attack if the number is not about an attack.
    """
    forms = FORMS.get(printed.attack, [])
    selection = selection_of(printed, record)
    candidates = [setting for setting in settings if matches(setting, selection)]

    def distance(setting: Setting) -> tuple:
        """A key to sort candidates by, the most important criterion first; smallest is closest."""
        other_scheme = printed.method == "stoch_rk4" and setting.method not in OF_PRINTED_SCHEME
        form = forms.index(setting.attack) if forms else 0
        return (
            setting.model != printed.model,
            *_departures(setting, printed, record["table"]),
            other_scheme,
            setting.queries,
            form,
        )

    return min(candidates, key=distance, default=None)


def _departures(setting: Setting, printed: Setting, table: str) -> tuple[bool, ...]:
    """Whether our setting departs from the printed one, for each property that `selection_of`
    leaves open in this table.
    """
    if table == TABLE_OF_DEFENSES:
        # its label says more than a name and sigma
        return (", " in setting._replace(defense="", output="").label,)
    return setting.blocks != printed.blocks, setting.steps != printed.steps


def _differences(setting: Setting, printed: Setting, record: dict, scores: Scores) -> list[str]:
    """Notes on a number of ours: differences from the printed setting, facts that the paper does
    not give, and what our scores cannot show.
    """
    notes = []
    if setting.attack == "attack_r":
        notes.append("printed in five levels, ours is continuous")
    if setting.model != printed.model or any(_departures(setting, printed, record["table"])):
        notes.append(f"ours is {setting.label}")
    if abs(setting.noise_sd - printed.noise_sd) >= NEAR:
        notes.append(f"noise_sd {setting.noise_sd:g}")
    if printed.model in NOISY and record["table"] != TABLE_OF_DEFENSES:
        notes.append(f"print: {PRINTED_SCHEME}, ours: {setting.method}")
    if setting.k:
        notes.append(f"queries per model not printed, ours: {setting.queries}")
    if record["attack"] == "lira":
        notes.append(f"form of LiRA not printed, ours: {setting.attack}")
    if record["table"] == TABLE_OF_DEFENSES and record["metric"].startswith("tpr@"):
        floor = tied_floor(scores)
        _, n0 = smallest(scores)
        one_false_positive = 1 / n0 + 1e-12
        if floor > max(rate_of(record["metric"]), one_false_positive):
            notes.append(f"ours: ties, no FPR below {floor:.2g}")
    if one_pair(scores):
        notes.append(f"{len(scores.value)} targets: training randomness not covered")
    return notes


def _measured(scores: Scores, n_resamples: int, seed: int) -> dict[str, dict]:
    """ours, low, high, measurable and n0 (of non-members) of each metric, by its printed name.

    Accuracies and the generalization gap with Student's t over pairs; "accuracy" is the attack's
    own at its best threshold, (1 + advantage) / 2, which chance alone lifts above 1/2.
    """
    ends = intervals(scores, FPR, n_resamples=n_resamples, seed=seed)
    ends.loc["accuracy"] = (1 + ends.loc["advantage"]) / 2
    table = pd.concat([ends, accuracies(scores).rename(PRINTED_ACCURACY)])
    table = table.rename(columns={"value": "ours"})
    _, n0 = smallest(scores)
    table["measurable"] = [measurable(metric, n0) for metric in table.index]
    table["n0"] = n0
    return table.to_dict("index")


@checked
def against_papers_readable(table: pd.DataFrame) -> pd.DataFrame:
    """`against_papers` of a study as text, a row per setting and attack.

    Parameters:
        table: from `against_papers` for "snn", "nsde" or "privacy", or some of its rows.

    Returns:
        A column for each field of the setting, and one for each metric, the published value first:
        "0.5458 | 0.561 [0.550, 0.571]"; "not run" where we have no such setting; "n/m (n0 = 700)"
        where the FPR is too low for so few non-members; "0.561, no interval" of a single pair of
        models.
    """
    # from the table's number, which follows the paper's name, to the attack
    setting_columns = list(table.columns[1 : table.columns.get_loc("metric")])
    rows: dict[tuple, dict] = {}
    for _, row in table.iterrows():
        setting = row[setting_columns]
        texts = rows.setdefault(tuple(setting), dict(setting))
        title = row["metric"].replace("tpr@", "TPR at FPR ").replace("_", " ")
        title = TITLES.get(title, title)
        texts[title] = f"{row['published']:.4f} | {_ours_text(row)}"
    return pd.DataFrame(rows.values()).fillna("")


def _ours_text(row: pd.Series) -> str:
    """Our number with its interval as text, or why there is none."""
    if np.isnan(row["ours"]):
        return "not run"
    if not row["measurable"]:
        return f"n/m (n0 = {row['n0']})"
    digits = 4 if row["metric"].startswith("tpr@") else 3
    ours, low, high = (f"{number:.{digits}f}" for number in row[["ours", "low", "high"]])
    if np.isnan(row["low"]):  # of accuracies and gaps, where one pair of models was attacked
        return f"{ours}, no interval"
    return f"{ours} [{low}, {high}]"
