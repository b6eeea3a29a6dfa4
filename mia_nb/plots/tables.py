"""Checks of tables before they are drawn, and the words for their metrics."""

from __future__ import annotations

import numpy as np
import pandas as pd

METRIC_NAMES = {
    "train_acc": "train accuracy",
    "test_acc": "test accuracy",
    "train_loss": "training loss",
    "gap": "train accuracy - test accuracy",
    "auc": "AUC",
    "energy_uj": "energy for an image (µJ)",
}


def need(
    table: pd.DataFrame,
    columns: tuple[str, ...],
    who: str,
    finite: tuple[str, ...] = (),
    once: tuple[str, ...] = (),
) -> None:
    """Refuse a table that cannot be drawn, in one line.

    Parameters:
        columns: columns that the table must have
        who: name of the plot or the table for the message
        finite: columns whose values must be finite numbers
        once: columns whose values together identify a row

    Raises:
        ValueError: for a missing column, no row, a value that is not finite, or a repeated row.
    """
    missing = ", ".join(name for name in columns if name not in table.columns)
    if missing:
        raise ValueError(
            f"{who} got columns {list(table.columns)}; {missing} missing: wanted"
            f" {', '.join(columns)}"
        )
    if not len(table):
        raise ValueError(f"{who} got a table without rows: nothing was measured")
    for name in finite:
        bad = table[~np.isfinite(table[name].astype(float))]
        if len(bad):
            row = bad.iloc[0]
            raise ValueError(
                f"{who}: {name} is {row[name]} in the row {row.drop(name).to_dict()}: drop the row"
                " or measure it"
            )
    if once and table.duplicated(list(once)).any():
        row = table[table.duplicated(list(once))].iloc[0]
        values = ", ".join(f"{name} = {text(row[name])}" for name in once if row[name] != "")
        raise ValueError(f"{who}: {values} comes more than once: wanted one row per {once[-1]}")


def metric_name(metric: str, fpr: float | None = None) -> str:
    """The name in words of a metric of the tables: "auc", "tpr@0.01", or "tpr" with its rate."""
    if metric == "tpr" and fpr is not None and np.isfinite(fpr):
        metric = f"tpr@{fpr:g}"
    if metric.startswith("tpr@"):
        return f"TPR at {100 * float(metric.removeprefix('tpr@')):g} % FPR"
    return METRIC_NAMES.get(metric, metric)


def text(value: str | float) -> str:
    """A setting as text: words as they are, numbers in short form."""
    if isinstance(value, str):
        return value
    return "∞" if value == np.inf else f"{value:g}"
