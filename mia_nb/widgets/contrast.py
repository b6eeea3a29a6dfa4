"""Outputs side by side under one attack: their metrics, and the sentence and notes about them."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb import attacks, metrics
from mia_nb.checks import quantity
from mia_nb.metrics.pairs import same_masks
from mia_nb.metrics.queries import UNAVERAGED
from mia_nb.metrics.tables import rates_of, rows_of
from mia_nb.plots.tables import metric_name
from mia_nb.widgets.controls import attack_options
from mia_nb.widgets.explorer import View
from mia_nb.widgets.families import Outputs
from mia_nb.widgets.matching import same_images
from mia_nb.widgets.pictures import side_by_side
from mia_nb.widgets.stored import ALL, only
from mia_nb.widgets.words import ORACLE, remarks, with_interval

RESAMPLES = 200  # of the bootstrap
SCORES_KEPT = 12  # of 7 MB each for 16 targets and 50,000 samples
VIEWS_KEPT = 256  # tables and pictures
APART = 0.01  # difference of test accuracy above which a note warns
TIED = 0.01  # share of scores that equal another's above which a note says so
POINTER = "\N{BLACK RIGHT-POINTING TRIANGLE}"
ENERGY_WORDS = "energy for an image, µJ"
UNPAIRED = "other members or images: not paired"


class Contrast(NamedTuple):
    """Results under one attack: the long table of each, and its gain in AUC over its reference."""

    attack: str
    tables: dict[Outputs, pd.DataFrame]  # the chosen result comes first
    changes: dict[Outputs, pd.Series | None]  # in AUC; None where the two cannot be paired

    @property
    def chosen_table(self) -> pd.DataFrame:
        """The table of the chosen result."""
        return next(iter(self.tables.values()))

    def sentence(self) -> str:
        """The results, their differences and the sample size in words.

        "after 2 of 4 steps: RMIA finds 12.0 % (95 %: 10.1-14.0) of members at 10 % false positives;
        ordinary network: ...; the difference: AUC +0.004 [...], paired; n0 = 898"
        """
        short = short_names(outputs.name for outputs in self.tables)
        return "; ".join([*self._rates(short), *self._differences(short), self._size()])

    def _rates(self, short: dict[str, str]) -> list[str]:
        """The rate of each result in words, of the chosen one with the attack's name."""
        metric, fpr = headline(list(self.tables.values()))
        attack = attacks.in_words(self.attack)
        rates = []
        for table in self.tables.values():
            rates.append(rate_with_interval(rows_of(table, metric, fpr).iloc[0], fpr))
        if fpr is None:
            rates[0] = f"{attack} has {rates[0]}"
        else:
            rates[0] = f"{attack} finds {rates[0]} of members at {100 * fpr:g} % false positives"
        names = [short[outputs.name] for outputs in self.tables]
        return [f"{name}: {rate}" for name, rate in zip(names, rates, strict=True)]

    def _differences(self, short: dict[str, str]) -> list[str]:
        """The differences of AUC in words; of several with the names of both results."""
        parts = []
        for outputs, change in self.changes.items():
            who = "the difference"
            if len(self.changes) > 1:
                reference = outputs.reference.name
                who = f"{short[outputs.name]} minus {short.get(reference, reference)}"
            parts.append(f"{who}: {change_in_words(change)}")
        return parts

    def _size(self) -> str:
        """The number of non-members of a target, or its range over the results."""
        sizes = [int(table["n0"].min()) for table in self.tables.values()]
        if max(sizes) > min(sizes):
            return f"n0 = {min(sizes):,} to {max(sizes):,}"
        return f"n0 = {min(sizes):,}"

    def notes(self, *, caption: str = "", tried: int = 0) -> list[str]:
        """The remarks: sample sizes, unequal accuracies, ties, choices with hindsight.

        Parameters:
            caption: a remark on what the attacker is given
            tried: number of settings that a reader can choose among
        """
        sizes = self.chosen_table.iloc[0]
        accuracies = {}
        for outputs, table in self.tables.items():
            accuracies[outputs.name] = rows_of(table, "test_acc")["value"].iloc[0]
        apart = max(accuracies.values()) - min(accuracies.values())
        tied = max(table["tie_mass"].iloc[0] for table in self.tables.values())

        notes = [
            f"{quantity(sizes['targets'], 'target')} with {sizes['n1']:,} members and"
            f" {sizes['n0']:,} non-members each",
            caption,
        ]
        if apart > APART:
            worst = min(accuracies, key=accuracies.get)
            notes.append(
                f"test accuracies lie {100 * apart:.1f} points apart, {worst} has the lowest: at"
                " unequal accuracy risks compare unfairly"
            )
        if tied > TIED:
            notes.append(
                f"{100 * tied:.0f} % of scores equal another's: few outputs hide without protecting"
            )
        if tried > 2:  # choosing between two is hardly a search
            notes.append(
                f"one of {tried} settings tried on the same targets: to pick the best by this"
                " picture flatters the attacker; metrics.choose picks on other models"
            )
        notes.append(ORACLE)
        return notes

    def view(
        self, figures: dict[str, dict], texts: pd.DataFrame, long: pd.DataFrame, notes: list[str]
    ) -> View:
        """The view of an explorer.

        Parameters:
            figures: {place: figure}
            texts: the table that is shown
            long: the rows that CSV saves; rows of the paired differences are added
            notes: the remarks; the flags of the attack are added
        """
        flags = self.chosen_table["flags"].iloc[0].split("; ")
        differences = []
        for outputs, change in self.changes.items():
            if change is None:
                continue
            metric = f"auc minus {outputs.reference.name}"
            row = {"family": outputs.name, "attack": self.attack, "metric": metric}
            differences.append(row | dict(change))
        saved = pd.concat([long, pd.DataFrame(differences)], ignore_index=True)
        return View(self.sentence(), figures, texts, remarks([*notes, *flags]), saved)


def contrast_of(shown: Sequence[Outputs], attack: str, target: int | str) -> Contrast:
    """The contrast of these outputs, each with its reference if it has one."""
    tables = {}
    changes = {}
    for outputs in shown:
        tables[outputs] = table_of(outputs, attack, target)
        if outputs.reference is not None:
            changes[outputs] = auc_gain(outputs, attack, target)
    return Contrast(attack, tables, changes)


scores_of = lru_cache(SCORES_KEPT)(Outputs.scores)


@lru_cache(VIEWS_KEPT)
def table_of(outputs: Outputs, attack: str, target: int | str) -> pd.DataFrame:
    """The rows of `mia.summary`, under the name of the outputs."""
    scores = only(scores_of(outputs, attack), target)
    table = metrics.summary({attack: scores}, n_resamples=RESAMPLES)
    if outputs.energy is not None:
        table = metrics.with_operations(table, scores, outputs.source.info["operations"])
    table = table[table["attack"] == attack].reset_index(drop=True)
    table.insert(0, "family", outputs.name)
    return table


@lru_cache(VIEWS_KEPT)
def auc_gain(outputs: Outputs, attack: str, target: int | str) -> pd.Series | None:
    """AUC minus the reference's: value, low, high; None where the two cannot be paired."""
    reference = outputs.reference
    scores = only(scores_of(outputs, attack), target)
    reference_scores = only(scores_of(reference, attack), target)
    if not same_images(outputs.source, reference.source):
        return None
    if not same_masks(scores, reference_scores):
        return None
    return metrics.difference(scores, reference_scores, (), n_resamples=RESAMPLES).loc["auc"]


@lru_cache(VIEWS_KEPT)
def pictures_of(shown: tuple[Outputs, ...], attack: str, target: int | str) -> dict[str, dict]:
    """Histogram and ROC of these outputs, by their short names."""
    short = short_names(outputs.name for outputs in shown)
    scores = {}
    for outputs in shown:
        scores[short[outputs.name]] = only(scores_of(outputs, attack), target)
    return side_by_side(scores, attack)


def headline(tables: Sequence[pd.DataFrame]) -> tuple[str, float | None]:
    """The metric of the sentence: the TPR at the smallest rate that is measurable in all tables and
    not 0 because of ties, else the AUC.
    """
    for fpr in rates_of(tables[0]):
        rows = [rows_of(table, "tpr", fpr).iloc[0] for table in tables]
        if all(row["measurable"] and not _zero_by_ties(row, fpr) for row in rows):
            return "tpr", fpr
    return "auc", None


def _zero_by_ties(row: pd.Series, fpr: float) -> bool:
    """Whether a TPR may be 0 because no threshold parts tied scores at this rate."""
    return row["fpr_floor"] > fpr and not row["value"] > 0


def short_names(names: Iterable[str]) -> dict[str, str]:
    """{name: name without the parts between commas that all names share}; full names where one name
    would become empty.
    """
    parts = {name: name.split(", ") for name in names}
    shared = set.intersection(*map(set, parts.values()))
    short = {}
    for name, words in parts.items():
        short[name] = ", ".join(word for word in words if word not in shared)
    return short if all(short.values()) else {name: name for name in parts}


def rate_with_interval(row: pd.Series, fpr: float | None) -> str:
    """A TPR in per cent, or an AUC if fpr is None, with its interval."""
    if fpr is None:
        return f"AUC {row['value']:.3f} (95 %: {row['low']:.3f}-{row['high']:.3f})"
    value, low, high = 100 * row[["value", "low", "high"]]
    form = ".2f" if fpr < 0.01 else ".1f"
    return f"{value:{form}} % (95 %: {low:{form}}-{high:{form}})"


def change_in_words(change: pd.Series | None) -> str:
    """A paired difference of AUC (value, low, high) in words; without `change` it cannot be
    paired.
    """
    if change is None:
        return UNPAIRED
    nothing = ", which may be nothing" if change["low"] <= 0 <= change["high"] else ""
    return f"AUC {with_interval(*change, '+.3f')}, paired{nothing}"


def numbers_table(table: pd.DataFrame, chosen: Outputs) -> pd.DataFrame:
    """The long table for a reader: a row for each family, an arrow at the chosen one."""
    view = metrics.readable(table.assign(attack=table["family"]), full=True)
    view = view.drop(columns=["train / test accuracy", "gap", "flags"])
    for fpr in rates_of(table):
        if not rows_of(table, "tpr", fpr)["measurable"].any():
            view = view.drop(columns=f"TPR at {100 * fpr:g} % FPR")

    def add_column(title: str, metric: str, form: str) -> None:
        """A metric with its interval."""
        rows = rows_of(table, metric).set_index("family").reindex(view.index)
        intervals = rows[["value", "low", "high"]].to_numpy()
        view[title] = [with_interval(*interval, form) for interval in intervals]

    for metric in ("train_acc", "test_acc", "gap"):
        add_column(metric_name(metric), metric, ".3f")
    if (table["metric"] == "energy_uj").any():
        add_column(ENERGY_WORDS, "energy_uj", ".3g")
    view = view.rename_axis("family").reset_index()
    view.insert(0, "", np.where(view["family"] == chosen.name, POINTER, ""))
    return view


def offered_attacks(shown: Sequence[Outputs]) -> list[tuple[str, str]]:
    """(name in words, key) of the attacks that all outputs support, the headline first; for chosen
    queries only attacks that average queries.
    """
    first, *others = shown
    names = first.source.attacks()
    for outputs in others:
        supported = outputs.source.attacks()
        names = [name for name in names if name in supported]
    if first.queries is not None:
        names = [name for name in names if averages(name)]
    return attack_options(names)


def averages(attack: str) -> bool:
    """Whether an attack takes the mean of several queries."""
    options = getattr(attacks.ATTACKS[attack], "keywords", {})  # of a partial
    return options.get("combine") not in UNAVERAGED


def offered_targets(shown: Sequence[Outputs]) -> list[int | str]:
    """The options of a control of targets: all, or one that all outputs have."""
    fewest = min(len(outputs.source.signals.margin) for outputs in shown)
    return [ALL, *range(fewest)]
