"""Tables of families that differ in one setting."""

from __future__ import annotations

import pandas as pd

from mia_nb.arguments import Count, Several
from mia_nb.checks import checked
from mia_nb.metrics.bootstrap import RESAMPLES
from mia_nb.metrics.tables import summary
from mia_nb.studies.settings import Setting
from mia_nb.types import Scores

VARIANTS = ("odenet64", "anode", "sonode", "hbnode")
HELD = ("model", "blocks", "method", "k", "steps", "T", "noise_train", "noise", "variant")
AT_EQUAL_SIGMA = " at equal sigma"
MAY_DIFFER = {  # {the setting that is varied: those of `HELD` that may differ within a group}
    "method": ("method",),
    "blocks": ("blocks",),
    "k": ("k", "model"),
    "T": ("T",),
    "steps": ("steps",),
    "T at equal sigma": ("T", "k"),
    "steps at equal sigma": ("steps", "k"),
}


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
        SDENets that may also differ in k, but not in sigma = k sqrt(steps / T). "equation":
        ODENet-64 and its variants. A setting is left out where families of a group have the same
        value.

    Source: Figures 2, 6, 10 and 11 of Hong, Wu, Gruber and Lee (arXiv 2501.06686).
    """
    if not settings:
        return {}
    rows_of_families = []
    for setting, scores in settings.items():
        rows_of_families.append(_family_rows(setting, scores, n_resamples, seed))
    families = pd.concat(rows_of_families, ignore_index=True)
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
        one_row_each = not table.duplicated(["metric", "group", varied]).any()
        if len(table) and one_row_each:
            tables[varied] = table
    variants = families[families["model"].isin(VARIANTS)]
    if variants["label"].nunique() > 1:
        tables["equation"] = variants.assign(equation=variants["label"], group="")
    return tables


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
    """A field of a setting for the name of a group."""
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


def _family_rows(setting: Setting, scores: Scores, n_resamples: int, seed: int) -> pd.DataFrame:
    """One family: its setting beside its AUC and its accuracies, a row each."""
    table = summary({"": scores}, (), n_resamples=n_resamples, seed=seed)
    table = table[(table["attack"] == "") & table["metric"].isin(["auc", "train_acc", "test_acc"])]
    settings = {name: getattr(setting, name) for name in (*HELD, "label", "adaptive")}
    settings["sigma"] = float(f"{setting.sigma:.4g}")  # 2.0000001 is 2
    columns = ["metric", "value", "low", "high", "chance", "pairs", "n1", "n0"]
    return table[columns].assign(**settings)
