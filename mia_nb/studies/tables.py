"""Tables of settings beside each other: what recipes train to, and one setting at a time."""

from __future__ import annotations

import numpy as np
import pandas as pd

from mia_nb.arguments import Count
from mia_nb.checks import checked
from mia_nb.metrics.tables import summary
from mia_nb.metrics.uncertainty import RESAMPLES, interval
from mia_nb.studies.setting import Setting
from mia_nb.types import Scores

FACTS = ("train accuracy", "test accuracy", "gap", "member loss", "non-member loss")
VARIANTS = ("odenet64", "anode", "sonode", "hbnode")
HELD = ("model", "blocks", "method", "k", "steps", "T", "noise_train", "noise", "variant")
# what is compared: the fields that may differ besides it, and those that are held in their place
FREE = {
    "method": ((), ()),
    "blocks": ((), ()),
    "k": (("model",), ()),
    "T": ((), ()),
    "steps": ((), ()),
    "T at equal sigma": (("T", "k"), ("sigma",)),
    "steps at equal sigma": (("steps", "k"), ("sigma",)),
    "sigma": (("model", "k"), ()),
    "noise_sd": (("model", "k", "T", "steps"), ()),
}
OTHER_UNITS = ("sigma", "noise_sd")


@checked
def recipe_facts(scores: dict[str, Scores]) -> pd.DataFrame:
    """What every result is to be read beside: per recipe a row per fact.

    Parameters:
        scores: {label: `Scores` of any attack}.

    Returns:
        columns recipe, fact (train and test accuracy, their gap, and the mean loss on members and
        on non-members), value, low, high (Student's 95 % interval over pairs of targets, NaN with
        one: of training, not of the choice of images), pairs, n1 and n0 (members, non-members).
    """
    rows = []
    for label, of_recipe in scores.items():
        values = np.column_stack(
            [
                of_recipe.accuracy,
                of_recipe.accuracy[:, 0] - of_recipe.accuracy[:, 1],
                of_recipe.loss,
            ]
        )
        low, high = (np.broadcast_to(end, len(FACTS)) for end in interval(values, of_recipe.pair))
        columns = {"fact": FACTS, "value": values.mean(0), "low": low, "high": high}
        sizes = {
            "pairs": len(np.unique(of_recipe.pair)),
            "n1": int(of_recipe.member.sum(1).min()),
            "n0": int((~of_recipe.member).sum(1).min()),
        }
        rows.append(pd.DataFrame({"recipe": label, **columns, **sizes}))
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()


@checked
def varied_settings(
    settings: dict[Setting, Scores], *, n_resamples: Count = RESAMPLES, seed: Count = 0
) -> dict[str, pd.DataFrame]:
    """Tables for `plots.lines`: one for every setting that networks differ in.

    Parameters:
        settings: the scores of one attack on each network (its name does not matter).
        n_resamples: resamples behind an interval.
        seed: of the resamples.

    Returns:
        {setting: long table}, a row per family and metric (auc, train_acc, test_acc) with columns
        the setting, metric, value, low, high, chance, pairs, n1, n0, group, label. "method",
        "blocks", "k", "T", "steps": families of ODENets and SDENets that differ in nothing else, a
        `group` for each set of the others (an adaptive solver has no number of steps: it is in
        every group of fixed ones). "T at equal sigma", "steps at equal sigma": SDENets that may
        also differ in k, but not in sigma = k sqrt(steps / T). "sigma": those that may also differ
        in k; "noise_sd": those of one method and number of blocks; both left out where all have the
        same steps and T, which makes them k in other units. "equation": ODENet-64 and its variants.
        Families that coincide in the setting are grouped by T and steps too; where they still do,
        the setting is left out.

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
    for varied, (free, instead) in FREE.items():
        held = [name for name in HELD if name != varied and name not in free] + list(instead)
        rows = _beside_fixed(flows) if varied == "method" else flows
        rows = rows[rows["k"] > 0] if instead else rows
        rows = rows.assign(**{varied: rows[varied.removesuffix(" at equal sigma")]})
        table = _grouped(rows, held, varied)
        if table.duplicated(["metric", "group", varied]).any():
            table = _grouped(rows, list(dict.fromkeys([*held, "T", "steps"])), varied)
        in_other_units = varied in OTHER_UNITS and len(table[["steps", "T"]].drop_duplicates()) < 2
        ambiguous = table.duplicated(["metric", "group", varied]).any()
        if len(table) and not in_other_units and not ambiguous:
            tables[varied] = table
    variants = families[families["model"].isin(VARIANTS)]
    if variants["label"].nunique() > 1:
        tables["equation"] = variants.assign(equation=variants["label"], group="")
    return tables


def _grouped(rows: pd.DataFrame, held: list[str], varied: str) -> pd.DataFrame:
    """Rows of the groups, named by what is held and differs between them, in which the setting
    varies.
    """
    differing = [name for name in held if rows[name].nunique() > 1]
    group = [
        ", ".join(f"{name} {_text(row[name])}" for name in differing) for _, row in rows.iterrows()
    ]
    groups = rows.assign(group=group).groupby("group", sort=False)
    return groups.filter(lambda each: each[varied].nunique() > 1)


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _beside_fixed(flows: pd.DataFrame) -> pd.DataFrame:
    """Families with one copy of each adaptive solver for every number of steps that fixed ones
    take.
    """
    adaptive = flows[flows["adaptive"]]
    fixed = flows[~flows["adaptive"]]
    steps = fixed[["steps"]].drop_duplicates()
    if adaptive.empty or steps.empty:
        return flows
    every = adaptive.drop(columns="steps").merge(steps, how="cross")
    return pd.concat([fixed, every], ignore_index=True)


def _rows(setting: Setting, scores: Scores, n_resamples: int, seed: int) -> pd.DataFrame:
    """One family: its setting beside its AUC and its accuracies, a row each."""
    table = summary({"": scores}, (), n_resamples=n_resamples, seed=seed)
    table = table[(table["attack"] == "") & table["metric"].isin(["auc", "train_acc", "test_acc"])]
    settings = {name: getattr(setting, name) for name in (*HELD, "label", "adaptive")}
    for name in OTHER_UNITS:
        settings[name] = float(f"{getattr(setting, name):.4g}")  # 2.0000001 is 2
    columns = ["metric", "value", "low", "high", "chance", "pairs", "n1", "n0"]
    return table[columns].assign(**settings)
