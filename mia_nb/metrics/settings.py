"""Risk against the settings of an equation, one setting at a time."""

from __future__ import annotations

import pandas as pd

from mia_nb.checks import checked
from mia_nb.metrics.flow_published import ADAPTIVE, FlowCell
from mia_nb.metrics.tables import accuracies, intervals
from mia_nb.metrics.uncertainty import RESAMPLES
from mia_nb.types import Scores

VARIANTS = ("odenet64", "anode", "sonode", "hbnode")
HELD = ("model", "blocks", "method", "k", "steps", "T", "noise_train", "noise", "variant")
# what is compared: the fields that may differ besides it, and those that are held in their place
FREE = {
    "method": ((), ()), "blocks": ((), ()), "k": (("model",), ()), "T": ((), ()), "steps": ((), ()),
    "T at equal sigma": (("T", "k"), ("sigma",)), "steps at equal sigma": (("steps", "k"), ("sigma",)),
    "sigma": (("model", "k"), ()), "noise_sd": (("model", "k", "T", "steps"), ()),
}  # fmt: skip
OTHER_UNITS = ("sigma", "noise_sd")


@checked
def varied_settings(
    strongest: dict[FlowCell, Scores], *, draws: int = RESAMPLES, seed: int = 0
) -> dict[str, pd.DataFrame]:
    """Tables for `plots.risk_against`: {setting: a row per family}, for every setting that families differ in.

    strongest: the scores of one attack on each setting (its word in the cell does not matter). "method", "blocks", "k", "T",
    "steps": families of ODENets and SDENets that differ in nothing else, a `group` for each set of the others (an adaptive
    solver has no number of steps: it is in every group of fixed ones). "T at equal sigma", "steps at equal sigma": SDENets that
    may also differ in k, but not in sigma = k sqrt(steps / T). "sigma": those that may also differ in k; "noise_sd": those of
    one method and number of blocks; both left out where all have the same steps and T, which makes them k in other units.
    "equation": ODENet-64 and its variants. Families that coincide in the setting are grouped by T and steps too; where they
    still do, the setting is left out. Columns: the setting, auc, auc_low, auc_high (`intervals`), train_acc and test_acc with
    _low and _high (Student's t over pairs), n1, n0, pairs, group, label.
    Source: Figures 2, 6, 10 and 11 of Hong, Wu, Gruber and Lee (arXiv 2501.06686).
    """
    families = pd.DataFrame([_row(cell, scores, draws, seed) for cell, scores in strongest.items()])
    if families.empty:
        return {}
    found, flows = {}, families[families["model"].isin(["odenet", "sdenet"])]
    for what, (free, instead) in FREE.items():
        held = [name for name in HELD if name != what and name not in free] + list(instead)
        rows = (
            _beside_fixed(flows)
            if what == "method"
            else flows[flows["k"] > 0]
            if instead
            else flows
        )
        rows = rows.assign(**{what: rows[what.removesuffix(" at equal sigma")]})
        table = _grouped(rows, held, what)
        if table.duplicated(["group", what]).any():
            table = _grouped(rows, list(dict.fromkeys([*held, "T", "steps"])), what)
        in_other_units = what in OTHER_UNITS and len(table[["steps", "T"]].drop_duplicates()) < 2
        if len(table) and not in_other_units and not table.duplicated(["group", what]).any():
            found[what] = table
    variants = families[families["model"].isin(VARIANTS)]
    if len(variants) > 1:
        found["equation"] = variants.assign(equation=variants["label"], group="")
    return found


def _grouped(rows: pd.DataFrame, held: list[str], what: str) -> pd.DataFrame:
    """Rows of the groups, named by what is held and differs between them, in which the setting varies."""
    words = [
        rows[name].map(lambda value, name=name: f"{name} {_text(value)}")
        for name in held
        if rows[name].nunique() > 1
    ]
    group = words[0].str.cat(words[1:], sep=", ") if words else pd.Series("", rows.index)
    return (
        rows.assign(group=group)
        .groupby("group", sort=False)
        .filter(lambda one: one[what].nunique() > 1)
    )


def _text(value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _beside_fixed(flows: pd.DataFrame) -> pd.DataFrame:
    """Families with one copy of each adaptive solver for every number of steps that fixed ones take."""
    adaptive = flows["method"].isin(ADAPTIVE)
    steps = flows.loc[~adaptive, ["steps"]].drop_duplicates()
    if not adaptive.any() or steps.empty:
        return flows
    return pd.concat(
        [flows[~adaptive], flows[adaptive].drop(columns="steps").merge(steps, how="cross")],
        ignore_index=True,
    )


def _row(cell: FlowCell, scores: Scores, draws: int, seed: int) -> dict:
    """One family: its setting, risk and accuracies."""
    auc, right = intervals(scores, (), draws=draws, seed=seed).loc["auc"], accuracies(scores)
    row = {name: getattr(cell, name) for name in HELD} | {"label": cell.label}
    row |= {
        "sigma": float(f"{cell.sigma:.4g}"),
        "noise_sd": float(f"{cell.noise_sd:.4g}"),
    }  # 2.0000001 is 2
    row |= {
        f"auc{end}": auc[name] for end, name in (("", "value"), ("_low", "low"), ("_high", "high"))
    }
    for side in ("train", "test"):
        row |= {
            f"{side}_acc{end}": right.loc[side, name]
            for end, name in (("", "value"), ("_low", "low"), ("_high", "high"))
        }
    row |= {
        "n1": int(scores.member[0].sum()),
        "n0": int((~scores.member[0]).sum()),
        "pairs": len(set(scores.pair)),
    }
    return row
