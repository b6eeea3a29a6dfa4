"""The result of the audit of one finished model: one object that gives a text, a table, limits, a
picture and a page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

import mia_nb
from mia_nb import escape
from mia_nb.arguments import Delta
from mia_nb.attacks import in_words
from mia_nb.auditing.design import design
from mia_nb.auditing.gate import judge
from mia_nb.auditing.limits import limits as parsed_limits
from mia_nb.auditing.limits import refuse_unmeasurable
from mia_nb.auditing.result import Record, result
from mia_nb.auditing.shift import ShiftGuard
from mia_nb.auditing.verdicts import LimitVerdict
from mia_nb.metrics import accuracies, readable, readable_groups
from mia_nb.metrics.bootstrap import RESAMPLES
from mia_nb.metrics.null import SelfTest
from mia_nb.types import Scores, Signals

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

QUESTION = "Does this finished model give away which samples it was trained on?"


class ModelAudit(NamedTuple):
    """The result of `mia_nb.audit`."""

    headline: str  # the result in a sentence or two
    text: str  # the result in full
    table: pd.DataFrame  # of `metrics.summary`
    scores: dict[str, Scores]
    # `metrics.by_group` for the first attack of the table, which is fixed beforehand
    by_class: pd.DataFrame
    by_group: pd.DataFrame | None
    # that of the permutation test, with its p; its metric is the part that decided: auc, loss (the
    # mean loss) or tail (the largest scores)
    verdict: LimitVerdict
    self_test: SelfTest
    signals: Signals
    decided_by: tuple[str, ...]  # the attacks, in `scores`, that were tried for the verdict
    doubt: str = ""  # why nothing can be concluded; "" if something can
    units: np.ndarray | None = None  # (N,) of samples permuted together; None: single samples
    n_resamples: int = RESAMPLES
    seed: int = 0
    shift: ShiftGuard | None = None
    # the audit of the retrained models, each a target in turn, by the interval of the AUC
    twins: ModelAudit | None = None
    # suspicions and assumptions, which are to be read before the headline
    remarks: tuple[str, ...] = ()

    def limits(self, fail_if: Sequence[str], *, delta: Delta = 1e-5) -> list[LimitVerdict]:
        """What the audit says about limits such as "auc>0.6" or "tpr@0.1>0.2".

        fail_if: METRIC>LIMIT as for `auditing.limits`. delta: of an audited epsilon. Returns the
        verdicts of `auditing.judge` on the attacks that decided. Raises ValueError for a text that
        is no limit, and for limits that so few samples, or one model, cannot measure.
        """
        stated = parsed_limits(fail_if)
        tried = {name: self.scores[name] for name in self.decided_by}
        facts = self._design()
        refuse_unmeasurable(
            stated,
            models=facts["models"],
            split=facts["kind"],
            audited=facts["audited"],
            members=facts["members"],
            non_members=facts["non_members"],
            delta=delta,
            attacks=len(tried),
            units=facts["units"],
        )
        if not stated:
            return []
        return judge(
            stated,
            tried,
            delta=delta,
            doubt=self.doubt,
            groups=self.units,
            n_resamples=self.n_resamples,
            seed=self.seed,
        )

    def to_dict(self, fail_if: Sequence[str] = ()) -> Record:
        """The record that `mia-nb audit` writes as result.json: strict JSON, the verdict first and
        then those on the limits.
        """
        first = self.scores[self.decided_by[0]]
        record = result(
            question=QUESTION,
            design=self._design() | {"doubt": self.doubt},
            data={"samples": len(self.signals.labels), "classes": len(self.by_class)},
            models=accuracies(first),
            table=self.table,
            self_test=self.self_test,
            verdicts=[self.verdict, *self.limits(fail_if)],
            limits={},
            parameters={"fail_if": [*fail_if]},
            groups=self.by_class if self.by_group is None else self.by_group,
        )
        record["headline"] = " ".join([*self.remarks, self.headline])
        return record

    def plot(self) -> Figure:
        """The attacks' ROC curves, on linear axes and, on the right, on logarithmic ones."""
        return mia_nb.plots.roc_pair(self.scores)

    def report(
        self,
        out: str | Path = "audit.html",
        fail_if: Sequence[str] = (),
        *,
        name: str = "one finished model",
    ) -> Path:
        """Write one page, readable offline: the verdict, limits, picture and tables.

        out: the file. fail_if: limits to be judged. name: what was audited, for the title. Returns
        its path.
        """
        return mia_nb.report.audit_page(self, out, self.limits(fail_if), name=name)

    def model_card(self, fail_if: Sequence[str] = ()) -> str:
        """A section for a model card, in Markdown: remarks, the headline, each limit, a table of
        attacks.

        fail_if: limits to be judged.
        """
        judged = [verdict.sentence for verdict in self.limits(fail_if)]
        sentences = [*self.remarks, self.headline, *judged]
        paragraphs = [escape.markdown(sentence) for sentence in sentences]
        table = escape.cells(self.views()["attacks"], escape.markdown)
        rows = [["attack", *table.columns], ["---"] * (1 + table.shape[1])]
        for name, cells in table.iterrows():
            rows.append([name, *cells])
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n\n".join(["## Membership inference", *paragraphs, "\n".join(lines)]) + "\n"

    def metrics(self) -> dict[str, float]:
        """Numbers by name, as `mlflow.log_metrics` and `wandb.log` take them.

        Returns:
            p (of the permutation test) and, for each attack, `rmia/auc`, `rmia/tpr_at_0.01` and
            `rmia/advantage`, each with the ends of its interval, `rmia/auc_low` and
            `rmia/auc_high`. Numbers that could not be measured are left out.
        """
        numbers = {"p": float(self.verdict.p)}
        named = self.table["metric"].isin(["auc", "tpr", "advantage"])
        for row in self.table[named & self.table["measurable"]].to_dict("records"):
            attack = re.sub(r"[^\w.-]+", "_", str(row["attack"]))
            name = f"{attack}/{row['metric']}"
            if row["metric"] == "tpr":
                name += f"_at_{row['fpr']:g}"
            numbers[name] = row["value"]
            numbers[f"{name}_low"] = row["low"]
            numbers[f"{name}_high"] = row["high"]
        return {name: number for name, number in numbers.items() if math.isfinite(number)}

    def views(self) -> dict[str, pd.DataFrame]:
        """The tables below the text, by title."""
        views = {"attacks": readable(self.table[self.table["attack"] != "max"])}
        attack = in_words(self.decided_by[0])
        views[f"classes, by {attack}"] = readable_groups(self.by_class)
        if self.by_group is not None:
            views[f"groups, by {attack}"] = readable_groups(self.by_group)
        return views

    def __repr__(self) -> str:
        parts = [escape.lines(self.text)]
        for title, table in self.views().items():
            parts.append(f"{escape.terminal(title)}\n{escape.cells(table).to_string()}")
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        parts = [f"<p>{escape.html(line)}</p>" for line in self.text.split("\n")]
        for title, table in self.views().items():
            parts.append(f"<h4>{escape.html(title)}</h4>{escape.html_table(table)}")
        return "".join(parts)

    def _design(self) -> dict:
        """`design` of the models that were targets, and of their references."""
        first = self.scores[self.decided_by[0]]
        return design(self.signals, targets=first.targets)
