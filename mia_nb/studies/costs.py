"""Table VI of Hong, Wu, Gruber and Lee (arXiv 2501.06686), the costs of training, beside ours."""

from __future__ import annotations

import numpy as np
import pandas as pd

from mia_nb.checks import checked
from mia_nb.studies.paper_numbers import PRINTED_MODELS, paper_results

COSTS = {"time_per_epoch": "seconds", "memory": "memory_mib"}  # printed metric: our column
BASELINE = "resnet14"  # costs are ratios to its costs


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
