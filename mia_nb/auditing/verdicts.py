"""The verdict on each stated limit as a record, and a table of verdicts for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from mia_nb import escape
from mia_nb.attacks import in_words
from mia_nb.auditing.sentences import BELOW, EXCEEDED, OPEN, percent

RESULT = {EXCEEDED: "EXCEEDED", BELOW: "PASS", OPEN: "NOT ESTABLISHED"}
COLOURS = {EXCEEDED: "exceeded", BELOW: "not-exceeded"}  # classes in report.css


class LimitVerdict(NamedTuple):
    """The verdict on one limit.

    `low`, `high`: 95 % interval of the largest value over attacks (NaN: no such end). `p`: of the
    permutation test, if that decided (an audit of one finished model); else NaN. `tail`: a sentence
    if the largest scores give members away though the limit was not exceeded; else "".
    """

    limit: str
    outcome: str
    metric: str
    threshold: float
    value: float
    low: float
    high: float
    attack: str
    attacks: int
    n1: int
    n0: int
    targets: int
    sentence: str
    p: float = math.nan
    tail: str = ""

    def __repr__(self) -> str:
        return escape.terminal(self.sentence)

    def _repr_markdown_(self) -> str:
        return escape.markdown(self.sentence)


class LimitsTable:
    """Stated limits with the values measured and the result in a word, for people to read.

    `rows` has a dictionary for each limit: limit, measured, 95 % interval, strongest attack,
    result. A notebook shows a table, a terminal lines; a report colours decided limits, except
    those that are kept while the tail leaks.

    Example:
        >>> from mia_nb.auditing import LimitsTable
        >>> from mia_nb.auditing.verdicts import LimitVerdict
        >>> measured = ("auc", 0.6, 0.7, 0.65, 0.75, "rmia", 2, 9, 9, 4, "")
        >>> print(LimitsTable([LimitVerdict("auc>0.6", "exceeded", *measured)]))
          limit measured 95 % interval strongest attack   result
        auc>0.6    0.700  0.650, 0.750             RMIA EXCEEDED
    """

    def __init__(self, verdicts: Sequence[LimitVerdict]) -> None:
        """From the verdicts of `judge`."""
        self.verdicts = list(verdicts)
        self.rows = [_row(verdict) for verdict in self.verdicts]

    def __repr__(self) -> str:
        if not self.rows:
            return "no limit was stated"
        return escape.lines(pd.DataFrame(self.rows).to_string(index=False))

    def _repr_html_(self) -> str:
        if not self.rows:
            return ""
        heads = "".join(f"<th>{escape.html(name)}</th>" for name in self.rows[0])
        lines = []
        for verdict, row in zip(self.verdicts, self.rows, strict=True):
            *others, result = (escape.html(cell) for cell in row.values())
            cells = [*others, f"<strong>{result}</strong>"]
            colour = "" if verdict.tail else COLOURS.get(verdict.outcome, "")
            opening = f'<tr class="{colour}">' if colour else "<tr>"
            lines.append(f"{opening}<td>{'</td><td>'.join(cells)}</td></tr>")
        body = "".join(lines)
        return f'<table class="limits"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'


def _row(verdict: LimitVerdict) -> dict[str, str]:
    """One line of the table; rates are percentages, other measures have three decimals."""

    def shown(value: float) -> str:
        if math.isnan(value):
            return "not measurable"
        if verdict.metric.startswith("tpr"):
            return percent(value)
        return f"{value:.3f}"

    interval = f"{shown(verdict.low)}, {shown(verdict.high)}"
    if math.isnan(verdict.high):
        interval = "not measurable" if math.isnan(verdict.low) else f"{shown(verdict.low)} or more"
    result = RESULT[verdict.outcome]
    if verdict.tail and verdict.outcome == BELOW:
        result += ", but the tail leaks"
    return {
        "limit": verdict.limit,
        "measured": shown(verdict.value),
        "95 % interval": interval,
        "strongest attack": in_words(verdict.attack) if verdict.attack else "",
        "result": result,
    }
