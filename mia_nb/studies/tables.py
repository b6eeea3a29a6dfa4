"""Tables of settings beside each other: recipes, defenses, and one setting at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mia_nb.arguments import Count, Rates
from mia_nb.checks import checked
from mia_nb.metrics.tables import (
    by_attack,
    summary,
)
from mia_nb.metrics.uncertainty import FPR, RESAMPLES, interval
from mia_nb.studies.setting import Setting, usable
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


def _sizes(scores: Scores) -> dict:
    return {
        "pairs": len(np.unique(scores.pair)),
        "n1": int(scores.member.sum(1).min()),
        "n0": int((~scores.member).sum(1).min()),
    }


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
        rows.append(pd.DataFrame({"recipe": label, **columns, **_sizes(of_recipe)}))
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()


def _risks_of_recipes(
    settings: dict[Setting, Scores], fpr: Sequence[float], n_resamples: int, seed: int
) -> pd.DataFrame:
    rows = []
    for setting, scores in settings.items():
        table = summary({setting.attack: scores}, fpr, n_resamples=n_resamples, seed=seed)
        risks = (table["attack"] != "max") & table["metric"].isin(["auc", "tpr"])
        rows += [
            {
                "label": setting.recipe,
                "epochs": setting.epochs,
                "schedule": setting.schedule,
                "augment": setting.augmentation,
                "rest": setting.rest,
                **row[["attack", "metric", "fpr", "value", "low", "high", "chance", "measurable"]],
                **_sizes(scores),
            }
            for _, row in table[risks].iterrows()
        ]
    return pd.DataFrame(rows)


@checked
def defense_table(
    settings: dict[Setting, Scores],
    fpr: Rates = FPR,
    *,
    n_resamples: Count = RESAMPLES,
    seed: Count = 0,
) -> pd.DataFrame:
    """Every defended network under its strongest attack: what a defense costs and what it leaves to
    find.

    Parameters:
        settings: the scores of each `Setting`; networks that differ in queries alone are one row.
        fpr: false positive rates of the TPRs.
        n_resamples: resamples behind an interval.
        seed: of the resamples.

    Returns:
        the long table of `metrics.summary`, a row per network and metric, with columns name,
        defense, output, attack (of largest mean AUC, unadjusted) and attacks (how many were tried)
        before the others: the table of `plots.defenses`. auc and tpr are those of the maximum over
        attacks, the rest those of the attack named.

    Raises:
        ValueError: for settings that cannot be or have no target, and for none.

    Caveat: an attack that was not run is not there; no attack found is no absence of one.
    """
    settings = usable(settings)
    if not settings:
        raise ValueError(
            "defense_table got no settings: pass {studies.setting(signals.info, attack):"
            " attacks.score(...)}"
        )
    groups: dict[str, dict[str, Scores]] = {}
    about: dict[str, Setting] = {}
    for setting, scores in settings.items():
        title = setting.attack if setting.queries == 1 else f"{setting.attack}, {setting.counted}"
        groups.setdefault(setting.label, {})[title] = scores
        about.setdefault(setting.label, setting)
    tables = []
    for name, attacks in groups.items():
        table = summary(attacks, fpr, n_resamples=n_resamples, seed=seed)
        best = by_attack(table, "auc")["value"].drop("max").idxmax()
        rows = table[table["attack"] == "max"].drop(columns="attack")
        rows = rows.assign(n1=table["n1"].min(), n0=table["n0"].min())
        about_it = {
            "name": name,
            "defense": about[name].defense,
            "output": about[name].output,
            "attack": best,
            "attacks": len(attacks),
        }
        for place, (column, value) in enumerate(about_it.items()):
            rows.insert(place, column, value)
        tables.append(rows)
    return pd.concat(tables, ignore_index=True)


@checked
def varied_settings(
    settings: dict[Setting, Scores],
    fpr: Rates = FPR,
    *,
    n_resamples: Count = RESAMPLES,
    seed: Count = 0,
) -> dict[str, pd.DataFrame]:
    """Tables for `plots.lines`: one for every setting that networks or recipes differ in.

    Parameters:
        settings: the scores of one attack on each network (its name does not matter), or of any
            attacks on recipes (`studies.setting(recipe, attack, label=...)`).
        fpr: of recipes, false positive rates of the TPRs.
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
        the setting is left out. Of recipes {"epochs": a row per recipe, attack, metric (auc, tpr)
        and fpr}, with columns label, epochs, schedule, augment, rest, attack, metric, fpr, value,
        low, high, chance, measurable (whether every target has the non-members that its FPR asks
        for, ten false positives; always for an AUC), pairs, n1, n0.

    Source: Figures 2, 6, 10 and 11 of Hong, Wu, Gruber and Lee (arXiv 2501.06686).
    """
    if any(setting.recipe for setting in settings):
        return {"epochs": _risks_of_recipes(settings, fpr, n_resamples, seed)}
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
