"""Scores and ROC: one threshold as a line in the histogram, a point on the curve, and numbers."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from mia_nb import metrics, plots
from mia_nb.attacks import in_words
from mia_nb.checks import fraction
from mia_nb.metrics.curve import tie_mass
from mia_nb.metrics.targets import smallest
from mia_nb.plots.curves import band
from mia_nb.plots.style import GREY
from mia_nb.plots.views import rank_among
from mia_nb.types import Scores
from mia_nb.widgets.controls import Ticks, attack_options, buttons, chooser, dropdown, steps
from mia_nb.widgets.explorer import Explorer, View, message
from mia_nb.widgets.figure import plain, with_layout, with_line, with_title
from mia_nb.widgets.pictures import INSIDE, ranked
from mia_nb.widgets.stored import ALL, NOTHING, Source, list_of_sources, named, only
from mia_nb.widgets.words import ORACLE, number_text, remarks, with_interval

TITLE = "Scores and ROC"
PRIORS = {"1/2": 0.5, "1/10": 0.1, "1/100": 0.01}
BOTH = "numbers and star: one threshold for all targets; the curve: a threshold for each"
BAND = "the interval is that of the curve's band, which is wider than a table's"
STEPS = 150  # positions of the threshold
LINED = {"legend": INSIDE, "meta": "drag the line"}


def scores(sources: Sequence[Source], *, attacks: Sequence[str] = (), at: float = 0.1) -> Explorer:
    """Histogram and ROC of one attack on one pool with a movable threshold, and the ROC of other
    attacks to compare.

    Parameters:
        sources: stored results to choose a pool from, as `widgets.sources` lists them
        attacks: names of the attacks to offer; () for all that the pool's references support
        at: false-positive rate, 0 to 1, at which the threshold starts

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` exports it. Without sources a message that says what to run.

    Rates are means over targets, with the interval of `plots.roc_pair`: pointwise, the wider of
    Clopper-Pearson on one target's samples and Student t over pairs of targets. PPV = prior TPR /
    (prior TPR + (1 - prior) FPR): the share of right accusations.

    Caveat: the threshold is set with hindsight; an attacker does a little worse.

    Example: `widgets.scores(widgets.sources("results")).set(attack="rmia").sentence`
    """
    pools = named(list_of_sources(sources))
    fraction("at", at)
    if not pools:
        return message(TITLE, NOTHING)

    def offered(pool: str) -> tuple[str, ...]:
        """The attacks to choose from."""
        return tuple(attacks or pools[pool].attacks())

    def start(pool: str, attack: str, target: int | str) -> float:
        """The threshold whose false-positive rate is nearest to the wanted one."""
        rates = rates_of(pools[pool], attack, target)
        return min(rates.grid(), key=lambda threshold: abs(rates.at(threshold).fpr - at))

    def draw(
        pool: str,
        target: int | str,
        attack: str,
        compare: tuple[str, ...],
        threshold: float,
        prior: str,
    ) -> View:
        """The histogram, the ROC, and the rates of this threshold."""
        source = pools[pool]
        rates = rates_of(source, attack, target)
        outcome = rates.at(threshold)
        ppv = np.nan
        if outcome.true_positives + outcome.false_positives > 0:
            ppv = metrics.ppv(outcome.tpr, outcome.fpr, PRIORS[prior])
        histogram, roc = pictures_of(source, attack, target, compare)
        place = float(rank_of(rates.scores)(threshold))
        figures = {
            "histogram": with_line(histogram, place, editable=True),
            "roc": with_star(roc, outcome.fpr, outcome.tpr),
        }
        notes = [ORACLE, BOTH, BAND] if target == ALL else [ORACLE, BAND]
        return View(
            sentence(attack, rates, outcome, prior, ppv),
            figures,
            pd.DataFrame([shown_row(rates, outcome, prior, ppv)]),
            remarks([*notes, *rates.scores.info["flags"]]),
            pd.DataFrame([saved_row(attack, rates, outcome, prior, ppv)]),
        )

    def others(pool: str, attack: str) -> list[str]:
        """The attacks that may be compared with the chosen one."""
        return [name for name in offered(pool) if name != attack]

    def dragged(x: float, values: dict) -> dict:
        """The threshold of the grid that is nearest to the dragged line."""
        rates = rates_of(pools[values["pool"]], values["attack"], values["target"])
        place = rank_of(rates.scores)
        return {"threshold": min(rates.grid(), key=lambda threshold: abs(place(threshold) - x))}

    # options that depend on the pool are filled in by `follow`, whose errors the explorer shows
    controls = {
        "pool": chooser("pool", pools),
        "target": dropdown("target", [ALL], ALL),
        "attack": dropdown("attack"),
        "compare": Ticks("compare with", ["loss"], ["loss"]),
        "threshold": steps("threshold", [("", 0.0)], 0.0),
        "prior": buttons("prior", list(PRIORS), "1/2"),
    }
    follow = {
        "target": {"options": lambda pool: pools[pool].targets},
        "attack": {"options": lambda pool: attack_options(offered(pool))},
        "compare": {"options": others},
        "threshold": {
            "options": lambda pool, attack, target: rates_of(pools[pool], attack, target).marks(),
            "value": start,
        },
    }
    return Explorer(
        TITLE,
        controls,
        draw,
        question="Where would you put the threshold, and what does it cost?",
        rows=[["histogram"], ["roc"]],
        follow=follow,
        pools=pools,
        heights={"histogram": 190, "roc": 268},
        wide=["threshold"],
        drags={"histogram": dragged},
    )


class Outcome(NamedTuple):
    """The accusations of one threshold; rates are means over targets."""

    threshold: float
    tpr: float
    fpr: float
    low: float  # ends of the TPR's interval
    high: float
    true_positives: int
    false_positives: int


class Rates:
    """TPR and FPR of Scores at any threshold, by sorting once; a score equal to it is accused."""

    def __init__(self, scores: Scores):
        self.scores = scores
        self.inside = []
        self.outside = []
        for value, member in zip(scores.value, scores.member, strict=True):
            scored = ~np.isnan(value)
            self.inside.append(np.sort(value[member & scored]))
            self.outside.append(np.sort(value[~member & scored]))
        self.n1 = np.array([len(side) for side in self.inside])
        self.n0 = np.array([len(side) for side in self.outside])

    def at(self, threshold: float) -> Outcome:
        """The outcome of this threshold."""
        tp = np.array([len(side) - np.searchsorted(side, threshold) for side in self.inside])
        fp = np.array([len(side) - np.searchsorted(side, threshold) for side in self.outside])
        tpr = tp / self.n1
        (low,), (high,) = band(tpr[:, None], self.scores.pair, int(self.n1.min()))
        fpr = float((fp / self.n0).mean())
        return Outcome(
            threshold=threshold,
            tpr=float(tpr.mean()),
            fpr=fpr,
            low=float(low),
            high=float(high),
            true_positives=int(tp.sum()),
            false_positives=int(fp.sum()),
        )

    @cached_property
    def auc(self) -> pd.Series:
        """The area under the curve: value, low, high."""
        return metrics.intervals(self.scores, (), n_resamples=200).loc["auc"]

    @cached_property
    def ties(self) -> float:
        """Share of scores that equal another's, mean over targets."""
        return np.mean([tie_mass(row) for row in self.scores.value])

    def grid(self) -> list[float]:
        """Thresholds from accusing all to accusing none: even steps of the normal quantile of the
        false-positive rate, and the rates in tables.
        """
        inside = np.concatenate(self.inside)
        outside = np.concatenate(self.outside)
        # from a rate of 98 % to that of a single false positive
        last = max(-ndtri(1 / self.n0.min()), 0)
        even_steps = ndtr(-np.linspace(-2, last, STEPS))
        fpr = np.array([1, *metrics.targets.FPR, *even_steps])
        thresholds = np.quantile(outside, 1 - fpr, method="higher")
        above_all = np.nextafter(max(outside.max(), inside.max()), np.inf)
        grid = np.unique(np.append(thresholds, above_all))
        return grid[np.isfinite(grid)].tolist()

    def marks(self) -> list[tuple[str, float]]:
        """The grid for a slider: (false-positive rate in words, threshold)."""
        outside = np.sort(np.concatenate(self.outside))
        thresholds = self.grid()
        fpr = 1 - np.searchsorted(outside, thresholds) / len(outside)
        labels = [f"{100 * rate:.3g} %" for rate in fpr]
        return list(zip(labels, thresholds, strict=True))


def rates_of(source: Source, attack: str, target: int | str) -> Rates:
    """The rates of one attack on one target, or on all."""
    rates = rates_of_scores(source.scores(attack), target)
    if rates is None:
        raise ValueError(
            f"{in_words(attack)} scored no member or no non-member of a model of {source.label}: a"
            " threshold wants some of each"
        )
    return rates


@lru_cache(16)  # by scores, as another function may have been entered under an attack's name
def rates_of_scores(scores: Scores, target: int | str) -> Rates | None:
    """The rates on one target, or on all; None where no member or no non-member is scored."""
    scored = only(scores, target)
    return None if min(smallest(scored)) == 0 else Rates(scored)


def pictures_of(
    source: Source, attack: str, target: int | str, others: tuple[str, ...]
) -> tuple[dict, dict]:
    """Histogram and ROC without the threshold's marks; the ROC shows the other attacks too."""
    names = dict.fromkeys((attack, *others))
    area = rates_of(source, attack, target).auc["value"]
    return pictures_of_scores(tuple((name, source.scores(name)) for name in names), target, area)


@lru_cache(16)
def pictures_of_scores(
    named_scores: tuple[tuple[str, Scores], ...], target: int | str, area: float
) -> tuple[dict, dict]:
    """Histogram and ROC of the scores of attacks, the first of which has this AUC."""
    drawn = {name: only(scores, target) for name, scores in named_scores}
    attack = next(iter(drawn))
    title = (
        f"{in_words(attack)}: a random member outscores a random non-member in {area:.1%} of cases"
    )
    histogram = with_layout(ranked(drawn[attack], bins=100), **LINED)
    roc = plain(plots.roc_pair(drawn))
    return with_title(histogram, title), with_title(roc, f"AUC {area:.3f}; star: the threshold")


def sentence(attack: str, rates: Rates, outcome: Outcome, prior: str, ppv: float) -> str:
    """The TPR of the threshold, and the share of members among the accused."""
    interval = f"95 %: {100 * outcome.low:.1f}-{100 * outcome.high:.1f}"
    result = (
        f"{in_words(attack)} finds {100 * outcome.tpr:.1f} % of members at"
        f" {100 * outcome.fpr:.3g} % false positives ({interval}),"
        f" n0 = {rates.n0.min():,}"
    )
    parts = [result]
    if not np.isnan(ppv):
        parts.append(f"at a prior of {prior}, {100 * ppv:.3g} % of those accused are members")
    if outcome.fpr * rates.n0.min() < 10:
        parts.append("below resolution: fewer than ten false positives")
    return "; ".join(parts)


def shown_row(rates: Rates, outcome: Outcome, prior: str, ppv: float) -> dict:
    """The row on the page."""
    return {
        "threshold (score)": f"{outcome.threshold:.4g}",
        "TPR": with_interval(outcome.tpr, outcome.low, outcome.high, ".4f"),
        "FPR": f"{outcome.fpr:.4f}",
        f"PPV at prior {prior}": number_text(ppv, ".3f"),
        "members accused": f"{outcome.true_positives:,} of {rates.n1.sum():,}",
        "false positives": f"{outcome.false_positives:,} of {rates.n0.sum():,}",
        "AUC": with_interval(*rates.auc[["value", "low", "high"]]),
        "ties": f"{rates.ties:.3f}",
        "k": rates.scores.info["k"],
        "Q": rates.scores.info["queries"],
        "targets": len(rates.scores.targets),
    }


def saved_row(
    attack: str, rates: Rates, outcome: Outcome, prior: str, ppv: float
) -> dict[str, object]:
    """The row that CSV saves."""
    return {
        "attack": attack,
        "targets": len(rates.scores.targets),
        "threshold": outcome.threshold,
        "tpr": outcome.tpr,
        "tpr_low": outcome.low,
        "tpr_high": outcome.high,
        "fpr": outcome.fpr,
        "prior": PRIORS[prior],
        "ppv": ppv,
        "true_positives": outcome.true_positives,
        "members": rates.n1.sum(),
        "false_positives": outcome.false_positives,
        "non_members": rates.n0.sum(),
        "auc": rates.auc["value"],
        "auc_low": rates.auc["low"],
        "auc_high": rates.auc["high"],
        "tie_mass": rates.ties,
        "references": rates.scores.info["k"],
        "queries": rates.scores.info["queries"],
    }


def rank_of(scores: Scores) -> Callable[[np.ndarray], np.ndarray]:
    """A function of scores: their place on the histogram's axis, by rank among all non-members."""
    return rank_among(scores.value[~scores.member])


def with_star(roc: dict, fpr: float, tpr: float) -> dict:
    """`plots.roc_pair` with a star in both panels: annotations, cheaper to redraw than curves."""
    star = {"text": "★", "font": {"size": 20, "color": GREY}, "showarrow": False}
    stars = [star | {"x": fpr, "y": tpr, "xref": "x", "yref": "y"}]
    if fpr > 0 and tpr > 0:  # on logarithmic axes an annotation takes the exponent
        place = {"x": math.log10(fpr), "y": math.log10(tpr), "xref": "x2", "yref": "y2"}
        stars.append(star | place)
    return with_layout(roc, annotations=[*roc["layout"].get("annotations", []), *stars])
