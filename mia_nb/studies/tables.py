"""Tables that compare settings: accuracies of recipes, and families that differ in one setting."""

from __future__ import annotations

import numpy as np
import pandas as pd

from mia_nb.arguments import Count, Several
from mia_nb.checks import checked
from mia_nb.metrics.bootstrap import RESAMPLES
from mia_nb.metrics.tables import summary
from mia_nb.metrics.uncertainty import interval
from mia_nb.studies.settings import Setting
from mia_nb.types import Scores

FACTS = ("train accuracy", "test accuracy", "gap", "member loss", "non-member loss")
VARIANTS = ("odenet64", "anode", "sonode", "hbnode")
HELD = ("model", "blocks", "method", "k", "steps", "T", "noise_train", "noise", "variant")
AT_EQUAL_SIGMA = " at equal sigma"
DERIVED = ("sigma", "noise_sd")  # computed from k, T and steps
MAY_DIFFER = {  # {the setting that is varied: those of `HELD` that may differ within a group}
    "method": ("method",),
    "blocks": ("blocks",),
    "k": ("k", "model"),
    "T": ("T",),
    "steps": ("steps",),
    "T at equal sigma": ("T", "k"),
    "steps at equal sigma": ("steps", "k"),
    "sigma": ("model", "k"),
    "noise_sd": ("model", "k", "T", "steps"),
}


@checked
def recipe_facts(scores: dict[str, Scores]) -> pd.DataFrame:
    """Accuracies and losses of the targets of each recipe, to read beside every result.

    Parameters:
        scores: {label: `Scores` of any attack}.

    Returns:
        A row per recipe and fact with columns recipe, fact (train and test accuracy, their gap, and
        the mean loss on members and on non-members), value, low, high (Student's 95 % interval over
        pairs of targets, NaN with one pair: it is about training, not about the choice of images),
        pairs, n1 and n0 (members, non-members).
    """
    rows = []
    for label, scores_of_recipe in scores.items():
        values = np.column_stack(
            [
                scores_of_recipe.accuracy,
                scores_of_recipe.accuracy[:, 0] - scores_of_recipe.accuracy[:, 1],
                scores_of_recipe.loss,
            ]
        )
        within = ([0, 0, -1, 0, 0], [1, 1, 1, np.inf, np.inf])
        low, high = interval(values, scores_of_recipe.pair, within=within)
        columns = {
            "fact": FACTS,
            "value": values.mean(0),
            "low": low,
            "high": high,
        }
        sizes = {
            "pairs": len(np.unique(scores_of_recipe.pair)),
            "n1": int(scores_of_recipe.member.sum(1).min()),
            "n0": int((~scores_of_recipe.member).sum(1).min()),
        }
        rows.append(pd.DataFrame({"recipe": label, **columns, **sizes}))
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()


@checked
def varied_settings(
    settings: dict[Setting, Scores], *, n_resamples: Several = RESAMPLES, seed: Count = 0
) -> dict[str, pd.DataFrame]:
    """Tables for `plots.lines`: one for every setting that networks differ in.

    Parameters:
        settings: the scores of one attack on each network (its name does not matter).
        n_resamples: resamples behind an interval.
        seed: of the resamples.

    Returns:
        {setting: long table}, a row per family and metric (auc, train_acc, test_acc) with columns
        the setting, metric, value, low, high, chance, pairs, n1, n0, group, label. "method",
        "blocks", "k", "T", "steps": families of ODENets and SDENets that differ in nothing else,
        with a `group` for each combination of the others (an adaptive solver, which has no number
        of steps, is in every group of fixed ones). "T at equal sigma", "steps at equal sigma":
        SDENets that may also differ in k, but not in sigma = k sqrt(steps / T). "sigma": those that
        may also differ in k; "noise_sd": those of one method and number of blocks. Both are left
        out where all have the same steps and T, since they are then k in other units. "equation":
        ODENet-64 and its variants. Where families of a group have the same value, groups also have
        one T and number of steps; where that does not help, the setting is left out.

    Source: Figures 2, 6, 10 and 11 of Hong, Wu, Gruber and Lee (arXiv 2501.06686).
    """
    if not settings:
        return {}
    families = pd.concat(
        [_rows(setting, scores, n_resamples, seed) for setting, scores in settings.items()],
        ignore_index=True,
    )
    tables = {}
    flows = families[families["model"].isin(["odenet", "sdenet"])]
    for varied, may_differ in MAY_DIFFER.items():
        held = [name for name in HELD if name not in may_differ]
        rows = _beside_fixed(flows) if varied == "method" else flows
        if varied.endswith(AT_EQUAL_SIGMA):
            rows = rows[rows["k"] > 0]  # without noise sigma is 0, whatever T and steps are
            held.append("sigma")
        rows = rows.assign(**{varied: rows[varied.removesuffix(AT_EQUAL_SIGMA)]})
        table = _grouped(rows, held, varied)
        if _is_ambiguous(table, varied):
            table = _grouped(rows, list(dict.fromkeys([*held, "T", "steps"])), varied)
        if varied in DERIVED and len(table[["steps", "T"]].drop_duplicates()) < 2:
            continue  # it is k in other units
        if len(table) and not _is_ambiguous(table, varied):
            tables[varied] = table
    variants = families[families["model"].isin(VARIANTS)]
    if variants["label"].nunique() > 1:
        tables["equation"] = variants.assign(equation=variants["label"], group="")
    return tables


def _is_ambiguous(table: pd.DataFrame, varied: str) -> bool:
    """Whether several families of a group have the same value of the setting."""
    return bool(table.duplicated(["metric", "group", varied]).any())


def _grouped(rows: pd.DataFrame, held: list[str], varied: str) -> pd.DataFrame:
    """The groups of rows that are equal in the settings `held` and differ in the varied one. A
    group is named by the settings that differ between groups.
    """
    differing = [name for name in held if rows[name].nunique() > 1]
    names = []
    for _, row in rows.iterrows():
        names.append(", ".join(f"{name} {_text(row[name])}" for name in differing))
    groups = rows.assign(group=names).groupby("group", sort=False)
    return groups.filter(lambda group: group[varied].nunique() > 1)


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _beside_fixed(flows: pd.DataFrame) -> pd.DataFrame:
    """Families with a copy of each adaptive solver for every number of steps of the fixed ones."""
    adaptive = flows[flows["adaptive"]]
    fixed = flows[~flows["adaptive"]]
    steps = fixed[["steps"]].drop_duplicates()
    if adaptive.empty or steps.empty:
        return flows
    copies = adaptive.drop(columns="steps").merge(steps, how="cross")
    return pd.concat([fixed, copies], ignore_index=True)


def _rows(setting: Setting, scores: Scores, n_resamples: int, seed: int) -> pd.DataFrame:
    """One family: its setting beside its AUC and its accuracies, a row each."""
    table = summary({"": scores}, (), n_resamples=n_resamples, seed=seed)
    table = table[(table["attack"] == "") & table["metric"].isin(["auc", "train_acc", "test_acc"])]
    settings = {name: getattr(setting, name) for name in (*HELD, "label", "adaptive")}
    for name in DERIVED:
        settings[name] = float(f"{getattr(setting, name):.4g}")  # 2.0000001 is 2
    columns = ["metric", "value", "low", "high", "chance", "pairs", "n1", "n0"]
    return table[columns].assign(**settings)
