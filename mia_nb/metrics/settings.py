"""Risk against the settings of an equation, one setting at a time."""

from __future__ import annotations

import pandas as pd

from mia_nb.metrics.flow_published import ADAPTIVE, FlowCell
from mia_nb.metrics.tables import accuracies
from mia_nb.metrics.uncertainty import intervals
from mia_nb.types import Scores

VARIANTS = ("odenet64", "anode", "sonode", "hbnode")
HELD = ("model", "blocks", "method", "k", "steps", "T", "noise_train", "noise")
# what is compared: the fields that may differ besides it
FREE = {"method": (), "blocks": (), "k": (), "T": (), "steps": (), "sigma": ("k",), "noise_sd": ("k", "T", "steps")}


def varied_settings(strongest: dict[FlowCell, Scores], *, draws: int = 1000, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Tables for `plots.risk_against`: {setting: a row per family}, for every setting that families differ in.

    strongest: the scores of one attack on each setting (its word in the cell does not matter). "method", "blocks", "k", "T",
    "steps": families of ODENets and SDENets that differ in nothing else, a `group` for each set of the others (an adaptive
    solver has no number of steps: it is in every group of fixed ones). "sigma": those
    that may also differ in k; "noise_sd": those of one method and number of blocks. "equation": ODENet-64 and its variants.
    Columns: the setting, auc, auc_low, auc_high (`intervals`), train_acc and test_acc with _low and _high (Student's t over
    pairs), n1, n0, pairs, group, label. Where two families of a group coincide in the setting it is left out. Source: Figures
    2, 6, 10 and 11 of Hong, Wu, Gruber and Lee (arXiv 2501.06686).
    Where all have the same steps and T, sigma and noise_sd are k in other units and left out.
    """
    families = pd.DataFrame([_row(cell, scores, draws, seed) for cell, scores in strongest.items()])
    if families.empty:
        return {}
    found, flows = {}, families[families["model"].isin(["odenet", "sdenet"])]
    for what, free in FREE.items():
        held = [name for name in HELD if name != what and name not in free]
        if what in ("k", "sigma", "noise_sd"):
            held.remove("model")  # an SDENet of k = 0 is an ODENet
        rows = _beside_fixed(flows) if what == "method" else flows
        words = [rows[name].map(lambda value, name=name: f"{name} {value}") for name in held if rows[name].nunique() > 1]
        group = words[0].str.cat(words[1:], sep=", ") if words else pd.Series("", rows.index)
        table = rows.assign(group=group).groupby("group", sort=False).filter(lambda one, what=what: one[what].nunique() > 1)
        in_other_units = what in ("sigma", "noise_sd") and len(table[["steps", "T"]].drop_duplicates()) < 2
        if len(table) and not in_other_units and not table.duplicated(["group", what]).any():
            found[what] = table
    variants = families[families["model"].isin(VARIANTS)]
    if len(variants) > 1:
        found["equation"] = variants.assign(equation=variants["label"], group="")
    return found


def _beside_fixed(flows: pd.DataFrame) -> pd.DataFrame:
    """Families with one copy of each adaptive solver for every number of steps that fixed ones take."""
    adaptive = flows["method"].isin(ADAPTIVE)
    steps = flows.loc[~adaptive, ["steps"]].drop_duplicates()
    if not adaptive.any() or steps.empty:
        return flows
    return pd.concat([flows[~adaptive], flows[adaptive].drop(columns="steps").merge(steps, how="cross")], ignore_index=True)


def _row(cell: FlowCell, scores: Scores, draws: int, seed: int) -> dict:
    """One family: its setting, risk and accuracies."""
    auc, right = intervals(scores, (), draws=draws, seed=seed).loc["auc"], accuracies(scores)
    row = {name: getattr(cell, name) for name in HELD} | {"sigma": cell.sigma, "noise_sd": cell.noise_sd, "label": cell.label}
    row |= {f"auc{end}": auc[name] for end, name in (("", "value"), ("_low", "low"), ("_high", "high"))}
    for side in ("train", "test"):
        row |= {f"{side}_acc{end}": right.loc[side, name] for end, name in (("", "value"), ("_low", "low"), ("_high", "high"))}
    row |= {"n1": int(scores.member[0].sum()), "n0": int((~scores.member[0]).sum()), "pairs": len(set(scores.pair))}
    return row
