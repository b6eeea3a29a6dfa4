"""Table VI of Hong, Wu, Gruber and Lee (arXiv 2501.06686), the costs of training, beside ours."""

from __future__ import annotations

import numpy as np
import pandas as pd

from mia_nb.checks import checked
from mia_nb.studies.paper_numbers import paper_results

COSTS = {"time_per_epoch": "seconds", "memory": "memory_mib"}  # printed metric: our column
BASELINE = "resnet14"  # costs are ratios to its costs


@checked
def costs_beside(cost: pd.DataFrame) -> pd.DataFrame:
    """Table VI with ours beside it, see `against_papers`."""
    families = [*cost["family"]]
    if families.count(BASELINE) != 1 or len(set(families)) < len(families):
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
        row = {"model": model, "printed": record["setting"]["label"]}
        row |= {"metric": record["metric"], "published": record["value"], "unit": record["unit"]}
        row["ours"] = ours[COSTS[record["metric"]]].get(model, np.nan)
        rows.append(row | {"note": "; ".join(notes)})
    table = pd.DataFrame(rows)
    baseline = table[table["model"] == BASELINE].set_index("metric")
    for name, values in (("published_ratio", "published"), ("ratio", "ours")):
        table[name] = table[values] / table["metric"].map(baseline[values])
    return table
