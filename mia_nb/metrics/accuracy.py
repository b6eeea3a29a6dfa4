"""Accuracy of models on their members and on other samples, overall and for each class."""

from __future__ import annotations

import numpy as np
import pandas as pd

from mia_nb.checks import checked
from mia_nb.metrics.pairs import need_membership
from mia_nb.metrics.uncertainty import interval
from mia_nb.types import Scores, Signals


@checked
def accuracies(scores: Scores) -> pd.DataFrame:
    """Mean accuracy over targets on members (train), on non-members (test), and their gap.

    Parameters:
        scores: of any attack on the models that are measured.

    Returns:
        index train, test, gap; columns value, low, high: Student's 95 % interval over pairs, since
        one model of a pair is trained on what the other is not; NaN ends with one pair.
    """
    train, test = scores.accuracy.T
    values = np.column_stack([train, test, train - test])
    smallest_possible = [0, 0, -1]
    low, high = interval(values, scores.pair, within=(smallest_possible, 1))
    table = {"value": values.mean(0), "low": low, "high": high}
    return pd.DataFrame(table, index=["train", "test", "gap"])


@checked
def class_gaps(signals: Signals) -> pd.DataFrame:
    """Train and test accuracy of every class, over all models and queries.

    Parameters:
        signals: with membership; only audited samples count.

    Returns:
        index class; columns samples, train_acc, test_acc, gap; NaN for a class of which no model
        has a member (train_acc and gap) or a non-member (test_acc and gap).

    Raises:
        ValueError: for hidden membership.
    """
    need_membership(signals, "train and test accuracy need it")
    audited = ~signals.population
    labels = signals.labels[audited]
    correct = signals.correct.mean(1)[:, audited]
    member = signals.member[:, audited]
    rows = {}
    for label in np.unique(labels):
        in_class = labels == label
        class_correct = correct[:, in_class]
        class_member = member[:, in_class]
        train_acc = np.nan
        test_acc = np.nan
        if class_member.any():
            train_acc = class_correct[class_member].mean()
        if not class_member.all():
            test_acc = class_correct[~class_member].mean()
        rows[int(label)] = (in_class.sum(), train_acc, test_acc, train_acc - test_acc)
    columns = ["samples", "train_acc", "test_acc", "gap"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("class")
