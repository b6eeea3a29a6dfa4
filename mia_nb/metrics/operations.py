"""The computation that networks do for an image, beside their leakage."""

from __future__ import annotations

import numpy as np
import pandas as pd

from mia_nb.checks import checked
from mia_nb.metrics.tables import rows_of
from mia_nb.metrics.uncertainty import interval
from mia_nb.types import Scores

# {metric of the long table: (column of `querying.operations`, its unit in units of the metric)}
MEASURED = {
    "multiply_accumulates": ("multiply_accumulates", 1.0),
    "accumulates": ("accumulates", 1.0),
    "energy_uj": ("energy_nj", 1e-3),
}


@checked
def with_operations(
    table: pd.DataFrame,
    scores: Scores,
    operations: pd.DataFrame | dict,
) -> pd.DataFrame:
    """A long table of results, followed by the computation that the networks do for one image.

    Parameters:
        table: of `summary`, of the attacks on one pool.
        scores: of one of these attacks, whose targets and pairs the networks are.
        operations: of `querying.operations`, a row for each model of the pool; or the same as
            lists, as in `load_example(name).info["operations"]`.

    Returns:
        the table with three more rows for each attack, metric multiply_accumulates, accumulates and
        energy_uj (microjoules): the mean over targets and Student's 95 % interval over pairs, as
        for accuracies.

    Raises:
        ValueError: where operations lack a target.

    Caveat: energy is that of the arithmetic of one query alone.

    Example:
        >>> import mia_nb as mia
        >>> signals = mia.load_example("cifar10/fast-hybrid-T1")
        >>> scores = mia.score("loss", signals)
        >>> table = mia.summary({"loss": scores}, n_resamples=20)
        >>> table = with_operations(table, scores, signals.info["operations"])
        >>> bool(6 < mia.metrics.by_attack(table, "energy_uj").loc["loss", "value"] < 8)
        True
    """
    rows = []
    last_target = max(scores.targets)
    for metric, (column, unit) in MEASURED.items():
        by_model = np.asarray(operations[column], float) * unit
        if by_model.ndim != 1 or len(by_model) <= last_target:
            raise ValueError(
                f"operations of {by_model.size} models: wanted those of all models of the pool, of"
                f" which {last_target + 1} or more were attacked"
            )
        values = by_model[scores.targets]
        low, high = interval(values, scores.pair)
        measured = {
            "metric": metric,
            "value": values.mean(),
            "low": low,
            "high": high,
            "smallest": values.min(),
            "largest": values.max(),
        }
        # copied from the row of an accuracy, which is a mean over targets without rate or chance
        rows.append(rows_of(table, "test_acc").assign(**measured))
    return pd.concat([table, *rows], ignore_index=True)
